//! Replicas with key holders that come back without their logs: their identities say so, and it is ordered.

use crate::support::*;
use quorate_agreement::{Agreement, Input, LOG_WINDOW, Output, Record, Rejected};
use quorate_wire::message::{
    AuthRequest, Checkpoint, Estimate, PeerMessage, SignedViewChange, Status,
};
use quorate_wire::{
    Digest, EpochCertificate, EpochStatus, KeyPair, LogIndex, RecoveryStatement, ReplicaId, Seq,
    Signer, Time, View,
};

const ROOT: Digest = Digest([7; 32]);

fn signer(replica: u8, counter: u64) -> Signer {
    let key = KeyPair::from_seed(&[100 + 10 * replica + counter as u8; 32]);
    let (me, identity) = (ReplicaId(replica), identity(replica));
    let certificate = EpochCertificate::sign(&identity, GROUP, me, counter, key.public());
    Signer::of_epoch(key, certificate)
}

fn statement(replica: u8, counter: u64) -> RecoveryStatement {
    RecoveryStatement::sign(&identity(replica), GROUP, ReplicaId(replica), counter)
}

fn request(replica: u8, counter: u64) -> AuthRequest {
    statement(replica, counter).request(&identity(replica).public().into())
}

fn shown(replica: u8, counter: u64) -> PeerMessage {
    PeerMessage::Request(request(replica, counter))
}

/// Replica 0, which leads view 0.
fn primary() -> Agreement {
    let mut replica = restarted_with_holder(signer(0, 1), vec![]);
    settle(&mut replica);
    replica
}

fn settle(replica: &mut Agreement) {
    let records = written(replica);
    if let Some((last, _)) = records.last() {
        let _ = replica.handle(at(0), Input::Persisted(*last));
    }
}

/// Replica 0, which comes back without its log.
fn without_log() -> Agreement {
    let mut replica = restarted_with_holder(signer(0, 1), vec![Record::Recovering(Time(1))]);
    let _ = replica.handle(at(0), Input::Persisted(LogIndex(9)));
    replica
}

fn recovers(stable: u64, bound: u64) -> PeerMessage {
    PeerMessage::Status(Status {
        view: View(0),
        active: false,
        stable: Seq(stable),
        committed: Seq(stable),
        executed: Seq(stable),
        primary_lost: false,
        recovering: Some(Seq(bound)),
    })
}

fn proposed(replica: &mut Agreement) -> Vec<Digest> {
    let all = outputs(replica).into_iter();
    let batches = all.filter_map(|o| match o {
        Output::Broadcast(PeerMessage::PrePrepare(m)) => Some(m.batch.requests),
        _ => None,
    });
    batches.flatten().collect()
}

/// A primary orders what a replica's identity has signed; what it certified long before is void from then on.
#[test]
fn a_statement_is_ordered_and_makes_keys_void() {
    let mut replica = primary();
    from_peer(&mut replica, 1, 2, shown(2, 5)).unwrap();
    let digest = request(2, 5).request.digest();
    assert_eq!(proposed(&mut replica), [digest]);
    let again = from_peer(&mut replica, 1, 2, shown(2, 5));
    assert_eq!(again, Err(Rejected::Duplicate));
    assert!(proposed(&mut replica).is_empty());

    let old = SignedViewChange::sign(view_change_body(2, 1), &signer(2, 3)).into_inner();
    let told = from_peer(&mut replica, 1, 2, PeerMessage::ViewChange(old));
    assert_eq!(told, Err(Rejected::OldEpoch));
    let present = SignedViewChange::sign(view_change_body(2, 1), &signer(2, 4)).into_inner();
    from_peer(&mut replica, 1, 2, PeerMessage::ViewChange(present)).unwrap();
}

/// Whoever shows it: a statement counts once, and not when a newer one was ordered.
#[test]
fn old_statements_are_refused() {
    let mut replica = primary();
    let of_state = Input::Recoveries(Seq(128), vec![0, 0, 5, 0]);
    replica.handle(at(1), of_state).unwrap();
    let void = |o: &Output| matches!(o, Output::Void(ReplicaId(2), 5));
    assert_eq!(outputs(&mut replica).iter().filter(|o| void(o)).count(), 1);
    for counter in [1, 4, 5] {
        for from in [1, 2, 3] {
            let refused = from_peer(&mut replica, 1, from, shown(2, counter));
            assert_eq!(refused, Err(Rejected::OldEpoch));
        }
    }
    assert!(proposed(&mut replica).is_empty());
    let same = Input::Recoveries(Seq(256), vec![0, 0, 5, 0]);
    replica.handle(at(1), same).unwrap();
    assert!(!outputs(&mut replica).iter().any(void));
    from_peer(&mut replica, 1, 2, shown(2, 6)).unwrap();
}

/// Nobody else's signature makes one, and who tries often is not listened to.
#[test]
fn others_can_make_none() {
    let mut replica = primary();
    let mut forged = statement(2, 5);
    forged.signature = statement(1, 5).signature;
    let forged = forged.request(&identity(2).public().into());
    let mut refusals = Vec::new();
    for _ in 0..20 {
        let told = from_peer(&mut replica, 1, 1, PeerMessage::Request(forged.clone()));
        refusals.push(told.unwrap_err());
    }
    assert_eq!(refusals[..8], [Rejected::BadAuthentication; 8]);
    assert_eq!(refusals[8..], [Rejected::TooOften; 12]);
    assert!(proposed(&mut replica).is_empty());
    // It costs the one that was forged nothing.
    from_peer(&mut replica, 1, 2, shown(2, 5)).unwrap();
    assert_eq!(proposed(&mut replica).len(), 1);
}

/// Replica 0 as a backup in view 1, which replica 1 leads.
fn backup() -> Agreement {
    let mut replica = primary();
    let proofs: Vec<_> = (1..4)
        .map(|r| SignedViewChange::sign(view_change_body(r, 1), &signer(r, 1)).into_inner())
        .collect();
    for proof in proofs.clone() {
        let from = proof.body.replica.0;
        from_peer(&mut replica, 1, from, PeerMessage::ViewChange(proof)).unwrap();
    }
    let body = quorate_wire::message::NewView {
        view: View(1),
        proofs: named(&proofs),
        start: (Seq(0), GENESIS),
        selection: vec![],
    };
    let begins = quorate_wire::message::SignedNewView::sign(body, &signer(1, 1)).into_inner();
    from_peer(&mut replica, 1, 1, PeerMessage::NewView(begins)).unwrap();
    settle(&mut replica);
    assert!(replica.standing().active && replica.standing().view == View(1));
    replica
}

/// How often a statement was passed on to the primary of view 1.
fn relayed(replica: &mut Agreement) -> usize {
    let all = outputs(replica);
    let is_it = |o: &&Output| matches!(o, Output::Send(ReplicaId(1), PeerMessage::Request(_)));
    all.iter().filter(is_it).count()
}

/// Who recovers says it once and is not heard again: a backup passes it on all the same, and leaves a primary that lets it lie, a few times a
/// minute at most. Once a state tells of it there is nothing left to do.
#[test]
fn a_statement_needs_to_be_heard_once() {
    let mut replica = backup();
    from_peer(&mut replica, 10, 2, shown(2, 5)).unwrap();
    assert_eq!(relayed(&mut replica), 1);
    wait(&mut replica, 10, 2_900);
    let times = relayed(&mut replica);
    assert!((2..=6).contains(&times), "{times}");
    assert_eq!(replica.standing().view, View(1));
    wait(&mut replica, 2_900, 6_000);
    assert_eq!(replica.standing().view, View(2));

    let mut replica = backup();
    from_peer(&mut replica, 10, 2, shown(2, 5)).unwrap();
    let of_state = Input::Recoveries(Seq(128), vec![0, 0, 5, 0]);
    replica.handle(at(11), of_state).unwrap();
    outputs(&mut replica);
    wait(&mut replica, 11, 6_000);
    assert_eq!(relayed(&mut replica), 0);
    assert_eq!(replica.standing().view, View(1));
}

/// Nor is it forgotten with what clients do not repeat: after a long time without a view it is shown to the next primary.
#[test]
fn a_statement_is_not_forgotten() {
    let mut replica = backup();
    from_peer(&mut replica, 10, 2, shown(2, 5)).unwrap();
    wait(&mut replica, 10, 30_000);
    settle(&mut replica);
    let now = replica.standing().view.0;
    let view = (now + 1..).find(|v| v % 4 == 3).expect("one of four");
    outputs(&mut replica);
    for from in [1, 3] {
        let theirs = SignedViewChange::sign(view_change_body(from, view), &signer(from, 1));
        let message = PeerMessage::ViewChange(theirs.into_inner());
        from_peer(&mut replica, 30_000, from, message).unwrap();
    }
    // It joins them, when that is on disk.
    settle(&mut replica);
    let own = outputs(&mut replica).into_iter().find_map(|o| match o {
        Output::Broadcast(PeerMessage::ViewChange(own)) => Some(own),
        _ => None,
    });
    let mut proofs = vec![own.expect("it is said")];
    for from in [1, 3] {
        let theirs = SignedViewChange::sign(view_change_body(from, view), &signer(from, 1));
        proofs.push(theirs.into_inner());
    }
    let body = quorate_wire::message::NewView {
        view: View(view),
        proofs: named(&proofs),
        start: (Seq(0), GENESIS),
        selection: vec![],
    };
    let begins = quorate_wire::message::SignedNewView::sign(body, &signer(3, 1)).into_inner();
    from_peer(&mut replica, 30_001, 3, PeerMessage::NewView(begins)).unwrap();
    settle(&mut replica);
    assert!(replica.standing().active, "{:?}", replica.standing());
    wait(&mut replica, 30_002, 31_500);
    let all = outputs(&mut replica);
    let is_it = |o: &&Output| matches!(o, Output::Send(ReplicaId(3), PeerMessage::Request(_)));
    assert!(all.iter().any(|o| is_it(&o)));
}

/// A primary that leaves a statement lie is left, by who knows of it; a few times a minute at most.
#[test]
fn a_primary_that_orders_none_is_left() {
    let mut replica = backup();
    from_peer(&mut replica, 10, 2, shown(2, 5)).unwrap();
    assert_eq!(
        relayed(&mut replica),
        1,
        "the primary may not have heard it"
    );
    for t in [20, 100, 2_000] {
        let _ = from_peer(&mut replica, t, 2, shown(2, 5));
        from_peer(&mut replica, t, 2, recovers(0, 128 + LOG_WINDOW)).unwrap();
        assert_eq!(replica.standing().view, View(1));
    }
    from_peer(&mut replica, 3_200, 2, recovers(0, 128 + LOG_WINDOW)).unwrap();
    assert_eq!(replica.standing().view, View(2));
}

/// What was answered under a key that turns out to be void counts no longer, nor what followed from it; what the others have answered does.
#[test]
fn answers_under_void_keys_do_not_count() {
    let mut replica = without_log();
    let nonce = |replica: &mut Agreement| {
        let all = outputs(replica).into_iter();
        let mut asked = all.filter_map(|o| match o {
            Output::Broadcast(PeerMessage::EstimatePlease(nonce)) => Some(nonce),
            _ => None,
        });
        asked.next()
    };
    let shows = |replica: &mut Agreement, counter: u64| {
        let certificate = signer(1, counter)
            .certificate()
            .cloned()
            .expect("it has one");
        let own = EpochStatus {
            certificate,
            began: None,
        };
        from_peer(replica, 2, 1, PeerMessage::Epoch(own)).unwrap();
    };
    let bound = |replica: &Agreement| replica.standing().recovering.unwrap().bound;
    let first = nonce(&mut replica).expect("it asks");
    shows(&mut replica, 1);
    let answers = |replica: &mut Agreement, from: u8, checkpoint: u64| {
        let answer = Estimate {
            nonce: first,
            checkpoint: Seq(checkpoint),
            prepared: Seq(checkpoint + 2),
            view: View(0),
        };
        from_peer(replica, 2, from, PeerMessage::Estimate(answer))
    };
    for from in 1..4 {
        answers(&mut replica, from, 128).unwrap();
    }
    let before = bound(&replica);
    // Keys are renewed all the time: the last one still counts.
    shows(&mut replica, 2);
    assert!(before.is_some() && bound(&replica) == before);
    shows(&mut replica, 4);
    assert!(bound(&replica).is_none());
    wait(&mut replica, 3, 1_000);
    assert_eq!(nonce(&mut replica).expect("it asks on"), first);
    // The others have gone on since; the bound is where it was.
    answers(&mut replica, 1, 128).unwrap();
    assert_eq!(bound(&replica), before);
    let refused = answers(&mut replica, 2, 1_280);
    assert_eq!(refused, Err(quorate_agreement::Rejected::NotAsked));
}

/// The others answer alike when it asks for estimates.
fn estimates(replica: &mut Agreement, nonce: u64) {
    for from in 1..4 {
        let answer = Estimate {
            nonce,
            checkpoint: Seq(128),
            prepared: Seq(130),
            view: View(0),
        };
        from_peer(replica, 2, from, PeerMessage::Estimate(answer)).unwrap();
    }
}

/// A replica that comes back asks until a state tells of it, and does not take part before.
#[test]
fn it_is_back_when_a_stable_state_tells_of_it() {
    let mut replica = without_log();
    let own = Box::new(statement(0, 2));
    let too_early = |replica: &mut Agreement| {
        let all = outputs(replica);
        all.iter()
            .filter(|o| matches!(o, Output::Broadcast(PeerMessage::Request(_))))
            .count()
    };
    let nonce = outputs(&mut replica).into_iter().find_map(|o| match o {
        Output::Broadcast(PeerMessage::EstimatePlease(nonce)) => Some(nonce),
        _ => None,
    });
    let nonce = nonce.expect("it asks");
    replica.handle(at(1), Input::Recover(own)).unwrap();
    assert_eq!(too_early(&mut replica), 1);
    estimates(&mut replica, nonce);
    let bound = replica.standing().recovering.unwrap().bound.unwrap();
    let mut come = |seq: Seq, numbers: Option<Vec<u64>>, t: u64| {
        for from in 1..4 {
            let message = Checkpoint { seq, root: ROOT };
            let _ = from_peer(&mut replica, t, from, PeerMessage::Checkpoint(message));
        }
        if let Some(numbers) = numbers {
            replica
                .handle(at(t), Input::Recoveries(seq, numbers))
                .unwrap();
        }
        let _ = replica.handle(at(t), Input::StateFetched(seq, ROOT));
        outputs(&mut replica);
        wait(&mut replica, t + 1, t + 2_000);
        let all = outputs(&mut replica);
        let asks = all
            .iter()
            .any(|o| matches!(o, Output::Broadcast(PeerMessage::Request(_))));
        let up_to = all.iter().rev().find_map(|o| match o {
            Output::Broadcast(PeerMessage::Status(s)) => s.recovering,
            _ => None,
        });
        (asks, up_to.unwrap(), replica.standing().stable.0)
    };
    // The state at its bound was made before its statement was ordered: the places that follow are to be filled.
    let (asks, up_to, stable) = come(bound.seq, None, 100);
    assert!(asks && stable == bound.seq && up_to == bound.seq.next());
    let older = come(
        Seq(bound.seq.0 + 2 * LOG_WINDOW),
        Some(vec![1, 0, 0, 0]),
        3_000,
    );
    assert!(older.0, "that was an earlier recovery");
    let (asks, up_to, stable) = come(
        Seq(bound.seq.0 + 4 * LOG_WINDOW),
        Some(vec![2, 0, 0, 0]),
        6_000,
    );
    assert!(!asks && stable == Seq(bound.seq.0 + 4 * LOG_WINDOW) && up_to == bound.seq);
}

/// The NEW-VIEW that would end a recovery comes with a certificate that makes void what its sender has answered: the bound is gone with
/// that very message, and the view does not begin.
#[test]
fn a_view_that_makes_the_bound_void_does_not_begin() {
    let mut replica = without_log();
    let nonce = outputs(&mut replica).into_iter().find_map(|o| match o {
        Output::Broadcast(PeerMessage::EstimatePlease(nonce)) => Some(nonce),
        _ => None,
    });
    let nonce = nonce.expect("it asks");
    let own = Box::new(statement(0, 2));
    replica.handle(at(1), Input::Recover(own)).unwrap();
    for from in 1..4 {
        let certificate = signer(from, 1).certificate().cloned();
        let certificate = certificate.expect("it has one");
        let own = EpochStatus {
            certificate,
            began: None,
        };
        from_peer(&mut replica, 1, from, PeerMessage::Epoch(own)).unwrap();
    }
    estimates(&mut replica, nonce);
    let bound = replica.standing().recovering.unwrap().bound.unwrap();
    let seq = bound.seq;
    for from in 1..4 {
        let message = Checkpoint { seq, root: ROOT };
        from_peer(&mut replica, 3, from, PeerMessage::Checkpoint(message)).unwrap();
    }
    let told = Input::Recoveries(seq, vec![2, 0, 0, 0]);
    replica.handle(at(3), told).unwrap();
    let fetched = Input::StateFetched(seq, ROOT);
    replica.handle(at(3), fetched).unwrap();

    // The primary of the view has this number by then.
    let primary = quorum().primary(bound.view).0;
    let offer = |to: &mut Agreement, number: u64| {
        let change = |r: u8| {
            let mut body = view_change_body(r, bound.view.0);
            (body.stable, body.checkpoints) = (seq, vec![(seq, ROOT)]);
            let by = signer(r, if r == primary { number } else { 1 });
            SignedViewChange::sign(body, &by).into_inner()
        };
        let proofs: Vec<_> = (1..4).map(change).collect();
        let body = quorate_wire::message::NewView {
            view: bound.view,
            proofs: named(&proofs),
            start: (seq, ROOT),
            selection: vec![],
        };
        let by = signer(primary, number);
        let begins = quorate_wire::message::SignedNewView::sign(body, &by).into_inner();
        let _ = from_peer(to, 4, primary, PeerMessage::NewView(begins));
        for proof in proofs {
            let from = proof.body.replica.0;
            let _ = from_peer(to, 4, from, PeerMessage::ViewChange(proof));
        }
        to.standing()
    };
    assert!(offer(&mut replica.clone(), 2).active);
    let standing = offer(&mut replica, 4);
    assert!(!standing.active && standing.recovering.is_some_and(|r| r.bound.is_none()));
}
