//! The workloads by name.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tokio::sync::oneshot;

use super::site::{Meter, Phase, Site};
use super::{andrew, blocks, bonnie, iozone, over_nfs, postmark, search, small};

/// How long one may take, on one file system.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Andrew: directories, copies, status, contents, compilation.
    Andrew {
        /// How many copies of the sources.
        copies: usize,
    },
    /// PostMark: a mail server's files.
    PostMark {
        /// Of ten transactions, how many read rather than append.
        read_bias: u32,
        /// Threads, each with files of its own.
        clients: usize,
    },
    /// Unpack 2,000 files, read them, remove 4,000.
    Small,
    /// IOzone's write and random mix, in files of 256 KB.
    Iozone {
        /// Threads, each with files of its own.
        clients: usize,
    },
    /// One large file in order.
    Bonnie,
    /// The same over NFS.
    OverNfs,
    /// `find` and `grep` over a source tree.
    Search,
    /// 4 KiB at random places of one file.
    Reads {
        /// Threads.
        readers: usize,
    },
    /// 4 KiB, then fsync.
    SyncedWrites {
        /// Threads, each with a file of its own.
        writers: usize,
    },
}

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Only that everything runs.
    pub quick: bool,
    /// How long what has no end of its own goes on.
    pub seconds: f64,
}

impl Scale {
    /// So many, or so few where it is to be quick.
    pub fn of(self, usual: usize, quick: usize) -> usize {
        match self.quick {
            true => quick,
            false => usual,
        }
    }
}

impl Work {
    /// The part of the benchmark, by which figures go into tables and plots.
    pub fn part(self) -> &'static str {
        match self {
            Work::Andrew { .. } => "Andrew",
            Work::PostMark { .. } => "PostMark",
            Work::Small => "small files",
            Work::Iozone { .. } => "IOzone",
            Work::Bonnie => "Bonnie",
            Work::OverNfs => "over NFS",
            Work::Search => "search",
            Work::Reads { .. } => "4 KiB reads",
            Work::SyncedWrites { .. } => "4 KiB writes",
        }
    }

    /// What sets it apart from others of the part, beside the number of clients.
    pub fn kind(self) -> String {
        match self {
            Work::Andrew { copies } => format!(", n = {copies}"),
            Work::PostMark { read_bias, .. } => format!(", read bias {read_bias}"),
            _ => String::new(),
        }
    }

    /// How many threads there are at the same time.
    pub fn clients(self) -> usize {
        match self {
            Work::Andrew { .. } | Work::Small | Work::Bonnie | Work::OverNfs | Work::Search => 1,
            Work::PostMark { clients, .. } | Work::Iozone { clients } => clients,
            Work::Reads { readers } => readers,
            Work::SyncedWrites { writers } => writers,
        }
    }

    fn run(self, meter: &mut Meter<'_>, scale: Scale) -> Result<()> {
        match self {
            Work::Andrew { copies } => andrew::run(meter, scale, copies),
            Work::PostMark { read_bias, clients } => {
                postmark::run(meter, scale, read_bias, clients)
            }
            Work::Small => small::run(meter, scale),
            Work::Iozone { clients } => iozone::run(meter, scale, clients),
            Work::Bonnie => bonnie::run(meter, scale),
            Work::OverNfs => over_nfs::run(meter, scale),
            Work::Search => search::run(meter, scale),
            Work::Reads { readers } => blocks::read(meter, scale, readers),
            Work::SyncedWrites { writers } => blocks::write(meter, scale, writers),
        }
    }

    /// Does it, in a thread of its own: calls of a file system that hangs don't return before it is ended. What it leaves behind is
    /// taken away.
    ///
    /// # Errors
    /// Where the file system fails, is wrong, or takes too long.
    pub async fn measure(self, site: &Site, scale: Scale) -> Result<Vec<Phase>> {
        let (done, wait) = oneshot::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let own = Site {
            stop: stop.clone(),
            ..site.clone()
        };
        let thread = std::thread::spawn(move || {
            // Nobody hears it who has ended the benchmark.
            let _ = done.send(self.run_in(&own, scale));
        });
        let _worker = Worker { stop, thread };
        match tokio::time::timeout(LIMIT, wait).await {
            Ok(Ok(phases)) => phases,
            Ok(Err(_)) => Err(anyhow!("the workload panicked")),
            Err(_) => Err(anyhow!("took more than {} s", LIMIT.as_secs())),
        }
    }

    fn run_in(self, site: &Site, scale: Scale) -> Result<Vec<Phase>> {
        let directory = site.make("work")?;
        let own = Site {
            directory: directory.clone(),
            ..site.clone()
        };
        let mut meter = Meter::new(&own);
        self.run(&mut meter, scale)?;
        let phases = meter.phases();
        site.remove(&directory).context("cleaning up")?;
        Ok(phases)
    }
}

/// The thread of a workload. Whoever gives up waiting for it stops it: its directory is about to go.
#[derive(Debug)]
struct Worker {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A while for the call that it is in; it may hang until the mount is ended, which comes next.
        const LOOKS: usize = 100;
        const PAUSE: Duration = Duration::from_millis(10);
        self.stop.store(true, Ordering::Relaxed);
        for _ in 0..LOOKS {
            if self.thread.is_finished() {
                break;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::site::Processes;

    const QUICK: Scale = Scale {
        quick: true,
        seconds: 0.02,
    };
    const ALL: [Work; 7] = [
        Work::Andrew { copies: 2 },
        Work::PostMark {
            read_bias: 5,
            clients: 2,
        },
        Work::Small,
        Work::Iozone { clients: 2 },
        Work::Bonnie,
        Work::Reads { readers: 2 },
        Work::SyncedWrites { writers: 2 },
    ];

    fn site(directory: &std::path::Path) -> Site {
        Site {
            directory: directory.to_owned(),
            nfs: None,
            beneath: vec![directory.to_owned()],
            processes: Processes::default(),
            stop: Arc::default(),
        }
    }

    /// Each workload runs to its end on a directory, has figures, and leaves nothing.
    #[tokio::test]
    async fn all_run() {
        let directory = tempfile::tempdir().unwrap();
        for work in ALL {
            let phases = work.measure(&site(directory.path()), QUICK).await.unwrap();
            assert!(!phases.is_empty());
            for phase in phases {
                assert!(phase.value > 0.0, "{work:?}: {phase:?}");
            }
            let left = std::fs::read_dir(directory.path()).unwrap();
            assert_eq!(left.count(), 0, "{work:?}");
        }
    }

    /// Each ends soon when it is to end.
    #[test]
    fn all_stop() {
        let directory = tempfile::tempdir().unwrap();
        for (at, work) in ALL.into_iter().enumerate() {
            let own = directory.path().join(at.to_string());
            std::fs::create_dir(&own).unwrap();
            let site = site(&own);
            site.stop.store(true, Ordering::Relaxed);
            assert!(work.run_in(&site, QUICK).is_err(), "{work:?}");
        }
    }

    /// A file that is changed behind a workload's back is noticed.
    #[test]
    fn wrong_bytes_are_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let site = site(directory.path());
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, root) = (stop.clone(), directory.path().join("work"));
        let vandal = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                spoil(&root);
            }
        });
        let lasting = Scale {
            seconds: 60.0,
            ..QUICK
        };
        let work = Work::Reads { readers: 1 };
        let failed = work.run_in(&site, lasting).unwrap_err();
        stop.store(true, Ordering::Relaxed);
        vandal.join().unwrap();
        assert!(
            format!("{failed:#}").contains("not what was written"),
            "{failed:#}"
        );
    }

    /// Changes a byte of the file of random reads, once it is whole.
    fn spoil(work: &std::path::Path) {
        use std::os::unix::fs::FileExt;
        let path = work.join("random reads/file");
        let Ok(file) = std::fs::OpenOptions::new().write(true).open(path) else {
            return;
        };
        let whole = |len| len == 1 << 20;
        if file.metadata().is_ok_and(|m| whole(m.len())) {
            file.write_all_at(b"x", 123_456).unwrap();
        }
    }
}
