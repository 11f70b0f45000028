//! A store that fails: the replica says so and does nothing more.

use std::sync::Arc;

use bytes::Bytes;
use quorate_agreement::Config;
use quorate_execution::{Call, Rest, Service, Workers};
use quorate_replica::{Input, Output, Replica};
use quorate_state::{Fault, Layer, MemorySnapshot, Txn};
use quorate_wire::message::{ClientMessage, Control};
use quorate_wire::{Encode, MacKey, ReplicaId, Seq};

use crate::support::{CONNECTION, at, beginning, client, config, request};

const UNREADABLE: &[u8] = b"unreadable";

/// Fails at what it can't read.
#[derive(Clone, Debug)]
struct Reader;

impl Service for Reader {
    fn genesis(&self, _: &mut Txn<'_>) -> Result<(), Fault> {
        Ok(())
    }

    fn is_read_only(&self, _: &[u8]) -> bool {
        false
    }

    fn execute(&self, _: &mut Txn<'_>, _: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        match &op[..] == UNREADABLE {
            true => Err(Fault::Store("a row is not what was written".into())),
            false => Ok(op.clone()),
        }
    }

    fn session_ended(&self, _: &mut Txn<'_>, _: &Call) -> Result<Rest, Fault> {
        Ok(Rest::Nothing)
    }
}

/// A group of one that writes a checkpoint after each batch, into a store that takes its time.
struct Alone {
    replica: Replica<Reader>,
    store: MemorySnapshot,
    layers: Vec<(Seq, Arc<Layer>)>,
    reasons: Vec<String>,
}

impl Alone {
    fn new() -> Alone {
        let config = Config {
            checkpoint_bytes: 1,
            ..config(1, ReplicaId(0))
        };
        let (restored, store) = beginning(Reader);
        let mut alone = Alone {
            replica: Replica::new(config, Reader, Workers::default(), restored, at(1)),
            store,
            layers: Vec::new(),
            reasons: Vec::new(),
        };
        let key = MacKey([3; 32]);
        alone.take(Input::ClientUp(CONNECTION, client().public(), key));
        alone.ask(0, 1, &Control::Open(()).to_bytes());
        alone
    }

    fn take(&mut self, input: Input) {
        self.replica.take(at(1), input);
        self.replica.end_turn(at(1));
        for output in self.replica.take_outputs() {
            match output {
                Output::Store { seq, layer, .. } => self.layers.push((seq, layer)),
                Output::Fatal(reason) => self.reasons.push(reason),
                _ => {}
            }
        }
    }

    fn ask(&mut self, session: u64, number: u64, op: &[u8]) {
        let message = request(session, number, Bytes::copy_from_slice(op));
        self.take(Input::Client(CONNECTION, ClientMessage::Request(message)));
    }

    /// The store has the oldest layer that it was given.
    fn store_one(&mut self) {
        let (seq, layer) = self.layers.remove(0);
        let (store, root) = self.store.apply(&layer).unwrap();
        self.store = store.clone();
        let snapshot = Arc::new(store);
        self.take(Input::Stored {
            seq,
            complete: true,
            root,
            snapshot,
        });
    }
}

/// Batches wait while the store is slow. The first of them fails when its turn comes, and the next is not executed after it.
#[test]
fn nothing_is_executed_after_a_fault() {
    let mut alone = Alone::new();
    alone.ask(1, 1, b"second");
    alone.ask(1, 2, b"third");
    assert_eq!(alone.layers.len(), 3, "execution waits for the store");
    alone.ask(1, 3, UNREADABLE);
    alone.ask(1, 4, b"fifth");
    assert!(alone.reasons.is_empty());
    alone.store_one();
    assert_eq!(alone.reasons.len(), 1, "{:?}", alone.reasons);
    assert!(alone.reasons[0].contains("a row is not what was written"));
    assert_eq!(alone.replica.applied(), Seq(3));
    alone.store_one();
    assert_eq!(alone.reasons.len(), 1, "said once");
}
