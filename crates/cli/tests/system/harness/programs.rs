//! Other programs, run to their end; and waits.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long something may take before it counts as hung. Never a measure of speed.
#[derive(Clone, Copy, Debug)]
pub struct Patience(pub Duration);

impl Default for Patience {
    fn default() -> Patience {
        Patience(Duration::from_secs(240))
    }
}

/// A program that has ended.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }
}

/// A program by its name, with nothing of the user's own configuration.
pub fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    command
        .env("LC_ALL", "C")
        .env("HOME", "/nonexistent")
        .env_remove("MAKEFLAGS");
    command
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null");
    for (variable, value) in [("AUTHOR", "Test"), ("COMMITTER", "Test")] {
        command.env(format!("GIT_{variable}_NAME"), value);
        command.env(format!("GIT_{variable}_EMAIL"), "test@localhost");
    }
    command.stdin(Stdio::null());
    command
}

/// The command under test.
pub fn quorate() -> Command {
    program(env!("CARGO_BIN_EXE_quorate"))
}

/// A program that `cargo xtask tools` installs; `None`, with a word, where that has not been done by hand.
pub fn tool(name: &str) -> Option<PathBuf> {
    // Where `cargo xtask tools` puts them: in the target directory, wherever that is.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let target = target.parent().expect("the target directory");
    let path = target.join("tools/bin").join(name);
    if path.exists() {
        return Some(path);
    }
    let path = path.display();
    left_out(&format!(
        "{path} is missing: `cargo xtask tools` installs it"
    ))
}

/// A test can't have what it needs: it is skipped, with a word, and fails where continuous integration runs.
pub fn left_out<T>(why: &str) -> Option<T> {
    assert!(std::env::var_os("CI").is_none(), "{why}");
    eprintln!("skipped: {why}");
    None
}

/// Runs a program to its end and says how it went.
pub fn finish(command: &mut Command, patience: Patience) -> Finished {
    let output = super::scratch();
    let file = |name: &str| File::create(output.path().join(name)).expect("a file for output");
    command.stdout(file("out")).stderr(file("err"));
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(e) => panic!("{command:?} can't be started: {e}"),
    };
    let status = wait(&mut child, patience);
    let text = |name: &str| {
        let bytes = std::fs::read(output.path().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (stdout, stderr) = (text("out"), text("err"));
    match status {
        Some(status) => Finished {
            status,
            stdout,
            stderr,
        },
        None => panic!("{command:?} does not end; it said:\n{stdout}\n{stderr}"),
    }
}

/// Runs a program that has to succeed; what it printed.
pub fn run(command: &mut Command) -> String {
    let finished = finish(command, Patience::default());
    assert!(
        finished.status.success(),
        "{command:?} failed ({}):\n{}\n{}",
        finished.status,
        finished.stdout,
        finished.stderr
    );
    finished.stdout
}

/// Waits for a child; kills it and gives `None` when it takes too long.
pub fn wait(child: &mut Child, patience: Patience) -> Option<ExitStatus> {
    let end = Instant::now() + patience.0;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return Some(status);
        }
        if Instant::now() > end {
            // It may be in the kernel, waiting for a mount; then it dies when the mount ends.
            let _ = child.kill();
            return None;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(25));
    }
}

/// Waits until something holds, and fails with `what` when it does not for long.
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    assert!(holds_in_time(holds), "waited in vain until {what}");
}

/// Waits until something holds; false when it does not for long.
pub fn holds_in_time(mut holds: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(90);
    while !holds() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    true
}
