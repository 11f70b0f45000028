//! Who asks. The kernel tells user, group and thread; supplementary groups and waiting signals are in /proc.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quorate_files::Who;
use quorate_files::op::MAX_GROUPS;
use rustix::process::{Pid, test_kill_process};
use tokio::time::Instant;

/// For how long the groups of a process are taken for granted.
const GROUPS_TTL: Duration = Duration::from_secs(1);
/// How many processes are remembered.
const MAX_REMEMBERED: usize = 1024;
/// An operation that takes longer than this is given up when its process is killed.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often a waiting process is looked at.
const LOOK: Duration = Duration::from_millis(250);
const SIGKILL: u64 = 1 << 8;
/// For how long a caller is looked at that does not sleep yet, and how often at least.
const FALLS_ASLEEP: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_millis(20);

/// Thread, user and group.
type Process = (u32, u32, u32);

/// Groups by process.
#[derive(Debug, Default)]
pub(super) struct Callers {
    known: Mutex<BTreeMap<Process, (Instant, Vec<u32>)>>,
}

impl Callers {
    /// The caller with its groups.
    pub fn who(&self, pid: u32, uid: u32, gid: u32) -> Who {
        let mut who = Who::new(uid, gid);
        // Groups give the superuser nothing.
        if uid != 0 && pid != 0 {
            who.groups = self.groups(pid, uid, gid);
        }
        who
    }

    fn groups(&self, pid: u32, uid: u32, gid: u32) -> Vec<u32> {
        let now = Instant::now();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, groups)) = known.get(&(pid, uid, gid))
            && now - *at < GROUPS_TTL
        {
            return groups.clone();
        }
        let groups = read_groups(pid);
        if known.len() >= MAX_REMEMBERED {
            known.retain(|_, (at, _)| now - *at < GROUPS_TTL);
        }
        if known.len() < MAX_REMEMBERED {
            known.insert((pid, uid, gid), (now, groups.clone()));
        }
        groups
    }
}

fn read_groups(pid: u32) -> Vec<u32> {
    let line = status(pid, "Groups:").unwrap_or_default();
    let groups = line.split_ascii_whitespace();
    groups
        .filter_map(|gid| gid.parse().ok())
        .take(MAX_GROUPS)
        .collect()
}

fn status(pid: u32, field: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    line.map(str::to_owned)
}

/// The signals in these fields together; `None` if the process is gone.
fn signals(pid: u32, fields: &[&str]) -> Option<u64> {
    fields.iter().try_fold(0, |all, field| {
        let hex = status(pid, field)?;
        Some(all | u64::from_str_radix(hex.trim(), 16).unwrap_or(0))
    })
}

/// Whether the process is being killed. Not if it is gone: what the kernel reads and writes by itself may be on its behalf.
fn is_killed(pid: u32) -> bool {
    // A signal whose effect is death is turned into this one by the kernel.
    signals(pid, &["SigPnd:", "ShdPnd:"]).is_some_and(|pending| pending & SIGKILL != 0)
}

/// Whether a signal waits that interrupts a system call, or the process is gone: it was let go because it was killed. Of one that can't
/// be seen from here nothing is known.
pub(super) fn is_interrupted(pid: u32) -> bool {
    if pid == 0 {
        return false;
    }
    let pending = signals(pid, &["SigPnd:", "ShdPnd:"]);
    let kept_off = signals(pid, &["SigBlk:", "SigIgn:"]);
    match (pending, kept_off) {
        (Some(pending), Some(kept_off)) => pending & !kept_off != 0,
        // It may be hidden, as another user's is under hidepid.
        _ => is_gone(pid),
    }
}

/// Whether there is no such process. Who may not signal it is told that there is one, also if it is hidden in /proc.
fn is_gone(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}

tokio::task_local! {
    /// Whether the process for which a task works was killed, and has been let go.
    static LEFT: Arc<AtomicBool>;
}

/// Work that can see whether its process was let go, by [`has_left`]; and what is to be set then.
pub(super) fn seen<W: Future>(work: W) -> (impl Future<Output = W::Output>, Arc<AtomicBool>) {
    let left = Arc::<AtomicBool>::default();
    (LEFT.scope(left.clone(), work), left)
}

/// Whether the process was let go for which this task works: then a change in several steps ends with the one under way. Whoever comes after a program that
/// was killed does not expect it to go on.
pub(super) fn has_left() -> bool {
    let left = LEFT.try_with(|left| left.load(Ordering::Acquire));
    left.unwrap_or(false)
}

/// Returns when a process that has waited for long is killed; never for others. The FUSE library drops the kernel's
/// own word of it.
pub(super) async fn killed(pid: u32) {
    if pid == 0 {
        return std::future::pending().await;
    }
    tokio::time::sleep(PATIENCE).await;
    while !is_killed(pid) {
        tokio::time::sleep(LOOK).await;
    }
}

/// The system calls that lock, by number: those of programs like this one, and those of programs for 32 bits.
#[cfg(target_arch = "x86_64")]
const LOCK_CALLS: (&[&str], &[&str]) = (&["73", "143"], &["72", "55", "221"]);
#[cfg(not(target_arch = "x86_64"))]
const LOCK_CALLS: (&[&str], &[&str]) = (&["32", "143"], &["25", "55", "221"]);

/// Whether the caller, which waits for a lock on a whole file, called flock(2) or fcntl(2); `None` where it can't be told: in another
/// process namespace, and where this process may not look, as under Yama. The kernel says which it was, but the FUSE library does
/// not hand it on.
pub(super) async fn calls_flock(pid: u32) -> Option<bool> {
    let started = Instant::now();
    let mut wait = Duration::from_micros(50);
    loop {
        let text = std::fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
        let number = text.split_ascii_whitespace().next()?;
        // It is on its way to sleep.
        let is_awake = number == "running";
        if !is_awake || started.elapsed() >= FALLS_ASLEEP {
            return which(number);
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(MAX_WAIT);
    }
}

fn which(number: &str) -> Option<bool> {
    let (flock, fcntl) = LOCK_CALLS;
    let is_flock = flock.contains(&number);
    (is_flock || fcntl.contains(&number)).then_some(is_flock)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is no lock call is not taken for one, nor is what can't be read.
    #[tokio::test]
    async fn unknown_callers_are_not_guessed_at() {
        let (flock, fcntl) = LOCK_CALLS;
        assert_eq!(which(flock[0]), Some(true));
        assert_eq!(which(fcntl[0]), Some(false));
        assert_eq!(which("-1"), None);
        assert_eq!(which("running"), None);
        assert_eq!(calls_flock(0).await, None);
    }

    /// Who asks may be awake for a while yet.
    #[tokio::test]
    async fn callers_are_waited_for() {
        use rustix::fs::{FlockOperation, flock};
        let place = tempfile::NamedTempFile::new().unwrap();
        flock(&place, FlockOperation::LockExclusive).unwrap();
        let again = place.reopen().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let caller = std::thread::spawn(move || {
            let me = std::fs::read_link("/proc/thread-self").unwrap();
            let me = me.file_name().unwrap().to_str().unwrap().to_owned();
            tell.send(me.parse().unwrap()).unwrap();
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(100) {
                std::hint::spin_loop();
            }
            flock(&again, FlockOperation::LockExclusive).unwrap();
        });
        assert_eq!(calls_flock(told.recv().unwrap()).await, Some(true));
        flock(&place, FlockOperation::Unlock).unwrap();
        caller.join().unwrap();
    }

    /// Who waits for a lock is asked whether he was interrupted: not as long as he lives and no signal waits; by his end in any case.
    #[test]
    fn the_dead_wait_for_nothing() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        assert!(!is_interrupted(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_interrupted(child.id()));
        // Of others it is known that they are there, though they can't be signalled: the first process is always there.
        assert!(is_gone(child.id()) && !is_gone(1));
        assert!(!is_interrupted(0));
    }
}
