//! Claims that had to be shown to the primary, and of whose clients.
//!
//! A right primary puts a small claim that a backup shows it into its next batch, whoever's turn it is, as long as that is seldom for one
//! client. So it needs no more than the batches that were under way to do so, and one that goes on without it starves its client.

use alloc::collections::BTreeMap;

use quorate_wire::ClientId;

use super::WaitingClaim;
use crate::Millis;

/// For how long it is remembered whether a client's claim had to be shown to the primary.
const REMEMBERED_MS: Millis = 10_000;
/// How often what is to be forgotten is looked for: with each claim, that would cost more with each client.
const FORGET_MS: Millis = 1_000;
/// Clients of whom it is.
const CLIENTS: usize = 4096;
/// Of one client, a claim in so long is held against the primary: all backups together show it fewer than it takes out of turn.
const EACH_MS: Millis = 1_000;
/// Claims that are watched.
const WATCHED: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Known {
    /// Whether its last claim had to be shown.
    is_shown: bool,
    /// When the last was that was held against the primary.
    held_at: Option<Millis>,
    until: Millis,
}

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(crate) struct Shown {
    clients: BTreeMap<ClientId, Known>,
    /// When what was to be forgotten was looked for.
    forgot_at: Millis,
    /// Claims that are to be in the next batch: when they were shown, and how many batches had been proposed by then.
    next: BTreeMap<u64, (Millis, u64)>,
    batches: u64,
}

impl Shown {
    /// Another primary: it has been shown nothing.
    pub fn begin_view(&mut self) {
        self.next.clear();
        for known in self.clients.values_mut() {
            known.held_at = None;
        }
    }

    /// The primary may not have had what it was shown.
    pub fn forget_shown(&mut self) {
        self.next.clear();
    }

    /// The primary has proposed a batch.
    pub fn on_batch(&mut self) {
        self.batches += 1;
    }

    /// The primary has ordered a client's claim by itself.
    pub fn on_known(&mut self, client: ClientId, now: Millis) {
        self.note(client, false, now);
    }

    /// The primary is shown a claim; `goes_first`: it is such that it can be in any batch.
    pub fn on_shown(&mut self, claim: u64, client: ClientId, goes_first: bool, now: Millis) {
        let Some(known) = self.note(client, true, now).filter(|_| goes_first) else {
            return;
        };
        if known.held_at.is_some_and(|at| now < at + EACH_MS) {
            return;
        }
        known.held_at = Some(now);
        self.next.insert(claim, (now, self.batches));
        while self.next.len() > WATCHED {
            self.next.pop_last();
        }
    }

    fn note(&mut self, client: ClientId, is_shown: bool, now: Millis) -> Option<&mut Known> {
        if now.saturating_sub(self.forgot_at) >= FORGET_MS {
            self.forgot_at = now;
            self.clients.retain(|_, known| now < known.until);
        }
        if self.clients.len() >= CLIENTS && !self.clients.contains_key(&client) {
            return None;
        }
        let known = self.clients.entry(client).or_insert(Known {
            is_shown,
            held_at: None,
            until: 0,
        });
        known.is_shown = is_shown;
        known.until = now + REMEMBERED_MS;
        Some(known)
    }

    /// Since when claims may be held against a primary, of some that wait: of a client whose last had to be shown not before `later`,
    /// unless that is usual.
    pub fn blamed_from(
        &self,
        claims: impl Iterator<Item = WaitingClaim>,
        later: Millis,
    ) -> Option<Millis> {
        let shown = self.clients.values().filter(|known| known.is_shown).count();
        let is_usual = 2 * shown > self.clients.len();
        let from = |claim: WaitingClaim| {
            let known = self.clients.get(&claim.client);
            let is_shown = known.is_some_and(|known| known.is_shown);
            claim.since + if is_shown && !is_usual { later } else { 0 }
        };
        claims.map(from).min()
    }

    /// Whether more than `most` batches were proposed after one of the claims that wait was shown, more than `least` milliseconds ago.
    pub fn is_starving(
        &mut self,
        claims: impl Iterator<Item = WaitingClaim>,
        most: u64,
        least: Millis,
        now: Millis,
    ) -> bool {
        if self.next.is_empty() {
            return false;
        }
        let mut waiting = BTreeMap::new();
        for claim in claims {
            waiting.extend(self.next.remove_entry(&claim.number));
        }
        self.next = waiting;
        let batches = self.batches;
        let mut next = self.next.values();
        next.any(|(since, before)| batches - before > most && now.saturating_sub(*since) > least)
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.clients.len() + self.next.len()
    }
}
