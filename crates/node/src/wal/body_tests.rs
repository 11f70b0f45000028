//! Bodies of records in blob segments, and segments of the log that are used again.

use super::*;
use std::os::unix::fs::MetadataExt;
use tempfile::TempDir;

const OPTIONS: WalOptions = WalOptions {
    segment_bytes: 4096,
};

fn scratch() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

fn try_open(directory: &Path) -> Result<(Opened, Arc<Blobs>), WalError> {
    let blobs = Blobs::open_with(&directory.join("blobs"), 100_000).unwrap();
    let opened = Wal::open_with(&directory.join("log"), blobs.clone(), OPTIONS)?;
    Ok((opened, blobs))
}

fn open(directory: &Path) -> (Wal, Vec<Record>, Recovery) {
    try_open(directory).unwrap().0
}

fn bytes(salt: u64, length: u64) -> Bytes {
    let byte = |i: u64| (i.wrapping_mul(salt + 31) >> 3) as u8;
    (0..length).map(byte).collect()
}

/// A record whose bytes and bodies follow from its index.
fn record(index: u64, bodies: u64) -> Record {
    let bodies = (0..bodies).map(|b| bytes(index * 64 + b, 20_000 + 7 * index + b).into());
    Record {
        bodies: bodies.collect(),
        ..Record::new(LogIndex(index), Seq(index), bytes(index, 200))
    }
}

fn copy(from: &Path) -> TempDir {
    let to = scratch();
    for part in ["log", "blobs"] {
        fs::create_dir(to.path().join(part)).unwrap();
        for entry in fs::read_dir(from.join(part)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), to.path().join(part).join(entry.file_name())).unwrap();
        }
    }
    to
}

fn blob_files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory.join("blobs")).unwrap();
    let mut paths: Vec<_> = entries.map(|e| e.unwrap().path()).collect();
    paths.sort();
    paths
}

/// Bodies come back with their records, over segments of both kinds and restarts; in the log itself there is no trace of them.
#[test]
fn bodies_come_back() {
    let directory = scratch();
    let mut all = Vec::new();
    for run in 0..4 {
        let (mut wal, found, recovery) = open(directory.path());
        assert_eq!(found, all);
        assert!(!recovery.torn);
        for i in 1..=6 {
            let index = run * 6 + i;
            let records = [record(index, index % 4), record(100 + index, 0)];
            wal.append(&records).unwrap();
            wal.sync().unwrap();
            all.extend(records);
        }
    }
    assert_eq!(open(directory.path()).1, all);
    assert!(blob_files(directory.path()).len() > 5);
    for number in segment::list(&directory.path().join("log")).unwrap() {
        let path = segment::path(&directory.path().join("log"), number);
        assert_eq!(fs::metadata(path).unwrap().len(), OPTIONS.segment_bytes);
    }
}

/// A body is durable before its record is written: where it has changed, or is gone, the record says so and comes without any.
#[test]
fn damaged_bodies_are_told() {
    let directory = scratch();
    let (mut wal, ..) = open(directory.path());
    wal.append(&[record(1, 0), record(2, 3)]).unwrap();
    let files = blob_files(directory.path());
    assert_eq!(files.len(), 1);
    let image = fs::read(&files[0]).unwrap();
    let check = |change: &dyn Fn(&Path)| {
        let damaged = copy(directory.path());
        change(&blob_files(damaged.path()).remove(0));
        let (_, found, _) = open(damaged.path());
        let without = Record {
            bodies: Vec::new(),
            damaged: true,
            ..record(2, 3)
        };
        assert_eq!(found, [record(1, 0), without]);
    };
    for at in (0..image.len()).step_by(1_117) {
        let mut bytes = image.clone();
        bytes[at] ^= 8;
        check(&|path| fs::write(path, &bytes).unwrap());
    }
    for length in (0..image.len()).step_by(7_001) {
        check(&|path| fs::write(path, &image[..length]).unwrap());
    }
    check(&|path| fs::remove_file(path).unwrap());
}

/// A torn write of the log leaves bodies behind that nobody refers to; they do no harm.
#[test]
fn a_torn_record_leaves_its_bodies_alone() {
    let directory = scratch();
    let (mut wal, ..) = open(directory.path());
    wal.append(&[record(1, 1)]).unwrap();
    wal.sync().unwrap();
    let from = wal.current.end;
    wal.append(&[record(2, 2)]).unwrap();
    for cut in from..wal.current.end {
        let killed = copy(directory.path());
        let path = segment::path(&killed.path().join("log"), 1);
        let log = fs::read(&path).unwrap();
        fs::write(&path, &log[..cut as usize]).unwrap();
        let (mut wal, found, _) = open(killed.path());
        assert_eq!(found, [record(1, 1)]);
        wal.append(&[record(3, 2)]).unwrap();
        wal.sync().unwrap();
        drop(wal);
        assert_eq!(open(killed.path()).1, [record(1, 1), record(3, 2)]);
    }
}

/// The log holds blob segments as long as one of its records refers to them, and no longer; after a restart as well.
#[test]
fn bodies_are_needed_as_long_as_their_records() {
    let directory = scratch();
    let (opened, blobs) = try_open(directory.path()).unwrap();
    let (mut wal, ..) = opened;
    let mut stable = 0;
    let free = |blobs: &Blobs| blobs.unpinned().len();
    for index in 1..=30 {
        wal.append(&[record(index, 2)]).unwrap();
        if index % 5 == 0 {
            wal.rotate(&[]).unwrap();
            wal.discard(Seq(stable)).unwrap();
            stable = index;
        }
    }
    // Two bodies of about 20,000 bytes each: two records in a segment of 100,000.
    assert_eq!(blob_files(directory.path()).len(), 15);
    assert_eq!(free(&blobs), 12);
    drop(wal);

    let ((mut wal, found, _), blobs) = try_open(directory.path()).unwrap();
    let expected: Vec<_> = (26..=30).map(|index| record(index, 2)).collect();
    assert_eq!(found, expected);
    assert_eq!(free(&blobs), 12);
    wal.rotate(&[]).unwrap();
    wal.discard(Seq(30)).unwrap();
    assert_eq!(free(&blobs), 15);
}

/// A segment that is discarded becomes the spare one, with nothing left in it of what it held.
#[test]
fn segments_are_used_again() {
    let directory = scratch();
    let log = directory.path().join("log");
    let (mut wal, ..) = open(directory.path());
    let mut files = std::collections::BTreeSet::new();
    let mut kept = Vec::new();
    for round in 1..=40_u64 {
        let records: Vec<_> = (0..round % 7 + 1)
            .map(|i| record(round * 10 + i, 0))
            .collect();
        wal.append(&records).unwrap();
        wal.rotate(&[]).unwrap();
        wal.discard(Seq(round * 10 - 1)).unwrap();
        kept = records;
        for number in segment::list(&log).unwrap() {
            let found = fs::metadata(segment::path(&log, number)).unwrap();
            assert_eq!(found.len(), OPTIONS.segment_bytes);
            files.insert(found.ino());
        }
        // The process ends, at times while a file is being cleaned.
        if round % 3 == 0 {
            drop(wal);
            let found;
            (wal, found, _) = open(directory.path());
            assert_eq!(found, kept);
        }
    }
    drop(wal);
    assert_eq!(open(directory.path()).1, kept);
    println!("{} files in 40 rounds", files.len());
    let (mut wal, ..) = open(directory.path());
    files.clear();
    for round in 41..=80_u64 {
        wal.append(&[record(round * 10, 0)]).unwrap();
        wal.rotate(&[]).unwrap();
        wal.discard(Seq(round * 10 - 1)).unwrap();
        for number in segment::list(&log).unwrap() {
            files.insert(fs::metadata(segment::path(&log, number)).unwrap().ino());
        }
    }
    assert!(files.len() <= 5, "{} files", files.len());
}
