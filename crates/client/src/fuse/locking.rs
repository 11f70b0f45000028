//! Locks of fcntl(2) and flock(2), kept by the group, so that they hold between machines.
//!
//! The service never makes a caller wait; who waits asks again and again here. A lock is a point of consistency:
//! before it is let go, all is written; when it is granted, pages from before are dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quorate_files::answer::HeldLock;
use quorate_files::op::{Lock, LockKind, LockSpace};
use quorate_files::{Action, Answer, Target, Who};

use super::caller;
use super::convert::Result;
use super::core::Core;
use super::handles::OpenFile;
use crate::volume::CallError;

/// How long to wait before asking for a lock again; doubles up to [`MAX_WAIT`].
const MIN_WAIT: Duration = Duration::from_millis(10);
const MAX_WAIT: Duration = Duration::from_millis(200);
/// The kernel's end of files.
const KERNEL_END: u64 = i64::MAX as u64;

/// A request for a lock, as the kernel makes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub number: u64,
    pub owner: u64,
    pub start: u64,
    pub end: u64,
    pub kind: LockKind,
    /// The process that has or wants the lock.
    pub pid: u32,
    /// The thread that waits in the kernel.
    pub waiter: u32,
    pub sleep: bool,
}

/// The kernel's number of "no lock".
pub(super) const UNLOCKED: i32 = 2;

fn kind(number: i32) -> Result<LockKind> {
    Ok(match number {
        0 => LockKind::Read,
        1 => LockKind::Write,
        UNLOCKED => LockKind::Unlock,
        _ => return Err(fuser::Errno::EINVAL),
    })
}

pub(super) fn kind_number(kind: LockKind) -> i32 {
    match kind {
        LockKind::Read => 0,
        LockKind::Write => 1,
        LockKind::Unlock => UNLOCKED,
    }
}

fn from_kernel(end: u64) -> u64 {
    if end >= KERNEL_END { u64::MAX } else { end }
}

pub(super) fn to_kernel(end: u64) -> u64 {
    end.min(KERNEL_END)
}

impl Wanted {
    /// As the kernel says it; the processes are the lock's owner and the thread that waits.
    pub fn new(
        number: fuser::FileHandle,
        owner: fuser::LockOwner,
        (start, end): (u64, u64),
        number_of_kind: i32,
        (pid, waiter): (u32, u32),
        sleep: bool,
    ) -> Result<Wanted> {
        Ok(Wanted {
            number: number.0,
            owner: owner.0,
            start,
            end,
            kind: kind(number_of_kind)?,
            pid,
            waiter,
            sleep,
        })
    }

    fn is_whole(&self) -> bool {
        self.start == 0 && self.end >= KERNEL_END
    }
}

impl Core {
    /// Who is in the way of a lock.
    pub async fn test_lock(self: &Arc<Core>, wanted: Wanted) -> Result<Option<HeldLock>> {
        let file = self.handles.get(wanted.number)?;
        // Only fcntl(2) can ask.
        self.lock(&file, &wanted, LockSpace::Posix, true).await
    }

    pub async fn set_lock(self: &Arc<Core>, wanted: Wanted) -> Result<()> {
        let file = self.handles.get(wanted.number)?;
        file.inode.locked.store(true, Ordering::Release);
        if wanted.kind == LockKind::Unlock {
            self.flush(&file.inode).await;
            self.lock(&file, &wanted, LockSpace::Posix, false).await?;
            if wanted.is_whole() {
                // Owners of the two namespaces are never the same, so letting go in both does no harm.
                self.lock(&file, &wanted, LockSpace::Flock, false).await?;
            }
            return Ok(());
        }
        let space = match wanted.is_whole() && caller::calls_flock(wanted.waiter).unwrap_or(true) {
            true => LockSpace::Flock,
            false => LockSpace::Posix,
        };
        let mut wait = MIN_WAIT;
        loop {
            match self.lock(&file, &wanted, space, false).await {
                Ok(_) => return self.after_lock(&file).await,
                Err(errno) if errno == fuser::Errno::EAGAIN && wanted.sleep => {}
                Err(errno) => return Err(errno),
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(MAX_WAIT);
            if caller::is_interrupted(wanted.waiter) {
                return Err(fuser::Errno::EINTR);
            }
        }
    }

    async fn lock(
        &self,
        file: &OpenFile,
        wanted: &Wanted,
        space: LockSpace,
        test: bool,
    ) -> Result<Option<HeldLock>> {
        let lock = |handle| {
            Action::Lock(Lock {
                handle,
                space,
                owner: wanted.owner,
                pid: wanted.pid,
                start: wanted.start,
                end: from_kernel(wanted.end),
                kind: wanted.kind,
                test,
            })
        };
        // Taking or dropping a lock twice is the same as once.
        match file.with_handle(self, &file.who, true, lock).await? {
            Answer::Lock(held) => Ok(held),
            _ => Err(CallError::Garbled.into()),
        }
    }

    /// Who holds the lock now must see what earlier holders wrote.
    async fn after_lock(self: &Arc<Core>, file: &OpenFile) -> Result<()> {
        self.flush(&file.inode).await;
        let target = Target::Ino(file.ino());
        let attr = self.volume.get_attr(&Who::root(), target).await?;
        if !self.changes.may_keep(&attr) {
            self.drop_pages(file.ino()).await;
        }
        Ok(())
    }

    /// close(2) lets go of all that the process has on the file.
    pub async fn drop_posix_locks(&self, file: &OpenFile, owner: u64) {
        let all = Wanted {
            number: file.number,
            owner,
            start: 0,
            end: u64::MAX,
            kind: LockKind::Unlock,
            pid: 0,
            waiter: 0,
            sleep: false,
        };
        if let Err(errno) = self.lock(file, &all, LockSpace::Posix, false).await {
            tracing::warn!(
                errno = errno.code(),
                "locks stay until the file is released"
            );
        }
    }
}
