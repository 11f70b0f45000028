//! What the tests stand on: real replicas and mounts, as processes of this machine.
//!
//! - [`Group`]: the processes `quorate replica`, on loopback ports.
//! - [`Mount`]: a process `quorate mount`.
//! - [`LocalUser`]: somebody else of this machine, without rights.
//! - [`Up`]: a process `quorate up`, with all that it starts.
//! - [`Status`]: what `quorate status --json` says.
//! - [`Source`]: a tree of files to work on, the same in each run.
//! - [`run`], [`finish`], [`eventually`]: other programs, and waits with an end.
//!
//! Two processors are few for four replicas, so tests that have a group take turns, across processes too. Nothing
//! here waits for ever: a group whose test takes too long has its mounts ended, and then the test fails.

mod group;
mod mount;
mod programs;
mod random;
mod source;
mod status;
mod up;
mod user;
mod watchdog;

use std::path::PathBuf;

#[cfg(feature = "tpm")]
pub use group::Chip;
pub use group::{Group, Setup, free_ports};
pub use mount::{Mount, is_mounted, require_fuse};
pub use programs::{
    Finished, Patience, eventually, finish, holds_in_time, left_out, program, quorate, run, tool,
    wait,
};
pub use random::Random;
pub use source::{Source, Times, assert_same};
pub use status::Status;
pub use up::Up;
pub use user::LocalUser;

/// As many as people have asked for with `QUORATE_LONG=1`, or enough for every day.
pub fn long_or(long: usize, usual: usize) -> usize {
    match std::env::var_os("QUORATE_LONG").is_some_and(|v| v != "0" && !v.is_empty()) {
        true => long,
        false => usual,
    }
}

/// A directory on the local disk that is removed with its content.
pub fn scratch() -> tempfile::TempDir {
    let made = tempfile::Builder::new().prefix("quorate-test-").tempdir();
    made.expect("a directory for temporary files")
}

/// A directory in memory, where there is such a place; else on the local disk.
///
/// For what is to live as long as the machine: a killed process loses nothing of it, and syncing costs nothing.
pub fn scratch_in_memory() -> tempfile::TempDir {
    let made = tempfile::Builder::new()
        .prefix("quorate-test-")
        .tempdir_in("/dev/shm");
    made.unwrap_or_else(|_| scratch())
}

/// The last lines of a text file, indented.
pub fn last_lines(path: &PathBuf, count: usize) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(count)..];
    last.iter().map(|line| format!("    {line}\n")).collect()
}
