//! What Prometheus reads: its text format, as a textfile collector or a script behind a web server gives it.

use std::fmt::Write;

use quorate_net::Group;
use quorate_wire::message::Report;
use serde_json::Value;

use super::recovery::Recoveries;
use super::{Health, Reports, lag, newest, odd_root};

/// All samples of one name.
#[derive(Debug, Default)]
struct Text(String);

impl Text {
    /// A gauge: for each replica that has the value, or for the group.
    fn gauge<'a>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl Iterator<Item = (Option<u8>, f64)> + 'a,
    ) {
        let mut samples = samples.peekable();
        if samples.peek().is_none() {
            return;
        }
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP quorate_{name} {help}");
        let _ = writeln!(self.0, "# TYPE quorate_{name} gauge");
        for (replica, value) in samples {
            let _ = match replica {
                Some(id) => writeln!(self.0, "quorate_{name}{{replica=\"{id}\"}} {value}"),
                None => writeln!(self.0, "quorate_{name} {value}"),
            };
        }
    }
}

/// How the group is, and its replicas' recoveries at a time in milliseconds since 1970.
pub fn text(
    group: &Group,
    reports: &Reports,
    health: Health,
    recoveries: &Recoveries,
    now_ms: u64,
) -> String {
    let (quorum, mut text) = (group.quorum(), Text::default());
    let of_group = |value: f64| std::iter::once((None, value));
    let each = |figure: fn(&Report) -> f64| {
        reports
            .iter()
            .map(move |(id, report)| (Some(id.0), figure(report)))
    };
    text.gauge(
        "group_health",
        "0: all replicas answer and agree, 1: the group works, 2: it does not",
        of_group(f64::from(health as u8)),
    );
    let up = quorum
        .replicas()
        .map(|id| (Some(id.0), f64::from(u8::from(reports.contains_key(&id)))));
    text.gauge("replica_up", "Whether the replica answers", up);
    text.gauge("replica_view", "Its view", each(|r| r.view.0 as f64));
    text.gauge(
        "replica_executed_batches",
        "Batches that it has executed",
        each(|r| r.executed.0 as f64),
    );
    let newest = newest(quorum, reports);
    let lag = reports
        .iter()
        .map(move |(id, r)| (Some(id.0), lag(r, newest) as f64));
    text.gauge("replica_lag_batches", "Batches that it is behind", lag);
    text.gauge(
        "replica_recovering",
        "Whether it is silent until it has recovered",
        each(|r| f64::from(u8::from(r.recovering.is_some()))),
    );
    let odd = reports.iter().map(|(id, r)| {
        let is_odd = odd_root(r, quorum, reports);
        (Some(id.0), f64::from(u8::from(is_odd)))
    });
    text.gauge(
        "replica_root_differs",
        "Whether f+1 others have another state at the same checkpoint",
        odd,
    );
    let keys = reports.iter().filter_map(|(id, r)| {
        let keys = r.keys?;
        Some((Some(id.0), keys.age_ms as f64 / 1000.0))
    });
    text.gauge(
        "replica_keys_age_seconds",
        "How old the keys of its links are, in a group with key holders",
        keys,
    );
    recovery(&mut text, recoveries, now_ms);
    if recoveries.replicas().next().is_some() {
        text.gauge(
            "recovery_alarms_elsewhere",
            "Replicas of other machines that have not recovered in time, as supervisors here see it",
            of_group(recoveries.late_elsewhere() as f64),
        );
        text.gauge(
            "supervisor_alarms",
            "What supervisors find wrong with what they go by: a program that was changed, a schedule that is lost or not kept",
            of_group(recoveries.alarms() as f64),
        );
    }
    text.gauge(
        "supervisors_away",
        "Supervisors that were named and do not answer",
        of_group(recoveries.away() as f64),
    );
    let window = recoveries.claimed_ms(quorum);
    text.gauge(
        "window_of_vulnerability_claimed",
        "Whether a window is claimed of all replicas; see docs/recovery.md",
        of_group(f64::from(u8::from(window.is_some()))),
    );
    text.gauge(
        "window_of_vulnerability_seconds",
        "2 Tk + Tr, where it is claimed",
        window.map(|ms| (None, ms as f64 / 1000.0)).into_iter(),
    );
    text.0
}

fn recovery(text: &mut Text, recoveries: &Recoveries, now_ms: u64) {
    let of = |figure: fn(&Value, u64) -> Option<f64>| {
        let sample = move |(id, told)| Some((Some(id), figure(told, now_ms)?));
        recoveries.replicas().filter_map(sample)
    };
    text.gauge(
        "recovery_last_seconds",
        "How long its last recovery took, as its supervisor saw it",
        of(|told, _| Some(told["last"]["took_ms"].as_u64()? as f64 / 1000.0)),
    );
    text.gauge(
        "recovery_longest_seconds",
        "How long its longest recovery took",
        of(|told, _| Some(told["longest_recovery_ms"].as_u64()? as f64 / 1000.0)),
    );
    text.gauge(
        "recovery_age_seconds",
        "How long ago its last recovery ended",
        of(|told, now| {
            let ago = now.saturating_sub(told["last"]["ended_ms"].as_u64()?);
            Some(ago as f64 / 1000.0)
        }),
    );
    text.gauge(
        "recovery_period_seconds",
        "Tw: how often it recovers by itself",
        of(|told, _| Some(told["window"]["every_ms"].as_u64()? as f64 / 1000.0)),
    );
    // Each machine's supervisor knows those that it runs, and so where there are several none knows the group's.
    text.gauge(
        "replica_window_claimed",
        "Whether a window of vulnerability is claimed of this replica",
        of(|told, _| Some(f64::from(u8::from(told["window"]["claimed_ms"].is_u64())))),
    );
    text.gauge(
        "replica_window_seconds",
        "2 Tk + Tr of this replica, where it is claimed; the longest of all is the group's window",
        of(|told, _| Some(told["window"]["claimed_ms"].as_u64()? as f64 / 1000.0)),
    );
    text.gauge(
        "recovery_damaged_pieces",
        "Pieces of its state that its last recovery found damaged",
        of(|told, _| Some(told["last"]["damaged"].as_u64()? as f64)),
    );
    text.gauge(
        "recovery_alarms",
        "Reasons for which no window is claimed of it and that are no setting",
        of(|told, _| {
            let reasons = told["window"]["not_claimed"].as_array()?;
            let alarms = reasons.iter().filter(|r| r["alarm"] == true);
            Some(alarms.count() as f64)
        }),
    );
}

#[cfg(test)]
mod tests {
    use super::super::recovery::tests::recoveries;
    use super::*;

    /// A machine that runs some of the replicas tells of their windows, though it knows none of the whole group.
    #[test]
    fn a_replica_has_a_window_of_its_own() {
        let mut told = Text::default();
        recovery(&mut told, &recoveries(&[(1, Some(9_500)), (2, None)]), 0);
        let has = |line: &str| told.0.lines().any(|l| l == line);
        assert!(has("quorate_replica_window_claimed{replica=\"1\"} 1"));
        assert!(has("quorate_replica_window_seconds{replica=\"1\"} 9.5"));
        assert!(has("quorate_replica_window_claimed{replica=\"2\"} 0"));
        assert!(!told.0.contains("window_seconds{replica=\"2\"}"));
    }
}
