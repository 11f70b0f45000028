//! Defects that can be switched on, to see that the tests find them: the published bugs of this family of protocols, each put into
//! this workspace's own code, and some of its own. `cargo xtask mutants` runs them; `docs/mutants.md` says what came of it.
//!
//! Without the feature `mutants` the question whether one is on is a constant, and the compiler leaves the defect out. The
//! feature can't be had in a release build (see below) and nothing that is installed can ask for it (`cargo xtask ci`).

#[cfg(all(feature = "mutants", not(debug_assertions)))]
compile_error!("mutants are for tests: never in a release build");

macro_rules! mutants {
    ($($mutant:ident $name:literal $bug:literal $source:literal)*) => {
        /// A defect.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Mutant {
            $(
                #[doc = $bug]
                $mutant,
            )*
        }

        #[cfg(feature = "mutants")]
        impl Mutant {
            /// All of them.
            pub const ALL: &[Mutant] = &[$(Mutant::$mutant),*];

            /// What looks for it.
            pub fn hunt(self) -> Hunt {
                match self {
                    it if it >= Mutant::HolderUnchecked => Hunt::Credentials,
                    it if it >= Mutant::ReadsBesideChanges => Hunt::Execution,
                    it if it >= Mutant::SelectsFrom2f => Hunt::Rules,
                    _ => Hunt::Group,
                }
            }

            /// Its name on the command line and in reports.
            pub fn name(self) -> &'static str {
                match self {
                    $(Mutant::$mutant => $name,)*
                }
            }

            /// What is wrong.
            pub fn bug(self) -> &'static str {
                match self {
                    $(Mutant::$mutant => $bug,)*
                }
            }

            /// Where it was seen; empty for our own.
            pub fn source(self) -> &'static str {
                match self {
                    $(Mutant::$mutant => $source,)*
                }
            }
        }
    };
}

/// What looks for a defect.
#[cfg(feature = "mutants")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hunt {
    /// The simulator.
    Group,
    /// Tests of crates: rules of the agreement one by one.
    Rules,
    /// Tests of crates: what runs beside what.
    Execution,
    /// Tests of crates: credentials.
    Credentials,
}

mutants! {
    // Published bugs.
    SenderIgnored "sender-ignored"
        "several VIEW-CHANGEs of one replica fill the quorum"
        "Themis view_change.rs"
    FirstProofWins "first-proof-wins"
        "the new view takes the first certificate, not that of the highest view"
        "Themis view_change.rs"
    PrimaryCountsTwice "primary-counts-twice"
        "the PRE-PREPARE counts as a vote beside the primary's PREPARE"
        "Themis message_log.rs"
    EmptyNewView "empty-new-view"
        "a NEW-VIEW without VIEW-CHANGEs panics"
        "Themis view_change.rs"
    HugeNumber "huge-number"
        "a huge place in a VIEW-CHANGE drives an allocation"
        "Themis view_change.rs"
    MessagesCounted "messages-counted"
        "CHECKPOINTs are counted by place, whatever their roots"
        "BFT-SMaRt issue 62"
    OneBadTaints "one-bad-taints"
        "one certificate that nobody vouches for makes the others of its place be ignored"
        "concord-bft pull 50"
    TargetNeverRenewed "target-never-renewed"
        "a state transfer waits for ever for a checkpoint that nobody keeps any more"
        "concord-bft pull 2863"
    CertificatesIgnored "certificates-ignored"
        "a new view starts without what had prepared in earlier ones"
        "IBFT v1, arXiv 1901.07160"
    StatusUnanswered "status-unanswered"
        "STATUS is not answered: who was kept in the dark learns from new requests only"
        "arXiv 2107.11144"
    HintsUntold "hints-untold"
        "STATUS is answered with votes, and not with hints of what committed"
        ""
    OnePeersHeight "one-peers-height"
        "one peer's word for a checkpoint ahead is believed"
        "CometBFT CVE-2025-24371"
    BodiesBare "bodies-bare"
        "a request that is asked for comes without its client's word, and nobody votes for it"
        "own"
    NobodyVouches "nobody-vouches"
        "a request with a wrong MAC here is never voted for, whoever voted for it"
        "Aardvark, NSDI 2009"
    LogLost "log-lost"
        "a replica that restarts has the store and nothing of its log: it votes as if it remembered"
        "Jepsen on Tendermint 0.10.2; the recovery protocol"
    LogFatal "log-fatal"
        "a replica can't start from a log that names a batch without content"
        "Jepsen on Tendermint 0.10.2"
    // Traps.
    AwaitedNotAnnounced "awaited-not-announced"
        "a new primary selects from the VIEW-CHANGEs that it waited for and announces others"
        "fabric pull 1111"
    ExecutedFalls "executed-falls"
        "last-executed falls to the stable checkpoint with a view change"
        "fabric pull 1174"
    FarPlacesCount "far-places-count"
        "one proposal far ahead makes a primary look busy, however late what leads there comes"
        "Prime, DSN 2008"
    UnfairForgiven "unfair-forgiven"
        "a primary that serves others before one client, or without it, is not left for that"
        "Aardvark, NSDI 2009"
    BlameForgiven "blame-forgiven"
        "a primary that lets requests wait although it could propose them is not left for that"
        "Aardvark, NSDI 2009; Prime, DSN 2008"
    NullForgotten "null-forgotten"
        "the places of null batches are lost in a crash"
        "fabric issue 1731"
    LaggardDropsCommits "laggard-drops-commits"
        "a laggard drops what it hears of places that it has no proposal for"
        "fabric issue 1857"
    EarlyViewTimer "early-view-timer"
        "the patience with a new primary begins before 2f+1 VIEW-CHANGEs are there"
        "sawtooth-pbft pull 133"
    ViewNeverLearnt "view-never-learnt"
        "who was away is never told how the present view began"
        "sawtooth-pbft pull 90, dela pull 214"
    OneDonor "one-donor"
        "state is asked of one replica only"
        "concord-bft issue 269, pull 912"
    PatienceOnlyGrows "patience-only-grows"
        "time-outs double with each view change and never fall back"
        "Prime; BFT-SMaRt issue 51"
    TimerNeverStops "timer-never-stops"
        "the view's timer runs on while requests are executed"
        "BFT-SMaRt issue 57"
    UnreadableForGood "unreadable-for-good"
        "a replica that finds a value that can't be read gives up"
        ""
    NeverRepaired "never-repaired"
        "a replica whose root differs from the certified one goes on with its state"
        "BFT-SMaRt issue 73"
    HalfStateBoots "half-state-boots"
        "a crash in the midst of a state transfer leaves a store that is taken for whole"
        ""
    ClientStartsAtZero "client-starts-at-zero"
        "a client that starts again uses the numbers of its last run"
        "measured on Themis"
    // Our own: votes, quorums, disks.
    SentBeforeDurable "sent-before-durable"
        "votes leave before they are on disk" ""
    CountedBeforeDurable "counted-before-durable"
        "a replica counts its own votes before they are on disk" ""
    PreparedWith2f "prepared-with-2f"
        "2f PREPAREs make a certificate" ""
    CommittedWith2f "committed-with-2f"
        "2f COMMITs suffice" ""
    OneHintSuffices "one-hint-suffices"
        "one replica's word that something committed is believed" ""
    TwoVotesInAView "two-votes-in-a-view"
        "a second PRE-PREPARE for a place replaces the first" ""
    WindowUnchecked "window-unchecked"
        "a PRE-PREPARE outside of the water marks is taken" ""
    TimeUnchecked "time-unchecked"
        "the primary's time is taken, whatever it is" ""
    AuthenticityUnchecked "authenticity-unchecked"
        "requests in a PRE-PREPARE are believed to be their clients'" ""
    AnswersWithoutEnd "answers-without-end"
        "who asks is answered, however often it asks" ""
    LogUnbounded "log-unbounded"
        "a primary may propose as much as the water marks let it" ""
    StaleProposalsKept "stale-proposals-kept"
        "a primary keeps to a proposal that is too old for whoever has not heard of it" ""
    SuspectsRelayed "suspects-relayed"
        "what a backup passes on of a client with wrong MACs needs no signature" ""
    LatenessForgiven "lateness-forgiven"
        "a primary that delays each request for a few milliseconds is not left for that" "Aardvark, NSDI 2009; Prime, DSN 2008"
    ContentUnjudged "content-unjudged"
        "a primary that proposes small requests without their content, and gives it late, is not left for that" "Prime, DSN 2008"
    SpoiltProposedAgain "spoilt-proposed-again"
        "a primary proposes anew, whenever it leads, what others could not tell to be its client's" ""
    ManyForgiven "many-forgiven"
        "however many clients have wrong MACs, others need not sign" ""
    ReplaysTaken "replays-taken"
        "what was executed is ordered again when a backup passes it on" ""
    StrangersBelieved "strangers-believed"
        "a request counts as its client's if its signature is right, whoever that client is" ""
    // View changes.
    WithoutA1 "without-a1"
        "the selection does not look at other certificates (A1)" ""
    WithoutA2 "without-a2"
        "the selection does not ask who vouches for a certificate (A2)" ""
    PreparedForgotten "prepared-forgotten"
        "certificates are not kept over views" ""
    PrePreparedForgotten "pre-prepared-forgotten"
        "what was pre-prepared is forgotten in a restart" ""
    LeavingForgotten "leaving-forgotten"
        "that a replica left its view is forgotten in a restart" ""
    HeadLacksChange "head-lacks-change"
        "the head of a new log segment lacks the VIEW-CHANGE" ""
    NewViewUnchecked "new-view-unchecked"
        "a NEW-VIEW is believed without running the selection again" ""
    ViewChangeForged "view-change-forged"
        "signatures of VIEW-CHANGEs are not checked" ""
    OneLeadsAway "one-leads-away"
        "one VIEW-CHANGE of a later view is followed" ""
    SelectionCut "selection-cut"
        "what a view began with above a replica's window is not taken up when the window comes there" ""
    // Coming back without memory.
    RecoveringVotes "recovering-votes"
        "a replica that knows that it has lost its log votes at once" ""
    RecoveryBoundLow "recovery-bound-low"
        "a replica that has lost its log votes again from the others' last checkpoint on" ""
    RecoveryAnyView "recovery-any-view"
        "a replica that has lost its log votes in the view that it finds" ""
    HelpedWithoutEnd "helped-without-end"
        "a replica that says that it recovers is helped as often as it says so" ""
    // Keys of epochs.
    AgeUnchecked "age-unchecked"
        "the number of the certificate of a VIEW-CHANGE or NEW-VIEW is not looked at" ""
    FormerWordsCount "former-words-count"
        "what a replica said under keys that are worth nothing any more counts on" ""
    // Recoveries that are ordered, and such that are missed.
    StatementUnordered "statement-unordered"
        "a replica is back though no state tells of its recovery" ""
    StatementReplayed "statement-replayed"
        "an older statement that a replica recovers counts as its last one" ""
    OrderVoidsNothing "order-voids-nothing"
        "a recovery that was ordered makes no older key void" ""
    NeglectForgiven "neglect-forgiven"
        "a primary that orders no recovery is not left" ""
    NeverGoesBack "never-goes-back"
        "a replica that recovers waits for ever where the others can't do without it" ""
    EndsBeforeDurable "ends-before-durable"
        "a recovery counts as over before the record of that is on disk" ""
    SeenUntold "seen-untold"
        "a replica that recovers is not told which certificates its supervisor has seen" ""
    // Checkpoints and state.
    StableWithWeak "stable-with-weak"
        "f+1 CHECKPOINTs make a checkpoint stable" ""
    FetchedIsStable "fetched-is-stable"
        "a checkpoint that was fetched is stable at once, though f+1 replicas may be all that have it" ""
    PiecesUnchecked "pieces-unchecked"
        "pieces of a fetched state are not compared with the digest above them" ""
    // Execution and clients.
    ReplyCacheSkipped "reply-cache-skipped"
        "a request that is ordered twice is executed twice" ""
    OverlayKept "overlay-kept"
        "what was executed tentatively stays when a view change drops its batch" ""
    ReadsTentative "reads-tentative"
        "reads are answered while a tentative batch is in the state" ""
    ReadsAfterRollback "reads-after-rollback"
        "reads are answered from a state that a view change has taken back to before what clients were told" ""
    OneReplySuffices "one-reply-suffices"
        "a client believes one reply" ""
    VouchersUnchecked "vouchers-unchecked"
        "a client does not check what one replica brings as others' word" ""
    TentativeIsFinal "tentative-is-final"
        "a client takes f+1 replies, tentative or not" ""
    TentativeOfAnyView "tentative-of-any-view"
        "tentative replies of different views count together" ""
    ReadsTakeWeak "reads-take-weak"
        "a read that is not ordered is taken from f+1" ""
    EarlyReadsOfAnyPlace "early-reads-of-any-place"
        "what was read before it had committed counts together with what was read of another state" ""
    RecoveringLeadsFar "recovering-leads-far"
        "where a replica that recovers waits counts as a word for that view, however far it is" ""
    // Rules of view changes and of recovery, one by one. All from here on are looked for by tests of crates and not by the simulator; see [`Hunt`].
    SelectsFrom2f "selects-from-2f"
        "2f VIEW-CHANGEs begin a view" ""
    CheckpointOfF "checkpoint-of-f"
        "a view starts from a checkpoint that f replicas vouch for" ""
    CheckpointPassed "checkpoint-passed"
        "a view starts from a checkpoint that only 2f replicas have not passed" ""
    LowestCheckpoint "lowest-checkpoint"
        "a view starts from the lowest checkpoint that could do" ""
    LowestViewWins "lowest-view-wins"
        "of the certificates that could be selected that of the lowest view is" ""
    A1With2f "a1-with-2f"
        "2f VIEW-CHANGEs that allow it suffice for a certificate (A1)" ""
    A1AnyDigest "a1-any-digest"
        "certificates of one view for different batches allow each other (A1)" ""
    A1Passed "a1-passed"
        "who has passed a place counts as one that allows what is selected there (A1)" ""
    A2WithF "a2-with-f"
        "f vouchers suffice for a certificate (A2)" ""
    A2AnyView "a2-any-view"
        "who pre-prepared a batch in an earlier view than the certificate's vouches for it (A2)" ""
    NullWith2f "null-with-2f"
        "2f VIEW-CHANGEs without a certificate make a place null (B)" ""
    NullPassed "null-passed"
        "who has passed a place counts as one without a certificate there (B)" ""
    GapsClosed "gaps-closed"
        "places that come to be null are left out, and what follows moves up" ""
    LaterViewsTaken "later-views-taken"
        "a VIEW-CHANGE may have certificates of the view that it is for" ""
    TentativeKept "tentative-kept"
        "who leaves a view does not undo what it has executed tentatively" ""
    ViewWithoutBound "view-without-bound"
        "a NEW-VIEW ends a recovery whose bound has gone since it came" ""
    EstimateMiscounts "estimate-miscounts"
        "what the answers before a new one have prepared counts for them, in place of for the new one: a lie that comes early raises the estimate"
        "PBFT's library, recovery estimation"
    FetchingForgotten "fetching-forgotten"
        "a replica that died in the middle of a state transfer goes back to the checkpoint before that one"
        "CometBFT issue 1077"
    // Execution beside each other: what waits for what.
    ReadsBesideChanges "reads-beside-changes"
        "who reads does not wait for who changes before it" ""
    WritesBesideChanges "writes-beside-changes"
        "who writes runs beside who changes the same before it, and only settles after it" ""
    WritesOverReads "writes-over-reads"
        "a write is in the state before who reads before it has run" ""
    SettlesOverReads "settles-over-reads"
        "who settles does not wait for who reads before it" ""
    SettlesOverChanges "settles-over-changes"
        "who settles does not wait for who changes before it" ""
    EverythingOverlooked "everything-overlooked"
        "nobody waits for who touches everything" ""
    ClassesOverlooked "classes-overlooked"
        "who touches everything does not wait for who touches a class or less" ""
    ClassOverlooked "class-overlooked"
        "who touches an object does not wait for who touches its class" ""
    ObjectsOverlooked "objects-overlooked"
        "who touches a class does not wait for who touches its objects" ""
    ObjectOverlooked "object-overlooked"
        "who touches a range does not wait for who touches its object" ""
    RangesOverlooked "ranges-overlooked"
        "who touches an object does not wait for who touches ranges of it" ""
    RangeEndsLeftOut "range-ends-left-out"
        "ranges of which one begins with the other's last number do not meet" ""
    PartsHidden "parts-hidden"
        "who changes a range stands for all whose ranges meet it, also where they reach beyond it" ""
    ReadersHide "readers-hide"
        "who reads a scope stands for those who touch what lies in it" ""
    ReadersHideChanger "readers-hide-changer"
        "who reads a scope stands for who changed it before" ""
    OwnUsesHide "own-uses-hide"
        "an operation's use stands for others before its other uses have looked for them" ""
    WeakerStays "weaker-stays"
        "who settles after another for one use, and would run after it for the next, runs beside it" ""
    LaterForgotten "later-forgotten"
        "who is done takes a later one that changes the same out of sight" ""
    UsesCut "uses-cut"
        "of many uses the last ones are left out" ""
    BaseBeside "base-beside"
        "where all conflict, what is declared counts" ""
    CheckpointsHurry "checkpoints-hurry"
        "a checkpoint does not wait for the operations before it" ""
    CheckpointsShort "checkpoints-short"
        "a checkpoint does not wait for the last operation before it" ""
    SettlesInNewest "settles-in-newest"
        "what an operation wrote goes into the newest layer, not that of its own checkpoint" ""
    RepliesInOldest "replies-in-oldest"
        "the reply of an operation goes into the oldest layer, not that of its own checkpoint" ""
    AnsweredKept "answered-kept"
        "a checkpoint keeps the reply of an operation that was at work, though its client said that it has it" ""
    TwinsExecuted "twins-executed"
        "a request that is ordered again while it is at work is executed twice" ""
    PlacesShared "places-shared"
        "an operation enters while one is at work whose reply has the same place" ""
    SessionsBeside "sessions-beside"
        "a session ends while operations of its own are at work" ""
    EndsBeside "ends-beside"
        "what ended sessions held is let go of beside operations that conflict with that" ""
    EndsTakeReplies "ends-take-replies"
        "a session that ends takes its replies from checkpoints that wait" ""
    AnsweredWrittenOut "answered-written-out"
        "a session that ends writes into checkpoints that wait what an older one is still to take away" ""
    EvictedAnswered "evicted-answered"
        "a session leaves memory though the next checkpoint is to take answered replies of it away" ""
    GoneUncounted "gone-uncounted"
        "results that are gone do not count again when what had answered them is undone" ""
    UndecidedNever "undecided-never"
        "a request that is ordered again does not wait for what decides whether its result is gone" ""
    AgreedAsKept "agreed-as-kept"
        "a request that is ordered again is told a result that is gone in the agreed order, since it is still in memory" ""
    HasGoneIgnored "has-gone-ignored"
        "below a result that is gone, a later one is kept where there is room" ""
    GoneEndsNothing "gone-ends-nothing"
        "results below one that is gone are counted as if that had been none" ""
    RowsUnbounded "rows-unbounded"
        "a checkpoint that waits has results that were to go from it" ""
    BoundWhileWaiting "bound-while-waiting"
        "results go from memory while a checkpoint waits that has them" ""
    GoneForGood "gone-for-good"
        "a result that has gone by what is undone stays gone" ""
    UndoneSettles "undone-settles"
        "what was undone while it was at work settles all the same" ""
    GivenUpSettles "given-up-settles"
        "what was at work on a state that was given up settles in the next one" ""
    // Credentials, their verifier.
    HolderUnchecked "holder-unchecked"
        "who uses a credential need not be its subject" "a stolen capability"
    ForgeriesTaken "forgeries-taken"
        "the last link's signature is not checked" ""
    ParentUnbound "parent-unbound"
        "a link's signature does not cover the links before it" "a link of one chain in another"
    WidenedRights "widened-rights"
        "a link may give rights that its issuer has not" ""
    WidenedTime "widened-time"
        "a link may last longer than the one before it" ""
    WidenedScope "widened-scope"
        "a link may be about another object than one that is passed on without its subtree" ""
    DepthUncounted "depth-uncounted"
        "a link may be followed by as many as the one before it" ""
    AnyonesPassedOn "anyones-passed-on"
        "the right to pass on is not needed" ""
    LoopsTaken "loops-taken"
        "a key may be in a chain twice" ""
    OthersIds "others-ids"
        "who passes on may fix another user" ""
    UnknownSkipped "unknown-skipped"
        "caveats that are not understood are skipped" ""
    LateExpiry "late-expiry"
        "a credential holds for one second more, says the verifier" ""
    LastScopeAlone "last-scope-alone"
        "only the last link's object is looked at, not those of all links" ""
    PrefixesConfused "prefixes-confused"
        "a name that is the beginning of a prefix counts as one that has it" ""
    // Credentials, in the file service.
    ThievesKept "thieves-kept"
        "a credential is kept for whoever brings it" "a stolen capability"
    LateEnd "late-end"
        "a credential that is kept is in force for one second more" ""
    SerialStopsThere "serial-stops-there"
        "a revocation takes back a last link, and nothing that was passed on below one" ""
    RevokedBelowAll "revoked-below-all"
        "what a holder takes back is looked for in all links, also in those above its own" ""
    KeysOverlooked "keys-overlooked"
        "revocations by key are not looked for" ""
    EpochsOverlooked "epochs-overlooked"
        "revocations by epoch are not looked for" ""
    EpochIncluded "epoch-included"
        "a revocation by epoch takes back the serial that it names too" ""
    RevocationsRemembered "revocations-remembered"
        "what was decided before a revocation holds after it" ""
    MovesRemembered "moves-remembered"
        "what was decided of what is below a directory holds after that was moved out" ""
    RenamesRemembered "renames-remembered"
        "what was decided of an object holds after its name was moved out" ""
    UndoneRemembered "undone-remembered"
        "what was decided holds after the operations that it follows from were undone" ""
    LinksWiden "links-widen"
        "a hard link or a rename may bring something to where a credential gives more" ""
    NumbersReused "numbers-reused"
        "the number of an object that was deleted is given to the next one" "DisCFS"
    SharesOpen "shares-open"
        "anybody is told what was passed on from a link" ""
}

#[cfg(feature = "mutants")]
mod switch {
    extern crate std;

    use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::Mutant;

    /// Tests of crates are told by a variable, since nobody stands before them who could switch.
    const VARIABLE: &str = "QUORATE_MUTANT";

    /// It was not asked yet.
    const UNKNOWN: usize = usize::MAX;

    /// The number of the one that is on, plus one; 0 for none.
    static ON: AtomicUsize = AtomicUsize::new(UNKNOWN);

    /// What the variable says. A name that there is not is no reason to run without a defect.
    fn told() -> usize {
        let Ok(name) = std::env::var(VARIABLE) else {
            return 0;
        };
        let number = Mutant::ALL.iter().position(|m| m.name() == name);
        1 + number.expect("the variable names a mutant")
    }

    /// Switches one on, for the whole process, and all others off.
    pub fn switch(mutant: Option<Mutant>) {
        ON.store(mutant.map_or(0, |m| m as usize + 1), Relaxed);
    }

    /// Whether a defect is on.
    pub fn is_on(mutant: Mutant) -> bool {
        let on = match ON.load(Relaxed) {
            UNKNOWN => {
                // Where several ask at once they are told the same.
                let on = told();
                ON.store(on, Relaxed);
                on
            }
            on => on,
        };
        on == mutant as usize + 1
    }
}

#[cfg(feature = "mutants")]
pub use switch::{is_on, switch};

/// Whether a defect is on: never, here.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn is_on(_: Mutant) -> bool {
    false
}
