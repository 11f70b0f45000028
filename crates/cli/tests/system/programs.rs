//! Programs that know nothing of Quorate work on a mount as on a local disk, and so they do while a replica dies
//! or lies.

use std::fs::{self, File};
use std::time::{Duration, Instant};

use crate::harness::{Group, Setup, Source, require_fuse};
use crate::workload::{self, Step};

/// Two thousand files and more, with four sound replicas.
#[test]
fn programs_work_on_a_mount() {
    if !require_fuse() {
        return;
    }
    let source = Source::new(2_000);
    let packed = fs::metadata(source.packed()).expect("the archive");
    assert!(
        packed.len() > 15_000_000,
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
    let source = Source::new(500);
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

/// Works while replica 2 misbehaves from the start; the sound ones have the same state afterwards.
fn programs_do_not_notice(fault: &'static str) {
    if !require_fuse() {
        return;
    }
    let source = Source::new(200);
    let mut group = Setup::new(4).fault(2, fault).start();
    let mount = group.mount();
    workload::work(mount.path(), &source, |_| {});
    mount.unmount();
    group.wait_until_they_agree(&[0, 1, 3]);
}

/// Replica 2 answers clients with other results, and hints wrong things to replicas.
#[test]
fn programs_do_not_notice_a_liar() {
    programs_do_not_notice("lie");
}

/// Replica 2 tells different things to different replicas.
#[test]
fn programs_do_not_notice_an_equivocator() {
    programs_do_not_notice("equivocate");
}

/// Replica 2 sends nothing, though its links stay up.
#[test]
fn programs_do_not_notice_a_silent_replica() {
    programs_do_not_notice("silent");
}

/// Replica 2 sends everything late, by up to a second. Nobody waits for it, nor for a vote of its: the view stays.
#[test]
fn programs_do_not_notice_a_slow_replica() {
    if !require_fuse() {
        return;
    }
    let source = Source::new(200);
    let mut group = Setup::new(4).fault(2, "slow").start();
    let mount = group.mount();
    let start = Instant::now();
    for n in 0..100 {
        let file = File::create(mount.at(&n.to_string())).expect("a file");
        file.sync_all().expect("it is synced");
    }
    // Two operations for each file at least, and each would take a third of a second if anybody waited.
    let took = start.elapsed();
    assert!(took < Duration::from_secs(60), "{took:?}");
    workload::work(mount.path(), &source, |_| {});
    mount.unmount();
    group.wait_until_they_agree(&[0, 1, 3]);
    let view = group.status().said(0).map(|said| said.view);
    assert_eq!(view, Some(0), "the slow one had the view changed");
}

/// Replica 2 hands out damaged state: a replica that was down for long gets it from the others all the same.
#[test]
fn programs_do_not_notice_corrupt_state() {
    if !require_fuse() {
        return;
    }
    let source = Source::new(200);
    let mut group = Setup::new(4).fault(2, "corrupt-state").start();
    let mount = group.mount();
    workload::work(mount.path(), &source, |step| {
        if step == Step::Build {
            group.kill(3);
        }
        if step == Step::Git {
            group.start_replica(3);
        }
    });
    mount.unmount();
    group.wait_until_they_agree(&[0, 1, 3]);
}
