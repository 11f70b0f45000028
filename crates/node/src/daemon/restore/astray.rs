//! What a disk leaves of a log that has put blocks where they do not belong, or kept older ones. Each of them is whole, and so may be what it holds: sums
//! alone do not tell.

use std::path::PathBuf;

use bytes::Bytes;
use tempfile::TempDir;

use super::*;
use crate::wal::WalOptions;

const SMALL: WalOptions = WalOptions {
    segment_bytes: 4096,
};
/// What a disk writes at once.
const BLOCK: usize = 512;

fn scratch() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

fn open(data: &Path) -> Result<(Wal, Vec<wal::Record>), WalError> {
    let blobs = Blobs::open(&data.join("blobs")).unwrap();
    let log = data.join(LOG);
    let (wal, found, _) = Wal::open_with(&log, blobs, SMALL)?;
    check_order(&log, &found, None)?;
    Ok((wal, found))
}

/// A record whose frame has `frame` bytes.
fn record(index: u64, frame: usize) -> wal::Record {
    let of_frame = 16 + 8 + 4;
    let bytes = vec![index as u8; frame - of_frame];
    wal::Record::new(LogIndex(index), Seq(index), Bytes::from(bytes))
}

/// The segments, oldest first, and how much of each was written to.
fn segments(data: &Path) -> Vec<(PathBuf, Vec<u8>, usize)> {
    let entries = fs::read_dir(data.join(LOG)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| path.file_name().is_some_and(|name| name.len() == 20))
        .collect();
    paths.sort();
    let read = |path: PathBuf| {
        let bytes = fs::read(&path).unwrap();
        let written = bytes.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
        (path, bytes, written)
    };
    paths.into_iter().map(read).collect()
}

/// A log of several segments, and how many of its records come before the last mark and what that proves: the two may be hit together.
fn written(data: &Path, frame: usize) -> (Vec<wal::Record>, usize) {
    let (mut wal, _) = open(data).unwrap();
    let mut all = Vec::new();
    for batch in 0..20.max(5_000 / frame as u64) {
        let records: Vec<_> = (1..=3).map(|i| record(3 * batch + i, frame)).collect();
        wal.append(&records).unwrap();
        wal.sync().unwrap();
        all.extend(records);
    }
    assert!(wal.segments() >= 3);
    let durable = all.len() - 6;
    (all, durable)
}

/// Whether what is found is damage, or all that was there; or where the end is hit, all before it.
fn is_noticed(data: &Path, all: &[wal::Record], durable: usize) -> bool {
    match open(data) {
        Err(e) => e.is_damage(),
        Ok((_, found)) => found.len() >= durable && all.starts_with(&found),
    }
}

/// The bytes of one block are where another should be, in the same segment or in another, at a block's beginning or where a record begins. Frames of just
/// a block are such that whole records change places.
#[test]
fn blocks_that_went_astray_are_damage() {
    for frame in [BLOCK, 100, 700] {
        let place = scratch();
        let data = place.path();
        let (all, durable) = written(data, frame);
        let segments = segments(data);
        let mut damaged = 0;
        for (from, (_, source, source_end)) in segments.iter().enumerate() {
            for (to, (path, whole, end)) in segments.iter().enumerate() {
                // From the first mark on records follow each other.
                for begin in [0, 65] {
                    for at in (begin..*source_end - BLOCK).step_by(BLOCK) {
                        for into in (begin..*end - BLOCK).step_by(BLOCK) {
                            let block = &source[at..at + BLOCK];
                            if block == &whole[into..into + BLOCK] {
                                continue;
                            }
                            let mut bytes = whole.clone();
                            bytes[into..into + BLOCK].copy_from_slice(block);
                            fs::write(path, bytes).unwrap();
                            let said = format!("{frame}: {from}, {at} to {to}, {into}");
                            assert!(is_noticed(data, &all, durable), "{said}");
                            damaged += usize::from(open(data).is_err());
                            fs::write(path, whole).unwrap();
                        }
                    }
                }
            }
        }
        assert!(damaged > 100, "{damaged}");
        assert_eq!(open(data).unwrap().1, all);
    }
}

/// A segment holds what an older one held that is discarded since, in whole or in some of its blocks; or it is where another should be.
#[test]
fn segments_of_another_time_are_damage() {
    let place = scratch();
    let data = place.path();
    let (all, _) = written(data, BLOCK);
    let older = segments(data);
    let (mut wal, _) = open(data).unwrap();
    let last = all.len() as u64;
    let head = wal::Record::new(LogIndex(last), Seq(0), Bytes::from_static(b"head"));
    wal.rotate(std::slice::from_ref(&head)).unwrap();
    wal.discard(Seq(last)).unwrap();
    let mut all = vec![head];
    for index in last + 1..=last + 30 {
        all.push(record(index, BLOCK));
        wal.append(&all[all.len() - 1..]).unwrap();
        wal.sync().unwrap();
    }
    drop(wal);
    let newer = segments(data);
    assert!(newer.len() >= 3 && newer[0].0 > older[older.len() - 1].0);
    let durable = all.len() - 2;
    for (path, whole, end) in &newer {
        let others = older
            .iter()
            .chain(&newer)
            .filter(|(other, ..)| other != path);
        for (_, other, _) in others {
            fs::write(path, other).unwrap();
            assert!(open(data).is_err_and(|e| e.is_damage()), "{path:?}");
            for at in (0..*end - BLOCK).step_by(BLOCK) {
                let mut bytes = whole.clone();
                bytes[at..at + BLOCK].copy_from_slice(&other[at..at + BLOCK]);
                fs::write(path, bytes).unwrap();
                assert!(is_noticed(data, &all, durable), "{path:?}, {at}");
            }
        }
        fs::write(path, whole).unwrap();
    }
    assert_eq!(open(data).unwrap().1, all);
}
