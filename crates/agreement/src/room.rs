//! How much the log may hold in memory: the requests of all batches above the low water mark.
//!
//! The water marks bound places, and a batch may weigh 4 MiB, so without another bound a faulty primary could have each backup
//! hold a gigabyte. A correct primary has few batches in flight, and stops when its own checkpoints are late; so what goes
//! beyond [`LOG_BYTES`] at a backup is refused. The place after the last that has committed has some room of its own, as much as
//! leads to the next checkpoint: what a faulty primary left behind can't stop the next one.

use alloc::sync::Arc;

use quorate_wire::Seq;
use quorate_wire::message::{AuthRequest, Batch, Request};
use quorate_wire::mutants::{Mutant, is_on};

use crate::core::Agreement;
use crate::normal::MAX_BATCH_WEIGHT;
use crate::{CHECKPOINT_BYTES, LOG_BYTES};

/// Room beyond [`LOG_BYTES`] for what is executed next: two checkpoints, and what eight views may have left at one place.
pub(crate) const NEXT_BYTES: usize = 3 * CHECKPOINT_BYTES;
/// What has been executed and is in no stable checkpoint weighs so much when checkpoints are late: a primary waits for them.
const LATE_BYTES: usize = 4 * CHECKPOINT_BYTES;
/// A primary has but one batch in flight while its log holds more than this.
const CROWDED_BYTES: usize = LOG_BYTES - 2 * CHECKPOINT_BYTES;

impl Agreement {
    /// Whether a proposal of a place may bring so much into the log. Also one for which f+1 others vouch: a faulty primary and its client can have
    /// each replica vote for other places, and pass on the votes.
    pub(crate) fn has_room(&self, seq: Seq, more: usize) -> bool {
        let next = match seq == self.committed.next() {
            true => NEXT_BYTES,
            false => 0,
        };
        more == 0
            || self.pool.log_weight() + more <= LOG_BYTES + next
            || is_on(Mutant::LogUnbounded)
    }

    /// As primary: whether the others will have room for another batch.
    pub(crate) fn may_propose(&self, in_flight: u64) -> bool {
        let crowded = self.pool.log_weight() > CROWDED_BYTES;
        self.unstable_weight < LATE_BYTES && (!crowded || in_flight == 0)
    }

    /// Whether places and room are left up to the high water mark; if not, checkpoints are late, and not the primary. What has not
    /// been executed does not count: it may be the primary that filled the log with it.
    pub(crate) fn has_window(&self) -> bool {
        self.in_window(self.committed.next())
            && self.unstable_weight < LATE_BYTES - CHECKPOINT_BYTES
    }

    /// What a batch and the requests that come with it would bring into the log, as far as they are here.
    pub(crate) fn would_bring(&self, batch: &Batch, bodies: &[Arc<AuthRequest>]) -> usize {
        let known = batch.requests.iter().filter_map(|d| self.pool.get(d));
        let known = known.filter(|entry| !entry.in_log());
        let new = bodies.iter().map(|body| &body.request);
        let new = new.filter(|request| self.pool.get(&request.digest()).is_none());
        let known: usize = known.map(|entry| entry.request().weight()).sum();
        known + new.map(Request::weight).sum::<usize>()
    }

    /// Whether a place is the next to commit here, or to be executed. What is to be done there is always asked for: it is what leads to a
    /// checkpoint, with which the rest can go.
    pub(crate) fn is_next(&self, seq: Seq) -> bool {
        seq == self.committed.next() || seq == self.executed.next()
    }

    /// Whether content of a place may be asked for.
    pub(crate) fn may_fetch(&self, seq: Seq) -> bool {
        self.is_next(seq) || !self.is_crowded()
    }

    /// Whether the log holds as much as it may of what is not next.
    pub(crate) fn is_crowded(&self) -> bool {
        self.pool.log_weight() >= LOG_BYTES
    }

    /// Whether a request that was asked for may come in. What comes in so is in the log at once, and then takes nobody more room to vote for: so what is not
    /// next has the same room here as in a proposal.
    pub(crate) fn may_take(&self, request: &Request) -> bool {
        let after = self.pool.log_weight() + request.weight();
        let digest = request.digest();
        let names = |seq: Seq| {
            let slot = self.slots.get(&seq);
            let batch = slot.and_then(|slot| slot.batches.get(&slot.wanted()?));
            batch.is_some_and(|batch| batch.requests.contains(&digest))
        };
        let is_next = names(self.committed.next());
        after <= LOG_BYTES
            || is_next && after <= LOG_BYTES + NEXT_BYTES + MAX_BATCH_WEIGHT
            // Correct replicas have voted for what has committed, so that it is light; and it has to be executed.
            || self.executed < self.committed && names(self.executed.next())
    }
}
