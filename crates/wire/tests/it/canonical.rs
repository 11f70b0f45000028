//! Every message has one form, and whatever comes in, nothing panics.

use std::cell::Cell;
use std::collections::BTreeSet;

use crate::support::{self, codec};
use bytes::Bytes;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use quorate_wire::message::*;
use quorate_wire::*;

crate::canonical! {
    peer_message: codec::<PeerMessage>(), support::peer_message();
    client_message: codec::<ClientMessage>(), support::client_message();
    replica_message: codec::<ReplicaMessage>(), support::replica_message();
    state_message: codec::<StateMessage>(), support::state_message();
    signed_view_change: codec::<SignedViewChange>(), support::view_change();
    signed_new_view: codec::<SignedNewView>(), support::new_view();
    outcome: codec::<Outcome>(), support::outcome();
    control: codec::<Control>(), support::control();
    certificate: codec::<EpochCertificate>(), support::certificate();
    recovery: codec::<RecoveryStatement>(), support::recovery();
}

/// The strategy for messages between replicas leaves no variant out, and tags are what the format says.
#[test]
fn every_peer_message_is_tried() {
    let mut runner = TestRunner::deterministic();
    let mut seen = BTreeSet::new();
    for _ in 0..2000 {
        let tree = support::peer_message().new_tree(&mut runner);
        let message = tree.expect("a message").current();
        assert_eq!(message.to_bytes()[0], support::peer_tag(&message));
        seen.insert(support::peer_tag(&message));
    }
    assert_eq!(seen, (1..=18).collect());
}

/// The long strings of what clients and replicas say to each other are not copied into a message, nor are the values in a result.
#[test]
fn long_strings_are_shared() {
    let string = |n: u8| Bytes::from(vec![n; 1 << 16]);
    let (client, session, number) = (PublicKey([1; 32]), SessionId(2), RequestNumber(3));
    let request = AuthRequest {
        request: Request::new(client, session, number, string(1)),
        auth: Authenticator::Macs(vec![Mac([4; 16]); 4]),
        replier: EVERYONE,
    };
    let read = Read {
        early: true,
        session,
        number,
        replier: EVERYONE,
        op: string(2),
    };
    let mut result = SegmentWriter::after(vec![0; 9]);
    for part in [string(3), Bytes::from_static(b"between"), string(4)] {
        result.put(&part);
    }
    let span = |offset| Span {
        offset,
        length: 1 << 16,
    };
    let values = vec![span(9), span(9 + (1 << 16) + 7)];
    let parted = Parted::new(Segments::from(result), values).expect("values in order");
    assert_eq!(
        parted.digest(),
        Parted::from_slice(&parted.to_bytes()).unwrap().digest()
    );
    let reply = |body| Reply {
        session,
        number,
        view: View(5),
        tentative: false,
        body,
    };
    let vouched = Vouched {
        reply: reply(ReplyBody::Full(string(5))),
        vouchers: Vec::new(),
    };
    share(&ClientMessage::Request(request), 1);
    share(&ClientMessage::Read(read), 1);
    share(&ReplicaMessage::Reply(reply(ReplyBody::Full(string(6)))), 1);
    let reply = reply(ReplyBody::Parted(parted));
    share(&ReplicaMessage::Read(ReadReply { reply, at: Seq(1) }), 2);
    share(&ReplicaMessage::Vouched(vouched), 1);
}

/// A message is its bytes, and has so many long strings, which are the same memory in each of two encodings.
fn share(message: &impl Encode, count: usize) {
    let encode = || {
        let mut out = SegmentWriter::after(Vec::new());
        message.encode_shared(&mut out);
        out.end()
    };
    let ((first, rest), (_, again)) = (encode(), encode());
    assert_eq!([&first[..], &rest.concat()].concat(), message.to_bytes());
    let same = rest.iter().zip(&again);
    let same = same.filter(|(a, b)| a.as_ptr() == b.as_ptr());
    assert_eq!(same.count(), count);
}

thread_local!(static READ: Cell<usize> = const { Cell::new(0) });

/// An item of one byte that counts how often it is read.
#[derive(Debug)]
struct Probe;

impl Decode for Probe {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        READ.set(READ.get() + 1);
        u8::decode(r).map(|_| Probe)
    }
}

/// A count above what the input can hold is refused before an item is read, and one above a bound too.
#[test]
fn a_count_is_checked_before_its_items() {
    for count in [4, 1 << 20, u32::MAX] {
        let mut bytes = count.to_bytes();
        bytes.extend([0; 3]);
        assert_eq!(
            Vec::<Probe>::from_slice(&bytes).err(),
            Some(DecodeError::Truncated)
        );
        assert_eq!(
            Bytes::from_slice(&bytes).err(),
            Some(DecodeError::Truncated)
        );
    }
    let bytes = [&3_u32.to_bytes()[..], &[0; 3]].concat();
    let mut r = Reader::new(Bytes::from(bytes.clone()));
    let refused = quorate_wire::codec::bounded::<Probe>(&mut r, 2, "probes");
    assert_eq!(refused.err(), Some(DecodeError::TooLong("probes")));
    assert_eq!(READ.get(), 0);
    assert_eq!(Vec::<Probe>::from_slice(&bytes).map(|v| v.len()), Ok(3));
    assert_eq!(READ.get(), 3);
}

/// Lists stop at the bounds that the format states.
#[test]
fn bounds_are_kept() {
    let batch = |n: usize| Batch {
        time: Time(1),
        requests: vec![Digest::ZERO; n],
    };
    assert!(Batch::from_slice(&batch(MAX_BATCH_REQUESTS).to_bytes()).is_ok());
    let too_long = Err(DecodeError::TooLong("requests in a batch"));
    assert_eq!(
        Batch::from_slice(&batch(MAX_BATCH_REQUESTS + 1).to_bytes()),
        too_long
    );

    let macs = |n: usize| Authenticator::Macs(vec![Mac([0; 16]); n]);
    assert!(Authenticator::from_slice(&macs(Quorum::MAX_REPLICAS).to_bytes()).is_ok());
    let bytes = macs(Quorum::MAX_REPLICAS + 1).to_bytes();
    let too_long = Err(DecodeError::TooLong("MACs"));
    assert_eq!(Authenticator::from_slice(&bytes), too_long);

    let paths = |n: usize| {
        StateMessage::GetNodes(transfer::GetNodes {
            checkpoint: Seq(1),
            paths: vec![Bytes::new(); n],
        })
    };
    assert!(StateMessage::from_slice(&paths(transfer::MAX_PIECES).to_bytes()).is_ok());
    let bytes = paths(transfer::MAX_PIECES + 1).to_bytes();
    let too_long = Err(DecodeError::TooLong("paths"));
    assert_eq!(StateMessage::from_slice(&bytes), too_long);

    // Client, session, number, answered.
    let mut head = [0; 32 + 3 * 8].to_vec();
    (MAX_OP_BYTES as u32 + 1).encode(&mut head);
    head.resize(head.len() + MAX_OP_BYTES + 1, 0);
    let too_long = Err(DecodeError::TooLong("operation bytes"));
    assert_eq!(Request::from_slice(&head), too_long);
}

/// Numbers that no group gets to don't overflow: a new view's places end with the numbers, and successors stay.
#[test]
fn the_last_numbers_are_harmless() {
    let new_view = |start: u64| NewView {
        view: View(u64::MAX),
        proofs: Vec::new(),
        start: (Seq(start), Digest::ZERO),
        selection: vec![Digest::ZERO; 4],
    };
    let places = |start| new_view(start).votes().map(|v| v.seq.0).collect::<Vec<_>>();
    assert_eq!(places(u64::MAX), []);
    assert_eq!(places(u64::MAX - 2), [u64::MAX - 1, u64::MAX]);
    assert_eq!(places(7), [8, 9, 10, 11]);
    assert_eq!(Seq(u64::MAX).next(), Seq(u64::MAX));
    assert_eq!(View(u64::MAX).next(), View(u64::MAX));
}
