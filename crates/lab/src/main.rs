//! The laboratory: runs the simulator and the model many times. `cargo xtask` builds it, with defects that can be switched on and
//! signatures that are remembered, and runs its commands: a program of its own, so that who only wants a group need not build simulators.

mod model;
#[cfg(feature = "mutants")]
mod mutants;
mod recoveries;
mod runs;
mod sim;
#[cfg(feature = "mutants")]
mod suites;
mod twins;

use std::process::ExitCode;

#[cfg(feature = "remember")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// As it is started.
const USAGE: &str = "\
cargo xtask sim --seeds A..B [--threads N]     runs seeds; stops at the first failure
cargo xtask sim --seed N [--trace]             runs one seed, printing each event
    --by-round                                 calm groups of four instead, in which one replica is faulty by round
    --guests                                   the same seeds with an owner and guests, who are taken back
    --memory                                   the same seeds with clients that flood: replicas' memory stays bounded
    --keep-going                               tells of all failures
cargo xtask recoveries --seeds A..B            an intruder, or all replicas recover in turn; --help for all
cargo xtask twins [--sample N]                 runs schedules in which replicas run twice; --help for all
cargo xtask model [--quick] [--only NAME]      explores the agreement core exhaustively; --help for all
cargo xtask mutants [--seeds N] [--only NAME]  sees that known bugs, put into the code, are found; --json, --quick, --rules, --execution, --credentials";

/// There is nothing to be switched on in this build.
#[cfg(not(feature = "mutants"))]
mod mutants {
    pub fn main(_: &[String]) -> Result<(), String> {
        Err("this was built without the defects: run it as `cargo xtask mutants`".into())
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.first().map(String::as_str) {
        Some("sim") => sim::main(&args[1..]),
        Some("recoveries") => recoveries::main(&args[1..]),
        Some("twins") => twins::main(&args[1..]),
        Some("model") => model::main(&args[1..]),
        Some("mutants") => mutants::main(&args[1..]),
        _ => Err(USAGE.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
