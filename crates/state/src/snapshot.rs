//! What a store offers to the layers above it.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::ops::Bound;

use bytes::Bytes;
use quorate_wire::Digest;
use quorate_wire::digest::Content;

/// The state can't be read. This is one replica's misfortune, and must never become a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The store under the state failed: a disk error, or content that does not match its checksum. It takes the replica out.
    Store(String),
    /// The partition tree contradicts itself or the entries: what is stored is no state, and has to come from the others.
    Tree(String),
    /// The store gives a value back, and whoever reads it finds that it is none that it can have written; or misses one. The
    /// replica compares it with what the others have.
    Value {
        /// Under which key.
        key: Bytes,
        /// What is wrong with it.
        what: String,
    },
}

impl Fault {
    /// A [`Fault::Value`].
    pub fn value(key: &[u8], what: impl ToString) -> Fault {
        Fault::Value {
            key: Bytes::copy_from_slice(key),
            what: what.to_string(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Store(what) => write!(f, "the state store failed: {what}"),
            Fault::Tree(what) => write!(f, "the stored state is damaged: {what}"),
            Fault::Value { key, what } => {
                write!(f, "the value under the key {key:?} can't be read: {what}")
            }
        }
    }
}

impl core::error::Error for Fault {}

/// What is known of a value without looking at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// How many bytes it has.
    pub length: u32,
    /// Its digest, as the partition tree has it.
    pub digest: Digest,
}

impl Summary {
    /// That of a value which is here.
    pub fn of(value: &[u8]) -> Summary {
        Summary {
            length: value.len() as u32,
            digest: Digest::of(Content::StateValue, value),
        }
    }
}

/// The map and its partition tree at one checkpoint. Never changes; cheap to share.
pub trait Snapshot: Send + Sync + fmt::Debug {
    /// The value of a key.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Fault>;

    /// The value of a key with its digest, for which a store that checks what it reads does not hash it once more.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    fn get_hashed(&self, key: &[u8]) -> Result<Option<(Bytes, Digest)>, Fault> {
        let hashed = |value: Bytes| {
            let digest = Summary::of(&value).digest;
            (value, digest)
        };
        Ok(self.get(key)?.map(hashed))
    }

    /// The length and digest of a key's value. A store that has them beside a large value does not read it for that.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    fn summary(&self, key: &[u8]) -> Result<Option<Summary>, Fault> {
        Ok(self.get(key)?.map(|value| Summary::of(&value)))
    }

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

    /// The keys of these entries. A store that has large values elsewhere does not read them for that.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    fn keys(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Bytes>, Fault> {
        let entries = self.range(from, to, limit)?;
        Ok(entries.into_iter().map(|(key, _)| key).collect())
    }

    /// A node of the partition tree in its canonical form, by its path; `None` where the tree has no such node.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    fn node(&self, path: &[u8]) -> Result<Option<Bytes>, Fault>;
}
