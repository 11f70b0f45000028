//! What the question before a guest's operation costs: `GetAttr` of a file, on a state in memory, by a member and by a guest. And `Lookup` of the
//! file, where the credentials limit names in its directory.
//! By a guest three times: where it is decided anew each time; where it was decided before; and, of `GetAttr`, where it was decided about the
//! directory, in which the guest looks at more files than are remembered.
//! `cargo run --profile sim -p quorate-files --example gate_cost`.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use quorate_credential::{Caveat, Chain, ObjectId, Rights, Scope, Terms, VolumeId, Window};
use quorate_execution::{Call, Service};
use quorate_files::op::{Lookup, Make, Mkdir, PutCredential, Target};
use quorate_files::{Action, Admission, Answer, FileService, Genesis, Ino, Op, Outcome, Who};
use quorate_state::{MemorySnapshot, State};
use quorate_wire::{Digest, KeyPair, PublicKey, SessionId, Time};

const OPERATIONS: u32 = 2_000;
const ROUNDS: usize = 101;
/// Files that one directory has: twice as many as are remembered.
const FILES: u32 = 2_048;
const NAME: Bytes = Bytes::from_static(b"name");
const VOLUME: Digest = Digest([1; 32]);

struct Volume {
    service: FileService,
    state: State,
    now: u64,
}

impl Volume {
    fn new(owner: PublicKey, remembers: bool) -> Volume {
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
        let mut service = FileService::new(genesis, admission);
        if !remembers {
            service = service.without_memory();
        }
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

/// The owner's credential for a tree, passed on so many times less one; the last time to the guest.
fn chain(links: u8, serial: u8, top: Ino, caveats: &[Caveat]) -> Chain {
    let key = |n: u8| KeyPair::from_seed(&[n + 1; 32]);
    let terms = |n: u8| Terms {
        subject: if n + 1 == links {
            guest()
        } else {
            key(n + 1).public()
        },
        scope: Scope {
            object: ObjectId(top.0.into()),
            subtree: true,
        },
        rights: Rights::ALL,
        window: Window {
            not_before: 0,
            not_after: u64::MAX,
        },
        depth: 15 - n,
        serial: serial.into(),
        caveats: caveats.to_vec(),
    };
    let first = Chain::issue(VolumeId(VOLUME), &key(0), terms(0));
    let pass_on = |chain: Chain, n| chain.delegate(&key(n), terms(n)).expect("it narrows");
    (1..links).fold(first.expect("it can be said"), pass_on)
}

fn guest() -> PublicKey {
    KeyPair::from_seed(&[99; 32]).public()
}

fn main() {
    let owner = KeyPair::from_seed(&[1; 32]).public();
    println!(
        "operation  directories  chains  links each  us a member, a guest anew, as before, in a known directory"
    );
    for (depth, chains, links) in [
        (1, 1, 1),
        (8, 1, 1),
        (8, 1, 5),
        (64, 1, 5),
        (8, 64, 2),
        (250, 8, 16),
    ] {
        for is_limited in [false, true] {
            let mut sides = [true, false].map(|remembers| {
                let (volume, at) = prepare(owner, remembers, depth, (chains, links), is_limited);
                let (parent, files) = at;
                let look = |file: &Ino| Action::GetAttr(Target::Ino(*file));
                let lookup = Action::Lookup(Lookup { parent, name: NAME });
                let actions = match is_limited {
                    false => files.iter().map(look).collect(),
                    true => vec![lookup],
                };
                let ops = actions.into_iter();
                let ops = ops.map(|action| Op::new(Who::root(), action).to_bytes());
                (volume, ops.collect())
            });
            let [member, anew, before, known] = measure(owner, &mut sides);
            let name = if is_limited { "Lookup" } else { "GetAttr" };
            println!(
                "{name:9}  {depth:11}  {chains:6}  {links:10}  {member:.2}, {anew:.2}, {before:.2}, {known:.2}"
            );
        }
    }
}

/// A member, a guest for whom nothing is remembered, one for whom it is, and one that looks at one file after the other. Beside each other, so that what else the machine does hits all of
/// them; and of each the quietest round.
#[allow(clippy::disallowed_methods)] // It measures.
fn measure(owner: PublicKey, sides: &mut [(Volume, Vec<Bytes>); 2]) -> [f64; 4] {
    let mut best = [f64::MAX; 4];
    for _ in 0..ROUNDS {
        let modes = [(0, owner), (1, guest()), (0, guest()), (0, guest())];
        for (at, (side, client)) in modes.into_iter().enumerate() {
            let (volume, ops) = &mut sides[side];
            let ops = if at == 3 { &ops[..] } else { &ops[..1] };
            let operations = if at == 1 { OPERATIONS / 20 } else { OPERATIONS };
            let started = Instant::now();
            for op in ops.iter().cycle().take(operations as usize) {
                black_box(volume.run(client, op));
            }
            let us = started.elapsed().as_secs_f64() * 1e6 / f64::from(operations);
            best[at] = best[at].min(us);
        }
    }
    best
}

/// A volume with a file so many directories down, and a guest with so many credentials for all of it; or for the file's directory, of which
/// each link limits names. The directory and the files in it.
fn prepare(
    owner: PublicKey,
    remembers: bool,
    depth: usize,
    (chains, links): (u8, u8),
    is_limited: bool,
) -> (Volume, (Ino, Vec<Ino>)) {
    let mut volume = Volume::new(owner, remembers);
    let mut parent = Ino::ROOT;
    for _ in 1..depth {
        let op = Mkdir {
            parent,
            name: NAME,
            mode: 0o755,
            umask: 0,
        };
        parent = volume.make(owner, Action::Mkdir(op));
    }
    let named = |at| match at {
        0 => NAME,
        at => format!("name {at}").into(),
    };
    let files = (0..FILES).map(|at| {
        let op = Make {
            parent,
            name: named(at),
            mode: 0o644,
            umask: 0,
            verifier: None,
        };
        volume.make(owner, Action::Make(op))
    });
    let files = files.collect();
    let (top, caveats) = match is_limited {
        false => (Ino::ROOT, Vec::new()),
        true => (parent, vec![Caveat::NamePrefix(Bytes::from_static(b"na"))]),
    };
    for serial in 0..chains {
        let chain = chain(links, serial, top, &caveats).to_bytes().into();
        volume.make(guest(), Action::PutCredential(PutCredential { chain }));
    }
    (volume, (parent, files))
}
