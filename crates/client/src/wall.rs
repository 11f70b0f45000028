//! The machine's wall clock: for guesses within fixed bounds. What is agreed on has the group's time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time since 1970; none where the clock is before that.
#[allow(
    clippy::disallowed_methods,
    reason = "how old something is, is a guess within fixed bounds"
)]
pub(crate) fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}
