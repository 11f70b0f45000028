//! Waking the thread that waits for links.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mio::{Registry, Token};

/// Its token; links count up from 0.
pub(super) const WAKER: Token = Token(usize::MAX);

/// Wakes the thread that waits for links, from any other thread.
#[derive(Clone)]
pub struct Waker(Arc<Shared>);

struct Shared {
    waker: mio::Waker,
    /// Whether the thread has been woken and has not looked yet.
    woken: AtomicBool,
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}

impl Waker {
    pub(crate) fn new(registry: &Registry) -> io::Result<Waker> {
        Ok(Waker(Arc::new(Shared {
            waker: mio::Waker::new(registry, WAKER)?,
            woken: AtomicBool::new(false),
        })))
    }

    /// Ends the present wait, or else the next one. What the thread is to find must be in place before.
    pub fn wake(&self) {
        if !self.0.woken.swap(true, Ordering::AcqRel)
            && let Err(e) = self.0.waker.wake()
        {
            tracing::error!("a thread can't be woken: {e}");
        }
    }

    /// To be called after a wait and before the thread looks for what others have left for it.
    pub(crate) fn rearm(&self) {
        self.0.woken.store(false, Ordering::Release);
    }
}
