//! Whether a primary orders what it is asked as soon as messages let it, going by what most claims of late had to wait.
//!
//! Blame needs waits of some length: below what it allows a primary could delay each request for ever, and most requests are not claims. So a sample of the claims is
//! looked at, a few a second, and those in the middle have to be quick. That a machine stands still now and then does not touch them; a primary that is slow all the
//! time can't tell which requests of correct clients are claims. Each client has a share of the sample, so that none alone decides what it is.
//!
//! How quick is quick can't be said once and for all: a machine that is busy makes every primary late. So primaries are compared, as in Aardvark (NSDI 2009, 4.3), which has
//! them take turns and asks of each what those before it gave. Here one that seems slow is left, and the next are measured as well: then none may make claims wait for more than
//! twice as long as f others and one more did, of which one is correct. Where that finds nobody better, it is asked again ever more seldom.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use quorate_wire::{ClientId, ReplicaId};

use crate::Millis;
use crate::pool::WaitingClaim;

/// Claims that are looked at, the newest of this view, and how many it takes.
const SAMPLE: usize = 15;
const ENOUGH: usize = 8;
/// Batches that are remembered: some pipelines full.
const BATCHES: usize = 64;
/// One in so long, so that what happens at a moment counts once.
const APART_MS: Millis = 250;
/// One of a client in so long, which lets a claim be seen once a second.
const EACH_MS: Millis = 900;
/// A batch that is proposed so soon after a claim has come may have been on its way before.
const CROSSED_MS: Millis = 4;
/// Clocks here are in milliseconds, and waits in so many parts of one: the mean of some says more than each.
const PARTS: u64 = 16;
/// What claims may wait where nothing is known of other primaries: so long, and so many times what COMMIT took at its quickest of late. PRE-PREPARE has come, and the
/// client may be nearer to this replica than to its primary.
const PROMPT_MS: Millis = 1;
const TIMES: Millis = 2;
/// And so many times what they waited with others.
const TIMES_OTHERS: u64 = 2;
/// For how long that is known. Doubles with each comparison in a row that found nobody better, so often.
const KNOWN_MS: Millis = 300_000;
const DOUBLINGS: u32 = 3;

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Promptness {
    /// The newest last.
    waits: VecDeque<Wait>,
    /// When the last of them was proposed.
    last: Millis,
    /// When batches of this view were proposed that had room for more.
    roomy: VecDeque<Millis>,
    /// What claims waited with each primary, in [`PARTS`], and when that was last seen.
    known: BTreeMap<ReplicaId, (u64, Millis)>,
    /// What they waited with the last that was left for this, until the next is known.
    left: Option<(ReplicaId, u64)>,
    /// How many in a row were left for nothing.
    in_vain: u32,
}

/// What a claim waited, whose it is, and when it was proposed.
#[derive(Clone, Copy, Debug)]
struct Wait {
    waited: Millis,
    client: ClientId,
    at: Millis,
}

impl Promptness {
    pub fn new(now: Millis) -> Promptness {
        Promptness {
            waits: VecDeque::new(),
            last: now,
            roomy: VecDeque::new(),
            known: BTreeMap::new(),
            left: None,
            in_vain: 0,
        }
    }

    /// Another primary.
    pub fn begin_view(&mut self) {
        self.waits.clear();
        self.roomy.clear();
    }

    /// The primary has proposed a batch that had room for more.
    pub fn on_roomy(&mut self, now: Millis) {
        if self.roomy.len() == BATCHES {
            self.roomy.pop_front();
        }
        self.roomy.push_back(now);
    }

    /// The primary has proposed a claim that it knew by itself. Before `excused` it could not, or had no place for another batch. The latter excuses nobody who had room
    /// in a batch before that.
    pub fn on_proposed(
        &mut self,
        primary: ReplicaId,
        claim: &WaitingClaim,
        excused: Excused,
        now: Millis,
    ) {
        let (client, since) = (claim.client, claim.since);
        let mut lately = self.waits.iter().rev().take_while(|w| now < w.at + EACH_MS);
        if now < self.last + APART_MS || lately.any(|wait| wait.client == client) {
            return;
        }
        self.last = now;
        let was_passed_over = |at: &Millis| (since + CROSSED_MS..now).contains(at);
        let from = match self.roomy.iter().any(was_passed_over) {
            true => since,
            false => since.max(excused.full_at),
        };
        let waited = now.saturating_sub(from).saturating_sub(excused.held);
        if self.waits.len() == SAMPLE {
            self.waits.pop_front();
        }
        let at = now;
        self.waits.push_back(Wait { waited, client, at });
        let Some(waited) = self.typical() else {
            return;
        };
        self.known.insert(primary, (waited, now));
        if let Some((_, before)) = self.left.take_if(|(left, _)| *left != primary) {
            let is_better = TIMES_OTHERS * waited <= before;
            self.in_vain = if is_better { 0 } else { self.in_vain + 1 };
        }
    }

    /// What claims in the middle of the sample wait, in [`PARTS`], if there are enough of them.
    fn typical(&self) -> Option<u64> {
        if self.waits.len() < ENOUGH {
            return None;
        }
        let mut waits: Vec<Millis> = self.waits.iter().map(|wait| wait.waited).collect();
        waits.sort_unstable();
        let beside = waits.len() * 2 / 5;
        let middle = &waits[beside..waits.len() - beside];
        Some(middle.iter().sum::<Millis>() * PARTS / middle.len() as u64)
    }

    /// Whether the primary is too slow, in a group that bears `f` faulty ones; `quickest`: what COMMIT took at its quickest of late.
    pub fn is_late(&mut self, primary: ReplicaId, f: usize, quickest: Millis, now: Millis) -> bool {
        let lasts = KNOWN_MS << self.in_vain.min(DOUBLINGS);
        self.known.retain(|_, (_, at)| now < *at + lasts);
        let Some(waited) = self.typical() else {
            return false;
        };
        let mut others: Vec<u64> = self
            .known
            .iter()
            .filter(|(of, _)| **of != primary)
            .map(|(_, (waited, _))| *waited)
            .collect();
        others.sort_unstable();
        // One of f+1 is correct.
        let others = others.get(f).map_or(0, |waited| TIMES_OTHERS * waited);
        waited > others.max((PROMPT_MS + TIMES * quickest) * PARTS)
    }

    /// The primary is left for this.
    pub fn on_left(&mut self, primary: ReplicaId) {
        self.left = self.typical().map(|waited| (primary, waited));
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.waits.len() + self.roomy.len() + self.known.len()
    }
}

/// What a primary is not to blame for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Excused {
    /// When there last was no place for another batch.
    pub full_at: Millis,
    /// For how long it may have held the batch back (`pace.rs`).
    pub held: Millis,
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_wire::KeyPair;

    const F: usize = 1;
    const A: ReplicaId = ReplicaId(0);
    const B: ReplicaId = ReplicaId(1);
    const C: ReplicaId = ReplicaId(2);

    fn claim(client: u8, since: Millis) -> WaitingClaim {
        WaitingClaim {
            client: KeyPair::from_seed(&[client; 32]).public(),
            number: 1,
            since,
        }
    }

    /// A group in which claims come once a second.
    struct Group {
        it: Promptness,
        now: Millis,
    }

    impl Group {
        fn new() -> Group {
            Group {
                it: Promptness::new(0),
                now: 100_000,
            }
        }

        /// Whether a primary with whom each claim waits so long is left, and after how many.
        fn leads(
            &mut self,
            primary: ReplicaId,
            waits: &[Millis],
            quickest: Millis,
        ) -> Option<usize> {
            self.it.begin_view();
            for at in 0..40 {
                self.now += 1_000;
                let since = self.now - waits[at % waits.len()];
                let claim = claim(1, since);
                self.it
                    .on_proposed(primary, &claim, Excused::default(), self.now);
                if self.it.is_late(primary, F, quickest, self.now) {
                    self.it.on_left(primary);
                    return Some(at + 1);
                }
            }
            None
        }
    }

    /// One that is slower than messages are is left as soon as enough is known, by parts of a millisecond as well; and the quick one after it is kept.
    #[test]
    fn one_that_is_late_is_left() {
        let mut group = Group::new();
        assert_eq!(group.leads(A, &[1], 0), None);
        assert_eq!(group.leads(A, &[0, 1, 1, 2], 0), None);
        assert_eq!(group.leads(A, &[1, 2, 2], 0), Some(ENOUGH));
        assert_eq!(group.leads(B, &[0, 1], 0), None);
        assert_eq!(group.leads(A, &[4], 0), Some(ENOUGH));
        assert_eq!(group.it.in_vain, 0);
    }

    /// Where all are as slow, f+1 are left to find that out, and none after that; some minutes later it is tried again, and ever more seldom.
    #[test]
    fn what_all_need_is_allowed() {
        let mut group = Group::new();
        for in_vain in [2, 4] {
            assert_eq!(group.leads(A, &[6], 0), Some(ENOUGH));
            assert_eq!(group.leads(B, &[7], 0), Some(ENOUGH));
            assert_eq!(group.leads(C, &[8], 0), None);
            assert_eq!(group.it.in_vain, in_vain);
            group.now += KNOWN_MS;
            assert_eq!(group.leads(A, &[6], 0), None);
            assert_eq!(group.leads(B, &[7], 0), None);
            group.now += KNOWN_MS << DOUBLINGS;
        }
    }

    /// Twice as slow as f+1 others is too slow.
    #[test]
    fn others_are_the_measure() {
        let mut group = Group::new();
        assert_eq!(group.leads(A, &[6], 0), Some(ENOUGH));
        assert_eq!(group.leads(B, &[7], 0), Some(ENOUGH));
        assert_eq!(group.leads(C, &[14], 0), None);
        assert_eq!(group.leads(C, &[15], 0), Some(ENOUGH));
        assert_eq!(group.leads(A, &[6], 0), None);
        assert_eq!(group.it.in_vain, 0);
    }

    /// One faulty primary that is quick when it leads does not have all others left for being slower.
    #[test]
    fn one_alone_sets_no_measure() {
        let mut group = Group::new();
        assert_eq!(group.leads(C, &[0], 0), None);
        assert_eq!(group.leads(A, &[6], 0), Some(ENOUGH));
        assert_eq!(group.leads(B, &[6], 0), None);
        assert_eq!(group.leads(A, &[6], 0), None);
    }

    /// What messages take is no slowness.
    #[test]
    fn what_commit_takes_is_allowed() {
        let mut group = Group::new();
        assert_eq!(group.leads(A, &[73], 36), None);
        assert_eq!(group.leads(A, &[74], 36), Some(ENOUGH));
    }

    /// Stalls of a machine, and clients that are not many, touch nobody.
    #[test]
    fn what_is_seldom_does_not_count() {
        let mut group = Group::new();
        assert_eq!(group.leads(A, &[0, 50, 1, 0, 1], 0), None);
    }

    /// A client that has many claims decides nothing: neither does one in league with a slow primary make it look quick, nor one that sends what it asks late have
    /// a quick one left.
    #[test]
    fn no_client_has_more_than_its_share() {
        for (own, of_others, is_late) in [(0, 15, true), (50, 1, false)] {
            let mut it = Promptness::new(0);
            let take = |it: &mut Promptness, claim: &WaitingClaim, now| {
                it.on_proposed(A, claim, Excused::default(), now);
            };
            for now in 1..8_000 {
                if now % 16 == 0 {
                    take(&mut it, &claim(9, now - own.min(now)), now);
                }
                if now % 250 == 17 {
                    let client = now / 250 % 4;
                    take(
                        &mut it,
                        &claim(client as u8, now.saturating_sub(of_others)),
                        now,
                    );
                }
            }
            assert_eq!(it.is_late(A, F, 0, 8_000), is_late, "{own} {of_others}");
        }
    }
}
