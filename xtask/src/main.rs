//! What continuous integration and people run: `cargo xtask ci`, `cargo xtask sim --seeds 0..2000`.

mod chaos;
mod ci;
mod deny;
mod figures;
mod fuzz;
mod model;
mod mutants;
mod packages;
mod runs;
mod sim;
mod tests;
mod tools;
mod twins;
mod up;

use std::process::ExitCode;

#[cfg(feature = "remember")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "\
cargo xtask up [OPTIONS]                       sets up and runs a local group; options of `quorate up`
cargo xtask ci                                 everything that must hold before a change goes in
cargo xtask check                              formatting, lints and the purity of the cores alone
cargo xtask tools                              installs the test programs of others under target/tools
cargo xtask deny                               licenses, sources and duplicates of all dependencies
cargo xtask fuzz [--mutations N] [TARGET]...   the fuzz targets' corpus and mutations of it, without a fuzzer
cargo xtask sim --seeds A..B [--threads N]     runs seeds; stops at the first failure
cargo xtask sim --seed N [--trace]             runs one seed, printing each event
    --guests                                   the same seeds with an owner and guests, who are taken back
cargo xtask twins [--sample N]                 runs schedules in which replicas run twice; --help for all
cargo xtask model [--quick] [--only NAME]      explores the agreement core exhaustively; --help for all
cargo xtask mutants [--seeds N] [--only NAME]  sees that known bugs, put into the code, are found; --json, --quick
cargo xtask chaos [--seed N] [--minutes M]     torments real groups and checks what clients see; --help, --release
cargo xtask chaos check FILE                   checks a history that was kept
cargo xtask figures [--rounds N] [--json FILE] measures a mount beside a plain passthrough, on a quiet machine";

/// Builds this program once more, as a laboratory: with defects that can be switched on, and signatures that are remembered; and
/// runs one of its commands there.
fn again(command: &str, args: &[String]) -> Result<(), String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let status = std::process::Command::new(cargo)
        .args(["run", "--quiet", "--package", "xtask"])
        .args(["--features", "mutants,remember", "--", command])
        .args(args)
        .status()
        .map_err(|e| format!("can't run cargo: {e}"))?;
    status.success().then_some(()).ok_or("see above".into())
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.first().map(String::as_str) {
        Some("up") => up::run(&args[1..]),
        Some("tools") => tools::all(),
        Some("deny") => deny::main(),
        Some("fuzz") => fuzz::replay(&args[1..]),
        Some("ci") => ci::ci(),
        Some("check") => ci::check(),
        Some("chaos") => chaos::run(&args[1..]),
        Some("figures") => figures::main(&args[1..]),
        Some("sim") => sim::main(&args[1..]),
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
