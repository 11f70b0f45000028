//! What one faulty replica, one faulty client or a power cut may not bring about. One replica is real; the test is the rest of
//! the group.

use crate::support::*;
use bytes::Bytes;
use quorate_agreement::durable::StableRecord;
use quorate_agreement::selection::{select, well_formed};
use quorate_agreement::{CHECKPOINT_INTERVAL, Input, LOG_WINDOW, Output, Record, Rejected};
use quorate_wire::message::{
    Batch, Checkpoint, Fetch, PeerMessage, PrePrepare, SignedViewChange, ViewChange,
};
use quorate_wire::{Digest, ReplicaId, Seq, View};

const MIB: usize = 1 << 20;

/// A faulty replica leads an idle correct one to no view of its choice, neither with a NEW-VIEW that names other views' words
/// nor with the last number there is.
#[test]
fn one_replica_alone_moves_nobody() {
    let mut replica = fresh(1);
    let own = view_change(3, 3);
    let first = own.digest();
    from_peer(&mut replica, 1, 3, PeerMessage::ViewChange(own)).unwrap();
    for view in [4_000_003, u64::MAX - 4, u64::MAX] {
        let proofs = [(0, first), (1, GENESIS), (2, GENESIS)].map(|(r, d)| (ReplicaId(r), d));
        let message = new_view(view, proofs.into(), (Seq(0), GENESIS), vec![]);
        let _ = from_peer(&mut replica, 1, 3, PeerMessage::NewView(message));
        assert_eq!(replica.standing().view, View(0));
    }
    wait(&mut replica, 500, 20_000);
    assert_eq!(replica.standing().view, View(0));
    assert!(replica.standing().active);
}

/// A NEW-VIEW of a far view that can't be checked, since nobody has the VIEW-CHANGEs that it names, keeps the genuine one of
/// another primary out no longer than that one takes to come.
#[test]
fn a_far_new_view_keeps_no_other_out() {
    let mut replica = fresh(2);
    let unknown = [0, 1, 2].map(|r| (ReplicaId(r), Digest([7; 32])));
    let far = new_view(4_000_003, unknown.into(), (Seq(0), GENESIS), vec![]);
    from_peer(&mut replica, 1, 3, PeerMessage::NewView(far)).unwrap();
    let changes = [0, 1, 3].map(|r| view_change(r, 1));
    for change in &changes {
        let (from, message) = (change.body.replica.0, change.clone());
        from_peer(&mut replica, 2, from, PeerMessage::ViewChange(message)).unwrap();
    }
    let genuine = new_view(1, named(&changes), (Seq(0), GENESIS), vec![]);
    from_peer(&mut replica, 3, 1, PeerMessage::NewView(genuine)).unwrap();
    let standing = replica.standing();
    assert_eq!((standing.view, standing.active), (View(1), true));
}

/// A VIEW-CHANGE whose sender claims a far checkpoint and a certificate above it is well formed, and selects nothing between
/// here and there: the list would be as long as the liar likes.
#[test]
fn a_far_certificate_does_not_lengthen_the_selection() {
    let far = LOG_WINDOW * 100;
    let liar = ViewChange {
        stable: Seq(far),
        checkpoints: vec![(Seq(far), GENESIS)],
        prepared: vec![vote(far + 1)],
        ..view_change_body(3, 1)
    };
    assert!(well_formed(quorum(), &liar));
    let others = [0, 1, 2].map(|r| view_change_body(r, 1));
    let all: Vec<&ViewChange> = others.iter().chain([&liar]).collect();
    let selection = select(quorum(), &all).expect("three correct replicas have spoken");
    assert_eq!(selection.start, (Seq(0), GENESIS));
    assert_eq!(selection.batches, vec![]);
}

/// A STATUS may name the last place there is: the answer to it counts up from there.
#[test]
fn a_status_may_name_the_last_place() {
    let mut replica = fresh(1);
    for ms in 1..4 {
        from_peer(&mut replica, ms, 3, status(0, true, u64::MAX)).unwrap();
    }
}

/// The head of a new segment of the log has the VIEW-CHANGE that is still on its way to the disk: the old segment goes, and
/// a replica that forgot it would vote again in the view that it has left.
#[test]
fn a_new_segment_remembers_the_left_view() {
    let mut replica = fresh(1);
    let place = Seq(CHECKPOINT_INTERVAL);
    let checkpoint = PeerMessage::Checkpoint(Checkpoint {
        seq: place,
        root: GENESIS,
    });
    let made = Input::CheckpointMade(place, GENESIS);
    replica.handle(at(1), made).unwrap();
    let taken = replica.handle(at(1), Input::Peer(ReplicaId(2), checkpoint.clone()));
    assert_eq!(taken, Ok(()));
    for r in [2, 3] {
        let message = PeerMessage::ViewChange(view_change(r, 1));
        from_peer(&mut replica, 2, r, message).unwrap();
    }
    assert!(!replica.standing().active);
    // The third word makes the checkpoint stable.
    let taken = replica.handle(at(3), Input::Peer(ReplicaId(3), checkpoint));
    assert_eq!(taken, Ok(()));
    let heads: Vec<Vec<Record>> = outputs(&mut replica)
        .into_iter()
        .filter_map(|o| match o {
            Output::Stable { head, .. } => Some(head),
            _ => None,
        })
        .collect();
    assert_eq!(heads.len(), 1);
    let left = |r: &Record| matches!(r, Record::Changing(m) if m.body.view == View(1));
    assert!(heads[0].iter().any(left), "{:?}", heads[0]);
}

/// A request that another replica passes on makes a backup wait for nothing: the primary may never have heard of it, and the
/// backup would leave the view.
#[test]
fn a_forwarded_request_makes_no_backup_wait() {
    let mut replica = fresh(1);
    let link = Input::ClientKey(client(), link_key(1));
    replica.handle(at(0), link).unwrap();
    let old = request(1, Bytes::from_static(b"old"));
    let taken = from_peer(&mut replica, 1, 3, PeerMessage::Request(old));
    assert_eq!(taken, Err(Rejected::NotThePrimary));
    wait(&mut replica, 500, 4 * TIMEOUT_MS);
    assert_eq!(replica.standing().view, View(0));
    assert!(replica.standing().active);
}

/// A new primary tells nobody its NEW-VIEW before that is on disk, also not who asks: after a crash it might begin the view
/// in another way.
#[test]
fn a_new_view_does_not_leave_before_it_is_on_disk() {
    let tells = |o: &Output| {
        matches!(
            o,
            Output::Send(_, PeerMessage::NewView(_)) | Output::Broadcast(PeerMessage::NewView(_))
        )
    };
    let mut replica = fresh(1);
    for r in [2, 3] {
        let message = PeerMessage::ViewChange(view_change(r, 1));
        from_peer(&mut replica, 2, r, message).unwrap();
    }
    persist_up_to(&mut replica, 3, |r| matches!(r, Record::Changing(_)));
    assert!(replica.standing().active);
    // What it has written by now is on disk, but for the last: how the view began.
    from_peer(&mut replica, 4, 2, status(1, false, 0)).unwrap();
    let mut entered = None;
    for output in outputs(&mut replica) {
        assert!(!tells(&output), "{output:?}");
        if let Output::Persist(index, Record::Entered(_)) = output {
            entered = Some(index);
        }
    }
    let done = Input::Persisted(entered.expect("the view's beginning is written"));
    replica.handle(at(5), done).unwrap();
    from_peer(&mut replica, 6, 2, status(1, false, 0)).unwrap();
    let told = outputs(&mut replica);
    assert_eq!(told.iter().filter(|o| tells(o)).count(), 2, "all, then one");
}

/// A replica comes back from a log that ends with a view that starts beyond its own window: it fetches that state, and keeps
/// no places that it has no window for.
#[test]
fn a_restart_drops_places_above_the_window() {
    let start = (Seq(2 * LOG_WINDOW), Digest([5; 32]));
    let changes: Vec<SignedViewChange> = (0..3)
        .map(|r| {
            let own = vec![vote(start.0.0 + 1)];
            signed(ViewChange {
                stable: start.0,
                checkpoints: vec![start],
                prepared: own.clone(),
                preprepared: own,
                ..view_change_body(r, 1)
            })
        })
        .collect();
    let mut replica = fresh(3);
    for change in &changes {
        let (from, message) = (change.body.replica.0, change.clone());
        from_peer(&mut replica, 1, from, PeerMessage::ViewChange(message)).unwrap();
    }
    let message = new_view(1, named(&changes), start, vec![GENESIS]);
    from_peer(&mut replica, 1, 1, PeerMessage::NewView(message)).unwrap();
    let records = written(&mut replica).into_iter().map(|(_, r)| r).collect();
    let replica = restarted(3, (Seq(0), GENESIS), records);
    replica.invariants();
    let standing = replica.standing();
    assert_eq!((standing.view, standing.active), (View(1), true));
}

/// A client that has filled its share of a backup's memory does not keep the backup from voting for what the primary has
/// ordered: the whole batch, other clients' requests too, would wait.
#[test]
fn a_full_client_does_not_stop_a_vote() {
    let mut replica = fresh(1);
    let link = Input::ClientKey(client(), link_key(1));
    replica.handle(at(0), link).unwrap();
    let mut number = 1_000;
    for size in [MIB, MIB / 8, MIB / 64, 1] {
        loop {
            number += 1;
            let big = request(number, Bytes::from(vec![number as u8; size]));
            if flood(&mut replica, big) == Err(Rejected::ClientOverLimit) {
                break;
            }
        }
    }
    let body = request(1, Bytes::from_static(b"op"));
    let taken = from_client(&mut replica, 1, body.clone());
    assert_eq!(taken, Err(Rejected::ClientOverLimit));
    let batch = Batch {
        time: at(1).wall,
        requests: vec![body.request.digest()],
    };
    let ordered = PrePrepare {
        view: View(0),
        seq: Seq(1),
        batch,
        bodies: vec![body.into()],
    };
    from_peer(&mut replica, 1, 0, PeerMessage::PrePrepare(ordered)).unwrap();
    let voted = |(_, r): &(_, Record)| matches!(r, Record::PrePrepared(_));
    assert!(written(&mut replica).iter().any(voted));
}

/// A replica that starts again before its first stable checkpoint still names the root of the initial state for place 0, and
/// not that of the state in its store, which is another place's.
#[test]
fn a_restart_keeps_the_root_of_the_initial_state() {
    let records: Vec<Record> = written(&mut fresh(1)).into_iter().map(|(_, r)| r).collect();
    let replica = restarted(1, (Seq(64), Digest([4; 32])), records);
    assert_eq!(replica.standing().stable, (Seq(0), GENESIS));
}

/// What a client sent once and never again leaves the memory after a while, and makes room; what it repeats stays.
#[test]
fn an_abandoned_flood_leaves_the_memory() {
    let mut replica = fresh(1);
    let big = |number: u64| request(number, Bytes::from(vec![number as u8; MIB]));
    let kept = request(1_000, Bytes::from_static(b"kept"));
    for number in 0..79 {
        flood(&mut replica, big(number)).unwrap();
    }
    flood(&mut replica, kept.clone()).unwrap();
    let one_more = flood(&mut replica, big(100));
    assert_eq!(one_more, Err(Rejected::ClientOverLimit));
    wait(&mut replica, 500, 10_000);
    let taken = from_client(&mut replica, 10_000, kept.clone());
    assert_eq!(taken, Err(Rejected::Duplicate));
    wait(&mut replica, 10_500, 20_000);
    for number in 0..79 {
        let fetch = PeerMessage::Fetch(Fetch::Request(big(number).request.digest()));
        let asked = replica.handle(at(20_000), Input::Peer(ReplicaId(2), fetch));
        assert_eq!(asked, Err(Rejected::NotAsked), "request {number}");
    }
    let fetch = PeerMessage::Fetch(Fetch::Request(kept.request.digest()));
    from_peer(&mut replica, 20_000, 2, fetch).unwrap();
    from_client(&mut replica, 20_000, big(100)).unwrap();
}

/// After a power cut three replicas with different stable checkpoints, of which each has a later one in its store that no other
/// has, find a start together without the fourth: each still offers the checkpoints that it has told before.
#[test]
fn a_view_starts_after_a_power_cut() {
    let roots = [1, 2].map(|i| (Seq(i * CHECKPOINT_INTERVAL), Digest([i as u8; 32])));
    let changes: Vec<ViewChange> = [(1, 2), (2, 1), (3, 1)]
        .into_iter()
        .flat_map(|(me, stable)| {
            let mut before = fresh(me);
            for (seq, root) in roots {
                let made = Input::CheckpointMade(seq, root);
                before.handle(at(1), made).unwrap();
            }
            let (seq, root) = roots[stable - 1];
            for from in (0..4).filter(|r| *r != me).take(2) {
                let message = PeerMessage::Checkpoint(Checkpoint { seq, root });
                let _ = before.handle(at(2), Input::Peer(ReplicaId(from), message));
            }
            let records: Vec<Record> = written(&mut before).into_iter().map(|(_, r)| r).collect();
            let stable = Record::Stable(StableRecord { seq, root });
            assert!(records.contains(&stable));

            let own = (Seq(300 + u64::from(me)), Digest([2 + me; 32]));
            let mut after = restarted(me, own, records);
            let waits = signed_request(1, Bytes::from_static(b"waits"));
            from_client(&mut after, 0, waits).unwrap();
            wait(&mut after, 500, 2 * TIMEOUT_MS);
            let records = written(&mut after).into_iter();
            records.filter_map(|(_, record)| match record {
                Record::Changing(change) => Some(change.body),
                _ => None,
            })
        })
        .collect();
    assert_eq!(changes.len(), 3);
    let all: Vec<&ViewChange> = changes.iter().collect();
    let selection = select(quorum(), &all).expect("three correct replicas have spoken");
    assert_eq!(selection.start, roots[1]);
}

/// A replica whose requests wait while f+1 others have committed more is itself the slow one, and stays in the view; where
/// only one says so, which may lie, it leaves.
#[test]
fn a_replica_that_others_are_ahead_of_stays() {
    for (ahead, view) in [(vec![0, 2], View(0)), (vec![2], View(1))] {
        let mut replica = fresh(1);
        let waits = signed_request(1, Bytes::from_static(b"waits"));
        from_client(&mut replica, 0, waits).unwrap();
        for from in &ahead {
            from_peer(&mut replica, 1, *from, status(0, true, 5)).unwrap();
        }
        wait(&mut replica, 500, 4 * TIMEOUT_MS);
        assert_eq!(replica.standing().view, view, "ahead: {ahead:?}");
    }
}

/// One of those f+1 may be the primary, and the other the only one to which it let anything commit: nobody else can bring what is
/// missing, and a group whose others stayed for this stood still for ever. So who executes nothing all the while leaves in the end.
#[test]
fn who_is_behind_and_stays_so_leaves() {
    let mut replica = fresh(1);
    let waits = signed_request(1, Bytes::from_static(b"waits"));
    from_client(&mut replica, 0, waits).unwrap();
    for from in [0, 2] {
        from_peer(&mut replica, 1, from, status(0, true, 5)).unwrap();
    }
    wait(&mut replica, 500, 20 * TIMEOUT_MS);
    assert_eq!(replica.standing().view, View(1));
}

/// A replica that waits alone in a later view is followed after a second, since the group lacks its vote; but not
/// again within a minute, since a faulty one may pretend.
#[test]
fn a_stranded_replica_is_followed_once_a_minute() {
    let mut replica = fresh(1);
    for ms in (0..1_000).step_by(500) {
        from_peer(&mut replica, ms, 3, status(1, false, 0)).unwrap();
        assert_eq!(replica.standing().view, View(0), "after {ms} ms");
    }
    from_peer(&mut replica, 1_000, 3, status(1, false, 0)).unwrap();
    let standing = replica.standing();
    assert_eq!((standing.view, standing.active), (View(1), false));

    for r in [2, 3] {
        let message = PeerMessage::ViewChange(view_change(r, 1));
        from_peer(&mut replica, 1_000, r, message).unwrap();
    }
    persist_up_to(&mut replica, 1_000, |r| matches!(r, Record::Changing(_)));
    assert!(replica.standing().active);
    for ms in (1_500..61_000).step_by(500) {
        from_peer(&mut replica, ms, 3, status(2, false, 0)).unwrap();
        assert_eq!(replica.standing().view, View(1), "after {ms} ms");
        outputs(&mut replica);
    }
    from_peer(&mut replica, 61_000, 3, status(2, false, 0)).unwrap();
    assert_eq!(replica.standing().view, View(2));
}

/// The word of one replica that it waits in a far view leads the others into the next only.
#[test]
fn a_stranded_replica_leads_nobody_far() {
    let mut replica = fresh(1);
    for ms in (0..=1_000).step_by(500) {
        from_peer(&mut replica, ms, 3, status(u64::MAX, false, 0)).unwrap();
    }
    assert_eq!(replica.standing().view, View(1));
}

/// Two backups' votes may overtake the primary's word. What it then says has the content, and the vote waits for nothing else.
#[test]
fn a_proposal_that_was_overtaken_brings_its_content() {
    use quorate_wire::message::Prepare;
    let mut replica = fresh(1);
    let key = Input::ClientKey(client(), link_key(1));
    replica.handle(at(1), key).unwrap();
    written(&mut replica);
    let body = request(1, Bytes::from_static(b"op"));
    let batch = Batch {
        time: at(1).wall,
        requests: vec![body.request.digest()],
    };
    let (view, seq, digest) = (View(0), Seq(1), batch.digest());
    for from in [2, 3] {
        let vote = PeerMessage::Prepare(Prepare { view, seq, digest });
        from_peer(&mut replica, 1, from, vote).unwrap();
    }
    assert!(written(&mut replica).is_empty());
    let word = PrePrepare {
        view,
        seq,
        batch,
        bodies: vec![body.into()],
    };
    from_peer(&mut replica, 1, 0, PeerMessage::PrePrepare(word.clone())).unwrap();
    let written = written(&mut replica);
    assert!(matches!(&written[..], [(_, Record::PrePrepared(r))] if r.vote.digest == digest));
    let again = from_peer(&mut replica, 1, 0, PeerMessage::PrePrepare(word));
    assert_eq!(again, Err(Rejected::Duplicate));
}
