//! Who is behind repeats itself to those who are ahead, too.

use crate::support::*;
use bytes::Bytes;
use quorate_agreement::{Agreement, Input, LOG_WINDOW, Output, Record};
use quorate_wire::message::{AuthRequest, Batch, Fetch, PeerMessage, PrePrepare, ViewChange, Vote};
use quorate_wire::{Digest, LogIndex, ReplicaId, Seq, View};

/// Replica 3 has committed at place 1 and this replica has not. Replica 3's COMMIT of this view may be all that this one lacks,
/// and this one's PREPARE all that replica 3 lacks to give it: a new view has taken the place up again, and the PREPARE was
/// lost. Without it the group of these two and one more stands still.
#[test]
fn votes_are_repeated_to_who_is_ahead() {
    let mut replica = fresh(1);
    let body = request(1, Bytes::from_static(b"op"));
    let batch = Batch {
        time: at(1).wall,
        requests: vec![body.request.digest()],
    };
    from_client(&mut replica, 1, body.clone()).unwrap();
    let proposal = PrePrepare {
        view: View(0),
        seq: Seq(1),
        batch,
        bodies: vec![body.into()],
    };
    from_peer(&mut replica, 1, 0, PeerMessage::PrePrepare(proposal)).unwrap();
    persist_up_to(&mut replica, 2, |r| matches!(r, Record::PrePrepared(_)));
    let mut repeated = 0;
    for ms in [10, 110] {
        outputs(&mut replica);
        from_peer(&mut replica, ms, 3, status(0, true, 1)).unwrap();
        let outputs = outputs(&mut replica).into_iter();
        let to_3 = outputs.filter(|output| match output {
            Output::Send(ReplicaId(3), PeerMessage::Prepare(m)) => m.seq == Seq(1),
            _ => false,
        });
        repeated += to_3.count();
    }
    assert_eq!(
        repeated, 1,
        "once replica 3 has said twice that it is there"
    );
}

/// The primary of a view that begins above its own window has no proposal for what is selected there, and takes none from others. It
/// votes when its window comes there: of three that are left none can be missed.
#[test]
fn what_was_selected_above_the_window_is_voted_for() {
    let start = (Seq(LOG_WINDOW), Digest([5; 32]));
    let place = start.0.next();
    let digest = Batch::null().digest();
    let own = vec![Vote {
        seq: place,
        view: View(0),
        digest,
    }];
    let mut replica = fresh(1);
    for from in [2, 3] {
        let change = signed(ViewChange {
            stable: start.0,
            checkpoints: vec![start],
            prepared: own.clone(),
            preprepared: own.clone(),
            ..view_change_body(from, 1)
        });
        from_peer(&mut replica, 1, from, PeerMessage::ViewChange(change)).unwrap();
    }
    persist_up_to(&mut replica, 2, |r| matches!(r, Record::Changing(_)));
    let standing = replica.standing();
    assert_eq!((standing.view, standing.active), (View(1), true));
    assert!(standing.fetching && replica.proposal_at(place).is_none());
    persist_up_to(&mut replica, 3, |r| matches!(r, Record::Entered(_)));
    replica
        .handle(at(4), Input::StateFetched(start.0, start.1))
        .unwrap();
    replica.invariants();
    assert_eq!(replica.standing().stable, start);
    persist_up_to(&mut replica, 5, |r| matches!(r, Record::PrePrepared(_)));
    let votes = |output: &Output| match output {
        Output::Broadcast(PeerMessage::Prepare(m)) => {
            (m.view, m.seq, m.digest) == (View(1), place, digest)
        }
        _ => false,
    };
    assert!(outputs(&mut replica).iter().any(votes));
}

/// The requests that a replica asks the primary for as time goes on from one moment to another.
fn asked(replica: &mut Agreement, from: u64, to: u64) -> Vec<(ReplicaId, Digest)> {
    wait(replica, from, to);
    let outputs = outputs(replica).into_iter();
    let asked = outputs.filter_map(|output| match output {
        Output::Send(to, PeerMessage::Fetch(Fetch::Request(digest))) => Some((to, digest)),
        _ => None,
    });
    asked.collect()
}

/// What the primary has named and has not come is asked for after a while, what it names meanwhile a while later, and what has come not at all. With its
/// client's word it is voted for at once.
#[test]
fn what_is_named_is_asked_for_when_it_is_late() {
    let mut replica = fresh(1);
    let link = Input::ClientKey(client(), link_key(1));
    replica.handle(at(0), link).unwrap();
    // The statuses ask for all that is missing, each time another replica.
    wait(&mut replica, 0, 101);
    outputs(&mut replica);
    let bodies: Vec<AuthRequest> = (1..=3)
        .map(|n| request(n, Bytes::from(vec![7; 20_000])))
        .collect();
    let digest = |at: usize| bodies[at].request.digest();
    let propose = |replica: &mut Agreement, ms: u64, seq: u64| {
        let mut proposal = pre_prepare(ms, seq, &bodies[seq as usize - 1..seq as usize]);
        proposal.bodies.clear();
        from_peer(replica, ms, 0, PeerMessage::PrePrepare(proposal)).unwrap();
    };
    propose(&mut replica, 105, 1);
    propose(&mut replica, 110, 2);
    propose(&mut replica, 110, 3);
    from_client(&mut replica, 115, bodies[2].clone()).unwrap();
    assert_eq!(asked(&mut replica, 116, 129), []);
    assert_eq!(asked(&mut replica, 130, 154), [(ReplicaId(0), digest(0))]);
    assert_eq!(asked(&mut replica, 155, 179), [(ReplicaId(0), digest(1))]);
    from_peer(&mut replica, 180, 0, PeerMessage::Body(bodies[0].clone())).unwrap();
    let is_voted = |(_, record): &(LogIndex, Record)| match record {
        Record::PrePrepared(m) => m.vote.seq == Seq(1),
        _ => false,
    };
    assert!(written(&mut replica).iter().any(is_voted));
    // A body that nobody vouches for is not.
    let bare = AuthRequest::bare(bodies[1].request.clone());
    from_peer(&mut replica, 181, 0, PeerMessage::Body(bare)).unwrap();
    assert_eq!(written(&mut replica).len(), 0);
}
