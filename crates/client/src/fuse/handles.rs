//! Open files of this mount. The kernel knows them by numbers of this front: most have no handle of the service, which is made where one is
//! needed (for locks, and where rights have changed since); handles end with a session and are made anew in the next.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quorate_files::op::{Open, flags};
use quorate_files::{Action, Answer, Errno, Handle, Ino, Target, Who};

use tokio::time::Instant;

use super::ahead::Ahead;
use super::convert::Result;
use super::core::Core;
use super::holds::Holds;
use super::inode::Inode;
use crate::volume::{CallError, Volume};

/// The most files that are open without a handle: each may come to be held, which takes one of the 65,536 handles that a session can
/// have. The others are for locks, and for what is open in the moment in which it is replaced.
pub(super) const MAX_WITHOUT: usize = 60_000;
/// How often an operation is tried with a handle that was opened again.
const ATTEMPTS: usize = 5;

/// The service's handle of an open file.
#[derive(Debug)]
struct Made {
    /// With the session in which it was made, if there is one.
    handle: Option<(u64, Handle)>,
    /// The file is released, so that none is made any more: nobody would release it.
    closed: bool,
}

/// An open file.
#[derive(Debug)]
pub(super) struct OpenFile {
    /// The number that the kernel has.
    pub number: u64,
    /// The file.
    pub inode: Arc<Inode>,
    /// On whose behalf it was opened: it is their rights that the handle has.
    pub who: Who,
    /// How, without what is done once.
    flags: u32,
    made: tokio::sync::Mutex<Made>,
    /// How many writes had failed when it was opened.
    pub failed_before: u64,
    /// Up to which failed write this file has reported to one who syncs, or another one had before.
    pub reported: AtomicU64,
    /// The same for one who writes.
    pub refused: AtomicU64,
    /// Whether it is released: set with the inode's state locked.
    pub released: AtomicBool,
    /// Whether a close has told of one.
    pub told: AtomicBool,
    /// What is read ahead for it.
    pub ahead: Ahead,
    /// Whether what is read through it counts for the file's time of access.
    pub counts: AtomicBool,
}

impl OpenFile {
    pub fn ino(&self) -> Ino {
        self.inode.ino
    }

    /// The service's handle of now, and its session. One is made, if need be. `EBADF` after the release: a read ahead may come so late.
    async fn handle(&self, core: &Core) -> Result<(u64, Handle)> {
        let mut made = self.made.lock().await;
        if made.closed {
            return Err(fuser::Errno::EBADF);
        }
        let (ino, flags) = (self.ino(), self.flags);
        for _ in 0..ATTEMPTS {
            let generation = core.volume.generation(ino);
            if let Some(known) = made.handle
                && known.0 == generation
            {
                return Ok(known);
            }
            let open = || core.volume.open(&self.who, Open { ino, flags });
            let mut opened = core.ask_held(ino, open).await;
            if opened == Err(CallError::Refused(Errno::EACCES)) {
                // An open file keeps its rights, whatever its mode has become since.
                opened = core.volume.open(&Who::root(), Open { ino, flags }).await;
            }
            let new = core.of_session(&self.who, generation, opened?.handle);
            let Some(new) = new.await else { continue };
            if made.handle.is_some() {
                tracing::info!(ino = %ino.0, "a file was opened again in a new session");
            }
            made.handle = Some(new);
            return Ok(new);
        }
        Err(fuser::Errno::EIO)
    }

    /// What the file is named by now, if not by a handle that has yet to be made; and in which session.
    async fn target(&self, core: &Core) -> Result<(u64, Target)> {
        let generation = self.in_force(core)?;
        Ok(match self.made.lock().await.handle {
            Some((of, handle)) if of == generation => (generation, Target::Handle(handle)),
            _ => (generation, Target::Checked(self.ino())),
        })
    }

    /// The session of now. `EIO` if an earlier one took a lock along that somebody holds through this file, as he thinks. (As long as
    /// that session counts as the present one, the file is named by its handle, which no other session takes.)
    pub fn in_force(&self, core: &Core) -> Result<u64> {
        let generation = core.volume.generation(self.ino());
        match self.inode.granted.is_lost(self.number, generation) {
            false => Ok(generation),
            true => Err(fuser::Errno::EIO),
        }
    }

    /// Whether it was opened for these kinds of access.
    pub fn allows(&self, access: u32) -> bool {
        self.flags & access == access
    }

    /// For which kinds of access it was opened that show content.
    pub fn reading(&self) -> u32 {
        self.flags & (flags::READ | flags::EXEC)
    }

    /// Does something with the file: by its number, as long as that will do. Whatever can be repeated is repeated after a lost
    /// session, if the action is still to be done then.
    pub async fn with(
        &self,
        core: &Core,
        who: &Who,
        repeatable: bool,
        action: impl Fn(Target) -> Result<Action>,
    ) -> Result<Answer> {
        for _ in 0..ATTEMPTS {
            let (generation, target) = self.target(core).await?;
            let by_number = matches!(target, Target::Checked(_));
            match core.volume.once(who, action(target)?).await {
                Ok(answer) => return Ok(answer),
                // The file's mode has changed, or it has lost its name and is to be changed.
                Err(CallError::Refused(Errno::EACCES | Errno::ESTALE)) if by_number => {
                    let action = |handle| {
                        self.in_force(core)?;
                        action(Target::Handle(handle))
                    };
                    let (_, answer) = self.with_handle(core, who, repeatable, action).await?;
                    return Ok(answer);
                }
                // Refused for the handle, so not executed.
                Err(CallError::Refused(Errno::EBADF))
                    if core.volume.generation(self.ino()) != generation => {}
                Err(CallError::Lost) if repeatable => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(fuser::Errno::EIO)
    }

    /// As [`OpenFile::with`], with a handle. Tells in which session. If locks were lost, that is for the action to say.
    pub async fn with_handle(
        &self,
        core: &Core,
        who: &Who,
        repeatable: bool,
        action: impl Fn(Handle) -> Result<Action>,
    ) -> Result<(u64, Answer)> {
        for _ in 0..ATTEMPTS {
            let (generation, handle) = self.handle(core).await?;
            match core.volume.once(who, action(handle)?).await {
                Ok(answer) => return Ok((generation, answer)),
                Err(CallError::Refused(Errno::EBADF))
                    if core.volume.generation(self.ino()) != generation => {}
                Err(CallError::Lost) if repeatable => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(fuser::Errno::EIO)
    }

    /// As [`OpenFile::with`], with another file, too: what is done can be repeated.
    pub async fn with_both(
        &self,
        other: &OpenFile,
        core: &Core,
        action: impl Fn(Target, Target) -> Action,
    ) -> Result<Answer> {
        let mut by_number = true;
        for _ in 0..ATTEMPTS {
            let ((generation, own), (theirs, others)) = match by_number {
                true => (self.target(core).await?, other.target(core).await?),
                false => {
                    let (own, others) = (self.handle(core).await?, other.handle(core).await?);
                    self.in_force(core)?;
                    other.in_force(core)?;
                    let by = |(of, handle)| (of, Target::Handle(handle));
                    (by(own), by(others))
                }
            };
            let are_current = || {
                core.volume.generation(self.ino()) == generation
                    && core.volume.generation(other.ino()) == theirs
            };
            if !are_current() {
                continue;
            }
            match core.volume.once(&self.who, action(own, others)).await {
                Ok(answer) => return Ok(answer),
                Err(CallError::Refused(Errno::EACCES | Errno::ESTALE)) if by_number => {
                    by_number = false;
                }
                Err(CallError::Refused(Errno::EBADF)) if !are_current() => {}
                Err(CallError::Lost) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(fuser::Errno::EIO)
    }

    /// Lets the service's handle go, if its session still is; also one that is being made. There will be no other.
    pub async fn release(&self, volume: &Volume) {
        let mut made = self.made.lock().await;
        made.closed = true;
        if let Some((generation, handle)) = made.handle.take()
            && volume.generation(self.ino()) == generation
        {
            // A session that was lost meanwhile has let it go.
            let _ = volume.release(&self.who, handle).await;
        }
    }

    /// Whether it has a handle, in the session of now. One that is being made is none yet.
    pub fn has_handle(&self, volume: &Volume) -> bool {
        let generation = volume.generation(self.ino());
        let made = self.made.try_lock();
        made.is_ok_and(|made| made.handle.is_some_and(|(of, _)| of == generation))
    }
}

impl Core {
    /// A handle that was just made, and its session, if that is the one which was there before. Where that was lost meanwhile nobody knows of which
    /// session the handle is, so it is let go: one of the present session would stay for as long as that.
    pub async fn of_session(
        &self,
        who: &Who,
        generation: u64,
        handle: Handle,
    ) -> Option<(u64, Handle)> {
        if self.volume.generation(handle.ino) == generation {
            return Some((generation, handle));
        }
        let _ = self.volume.release(who, handle).await;
        None
    }
}

/// The open files by number, and the files that they are of.
#[derive(Debug, Default)]
pub(super) struct Handles {
    next: AtomicU64,
    files: Mutex<BTreeMap<u64, Arc<OpenFile>>>,
    inodes: Mutex<BTreeMap<Ino, (usize, Arc<Inode>)>>,
}

impl Handles {
    fn files(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<OpenFile>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<Ino, (usize, Arc<Inode>)>> {
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a file that was opened, and a handle of it with the generation of its session.
    pub fn add(
        &self,
        ino: Ino,
        who: &Who,
        how: u32,
        handle: Option<(u64, Handle)>,
    ) -> Arc<OpenFile> {
        let inode = {
            let mut inodes = self.all();
            let (count, inode) = inodes
                .entry(ino)
                .or_insert_with(|| (0, Arc::new(Inode::new(ino))));
            *count += 1;
            inode.clone()
        };
        if how & flags::WRITE != 0 {
            inode.open_for_writing();
        }
        let (failures, synced) = inode.failures();
        let file = Arc::new(OpenFile {
            number: self.next.fetch_add(1, Ordering::Relaxed) + 1,
            failed_before: failures,
            // As Linux has it: a program may have others write, and open the file only to sync it.
            reported: AtomicU64::new(synced),
            refused: AtomicU64::new(failures),
            released: AtomicBool::new(false),
            told: AtomicBool::new(false),
            inode,
            who: who.clone(),
            flags: how & !(flags::TRUNC | flags::EXCLUSIVE),
            made: tokio::sync::Mutex::new(Made {
                handle,
                closed: false,
            }),
            ahead: Ahead::default(),
            counts: AtomicBool::new(false),
        });
        self.files().insert(file.number, file.clone());
        file
    }

    /// An open file; the kernel uses no other numbers.
    pub fn get(&self, number: u64) -> Result<Arc<OpenFile>> {
        self.files()
            .get(&number)
            .cloned()
            .ok_or(fuser::Errno::EBADF)
    }

    /// Whether so many are open that further ones are to have handles.
    pub fn are_many(&self) -> bool {
        self.files().len() >= MAX_WITHOUT
    }

    /// Whether a program of this machine has the file open.
    pub fn is_open(&self, ino: Ino) -> bool {
        self.files().values().any(|file| file.ino() == ino)
    }

    /// Whether a program runs on this machine that has its code in the file: the kernel has it open for that.
    pub fn is_executed(&self, ino: Ino) -> bool {
        let files = self.files();
        files
            .values()
            .any(|file| file.ino() == ino && file.flags & flags::EXEC != 0)
    }

    /// Takes an open file out: no new operation finds it.
    pub fn remove(&self, number: u64) -> Option<Arc<OpenFile>> {
        let file = self.files().remove(&number)?;
        file.inode.release(&file);
        if file.flags & flags::WRITE != 0 {
            file.inode.released_for_writing();
        }
        Some(file)
    }

    /// All of a removed file's data is written: the state of its inode goes with its last one. Whether there is something to let go then.
    pub fn done(&self, file: &OpenFile, holds: &Holds) -> bool {
        let mut inodes = self.all();
        let Some((count, _)) = inodes.get_mut(&file.ino()) else {
            return false;
        };
        *count -= 1;
        if *count > 0 {
            return false;
        }
        let inode = inodes.remove(&file.ino());
        let was_held = inode.is_some_and(|(_, inode)| inode.held.close());
        if was_held {
            // Before somebody opens it again: what is told of that is to come after this.
            holds.let_go(file.ino());
        }
        was_held
    }

    /// Room for reading ahead that is kept for readers who have paused is for others.
    pub fn pause_readers(&self) {
        let now = Instant::now();
        self.files().values().for_each(|file| file.ahead.pause(now));
    }

    /// What is open for reading or executing: of each file one.
    pub fn readable(&self) -> BTreeMap<Ino, Arc<OpenFile>> {
        let files = self.files();
        let readable = files.values().filter(|file| file.reading() != 0);
        readable.map(|file| (file.ino(), file.clone())).collect()
    }

    /// What was read ahead of a file is of no use any more.
    pub fn forget_ahead(&self, ino: Ino) {
        let files = self.files();
        let open = files.values().filter(|file| file.ino() == ino);
        open.for_each(|file| file.ahead.clear());
    }

    /// Files that have been open for so long, and of which the group does not know so.
    pub fn untold(&self, volume: &Volume, age: Duration) -> Vec<Arc<Inode>> {
        let files = self.files();
        let mut open: BTreeMap<Ino, (&Arc<OpenFile>, bool)> = BTreeMap::new();
        for file in files.values() {
            let known = file.has_handle(volume);
            let (_, is_known) = open.entry(file.ino()).or_insert((file, known));
            *is_known |= known;
        }
        let untold = open.into_values().filter(|(_, is_known)| !is_known);
        let inodes = untold.map(|(file, _)| file.inode.clone());
        inodes
            .filter(|inode| inode.held.is_due(volume.generation(inode.ino), age))
            .collect()
    }

    /// What an object is named by, for a look at it: what is open here is there also if others do not find it any more.
    pub fn target(&self, ino: Ino) -> Target {
        match self.all().contains_key(&ino) {
            true => Target::Checked(ino),
            false => Target::Ino(ino),
        }
    }

    /// The state of a file that is open.
    pub fn inode(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.all().get(&ino).map(|(_, inode)| inode.clone())
    }

    /// All files that are open.
    pub fn inodes(&self) -> Vec<Arc<Inode>> {
        self.all()
            .values()
            .map(|(_, inode)| inode.clone())
            .collect()
    }
}
