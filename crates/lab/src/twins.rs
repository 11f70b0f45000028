//! `cargo xtask twins`: systematic schedules with twins.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use quorate_sim::twins::{Plan, Schedule};

use crate::runs;

pub const USAGE: &str = "\
cargo xtask twins [--replicas N] [--twins K] [--views V] [--phases P] [--sample N] [--run N]
    runs all schedules of a plan (4 replicas, 1 twin, 1 view, 3 phases unless told), N of them by chance with --sample,
    or one with --run; with 1 phase all messages of a view are cut alike; see docs/simulator.md";

/// More than this takes days: to be sampled.
const MOST: u64 = 50_000_000;

/// `cargo xtask twins`.
#[allow(clippy::disallowed_methods)] // For people, who want to know what takes long.
pub fn main(args: &[String]) -> Result<(), String> {
    let mut plan = Plan {
        replicas: 4,
        twins: 1,
        views: 1,
        phases: 3,
    };
    let (mut sample, mut one) = (None, None);
    let mut args = args.iter();
    while let Some(name) = args.next() {
        let value = args.next().ok_or(USAGE)?;
        let value: u64 = value.parse().map_err(|_| USAGE)?;
        match name.as_str() {
            "--replicas" => plan.replicas = value as usize,
            "--twins" => plan.twins = value as usize,
            "--views" => plan.views = value as usize,
            "--phases" => plan.phases = value as usize,
            "--sample" => sample = Some(value),
            "--run" => one = Some(value),
            _ => return Err(USAGE.into()),
        }
    }
    plan.check()?;
    let schedule = |number: u64| -> Schedule {
        match sample {
            Some(_) => plan.sample(number),
            None => plan.schedule(number),
        }
    };
    if let Some(number) = one {
        let schedule = schedule(number);
        println!("{schedule}");
        let ran = schedule.run().map_err(|failure| failure.to_string())?;
        println!("{:?} was reached while the cuts stood", ran.last_view);
        return Ok(());
    }
    let count = sample.unwrap_or(plan.count());
    if count > MOST {
        return Err(format!("{count} schedules: use --sample"));
    }
    let style = ProgressStyle::with_template("[{elapsed_precise}] {wide_bar} {pos}/{len}");
    let bar = ProgressBar::new(count).with_style(style.map_err(|e| e.to_string())?);
    let started = Instant::now();
    // In how many of them a correct replica was in the last view that has cuts.
    let reached = AtomicU64::new(0);
    let failure = runs::quietly(|| {
        let run = |number| {
            let ran = schedule(number).run()?;
            let is_last = ran.last_view.0 + 1 >= plan.views as u64;
            reached.fetch_add(u64::from(is_last), Ordering::Relaxed);
            Ok(())
        };
        runs::first_failure(0..count, runs::threads(), run, |_| bar.inc(1))
    });
    bar.finish_and_clear();
    let seconds = started.elapsed().as_secs_f64();
    match failure {
        None => {
            println!(
                "{count} of {} schedules in {seconds:.1} s, the last view in {} of them while it was cut: {plan:?}",
                plan.count(),
                reached.into_inner()
            );
            Ok(())
        }
        Some((number, failure)) => Err(format!(
            "schedule {number}: {}\n{failure}",
            schedule(number)
        )),
    }
}
