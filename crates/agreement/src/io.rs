//! What goes into the state machine and what comes out.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use quorate_wire::evidence::Evidence;
use quorate_wire::message::{AuthRequest, MAX_BATCH_REQUESTS, PeerMessage};
use quorate_wire::{
    Authentication, ClientId, Digest, LogIndex, MacKey, Quorum, RecoveryStatement, ReplicaId,
    ReplicaKeys, Seq, SessionId, Signer, Time, Verified, View,
};

use crate::Millis;
use crate::checked::Signed;
use crate::durable::Record;

/// Who a replica is and how patient.
#[derive(Clone, Debug)]
pub struct Config {
    /// Sizes of the group.
    pub quorum: Quorum,
    /// This replica.
    pub me: ReplicaId,
    /// Signs what third parties must believe.
    pub key: Signer,
    /// What the replicas' signatures are checked against.
    pub keys: ReplicaKeys,
    /// The group's clients. Nobody else's signature makes a request: a faulty replica can make up as many keys as it likes.
    pub clients: BTreeSet<ClientId>,
    /// Whether others may come, by credentials that are judged where links are made. The same at all replicas of a group.
    pub guests: bool,
    /// How long a request that its client has signed may wait before the replica asks for another primary, at the most: where
    /// batches are quick it is less.
    pub timeout_ms: Millis,
    /// How far the primary's time may be from this replica's clock.
    pub clock_bound_ms: Millis,
    /// How long the key of a client's link counts after the link has gone, for what others still pass on. Whoever has stolen it can use it no longer.
    pub client_keys_last_ms: Millis,
    /// What a client's word rests on.
    pub authentication: Authentication,
    /// Whether there is a log: votes leave when they are on disk. Without one they leave at once, and a replica that has
    /// stopped must not come back as if it remembered.
    pub durable: bool,
    /// The batches after a checkpoint may weigh this much before the next is due. The same at all replicas of a group:
    /// [`CHECKPOINT_BYTES`](crate::CHECKPOINT_BYTES) in all but tests.
    pub checkpoint_bytes: usize,
    /// The results that are kept of a session, for requests that are repeated, may have this many bytes together. The same at all replicas of a
    /// group: [`KEPT_BYTES`](quorate_wire::message::session::KEPT_BYTES) in all but tests.
    pub kept_bytes: usize,
    /// Which optimisations are used.
    pub tuning: Tuning,
}

/// The protocol's optimisations at a replica, each of which can be switched off to measure what it gives. Replicas of one group
/// may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Batches are executed when they have prepared, to be undone if a view change drops them. PBFT 2002, 5.1.2.
    pub tentative: bool,
    /// Requests up to this size travel inside the primary's pre-prepare.
    pub inline_bytes: usize,
    /// The most requests in a batch; at most [`MAX_BATCH_REQUESTS`](quorate_wire::message::MAX_BATCH_REQUESTS).
    pub batch_requests: usize,
    /// The most batches in flight.
    pub batches: u64,
    /// Replies to a batch with requests of so many sessions go together: each client hears from one replica, which has the
    /// others' word. The same at all replicas of a group, else clients wait and ask again.
    pub vouched_from: usize,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            tentative: true,
            inline_bytes: crate::INLINE_BYTES,
            batch_requests: MAX_BATCH_REQUESTS,
            batches: 16,
            vouched_from: 8,
        }
    }
}

/// The driver's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Monotonic; for time-outs.
    pub mono: Millis,
    /// Wall clock; proposed as agreed time by the primary, checked by backups.
    pub wall: Time,
}

/// What happens to a replica.
#[derive(Clone, Debug)]
pub enum Input {
    /// A message over the link from a replica.
    Peer(ReplicaId, PeerMessage),
    /// A request over the link from its client.
    Request(Verified<AuthRequest>),
    /// The same, where the client has sent it to the primary as well, for this replica to look what becomes of it.
    Watch(Verified<AuthRequest>),
    /// The driver has checked these signatures of clients, and found them right or not: see [`Agreement::unchecked_in`](crate::Agreement::unchecked_in).
    Checked(Vec<(Signed, bool)>),
    /// The link with another replica stands, or is gone.
    PeerLink(ReplicaId, bool),
    /// A link with a client stands, with this key for its authenticators. Whom the group does not name is a guest.
    ClientKey(ClientId, MacKey),
    /// The next link is one of a guest's; and whether the owner itself has granted what it has come by, or others have passed that on. Of whom this is
    /// not said, others have.
    Guest(ClientId, bool),
    /// The link with a client that had this key is gone.
    ClientKeyGone(ClientId, MacKey),
    /// A client that the group does not name has been gone for long: what is known of it can be forgotten.
    GuestGone(ClientId),
    /// This replica signs with another key from now on: that of its next epoch.
    Renewed(Box<Signer>),
    /// This replica has come back without its log, and its identity says so: to be ordered.
    Recover(Box<RecoveryStatement>),
    /// The state after this place, which comes next in [`Input::CheckpointMade`] or [`Input::StateFetched`], or with which the
    /// replica has started, tells of these recoveries: of each replica the number of its last statement.
    Recoveries(Seq, Vec<u64>),
    /// All records up to here are on disk.
    Persisted(LogIndex),
    /// The state after a checkpoint's place is in the store and has this root.
    CheckpointMade(Seq, Digest),
    /// All operations up to this place are done. From a driver that executes on workers; where execution is over when it returns
    /// nobody needs to be told.
    Done(Seq),
    /// State transfer has brought the state after this place, with this root.
    StateFetched(Seq, Digest),
    /// State transfer finds that the others do not keep the checkpoint any more.
    StateUnavailable,
    /// The state can't be read, and is to be compared with one that others have.
    StateDoubted,
    /// This replica is about to end: if it leads, the others are to have another primary first.
    HandOver,
    /// A time-out may have passed.
    Tick,
}

/// What a replica wants done, in order.
#[derive(Clone, Debug)]
pub enum Output {
    /// Send to one replica.
    Send(ReplicaId, PeerMessage),
    /// Send to all other replicas.
    Broadcast(PeerMessage),
    /// Append to the log; [`Input::Persisted`] comes back.
    Persist(LogIndex, Record),
    /// Execute, or keep what was executed tentatively at this place; the places come without gaps.
    Execute(Arc<Ordered>),
    /// Execute the batch of the next place, which has prepared, in such a way that it can be undone. There is one at a time.
    Tentative(Arc<Ordered>),
    /// Undo what was executed tentatively.
    Rollback,
    /// A checkpoint is stable: the log needs nothing up to its place, and these records in its place.
    Stable {
        /// Place of the checkpoint.
        seq: Seq,
        /// Root of the state there.
        root: Digest,
        /// What must outlive the log's older segments.
        head: Vec<Record>,
    },
    /// The state after this place, with this root, is to be fetched from the others; nothing is executed meanwhile.
    FetchState(Seq, Digest),
    /// What a replica certified before the one before this number is void, by a statement that was ordered.
    Void(ReplicaId, u64),
    /// This replica recovers, and as things stand it will not come back, or the group stands still without it: said now and then. If there
    /// are a log and a state that it does not believe, this is the time to go back to them.
    Missed(Missed),
    /// A replica has signed two statements that contradict each other; checked. At most one of each kind for a replica and run.
    Evidence(Box<Evidence>),
    /// This replica can't go on: its own past contradicts what the group has certified.
    Fatal(String),
}

/// Why a recovery comes to nothing: somebody else is faulty, or away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missed {
    /// Too few others take part in a view, so that nothing is ordered without this replica.
    Quorum,
    /// Too few others say how far they are.
    Answers,
    /// The group does not come to the place above all that it may have voted for, or too slowly.
    Places,
    /// The view in which it may speak again does not begin.
    View,
}

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Missed::Quorum => {
                "too few of the other replicas take part, so that the group stands still without this one"
            }
            Missed::Answers => "too few of the other replicas say how far they are",
            Missed::Places => {
                "the group does not get beyond the places that this replica may have voted for"
            }
            Missed::View => "the view in which this replica may vote again does not begin",
        })
    }
}

/// A batch that has committed; or has prepared, after all before it have committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered {
    /// Its place.
    pub seq: Seq,
    /// Its digest.
    pub digest: Digest,
    /// This replica's view when it handed the batch over, for replies.
    pub view: View,
    /// The primary's proposal for the agreed time.
    pub time: Time,
    /// The requests in order of execution, each with the replica that its client wants the full result from. Where that is not
    /// known it is [`EVERYONE`](quorate_wire::message::EVERYONE), and the authenticator is empty.
    pub requests: Vec<Arc<AuthRequest>>,
    /// Of how many sessions these are.
    pub sessions: usize,
}

/// Of how many sessions requests are.
pub(crate) fn sessions(requests: &[Arc<AuthRequest>]) -> usize {
    let sessions = requests.iter().map(|known| known.request.session());
    let mut sessions: Vec<SessionId> = sessions.collect();
    sessions.sort_unstable();
    sessions.dedup();
    sessions.len()
}

/// Why an input was refused. All of these are a peer's or client's doing; none changes the replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rejected {
    /// The sender is no replica of the group, or this replica itself.
    UnknownSender,
    /// For a view that this replica has left, or has not reached.
    OtherView,
    /// The view has not started here.
    NotActive,
    /// A pre-prepare or new view by a replica that is not the view's primary.
    NotThePrimary,
    /// Outside the log's window.
    OutsideWindow,
    /// The sender has voted otherwise at this place in this view.
    Contradiction,
    /// A batch that is empty, too heavy, or names a request twice.
    BadBatch,
    /// The proposed time is too far from this replica's clock.
    BadTime,
    /// A signature or MAC that does not match.
    BadAuthentication,
    /// Signed under a certificate of which there are two newer ones; or a statement that is not the last of its replica.
    OldEpoch,
    /// A view change or new view whose parts contradict each other or the rules.
    Malformed,
    /// Content that nobody here asked for.
    NotAsked,
    /// A request without a signature, of a client whose MACs were wrong before.
    Unsigned,
    /// The client has too much in flight, for itself or beside the others.
    ClientOverLimit,
    /// What is proposed is more than the log has room for.
    LogFull,
    /// The sender asks for more than it is given in so short a time.
    TooOften,
    /// Seen before.
    Duplicate,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rejected::UnknownSender => "unknown_sender",
            Rejected::OtherView => "other_view",
            Rejected::NotActive => "not_active",
            Rejected::NotThePrimary => "not_the_primary",
            Rejected::OutsideWindow => "outside_window",
            Rejected::Contradiction => "contradiction",
            Rejected::BadBatch => "bad_batch",
            Rejected::BadTime => "bad_time",
            Rejected::BadAuthentication => "bad_authentication",
            Rejected::OldEpoch => "old_epoch",
            Rejected::Malformed => "malformed",
            Rejected::NotAsked => "not_asked",
            Rejected::Unsigned => "unsigned",
            Rejected::ClientOverLimit => "client_over_limit",
            Rejected::LogFull => "log_full",
            Rejected::TooOften => "too_often",
            Rejected::Duplicate => "duplicate",
        })
    }
}

impl ::core::error::Error for Rejected {}
