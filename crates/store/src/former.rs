//! A store that is not believed, and is read all the same: each piece of it is checked by who has asked for it.
//!
//! It lies beside another one that is being filled, and shares its segments: a large value that is right where it is need not be
//! written again. Whoever had the machine may have made the file so that reading it fails in ways that no disk fails in; so a
//! panic is taken for damage. That reading may never end is for the caller to bear in mind.

use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quorate_state::transfer::{Found, Lookup, Names, Piece, look};
use redb::Database;

use crate::blobs::Blobs;
use crate::error::StoreError;
use crate::rows::{Damage, StoreSnapshot};
use crate::store::{self, Options};

/// A store that was set aside. The segments that it refers to are there as long as somebody holds them ([`Blobs::hold`]), which it does not
/// by itself: reading it may never end.
#[derive(Debug)]
pub struct Former(Mutex<Option<Arc<Open>>>);

#[derive(Debug)]
struct Open {
    snapshot: StoreSnapshot,
    _database: Database,
}

impl Former {
    /// Opens it, as far as it can be opened.
    ///
    /// # Errors
    /// [`StoreError`]; there is nothing to be had from it then.
    pub fn open(path: &Path, blobs: &Arc<Blobs>, options: Options) -> Result<Former, StoreError> {
        let database = store::open_existing(path, options)?;
        let (read, offers) = (store::begin_read(&database, path)?, true);
        let snapshot = store::snapshot_of(&read, blobs, path, &Damage::default(), offers)?;
        let open = Open {
            snapshot,
            _database: database,
        };
        Ok(Former(Mutex::new(Some(Arc::new(open)))))
    }

    fn open_now(&self) -> MutexGuard<'_, Option<Arc<Open>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks for pieces; on several threads at once, if need be.
    pub fn look(&self, lookup: &Lookup) -> Found {
        let open = self.open_now().clone();
        if let Some(open) = open {
            let found = panic::catch_unwind(AssertUnwindSafe(|| look(&open.snapshot, lookup)));
            if let Ok(found) = found {
                return found;
            }
            tracing::warn!("the store that was set aside can't be read, and is not used any more");
            *self.open_now() = None;
        }
        let names = match &lookup.names {
            Names::Nodes(names) | Names::Values(names) => names.len(),
        };
        Found {
            number: lookup.number,
            pieces: vec![Piece::Damaged; names],
        }
    }
}
