//! How often a key holder signs. Who has taken over a replica can have as many keys certified as it is given, and show the certificates one
//! after the other later on; so it is given few more than a sound replica asks for.

use std::time::{Duration, Instant};

use crate::group::Group;

/// In a group whose file does not say how often keys are renewed, they may be renewed every second.
const SHORTEST: Duration = Duration::from_millis(500);
/// A replica that recovers after somebody has used up all that was allowed waits for so long at most, for each of its two statements.
const LONGEST: Duration = Duration::from_secs(30);
/// So many at once, for a replica that is started and recovers several times in a row.
const BURST: u32 = 8;
/// So many are allowed to a key holder that was just started. What it has signed before is not kept: who has the replica can't have it start
/// anew.
const AT_START: u32 = 4;

/// How many statements of one kind are signed: so many at once, and one more each time that so long has passed, by a clock that nobody sets.
#[derive(Debug)]
pub(crate) struct Pace {
    every: Duration,
    /// When as many are allowed as ever.
    whole_at: Instant,
}

/// After how long one more statement of a kind is signed in the long run: half the time after which a replica takes another key at the latest.
/// Renewals that come more often than that are refused.
pub fn pace(group: &Group) -> Duration {
    let refresh = group.protocol().key_refresh;
    refresh.map_or(SHORTEST, |every| (every / 2).clamp(SHORTEST, LONGEST))
}

impl Pace {
    pub fn new(every: Duration, now: Instant) -> Pace {
        Pace {
            every,
            whole_at: now + every * (BURST - AT_START),
        }
    }

    /// That of whoever is shown what a replica has had signed, and believes a sound one that asks as often as in any group.
    pub fn of_others(now: Instant) -> Pace {
        Pace {
            every: SHORTEST,
            whole_at: now,
        }
    }

    /// After how long one may be signed; zero: now.
    pub fn wait(&self, now: Instant) -> Duration {
        self.next(now)
            .saturating_duration_since(now + self.every * BURST)
    }

    /// One was signed.
    pub fn took(&mut self, now: Instant) {
        self.whole_at = self.next(now);
    }

    fn next(&self, now: Instant) -> Instant {
        self.whole_at.max(now) + self.every
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(pace: &mut Pace, now: Instant) -> u32 {
        if !pace.wait(now).is_zero() {
            return 0;
        }
        pace.took(now);
        1
    }

    /// However often it is asked, no more are allowed than the burst and one in each period; who asks as often as a sound replica is never refused.
    #[test]
    fn no_more_than_so_many_in_so_long() {
        let every = Duration::from_millis(7_500);
        let begin = crate::clock::now();
        let mut pace = Pace::new(every, begin);
        let step = Duration::from_millis(100);
        let mut taken = 0;
        for at in 0..36_000 {
            let now = begin + step * at;
            let wait = pace.wait(now);
            assert!(wait <= every, "{wait:?}");
            assert_eq!(pace.wait(now + wait), Duration::ZERO);
            taken += take(&mut pace, now);
            let most = AT_START + (now - begin).div_duration_f64(every) as u32;
            assert!(taken <= most, "{taken} of {most}");
        }
        assert_eq!(taken, AT_START + 479);
        // After a rest, as many at once as ever and no more.
        let now = begin + step * 36_000 + every * 100;
        let at_once: u32 = (0..100).map(|_| take(&mut pace, now)).sum();
        assert_eq!(at_once, BURST);
        let mut sound = Pace::new(every, begin);
        let mut renewals = (1..10_000).map(|n| begin + every * 2 * n);
        assert!(renewals.all(|now| take(&mut sound, now) == 1));
    }
}
