//! The threads that run operations beside each other.
//!
//! There can be hundreds, for services that wait. A hand-over from thread to thread costs more than a short job: so jobs wake one
//! thread, which wakes the next if there is more to do, and what several came to is told once. The thread that has worked last is
//! woken first: what it needs is still in its processor's caches, and where there is little to do the others sleep on.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use quorate_execution::graph::Conflicts;
use quorate_execution::{Completion, Job, Service};
use quorate_net::threads::{self, Panicked};

/// The threads. How many jobs wait is bounded by the replica.
#[derive(Debug)]
pub(crate) struct Pool {
    conflicts: Conflicts,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// For each thread: it is woken, or no more jobs will come.
    woken: Vec<Condvar>,
    done: Mutex<Vec<Completion>>,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// The threads that sleep; the last has worked last.
    idle: Vec<usize>,
    has_ended: bool,
}

impl Pool {
    /// Starts the threads. `tell` is called on them when there is something for [`Pool::take_done`]; `died` where one panics, but for what the
    /// service does, which is told of the operation.
    ///
    /// # Errors
    /// Where the system has no more threads.
    pub fn spawn<S: Service + Clone>(
        threads: usize,
        service: &S,
        conflicts: Conflicts,
        tell: impl Fn() + Clone + Send + 'static,
        died: impl FnOnce(Panicked) + Clone + Send + 'static,
    ) -> std::io::Result<Pool> {
        let mut pool = Pool {
            conflicts,
            shared: Arc::new(Shared {
                woken: (0..threads).map(|_| Condvar::new()).collect(),
                ..Shared::default()
            }),
            threads: Vec::new(),
        };
        for at in 0..threads {
            let (shared, service, tell) = (pool.shared.clone(), service.clone(), tell.clone());
            let work = move || shared.work(at, &service, &tell);
            let thread = threads::spawn(&format!("worker {at}"), died.clone(), work)?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// How many threads there are.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Whether what runs beside each other follows from what operations use.
    pub fn conflicts(&self) -> Conflicts {
        self.conflicts
    }

    /// Has jobs run.
    pub fn run(&self, jobs: Vec<Job>) {
        let mut queue = self.shared.queue();
        queue.jobs.extend(jobs);
        self.shared.wake(queue);
    }

    /// What jobs came to since the last time.
    pub fn take_done(&self) -> Vec<Completion> {
        std::mem::take(&mut *lock(&self.shared.done))
    }
}

impl Drop for Pool {
    /// What has begun comes to its end.
    fn drop(&mut self) {
        let mut queue = self.shared.queue();
        queue.has_ended = true;
        queue.jobs.clear();
        drop(queue);
        self.shared.woken.iter().for_each(Condvar::notify_one);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work<S: Service>(&self, me: usize, service: &S, tell: &impl Fn()) {
        let mut queue = self.queue();
        loop {
            let Some(job) = queue.jobs.pop_front() else {
                if queue.has_ended {
                    return;
                }
                queue.idle.push(me);
                queue = self.woken[me]
                    .wait_while(queue, |queue| !queue.has_ended && queue.idle.contains(&me))
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            // Each wakes the next, so that nobody is woken for what the first has done meanwhile.
            match queue.jobs.is_empty() {
                true => drop(queue),
                false => self.wake(queue),
            }
            let completion = run(service, &job);
            // Before it is told: its view may hold on to what can then be changed in place.
            drop(job);
            let mut done = lock(&self.done);
            let is_first = done.is_empty();
            done.push(completion);
            drop(done);
            // Whoever put something there before has told of it, and it has not been taken.
            if is_first {
                tell();
            }
            queue = self.queue();
        }
    }

    /// Wakes a thread, if one sleeps.
    fn wake(&self, mut queue: MutexGuard<'_, Queue>) {
        let woken = queue.idle.pop();
        // It would only wait for the lock.
        drop(queue);
        if let Some(thread) = woken {
            self.woken[thread].notify_one();
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }
}

/// A panic takes the replica out, and says why.
fn run<S: Service>(service: &S, job: &Job) -> Completion {
    catch_unwind(AssertUnwindSafe(|| job.run(service))).unwrap_or_else(|panic| {
        let words = threads::words(&*panic);
        job.failed(format!("the service has panicked: {words}"))
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
