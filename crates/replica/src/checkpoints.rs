//! After which places the state has a checkpoint.
//!
//! It follows from the agreed order alone, so that all replicas make theirs at the same places: the store keeps no state but
//! that after the last one, and who has fallen behind can be given only a state that others can vouch for. So a state in the
//! store that is no checkpoint would be good for nobody else.

use alloc::collections::BTreeMap;

use quorate_agreement::CHECKPOINT_INTERVAL;
use quorate_execution::{Executor, Service};
use quorate_wire::message::Request;
use quorate_wire::{Seq, SessionId};

/// What is written may come to so many times what requests may weigh. It is counted by what it may be at the most, and is mostly less; and short
/// writes all over a large file would else have checkpoints most of the time.
const WRITTEN: usize = 4;

/// Counts what was executed since the last checkpoint.
#[derive(Clone, Debug, Default)]
pub struct Checkpoints {
    most_bytes: usize,
    /// What the requests weigh, which are in the log.
    bytes: usize,
    /// What their execution may have written, which is in the state's open layer.
    written: usize,
    /// Of that, what each session's results may have.
    results: BTreeMap<SessionId, usize>,
}

impl Checkpoints {
    /// From a checkpoint on, of which the next is due when the requests weigh `most_bytes`, or what they may have written four times that.
    pub fn new(most_bytes: usize) -> Checkpoints {
        Checkpoints {
            most_bytes,
            ..Checkpoints::default()
        }
    }

    /// The state was replaced by that of a checkpoint.
    pub(crate) fn restart(&mut self) {
        (self.bytes, self.written) = (0, 0);
        self.results.clear();
    }

    /// Whether a checkpoint is due after this place, at which these requests were executed. To be called for each place, in
    /// order. PBFT 2002, 4.3, by the number; and by two weights. That of the requests bounds the memory of the log: agreement
    /// counts it as well, and waits for a checkpoint. What executing them may have written bounds the memory of a layer: a byte in a
    /// large value writes all of it, a copy writes what no request brought, and results are kept for repeats, of each session so many bytes. It is what the service says of the operations alone; the layer
    /// itself could not be asked, since with workers these may not be done yet.
    pub fn is_due_after<'a, S: Service>(
        &mut self,
        seq: Seq,
        requests: impl Iterator<Item = &'a Request>,
        executor: &Executor<S>,
    ) -> bool {
        for request in requests {
            self.bytes += request.weight();
            self.written += executor.weight(request);
            let result = executor.result_bytes(request);
            if result > 0 {
                let results = self.results.entry(request.session()).or_default();
                let before = *results;
                *results = before.saturating_add(result).min(executor.kept_bytes());
                self.written += *results - before;
            }
        }
        let is_due = seq.0.is_multiple_of(CHECKPOINT_INTERVAL)
            || self.bytes >= self.most_bytes
            || self.written >= self.most_bytes.saturating_mul(WRITTEN);
        if is_due {
            self.restart();
        }
        is_due
    }
}
