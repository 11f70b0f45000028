//! The replicas, and their key holders, as child processes: started, looked after, stopped.

mod patience;

use std::fs::{File, OpenOptions};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use quorate_fault::Fault;
use quorate_net::Group;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::paths;
use patience::Patience;

/// How long a replica has to stop before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// How often replicas that have key holders take another key for their links.
const KEY_REFRESH: &str = "15s";

/// The group's processes.
#[derive(Debug)]
pub struct Children {
    data: PathBuf,
    restart: bool,
    has_holders: bool,
    processes: Vec<Process>,
}

/// What a process is.
#[derive(Clone, Copy, Debug)]
enum Role {
    Replica(u8, Option<Fault>),
    /// Of a replica in a group that has them.
    Holder(u8),
}

impl Role {
    fn name(self) -> String {
        match self {
            Role::Replica(id, _) => format!("replica {id}"),
            Role::Holder(id) => format!("the key holder of replica {id}"),
        }
    }

    /// Where its messages go.
    fn log(self, data: &Path) -> PathBuf {
        match self {
            Role::Replica(id, _) => paths::replica(data, id).join("messages.log"),
            Role::Holder(id) => paths::holder(data, id).join("messages.log"),
        }
    }
}

#[derive(Debug)]
struct Process {
    role: Role,
    child: Option<Child>,
    since: Instant,
    patience: Patience,
}

impl Children {
    /// Starts all replicas, and their key holders if the group has any.
    pub fn start(
        data: &Path,
        group: &Group,
        faults: &[(u8, Fault)],
        restart: bool,
    ) -> Result<Children> {
        let mut roles = Vec::new();
        let has_holders = group.identities().is_some();
        for id in group.quorum().replicas().map(|r| r.0) {
            let fault = faults
                .iter()
                .rev()
                .find(|(at, _)| *at == id)
                .map(|(_, fault)| *fault);
            roles.extend(has_holders.then_some(Role::Holder(id)));
            roles.push(Role::Replica(id, fault));
        }
        let start = |role| -> Result<Process> {
            Ok(Process {
                role,
                child: Some(spawn(data, role, has_holders)?),
                since: Instant::now(),
                patience: Patience::default(),
            })
        };
        Ok(Children {
            data: data.into(),
            restart,
            has_holders,
            processes: roles.into_iter().map(start).collect::<Result<_>>()?,
        })
    }

    /// Sees who has died, and starts them again after a while. Tells what happened.
    pub fn look_after(&mut self) -> Result<Vec<String>> {
        let mut events = Vec::new();
        for process in &mut self.processes {
            if let Some(child) = &mut process.child {
                let Some(status) = child.try_wait()? else {
                    continue;
                };
                process.child = None;
                let lived = process.since.elapsed();
                process.since = Instant::now();
                let log = process.role.log(&self.data);
                let cause = end_of_life(&process.role.name(), status, &log);
                if process.patience.is_news(&cause, lived, !failed(status)) {
                    events.push(format!("{cause}\n  see {}", log.display()));
                }
            } else if self.restart && process.since.elapsed() >= process.patience.pause() {
                process.child = Some(spawn(&self.data, process.role, self.has_holders)?);
                process.since = Instant::now();
                if process.patience.tells_start() {
                    events.push(format!("{} is started again", process.role.name()));
                }
            }
        }
        Ok(events)
    }

    /// Done when more than `tolerated` replicas have ended by themselves.
    pub async fn too_many_refuse(&mut self, tolerated: usize) {
        let is_replica = |role: &Role| matches!(role, Role::Replica(..));
        while self.ended().filter(is_replica).count() <= tolerated {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The last words of those that have ended.
    pub fn explain(&mut self) -> String {
        let data = self.data.clone();
        let words = |role: Role| format!("\n  {}: {}", role.name(), last_words(&role.log(&data)));
        self.ended().map(words).collect()
    }

    fn ended(&mut self) -> impl Iterator<Item = Role> {
        self.processes.iter_mut().filter_map(|process| {
            let lives = process
                .child
                .as_mut()
                .is_some_and(|child| matches!(child.try_wait(), Ok(None)));
            (!lives).then_some(process.role)
        })
    }

    /// Asks all to end, and waits for it.
    pub async fn stop(&mut self) -> Result<()> {
        for process in &self.processes {
            let pid = process.child.as_ref().and_then(Child::id);
            if let Some(pid) = pid.and_then(|p| Pid::from_raw(p as i32)) {
                // It may have ended in this moment.
                let _ = kill_process(pid, Signal::TERM);
            }
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
                    .with_context(|| format!("can't stop {}", process.role.name()))?;
            }
        }
        Ok(())
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

fn last_words(log: &Path) -> String {
    let log = std::fs::read(log).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    log.lines().last().unwrap_or("it said nothing").to_string()
}

fn spawn(data: &Path, role: Role, has_holders: bool) -> Result<Child> {
    let log_path = role.log(data);
    let log = open_log(&log_path).with_context(|| format!("can't write {}", log_path.display()))?;
    let program = std::env::current_exe().context("can't find this program's own file")?;
    let mut command = Command::new(program);
    let (name, id) = match role {
        Role::Replica(id, _) => ("replica", id),
        Role::Holder(id) => ("keyholder", id),
    };
    command.args([
        "-v",
        name,
        "--with-parent",
        "--id",
        &id.to_string(),
        "--group",
    ]);
    command.arg(paths::group_file(data));
    if let Role::Replica(_, fault) = role {
        if let Some(fault) = fault {
            command.args(["--fault", &fault.to_string()]);
        }
        if has_holders {
            command.args(["--key-refresh", KEY_REFRESH]);
        }
    }
    // The child keeps reading standard input: when this process dies, however it dies, the pipe ends and so does the child.
    command
        .stdin(Stdio::piped())
        .stdout(log.try_clone()?)
        .stderr(log);
    // Ctrl-C in the terminal is for this process, which then stops the replicas in order.
    command.process_group(0);
    command
        .spawn()
        .with_context(|| format!("can't start {}", role.name()))
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
