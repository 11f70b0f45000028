//! The file systems that are compared, each ready to be worked on.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};
use quorate_net::group::Durability;
use serde::Serialize;
use tempfile::TempDir;
use tokio::process::Command;

use super::Options;
use super::mounted::{self, Mounted};
use super::service::Serving;
use super::site::{Processes, Site};
use crate::clock;
use crate::credentials;
use crate::group::{Running, Setup};
use crate::micro;

/// Threads of CBASE that execute operations: as the paper's, and as many as the most clients where each waits.
const WORKERS: usize = 16;
const WAITING_WORKERS: usize = 64;
/// The passthrough, where it is installed.
const PASSTHROUGH: &str = "bindfs";

/// A file system to be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct System {
    /// Its name in tables.
    pub name: String,
    /// How it comes about.
    pub kind: Kind,
}

/// How a file system comes about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory of the disk.
    Local,
    /// The same through a FUSE file system that passes everything on.
    Passthrough,
    /// What somebody has mounted.
    Given(PathBuf),
    /// A group of ours, mounted by ours.
    Group {
        /// How many replicas.
        replicas: usize,
        /// Threads that execute.
        workers: usize,
        /// What each does with an operation.
        serving: Serving,
        /// Of how many links the credential is by which it is mounted; 0: none, but the group has an owner. Without a word the group has none.
        chain: Option<usize>,
    },
}

/// What was not measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// The file system.
    pub system: String,
    /// Why.
    pub reason: String,
}

/// The names by which tables compare.
pub const PASSED: &str = "passthrough";
/// Four replicas that execute one operation after the other.
pub const BASE: &str = "BASE-FS";
/// Four replicas that execute what does not conflict at the same time.
pub const CBASE: &str = "CBASE-FS";

fn group(name: &str, replicas: usize, workers: usize, serving: Serving) -> System {
    System {
        name: name.into(),
        kind: Kind::Group {
            replicas,
            workers,
            serving,
            chain: None,
        },
    }
}

/// All systems, and what can't be measured here.
pub fn all(given: &[(String, PathBuf)]) -> (Vec<System>, Vec<LeftOut>) {
    let system = |name: &str, kind| System {
        name: name.into(),
        kind,
    };
    let mut systems = vec![system("local", Kind::Local)];
    let mut left_out = Vec::new();
    match is_installed(PASSTHROUGH) {
        true => systems.push(system(PASSED, Kind::Passthrough)),
        false => left_out.push(LeftOut {
            system: PASSED.into(),
            reason: format!("{PASSTHROUGH} is not installed"),
        }),
    }
    for (name, directory) in given {
        systems.push(system(name, Kind::Given(directory.clone())));
    }
    for other in ["nfs-ganesha", "GlusterFS"] {
        if given.iter().all(|(name, _)| name != other) {
            left_out.push(LeftOut {
                system: other.into(),
                reason: format!("not mounted for this run (--beside {other}=DIR)"),
            });
        }
    }
    let cbase = Serving::default();
    systems.extend([
        group("NO-REP", 1, WORKERS, cbase),
        group(BASE, 4, 1, base(0)),
        group(CBASE, 4, WORKERS, cbase),
    ]);
    (systems, left_out)
}

/// The two of which the papers tell how they do where each write waits.
pub fn waiting(wait_ms: u32) -> Vec<System> {
    let cbase = Serving {
        wait_ms,
        ..Serving::default()
    };
    vec![
        group(BASE, 4, 1, base(wait_ms)),
        group(CBASE, 4, WAITING_WORKERS, cbase),
    ]
}

fn base(wait_ms: u32) -> Serving {
    Serving {
        all_conflict: true,
        wait_ms,
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// A file system that can be worked on. Its processes and files go with it.
#[derive(Debug)]
pub struct Started {
    /// What a workload is given.
    pub site: Site,
    // In this order: what a mount has still to write needs its replicas.
    mounted: Option<Mounted>,
    group: Option<Running>,
    _place: Option<TempDir>,
}

impl Started {
    /// Starts it, with its files under the options' directory for data.
    ///
    /// # Errors
    /// Where it does not start.
    pub async fn start(system: &System, options: &Options) -> Result<Started> {
        let started = match &system.kind {
            Kind::Local => Ok(plain(mounted::place(&options.run.data)?)),
            Kind::Given(directory) => {
                // Without a word of where else its files are, that is all that can be forgotten.
                mounted::place(directory).map(plain)
            }
            Kind::Passthrough => passthrough(options).await,
            Kind::Group {
                replicas,
                workers,
                serving,
                chain,
            } => replicated((*replicas, *workers, *serving), *chain, options).await,
        };
        started.with_context(|| system.name.clone())
    }

    /// Waits until the file system has done what a workload has left it to do later, for a short while at most. So none pays for another.
    ///
    /// # Errors
    /// Where one of its processes has ended.
    pub async fn calm_down(&self) -> Result<()> {
        const LOOK: Duration = Duration::from_millis(200);
        const PATIENCE: Duration = Duration::from_secs(5);
        /// Of a processor: what a group takes that nobody asks for anything.
        const CALM: f64 = 0.1;
        let end = clock() + PATIENCE;
        let busy = || {
            let cpu = self.site.processes.cpu()?;
            anyhow::Ok(cpu.replicas + cpu.mount)
        };
        let mut before = busy()?;
        loop {
            tokio::time::sleep(LOOK).await;
            let now = busy()?;
            if now - before <= CALM * LOOK.as_secs_f64() || clock() > end {
                return Ok(());
            }
            before = now;
        }
    }

    /// What the file system's processes have said last, for when something goes wrong.
    pub fn last_words(&self) -> String {
        let mount = self.mounted.iter().map(Mounted::last_words);
        let group = self.group.iter().map(Running::last_words);
        mount.chain(group).collect()
    }

    /// Ends it in order.
    ///
    /// # Errors
    /// Where something does not end.
    pub async fn stop(self) -> Result<()> {
        let Started { mounted, group, .. } = self;
        if let Some(mounted) = mounted {
            mounted.stop().await?;
        }
        if let Some(group) = group {
            group.stop().await?;
        }
        Ok(())
    }
}

/// A directory in which nothing is mounted by us.
fn plain(place: TempDir) -> Started {
    Started {
        site: site(mounted::point(&place), place.path(), Processes::default()),
        mounted: None,
        group: None,
        _place: Some(place),
    }
}

async fn passthrough(options: &Options) -> Result<Started> {
    let place = mounted::place(&options.run.data)?;
    let beneath = place.path().join("beneath");
    std::fs::create_dir(&beneath)?;
    let mut command = Command::new(PASSTHROUGH);
    // As many threads as are asked for, as with ours.
    command.args(["-f", "--multithreaded"]).arg(&beneath);
    command.arg(mounted::point(&place));
    let mounted = Mounted::start(&mut command, place, &options.umount).await?;
    let processes = Processes {
        replicas: Vec::new(),
        mount: Some(mounted.pid()),
    };
    Ok(Started {
        site: site(mounted.directory(), &beneath, processes),
        mounted: Some(mounted),
        group: None,
        _place: None,
    })
}

async fn replicated(
    (replicas, workers, serving): (usize, usize, Serving),
    chain: Option<usize>,
    options: &Options,
) -> Result<Started> {
    let setup = Setup {
        replicas,
        workers,
        files: Some(serving),
        owned: chain.is_some(),
        ..micro::variant("files", replicas, Durability::Disk).setup
    };
    let group = Running::start(&setup, 1, &options.run.data, &options.run.launcher).await?;
    let place = mounted::place(&options.run.data)?;
    let mut command = Command::new(&options.mount.program);
    command.args(&options.mount.arguments).arg(group.file());
    command.arg(mounted::point(&place));
    if let Some(links @ 1..) = chain {
        let owner = group.owner().context("the group has an owner")?;
        let (key, file) = credentials::credential(group.group(), owner, links, group.directory())?;
        command.arg("--key").arg(key).arg("--credential").arg(file);
    }
    let mounted = Mounted::start(&mut command, place, &options.umount).await;
    let mounted = mounted.with_context(|| group.last_words())?;
    let processes = Processes {
        replicas: group.pids().to_vec(),
        mount: Some(mounted.pid()),
    };
    Ok(Started {
        site: site(mounted.directory(), group.directory(), processes),
        mounted: Some(mounted),
        group: Some(group),
        _place: None,
    })
}

fn site(directory: PathBuf, beneath: &Path, processes: Processes) -> Site {
    Site {
        directory,
        beneath: vec![beneath.to_owned()],
        processes,
        stop: Arc::new(AtomicBool::new(false)),
    }
}
