//! A group of `quorate up`, mounted; it ends when this is dropped, and its files go.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use super::{Phases, REPLICAS, overwrite};
use crate::files::content::Content;
use crate::group::free_ports_in_a_row;
use crate::run::Options;

/// How long a group may take to start and to end, and how long a replica may be refused its recovery: until the supervisor has heard of the
/// others.
const PATIENCE: Duration = Duration::from_secs(60);
const FILE_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Site {
    program: PathBuf,
    child: Child,
    mount: PathBuf,
    directory: TempDir,
}

impl Site {
    /// Starts a group with these options of `quorate up`.
    pub async fn start(options: &Options, setup: &[&str]) -> Result<Site> {
        let directory = tempfile::Builder::new()
            .prefix("quorate-bench-")
            .tempdir_in(&options.data)
            .with_context(|| format!("can't make a directory in {}", options.data.display()))?;
        let data = directory.path().join("group");
        let program = options.launcher.program.clone();
        let log = std::fs::File::create(directory.path().join("log"))?;
        let mut command = Command::new(&program);
        command.args([
            "up",
            "--json",
            "--port",
            &free_ports_in_a_row(REPLICAS)?.to_string(),
        ]);
        command.args(setup).arg("--data").arg(&data);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log);
        let mut child = command.process_group(0).spawn().context("`quorate up`")?;
        let mut lines = BufReader::new(child.stdout.take().context("no pipe")?).lines();
        let ready = async {
            while let Some(line) = lines.next_line().await? {
                let said: Value = serde_json::from_str(&line)?;
                if said["event"] == "ready" {
                    return Ok(());
                }
            }
            bail!("it has ended")
        };
        let ready = timeout(PATIENCE, ready).await;
        // It says how it is for ever.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let site = Site {
            program,
            child,
            mount: data.join("files"),
            directory,
        };
        if !matches!(ready, Ok(Ok(()))) {
            let log = std::fs::read_to_string(site.directory.path().join("log"));
            bail!("the group does not start: {}", log.unwrap_or_default());
        }
        Ok(site)
    }

    pub fn mount(&self) -> &Path {
        &self.mount
    }

    /// Writes files of 1 MiB that have nothing in common.
    pub async fn fill(&self, megabytes: usize) -> Result<()> {
        let mount = self.mount.clone();
        tokio::task::spawn_blocking(move || -> Result<()> {
            for at in 0..megabytes {
                let content = Content::of(at as u64, 0).bytes(0, FILE_BYTES);
                std::fs::write(mount.join(format!("file-{at}")), content)?;
            }
            Ok(())
        })
        .await?
    }

    /// Overwrites a hundredth of what a replica keeps in segments.
    pub fn tamper(&self, replica: u8, round: usize) -> Result<()> {
        let blobs = self.group().join(format!("replica-{replica}/blobs"));
        let chunks = overwrite(&blobs, round).with_context(|| blobs.display().to_string())?;
        ensure!(
            chunks > 0,
            "so little is kept in segments that nothing of it was overwritten"
        );
        Ok(())
    }

    /// Has a replica recover; `None` where that comes to nothing, and it goes on with what it had.
    pub async fn recover(&mut self, replica: u8) -> Result<Option<Phases>> {
        let until = Instant::now() + PATIENCE;
        loop {
            let mut command = Command::new(&self.program);
            command.args(["recover", &replica.to_string(), "--json", "--data"]);
            command.arg(self.group()).stdin(Stdio::null());
            let ended = command.kill_on_drop(true).output().await?;
            if ended.status.success() {
                let told = serde_json::from_slice(&ended.stdout)?;
                let phases = phases(&told).context("what the supervisor tells has gaps");
                return phases.map(Some);
            }
            let why = String::from_utf8_lossy(&ended.stderr);
            if is_missed(&why) {
                eprintln!("\nreplica {replica}: {}", why.trim());
                return Ok(None);
            }
            if Instant::now() > until || !why.contains("the group would stop") {
                bail!("replica {replica} does not recover: {why}");
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Ends it.
    pub async fn stop(mut self) -> Result<()> {
        self.interrupt();
        if timeout(PATIENCE, self.child.wait()).await.is_err() {
            bail!("the group does not end");
        }
        Ok(())
    }

    fn group(&self) -> PathBuf {
        self.directory.path().join("group")
    }

    fn interrupt(&self) {
        let pid = self.child.id().and_then(|id| Pid::from_raw(id as i32));
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::INT);
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if self.child.id().is_none() {
            return;
        }
        // So that it unmounts.
        self.interrupt();
        for _ in 0..100 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let _ = self.child.start_kill();
    }
}

/// Whether a recovery was begun and came to nothing, by what `quorate recover` says: how often that is so is a result as well.
fn is_missed(why: &str) -> bool {
    why.contains("came to nothing")
}

/// What a recovery took, from what the supervisor tells of it.
fn phases(told: &Value) -> Option<Phases> {
    let of = |value: &Value, name: &str| value[name].as_u64().map(|n| n as f64);
    let step = |name: &str| of(&told["steps"], name);
    let (total, shutdown) = (of(told, "took_ms")?, of(told, "shutdown_ms")?);
    let (restored, began) = (step("restored_ms")?, step("began_ms")?);
    let (estimated, fetched) = (step("estimated_ms")?, step("fetched_ms")?);
    let (voted, caught_up) = (step("voted_ms")?, step("caught_up_ms")?);
    Some(Phases {
        shutdown,
        restart: total - shutdown - caught_up,
        restore: restored,
        new_keys: began - restored,
        estimation: estimated - began,
        ordering: step("ordered_ms").unwrap_or(began) - began,
        check_and_fetch: fetched - estimated,
        vote: voted - fetched,
        catch_up: caught_up - voted,
        total,
        damaged: of(told, "damaged").unwrap_or(0.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A recovery that came to nothing is a result; one that could not begin is none.
    #[test]
    fn what_came_to_nothing_is_told_from_what_could_not_begin() {
        assert!(is_missed(
            "quorate: its recovery came to nothing: the others did not get on without it, since"
        ));
        assert!(!is_missed("quorate: without it the group would stop"));
        assert!(!is_missed("quorate: nobody answers"));
    }

    /// The phases add up to the whole; a replica that tells nothing has none.
    #[test]
    fn phases_add_up() {
        let mut told = json!({
            "took_ms": 1000, "shutdown_ms": 50, "damaged": 3,
            "steps": { "restored_ms": 20, "keyed_ms": 30, "began_ms": 40, "estimated_ms": 100,
                "ordered_ms": 350, "fetched_ms": 400, "voted_ms": 500, "caught_up_ms": 600 },
        });
        let p = phases(&told).unwrap();
        let parts = [p.shutdown, p.restart, p.restore, p.new_keys, p.estimation];
        let rest = [p.check_and_fetch, p.vote, p.catch_up];
        let all: f64 = parts.iter().chain(&rest).sum();
        assert_eq!((all, p.total), (1000.0, 1000.0));
        assert_eq!(
            (p.restart, p.ordering, p.check_and_fetch, p.damaged),
            (350.0, 310.0, 300.0, 3.0)
        );
        told["steps"] = Value::Null;
        assert_eq!(phases(&told), None);
    }
}
