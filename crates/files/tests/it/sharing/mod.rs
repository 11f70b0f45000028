//! A volume with an owner, a member, and guests: keys with numbers.
#![allow(dead_code)] // Each test uses a part of it.

mod files;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use quorate_credential::{Chain, ObjectId, Rights, Scope, Terms, VolumeId, Window};
use quorate_execution::{Call, Service};
use quorate_files::answer::{self, KeptGrant, KeptRevocation};
use quorate_files::op::*;
use quorate_files::{
    Action, Admission, Answer, Errno, FileService, Handle, Op, Outcome, Who, check,
};
use quorate_state::{MemorySnapshot, State};
use quorate_wire::{Digest, KeyPair, PublicKey, SessionId, Time};

use crate::common::{GENESIS, Result};

/// The owner's key has the number 0.
pub const MEMBER: u8 = 200;
pub const VOLUME: Digest = Digest([7; 32]);

pub fn key(number: u8) -> KeyPair {
    KeyPair::from_seed(&[number.wrapping_add(1); 32])
}

pub fn public(number: u8) -> PublicKey {
    key(number).public()
}

/// A lock on a whole file, or a test for one.
pub fn lock(handle: Handle, kind: LockKind, test: bool) -> Action {
    Action::Lock(Lock {
        handle,
        space: LockSpace::Flock,
        owner: 1,
        pid: 1,
        start: 0,
        end: u64::MAX,
        kind,
        test,
    })
}

/// All rights on an object and what is below it, for a long time, to be passed on.
pub fn terms(subject: u8, object: u64) -> Terms {
    Terms {
        subject: public(subject),
        scope: Scope {
            object: ObjectId(object.into()),
            subtree: true,
        },
        rights: Rights::ALL,
        window: Window {
            not_before: 0,
            not_after: 4_000_000_000,
        },
        depth: 5,
        serial: 0,
        caveats: Vec::new(),
    }
}

pub struct Volume {
    pub service: FileService,
    /// The same, but it decides everything anew: they must not differ.
    anew: FileService,
    pub state: State,
    pub now: u64,
}

impl Volume {
    pub fn new() -> Volume {
        let admission = Admission {
            volume: VOLUME,
            owner: Some(public(0)),
            members: BTreeSet::from([public(MEMBER)]),
        };
        let service = FileService::new(GENESIS, admission);
        let mut state = State::new(Arc::new(MemorySnapshot::default()));
        let mut txn = state.begin();
        service.genesis(&mut txn).unwrap();
        txn.commit();
        let anew = service.clone().without_memory();
        Volume {
            service,
            anew,
            state,
            now: 1_800_000_000_000_000_000,
        }
    }

    /// Agreed time, as credentials have it.
    pub fn second(&self) -> u64 {
        self.now / 1_000_000_000
    }

    pub fn wait(&mut self, seconds: u64) {
        self.now += seconds * 1_000_000_000;
    }

    pub fn call(&self, key: u8) -> Call {
        Call {
            client: public(key),
            session: SessionId(key.into()),
            now: Time(self.now),
        }
    }

    /// An operation by a key. Each has a session of its own.
    pub fn run_as(&mut self, key: u8, who: Who, action: Action) -> Result<Answer> {
        self.now += 1_000;
        let call = self.call(key);
        let op = Op::new(who, action).to_bytes();
        let before = self.contents();
        let mut txn = self.state.begin();
        let expected = self.anew.execute(&mut txn, &call, &op).unwrap();
        let writes = txn.into_writes();
        let mut txn = self.state.begin();
        let result = self.service.execute(&mut txn, &call, &op).unwrap();
        assert_eq!((&result, txn.writes()), (&expected, &writes), "{op:?}");
        let read_only = self.service.is_read_only(&op);
        txn.commit();
        if read_only {
            let mut txn = self.state.begin();
            let reading = self.service.read(&mut txn, &call, &op).unwrap();
            assert_eq!(reading.gather(&txn).unwrap(), result, "in parts");
            assert!(before == self.contents(), "a read wrote");
        }
        Outcome::from_bytes(result).unwrap().0
    }

    pub fn run(&mut self, key: u8, action: Action) -> Result<Answer> {
        self.run_as(key, Who::root(), action)
    }

    pub fn issue_by(&self, issuer: u8, _subject: u8, terms: Terms) -> Chain {
        Chain::issue(VolumeId(VOLUME), &key(issuer), terms).unwrap()
    }

    pub fn issue(&self, subject: u8, terms: Terms) -> Chain {
        self.issue_by(0, subject, terms)
    }

    pub fn put_bytes(&mut self, key: u8, chain: Vec<u8>) -> Result<Digest> {
        let chain = Bytes::from(chain);
        match self.run(key, Action::PutCredential(PutCredential { chain }))? {
            Answer::Granted(id) => Ok(id),
            other => panic!("{other:?}"),
        }
    }

    pub fn put(&mut self, key: u8, chain: &Chain) -> Result<Digest> {
        self.put_bytes(key, chain.to_bytes())
    }

    pub fn revoke(
        &mut self,
        key: u8,
        what: Revoked,
        by: Option<Digest>,
        until: Option<u64>,
    ) -> Result<()> {
        let op = Revoke { what, by, until };
        self.run(key, Action::Revoke(op)).map(drop)
    }

    /// Ends a revocation.
    pub fn restore(&mut self, key: u8, what: Revoked, by: Option<Digest>) -> Result<()> {
        let op = Restore { what, by };
        self.run(key, Action::Restore(op)).map(drop)
    }

    /// What is taken back, had in pages of so many.
    pub fn revocations(&mut self, count: u32) -> Vec<KeptRevocation> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let op = Revocations { after, count };
            match self.run(MEMBER, Action::Revocations(op)).unwrap() {
                Answer::Revocations(page) => {
                    all.extend(page.revocations);
                    after = page.next;
                }
                other => panic!("{other:?}"),
            }
            if after.is_none() {
                return all;
            }
        }
    }

    pub fn grants(&mut self, key: u8) -> Vec<KeptGrant> {
        self.grants_by(key, 100)
    }

    pub fn grants_by(&mut self, key: u8, count: u32) -> Vec<KeptGrant> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let op = Grants {
                about: None,
                after,
                count,
            };
            match self.run(key, Action::Grants(op)).unwrap() {
                Answer::Grants(page) => {
                    all.extend(page.grants);
                    after = page.next;
                }
                other => panic!("{other:?}"),
            }
            if after.is_none() {
                return all;
            }
        }
    }

    /// What was passed on from a link, had in pages of so many.
    pub fn passed_on(&mut self, key: u8, link: Digest, count: u32) -> Result<Vec<KeptGrant>> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let op = PassedOn {
                link,
                about: None,
                after,
                count,
            };
            match self.run(key, Action::PassedOn(op))? {
                Answer::Grants(page) => {
                    assert!(page.grants.len() <= count as usize);
                    all.extend(page.grants);
                    after = page.next;
                }
                other => panic!("{other:?}"),
            }
            if after.is_none() {
                return Ok(all);
            }
        }
    }

    pub fn chain(&self, kept: &KeptGrant) -> Chain {
        Chain::from_bytes(kept.chain.clone()).unwrap()
    }

    pub fn log_of(&mut self, key: u8) -> answer::Audit {
        let op = Audit {
            from: 0,
            count: 256,
        };
        match self.run(key, Action::Audit(op)).unwrap() {
            Answer::Audit(audit) => audit,
            other => panic!("{other:?}"),
        }
    }

    /// The newest row of the audit log.
    pub fn last_row(&mut self) -> answer::AuditRow {
        let count = 256;
        let mut from = 0;
        loop {
            let op = Audit { from, count };
            match self.run(0, Action::Audit(op)).unwrap() {
                Answer::Audit(audit)
                    if audit
                        .rows
                        .last()
                        .is_some_and(|r| r.sequence + 1 == audit.next) =>
                {
                    return audit.rows.last().unwrap().clone();
                }
                Answer::Audit(audit) => from = audit.next - 1,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Has the volume count so many more rows of the log against somebody's share.
    pub fn fill_share(&mut self, of: u8, rows: u32) {
        let key = Bytes::from([&[0x2b], &public(of).0[..]].concat());
        let mut txn = self.state.begin();
        let before = txn
            .get(&key)
            .unwrap()
            .map_or(0, |row| u32::from_le_bytes(row[..].try_into().unwrap()));
        txn.put(key, Bytes::copy_from_slice(&(before + rows).to_le_bytes()));
        txn.commit();
    }

    /// Has the volume count so many credentials, whatever it has.
    pub fn count_grants(&mut self, grants: u32) {
        let key = Bytes::from_static(&[0x22]);
        let mut txn = self.state.begin();
        let mut row = txn.get(&key).unwrap().unwrap().to_vec();
        row[..4].copy_from_slice(&grants.to_le_bytes());
        txn.put(key, row.into());
        txn.commit();
    }

    pub fn contents(&mut self) -> BTreeMap<Bytes, Bytes> {
        let txn = self.state.begin();
        let all = txn
            .range(Bound::Unbounded, Bound::Unbounded, usize::MAX >> 1)
            .unwrap();
        all.into_iter().collect()
    }

    /// Rows of the state without those of the audit log and its shares.
    pub fn rows(&mut self) -> usize {
        let log = |key: &Bytes| matches!(key[0], 0x23 | 0x2b);
        self.contents().keys().filter(|key| !log(key)).count()
    }

    pub fn check(&mut self) {
        check::invariants(&self.state.begin()).unwrap();
    }
}

/// What was expected to be refused, and with what.
pub fn refused<T: std::fmt::Debug>(result: Result<T>, errno: Errno) {
    assert_eq!(result.map(drop), Err(errno));
}
