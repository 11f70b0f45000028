//! What a replica asks of its key holder, and what that says.

extern crate alloc;

use quorate_wire::{Digest, EpochCertificate, PublicKey, RecoveryStatement, ReplicaId};
use quorate_wire::{record, tagged};

record! {
    /// What a replica wants.
    pub struct Ask {
        /// For which group.
        pub group: Digest,
        /// In whose name.
        pub replica: ReplicaId,
        /// What is to be signed.
        pub statement: Wanted,
    }
}

tagged! {
    /// The statements that there are.
    pub enum Wanted {
        /// A certificate of this epoch key.
        1 => Certificate(PublicKey),
        /// That the replica recovers.
        2 => Recovery(()),
    }
}

tagged! {
    /// What the key holder says.
    pub enum Answer {
        /// As asked.
        1 => Certificate(EpochCertificate),
        /// As asked.
        2 => Recovery(RecoveryStatement),
        /// It holds the key of this group and replica.
        3 => NotMine(Whose),
        /// It has signed so many of late that it signs another one after so many milliseconds.
        4 => TooOften(u64),
    }
}

record! {
    /// Whose key a key holder has.
    pub struct Whose {
        /// The group's id.
        pub group: Digest,
        /// The replica.
        pub replica: ReplicaId,
    }
}
