//! Who carries a schedule out.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::group::Group;
use crate::schedule::{Act, Fault, Schedule};

/// How often it is looked whether processes have ended, between faults.
const LOOK: Duration = Duration::from_millis(250);

/// A fault begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Step {
    at_ms: u64,
    begins: bool,
    act: usize,
}

fn steps(schedule: &Schedule) -> Vec<Step> {
    let mut steps = Vec::new();
    for (
        act,
        Act {
            start_ms, end_ms, ..
        },
    ) in schedule.acts.iter().enumerate()
    {
        for (at_ms, begins) in [(*start_ms, true), (*end_ms, false)] {
            steps.push(Step { at_ms, begins, act });
        }
    }
    // Ends before beginnings of the same time.
    steps.sort_unstable();
    steps
}

/// Runs a schedule from its start to its end, and looks meanwhile for processes that should not have ended. `told` hears of each step.
///
/// # Errors
/// What went wrong that was not in the schedule.
pub async fn run(group: &mut Group, schedule: &Schedule, told: &dyn Fn(String)) -> Result<()> {
    let start = Instant::now();
    let mut steps = steps(schedule).into_iter().peekable();
    loop {
        group.check_processes()?;
        let now = start.elapsed();
        while let Some(step) = steps.next_if(|s| Duration::from_millis(s.at_ms) <= now) {
            let Act { fault, .. } = &schedule.acts[step.act];
            let word = if step.begins { "begins" } else { "ends" };
            told(format!("{word}: {fault}"));
            let done = match step.begins {
                true => begin(group, step.act, fault),
                false => end(group, step.act, fault),
            };
            done.with_context(|| format!("{word}: {fault}"))?;
        }
        if now >= Duration::from_millis(schedule.duration_ms) {
            return Ok(());
        }
        let next = steps.peek().map_or(schedule.duration_ms, |s| s.at_ms);
        let wait = Duration::from_millis(next).saturating_sub(start.elapsed());
        tokio::time::sleep(wait.min(LOOK)).await;
    }
}

fn begin(group: &mut Group, act: usize, fault: &Fault) -> Result<()> {
    match fault {
        Fault::Kill { replicas } => replicas.iter().try_for_each(|id| group.kill(*id)),
        Fault::Pause { replicas } => replicas.iter().try_for_each(|id| group.pause(*id, true)),
        Fault::Network {
            from,
            to,
            both,
            trouble,
        } => {
            group.net.begin(act, from, to, *both, *trouble);
            Ok(())
        }
        Fault::FullDisk { replica, left_kib } => group.fill_disk(*replica, Some(left_kib << 10)),
        Fault::CutWrite {
            replica,
            longest_kib,
        } => group.limit_files(*replica, Some(longest_kib << 10)),
        Fault::Rot {
            replica,
            what,
            at_per_mille,
            every,
        } => group.rot(*replica, *what, *at_per_mille, *every),
    }
}

fn end(group: &mut Group, act: usize, fault: &Fault) -> Result<()> {
    match fault {
        Fault::Kill { replicas } => replicas.iter().try_for_each(|id| group.start_replica(*id)),
        Fault::Pause { replicas } => replicas.iter().try_for_each(|id| group.pause(*id, false)),
        Fault::Network { .. } => {
            group.net.end(act);
            Ok(())
        }
        Fault::FullDisk { replica, .. } => group.fill_disk(*replica, None),
        Fault::CutWrite { replica, .. } => group.limit_files(*replica, None),
        Fault::Rot { replica, .. } => group.start_replica(*replica),
    }
}
