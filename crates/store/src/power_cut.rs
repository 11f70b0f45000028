//! Power cuts: of what was not synced, any part may be on the disk, in any order. And syncs that fail, after which the system takes for written
//! what is not.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use quorate_state::{Layer, MemorySnapshot};
use quorate_wire::Seq;

use crate::blobs::{Appender, Blobs, Directory};
use crate::blocks::{Blocks, Disk};
use crate::store::{Options, Store, database_on, make_tables};

const SECTOR: usize = 512;
/// The store's own file; the others are blob segments.
const STORE: u64 = 0;
/// Both slots of its header.
const HEADER_BYTES: u64 = 8192;

#[derive(Clone, Debug)]
enum What {
    Create,
    Write(u64, Vec<u8>),
    Resize(u64),
    Sync,
    /// A sync that failed: what was done since the one before is in memory alone, and stays so.
    Failed,
    Remove,
}

type Files = BTreeMap<u64, Vec<u8>>;
/// What was done to which file.
type Change = (u64, What);

/// A disk in memory that remembers what was done to it, in order.
#[derive(Clone, Debug, Default)]
struct Recorder(Arc<Mutex<(Files, Vec<Change>)>>, Failing);

/// How many syncs of the store's file go well until one fails.
type Failing = Arc<Mutex<Option<usize>>>;

#[derive(Clone, Debug)]
struct OneFile(Recorder, u64);

impl Recorder {
    fn apply(&self, file: u64, what: What) {
        let (files, log) = &mut *self.0.lock().unwrap();
        apply(&what, file, files);
        log.push((file, what));
    }

    fn log(&self) -> Vec<Change> {
        self.0.lock().unwrap().1.clone()
    }

    fn done(&self) -> usize {
        self.0.lock().unwrap().1.len()
    }
}

fn apply(what: &What, file: u64, files: &mut Files) {
    let content = files.entry(file).or_default();
    match what {
        What::Create | What::Sync | What::Failed => {}
        What::Write(at, data) => write(content, *at as usize, data),
        What::Resize(bytes) => content.resize(*bytes as usize, 0),
        What::Remove => drop(files.remove(&file)),
    }
}

/// Applies what a power cut happens to leave of a change.
fn apply_partly(what: &What, file: u64, files: &mut Files, mut chance: impl FnMut(usize) -> usize) {
    match (what, chance(4)) {
        (What::Create, _) => apply(what, file, files),
        (_, 0) | (What::Sync | What::Failed, _) => {}
        (What::Write(at, data), 1) => {
            for (i, sector) in data.chunks(SECTOR).enumerate() {
                if chance(2) == 0 {
                    let content = files.entry(file).or_default();
                    write(content, *at as usize + i * SECTOR, sector);
                }
            }
        }
        _ => apply(what, file, files),
    }
}

/// What is on the disk when this was done to it.
fn on_disk(log: &[Change], mut chance: impl FnMut(usize) -> usize) -> Files {
    let mut synced = BTreeMap::new();
    for (at, (file, what)) in log.iter().enumerate() {
        if matches!(what, What::Sync) {
            synced.insert(*file, at);
        }
    }
    let mut files = Files::new();
    for (at, (file, what)) in log.iter().enumerate() {
        let mut syncs = log[at..]
            .iter()
            .filter(|(of, what)| of == file && matches!(what, What::Sync | What::Failed));
        let is_lost = matches!(syncs.next(), Some((_, What::Failed)));
        match synced.get(file) {
            // How long a file is does not come by its pages.
            _ if is_lost && !matches!(what, What::Resize(_)) => {}
            Some(synced) if at <= *synced => apply(what, *file, &mut files),
            _ => apply_partly(what, *file, &mut files, &mut chance),
        }
    }
    files
}

fn write(image: &mut Vec<u8>, at: usize, data: &[u8]) {
    if image.len() < at + data.len() {
        image.resize(at + data.len(), 0);
    }
    image[at..at + data.len()].copy_from_slice(data);
}

impl Disk for OneFile {
    fn bytes(&self) -> io::Result<u64> {
        let files = &self.0.0.lock().unwrap().0;
        Ok(files.get(&self.1).map_or(0, |content| content.len() as u64))
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        self.0.apply(self.1, What::Resize(bytes));
        Ok(())
    }

    fn read_exact_at(&self, out: &mut [u8], at: u64) -> io::Result<()> {
        let files = &self.0.0.lock().unwrap().0;
        let content = files.get(&self.1).ok_or(io::ErrorKind::NotFound)?;
        let found = content.get(at as usize..at as usize + out.len());
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_all_at(&self, data: &[u8], at: u64) -> io::Result<()> {
        self.0.apply(self.1, What::Write(at, data.to_vec()));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut left = self.0.1.lock().unwrap();
        if self.1 == STORE && *left == Some(0) {
            *left = None;
            self.0.apply(self.1, What::Failed);
            return Err(io::Error::other("it can't be written"));
        }
        if self.1 == STORE {
            *left = left.map(|left| left - 1);
        }
        self.0.apply(self.1, What::Sync);
        Ok(())
    }

    fn forget_cached(&self) {
        let (files, log) = &mut *self.0.0.lock().unwrap();
        let mut on_disk = on_disk(log, |_| 0);
        files.insert(self.1, on_disk.remove(&self.1).unwrap_or_default());
    }
}

impl Directory for Recorder {
    fn list(&self) -> io::Result<BTreeMap<u64, u64>> {
        let files = &self.0.lock().unwrap().0;
        let segments = files.iter().filter(|(file, _)| **file != STORE);
        Ok(segments
            .map(|(file, content)| (*file, content.len() as u64))
            .collect())
    }

    fn create(&self, number: u64) -> io::Result<Arc<dyn Disk>> {
        self.apply(number, What::Create);
        Ok(Arc::new(OneFile(self.clone(), number)))
    }

    fn open(&self, number: u64) -> io::Result<Arc<dyn Disk>> {
        Ok(Arc::new(OneFile(self.clone(), number)))
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        self.apply(number, What::Remove);
        Ok(())
    }
}

/// Some values are large: of these the log has written some before.
fn delta(seq: u64) -> Layer {
    (0..25_u64)
        .map(|i| {
            let key = Bytes::from(format!("key {}", (seq * 11 + i * 7) % 150));
            let bytes = match i % 4 {
                0 => 33_000 + seq + i / 4,
                _ => seq * i % 41 * 300,
            };
            let value = vec![seq as u8; bytes as usize];
            (key, (i % 3 != 0).then(|| Bytes::from(value)))
        })
        .collect()
}

fn blobs(disk: &Recorder) -> Arc<Blobs> {
    let blobs = Blobs::over(Path::new("blobs"), Box::new(disk.clone()), 150_000).unwrap();
    blobs.unpin_below(u64::MAX);
    blobs
}

fn open(disk: Recorder) -> Store {
    let blobs = blobs(&disk);
    let blocks = Blocks::on(OneFile(disk, STORE), false, None).unwrap();
    let database = database_on(blocks, Options::default()).unwrap();
    Store::over(database, blobs, Path::new("disk")).unwrap()
}

fn create(disk: &Recorder, blobs: &Arc<Blobs>) -> Store {
    let blocks = Blocks::on(OneFile(disk.clone(), STORE), true, None).unwrap();
    let database = database_on(blocks, Options::default()).unwrap();
    make_tables(&database, Path::new("disk")).unwrap();
    Store::over(database, blobs.clone(), Path::new("disk")).unwrap()
}

fn chance() -> impl FnMut(usize) -> usize {
    let mut x = 7_u64;
    move |below| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (x >> 33) as usize % below
    }
}

/// What a store on a disk with these files has.
fn found_on(files: Files) -> Store {
    let disk = Recorder::default();
    for (file, content) in files {
        disk.apply(file, What::Create);
        disk.apply(file, What::Write(0, content));
        disk.apply(file, What::Sync);
    }
    open(disk)
}

#[track_caller]
fn assert_has(store: &Store, state: &MemorySnapshot) {
    let all = (Bound::Unbounded, Bound::Unbounded);
    let entries = store.newest().snapshot.range(all.0, all.1, usize::MAX);
    assert!(entries.unwrap().into_iter().eq(state.entries.clone()));
}

/// At whatever moment the power goes, what was returned is there, what is there is whole, and the store goes on from it.
#[test]
fn power_cuts_leave_a_whole_checkpoint() {
    const CHECKPOINTS: u64 = 14;
    let disk = Recorder::default();
    let blobs = blobs(&disk);
    let mut store = create(&disk, &blobs);
    let mut log = Appender::pinning(blobs.clone());
    let mut states = vec![MemorySnapshot::default()];
    // How far the disk was when each checkpoint had been returned.
    let mut returned = vec![disk.done()];
    for seq in 1..=CHECKPOINTS {
        let delta = delta(seq);
        for value in delta
            .values()
            .flatten()
            .filter(|v| v.len() > 33_000 && v.len() % 2 == 1)
        {
            let place = log.append(value).unwrap();
            log.sync().unwrap();
            blobs.remember(value.clone().into(), place, Seq(seq));
        }
        store.checkpoint(Seq(seq), &delta, true).unwrap();
        blobs.unpin_below(log.current().unwrap());
        states.push(states[seq as usize - 1].apply(&delta).unwrap().0);
        returned.push(disk.done());
    }
    let log = disk.log();
    drop(store);
    let count = |wanted: fn(&What) -> bool| log.iter().filter(|(_, what)| wanted(what)).count();
    assert!(count(|what| matches!(what, What::Create)) > 10);
    assert!(count(|what| matches!(what, What::Remove)) > 5);

    let mut chance = chance();
    for _ in 0..300 {
        let cut = returned[0] + chance(log.len() - returned[0] + 1);
        let mut store = found_on(on_disk(&log[..cut], &mut chance));
        let newest = store.newest();
        let seq = newest.seq.0 as usize;
        let least = returned.iter().rposition(|at| *at <= cut).unwrap();
        assert!(seq == least || seq == least + 1, "{seq} {least}");
        assert_has(&store, &states[seq]);
        // It goes on from there, and finds the same.
        let next = delta(newest.seq.0 + 1);
        let (root, _) = store.checkpoint(newest.seq.next(), &next, true).unwrap();
        assert_eq!(root, states[seq].apply(&next).unwrap().1);
    }
}

/// After a sync that failed the store is opened again, and goes on from what is on the disk, not from what the system has in memory: at whatever
/// moment the power goes then, what was returned is there and what is there is whole.
#[test]
fn a_sync_that_failed_is_no_ground_to_build_on() {
    let mut chance = chance();
    for good in 0.. {
        let disk = Recorder::default();
        let mut store = create(&disk, &blobs(&disk));
        let mut states = vec![MemorySnapshot::default()];
        for seq in 1..=4 {
            let delta = delta(seq);
            states.push(states[seq as usize - 1].apply(&delta).unwrap().0);
            if seq == 4 {
                *disk.1.lock().unwrap() = Some(good);
            }
            let stored = store.checkpoint(Seq(seq), &delta, true);
            assert_eq!(stored.is_ok(), disk.1.lock().unwrap().is_some() || seq < 4);
        }
        drop(store);
        if disk.1.lock().unwrap().is_some() {
            assert!(good > 1, "a checkpoint has more than one sync");
            return;
        }
        let mut store = open(disk.clone());
        let first = store.newest().seq.0;
        assert!(first == 3 || first == 4);
        let before = states.swap_remove(first as usize);
        assert_has(&store, &before);
        let next = delta(first + 1);
        let (after, _) = before.apply(&next).unwrap();
        store.checkpoint(Seq(first + 1), &next, true).unwrap();
        let returned = disk.done();
        drop(store);
        let log = disk.log();
        let is_failure = |(_, what): &Change| matches!(what, What::Failed);
        let failed = log.iter().position(is_failure).unwrap();
        let writes_header = |(file, what): &Change| {
            *file == STORE && matches!(what, What::Write(at, _) if *at < HEADER_BYTES)
        };
        for cut in failed + 1..=log.len() {
            // A header can be torn in many ways.
            let tries = match log[..cut].last().is_some_and(writes_header) {
                true => 24,
                false => 1,
            };
            for _ in 0..tries {
                let store = found_on(on_disk(&log[..cut], &mut chance));
                let seq = store.newest().seq.0;
                let is_kept = seq == first + 1 || seq == first && cut < returned;
                assert!(is_kept, "{seq} after {first}");
                let is_after = seq > first;
                assert_has(&store, if is_after { &after } else { &before });
            }
        }
    }
}
