//! The records of the write-ahead log, and how a replica comes back from them.
//!
//! What a replica has told others, it must know after a crash. So each vote's record is on disk before the vote leaves:
//!
//! | before this is sent | this is on disk |
//! |---|---|
//! | PREPARE | [`Record::PrePrepared`] with the batch and its requests; a PRE-PREPARE is no vote, and leaves at once |
//! | COMMIT | [`Record::Prepared`] |
//! | VIEW-CHANGE | [`Record::Changing`] |
//! | NEW-VIEW, and any vote in the new view | [`Record::Entered`] |
//!
//! [`Record::Committed`] only saves asking the others. [`Record::Stable`] says from where on the log has to know all, and that the replica has run
//! before; [`Record::Fetching`] is on disk before the store's state is replaced. [`Record::Recovering`] stands in place of all that
//! was lost (`recovery.rs`).

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use quorate_wire::message::{Batch, Request, SignedNewView, SignedViewChange, Vote};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Digest, Seq, Time, View, record, tagged};

use crate::LOG_WINDOW;
use crate::pool::Pool;
use crate::slot::Slot;

tagged! {
    /// A record of the write-ahead log.
    pub enum Record {
        /// A proposal was accepted.
        1 => PrePrepared(PrePrepared),
        /// 2f+1 agreed to it.
        2 => Prepared(Vote),
        /// A batch committed.
        3 => Committed(CommittedRecord),
        /// A checkpoint became stable.
        4 => Stable(StableRecord),
        /// The replica left its view.
        5 => Changing(SignedViewChange),
        /// The replica entered a view.
        6 => Entered(Box<Entered>),
        /// A checkpoint was made here and is told to the others; stable it is not yet.
        7 => Checkpoint(StableRecord),
        /// All that stood in the log before is lost: the replica is silent until it enters a view again. The time is that of its
        /// own clock, for people.
        8 => Recovering(Time),
        /// The highest number of a certificate that was seen of each replica, where they have key holders.
        9 => Epochs(Vec<u64>),
        /// The state of a checkpoint is about to be fetched, over the one that the store has: who dies before it is whole goes on with this one, and not with
        /// an older one that its log knows.
        10 => Fetching(StableRecord),
    }
}

record! {
    /// A proposal that the replica voted for.
    pub struct PrePrepared {
        /// Place, view and batch.
        pub vote: Vote,
        /// The batch and its requests, unless an earlier record of the same place has them.
        pub content: Option<Content>,
    }
}

record! {
    /// A batch with its requests.
    pub struct Content {
        /// The batch.
        pub batch: Batch,
        /// Its requests, in order.
        pub requests: Vec<Request>,
    }
}

record! {
    /// What committed at a place.
    pub struct CommittedRecord {
        /// The place.
        pub seq: Seq,
        /// The batch.
        pub digest: Digest,
        /// The batch and its requests, unless an earlier record of the same place has them.
        pub content: Option<Content>,
    }
}

record! {
    /// A checkpoint.
    pub struct StableRecord {
        /// Its place.
        pub seq: Seq,
        /// Its root.
        pub root: Digest,
    }
}

record! {
    /// How a view began, so that it can be shown to those who missed it.
    pub struct Entered {
        /// The NEW-VIEW.
        pub new_view: SignedNewView,
        /// The VIEW-CHANGEs that it names.
        pub proofs: Vec<SignedViewChange>,
    }
}

impl Entered {
    /// Which view.
    pub fn view(&self) -> View {
        self.new_view.body.view
    }

    /// What certificates of earlier views it shows to have come to nothing, these are: see [`Slot::forget_superseded`].
    pub(crate) fn forget_superseded<'s>(&self, slots: impl Iterator<Item = &'s mut Slot>) {
        slots.for_each(|slot| slot.forget_superseded(&self.new_view.body));
    }
}

impl Record {
    /// The place that the record is about; 0 for those about views and checkpoints, which a new segment's head repeats.
    pub fn seq(&self) -> Seq {
        match self {
            Record::PrePrepared(r) => r.vote.seq,
            Record::Prepared(vote) => vote.seq,
            Record::Committed(r) => r.seq,
            Record::Checkpoint(r) => r.seq,
            Record::Stable(_)
            | Record::Changing(_)
            | Record::Entered(_)
            | Record::Recovering(_)
            | Record::Epochs(_)
            | Record::Fetching(_) => Seq(0),
        }
    }

    /// The requests that it holds whole.
    pub fn requests(&self) -> &[Request] {
        let content = match self {
            Record::PrePrepared(r) => r.content.as_ref(),
            Record::Committed(r) => r.content.as_ref(),
            _ => None,
        };
        content.map_or(&[], |content| &content.requests)
    }

    /// Leaves out the content, where a log has lost a part of it: the digest says what to ask others for.
    pub fn drop_content(&mut self) {
        match self {
            Record::PrePrepared(r) => r.content = None,
            Record::Committed(r) => r.content = None,
            _ => {}
        }
    }

    /// The same, to be replaced one by one: a log may keep large operations apart.
    pub fn requests_mut(&mut self) -> &mut [Request] {
        let content = match self {
            Record::PrePrepared(r) => r.content.as_mut(),
            Record::Committed(r) => r.content.as_mut(),
            _ => None,
        };
        content.map_or(&mut [], |content| &mut content.requests)
    }
}

/// What the log's records say, taken together.
#[derive(Debug)]
pub(crate) struct Remembered {
    pub view: View,
    /// The VIEW-CHANGE for `view`, while that view has not started here.
    pub changing: Option<SignedViewChange>,
    pub entered: Option<Entered>,
    pub stable: Option<StableRecord>,
    /// Checkpoints that were made here, also those before a crash: a view change may have to start from one of them.
    pub checkpoints: BTreeMap<Seq, Digest>,
    pub slots: BTreeMap<Seq, Slot>,
    pub pool: Pool,
    /// Whether the replica has forgotten what it said, and no view has started since.
    pub recovering: bool,
    /// The highest certificate of each replica.
    pub epochs: Option<Vec<u64>>,
    /// The highest checkpoint whose state was to be fetched. It counts where the store has half a state.
    pub fetching: Option<StableRecord>,
}

impl Remembered {
    /// Reads the records in the order in which they were written.
    pub fn from_records(records: Vec<Record>, seed: u64) -> Remembered {
        let mut it = Remembered {
            view: View(0),
            changing: None,
            entered: None,
            stable: None,
            checkpoints: BTreeMap::new(),
            slots: BTreeMap::new(),
            pool: Pool::new(seed),
            recovering: false,
            epochs: None,
            fetching: None,
        };
        for record in records {
            it.apply(record);
        }
        if let Some(stable) = &it.stable {
            it.slots = it.slots.split_off(&stable.seq.next());
            it.checkpoints = it.checkpoints.split_off(&stable.seq);
        }
        // A NEW-VIEW can start from a checkpoint that is not stable here yet, and select places beyond this replica's window.
        let stable = it.stable.as_ref().map_or(Seq(0), |s| s.seq);
        it.slots.split_off(&Seq(stable.0 + LOG_WINDOW + 1));
        it
    }

    fn apply(&mut self, record: Record) {
        match record {
            Record::PrePrepared(PrePrepared { vote, content }) => {
                self.keep_content(vote.seq, content);
                if !is_on(Mutant::PrePreparedForgotten) {
                    self.slots
                        .entry(vote.seq)
                        .or_default()
                        .remember_preprepared(vote);
                }
            }
            Record::Prepared(vote) if is_null_forgotten(vote.digest) => {}
            Record::Prepared(vote) => {
                let slot = self.slots.entry(vote.seq).or_default();
                slot.prepared = Some(vote);
            }
            Record::Committed(CommittedRecord {
                seq,
                digest,
                content,
            }) => {
                self.keep_content(seq, content);
                // Null batches as well (fabric issue 1731: their places were lost in a crash).
                if is_null_forgotten(digest) {
                    return;
                }
                let slot = self.slots.entry(seq).or_default();
                // Its content may be missing: others have it (Jepsen on Tendermint 0.10.2, 2017: a log that was fatal in recovery).
                assert!(!is_on(Mutant::LogFatal) || slot.batches.contains_key(&digest));
                slot.committed = Some(digest);
            }
            Record::Stable(stable) => {
                if self.stable.as_ref().is_none_or(|s| s.seq < stable.seq) {
                    self.stable = Some(stable);
                }
            }
            Record::Checkpoint(StableRecord { seq, root }) => {
                self.checkpoints.insert(seq, root);
            }
            Record::Recovering(_) => self.recovering = !is_on(Mutant::RecoveringVotes),
            // They only rise; but what a supervisor has seen is put behind what the log has.
            Record::Epochs(mut highest) => {
                let before = self.epochs.take().unwrap_or_default();
                let both = highest.iter_mut().zip(before);
                both.for_each(|(now, before)| *now = before.max(*now));
                self.epochs = Some(highest);
            }
            Record::Fetching(target) => {
                if self.fetching.as_ref().is_none_or(|f| f.seq < target.seq) {
                    self.fetching = Some(target);
                }
            }
            // A new segment's head repeats records of views, so an older one may come late.
            Record::Changing(change) => {
                if change.body.view > self.view && !is_on(Mutant::LeavingForgotten) {
                    self.view = change.body.view;
                    self.changing = Some(change);
                }
            }
            Record::Entered(entered) => {
                let body = &entered.new_view.body;
                let view = body.view;
                entered.forget_superseded(self.slots.values_mut());
                for vote in body.votes() {
                    if is_null_forgotten(vote.digest) {
                        continue;
                    }
                    self.slots
                        .entry(vote.seq)
                        .or_default()
                        .remember_preprepared(vote);
                }
                if view > self.view || (view == self.view && self.changing.is_some()) {
                    self.view = view;
                    self.changing = None;
                    self.recovering = false;
                    self.entered = Some(*entered);
                } else if self.entered.as_ref().is_none_or(|e| e.view() < view) {
                    self.entered = Some(*entered);
                }
            }
        }
    }

    fn keep_content(&mut self, seq: Seq, content: Option<Content>) {
        let Some(Content { batch, requests }) = content else {
            return;
        };
        let slot = self.slots.entry(seq).or_default();
        let digest = batch.digest();
        slot.logged.insert(digest);
        slot.batches.insert(digest, alloc::sync::Arc::new(batch));
        for request in requests {
            self.pool.insert_bare(request, 0);
        }
    }
}

/// Never, but in a mutant.
fn is_null_forgotten(digest: Digest) -> bool {
    is_on(Mutant::NullForgotten) && digest == Batch::null().digest()
}
