//! A replica that signs two stories is noticed where both come together, and nobody else is accused.

use crate::support::*;
use quorate_agreement::{Agreement, Output, Record, Rejected};
use quorate_wire::evidence::{Evidence, Kind};
use quorate_wire::message::{Batch, Committed, PeerMessage, PrePrepare, SignedViewChange};
use quorate_wire::{Digest, ReplicaId, ReplicaKeys, Seq, Time, View};

fn evidence(replica: &mut Agreement) -> Vec<Evidence> {
    let outputs = outputs(replica).into_iter();
    let evidence = outputs.filter_map(|o| match o {
        Output::Evidence(evidence) => Some(*evidence),
        _ => None,
    });
    evidence.collect()
}

/// Who is convicted, and of what.
fn convicted(evidence: &Evidence) -> (u8, Kind) {
    let keys = ReplicaKeys::Standing {
        group: GROUP,
        keys: (0..4).map(|r| key(r).public()).collect(),
    };
    let subject = evidence.verify(quorum(), &keys).expect("genuine");
    (subject.replica.0, subject.kind)
}

/// What replica 3 tells others.
fn second_story() -> SignedViewChange {
    let mut body = view_change_body(3, 1);
    body.prepared = vec![vote(1)];
    body.preprepared = vec![vote(1)];
    signed(body)
}

/// Replica 3 has told this replica one VIEW-CHANGE and the next primary another: it comes out when the NEW-VIEW names that.
#[test]
fn two_view_changes() {
    let mut replica = fresh(2);
    let told_us = view_change(3, 1);
    from_peer(&mut replica, 1, 3, PeerMessage::ViewChange(told_us)).unwrap();
    let changes = [view_change(0, 1), view_change(1, 1), second_story()];
    for change in &changes[..2] {
        let from = change.body.replica.0;
        from_peer(
            &mut replica,
            2,
            from,
            PeerMessage::ViewChange(change.clone()),
        )
        .unwrap();
    }
    let start = new_view(1, named(&changes), (Seq(0), GENESIS), vec![]);
    from_peer(&mut replica, 3, 1, PeerMessage::NewView(start)).unwrap();
    assert!(evidence(&mut replica).is_empty());
    // As it was asked for.
    let fetched = PeerMessage::ViewChange(second_story());
    from_peer(&mut replica, 4, 0, fetched.clone()).unwrap();
    let found = evidence(&mut replica);
    assert_eq!(found.len(), 1);
    assert_eq!(convicted(&found[0]), (3, Kind::ViewChange));
    // Once is enough.
    let _ = from_peer(&mut replica, 5, 0, fetched);
    assert!(evidence(&mut replica).is_empty());
}

/// A primary starts a view in two ways.
#[test]
fn two_new_views() {
    let mut replica = fresh(2);
    let changes = [0, 1, 3].map(|r| view_change(r, 1));
    for change in &changes {
        let from = change.body.replica.0;
        from_peer(
            &mut replica,
            2,
            from,
            PeerMessage::ViewChange(change.clone()),
        )
        .unwrap();
    }
    let right = new_view(1, named(&changes), (Seq(0), GENESIS), vec![]);
    from_peer(&mut replica, 3, 1, PeerMessage::NewView(right)).unwrap();
    assert!(replica.standing().active);
    let other = new_view(1, named(&changes), (Seq(0), GENESIS), vec![Digest([7; 32])]);
    let _ = from_peer(&mut replica, 4, 0, PeerMessage::NewView(other));
    let found = evidence(&mut replica);
    assert_eq!(found.len(), 1);
    assert_eq!(convicted(&found[0]), (1, Kind::NewView));
}

/// What a replica has not signed is no evidence against it, and repeating is no contradiction.
#[test]
fn forgeries_accuse_nobody() {
    let mut replica = fresh(2);
    let honest = view_change(3, 1);
    for _ in 0..2 {
        let _ = from_peer(&mut replica, 1, 3, PeerMessage::ViewChange(honest.clone()));
    }
    let body = second_story().body;
    let forged = SignedViewChange::sign(body, &signer(1)).into_inner();
    assert!(from_peer(&mut replica, 2, 1, PeerMessage::ViewChange(forged)).is_err());
    let proofs = || [0, 1, 2].map(|r| (ReplicaId(r), GENESIS)).to_vec();
    let start = |root| new_view(5, proofs(), (Seq(0), root), vec![]);
    let mut forged = start(Digest([7; 32]));
    forged.signature = honest.signature;
    from_peer(&mut replica, 3, 1, PeerMessage::NewView(start(GENESIS))).unwrap();
    let _ = from_peer(&mut replica, 3, 0, PeerMessage::NewView(forged));
    assert!(evidence(&mut replica).is_empty());
}

/// A primary that starts for the first time proposes nothing before its first record is on disk: if that were lost it would take
/// itself for new again, and give the same place to something else.
#[test]
fn the_first_proposal_waits_for_the_first_record() {
    use quorate_agreement::Input;
    use quorate_wire::LogIndex;
    let mut primary = restarted(0, (Seq(0), GENESIS), vec![]);
    let asked = request(1, bytes::Bytes::from_static(b"op"));
    from_client(&mut primary, 1, asked).unwrap();
    let proposes = |replica: &mut Agreement| {
        let outputs = outputs(replica);
        outputs
            .iter()
            .any(|o| matches!(o, Output::Broadcast(PeerMessage::PrePrepare(_))))
    };
    assert!(!proposes(&mut primary));
    primary
        .handle(at(2), Input::Persisted(LogIndex(0)))
        .unwrap();
    assert!(proposes(&mut primary));
}

/// A faulty primary has this replica vote for one batch, and another commits: then it tells this replica of that one too. A second
/// vote at the place in the same view would be evidence against a correct replica.
#[test]
fn one_vote_in_a_view_whatever_commits() {
    let mut replica = fresh(1);
    let body = request(1, bytes::Bytes::from_static(b"op"));
    from_client(&mut replica, 1, body.clone()).unwrap();
    let proposal = |late: u64| PrePrepare {
        view: View(0),
        seq: Seq(1),
        batch: Batch {
            time: Time(at(1).wall.0 + late),
            requests: vec![body.request.digest()],
        },
        bodies: vec![body.clone().into()],
    };
    from_peer(&mut replica, 1, 0, PeerMessage::PrePrepare(proposal(0))).unwrap();
    persist_up_to(&mut replica, 2, |r| matches!(r, Record::PrePrepared(_)));
    let digest = proposal(1).batch.digest();
    for from in [2, 3] {
        let hint = Committed {
            seq: Seq(1),
            digest,
        };
        from_peer(&mut replica, 3, from, PeerMessage::Committed(hint)).unwrap();
    }
    outputs(&mut replica);
    let second = from_peer(&mut replica, 4, 0, PeerMessage::PrePrepare(proposal(1)));
    assert_eq!(second, Err(Rejected::Contradiction));
    let votes = |r: &Record| matches!(r, Record::PrePrepared(_));
    assert!(!written(&mut replica).iter().any(|(_, r)| votes(r)));
}
