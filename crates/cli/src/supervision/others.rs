//! Whether the replicas that other supervisors run recover as well. Each supervisor tells of its own replica alone, and one that does not run tells nothing:
//! what it should look after would stay as it is, for ever, and nobody would know. Where replicas have key holders the group orders each recovery, and
//! every replica says which was the last one of each; so it is seen from everywhere.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_wire::message::Report;
use quorate_wire::{Quorum, ReplicaId};
use tokio::time::Instant;

use crate::commands::status::Reports;

/// How much longer than the period says it may be until a recovery is ordered: the others' clocks, a checkpoint, and a report.
const LATE: Duration = Duration::from_secs(60);

/// The last recovery of each replica that the group has ordered, as far as is known here.
#[derive(Debug, Default)]
pub struct Others(BTreeMap<ReplicaId, Last>);

#[derive(Debug)]
struct Last {
    number: u64,
    /// Since when that is so, as far as this process has seen it.
    since: Instant,
    told: bool,
}

impl Others {
    /// Hears what the replicas say. Gives what is to be told of those that are not run from here and should have recovered since, if all do so `every` so often.
    pub fn look(
        &mut self,
        quorum: Quorum,
        every: Option<Duration>,
        is_ours: impl Fn(u8) -> bool,
        reports: &Reports,
    ) -> Vec<String> {
        let Some(every) = every else {
            self.0.clear();
            return Vec::new();
        };
        // A turn may be put off as long as its part of the period lasts.
        let longest = every + every / quorum.n() as u32 + LATE;
        let mut events = Vec::new();
        for id in quorum.replicas().filter(|id| !is_ours(id.0)) {
            let Some(number) = ordered(quorum, id, reports) else {
                continue;
            };
            let new = || Last {
                number,
                since: Instant::now(),
                told: false,
            };
            let last = self.0.entry(id).or_insert_with(new);
            if number > last.number {
                *last = new();
            }
            if last.since.elapsed() > longest && !std::mem::replace(&mut last.told, true) {
                events.push(format!("ALARM: replica {}: {}", id.0, last.text()));
            }
        }
        events
    }

    /// Who should have recovered, and what is to be said of it.
    pub fn late(&self) -> impl Iterator<Item = (u8, String)> {
        let late = self.0.iter().filter(|(_, last)| last.told);
        late.map(|(id, last)| (id.0, last.text()))
    }
}

impl Last {
    fn text(&self) -> String {
        format!(
            "the group has ordered no recovery of it for {} s, longer than the period here allows: its supervisor does not run, or has another schedule \
             (`quorate schedule` on its machine)",
            self.since.elapsed().as_secs()
        )
    }
}

/// The number of the last recovery of a replica that one correct replica at least knows as ordered.
fn ordered(quorum: Quorum, id: ReplicaId, reports: &Reports) -> Option<u64> {
    let of_it = |report: &Report| report.recoveries.get(usize::from(id.0)).copied();
    let mut numbers: Vec<u64> = reports.values().filter_map(of_it).collect();
    numbers.sort_unstable_by(|a, b| b.cmp(a));
    numbers.get(quorum.f()).copied()
}

#[cfg(test)]
mod tests {
    use super::super::window;
    use super::*;

    const EVERY: Duration = Duration::from_secs(400);

    /// What the replicas say of each other's recoveries.
    fn reports(of_each: &[[u64; 4]]) -> Reports {
        let report = |(id, numbers): (u8, &[u64; 4])| {
            let report = Report {
                recoveries: numbers.to_vec(),
                ..window::tests::report(None)
            };
            (ReplicaId(id), report)
        };
        (0..).zip(of_each).map(report).collect()
    }

    fn look(others: &mut Others, every: Option<Duration>, reports: &Reports) -> Vec<String> {
        let quorum = Quorum::new(4).unwrap();
        others.look(quorum, every, |id| id == 1, reports)
    }

    fn let_pass(others: &mut Others, time: Duration) {
        for last in others.0.values_mut() {
            last.since = last.since.checked_sub(time).unwrap();
        }
    }

    /// Of one that does not recover in time there is an alarm, once, and again when it has recovered and does not any more; not of the one that is run
    /// from here, which has its own.
    #[test]
    fn who_never_recovers_is_told_of() {
        let mut others = Others::default();
        let every = Some(EVERY);
        let before = reports(&[[7, 7, 7, 7]; 4]);
        assert!(look(&mut others, every, &before).is_empty());
        let_pass(&mut others, EVERY);
        let some = reports(&[[8, 7, 7, 8]; 4]);
        assert!(look(&mut others, every, &some).is_empty());
        let_pass(&mut others, EVERY / 4 + LATE + Duration::from_secs(1));
        let told = look(&mut others, every, &some);
        assert_eq!(told.len(), 1);
        assert!(told[0].contains("replica 2: the group has"), "{told:?}");
        assert_eq!(others.late().map(|(id, _)| id).collect::<Vec<_>>(), [2]);
        assert!(look(&mut others, every, &some).is_empty());
        assert!(look(&mut others, every, &reports(&[[9; 4]; 4])).is_empty());
        assert_eq!(others.late().count(), 0);
        let_pass(&mut others, EVERY * 2);
        assert_eq!(look(&mut others, every, &reports(&[[9; 4]; 4])).len(), 3);
    }

    /// A replica alone can't make it seem that one has recovered, nor that none has; and of what is not said nothing is told.
    #[test]
    fn one_word_is_not_believed() {
        let mut others = Others::default();
        let every = Some(EVERY);
        let true_ones = [7, 7, 7, 7];
        look(&mut others, every, &reports(&[true_ones; 4]));
        let_pass(&mut others, EVERY * 2);
        let high = reports(&[true_ones, true_ones, [7, 7, 99, 7], true_ones]);
        assert_eq!(look(&mut others, every, &high).len(), 3);
        let low = [8, 8, 8, 8];
        let low = reports(&[low, [0; 4], low, low]);
        assert!(look(&mut others, every, &low).is_empty());
        let_pass(&mut others, EVERY * 2);
        assert!(look(&mut others, every, &Reports::new()).is_empty());
        assert!(look(&mut others, every, &reports(&[[8; 4]])).is_empty());
        let without = (0..4).map(|id| (ReplicaId(id), window::tests::report(None)));
        assert!(look(&mut others, every, &without.collect()).is_empty());
    }

    /// Without a schedule nobody has to recover, and with a new one all have a period's time.
    #[test]
    fn there_is_time_for_a_first_turn() {
        let mut others = Others::default();
        let never = reports(&[[0; 4]; 4]);
        assert!(look(&mut others, None, &never).is_empty());
        look(&mut others, Some(EVERY), &never);
        let_pass(&mut others, EVERY * 2);
        assert!(look(&mut others, None, &never).is_empty());
        assert!(look(&mut others, Some(EVERY), &never).is_empty());
        let_pass(&mut others, EVERY * 2);
        assert_eq!(look(&mut others, Some(EVERY), &never).len(), 3);
    }
}
