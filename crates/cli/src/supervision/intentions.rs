//! Which replicas other supervisors are about to have recover. Two that look in the same second whether another replica recovers see none, and with both
//! away neither comes back. So a supervisor has its replica say first what it intends, waits, and looks again.
//!
//! Why two never begin, where what one says is heard by the others within half of [`WAIT`]: if the second says it later than that, it has heard of the first
//! before, as of one that is about to, or recovers, or is silent, and says nothing. Else each hears of the other while it waits, and the one with the lower
//! number goes on. One intention at a time counts, also where more replicas may be away: with more the order of
//! who has heard of whom could go round in a circle. Where the network takes longer both may begin, and go back to what they had, as two that were
//! started by force would.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_wire::ReplicaId;
use tokio::time::Instant;

use crate::commands::status::Reports;

/// How long a supervisor waits with what it intends: replicas are asked every half second, and answer at once.
pub const WAIT: Duration = Duration::from_millis(2_500);
/// A replica that says for longer than this that it is about to recover is not waited for, until it has not said it for [`FORGOTTEN`].
const BELIEVED: Duration = Duration::from_secs(30);
const FORGOTTEN: Duration = Duration::from_secs(10);
/// It is looked several times a second; more than this between two looks says nothing.
const GAP: Duration = Duration::from_secs(1);

/// What the replicas have said of that.
#[derive(Debug)]
pub struct Intentions {
    heard: BTreeMap<ReplicaId, Heard>,
    looked: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Heard {
    /// For how long it has been said.
    lasted: Duration,
    last: Instant,
}

impl Intentions {
    pub fn new(now: Instant) -> Intentions {
        Intentions {
            heard: BTreeMap::new(),
            looked: now,
        }
    }

    /// Hears what the replicas say.
    pub fn hear(&mut self, reports: &Reports, now: Instant) {
        let passed = now.saturating_duration_since(self.looked).min(GAP);
        self.looked = now;
        self.heard
            .retain(|_, heard| now.saturating_duration_since(heard.last) < FORGOTTEN);
        let intending = reports.iter().filter(|(_, r)| r.recovery_intended);
        for (id, _) in intending {
            let new = Heard {
                lasted: Duration::ZERO,
                last: now,
            };
            let heard = self.heard.entry(*id).or_insert(new);
            heard.lasted += passed;
            heard.last = now;
        }
    }

    /// Who is about to recover, among those of `which`, and is believed.
    pub fn of(&self, reports: &Reports, which: impl Fn(ReplicaId) -> bool) -> Option<ReplicaId> {
        let is_believed = |id: &ReplicaId| {
            let heard = self.heard.get(id);
            heard.is_none_or(|heard| heard.lasted <= BELIEVED)
        };
        let intending = reports.iter().filter(|(_, r)| r.recovery_intended);
        let mut ids = intending.map(|(id, _)| *id);
        ids.find(|id| which(*id) && is_believed(id))
    }
}

#[cfg(test)]
mod tests {
    use super::super::window;
    use super::*;
    use quorate_wire::message::Report;

    fn reports(intending: &[u8]) -> Reports {
        let report = |id: u8| {
            let report = Report {
                recovery_intended: intending.contains(&id),
                ..window::tests::report(None)
            };
            (ReplicaId(id), report)
        };
        (0..4).map(report).collect()
    }

    /// A replica that says for ever that it is about to recover holds others up for a while, also one that says it only when it is of use to it; one that
    /// has not said it for long is believed again.
    #[test]
    fn a_liar_is_not_waited_for() {
        let mut now = Instant::now();
        let mut intentions = Intentions::new(now);
        let (says, silent) = (reports(&[1]), reports(&[]));
        let step = Duration::from_millis(500);
        let mut waited = 0;
        for round in 0..400 {
            now += step;
            let reports = if round % 4 == 3 { &silent } else { &says };
            intentions.hear(reports, now);
            waited += u32::from(intentions.of(reports, |_| true).is_some());
        }
        assert!((50..=60).contains(&waited), "{waited}");
        now += FORGOTTEN;
        intentions.hear(&silent, now);
        now += step;
        intentions.hear(&says, now);
        assert_eq!(intentions.of(&says, |_| true), Some(ReplicaId(1)));
    }
}
