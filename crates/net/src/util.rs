//! Clocks and log lines of links.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[allow(
    clippy::disallowed_methods,
    reason = "links are drivers: their time-outs run on this machine's clock"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Seconds since 1970 on this machine's clock.
#[allow(
    clippy::disallowed_methods,
    reason = "a credential holds at certain times, and agreed time is not known where links are made"
)]
pub(crate) fn wall_seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Lets one line a second through, so that a hostile peer can't fill the disk with log lines.
#[derive(Debug, Default)]
pub(crate) struct LogLimit {
    last: Option<Instant>,
    suppressed: u64,
}

impl LogLimit {
    /// Whether to write now, and how many lines were left out since the last one.
    pub fn pass(&mut self) -> Option<u64> {
        let now = now();
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
