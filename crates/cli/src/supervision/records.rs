//! What recoveries came to, kept over the supervisor's own restarts.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use quorate_wire::message::{RECOVERY_STEPS, StateCheck};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::scribe::Scribe;

/// So many of the last recoveries count for the longest.
const RECENT: usize = 32;

/// Of each replica that is run from here.
#[derive(Debug)]
pub struct Records {
    replicas: BTreeMap<u8, Record>,
    scribe: Scribe,
}

/// Of one replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Its last recovery.
    pub last: Option<Ended>,
    /// How long the longest of the last ones took, in milliseconds, but for time in which nothing ran.
    pub longest_ms: u64,
    /// How long each of the last ones took, the newest last, also those that came to nothing.
    #[serde(default)]
    pub recent_ms: Vec<u64>,
    /// Why it did not recover when it was to, if that is since its last recovery.
    pub missed: Option<Missed>,
    /// Whether one was begun that has not ended: then it begins anew where the supervisor does.
    #[serde(default)]
    pub begun: bool,
    /// When, in milliseconds since 1970.
    #[serde(default)]
    pub begun_ms: Option<u64>,
}

/// A recovery that came to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ended {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// From the supervisor's word to a replica that votes and has caught up, by the supervisor's clock.
    pub took_ms: u64,
    /// How much of that its process took to end.
    pub shutdown_ms: u64,
    /// What it found of its own state.
    #[serde(with = "check")]
    pub check: Option<StateCheck>,
    /// When it had done each step, as it says itself; see [`RECOVERY_STEPS`].
    pub steps: Vec<u64>,
    /// When the group had ordered it, as the replica says.
    #[serde(default)]
    pub ordered: Option<u64>,
}

/// A turn without a recovery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Missed {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// Why.
    pub why: String,
}

impl Records {
    /// Those that are kept in a directory; none where there is no file. With a word where there is one that can't be used: a supervisor is not to
    /// stay away for that.
    pub fn load(directory: &Path) -> (Records, Option<String>) {
        let file = directory.join("recoveries.json");
        let read = match std::fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text).map_err(|e| e.to_string()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(e) => Err(e.to_string()),
        };
        let word = read.as_ref().err().map(|e| {
            format!(
                "{} can't be used, so that nothing is known of recoveries before: {e}",
                file.display()
            )
        });
        let replicas = read.unwrap_or_default();
        let scribe = Scribe::new(file);
        (Records { replicas, scribe }, word)
    }

    /// Whether nothing was ever noted.
    pub fn is_empty(&self) -> bool {
        self.replicas.is_empty()
    }

    /// What is known of a replica.
    pub fn of(&self, replica: u8) -> Record {
        self.replicas.get(&replica).cloned().unwrap_or_default()
    }

    /// Whose recovery was begun and has not ended, and when it was, in milliseconds since 1970.
    pub fn begun(&self) -> Option<(u8, u64)> {
        let mut begun = self.replicas.iter().filter(|(_, record)| record.begun);
        begun.next().map(|(id, record)| {
            // A program before this one did not note when: just now.
            (*id, record.begun_ms.unwrap_or(u64::MAX))
        })
    }

    /// Notes a recovery that begins, or begins anew.
    ///
    /// # Errors
    /// As [`Records::ended`].
    pub fn begins(&mut self, replica: u8, at_ms: u64) -> Result<()> {
        let record = self.replicas.entry(replica).or_default();
        let begun_ms = record.begun_ms.unwrap_or(at_ms);
        (record.begun, record.begun_ms) = (true, Some(begun_ms));
        self.keep()
    }

    /// Notes a recovery that has ended; `worked_ms`: how long it took, without the time in which nothing ran.
    ///
    /// # Errors
    /// If it can't be kept; it is known until this process ends.
    pub fn ended(&mut self, replica: u8, ended: Ended, worked_ms: u64) -> Result<()> {
        let record = self.replicas.entry(replica).or_default();
        record.took(worked_ms);
        record.last = Some(ended);
        record.missed = None;
        (record.begun, record.begun_ms) = (false, None);
        self.keep()
    }

    /// Notes a turn, or a recovery, that came to nothing, and for how long that recovery was tried.
    ///
    /// # Errors
    /// As [`Records::ended`].
    pub fn missed(&mut self, replica: u8, missed: Missed, worked_ms: Option<u64>) -> Result<()> {
        let record = self.replicas.entry(replica).or_default();
        worked_ms.into_iter().for_each(|ms| record.took(ms));
        record.missed = Some(missed);
        (record.begun, record.begun_ms) = (false, None);
        self.keep()
    }

    fn keep(&self) -> Result<()> {
        let text = serde_json::to_vec(&self.replicas).context("the recoveries")?;
        let written = self.scribe.write(text);
        written.with_context(|| format!("can't write {}", self.scribe.file().display()))
    }
}

impl Record {
    /// One took so long. The longest of all would never fall again, whatever it was that took long once: so a disk that is mended by now.
    fn took(&mut self, ms: u64) {
        if self.recent_ms.is_empty() && self.longest_ms > 0 {
            // A program before this one kept the longest alone.
            self.recent_ms.push(self.longest_ms);
        }
        self.recent_ms.push(ms);
        let older = self.recent_ms.len().saturating_sub(RECENT);
        self.recent_ms.drain(..older);
        self.longest_ms = self.recent_ms.iter().copied().max().unwrap_or_default();
    }
}

impl Ended {
    /// For people.
    pub fn sentence(&self, id: u8) -> String {
        let took = self.took_ms as f64 / 1000.0;
        let Some(check) = self.check else {
            return format!(
                "replica {id} is back after {took:.1} s; all of its state came from the others"
            );
        };
        format!(
            "replica {id} is back after {took:.1} s; of its state {} pieces ({:.1} MB) were right, {} were not the group's, and {} damaged",
            check.right,
            check.right_bytes as f64 / 1e6,
            check.differing,
            check.damaged
        )
    }

    /// For programs.
    pub fn to_json(&self, id: u8) -> Value {
        json!({
            "replica": id,
            "ended_ms": self.at_ms,
            "took_ms": self.took_ms,
            "shutdown_ms": self.shutdown_ms,
            "right": self.check.map(|c| c.right),
            "right_bytes": self.check.map(|c| c.right_bytes),
            "differing": self.check.map(|c| c.differing),
            "damaged": self.check.map(|c| c.damaged),
            "steps": steps_to_json(&self.steps, self.ordered),
            "text": self.sentence(id),
        })
    }
}

/// For programs: when each step of a recovery was done, by name, and when the group had ordered it; null where there was none.
pub fn steps_to_json(steps: &[u64], ordered: Option<u64>) -> Value {
    if steps.is_empty() {
        return Value::Null;
    }
    let names = RECOVERY_STEPS.iter().map(|name| format!("{name}_ms"));
    let times = steps.iter().map(|ms| Value::from(*ms));
    let times = times.chain(std::iter::repeat(Value::Null));
    let ordered = ("ordered_ms".to_string(), Value::from(ordered));
    Value::Object(names.zip(times).chain([ordered]).collect())
}

/// [`StateCheck`] in a file.
mod check {
    use super::StateCheck;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Kept(bool, u64, u64, u64, u64, u64);

    pub fn serialize<S: Serializer>(check: &Option<StateCheck>, to: S) -> Result<S::Ok, S::Error> {
        let kept = check.map(|c| {
            Kept(
                c.done,
                c.took_ms,
                c.right,
                c.right_bytes,
                c.differing,
                c.damaged,
            )
        });
        kept.serialize(to)
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Option<StateCheck>, D::Error> {
        let kept = Option::<Kept>::deserialize(from)?;
        Ok(kept.map(
            |Kept(done, took_ms, right, right_bytes, differing, damaged)| StateCheck {
                done,
                took_ms,
                right,
                right_bytes,
                differing,
                damaged,
            },
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(at_ms: u64, took_ms: u64) -> Ended {
        Ended {
            at_ms,
            took_ms,
            shutdown_ms: 90,
            check: Some(StateCheck {
                done: true,
                took_ms: 3,
                right: 4,
                right_bytes: 5,
                differing: 6,
                damaged: 7,
            }),
            steps: vec![1, 2, 3, 4, 5, 6],
            ordered: Some(4),
        }
    }

    /// All is there after a restart: the last, the longest, and a turn that was missed since.
    #[test]
    fn recoveries_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let (mut records, word) = Records::load(directory.path());
        assert_eq!((records.of(3), word), (Record::default(), None));
        records.ended(3, ended(1_000, 900), 900).unwrap();
        records.ended(3, ended(2_000, 500), 500).unwrap();
        let missed = Missed {
            at_ms: 3_000,
            why: "the group would stop".into(),
        };
        records.missed(3, missed.clone(), None).unwrap();
        records.begins(3, 4_000).unwrap();
        records.begins(3, 5_000).unwrap();
        let (mut again, word) = Records::load(directory.path());
        assert_eq!((again.of(3), word), (records.of(3), None));
        assert_eq!(again.begun(), Some((3, 4_000)));
        let record = again.of(3);
        assert_eq!(
            (record.last, record.longest_ms),
            (Some(ended(2_000, 500)), 900)
        );
        assert_eq!(record.missed, Some(missed));
        again.ended(3, ended(4_000, 600), 600).unwrap();
        assert_eq!((again.of(3).missed, again.begun()), (None, None));
    }

    /// What took long once does not count for ever; what came to nothing counts as well, and what a program before this one has kept.
    #[test]
    fn the_longest_falls() {
        let directory = tempfile::tempdir().unwrap();
        let before = r#"{"3":{"last":null,"longest_ms":9000,"missed":null}}"#;
        std::fs::write(directory.path().join("recoveries.json"), before).unwrap();
        let (mut records, word) = Records::load(directory.path());
        assert_eq!((word, records.of(3).longest_ms), (None, 9_000));
        let missed = Missed {
            at_ms: 1,
            why: String::new(),
        };
        records.missed(3, missed, Some(7_000)).unwrap();
        for _ in 0..RECENT - 2 {
            records.ended(3, ended(1, 60_000), 500).unwrap();
        }
        assert_eq!(records.of(3).longest_ms, 9_000);
        records.ended(3, ended(1, 500), 500).unwrap();
        assert_eq!(records.of(3).longest_ms, 7_000);
        records.ended(3, ended(1, 500), 500).unwrap();
        assert_eq!(Records::load(directory.path()).0.of(3).longest_ms, 500);
    }

    /// A file that is damaged is told of, and is no reason not to start.
    #[test]
    fn damage_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("recoveries.json");
        std::fs::write(&file, b"{\"3\": 7").unwrap();
        let (mut records, word) = Records::load(directory.path());
        assert!(word.unwrap().contains("recoveries.json"));
        records.ended(3, ended(1, 2), 2).unwrap();
        assert_eq!(Records::load(directory.path()).1, None);
    }
}
