//! Locks of fcntl(2) and flock(2), kept by the group, so that they hold between machines.
//!
//! The service never makes a caller wait; who waits asks again and again here. A lock is a point of consistency:
//! before it is let go, all is written; when it is granted, pages from before are dropped. One that went with its session can't be
//! had again by itself: see [`super::granted`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quorate_files::answer::HeldLock;
use quorate_files::op::{Lock, LockKind, LockSpace, flags};
use quorate_files::{Action, Answer, Ino, Target, Who};

use super::caller;
use super::changes::Pages;
use super::convert::Result;
use super::core::Core;
use super::granted::Grant;
use super::handles::OpenFile;
use crate::volume::CallError;

/// How long to wait before asking for a lock again; doubles up to [`MAX_WAIT`].
const MIN_WAIT: Duration = Duration::from_millis(10);
const MAX_WAIT: Duration = Duration::from_millis(200);
/// How often a lock is asked for again whose session ends in that moment.
const ATTEMPTS: usize = 5;
const SPACES: [LockSpace; 2] = [LockSpace::Posix, LockSpace::Flock];
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

    /// What lets go of it.
    pub fn back(self) -> Wanted {
        let kind = LockKind::Unlock;
        Wanted { kind, ..self }
    }

    fn is_whole(&self) -> bool {
        self.start == 0 && self.end >= KERNEL_END
    }

    fn range(&self) -> (u64, u64) {
        (self.start, from_kernel(self.end))
    }

    /// What it comes to in a namespace.
    fn range_in(&self, space: LockSpace) -> (u64, u64) {
        match space {
            LockSpace::Posix => self.range(),
            LockSpace::Flock => (0, u64::MAX),
        }
    }
}

/// A call that changes an owner's locks: until he is told of it, or it is undone.
#[derive(Debug)]
pub(super) struct Changed {
    file: Arc<OpenFile>,
    wanted: Wanted,
}

impl Changed {
    fn begin(file: &Arc<OpenFile>, wanted: Wanted) -> Changed {
        file.inode.granted.begin(wanted.owner);
        let file = file.clone();
        Changed { file, wanted }
    }

    /// Who called knows what he has now.
    pub fn told(&self) {
        for space in SPACES {
            let range = self.wanted.range_in(space);
            let granted = &self.file.inode.granted;
            granted.told(space, self.wanted.owner, range);
        }
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        self.file.inode.granted.end(self.wanted.owner);
    }
}

impl Core {
    /// Who is in the way of a lock.
    pub async fn test_lock(self: &Arc<Core>, wanted: Wanted) -> Result<Option<HeldLock>> {
        let file = self.handles.get(wanted.number)?;
        // Only fcntl(2) can ask.
        self.lock(&file, &wanted, LockSpace::Posix, true).await
    }

    /// What comes of it is to be told, or undone.
    pub async fn set_lock(self: &Arc<Core>, wanted: Wanted) -> Result<Changed> {
        let file = self.handles.get(wanted.number)?;
        file.inode.locked.store(true, Ordering::Release);
        let changed = Changed::begin(&file, wanted);
        if wanted.kind == LockKind::Unlock {
            let done = self.unlock(&file, &wanted).await;
            // Whatever came of it.
            changed.told();
            return done.map(|()| changed);
        }
        match self.wait_for_lock(&file, &wanted).await {
            Ok(()) => Ok(changed),
            Err(errno) => {
                self.undo_lock(changed).await;
                Err(errno)
            }
        }
    }

    async fn unlock(self: &Arc<Core>, file: &Arc<OpenFile>, wanted: &Wanted) -> Result<()> {
        self.flush(&file.inode).await;
        let _turn = file.inode.granted.turn.read().await;
        // What was written under a lock that is lost was not kept: the program is to know.
        let in_force = self.has_lost_none(file, wanted.owner);
        let mut done = self.let_go(file, wanted, LockSpace::Posix).await;
        if wanted.is_whole() || self.has_both(file, wanted) {
            // Owners of the two namespaces are never the same, so letting go in both does no harm.
            done = done.and(self.let_go(file, wanted, LockSpace::Flock).await);
        }
        in_force.and(done)
    }

    async fn wait_for_lock(self: &Arc<Core>, file: &Arc<OpenFile>, wanted: &Wanted) -> Result<()> {
        let spaces = self.spaces(file, wanted).await;
        let mut wait = MIN_WAIT;
        loop {
            self.has_lost_none(file, wanted.owner)?;
            let turn = file.inode.granted.turn.read().await;
            let taken = self.take_in(file, wanted, spaces).await;
            drop(turn);
            match taken {
                Ok(()) => return self.after_lock(file).await,
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

    /// Nobody hears of what a call has come to, or he is told that it has failed: then the owner has what he knows that he has.
    pub async fn undo_lock(&self, changed: Changed) {
        let (file, wanted) = (changed.file.clone(), changed.wanted);
        let granted = &file.inode.granted;
        let is_as_told = |space| {
            let range = wanted.range_in(space);
            granted.is_as_told(space, wanted.owner, range)
        };
        if SPACES.into_iter().all(is_as_told) {
            // As a rule where it was refused: others need not wait for that.
            return;
        }
        let _turn = granted.turn.write().await;
        for space in SPACES {
            let range = wanted.range_in(space);
            if let Some(before) = granted.to_put_back(space, wanted.owner, range) {
                self.put_back(&file, &wanted, space, &before).await;
            }
        }
        // Before the next one's turn: of several the last is to undo all.
        drop(changed);
    }

    /// `EIO` if a lock went with a session that the owner has, as he thinks; or somebody has it through this file.
    pub fn has_lost_none(&self, file: &OpenFile, owner: u64) -> Result<()> {
        let generation = file.in_force(self)?;
        match file.inode.granted.has_lost(owner, generation) {
            false => Ok(()),
            true => Err(fuser::Errno::EIO),
        }
    }

    /// `EIO` for pages that were changed in the kernel's cache (mmap(2)), if anybody here has lost a lock on the file: the kernel writes
    /// them through any of the open files, and they may be his.
    pub fn takes_pages(&self, ino: Ino) -> Result<()> {
        let Some(inode) = self.handles.inode(ino) else {
            return Ok(());
        };
        match inode.granted.is_any_lost(self.volume.generation(ino)) {
            false => Ok(()),
            true => Err(fuser::Errno::EIO),
        }
    }

    /// In which namespaces a lock is to be taken.
    async fn spaces(&self, file: &OpenFile, wanted: &Wanted) -> &'static [LockSpace] {
        if !wanted.is_whole() {
            return &[LockSpace::Posix];
        }
        let access = match wanted.kind {
            LockKind::Read => flags::READ,
            LockKind::Write => flags::WRITE,
            LockKind::Unlock => 0,
        };
        if !file.allows(access) {
            // The kernel lets nobody ask for that by fcntl(2).
            return &[LockSpace::Flock];
        }
        match caller::calls_flock(wanted.waiter).await {
            Some(true) => &[LockSpace::Flock],
            Some(false) => &[LockSpace::Posix],
            // It keeps out others of its kind, whichever that is, and those of the other kind too.
            None => &[LockSpace::Flock, LockSpace::Posix],
        }
    }

    /// Whether the owner has a whole-file lock that may be of either kind. Who then names a range has called fcntl(2).
    fn has_both(&self, file: &OpenFile, wanted: &Wanted) -> bool {
        let kind = |space| file.inode.granted.kind(space, wanted.owner);
        kind(LockSpace::Flock).is_some() && kind(LockSpace::Posix).is_some()
    }

    /// Takes a lock in these namespaces, or in none of them.
    async fn take_in(&self, file: &OpenFile, wanted: &Wanted, spaces: &[LockSpace]) -> Result<()> {
        if !wanted.is_whole() && self.has_both(file, wanted) {
            self.let_go(file, wanted, LockSpace::Flock).await?;
        }
        let mut taken: Option<(LockSpace, Vec<Grant>)> = None;
        for space in spaces {
            let range = wanted.range_in(*space);
            let before = file.inode.granted.of(*space, wanted.owner, range);
            if let Err(errno) = self.take(file, wanted, *space).await {
                if let Some((space, before)) = taken {
                    self.put_back(file, wanted, space, &before).await;
                }
                return Err(errno);
            }
            taken = Some((*space, before));
        }
        Ok(())
    }

    /// The owner has in the range what he had before, and nothing else. Nobody is in the way of less.
    async fn put_back(&self, file: &OpenFile, wanted: &Wanted, space: LockSpace, before: &[Grant]) {
        let (mut from, last) = wanted.range_in(space);
        let part = |start, end, kind| Wanted {
            start,
            end,
            kind,
            ..*wanted
        };
        let mut done = Ok(());
        for had in before {
            if from < had.start {
                let gap = part(from, had.start - 1, LockKind::Unlock);
                done = done.and(self.let_go(file, &gap, space).await);
            }
            let had = part(had.start, had.end, had.kind);
            done = done.and(self.take(file, &had, space).await);
            from = had.end.saturating_add(1);
        }
        if before.last().is_none_or(|had| had.end < last) {
            let gap = part(from, last, LockKind::Unlock);
            done = done.and(self.let_go(file, &gap, space).await);
        }
        if let Err(errno) = done {
            let (ino, errno) = (file.ino().0, errno.code());
            tracing::warn!(
                ino,
                errno,
                "a lock that nobody has stays until the file is released"
            );
        }
    }

    /// Gives back what the owner has in the range. Whatever comes of it, he does not count as a holder any more.
    async fn let_go(&self, file: &OpenFile, wanted: &Wanted, space: LockSpace) -> Result<()> {
        let done = self.lock(file, &wanted.back(), space, false).await;
        let range = wanted.range_in(space);
        file.inode.granted.give_back(space, wanted.owner, range);
        done.map(|_| ())
    }

    /// Takes a lock, and notes it.
    async fn take(&self, file: &OpenFile, wanted: &Wanted, space: LockSpace) -> Result<()> {
        for _ in 0..ATTEMPTS {
            let (generation, _) = self.ask_for_lock(file, wanted, space, false).await?;
            if self.volume.generation(file.ino()) != generation {
                // It went as soon as it was granted, or is the next session's already. Nothing was done under it.
                continue;
            }
            let (start, end) = wanted.range_in(space);
            let noted = file.inode.granted.add(Grant {
                space,
                owner: wanted.owner,
                number: file.number,
                generation,
                kind: wanted.kind,
                start,
                end,
                noticed: false,
            });
            if noted {
                return Ok(());
            }
            // He had one before, and lost it meanwhile: then there was a time in which he had nothing.
            break;
        }
        // What is left of it in the session of now nobody has.
        if let Err(errno) = self.lock(file, &wanted.back(), space, false).await {
            let (ino, errno) = (file.ino().0, errno.code());
            tracing::warn!(ino, errno, "a lock stays until the file is released");
        }
        Err(fuser::Errno::EIO)
    }

    async fn lock(
        &self,
        file: &OpenFile,
        wanted: &Wanted,
        space: LockSpace,
        test: bool,
    ) -> Result<Option<HeldLock>> {
        let (_, held) = self.ask_for_lock(file, wanted, space, test).await?;
        Ok(held)
    }

    /// In which session it was answered, and by whom a lock is held that is in the way of a test.
    async fn ask_for_lock(
        &self,
        file: &OpenFile,
        wanted: &Wanted,
        space: LockSpace,
        test: bool,
    ) -> Result<(u64, Option<HeldLock>)> {
        let (start, end) = wanted.range_in(space);
        let lock = |handle| {
            Ok(Action::Lock(Lock {
                handle,
                space,
                owner: wanted.owner,
                pid: wanted.pid,
                start,
                end,
                kind: wanted.kind,
                test,
            }))
        };
        // Taking or dropping a lock twice is the same as once.
        match file.with_handle(self, &file.who, true, lock).await? {
            (generation, Answer::Lock(held)) => Ok((generation, held)),
            _ => Err(CallError::Garbled.into()),
        }
    }

    /// Tells of locks that went with a session. What the kernel has of their files is of no use to their holders: so they ask, and are
    /// told too.
    pub fn notice_lost_locks(self: &Arc<Core>) {
        for inode in self.handles.inodes() {
            if inode.granted.notice(self.volume.generation(inode.ino)) {
                let ino = inode.ino.0;
                tracing::error!(
                    ino,
                    "locks were lost with the session, and others may have had them; who holds them can neither read nor write until he lets them go"
                );
                self.drop_pages_later(&inode);
            }
        }
    }

    /// Who holds the lock now must see what earlier holders wrote.
    async fn after_lock(self: &Arc<Core>, file: &OpenFile) -> Result<()> {
        self.flush(&file.inode).await;
        let target = Target::Ino(file.ino());
        let attr = self.volume.get_attr(&Who::root(), target).await?;
        match self.changes.look(&attr) {
            Pages::Current => {}
            Pages::Old(dropping) | Pages::Unknown(dropping) => {
                self.renew_pages(dropping).await;
            }
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
        let granted = &file.inode.granted;
        let _turn = granted.turn.read().await;
        let mut done = self.let_go(file, &all, LockSpace::Posix).await;
        granted.told(LockSpace::Posix, owner, (0, u64::MAX));
        if granted.kind(LockSpace::Flock, owner).is_some() {
            // It was taken in both namespaces. Who has called flock(2) is an owner that no close names.
            done = done.and(self.let_go(file, &all, LockSpace::Flock).await);
            granted.told(LockSpace::Flock, owner, (0, u64::MAX));
        }
        if let Err(errno) = done {
            tracing::warn!(
                errno = errno.code(),
                "locks stay until the file is released"
            );
        }
    }
}

#[cfg(test)]
mod tests;
