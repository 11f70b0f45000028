//! What a start that came to nothing says of what the replica has on its disk.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;

use quorate_node::daemon::ground::Keep;
use rustix::fs::statvfs;
use rustix::process::Signal;

/// Exit codes of a replica that was asked to end, or that lacks what is not in its directory: its key, its address or key holder, a lock that another process
/// has, a permission, options that fit (`quorate replica --help`); and of what has not become a replica at all: options that this program does not know, or no
/// program that can be run.
const ELSEWHERE: [i32; 10] = [0, 1, 2, 66, 69, 75, 77, 78, 126, 127];
/// Of one that finds damage, or can't go on; 101 is what a program of Rust's ends with that has panicked.
const ANYTHING: [i32; 3] = [65, 70, 101];
/// Of one to which the disk has refused something.
const DISK: i32 = 74;
/// What nobody sends to itself. The first is also what the kernel sends where memory runs out.
const FROM_OUTSIDE: [Signal; 5] = [
    Signal::KILL,
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
];
/// A disk with less is full, in bytes.
const FULL: u64 = 16 << 20;

/// What may be at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing of the replica's.
    Elsewhere,
    /// Its state, at the most.
    State,
    /// Anything that it has.
    Anything,
}

impl Fault {
    /// Of a replica that has ended in this way, while it was to recover.
    pub fn of(status: ExitStatus, data: Option<&Path>) -> Fault {
        let is_from_outside = |signal| FROM_OUTSIDE.iter().any(|s| s.as_raw() == signal);
        match (status.code(), status.signal()) {
            (Some(code), _) if ELSEWHERE.contains(&code) => Fault::Elsewhere,
            (Some(code), _) if ANYTHING.contains(&code) => Fault::Anything,
            // It may be its log that fills it.
            (Some(DISK), _) if data.is_some_and(is_full) => Fault::Anything,
            (Some(_), _) => Fault::State,
            (None, Some(signal)) if is_from_outside(signal) => Fault::Elsewhere,
            (None, _) => Fault::Anything,
        }
    }

    /// How much the next start is to have, after one that had so much. The state goes first: the others have it as well, but what a replica has told them
    /// stands in its log alone.
    pub fn leaves(self, had: Keep) -> Keep {
        match (self, had) {
            (Fault::Elsewhere, had) => had,
            (_, Keep::All) => Keep::NoState,
            (_, Keep::NoLog) => Keep::Nothing,
            (Fault::State, had) => had,
            (Fault::Anything, _) => Keep::Nothing,
        }
    }
}

/// Whether the disk takes next to nothing more.
fn is_full(data: &Path) -> bool {
    statvfs(data).is_ok_and(|disk| {
        let bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
        bytes < FULL || disk.f_files > 0 && disk.f_favail == 0
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::left_out;
    use super::*;

    /// What ends a replica from outside costs it nothing; a log goes only for what may be the log's doing, and after the state.
    #[test]
    fn a_log_goes_only_for_what_may_be_its_doing() {
        let exited = |code: i32| Fault::of(ExitStatus::from_raw(code << 8), None);
        let killed = |signal: Signal| Fault::of(ExitStatus::from_raw(signal.as_raw()), None);
        let leaves = |faults: &[Fault]| faults.iter().fold(Keep::All, |keep, f| f.leaves(keep));
        let outside = [killed(Signal::KILL), killed(Signal::TERM), exited(0)];
        let lacks = [1, 2, 66, 69, 75, 77, 78, 126, 127].map(exited);
        assert_eq!(leaves(&outside), Keep::All);
        assert_eq!(leaves(&lacks), Keep::All);
        assert_eq!(leaves(&[exited(74)]), Keep::NoState);
        assert_eq!(leaves(&[exited(74), exited(74), exited(3)]), Keep::NoState);
        for own in [exited(65), exited(70), exited(101), killed(Signal::SEGV)] {
            assert_eq!(leaves(&[own]), Keep::NoState);
            assert_eq!(leaves(&[own, own]), Keep::Nothing);
            assert_eq!(leaves(&[exited(74), own, exited(74)]), Keep::Nothing);
        }
    }

    /// A disk that is full may be full of the log. A directory that is not there is on none.
    #[test]
    fn a_full_disk_is_told_from_a_bad_one() {
        let place = tempfile::tempdir().unwrap();
        assert!(!is_full(place.path()) && !is_full(&place.path().join("none")));
        if !rustix::process::geteuid().is_root() {
            return left_out("only root can make a small disk");
        }
        use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
        let size = Some(c"size=1m");
        mount("tmpfs", place.path(), "tmpfs", MountFlags::empty(), size).unwrap();
        let status = ExitStatus::from_raw(74 << 8);
        let fault = Fault::of(status, Some(place.path()));
        unmount(place.path(), UnmountFlags::DETACH).unwrap();
        assert_eq!(fault, Fault::Anything);
    }
}
