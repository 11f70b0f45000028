//! Many numbered runs on all cores, until one fails.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use quorate_sim::Failure;

/// How many runs may be at work at once.
pub fn threads() -> usize {
    thread::available_parallelism().map_or(1, |n| n.get())
}

/// The first run that fails, if one does. `begun` is told of each run.
pub fn first_failure(
    numbers: Range<u64>,
    threads: usize,
    run: impl Fn(u64) -> Result<(), Failure> + Sync,
    begun: impl Fn(u64) + Sync,
) -> Option<(u64, Failure)> {
    let next = AtomicU64::new(numbers.start);
    let first = AtomicU64::new(u64::MAX);
    let failures: Mutex<Vec<(u64, Failure)>> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    // Earlier ones that are still at work may fail as well.
                    if number >= numbers.end || number > first.load(Ordering::Relaxed) {
                        return;
                    }
                    begun(number);
                    if let Err(failure) = run(number) {
                        first.fetch_min(number, Ordering::Relaxed);
                        let mut failures = failures.lock().expect("no panics here");
                        failures.push((number, failure));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no panics here");
    failures.into_iter().min_by_key(|(number, _)| *number)
}

/// Does something while panics say nothing: a run that fails says all that there is to say itself.
pub fn quietly<R>(work: impl FnOnce() -> R) -> R {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = work();
    std::panic::set_hook(hook);
    result
}
