//! What programs have read, told to the group a second later and for many objects at once, so that it keeps times of access as `relatime` has them
//! (docs/files.md, *Times of access*).
//!
//! What is lost of it, as with this machine, was no change that anybody was promised.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quorate_files::op::{Accessed, MAX_ACCESSED_AT_ONCE, Seen};
use quorate_files::{Attr, Ino, Stamp, Who, is_access_due};
use tokio::runtime::Handle;

use crate::volume::Volume;
use crate::wall;

/// For how long what was read waits for more.
const GATHERED_FOR: Duration = Duration::from_secs(1);
/// The most objects that wait. Of further ones, which a program must have read within a second, the times of access stay.
const MAX_WAITING: usize = 16 * MAX_ACCESSED_AT_ONCE;

/// What was read of a volume and is to be told.
#[derive(Debug)]
pub struct Accesses {
    volume: Volume,
    runtime: Handle,
    /// The change of each object that was read.
    waiting: Mutex<BTreeMap<Ino, u64>>,
    /// One after the other: who waits for it knows that all is told that was noted before.
    turn: tokio::sync::Mutex<()>,
}

impl Accesses {
    /// Nothing was read yet.
    pub fn new(volume: Volume, runtime: Handle) -> Arc<Accesses> {
        Arc::new(Accesses {
            volume,
            runtime,
            waiting: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        })
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<Ino, u64>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An object was read that had these attributes. Where its time of access is due the group is told a moment later.
    pub fn note(self: &Arc<Self>, attr: &Attr) {
        if !is_access_due(attr.atime, attr.mtime, attr.ctime, now()) || self.volume.is_guests() {
            return;
        }
        let mut waiting = self.waiting();
        if waiting.len() >= MAX_WAITING && !waiting.contains_key(&attr.ino) {
            return;
        }
        waiting.insert(attr.ino, attr.change);
        if waiting.len() == 1 {
            let accesses = self.clone();
            self.runtime.spawn(async move {
                tokio::time::sleep(GATHERED_FOR).await;
                accesses.tell().await;
            });
        }
    }

    /// Tells the group of all that was noted; done when it knows.
    pub async fn tell(&self) {
        let _turn = self.turn.lock().await;
        let noted: Vec<(Ino, u64)> = std::mem::take(&mut *self.waiting()).into_iter().collect();
        for part in noted.chunks(MAX_ACCESSED_AT_ONCE) {
            let seen = |(ino, change): &(Ino, u64)| Seen {
                ino: *ino,
                change: *change,
            };
            let objects = part.iter().map(seen).collect();
            // Whoever has read it was allowed to. What is refused, or lost with the session, stays as it was.
            let told = self
                .volume
                .accessed(&Who::root(), Accessed { objects })
                .await;
            if let Err(error) = told {
                tracing::debug!("times of access are not told: {error}");
            }
        }
    }
}

/// Whether a time of access is a day old is for the group to say, by agreed time: this is not to ask in vain.
fn now() -> Stamp {
    let now = wall::now();
    Stamp {
        secs: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
        nanos: now.subsec_nanos(),
    }
}
