//! Claims that had to be shown to the primary, and of whose clients.
//!
//! A right primary puts a small claim that a backup shows it into its next batch, whoever's turn it is, as long as that is seldom for one
//! client. So it needs no more than the batches that were under way to do so, and one that goes on without it starves its client.
//!
//! A client can also let its primary have each claim just before a backup would show it. Then none is ever shown, and each of them seems to have waited at the
//! primary. So the clients are remembered for whose claims a primary was left, and what comes of them is held against the next ones as if it had been shown.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

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
/// When a primary is left with much blame, a client is remembered whose claims waited for so large a part of the time that was held against it, and for how long. Where a primary keeps all
/// waiting, most clients have that part, which is as where most claims have to be shown.
const SHARE: u64 = 8;
const BLAMED_MS: Millis = 600_000;
/// Clients that are remembered for that.
const BLAMED: usize = 4096;
/// Whose claims were held against the primary is half as much after so long.
const HALVED_MS: Millis = 10_000;
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
    /// For how long any claim was held against the primary of late, and one of each client.
    held: Millis,
    against: BTreeMap<ClientId, Millis>,
    halved_at: Millis,
    /// Clients for whose claims a primary was left: until when that is remembered.
    blamed: BTreeMap<ClientId, Millis>,
}

impl Shown {
    /// Another primary: it has been shown nothing.
    pub fn begin_view(&mut self) {
        self.next.clear();
        self.held = 0;
        self.against.clear();
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

    /// Since when a claim may be held against a primary: of a client whose last had to be shown, or for whose claims another was left, not before `later`, unless that is usual.
    fn counts_from(&self, later: Millis, now: Millis) -> impl Fn(&WaitingClaim) -> Millis {
        let is_late = move |client: &ClientId, known: Option<&Known>| {
            known.is_some_and(|known| known.is_shown)
                || self.blamed.get(client).is_some_and(|until| now < *until)
        };
        let of_late = |(client, known): &(&ClientId, &Known)| is_late(client, Some(known));
        let is_usual = 2 * self.clients.iter().filter(of_late).count() > self.clients.len();
        move |claim| {
            let known = self.clients.get(&claim.client);
            let has_to_be_shown = !is_usual && is_late(&claim.client, known);
            claim.since + if has_to_be_shown { later } else { 0 }
        }
    }

    /// The first of these times, of some claims that wait.
    pub fn blamed_from(
        &self,
        claims: impl Iterator<Item = WaitingClaim>,
        later: Millis,
        now: Millis,
    ) -> Option<Millis> {
        let from = self.counts_from(later, now);
        claims.map(|claim| from(&claim)).min()
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

    /// For so long one of these claims was held against the primary: those that count since before `from`.
    pub fn on_blamed(
        &mut self,
        claims: impl Iterator<Item = WaitingClaim>,
        (later, from): (Millis, Millis),
        passed: Millis,
        now: Millis,
    ) {
        if passed == 0 {
            return;
        }
        if now.saturating_sub(self.halved_at) >= HALVED_MS {
            self.halved_at = now;
            self.held /= 2;
            self.against.retain(|_, of| {
                *of /= 2;
                *of > 0
            });
        }
        let clients: Vec<ClientId> = {
            let since = self.counts_from(later, now);
            let against = claims.filter(|claim| since(claim) < from);
            against.map(|claim| claim.client).collect()
        };
        self.held += passed;
        for client in clients {
            if self.against.len() < CLIENTS || self.against.contains_key(&client) {
                *self.against.entry(client).or_default() += passed;
            }
        }
    }

    /// A primary is left that has at least so much blame. Who is remembered already stays so where there is no place for more.
    pub fn on_left(&mut self, least: Millis, now: Millis) {
        self.blamed.retain(|_, until| now < *until);
        let all = self.held.max(least);
        for (client, of) in core::mem::take(&mut self.against) {
            let has_place = self.blamed.len() < BLAMED || self.blamed.contains_key(&client);
            if of * SHARE >= all && has_place {
                self.blamed.insert(client, now + BLAMED_MS);
            }
        }
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.clients.len() + self.next.len() + self.against.len() + self.blamed.len()
    }
}
