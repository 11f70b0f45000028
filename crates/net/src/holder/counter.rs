//! The number of the newest statement, on disk.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use quorate_wire::PublicKey;

use crate::{disk, hex};

const TITLE: &str =
    "quorate counter: how many statements this key has signed; never bring it back from a backup";
/// A counter file is some 250 bytes; a longer file is another file.
const MAX_FILE_BYTES: u64 = 4096;

/// Why there is no number for a statement. Without one nothing is signed.
#[derive(Debug, thiserror::Error)]
pub enum CounterError {
    /// The operator named a file that is not there, or it is lost.
    #[error(
        "there is no counter {0}. If this key has signed before, a new counter would have it say the same numbers again: bring \
         the file back if it is elsewhere. If it is lost, the key is to be replaced, in a new group file"
    )]
    Missing(PathBuf),
    /// The file is another user's.
    #[error(
        "this user may not read and write the counter {0}: run the key holder as the user that it belongs to"
    )]
    NotAllowed(PathBuf),
    /// The operator would lose a counter.
    #[error("{0} exists already, and a counter is not overwritten")]
    Exists(PathBuf),
    /// The disk's fault, or that of somebody who has written to the file.
    #[error(
        "{0} is not a whole counter: nothing is signed without one. If it can't be brought back as it was, the key is to be \
         replaced, in a new group file"
    )]
    Corrupt(PathBuf),
    /// The operator's mistake.
    #[error(
        "{0} is the counter of another key: name the one that was made with the key (--counter)"
    )]
    OtherKey(PathBuf),
    /// The operator's mistake.
    #[error("another key holder works with {0}: there is one for each key")]
    InUse(PathBuf),
    /// Somebody has brought an older file back, or writes to it.
    #[error(
        "{path} says {found} where this process has written {written}: somebody else has changed it, so no number \
         of it can be trusted. Nothing is signed any more"
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// What it should say.
        written: u64,
        /// What it says.
        found: u64,
    },
    /// Not within the life of a disk.
    #[error("{0} has no numbers left")]
    UsedUp(PathBuf),
    /// The environment's fault.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

impl CounterError {
    fn from_io(path: &Path, source: io::Error) -> CounterError {
        match source.kind() {
            io::ErrorKind::NotFound => CounterError::Missing(path.into()),
            io::ErrorKind::PermissionDenied => CounterError::NotAllowed(path.into()),
            io::ErrorKind::AlreadyExists => CounterError::Exists(path.into()),
            _ => CounterError::Io {
                path: path.into(),
                source,
            },
        }
    }
}

/// A counter that only grows, and that one process at a time works with.
#[derive(Debug)]
pub struct CounterFile {
    path: PathBuf,
    key: PublicKey,
    last: u64,
    /// Held as long as this is.
    _lock: File,
}

impl CounterFile {
    /// Makes the counter of a new key.
    ///
    /// # Errors
    /// [`CounterError::Exists`] or [`CounterError::Io`].
    pub fn create(path: &Path, key: &PublicKey) -> Result<(), CounterError> {
        disk::create(path, text(key, 0).as_bytes(), 0o600)
            .map_err(|e| CounterError::from_io(path, e))
    }

    /// Opens the counter of `key`.
    ///
    /// # Errors
    /// Any [`CounterError`] but `Exists`, `Changed` and `UsedUp`.
    pub fn open(path: &Path, key: &PublicKey) -> Result<CounterFile, CounterError> {
        let io_error = |e| CounterError::from_io(path, e);
        // Before a lock is left beside what is not there.
        let last = read(path, key)?;
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(".lock");
        // The counter itself is replaced each time, and a lock is a file's, not a name's.
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path.with_file_name(name))
            .map_err(io_error)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(CounterError::InUse(path.into())),
            Err(TryLockError::Error(e)) => return Err(io_error(e)),
        }
        // Who had the lock may have counted on since.
        let last = read(path, key)?.max(last);
        Ok(CounterFile {
            path: path.into(),
            key: *key,
            last,
            _lock: lock,
        })
    }

    /// The number of the newest statement, 0 if there is none.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The number for the next statement. It is on disk, and so is the file's name, when this returns.
    ///
    /// # Errors
    /// Any [`CounterError`]; after another than [`CounterError::Io`] the counter is not to be asked again.
    pub fn advance(&mut self) -> Result<u64, CounterError> {
        let found = read(&self.path, &self.key)?;
        if found != self.last {
            return Err(CounterError::Changed {
                path: self.path.clone(),
                written: self.last,
                found,
            });
        }
        let next = found.checked_add(1);
        let next = next.ok_or_else(|| CounterError::UsedUp(self.path.clone()))?;
        let written = disk::replace(&self.path, text(&self.key, next).as_bytes(), 0o600);
        if let Err(source) = written {
            // The number may stand there, and not outlive a loss of power: nothing is signed with it, nor with a lower one.
            self.last = read(&self.path, &self.key)?.clamp(found, next);
            let path = self.path.clone();
            return Err(CounterError::Io { path, source });
        }
        self.last = next;
        Ok(next)
    }
}

/// The number stands there twice, the second time as what is missing to the highest, so that no damage makes it another one.
pub(crate) fn text(key: &PublicKey, counter: u64) -> String {
    let rest = u64::MAX - counter;
    format!("{TITLE}\nkey {key}\ncounter {counter}\nrest {rest}\n")
}

fn read(path: &Path, key: &PublicKey) -> Result<u64, CounterError> {
    let io_error = |e| CounterError::from_io(path, e);
    let file = File::open(path).map_err(io_error)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES)
        .read_to_end(&mut bytes)
        .map_err(io_error)?;
    let whole = std::str::from_utf8(&bytes).ok().and_then(parse);
    let (of, counter) = whole.ok_or_else(|| CounterError::Corrupt(path.into()))?;
    match of == *key {
        true => Ok(counter),
        false => Err(CounterError::OtherKey(path.into())),
    }
}

pub(crate) fn parse(whole: &str) -> Option<(PublicKey, u64)> {
    let mut lines = whole.lines();
    if lines.next()? != TITLE {
        return None;
    }
    let key = PublicKey(hex::decode32(lines.next()?.strip_prefix("key ")?)?);
    let counter = lines.next()?.strip_prefix("counter ")?.parse().ok()?;
    // One form for each number.
    (text(&key, counter) == whole).then_some((key, counter))
}
