//! How much the log may hold in memory: the requests of all batches above the low water mark.
//!
//! The water marks bound places, and a batch may weigh 4 MiB, so without another bound a faulty primary could have each backup
//! hold a gigabyte. A correct primary has few batches in flight, and stops when its own checkpoints are late; so what goes
//! beyond [`LOG_BYTES`] at a backup is refused. The place after the last that has committed has some room of its own, as much as
//! leads to the next checkpoint: what a faulty primary left behind can't stop the next one.

use quorate_wire::Seq;
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
    /// Whether a proposal of a place may bring so much into the log.
    pub(crate) fn has_room(&self, seq: Seq, more: usize) -> bool {
        let next = match seq == self.committed.next() {
            true => NEXT_BYTES,
            false => 0,
        };
        self.pool.log_weight() + more <= LOG_BYTES + next || is_on(Mutant::LogUnbounded)
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

    /// Whether content may be asked for that is not the next to be executed, or (`is_next`) that is.
    pub(crate) fn may_fetch(&self, is_next: bool) -> bool {
        let next = if is_next { NEXT_BYTES } else { 0 };
        self.pool.log_weight() < LOG_BYTES + next
    }

    /// Whether content that was asked for may come in.
    pub(crate) fn may_take(&self, weight: usize) -> bool {
        self.pool.log_weight() + weight <= LOG_BYTES + NEXT_BYTES + MAX_BATCH_WEIGHT
    }
}
