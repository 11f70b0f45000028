//! Reads that are not ordered: one replica reads the content, and the others vouch for it without.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use quorate_execution::Executor;
use quorate_files::op::*;
use quorate_files::{Admission, Answer, FileService, Ino, Outcome};
use quorate_state::{MemorySnapshot, State};
use quorate_wire::message::{self, Control, ReplyBody, Request};
use quorate_wire::{Decode, Encode, PublicKey, RequestNumber, SessionId, Time};

use crate::common::GENESIS;
use crate::common::counted::{Counted, Reads};
use crate::common::set_attr;

const CHUNK: usize = 64 << 10;
const CLIENT: PublicKey = PublicKey([7; 32]);

struct Replica {
    executor: Executor<FileService>,
    state: State,
    session: SessionId,
    number: u64,
    reads: Reads,
}

impl Replica {
    fn new() -> Replica {
        let service = FileService::new(GENESIS, Admission::members_only());
        let mut executor = Executor::new(service);
        let mut state = State::new(Arc::new(MemorySnapshot::default()));
        executor.genesis(&mut state).unwrap();
        let op = Bytes::from(Control::Open(()).to_bytes());
        let open = Request::new(CLIENT, SessionId(0), RequestNumber(1), op);
        let done = executor.execute(&mut state, Time(1), [&open]).unwrap();
        let session = match message::Outcome::from_bytes(done[0].outcome.clone()) {
            Ok(message::Outcome::Done(id)) => SessionId::from_bytes(id).unwrap(),
            other => panic!("{other:?}"),
        };
        Replica {
            executor,
            state,
            session,
            number: 0,
            reads: Reads::default(),
        }
    }

    fn run(&mut self, action: Action) -> Answer {
        self.number += 1;
        let number = RequestNumber(self.number);
        let op = Op::new(Who::root(), action).to_bytes();
        let request = Request::new(CLIENT, self.session, number, op);
        let time = Time(1_000 * self.number);
        let (executor, state) = (&mut self.executor, &mut self.state);
        let done = executor.execute(state, time, [&request]).unwrap();
        match message::Outcome::from_bytes(done[0].outcome.clone()) {
            Ok(message::Outcome::Done(answer)) => Outcome::from_bytes(answer).unwrap().0.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// A file with this content, which is in the store.
    fn file(&mut self, content: &[u8]) -> Ino {
        let made = self.run(Action::Mknod(Mknod {
            parent: Ino::ROOT,
            name: "f".into(),
            kind: quorate_files::Kind::Regular,
            mode: 0o644,
            umask: 0,
            rdev: 0,
        }));
        let Answer::Attr(made) = made else {
            panic!("{made:?}")
        };
        let ino = made.ino;
        for (at, data) in content.chunks(MAX_IO_BYTES).enumerate() {
            self.run(Action::Write(Write {
                target: Target::Ino(ino),
                place: Place::At((at * MAX_IO_BYTES) as u64),
                data: Bytes::copy_from_slice(data),
            }));
        }
        self.executor.flush(&mut self.state);
        let all = self.state.begin();
        let entries = all.range(Bound::Unbounded, Bound::Unbounded, usize::MAX >> 1);
        let inner = MemorySnapshot {
            entries: entries.unwrap().into_iter().collect(),
            nodes: Default::default(),
        };
        drop(all);
        let reads = self.reads.clone();
        self.state = State::new(Arc::new(Counted { inner, reads }));
        self.executor.reset();
        ino
    }

    fn read(&mut self, op: &Read, in_full: bool) -> ReplyBody {
        let op = Op::new(Who::root(), Action::Read(op.clone())).to_bytes();
        let (executor, state) = (&mut self.executor, &mut self.state);
        let body = executor.read(state, CLIENT, self.session, &op, in_full);
        let (body, length) = body.unwrap().unwrap();
        let outcome = body.result().map(|result| result.len());
        assert!(outcome.is_none_or(|outcome| outcome == length + 5));
        body
    }
}

fn content(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at % 251 + at / CHUNK) as u8 | 1)
        .collect()
}

fn range(ino: Ino, offset: usize, len: usize) -> Read {
    Read {
        target: Target::Ino(ino),
        offset: offset as u64,
        len: len as u32,
    }
}

/// Who sends a read's result reads the file, and names each chunk that is whole in it; who vouches for it reads no chunk. Both say the same.
#[test]
fn who_vouches_reads_no_content() {
    let mut replica = Replica::new();
    let content = content(20 * CHUNK + 77);
    let ino = replica.file(&content);
    let reads = [
        (0, MAX_IO_BYTES, 16),
        (4 * CHUNK, MAX_IO_BYTES, 16),
        (8 * CHUNK, MAX_IO_BYTES, 12),
        (4096, MAX_IO_BYTES, 15),
        (19 * CHUNK, CHUNK, 1),
        (19 * CHUNK + 1, CHUNK, 0),
        (0, CHUNK - 1, 0),
        (21 * CHUNK, CHUNK, 0),
    ];
    for (offset, len, named) in reads {
        let op = range(ino, offset, len);
        replica.reads.take_large();
        let digest = replica.read(&op, false);
        let to_vouch = replica.reads.take_large();
        let full = replica.read(&op, true);
        let to_send = replica.reads.take_large();
        assert_eq!(digest, ReplyBody::Digest(full.digest()));

        let result = full.result().unwrap();
        let Ok(message::Outcome::Done(answer)) = message::Outcome::from_bytes(result) else {
            panic!("{offset}: not done")
        };
        let Outcome(Ok(Answer::Data(data))) = Outcome::from_bytes(answer).unwrap() else {
            panic!("{offset}: no data")
        };
        let end = (offset + len).min(content.len());
        assert!(data.data[..] == content[offset.min(end)..end], "{offset}");

        let values = match &full {
            ReplyBody::Parted(parted) => parted.values().len(),
            _ => 0,
        };
        assert_eq!(values, named, "{offset}");
        assert!(to_send >= named, "{offset}: it sends what it read");
        // Chunks of which a part is read are read by all.
        assert!(to_vouch <= 2, "{offset}: {to_vouch} read");
    }
}

/// What can't be read is refused as ever; and a chunk whose stored form is not the content is read by all.
#[test]
fn what_is_not_whole_is_read_by_all() {
    let mut replica = Replica::new();
    let mut bytes = content(3 * CHUNK);
    // It ends in zeros, and so is stored in another form.
    bytes[2 * CHUNK - 4096..2 * CHUNK].fill(0);
    let ino = replica.file(&bytes);
    let full = replica.read(&range(ino, 0, 3 * CHUNK), true);
    let ReplyBody::Parted(parted) = &full else {
        panic!("{full:?}")
    };
    assert_eq!(parted.values().len(), 2);
    for refused in [range(Ino::ROOT, 0, CHUNK), range(Ino(77), 0, CHUNK)] {
        let body = replica.read(&refused, true);
        assert!(matches!(&body, ReplyBody::Full(_)), "{body:?}");
        assert_eq!(replica.read(&refused, false).digest(), body.digest());
    }
}

/// Who looks for content behind what has just been made a hole reads none of what was there.
#[test]
fn what_was_a_hole_is_not_read() {
    const CHUNKS: usize = 1000;
    let mut replica = Replica::new();
    let ino = replica.file(&content(CHUNKS * CHUNK));
    let seek = |replica: &mut Replica, offset: usize| {
        let answer = replica.run(Action::Seek(Seek {
            target: Target::Ino(ino),
            offset: offset as u64,
            whence: Whence::Data,
        }));
        match answer {
            Answer::Offset(at) => at as usize,
            other => panic!("{other:?}"),
        }
    };
    let mut done = 0;
    while done < (CHUNKS - 1) * CHUNK {
        let punched = replica.run(Action::Fallocate(Fallocate {
            target: Target::Ino(ino),
            mode: FallocateMode::PunchHole,
            offset: done as u64,
            len: ((CHUNKS - 1) * CHUNK - done) as u64,
        }));
        match punched {
            Answer::Progress(progress) => done = progress.done as usize,
            other => panic!("{other:?}"),
        }
    }
    replica.reads.take_large();
    replica.reads.take();
    assert_eq!(seek(&mut replica, 0), (CHUNKS - 1) * CHUNK);
    let (all, large) = (replica.reads.take(), replica.reads.take_large());
    assert!(large <= 2 && all <= 100, "{large} of {all} read");
    assert_eq!(seek(&mut replica, CHUNKS * CHUNK - 1), CHUNKS * CHUNK - 1);
}

/// Content that is cut off, made a hole or removed is not read, neither what goes nor what went with the steps before; what of a chunk stays is.
#[test]
fn what_is_cut_off_is_not_read() {
    let mut replica = Replica::new();
    let ino = replica.file(&content(700 * CHUNK));
    let cut = |replica: &mut Replica, size: usize| {
        let mut op = set_attr(Target::Ino(ino));
        op.size = Some(size as u64);
        match replica.run(Action::SetAttr(op)) {
            Answer::Attr(attr) => attr.size,
            other => panic!("{other:?}"),
        }
    };
    replica.reads.take_large();
    replica.reads.take();
    let mut looks = Vec::new();
    loop {
        let size = cut(&mut replica, 20 * CHUNK);
        looks.push(replica.reads.take());
        if size == 20 * CHUNK as u64 {
            break;
        }
    }
    assert_eq!((looks.len(), replica.reads.take_large()), (3, 0));
    // Nor does a step look at what the steps before have removed.
    assert!(looks[1..].iter().all(|look| *look <= looks[0]), "{looks:?}");

    replica.run(Action::Fallocate(Fallocate {
        target: Target::Ino(ino),
        mode: FallocateMode::PunchHole,
        offset: CHUNK as u64 / 2,
        len: 9 * CHUNK as u64,
    }));
    let of_parts = replica.reads.take_large();
    assert!(of_parts <= 2, "{of_parts} read");

    assert_eq!(cut(&mut replica, 0), 0);
    for _ in 0..2 {
        replica.run(Action::Ping(quorate_files::Nothing));
    }
    assert_eq!(replica.reads.take_large(), 0);
    replica.executor.flush(&mut replica.state);
    let all = replica.state.begin();
    let keys = all.keys(Bound::Unbounded, Bound::Unbounded, usize::MAX >> 1);
    let extents = keys.unwrap().into_iter().filter(|key| key[0] == 0x14);
    assert_eq!(extents.count(), 0);
}
