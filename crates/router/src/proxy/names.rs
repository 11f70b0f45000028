//! Names that are about to change: one call at a time.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use quorate_nfs::status::Status;
use tokio::sync::Notify;

use crate::handle::Handle;
use crate::intent::{Log, Name};

/// The names that are held here.
#[derive(Debug, Default)]
pub(crate) struct Names {
    held: Mutex<BTreeSet<Name>>,
    freed: Notify,
}

/// Names that are held until this goes, and their directories among routers.
#[derive(Debug)]
pub(crate) struct Held<'a, H> {
    _here: HeldHere<'a>,
    _elsewhere: H,
}

#[derive(Debug)]
struct HeldHere<'a> {
    names: Vec<Name>,
    all: &'a Names,
}

impl Names {
    /// Waits until nobody holds any of these, and holds them. All at once, so that no two wait for each other.
    ///
    /// # Errors
    /// [`Status::Jukebox`]: this router may not go on.
    pub(crate) async fn hold<L: Log>(
        &self,
        log: &L,
        names: Vec<Name>,
    ) -> Result<Held<'_, L::Hold>, Status> {
        let dirs: BTreeSet<Handle> = names.iter().map(|name| name.dir.clone()).collect();
        let here = self.hold_here(names).await;
        let elsewhere = log.hold(dirs.into_iter().collect()).await?;
        Ok(Held {
            _here: here,
            _elsewhere: elsewhere,
        })
    }

    async fn hold_here(&self, names: Vec<Name>) -> HeldHere<'_> {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            // From here on nothing is missed.
            freed.as_mut().enable();
            {
                let mut held = self.lock();
                if names.iter().all(|name| !held.contains(name)) {
                    held.extend(names.iter().cloned());
                    drop(held);
                    return HeldHere { names, all: self };
                }
            }
            freed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<Name>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HeldHere<'_> {
    fn drop(&mut self) {
        let mut held = self.all.lock();
        for name in &self.names {
            held.remove(name);
        }
        drop(held);
        self.all.freed.notify_waiters();
    }
}
