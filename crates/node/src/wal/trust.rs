//! Whether a disk is quick enough to be waited for.

use std::ops::RangeInclusive;
use std::time::Duration;

/// A sync that took longer than this leaves the next ones to the log's thread: whoever waits for the disk hears nobody.
const SLOW: Duration = Duration::from_millis(1);
/// After a slow sync the thread is to have so many quick ones in a row; twice as many each time that one is slow soon again, up to so many.
const RUN: RangeInclusive<u32> = 4..=256;
/// After so many quick ones in a row a slow one is not soon.
const LONG_RUN: u32 = 32;

/// Whether a sync that took so long is quick.
pub(super) fn is_quick(took: Duration) -> bool {
    took <= SLOW
}

/// What is known of a disk. One that is slow now and then, as where others write to it too, is trusted again soon; one that mostly
/// is, hardly ever.
#[derive(Debug)]
pub(super) struct Trust {
    /// How many quick syncs of the thread in a row it takes to be trusted again; 0 where it is trusted.
    wanted: u32,
    /// How many it took the last time.
    run: u32,
    /// Quick syncs in a row that were waited for.
    quick: u32,
}

impl Trust {
    /// It is trusted at first.
    pub fn new() -> Trust {
        Trust {
            wanted: 0,
            run: *RUN.start(),
            quick: LONG_RUN,
        }
    }

    /// Whether the next sync may be waited for, where the thread's last `in_a_row` were quick.
    pub fn is_given(&mut self, in_a_row: u32) -> bool {
        if in_a_row >= self.wanted {
            self.wanted = 0;
        }
        self.wanted == 0
    }

    /// A sync was waited for, and took so long. The thread's are counted anew if it was slow.
    pub fn waited(&mut self, took: Duration) {
        if is_quick(took) {
            self.quick = self.quick.saturating_add(1);
            return;
        }
        self.run = match self.quick < LONG_RUN {
            true => (self.run * 2).min(*RUN.end()),
            false => *RUN.start(),
        };
        (self.wanted, self.quick) = (self.run, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_micros(1001);

    /// How many quick syncs of the thread in a row it takes, after a slow one.
    fn wanted(trust: &mut Trust) -> Option<u32> {
        (0..1000).find(|&in_a_row| trust.is_given(in_a_row))
    }

    /// Now and then a slow sync costs a few; one soon after the other ever more, up to a bound, until it was quick for long.
    #[test]
    fn trust_is_lost_at_once_and_comes_back() {
        let mut trust = Trust::new();
        assert!(trust.is_given(0));
        trust.waited(SLOW);
        assert!(trust.is_given(0));
        let mut taken = Vec::new();
        for _ in 0..9 {
            trust.waited(LONG);
            assert!(!trust.is_given(0));
            taken.extend(wanted(&mut trust));
            // Also when the thread's count begins anew.
            assert!(trust.is_given(0));
            (1..LONG_RUN).for_each(|_| trust.waited(SLOW));
        }
        assert_eq!(taken, [4, 8, 16, 32, 64, 128, 256, 256, 256]);
        trust.waited(SLOW);
        trust.waited(LONG);
        assert_eq!(wanted(&mut trust), Some(4));
    }
}
