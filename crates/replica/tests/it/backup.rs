//! What a backup makes of requests that come beside the votes for them.

use std::sync::Arc;

use bytes::Bytes;
use quorate_agreement::{Config, Tuning};
use quorate_execution::Workers;
use quorate_execution::graph::Conflicts;
use quorate_replica::{Input, Output, Replica};
use quorate_state::MemorySnapshot;
use quorate_wire::message::{
    AuthRequest, Batch, Checkpoint, ClientMessage, Commit, Control, EVERYONE, PeerMessage,
    PrePrepare, Prepare, Read, ReplicaMessage, ReplyBody,
};
use quorate_wire::{
    Authenticator, Digest, Encode, LogIndex, MacKey, ReplicaId, RequestNumber, Seq, SessionId, View,
};

use crate::support::{CONNECTION, Echo, GROUP, at, beginning, client, config, request};

const ME: ReplicaId = ReplicaId(1);

/// A backup in view 0 of a group of four, whose client has a session.
struct Backup {
    replica: Replica<Echo>,
    ordered: u64,
    store: MemorySnapshot,
    /// What came of the opening of its client's session.
    opened: Vec<Output>,
}

/// A request that its client has signed.
fn signed(session: u64, number: u64, op: &[u8]) -> AuthRequest {
    let request = request(session, number, Bytes::copy_from_slice(op));
    AuthRequest {
        auth: Authenticator::Signed(client().sign_in(&GROUP, &request.request.digest()).into()),
        replier: ME,
        ..request
    }
}

impl Backup {
    fn new(workers: usize) -> Backup {
        Backup::tuned(workers, Tuning::default())
    }

    fn tuned(workers: usize, tuning: Tuning) -> Backup {
        Backup::with(workers, |config| config.tuning = tuning)
    }

    fn with(workers: usize, change: impl FnOnce(&mut Config)) -> Backup {
        let (restored, store) = beginning(Echo);
        let mut config = config(4, ME);
        change(&mut config);
        let workers = Workers {
            count: workers,
            conflicts: Conflicts::Declared,
        };
        let mut backup = Backup {
            replica: Replica::new(config, Echo, workers, restored, at(0)),
            ordered: 0,
            store,
            opened: Vec::new(),
        };
        let (client, key) = (client().public(), MacKey([3; 32]));
        let replica = &mut backup.replica;
        replica.take(at(0), Input::ClientUp(CONNECTION, client, key));
        let open = signed(0, 1, &Control::Open(()).to_bytes());
        backup.order(open);
        backup.opened = backup.end_turn();
        backup
    }

    /// The others propose a request, vote for it and commit it, all in the present turn.
    fn order(&mut self, request: AuthRequest) {
        let vote = self.prepare(request);
        self.commit(vote);
    }

    fn commit(&mut self, (view, seq, digest): (View, Seq, Digest)) {
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
        let request = signed(1, 1, op);
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

/// The store keeps a checkpoint until 2f+1 have it, or f+1 others the next one: others may be led to it by this replica's word, and nobody else may have it. What is
/// executed meanwhile waits in memory, three checkpoints at the most, and none of it is lost.
#[test]
fn the_store_keeps_what_others_may_need() {
    let root = Digest([9; 32]);
    let stored = |outputs: Vec<Output>| -> Vec<u64> {
        let seqs = outputs.into_iter().filter_map(|output| match output {
            Output::Store { seq, .. } => Some(seq.0),
            _ => None,
        });
        seqs.collect()
    };
    // Each batch has a checkpoint; the first is that of the session's opening.
    let mut backup = Backup::with(0, |config| {
        (config.checkpoint_bytes, config.durable) = (1, true);
    });
    assert_eq!(stored(std::mem::take(&mut backup.opened)), [1]);
    let made = |backup: &mut Backup, seq: u64| {
        let made = Input::Stored {
            seq: Seq(seq),
            complete: true,
            root,
            snapshot: Arc::new(backup.store.clone()),
        };
        backup.replica.take(at(0), made);
        stored(backup.end_turn())
    };
    assert_eq!(made(&mut backup, 1), [0; 0]);
    for number in 1..=5 {
        backup.order(signed(1, number, b"write"));
        assert_eq!(
            stored(backup.end_turn()),
            [0; 0],
            "nobody else has the first"
        );
    }
    assert_eq!(backup.replica.applied(), Seq(4), "three layers wait");
    let claimed = |backup: &mut Backup, from: u8, seq: u64| {
        let seq = Seq(seq);
        backup.hear(from, PeerMessage::Checkpoint(Checkpoint { seq, root }));
        stored(backup.end_turn())
    };
    assert_eq!(claimed(&mut backup, 0, 1), [0; 0], "two are not enough");
    assert_eq!(
        claimed(&mut backup, 2, 1),
        [0; 0],
        "it is not in the log yet"
    );
    backup
        .replica
        .take(at(0), Input::Persisted(LogIndex(1 << 40)));
    assert_eq!(stored(backup.end_turn()), [2]);
    assert_eq!(made(&mut backup, 2), [0; 0]);
    // Two others have the third, so this replica need not keep the second.
    assert_eq!(claimed(&mut backup, 0, 3), [0; 0]);
    assert_eq!(claimed(&mut backup, 2, 3), [3]);
    assert_eq!(backup.replica.applied(), Seq(5));
}

/// Nor is a read, of which no result is kept.
#[test]
fn a_read_that_has_committed_is_not_watched() {
    for later in [false, true] {
        let mut backup = Backup::new(0);
        let request = signed(1, 1, b"read");
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
        early: false,
    }));
    let request = signed(1, 1, b"write");
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

/// What an early read finds may have a batch that has not committed: the answer says so, and where that is. It misses nothing that has prepared. Others
/// wait.
#[test]
fn early_reads_say_what_they_were_read_from() {
    let mut backup = Backup::new(0);
    let mut number = 0;
    let mut read = |backup: &mut Backup, early| {
        number += 1;
        backup.ask(ClientMessage::Read(Read {
            session: SessionId(1),
            number: RequestNumber(number),
            replier: ME,
            early,
            op: Bytes::from_static(b"read"),
        }));
    };
    let found = |outputs: &[Output]| {
        let found = outputs.iter().filter_map(|output| match output {
            Output::Reply(_, ReplicaMessage::Read(answer)) => {
                let reply = &answer.reply;
                Some((reply.number.0, reply.tentative, answer.at.0))
            }
            _ => None,
        });
        found.collect::<Vec<_>>()
    };
    // The session's opening is at 1.
    read(&mut backup, true);
    read(&mut backup, false);
    assert_eq!(found(&backup.end_turn()), [(1, false, 1), (2, false, 1)]);
    let second = backup.prepare(signed(1, 1, b"one"));
    backup.end_turn();
    read(&mut backup, false);
    read(&mut backup, true);
    assert_eq!(found(&backup.end_turn()), [(4, true, 2)]);
    // It has prepared, and is not executed before the one before it has committed.
    let third = backup.prepare(signed(1, 2, b"two"));
    read(&mut backup, true);
    assert_eq!(found(&backup.end_turn()), []);
    backup.commit(second);
    assert_eq!(found(&backup.end_turn()), [(5, true, 3)]);
    backup.commit(third);
    assert_eq!(found(&backup.end_turn()), [(3, false, 3)]);
}

/// COMMITs may wait for others to go along with, where clients are answered before: not where a batch has a read in it, which is not executed
/// before it has committed.
#[test]
fn commits_that_clients_wait_for_leave() {
    for workers in [0, 4] {
        for (op, hurries) in [(&b"write"[..], false), (b"read", true)] {
            let mut backup = Backup::new(workers);
            let request = signed(1, 1, op);
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
    let request = signed(1, 1, b"write");
    backup.ask(ClientMessage::Watch(request));
    backup.end_turn();
    assert!(!backup.is_content());
}

/// What a client gets from a backup, when its request names a replica for the result.
#[derive(Debug, PartialEq, Eq)]
enum Gets {
    Result,
    Digest,
    /// Nothing from this one, which gives its word to the one that is named.
    Word(ReplicaId),
    /// Nothing before others have given their word.
    Nothing,
}

fn gets(vouched_from: usize, replier: ReplicaId) -> Gets {
    let tuning = Tuning {
        vouched_from,
        ..Tuning::default()
    };
    let mut backup = Backup::tuned(0, tuning);
    backup.order(AuthRequest {
        replier,
        ..signed(1, 1, b"write")
    });
    let outputs = backup.end_turn();
    let got = outputs.iter().find_map(|output| match output {
        Output::Reply(_, ReplicaMessage::Reply(reply)) => match reply.body {
            ReplyBody::Digest(_) => Some(Gets::Digest),
            _ => Some(Gets::Result),
        },
        Output::Send(to, PeerMessage::Vouchers(_)) => Some(Gets::Word(*to)),
        _ => None,
    });
    got.unwrap_or(Gets::Nothing)
}

/// Who is named sends the result, and the others its digest; where all are named, all send the result. With replies that go together the
/// others' word goes to the one that is named.
#[test]
fn what_a_client_gets() {
    let other = ReplicaId(2);
    assert_eq!(gets(usize::MAX, ME), Gets::Result);
    assert_eq!(gets(usize::MAX, other), Gets::Digest);
    assert_eq!(gets(usize::MAX, EVERYONE), Gets::Result);
    assert_eq!(gets(1, ME), Gets::Nothing);
    assert_eq!(gets(1, other), Gets::Word(other));
    assert_eq!(gets(1, EVERYONE), Gets::Result);
    // Its batch is of one session.
    assert_eq!(gets(2, other), Gets::Digest);
}
