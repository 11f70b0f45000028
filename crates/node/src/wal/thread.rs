//! A thread that owns the log, and makes many records durable with one sync.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use quorate_wire::{LogIndex, Seq};

use super::{Record, Wal, WalError};

/// After so many bytes a sync is due, even if more records wait.
const GROUP_BYTES: usize = 16 << 20;

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

/// The log's thread. Commands are done in order and never waited for; what is queued is bounded by the protocol's
/// window, since the protocol does not go on without [`WalEvent::Persisted`].
#[derive(Debug)]
pub struct WalThread {
    commands: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
}

impl WalThread {
    /// Starts the thread. `tell` is called on it, and must not wait.
    pub fn spawn(wal: Wal, tell: impl FnMut(WalEvent) + Send + 'static) -> WalThread {
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::spawn(move || run(wal, &receiver, tell));
        WalThread {
            commands: Some(sender),
            thread: Some(thread),
        }
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
            // Fails only after `Failed` was told.
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

fn run(mut wal: Wal, commands: &Receiver<Command>, mut tell: impl FnMut(WalEvent)) {
    while let Ok(first) = commands.recv() {
        if let Err(e) = group(&mut wal, first, commands, &mut tell) {
            return tell(WalEvent::Failed(e));
        }
    }
    if let Err(e) = wal.close() {
        // All that was asked for is durable; only the note is missing.
        tracing::warn!("the write-ahead log could not be closed: {e}");
    }
}

/// Does one command and those that wait behind it, with one sync for all.
fn group(
    wal: &mut Wal,
    first: Command,
    commands: &Receiver<Command>,
    tell: &mut impl FnMut(WalEvent),
) -> Result<(), WalError> {
    let mut records: Vec<Record> = Vec::new();
    let mut bytes = 0;
    let mut last = None;
    let mut stable = None;
    let mut next = Some(first);
    while let Some(command) = next {
        match command {
            Command::Append(more) => {
                bytes += more.iter().map(Record::weight).sum::<usize>();
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
    wal.append(&records)?;
    wal.sync()?;
    if let Some(last) = last {
        tell(WalEvent::Persisted(last));
    }
    match stable {
        Some(stable) => wal.discard(stable),
        None => Ok(()),
    }
}
