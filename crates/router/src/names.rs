//! Names that are about to change: one call at a time. And directories that are to stay while something is put there, or to go.
//!
//! A call holds its names first, all at once, and a directory that it is to remove only then: whoever has to be waited for holds a name in that
//! directory, so waiting leads down the tree and comes to an end. Directories that change their parents wait for each other after that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use quorate_nfs::status::Status;
use tokio::sync::Notify;

use crate::handle::Handle;
use crate::intent::{Log, Name};

/// What is held here.
#[derive(Debug, Default)]
pub struct Names {
    held: Mutex<Table>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    names: BTreeSet<Name>,
    /// Directories that are to stay, and for how many calls.
    stay: BTreeMap<Handle, usize>,
    go: BTreeSet<Handle>,
}

/// What one call holds.
#[derive(Clone, Debug, Default)]
struct Wanted {
    names: Vec<Name>,
    stays: Option<Handle>,
    goes: Option<Handle>,
}

/// What is held until this goes, and its directories among routers.
#[derive(Debug)]
pub struct Held<'a, H> {
    _here: HeldHere<'a>,
    _elsewhere: H,
}

#[derive(Debug)]
struct HeldHere<'a> {
    wanted: Wanted,
    all: &'a Names,
}

impl Table {
    /// Holds all of it, or nothing.
    fn take(&mut self, wanted: &Wanted) -> bool {
        let is_free = wanted.names.iter().all(|name| !self.names.contains(name));
        let stays = wanted.stays.as_ref();
        let may_stay = stays.is_none_or(|dir| !self.go.contains(dir));
        let may_go = |dir: &Handle| !self.stay.contains_key(dir) && !self.go.contains(dir);
        if !is_free || !may_stay || !wanted.goes.as_ref().is_none_or(may_go) {
            return false;
        }
        self.names.extend(wanted.names.iter().cloned());
        if let Some(dir) = stays {
            *self.stay.entry(dir.clone()).or_default() += 1;
        }
        self.go.extend(wanted.goes.clone());
        true
    }

    fn give_back(&mut self, wanted: &Wanted) {
        for name in &wanted.names {
            self.names.remove(name);
        }
        if let Some(dir) = &wanted.stays
            && let Some(calls) = self.stay.get_mut(dir)
        {
            *calls -= 1;
            if *calls == 0 {
                self.stay.remove(dir);
            }
        }
        if let Some(dir) = &wanted.goes {
            self.go.remove(dir);
        }
    }
}

impl Names {
    /// Waits until nobody holds any of these, and holds them. All at once, so that no two wait for each other.
    ///
    /// # Errors
    /// [`Status::Jukebox`]: this router may not go on.
    pub async fn hold<L: Log>(
        &self,
        log: &L,
        names: Vec<Name>,
    ) -> Result<Held<'_, L::Hold>, Status> {
        let wanted = Wanted {
            names,
            ..Wanted::default()
        };
        self.hold_all(log, wanted).await
    }

    /// The same for a RENAME. The directory of the new name stays meanwhile: what is taken from that name may have to be given back.
    ///
    /// # Errors
    /// [`Status::Jukebox`]: this router may not go on.
    pub async fn hold_rename<L: Log>(
        &self,
        log: &L,
        from: &Name,
        to: &Name,
    ) -> Result<Held<'_, L::Hold>, Status> {
        let mut names = vec![from.clone(), to.clone()];
        names.dedup();
        let wanted = Wanted {
            names,
            stays: Some(to.dir.clone()),
            goes: None,
        };
        self.hold_all(log, wanted).await
    }

    /// Waits until no directory has to stay that is to be removed, whose own name the caller holds.
    ///
    /// # Errors
    /// [`Status::Jukebox`]: this router may not go on.
    pub async fn hold_removal<L: Log>(
        &self,
        log: &L,
        dir: &Handle,
    ) -> Result<Held<'_, L::Hold>, Status> {
        let wanted = Wanted {
            goes: Some(dir.clone()),
            ..Wanted::default()
        };
        self.hold_all(log, wanted).await
    }

    async fn hold_all<L: Log>(&self, log: &L, wanted: Wanted) -> Result<Held<'_, L::Hold>, Status> {
        let dirs = wanted.names.iter().map(|name| &name.dir);
        let dirs: BTreeSet<Handle> = dirs.chain(&wanted.goes).cloned().collect();
        let here = self.hold_here(wanted).await;
        let elsewhere = log.hold(dirs.into_iter().collect()).await?;
        Ok(Held {
            _here: here,
            _elsewhere: elsewhere,
        })
    }

    async fn hold_here(&self, wanted: Wanted) -> HeldHere<'_> {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            // From here on nothing is missed.
            freed.as_mut().enable();
            if self.lock().take(&wanted) {
                return HeldHere { wanted, all: self };
            }
            freed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HeldHere<'_> {
    fn drop(&mut self) {
        self.all.lock().give_back(&self.wanted);
        self.all.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Bucket;

    /// Several calls may put something in a directory at once; who removes it waits for all of them, and then they wait for who removes it.
    #[test]
    fn what_is_put_there_keeps_a_directory() {
        let dir = |key: &'static [u8]| Handle {
            bucket: Bucket(0),
            key: key.into(),
        };
        let puts = |name: &'static [u8]| Wanted {
            names: vec![Name {
                dir: dir(b"dir"),
                name: name.into(),
            }],
            stays: Some(dir(b"dir")),
            goes: None,
        };
        let removes = Wanted {
            goes: Some(dir(b"dir")),
            ..Wanted::default()
        };
        let mut table = Table::default();
        assert!(table.take(&puts(b"a")) && table.take(&puts(b"b")));
        assert!(!table.take(&puts(b"a")) && !table.take(&removes));
        table.give_back(&puts(b"a"));
        assert!(!table.take(&removes));
        table.give_back(&puts(b"b"));
        assert!(table.take(&removes));
        assert!(!table.take(&puts(b"a")) && !table.take(&removes));
        table.give_back(&removes);
        assert!(table.take(&puts(b"a")));
        table.give_back(&puts(b"a"));
        assert!(table.names.is_empty() && table.stay.is_empty() && table.go.is_empty());
    }
}
