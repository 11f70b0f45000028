//! What guests may do: one question before each operation, with one answer for all that credentials allow.
//!
//! An operation needs pairs of object and rights, with the name that it uses in the object where there is one. Each right of a pair must be
//! given by a credential in force; several together may give what one does not. The pairs are a `match` over [`Action`] without wildcard, so
//! a new operation does not build without its line.

use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;

use quorate_credential::{Grant, ObjectId, Rights, Step, Use};

use crate::errno::Errno;
use crate::fs::{Done, Fs, Stop};
use crate::grants::Kept;
use crate::op::{
    Action, Create, LockKind, Make, Open, Place, Rename, RenameMode, SetAttr, Target, Who, flags,
};
use crate::types::{Ino, Kind};
use crate::walk::{Walk, below, steps};

/// Whose files nobody's are: what Linux gives to those who are unknown.
pub(crate) const NOBODY: u32 = 65_534;
/// No object has this number, so it stands for one that is yet to be made, or for any below a directory.
const ANY: ObjectId = ObjectId(u128::MAX);

/// User and group, where a credential fixes them.
type Ids = Option<(u32, u32)>;

/// A caller that acts by credentials alone.
#[derive(Debug)]
pub(crate) struct Guest {
    /// Its credentials that are in force, in the order of their digests.
    pub grants: Vec<Kept>,
    /// Whether names are asked about at all.
    with_names: bool,
    now: u64,
    /// Ways that were walked since the last change.
    walked: RefCell<BTreeMap<Ino, Rc<[Walk]>>>,
}

/// How many objects' ways are kept while one operation is at work: few have more than one.
const WALKED: usize = 16;

/// What is needed with something.
struct Need<'a> {
    at: At<'a>,
    rights: Rights,
    /// The name in it that is used.
    name: Option<&'a [u8]>,
    /// Whether what is written counts against the credentials that allow this.
    pays: bool,
}

enum At<'a> {
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

/// As the verifier has them.
fn ways(walks: &[Walk]) -> Vec<Vec<Step<'_>>> {
    walks.iter().map(steps).collect()
}

fn who(ids: Ids) -> Who {
    let (uid, gid) = ids.unwrap_or((NOBODY, NOBODY));
    Who::new(uid, gid)
}

/// An operation that is allowed.
#[derive(Debug)]
pub(crate) struct Pass {
    /// As whom the guest acts in it.
    pub who: Who,
    /// By which credential: the first that gives something of the first pair.
    pub by: Option<usize>,
    /// Those that what is written can count against; empty where nothing is counted.
    pub payers: Vec<usize>,
}

impl Guest {
    /// What the credentials give of some rights with an object.
    fn given(&self, walks: &[Walk], rights: Rights, name: Option<&[u8]>) -> Rights {
        let ways = &ways(walks);
        let grants = self.grants.iter();
        let parts = grants.map(|kept| self.part(&kept.grant, ways, rights, name));
        parts.fold(Rights::NONE, |all, part| all | part)
    }

    /// What those credentials give by which the guest acts as one user, and which they are.
    fn given_as(
        &self,
        ids: Ids,
        walks: &[Walk],
        rights: Rights,
        name: Option<&[u8]>,
    ) -> (Rights, Vec<usize>) {
        let ways = &ways(walks);
        let (mut all, mut by) = (Rights::NONE, Vec::new());
        let grants = self.grants.iter().enumerate();
        for (at, kept) in grants.filter(|(_, kept)| kept.grant.ids == ids) {
            let part = self.part(&kept.grant, ways, rights, name);
            if !part.is_empty() {
                all = all | part;
                by.push(at);
            }
        }
        (all, by)
    }

    fn part(
        &self,
        grant: &Grant,
        ways: &[Vec<Step<'_>>],
        rights: Rights,
        name: Option<&[u8]>,
    ) -> Rights {
        let rights = rights & grant.rights;
        // Where names are limited, the object that they are in can be looked at, and no more.
        let looking = rights & (Rights::LOOKUP | Rights::READDIR);
        let mut all = Rights::NONE;
        for way in ways {
            let part = [rights, looking]
                .into_iter()
                .find(|part| !part.is_empty() && self.covers(grant, way, *part, name));
            all = all | part.unwrap_or_default();
        }
        all
    }

    fn covers(
        &self,
        grant: &Grant,
        walk: &[Step<'_>],
        rights: Rights,
        name: Option<&[u8]>,
    ) -> bool {
        let u = Use {
            subject: grant.subject,
            now: self.now,
            rights,
            walk,
            name,
        };
        grant.covers(&u).is_ok()
    }

    /// Whether any credential is about an object.
    fn reaches(&self, walks: &[Walk]) -> bool {
        let ways = ways(walks);
        let grants = self.grants.iter();
        let mut pairs = grants.flat_map(|kept| ways.iter().map(|way| (&kept.grant, way)));
        pairs.any(|(grant, way)| self.covers(grant, way, Rights::NONE, None))
    }

    /// Whether an object that goes from some ways to others comes to where a credential gives more than the same one gave before: also one that
    /// says something else would outlive that, be taken back apart from it, or let the guest act as another user. The links of
    /// credentials about single objects may be further down, so what is asked of each link is whether its tree is a new one.
    fn gains(&self, before: &[Walk], after: &[Walk]) -> bool {
        let is_on =
            |walks: &[Walk], object| walks.iter().flatten().any(|(step, _)| *step == object);
        let below_before = below(ANY, b"", before);
        let below_after = below(ANY, b"", after);
        let places = [(before, after), (&below_before[..], &below_after[..])];
        self.grants.iter().any(|kept| {
            let mut trees = kept.grant.reaches.iter().map(|reach| reach.scope);
            let enters = trees.any(|scope| {
                scope.subtree && is_on(after, scope.object) && !is_on(before, scope.object)
            });
            let more = |(before, after): (&[Walk], &[Walk])| {
                let given = |walks| self.part(&kept.grant, &ways(walks), Rights::ALL, None);
                !given(before).contains(given(after))
            };
            enters || places.into_iter().any(more)
        })
    }

    /// What the guest may do with something that has a name in a directory.
    pub fn given_below(&self, dir: &[Walk], name: &[u8]) -> Rights {
        self.given(&below(ANY, name, dir), Rights::ALL, None)
    }

    /// Whether a name in a directory is listed.
    pub fn may_list(&self, dir: &[Walk], name: &[u8]) -> bool {
        !self.given(dir, Rights::READDIR, Some(name)).is_empty()
    }

    /// Something has changed: what was walked may be otherwise now.
    pub fn forget_ways(&self) {
        self.walked.borrow_mut().clear();
    }

    /// As whom the guest can act, each once, in the order of the credentials.
    fn all_ids(&self) -> Vec<Ids> {
        let mut all = Vec::new();
        for kept in &self.grants {
            if !all.contains(&kept.grant.ids) {
                all.push(kept.grant.ids);
            }
        }
        all
    }
}

impl Fs<'_, '_> {
    /// What the caller acts by in an operation.
    pub fn guest(&self, action: &Action) -> Done<Guest> {
        let mut grants = Vec::new();
        // Where nothing is asked, nothing is looked up.
        let own = match is_free(action) {
            true => Vec::new(),
            false => self.grants_of(self.call.client)?,
        };
        for mut kept in own {
            if !self.is_in_force(&kept)? {
                continue;
            }
            // Who may write anywhere may write at the end.
            if kept.grant.rights.contains(Rights::WRITE) {
                kept.grant.rights = kept.grant.rights | Rights::APPEND;
            }
            grants.push(kept);
        }
        let mut reaches = grants.iter().flat_map(|kept| &kept.grant.reaches);
        Ok(Guest {
            with_names: reaches.any(|reach| reach.prefix.is_some()),
            grants,
            now: self.second(),
            walked: RefCell::default(),
        })
    }

    /// Whether an operation is allowed, and by what. `EACCES` where it is not; `ESTALE` for what the guest's credentials are not about, as if
    /// it were not there; `ENOENT` for a name that it may not look up.
    pub fn judge(&self, guest: &Guest, action: &Action) -> Done<Pass> {
        if is_free(action) {
            return Ok(Pass {
                who: who(None),
                by: None,
                payers: Vec::new(),
            });
        }
        // One user for all of an operation: else what it may do as one here would count as another there.
        let mut refused = Errno::EACCES;
        for (at, ids) in guest.all_ids().into_iter().enumerate() {
            match self.judge_as(guest, ids, action) {
                // It is there for somebody.
                Err(Stop::Refused(errno)) if at == 0 || refused == Errno::ESTALE => refused = errno,
                Err(Stop::Refused(_)) => {}
                done => return done,
            }
        }
        Err(refused.into())
    }

    fn judge_as(&self, guest: &Guest, ids: Ids, action: &Action) -> Done<Pass> {
        let (mut by, mut payers) = (None, Vec::new());
        for need in self.needs(action)? {
            let walks = match need.at {
                At::Object(ino) => self.walks_of(guest, ino)?,
                At::New(dir, name) => below(ANY, name, &self.walks_of(guest, dir)?).into(),
            };
            let (given, givers) = guest.given_as(ids, &walks, need.rights, need.name);
            if !given.contains(need.rights) || need.rights.is_empty() {
                self.refuse(guest, &walks, &need, action)?;
            }
            if need.pays {
                payers.clone_from(&givers);
            }
            by = by.or(givers.first().copied());
        }
        self.widens_nothing(guest, action)?;
        Ok(Pass {
            who: who(ids),
            by,
            payers,
        })
    }

    /// Why a pair is not given; it is, where nothing but the object's being in scope is asked for.
    fn refuse(&self, guest: &Guest, walks: &[Walk], need: &Need<'_>, action: &Action) -> Done<()> {
        let reaches = guest.reaches(walks);
        if reaches && need.rights.is_empty() {
            return Ok(());
        }
        let hides = match (action, &need.at) {
            (Action::Lookup(op), At::Object(ino)) if *ino == op.parent => {
                // Another name in there would do.
                let unnamed = guest.given(walks, need.rights, None);
                need.name.is_some() && unnamed.contains(need.rights)
            }
            (Action::Lookup(_), _) => true,
            _ => false,
        };
        Err(match (hides, reaches) {
            (true, _) => Errno::ENOENT.into(),
            (false, true) => Errno::EACCES.into(),
            (false, false) => Errno::ESTALE.into(),
        })
    }

    pub fn walks_of(&self, guest: &Guest, ino: Ino) -> Done<Rc<[Walk]>> {
        if let Some(walks) = guest.walked.borrow().get(&ino) {
            return Ok(walks.clone());
        }
        let walks: Rc<[Walk]> = self.walks(ino, guest.with_names)?.into();
        let mut walked = guest.walked.borrow_mut();
        if walked.len() < WALKED {
            walked.insert(ino, walks.clone());
        }
        Ok(walks)
    }

    /// What a guest may do with an object; nothing if it is gone.
    pub fn rights_on(&self, guest: &Guest, ino: Ino) -> Done<Rights> {
        match self.walks_of(guest, ino) {
            Ok(walks) => Ok(guest.given(&walks, Rights::ALL, None)),
            Err(Stop::Refused(_)) => Ok(Rights::NONE),
            Err(fault) => Err(fault),
        }
    }

    /// No new name may give a guest, by any of its credentials, what that one has not given it over an object. `EXDEV`, so that programs copy
    /// instead: who copies may read the one and write the other.
    fn widens_nothing(&self, guest: &Guest, action: &Action) -> Done<()> {
        match action {
            Action::Link(op) => self.widens_not(guest, op.ino, op.parent, &op.name),
            Action::Rename(op) => {
                if let Some(entry) = self.entry(op.parent, &op.name)? {
                    self.widens_not(guest, entry.ino, op.new_parent, &op.new_name)?;
                }
                let other = self.entry(op.new_parent, &op.new_name)?;
                match other.filter(|_| op.mode == RenameMode::Exchange) {
                    Some(entry) => self.widens_not(guest, entry.ino, op.parent, &op.name),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn widens_not(&self, guest: &Guest, ino: Ino, dir: Ino, name: &[u8]) -> Done<()> {
        let here = self.walks_of(guest, ino)?;
        let there = below(crate::walk::object(ino), name, &self.walks_of(guest, dir)?);
        match guest.gains(&here, &there) {
            true => Err(Errno::EXDEV.into()),
            false => Ok(()),
        }
    }

    /// The pairs that an operation needs.
    fn needs<'a>(&self, action: &'a Action) -> Done<Vec<Need<'a>>> {
        const R: Rights = Rights::READ;
        const W: Rights = Rights::WRITE;
        const NONE: Rights = Rights::NONE;
        Ok(match action {
            // These are allowed without, or have rules of their own.
            Action::Ping(_)
            | Action::Release(_)
            | Action::PutCredential(_)
            | Action::Revoke(_)
            | Action::Grants(_)
            | Action::Audit(_)
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
            Action::Fsync(target) => [need(object(target), NONE)].into(),
            Action::SetAttr(op) => [need(object(&op.target), set_attr(op))].into(),

            Action::Open(op) => [need(op.ino, self.opened(op)?)].into(),
            Action::Create(op) => self.created(op)?,
            Action::Make(op) => self.made(op)?,
            Action::Mkdir(op) => [named(op.parent, Rights::CREATE, &op.name)].into(),
            Action::Mknod(op) => [named(op.parent, Rights::CREATE, &op.name)].into(),
            Action::Symlink(op) => [paid(named(op.parent, Rights::CREATE, &op.name))].into(),
            Action::Link(op) => {
                [need(op.ino, Rights::LINK), named(op.parent, Rights::LINK, &op.name)].into()
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
                let to_end = match (&op.target, &op.place) {
                    (Target::Handle(handle), _) if handle.appends() => true,
                    (_, Place::End(_)) => true,
                    (_, Place::At(_)) => false,
                };
                let right = if to_end { Rights::APPEND } else { W };
                [paid(need(object(&op.target), right))].into()
            }
            Action::Fallocate(op) => [paid(need(object(&op.target), W))].into(),
            Action::CopyRange(op) => {
                [need(object(&op.from), R), paid(need(object(&op.to), W))].into()
            }
            Action::SetXattr(op) => [paid(need(op.ino, Rights::SETATTR))].into(),
            Action::RemoveXattr(op) => [need(op.ino, Rights::SETATTR)].into(),

            // Who may only read keeps no writer waiting but by reading.
            Action::Lock(op) => {
                let right = match op.kind {
                    LockKind::Write if !op.test => Rights::APPEND,
                    LockKind::Read | LockKind::Write => R,
                    LockKind::Unlock => NONE,
                };
                [need(op.handle.ino, right)].into()
            }
            Action::WithAttrs(op) => return self.needs(&op.action),
        })
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
                [named(op.parent, Rights::CREATE, &op.name), new].into()
            }
        })
    }

    fn made<'a>(&self, op: &'a Make) -> Done<Vec<Need<'a>>> {
        match self.entry(op.parent, &op.name)? {
            Some(_) => self.looked_up(op.parent, &op.name),
            None => Ok([named(op.parent, Rights::CREATE, &op.name)].into()),
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
    matches!(
        action,
        Action::Ping(_)
            | Action::Release(_)
            | Action::PutCredential(_)
            | Action::Revoke(_)
            | Action::Grants(_)
            | Action::Audit(_)
    )
}

pub(crate) fn object(target: &Target) -> Ino {
    match target {
        Target::Ino(ino) | Target::Unopened(ino) => *ino,
        Target::Handle(handle) => handle.ino,
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

/// What an open is for. One that neither reads nor writes is to look at the object.
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
        rights = rights
            | match wanted & flags::APPEND {
                0 => Rights::WRITE,
                _ => Rights::APPEND,
            };
    }
    if wanted & flags::TRUNC != 0 {
        rights = rights | Rights::WRITE;
    }
    match rights.is_empty() {
        true => Rights::LOOKUP,
        false => rights,
    }
}
