//! What can go wrong with a store, by whose fault it is, and what to do.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use quorate_state::Fault;

use crate::blobs::BlobError;

/// Why a store does not work. None of these is a peer's or a client's fault.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The operator started two replicas on one directory.
    #[error("{} is in use by {}: is another replica running on this directory? Stop it, or give this one a directory of its own", path.display(), holder(*process))]
    Locked {
        /// The store's file.
        path: PathBuf,
        /// The process that has it open, where known.
        process: Option<u32>,
    },
    /// The operator's permissions keep the replica out.
    #[error("no permission to use {}: make the file and its directory readable and writable for the replica's user", path.display())]
    Permission {
        /// The store's file.
        path: PathBuf,
    },
    /// The disk, or the replica's quota, is full. The store is still at its last checkpoint.
    #[error("no space left for {}: free some and start the replica again; it resumes at its last checkpoint", path.display())]
    Full {
        /// The store's file.
        path: PathBuf,
    },
    /// The disk gave back something else than was written, or the file is none of ours.
    #[error("{} is damaged ({what}): check the disk; the state has to be fetched from the other replicas", path.display())]
    Corrupt {
        /// The file: the store's, or a segment's.
        path: PathBuf,
        /// What was found.
        what: String,
    },
    /// Another version of the program has written the store, in a format that this one does not know. What is in it may be sound.
    #[error("{} was written by another version of Quorate ({what}): use the program that wrote it, or remove the file and let the replica fetch the state from the others, one replica at a time", path.display())]
    Version {
        /// The store's file.
        path: PathBuf,
        /// Which format.
        what: String,
    },
    /// Any other failure of the environment.
    #[error("input or output failed on {}: {source}; check the disk and start the replica again", path.display())]
    Io {
        /// The store's file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

fn holder(process: Option<u32>) -> String {
    match process {
        Some(id) => format!("process {id}"),
        None => "another process".into(),
    }
}

impl StoreError {
    pub(crate) fn io(path: &Path, source: io::Error) -> StoreError {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                StoreError::Permission { path }
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full { path },
            // The kind by which the block layer says that a sum is wrong.
            io::ErrorKind::InvalidData => StoreError::Corrupt {
                path,
                what: source.to_string(),
            },
            // The block layer's, of a header.
            io::ErrorKind::Unsupported if source.get_ref().is_some() => StoreError::Version {
                path,
                what: source.to_string(),
            },
            _ => StoreError::Io { path, source },
        }
    }

    pub(crate) fn blob(error: BlobError) -> StoreError {
        match error.source.kind() {
            // Bytes that a row refers to were durable: that they are gone is damage.
            io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof => StoreError::Corrupt {
                path: error.path,
                what: "a part of it is missing".into(),
            },
            _ => StoreError::io(&error.path, error.source),
        }
    }

    /// Whether the disk has lost or changed what was written: then the state has to come from elsewhere.
    pub fn is_damage(&self) -> bool {
        matches!(self, StoreError::Corrupt { .. })
    }

    pub(crate) fn redb(path: &Path, error: impl Into<redb::Error>) -> StoreError {
        match error.into() {
            redb::Error::Io(source) => StoreError::io(path, source),
            redb::Error::DatabaseAlreadyOpen => StoreError::Locked {
                path: path.to_owned(),
                process: None,
            },
            redb::Error::PreviousIo => StoreError::Io {
                path: path.to_owned(),
                source: io::Error::other("an earlier write failed, and the store is closed"),
            },
            damage @ (redb::Error::Corrupted(_)
            | redb::Error::TableDoesNotExist(_)
            | redb::Error::TableTypeMismatch { .. }
            | redb::Error::TableIsMultimap(_)
            | redb::Error::TableIsNotMultimap(_)
            | redb::Error::TypeDefinitionChanged { .. }) => StoreError::Corrupt {
                path: path.to_owned(),
                what: damage.to_string(),
            },
            // A store that was closed, since a write has failed, say, or that another version wrote: what is in it may be sound, and is not thrown away.
            other => StoreError::Io {
                path: path.to_owned(),
                source: io::Error::other(other.to_string()),
            },
        }
    }

    pub(crate) fn fault(path: &Path, fault: Fault) -> StoreError {
        StoreError::Corrupt {
            path: path.to_owned(),
            what: match fault {
                Fault::Store(what) | Fault::Tree(what) => what,
                Fault::Value { .. } => fault.to_string(),
            },
        }
    }

    pub(crate) fn locked(path: &Path, lock: &Path) -> StoreError {
        let text = fs::read_to_string(lock).unwrap_or_default();
        StoreError::Locked {
            path: path.to_owned(),
            process: text.trim().parse().ok(),
        }
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Fault {
        Fault::Store(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the operating system says becomes whose fault it is and what to do, also on its way through redb.
    #[test]
    fn errors_are_told_apart() {
        let path = Path::new("/data/state");
        let expected = [
            (28, "no space left for /data/state"),
            (122, "no space left"),
            (13, "no permission to use /data/state"),
            (30, "no permission"),
            (5, "check the disk"),
        ];
        for (code, says) in expected {
            let direct = StoreError::io(path, io::Error::from_raw_os_error(code));
            let error = redb::StorageError::Io(io::Error::from_raw_os_error(code));
            let through = StoreError::redb(path, error);
            for error in [direct, through] {
                assert!(error.to_string().contains(says), "{error}");
            }
        }
        let sum = io::Error::new(io::ErrorKind::InvalidData, "sum");
        let error = StoreError::redb(path, redb::DatabaseError::from(redb::StorageError::Io(sum)));
        assert!(matches!(error, StoreError::Corrupt { .. }));
    }
}
