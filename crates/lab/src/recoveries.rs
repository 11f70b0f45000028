//! `cargo xtask recoveries`: replicas that recover, all the time, over many seeds.

use std::sync::Mutex;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use quorate_sim::intrusion::intrude_in;
use quorate_sim::rota::recover_in_turn_in;
use quorate_sim::trace::Sink;
use quorate_sim::{Failure, Stats};

use crate::runs;

const USAGE: &str = "\
cargo xtask recoveries --seeds A..B [--in-turn HOURS | --more N] [--threads N]
cargo xtask recoveries --seed N [--in-turn HOURS | --more N]
    an intruder has f replicas in each window of vulnerability, one set after the other, and keeps their keys: nothing may
    break. With --more 1 it has one more, and what breaks is counted. With --in-turn nobody intrudes, and all replicas
    recover one after the other for so many hours of virtual time. With --seed one run, printing each event";

/// What runs came to.
#[derive(Debug, Default)]
struct Sum {
    begun: u64,
    recoveries: u64,
    taken_back: u64,
    operations: u64,
    events: u64,
    time_us: u64,
    broken: u64,
}

impl Sum {
    fn add(&mut self, (result, begun): &Run) {
        self.begun += begun;
        match result {
            Ok(stats) => {
                self.recoveries += stats.recoveries;
                self.taken_back += stats.taken_back;
                self.operations += stats.operations;
                self.events += stats.events;
                self.time_us += stats.time_us;
            }
            Err(_) => self.broken += 1,
        }
    }
}

/// What a run came to, and how many replicas were had or had their turn in it.
type Run = (Result<Stats, Failure>, u64);

/// Runs them; the first that breaks ends it, unless the intruder has too many.
#[allow(clippy::disallowed_methods)] // For people, who want to know what takes long.
pub fn main(args: &[String]) -> Result<(), String> {
    let (mut seeds, mut seed, mut more, mut hours) = (None, None, 0, None);
    let mut threads = runs::threads();
    let mut args = args.iter();
    while let Some(name) = args.next() {
        let value = args.next().ok_or(USAGE)?;
        let number = |text: &str| text.parse::<u64>().map_err(|_| USAGE);
        match name.as_str() {
            "--seeds" => {
                let (from, to) = value.split_once("..").ok_or(USAGE)?;
                seeds = Some(number(from)?..number(to)?);
            }
            "--seed" => seed = Some(number(value)?),
            "--in-turn" => hours = Some(number(value)?),
            "--more" => more = number(value)? as usize,
            "--threads" => threads = number(value)? as usize,
            _ => return Err(USAGE.into()),
        }
    }
    let one = |seed, sink| -> Run {
        match hours {
            None => {
                let run = intrude_in(seed, more, sink);
                (run.result, run.seizures)
            }
            Some(hours) => {
                let run = recover_in_turn_in(seed, hours * 3600, sink);
                (run.result, run.turns)
            }
        }
    };
    if let Some(seed) = seed {
        let (result, begun) = one(seed, Sink::Print);
        println!("{begun} recoveries were begun");
        return result.map(|_| ()).map_err(|failure| failure.to_string());
    }
    let seeds = seeds.ok_or(USAGE)?;
    let count = seeds.end.saturating_sub(seeds.start);
    let style = ProgressStyle::with_template("[{elapsed_precise}] {wide_bar} {pos}/{len}");
    let bar = ProgressBar::new(count).with_style(style.map_err(|e| e.to_string())?);
    let started = Instant::now();
    let sum: Mutex<Sum> = Mutex::default();
    let failure = runs::quietly(|| {
        let run = |seed| {
            let run = one(seed, Sink::None);
            sum.lock().expect("no panics here").add(&run);
            match run.0 {
                Err(failure) if more == 0 => Err(failure),
                _ => Ok(()),
            }
        };
        runs::first_failure(seeds, threads, run, |_| bar.inc(1))
    });
    bar.finish_and_clear();
    let seconds = started.elapsed().as_secs_f64();
    let sum = sum.into_inner().expect("no panics here");
    if let Some((seed, failure)) = failure {
        return Err(format!(
            "{failure}\nReplay: cargo xtask recoveries --seed {seed}{}",
            hours.map_or(String::new(), |h| format!(" --in-turn {h}"))
        ));
    }
    println!(
        "{count} seeds in {seconds:.1} s: {} recoveries were begun, {} ended, {} came to nothing, {} operations, {} events, {:.0} s of virtual time, {} runs broke",
        sum.begun,
        sum.recoveries,
        sum.taken_back,
        sum.operations,
        sum.events,
        sum.time_us as f64 / 1e6,
        sum.broken,
    );
    Ok(())
}
