//! The two mounts, and the processes that serve them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::program;

/// A group's ports; below those that the system gives to outgoing connections.
const PORT: &str = "17400";
/// Parts of a second in which the kernel counts processor time.
const TICKS: u64 = 100;

/// A mount to be measured.
#[derive(Debug)]
pub struct Side {
    name: &'static str,
    child: Child,
    place: PathBuf,
}

/// Processor time of the parts that serve a mount.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu {
    pub mount: Duration,
    pub replicas: Duration,
}

impl std::ops::Sub for Cpu {
    type Output = Cpu;

    fn sub(self, before: Cpu) -> Cpu {
        Cpu {
            mount: self.mount.saturating_sub(before.mount),
            replicas: self.replicas.saturating_sub(before.replicas),
        }
    }
}

impl Side {
    /// A directory of the disk through a FUSE file system that passes everything on.
    pub fn passthrough(place: &Path) -> Result<Side, String> {
        let place = place.join("passthrough");
        for name in ["mount", "beneath"] {
            make(&place.join(name))?;
        }
        let mut command = Command::new("bindfs");
        command.arg("-f").arg(place.join("beneath"));
        Side::start("passthrough", command.arg(place.join("mount")), place)
    }

    /// A group of four replicas.
    pub fn quorate(place: &Path, program: &Path) -> Result<Side, String> {
        let place = place.join("quorate");
        make(&place.join("mount"))?;
        let mut command = Command::new(program);
        command.args(["up", "--json", "--no-restart", "--port", PORT, "--data"]);
        command.arg(place.join("group"));
        command.arg("--mount");
        Side::start("quorate", command.arg(place.join("mount")), place)
    }

    fn start(name: &'static str, command: &mut Command, place: PathBuf) -> Result<Side, String> {
        let path = place.join("log");
        let log = || File::create(&path).map_err(|e| format!("{}: {e}", path.display()));
        command.stdin(Stdio::null()).stdout(log()?);
        command.stderr(Stdio::null());
        let child = command.spawn().map_err(|e| format!("{name}: {e}"))?;
        let mut side = Side { name, child, place };
        program::wait_until("the file system is mounted", || {
            let ended = side.child.try_wait().map_err(|e| e.to_string())?;
            let said = std::fs::read_to_string(&path).unwrap_or_default();
            match ended {
                Some(status) => Err(format!("{name} ended ({status}): {said}")),
                None => Ok(is_mounted(&side.directory())),
            }
        })?;
        Ok(side)
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    pub fn directory(&self) -> PathBuf {
        self.place.join("mount")
    }

    /// Where the passed-on files are on the disk.
    pub fn beneath(&self) -> PathBuf {
        self.place.join("beneath")
    }

    pub fn cpu(&self) -> Cpu {
        let replicas = self.replicas().into_iter().map(cpu_of).sum();
        Cpu {
            mount: cpu_of(self.child.id()),
            replicas,
        }
    }

    /// The most memory that one replica had, and that the mount had, in bytes.
    pub fn memory(&self) -> (Option<u64>, u64) {
        let replicas = self.replicas().into_iter().map(memory_of).max();
        (replicas, memory_of(self.child.id()))
    }

    fn replicas(&self) -> Vec<u32> {
        let path = format!("/proc/{0}/task/{0}/children", self.child.id());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let pids = text.split_whitespace().filter_map(|pid| pid.parse().ok());
        pids.collect()
    }

    pub fn stop(mut self) -> Result<(), String> {
        program::stop(&mut self.child)
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = program::stop(&mut self.child);
        }
    }
}

fn make(directory: &Path) -> Result<(), String> {
    std::fs::create_dir_all(directory).map_err(|e| format!("{}: {e}", directory.display()))
}

fn is_mounted(directory: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let place = directory.to_string_lossy();
    table
        .lines()
        .any(|line| line.split(' ').nth(4) == Some(&*place))
}

fn cpu_of(pid: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may have spaces in it.
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let times = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = times.filter_map(|t| t.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 1_000 / TICKS)
}

fn memory_of(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
