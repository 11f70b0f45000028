//! Where a mount is, seen and ended from outside: nothing here asks the file system that is mounted, which may never answer.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};

const STEP: Duration = Duration::from_millis(20);
/// How long what was killed may take to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether something is mounted at a directory.
pub fn is_mounted(directory: &Path) -> bool {
    table().lines().any(|line| point(line) == directory)
}

/// Whether something of FUSE is mounted at a directory or below it. Who lists or removes that directory may wait for ever, and
/// removes what is mounted.
pub fn is_any_below(directory: &Path) -> bool {
    let is_fuse = |line: &str| line.contains(" - fuse");
    let table = table();
    let mut lines = table.lines().filter(|line| is_fuse(line));
    lines.any(|line| point(line).starts_with(directory))
}

/// Takes a mount away, and ends what is under way on it, whether or not anybody answers for it.
pub fn take_away(directory: &Path) {
    let table = table();
    let Some(line) = table.lines().find(|line| point(line) == directory) else {
        return;
    };
    // By force: the kernel answers for who should. Root may.
    if unmount(directory, UnmountFlags::FORCE | UnmountFlags::DETACH).is_ok() {
        return;
    }
    // As the user whose mount it is. The connection's number is the device's (proc_pid_mountinfo(5)).
    let device = line.split(' ').nth(2).and_then(|id| id.split(':').nth(1));
    if let Some(number) = device {
        // Where the file system of connections is not mounted, the mount's process has to end, and does for want of this one.
        let _ = fs::write(format!("/sys/fs/fuse/connections/{number}/abort"), "1");
    }
    let helper = Command::new("fusermount3")
        .args(["-u", "-z"])
        .arg(directory)
        .spawn();
    if let Ok(mut helper) = helper {
        reap(&mut helper, PATIENCE);
    }
}

/// Kills a process, and waits for its end for a while. It may wait in the kernel for what never comes; then it is left.
pub fn end(child: &mut Child) {
    // It may have ended by itself.
    let _ = child.kill();
    if !reap(child, PATIENCE) {
        eprintln!("process {} can't be ended and is left", child.id());
    }
}

/// Whether a process has ended within a time.
pub fn reap(child: &mut Child, patience: Duration) -> bool {
    let end = Instant::now() + patience;
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(STEP);
    }
    true
}

fn table() -> String {
    fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()
}

fn point(line: &str) -> &Path {
    Path::new(line.split(' ').nth(4).unwrap_or_default())
}

#[cfg(test)]
mod tests;
