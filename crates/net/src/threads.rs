//! Threads without which a process is half of one.
//!
//! Whoever gave such a thread something to do waits for its word, and a thread that has panicked gives none. So it is started here, and its
//! panic is told like all else that it has to say.

mod crew;

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{Builder, JoinHandle};

pub use crew::Crew;

/// A thread has panicked. Where in the code, the panic itself has said on standard error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the thread \"{thread}\" has panicked, which is a defect of this program or of the service that it runs: {words}"
)]
pub struct Panicked {
    /// The thread's name.
    pub thread: String,
    /// What the panic said.
    pub words: String,
}

impl Panicked {
    /// Of what was caught, or what [`JoinHandle::join`] gives.
    pub fn new(thread: &str, panic: &(dyn Any + Send)) -> Panicked {
        Panicked {
            thread: thread.into(),
            words: words(panic).into(),
        }
    }
}

/// What a panic said.
pub fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a word")
}

/// Starts a thread. Where `work` panics, `died` is told on that thread, when all that `work` had is gone.
///
/// # Errors
/// Where the system has no more threads.
pub fn spawn(
    name: &str,
    died: impl FnOnce(Panicked) + Send + 'static,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let builder = Builder::new().name(name.into());
    let name = name.to_owned();
    builder.spawn(move || {
        // Nobody sees what `work` leaves half done: it is gone by then, or behind a lock, and the process ends.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            died(Panicked::new(&name, &*panic));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// A panic is told by its thread's name and with its words, once what the thread held is let go of; an end is not told.
    #[test]
    fn a_panic_is_told() {
        let run = |work: fn()| {
            let (sender, told) = mpsc::channel();
            let (held, is_held) = mpsc::channel::<()>();
            let died = move |panicked| {
                let is_let_go = is_held.try_recv() == Err(mpsc::TryRecvError::Disconnected);
                sender.send((panicked, is_let_go)).unwrap();
            };
            let work = move || {
                let _held = held;
                work();
            };
            let thread = spawn("baker", died, work).unwrap();
            let told = told.recv().ok();
            thread.join().unwrap();
            told
        };
        let baker = |words: &str| Panicked {
            thread: "baker".into(),
            words: words.into(),
        };
        let told = run(|| panic!("no flour"));
        assert_eq!(told, Some((baker("no flour"), true)));
        let told = run(|| panic!("no {}", 7));
        assert_eq!(told, Some((baker("no 7"), true)));
        let told = run(|| std::panic::panic_any(7));
        assert_eq!(told, Some((baker("without a word"), true)));
        assert_eq!(run(|| ()), None);
    }
}
