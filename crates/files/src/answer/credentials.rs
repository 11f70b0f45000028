//! Answers about credentials.

use alloc::string::String;
use alloc::vec::Vec;

use bytes::Bytes;
use quorate_wire::digest::Content;
use quorate_wire::{Digest, Encode, PublicKey, record};

use crate::errno::Errno;
use crate::op::{GrantPlace, MAX_HELD_AT_ONCE, MAX_ROWS, RevocationPlace, Revoked, Serial};
use crate::types::{Ino, Stamp};

record! {
    /// A credential that the volume keeps.
    pub struct KeptGrant {
        /// The chain: objects, rights, times, serials and all else that it says.
        pub chain: Bytes,
        /// Whether it, or something above it, is revoked. It has then no force.
        pub is_revoked: bool,
        /// How much was written under each of its links that has a byte quota, in their order.
        pub written: Vec<u64> => 16, "links",
        /// The object that all its links come to together: the one of theirs that is in the scope of each. None where there is none: nothing
        /// is in the scope of all, until something is moved.
        pub reaches: Option<Ino>,
        /// For members: where that object is (where there is none, the last link's), by the first of its names, from the volume's root; the end of
        /// it where it is longer than 1,024 bytes. None where the object is gone, has no name, or a guest asks.
        pub path: Option<Bytes>,
    }
}

record! {
    /// A part of the credentials that the volume keeps.
    pub struct Grants {
        /// In the order of subject and digest.
        pub grants: Vec<KeptGrant> => MAX_ROWS as usize, "grants",
        /// Where to go on; none if nothing comes after these.
        pub next: Option<GrantPlace>,
    }
}

record! {
    /// A revocation that the volume keeps.
    pub struct KeptRevocation {
        /// By which credential it was made: what is below that one's last link is taken back. None: by the owner.
        pub by: Option<Digest>,
        /// What it takes back.
        pub what: Revoked,
        /// The last second for which it is kept; `u64::MAX`: for ever.
        pub until: u64,
    }
}

record! {
    /// A part of the revocations that the volume keeps.
    pub struct Revocations {
        /// In the order in which they are kept.
        pub revocations: Vec<KeptRevocation> => MAX_ROWS as usize, "revocations",
        /// Where to go on; none if nothing comes after these.
        pub next: Option<RevocationPlace>,
    }
}

codes! {
    /// What was decided.
    pub enum Decision {
        /// Refused by what the credentials allow.
        0 => Denied,
        /// Allowed by them. The operation may have failed all the same.
        1 => Allowed,
    }
}

record! {
    /// A row of the audit log.
    pub struct AuditRow {
        /// Its number: 0, 1, and so on.
        pub sequence: u64,
        /// The digest of the row before; of the first, zeros.
        pub before: Digest,
        /// The agreed time.
        pub time: Stamp,
        /// Who.
        pub subject: PublicKey,
        /// By which links: those of the first credential that the decision is by; of a revocation, of the one that it is made by; where a
        /// credential is brought, its own, as it says itself if it is refused; of what was denied, those of the first credential that is
        /// about the object, else of the first that the guest has. None for members, and where there is no such credential.
        pub links: Vec<Serial> => 16, "links",
        /// The audit tags of these links, in their order.
        pub tags: Vec<Bytes> => 16, "tags",
        /// What: the number of the action in the encoding.
        pub action: u8,
        /// With which object; where the action names a directory and a name, the directory. 0 for none.
        pub object: Ino,
        /// The second object: the directory that a rename goes to or a link is made in, the file that a copy is from. 0 for none.
        pub other: Ino,
        /// What has, or had before, the name that the action gives or takes away; of a rename the old name. 0 for none.
        pub child: Ino,
        /// What was decided.
        pub decision: Decision,
        /// What came of it: 0, or the code of an [`Errno`].
        pub errno: u16,
        /// Of a revocation, also of one that is ended: what it takes back.
        pub revoked: Option<Revoked>,
        /// Where files are held from then on: all of them; `object` is the first.
        pub held: Vec<Ino> => MAX_HELD_AT_ONCE, "files",
        /// Against whose share of the log the row counts: that of the first subject of `links`, or, where there are none that are known to be
        /// signed, the one of all such, whose key is zeros. None where something was changed: such a row always has a place.
        pub share: Option<PublicKey>,
        /// How many operations before this one have no row, of all that there ever were: it would have been as the one before it, or the
        /// share was used up.
        pub untold: u64,
    }
}

impl AuditRow {
    /// What the next row has as `before`.
    pub fn digest(&self) -> Digest {
        Digest::of(Content::AuditRow, &self.to_bytes())
    }

    /// Why it failed, if it did.
    pub fn error(&self) -> Option<Errno> {
        Errno::from_code(self.errno)
    }

    /// The tags, for people.
    pub fn tag_text(&self) -> String {
        let words: Vec<_> = self
            .tags
            .iter()
            .map(|tag| String::from_utf8_lossy(tag))
            .collect();
        words.join(", ")
    }
}

record! {
    /// A part of the audit log.
    pub struct Audit {
        /// In their order.
        pub rows: Vec<AuditRow> => MAX_ROWS as usize, "rows",
        /// How many rows there were ever: the next one's number.
        pub next: u64,
        /// The digest of the last one, which all before it are bound to.
        pub head: Digest,
        /// How many operations have no row: see [`AuditRow::untold`].
        pub untold: u64,
    }
}
