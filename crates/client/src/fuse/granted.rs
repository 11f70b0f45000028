//! Locks that the group has granted to programs of this machine, and that were not given back.
//!
//! A session that ends takes its locks along, and others may have had them since. Who still takes himself for a holder must not go
//! on: what he knows of the file is old, and what he writes may go over what another holder has written. So open files through
//! which such a lock was taken fail, until it is given back or they are closed.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use quorate_files::op::{LockKind, LockSpace};

/// A lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub space: LockSpace,
    pub owner: u64,
    /// The open file through which it was taken.
    pub number: u64,
    /// That of the session which has it.
    pub generation: u64,
    pub kind: LockKind,
    pub start: u64,
    pub end: u64,
    /// Its loss was noticed.
    pub noticed: bool,
}

/// Calls under way that change an owner's locks.
#[derive(Debug)]
struct Calls {
    count: usize,
    /// What he knows that he has.
    told: Vec<Grant>,
}

#[derive(Debug, Default)]
struct Table {
    grants: Vec<Grant>,
    /// By owner.
    calls: BTreeMap<u64, Calls>,
}

/// The locks on one file.
#[derive(Debug, Default)]
pub(super) struct Granted {
    table: Mutex<Table>,
    /// Shared by all that changes locks; who undoes something has it alone.
    pub turn: tokio::sync::RwLock<()>,
}

impl Granted {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call begins that changes an owner's locks.
    pub fn begin(&self, owner: u64) {
        let table = &mut *self.table();
        let own = || table.grants.iter().filter(|g| g.owner == owner);
        let calls = table.calls.entry(owner).or_insert_with(|| Calls {
            count: 0,
            told: own().copied().collect(),
        });
        calls.count += 1;
    }

    /// One is done.
    pub fn end(&self, owner: u64) {
        let mut table = self.table();
        if let Some(calls) = table.calls.get_mut(&owner) {
            calls.count -= 1;
            if calls.count == 0 {
                table.calls.remove(&owner);
            }
        }
    }

    /// What an owner has in a range he knows by now, also if he was told otherwise.
    pub fn told(&self, space: LockSpace, owner: u64, range: (u64, u64)) {
        let table = &mut *self.table();
        if let Some(calls) = table.calls.get_mut(&owner) {
            cut(&mut calls.told, space, owner, range);
            calls
                .told
                .extend(clipped(&table.grants, space, owner, range));
        }
    }

    /// What an owner has in a range, in order.
    pub fn of(&self, space: LockSpace, owner: u64, range: (u64, u64)) -> Vec<Grant> {
        clipped(&self.table().grants, space, owner, range)
    }

    /// What an owner knows that he has in a range, if that is something else than what he has. Not while another call of his is under way:
    /// that may take what is already granted for a call of which nobody hears, as when somebody asks again and again in one name.
    pub fn to_put_back(
        &self,
        space: LockSpace,
        owner: u64,
        range: (u64, u64),
    ) -> Option<Vec<Grant>> {
        if self.is_as_told(space, owner, range) {
            return None;
        }
        let table = self.table();
        let calls = table.calls.get(&owner).filter(|calls| calls.count == 1)?;
        Some(clipped(&calls.told, space, owner, range))
    }

    /// Whether an owner has in a range what he knows that he has.
    pub fn is_as_told(&self, space: LockSpace, owner: u64, range: (u64, u64)) -> bool {
        let table = self.table();
        let shapes = |grants: &[Grant]| {
            let parts = clipped(grants, space, owner, range).into_iter();
            parts.map(|g| (g.kind, g.start, g.end)).collect::<Vec<_>>()
        };
        let told = table.calls.get(&owner).map(|calls| shapes(&calls.told));
        told.is_none_or(|told| told == shapes(&table.grants))
    }

    /// A lock was granted. What its owner had in its range is replaced. Not if he has lost one, through whichever open file: that is not
    /// made good by another. Whether it is noted.
    #[must_use]
    pub fn add(&self, mut new: Grant) -> bool {
        let grants = &mut self.table().grants;
        let lost = |g: &Grant| g.owner == new.owner && g.generation != new.generation;
        if grants.iter().any(lost) {
            return false;
        }
        cut(grants, new.space, new.owner, (new.start, new.end));
        // What touches it and is alike becomes one with it, as in the group's table: so this is not longer than that.
        let alike = |grant: &mut Grant| {
            let shape = |g: &Grant| Grant {
                start: 0,
                end: 0,
                ..*g
            };
            let touch = grant.start <= new.end.saturating_add(1)
                && new.start <= grant.end.saturating_add(1);
            touch && shape(grant) == shape(&new)
        };
        for touching in grants.extract_if(.., alike).collect::<Vec<_>>() {
            new.start = new.start.min(touching.start);
            new.end = new.end.max(touching.end);
        }
        grants.push(new);
        true
    }

    /// An owner has given back a range; or it is lost, and he knows.
    pub fn give_back(&self, space: LockSpace, owner: u64, range: (u64, u64)) {
        cut(&mut self.table().grants, space, owner, range);
    }

    /// An open file is released.
    pub fn release(&self, number: u64) {
        self.table().grants.retain(|grant| grant.number != number);
    }

    /// What an owner has in a namespace, if it has anything.
    pub fn kind(&self, space: LockSpace, owner: u64) -> Option<LockKind> {
        let grants = &self.table().grants;
        let own = grants.iter().find(|g| (g.space, g.owner) == (space, owner));
        own.map(|grant| grant.kind)
    }

    /// Whether a lock that was taken through an open file went with a session before this one.
    pub fn is_lost(&self, number: u64, generation: u64) -> bool {
        let lost = |grant: &Grant| grant.number == number && grant.generation != generation;
        self.table().grants.iter().any(lost)
    }

    /// Whether an owner has one of a session before this one.
    pub fn has_lost(&self, owner: u64, generation: u64) -> bool {
        let lost = |grant: &Grant| grant.owner == owner && grant.generation != generation;
        self.table().grants.iter().any(lost)
    }

    /// Whether anybody has one.
    pub fn is_any(&self) -> bool {
        !self.table().grants.is_empty()
    }

    /// Whether anybody has one of a session before this one.
    pub fn is_any_lost(&self, generation: u64) -> bool {
        let grants = &self.table().grants;
        grants.iter().any(|grant| grant.generation != generation)
    }

    /// Whether some were lost since this was asked last.
    pub fn notice(&self, generation: u64) -> bool {
        let grants = &mut self.table().grants;
        let lost = |grant: &&mut Grant| grant.generation != generation && !grant.noticed;
        let lost = grants.iter_mut().filter(lost);
        lost.map(|grant| grant.noticed = true).count() > 0
    }
}

/// The parts in a range of what an owner has, in order.
fn clipped(grants: &[Grant], space: LockSpace, owner: u64, (start, end): (u64, u64)) -> Vec<Grant> {
    let own = grants
        .iter()
        .filter(|g| (g.space, g.owner) == (space, owner) && g.start <= end && g.end >= start);
    let part = |g: &Grant| Grant {
        start: g.start.max(start),
        end: g.end.min(end),
        ..*g
    };
    let mut parts: Vec<Grant> = own.map(part).collect();
    parts.sort_unstable_by_key(|g| g.start);
    parts
}

/// Cuts a range out of what an owner has.
fn cut(grants: &mut Vec<Grant>, space: LockSpace, owner: u64, (start, end): (u64, u64)) {
    let mut right = Vec::new();
    grants.retain_mut(|grant| {
        if (grant.space, grant.owner) != (space, owner) || grant.start > end || grant.end < start {
            return true;
        }
        let whole = *grant;
        if whole.end > end {
            let start = end + 1;
            right.push(Grant { start, ..whole });
        }
        // What is left of it, if something is.
        grant.end = start.saturating_sub(1);
        whole.start < start
    });
    grants.append(&mut right);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(number: u64, generation: u64, (start, end): (u64, u64)) -> Grant {
        Grant {
            space: LockSpace::Posix,
            owner: 5,
            number,
            generation,
            kind: LockKind::Write,
            start,
            end,
            noticed: false,
        }
    }

    const ALL: (u64, u64) = (0, u64::MAX);

    /// Locks are lost with their session, for the files through which they were taken, until all is given back.
    #[test]
    fn locks_are_lost_until_they_are_given_back() {
        let granted = Granted::default();
        assert!(granted.add(grant(1, 7, (10, 19))));
        assert!(granted.add(grant(1, 7, (0, 4))));
        assert!(!granted.is_lost(1, 7) && granted.is_lost(1, 8) && !granted.is_lost(2, 8));
        assert!(!granted.notice(7));
        assert!(granted.notice(8) && !granted.notice(8));
        granted.give_back(LockSpace::Flock, 5, ALL);
        granted.give_back(LockSpace::Posix, 6, ALL);
        granted.give_back(LockSpace::Posix, 5, (0, 14));
        assert!(granted.is_lost(1, 8));
        granted.give_back(LockSpace::Posix, 5, (15, 19));
        assert!(!granted.is_lost(1, 8));
        assert!(granted.add(grant(1, 8, ALL)));
        granted.release(1);
        assert!(granted.table().grants.is_empty());
    }

    /// Ranges in a row are one; a range in the middle of one leaves two.
    #[test]
    fn ranges_are_joined_and_cut() {
        let granted = Granted::default();
        for at in (0..1000).chain([u64::MAX]) {
            assert!(granted.add(grant(1, 7, (at, at))));
        }
        assert_eq!(granted.table().grants.len(), 2);
        granted.give_back(LockSpace::Posix, 5, (10, 20));
        let mut ranges: Vec<_> = granted
            .table()
            .grants
            .iter()
            .map(|g| (g.start, g.end))
            .collect();
        ranges.sort_unstable();
        assert_eq!(ranges, [(0, 9), (21, 999), (u64::MAX, u64::MAX)]);
        assert!(granted.add(grant(2, 7, ALL)));
        assert_eq!(granted.table().grants.len(), 1);
        assert!(granted.is_lost(2, 8) && !granted.is_lost(1, 8));
    }

    /// What was lost is neither replaced nor taken again, through whichever open file, before it is given back.
    #[test]
    fn what_is_lost_is_not_replaced() {
        let granted = Granted::default();
        assert!(granted.add(grant(1, 7, (10, 19))));
        for (number, range) in [(1, ALL), (1, (50, 60)), (2, (10, 19))] {
            assert!(!granted.add(grant(number, 8, range)));
        }
        assert!(granted.is_lost(1, 8) && granted.has_lost(5, 8));
        assert!(!granted.has_lost(5, 7) && !granted.has_lost(6, 8));
        let other = Grant {
            owner: 6,
            ..grant(2, 8, ALL)
        };
        assert!(granted.add(other));
        granted.give_back(LockSpace::Posix, 5, ALL);
        assert!(granted.add(grant(1, 8, ALL)) && !granted.has_lost(5, 8));
    }
}
