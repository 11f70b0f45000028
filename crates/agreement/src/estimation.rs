//! How far a replica that has forgotten all can have come, from what the others answer. PBFT 2002, 4.3.2.

use alloc::vec::Vec;

use quorate_wire::message::Estimate;
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Quorum, ReplicaId, Seq, View};

use crate::LOG_WINDOW;
use crate::catch_up::MAX_FOLLOWED;

/// Above all that a replica can have said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// It voted for no place above this one.
    pub seq: Seq,
    /// It sent nothing of this view or a later one.
    pub view: View,
}

/// What was answered, in the order in which it came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers(Vec<Answer>);

#[derive(Clone, Debug)]
struct Answer {
    by: ReplicaId,
    says: Estimate,
    /// How often the number of its sender's keys has risen since.
    age: u32,
}

impl Answers {
    /// An answer. Of several of one replica what is least sure counts: the lowest checkpoint, the highest of the rest.
    pub fn take(&mut self, from: ReplicaId, m: Estimate) {
        let known = self.0.iter_mut().find(|answer| answer.by == from);
        let Some(Answer { says: kept, .. }) = known else {
            let (by, says, age) = (from, m, 0);
            return self.0.push(Answer { by, says, age });
        };
        kept.checkpoint = kept.checkpoint.min(m.checkpoint);
        kept.prepared = kept.prepared.max(m.prepared);
        kept.view = kept.view.max(m.view);
    }

    pub fn forget(&mut self, replica: ReplicaId) {
        self.0.retain(|answer| answer.by != replica);
    }

    /// The number of a replica's keys has risen by one.
    pub fn age(&mut self, replica: ReplicaId) {
        let of_it = self.0.iter_mut().filter(|answer| answer.by == replica);
        of_it.for_each(|answer| answer.age += 1);
    }

    /// Forgets what was answered under numbers that count no more: two do at a time.
    pub fn forget_former(&mut self) {
        self.0.retain(|answer| answer.age < 2);
    }

    pub fn has(&self, replica: ReplicaId) -> bool {
        self.0.iter().any(|answer| answer.by == replica)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// What a replica that has forgotten all can have said at most; `None` where more must answer.
    ///
    /// The place: c + L, where c is a checkpoint that some replica reports such that 2f+1 report none above it, and f+1 have
    /// prepared as far. A checkpoint that was stable here was made by f+1 correct others (one of them among any 2f+1), so c is not
    /// below it; and c is not above what a correct replica has prepared, so that f liars can't drive it up. PBFT 2002, 4.3.2.
    ///
    /// The view: a correct replica is seldom ahead of the others, and never far. Where it goes on without them, it is from a
    /// view for which f correct others have said VIEW-CHANGE, by [`MAX_FOLLOWED`] at the most, and then by one for each NEW-VIEW
    /// that a faulty primary has started wrongly. Of a answers, of 3f that there could be, a - 2f are of these f at least: the highest but as many
    /// is not below theirs, and so the more answer the more lies it bears.
    pub fn bound(&self, quorum: Quorum, me: ReplicaId) -> Option<Bound> {
        let answers = self.0.iter().map(|answer| &answer.says);
        let fits = |at: &usize| {
            let c = self.0[*at].says.checkpoint;
            answers.clone().filter(|a| a.checkpoint <= c).count() >= quorum.commit()
                && self.prepared_as_far(*at) >= quorum.weak()
        };
        let fitting = (0..self.len()).filter(fits);
        let checkpoint = fitting.map(|at| self.0[at].says.checkpoint).min()?;
        let window = match is_on(Mutant::RecoveryBoundLow) {
            true => 0,
            false => LOG_WINDOW,
        };
        let seq = Seq(checkpoint.0.saturating_add(window));
        let but = self.len().checked_sub(2 * quorum.f() + 1)?;
        let near = highest_but(but, answers.map(|a| a.view))?;
        if is_on(Mutant::RecoveryAnyView) {
            return Some(Bound { seq, view: near });
        }
        let lead = MAX_FOLLOWED + quorum.f() as u64 + 2;
        let view = View(near.0.saturating_add(lead));
        let own = quorum.primary(view) == me;
        let view = if own { view.next() } else { view };
        Some(Bound { seq, view })
    }

    /// How many have prepared as far as the checkpoint of one of them.
    fn prepared_as_far(&self, at: usize) -> usize {
        let of = &self.0[at].says;
        let has = |a: &Estimate, as_far: &Estimate| a.prepared >= as_far.checkpoint;
        let count = |all: &[Answer]| all.iter().filter(|a| has(&a.says, of)).count();
        if is_on(Mutant::EstimateMiscounts) {
            // Published bug (PBFT's library, Stable_estimator::add): what the answers before a new one have prepared was counted for them, in
            // place of for the new one.
            let later = &self.0[at + 1..];
            let wrong = later.iter().filter(|new| has(of, &new.says)).count();
            return 1 + count(later) + wrong;
        }
        count(&self.0)
    }
}

/// The highest but so many.
pub(crate) fn highest_but<T: Ord + Copy>(but: usize, all: impl Iterator<Item = T>) -> Option<T> {
    let mut all: Vec<T> = all.collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all.get(but).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Said = (u64, u64, u64);

    fn answers(all: &[Said]) -> Answers {
        let mut answers = Answers::default();
        for (id, &(checkpoint, prepared, view)) in (1..).map(ReplicaId).zip(all) {
            let answer = Estimate {
                nonce: 0,
                checkpoint: Seq(checkpoint),
                prepared: Seq(prepared),
                view: View(view),
            };
            answers.take(id, answer);
        }
        answers
    }

    fn bound(n: usize, all: &[Said]) -> Option<Bound> {
        answers(all).bound(Quorum::new(n).unwrap(), ReplicaId(0))
    }

    fn orders(all: &[Said]) -> Vec<Vec<Said>> {
        if all.is_empty() {
            return Vec::from([Vec::new()]);
        }
        let begin_with = |at: usize| {
            let mut rest = all.to_vec();
            let first = rest.remove(at);
            let rests = orders(&rest).into_iter();
            rests.map(move |rest| [&[first][..], &rest].concat())
        };
        (0..all.len()).flat_map(begin_with).collect()
    }

    /// Four answers of which one lies, as each comes: in none of the 24 orders in which they can, the first bound that follows is the liar's.
    /// In PBFT's library it is in twelve: those in which the lie comes first or second.
    #[test]
    fn the_order_of_answers_counts_for_nothing() {
        let orders = orders(&[
            (128, 130, 0),
            (128, 140, 0),
            (128, 200, 0),
            (1 << 40, 1 << 40, 0),
        ]);
        assert_eq!(orders.len(), 24);
        for order in orders {
            let first = (1..=order.len()).find_map(|came| bound(4, &order[..came]));
            assert_eq!(first.unwrap().seq, Seq(128 + LOG_WINDOW), "{order:?}");
        }
    }

    /// What was answered two numbers of its sender's keys ago is forgotten when others are asked again, and what it says then counts by itself: a
    /// lie of a replica that has been sound again since does not stay beside those of others.
    #[test]
    fn former_answers_are_forgotten() {
        let mut all = answers(&[(0, 100, 0), (128, 200, 0), (128, 130, 0)]);
        all.age(ReplicaId(1));
        all.forget_former();
        assert!(all.has(ReplicaId(1)));
        all.age(ReplicaId(1));
        all.forget_former();
        assert!(!all.has(ReplicaId(1)) && all.len() == 2);
        let sound = Estimate {
            nonce: 0,
            checkpoint: Seq(256),
            prepared: Seq(300),
            view: View(0),
        };
        all.take(ReplicaId(1), sound);
        all.forget_former();
        assert_eq!(all.len(), 3);
    }

    /// 2f+1 must answer, and the bound is a window above the highest of them.
    #[test]
    fn enough_must_answer() {
        let all = [(0, 100, 0), (128, 200, 1), (128, 130, 1)];
        assert_eq!(bound(4, &all[..2]), None);
        let bound = bound(4, &all).unwrap();
        assert_eq!(bound.seq, Seq(128 + LOG_WINDOW));
        assert!(bound.view > View(1 + MAX_FOLLOWED + 1));
        assert_ne!(
            bound.view.0 % 4,
            0,
            "it can't lead the view that it comes back with"
        );
    }

    /// One liar among six does not drive the bound up, and can't press it down, in whatever order answers come.
    #[test]
    fn one_liar_moves_nothing() {
        let honest = [
            (256, 300, 3),
            (256, 310, 3),
            (128, 256, 3),
            (256, 257, 2),
            (256, 290, 3),
        ];
        let lies = [
            (1 << 40, 1 << 40, 1 << 40),
            (0, 0, 0),
            (1 << 40, 0, 0),
            (0, 1 << 40, 9),
        ];
        for lie in lies {
            for at in 0..=honest.len() {
                let mut all = honest.to_vec();
                all.insert(at, lie);
                let bound = bound(7, &all).unwrap();
                assert_eq!(bound.seq, Seq(256 + LOG_WINDOW), "{lie:?} at {at}");
                let lead = bound.view.0 - 3;
                assert!(
                    (MAX_FOLLOWED + 3..MAX_FOLLOWED + 7).contains(&lead),
                    "{lie:?} at {at}"
                );
            }
        }
    }

    /// Where a lie is among the fewest answers that could do, more are waited for.
    #[test]
    fn a_far_checkpoint_waits_for_more() {
        let mut all = Vec::from([(128, 200, 0); 4]);
        all.push((1 << 40, 1 << 40, 0));
        assert_eq!(bound(7, &all), None);
        all.push((128, 128, 0));
        assert_eq!(bound(7, &all).unwrap().seq, Seq(128 + LOG_WINDOW));
    }

    /// A group of one has nobody to ask.
    #[test]
    fn alone_there_is_no_bound() {
        assert_eq!(bound(1, &[]), None);
    }
}
