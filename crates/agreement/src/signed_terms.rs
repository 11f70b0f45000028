//! Who must sign what it asks of this replica as primary: clients whose MACs were right for a primary and wrong here. Aardvark, NSDI
//! 2009, 3.1 (the Big MAC attack): each such request can cost the group a view.

use alloc::collections::BTreeMap;

use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{ClientId, Digest};

use crate::Millis;

/// How long a client that has sent wrong MACs must sign what it asks; twice as long each time that this comes again.
const SUSPECT_MS: Millis = 60_000;
/// The longest. A primary can make correct clients look like suspects, which should not sign for long.
const LONGEST_MS: Millis = 8 * SUSPECT_MS;
/// The most clients that are remembered.
pub(crate) const MAX_SUSPECTS: usize = 4096;
/// The most requests that are remembered of those that too few took.
pub(crate) const MAX_DOUBTED: usize = 1024;
/// With so many that came to be suspects within [`LATELY_MS`] all clients must sign for [`SUSPECT_MS`]: who has the keys of many would else have
/// them take turns, and each would cost a view.
const MANY: usize = 16;
const LATELY_MS: Millis = 60_000;

/// The clients that this replica suspects.
#[derive(Clone, Debug, Default)]
pub(crate) struct SignedTerms {
    suspects: BTreeMap<ClientId, Suspect>,
    /// Until when all are on signed terms.
    everyone: Millis,
    /// Requests that this replica had proposed with MACs, and too few took.
    doubted: BTreeMap<Digest, Doubted>,
}

/// A request that was proposed in vain.
#[derive(Clone, Copy, Debug)]
struct Doubted {
    client: ClientId,
    /// When its view ended.
    since: Millis,
    /// Whether another primary has proposed it since, with MACs.
    again: bool,
}

/// What is known of a client.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    /// When it was last seen to send wrong MACs though it did not have to sign.
    seen: Millis,
    /// Whether that was its own doing, or somebody's: not that this replica had just started.
    counts: bool,
    /// Until when it must sign.
    until: Millis,
    /// How long it must once it is surely its fault; 0 if that has not been so yet. As long after `until` it is forgotten.
    lasts: Millis,
}

impl SignedTerms {
    /// A client's MACs are wrong here. Until `settles` it may be that this replica lacks a key; `counts`: it is not because this replica has just started.
    pub fn suspect(&mut self, client: ClientId, now: Millis, settles: Millis, counts: bool) {
        let Some(known) = self.entry(client, now) else {
            return;
        };
        // Who must sign already costs nothing more.
        let is_new = now >= known.until;
        if is_new {
            (known.seen, known.counts) = (now, counts);
        }
        if now < settles {
            // A client that is new would else cost view after view until then, and so would the next one.
            known.until = known.until.max(settles);
        } else {
            known.lasts = match known.lasts {
                0 => SUSPECT_MS,
                lasts if now < known.until => lasts,
                lasts if now < known.until + lasts => LONGEST_MS.min(2 * lasts),
                _ => SUSPECT_MS,
            };
            known.until = known.until.max(now + known.lasts);
        }
        let lately = |s: &&Suspect| s.counts && now < s.seen + LATELY_MS;
        let many = self.suspects.values().filter(lately).count() >= MANY;
        if is_new && many && !is_on(Mutant::ManyForgiven) {
            self.everyone = now + SUSPECT_MS;
        }
    }

    /// This replica has proposed what clients sent with MACs, and too few took it before the view ended. It can't tell whose MACs were wrong for others, or
    /// whether any were; but who was right for it alone would else have it propose that again each time that it leads.
    pub fn doubt(&mut self, requests: impl Iterator<Item = (Digest, ClientId)>, now: Millis) {
        self.doubted
            .retain(|_, doubted| now < doubted.since + SUSPECT_MS);
        for (digest, client) in requests {
            if let Some(known) = self.entry(client, now) {
                known.until = known.until.max(now + SUSPECT_MS);
            }
            if self.doubted.len() < MAX_DOUBTED {
                let (since, again) = (now, false);
                let doubted = Doubted {
                    client,
                    since,
                    again,
                };
                self.doubted.insert(digest, doubted);
            }
        }
    }

    /// Another primary has proposed a request with its client's MACs.
    pub fn on_proposed(&mut self, digest: &Digest) {
        if let Some(doubted) = self.doubted.get_mut(digest) {
            doubted.again = true;
        }
    }

    /// A request has committed. If that was with MACs, these were right for enough replicas, and nobody doubts its client any more but for what else of it too few took.
    pub fn on_committed(&mut self, digest: &Digest) {
        let Some(Doubted { client, again, .. }) = self.doubted.remove(digest) else {
            return;
        };
        let is_clear = again && self.doubted.values().all(|other| other.client != client);
        if is_clear && self.suspects.get(&client).is_some_and(|s| s.lasts == 0) {
            self.suspects.remove(&client);
        }
    }

    /// Whether there is anything that was proposed in vain.
    pub fn has_doubts(&self) -> bool {
        !self.doubted.is_empty()
    }

    /// What is known of a client, if there is room for it.
    fn entry(&mut self, client: ClientId, now: Millis) -> Option<&mut Suspect> {
        let has_room = self.suspects.len() < MAX_SUSPECTS || self.suspects.contains_key(&client);
        if !has_room {
            let is_kept = |s: &Suspect| now < s.until + s.lasts || now < s.seen + LATELY_MS;
            self.suspects.retain(|_, suspect| is_kept(suspect));
        }
        let has_room = has_room || self.suspects.len() < MAX_SUSPECTS;
        let new = Suspect {
            seen: now,
            counts: false,
            until: 0,
            lasts: 0,
        };
        has_room.then(|| self.suspects.entry(client).or_insert(new))
    }

    /// Whether a client must sign.
    pub fn hold(&self, client: &ClientId, now: Millis) -> bool {
        let its = self.suspects.get(client);
        now < self.everyone || its.is_some_and(|suspect| now < suspect.until)
    }

    /// How many clients are remembered.
    pub fn len(&self) -> usize {
        self.suspects.len()
    }

    /// How many requests are.
    pub fn doubted(&self) -> usize {
        self.doubted.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_wire::KeyPair;

    fn client(number: u8) -> ClientId {
        KeyPair::from_seed(&[number; 32]).public()
    }

    fn request(number: u8) -> Digest {
        Digest([number; 32])
    }

    /// Who was in a batch that too few took is cleared when the next primary has the same request ordered with MACs: not by a signed one, nor while something else
    /// of it is in doubt, nor where it was seen to send wrong MACs.
    #[test]
    fn who_was_in_a_bad_batch_is_cleared() {
        let mut terms = SignedTerms::default();
        let (good, bad, signed, caught) = (client(1), client(2), client(3), client(4));
        terms.suspect(caught, 1_000, 0, true);
        let asked = [(1, good), (2, bad), (3, bad), (4, signed), (5, caught)];
        terms.doubt(
            asked.map(|(n, client)| (request(n), client)).into_iter(),
            1_000,
        );
        for number in [1, 2, 5] {
            terms.on_proposed(&request(number));
        }
        for number in [1, 2, 4, 5] {
            assert!(terms.hold(&good, 1_001) == (number == 1), "{number}");
            terms.on_committed(&request(number));
        }
        for (client, holds) in [(good, false), (bad, true), (signed, true), (caught, true)] {
            assert_eq!(terms.hold(&client, 1_002), holds);
        }
        assert!(terms.has_doubts());
        assert!(!terms.hold(&bad, 61_000));
        terms.doubt(core::iter::empty(), 61_000);
        assert!(!terms.has_doubts());
    }
}
