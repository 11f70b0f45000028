//! How a user's processes are, by what /proc says of each of their threads (proc(5)).

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// SIGKILL, in a set of signals.
const KILL: u64 = 1 << 8;
/// PF_EXITING, in a thread's flags: it is on its way out.
const EXITING: u64 = 4;

/// How much alive a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Life {
    /// It has ended, and its parent has not yet looked how.
    Ended,
    /// It was killed, and what it has asked of the kernel is not done: it never runs anything of its own again.
    Stuck,
    /// It runs, or will.
    Lives,
}

/// How the one of a user's processes is that is most alive, if there is one. Of those that have ended, the children of this process do not count: it looks
/// at them in time.
///
/// # Errors
/// If /proc can't be read.
pub fn of_user(uid: u32) -> Result<Option<Life>> {
    let mut most = None;
    for entry in fs::read_dir("/proc").context("/proc")? {
        // Others come and go meanwhile.
        let Ok(place) = entry.map(|entry| entry.path()) else {
            continue;
        };
        let Ok(status) = fs::read_to_string(place.join("status")) else {
            continue;
        };
        if is_of(&status, uid) {
            let life = of_process(&place);
            let is_looked_at = life == Life::Ended && is_child(&status);
            most = most.max((!is_looked_at).then_some(life));
        }
    }
    Ok(most)
}

/// The thread by which a process is named may have ended while others run.
fn of_process(place: &Path) -> Life {
    let threads = fs::read_dir(place.join("task")).into_iter().flatten();
    let life = |thread: std::io::Result<fs::DirEntry>| {
        let thread = thread.ok()?.path();
        let read = |name| fs::read_to_string(thread.join(name)).ok();
        Some(of_thread(&read("status")?, &read("stat")?))
    };
    threads.filter_map(life).max().unwrap_or(Life::Ended)
}

fn of_thread(status: &str, stat: &str) -> Life {
    let has_ended = line(status, "State:").starts_with(['Z', 'X']);
    let pending = u64::from_str_radix(line(status, "SigPnd:"), 16).unwrap_or(0);
    // Behind its name, which may be anything: state, parent, group, session, terminal, its group, flags.
    let mut fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
    let flags: u64 = fields.nth(6).and_then(|f| f.parse().ok()).unwrap_or(0);
    match has_ended {
        true => Life::Ended,
        false if pending & KILL != 0 || flags & EXITING != 0 => Life::Stuck,
        false => Life::Lives,
    }
}

/// Whether it runs as a user, or could again.
fn is_of(status: &str, uid: u32) -> bool {
    let mut users = line(status, "Uid:").split_whitespace();
    users.any(|user| user.parse() == Ok(uid))
}

fn is_child(status: &str) -> bool {
    line(status, "PPid:").parse() == Ok(std::process::id())
}

fn line<'a>(status: &'a str, name: &str) -> &'a str {
    let found = status.lines().find_map(|line| line.strip_prefix(name));
    found.unwrap_or_default().trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_told_by_their_users() {
        let status = "Name:\tsh\nState:\tS (sleeping)\nUid:\t0\t990\t0\t0\nGid:\t5\t5\t5\t5\n";
        assert!(is_of(status, 990) && is_of(status, 0));
        assert!(!is_of(status, 5) && !is_of("", 0));
        assert!(!is_child(status));
        assert!(is_child(&format!(
            "{status}PPid:\t{}\n",
            std::process::id()
        )));
    }

    /// One that was killed and waits in the kernel runs nothing any more; one that waits there and was not killed will.
    #[test]
    fn threads_are_told_by_what_they_can_do() {
        let life = |state: &str, pending: &str, flags: u64| {
            let status = format!("Name:\ta\nState:\t{state}\nSigPnd:\t{pending}\nSigQ:\t1/2\n");
            of_thread(&status, &format!("7 (a) 1) D 1 7 7 0 -1 {flags} 5 0 0"))
        };
        let (none, kill) = ("0000000000000000", "0000000000000100");
        assert_eq!(life("Z (zombie)", none, 4), Life::Ended);
        assert_eq!(life("D (disk sleep)", none, 0x40_0000), Life::Lives);
        assert_eq!(life("D (disk sleep)", kill, 0x40_0000), Life::Stuck);
        assert_eq!(life("D (disk sleep)", none, 0x40_0004), Life::Stuck);
        assert_eq!(of_thread("", ""), Life::Lives);
    }

    /// A process lives while one of its threads does.
    #[test]
    fn a_process_is_as_its_threads_are() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(of_process(place.path()), Life::Ended);
        for (thread, state) in [("7", "Z (zombie)"), ("8", "R (running)")] {
            let thread = place.path().join("task").join(thread);
            fs::create_dir_all(&thread).unwrap();
            fs::write(thread.join("status"), format!("State:\t{state}\n")).unwrap();
            fs::write(thread.join("stat"), "7 (a) R 1 7 7 0 -1 0 5").unwrap();
        }
        assert_eq!(of_process(place.path()), Life::Lives);
    }
}
