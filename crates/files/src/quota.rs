//! Quotas of directories, as XFS has them for projects: limits of what is in a directory and below it.
//!
//! Each object counts under one quota or none, and knows which: that of the directory it was made in. So an operation counts without
//! looking for what is above an object, and what is a quota's is told by the rows alone. An object comes under another quota when it
//! is moved to where that counts, if it can be moved in one step: anything but a directory that has entries, or a file that has more names.
//! These are `EXDEV`, as between volumes, and so is a further name elsewhere.
//!
//! A directory that has entries when it gets a quota is adopted step by step ([`Adopt`]); what is made in it meanwhile counts at once.
//! A quota within another counts alone. When a quota is taken away its rows mean nothing, as its number is never used again.
//!
//! What an operation adds and takes away is counted as it goes, and compared with the limits at its end.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use bytes::Bytes;

use crate::answer::{Adopted, Answer, QuotaRow, Quotas as QuotaRows, StatFs};
use crate::errno::Errno;
use crate::fs::{Done, Fs};
use crate::grants::MAX_PATH_BYTES;
use crate::layout::{self, DirEntry, ENTRY_BYTES, FIRST_COOKIE, Inode, MAX_QUOTAS, Quota};
use crate::op::{Adopt, MAX_QUOTA_ROWS, Quotas, SetQuota};
use crate::types::{Ino, Kind, Nothing};

/// What an operation knows of quotas.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Under which quota objects count.
    of: BTreeMap<Ino, Option<u64>>,
    /// Quotas as they were, and as they are.
    quotas: BTreeMap<u64, Option<(Quota, Quota)>>,
    /// Whether what is there already is counted: then there can be more than the limits say.
    adopts: bool,
}

/// What an object counts as.
#[derive(Clone, Copy, Debug)]
struct Weight {
    bytes: u64,
    files: u64,
}

impl Weight {
    fn of(inode: &Inode) -> Weight {
        let entries = match inode.kind {
            Kind::Directory => inode.size,
            _ => 0,
        };
        Weight {
            bytes: inode.space() + entries * ENTRY_BYTES,
            files: 1,
        }
    }
}

impl Fs<'_, '_> {
    /// The number of the quota that an object counts under.
    pub fn quota_of(&mut self, ino: Ino) -> Done<Option<u64>> {
        if let Some(number) = self.known.of.get(&ino) {
            return Ok(*number);
        }
        let noted: Option<u64> = self.load(&layout::member_key(ino))?;
        let number = match noted {
            Some(number) if self.quota(number)?.is_some() => Some(number),
            Some(_) | None => None,
        };
        self.known.of.insert(ino, number);
        Ok(number)
    }

    fn quota(&mut self, number: u64) -> Done<Option<&mut Quota>> {
        if !self.known.quotas.contains_key(&number) {
            let quota: Option<Quota> = self.load(&layout::quota_key(number))?;
            let pair = quota.map(|quota| (quota.clone(), quota));
            self.known.quotas.insert(number, pair);
        }
        let pair = self.known.quotas.get_mut(&number);
        Ok(pair.and_then(Option::as_mut).map(|(_, now)| now))
    }

    /// Counts what is added to what an object counts under.
    pub fn count_in(&mut self, ino: Ino, bytes: u64, files: u64) -> Done<()> {
        if let Some(number) = self.quota_of(ino)?
            && let Some(quota) = self.quota(number)?
        {
            // Each is a part of what the volume has, which is counted before.
            quota.used_bytes = quota.used_bytes.checked_add(bytes).ok_or(Errno::EDQUOT)?;
            quota.used_files = quota.used_files.checked_add(files).ok_or(Errno::EDQUOT)?;
        }
        Ok(())
    }

    /// Whether what an object counts under has room for more.
    pub fn has_room(&mut self, ino: Ino, bytes: u64, files: u64) -> Done<bool> {
        let Some(number) = self.quota_of(ino)? else {
            return Ok(true);
        };
        let fits = |limit: Option<u64>, used: u64, more: u64| {
            limit.is_none_or(|limit| used.saturating_add(more) <= limit)
        };
        Ok(self.quota(number)?.is_none_or(|quota| {
            fits(quota.limits.bytes, quota.used_bytes, bytes)
                && fits(quota.limits.files, quota.used_files, files)
        }))
    }

    /// Counts what is taken away.
    pub fn count_out(&mut self, ino: Ino, bytes: u64, files: u64) -> Done<()> {
        if let Some(number) = self.quota_of(ino)?
            && let Some(quota) = self.quota(number)?
        {
            let fits = quota.used_bytes >= bytes && quota.used_files >= files;
            assert!(fits, "a quota was counted wrong");
            quota.used_bytes -= bytes;
            quota.used_files -= files;
        }
        Ok(())
    }

    /// Refuses what is too much, and writes what is counted.
    pub fn finish_quotas(&mut self) -> Done<()> {
        let quotas = core::mem::take(&mut self.known.quotas);
        for (number, pair) in &quotas {
            let Some((before, now)) = pair else { continue };
            if before == now {
                continue;
            }
            let exceeds = |limit: Option<u64>, before: u64, now: u64| {
                now > before && limit.is_some_and(|limit| now > limit)
            };
            let bytes = exceeds(now.limits.bytes, before.used_bytes, now.used_bytes);
            let files = exceeds(now.limits.files, before.used_files, now.used_files);
            if (bytes || files) && !self.known.adopts {
                return Err(Errno::EDQUOT.into());
            }
            self.put(layout::quota_key(*number), now);
        }
        Ok(())
    }

    /// A new object counts under what its directory does.
    pub fn join(&mut self, ino: Ino, dir: Ino) -> Done<()> {
        let number = self.quota_of(dir)?;
        self.known.of.insert(ino, number);
        if let Some(number) = number {
            self.put(layout::member_key(ino), &number);
        }
        self.count_in(ino, 0, 1)
    }

    /// An object is gone, with all that counted for it but its entries.
    pub fn leave(&mut self, ino: Ino, inode: &Inode) -> Done<()> {
        let noted: Option<u64> = self.load(&layout::member_key(ino))?;
        let Some(noted) = noted else { return Ok(()) };
        let weight = Weight::of(inode);
        self.count_out(ino, weight.bytes, weight.files)?;
        if self.quota(noted)?.is_some_and(|quota| quota.dir == ino) {
            self.forget_quota(noted);
        }
        self.txn.delete(layout::member_key(ino));
        self.known.of.insert(ino, None);
        Ok(())
    }

    fn forget_quota(&mut self, number: u64) {
        self.txn.delete(layout::quota_key(number));
        self.known.quotas.insert(number, None);
        self.known.of.clear();
    }

    /// Whether an object is the directory that has a quota.
    fn has_quota(&mut self, ino: Ino) -> Done<bool> {
        let Some(number) = self.quota_of(ino)? else {
            return Ok(false);
        };
        Ok(self.quota(number)?.is_some_and(|quota| quota.dir == ino))
    }

    /// A name of an object moves from one directory to another, or takes the place of another name: the object counts where that does.
    ///
    /// Also if both directories count alike: what an adoption has not come to yet could else move to where that has been already.
    pub fn move_quota(&mut self, ino: Ino, inode: &Inode, from: Ino, to: Ino) -> Done<()> {
        let from = self.quota_of(from)?;
        let to = self.quota_of(to)?;
        let own = self.quota_of(ino)?;
        if own == to || self.has_quota(ino)? {
            return Ok(());
        }
        let names = inode.kind != Kind::Directory && inode.nlink > 1;
        if names && from == to && own.is_some() {
            // It counts where another of its names is.
            return Ok(());
        }
        let is_one = match inode.kind {
            Kind::Directory => inode.size == 0,
            _ => !names,
        };
        if !is_one {
            return Err(Errno::EXDEV.into());
        }
        self.change_quota(ino, inode, to)
    }

    /// A further name of an object must be where it counts.
    pub fn check_link(&mut self, ino: Ino, dir: Ino) -> Done<()> {
        match self.quota_of(ino)? == self.quota_of(dir)? {
            true => Ok(()),
            false => Err(Errno::EXDEV.into()),
        }
    }

    /// Has an object count elsewhere.
    fn change_quota(&mut self, ino: Ino, inode: &Inode, to: Option<u64>) -> Done<()> {
        let weight = Weight::of(inode);
        self.count_out(ino, weight.bytes, weight.files)?;
        self.known.of.insert(ino, to);
        match to {
            Some(number) => self.put(layout::member_key(ino), &number),
            None => self.txn.delete(layout::member_key(ino)),
        }
        self.count_in(ino, weight.bytes, weight.files)
    }

    fn must_manage_quotas(&self) -> Done<()> {
        match self.who.is_root() && self.admission.is_member(&self.call.client) {
            true => Ok(()),
            false => Err(Errno::EPERM.into()),
        }
    }

    pub fn set_quota(&mut self, op: &SetQuota) -> Done<Answer> {
        self.must_manage_quotas()?;
        let inode = self.inode(op.dir)?;
        match inode.kind {
            Kind::Directory if inode.nlink == 0 => return Err(Errno::ENOENT.into()),
            Kind::Directory => {}
            _ => return Err(Errno::ENOTDIR.into()),
        }
        let own = match self.has_quota(op.dir)? {
            true => self.quota_of(op.dir)?,
            false => None,
        };
        match (own, &op.limits) {
            (None, None) => return Err(Errno::ENODATA.into()),
            (Some(number), None) => {
                self.forget_quota(number);
                self.txn.delete(layout::member_key(op.dir));
            }
            (Some(number), Some(limits)) => {
                if let Some(quota) = self.quota(number)? {
                    quota.limits = limits.clone();
                }
            }
            (None, Some(limits)) => {
                let (from, to) = layout::quota_range(0);
                if self.scan(&from, &to, MAX_QUOTAS)?.len() >= MAX_QUOTAS {
                    return Err(Errno::ENOSPC.into());
                }
                let number = self.next_number()?;
                let quota = Quota {
                    dir: op.dir,
                    limits: limits.clone(),
                    used_bytes: 0,
                    used_files: 0,
                };
                self.known.adopts = true;
                let pair = Some((quota.clone(), quota));
                self.known.quotas.insert(number, pair);
                self.change_quota(op.dir, &inode, Some(number))?;
            }
        }
        Ok(Answer::Done(Nothing))
    }

    pub fn adopt(&mut self, op: &Adopt) -> Done<Answer> {
        self.must_manage_quotas()?;
        let dir = self.inode(op.dir)?;
        if dir.kind != Kind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        let number = self.quota_of(op.dir)?.ok_or(Errno::ENODATA)?;
        self.known.adopts = true;
        let first = op.after.saturating_add(1).max(FIRST_COOKIE);
        let key = |cookie| layout::cookie_key(op.dir, cookie);
        let limit = MAX_QUOTA_ROWS as usize;
        let found = self.scan_numbers(key, first, dir.next_cookie, limit)?;
        let next = match found.last() {
            Some((key, _)) if found.len() == limit => layout::number_at(key, 1),
            Some(_) | None => None,
        };
        let (mut dirs, mut adopted) = (Vec::new(), 0);
        for (_, name) in found {
            let Some(DirEntry { ino, kind, .. }) = self.entry(op.dir, &name)? else {
                continue;
            };
            if self.has_quota(ino)? {
                // A quota of its own counts alone.
                continue;
            }
            if self.quota_of(ino)? != Some(number) {
                let inode = self.inode(ino)?;
                self.change_quota(ino, &inode, Some(number))?;
                adopted += 1;
            }
            if kind == Kind::Directory {
                dirs.push(ino);
            }
        }
        Ok(Answer::Adopted(Adopted {
            dirs,
            adopted,
            next,
        }))
    }

    pub fn quotas(&mut self, op: &Quotas) -> Done<Answer> {
        let mut quotas = Vec::new();
        let mut next = None;
        match op.about {
            Some(ino) => {
                self.inode(ino)?;
                if let Some(number) = self.quota_of(ino)? {
                    quotas.extend(self.quota_row(number)?);
                }
            }
            None => {
                self.must_manage_quotas()?;
                let (from, to) = layout::quota_range(op.after.saturating_add(1));
                let limit = MAX_QUOTA_ROWS as usize;
                let found = self.scan(&from, &to, limit)?;
                let numbers = found.iter().map(|(key, _)| layout::number_at(key, 0));
                let numbers: Vec<u64> = numbers.flatten().collect();
                next = numbers.last().copied().filter(|_| numbers.len() == limit);
                for number in numbers {
                    quotas.extend(self.quota_row(number)?);
                }
            }
        }
        Ok(Answer::Quotas(QuotaRows { quotas, next }))
    }

    fn quota_row(&mut self, number: u64) -> Done<Option<QuotaRow>> {
        let Some(quota) = self.quota(number)?.cloned() else {
            return Ok(None);
        };
        let path = match self.must_manage_quotas() {
            Ok(()) => self.path(quota.dir)?,
            Err(_) => Bytes::new(),
        };
        Ok(Some(QuotaRow {
            number,
            dir: quota.dir,
            path,
            limits: quota.limits,
            used_bytes: quota.used_bytes,
            used_files: quota.used_files,
        }))
    }

    /// Where a directory is, as people write it; the end of that where it is longer than a listing can bear.
    fn path(&self, dir: Ino) -> Done<Bytes> {
        let mut path = Vec::new();
        let walks = self.walks(dir, true)?;
        let Some(walk) = walks.first() else {
            return Ok(Bytes::new());
        };
        let (root, names) = match walk.split_last() {
            Some((root, names)) => (root.0, names),
            None => return Ok(Bytes::new()),
        };
        if root != crate::walk::object(Ino::ROOT) {
            return Ok(Bytes::new());
        }
        for (_, name) in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        // Whoever may rename what lies above can make it as long as 256 names are; its end says most.
        let from = path.len().saturating_sub(MAX_PATH_BYTES);
        Ok(Bytes::copy_from_slice(&path[from..]))
    }

    /// The volume, or what the quota leaves of it that an object counts under.
    pub fn stat_fs_of(&mut self, ino: Ino) -> Done<Answer> {
        self.inode(ino)?;
        let mut stat: StatFs = self.stat();
        let quota = match self.quota_of(ino)? {
            Some(number) => self.quota(number)?.cloned(),
            None => None,
        };
        if let Some(quota) = quota {
            let within = |limit: Option<u64>, used: u64, capacity: u64, all: u64| {
                let free = capacity.saturating_sub(all);
                let most = used.saturating_add(free);
                limit.map_or(most, |limit| limit.min(most)).max(used)
            };
            stat.capacity = within(
                quota.limits.bytes,
                quota.used_bytes,
                stat.capacity,
                stat.used,
            );
            stat.used = quota.used_bytes;
            stat.inodes = within(
                quota.limits.files,
                quota.used_files,
                stat.inodes,
                stat.used_inodes,
            );
            stat.used_inodes = quota.used_files;
        }
        Ok(Answer::StatFs(stat))
    }
}
