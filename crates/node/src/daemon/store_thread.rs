//! A thread that owns the store and writes one layer after the other.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

use quorate_net::threads::{self, Panicked};
use quorate_state::{Layer, Snapshot};
use quorate_store::{Store, StoreError};
use quorate_wire::{Body, Digest, Seq};

/// What the store's thread says.
#[derive(Debug)]
pub(crate) enum StoreEvent {
    /// A layer is in the store.
    Stored {
        seq: Seq,
        complete: bool,
        root: Digest,
        snapshot: Arc<dyn Snapshot>,
    },
    /// Nothing more is written: the replica must stop.
    Failed(StoreError),
}

struct Job {
    seq: Seq,
    complete: bool,
    layer: Arc<Layer>,
    bodies: Vec<Body>,
}

/// The store's thread.
#[derive(Debug)]
pub(crate) struct StoreThread {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "layer up to {:?}", self.seq)
    }
}

impl StoreThread {
    /// Starts the thread. `tell` is called on it; `died` where it panics, after which nothing more is written or said.
    ///
    /// # Errors
    /// Where the system has no more threads.
    pub fn spawn(
        mut store: Store,
        mut tell: impl FnMut(StoreEvent) + Send + 'static,
        died: impl FnOnce(Panicked) + Send + 'static,
    ) -> io::Result<StoreThread> {
        let (sender, receiver) = mpsc::channel::<Job>();
        let work = move || {
            while let Ok(Job {
                seq,
                complete,
                layer,
                bodies,
            }) = receiver.recv()
            {
                for body in bodies {
                    store.know(body, seq);
                }
                match store.checkpoint(seq, &layer, complete) {
                    Ok((root, snapshot)) => {
                        tell(StoreEvent::Stored {
                            seq,
                            complete,
                            root,
                            snapshot,
                        });
                    }
                    Err(e) => {
                        tell(StoreEvent::Failed(e));
                        // Who reads meanwhile is not to find it closed: it is to stop for what has failed, and for nothing else.
                        while receiver.recv().is_ok() {}
                        return;
                    }
                }
            }
        };
        Ok(StoreThread {
            jobs: Some(sender),
            thread: Some(threads::spawn("store", died, work)?),
        })
    }

    /// Writes a layer over the newest content, of which the digests of some parts are known. How many wait is bounded by the replica.
    pub fn write(&self, seq: Seq, complete: bool, layer: Arc<Layer>, bodies: Vec<Body>) {
        if let Some(jobs) = &self.jobs {
            // Fails only after it was told why.
            let _ = jobs.send(Job {
                seq,
                complete,
                layer,
                bodies,
            });
        }
    }
}

impl Drop for StoreThread {
    /// Writes what was commanded, and closes the store.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_store::{Blobs, Options};
    use std::time::Duration;

    /// A panic of the store's thread is told, so that nobody waits for a checkpoint that never comes.
    #[test]
    fn a_panic_is_told() {
        let place = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(&place.path().join("blobs")).unwrap();
        let store = Store::open(&place.path().join("state"), blobs, Options::default()).unwrap();
        let (dying, died) = mpsc::channel();
        let died_too = move |panicked| dying.send(panicked).unwrap();
        let thread = StoreThread::spawn(store, |_| panic!("as asked"), died_too).unwrap();
        let layer = Arc::new(Layer::default());
        for seq in [128, 256] {
            thread.write(Seq(seq), true, layer.clone(), Vec::new());
        }
        let panicked = died.recv_timeout(Duration::from_secs(60)).unwrap();
        let told = (&*panicked.thread, &*panicked.words);
        assert_eq!(told, ("store", "as asked"));
    }
}
