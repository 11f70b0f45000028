//! What came of attacks: rounds, medians, tables.

use serde::Serialize;

use crate::load::Sample;
use crate::report::{Figures, Report, Table, median, show};

/// One kind of attack.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub attack: String,
    /// Medians.
    #[serde(flatten)]
    pub median: Round,
    /// Each round.
    pub rounds: Vec<Round>,
}

/// What an attack did in one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Round {
    /// What correct clients had.
    pub figures: Figures,
    /// Their throughput to that in peace, in the same round.
    pub share: f64,
    /// Their throughput to that beside a process that only takes as much processor time as the attackers.
    pub share_of_control: Option<f64>,
    /// Processor time of correct replicas for an operation, to that beside such a process; where a primary is slow, to that in peace.
    pub cpu_ratio: f64,
    /// Processors that the attackers took.
    pub attackers: f64,
    /// The longest that a correct client waited for an answer, in milliseconds.
    pub longest_ms: f64,
    /// Seconds until the share was 0.7 or more, where a primary is slow.
    pub back_after_s: Option<f64>,
}

/// All of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Attacks {
    /// What is to be known of the machine.
    #[serde(flatten)]
    pub machine: Report,
    /// How many correct clients there were.
    pub clients: usize,
    /// How many faulty ones.
    pub attackers: usize,
    /// Peace first.
    pub attacks: Vec<Row>,
}

impl Round {
    /// What correct clients had.
    pub fn of(sample: &Sample) -> Round {
        Round {
            figures: Figures::of(sample),
            longest_ms: sample.longest_ms(),
            ..Round::default()
        }
    }

    /// The same, compared with what they had in peace.
    pub fn beside(self, peace: &Round) -> Round {
        Round {
            share: self.figures.ops_per_s / peace.figures.ops_per_s,
            cpu_ratio: self.figures.replica_cpu_us / peace.figures.replica_cpu_us,
            ..self
        }
    }
}

/// Each figure's median by itself.
pub(crate) fn medians(rounds: &[Round]) -> Round {
    let figures: Vec<Figures> = rounds.iter().map(|r| r.figures).collect();
    let of = |figure: fn(&Round) -> f64| median(rounds.iter().map(figure).collect());
    let of_some = |figure: fn(&Round) -> Option<f64>| {
        let values: Vec<f64> = rounds.iter().filter_map(figure).collect();
        // One that never came is worse than any.
        (!values.is_empty() && values.len() == rounds.len()).then(|| median(values))
    };
    Round {
        figures: Figures::medians(&figures),
        share: of(|r| r.share),
        share_of_control: of_some(|r| r.share_of_control),
        cpu_ratio: of(|r| r.cpu_ratio),
        attackers: of(|r| r.attackers),
        longest_ms: of(|r| r.longest_ms),
        back_after_s: of_some(|r| r.back_after_s),
    }
}

/// A share as people read it; nothing where there is none.
pub(crate) fn percent(share: f64) -> String {
    match share.is_nan() {
        true => "-".into(),
        false => format!("{:.0} %", share * 100.0),
    }
}

/// The tables of a run.
pub fn tables(attacks: &Attacks) -> Vec<Table> {
    let title = format!(
        "{} correct clients, {} faulty ones (goal: 90 %, and 70 % after 10 s of a slow primary)",
        attacks.clients, attacks.attackers
    );
    let mut table = Table::new(
        &title,
        &[
            "attack",
            "ops/s",
            "of peace",
            "of control",
            "CPU us/op, correct replicas",
            "to control",
            "attackers' processors",
            "longest wait ms",
            "back after s",
        ],
    );
    for Row { attack, median, .. } in &attacks.attacks {
        table.row(vec![
            attack.clone(),
            show(median.figures.ops_per_s),
            percent(median.share),
            percent(median.share_of_control.unwrap_or(f64::NAN)),
            show(median.figures.replica_cpu_us),
            show(median.cpu_ratio),
            show(median.attackers),
            show(median.longest_ms),
            median.back_after_s.map_or("-".into(), show),
        ]);
    }
    let mut papers = Table::new(
        "The papers, each on its own machines: of its peak without faults",
        &["system", "requests/s at its peak", "at worst under attack"],
    );
    for [system, peak, worst] in crate::paper::ATTACKS {
        papers.row([system, peak, worst].map(String::from).to_vec());
    }
    vec![table, papers]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(ops_per_s: f64, back_after_s: Option<f64>) -> Round {
        let figures = Figures {
            ops_per_s,
            replica_cpu_us: 1e6 / ops_per_s,
            ..Figures::default()
        };
        Round {
            figures,
            back_after_s,
            ..Round::default()
        }
    }

    /// Shares are those of the same round; a group that did not come back in one of the rounds has not come back.
    #[test]
    fn shares_and_medians() {
        let peace = round(1_000.0, None);
        let half = round(500.0, Some(1.0)).beside(&peace);
        assert_eq!((half.share, half.cpu_ratio), (0.5, 2.0));
        let two = [half, round(700.0, Some(3.0)).beside(&peace)];
        assert_eq!(medians(&two).back_after_s, Some(2.0));
        assert!((medians(&two).share - 0.6).abs() < 1e-9);
        let never = [two[0], two[1], round(10.0, None)];
        assert_eq!(medians(&never).back_after_s, None);
    }
}
