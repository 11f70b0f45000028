//! What guests may do: one question before each operation, with one answer for all that credentials allow.
//!
//! An operation needs pairs of object and rights (`needs.rs`). Each right of a pair must be given by a credential in force; several
//! together may give what one does not.

mod decided;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::ops::RangeInclusive;

use quorate_credential::verify::Reach;
use quorate_credential::{Grant, ObjectId, Rights, Step, Use};
use quorate_wire::PublicKey;
use quorate_wire::mutants::{Mutant, is_on};

use crate::decisions::{Basis, Decisions, Given, Part};
use crate::errno::Errno;
use crate::fs::{Done, Fs, Stop};
use crate::grants::Kept;
use crate::guest::Allowed;
use crate::needs::{At, Need};
use crate::op::{Action, RenameMode, Who};
use crate::types::Ino;
use crate::walk::{Walk, below, steps};

/// Whose files nobody's are: what Linux gives to those who are unknown.
pub(crate) const NOBODY: u32 = 65_534;
/// No object has this number, so it stands for one that is yet to be made, or for any below a directory.
const ANY: ObjectId = ObjectId(u128::MAX);

/// User and group, where a credential fixes them.
pub(crate) type Ids = Option<(u32, u32)>;

/// A caller that acts by credentials alone.
#[derive(Debug)]
pub(crate) struct Guest {
    /// Its credentials that are in force, in the order of their digests.
    pub grants: Vec<Kept>,
    /// Those that have not begun.
    to_come: Vec<Kept>,
    /// As whom it can act, each once, in the order of the credentials.
    pub ids: Vec<Ids>,
    /// Whether names are asked about at all.
    with_names: bool,
    /// What this follows from, and the seconds of agreed time for which it does.
    pub basis: Basis,
    pub seconds: RangeInclusive<u64>,
    /// [`Counters::moves`](crate::layout::Counters) of the decisions.
    moves: u64,
    decisions: RefCell<Decisions>,
    /// Which operation of this replica's it is at, and when.
    operation: u64,
    now: u64,
    /// Whether that has changed something. What is decided afterwards is for it alone.
    has_changed: Cell<bool>,
    /// Ways that were walked in this operation, since its last change.
    walked: RefCell<BTreeMap<Ino, Arc<[Walk]>>>,
    /// How often its credentials were held against some ways.
    #[cfg(test)]
    pub(crate) asked: Cell<usize>,
}

/// How many objects' ways are kept while one operation is at work: few have more than one.
const WALKED: usize = 16;

/// As the verifier has them.
fn ways(walks: &[Walk]) -> Vec<Vec<Step<'_>>> {
    walks.iter().map(steps).collect()
}

/// Whether what is below an object with these ways is in a link's tree.
fn has_in_it(reach: &Reach, walks: &[Walk]) -> bool {
    let is_in = |walk: &Walk| {
        let above = walk
            .iter()
            .position(|(step, _)| *step == reach.scope.object)?;
        // The object itself: what is below it goes with it, whatever name that has.
        let Some(step) = above.checked_sub(1) else {
            return Some(true);
        };
        let (_, name) = &walk[step];
        Some(
            reach
                .prefix
                .as_ref()
                .is_none_or(|prefix| name.starts_with(prefix)),
        )
    };
    reach.scope.subtree && walks.iter().any(|walk| is_in(walk) == Some(true))
}

pub(crate) fn who(ids: Ids) -> Who {
    let (uid, gid) = ids.unwrap_or((NOBODY, NOBODY));
    Who::new(uid, gid)
}

/// What some credentials give of what is needed.
#[derive(Default)]
struct Sum {
    rights: Rights,
    /// The first that gives anything.
    first: Option<usize>,
    /// All of them, where what is written counts.
    payers: Vec<usize>,
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

impl Pass {
    /// For what is allowed to whoever is let in.
    pub fn free() -> Pass {
        Pass {
            who: who(None),
            by: None,
            payers: Vec::new(),
        }
    }
}

impl Guest {
    /// What a credential gives of some rights with an object.
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
            // One that is to come as it will be then.
            now: self.now.max(grant.window.not_before),
            rights,
            walk,
            name,
        };
        grant.covers(&u).is_ok()
    }

    /// The first credential that is about an object.
    fn reached(&self, walks: &[Walk]) -> Option<u8> {
        let ways = ways(walks);
        let mut grants = (0..).zip(&self.grants);
        let is_about = |kept: &Kept| {
            let mut ways = ways.iter();
            ways.any(|way| self.covers(&kept.grant, way, Rights::NONE, None))
        };
        grants.find_map(|(by, kept)| is_about(kept).then_some(by))
    }

    /// The links of its credentials.
    fn reaches(&self) -> impl Iterator<Item = &Reach> {
        self.grants.iter().flat_map(|kept| &kept.grant.reaches)
    }

    /// Whether a link of a credential names an object.
    pub fn is_about(&self, ino: Ino) -> bool {
        let object = crate::walk::object(ino);
        self.reaches().any(|reach| reach.scope.object == object)
    }

    /// Whether an object that goes from some ways to others comes to where a credential gives more than the same one gave before: also one that
    /// says something else would outlive that, be taken back apart from it, or let the guest act as another user; and one that has not begun
    /// would still give it then. The links of credentials about single objects may be further down, so what is asked of each link is whether
    /// what is in the object comes into its tree, by a name that it allows.
    fn gains(&self, before: &[Walk], after: &[Walk]) -> bool {
        let below_before = below(ANY, b"", before);
        let below_after = below(ANY, b"", after);
        let places = [(before, after), (&below_before[..], &below_after[..])];
        self.grants.iter().chain(&self.to_come).any(|kept| {
            let mut reaches = kept.grant.reaches.iter();
            let enters = reaches.any(|reach| has_in_it(reach, after) && !has_in_it(reach, before));
            let more = |(before, after): (&[Walk], &[Walk])| {
                let given = |walks| self.part(&kept.grant, &ways(walks), Rights::ALL, None);
                !given(before).contains(given(after))
            };
            enters || places.into_iter().any(more)
        })
    }

    /// What each credential gives; only those that give something.
    fn parts(&self, walks: &[Walk], rights: Rights, name: Option<&[u8]>) -> Vec<Part> {
        #[cfg(test)]
        self.asked.set(self.asked.get() + 1);
        let ways = &ways(walks);
        let parts = self.grants.iter().zip(0..).map(|(kept, by)| Part {
            by,
            rights: self.part(&kept.grant, ways, rights, name),
        });
        parts.filter(|part| !part.rights.is_empty()).collect()
    }

    /// What the parts come to that are given as one user, of what a pair needs.
    fn sum(&self, ids: Ids, need: &Need<'_>, parts: &[Part]) -> Sum {
        let mut given = Sum::default();
        for part in parts {
            let (by, rights) = (usize::from(part.by), part.rights & need.rights);
            if rights.is_empty() || self.grants[by].grant.ids != ids {
                continue;
            }
            given.rights = given.rights | rights;
            given.first = given.first.or(Some(by));
            if need.pays {
                given.payers.push(by);
            }
        }
        given
    }

    /// Begins its next operation.
    pub fn begin(&mut self, operation: u64, fs: &Fs<'_, '_>) {
        self.operation = operation;
        self.now = fs.second();
        self.has_changed.set(false);
        self.walked.borrow_mut().clear();
        if self.moves != fs.counters.moves && !is_on(Mutant::MovesRemembered) {
            self.moves = fs.counters.moves;
            self.decisions.borrow_mut().clear();
        }
    }

    /// The operation is over. Ways are no small thing to keep, and the next operation would go them anew.
    pub fn rest(&self) {
        self.walked.borrow_mut().clear();
    }

    /// Of how many objects the ways are in memory.
    #[cfg(test)]
    pub(crate) fn walked(&self) -> usize {
        self.walked.borrow().len()
    }

    /// Something has been changed by the operation: what was walked and decided may be otherwise now.
    pub fn has_changed(&self, fs: &Fs<'_, '_>) {
        self.has_changed.set(true);
        self.walked.borrow_mut().clear();
        if self.moves != fs.counters.moves {
            self.decisions.borrow_mut().clear();
        }
    }
}

pub(crate) fn all(parts: &[Part]) -> Rights {
    let rights = parts.iter().map(|part| part.rights);
    rights.fold(Rights::NONE, |all, rights| all | rights)
}

impl Fs<'_, '_> {
    /// What somebody acts by now.
    pub fn guest(&self, subject: PublicKey) -> Done<Guest> {
        let (mut grants, mut to_come) = (Vec::new(), Vec::new());
        let now = self.second();
        let mut until = u64::MAX;
        for mut kept in self.grants_of(subject)? {
            let (holds, as_long_as) = self.standing(&kept)?;
            until = until.min(as_long_as);
            if !holds && now >= kept.grant.window.not_before {
                continue;
            }
            // Who may write anywhere may write at the end.
            if kept.grant.rights.contains(Rights::WRITE) {
                kept.grant.rights = kept.grant.rights | Rights::APPEND;
            }
            if holds {
                grants.push(kept);
                continue;
            }
            // One that is taken back is let go of some time, which no counter tells.
            match self.revoked_until(&kept)? {
                Some(as_long_as) => until = until.min(as_long_as),
                None => to_come.push(kept),
            }
        }
        let mut kept = grants.iter().chain(&to_come);
        let mut ids = Vec::new();
        for kept in &grants {
            if !ids.contains(&kept.grant.ids) {
                ids.push(kept.grant.ids);
            }
        }
        Ok(Guest {
            with_names: kept.any(|kept| {
                kept.grant
                    .reaches
                    .iter()
                    .any(|reach| reach.prefix.is_some())
            }),
            grants,
            to_come,
            ids,
            basis: Basis::of(self),
            seconds: now..=until,
            moves: self.counters.moves,
            decisions: RefCell::default(),
            operation: 0,
            now,
            has_changed: Cell::new(false),
            walked: RefCell::default(),
            #[cfg(test)]
            asked: Cell::new(0),
        })
    }

    /// What those credentials give of what a pair needs by which the guest acts as one user.
    fn given_as(&self, guest: &Guest, ids: Ids, need: &Need<'_>) -> Done<Sum> {
        let sum = |given: &Given| {
            let parts = match need.at {
                At::Object(_) => &given.here,
                At::New(..) => &given.below,
            };
            guest.sum(ids, need, parts)
        };
        match need.at {
            At::Object(ino) => self.decided_for(guest, ino, need.name, sum),
            At::New(dir, name) => self.decided_for(guest, dir, Some(name), sum),
        }
    }

    fn walks_to(&self, guest: &Guest, at: &At<'_>) -> Done<Arc<[Walk]>> {
        Ok(match at {
            At::Object(ino) => self.walks_of(guest, *ino)?,
            At::New(dir, name) => below(ANY, name, &self.walks_of(guest, *dir)?).into(),
        })
    }

    /// Whether an operation is allowed, and by what. `EACCES` where it is not; `ESTALE` for what the guest's credentials are not about, as if
    /// it were not there; `ENOENT` for a name that it may not look up.
    pub fn judge(&self, guest: &Guest, action: &Action) -> Done<Pass> {
        // One user for all of an operation: else what it may do as one here would count as another there.
        let mut refused = Errno::EACCES;
        for (at, ids) in guest.ids.iter().enumerate() {
            match self.judge_as(guest, *ids, action) {
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
            let given = self.given_as(guest, ids, &need)?;
            let mut first = given.first;
            if !given.rights.contains(need.rights) || need.rights.is_empty() {
                first = Some(self.reached_or_refused(guest, &need, action)?);
            }
            by = by.or(first);
            if need.pays {
                payers = given.payers;
            }
        }
        self.widens_nothing(guest, action)?;
        Ok(Pass {
            who: who(ids),
            by,
            payers,
        })
    }

    /// Why a pair is not given. It is, where nothing but the object's being in scope is asked for: by which credential.
    fn reached_or_refused(&self, guest: &Guest, need: &Need<'_>, action: &Action) -> Done<usize> {
        let reached = match need.at {
            At::Object(ino) => self.decided(guest, ino, |decision| decision.reached)?,
            At::New(..) => guest.reached(&self.walks_to(guest, &need.at)?),
        };
        if let Some(by) = reached.filter(|_| need.rights.is_empty()) {
            return Ok(by.into());
        }
        let hides = match (action, &need.at) {
            (Action::Lookup(op), At::Object(ino)) if *ino == op.parent => {
                // Another name in there would do.
                let unnamed = self.decided(guest, *ino, |decision| all(&decision.unnamed.here))?;
                need.name.is_some() && unnamed.contains(need.rights)
            }
            (Action::Lookup(_), _) => true,
            _ => false,
        };
        Err(match (hides, reached.is_some()) {
            (true, _) => Errno::ENOENT.into(),
            (false, true) => Errno::EACCES.into(),
            (false, false) => Errno::ESTALE.into(),
        })
    }

    fn walks_of(&self, guest: &Guest, ino: Ino) -> Done<Arc<[Walk]>> {
        if let Some(walks) = guest.walked.borrow().get(&ino) {
            return Ok(walks.clone());
        }
        let walks: Arc<[Walk]> = self.walks(ino, guest.with_names)?.into();
        let mut walked = guest.walked.borrow_mut();
        if walked.len() < WALKED {
            walked.insert(ino, walks.clone());
        }
        Ok(walks)
    }

    /// What each of a guest's credentials gives with an object.
    pub fn given_on<T>(&self, guest: &Guest, ino: Ino, ask: impl FnOnce(&[Part]) -> T) -> Done<T> {
        self.decided(guest, ino, |decision| ask(&decision.unnamed.here))
    }

    /// The same of all together; nothing if it is gone.
    pub fn rights_on(&self, guest: &Guest, ino: Ino) -> Done<Rights> {
        match self.given_on(guest, ino, all) {
            Ok(rights) => Ok(rights),
            Err(Stop::Refused(_)) => Ok(Rights::NONE),
            Err(fault) => Err(fault),
        }
    }

    /// What a guest may do with something that has a name in a directory, whatever it is; nothing if it may not list the name.
    pub fn listed_as(&self, guest: &Guest, dir: Ino, name: &[u8]) -> Done<Option<Allowed>> {
        self.decided_for(guest, dir, Some(name), |given| {
            let listed = all(&given.here).contains(Rights::READDIR);
            listed.then(|| guest.allowed(&given.below))
        })
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
        match guest.gains(&here, &there) && !is_on(Mutant::LinksWiden) {
            true => Err(Errno::EXDEV.into()),
            false => Ok(()),
        }
    }
}
