//! Peers and clients that want too much: what they get, and what it leaves for the others.

use crate::support::*;
use bytes::Bytes;
use quorate_agreement::{Agreement, Input, LOG_BYTES, Memory, Output, Record, Rejected};
use quorate_wire::message::{
    AuthRequest, BatchBody, Checkpoint, Commit, Committed, Control, Fetch, PeerMessage, PrePrepare,
    Prepare, Request,
};
use quorate_wire::{
    Authenticator, Digest, LogIndex, Mac, ReplicaId, RequestNumber, Seq, SessionId, Verified, View,
};

const MIB: usize = 1 << 20;

/// With links to all clients.
fn linked(me: u8) -> Agreement {
    let mut replica = fresh(me);
    for client in CLIENTS {
        let client = key(client).public();
        let link = Input::ClientKey(client, link_key(me));
        replica.handle(at(0), link).unwrap();
    }
    outputs(&mut replica);
    replica
}

fn proposal(view: u64, seq: u64, ms: u64, requests: &[AuthRequest]) -> PrePrepare {
    PrePrepare {
        view: View(view),
        ..pre_prepare(ms, seq, requests)
    }
}

/// The batches that a primary proposes.
fn proposed(replica: &mut Agreement) -> Vec<PrePrepare> {
    let outputs = outputs(replica).into_iter();
    let proposals = outputs.filter_map(|output| match output {
        Output::Broadcast(PeerMessage::PrePrepare(m)) => Some(m),
        _ => None,
    });
    proposals.collect()
}

/// A client has thousands of requests with the primary; another's one is in the next batch that goes out.
#[test]
fn one_client_does_not_keep_another_out() {
    let mut primary = linked(0);
    for number in 0..4_000 {
        flood(&mut primary, request_of(50, number, Bytes::new())).unwrap();
    }
    let before = proposed(&mut primary);
    let late = request_of(51, 1, Bytes::new());
    flood(&mut primary, late.clone()).unwrap();
    agree(&mut primary, [1, 2, 3], &before[0], 1);
    let next = proposed(&mut primary).remove(0);
    assert!(next.batch.requests.contains(&late.request.digest()));
    assert!(next.batch.requests.len() > 1, "and what waits longer");
}

/// While a batch has not prepared, what comes gathers for the next one; a batch that is full leaves at once.
#[test]
fn what_comes_behind_a_batch_gathers() {
    let mut primary = linked(0);
    let ask = |primary: &mut Agreement, numbers: std::ops::Range<u64>| {
        numbers.for_each(|n| flood(primary, request_of(50, n, Bytes::new())).unwrap());
        let sizes = proposed(primary)
            .into_iter()
            .map(|m| m.batch.requests.len());
        sizes.collect::<Vec<_>>()
    };
    flood(&mut primary, request_of(50, 0, Bytes::new())).unwrap();
    let first = proposed(&mut primary).remove(0);
    assert_eq!(ask(&mut primary, 1..6), [0; 0]);
    sync(&mut primary, 0);
    for from in [1, 2] {
        let (view, seq, digest) = (first.view, first.seq, first.batch.digest());
        let vote = PeerMessage::Prepare(Prepare { view, seq, digest });
        assert_eq!(proposed(&mut primary).len(), 0);
        from_peer(&mut primary, 0, from, vote).unwrap();
    }
    let second = proposed(&mut primary);
    assert_eq!(
        second[0].batch.requests.len(),
        5,
        "prepared and not committed"
    );
    assert_eq!(ask(&mut primary, 6..6 + 63), [0; 0]);
    assert_eq!(ask(&mut primary, 69..71), [64]);
}

/// Requests that share a signature are authentic each by itself, in whatever batches they come; others are not for having it.
#[test]
fn a_shared_signature_stands_for_each() {
    let mut requests: Vec<AuthRequest> = (1..=6).map(|n| request_of(50, n, Bytes::new())).collect();
    let digests: Vec<Digest> = requests.iter().map(|r| r.request.digest()).collect();
    let signatures = key(50).sign_together(&GROUP, &digests);
    for (request, signature) in requests.iter_mut().zip(signatures) {
        request.auth = Authenticator::Signed(Box::new(signature));
    }
    let mut backup = fresh_signing(1);
    let mut votes = |seq, requests: &[AuthRequest]| {
        let proposal = PeerMessage::PrePrepare(proposal(0, seq, 0, requests));
        from_peer(&mut backup, 0, 0, proposal).unwrap();
        sync(&mut backup, 0);
        let is_vote = |o: &Output| matches!(o, Output::Broadcast(PeerMessage::Prepare(_)));
        outputs(&mut backup).iter().any(is_vote)
    };
    assert!(votes(1, &requests[..3]));
    assert!(votes(2, &requests[3..4]));
    requests[4].auth = requests[5].auth.clone();
    assert!(!votes(3, &requests[4..5]), "another's signature");
    let mut other = request_of(51, 1, Bytes::new());
    other.auth = requests[5].auth.clone();
    assert!(!votes(4, &[other]), "another client's");
    assert!(votes(5, &requests[5..]));
}

/// Clients that fill the pool together make room for one that has little; none of them takes it all.
#[test]
fn who_has_most_makes_room() {
    let mut replica = linked(1);
    let op = Bytes::from(vec![7; MIB]);
    let mut refused = 0;
    for number in 0..100 {
        for client in [50, 51, 52, 53] {
            // The last one comes when the others have all there is.
            let many = number < 90 && client != 53;
            if many || (client == 53 && number >= 90) {
                let body = request_of(client, number, op.clone());
                let taken = flood(&mut replica, body);
                assert!(client != 53 || taken.is_ok(), "{taken:?}");
                refused += usize::from(taken == Err(Rejected::ClientOverLimit));
            }
        }
    }
    assert!(refused > 0);
    let (own, all) = (80 * MIB, 256 * MIB);
    let held = replica.memory().requests;
    assert!(held <= all + (1 << 20), "{held}");
    assert!(held > 3 * own - 20 * MIB, "{held}");
    for number in 90..100 {
        let wanted = request_of(53, number, op.clone()).request.digest();
        let fetch = PeerMessage::Fetch(Fetch::Request(wanted));
        from_peer(&mut replica, 1, 2, fetch).unwrap();
    }
    replica.invariants();
}

/// A client opens one session after the other: some are, and no more; another client's is at once.
#[test]
fn sessions_are_opened_seldom() {
    let open = |client: u8, number: u64| {
        let op = Bytes::from(quorate_wire::Encode::to_bytes(&Control::Open(())));
        let (client, number) = (key(client).public(), RequestNumber(number));
        let request = Request::new(client, SessionId(0), number, op);
        AuthRequest {
            request,
            auth: Authenticator::Macs(vec![Mac([0; 16]); 4]),
            replier: ReplicaId(0),
        }
    };
    for me in [0, 1] {
        let mut replica = linked(me);
        // What nobody else could tell to be its client's is not taken at all.
        let bare = AuthRequest::bare(open(50, 1).request);
        let input = Input::Request(Verified::from_link(bare));
        assert_eq!(
            replica.handle(at(0), input),
            Err(Rejected::BadAuthentication)
        );
        let (mut taken, mut relayed) = (0, 0);
        for ms in 0..10_000 {
            let input = Input::Request(Verified::from_link(open(50, ms)));
            taken += usize::from(replica.handle(at(ms), input).is_ok());
            let outputs = outputs(&mut replica).into_iter();
            let to_primary = outputs.filter(|o| matches!(o, Output::Send(..)));
            relayed += to_primary.count();
        }
        assert!((80..=120).contains(&taken), "{taken}");
        assert!(relayed <= 120, "{relayed}");
        let input = Input::Request(Verified::from_link(open(51, 1)));
        assert_eq!(replica.handle(at(10_000), input), Ok(()));
        // What is there already may be repeated.
        let input = Input::Request(Verified::from_link(open(51, 1)));
        assert_eq!(replica.handle(at(10_000), input), Err(Rejected::Duplicate));
    }
}

/// What a backup shows goes first, though its client has hundreds before it; so much and no more.
#[test]
fn what_a_backup_shows_goes_first() {
    let mut primary = linked(0);
    for number in 1..=2_000 {
        let mut body = request_of(50, number, Bytes::new());
        body.auth = Authenticator::Signed(key(50).sign_in(&GROUP, &body.request.digest()).into());
        flood(&mut primary, body).unwrap();
    }
    let mut batches = proposed(&mut primary);
    let named = |m: &PrePrepare, number: u64| {
        let wanted = request_of(50, number, Bytes::new()).request.digest();
        m.batch.requests.contains(&wanted)
    };
    batches.truncate(1);
    for number in 1_900..=2_000 {
        let mut body = request_of(50, number, Bytes::new());
        body.auth = Authenticator::Signed(key(50).sign_in(&GROUP, &body.request.digest()).into());
        let shown = PeerMessage::Request(body);
        assert_eq!(
            from_peer(&mut primary, 1, 1, shown),
            Err(Rejected::Duplicate)
        );
    }
    agree(&mut primary, [1, 2, 3], &batches[0], 1);
    let next = proposed(&mut primary).remove(0);
    let first = (1_900..=2_000)
        .filter(|number| named(&next, *number))
        .count();
    assert_eq!(first, 16);
}

/// A client of which much is open is to be held, until half of that is done.
#[test]
fn enough_is_open() {
    let mut primary = linked(0);
    let client = key(50).public();
    let mut number = 0;
    while !primary.has_enough_of(&client, false) {
        number += 1;
        flood(&mut primary, request_of(50, number, Bytes::new())).unwrap();
    }
    assert_eq!(number, 257);
    assert!(!primary.has_enough_of(&key(51).public(), false));
    let mut done = 0;
    while primary.has_enough_of(&client, true) {
        for batch in proposed(&mut primary) {
            done += batch.batch.requests.len();
            agree(&mut primary, [1, 2, 3], &batch, 1);
        }
    }
    assert!((128..=257).contains(&done), "{done}");
}

/// A primary that proposes as heavy batches as it may, at all places of the window, is refused where the log is full; the view
/// changes, and the next primary's small batch is taken. What nobody has voted for is forgotten with the view.
#[test]
fn a_primary_does_not_fill_the_log() {
    let mut replica = linked(1);
    let op = Bytes::from(vec![7; MIB]);
    let (mut taken, mut refused) = (0, 0);
    for seq in 1..=256_u64 {
        let bodies = [0, 1, 2].map(|i| request_of(50, seq * 3 + i, op.clone()));
        let message = PeerMessage::PrePrepare(proposal(0, seq, 1, &bodies));
        let input = Input::Peer(ReplicaId(0), message);
        match replica.handle(at(1), input) {
            Ok(()) => taken += 1,
            Err(reason) => {
                assert_eq!(reason, Rejected::LogFull);
                refused += 1;
            }
        }
        outputs(&mut replica);
    }
    replica.invariants();
    assert!(taken >= 80 && refused >= 160, "{taken} {refused}");
    let held = replica.memory().requests;
    assert!(held <= LOG_BYTES + 4 * MIB, "{held}");

    // Another client is not shut out by what that one has.
    let mut waits = request_of(51, 10_000, Bytes::from_static(b"waits"));
    waits.auth = Authenticator::Signed(key(51).sign_in(&GROUP, &waits.request.digest()).into());
    from_client(&mut replica, 1, waits).unwrap();
    for ms in (50..=4 * TIMEOUT_MS).step_by(50) {
        replica.handle(at(ms), Input::Tick).unwrap();
    }
    assert!(replica.standing().view > View(0));
    // View 2 is another's.
    let changes = [0, 2, 3].map(|r| view_change(r, 2));
    for change in &changes {
        let (from, m) = (change.body.replica, change.clone());
        let _ = replica.handle(at(7_000), Input::Peer(from, PeerMessage::ViewChange(m)));
    }
    let begins = new_view(2, named(&changes), (Seq(0), GENESIS), vec![]);
    let input = Input::Peer(ReplicaId(2), PeerMessage::NewView(begins));
    let _ = replica.handle(at(7_000), input);
    assert!(replica.standing().active);
    let body = request_of(51, 1, op.slice(..1000));
    let message = PeerMessage::PrePrepare(proposal(2, 1, 7_000, &[body]));
    from_peer(&mut replica, 7_000, 2, message).unwrap();
}

/// A primary whose checkpoints are late stops before its backups' logs are full.
#[test]
fn a_primary_waits_for_checkpoints() {
    let mut primary = linked(0);
    let op = Bytes::from(vec![7; MIB]);
    let mut number = 0;
    for _ in 0..200 {
        while let Ok(()) = flood(&mut primary, request_of(50, number + 1, op.clone())) {
            number += 1;
        }
        let batches = proposed(&mut primary);
        if batches.is_empty() {
            break;
        }
        batches
            .iter()
            .for_each(|m| agree(&mut primary, [1, 2, 3], m, 1));
    }
    let executed = primary.standing().executed;
    assert!(executed < Seq(256), "the window's end is not what stops it");
    assert!(executed > Seq(60), "{executed:?}");
    let held = primary.memory().requests;
    assert!(held < LOG_BYTES + 80 * MIB, "{held}");
    // A checkpoint makes room.
    let place = Seq(50);
    let made = Input::CheckpointMade(place, GENESIS);
    primary.handle(at(2), made).unwrap();
    for from in [1, 2] {
        let root = GENESIS;
        let message = PeerMessage::Checkpoint(Checkpoint { seq: place, root });
        from_peer(&mut primary, 2, from, message).unwrap();
    }
    assert!(!proposed(&mut primary).is_empty());
}

fn bytes_to(replica: &mut Agreement, peer: u8) -> usize {
    let outputs = outputs(replica).into_iter();
    let sizes = outputs.map(|output| match output {
        Output::Send(to, message) if to.0 == peer => quorate_wire::Encode::to_bytes(&message).len(),
        _ => 0,
    });
    sizes.sum()
}

/// A peer that says where it stands, or asks for content, a hundred times in each millisecond, gets what a bucket gives; one
/// that asks as it should is answered all the while.
#[test]
fn who_asks_without_end_gets_no_more_than_its_share() {
    let mut primary = linked(0);
    let op = Bytes::from(vec![7; 15_000]);
    for number in 1..=128 {
        flood(&mut primary, request_of(50, number, op.clone())).unwrap();
    }
    let batches = proposed(&mut primary);
    let wanted = batches[0].batch.requests[0];
    let (mut given, mut refused, mut modest) = (0, 0, 0);
    for ms in 1..=1_000 {
        for i in 0..100 {
            let ask = match i % 2 {
                0 => status(0, true, 0),
                _ => PeerMessage::Fetch(Fetch::Request(wanted)),
            };
            let taken = primary.handle(at(ms), Input::Peer(ReplicaId(3), ask));
            refused += usize::from(taken == Err(Rejected::TooOften));
            given += bytes_to(&mut primary, 3);
        }
        if ms % 100 == 0 {
            let fetch = PeerMessage::Fetch(Fetch::Request(wanted));
            from_peer(&mut primary, ms, 2, status(0, true, 0)).unwrap();
            from_peer(&mut primary, ms, 2, fetch).unwrap();
            modest += usize::from(bytes_to(&mut primary, 2) > 15_000);
        }
    }
    assert!(refused > 50_000, "{refused}");
    assert!(given < 110 * MIB, "{given}");
    assert!(given > 50 * MIB, "{given}");
    assert_eq!(modest, 10);
}

/// Clients and a peer send all that they can think of for long, through several views: what is held stays below the bound.
#[test]
fn floods_do_not_grow_the_memory() {
    let mut replica = linked(1);
    let bound = Memory::bound(quorum(), CLIENTS.len());
    let large = Bytes::from(vec![7; MIB]);
    let small = Bytes::from_static(b"op");
    let mut number = 0;
    let digest = |n: u64| Digest(core::array::from_fn(|i| (n >> (i % 8)) as u8));
    for round in 0..2_000_u64 {
        let ms = round * 10;
        let view = replica.standing().view;
        for client in CLIENTS {
            number += 1;
            let op = if number % 16 == 0 { &large } else { &small };
            let mut body = request_of(client, number, op.clone());
            if number % 5 == 0 {
                let signature = key(client).sign_in(&GROUP, &body.request.digest());
                body.auth = Authenticator::Signed(signature.into());
            }
            let input = quorate_wire::Verified::from_link(body);
            let _ = replica.handle(at(ms), Input::Request(input));
        }
        let by = quorum().primary(view);
        let by = if by == ReplicaId(1) { ReplicaId(3) } else { by };
        let seq = Seq(1 + round % 256);
        let op = if round % 64 == 0 { &large } else { &small };
        let bodies: Vec<AuthRequest> = (0..3)
            .map(|i| request_of(50, 1_000_000 + round * 3 + i, op.clone()))
            .collect();
        let messages = [
            PeerMessage::PrePrepare(proposal(view.0, seq.0, ms, &bodies)),
            PeerMessage::Prepare(Prepare {
                view,
                seq,
                digest: digest(round),
            }),
            PeerMessage::Commit(Commit {
                view,
                seq,
                digest: digest(round),
            }),
            PeerMessage::Committed(Committed {
                seq,
                digest: digest(round),
            }),
            PeerMessage::Checkpoint(Checkpoint {
                seq: Seq(round * 128),
                root: digest(round),
            }),
            PeerMessage::ViewChange(view_change(by.0, view.0 + 1 + round % 3)),
            PeerMessage::Fetch(Fetch::Batch(digest(round))),
            status(round % 7, round % 2 == 0, round),
            PeerMessage::Request(request_of(50, 2_000_000 + round, small.clone())),
        ];
        for message in messages {
            let _ = replica.handle(at(ms), Input::Peer(by, message));
        }
        sync(&mut replica, ms);
        outputs(&mut replica);
        if round % 100 == 0 {
            let held = replica.memory();
            assert!(held.requests <= bound.requests, "{held:?} {bound:?}");
            assert!(held.places <= bound.places, "{held:?} {bound:?}");
            assert!(held.views <= bound.views, "{held:?} {bound:?}");
            assert!(held.rest <= bound.rest, "{held:?} {bound:?}");
        }
    }
    replica.invariants();
    assert!(replica.standing().view > View(1), "several views");
    assert!(bound.total() < 768 * MIB, "{bound:?}");
}

/// One primary after the other, each with a client of its own making, proposes heavy batches for which nobody can vote, since a request of each is nowhere. What
/// was in the log waits in the next view, and counts as what waits.
#[test]
fn primaries_in_turn_do_not_pile_requests_up() {
    let mut replica = linked(1);
    let bound = Memory::bound(quorum(), CLIENTS.len());
    let op = Bytes::from(vec![7; MIB]);
    let (mut number, mut ms) = (0, 1);
    for view in [0, 2, 3, 4, 6, 7] {
        if view > 0 {
            let changes = [0, 2, 3].map(|r| view_change(r, view));
            for change in &changes {
                let (from, m) = (change.body.replica, change.clone());
                let _ = replica.handle(at(ms), Input::Peer(from, PeerMessage::ViewChange(m)));
            }
            let begins = new_view(view, named(&changes), (Seq(0), GENESIS), vec![]);
            let by = quorum().primary(View(view));
            let input = Input::Peer(by, PeerMessage::NewView(begins));
            let _ = replica.handle(at(ms), input);
            sync(&mut replica, ms);
            outputs(&mut replica);
        }
        let standing = replica.standing();
        assert!(
            standing.active && standing.view == View(view),
            "{standing:?}"
        );
        let mut taken = 0;
        for seq in 1..=128_u64 {
            let client = CLIENTS[number as usize % CLIENTS.len()];
            let bodies = [1, 2, 3].map(|i| request_of(client, number + i, op.clone()));
            number += 3;
            let mut proposed = proposal(view, seq, ms, &bodies);
            proposed.batch.requests.push(Digest([number as u8; 32]));
            let message = PeerMessage::PrePrepare(proposed);
            let by = quorum().primary(View(view));
            taken += usize::from(replica.handle(at(ms), Input::Peer(by, message)).is_ok());
            sync(&mut replica, ms);
            outputs(&mut replica);
        }
        let held = replica.memory();
        println!(
            "view {view}: {taken} taken, {} MiB held, {} may be",
            held.requests / MIB,
            bound.requests / MIB
        );
        ms += 100;
    }
    replica.invariants();
    let held = replica.memory();
    assert!(held.requests <= bound.requests, "{held:?} {bound:?}");
    for part in replica.parts() {
        assert!(part.held <= part.most, "{part:?}");
    }
}

/// A faulty primary fills the log of one backup, and has it told that others vote for more: that is not taken beyond the room that there is. Else the
/// backup could not even ask for the one request that is next, and where its vote is missing nothing would ever be ordered again.
#[test]
fn what_others_vouch_for_has_no_room_of_its_own() {
    let mut replica = linked(1);
    let op = Bytes::from(vec![7; MIB]);
    let mut number = 0;
    let mut heavy = |seq: u64| {
        let client = CLIENTS[number as usize % CLIENTS.len()];
        let bodies = [1, 2, 3].map(|i| request_of(client, number + i, op.clone()));
        number += 3;
        proposal(0, seq, 1, &bodies)
    };
    let give = |replica: &mut Agreement, m: PrePrepare| {
        let given = replica.handle(at(1), Input::Peer(ReplicaId(0), PeerMessage::PrePrepare(m)));
        sync(replica, 1);
        outputs(replica);
        given
    };
    let mut seq = 2;
    while give(&mut replica, heavy(seq)).is_ok() {
        seq += 1;
    }
    assert!(seq > 64, "a correct primary may propose so much");
    let full = replica.memory();
    for seq in 150..=190 {
        let m = heavy(seq);
        let (view, at, digest) = (m.view, m.seq, m.batch.digest());
        for from in [0, 2] {
            let vote = Prepare {
                view,
                seq: at,
                digest,
            };
            from_peer(&mut replica, 1, from, PeerMessage::Prepare(vote)).unwrap();
        }
        assert_eq!(give(&mut replica, m), Err(Rejected::LogFull), "{at:?}");
    }
    assert_eq!(replica.memory().requests, full.requests);

    // What is next is another matter, also of a request that comes with nobody's proposal.
    let long = request_of(CLIENTS[0], number + 1_000, Bytes::from(vec![1; 20 << 10]));
    let next = proposal(0, 1, 1, std::slice::from_ref(&long));
    let (view, seq, digest) = (next.view, next.seq, next.batch.digest());
    for from in [2, 3] {
        let vote = PeerMessage::Prepare(Prepare { view, seq, digest });
        from_peer(&mut replica, 1, from, vote).unwrap();
    }
    wait(&mut replica, 1, 300);
    let batch = next.batch.clone();
    let came = PeerMessage::Batch(BatchBody { batch });
    from_peer(&mut replica, 300, 2, came).unwrap();
    let asks = |output: &Output| {
        let wanted = long.request.digest();
        matches!(output, Output::Send(_, PeerMessage::Fetch(Fetch::Request(digest))) if *digest == wanted)
    };
    assert!(outputs(&mut replica).iter().any(asks));
    from_peer(&mut replica, 301, 3, PeerMessage::Body(long.clone())).unwrap();
    let votes = written(&mut replica);
    let votes_for = |(_, record): &(LogIndex, Record)| matches!(record, Record::PrePrepared(r) if r.vote.digest == digest);
    assert!(votes.iter().any(votes_for), "{votes:?}");
    replica.invariants();
    for part in replica.parts() {
        assert!(part.held <= part.most, "{part:?}");
    }
}

/// A faulty primary names requests that are nowhere, and answers when it is asked for them: that leaves the place that is next its room as well, also for the
/// primary after it.
#[test]
fn what_is_asked_for_leaves_room_for_what_is_next() {
    let mut replica = linked(1);
    let op = Bytes::from(vec![7; MIB]);
    let mut bodies = Vec::new();
    for seq in 2..=119_u64 {
        let client = CLIENTS[seq as usize % CLIENTS.len()];
        let three = [1, 2, 3].map(|i| request_of(client, 3 * seq + i, op.clone()));
        let mut m = proposal(0, seq, 1, &three);
        m.bodies.clear();
        from_peer(&mut replica, 1, 0, PeerMessage::PrePrepare(m)).unwrap();
        bodies.extend(three);
    }
    // All of them are asked for before any is given.
    let mut asked = std::collections::BTreeSet::new();
    for ms in (10..1_400).step_by(10) {
        replica.handle(at(ms), Input::Tick).unwrap();
        asked.extend(outputs(&mut replica).into_iter().filter_map(|o| match o {
            Output::Send(_, PeerMessage::Fetch(Fetch::Request(digest))) => Some(digest),
            _ => None,
        }));
    }
    assert_eq!(asked.len(), bodies.len());
    for body in bodies {
        let m = Input::Peer(ReplicaId(0), PeerMessage::Body(body));
        let _ = replica.handle(at(1_400), m);
        sync(&mut replica, 1_400);
        outputs(&mut replica);
    }
    replica.invariants();
    let parts = replica.parts();
    assert!(parts.iter().all(|part| part.held <= part.most), "{parts:?}");

    let changes = [0, 2, 3].map(|r| view_change(r, 2));
    for change in &changes {
        let m = PeerMessage::ViewChange(change.clone());
        let _ = from_peer(&mut replica, 1_410, change.body.replica.0, m);
    }
    let begins = new_view(2, named(&changes), (Seq(0), GENESIS), vec![]);
    from_peer(&mut replica, 1_420, 2, PeerMessage::NewView(begins)).unwrap();
    sync(&mut replica, 1_420);
    assert!(replica.standing().active);
    outputs(&mut replica);
    for (seq, bytes) in [(1, 100), (2, MIB), (3, MIB)] {
        let own = request_of(CLIENTS[0], 10_000 + seq, Bytes::from(vec![1; bytes]));
        let m = proposal(2, seq, 1_430, std::slice::from_ref(&own));
        let (view, at, digest) = (m.view, m.seq, m.batch.digest());
        from_peer(&mut replica, 1_430, 2, PeerMessage::PrePrepare(m)).unwrap();
        let votes = written(&mut replica);
        let is_for_it = |(_, r): &(LogIndex, Record)| matches!(r, Record::PrePrepared(p) if p.vote.digest == digest);
        assert!(votes.iter().any(is_for_it), "{at:?}: {votes:?}");
        for from in [0, 2, 3] {
            let vote = Commit {
                view,
                seq: at,
                digest,
            };
            let _ = from_peer(&mut replica, 1_430, from, PeerMessage::Commit(vote));
        }
        assert_eq!(replica.standing().executed, at);
    }
}
