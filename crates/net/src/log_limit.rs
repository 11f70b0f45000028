//! How often something is said in the log.

use std::time::{Duration, Instant};

use crate::clock;

/// Lets one line a second through, so that a hostile peer can't fill the disk with log lines.
#[derive(Debug, Default)]
pub(crate) struct LogLimit {
    last: Option<Instant>,
    suppressed: u64,
}

impl LogLimit {
    /// Whether to write now, and how many lines were left out since the last one.
    pub fn pass(&mut self) -> Option<u64> {
        let now = clock::now();
        if self
            .last
            .is_some_and(|last| now - last < Duration::from_secs(1))
        {
            self.suppressed += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}
