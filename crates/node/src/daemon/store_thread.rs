//! A thread that owns the store and writes one layer after the other.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

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
    /// Starts the thread. `tell` is called on it.
    pub fn spawn(
        mut store: Store,
        mut tell: impl FnMut(StoreEvent) + Send + 'static,
    ) -> StoreThread {
        let (sender, receiver) = mpsc::channel::<Job>();
        let thread = std::thread::spawn(move || {
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
                    Err(e) => return tell(StoreEvent::Failed(e)),
                }
            }
        });
        StoreThread {
            jobs: Some(sender),
            thread: Some(thread),
        }
    }

    /// Writes a layer over the newest content, of which the digests of some parts are known. How many wait is bounded by the replica.
    pub fn write(&self, seq: Seq, complete: bool, layer: Arc<Layer>, bodies: Vec<Body>) {
        if let Some(jobs) = &self.jobs {
            // Fails only after `Failed` was told.
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
