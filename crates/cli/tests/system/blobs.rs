//! Large writes: each replica's disk has them once and gives their room back; what it has lost of them the others have.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::harness::{Group, Random, Setup, eventually, require_fuse};

const MIB: usize = 1 << 20;

fn write(path: &Path, seed: u64, mebibytes: usize) {
    let mut random = Random::new(seed);
    let mut file = File::create(path).expect("a new file");
    for _ in 0..mebibytes {
        file.write_all(&random.bytes(MIB)).expect("it is written");
    }
    file.sync_all().expect("it is synced");
}

fn check(path: &Path, seed: u64, mebibytes: usize) {
    let mut random = Random::new(seed);
    let mut file = File::open(path).expect("the file");
    let mut found = vec![0; MIB];
    for at in 0..mebibytes {
        file.read_exact(&mut found).expect("it is read");
        assert!(found == random.bytes(MIB), "MiB {at} of {}", path.display());
    }
    assert_eq!(file.read(&mut found).expect("its end"), 0);
}

/// How much a replica keeps of large values, and how much in its store's file: in MiB.
fn kept(group: &Group, id: u8) -> (usize, usize) {
    let data = group.directory().join(format!("replica-{id}"));
    let length = |path| fs::metadata(path).map_or(0, |found| found.len() as usize);
    let segments = fs::read_dir(data.join("blobs")).expect("a directory");
    let blobs: usize = segments.map(|e| length(e.expect("a file").path())).sum();
    (blobs / MIB, length(data.join("state.redb")) / MIB)
}

/// How much a replica's process has had written to a disk so far, in bytes, as the kernel counts it; 0 where its files are in memory.
fn written(group: &Group, id: u8) -> u64 {
    let io = fs::read_to_string(format!("/proc/{}/io", group.pid(id))).expect("it runs");
    let line = io.lines().find_map(|l| l.strip_prefix("write_bytes: "));
    line.expect("a count").parse().expect("a number")
}

/// What a replica has written goes to its disk about once: the log and the store don't both keep the bytes.
#[test]
fn large_writes_are_kept_once() {
    if !require_fuse() {
        return;
    }
    let mut group = Setup::new(4).on_disk().start();
    let mount = group.mount();
    write(&mount.at("a"), 1, 100);
    mount.unmount();
    group.kill_all();
    for id in 0..4 {
        let (blobs, store) = kept(&group, id);
        println!("replica {id} keeps {blobs} MiB and {store} MiB");
        assert!((100..112).contains(&blobs) && store < 24, "{blobs} {store}");
    }
    group.start_all();
    group.wait_until_it_works();
    let mount = group.mount_as(1);
    check(&mount.at("a"), 1, 100);

    // What is deleted makes room for what comes.
    fs::remove_file(mount.at("a")).expect("it goes");
    let before: Vec<u64> = (0..4).map(|id| written(&group, id)).collect();
    write(&mount.at("b"), 2, 200);
    group.wait_until_they_agree(&[0, 1, 2, 3]);
    for id in 0..4 {
        let more = (written(&group, id) - before[usize::from(id)]) as usize / MIB;
        println!("replica {id} has written {more} MiB for 200");
        assert!(more == 0 || (195..300).contains(&more), "{more} MiB");
    }
    eventually("the room of the deleted file comes back", || {
        fs::write(mount.at("c"), b"small").expect("it is written");
        (0..4).all(|id| kept(&group, id).0 < 270)
    });
    mount.unmount();
    let mount = group.mount();
    check(&mount.at("b"), 2, 200);
}

#[test]
fn a_damaged_segment_is_as_a_damaged_store() {
    if !require_fuse() {
        return;
    }
    let mut group = Setup::new(4).on_disk().start();
    let mount = group.mount();
    // So much that the log does not need the first segment any more.
    write(&mount.at("a"), 3, 250);
    mount.unmount();
    group.wait_until_they_agree(&[0, 1, 2, 3]);
    group.kill(2);
    let data = group.directory().join("replica-2");
    let mut segments: Vec<_> = fs::read_dir(data.join("blobs"))
        .expect("a directory")
        .map(|entry| entry.expect("a file").path())
        .collect();
    segments.sort();
    let first = File::options().write(true).open(&segments[0]);
    let first = first.expect("a segment");
    let length = first.metadata().expect("a length").len();
    for at in (0..length).step_by(4096) {
        first.write_all_at(b"damage", at).expect("it is written");
    }
    group.start_replica(2);
    group.wait_until_they_agree(&[0, 1, 2, 3]);
    let mount = group.mount_as(1);
    check(&mount.at("a"), 3, 250);
    eventually("the damage is told, and mended", || {
        let log = group.log(2);
        log.contains(".blob") && log.contains("starts again, to fetch the state")
    });
    fs::write(mount.at("more"), b"more").expect("a file");
    group.wait_until_they_agree(&[0, 1, 2, 3]);
    // One of the others may go: the one that came back is needed, and has what it needs.
    mount.unmount();
    group.kill(0);
    let mount = group.mount();
    check(&mount.at("a"), 3, 250);
    fs::write(mount.at("still more"), b"more").expect("a file");
    group.wait_until_they_agree(&[1, 2, 3]);
}
