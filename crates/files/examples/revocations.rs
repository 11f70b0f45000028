//! Revocations that race with use, in a great many short histories of the file service itself: guests bring credentials and use them while the
//! owner takes them back, moves what they are about, and lets them end; parts of each history are undone and others take their place.
//! What is allowed is held, operation for operation, against a model of a few lines that knows nothing of the service.
//!
//! `cargo run --profile sim -p quorate-files --features quorate-wire/remember --example revocations -- 0..100000`
//! (signatures that were right are remembered, so that histories are short; wrong ones are no subject here)

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;

use bytes::Bytes;
use quorate_credential::{Chain, ObjectId, Rights, Scope, Terms, VolumeId, Window};
use quorate_execution::{Call, Service};
use quorate_files::op::{
    Make, Mkdir, Place, PutCredential, Read, Rename, RenameMode, Revoke, Revoked, Serial, Write,
};
use quorate_files::{
    Action, Admission, Answer, Errno, FileService, Genesis, Ino, Op, Outcome, Target, Who,
};
use quorate_state::{MemorySnapshot, State};
use quorate_wire::{Digest, KeyPair, PublicKey, SessionId, Time};

const VOLUME: Digest = Digest([1; 32]);
const GUESTS: usize = 3;
const START: u64 = 1_800_000_000;
/// Two directories, with a file in each.
const DIRS: [Ino; 2] = [Ino(2), Ino(3)];
const FILES: [Ino; 2] = [Ino(4), Ino(5)];

fn key(number: usize) -> KeyPair {
    KeyPair::from_seed(&[number as u8 + 1; 32])
}

/// A credential, and what the model knows of it.
struct Grant {
    bytes: Bytes,
    guest: usize,
    dir: usize,
    /// The last second.
    until: u64,
    /// Subject, issuer and serial of each link.
    links: Vec<(PublicKey, PublicKey, u64)>,
}

/// Six for each guest: three for each directory, of which one was passed on by another guest, and one ends soon.
fn grants() -> Vec<Grant> {
    let mut all = Vec::new();
    for guest in 0..GUESTS {
        for number in 0..6 {
            let dir = number % 2;
            let until = match number / 2 {
                1 => START + 4,
                _ => u64::MAX,
            };
            let serial = (guest * 6 + number) as u64;
            let terms = |subject: usize, depth| Terms {
                subject: key(1 + subject).public(),
                scope: Scope {
                    object: ObjectId(DIRS[dir].0.into()),
                    subtree: true,
                },
                rights: Rights::ALL,
                window: Window {
                    not_before: 0,
                    not_after: until,
                },
                depth,
                serial,
                caveats: Vec::new(),
            };
            let issue = |to, depth| Chain::issue(VolumeId(VOLUME), &key(0), terms(to, depth));
            let chain = match number / 2 {
                2 => {
                    let by = (guest + 1) % GUESTS;
                    let first = issue(by, 1).expect("it can be said");
                    first.delegate(&key(1 + by), terms(guest, 0))
                }
                _ => issue(guest, 0),
            };
            let chain = chain.expect("it can be said");
            let links = chain.links().iter().enumerate();
            all.push(Grant {
                links: links
                    .map(|(at, link)| (link.terms.subject, chain.issuer(at), link.terms.serial))
                    .collect(),
                bytes: chain.to_bytes().into(),
                guest,
                dir,
                until,
            });
        }
    }
    all
}

/// What should be so.
#[derive(Clone)]
struct Model {
    brought: BTreeSet<usize>,
    revoked: Vec<Revoked>,
    /// Whether the second directory is in the first one.
    is_nested: bool,
    /// In which directory each file is.
    files: [usize; 2],
}

impl Model {
    fn holds(&self, grant: &Grant, now: u64) -> bool {
        let hit = |what: &Revoked| {
            grant
                .links
                .iter()
                .any(|(subject, issuer, serial)| match what {
                    Revoked::Key(key) => key == subject,
                    Revoked::Serial(of) => of.issuer == *issuer && of.serial == *serial,
                    Revoked::Epoch(of) => of.issuer == *issuer && *serial < of.serial,
                })
        };
        now <= grant.until && !self.revoked.iter().any(hit)
    }

    fn allows(&self, grants: &[Grant], guest: usize, file: usize, now: u64) -> bool {
        let dir = self.files[file];
        self.brought.iter().any(|at| {
            let grant = &grants[*at];
            let reaches = grant.dir == dir || (self.is_nested && grant.dir == 0);
            grant.guest == guest && reaches && self.holds(grant, now)
        })
    }
}

/// Numbers that follow from a seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % most as u64) as usize
    }
}

#[derive(Default)]
struct Counts {
    allowed: u64,
    refused: u64,
    revocations: u64,
    undone: u64,
}

struct History<'a> {
    service: &'a FileService,
    grants: &'a [Grant],
    state: State,
    now: u64,
    model: Model,
    dice: Dice,
    counts: &'a mut Counts,
}

fn call(
    service: &FileService,
    state: &mut State,
    now: u64,
    number: usize,
    action: Action,
) -> Result<Answer, Errno> {
    let call = Call {
        client: key(number).public(),
        session: SessionId(1 + number as u64),
        now: Time(now),
    };
    let op = Op::new(Who::root(), action).to_bytes();
    let mut txn = state.begin();
    let result = service.execute(&mut txn, &call, &op).expect("memory");
    txn.commit();
    Outcome::from_bytes(result).expect("a result").0
}

impl History<'_> {
    fn run(&mut self, number: usize, action: Action) -> Result<Answer, Errno> {
        self.now += 1_000;
        call(self.service, &mut self.state, self.now, number, action)
    }

    fn second(&self) -> u64 {
        self.now / 1_000_000_000
    }

    fn step(&mut self) -> Result<(), String> {
        match self.dice.below(12) {
            0..=2 => self.bring(),
            3 => self.revoke(),
            4 => self.move_something(),
            5 => {
                self.now += 1_000_000_000 * self.dice.below(3) as u64;
                Ok(())
            }
            6 => self.in_vain(),
            _ => self.use_it(),
        }
    }

    fn bring(&mut self) -> Result<(), String> {
        let at = self.dice.below(self.grants.len());
        let grant = &self.grants[at];
        let chain = grant.bytes.clone();
        let put = self.run(
            1 + grant.guest,
            Action::PutCredential(PutCredential { chain }),
        );
        let holds = self.model.holds(grant, self.second());
        if put.is_ok() != holds {
            return Err(format!("credential {at} is brought: {put:?}"));
        }
        if holds {
            self.model.brought.insert(at);
        }
        Ok(())
    }

    fn revoke(&mut self) -> Result<(), String> {
        let grant = &self.grants[self.dice.below(self.grants.len())];
        let (subject, issuer, serial) = grant.links[self.dice.below(grant.links.len())];
        let what = match self.dice.below(8) {
            0 => Revoked::Key(subject),
            1 => Revoked::Epoch(Serial { issuer, serial }),
            _ => Revoked::Serial(Serial { issuer, serial }),
        };
        let op = Revoke {
            what: what.clone(),
            by: None,
            until: None,
        };
        let done = self.run(0, Action::Revoke(op));
        self.model.revoked.push(what);
        self.counts.revocations += 1;
        done.map(drop).map_err(|e| format!("a revocation: {e}"))
    }

    fn move_something(&mut self) -> Result<(), String> {
        let (from, to, name): (Ino, Ino, &[u8]) = match self.dice.below(3) {
            2 => {
                let (from, to) = match self.model.is_nested {
                    false => (Ino::ROOT, DIRS[0]),
                    true => (DIRS[0], Ino::ROOT),
                };
                self.model.is_nested = !self.model.is_nested;
                (from, to, b"second")
            }
            file => {
                let from = self.model.files[file];
                self.model.files[file] = 1 - from;
                (DIRS[from], DIRS[1 - from], [b"one", b"two"][file])
            }
        };
        let name = Bytes::from_static(name);
        let op = Rename {
            parent: from,
            name: name.clone(),
            new_parent: to,
            new_name: name,
            mode: RenameMode::Replace,
        };
        let done = self.run(0, Action::Rename(op));
        done.map(drop).map_err(|e| format!("a rename: {e}"))
    }

    /// Steps that are undone, as where a view changes. What comes instead comes at the same times.
    fn in_vain(&mut self) -> Result<(), String> {
        let (model, now) = (self.model.clone(), self.now);
        self.state.begin_tentative();
        for _ in 0..self.dice.below(5) {
            match self.dice.below(4) {
                0 => self.bring()?,
                1 => self.revoke()?,
                2 => self.move_something()?,
                _ => self.use_it()?,
            }
        }
        self.state.drop_tentative();
        (self.model, self.now) = (model, now);
        self.counts.undone += 1;
        Ok(())
    }

    fn use_it(&mut self) -> Result<(), String> {
        let (guest, file) = (self.dice.below(GUESTS), self.dice.below(2));
        let target = Target::Ino(FILES[file]);
        let action = match self.dice.below(3) {
            0 => Action::GetAttr(target),
            1 => Action::Read(Read {
                target,
                offset: 0,
                len: 10,
            }),
            _ => Action::Write(Write {
                target,
                place: Place::At(0),
                data: Bytes::from_static(b"x"),
            }),
        };
        let result = self.run(1 + guest, action);
        let allowed = self.model.allows(self.grants, guest, file, self.second());
        match allowed {
            true => self.counts.allowed += 1,
            false => self.counts.refused += 1,
        }
        match result.is_ok() == allowed {
            true => Ok(()),
            false => Err(format!(
                "guest {guest} uses file {file}, which is {}: {result:?}",
                if allowed { "allowed" } else { "not allowed" }
            )),
        }
    }
}

/// The service, and a volume with the two directories and files.
fn prepare() -> (FileService, Arc<MemorySnapshot>) {
    let admission = Admission {
        volume: VOLUME,
        owner: Some(key(0).public()),
        members: BTreeSet::new(),
    };
    let service = FileService::new(Genesis::for_all(1 << 30, 1000), admission);
    let mut state = State::new(Arc::new(MemorySnapshot::default()));
    let mut txn = state.begin();
    service.genesis(&mut txn).expect("memory");
    txn.commit();
    let mut now = 1_000;
    let mut run = |action| {
        now += 1_000;
        call(&service, &mut state, now, 0, action).expect("it can be made");
    };
    for name in ["first", "second"] {
        run(Action::Mkdir(Mkdir {
            parent: Ino::ROOT,
            name: name.into(),
            mode: 0o777,
            umask: 0,
        }));
    }
    for (parent, name) in DIRS.into_iter().zip(["one", "two"]) {
        run(Action::Make(Make {
            parent,
            name: name.into(),
            mode: 0o666,
            umask: 0,
            verifier: None,
        }));
    }
    let layer = state.freeze(quorate_wire::Seq(1));
    let (snapshot, _) = MemorySnapshot::default()
        .apply(&layer)
        .expect("an empty tree takes any layer");
    (service, Arc::new(snapshot))
}

fn main() -> ExitCode {
    let seeds = std::env::args().nth(1).unwrap_or("0..1000".into());
    let ends = seeds.split_once("..");
    let ends = ends.and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    let Some((from, to)) = ends else {
        eprintln!("say which histories: 0..1000");
        return ExitCode::from(2);
    };
    let (service, volume) = prepare();
    let grants = grants();
    let mut counts = Counts::default();
    for seed in from..to {
        let mut history = History {
            service: &service,
            grants: &grants,
            state: State::new(volume.clone()),
            now: START * 1_000_000_000,
            model: Model {
                brought: BTreeSet::new(),
                revoked: Vec::new(),
                is_nested: false,
                files: [0, 1],
            },
            dice: Dice(seed),
            counts: &mut counts,
        };
        for step in 0..24 {
            if let Err(why) = history.step() {
                eprintln!("history {seed}, step {step}: {why}");
                return ExitCode::FAILURE;
            }
        }
        if (seed - from + 1_u64).is_multiple_of(100_000) {
            eprintln!("{} histories", seed - from + 1);
        }
    }
    let Counts {
        allowed,
        refused,
        revocations,
        undone,
    } = counts;
    println!(
        "{} histories: {allowed} uses allowed and {refused} refused as they must be, {revocations} revocations, {undone} times operations were undone",
        to - from
    );
    ExitCode::SUCCESS
}
