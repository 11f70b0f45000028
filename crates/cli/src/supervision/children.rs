//! Replicas, and their key holders, as child processes: started, looked after, stopped.

mod patience;

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::account::Account;
use super::programs::{Admitted, Programs};
use patience::Patience;

/// How long a replica has to stop before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// How a process is started.
#[derive(Clone, Debug)]
pub struct Launch {
    /// What it is.
    pub role: Role,
    /// Where what it says goes.
    pub log: PathBuf,
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
}

/// How this program is started again, as a replica or a key holder.
#[derive(Debug)]
struct Starter {
    /// Its file, as it was named when this process began: what lies there now may be another one.
    program: PathBuf,
    /// Which programs may be replicas, if that is limited.
    programs: Option<Programs>,
}

#[derive(Debug)]
struct Process {
    launch: Launch,
    child: Option<Child>,
    since: Instant,
    patience: Patience,
    /// Set when it is to end and to start again at once: when it is killed if it has not ended by then.
    ends_by: Option<Instant>,
    /// Whether it starts as one that recovers, each time until it has.
    recovers: bool,
    /// Whether it was told that it can't be started.
    refused: bool,
}

impl Children {
    /// Starts all, one as a replica that recovers if its recovery was cut short. With a list of programs only those on it are started as replicas.
    ///
    /// # Errors
    /// If one can't be started.
    pub fn start(
        launches: Vec<Launch>,
        restart: bool,
        programs: Option<Programs>,
        recovers: Option<u8>,
    ) -> Result<Children> {
        let program = std::env::current_exe().context("can't find this program's own file")?;
        let starter = Starter { program, programs };
        let mut processes = Vec::new();
        for launch in launches {
            let recovers = recovers.is_some_and(|id| launch.role == Role::Replica(id));
            let child = Some(starter.spawn(&launch, recovers)?);
            processes.push(Process {
                launch,
                child,
                since: Instant::now(),
                patience: Patience::default(),
                ends_by: None,
                recovers,
                refused: false,
            });
        }
        Ok(Children {
            restart,
            starter,
            processes,
        })
    }

    /// Whether this replica is one of these.
    pub fn has(&self, id: u8) -> bool {
        self.processes
            .iter()
            .any(|p| p.launch.role == Role::Replica(id))
    }

    /// When the process of a replica was started last.
    pub fn started(&self, id: u8) -> Option<Instant> {
        let role = Role::Replica(id);
        let replica = self.processes.iter().find(|p| p.launch.role == role)?;
        replica.child.as_ref().map(|_| replica.since)
    }

    /// Whether replicas may be started.
    ///
    /// # Errors
    /// Why not.
    pub fn admits(&self) -> Result<()> {
        self.starter.admit().map(drop)
    }

    /// Has a replica end, and start again as one that recovers.
    pub fn recover(&mut self, id: u8) {
        if let Some(replica) = self.replica(id) {
            replica.ask_to_end();
            replica.ends_by = Some(Instant::now() + STOP_TIMEOUT);
            replica.recovers = true;
        }
    }

    /// A replica that was to recover has done so.
    pub fn recovered(&mut self, id: u8) {
        if let Some(replica) = self.replica(id) {
            replica.recovers = false;
        }
    }

    /// Ends a replica that recovers and does not come up, so that it starts once more as one that recovers. False if it ends already.
    pub fn end_start(&mut self, id: u8) -> bool {
        let replica = self.replica(id).filter(|r| r.ends_by.is_none());
        let ends_by = replica.map(|r| r.ends_by.insert(Instant::now()));
        ends_by.is_some()
    }

    fn replica(&mut self, id: u8) -> Option<&mut Process> {
        let role = Role::Replica(id);
        self.processes.iter_mut().find(|p| p.launch.role == role)
    }

    /// Sees who has died, and starts them again after a while. Tells what happened.
    pub fn look_after(&mut self) -> Result<Vec<String>> {
        let mut events = Vec::new();
        for process in &mut self.processes {
            if let Some(child) = &mut process.child {
                let Some(status) = child.try_wait()? else {
                    if process.ends_by.is_some_and(|until| until <= Instant::now()) {
                        // It has had its time; nothing of what it was about to write is believed.
                        child.start_kill()?;
                        // Whoever traces it keeps it from being gone.
                        if let Some(Err(e)) = process.launch.account.map(Account::end_all)
                            && !std::mem::replace(&mut process.refused, true)
                        {
                            events.push(format!("ALARM: {e:#}"));
                        }
                    }
                    continue;
                };
                process.child = None;
                if process.ends_by.is_some() {
                    continue;
                }
                let lived = process.since.elapsed();
                process.since = Instant::now();
                let log = &process.launch.log;
                let cause = end_of_life(&process.launch.role.name(), status, log);
                if process.patience.is_news(&cause, lived, !failed(status)) {
                    events.push(format!("{cause}\n  see {}", log.display()));
                }
                continue;
            }
            let at_once = process.ends_by.is_some() && !process.refused;
            let waits = !at_once && process.since.elapsed() < process.patience.pause();
            // One that is about to recover must not be left lying.
            if waits || !process.recovers && !self.restart {
                continue;
            }
            process.since = Instant::now();
            let name = process.launch.role.name();
            match self.starter.spawn(&process.launch, process.recovers) {
                Ok(child) => {
                    process.child = Some(child);
                    let was_asked = process.ends_by.take().is_some();
                    let was_refused = std::mem::take(&mut process.refused);
                    if was_refused || !was_asked && process.patience.tells_start() {
                        events.push(format!("{name} is started again"));
                    }
                }
                // Whoever mends that need not start the supervisor again.
                Err(e) if !std::mem::replace(&mut process.refused, true) => {
                    events.push(format!("ALARM: {name} is not started: {e:#}"));
                }
                Err(_) => {}
            }
        }
        Ok(events)
    }

    /// Done when more than `tolerated` replicas have ended by themselves.
    pub async fn too_many_refuse(&mut self, tolerated: usize) {
        let is_replica = |launch: &&Launch| matches!(launch.role, Role::Replica(_));
        while self.ended().filter(is_replica).count() <= tolerated {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The last words of replicas that have ended.
    pub fn explain(&mut self) -> String {
        let words = |launch: &Launch| {
            let (name, last) = (launch.role.name(), last_words(&launch.log));
            format!("\n  {name}: {last}")
        };
        self.ended().map(words).collect()
    }

    fn ended(&mut self) -> impl Iterator<Item = &Launch> {
        self.processes.iter_mut().filter_map(|process| {
            let lives = process
                .child
                .as_mut()
                .is_some_and(|child| matches!(child.try_wait(), Ok(None)));
            (!lives).then_some(&process.launch)
        })
    }

    /// Asks all to end, and waits for it.
    pub async fn stop(&mut self) -> Result<()> {
        for process in &self.processes {
            process.ask_to_end();
        }
        for process in &mut self.processes {
            let Some(mut child) = process.child.take() else {
                continue;
            };
            if tokio::time::timeout(STOP_TIMEOUT, child.wait())
                .await
                .is_err()
            {
                child
                    .kill()
                    .await
                    .with_context(|| format!("can't stop {}", process.launch.role.name()))?;
            }
        }
        Ok(())
    }
}

impl Process {
    fn ask_to_end(&self) {
        let pid = self.child.as_ref().and_then(Child::id);
        if let Some(pid) = pid.and_then(|p| Pid::from_raw(p as i32)) {
            // It may have ended in this moment.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

/// What is said of a replica that has ended. Only one that failed has last words: the log's last line says nothing of an end
/// that came from outside.
fn end_of_life(name: &str, status: ExitStatus, log: &Path) -> String {
    if was_killed(status) {
        return format!("{name} was killed ({status}), by somebody or because memory ran out");
    }
    if status.success() {
        return format!("{name} was asked to end by somebody else ({status})");
    }
    format!("{name} died ({status}): {}", last_words(log))
}

fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::KILL.as_raw())
}

/// Whether it ended by itself, and not in order.
fn failed(status: ExitStatus) -> bool {
    !status.success() && !was_killed(status)
}

/// The last line of a log. The log is written by who may have been taken over: little of it is read, and it moves no cursor.
fn last_words(log: &Path) -> String {
    const LAST_BYTES: u64 = 4096;
    let read = || {
        let mut log = File::open(log)?;
        let from = log.metadata()?.len().saturating_sub(LAST_BYTES);
        log.seek(SeekFrom::Start(from))?;
        let mut last = Vec::new();
        log.take(LAST_BYTES).read_to_end(&mut last)?;
        std::io::Result::Ok(last)
    };
    let last = read().unwrap_or_default();
    let last = String::from_utf8_lossy(&last);
    let line = last.lines().last().unwrap_or("it said nothing");
    line.chars().filter(|c| !c.is_control()).collect()
}

impl Starter {
    /// The program as it may be run as a replica, where that is limited.
    fn admit(&self) -> Result<Option<Admitted>> {
        let list = self.programs.as_ref();
        list.map(|list| list.admit(&self.program)).transpose()
    }

    fn spawn(&self, launch: &Launch, recover: bool) -> Result<Child> {
        let log = open_log(&launch.log)
            .with_context(|| format!("can't write {}", launch.log.display()))?;
        let admitted = match launch.role {
            Role::Replica(_) => self.admit()?,
            Role::Holder(_) => None,
        };
        let program = admitted.as_ref().map(Admitted::path);
        let mut command = Command::new(program.as_ref().unwrap_or(&self.program));
        // A name that says what it is, also where the program has none any more.
        command.arg0(&self.program);
        command.args(["-v", launch.role.command(), "--with-parent"]);
        command.args(&launch.arguments);
        if recover {
            command.arg("--recover");
            // Who has taken it over may have left something that outlives it.
            launch.account.map_or(Ok(()), |account| account.end_all())?;
        }
        // The child keeps reading standard input: when this process dies, however it dies, the pipe ends and so does the child.
        command
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log);
        if let Some(Account { uid, gid }) = launch.account {
            // As root it leaves its other groups as well.
            command.uid(uid).gid(gid);
        }
        // Ctrl-C in the terminal is for this process, which then stops the replicas in order.
        command.process_group(0);
        command
            .spawn()
            .with_context(|| format!("can't start {}", launch.role.name()))
    }
}

/// Appends to the log of the last runs, unless it has grown long.
fn open_log(path: &Path) -> std::io::Result<File> {
    const LONG_BYTES: u64 = 10 << 20;
    // A replica whose directory is gone is to say so itself.
    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    if std::fs::metadata(path).is_ok_and(|m| m.len() > LONG_BYTES) {
        std::fs::rename(path, path.with_extension("log.1"))?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a log that was made as long as can be, little is read; and what would move the terminal's cursor is left out.
    #[test]
    fn last_words_are_few() {
        let directory = tempfile::tempdir().expect("a directory");
        let log = directory.path().join("log");
        let file = File::create(&log).expect("a log");
        file.set_len(1 << 40).expect("a hole");
        assert!(last_words(&log).len() <= 4096);
        std::fs::write(&log, "before\nthe \x1b[2Jend\n").expect("a log");
        assert_eq!(last_words(&log), "the [2Jend");
    }

    /// Last words are told where they are about the end, and only there.
    #[test]
    fn only_a_failure_has_last_words() {
        let directory = tempfile::tempdir().expect("a directory");
        let log = directory.path().join("log");
        std::fs::write(&log, "INFO all is well\nquorate: the last words\n").expect("a log");
        // As wait(2) gives them: killed, ended in order, failed, aborted.
        for (raw, words) in [(9, false), (0, false), (1 << 8, true), (6, true)] {
            let text = end_of_life("replica 2", ExitStatus::from_raw(raw), &log);
            assert_eq!(text.contains("quorate: the last words"), words, "{text}");
            assert!(text.starts_with("replica 2 "), "{text}");
        }
    }
}
