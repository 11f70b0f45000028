//! What the supervisors on this machine say of the replicas' recoveries.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_wire::Quorum;
use serde_json::{Value, json};

use crate::commands::{self, recover};
use crate::supervision::{self, NO_WINDOW_FOR, Request, alarm, window_lines};
use crate::{paths, words};

/// What is said where no supervisor is there, or none where it was looked for.
const UNHEARD: &str = "no supervisor was heard: no window of vulnerability is claimed (where one runs, name its directory: --supervisor DIR)";

/// What supervisors say, as far as they can be asked.
#[derive(Debug, Default)]
pub struct Recoveries {
    /// Of each replica what its own does.
    told: BTreeMap<u8, Value>,
    /// What they find wrong with what they go by themselves.
    alarms: BTreeSet<String>,
    /// Of those that others should have recover what one says that does not run them.
    elsewhere: BTreeMap<u64, String>,
    /// Why those that were named could not be asked.
    failed: Vec<String>,
}

impl Recoveries {
    /// Asks the supervisors of `directories`, and those beside a group file: of `quorate up`, and of `quorate supervise` with its usual
    /// directory. Those of `directories` that do not answer are told of; of the others those that are not there are passed over.
    pub fn ask(
        quorum: Quorum,
        beside: &Path,
        directories: &[PathBuf],
        patience: Duration,
    ) -> Recoveries {
        let mut all = Recoveries::default();
        match commands::runtime() {
            Ok(runtime) => runtime.block_on(all.hear(quorum, beside, directories, patience)),
            Err(e) => all.failed.push(words::of(&e)),
        }
        all
    }

    async fn hear(
        &mut self,
        quorum: Quorum,
        beside: &Path,
        directories: &[PathBuf],
        patience: Duration,
    ) {
        // Where a supervisor has a directory of its own, the replica's user could listen in the other.
        let usual = quorum.replicas().map(|id| {
            let own = paths::supervisor(beside, id.0);
            match own.exists() {
                true => own,
                false => paths::replica(beside, id.0),
            }
        });
        let usual = std::iter::once(beside.to_path_buf()).chain(usual);
        let named = directories.iter().map(|d| (d.clone(), true));
        for (directory, is_named) in named.chain(usual.map(|d| (d, false))) {
            let request = Request::LOOK;
            let asked = supervision::ask(&directory, &request, |_| {});
            let answer = match tokio::time::timeout(patience, asked).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(e)) if is_named => {
                    self.failed.push(words::of(&e));
                    continue;
                }
                Err(_) if is_named => {
                    let directory = directory.display();
                    let why = format!("the supervisor in {directory} does not answer");
                    self.failed.push(why);
                    continue;
                }
                Ok(Err(_)) | Err(_) => continue,
            };
            let alarms = recover::alarms(&answer).map(str::to_string);
            self.alarms.extend(alarms);
            for (id, text) in recover::elsewhere(&answer) {
                self.elsewhere.insert(id, text.to_string());
            }
            for replica in answer["replicas"].as_array().into_iter().flatten() {
                let id = replica["id"].as_u64().and_then(|id| u8::try_from(id).ok());
                let of_group = id.filter(|id| usize::from(*id) < quorum.n());
                if let Some(id) = of_group {
                    // What was asked first was named.
                    self.told.entry(id).or_insert_with(|| replica.clone());
                }
            }
        }
    }

    /// How many of those that were named could not be asked.
    pub fn away(&self) -> usize {
        self.failed.len()
    }

    /// What is known of each replica.
    pub fn replicas(&self) -> impl Iterator<Item = (u8, &Value)> {
        self.told.iter().map(|(id, told)| (*id, told))
    }

    fn windows(&self) -> BTreeMap<u8, Value> {
        let window = |(id, told): (u8, &Value)| (id, told["window"].clone());
        self.replicas().map(window).collect()
    }

    /// Tv of the group in milliseconds, where it is claimed of all replicas.
    pub fn claimed_ms(&self, quorum: Quorum) -> Option<u64> {
        let windows = self.windows();
        let claimed: Option<Vec<u64>> = windows
            .values()
            .map(|window| window["claimed_ms"].as_u64())
            .collect();
        let claimed = claimed.filter(|claimed| claimed.len() == quorum.n())?;
        claimed.into_iter().max()
    }

    /// For people.
    pub fn lines(&self, quorum: Quorum) -> Vec<String> {
        let failed = self.failed.iter().map(|why| format!("ALARM: {why}"));
        // Silence would look as if there were nothing to claim. One replica alone never recovers.
        if self.told.is_empty() && quorum.f() > 0 {
            let unheard = std::iter::once(UNHEARD.into());
            return failed.chain(unheard).collect();
        }
        let elsewhere = self.elsewhere.iter();
        let elsewhere = elsewhere.map(|(id, text)| alarm(id, text));
        let alarms = self.alarms.iter().map(|text| format!("ALARM: {text}"));
        let lines = window_lines(&self.windows(), quorum.n()).into_iter();
        lines.chain(alarms).chain(elsewhere).chain(failed).collect()
    }

    /// How much supervisors find wrong with what they go by.
    pub fn alarms(&self) -> usize {
        self.alarms.len()
    }

    /// Of how many replicas that are not run from here it is known that they don't recover.
    pub fn late_elsewhere(&self) -> usize {
        self.elsewhere.len()
    }

    /// For programs.
    pub fn to_json(&self, quorum: Quorum) -> Value {
        json!({
            "window_ms": self.claimed_ms(quorum),
            "except": NO_WINDOW_FOR,
            "text": self.lines(quorum),
            "error": (self.away() > 0).then(|| self.failed.join("; ")),
            "replicas": self.told.values().collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn recoveries(windows: &[(u8, Option<u64>)]) -> Recoveries {
        let told = |(id, ms): &(u8, Option<u64>)| {
            let why = json!([{ "alarm": true, "text": "it is late" }]);
            let not = if ms.is_some() { json!([]) } else { why };
            let window = json!({ "claimed_ms": ms, "not_claimed": not });
            (*id, json!({ "id": id, "window": window }))
        };
        Recoveries {
            told: windows.iter().map(told).collect(),
            ..Recoveries::default()
        }
    }

    /// What a supervisor says of a replica that another one should have recover is told as well, in the words of `quorate schedule`.
    #[test]
    fn who_is_late_elsewhere_is_told() {
        let mut all = recoveries(&[(0, Some(5))]);
        let answer = json!({ "elsewhere": [{ "id": 2, "text": "it is late" }] });
        let late = recover::elsewhere(&answer);
        all.elsewhere = late.map(|(id, text)| (id, text.to_string())).collect();
        let lines = all.lines(Quorum::new(4).unwrap());
        assert_eq!(lines.last().unwrap(), "ALARM: replica 2: it is late");
        assert!(recover::lines(&answer).contains(lines.last().unwrap()));
        assert_eq!(all.late_elsewhere(), 1);
    }

    /// What a supervisor finds wrong with what it goes by is told, in the words of `quorate schedule`, and once where several say it.
    #[test]
    fn what_supervisors_find_wrong_is_told() {
        let mut all = recoveries(&[(0, Some(5))]);
        let answer = json!({ "alarms": ["its schedule is lost"] });
        for _ in 0..2 {
            all.alarms
                .extend(recover::alarms(&answer).map(str::to_string));
        }
        let lines = all.lines(Quorum::new(4).unwrap());
        assert_eq!(lines.last().unwrap(), "ALARM: its schedule is lost");
        assert_eq!(lines.iter().filter(|line| line.contains("lost")).count(), 1);
        assert!(recover::lines(&answer).contains(lines.last().unwrap()));
    }

    /// The group's window is the longest of all its replicas' windows, and there is none where one is missing or unknown.
    #[test]
    fn a_group_has_a_window_when_all_have() {
        let quorum = Quorum::new(4).unwrap();
        let all = recoveries(&[(0, Some(5)), (1, Some(9)), (2, Some(7)), (3, Some(1))]);
        assert_eq!(all.claimed_ms(quorum), Some(9));
        let three = recoveries(&[(0, Some(5)), (1, Some(9)), (2, Some(7))]);
        assert_eq!(three.claimed_ms(quorum), None);
        let late = recoveries(&[(0, Some(5)), (1, None), (2, Some(7)), (3, Some(1))]);
        assert_eq!(late.claimed_ms(quorum), None);
        let lines = late.lines(quorum).join("\n");
        assert!(lines.contains("replica 1: ALARM: it is late"), "{lines}");
    }

    /// A supervisor that was named and is away is told of beside what others say, and costs nothing of that; one that was not named is passed over.
    #[test]
    fn a_supervisor_that_is_away_is_told() {
        let quorum = Quorum::new(4).unwrap();
        let (beside, named) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let patience = Duration::from_secs(60);
        let ask = |named: &[PathBuf]| Recoveries::ask(quorum, beside.path(), named, patience);
        let away = ask(&[named.path().into()]);
        assert_eq!((away.away(), ask(&[]).away()), (1, 0));
        let place = named.path().display().to_string();
        let error = away.to_json(quorum)["error"].as_str().map(str::to_string);
        assert!(error.unwrap().contains(&place));
        assert_eq!(ask(&[]).to_json(quorum)["error"], Value::Null);
        let lines = away.lines(quorum);
        assert!(
            lines[0].starts_with("ALARM: ") && lines[0].contains(&place),
            "{lines:?}"
        );
        assert_eq!(lines[1..], [UNHEARD]);
        let mut some = recoveries(&[(0, Some(5))]);
        some.failed = away.failed;
        assert_eq!(some.lines(quorum).last(), Some(&lines[0]));
    }

    /// Where no supervisor is heard that is said, but of a group that has none to recover.
    #[test]
    fn that_no_supervisor_is_heard_is_told() {
        let lines = |n| Recoveries::default().lines(Quorum::new(n).unwrap());
        assert_eq!(lines(4), [UNHEARD]);
        assert!(UNHEARD.contains("--supervisor DIR"));
        assert!(lines(1).is_empty());
    }
}
