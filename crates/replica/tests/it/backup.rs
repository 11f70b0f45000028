//! What a backup makes of requests that come beside the votes for them.

use std::sync::Arc;

use bytes::Bytes;
use quorate_agreement::{Config, Now, Tuning};
use quorate_execution::graph::Conflicts;
use quorate_execution::{Call, Rest, Service, Workers};
use quorate_replica::{ConnectionId, Input, Output, Replica, Restored, genesis};
use quorate_state::{Fault, MemorySnapshot, Txn};
use quorate_wire::message::{
    AuthRequest, Batch, ClientMessage, Commit, Control, PeerMessage, PrePrepare, Prepare, Read,
    ReplicaMessage, Request,
};
use quorate_wire::{
    Authentication, Authenticator, Digest, Encode, KeyPair, LogIndex, MacKey, Quorum, ReplicaId,
    RequestNumber, Seq, SessionId, Time, View,
};

/// Gives back what it is given. What begins with `r` only reads.
#[derive(Clone, Debug)]
struct Echo;

impl Service for Echo {
    fn genesis(&self, _: &mut Txn<'_>) -> Result<(), Fault> {
        Ok(())
    }

    fn is_read_only(&self, op: &[u8]) -> bool {
        op.starts_with(b"r")
    }

    fn execute(&self, _: &mut Txn<'_>, _: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        Ok(op.clone())
    }

    fn session_ended(&self, _: &mut Txn<'_>, _: &Call) -> Result<Rest, Fault> {
        Ok(Rest::Nothing)
    }
}

const ME: ReplicaId = ReplicaId(1);
const CONNECTION: ConnectionId = ConnectionId(1);

/// A backup in view 0 of a group of four, whose client has a session.
struct Backup {
    replica: Replica<Echo>,
    client: KeyPair,
    ordered: u64,
}

fn at(ms: u64) -> Now {
    Now {
        mono: ms,
        wall: Time(1_000_000_000_000 + ms * 1_000_000),
    }
}

impl Backup {
    fn new(workers: usize) -> Backup {
        let keys: Vec<KeyPair> = (1..=4).map(|i| KeyPair::from_seed(&[i; 32])).collect();
        let client = KeyPair::from_seed(&[9; 32]);
        let config = Config {
            quorum: Quorum::new(4).unwrap(),
            me: ME,
            keys: keys.iter().map(KeyPair::public).collect::<Vec<_>>().into(),
            key: keys[1].clone().into(),
            clients: [client.public()].into(),
            timeout_ms: 1_000,
            guests: false,
            clock_bound_ms: 60_000,
            authentication: Authentication::Mac,
            durable: false,
            checkpoint_bytes: usize::MAX,
            tuning: Tuning::default(),
        };
        let layer = genesis(Echo).unwrap();
        let (snapshot, root) = MemorySnapshot::default().apply(&layer).unwrap();
        let restored = Restored {
            seq: Seq(0),
            complete: true,
            root,
            snapshot: Arc::new(snapshot),
            records: Vec::new(),
            next_index: LogIndex(0),
            former: false,
        };
        let workers = Workers {
            count: workers,
            conflicts: Conflicts::Declared,
        };
        let mut backup = Backup {
            replica: Replica::new(config, Echo, workers, restored, at(0)),
            client,
            ordered: 0,
        };
        let (client, key) = (backup.client.public(), MacKey([3; 32]));
        let replica = &mut backup.replica;
        replica.take(at(0), Input::ClientUp(CONNECTION, client, key));
        let open = backup.request(0, 1, &Control::Open(()).to_bytes());
        backup.order(open);
        backup.end_turn();
        backup
    }

    /// A request that its client has signed.
    fn request(&self, session: u64, number: u64, op: &[u8]) -> AuthRequest {
        let (session, number) = (SessionId(session), RequestNumber(number));
        let op = Bytes::copy_from_slice(op);
        let request = Request::new(self.client.public(), session, number, op);
        AuthRequest {
            auth: Authenticator::Signed(self.client.sign(&request.digest()).into()),
            request,
            replier: ME,
        }
    }

    /// The others propose a request, vote for it and commit it, all in the present turn.
    fn order(&mut self, request: AuthRequest) {
        let (view, seq, digest) = self.prepare(request);
        for from in [0, 2, 3] {
            self.hear(from, PeerMessage::Commit(Commit { view, seq, digest }));
        }
    }

    /// They propose it and vote for it.
    fn prepare(&mut self, request: AuthRequest) -> (View, Seq, Digest) {
        self.ordered += 1;
        let (view, seq) = (View(0), Seq(self.ordered));
        let batch = Batch {
            time: at(0).wall,
            requests: vec![request.request.digest()],
        };
        let digest = batch.digest();
        let bodies = vec![Arc::new(request)];
        let proposal = PrePrepare {
            view,
            seq,
            batch,
            bodies,
        };
        self.hear(0, PeerMessage::PrePrepare(proposal));
        for from in [0, 2, 3] {
            self.hear(from, PeerMessage::Prepare(Prepare { view, seq, digest }));
        }
        (view, seq, digest)
    }

    fn hear(&mut self, from: u8, message: PeerMessage) {
        self.replica
            .take(at(0), Input::Peer(ReplicaId(from), message));
    }

    fn ask(&mut self, message: ClientMessage) {
        self.replica.take(at(0), Input::Client(CONNECTION, message));
    }

    fn end_turn(&mut self) -> Vec<Output> {
        self.replica.end_turn(at(0));
        self.replica.take_outputs().into()
    }

    /// Whether it has nothing to wait for: it stays in its view, however long nothing comes.
    fn is_content(&mut self) -> bool {
        for ms in (0..10_000).step_by(50) {
            self.replica.take(at(ms), Input::Tick);
        }
        self.replica.standing().view == View(0)
    }
}

/// What the primary orders while the client's own word for it is on its way is not waited for when that comes, in whatever turn.
#[test]
fn what_has_committed_is_not_waited_for_again() {
    type Asks = fn(AuthRequest) -> ClientMessage;
    let all: [Asks; 3] = [
        ClientMessage::Watch,
        ClientMessage::Repeat,
        ClientMessage::Request,
    ];
    for (asks, workers, later, op) in all.into_iter().flat_map(|asks| {
        let variants = [(0, false), (0, true), (4, false), (4, true)];
        variants.map(|(workers, later)| (asks, workers, later, b"write"))
    }) {
        let mut backup = Backup::new(workers);
        let request = backup.request(1, 1, op);
        backup.order(request.clone());
        if later {
            backup.end_turn();
        }
        backup.ask(asks(request));
        let outputs = backup.end_turn();
        let relays = |o: &Output| matches!(o, Output::Send(_, PeerMessage::Request(_)));
        assert!(!outputs.iter().any(relays), "{outputs:?}");
        assert_eq!(backup.replica.standing().committed, Seq(2));
        assert!(backup.is_content(), "{workers} workers, later: {later}");
    }
}

/// Nor is a read, of which no result is kept.
#[test]
fn a_read_that_has_committed_is_not_watched() {
    for later in [false, true] {
        let mut backup = Backup::new(0);
        let request = backup.request(1, 1, b"read");
        backup.order(request.clone());
        if later {
            backup.end_turn();
        }
        backup.ask(ClientMessage::Watch(request));
        backup.end_turn();
        assert!(backup.is_content());
    }
}

/// Repetitions don't have reads answered before the turn ends: what those come to in a turn is bounded.
#[test]
fn reads_wait_for_the_end_of_the_turn() {
    let mut backup = Backup::new(0);
    backup.ask(ClientMessage::Read(Read {
        session: SessionId(1),
        number: RequestNumber(1),
        op: Bytes::from_static(b"read"),
        replier: ME,
    }));
    let request = backup.request(1, 1, b"write");
    backup.order(request.clone());
    backup.ask(ClientMessage::Repeat(request));
    let answers = |outputs: &[Output]| {
        let read = |o: &&Output| matches!(o, Output::Reply(_, ReplicaMessage::Read(_)));
        outputs.iter().filter(read).count()
    };
    let early: Vec<Output> = backup.replica.take_outputs().into();
    assert!(!early.is_empty() && answers(&early) == 0, "{early:?}");
    assert_eq!(answers(&backup.end_turn()), 1);
}

/// COMMITs may wait for others to go along with, where clients are answered before: not where a batch has a read in it, which is not executed
/// before it has committed.
#[test]
fn commits_that_clients_wait_for_leave() {
    for workers in [0, 4] {
        for (op, hurries) in [(&b"write"[..], false), (b"read", true)] {
            let mut backup = Backup::new(workers);
            let request = backup.request(1, 1, op);
            backup.prepare(request);
            let outputs = backup.end_turn();
            let commit = |o: &Output| matches!(o, Output::Broadcast(PeerMessage::Commit(_)));
            let commit = outputs.iter().position(commit).expect("it has prepared");
            let after = outputs[commit..].iter();
            assert_eq!(
                after.filter(|o| matches!(o, Output::Hurry)).count() > 0,
                hurries
            );
        }
    }
}

/// What nobody has ordered is waited for, and its primary is left in the end: the test above can fail.
#[test]
fn what_has_not_committed_is_waited_for() {
    let mut backup = Backup::new(0);
    let request = backup.request(1, 1, b"write");
    backup.ask(ClientMessage::Watch(request));
    backup.end_turn();
    assert!(!backup.is_content());
}
