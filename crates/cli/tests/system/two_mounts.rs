//! Two mounts of one group are two views of the same files, as close-to-open promises; locks and names are one.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use quorate_wire::message::session::SESSION_LEASE_MS;
use rustix::process::{Signal, kill_process};

use crate::harness::{Group, Mount, Random, require_fuse};

/// A group with two mounts: of two clients, or of one client twice.
fn with_two_mounts(test: impl FnOnce(&mut Group, &Mount, &Mount)) {
    if !require_fuse() {
        return;
    }
    let mut group = Group::start();
    let (left, right) = (group.mount_as(0), group.mount_as(1));
    test(&mut group, &left, &right);
    left.unmount();
    right.unmount();
    group.wait_until_they_agree(&[0, 1, 2, 3]);
}

/// Runs the same in two threads that start together, one on each mount.
fn on_both<T: Send>(
    left: &Mount,
    right: &Mount,
    work: impl Fn(usize, &Path) -> T + Sync,
) -> (T, T) {
    let barrier = Barrier::new(2);
    let (barrier, work) = (&barrier, &work);
    let both = |side: usize, path| {
        move || {
            barrier.wait();
            work(side, path)
        }
    };
    std::thread::scope(|scope| {
        let threads = [(0, left.path()), (1, right.path())].map(|(s, p)| scope.spawn(both(s, p)));
        let [left, right] = threads.map(|t| t.join().expect("a side's work"));
        (left, right)
    })
}

/// What one side has closed, the other sees when it opens: many rounds, both ways, growing, shrinking, rewritten
/// at the same length, replaced by rename, and cached before.
#[test]
fn what_is_closed_is_seen_by_who_opens() {
    with_two_mounts(|_, left, right| {
        let mut random = Random::new(7);
        let mut content = Vec::new();
        for round in 0..150 {
            let (writer, reader) = if round % 2 == 0 {
                (left, right)
            } else {
                (right, left)
            };
            let same_length = round % 3 == 0;
            let len = if same_length {
                content.len()
            } else {
                random.below(200_000) as usize
            };
            content = random.bytes(len);
            if round % 5 == 4 {
                fs::write(writer.at("new"), &content).expect("a file is written");
                fs::rename(writer.at("new"), writer.at("file")).expect("it takes the name");
            } else {
                fs::write(writer.at("file"), &content).expect("a file is written");
            }
            let mut seen = Vec::new();
            let mut file = File::open(reader.at("file")).expect("the file is there");
            file.read_to_end(&mut seen).expect("it can be read");
            assert!(
                seen == content,
                "round {round}: {} bytes seen of {}",
                seen.len(),
                content.len()
            );
            let len = file.metadata().expect("its attributes").len();
            assert_eq!(len, content.len() as u64, "round {round}");
        }
    });
}

/// Of two that create the same name exclusively, one wins; so it is with directories and links.
#[test]
fn one_creation_wins() {
    with_two_mounts(|_, left, right| {
        for round in 0..60 {
            let (first, second) = on_both(left, right, |side, root| {
                let name = root.join(format!("name-{round}"));
                match round % 3 {
                    0 => File::create_new(&name).and_then(|mut f| f.write_all(&[side as u8])),
                    1 => fs::create_dir(&name),
                    _ => std::os::unix::fs::symlink(side.to_string(), &name),
                }
            });
            let (won, lost) = if first.is_ok() {
                (0, second)
            } else {
                (1, first)
            };
            assert_eq!(
                lost.expect_err("both won").kind(),
                ErrorKind::AlreadyExists,
                "{round}"
            );
            let name = [right, left][won].at(&format!("name-{round}"));
            match round % 3 {
                0 => assert_eq!(fs::read(name).expect("a file"), [won as u8]),
                1 => assert!(fs::metadata(name).expect("a directory").is_dir()),
                _ => {
                    let target = fs::read_link(name).expect("a link");
                    assert_eq!(target.to_str(), Some(won.to_string().as_str()));
                }
            }
        }
    });
}

/// Two that append to the same file lose nothing and tear nothing.
#[test]
fn appends_of_both_stay() {
    const ROUNDS: usize = 150;
    with_two_mounts(|_, left, right| {
        fs::write(left.at("log"), b"").expect("an empty file");
        on_both(left, right, |side, root| {
            let file = File::options().append(true).open(root.join("log"));
            let mut file = file.expect("the file can be opened");
            for round in 0..ROUNDS {
                let line = format!("{side} {round} {}\n", "x".repeat(round % 90));
                file.write_all(line.as_bytes()).expect("a line is appended");
                if round % 10 == 0 {
                    file.sync_all().expect("lines are synced");
                }
            }
        });
        for mount in [left, right] {
            let text = fs::read_to_string(mount.at("log")).expect("the log");
            let mut next = [0, 0];
            for line in text.lines() {
                let parts: Vec<&str> = line.split(' ').collect();
                let side: usize = parts[0].parse().expect("a side");
                assert_eq!(parts[1], next[side].to_string(), "in line {line:?}");
                assert_eq!(parts[2].len(), next[side] % 90);
                next[side] += 1;
            }
            assert_eq!(next, [ROUNDS, ROUNDS]);
        }
    });
}

/// A lock excludes across mounts, and who gets it sees what the last holder wrote.
#[test]
fn locks_exclude_across_mounts() {
    const ROUNDS: u64 = 60;
    with_two_mounts(|_, left, right| {
        fs::write(left.at("counter"), b"0").expect("a counter");
        on_both(left, right, |_, root| {
            for _ in 0..ROUNDS {
                let file = File::options()
                    .read(true)
                    .write(true)
                    .open(root.join("counter"));
                let mut file = file.expect("the counter can be opened");
                file.lock().expect("the lock");
                let mut text = String::new();
                file.read_to_string(&mut text)
                    .expect("the counter can be read");
                let count: u64 = text.parse().expect("a number");
                std::os::unix::fs::FileExt::write_all_at(
                    &file,
                    (count + 1).to_string().as_bytes(),
                    0,
                )
                .expect("the counter can be written");
                file.unlock().expect("the lock is given back");
            }
        });
        let count = fs::read_to_string(right.at("counter")).expect("the counter");
        assert_eq!(count, (2 * ROUNDS).to_string());

        let holder = File::open(left.at("counter")).expect("the file");
        let other = File::open(right.at("counter")).expect("the file");
        holder.lock().expect("a free lock");
        assert!(other.try_lock().is_err(), "two hold the lock");
        assert!(
            other.try_lock_shared().is_err(),
            "a shared lock beside an exclusive one"
        );
        drop(holder);
        other.lock().expect("closing gives the lock back");
    });
}

/// The lock of a mount that dies becomes free without anybody's help.
#[test]
fn the_locks_of_a_dead_mount_end() {
    if !require_fuse() {
        return;
    }
    let group = Group::start();
    let (left, mut right) = (group.mount_as(0), group.mount_as(1));
    fs::write(left.at("file"), b"").expect("a file");
    let lost = File::open(right.at("file")).expect("the file");
    lost.lock().expect("a free lock");
    let waiting = File::open(left.at("file")).expect("the file");
    assert!(waiting.try_lock().is_err());
    rustix::process::kill_process(right.process(), rustix::process::Signal::KILL)
        .expect("it lives");
    right.wait();
    // The session's lease is three quarters of a minute; this is the time that the product promises, so it is waited out.
    waiting
        .lock()
        .expect("the lock, when the lease has run out");
}

/// A file that is removed on one mount while the other has it open stays readable and writable there.
#[test]
fn an_open_file_outlives_its_name() {
    with_two_mounts(|_, left, right| {
        let content = Random::new(3).bytes(300_000);
        fs::write(left.at("file"), &content).expect("a file");
        let options = File::options()
            .read(true)
            .write(true)
            .open(right.at("file"));
        let mut open = options.expect("the file");
        fs::remove_file(left.at("file")).expect("the name is removed");
        assert!(!left.at("file").exists());
        // A new file of the same name is another file.
        fs::write(left.at("file"), b"other").expect("a file");
        let mut seen = Vec::new();
        open.read_to_end(&mut seen)
            .expect("the open file can be read");
        assert!(seen == content);
        open.write_all(b"more")
            .expect("the open file can be written");
        open.sync_all().expect("and synced");
        assert_eq!(open.metadata().expect("attributes").len(), 300_004);
        drop(open);
        assert_eq!(fs::read(right.at("file")).expect("the new file"), b"other");
    });
}

/// Who reads many small files has the group agree on nothing. A file that is removed elsewhere as soon as it is open can be read for
/// longer than a file lingers; when the mount is killed that has it open, its space is free with the end of the session.
#[test]
fn open_files_cost_no_agreement_and_stay() {
    if !require_fuse() {
        return;
    }
    const FILES: usize = 200;
    let group = Group::start();
    let (left, right) = (group.mount_as(0), group.mount_as(1));
    let mut random = Random::new(11);
    let content = random.bytes(8 << 20);
    let free = || {
        let stat = rustix::fs::statvfs(left.path()).expect("the volume's space");
        stat.f_bfree * stat.f_frsize
    };
    let without_it = free();
    fs::write(left.at("large"), &content).expect("a file is written");
    for n in 0..FILES {
        fs::write(left.at(&format!("small-{n}")), n.to_string()).expect("a file is written");
    }
    let executed = || {
        let said = group.status().replicas.into_iter().flat_map(|r| r.said);
        said.map(|said| said.executed)
            .max()
            .expect("replicas answer")
    };
    // What has been left of the writes.
    std::thread::sleep(Duration::from_secs(1));
    let before = executed();
    for n in 0..FILES {
        let seen = fs::read(right.at(&format!("small-{n}"))).expect("the file");
        assert_eq!(seen, n.to_string().as_bytes());
    }
    let after = executed();
    // Sessions that are renewed, and a read now and then on which replicas that were held up do not agree.
    let most = FILES as u64 / 4;
    assert!(after - before <= most, "from {before} to {after}");

    let open = File::open(right.at("large")).expect("the file");
    fs::remove_file(left.at("large")).expect("the name is removed");
    let (first, rest) = content.split_at(4 << 20);
    let mut seen = vec![0; first.len()];
    open.read_exact_at(&mut seen, 0).expect("it can be read");
    assert!(seen == first);
    std::thread::sleep(Duration::from_secs(34));
    fs::write(left.at("after"), b"a change").expect("a file is written");
    let counts = || free() + (4 << 20) < without_it;
    assert!(counts(), "what is open counts");
    let mut seen = vec![0; rest.len()];
    let read = open.read_exact_at(&mut seen, first.len() as u64);
    read.expect("it can be read to the end");
    assert!(seen == rest);

    kill_process(right.process(), Signal::KILL).expect("the mount's process lives");
    drop(open);
    let patience = Duration::from_millis(SESSION_LEASE_MS + 30_000);
    let end = Instant::now() + patience;
    while counts() && Instant::now() < end {
        std::thread::sleep(Duration::from_secs(1));
        fs::write(left.at("after"), b"a change").expect("a file is written");
    }
    assert!(!counts(), "the space is not free {patience:?} after");
    left.unmount();
    drop(right);
}

/// The same key may be used by two mounts at a time: sessions are apart.
#[test]
fn one_key_serves_two_mounts() {
    if !require_fuse() {
        return;
    }
    let group = Group::start();
    let (left, right) = (group.mount_as(0), group.mount_as(0));
    fs::write(left.at("file"), b"hello").expect("a file");
    assert_eq!(fs::read(right.at("file")).expect("the file"), b"hello");
    let (open, other) = (File::open(left.at("file")), File::open(right.at("file")));
    let (open, other) = (open.expect("the file"), other.expect("the file"));
    open.lock().expect("a free lock");
    assert!(other.try_lock().is_err(), "two hold the lock");
    drop(open);
    left.unmount();
    other.lock().expect("the lock is free");
    drop(other);
    right.unmount();
}
