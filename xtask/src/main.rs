//! What continuous integration and people run: `cargo xtask ci`, `cargo xtask sim --seeds 0..2000`.

mod bpf;
mod chaos;
mod ci;
mod deny;
mod elsewhere;
mod figures;
mod fuzz;
mod lab;
mod packages;
mod profile;
mod tests;
mod tools;
mod up;

use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask up [OPTIONS]                       sets up and runs a local group; options of `quorate up`
cargo xtask ci                                 everything that must hold before a change goes in
cargo xtask check                              formatting, lints and the purity of the cores alone
cargo xtask tools                              installs the test programs of others under target/tools
cargo xtask deny                               licenses, sources and duplicates of all dependencies
cargo xtask bpf [--check]                      makes the router's programs for the kernel from their C, or compares
cargo xtask fuzz [--mutations N] [TARGET]...   the fuzz targets' corpus and mutations of it, without a fuzzer
cargo xtask sim --seeds A..B [--threads N]     runs seeds; stops at the first failure
cargo xtask sim --seed N [--trace]             runs one seed, printing each event
    --by-round                                 calm groups of four instead, in which one replica is faulty by round
    --guests                                   the same seeds with an owner and guests, who are taken back
    --memory                                   the same seeds with clients that flood: replicas' memory stays bounded
cargo xtask recoveries --seeds A..B            an intruder, or all replicas recover in turn; --help for all
cargo xtask twins [--sample N]                 runs schedules in which replicas run twice; --help for all
cargo xtask model [--quick] [--only NAME]      explores the agreement core exhaustively; --help for all
cargo xtask mutants [--seeds N] [--only NAME]  sees that known bugs, put into the code, are found; --json, --quick, --rules, --execution, --credentials
cargo xtask chaos [--seed N] [--minutes M]     torments real groups and checks what clients see; --help, --release
cargo xtask chaos check FILE                   checks a history that was kept
cargo xtask figures [--rounds N] [--json FILE] measures a mount beside a plain passthrough, on a quiet machine
cargo xtask profile [--seconds S] -- BENCHMARK where replicas' processor time goes under one load of `quorate bench`";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.first().map(String::as_str) {
        Some("up") => up::run(&args[1..]),
        Some("tools") => tools::for_tests(),
        Some("deny") => deny::main(),
        Some("bpf") if args[1..] == ["--check"] => bpf::check(),
        Some("bpf") if args.len() == 1 => bpf::make(),
        Some("fuzz") => fuzz::replay(&args[1..]),
        Some("ci") => ci::ci(),
        Some("check") => ci::check(),
        Some("chaos") => chaos::run(&args[1..]),
        Some("figures") => figures::main(&args[1..]),
        Some("profile") => profile::main(&args[1..]),
        Some("sim" | "recoveries" | "twins" | "model" | "mutants") => lab::run(&args),
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
