//! Two mounts of one volume, and what becomes of them when sessions and answers fail.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{Group, can_mount, noise};
use quorate_client::Volume;
use quorate_client::fuse::{MountError, MountOptions, UnmountError, mount, unmount_at};
use quorate_files::op::Mkdir;
use quorate_files::{Action, Ino, Nothing, Op, Outcome, Who};
use quorate_wire::ReplicaId;
use rustix::fs::FlockOperation;

/// Close-to-open: what one mount has closed, the other sees at its next open, in full and nothing older.
#[test]
fn closed_here_is_seen_there() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    for round in 0..20u64 {
        let data = noise(round + 1, 100_000 + round as usize * 1000);
        let (from, to) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        fs::write(from.path("f"), &data).unwrap();
        assert!(fs::read(to.path("f")).unwrap() == data, "round {round}");
        // Changed in place: size and name stay.
        let f = OpenOptions::new().write(true).open(to.path("f")).unwrap();
        f.write_all_at(b"changed", round).unwrap();
        drop(f);
        let back = fs::read(from.path("f")).unwrap();
        assert_eq!(&back[round as usize..round as usize + 7], b"changed");
    }
    // Names and attributes are seen once their time has passed.
    fs::rename(a.path("f"), a.path("g")).unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    assert!(!b.path("f").exists());
    assert!(b.path("g").exists());
}

/// A directory that is replaced or removed while it is open, here or there, is shown as one without a name, and lists nothing.
#[test]
fn a_removed_directory_that_is_open_has_no_name() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    for name in ["new", "replaced", "removed", "elsewhere"] {
        fs::create_dir(a.path(name)).unwrap();
    }
    let open = ["replaced", "removed", "elsewhere"].map(|name| File::open(a.path(name)).unwrap());
    let numbers = open
        .each_ref()
        .map(|dir| dir.metadata().map(|seen| seen.ino()).unwrap());
    fs::rename(a.path("new"), a.path("replaced")).unwrap();
    fs::remove_dir(a.path("removed")).unwrap();
    fs::remove_dir(b.path("elsewhere")).unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    for (dir, number) in open.iter().zip(numbers) {
        let seen = dir.metadata().unwrap();
        assert!(seen.is_dir());
        assert_eq!((seen.ino(), seen.nlink()), (number, 0));
        let entries = rustix::fs::Dir::read_from(dir).unwrap();
        let named = entries.filter(|entry| {
            let name = entry.as_ref().map(|entry| entry.file_name().to_owned());
            !matches!(name.unwrap().to_bytes(), b"." | b"..")
        });
        assert_eq!(named.count(), 0);
    }
    assert!(!a.path("elsewhere").exists());
    assert_eq!(fs::metadata(a.path("replaced")).unwrap().nlink(), 2);
}

/// A file that is replaced without a pause can be opened at any time, here and there: it is what had the name when the open began, or newer.
#[test]
fn what_is_being_replaced_can_be_opened() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    let (version, done) = (AtomicU64::new(0), AtomicBool::new(false));
    // By a file, or by a symbolic link to one that stays.
    fs::write(a.path("last"), u64::MAX.to_string()).unwrap();
    let replace = |to: u64| {
        let new = a.path("new");
        match to % 2 {
            0 => symlink("last", &new).unwrap(),
            _ => fs::write(&new, to.to_string()).unwrap(),
        }
        fs::rename(&new, a.path("f")).unwrap();
        version.store(to, Ordering::SeqCst);
    };
    replace(1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut next = 2;
            while !done.load(Ordering::SeqCst) {
                replace(next);
                next += 1;
            }
        });
        let readers = [&a, &b].map(|mount| {
            let version = &version;
            scope.spawn(move || {
                for _ in 0..300 {
                    let before = version.load(Ordering::SeqCst);
                    let read = fs::read_to_string(mount.path("f"));
                    let found = read.map(|text| text.parse::<u64>().unwrap());
                    match found {
                        Ok(found) if found >= before => {}
                        other => return Err(format!("{other:?} after {before}")),
                    }
                }
                Ok(())
            })
        });
        let results = readers.map(|reader| reader.join().unwrap());
        done.store(true, Ordering::SeqCst);
        assert_eq!(results, [Ok(()), Ok(())]);
    });
    // What was held for an open goes: there are the root and two files.
    let left = || {
        let files = rustix::fs::statvfs(a.dir()).unwrap();
        files.f_files - files.f_ffree
    };
    for _ in 0..1200 {
        if left() == 3 {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{} objects", left());
}

/// Appends of two mounts to one file never overwrite each other.
#[test]
fn appends_of_two_mounts_all_stay() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    File::create(a.path("log")).unwrap();
    let open = |path| OpenOptions::new().append(true).open(path).unwrap();
    let (mut to_a, mut to_b) = (open(a.path("log")), open(b.path("log")));
    for i in 0..200 {
        // One write(2) for each line: what is appended whole is each write, and `writeln!` makes several of a line.
        to_a.write_all(format!("a {i:04}\n").as_bytes()).unwrap();
        to_b.write_all(format!("b {i:04}\n").as_bytes()).unwrap();
        if i % 50 == 0 {
            to_a.sync_all().unwrap();
            to_b.sync_all().unwrap();
        }
    }
    drop((to_a, to_b));
    let text = fs::read_to_string(a.path("log")).unwrap();
    for who in ["a", "b"] {
        let lines: Vec<_> = text.lines().filter(|l| l.starts_with(who)).collect();
        let expected: Vec<_> = (0..200).map(|i| format!("{who} {i:04}")).collect();
        assert_eq!(lines, expected);
    }
}

/// Locks of flock(2) and fcntl(2) keep others out on the same mount and on another one.
#[test]
fn locks_hold_between_mounts() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    fs::write(a.path("lock"), b"").unwrap();
    let open = |path| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap()
    };
    let (mine, same, other) = (
        open(a.path("lock")),
        open(a.path("lock")),
        open(b.path("lock")),
    );
    let flock = |f: &File, how| rustix::fs::flock(f, how);
    flock(&mine, FlockOperation::LockExclusive).unwrap();
    assert!(flock(&same, FlockOperation::NonBlockingLockExclusive).is_err());
    assert!(flock(&other, FlockOperation::NonBlockingLockShared).is_err());
    // The two kinds of locks don't know each other.
    let fcntl = |f: &File, how| rustix::fs::fcntl_lock(f, how);
    fcntl(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert!(fcntl(&mine, FlockOperation::NonBlockingLockExclusive).is_err());
    fcntl(&other, FlockOperation::Unlock).unwrap();
    fcntl(&mine, FlockOperation::NonBlockingLockExclusive).unwrap();
    fcntl(&mine, FlockOperation::Unlock).unwrap();

    let waiter = std::thread::spawn(move || {
        rustix::fs::flock(&other, FlockOperation::LockExclusive).unwrap();
        let mut text = String::new();
        (&other).read_to_string(&mut text).unwrap();
        (other, text)
    });
    std::thread::sleep(Duration::from_millis(100));
    assert!(!waiter.is_finished());
    (&mine).write_all(b"under the lock").unwrap();
    flock(&mine, FlockOperation::Unlock).unwrap();
    let (other, text) = waiter.join().unwrap();
    assert_eq!(text, "under the lock");
    assert!(flock(&mine, FlockOperation::NonBlockingLockShared).is_err());
    drop(other);
    // A waiting lock can be interrupted.
    let held = Command::new("timeout")
        .args(["1", "flock", "-x"])
        .arg(a.path("lock"))
        .args(["-c", "true"])
        .status();
    assert!(held.unwrap().success());
    flock(&mine, FlockOperation::LockExclusive).unwrap();
    let stopped = Command::new("timeout")
        .args(["1", "flock", "-x"])
        .arg(b.path("lock"))
        .args(["-c", "true"])
        .status();
    assert_eq!(stopped.unwrap().code(), Some(124));
}

/// When the group has closed a session, open files go on in the next one, without their users noticing.
#[test]
fn a_lost_session_is_opened_again() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    let f = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(a.path("f"));
    let f = f.unwrap();
    f.write_all_at(b"one", 0).unwrap();
    f.sync_all().unwrap();
    let before = a.volume.generation(Ino::ROOT);
    group.ahead_ms.fetch_add(200_000, Ordering::AcqRel);
    // The sweep comes with the next operation of anyone.
    let _ = fs::metadata(b.path("f"));
    f.write_all_at(b"two", 3).unwrap();
    f.sync_all().unwrap();
    let mut back = [0; 6];
    f.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(&back, b"onetwo");
    assert!(a.volume.generation(Ino::ROOT) > before);
}

/// What is asked when nothing was heard of the group for long waits until it is known whether the session is still there: it is done
/// once, also where a repetition would do harm.
#[test]
fn what_was_not_sent_is_not_lost() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    let mkdir = |name: &'static str| {
        let volume = m.volume.clone();
        let make = Mkdir {
            parent: Ino::ROOT,
            name: name.into(),
            mode: 0o755,
            umask: 0,
        };
        group
            .runtime
            .spawn(async move { volume.mkdir(&Who::root(), make).await })
    };
    group.runtime.block_on(mkdir("one")).unwrap().unwrap();
    let before = m.volume.generation(Ino::ROOT);
    group.paused.store(true, Ordering::Release);
    // Half the lease.
    std::thread::sleep(Duration::from_millis(23_000));
    let two = mkdir("two");
    std::thread::sleep(Duration::from_millis(100));
    group.ahead_ms.fetch_add(200_000, Ordering::AcqRel);
    group.paused.store(false, Ordering::Release);
    group.runtime.block_on(two).unwrap().unwrap();
    assert!(m.volume.generation(Ino::ROOT) > before);
    assert!(m.path("two").is_dir());
}

/// A group that does not answer makes callers wait and not fail; who is killed gets away; unmounting works.
#[test]
fn a_silent_group_is_waited_for() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    fs::write(m.path("f"), b"x").unwrap();
    group.paused.store(true, Ordering::Release);
    let mut cat = Command::new("ls").arg(m.path("unknown")).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1200));
    assert!(cat.try_wait().unwrap().is_none());
    cat.kill().unwrap();
    cat.wait().unwrap();
    group.paused.store(false, Ordering::Release);
    assert_eq!(fs::read(m.path("f")).unwrap(), b"x");
}

/// Sessions: results, blocking calls, reports, and the end.
#[test]
fn a_session_by_itself() {
    let group = Group::start();
    let session = group.session(9);
    let ping = Op::new(Who::root(), Action::Ping(Nothing)).to_bytes();
    let done = session.call_blocking(ping.clone()).unwrap();
    assert!(Outcome::from_bytes(done).unwrap().0.is_ok());
    assert_eq!(session.generation(), 1);
    let patience = Duration::from_secs(5);
    let report = group
        .runtime
        .block_on(session.report(ReplicaId(0), patience));
    assert_eq!(report.unwrap().replica, ReplicaId(0));
    group.runtime.block_on(async {
        let calls: Vec<_> = (0..1000)
            .map(|_| {
                let (session, ping) = (session.clone(), ping.clone());
                tokio::spawn(async move { session.call(ping).await })
            })
            .collect();
        for call in calls {
            call.await.unwrap().unwrap();
        }
        session.close().await;
        assert!(session.call(ping).await.is_err());
    });
    assert_eq!(group.closed.load(Ordering::Acquire), 1);
}

/// What stands in the way of a mount is said as it is.
#[test]
fn mounts_that_cannot_be() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let mut m = group.mount(1);
    fs::write(m.path("file"), b"").unwrap();
    let volume = || Volume::new(group.session(2));
    let at = |path: &std::path::Path| mount(volume(), path, &MountOptions::default()).unwrap_err();
    let missing = std::path::Path::new("/nonexistent/quorate");
    assert!(matches!(at(missing), MountError::NoDirectory(_)));
    assert!(matches!(at(&m.path("file")), MountError::NotADirectory(_)));
    assert!(matches!(at(m.dir()), MountError::AlreadyMounted(_)));
    // Busy while a file is open; then the mount is as it was.
    let open = File::open(m.path("file")).unwrap();
    let mounted = m.mounted.as_ref().unwrap();
    let busy = group.runtime.block_on(mounted.unmount());
    assert!(matches!(busy, Err(UnmountError::Busy(_))));
    drop(open);
    m.unmount();
}

/// A mount ends though its group is silent, and says so if anything was left to write.
#[test]
fn unmounting_needs_no_answer() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let mut m = group.mount(1);
    fs::write(m.path("f"), b"x").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    group.paused.store(true, Ordering::Release);
    m.unmount();
}

/// A mount can be named by a symbolic link, which may lead over another one.
#[test]
fn a_link_to_a_mount_is_unmounted() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let place = tempfile::tempdir().unwrap();
    let (first, second) = (place.path().join("first"), place.path().join("second"));
    symlink("second", &first).unwrap();
    for slash in ["", "/"] {
        let mut m = group.mount(1);
        symlink(m.dir(), &second).unwrap();
        fs::write(m.path("f"), b"x").unwrap();
        let name = format!("{}{slash}", first.display());
        unmount_at(name.as_ref(), false).unwrap();
        assert!(!m.path("f").exists());
        m.unmount();
        assert!(first.is_symlink() && second.is_symlink());
        fs::remove_file(&second).unwrap();
    }
}
