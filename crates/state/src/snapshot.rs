//! What a store offers to the layers above it.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Bound;

use bytes::Bytes;

/// The store under the state failed: a disk error, or content that does not match its checksum.
///
/// This is the environment's fault and one replica's alone: it must take the replica out and never become a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault(pub String);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the state store failed: {}", self.0)
    }
}

impl core::error::Error for Fault {}

/// The map and its partition tree at one checkpoint. Never changes; cheap to share.
pub trait Snapshot: Send + Sync + fmt::Debug {
    /// The value of a key.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Fault>;

    /// Up to `limit` entries between two keys, in rising order.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    fn range(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, Fault>;

    /// A node of the partition tree in its canonical form, by its path; `None` where the tree has no such node.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    fn node(&self, path: &[u8]) -> Result<Option<Bytes>, Fault>;
}
