//! What the fuzz targets need of this crate's inside.

use quorate_agreement::Record;
use quorate_wire::{DecodeError, LogIndex};

use crate::daemon::packed;
use crate::wal;

/// How far the log had come, in a note that is whole.
pub fn reached(note: &[u8]) -> Option<LogIndex> {
    wal::reached::parse(note)
}

/// A record as the log gets it.
pub fn pack(index: LogIndex, record: &Record) -> wal::Record {
    packed::pack(index, record)
}

/// The record in what the log has kept.
///
/// # Errors
/// If it is none.
pub fn unpack(packed: wal::Record) -> Result<Record, DecodeError> {
    packed::unpack(packed)
}
