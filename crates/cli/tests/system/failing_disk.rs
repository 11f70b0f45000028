//! A disk that refuses writes or syncs takes its replica out in order: with a message that names the file, an exit code that says
//! that it was the disk, and without a word to anybody that was not safe. `strace` has the kernel give the errors.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{
    Group, Mount, Random, Status, eventually, holds_in_time, left_out, require_fuse,
};

/// EX_IOERR of sysexits.h.
const IO: i32 = 74;
/// Files that are read again, some with long content.
const READ: u64 = 120;

/// From now on some system calls of a process on some files fail with EIO.
struct Failing(Child);

impl Failing {
    /// `None`, with a word, where there is no `strace` or it may not do so. That is a failure where continuous integration
    /// runs: nothing else has a disk return errors.
    fn new(group: &Group, id: u8, calls: &str, files: &[PathBuf]) -> Option<Failing> {
        let mut command = Command::new("strace");
        let pid = group.pid(id).to_string();
        let said = group.directory().join(format!("strace-{id}"));
        command.args(["-f", "-p", &pid, "-o", "/dev/null"]);
        command.arg("-e").arg(format!("trace={calls}"));
        command.arg("-e").arg(format!("inject={calls}:error=EIO"));
        for file in files {
            command.arg("-P").arg(file);
        }
        let log = fs::File::create(&said).expect("a file");
        let child = command.stderr(log).stdout(Stdio::null()).spawn();
        let mut it = match child {
            Ok(child) => Failing(child),
            Err(e) => return left_out(&format!("strace can't be run: {e}")),
        };
        let attached = || fs::read_to_string(&said).is_ok_and(|s| s.contains("attached"));
        if !holds_in_time(|| attached() || !matches!(it.0.try_wait(), Ok(None))) || !attached() {
            return left_out("strace may not look at a process");
        }
        Some(it)
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The files of a replica in one of its directories.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory");
    entries.map(|e| e.expect("an entry").path()).collect()
}

fn write(directory: &Path, names: std::ops::Range<u32>) {
    for name in names {
        fs::write(directory.join(name.to_string()), name.to_string()).expect("a file");
    }
}

fn assert_told(group: &mut Group, id: u8, file: &str) {
    let ended = group.wait_for_end(id);
    let log = group.log(id);
    assert_eq!(ended.code(), Some(IO), "{log}");
    let last = log.lines().last().unwrap_or_default();
    assert!(
        last.contains(file) && last.contains("os error 5") && last.contains("heck the disk"),
        "its last word is {last:?}"
    );
}

/// One replica's disk after the other way of failing: the files stay served, and with a disk that works it is back.
#[test]
fn a_disk_that_refuses_takes_one_replica_out() {
    if !require_fuse() {
        return;
    }
    let mut group = Group::start();
    let own = group.directory().join("replica-2");
    let store = vec![own.join("state.redb")];
    let mut written = 0;
    for (calls, of_log) in [
        ("fdatasync,fsync", true),
        ("pwrite64", true),
        ("fdatasync,fsync", false),
        ("pwrite64", false),
    ] {
        eprintln!("{calls}, log: {of_log}");
        let mount = group.mount();
        let paths = if of_log {
            files(&own.join("log"))
        } else {
            store.clone()
        };
        let Some(failing) = Failing::new(&group, 2, calls, &paths) else {
            return;
        };
        // Enough for a checkpoint, with which the store is written.
        for _ in 0..40 {
            write(mount.path(), written..written + 20);
            written += 20;
            if !group.all_run() {
                break;
            }
        }
        let file = if of_log {
            "replica-2/log/"
        } else {
            "state.redb"
        };
        assert_told(&mut group, 2, file);
        drop(failing);
        write(mount.path(), written..written + 20);
        written += 20;
        group.start_replica(2);
        mount.unmount();
        group.wait_until_they_agree(&[0, 1, 2, 3]);
    }
}

/// The logs of two refuse to be synced: without these two nothing can be agreed on, and nobody is told that it was.
#[test]
fn nothing_is_acknowledged_that_is_not_safe() {
    if !require_fuse() {
        return;
    }
    let mut group = Group::start();
    let mount = group.mount();
    write(mount.path(), 0..20);
    group.wait_until_they_agree(&[0, 1, 2, 3]);
    let mut failing = Vec::new();
    for id in [2, 3] {
        let log = group.directory().join(format!("replica-{id}/log"));
        let Some(it) = Failing::new(&group, id, "fdatasync,fsync", &files(&log)) else {
            return;
        };
        failing.push(it);
    }
    let (said, heard) = mpsc::channel();
    let path = mount.at("new");
    let writer = std::thread::spawn(move || {
        fs::create_dir(path).expect("it is made in the end");
        let _ = said.send(());
    });
    for id in [2, 3] {
        assert_told(&mut group, id, &format!("replica-{id}/log/"));
    }
    let early = heard.recv_timeout(Duration::from_secs(3));
    assert!(early.is_err(), "two replicas have agreed on something");
    drop(failing);
    group.start_replica(2);
    group.start_replica(3);
    eventually("it is done", || heard.try_recv().is_ok());
    writer.join().expect("the writer");
    write(mount.path(), 20..40);
    group.wait_until_they_agree(&[0, 1, 2, 3]);
}

/// Every fourth is long enough to lie in a segment.
fn content(name: u64) -> Vec<u8> {
    let bytes = if name.is_multiple_of(4) { 150_000 } else { 700 };
    Random::new(name).bytes(bytes)
}

fn read_all(mount: &Mount) {
    for name in 0..READ {
        let found = fs::read(mount.at(&name.to_string())).expect("a file");
        assert!(found == content(name), "file {name}");
    }
}

/// A replica whose segments refuse to be read ends with a message and not with a wrong answer: people read what they have
/// written all the while. Where the disk works again it is back with what it has, and can do for another.
///
/// What a replica has just written it has in memory: so it starts anew before its disk fails, and the files are read by mounts that
/// have not seen them.
#[test]
fn a_disk_that_refuses_reads_takes_one_replica_out() {
    if !require_fuse() {
        return;
    }
    let mut group = Group::start();
    let mount = group.mount();
    for name in 0..READ {
        fs::write(mount.at(&name.to_string()), content(name)).expect("a file");
    }
    let blobs = group.directory().join("replica-2/blobs");
    for round in 0..2 {
        Status::wait_for_a_checkpoint(group.directory(), &[0, 1, 2, 3], mount.path());
        let pid = Pid::from_raw(group.pid(2) as i32).expect("a process");
        kill_process(pid, Signal::TERM).expect("it runs");
        assert!(group.wait_for_end(2).success());
        group.start_replica(2);
        group.wait_until_they_agree(&[0, 1, 2, 3]);
        let Some(failing) = Failing::new(&group, 2, "pread64", &files(&blobs)) else {
            return;
        };
        let is_out = holds_in_time(|| {
            let reader = group.mount_as(1);
            read_all(&reader);
            reader.unmount();
            !group.all_run()
        });
        assert!(is_out, "replica 2 can do without its segments");
        assert_told(&mut group, 2, "replica-2/blobs/");
        drop(failing);
        fs::write(mount.at("more"), [round]).expect("a file");
        group.start_replica(2);
        group.wait_until_they_agree(&[0, 1, 2, 3]);
    }
    group.kill(0);
    let reader = group.mount_as(1);
    read_all(&reader);
    reader.unmount();
    group.wait_until_they_agree(&[1, 2, 3]);
}
