//! One replica's agreement alone; the scenario is the rest of the group. What a storm does not bring about, or what costs time and
//! memory and nothing else.

use std::sync::Arc;

use quorate_agreement::{
    Agreement, Config, Input, LOG_BYTES, LOG_WINDOW, Now, Output, Rejected, Tuning,
};
use quorate_wire::message::{
    AuthRequest, Batch, Checkpoint, EVERYONE, Fetch, PeerMessage, PrePrepare, Request,
};
use quorate_wire::{
    Authentication, Authenticator, Digest, KeyPair, LogIndex, Quorum, ReplicaId, RequestNumber,
    Seq, SessionId, Time, Verified, View,
};

use super::*;
use crate::client::client_key;
use crate::keys::{GROUP, replica_keys, standing_signer};
use crate::server::{CLOCK_BOUND_MS, EPOCH_NS};

const GENESIS: Digest = Digest([9; 32]);

fn at(mono: u64) -> Now {
    let wall = Time(EPOCH_NS + mono * 1_000_000);
    Now { mono, wall }
}

fn core(replicas: usize, me: u8) -> Agreement {
    let quorum = Quorum::new(replicas).expect("a size of a group");
    let config = Config {
        quorum,
        me: ReplicaId(me),
        key: standing_signer(ReplicaId(me)),
        keys: replica_keys(quorum, false),
        clients: [client_key(0).public()].into(),
        timeout_ms: 60_000,
        guests: false,
        clock_bound_ms: CLOCK_BOUND_MS,
        client_keys_last_ms: quorate_agreement::CLIENT_KEYS_LAST_MS,
        authentication: Authentication::Mac,
        durable: false,
        checkpoint_bytes: usize::MAX,
        kept_bytes: quorate_wire::message::session::KEPT_BYTES,
        tuning: Tuning::default(),
    };
    Agreement::new(config, (Seq(0), GENESIS), true, vec![], LogIndex(0), at(0))
}

/// A request that is signed with the key of who it says asks.
fn signed(key: &KeyPair, number: u64, op: Bytes) -> AuthRequest {
    let request = Request::new(key.public(), SessionId(1), RequestNumber(number), op);
    AuthRequest {
        auth: Authenticator::Signed(key.sign_in(&GROUP, &request.digest()).into()),
        replier: EVERYONE,
        request,
    }
}

fn proposal(seq: u64, bodies: Vec<AuthRequest>) -> PeerMessage {
    let requests = bodies.iter().map(|b| b.request.digest()).collect();
    PeerMessage::PrePrepare(PrePrepare {
        view: View(0),
        seq: Seq(seq),
        batch: Batch {
            time: at(1).wall,
            requests,
        },
        bodies: bodies.into_iter().map(Arc::new).collect(),
    })
}

fn tell(core: &mut Agreement, from: u8, message: PeerMessage) -> Result<(), Rejected> {
    core.handle(at(1), Input::Peer(ReplicaId(from), message))
}

fn expect(holds: bool, property: &'static str, what: &str) -> Outcome {
    match holds {
        true => Ok(()),
        false => Err(Failure::new(property, what)),
    }
}

/// A primary gives each place of the window as heavy a batch as there may be.
pub(super) fn a_full_log_is_refused() -> Outcome {
    let mut backup = core(4, 1);
    let key = client_key(0);
    let op = Bytes::from(vec![7; 1 << 20]);
    for seq in 1..=LOG_WINDOW / 2 {
        let bodies = [0, 1, 2].map(|i| signed(&key, 3 * seq + i, op.clone()));
        let _ = tell(&mut backup, 0, proposal(seq, bodies.into()));
        backup.drain().for_each(drop);
    }
    let held = backup.memory().requests;
    expect(
        held < LOG_BYTES + (8 << 20),
        "memory",
        &format!("{held} bytes"),
    )
}

/// A replica signs a request with a key of its own making and proposes it.
pub(super) fn strangers_are_not_served() -> Outcome {
    let mut backup = core(4, 1);
    let body = signed(&client_key(7), 1, Bytes::from_static(b"op"));
    let _ = tell(&mut backup, 0, proposal(1, vec![body]));
    let voted = |o: Output| matches!(o, Output::Broadcast(PeerMessage::Prepare(_)));
    expect(
        !backup.drain().any(voted),
        "validity",
        "a request of nobody's is voted for",
    )
}

/// What a primary has proposed reaches nobody, until it is too old.
pub(super) fn a_stale_proposal_is_given_up() -> Outcome {
    let mut primary = core(4, 0);
    let body = signed(&client_key(0), 1, Bytes::from_static(b"op"));
    let asked = Input::Request(Verified::from_link(body));
    let _ = primary.handle(at(1), asked);
    for ms in (50..2 * CLOCK_BOUND_MS).step_by(50) {
        let _ = primary.handle(at(ms), Input::Tick);
    }
    let standing = primary.standing();
    expect(
        standing.view > View(0),
        "liveness",
        "a place stays open that nobody will take",
    )
}

/// A peer asks for the same again and again.
pub(super) fn who_asks_without_end_is_put_off() -> Outcome {
    let mut primary = core(4, 0);
    let op = Bytes::from(vec![7; 15_000]);
    let body = signed(&client_key(0), 1, op);
    let wanted = Fetch::Request(body.request.digest());
    let _ = primary.handle(at(1), Input::Request(Verified::from_link(body)));
    let mut given = 0;
    for _ in 0..20_000 {
        let _ = tell(&mut primary, 3, PeerMessage::Fetch(wanted.clone()));
        let answers = primary.drain();
        given += answers.filter(|o| matches!(o, Output::Send(..))).count();
    }
    expect(given < 10_000, "memory", &format!("{given} answers"))
}

/// Three of seven vouch for a checkpoint, of whom two may be faulty, and a replica fetches it.
pub(super) fn a_fetched_state_is_no_water_mark() -> Outcome {
    let mut replica = core(7, 1);
    let (seq, root) = (Seq(2 * LOG_WINDOW), Digest([5; 32]));
    for from in [4, 5, 6] {
        let claim = PeerMessage::Checkpoint(Checkpoint { seq, root });
        let _ = tell(&mut replica, from, claim);
    }
    let _ = replica.handle(at(1), Input::StateFetched(seq, root));
    let standing = replica.standing();
    assert_eq!(standing.executed, seq);
    expect(
        standing.stable.0 == Seq(0),
        "stability",
        "four have it, two of them perhaps not",
    )
}
