//! The hunt for one mutant after the other.

use std::panic::catch_unwind;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use quorate_sim::intrusion::intrude;
use quorate_sim::twins::Plan;
use quorate_sim::{Failure, Options, histories, scenarios};
use quorate_wire::mutants::{Hunt, Mutant, switch};

use crate::runs;
use crate::suites::{self, Built};

/// Seeds of each mutant, unless told otherwise.
const SEEDS: u64 = 1_000;

/// Each is some forty seconds of a group's life, with several intrusions.
const INTRUSIONS: u64 = 100;

/// The twins' schedules that are sampled.
const TWINS: Plan = Plan {
    replicas: 4,
    twins: 1,
    views: 3,
    phases: 3,
};

/// Found in the first seeds when this was written, one of each kind of check: what continuous integration has time for.
const QUICK: &[&str] = &[
    "certificates-ignored",
    "log-lost",
    "executed-falls",
    "client-starts-at-zero",
    "reply-cache-skipped",
    "one-hint-suffices",
    "window-unchecked",
    "prepared-forgotten",
    "view-never-learnt",
    "one-bad-taints",
];

struct Arguments {
    seeds: u64,
    only: Option<String>,
    /// Only this hunter.
    by: Option<String>,
    /// One seed, to be looked at.
    replay: Option<u64>,
    trace: bool,
    json: bool,
    quick: bool,
    /// Only what tests of crates look for, of this kind.
    tests: Option<Hunt>,
    threads: usize,
}

type Run<'a> = Box<dyn Fn(u64) -> Result<(), Failure> + Sync + 'a>;

/// One way to find a defect.
struct Hunter<'a> {
    name: &'static str,
    /// How many runs there are, at most.
    runs: u64,
    run: Run<'a>,
}

/// The tests that look for defects of each kind.
type Tests = Vec<(Hunt, Vec<Built>)>;

/// How a mutant was found.
struct Catch {
    hunter: &'static str,
    run: u64,
    failure: Failure,
    /// What the same run came to with no mutant in the code. Where that is a failure as well, it is no catch.
    without: Result<(), Failure>,
}

/// The mutants that were not found.
#[derive(Default)]
struct Missed {
    survivors: Vec<&'static str>,
    /// Where what was to find one fails without it: that, and which one was hunted.
    broken: Vec<String>,
}

impl Missed {
    fn told(self) -> Result<(), String> {
        let mut said = self.broken;
        if !self.survivors.is_empty() {
            said.push(format!(
                "survived: {}. The suite has a hole: mend it",
                self.survivors.join(", ")
            ));
        }
        match said.is_empty() {
            true => Ok(()),
            false => Err(said.join("\n")),
        }
    }
}

fn parse(args: &[String]) -> Result<Arguments, String> {
    let mut out = Arguments {
        seeds: SEEDS,
        only: None,
        by: None,
        replay: None,
        trace: false,
        json: false,
        quick: false,
        tests: None,
        threads: runs::threads(),
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        let number = |text: &String| text.parse::<u64>().map_err(|e| format!("{text:?}: {e}"));
        match arg.as_str() {
            "--seeds" => out.seeds = number(value()?)?,
            "--threads" => out.threads = number(value()?)?.max(1) as usize,
            "--only" => out.only = Some(value()?.clone()),
            "--replay" => out.replay = Some(number(value()?)?),
            "--trace" => out.trace = true,
            "--by" => out.by = Some(value()?.clone()),
            "--json" => out.json = true,
            "--quick" => out.quick = true,
            "--rules" => out.tests = Some(Hunt::Rules),
            "--execution" => out.tests = Some(Hunt::Execution),
            "--credentials" => out.tests = Some(Hunt::Credentials),
            other => {
                return Err(format!(
                    "{other} is not an option of mutants\n{}",
                    crate::USAGE
                ));
            }
        }
    }
    Ok(out)
}

fn hunters<'a>(args: &Arguments, mutant: Mutant, tests: &'a Tests) -> Vec<Hunter<'a>> {
    if mutant.hunt() != Hunt::Group {
        let of_it = tests.iter().filter(|(hunt, _)| *hunt == mutant.hunt());
        let all: Vec<&Built> = of_it.flat_map(|(_, built)| built).collect();
        return vec![Hunter {
            name: "test",
            runs: all.len() as u64,
            run: Box::new(move |number| all[number as usize].run(Some(mutant))),
        }];
    }
    vec![
        Hunter {
            name: "seed",
            runs: args.seeds,
            run: Box::new(|seed| quorate_sim::run(seed, Options::default()).result.map(drop)),
        },
        Hunter {
            name: "history",
            runs: 100 * args.seeds,
            run: Box::new(histories::run),
        },
        Hunter {
            name: "twins",
            runs: args.seeds,
            run: Box::new(|seed| TWINS.sample(seed).run().map(drop)),
        },
        Hunter {
            name: "scenario",
            runs: scenarios::ALL.len() as u64,
            run: Box::new(scenario),
        },
        Hunter {
            name: "intrusion",
            runs: args.seeds.min(INTRUSIONS),
            run: Box::new(|seed| intrude(seed, 0).result.map(drop)),
        },
        Hunter {
            name: "byround",
            runs: args.seeds,
            run: Box::new(|seed| {
                let options = Options {
                    by_round: true,
                    ..Options::default()
                };
                quorate_sim::run(seed, options).result.map(drop)
            }),
        },
    ]
}

fn scenario(number: u64) -> Result<(), Failure> {
    let scenario = &scenarios::ALL[number as usize];
    let result = catch_unwind(scenario.run);
    let result = result.unwrap_or_else(|panic| Err(Failure::panicked(&*panic)));
    result.map_err(|f| Failure::new(f.property, format!("{}: {}", scenario.name, f.what)))
}

pub fn main(args: &[String]) -> Result<(), String> {
    let args = parse(args)?;
    let wanted = |m: &&Mutant| match &args.only {
        Some(name) => m.name() == name,
        None if args.tests.is_some() => args.tests == Some(m.hunt()),
        None => !args.quick || QUICK.contains(&m.name()),
    };
    let mutants: Vec<Mutant> = Mutant::ALL.iter().filter(wanted).copied().collect();
    if mutants.is_empty() {
        let names: Vec<&str> = Mutant::ALL.iter().map(|m| m.name()).collect();
        return Err(format!("no such mutant; there are {}", names.join(", ")));
    }
    if let Some(seed) = args.replay {
        let trace = args.trace;
        switch(mutants.first().copied());
        let report = quorate_sim::run(
            seed,
            Options {
                trace,
                ..Options::default()
            },
        );
        return match report.result {
            Ok(_) => {
                println!("{report}");
                Ok(())
            }
            Err(_) => Err(report.to_string()),
        };
    }
    let kinds = [Hunt::Rules, Hunt::Execution, Hunt::Credentials].into_iter();
    let kinds = kinds.filter(|kind| mutants.iter().any(|m| m.hunt() == *kind));
    let tests = kinds.map(|kind| Ok((kind, suites::build(kind)?)));
    let tests = tests.collect::<Result<Tests, String>>()?;
    runs::quietly(|| hunt_all(&mutants, &args, &tests))?.told()
}

/// Gives those that were not found.
#[allow(clippy::disallowed_methods)] // For people, who want to know what takes long.
fn hunt_all(mutants: &[Mutant], args: &Arguments, tests: &Tests) -> Result<Missed, String> {
    let style = ProgressStyle::with_template("[{elapsed_precise}] {pos}/{len} {msg}");
    let bar = ProgressBar::new(mutants.len() as u64).with_style(style.map_err(|e| e.to_string())?);
    let mut missed = Missed::default();
    if !args.json {
        println!("| mutant | bug | source | found by | run | what did not hold | s |");
        println!("|---|---|---|---|---|---|---|");
    }
    for &mutant in mutants {
        bar.set_message(mutant.name());
        let started = Instant::now();
        let hunters = hunters(args, mutant, tests);
        let wanted = |h: &&Hunter| args.by.as_deref().is_none_or(|by| by == h.name);
        let found = hunters.iter().filter(wanted).find_map(|hunter| {
            // Tests of a crate use all cores by themselves, and those that come first are the quick ones.
            let threads = match mutant.hunt() {
                Hunt::Group => args.threads,
                Hunt::Rules | Hunt::Execution | Hunt::Credentials => 1,
            };
            hunt(hunter, threads, &bar, mutant)
        });
        let seconds = started.elapsed().as_secs_f64();
        bar.suspend(|| report(mutant, found.as_ref(), seconds, args.json));
        match &found {
            None => missed.survivors.push(mutant.name()),
            Some(found) => missed.broken.extend(found.broken(mutant)),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(missed)
}

/// Runs with a mutant until one fails; gives the first that does, after the same without.
fn hunt(hunter: &Hunter<'_>, threads: usize, bar: &ProgressBar, mutant: Mutant) -> Option<Catch> {
    let begun = |run| bar.set_message(format!("{}: {} {run}", mutant.name(), hunter.name));
    switch(Some(mutant));
    let first = runs::first_failure(0..hunter.runs, threads, &hunter.run, begun);
    switch(None);
    let (run, failure) = first?;
    let without = match mutant.hunt() {
        Hunt::Group => (hunter.run)(run),
        // These have been run without any when they were built.
        Hunt::Rules | Hunt::Execution | Hunt::Credentials => Ok(()),
    };
    let hunter = hunter.name;
    Some(Catch {
        hunter,
        run,
        failure,
        without,
    })
}

impl Catch {
    /// What to say where it is none.
    fn broken(&self, mutant: Mutant) -> Option<String> {
        let failure = self.without.as_ref().err()?;
        let (hunter, run, mutant) = (self.hunter, self.run, mutant.name());
        Some(format!(
            "{hunter} {run}, which fails with {mutant} in the code, fails without a bug in it as well: {failure}"
        ))
    }
}

fn report(mutant: Mutant, found: Option<&Catch>, seconds: f64, json: bool) {
    let what = found.map(|f| f.failure.to_string().replace('|', "/"));
    let what = what
        .as_deref()
        .and_then(|w| w.lines().next())
        .unwrap_or("nothing");
    let what: String = what.chars().take(90).collect();
    let hunter = match found {
        None => "SURVIVED",
        Some(found) if found.without.is_err() => "NO CATCH",
        Some(found) => found.hunter,
    };
    if json {
        let line = serde_json::json!({
            "mutant": mutant.name(),
            "bug": mutant.bug(),
            "source": mutant.source(),
            "caught_by": found.filter(|f| f.without.is_ok()).map(|f| f.hunter),
            "fails_without_it": found.is_some_and(|f| f.without.is_err()),
            "run": found.map(|f| f.run),
            "what": found.map(|_| what),
            "seconds": seconds,
        });
        return println!("{line}");
    }
    let run = found.map_or("-".into(), |f| f.run.to_string());
    let (name, bug, source) = (mutant.name(), mutant.bug(), mutant.source());
    let source = if source.is_empty() { "own" } else { source };
    println!("| {name} | {bug} | {source} | {hunter} | {run} | {what} | {seconds:.1} |");
}
