//! What a replica holds is larger than its memory.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

use crate::harness::{Group, Random, Setup, require_fuse};

const FILES: u64 = 16;
const CHUNKS: u64 = 64;
const CHUNK: usize = 1 << 20;
const STORED: u64 = FILES * CHUNKS * CHUNK as u64;
/// What a replica's process may take, at most: two fifths of what it stores. ARCHITECTURE.md says what the bounds of its parts are.
const MOST_MEMORY: u64 = STORED / 5 * 2;

/// The content of a file is a function of its number.
fn chunk(file: u64, chunk: u64) -> Vec<u8> {
    Random::new(file << 32 | chunk).bytes(CHUNK)
}

fn write_all(directory: &Path) {
    for n in 0..FILES {
        let mut file = File::create(directory.join(n.to_string())).expect("a new file");
        for at in 0..CHUNKS {
            file.write_all(&chunk(n, at)).expect("it is written");
        }
        file.sync_all().expect("it is synced");
    }
}

fn read_all(directory: &Path) {
    let mut found = vec![0; CHUNK];
    for n in 0..FILES {
        let mut file = File::open(directory.join(n.to_string())).expect("the file");
        for at in 0..CHUNKS {
            file.read_exact(&mut found).expect("it is read");
            assert!(found == chunk(n, at), "file {n}, chunk {at}");
        }
        assert_eq!(file.read(&mut found).expect("its end"), 0, "file {n}");
    }
}

fn check_memory(group: &Group, when: &str) {
    for id in 0..4 {
        let peak = group.peak_memory(id);
        println!("{when}, replica {id} had {} MiB at most", peak >> 20);
        assert!(
            peak < MOST_MEMORY,
            "{when}, replica {id} took {peak} bytes for {STORED} stored"
        );
    }
}

/// A gibibyte is written, survives the death of all replicas, and is read again by another mount. No replica ever
/// has two fifths of that in memory.
#[test]
fn a_state_larger_than_memory_is_served() {
    if !require_fuse() {
        return;
    }
    let mut group = Setup::new(4).on_disk().start();
    let mount = group.mount();
    let start = Instant::now();
    write_all(mount.path());
    println!("written in {:?}", start.elapsed());
    mount.unmount();
    check_memory(&group, "writing");
    group.kill_all();
    group.start_replica_with(0, &["--cache", "8M"]);
    for id in 1..4 {
        group.start_replica(id);
    }
    group.wait_until_it_works();
    // Another machine's mount: nothing is in its cache.
    let mount = group.mount_as(1);
    let start = Instant::now();
    read_all(mount.path());
    println!("read in {:?}", start.elapsed());
    mount.unmount();
    check_memory(&group, "restarting and reading");
    group.wait_until_they_agree(&[0, 1, 2, 3]);
}

/// A replica that is started with the usual limits has as many open files as it may: each client's link is one.
#[test]
fn a_replica_may_have_many_links() {
    let before = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let few = rustix::process::Rlimit {
        current: before.current.map(|now| now.min(200)),
        maximum: before.maximum,
    };
    let group = Setup::new(1).start();
    let pid = rustix::process::Pid::from_raw(group.pid(0) as i32).expect("a process");
    let its = rustix::process::prlimit(Some(pid), rustix::process::Resource::Nofile, few);
    let its = its.expect("it is this user's process");
    assert_eq!((its.current, its.maximum), (before.maximum, before.maximum));
}
