//! What the end of a primary costs its clients: it is killed, stands still, or is asked to end, under load.
//!
//! Each round has a group of its own: the primary does not come back. What is asked is how long the client that was hit
//! worst waited for one answer, with all that belongs to it: that the others notice, agree on who leads, and take up what was
//! on its way.

use std::time::Duration;

use anyhow::{Context, Result};
use quorate_net::group::Durability;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use crate::Workload;
use crate::group::Running;
use crate::load::{Fleet, Load, Window};
use crate::micro;
use crate::paper;
use crate::report::{Report, Table, median, show};
use crate::run::Options;

/// Clients, one operation in flight each.
const CLIENTS: usize = 16;
const LOAD: Load = Load::of(Workload::of(0, 0), CLIENTS, 1);
/// How long the group works before anything happens: it learns how quick its primary is.
const BEFORE: Duration = Duration::from_secs(2);
/// When within the measured time it happens, and how much of that comes after it.
const HIT_AFTER: Duration = Duration::from_millis(500);
const AFTER: Duration = Duration::from_secs(4);

/// What becomes of the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Its process ends at once, and the kernel closes its links.
    Killed,
    /// Its process stands still: the links stay, and nothing comes over them.
    Stopped,
    /// It is asked to end, as when it is to recover.
    Asked,
}

/// What is measured.
#[derive(Clone, Copy, Debug)]
struct Case {
    end: End,
    durability: Durability,
}

impl Case {
    fn all() -> Vec<Case> {
        let ends = [End::Killed, End::Stopped, End::Asked].into_iter();
        let cases = ends.flat_map(|end| {
            let durability = [Durability::Memory, Durability::Disk].into_iter();
            durability.map(move |durability| Case { end, durability })
        });
        cases.collect()
    }

    fn name(self) -> String {
        let end = match self.end {
            End::Killed => "killed (SIGKILL)",
            End::Stopped => "stopped (SIGSTOP)",
            End::Asked => "asked to end",
        };
        let durability = match self.durability {
            Durability::Memory => "memory",
            Durability::Disk => "disk",
        };
        format!("{end}, {durability}")
    }
}

/// What came of it in one round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Round {
    /// Operations in a second with the primary.
    pub before_ops_per_s: f64,
    /// And with another, when all have been answered again.
    pub after_ops_per_s: f64,
    /// The longest that a client waited for an answer while the primary went, in milliseconds.
    pub longest_ms: f64,
}

/// One way to go.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub primary: String,
    /// Each round.
    pub rounds: Vec<Round>,
}

/// All of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Failover {
    /// What is to be known of the machine.
    #[serde(flatten)]
    pub machine: Report,
    /// How many clients there were.
    pub clients: usize,
    /// What was measured.
    pub failover: Vec<Row>,
}

/// Runs the benchmark.
///
/// # Errors
/// Where a group does not start, or does not answer any more.
pub async fn run(options: &Options, failover: &mut Failover) -> Result<()> {
    quorate_net::open_files::allow_many();
    let mut cases = Case::all();
    cases.retain(|case| options.only.iter().all(|word| case.name().contains(word)));
    let mut rounds = vec![Vec::new(); cases.len()];
    let all = cases.len() * options.rounds;
    for round in 0..options.rounds {
        for (at, case) in cases.iter().enumerate() {
            let measured = measure(options, *case).await.with_context(|| case.name())?;
            eprintln!(
                "[{}/{all}] {}, round {}: the longest wait was {} ms",
                round * cases.len() + at + 1,
                case.name(),
                round + 1,
                show(measured.longest_ms),
            );
            rounds[at].push(measured);
            failover.failover = rows(&cases, &rounds);
        }
    }
    Ok(())
}

/// The rows of the cases that have been measured.
fn rows(cases: &[Case], rounds: &[Vec<Round>]) -> Vec<Row> {
    let measured = cases.iter().zip(rounds).filter(|(_, r)| !r.is_empty());
    let row = |(case, rounds): (&Case, &Vec<Round>)| Row {
        primary: case.name(),
        rounds: rounds.clone(),
    };
    measured.map(row).collect()
}

impl Failover {
    /// Nothing yet.
    pub fn new(options: &Options) -> Failover {
        Failover {
            machine: Report::new("failover", options.seconds, &options.data),
            clients: CLIENTS,
            failover: Vec::new(),
        }
    }
}

async fn measure(options: &Options, case: Case) -> Result<Round> {
    let variant = micro::variant("failover", 4, case.durability);
    let launcher = &options.launcher;
    let mut group = Running::start(&variant.setup, CLIENTS, &options.data, launcher).await?;
    let mut fleet = Fleet::new(variant.options, variant.parallelism);
    let quick_or = |usual: Duration| match options.quick {
        true => usual / 8,
        false => usual,
    };
    let calm = Window {
        warm_up: quick_or(BEFORE),
        measured: Duration::from_secs_f64(options.seconds),
    };
    let before = fleet.measure(&group, &LOAD, calm)?;

    // On a busy machine it need not be the first any more.
    let at = usize::from(fleet.primary().0);
    let pid = *group.pids().get(at).context("no such replica")?;
    let primary = Pid::from_raw(pid.cast_signed()).context("a process has a number")?;
    let hit_after = quick_or(HIT_AFTER);
    let sign_of_life = match case.end {
        End::Asked => group.sign_of_life(at),
        End::Killed | End::Stopped => None,
    };
    let hit = std::thread::spawn(move || {
        std::thread::sleep(hit_after);
        match case.end {
            End::Killed => kill_process(primary, Signal::KILL),
            End::Stopped => kill_process(primary, Signal::STOP),
            End::Asked => {
                drop(sign_of_life);
                Ok(())
            }
        }
    });
    let through = Window {
        warm_up: Duration::ZERO,
        measured: hit_after + AFTER,
    };
    let through = fleet.measure(&group, &LOAD, through)?;
    hit.join()
        .ok()
        .context("the thread that hits the primary")??;
    group.lose(at).await?;

    let after = fleet.measure(&group, &LOAD, calm)?;
    drop(fleet);
    group.stop().await?;
    Ok(Round {
        before_ops_per_s: before.ops_per_s(),
        after_ops_per_s: after.ops_per_s(),
        longest_ms: through.longest_ms(),
    })
}

/// The tables of a run.
pub fn tables(failover: &Failover) -> Vec<Table> {
    let title = format!(
        "The primary goes under {} clients (goal: nobody waits for 500 ms)",
        failover.clients
    );
    let heads = [
        "primary",
        "longest wait ms, median",
        "worst round",
        "ops/s before",
        "after",
    ];
    let mut table = Table::new(&title, &heads);
    for Row { primary, rounds } in &failover.failover {
        let of = |figure: fn(&Round) -> f64| rounds.iter().map(figure).collect::<Vec<_>>();
        let worst = of(|r| r.longest_ms).into_iter().fold(f64::NAN, f64::max);
        table.row(vec![
            primary.clone(),
            show(median(of(|r| r.longest_ms))),
            show(worst),
            show(median(of(|r| r.before_ops_per_s))),
            show(median(of(|r| r.after_ops_per_s))),
        ]);
    }
    let title = "Others, killed under 16 clients on a machine with two processors";
    let mut others = Table::new(title, &["system", "longest wait ms"]);
    for row in paper::FAILOVER {
        others.row(row.map(String::from).to_vec());
    }
    vec![table, others]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Sample;

    /// The longest wait is that of the slowest operation; the table has the worst of the rounds beside the median.
    #[test]
    fn the_worst_is_shown() {
        let sample = Sample {
            latencies_ns: vec![1_000, 2_000, 300_000_000],
            seconds: 1.5,
            replica_cpu: 0.0,
            client_cpu: 0.0,
        };
        assert_eq!((sample.longest_ms(), sample.ops_per_s()), (300.0, 2.0));
        let round = |longest_ms| Round {
            before_ops_per_s: 10.0,
            after_ops_per_s: 20.0,
            longest_ms,
        };
        let failover = Failover {
            machine: Report::new("failover", 1.0, std::path::Path::new("/")),
            clients: CLIENTS,
            failover: vec![Row {
                primary: "killed".into(),
                rounds: vec![round(100.0), round(900.0), round(200.0)],
            }],
        };
        let shown = tables(&failover)[0].to_string();
        let row: Vec<&str> = shown.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(row, ["killed", "200", "900", "10.0", "20.0"]);
    }
}
