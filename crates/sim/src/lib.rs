//! A simulator of a whole group: the real replica and the real client in virtual time, over a network and disks that
//! do all that real ones may do, with up to f replicas that do whatever they like.
//!
//! [`run`] lets a seed draw everything ([`knobs`]), lets a storm blow, ends it, and expects that all comes to rest; the
//! [`checks`] look at every step. One seed gives one run, event for event. `cargo xtask sim` runs many.
//!
//! Scripted scenarios use [`World`] by hand; see [`scenarios`]. The manual is `docs/simulator.md`.

extern crate alloc;

pub mod checks;
pub mod client;
pub mod dice;
pub mod disk;
pub mod histories;
pub mod history;
pub mod intrusion;
mod keys;
pub mod knobs;
pub mod net;
pub mod rota;
pub mod rounds;
pub mod scenarios;
pub mod server;
pub mod service;
pub mod sharing;
pub mod trace;
pub mod twins;
pub mod workload;
mod world;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use checks::Failure;
pub use knobs::Knobs;
use trace::{Lines, Sink};
pub use world::{Stats, World};

/// How to run a seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Print one line for each event.
    pub trace: bool,
    /// In place of all that a seed draws else: a group to which nothing happens but that one replica is faulty by round
    /// ([`rounds::process`]).
    pub by_round: bool,
    /// Whatever the seed says of the service and of clients: files, their owner, and guests.
    pub guests: bool,
    /// Beside that, clients that flood; and after each step it is looked what replicas have in memory.
    pub memory: bool,
}

/// How a run went.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// How the seed was run.
    pub options: Options,
    /// What it cost, or what did not hold.
    pub result: Result<Stats, Failure>,
    /// When it ended, in microseconds of virtual time.
    pub time_us: u64,
    /// Stands for all that happened: equal runs have equal values.
    pub trace_hash: u64,
    /// What the seed drew.
    pub knobs: Knobs,
    /// The last events before a failure.
    pub last: Vec<String>,
}

impl Report {
    /// Stands for the run beside others, in whatever order they are added up.
    pub fn digest(&self) -> u64 {
        rounds::mix(self.trace_hash ^ rounds::mix(self.seed))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seed = self.seed;
        match &self.result {
            Ok(stats) => write!(f, "seed {seed}: {stats:?}"),
            Err(failure) => {
                for line in &self.last {
                    writeln!(f, "{line}")?;
                }
                writeln!(f, "{:#?}", self.knobs)?;
                let ms = self.time_us as f64 / 1000.0;
                writeln!(f, "seed {seed} fails at {ms} ms. {failure}")?;
                let given = [
                    (self.options.by_round, " --by-round"),
                    (self.options.guests, " --guests"),
                    (self.options.memory, " --memory"),
                ];
                let given = given.iter().filter(|(is_given, _)| *is_given);
                let given: String = given.map(|(_, option)| *option).collect();
                write!(f, "Replay: cargo xtask sim --seed {seed}{given} --trace")
            }
        }
    }
}

/// Runs a seed. A failure comes with the last events before it: the run is repeated for them.
pub fn run(seed: u64, options: Options) -> Report {
    if options.trace {
        return attempt(seed, options, Sink::Print);
    }
    let report = attempt(seed, options, Sink::None);
    if report.result.is_ok() {
        return report;
    }
    let lines = Lines::default();
    let mut report = attempt(seed, options, Sink::Last(lines.clone()));
    report.last = lines.borrow().iter().cloned().collect();
    report
}

fn attempt(seed: u64, options: Options, sink: Sink) -> Report {
    let mut knobs = match options.by_round {
        true => Knobs::by_round(seed),
        false => Knobs::draw(seed),
    };
    if options.guests {
        knobs = knobs.with_guests();
    }
    if options.memory {
        knobs = knobs.with_floods(seed);
    }
    let mut world = World::new(seed, knobs.clone(), sink);
    let result = catch_unwind(AssertUnwindSafe(|| {
        world.begin_storm();
        world.run_for(knobs.storm / 1000)?;
        world.finish()
    }));
    let result = result.unwrap_or_else(|panic| Err(Failure::panicked(&*panic)));
    Report {
        seed,
        options,
        result,
        time_us: world.now_ms() * 1000,
        trace_hash: world.trace_hash(),
        knobs,
        last: Vec::new(),
    }
}
