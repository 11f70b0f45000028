//! Whether a primary orders what it is asked as soon as messages let it, going by what most claims of late had to wait.
//!
//! Blame needs waits of some length: below what it allows a primary could delay each request for ever, and most requests are not claims. So a sample of the claims is
//! looked at, a few a second, and those in the middle have to be quick. That a machine stands still now and then does not touch them; a primary that is slow all the
//! time can't tell which requests of correct clients are claims. Each client has a share of the sample, so that none alone decides what it is.
//!
//! How quick is quick can't be said once and for all: a machine that is busy makes every primary late. So primaries are compared, as in Aardvark (NSDI 2009, 4.3), which has
//! them take turns and asks of each what those before it gave. Here one that seems slow is left, and the next is measured as well: then none may make claims wait for more than
//! twice as long as others did, of whom one at least is correct. Where the next is no better, more is allowed for a while in any case: not all know of all, and some never lead.

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
/// And so many times what they waited with others, for as long as that is known.
const TIMES_OTHERS: u64 = 2;
const KNOWN_MS: Millis = 600_000;
/// What is allowed in any case doubles with each primary that was left for one that was no better, so often, and halves after so long without one.
const DOUBLINGS: u32 = 4;
const FORGIVEN_MS: Millis = 300_000;

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Promptness {
    /// The newest last.
    waits: VecDeque<Wait>,
    /// What those in the middle of them waited, in [`PARTS`], if there are enough of them. It is asked for with every message.
    typical: Option<u64>,
    /// When the last of them was proposed.
    last: Millis,
    /// When batches of this view were proposed that had room for more.
    roomy: VecDeque<Millis>,
    /// What claims waited with each primary, in [`PARTS`], and when that was last seen.
    known: BTreeMap<ReplicaId, (u64, Millis)>,
    /// What they waited with the last that was left for this, until the next is known.
    left: Option<(ReplicaId, u64)>,
    /// How many were left in vain, and when the last of them was seen to be, or was forgiven.
    in_vain: (u32, Millis),
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
            typical: None,
            last: now,
            roomy: VecDeque::new(),
            known: BTreeMap::new(),
            left: None,
            in_vain: (0, now),
        }
    }

    /// Another primary.
    pub fn begin_view(&mut self) {
        self.waits.clear();
        self.typical = None;
        self.roomy.clear();
    }

    /// The primary has proposed a batch that had room for more.
    pub fn on_roomy(&mut self, now: Millis) {
        if self.roomy.len() == BATCHES {
            self.roomy.pop_front();
        }
        self.roomy.push_back(now);
    }

    /// The primary has proposed a claim that it knew by itself. That there was no place for another batch excuses nobody who had room in a batch before that.
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
        self.typical = self.middle();
        let Some(waited) = self.typical else {
            return;
        };
        self.known.insert(primary, (waited, now));
        if let Some((_, before)) = self.left.take_if(|(left, _)| *left != primary) {
            let is_better = TIMES_OTHERS * waited <= before;
            let again = (self.in_vain.0 + 1).min(DOUBLINGS);
            let times = if is_better { 0 } else { again };
            self.in_vain = (times, now);
        }
    }

    /// What claims in the middle of the sample wait, in [`PARTS`], if there are enough of them.
    fn middle(&self) -> Option<u64> {
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
        if now.saturating_sub(self.in_vain.1) >= FORGIVEN_MS {
            self.in_vain = (self.in_vain.0.saturating_sub(1), now);
        }
        let Some(waited) = self.typical else {
            return false;
        };
        let prompt = (PROMPT_MS + TIMES * quickest) * PARTS;
        let allowance = prompt << self.in_vain.0;
        waited > allowance && waited > TIMES_OTHERS * self.with_others(primary, f, now)
    }

    /// What claims waited with others: as long as with f of them and one more, of which one is correct. Where one alone may be faulty, all others are correct or this one is, so that
    /// any of them will do: of four one has no measure of itself, and another one may never lead.
    fn with_others(&self, primary: ReplicaId, f: usize, now: Millis) -> u64 {
        let counts =
            |(of, (_, at)): &(&ReplicaId, &(u64, Millis))| **of != primary && now < *at + KNOWN_MS;
        let others = self.known.iter().filter(counts);
        let mut others: Vec<u64> = others.map(|(_, (waited, _))| *waited).collect();
        others.sort_unstable();
        let last = others.last().filter(|_| f == 1);
        others.get(f).or(last).copied().unwrap_or(0)
    }

    /// The primary is left for this.
    pub fn on_left(&mut self, primary: ReplicaId) {
        self.left = self.typical.map(|waited| (primary, waited));
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

        /// Whether a primary with whom claims wait so long, in turn, is left, and after how many.
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
        assert_eq!(group.leads(B, &[0, 1], 0), None);
        assert_eq!(group.it.in_vain.0, 0);
    }

    /// Where all are as slow, one is left to find that out; some minutes later another one.
    #[test]
    fn what_all_need_is_allowed() {
        let mut group = Group::new();
        for _ in 0..2 {
            assert_eq!(group.leads(A, &[6], 0), Some(ENOUGH));
            assert_eq!(group.leads(B, &[8], 0), None);
            assert_eq!(group.it.in_vain.0, 1);
            assert_eq!(group.leads(A, &[6], 0), None);
            group.now += KNOWN_MS;
        }
    }

    /// Also where nothing is known of others each time: as much is allowed at last as any machine needs, and no more after that is over.
    #[test]
    fn who_knows_nobody_allows_more_each_time() {
        let mut group = Group::new();
        for allowed in [1, 2, 4, 8, 16, 16] {
            group.it.known.clear();
            assert_eq!(group.leads(A, &[allowed], 0), None);
            group.it.known.clear();
            assert_eq!(group.leads(A, &[allowed + 1], 0), Some(ENOUGH));
            group.it.known.clear();
            group.leads(B, &[allowed + 1], 0);
        }
        group.it.known.clear();
        group.it.left = None;
        group.now += FORGIVEN_MS;
        assert_eq!(group.leads(A, &[9], 0), Some(ENOUGH));
    }

    /// Views come to an end where all make claims wait as long, in a group in which one is dead, or faulty and says of each primary that it is no good: each of the others knows of
    /// others, and none of itself.
    #[test]
    fn views_come_to_an_end_where_all_are_slow() {
        for (n, f) in [(4, 1), (7, 2)] {
            for is_liar in [false, true] {
                let mut judges: Vec<Group> = (0..n - f).map(|_| Group::new()).collect();
                let mut left = 0;
                for view in 0..100 {
                    let primary = view % n;
                    // The last f never lead.
                    if primary >= n - f {
                        continue;
                    }
                    let others = judges
                        .iter_mut()
                        .enumerate()
                        .filter(|(id, _)| *id != primary);
                    let leave = others
                        .filter_map(|(_, judge)| judge.leads(ReplicaId(primary as u8), &[6], 0));
                    let leave = leave.count();
                    let needed = if is_liar { 1 } else { f + 1 };
                    if leave < needed {
                        break;
                    }
                    left += 1;
                }
                assert!(left <= 2 * n, "{n} {is_liar}: {left}");
            }
        }
    }

    /// Twice as slow as others is too slow.
    #[test]
    fn others_are_the_measure() {
        let mut group = Group::new();
        assert_eq!(group.leads(A, &[6], 0), Some(ENOUGH));
        assert_eq!(group.leads(B, &[7], 0), None);
        assert_eq!(group.leads(C, &[14], 0), None);
        assert_eq!(group.leads(C, &[15], 0), Some(ENOUGH));
        assert_eq!(group.leads(A, &[6], 0), None);
        assert_eq!(group.it.in_vain.0, 0);
    }

    /// Faulty primaries that are quick when they lead do not have all others left for being slower; nor do slow ones that were left set a measure, where two may be faulty.
    #[test]
    fn those_that_may_be_faulty_set_no_measure() {
        let mut it = Promptness::new(0);
        let known = |waits: &[Millis]| {
            let of =
                |(id, waited): (usize, &Millis)| (ReplicaId(id as u8 + 1), (waited * PARTS, 0));
            waits.iter().enumerate().map(of).collect()
        };
        let cases: [(usize, &[Millis], u64); 6] = [
            (1, &[], 0),
            (1, &[0, 6], 6),
            (1, &[100], 100),
            (2, &[0, 0, 6], 6),
            (2, &[0, 100], 0),
            (2, &[100, 90, 7, 6, 5], 7),
        ];
        for (f, waits, with_others) in cases {
            it.known = known(waits);
            assert_eq!(
                it.with_others(A, f, 0),
                with_others * PARTS,
                "{f} {waits:?}"
            );
        }
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
