//! Power cuts: of what was not synced, any part may be on the disk, in any order.

use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use quorate_state::{Layer, MemorySnapshot};
use quorate_wire::Seq;

use crate::blocks::{Blocks, Disk};
use crate::store::{Options, Store, database_on, make_tables};

const SECTOR: usize = 512;

#[derive(Clone, Debug)]
enum Change {
    Write(u64, Vec<u8>),
    Resize(u64),
    Sync,
}

/// A disk in memory that remembers what was done to it, in order.
#[derive(Clone, Debug, Default)]
struct Recorder(Arc<Mutex<(Vec<u8>, Vec<Change>)>>);

impl Recorder {
    fn apply(&self, change: Change) {
        let (image, log) = &mut *self.0.lock().unwrap();
        change.apply(image);
        log.push(change);
    }
}

impl Change {
    fn apply(&self, image: &mut Vec<u8>) {
        match self {
            Change::Write(at, data) => write(image, *at as usize, data),
            Change::Resize(bytes) => image.resize(*bytes as usize, 0),
            Change::Sync => {}
        }
    }

    /// Applies what a power cut happens to leave of the change.
    fn apply_partly(&self, image: &mut Vec<u8>, mut chance: impl FnMut(usize) -> usize) {
        match (self, chance(4)) {
            (_, 0) | (Change::Sync, _) => {}
            (Change::Write(at, data), 1) => {
                for (i, sector) in data.chunks(SECTOR).enumerate() {
                    if chance(2) == 0 {
                        write(image, *at as usize + i * SECTOR, sector);
                    }
                }
            }
            _ => self.apply(image),
        }
    }
}

fn write(image: &mut Vec<u8>, at: usize, data: &[u8]) {
    if image.len() < at + data.len() {
        image.resize(at + data.len(), 0);
    }
    image[at..at + data.len()].copy_from_slice(data);
}

impl Disk for Recorder {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().0.len() as u64)
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        self.apply(Change::Resize(bytes));
        Ok(())
    }

    fn read_exact_at(&self, out: &mut [u8], at: u64) -> io::Result<()> {
        let image = &self.0.lock().unwrap().0;
        let found = image.get(at as usize..at as usize + out.len());
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_all_at(&self, data: &[u8], at: u64) -> io::Result<()> {
        self.apply(Change::Write(at, data.to_vec()));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.apply(Change::Sync);
        Ok(())
    }
}

fn delta(seq: u64) -> Layer {
    (0..25_u64)
        .map(|i| {
            let key = Bytes::from(format!("key {}", (seq * 11 + i * 7) % 150));
            let value = vec![seq as u8; (seq * i % 41 * 300) as usize];
            (key, (i % 3 != 0).then(|| Bytes::from(value)))
        })
        .collect()
}

fn open(disk: Recorder) -> Store {
    let blocks = Blocks::on(disk, false, None).unwrap();
    let database = database_on(blocks, Options::default()).unwrap();
    Store::over(database, Path::new("disk")).unwrap()
}

/// At whatever moment the power goes, what was returned is there, what is there is whole, and the store goes on from it.
#[test]
fn power_cuts_leave_a_whole_checkpoint() {
    const CHECKPOINTS: u64 = 10;
    let disk = Recorder::default();
    let blocks = Blocks::on(disk.clone(), true, None).unwrap();
    let database = database_on(blocks, Options::default()).unwrap();
    make_tables(&database, Path::new("disk")).unwrap();
    let mut store = Store::over(database, Path::new("disk")).unwrap();
    let mut states = vec![MemorySnapshot::default()];
    // How far the log was when each checkpoint had been returned.
    let mut returned = vec![disk.0.lock().unwrap().1.len()];
    for seq in 1..=CHECKPOINTS {
        store.checkpoint(Seq(seq), &delta(seq), true).unwrap();
        states.push(states[seq as usize - 1].apply(&delta(seq)).unwrap().0);
        returned.push(disk.0.lock().unwrap().1.len());
    }
    let log = disk.0.lock().unwrap().1.clone();
    drop(store);

    let mut x = 7_u64;
    let mut chance = |below: usize| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (x >> 33) as usize % below
    };
    for _ in 0..300 {
        let cut = returned[0] + chance(log.len() - returned[0] + 1);
        let synced = log[..cut].iter().rposition(|c| matches!(c, Change::Sync));
        let synced = synced.map_or(0, |at| at + 1);
        let mut image = Vec::new();
        log[..synced].iter().for_each(|c| c.apply(&mut image));
        for change in &log[synced..cut] {
            change.apply_partly(&mut image, &mut chance);
        }

        let disk = Recorder::default();
        disk.0.lock().unwrap().0 = image;
        let mut store = open(disk);
        let newest = store.newest();
        let seq = newest.seq.0 as usize;
        let least = returned.iter().rposition(|at| *at <= cut).unwrap();
        assert!(seq == least || seq == least + 1, "{seq} {least}");
        let all = (Bound::Unbounded, Bound::Unbounded);
        let entries = newest.snapshot.range(all.0, all.1, usize::MAX).unwrap();
        assert!(entries.into_iter().eq(states[seq].entries.clone()));
        // It goes on from there, and finds the same.
        let next = delta(newest.seq.0 + 1);
        let (root, _) = store.checkpoint(newest.seq.next(), &next, true).unwrap();
        assert_eq!(root, states[seq].apply(&next).unwrap().1);
    }
}
