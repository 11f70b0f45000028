//! Ranges of files: allocation, holes, and seeking for them.

use crate::answer::{Answer, Progress};
use crate::data::pieces;
use crate::errno::Errno;
use crate::extent::touched;
use crate::fs::{Done, Fs};
use crate::layout::{
    BLOCK_BYTES, CHUNK_BYTES, CHUNKS_PER_OP, Inode, MAX_FILE_BYTES, RECLAIM_PER_OP,
    REWRITTEN_PER_OP,
};
use crate::op::{Fallocate, FallocateMode, Seek, Whence};
use crate::types::Ino;

impl Fs<'_, '_> {
    pub fn fallocate(&mut self, op: &Fallocate) -> Done<Answer> {
        let (ino, mut inode, _) = self.writable(&op.target)?;
        if op.len == 0 {
            return Err(Errno::EINVAL.into());
        }
        let end = op
            .offset
            .checked_add(op.len)
            .filter(|&end| end <= MAX_FILE_BYTES)
            .ok_or(Errno::EFBIG)?;
        let done = match op.mode {
            FallocateMode::PunchHole => self.punch((ino, &mut inode), op.offset, end)?,
            FallocateMode::Allocate | FallocateMode::ZeroRange => {
                let stop = step_end(op.offset, end);
                let stop = self.fill((ino, &mut inode), op.mode, (op.offset, stop))?;
                inode.size = inode.size.max(stop);
                stop
            }
            FallocateMode::KeepSize | FallocateMode::ZeroRangeKeepSize => {
                let within = end.min(inode.size);
                let stop = step_end(op.offset, within);
                let stop = self.fill((ino, &mut inode), op.mode, (op.offset, stop))?;
                if stop >= within { end } else { stop }
            }
        };
        self.written(ino, &mut inode)?;
        self.put_inode(ino, &inode);
        Ok(Answer::Progress(Progress {
            done,
            attr: self.attr(ino, &inode),
        }))
    }

    /// Makes `from..to` present, and zero if the mode says so. As far as one operation goes: says how far that was.
    fn fill(
        &mut self,
        (ino, inode): (Ino, &mut Inode),
        mode: FallocateMode,
        (from, to): (u64, u64),
    ) -> Done<u64> {
        let (mut rewritten, mut made) = (0, 0);
        let zero = matches!(
            mode,
            FallocateMode::ZeroRange | FallocateMode::ZeroRangeKeepSize
        );
        for piece in pieces(from, to) {
            if !zero && self.is_whole(inode.data, piece.chunk)? {
                continue;
            }
            let old = self.stored(inode.data, piece.chunk)?;
            let wanted = touched(piece.from, piece.to);
            let present = old.as_ref().map_or(0, |stored| stored.present);
            if !zero && present & wanted == wanted {
                continue;
            }
            rewritten += usize::from(old.is_some());
            made += usize::from(old.is_none());
            self.edit((ino, inode), piece.chunk, old, |extent| {
                extent.allocate(wanted);
                if zero {
                    extent.zero(piece.from, piece.to);
                }
            })?;
            // No more come than go where there is dead content: else who allocates and cuts off has ever more of it, which counts nowhere.
            if rewritten == REWRITTEN_PER_OP || made == RECLAIM_PER_OP {
                return Ok(to.min((piece.chunk + 1) * CHUNK_BYTES));
            }
        }
        Ok(to)
    }

    /// Makes a hole of `from..to`, as far as one operation goes; says how far that was.
    fn punch(&mut self, (ino, inode): (Ino, &mut Inode), from: u64, to: u64) -> Done<u64> {
        let end_chunk = to.div_ceil(CHUNK_BYTES);
        let found = self.stored_chunks(inode.data, from / CHUNK_BYTES, end_chunk, CHUNKS_PER_OP)?;
        let full = found.len() == CHUNKS_PER_OP;
        let mut done = to;
        for chunk in found {
            let start = chunk * CHUNK_BYTES;
            let low = from.saturating_sub(start);
            let high = (to - start).min(CHUNK_BYTES);
            if low == 0 && high == CHUNK_BYTES {
                self.remove_chunk((ino, inode), chunk)?;
            } else {
                let stored = self.stored(inode.data, chunk)?;
                self.edit((ino, inode), chunk, stored, |extent| {
                    extent.punch(low as usize, high as usize);
                })?;
            }
            if full {
                done = to.min(start + CHUNK_BYTES);
            }
        }
        Ok(done)
    }

    pub fn seek(&mut self, op: &Seek) -> Done<Answer> {
        let (ino, inode) = self.readable(&op.target)?;
        if op.offset >= inode.size {
            return Err(Errno::ENXIO.into());
        }
        match op.whence {
            Whence::Data => self.seek_data(&inode, op.offset),
            Whence::Hole => {
                if inode.blocks >= inode.size.div_ceil(BLOCK_BYTES) {
                    return Ok(Answer::Offset(inode.size));
                }
                let at = self.seek_hole(&inode, op.offset)?;
                Ok(match at {
                    Found::At(offset) => Answer::Offset(offset),
                    Found::NoneBefore(done) => Answer::Progress(Progress {
                        done,
                        attr: self.attr(ino, &inode),
                    }),
                })
            }
        }
    }

    fn seek_data(&self, inode: &Inode, offset: u64) -> Done<Answer> {
        let (first, end) = (offset / CHUNK_BYTES, inode.size.div_ceil(CHUNK_BYTES));
        // Each extent has a block, so the second one has it if the first has it only before the offset. What is passed over is not read:
        // it may be much, where content has just been punched out.
        for chunk in self.stored_chunks(inode.data, first, end, 2)? {
            let start = chunk * CHUNK_BYTES;
            let present = self.present(inode.data, chunk)?;
            for block in 0..CHUNK_BYTES / BLOCK_BYTES {
                let at = start + block * BLOCK_BYTES;
                if present & (1 << block) != 0 && at + BLOCK_BYTES > offset {
                    return Ok(Answer::Offset(at.max(offset)));
                }
            }
        }
        Err(Errno::ENXIO.into())
    }

    fn seek_hole(&self, inode: &Inode, offset: u64) -> Done<Found> {
        let end = step_end(offset, inode.size);
        for piece in pieces(offset, end) {
            let start = piece.chunk * CHUNK_BYTES;
            let present = self.present(inode.data, piece.chunk)?;
            for block in 0..CHUNK_BYTES / BLOCK_BYTES {
                let at = start + block * BLOCK_BYTES;
                if present & (1 << block) == 0 && at + BLOCK_BYTES > offset {
                    return Ok(Found::At(at.max(offset).min(inode.size)));
                }
            }
        }
        if end == inode.size {
            return Ok(Found::At(end));
        }
        Ok(Found::NoneBefore(end))
    }
}

/// What a bounded search came to.
enum Found {
    At(u64),
    NoneBefore(u64),
}

/// Up to where one operation goes from `from` on.
fn step_end(from: u64, end: u64) -> u64 {
    let limit = (from / CHUNK_BYTES + CHUNKS_PER_OP as u64).saturating_mul(CHUNK_BYTES);
    end.min(limit)
}
