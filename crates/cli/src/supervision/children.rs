//! Replicas, and their key holders, as child processes: started, looked after, stopped.

mod fault;
mod output;
mod patience;
mod process;
mod readying;
mod starter;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use quorate_wire::message::Report;
use tokio::time::Instant;

use super::account::Account;
use super::programs::Programs;
pub(super) use fault::Fault;
use process::Process;
pub use starter::Certificates;
pub(super) use starter::Starter;

/// How a process is started.
#[derive(Clone, Debug)]
pub struct Launch {
    /// What it is.
    pub role: Role,
    /// Where what it says goes.
    pub log: PathBuf,
    /// A replica's directory, which is made ready before it recovers.
    pub data: Option<PathBuf>,
    /// Where it is noted which directory that is, so that a replica whose directory is another one recovers; outside of it.
    pub note: Option<PathBuf>,
    /// The user that it runs as, where that is not this process's.
    pub account: Option<Account>,
    /// What follows `quorate replica` or `quorate keyholder`.
    pub arguments: Vec<OsString>,
}

/// What a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A replica.
    Replica(u8),
    /// Of a replica in a group that has them.
    Holder(u8),
}

impl Role {
    fn name(self) -> String {
        match self {
            Role::Replica(id) => format!("replica {id}"),
            Role::Holder(id) => format!("the key holder of replica {id}"),
        }
    }

    fn command(self) -> &'static str {
        match self {
            Role::Replica(_) => "replica",
            Role::Holder(_) => "keyholder",
        }
    }
}

/// The processes that are looked after.
#[derive(Debug)]
pub struct Children {
    restart: bool,
    starter: Starter,
    processes: Vec<Process>,
    /// What happened when they were started, and is to be told.
    events: Vec<String>,
}

impl Children {
    /// Starts all, one as a replica that recovers if its recovery was cut short. With a list of programs only those on it are started as replicas.
    /// One that can't be started is looked at again like one that has died.
    ///
    /// # Errors
    /// If this program's own file can't be found.
    pub fn start(
        launches: Vec<Launch>,
        restart: bool,
        programs: Option<Programs>,
        certificates: Option<Certificates>,
        key_refresh: Option<Duration>,
        recovers: Option<u8>,
    ) -> Result<Children> {
        let program = std::env::current_exe().context("can't find this program's own file")?;
        let starter = Starter {
            program,
            programs,
            certificates,
            key_refresh,
        };
        Children::start_with(starter, launches, restart, recovers)
    }

    pub(super) fn start_with(
        mut starter: Starter,
        launches: Vec<Launch>,
        restart: bool,
        recovers: Option<u8>,
    ) -> Result<Children> {
        let (mut processes, mut events) = (Vec::new(), Vec::new());
        for launch in launches {
            let recovers = recovers.is_some_and(|id| launch.role == Role::Replica(id));
            let mut process = Process::new(launch, recovers);
            events.extend(process.look(&mut starter, true)?);
            processes.push(process);
        }
        Ok(Children {
            restart,
            starter,
            processes,
            events,
        })
    }

    /// Whether this replica is one of these.
    pub fn has(&self, id: u8) -> bool {
        self.processes
            .iter()
            .any(|p| p.launch.role == Role::Replica(id))
    }

    /// When the process of a replica was started that recovers; none while the one before ends, of which nothing is heard any more.
    pub fn recovers_since(&self, id: u8) -> Option<Instant> {
        self.of(id)?.recovers_since()
    }

    /// What a replica that recovers has said of itself since it was started for that.
    pub fn said(&self, id: u8) -> Option<&Report> {
        self.of(id)?.said()
    }

    /// From their next start on replicas renew their keys so often; zero: never.
    pub fn set_key_refresh(&mut self, every: Duration) {
        self.starter.key_refresh = Some(every);
    }

    /// Whether replicas may be started.
    ///
    /// # Errors
    /// Why not.
    pub fn admits(&mut self) -> Result<()> {
        self.starter.admit().map(drop)
    }

    /// What is wrong with the program that replicas are to run.
    pub fn alarm(&self) -> Option<&str> {
        self.starter.alarm()
    }

    /// The highest number of a certificate of each replica that was seen from here; none in a group without key holders.
    pub fn certificates(&self) -> Option<Vec<u64>> {
        self.starter.certificates()
    }

    /// Whether all replicas of a group of `n` are these.
    pub fn are_all(&self, n: usize) -> bool {
        (0..n as u8).all(|id| self.has(id))
    }

    /// A replica that is to recover since its directory is not the one that it had last; it is started when this has told of it.
    pub fn astray(&mut self) -> Option<u8> {
        let mut processes = self.processes.iter_mut();
        processes.find_map(|process| match process.launch.role {
            Role::Replica(id) => process.is_taken_up().then_some(id),
            Role::Holder(_) => None,
        })
    }

    /// Has a replica say whether it is about to recover. Where it is started anew it has to be told again.
    pub fn intends_recovery(&mut self, id: u8, is_intended: bool) {
        if let Some(process) = self.replica(id) {
            process.intends_recovery(is_intended);
        }
    }

    /// Has a replica end, and start again as one that recovers.
    pub fn recover(&mut self, id: u8) {
        self.replica(id).map(Process::recover);
    }

    /// A replica that was to recover has done so.
    pub fn recovered(&mut self, id: u8) {
        self.replica(id).map(Process::recovered);
    }

    /// Ends a replica that recovers and does not come to an end with it, so that it starts once more as one that recovers, without what may be at fault.
    /// False if it ends already.
    pub fn end_start(&mut self, id: u8, fault: Fault) -> bool {
        self.replica(id)
            .is_some_and(|process| process.end_start(fault))
    }

    /// What ends does so now.
    #[cfg(test)]
    pub fn hurry(&mut self, id: u8) {
        self.replica(id).map(Process::kill);
    }

    fn of(&self, id: u8) -> Option<&Process> {
        let role = Role::Replica(id);
        self.processes.iter().find(|p| p.launch.role == role)
    }

    fn replica(&mut self, id: u8) -> Option<&mut Process> {
        let role = Role::Replica(id);
        self.processes.iter_mut().find(|p| p.launch.role == role)
    }

    /// Sees who has died, and starts them again after a while. Tells what happened.
    pub fn look_after(&mut self) -> Result<Vec<String>> {
        let mut events = std::mem::take(&mut self.events);
        for process in &mut self.processes {
            events.extend(process.look(&mut self.starter, self.restart)?);
        }
        events.extend(self.starter.look());
        Ok(events)
    }

    /// Done when more than `tolerated` replicas have ended by themselves, twice where they are started again: what was in the way of the first start may have
    /// been about to go, such as replicas of before.
    pub async fn too_many_refuse(&mut self, tolerated: usize) {
        let enough = if self.restart { 2 } else { 1 };
        loop {
            match self.look_after() {
                Ok(events) => self.events = events,
                Err(e) => self.events.push(format!("{e:#}")),
            }
            let replicas = self.processes.iter();
            let replicas = replicas.filter(|p| matches!(p.launch.role, Role::Replica(_)));
            if replicas.filter(|process| process.ends >= enough).count() > tolerated {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The last words of replicas that have ended.
    pub fn explain(&mut self) -> String {
        let processes = self.processes.iter_mut();
        let ended = processes.filter_map(|p| (p.ends > 0 || !p.lives()).then_some(p));
        ended.map(|process| process.explain()).collect()
    }

    /// Asks all to end, and waits for it.
    pub async fn stop(&mut self) -> Result<()> {
        for process in &self.processes {
            process.ask_to_end();
        }
        for process in &mut self.processes {
            process.wait_for_end().await?;
        }
        Ok(())
    }
}
