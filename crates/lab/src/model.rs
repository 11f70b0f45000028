//! `cargo xtask model`: explores the agreement core exhaustively.

use quorate_model::scenario;
use quorate_model::{Counts, Options, Scenario, Violation, explore};

use crate::runs;

const USAGE: &str = "\
cargo xtask model [--quick] [--only NAME] [--most N] [--mutants]
    explores each scenario whole, those that continuous integration has time for with --quick, one with --only, N states of each
    at most with --most, else 2,000,000 and fails where there are more; the one whose search has come to no end yet is left out
    unless --only names it; with --mutants sees that known bugs, put into the code, are found; see docs/model.md";

/// States of a scenario at most where nothing else is said. The largest of those that come to their end has half as many; the one that does not has had
/// 5 GiB with 1.5 million.
const MOST: usize = 2_000_000;

struct Arguments {
    quick: bool,
    only: Option<String>,
    /// What is said; a search that it cuts short is no failure.
    most: Option<usize>,
    mutants: bool,
}

impl Arguments {
    fn options(&self) -> Options {
        Options {
            most: self.most.unwrap_or(MOST),
            ..Options::default()
        }
    }
}

fn parse(args: &[String]) -> Result<Arguments, String> {
    let mut out = Arguments {
        quick: false,
        only: None,
        most: None,
        mutants: false,
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--quick" => out.quick = true,
            "--only" => out.only = Some(args.next().ok_or(USAGE)?.clone()),
            "--most" => {
                let most = args.next().and_then(|n| n.parse().ok());
                out.most = Some(most.ok_or(USAGE)?);
            }
            "--mutants" => out.mutants = true,
            _ => return Err(USAGE.into()),
        }
    }
    Ok(out)
}

/// `cargo xtask model`.
pub fn main(args: &[String]) -> Result<(), String> {
    let parsed = parse(args)?;
    if parsed.mutants {
        return mutants::main(args);
    }
    let wanted = |s: &Scenario| match &parsed.only {
        Some(name) => s.name == name,
        None => !s.open && (!parsed.quick || s.quick),
    };
    let scenarios: Vec<Scenario> = scenario::all().into_iter().filter(wanted).collect();
    if scenarios.is_empty() {
        let names: Vec<&str> = scenario::all().iter().map(|s| s.name).collect();
        return Err(format!("no such scenario; there are {}", names.join(", ")));
    }
    println!(
        "| scenario | what | states | steps | depth | of one replica | words | brought to their end | s | MiB |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let mut cut_short = Vec::new();
    for scenario in &scenarios {
        let (result, seconds) = timed(scenario, parsed.options());
        let counts = result.map_err(|violation| format!("{}: {violation}", scenario.name))?;
        println!("{}", row(scenario, &counts, seconds));
        if !counts.complete && parsed.most.is_none() {
            cut_short.push(scenario.name);
        }
    }
    match cut_short.as_slice() {
        [] => Ok(()),
        all => Err(format!(
            "there are more than {MOST} states, and not all were seen: {}",
            all.join(", ")
        )),
    }
}

/// Explores one, and says how many seconds of a processor it took: what does not depend on who else is at work.
fn timed(scenario: &Scenario, options: Options) -> (Result<Counts, Violation>, f64) {
    let before = processor_seconds();
    let result = runs::quietly(|| explore(scenario, options));
    (result, processor_seconds() - before)
}

fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanoseconds = stat.split(' ').next().and_then(|n| n.parse::<u64>().ok());
    nanoseconds.unwrap_or(0) as f64 / 1e9
}

fn row(scenario: &Scenario, counts: &Counts, seconds: f64) -> String {
    let locals: Vec<String> = counts.locals.iter().map(usize::to_string).collect();
    let more = if counts.complete { "" } else { " of more" };
    format!(
        "| `{}` | {} | {}{more} | {} | {} | {} | {} | {} | {seconds:.1} | {} |",
        scenario.name,
        scenario.what,
        counts.states,
        counts.transitions,
        counts.depth,
        locals.join(", "),
        counts.words,
        counts.live,
        peak_mib(),
    )
}

/// The most memory that this process has had so far.
fn peak_mib() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or("-".into(), |kib| (kib / 1024).to_string())
}

#[cfg(not(feature = "mutants"))]
mod mutants {
    /// There is nothing to be switched on in this build.
    pub fn main(args: &[String]) -> Result<(), String> {
        crate::mutants::main(args)
    }
}

#[cfg(feature = "mutants")]
mod mutants {
    use quorate_model::{Scenario, scenario};
    use quorate_wire::mutants::{Mutant, switch};

    /// Bugs that the model must find, in which scenario, and whether that is quick.
    const FOUND: &[(&str, &str, bool)] = &[
        ("one-hint-suffices", "primary-1", true),
        ("two-votes-in-a-view", "primary-1", true),
        ("authenticity-unchecked", "primary-1", true),
        ("primary-counts-twice", "old-primary-1", true),
        ("prepared-with-2f", "old-primary-1", true),
        ("committed-with-2f", "old-primary-1", true),
        ("certificates-ignored", "old-primary-1", true),
        ("without-a1", "old-primary-1", false),
        ("new-view-unchecked", "new-primary-1", false),
        ("certificates-ignored", "old-primary-2", false),
        ("committed-with-2f", "backup-view-2", false),
        ("new-view-unchecked", "new-primary-2-alone", false),
        ("stable-with-weak", "checkpoint-1", true),
    ];

    pub fn main(args: &[String]) -> Result<(), String> {
        let parsed = super::parse(args)?;
        println!("| mutant | scenario | what did not hold | steps | s |");
        println!("|---|---|---|---|---|");
        let mut missed = Vec::new();
        for (name, scenario, quick) in FOUND {
            let mutant = Mutant::ALL.iter().find(|m| m.name() == *name);
            let all = scenario::all();
            let scenario: &Scenario = all
                .iter()
                .find(|s| s.name == *scenario)
                .ok_or("no such scenario")?;
            let skipped = parsed.only.as_ref().is_some_and(|only| only != name);
            if skipped || (parsed.quick && !quick) {
                continue;
            }
            switch(mutant.copied());
            let (result, seconds) = super::timed(scenario, parsed.options());
            switch(None);
            match result {
                Ok(_) => {
                    println!(
                        "| `{name}` | `{}` | nothing | - | {seconds:.1} |",
                        scenario.name
                    );
                    missed.push(*name);
                }
                Err(violation) => {
                    let what = violation.what.lines().next().unwrap_or("").to_string();
                    let steps = violation.trace.len();
                    let property = violation.property;
                    println!(
                        "| `{name}` | `{}` | {property}: {what} | {steps} | {seconds:.1} |",
                        scenario.name
                    );
                    if parsed.only.is_some() {
                        println!("{violation}");
                    }
                }
            }
        }
        match missed.as_slice() {
            [] => Ok(()),
            missed => Err(format!("not found: {}", missed.join(", "))),
        }
    }
}
