//! Open files of this mount. The kernel knows them by numbers of this front: the service's handles end with a session
//! and are made anew in the next.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quorate_files::op::{Open, flags};
use quorate_files::{Action, Answer, Errno, Handle, Ino, Who};

use super::ahead::Ahead;
use super::convert::Result;
use super::inode::Inode;
use crate::volume::{CallError, Volume};

/// How often an operation is tried with a handle that was opened again.
const ATTEMPTS: usize = 5;

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
    /// The service's handle, and in which session.
    handle: tokio::sync::Mutex<(u64, Handle)>,
    /// Up to which failed write this file has reported to one who syncs.
    pub reported: AtomicU64,
    /// Whether a close has told of one.
    pub told: AtomicBool,
    /// What is read ahead for it.
    pub ahead: Ahead,
}

impl OpenFile {
    pub fn ino(&self) -> Ino {
        self.inode.ino
    }

    /// The service's handle of now, and its session.
    async fn handle(&self, volume: &Volume) -> Result<(u64, Handle)> {
        let mut held = self.handle.lock().await;
        let generation = volume.generation(self.ino());
        if held.0 == generation {
            return Ok(*held);
        }
        let open = || Open {
            ino: self.ino(),
            flags: self.flags,
        };
        let mut opened = volume.open(&self.who, open()).await;
        if opened == Err(CallError::Refused(Errno::EACCES)) {
            // An open file keeps its rights, whatever its mode has become since.
            opened = volume.open(&Who::root(), open()).await;
        }
        let opened = opened?;
        tracing::info!(ino = %self.ino().0, "a file was opened again in a new session");
        // If the session was lost once more meanwhile, the handle is refused, and this comes round again.
        *held = (generation, opened.handle);
        Ok(*held)
    }

    /// Does something with the handle. Whatever can be repeated is repeated after a lost session.
    pub async fn with(
        &self,
        volume: &Volume,
        who: &Who,
        repeatable: bool,
        action: impl Fn(Handle) -> Action,
    ) -> Result<Answer> {
        for _ in 0..ATTEMPTS {
            let (generation, handle) = self.handle(volume).await?;
            match volume.once(who, action(handle)).await {
                Ok(answer) => return Ok(answer),
                // Refused for the handle, so not executed.
                Err(CallError::Refused(Errno::EBADF))
                    if volume.generation(self.ino()) != generation => {}
                Err(CallError::Lost) if repeatable => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(fuser::Errno::EIO)
    }

    /// As [`OpenFile::with`], with the handle of another file, too: what is done can be repeated.
    pub async fn with_both(
        &self,
        other: &OpenFile,
        volume: &Volume,
        action: impl Fn(Handle, Handle) -> Action,
    ) -> Result<Answer> {
        for _ in 0..ATTEMPTS {
            let (generation, own) = self.handle(volume).await?;
            let (theirs, others) = other.handle(volume).await?;
            let are_current = || {
                volume.generation(self.ino()) == generation
                    && volume.generation(other.ino()) == theirs
            };
            if !are_current() {
                continue;
            }
            match volume.once(&self.who, action(own, others)).await {
                Ok(answer) => return Ok(answer),
                Err(CallError::Refused(Errno::EBADF)) if !are_current() => {}
                Err(CallError::Lost) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(fuser::Errno::EIO)
    }

    /// Lets the service's handle go, if its session still is.
    pub async fn release(&self, volume: &Volume) {
        let (generation, handle) = *self.handle.lock().await;
        if volume.generation(self.ino()) == generation {
            // A session that was lost meanwhile has let it go.
            let _ = volume.release(&self.who, handle).await;
        }
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

    /// Notes a file that was opened in the session of `generation`.
    pub fn add(
        &self,
        ino: Ino,
        who: &Who,
        how: u32,
        generation: u64,
        handle: Handle,
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
        let file = Arc::new(OpenFile {
            number: self.next.fetch_add(1, Ordering::Relaxed) + 1,
            reported: AtomicU64::new(inode.failures()),
            told: AtomicBool::new(false),
            inode,
            who: who.clone(),
            flags: how & !(flags::TRUNC | flags::EXCLUSIVE),
            handle: tokio::sync::Mutex::new((generation, handle)),
            ahead: Ahead::default(),
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
        if file.flags & flags::WRITE != 0 {
            file.inode.released_for_writing();
        }
        Some(file)
    }

    /// All of a removed file's data is written: the state of its inode goes with its last one.
    pub fn done(&self, file: &OpenFile) {
        let mut inodes = self.all();
        if let Some((count, _)) = inodes.get_mut(&file.ino()) {
            *count -= 1;
            if *count == 0 {
                inodes.remove(&file.ino());
            }
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
