//! Times of access on mounts, as `relatime` has them.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use crate::common::{Group, Mount, can_mount};
use quorate_client::fuse::{Caching, MountOptions};

/// Far longer than it takes until the group has been told, and attributes are asked for again.
const PATIENCE: u32 = 200;
const PAUSE: Duration = Duration::from_millis(100);
/// After so long the group has been told of what was read before, and attributes of before are asked for again.
const TOLD: Duration = Duration::from_millis(2_500);

fn times(path: &Path) -> [(i64, i64); 3] {
    let meta = fs::metadata(path).unwrap();
    [
        (meta.atime(), meta.atime_nsec()),
        (meta.mtime(), meta.mtime_nsec()),
        (meta.ctime(), meta.ctime_nsec()),
    ]
}

/// Waits until the time of access is after the other two, which stay.
fn is_read(path: &Path) {
    let [_, modified, changed] = times(path);
    for _ in 0..PATIENCE {
        let [read, m, c] = times(path);
        assert_eq!((m, c), (modified, changed));
        if read > modified && read > changed {
            return;
        }
        std::thread::sleep(PAUSE);
    }
    panic!("{}: {:?}", path.display(), times(path));
}

/// The same, once, on two mounts.
fn is_read_on(mounts: [&Mount; 2], name: &str) {
    for mount in mounts {
        is_read(&mount.path(name));
    }
    let [one, other] = mounts.map(|mount| times(&mount.path(name)));
    assert_eq!(one, other);
}

/// What is read elsewhere counts, and what the kernel reads from pages that it has of writing; a second read does not, a first one after a change does.
#[test]
fn the_first_read_after_a_change_counts() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    for name in ["elsewhere", "here"] {
        fs::write(a.path(name), b"text").unwrap();
        let [read, modified, _] = times(&a.path(name));
        assert!(read <= modified, "{name}");
    }
    fs::read(b.path("elsewhere")).unwrap();
    is_read_on([&a, &b], "elsewhere");
    fs::read(a.path("here")).unwrap();
    is_read_on([&a, &b], "here");

    let before = times(&a.path("elsewhere"));
    fs::read(b.path("elsewhere")).unwrap();
    std::thread::sleep(TOLD);
    assert_eq!(times(&a.path("elsewhere")), before);
    fs::write(a.path("elsewhere"), b"more").unwrap();
    fs::read(b.path("elsewhere")).unwrap();
    is_read_on([&a, &b], "elsewhere");
}

/// Who lists a directory has read it.
#[test]
fn listings_count() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    fs::create_dir(a.path("d")).unwrap();
    fs::write(a.path("d/x"), b"").unwrap();
    assert_eq!(fs::read_dir(b.path("d")).unwrap().count(), 1);
    is_read_on([&a, &b], "d");
}

/// What is asked for with `O_NOATIME`, and what a mount says that is `noatime` or `ro`, is not counted; nor is an open that reads nothing.
#[test]
fn what_does_not_count() {
    if !can_mount() {
        return;
    }
    const O_NOATIME: i32 = rustix::fs::OFlags::NOATIME.bits() as i32;
    let group = Group::start();
    let a = group.mount(1);
    let noatime = MountOptions {
        caching: Caching {
            accesses: false,
            ..Caching::default()
        },
        ..MountOptions::default()
    };
    let read_only = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    let (b, c) = (group.mount_with(2, noatime), group.mount_with(3, read_only));
    for name in ["flag", "option", "read-only", "opened"] {
        fs::write(a.path(name), b"text").unwrap();
    }
    let d = group.mount(4);
    let mut text = String::new();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(O_NOATIME)
        .open(d.path("flag"));
    file.unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "text");
    fs::read(b.path("option")).unwrap();
    fs::read_dir(b.dir()).unwrap().count();
    fs::read(c.path("read-only")).unwrap();
    drop(File::open(d.path("opened")).unwrap());
    std::thread::sleep(TOLD);
    for name in ["flag", "option", "read-only", "opened"] {
        let [read, modified, _] = times(&a.path(name));
        assert!(read <= modified, "{name}");
    }
}

/// Hundreds of files are told of in few operations, also where the mount ends at once.
#[test]
fn many_are_told_of_together() {
    if !can_mount() {
        return;
    }
    const FILES: u64 = 300;
    let group = Group::start();
    let a = group.mount(1);
    for n in 0..FILES {
        fs::write(a.path(&format!("{n}")), b"text").unwrap();
    }
    let mut b = group.mount(2);
    std::thread::sleep(Duration::from_millis(100));
    group.kinds.take();
    for n in 0..FILES {
        fs::read(b.path(&format!("{n}"))).unwrap();
    }
    b.unmount();
    let told = group.kinds.take().get("Accessed").copied().unwrap_or(0);
    assert!((1..=FILES / 10).contains(&told), "{told}");
    for n in 0..FILES {
        is_read(&a.path(&format!("{n}")));
    }
}
