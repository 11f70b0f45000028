//! After which places the state has a checkpoint.
//!
//! It follows from the agreed order alone, so that all replicas make theirs at the same places: the store keeps no state but
//! that after the last one, and who has fallen behind can be given only a state that others can vouch for. So a state in the
//! store that is no checkpoint would be good for nobody else.

use quorate_agreement::CHECKPOINT_INTERVAL;
use quorate_wire::Seq;
use quorate_wire::message::Request;

/// Counts what was executed since the last checkpoint.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    most_bytes: usize,
    bytes: usize,
}

impl Checkpoints {
    /// From a checkpoint on, of which the next is due when the requests weigh `most_bytes`.
    pub fn new(most_bytes: usize) -> Checkpoints {
        Checkpoints {
            most_bytes,
            bytes: 0,
        }
    }

    /// The state was replaced by that of a checkpoint.
    pub(crate) fn restart(&mut self) {
        self.bytes = 0;
    }

    /// Whether a checkpoint is due after this place, at which these requests were executed. To be called for each place, in
    /// order. PBFT 2002, 4.3, by the number; and by the weight, which bounds the memory of a layer.
    pub fn is_due_after<'a>(
        &mut self,
        seq: Seq,
        requests: impl Iterator<Item = &'a Request>,
    ) -> bool {
        self.bytes += requests.map(Request::weight).sum::<usize>();
        let is_due = seq.0.is_multiple_of(CHECKPOINT_INTERVAL) || self.bytes >= self.most_bytes;
        if is_due {
            self.bytes = 0;
        }
        is_due
    }
}
