//! Mounts that span several groups, with no server in between.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use quorate_net::Group;
use rustix::fs::{FlockOperation, RenameFlags, XattrFlags, flock, renameat_with, statvfs};
use rustix::process::{Pid, Signal, kill_process};

use crate::command_line::{assert_said, ends};
use crate::harness::{
    Mount, Random, Status, Up, eventually, free_ports, holds_in_time, is_mounted, long_or, quorate,
    require_fuse, scratch,
};
use crate::route::{Tree, act_locally, local_tree, op};

const GROUPS: [&str; 2] = ["--groups", "2"];

/// On which volume something lies.
fn volume(path: &Path) -> u8 {
    let mut value = [0; 8];
    let len = rustix::fs::getxattr(path, "quorate.volume", &mut value[..]).expect("a volume");
    let text = std::str::from_utf8(&value[..len]).expect("text");
    text.parse().expect("a number")
}

/// Directories until two lie on each volume: those of volume 0 first.
fn spread(base: &Path) -> [PathBuf; 4] {
    let (mut on, mut n) = ([Vec::new(), Vec::new()], 0);
    while on.iter().any(|dirs| dirs.len() < 2) {
        let dir = base.join(format!("dir-{n}"));
        fs::create_dir(&dir).expect("a directory");
        on[usize::from(volume(&dir))].push(dir);
        n += 1;
        assert!(n < 64, "directories are not spread");
    }
    let [zero, one] = on;
    [&zero[0], &zero[1], &one[0], &one[1]].map(Clone::clone)
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).expect("a directory");
    let name = |entry: fs::DirEntry| entry.file_name().into_string().expect("text");
    entries.map(|e| name(e.expect("an entry"))).collect()
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Option<i32> {
    result.expect_err("a refusal").raw_os_error()
}

const EINVAL: Option<i32> = Some(22);
const EXIST: Option<i32> = Some(17);
const NOT_EMPTY: Option<i32> = Some(39);

/// One command makes two groups and a mount over both; what moves from one to the other keeps what it is, and the next `up` finds it.
#[test]
fn two_groups_are_one_volume() {
    if !require_fuse() {
        return;
    }
    let place = scratch();
    let data = place.path().join("data");
    let files = data.join("files");
    let port = free_ports(1)[0];
    let options = [&GROUPS[..], &["--capacity", "2T"]].concat();
    let up = Up::start(&data, port, &options);
    let ready = &up.events("ready")[0];
    assert_eq!(ready["groups"][1]["group"], "group-1");
    assert_eq!(ready["groups"][2]["replicas"], 1, "the coordinator's");
    for name in ["group-0", "group-1", "coordinator"] {
        let group = Group::load(&data.join(name).join("group.toml")).expect("a group");
        assert!(group.identities().is_some(), "{name} has key holders");
    }
    let [a, b, c, d] = spread(&files);

    fs::write(a.join("f"), b"content").expect("a file");
    let number = fs::metadata(a.join("f")).expect("it").ino();
    fs::rename(a.join("f"), c.join("g")).expect("to the other group");
    assert_eq!(fs::read(c.join("g")).expect("it"), b"content");
    assert_eq!(fs::metadata(c.join("g")).expect("it").ino(), number);
    assert_eq!(volume(&c.join("g")), 0, "the file itself stays");
    assert!(names(&a).is_empty());

    fs::hard_link(c.join("g"), d.join("h")).expect("one more name");
    let linked = fs::metadata(d.join("h")).expect("it");
    assert_eq!((linked.ino(), linked.nlink()), (number, 2));
    let listed = fs::read_dir(&d).expect("a directory").next();
    let listed = listed.expect("an entry").expect("an entry");
    assert!(listed.file_type().expect("a type").is_file());
    fs::remove_file(c.join("g")).expect("a name goes");
    assert_eq!(fs::metadata(d.join("h")).expect("it").nlink(), 1);

    // A file without a name lives as long as it is open, wherever its names were.
    let mut open = File::options()
        .read(true)
        .write(true)
        .open(d.join("h"))
        .expect("it");
    fs::remove_file(d.join("h")).expect("the last name");
    open.write_all(b"CON").expect("it is written to");
    open.seek(SeekFrom::Start(0)).expect("its start");
    let mut seen = String::new();
    open.read_to_string(&mut seen).expect("it is read");
    assert_eq!(seen, "CONtent");
    drop(open);

    // That something was read is told to its own group.
    let read = [&a, &c].map(|dir| dir.join("read"));
    for file in &read {
        fs::write(file, b"text").expect("a file");
        assert_eq!(fs::read(file).expect("it"), b"text");
    }
    for file in &read {
        eventually("a time of access", || {
            let meta = fs::metadata(file).expect("it");
            let modified = (meta.mtime(), meta.mtime_nsec());
            (meta.atime(), meta.atime_nsec()) > modified
        });
        fs::remove_file(file).expect("it");
    }

    // Directories, with what is below them.
    fs::create_dir_all(a.join("x/y")).expect("directories");
    fs::write(a.join("x/y/z"), b"deep").expect("a file");
    fs::rename(a.join("x"), c.join("x")).expect("to the other group");
    assert_eq!(fs::read(c.join("x/y/z")).expect("it"), b"deep");
    assert_eq!(errno(fs::rename(c.join("x"), c.join("x/y/circle"))), EINVAL);
    assert_eq!(errno(fs::remove_dir(c.join("x"))), NOT_EMPTY);
    assert_eq!(errno(fs::create_dir(c.join("x"))), EXIST);
    fs::remove_dir(&b).expect("an empty one goes");
    assert!(!names(&files).contains(&b.file_name().unwrap().to_string_lossy().into_owned()));

    // What can't be had is refused by its name, and what can is there.
    fs::write(a.join("one"), b"1").expect("a file");
    fs::write(c.join("two"), b"2").expect("a file");
    let exchange = |from: &Path, to: &Path, how| {
        let cwd = rustix::fs::CWD;
        let done = renameat_with(cwd, from, cwd, to, how);
        done.map_err(std::io::Error::from)
    };
    let (one, two) = (a.join("one"), c.join("two"));
    assert_eq!(errno(exchange(&one, &two, RenameFlags::EXCHANGE)), EINVAL);
    assert_eq!(errno(exchange(&one, &two, RenameFlags::NOREPLACE)), EXIST);
    exchange(&one, &c.join("new"), RenameFlags::NOREPLACE).expect("it is free");
    exchange(&two, &c.join("new"), RenameFlags::EXCHANGE).expect("in one directory");
    assert_eq!(fs::read(&two).expect("it"), b"1");
    let set = |path: &Path| {
        rustix::fs::setxattr(path, "user.note", b"kept", XattrFlags::empty()).expect("a note");
    };
    set(&two);
    let mut value = [0; 4];
    rustix::fs::getxattr(&two, "user.note", &mut value[..]).expect("the note");
    assert_eq!(&value, b"kept");
    assert!(
        rustix::fs::getxattr(&two, "quorate.object", &mut [0; 200][..]).is_err(),
        "credentials are about one group's objects"
    );

    // Space is the sum; blocks are the files'.
    let space = statvfs(&files).expect("space");
    let one_group = 1 << 40;
    assert_eq!(space.f_blocks * space.f_frsize, 2 * one_group);
    fs::write(c.join("large"), vec![7; 300_000]).expect("a file");
    let blocks = fs::metadata(c.join("large")).expect("it").blocks();
    assert!((586..=1024).contains(&blocks), "{blocks} blocks");
    let before = names(&files);
    for name in ["group-0", "group-1", "coordinator"] {
        // Just after a change one may still have to execute what the others have.
        eventually(name, || Status::ask(&data.join(name)).code == 0);
    }
    up.stop();
    assert!(!is_mounted(&files));

    let up = Up::start(&data, port, &[]);
    assert_eq!(names(&files), before);
    assert_eq!(fs::read(&two).expect("it"), b"1");
    assert_eq!(fs::read(c.join("x/y/z")).expect("it"), b"deep");
    up.stop();
}

/// What the kind of a directory rules out is refused before anything is made.
#[test]
fn what_goes_with_one_group_alone_is_refused() {
    let place = scratch();
    let data = place.path().join("data");
    let command = |words: &[&str]| {
        let mut command = Up::command(&data, free_ports(1)[0]);
        command.arg("--no-mount").args(words);
        ends(&mut command)
    };
    assert_said(&command(&["--groups", "1"]), 2, &["2 to 4"]);
    let said = command(&["--groups", "2", "--recover-every", "1h"]);
    assert_said(&said, 1, &["--recover-every", "one group"]);
    assert!(!data.exists());
    fs::create_dir(&data).expect("a directory");
    let file = data.join("volume.toml");
    let mount = |text: &str, words: &[&str]| {
        fs::write(&file, text).expect("a file");
        let directory = place.path().join("files");
        fs::create_dir_all(&directory).expect("a directory");
        ends(quorate().arg("mount").arg(&file).arg(directory).args(words))
    };
    let log = "volumes = [\"nfs://127.0.0.1:9/a\"]\nlog = \"log\"\n";
    assert_said(&mount(log, &[]), 1, &["needs a [coordinator]"]);
    let said = mount(log, &["--key", "key"]);
    assert_said(&said, 1, &["several groups", "--key"]);
}

/// While replicas of both groups are killed, nobody is told of an error, and the tree is as the same operations make it here.
#[test]
fn a_replica_of_each_group_dies_under_load() {
    if !require_fuse() {
        return;
    }
    let place = scratch();
    let data = place.path().join("data");
    let options = [&GROUPS[..], &["--no-restart"]].concat();
    let up = Up::start(&data, free_ports(1)[0], &options);
    let (files, here) = (data.join("files"), scratch());
    let mut random = Random::new(11);
    let total = long_or(2000, 400);
    for n in 0..total {
        if n == total / 4 {
            // The first primary of each.
            kill_process(up.replica_of("group-0", 0), Signal::KILL).expect("it lives");
        }
        if n == total / 2 {
            kill_process(up.replica_of("group-1", 0), Signal::KILL).expect("it lives");
        }
        let op = op(&mut random);
        let told = act_locally(&files, &op).map_err(|e| e.raw_os_error());
        let expected = act_locally(here.path(), &op).map_err(|e| e.raw_os_error());
        // That a directory is not empty has two names (rename(2)).
        let same = |code: Option<i32>| if code == EXIST { NOT_EMPTY } else { code };
        assert_eq!(told.map_err(same), expected.map_err(same), "{n}: {op:?}");
        if n % 40 == 39 {
            let tree = |base: &Path| {
                let mut seen = Tree::new();
                local_tree(base, "", &mut seen);
                seen
            };
            assert_eq!(tree(&files), tree(here.path()), "{n}");
        }
    }
    up.stop();
}

/// A mount that is killed while it moves files between groups, and mounted again: each file is there exactly once.
#[test]
fn a_mount_is_killed_in_the_midst_of_renames() {
    if !require_fuse() {
        return;
    }
    let place = scratch();
    let data = place.path().join("data");
    let options = [&GROUPS[..], &["--no-mount"]].concat();
    let up = Up::start(&data, free_ports(1)[0], &options);
    let file = data.join("volume.toml");
    let mount = Mount::of_volume(&file, up.mounts());
    let dirs = spread(mount.path());
    let dirs = dirs.map(|dir| dir.file_name().expect("a name").to_owned());
    const FILES: usize = 8;
    for n in 0..FILES {
        let path = mount.path().join(&dirs[0]).join(format!("file-{n}"));
        fs::write(path, format!("content {n}")).expect("a file");
    }
    mount.unmount();
    let mut random = Random::new(3);
    let moved = AtomicUsize::new(0);
    for round in 0..long_or(20, 5) {
        let mut mount = Mount::of_volume(&file, up.mounts());
        let base = mount.path().to_path_buf();
        let place_of = |n: usize| {
            let name = format!("file-{n}");
            let there = dirs.iter().map(|dir| base.join(dir).join(&name));
            let there: Vec<PathBuf> = there.filter(|path| path.exists()).collect();
            assert_eq!(there.len(), 1, "round {round}: {name}: {there:?}");
            there[0].clone()
        };
        for n in 0..FILES {
            let text = fs::read_to_string(place_of(n)).expect("it can be read");
            assert_eq!(text, format!("content {n}"), "round {round}");
        }
        let all: usize = dirs.iter().map(|dir| names(&base.join(dir)).len()).sum();
        assert_eq!(all, FILES, "round {round}: nothing else is there");
        let mut places: Vec<PathBuf> = (0..FILES).map(place_of).collect();
        let killed = AtomicBool::new(false);
        let enough = moved.load(Ordering::Acquire) + 5;
        let wait = Duration::from_millis(50 + random.below(600));
        let pid = mount.process();
        thread::scope(|scope| {
            scope.spawn(|| {
                // However slow the machine is. Where a rename fails, the other thread says so.
                holds_in_time(|| moved.load(Ordering::Acquire) >= enough);
                thread::sleep(wait);
                killed.store(true, Ordering::Release);
                kill_process(pid, Signal::KILL).expect("it lives");
            });
            while !killed.load(Ordering::Acquire) {
                let n = random.below(FILES as u64) as usize;
                let dir = &dirs[random.below(4) as usize];
                let to = base.join(dir).join(format!("file-{n}"));
                match fs::rename(&places[n], &to) {
                    Ok(()) => {
                        let is_across = places[n].parent() != to.parent();
                        moved.fetch_add(usize::from(is_across), Ordering::AcqRel);
                        places[n] = to;
                    }
                    Err(_) if killed.load(Ordering::Acquire) => {}
                    Err(error) => panic!("round {round}: {error}"),
                }
            }
        });
        mount.wait();
    }
    let moved = moved.into_inner();
    println!("{moved} renames across directories");
    assert!(moved > 20);
    up.stop();
}

/// What one mount closes the other sees when it opens; names and locks are one, also of what lies elsewhere.
#[test]
fn two_mounts_see_one_volume() {
    if !require_fuse() {
        return;
    }
    let place = scratch();
    let data = place.path().join("data");
    let up = Up::start(&data, free_ports(1)[0], &GROUPS);
    let left = data.join("files");
    let mount = Mount::of_volume(&data.join("volume.toml"), up.mounts());
    let right = mount.path().to_path_buf();
    let dirs = spread(&left);
    let dirs = dirs.map(|dir| dir.file_name().expect("a name").to_owned());
    let mut random = Random::new(5);
    for round in 0..60 {
        let (writer, reader) = match round % 2 {
            0 => (&left, &right),
            _ => (&right, &left),
        };
        let len = random.below(100_000) as usize;
        let content = random.bytes(len);
        let [from, to] = [0, 1].map(|n| &dirs[(round + 2 * n) % 4]);
        fs::write(writer.join(from).join("new"), &content).expect("a file");
        fs::rename(writer.join(from).join("new"), writer.join(to).join("file")).expect("across");
        let seen = fs::read(reader.join(to).join("file")).expect("it is there");
        assert!(
            seen == content,
            "round {round}: {} bytes of {len}",
            seen.len()
        );
    }
    let path = |base: &Path| base.join(&dirs[2]).join("locked");
    let held = File::create(path(&left)).expect("a file");
    fs::hard_link(path(&left), left.join(&dirs[0]).join("locked")).expect("one more name");
    flock(&held, FlockOperation::LockExclusive).expect("a lock");
    let other = File::open(right.join(&dirs[0]).join("locked")).expect("it");
    let refused = flock(&other, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(rustix::io::Errno::WOULDBLOCK));
    drop(held);
    flock(&other, FlockOperation::LockExclusive).expect("it is free");
    drop(other);

    // Both change the same directory at once: each name is made by one of them.
    let made = |base: &Path| {
        let make =
            |n: &usize| fs::create_dir(base.join(&dirs[1]).join(format!("race-{n}"))).is_ok();
        (0..40).filter(make).count()
    };
    let (one, two) = thread::scope(|scope| {
        let other = scope.spawn(|| made(&right));
        (made(&left), other.join().expect("no panic"))
    });
    assert_eq!(one + two, 40);
    let races = |base: &Path| names(&base.join(&dirs[1]));
    assert_eq!(races(&left), races(&right));
    mount.unmount();
    up.stop();
}

/// Replicas that stand still until this goes.
struct Stopped(Vec<Pid>);

impl Stopped {
    fn new(replicas: Vec<Pid>) -> Stopped {
        for pid in &replicas {
            kill_process(*pid, Signal::STOP).expect("it lives");
        }
        Stopped(replicas)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for pid in &self.0 {
            let _ = kill_process(*pid, Signal::CONT);
        }
    }
}

/// Has something done that must not take longer, whoever is away.
fn in_time<T: Send + 'static>(
    what: &str,
    seconds: u64,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (done, told) = mpsc::channel();
    thread::spawn(move || done.send(work()));
    let told = told.recv_timeout(Duration::from_secs(seconds));
    told.unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// While all of one group stand still, with a file open there and a rename under way to it, names and files of the other go on; while the
/// coordinator does, files do. When they are back, all that waited is done.
#[test]
fn a_group_and_the_coordinator_are_away_for_a_while() {
    if !require_fuse() {
        return;
    }
    let place = scratch();
    let data = place.path().join("data");
    let up = Up::start(&data, free_ports(1)[0], &GROUPS);
    let files = data.join("files");
    let [a, b, c, d] = spread(&files);
    for n in 0..8 {
        fs::write(a.join(format!("file-{n}")), b"content").expect("a file");
    }
    fs::write(b.join("moved"), b"moved").expect("a file");
    let total = statvfs(&files).expect("space").f_blocks;
    // The group does not know of them yet: one is to be told of, and one to be let go.
    let held = File::create(d.join("held")).expect("a file");
    drop(File::create(d.join("closed")).expect("a file"));

    let away = Stopped::new((0..4).map(|id| up.replica_of("group-1", id)).collect());
    let (from, to) = (b.join("moved"), c.join("moved"));
    let moving = thread::spawn(move || fs::rename(from, to));
    thread::sleep(Duration::from_millis(1500));
    let dir = a.clone();
    in_time("names on the other group", 60, move || {
        for n in 0..8 {
            let name = |what: &str| dir.join(format!("{what}-{n}"));
            fs::rename(name("file"), name("other")).expect("within a directory");
            assert_eq!(fs::read(name("other")).expect("it"), b"content");
            if n % 2 == 0 {
                fs::remove_file(name("other")).expect("it goes");
            }
            fs::create_dir(name("dir")).expect("a directory");
            assert_eq!(volume(&name("dir")), 0, "the other group is away");
        }
    });
    let space = files.clone();
    let known = in_time("space", 20, move || statvfs(&space).expect("space"));
    assert_eq!(known.f_blocks, total);
    assert!(!moving.is_finished());
    drop(away);
    moving.join().expect("no panic").expect("it waits");
    assert_eq!(fs::read(c.join("moved")).expect("it"), b"moved");
    drop(held);

    // A directory stays held for a moment, and what is made in it then asks no coordinator.
    thread::sleep(Duration::from_secs(2));
    let away = Stopped::new(vec![up.replica_of("coordinator", 0)]);
    let new = c.join("new");
    let making = thread::spawn(move || fs::write(new, b"new"));
    let (read, written) = (c.join("moved"), a.join("other-1"));
    in_time("files without the coordinator", 20, move || {
        assert_eq!(fs::read(read).expect("it"), b"moved");
        fs::write(written, b"more").expect("no name changes");
    });
    // The place among routers is lost meanwhile.
    thread::sleep(Duration::from_secs(9));
    assert!(!making.is_finished());
    drop(away);
    making.join().expect("no panic").expect("it waits");
    assert_eq!(fs::read(a.join("other-1")).expect("it"), b"more");
    let dirs = (0..8).map(|n| format!("dir-{n}"));
    let others = (1..8).step_by(2).map(|n| format!("other-{n}"));
    let left: BTreeSet<String> = dirs.chain(others).collect();
    assert_eq!(names(&a), left);
    up.stop();
}
