//! Who asks. The kernel tells user, group and thread; supplementary groups and waiting signals are in /proc.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use quorate_files::Who;
use quorate_files::op::MAX_GROUPS;
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

fn signals(pid: u32, field: &str) -> u64 {
    status(pid, field)
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}

/// Whether the process is being killed.
fn is_killed(pid: u32) -> bool {
    // A signal whose effect is death is turned into this one by the kernel.
    (signals(pid, "SigPnd:") | signals(pid, "ShdPnd:")) & SIGKILL != 0
}

/// Whether a signal waits that interrupts a system call.
pub(super) fn is_interrupted(pid: u32) -> bool {
    let pending = signals(pid, "SigPnd:") | signals(pid, "ShdPnd:");
    pending != 0 && pending & !signals(pid, "SigBlk:") & !signals(pid, "SigIgn:") != 0
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

/// The system calls that lock, by number, as far as their numbers are known here.
#[cfg(target_arch = "x86_64")]
const FLOCK: &str = "73";
#[cfg(not(target_arch = "x86_64"))]
const FLOCK: &str = "32";

/// Whether the caller, which waits for a lock on a whole file, called flock(2); `None` where it can't be told. The
/// FUSE library does not say which of the two lock calls it was.
pub(super) fn calls_flock(pid: u32) -> Option<bool> {
    for _ in 0..20 {
        let text = std::fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
        match text.split_ascii_whitespace().next()? {
            // It is on its way to sleep.
            "running" => std::thread::yield_now(),
            number => return Some(number == FLOCK),
        }
    }
    None
}
