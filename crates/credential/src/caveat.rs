//! Conditions that a link adds. They only take away, and those of all links of a chain hold together.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use bytes::Bytes;

/// The longest prefix of a name, in bytes.
pub const MAX_PREFIX_BYTES: usize = 255;
/// The longest tag, in bytes.
pub const MAX_TAG_BYTES: usize = 64;

/// One condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caveat {
    /// Of what is directly in the link's object, only names that begin with these 1 to 255 bytes, and what is below them. The object
    /// itself may only be looked at.
    NamePrefix(Bytes),
    /// At most so many bytes are written under this link, by all who hold a part of it together.
    ByteQuota(u64),
    /// 1 to 64 printable ASCII characters that the audit log repeats.
    AuditTag(String),
    /// The numeric user and group as which the holder acts, whatever the holder's machine says.
    Ids {
        /// The user.
        uid: u32,
        /// The group.
        gid: u32,
    },
}

/// Why bytes are no caveat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadCaveat {
    /// There is no such kind; who made it wants a condition that is not understood here.
    Unknown(u8),
    /// A known kind with a body that it can't have.
    Body(u8),
}

impl Caveat {
    /// The number of this kind. 3 is kept for a rate class and 6 for a wrapped key: refused, since nothing would keep them.
    pub fn kind(&self) -> u8 {
        match self {
            Caveat::NamePrefix(_) => 1,
            Caveat::ByteQuota(_) => 2,
            Caveat::AuditTag(_) => 4,
            Caveat::Ids { .. } => 5,
        }
    }

    pub(crate) fn body(&self) -> Vec<u8> {
        match self {
            Caveat::NamePrefix(prefix) => prefix.to_vec(),
            Caveat::ByteQuota(bytes) => bytes.to_le_bytes().into(),
            Caveat::AuditTag(tag) => tag.as_bytes().into(),
            Caveat::Ids { uid, gid } => [uid.to_le_bytes(), gid.to_le_bytes()].concat(),
        }
    }

    /// Reads a caveat from its kind and body; the only way in, for values that a program made as well.
    pub(crate) fn parse(kind: u8, body: &Bytes) -> Result<Caveat, BadCaveat> {
        let bad = BadCaveat::Body(kind);
        let fixed = |at: usize| {
            body.get(at..at + 4)?
                .try_into()
                .ok()
                .map(u32::from_le_bytes)
        };
        Ok(match kind {
            1 if is_prefix(body) => Caveat::NamePrefix(body.clone()),
            2 => Caveat::ByteQuota(u64::from_le_bytes(body[..].try_into().map_err(|_| bad)?)),
            4 if is_tag(body) => {
                Caveat::AuditTag(String::from_utf8(body.to_vec()).map_err(|_| bad)?)
            }
            5 if body.len() == 8 => {
                let (uid, gid) = fixed(0).zip(fixed(4)).ok_or(bad)?;
                Caveat::Ids { uid, gid }
            }
            1 | 4 | 5 => return Err(bad),
            _ => return Err(BadCaveat::Unknown(kind)),
        })
    }
}

/// A part of one name, so it holds neither a separator nor a zero byte.
fn is_prefix(bytes: &[u8]) -> bool {
    (1..=MAX_PREFIX_BYTES).contains(&bytes.len()) && !bytes.iter().any(|b| matches!(b, 0 | b'/'))
}

fn is_tag(bytes: &[u8]) -> bool {
    (1..=MAX_TAG_BYTES).contains(&bytes.len()) && bytes.iter().all(|b| matches!(b, b' '..=b'~'))
}

impl fmt::Display for Caveat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Caveat::NamePrefix(prefix) => {
                write!(f, "names that begin with \"{}\"", prefix.escape_ascii())
            }
            Caveat::ByteQuota(bytes) => write!(f, "at most {bytes} bytes written"),
            Caveat::AuditTag(tag) => write!(f, "tagged \"{}\"", tag.escape_default()),
            Caveat::Ids { uid, gid } => write!(f, "as user {uid}, group {gid}"),
        }
    }
}
