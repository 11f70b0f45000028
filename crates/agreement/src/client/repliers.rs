//! Who is asked for full results: the replicas in turn, those that failed to send one passed over for a while. Where what one
//! brings of the others is not theirs, all are asked for a while: nobody can tell then who has lied.

use alloc::vec::Vec;

use quorate_wire::ReplicaId;

use super::suspicion::Suspicion;
use crate::Millis;

/// How long a replica that owed a full result is not asked for one again; doubles with each failure.
const DISTRUST_MS: Millis = 2_000;

/// The replicas' turns and failures.
#[derive(Debug)]
pub(super) struct Repliers {
    distrusted: Vec<Suspicion>,
    /// Of vouchers.
    vouchers: Suspicion,
    turn: u8,
}

impl Repliers {
    pub fn new(n: usize, turn: u8) -> Repliers {
        Repliers {
            distrusted: alloc::vec![Suspicion::default(); n],
            vouchers: Suspicion::default(),
            turn,
        }
    }

    /// The next replica that is linked and trusted; where there is none, any.
    pub fn next(&mut self, now: Millis, is_linked: impl Fn(ReplicaId) -> bool) -> ReplicaId {
        let n = self.distrusted.len() as u8;
        for _ in 0..n {
            self.turn = (self.turn % n + 1) % n;
            let distrust = self.distrusted[usize::from(self.turn)];
            if is_linked(ReplicaId(self.turn)) && !distrust.holds(now) {
                break;
            }
        }
        ReplicaId(self.turn)
    }

    /// A replica has failed.
    pub fn distrust(&mut self, replica: ReplicaId, now: Millis) {
        if let Some(distrust) = self.distrusted.get_mut(usize::from(replica.0)) {
            distrust.raise(DISTRUST_MS, now);
        }
    }

    /// A voucher was not that of the replica whose it should be.
    pub fn distrust_vouchers(&mut self, now: Millis) {
        self.vouchers.raise(DISTRUST_MS, now);
    }

    /// Whether replicas are not to vouch for what one of them sends, but to answer each for itself.
    pub fn distrusts_vouchers(&self, now: Millis) -> bool {
        self.vouchers.holds(now)
    }
}
