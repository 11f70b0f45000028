//! A process `quorate up`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::group::LIMIT;
use super::watchdog::{Mounts, Watchdog};
use super::{Group, eventually, last_lines, quorate};

/// A process `quorate up --json`, with its replicas and its mount.
#[derive(Debug)]
pub struct Up {
    child: Child,
    log: PathBuf,
    watchdog: Watchdog,
    /// It has as many processes as any other group.
    _turn: File,
}

impl Up {
    /// The command, for the group of a directory.
    pub fn command(data: &Path, port: u16) -> Command {
        let mut command = quorate();
        command.args(["up", "--json", "--port", &port.to_string(), "--data"]);
        command.arg(data);
        command
    }

    /// Starts it and waits until it is ready.
    pub fn start(data: &Path, port: u16, options: &[&str]) -> Up {
        let turn = Group::take_turn();
        let log = data.with_extension("log");
        let file = File::create(&log).expect("a log");
        let mut command = Up::command(data, port);
        command.args(options);
        // Where relative paths begin.
        command.current_dir(data.parent().expect("a directory around it"));
        command
            .stdout(file.try_clone().expect("a log"))
            .stderr(file);
        let child = command.spawn().expect("it starts");
        let watchdog = Watchdog::start(LIMIT);
        watchdog.mounts().add(Pid::from_child(&child), log.clone());
        let mut up = Up {
            child,
            log,
            watchdog,
            _turn: turn,
        };
        eventually("it is ready", || {
            let ended = up.child.try_wait().expect("a child can be waited for");
            assert!(ended.is_none(), "it ended: {}", up.said());
            up.events("ready").len() == 1
        });
        up
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The events of a kind so far.
    pub fn events(&self, kind: &str) -> Vec<Value> {
        let said = self.said();
        let events = said
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        events.filter(|e: &Value| e["event"] == kind).collect()
    }

    /// Whether it has told something with these words.
    pub fn noted(&self, words: &str) -> bool {
        let notes = self.events("note");
        let mut texts = notes.iter().filter_map(|note| note["text"].as_str());
        texts.any(|text| text.contains(words))
    }

    /// Ctrl-C.
    pub fn interrupt(&self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("it lives");
    }

    /// Waits until it has ended.
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("it ends", || {
            status = self.child.try_wait().expect("a child can be waited for");
            status.is_some()
        });
        status.expect("it has ended")
    }

    /// Ctrl-C, and what has to come of it.
    pub fn stop(mut self) {
        self.interrupt();
        let status = self.wait();
        assert!(status.success(), "{status:?}");
    }

    /// The mounts that end when this takes too long.
    pub fn mounts(&self) -> Mounts {
        self.watchdog.mounts()
    }

    /// The process of a replica.
    pub fn replica(&self, id: u8) -> Pid {
        self.replica_of("", id)
    }

    /// The process of a replica of the group in a directory, where there are several.
    pub fn replica_of(&self, group: &str, id: u8) -> Pid {
        let path = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = fs::read_to_string(path).expect("the list of children");
        let id = id.to_string();
        let is_it = |pid: &str| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            let file = format!("{group}/group.toml");
            // Its key holder has the same number.
            words.contains(&b"replica".as_slice())
                && words.iter().any(|word| word.ends_with(file.as_bytes()))
                && words
                    .windows(2)
                    .any(|pair| pair == [b"--id".as_slice(), id.as_bytes()])
        };
        let pid = children.split_whitespace().find(|pid| is_it(pid));
        let pid = pid.and_then(|pid| pid.parse().ok());
        Pid::from_raw(pid.expect("the replica's process")).expect("a number above 0")
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("  up said last:\n{}", last_lines(&self.log, 20));
        }
        let pid = Pid::from_child(&self.child);
        // So that it unmounts; it may have ended by itself.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process(pid, Signal::INT);
            let _ = self.child.wait();
        }
        self.watchdog.mounts().remove(pid);
    }
}
