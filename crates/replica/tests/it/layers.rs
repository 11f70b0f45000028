//! What is in memory until the store has it: a group of one that serves files, with a client that has much written by short requests.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use quorate_agreement::{CHECKPOINT_INTERVAL, Config};
use quorate_execution::Workers;
use quorate_execution::graph::Conflicts;
use quorate_files::op::{CopyRange, Fallocate, FallocateMode, Make, Place, Write};
use quorate_files::{
    Action, Admission, Answer, FileService, Genesis, Ino, Op, Outcome, Target, Who,
};
use quorate_replica::{Input, Output, Replica};
use quorate_state::{MemorySnapshot, Summary};
use quorate_wire::message::Outcome as Executed;
use quorate_wire::message::{ClientMessage, Control, ReplicaMessage, ReplyBody};
use quorate_wire::{Decode, Encode, MacKey, ReplicaId, Seq};

use crate::support::{CONNECTION, at, beginning, client, config, request};

const CHUNK: u64 = 64 << 10;
const MIB: u64 = 1 << 20;
/// Requests may weigh so much between two checkpoints, and what they write four times that.
const MOST: usize = 1 << 20;

struct Files {
    replica: Replica<FileService>,
    service: FileService,
    now_ms: u64,
    asked: u64,
    store: MemorySnapshot,
    /// After which places there were checkpoints, and how many bytes were in each layer.
    layers: Vec<(Seq, usize)>,
    /// How many long operations came with each layer, and how many of its values these have the digests of.
    known: Vec<(usize, usize)>,
    results: Vec<Bytes>,
}

impl Files {
    fn new(workers: usize, durable: bool) -> Files {
        let config = Config {
            checkpoint_bytes: MOST,
            durable,
            ..config(1, ReplicaId(0))
        };
        let service = FileService::new(Genesis::for_all(1 << 30, 100), Admission::members_only());
        let (restored, store) = beginning(service.clone());
        let workers = Workers {
            count: workers,
            conflicts: Conflicts::Declared,
        };
        let mut files = Files {
            replica: Replica::new(config, service.clone(), workers, restored, at(0)),
            service,
            now_ms: 0,
            asked: 0,
            store,
            layers: Vec::new(),
            known: Vec::new(),
            results: Vec::new(),
        };
        let key = MacKey([3; 32]);
        files.take(Input::ClientUp(CONNECTION, client().public(), key));
        files.ask(0, Control::Open(()).to_bytes().into());
        files
    }

    fn take(&mut self, input: Input) {
        self.now_ms += 1;
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            self.replica.take(at(self.now_ms), input);
            self.replica.end_turn(at(self.now_ms));
            for output in self.replica.take_outputs() {
                inputs.extend(self.carry_out(output));
            }
        }
    }

    fn carry_out(&mut self, output: Output) -> Option<Input> {
        match output {
            Output::Run(jobs) => {
                let ran = jobs.into_iter().map(|job| job.run(&self.service));
                Some(Input::Ran(ran.collect()))
            }
            Output::Store {
                seq,
                complete,
                layer,
                bodies,
            } => {
                let is_known = |value: &&Bytes| {
                    let digest = Summary::of(value).digest;
                    let address = value.as_ptr().addr();
                    bodies.iter().any(|body| {
                        let from = address.wrapping_sub(body.bytes().as_ptr().addr());
                        body.piece(from, value.len()) == Some(digest)
                    })
                };
                let values = layer.values().flatten();
                let known = values.filter(is_known).count();
                self.known.push((bodies.len(), known));
                let rows = layer.iter();
                let bytes = rows.map(|(k, v)| k.len() + v.as_ref().map_or(0, Bytes::len));
                self.layers.push((seq, bytes.sum()));
                let (snapshot, root) = self.store.apply(&layer).unwrap();
                self.store = snapshot.clone();
                Some(Input::Stored {
                    seq,
                    complete,
                    root,
                    snapshot: Arc::new(snapshot),
                })
            }
            Output::Persist(index, _) => Some(Input::Persisted(index)),
            Output::Reply(_, reply) => {
                if let ReplicaMessage::Reply(reply) = reply
                    && let ReplyBody::Full(result) = reply.body
                {
                    self.results.push(result);
                }
                None
            }
            Output::Fatal(reason) => panic!("{reason}"),
            _ => None,
        }
    }

    fn ask(&mut self, session: u64, op: Bytes) {
        self.asked += 1;
        let message = request(session, self.asked, op);
        let message = ClientMessage::Request(message);
        self.take(Input::Client(CONNECTION, message));
    }

    /// Has an operation executed.
    fn run(&mut self, action: Action) -> Answer {
        self.ask(1, Op::new(Who::root(), action).to_bytes());
        let result = self.results.pop().expect("it is answered at once");
        let Executed::Done(result) = Executed::from_bytes(result).unwrap() else {
            panic!("it was not executed");
        };
        Outcome::from_bytes(result).unwrap().0.unwrap()
    }

    fn make(&mut self, name: &'static [u8]) -> Ino {
        let make = Make {
            parent: Ino::ROOT,
            name: Bytes::from_static(name),
            mode: 0o644,
            umask: 0,
            verifier: None,
        };
        match self.run(Action::Make(make)) {
            Answer::Made(made) => made.attr.ino,
            other => panic!("{other:?}"),
        }
    }

    fn write(&mut self, ino: Ino, offset: u64, data: Bytes) {
        let (target, place) = (Target::Ino(ino), Place::At(offset));
        self.run(Action::Write(Write {
            target,
            place,
            data,
        }));
    }
}

/// A byte in each of many chunks, copies, and space that is made present where there is content: no layer has more in it than is agreed on, and one
/// operation; and it is agreed on without a look at what operations have come to, so that replicas with workers and without have checkpoints
/// after the same places.
#[test]
fn short_requests_make_no_long_layers() {
    let mut all = Vec::new();
    for workers in [0, 2] {
        let mut files = Files::new(workers, false);
        let (a, b) = (files.make(b"a"), files.make(b"b"));
        for at in 0..8 {
            let data = vec![at as u8 + 1; MIB as usize];
            files.write(a, at * MIB, data.into());
        }
        let mut from = files.layers.len();
        let mut is_bounded = |files: &Files, what| {
            let layers = &files.layers[from..];
            let longest = layers.iter().map(|(_, bytes)| *bytes).max();
            let most = 4 * MOST + 18 * CHUNK as usize;
            assert!(layers.len() >= 2, "{what}: {layers:?}");
            assert!(
                longest.is_some_and(|longest| longest <= most),
                "{what}: {layers:?}"
            );
            from = files.layers.len();
        };
        for chunk in 0..8 * 16 {
            files.write(a, chunk * CHUNK + 5, Bytes::from_static(b"x"));
        }
        is_bounded(&files, "bytes");
        for at in 0..16 {
            let copy = CopyRange {
                from: Target::Ino(a),
                offset: at % 8 * MIB,
                to: Target::Ino(b),
                to_offset: at * MIB + 1,
                len: MIB,
            };
            files.run(Action::CopyRange(copy));
        }
        is_bounded(&files, "copies");
        // Each chunk has a hole, and 60 KiB of content behind it.
        let c = files.make(b"c");
        for chunk in 0..128 {
            files.write(c, chunk * CHUNK + 4096, vec![7; 60 << 10].into());
        }
        is_bounded(&files, "writes");
        let (mut offset, end) = (0, 128 * CHUNK);
        while offset < end {
            let fallocate = Fallocate {
                target: Target::Ino(c),
                mode: FallocateMode::Allocate,
                offset,
                len: end - offset,
            };
            match files.run(Action::Fallocate(fallocate)) {
                Answer::Progress(progress) => offset = progress.done,
                other => panic!("{other:?}"),
            }
        }
        is_bounded(&files, "space");
        all.push(files.layers);
    }
    assert_eq!(all[0], all[1], "with workers and without");
    let in_time = |(seq, _): &&(Seq, usize)| seq.0.is_multiple_of(CHECKPOINT_INTERVAL);
    assert!(all[0].iter().filter(in_time).count() < all[0].len());
}

/// What a long write brings is hashed once, also where no log says what is known of it: it goes to the store with the layer that has its
/// chunks, and with no other. Where there is a log it does not.
#[test]
fn long_operations_go_with_their_layers() {
    for (workers, durable) in [(0, false), (2, false), (0, true), (2, true)] {
        let mut files = Files::new(workers, durable);
        let ino = files.make(b"a");
        for at in 0..8 {
            let data = vec![at as u8 + 1; MIB as usize];
            files.write(ino, at * MIB, data.into());
        }
        // Each is as much as there is between two checkpoints, and short ones bring nothing.
        (0..20).for_each(|at| files.write(ino, at * CHUNK, Bytes::from_static(b"x")));
        let with_any = files.known.iter().filter(|known| **known != (0, 0));
        let expected = if durable { 0 } else { 8 };
        assert_eq!(with_any.clone().count(), expected, "{:?}", files.known);
        assert!(
            with_any.clone().all(|known| *known == (1, 16)),
            "{:?}",
            files.known
        );
    }
}
