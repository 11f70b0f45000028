//! What was decided before: what a guest's credentials give it with an object. Kept beside the service, never in the state, and never part of a
//! result: with it and without it each replica answers the same.
//!
//! That holds because what is kept here names all that it follows from:
//!
//! - the [`Lineage`] of the state that was read. Within one, operations only come on top of each other, so two counters of the state tell what
//!   has happened; where operations are undone or another state is put in place, everything here is of no more use;
//! - [`Counters::shared`](crate::layout::Counters), which rises with each credential that is kept and each revocation: a guest's credentials;
//! - the seconds of agreed time between which none of them begins or ends, and no revocation of one does;
//! - [`Counters::moves`](crate::layout::Counters), which rises where a directory moves, or an object with several names gets, changes or loses one:
//!   the ways up from everything that has a name;
//! - the place of the object itself, which is read each time. So what is renamed, removed or new costs the others nothing.
//!
//! What follows from the decision about an object's directory follows from the same: [`Decision::inherited`].

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::mem;

use bytes::Bytes;
use quorate_credential::Rights;
use quorate_state::Lineage;
use quorate_wire::PublicKey;
use quorate_wire::mutants::{Mutant, is_on};

use crate::fs::Fs;
use crate::gate::Guest;
use crate::layout::{MAX_LINKS_PER_SUBJECT, Place};
use crate::types::Ino;
use crate::walk::MAX_STEPS;

/// How many guests are known at once. One more puts out the one that asked longest ago.
const GUESTS: usize = 64;
/// How many objects' decisions are kept for each: one of each remainder of their numbers, so that a guest which looks at
/// many puts out its own, one by one.
const OBJECTS: usize = 1024;

/// What one credential gives, by its place among the guest's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub by: u8,
    pub rights: Rights,
}

/// What a guest's credentials give with an object.
#[derive(Debug)]
pub(crate) struct Decision {
    /// Where the object had its first name.
    pub place: Place,
    /// How many objects its one way up to the root has, itself and the root among them; `None` where it has several, or does not end there.
    pub steps: Option<usize>,
    /// By which credential it is reached where no right is asked for, if any is about it.
    pub reached: Option<u8>,
    /// The prefixes to which credentials limit names in it, each once. Where there are any, what there is for a name follows from which of them it
    /// has.
    pub prefixes: Box<[Bytes]>,
    /// What is given where no name is used, or names are not limited.
    pub unnamed: Given,
    /// What is given for names, by the prefixes that they have. Of these the longest tells the others, so there is no more than one for each prefix and
    /// one for none; and all objects of a guest together have no more prefixes than it has links.
    named: Vec<(Prefixes, Given)>,
}

/// What each credential gives; only those that give something.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    /// With the object itself.
    pub here: Box<[Part]>,
    /// With something that has a name in it.
    pub below: Box<[Part]>,
}

impl Given {
    /// The first credential by which content can be used: where an operation asks for no right with an object, it is for the sake of that.
    pub fn content(&self) -> Option<u8> {
        let content = Rights::READ | Rights::WRITE | Rights::APPEND;
        let mut here = self.here.iter();
        here.find(|part| !(part.rights & content).is_empty())
            .map(|part| part.by)
    }
}

/// Which of a decision's prefixes a name has: a bit for each. A guest has no more links than bits.
pub(crate) type Prefixes = u128;

const _: () = assert!(MAX_LINKS_PER_SUBJECT as u32 <= Prefixes::BITS);

/// Which of some prefixes a name has.
pub(crate) fn prefixes_of(prefixes: &[Bytes], name: &[u8]) -> Prefixes {
    let has = prefixes.iter().map(|prefix| name.starts_with(prefix));
    has.fold(0, |bits, has| bits << 1 | Prefixes::from(has))
}

impl Decision {
    pub fn new(
        place: Place,
        steps: Option<usize>,
        reached: Option<u8>,
        prefixes: Box<[Bytes]>,
        unnamed: Given,
    ) -> Decision {
        Decision {
            place,
            steps,
            reached,
            prefixes,
            unnamed,
            named: Vec::new(),
        }
    }

    /// What follows from this, which is about a directory, for an object that has its one name in it, where no link names the object. `None`
    /// where it does not tell: the directory's own names are limited, its way is not the usual one, or the first credential that gives nothing
    /// but the object's being in scope would have to be looked for.
    pub fn inherited(&self, place: Place, is_directory: bool) -> Option<Decision> {
        let steps = self.steps.filter(|_| self.prefixes.is_empty())? + 1;
        let given = self.unnamed.below.clone();
        let unnamed = Given {
            below: if is_directory {
                given.clone()
            } else {
                Box::default()
            },
            here: given,
        };
        let reached = Some(unnamed.content()?);
        let near = steps < MAX_STEPS;
        near.then(|| Decision::new(place, Some(steps), reached, Box::default(), unnamed))
    }

    /// What is given for a name that has these, if that is known.
    pub fn named(&self, prefixes: Prefixes) -> Option<&Given> {
        let mut named = self.named.iter();
        named
            .find(|(of, _)| *of == prefixes)
            .map(|(_, given)| given)
    }
}

#[derive(Debug)]
struct Slot {
    ino: Ino,
    /// In which operation it was held against the object's place.
    held: u64,
    decision: Decision,
}

/// The decisions about a guest, as long as no directory moves.
#[derive(Debug, Default)]
pub(crate) struct Decisions {
    slots: Vec<Option<Box<Slot>>>,
}

fn slot_of(ino: Ino) -> usize {
    (ino.0 % OBJECTS as u64) as usize
}

impl Decisions {
    /// What was decided about an object, and whether that has been held against its place in this operation already.
    pub fn about(&mut self, ino: Ino, operation: u64) -> Option<(&mut Decision, bool)> {
        let slot = self.slots.get_mut(slot_of(ino))?.as_mut()?;
        if slot.ino != ino {
            return None;
        }
        let is_held = mem::replace(&mut slot.held, operation) == operation;
        Some((&mut slot.decision, is_held))
    }

    pub fn keep(&mut self, ino: Ino, operation: u64, decision: Decision) {
        if self.slots.is_empty() {
            self.slots.resize_with(OBJECTS, || None);
        }
        self.slots[slot_of(ino)] = Some(Box::new(Slot {
            ino,
            held: operation,
            decision,
        }));
    }

    /// Keeps what is given for names with some prefixes, beside what was decided about the object in this operation.
    pub fn keep_named(&mut self, ino: Ino, operation: u64, prefixes: Prefixes, given: Given) {
        let slot = self.slots.get_mut(slot_of(ino)).and_then(Option::as_mut);
        let Some(slot) = slot.filter(|slot| slot.ino == ino && slot.held == operation) else {
            return;
        };
        slot.decision.named.push((prefixes, given));
    }

    pub fn forget(&mut self, ino: Ino) {
        if let Some(slot) = self.slots.get_mut(slot_of(ino)) {
            slot.take_if(|slot| slot.ino == ino);
        }
    }

    pub fn clear(&mut self) {
        self.slots.clear();
    }
}

/// What a guest's credentials follow from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Basis {
    lineage: Lineage,
    shared: u64,
}

impl Basis {
    pub fn of(fs: &Fs<'_, '_>) -> Basis {
        Basis {
            lineage: fs.txn.lineage().clone(),
            shared: fs.counters.shared,
        }
    }

    fn is_of(&self, fs: &Fs<'_, '_>) -> bool {
        let as_shared = self.shared == fs.counters.shared || is_on(Mutant::RevocationsRemembered);
        let is_same = self.lineage == *fs.txn.lineage() || is_on(Mutant::UndoneRemembered);
        as_shared && is_same
    }
}

#[derive(Debug)]
struct Seat {
    /// Absent while an operation of the guest is at work.
    guest: Option<Box<Guest>>,
    /// When it asked last, in operations.
    asked: u64,
}

/// The guests who asked last.
#[derive(Debug)]
pub(crate) struct Memory {
    seats: BTreeMap<PublicKey, Seat>,
    operations: u64,
    is_used: bool,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory {
            seats: BTreeMap::new(),
            operations: 0,
            is_used: true,
        }
    }
}

/// A service on another thread begins with nothing.
impl Clone for Memory {
    fn clone(&self) -> Memory {
        Memory {
            is_used: self.is_used,
            ..Memory::default()
        }
    }
}

impl Memory {
    /// Keeps nothing: each decision is made anew.
    pub fn none() -> Memory {
        Memory {
            is_used: false,
            ..Memory::default()
        }
    }

    /// Those who are known.
    #[cfg(test)]
    pub(crate) fn guests(&self) -> impl Iterator<Item = &Guest> {
        self.seats.values().filter_map(|seat| seat.guest.as_deref())
    }

    /// A guest as it is now, if what is known of it still holds. It is given back by [`Memory::keep`].
    pub fn take(&mut self, fs: &Fs<'_, '_>) -> Option<Box<Guest>> {
        self.operations += 1;
        let seat = self.seats.get_mut(&fs.call.client)?;
        seat.asked = self.operations;
        let mut guest = seat.guest.take()?;
        let holds = guest.basis.is_of(fs) && guest.seconds.contains(&fs.second());
        if !holds {
            return None;
        }
        guest.begin(self.operations, fs);
        Some(guest)
    }

    /// Keeps a guest until its next operation.
    pub fn keep(&mut self, subject: PublicKey, guest: Box<Guest>) {
        if let Some(seat) = self.seats.get_mut(&subject) {
            seat.guest = Some(guest);
            return;
        }
        if !self.is_used {
            return;
        }
        if self.seats.len() >= GUESTS {
            let last = self.seats.iter().min_by_key(|(_, seat)| seat.asked);
            if let Some(last) = last.map(|(subject, _)| *subject) {
                self.seats.remove(&last);
            }
        }
        let asked = self.operations;
        let guest = Some(guest);
        self.seats.insert(subject, Seat { guest, asked });
    }
}
