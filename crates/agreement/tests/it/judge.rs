//! What makes a backup leave its primary, and what does not.

use crate::support::*;
use bytes::Bytes;
use quorate_agreement::{Agreement, Input, Millis, Output, Rejected};
use quorate_wire::message::session::SESSION_WINDOW;
use quorate_wire::message::{AuthRequest, Commit, PeerMessage, Prepare, Request, Status};
use quorate_wire::{Authenticator, ReplicaId, RequestNumber, Seq, SessionId, Verified, View};

/// The primary of view 0 proposes, and the batch commits so much later.
fn order(replica: &mut Agreement, ms: Millis, took: Millis, seq: u64, requests: &[AuthRequest]) {
    let proposal = pre_prepare(ms, seq, requests);
    let (view, seq, digest) = (View(0), Seq(seq), proposal.batch.digest());
    from_peer(replica, ms, 0, PeerMessage::PrePrepare(proposal)).unwrap();
    sync(replica, ms);
    if replica.standing().view > view {
        return;
    }
    for from in [0, 2, 3] {
        let vote = PeerMessage::Prepare(Prepare { view, seq, digest });
        from_peer(replica, ms, from, vote).unwrap();
    }
    sync(replica, ms);
    for at in (ms..=ms + took).step_by(10) {
        replica.handle(crate::support::at(at), Input::Tick).unwrap();
    }
    for from in [0, 2, 3] {
        let vote = PeerMessage::Commit(Commit { view, seq, digest });
        from_peer(replica, ms + took, from, vote).unwrap();
    }
    assert!(replica.standing().committed >= seq, "{seq:?}");
}

fn op(number: u64) -> AuthRequest {
    let mut body = request(number, Bytes::from_static(b"op"));
    body.auth = Authenticator::Signed(key(50).sign_in(&GROUP, &body.request.digest()).into());
    body
}

/// A backup of a primary that has ordered enough to be known, one batch every ten milliseconds.
fn acquainted(took: Millis) -> (Agreement, Millis) {
    let mut replica = fresh(1);
    let step = took + 10;
    for seq in 1..=20 {
        order(&mut replica, seq * step, took, seq, &[op(seq)]);
    }
    outputs(&mut replica);
    (replica, 21 * step)
}

fn watch(replica: &mut Agreement, ms: Millis, request: AuthRequest) -> Result<(), Rejected> {
    let input = Input::Watch(Verified::from_link(request));
    let taken = replica.handle(at(ms), input);
    replica.invariants();
    taken
}

/// When the replica leaves view 0, looking every ten milliseconds; or not before the end.
fn leaves(replica: &mut Agreement, from: Millis, to: Millis) -> Option<Millis> {
    (from..to).step_by(10).find(|&ms| {
        replica.handle(at(ms), Input::Tick).unwrap();
        replica.invariants();
        replica.standing().view > View(0)
    })
}

/// Patience is a few times what batches take, and the configured time-out as long as too little is known.
#[test]
fn patience_follows_the_batches() {
    let mut strange = fresh(1);
    from_client(&mut strange, 0, op(1)).unwrap();
    let left = leaves(&mut strange, 10, 5_000).unwrap();
    assert!((TIMEOUT_MS..TIMEOUT_MS + 50).contains(&left), "{left}");

    for (took, least) in [(0, 250), (20, 410), (50, 650)] {
        let (mut replica, now) = acquainted(took);
        from_client(&mut replica, now, op(100)).unwrap();
        let left = leaves(&mut replica, now + 10, now + 10_000).unwrap() - now;
        assert!((least..least + 50).contains(&left), "{took}: {left}");
    }
}

/// What only its client's MACs speak for leads nobody away from a primary: it may look otherwise there.
#[test]
fn unsigned_requests_are_no_claims() {
    let (mut replica, now) = acquainted(0);
    from_client(&mut replica, now, request(100, Bytes::from_static(b"op"))).unwrap();
    let taken = watch(&mut replica, now, request(101, Bytes::from_static(b"op")));
    assert_eq!(taken, Err(Rejected::BadAuthentication));
    let mut forged = op(102);
    forged.auth = op(103).auth;
    let taken = watch(&mut replica, now, forged);
    assert_eq!(taken, Err(Rejected::BadAuthentication));
    assert_eq!(leaves(&mut replica, now, now + 10_000), None);
}

/// A client gives one number to two requests, or shows the backups one that it has said to be answered: what it claims would be executed by nobody any more once
/// the other is, and no primary takes it when it is shown it. It leads nobody away from one.
#[test]
fn what_would_not_be_executed_is_no_claim() {
    let other = |number: u64, answered: u64| {
        let (number, answered) = (RequestNumber(number), RequestNumber(answered));
        let op = Bytes::from_static(b"another");
        let mut body = request(1, op.clone());
        body.request = Request::after(key(50).public(), SessionId(1), number, answered, op);
        body.auth = Authenticator::Signed(key(50).sign_in(&GROUP, &body.request.digest()).into());
        body
    };
    for (claimed, executed, answered, stays) in [
        (100, 100, 0, false),
        (100, 101, 100, false),
        (100, 164, 0, false),
        (100, 101, 0, true),
        (100, 163, 99, true),
        (101, 100, 1_000, true),
    ] {
        let (mut replica, now) = acquainted(0);
        watch(&mut replica, now, op(claimed)).unwrap();
        order(&mut replica, now + 1, 0, 21, &[other(executed, answered)]);
        let left = leaves(&mut replica, now + 10, now + 10_000);
        assert_eq!(
            left.is_some(),
            stays,
            "{claimed} after {executed}, {answered}"
        );
    }
}

/// A client opens one session after the other, as many as its primary lets it. What a backup shows the primary then is let open all the same, so that nobody blames it; backups hold few of
/// them against it, so these are few. What is executed again, by a primary that would keep a client out, changes nothing in that.
#[test]
fn an_opening_that_a_backup_shows_is_let() {
    let opening = |number: u64| {
        let op = Bytes::from_static(b"open");
        let mut body = request(1, op.clone());
        body.request = Request::new(key(50).public(), SessionId(0), RequestNumber(number), op);
        body.auth = Authenticator::Signed(key(50).sign_in(&GROUP, &body.request.digest()).into());
        body
    };
    let mut primary = fresh(0);
    let client_key = Input::ClientKey(client(), link_key(0));
    primary.handle(at(0), client_key).unwrap();
    let mut numbers = 1..;
    let refused = numbers.find(|&n| from_client(&mut primary, 1, opening(n)).is_err());
    assert!(refused.unwrap() < 40, "it lets open some");
    let mut shown = |primary: &mut Agreement, ms| {
        let request = opening(numbers.next().unwrap());
        from_peer(primary, ms, 2, PeerMessage::Request(request)).is_ok()
    };
    let let_open = (0..100).filter(|_| shown(&mut primary, 2)).count();
    assert!((3..=9).contains(&let_open), "{let_open} at once");

    // A backup: one of them after the other, and each for as long as it takes.
    let (mut backup, now) = acquainted(0);
    watch(&mut backup, now, opening(1)).unwrap();
    for n in 0..40 {
        order(&mut backup, now + 1, 0, 21 + n, &[opening(1_000)]);
    }
    let second = watch(&mut backup, now + 2, opening(2));
    assert_eq!(second, Err(Rejected::TooOften));
    assert!(leaves(&mut backup, now + 10, now + 10_000).is_some());
}

/// A long request that waits for its client's turns is shown to the primary once by a backup, however often it becomes the newest claim.
#[test]
fn a_long_claim_is_shown_once() {
    let long = |number| {
        let op = Bytes::from(vec![7; 100_000]);
        let mut body = request(number, op);
        body.auth = Authenticator::Signed(key(50).sign_in(&GROUP, &body.request.digest()).into());
        body
    };
    let (mut replica, start) = acquainted(5);
    watch(&mut replica, start, long(100)).unwrap();
    outputs(&mut replica);
    let (mut now, mut shown) = (start, 0);
    for seq in 21..29 {
        assert_eq!(leaves(&mut replica, now, now + 70), None);
        now += 70;
        order(&mut replica, now, 0, seq, &[long(40 + seq)]);
        let relays =
            |o: &Output| matches!(o, Output::Send(_, PeerMessage::Request(r)) if *r == long(100));
        shown += outputs(&mut replica).iter().filter(|o| relays(o)).count();
    }
    assert_eq!(shown, 1);
}

/// Where all is signed, what is watched is too.
#[test]
fn what_is_watched_is_signed() {
    let mut replica = fresh_signing(1);
    let taken = watch(&mut replica, 0, request(1, Bytes::from_static(b"op")));
    assert_eq!(taken, Err(Rejected::BadAuthentication));
    assert_eq!(watch(&mut replica, 0, op(1)), Ok(()));
}

/// What a client lets a backup watch is not relayed, so that the primary can't know.
#[test]
fn the_primary_does_not_know_what_is_watched() {
    let (mut replica, now) = acquainted(0);
    watch(&mut replica, now, op(100)).unwrap();
    let relayed = |o: &Output| matches!(o, Output::Send(_, PeerMessage::Request(_)));
    assert!(!outputs(&mut replica).iter().any(relayed));
    from_client(&mut replica, now, op(100)).unwrap_err();
    assert!(outputs(&mut replica).iter().any(relayed));
}

/// A primary that orders each request late, though never as late as the time-out, is left within seconds; one that is as
/// quick as can be is not, however much is watched.
#[test]
fn a_slow_primary_is_left() {
    for (delay, is_left) in [(5, false), (150, true), (240, true)] {
        let (mut replica, mut now) = acquainted(5);
        let mut left = None;
        let start = now;
        for number in 100..150 {
            watch(&mut replica, now, op(number)).unwrap();
            left = leaves(&mut replica, now, now + delay);
            now += delay;
            if left.is_some() {
                break;
            }
            order(&mut replica, now, 5, number - 79, &[op(number)]);
            now += 5;
        }
        assert_eq!(left.is_some(), is_left, "{delay}");
        assert!(left.is_none_or(|at| at - start < 3_000), "{left:?}");
    }
}

/// Another backup says that its primary is no good.
fn another_agrees(replica: &mut Agreement, ms: Millis) {
    let PeerMessage::Status(status) = status(0, true, 0) else {
        unreachable!()
    };
    let primary_lost = true;
    let status = Status {
        primary_lost,
        ..status
    };
    from_peer(replica, ms, 2, PeerMessage::Status(status)).unwrap();
}

/// What is too short to be blamed is too long if most claims wait for it: a primary that is late by some milliseconds each time is left, one that is so
/// now and then is not, nor one that is so for this backup alone. The sample is of seconds: however many claims come at a time, a stall is one of them.
#[test]
fn a_primary_that_is_a_little_late_is_left() {
    let late = |alone: bool, rounds: u64, delay: fn(u64) -> Millis| {
        let (mut replica, mut now) = acquainted(5);
        if !alone {
            another_agrees(&mut replica, now);
        }
        for round in 0..rounds {
            for part in 0..3 {
                let number = 100 + 3 * round + part;
                let seq = 21 + 3 * round + part;
                watch(&mut replica, now, op(number)).unwrap();
                let at = now + delay(round);
                replica.handle(crate::support::at(at), Input::Tick).unwrap();
                order(&mut replica, at, 0, seq, &[op(number)]);
                if replica.standing().view > View(0) {
                    return Some(round);
                }
                now = at + 5;
            }
            now += 1_000;
        }
        None
    };
    assert_eq!(late(false, 60, |_| 1), None);
    assert_eq!(late(false, 60, |_| 4), Some(7));
    assert_eq!(late(false, 60, |_| 15), Some(7));
    assert_eq!(late(true, 60, |_| 15), None);
    let seldom = |round| if round % 3 == 0 { 20 } else { 1 };
    assert_eq!(late(false, 60, seldom), None);
}

/// A primary that always has as much on its way as keeps it from proposing more, in batches with room for what waits, is as late as one that has nothing on
/// its way.
#[test]
fn who_had_room_is_late() {
    for (requests, is_left) in [(1, true), (40, false)] {
        let (mut replica, mut now) = acquainted(5);
        another_agrees(&mut replica, now);
        let (mut seq, mut open) = (21, Vec::new());
        let mut propose = |replica: &mut Agreement, ms, requests: &[AuthRequest]| {
            let proposal = pre_prepare(ms, seq, requests);
            let (view, digest) = (View(0), proposal.batch.digest());
            let _ = from_peer(replica, ms, 0, PeerMessage::PrePrepare(proposal));
            open.push((Seq(seq), digest));
            seq += 1;
            // Two are always in flight.
            if open.len() > 2 {
                let (seq, digest) = open.remove(0);
                sync(replica, ms);
                for from in [0, 2, 3] {
                    let commit = PeerMessage::Commit(Commit { view, seq, digest });
                    let _ = from_peer(replica, ms, from, commit);
                }
            }
        };
        let mut others = 10_000;
        for step in 0..196 {
            now += 22;
            replica.handle(at(now), Input::Tick).unwrap();
            // Each fourteenth batch has what was asked for before, and the rest what others ask.
            let round = 1_000 + step / 14;
            let client = [50, 52, 53][round as usize % 3];
            let asked = op_of(client, round);
            let batch: Vec<AuthRequest> = match step % 14 {
                8 => vec![asked.clone()],
                _ => {
                    others += requests;
                    (others..others + requests).map(|n| op_of(51, n)).collect()
                }
            };
            propose(&mut replica, now, &batch);
            if step % 14 == 6 {
                watch(&mut replica, now, asked).unwrap();
            }
            replica.handle(at(now), Input::Tick).unwrap();
            if replica.standing().view > View(0) {
                break;
            }
        }
        assert_eq!(replica.standing().view > View(0), is_left, "{requests}");
    }
}

/// A primary that puts requests far ahead at once, and what leads there late, is as slow as one that delays them.
#[test]
fn a_gap_is_slowness() {
    for with_claims in [false, true] {
        let (mut replica, mut now) = acquainted(5);
        let start = now;
        let far = [op_of(51, 1)];
        let ahead = PeerMessage::PrePrepare(pre_prepare(now, 256, &far));
        from_peer(&mut replica, now, 0, ahead).unwrap();
        let mut left = None;
        for number in 100..150 {
            watch(&mut replica, now, op(number)).unwrap();
            if with_claims {
                // Each has a place at once: nothing waits to be ordered.
                let ahead = PeerMessage::PrePrepare(pre_prepare(now, 300 - number, &[op(number)]));
                let _ = from_peer(&mut replica, now, 0, ahead);
            }
            left = leaves(&mut replica, now, now + 240);
            now += 240;
            if left.is_some() {
                break;
            }
            order(&mut replica, now, 5, number - 79, &[op(number)]);
            now += 5;
        }
        let left = left.expect("it is slow");
        assert!(left - start < 3_000, "{}", left - start);
    }
}

/// A primary that shows one backup its proposals long before the others does not make that one patient.
#[test]
fn what_is_shown_early_makes_nobody_patient() {
    let (mut replica, mut now) = acquainted(5);
    for seq in 21..31 {
        let proposal = pre_prepare(now, seq, &[op(seq)]);
        let (view, seq, digest) = (View(0), Seq(seq), proposal.batch.digest());
        from_peer(&mut replica, now, 0, PeerMessage::PrePrepare(proposal)).unwrap();
        // Its own vote and the primary's.
        sync(&mut replica, now);
        let vote = PeerMessage::Prepare(Prepare { view, seq, digest });
        from_peer(&mut replica, now, 0, vote.clone()).unwrap();
        wait(&mut replica, now, now + 2_000);
        now += 2_000;
        for from in [2, 3] {
            let _ = from_peer(&mut replica, now, from, vote.clone());
        }
        sync(&mut replica, now);
        for from in [0, 2, 3] {
            let vote = PeerMessage::Commit(Commit { view, seq, digest });
            from_peer(&mut replica, now + 5, from, vote).unwrap();
        }
        now += 10;
    }
    from_client(&mut replica, now, op(1_000)).unwrap();
    let left = leaves(&mut replica, now + 10, now + 10_000).unwrap() - now;
    assert!(left < 500, "{left}");
}

/// Load is no slowness: a request may wait as long as the pipeline is full of others. Where it is not, the same delay is.
#[test]
fn a_full_pipeline_is_no_slowness() {
    for (in_flight, is_left) in [(4, false), (0, true)] {
        let (mut replica, now) = acquainted(5);
        let mut open = Vec::new();
        for (step, ms) in (0_u64..).zip((now..now + 3_000).step_by(10)) {
            // One at a time is a claim.
            let _ = watch(&mut replica, ms, op(1_000 + step));
            // Each is ordered 100 ms after it was asked for.
            let Some(number) = step.checked_sub(10) else {
                continue;
            };
            let seq = 21 + number;
            let proposal = pre_prepare(ms, seq, &[op(1_000 + number)]);
            open.push((Seq(seq), proposal.batch.digest()));
            let message = PeerMessage::PrePrepare(proposal);
            if replica.standing().view > View(0) || number == 200 {
                break;
            }
            from_peer(&mut replica, ms, 0, message).unwrap();
            sync(&mut replica, ms);
            while open.len() > in_flight {
                let (seq, digest) = open.remove(0);
                for from in [0, 2, 3] {
                    let view = View(0);
                    let commit = PeerMessage::Commit(Commit { view, seq, digest });
                    from_peer(&mut replica, ms, from, commit).unwrap();
                }
            }
        }
        assert_eq!(replica.standing().view > View(0), is_left, "{in_flight}");
    }
}

/// What is asked while a batch is on its way waits until that has prepared, however long that takes: no slowness of the primary.
#[test]
fn a_batch_on_its_way_is_waited_for() {
    let (mut replica, mut now) = acquainted(5);
    // One claim of a client at a time.
    let op = |number| op_of(50 + number as u8 % 2, number);
    for number in 100..140 {
        let seq = Seq(number - 79);
        let proposal = pre_prepare(now, seq.0, &[op(number)]);
        let (view, digest) = (View(0), proposal.batch.digest());
        from_peer(&mut replica, now, 0, PeerMessage::PrePrepare(proposal)).unwrap();
        sync(&mut replica, now);
        watch(&mut replica, now, op(number + 1)).unwrap();
        assert_eq!(leaves(&mut replica, now, now + 100), None, "{seq:?}");
        now += 100;
        for from in [0, 2, 3] {
            let vote = PeerMessage::Prepare(Prepare { view, seq, digest });
            from_peer(&mut replica, now, from, vote).unwrap();
        }
        sync(&mut replica, now);
        for from in [0, 2, 3] {
            let vote = PeerMessage::Commit(Commit { view, seq, digest });
            from_peer(&mut replica, now, from, vote).unwrap();
        }
    }
    assert_eq!(replica.standing().view, View(0));
}

/// A primary that leaves one client's request behind while it serves another is left, before any time-out.
#[test]
fn an_unfair_primary_is_left() {
    let (mut replica, now) = acquainted(0);
    watch(&mut replica, now, op(1_000)).unwrap();
    let mut served = 0;
    for seq in 21..60 {
        let mut batch = Vec::new();
        for number in 0..10 {
            let number = RequestNumber(seq * 10 + number);
            let client = key(51).public();
            let body = Request::new(client, SessionId(2), number, Bytes::new());
            let auth = Authenticator::Signed(key(51).sign_in(&GROUP, &body.digest()).into());
            batch.push(AuthRequest {
                request: body,
                auth,
                replier: ReplicaId(0),
            });
        }
        served += batch.len() as u64;
        order(&mut replica, now, 0, seq, &batch);
        if replica.standing().view > View(0) {
            break;
        }
    }
    let window = 3 * SESSION_WINDOW;
    assert!((window + 1..window + 20).contains(&served), "{served}");
}

/// A primary that has batches of others in flight all the time, of many sessions, and leaves out what it was shown, is left soon; one that
/// takes it when it is shown it, which is late, is not.
#[test]
fn a_starving_primary_is_left() {
    for takes in [true, false] {
        let (mut replica, start) = acquainted(0);
        let (mut seq, mut left, mut shown) = (21, None, Vec::new());
        watch(&mut replica, start, op(1_000)).unwrap();
        for ms in (start..start + 1_000).step_by(10) {
            shown.extend(outputs(&mut replica).into_iter().filter_map(|o| match o {
                Output::Send(ReplicaId(0), PeerMessage::Request(request)) => Some(request),
                _ => None,
            }));
            for _ in 0..2 {
                let mut batch = vec![op_of(51, 10_000 + seq)];
                if takes {
                    batch.append(&mut shown);
                }
                let proposal = pre_prepare(ms, seq, &batch);
                let (view, digest) = (View(0), proposal.batch.digest());
                let message = PeerMessage::PrePrepare(proposal);
                let _ = from_peer(&mut replica, ms, 0, message);
                // Two are always in flight.
                for (from, seq) in [0, 2, 3].map(|from| (from, Seq(seq))) {
                    let vote = PeerMessage::Prepare(Prepare { view, seq, digest });
                    let _ = from_peer(&mut replica, ms, from, vote);
                }
                if seq >= 23 {
                    let of = |seq| {
                        let slot = replica.proposal_at(Seq(seq));
                        slot.map(|digest| (Seq(seq), digest))
                    };
                    let earlier = of(seq - 2);
                    for (from, (seq, digest)) in [0, 2, 3].into_iter().zip(earlier.iter().cycle()) {
                        let (seq, digest) = (*seq, *digest);
                        let vote = PeerMessage::Commit(Commit { view, seq, digest });
                        let _ = from_peer(&mut replica, ms, from, vote);
                    }
                }
                seq += 1;
            }
            sync(&mut replica, ms);
            if replica.standing().view > View(0) {
                left = Some(ms - start);
                break;
            }
            if seq > 250 {
                break;
            }
        }
        assert_eq!(left.is_some(), !takes, "{left:?}");
        assert!(left.is_none_or(|ms| (200..300).contains(&ms)), "{left:?}");
    }
}

/// Where the link with the primary's process is gone, and f others say the same, nobody waits for a time-out. One alone says
/// so, but stays: the fault may be its own.
#[test]
fn a_lost_primary_is_left() {
    let says = |lost: bool| {
        let PeerMessage::Status(status) = status(0, true, 0) else {
            unreachable!()
        };
        PeerMessage::Status(Status {
            primary_lost: lost,
            ..status
        })
    };
    for (own, others, is_left) in [
        (true, true, true),
        (true, false, false),
        (false, true, false),
    ] {
        let mut replica = fresh(1);
        replica
            .handle(at(0), Input::PeerLink(ReplicaId(0), !own))
            .unwrap();
        replica
            .handle(at(0), Input::PeerLink(ReplicaId(2), false))
            .unwrap();
        outputs(&mut replica);
        assert_eq!(leaves(&mut replica, 0, 40), None);
        from_peer(&mut replica, 40, 2, says(others)).unwrap();
        let left = leaves(&mut replica, 40, 3_000);
        assert_eq!(left.is_some(), is_left, "{own} {others}");
        assert!(left.is_none_or(|ms| ms <= 60), "{left:?}");
        let told = outputs(&mut replica);
        let told = told
            .iter()
            .any(|o| matches!(o, Output::Broadcast(PeerMessage::Status(s)) if s.primary_lost));
        assert_eq!(told, own && !is_left);
    }
    // It came back in time.
    let mut replica = fresh(1);
    replica
        .handle(at(0), Input::PeerLink(ReplicaId(0), false))
        .unwrap();
    replica
        .handle(at(30), Input::PeerLink(ReplicaId(0), true))
        .unwrap();
    from_peer(&mut replica, 40, 2, says(true)).unwrap();
    assert_eq!(leaves(&mut replica, 40, 3_000), None);
}

fn says_lost(view: u64) -> PeerMessage {
    match status(view, true, 20) {
        PeerMessage::Status(status) => PeerMessage::Status(Status {
            primary_lost: true,
            ..status
        }),
        other => other,
    }
}

/// A primary's process that stands still keeps its links. It is left as soon as all correct replicas have seen that it says nothing
/// at all while it is asked; not when one of them has not, and not while it speaks.
#[test]
fn a_silent_primary_is_left() {
    for (others, speaks, is_left) in [
        (vec![2, 3], false, true),
        (vec![2], false, false),
        (vec![2, 3], true, false),
    ] {
        let (mut replica, now) = acquainted(5);
        from_client(&mut replica, now, op(100)).unwrap();
        let mut left = None;
        for ms in (now..now + 240).step_by(10) {
            for from in &others {
                from_peer(&mut replica, ms, *from, says_lost(0)).unwrap();
            }
            if speaks {
                from_peer(&mut replica, ms, 0, status(0, true, 20)).unwrap();
            }
            replica.handle(at(ms), Input::Tick).unwrap();
            if replica.standing().view > View(0) {
                left = Some(ms - now);
                break;
            }
        }
        assert_eq!(left.is_some(), is_left, "{others:?} {speaks}");
        assert!(left.is_none_or(|ms| (120..=180).contains(&ms)), "{left:?}");
        let told = outputs(&mut replica);
        let told = told
            .iter()
            .any(|o| matches!(o, Output::Broadcast(PeerMessage::Status(s)) if s.primary_lost));
        assert_eq!(told, !speaks && !is_left, "{others:?}");
    }
}

/// A primary that was silent for long and then spoke is given longer the next time: the machine is a busy one.
#[test]
fn silences_that_end_are_remembered() {
    let (mut replica, now) = acquainted(5);
    let mut asked = now;
    let mut longest = Vec::new();
    for round in 0..2 {
        from_client(&mut replica, asked, op(100 + round)).unwrap();
        let silent = (asked..asked + 600).step_by(10).find(|&ms| {
            from_peer(&mut replica, ms, 2, status(0, true, 20)).unwrap();
            outputs(&mut replica)
                .iter()
                .any(|o| matches!(o, Output::Broadcast(PeerMessage::Status(s)) if s.primary_lost))
        });
        longest.push(silent.map_or(600, |ms| ms - asked));
        if round == 0 {
            let end = asked + 200;
            from_peer(&mut replica, end, 0, status(0, true, 20)).unwrap();
            order(&mut replica, end, 5, 21, &[op(100)]);
            asked = end + 100;
        }
        if replica.standing().view > View(0) {
            break;
        }
    }
    assert!(longest[0] < 200, "{longest:?}");
    assert!(longest.get(1).is_none_or(|ms| *ms > 300), "{longest:?}");
}

/// A client may show a claim to the backups alone. A right primary is shown it before anything is held against it, and orders it.
#[test]
fn a_claim_is_shown_to_the_primary() {
    let (mut replica, now) = acquainted(5);
    watch(&mut replica, now, op(100)).unwrap();
    let shown = |replica: &mut Agreement| {
        let outputs = outputs(replica).into_iter();
        let shown = outputs.filter(|o| {
            let request = matches!(o, Output::Send(ReplicaId(0), PeerMessage::Request(_)));
            request
        });
        shown.count()
    };
    assert_eq!(leaves(&mut replica, now, now + 50), None);
    assert_eq!(shown(&mut replica), 0);
    assert_eq!(leaves(&mut replica, now + 50, now + 110), None);
    assert_eq!(shown(&mut replica), 1, "once");
    assert_eq!(leaves(&mut replica, now + 110, now + 150), None);
    assert_eq!(shown(&mut replica), 0);
}

fn op_of(client: u8, number: u64) -> AuthRequest {
    let mut body = request_of(client, number, Bytes::from_static(b"op"));
    body.auth = Authenticator::Signed(key(client).sign_in(&GROUP, &body.request.digest()).into());
    body
}

/// Half of the clients have the backups watch what the primary never sees, as much as they can. It is shown to the primary, which orders
/// it at once; that it waited so long is not held against it.
#[test]
fn what_is_hidden_from_the_primary_blames_nobody() {
    let (mut replica, start) = acquainted(5);
    let (mut number, mut seq, mut refused) = (1_000, 21, 0);
    for ms in (start..start + 20_000).step_by(10) {
        number += 1;
        let mut known = Vec::new();
        for client in [50, 51].into_iter().filter(|_| ms % 1_000 < 10) {
            known.push(op_of(client, number));
            watch(&mut replica, ms, op_of(client, number)).unwrap();
        }
        for client in [52, 53] {
            refused += u32::from(watch(&mut replica, ms, op_of(client, number)).is_err());
        }
        known.extend(outputs(&mut replica).into_iter().filter_map(|o| match o {
            Output::Send(ReplicaId(0), PeerMessage::Request(request)) => Some(request),
            _ => None,
        }));
        if !known.is_empty() && seq < 250 {
            order(&mut replica, ms, 0, seq, &known);
            seq += 1;
        }
        assert_eq!(replica.standing().view, View(0), "after {} ms", ms - start);
        if seq == 250 {
            break;
        }
    }
    assert_eq!(seq, 250, "there was much to order");
    assert!(
        refused > 1_000,
        "one claim of a client at a time: {refused}"
    );
}

/// A client that has long requests ordered all the time waits for its own turns: that holds nothing against the primary. When it is
/// served no more, that does.
#[test]
fn who_is_served_is_not_kept_waiting() {
    let long = |number| {
        let op = Bytes::from(vec![7; 100_000]);
        let mut body = request_of(51, number, op);
        body.auth = Authenticator::Signed(key(51).sign_in(&GROUP, &body.request.digest()).into());
        body
    };
    let (mut replica, start) = acquainted(5);
    watch(&mut replica, start, long(1_100)).unwrap();
    let mut now = start;
    for seq in 21..81 {
        assert_eq!(leaves(&mut replica, now, now + 40), None, "{}", now - start);
        now += 40;
        order(&mut replica, now, 0, seq, &[long(1_000 + seq)]);
    }
    let left = leaves(&mut replica, now, now + 10_000).expect("it is served no more");
    assert!(left - now < 1_000, "{}", left - now);
}
