//! An end to tests that hang: a call into a mount whose group does not answer waits for ever, as it should.

use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// The mounts of a group; when the time is over, their processes are killed, so that all calls into them fail.
#[derive(Debug)]
pub struct Watchdog {
    mounts: Mounts,
    _stop: Sender<()>,
}

/// The mount processes that live, with their logs.
#[derive(Clone, Debug, Default)]
pub struct Mounts(Arc<Mutex<Vec<(Pid, PathBuf)>>>);

impl Watchdog {
    pub fn start(limit: Duration) -> Watchdog {
        let mounts = Mounts::default();
        let (stop, stopped) = mpsc::channel::<()>();
        let watched = mounts.clone();
        std::thread::spawn(move || {
            // The sender says nothing; its end is the test's.
            if stopped.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("the test hangs: after {limit:?} its mounts are ended");
                watched.kill_all();
            }
        });
        Watchdog {
            mounts,
            _stop: stop,
        }
    }

    pub fn mounts(&self) -> Mounts {
        self.mounts.clone()
    }
}

impl Mounts {
    fn list(&self) -> MutexGuard<'_, Vec<(Pid, PathBuf)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, pid: Pid, log: PathBuf) {
        self.list().push((pid, log));
    }

    /// To be called before the process is waited for: its number may then become another's.
    pub fn remove(&self, pid: Pid) {
        self.list().retain(|(known, _)| *known != pid);
    }

    fn kill_all(&self) {
        for (pid, log) in self.list().iter() {
            eprintln!(
                "  mount process {pid:?} said:\n{}",
                super::last_lines(log, 20)
            );
            // It may have ended by itself.
            let _ = kill_process(*pid, Signal::KILL);
        }
    }
}
