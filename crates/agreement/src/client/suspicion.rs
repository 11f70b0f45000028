//! What has failed is not relied on for a while, and for longer where it fails again.

use crate::Millis;

/// After so long without a failure the next one counts as the first.
const FORGIVEN_MS: Millis = 60_000;
/// As often as this the time doubles.
const DOUBLINGS: u32 = 5;

/// Until when something is not relied on, and how often it has failed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Suspicion {
    until: Millis,
    times: u32,
}

impl Suspicion {
    /// It has failed: it is not relied on for `first` milliseconds, twice as long each time that this comes again. A failure counts once,
    /// however many requests it delayed, and is forgotten after a while of good conduct.
    pub fn raise(&mut self, first: Millis, now: Millis) {
        if self.holds(now) {
            return;
        }
        if now - self.until > FORGIVEN_MS {
            self.times = 0;
        }
        self.until = now + (first << self.times.min(DOUBLINGS));
        self.times += 1;
    }

    pub fn holds(&self, now: Millis) -> bool {
        now < self.until
    }
}
