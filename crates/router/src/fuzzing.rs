//! What the fuzz targets need of this crate's inside.

use bytes::Bytes;
use quorate_nfs::call::Fh;
use quorate_nfs::status::Status;
use quorate_nfs::xdr::Read;

use crate::journal::Set;
use crate::layout::Volume;
use crate::proxy::space::Space;
use crate::setup::{self, Label};

/// A client's call as it would be passed on to a server that calls its object `called`; none if it is not one that goes straight through.
/// `most`: the most bytes that READ may have.
pub fn passed_on(record: &[u8], most: usize, called: &[u8]) -> Option<Vec<u8>> {
    crate::proxy::straight::passed_on(record, most, called)
}

/// The results in a server's reply.
///
/// # Errors
/// If it is none that says that the procedure was called.
pub fn results(reply: &[u8]) -> Read<&[u8]> {
    crate::upstream::results(reply)
}

/// Whether the results of a LOOKUP are a stub, or can't be told from one.
///
/// # Errors
/// If they are no such results.
pub fn is_to_be_followed(results: &[u8]) -> Read<bool> {
    crate::proxy::straight::is_to_be_followed(results)
}

/// Bytes and files in the results of an FSSTAT, each in all, free, and free for the user, and for how many seconds they hold; or how it was refused.
///
/// # Errors
/// If they are no such results.
pub fn space(results: Bytes) -> Read<Result<([u64; 6], u32), Status>> {
    let space = Space::read(results)?;
    Ok(space.map(|space| (space.words, space.seconds)))
}

/// The handle in the results of a MOUNT.
///
/// # Errors
/// With which status it is refused, if that is about the export.
pub fn mounted(results: Bytes) -> Result<Fh, Option<u32>> {
    setup::mounted(results)
}

/// The set and the number in the label of a volume.
pub fn label(text: &[u8]) -> Option<(Set, Volume)> {
    Label::parse(text).map(|label| (label.set, label.volume))
}

/// The label that says so.
pub fn label_text(set: Set, volume: Volume) -> Bytes {
    Label { set, volume }.text()
}
