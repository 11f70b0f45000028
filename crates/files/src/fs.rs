//! One operation's view of the volume: typed access to keys, and accounting.

use alloc::vec::Vec;
use core::cell::RefCell;
use core::ops::Bound;

use bytes::Bytes;
use quorate_execution::Call;
use quorate_state::{Fault, Txn};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Decode, Encode};

use crate::Admission;
use crate::answer::{Answer, Attr};
use crate::errno::Errno;
use crate::layout::{self, BLOCK_BYTES, Counters, ENTRY_BYTES, FIRST_COOKIE, Inode, Place};
use crate::op::{Target, Who, access, flags};
use crate::quota::Known;
use crate::types::{Ino, Kind, Stamp};

/// Why an operation stopped: refused, or this replica's store failed.
#[derive(Debug)]
pub(crate) enum Stop {
    Refused(Errno),
    Failed(Fault),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Refused(errno)
    }
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        Stop::Failed(fault)
    }
}

pub(crate) type Done<T> = Result<T, Stop>;

/// Who asks, and on whose behalf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller<'a> {
    pub call: &'a Call,
    pub who: &'a Who,
    pub admission: &'a Admission,
}

/// The operation at work.
#[derive(Debug)]
pub(crate) struct Fs<'a, 't> {
    pub txn: &'a mut Txn<'t>,
    pub call: &'a Call,
    pub who: &'a Who,
    pub admission: &'a Admission,
    pub counters: Counters,
    loaded: Counters,
    /// The object that was asked about before the operation, which reads it again.
    asked: RefCell<Option<(Ino, Inode)>>,
    pub known: Known,
}

impl<'a, 't> Fs<'a, 't> {
    pub fn new(txn: &'a mut Txn<'t>, caller: &Caller<'a>) -> Result<Self, Fault> {
        let key = layout::counters_key();
        let missing = || Fault::value(&key, "the volume's counters are missing");
        let counters: Counters = read(txn, &key)?.ok_or_else(missing)?;
        Ok(Fs {
            txn,
            call: caller.call,
            who: caller.who,
            admission: caller.admission,
            loaded: counters.clone(),
            counters,
            asked: RefCell::new(None),
            known: Known::default(),
        })
    }

    /// The same view for somebody else.
    pub fn acting_as<'b>(self, who: &'b Who) -> Fs<'b, 't>
    where
        'a: 'b,
    {
        Fs { who, ..self }
    }

    /// Writes what is written once at the end of an operation; refuses what exceeds a quota.
    pub fn finish(&mut self) -> Done<()> {
        self.finish_quotas()?;
        if self.counters != self.loaded {
            self.put(layout::counters_key(), &self.counters.clone());
            self.loaded = self.counters.clone();
        }
        Ok(())
    }

    pub fn now(&self) -> Stamp {
        Stamp::from(self.call.now)
    }

    pub fn session(&self) -> u64 {
        self.call.session.0
    }

    pub fn load<T: Decode>(&self, key: &[u8]) -> Done<Option<T>> {
        Ok(read(self.txn, key)?)
    }

    pub fn put<T: Encode>(&mut self, key: Bytes, value: &T) {
        self.txn.put(key, Bytes::from(value.to_bytes()));
    }

    /// Up to `limit` entries from `from` and below `to`.
    pub fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Done<Vec<(Bytes, Bytes)>> {
        Ok(self
            .txn
            .range(Bound::Included(from), Bound::Excluded(to), limit)?)
    }

    /// Up to `limit` entries whose keys are made of the numbers from `first` and below `end`, where numbers lie mostly close
    /// together: looked at in windows.
    pub fn scan_numbers(
        &self,
        key: impl Fn(u64) -> Bytes,
        first: u64,
        end: u64,
        limit: usize,
    ) -> Done<Vec<(Bytes, Bytes)>> {
        let scan = |from: &Bytes, to: &Bytes, limit| self.scan(from, to, limit);
        Fs::in_windows(scan, key, (first, end), limit)
    }

    /// The keys of these entries. No value is read.
    pub fn scan_keys(
        &self,
        key: impl Fn(u64) -> Bytes,
        first: u64,
        end: u64,
        limit: usize,
    ) -> Done<Vec<Bytes>> {
        let scan = |from: &Bytes, to: &Bytes, limit| {
            let (from, to) = (Bound::Included(&from[..]), Bound::Excluded(&to[..]));
            Ok(self.txn.keys(from, to, limit)?)
        };
        Fs::in_windows(scan, key, (first, end), limit)
    }

    fn in_windows<E>(
        scan: impl Fn(&Bytes, &Bytes, usize) -> Done<Vec<E>>,
        key: impl Fn(u64) -> Bytes,
        (first, end): (u64, u64),
        limit: usize,
    ) -> Done<Vec<E>> {
        let mut out = Vec::new();
        let mut at = first;
        let mut window = limit as u64 * 2;
        while at < end && out.len() < limit {
            let stop = end.min(at.saturating_add(window));
            out.extend(scan(&key(at), &key(stop), limit - out.len())?);
            at = stop;
            // Growing, so that even 2^64 numbers are passed in few steps.
            window = window.saturating_mul(8);
        }
        Ok(out)
    }

    /// The object with a number; `ESTALE` if it is gone, or lingers.
    pub fn inode(&self, ino: Ino) -> Done<Inode> {
        let inode = self.any_inode(ino)?;
        match self.lingers(ino, &inode)? {
            true => Err(Errno::ESTALE.into()),
            false => Ok(inode),
        }
    }

    /// The object with a number, which may linger; `ESTALE` if it is gone.
    pub fn any_inode(&self, ino: Ino) -> Done<Inode> {
        match &*self.asked.borrow() {
            Some((asked, inode)) if *asked == ino => return Ok(inode.clone()),
            _ => {}
        }
        self.load(&layout::inode_key(ino))?
            .ok_or(Errno::ESTALE.into())
    }

    /// Where an object has its first name, and how many it has. For a question before the operation.
    pub fn place_of(&self, ino: Ino) -> Done<(u32, Place)> {
        let inode = self.any_inode(ino)?;
        let place = (inode.nlink, inode.place());
        self.asked.replace(Some((ino, inode)));
        Ok(place)
    }

    pub fn put_inode(&mut self, ino: Ino, inode: &Inode) {
        self.asked.replace(None);
        self.put(layout::inode_key(ino), inode);
    }

    /// Notes a change of anything. Times rise from operation to operation, so the same time is the same operation.
    pub fn touch(&self, inode: &mut Inode) {
        let now = self.now();
        if inode.ctime != now {
            inode.ctime = now;
            inode.change = inode.change.wrapping_add(1);
        }
    }

    /// Notes a change of content.
    pub fn modify(&self, inode: &mut Inode) {
        inode.mtime = self.now();
        self.touch(inode);
    }

    /// A directory in which the caller may look up names.
    pub fn search(&self, ino: Ino) -> Done<Inode> {
        let dir = self.inode(ino)?;
        if dir.kind != Kind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        self.need(ino, &dir, access::EXEC)?;
        Ok(dir)
    }

    pub fn entry(&self, dir: Ino, name: &[u8]) -> Done<Option<layout::DirEntry>> {
        self.load(&layout::entry_key(dir, name))
    }

    /// Adds an entry that is not there yet; gives its place, which is for the caller to note at the object.
    pub fn add_entry(&mut self, dir_ino: Ino, name: &[u8], child: Ino, kind: Kind) -> Done<Place> {
        self.charge(dir_ino, ENTRY_BYTES)?;
        let mut dir = self.inode(dir_ino)?;
        // A counter that only rises by one for each operation does not reach 2^64.
        let cookie = dir.next_cookie.max(FIRST_COOKIE);
        dir.next_cookie = cookie.checked_add(1).ok_or(Errno::ENOSPC)?;
        dir.size += 1;
        if kind == Kind::Directory {
            dir.nlink = dir.nlink.checked_add(1).ok_or(Errno::EMLINK)?;
        }
        self.modify(&mut dir);
        self.put_inode(dir_ino, &dir);
        let entry = layout::DirEntry {
            ino: child,
            kind,
            cookie,
        };
        self.put(layout::entry_key(dir_ino, name), &entry);
        let name = Bytes::copy_from_slice(name);
        self.txn.put(layout::cookie_key(dir_ino, cookie), name);
        Ok(Place {
            dir: dir_ino,
            cookie,
        })
    }

    /// Removes an entry that is there.
    pub fn remove_entry(
        &mut self,
        dir_ino: Ino,
        name: &[u8],
        entry: &layout::DirEntry,
    ) -> Done<()> {
        self.credit(dir_ino, ENTRY_BYTES)?;
        let mut dir = self.inode(dir_ino)?;
        dir.size -= 1;
        if entry.kind == Kind::Directory {
            dir.nlink -= 1;
        }
        self.modify(&mut dir);
        self.put_inode(dir_ino, &dir);
        self.txn.delete(layout::entry_key(dir_ino, name));
        self.txn.delete(layout::cookie_key(dir_ino, entry.cookie));
        Ok(())
    }

    /// Makes an entry that is there name another object. The name keeps its cookie: a listing under way has it
    /// once.
    pub fn replace_entry(
        &mut self,
        dir_ino: Ino,
        name: &[u8],
        old: &layout::DirEntry,
        child: Ino,
        kind: Kind,
    ) -> Done<()> {
        let mut dir = self.inode(dir_ino)?;
        if old.kind == Kind::Directory {
            dir.nlink -= 1;
        }
        if kind == Kind::Directory {
            dir.nlink = dir.nlink.checked_add(1).ok_or(Errno::EMLINK)?;
        }
        self.modify(&mut dir);
        self.put_inode(dir_ino, &dir);
        let entry = layout::DirEntry {
            ino: child,
            kind,
            cookie: old.cookie,
        };
        self.put(layout::entry_key(dir_ino, name), &entry);
        Ok(())
    }

    /// Takes a new number.
    pub fn next_number(&mut self) -> Done<u64> {
        let number = self.counters.next_ino;
        self.counters.next_ino = number.checked_add(1).ok_or(Errno::ENOSPC)?;
        Ok(number)
    }

    /// Takes space for an object, or refuses.
    pub fn charge(&mut self, ino: Ino, bytes: u64) -> Done<()> {
        let used = self.counters.used_bytes.checked_add(bytes);
        match used {
            Some(used) if used <= self.counters.capacity_bytes => {
                self.counters.used_bytes = used;
                self.count_in(ino, bytes, 0)
            }
            _ => Err(Errno::ENOSPC.into()),
        }
    }

    /// Gives an object's space back.
    pub fn credit(&mut self, ino: Ino, bytes: u64) -> Done<()> {
        self.give_back(bytes);
        self.count_out(ino, bytes, 0)
    }

    pub fn give_back(&mut self, bytes: u64) {
        assert!(self.counters.used_bytes >= bytes, "space was counted twice");
        self.counters.used_bytes -= bytes;
    }

    pub fn attr(&self, ino: Ino, inode: &Inode) -> Attr {
        attr(ino, inode)
    }

    /// An object's attributes as an answer.
    pub fn answer(&self, ino: Ino, inode: &Inode) -> Answer {
        Answer::Attr(attr(ino, inode))
    }

    /// The object of a target, and the rights of its handle if it is one.
    pub fn target(&self, target: &Target) -> Done<(Ino, Inode, Option<u32>)> {
        match target {
            Target::Ino(ino) => Ok((*ino, self.inode(*ino)?, None)),
            Target::Unopened(ino) | Target::Checked(ino) => {
                let inode = self.inode(*ino)?;
                let rights = self.without_handle(&inode);
                Ok((*ino, inode, rights))
            }
            Target::Handle(handle) => {
                let open = self.open_file(*handle)?;
                Ok((open.ino, self.inode(open.ino)?, Some(open.rights)))
            }
        }
    }

    /// As [`Fs::target`], for what changes nothing: it may linger.
    pub fn to_read(&self, target: &Target) -> Done<(Ino, Inode, Option<u32>)> {
        match target {
            Target::Checked(ino) => {
                let inode = self.any_inode(*ino)?;
                let rights = self.without_handle(&inode);
                Ok((*ino, inode, rights))
            }
            target => self.target(target),
        }
    }

    /// What the owner of a file may do with it, whatever its mode has become since it was opened.
    fn without_handle(&self, inode: &Inode) -> Option<u32> {
        let own = inode.kind == Kind::Regular && self.who.uid == inode.uid;
        own.then_some(flags::READ | flags::WRITE)
    }

    /// One name of an object is gone; with the last one the object goes, unless it is open or may be.
    pub fn drop_name(&mut self, ino: Ino, mut inode: Inode, place: Place) -> Done<()> {
        inode.nlink = match inode.kind {
            Kind::Directory => 0,
            _ => inode.nlink - 1,
        };
        self.touch(&mut inode);
        if inode.nlink > 0 {
            self.forget_name(ino, &mut inode, place)?;
        }
        self.put_inode(ino, &inode);
        if inode.nlink == 0 && !self.is_open(ino)? {
            return self.abandon(ino, &inode);
        }
        Ok(())
    }

    /// Deletes an object without names and handles.
    pub fn destroy(&mut self, ino: Ino, inode: &Inode) -> Done<()> {
        self.erase(ino, inode)?;
        self.give_back(inode.space());
        self.counters.used_inodes -= 1;
        self.leave(ino, inode)
    }

    /// Deletes what is kept of an object, which counts nowhere any more. Its content and its extended attributes are deleted later, a
    /// bounded part at a time.
    pub fn erase(&mut self, ino: Ino, inode: &Inode) -> Done<()> {
        self.asked.replace(None);
        if is_on(Mutant::NumbersReused) && self.counters.next_ino == ino.0 + 1 {
            self.counters.next_ino = ino.0;
        }
        self.txn.delete(layout::inode_key(ino));
        if inode.kind == Kind::Symlink {
            self.txn.delete(layout::symlink_key(ino));
        }
        if inode.xattrs > 0 {
            self.bury(&layout::Dead::xattrs(ino))?;
        }
        if inode.blocks > 0 {
            self.bury(&layout::Dead::content(inode.data))?;
        }
        Ok(())
    }
}

/// What others see of an object.
pub(crate) fn attr(ino: Ino, inode: &Inode) -> Attr {
    Attr {
        ino,
        kind: inode.kind,
        mode: inode.mode,
        nlink: inode.nlink,
        uid: inode.uid,
        gid: inode.gid,
        size: inode.size,
        blocks: inode.blocks * (BLOCK_BYTES / 512),
        rdev: match inode.kind {
            Kind::Block | Kind::Char => inode.rdev,
            Kind::Regular | Kind::Directory | Kind::Symlink | Kind::Fifo | Kind::Socket => 0,
        },
        atime: inode.atime,
        mtime: inode.mtime,
        ctime: inode.ctime,
        btime: inode.btime,
        change: inode.change,
        has_xattrs: inode.xattrs > 0,
    }
}

fn read<T: Decode>(txn: &Txn<'_>, key: &[u8]) -> Result<Option<T>, Fault> {
    match txn.get(key)? {
        None => Ok(None),
        Some(value) => T::from_bytes(value)
            .map(Some)
            .map_err(|e| Fault::value(key, e)),
    }
}
