//! Traps of the literature, each sprung by hand: docs/protocol.md, section 10. One replica is real; the test is the rest of the
//! group.

use std::sync::Arc;

use crate::support::*;
use bytes::Bytes;
use quorate_agreement::durable::{CommittedRecord, StableRecord};
use quorate_agreement::selection::select;
use quorate_agreement::{
    Agreement, CHECKPOINT_INTERVAL, Input, LOG_WINDOW, Output, Record, Rejected,
};
use quorate_wire::message::{
    AuthRequest, Batch, Checkpoint, Commit, PeerMessage, PrePrepare, Prepare, Request,
    SignedViewChange, ViewChange,
};
use quorate_wire::{
    Authenticator, Digest, LogIndex, ReplicaId, RequestNumber, Seq, SessionId, Time, View,
};

fn linked(me: u8) -> Agreement {
    let mut replica = fresh(me);
    let link = Input::ClientKey(client(), link_key(me));
    replica.handle(at(0), link).unwrap();
    outputs(&mut replica);
    replica
}

fn proposal(seq: u64, time: Time, body: AuthRequest) -> PrePrepare {
    let requests = vec![body.request.digest()];
    PrePrepare {
        view: View(0),
        seq: Seq(seq),
        batch: Batch { time, requests },
        bodies: vec![Arc::new(body)],
    }
}

fn prepare(replica: &mut Agreement, from: u8, m: &PrePrepare) -> Result<(), Rejected> {
    let (view, seq, digest) = (m.view, m.seq, m.batch.digest());
    let vote = PeerMessage::Prepare(Prepare { view, seq, digest });
    from_peer(replica, 1, from, vote)
}

fn commit(replica: &mut Agreement, from: u8, m: &PrePrepare) -> Result<(), Rejected> {
    let (view, seq, digest) = (m.view, m.seq, m.batch.digest());
    let vote = PeerMessage::Commit(Commit { view, seq, digest });
    from_peer(replica, 1, from, vote)
}

fn executes(replica: &mut Agreement) -> Vec<Seq> {
    let outputs = outputs(replica).into_iter();
    let executed = outputs.filter_map(|o| match o {
        Output::Execute(ordered) => Some(ordered.seq),
        _ => None,
    });
    executed.collect()
}

fn op() -> Bytes {
    Bytes::from_static(b"op")
}

/// Themis view_change.rs: one replica's VIEW-CHANGEs, however many and of however many views, are one voice.
#[test]
fn one_sender_is_one_voice() {
    let mut replica = linked(2);
    for view in [1, 1, 2, 3, 4, 5] {
        let m = PeerMessage::ViewChange(view_change(3, view));
        let _ = from_peer(&mut replica, 1, 3, m);
    }
    assert_eq!(replica.standing().view, View(0));
    // A second replica's makes f+1, for the smaller of their views.
    let m = PeerMessage::ViewChange(view_change(0, 1));
    from_peer(&mut replica, 1, 0, m).unwrap();
    assert_eq!(replica.standing().view, View(1));
    assert!(!replica.standing().active);
}

/// A VIEW-CHANGE in another's name, and one that was said before in a view that has passed, count for nothing.
#[test]
fn forged_and_old_view_changes_are_refused() {
    let mut replica = linked(2);
    let mut forged = view_change(0, 1);
    forged.signature = view_change(3, 1).signature;
    let taken = from_peer(&mut replica, 1, 3, PeerMessage::ViewChange(forged));
    assert_eq!(taken, Err(Rejected::BadAuthentication));
    for from in [0, 3] {
        let m = PeerMessage::ViewChange(view_change(from, 2));
        from_peer(&mut replica, 1, from, m).unwrap();
    }
    assert_eq!(replica.standing().view, View(2));
    let old = PeerMessage::ViewChange(view_change(1, 1));
    assert_eq!(from_peer(&mut replica, 1, 3, old), Err(Rejected::OtherView));
}

/// Themis message_log.rs: the PRE-PREPARE and the primary's PREPARE are one vote, not two.
#[test]
fn a_proposal_is_no_vote() {
    let mut replica = linked(1);
    let m = proposal(1, at(1).wall, request(1, op()));
    from_peer(&mut replica, 1, 0, PeerMessage::PrePrepare(m.clone())).unwrap();
    prepare(&mut replica, 0, &m).unwrap();
    sync(&mut replica, 1);
    let prepared = |replica: &mut Agreement| {
        let mut written = written(replica).into_iter();
        written.any(|(_, r)| matches!(r, Record::Prepared(_)))
    };
    assert!(!prepared(&mut replica), "its own and the primary's");
    prepare(&mut replica, 2, &m).unwrap();
    assert!(prepared(&mut replica));
}

/// BFT-SMaRt issue 62: CHECKPOINTs of one place with different roots make nothing stable.
#[test]
fn equal_roots_are_counted() {
    let mut replica = linked(1);
    let place = Seq(CHECKPOINT_INTERVAL);
    let made = Input::CheckpointMade(place, Digest([1; 32]));
    replica.handle(at(1), made).unwrap();
    for from in [0, 2, 3] {
        let root = Digest([10 + from; 32]);
        let m = PeerMessage::Checkpoint(Checkpoint { seq: place, root });
        from_peer(&mut replica, 1, from, m).unwrap();
    }
    assert_eq!(replica.standing().stable.0, Seq(0));
    // Nor does a sender's second word.
    let m = PeerMessage::Checkpoint(Checkpoint {
        seq: place,
        root: Digest([1; 32]),
    });
    assert_eq!(
        from_peer(&mut replica, 1, 0, m),
        Err(Rejected::Contradiction)
    );
}

/// CometBFT CVE-2025-24371: a peer that claims a great height, and then a smaller one, leads nobody; two that claim the same do.
#[test]
fn one_peers_height_leads_nobody() {
    let mut replica = linked(1);
    let root = Digest([5; 32]);
    for seq in [100_000, 50_000, 1_000] {
        let m = PeerMessage::Checkpoint(Checkpoint {
            seq: Seq(seq),
            root,
        });
        from_peer(&mut replica, 1, 3, m).unwrap();
        wait(&mut replica, 50, 2_000);
        assert!(!replica.standing().fetching);
    }
    let m = PeerMessage::Checkpoint(Checkpoint {
        seq: Seq(1_000),
        root,
    });
    from_peer(&mut replica, 2_000, 2, m).unwrap();
    assert!(replica.standing().fetching);
}

/// fabric pull 1111: what a new primary announces is what it has selected from, also when more comes meanwhile.
#[test]
fn what_is_announced_is_what_was_selected_from() {
    let mut replica = linked(1);
    let own = ViewChange {
        prepared: vec![vote(3)],
        preprepared: vec![vote(3)],
        ..view_change_body(2, 1)
    };
    let changes = [signed(own), view_change(3, 1), view_change(0, 1)];
    for change in &changes {
        let from = change.body.replica.0;
        let _ = from_peer(
            &mut replica,
            1,
            from,
            PeerMessage::ViewChange(change.clone()),
        );
        sync(&mut replica, 1);
    }
    assert!(replica.standing().active);
    let outputs = outputs(&mut replica);
    let told = |o: &Output| match o {
        Output::Broadcast(PeerMessage::NewView(m)) => Some(m.body.clone()),
        _ => None,
    };
    let new_view = outputs.iter().find_map(told).expect("the view begins");
    let said = |o: &Output| match o {
        Output::Broadcast(PeerMessage::ViewChange(m)) => Some(m.clone()),
        _ => None,
    };
    let own = outputs.iter().find_map(said).expect("it has left as well");
    let all: Vec<_> = changes.into_iter().chain([own]).collect();
    let of = |(replica, digest): &(ReplicaId, Digest)| {
        let mut named = all.iter().filter(|m| m.body.replica == *replica);
        &named
            .find(|m| m.digest() == *digest)
            .expect("it was said")
            .body
    };
    let bodies: Vec<&ViewChange> = new_view.proofs.iter().map(of).collect();
    let again = select(quorum(), &bodies).expect("it was possible");
    assert_eq!(
        (again.start, again.batches),
        (new_view.start, new_view.selection)
    );
}

/// VIEW-CHANGEs to view 1 of replicas that have prepared this batch at place 1 in view 0.
fn changes_with(digest: Digest) -> [SignedViewChange; 3] {
    let certificate = quorate_wire::message::Vote {
        seq: Seq(1),
        view: View(0),
        digest,
    };
    [0, 1, 3].map(|r| {
        signed(ViewChange {
            prepared: vec![certificate.clone()],
            preprepared: vec![certificate.clone()],
            ..view_change_body(r, 1)
        })
    })
}

/// fabric pull 1174: what was executed before a view change, and is selected again, is not executed again.
#[test]
fn a_view_change_executes_nothing_again() {
    let mut replica = linked(2);
    let m = proposal(1, at(1).wall, request(1, op()));
    from_peer(&mut replica, 1, 0, PeerMessage::PrePrepare(m.clone())).unwrap();
    for from in [0, 1, 3] {
        prepare(&mut replica, from, &m).unwrap();
    }
    sync(&mut replica, 1);
    for from in [0, 1, 3] {
        commit(&mut replica, from, &m).unwrap();
    }
    assert_eq!(executes(&mut replica), [Seq(1)]);
    let digest = m.batch.digest();
    let changes = changes_with(digest);
    for change in &changes {
        let from = change.body.replica.0;
        let _ = from_peer(
            &mut replica,
            2,
            from,
            PeerMessage::ViewChange(change.clone()),
        );
    }
    let m = new_view(1, named(&changes), (Seq(0), GENESIS), vec![digest]);
    from_peer(&mut replica, 2, 1, PeerMessage::NewView(m)).unwrap();
    sync(&mut replica, 2);
    for from in [0, 1, 3] {
        let (view, seq) = (View(1), Seq(1));
        let vote = PeerMessage::Prepare(Prepare { view, seq, digest });
        from_peer(&mut replica, 2, from, vote).unwrap();
        let vote = PeerMessage::Commit(Commit { view, seq, digest });
        from_peer(&mut replica, 2, from, vote).unwrap();
    }
    sync(&mut replica, 2);
    assert_eq!(executes(&mut replica), []);
    assert_eq!(replica.standing().executed, Seq(1));
}

/// fabric issue 1857: COMMITs that come before the proposal count when it comes, also those of a view that was left.
#[test]
fn early_commits_count() {
    let mut replica = linked(1);
    let m = proposal(1, at(1).wall, request(1, op()));
    for from in [0, 2, 3] {
        commit(&mut replica, from, &m).unwrap();
    }
    assert_eq!(replica.standing().committed, Seq(1));
    assert_eq!(executes(&mut replica), []);
    let _ = from_peer(&mut replica, 1, 0, PeerMessage::PrePrepare(m));
    assert_eq!(executes(&mut replica), [Seq(1)]);
}

/// sawtooth-pbft pull 133: a replica that waits for a view with too few others waits on; its patience with the new primary begins
/// when 2f+1 have left.
#[test]
fn patience_with_a_new_primary_begins_with_a_quorum() {
    let mut replica = linked(2);
    for from in [0, 3] {
        let m = PeerMessage::ViewChange(view_change(from, 1));
        from_peer(&mut replica, 1, from, m).unwrap();
    }
    // Its own is not on disk, so there are two.
    wait(&mut replica, 50, 20 * TIMEOUT_MS);
    assert_eq!(replica.standing().view, View(1));
    let start = 20 * TIMEOUT_MS;
    sync(&mut replica, start);
    wait(&mut replica, start, start + TIMEOUT_MS);
    assert_eq!(replica.standing().view, View(1));
    wait(&mut replica, start + TIMEOUT_MS, start + 5 * TIMEOUT_MS);
    assert!(replica.standing().view > View(1));
}

/// sawtooth-pbft pull 90, dela pull 214: who says that it is in an earlier view is shown how the present one began.
#[test]
fn who_lags_is_shown_how_the_view_began() {
    let mut replica = linked(2);
    let changes = [0, 1, 3].map(|r| view_change(r, 1));
    for change in &changes {
        let from = change.body.replica.0;
        let _ = from_peer(
            &mut replica,
            1,
            from,
            PeerMessage::ViewChange(change.clone()),
        );
    }
    let m = new_view(1, named(&changes), (Seq(0), GENESIS), vec![]);
    from_peer(&mut replica, 1, 1, PeerMessage::NewView(m)).unwrap();
    sync(&mut replica, 1);
    outputs(&mut replica);
    from_peer(&mut replica, 2, 3, status(0, true, 0)).unwrap();
    let shown = |o: &Output| matches!(o, Output::Send(ReplicaId(3), PeerMessage::NewView(_)));
    assert!(outputs(&mut replica).iter().any(shown));
    from_peer(&mut replica, 3, 3, status(1, true, 0)).unwrap();
    assert!(!outputs(&mut replica).iter().any(shown));
}

/// PBFT 2002, 4.2: a primary can't exhaust the places; what is not between the water marks is refused.
#[test]
fn far_places_are_refused() {
    let mut replica = linked(1);
    for seq in [0, LOG_WINDOW + 1, 1 << 40, u64::MAX] {
        let m = PeerMessage::PrePrepare(proposal(seq, at(1).wall, request(1, op())));
        let taken = from_peer(&mut replica, 1, 0, m);
        assert_eq!(taken, Err(Rejected::OutsideWindow), "{seq}");
    }
    let m = PeerMessage::PrePrepare(proposal(LOG_WINDOW, at(1).wall, request(1, op())));
    assert_eq!(from_peer(&mut replica, 1, 0, m), Ok(()));
}

/// A primary's time that is far from the clock here is refused, before and after. What f+1 others have voted for is taken: one of
/// them is correct and has looked at its own clock.
#[test]
fn bad_times_are_refused_unless_others_vouch() {
    for far in [-20_000, 20_000] {
        let now = 40_000;
        let time = Time(at(now).wall.0.checked_add_signed(far * 1_000_000).unwrap());
        let m = proposal(1, time, request(1, op()));
        let mut replica = linked(1);
        let word = PeerMessage::PrePrepare(m.clone());
        let taken = from_peer(&mut replica, now, 0, word.clone());
        assert_eq!(taken, Err(Rejected::BadTime));
        for from in [2, 3] {
            let (view, seq, digest) = (View(0), Seq(1), m.batch.digest());
            let vote = PeerMessage::Prepare(Prepare { view, seq, digest });
            from_peer(&mut replica, now, from, vote).unwrap();
        }
        from_peer(&mut replica, now, 0, word).unwrap();
        let voted = |(_, r): &(_, Record)| matches!(r, Record::PrePrepared(_));
        assert!(written(&mut replica).iter().any(voted));
    }
}

/// A primary whose proposal nobody has heard of while its time was good can't fill the place any more: it hands over its view, and
/// nobody has to wait for a time-out. Where the others have voted it stays.
#[test]
fn a_primary_leaves_with_a_stale_proposal() {
    for (heard, left) in [(0, true), (2, false)] {
        let mut primary = linked(0);
        sync(&mut primary, 1);
        from_client(&mut primary, 1, request(1, op())).unwrap();
        sync(&mut primary, 1);
        let proposed = outputs(&mut primary).into_iter().find_map(|o| match o {
            Output::Broadcast(PeerMessage::PrePrepare(m)) => Some(m),
            _ => None,
        });
        let m = proposed.expect("it proposes at once");
        for from in 1..=heard {
            prepare(&mut primary, from, &m).unwrap();
        }
        wait(&mut primary, 50, 4_000);
        assert_eq!(primary.standing().view, View(0));
        wait(&mut primary, 4_000, 6_000);
        assert_eq!(primary.standing().view > View(0), left, "{heard}");
    }
}

/// A replica has as many keys as it likes: a request of one that is no client's of the group is nobody's, with its signature too,
/// whether it is passed on or proposed.
#[test]
fn a_strangers_signature_is_worth_nothing() {
    let stranger = key(99);
    let request = Request::new(stranger.public(), SessionId(0), RequestNumber(1), op());
    let signature = stranger.sign_in(&GROUP, &request.digest());
    let body = AuthRequest {
        auth: Authenticator::Signed(signature.into()),
        replier: ReplicaId(0),
        request,
    };
    let mut primary = linked(0);
    let passed_on = PeerMessage::Request(body.clone());
    let taken = from_peer(&mut primary, 1, 3, passed_on);
    assert_eq!(taken, Err(Rejected::BadAuthentication));

    let mut backup = linked(1);
    let m = proposal(1, at(1).wall, body);
    from_peer(&mut backup, 1, 0, PeerMessage::PrePrepare(m)).unwrap();
    let voted = |(_, r): &(_, Record)| matches!(r, Record::PrePrepared(_));
    assert!(!written(&mut backup).iter().any(voted));
    // A signature in the name of one who is, by somebody else, neither.
    let mut forged = signed_request(1, op());
    forged.auth = Authenticator::Signed(stranger.sign_in(&GROUP, &forged.request.digest()).into());
    let taken = from_peer(&mut primary, 1, 3, PeerMessage::Request(forged));
    assert_eq!(taken, Err(Rejected::BadAuthentication));
}

/// In a group of seven, a replica that has fetched a checkpoint that three vouch for keeps its water mark until five have it: two
/// of the three may be faulty, and the others' water marks that much lower.
#[test]
fn a_fetched_checkpoint_is_stable_with_a_quorum() {
    let mut replica = fresh_of_seven(1);
    let (seq, root) = (Seq(3 * LOG_WINDOW), Digest([5; 32]));
    // One that it has made itself may be another's water mark, for which three are to be found, this one among them.
    let made = (Seq(128), Digest([4; 32]));
    let input = Input::CheckpointMade(made.0, made.1);
    replica.handle(at(1), input).unwrap();
    let claim = PeerMessage::Checkpoint(Checkpoint { seq, root });
    for from in [4, 5, 6] {
        from_peer(&mut replica, 1, from, claim.clone()).unwrap();
    }
    let asks = |o: &Output| matches!(o, Output::FetchState(..));
    assert!(outputs(&mut replica).iter().any(asks));
    replica
        .handle(at(2), Input::StateFetched(seq, root))
        .unwrap();
    replica.invariants();
    let standing = replica.standing();
    assert_eq!((standing.executed, standing.stable.0), (seq, Seq(0)));
    wait(&mut replica, 50, 3_000);
    assert!(
        !replica.standing().fetching,
        "what it has, it does not fetch"
    );
    // It says so to others, and its VIEW-CHANGE has both.
    for from in [4, 5, 6] {
        let change = PeerMessage::ViewChange(view_change(from, 1));
        let _ = from_peer(&mut replica, 3_000, from, change);
    }
    let own = written(&mut replica)
        .into_iter()
        .find_map(|(_, r)| match r {
            Record::Changing(change) => Some(change.body),
            _ => None,
        });
    let own = own.expect("it follows the others");
    assert_eq!(own.stable, Seq(0));
    assert_eq!(own.checkpoints[1..], [made, (seq, root)]);
    from_peer(&mut replica, 3_000, 3, claim).unwrap();
    assert_eq!(replica.standing().stable, (seq, root));
}

/// What this replica has voted for it keeps for a later view, when its client has long gone: a faulty replica may claim a certificate
/// of it, and then nobody else has it.
#[test]
fn what_was_voted_for_is_kept() {
    let mut replica = linked(1);
    let body = request(1, op());
    let m = proposal(200, at(1).wall, body.clone());
    from_peer(&mut replica, 1, 0, PeerMessage::PrePrepare(m)).unwrap();
    for from in [2, 3] {
        let m = PeerMessage::ViewChange(view_change(from, 1));
        from_peer(&mut replica, 1, from, m).unwrap();
    }
    sync(&mut replica, 1);
    assert!(replica.standing().active);
    // Nobody has it ordered, and its client does not repeat it.
    wait(&mut replica, 50, 40_000);
    let wanted = quorate_wire::message::Fetch::Request(body.request.digest());
    assert_eq!(
        from_peer(&mut replica, 40_000, 3, PeerMessage::Fetch(wanted)),
        Ok(())
    );
}

/// A request was executed, its client asked again and went away. A new view takes its batch up once more, and those who lack it need this
/// replica's vote: so it still has the request, or fetches it. Found by fuzzing (corpus `group/stands-still`): it had dropped what nobody
/// asked for any more, and three correct replicas stood still.
#[test]
fn what_was_executed_and_asked_again_is_kept() {
    let mut replica = linked(2);
    let body = request(1, op());
    let m = proposal(1, at(1).wall, body.clone());
    from_peer(&mut replica, 1, 0, PeerMessage::PrePrepare(m.clone())).unwrap();
    for from in [0, 1, 3] {
        prepare(&mut replica, from, &m).unwrap();
    }
    sync(&mut replica, 1);
    for from in [0, 1, 3] {
        commit(&mut replica, from, &m).unwrap();
    }
    assert_eq!(executes(&mut replica), [Seq(1)]);
    from_client(&mut replica, 1, body).unwrap();
    wait(&mut replica, 50, 20_000);
    let digest = m.batch.digest();
    let changes = changes_with(digest);
    for change in &changes {
        let from = change.body.replica.0;
        let change = PeerMessage::ViewChange(change.clone());
        let _ = from_peer(&mut replica, 20_000, from, change);
    }
    let m = new_view(1, named(&changes), (Seq(0), GENESIS), vec![digest]);
    from_peer(&mut replica, 20_000, 1, PeerMessage::NewView(m)).unwrap();
    sync(&mut replica, 20_000);
    let told = outputs(&mut replica);
    let votes = |o: &Output| match o {
        Output::Broadcast(PeerMessage::Prepare(m)) => (m.view, m.seq) == (View(1), Seq(1)),
        _ => false,
    };
    assert!(told.iter().any(votes), "{told:?}");
}

/// A view may begin with a checkpoint that f+1 have. It is no water mark before 2f+1 have it: if one of them were lost then, the other would
/// vouch for nothing that the rest has, and no view could begin any more.
#[test]
fn a_view_that_begins_with_a_checkpoint_of_two_moves_no_water_mark() {
    let (seq, root) = (Seq(128), Digest([5; 32]));
    let committed = |at| {
        Record::Committed(CommittedRecord {
            seq: Seq(at),
            digest: Batch::null().digest(),
            content: None,
        })
    };
    let stable = |seq, root| StableRecord { seq, root };
    let mut log = vec![Record::Stable(stable(Seq(0), GENESIS))];
    log.extend((1..=128).map(committed));
    log.push(Record::Checkpoint(stable(seq, root)));
    let mut replica = restarted(0, (seq, root), log);
    // It was the primary, and has left its view.
    let own = written(&mut replica)
        .into_iter()
        .find_map(|(_, r)| match r {
            Record::Changing(change) => Some(change),
            _ => None,
        });
    let own = own.expect("it has left its view");
    assert!(own.body.checkpoints.contains(&(seq, root)));
    sync(&mut replica, 1);
    let change = |from| {
        let mut body = view_change_body(from, 1);
        if from == 1 {
            body.checkpoints.push((seq, root));
        }
        signed(body)
    };
    for from in [1, 2] {
        let m = PeerMessage::ViewChange(change(from));
        from_peer(&mut replica, 1, from, m).unwrap();
    }
    let proofs = [own, change(1), change(2)];
    let m = PeerMessage::NewView(new_view(1, named(&proofs), (seq, root), vec![]));
    let _ = from_peer(&mut replica, 2, 1, m);
    let standing = replica.standing();
    assert_eq!((standing.view, standing.active), (View(1), true));
    assert_eq!(standing.stable, (Seq(0), GENESIS));
    for from in [1, 2] {
        let claim = PeerMessage::Checkpoint(Checkpoint { seq, root });
        from_peer(&mut replica, 3, from, claim).unwrap();
    }
    assert_eq!(replica.standing().stable, (seq, root));
}

/// PBFT 2002, 5.1.2: who leaves a view undoes what it has executed tentatively, at once, and executes it anew in the next one. Else its
/// word for the result would be of a view that is over, and that of the others of the next: they would not count together.
#[test]
fn who_leaves_a_view_undoes_what_is_tentative() {
    let mut replica = linked(2);
    let m = proposal(1, at(1).wall, request(1, op()));
    from_peer(&mut replica, 1, 0, PeerMessage::PrePrepare(m.clone())).unwrap();
    for from in [0, 1, 3] {
        prepare(&mut replica, from, &m).unwrap();
    }
    sync(&mut replica, 1);
    let tentative = |outputs: &[Output]| {
        let is_it = |o: &&Output| matches!(o, Output::Tentative(_));
        outputs.iter().filter(is_it).count()
    };
    let undone = |outputs: &[Output]| {
        let is_it = |o: &&Output| matches!(o, Output::Rollback);
        outputs.iter().filter(is_it).count()
    };
    let out = outputs(&mut replica);
    assert_eq!((tentative(&out), undone(&out)), (1, 0));

    let digest = m.batch.digest();
    let changes = changes_with(digest);
    for change in &changes {
        let m = PeerMessage::ViewChange(change.clone());
        let _ = from_peer(&mut replica, 2, change.body.replica.0, m);
    }
    assert!(!replica.standing().active);
    let out = outputs(&mut replica);
    assert_eq!((tentative(&out), undone(&out)), (0, 1));

    let m = new_view(1, named(&changes), (Seq(0), GENESIS), vec![digest]);
    from_peer(&mut replica, 2, 1, PeerMessage::NewView(m)).unwrap();
    for from in [0, 1, 3] {
        let (view, seq) = (View(1), Seq(1));
        let vote = PeerMessage::Prepare(Prepare { view, seq, digest });
        from_peer(&mut replica, 2, from, vote).unwrap();
    }
    sync(&mut replica, 2);
    let out = outputs(&mut replica);
    assert_eq!((tentative(&out), undone(&out)), (1, 0));
}

/// A group of one that was killed while it left a view begins the next one when it starts: nobody else's message will have it do so.
#[test]
fn a_single_replica_that_left_a_view_begins_the_next() {
    let change = Record::Changing(signed(view_change_body(0, 1)));
    let stable = Record::Stable(StableRecord {
        seq: Seq(0),
        root: GENESIS,
    });
    let mut replica = restarted_alone((Seq(0), GENESIS), vec![stable, change]);
    let standing = replica.standing();
    assert!(standing.active && standing.view == View(1), "{standing:?}");
    persist_up_to(&mut replica, 1, |r| matches!(r, Record::Entered(_)));
    let body = signed_request(1, Bytes::from_static(b"op"));
    replica
        .handle(at(2), Input::ClientKey(client(), link_key(0)))
        .unwrap();
    from_client(&mut replica, 2, body).unwrap();
    for ms in 2..10 {
        let _ = replica.handle(at(ms), Input::Persisted(LogIndex(1 << 40)));
        let _ = replica.handle(at(ms), Input::Tick);
    }
    assert_eq!(replica.standing().executed, Seq(1));
}

/// A group of one that was killed when a checkpoint was in its store, and its log did not know of it yet, goes on above that one: nobody else's message
/// will have it raise its low water mark, and with the window full there comes no other checkpoint.
#[test]
fn a_single_replica_whose_log_lacks_its_checkpoint_raises_its_water_mark() {
    let stable = Record::Stable(StableRecord {
        seq: Seq(0),
        root: GENESIS,
    });
    let checkpoint = (Seq(LOG_WINDOW), Digest([5; 32]));
    let mut replica = restarted_alone(checkpoint, vec![stable]);
    assert_eq!(replica.standing().stable, checkpoint);
    let raised = |o: &Output| matches!(o, Output::Stable { seq, .. } if *seq == checkpoint.0);
    assert!(outputs(&mut replica).iter().any(raised));
}

/// Who dies while it fetches the state of a checkpoint goes on with that one: it is in the log before the store's own state is replaced. It goes back to no
/// older one, from which no view might begin any more where another that has the newer one has fallen silent.
#[test]
fn a_state_that_was_cut_short_is_fetched_to_its_end() {
    let root = Digest([5; 32]);
    let target = Seq(2 * LOG_WINDOW);
    let mut replica = fresh(1);
    outputs(&mut replica);
    for from in [0, 2] {
        let m = Checkpoint { seq: target, root };
        from_peer(&mut replica, 1, from, PeerMessage::Checkpoint(m)).unwrap();
    }
    let fetches = |o: &Output| matches!(o, Output::FetchState(seq, _) if *seq == target);
    let first = outputs(&mut replica);
    assert!(first.iter().any(fetches));
    assert!(!replica.may_replace_state(), "a crash would forget it");
    let mut log = vec![Record::Stable(StableRecord {
        seq: Seq(0),
        root: GENESIS,
    })];
    log.extend(first.into_iter().filter_map(|o| match o {
        Output::Persist(_, record) => Some(record),
        _ => None,
    }));
    sync(&mut replica, 2);
    assert!(replica.may_replace_state());

    // Or the half was set aside, and the store is as new.
    let mut anew = restarted(1, (Seq(0), GENESIS), log.clone());
    let behind = Record::Stable(StableRecord {
        seq: Seq(LOG_WINDOW),
        root,
    });
    assert!(!outputs(&mut anew).iter().any(fetches), "it lacks nothing");
    let with_more = [log.clone(), vec![behind]].concat();
    let mut anew = restarted(1, (Seq(0), GENESIS), with_more);
    assert!(outputs(&mut anew).iter().any(fetches));

    let mut replica = restarted_with_half(1, (Seq(0), GENESIS), log);
    sync(&mut replica, 3);
    assert!(outputs(&mut replica).iter().any(fetches));
    let fetched = Input::StateFetched(target, root);
    replica.handle(at(4), fetched).unwrap();
    replica.invariants();
    assert_eq!(replica.standing().executed, target);
    let keeps = |(_, record): &(LogIndex, Record)| matches!(record, Record::Checkpoint(c) if (c.seq, c.root) == (target, root));
    assert!(written(&mut replica).iter().any(keeps));
}
