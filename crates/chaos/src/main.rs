//! `quorate-chaos`; people run it as `cargo xtask chaos`.
#![allow(
    clippy::disallowed_methods,
    reason = "a run without a seed takes one from the clock"
)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use quorate_chaos::knobs::Wanted;
use quorate_chaos::report::Round;
use quorate_chaos::{Failure, Report, Schedule, Settings, check, hand, picture, run};

/// Runs groups of real processes under faults, and checks what their clients see.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask chaos", max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Run),
    Check(Check),
    /// Work on a mount; the harness starts it.
    #[command(hide = true)]
    Hand,
}

/// Run groups, round after round, until something is wrong or the time is over.
#[derive(Debug, clap::Args)]
struct Run {
    /// The command `quorate`.
    #[arg(long, value_name = "FILE")]
    quorate: PathBuf,
    /// Everything is drawn from it [default: from the clock; it is printed].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How long to go on; the last round is finished.
    #[arg(long, value_name = "M", default_value_t = 5.0)]
    minutes: f64,
    /// How many rounds there are at most.
    #[arg(long, value_name = "N")]
    rounds: Option<u64>,
    /// How long the faults of a round go on.
    #[arg(long, value_name = "S", default_value_t = 40.0)]
    round_seconds: f64,
    /// How many rounds a group has before another one takes its place.
    #[arg(long, value_name = "N", default_value_t = 4)]
    rounds_per_group: u64,
    /// How long the group may take to answer, and to agree, when all is healed.
    #[arg(long, value_name = "S", default_value_t = 90.0)]
    patience_seconds: f64,
    /// Do without mounts.
    #[arg(long)]
    no_mounts: bool,
    /// So many mounts for each group [default: up to 2, drawn].
    #[arg(long, value_name = "N", conflicts_with = "no_mounts",
          value_parser = clap::value_parser!(u8).range(..=8))]
    mounts: Option<u8>,
    /// So many replicas in each group [default: 4 or 7, drawn].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(4..=16))]
    replicas: Option<u8>,
    /// Use the schedule in this file for all rounds.
    #[arg(long, value_name = "FILE")]
    schedule: Option<PathBuf>,
    /// Where the report and a picture of the last round go; and, if something is wrong, the history, the schedule and all
    /// logs [default: a directory for temporary files, and only if something is wrong].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

/// Check a history that a run has kept.
#[derive(Debug, clap::Args)]
struct Check {
    /// The file `history.json`.
    #[arg(value_name = "FILE")]
    history: PathBuf,
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Run(args) => chaos(&args),
        Command::Check(args) => check_again(&args),
        Command::Hand => hand::serve(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn chaos(args: &Run) -> Result<()> {
    let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let seed = args.seed.unwrap_or(clock.as_secs());
    let place = match &args.out {
        Some(out) => {
            std::fs::create_dir_all(out)?;
            tempfile::Builder::new().prefix("run-").tempdir_in(out)?
        }
        None => tempfile::Builder::new()
            .prefix("quorate-chaos-")
            .tempdir()?,
    };
    let settings = Settings {
        quorate: args.quorate.clone(),
        directory: place.path().into(),
        seed,
        duration: Duration::from_secs_f64(args.minutes * 60.0),
        rounds: args.rounds,
        round: Duration::from_secs_f64(args.round_seconds),
        rounds_per_group: args.rounds_per_group,
        patience: Duration::from_secs_f64(args.patience_seconds),
        mounts: !args.no_mounts,
        hand: vec![std::env::current_exe()?.into(), "hand".into()],
        ends_at_interrupt: true,
        schedule: args.schedule.as_deref().map(load).transpose()?,
        knobs: None,
        wanted: Wanted {
            replicas: args.replicas,
            mounts: args.mounts,
        },
    };
    eprintln!("seed {seed}");
    match run::run(&settings, &|line| eprintln!("{line}")) {
        Ok(report) => {
            if let (Some(out), Some(last)) = (&args.out, report.rounds.last()) {
                std::fs::write(out.join("round.svg"), picture::draw(last))?;
                std::fs::write(out.join("report.json"), serde_json::to_vec_pretty(&report)?)?;
            }
            print(&report, args.json)
        }
        Err(failure) => {
            let place = place.keep();
            keep(&failure, &place)?;
            let Failure {
                error, seed, round, ..
            } = *failure;
            Err(error.context(format!(
                "seed {seed}, round {round}: all that is known is in {}; the same schedules again: cargo xtask chaos --seed {seed} --rounds {}, and the options of this run",
                place.display(),
                round + 1
            )))
        }
    }
}

fn print(report: &Report, json: bool) -> Result<()> {
    match json {
        true => println!("{}", serde_json::to_string(report)?),
        false => println!("{report}"),
    }
    Ok(())
}

/// Puts what is known of a failure beside the logs.
fn keep(failure: &Failure, place: &Path) -> Result<()> {
    let write = |name: &str, content: Vec<u8>| {
        let path = place.join(name);
        std::fs::write(&path, content).with_context(|| format!("can't write {}", path.display()))
    };
    write("history.json", serde_json::to_vec(&failure.history)?)?;
    write(
        "schedule.json",
        serde_json::to_vec_pretty(&failure.schedule)?,
    )?;
    write("failure.txt", format!("{:#}\n", failure.error).into_bytes())?;
    let round = Round {
        seed: failure.seed,
        schedule: failure.schedule.clone(),
        ..Round::measure(&failure.history)
    };
    write("round.svg", picture::draw(&round).into_bytes())
}

fn load(path: &Path) -> Result<Schedule> {
    let text = std::fs::read(path).with_context(|| format!("can't read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is no schedule", path.display()))
}

fn check_again(args: &Check) -> Result<()> {
    let text = std::fs::read(&args.history);
    let text = text.with_context(|| format!("can't read {}", args.history.display()))?;
    let history: Vec<_> = serde_json::from_slice(&text).context("that is no history")?;
    let undecided = run::check(&history)?;
    println!(
        "{} operations are linearizable; {undecided} of {} objects are undecided",
        history.len(),
        check::check(&history, check::BUDGET).len()
    );
    Ok(())
}
