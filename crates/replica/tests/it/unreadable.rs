//! A value that the group has agreed on and that no replica can read: each compares it with what the others have, once, says so and stops.
//! Nothing is thrown away.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use quorate_agreement::Config;
use quorate_execution::{Call, Rest, Service, Workers};
use quorate_replica::{Input, Output, Replica};
use quorate_state::{Fault, MemorySnapshot, Txn};
use quorate_wire::message::{AuthRequest, ClientMessage, Control};
use quorate_wire::{Authenticator, Encode, MacKey, ReplicaId, Seq};

use crate::support::{CONNECTION, at, beginning, client, config, request};

const KEY: &[u8] = b"\x01value";

/// An operation is the value from now on; one that is empty reads it, and takes no question mark for a value.
#[derive(Clone, Debug)]
struct Value;

impl Service for Value {
    fn genesis(&self, _: &mut Txn<'_>) -> Result<(), Fault> {
        Ok(())
    }

    fn is_read_only(&self, _: &[u8]) -> bool {
        false
    }

    fn execute(&self, txn: &mut Txn<'_>, _: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        if op != "read" {
            txn.put(KEY.into(), op.clone());
            return Ok(Bytes::new());
        }
        match txn.get(KEY)? {
            Some(value) if value == "?" => Err(Fault::value(KEY, "it is a question")),
            value => Ok(value.unwrap_or_default()),
        }
    }

    fn session_ended(&self, _: &mut Txn<'_>, _: &Call) -> Result<Rest, Fault> {
        Ok(Rest::Nothing)
    }
}

struct Group {
    replicas: Vec<Replica<Value>>,
    stores: Vec<(Seq, Arc<MemorySnapshot>)>,
    now_ms: u64,
    next: u64,
    /// What each gave up with.
    told: Vec<Option<String>>,
}

impl Group {
    fn new(n: usize) -> Group {
        let (_, store) = beginning(Value);
        let replica = |me: usize| {
            let config = Config {
                timeout_ms: 100_000,
                ..config(n as u8, ReplicaId(me as u8))
            };
            let (restored, _) = beginning(Value);
            Replica::new(config, Value, Workers::default(), restored, at(0))
        };
        let mut group = Group {
            replicas: (0..n).map(replica).collect(),
            stores: vec![(Seq(0), Arc::new(store)); n],
            now_ms: 0,
            next: 1,
            told: vec![None; n],
        };
        for me in 0..n {
            let mut inputs = VecDeque::new();
            for other in (0..n).filter(|o| *o != me) {
                inputs.push_back((me, Input::PeerLink(ReplicaId(other as u8), true)));
            }
            let key = MacKey([3; 32]);
            let client = client().public();
            inputs.push_back((me, Input::ClientUp(CONNECTION, client, key)));
            group.take(inputs);
        }
        group.ask(0, Control::Open(()).to_bytes());
        group
    }

    /// Everything arrives at once, and disks take no time.
    fn take(&mut self, mut inputs: VecDeque<(usize, Input)>) {
        let n = self.replicas.len();
        while let Some((to, input)) = inputs.pop_front() {
            let now = at(self.now_ms);
            self.replicas[to].take(now, input);
            self.replicas[to].end_turn(now);
            let from = ReplicaId(to as u8);
            for output in self.replicas[to].take_outputs() {
                match output {
                    Output::Send(other, message) => {
                        inputs.push_back((usize::from(other.0), Input::Peer(from, message)));
                    }
                    Output::Broadcast(message) => {
                        for other in (0..n).filter(|o| *o != to) {
                            inputs.push_back((other, Input::Peer(from, message.clone())));
                        }
                    }
                    Output::Persist(index, _) => inputs.push_back((to, Input::Persisted(index))),
                    Output::Store {
                        seq,
                        complete,
                        layer,
                        ..
                    } => {
                        let (after, root) = self.stores[to].1.apply(&layer).unwrap();
                        let after = Arc::new(after);
                        self.stores[to] = (seq, after.clone());
                        let stored = Input::Stored {
                            seq,
                            complete,
                            root,
                            snapshot: after,
                        };
                        inputs.push_back((to, stored));
                    }
                    Output::Fatal(reason) => self.told[to] = Some(reason),
                    _ => {}
                }
            }
        }
    }

    fn run(&mut self, ms: u64) {
        for _ in 0..ms / 20 {
            self.now_ms += 20;
            let all = 0..self.replicas.len();
            self.take(all.map(|i| (i, Input::Tick)).collect());
        }
    }

    fn ask(&mut self, session: u64, op: Vec<u8>) {
        let request = request(session, self.next, op.into());
        self.next += u64::from(session > 0);
        let mac = MacKey([3; 32]).mac(&request.request.digest());
        let message = AuthRequest {
            auth: Authenticator::Macs(vec![mac; self.replicas.len()]),
            ..request
        };
        let input = Input::Client(CONNECTION, ClientMessage::Request(message));
        let all = 0..self.replicas.len();
        self.take(all.map(|i| (i, input.clone())).collect());
        self.run(40);
    }
}

/// `more` operations come between the value and whoever reads it.
fn agreed_on(more: u64, word: &str) {
    let mut group = Group::new(4);
    group.ask(1, b"?".to_vec());
    for _ in 0..more {
        group.ask(1, b"?".to_vec());
    }
    assert!(group.told.iter().all(Option::is_none), "{:?}", group.told);
    let stable = group.replicas[0].standing().stable.0;
    group.ask(1, b"read".to_vec());
    group.run(2_000);
    for (i, told) in group.told.iter().enumerate() {
        let told = told.as_deref().expect("nobody can go on");
        assert!(
            told.contains("it is a question") && told.contains(word),
            "{told}"
        );
        let (seq, store) = &group.stores[i];
        assert_eq!(*seq, stable);
        assert_eq!(store.entries.contains_key(KEY), stable > Seq(0));
    }
}

#[test]
fn what_was_agreed_on_since_the_checkpoint() {
    agreed_on(0, "executed since");
}

#[test]
fn what_is_in_the_checkpoint() {
    agreed_on(140, "vouch for the same");
}

#[test]
fn a_group_of_one_has_nobody_to_ask() {
    let mut alone = Group::new(1);
    alone.ask(1, b"?".to_vec());
    alone.ask(1, b"read".to_vec());
    let told = alone.told[0].as_deref().expect("it can't go on");
    assert!(told.contains("it is a question") && told.contains("nobody who could help"));
}
