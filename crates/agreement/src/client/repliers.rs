//! Who is asked for full results: the replicas by chance, those that failed to send one passed over for a while. Where what one
//! brings of the others is not theirs, all are asked for a while: nobody can tell then who has lied.

use alloc::vec::Vec;

use quorate_wire::ReplicaId;

use super::suspicion::Suspicion;
use crate::Millis;

/// How long a replica that owed a full result is not asked for one again; doubles with each failure.
const DISTRUST_MS: Millis = 2_000;

/// The replicas' failures, and chance.
#[derive(Debug)]
pub(super) struct Repliers {
    distrusted: Vec<Suspicion>,
    /// Of vouchers.
    vouchers: Suspicion,
    /// What the next choice comes of: never 0.
    dice: u64,
}

impl Repliers {
    pub fn new(n: usize, nonce: u64) -> Repliers {
        Repliers {
            distrusted: alloc::vec![Suspicion::default(); n],
            vouchers: Suspicion::default(),
            dice: nonce | 1,
        }
    }

    /// A replica that is linked and trusted; where there is none, any. By chance, and not in turn: programs ask for the same few things
    /// again and again, and one replica would always have the same of them, such as the content of all files.
    pub fn next(&mut self, now: Millis, is_linked: impl Fn(ReplicaId) -> bool) -> ReplicaId {
        // Marsaglia, Xorshift RNGs, 2003.
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        let n = self.distrusted.len();
        let first = (self.dice >> 32) as usize % n;
        let in_turn = (first..first + n).map(|at| at % n);
        let mut good = in_turn
            .filter(|at| is_linked(ReplicaId(*at as u8)) && !self.distrusted[*at].holds(now));
        ReplicaId(good.next().unwrap_or(first) as u8)
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
