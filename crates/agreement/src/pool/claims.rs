//! Requests that a replica may hold against a primary: its claims. At most one of each client.

use quorate_wire::message::Request;
use quorate_wire::message::session::SESSION_WINDOW;
use quorate_wire::{ClientId, Digest, SessionId};

use super::{Entry, Place, Pool};
use crate::Millis;

/// How many claims are looked at to find one that waits.
const CLAIMS_AT_ONCE: usize = 64;

/// A client that was served with so many bytes may wait a millisecond longer for its next turn, and so long at most.
const BYTES_PER_MS: usize = 4 << 10;
const MOST_GRACE_MS: usize = 500;

/// What makes a request a claim.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) number: u64,
    /// Since when it is waited for; set anew when a view starts.
    pub(super) since: Millis,
    /// How much longer it may take than another's: its client was served with something large before.
    pub(super) grace: Millis,
    /// Whether something else of its client has been ordered since: then it may wait behind that client's other requests.
    pub(super) was_served: bool,
}

impl Claim {
    pub(super) fn anew(self, now: Millis) -> Claim {
        Claim {
            since: now,
            grace: 0,
            was_served: false,
            ..self
        }
    }
}

/// What is known of a claim that waits to be ordered.
#[derive(Clone, Copy, Debug)]
pub struct WaitingClaim {
    /// Whose it is.
    pub client: ClientId,
    /// Its number.
    pub number: u64,
    /// Since when this replica waits for it.
    pub since: Millis,
}

impl Pool {
    /// Any replica can see that this request is its client's, and its client waits for it.
    pub fn claim(&mut self, digest: &Digest, now: Millis) {
        if let Some(entry) = self.entries.get_mut(digest)
            && entry.authentic
            && entry.place != Place::Executed
            && entry.claim.is_none()
            && !self.claimants.contains_key(&entry.request().client())
        {
            self.last_claim += 1;
            entry.claim = Some(Claim {
                number: self.last_claim,
                since: now,
                grace: 0,
                was_served: false,
            });
            let client = entry.request().client();
            self.claims.insert(self.last_claim, *digest);
            self.claimants.insert(client, self.last_claim);
        }
    }

    /// Whether there is a claim of a client. There is one of each at most.
    pub fn has_claim(&self, client: &ClientId) -> bool {
        self.claimants.contains_key(client)
    }

    /// Claims after this number, in the order of their age, and since when this replica waits for them.
    pub fn claims_after(&self, number: u64) -> impl Iterator<Item = (Digest, Millis)> {
        let later = self.claims.range(number + 1..);
        later.filter_map(|(_, digest)| {
            let claim = self.entries.get(digest)?.claim?;
            Some((*digest, claim.since))
        })
    }

    /// The oldest claim: its number, and since when this replica waits for it.
    pub fn oldest_claim(&self) -> Option<(u64, Millis)> {
        let (_, digest) = self.claims.first_key_value()?;
        let claim = self.entries.get(digest)?.claim?;
        Some((claim.number, claim.since + claim.grace))
    }

    /// The first few claims that no proposal has, in the order of their age.
    pub fn waiting_claims(&self) -> impl Iterator<Item = WaitingClaim> {
        let few = self.claims.values().take(CLAIMS_AT_ONCE);
        let entries = few.filter_map(|digest| self.entries.get(digest));
        entries
            .filter(|e| e.place == Place::Waiting)
            .filter_map(|e| {
                let claim = e.claim?;
                Some(WaitingClaim {
                    client: e.request().client(),
                    number: claim.number,
                    since: claim.since + claim.grace,
                })
            })
    }

    /// The primary has proposed something of a client. If that has a claim for more than so many bytes that still waits, it waits for its
    /// client's own turn, and nobody has been kept waiting so far: it becomes the newest. Who was served with something large has its
    /// next turn later.
    pub fn served(&mut self, client: &ClientId, weight: usize, long: usize, now: Millis) {
        let Some(number) = self.claimants.get(client).copied() else {
            return;
        };
        let Some(digest) = self.claims.get(&number).copied() else {
            return;
        };
        let Some(entry) = self.entries.get_mut(&digest) else {
            return;
        };
        if entry.place != Place::Waiting {
            return;
        }
        if entry.request().op().len() <= long {
            if let Some(claim) = &mut entry.claim {
                claim.was_served = true;
            }
            return;
        }
        self.last_claim += 1;
        entry.claim = Some(Claim {
            number: self.last_claim,
            since: now,
            grace: (weight / BYTES_PER_MS).min(MOST_GRACE_MS) as Millis,
            was_served: true,
        });
        self.claims.remove(&number);
        self.claims.insert(self.last_claim, digest);
        self.claimants.insert(*client, self.last_claim);
    }

    /// Something of a client was executed. What it claims in the same session is nothing to wait for any more where it has given that number twice, has said that it was answered,
    /// or has gone on by more than a window: no primary would take it when it is shown it, since all have the reply or know that it was given.
    pub fn outlived(&mut self, executed: &Request) {
        let Some(number) = self.claimants.get(&executed.client()) else {
            return;
        };
        let Some(digest) = self.claims.get(number).copied() else {
            return;
        };
        // What has a place is executed there, whatever comes of it.
        let waiting = self.entries.get(&digest).filter(|e| e.is_waiting());
        let Some(claimed) = waiting.map(Entry::request) else {
            return;
        };
        let (number, latest) = (claimed.number(), executed.number());
        let said = executed.answered().0.min(latest.0.saturating_sub(1));
        let over = said.max(latest.0.saturating_sub(SESSION_WINDOW));
        let is_same = claimed.session() == executed.session() && claimed.session() != SessionId(0);
        if is_same && (number == latest || number.0 <= over) {
            self.forget(&digest);
        }
    }

    /// Nobody has waited yet: what was waited for so far was this replica's own fault.
    pub fn wait_anew(&mut self, now: Millis) {
        for digest in self.claims.values() {
            if let Some(entry) = self.entries.get_mut(digest) {
                entry.claim = entry.claim.map(|claim| claim.anew(now));
            }
        }
    }
}
