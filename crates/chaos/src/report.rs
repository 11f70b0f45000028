//! What a run has found out.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::history::Operation;
use crate::schedule::{Fault, Rotten, Schedule, Trouble};

/// One round.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Round {
    /// Its seed.
    pub seed: u64,
    /// Its number in its group.
    pub round: u64,
    /// Operations that were answered, and those whose outcome nobody knows.
    pub operations: usize,
    /// See `operations`.
    pub unknown: usize,
    /// The time of an operation that half are below, one of a hundred is above, and the longest, in milliseconds.
    pub median_ms: f64,
    /// See `median_ms`.
    pub p99_ms: f64,
    /// See `median_ms`.
    pub longest_ms: f64,
    /// The longest time in which nobody was answered, in seconds.
    pub silence_s: f64,
    /// When all clients were answered after all was healed, in seconds.
    pub answered_s: f64,
    /// When all correct replicas had one state, in seconds after all was healed.
    pub agreed_s: f64,
    /// The view at the end.
    pub view: u64,
    /// Objects whose check was given up.
    pub undecided: usize,
    /// How many replicas stopped because their disks were full, or a write was cut.
    pub stopped: usize,
    /// When operations were answered, in milliseconds, and how long they took, in microseconds; for the picture.
    #[serde(skip)]
    pub answers: Vec<(u64, u64)>,
    /// What went wrong on purpose.
    #[serde(skip)]
    pub schedule: Schedule,
}

/// All rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The run's seed.
    pub seed: u64,
    /// How long it took.
    pub seconds: f64,
    /// The rounds.
    pub rounds: Vec<Round>,
    /// How often each kind of fault was injected.
    pub faults: BTreeMap<&'static str, usize>,
}

impl Round {
    /// What a history says of itself.
    pub fn measure(history: &[Operation]) -> Round {
        let mut times = Vec::new();
        let mut answers = Vec::new();
        for operation in history {
            if let Some((end, _)) = &operation.ended {
                times.push(end - operation.begun);
                answers.push((end / 1000, end - operation.begun));
            }
        }
        times.sort_unstable();
        answers.sort_unstable();
        let at = |per_cent: usize| {
            let last = times.len().saturating_sub(1);
            let place = last.min(times.len() * per_cent / 100);
            times.get(place).map_or(0.0, |us| *us as f64 / 1000.0)
        };
        let gaps = answers.windows(2).map(|pair| pair[1].0 - pair[0].0);
        Round {
            operations: times.len(),
            unknown: history.len() - times.len(),
            median_ms: at(50),
            p99_ms: at(99),
            longest_ms: at(100),
            silence_s: gaps.max().unwrap_or(0) as f64 / 1000.0,
            answers,
            ..Round::default()
        }
    }
}

impl Report {
    /// Of no rounds yet.
    pub fn new(seed: u64) -> Report {
        Report {
            seed,
            seconds: 0.0,
            rounds: Vec::new(),
            faults: BTreeMap::new(),
        }
    }

    /// One round more. Of earlier ones the answers are forgotten.
    pub fn add(&mut self, round: Round) {
        for act in &round.schedule.acts {
            *self.faults.entry(kind(&act.fault)).or_default() += 1;
        }
        if let Some(last) = self.rounds.last_mut() {
            last.answers = Vec::new();
        }
        self.rounds.push(round);
    }

    /// Operations of all rounds.
    pub fn operations(&self) -> usize {
        self.rounds.iter().map(|r| r.operations).sum()
    }
}

fn kind(fault: &Fault) -> &'static str {
    match fault {
        Fault::Kill { replicas } if replicas.len() == 1 => "kill",
        Fault::Kill { .. } => "kill several",
        Fault::Pause { .. } => "pause",
        Fault::FullDisk { .. } => "full disk",
        Fault::CutWrite { .. } => "cut write",
        Fault::Rot { what, .. } => match what {
            Rotten::LogEnd => "lost end of a log",
            Rotten::Log | Rotten::State | Rotten::Blobs => "rot",
        },
        Fault::Network { trouble, both, .. } => match (trouble, both) {
            (Trouble::Hold, true) => "hold",
            (Trouble::Hold, false) => "hold one way",
            (Trouble::Cut, _) => "cut",
            (Trouble::Delay { .. }, _) => "delay",
            (Trouble::Corrupt { .. }, _) => "corrupt",
            (Trouble::Limit { .. }, _) => "limit",
        },
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "round {} (seed {}): {} operations, {} unknown; {:.1} ms median, {:.0} ms p99, {:.0} ms longest; silent for {:.1} s; {} \
             stopped by their disks; after healing answered in {:.1} s, agreed in {:.1} s, view {}",
            self.round,
            self.seed,
            self.operations,
            self.unknown,
            self.median_ms,
            self.p99_ms,
            self.longest_ms,
            self.silence_s,
            self.stopped,
            self.answered_s,
            self.agreed_s,
            self.view
        )?;
        match self.undecided {
            0 => Ok(()),
            count => write!(f, "; {count} objects undecided"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unknown: usize = self.rounds.iter().map(|r| r.unknown).sum();
        let undecided: usize = self.rounds.iter().map(|r| r.undecided).sum();
        let most = |pick: fn(&Round) -> f64| self.rounds.iter().map(pick).fold(0.0, f64::max);
        writeln!(
            f,
            "{} rounds in {:.0} s: {} operations linearizable, {unknown} of unknown outcome, {undecided} objects undecided",
            self.rounds.len(),
            self.seconds,
            self.operations()
        )?;
        let faults = self.faults.iter();
        let faults: Vec<String> = faults.map(|(kind, n)| format!("{n} {kind}")).collect();
        writeln!(f, "faults: {}", faults.join(", "))?;
        write!(
            f,
            "after healing all were answered in {:.1} s at most, and the correct replicas had one state in {:.1} s",
            most(|r| r.answered_s),
            most(|r| r.agreed_s)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Op, Outcome};

    /// Figures are those of the history.
    #[test]
    fn a_round_is_measured() {
        let operation = |begun: u64, took: Option<u64>| Operation {
            client: 0,
            mounted: false,
            op: Op::Read { register: 0 },
            begun,
            ended: took.map(|took| (begun + took, Outcome::Value(0))),
        };
        let mut history: Vec<Operation> = (0..100)
            .map(|n| operation(n * 10_000, Some(2_000)))
            .collect();
        history.push(operation(1_000_000, None));
        history.push(operation(3_000_000, Some(500_000)));
        let round = Round::measure(&history);
        assert_eq!((round.operations, round.unknown), (101, 1));
        assert_eq!((round.median_ms, round.longest_ms), (2.0, 500.0));
        assert!(
            (round.silence_s - 2.508).abs() < 0.01,
            "{}",
            round.silence_s
        );
        assert_eq!(Round::measure(&[]).operations, 0);
    }
}
