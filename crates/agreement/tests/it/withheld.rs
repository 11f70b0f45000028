//! Proposals without the content that should come with them, and with more than that.

use bytes::Bytes;
use quorate_agreement::{Agreement, INLINE_BYTES, Input, Millis, Output, Rejected};
use quorate_wire::message::{AuthRequest, Fetch, PeerMessage, Prepare, Status};
use quorate_wire::{Authenticator, Seq, Verified, View};

use crate::support::*;

/// A request that its client has signed.
fn signed_of(client: u8, number: u64, op: Bytes) -> AuthRequest {
    let mut signed = request_of(client, number, op);
    let digest = signed.request.digest();
    signed.auth = Authenticator::Signed(key(client).sign_in(&GROUP, &digest).into());
    signed
}

/// The others than this backup.
const OTHERS: [u8; 3] = [0, 2, 3];

/// A backup to which its primary has been quick, and which hears of another one that its primary is no good.
fn acquainted() -> (Agreement, Millis) {
    let mut replica = fresh(1);
    for seq in 1..=20 {
        let ms = seq * 10;
        let op = signed_of(50, seq, Bytes::from_static(b"op"));
        let m = pre_prepare(ms, seq, &[op]);
        from_peer(&mut replica, ms, 0, PeerMessage::PrePrepare(m.clone())).unwrap();
        agree(&mut replica, OTHERS, &m, ms);
    }
    outputs(&mut replica);
    let PeerMessage::Status(said) = status(0, true, 0) else {
        unreachable!()
    };
    let said = Status {
        primary_lost: true,
        ..said
    };
    from_peer(&mut replica, 210, 2, PeerMessage::Status(said)).unwrap();
    (replica, 220)
}

fn wait(replica: &mut Agreement, from: Millis, ms: Millis) {
    for now in from..=from + ms {
        replica.handle(at(now), Input::Tick).unwrap();
        replica.invariants();
    }
}

/// A primary that proposes small requests without their content and gives it later is left: soon where that is long, and after some seconds where it is short. What
/// is long comes from its client, and is the primary's fault at no time; nor is what was here before.
#[test]
fn content_that_is_held_back_is_blamed() {
    let long = INLINE_BYTES + 1;
    for (delay, pause, length, is_left) in [
        (90, 5, 1, true),
        (30, 1_000, 1, true),
        (90, 5, long, false),
        (30, 1_000, long, false),
        (0, 5, 1, false),
        (0, 1_000, 1, false),
    ] {
        let (mut replica, mut now) = acquainted();
        for number in 100..140 {
            if replica.standing().view > View(0) {
                break;
            }
            let claim = signed_of(50, number, Bytes::from_static(b"op"));
            let other = request_of(51, number, Bytes::from(vec![1; length]));
            let watched = Input::Watch(Verified::from_link(claim.clone()));
            replica.handle(at(now), watched).unwrap();
            let proposal = pre_prepare(now, number - 79, &[claim.clone(), other.clone()]);
            let mut bare = proposal.clone();
            if delay > 0 {
                bare.bodies.clear();
            }
            from_peer(&mut replica, now, 0, PeerMessage::PrePrepare(bare)).unwrap();
            wait(&mut replica, now, delay);
            now += delay;
            match (delay, length == long) {
                (0, _) => {}
                (_, false) => from_peer(&mut replica, now, 0, PeerMessage::Body(other)).unwrap(),
                (_, true) => from_client(&mut replica, now, other).unwrap(),
            }
            sync(&mut replica, now);
            if replica.standing().view > View(0) {
                break;
            }
            agree(&mut replica, OTHERS, &proposal, now);
            let seq = Seq(number - 79);
            assert!(replica.standing().committed >= seq, "{seq:?}");
            wait(&mut replica, now, pause);
            now += pause;
        }
        let left = replica.standing().view > View(0);
        assert_eq!(left, is_left, "{delay} {pause} {length}");
    }
}

/// One backup alone lacks the content. It asks the first that has voted, since who has voted has it; and is given what is small at once, since what is long comes from its client.
#[test]
fn who_has_voted_is_asked() {
    let (mut replica, now) = acquainted();
    let claim = signed_of(50, 100, Bytes::from_static(b"op"));
    let long = request_of(51, 100, Bytes::from(vec![1; INLINE_BYTES + 1]));
    let proposal = pre_prepare(now, 21, &[claim.clone(), long.clone()]);
    let mut bare = proposal.clone();
    bare.bodies.clear();
    from_peer(&mut replica, now, 0, PeerMessage::PrePrepare(bare)).unwrap();
    outputs(&mut replica);
    let vote = |from: u8| {
        let (view, seq, digest) = (View(0), Seq(21), proposal.batch.digest());
        (from, PeerMessage::Prepare(Prepare { view, seq, digest }))
    };
    let asks = |replica: &mut Agreement| -> Vec<(u8, Fetch)> {
        let ask = |output: Output| match output {
            Output::Send(to, PeerMessage::Fetch(fetch)) => Some((to.0, fetch)),
            _ => None,
        };
        outputs(replica).into_iter().filter_map(ask).collect()
    };
    // It may be the one that withholds it.
    let (from, of_primary) = vote(0);
    from_peer(&mut replica, now, from, of_primary).unwrap();
    assert_eq!(asks(&mut replica), []);
    let (from, of_another) = vote(2);
    from_peer(&mut replica, now, from, of_another).unwrap();
    let both = [&claim, &long].map(|r| (2, Fetch::Small(r.request.digest())));
    assert_eq!(asks(&mut replica), both);
    from_peer(&mut replica, now, 2, PeerMessage::Body(claim)).unwrap();
    from_client(&mut replica, now, long.clone()).unwrap();
    sync(&mut replica, now);
    let voted =
        |o: &Output| matches!(o, Output::Broadcast(PeerMessage::Prepare(m)) if m.seq == Seq(21));
    assert!(outputs(&mut replica).iter().any(voted));

    // What it has itself it gives by the same rule.
    for (request, is_given) in [(&long, false), (&proposal.bodies[0], true)] {
        let fetch = PeerMessage::Fetch(Fetch::Small(request.request.digest()));
        from_peer(&mut replica, now, 3, fetch).unwrap();
        let gives = |o: &Output| matches!(o, Output::Send(_, PeerMessage::Body(_)));
        assert_eq!(outputs(&mut replica).iter().any(gives), is_given);
    }
}

/// What a proposal brings and does not name is refused with it: it would be thrown away, and what is kept of the message would keep it in memory.
#[test]
fn a_proposal_brings_nothing_else() {
    let mut replica = fresh(1);
    let op = signed_of(50, 1, Bytes::from_static(b"op"));
    let other = request_of(51, 1, Bytes::from_static(b"other"));
    let mut proposal = pre_prepare(0, 1, &[op, other]);
    proposal.batch.requests.pop();
    let refused = from_peer(&mut replica, 0, 0, PeerMessage::PrePrepare(proposal));
    assert_eq!(refused, Err(Rejected::BadBatch));
}

/// A primary says the same thing again and again, with one request more each time. What is kept of it is that request, and not the message.
#[test]
fn what_is_said_again_takes_no_memory() {
    const OF_MESSAGE: usize = 4096;
    let mut replica = fresh(1);
    let ops: Vec<AuthRequest> = (0..8)
        .map(|at| request_of(50 + at % 2, 1 + u64::from(at), Bytes::from(vec![at; 100])))
        .collect();
    let proposal = pre_prepare(0, 1, &ops);
    let mut frames = Vec::new();
    for known in 1..ops.len() {
        // All those before, and one that is new, are parts of one message.
        let mut m = proposal.clone();
        m.bodies.clear();
        let mut message = Vec::new();
        for op in &ops[..known] {
            message.extend_from_slice(op.request.op());
        }
        message.resize(OF_MESSAGE, 0);
        let frame = Bytes::from(message);
        for (at, op) in ops[..known].iter().enumerate() {
            let part = frame.slice(at * 100..at * 100 + 100);
            let request = op.request.with_op(part);
            m.bodies.push(
                AuthRequest {
                    request,
                    ..op.clone()
                }
                .into(),
            );
        }
        from_peer(&mut replica, 0, 0, PeerMessage::PrePrepare(m)).unwrap();
        frames.push(frame);
    }
    outputs(&mut replica);
    let kept = frames.iter().filter(|frame| !frame.is_unique()).count();
    // As much of the first ones was new as was known.
    assert!(kept <= 2, "{kept} messages are kept");
    assert_eq!(frames.len(), ops.len() - 1);
}

/// What a client has signed for another group is nobody's word in this one.
#[test]
fn a_word_for_another_group_is_none() {
    let mut replica = fresh(1);
    let mut elsewhere = request(1, Bytes::from_static(b"op"));
    let digest = elsewhere.request.digest();
    let another = quorate_wire::Digest([8; 32]);
    elsewhere.auth = Authenticator::Signed(key(50).sign_in(&another, &digest).into());
    let proposal = pre_prepare(0, 1, &[elsewhere]);
    from_peer(&mut replica, 0, 0, PeerMessage::PrePrepare(proposal)).unwrap();
    sync(&mut replica, 0);
    let votes = |o: &Output| matches!(o, Output::Broadcast(PeerMessage::Prepare(_)));
    assert!(!outputs(&mut replica).iter().any(votes));
}
