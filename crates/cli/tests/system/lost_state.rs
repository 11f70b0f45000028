//! A replica whose store is damaged does as it is told then: the file is deleted, and the state comes from the others.

use std::fs;
use std::os::unix::fs::FileExt;

use crate::harness::{Group, require_fuse};

/// Enough for more than one checkpoint, so that the log alone does not lead back to the state.
const FILES: usize = 300;

#[test]
fn a_damaged_store_is_deleted_and_fetched() {
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
    group.wait_for_end(2);
    let log = group.log(2);
    assert!(
        log.contains("is damaged") && log.contains("delete this file"),
        "{log}"
    );

    fs::remove_file(&state).expect("it is deleted");
    group.start_replica(2);
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
