//! One file, changed at random through two mounts at once, each time under a lock: what was unlocked here is seen there, in full.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::common::{Group, can_mount, noise};
use rustix::fs::{FlockOperation, copy_file_range, fcntl_lock, flock};
use rustix::io;

/// The longest that the file becomes.
const MAX_BYTES: u64 = 256 << 10;
/// The most that is written or read at once.
const MAX_STEP: u64 = 64 << 10;

type Locking = fn(&File, FlockOperation) -> io::Result<()>;

/// Numbers that look like random ones.
struct Random(u64);

impl Random {
    /// One below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// How many operations through each mount; with `QUORATE_LONG=1` as many as people give such programs.
fn operations() -> u64 {
    match std::env::var_os("QUORATE_LONG").is_some_and(|v| v != "0" && !v.is_empty()) {
        true => 50_000,
        false => 400,
    }
}

/// Writes into what the file should be, which may become longer.
fn put(model: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let end = offset as usize + data.len();
    if model.len() < end {
        model.resize(end, 0);
    }
    model[offset as usize..end].copy_from_slice(data);
}

/// One operation on the file and on what it should be.
fn step(file: &File, model: &mut Vec<u8>, random: &mut Random, name: &str) {
    let offset = random.below(MAX_BYTES - MAX_STEP);
    let len = 1 + random.below(MAX_STEP);
    match random.below(8) {
        0..3 => {
            let data = noise(1 + random.below(u64::MAX - 1), len as usize);
            file.write_all_at(&data, offset).unwrap();
            put(model, offset, &data);
        }
        3 => {
            file.set_len(offset).unwrap();
            model.resize(offset as usize, 0);
        }
        4 if offset + len < model.len() as u64 => {
            let (mut from, mut to) = (offset, (offset + len) % (MAX_BYTES - MAX_STEP));
            // Ranges that overlap are refused.
            let len = len.min(from.abs_diff(to));
            let (data, at) = (model[from as usize..(from + len) as usize].to_vec(), to);
            let mut left = len as usize;
            while left > 0 {
                let copied = copy_file_range(file, Some(&mut from), file, Some(&mut to), left);
                let copied = copied.unwrap();
                if copied == 0 {
                    // The kernel ends at the size that it saw last, also after a lock was granted (docs/mount.md).
                    file.write_all_at(&data[data.len() - left..], to).unwrap();
                    break;
                }
                left -= copied;
            }
            put(model, at, &data);
        }
        _ => {
            let mut read = vec![0; len as usize];
            let mut got = 0;
            while got < read.len() {
                match file.read_at(&mut read[got..], offset + got as u64).unwrap() {
                    0 => break,
                    more => got += more,
                }
            }
            let end = model.len().min((offset + len) as usize);
            let wanted = model.get(offset as usize..end).unwrap_or_default();
            assert!(read[..got] == *wanted, "{name}: {len} bytes at {offset}");
        }
    }
    assert_eq!(file.metadata().unwrap().len(), model.len() as u64, "{name}");
}

fn exercise(group: &Group, lock: Locking, seed: u64) {
    let mounts = [group.mount(1), group.mount(2)];
    fs::write(mounts[0].path("file"), b"").unwrap();
    let model = Mutex::new(Vec::new());
    let open = |path: PathBuf| OpenOptions::new().read(true).write(true).open(path);
    std::thread::scope(|scope| {
        for (number, mount) in mounts.iter().enumerate() {
            let model = &model;
            scope.spawn(move || {
                let mut random = Random(seed + number as u64);
                let file = open(mount.path("file")).unwrap();
                for operation in 0..operations() {
                    lock(&file, FlockOperation::LockExclusive).unwrap();
                    // Whoever has the lock has this alone; it is poisoned where the other has found something.
                    let mut model = model.try_lock().unwrap_or_else(|e| match e {
                        std::sync::TryLockError::Poisoned(e) => PoisonError::into_inner(e),
                        std::sync::TryLockError::WouldBlock => panic!("both have the lock"),
                    });
                    let name = format!("mount {number}, operation {operation}, seed {seed}");
                    step(&file, &mut model, &mut random, &name);
                    drop(model);
                    lock(&file, FlockOperation::Unlock).unwrap();
                }
            });
        }
    });
    let wanted = model.into_inner().unwrap();
    for mount in &mounts {
        assert!(fs::read(mount.path("file")).unwrap() == wanted);
    }
}

#[test]
fn two_mounts_change_a_file_under_record_locks() {
    if can_mount() {
        let lock: Locking = |file, how| fcntl_lock(file, how);
        exercise(&Group::start(), lock, 42);
    }
}

#[test]
fn two_mounts_change_a_file_under_whole_file_locks() {
    if can_mount() {
        let lock: Locking = |file, how| flock(file, how);
        exercise(&Group::start(), lock, 4242);
    }
}
