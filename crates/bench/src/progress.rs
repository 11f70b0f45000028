//! How far a benchmark is, for the people who wait for it.

use std::time::Instant;

use crate::clock;

/// Counts what is done of so many measurements.
#[derive(Debug)]
pub(crate) struct Progress {
    started: Instant,
    done: usize,
    all: usize,
}

impl Progress {
    pub fn new(all: usize) -> Progress {
        Progress {
            started: clock(),
            done: 0,
            all,
        }
    }

    /// So many will not be measured after all.
    pub fn skip(&mut self, measurements: usize) {
        self.all -= measurements;
    }

    /// One more is done: `name`, with these figures.
    pub fn tell(&mut self, name: &str, figures: &str) {
        self.done += 1;
        let Progress { done, all, started } = self;
        let left = started.elapsed().as_secs_f64() / *done as f64 * (*all - *done) as f64;
        eprintln!("[{done}/{all}, {left:.0} s left] {name}: {figures}");
    }
}
