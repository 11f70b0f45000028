//! The replicas as child processes: started, looked after, stopped.

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

/// The group's processes.
#[derive(Debug)]
pub struct Children {
    data: PathBuf,
    restart: bool,
    replicas: Vec<Replica>,
}

#[derive(Debug)]
struct Replica {
    id: u8,
    fault: Option<Fault>,
    child: Option<Child>,
    since: Instant,
    patience: Patience,
}

impl Children {
    /// Starts all replicas.
    pub fn start(
        data: &Path,
        group: &Group,
        faults: &[(u8, Fault)],
        restart: bool,
    ) -> Result<Children> {
        let mut replicas = Vec::new();
        for id in group.quorum().replicas().map(|r| r.0) {
            let fault = faults
                .iter()
                .rev()
                .find(|(at, _)| *at == id)
                .map(|(_, fault)| *fault);
            let child = Some(spawn(data, id, fault)?);
            replicas.push(Replica {
                id,
                fault,
                child,
                since: Instant::now(),
                patience: Patience::default(),
            });
        }
        Ok(Children {
            data: data.into(),
            restart,
            replicas,
        })
    }

    /// Sees who has died, and starts them again after a while. Tells what happened.
    pub fn look_after(&mut self) -> Result<Vec<String>> {
        let mut events = Vec::new();
        for replica in &mut self.replicas {
            if let Some(child) = &mut replica.child {
                let Some(status) = child.try_wait()? else {
                    continue;
                };
                replica.child = None;
                let lived = replica.since.elapsed();
                replica.since = Instant::now();
                let log = log_path(&self.data, replica.id);
                let cause = end_of_life(replica.id, status, &log);
                if replica.patience.is_news(&cause, lived, !failed(status)) {
                    events.push(format!("{cause}\n  see {}", log.display()));
                }
            } else if self.restart && replica.since.elapsed() >= replica.patience.pause() {
                replica.child = Some(spawn(&self.data, replica.id, replica.fault)?);
                replica.since = Instant::now();
                if replica.patience.tells_start() {
                    events.push(format!("replica {} is started again", replica.id));
                }
            }
        }
        Ok(events)
    }

    /// Done when more than `tolerated` replicas have ended by themselves.
    pub async fn too_many_refuse(&mut self, tolerated: usize) {
        while self.ended().count() <= tolerated {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The last words of replicas that have ended.
    pub fn explain(&mut self) -> String {
        let logs: Vec<_> = self.ended().collect();
        let words = |id: &u8| {
            format!(
                "\n  replica {id}: {}",
                last_words(&log_path(&self.data, *id))
            )
        };
        logs.iter().map(words).collect()
    }

    fn ended(&mut self) -> impl Iterator<Item = u8> {
        self.replicas.iter_mut().filter_map(|replica| {
            let lives = replica
                .child
                .as_mut()
                .is_some_and(|child| matches!(child.try_wait(), Ok(None)));
            (!lives).then_some(replica.id)
        })
    }

    /// Asks all to end, and waits for it.
    pub async fn stop(&mut self) -> Result<()> {
        for replica in &self.replicas {
            let pid = replica.child.as_ref().and_then(Child::id);
            if let Some(pid) = pid.and_then(|p| Pid::from_raw(p as i32)) {
                // It may have ended in this moment.
                let _ = kill_process(pid, Signal::TERM);
            }
        }
        for replica in &mut self.replicas {
            let Some(mut child) = replica.child.take() else {
                continue;
            };
            if tokio::time::timeout(STOP_TIMEOUT, child.wait())
                .await
                .is_err()
            {
                child
                    .kill()
                    .await
                    .with_context(|| format!("can't stop replica {}", replica.id))?;
            }
        }
        Ok(())
    }
}

fn log_path(data: &Path, id: u8) -> PathBuf {
    paths::replica(data, id).join("messages.log")
}

/// What is said of a replica that has ended. Only one that failed has last words: the log's last line says nothing of an end
/// that came from outside.
fn end_of_life(id: u8, status: ExitStatus, log: &Path) -> String {
    if was_killed(status) {
        return format!(
            "replica {id} was killed ({status}), by somebody or because memory ran out"
        );
    }
    if status.success() {
        return format!("replica {id} was asked to end by somebody else ({status})");
    }
    format!("replica {id} died ({status}): {}", last_words(log))
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

fn spawn(data: &Path, id: u8, fault: Option<Fault>) -> Result<Child> {
    let log_path = log_path(data, id);
    let log = open_log(&log_path).with_context(|| format!("can't write {}", log_path.display()))?;
    let program = std::env::current_exe().context("can't find this program's own file")?;
    let mut command = Command::new(program);
    command.args([
        "-v",
        "replica",
        "--with-parent",
        "--id",
        &id.to_string(),
        "--group",
    ]);
    command.arg(paths::group_file(data));
    if let Some(fault) = fault {
        command.args(["--fault", &fault.to_string()]);
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
        .with_context(|| format!("can't start replica {id}"))
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
            let text = end_of_life(2, ExitStatus::from_raw(raw), &log);
            assert_eq!(text.contains("quorate: the last words"), words, "{text}");
            assert!(text.starts_with("replica 2 "), "{text}");
        }
    }
}
