//! What tests of guests ask for most, by a key.

use bytes::Bytes;
use quorate_credential::{Chain, Rights};
use quorate_files::answer::Entry;
use quorate_files::op::*;
use quorate_files::{Action, Answer, Attr, Handle, Ino};

use super::{MEMBER, Volume, terms};
use crate::common::Result;

fn bytes(name: &[u8]) -> Bytes {
    Bytes::copy_from_slice(name)
}

impl Volume {
    /// A credential for a guest, brought.
    pub fn share(&mut self, guest: u8, object: Ino, rights: Rights) -> Chain {
        let mut terms = terms(guest, object.0);
        terms.rights = rights;
        terms.serial = u64::from(guest);
        let chain = self.issue(guest, terms);
        self.put(guest, &chain).unwrap();
        chain
    }

    /// A directory that everybody may use, made by a member.
    pub fn dir(&mut self, parent: Ino, name: &[u8]) -> Ino {
        self.mkdir(MEMBER, parent, name).unwrap().ino
    }

    /// A file that everybody may use, made by a member, with its name in it.
    pub fn file(&mut self, parent: Ino, name: &[u8]) -> Ino {
        let (attr, handle) = self.create(MEMBER, parent, name).unwrap();
        self.write(MEMBER, Target::Handle(handle), name).unwrap();
        self.run(MEMBER, Action::Release(handle)).unwrap();
        attr.ino
    }

    fn an_attr(&mut self, key: u8, action: Action) -> Result<Attr> {
        match self.run(key, action)? {
            Answer::Attr(attr) => Ok(attr),
            other => panic!("{other:?}"),
        }
    }

    pub fn mkdir(&mut self, key: u8, parent: Ino, name: &[u8]) -> Result<Attr> {
        let name = bytes(name);
        let op = Mkdir {
            parent,
            name,
            mode: 0o777,
            umask: 0,
        };
        self.an_attr(key, Action::Mkdir(op))
    }

    pub fn create(&mut self, key: u8, parent: Ino, name: &[u8]) -> Result<(Attr, Handle)> {
        let op = Create {
            parent,
            name: bytes(name),
            mode: 0o666,
            umask: 0,
            flags: flags::READ | flags::WRITE,
        };
        match self.run(key, Action::Create(op))? {
            Answer::Opened(opened) => Ok((opened.attr, opened.handle)),
            other => panic!("{other:?}"),
        }
    }

    pub fn open(&mut self, key: u8, ino: Ino, flags: u32) -> Result<Handle> {
        match self.run(key, Action::Open(Open { ino, flags }))? {
            Answer::Opened(opened) => Ok(opened.handle),
            other => panic!("{other:?}"),
        }
    }

    pub fn write(&mut self, key: u8, target: Target, data: &[u8]) -> Result<()> {
        let op = Write {
            target,
            place: Place::At(0),
            data: bytes(data),
        };
        self.run(key, Action::Write(op)).map(drop)
    }

    pub fn append(&mut self, key: u8, target: Target, data: &[u8]) -> Result<()> {
        let op = Write {
            target,
            place: Place::End(quorate_files::Nothing),
            data: bytes(data),
        };
        self.run(key, Action::Write(op)).map(drop)
    }

    pub fn read(&mut self, key: u8, target: Target) -> Result<Bytes> {
        let op = Read {
            target,
            offset: 0,
            len: 100,
        };
        match self.run(key, Action::Read(op))? {
            Answer::Data(data) => Ok(data.data),
            other => panic!("{other:?}"),
        }
    }

    pub fn read_ino(&mut self, key: u8, ino: Ino) -> Result<Bytes> {
        self.read(key, Target::Ino(ino))
    }

    pub fn lookup(&mut self, key: u8, parent: Ino, name: &[u8]) -> Result<Attr> {
        let name = bytes(name);
        self.an_attr(key, Action::Lookup(Lookup { parent, name }))
    }

    pub fn attr(&mut self, key: u8, ino: Ino) -> Result<Attr> {
        self.an_attr(key, Action::GetAttr(Target::Ino(ino)))
    }

    pub fn access(&mut self, key: u8, ino: Ino) -> Result<u32> {
        match self.run(key, Action::Access(Access { ino, mask: 7 }))? {
            Answer::Allowed(mask) => Ok(mask),
            other => panic!("{other:?}"),
        }
    }

    pub fn unlink(&mut self, key: u8, parent: Ino, name: &[u8]) -> Result<()> {
        let name = bytes(name);
        self.run(key, Action::Unlink(Unlink { parent, name }))
            .map(drop)
    }

    pub fn link(&mut self, key: u8, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        let name = bytes(name);
        self.an_attr(key, Action::Link(Link { ino, parent, name }))
    }

    pub fn rename(&mut self, key: u8, from: (Ino, &[u8]), to: (Ino, &[u8])) -> Result<()> {
        self.rename_in(key, from, to, RenameMode::Replace)
    }

    pub fn rename_in(
        &mut self,
        key: u8,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        let op = Rename {
            parent: from.0,
            name: bytes(from.1),
            new_parent: to.0,
            new_name: bytes(to.1),
            mode,
        };
        self.run(key, Action::Rename(op)).map(drop)
    }

    /// All names but the dots, by pages of so many.
    pub fn list(&mut self, key: u8, dir: Ino, count: u32, plus: bool) -> Result<Vec<Entry>> {
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let op = ReadDir {
                target: Target::Ino(dir),
                cookie,
                count,
                plus,
            };
            match self.run(key, Action::ReadDir(op))? {
                Answer::Entries(page) => {
                    all.extend(page.entries);
                    cookie = page.next;
                    if page.end {
                        return Ok(all);
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    pub fn names(&mut self, key: u8, dir: Ino) -> Result<Vec<Vec<u8>>> {
        let entries = self.list(key, dir, 100, false)?;
        let names = entries.into_iter().map(|entry| entry.name.to_vec());
        Ok(names.filter(|name| !name.starts_with(b".")).collect())
    }
}
