//! A process that works on a mount, so that the harness does not: nobody who starts a replica may have files open on a mount,
//! since the child would first close them, which waits for the group, and the group may wait for this replica.
//!
//! It has its socket as standard input. A line there is a task, and a line back is what became of it, both as JSON.
//! It waits within system calls, which only the mount's end may end; whoever started it ends it.

mod calls;

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::sync::Mutex;

use crate::group::new_log;
use crate::history::{Op, Outcome, clock_ns};

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// The directory of the round.
    pub root: PathBuf,
    /// What is to be asked for.
    pub op: Op,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// When it began and when it ended; see [`clock_ns`].
    pub seen_ns: (u64, u64),
    /// `None`: nobody knows.
    pub outcome: Option<Outcome>,
}

/// How the harness reaches the process; one task at a time.
#[derive(Clone, Debug)]
pub struct Link(Arc<Mutex<tokio::io::BufReader<tokio::net::UnixStream>>>);

impl Link {
    /// Has one task done.
    ///
    /// # Errors
    /// If the process has ended.
    pub async fn work(&self, task: &Task) -> Result<Done> {
        let mut line = serde_json::to_vec(task)?;
        line.push(b'\n');
        let mut link = self.0.lock().await;
        link.write_all(&line).await?;
        let mut answer = String::new();
        link.read_line(&mut answer).await?;
        serde_json::from_str(&answer).context("the process that works on the mount has ended")
    }
}

/// Starts the process: `command` calls [`serve`]. Its words go to the file `log`. Within a tokio runtime.
///
/// # Errors
/// Where it can't be started.
pub fn start(command: &[OsString], log: &Path) -> Result<(Child, Link)> {
    let Some((program, arguments)) = command.split_first() else {
        bail!("nothing is said of what works on mounts");
    };
    let (own, its) = UnixStream::pair()?;
    own.set_nonblocking(true)?;
    let own = tokio::net::UnixStream::from_std(own)?;
    let words = new_log(log)?;
    let child = Command::new(program)
        .args(arguments)
        .stdin(OwnedFd::from(its))
        .stdout(words.try_clone()?)
        .stderr(words)
        .spawn();
    let child = child.with_context(|| format!("can't start {}", program.display()))?;
    let link = Link(Arc::new(Mutex::new(tokio::io::BufReader::new(own))));
    Ok((child, link))
}

/// The process's part: does task after task until the socket at standard input is closed.
///
/// # Errors
/// Where there is no such socket, or what comes from it is no task.
pub fn serve() -> Result<()> {
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    socket
        .peer_addr()
        .context("this is for the harness, which speaks through standard input")?;
    for line in BufReader::new(&socket).lines() {
        let Task { root, op } = serde_json::from_str(&line?)?;
        let begun = clock_ns();
        let outcome = calls::call(&root, &op);
        let seen_ns = (begun, clock_ns());
        let mut line = serde_json::to_vec(&Done { seen_ns, outcome })?;
        line.push(b'\n');
        (&socket).write_all(&line)?;
    }
    Ok(())
}
