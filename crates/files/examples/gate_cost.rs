//! What the question before a guest's operation costs: `GetAttr` of a file, on a state in memory, by a member and by a guest.
//! `cargo run --release -p quorate-files --example gate_cost`.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use quorate_credential::{Chain, ObjectId, Rights, Scope, Terms, VolumeId, Window};
use quorate_execution::{Call, Service};
use quorate_files::op::{Make, Mkdir, PutCredential, Target};
use quorate_files::{Action, Admission, Answer, FileService, Genesis, Ino, Op, Outcome, Who};
use quorate_state::{MemorySnapshot, State};
use quorate_wire::{Digest, KeyPair, PublicKey, SessionId, Time};

const OPERATIONS: u32 = 2_000;
const ROUNDS: usize = 11;
const VOLUME: Digest = Digest([1; 32]);

struct Volume {
    service: FileService,
    state: State,
    now: u64,
}

impl Volume {
    fn new(owner: PublicKey) -> Volume {
        let admission = Admission {
            volume: VOLUME,
            owner: Some(owner),
            members: BTreeSet::new(),
        };
        let genesis = Genesis {
            capacity_bytes: 1 << 30,
            capacity_inodes: 1 << 20,
            root_uid: 0,
            root_gid: 0,
            root_mode: 0o755,
        };
        let service = FileService::new(genesis, admission);
        let mut state = State::new(Arc::new(MemorySnapshot::default()));
        let mut txn = state.begin();
        service.genesis(&mut txn).expect("memory");
        txn.commit();
        let now = 1_800_000_000_000_000_000;
        Volume {
            service,
            state,
            now,
        }
    }

    fn run(&mut self, client: PublicKey, op: &Bytes) -> Bytes {
        self.now += 1_000;
        let call = Call {
            client,
            session: SessionId(1),
            now: Time(self.now),
        };
        let mut txn = self.state.begin();
        let result = self.service.execute(&mut txn, &call, op).expect("memory");
        txn.commit();
        result
    }

    fn make(&mut self, client: PublicKey, action: Action) -> Ino {
        let result = self.run(client, &Op::new(Who::root(), action).to_bytes());
        match Outcome::from_bytes(result).expect("a result").0 {
            Ok(Answer::Attr(attr)) => attr.ino,
            Ok(Answer::Made(made)) => made.attr.ino,
            Ok(_) => Ino(0),
            Err(errno) => panic!("{errno}"),
        }
    }
}

/// The owner's credential for the root's tree, passed on so many times less one.
fn chain(links: u8) -> Chain {
    let key = |n: u8| KeyPair::from_seed(&[n + 1; 32]);
    let terms = |n: u8| Terms {
        subject: key(n + 1).public(),
        scope: Scope {
            object: ObjectId(1),
            subtree: true,
        },
        rights: Rights::ALL,
        window: Window {
            not_before: 0,
            not_after: u64::MAX,
        },
        depth: 15 - n,
        serial: n.into(),
        caveats: Vec::new(),
    };
    let first = Chain::issue(VolumeId(VOLUME), &key(0), terms(0));
    let pass_on = |chain: Chain, n| chain.delegate(&key(n), terms(n)).expect("it narrows");
    (1..links).fold(first.expect("it can be said"), pass_on)
}

#[allow(clippy::disallowed_methods)] // It measures.
fn main() {
    let owner = KeyPair::from_seed(&[1; 32]).public();
    println!("depth  links  us a member, us a guest (median of {ROUNDS} x {OPERATIONS})");
    for (depth, links) in [(1, 1), (8, 1), (8, 5), (64, 5)] {
        let mut volume = Volume::new(owner);
        let name = Bytes::from_static(b"name");
        let mut parent = Ino::ROOT;
        for _ in 1..depth {
            let op = Mkdir {
                parent,
                name: name.clone(),
                mode: 0o755,
                umask: 0,
            };
            parent = volume.make(owner, Action::Mkdir(op));
        }
        let op = Make {
            parent,
            name,
            mode: 0o644,
            umask: 0,
            verifier: None,
        };
        let file = volume.make(owner, Action::Make(op));
        let chain = chain(links);
        let guest = chain.subject();
        let bytes = chain.to_bytes().into();
        volume.make(guest, Action::PutCredential(PutCredential { chain: bytes }));
        let op = Op::new(Who::root(), Action::GetAttr(Target::Ino(file))).to_bytes();
        let mut median = |client| {
            let mut rounds = [0.0; ROUNDS];
            for round in &mut rounds {
                let started = Instant::now();
                for _ in 0..OPERATIONS {
                    black_box(volume.run(client, &op));
                }
                *round = started.elapsed().as_secs_f64() * 1e6 / f64::from(OPERATIONS);
            }
            rounds.sort_by(f64::total_cmp);
            rounds[ROUNDS / 2]
        };
        let (member, guest) = (median(owner), median(guest));
        println!("{depth:5}  {links:5}  {member:.2}, {guest:.2}");
    }
}
