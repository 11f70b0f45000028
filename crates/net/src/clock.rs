//! This machine's clocks, as links and key holders go by them.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

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
