//! What is killed, refused or cut short leaves nothing behind that is wrong.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::{Group, can_mount, noise};
use quorate_files::op::{Limits, SetQuota};
use quorate_files::{Ino, Who};
use rustix::io::Errno;

/// A program that waits for the group so long is let go when it is killed.
const PATIENCE: Duration = Duration::from_millis(1500);
/// Writes are sent by then.
const SENT: Duration = Duration::from_millis(1500);

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

/// Who writes is told once of a write that has failed and goes on; who syncs is told as well. What was not written is not shown.
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

    assert!(is_full(f.write_all_at(b"x", 0)));
    f.write_all_at(b"y", 0).unwrap();
    assert!(is_full(f.sync_all()));
    f.sync_all().unwrap();
    f.write_all_at(b"z", 1).unwrap();
    f.sync_all().unwrap();
    assert_eq!(&fs::read(m.path("d/f")).unwrap()[..2], b"yz");
}
