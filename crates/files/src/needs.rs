//! What an operation of a guest needs: pairs of object and rights, with the name that it uses in the object where there is one. They
//! are a `match` over [`Action`] without wildcard, so a new operation does not build without its line.

use alloc::vec::Vec;

use quorate_credential::Rights;

use crate::fs::{Done, Fs, Stop};
use crate::op::{
    Action, Create, LockKind, Make, Open, Place, Rename, RenameMode, SetAttr, Target, flags,
};
use crate::types::{Ino, Kind};

/// What is needed with something.
pub(crate) struct Need<'a> {
    pub at: At<'a>,
    pub rights: Rights,
    /// The name in it that is used.
    pub name: Option<&'a [u8]>,
    /// Whether what is written counts against the credentials that allow this.
    pub pays: bool,
}

pub(crate) enum At<'a> {
    Object(Ino),
    /// What is to get this name in a directory.
    New(Ino, &'a [u8]),
}

fn need<'a>(ino: Ino, rights: Rights) -> Need<'a> {
    Need {
        at: At::Object(ino),
        rights,
        name: None,
        pays: false,
    }
}

fn named(ino: Ino, rights: Rights, name: &[u8]) -> Need<'_> {
    Need {
        name: Some(name),
        ..need(ino, rights)
    }
}

fn paid(need: Need<'_>) -> Need<'_> {
    Need { pays: true, ..need }
}

impl Fs<'_, '_> {
    /// The pairs that an operation needs.
    pub fn needs<'a>(&self, action: &'a Action) -> Done<Vec<Need<'a>>> {
        const R: Rights = Rights::READ;
        const W: Rights = Rights::WRITE;
        const NONE: Rights = Rights::NONE;
        Ok(match action {
            // These are allowed without, or have rules of their own.
            Action::Ping(_)
            | Action::Release(_)
            | Action::PutCredential(_)
            | Action::Revoke(_)
            | Action::Restore(_)
            | Action::Revocations(_)
            | Action::Grants(_)
            | Action::PassedOn(_)
            | Action::Audit(_)
            | Action::SetQuota(_)
            | Action::Adopt(_)
            | Action::Accessed(_)
            // That there is a credential is all.
            | Action::StatFs(_) => Vec::new(),

            Action::Lookup(op) => match &op.name[..] {
                b"." => [need(op.parent, Rights::LOOKUP)].into(),
                b".." => {
                    let above = self.inode(op.parent)?.parent;
                    [need(op.parent, Rights::LOOKUP), need(above, Rights::LOOKUP)].into()
                }
                name => self.looked_up(op.parent, name)?,
            },
            Action::GetAttr(target) => [need(object(target), Rights::LOOKUP)].into(),
            Action::Access(op) => [need(op.ino, Rights::LOOKUP)].into(),
            Action::StatFsOf(ino) => [need(*ino, Rights::LOOKUP)].into(),
            // All of them are user 0's to see.
            Action::Quotas(op) => {
                let about = op.about.iter();
                about.map(|ino| need(*ino, Rights::LOOKUP)).collect()
            }
            Action::Fsync(target) => [need(object(target), NONE)].into(),
            Action::SetAttr(op) => [need(object(&op.target), set_attr(op))].into(),

            Action::Open(op) | Action::CheckOpen(op) => [need(op.ino, self.opened(op)?)].into(),
            Action::Hold(op) => op.keep.iter().map(|ino| need(*ino, NONE)).collect(),
            Action::Create(op) => self.created(op)?,
            Action::Make(op) => self.made(op)?,
            Action::Mkdir(op) => [paid(named(op.parent, Rights::CREATE, &op.name))].into(),
            Action::Mknod(op) => [paid(named(op.parent, Rights::CREATE, &op.name))].into(),
            Action::Symlink(op) => [paid(named(op.parent, Rights::CREATE, &op.name))].into(),
            Action::Link(op) => {
                let named = named(op.parent, Rights::LINK, &op.name);
                [need(op.ino, Rights::LINK), paid(named)].into()
            }
            Action::Unlink(op) => [named(op.parent, Rights::UNLINK, &op.name)].into(),
            Action::Rmdir(op) => [named(op.parent, Rights::UNLINK, &op.name)].into(),
            Action::Rename(op) => self.renamed(op)?,

            Action::Read(op) => [need(object(&op.target), R)].into(),
            Action::Seek(op) => [need(object(&op.target), R)].into(),
            Action::Readlink(ino) => [need(*ino, R)].into(),
            Action::GetXattr(op) => [need(op.ino, R)].into(),
            Action::ListXattr(op) => [need(op.ino, R)].into(),
            Action::ReadDir(op) => [need(object(&op.target), Rights::READDIR)].into(),

            Action::Write(op) => {
                let ino = object(&op.target);
                let right = match (&op.target, &op.place) {
                    (Target::Handle(handle), _) if handle.appends() => Rights::APPEND,
                    (_, Place::End(_)) => Rights::APPEND,
                    (_, Place::At(offset)) => self.writing_at(ino, *offset)?,
                };
                [paid(need(ino, right))].into()
            }
            Action::Fallocate(op) => [paid(need(object(&op.target), W))].into(),
            Action::CopyRange(op) => {
                let to = object(&op.to);
                let right = self.writing_at(to, op.to_offset)?;
                [need(object(&op.from), R), paid(need(to, right))].into()
            }
            Action::SetXattr(op) => [paid(need(op.ino, Rights::SETATTR))].into(),
            Action::RemoveXattr(op) => [need(op.ino, Rights::SETATTR)].into(),

            // Who may only read keeps no writer waiting but by reading.
            Action::Lock(op) => {
                let right = match op.kind {
                    LockKind::Write if op.test => R,
                    kind => lock_right(kind),
                };
                [need(op.handle.ino, right)].into()
            }
            Action::WithAttrs(op) => return self.needs(&op.action),
        })
    }

    /// What it needs to write at an offset. Where the file ends just there nothing that it has is changed, so that is to append, however the program
    /// says it. Not beyond: who may only append can't make a file so long that nobody else can.
    fn writing_at(&self, ino: Ino, offset: u64) -> Done<Rights> {
        match self.any_inode(ino) {
            Ok(inode) if inode.size == offset => Ok(Rights::APPEND),
            // What is gone is refused as such.
            Ok(_) | Err(Stop::Refused(_)) => Ok(Rights::WRITE),
            Err(fault) => Err(fault),
        }
    }

    /// To find a name, and to see what has it.
    fn looked_up<'a>(&self, dir: Ino, name: &'a [u8]) -> Done<Vec<Need<'a>>> {
        let mut needs = Vec::from([named(dir, Rights::LOOKUP, name)]);
        if let Some(entry) = self.entry(dir, name)? {
            needs.push(need(entry.ino, Rights::LOOKUP));
        }
        Ok(needs)
    }

    fn opened(&self, op: &Open) -> Done<Rights> {
        let kind = self.inode(op.ino)?.kind;
        Ok(open_rights(kind, op.flags))
    }

    fn created<'a>(&self, op: &'a Create) -> Done<Vec<Need<'a>>> {
        let existing = self.entry(op.parent, &op.name)?;
        Ok(match existing {
            Some(_) if op.flags & flags::EXCLUSIVE != 0 => {
                [named(op.parent, Rights::LOOKUP, &op.name)].into()
            }
            Some(entry) => [
                named(op.parent, Rights::LOOKUP, &op.name),
                need(entry.ino, open_rights(entry.kind, op.flags)),
            ]
            .into(),
            None => {
                let new = Need {
                    at: At::New(op.parent, &op.name),
                    ..need(
                        op.parent,
                        open_rights(Kind::Regular, op.flags & !flags::TRUNC),
                    )
                };
                [paid(named(op.parent, Rights::CREATE, &op.name)), new].into()
            }
        })
    }

    fn made<'a>(&self, op: &'a Make) -> Done<Vec<Need<'a>>> {
        match self.entry(op.parent, &op.name)? {
            Some(_) => self.looked_up(op.parent, &op.name),
            None => Ok([paid(named(op.parent, Rights::CREATE, &op.name))].into()),
        }
    }

    fn renamed<'a>(&self, op: &'a Rename) -> Done<Vec<Need<'a>>> {
        let (from, into) = (Rights::RENAME_FROM, Rights::RENAME_INTO);
        let both = from | into;
        let (old, new) = ((op.parent, &op.name), (op.new_parent, &op.new_name));
        let there = self.entry(new.0, new.1)?.is_some();
        Ok(match (op.mode, there) {
            (RenameMode::Exchange, _) => {
                [named(old.0, both, old.1), named(new.0, both, new.1)].into()
            }
            (RenameMode::Replace, true) => [
                named(old.0, from, old.1),
                named(new.0, into | Rights::UNLINK, new.1),
            ]
            .into(),
            (RenameMode::Replace | RenameMode::NoReplace, _) => {
                [named(old.0, from, old.1), named(new.0, into, new.1)].into()
            }
        })
    }
}

/// Whether an operation is allowed to whoever is let in: it touches nothing but the guest's own session, or asks for itself who may.
pub(crate) fn is_free(action: &Action) -> bool {
    match action {
        Action::Ping(_)
        | Action::Release(_)
        | Action::PutCredential(_)
        | Action::Revoke(_)
        | Action::Restore(_)
        | Action::Revocations(_)
        | Action::Grants(_)
        | Action::PassedOn(_)
        | Action::Audit(_)
        | Action::SetQuota(_)
        | Action::Adopt(_)
        | Action::Accessed(_) => true,
        Action::Quotas(op) => op.about.is_none(),
        Action::Hold(op) => op.keep.is_empty(),
        _ => false,
    }
}

pub(crate) fn object(target: &Target) -> Ino {
    match target {
        Target::Ino(ino) | Target::Unopened(ino) | Target::Checked(ino) => *ino,
        Target::Handle(handle) => handle.ino,
    }
}

/// What a lock on an object needs.
pub(crate) fn lock_right(kind: LockKind) -> Rights {
    match kind {
        LockKind::Write => Rights::APPEND,
        LockKind::Read => Rights::READ,
        LockKind::Unlock => Rights::NONE,
    }
}

fn set_attr(op: &SetAttr) -> Rights {
    let size = op.size.map_or(Rights::NONE, |_| Rights::WRITE);
    let others = (op.mode, op.uid, op.gid) != (None, None, None);
    match others || op.atime.is_some() || op.mtime.is_some() || size.is_empty() {
        true => size | Rights::SETATTR,
        false => size,
    }
}

/// What an open is for. One that neither reads nor writes is to look at the object. One that writes is for who may append: each write is asked about by
/// itself, and only then is it known whether it goes to the end.
fn open_rights(kind: Kind, wanted: u32) -> Rights {
    let mut rights = Rights::NONE;
    if wanted & (flags::READ | flags::EXEC) != 0 {
        rights = rights
            | match kind {
                Kind::Directory => Rights::READDIR,
                _ => Rights::READ,
            };
    }
    if wanted & flags::WRITE != 0 {
        rights = rights | Rights::APPEND;
    }
    if wanted & flags::TRUNC != 0 {
        rights = rights | Rights::WRITE;
    }
    match rights.is_empty() {
        true => Rights::LOOKUP,
        false => rights,
    }
}
