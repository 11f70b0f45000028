//! What was measured, as a table and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};

use super::side::{Cpu, Side};
use super::work::{WORKS, Work};

/// Results and processor seconds of one work on one side, by round.
#[derive(Debug, Default)]
struct Line {
    results: Vec<f64>,
    mount_seconds: Vec<f64>,
    replica_seconds: Vec<f64>,
}

#[derive(Debug)]
pub struct Report {
    rounds: usize,
    load: String,
    lines: BTreeMap<(&'static str, &'static str), Line>,
    memory: BTreeMap<&'static str, (Option<u64>, u64)>,
}

const SIDES: [&str; 2] = ["passthrough", "quorate"];

impl Report {
    /// `load` is what else the machine did when it began.
    pub fn new(rounds: usize, load: &str) -> Report {
        Report {
            rounds,
            load: load.into(),
            lines: BTreeMap::new(),
            memory: BTreeMap::new(),
        }
    }

    pub fn note(&mut self, work: &Work, side: &Side, result: f64, cpu: Cpu) {
        let line = self.lines.entry((work.name, side.name())).or_default();
        line.results.push(result);
        line.mount_seconds.push(cpu.mount.as_secs_f64());
        line.replica_seconds.push(cpu.replicas.as_secs_f64());
    }

    pub fn note_memory(&mut self, side: &Side) {
        self.memory.insert(side.name(), side.memory());
    }

    /// How many times worse the group is than the passthrough.
    fn ratio(&self, work: &Work) -> f64 {
        let [passed, agreed] = SIDES.map(|side| self.middle(work, side, |line| &line.results));
        match work.less_is_better {
            true => agreed / passed,
            false => passed / agreed,
        }
    }

    fn middle(&self, work: &Work, side: &'static str, of: impl Fn(&Line) -> &Vec<f64>) -> f64 {
        let mut values = match self.lines.get(&(work.name, side)) {
            Some(line) => of(line).clone(),
            None => return f64::NAN,
        };
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }

    pub fn table(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "{:<22} {:>5} {:>12} {:>10} {:>7}   processor seconds: {:>11} {:>8} {:>9}",
            "", "", "passthrough", "quorate", "ratio", "passthrough", "mount", "replicas"
        );
        for work in WORKS {
            let result = |side| self.middle(work, side, |line| &line.results);
            let mount = |side| self.middle(work, side, |line| &line.mount_seconds);
            let replicas = self.middle(work, "quorate", |line| &line.replica_seconds);
            let _ = writeln!(
                out,
                "{:<22} {:>5} {:>12.2} {:>10.2} {:>6.1}x   {:>30.2} {:>8.2} {:>9.2}",
                work.name,
                work.unit,
                result("passthrough"),
                result("quorate"),
                self.ratio(work),
                mount("passthrough"),
                mount("quorate"),
                replicas
            );
        }
        for (side, (replica, mount)) in &self.memory {
            let replica = replica.map_or(String::new(), |r| format!(", a replica {} MiB", r >> 20));
            let _ = writeln!(
                out,
                "memory at most, {side}: the mount {} MiB{replica}",
                mount >> 20
            );
        }
        let _ = writeln!(
            out,
            "the middle of {} rounds, both in turn; {} processors; load when it began: {}",
            self.rounds,
            processors(),
            self.load
        );
        out
    }

    pub fn json(&self) -> Value {
        let works = WORKS.iter().map(|work| {
            let side = |side: &'static str| {
                let line = self.lines.get(&(work.name, side))?;
                Some(json!({
                    "results": line.results,
                    "middle": self.middle(work, side, |line| &line.results),
                    "mount_cpu_s": line.mount_seconds,
                    "replicas_cpu_s": line.replica_seconds,
                }))
            };
            json!({
                "work": work.name,
                "unit": work.unit,
                "passthrough": side("passthrough"),
                "quorate": side("quorate"),
                "ratio": self.ratio(work),
            })
        });
        let memory = self.memory.iter().map(|(side, (replica, mount))| {
            let entry = json!({ "mount_bytes": mount, "replica_bytes": replica });
            (side.to_string(), entry)
        });
        json!({
            "rounds": self.rounds,
            "processors": processors(),
            "load": self.load,
            "works": works.collect::<Vec<_>>(),
            "memory": memory.collect::<serde_json::Map<_, _>>(),
        })
    }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(0, usize::from)
}
