//! The steps of continuous integration, in order; each is named and timed.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::{bpf, deny, elsewhere, lab, packages, tests, tools};

/// A step that can fail with a message.
type Step = (&'static str, fn() -> Result<(), String>);

/// Crates without input, output, clock, threads or randomness.
const CORES: [&str; 9] = [
    "wire",
    "state",
    "execution",
    "agreement",
    "replica",
    "files",
    "fault",
    "credential",
    "ledger",
];

/// All that a core may be built on, its own and other cores aside. A new line here needs a reason in a review: each of
/// these was looked at and does no input or output. Those from `base16ct` to `wnaf` that no others need are `p256`'s: arithmetic on the one
/// curve that a TPM has, by the same people as Ed25519's, and what ECDSA is made of.
const ALLOWED: [&str; 49] = [
    "arrayvec",
    "base16ct",
    "blake3",
    "block-buffer",
    "bytes",
    "cfg-if",
    "cmov",
    "const-oid",
    "constant_time_eq",
    "cpubits",
    "cpufeatures",
    "crc32fast",
    "crypto-bigint",
    "crypto-common",
    "ctutils",
    "curve25519-dalek",
    "curve25519-dalek-derive",
    "der",
    "digest",
    "ecdsa",
    "ed25519",
    "ed25519-dalek",
    "elliptic-curve",
    "ff",
    "foldhash",
    "group",
    "hashbrown",
    "hmac",
    "hybrid-array",
    "num-traits",
    "p256",
    "ppv-lite86",
    "primefield",
    "primeorder",
    "proc-macro2",
    "quote",
    "rand_chacha",
    "rand_core",
    "rfc6979",
    "sec1",
    "sha2",
    "signature",
    "subtle",
    "syn",
    "typenum",
    "unicode-ident",
    "wnaf",
    "zerocopy",
    "zeroize",
];

/// `cargo xtask ci`.
pub fn ci() -> Result<(), String> {
    run(&[
        ("packages", || packages::ensure(packages::FOR_TESTS)),
        ("fmt", fmt),
        ("sans-io", sans_io),
        ("bpf", bpf::check),
        ("mutants stay out", mutants_stay_out),
        ("build", tests::build),
        ("elsewhere", elsewhere::check),
        ("tools", tools::for_tests),
        ("deny", deny::check),
        ("sim", sim),
        ("model", model),
        ("revocations", revocations),
        ("mutants", mutants),
        ("as installed", as_installed),
        ("test", tests::all),
    ])
}

/// `cargo xtask check`.
pub fn check() -> Result<(), String> {
    run(&[("fmt", fmt), ("clippy", clippy), ("sans-io", sans_io)])
}

#[allow(clippy::disallowed_methods)] // For people, who want to know what takes long.
fn run(steps: &[Step]) -> Result<(), String> {
    for (name, step) in steps {
        println!("== {name}");
        let started = Instant::now();
        step().map_err(|message| format!("{name} failed: {message}"))?;
        println!("== {name}: {:.1} s", started.elapsed().as_secs_f64());
    }
    Ok(())
}

pub fn cargo(args: &[&str]) -> Result<(), String> {
    program("cargo", args)
}

/// Where cargo builds, whoever has told it where: this program is there, in a directory of its profile.
pub fn target() -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let target = program.parent().and_then(Path::parent);
    target.map_or("target".into(), |at| at.to_string_lossy().into_owned())
}

/// Runs a program that must succeed.
pub fn program(name: &str, args: &[&str]) -> Result<(), String> {
    program_with(name, args, &[])
}

/// The same, with these variables in its environment.
pub fn program_with(name: &str, args: &[&str], vars: &[(&str, &str)]) -> Result<(), String> {
    let status = Command::new(name)
        .args(args)
        .envs(vars.iter().copied())
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name} {}: {status}", args.join(" "))),
        Err(error) => Err(format!("{name} can't be started: {error}")),
    }
}

fn fmt() -> Result<(), String> {
    cargo(&["fmt", "--all", "--check"])
}

fn clippy() -> Result<(), String> {
    cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ])
}

/// In the dev profile: its checks of overflow and its debug assertions are a part of what is looked for.
fn sim() -> Result<(), String> {
    lab::run_built(&["sim", "--seeds", "0..5000"])?;
    lab::run_built(&["sim", "--guests", "--seeds", "0..500"])?;
    lab::run_built(&["sim", "--by-round", "--seeds", "0..1000"])?;
    // An intruder who has f replicas at a time, of which each recovers.
    lab::run_built(&["recoveries", "--seeds", "0..50"])?;
    // Replicas that flood are drawn here alone. Memory is looked at after each step, so a seed takes a second.
    lab::run_built(&["sim", "--memory", "--seeds", "0..16"])
}

/// The small scenarios of the model, whole.
fn model() -> Result<(), String> {
    lab::run_built(&["model", "--quick"])
}

/// What was granted is taken back while it is in use, in short histories of the file service.
fn revocations() -> Result<(), String> {
    let program = format!("{}/debug/examples/revocations", target());
    self::program(&program, &["0..3000"])
}

/// A few bugs are put into the code, to see that the simulator finds them, and the model; and all of those that tests of crates find.
fn mutants() -> Result<(), String> {
    lab::run_built(&["mutants", "--quick"])?;
    lab::run_built(&["mutants", "--rules"])?;
    lab::run_built(&["mutants", "--execution"])?;
    lab::run_built(&["mutants", "--credentials"])?;
    lab::run_built(&["model", "--mutants", "--quick"])
}

/// What all messages are made of, without what the laboratory's features change in it: the tests of the workspace are built with those.
fn as_installed() -> Result<(), String> {
    cargo(&["test", "--quiet", "--package", "quorate-wire"])
}

/// Nothing that is installed can be built with bugs in it, or with signatures that are not checked, and no release build at all.
fn mutants_stay_out() -> Result<(), String> {
    // With all features on, the features of `wire` under the command; and under the laboratory, to see that it would show.
    for (package, wanted) in [("quorate", ""), ("quorate-lab", "mutants,remember")] {
        let output = Command::new("cargo")
            .args([
                "tree",
                "--all-features",
                "-p",
                package,
                "-i",
                "quorate-wire",
            ])
            .args(["-e", "normal,build", "--depth", "0", "-f", "{f}"])
            .output()
            .map_err(|e| format!("cargo can't be started: {e}"))?;
        let features = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() || features.trim() != wanted {
            return Err(format!(
                "{package} has features {features:?} of quorate-wire"
            ));
        }
    }
    // Not to the null device: rustc puts a file in the place of what it is told to write, as root that as well.
    let metadata = format!("{}/mutants-stay-out.rmeta", target());
    for (feature, source) in [
        ("mutants", "crates/wire/src/mutants.rs"),
        ("remember", "crates/wire/src/auth/remember.rs"),
    ] {
        for (assertions, fits) in [("off", false), ("on", true)] {
            let output = Command::new("rustc")
                .args(["--edition=2024", "--crate-type=lib", "--emit=metadata"])
                .args(["-o", &metadata, "--cfg"])
                .arg(format!("feature=\"{feature}\""))
                .args(["-C", &format!("debug-assertions={assertions}"), source])
                .output()
                .map_err(|e| format!("rustc can't be started: {e}"))?;
            // A part of a crate alone may have errors of other kinds.
            let errors = String::from_utf8_lossy(&output.stderr);
            if errors.contains("never in a release build") == fits {
                return Err(format!(
                    "{feature}, debug assertions {assertions}: {errors}"
                ));
            }
        }
    }
    Ok(())
}

/// The cores are `no_std` and are built on nothing that could do input or output.
fn sans_io() -> Result<(), String> {
    for name in CORES {
        let path = format!("crates/{name}/src/lib.rs");
        let source = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
        if !source.lines().any(|line| line.trim() == "#![no_std]") {
            return Err(format!("{path} is not no_std"));
        }
        let package = format!("quorate-{name}");
        let args = ["tree", "-e", "normal", "--prefix", "none", "-p", &package];
        let output = Command::new("cargo").args(args).output();
        let output = output.map_err(|e| format!("cargo can't be started: {e}"))?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(format!("cargo tree: {errors}"));
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let dependency = line.split(' ').next().unwrap_or(line);
            let core = dependency.strip_prefix("quorate-");
            let allowed = match core {
                Some(core) => CORES.contains(&core),
                None => ALLOWED.contains(&dependency),
            };
            if !allowed {
                return Err(format!("{package} is built on {dependency}"));
            }
        }
    }
    Ok(())
}
