//! A thread for the log, which makes many records durable with one sync; and the way past it.
//!
//! To hand a small record to another thread and to be told that it is durable costs as much processor time as the sync itself, twice
//! over: two threads are woken. So where the thread has nothing to do, and the disk has been quick, whoever has the records writes and
//! syncs them itself ([`WalThread::append_now`]). A disk that is slow now and then, large records, and what takes
//! its time, such as removing segments, are for the thread, and nobody waits for it.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quorate_net::threads::{self, Panicked};
use quorate_wire::{LogIndex, Seq};

use super::trust::{self, Trust};
use super::{Record, Wal, WalError};

/// After so many bytes a sync is due, even if more records wait.
const GROUP_BYTES: usize = 16 << 20;

/// Where so many bytes wait, whoever has more waits as well.
const MOST_WAITING: usize = if cfg!(test) { 1 << 20 } else { 128 << 20 };

/// Records of more bytes than this are left to the thread.
pub(super) const NOW_BYTES: usize = 64 << 10;

/// What the log's thread says.
#[derive(Debug)]
pub enum WalEvent {
    /// All records up to this one, in the order in which they were given, are durable.
    Persisted(LogIndex),
    /// Nothing more is written, and nothing more is said: the replica must stop.
    Failed(WalError),
}

enum Command {
    Append(Vec<Record>),
    Rotate(Vec<Record>),
    Discard(Seq),
}

impl Command {
    fn bytes(&self) -> usize {
        match self {
            Command::Append(records) | Command::Rotate(records) => {
                records.iter().map(Record::weight).sum()
            }
            Command::Discard(_) => 0,
        }
    }
}

/// What the thread takes at a time.
#[derive(Debug, Default)]
struct Taken {
    commands: usize,
    bytes: usize,
}

/// Whoever waits for room does so no longer when this goes.
struct Over<'a>(&'a Shared);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.backlog().is_over = true;
        self.0.less.notify_all();
    }
}

/// The log's thread. Commands are done in order, and not waited for as long as [`MOST_WAITING`] bytes are not exceeded. The protocol alone is no bound: a replica
/// goes on by the votes of others, which have quicker disks, and its own log may fall behind without end.
#[derive(Debug)]
pub struct WalThread {
    commands: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
    disk: Trust,
}

#[derive(Debug)]
struct Shared {
    /// Who works on the log takes it and gives it back, so that nobody holds a lock while the disk does something. It is here when it is
    /// wanted: the thread takes it where there are commands, and whoever gives commands only where there are none, and
    /// gives it back before the next one.
    wal: Mutex<Option<Box<Wal>>>,
    /// Commands that the thread has not done yet.
    waiting: AtomicUsize,
    /// The thread's quick syncs in a row.
    quick: AtomicU32,
    backlog: Mutex<Backlog>,
    less: Condvar,
}

/// What the thread has not done yet.
#[derive(Debug, Default)]
struct Backlog {
    bytes: usize,
    /// There is no thread any more, so that nobody waits for it.
    is_over: bool,
}

impl Shared {
    fn take(&self) -> Option<Box<Wal>> {
        self.slot().take()
    }

    fn give_back(&self, wal: Box<Wal>) {
        *self.slot() = Some(wal);
    }

    fn backlog(&self) -> MutexGuard<'_, Backlog> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to what waits, once there is room for more.
    fn add(&self, bytes: usize) {
        let backlog = self.backlog();
        let is_full = |backlog: &mut Backlog| backlog.bytes > MOST_WAITING && !backlog.is_over;
        let room = self.less.wait_while(backlog, is_full);
        room.unwrap_or_else(PoisonError::into_inner).bytes += bytes;
    }

    /// So much is done.
    fn done(&self, bytes: usize) {
        let mut backlog = self.backlog();
        backlog.bytes = backlog.bytes.saturating_sub(bytes);
        self.less.notify_all();
    }

    fn slot(&self) -> MutexGuard<'_, Option<Box<Wal>>> {
        self.wal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WalThread {
    /// Starts the thread. `tell` is called on it, and must not wait; `died` where it panics, after which nothing more is written or said.
    ///
    /// # Errors
    /// Where the system has no more threads.
    pub fn spawn(
        wal: Wal,
        tell: impl FnMut(WalEvent) + Send + 'static,
        died: impl FnOnce(Panicked) + Send + 'static,
    ) -> io::Result<WalThread> {
        let (sender, receiver) = mpsc::channel();
        let shared = Arc::new(Shared {
            wal: Mutex::new(Some(Box::new(wal))),
            waiting: AtomicUsize::new(0),
            quick: AtomicU32::new(0),
            backlog: Mutex::default(),
            less: Condvar::new(),
        });
        let thread = {
            let shared = shared.clone();
            threads::spawn("log", died, move || run(&shared, &receiver, tell))?
        };
        Ok(WalThread {
            commands: Some(sender),
            thread: Some(thread),
            shared,
            disk: Trust::new(),
        })
    }

    /// Writes and syncs records on the caller's thread, if that is likely to be quick and nothing else waits: then they are durable, up to the
    /// index that is returned. Else they are appended as by [`WalThread::append`].
    ///
    /// # Errors
    /// Those of the disk; the log is then closed for good.
    pub fn append_now(&mut self, records: Vec<Record>) -> Result<Option<LogIndex>, WalError> {
        let last = records.last().map(|record| record.index);
        let is_small = records.iter().map(Record::weight).sum::<usize>() <= NOW_BYTES;
        let has_bodies = records.iter().any(|record| !record.bodies.is_empty());
        let is_idle = self.shared.waiting.load(Ordering::Acquire) == 0;
        let is_trusted = self
            .disk
            .is_given(self.shared.quick.load(Ordering::Acquire));
        let is_quick = is_small && !has_bodies && is_idle && is_trusted;
        let Some(mut wal) = is_quick.then(|| self.shared.take()).flatten() else {
            self.append(records);
            return Ok(None);
        };
        let began = now();
        let done = wal.append(&records).and_then(|()| wal.sync());
        self.shared.give_back(wal);
        done?;
        let took = began.elapsed();
        if !trust::is_quick(took) {
            self.shared.quick.store(0, Ordering::Release);
        }
        self.disk.waited(took);
        Ok(last)
    }

    /// As [`Wal::append`] and [`Wal::sync`], together with all that waits already.
    pub fn append(&self, records: Vec<Record>) {
        self.send(Command::Append(records));
    }

    /// As [`Wal::rotate`] and [`Wal::sync`].
    pub fn rotate(&self, head: Vec<Record>) {
        self.send(Command::Rotate(head));
    }

    /// As [`Wal::discard`].
    pub fn discard(&self, stable: Seq) {
        self.send(Command::Discard(stable));
    }

    fn send(&self, command: Command) {
        if let Some(commands) = &self.commands {
            self.shared.add(command.bytes());
            self.shared.waiting.fetch_add(1, Ordering::AcqRel);
            // Fails only after it was told why.
            let _ = commands.send(command);
        }
    }
}

impl Drop for WalThread {
    /// Does what was commanded, and closes the log.
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, commands: &Receiver<Command>, mut tell: impl FnMut(WalEvent)) {
    let _over = Over(shared);
    while let Ok(first) = commands.recv() {
        let mut taken = Taken::default();
        let mut wal = shared
            .take()
            .expect("who gives a command has given the log back");
        let done = group(&mut wal, first, commands, &mut taken, &mut tell);
        shared.give_back(wal);
        match done {
            Ok(None) => {}
            // Before it is seen that nothing waits: nobody else counts until then.
            Ok(Some(took)) if trust::is_quick(took) => {
                shared.quick.fetch_add(1, Ordering::AcqRel);
            }
            Ok(Some(_)) => shared.quick.store(0, Ordering::Release),
            Err(e) => return tell(WalEvent::Failed(e)),
        }
        shared.waiting.fetch_sub(taken.commands, Ordering::AcqRel);
        shared.done(taken.bytes);
    }
    // It is gone where whoever had it has died of a defect: then nothing is noted.
    if let Some(mut wal) = shared.take()
        && let Err(e) = wal.close()
    {
        // All that was asked for is durable; only the note is missing.
        tracing::warn!("the write-ahead log could not be closed: {e}");
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "this is a driver, and how long a disk takes is no part of the protocol"
)]
fn now() -> Instant {
    Instant::now()
}

/// Does one command and those that wait behind it, with one sync for all; says how many it has taken, and how long
/// it took to write and sync, if there was something to.
fn group(
    wal: &mut Wal,
    first: Command,
    commands: &Receiver<Command>,
    taken: &mut Taken,
    tell: &mut impl FnMut(WalEvent),
) -> Result<Option<Duration>, WalError> {
    let mut records: Vec<Record> = Vec::new();
    let mut bytes = 0;
    let mut last = None;
    let mut stable = None;
    let mut next = Some(first);
    while let Some(command) = next {
        let weight = command.bytes();
        taken.commands += 1;
        taken.bytes += weight;
        match command {
            Command::Append(more) => {
                bytes += weight;
                last = more.last().map(|r| r.index).or(last);
                records.extend(more);
            }
            Command::Rotate(head) => {
                wal.append(&records)?;
                records.clear();
                wal.rotate(&head)?;
                last = head.last().map(|r| r.index).or(last);
            }
            // Removing files can wait until nobody waits for a sync.
            Command::Discard(seq) => stable = stable.max(Some(seq)),
        }
        next = if bytes < GROUP_BYTES {
            commands.try_recv().ok()
        } else {
            None
        };
    }
    let began = now();
    wal.append(&records)?;
    wal.sync()?;
    let took = began.elapsed();
    if let Some(last) = last {
        tell(WalEvent::Persisted(last));
    }
    if let Some(stable) = stable {
        wal.discard(stable)?;
    }
    Ok(last.map(|_| took))
}
