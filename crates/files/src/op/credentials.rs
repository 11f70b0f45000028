//! Operations about credentials: bringing and taking back, and who may do what.

use bytes::Bytes;
use quorate_wire::{Digest, PublicKey, record, tagged};

use crate::types::Ino;

/// The most rows that one answer to [`Grants`], [`PassedOn`] or [`Audit`] has.
pub const MAX_ROWS: u32 = 256;

record! {
    /// See [`Action::PutCredential`](super::Action::PutCredential). Refused with `EPERM`: it is another key's. `EINVAL`: it does not hold, or is
    /// for another volume. `EACCES`: it has ended or is revoked. `EDQUOT`: somebody by whose hands it has come has passed on too much.
    /// `ENOSPC`: there are as many as there can be, and none ends soon. `ENOTSUP`: the volume has no owner.
    pub struct PutCredential {
        /// The chain, in the encoding of docs/credentials.md, at most 8,192 bytes. The caller is its last subject.
        pub chain: Bytes,
    }
}

record! {
    /// A link, by what its issuer wrote on it.
    pub struct Serial {
        /// Who signed the link.
        pub issuer: PublicKey,
        /// Its number.
        pub serial: u64,
    }
}

tagged! {
    /// What a revocation takes back, with all that was passed on below it.
    pub enum Revoked {
        /// The links of an issuer with this number.
        1 => Serial(Serial),
        /// The links whose subject is this key.
        2 => Key(PublicKey),
        /// The links of an issuer with a number below this one.
        3 => Epoch(Serial),
    }
}

record! {
    /// See [`Action::Revoke`](super::Action::Revoke). It holds for every credential that it matches, also for those that are brought later.
    ///
    /// Refused with `EPERM`: the caller is neither the owner nor holds the right by the credential that `by` names. `EINVAL`: `until` is over.
    /// `ENOSPC`: there are as many revocations as there can be. `ENOTSUP`: the volume has no owner.
    pub struct Revoke {
        /// What.
        pub what: Revoked,
        /// The caller's own credential, in force, that has the right `revoke`: only links below its last one are matched. The owner needs none.
        pub by: Option<Digest>,
        /// The last second in which the revocation is needed; it is forgotten after that. None, or later than the end of the credential that it is
        /// made by: until that ends. The owner's is then never forgotten.
        pub until: Option<u64>,
    }
}

record! {
    /// See [`Action::Restore`](super::Action::Restore). What was let go of meanwhile is to be brought again.
    ///
    /// Refused with `EPERM`: the caller is neither the owner nor holds the right by the credential that `by` names. `ENOENT`: there is no such
    /// revocation. `ENOTSUP`: the volume has no owner.
    pub struct Restore {
        /// What the revocation takes back. Of an epoch the number does not matter: there is one for each issuer.
        pub what: Revoked,
        /// By which credential it was made; none: by the owner. The owner may end those of others.
        pub by: Option<Digest>,
    }
}

record! {
    /// See [`Action::Revocations`](super::Action::Revocations).
    pub struct Revocations {
        /// The place after which to go on; none from the start.
        pub after: Option<RevocationPlace>,
        /// The most rows to answer, up to [`MAX_ROWS`]; 0 is `EINVAL`.
        pub count: u32,
    }
}

record! {
    /// Where a revocation stands in listings.
    pub struct RevocationPlace {
        /// By which credential it was made; none: by the owner.
        pub by: Option<Digest>,
        /// What it takes back.
        pub what: Revoked,
    }
}

record! {
    /// See [`Action::Grants`](super::Action::Grants).
    pub struct Grants {
        /// Only those that come to this object, something in it, or a tree that it is in; where nothing is in the scope of all links, those
        /// whose last link is about it.
        pub about: Option<Ino>,
        /// The place after which to go on; none from the start.
        pub after: Option<GrantPlace>,
        /// The most rows to answer, up to [`MAX_ROWS`]; 0 is `EINVAL`.
        pub count: u32,
    }
}

record! {
    /// See [`Action::PassedOn`](super::Action::PassedOn). Refused with `EPERM`: a guest asks, and `link` is not the last of a credential of its own
    /// that is in force.
    pub struct PassedOn {
        /// The digest of the link that all of them come by. That of a credential's last link is the credential's.
        pub link: Digest,
        /// As in [`Grants`].
        pub about: Option<Ino>,
        /// The place after which to go on; none from the start.
        pub after: Option<GrantPlace>,
        /// The most rows to answer, up to [`MAX_ROWS`]; 0 is `EINVAL`.
        pub count: u32,
    }
}

record! {
    /// Where a credential stands in listings.
    pub struct GrantPlace {
        /// Its last subject.
        pub subject: PublicKey,
        /// Its digest.
        pub id: Digest,
    }
}

record! {
    /// See [`Action::Audit`](super::Action::Audit).
    pub struct Audit {
        /// The first row wanted, by its sequence number. If it is not kept any more, the answer begins with the first that is.
        pub from: u64,
        /// The most rows to answer, up to [`MAX_ROWS`]; 0 is `EINVAL`.
        pub count: u32,
    }
}
