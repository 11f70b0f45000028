//! One segment's bytes.
//!
//! A record's frame holds its place in the agreed order (`u64`, little-endian), where its bodies are (a list of
//! [`BodyRef`]), and its bytes. A frame with the index 2^64-1 is a mark: 16 bytes of magic, the kind, the segment's number, the frame's own offset, and
//! the segment's nonce. The nonce is random, so that no client can put bytes into a request that pass for a mark.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use quorate_store::Place;
use quorate_wire::frame::{self, HEADER_BYTES};
use quorate_wire::message::MAX_BATCH_REQUESTS;
use quorate_wire::{Decode, Encode, LogIndex, Reader, Seq, record};
use rustix::fs::{Advice, fadvise};

use super::error::{WalError, io_error};

/// Bytes before a record that has no bodies: its place, and the length of the list.
const HEAD_BYTES: usize = 8 + 4;
/// Bytes of a [`BodyRef`].
const REF_BYTES: usize = 20 + 4;
/// The most bodies of a record: as many as a batch has requests.
pub(super) const MAX_BODIES: usize = MAX_BATCH_REQUESTS;
/// Bytes of a mark's whole frame.
pub(super) const MARK_FRAME_BYTES: usize = HEADER_BYTES + MARK_BYTES;

const MARK_BYTES: usize = 16 + 1 + 8 + 8 + NONCE_BYTES;
const NONCE_BYTES: usize = 16;
const MARK_INDEX: LogIndex = LogIndex(u64::MAX);
const MAGIC: &[u8; 16] = b"quorate log mark";

record! {
    /// Where a body is, and what it is.
    pub struct BodyRef {
        /// In which blob segment, and where there.
        pub place: Place,
        /// CRC-32 over its bytes.
        pub sum: u32,
    }
}

/// What tells a segment's marks from bytes that only look so.
pub(super) type Nonce = [u8; NONCE_BYTES];

/// What a mark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// The segment begins.
    Start,
    /// The head is whole: what stands before it repeats all that older segments hold for no place.
    HeadEnd,
    /// All that stands before it is durable.
    Synced,
    /// The segments before this one are about to be removed: this one, and all that follow, are needed.
    From(u64),
}

impl Mark {
    /// Appends the mark's frame, which will lie at `offset` of segment `number`.
    pub fn write(self, out: &mut Vec<u8>, number: u64, offset: u64, nonce: Nonce) {
        let mut payload = Vec::with_capacity(MARK_BYTES);
        payload.extend_from_slice(MAGIC);
        payload.push(self.kind());
        payload.extend_from_slice(&number.to_le_bytes());
        payload.extend_from_slice(&offset.to_le_bytes());
        payload.extend_from_slice(&nonce);
        if let Mark::From(first) = self {
            payload.extend_from_slice(&first.to_le_bytes());
        }
        frame::write(out, MARK_INDEX, &payload);
    }

    fn kind(self) -> u8 {
        match self {
            Mark::Start => 1,
            Mark::HeadEnd => 2,
            Mark::Synced => 3,
            Mark::From(_) => 4,
        }
    }

    /// The mark in a payload that lies at `offset` of segment `number`.
    fn parse(payload: &[u8], number: u64, offset: u64) -> Option<(Mark, Nonce)> {
        let rest = payload.strip_prefix(MAGIC)?;
        let (&kind, rest) = rest.split_first()?;
        let rest = rest.strip_prefix(&number.to_le_bytes())?;
        let rest = rest.strip_prefix(&offset.to_le_bytes())?;
        let (nonce, first) = rest.split_at_checked(NONCE_BYTES)?;
        let mark = match (kind, first) {
            (1, []) => Mark::Start,
            (2, []) => Mark::HeadEnd,
            (3, []) => Mark::Synced,
            (4, first) => Mark::From(u64::from_le_bytes(first.try_into().ok()?)),
            _ => return None,
        };
        Some((mark, nonce.try_into().ok()?))
    }
}

/// A nonce for a new segment.
pub(super) fn new_nonce() -> io::Result<Nonce> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(|e| io::Error::other(e.to_string()))?;
    Ok(nonce)
}

/// Bytes of the frame of a record.
pub(super) const fn frame_bytes(record_bytes: usize, bodies: usize) -> usize {
    HEADER_BYTES + HEAD_BYTES + bodies * REF_BYTES + record_bytes
}

/// Appends a record's frame.
pub(super) fn write_record(
    out: &mut Vec<u8>,
    index: LogIndex,
    seq: Seq,
    bodies: &[BodyRef],
    record: &[u8],
) {
    assert_ne!(index, MARK_INDEX);
    assert!(bodies.len() <= MAX_BODIES);
    let head = HEAD_BYTES + bodies.len() * REF_BYTES;
    let mut payload = Vec::with_capacity(head + record.len());
    seq.encode(&mut payload);
    bodies.encode(&mut payload);
    payload.extend_from_slice(record);
    frame::write(out, index, &payload);
}

/// A record as a segment has it.
#[derive(Debug)]
pub(super) struct Found {
    pub index: LogIndex,
    pub seq: Seq,
    pub bodies: Vec<BodyRef>,
    pub bytes: Bytes,
}

impl Found {
    fn parse(index: LogIndex, payload: &Bytes) -> Option<Found> {
        let mut r = Reader::new(payload.clone());
        let seq = Seq::decode(&mut r).ok()?;
        let bodies = Vec::<BodyRef>::decode(&mut r).ok()?;
        let bytes = r.take(r.remaining()).ok()?;
        Some(Found {
            index,
            seq,
            bodies,
            bytes,
        })
    }
}

/// Whether a segment may end in an unfinished write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tail {
    MayBeTorn,
    IsWhole,
}

/// What a segment holds.
#[derive(Debug)]
pub(super) struct Scan {
    pub records: Vec<Found>,
    pub max_seq: Seq,
    /// The first blob segment that a record refers to.
    pub first_blob: Option<u64>,
    pub has_head: bool,
    /// The first segment that was still needed when this was written last.
    pub needed_from: Option<u64>,
    /// None if not even its start was written.
    pub nonce: Option<Nonce>,
    /// After the last whole frame.
    pub end: u64,
    /// After the last byte that is not 0; not before `end`.
    pub dirty_end: u64,
    pub torn: bool,
}

/// The path of a segment.
pub(super) fn path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number:016}.wal"))
}

/// The numbers of the segments in rising order, without gaps.
pub(super) fn list(directory: &Path) -> Result<Vec<u64>, WalError> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory).map_err(|e| io_error(directory, e))? {
        let name = entry.map_err(|e| io_error(directory, e))?.file_name();
        let number = name.to_str().and_then(|n| n.strip_suffix(".wal"));
        let number = number.filter(|n| n.len() == 16 && n.bytes().all(|b| b.is_ascii_digit()));
        numbers.extend(number.and_then(|n| n.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    match numbers.windows(2).find(|pair| pair[0] + 1 != pair[1]) {
        Some(pair) => Err(WalError::Missing(path(directory, pair[0] + 1))),
        None => Ok(numbers),
    }
}

/// Reads a segment.
pub(super) fn read(directory: &Path, number: u64, tail: Tail) -> Result<Scan, WalError> {
    let path = path(directory, number);
    let bytes = Bytes::from(read_from_disk(&path).map_err(|e| io_error(&path, e))?);
    scan(&bytes, number, tail).map_err(|offset| WalError::Damaged {
        segment: path,
        offset,
    })
}

/// After a sync that failed Linux takes the pages for clean, and goes on to show what never came to the disk. A replica that ended for such a sync has said
/// nothing that rests on it; if it believed that when it starts again, it would. So what is to be written is, and the rest is forgotten before it is read. Records'
/// bodies, in blobs, need none of this: one that is gone after a power cut is damage, and the replica recovers.
fn read_from_disk(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.sync_all()?;
    // Not every file system knows of this; one in memory has nothing else.
    let _ = fadvise(&file, 0, None, Advice::DontNeed);
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a segment's bytes; fails with the offset of what was durable and is damaged.
fn scan(bytes: &Bytes, number: u64, tail: Tail) -> Result<Scan, u64> {
    let (frames, _) = frame::read(bytes);
    let mut scan = Scan {
        records: Vec::with_capacity(frames.len()),
        max_seq: Seq(0),
        first_blob: None,
        has_head: false,
        needed_from: None,
        nonce: None,
        end: 0,
        dirty_end: 0,
        torn: false,
    };
    for (index, payload) in frames {
        scan.take(index, &payload, number)?;
    }
    let written = bytes.iter().rposition(|&b| b != 0).map_or(0, |at| at + 1);
    scan.dirty_end = scan.end.max(written as u64);
    scan.torn = scan.dirty_end > scan.end;
    let lost = match tail {
        Tail::IsWhole => scan.torn || scan.nonce.is_none(),
        Tail::MayBeTorn => scan.torn && synced_later(bytes, number, &scan),
    };
    if lost { Err(scan.end) } else { Ok(scan) }
}

impl Scan {
    /// Takes one whole frame. A frame that we can't have written here is damage, though its checksum is right.
    fn take(&mut self, index: LogIndex, payload: &Bytes, number: u64) -> Result<(), u64> {
        if index == MARK_INDEX {
            let (mark, nonce) = Mark::parse(payload, number, self.end).ok_or(self.end)?;
            if self.nonce.is_some_and(|n| n != nonce) || (mark == Mark::Start) != (self.end == 0) {
                return Err(self.end);
            }
            self.nonce = Some(nonce);
            self.has_head |= mark == Mark::HeadEnd;
            if let Mark::From(first) = mark {
                self.needed_from = Some(first);
            }
        } else {
            let found = Found::parse(index, payload).ok_or(self.end)?;
            if self.nonce.is_none() {
                return Err(self.end);
            }
            self.max_seq = self.max_seq.max(found.seq);
            self.first_blob = lower(self.first_blob, first_blob(&found.bodies));
            self.records.push(found);
        }
        self.end += (HEADER_BYTES + payload.len()) as u64;
        Ok(())
    }
}

/// The first blob segment among bodies.
pub(super) fn first_blob(bodies: &[BodyRef]) -> Option<u64> {
    bodies.iter().map(|body| body.place.segment).min()
}

/// The lower of two, if there are any.
pub(super) fn lower(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}

/// Whether a mark behind the end says that what stands at the end was durable.
fn synced_later(bytes: &Bytes, number: u64, scan: &Scan) -> bool {
    let from = scan.end as usize;
    let places = bytes[from..]
        .windows(MAGIC.len())
        .enumerate()
        .filter(|(_, window)| window == MAGIC);
    for (at, _) in places {
        let Some(start) = (from + at).checked_sub(HEADER_BYTES) else {
            continue;
        };
        let Some(_) = bytes.get(start..start + MARK_FRAME_BYTES) else {
            continue;
        };
        let (frames, _) = frame::read(&bytes.slice(start..start + MARK_FRAME_BYTES));
        let Some((MARK_INDEX, payload)) = frames.first() else {
            continue;
        };
        match Mark::parse(payload, number, start as u64) {
            // Without a start there is no nonce to compare.
            Some((Mark::Synced, nonce)) if scan.nonce.is_none_or(|n| n == nonce) => return true,
            _ => {}
        }
    }
    false
}
