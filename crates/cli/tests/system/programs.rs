//! Programs that know nothing of Quorate work on a mount as on a local disk, and so they do while a replica dies
//! or lies.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use crate::harness::{
    Group, Mount, Setup, Source, Status, Times, Up, assert_same, eventually, free_ports, long_or,
    require_fuse, scratch_in_memory,
};
use crate::workload::{self, Step};

/// Enough files for a replica to miss more than the others' logs have.
const SOME_FILES: usize = 400;
/// The batches that a replica keeps for those that are behind.
const LOG_WINDOW: u64 = 256;

/// A source tree of 500 files, or 2,000, with four sound replicas.
#[test]
fn programs_work_on_a_mount() {
    if !require_fuse() {
        return;
    }
    let files = long_or(2_000, 500);
    let source = Source::new(files);
    let packed = fs::metadata(source.packed()).expect("the archive");
    assert!(
        packed.len() > 7_500 * files as u64,
        "the tree is smaller than it should be"
    );
    let mut group = Group::start();
    let mount = group.mount();
    let mut last = (Instant::now(), None);
    workload::work(mount.path(), &source, |step| {
        if let (since, Some(before)) = last {
            println!("{before:?} took {:?}", since.elapsed());
        }
        last = (Instant::now(), Some(step));
    });
    workload::query(mount.path(), "wal");
    Status::wait_for_a_checkpoint(group.directory(), &[0, 1, 2, 3], mount.path());
    mount.unmount();
    group.wait_until_they_agree(&[0, 1, 2, 3]);
}

/// The primary is killed while files are unpacked, and the next one while git works; each comes back after a few
/// seconds and catches up. No program notices.
#[test]
fn programs_do_not_notice_that_the_primary_dies() {
    if !require_fuse() {
        return;
    }
    let source = Source::new(SOME_FILES);
    let mut group = Group::start();
    let mount = group.mount();
    std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        let group = &mut group;
        let killer = scope.spawn(move || {
            while let Ok(step) = told.recv() {
                if !matches!(step, Step::Unpack | Step::Git) {
                    continue;
                }
                std::thread::sleep(Duration::from_millis(700));
                let primary = group.status().primary().expect("a primary");
                println!("{step:?} is under way: replica {primary} is killed");
                group.kill(primary);
                std::thread::sleep(Duration::from_secs(3));
                group.start_replica(primary);
            }
        });
        workload::work(mount.path(), &source, |step| {
            // The receiver ends only with a failure of its own.
            let _ = tell.send(step);
        });
        drop(tell);
        killer.join().expect("replicas are killed and started");
    });
    Status::wait_for_a_checkpoint(group.directory(), &[0, 1, 2, 3], mount.path());
    mount.unmount();
    group.wait_until_they_agree(&[0, 1, 2, 3]);
    let status = group.status();
    assert_eq!(
        (status.code, status.state.as_str()),
        (0, "whole"),
        "{status:#?}"
    );
    assert!(
        status.said(0).is_some_and(|said| said.view > 0),
        "the view never changed"
    );
}

/// Replica 2 sends nothing, though its links stay up.
#[test]
fn programs_do_not_notice_a_silent_replica() {
    if !require_fuse() {
        return;
    }
    let source = Source::new(200);
    let mut group = Setup::new(4).fault(2, "silent").start();
    let mount = group.mount();
    workload::work(mount.path(), &source, |_| {});
    Status::wait_for_a_checkpoint(group.directory(), &[0, 1, 3], mount.path());
    mount.unmount();
    group.wait_until_they_agree(&[0, 1, 3]);
    // It was there all the time: only its daemon speaks, to those who ask how it is.
    let status = group.status();
    assert_eq!(status.faults(), [(2, "silent")]);
    for id in [0, 1, 3] {
        let links = &status.said(id).expect("a sound replica answers").links;
        assert!(links.iter().any(|l| l.peer == 2 && l.up), "{status:#?}");
    }
}

/// How long it takes to make and sync 100 files.
fn made_and_synced(mount: &Mount) -> Duration {
    let start = Instant::now();
    for n in 0..100 {
        let file = fs::File::create(mount.at(&n.to_string())).expect("a file");
        file.sync_all().expect("it is synced");
    }
    start.elapsed()
}

/// Replica 2 sends everything late, by up to a second. Nobody needs it or a vote of its, so views stay.
#[test]
fn programs_do_not_notice_a_slow_replica() {
    if !require_fuse() {
        return;
    }
    // How long it takes where none is slow: the same machine, as busy as it is.
    let sound = {
        let group = Group::start();
        let mount = group.mount();
        let took = made_and_synced(&mount);
        mount.unmount();
        took
    };
    let source = Source::new(200);
    let mut group = Setup::new(4).fault(2, "slow").start();
    let mount = group.mount();
    let took = made_and_synced(&mount);
    // Two operations for each file, and each would take a third of a second more if anybody waited for it.
    let most = sound * 3 + Duration::from_secs(15);
    assert!(took < most, "{took:?}, and {sound:?} without a slow one");
    workload::work(mount.path(), &source, |_| {});
    Status::wait_for_a_checkpoint(group.directory(), &[0, 1, 3], mount.path());
    mount.unmount();
    group.wait_until_they_agree(&[0, 1, 3]);
    let status = group.status();
    // Where others take the processors a view may end all the same; if anybody waited for it, each would.
    let (view, batches) = status
        .said(0)
        .map(|said| (said.view, said.executed))
        .expect("replica 0 answers");
    assert!(
        view <= 3 && batches > 500,
        "view {view} after {batches} batches"
    );
    assert_eq!(status.faults(), [(2, "slow")]);
}

/// The primary gives one batch to some backups and another to the others, until they take another primary.
#[test]
fn programs_do_not_notice_a_primary_that_equivocates() {
    if !require_fuse() {
        return;
    }
    let source = Source::new(20);
    let mut group = Setup::new(4).fault(0, "equivocate").start();
    eventually("the fault is in effect", || {
        group.status().faults() == [(0, "equivocate")]
    });
    let mount = group.mount();
    let tree = workload::unpack(mount.path(), &source);
    workload::query(mount.path(), "delete");
    assert_same(&source.tree(), &tree, Times::Kept);
    Status::wait_for_a_checkpoint(group.directory(), &[1, 2, 3], mount.path());
    mount.unmount();
    group.wait_until_they_agree(&[1, 2, 3]);
    let status = group.status();
    for id in [1, 2, 3] {
        let view = status.said(id).map(|said| said.view);
        assert!(view > Some(0), "replica {id} still follows it: {status:#?}");
    }
}

/// The same files under one fault after another: replica 2 lies to clients, tells different things to different replicas, hands
/// out damaged state. Each time the tree that was left is the one that was made, the programs work, and the sound
/// replicas end with the same state.
#[test]
fn programs_do_not_notice_one_fault_after_another() {
    if !require_fuse() {
        return;
    }
    let source = Source::new(SOME_FILES);
    let place = scratch_in_memory();
    let data = place.path().join("data");
    let port = free_ports(1)[0];
    let mut left: Option<PathBuf> = None;
    for fault in ["lie", "equivocate", "corrupt-state"] {
        let start = Instant::now();
        let up = Up::start(&data, port, &["--fault", &format!("2={fault}")]);
        eventually("the fault is in effect", || {
            Status::ask(&data).faults() == [(2, fault)]
        });
        if let Some(tree) = left.take() {
            assert_same(&source.tree(), &tree, Times::Kept);
            workload::remove(&[&tree]);
        }
        let place = data.join("files").join(fault);
        fs::create_dir(&place).expect("a directory");
        let mut stopped = None;
        let tree = workload::work_and_leave(&place, &source, |step| {
            if fault != "corrupt-state" {
                return;
            }
            let head = || {
                let status = Status::ask(&data);
                let heads = status
                    .replicas
                    .iter()
                    .filter_map(|r| Some(r.said.as_ref()?.stable));
                heads.max().expect("a replica answers")
            };
            match step {
                // A sound replica falls behind by more than the others' logs have, and must fetch the state.
                Step::Unpack => {
                    stopped = Some(head());
                    kill_process(up.replica(3), Signal::STOP).expect("the replica lives");
                }
                Step::Build => {
                    let missed = head() - stopped.expect("it was stopped");
                    assert!(missed > 2 * LOG_WINDOW, "it missed {missed} batches only");
                    kill_process(up.replica(3), Signal::CONT).expect("the replica lives");
                }
                _ => {}
            }
        });
        Status::wait_for_a_checkpoint(&data, &[0, 1, 3], &data.join("files"));
        Status::wait_until_they_agree(&data, &[0, 1, 3]);
        up.stop();
        println!("{fault}: {:?}", start.elapsed());
        left = Some(tree);
    }
    let up = Up::start(&data, port, &[]);
    let tree = left.expect("a tree was left");
    assert_same(&source.tree(), &tree, Times::Kept);
    workload::remove(&[&tree]);
    Status::wait_for_a_checkpoint(&data, &[0, 1, 2, 3], &data.join("files"));
    Status::wait_until_they_agree(&data, &[0, 1, 2, 3]);
    assert_eq!(Status::ask(&data).faults(), []);
    up.stop();
}
