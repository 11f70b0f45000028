//! How links hand over what happens: to whatever takes it, without ever waiting inside.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::link::Credit;

/// Takes an event and the credit that it holds. Must not block: what bounds the events is their credit, which is
/// to be dropped when the event is taken to be worked on.
pub type Deliver<E> = Arc<dyn Fn(E, Credit) + Send + Sync>;

/// A queue of events for a thread. Bounded by the budgets of the links that feed it.
pub fn channel<E: Send + 'static>() -> (Deliver<E>, Events<E>) {
    let (sender, receiver) = mpsc::channel();
    let deliver = move |event, credit| {
        // Nobody listens any more: then nobody misses it.
        let _ = sender.send((event, credit));
    };
    (Arc::new(deliver), Events(receiver))
}

/// The end of [`channel`] at which a thread takes events.
#[derive(Debug)]
pub struct Events<E>(mpsc::Receiver<(E, Credit)>);

impl<E> Events<E> {
    /// Waits for the next event; `None` if none came in time.
    pub fn recv(&self, timeout: Duration) -> Option<E> {
        self.0.recv_timeout(timeout).ok().map(|(event, _)| event)
    }

    /// The next event, if there is one already.
    pub fn try_recv(&self) -> Option<E> {
        self.0.try_recv().ok().map(|(event, _)| event)
    }
}

/// Lets one line a second through, so that a hostile peer can't fill the disk with log lines.
#[derive(Debug, Default)]
pub(crate) struct LogLimit {
    last: Mutex<Option<Instant>>,
    suppressed: AtomicU64,
}

impl LogLimit {
    /// Whether to write now, and how many lines were left out since the last one.
    pub fn pass(&self) -> Option<u64> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|last| last.elapsed() < Duration::from_secs(1)) {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        *last = Some(Instant::now());
        Some(self.suppressed.swap(0, Ordering::Relaxed))
    }
}
