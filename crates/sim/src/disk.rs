//! A replica's disk: a write-ahead log of bytes, of which a crash takes what was not synced or a part of it, and a store
//! that holds the last layer that was written whole. It may be faulty: change bytes that were safe, or forget them.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use quorate_agreement::Record;
use quorate_replica::Restored;
use quorate_state::{Layer, MemorySnapshot, Snapshot};
use quorate_wire::frame::{self, End};
use quorate_wire::{Decode, Digest, Encode, LogIndex, Seq, Time};

use crate::dice::Dice;

/// What is set aside for a segment, which otherwise grows a dozen times.
const SEGMENT_BYTES: usize = 32 << 10;

/// A piece of the log; pieces are dropped whole when all their records are of places that are not needed any more.
#[derive(Debug, Default)]
struct Segment {
    bytes: Vec<u8>,
    synced: usize,
    last_place: Seq,
}

/// The log.
#[derive(Debug, Default)]
pub struct Wal {
    segments: VecDeque<Segment>,
    last: LogIndex,
    /// A stable place, and the segments up to which all may go once what comes after them is durable.
    discard: Option<(Seq, usize)>,
    syncing: bool,
    /// How far the log was when it was last cut, noted elsewhere.
    reached: LogIndex,
}

impl Wal {
    /// Appends a record.
    pub fn append(&mut self, index: LogIndex, record: &Record) {
        self.last = index;
        self.write(index, record);
    }

    fn write(&mut self, index: LogIndex, record: &Record) {
        if self.segments.is_empty() {
            self.segments.push_back(Segment::default());
        }
        let segment = self.segments.back_mut().expect("just made");
        if segment.bytes.capacity() == 0 {
            segment.bytes.reserve(SEGMENT_BYTES);
        }
        frame::write(&mut segment.bytes, index, &record.to_bytes());
        segment.last_place = segment.last_place.max(record.seq());
    }

    /// Begins a new segment with `head`; older ones with nothing above `stable` go once it is durable.
    pub fn truncate(&mut self, stable: Seq, head: &[Record]) {
        self.segments.push_back(Segment::default());
        let index = self.last;
        head.iter().for_each(|record| self.write(index, record));
        self.discard = Some((stable, self.segments.len() - 1));
    }

    /// Whether a sync is to be started now.
    pub fn wants_sync(&mut self) -> bool {
        let dirty = self.segments.iter().any(|s| s.synced < s.bytes.len());
        let start = dirty && !self.syncing;
        self.syncing |= start;
        start
    }

    /// How much a sync that starts now makes durable: the last index, and bytes of each segment.
    pub fn extent(&self) -> (LogIndex, Vec<usize>) {
        (
            self.last,
            self.segments.iter().map(|s| s.bytes.len()).collect(),
        )
    }

    /// A sync is done.
    pub fn synced(&mut self, extent: &[usize]) {
        self.syncing = false;
        for (segment, &bytes) in self.segments.iter_mut().zip(extent) {
            segment.synced = segment.synced.max(bytes);
        }
        let Some((stable, mut keep_from)) = self.discard else {
            return;
        };
        if self.segments.get(keep_from).is_none_or(|s| s.synced == 0) {
            return;
        }
        while keep_from > 0 && self.segments[0].last_place <= stable {
            self.segments.pop_front();
            keep_from -= 1;
        }
        self.discard = None;
        self.reached = self.last;
    }

    /// A crash: of the bytes not synced a random first part survives.
    fn crash(&mut self, dice: &mut Dice) {
        self.syncing = false;
        self.discard = None;
        let mut torn = false;
        for segment in &mut self.segments {
            if torn {
                segment.bytes.clear();
            }
            let loose = segment.bytes.len() - segment.synced.min(segment.bytes.len());
            let kept = dice.below(loose as u64 + 1) as usize;
            torn |= kept < loose;
            segment.bytes.truncate(segment.bytes.len() - loose + kept);
            // What is read back is cut off behind its last whole frame, and synced before it is used.
            let (frames, end) = frame::read(&Bytes::copy_from_slice(&segment.bytes));
            if end == End::Torn {
                let whole = frames.iter().map(|(_, p)| frame::HEADER_BYTES + p.len());
                segment.bytes.truncate(whole.sum());
            }
            segment.synced = segment.bytes.len();
        }
        self.segments.retain(|s| !s.bytes.is_empty());
    }

    /// A byte that was safe is another one now.
    fn rot(&mut self, dice: &mut Dice) {
        let bytes = self.segments.iter_mut().flat_map(|s| &mut s.bytes);
        let bytes: Vec<&mut u8> = bytes.collect();
        let at = dice.below(bytes.len().max(1) as u64) as usize;
        if let Some(byte) = bytes.into_iter().nth(at) {
            *byte ^= 1 << dice.below(8);
        }
    }

    /// The disk has not kept what it said was safe: records at the end are gone.
    fn lose_end(&mut self, dice: &mut Dice) {
        let segment = self.segments.back_mut();
        let Some(segment) = segment.filter(|s| !s.bytes.is_empty()) else {
            return;
        };
        let (frames, _) = frame::read(&Bytes::copy_from_slice(&segment.bytes));
        let kept = dice.below(frames.len() as u64) as usize;
        let kept = frames.iter().take(kept);
        let kept = kept.map(|(_, p)| frame::HEADER_BYTES + p.len()).sum();
        segment.bytes.truncate(kept);
        segment.synced = kept;
    }

    /// Whether it can be seen that the log is not whole: by sums, numbers, and by the note of how far it was.
    fn is_damaged(&self) -> bool {
        let mut last = None;
        for segment in &self.segments {
            let (frames, end) = frame::read(&Bytes::copy_from_slice(&segment.bytes));
            let rises = |&(index, _): &(LogIndex, Bytes)| {
                let before = last.replace(index);
                before.is_none_or(|before| index == before || index.0 == before.0 + 1)
            };
            if end != End::Clean || !frames.iter().all(rises) {
                return true;
            }
        }
        last.unwrap_or_default() < self.reached
    }

    /// The log is set aside; the new one says so.
    fn begin_again(&mut self, now: Time) {
        *self = Wal::default();
        self.write(LogIndex(0), &Record::Recovering(now));
        self.segments[0].synced = self.segments[0].bytes.len();
    }

    fn records(&mut self) -> (Vec<Record>, LogIndex) {
        let mut records = Vec::new();
        let mut last = LogIndex(0);
        for segment in &self.segments {
            let (frames, end) = frame::read(&Bytes::copy_from_slice(&segment.bytes));
            assert_eq!(end, End::Clean, "what was synced reads back");
            for (index, payload) in frames {
                last = last.max(index);
                records.push(Record::from_bytes(payload).expect("a record that was written"));
            }
        }
        self.last = last;
        (records, LogIndex(last.0 + 1))
    }

    /// Bytes that the log takes up.
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(|s| s.bytes.len()).sum()
    }
}

/// What the store holds.
#[derive(Clone, Debug)]
pub struct Content {
    /// See [`Restored::seq`].
    pub seq: Seq,
    /// See [`Restored::complete`].
    pub complete: bool,
    /// See [`Restored::root`].
    pub root: Digest,
    /// The entries and their tree.
    pub snapshot: Arc<MemorySnapshot>,
}

/// A layer on its way to the store.
#[derive(Clone, Debug)]
pub struct Write {
    /// See [`Content::seq`].
    pub seq: Seq,
    /// See [`Content::complete`].
    pub complete: bool,
    /// The writes.
    pub layer: Arc<Layer>,
}

/// Log and store of one replica.
#[derive(Debug)]
pub struct Disk {
    /// The log.
    pub wal: Wal,
    /// The store.
    pub store: Content,
    /// Layers that are not in the store yet; the first is being written.
    pub writes: VecDeque<Write>,
    /// What a new store holds.
    genesis: Content,
    /// A store that was set aside and is not believed.
    pub former: Option<Arc<MemorySnapshot>>,
    /// What was set aside by a server that recovers on purpose, and has not come back yet.
    pub aside: Option<(Wal, Content)>,
    /// The highest number of a certificate that links have seen, of each replica.
    pub certificates: Vec<u64>,
}

impl Disk {
    /// The disk of a new replica.
    pub fn new(genesis: &Layer) -> Disk {
        let (snapshot, root) = MemorySnapshot::default()
            .apply(genesis)
            .expect("an empty tree takes any layer");
        let genesis = Content {
            seq: Seq(0),
            complete: true,
            root,
            snapshot: Arc::new(snapshot),
        };
        Disk {
            wal: Wal::default(),
            store: genesis.clone(),
            writes: VecDeque::new(),
            genesis,
            former: None,
            aside: None,
            certificates: Vec::new(),
        }
    }

    /// The root of what a new store holds.
    pub fn genesis_root(&self) -> Digest {
        self.genesis.root
    }

    /// The power goes.
    pub fn crash(&mut self, dice: &mut Dice) {
        self.writes.clear();
        self.wal.crash(dice);
    }

    /// Damages the log of a server that is down, in such a way that it is seen, and sets it aside as the daemon does; now and
    /// then the store is gone as well. False where the damage could not be seen, and was not done.
    pub fn damage(&mut self, dice: &mut Dice, now: Time) -> bool {
        let whole: Vec<Vec<u8>> = self.wal.segments.iter().map(|s| s.bytes.clone()).collect();
        match dice.below(3) {
            0 => self.wal.rot(dice),
            1 => self.wal.lose_end(dice),
            _ => self.wal.reached = LogIndex(u64::MAX),
        }
        if !self.wal.is_damaged() {
            for (segment, bytes) in self.wal.segments.iter_mut().zip(whole) {
                segment.synced = bytes.len();
                segment.bytes = bytes;
            }
            return false;
        }
        self.lose_log(now);
        if dice.per_mille(250) {
            self.store = self.genesis.clone();
        }
        true
    }

    /// A value in the store of a server that is down is another, or gone, and the tree knows nothing of it.
    pub fn spoil(&mut self, key: Bytes, value: Option<Bytes>) {
        let entries = &mut Arc::make_mut(&mut self.store.snapshot).entries;
        match value {
            Some(value) => entries.insert(key, value),
            None => entries.remove(&key),
        };
    }

    /// A server that is down recovers on purpose: its log and its state are set aside, unless some are already, which are older.
    pub fn distrust(&mut self, now: Time) {
        let log = std::mem::take(&mut self.wal);
        self.aside.get_or_insert((log, self.store.clone()));
        self.lose_log(now);
    }

    /// The recovery of a server that is down comes to nothing: it goes on with what it had.
    pub fn take_back(&mut self) {
        (self.wal, self.store) = self.aside.take().expect("what was set aside");
        self.former = None;
    }

    /// The log of a server that is down is lost.
    pub fn lose_log(&mut self, now: Time) {
        self.wal.begin_again(now);
        if !self.store.complete || self.former.is_some() {
            self.store = self.genesis.clone();
        }
    }

    /// The store of a server that has lost its log is set aside, after somebody has changed it in a way that can't be seen.
    pub fn set_aside(&mut self, dice: &mut Dice) {
        let all = self
            .store
            .snapshot
            .range(Bound::Unbounded, Bound::Unbounded, usize::MAX);
        let all = all.expect("what memory holds");
        let mut changes = Layer::new();
        for _ in 0..dice.below(6) {
            let at = dice.below(all.len().max(1) as u64) as usize;
            let Some((key, value)) = all.get(at) else {
                break;
            };
            let other = match dice.below(3) {
                0 => None,
                1 => Some(Bytes::from_static(b"somebody's")),
                _ => Some([value, &b"!"[..]].concat().into()),
            };
            changes.insert(key.clone(), other);
        }
        let former = self.store.snapshot.apply(&changes).expect("its own tree");
        self.former.get_or_insert_with(|| Arc::new(former.0));
        self.store = self.genesis.clone();
    }

    /// The first layer is written. `damage` changes one of its values on the way.
    pub fn stored(&mut self, damage: bool) -> Content {
        let write = self.writes.pop_front().expect("a layer is on its way");
        let mut layer = write.layer;
        if damage && let Some(Some(value)) = Arc::make_mut(&mut layer).values_mut().next_back() {
            let mut bytes = value.to_vec();
            bytes.push(b'!');
            *value = bytes.into();
        }
        let (snapshot, root) = self.store.snapshot.apply(&layer).expect("its own tree");
        self.store = Content {
            seq: write.seq,
            complete: write.complete,
            root,
            snapshot: Arc::new(snapshot),
        };
        self.store.clone()
    }

    /// What a replica that starts finds.
    pub fn restore(&mut self) -> Restored {
        let (mut records, next_index) = self.wal.records();
        if !self.certificates.is_empty() {
            records.push(Record::Epochs(self.certificates.clone()));
        }
        let store = &self.store;
        Restored {
            seq: store.seq,
            complete: store.complete,
            root: store.root,
            snapshot: store.snapshot.clone(),
            records,
            next_index,
            former: self.former.is_some(),
        }
    }
}
