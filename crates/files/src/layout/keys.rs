//! Keys of the state: how they are made, and what stands in them.

use alloc::vec::Vec;

use bytes::Bytes;
use quorate_wire::{Digest, PublicKey};

use super::Place;
use crate::op::{Revoked, Serial};
use crate::types::Ino;

/// Type bytes of keys.
pub(crate) mod tag {
    pub const COUNTERS: u8 = 0x10;
    pub const INODE: u8 = 0x11;
    pub const ENTRY: u8 = 0x12;
    pub const COOKIE: u8 = 0x13;
    pub const EXTENT: u8 = 0x14;
    pub const SYMLINK: u8 = 0x15;
    pub const XATTR: u8 = 0x16;
    pub const OPEN: u8 = 0x17;
    pub const OPEN_BY_INO: u8 = 0x18;
    pub const OPEN_COUNT: u8 = 0x19;
    pub const LOCKS: u8 = 0x1a;
    pub const DEAD: u8 = 0x1b;
    pub const GRANT: u8 = 0x1c;
    pub const HOST: u8 = 0x1d;
    pub const WRITTEN: u8 = 0x1e;
    pub const REVOCATION: u8 = 0x1f;
    pub const REVOKER: u8 = 0x20;
    pub const EXPIRY: u8 = 0x21;
    pub const SHARING: u8 = 0x22;
    pub const AUDIT: u8 = 0x23;
    pub const NAME: u8 = 0x24;
    pub const QUOTA: u8 = 0x25;
    pub const MEMBER: u8 = 0x26;
    pub const GUEST_SESSION: u8 = 0x27;
    pub const LINGERING: u8 = 0x28;
    pub const WAITING: u8 = 0x29;
    pub const LINGERING_ALL: u8 = 0x2a;
    pub const AUDITED: u8 = 0x2b;
    pub const BELOW: u8 = 0x2c;
    pub const SWEEP_AGAIN: u8 = 0x2d;
    pub const ENDED: u8 = 0x2e;
    pub const LOCK_COUNT: u8 = 0x2f;
}

fn join(tag: u8, numbers: &[u64], rest: &[u8]) -> Bytes {
    let mut key = Vec::with_capacity(1 + 8 * numbers.len() + rest.len());
    key.push(tag);
    for number in numbers {
        key.extend_from_slice(&number.to_be_bytes());
    }
    key.extend_from_slice(rest);
    Bytes::from(key)
}

pub(crate) fn counters_key() -> Bytes {
    join(tag::COUNTERS, &[], &[])
}

pub(crate) fn inode_key(ino: Ino) -> Bytes {
    join(tag::INODE, &[ino.0], &[])
}

pub(crate) fn entry_key(dir: Ino, name: &[u8]) -> Bytes {
    join(tag::ENTRY, &[dir.0], name)
}

pub(crate) fn cookie_key(dir: Ino, cookie: u64) -> Bytes {
    join(tag::COOKIE, &[dir.0, cookie], &[])
}

pub(crate) fn extent_key(data: u64, chunk: u64) -> Bytes {
    join(tag::EXTENT, &[data, chunk], &[])
}

pub(crate) fn symlink_key(ino: Ino) -> Bytes {
    join(tag::SYMLINK, &[ino.0], &[])
}

pub(crate) fn xattr_key(ino: Ino, name: &[u8]) -> Bytes {
    join(tag::XATTR, &[ino.0], name)
}

/// The first key of an object's extended attributes, and the first key after them.
pub(crate) fn xattr_range(ino: Ino) -> (Bytes, Bytes) {
    let after = match ino.0.checked_add(1) {
        Some(next) => join(tag::XATTR, &[next], &[]),
        None => join(tag::XATTR + 1, &[], &[]),
    };
    (join(tag::XATTR, &[ino.0], &[]), after)
}

/// `number` is that of a handle.
pub(crate) fn open_key(session: u64, number: u64) -> Bytes {
    join(tag::OPEN, &[session, number], &[])
}

pub(crate) fn open_by_ino_key(ino: Ino, session: u64) -> Bytes {
    join(tag::OPEN_BY_INO, &[ino.0, session], &[])
}

pub(crate) fn open_count_key(session: u64) -> Bytes {
    join(tag::OPEN_COUNT, &[session], &[])
}

pub(crate) fn ended_key(session: u64) -> Bytes {
    join(tag::ENDED, &[session], &[])
}

pub(crate) fn lock_count_key(session: u64) -> Bytes {
    join(tag::LOCK_COUNT, &[session], &[])
}

pub(crate) fn guest_session_key(session: u64) -> Bytes {
    join(tag::GUEST_SESSION, &[session], &[])
}

pub(crate) fn locks_key(ino: Ino) -> Bytes {
    join(tag::LOCKS, &[ino.0], &[])
}

pub(crate) fn dead_key(place: u64) -> Bytes {
    join(tag::DEAD, &[place], &[])
}

pub(crate) fn grant_key(subject: PublicKey, id: Digest) -> Bytes {
    join(tag::GRANT, &[], &[subject.0, id.0].concat())
}

/// The first and the last key that a subject's credentials can have.
pub(crate) fn grants_of(subject: PublicKey) -> (Bytes, Bytes) {
    let last = Digest([0xff; 32]);
    (grant_key(subject, Digest::ZERO), grant_key(subject, last))
}

/// `link` is the digest of one above the credential's last.
pub(crate) fn below_key(link: Digest, subject: PublicKey, id: Digest) -> Bytes {
    join(tag::BELOW, &[], &[link.0, subject.0, id.0].concat())
}

/// The first and the last key that what was passed on from a link can have.
pub(crate) fn below_range(link: Digest) -> (Bytes, Bytes) {
    let last = below_key(link, PublicKey([0xff; 32]), Digest([0xff; 32]));
    (below_key(link, PublicKey([0; 32]), Digest::ZERO), last)
}

pub(crate) fn host_key(host: PublicKey) -> Bytes {
    join(tag::HOST, &[], &host.0)
}

pub(crate) fn written_key(link: Digest) -> Bytes {
    join(tag::WRITTEN, &[], &link.0)
}

pub(crate) fn revocation_key(under: Digest, what: &Revoked) -> Bytes {
    let (kind, key, serial) = match what {
        Revoked::Serial(of) => (1, of.issuer, Some(of.serial)),
        Revoked::Key(key) => (2, *key, None),
        Revoked::Epoch(of) => (3, of.issuer, None),
    };
    let serial = serial.map(u64::to_be_bytes);
    let serial = serial.as_ref().map_or(&[][..], |bytes| bytes);
    let parts = [&under.0[..], &[kind], &key.0, serial];
    join(tag::REVOCATION, &[], &parts.concat())
}

/// The first key that a revocation can have, and the first key after them.
pub(crate) fn revocations() -> (Bytes, Bytes) {
    (
        join(tag::REVOCATION, &[], &[]),
        join(tag::REVOCATION + 1, &[], &[]),
    )
}

/// By whose link a revocation with this key is (zeros: the owner's), and what it takes back; `below` stands in its row.
pub(crate) fn revoked_by(key: &[u8], below: u64) -> Option<(Digest, Revoked)> {
    let under = Digest(key_at(key, 0)?);
    let issuer = PublicKey(key.get(34..66)?.try_into().ok()?);
    let what = match key.get(33)? {
        1 => {
            let serial = u64::from_be_bytes(key.get(66..)?.try_into().ok()?);
            Revoked::Serial(Serial { issuer, serial })
        }
        2 => Revoked::Key(issuer),
        3 => Revoked::Epoch(Serial {
            issuer,
            serial: below,
        }),
        _ => return None,
    };
    Some((under, what))
}

pub(crate) fn revoker_key(under: Digest) -> Bytes {
    join(tag::REVOKER, &[], &under.0)
}

pub(crate) fn expiry_key(until: u64, key: &[u8]) -> Bytes {
    join(tag::EXPIRY, &[until], key)
}

pub(crate) fn name_key(ino: Ino, place: Place) -> Bytes {
    join(tag::NAME, &[ino.0, place.dir.0, place.cookie], &[])
}

/// The first and the last key that an object's further names can have.
pub(crate) fn names_of(ino: Ino) -> (Bytes, Bytes) {
    let key = |n| join(tag::NAME, &[ino.0, n, n], &[]);
    (key(0), key(u64::MAX))
}

pub(crate) fn quota_key(number: u64) -> Bytes {
    join(tag::QUOTA, &[number], &[])
}

/// The first key of the quotas from a number on, and the first key after them.
pub(crate) fn quota_range(from: u64) -> (Bytes, Bytes) {
    (quota_key(from), join(tag::MEMBER, &[], &[]))
}

pub(crate) fn member_key(ino: Ino) -> Bytes {
    join(tag::MEMBER, &[ino.0], &[])
}

pub(crate) fn lingering_key(ino: Ino) -> Bytes {
    join(tag::LINGERING, &[ino.0], &[])
}

pub(crate) fn waiting_key(place: u64) -> Bytes {
    join(tag::WAITING, &[place], &[])
}

pub(crate) fn lingering_all_key() -> Bytes {
    join(tag::LINGERING_ALL, &[], &[])
}

pub(crate) fn audit_key(sequence: u64) -> Bytes {
    join(tag::AUDIT, &[sequence], &[])
}

pub(crate) fn audited_key(share: PublicKey) -> Bytes {
    join(tag::AUDITED, &[], &share.0)
}

pub(crate) fn sharing_key() -> Bytes {
    join(tag::SHARING, &[], &[])
}

pub(crate) fn sweep_again_key() -> Bytes {
    join(tag::SWEEP_AGAIN, &[], &[])
}

/// 32 bytes of a key that this crate made: the first or second of two in a row.
pub(crate) fn key_at(key: &[u8], index: usize) -> Option<[u8; 32]> {
    key.get(1 + 32 * index..33 + 32 * index)?.try_into().ok()
}

/// The number at a place in a key that this crate made.
pub(crate) fn number_at(key: &[u8], index: usize) -> Option<u64> {
    let start = 1 + 8 * index;
    let bytes = key.get(start..start + 8)?;
    Some(bytes.iter().fold(0, |n, &b| (n << 8) | u64::from(b)))
}
