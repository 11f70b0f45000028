//! What the fuzz targets need of this crate's inside.

use quorate_nfs::xdr::Read;

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
