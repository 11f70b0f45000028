//! One replica of a group of four, and the messages that the other three send it.

#![allow(dead_code, reason = "each test needs a part of it")]

use std::sync::Arc;

use bytes::Bytes;
use quorate_agreement::{Agreement, Config, Input, Millis, Now, Output, Record, Rejected, Tuning};
use quorate_wire::message::{
    AuthRequest, Batch, Commit, NewView, PeerMessage, PrePrepare, Prepare, Request, SignedNewView,
    SignedViewChange, Status, ViewChange, Vote,
};
use quorate_wire::{
    Authentication, Authenticator, ClientId, Digest, KeyPair, LogIndex, MacKey, Quorum, ReplicaId,
    ReplicaKeys, RequestNumber, Seq, SessionId, Signer, Time, Verified, View,
};

/// How long the replica waits for a primary.
pub const TIMEOUT_MS: Millis = 1_500;
/// The root of the initial state.
pub const GENESIS: Digest = Digest([9; 32]);

/// The seeds of the clients' keys.
pub const CLIENTS: [u8; 4] = [50, 51, 52, 53];

pub fn quorum() -> Quorum {
    Quorum::new(4).unwrap()
}

pub fn key(replica: u8) -> KeyPair {
    KeyPair::from_seed(&[replica + 1; 32])
}

pub fn client() -> ClientId {
    key(50).public()
}

/// The key of the client's link with a replica.
pub fn link_key(replica: u8) -> MacKey {
    MacKey([replica + 1; 32])
}

pub fn at(mono: Millis) -> Now {
    let wall = Time(1_000_000_000_000_000 + mono * 1_000_000);
    Now { mono, wall }
}

/// A replica that starts from a store and a log.
pub fn restarted(me: u8, checkpoint: (Seq, Digest), records: Vec<Record>) -> Agreement {
    let next = LogIndex(records.len() as u64);
    let config = config(me, Authentication::Mac);
    Agreement::new(config, checkpoint, true, records, next, at(0))
}

/// A replica whose store was given another state when it died, and has not got all of it.
pub fn restarted_with_half(me: u8, checkpoint: (Seq, Digest), records: Vec<Record>) -> Agreement {
    let next = LogIndex(records.len() as u64);
    let config = config(me, Authentication::Mac);
    Agreement::new(config, checkpoint, false, records, next, at(0))
}

/// The one replica of a group that has no others, which starts from a log and what its store has.
pub fn restarted_alone(checkpoint: (Seq, Digest), records: Vec<Record>) -> Agreement {
    let next = LogIndex(records.len() as u64);
    let config = config_of(Quorum::new(1).unwrap(), 0, Authentication::Mac);
    Agreement::new(config, checkpoint, true, records, next, at(0))
}

/// A replica of a group that wants all signed, started for the first time.
pub fn fresh_signing(me: u8) -> Agreement {
    let config = config(me, Authentication::Signature);
    Agreement::new(config, (Seq(0), GENESIS), true, vec![], LogIndex(0), at(0))
}

fn config(me: u8, authentication: Authentication) -> Config {
    config_of(quorum(), me, authentication)
}

fn config_of(quorum: Quorum, me: u8, authentication: Authentication) -> Config {
    Config {
        quorum,
        me: ReplicaId(me),
        key: signer(me),
        keys: ReplicaKeys::Standing {
            group: GROUP,
            keys: quorum.replicas().map(|r| key(r.0).public()).collect(),
        },
        clients: CLIENTS.map(|c| key(c).public()).into(),
        timeout_ms: TIMEOUT_MS,
        guests: false,
        clock_bound_ms: 10_000,
        client_keys_last_ms: quorate_agreement::CLIENT_KEYS_LAST_MS,
        authentication,
        durable: true,
        checkpoint_bytes: usize::MAX,
        kept_bytes: quorate_wire::message::session::KEPT_BYTES,
        tuning: Tuning::default(),
    }
}

/// The group's id.
pub const GROUP: Digest = Digest([7; 32]);

/// What a replica without a key holder signs with.
pub fn signer(replica: u8) -> Signer {
    Signer::standing(GROUP, key(replica))
}

/// The key of a replica's key holder.
pub fn identity(replica: u8) -> KeyPair {
    KeyPair::from_seed(&[replica + 80; 32])
}

/// Replica 0 of such a group, which starts from a log.
pub fn restarted_with_holder(signer: Signer, records: Vec<Record>) -> Agreement {
    let next = LogIndex(records.len() as u64);
    let config = Config {
        key: signer,
        keys: ReplicaKeys::Certified {
            group: GROUP,
            identities: (0..4).map(|r| identity(r).public().into()).collect(),
        },
        ..config(0, Authentication::Mac)
    };
    Agreement::new(config, (Seq(0), GENESIS), true, records, next, at(0))
}

/// A replica that starts for the first time.
pub fn fresh(me: u8) -> Agreement {
    let mut replica = restarted(me, (Seq(0), GENESIS), vec![]);
    // Its first record is on disk.
    let _ = replica.handle(at(0), Input::Persisted(LogIndex(0)));
    replica
}

/// The same in a group that lets in others by credentials.
pub fn fresh_for_guests(me: u8) -> Agreement {
    fresh_with(me, |config| config.guests = true)
}

/// A replica that starts for the first time, with something else in its configuration.
pub fn fresh_with(me: u8, change: impl FnOnce(&mut Config)) -> Agreement {
    let mut config = config(me, Authentication::Mac);
    change(&mut config);
    let start = (Seq(0), GENESIS);
    let mut replica = Agreement::new(config, start, true, vec![], LogIndex(0), at(0));
    let _ = replica.handle(at(0), Input::Persisted(LogIndex(0)));
    replica
}

/// The same in a group of seven, of which two may be faulty.
pub fn fresh_of_seven(me: u8) -> Agreement {
    let quorum = Quorum::new(7).unwrap();
    let config = config_of(quorum, me, Authentication::Mac);
    let start = (Seq(0), GENESIS);
    let mut replica = Agreement::new(config, start, true, vec![], LogIndex(0), at(0));
    let _ = replica.handle(at(0), Input::Persisted(LogIndex(0)));
    replica
}

pub fn from_peer(
    replica: &mut Agreement,
    ms: Millis,
    from: u8,
    message: PeerMessage,
) -> Result<(), Rejected> {
    let taken = replica.handle(at(ms), Input::Peer(ReplicaId(from), message));
    replica.invariants();
    taken
}

pub fn from_client(
    replica: &mut Agreement,
    ms: Millis,
    request: AuthRequest,
) -> Result<(), Rejected> {
    let taken = replica.handle(at(ms), Input::Request(Verified::from_link(request)));
    replica.invariants();
    taken
}

/// One of a flood; the invariants look at each request in the pool, which is slow after each.
pub fn flood(replica: &mut Agreement, request: AuthRequest) -> Result<(), Rejected> {
    replica.handle(at(0), Input::Request(Verified::from_link(request)))
}

/// Lets time pass in steps that are too short to look like a machine that stood still.
pub fn wait(replica: &mut Agreement, from: Millis, to: Millis) {
    for ms in (from..=to).step_by(50) {
        replica.handle(at(ms), Input::Tick).unwrap();
        replica.invariants();
    }
}

pub fn outputs(replica: &mut Agreement) -> Vec<Output> {
    replica.drain().collect()
}

/// What was written since the last look.
pub fn written(replica: &mut Agreement) -> Vec<(LogIndex, Record)> {
    let outputs = replica.drain();
    let records = outputs.filter_map(|o| match o {
        Output::Persist(index, record) => Some((index, record)),
        _ => None,
    });
    records.collect()
}

/// The disk has all that was written up to the last record that `wanted` picks.
pub fn persist_up_to(replica: &mut Agreement, ms: Millis, wanted: fn(&Record) -> bool) {
    let records = written(replica);
    let last = records.iter().rfind(|(_, record)| wanted(record));
    let index = last.expect("such a record was written").0;
    let _ = replica.handle(at(ms), Input::Persisted(index));
    replica.invariants();
}

/// Three replicas agree with what a primary has proposed, up to the end.
pub fn agree(replica: &mut Agreement, voters: [u8; 3], m: &PrePrepare, ms: Millis) {
    let (view, seq, digest) = (m.view, m.seq, m.batch.digest());
    sync(replica, ms);
    for from in voters {
        let vote = PeerMessage::Prepare(Prepare { view, seq, digest });
        let _ = from_peer(replica, ms, from, vote);
    }
    sync(replica, ms);
    for from in voters {
        let vote = PeerMessage::Commit(Commit { view, seq, digest });
        let _ = from_peer(replica, ms, from, vote);
    }
}

/// What waits for the disk has waited enough.
pub fn sync(replica: &mut Agreement, ms: Millis) {
    let _ = replica.handle(at(ms), Input::Persisted(LogIndex(1 << 40)));
    replica.invariants();
}

pub fn view_change_body(replica: u8, view: u64) -> ViewChange {
    ViewChange {
        view: View(view),
        replica: ReplicaId(replica),
        stable: Seq(0),
        checkpoints: vec![(Seq(0), GENESIS)],
        prepared: vec![],
        preprepared: vec![],
    }
}

pub fn signed(body: ViewChange) -> SignedViewChange {
    let key = signer(body.replica.0);
    SignedViewChange::sign(body, &key).into_inner()
}

/// The VIEW-CHANGE of a replica to which nothing has happened yet.
pub fn view_change(replica: u8, view: u64) -> SignedViewChange {
    signed(view_change_body(replica, view))
}

/// A NEW-VIEW of `view`'s primary, whatever it says.
pub fn new_view(
    view: u64,
    proofs: Vec<(ReplicaId, Digest)>,
    start: (Seq, Digest),
    selection: Vec<Digest>,
) -> SignedNewView {
    let body = NewView {
        view: View(view),
        proofs,
        start,
        selection,
    };
    let key = signer(quorum().primary(View(view)).0);
    SignedNewView::sign(body, &key).into_inner()
}

pub fn named(proofs: &[SignedViewChange]) -> Vec<(ReplicaId, Digest)> {
    let named = proofs.iter().map(|m| (m.body.replica, m.digest()));
    named.collect()
}

pub fn vote(seq: u64) -> Vote {
    Vote {
        seq: Seq(seq),
        view: View(0),
        digest: GENESIS,
    }
}

pub fn status(view: u64, active: bool, committed: u64) -> PeerMessage {
    PeerMessage::Status(Status {
        view: View(view),
        active,
        stable: Seq(0),
        committed: Seq(committed),
        executed: Seq(0),
        primary_lost: false,
        recovering: None,
    })
}

/// A request that its client has signed, as it is when it is repeated.
pub fn signed_request(number: u64, op: Bytes) -> AuthRequest {
    let mut signed = request(number, op);
    signed.auth = Authenticator::Signed(key(50).sign_in(&GROUP, &signed.request.digest()).into());
    signed
}

/// A request with right MACs for all replicas.
pub fn request(number: u64, op: Bytes) -> AuthRequest {
    request_of(50, number, op)
}

/// The same, of the client whose key is made from this seed.
pub fn request_of(client: u8, number: u64, op: Bytes) -> AuthRequest {
    let client = key(client).public();
    let request = Request::new(client, SessionId(1), RequestNumber(number), op);
    let macs = (0..4).map(|r| link_key(r).mac(&request.digest()));
    let auth = Authenticator::Macs(macs.collect());
    AuthRequest {
        request,
        auth,
        replier: ReplicaId(0),
    }
}

/// The primary's proposal in view 0.
pub fn pre_prepare(ms: Millis, seq: u64, requests: &[AuthRequest]) -> PrePrepare {
    PrePrepare {
        view: View(0),
        seq: Seq(seq),
        batch: Batch {
            time: at(ms).wall,
            requests: requests.iter().map(|r| r.request.digest()).collect(),
        },
        bodies: requests.iter().cloned().map(Arc::new).collect(),
    }
}
