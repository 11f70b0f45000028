//! Threads that do jobs for another one, beside each other.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::{Panicked, spawn};

/// The threads. How many jobs wait is bounded by who sends them.
#[derive(Debug)]
pub struct Crew<J, D> {
    shared: Arc<Shared<J, D>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared<J, D> {
    queue: Mutex<Queue<J>>,
    /// A job has come, or no more will.
    woken: Condvar,
    done: Mutex<Vec<D>>,
}

#[derive(Debug)]
struct Queue<J> {
    urgent: VecDeque<J>,
    others: VecDeque<J>,
    has_ended: bool,
}

impl<J> Queue<J> {
    fn pop(&mut self) -> Option<J> {
        self.urgent.pop_front().or_else(|| self.others.pop_front())
    }

    fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.others.is_empty()
    }
}

impl<J: Send + 'static, D: Send + 'static> Crew<J, D> {
    /// Starts so many threads, named `name 0` and so on. `tell` is called on them when there is something for [`Crew::take_done`]; `died` where one
    /// panics: what it was given never comes back.
    ///
    /// # Errors
    /// Where the system has no more threads.
    pub fn spawn(
        (name, count): (&str, usize),
        work: impl Fn(J) -> D + Clone + Send + 'static,
        tell: impl Fn() + Clone + Send + 'static,
        died: impl FnOnce(Panicked) + Clone + Send + 'static,
    ) -> io::Result<Crew<J, D>> {
        let mut crew = Crew {
            shared: Arc::new(Shared {
                queue: Mutex::new(Queue {
                    urgent: VecDeque::new(),
                    others: VecDeque::new(),
                    has_ended: false,
                }),
                woken: Condvar::new(),
                done: Mutex::default(),
            }),
            threads: Vec::new(),
        };
        for at in 0..count {
            let (shared, work, tell) = (crew.shared.clone(), work.clone(), tell.clone());
            let work = move || shared.work(&work, &tell);
            let thread = spawn(&format!("{name} {at}"), died.clone(), work)?;
            crew.threads.push(thread);
        }
        Ok(crew)
    }
}

impl<J, D> Crew<J, D> {
    /// Has jobs done; urgent ones before the others.
    pub fn send(&self, jobs: Vec<J>, is_urgent: impl Fn(&J) -> bool) {
        let several = match jobs.len() {
            0 => return,
            n => n > 1,
        };
        let mut queue = lock(&self.shared.queue);
        for job in jobs {
            match is_urgent(&job) {
                true => queue.urgent.push_back(job),
                false => queue.others.push_back(job),
            }
        }
        drop(queue);
        match several {
            true => self.shared.woken.notify_all(),
            false => self.shared.woken.notify_one(),
        }
    }

    /// What jobs came to since the last time.
    pub fn take_done(&self) -> Vec<D> {
        std::mem::take(&mut *lock(&self.shared.done))
    }

    /// Gives up what has not begun.
    pub fn give_up(&self) {
        let mut queue = lock(&self.shared.queue);
        queue.urgent.clear();
        queue.others.clear();
    }
}

impl<J, D> Drop for Crew<J, D> {
    /// What was sent and not given up is done.
    fn drop(&mut self) {
        lock(&self.shared.queue).has_ended = true;
        self.shared.woken.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl<J, D> Shared<J, D> {
    fn work(&self, work: &impl Fn(J) -> D, tell: &impl Fn()) {
        while let Some(job) = self.next() {
            let came = work(job);
            let mut done = lock(&self.done);
            let is_first = done.is_empty();
            done.push(came);
            drop(done);
            // Whoever put something there before has told of it, and it has not been taken.
            if is_first {
                tell();
            }
        }
    }

    fn next(&self) -> Option<J> {
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
