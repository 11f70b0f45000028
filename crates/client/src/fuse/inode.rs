//! Write-back of one file: neighbouring writes become one operation, and several operations are under way.
//!
//! A write goes into the *buffer*. When the buffer is full, old, or the next write does not continue it, it is
//! *sealed* into the queue, and leaves it when there is room among those *under way* and none of them overlaps
//! it. So bytes that were written twice end up as they were written last.

mod attributes;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use quorate_files::{Attr, Ino};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;

use super::granted::Granted;
use super::handles::OpenFile;
use super::holds::Held;

pub(super) use attributes::{Pending, Rights};

/// The most that one operation writes; buffers end at multiples of it.
pub(super) const BUFFER_BYTES: u64 = 1 << 20;
/// How many writes of one file are under way at once.
const MAX_UNDER_WAY: usize = 4;

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    Offset(u64),
    /// Where the file ends when the operation is executed.
    End,
}

/// Who has changed what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Who wrote it through the open file.
    Program,
    /// Somebody on this machine who has the file mapped: through which open file the kernel does not say.
    Mapping,
}

/// Who is told that writes have failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Who writes more: once of each failure, so that he can go on.
    Writer,
    /// Who syncs: once of each, also if a writer was told; and of those from before his open, if nobody was told who syncs.
    Syncer,
    /// Who closes: of all since his open of which he was not told when he synced.
    Closer,
}

#[derive(Debug)]
struct Buffer {
    file: Arc<OpenFile>,
    at: At,
    origin: Origin,
    data: BytesMut,
    budget: OwnedSemaphorePermit,
    since: Instant,
}

/// A write to be sent.
#[derive(Debug)]
pub(super) struct Sealed {
    pub file: Arc<OpenFile>,
    pub at: At,
    pub origin: Origin,
    pub data: Bytes,
    pub number: u64,
    /// Whether it is sent while others of before are under way, and so may come before them.
    pub is_beside: bool,
    _budget: OwnedSemaphorePermit,
}

impl Sealed {
    fn range(&self) -> (u64, u64) {
        range(self.at, self.data.len())
    }
}

#[derive(Debug, Default)]
struct State {
    buffer: Option<Buffer>,
    queue: VecDeque<Sealed>,
    under_way: Vec<(u64, (u64, u64))>,
    last_number: u64,
    failures: u64,
    failure: Option<fuser::Errno>,
    /// Up to which of them somebody was told who syncs.
    synced: u64,
    /// The file's attributes, as the newest answer told them that was to an own operation, or that the kernel was shown.
    known: Option<Attr>,
    /// Whether the kernel has been shown that it has set-ID bits.
    shown_set_id: bool,
    /// The newest change that an own write was.
    written: u64,
    pending: Option<Pending>,
    settling: bool,
    /// When `known` was learned.
    learned: Option<Instant>,
    /// How many open files may write.
    writers: usize,
    /// Whether the file was opened for writing, or written to, and not closed since.
    is_written: bool,
}

/// A file that is open here.
#[derive(Debug)]
pub(super) struct Inode {
    pub ino: Ino,
    state: Mutex<State>,
    /// Counts finished writes, for those who wait.
    progress: watch::Sender<u64>,
    /// How often the kernel's pages have become old since it was last asked to drop them, with what it is being asked for.
    pub old_pages: AtomicUsize,
    /// Held by who sets the attributes that wait: who comes later is not to pass by.
    pub setting: tokio::sync::Mutex<()>,
    /// Whether a lock was asked for: only then a close lets locks go.
    pub locked: AtomicBool,
    /// The locks that programs of this machine have.
    pub granted: Granted,
    /// Whether the group knows that it is open.
    pub held: Held,
}

impl Inode {
    pub fn new(ino: Ino) -> Inode {
        Inode {
            ino,
            state: Mutex::default(),
            progress: watch::Sender::new(0),
            old_pages: AtomicUsize::new(0),
            setting: tokio::sync::Mutex::default(),
            locked: AtomicBool::new(false),
            granted: Granted::default(),
            held: Held::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in as much of a write as fits one buffer; gives how much. `budget` is for that much or more. Nothing of an open file that
    /// is released: nobody would send it.
    pub fn put(
        &self,
        file: &Arc<OpenFile>,
        at: At,
        data: &[u8],
        origin: Origin,
        mut budget: OwnedSemaphorePermit,
    ) -> Option<usize> {
        let mut state = self.lock();
        if file.released.load(Ordering::Acquire) {
            return None;
        }
        state.is_written = true;
        let len = data.len().min(room(at));
        let budget = budget.split(len).unwrap_or(budget);
        let fits = state
            .buffer
            .as_ref()
            .is_some_and(|b| b.origin == origin && b.takes(file, at, len));
        if !fits {
            state.seal();
        }
        match &mut state.buffer {
            Some(buffer) => {
                buffer.write(at, &data[..len]);
                buffer.budget.merge(budget);
            }
            None => {
                state.buffer = Some(Buffer {
                    file: file.clone(),
                    at,
                    origin,
                    data: BytesMut::from(&data[..len]),
                    budget,
                    since: Instant::now(),
                });
            }
        }
        if state.buffer.as_ref().is_some_and(Buffer::is_full) {
            state.seal();
        }
        Some(len)
    }

    /// An open file is released: what is put in from now on through it is refused.
    pub fn release(&self, file: &OpenFile) {
        let _state = self.lock();
        file.released.store(true, Ordering::Release);
    }

    /// Seals the buffer if it is as old as that.
    pub fn seal(&self, age: Duration) {
        let mut state = self.lock();
        if state
            .buffer
            .as_ref()
            .is_some_and(|b| b.since.elapsed() >= age)
        {
            state.seal();
        }
    }

    /// The next write to be sent, if one may be now. [`Inode::finished`] is to follow.
    pub fn next(&self) -> Option<Sealed> {
        let mut state = self.lock();
        if state.under_way.len() >= MAX_UNDER_WAY {
            return None;
        }
        let range = state.queue.front()?.range();
        let meets = |other: (u64, u64)| range.0 < other.1 && other.0 < range.1;
        if state.under_way.iter().any(|(_, other)| meets(*other)) {
            return None;
        }
        let mut next = state.queue.pop_front()?;
        next.is_beside = !state.under_way.is_empty();
        state.under_way.push((next.number, range));
        Some(next)
    }

    /// A write was answered.
    pub fn finished(&self, number: u64, failure: Option<fuser::Errno>) {
        let mut state = self.lock();
        state.under_way.retain(|(other, _)| *other != number);
        state.fail(failure);
        drop(state);
        self.progress.send_modify(|count| *count += 1);
    }

    /// Whether anything is not written yet.
    pub fn is_dirty(&self) -> bool {
        let state = self.lock();
        state.unfinished().next().is_some() || state.pending.is_some() || state.settling
    }

    /// Whether something that was sealed has not been sent yet.
    pub fn is_queued(&self) -> bool {
        !self.lock().queue.is_empty()
    }

    /// An own write was answered with these attributes.
    pub fn wrote(&self, attr: &Attr) {
        self.learn(attr);
        let mut state = self.lock();
        state.written = state.written.max(attr.change);
    }

    /// Whether an own write came after that change.
    pub fn was_written_after(&self, change: u64) -> bool {
        self.lock().written > change
    }

    /// Waits until all that was sealed by now is answered.
    pub async fn drained(&self) {
        let last = self.lock().last_number;
        self.drained_up_to(last).await;
    }

    /// Waits until all that was sealed before that write is answered.
    pub async fn drained_before(&self, number: u64) {
        self.drained_up_to(number.saturating_sub(1)).await;
    }

    async fn drained_up_to(&self, last: u64) {
        let mut progress = self.progress.subscribe();
        while self.lock().has_up_to(last) {
            if progress.changed().await.is_err() {
                return;
            }
        }
    }

    /// How many writes have failed, and up to which of them somebody was told who syncs.
    pub fn failures(&self) -> (u64, u64) {
        let state = self.lock();
        (state.failures, state.synced)
    }

    /// Why the last one failed.
    pub fn last_failure(&self) -> Option<fuser::Errno> {
        self.lock().failure
    }

    /// The last failure, if there was one of which the open file has not told yet.
    pub fn failure(&self, file: &OpenFile, told: Told) -> Option<fuser::Errno> {
        let mut state = self.lock();
        let reported = file.reported.load(Ordering::Acquire);
        let known = match told {
            Told::Writer => reported.max(file.refused.load(Ordering::Acquire)),
            Told::Syncer => reported,
            Told::Closer => reported.max(file.failed_before),
        };
        if state.failures <= known {
            return None;
        }
        match told {
            Told::Writer => file.refused.store(state.failures, Ordering::Release),
            Told::Syncer => {
                file.reported.store(state.failures, Ordering::Release);
                state.synced = state.failures;
            }
            Told::Closer => {}
        }
        state.failure
    }
}

impl State {
    fn seal(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.last_number += 1;
            self.queue.push_back(Sealed {
                file: buffer.file,
                at: buffer.at,
                origin: buffer.origin,
                data: buffer.data.freeze(),
                number: self.last_number,
                is_beside: false,
                _budget: buffer.budget,
            });
        }
    }

    /// Where writes go that are not answered yet.
    fn unfinished(&self) -> impl Iterator<Item = (u64, u64)> {
        let buffer = self.buffer.iter().map(|b| range(b.at, b.data.len()));
        let queue = self.queue.iter().map(Sealed::range);
        let under_way = self.under_way.iter().map(|(_, range)| *range);
        buffer.chain(queue).chain(under_way)
    }

    fn fail(&mut self, failure: Option<fuser::Errno>) {
        if let Some(errno) = failure {
            // Who may only append is refused all that comes after what failed: that says nothing of why.
            let follows = errno.code() == fuser::Errno::EACCES.code();
            let is_untold = self.failures > self.synced;
            let before = self.failure.filter(|_| follows && is_untold);
            self.failures += 1;
            self.failure = before.or(failure);
        }
    }

    fn has_up_to(&self, last: u64) -> bool {
        self.queue.iter().any(|sealed| sealed.number <= last)
            || self.under_way.iter().any(|(number, _)| *number <= last)
    }
}

fn range(at: At, len: usize) -> (u64, u64) {
    match at {
        At::Offset(offset) => (offset, offset + len as u64),
        // May be anywhere.
        At::End => (0, u64::MAX),
    }
}

/// How much a buffer that begins there holds.
fn room(at: At) -> usize {
    match at {
        At::Offset(offset) => (BUFFER_BYTES - offset % BUFFER_BYTES) as usize,
        At::End => BUFFER_BYTES as usize,
    }
}

impl Buffer {
    fn is_full(&self) -> bool {
        self.data.len() >= room(self.at)
    }

    /// Whether a write continues this buffer, or changes what is in it.
    fn takes(&self, file: &Arc<OpenFile>, at: At, len: usize) -> bool {
        if !Arc::ptr_eq(&self.file, file) {
            return false;
        }
        match (self.at, at) {
            (At::Offset(start), At::Offset(offset)) => {
                let end = start + self.data.len() as u64;
                let capacity = start + room(self.at) as u64;
                (start..=end).contains(&offset) && offset + len as u64 <= capacity
            }
            (At::End, At::End) => self.data.len() + len <= room(self.at),
            (At::Offset(_), At::End) | (At::End, At::Offset(_)) => false,
        }
    }

    fn write(&mut self, at: At, data: &[u8]) {
        let from = match (self.at, at) {
            (At::Offset(start), At::Offset(offset)) => (offset - start) as usize,
            _ => self.data.len(),
        };
        let inside = data.len().min(self.data.len() - from);
        self.data[from..from + inside].copy_from_slice(&data[..inside]);
        self.data.extend_from_slice(&data[inside..]);
    }
}
