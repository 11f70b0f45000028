//! copy_file_range(2) on real mounts: the bytes stay at the group.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::Command;

use crate::common::{Group, can_mount, noise};
use rustix::fs::copy_file_range;

fn open(path: &std::path::Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .unwrap()
}

/// Copies all of a range, in as many calls as it takes.
fn copy(from: &File, mut offset: u64, to: &File, mut to_offset: u64, len: usize) {
    let mut left = len;
    while left > 0 {
        let copied = copy_file_range(from, Some(&mut offset), to, Some(&mut to_offset), left);
        let copied = copied.unwrap();
        assert!(copied > 0 && copied <= left);
        left -= copied;
    }
}

/// What was written and cached here is copied as it is, shown at once on both mounts, and no byte of it is sent.
#[test]
fn ranges_are_copied_by_the_group() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    let data = noise(9, 5 << 20);
    let (from, to) = (open(&a.path("from")), open(&a.path("to")));
    from.write_all_at(&data, 0).unwrap();
    to.write_all_at(&vec![7; 3 << 20], 0).unwrap();
    // In the kernel's cache, from where it has to go.
    let mut before = [0; 10];
    to.read_exact_at(&mut before, 1 << 20).unwrap();
    from.sync_all().unwrap();
    to.sync_all().unwrap();
    // What was sent twice because it took long has come before this.
    fs::create_dir(a.path("mark")).unwrap();
    group.kinds.take();
    copy(&from, 1000, &to, 1 << 20, 4 << 20);
    let counts = group.kinds.take();
    assert!(counts.get("CopyRange") >= Some(&4), "{counts:?}");
    assert_eq!((counts.get("Read"), counts.get("Write")), (None, None));

    let mut expected = vec![7; 1 << 20];
    expected.extend_from_slice(&data[1000..1000 + (4 << 20)]);
    assert!(fs::read(a.path("to")).unwrap() == expected);
    assert!(fs::read(b.path("to")).unwrap() == expected);

    // What waits to be written goes before, on either side; within one file, too.
    from.write_all_at(b"new", 0).unwrap();
    to.write_all_at(b"old", 0).unwrap();
    copy(&from, 0, &to, 1, 3);
    copy(&to, 0, &to, 10, 4);
    let mut start = [0; 14];
    to.read_exact_at(&mut start, 0).unwrap();
    assert_eq!(&start, b"onew\x07\x07\x07\x07\x07\x07onew");
    let meets = copy_file_range(&to, Some(&mut 0), &to, Some(&mut 2), 4);
    assert_eq!(meets, Err(rustix::io::Errno::INVAL));
    let end = copy_file_range(&from, Some(&mut (5 << 20)), &to, Some(&mut 0), 4);
    assert_eq!(end, Ok(0));
}

/// Programs: `cp` of a large and a sparse file, and what a copy may not do.
#[test]
fn programs_copy() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    let data = noise(11, (3 << 20) + 77);
    fs::write(m.path("large"), &data).unwrap();
    let sparse = File::create(m.path("sparse")).unwrap();
    sparse.write_all_at(b"begin", 0).unwrap();
    sparse.write_all_at(b"end", 8 << 20).unwrap();
    drop(sparse);
    let cp = |how: &str, from: &str, to: &str| {
        let mut cp = Command::new("cp");
        cp.env("LC_ALL", "C");
        cp.args([how, "--"]).arg(m.path(from)).arg(m.path(to));
        cp.output().unwrap()
    };
    for file in ["large", "sparse"] {
        let copied = cp("--reflink=auto", file, "copy");
        assert!(copied.status.success(), "{copied:?}");
        let same = fs::read(m.path("copy")).unwrap() == fs::read(m.path(file)).unwrap();
        assert!(same, "{file}");
    }
    // Nothing is shared between files, and who insists is told.
    let cloned = cp("--reflink=always", "large", "clone");
    let told = String::from_utf8_lossy(&cloned.stderr).into_owned();
    assert!(told.contains("Operation not supported"), "{cloned:?}");

    let large = File::open(m.path("large")).unwrap();
    let appends = OpenOptions::new().append(true).open(m.path("copy"));
    let refused = copy_file_range(&large, Some(&mut 0), appends.unwrap(), Some(&mut 0), 4);
    assert_eq!(refused, Err(rustix::io::Errno::BADF));
    // The times change, as by a write.
    let mut target = open(&m.path("copy"));
    let before = target.metadata().unwrap().modified().unwrap();
    copy(&large, 0, &target, 0, 4096);
    assert!(target.metadata().unwrap().modified().unwrap() > before);
    let mut first = [0; 4096];
    target.read_exact(&mut first).unwrap();
    assert!(first == data[..4096]);
}
