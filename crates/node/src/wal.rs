//! The write-ahead log: what a replica must not forget is on disk before it acts on it.
//!
//! The log is a directory of segments, `0000000000000001.wal` and so on, each filled with zeros and made durable
//! before it is used, so that a sync writes data and changes nothing else. Frames are those of
//! [`quorate_wire::frame`]; the format of their payloads is in `wal/segment.rs`.
//!
//! Large bodies of records are in blob segments ([`quorate_store::Blobs`]), where the rows of the state can refer to the same
//! bytes. They are durable before the frame that refers to them is written: so a frame that is whole proves that they are
//! there, and their loss is damage, never a torn write. Then the record comes without them, and says so.
//!
//! A write that a power cut tore is cut off at the next start. That is right only for what was never synced: a
//! record on which the replica may have acted must not vanish. So the first write after a sync begins with a
//! mark, and a mark behind a torn place proves damage, which is an error and not a tail.
//!
//! After a failed write or sync nothing is tried again: what the kernel still holds is unknown then.

mod bodies;
#[cfg(test)]
mod body_tests;
mod current;
mod error;
pub(crate) mod reached;
mod segment;
mod spare;
#[cfg(test)]
mod tests;
mod thread;
mod trust;

use std::collections::VecDeque;
use std::fs::{self, File, TryLockError};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use quorate_store::Blobs;
use quorate_wire::message::MAX_FRAME_BYTES;
use quorate_wire::{Body, LogIndex, Seq};

use bodies::Bodies;
use current::Current;
pub use error::WalError;
use error::io_error;
pub use reached::Reached;
use segment::{Mark, Tail};
use spare::Spare;
pub use thread::{WalEvent, WalThread};

/// The longest record, without its bodies.
pub const MAX_RECORD_BYTES: usize = MAX_FRAME_BYTES - segment::frame_bytes(0, segment::MAX_BODIES);

/// A write buffer larger than this is given back to the system after use.
const KEEP_BUFFER_BYTES: usize = 4 << 20;

/// How a log is laid out.
#[derive(Clone, Copy, Debug)]
pub struct WalOptions {
    /// Bytes of a segment. One more is kept ready, so a log takes up at least twice as many; three times, once it has begun
    /// its second.
    pub segment_bytes: u64,
}

impl Default for WalOptions {
    fn default() -> WalOptions {
        WalOptions {
            segment_bytes: 32 << 20,
        }
    }
}

/// What [`Wal::open`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Recovery {
    /// Whether an unfinished write was cut off.
    pub torn: bool,
    /// How many segments there are.
    pub segments: usize,
}

/// A record that is written, or was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its index.
    pub index: LogIndex,
    /// The place in the agreed order that it belongs to; 0 for none. A record of no place does not keep its segment: it has to
    /// be repeated in the head of a later one.
    pub seq: Seq,
    /// Its bytes.
    pub bytes: Bytes,
    /// Large parts of it, which rows of the state may share; as many as a batch has requests. None in a head.
    pub bodies: Vec<Body>,
    /// The bodies are gone or changed, and none is here.
    pub damaged: bool,
}

impl Record {
    /// A record without bodies.
    pub fn new(index: LogIndex, seq: Seq, bytes: Bytes) -> Record {
        let bodies = Vec::new();
        Record {
            index,
            seq,
            bytes,
            bodies,
            damaged: false,
        }
    }

    /// How many bytes it has, with its bodies.
    pub fn weight(&self) -> usize {
        self.bytes.len()
            + self
                .bodies
                .iter()
                .map(|body| body.bytes().len())
                .sum::<usize>()
    }
}

/// An open log, all its records in the order in which they were written, and how it was found.
pub type Opened = (Wal, Vec<Record>, Recovery);

/// A log that is open for writing. Not for several threads: [`WalThread`] takes commands from them.
#[derive(Debug)]
pub struct Wal {
    directory: PathBuf,
    options: WalOptions,
    /// Full segments, oldest first.
    closed: VecDeque<Closed>,
    current: Current,
    /// The newest segment that begins with a whole head.
    head: Option<u64>,
    spare: Spare,
    /// How much was written to a discarded segment that waits to become the spare one.
    waiting: Option<u64>,
    bodies: Bodies,
    /// The last record that was written.
    last: Option<LogIndex>,
    reached: Option<Reached>,
    /// Held for its lock.
    _lock: File,
    failed: bool,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Closed {
    number: u64,
    max_seq: Seq,
    first_blob: Option<u64>,
    /// After what was written.
    end: u64,
}

impl Wal {
    /// Opens the log in `directory`, which is made if it is not there, and reads all records in the order in which
    /// they were written. Unfinished writes at the end are cut off. Bodies are in `blobs`: no segment of these may have been
    /// removed before this returns.
    ///
    /// # Errors
    /// Any [`WalError`] but `Failed`.
    pub fn open(directory: &Path, blobs: Arc<Blobs>) -> Result<Opened, WalError> {
        Wal::open_with(directory, blobs, WalOptions::default())
    }

    /// As [`Wal::open`], with a layout of one's own.
    ///
    /// # Errors
    /// As [`Wal::open`].
    pub fn open_with(
        directory: &Path,
        blobs: Arc<Blobs>,
        options: WalOptions,
    ) -> Result<Opened, WalError> {
        fs::create_dir_all(directory).map_err(|e| io_error(directory, e))?;
        let lock = lock(directory)?;
        let numbers = segment::list(directory)?;
        let bodies = Bodies::new(blobs);
        let mut records = Vec::new();
        let mut closed = VecDeque::new();
        let mut head = None;
        let mut needed_from = None;
        let mut last = None;
        for &number in &numbers {
            let is_last = Some(&number) == numbers.last();
            let tail = if is_last {
                Tail::MayBeTorn
            } else {
                Tail::IsWhole
            };
            let mut scan = segment::read(directory, number, tail)?;
            for found in std::mem::take(&mut scan.records) {
                records.push(bodies.read(found)?);
            }
            if scan.has_head {
                head = Some(number);
            }
            needed_from = needed_from.max(scan.needed_from);
            if is_last {
                last = Some((number, scan));
            } else {
                closed.push_back(Closed {
                    number,
                    max_seq: scan.max_seq,
                    first_blob: scan.first_blob,
                    end: scan.end,
                });
            }
        }
        if let (Some(first), Some(needed)) = (numbers.first(), needed_from)
            && needed < *first
        {
            return Err(WalError::Missing(segment::path(directory, needed)));
        }
        let recovery = Recovery {
            torn: last.as_ref().is_some_and(|(_, scan)| scan.torn),
            segments: numbers.len(),
        };
        let current = match last {
            Some((number, scan)) => Current::resume(directory, number, &scan, options)?,
            None => {
                let spare = Spare::prepare(directory, options.segment_bytes);
                Current::create(directory, 1, spare)?
            }
        };
        spare::forget_waiting(directory).map_err(|e| io_error(directory, e))?;
        let wal = Wal {
            directory: directory.into(),
            options,
            closed,
            current,
            head,
            spare: Spare::prepare(directory, options.segment_bytes),
            waiting: None,
            bodies,
            last: records.last().map(|record| record.index),
            reached: None,
            _lock: lock,
            failed: false,
            buffer: Vec::new(),
        };
        wal.unpin();
        Ok((wal, records, recovery))
    }

    /// Writes records, with one system call unless a segment fills up; before it their bodies, and makes these durable. The
    /// records are so after [`Wal::sync`].
    ///
    /// # Errors
    /// Those of the disk; the log is then closed for good.
    pub fn append(&mut self, records: &[Record]) -> Result<(), WalError> {
        self.guarded(|wal| wal.append_inner(records))
    }

    /// Makes durable what was written.
    ///
    /// # Errors
    /// Those of the disk; the log is then closed for good.
    pub fn sync(&mut self) -> Result<(), WalError> {
        self.guarded(Wal::sync_inner)
    }

    /// Starts a new segment with records that repeat what must outlive the older segments: all that
    /// [`Wal::discard`] may otherwise take away.
    ///
    /// # Errors
    /// Those of the disk; the log is then closed for good.
    pub fn rotate(&mut self, head: &[Record]) -> Result<(), WalError> {
        self.guarded(|wal| wal.rotate_inner(head))
    }

    /// Removes the oldest segments of which all records belong to places up to `stable`, as far as a later segment
    /// begins with a head.
    ///
    /// # Errors
    /// Those of the disk; the log is then closed for good.
    pub fn discard(&mut self, stable: Seq) -> Result<(), WalError> {
        self.guarded(|wal| wal.discard_inner(stable))
    }

    /// From now on the log notes in another file how far it has come.
    pub fn note_in(&mut self, reached: Reached) {
        self.reached = Some(reached);
    }

    /// Notes how far the log has come: all that was written is durable.
    fn note_reached(&mut self, now: bool) -> Result<(), WalError> {
        let (Some(reached), Some(last)) = (&mut self.reached, self.last) else {
            return Ok(());
        };
        let noted = reached.note(last, now);
        noted.map_err(|e| io_error(reached.path(), e))
    }

    /// Ends the log cleanly.
    fn close(&mut self) -> Result<(), WalError> {
        self.guarded(|wal| {
            wal.sync_inner()?;
            wal.note_reached(true)
        })
    }

    /// How many segments there are.
    pub fn segments(&self) -> usize {
        self.closed.len() + 1
    }

    fn guarded(
        &mut self,
        work: impl FnOnce(&mut Wal) -> Result<(), WalError>,
    ) -> Result<(), WalError> {
        if self.failed {
            return Err(WalError::Failed);
        }
        work(self).inspect_err(|_| self.failed = true)
    }

    fn append_inner(&mut self, records: &[Record]) -> Result<(), WalError> {
        let bodies = self.bodies.write(records)?;
        for (record, bodies) in records.iter().zip(bodies) {
            let frame_bytes = segment::frame_bytes(record.bytes.len(), bodies.len());
            let frame_bytes = frame_bytes + segment::MARK_FRAME_BYTES;
            let end = self.current.end + self.buffer.len() as u64;
            if self.current.used && end + frame_bytes as u64 > self.options.segment_bytes {
                self.write_buffer()?;
                self.next_segment()?;
            }
            self.current.begin_write(&mut self.buffer);
            let (index, seq) = (record.index, record.seq);
            segment::write_record(&mut self.buffer, index, seq, &bodies, &record.bytes);
            self.current.max_seq = self.current.max_seq.max(seq);
            let first_blob = segment::first_blob(&bodies);
            self.current.first_blob = segment::lower(self.current.first_blob, first_blob);
            self.current.used = true;
            self.last = Some(index);
        }
        self.write_buffer()
    }

    fn rotate_inner(&mut self, head: &[Record]) -> Result<(), WalError> {
        self.next_segment()?;
        for record in head {
            assert!(record.bodies.is_empty());
            let (index, bytes) = (record.index, &record.bytes);
            segment::write_record(&mut self.buffer, index, Seq(0), &[], bytes);
        }
        let end = self.current.end + self.buffer.len() as u64;
        let mark = Mark::HeadEnd;
        mark.write(
            &mut self.buffer,
            self.current.number,
            end,
            self.current.nonce,
        );
        self.current.used = true;
        self.write_buffer()?;
        self.head = Some(self.current.number);
        Ok(())
    }

    fn discard_inner(&mut self, stable: Seq) -> Result<(), WalError> {
        let head = self.head.unwrap_or(0);
        let stays = |closed: &Closed| closed.number >= head || closed.max_seq > stable;
        let first = self.closed.iter().find(|closed| stays(closed));
        let first = first.map_or(self.current.number, |closed| closed.number);
        let oldest = self.closed.front().map(|closed| closed.number);
        if oldest.is_some_and(|oldest| oldest < first) {
            self.current.begin_write(&mut self.buffer);
            let end = self.current.end + self.buffer.len() as u64;
            let mark = Mark::From(first);
            mark.write(
                &mut self.buffer,
                self.current.number,
                end,
                self.current.nonce,
            );
            self.write_buffer()?;
        }
        // The head, and the mark, must be safe before what is older goes.
        self.sync_inner()?;
        self.note_reached(false)?;
        let mut removed = false;
        while let Some(oldest) = self.closed.front() {
            if oldest.number >= first {
                break;
            }
            let path = segment::path(&self.directory, oldest.number);
            if self.waiting.is_none() {
                spare::keep(&path, &self.directory).map_err(|e| io_error(&path, e))?;
                self.waiting = Some(oldest.end);
            } else {
                fs::remove_file(&path).map_err(|e| io_error(&path, e))?;
            }
            self.closed.pop_front();
            removed = true;
        }
        if removed {
            // Before it is written over: until then a power cut may give it its old name back.
            sync_directory(&self.directory)?;
            self.unpin();
            self.prepare_spare();
        }
        Ok(())
    }

    fn unpin(&self) {
        let closed = self.closed.iter().map(|closed| closed.first_blob);
        self.bodies.unpin(closed.chain([self.current.first_blob]));
    }

    fn sync_inner(&mut self) -> Result<(), WalError> {
        if !self.current.unsynced {
            return Ok(());
        }
        let path = segment::path(&self.directory, self.current.number);
        self.current
            .file
            .sync_data()
            .map_err(|e| io_error(&path, e))?;
        self.current.unsynced = false;
        self.current.mark_due = true;
        Ok(())
    }

    /// Closes the current segment, durable as it is, and goes on in the next.
    fn next_segment(&mut self) -> Result<(), WalError> {
        assert!(self.buffer.is_empty(), "the buffer belongs to one segment");
        self.sync_inner()?;
        let number = self.current.number + 1;
        let mut spare = std::mem::take(&mut self.spare);
        if spare.is_none() {
            spare = Spare::prepare(&self.directory, self.options.segment_bytes);
        }
        let next = Current::create(&self.directory, number, spare)?;
        let full = std::mem::replace(&mut self.current, next);
        self.closed.push_back(Closed {
            number: full.number,
            max_seq: full.max_seq,
            first_blob: full.first_blob,
            end: full.end,
        });
        self.prepare_spare();
        Ok(())
    }

    /// Has the next segment prepared: from a discarded one, unless none is there and none will be in time.
    fn prepare_spare(&mut self) {
        if !self.spare.is_none() {
            return;
        }
        let bytes = self.options.segment_bytes;
        if let Some(used) = self.waiting.take() {
            self.spare = Spare::recycle(&self.directory, bytes, used);
        } else if self.closed.len() < 2 || self.current.end >= bytes / 2 {
            self.spare = Spare::prepare(&self.directory, bytes);
        }
    }

    fn write_buffer(&mut self) -> Result<(), WalError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let path = || segment::path(&self.directory, self.current.number);
        self.current
            .file
            .write_all_at(&self.buffer, self.current.end)
            .map_err(|e| io_error(&path(), e))?;
        self.current.end += self.buffer.len() as u64;
        self.current.unsynced = true;
        self.buffer.clear();
        self.buffer.shrink_to(KEEP_BUFFER_BYTES);
        self.prepare_spare();
        Ok(())
    }
}

fn lock(directory: &Path) -> Result<File, WalError> {
    let path = directory.join("lock");
    let file = File::create(&path).map_err(|e| io_error(&path, e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(WalError::InUse(directory.into())),
        Err(TryLockError::Error(e)) => Err(io_error(&path, e)),
    }
}

fn sync_directory(directory: &Path) -> Result<(), WalError> {
    File::open(directory)
        .and_then(|d| d.sync_all())
        .map_err(|e| io_error(directory, e))
}
