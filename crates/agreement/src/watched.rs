//! Values that know how often they may have changed, so that who looks at them after each input need not look at all of them again
//! ([`Agreement::invariants_since`](crate::Agreement::invariants_since)).

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::{Entry, IterMut, RangeMut, ValuesMut};
use core::ops::{Deref, DerefMut, RangeToInclusive};

use quorate_wire::{Seq, View};

use crate::slot::Slot;

/// How many of the last changes of places are kept apart.
const RECENT: u64 = 16;

/// A value with a count of how often it was lent out to be changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watched<T> {
    value: T,
    changes: u64,
}

impl<T> Watched<T> {
    /// A value that has not changed yet.
    pub fn new(value: T) -> Watched<T> {
        Watched { value, changes: 0 }
    }

    /// Rises whenever it may have changed.
    pub fn changes(&self) -> u64 {
        self.changes
    }
}

impl<T> Deref for Watched<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Watched<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.changes += 1;
        &mut self.value
    }
}

/// The places of the log, and which of them may have changed last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots {
    all: BTreeMap<Seq, Slot>,
    changes: u64,
    recent: [Seq; RECENT as usize],
}

impl Slots {
    fn touch(&mut self, seq: Seq) {
        self.recent[(self.changes % RECENT) as usize] = seq;
        self.changes += 1;
    }

    fn touch_all(&mut self) {
        // As many as the recent ones do not tell of.
        self.changes += RECENT + 1;
    }

    /// Rises whenever a place may have changed.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// The places that may have changed since there were so many changes; `None`: any of them.
    pub fn changed_since(&self, changes: u64) -> Option<impl Iterator<Item = Seq>> {
        let count = self.changes.checked_sub(changes)?;
        let recent = changes..self.changes;
        (count <= RECENT).then(|| recent.map(|n| self.recent[(n % RECENT) as usize]))
    }

    /// A place, to change it.
    pub fn get_mut(&mut self, seq: &Seq) -> Option<&mut Slot> {
        self.touch(*seq);
        self.all.get_mut(seq)
    }

    /// A place, or where it is to be.
    pub fn entry(&mut self, seq: Seq) -> Entry<'_, Seq, Slot> {
        self.touch(seq);
        self.all.entry(seq)
    }

    /// All places, to change them.
    pub fn iter_mut(&mut self) -> IterMut<'_, Seq, Slot> {
        self.touch_all();
        self.all.iter_mut()
    }

    /// All places, to change them.
    pub fn values_mut(&mut self) -> ValuesMut<'_, Seq, Slot> {
        self.touch_all();
        self.all.values_mut()
    }

    /// The first places, to change them.
    pub fn range_mut(&mut self, range: RangeToInclusive<Seq>) -> RangeMut<'_, Seq, Slot> {
        self.touch_all();
        self.all.range_mut(range)
    }

    /// Forgets the places before one.
    pub fn keep_from(&mut self, first: Seq) {
        self.touch_all();
        self.all = self.all.split_off(&first);
    }
}

impl From<BTreeMap<Seq, Slot>> for Slots {
    fn from(all: BTreeMap<Seq, Slot>) -> Slots {
        Slots {
            all,
            ..Slots::default()
        }
    }
}

impl Deref for Slots {
    type Target = BTreeMap<Seq, Slot>;

    fn deref(&self) -> &BTreeMap<Seq, Slot> {
        &self.all
    }
}

/// How far somebody has looked at the invariants of a core.
#[derive(Clone, Debug, Default)]
pub struct Seen(pub(crate) Option<Marks>);

/// What there was when they were looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    pub view: View,
    pub awaiting: u64,
    pub slots: u64,
    pub pool: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn changed(slots: &Slots, since: u64) -> Option<Vec<u64>> {
        let changed = slots.changed_since(since)?;
        Some(changed.map(|seq| seq.0).collect())
    }

    /// Each place that was lent out since is named; where there were too many, or all were, any place may have changed.
    #[test]
    fn what_changed_is_named() {
        let mut slots = Slots::default();
        assert_eq!(changed(&slots, 0), Some(Vec::new()));
        for seq in 1..=20 {
            let before = slots.changes();
            slots.entry(Seq(seq)).or_default();
            assert_eq!(changed(&slots, before), Some(alloc::vec![seq]));
        }
        assert_eq!(changed(&slots, 0), None);
        assert_eq!(changed(&slots, 4), Some((5..=20).collect()));
        assert_eq!(changed(&slots, 3), None);
        let before = slots.changes();
        assert!(slots.get_mut(&Seq(7)).is_some());
        assert_eq!(slots.range(Seq(9)..).count(), 12);
        assert_eq!(changed(&slots, before), Some(alloc::vec![7]));
        type Change = fn(&mut Slots);
        let changes: [Change; 4] = [
            |slots| drop(slots.iter_mut()),
            |slots| drop(slots.values_mut()),
            |slots| drop(slots.range_mut(..=Seq(3))),
            |slots| slots.keep_from(Seq(5)),
        ];
        for change in changes {
            let before = slots.changes();
            change(&mut slots);
            assert_eq!(changed(&slots, before), None);
            assert_eq!(changed(&slots, slots.changes()), Some(Vec::new()));
        }
        assert_eq!(slots.len(), 16);
    }

    /// To read a value changes nothing.
    #[test]
    fn who_borrows_to_change_is_counted() {
        let mut value = Watched::new(Vec::new());
        assert!(value.is_empty() && value.changes() == 0);
        value.push(1);
        assert_eq!((value.len(), value.changes()), (1, 1));
    }
}
