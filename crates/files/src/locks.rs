//! Advisory locks: fcntl(2) on ranges and flock(2) on whole files, in namespaces of their own.
//!
//! Absent on purpose: waiting, and with it the search for deadlocks. Who is refused asks again.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::answer::{Answer, HeldLock};
use crate::errno::Errno;
use crate::fs::{Done, Fs};
use crate::layout::{self, LockEntry, LockTable, MAX_LOCKS, MAX_LOCKS_OF_SESSION};
use crate::needs;
use crate::op::{Lock, LockKind, LockSpace, flags};
use crate::types::{Handle, Ino};

/// How many locks all guests together may have on an object.
const MAX_OF_GUESTS: usize = MAX_LOCKS / 2;
/// How many guests one lock asks about whose locks are in its way. What is left then is asked about when it is tried again.
const GUESTS_ASKED_ABOUT: usize = 16;

impl Fs<'_, '_> {
    pub fn lock(&mut self, op: &Lock) -> Done<Answer> {
        let open = self.open_file(op.handle)?;
        check_lock(op, open.rights)?;
        let mut table = self.lock_table(open.ino)?;
        let new = LockEntry {
            space: op.space,
            session: self.session(),
            owner: op.owner,
            start: op.start,
            end: op.end,
            kind: op.kind,
            handle: op.handle,
            pid: op.pid,
        };
        if !op.test {
            self.forget_guests(open.ino, &mut table, &new)?;
        }
        let obstacle = table.locks.iter().find(|held| conflict(held, &new));
        match obstacle {
            Some(held) if op.test => {
                return Ok(Answer::Lock(Some(HeldLock {
                    kind: held.kind,
                    start: held.start,
                    end: held.end,
                    pid: held.pid,
                })));
            }
            Some(_) => return Err(Errno::EAGAIN.into()),
            None if op.test => return Ok(Answer::Lock(None)),
            None => {}
        }
        let mut locks = with(table.locks.clone(), new.clone());
        let grows = locks.len() > table.locks.len();
        if grows && !self.have_room(&locks)? {
            let mut guests = Vec::new();
            for (session, _) in by_most(&table.locks) {
                if self.is_guest(session)? {
                    guests.push(session);
                }
            }
            self.forget_some(open.ino, &mut table, guests)?;
            locks = with(table.locks.clone(), new);
            if !self.have_room(&locks)? {
                return Err(Errno::ENOLCK.into());
            }
        }
        self.put_locks(open.ino, &table.locks, &LockTable { locks })?;
        Ok(Answer::Lock(None))
    }

    /// Whether an object may have these locks. All guests together have half of the places: they need no right but to read.
    fn have_room(&self, locks: &[LockEntry]) -> Done<bool> {
        if locks.len() <= MAX_OF_GUESTS || !self.is_guest(self.session())? {
            return Ok(locks.len() <= MAX_LOCKS);
        }
        let mut of_guests = 0;
        for (session, count) in by_most(locks) {
            if self.is_guest(session)? {
                of_guests += count;
            }
        }
        Ok(locks.len() <= MAX_LOCKS && of_guests <= MAX_OF_GUESTS)
    }

    fn is_guest(&self, session: u64) -> Done<bool> {
        Ok(self.txn.get(&layout::guest_session_key(session))?.is_some())
    }

    /// Of the locks in the way, those go that their holders could not take now: guests whose credentials don't give it any more.
    fn forget_guests(&mut self, ino: Ino, table: &mut LockTable, new: &LockEntry) -> Done<()> {
        let in_way = table.locks.iter().filter(|held| conflict(held, new));
        // In their order, so each session's are in a row.
        let mut sessions: Vec<u64> = in_way.map(|held| held.session).collect();
        sessions.dedup();
        sessions.retain(|session| *session != self.session());
        self.forget_some(ino, table, sessions)
    }

    /// The same of the first of these sessions that are guests', whatever they are in the way of.
    fn forget_some(&mut self, ino: Ino, table: &mut LockTable, sessions: Vec<u64>) -> Done<()> {
        let before = table.locks.clone();
        for session in sessions.into_iter().take(GUESTS_ASKED_ABOUT) {
            let subject = self.load(&layout::guest_session_key(session))?;
            let Some(subject) = subject else { continue };
            let guest = self.guest(subject)?;
            let rights = self.rights_on(&guest, ino)?;
            table.locks.retain(|held| {
                held.session != session || rights.contains(needs::lock_right(held.kind))
            });
        }
        if table.locks.len() < before.len() {
            self.put_locks(ino, &before, table)?;
        }
        Ok(())
    }

    /// A handle is gone: with it go the locks taken through it, and if it was the session's last one on the object, all of
    /// the session's locks there. (Those of fcntl(2) that belong to a process went when it closed its descriptor; those that
    /// belong to the open file, `F_OFD_SETLK`, go now.)
    pub fn drop_locks(&mut self, ino: Ino, handle: Handle, last: bool) -> Done<()> {
        let mut table = self.lock_table(ino)?;
        let session = self.session();
        let before = table.locks.clone();
        table
            .locks
            .retain(|held| held.session != session || !(last || held.handle == handle));
        if table.locks.len() < before.len() {
            self.put_locks(ino, &before, &table)?;
        }
        Ok(())
    }

    fn lock_table(&self, ino: Ino) -> Done<LockTable> {
        let table = self.load(&layout::locks_key(ino))?;
        Ok(table.unwrap_or(LockTable { locks: Vec::new() }))
    }

    /// Notes the locks of an object, and how many their sessions have with them. `ENOLCK` if one would have more than it can.
    fn put_locks(&mut self, ino: Ino, before: &[LockEntry], table: &LockTable) -> Done<()> {
        if table.locks.is_empty() {
            self.txn.delete(layout::locks_key(ino));
        } else {
            self.put(layout::locks_key(ino), table);
        }
        let mut changes: BTreeMap<u64, i32> = BTreeMap::new();
        for held in &table.locks {
            *changes.entry(held.session).or_default() += 1;
        }
        for held in before {
            *changes.entry(held.session).or_default() -= 1;
        }
        for (session, change) in changes {
            self.count_locks(session, change)?;
        }
        Ok(())
    }

    fn count_locks(&mut self, session: u64, change: i32) -> Done<()> {
        if change == 0 {
            return Ok(());
        }
        let key = layout::lock_count_key(session);
        let count: u32 = self.load(&key)?.unwrap_or(0);
        // Who has locks of a time when none were counted has more than the count says.
        let count = count.saturating_add_signed(change);
        if change > 0 && count > MAX_LOCKS_OF_SESSION {
            return Err(Errno::ENOLCK.into());
        }
        match count {
            0 => self.txn.delete(key),
            count => self.put(key, &count),
        }
        Ok(())
    }
}

fn check_lock(op: &Lock, rights: u32) -> Result<(), Errno> {
    if op.start > op.end {
        return Err(Errno::EINVAL);
    }
    match op.space {
        LockSpace::Flock if (op.start, op.end) != (0, u64::MAX) => Err(Errno::EINVAL),
        LockSpace::Flock => Ok(()),
        // fcntl(2): the handle must allow what the lock is for; a test needs no right.
        LockSpace::Posix if op.test => Ok(()),
        LockSpace::Posix => {
            let needed = match op.kind {
                LockKind::Read => flags::READ,
                LockKind::Write => flags::WRITE,
                LockKind::Unlock => 0,
            };
            if rights & needed == needed {
                Ok(())
            } else {
                Err(Errno::EBADF)
            }
        }
    }
}

/// The sessions that have locks, with how many; those with the most first.
fn by_most(locks: &[LockEntry]) -> Vec<(u64, usize)> {
    let mut counts = BTreeMap::new();
    for held in locks {
        *counts.entry(held.session).or_insert(0) += 1;
    }
    let mut sessions: Vec<(u64, usize)> = counts.into_iter().collect();
    sessions.sort_by_key(|(session, count)| (Reverse(*count), *session));
    sessions
}

fn same_owner(a: &LockEntry, b: &LockEntry) -> bool {
    (a.space, a.session, a.owner) == (b.space, b.session, b.owner)
}

fn conflict(held: &LockEntry, new: &LockEntry) -> bool {
    let meet = held.start <= new.end && new.start <= held.end;
    let exclude = match (held.kind, new.kind) {
        (_, LockKind::Unlock) | (LockKind::Read, LockKind::Read) => false,
        (LockKind::Write | LockKind::Unlock, _) | (_, LockKind::Write) => true,
    };
    held.space == new.space && !same_owner(held, new) && meet && exclude
}

/// The locks with the owner's range set to what `new` says: what it covers is cut out of the owner's other locks,
/// and what touches it and is alike becomes one with it.
fn with(locks: Vec<LockEntry>, new: LockEntry) -> Vec<LockEntry> {
    let mut new = new;
    let mut out = Vec::with_capacity(locks.len() + 2);
    for held in locks {
        if !same_owner(&held, &new) {
            out.push(held);
            continue;
        }
        let alike = (held.kind, held.handle, held.pid) == (new.kind, new.handle, new.pid);
        // Ranges that touch count, hence the saturating neighbours.
        let touch =
            held.start <= new.end.saturating_add(1) && new.start <= held.end.saturating_add(1);
        if alike && touch {
            new.start = new.start.min(held.start);
            new.end = new.end.max(held.end);
            continue;
        }
        if held.start > new.end || held.end < new.start {
            out.push(held);
            continue;
        }
        if held.start < new.start {
            let mut left = held.clone();
            left.end = new.start - 1;
            out.push(left);
        }
        if held.end > new.end {
            let mut right = held;
            right.start = new.end + 1;
            out.push(right);
        }
    }
    if new.kind != LockKind::Unlock {
        out.push(new);
    }
    out.sort_by_key(|lock| (lock.space, lock.session, lock.owner, lock.start));
    out
}
