//! A replica that has lost its log: it asks, listens, and says nothing that counts.

use crate::support::*;
use bytes::Bytes;
use quorate_agreement::durable::CommittedRecord;
use quorate_agreement::{Agreement, Input, LOG_WINDOW, Millis, Output, Record, Rejected};
use quorate_wire::message::{
    Batch, Checkpoint, Commit, Estimate, PeerMessage, PrePrepare, Prepare, SignedViewChange, Status,
};
use quorate_wire::{LogIndex, ReplicaId, Seq, Time, View};

const ROOT: quorate_wire::Digest = quorate_wire::Digest([7; 32]);

fn without_log(me: u8) -> Agreement {
    let mut replica = restarted(me, (Seq(0), GENESIS), vec![Record::Recovering(Time(1))]);
    let _ = replica.handle(at(0), Input::Persisted(LogIndex(0)));
    replica
}

fn nonce(replica: &mut Agreement) -> u64 {
    let mut asked = outputs(replica).into_iter().filter_map(|o| match o {
        Output::Broadcast(PeerMessage::EstimatePlease(nonce)) => Some(nonce),
        _ => None,
    });
    asked.next().expect("it asks")
}

fn estimate(nonce: u64, checkpoint: u64, view: u64) -> PeerMessage {
    PeerMessage::Estimate(Estimate {
        nonce,
        checkpoint: Seq(checkpoint),
        prepared: Seq(checkpoint + 3),
        view: View(view),
    })
}

fn says_what_counts(output: &Output) -> bool {
    let message = match output {
        Output::Send(_, message) | Output::Broadcast(message) => message,
        _ => return false,
    };
    !matches!(
        message,
        PeerMessage::Status(_) | PeerMessage::EstimatePlease(_) | PeerMessage::Fetch(_)
    )
}

/// Three that have a checkpoint, and are in view 5.
fn estimated(me: u8) -> Agreement {
    let mut replica = without_log(me);
    let nonce = nonce(&mut replica);
    for from in (0..4).filter(|from| *from != me) {
        from_peer(&mut replica, 1, from, estimate(nonce, 128, 5)).unwrap();
    }
    replica
}

/// Answers to other questions, or of too few, bound nothing.
#[test]
fn three_answers_to_its_own_question_are_needed() {
    let mut replica = without_log(2);
    let nonce = nonce(&mut replica);
    let refused = from_peer(&mut replica, 1, 0, estimate(nonce + 1, 128, 5));
    assert_eq!(refused, Err(Rejected::NotAsked));
    let refused = from_peer(&mut replica, 1, 0, estimate(nonce, u64::MAX - 3, 5));
    assert_eq!(refused, Err(Rejected::Malformed));
    for from in [0, 1, 1] {
        from_peer(&mut replica, 1, from, estimate(nonce, 128, 5)).unwrap();
        assert_eq!(replica.standing().recovering.unwrap().bound, None);
        assert_eq!(replica.reads_from(), Seq(u64::MAX));
    }
    from_peer(&mut replica, 1, 3, estimate(nonce, 0, 4)).unwrap();
    let bound = replica.standing().recovering.unwrap().bound.unwrap();
    assert_eq!(bound.seq, Seq(128 + LOG_WINDOW));
    assert!(bound.view > View(5 + 16));
    assert_eq!(replica.reads_from(), bound.seq);
}

/// One lie about its view must not keep a replica waiting for a view that never comes: it asks anew, once only the view is missing.
#[test]
fn a_view_that_does_not_begin_is_asked_for_anew() {
    let mut replica = without_log(2);
    let first = nonce(&mut replica);
    for (from, view) in [(0, 1 << 60), (1, 5), (3, 5)] {
        from_peer(&mut replica, 1, from, estimate(first, 128, view)).unwrap();
    }
    let bound = replica.standing().recovering.unwrap().bound.unwrap();
    assert!(bound.view > View(1 << 60));
    // As long as the state is not there yet it has time.
    wait(&mut replica, 2, 30_000);
    assert!(replica.standing().recovering.unwrap().bound.is_some());
    for from in [0, 1, 3] {
        let message = PeerMessage::Checkpoint(Checkpoint {
            seq: bound.seq,
            root: ROOT,
        });
        let _ = from_peer(&mut replica, 30_000, from, message);
    }
    let fetched = Input::StateFetched(bound.seq, ROOT);
    wait(&mut replica, 30_001, 31_000);
    replica.handle(at(31_000), fetched).unwrap();
    wait(&mut replica, 31_000, 45_000);
    assert!(replica.standing().recovering.unwrap().bound.is_some());
    outputs(&mut replica);
    wait(&mut replica, 45_000, 60_000);
    let second = nonce(&mut replica);
    assert_ne!(first, second);
    let refused = from_peer(&mut replica, 60_000, 1, estimate(first, 128, 5));
    assert_eq!(refused, Err(Rejected::NotAsked));
    for from in [0, 1, 3] {
        from_peer(&mut replica, 60_000, from, estimate(second, 128, 5)).unwrap();
    }
    let bound = replica.standing().recovering.unwrap().bound.unwrap();
    assert!(bound.view < View(100));
    replica.invariants();
}

/// What it could not hear is no silence of the others: it may begin long after it was made, when its key holder has let it wait, and its machine may stand
/// still. Silence is.
#[test]
fn what_is_not_heard_in_a_pause_is_no_silence() {
    let mut replica = without_log(2);
    let missed = |replica: &mut Agreement| {
        let mut all = outputs(replica).into_iter();
        all.any(|output| matches!(output, Output::Missed(_)))
    };
    let hear = |replica: &mut Agreement, ms| {
        for from in [0, 1, 3] {
            let status = Status {
                view: View(5),
                active: true,
                stable: Seq(0),
                committed: Seq(0),
                executed: Seq(0),
                primary_lost: false,
                recovering: None,
            };
            from_peer(replica, ms, from, PeerMessage::Status(status)).unwrap();
        }
    };
    wait(&mut replica, 8_000, 8_200);
    assert!(!missed(&mut replica));
    hear(&mut replica, 8_201);
    wait(&mut replica, 8_250, 8_400);
    wait(&mut replica, 15_000, 15_200);
    assert!(!missed(&mut replica), "it has stood still");
    hear(&mut replica, 15_201);
    wait(&mut replica, 15_250, 19_000);
    assert!(!missed(&mut replica), "they were heard not long ago");
    wait(&mut replica, 19_050, 22_000);
    assert!(missed(&mut replica));
}

/// Whatever it is told, it says nothing that counts; it answers nobody else who asks.
#[test]
fn it_is_silent() {
    let mut replica = estimated(2);
    outputs(&mut replica);
    let body = request(1, Bytes::from_static(b"op"));
    let digest = body.request.digest();
    let batch = Batch {
        time: at(1).wall,
        requests: vec![digest],
    };
    let (view, seq, digest) = (View(0), Seq(1), batch.digest());
    let bodies = vec![body.clone().into()];
    from_client(&mut replica, 1, body).unwrap();
    let proposal = PrePrepare {
        view,
        seq,
        batch,
        bodies,
    };
    let silent = Err(Rejected::NotActive);
    let told = from_peer(&mut replica, 1, 0, PeerMessage::PrePrepare(proposal));
    assert_eq!(told, silent);
    for from in [0, 1, 3] {
        let prepare = PeerMessage::Prepare(Prepare { view, seq, digest });
        assert_eq!(from_peer(&mut replica, 1, from, prepare), silent);
        let commit = PeerMessage::Commit(Commit { view, seq, digest });
        from_peer(&mut replica, 1, from, commit).unwrap();
        let left = PeerMessage::ViewChange(view_change(from, 40));
        assert!(from_peer(&mut replica, 1, from, left).is_err());
        from_peer(&mut replica, 1, from, status(0, true, 5)).unwrap();
        let asked = from_peer(&mut replica, 1, from, PeerMessage::EstimatePlease(1));
        assert_eq!(asked, silent);
    }
    assert_eq!(
        replica.standing().committed,
        Seq(1),
        "it learns what commits"
    );
    wait(&mut replica, 50, 9_000);
    let all = outputs(&mut replica);
    let loud: Vec<_> = all.iter().filter(|o| says_what_counts(o)).collect();
    assert!(loud.is_empty(), "{loud:?}");
    let recovers = |o: &Output| matches!(o, Output::Broadcast(PeerMessage::Status(s)) if s.recovering == Some(Seq(128 + LOG_WINDOW)));
    assert!(all.iter().any(recovers));
}

/// How a view begins from a checkpoint that the three others have, and what says so.
fn beginning(view: View, from: Seq) -> (PeerMessage, Vec<SignedViewChange>) {
    let at_bound = |r: u8| {
        let mut body = view_change_body(r, view.0);
        (body.stable, body.checkpoints) = (from, vec![(from, ROOT)]);
        signed(body)
    };
    let proofs: Vec<_> = [0, 1, 3].into_iter().map(at_bound).collect();
    let begins = new_view(view.0, named(&proofs), (from, ROOT), vec![]);
    (PeerMessage::NewView(begins), proofs)
}

/// The others have a checkpoint there, and their state comes.
fn come_to(replica: &mut Agreement, ms: Millis, seq: Seq) {
    for from in [0, 1, 3] {
        let message = PeerMessage::Checkpoint(Checkpoint { seq, root: ROOT });
        from_peer(replica, ms, from, message).unwrap();
    }
    let fetched = Input::StateFetched(seq, ROOT);
    replica.handle(at(ms), fetched).unwrap();
    assert_eq!(replica.standing().stable.0, seq);
}

fn prove(replica: &mut Agreement, ms: Millis, proofs: &[SignedViewChange]) {
    for proof in proofs {
        let from = proof.body.replica.0;
        let _ = from_peer(replica, ms, from, PeerMessage::ViewChange(proof.clone()));
    }
}

/// A NEW-VIEW makes it speak again: not before it has a stable checkpoint at its bound, and not one of an earlier view.
#[test]
fn a_view_above_its_bound_ends_it() {
    let mut replica = estimated(2);
    let bound = replica.standing().recovering.unwrap().bound.unwrap();
    let primary = |view: View| quorum().primary(view).0;
    let (first, proofs) = beginning(bound.view, bound.seq);
    let early = from_peer(&mut replica, 1, primary(bound.view), first.clone());
    assert_eq!(early, Err(Rejected::NotActive));

    come_to(&mut replica, 2, bound.seq);
    assert!(!outputs(&mut replica).iter().any(says_what_counts));

    let below = View(bound.view.0 - 1);
    let (too_low, _) = beginning(below, bound.seq);
    let refused = from_peer(&mut replica, 4, primary(below).max(1), too_low);
    assert_eq!(refused, Err(Rejected::OtherView));
    from_peer(&mut replica, 4, primary(bound.view), first).unwrap();
    prove(&mut replica, 4, &proofs);
    let standing = replica.standing();
    assert!(standing.active && standing.view == bound.view);
    // A crash before that is on disk would have it begin again.
    assert_eq!(standing.recovering.and_then(|r| r.bound), Some(bound));
    let mut written = written(&mut replica).into_iter();
    let entered = written.find(|(_, r)| matches!(r, Record::Entered(_)));
    let (index, _) = entered.expect("so that a restart does not begin again");
    replica.handle(at(5), Input::Persisted(index)).unwrap();
    assert!(replica.standing().recovering.is_none());
    assert!(replica.reads_from() >= bound.seq);
}

/// A NEW-VIEW has come while the bound stood, and one of its VIEW-CHANGEs has not. The bound is given up meanwhile, since the view was long in coming: then
/// no view begins before there is another one, and the same NEW-VIEW is taken again once there is.
#[test]
fn a_view_does_not_begin_without_a_bound() {
    let mut replica = estimated(2);
    let bound = replica.standing().recovering.unwrap().bound.unwrap();
    let (begins, proofs) = beginning(bound.view, bound.seq);
    come_to(&mut replica, 2, bound.seq);
    let from = quorum().primary(bound.view).0;
    from_peer(&mut replica, 3, from, begins.clone()).unwrap();
    prove(&mut replica, 4, &proofs[..2]);
    assert!(!replica.standing().active);

    outputs(&mut replica);
    wait(&mut replica, 5, 25_000);
    let asked = nonce(&mut replica);
    prove(&mut replica, 25_001, &proofs);
    let standing = replica.standing();
    assert!(!standing.active && standing.recovering.is_some_and(|r| r.bound.is_none()));
    let early = from_peer(&mut replica, 25_001, from, begins.clone());
    assert_eq!(early, Err(Rejected::NotActive));

    for from in [0, 1, 3] {
        from_peer(&mut replica, 25_002, from, estimate(asked, 128, 5)).unwrap();
    }
    from_peer(&mut replica, 25_003, from, begins).unwrap();
    prove(&mut replica, 25_003, &proofs);
    let standing = replica.standing();
    assert!(standing.active && standing.view == bound.view);
    assert!(replica.reads_from() >= bound.seq);
}

fn recovers(view: u64, stable: u64, bound: u64) -> PeerMessage {
    PeerMessage::Status(Status {
        view: View(view),
        active: false,
        stable: Seq(stable),
        committed: Seq(stable),
        executed: Seq(stable),
        primary_lost: false,
        recovering: Some(Seq(bound)),
    })
}

fn proposed(replica: &mut Agreement) -> usize {
    let outputs = outputs(replica).into_iter();
    let null = outputs.filter(
        |o| matches!(o, Output::Broadcast(PeerMessage::PrePrepare(m)) if m.batch == Batch::null()),
    );
    null.count()
}

/// For one that recovers the primary fills places with null batches; nobody else can have it do so without end.
#[test]
fn the_primary_fills_places() {
    let mut replica = fresh(0);
    outputs(&mut replica);
    wait(&mut replica, 10, 500);
    assert_eq!(proposed(&mut replica), 0);
    from_peer(&mut replica, 510, 2, recovers(40, 0, LOG_WINDOW)).unwrap();
    assert_eq!(proposed(&mut replica), 16, "as many as may be in flight");
    let mut other = fresh(0);
    from_peer(&mut other, 510, 2, recovers(40, 0, 10 * LOG_WINDOW)).unwrap();
    assert_eq!(proposed(&mut other), 0, "nobody has a checkpoint near that");
}

/// A backup takes a null batch for one that recovers, and from a primary that has no reason for it none.
#[test]
fn a_null_batch_needs_a_reason() {
    let mut replica = fresh(1);
    let null = || {
        PeerMessage::PrePrepare(PrePrepare {
            view: View(0),
            seq: Seq(1),
            batch: Batch::null(),
            bodies: vec![],
        })
    };
    let refused = from_peer(&mut replica, 1, 0, null());
    assert_eq!(refused, Err(Rejected::NotAsked));
    from_peer(&mut replica, 2, 2, recovers(40, 0, LOG_WINDOW)).unwrap();
    from_peer(&mut replica, 3, 0, null()).unwrap();
    persist_up_to(&mut replica, 4, |r| matches!(r, Record::PrePrepared(_)));
}

/// One that has passed its bound is followed to its view in steps, at most a few times a minute; a primary that says that it
/// recovers is left at once.
#[test]
fn its_view_is_gone_to_in_steps() {
    let mut replica = fresh(1);
    from_peer(&mut replica, 1, 2, recovers(40, 0, 0)).unwrap();
    assert!(replica.standing().active, "it does not know its bound yet");
    from_peer(&mut replica, 1, 2, recovers(40, 300, 300)).unwrap();
    let standing = replica.standing();
    assert!(!standing.active && standing.view > View(0) && standing.view <= View(16));
    assert_ne!(quorum().primary(standing.view), ReplicaId(2));
    from_peer(&mut replica, 2, 2, recovers(40, 300, 300)).unwrap();
    assert_eq!(replica.standing().view, standing.view, "one step at a time");

    let mut replica = fresh(1);
    from_peer(&mut replica, 1, 0, recovers(0, 0, 0)).unwrap();
    assert_eq!(replica.standing().view, View(1));
}

/// It starts again in the midst of a recovery, from a checkpoint that it has made meanwhile: what its new log has of the places before
/// is done with.
#[test]
fn a_recovery_goes_on_from_its_own_checkpoint() {
    let committed = |seq| {
        Record::Committed(CommittedRecord {
            seq: Seq(seq),
            digest: Batch::null().digest(),
            content: None,
        })
    };
    let mut log = vec![Record::Recovering(Time(1))];
    log.extend((1..=130).map(committed));
    let replica = restarted(2, (Seq(128), ROOT), log);
    replica.invariants();
    let standing = replica.standing();
    assert_eq!(standing.stable, (Seq(128), ROOT));
    assert_eq!(standing.committed, Seq(130));
    assert!(standing.recovering.is_some());
}

fn recovering(view: u64, bound: u64) -> PeerMessage {
    waiting(view, 0, bound)
}

/// The same of one that has this stable checkpoint.
fn waiting(view: u64, stable: u64, bound: u64) -> PeerMessage {
    PeerMessage::Status(Status {
        view: View(view),
        active: false,
        stable: Seq(stable),
        committed: Seq(0),
        executed: Seq(0),
        primary_lost: false,
        recovering: Some(Seq(bound)),
    })
}

/// While one recovers none of the others can be missed. Who is behind in views goes to the next of those that are ahead, one of which may
/// be the one that recovers; alone that one leads nobody there. Where it waits may be a faulty one's word, as that of the other may be, so both lead
/// no farther than 16 above the last view that has begun; from there patience leads on.
#[test]
fn who_waits_without_a_log_is_one_that_is_joined() {
    let mut replica = fresh(1);
    for from in [2, 3] {
        let m = PeerMessage::ViewChange(view_change(from, 2));
        from_peer(&mut replica, 1, from, m).unwrap();
    }
    let _ = from_peer(&mut replica, 2, 0, recovering(21, 256));
    assert_eq!(replica.standing().view, View(2));
    let m = PeerMessage::ViewChange(view_change(2, 18));
    from_peer(&mut replica, 3, 2, m).unwrap();
    let _ = from_peer(&mut replica, 4, 0, recovering(21, 256));
    assert_eq!(replica.standing().view, View(16));
    let _ = from_peer(&mut replica, 5, 0, recovering(1 << 40, 256));
    assert_eq!(replica.standing().view, View(16));
    let m = PeerMessage::ViewChange(view_change(3, 18));
    from_peer(&mut replica, 6, 3, m).unwrap();
    assert_eq!(replica.standing().view, View(18));
}

/// After some views that failed, the next has its time before a single replica's word ends it. Or else a faulty one could end each view as it
/// begins, at the price of the longest wait for all others.
#[test]
fn a_view_has_its_time_before_one_word_ends_it() {
    let mut replica = fresh(1);
    let (mut ms, mut waited) = (1, Vec::new());
    // Those that this replica leads, so that they begin.
    for view in (1..).step_by(4).take(6) {
        let begun = ms;
        while replica.standing().view < View(view) {
            ms += 1;
            let _ = from_peer(&mut replica, ms, 0, waiting(view, 128, 128));
        }
        waited.push(ms - begun);
        for r in [0, 2, 3] {
            let message = PeerMessage::ViewChange(view_change(r, view));
            let _ = from_peer(&mut replica, ms, r, message);
        }
        persist_up_to(&mut replica, ms, |r| matches!(r, Record::Changing(_)));
    }
    assert_eq!(waited, vec![1, 1, 1, 1, 16 * TIMEOUT_MS, 32 * TIMEOUT_MS]);
}

/// A primary that fills no places for one that recovers is left, though no client waits for anything.
#[test]
fn who_does_not_fill_is_left() {
    let mut replica = fresh(1);
    for ms in (0..3_000).step_by(100) {
        wait(&mut replica, ms, ms + 50);
        let _ = from_peer(&mut replica, ms + 50, 3, recovering(0, 256));
        assert_eq!(replica.standing().view, View(0));
    }
    let _ = from_peer(&mut replica, 3_100, 3, recovering(0, 256));
    assert_eq!(replica.standing().view, View(1));
}

/// The views that a replica goes through in two minutes in which one other waits in a view and the second is where this one is, so that
/// none begins; and when it comes there.
fn steps_beside(lone: u64) -> Vec<(Millis, View)> {
    let mut replica = fresh(1);
    let _ = from_peer(
        &mut replica,
        1,
        0,
        PeerMessage::ViewChange(view_change(0, lone)),
    );
    let mut steps = vec![(0, View(1))];
    for ms in (0..120_000).step_by(100) {
        let (_, view) = steps[steps.len() - 1];
        let m = PeerMessage::ViewChange(view_change(2, view.0));
        let _ = from_peer(&mut replica, ms, 2, m);
        let _ = replica.handle(at(ms), Input::Tick);
        if let Some((index, _)) = written(&mut replica).pop() {
            let _ = replica.handle(at(ms), Input::Persisted(index));
        }
        if replica.standing().view > view {
            steps.push((ms, replica.standing().view));
        }
    }
    steps
}

fn views_beside(lone: u64) -> Vec<View> {
    let steps = steps_beside(lone).into_iter();
    steps.map(|(_, view)| view).collect()
}

/// A replica that pretends to be far away has the others meet, and meet again. It does not keep them impatient: if they are slow, and no liars, they
/// have time enough at last.
#[test]
fn patience_grows_though_one_pretends_to_be_elsewhere() {
    let steps = steps_beside(1 << 40);
    let waited: Vec<Millis> = steps.windows(2).map(|two| two[1].0 - two[0].0).collect();
    let last = *waited.last().expect("it went on");
    assert!(last >= 8 * waited[1], "{waited:?}");
    assert!(waited[1..].is_sorted(), "{waited:?}");
}

/// Where one replica was led to a far view alone, the others meet it when their own does not begin: in views that nobody has named, so that all
/// go to the same ones, whatever a faulty one says to each.
#[test]
fn who_was_led_away_is_met() {
    let all = |views: &[u64]| views.iter().map(|v| View(*v)).collect::<Vec<_>>();
    assert_eq!(views_beside(15)[..2], all(&[1, 15]));
    assert_eq!(views_beside(16)[..3], all(&[1, 15, 16]));
    assert_eq!(views_beside(30)[..3], all(&[1, 15, 30]));
    assert_eq!(views_beside(1 << 40)[..5], all(&[1, 15, 30, 45, 60]));
}

/// Where enough are in one view, and its primary does not begin it, the next one's turn comes; only after f+1 of those do all go to meet.
#[test]
fn a_view_that_fails_is_followed_by_the_next() {
    let mut replica = fresh(1);
    let mut views = vec![View(0)];
    for ms in (0..240_000).step_by(100) {
        let view = replica.standing().view.max(View(2));
        for from in [0, 2, 3] {
            let m = PeerMessage::ViewChange(view_change(from, view.0));
            // Who leads it does not hear of any.
            if quorum().primary(view) != ReplicaId(1) {
                let _ = from_peer(&mut replica, ms, from, m);
            }
        }
        let _ = replica.handle(at(ms), Input::Tick);
        if let Some((index, _)) = written(&mut replica).pop() {
            let _ = replica.handle(at(ms), Input::Persisted(index));
        }
        if views.last() != Some(&replica.standing().view) {
            views.push(replica.standing().view);
        }
    }
    let all: Vec<View> = [0, 2, 3, 4, 15, 16, 30].map(View).into();
    assert_eq!(views[..7], all, "{views:?}");
}

/// A recovery can end on a checkpoint that the replica had made itself. At its next start it still knows that it has been there, and what it has voted for
/// since: it is not new.
#[test]
fn who_recovered_on_its_own_checkpoint_is_not_new() {
    let had = Seq(384);
    let lost = vec![Record::Recovering(Time(1))];
    let mut replica = restarted(2, (had, ROOT), lost.clone());
    let _ = replica.handle(at(0), Input::Persisted(LogIndex(0)));
    let asked = nonce(&mut replica);
    for from in [0, 1, 3] {
        from_peer(&mut replica, 1, from, estimate(asked, 128, 5)).unwrap();
        let _ = from_peer(&mut replica, 2, from, waiting_for_nothing(5, had));
    }
    let bound = replica.standing().recovering.unwrap().bound.unwrap();
    assert_eq!(bound.seq, had);
    let (begins, proofs) = beginning(bound.view, had);
    let primary = quorum().primary(bound.view).0;
    from_peer(&mut replica, 3, primary, begins).unwrap();
    prove(&mut replica, 3, &proofs);
    assert!(replica.standing().active);
    let body = request(1, Bytes::from_static(b"op"));
    let link = Input::ClientKey(client(), link_key(2));
    replica.handle(at(4), link).unwrap();
    let mut proposal = pre_prepare(4, 385, &[body]);
    proposal.view = bound.view;
    let digest = proposal.batch.digest();
    from_peer(&mut replica, 4, primary, PeerMessage::PrePrepare(proposal)).unwrap();
    let mut log = lost;
    log.extend(written(&mut replica).into_iter().map(|(_, record)| record));
    let voted = |record: &Record| matches!(record, Record::PrePrepared(_));
    assert!(log.iter().any(voted), "{log:?}");

    let mut replica = restarted(2, (had, ROOT), log);
    replica.invariants();
    assert_eq!(replica.standing().stable, (had, ROOT));
    assert_eq!(replica.standing().recovering, None);
    // Nor has it forgotten that when it leaves the view.
    for from in [0, 1] {
        let mut body = view_change_body(from, bound.view.0 + 1);
        (body.stable, body.checkpoints) = (had, vec![(had, ROOT)]);
        let m = PeerMessage::ViewChange(signed(body));
        let _ = from_peer(&mut replica, 5, from, m);
    }
    let changes = written(&mut replica).into_iter();
    let mut changes = changes.filter_map(|(_, record)| match record {
        Record::Changing(change) => Some(change.body),
        _ => None,
    });
    let change = changes.next().expect("it follows them");
    assert_eq!(change.stable, had);
    let votes = change.preprepared.iter();
    assert!(votes.map(|vote| vote.digest).any(|d| d == digest));
}

/// Of one that takes part, and has this stable checkpoint.
fn waiting_for_nothing(view: u64, stable: Seq) -> PeerMessage {
    PeerMessage::Status(Status {
        view: View(view),
        active: true,
        stable,
        committed: stable,
        executed: stable,
        primary_lost: false,
        recovering: None,
    })
}
