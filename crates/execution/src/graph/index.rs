//! Who touches what among the operations that are not done: finds those that a new operation has to wait for.
//!
//! Whoever changes a scope waits for all who touched it before, so it stands for them from then on: the index keeps for
//! each scope the last one to change it and those who read it since. So a chain of changes costs the same at each link,
//! however long it is.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use quorate_wire::mutants::{Mutant, is_on};

use super::uses::{Mode, Scope, Use};
use super::{After, OpId};

#[derive(Debug, Default)]
pub(super) struct Index {
    everything: Slot,
    classes: BTreeMap<u32, Class>,
}

#[derive(Debug, Default)]
struct Class {
    slot: Slot,
    objects: BTreeMap<u64, Object>,
}

#[derive(Debug, Default)]
struct Object {
    slot: Slot,
    ranges: Vec<Part>,
}

/// The users of one scope.
#[derive(Debug, Default)]
struct Slot {
    changer: Option<OpId>,
    /// Those who read it after the last change. The oldest are the first to be done.
    readers: VecDeque<OpId>,
}

#[derive(Debug)]
struct Part {
    scope: Scope,
    mode: Mode,
    id: OpId,
}

/// What a later use has to wait for, given an earlier one of an overlapping scope. Writes of a run step are buffered
/// until their operation is done, so a later run step may well write beside an earlier one that reads.
fn after(earlier: Mode, later: Mode) -> Option<After> {
    match (earlier, later) {
        (Mode::Read, Mode::Write) if is_on(Mutant::WritesOverReads) => None,
        (Mode::Read, Mode::Settle) if is_on(Mutant::SettlesOverReads) => None,
        (Mode::Write | Mode::Settle, Mode::Read) if is_on(Mutant::ReadsBesideChanges) => None,
        (Mode::Write | Mode::Settle, Mode::Settle) if is_on(Mutant::SettlesOverChanges) => None,
        (Mode::Write | Mode::Settle, Mode::Write) if is_on(Mutant::WritesBesideChanges) => {
            Some(After::Settle)
        }
        (Mode::Read, Mode::Read) => None,
        (_, Mode::Settle) | (Mode::Read, Mode::Write) => Some(After::Settle),
        (Mode::Write | Mode::Settle, Mode::Read | Mode::Write) => Some(After::Run),
    }
}

impl Index {
    /// Calls `found` with each operation in the index that this use has to wait for; with some more than once.
    pub fn conflicts(&self, new: &Use, found: &mut impl FnMut(OpId, After)) {
        if !is_on(Mutant::EverythingOverlooked) {
            self.everything.conflicts(new.mode, found);
        }
        match new.scope {
            Scope::Everything if is_on(Mutant::ClassesOverlooked) => {}
            Scope::Everything => {
                for class in self.classes.values() {
                    class.conflicts_below(new, found);
                }
            }
            Scope::Class(class) => {
                if let Some(class) = self.classes.get(&class) {
                    class.conflicts_below(new, found);
                }
            }
            Scope::Object(class, object) | Scope::Range(class, object, ..) => {
                let Some(class) = self.classes.get(&class) else {
                    return;
                };
                if !is_on(Mutant::ClassOverlooked) {
                    class.slot.conflicts(new.mode, found);
                }
                if let Some(object) = class.objects.get(&object) {
                    object.conflicts(new, found);
                }
            }
        }
    }

    /// Notes a use of an operation that waits for all that it conflicts with.
    pub fn add(&mut self, new: &Use, id: OpId) {
        let changes = new.mode != Mode::Read || is_on(Mutant::ReadersHide);
        match new.scope {
            Scope::Everything => {
                if changes {
                    self.classes.clear();
                }
                self.everything.add(new.mode, id);
            }
            Scope::Class(class) => {
                let class = self.classes.entry(class).or_default();
                if changes {
                    class.objects.clear();
                }
                class.slot.add(new.mode, id);
            }
            Scope::Object(class, object) => {
                let object = self.object(class, object);
                if changes {
                    object.ranges.clear();
                }
                object.slot.add(new.mode, id);
            }
            Scope::Range(class, object, from, to) => {
                let ranges = &mut self.object(class, object).ranges;
                if changes {
                    let meets = |part: &Part| part.scope.overlaps(new.scope);
                    let is_hidden = |part: &Part| {
                        part.lies_in(from, to) || (is_on(Mutant::PartsHidden) && meets(part))
                    };
                    ranges.retain(|part| !is_hidden(part));
                }
                ranges.push(Part {
                    scope: new.scope,
                    mode: new.mode,
                    id,
                });
            }
        }
    }

    /// Forgets a use of an operation that is done.
    pub fn remove(&mut self, old: &Use, id: OpId) {
        match old.scope {
            Scope::Everything => self.everything.remove(id),
            Scope::Class(number) => {
                if let Some(class) = self.classes.get_mut(&number) {
                    class.slot.remove(id);
                    self.tidy(number);
                }
            }
            Scope::Object(number, object) | Scope::Range(number, object, ..) => {
                let Some(class) = self.classes.get_mut(&number) else {
                    return;
                };
                if let Some(entry) = class.objects.get_mut(&object) {
                    match old.scope {
                        Scope::Range(..) => entry.ranges.retain(|part| part.id != id),
                        _ => entry.slot.remove(id),
                    }
                    if entry.slot.is_empty() && entry.ranges.is_empty() {
                        class.objects.remove(&object);
                        self.tidy(number);
                    }
                }
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.everything.is_empty() && self.classes.is_empty()
    }

    fn object(&mut self, class: u32, object: u64) -> &mut Object {
        let class = self.classes.entry(class).or_default();
        class.objects.entry(object).or_default()
    }

    fn tidy(&mut self, number: u32) {
        let empty = |class: &Class| class.slot.is_empty() && class.objects.is_empty();
        if self.classes.get(&number).is_some_and(empty) {
            self.classes.remove(&number);
        }
    }
}

impl Class {
    fn conflicts_below(&self, new: &Use, found: &mut impl FnMut(OpId, After)) {
        self.slot.conflicts(new.mode, found);
        if is_on(Mutant::ObjectsOverlooked) {
            return;
        }
        for object in self.objects.values() {
            object.conflicts(new, found);
        }
    }
}

impl Object {
    fn conflicts(&self, new: &Use, found: &mut impl FnMut(OpId, After)) {
        let is_range = matches!(new.scope, Scope::Range(..));
        if !is_range || !is_on(Mutant::ObjectOverlooked) {
            self.slot.conflicts(new.mode, found);
        }
        if !is_range && is_on(Mutant::RangesOverlooked) {
            return;
        }
        for part in &self.ranges {
            if part.scope.overlaps(new.scope)
                && let Some(after) = after(part.mode, new.mode)
            {
                found(part.id, after);
            }
        }
    }
}

impl Slot {
    fn conflicts(&self, new: Mode, found: &mut impl FnMut(OpId, After)) {
        if let (Some(changer), Some(after)) = (self.changer, after(Mode::Settle, new)) {
            found(changer, after);
        }
        if let Some(after) = after(Mode::Read, new) {
            self.readers.iter().for_each(|&reader| found(reader, after));
        }
    }

    fn add(&mut self, mode: Mode, id: OpId) {
        match mode {
            Mode::Read => {
                self.readers.push_back(id);
                if is_on(Mutant::ReadersHideChanger) {
                    self.changer = None;
                }
            }
            Mode::Write | Mode::Settle => {
                self.changer = Some(id);
                self.readers.clear();
            }
        }
    }

    fn remove(&mut self, id: OpId) {
        if self.changer == Some(id) || is_on(Mutant::LaterForgotten) {
            self.changer = None;
        }
        if let Some(at) = self.readers.iter().position(|&reader| reader == id) {
            self.readers.remove(at);
        }
    }

    fn is_empty(&self) -> bool {
        self.changer.is_none() && self.readers.is_empty()
    }
}

impl Part {
    fn lies_in(&self, from: u64, to: u64) -> bool {
        match self.scope {
            Scope::Range(_, _, start, end) => from <= start && end <= to,
            Scope::Everything | Scope::Class(_) | Scope::Object(..) => false,
        }
    }
}
