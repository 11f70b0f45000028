//! Who is asked for full results: the replicas in turn, those that failed to send one passed over for a while.

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
    /// Until when each replica is not asked, and how often it has failed.
    distrusted: Vec<(Millis, u32)>,
    turn: u8,
}

impl Repliers {
    pub fn new(n: usize, turn: u8) -> Repliers {
        Repliers {
            distrusted: alloc::vec![(0, 0); n],
            turn,
        }
    }

    /// The next replica that is linked and trusted; where there is none, any.
    pub fn next(&mut self, now: Millis, is_linked: impl Fn(ReplicaId) -> bool) -> ReplicaId {
        let n = self.distrusted.len() as u8;
        for _ in 0..n {
            self.turn = (self.turn % n + 1) % n;
            let (until, _) = self.distrusted[usize::from(self.turn)];
            if is_linked(ReplicaId(self.turn)) && until <= now {
                break;
            }
        }
        ReplicaId(self.turn)
    }

    /// A failure counts once, however many requests it delayed, and is forgotten after a while of good conduct.
    pub fn distrust(&mut self, replica: ReplicaId, now: Millis) {
        let Some((until, times)) = self.distrusted.get_mut(usize::from(replica.0)) else {
            return;
        };
        if *until > now {
            return;
        }
        if now - *until > FORGIVEN_MS {
            *times = 0;
        }
        *until = now + (DISTRUST_MS << (*times).min(5));
        *times += 1;
    }
}
