//! A faulty primary that starts its view in two ways, each of them right: it has VIEW-CHANGEs of two kinds itself. Found by
//! `crates/model`, `new-primary-1`.

use crate::support::*;
use quorate_agreement::{Agreement, Output};
use quorate_wire::digest::Content;
use quorate_wire::message::{
    Commit, NewView, PeerMessage, SignedNewView, SignedViewChange, ViewChange, Vote,
};
use quorate_wire::{Digest, ReplicaId, Seq, View};

fn digest(name: &str) -> Digest {
    Digest::of(Content::Batch, name.as_bytes())
}

/// Replica 3 has heard that "b" committed at the first place, in a view; then replica 1 starts view 1 for it with "a" there.
fn told_of_another(committed_in: u64) -> (Agreement, Vec<Output>) {
    let mut replica = fresh(3);
    for from in 0..3 {
        let commit = PeerMessage::Commit(Commit {
            view: View(committed_in),
            seq: Seq(1),
            digest: digest("b"),
        });
        from_peer(&mut replica, 1, from, commit).unwrap();
    }
    assert_eq!(replica.committed_at(Seq(1)), Some(digest("b")));
    let vote = || Vote {
        seq: Seq(1),
        view: View(0),
        digest: digest("a"),
    };
    let change = |from: u8, prepared: Vec<Vote>, preprepared: Vec<Vote>| {
        let body = ViewChange {
            view: View(1),
            replica: ReplicaId(from),
            stable: Seq(0),
            checkpoints: vec![(Seq(0), GENESIS)],
            prepared,
            preprepared,
        };
        SignedViewChange::sign(body, &signer(from)).into_inner()
    };
    let changes = [
        change(0, vec![], vec![vote()]),
        change(1, vec![vote()], vec![vote()]),
        change(2, vec![], vec![]),
    ];
    let body = NewView {
        view: View(1),
        proofs: changes
            .iter()
            .map(|m| (m.body.replica, m.digest()))
            .collect(),
        start: (Seq(0), GENESIS),
        selection: vec![digest("a")],
    };
    for m in changes {
        let from = m.body.replica.0;
        let _ = from_peer(&mut replica, 1, from, PeerMessage::ViewChange(m));
    }
    let new_view = SignedNewView::sign(body, &signer(1)).into_inner();
    replica
        .handle(
            at(1),
            quorate_agreement::Input::Peer(ReplicaId(1), PeerMessage::NewView(new_view)),
        )
        .unwrap();
    let out = outputs(&mut replica);
    (replica, out)
}

fn gives_up(out: &[Output]) -> bool {
    out.iter().any(|o| matches!(o, Output::Fatal(_)))
}

/// The other half of the group went on in that view and committed something else. One faulty replica must not take a correct one out
/// with the second story; it gets no vote for it either.
#[test]
fn the_second_way_takes_nobody_out() {
    let (replica, out) = told_of_another(1);
    assert!(!gives_up(&out) && replica.standing().active);
    assert_eq!(replica.standing().view, View(1));
    assert_eq!(replica.proposal_at(Seq(1)), None);
    replica.invariants();
}

/// What committed in an earlier view is in every right selection; where it is not, too many are faulty, and to go on would be wrong.
#[test]
fn what_committed_earlier_can_not_be_replaced() {
    let (_, out) = told_of_another(0);
    assert!(gives_up(&out));
}
