//! Defects that tests of crates look for: these are built once, with all defects in them, and run once for each, told by a variable.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use quorate_sim::Failure;
use quorate_wire::mutants::{Hunt, Mutant};

/// Tests of a crate.
struct Suite {
    package: &'static str,
    /// The arguments of `cargo test` that name the program.
    program: &'static [&'static str],
    /// Which of its tests; none: all.
    tests: &'static [&'static str],
}

const LIB: &[&str] = &["--lib"];
const IT: &[&str] = &["--test", "it"];

/// What is run, in this order. What takes longest comes last, and none that shrink what they have found.
fn suites(hunt: Hunt) -> &'static [Suite] {
    match hunt {
        Hunt::Group => &[],
        Hunt::Rules => &[
            Suite {
                package: "quorate-agreement",
                program: LIB,
                tests: &["selection::", "estimation::"],
            },
            Suite {
                package: "quorate-agreement",
                program: IT,
                tests: &["recovery::", "statements::", "traps::"],
            },
        ],
        Hunt::Execution => &[
            Suite {
                package: "quorate-execution",
                program: IT,
                tests: &["graph::"],
            },
            Suite {
                package: "quorate-execution",
                program: IT,
                tests: &["flight::"],
            },
        ],
        Hunt::Credentials => &[
            Suite {
                package: "quorate-credential",
                program: IT,
                tests: &["hard_cases", "two_verifiers"],
            },
            Suite {
                package: "quorate-files",
                program: IT,
                tests: &[
                    "credentials",
                    "gate::",
                    "giving_back",
                    "passed_on",
                    "widening",
                ],
            },
            Suite {
                package: "quorate-files",
                program: IT,
                tests: &["gate_model"],
            },
        ],
    }
}

/// A suite that takes this long with a defect has found it: something waits for ever.
const MOST: Duration = Duration::from_secs(300);

/// A program of tests that is built.
pub struct Built {
    suite: &'static Suite,
    program: PathBuf,
    /// Where cargo would run it.
    directory: PathBuf,
}

/// Builds what looks for such defects, and runs it without any: where it fails then, it finds nothing.
pub fn build(hunt: Hunt) -> Result<Vec<Built>, String> {
    let all = suites(hunt).iter().map(|suite| {
        let built = built(suite)?;
        match built.run(None) {
            Ok(()) => Ok(built),
            Err(failure) => Err(format!(
                "the tests of {} fail without a bug in the code: {failure}",
                suite.package
            )),
        }
    });
    all.collect()
}

fn built(suite: &'static Suite) -> Result<Built, String> {
    let mut command = Command::new("cargo");
    command.args(["test", "-q", "--no-run", "--message-format=json"]);
    // Where all tests are built already with defects in them, as a variable says how.
    match std::env::var("QUORATE_LAB_BUILD") {
        Ok(selection) => command.args(selection.split(' ')),
        Err(_) => command.args(["-p", suite.package, "--features", "quorate-wire/mutants"]),
    };
    command.args(suite.program);
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|e| format!("cargo can't be started: {e}"))?;
    if !output.status.success() {
        return Err(format!(
            "the tests of {} can't be built: see above",
            suite.package
        ));
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let told = said
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut program = told.filter_map(|told| {
        let is_test = told["profile"]["test"].as_bool() == Some(true);
        let program = told["executable"].as_str().filter(|_| is_test)?;
        let directory = PathBuf::from(told["manifest_path"].as_str()?);
        let directory = directory.parent()?.to_path_buf();
        let package = format!("quorate-{}", directory.file_name()?.to_str()?);
        (package == suite.package).then(|| (PathBuf::from(program), directory))
    });
    let (program, directory) = program
        .next_back()
        .ok_or(format!("cargo built no tests of {}", suite.package))?;
    Ok(Built {
        suite,
        program,
        directory,
    })
}

impl Built {
    /// Whether its tests pass with a defect, or with none.
    #[allow(clippy::disallowed_methods, reason = "what waits for ever is to end")]
    pub fn run(&self, mutant: Option<Mutant>) -> Result<(), Failure> {
        let mut command = Command::new(&self.program);
        command.arg("-q").args(self.suite.tests);
        command.current_dir(&self.directory);
        command.env("PROPTEST_MAX_SHRINK_ITERS", "0");
        command.env_remove("QUORATE_MUTANT");
        command.envs(mutant.map(|mutant| ("QUORATE_MUTANT", mutant.name())));
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command
            .spawn()
            .unwrap_or_else(|e| self.broken(&e.to_string()));
        let mut stdout = child.stdout.take().expect("it is piped");
        let reader = thread::spawn(move || {
            let mut said = Vec::new();
            let _ = stdout.read_to_end(&mut said);
            said
        });
        let started = Instant::now();
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if started.elapsed() >= MOST => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(Failure::new("tests", "they come to no end"));
                }
                Ok(None) => thread::sleep(Duration::from_millis(5)),
                Err(error) => self.broken(&error.to_string()),
            }
        };
        if status.success() {
            return Ok(());
        }
        let said = reader.join().unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        // What is listed at the end, each by its name, indented.
        let mut failed = said.lines().filter_map(|line| line.strip_prefix("    "));
        match failed.find(|name| name.contains("::") && !name.contains(' ')) {
            Some(name) => Err(Failure::new("tests", name)),
            // What does not even run says nothing of any bug.
            None => self.broken(&said),
        }
    }

    fn broken(&self, why: &str) -> ! {
        eprintln!("{}: {why}", self.program.display());
        std::process::exit(2)
    }
}
