//! Rows, and the room that they take up in blob segments.
//!
//! Large values are written to segments, or lie there already because the log wrote them. Two tables say what is still
//! needed: `refs` has a key for each row that refers to a segment, and `segments` how many bytes such rows refer to. A
//! segment without any goes; from one of which most is dead, some rows are written anew elsewhere at each checkpoint.
//!
//! Rows of older snapshots are in no table any more. So a segment goes only when those snapshots have gone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use quorate_state::{Layer, Snapshot};
use quorate_wire::Digest;
use redb::{ReadableTable, Table, WriteTransaction};

use crate::blobs::{Appender, Blobs, LARGE_BYTES, Place};
use crate::error::StoreError;
use crate::rows::{self, ENTRIES, Kind, REFS, SEGMENTS};

/// How many bytes a checkpoint moves at most out of segments that are mostly dead, if it writes less itself. As many as it
/// writes are enough to keep up: a segment that is half dead gives back as much as is moved out of it.
const MOVED_BYTES: u64 = 16 << 20;

pub(crate) type WriteTable<'a> = Table<'a, &'static [u8], &'static [u8]>;

/// What the store knows about segments.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) blobs: Arc<Blobs>,
    /// For large values that the log has not written.
    appender: Appender,
    /// How many bytes rows refer to, for each segment with any.
    live: BTreeMap<u64, u64>,
    /// Counts the checkpoints of this process.
    checkpoints: u64,
    /// Snapshots that may still be read, each with its checkpoint by that count.
    snapshots: Vec<(u64, Weak<dyn Snapshot>)>,
    /// Segments without rows, each with the checkpoint since which it is so.
    empty: BTreeMap<u64, u64>,
}

impl Space {
    pub fn new(blobs: Arc<Blobs>, live: BTreeMap<u64, u64>) -> Space {
        if let Some((last, _)) = live.last_key_value() {
            blobs.begin_above(*last);
        }
        Space {
            appender: Appender::new(blobs.clone()),
            blobs,
            live,
            checkpoints: 0,
            snapshots: Vec::new(),
            empty: BTreeMap::new(),
        }
    }

    /// A snapshot was made of what is stored now.
    pub fn watch(&mut self, snapshot: &Arc<dyn Snapshot>) {
        let watched = (self.checkpoints, Arc::downgrade(snapshot));
        self.snapshots.push(watched);
    }

    /// A checkpoint is durable, and `snapshot` is of it: removes what nobody needs from here on.
    pub fn sweep(&mut self, snapshot: &Arc<dyn Snapshot>) -> Result<(), StoreError> {
        self.checkpoints += 1;
        self.watch(snapshot);
        self.snapshots.retain(|(_, held)| held.strong_count() > 0);
        let oldest = self.snapshots.iter().map(|(of, _)| *of).min();
        let oldest = oldest.unwrap_or(self.checkpoints);
        for number in self.idle().into_keys() {
            if self.live.contains_key(&number) {
                self.empty.remove(&number);
                continue;
            }
            let since = *self.empty.entry(number).or_insert(self.checkpoints);
            if since <= oldest {
                self.blobs.remove(number).map_err(StoreError::blob)?;
                self.empty.remove(&number);
            }
        }
        Ok(())
    }

    /// Segments that nobody writes to and the log does not need, and how long they are.
    fn idle(&self) -> BTreeMap<u64, u64> {
        let mut unpinned = self.blobs.unpinned();
        if let Some(current) = self.appender.current() {
            unpinned.remove(&current);
        }
        unpinned
    }

    /// Those of them of which more is dead than alive.
    fn mostly_dead(&self) -> Vec<u64> {
        let mut found = Vec::new();
        for (number, bytes) in self.idle() {
            let live = self.live.get(&number).copied().unwrap_or(0);
            if live > 0 && live < bytes - live.min(bytes) {
                found.push(number);
            }
        }
        found
    }
}

/// The state's rows in one transaction.
pub(crate) struct Entries<'t, 's> {
    entries: WriteTable<'t>,
    refs: WriteTable<'t>,
    segments: WriteTable<'t>,
    space: &'s mut Space,
    path: &'s Path,
    /// Segments whose count has changed.
    changed: BTreeSet<u64>,
    /// Bytes that rows of this checkpoint refer to.
    placed: u64,
}

impl<'t, 's> Entries<'t, 's> {
    pub fn open(
        write: &'t WriteTransaction,
        space: &'s mut Space,
        path: &'s Path,
    ) -> Result<Entries<'t, 's>, StoreError> {
        let table = |definition| {
            let table = write.open_table(definition);
            table.map_err(|e| StoreError::redb(path, e))
        };
        Ok(Entries {
            entries: table(ENTRIES)?,
            refs: table(REFS)?,
            segments: table(SEGMENTS)?,
            space,
            path,
            changed: BTreeSet::new(),
            placed: 0,
        })
    }

    /// Writes a layer, whose values have these digests, and moves what is in the way of reclaiming segments.
    pub fn write(mut self, layer: &Layer, digests: &[Option<Digest>]) -> Result<(), StoreError> {
        for ((key, content), digest) in layer.iter().zip(digests) {
            match content.as_ref().zip(*digest) {
                Some((content, digest)) => self.put(key, content, digest)?,
                None => self.delete(key)?,
            }
        }
        self.compact()?;
        for number in &self.changed {
            let key = number.to_be_bytes();
            let done = match self.space.live.get(number) {
                Some(live) => self.segments.insert(&key[..], &live.to_le_bytes()[..]),
                None => self.segments.remove(&key[..]),
            };
            done.map_err(|e| StoreError::redb(self.path, e))?;
        }
        // Before the rows that refer to it are committed.
        self.space.appender.sync().map_err(StoreError::blob)
    }

    fn put(&mut self, key: &[u8], content: &Bytes, digest: Digest) -> Result<(), StoreError> {
        if content.len() < LARGE_BYTES {
            let row = rows::seal(Kind::Entry, key, content);
            return self.insert(key, &row);
        }
        match self.space.blobs.find(content) {
            Some(place) => self.refer(key, digest, place),
            None => self.append(key, content, digest),
        }
    }

    /// Writes content to a segment, and a row that refers to it.
    fn append(&mut self, key: &[u8], content: &[u8], digest: Digest) -> Result<(), StoreError> {
        let place = self.space.appender.append(content);
        self.refer(key, digest, place.map_err(StoreError::blob)?)
    }

    fn refer(&mut self, key: &[u8], digest: Digest, place: Place) -> Result<(), StoreError> {
        let row = rows::seal_elsewhere(Kind::Entry, key, digest, place);
        self.insert(key, &row)?;
        let added = self.refs.insert(&ref_key(place, key)[..], &[][..]);
        added.map_err(|e| StoreError::redb(self.path, e))?;
        *self.space.live.entry(place.segment).or_default() += u64::from(place.length);
        self.changed.insert(place.segment);
        self.placed += u64::from(place.length);
        Ok(())
    }

    fn insert(&mut self, key: &[u8], row: &[u8]) -> Result<(), StoreError> {
        let old = self.entries.insert(key, row);
        let old = old.map_err(|e| StoreError::redb(self.path, e))?;
        let old = old.and_then(|old| rows::place(old.value()));
        self.release(key, old)
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), StoreError> {
        let old = self.entries.remove(key);
        let old = old.map_err(|e| StoreError::redb(self.path, e))?;
        let old = old.and_then(|old| rows::place(old.value()));
        self.release(key, old)
    }

    /// A row no longer refers to `place`.
    fn release(&mut self, key: &[u8], place: Option<Place>) -> Result<(), StoreError> {
        let Some(place) = place else {
            return Ok(());
        };
        let removed = self.refs.remove(&ref_key(place, key)[..]);
        removed.map_err(|e| StoreError::redb(self.path, e))?;
        let live = self.space.live.entry(place.segment).or_default();
        *live = live.saturating_sub(u64::from(place.length));
        if *live == 0 {
            self.space.live.remove(&place.segment);
        }
        self.changed.insert(place.segment);
        Ok(())
    }

    /// Writes rows anew that keep segments alone which are mostly dead.
    fn compact(&mut self) -> Result<(), StoreError> {
        let mut left = MOVED_BYTES.max(self.placed);
        for number in self.space.mostly_dead() {
            for (place, key) in self.rows_in(number, left)? {
                let row = self.entries.get(&key[..]);
                let row = row.map_err(|e| StoreError::redb(self.path, e))?;
                let found = row.as_ref().map(|row| row.value());
                let found = found.filter(|row| rows::place(row) == Some(place));
                let found = found.ok_or_else(|| StoreError::Corrupt {
                    path: self.path.to_owned(),
                    what: format!("the row {key:?} is not where a segment has it"),
                })?;
                let blobs = &self.space.blobs;
                let (content, digest) =
                    rows::read_elsewhere(Kind::Entry, &key, found, place, blobs)?;
                drop(row);
                self.append(&key, &content, digest)?;
                left = left.saturating_sub(u64::from(place.length));
            }
            if left == 0 {
                break;
            }
        }
        Ok(())
    }

    /// The first rows that refer to a segment: about `limit` bytes.
    fn rows_in(&self, number: u64, limit: u64) -> Result<Vec<(Place, Vec<u8>)>, StoreError> {
        let (from, to) = (number.to_be_bytes(), (number + 1).to_be_bytes());
        let range = self.refs.range::<&[u8]>(&from[..]..&to[..]);
        let (mut found, mut bytes) = (Vec::new(), 0);
        for row in range.map_err(|e| StoreError::redb(self.path, e))? {
            if bytes >= limit {
                break;
            }
            let (key, _) = row.map_err(|e| StoreError::redb(self.path, e))?;
            let (place, key) = parse_ref_key(key.value()).ok_or_else(|| StoreError::Corrupt {
                path: self.path.to_owned(),
                what: format!("a reference to segment {number} can't be read"),
            })?;
            bytes += u64::from(place.length);
            found.push((place, key));
        }
        Ok(found)
    }
}

/// The counts in a store that is opened.
pub(crate) fn read_live(
    table: &rows::ReadTable,
    path: &Path,
) -> Result<BTreeMap<u64, u64>, StoreError> {
    let mut live = BTreeMap::new();
    let rows = table.range::<&[u8]>(..);
    for row in rows.map_err(|e| StoreError::redb(path, e))? {
        let (key, row) = row.map_err(|e| StoreError::redb(path, e))?;
        let number = <[u8; 8]>::try_from(key.value()).map(u64::from_be_bytes);
        let bytes = <[u8; 8]>::try_from(row.value()).map(u64::from_le_bytes);
        let (Ok(number), Ok(bytes)) = (number, bytes) else {
            return Err(StoreError::Corrupt {
                path: path.to_owned(),
                what: "the count of a segment can't be read".into(),
            });
        };
        live.insert(number, bytes);
    }
    Ok(live)
}

fn ref_key(place: Place, key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(20 + key.len());
    out.extend_from_slice(&place.segment.to_be_bytes());
    out.extend_from_slice(&place.offset.to_be_bytes());
    out.extend_from_slice(&place.length.to_be_bytes());
    out.extend_from_slice(key);
    out
}

fn parse_ref_key(bytes: &[u8]) -> Option<(Place, Vec<u8>)> {
    let (segment, rest) = bytes.split_first_chunk()?;
    let (offset, rest) = rest.split_first_chunk()?;
    let (length, key) = rest.split_first_chunk()?;
    let place = Place {
        segment: u64::from_be_bytes(*segment),
        offset: u64::from_be_bytes(*offset),
        length: u32::from_be_bytes(*length),
    };
    Some((place, key.to_vec()))
}
