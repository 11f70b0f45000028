//! Files that have neither names nor handles, and may be open all the same.
//!
//! Who opens a file to read it does not say so at once ([`Action::CheckOpen`](crate::op::Action::CheckOpen)): most files are closed
//! before anybody could be interested. So a file that loses its last name or handle *lingers*: for a while of agreed time it is
//! found by those who have it open ([`Target::Checked`](crate::op::Target::Checked)), and can be held from then on
//! ([`Hold`](crate::op::Hold)); for all others it is gone. Nothing counts it: neither the volume nor a quota. Where what lingers
//! and what is in use are together more than the volume can have, or more than [`MAX_LINGERING`] linger, the first go before their time: a few with
//! each operation, while one that lets go of what a session held may add hundreds.
//!
//! They wait in a queue, since each lingers for the same time. Nobody searches in it; a file that is held again leaves a gap. Gaps at its
//! front are passed over once: one client can make many with each operation, and must not hold up what waits behind them.

use alloc::vec::Vec;

use quorate_state::Fault;

use crate::answer::{Answer, Held};
use crate::errno::Errno;
use crate::fs::{Done, Fs, Stop};
use crate::layout::{
    self, Inode, LINGER_NANOS, LINGERING_PER_OP, Lingering, MAX_LINGERING, Waiting,
};
use crate::op::Hold;
use crate::types::{Handle, Ino, Kind};

impl Fs<'_, '_> {
    /// Whether an object is there for those alone who have it open without having said so.
    pub fn lingers(&self, ino: Ino, inode: &Inode) -> Done<bool> {
        if inode.nlink > 0 || inode.kind != Kind::Regular {
            return Ok(false);
        }
        Ok(self.txn.get(&layout::lingering_key(ino))?.is_some())
    }

    /// An object has lost its last name or handle: a file lingers, anything else is deleted.
    pub fn abandon(&mut self, ino: Ino, inode: &Inode) -> Done<()> {
        if inode.kind != Kind::Regular {
            return self.destroy(ino, inode);
        }
        self.give_back(inode.space());
        self.counters.used_inodes -= 1;
        self.count_out(ino, inode.space(), 1)?;
        let mut all = self.lingering()?;
        let place = all.next;
        all.next = place.checked_add(1).ok_or(Errno::ENOSPC)?;
        all.files += 1;
        all.bytes += inode.space();
        let until = self.call.now.0.saturating_add(LINGER_NANOS);
        self.put(layout::lingering_key(ino), &place);
        self.put(layout::waiting_key(place), &Waiting { ino, until });
        self.put_lingering(&all);
        Ok(())
    }

    fn lingering(&self) -> Done<Lingering> {
        let none = Lingering {
            first: 0,
            next: 0,
            files: 0,
            bytes: 0,
        };
        let all = self.load(&layout::lingering_all_key())?;
        Ok(all.unwrap_or(none))
    }

    fn put_lingering(&mut self, all: &Lingering) {
        let key = layout::lingering_all_key();
        match all.files {
            0 => self.txn.delete(key),
            _ => self.put(key, all),
        }
    }

    /// A file lingers no more: its rows for that go.
    fn forget_lingering(
        &mut self,
        ino: Ino,
        inode: &Inode,
        place: u64,
        all: &mut Lingering,
    ) -> Done<()> {
        let counted = all
            .files
            .checked_sub(1)
            .zip(all.bytes.checked_sub(inode.space()));
        let wrong = || {
            let key = layout::lingering_all_key();
            Fault::value(&key, "what lingers is counted wrong")
        };
        (all.files, all.bytes) = counted.ok_or_else(wrong)?;
        self.txn.delete(layout::lingering_key(ino));
        self.txn.delete(layout::waiting_key(place));
        Ok(())
    }

    /// Deletes some files that have lingered long enough, or are in the way.
    pub fn end_lingering(&mut self) -> Done<()> {
        let mut all = self.lingering()?;
        let before = all.clone();
        for _ in 0..LINGERING_PER_OP {
            if all.files == 0 {
                break;
            }
            let Waiting { ino, until } = self.first_waiting(&mut all)?;
            if until > self.call.now.0 && !self.is_crowded(&all) {
                break;
            }
            let (inode, place) = (self.any_inode(ino)?, all.first);
            self.forget_lingering(ino, &inode, place, &mut all)?;
            self.erase(ino, &inode)?;
            self.txn.delete(layout::member_key(ino));
            all.first = place + 1;
        }
        if all != before {
            self.put_lingering(&all);
        }
        Ok(())
    }

    /// Who waits in the first place that is not empty, which becomes the first of all. There is one.
    fn first_waiting(&self, all: &mut Lingering) -> Done<Waiting> {
        // Mostly it is the first already.
        if let Some(waiting) = self.load(&layout::waiting_key(all.first))? {
            return Ok(waiting);
        }
        let missing = || {
            let key = layout::lingering_all_key();
            Fault::value(&key, "what lingers waits nowhere")
        };
        let found = self.scan_keys(layout::waiting_key, all.first, all.next, 1)?;
        let key = found.first().ok_or_else(missing)?;
        all.first = layout::number_at(key, 0).ok_or_else(missing)?;
        Ok(self.load(key)?.ok_or_else(missing)?)
    }

    fn is_crowded(&self, all: &Lingering) -> bool {
        let counters = &self.counters;
        all.files > MAX_LINGERING
            || counters.used_bytes.saturating_add(all.bytes) > counters.capacity_bytes
            || counters.used_inodes.saturating_add(all.files) > counters.capacity_inodes
    }

    pub fn hold(&mut self, op: &Hold) -> Done<Answer> {
        for ino in &op.let_go {
            if let Some(held) = self.held(*ino)? {
                self.release(held)?;
            }
        }
        let mut gone = Vec::new();
        for ino in &op.keep {
            if !self.hold_one(*ino)? {
                gone.push(*ino);
            }
        }
        Ok(Answer::Held(Held { gone }))
    }

    /// The handle by which this session holds a file, if it does.
    pub fn held(&self, ino: Ino) -> Done<Option<Handle>> {
        let Some(handle) = Handle::held(ino) else {
            return Ok(None);
        };
        let key = layout::open_key(self.session(), handle.number);
        Ok(self.txn.get(&key)?.map(|_| handle))
    }

    /// Holds a file. False if it is gone.
    fn hold_one(&mut self, ino: Ino) -> Done<bool> {
        if self.held(ino)?.is_some() {
            return Ok(true);
        }
        let inode = match self.any_inode(ino) {
            Ok(inode) if inode.kind == Kind::Regular => inode,
            Ok(_) | Err(Stop::Refused(_)) => return Ok(false),
            Err(fault) => return Err(fault),
        };
        if self.lingers(ino, &inode)? && !self.revive(ino, &inode)? {
            return Ok(false);
        }
        let handle = Handle::held(ino).ok_or(Errno::ENFILE)?;
        self.note_open(handle, 0)?;
        Ok(true)
    }

    /// Counts a file again that lingers. False if there is no room for it any more.
    fn revive(&mut self, ino: Ino, inode: &Inode) -> Done<bool> {
        let key = layout::lingering_key(ino);
        let place: Option<u64> = self.load(&key)?;
        let Some(place) = place else {
            return Ok(false);
        };
        let bytes = inode.space();
        let counters = &self.counters;
        let used = counters.used_bytes.saturating_add(bytes);
        let fits =
            used <= counters.capacity_bytes && counters.used_inodes < counters.capacity_inodes;
        if !fits || !self.has_room(ino, bytes, 1)? {
            return Ok(false);
        }
        self.counters.used_bytes = used;
        self.counters.used_inodes += 1;
        self.count_in(ino, bytes, 1)?;
        let mut all = self.lingering()?;
        self.forget_lingering(ino, inode, place, &mut all)?;
        self.put_lingering(&all);
        Ok(true)
    }
}
