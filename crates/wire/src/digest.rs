//! Digests: BLAKE3 in its key-derivation mode, with a context string for each kind of content, so that bytes of
//! one kind can never stand for another.

use core::fmt;

use crate::codec::{Decode, DecodeError, Encode, Reader};
use alloc::vec::Vec;

/// 32 bytes of BLAKE3 over content of one kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

/// What a digest is taken over. The strings are part of the formats and never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A client request without its authenticator.
    Request,
    /// A batch: agreed time and request digests.
    Batch,
    /// A VIEW-CHANGE without its signature.
    ViewChange,
    /// A NEW-VIEW without its signature.
    NewView,
    /// A reply's result.
    Result,
    /// A key of the state, for its place in the partition tree.
    StateKey,
    /// A value of the state.
    StateValue,
    /// A node of the partition tree.
    TreeNode,
    /// The group file's meaning.
    Group,
}

impl Content {
    fn context(self) -> &'static str {
        match self {
            Content::Request => "quorate v1 request",
            Content::Batch => "quorate v1 batch",
            Content::ViewChange => "quorate v1 view change",
            Content::NewView => "quorate v1 new view",
            Content::Result => "quorate v1 result",
            Content::StateKey => "quorate v1 state key",
            Content::StateValue => "quorate v1 state value",
            Content::TreeNode => "quorate v1 tree node",
            Content::Group => "quorate v1 group",
        }
    }
}

impl Digest {
    /// No content has this digest, as far as anyone can find: it stands for "nothing".
    pub const ZERO: Digest = Digest([0; 32]);

    /// The digest of `bytes` as content of one kind.
    pub fn of(content: Content, bytes: &[u8]) -> Digest {
        let mut hasher = blake3::Hasher::new_derive_key(content.context());
        hasher.update(bytes);
        Digest(*hasher.finalize().as_bytes())
    }

    /// The digest of several pieces in a row, without joining them first.
    pub fn of_parts(content: Content, parts: &[&[u8]]) -> Digest {
        let mut hasher = blake3::Hasher::new_derive_key(content.context());
        for part in parts {
            hasher.update(part);
        }
        Digest(*hasher.finalize().as_bytes())
    }

    /// The first 8 hexadecimal digits, for people.
    pub fn short(&self) -> impl fmt::Display + '_ {
        Short(self)
    }
}

struct Short<'a>(&'a Digest);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.0[..4].iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.short())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl Encode for Digest {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
}

impl Decode for Digest {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Digest(r.array()?))
    }
}
