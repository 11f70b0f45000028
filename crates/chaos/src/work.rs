//! What clients do: each asks for one thing after the other and writes down what it was told.

mod choose;
pub mod layout;
mod library;
mod mounted;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

pub use layout::Layout;
pub use library::{Client, library, look_at_all};
pub use mounted::mounted;

use crate::history::Recorder;
use choose::Chooser;

/// What all clients of a round share.
#[derive(Debug)]
pub struct Shared {
    /// The history.
    pub recorder: Recorder,
    /// Whether no more is to be asked for.
    pub stop: AtomicBool,
    /// How many clients have stopped.
    pub stopped: AtomicU64,
    /// How long a client rests between two operations, at most, in milliseconds.
    pub rest_ms: u64,
}

impl Shared {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn left(&self) {
        self.stopped.fetch_add(1, Ordering::AcqRel);
    }

    fn rest(&self, chooser: &mut Chooser) -> Duration {
        Duration::from_micros(chooser.below(self.rest_ms * 1000 + 1))
    }
}
