//! What guests cost that cannot be told from outside.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;

use bytes::Bytes;
use quorate_credential::{Caveat, Chain, ObjectId, Rights, Scope, Terms, VolumeId, Window};
use quorate_execution::{Call, Service};
use quorate_state::{MemorySnapshot, State};
use quorate_wire::{Digest, KeyPair, SessionId, Time};

use super::{listing, run};
use crate::answer::{Answer, Outcome};
use crate::decisions::Memory;
use crate::fs::{Caller, Fs};
use crate::op::{Action, MAX_ENTRIES, Mkdir, Op, PutCredential, ReadDir, Target, Who};
use crate::types::Ino;
use crate::{Admission, FileService, Genesis};

const VOLUME: Digest = Digest([7; 32]);

fn key(number: u8) -> KeyPair {
    KeyPair::from_seed(&[number + 1; 32])
}

/// A volume with an owner, a member and a guest.
struct Volume {
    service: FileService,
    state: State,
    admission: Admission,
}

const OWNER: u8 = 0;
const MEMBER: u8 = 1;
const GUEST: u8 = 2;

fn call(by: u8) -> Call {
    Call {
        client: key(by).public(),
        session: SessionId(by.into()),
        now: Time(1_800_000_000_000_000_000),
    }
}

impl Volume {
    fn new() -> Volume {
        let admission = Admission {
            volume: VOLUME,
            owner: Some(key(OWNER).public()),
            members: BTreeSet::from([key(MEMBER).public()]),
        };
        let genesis = Genesis {
            capacity_bytes: 1 << 30,
            capacity_inodes: 10_000,
            root_uid: 0,
            root_gid: 0,
            root_mode: 0o1777,
        };
        let service = FileService::new(genesis, admission.clone());
        let mut state = State::new(Arc::new(MemorySnapshot::default()));
        let mut txn = state.begin();
        service.genesis(&mut txn).unwrap();
        txn.commit();
        Volume {
            service,
            state,
            admission,
        }
    }

    fn run(&mut self, by: u8, action: Action) -> Answer {
        let op = Op::new(Who::root(), action).to_bytes();
        let mut txn = self.state.begin();
        let result = self.service.execute(&mut txn, &call(by), &op).unwrap();
        txn.commit();
        Outcome::from_bytes(result).unwrap().0.unwrap()
    }

    fn mkdir(&mut self, parent: Ino, name: &str) -> Ino {
        let op = Mkdir {
            parent,
            name: Bytes::copy_from_slice(name.as_bytes()),
            mode: 0o777,
            umask: 0,
        };
        match self.run(MEMBER, Action::Mkdir(op)) {
            Answer::Attr(attr) => attr.ino,
            other => panic!("{other:?}"),
        }
    }

    /// The owner lets the guest have rights to what is in a directory and has a name that begins so.
    fn share(&mut self, dir: Ino, rights: Rights, serial: u64, prefix: &str) {
        let terms = Terms {
            subject: key(GUEST).public(),
            scope: Scope {
                object: ObjectId(dir.0.into()),
                subtree: true,
            },
            rights,
            window: Window {
                not_before: 0,
                not_after: 4_000_000_000,
            },
            depth: 0,
            serial,
            caveats: Vec::from([Caveat::NamePrefix(Bytes::copy_from_slice(
                prefix.as_bytes(),
            ))]),
        };
        let chain = Chain::issue(VolumeId(VOLUME), &key(OWNER), terms).unwrap();
        let chain = Bytes::from(chain.to_bytes());
        self.run(GUEST, Action::PutCredential(PutCredential { chain }));
    }
}

/// As many credentials as there can be, each with another prefix, by which nothing may be listed; and names with each of these, in turn. Whatever is
/// remembered, each prefix is held against the credentials once, and not each name.
#[test]
fn names_are_judged_by_their_prefixes() {
    let mut v = Volume::new();
    let dir = v.mkdir(Ino::ROOT, "dir");
    v.share(dir, Rights::READDIR, 0, "zzz");
    let prefixes = 63;
    for n in 1..=prefixes {
        v.share(dir, Rights::LOOKUP, n, &format!("p{n:02}"));
    }
    let names = 640;
    for n in 0..names {
        v.mkdir(dir, &format!("p{:02}-{n}", 1 + n % prefixes));
    }
    let (call, who) = (call(GUEST), Who::root());
    let caller = Caller {
        call: &call,
        who: &who,
        admission: &v.admission,
    };
    let mut txn = v.state.begin();
    let guest = Fs::new(&mut txn, &caller)
        .unwrap()
        .guest(call.client)
        .unwrap();
    let op = ReadDir {
        target: Target::Ino(dir),
        cookie: 2,
        count: MAX_ENTRIES,
        plus: true,
    };
    let listed = listing::list(&mut txn, &caller, &guest, &op).unwrap();
    let Outcome(Ok(Answer::Entries(page))) = listed else {
        panic!("{listed:?}");
    };
    assert!(page.entries.is_empty() && page.end);
    // For a name and what is below it, and a few for the directory itself and the one above.
    let asked = guest.asked.get();
    assert!(asked <= 2 * prefixes as usize + 10, "{asked}");
}

/// Ways are kept for the operation that goes them, and no longer: each may be long, and so may the names in it.
#[test]
fn ways_are_not_kept_between_operations() {
    let mut v = Volume::new();
    let dir = v.mkdir(Ino::ROOT, "dir");
    v.share(dir, Rights::LOOKUP, 0, "d");
    let deep = v.mkdir(dir, "deep");
    let (call, who) = (call(GUEST), Who::root());
    let caller = Caller {
        call: &call,
        who: &who,
        admission: &v.admission,
    };
    let memory = RefCell::new(Memory::default());
    let mut txn = v.state.begin();
    let fs = Fs::new(&mut txn, &caller).unwrap();
    let guest = fs.guest(call.client).unwrap();
    let looked_up = Action::GetAttr(Target::Ino(deep));
    fs.judge(&guest, &looked_up).unwrap();
    assert!(guest.walked() > 0, "it goes some");
    run(&mut txn, &caller, &memory, &looked_up)
        .unwrap()
        .0
        .unwrap();
    let kept: Vec<usize> = memory
        .borrow()
        .guests()
        .map(|guest| guest.walked())
        .collect();
    assert_eq!(kept, [0]);
}
