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
         safe on disk: check the disk"
    )]
    Damaged {
        /// The segment's file.
        segment: PathBuf,
        /// The first byte that can't be read.
        offset: u64,
    },
    /// A segment is gone: the fault of whoever removed it.
    #[error("the write-ahead log {0} is missing, though later ones are there")]
    Missing(PathBuf),
    /// Records are missing, or stand where others should: writes that went astray or were lost.
    #[error("the write-ahead log in {directory} lacks records: after number {after} comes {found}")]
    Disordered {
        /// The log's directory.
        directory: PathBuf,
        /// The last record in order.
        after: u64,
        /// The next that is there.
        found: u64,
    },
    /// What was durable is gone from the end: a disk that said so too early, or an older copy of the log.
    #[error(
        "the write-ahead log in {directory} ends at record {last}, but {reached} was safe on disk once: check the disk, and \
         whether it tells the truth about what it has written"
    )]
    Forgotten {
        /// The log's directory.
        directory: PathBuf,
        /// The last record that is there.
        last: u64,
        /// The last that is known to have been there.
        reached: u64,
    },
    /// Nothing is left of it.
    #[error("the write-ahead log in {0} is gone")]
    Gone(PathBuf),
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
    /// The caller's fault: it goes on after an error.
    #[error("the write-ahead log has failed before")]
    Failed,
}

impl WalError {
    /// Whether the log has lost what was durable: then it does not say any more what the replica has told others. All other
    /// errors leave the log as it is.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            WalError::Damaged { .. }
                | WalError::Missing(_)
                | WalError::Disordered { .. }
                | WalError::Forgotten { .. }
                | WalError::Gone(_)
        )
    }
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
