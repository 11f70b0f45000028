//! The content of files: reading, writing, cutting off. Allocation, holes and seeking are in [`crate::ranges`].

use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;
use quorate_state::Fault;
use quorate_wire::record;

use crate::answer::{Answer, Attr, Data, Progress, Version, Written};
use crate::errno::Errno;
use crate::extent::{self, Extent, Stored};
use crate::fs::{Done, Fs};
use crate::layout::{
    self, BLOCK_BYTES, CHUNK_BYTES, CHUNKS_PER_OP, Dead, Inode, MAX_FILE_BYTES, RECLAIM_PER_OP,
    XATTR_RECLAIMED_AS,
};
use crate::op::{CopyRange, MAX_IO_BYTES, Place, Read, Target, Write, access, flags};
use crate::perm;
use crate::types::{Ino, Kind};

/// How many windows one cut looks into: where chunks are far apart most are empty.
const CUT_LOOKS: usize = 32;

/// A part of a range that lies in one chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub chunk: u64,
    /// Within the chunk.
    pub from: usize,
    pub to: usize,
}

record! {
    /// Where the content of a write went.
    pub struct Placed {
        /// The file.
        pub ino: Ino,
        /// Where in it.
        pub offset: u64,
        /// How much.
        pub len: u64,
        /// How many blocks came to be present by it.
        pub added_blocks: u64,
    }
}

/// The pieces of `from..to`. The caller bounds how many there are.
pub(crate) fn pieces(from: u64, to: u64) -> impl Iterator<Item = Piece> {
    let mut at = from;
    core::iter::from_fn(move || {
        if at >= to {
            return None;
        }
        let chunk = at / CHUNK_BYTES;
        let start = chunk * CHUNK_BYTES;
        let end = to.min(start + CHUNK_BYTES);
        let piece = Piece {
            chunk,
            from: (at - start) as usize,
            to: (end - start) as usize,
        };
        at = end;
        Some(piece)
    })
}

impl Fs<'_, '_> {
    /// A regular file for reading.
    pub fn readable(&self, target: &Target) -> Done<(Ino, Inode)> {
        let (ino, inode, rights) = self.to_read(target)?;
        let executes = matches!(target, Target::Unopened(_) | Target::Checked(_))
            && inode.kind == Kind::Regular
            && self.may(ino, &inode, access::EXEC)?;
        match rights {
            Some(rights) if rights & flags::READ == 0 => return Err(Errno::EBADF.into()),
            Some(_) => {}
            None if executes => {}
            None => self.need(ino, &inode, access::READ)?,
        }
        must_be_file(&inode)?;
        Ok((ino, inode))
    }

    /// A regular file for writing, and whether writes go to its end.
    pub fn writable(&self, target: &Target) -> Done<(Ino, Inode, bool)> {
        let (ino, inode, rights) = self.target(target)?;
        must_be_file(&inode)?;
        match rights {
            Some(rights) if rights & flags::WRITE == 0 => Err(Errno::EBADF.into()),
            Some(rights) => Ok((ino, inode, rights & flags::APPEND != 0)),
            None => {
                self.need(ino, &inode, access::WRITE)?;
                Ok((ino, inode, false))
            }
        }
    }

    pub fn read(&mut self, op: &Read) -> Done<Answer> {
        let (ino, inode) = self.readable(&op.target)?;
        if op.len as usize > MAX_IO_BYTES {
            return Err(Errno::EINVAL.into());
        }
        let end = op.offset.saturating_add(u64::from(op.len)).min(inode.size);
        Ok(Answer::Data(Data {
            data: self.content(inode.data, op.offset, end)?,
            attr: self.attr(ino, &inode),
        }))
    }

    /// The content from `from` up to `to`, which the caller bounds.
    fn content(&self, number: u64, from: u64, to: u64) -> Done<Bytes> {
        let mut out = vec![0; to.saturating_sub(from) as usize];
        let mut rest = &mut out[..];
        for piece in pieces(from, to) {
            let (part, after) = rest.split_at_mut(piece.to - piece.from);
            if let Some(stored) = self.stored(number, piece.chunk)? {
                stored.copy_to(piece.from, part);
            }
            rest = after;
        }
        Ok(Bytes::from(out))
    }

    /// copy_file_range(2), as `generic_copy_file_checks` of Linux has it.
    pub fn copy(&mut self, op: &CopyRange) -> Done<Answer> {
        let (from, source) = self.readable(&op.from)?;
        let (ino, inode, append) = self.writable(&op.to)?;
        if append {
            return Err(Errno::EBADF.into());
        }
        let end = op.offset.checked_add(op.len).ok_or(Errno::EOVERFLOW)?;
        let to_end = op.to_offset.checked_add(op.len).ok_or(Errno::EOVERFLOW)?;
        let len = end.min(source.size).saturating_sub(op.offset);
        if len > 0 && op.to_offset >= MAX_FILE_BYTES {
            return Err(Errno::EFBIG.into());
        }
        let len = len.min(to_end.min(MAX_FILE_BYTES).saturating_sub(op.to_offset));
        let meets = op.to_offset < op.offset + len && op.offset < op.to_offset + len;
        if from == ino && meets {
            return Err(Errno::EINVAL.into());
        }
        let len = len.min(MAX_IO_BYTES as u64);
        let data = self.content(source.data, op.offset, op.offset + len)?;
        let placed = self.place_at(ino, &inode, op.to_offset, &data)?;
        let (attr, _) = self.settle_placed(inode, &placed)?;
        Ok(Answer::Progress(Progress {
            done: op.to_offset + len,
            attr,
        }))
    }

    pub fn write(&mut self, op: &Write) -> Done<Answer> {
        let (inode, placed) = self.place(op)?;
        self.settle_write(inode, &placed)
    }

    /// The part of a write that can be done beside others: its content. Of the inode it looks at nothing that writes change,
    /// unless the content goes to the end.
    pub fn place(&mut self, op: &Write) -> Done<(Inode, Placed)> {
        let (ino, inode, append) = self.writable(&op.target)?;
        if op.data.len() > MAX_IO_BYTES {
            return Err(Errno::EINVAL.into());
        }
        let offset = match op.place {
            Place::At(offset) if !append => offset,
            // The end as it is now, in the agreed order: racing appends never meet.
            Place::At(_) | Place::End(_) => inode.size,
        };
        let placed = self.place_at(ino, &inode, offset, &op.data)?;
        Ok((inode, placed))
    }

    fn place_at(&mut self, ino: Ino, inode: &Inode, offset: u64, data: &Bytes) -> Done<Placed> {
        let mut placed = Placed {
            ino,
            offset,
            len: data.len() as u64,
            added_blocks: 0,
        };
        if !data.is_empty() {
            let end = offset
                .checked_add(placed.len)
                .filter(|&end| end <= MAX_FILE_BYTES)
                .ok_or(Errno::EFBIG)?;
            let mut rest = data.clone();
            for piece in pieces(offset, end) {
                let part = rest.split_to(piece.to - piece.from);
                placed.added_blocks += self.place_piece(inode.data, piece, &part)?;
            }
        }
        Ok(placed)
    }

    /// The rest of a write: space and attributes.
    pub fn settle_write(&mut self, inode: Inode, placed: &Placed) -> Done<Answer> {
        let (attr, before) = self.settle_placed(inode, placed)?;
        Ok(Answer::Written(Written {
            offset: placed.offset,
            before,
            attr,
        }))
    }

    /// The attributes after it, and what some of them were before.
    fn settle_placed(&mut self, mut inode: Inode, placed: &Placed) -> Done<(Attr, Version)> {
        let before = Version {
            size: inode.size,
            mtime: inode.mtime,
            ctime: inode.ctime,
        };
        if placed.len > 0 {
            self.charge(placed.ino, placed.added_blocks * BLOCK_BYTES)?;
            inode.blocks += placed.added_blocks;
            inode.size = inode.size.max(placed.offset + placed.len);
            self.written(placed.ino, &mut inode)?;
            self.put_inode(placed.ino, &inode);
        }
        Ok((self.attr(placed.ino, &inode), before))
    }

    /// Writes a piece and says how many blocks came to be present. None ever goes.
    fn place_piece(&mut self, number: u64, piece: Piece, data: &Bytes) -> Done<u64> {
        let key = layout::extent_key(number, piece.chunk);
        if data.len() as u64 == CHUNK_BYTES {
            let before = self.present(number, piece.chunk)?;
            self.txn.put(key, extent::pack_full(data));
            return Ok(u64::from(before.count_zeros()));
        }
        let old = self.stored(number, piece.chunk)?;
        let before = old.as_ref().map_or(0, |stored| stored.present);
        let (present, value) = extent::write_over(old.as_ref(), piece.from, data);
        self.txn.put(key, value);
        let added = present & !before;
        Ok(u64::from(added.count_ones()))
    }

    /// Changes a chunk, which is `old` so far.
    pub fn edit(
        &mut self,
        (ino, inode): (Ino, &mut Inode),
        chunk: u64,
        old: Option<Stored>,
        change: impl FnOnce(&mut Extent),
    ) -> Done<()> {
        let mut extent = old.as_ref().map_or_else(Extent::empty, Extent::unpack);
        let before = extent.present;
        change(&mut extent);
        self.account((ino, inode), before, extent.present)?;
        let key = layout::extent_key(inode.data, chunk);
        match extent.pack() {
            Some(value) => self.txn.put(key, value),
            None => self.txn.delete(key),
        }
        Ok(())
    }

    /// Counts the blocks that come and go.
    pub fn account(
        &mut self,
        (ino, inode): (Ino, &mut Inode),
        before: u16,
        after: u16,
    ) -> Done<()> {
        let (before, after) = (
            u64::from(before.count_ones()),
            u64::from(after.count_ones()),
        );
        if after > before {
            self.charge(ino, (after - before) * BLOCK_BYTES)?;
        } else {
            self.credit(ino, (before - after) * BLOCK_BYTES)?;
        }
        inode.blocks = inode.blocks - before + after;
        Ok(())
    }

    /// What is stored of a chunk.
    pub fn stored(&self, data: u64, chunk: u64) -> Done<Option<Stored>> {
        let key = layout::extent_key(data, chunk);
        match self.txn.get(&key)? {
            None => Ok(None),
            Some(value) => parse(&key, &value).map(Some),
        }
    }

    /// Which blocks of a chunk are present. Of most that are whole no more is read than how long they are.
    pub fn present(&self, data: u64, chunk: u64) -> Done<u16> {
        if self.is_whole(data, chunk)? {
            return Ok(u16::MAX);
        }
        let stored = self.stored(data, chunk)?;
        Ok(stored.map_or(0, |stored| stored.present))
    }

    /// Whether a chunk is known to be whole by its length alone: one of which this is not so may be.
    pub fn is_whole(&self, data: u64, chunk: u64) -> Done<bool> {
        let summary = self.txn.summary(&layout::extent_key(data, chunk))?;
        Ok(summary.is_some_and(|summary| u64::from(summary.length) == CHUNK_BYTES))
    }

    /// The numbers of up to `limit` chunks that have content, from `first` on and below `end`; nothing of them is read.
    pub fn stored_chunks(&self, data: u64, first: u64, end: u64, limit: usize) -> Done<Vec<u64>> {
        let key = |chunk| layout::extent_key(data, chunk);
        let keys = self.scan_keys(key, first, end, limit)?;
        let number = |key: Bytes| layout::number_at(&key, 1).unwrap_or(u64::MAX);
        Ok(keys.into_iter().map(number).collect())
    }

    /// Makes a hole of a whole chunk.
    pub fn remove_chunk(&mut self, (ino, inode): (Ino, &mut Inode), chunk: u64) -> Done<()> {
        let present = self.present(inode.data, chunk)?;
        self.account((ino, inode), present, 0)?;
        self.txn.delete(layout::extent_key(inode.data, chunk));
        Ok(())
    }

    /// The content was written or cut off: times, and the rights that a change by others takes away.
    pub fn written(&mut self, ino: Ino, inode: &mut Inode) -> Done<()> {
        inode.mode = perm::mode_after_write(inode, self.who);
        self.drop_capabilities(ino, inode)?;
        self.modify(inode);
        Ok(())
    }

    /// Sets the size. Where more extents go than one operation may delete, or they are far apart, the size only comes nearer to that, and the
    /// caller is to repeat; down to 0 it is always one step.
    pub fn truncate(&mut self, ino: Ino, inode: &mut Inode, size: u64) -> Done<()> {
        if size > MAX_FILE_BYTES {
            return Err(Errno::EFBIG.into());
        }
        if size == 0 {
            return self.truncate_all(ino, inode);
        }
        if size >= inode.size {
            inode.size = size;
            return Ok(());
        }
        let first = size.div_ceil(CHUNK_BYTES);
        let end = self.cut((ino, inode), first)?;
        if end > first {
            inode.size = end * CHUNK_BYTES;
            return Ok(());
        }
        let (last, keep) = (size / CHUNK_BYTES, (size % CHUNK_BYTES) as usize);
        if keep > 0
            && let Some(old) = self.stored(inode.data, last)?
        {
            self.edit((ino, inode), last, Some(old), |extent| {
                extent.punch(keep, CHUNK_BYTES as usize);
            })?;
        }
        inode.size = size;
        Ok(())
    }

    /// Removes chunks from the end of a file on, down to the chunk `first` and as far as one operation goes: the answer says behind which one.
    ///
    /// From the end, so that no step goes through what the steps before have removed; and nothing of what goes is read where its
    /// length says all.
    fn cut(&mut self, (ino, inode): (Ino, &mut Inode), first: u64) -> Done<u64> {
        let mut end = inode.size.div_ceil(CHUNK_BYTES);
        let (mut left, mut window) = (CHUNKS_PER_OP, CHUNKS_PER_OP as u64);
        for _ in 0..CUT_LOOKS {
            let from = end.saturating_sub(window).max(first);
            let found = self.stored_chunks(inode.data, from, end, left + 1)?;
            if found.len() > left && left == 0 {
                break;
            }
            if found.len() > left {
                // No more can be in this one.
                window = left as u64;
                continue;
            }
            left -= found.len();
            for chunk in found {
                self.remove_chunk((ino, inode), chunk)?;
            }
            end = from;
            if end == first {
                break;
            }
            // Growing, so that a hole of any length is passed in few steps.
            window = window.saturating_mul(8);
        }
        Ok(end)
    }

    fn truncate_all(&mut self, ino: Ino, inode: &mut Inode) -> Done<()> {
        inode.size = 0;
        if inode.blocks > 0 {
            self.bury(&Dead::content(inode.data))?;
            self.credit(ino, inode.blocks * BLOCK_BYTES)?;
            inode.blocks = 0;
            inode.data = self.next_number()?;
        }
        Ok(())
    }

    /// Queues what no object has any more.
    pub fn bury(&mut self, dead: &Dead) -> Done<()> {
        let place = self.counters.dead_next;
        self.counters.dead_next = place.checked_add(1).ok_or(Errno::ENOSPC)?;
        self.put(layout::dead_key(place), dead);
        Ok(())
    }

    /// Deletes some of what no object has any more; its space is free already.
    pub fn reclaim(&mut self) -> Done<()> {
        let mut left = RECLAIM_PER_OP;
        while left > 0 && self.counters.dead_first < self.counters.dead_next {
            let key = layout::dead_key(self.counters.dead_first);
            let gap = || Fault::value(&key, "the queue of dead content has a gap");
            let dead: Dead = self.load(&key)?.ok_or_else(gap)?;
            let rows_of_each = match dead.xattrs_of() {
                Some(_) => XATTR_RECLAIMED_AS,
                None => 1,
            };
            let most = left / rows_of_each;
            if most == 0 {
                break;
            }
            let gone = self.some_of(&dead, most)?;
            match gone.last() {
                Some(last) if gone.len() == most => {
                    // Of attributes there are so few that those which are gone may be passed over.
                    if dead.xattrs_of().is_none() {
                        let from = layout::number_at(last, 1).unwrap_or(u64::MAX);
                        self.put(key, &Dead { from, ..dead });
                    }
                }
                Some(_) | None => {
                    self.txn.delete(key);
                    self.counters.dead_first += 1;
                }
            }
            // What is gone already counts too, so that the loop is bounded.
            left = left.saturating_sub((gone.len() * rows_of_each).max(1));
            for key in gone {
                self.txn.delete(key);
            }
        }
        Ok(())
    }

    /// The keys of up to `limit` rows that are to be deleted.
    fn some_of(&self, dead: &Dead, limit: usize) -> Done<Vec<Bytes>> {
        match dead.xattrs_of() {
            Some(ino) => self.xattr_keys(ino, limit),
            None => {
                let key = |chunk| layout::extent_key(dead.data, chunk);
                self.scan_keys(key, dead.from, u64::MAX, limit)
            }
        }
    }
}

fn parse(key: &[u8], value: &Bytes) -> Done<Stored> {
    Stored::parse(value).ok_or_else(|| Fault::value(key, "it is no extent").into())
}

fn must_be_file(inode: &Inode) -> Result<(), Errno> {
    match inode.kind {
        Kind::Regular => Ok(()),
        Kind::Directory => Err(Errno::EISDIR),
        Kind::Symlink | Kind::Fifo | Kind::Socket | Kind::Block | Kind::Char => Err(Errno::EINVAL),
    }
}
