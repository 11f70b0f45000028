//! Whether a primary orders what it is asked as soon as messages let it, going by what most claims of late had to wait.
//!
//! Blame needs waits of some length: below what it allows a primary could delay each request for ever, and most requests are not claims. So a sample of the claims is
//! looked at, a few a second, and the one in the middle has to be quick. That a machine stands still now and then does not touch it; a primary that is slow all the
//! time can't tell which requests of correct clients are claims. Each client has a share of the sample, so that none alone decides what it is. There is nothing to compare it with but the others: Aardvark (NSDI 2009, 4.3) has primaries take turns, and asks of each
//! what those before it gave. Here who seems slow is left, and if the next one is no better, more is allowed.

use alloc::collections::VecDeque;

use quorate_wire::ClientId;

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
/// What the claim in the middle may wait in any case: as long as COMMITs are held to go along with others, and clocks here are in milliseconds.
const PROMPT_MS: Millis = 4;
/// The same where there are workers: batches may be held back (`pace.rs`).
const PROMPT_WITH_WORKERS_MS: Millis = 12;
/// Beyond what COMMIT took at its quickest without that, so many times: PRE-PREPARE has come, and the client may be nearer to this replica than to its primary.
const TIMES: Millis = 3;
/// The allowance doubles with each primary that was left for this, so often, and halves after so long without one.
const DOUBLINGS: u32 = 4;
const FORGIVEN_MS: Millis = 300_000;

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Promptness {
    /// The newest last.
    waits: VecDeque<Wait>,
    /// When the last of them was proposed.
    last: Millis,
    /// When batches of this view were proposed that had room for more.
    roomy: VecDeque<Millis>,
    /// Primaries left for this, and when the last was, or was forgiven.
    left: (u32, Millis),
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
            left: (0, now),
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

    /// The primary has proposed a claim that it knew by itself; there was no place for another batch until `full_at`. That excuses nobody who had room in a batch
    /// before that.
    pub fn on_proposed(&mut self, claim: &WaitingClaim, full_at: Millis, now: Millis) {
        let (client, since) = (claim.client, claim.since);
        let mut lately = self.waits.iter().rev().take_while(|w| now < w.at + EACH_MS);
        if now < self.last + APART_MS || lately.any(|wait| wait.client == client) {
            return;
        }
        self.last = now;
        let was_passed_over = |at: &Millis| (since + PROMPT_MS..now).contains(at);
        let from = match self.roomy.iter().any(was_passed_over) {
            true => since,
            false => since.max(full_at),
        };
        let waited = now.saturating_sub(from);
        if self.waits.len() == SAMPLE {
            self.waits.pop_front();
        }
        let at = now;
        self.waits.push_back(Wait { waited, client, at });
    }

    /// Whether the primary is too slow; `quickest`: what COMMIT took at its quickest of late.
    pub fn is_late(&mut self, quickest: Millis, has_workers: bool, now: Millis) -> bool {
        if now.saturating_sub(self.left.1) >= FORGIVEN_MS {
            self.left = (self.left.0.saturating_sub(1), now);
        }
        if self.waits.len() < ENOUGH {
            return false;
        }
        let prompt = if has_workers {
            PROMPT_WITH_WORKERS_MS
        } else {
            PROMPT_MS
        };
        let allowance = prompt + TIMES * quickest.saturating_sub(PROMPT_MS);
        let allowance = allowance << self.left.0.min(DOUBLINGS);
        let above = self.waits.iter().filter(|wait| wait.waited > allowance);
        2 * above.count() > self.waits.len()
    }

    /// The primary is left for this.
    pub fn on_left(&mut self, now: Millis) {
        self.left = (self.left.0 + 1, now);
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.waits.len() + self.roomy.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_wire::KeyPair;

    fn claim(client: u8, since: Millis) -> WaitingClaim {
        WaitingClaim {
            client: KeyPair::from_seed(&[client; 32]).public(),
            number: 1,
            since,
        }
    }

    /// After how many claims, each of which waits so long, a primary is late.
    fn late_after(
        it: &mut Promptness,
        from: Millis,
        waited: Millis,
        quickest: Millis,
    ) -> Option<u64> {
        (1..100).find(|n| {
            let now = from + n * 1_000;
            it.on_proposed(&claim(1, now - waited), 0, now);
            it.is_late(quickest, false, now)
        })
    }

    /// Where the next primary is as slow, it is allowed twice as much, and so on; after some minutes half as much.
    #[test]
    fn what_all_need_is_allowed() {
        let mut it = Promptness::new(0);
        let mut now = 0;
        for allowed in [4, 8, 16] {
            assert_eq!(late_after(&mut it, now, allowed, 0), None);
            it.begin_view();
            now += 100_000;
            assert_eq!(
                late_after(&mut it, now, allowed + 1, 0),
                Some(ENOUGH as u64)
            );
            now += 10_000;
            it.on_left(now);
            it.begin_view();
        }
        assert_eq!(late_after(&mut it, now, 32, 0), None);
        it.begin_view();
        now += FORGIVEN_MS;
        assert_eq!(late_after(&mut it, now, 17, 0), Some(ENOUGH as u64));
    }

    /// What messages take is no slowness.
    #[test]
    fn what_commit_takes_is_allowed() {
        let mut it = Promptness::new(0);
        assert_eq!(late_after(&mut it, 0, 100, 36), None);
        it.begin_view();
        assert_eq!(late_after(&mut it, 100_000, 101, 36), Some(ENOUGH as u64));
    }

    /// A client that has many claims decides nothing: neither does one in league with a slow primary make it look quick, nor one that sends what it asks late have
    /// a quick one left.
    #[test]
    fn no_client_has_more_than_its_share() {
        for (own, of_others, is_late) in [(0, 15, true), (50, 1, false)] {
            let mut it = Promptness::new(0);
            for now in 1..8_000 {
                if now % 16 == 0 {
                    it.on_proposed(&claim(9, now - own.min(now)), 0, now);
                }
                if now % 250 == 17 {
                    let client = now / 250 % 4;
                    it.on_proposed(&claim(client as u8, now.saturating_sub(of_others)), 0, now);
                }
            }
            assert_eq!(it.is_late(0, false, 8_000), is_late, "{own} {of_others}");
        }
    }
}
