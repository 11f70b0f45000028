//! What clients asked and what they were told, with times.
//!
//! Objects: registers (files of a fixed size that are overwritten as a whole), logs (files that are only appended to), and
//! trees (a few directories, between which names move). A file's content is made of one token, so that torn content shows.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Directories of a tree, and names that are used in each.
pub const DIRECTORIES: u8 = 2;
/// See [`DIRECTORIES`].
pub const NAMES: u8 = 3;

/// A name in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Slot {
    /// Which tree.
    pub tree: u8,
    /// Which directory of it.
    pub directory: u8,
    /// Which name there.
    pub name: u8,
}

impl Slot {
    /// Its place among all names of the tree.
    pub fn place(self) -> usize {
        usize::from(self.directory) * usize::from(NAMES) + usize::from(self.name)
    }
}

/// What becomes of an object that has the new name already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// It goes.
    Replace,
    /// The rename is refused.
    NoReplace,
    /// It gets the old name.
    Exchange,
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Overwrites a register with a token that no other write has.
    Write { register: u8, token: u64 },
    /// Reads a register.
    Read { register: u8 },
    /// Puts a token to the end of a log.
    Append { log: u8, token: u64 },
    /// Reads a log from the start.
    ReadLog { log: u8 },
    /// Makes a file, whose name must be new. The token stands for it as long as nobody knows its number.
    Create { at: Slot, token: u64 },
    /// Removes a name.
    Remove { at: Slot },
    /// Moves a name within its tree. `cached`: names that the caller's kernel holds to be those of one file are
    /// left alone, and it may be wrong.
    Rename {
        from: Slot,
        to: Slot,
        mode: Mode,
        cached: bool,
    },
    /// Gives the file with this number one more name.
    Link { ino: u64, at: Slot },
    /// Which file has a name.
    Look { at: Slot },
    /// All names of a directory at once.
    List { tree: u8, directory: u8 },
}

/// What an operation is about. Operations on different objects say nothing about each other, since linearizability is
/// local (Herlihy and Wing 1990, 3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Object {
    /// A register.
    Register(u8),
    /// A log.
    Log(u8),
    /// A tree.
    Tree(u8),
}

impl Op {
    /// What it is about.
    pub fn object(&self) -> Object {
        match self {
            Op::Write { register, .. } | Op::Read { register } => Object::Register(*register),
            Op::Append { log, .. } | Op::ReadLog { log } => Object::Log(*log),
            Op::Create { at, .. } | Op::Remove { at } | Op::Link { at, .. } | Op::Look { at } => {
                Object::Tree(at.tree)
            }
            Op::Rename { from, .. } => Object::Tree(from.tree),
            Op::List { tree, .. } => Object::Tree(*tree),
        }
    }

    /// Whether it changes nothing: if nobody was told its result, it might as well not have been.
    pub fn is_read(&self) -> bool {
        matches!(
            self,
            Op::Read { .. } | Op::ReadLog { .. } | Op::Look { .. } | Op::List { .. }
        )
    }
}

/// What a client was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It is done.
    Done,
    /// A register's token.
    Value(u64),
    /// Content that nobody has written: parts of several, or of the wrong length.
    Torn(String),
    /// Where appended bytes went.
    At(u64),
    /// A log's length, and the digest of its tokens; see [`extend`].
    Log { bytes: u64, digest: u64 },
    /// The number of a new file.
    Made(u64),
    /// The number of the file with a name.
    Found(u64),
    /// There is no such name.
    Missing,
    /// The name is there already.
    Exists,
    /// There is no such file any more.
    Stale,
    /// Names and numbers.
    Listing(Vec<(u8, u64)>),
    /// An error that nothing here can have; its number.
    Refused(u16),
}

/// The digest of a log with one token more. An empty log has the digest 0.
pub fn extend(digest: u64, token: u64) -> u64 {
    (digest.rotate_left(5) ^ token)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(1)
}

/// One operation of one client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Whose; a client has one operation at a time.
    pub client: u8,
    /// Whether it went through a mount, whose kernel may know old names.
    pub mounted: bool,
    /// What was asked.
    pub op: Op,
    /// When, in microseconds since the run began.
    pub begun: u64,
    /// When the answer came, and the answer. `None`: nobody knows what became of it.
    pub ended: Option<(u64, Outcome)>,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |us: u64| us as f64 / 1000.0;
        let through = if self.mounted { " (mount)" } else { "" };
        write!(f, "client {}{through} ", self.client)?;
        match &self.ended {
            Some((end, outcome)) => write!(
                f,
                "{:.3}..{:.3} ms {:?} -> {outcome:?}",
                ms(self.begun),
                ms(*end),
                self.op
            ),
            None => write!(f, "{:.3}.. ms {:?} -> ?", ms(self.begun), self.op),
        }
    }
}

/// Nanoseconds of a clock that never goes back and is the same for all processes of this machine.
pub fn clock_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Where clients write down what they do, as they do it.
#[derive(Debug)]
pub struct Recorder {
    /// See [`clock_ns`].
    start_ns: u64,
    operations: Mutex<Vec<Operation>>,
}

impl Recorder {
    /// An empty history; times count from now.
    pub fn start() -> Recorder {
        Recorder {
            start_ns: clock_ns(),
            operations: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Operation>> {
        self.operations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Microseconds since the start.
    pub fn now(&self) -> u64 {
        self.since_start(clock_ns())
    }

    fn since_start(&self, clock_ns: u64) -> u64 {
        clock_ns.saturating_sub(self.start_ns) / 1000
    }

    /// An operation is about to be asked for; its place in the history.
    pub fn begin(&self, client: u8, mounted: bool, op: Op) -> usize {
        let mut operations = self.lock();
        // Within the lock, so that the time is no later than the operation's real start.
        let begun = self.now();
        operations.push(Operation {
            client,
            mounted,
            op,
            begun,
            ended: None,
        });
        operations.len() - 1
    }

    /// It has this outcome.
    pub fn end(&self, place: usize, outcome: Outcome) {
        let now = self.now();
        self.lock()[place].ended = Some((now, outcome));
    }

    /// It has this outcome, and somebody else has seen when it began and ended, by [`clock_ns`].
    pub fn end_as_seen(&self, place: usize, seen_ns: (u64, u64), outcome: Outcome) {
        let (begun, ended) = (self.since_start(seen_ns.0), self.since_start(seen_ns.1));
        let operation = &mut self.lock()[place];
        operation.begun = begun;
        operation.ended = Some((ended, outcome));
    }

    /// How many have an outcome.
    pub fn done(&self) -> usize {
        self.lock().iter().filter(|o| o.ended.is_some()).count()
    }

    /// All of it, in the order in which it was asked for.
    pub fn take(&self) -> Vec<Operation> {
        std::mem::take(&mut self.lock())
    }

    /// A copy of it.
    pub fn copy(&self) -> Vec<Operation> {
        self.lock().clone()
    }
}
