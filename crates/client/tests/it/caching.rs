//! What the kernel's cache spares the group, and what it must not.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, fchown};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use crate::common::{Group, can_mount, noise};
use quorate_client::fuse::TTL;
use quorate_files::{Ino, Target, Who};

/// What this mount alone has written is read from the page cache, also after the file's attributes were asked for.
#[test]
fn own_writes_are_not_read_back() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    let mut data = noise(1, 4 << 20);
    fs::write(m.path("f"), &data).unwrap();
    assert_eq!(fs::metadata(m.path("f")).unwrap().len(), 4 << 20);
    for round in 0..3u8 {
        std::thread::sleep(TTL);
        assert!(fs::read(m.path("f")).unwrap() == data, "round {round}");
        let f = OpenOptions::new().write(true).open(m.path("f")).unwrap();
        f.write_all_at(&[round; 4096], 8192).unwrap();
        data[8192..12288].fill(round);
    }
    let asked = group.kinds.take();
    // Not all 12 MiB; single pages the kernel may have dropped while it had little memory.
    let bytes = asked.get("bytes to read").copied().unwrap_or(0);
    assert!(bytes < 1 << 20, "{asked:?}");
}

/// Who keeps a file open sees what others have written when the attributes are asked for; an open sees it at once.
#[test]
fn foreign_changes_are_seen_in_open_files() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    fs::write(a.path("f"), noise(1, 100_000)).unwrap();
    let kept = File::open(a.path("f")).unwrap();
    let head = |file: &File| {
        let mut head = [0; 3];
        file.read_exact_at(&mut head, 0).unwrap();
        head
    };
    head(&kept);
    let f = OpenOptions::new().write(true).open(b.path("f")).unwrap();
    for text in [b"one", b"two"] {
        f.write_all_at(text, 0).unwrap();
        f.sync_all().unwrap();
        std::thread::sleep(TTL + Duration::from_millis(100));
        kept.metadata().unwrap();
        assert_eq!(head(&kept), *text);
    }
    f.write_all_at(b"end", 0).unwrap();
    drop(f);
    assert_eq!(head(&File::open(a.path("f")).unwrap()), *b"end");
    assert_eq!(head(&kept), *b"end");
}

/// An open file that gets another's name elsewhere shows what is written to it later, though the kernel, when it finds that name, tells the mount that it has
/// let go of the file.
#[test]
fn foreign_changes_are_seen_under_a_new_name() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    fs::write(a.path("f"), b"one").unwrap();
    fs::write(a.path("g"), b"another").unwrap();
    let kept = File::open(a.path("f")).unwrap();
    let head = || {
        let mut head = [0; 3];
        kept.read_exact_at(&mut head, 0).unwrap();
        head
    };
    assert_eq!(head(), *b"one");
    fs::metadata(a.path("g")).unwrap();
    fs::rename(b.path("f"), b.path("g")).unwrap();
    std::thread::sleep(TTL + TTL / 4);
    assert_eq!(fs::metadata(a.path("g")).unwrap().len(), 3);
    assert_eq!(head(), *b"one");
    let f = OpenOptions::new().write(true).open(b.path("g")).unwrap();
    f.write_all_at(b"two", 0).unwrap();
    f.sync_all().unwrap();
    std::thread::sleep(TTL + TTL / 4);
    kept.metadata().unwrap();
    assert_eq!(head(), *b"two");
}

/// Who reads a file in order has it read ahead in large pieces, each once; and sees what was written meanwhile.
#[test]
fn files_are_read_ahead() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    let mut data = noise(1, (16 << 20) + 12345);
    fs::write(a.path("f"), &data).unwrap();
    group.kinds.take();
    assert!(fs::read(b.path("f")).unwrap() == data);
    let asked = group.kinds.take();
    assert!((16..32).contains(&asked["Read"]), "{asked:?}");

    // Half of it, so that the next blocks are there or on their way.
    fs::write(a.path("g"), &data).unwrap();
    let mut reading = File::open(b.path("g")).unwrap();
    let mut back = vec![0; data.len()];
    let (first, second) = back.split_at_mut(8 << 20);
    reading.read_exact(first).unwrap();
    let f = OpenOptions::new().write(true).open(b.path("g")).unwrap();
    f.write_all_at(b"changed", (9 << 20) + 5).unwrap();
    data[(9 << 20) + 5..][..7].copy_from_slice(b"changed");
    reading.read_exact(second).unwrap();
    assert!(back == data);

    // The same where the other side writes, and the file is opened again.
    let mut reading = File::open(a.path("g")).unwrap();
    reading.read_exact(&mut back[..8 << 20]).unwrap();
    f.write_all_at(b"again", 10 << 20).unwrap();
    drop(f);
    data[10 << 20..][..5].copy_from_slice(b"again");
    File::open(a.path("g")).unwrap();
    reading.read_exact(&mut back[8 << 20..]).unwrap();
    assert!(back == data);
}

/// Unpacking an archive costs few agreed operations for each file.
#[test]
fn unpacking_costs_few_operations() {
    if !can_mount() {
        return;
    }
    const FILES: u64 = 100;
    let place = tempfile::tempdir().unwrap();
    let tree = place.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for n in 0..FILES {
        fs::write(tree.join(format!("file {n}")), noise(n + 1, 5000)).unwrap();
    }
    let archive = place.path().join("tree.tar");
    let tar = |how: &str, directory: &Path| {
        let mut tar = Command::new("tar");
        let status = tar.arg(how).arg(&archive).arg("-C").arg(directory);
        let status = status.args(["-p", "tree"]).status().unwrap();
        assert!(status.success());
    };
    tar("-cf", place.path());
    let group = Group::start();
    let m = group.mount(1);
    group.kinds.take();
    tar("-xf", m.dir());
    let asked = group.kinds.take();
    // Create, write, set all attributes, release. Lookups and looks at attributes are not agreed on.
    let agreed: u64 = asked.values().sum::<u64>() - asked["Lookup"] - asked["GetAttr"];
    assert!(agreed <= 4 * FILES + 8, "{asked:?}");
    for n in 0..FILES {
        let meta = |directory: &Path| fs::metadata(directory.join(format!("file {n}"))).unwrap();
        let (there, here) = (meta(&tree), meta(&m.path("tree")));
        assert_eq!((there.mode(), there.mtime()), (here.mode(), here.mtime()));
    }
}

/// A close sends content and times together. The times are right whichever the group executes first.
#[test]
fn times_come_after_content() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    for (name, late) in [("f", false), ("g", true)] {
        group.late_writes.store(late, Ordering::Release);
        group.kinds.take();
        let mut f = File::create(m.path(name)).unwrap();
        f.write_all(b"content").unwrap();
        f.set_modified(long_ago).unwrap();
        drop(f);
        assert_eq!(group.kinds.take()["SetAttr"], 1 + u64::from(late));
        group.late_writes.store(false, Ordering::Release);
        assert_eq!(fs::read(m.path(name)).unwrap(), b"content");
        let modified = fs::metadata(m.path(name)).unwrap().modified().unwrap();
        assert_eq!(modified, long_ago, "{name}");
    }
}

/// The content and the attributes of a small file leave at once when it is closed, a mode among them: in a group they are ordered in one batch.
#[test]
fn a_close_is_one_message() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    for n in 0..100 {
        let mut f = File::create(m.path(&format!("file {n}"))).unwrap();
        f.write_all(b"content").unwrap();
        if n % 2 == 0 {
            f.set_permissions(Permissions::from_mode(0o664)).unwrap();
        }
        f.set_modified(long_ago).unwrap();
        drop(f);
    }
    // None is asked for again: nothing came before the mode that this mount did not know of.
    let asked = group.kinds.take();
    assert!(asked["SetAttr"] <= 150, "{asked:?}");
    // Now and then a busy machine is so late that the buffer goes by its age, before the close.
    let together = group.together.load(Ordering::Acquire);
    assert!(together >= 95, "{together} of 100");
}

/// What is set by name after a close waits for nothing, though the kernel may still be about to release the file.
#[test]
fn nothing_waits_after_a_close() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    for n in 0..200 {
        let name = format!("program {n}");
        fs::write(a.path(&name), b"#!/bin/sh\n").unwrap();
        fs::set_permissions(a.path(&name), Permissions::from_mode(0o755)).unwrap();
        let elsewhere = fs::metadata(b.path(&name)).unwrap();
        assert_eq!(elsewhere.mode() & 0o7777, 0o755, "{name}");
        assert!(Command::new(a.path(&name)).status().unwrap().success());
    }
}

/// What is set on a file that is open for writing is seen at once on this mount, and in order with what is written; on
/// another mount soon, and at the latest when the file is closed. What takes rights away waits for nothing.
#[test]
fn attributes_are_written_back() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let sent = || group.kinds.take().get("SetAttr").copied().unwrap_or(0);

    let f = File::create(a.path("f")).unwrap();
    set(&a.path("f"), 0o600);
    sent();
    f.write_all_at(b"content", 0).unwrap();
    set(&a.path("f"), 0o644);
    f.set_modified(long_ago).unwrap();
    assert_eq!(sent(), 0);
    let seen = fs::metadata(a.path("f")).unwrap();
    assert_eq!((seen.mode() & 0o7777, seen.len()), (0o644, 7));
    assert_eq!(seen.modified().unwrap(), long_ago);
    assert!(seen.ctime() > 1_000_000);
    // The mode before the content, the time after it; or all at once, where the content has left by itself before.
    assert!((1..=2).contains(&sent()));
    // Rights are taken away at once, after what waits.
    f.set_modified(long_ago + TTL).unwrap();
    set(&a.path("f"), 0o600);
    assert_eq!(sent(), 2);
    assert_eq!(mode(&b.path("f")), 0o600);
    // A write after it is after it.
    f.set_modified(long_ago).unwrap();
    f.write_all_at(b"again", 0).unwrap();
    let now = fs::metadata(a.path("f")).unwrap().modified().unwrap();
    assert!(now > long_ago + TTL);

    set(&a.path("f"), 0o666);
    std::thread::sleep(3 * TTL);
    assert_eq!(mode(&b.path("f")), 0o666);
    f.set_modified(long_ago).unwrap();
    drop(f);
    // The kernel counts in ticks, so what it keeps for a time it keeps for a little longer.
    std::thread::sleep(TTL + TTL / 4);
    let elsewhere = fs::metadata(b.path("f")).unwrap();
    assert_eq!(elsewhere.modified().unwrap(), long_ago);
    assert_eq!(fs::read(b.path("f")).unwrap(), b"againnt");
}

/// A mode or an owner that waits to be set does not overrule what another mount has set since; what else that changes does not keep it from being set.
#[test]
fn rights_that_wait_overrule_nobody() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    let mode = Permissions::from_mode;
    for (round, content) in [&b""[..], b"content", b""].into_iter().enumerate() {
        let name = format!("f{round}");
        let rights = |ino| {
            let (root, target) = (Who::root(), Target::Ino(Ino(ino)));
            let attr = b.volume.get_attr(&root, target);
            let attr = group.runtime.block_on(attr).unwrap();
            (attr.mode, attr.uid, attr.gid, attr.size)
        };
        let mut f = File::create(a.path(&name)).unwrap();
        let ino = f.metadata().unwrap().ino();
        f.write_all(content).unwrap();
        if round == 2 {
            // So that the last that is known is an answer to a write.
            f.write_all(b"written").unwrap();
            f.sync_all().unwrap();
        }
        let size = content.len() as u64 + 7 * u64::from(round == 2);

        f.set_permissions(mode(0o666)).unwrap();
        fs::set_permissions(b.path(&name), mode(0o600)).unwrap();
        f.sync_all().unwrap();
        assert_eq!(rights(ino), (0o600, 0, 0, size), "{name}");

        f.write_all_at(content, 0).unwrap();
        fchown(&f, Some(0), Some(0)).unwrap();
        chown(b.path(&name), Some(1000), Some(1001)).unwrap();
        f.sync_all().unwrap();
        assert_eq!(rights(ino), (0o600, 1000, 1001, size), "{name}");

        f.write_all_at(content, 0).unwrap();
        f.set_permissions(mode(0o640)).unwrap();
        let other = OpenOptions::new().write(true).open(b.path(&name)).unwrap();
        other.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        drop(other);
        drop(f);
        assert_eq!(rights(ino), (0o640, 1000, 1001, size), "{name}");
    }
}
