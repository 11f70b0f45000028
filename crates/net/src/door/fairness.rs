//! What is done for those who knock, and for whom of them first.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Work that is done for those who knock at once: a thousand clients that come back together, with a fifth of a millisecond each,
/// are let in without a pause.
const WORK_AT_ONCE: Duration = Duration::from_millis(250);
/// Beyond that, for so much time that passes one part of work.
const WORK_SHARE: u32 = 40;
/// Work that is waited for when there is none left.
const LEAST_WORK: Duration = Duration::from_micros(500);

/// How long this thread has had a processor. A busy machine's clock says more: there, a few clients that come back together would use up what there is.
pub(super) fn worked() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// How long the thread may still work for those who knock.
#[derive(Debug)]
pub(super) struct Work {
    left: Duration,
    owed: Duration,
    at: Instant,
}

impl Work {
    pub fn new(now: Instant) -> Work {
        Work {
            left: WORK_AT_ONCE,
            owed: Duration::ZERO,
            at: now,
        }
    }

    pub fn refill(&mut self, now: Instant) {
        let came = now.saturating_duration_since(self.at) / WORK_SHARE;
        self.at = self.at.max(now);
        let paid = came.min(self.owed);
        self.owed -= paid;
        self.left = (self.left + came - paid).min(WORK_AT_ONCE);
    }

    pub fn spend(&mut self, took: Duration) {
        let taken = took.min(self.left);
        self.left -= taken;
        self.owed += took - taken;
    }

    pub fn is_there(&self) -> bool {
        self.owed.is_zero() && !self.left.is_zero()
    }

    /// When there is some again.
    pub fn due(&self) -> Instant {
        match self.is_there() {
            true => self.at,
            false => self.at + (self.owed + LEAST_WORK) * WORK_SHARE,
        }
    }
}

/// Guests that have something to say, by address; addresses in turn.
#[derive(Debug, Default)]
pub(super) struct Turns {
    order: VecDeque<IpAddr>,
    guests: BTreeMap<IpAddr, VecDeque<usize>>,
}

impl Turns {
    pub fn push(&mut self, from: IpAddr, token: usize) {
        let guests = self.guests.entry(from).or_default();
        if guests.is_empty() {
            self.order.push_back(from);
        }
        guests.push_back(token);
    }

    pub fn pop(&mut self) -> Option<usize> {
        let from = self.order.pop_front()?;
        let guests = self.guests.get_mut(&from)?;
        let token = guests.pop_front();
        match guests.is_empty() {
            true => drop(self.guests.remove(&from)),
            false => self.order.push_back(from),
        }
        token
    }

    pub fn remove(&mut self, from: IpAddr, token: usize) {
        let Some(guests) = self.guests.get_mut(&from) else {
            return;
        };
        guests.retain(|t| *t != token);
        if guests.is_empty() {
            self.guests.remove(&from);
            self.order.retain(|address| *address != from);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time in which this thread does nothing, since others have the processor or since it waits, is no work.
    #[test]
    fn waiting_is_no_work() {
        let before = worked();
        std::thread::sleep(Duration::from_millis(100));
        assert!(worked() - before < Duration::from_millis(50));
    }
}
