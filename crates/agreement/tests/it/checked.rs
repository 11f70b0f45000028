//! Signatures that the driver has checked: they cost no check, and nothing else is taken for right.

use crate::support::*;
use bytes::Bytes;
use quorate_agreement::{Agreement, Checks, Input, Memory, Output, Record, Rejected, Signed};
use quorate_wire::message::{AuthRequest, Fetch, PeerMessage, Prepare};
use quorate_wire::{Authenticator, ReplicaId, Seq, Verified, View};

fn op(number: u64) -> AuthRequest {
    signed_request(number, Bytes::from_static(b"op"))
}

/// With a signature of another request.
fn forged(number: u64) -> AuthRequest {
    let mut forged = op(number);
    forged.auth = op(number + 1_000).auth;
    forged
}

/// Of a client that the group does not name.
fn strangers(number: u64) -> AuthRequest {
    let mut request = request_of(99, number, Bytes::from_static(b"op"));
    let signature = key(99).sign_in(&GROUP, &request.request.digest());
    request.auth = Authenticator::Signed(signature.into());
    request
}

fn proposal(seq: u64, requests: &[AuthRequest]) -> PeerMessage {
    PeerMessage::PrePrepare(pre_prepare(0, seq, requests))
}

fn is_right((key, digest, signature): &Signed) -> bool {
    key.verify(digest, signature).is_ok()
}

/// What a driver does with something that comes: it asks what is to be checked, and tells what it has found.
fn check(replica: &mut Agreement, open: impl IntoIterator<Item = Signed>) -> usize {
    let verdicts = open.into_iter().map(|signed| (signed, is_right(&signed)));
    let verdicts: Vec<(Signed, bool)> = verdicts.collect();
    let count = verdicts.len();
    replica.handle(at(0), Input::Checked(verdicts)).unwrap();
    count
}

fn accepts(replica: &mut Agreement) -> bool {
    let voted = |o: &Output| matches!(o, Output::Persist(_, Record::PrePrepared(_)));
    outputs(replica).iter().any(voted)
}

fn proposed(replica: &mut Agreement) -> usize {
    let _ = replica.handle(at(0), Input::Tick);
    let batches = outputs(replica).into_iter().filter_map(|o| match o {
        Output::Broadcast(PeerMessage::PrePrepare(m)) => Some(m.batch.requests.len()),
        _ => None,
    });
    batches.sum()
}

fn leading_with_signatures() -> Agreement {
    let mut primary = fresh_signing(0);
    let _ = primary.handle(at(0), Input::Persisted(quorate_wire::LogIndex(0)));
    outputs(&mut primary);
    primary
}

/// A primary of a group with signatures has nothing to check of what was found right, neither when it comes nor when it is proposed. What
/// was found wrong it refuses, and what nobody has looked at it checks when it proposes.
#[test]
fn a_primary_checks_what_is_not_known() {
    let mut primary = leading_with_signatures();
    for number in 1..=3 {
        let open = primary.unchecked_of(&op(number));
        assert_eq!(check(&mut primary, open), 1);
        assert_eq!(primary.unchecked_of(&op(number)), None, "known by now");
        from_client(&mut primary, 0, op(number)).unwrap();
    }
    assert!(proposed(&mut primary) > 0);
    assert_eq!(primary.checks(), Checks::default());

    let open = primary.unchecked_of(&forged(4));
    assert_eq!(check(&mut primary, open), 1);
    let taken = from_client(&mut primary, 0, forged(4));
    assert_eq!(taken, Err(Rejected::BadAuthentication));
    assert_eq!(primary.checks(), Checks::default());

    let mut primary = leading_with_signatures();
    from_client(&mut primary, 0, op(1)).unwrap();
    assert_eq!(proposed(&mut primary), 1);
    let (alone, together) = (0, 1);
    assert_eq!(primary.checks(), Checks { alone, together });
}

/// What is in the pool unchecked is not checked for having come again with a right signature: it would be proposed with the wrong one.
#[test]
fn another_signature_of_the_same_request_is_another() {
    let mut primary = fresh_signing(0);
    from_client(&mut primary, 0, forged(1)).unwrap();
    check(&mut primary, as_signed(&op(1)));
    let _ = from_client(&mut primary, 0, op(1));
    let _ = primary.handle(at(0), Input::Persisted(quorate_wire::LogIndex(0)));
    assert_eq!(proposed(&mut primary), 0, "with a wrong signature");
    from_client(&mut primary, 0, op(1)).unwrap();
    assert_eq!(proposed(&mut primary), 1);
}

/// The signature of a request as a driver has it.
fn as_signed(request: &AuthRequest) -> Option<Signed> {
    let Authenticator::Signed(its) = &request.auth else {
        return None;
    };
    let (client, digest) = (request.request.client(), request.request.digest());
    Some((client, its.root(&GROUP, &digest), *its.signature()))
}

/// A backup checks nothing of a proposal whose signatures were found right; with a wrong one among them it does not vote.
#[test]
fn a_backup_checks_what_is_not_known() {
    for (requests, votes) in [
        ([op(1), op(2), op(3)], true),
        ([op(1), forged(2), op(3)], false),
    ] {
        let mut backup = fresh_signing(1);
        let proposal = proposal(1, &requests);
        let open = backup.unchecked_in(ReplicaId(0), &proposal);
        assert_eq!(check(&mut backup, open), 3);
        from_peer(&mut backup, 0, 0, proposal).unwrap();
        assert_eq!(accepts(&mut backup), votes);
        assert_eq!(backup.checks(), Checks::default());
    }
}

/// A signature that was found right says nothing of the same over another request, of another client's, or of another of the same request;
/// and a stranger's counts for nothing though it is right.
#[test]
fn nothing_else_is_right() {
    let mut stolen = request_of(51, 1, Bytes::from_static(b"op"));
    stolen.auth = op(1).auth;
    let mut moved = op(2);
    moved.auth = op(1).auth;
    for (other, checks) in [(stolen, 1), (moved, 1), (forged(1), 1), (strangers(1), 0)] {
        let mut backup = fresh_signing(1);
        let open = backup.unchecked_of(&op(1));
        assert_eq!(check(&mut backup, open), 1);
        let open = as_signed(&strangers(1));
        assert_eq!(check(&mut backup, open), 1);
        let taken = from_client(&mut backup, 0, other);
        assert_eq!(taken, Err(Rejected::BadAuthentication));
        assert_eq!(backup.checks().alone, checks);
        assert_eq!(from_client(&mut backup, 0, op(1)), Ok(()));
        assert_eq!(backup.checks().alone, checks);
    }
}

/// Strangers' signatures are nothing that anybody should check, nor what is known, nor what is not this replica's to look at.
#[test]
fn what_does_not_count_is_not_asked_for() {
    let mut primary = leading_with_signatures();
    assert_eq!(primary.unchecked_of(&strangers(1)), None);
    let relayed = |request| PeerMessage::Request(request);
    let count = |replica: &mut Agreement, m| replica.unchecked_in(ReplicaId(2), &m).len();
    assert_eq!(count(&mut primary, relayed(strangers(1))), 0);
    assert_eq!(count(&mut primary, relayed(op(1))), 1);
    assert_eq!(count(&mut primary, relayed(request(1, Bytes::new()))), 0);
    from_client(&mut primary, 0, op(1)).unwrap();
    assert_eq!(count(&mut primary, relayed(op(1))), 0);

    let mut backup = fresh_signing(1);
    assert_eq!(count(&mut backup, relayed(op(1))), 0, "for its primary");
    assert_eq!(count(&mut backup, proposal(1, &[op(1)])), 0, "no primary's");
    let mut from_primary = |m| backup.unchecked_in(ReplicaId(0), &m).len();
    assert_eq!(from_primary(proposal(10_000, &[op(1)])), 0, "far away");
    assert_eq!(from_primary(proposal(1, &[op(1), op(1), op(2)])), 2);
    assert_eq!(from_primary(proposal(1, &[op(3)])), 0, "of each place once");
    assert_eq!(from_primary(proposal(2, &[op(3), strangers(1)])), 1);
    let PeerMessage::PrePrepare(mut unnamed) = proposal(3, &[op(4), op(5)]) else {
        panic!("a proposal");
    };
    unnamed.batch.requests.pop();
    assert_eq!(from_primary(PeerMessage::PrePrepare(unnamed)), 1);

    // With MACs a client's link says whose a request is, and nobody looks at the signature.
    let mut primary = fresh(0);
    assert_eq!(primary.unchecked_of(&op(1)), None);
    // A backup may hold it against its primary.
    let mut backup = fresh(1);
    let open = backup.unchecked_of(&op(1));
    assert_eq!(check(&mut backup, open), 1);
    let taken = backup.handle(at(0), Input::Watch(Verified::from_link(op(1))));
    assert_eq!((taken, backup.checks()), (Ok(()), Checks::default()));
}

/// So many are remembered; what is forgotten is checked as ever.
#[test]
fn memory_is_bounded() {
    let mut backup = fresh_signing(1);
    let open = backup.unchecked_of(&op(1));
    check(&mut backup, open);
    let Some((client, digest, signature)) = backup.unchecked_of(&op(2)) else {
        panic!("unknown");
    };
    let wrong = backup.unchecked_of(&forged(3));
    check(&mut backup, wrong);
    for number in 0..20_000_u64 {
        let mut other = digest;
        other.0[..8].copy_from_slice(&number.to_le_bytes());
        let verdicts = vec![((client, other, signature), true)];
        backup.take(at(0), Input::Checked(verdicts)).unwrap();
    }
    let (held, bound) = (backup.memory().rest, Memory::bound(quorum(), 4).rest);
    assert!(held < 1 << 20 && held <= bound, "{held} of {bound}");
    assert!(backup.unchecked_of(&op(1)).is_some());
    from_client(&mut backup, 0, op(1)).unwrap();
    assert_eq!(backup.checks().alone, 1);
    let taken = from_client(&mut backup, 0, forged(3));
    assert_eq!(taken, Err(Rejected::BadAuthentication));
    assert_eq!(backup.checks().alone, 2);
}

/// What a replica has taken in unchecked as a primary whose view never began, it checks when the next one proposes it: it votes for no signature that it
/// has not seen to be right. And what it has voted for, for others vouched for it, it keeps.
#[test]
fn a_backup_votes_for_nothing_that_it_took_unchecked_as_primary() {
    let go_to = |replica: &mut Agreement, view: u64, others: &[u8]| {
        for from in others {
            let m = PeerMessage::ViewChange(view_change(*from, view));
            let _ = from_peer(replica, 1, *from, m);
        }
        assert_eq!(replica.standing().view, View(view));
    };
    let mut replica = fresh_signing(1);
    go_to(&mut replica, 1, &[2, 3]);
    from_client(&mut replica, 1, forged(1)).unwrap();
    go_to(&mut replica, 2, &[0, 3]);
    let changes = [0, 2, 3].map(|from| view_change(from, 2));
    for change in &changes {
        let m = PeerMessage::ViewChange(change.clone());
        let _ = from_peer(&mut replica, 2, change.body.replica.0, m);
    }
    let begins = new_view(2, named(&changes), (Seq(0), GENESIS), vec![]);
    from_peer(&mut replica, 2, 2, PeerMessage::NewView(begins)).unwrap();
    assert!(replica.standing().active);
    outputs(&mut replica);
    let mut m = pre_prepare(2, 1, &[forged(1)]);
    (m.view, m.bodies) = (View(2), vec![]);
    let (view, seq, digest) = (m.view, m.seq, m.batch.digest());
    from_peer(&mut replica, 2, 2, PeerMessage::PrePrepare(m)).unwrap();
    assert!(!accepts(&mut replica));

    // Two that have voted for it stand for it.
    let body = PeerMessage::Body(forged(1));
    let _ = replica.handle(at(200), Input::Tick);
    let _ = from_peer(&mut replica, 200, 2, body);
    for from in [2, 3] {
        let vote = PeerMessage::Prepare(Prepare { view, seq, digest });
        from_peer(&mut replica, 200, from, vote).unwrap();
    }
    assert!(accepts(&mut replica));
    let wanted = Fetch::Request(forged(1).request.digest());
    from_peer(&mut replica, 201, 0, PeerMessage::Fetch(wanted)).unwrap();
    let gives = |o: &Output| matches!(o, Output::Send(_, PeerMessage::Body(_)));
    assert!(outputs(&mut replica).iter().any(gives));
}
