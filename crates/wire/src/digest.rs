//! Digests: BLAKE3 in its key-derivation mode, with a context string for each kind of content, so that bytes of
//! one kind can never stand for another.

use core::fmt;
use core::hash::{Hash, Hasher};

use crate::codec::{Decode, DecodeError, Encode, Reader};
use alloc::vec::Vec;
use blake3::hazmat::HasherExt;

/// 32 bytes of BLAKE3 over content of one kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

/// A part of it is enough for a table: to make many that agree in 8 bytes is beyond everybody.
impl Hash for Digest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(u64::from_le_bytes(core::array::from_fn(|i| self.0[i])));
    }
}

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
    /// A replica's secret key, for the seed of its tables; stays with it.
    TableSeed,
    /// A message between replicas, after its sender's id.
    PeerMessage,
    /// What a reply says.
    Reply,
    /// Two digests that share a signature, or nodes above such.
    SignedTogether,
    /// The certificate of an epoch key without its signature.
    EpochCertificate,
    /// A link of a credential: version, volume, issuer, parent, and its terms.
    CredentialLink,
    /// A row of the file service's audit log.
    AuditRow,
    /// A P-256 key of a replica's identity, for its name.
    Identity,
    /// A reply's result that holds values of the state: its bytes and the values' digests.
    PartedResult,
    /// A client request whose operation is hashed in pieces.
    LongRequest,
    /// What is signed by a client, or by a replica's key that lasts: the group's id, and the digest of what is said.
    InGroup,
}

impl Content {
    /// The context string from which BLAKE3 derives this kind's key; part of the formats.
    pub fn context(self) -> &'static str {
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
            Content::TableSeed => "quorate v1 table seed",
            Content::PeerMessage => "quorate v1 peer message",
            Content::Reply => "quorate v1 reply",
            Content::SignedTogether => "quorate v1 signed together",
            Content::EpochCertificate => "quorate v1 epoch certificate",
            Content::CredentialLink => "quorate v1 credential link",
            Content::AuditRow => "quorate v1 audit row",
            Content::Identity => "quorate v1 identity",
            Content::PartedResult => "quorate v1 parted result",
            Content::LongRequest => "quorate v1 long request",
            Content::InGroup => "quorate v1 in group",
        }
    }

    /// The key that BLAKE3 derives from [`Content::context`]: deriving it again for each digest would double the cost of a
    /// short one.
    const fn context_key(self) -> [u8; 32] {
        const fn key(hex: &str) -> [u8; 32] {
            let (hex, mut out, mut i) = (hex.as_bytes(), [0; 32], 0);
            while i < 32 {
                out[i] = digit(hex[2 * i]) << 4 | digit(hex[2 * i + 1]);
                i += 1;
            }
            out
        }
        const fn digit(c: u8) -> u8 {
            if c <= b'9' { c - b'0' } else { c - b'a' + 10 }
        }
        const KEYS: [[u8; 32]; 20] = [
            key("cf9b25cc9c736526730adcc7c545cb377361470b1c78b5fed7a74dbc735be731"),
            key("38bb3bcec03df8ccf4bed6668cf07a62090006608b6c05b910380c8a0657fbb2"),
            key("67e041f9adbdabcdffa09e129c269cc65fe6dac6a8980fd014a9fd0df2df2dce"),
            key("5aece6f2f6ef9d1862445f5602153b7afadbd874d9366353aeb4ca5983ae47ae"),
            key("14d0d7807cde036ef2656a86f53f8f110dabe5a6eac39a521f6abf6181044382"),
            key("b21d5097ede486509c5e47111eb5ea3a22f906626eb529e4f1d30e4e64edeed7"),
            key("66eb4cca575c9bf7d210861aba8c86c7472f249c404251af5d55ee62b1b02de8"),
            key("4e4d961c210e6a4e4695080244e78fcfedf8f6e970d9a1e21892af4379de5e43"),
            key("e2e40932b533a48e95983df88d4292be4de6c0d94a022c70c0f166fcb712e183"),
            key("b1f3b1eca174a39e583abb200b1d6a7596bc751487a7da998727ab9102c41176"),
            key("47769d5d528068f8e344313ae1d5377f6967a67712c97725860f716d645f21ce"),
            key("3d377ae6ec3de13b8b731903885a317de7d03b038ed08ad0a32de5b70b8458ee"),
            key("bc944c5e7c2f0301009ffe67ba9b67c946ec84315b99a249ac489daf4c770723"),
            key("69756fd5f8e53977e47c3bf6d0621e9f47b187a1f3d852f835e693786715afb3"),
            key("0c77db6af2da84cf40ed62023fe812e24baeb84a16f817c76c3dc7e871aeeeb2"),
            key("1b6c5a46b8ac83562dec63307deb6a6224c5a5d51bfd3e2609998949ff8b66ee"),
            key("d6e8b9bcfa542cece1db0484c57446d032814bb3c8bf93bfad1dc3b179827525"),
            key("b75b9279d910a77ea58848162f393fa57451af4a99b510dc867c0ca9bd9eaf4f"),
            key("e89f736dd5064666617bd24da0322e12c91f3883516c861fbd269e539ab4c9e6"),
            key("7e20b9d373c5726c2b22e026a33f3dca683bdec49ddac541d9acce7c86e1d06d"),
        ];
        KEYS[self as usize]
    }

    fn hasher(self) -> blake3::Hasher {
        blake3::Hasher::new_from_context_key(&self.context_key())
    }
}

impl Digest {
    /// No content has this digest, as far as anyone can find: it stands for "nothing".
    pub const ZERO: Digest = Digest([0; 32]);

    /// The digest of `bytes` as content of one kind.
    pub fn of(content: Content, bytes: &[u8]) -> Digest {
        let mut hasher = content.hasher();
        hasher.update(bytes);
        Digest(*hasher.finalize().as_bytes())
    }

    /// The digest of several pieces in a row, without joining them first.
    pub fn of_parts(content: Content, parts: &[&[u8]]) -> Digest {
        let mut hashing = Digest::hashing(content);
        parts.iter().for_each(|part| hashing.add(part));
        hashing.end()
    }

    /// The digest of pieces that come one by one.
    pub fn hashing(content: Content) -> Hashing {
        Hashing(content.hasher())
    }

    /// The first 8 hexadecimal digits, for people.
    pub fn short(&self) -> impl fmt::Display + '_ {
        Short(self)
    }
}

/// A digest of which not all content was there yet.
#[derive(Debug)]
pub struct Hashing(blake3::Hasher);

impl Hashing {
    /// Takes what comes next.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// All was there.
    pub fn end(self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys in the table are those of the contexts.
    #[test]
    fn context_keys_are_derived_from_contexts() {
        let all = [
            Content::Request,
            Content::Batch,
            Content::ViewChange,
            Content::NewView,
            Content::Result,
            Content::StateKey,
            Content::StateValue,
            Content::TreeNode,
            Content::Group,
            Content::TableSeed,
            Content::PeerMessage,
            Content::Reply,
            Content::SignedTogether,
            Content::EpochCertificate,
            Content::CredentialLink,
            Content::AuditRow,
            Content::Identity,
            Content::PartedResult,
            Content::LongRequest,
            Content::InGroup,
        ];
        for content in all {
            let derived = blake3::hazmat::hash_derive_key_context(content.context());
            assert_eq!(content.context_key(), derived, "{content:?}");
            let mut hasher = blake3::Hasher::new_derive_key(content.context());
            let expected = *hasher.update(b"content").finalize().as_bytes();
            assert_eq!(Digest::of(content, b"content"), Digest(expected));
        }
    }
}
