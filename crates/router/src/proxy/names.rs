//! Names that are about to change: one call at a time.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::intent::Name;

/// The names that are held.
#[derive(Debug, Default)]
pub(super) struct Names {
    held: Mutex<BTreeSet<Name>>,
    freed: Notify,
}

/// Names that are held until this goes.
#[derive(Debug)]
pub(super) struct Held<'a> {
    names: Vec<Name>,
    all: &'a Names,
}

impl Names {
    /// Waits until nobody holds any of these, and holds them. All at once, so that no two wait for each other.
    pub(super) async fn hold(&self, names: Vec<Name>) -> Held<'_> {
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
                    return Held { names, all: self };
                }
            }
            freed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<Name>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut held = self.all.lock();
        for name in &self.names {
            held.remove(name);
        }
        drop(held);
        self.all.freed.notify_waiters();
    }
}
