//! What mount options promise: how old what is shown may be, told by what the group is asked; and what the kernel refuses.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Command;
use std::time::Duration;

use crate::common::{Group, Mount, can_mount};
use quorate_client::fuse::{Caching, Lifetime, MountOptions};

/// Long beside any test.
const LONG: Duration = Duration::from_secs(600);

fn with(group: &Group, client: u8, caching: Caching) -> Mount {
    let options = MountOptions {
        caching,
        ..MountOptions::default()
    };
    group.mount_with(client, options)
}

fn fixed(time: Duration) -> Caching {
    Caching {
        files: Lifetime::fixed(time),
        directories: Lifetime::fixed(time),
        ..Caching::default()
    }
}

/// As `noac` has it.
fn nothing_kept() -> Caching {
    Caching {
        sync: true,
        validate_reads: true,
        ..fixed(Duration::ZERO)
    }
}

fn asked(group: &Group, kind: &str) -> u64 {
    group.kinds.take().get(kind).copied().unwrap_or(0)
}

fn head(file: &File) -> [u8; 3] {
    let mut head = [0; 3];
    file.read_exact_at(&mut head, 0).unwrap();
    head
}

/// Without a cache of attributes each change is seen by the next call, on both sides and without a close.
#[test]
fn without_a_cache_changes_are_seen_at_once() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (
        with(&group, 1, nothing_kept()),
        with(&group, 2, nothing_kept()),
    );
    let open = |m: &Mount| {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true);
        options.open(m.path("f")).unwrap()
    };
    fs::write(a.path("f"), b"000").unwrap();
    let (left, right) = (open(&a), open(&b));
    for round in 100..120u32 {
        let (writer, reader, name) = match round % 2 {
            0 => (&left, &right, b.path("g")),
            _ => (&right, &left, a.path("g")),
        };
        let text: [u8; 3] = round.to_string().into_bytes().try_into().unwrap();
        writer.write_all_at(&text, 0).unwrap();
        assert_eq!(head(reader), text);
        writer.set_len(u64::from(round)).unwrap();
        assert_eq!(reader.metadata().unwrap().len(), u64::from(round));
        // Names come and go likewise, and the mode of one that stays.
        let there = [a.path("g"), b.path("g")]
            .into_iter()
            .find(|path| *path != name)
            .unwrap();
        fs::write(&there, b"").unwrap();
        assert_eq!(fs::metadata(&name).unwrap().len(), 0);
        fs::set_permissions(&there, Permissions::from_mode(0o604)).unwrap();
        assert_eq!(
            fs::metadata(&name).unwrap().permissions().mode() & 0o7777,
            0o604
        );
        fs::remove_file(&there).unwrap();
        assert_eq!(fs::metadata(&name).unwrap_err().kind(), ErrorKind::NotFound);
    }
    group.kinds.take();
    for _ in 0..10 {
        left.metadata().unwrap();
    }
    assert_eq!(asked(&group, "GetAttr"), 10);
}

/// Where no name is kept, an open finds the file that has the name now, also if the one that had it is there under another.
#[test]
fn without_kept_names_an_open_finds_the_present_file() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let caching = Caching {
        directories: Lifetime::fixed(Duration::ZERO),
        ..Caching::default()
    };
    let (a, b) = (with(&group, 1, caching), group.mount(2));
    fs::write(b.path("x"), b"one").unwrap();
    assert_eq!(fs::read(a.path("x")).unwrap(), b"one");
    fs::rename(b.path("x"), b.path("x~")).unwrap();
    fs::write(b.path("x"), b"two").unwrap();
    assert_eq!(fs::read(a.path("x")).unwrap(), b"two");
    assert_eq!(fs::read(a.path("x~")).unwrap(), b"one");
}

/// Within its time nobody is asked twice; an open asks all the same, and sees what was closed elsewhere.
#[test]
fn attributes_are_kept_for_their_time() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (with(&group, 1, fixed(LONG)), group.mount(2));
    fs::write(b.path("f"), b"one").unwrap();
    let length = || fs::metadata(a.path("f")).unwrap().len();
    assert_eq!(length(), 3);
    // Longer than they are kept where nobody says otherwise.
    std::thread::sleep(2 * quorate_client::fuse::TTL);
    group.kinds.take();
    for _ in 0..50 {
        length();
    }
    let kinds = group.kinds.take();
    assert!(
        !kinds.contains_key("GetAttr") && !kinds.contains_key("Lookup"),
        "{kinds:?}"
    );

    fs::write(b.path("f"), b"three").unwrap();
    assert_eq!(length(), 3, "the group was not asked");
    assert_eq!(fs::read(a.path("f")).unwrap(), b"three");
    assert_eq!(length(), 5, "an open brings attributes");
}

/// What has just changed is asked for again after the shorter time, what has not changed for long after the longer one.
#[test]
fn what_is_old_is_asked_for_seldom() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let bounds = Lifetime {
        least: Duration::from_millis(10),
        most: LONG,
    };
    let caching = Caching {
        files: bounds,
        directories: Lifetime::fixed(LONG),
        ..Caching::default()
    };
    let a = with(&group, 1, caching);
    let looks = |name: &str| {
        fs::metadata(a.path(name)).unwrap();
        group.kinds.take();
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(50));
            fs::metadata(a.path(name)).unwrap();
        }
        asked(&group, "GetAttr")
    };
    fs::write(a.path("young"), b"").unwrap();
    let young = looks("young");
    assert!(young >= 1, "{young}");
    // Its next use is at least a tenth of its age away: half a second.
    fs::write(a.path("old"), b"").unwrap();
    std::thread::sleep(Duration::from_secs(8));
    assert_eq!(looks("old"), 0);
}

/// With `sync` each write is agreed before it returns; without, neighbours go together.
#[test]
fn synchronous_writes_do_not_wait() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    for sync in [true, false] {
        let caching = Caching {
            sync,
            ..Caching::default()
        };
        let m = with(&group, 1, caching);
        let file = File::create(m.path("f")).unwrap();
        group.kinds.take();
        for n in 0..20 {
            file.write_all_at(&[n; 100], u64::from(n) * 100).unwrap();
        }
        let writes = asked(&group, "Write");
        if sync {
            assert_eq!(writes, 20);
            // So the file is whole though it was not closed.
            file.set_modified(std::time::SystemTime::UNIX_EPOCH)
                .unwrap();
            assert_eq!(asked(&group, "SetAttr"), 1);
        } else {
            assert!(writes < 5, "{writes}");
        }
        drop(file);
        assert_eq!(fs::read(m.path("f")).unwrap().len(), 2000);
    }
}

/// What is mounted so that nothing is changed or executed, is not; and devices and set-user-ID bits never count.
#[test]
fn the_kernel_refuses_what_it_is_to_refuse() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let plain = group.mount(1);
    fs::write(plain.path("program"), b"#!/bin/sh\n").unwrap();
    fs::set_permissions(plain.path("program"), Permissions::from_mode(0o755)).unwrap();
    assert!(
        Command::new(plain.path("program"))
            .status()
            .unwrap()
            .success()
    );

    let options = MountOptions {
        read_only: true,
        no_exec: true,
        ..MountOptions::default()
    };
    let strict = group.mount_with(2, options);
    let refused = Command::new(strict.path("program")).status().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    let refused = fs::write(strict.path("new"), b"").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    for (mount, wanted) in [
        (&plain, &["rw", "nosuid", "nodev", "relatime"][..]),
        (&strict, &["ro", "nosuid", "nodev", "noexec", "noatime"][..]),
    ] {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let place = mount.dir().canonicalize().unwrap();
        let place = place.to_str().unwrap();
        let line = table
            .lines()
            .find(|line| line.split(' ').nth(4) == Some(place))
            .unwrap();
        let options: Vec<&str> = line.split(' ').nth(5).unwrap().split(',').collect();
        for option in wanted {
            assert!(options.contains(option), "{option} in {line}");
        }
    }
}
