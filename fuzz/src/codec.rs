//! Encodings: bytes are refused, or they are the one form of a value; and what is read costs memory in proportion to them.

use std::fmt::Debug;

use bytes::Bytes;
use quorate_agreement::Record;
use quorate_files::Op;
use quorate_ledger::{fuzzing as ledger, op};
use quorate_net::fuzzing::{Answer, Ask, MAX_TALK_BYTES};
use quorate_state::tree::{DEPTH, Node};
use quorate_wire::evidence::Kept;
use quorate_wire::message::{ClientMessage, Outcome, PeerMessage, ReplicaMessage};
use quorate_wire::{
    Decode, Digest, Encode, EpochCertificate, IdentityKey, KeyPair, Quorum, RecoveryStatement,
    ReplicaId, ReplicaKeys,
};

/// For each byte that came, as much as the dearest list of empty items takes up while it grows.
const MEMORY_PER_BYTE: usize = 64;
/// Room for the first items of lists.
const MEMORY_AT_LEAST: usize = 64 << 10;

fn one_form<T: Encode + Decode + PartialEq + Debug>(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let most = MEMORY_AT_LEAST + MEMORY_PER_BYTE * data.len();
    let Ok(value) = crate::within(most, || T::from_bytes(bytes)) else {
        return;
    };
    let again = value.to_bytes();
    assert_eq!(again, data, "another form of {value:?}");
    assert_eq!(T::from_bytes(Bytes::from(again)).as_ref(), Ok(&value));
}

/// What one replica says to another.
pub fn peer_message(data: &[u8]) {
    one_form::<PeerMessage>(data);
}

/// What a client says to a replica.
pub fn client_message(data: &[u8]) {
    one_form::<ClientMessage>(data);
}

/// What a replica says to a client.
pub fn replica_message(data: &[u8]) {
    one_form::<ReplicaMessage>(data);
}

/// Records of the write-ahead log.
pub fn record(data: &[u8]) {
    one_form::<Record>(data);
}

/// Operations on the volume.
pub fn op(data: &[u8]) {
    one_form::<Op>(data);
}

/// Results: the executor's, and the file service's within it.
pub fn outcome(data: &[u8]) {
    one_form::<Outcome>(data);
    one_form::<quorate_files::Outcome>(data);
}

/// Files of evidence. Against the keys of a group whose members have signed nothing, none proves anything.
pub fn evidence(data: &[u8]) {
    let Ok(kept) = Kept::from_file(&Bytes::copy_from_slice(data)) else {
        return;
    };
    assert_eq!(kept.to_file(), data);
    let keys = |first: u8| (0..4).map(move |r| KeyPair::from_seed(&[first + r; 32]).public());
    let of_group = |first: u8| ReplicaKeys::Standing {
        group: kept.group,
        keys: keys(first).collect(),
    };
    let (members, others) = (of_group(1), of_group(101));
    let quorum = Quorum::new(4).expect("f = 1");
    let subject = kept.evidence.subject(quorum);
    if let Ok(proved) = kept.evidence.verify(quorum, &members) {
        assert_eq!(subject, Ok(proved));
    }
    assert!(kept.evidence.verify(quorum, &others).is_err());
}

/// Statements of identity keys. The first byte says which kind; none passes for that of a replica that has signed nothing.
pub fn statement(data: &[u8]) {
    let Some((&kind, rest)) = data.split_first() else {
        return;
    };
    let identity = KeyPair::from_seed(&[1; 32]);
    let (group, identities) = (Digest([7; 32]), [IdentityKey::from(identity.public())]);
    let me = ReplicaId(0);
    if kind & 1 == 0 {
        one_form::<EpochCertificate>(rest);
        if let Ok(read) = EpochCertificate::from_slice(rest)
            && read.verify(&group, &identities).is_ok()
        {
            let (counter, epoch) = (read.counter, read.epoch);
            let again = EpochCertificate::sign(&identity, group, me, counter, epoch);
            assert_eq!(read, again);
        }
    } else {
        one_form::<RecoveryStatement>(rest);
        if let Ok(read) = RecoveryStatement::from_slice(rest)
            && read.verify(&group, &identities).is_ok()
        {
            let again = RecoveryStatement::sign(&identity, group, me, read.counter);
            assert_eq!(read, again);
        }
    }
}

/// What a replica asks of its key holder, and what it is told. Whatever is one has room in what either side reads.
pub fn key_holder(data: &[u8]) {
    one_form::<Ask>(data);
    one_form::<Answer>(data);
    let is_either = Ask::from_slice(data).is_ok() || Answer::from_slice(data).is_ok();
    assert!(!is_either || data.len() <= MAX_TALK_BYTES);
}

/// What a router asks of a coordinator's group, and what it is told.
pub fn ledger_op(data: &[u8]) {
    one_form::<op::Op>(data);
    one_form::<op::Reply>(data);
}

/// What a replica of such a group keeps. The first byte says which kind.
pub fn ledger_record(data: &[u8]) {
    let Some((&kind, rest)) = data.split_first() else {
        return;
    };
    match kind % 5 {
        0 => one_form::<ledger::Counters>(rest),
        1 => one_form::<ledger::Router>(rest),
        2 => one_form::<ledger::Holder>(rest),
        3 => one_form::<ledger::Intent>(rest),
        _ => one_form::<op::Value>(rest),
    }
}

/// Nodes of the partition tree. The first byte says how many of the next ones are the path.
pub fn tree_node(data: &[u8]) {
    let Some((&length, rest)) = data.split_first() else {
        return;
    };
    let Some((path, node)) = rest.split_at_checked(usize::from(length) % (DEPTH + 2)) else {
        return;
    };
    let bytes = Bytes::copy_from_slice(node);
    let most = MEMORY_AT_LEAST + MEMORY_PER_BYTE * node.len();
    if let Ok(read) = crate::within(most, || Node::decode(path, bytes)) {
        assert_eq!(&read.encode()[..], node);
        let _ = read.count();
    }
}

/// Frames of the write-ahead log.
pub fn frame(data: &[u8]) {
    let (frames, _) = quorate_wire::frame::read(&Bytes::copy_from_slice(data));
    let mut again = Vec::new();
    for (index, payload) in &frames {
        quorate_wire::frame::write(&mut again, *index, payload);
    }
    assert!(data.starts_with(&again));
}
