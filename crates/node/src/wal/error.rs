//! What can go wrong with a log, by whose fault it is, and what to do.

use std::io;
use std::path::{Path, PathBuf};

use quorate_store::BlobError;

/// Why the log can't be used.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// What was durable has changed: the fault of the disk, or of somebody with access to it.
    #[error(
        "the write-ahead log {segment} is damaged at byte {offset}, in a place that was already \
         safe on disk: check the disk. This replica no longer knows what it promised to the \
         others and must not come back under its key: leave it stopped, and its directory as it is"
    )]
    Damaged {
        /// The segment's file.
        segment: PathBuf,
        /// The first byte that can't be read.
        offset: u64,
    },
    /// A segment is gone: the fault of whoever removed it.
    #[error(
        "the write-ahead log {0} is missing, though later ones are there: bring it back. If it \
         is lost, this replica no longer knows what it promised to the others and must not come back under its key: \
         leave it stopped"
    )]
    Missing(PathBuf),
    /// Two replicas on one directory: the operator's fault.
    #[error("{0} is in use by another process: stop it, or give this replica its own directory")]
    InUse(PathBuf),
    /// The environment's fault.
    #[error("the disk of {0} is full: make room, then start the replica again")]
    Full(PathBuf),
    /// The environment's fault.
    #[error("{path}: {source}. Check the disk, then start the replica again")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// As [`WalError::Damaged`], of a body.
    #[error(
        "{segment} is damaged at byte {offset}, where the write-ahead log has the body of a record: check the disk. This \
         replica no longer knows what it promised to the others and must not come back under its key: leave it stopped, \
         and its directory as it is"
    )]
    DamagedBody {
        /// The blob segment's file.
        segment: PathBuf,
        /// The body's first byte.
        offset: u64,
    },
    /// The caller's fault: it goes on after an error.
    #[error("the write-ahead log has failed before")]
    Failed,
}

pub(super) fn io_error(path: &Path, source: io::Error) -> WalError {
    let path = path.to_path_buf();
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => WalError::Full(path),
        _ => WalError::Io { path, source },
    }
}

pub(super) fn blob_error(error: BlobError) -> WalError {
    io_error(&error.path, error.source)
}
