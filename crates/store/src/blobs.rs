//! Blob segments: where large values lie, once.
//!
//! A large operation comes to a replica's disk twice: with the record of the vote for it, and as rows of the state. Both only
//! refer to its bytes here. A segment is a file of such bytes, one after the other, without anything between them; who
//! refers to them checks them. Segments are numbered in the order in which they are begun, and only grow at their end,
//! in the process that began them.
//!
//! A segment goes when no row refers to it (`space.rs`), and when it is not *pinned* by the log. All that is there is
//! pinned until the log has said what it needs: see [`Blobs::unpin_below`].

mod directory;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use quorate_wire::{Body, Digest, Seq, record};

use crate::blocks::Disk;
pub(crate) use directory::Directory;
use directory::{OnDisk, make_directory, name};

/// From this length on bytes are written to a segment. Below it, a reference and a second sync would cost more than to
/// write them twice.
pub const LARGE_BYTES: usize = 32 << 10;

/// A segment that has grown to this is followed by the next.
const SEGMENT_BYTES: u64 = 64 << 20;
/// No value is longer.
const LONGEST_READ: u64 = SEGMENT_BYTES;
/// The most bytes of a former store that are kept for rows to refer to them: what a transfer gathers and what is being stored.
const MAX_OFFERED_BYTES: usize = 64 << 20;
/// How many files are kept open for reading.
const OPEN_FILES: usize = 64;

record! {
    /// Where bytes lie.
    #[derive(Copy)]
    pub struct Place {
        /// The segment.
        pub segment: u64,
        /// The first byte.
        pub offset: u64,
        /// How many.
        pub length: u32,
    }
}

/// Why a segment can't be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}")]
pub struct BlobError {
    /// Its file.
    pub path: PathBuf,
    /// What the operating system said; `NotFound` and `UnexpectedEof` if bytes are gone.
    pub source: io::Error,
}

/// The segments of one replica: shared by its log, its store, and all snapshots.
#[derive(Debug)]
pub struct Blobs {
    path: PathBuf,
    directory: Box<dyn Directory>,
    segment_bytes: u64,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    segments: BTreeMap<u64, Segment>,
    next: u64,
    /// Files that are open for reading.
    open: BTreeMap<u64, Arc<dyn Disk>>,
    /// Bytes that were hashed in pieces, and that rows may come to refer to where the log wrote them; by their address.
    recent: BTreeMap<usize, Recent>,
    /// Bytes that a former store has, which rows may come to refer to.
    offered: VecDeque<Offered>,
    offered_bytes: usize,
    /// How many hold all segments.
    holds: usize,
}

/// Keeps all segments while it is there: what is not the store's own may refer to them.
#[derive(Debug)]
#[must_use]
pub struct Hold(Arc<Blobs>);

impl Drop for Hold {
    /// The last one forgets what a former store has offered.
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.holds -= 1;
        if inner.holds == 0 {
            inner.offered.clear();
            inner.offered_bytes = 0;
        }
    }
}

#[derive(Debug)]
struct Segment {
    bytes: u64,
    pinned: bool,
}

#[derive(Debug)]
struct Recent {
    body: Body,
    /// Where the log has them.
    place: Option<Place>,
    seq: Seq,
}

#[derive(Debug)]
struct Offered {
    bytes: Bytes,
    digest: Digest,
    place: Place,
}

impl Offered {
    /// Whether it is these bytes in memory. Both are alive, so the addresses are those of the same bytes.
    fn is(&self, value: &Bytes) -> bool {
        self.bytes.as_ptr().addr() == value.as_ptr().addr() && self.bytes.len() == value.len()
    }
}

impl Inner {
    /// What was written lately of which a value is a part, and where in it that begins. Both are alive, as above.
    fn recent(&self, value: &Bytes) -> Option<(&Recent, usize)> {
        let address = value.as_ptr().addr();
        let (start, recent) = self.recent.range(..=address).next_back()?;
        let from = address - start;
        (from + value.len() <= recent.body.bytes().len()).then_some((recent, from))
    }
}

impl Blobs {
    /// Opens the segments in a directory, which is made if it is not there. One process may do so at a time; its log or
    /// store sees to that.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn open(path: &Path) -> Result<Arc<Blobs>, BlobError> {
        Blobs::open_with(path, SEGMENT_BYTES)
    }

    /// As [`Blobs::open`], with segments of another length.
    ///
    /// # Errors
    /// As [`Blobs::open`].
    pub fn open_with(path: &Path, segment_bytes: u64) -> Result<Arc<Blobs>, BlobError> {
        let named = |source| BlobError {
            path: path.to_owned(),
            source,
        };
        make_directory(path).map_err(named)?;
        let directory = OnDisk(path.to_owned());
        Blobs::over(path, Box::new(directory), segment_bytes)
    }

    pub(crate) fn over(
        path: &Path,
        directory: Box<dyn Directory>,
        segment_bytes: u64,
    ) -> Result<Arc<Blobs>, BlobError> {
        let inner = Inner {
            segments: BTreeMap::new(),
            next: 1,
            open: BTreeMap::new(),
            recent: BTreeMap::new(),
            offered: VecDeque::new(),
            offered_bytes: 0,
            holds: 0,
        };
        let blobs = Blobs {
            path: path.to_owned(),
            directory,
            segment_bytes,
            inner: Mutex::new(inner),
        };
        blobs.list()?;
        Ok(Arc::new(blobs))
    }

    /// Looks what is there. The store does so again when its lock keeps other processes out.
    pub(crate) fn list(&self) -> Result<(), BlobError> {
        let listed = self.directory.list().map_err(|source| BlobError {
            path: self.path.clone(),
            source,
        })?;
        let mut inner = self.lock();
        let known = std::mem::take(&mut inner.segments);
        for (number, bytes) in listed {
            let pinned = known.get(&number).is_none_or(|segment| segment.pinned);
            inner.segments.insert(number, Segment { bytes, pinned });
            inner.next = inner.next.max(number + 1);
        }
        Ok(())
    }

    /// Reads bytes back. They are as the disk has them: the caller checks them.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn read(&self, place: Place) -> Result<Bytes, BlobError> {
        let read = || {
            let file = self.file(place.segment)?;
            // Before memory is taken for it: a former store's row may say anything, beside a file that is long and has nothing in it.
            if u64::from(place.length) > LONGEST_READ {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if place.offset.saturating_add(u64::from(place.length)) > file.bytes()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let bytes = file.read_new(place.length as usize, place.offset)?;
            Ok(Bytes::from(bytes))
        };
        read().map_err(|source| self.error(place.segment, source))
    }

    /// The path of a segment.
    pub fn segment_path(&self, number: u64) -> PathBuf {
        self.path.join(name(number))
    }

    /// Says that the log has written these bytes, for the place `seq` in the agreed order, and that they are durable.
    /// Rows that are slices of them need not be written again, up to the checkpoint that `seq` belongs to.
    pub fn remember(&self, body: Body, place: Place, seq: Seq) {
        self.note(body, Some(place), seq);
    }

    /// The same of bytes that no log has: only their digests are known.
    pub(crate) fn know(&self, body: Body, seq: Seq) {
        self.note(body, None, seq);
    }

    fn note(&self, body: Body, place: Option<Place>, seq: Seq) {
        let address = body.bytes().as_ptr().addr();
        let recent = Recent { body, place, seq };
        self.lock().recent.insert(address, recent);
    }

    /// New segments get numbers above this one: one that is lost must not come back with other bytes.
    pub(crate) fn begin_above(&self, number: u64) {
        let mut inner = self.lock();
        inner.next = inner.next.max(number + 1);
    }

    /// The log refers to no segment below `number`.
    pub fn unpin_below(&self, number: u64) {
        for (_, segment) in self.lock().segments.range_mut(..number) {
            segment.pinned = false;
        }
    }

    /// Where the log wrote these bytes: they are found if they are a part of what it was given, and not a copy.
    pub(crate) fn find(&self, value: &Bytes) -> Option<Place> {
        let mut inner = self.lock();
        if let Some(at) = inner.offered.iter().position(|offered| offered.is(value)) {
            let offered = inner.offered.remove(at)?;
            inner.offered_bytes -= offered.bytes.len();
            return Some(offered.place);
        }
        let (recent, from) = inner.recent(value)?;
        let place = recent.place?;
        Some(Place {
            segment: place.segment,
            offset: place.offset + from as u64,
            length: value.len() as u32,
        })
    }

    /// The digest of a value, if it was taken of these very bytes when they came: of a piece of an operation, or of what a former
    /// store has.
    pub(crate) fn digest(&self, value: &Bytes) -> Option<Digest> {
        if value.len() < LARGE_BYTES {
            return None;
        }
        let inner = self.lock();
        let offered = inner.offered.iter().find(|offered| offered.is(value));
        offered.map(|offered| offered.digest).or_else(|| {
            let (recent, from) = inner.recent(value)?;
            recent.body.piece(from, value.len())
        })
    }

    /// Says where a former store has these bytes: rows with them need not be written again, nor hashed. What is not used soon is
    /// forgotten.
    pub(crate) fn offer(&self, bytes: Bytes, digest: Digest, place: Place) {
        let mut inner = self.lock();
        inner.offered_bytes += bytes.len();
        inner.offered.push_back(Offered {
            bytes,
            digest,
            place,
        });
        while inner.offered_bytes > MAX_OFFERED_BYTES {
            let Some(oldest) = inner.offered.pop_front() else {
                break;
            };
            inner.offered_bytes -= oldest.bytes.len();
        }
    }

    /// Keeps all segments, also those to which neither the log nor the store refers, until this and all others like it are gone.
    pub fn hold(self: &Arc<Blobs>) -> Hold {
        self.lock().holds += 1;
        Hold(self.clone())
    }

    /// The checkpoint `seq` is stored: what belongs to it is not looked for again.
    pub fn forget(&self, seq: Seq) {
        self.lock().recent.retain(|_, recent| recent.seq > seq);
    }

    /// The segments that the log does not need, and how long they are.
    pub fn unpinned(&self) -> BTreeMap<u64, u64> {
        let inner = self.lock();
        if inner.holds > 0 {
            return BTreeMap::new();
        }
        let unpinned = inner.segments.iter().filter(|(_, s)| !s.pinned);
        unpinned.map(|(number, s)| (*number, s.bytes)).collect()
    }

    /// Removes a segment to which nothing refers.
    pub(crate) fn remove(&self, number: u64) -> Result<(), BlobError> {
        {
            let mut inner = self.lock();
            inner.segments.remove(&number);
            inner.open.remove(&number);
            let is_in = |place: Place| place.segment == number;
            inner.recent.retain(|_, r| !r.place.is_some_and(is_in));
        }
        match self.directory.remove(number) {
            // It was to be gone.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(|source| self.error(number, source)),
        }
    }

    fn file(&self, number: u64) -> io::Result<Arc<dyn Disk>> {
        if let Some(file) = self.lock().open.get(&number) {
            return Ok(file.clone());
        }
        let file = self.directory.open(number)?;
        let mut inner = self.lock();
        if inner.open.len() >= OPEN_FILES {
            inner.open.pop_first();
        }
        inner.open.insert(number, file.clone());
        Ok(file)
    }

    fn begin(&self, pinned: bool) -> Result<(u64, Arc<dyn Disk>), BlobError> {
        let number = {
            let mut inner = self.lock();
            let number = inner.next;
            inner.next += 1;
            // Before it is there, so that it is pinned as long as it is.
            inner.segments.insert(number, Segment { bytes: 0, pinned });
            number
        };
        let made = self.directory.create(number);
        Ok((number, made.map_err(|source| self.error(number, source))?))
    }

    fn error(&self, number: u64, source: io::Error) -> BlobError {
        let path = self.segment_path(number);
        BlobError { path, source }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes to segments of its own.
#[derive(Debug)]
pub struct Appender {
    blobs: Arc<Blobs>,
    pinned: bool,
    current: Option<Growing>,
}

#[derive(Debug)]
struct Growing {
    number: u64,
    file: Arc<dyn Disk>,
    end: u64,
    unsynced: bool,
}

impl Appender {
    /// For the log, which says by itself what it needs no more.
    pub fn pinning(blobs: Arc<Blobs>) -> Appender {
        let (pinned, current) = (true, None);
        Appender {
            blobs,
            pinned,
            current,
        }
    }

    /// For rows.
    pub(crate) fn new(blobs: Arc<Blobs>) -> Appender {
        let (pinned, current) = (false, None);
        Appender {
            blobs,
            pinned,
            current,
        }
    }

    /// The segment that it writes to.
    pub fn current(&self) -> Option<u64> {
        self.current.as_ref().map(|growing| growing.number)
    }

    /// Writes bytes. They are durable after [`Appender::sync`].
    ///
    /// # Errors
    /// Those of the disk. What is in the segment then is unknown: write no more.
    pub fn append(&mut self, bytes: &[u8]) -> Result<Place, BlobError> {
        let room = self.blobs.segment_bytes;
        let full = |growing: &Growing| growing.end > 0 && growing.end + bytes.len() as u64 > room;
        if self.current.as_ref().is_some_and(full) {
            self.sync()?;
            self.current = None;
        }
        let growing = match &mut self.current {
            Some(growing) => growing,
            None => {
                let (number, file) = self.blobs.begin(self.pinned)?;
                let (end, unsynced) = (0, false);
                self.current.insert(Growing {
                    number,
                    file,
                    end,
                    unsynced,
                })
            }
        };
        let written = growing.file.write_all_at(bytes, growing.end);
        written.map_err(|source| self.blobs.error(growing.number, source))?;
        let place = Place {
            segment: growing.number,
            offset: growing.end,
            length: bytes.len() as u32,
        };
        growing.unsynced = true;
        growing.end += bytes.len() as u64;
        if let Some(segment) = self.blobs.lock().segments.get_mut(&growing.number) {
            segment.bytes = growing.end;
        }
        Ok(place)
    }

    /// Makes durable what was written.
    ///
    /// # Errors
    /// As [`Appender::append`].
    pub fn sync(&mut self) -> Result<(), BlobError> {
        let Some(growing) = self.current.as_mut().filter(|growing| growing.unsynced) else {
            return Ok(());
        };
        let synced = growing.file.sync();
        synced.map_err(|source| self.blobs.error(growing.number, source))?;
        growing.unsynced = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_wire::body::PIECE_BYTES;
    use quorate_wire::digest::Content;

    /// What was hashed on its way here is not hashed again: the same bytes in memory, that is, and no others.
    #[test]
    fn digests_are_known_of_the_same_bytes_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(dir.path()).unwrap();
        let bytes = Bytes::from(vec![7; 3 * PIECE_BYTES + 10]);
        let piece = bytes.slice(10..10 + PIECE_BYTES);
        let digest = Some(Digest::of(Content::StateValue, &piece));
        assert_eq!(blobs.digest(&piece), None);
        let place = Place {
            segment: 1,
            offset: 0,
            length: bytes.len() as u32,
        };
        blobs.remember(bytes.clone().into(), place, Seq(1));
        assert_eq!(blobs.digest(&piece), digest);
        assert_eq!(blobs.digest(&bytes.slice(9..9 + PIECE_BYTES)), None);
        assert_eq!(blobs.digest(&bytes.slice(10..9 + PIECE_BYTES)), None);
        let copy = Bytes::copy_from_slice(&piece);
        assert_eq!(blobs.digest(&copy), None);
        blobs.forget(Seq(1));
        assert_eq!(blobs.digest(&piece), None);

        // Where no log has them, only the digest is known.
        blobs.know(bytes.clone().into(), Seq(2));
        assert_eq!((blobs.digest(&piece), blobs.find(&piece)), (digest, None));
        blobs.forget(Seq(2));
        assert_eq!(blobs.digest(&piece), None);

        // What a former store was read for is known until it is stored, whatever its length.
        let odd = bytes.slice(1..LARGE_BYTES + 1);
        let given = Digest::of(Content::StateValue, &odd);
        blobs.offer(odd.clone(), given, place);
        assert_eq!(blobs.digest(&odd), Some(given));
        assert_eq!(blobs.digest(&bytes.slice(..LARGE_BYTES)), None);
        assert_eq!(blobs.find(&odd), Some(place));
        assert_eq!(blobs.digest(&odd), None);
    }
}
