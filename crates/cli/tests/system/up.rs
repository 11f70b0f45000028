//! `quorate up`: a whole group by one command.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::command_line::{assert_said, ends};
use crate::harness::{
    Group, Status, eventually, free_ports, is_mounted, quorate, require_fuse, scratch,
};

/// A process `quorate up --json`.
struct Up {
    child: Child,
    log: PathBuf,
    /// It has as many processes as any other group.
    _turn: File,
}

fn command(data: &Path, port: u16) -> Command {
    let mut command = quorate();
    command.args(["up", "--json", "--port", &port.to_string(), "--data"]);
    command.arg(data);
    command
}

impl Up {
    /// Starts it and waits until it is ready.
    fn start(data: &Path, port: u16, options: &[&str]) -> Up {
        let turn = Group::take_turn();
        let log = data.with_extension("log");
        let file = File::create(&log).expect("a log");
        let mut command = command(data, port);
        command.args(options);
        command
            .stdout(file.try_clone().expect("a log"))
            .stderr(file);
        let child = command.spawn().expect("it starts");
        let mut up = Up {
            child,
            log,
            _turn: turn,
        };
        eventually("it is ready", || {
            let ended = up.child.try_wait().expect("a child can be waited for");
            assert!(ended.is_none(), "it ended: {}", up.said());
            up.events("ready").len() == 1
        });
        up
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The events of a kind so far.
    fn events(&self, kind: &str) -> Vec<Value> {
        let said = self.said();
        let events = said
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        events.filter(|e: &Value| e["event"] == kind).collect()
    }

    /// Ctrl-C.
    fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("it lives");
        let mut status = None;
        eventually("it ends", || {
            status = self.child.try_wait().expect("a child can be waited for");
            status.is_some()
        });
        assert!(status.is_some_and(|s| s.success()), "{status:?}");
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("  up said:\n{}", self.said());
        }
        // So that it unmounts; it may have ended by itself.
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
        let _ = self.child.wait();
    }
}

/// `up` makes a group, mounts it, and takes all of it away on Ctrl-C; the next `up` finds the files.
#[test]
fn up_twice_finds_the_files_again() {
    if !require_fuse() {
        return;
    }
    let place = scratch();
    let data = place.path().join("data");
    let files = data.join("files");
    let port = free_ports(1)[0];
    for round in 0..2 {
        let up = Up::start(&data, port, &[]);
        assert!(is_mounted(&files));
        match round {
            0 => fs::write(files.join("kept"), b"for the next time").expect("a file"),
            _ => assert_eq!(
                fs::read(files.join("kept")).expect("it"),
                b"for the next time"
            ),
        }
        assert_eq!(Status::ask(&data).code, 0);
        up.stop();
        assert!(!is_mounted(&files), "the mount is still there");
        assert_eq!(Status::ask(&data).code, 2, "replicas still answer");
    }
}

/// A second `up` on a directory says who runs the group, and harms nothing.
#[test]
fn a_second_up_is_told_of_the_first() {
    let place = scratch();
    let data = place.path().join("data");
    let port = free_ports(1)[0];
    let up = Up::start(&data, port, &["--no-mount"]);
    let process = format!("by process {};", up.child.id());
    let second = ends(command(&data, port).arg("--no-mount"));
    assert_said(
        &second,
        1,
        &["already running", &process, "it is not mounted"],
    );
    assert_eq!(Status::ask(&data).code, 0);
    up.stop();

    if !require_fuse() {
        return;
    }
    let up = Up::start(&data, port, &[]);
    let mount = format!("its mount is {}", data.join("files").display());
    // Ready or not, mounted there or elsewhere.
    let second = ends(&mut command(&data, port));
    assert_said(&second, 1, &["already running", &mount]);
    assert!(is_mounted(&data.join("files")));
    up.stop();
}

/// A script is told how the group is: at first, when a replica is killed, and when it is back.
#[test]
fn scripts_are_told_the_status() {
    let place = scratch();
    let data = place.path().join("data");
    let up = Up::start(&data, free_ports(1)[0], &["--no-mount"]);
    let last = || up.events("status").pop();
    let whole = || last().is_some_and(|s| s["state"] == "whole");
    eventually("it is whole", whole);
    let fields: Vec<String> = last()
        .and_then(|s| Some(s.as_object()?.keys().cloned().collect()))
        .expect("a status");
    let expected = [
        "batches", "event", "lag", "mount", "silent", "state", "view",
    ];
    assert_eq!(fields, expected);
    let down = |s: &Value| s["state"] == "down";
    assert!(!up.events("status").iter().any(down), "{}", up.said());

    let victim = child_of(&up.child, "2");
    kill_process(victim, Signal::KILL).expect("the replica lives");
    eventually("its silence is told", || {
        let silent = |s: &Value| s["silent"] == serde_json::json!([2]) && s["state"] == "degraded";
        up.events("status").iter().any(silent)
    });
    eventually("it is whole again", whole);
    let died = |e: &Value| {
        e["text"]
            .as_str()
            .is_some_and(|t| t.contains("replica 2 died"))
    };
    assert!(up.events("note").iter().any(died), "{}", up.said());
    up.stop();
}

/// A replica that has lost its directory says so and stays out; the others go on.
#[test]
fn up_goes_on_without_a_replica_that_was_lost() {
    let place = scratch();
    let data = place.path().join("data");
    let port = free_ports(1)[0];
    Up::start(&data, port, &["--no-mount"]).stop();
    fs::remove_file(data.join("replica-3/group-id")).expect("the mark of a replica's directory");
    let up = Up::start(&data, port, &["--no-mount"]);
    eventually("the replica's words are told", || {
        let words = |e: &Value| {
            e["text"]
                .as_str()
                .is_some_and(|t| t.contains("has no mark"))
        };
        up.events("note").iter().any(words)
    });
    assert_eq!(Status::ask(&data).code, 1);
    up.stop();
}

/// The process of a replica that `up` has started.
fn child_of(up: &Child, id: &str) -> Pid {
    let path = format!("/proc/{0}/task/{0}/children", up.id());
    let children = fs::read_to_string(path).expect("the list of children");
    let is_it = |pid: &str| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        words
            .windows(2)
            .any(|pair| pair == [b"--id".as_slice(), id.as_bytes()])
    };
    let pid = children.split_whitespace().find(|pid| is_it(pid));
    let pid = pid.and_then(|pid| pid.parse().ok());
    Pid::from_raw(pid.expect("the replica's process")).expect("a number above 0")
}
