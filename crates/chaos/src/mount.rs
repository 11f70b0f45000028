//! A mount: a process `quorate mount`, the directory, and the process that works on it.

mod place;

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::group::{Group, last_lines, new_log};
use crate::hand::{self, Link};
use crate::traces;

pub use place::is_any_below;

/// How long a mount may take to come.
const PATIENCE: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(20);

/// A mounted group. It is taken away when it is dropped, whatever is under way on it.
#[derive(Debug)]
pub struct Mount {
    /// By which the directory is used. This process never does that itself.
    pub link: Link,
    child: Child,
    hand: Child,
    directory: PathBuf,
    log: PathBuf,
    hand_log: PathBuf,
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

    /// Mounts on behalf of a client. `hand` starts who works on it.
    ///
    /// # Errors
    /// Where that can't be done, with the process's words.
    pub async fn start(
        group: &Group,
        client: u8,
        place: &Path,
        hand: &[OsString],
    ) -> Result<Mount> {
        let directory = place.join(format!("mount-{client}"));
        std::fs::create_dir_all(&directory)?;
        let log = place.join(format!("mount-{client}.log"));
        let hand_log = place.join(format!("hand-{client}.log"));
        let words = new_log(&log)?;
        let (hand, link) = hand::start(hand, &hand_log)?;
        let mut command = group.mount_command(client, &directory);
        command
            .stdout(words.try_clone()?)
            .stderr(words)
            .stdin(Stdio::null());
        let mut mount = Mount {
            link,
            child: command.spawn()?,
            hand,
            directory,
            log,
            hand_log,
        };
        let end = Instant::now() + PATIENCE;
        while !place::is_mounted(&mount.directory) {
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

    /// Fails if one of the processes has ended.
    ///
    /// # Errors
    /// Its last words.
    pub fn check(&mut self) -> Result<()> {
        for (name, child, log) in [
            ("quorate mount", &mut self.child, &self.log),
            ("who works on a mount", &mut self.hand, &self.hand_log),
        ] {
            if let Some(status) = child.try_wait()? {
                let words = last_lines(log, 12);
                bail!(
                    "{name} ended ({:?}, signal {:?}):\n{words}",
                    status.code(),
                    status.signal()
                );
            }
            let log = std::fs::read(log).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            if let Some(line) = log.lines().find(|line| line.contains("panicked at")) {
                bail!("{name} panicked: {line}");
            }
        }
        Ok(())
    }

    /// What its processes are doing.
    pub fn describe(&self) -> String {
        let name = self.directory.display();
        let (mount, hand) = (traces::of(self.child.id()), traces::of(self.hand.id()));
        format!("{name}:\n{mount}who works on it:\n{hand}")
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Who works on it may wait in the kernel until the mount is gone.
        let _ = self.hand.kill();
        // In order, as long as the group answers; else what is under way on it must be ended by force.
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
        place::reap(&mut self.child, Duration::from_secs(8));
        let _ = self.child.kill();
        place::take_away(&self.directory);
        place::end(&mut self.child);
        place::end(&mut self.hand);
    }
}
