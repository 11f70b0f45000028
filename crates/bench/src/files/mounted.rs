//! A process that serves a mount, and the directory.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::group::Launcher;

/// How long a mount may take to come, and to go before its process is killed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A mount. It goes when this is dropped, and its directory with it.
#[derive(Debug)]
pub struct Mounted {
    child: Child,
    pid: u32,
    place: TempDir,
    umount: Launcher,
}

/// A new directory with one to mount on.
///
/// # Errors
/// Where it can't be made.
pub fn place(data: &Path) -> Result<TempDir> {
    let place = tempfile::Builder::new()
        .prefix("quorate-bench-")
        .tempdir_in(data)
        .with_context(|| format!("can't make a directory in {}", data.display()))?;
    std::fs::create_dir(point(&place))?;
    Ok(place)
}

/// Where it is mounted.
pub fn point(place: &TempDir) -> PathBuf {
    place.path().join("mount")
}

impl Mounted {
    /// Runs a program that mounts at the place's point and stays.
    ///
    /// # Errors
    /// Where nothing is mounted in time.
    pub async fn start(
        command: &mut Command,
        place: TempDir,
        umount: &Launcher,
    ) -> Result<Mounted> {
        let log = std::fs::File::create(log(&place))?;
        let child = command
            // Its end tells our own that nobody needs it any more.
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C in the terminal is for the benchmark, which then ends the mount.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("can't start {command:?}"))?;
        let pid = child.id().context("a process has a number")?;
        let umount = umount.clone();
        let mut mounted = Mounted {
            child,
            pid,
            place,
            umount,
        };
        match timeout(PATIENCE, mounted.wait_until_there()).await {
            Ok(there) => there?,
            Err(_) => bail!("nothing is mounted; {}", mounted.last_words()),
        }
        Ok(mounted)
    }

    /// Where it is mounted.
    pub fn directory(&self) -> PathBuf {
        point(&self.place)
    }

    /// The directory in which that one is.
    pub fn place(&self) -> &Path {
        self.place.path()
    }

    /// The process that serves it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The last line that the process has said, for when something goes wrong.
    pub fn last_words(&self) -> String {
        let said = std::fs::read(log(&self.place)).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        format!("it said: {}", said.lines().last().unwrap_or("nothing"))
    }

    /// Ends it in order: what is still to be written is.
    ///
    /// # Errors
    /// Where the process does not end.
    pub async fn stop(mut self) -> Result<()> {
        let pid = Pid::from_raw(self.pid.cast_signed()).context("a process has a number")?;
        // It may have ended by itself.
        let _ = kill_process(pid, Signal::INT);
        match timeout(PATIENCE, self.child.wait()).await {
            Ok(ended) => {
                ended?;
                Ok(())
            }
            Err(_) => bail!("a mount does not end; {}", self.last_words()),
        }
    }

    async fn wait_until_there(&mut self) -> Result<()> {
        while !is_mounted(&self.directory()) {
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "the mount's process ended ({status}); {}",
                    self.last_words()
                );
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // The first call waits until the file system answers, and not in this thread.
        let directory = self.directory();
        let asked = tokio::task::spawn_blocking(move || std::fs::metadata(directory));
        asked.await?.context("the root of the mount")?;
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Has no effect where it has ended.
        let _ = self.child.start_kill();
        if is_mounted(&self.directory()) {
            let mut command = std::process::Command::new(&self.umount.program);
            command.args(&self.umount.arguments).arg(self.directory());
            let _ = command.status();
        }
        if is_mounted(&self.directory()) {
            eprintln!(
                "{} is still mounted and stays: quorate umount --lazy",
                self.directory().display()
            );
            // Never into a mount.
            self.place.disable_cleanup(true);
        }
    }
}

/// Whether something is mounted at a directory, without touching it.
fn is_mounted(directory: &Path) -> bool {
    let Ok(directory) = directory
        .parent()
        .unwrap_or(directory)
        .canonicalize()
        .map(|p| p.join(directory.file_name().unwrap_or_default()))
    else {
        return false;
    };
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let place = directory.to_string_lossy();
    table
        .lines()
        .any(|line| line.split(' ').nth(4).map(unescaped).as_deref() == Some(&*place))
}

/// A path as the kernel's table has it: blanks, tabs, line ends and backslashes are octal numbers there.
fn unescaped(text: &str) -> String {
    ["\\040 ", "\\011\t", "\\012\n", "\\134\\"]
        .iter()
        .fold(text.to_owned(), |text, rule| {
            let (code, meant) = rule.split_at(4);
            text.replace(code, meant)
        })
}

fn log(place: &TempDir) -> PathBuf {
    place.path().join("messages.log")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> Launcher {
        Launcher {
            program: "true".into(),
            arguments: Vec::new(),
        }
    }

    /// A program that ends without a mount is not waited for, and what it said is told; its place goes.
    #[tokio::test]
    async fn a_mount_that_does_not_come() {
        let data = tempfile::tempdir().unwrap();
        let place = place(data.path()).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo no device; exit 3"]);
        let failed = Mounted::start(&mut command, place, &nothing()).await;
        let failed = failed.unwrap_err().to_string();
        assert!(failed.contains("it said: no device"), "{failed}");
        assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 0);
    }

    /// A path with blanks is found in the kernel's table.
    #[test]
    fn mounts_are_told_apart() {
        assert!(is_mounted(Path::new("/proc")));
        assert!(!is_mounted(Path::new("/proc/self")));
        assert_eq!(unescaped("/a\\040b\\134c"), "/a b\\c");
    }
}
