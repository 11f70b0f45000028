//! Agreement while operations are at work: a group of one, whose worker takes its time.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use quorate_agreement::{Config, Now, Tuning};
use quorate_execution::graph::{Conflicts, Uses};
use quorate_execution::{Call, Job, Rest, Service, Workers};
use quorate_replica::{ConnectionId, Input, Output, Replica, Restored, genesis};
use quorate_state::{Fault, MemorySnapshot, Txn};
use quorate_wire::message::{AuthRequest, ClientMessage, Control, Request};
use quorate_wire::{
    Authentication, Authenticator, Encode, KeyPair, LogIndex, MacKey, Quorum, ReplicaId,
    RequestNumber, Seq, SessionId, Time,
};

/// Operations that have nothing to do with each other.
#[derive(Clone, Debug)]
struct Echo;

impl Service for Echo {
    fn genesis(&self, _: &mut Txn<'_>) -> Result<(), Fault> {
        Ok(())
    }

    fn is_read_only(&self, _: &[u8]) -> bool {
        false
    }

    fn execute(&self, _: &mut Txn<'_>, _: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        Ok(op.clone())
    }

    fn session_ended(&self, _: &mut Txn<'_>, _: &Call) -> Result<Rest, Fault> {
        Ok(Rest::Nothing)
    }

    fn uses(&self, _: &Call, _: &Bytes) -> Uses {
        Uses::none()
    }
}

const CONNECTION: ConnectionId = ConnectionId(1);

struct Alone {
    replica: Replica<Echo>,
    client: KeyPair,
    now_ms: u64,
    jobs: Vec<Job>,
    replies: usize,
}

impl Alone {
    fn new() -> Alone {
        let (key, client) = (KeyPair::from_seed(&[1; 32]), KeyPair::from_seed(&[2; 32]));
        let config = Config {
            quorum: Quorum::new(1).unwrap(),
            me: ReplicaId(0),
            keys: vec![key.public()].into(),
            key: key.into(),
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
            count: 1,
            conflicts: Conflicts::Declared,
        };
        let mut alone = Alone {
            replica: Replica::new(config, Echo, workers, restored, at(0)),
            client,
            now_ms: 0,
            jobs: Vec::new(),
            replies: 0,
        };
        let key = MacKey([3; 32]);
        alone.take(Input::ClientUp(CONNECTION, alone.client.public(), key));
        alone.ask(0, 1, Control::Open(()).to_bytes(), false);
        alone
    }

    fn take(&mut self, input: Input) {
        self.now_ms += 1;
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            self.replica.take(at(self.now_ms), input);
            self.replica.end_turn(at(self.now_ms));
            for output in self.replica.take_outputs() {
                match output {
                    Output::Run(jobs) => self.jobs.extend(jobs),
                    Output::Reply(..) => self.replies += 1,
                    Output::Fatal(reason) => panic!("{reason}"),
                    _ => {}
                }
            }
        }
    }

    fn ask(&mut self, session: u64, number: u64, op: Vec<u8>, again: bool) {
        let request = Request::new(
            self.client.public(),
            SessionId(session),
            RequestNumber(number),
            op.into(),
        );
        let message = AuthRequest {
            request,
            auth: Authenticator::Macs(Vec::new()),
            replier: ReplicaId(0),
        };
        self.take(Input::Client(
            CONNECTION,
            match again {
                true => ClientMessage::Repeat(message),
                false => ClientMessage::Request(message),
            },
        ));
    }

    fn ordered(&self) -> u64 {
        self.replica.standing().committed.0
    }
}

fn at(ms: u64) -> Now {
    Now {
        mono: ms,
        wall: Time(1_000_000_000_000 + ms * 1_000_000),
    }
}

#[test]
fn what_is_at_work_is_not_ordered_again() {
    let mut alone = Alone::new();
    alone.ask(1, 1, b"first".to_vec(), false);
    let (before, replies) = (alone.ordered(), alone.replies);
    assert_eq!(alone.jobs.len(), 1, "it is at work");
    (0..5).for_each(|_| alone.ask(1, 1, b"first".to_vec(), true));
    assert_eq!((alone.ordered(), alone.replies), (before, replies));
    // Another is, and need not wait for it.
    alone.ask(1, 2, b"second".to_vec(), false);
    assert_eq!((alone.ordered(), alone.jobs.len()), (before + 1, 2));
    let done = alone.jobs.drain(..).map(|job| job.run(&Echo)).collect();
    alone.take(Input::Ran(done));
    assert_eq!(alone.replies, replies + 2);
    // What has its result is answered from what is kept.
    alone.ask(1, 1, b"first".to_vec(), true);
    assert_eq!((alone.ordered(), alone.replies), (before + 1, replies + 3));
}

/// A session is opened beside what is at work, and what comes after waits for neither.
#[test]
fn a_session_is_opened_beside_what_is_at_work() {
    let mut alone = Alone::new();
    alone.ask(1, 1, b"slow".to_vec(), false);
    let replies = alone.replies;
    alone.ask(0, 2, Control::Open(()).to_bytes(), false);
    assert_eq!(alone.replies, replies + 1, "it is open");
    (1..=10).for_each(|number| alone.ask(2, number, b"independent".to_vec(), false));
    assert_eq!(alone.jobs.len(), 11);
}

/// While much is at work, requests share places: the log's window lasts for as long as it takes.
#[test]
fn places_are_shared_while_much_is_at_work() {
    let mut alone = Alone::new();
    alone.ask(0, 2, Control::Open(()).to_bytes(), false);
    alone.ask(1, 1, Vec::from(b"known"), false);
    let done = alone.jobs.drain(..).map(|job| job.run(&Echo)).collect();
    alone.take(Input::Ran(done));
    let (before, replies) = (alone.ordered(), alone.replies);
    for number in 2..=60 {
        alone.ask(1, number, Vec::from(b"one"), false);
        alone.ask(2, number - 1, Vec::from(b"two"), false);
    }
    let places = alone.ordered() - before;
    assert!(
        (90..110).contains(&places),
        "118 requests in {places} places"
    );
    // Nobody waits for long.
    let next = alone.replica.next_timeout();
    assert!(next <= alone.now_ms + 10, "{next}");
    alone.now_ms += 10;
    alone.take(Input::Tick);
    while !alone.jobs.is_empty() {
        let done = alone.jobs.drain(..).map(|job| job.run(&Echo)).collect();
        alone.take(Input::Ran(done));
    }
    assert_eq!(alone.replies - replies, 118);
    assert!(alone.ordered() - before < 118);
}
