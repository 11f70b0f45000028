//! A replica whose log or state is damaged or gone comes back by itself: the state comes from the others, and without a log it
//! is silent until nothing that it may have said matters any more.

use std::fs;
use std::ops::Bound;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use quorate_state::Layer;
use quorate_store::{Blobs, Options, Store};

use crate::harness::{Group, Random, eventually, holds_in_time, require_fuse};

/// Enough for more than one checkpoint, so that the log alone does not lead back to the state.
const FILES: usize = 300;

#[test]
fn a_damaged_store_is_fetched_again() {
    if !require_fuse() {
        return;
    }
    let mut group = Group::start();
    let mount = group.mount();
    for i in 0..FILES {
        fs::write(
            mount.path().join(format!("file {i}")),
            format!("content {i}"),
        )
        .expect("a file");
    }
    group.wait_until_they_agree(&[0, 1, 2, 3]);
    group.kill(2);
    let state = group.directory().join("replica-2/state.redb");
    let file = fs::File::options()
        .write(true)
        .open(&state)
        .expect("a store");
    let len = file.metadata().expect("a length").len();
    for at in (0..len).step_by(512) {
        file.write_all_at(b"damage", at).expect("it is written");
    }
    group.start_replica(2);
    eventually("the damage is told", || {
        let log = group.log(2);
        log.contains("is damaged") && log.contains("fetched from the other replicas")
    });
    for i in 0..FILES {
        let path = mount.path().join(format!("file {i}"));
        assert_eq!(
            fs::read_to_string(path).expect("a file"),
            format!("content {i}")
        );
    }
    fs::write(mount.path().join("more"), b"more").expect("a file");
    group.wait_until_they_agree(&[0, 1, 2, 3]);
    // One of the others may go: the one that came back is needed, and has what it needs.
    group.kill(0);
    fs::write(mount.path().join("still more"), b"more").expect("a file");
    group.wait_until_they_agree(&[1, 2, 3]);
}

/// The place of the newest state in a replica's store, while the replica is down.
fn newest_of(group: &Group, id: u8) -> u64 {
    let own = group.directory().join(format!("replica-{id}"));
    let blobs = Blobs::open(&own.join("blobs")).expect("segments");
    let store = Store::open(&own.join("state.redb"), blobs, Options::default());
    store.expect("a store").newest().seq.0
}

/// A disk that lied about syncs has the whole store as it was some checkpoints ago, beside a log that has let go of what led on from there. The replica
/// has what it lacks from the others, and votes meanwhile: its log is whole.
#[test]
fn a_store_of_long_ago_is_brought_up() {
    if !require_fuse() {
        return;
    }
    let mut group = Group::start();
    let mount = group.mount();
    write_some(mount.path(), 0, FILES);
    group.wait_until_they_agree(&[0, 1, 2, 3]);
    group.kill(2);
    let long_ago = newest_of(&group, 2);
    let state = group.directory().join("replica-2/state.redb");
    let kept = group.directory().join("kept");
    fs::copy(&state, &kept).expect("a copy");
    group.start_replica(2);
    write_some(mount.path(), FILES, 2 * FILES);
    group.wait_until_they_agree(&[0, 1, 2, 3]);
    group.kill(2);
    let newest = newest_of(&group, 2);
    assert!(newest > long_ago + 128, "{long_ago}, {newest}");
    fs::rename(&kept, &state).expect("it is put back");
    group.start_replica(2);
    write_some(mount.path(), 3 * FILES, 20);
    group.wait_until_they_agree(&[0, 1, 2, 3]);
    let log = group.log(2);
    assert!(!log.contains("recovering"), "{log}");
    group.kill(0);
    write_some(mount.path(), 3 * FILES + 20, 20);
    read_all(mount.path(), 3 * FILES + 40);
    group.wait_until_they_agree(&[1, 2, 3]);
    assert!(group.all_run(), "no restart was needed");
}

/// The replica's log directory.
fn log_of(group: &Group, id: u8) -> PathBuf {
    group.directory().join(format!("replica-{id}/log"))
}

/// Changes one byte of each page of the first segment that was written to.
fn rot(log: &Path) {
    let segment = log.join("0000000000000001.wal");
    let mut bytes = fs::read(&segment).expect("a segment");
    let used = bytes.iter().rposition(|b| *b != 0).expect("it was used");
    // Not at its very end: that could be a torn write, which is none of the disk's fault.
    for at in (40..used / 2).step_by(512) {
        bytes[at] ^= 0x20;
    }
    fs::write(&segment, bytes).expect("it is written");
}

/// Replica `id` has lost its log: it says so, comes back without anybody's help while nobody asks the group for anything, and then is
/// as good as any other, so that one of those may go.
fn comes_back(group: &mut Group, id: u8) {
    eventually("it says that it recovers, or has", || {
        let log = group.log(id);
        log.contains("recovering: the replica is silent")
    });
    let mut has_recovered = || {
        let status = group.status();
        let said = status.said(id);
        said.is_some_and(|said| said.active && !said.recovering)
    };
    // The others help four times a minute at most: where processors are short it may take more than one.
    if !holds_in_time(&mut has_recovered) {
        eventually("it has recovered", has_recovered);
    }
    assert!(group.log(id).contains("the replica votes again"));
    let ids: Vec<u8> = (0..4).collect();
    group.wait_until_they_agree(&ids);
}

fn write_some(directory: &Path, from: usize, count: usize) {
    for i in from..from + count {
        fs::write(directory.join(format!("file {i}")), format!("content {i}")).expect("a file");
    }
}

fn read_all(directory: &Path, count: usize) {
    for i in 0..count {
        let found = fs::read_to_string(directory.join(format!("file {i}")));
        assert_eq!(found.expect("a file"), format!("content {i}"));
    }
}

/// The log of one is damaged on the disk, the whole directory of another is lost, and all four lose their power while a third log is
/// damaged; each time the group heals by itself and can do without another replica afterwards.
#[test]
fn a_replica_comes_back_without_its_log() {
    if !require_fuse() {
        return;
    }
    let mut group = Group::start();
    let mount = group.mount();
    write_some(mount.path(), 0, 40);
    group.wait_until_they_agree(&[0, 1, 2, 3]);

    group.kill(2);
    rot(&log_of(&group, 2));
    group.start_replica(2);
    comes_back(&mut group, 2);
    assert!(
        group.log(2).contains("is damaged at byte"),
        "{}",
        group.log(2)
    );
    group.kill(1);
    write_some(mount.path(), 40, 20);
    group.start_replica(1);
    group.wait_until_they_agree(&[0, 1, 2, 3]);

    // The primary's disk is lost: all but the key, which is kept elsewhere.
    let primary = group.status().primary().expect("a primary");
    group.kill(primary);
    let own = group.directory().join(format!("replica-{primary}"));
    let key = fs::read(own.join("key")).expect("a key");
    for entry in fs::read_dir(&own).expect("a directory") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => fs::remove_dir_all(path).expect("it goes"),
            false if path.ends_with("key") => {}
            false => fs::remove_file(path).expect("it goes"),
        }
    }
    assert!(!key.is_empty());
    group.start_replica(primary);
    group.wait_for_end(primary);
    assert!(group.log(primary).contains("--lost-disk"));
    group.start_replica_with(primary, &["--lost-disk"]);
    comes_back(&mut group, primary);
    write_some(mount.path(), 60, 20);

    group.kill_all();
    fs::remove_dir_all(log_of(&group, 3)).expect("it goes");
    group.start_all();
    group.wait_until_it_works();
    comes_back(&mut group, 3);
    group.kill(0);
    write_some(mount.path(), 80, 20);
    read_all(mount.path(), 100);
    group.start_replica(0);
    group.wait_until_they_agree(&[0, 1, 2, 3]);
}

/// Damaged bodies in the log cost no vote: the replica asks the others for them. Damage that is found when the state is read costs
/// no restart by hand.
#[test]
fn damaged_blobs_are_fetched() {
    if !require_fuse() {
        return;
    }
    let mut group = Group::start();
    let mount = group.mount();
    let content = |n: u64| Random::new(n).bytes(600_000);
    for n in 0..8 {
        fs::write(mount.at(&n.to_string()), content(n)).expect("a file");
    }
    group.wait_until_they_agree(&[0, 1, 2, 3]);
    group.kill(2);
    for entry in fs::read_dir(group.directory().join("replica-2/blobs")).expect("a directory") {
        let path = entry.expect("a segment").path();
        let mut bytes = fs::read(&path).expect("a segment");
        bytes.iter_mut().step_by(3_000).for_each(|b| *b ^= 1);
        fs::write(&path, bytes).expect("it is written");
    }
    group.start_replica(2);
    for n in 0..8 {
        assert!(fs::read(mount.at(&n.to_string())).expect("the file") == content(n));
    }
    group.wait_until_they_agree(&[0, 1, 2, 3]);
    let log = group.log(2);
    assert!(log.contains("has bodies of records"), "{log}");
    assert!(!log.contains("recovering"), "{log}");
    group.kill(1);
    fs::write(mount.at("more"), content(9)).expect("a file");
    group.wait_until_they_agree(&[0, 2, 3]);
    assert!(fs::read(mount.at("5")).expect("the file") == content(5));
}

/// All that one replica has stored of the volume is whole by its sums and tree, and can't be read: somebody has written it so. The replica
/// says which value it was, gets it all from the others while it votes, and needs no restart; afterwards it can do for another.
#[test]
fn a_state_that_cant_be_read_is_mended() {
    if !require_fuse() {
        return;
    }
    let mut group = Group::start();
    let mount = group.mount();
    write_some(mount.path(), 0, FILES);
    group.wait_until_they_agree(&[0, 1, 2, 3]);
    group.kill(2);
    let own = group.directory().join("replica-2");
    let blobs = Blobs::open(&own.join("blobs")).expect("segments");
    let mut store =
        Store::open(&own.join("state.redb"), blobs, Options::default()).expect("a store");
    let position = store.newest();
    assert!(position.seq.0 > 0 && position.complete);
    let (from, to) = (Bound::Included(&[1_u8][..]), Bound::Unbounded);
    let all = position.snapshot.range(from, to, usize::MAX);
    let spoiled: Layer = all
        .expect("the state")
        .into_iter()
        .map(|(key, value)| (key, Some([&value[..], b"?"].concat().into())))
        .collect();
    assert!(spoiled.len() > FILES);
    let written = store.checkpoint(position.seq, &spoiled, true);
    written.expect("it is written");
    drop((position, store));

    group.start_replica(2);
    write_some(mount.path(), FILES, 20);
    eventually("the replica says what it can't read", || {
        group.log(2).contains("can't be read")
    });
    group.wait_until_they_agree(&[0, 1, 2, 3]);
    assert!(group.all_run(), "no restart was needed");
    group.kill(0);
    write_some(mount.path(), FILES + 20, 20);
    read_all(mount.path(), FILES + 40);
    group.wait_until_they_agree(&[1, 2, 3]);
}
