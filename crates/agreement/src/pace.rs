//! How fast a primary gives places where execution takes long. The parallelizer of CBASE (DSN 2004) lets execution fall behind agreement.
//!
//! A checkpoint is made when all operations up to its place are done, and until 2f+1 replicas have it the window ends
//! [`LOG_WINDOW`](crate::LOG_WINDOW) places after the one before. Where one conflict has a dozen operations waiting for each other, all that is independent of
//! them takes places meanwhile, and with a request or two in each the window is full long before the dozen is done. Then nothing is given a place, and
//! workers have nothing to do. So once many places are at work, batches that are not full are held back for as long as makes the
//! others last: they leave with more requests, and their operations take long anyway.

use alloc::collections::VecDeque;

use quorate_wire::Seq;

use crate::{CHECKPOINT_INTERVAL, LOG_WINDOW, Millis};

/// So many places may be at work before batches are held back. Up to a checkpoint interval more lie between the water mark and what is done.
const AT_WORK: u64 = CHECKPOINT_INTERVAL * 3 / 4;
/// The longest that a batch is held back: half of what backups let a claim wait in any case.
const MOST_HELD_MS: Millis = 10;

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    /// Places that this replica has given and not done, and when it gave them.
    given: VecDeque<(Seq, Millis)>,
    /// Up to where all is done here, if it is told: where there are no workers, nothing falls behind.
    done: Option<Seq>,
    /// When the last was given.
    last: Millis,
}

impl Pace {
    /// This replica has given a place.
    pub fn on_given(&mut self, seq: Seq, now: Millis) {
        self.last = now;
        if self.done.is_some() {
            self.given.push_back((seq, now));
        }
        if self.given.len() as u64 > LOG_WINDOW {
            self.given.pop_front();
        }
    }

    /// For how long a primary may have held back what it proposes at a place, going by what is done here. It may not have done as much itself.
    pub fn may_hold(&self, seq: Seq) -> Millis {
        let is_far = |done: Seq| seq.0.saturating_sub(done.0) > AT_WORK / 2;
        if self.done.is_some_and(is_far) {
            MOST_HELD_MS
        } else {
            0
        }
    }

    /// All operations up to a place are done.
    pub fn on_done(&mut self, done: Seq) {
        self.done = Some(done);
        while self.given.front().is_some_and(|(seq, _)| *seq <= done) {
            self.given.pop_front();
        }
    }

    /// Until when a batch that is not full is held back, if it is: so that [`AT_WORK`] places are given in the time that one takes.
    pub fn held_until(&self, now: Millis) -> Option<Millis> {
        let (_, since) = self.given.front()?;
        let takes = now.saturating_sub(*since);
        let until = self.last + takes.div_ceil(AT_WORK).min(MOST_HELD_MS);
        (self.given.len() as u64 > AT_WORK && now < until).then_some(until)
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.given.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing is held back while few places are at work; then as long as makes the rest last, and no longer than a claim may wait.
    #[test]
    fn batches_are_held_back_while_much_is_at_work() {
        let mut pace = Pace::default();
        pace.on_given(Seq(1), 0);
        assert_eq!((pace.held_until(500), pace.len()), (None, 0), "no workers");
        pace.on_done(Seq(1));
        (2..=AT_WORK + 1).for_each(|seq| pace.on_given(Seq(seq), 0));
        assert_eq!(pace.held_until(200), None);
        pace.on_given(Seq(AT_WORK + 2), 200);
        assert_eq!(pace.held_until(200), Some(203));
        assert_eq!(pace.held_until(203), None);
        pace.on_given(Seq(AT_WORK + 3), 60_000);
        assert_eq!(pace.held_until(60_000), Some(60_010));
        pace.on_done(Seq(4));
        assert_eq!(pace.held_until(60_000), None);
    }

    /// Nobody is excused by that who had little at work.
    #[test]
    fn who_has_little_at_work_holds_nothing_back() {
        let mut pace = Pace::default();
        let far = Seq(10 + AT_WORK);
        assert_eq!(pace.may_hold(far), 0, "no workers");
        pace.on_done(Seq(9));
        assert_eq!(pace.may_hold(far), MOST_HELD_MS);
        assert_eq!(pace.may_hold(Seq(10)), 0);
    }

    /// What was never done, because its view ended, is not kept for ever.
    #[test]
    fn what_is_remembered_is_bounded() {
        let mut pace = Pace::default();
        pace.on_done(Seq(0));
        (1..=10 * LOG_WINDOW).for_each(|seq| pace.on_given(Seq(seq), seq));
        assert_eq!(pace.len() as u64, LOG_WINDOW);
    }
}
