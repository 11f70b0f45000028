//! Allocating, copying and finding ranges of files.

use std::sync::Arc;

use quorate_files::answer::Progress;
use quorate_files::op::{CopyRange, Fallocate, FallocateMode, Seek, Whence};
use quorate_files::{Action, Answer, Target, Who};

use super::caller;
use super::convert::Result;
use super::core::Core;
use super::handles::OpenFile;
use super::inode::Told;
use crate::volume::CallError;

/// The most that one request of the kernel copies: so it is known soon how far it came, and a killed program ends.
const MAX_COPY_BYTES: u64 = 64 << 20;

impl Core {
    pub async fn fallocate(
        self: &Arc<Core>,
        number: u64,
        offset: u64,
        len: u64,
        mode: i32,
    ) -> Result<()> {
        let mode = fallocate_mode(mode).ok_or(fuser::Errno::EOPNOTSUPP)?;
        let end = offset.checked_add(len).ok_or(fuser::Errno::EFBIG)?;
        let file = self.handles.get(number)?;
        self.flush(&file.inode).await;
        let done = self.allocate(&file, mode, (offset, end)).await;
        if done.is_err() {
            // A part may be done, and the kernel drops the pages of the range only if all is.
            self.doubt_pages(file.ino());
        }
        done
    }

    async fn allocate(
        &self,
        file: &OpenFile,
        mode: FallocateMode,
        (mut from, end): (u64, u64),
    ) -> Result<()> {
        let had_set_id = file.inode.has_set_id();
        loop {
            let _changing = self.changing();
            let allocate = |target| {
                Ok(Action::Fallocate(Fallocate {
                    target,
                    mode,
                    offset: from,
                    len: end - from,
                }))
            };
            let answer = file.with(self, &file.who, true, allocate).await?;
            let Answer::Progress(Progress { done, attr }) = answer else {
                return Err(CallError::Garbled.into());
            };
            self.changes.own(&attr);
            file.inode.learn(&attr);
            self.forget_set_id(file, had_set_id);
            if done >= end {
                return Ok(());
            }
            if done <= from {
                return Err(CallError::Garbled.into());
            }
            if caller::has_left() {
                return Err(fuser::Errno::EINTR);
            }
            from = done;
        }
    }

    /// Copies a range of one open file into another; how much of it.
    pub async fn copy(
        self: &Arc<Core>,
        (from, offset): (u64, u64),
        (to, to_offset): (u64, u64),
        len: u64,
    ) -> Result<u32> {
        let (source, file) = (self.handles.get(from)?, self.handles.get(to)?);
        self.flush(&source.inode).await;
        self.flush(&file.inode).await;
        if let Some(errno) = file.inode.failure(&file, Told::Writer) {
            return Err(errno);
        }
        let had_set_id = file.inode.has_set_id();
        let len = len.min(MAX_COPY_BYTES);
        let mut copied = 0;
        while copied < len && !(copied > 0 && caller::has_left()) {
            let _changing = self.changing();
            let at = to_offset + copied;
            let copy = |to, from| {
                Action::CopyRange(CopyRange {
                    from,
                    offset: offset + copied,
                    to,
                    to_offset: at,
                    len: len - copied,
                })
            };
            let answer = match file.with_both(&source, self, copy).await {
                Ok(answer) => answer,
                // What was copied before is told first, as write(2) does.
                Err(_) if copied > 0 => break,
                Err(errno) => return Err(errno),
            };
            let Answer::Progress(Progress { done, attr }) = answer else {
                self.doubt_pages(file.ino());
                return Err(CallError::Garbled.into());
            };
            self.changes.own(&attr);
            file.inode.learn(&attr);
            self.forget_set_id(&file, had_set_id);
            let step = done.checked_sub(at).filter(|step| *step <= len - copied);
            match step {
                Some(0) => break,
                Some(step) => copied += step,
                None => {
                    self.doubt_pages(file.ino());
                    return Err(CallError::Garbled.into());
                }
            }
        }
        Ok(copied as u32)
    }

    pub async fn seek(self: &Arc<Core>, number: u64, offset: i64, whence: i32) -> Result<i64> {
        const DATA: i32 = 3;
        const HOLE: i32 = 4;
        let whence = match whence {
            DATA => Whence::Data,
            HOLE => Whence::Hole,
            _ => return Err(fuser::Errno::EINVAL),
        };
        // lseek(2): before the file's start is as beyond its end.
        let offset = u64::try_from(offset).map_err(|_| fuser::Errno::ENXIO)?;
        let file = self.handles.get(number)?;
        self.flush(&file.inode).await;
        let target = Target::Checked(file.ino());
        let seek = Seek {
            target,
            offset,
            whence,
        };
        // By number and as root: the kernel has seen the open file, and the handle may be of an earlier session.
        let found = self.volume.seek(&Who::root(), seek).await?;
        i64::try_from(found).map_err(|_| fuser::Errno::EOVERFLOW)
    }
}

fn fallocate_mode(mode: i32) -> Option<FallocateMode> {
    const KEEP_SIZE: i32 = 1;
    const PUNCH_HOLE: i32 = 2;
    const ZERO_RANGE: i32 = 16;
    const PUNCH_AND_KEEP: i32 = PUNCH_HOLE | KEEP_SIZE;
    const ZERO_AND_KEEP: i32 = ZERO_RANGE | KEEP_SIZE;
    match mode {
        0 => Some(FallocateMode::Allocate),
        KEEP_SIZE => Some(FallocateMode::KeepSize),
        PUNCH_AND_KEEP => Some(FallocateMode::PunchHole),
        ZERO_RANGE => Some(FallocateMode::ZeroRange),
        ZERO_AND_KEEP => Some(FallocateMode::ZeroRangeKeepSize),
        _ => None,
    }
}
