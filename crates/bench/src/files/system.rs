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
use super::front::Front;
use super::ganesha::{self, Ganesha};
use super::mounted::{self, Mounted};
use super::nfs::Nfs;
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
    /// nfs-ganesha on a directory of the disk, for the NFS client of this crate.
    Ganesha,
    /// A group of ours.
    Group {
        /// How files are reached.
        way: Way,
        /// How many replicas.
        replicas: usize,
        /// Threads that execute.
        workers: usize,
        /// Whether those execute one operation after the other: BASE.
        one_by_one: bool,
        /// What each does with an operation.
        serving: Serving,
        /// Of how many links the credential is by which it is mounted; 0: none, but the group has an owner. Without a word the group has none.
        chain: Option<usize>,
    },
}

/// How a workload reaches a group's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A mount of ours.
    Mount,
    /// A front of ours, and the NFS client of this crate.
    Nfs,
}

impl System {
    /// Whether it is served over NFS, and not mounted.
    pub fn is_over_nfs(&self) -> bool {
        let nfs = Way::Nfs;
        matches!(self.kind, Kind::Ganesha)
            || matches!(self.kind, Kind::Group { way, .. } if way == nfs)
    }

    /// Whether a run can do without it: nobody has asked for it, and whether it starts is not up to us.
    pub fn can_be_missed(&self) -> bool {
        matches!(self.kind, Kind::Ganesha)
    }
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
            way: Way::Mount,
            replicas,
            workers,
            one_by_one: false,
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
    let other = "GlusterFS";
    if given.iter().all(|(name, _)| name != other) {
        left_out.push(LeftOut {
            system: other.into(),
            reason: format!("not mounted for this run (--beside {other}=DIR)"),
        });
    }
    let cbase = Serving::default();
    systems.extend([
        group("NO-REP", 1, WORKERS, cbase),
        base(0),
        group(CBASE, 4, WORKERS, cbase),
    ]);
    (systems, left_out)
}

/// nfs-ganesha, or why it can't be measured here.
pub fn ganesha() -> std::result::Result<System, LeftOut> {
    let name = || ganesha::NAME.to_owned();
    match ganesha::missing() {
        None => Ok(System {
            name: name(),
            kind: Kind::Ganesha,
        }),
        Some(reason) => Err(LeftOut {
            system: name(),
            reason,
        }),
    }
}

/// Groups as [`all`] has them, but over NFS.
pub fn over_nfs() -> Vec<System> {
    let (mut systems, _) = all(&[]);
    systems.retain_mut(|system| match &mut system.kind {
        Kind::Group { way, .. } => {
            *way = Way::Nfs;
            true
        }
        _ => false,
    });
    systems
}

/// The two of which the papers tell how they do where each write waits.
pub fn waiting(wait_ms: u32) -> Vec<System> {
    let cbase = Serving { wait_ms };
    vec![base(wait_ms), group(CBASE, 4, WAITING_WORKERS, cbase)]
}

fn base(wait_ms: u32) -> System {
    let mut base = group(BASE, 4, 1, Serving { wait_ms });
    if let Kind::Group { one_by_one, .. } = &mut base.kind {
        *one_by_one = true;
    }
    base
}

pub(super) fn is_installed(program: &str) -> bool {
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
    front: Option<Front>,
    group: Option<Running>,
    ganesha: Option<Ganesha>,
    _place: Option<TempDir>,
}

impl Started {
    fn of(site: Site) -> Started {
        Started {
            site,
            mounted: None,
            front: None,
            group: None,
            ganesha: None,
            _place: None,
        }
    }

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
            Kind::Ganesha => served(options).await,
            Kind::Group {
                way,
                replicas,
                workers,
                one_by_one,
                serving,
                chain,
            } => {
                let kind = (*replicas, *workers, *one_by_one, *serving);
                replicated(*way, kind, *chain, options).await
            }
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
        let front = self.front.iter().map(Front::last_words);
        let group = self.group.iter().map(Running::last_words);
        let ganesha = self.ganesha.iter().map(Ganesha::last_words);
        mount.chain(front).chain(group).chain(ganesha).collect()
    }

    /// Ends it in order.
    ///
    /// # Errors
    /// Where something does not end.
    pub async fn stop(self) -> Result<()> {
        let Started {
            mounted,
            front,
            group,
            ganesha,
            ..
        } = self;
        if let Some(mounted) = mounted {
            mounted.stop().await?;
        }
        if let Some(front) = front {
            front.stop().await?;
        }
        if let Some(ganesha) = ganesha {
            ganesha.stop().await?;
        }
        if let Some(group) = group {
            group.stop().await?;
        }
        Ok(())
    }
}

/// A directory in which nothing is mounted by us.
fn plain(place: TempDir) -> Started {
    let site = site(mounted::point(&place), place.path(), Processes::default());
    Started {
        _place: Some(place),
        ..Started::of(site)
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
    let site = site(mounted.directory(), &beneath, processes);
    Ok(Started {
        mounted: Some(mounted),
        ..Started::of(site)
    })
}

async fn served(options: &Options) -> Result<Started> {
    let ganesha = Ganesha::start(&options.run.data).await?;
    // It goes on without its export, where it can't serve that directory.
    let endpoint = ganesha.endpoint().clone();
    let mounted = tokio::task::spawn_blocking(move || Nfs::mount(&endpoint).map(drop));
    mounted.await?.with_context(|| ganesha.last_words())?;
    let place = mounted::place(&options.run.data)?;
    let processes = Processes {
        replicas: vec![ganesha.pid()],
        mount: None,
    };
    let site = Site {
        nfs: Some(ganesha.endpoint().clone()),
        ..site(mounted::point(&place), &ganesha.served(), processes)
    };
    Ok(Started {
        ganesha: Some(ganesha),
        _place: Some(place),
        ..Started::of(site)
    })
}

async fn replicated(
    way: Way,
    (replicas, workers, one_by_one, serving): (usize, usize, bool, Serving),
    chain: Option<usize>,
    options: &Options,
) -> Result<Started> {
    let setup = Setup {
        replicas,
        workers,
        one_by_one,
        files: Some(serving),
        owned: chain.is_some(),
        ..micro::variant("files", replicas, Durability::Disk).setup
    };
    let group = Running::start(&setup, 1, &options.run.data, &options.run.launcher).await?;
    let guest = match chain {
        Some(links @ 1..) => {
            let owner = group.owner().context("the group has an owner")?;
            let (about, beside) = (group.group(), group.directory());
            Some(credentials::credential(about, owner, links, beside)?)
        }
        _ => None,
    };
    let place = mounted::place(&options.run.data)?;
    let processes = |way: u32| Processes {
        replicas: group.pids().to_vec(),
        mount: Some(way),
    };
    let words = || group.last_words();
    Ok(match way {
        Way::Mount => {
            let mut command = Command::new(&options.mount.program);
            command.args(&options.mount.arguments).arg(group.file());
            command.arg(mounted::point(&place));
            if let Some((key, file)) = guest {
                command.arg("--key").arg(key).arg("--credential").arg(file);
            }
            let mounted = Mounted::start(&mut command, place, &options.umount).await;
            let mounted = mounted.with_context(words)?;
            let processes = processes(mounted.pid());
            let site = site(mounted.directory(), group.directory(), processes);
            Started {
                mounted: Some(mounted),
                group: Some(group),
                ..Started::of(site)
            }
        }
        Way::Nfs => {
            let front = Front::start(&options.nfs, &group.file(), guest.as_ref()).await;
            let front = front.with_context(words)?;
            let processes = processes(front.pid());
            let site = Site {
                nfs: Some(front.endpoint()),
                ..site(mounted::point(&place), group.directory(), processes)
            };
            Started {
                front: Some(front),
                group: Some(group),
                _place: Some(place),
                ..Started::of(site)
            }
        }
    })
}

fn site(directory: PathBuf, beneath: &Path, processes: Processes) -> Site {
    Site {
        directory,
        nfs: None,
        beneath: vec![beneath.to_owned()],
        processes,
        stop: Arc::new(AtomicBool::new(false)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// To BASE all operations conflict, on its one thread; to CBASE what the file service says.
    #[test]
    fn what_conflicts() {
        let (systems, _) = all(&[]);
        for systems in [systems, over_nfs(), waiting(20)] {
            let kind = |name: &str| {
                let found = systems.iter().find(|system| system.name == name);
                match &found.expect("it is there").kind {
                    Kind::Group {
                        workers,
                        one_by_one,
                        ..
                    } => (*workers, *one_by_one),
                    other => panic!("{other:?}"),
                }
            };
            assert_eq!(kind(BASE), (1, true));
            assert!(matches!(kind(CBASE), (2.., false)));
        }
    }
}
