//! Files: the same work on the local disk, on a FUSE file system that passes everything on, and on groups of ours.
//!
//! - [`system`]: the file systems; [`mounted`]: the process and directory of a mount; [`service`]: what a benchmark's replica serves.
//! - [`nfs`]: a client of NFS; [`ganesha`], [`front`]: the servers that it compares, nfs-ganesha and ours.
//! - [`work`]: the workloads by name. [`andrew`], [`postmark`], [`small`], [`iozone`], [`bonnie`], [`over_nfs`], [`blocks`], [`search`]: what they do. [`content`]: what is in files, so that what is
//!   read back can be checked.
//! - [`site`]: what a workload sees of a file system, and its stopwatch.
//! - [`figures`]: tables and plots.
//!
//! All file systems of a workload take turns within each round, so that what else happens on the machine and its one disk hits
//! them alike.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::group::Launcher;
use crate::progress::Progress;
use crate::report::{Report, median};
use crate::run;

pub mod andrew;
pub mod blocks;
pub mod bonnie;
pub mod content;
pub mod figures;
pub mod front;
pub mod ganesha;
pub mod iozone;
pub mod mounted;
pub mod nfs;
pub mod over_nfs;
pub mod postmark;
pub mod search;
pub mod service;
pub mod site;
pub mod small;
pub mod system;
pub mod work;

use site::{Cpu, Phase, Unit};
use system::{LeftOut, Started, System};
use work::{Scale, Work};

/// How long each write waits where the papers' servers did. The CBASE paper (DSN 2004), Figure 6.
const WAIT_MS: u32 = 20;

/// What is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// As for any benchmark.
    pub run: run::Options,
    /// How to start this program so that it mounts: before the group file and the directory.
    pub mount: Launcher,
    /// And so that it takes a mount away: before the directory.
    pub umount: Launcher,
    /// And so that it serves over NFS: before the group file.
    pub nfs: Launcher,
    /// Numbers of copies in Andrew.
    pub copies: Vec<usize>,
    /// Other file systems: a name and a directory on each.
    pub beside: Vec<(String, PathBuf)>,
}

/// A phase of a workload on a file system.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// See [`Work::part`].
    pub part: &'static str,
    /// The workload, as far as there are several in the part.
    pub workload: String,
    /// How long each write waits in the server.
    pub wait_ms: u32,
    /// How many threads work at the same time.
    pub clients: usize,
    /// The phase.
    pub phase: &'static str,
    /// What its figure counts.
    pub unit: Unit,
    /// The file system.
    pub system: String,
    /// The figure's median over the rounds.
    pub median: f64,
    /// Each round's.
    pub rounds: Vec<f64>,
    /// Processor time for an operation or megabyte, or for all of it where the figure is a time: seconds, medians.
    pub cpu: Cpu,
}

/// All of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Files {
    /// What is to be known of the machine.
    #[serde(flatten)]
    pub machine: Report,
    /// What was measured.
    pub files: Vec<Row>,
    /// What was not.
    pub left_out: Vec<LeftOut>,
}

/// A workload on file systems that serve it in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub work: Work,
    pub wait_ms: u32,
}

/// A large file by the NFS client of this crate.
pub(crate) const OVER_NFS: Case = Case {
    work: Work::OverNfs,
    wait_ms: 0,
};

impl Case {
    /// Whether the workload is for this way to reach files.
    fn suits(self, system: &System) -> bool {
        (self.work == Work::OverNfs) == system.is_over_nfs()
    }

    fn name(self, system: &System) -> String {
        let waits = match self.wait_ms {
            0 => String::new(),
            ms => format!(", {ms} ms a write"),
        };
        let Case { work, .. } = self;
        let (part, clients) = (work.part(), work.clients());
        format!(
            "{part}{}, {clients} clients{waits}, {}",
            work.kind(),
            system.name
        )
    }
}

/// Runs the benchmark.
///
/// # Errors
/// Where a file system does not start, fails, or does not hold what was written.
pub async fn run(options: &Options, files: &mut Files) -> Result<()> {
    quorate_net::open_files::allow_many();
    let (systems, left_out) = system::all(&options.beside);
    left_out.into_iter().for_each(|one| files.leave_out(one));
    let cases = cases(options);
    let (quick, slow): (Vec<_>, Vec<_>) = cases.iter().partition(|case| case.wait_ms == 0);
    let over_nfs = over_nfs(system::over_nfs(), files);
    let parts = [
        (systems, quick),
        (over_nfs, vec![OVER_NFS]),
        (system::waiting(WAIT_MS), slow),
    ];
    measure(options, &parts, files).await
}

/// What is served over NFS, with nfs-ganesha in front where that can run.
pub(crate) fn over_nfs(mut systems: Vec<System>, files: &mut Files) -> Vec<System> {
    match system::ganesha() {
        Ok(ganesha) => systems.insert(0, ganesha),
        Err(left_out) => files.leave_out(left_out),
    }
    systems
}

impl Files {
    /// Nothing yet.
    pub fn new(options: &Options) -> Files {
        Files {
            machine: Report::new("files", options.run.seconds, &options.run.data),
            files: Vec::new(),
            left_out: Vec::new(),
        }
    }

    fn leave_out(&mut self, left_out: LeftOut) {
        eprintln!("{} is left out: {}", left_out.system, left_out.reason);
        self.left_out.push(left_out);
    }
}

fn cases(options: &Options) -> Vec<Case> {
    let few_or = |usual: &[usize]| match options.run.quick {
        true => vec![2],
        false => usual.to_vec(),
    };
    let andrew = options.copies.iter();
    let andrew = andrew.map(|copies| Work::Andrew { copies: *copies });
    let post_mark = |read_bias| {
        let clients = few_or(&[1, 2, 4]).into_iter();
        clients.map(move |clients| Work::PostMark { read_bias, clients })
    };
    let iozone = |clients| Work::Iozone { clients };
    let read = |readers| Work::Reads { readers };
    let write = |writers| Work::SyncedWrites { writers };
    let at_once = andrew
        .chain(post_mark(9))
        .chain(post_mark(1))
        .chain([Work::Small])
        .chain(few_or(&[1, 4, 16]).into_iter().map(iozone))
        .chain([Work::Bonnie])
        .chain(few_or(&[1, 16]).into_iter().map(read))
        .chain(few_or(&[1, 16, 64]).into_iter().map(write));
    let at_once = at_once.map(|work| Case { work, wait_ms: 0 });
    let waiting = few_or(&[1, 4, 16, 64]).into_iter().map(write);
    let waiting = waiting.chain(few_or(&[16]).into_iter().map(iozone));
    let waiting = waiting.map(|work| Case {
        work,
        wait_ms: WAIT_MS,
    });
    at_once.chain(waiting).collect()
}

/// Measures all parts, one after the other: in each the same cases on systems that are up at once.
pub(crate) async fn measure(
    options: &Options,
    parts: &[(Vec<System>, Vec<Case>)],
    files: &mut Files,
) -> Result<()> {
    let of_part = |(systems, cases): &(Vec<System>, Vec<Case>)| -> usize {
        let of = |system| wanted(options, cases, system).count();
        systems.iter().map(of).sum()
    };
    let all: usize = parts.iter().map(of_part).sum();
    let mut progress = Progress::new(all * options.run.rounds);
    for (systems, cases) in parts {
        measure_part(options, systems, cases, &mut progress, files).await?;
    }
    Ok(())
}

/// The cases that are to be measured on a system.
fn wanted<'a>(
    options: &'a Options,
    cases: &'a [Case],
    system: &'a System,
) -> impl Iterator<Item = Case> + 'a {
    cases.iter().copied().filter(|case| {
        let name = case.name(system);
        case.suits(system) && options.run.only.iter().all(|word| name.contains(word))
    })
}

async fn measure_part(
    options: &Options,
    systems: &[System],
    cases: &[Case],
    progress: &mut Progress,
    files: &mut Files,
) -> Result<()> {
    let mut started = Vec::new();
    for system in systems {
        let wanted = wanted(options, cases, system).count();
        if wanted == 0 {
            continue;
        }
        match Started::start(system, options).await {
            Ok(running) => started.push((system, running)),
            Err(why) if system.can_be_missed() => {
                progress.skip(wanted * options.run.rounds);
                files.leave_out(LeftOut {
                    system: system.name.clone(),
                    reason: format!("{why:#}"),
                });
            }
            Err(why) => return Err(why),
        }
    }
    let turns = |case: Case| {
        started
            .iter()
            .filter(move |(system, _)| wanted(options, &[case], system).next().is_some())
    };
    let scale = Scale {
        quick: options.run.quick,
        seconds: options.run.seconds,
    };
    for case in cases {
        let first = files.files.len();
        let mut rounds = vec![Vec::new(); turns(*case).count()];
        for _ in 0..options.run.rounds {
            for (at, (system, started)) in turns(*case).enumerate() {
                let name = case.name(system);
                started.calm_down().await?;
                let phases = case.work.measure(&started.site, scale).await;
                let phases = phases.with_context(|| format!("{name}; {}", started.last_words()))?;
                progress.tell(&name, &told(&phases));
                rounds[at].push(phases);
                files.files.truncate(first);
                for ((system, _), rounds) in turns(*case).zip(&rounds) {
                    files.files.extend(rows(*case, system, rounds));
                }
            }
        }
    }
    for (_, started) in started {
        started.stop().await?;
    }
    Ok(())
}

/// A row for each phase.
fn rows(case: Case, system: &System, rounds: &[Vec<Phase>]) -> Vec<Row> {
    let first = rounds.first().map_or(&[][..], Vec::as_slice);
    let row = |(at, phase): (usize, &Phase)| {
        let phases: Vec<_> = rounds.iter().filter_map(|round| round.get(at)).collect();
        let each = |of: fn(&Cpu) -> f64| {
            let each = phases.iter().map(|p| of(&p.cpu) / p.amount);
            median(each.collect())
        };
        let rounds: Vec<_> = phases.iter().map(|p| p.value).collect();
        Row {
            part: case.work.part(),
            workload: case.work.kind(),
            wait_ms: case.wait_ms,
            clients: case.work.clients(),
            phase: phase.name,
            unit: phase.unit,
            system: system.name.clone(),
            median: median(rounds.clone()),
            rounds,
            cpu: Cpu {
                replicas: each(|cpu| cpu.replicas),
                mount: each(|cpu| cpu.mount),
                workload: each(|cpu| cpu.workload),
            },
        }
    };
    first.iter().enumerate().map(row).collect()
}

/// The figures of phases, for people who wait.
fn told(phases: &[Phase]) -> String {
    let told: Vec<_> = phases
        .iter()
        .map(|p| format!("{} {} {}", p.name, figures::figure(p.unit, p.value), p.unit))
        .collect();
    told.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processor time is that of an operation; each figure is the median of its phase's rounds.
    #[test]
    fn rows_of_rounds() {
        let phase = |value, replicas| Phase {
            name: "write + fsync",
            unit: Unit::Operations,
            value,
            amount: 10.0,
            cpu: Cpu {
                replicas,
                mount: 1.0,
                workload: 0.0,
            },
        };
        let rounds = [5.0, 1.0, 3.0].map(|value| vec![phase(value, value * 2.0)]);
        let case = Case {
            work: Work::SyncedWrites { writers: 4 },
            wait_ms: 20,
        };
        let (systems, _) = system::all(&[]);
        let rows = rows(case, &systems[0], &rounds);
        assert_eq!(rows.len(), 1);
        let row = &rows[0];
        assert_eq!((row.median, row.clients, row.wait_ms), (3.0, 4, 20));
        assert_eq!((row.cpu.replicas, row.cpu.mount), (0.6, 0.1));
        assert_eq!(row.rounds, [5.0, 1.0, 3.0]);
    }

    /// Each of the papers' systems is there, each once; what is given takes the place of what was left out.
    #[test]
    fn systems() {
        let (systems, left_out) = system::all(&[("GlusterFS".into(), "/mnt".into())]);
        let names: Vec<_> = systems.iter().map(|s| s.name.as_str()).collect();
        for name in ["local", "GlusterFS", "NO-REP", system::BASE, system::CBASE] {
            let count = names.iter().filter(|n| **n == name).count();
            assert_eq!(count, 1, "{names:?}");
        }
        let passed = names.contains(&system::PASSED);
        assert_eq!(left_out.len(), usize::from(!passed), "{left_out:?}");
    }
}
