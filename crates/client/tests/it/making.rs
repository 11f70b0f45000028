//! Files that are made: what the group is asked for it, and whose they are when several want the same name.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::Barrier;

use crate::common::{Group, can_mount};

/// To make a file and to write it is an operation each. The group is told nothing of its being open, nor of its being closed.
#[test]
fn a_file_is_made_and_written_by_two_operations() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    group.kinds.take();
    for n in 0..20 {
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(n % 2 == 0).create(true);
        let mut file = options.open(m.path(&n.to_string())).unwrap();
        file.write_all(b"content").unwrap();
    }
    let kinds = group.kinds.take();
    assert_eq!((kinds["Make"], kinds["Write"]), (20, 20), "{kinds:?}");
    let others = ["Create", "Open", "Release"];
    assert!(
        others.iter().all(|kind| !kinds.contains_key(*kind)),
        "{kinds:?}"
    );
}

/// Who makes a file may do with it what he has opened it for, whatever mode it gets.
#[test]
fn a_mode_counts_from_the_next_open_on() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    for mode in [0o444, 0o000] {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create_new(true).mode(mode);
        let path = m.path(&format!("{mode:o}"));
        let mut file = options.open(&path).unwrap();
        file.write_all(b"content").unwrap();
        file.sync_all().unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o7777, mode);
        fs::remove_file(&path).unwrap();
        file.write_all(b" and more").unwrap();
        let mut again = File::open(format!("/proc/self/fd/{}", fd(&file))).unwrap();
        let mut text = String::new();
        again.read_to_string(&mut text).unwrap();
        assert_eq!(text, "content and more");
    }
}

fn fd(file: &File) -> i32 {
    std::os::fd::AsRawFd::as_raw_fd(file)
}

/// Of two mounts that make one name at the same moment one has it; and who did not insist has the other's file.
#[test]
fn one_of_two_has_the_name() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    let mut shared = 0;
    for round in 0..40 {
        let exclusive = round % 2 == 0;
        let barrier = Barrier::new(2);
        let name = format!("{round}");
        let make = |m: &crate::common::Mount| {
            let mut options = OpenOptions::new();
            options.write(true).append(true).create(true);
            options.create_new(exclusive);
            let path = m.path(&name);
            barrier.wait();
            let mut file = options.open(path)?;
            file.write_all(b"x")?;
            Ok::<u64, std::io::Error>(file.metadata()?.ino())
        };
        let made = std::thread::scope(|scope| {
            let one = scope.spawn(|| make(&a));
            let two = make(&b);
            [one.join().unwrap(), two]
        });
        match made {
            [Ok(one), Ok(two)] => {
                assert!(!exclusive && one == two);
                assert_eq!(fs::read(a.path(&name)).unwrap(), b"xx");
                shared += 1;
            }
            [Ok(_), Err(error)] | [Err(error), Ok(_)] => {
                assert!(exclusive && error.kind() == ErrorKind::AlreadyExists);
            }
            [Err(one), Err(two)] => panic!("{one}, {two}"),
        }
    }
    assert_eq!(shared, 20);
}

/// What is a directory by now is not opened as a file that was to be made.
#[test]
fn a_directory_is_no_file() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    for round in 0..40 {
        let (barrier, name) = (Barrier::new(2), format!("{round}"));
        std::thread::scope(|scope| {
            let directory = scope.spawn(|| {
                barrier.wait();
                fs::create_dir(a.path(&name)).is_ok()
            });
            barrier.wait();
            let mut options = OpenOptions::new();
            let file = options.write(true).create(true).truncate(true);
            let file = file.open(b.path(&name));
            match directory.join().unwrap() {
                true => assert_eq!(file.unwrap_err().kind(), ErrorKind::IsADirectory),
                false => drop(file.unwrap()),
            }
        });
    }
}
