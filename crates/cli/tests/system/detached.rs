//! Mounts that end while programs use them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::{Signal, kill_process};

use crate::harness::{
    Group, Mount, Patience, eventually, finish, is_mounted, program, quorate, require_fuse, run,
    scratch,
};

/// A process that has a file of a mount open and locked, for as long as it lives.
struct Holder(Child);

impl Holder {
    fn start(mount: &Mount) -> Holder {
        // It becomes one process, which has the lock.
        let script = "exec 9>\"$0\" && flock 9 && printf written >&9 && exec sleep 600";
        let mut shell = program("sh");
        shell.args(["-c", script]).arg(mount.at("held"));
        let holder = Holder(shell.stdout(Stdio::null()).spawn().expect("a shell"));
        let name = format!("/proc/{}/comm", holder.0.id());
        eventually("the file is locked", || {
            fs::read_to_string(&name).is_ok_and(|name| name.trim() == "sleep")
        });
        holder
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn try_lock(mount: &Mount, wait: &str) -> Command {
    let mut flock = program("flock");
    flock.args(["-w", wait]).arg(mount.at("held")).arg("true");
    flock
}

/// A mount that is ended while it is in use leaves no lock behind, and nothing unwritten: whether it is in the tree when
/// it is asked to end, or was detached before.
#[test]
fn a_mount_in_use_lets_go_of_its_locks() {
    if !require_fuse() {
        return;
    }
    let group = Group::start();
    let other = group.mount_as(1);
    for detached in [false, true] {
        let mut mount = group.mount();
        let holder = Holder::start(&mount);
        let refused = finish(&mut try_lock(&other, "0"), Patience::default());
        assert_eq!(refused.code(), 1, "{}", refused.stderr);
        if detached {
            run(quorate().args(["umount", "--lazy"]).arg(mount.path()));
            // It serves who has its files open; the end of the process is what ends it.
            let refused = finish(&mut try_lock(&other, "1"), Patience::default());
            assert_eq!(refused.code(), 1, "{}", refused.stderr);
        }
        kill_process(mount.process(), Signal::INT).expect("the mount process lives");
        let ended = mount.wait().expect("the mount process ends");
        assert!(ended.success(), "{ended}");
        assert!(!is_mounted(mount.path()));
        // Far less than a lease.
        run(&mut try_lock(&other, "10"));
        let held = fs::read(other.at("held")).expect("the file");
        assert_eq!(held, b"written");
        drop(holder);
    }
}

/// Writes to a mapped file and keeps it mapped: what it has written is known to the kernel alone.
const MAPPER: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv) {
    const size_t len = 1 << 20;
    int file = open(argv[argc - 1], O_RDWR | O_CREAT, 0644);
    if (file < 0 || ftruncate(file, len) != 0)
        return 1;
    char *map = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map == MAP_FAILED)
        return 1;
    memset(map, 'm', len);
    puts("mapped");
    fflush(stdout);
    pause();
    return 0;
}
"#;

/// Whoever ends a mount while a program has written to mapped memory loses nothing of that.
#[test]
fn mapped_pages_are_written_before_a_mount_in_use_ends() {
    if !require_fuse() {
        return;
    }
    let place = scratch();
    let (source, mapper) = (place.path().join("mapper.c"), place.path().join("mapper"));
    fs::write(&source, MAPPER).expect("a file");
    run(program("cc").arg("-o").arg(&mapper).arg(&source));
    let group = Group::start();
    let mut mount = group.mount();
    let mut command = program(mapper.to_str().expect("a path"));
    command.arg(mount.at("mapped")).stdout(Stdio::piped());
    let mut holder = Holder(command.spawn().expect("the program"));
    let mut said = BufReader::new(holder.0.stdout.take().expect("a pipe"));
    let mut line = String::new();
    said.read_line(&mut line).expect("a word");
    assert_eq!(line, "mapped\n");
    kill_process(mount.process(), Signal::INT).expect("the mount process lives");
    let ended = mount.wait().expect("the mount process ends");
    assert!(ended.success(), "{ended}");
    drop(holder);
    let other = group.mount_as(1);
    let content = fs::read(other.at("mapped")).expect("the file");
    assert_eq!(content.len(), 1 << 20);
    assert!(content.iter().all(|byte| *byte == b'm'), "pages were lost");
}
