//! The threads that seal and write for the thread that owns links.
//!
//! A link of which much is to be sent lends its channel to one of them (`hub/lending.rs`), with the frames; the thread does what the owner
//! would do in a flush, and hands back the channel and what is left. None of them waits for a socket. What waits here is bounded by who
//! lends: a link has one channel.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::channel::Lent;
use crate::hub::Lane;
use crate::threads::{self, Panicked};

/// To seal and write this takes the owner several times as long as to hand it over, and the hand-over costs the machine little more
/// (docs/performance.md).
const LENT_FROM: usize = 64 << 10;
/// Where all that is to be sent in a turn is so many times what one link has to have, the hand-over is shared, and links of which
/// less is to be sent are lent as well.
const TOGETHER: usize = 4;
const SHARE: usize = 16;

/// Where frames are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealing {
    /// On how many threads; 0: all on the thread that owns the links.
    pub threads: usize,
    /// How many bytes must wait on a link to be handed to these threads; a sixteenth, where four times so many wait on all links together. Fewer
    /// are sealed by the owner.
    pub from: usize,
}

impl Default for Sealing {
    /// What suits this machine: no threads where processors are few.
    fn default() -> Sealing {
        let processors = std::thread::available_parallelism();
        Sealing {
            threads: threads_for(processors.map_or(1, usize::from)),
            from: LENT_FROM,
        }
    }
}

impl Sealing {
    /// How much has to wait on a link to have it lent, where `all` waits on all links that can be written to.
    pub(crate) fn least(&self, all: usize) -> usize {
        match all / TOGETHER < self.from {
            true => self.from,
            false => self.from / SHARE,
        }
    }
}

/// None where processors are few, as of verifiers; two where there are enough of them that one would keep nobody waiting.
fn threads_for(processors: usize) -> usize {
    match processors {
        0..=3 => 0,
        4..=7 => 1,
        _ => 2,
    }
}

/// A channel on its way to a thread and back.
#[derive(Debug)]
pub(crate) struct Errand {
    /// Whose it is.
    pub token: usize,
    pub lane: Lane,
    pub lent: Lent,
}

/// The threads.
#[derive(Debug)]
pub(crate) struct Sealers {
    sealing: Sealing,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// An errand has come, or no more will.
    woken: Condvar,
    done: Mutex<Vec<Errand>>,
}

#[derive(Debug, Default)]
struct Queue {
    /// By lane: what goes to replicas is not to wait for what goes to clients.
    errands: [VecDeque<Errand>; 2],
    has_ended: bool,
}

impl Queue {
    fn pop(&mut self) -> Option<Errand> {
        self.errands.iter_mut().find_map(VecDeque::pop_front)
    }

    fn is_empty(&self) -> bool {
        self.errands.iter().all(VecDeque::is_empty)
    }
}

impl Sealers {
    /// Starts the threads. `tell` is called on them when there is something for [`Sealers::take_done`]; `died` where one panics.
    ///
    /// # Errors
    /// Where the system has no more threads.
    pub fn spawn(
        sealing: Sealing,
        tell: impl Fn() + Clone + Send + 'static,
        died: impl FnOnce(Panicked) + Clone + Send + 'static,
    ) -> io::Result<Sealers> {
        let mut sealers = Sealers {
            sealing,
            shared: Arc::default(),
            threads: Vec::new(),
        };
        for at in 0..sealing.threads {
            let (shared, tell) = (sealers.shared.clone(), tell.clone());
            let work = move || shared.work(&tell);
            let thread = threads::spawn(&format!("sealer {at}"), died.clone(), work)?;
            sealers.threads.push(thread);
        }
        Ok(sealers)
    }

    /// How they are to be used.
    pub fn sealing(&self) -> Sealing {
        self.sealing
    }

    /// Has channels' frames sealed and written.
    pub fn send(&self, errands: Vec<Errand>) {
        let several = match errands.len() {
            0 => return,
            n => n > 1,
        };
        let mut queue = lock(&self.shared.queue);
        for errand in errands {
            queue.errands[errand.lane as usize].push_back(errand);
        }
        drop(queue);
        match several {
            true => self.shared.woken.notify_all(),
            false => self.shared.woken.notify_one(),
        }
    }

    /// What has been done since the last time.
    pub fn take_done(&self) -> Vec<Errand> {
        std::mem::take(&mut *lock(&self.shared.done))
    }
}

impl Drop for Sealers {
    /// What was handed over is written, as far as the sockets take it: it may be the last that is said.
    fn drop(&mut self) {
        lock(&self.shared.queue).has_ended = true;
        self.shared.woken.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self, tell: &impl Fn()) {
        while let Some(mut errand) = self.next() {
            errand.lent.flush();
            let mut done = lock(&self.done);
            let is_first = done.is_empty();
            done.push(errand);
            drop(done);
            // Whoever put something there before has told of it, and it has not been taken.
            if is_first {
                tell();
            }
        }
    }

    fn next(&self) -> Option<Errand> {
        let queue = lock(&self.queue);
        let mut queue = self
            .woken
            .wait_while(queue, |queue| !queue.has_ended && queue.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        queue.pop()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// None where the processors are few.
    #[test]
    fn few_processors_have_none() {
        let threads = [1, 2, 3, 4, 7, 8, 64].map(threads_for);
        assert_eq!(threads, [0, 0, 0, 1, 1, 2, 2]);
    }
}
