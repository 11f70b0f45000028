//! The replica's half of agreement: its state, the dispatch of inputs, and what must hold after each.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use bytes::Bytes;
use quorate_wire::digest::Content;
use quorate_wire::evidence::Kind;
use quorate_wire::message::{Batch, PeerMessage, SignedNewView, SignedViewChange, Status};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{ClientId, Digest, KeyPair, LogIndex, ReplicaId, Seq, Signature, View};

use crate::allowance::Allowance;
use crate::authenticity::{Checks, ClientKeys};
use crate::budget::Budget;
use crate::catch_up::{Behind, ContentDue, Stranded};
use crate::checked::Checked;
use crate::durable::{Entered, Record, Remembered, StableRecord};
use crate::epochs::Epochs;
use crate::guests::Guests;
use crate::io::{Config, Input, Now, Ordered, Output, Rejected};
use crate::judge::Judge;
use crate::pace::Pace;
use crate::pool::{ENOUGH_BYTES, Pool};
use crate::primary::Due;
use crate::recovery::{Help, Recovering, Recovery};
use crate::signed_terms::SignedTerms;
use crate::slot::{Proposal, Slot, Stage};
use crate::watched::{Marks, Seen, Slots, Watched};
use crate::{LOG_WINDOW, Millis};

/// Agreement at one replica.
#[derive(Clone, Debug)]
pub struct Agreement {
    pub(crate) config: Config,
    pub(crate) now: Now,
    pub(crate) out: VecDeque<Output>,

    pub(crate) view: View,
    /// Whether `view` has started here; otherwise this replica waits for its NEW-VIEW.
    pub(crate) active: bool,
    pub(crate) slots: Slots,
    /// Places with a proposal that was not accepted yet; some that have none any more.
    pub(crate) awaiting: Watched<BTreeSet<Seq>>,
    pub(crate) pool: Watched<Pool>,
    pub(crate) judge: Judge,
    pub(crate) mac_keys: BTreeMap<ClientId, ClientKeys>,
    /// Of each client the last signature for several requests that was found right, with what it is over.
    pub(crate) shared: BTreeMap<ClientId, (Digest, Signature)>,
    /// Other signatures that the driver has checked.
    pub(crate) checked: Checked,
    pub(crate) checks: Checks,
    /// Clients that must sign what they ask this replica as primary.
    pub(crate) suspects: SignedTerms,
    /// What clients have left of what they may ask for.
    pub(crate) allowances: BTreeMap<ClientId, Allowance>,
    /// Clients that the group does not name.
    pub(crate) guests: Guests,
    pub(crate) started: Millis,
    /// The last place that this replica gave as primary, or the last that its view started with.
    pub(crate) last_given: Seq,
    /// For whom those wait that are ahead of their shares.
    pub(crate) due: Due,
    /// How fast it gives places.
    pub(crate) pace: Pace,
    /// All places up to here have committed.
    pub(crate) committed: Seq,
    /// All places up to here were handed to execution.
    pub(crate) executed: Seq,
    /// What the requests weigh that were executed after the last stable checkpoint.
    pub(crate) unstable_weight: usize,
    /// What was handed to execution tentatively: the batch after `executed`, while that has prepared in `view` and not committed.
    pub(crate) tentative: Option<Arc<Ordered>>,
    /// The last place for which this replica ever held a certificate: a client may have been told what a batch there gave.
    pub(crate) certified: Seq,

    /// The last stable checkpoint: the low water mark.
    pub(crate) stable: (Seq, Digest),
    /// Own checkpoints from the stable one up.
    pub(crate) own_checkpoints: BTreeMap<Seq, Digest>,
    /// Others' CHECKPOINTs.
    pub(crate) checkpoint_votes: crate::checkpoint::CheckpointVotes,
    /// The state that is being fetched.
    pub(crate) fetching: Option<(Seq, Digest)>,
    /// The record that says so.
    pub(crate) fetching_at: Option<LogIndex>,
    /// The record of the stable checkpoint, where it was written since the start.
    pub(crate) stable_at: Option<LogIndex>,

    /// The newest VIEW-CHANGE of each replica.
    pub(crate) view_changes: BTreeMap<ReplicaId, SignedViewChange>,
    /// VIEW-CHANGEs that were fetched for a NEW-VIEW, by digest.
    pub(crate) proofs: BTreeMap<Digest, SignedViewChange>,
    /// This replica's own VIEW-CHANGE for `view` while that has not started; it may still be on its way to the disk.
    pub(crate) own_change: Option<SignedViewChange>,
    /// NEW-VIEWs of which some VIEW-CHANGEs are missing: one for each primary, so that a faulty one that names a far view
    /// and VIEW-CHANGEs that nobody has keeps out no other.
    pub(crate) waiting_new_views: BTreeMap<ReplicaId, SignedNewView>,
    /// By who has shown it, one of a view that has begun without this replica, while this one waits in a later view: it would end a certificate here.
    pub(crate) missed_new_views: BTreeMap<ReplicaId, SignedNewView>,
    /// The newest NEW-VIEW of each primary that was rightly signed, whatever came of it: another for the same view is evidence.
    pub(crate) heard_new_views: BTreeMap<ReplicaId, SignedNewView>,
    /// Of whom there is evidence, and of which kind: one of each is enough.
    pub(crate) accused: BTreeSet<(ReplicaId, Kind)>,
    /// How the present view (or the last one that started) began.
    pub(crate) entered: Option<Entered>,
    /// When to give up waiting for the NEW-VIEW; set when 2f+1 VIEW-CHANGEs are there.
    pub(crate) new_view_deadline: Option<Millis>,
    /// View changes since the last progress.
    pub(crate) failed_views: u32,
    /// Those of them from a view that had not begun, or where something waited, but for the first few in which too few were; 1 if there were others alone. Each doubles the patience. Had the others as well,
    /// a faulty replica that has others follow it would have them wait longest wherever nobody asks for anything.
    pub(crate) slow_views: u32,
    /// Views that did not begin in time since one last did; f+1 stand for more.
    pub(crate) failed_to_begin: usize,
    /// Under which keys the replicas speak, where they have key holders.
    pub(crate) epochs: Option<Epochs>,
    pub(crate) view_changes_seen: u64,

    pub(crate) next_index: LogIndex,
    /// All records up to here are on disk.
    pub(crate) persisted: Option<LogIndex>,
    /// The record of how the present view began.
    pub(crate) entered_at: Option<LogIndex>,
    /// Messages that wait for the log.
    pub(crate) held: VecDeque<(LogIndex, Held)>,

    /// What each replica last said of itself, and whether it had moved since the time before.
    pub(crate) statuses: BTreeMap<ReplicaId, (Status, bool)>,
    /// What each may still be given.
    pub(crate) budgets: BTreeMap<ReplicaId, Budget>,
    pub(crate) next_status: Millis,
    /// Whether the last one said that the primary is lost.
    pub(crate) told_loss: bool,
    /// Replicas that wait alone in a later view, since when, and when they were last followed there.
    pub(crate) stranded: BTreeMap<ReplicaId, Stranded>,
    /// While this replica has forgotten what it said.
    pub(crate) recovery: Option<Recovery>,
    /// How it stood when it ended. Until that is on disk it is not over: after a crash it would begin once more.
    pub(crate) ending: Option<Recovering>,
    /// What it does for others that have.
    pub(crate) help: Help,
    pub(crate) fetch_turn: u8,
    /// Requests that this replica has asked others for.
    pub(crate) asked: BTreeSet<Digest>,
    /// When requests that proposals name are asked for that have not come by then.
    pub(crate) content_due: Option<ContentDue>,
    /// Since when nothing was executed although a certified checkpoint is ahead.
    pub(crate) behind: Option<Behind>,
}

/// A number that nobody else can guess, the same at each start.
fn secret_seed(key: &KeyPair) -> u64 {
    let digest = Digest::of(Content::TableSeed, &key.seed());
    u64::from_le_bytes(core::array::from_fn(|i| digest.0[i]))
}

/// Something to do once a record is on disk.
#[derive(Clone, Debug)]
pub(crate) enum Held {
    /// Tell all others, and take one's own word for it too.
    Tell(PeerMessage),
}

/// Where a replica stands; for reports and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its view.
    pub view: View,
    /// Whether the view has started.
    pub active: bool,
    /// The last place up to which all have committed.
    pub committed: Seq,
    /// The last place handed to execution.
    pub executed: Seq,
    /// The last stable checkpoint and its root.
    pub stable: (Seq, Digest),
    /// Whether state is being fetched.
    pub fetching: bool,
    /// View changes since the start.
    pub view_changes: u64,
    /// While the replica has forgotten what it said, and is silent.
    pub recovering: Option<Recovering>,
}

impl Agreement {
    /// A replica whose store holds the state after `checkpoint` (place and root), and whose log holds `records`.
    ///
    /// `next_index` is the index for the first new record. A fresh replica has no records and the checkpoint of the initial
    /// state, place 0. `whole` is false where a state transfer was cut short, so that the store's content is no checkpoint.
    pub fn new(
        config: Config,
        checkpoint: (Seq, Digest),
        whole: bool,
        mut records: Vec<Record>,
        next_index: LogIndex,
        now: Now,
    ) -> Agreement {
        if is_on(Mutant::LogLost) {
            records.retain(|r| matches!(r, Record::Stable(_) | Record::Checkpoint(_)));
        }
        let whole = whole || is_on(Mutant::HalfStateBoots);
        let Remembered {
            view,
            changing,
            entered,
            stable,
            checkpoints,
            mut slots,
            mut pool,
            recovering,
            epochs,
            fetching,
        } = Remembered::from_records(records, secret_seed(config.key.key()));
        // The key under which it was signed is gone, or old.
        let again = |m: SignedViewChange| match config.key.certificate() {
            Some(_) => SignedViewChange::sign(m.body, &config.key).into_inner(),
            None => m,
        };
        let changing = changing.map(again);
        let is_fresh = stable.is_none() && !recovering;
        let stable = stable.map(|s| (s.seq, s.root));
        // Without a log its own checkpoint is all that it knows of.
        let own = (whole && recovering).then_some(checkpoint);
        let mark = own
            .filter(|_| stable.is_none())
            .map_or(Seq(0), |(seq, _)| seq);
        let stable = stable.or(own).unwrap_or((Seq(0), checkpoint.1));
        // What the log has learnt since of places up to there is done with.
        let slots = slots.split_off(&stable.0.next());
        let mut own_checkpoints = checkpoints;
        // The log can be ahead of the store: such a checkpoint was of a state that this replica has not any more. Where the store was to become another, those before that one
        // were made.
        let made = match whole {
            true => checkpoint.0.next(),
            false => fetching.as_ref().map_or(Seq(0), |f| f.seq),
        };
        own_checkpoints.retain(|seq, _| *seq < made);
        own_checkpoints.extend(whole.then_some(checkpoint));
        let last_given = slots
            .keys()
            .next_back()
            .copied()
            .unwrap_or(stable.0)
            .max(checkpoint.0);
        pool.restart(&BTreeSet::new(), now.mono);
        let certified = slots.iter().rev().find(|(_, s)| s.prepared.is_some());
        let certified = certified.map_or(checkpoint.0, |(seq, _)| *seq);
        let mut core = Agreement {
            now,
            out: VecDeque::new(),
            view,
            active: changing.is_none() && !recovering,
            slots: slots.into(),
            awaiting: Watched::default(),
            pool: Watched::new(pool),
            judge: Judge::new(secret_seed(config.key.key()), now.mono),
            mac_keys: BTreeMap::new(),
            shared: BTreeMap::new(),
            checked: Checked::new(secret_seed(config.key.key())),
            checks: Checks::default(),
            suspects: SignedTerms::default(),
            allowances: BTreeMap::new(),
            guests: Guests::default(),
            started: now.mono,
            last_given,
            due: Due::new(now.mono),
            pace: Pace::default(),
            committed: checkpoint.0,
            executed: checkpoint.0,
            unstable_weight: 0,
            tentative: None,
            certified,
            stable,
            own_checkpoints,
            checkpoint_votes: crate::checkpoint::CheckpointVotes::default(),
            fetching: None,
            fetching_at: None,
            stable_at: None,
            view_changes: BTreeMap::new(),
            proofs: BTreeMap::new(),
            own_change: changing.clone(),
            waiting_new_views: BTreeMap::new(),
            missed_new_views: BTreeMap::new(),
            heard_new_views: BTreeMap::new(),
            accused: BTreeSet::new(),
            entered,
            new_view_deadline: None,
            failed_views: 0,
            slow_views: 0,
            failed_to_begin: 0,
            epochs: Epochs::new(&config.keys, epochs),
            view_changes_seen: 0,
            next_index,
            persisted: None,
            entered_at: None,
            held: VecDeque::new(),
            statuses: BTreeMap::new(),
            budgets: BTreeMap::new(),
            next_status: now.mono,
            told_loss: false,
            stranded: BTreeMap::new(),
            ending: None,
            recovery: recovering.then(|| Recovery::new(now.wall.0, mark, now.mono)),
            help: Help::default(),
            fetch_turn: config.me.0,
            asked: BTreeSet::new(),
            content_due: None,
            behind: None,
            config,
        };
        if let Some(certificate) = core.config.key.certificate() {
            let counter = certificate.counter;
            core.saw_epoch(core.config.me, counter);
        }
        if let Some(change) = changing {
            core.view_changes.insert(core.config.me, change.clone());
            core.tell(PeerMessage::ViewChange(change));
        }
        if is_fresh {
            // The root of the initial state is the first that others may ask for; a store that has gone on forgets it.
            let (seq, root) = stable;
            let index = core.persist(Record::Stable(StableRecord { seq, root }));
            // A primary that has lost its first record takes itself for new, and would give its first places once more: it gives
            // none before that is on disk.
            core.entered_at = core.config.durable.then_some(index);
        }
        core.resume_votes();
        if !whole || core.stable.0 > checkpoint.0 {
            // The log has forgotten what leads from the store's state to the stable one: only the others know the way. Nor is half a
            // state one to start from (CometBFT issue 1077): it is to become the one that it was to be, for which f+1 others vouched. With the stable one in its
            // place, no view might begin any more where one of those others has fallen silent.
            let half =
                fetching.filter(|f| f.seq > core.stable.0 && !is_on(Mutant::FetchingForgotten));
            let target = half.map_or(core.stable, |f| (f.seq, f.root));
            core.fetch_state(target);
        } else {
            core.advance();
        }
        // Where this replica's own votes are enough, nobody else's message will ever bring its attention to them.
        let seqs: Vec<Seq> = core.slots.keys().copied().collect();
        seqs.into_iter().for_each(|seq| core.advance_slot(seq));
        while !core.config.durable && !core.held.is_empty() {
            core.on_persisted(LogIndex(core.next_index.0 - 1));
        }
        // Nor to a checkpoint that is in the store alone, where this replica died before its log knew of it.
        core.look_for_stability();
        // Nor that of a single replica to the view that it was about to begin.
        core.try_to_start_view();
        if core.active && core.is_primary() && !is_fresh && core.config.quorum.n() > 1 {
            // Its proposals leave before they are on disk, so it may have made some that it does not know of.
            core.start_view_change(core.view.next());
        }
        core
    }

    /// Takes back the votes that the log proves: the others may have missed them, and this replica counts them too.
    fn resume_votes(&mut self) {
        let (me, view) = (self.config.me, self.view);
        if !self.active {
            return;
        }
        for (&seq, slot) in self.slots.iter_mut() {
            let Some(vote) = slot.preprepared.iter().find(|v| v.view == view).cloned() else {
                continue;
            };
            if slot.committed.is_some_and(|c| c != vote.digest) {
                // An equivocating primary had this replica vote for what did not commit.
                continue;
            }
            if vote.digest == Batch::null().digest() {
                slot.batches
                    .entry(vote.digest)
                    .or_insert_with(|| Arc::new(Batch::null()));
            }
            if !slot.batches.contains_key(&vote.digest) {
                // Selected by the view's NEW-VIEW; the crash came before the content, so there was no vote yet.
                slot.proposal = Some(Proposal {
                    view,
                    digest: vote.digest,
                    stage: Stage::Proposed,
                    vouched: true,
                });
                self.awaiting.insert(seq);
                continue;
            }
            let prepared = slot.prepared.as_ref().is_some_and(|p| p.view == view);
            let stage = if prepared {
                Stage::Prepared
            } else {
                Stage::Accepted
            };
            slot.proposal = Some(Proposal {
                view,
                digest: vote.digest,
                stage,
                vouched: true,
            });
            slot.prepares.add(me, view, vote.digest);
            if prepared {
                slot.commits.add(me, view, vote.digest);
            }
        }
    }

    /// Takes one input in, and ends the turn.
    ///
    /// # Errors
    /// As [`Agreement::take`].
    pub fn handle(&mut self, now: Now, input: Input) -> Result<(), Rejected> {
        let result = self.take(now, input);
        self.end_turn();
        result
    }

    /// Takes one input in. What follows from it may wait for the end of the turn.
    ///
    /// # Errors
    /// Why a peer's or client's input was refused; for counting and for tests. The replica is none the worse.
    pub fn take(&mut self, now: Now, input: Input) -> Result<(), Rejected> {
        let before = core::mem::replace(&mut self.now, now);
        if self.has_stood_still(before.mono) {
            // This replica stood still (a stopped process, a busy machine): what others sent meanwhile waits to be read, and
            // who did not answer it is unknown.
            self.pool.wait_anew(now.mono);
            let patience = self.patience();
            self.new_view_deadline = self.new_view_deadline.map(|_| now.mono + patience);
        }
        match input {
            Input::Peer(from, message) => self.on_peer(from, message),
            Input::Request(request) => self.on_request(request),
            Input::Watch(request) => self.on_watch(request),
            Input::Checked(verdicts) => {
                self.on_checked(verdicts);
                Ok(())
            }
            Input::PeerLink(replica, is_up) => {
                self.on_peer_link(replica, is_up);
                Ok(())
            }
            Input::ClientKey(client, key) => self.on_client_key(client, key),
            Input::Guest(client, is_owners) => self.on_guest(client, Some(is_owners)),
            Input::ClientKeyGone(client, key) => {
                self.on_client_key_gone(&client, &key);
                Ok(())
            }
            Input::GuestGone(client) => {
                self.on_guest_gone(client);
                Ok(())
            }
            Input::Renewed(signer) => {
                self.on_renewed(*signer);
                Ok(())
            }
            Input::Recover(statement) => self.on_recover(&statement),
            Input::Recoveries(seq, numbers) => {
                self.on_recoveries(seq, &numbers);
                Ok(())
            }
            Input::Persisted(index) => {
                self.on_persisted(index);
                Ok(())
            }
            Input::CheckpointMade(seq, root) => {
                self.on_checkpoint_made(seq, root);
                Ok(())
            }
            Input::StateFetched(seq, root) => {
                self.on_state_fetched(seq, root);
                Ok(())
            }
            Input::StateUnavailable => {
                self.on_state_unavailable();
                Ok(())
            }
            Input::StateDoubted => {
                self.on_state_doubted();
                Ok(())
            }
            Input::Done(seq) => {
                self.pace.on_done(seq);
                Ok(())
            }
            Input::HandOver => {
                // Its VIEW-CHANGE alone leads the others away: nobody else can lead the view.
                if self.is_leading() && self.config.quorum.n() > 1 {
                    self.start_view_change(self.view.next());
                }
                Ok(())
            }
            Input::Tick => Ok(()),
        }
    }

    /// From here on clients' turns and the size of batches follow also from how many bytes the execution of an operation reads and writes beside
    /// its own, which only the service knows. This replica's own affair: others may know nothing of it.
    pub fn charge_work(&mut self, work: fn(&Bytes) -> usize) {
        self.pool.charge_work(work);
    }

    /// Does what the inputs taken since the last time call for. A turn is what a driver has at once: the requests in it travel
    /// in one batch, rather than the first of them alone and the others behind it.
    pub fn end_turn(&mut self) {
        // Whatever came may have been the last that was missing at the next place: content comes in many ways.
        self.advance();
        // It may have waited for the room that the next place has.
        let next = self.committed.next();
        if self.awaiting.contains(&next) {
            self.accept(next);
        }
        self.run_timers();
        self.propose();
        while !self.config.durable && !self.held.is_empty() {
            self.on_persisted(LogIndex(self.next_index.0 - 1));
            self.advance();
            self.propose();
        }
    }

    fn on_peer(&mut self, from: ReplicaId, message: PeerMessage) -> Result<(), Rejected> {
        if !self.config.quorum.contains(from) || from == self.config.me {
            return Err(Rejected::UnknownSender);
        }
        self.refuse_while_recovering(&message)?;
        self.judge.on_heard(from, self.primary(), self.now.mono);
        match message {
            PeerMessage::Request(request) => self.on_forwarded(from, request),
            PeerMessage::PrePrepare(m) => self.on_pre_prepare(from, m),
            PeerMessage::Prepare(m) => self.on_prepare(from, m),
            PeerMessage::Commit(m) => self.on_commit(from, m),
            PeerMessage::Checkpoint(m) => self.on_checkpoint(from, m),
            PeerMessage::ViewChange(m) => self.on_view_change(m),
            PeerMessage::NewView(m) => self.on_new_view(from, m),
            PeerMessage::Status(m) => self.on_status(from, m),
            PeerMessage::Committed(m) => self.on_committed(from, m),
            PeerMessage::Fetch(m) => self.on_fetch(from, m),
            PeerMessage::Batch(m) => self.on_batch(m),
            PeerMessage::Body(request) => self.on_body(from, request),
            PeerMessage::EstimatePlease(nonce) => self.on_estimate_please(from, nonce),
            PeerMessage::Estimate(m) => self.on_estimate(from, m),
            PeerMessage::Epoch(m) => self.on_epoch(from, m),
            // State transfer and replies are beside agreement, and the driver opens what is signed.
            PeerMessage::State(_) | PeerMessage::Vouchers(_) | PeerMessage::Signed(_) => {
                Err(Rejected::NotAsked)
            }
        }
    }

    /// Whether it may be told how the present view began: not before this replica would still know it after a crash.
    pub(crate) fn is_entry_durable(&self) -> bool {
        self.entered_at
            .is_none_or(|at| self.persisted.is_some_and(|done| done >= at))
    }

    fn on_persisted(&mut self, index: LogIndex) {
        self.persisted = self.persisted.max(Some(index));
        while self.held.front().is_some_and(|(at, _)| *at <= index) {
            let Some((_, Held::Tell(message))) = self.held.pop_front() else {
                break;
            };
            self.tell(message);
        }
    }

    /// Tells all others, and takes one's own word for it as if it had come from a peer.
    pub(crate) fn tell(&mut self, message: PeerMessage) {
        self.out.push_back(Output::Broadcast(message.clone()));
        self.count_own(message);
    }

    fn count_own(&mut self, message: PeerMessage) {
        match message {
            PeerMessage::Prepare(m) => self.count_prepare(self.config.me, m),
            PeerMessage::Commit(m) => self.count_commit(self.config.me, m),
            PeerMessage::ViewChange(m) => self.count_view_change(m),
            _ => {}
        }
    }

    /// Writes a record, and tells `message` once it is on disk.
    pub(crate) fn persist_then_tell(&mut self, record: Record, message: PeerMessage) {
        let index = self.persist(record);
        if is_on(Mutant::SentBeforeDurable) {
            return self.tell(message);
        }
        self.held.push_back((index, Held::Tell(message.clone())));
        if is_on(Mutant::CountedBeforeDurable) {
            self.count_own(message);
        }
    }

    /// Writes a record.
    pub(crate) fn persist(&mut self, record: Record) -> LogIndex {
        let index = self.next_index;
        self.next_index = LogIndex(index.0 + 1);
        if self.config.durable {
            self.out.push_back(Output::Persist(index, record));
        }
        index
    }

    /// Takes the outputs out, in order.
    pub fn drain(&mut self) -> impl Iterator<Item = Output> + '_ {
        self.out.drain(..)
    }

    /// When [`Input::Tick`] is due at the latest.
    pub fn next_timeout(&self) -> Millis {
        let deadlines = [
            self.request_deadline(),
            self.new_view_deadline,
            self.loss_deadline(),
            self.silence_deadline(),
            self.relay_deadline(),
            self.ahead_deadline(),
            self.pace_deadline(),
            self.content_due.map(|due| due.at),
        ];
        deadlines
            .into_iter()
            .flatten()
            .fold(self.next_status, Millis::min)
    }

    /// Whether a client has so much open here that nothing more is to be read from it; `before`: whether it had.
    pub fn has_enough_of(&self, client: &ClientId, before: bool) -> bool {
        let open = self.pool.open_charge(client);
        open > if before {
            ENOUGH_BYTES / 2
        } else {
            ENOUGH_BYTES
        }
    }

    /// Where this replica stands.
    pub fn standing(&self) -> Standing {
        Standing {
            view: self.view,
            active: self.active,
            committed: self.committed,
            executed: self.executed,
            stable: self.stable,
            fetching: self.fetching.is_some(),
            view_changes: self.view_changes_seen,
            recovering: self.recovering(),
        }
    }

    /// Reads that are not ordered must find the state after this place, or a later one.
    ///
    /// What a client was told stands at a place for which f+1 correct replicas have a certificate on disk, be the replies
    /// tentative or final. One of them is among any 2f+1 that answer a later read, also when a view change has undone the
    /// batch at all of them, or a crash has made those forget it who had heard of it only.
    pub fn reads_from(&self) -> Seq {
        match is_on(Mutant::ReadsAfterRollback) {
            true => Seq(0),
            false => self.certified.max(self.may_have_certified()),
        }
    }

    pub(crate) fn primary(&self) -> ReplicaId {
        self.config.quorum.primary(self.view)
    }

    pub(crate) fn is_primary(&self) -> bool {
        self.primary() == self.config.me
    }

    /// Whether this replica leads the view that has started.
    pub fn is_leading(&self) -> bool {
        self.active && self.is_primary()
    }

    /// Whether a place is above the low and not above the high water mark.
    pub(crate) fn in_window(&self, seq: Seq) -> bool {
        seq > self.stable.0 && seq.0 - self.stable.0.0 <= LOG_WINDOW
    }

    fn run_timers(&mut self) {
        let is_bad = self.is_primary_bad();
        let now = self.now.mono;
        let over = |deadline: Option<Millis>| deadline.is_some_and(|at| at <= now);
        if over(self.new_view_deadline) {
            let view = self.view_after_failure();
            self.start_view_change(view);
        } else if is_bad {
            self.start_view_change(self.view.next());
        } else if over(self.request_deadline()) {
            if self.others_are_ahead() && self.judge.may_wait_anew(self.executed) {
                // A correct replica has committed what this one has not: the primary works and this one is slow. To leave the
                // view would take its vote from the group and help nobody.
                self.pool.wait_anew(self.now.mono);
            } else {
                self.start_view_change(self.view.next());
            }
        }
        self.relay_claims();
        if over(self.content_due.map(|due| due.at)) {
            self.ask_for_content();
        }
        let is_lost = self.is_primary_lost() || self.is_primary_silent() || self.judge.is_late();
        let is_lost = is_lost && self.active;
        if core::mem::replace(&mut self.told_loss, is_lost) != is_lost {
            // The others wait for this.
            self.next_status = self.now.mono;
        }
        if self.next_status <= self.now.mono {
            self.on_status_tick();
        }
    }

    /// What holds after every input.
    ///
    /// # Panics
    /// Where something does not hold: a defect of this code, whatever the peers did.
    pub fn invariants(&self) {
        self.invariants_since(&mut Seen::default());
    }

    /// The same, for who has looked before: what has not changed since holds as it did.
    ///
    /// # Panics
    /// As [`Agreement::invariants`].
    pub fn invariants_since(&self, seen: &mut Seen) {
        let now = Marks {
            view: self.view,
            awaiting: self.awaiting.changes(),
            slots: self.slots.changes(),
            pool: self.pool.changes(),
        };
        let before = seen.0.replace(now);
        assert!(
            self.executed <= self.committed,
            "executed what has not committed"
        );
        assert!(self.stable.0 <= self.committed || self.fetching.is_some());
        if let Some(tentative) = &self.tentative {
            let slot = &self.slots[&tentative.seq];
            assert!(
                tentative.seq == self.executed.next() && self.active && self.fetching.is_none()
            );
            assert!(tentative.view == self.view && slot.committed.is_none());
            assert!(slot.proposal.is_some_and(|p| p.digest == tentative.digest));
        }
        // They are in order, so the outermost two stand for all.
        let (first, last) = (self.slots.first_key_value(), self.slots.last_key_value());
        for (&seq, _) in first.into_iter().chain(last) {
            assert!(
                self.in_window(seq),
                "{seq:?} is outside the window above {:?}",
                self.stable.0
            );
        }
        if self.executed < self.committed {
            for (&seq, slot) in self.slots.range(self.executed.next()..=self.committed) {
                assert!(slot.committed.is_some(), "a gap at {seq:?}");
            }
        }
        // What a place has to be like follows from itself, the view and what is awaited.
        let same = before.filter(|b| (b.view, b.awaiting) == (now.view, now.awaiting));
        match same.and_then(|b| self.slots.changed_since(b.slots)) {
            Some(changed) => {
                for seq in changed {
                    let slot = self.slots.get(&seq);
                    slot.into_iter().for_each(|slot| self.look_at(seq, slot));
                }
            }
            None => self
                .slots
                .iter()
                .for_each(|(&seq, slot)| self.look_at(seq, slot)),
        }
        assert!(
            self.held
                .iter()
                .zip(self.held.iter().skip(1))
                .all(|(a, b)| a.0 <= b.0)
        );
        let n = self.config.quorum.n();
        assert!(self.proofs.len() <= 2 * n * n);
        assert!(self.active || self.own_change.is_some() || self.is_recovering());
        self.recovery_invariants();
        if before.is_none_or(|b| b.pool != now.pool) {
            self.pool.invariants();
        }
    }

    fn look_at(&self, seq: Seq, slot: &Slot) {
        slot.invariants(seq);
        let Some(proposal) = &slot.proposal else {
            return;
        };
        let proposed = proposal.stage == Stage::Proposed;
        assert!(!proposed || self.awaiting.contains(&seq));
        assert_eq!(
            proposal.view, self.view,
            "a proposal of another view at {seq:?}"
        );
        if let Some(committed) = slot.committed {
            assert_eq!(
                proposal.digest, committed,
                "a view changed what committed at {seq:?}"
            );
        }
    }
}
