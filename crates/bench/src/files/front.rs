//! A process that serves a group over NFS.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::nfs::Endpoint;
use crate::group::{Launcher, free_addresses};

/// How long it may take to start, and to end before it is killed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Everything, to whoever asks on this machine, with all rights: as the other servers offer it.
const EXPORTS: &str = "[[export]]\npath = \"/\"\nsecure = false\nsquash = \"no_root_squash\"\n";

/// A front. It ends when this is dropped.
#[derive(Debug)]
pub struct Front {
    child: Child,
    pid: u32,
    address: SocketAddr,
    log: PathBuf,
}

impl Front {
    /// Starts one for the group that is described in a file, beside which it finds its key, or as the guest whose key and credential are given.
    ///
    /// # Errors
    /// Where it does not serve in time.
    pub async fn start(
        launcher: &Launcher,
        group: &Path,
        guest: Option<&(PathBuf, PathBuf)>,
    ) -> Result<Front> {
        let beside = group.parent().context("a file is in a directory")?;
        let (exports, log) = (beside.join("exports.toml"), beside.join("nfs.log"));
        std::fs::write(&exports, EXPORTS)?;
        let address = free_addresses(1)?.pop().context("one was asked for")?;
        let mut command = Command::new(&launcher.program);
        command.args(&launcher.arguments).arg(group);
        command
            .args(["--listen", &address])
            .arg("--exports")
            .arg(exports);
        if let Some((key, credential)) = guest {
            command
                .arg("--key")
                .arg(key)
                .arg("--credential")
                .arg(credential);
        }
        let child = command
            // Its end tells our own that nobody needs it any more.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log)?)
            // Ctrl-C in the terminal is for the benchmark, which then ends it.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("can't start {command:?}"))?;
        let mut front = Front {
            pid: child.id().context("a process has a number")?,
            child,
            address: address.parse()?,
            log,
        };
        match timeout(PATIENCE, front.listens()).await {
            Ok(listens) => listens.map(|()| front),
            Err(_) => bail!("nothing is served over NFS; {}", front.last_words()),
        }
    }

    /// Where it is.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint {
            nfs: self.address,
            mount: self.address,
            path: "/".into(),
        }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The last line that it has said, for when something goes wrong.
    pub fn last_words(&self) -> String {
        let said = std::fs::read(&self.log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        format!(
            "the NFS front said: {}",
            said.lines().last().unwrap_or("nothing")
        )
    }

    /// Ends it in order: its session is closed.
    ///
    /// # Errors
    /// Where the process does not end.
    pub async fn stop(mut self) -> Result<()> {
        let pid = Pid::from_raw(self.pid.cast_signed()).context("a process has a number")?;
        // It may have ended by itself.
        let _ = kill_process(pid, Signal::INT);
        match timeout(PATIENCE, self.child.wait()).await {
            Ok(ended) => Ok(ended.map(drop)?),
            Err(_) => bail!("a front does not end; {}", self.last_words()),
        }
    }

    async fn listens(&mut self) -> Result<()> {
        while TcpStream::connect(self.address).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("the NFS front ended ({status}); {}", self.last_words());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }
}
