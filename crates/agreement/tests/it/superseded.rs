//! Certificates that have come to nothing: a view has begun without them. PBFT 2002, 4.4 bounds what is remembered of batches that came to nothing, so a certificate of
//! one might be waited for in vain, in every view from then on.

use crate::support::*;
use bytes::Bytes;
use quorate_agreement::{Agreement, Input, Output, Record};
use quorate_wire::message::{
    NewView, PeerMessage, PrePrepare, Prepare, SignedNewView, SignedViewChange, ViewChange, Vote,
};
use quorate_wire::{Digest, LogIndex, ReplicaId, Seq, View};

/// What a replica that has no certificate, or this one, says when it leaves for a view.
fn leaves(from: u8, view: u64, prepared: Option<&Vote>) -> SignedViewChange {
    let certificates: Vec<Vote> = prepared.cloned().into_iter().collect();
    let body = ViewChange {
        view: View(view),
        replica: ReplicaId(from),
        stable: Seq(0),
        checkpoints: vec![(Seq(0), GENESIS)],
        prepared: certificates.clone(),
        preprepared: certificates,
    };
    SignedViewChange::sign(body, &signer(from)).into_inner()
}

/// View 1 begins with what replicas 0, 1 and 3 have said, and with these batches.
fn begins(selection: &[Digest], certificate: Option<&Vote>) -> (Vec<SignedViewChange>, NewView) {
    let changes: Vec<_> = [0, 1, 3].map(|r| leaves(r, 1, certificate)).into();
    let body = NewView {
        view: View(1),
        proofs: changes
            .iter()
            .map(|m| (m.body.replica, m.digest()))
            .collect(),
        start: (Seq(0), GENESIS),
        selection: selection.to_vec(),
    };
    (changes, body)
}

fn hears(replica: &mut Agreement, message: PeerMessage) {
    let from = match &message {
        PeerMessage::ViewChange(m) => m.body.replica,
        _ => ReplicaId(1),
    };
    let _ = replica.handle(at(1), Input::Peer(from, message));
    replica.invariants();
}

fn starts_view_1(replica: &mut Agreement, (changes, body): (Vec<SignedViewChange>, NewView)) {
    let new_view = SignedNewView::sign(body, &signer(1)).into_inner();
    hears(replica, PeerMessage::NewView(new_view));
    for change in changes {
        hears(replica, PeerMessage::ViewChange(change));
    }
}

/// Replica 2, which alone has a certificate of view 0 for the first place.
fn holder() -> (Agreement, Vote, Vec<Record>) {
    let mut replica = fresh(2);
    let proposal: PrePrepare = pre_prepare(1, 1, &[signed_request(1, Bytes::from_static(b"op"))]);
    let (view, seq, digest) = (View(0), Seq(1), proposal.batch.digest());
    from_peer(&mut replica, 1, 0, PeerMessage::PrePrepare(proposal)).unwrap();
    for from in [0, 1, 3] {
        let vote = PeerMessage::Prepare(Prepare { view, seq, digest });
        from_peer(&mut replica, 1, from, vote).unwrap();
    }
    let records = records(&mut replica);
    (replica, Vote { seq, view, digest }, records)
}

/// What it has written to its log since, which is then on disk.
fn records(replica: &mut Agreement) -> Vec<Record> {
    let records = written(replica).into_iter().map(|(_, r)| r).collect();
    let _ = replica.handle(at(1), Input::Persisted(LogIndex(1 << 40)));
    records
}

/// The certificates that it shows when two others have left for a view.
fn shows(replica: &mut Agreement, view: u64) -> (Vec<Vote>, Vec<Record>) {
    for from in [0, 3] {
        hears(replica, PeerMessage::ViewChange(leaves(from, view, None)));
    }
    let records = records(replica);
    let own = records.iter().find_map(|record| match record {
        Record::Changing(change) if change.body.view == View(view) => Some(change.body.clone()),
        _ => None,
    });
    (own.expect("it follows them").prepared, records)
}

/// Whoever enters a view that has begun without the batch of a certificate does not show it any more, after a restart either. A view that begins with the batch leaves it.
#[test]
fn a_view_that_begins_without_it_ends_a_certificate() {
    let (mut kept, vote, _) = holder();
    assert_eq!(shows(&mut kept, 1).0, vec![vote.clone()]);

    for is_given in [false, true] {
        let (mut replica, vote, mut log) = holder();
        let selection = [vote.digest];
        let begun = match is_given {
            true => begins(&selection, Some(&vote)),
            false => begins(&[], None),
        };
        starts_view_1(&mut replica, begun);
        assert_eq!(
            (replica.standing().view, replica.standing().active),
            (View(1), true)
        );
        log.extend(records(&mut replica));
        let mut again = restarted(2, (Seq(0), GENESIS), log);
        for replica in [&mut replica, &mut again] {
            let shown = shows(replica, 2).0;
            assert_eq!(shown.is_empty(), !is_given, "{shown:?}");
        }
    }
}

/// It was not there when the view began, and has followed the others to a later one, where its certificate keeps that from beginning. Who knows how the view before began tells it, and from the next view on
/// the certificate is gone.
#[test]
fn who_has_missed_the_view_is_told_of_it() {
    let (mut replica, vote, _) = holder();
    assert_eq!(shows(&mut replica, 2).0, vec![vote.clone()]);
    // The faulty primary of that view shows one of a far view of its own, with VIEW-CHANGEs that nobody has, and one of its view that may be right as well.
    let invented: Vec<_> = [0, 1, 3].map(|r| (ReplicaId(r), Digest([r; 32]))).into();
    for view in [View(4001), View(1)] {
        let body = NewView {
            view,
            proofs: invented.clone(),
            start: (Seq(0), GENESIS),
            selection: vec![],
        };
        let new_view = SignedNewView::sign(body, &signer(1)).into_inner();
        hears(&mut replica, PeerMessage::NewView(new_view));
    }
    let (changes, body) = begins(&[], None);
    let new_view = SignedNewView::sign(body, &signer(1)).into_inner();
    let shown = PeerMessage::NewView(new_view);
    let _ = replica.handle(at(1), Input::Peer(ReplicaId(3), shown));
    for change in changes {
        hears(&mut replica, PeerMessage::ViewChange(change));
    }
    assert_eq!(
        (replica.standing().view, replica.standing().active),
        (View(2), false)
    );
    assert_eq!(shows(&mut replica, 3).0, vec![]);

    let mut other = fresh(0);
    let (changes, body) = begins(&[], None);
    for change in changes
        .into_iter()
        .filter(|m| m.body.replica != ReplicaId(0))
    {
        hears(&mut other, PeerMessage::ViewChange(change));
    }
    let _ = records(&mut other);
    starts_view_1(&mut other, (vec![], body));
    assert!(other.standing().active);
    let _ = records(&mut other);
    for from in [1, 3] {
        hears(&mut other, PeerMessage::ViewChange(leaves(from, 2, None)));
    }
    let _ = records(&mut other);
    assert_eq!(
        (other.standing().view, other.standing().active),
        (View(2), false)
    );
    let mut tells = |shown: Option<&Vote>, view: u64| {
        hears(&mut other, PeerMessage::ViewChange(leaves(2, view, shown)));
        outputs(&mut other);
        let PeerMessage::Status(mut said) = status(view, false, 0) else {
            unreachable!()
        };
        said.active = false;
        from_peer(&mut other, 500 * view, 2, PeerMessage::Status(said)).unwrap();
        let tells = |o: &Output| matches!(o, Output::Send(ReplicaId(2), PeerMessage::NewView(m)) if m.body.view == View(1));
        outputs(&mut other).iter().any(tells)
    };
    assert!(tells(Some(&vote), 2));
    assert!(!tells(None, 3), "it shows nothing that has come to nothing");
}
