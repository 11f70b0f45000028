//! Which replicas a read beside others goes to first: as many as have to answer it. The others are asked when these don't agree or one of them is late.

use alloc::vec::Vec;

use quorate_wire::{Quorum, ReplicaId};

use super::suspicion::Suspicion;
use crate::Millis;

/// How long a replica that answered a read late, or otherwise than the others, is not among the first; doubles each time that this comes
/// again. It need not be faulty, only slower.
const PASSED_OVER_MS: Millis = 1_000;

/// The replicas' lateness.
#[derive(Debug)]
pub(super) struct Readers {
    late: Vec<Suspicion>,
}

impl Readers {
    pub fn new(n: usize) -> Readers {
        Readers {
            late: alloc::vec![Suspicion::default(); n],
        }
    }

    /// The f replicas that a read does not go to at first: those without a link, then those that were late; else whoever comes after
    /// `start`, which is by chance, and not `start` itself, which owes the result.
    pub fn rest(
        &self,
        quorum: Quorum,
        start: ReplicaId,
        now: Millis,
        is_linked: impl Fn(ReplicaId) -> bool,
    ) -> Vec<ReplicaId> {
        let n = quorum.n();
        let others = (1..n).map(|k| ReplicaId(((usize::from(start.0) + k) % n) as u8));
        let mut others: Vec<ReplicaId> = others.collect();
        others.sort_by_key(|r| match is_linked(*r) {
            false => 0,
            true if self.late[usize::from(r.0)].holds(now) => 1,
            true => 2,
        });
        others.truncate(quorum.f());
        others
    }

    /// A replica was asked among the first, and others had to be.
    pub fn pass_over(&mut self, replica: ReplicaId, now: Millis) {
        if let Some(late) = self.late.get_mut(usize::from(replica.0)) {
            late.raise(PASSED_OVER_MS, now);
        }
    }
}
