//! A mount: a process `quorate mount`, and the directory.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use crate::group::{Group, last_lines, new_log};

/// How long a mount may take to come.
const PATIENCE: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(20);

/// A mounted group. It is taken away when it is dropped, whatever is under way on it.
#[derive(Debug)]
pub struct Mount {
    child: Child,
    directory: PathBuf,
    log: PathBuf,
}

impl Mount {
    /// Whether there is FUSE here.
    pub fn is_possible() -> bool {
        let opened = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse");
        opened.is_ok()
    }

    /// Mounts on behalf of a client.
    ///
    /// # Errors
    /// Where that can't be done, with the process's words.
    pub async fn start(group: &Group, client: u8, place: &Path) -> Result<Mount> {
        let directory = place.join(format!("mount-{client}"));
        std::fs::create_dir_all(&directory)?;
        let log = place.join(format!("mount-{client}.log"));
        let words = new_log(&log)?;
        let mut command = group.mount_command(client, &directory);
        command
            .stdout(words.try_clone()?)
            .stderr(words)
            .stdin(Stdio::null());
        let mut mount = Mount {
            child: command.spawn()?,
            directory,
            log,
        };
        let end = Instant::now() + PATIENCE;
        while !is_mounted(&mount.directory) {
            mount.check()?;
            if Instant::now() > end {
                bail!("nothing is mounted:\n{}", last_lines(&mount.log, 12));
            }
            tokio::time::sleep(STEP).await;
        }
        Ok(mount)
    }

    /// Where the files are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Fails if the process has ended.
    ///
    /// # Errors
    /// Its last words.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let words = last_lines(&self.log, 12);
            bail!(
                "quorate mount ended ({:?}, signal {:?}):\n{words}",
                status.code(),
                status.signal()
            );
        }
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        match log.lines().find(|line| line.contains("panicked at")) {
            Some(line) => bail!("quorate mount panicked: {line}"),
            None => Ok(()),
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // In order, as long as the group answers; else what is under way on it must be ended by force.
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
        let end = Instant::now() + Duration::from_secs(8);
        while Instant::now() < end {
            if !matches!(self.child.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(STEP);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if is_mounted(&self.directory) && unmount(&self.directory, UnmountFlags::DETACH).is_err() {
            // Not root.
            let mut helper = std::process::Command::new("fusermount3");
            let _ = helper.args(["-uz"]).arg(&self.directory).status();
        }
    }
}

/// Whether something is mounted at a directory, without touching it.
fn is_mounted(directory: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut lines = table.lines();
    lines.any(|line| line.split(' ').nth(4).map(Path::new) == Some(directory))
}
