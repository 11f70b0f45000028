//! Agreement while operations are at work: a group of one, whose worker takes its time.

use std::collections::VecDeque;

use quorate_execution::graph::Conflicts;
use quorate_execution::{Job, Workers};
use quorate_replica::{Input, Output, Replica};
use quorate_wire::message::{ClientMessage, Control};
use quorate_wire::{Encode, MacKey, ReplicaId};

use crate::support::{CONNECTION, Echo, at, beginning, client, config, request};

struct Alone {
    replica: Replica<Echo>,
    now_ms: u64,
    jobs: Vec<Job>,
    replies: usize,
}

impl Alone {
    fn new() -> Alone {
        let (restored, _) = beginning(Echo);
        let workers = Workers {
            count: 1,
            conflicts: Conflicts::Declared,
        };
        let mut alone = Alone {
            replica: Replica::new(config(1, ReplicaId(0)), Echo, workers, restored, at(0)),
            now_ms: 0,
            jobs: Vec::new(),
            replies: 0,
        };
        let key = MacKey([3; 32]);
        alone.take(Input::ClientUp(CONNECTION, client().public(), key));
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
        let message = request(session, number, op.into());
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
