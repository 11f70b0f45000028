//! After a power cut of all replicas, what fsync(2) had said is there, to the byte.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::harness::{Group, Mount, Random, Setup, require_fuse};

const CUTS: usize = 20;
const FILES: usize = 4;
const LONGEST_RECORD: u64 = 24_000;

/// A file to which records are appended; its bytes up to `synced` were acknowledged.
struct Appended {
    seed: u64,
    synced: AtomicU64,
}

/// The records of a file are a function of its seed, so its content is known at any length.
fn record(seed: u64, number: u64) -> Vec<u8> {
    let mut random = Random::new(seed ^ number << 20);
    let len = 1 + random.below(LONGEST_RECORD) as usize;
    random.bytes(len)
}

impl Appended {
    fn name(&self) -> String {
        format!("records-{}", self.seed)
    }

    /// Appends until told to stop. A power cut makes a call take long, and nothing else.
    fn append(&self, directory: &Path, stop: &AtomicBool) {
        let path = directory.join(self.name());
        let mut file = File::create(path).expect("a new file");
        let mut len = 0;
        for number in 0.. {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let record = record(self.seed, number);
            file.write_all(&record).expect("a record is written");
            // Both calls promise the same.
            match number % 2 {
                0 => file.sync_all().expect("a record is synced"),
                _ => file.sync_data().expect("a record is synced"),
            }
            len += record.len() as u64;
            self.synced.store(len, Ordering::Release);
        }
    }

    /// Fails unless all acknowledged bytes are there, and nothing that was never written.
    fn check(&self, directory: &Path, synced: u64) -> u64 {
        let content = fs::read(directory.join(self.name())).expect("the file is there");
        let len = content.len() as u64;
        assert!(
            len >= synced,
            "{} lost {} synced bytes",
            self.name(),
            synced - len
        );
        let mut rest = content.as_slice();
        for number in 0.. {
            let record = record(self.seed, number);
            let here = rest.len().min(record.len());
            assert_eq!(
                rest[..here],
                record[..here],
                "{}, record {number}",
                self.name()
            );
            rest = &rest[here..];
            if rest.is_empty() {
                break;
            }
        }
        len
    }
}

/// Twenty times, all four replicas are killed at a moment of chance while files are written and synced.
///
/// Even cuts are looked at through a mount that was made after them, so no cache of the writers' machine helps.
#[test]
fn synced_data_survives_power_cuts() {
    if !require_fuse() {
        return;
    }
    let seed = match std::env::var("QUORATE_TEST_SEED") {
        Ok(text) => text.parse().expect("QUORATE_TEST_SEED is a number"),
        Err(_) => u64::from(std::process::id()),
    };
    println!("QUORATE_TEST_SEED={seed} repeats the moments");
    let mut random = Random::new(seed);
    let mut group = Setup::new(4).on_disk().start();
    let mount = group.mount();
    let files: Vec<Appended> = (0..FILES as u64)
        .map(|seed| Appended {
            seed,
            synced: AtomicU64::new(0),
        })
        .collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Also when a check fails: a scope waits for its threads.
        let _stopped = StopOnDrop(&stop);
        for file in &files {
            scope.spawn(|| file.append(mount.path(), &stop));
        }
        for cut in 0..CUTS {
            wait_for_progress(&files);
            std::thread::sleep(Duration::from_micros(random.below(600_000)));
            group.kill_all();
            let synced: Vec<u64> = files
                .iter()
                .map(|f| f.synced.load(Ordering::Acquire))
                .collect();
            println!("cut {cut}: {synced:?} bytes were synced");
            group.start_all();
            group.wait_until_it_works();
            let fresh = (cut % 2 == 0).then(|| group.mount_as(1));
            let directory = fresh.as_ref().map_or(mount.path(), Mount::path);
            for (file, synced) in files.iter().zip(synced) {
                file.check(directory, synced);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    mount.unmount();
    group.wait_until_they_agree(&[0, 1, 2, 3]);
    let fresh = group.mount_as(1);
    for file in &files {
        let synced = file.synced.load(Ordering::Acquire);
        assert_eq!(
            file.check(fresh.path(), synced),
            synced,
            "more is there than was written"
        );
    }
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until each file has grown since the last cut: then the group serves, and a cut hits writes.
fn wait_for_progress(files: &[Appended]) {
    let before: Vec<u64> = files
        .iter()
        .map(|f| f.synced.load(Ordering::Acquire))
        .collect();
    crate::harness::eventually("all writers go on", || {
        files
            .iter()
            .zip(&before)
            .all(|(f, before)| f.synced.load(Ordering::Acquire) > *before)
    });
}

/// A group that comes back after a power cut is the same to its mounts: what was open stays open, even without a name.
#[test]
fn open_files_survive_a_power_cut() {
    if !require_fuse() {
        return;
    }
    let mut group = Group::start();
    let mount = group.mount();
    let path = mount.at("open");
    let made = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path);
    let mut file = made.expect("a new file");
    file.write_all(b"before").expect("bytes are written");
    file.sync_all().expect("bytes are synced");
    fs::remove_file(&path).expect("the name is removed");
    group.kill_all();
    group.start_all();
    file.write_all(b" and after")
        .expect("the handle still works");
    file.sync_all().expect("bytes are synced");
    let mut content = [0; 16];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut content, 0).expect("it can be read");
    assert_eq!(&content, b"before and after");
    drop(file);
    mount.unmount();
    group.wait_until_they_agree(&[0, 1, 2, 3]);
}
