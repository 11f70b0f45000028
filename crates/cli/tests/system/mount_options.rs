//! Mount options, and mounts as a table of mounts starts them.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::command_line::{assert_said, ends};
use crate::harness::{
    Group, Mount, eventually, is_mounted, program, quorate, require_fuse, run, scratch,
};

/// Two mounts that take nothing for granted see each other's writes and names at once, without a close.
#[test]
fn noac_sees_at_once() {
    if !require_fuse() {
        return;
    }
    let mut group = Group::start();
    let mount = |client| Mount::start(&group, &group.client_key(client), &["noac"]);
    let (left, right) = (mount(0), mount(1));
    fs::write(left.at("file"), b"00").expect("a file");
    let open = |mount: &Mount| {
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).open(mount.at("file"));
        opened.expect("the file")
    };
    let (writer, reader) = (open(&left), open(&right));
    for round in 10..30u64 {
        let text = round.to_string();
        writer.write_all_at(text.as_bytes(), 0).expect("a write");
        let mut seen = [0; 2];
        reader.read_exact_at(&mut seen, 0).expect("a read");
        assert_eq!(seen, text.as_bytes(), "round {round}");
        writer.set_len(round).expect("another size");
        assert_eq!(reader.metadata().expect("attributes").len(), round);
        fs::rename(
            left.at(&format!("at-{}", round - 1)),
            left.at(&format!("at-{round}")),
        )
        .or_else(|_| File::create(left.at(&format!("at-{round}"))).map(drop))
        .expect("a name");
        assert!(right.at(&format!("at-{round}")).exists());
        let former = fs::metadata(right.at(&format!("at-{}", round - 1)));
        assert_eq!(former.expect_err("it moved").kind(), ErrorKind::NotFound);
    }
    drop((writer, reader));
    left.unmount();
    right.unmount();
    group.wait_until_they_agree(&[0, 1, 2, 3]);
}

/// A directory that something is mounted at; taken away at the end, whatever becomes of the test.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if is_mounted(self.0) {
            let _ = quorate().args(["umount", "--lazy"]).arg(self.0).status();
        }
    }
}

fn helper(place: &Path) -> Command {
    let name = place.join("mount.quorate");
    if !name.exists() {
        symlink(env!("CARGO_BIN_EXE_quorate"), &name).expect("a link to the command");
    }
    program(name.to_str().expect("a test's directory"))
}

/// What mount(8) calls returns when the files are there, and they stay until somebody unmounts them.
#[test]
fn a_table_of_mounts_can_name_a_group() {
    if !require_fuse() {
        return;
    }
    let group = Group::start();
    let place = scratch();
    let directory = place.path().join("files");
    fs::create_dir(&directory).expect("a directory to mount on");
    let log = place.path().join("log");
    let key = group.client_key(1);
    let words = |key: &Path| {
        format!(
            "rw,noexec,_netdev,key={},log={}",
            key.display(),
            log.display()
        )
    };
    let mounting = || {
        let mut command = helper(place.path());
        // As mount(8) has it: what, where, flags, options.
        command.arg(group.file()).arg(&directory);
        command
    };

    let unknown = ends(mounting().args(["-o", "rw,frobnicate"]));
    assert_said(&unknown, 32, &["-o frobnicate", "no such mount option"]);
    assert_said(&ends(helper(place.path()).arg("only-one")), 1, &["DIR"]);
    let no_key = ends(mounting().args(["-o", &words(&place.path().join("nothing"))]));
    assert_said(&no_key, 32, &["no key file", "nothing is mounted"]);
    run(mounting().args(["-f", "-o", &words(&key)]));
    assert!(!is_mounted(&directory));

    let _mounted = Mounted(&directory);
    run(mounting().args(["-n", "-o", &words(&key)]));
    assert!(is_mounted(&directory), "it returned before it was mounted");
    let process = background_process(&directory);
    fs::write(directory.join("file"), b"hello").expect("a file");
    let again = ends(mounting().args(["-o", &words(&key)]));
    assert_said(&again, 32, &["is mounted already"]);
    assert_eq!(
        fs::read(directory.join("file")).expect("the file"),
        b"hello"
    );
    run(quorate().arg("umount").arg(&directory));
    assert!(!is_mounted(&directory));
    eventually("the mount's process ends", || !process.exists());
    assert_eq!(fs::read_to_string(&log).expect("the log"), "");

    // The same by the command's own option, from a directory of its own and with paths that are not whole.
    let mut command = quorate();
    command.current_dir(group.directory());
    command.args(["mount", "group.toml", "--background", "--key"]);
    run(command
        .arg(key.file_name().expect("a name"))
        .arg(&directory));
    assert_eq!(
        fs::read(directory.join("file")).expect("the file"),
        b"hello"
    );
    let process = background_process(&directory);
    run(quorate().arg("umount").arg(&directory));
    eventually("the mount's process ends", || !process.exists());
}

/// The process that serves a mount in the background, in /proc.
fn background_process(directory: &Path) -> PathBuf {
    let processes = fs::read_dir("/proc").expect("the processes");
    let serves = |path: &PathBuf| {
        let line = fs::read(path.join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        let wanted = directory.as_os_str().as_encoded_bytes();
        words.contains(&&b"--in-background"[..]) && words.contains(&wanted)
    };
    let mut found = processes.flatten().map(|entry| entry.path()).filter(serves);
    found.next().expect("a process in the background")
}

/// Who ends a mount as soon as there is one leaves no dead one.
#[test]
fn a_mount_that_is_ended_at_once_is_gone() {
    if !require_fuse() {
        return;
    }
    let group = Group::start();
    let place = scratch();
    for round in 0..5 {
        let mut command = quorate();
        command.arg("mount").arg("--key").arg(group.client_key(0));
        command.arg(group.file()).arg(place.path());
        let mut child = command.spawn().expect("the mount process starts");
        while !is_mounted(place.path()) {
            assert_eq!(child.try_wait().expect("it is asked"), None);
            std::thread::yield_now();
        }
        kill_process(Pid::from_child(&child), Signal::TERM).expect("it lives");
        let ended = child.wait().expect("it ends");
        // With a word, if it was not done with mounting.
        assert!(ended.code().is_some(), "round {round}: {ended}");
        assert!(!is_mounted(place.path()), "round {round}");
    }
}

/// A mount whose process was killed is taken away by the next one at once, though the kernel goes on answering for it from what it remembers.
#[test]
fn a_mount_that_was_killed_is_mounted_anew() {
    if !require_fuse() {
        return;
    }
    let group = Group::start();
    let place = scratch();
    let _mounted = Mounted(place.path());
    let mounting = || {
        let mut command = quorate();
        command.args(["mount", "--background", "-o", "actimeo=60", "--key"]);
        command.arg(group.client_key(0)).arg(group.file());
        command.arg(place.path());
        command
    };
    run(&mut mounting());
    fs::write(place.path().join("file"), b"hello").expect("a file");
    let process = background_process(place.path());
    let id = process.file_name().and_then(|id| id.to_str()?.parse().ok());
    let id = Pid::from_raw(id.expect("a number")).expect("a process");
    fs::metadata(place.path()).expect("it is mounted");
    kill_process(id, Signal::KILL).expect("it lives");
    eventually("it is gone", || !process.exists());
    run(&mut mounting());
    let read = fs::read(place.path().join("file")).expect("the file");
    assert_eq!(read, b"hello");
    let process = background_process(place.path());
    run(quorate().arg("umount").arg(place.path()));
    eventually("the mount's process ends", || !process.exists());
}
