//! A file system as a workload sees it: a directory, and a stopwatch that also counts processor time.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::{Advice, fadvise};
use serde::Serialize;

use super::nfs::Endpoint;
use crate::{clock, cpu};

/// What a phase's figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// Seconds that it took; less is better.
    #[serde(rename = "s")]
    Seconds,
    /// Megabytes in a second.
    #[serde(rename = "MB/s")]
    Megabytes,
    /// Operations in a second.
    #[serde(rename = "1/s")]
    Operations,
}

/// Processor time, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cpu {
    /// Of all replicas together.
    pub replicas: f64,
    /// Of the process that serves the mount.
    pub mount: f64,
    /// Of the process in which the workload is.
    pub workload: f64,
}

/// A part of a workload, once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// Its name.
    pub name: &'static str,
    /// What its figure counts.
    pub unit: Unit,
    /// The figure.
    pub value: f64,
    /// How many operations or megabytes it did; 1 where it is the time that counts.
    pub amount: f64,
    /// Processor time in all.
    pub cpu: Cpu,
}

/// The processes that serve a file system; none for the kernel's own.
#[derive(Clone, Debug, Default)]
pub struct Processes {
    /// The replicas.
    pub replicas: Vec<u32>,
    /// The mount's.
    pub mount: Option<u32>,
}

impl Processes {
    /// Their processor time, and this process's own.
    ///
    /// # Errors
    /// Where one has ended.
    pub fn cpu(&self) -> Result<Cpu> {
        Ok(Cpu {
            replicas: cpu::total(&self.replicas)?,
            mount: self.mount.map_or(Ok(0.0), cpu::seconds)?,
            workload: cpu::seconds(std::process::id())?,
        })
    }
}

/// Where a workload works.
#[derive(Clone, Debug)]
pub struct Site {
    /// A directory of its own on the file system.
    pub directory: PathBuf,
    /// Where it is served over NFS, for the client of this crate; then nothing is mounted.
    pub nfs: Option<Endpoint>,
    /// Directories of the local disk in which the file system keeps what it holds.
    pub beneath: Vec<PathBuf>,
    /// Who serves it.
    pub processes: Processes,
    /// Set when nobody wants the figures any more.
    pub stop: Arc<AtomicBool>,
}

impl Site {
    /// Whether a loop is to go on. Asked between any two files, so that a workload ends soon when it is to end.
    ///
    /// # Errors
    /// Where it is not.
    pub fn go_on(&self) -> Result<()> {
        match self.stop.load(Ordering::Relaxed) {
            true => bail!("ended before it was done"),
            false => Ok(()),
        }
    }

    /// Makes a new directory of this name.
    ///
    /// # Errors
    /// Where the file system does not.
    pub fn make(&self, name: &str) -> Result<PathBuf> {
        let path = self.directory.join(name);
        std::fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// Takes a directory away with all that is in it.
    ///
    /// # Errors
    /// Where the file system does not.
    pub fn remove(&self, directory: &Path) -> Result<()> {
        let what = || directory.display().to_string();
        for entry in std::fs::read_dir(directory).with_context(what)? {
            self.go_on()?;
            let entry = entry.with_context(what)?;
            match entry.file_type().with_context(what)?.is_dir() {
                true => self.remove(&entry.path())?,
                false => std::fs::remove_file(entry.path()).with_context(what)?,
            }
        }
        std::fs::remove_dir(directory).with_context(what)
    }

    /// Has the kernel forget what it holds of a file that was synced, and of all that the file system keeps on the disk.
    ///
    /// # Errors
    /// Where a file can't be opened.
    pub fn forget(&self, path: &Path) -> Result<()> {
        forget_file(path)?;
        self.forget_beneath()
    }

    /// Has the kernel forget what it holds of all that the file system keeps on the disk.
    ///
    /// # Errors
    /// Where a file can't be opened.
    pub fn forget_beneath(&self) -> Result<()> {
        self.beneath
            .iter()
            .try_for_each(|beneath| forget_all(beneath))
    }

    /// Has the kernel forget what it holds of a file, once that is on the disk.
    ///
    /// # Errors
    /// Where the file can't be opened or written.
    pub fn forget_one(&self, path: &Path) -> Result<()> {
        File::open(path)?.sync_all()?;
        forget_file(path)
    }

    /// Does the same with several threads on this one mount, each of which is told which it is. The sum of what they say.
    ///
    /// # Errors
    /// Where one failed: the first one's error.
    pub fn clients(&self, count: usize, work: impl Fn(usize) -> Result<u64> + Sync) -> Result<u64> {
        let work = &work;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..count)
                .map(|client| scope.spawn(move || work(client)))
                .collect();
            let results: Vec<_> = threads
                .into_iter()
                .map(|thread| thread.join().map_err(|_| anyhow!("a client panicked"))?)
                .collect();
            results.into_iter().sum()
        })
    }
}

fn forget_file(path: &Path) -> Result<()> {
    let forget = || fadvise(&File::open(path)?, 0, None, Advice::DontNeed).map_err(Into::into);
    forget().or_else(|e: std::io::Error| match e.kind() {
        // Logs and stores change while they are looked at.
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(e).with_context(|| path.display().to_string()),
    })
}

fn forget_all(directory: &Path) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Ok(());
    };
    for entry in entries {
        let Ok(entry) = entry else { continue };
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => forget_all(&entry.path())?,
            Ok(kind) if kind.is_file() => forget_file(&entry.path())?,
            _ => {}
        }
    }
    Ok(())
}

/// Times the phases of a workload.
#[derive(Debug)]
pub struct Meter<'a> {
    /// Where it works.
    pub site: &'a Site,
    phases: Vec<Phase>,
}

impl<'a> Meter<'a> {
    /// Nothing timed yet.
    pub fn new(site: &'a Site) -> Meter<'a> {
        Meter {
            site,
            phases: Vec::new(),
        }
    }

    /// A phase of which the time counts.
    ///
    /// # Errors
    /// Where it fails.
    pub fn time<T>(&mut self, name: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.phase(name, Unit::Seconds, || Ok((work()?, 1.0)))
    }

    /// A phase that says how many bytes it has moved.
    ///
    /// # Errors
    /// Where it fails.
    pub fn bytes(&mut self, name: &'static str, work: impl FnOnce() -> Result<u64>) -> Result<()> {
        self.phase(name, Unit::Megabytes, || Ok(((), work()? as f64 / 1e6)))
    }

    /// A phase that says how many operations it has done.
    ///
    /// # Errors
    /// Where it fails.
    pub fn operations(
        &mut self,
        name: &'static str,
        work: impl FnOnce() -> Result<u64>,
    ) -> Result<()> {
        self.phase(name, Unit::Operations, || Ok(((), work()? as f64)))
    }

    fn phase<T>(
        &mut self,
        name: &'static str,
        unit: Unit,
        work: impl FnOnce() -> Result<(T, f64)>,
    ) -> Result<T> {
        let processes = &self.site.processes;
        let (before, started) = (processes.cpu()?, clock());
        let (result, amount) = work().context(name)?;
        let (took, after) = (started.elapsed().as_secs_f64(), processes.cpu()?);
        let value = match unit {
            Unit::Seconds => took,
            Unit::Megabytes | Unit::Operations => amount / took,
        };
        let cpu = Cpu {
            replicas: after.replicas - before.replicas,
            mount: after.mount - before.mount,
            workload: after.workload - before.workload,
        };
        self.phases.push(Phase {
            name,
            unit,
            value,
            amount,
            cpu,
        });
        Ok(result)
    }

    /// Adds the sum of the phases so far, all of which count time.
    pub fn total(&mut self) {
        let sum = |of: fn(&Phase) -> f64| self.phases.iter().map(of).sum();
        let total = Phase {
            name: "all",
            unit: Unit::Seconds,
            value: sum(|p| p.value),
            amount: 1.0,
            cpu: Cpu {
                replicas: sum(|p| p.cpu.replicas),
                mount: sum(|p| p.cpu.mount),
                workload: sum(|p| p.cpu.workload),
            },
        };
        self.phases.push(total);
    }

    /// What was timed.
    pub fn phases(self) -> Vec<Phase> {
        self.phases
    }
}

/// An end in time for work that has none.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Instant);

impl Deadline {
    /// So many seconds from now.
    pub fn after(seconds: f64) -> Deadline {
        Deadline(clock() + Duration::from_secs_f64(seconds))
    }

    /// Whether it has passed.
    pub fn passed(self) -> bool {
        clock() >= self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(directory: &Path) -> Site {
        Site {
            directory: directory.to_owned(),
            nfs: None,
            beneath: vec![directory.to_owned()],
            processes: Processes::default(),
            stop: Arc::default(),
        }
    }

    /// Figures are what was done in the time, and the total is their sum; what fails says in which phase.
    #[test]
    fn phases_are_timed() {
        let directory = tempfile::tempdir().unwrap();
        let site = site(directory.path());
        let mut meter = Meter::new(&site);
        let nap = || {
            std::thread::sleep(Duration::from_millis(20));
            Ok(1_000_000)
        };
        meter.time("a", nap).unwrap();
        meter.time("b", nap).unwrap();
        meter.total();
        meter.bytes("c", nap).unwrap();
        let failed = meter.time("d", || bail!("so")).map(|(): ()| ());
        assert_eq!(failed.unwrap_err().to_string(), "d");
        let phases = meter.phases();
        assert_eq!(phases.len(), 4);
        assert_eq!(phases[2].value, phases[0].value + phases[1].value);
        assert!(phases[3].value < 50.0 && phases[3].unit == Unit::Megabytes);
    }

    /// Clients work at the same time and are told apart; one that fails or panics fails all; a site that is to end says so.
    #[test]
    fn clients_are_threads() {
        let directory = tempfile::tempdir().unwrap();
        let site = site(directory.path());
        let barrier = std::sync::Barrier::new(3);
        let sum = site.clients(3, |client| {
            barrier.wait();
            Ok(client as u64)
        });
        assert_eq!(sum.unwrap(), 3);
        let one_fails = |client| match client {
            0 => Ok(1),
            _ => bail!("so"),
        };
        assert!(site.clients(2, one_fails).is_err());
        std::fs::write(directory.path().join("stays"), "").unwrap();
        site.stop.store(true, Ordering::Relaxed);
        assert!(site.go_on().is_err());
        assert!(site.remove(directory.path()).is_err());
        assert!(directory.path().join("stays").exists());
    }

    /// A tree goes with all that is in it; what the kernel has forgotten is still on the disk.
    #[test]
    fn directories_go() {
        let directory = tempfile::tempdir().unwrap();
        let site = site(directory.path());
        let tree = site.make("tree").unwrap();
        std::fs::create_dir(tree.join("in it")).unwrap();
        std::fs::write(tree.join("in it/file"), "abc").unwrap();
        site.forget(&tree.join("in it/file")).unwrap();
        assert_eq!(std::fs::read(tree.join("in it/file")).unwrap(), b"abc");
        assert!(site.make("tree").is_err());
        site.remove(&tree).unwrap();
        assert!(!tree.exists());
    }
}
