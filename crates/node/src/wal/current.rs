//! The segment that is being written.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use quorate_wire::Seq;

use super::error::io_error;
use super::segment::{self, Mark, Scan};
use super::spare::{self, Spare};
use super::{WalError, WalOptions, sync_directory};

#[derive(Debug)]
pub(super) struct Current {
    pub number: u64,
    pub file: File,
    /// Where the next write goes.
    pub end: u64,
    pub max_seq: Seq,
    /// The first blob segment that a record refers to.
    pub first_blob: Option<u64>,
    pub nonce: segment::Nonce,
    /// Whether something was written since the last sync.
    pub unsynced: bool,
    /// Whether the next write begins with a mark.
    pub mark_due: bool,
    /// Whether it holds anything but its start.
    pub used: bool,
}

impl Current {
    /// Takes a prepared file as segment `number`.
    pub fn create(directory: &Path, number: u64, spare: Spare) -> Result<Current, WalError> {
        let path = segment::path(directory, number);
        let file = spare.take(&path).map_err(|e| io_error(&path, e))?;
        sync_directory(directory)?;
        Current::start(&path, number, file)
    }

    /// Goes on in the last segment of a log.
    pub fn resume(
        directory: &Path,
        number: u64,
        scan: &Scan,
        options: WalOptions,
    ) -> Result<Current, WalError> {
        let path = segment::path(directory, number);
        let open = || {
            let file = OpenOptions::new().read(true).write(true).open(&path)?;
            spare::zero(&file, scan.end, scan.dirty_end)?;
            // Only a segment that was cut short from outside is not as long as it should be.
            let length = file.metadata()?.len();
            file.set_len(length.max(options.segment_bytes))?;
            // What was read may be in memory alone, and the replica is about to act on it.
            file.sync_all()?;
            Ok(file)
        };
        let file = open().map_err(|e| io_error(&path, e))?;
        let Some(nonce) = scan.nonce else {
            return Current::start(&path, number, file);
        };
        Ok(Current {
            number,
            file,
            end: scan.end,
            max_seq: scan.max_seq,
            first_blob: scan.first_blob,
            nonce,
            unsynced: false,
            mark_due: true,
            used: true,
        })
    }

    /// Begins a segment in a file of zeros.
    pub fn start(path: &Path, number: u64, file: File) -> Result<Current, WalError> {
        let nonce = segment::new_nonce().map_err(|e| io_error(path, e))?;
        let mut start = Vec::new();
        Mark::Start.write(&mut start, number, 0, nonce);
        file.write_all_at(&start, 0)
            .map_err(|e| io_error(path, e))?;
        Ok(Current {
            number,
            file,
            end: start.len() as u64,
            max_seq: Seq(0),
            first_blob: None,
            nonce,
            unsynced: true,
            mark_due: false,
            used: false,
        })
    }

    /// Puts a mark before the first record that follows a sync.
    pub fn begin_write(&mut self, buffer: &mut Vec<u8>) {
        if std::mem::take(&mut self.mark_due) {
            let end = self.end + buffer.len() as u64;
            Mark::Synced.write(buffer, self.number, end, self.nonce);
        }
    }
}
