//! Runs seeds of the simulator on all cores.

use std::io::{IsTerminal as _, Write as _};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quorate_sim::{Options, Report, Stats};

#[derive(Debug, Default)]
struct Arguments {
    seeds: Option<Range<u64>>,
    seed: Option<u64>,
    threads: Option<usize>,
    trace: bool,
    by_round: bool,
    guests: bool,
    memory: bool,
    keep_going: bool,
}

fn parse(args: &[String]) -> Result<Arguments, String> {
    let mut out = Arguments::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--seeds" => {
                let text = value()?;
                let (from, to) = text.split_once("..").ok_or("--seeds A..B")?;
                out.seeds = Some(number(from)?..number(to)?);
            }
            "--seed" => out.seed = Some(number(value()?)?),
            "--threads" => out.threads = Some(number(value()?)? as usize),
            "--trace" => out.trace = true,
            "--by-round" => out.by_round = true,
            "--guests" => out.guests = true,
            "--memory" => out.memory = true,
            "--keep-going" => out.keep_going = true,
            other => return Err(format!("{other} is not an option of sim\n{}", crate::USAGE)),
        }
    }
    Ok(out)
}

fn number(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is not a number"))
}

/// `cargo xtask sim`.
pub fn main(args: &[String]) -> Result<(), String> {
    let args = parse(args)?;
    let options = Options {
        trace: args.trace,
        by_round: args.by_round,
        guests: args.guests,
        memory: args.memory,
    };
    if let Some(seed) = args.seed {
        let report = quorate_sim::run(seed, options);
        return match report.result {
            Ok(_) => {
                println!("{report}");
                Ok(())
            }
            Err(_) => Err(report.to_string()),
        };
    }
    let seeds = args.seeds.ok_or(crate::USAGE)?;
    let threads = args
        .threads
        .unwrap_or_else(|| thread::available_parallelism().map_or(1, |n| n.get()));
    let one = Options {
        trace: false,
        ..options
    };
    many(seeds, threads, args.keep_going, one)
}

/// Runs seeds until one fails.
#[allow(clippy::disallowed_methods)] // Only for the progress line.
pub fn many(
    seeds: Range<u64>,
    threads: usize,
    keep_going: bool,
    options: Options,
) -> Result<(), String> {
    let started = Instant::now();
    let next = AtomicU64::new(seeds.start);
    let done = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let total: Mutex<Stats> = Mutex::default();
    let digest = AtomicU64::new(0);
    let failures: Mutex<Vec<Report>> = Mutex::default();
    // A failing run says all that there is to say itself.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let report = quorate_sim::run(seed, options);
                    done.fetch_add(1, Ordering::Relaxed);
                    digest.fetch_add(report.digest(), Ordering::Relaxed);
                    match &report.result {
                        Ok(stats) => add(&mut total.lock().expect("no panics here"), stats),
                        Err(_) => {
                            stop.store(!keep_going, Ordering::Relaxed);
                            failures.lock().expect("no panics here").push(report);
                        }
                    }
                }
            });
        }
        let count = seeds.end - seeds.start;
        // In a log it would be one long line.
        let shown = std::io::stderr().is_terminal();
        while !stop.load(Ordering::Relaxed) && done.load(Ordering::Relaxed) < count {
            thread::sleep(Duration::from_millis(200));
            if shown {
                eprint!("\r{} of {count} seeds", done.load(Ordering::Relaxed));
                let _ = std::io::stderr().flush();
            }
        }
        if shown {
            eprintln!();
        }
    });
    std::panic::set_hook(hook);
    let mut failures = failures.into_inner().expect("no panics here");
    failures.sort_by_key(|r| r.seed);
    let total = total.into_inner().expect("no panics here");
    println!(
        "{} seeds in {:.1} s: {} operations at {} places ({} whose results were gone), {} crashes, {} state transfers, {} recoveries ({} pieces of state right, {} not), {} proofs of contradictions, {} operations run by workers, {:.0} s of virtual time, {} events, digest {:016x}",
        done.load(Ordering::Relaxed),
        started.elapsed().as_secs_f64(),
        total.operations,
        total.places,
        total.gone,
        total.crashes,
        total.transfers,
        total.recoveries,
        total.checked,
        total.differing,
        total.evidence,
        total.jobs,
        total.time_us as f64 / 1e6,
        total.events,
        digest.into_inner(),
    );
    for report in &failures {
        if let (true, Err(failure)) = (keep_going, &report.result) {
            let line = failure.to_string();
            println!(
                "seed {}: {}",
                report.seed,
                line.lines().next().unwrap_or("")
            );
        }
    }
    if options.guests {
        let all = &total.shares;
        println!(
            "{} operations of guests succeeded; taken back: {} times by serial, {} by key, {} by epoch; {} of that ended",
            all.uses, all.serials, all.keys, all.epochs, all.given_back
        );
    }
    match failures.first() {
        None => Ok(()),
        Some(first) => Err(first.to_string()),
    }
}

fn add(total: &mut Stats, one: &Stats) {
    total.events += one.events;
    total.places += one.places;
    total.operations += one.operations;
    total.gone += one.gone;
    total.crashes += one.crashes;
    total.transfers += one.transfers;
    total.recoveries += one.recoveries;
    total.checked += one.checked;
    total.differing += one.differing;
    total.evidence += one.evidence;
    total.jobs += one.jobs;
    total.shares.add(&one.shares);
    total.time_us += one.time_us;
    total.view = total.view.max(one.view);
}
