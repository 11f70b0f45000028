//! A volume to test on: state, agreed time, sessions, and freezing of layers at chosen moments.
#![allow(dead_code)] // Each test uses a part of it.

pub mod counted;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use quorate_execution::{Call, Rest, Service};
use quorate_files::answer::{Answer, Entry};
use quorate_files::op::*;
use quorate_files::{
    Admission, Attr, Errno, FileService, Genesis, Handle, Ino, Nothing, Outcome, check,
};
use quorate_state::{Layer, MemorySnapshot, State};
use quorate_wire::{PublicKey, Seq, SessionId, Time};

pub type Result<T> = std::result::Result<T, Errno>;

pub const GENESIS: Genesis = Genesis {
    capacity_bytes: 1 << 30,
    capacity_inodes: 1000,
    root_uid: 0,
    root_gid: 0,
    root_mode: 0o1777,
};

pub struct World {
    pub service: FileService,
    pub state: State,
    pub now: u64,
    /// Every operation and its result; `None` for the end of the session.
    pub log: Vec<(u64, Option<(Bytes, Bytes)>)>,
    base: MemorySnapshot,
    waiting: Vec<(Seq, Arc<Layer>)>,
    checkpoint: u64,
}

impl World {
    pub fn new() -> World {
        World::with(GENESIS)
    }

    pub fn with(genesis: Genesis) -> World {
        let service = FileService::new(genesis, Admission::members_only());
        let base = MemorySnapshot::default();
        let mut state = State::new(Arc::new(base.clone()));
        let mut txn = state.begin();
        service.genesis(&mut txn).unwrap();
        txn.commit();
        let now = 1_800_000_000_000_001_000;
        World {
            service,
            state,
            now,
            log: Vec::new(),
            base,
            waiting: Vec::new(),
            checkpoint: 0,
        }
    }

    /// Executes as the executor does: the transaction is committed whatever the outcome.
    pub fn execute(&mut self, session: u64, bytes: &Bytes) -> Bytes {
        self.now += 1_000;
        let call = self.call(session);
        let mut txn = self.state.begin();
        let result = self.service.execute(&mut txn, &call, bytes).unwrap();
        if self.service.is_read_only(bytes) {
            let reading = self.service.read(&mut txn, &call, bytes).unwrap();
            let op = <Op as quorate_wire::Decode>::from_bytes(bytes.clone());
            assert_eq!(reading.gather(&txn).unwrap(), result, "in parts: {op:?}");
        }
        if Outcome::from_bytes(result.clone()).unwrap().0.is_err() {
            assert!(txn.writes().is_empty(), "a refused operation wrote");
        }
        let rows = txn.writes().iter();
        let written: usize = rows
            .map(|(key, value)| 64 + key.len() + value.as_ref().map_or(0, Bytes::len))
            .sum();
        let most = bytes.len() + self.service.weight(bytes);
        assert!(written <= most, "{written} bytes, {most} at the most");
        txn.commit();
        self.log
            .push((session, Some((bytes.clone(), result.clone()))));
        result
    }

    pub fn run(&mut self, session: u64, who: &Who, action: Action) -> Result<Answer> {
        let op = Op::new(who.clone(), action);
        let result = self.execute(session, &op.to_bytes());
        Outcome::from_bytes(result).unwrap().0
    }

    pub fn end_session(&mut self, session: u64) {
        self.now += 1_000;
        self.log.push((session, None));
        let call = self.call(session);
        let mut txn = self.state.begin();
        while self.service.session_ended(&mut txn, &call).unwrap() == Rest::More {}
        txn.commit();
    }

    pub fn call(&self, session: u64) -> Call {
        Call {
            client: PublicKey([7; 32]),
            session: SessionId(session),
            now: Time(self.now),
        }
    }

    pub fn check(&mut self) {
        check::invariants(&self.state.begin()).unwrap();
    }

    /// Freezes the top layer; it reaches the store at [`World::store`].
    pub fn freeze(&mut self) {
        self.checkpoint += 1;
        let layer = self.state.freeze(Seq(self.checkpoint));
        self.waiting.push((Seq(self.checkpoint), layer));
    }

    pub fn store(&mut self) {
        for (seq, layer) in std::mem::take(&mut self.waiting) {
            for (key, value) in layer.iter() {
                match value {
                    Some(value) => self.base.entries.insert(key.clone(), value.clone()),
                    None => self.base.entries.remove(key),
                };
            }
            self.state.stored(seq, Arc::new(self.base.clone()));
        }
    }

    pub fn contents(&mut self) -> BTreeMap<Bytes, Bytes> {
        let txn = self.state.begin();
        let all = txn
            .range(Bound::Unbounded, Bound::Unbounded, usize::MAX >> 1)
            .unwrap();
        all.into_iter().collect()
    }

    // What tests ask for most, as root in session 1.

    pub fn create(&mut self, parent: Ino, name: &[u8]) -> (Ino, Handle) {
        self.create_as(&Who::root(), parent, name, 0o644).unwrap()
    }

    pub fn create_as(
        &mut self,
        who: &Who,
        parent: Ino,
        name: &[u8],
        mode: u32,
    ) -> Result<(Ino, Handle)> {
        let name = Bytes::copy_from_slice(name);
        let flags = flags::READ | flags::WRITE;
        let action = Action::Create(Create {
            parent,
            name,
            mode,
            umask: 0,
            flags,
        });
        match self.run(1, who, action)? {
            Answer::Opened(opened) => Ok((opened.attr.ino, opened.handle)),
            other => panic!("{other:?}"),
        }
    }

    pub fn mkdir(&mut self, who: &Who, parent: Ino, name: &[u8], mode: u32) -> Result<Ino> {
        let name = Bytes::copy_from_slice(name);
        match self.run(
            1,
            who,
            Action::Mkdir(Mkdir {
                parent,
                name,
                mode,
                umask: 0,
            }),
        )? {
            Answer::Attr(attr) => Ok(attr.ino),
            other => panic!("{other:?}"),
        }
    }

    pub fn open(&mut self, who: &Who, ino: Ino, flags: u32) -> Result<Handle> {
        match self.run(1, who, Action::Open(Open { ino, flags }))? {
            Answer::Opened(opened) => Ok(opened.handle),
            other => panic!("{other:?}"),
        }
    }

    pub fn write(&mut self, who: &Who, target: Target, offset: u64, data: &[u8]) -> Result<Attr> {
        let data = Bytes::copy_from_slice(data);
        let place = Place::At(offset);
        match self.run(
            1,
            who,
            Action::Write(Write {
                target,
                place,
                data,
            }),
        )? {
            Answer::Written(written) => Ok(written.attr),
            other => panic!("{other:?}"),
        }
    }

    pub fn read(&mut self, who: &Who, target: Target, offset: u64, len: u32) -> Result<Bytes> {
        match self.run(
            1,
            who,
            Action::Read(Read {
                target,
                offset,
                len,
            }),
        )? {
            Answer::Data(data) => Ok(data.data),
            other => panic!("{other:?}"),
        }
    }

    pub fn attr(&mut self, ino: Ino) -> Result<Attr> {
        match self.run(1, &Who::root(), Action::GetAttr(Target::Ino(ino)))? {
            Answer::Attr(attr) => Ok(attr),
            other => panic!("{other:?}"),
        }
    }

    pub fn chmod(&mut self, who: &Who, ino: Ino, mode: u32) -> Result<u32> {
        let mut op = set_attr(Target::Ino(ino));
        op.mode = Some(mode);
        match self.run(1, who, Action::SetAttr(op))? {
            Answer::Attr(attr) => Ok(attr.mode),
            other => panic!("{other:?}"),
        }
    }

    pub fn truncate(&mut self, ino: Ino, size: u64) -> Result<Attr> {
        let mut op = set_attr(Target::Ino(ino));
        op.size = Some(size);
        match self.run(1, &Who::root(), Action::SetAttr(op))? {
            Answer::Attr(attr) => Ok(attr),
            other => panic!("{other:?}"),
        }
    }

    pub fn unlink(&mut self, who: &Who, parent: Ino, name: &[u8]) -> Result<()> {
        let name = Bytes::copy_from_slice(name);
        self.run(1, who, Action::Unlink(Unlink { parent, name }))
            .map(drop)
    }

    pub fn list(&mut self, dir: Ino, cookie: u64, count: u32) -> Result<(Vec<Entry>, bool)> {
        let op = ReadDir {
            target: Target::Ino(dir),
            cookie,
            count,
            plus: true,
        };
        match self.run(1, &Who::root(), Action::ReadDir(op))? {
            Answer::Entries(entries) => Ok((entries.entries, entries.end)),
            other => panic!("{other:?}"),
        }
    }

    pub fn statfs(&mut self) -> quorate_files::answer::StatFs {
        match self.run(1, &Who::root(), Action::StatFs(Nothing)).unwrap() {
            Answer::StatFs(stat) => stat,
            other => panic!("{other:?}"),
        }
    }
}

pub fn set_attr(target: Target) -> SetAttr {
    SetAttr {
        target,
        mode: None,
        uid: None,
        gid: None,
        size: None,
        atime: None,
        mtime: None,
    }
}
