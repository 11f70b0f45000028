//! A store that the replica does not believe: set aside, and looked into on threads of its own while the replica recovers.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quorate_net::disk;
use quorate_net::threads::{self, Panicked};
use quorate_state::transfer::{Found, LOOKUPS, Lookup};
use quorate_store::{Blobs, Former, Options, StoreError};
use rustix::fs::{Advice, fadvise};

use super::DaemonError;

const NAME: &str = "former.redb";
/// What opening it leaves beside it.
const LOCK: &str = "former.redb.lock";
/// All that may be there of it.
pub(super) const FILES: [&str; 2] = [NAME, LOCK];
/// How long is waited for whoever has it open.
const LOCKED_TRIES: u32 = 20;
const LOCKED_PAUSE: Duration = Duration::from_millis(50);
/// How many lookups are read at once.
const READERS: usize = LOOKUPS / 2;

/// Sets a store aside, unless there is one already that was: it is older, and as good. Then `state` is removed.
pub(super) fn set_aside(data: &Path, state: &Path) -> io::Result<()> {
    let former = data.join(NAME);
    let moved = match former.try_exists()? {
        true => fs::remove_file(state),
        false => fs::rename(state, &former),
    };
    match moved {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    disk::sync_directory_of(&former)
}

/// Puts what was set aside in its place again, once the threads of this process that looked into it have let it go: closing it writes to it.
/// They have nothing left to do; where reading does not end, that it is in use is the error.
pub(super) fn take_back(data: &Path, state: &Path, blobs: &Arc<Blobs>) -> Result<(), DaemonError> {
    let former = data.join(NAME);
    if !former.exists() {
        return Ok(());
    }
    let mut tries = 0;
    while let Err(e @ StoreError::Locked { .. }) = Former::open(&former, blobs, Options::default())
    {
        tries += 1;
        if tries > LOCKED_TRIES {
            return Err(e.into());
        }
        std::thread::sleep(LOCKED_PAUSE);
    }
    let moved = fs::rename(&former, state).and_then(|()| disk::sync_directory_of(state));
    moved.map_err(|source| DaemonError::Io {
        path: former,
        source,
    })
}

/// Whether a state was set aside.
pub(super) fn is_there(data: &Path) -> bool {
    data.join(NAME).exists()
}

/// Opens what was set aside, if anything was and it can be opened. What never can is removed: a later recovery would keep it as what was set aside
/// first, and remove the present state for it.
pub(super) fn open(data: &Path, blobs: &Arc<Blobs>) -> Option<Former> {
    if !is_there(data) {
        return None;
    }
    let path = data.join(NAME);
    match Former::open(&path, blobs, Options::default()) {
        Ok(former) => Some(former),
        Err(e) => {
            tracing::warn!("nothing of the former state can be used: {e}");
            if e.is_damage()
                && let Err(e) = remove(data)
            {
                tracing::warn!("and it can't be removed: {e}");
            }
            None
        }
    }
}

/// Removes what was set aside.
pub(super) fn remove(data: &Path) -> io::Result<()> {
    for name in FILES {
        match fs::remove_file(data.join(name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

/// Has the system forget the pages of the files that a recovering replica reads, so that it reads what is on the disk. Advice is
/// all that a process without privileges can give.
pub(super) fn drop_cached_pages(data: &Path) {
    let blobs = fs::read_dir(data.join("blobs")).into_iter().flatten();
    // To open what is no file might wait for ever.
    let is_file = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_file());
    let blobs = blobs.flatten().filter(is_file).map(|entry| entry.path());
    for path in blobs.chain([data.join(NAME)]) {
        if let Ok(file) = File::open(&path) {
            // Dirty pages stay: what was written is on the disk first.
            let _ = file.sync_data();
            let _ = fadvise(&file, 0, None, Advice::DontNeed);
        }
    }
}

/// The threads that look.
#[derive(Debug)]
pub(crate) struct FormerThreads {
    lookups: Sender<Lookup>,
    data: PathBuf,
}

impl FormerThreads {
    /// Starts the threads. `tell` is called on them; `died` where one panics, but for what reading does, which counts as damage.
    ///
    /// # Errors
    /// Where the system has no more threads.
    pub fn spawn(
        data: PathBuf,
        former: Former,
        tell: impl Fn(Found) + Clone + Send + 'static,
        died: impl FnOnce(Panicked) + Clone + Send + 'static,
    ) -> io::Result<FormerThreads> {
        let (lookups, asked) = mpsc::channel();
        let (asked, former) = (Arc::new(Mutex::new(asked)), Arc::new(former));
        for _ in 0..READERS {
            let (asked, former, tell) = (asked.clone(), former.clone(), tell.clone());
            // Nobody waits for its end: somebody may have seen to it that reading never ends.
            threads::spawn("former state", died.clone(), move || {
                let next = || asked.lock().unwrap_or_else(PoisonError::into_inner).recv();
                while let Ok(lookup) = next() {
                    tell(former.look(&lookup));
                }
            })?;
        }
        Ok(FormerThreads { lookups, data })
    }

    /// Looks for pieces. How many wait is bounded by the replica.
    pub fn look(&self, lookup: Lookup) {
        // They do not end before this does.
        let _ = self.lookups.send(lookup);
    }

    /// Removes what was looked into.
    pub fn finish(self) {
        if let Err(e) = remove(&self.data) {
            tracing::warn!("the former state could not be removed: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_state::Layer;
    use quorate_store::Store;
    use quorate_wire::Seq;

    /// What somebody has left in its place, and can't be opened, is gone after one recovery: at the next the state that came since is set aside.
    #[test]
    fn what_can_not_be_opened_does_not_cost_the_next_state() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path();
        let (state, former) = (data.join("state.redb"), data.join(NAME));
        let blobs = Blobs::open(&data.join("blobs")).unwrap();
        for is_garbage in [true, false] {
            let mut store = Store::open(&state, blobs.clone(), Options::default()).unwrap();
            store.checkpoint(Seq(1), &Layer::new(), true).unwrap();
            drop(store);
            if is_garbage {
                fs::write(&former, [7; 10_000]).unwrap();
            }
            set_aside(data, &state).unwrap();
            let opened = open(data, &blobs).is_some();
            assert_eq!((opened, former.exists()), (!is_garbage, !is_garbage));
        }
    }
}
