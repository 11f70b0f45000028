//! Whether the replicas that other supervisors run recover as well. Each supervisor tells of its own replica alone, and one that does not run tells nothing:
//! what it should look after would stay as it is, for ever, and nobody would know. Where replicas have key holders the group orders each recovery, and
//! every replica says which was the last one of each; so it is seen from everywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use quorate_wire::message::Report;
use quorate_wire::{Quorum, ReplicaId};
use serde::{Deserialize, Serialize};

use super::scribe::Scribe;
use crate::commands::status::Reports;

/// How much longer than the period says it may be until a recovery is ordered: the others' clocks, a checkpoint, and a report. In milliseconds.
const LATE_MS: u64 = 60_000;

/// The last recovery of each replica that the group has ordered, as far as is known here. It is kept over this process's own restarts: one that was
/// started anew more often than the period would else never raise the alarm.
#[derive(Debug)]
pub struct Others {
    kept: Kept,
    /// When it was looked first since this process started, in milliseconds since 1970.
    began_ms: Option<u64>,
    told: BTreeSet<u8>,
    /// What is to be told of the file.
    word: Option<String>,
    scribe: Scribe,
}

/// What is in the file.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    /// Tw in milliseconds, by which this was seen: with another one all have their time anew.
    every_ms: Option<u64>,
    replicas: BTreeMap<u8, Last>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Last {
    number: u64,
    /// Since when that is so, as far as it was seen from here, in milliseconds since 1970.
    since_ms: u64,
}

impl Others {
    /// What is kept in a directory. Where there is a file that can't be used all have their time anew, and that is told with the first look.
    pub fn load(directory: &Path) -> Others {
        let file = directory.join("others.json");
        let read = match std::fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text).map_err(|e| e.to_string()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Kept::default()),
            Err(e) => Err(e.to_string()),
        };
        let word = read.as_ref().err().map(|e| {
            format!(
                "{} can't be used, so that it is not known when the replicas of other machines have recovered: {e}",
                file.display()
            )
        });
        Others {
            kept: read.unwrap_or_default(),
            began_ms: None,
            told: BTreeSet::new(),
            word,
            scribe: Scribe::new(file),
        }
    }

    /// Hears what the replicas say, at a time in milliseconds since 1970. Gives what is to be told of those that are not run from here and should have
    /// recovered since, if all do so `every` so often.
    pub fn look(
        &mut self,
        quorum: Quorum,
        every: Option<Duration>,
        is_ours: impl Fn(u8) -> bool,
        reports: &Reports,
        now_ms: u64,
    ) -> Vec<String> {
        let mut events: Vec<String> = self.word.take().into_iter().collect();
        let every_ms = every.map(|every| every.as_millis() as u64);
        let mut is_new = false;
        if self.kept.every_ms != every_ms {
            let replicas = BTreeMap::new();
            self.kept = Kept { every_ms, replicas };
            self.told.clear();
            is_new = true;
        }
        // Who comes back after long hears at first from a replica that was away as well.
        let began_ms = *self.began_ms.get_or_insert(now_ms);
        let has_heard = now_ms.saturating_sub(began_ms) >= LATE_MS;
        // A turn may be put off as long as its part of the period lasts.
        let longest = every_ms.map(|every| every + every / quorum.n() as u64 + LATE_MS);
        let ids = quorum.replicas().filter(|id| !is_ours(id.0));
        for id in ids.filter(|_| every_ms.is_some()) {
            // What is kept is no alarm by itself: it may have recovered while nobody looked.
            let Some(number) = ordered(quorum, id, reports) else {
                continue;
            };
            let now = Last {
                number,
                since_ms: now_ms,
            };
            let last = self.kept.replicas.entry(id.0);
            let last = last.or_insert_with(|| {
                is_new = true;
                now
            });
            // A clock that was set back must not give it more time.
            if number > last.number || now_ms < last.since_ms {
                *last = now;
                self.told.remove(&id.0);
                is_new = true;
            }
            let is_late = longest.is_some_and(|longest| last.ago_ms(now_ms) > longest);
            if is_late && has_heard && self.told.insert(id.0) {
                events.push(alarm(id, &last.text(now_ms)));
            }
        }
        if is_new && let Err(e) = self.keep() {
            events.push(format!("{e:#}"));
        }
        events
    }

    /// Who should have recovered, and what is to be said of it.
    pub fn late(&self, now_ms: u64) -> impl Iterator<Item = (u8, String)> {
        let late = self.told.iter();
        late.filter_map(move |id| Some((*id, self.kept.replicas.get(id)?.text(now_ms))))
    }

    fn keep(&self) -> Result<()> {
        let text = serde_json::to_vec(&self.kept).context("the others' recoveries")?;
        let written = self.scribe.write(text);
        written.with_context(|| format!("can't write {}", self.scribe.file().display()))
    }
}

impl Last {
    fn ago_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.since_ms)
    }

    fn text(&self, now_ms: u64) -> String {
        format!(
            "the group has ordered no recovery of it for {} s, longer than the period here allows: its supervisor does not run, has another schedule \
             (`quorate schedule` on its machine), or the group stood still",
            self.ago_ms(now_ms) / 1000
        )
    }
}

/// An alarm about a replica, as it is told everywhere.
pub fn alarm(id: impl std::fmt::Display, text: &str) -> String {
    format!("ALARM: replica {id}: {text}")
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
    const EVERY_MS: u64 = 400_000;

    /// What is seen by one supervisor, on a clock of the test's.
    struct Seen {
        directory: tempfile::TempDir,
        others: Others,
        now_ms: u64,
    }

    impl Seen {
        fn new() -> Seen {
            let directory = tempfile::tempdir().unwrap();
            let others = Others::load(directory.path());
            Seen {
                directory,
                others,
                now_ms: 1_800_000_000_000,
            }
        }

        fn look(&mut self, every: Option<Duration>, reports: &Reports) -> Vec<String> {
            let quorum = Quorum::new(4).unwrap();
            self.others
                .look(quorum, every, |id| id == 1, reports, self.now_ms)
        }

        fn start_anew(&mut self) {
            self.others = Others::load(self.directory.path());
        }

        fn late(&self) -> Vec<u8> {
            self.others.late(self.now_ms).map(|(id, _)| id).collect()
        }
    }

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

    /// Of one that does not recover in time there is an alarm, once, and again when it has recovered and does not any more; not of the one that is run
    /// from here, which has its own.
    #[test]
    fn who_never_recovers_is_told_of() {
        let (mut seen, every) = (Seen::new(), Some(EVERY));
        let before = reports(&[[7, 7, 7, 7]; 4]);
        assert!(seen.look(every, &before).is_empty());
        seen.now_ms += EVERY_MS;
        let some = reports(&[[8, 7, 7, 8]; 4]);
        assert!(seen.look(every, &some).is_empty());
        seen.now_ms += EVERY_MS / 4 + LATE_MS + 1_000;
        let told = seen.look(every, &some);
        assert_eq!(told.len(), 1);
        assert!(told[0].contains("replica 2: the group has"), "{told:?}");
        assert_eq!(seen.late(), [2]);
        assert!(seen.look(every, &some).is_empty());
        assert!(seen.look(every, &reports(&[[9; 4]; 4])).is_empty());
        assert!(seen.late().is_empty());
        seen.now_ms += EVERY_MS * 2;
        assert_eq!(seen.look(every, &reports(&[[9; 4]; 4])).len(), 3);
    }

    /// A supervisor that is started anew again and again, each time before a period has passed, raises the alarm all the same; also one that is given the
    /// schedule that it has. With another one all have their time.
    #[test]
    fn a_restart_gives_nobody_more_time() {
        let (mut seen, every) = (Seen::new(), Some(EVERY));
        let never = reports(&[[7; 4]; 4]);
        let mut told = Vec::new();
        for _ in 0..4 {
            seen.start_anew();
            // What is kept is not held against anybody before it is heard how it is.
            assert!(seen.look(every, &never).is_empty());
            seen.now_ms += LATE_MS;
            told.push(seen.look(every, &never).len());
            seen.now_ms += EVERY_MS / 2 - LATE_MS;
        }
        assert_eq!(told, [0, 0, 0, 3]);
        seen.start_anew();
        assert!(seen.look(Some(EVERY * 2), &never).is_empty());
        seen.start_anew();
        assert!(seen.look(Some(EVERY * 2), &never).is_empty());
        // What was seen before counts for what is newer alone.
        seen.now_ms += EVERY_MS;
        seen.start_anew();
        assert!(
            seen.look(Some(EVERY * 2), &reports(&[[8; 4]; 4]))
                .is_empty()
        );
        seen.now_ms += EVERY_MS * 3;
        assert_eq!(seen.look(Some(EVERY * 2), &reports(&[[8; 4]; 4])).len(), 3);
    }

    /// What can't be read or written is told of, and is no reason not to look.
    #[test]
    fn damage_is_told() {
        let (mut seen, every) = (Seen::new(), Some(EVERY));
        let file = seen.directory.path().join("others.json");
        std::fs::write(&file, b"{").unwrap();
        seen.start_anew();
        let never = reports(&[[7; 4]; 4]);
        let told = seen.look(every, &never);
        assert!(
            told.len() == 1 && told[0].contains("others.json"),
            "{told:?}"
        );
        assert!(seen.look(every, &never).is_empty());
        seen.others = Others::load(&seen.directory.path().join("none"));
        assert_eq!(seen.look(every, &never).len(), 1);
        seen.now_ms += EVERY_MS * 2;
        assert_eq!(seen.look(every, &never).len(), 3);
    }

    /// A replica alone can't make it seem that one has recovered, nor that none has; and of what is not said nothing is told.
    #[test]
    fn one_word_is_not_believed() {
        let (mut seen, every) = (Seen::new(), Some(EVERY));
        let true_ones = [7, 7, 7, 7];
        seen.look(every, &reports(&[true_ones; 4]));
        seen.now_ms += EVERY_MS * 2;
        let high = reports(&[true_ones, true_ones, [7, 7, 99, 7], true_ones]);
        assert_eq!(seen.look(every, &high).len(), 3);
        let low = [8, 8, 8, 8];
        let low = reports(&[low, [0; 4], low, low]);
        assert!(seen.look(every, &low).is_empty());
        seen.now_ms += EVERY_MS * 2;
        assert!(seen.look(every, &Reports::new()).is_empty());
        assert!(seen.look(every, &reports(&[[8; 4]])).is_empty());
        let without = (0..4).map(|id| (ReplicaId(id), window::tests::report(None)));
        assert!(seen.look(every, &without.collect()).is_empty());
    }

    /// Without a schedule nobody has to recover, and with a new one all have a period's time.
    #[test]
    fn there_is_time_for_a_first_turn() {
        let mut seen = Seen::new();
        let never = reports(&[[0; 4]; 4]);
        assert!(seen.look(None, &never).is_empty());
        seen.look(Some(EVERY), &never);
        seen.now_ms += EVERY_MS * 2;
        assert!(seen.look(None, &never).is_empty());
        assert!(seen.look(Some(EVERY), &never).is_empty());
        seen.now_ms += EVERY_MS * 2;
        assert_eq!(seen.look(Some(EVERY), &never).len(), 3);
    }
}
