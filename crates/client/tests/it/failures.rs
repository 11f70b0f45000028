//! What is killed, refused or cut short leaves nothing behind that is wrong.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::{Group, can_mount, left_out, noise};
use quorate_files::op::{Limits, SetQuota};
use quorate_files::{Ino, Who};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

/// A program that waits for the group so long is let go when it is killed.
const PATIENCE: Duration = Duration::from_millis(1500);
/// Writes are sent by then.
const SENT: Duration = Duration::from_millis(1500);

/// Has a program make a file zero, up to there, while the group does not answer; kills it, and has the group answer again. False where there is no such program.
fn kill_while_it_makes_zero(group: &Group, file: File, end: usize) -> bool {
    // ZERO_RANGE.
    let script = "
import ctypes, os, sys, time
size = ctypes.c_int64
end = size(int(sys.argv[2]))
print('ready', flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
print('begun', flush=True)
ctypes.CDLL(None).fallocate(0, 16, size(0), end)
";
    let place = tempfile::tempdir().unwrap();
    let may_begin = place.path().join("may-begin");
    let python = Command::new("python3")
        .args(["-c", script])
        .arg(&may_begin)
        .arg(end.to_string())
        .stdin(file)
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut python) = python else {
        left_out("python3 is absent");
        return false;
    };
    let mut says = python.stdout.take().unwrap();
    let mut wait_for = |word: &[u8; 5]| {
        let mut said = [0; 6];
        says.read_exact(&mut said).unwrap();
        assert_eq!(said[..5], word[..]);
    };
    // Before the group is paused: a program that starts may ask for the attributes of what it has open.
    wait_for(b"ready");
    group.paused.store(true, Ordering::Release);
    fs::write(&may_begin, b"").unwrap();
    wait_for(b"begun");
    std::thread::sleep(PATIENCE);
    python.kill().unwrap();
    python.wait().unwrap();
    group.paused.store(false, Ordering::Release);
    true
}

/// An open whose program is killed leaves no pages of before to those who open the file later.
#[test]
fn a_killed_open_keeps_no_pages() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    fs::write(a.path("f"), b"one").unwrap();
    let keeps = File::open(a.path("f")).unwrap();
    assert_eq!(fs::read(a.path("f")).unwrap(), b"one");
    // So that the name is known for a moment, and the open is what waits.
    fs::metadata(a.path("f")).unwrap();
    fs::write(b.path("f"), b"two").unwrap();
    group.paused.store(true, Ordering::Release);
    let mut cat = Command::new("cat")
        .arg(a.path("f"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(PATIENCE);
    cat.kill().unwrap();
    cat.wait().unwrap();
    group.paused.store(false, Ordering::Release);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(fs::read(a.path("f")).unwrap(), b"two");
    drop(keeps);
}

/// A write that waits for others to be sent writes nothing once its program is dead.
#[test]
fn a_killed_write_is_left_off() {
    const DIRTY: u64 = 64 << 20;
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    fs::write(m.path("f"), b"").unwrap();
    let open = OpenOptions::new().write(true).open(m.path("f")).unwrap();
    group.paused.store(true, Ordering::Release);
    let mut dd = Command::new("dd")
        .args(["if=/dev/zero", "bs=1M", "count=80"])
        .stdout(open)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(2 * PATIENCE);
    assert!(dd.try_wait().unwrap().is_none());
    dd.kill().unwrap();
    dd.wait().unwrap();
    group.paused.store(false, Ordering::Release);
    std::thread::sleep(SENT);
    let len = fs::metadata(m.path("f")).unwrap().len();
    assert!((1..=DIRTY).contains(&len), "{len}");
    // All the room is there again.
    let data = noise(1, DIRTY as usize + 1);
    fs::write(m.path("g"), &data).unwrap();
    assert!(fs::read(m.path("g")).unwrap() == data);
}

/// Who writes is told once of a write that has failed and goes on; who syncs is told as well, and so is the first to sync who has opened the file since. Who only
/// reads is not. What was not written is not shown.
#[test]
fn a_failed_write_is_told_and_not_shown() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    fs::create_dir(m.path("d")).unwrap();
    let dir = Ino(fs::metadata(m.path("d")).unwrap().ino());
    let limits = Some(Limits {
        bytes: Some(64 << 10),
        files: None,
    });
    let (root, quota) = (Who::root(), SetQuota { dir, limits });
    let set = m.volume.set_quota(&root, quota);
    group.runtime.block_on(set).unwrap();
    let mut f = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(m.path("d/f"))
        .unwrap();
    let start = noise(1, 4096);
    f.write_all_at(&start, 0).unwrap();
    f.sync_all().unwrap();
    // A hole takes no space.
    f.set_len(1 << 20).unwrap();
    let is_full = |result: std::io::Result<()>| {
        result.is_err_and(|e| e.raw_os_error() == Some(Errno::DQUOT.raw_os_error()))
    };

    f.write_all_at(&noise(2, 256 << 10), 4096).unwrap();
    std::thread::sleep(SENT);
    let mut back = Vec::new();
    f.read_to_end(&mut back).unwrap();
    assert!(back[..4096] == start);
    assert!(back[4096..] == vec![0; (1 << 20) - 4096]);

    let mut cat = Command::new("cat");
    let cat = cat.arg(m.path("d/f")).stdout(Stdio::null());
    assert!(cat.status().unwrap().success());
    // A database may have one process that writes, and another that opens the file to sync it.
    let open = || File::open(m.path("d/f")).unwrap();
    let syncer = open();
    assert!(is_full(syncer.sync_all()));
    syncer.sync_all().unwrap();
    open().sync_all().unwrap();

    assert!(is_full(f.write_all_at(b"x", 0)));
    f.write_all_at(b"y", 0).unwrap();
    assert!(is_full(f.sync_all()));
    f.sync_all().unwrap();
    f.write_all_at(b"z", 1).unwrap();
    f.sync_all().unwrap();
    assert_eq!(&fs::read(m.path("d/f")).unwrap()[..2], b"yz");
}

/// A range that is made zero as far as the quota goes is shown as far as that.
#[test]
fn a_range_that_is_zero_in_part_is_shown_so() {
    const DATA: usize = 1 << 20;
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    fs::create_dir(a.path("d")).unwrap();
    let dir = Ino(fs::metadata(a.path("d")).unwrap().ino());
    let limits = Some(Limits {
        bytes: Some(DATA as u64 + (64 << 10)),
        files: None,
    });
    let (root, quota) = (Who::root(), SetQuota { dir, limits });
    let set = a.volume.set_quota(&root, quota);
    group.runtime.block_on(set).unwrap();
    let f = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(a.path("d/f"))
        .unwrap();
    f.write_all_at(&noise(1, DATA), 0).unwrap();
    f.set_len(3 * DATA as u64).unwrap();
    fs::read(a.path("d/f")).unwrap();
    let zero = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    let done = fallocate(&f, zero, 0, 3 * DATA as u64);
    assert_eq!(done, Err(Errno::DQUOT));
    let there = fs::read(b.path("d/f")).unwrap();
    assert!(there == vec![0; 3 * DATA]);
    assert!(fs::read(a.path("d/f")).unwrap() == there);
}

/// A program that was killed while it made a range zero, which takes several steps, has nothing more made zero when it is gone: others may have written there
/// since.
#[test]
fn a_killed_allocation_goes_no_further() {
    const STEP: usize = 1 << 20;
    const MAX_LOOKS: usize = 3000;
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let a = group.mount(1);
    let data = noise(1, 3 * STEP);
    fs::write(a.path("f"), &data).unwrap();
    let open = || OpenOptions::new().read(true).write(true).open(a.path("f"));
    let (file, stdin) = (open().unwrap(), open().unwrap());
    file.sync_all().unwrap();
    if !kill_while_it_makes_zero(&group, stdin, 3 * STEP) {
        return;
    }
    let read = || fs::read(a.path("f")).unwrap();
    let first_is_zero = |_| {
        std::thread::sleep(Duration::from_millis(20));
        read()[..STEP].iter().all(|byte| *byte == 0)
    };
    assert!((0..MAX_LOOKS).any(first_is_zero), "the step under way ends");
    // Time enough for more of them.
    std::thread::sleep(PATIENCE);
    let found = read();
    assert!(found[2 * STEP..] == data[2 * STEP..], "it went on");
    drop(file);
}

/// What a killed program has made zero is zero on its own mount, too.
#[test]
fn a_killed_allocation_keeps_no_pages() {
    const MAX_LOOKS: usize = 3000;
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    let data = noise(1, 65_536);
    fs::write(a.path("f"), &data).unwrap();
    let open = || OpenOptions::new().read(true).write(true).open(a.path("f"));
    let (keeps, stdin) = (open().unwrap(), open().unwrap());
    assert!(fs::read(a.path("f")).unwrap() == data);
    if !kill_while_it_makes_zero(&group, stdin, data.len()) {
        return;
    }
    for mount in [&b, &a] {
        let is_zero = || fs::read(mount.path("f")).unwrap() == [0; 65_536];
        let found = (0..MAX_LOOKS).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            is_zero()
        });
        assert!(found);
    }
    drop(keeps);
}
