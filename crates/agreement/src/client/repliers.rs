//! Who is asked for full results: the replicas in turn, those that failed to send one passed over for a while. Where what one
//! brings of the others is not theirs, all are asked for a while: nobody can tell then who has lied.

use alloc::vec::Vec;

use quorate_wire::ReplicaId;

use crate::Millis;

/// How long a replica that owed a full result is not asked for one again; doubles with each failure.
const DISTRUST_MS: Millis = 2_000;
/// After so long without a failure the next one counts as the first.
const FORGIVEN_MS: Millis = 60_000;

/// The replicas' turns and failures.
#[derive(Debug)]
pub(super) struct Repliers {
    distrusted: Vec<Distrust>,
    /// Of vouchers.
    vouchers: Distrust,
    turn: u8,
}

/// Until when somebody is not asked, and how often they have failed.
#[derive(Clone, Copy, Debug, Default)]
struct Distrust {
    until: Millis,
    times: u32,
}

impl Distrust {
    /// A failure counts once, however many requests it delayed, and is forgotten after a while of good conduct.
    fn add(&mut self, now: Millis) {
        if self.until > now {
            return;
        }
        if now - self.until > FORGIVEN_MS {
            self.times = 0;
        }
        self.until = now + (DISTRUST_MS << self.times.min(5));
        self.times += 1;
    }
}

impl Repliers {
    pub fn new(n: usize, turn: u8) -> Repliers {
        Repliers {
            distrusted: alloc::vec![Distrust::default(); n],
            vouchers: Distrust::default(),
            turn,
        }
    }

    /// The next replica that is linked and trusted; where there is none, any.
    pub fn next(&mut self, now: Millis, is_linked: impl Fn(ReplicaId) -> bool) -> ReplicaId {
        let n = self.distrusted.len() as u8;
        for _ in 0..n {
            self.turn = (self.turn % n + 1) % n;
            let distrust = self.distrusted[usize::from(self.turn)];
            if is_linked(ReplicaId(self.turn)) && distrust.until <= now {
                break;
            }
        }
        ReplicaId(self.turn)
    }

    /// A replica has failed.
    pub fn distrust(&mut self, replica: ReplicaId, now: Millis) {
        if let Some(distrust) = self.distrusted.get_mut(usize::from(replica.0)) {
            distrust.add(now);
        }
    }

    /// A voucher was not that of the replica whose it should be.
    pub fn distrust_vouchers(&mut self, now: Millis) {
        self.vouchers.add(now);
    }

    /// Whether replicas are not to vouch for what one of them sends, but to answer each for itself.
    pub fn distrusts_vouchers(&self, now: Millis) -> bool {
        self.vouchers.until > now
    }
}
