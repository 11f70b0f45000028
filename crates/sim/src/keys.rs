//! The key pairs of replicas and clients, by the byte of which their secrets consist.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::OnceLock;

use quorate_wire::{
    Certifies, Digest, EpochCertificate, IdentityKey, KeyPair, P256Pair, Quorum, RecoveryStatement,
    ReplicaId, ReplicaKeys, Signature, Signer,
};

/// Each is made once: that costs as much as to sign, and every run has the same.
static MADE: [OnceLock<KeyPair>; 256] = [const { OnceLock::new() }; 256];

/// The key pair of a byte.
pub fn key_pair(byte: u8) -> KeyPair {
    let made = &MADE[usize::from(byte)];
    made.get_or_init(|| KeyPair::from_seed(&[byte; 32])).clone()
}

/// The id of the group.
/// The group's id.
pub const GROUP: Digest = Digest([3; 32]);

/// The key of a replica that lasts.
pub fn key_of(id: ReplicaId) -> KeyPair {
    key_pair(id.0 + 1)
}

/// What a replica's key holder is.
#[derive(Clone, Debug)]
pub enum Holder {
    /// A process.
    Process(KeyPair),
    /// A TPM.
    Chip(P256Pair),
}

impl Certifies for Holder {
    fn identity(&self) -> IdentityKey {
        match self {
            Holder::Process(key) => key.identity(),
            Holder::Chip(key) => key.identity(),
        }
    }

    fn sign_statement(&self, digest: &Digest) -> Signature {
        match self {
            Holder::Process(key) => key.sign_statement(digest),
            Holder::Chip(key) => key.sign_statement(digest),
        }
    }
}

/// The key of a replica's key holder: of every third one a TPM's.
pub fn identity_of(id: ReplicaId) -> Holder {
    static MADE: [OnceLock<Option<P256Pair>>; 256] = [const { OnceLock::new() }; 256];
    let byte = id.0 + 200;
    let chip = (id.0 % 3 == 1).then(|| &MADE[usize::from(byte)]);
    let chip = chip.and_then(|made| {
        made.get_or_init(|| P256Pair::from_secret(&[byte; 32]))
            .clone()
    });
    match chip {
        Some(key) => Holder::Chip(key),
        None => Holder::Process(key_pair(byte)),
    }
}

thread_local! {
    /// Those that were made in this thread, which are the same in each run.
    static SIGNERS: RefCell<BTreeMap<(ReplicaId, u64), Signer>> = const { RefCell::new(BTreeMap::new()) };
}

/// More are made anew: in hours of virtual time there are many.
const MOST: usize = 1 << 12;

/// The key of a replica in its epoch of this number, certified.
pub fn signer_of(id: ReplicaId, counter: u64) -> Signer {
    SIGNERS.with_borrow_mut(|made| {
        if made.len() >= MOST {
            made.clear();
        }
        let made = made.entry((id, counter));
        made.or_insert_with(|| make_signer(id, counter)).clone()
    })
}

fn make_signer(id: ReplicaId, counter: u64) -> Signer {
    let mut seed = [id.0 + 1; 32];
    seed[..8].copy_from_slice(&counter.to_le_bytes());
    let key = KeyPair::from_seed(&seed);
    let certificate = EpochCertificate::sign(&identity_of(id), GROUP, id, counter, key.public());
    Signer::of_epoch(key, certificate)
}

/// What a replica without a key holder signs with.
pub fn standing_signer(id: ReplicaId) -> Signer {
    Signer::standing(GROUP, key_of(id))
}

/// The identity's word, under this number, that a replica recovers.
pub fn statement_of(id: ReplicaId, counter: u64) -> RecoveryStatement {
    RecoveryStatement::sign(&identity_of(id), GROUP, id, counter)
}

/// What the replicas' signatures are checked against, with key holders or without.
pub fn replica_keys(quorum: Quorum, holders: bool) -> ReplicaKeys {
    match holders {
        false => ReplicaKeys::Standing {
            group: GROUP,
            keys: quorum.replicas().map(|id| key_of(id).public()).collect(),
        },
        true => ReplicaKeys::Certified {
            group: GROUP,
            identities: quorum
                .replicas()
                .map(|id| identity_of(id).identity())
                .collect(),
        },
    }
}
