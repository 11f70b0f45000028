//! Listing directories. The kernel asks for a page at a time; the group is asked for hundreds of entries at once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quorate_files::answer::{Entries, Entry};
use quorate_files::op::ReadDir;
use quorate_files::{Attr, Errno, Ino, Target, Who};
use tokio::time::Instant;

use super::convert::Result;
use super::core::Core;
use super::shares::SHARES;
use crate::volume::CallError;

/// How many entries the group is asked for.
const ENTRIES: u32 = 2048;
/// The same where attributes come with them.
const ENTRIES_PLUS: u32 = 512;
/// For how long a listing goes on with the entries that it has; one that begins asks anew.
const BATCH_AGE: Duration = Duration::from_secs(1);

/// An open directory. It has no handle at the service: listing is a read, and opening would be a change to agree on.
#[derive(Debug)]
pub(super) struct OpenDir {
    ino: Ino,
    who: Who,
    batch: tokio::sync::Mutex<Option<Arc<Batch>>>,
    /// What there is was listed to open it, and nobody has seen it yet.
    unseen: AtomicBool,
}

/// Entries as they came from the group.
#[derive(Debug)]
struct Batch {
    entries: Vec<Entry>,
    /// The cookie before the first entry.
    after: u64,
    end: bool,
    plus: bool,
    at: Instant,
    epoch: u64,
}

/// Where to go on in a batch.
#[derive(Debug)]
pub(super) struct Page {
    batch: Arc<Batch>,
    from: usize,
}

impl Page {
    pub fn entries(&self) -> &[Entry] {
        &self.batch.entries[self.from..]
    }

    /// How old the entries are.
    pub fn age(&self) -> Duration {
        self.batch.at.elapsed()
    }
}

/// The open directories by number.
#[derive(Debug, Default)]
pub(super) struct Listings {
    next: AtomicU64,
    open: Mutex<BTreeMap<u64, Arc<OpenDir>>>,
}

impl Listings {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<OpenDir>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, ino: Ino, who: Who) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let dir = OpenDir {
            ino,
            who,
            batch: tokio::sync::Mutex::default(),
            unseen: AtomicBool::new(false),
        };
        self.lock().insert(number, Arc::new(dir));
        number
    }

    pub fn get(&self, number: u64) -> Result<Arc<OpenDir>> {
        self.lock().get(&number).cloned().ok_or(fuser::Errno::EBADF)
    }

    pub fn remove(&self, number: u64) {
        self.lock().remove(&number);
    }
}

impl Batch {
    /// Where the entry after a cookie is, or would be; `None` if that is not in this batch.
    fn position(&self, cookie: u64) -> Option<usize> {
        let index = match cookie == self.after {
            true => 0,
            false => 1 + self.entries.iter().position(|e| e.cookie == cookie)?,
        };
        (index < self.entries.len() || self.end).then_some(index)
    }
}

impl Core {
    /// Opens a directory. For a guest the kernel does not look whether he may list it, so the service is asked, by the first page of
    /// the listing, which then is there.
    pub async fn open_dir(self: &Arc<Core>, who: Who, ino: Ino) -> Result<u64> {
        let number = self.listings.add(ino, who);
        if self.is_guest() {
            // With attributes, as the kernel begins.
            match self.list(number, 0, true).await {
                Ok(_) => self
                    .listings
                    .get(number)?
                    .unseen
                    .store(true, Ordering::Release),
                Err(errno) => {
                    self.listings.remove(number);
                    return Err(errno);
                }
            }
        }
        Ok(number)
    }

    /// The entries after a cookie; none at the end.
    pub async fn list(self: &Arc<Core>, number: u64, cookie: u64, plus: bool) -> Result<Page> {
        let dir = self.listings.get(number)?;
        let mut held = dir.batch.lock().await;
        let is_unseen = dir.unseen.swap(false, Ordering::AcqRel);
        // From the start is always anew: rewinddir(3).
        if (cookie != 0 || is_unseen)
            && let Some(batch) = held.as_ref()
            && batch.epoch == self.epoch()
            && batch.at.elapsed() < BATCH_AGE
            && (batch.plus || !plus)
            && let Some(from) = batch.position(cookie)
        {
            let batch = batch.clone();
            return Ok(Page { batch, from });
        }
        let (at, epoch) = (Instant::now(), self.epoch());
        let read = ReadDir {
            target: Target::Ino(dir.ino),
            cookie,
            count: if plus { ENTRIES_PLUS } else { ENTRIES },
            plus,
        };
        let listed = match &self.shares {
            Some(shares) if dir.ino == SHARES => Ok(Entries {
                entries: self.shown(&dir.who, shares.list(cookie)).await?,
                end: true,
                next: cookie,
            }),
            _ => self.volume.read_dir(&dir.who, read).await,
        };
        let (entries, end) = match listed {
            Ok(entries) => (entries.entries, entries.end),
            // Removed while it is open: it has no entries.
            Err(CallError::Refused(Errno::ENOENT)) => (Vec::new(), true),
            // So it is here. But who has seen some of them, or may see none any more, must not take that for all there are: programs remove
            // elsewhere what is not listed.
            Err(CallError::Refused(Errno::ESTALE)) if cookie == 0 && !self.is_guest() => {
                (Vec::new(), true)
            }
            Err(error) => return Err(error.into()),
        };
        if self.caching.accesses_of_directories
            && let Some(own) = entries.first().filter(|entry| &entry.name[..] == b".")
            && let Some(attr) = &own.attr
        {
            self.accesses.note(attr);
        }
        let batch = Arc::new(Batch {
            entries,
            after: cookie,
            end,
            plus,
            at,
            epoch,
        });
        *held = Some(batch.clone());
        Ok(Page { batch, from: 0 })
    }

    /// What several people share, with attributes; without what is not there for the caller any more.
    async fn shown(self: &Arc<Core>, who: &Who, shares: Vec<Entry>) -> Result<Vec<Entry>> {
        let mut shown = Vec::with_capacity(shares.len());
        for entry in shares {
            match self.get_attr(who, entry.ino).await {
                Ok(attr) => shown.push(Entry {
                    kind: attr.kind,
                    attr: Some(attr),
                    ..entry
                }),
                Err(fuser::Errno::ESTALE | fuser::Errno::ENOENT | fuser::Errno::EACCES) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(shown)
    }

    /// An entry's attributes with all own writes in them, if the object still is.
    pub async fn fresh_entry(self: &Arc<Core>, entry: &Entry) -> Option<Attr> {
        self.fresh(entry.attr.clone()?).await.ok()
    }
}

#[cfg(test)]
mod tests;
