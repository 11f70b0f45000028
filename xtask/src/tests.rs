//! All tests of the workspace, and a second try for those with real processes.
//!
//! A test of a mounted group waits for real processes on a machine that others may keep busy. One that fails is run once
//! more, with no other beside it; where it passes then, the run goes on and names it at the end. A test that needs a second try has a bug,
//! or found one: the first output is above, and it is to be mended.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use crate::ci;

/// How many tests may need a second try; where more fail, it is not the machine.
const TRIES: usize = 3;

/// With these words chaos tells of what is wrong however busy a machine is (`crates/chaos/src/run.rs`, `group.rs`).
const UNSAFE: [&str; 3] = [
    "is not linearizable",
    " panicked: ",
    "against a correct one",
];

/// Lines that are said again of what failed.
const REPORTED: usize = 1000;

/// The only tests that get one: they start processes and mount.
const TARGET: &str = "system";

/// All tests, those of what is built on demand too: key holders in TPMs, against one that is a program; and with what the laboratory is built with, so that
/// it need not be built once more.
pub const EVERYTHING: [&str; 3] = [
    "--workspace",
    "--features",
    "quorate/tpm,quorate-lab/mutants,quorate-lab/remember",
];

/// What Clippy says of the workspace is said while the tests are built, and ends that: `cargo clippy` would compile all that it is built on
/// once more, which takes minutes. The names are those that `cargo clippy` sets.
pub const LINTED: [(&str, &str); 2] = [
    ("RUSTC_WORKSPACE_WRAPPER", "clippy-driver"),
    ("CLIPPY_ARGS", "-Dwarnings__CLIPPY_HACKERY__"),
];

/// Builds all tests, with lints.
pub fn build() -> Result<(), String> {
    let args = [&["test", "--no-run"], &EVERYTHING[..]].concat();
    ci::program_with("cargo", &args, &LINTED)
}

/// `cargo test` of the whole workspace.
pub fn all() -> Result<(), String> {
    let Err(first) = listen(&[&["test", "--no-fail-fast"], &EVERYTHING[..]].concat())? else {
        return Ok(());
    };
    let Some(again) = first.again() else {
        println!("== what failed, once more\n{}", first.report);
        return Err("cargo test --workspace failed".into());
    };
    println!("== once more, alone: {}", again.join(" "));
    let by_itself = ["--test", TARGET, "--", "--exact", "--test-threads=1"];
    let mut args = [&["test"], &EVERYTHING[..], &by_itself].concat();
    args.extend(again.iter().map(String::as_str));
    if let Err(second) = listen(&args)? {
        println!(
            "== what failed, once more\n{}{}",
            first.report, second.report
        );
        return Err("a test failed twice".into());
    }
    println!(
        "== FLAKY, passed on the second try, to be mended: {}",
        again.join(" ")
    );
    Ok(())
}

/// What failed of a run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Failed {
    /// Targets, as cargo names them: what to add to its command to run them again.
    targets: Vec<String>,
    tests: Vec<String>,
    /// What was said of them: to be said again at the end, since a log may be kept in part.
    report: String,
}

impl Failed {
    fn of(said: &str, errors: &str) -> Failed {
        let target = |line: &str| {
            let line = line.trim().strip_prefix('`')?.strip_suffix('`')?;
            line.starts_with("-p ").then(|| line.to_owned())
        };
        let test = |line: &str| {
            let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
            Some(name.to_owned())
        };
        Failed {
            targets: errors.lines().filter_map(target).collect(),
            tests: said.lines().filter_map(test).collect(),
            report: report(said, errors),
        }
    }

    /// The tests that are tried again, where that is all that failed, and none has seen what no load excuses.
    fn again(&self) -> Option<&[String]> {
        if UNSAFE.iter().any(|words| self.report.contains(words)) {
            return None;
        }
        let target = format!("--test {TARGET}");
        let alone = matches!(&self.targets[..], [one] if one.ends_with(&target));
        let few = (1..=TRIES).contains(&self.tests.len());
        (alone && few).then_some(&self.tests[..])
    }
}

/// What tests print that fail, as the harness sums it up; and how programs ended that did not come so far.
fn report(said: &str, errors: &str) -> String {
    let mut is_summary = false;
    let summed = said.lines().filter(|line| {
        let ends = line.starts_with("test result: ");
        is_summary = !ends && (is_summary || *line == "failures:");
        is_summary
    });
    const ENDS: [&str; 4] = ["error", "process didn't exit", "overflowed its", "`-p "];
    let ends = errors
        .lines()
        .filter(|line| ENDS.iter().any(|word| line.trim().contains(word)));
    let all: Vec<&str> = summed.chain(ends).collect();
    let lines = all.iter().take(REPORTED);
    lines.flat_map(|line| [*line, "\n"]).collect()
}

/// Runs cargo and passes on what it says; what failed where it did.
fn listen(args: &[&str]) -> Result<Result<(), Failed>, String> {
    let mut child = Command::new("cargo")
        .args(args)
        .envs(LINTED)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cargo can't be started: {e}"))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let errors = std::thread::spawn(move || pass_on(stderr, std::io::stderr()));
    let said = pass_on(stdout, std::io::stdout());
    let errors = errors.join().map_err(|_| "no errors were heard")?;
    let status = child.wait().map_err(|e| format!("cargo: {e}"))?;
    Ok(match status.success() {
        true => Ok(()),
        false => Err(Failed::of(&said, &errors)),
    })
}

fn pass_on(from: Option<impl Read>, mut to: impl Write) -> String {
    let mut said = Vec::new();
    let mut lines = from.map(BufReader::new);
    while let Some(lines) = &mut lines {
        let start = said.len();
        match lines.read_until(b'\n', &mut said) {
            Ok(0) | Err(_) => break,
            Ok(_) => drop(to.write_all(&said[start..])),
        }
    }
    String::from_utf8_lossy(&said).into_owned()
}

#[cfg(test)]
mod of_what_is_said {
    use super::*;

    const SAID: &str = "test up::one ... ok\ntest up::two ... FAILED\n";
    const ERRORS: &str = "error: 1 target failed:\n    `-p quorate --test system`\n";

    #[test]
    fn a_system_test_is_tried_again() {
        let failed = Failed::of(SAID, ERRORS);
        assert_eq!(failed.again(), Some(&["up::two".to_owned()][..]));
    }

    #[test]
    fn what_failed_is_said_again() {
        let said = "test a ... ok\nfailures:\n---- up::two stdout ----\nleft: 1\n\nfailures:\n    up::two\n\ntest result: FAILED. 1\ntest b ... ok\n";
        let errors = "   Compiling x\nthread 'c' has overflowed its stack\nerror: test failed, to rerun pass `-p x`\nwarning: y\n";
        let report = Failed::of(said, errors).report;
        let lines: Vec<&str> = report.lines().collect();
        let all = [
            &said.lines().collect::<Vec<_>>()[1..8],
            &errors.lines().collect::<Vec<_>>()[1..3],
        ];
        assert_eq!(lines, all.concat());
    }

    #[test]
    fn what_is_unsafe_is_not_tried_again() {
        for words in UNSAFE {
            let said = format!(
                "{SAID}failures:\n---- up::two stdout ----\nx {words} y\n\ntest result: FAILED. 1\n"
            );
            assert_eq!(Failed::of(&said, ERRORS).again(), None, "{words}");
        }
    }

    #[test]
    fn no_other_test_is_tried_again() {
        let other = "error: 1 target failed:\n    `-p quorate-sim --test seeds`\n";
        assert_eq!(Failed::of(SAID, other).again(), None);
        let both = [ERRORS, "    `-p quorate-net --lib`\n"].concat();
        assert_eq!(Failed::of(SAID, &both).again(), None);
    }

    #[test]
    fn many_failures_are_no_accident() {
        let many = "test a ... FAILED\n".repeat(TRIES + 1);
        assert_eq!(Failed::of(&many, ERRORS).again(), None);
        // Cargo fails without a failed test where a target does not compile, or dies.
        assert_eq!(Failed::of("", ERRORS).again(), None);
    }
}
