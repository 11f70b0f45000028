//! Requests that this replica knows, by digest.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use quorate_wire::message::{AuthRequest, Request};
use quorate_wire::{ClientId, Digest};

use crate::Millis;
use crate::io::Rejected;

/// The most bytes of unordered requests held for one client: a full window of writes of 1 MiB and room.
const CLIENT_BYTES: usize = 80 << 20;

/// What the smallest request is charged, so that the number of requests is bounded as well.
const LEAST_CHARGE: usize = 16 << 10;

/// What a request counts for against its client's limit.
fn charge(request: &Request) -> usize {
    request.weight().max(LEAST_CHARGE)
}

/// Where a request is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Waits for a primary to order it.
    Waiting,
    /// In a proposal of the current view.
    Ordered,
    /// Handed to execution.
    Executed,
}

/// A request and what is known of it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The request.
    pub request: Request,
    /// The request with its authenticator, where it came with one.
    pub relay: Option<AuthRequest>,
    /// Whether this replica itself has established that the client made it.
    pub authentic: bool,
    /// Where it is.
    pub place: Place,
    /// Since when this replica waits for it; set anew when a view starts.
    pub since: Millis,
    /// When its client last sent it here.
    heard: Millis,
    /// The order of arrival.
    arrival: u64,
}

/// The requests that a replica knows.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    entries: BTreeMap<Digest, Entry>,
    /// Authentic requests that wait, in the order of their arrival.
    waiting: BTreeMap<u64, Digest>,
    /// The authentic requests that are not executed, by how long they have waited.
    ages: BTreeSet<(Millis, Digest)>,
    /// Bytes of waiting or ordered authentic requests by client.
    in_flight: BTreeMap<ClientId, usize>,
    arrivals: u64,
}

impl Pool {
    /// The entry of a digest.
    pub fn get(&self, digest: &Digest) -> Option<&Entry> {
        self.entries.get(digest)
    }

    /// Takes a request that is authentic. `Err(Duplicate)` where it already waits or is ordered.
    pub fn insert_authentic(&mut self, request: AuthRequest, now: Millis) -> Result<(), Rejected> {
        let client = request.request.client();
        let in_flight = self.in_flight.get(&client).copied().unwrap_or(0);
        let known = self.entries.get(&request.request.digest());
        let open = known.is_some_and(|e| e.authentic && e.place != Place::Executed);
        if !open && in_flight + charge(&request.request) > CLIENT_BYTES {
            return Err(Rejected::ClientOverLimit);
        }
        self.insert_ordered(request, now)
    }

    /// As [`Pool::insert_authentic`], for a request that the primary has ordered: it is taken even if its client is over
    /// its limit here, since the vote for its whole batch depends on it. The primary's limits bound these.
    pub fn insert_ordered(&mut self, request: AuthRequest, now: Millis) -> Result<(), Rejected> {
        let (relay, request) = (Some(request.clone()), request.request);
        let (digest, client, charge) = (request.digest(), request.client(), charge(&request));
        if let Some(entry) = self.entries.get_mut(&digest) {
            entry.heard = now;
        }
        let known = self.entries.get(&digest);
        if known.is_some_and(|e| e.authentic && e.place != Place::Executed) {
            return Err(Rejected::Duplicate);
        }
        // What was executed waits again: a read that is asked again, since the executor keeps no reply for those.
        let place = match known.map(|e| e.place) {
            Some(Place::Ordered) => Place::Ordered,
            Some(Place::Waiting | Place::Executed) | None => Place::Waiting,
        };
        self.arrivals += 1;
        let arrival = self.arrivals;
        if place == Place::Waiting {
            self.waiting.insert(arrival, digest);
        }
        *self.in_flight.entry(client).or_default() += charge;
        self.ages.insert((now, digest));
        let entry = Entry {
            request,
            relay,
            authentic: true,
            place,
            since: now,
            heard: now,
            arrival,
        };
        self.entries.insert(digest, entry);
        Ok(())
    }

    /// Takes a request that a proposal or a committed batch names; others vouch for it.
    pub fn insert_vouched(&mut self, request: Request, relay: Option<AuthRequest>, now: Millis) {
        let digest = request.digest();
        self.entries.entry(digest).or_insert(Entry {
            request,
            relay,
            authentic: false,
            place: Place::Waiting,
            since: now,
            heard: now,
            arrival: 0,
        });
    }

    /// The request is in a proposal of the current view.
    pub fn mark_ordered(&mut self, digest: &Digest) {
        if let Some(entry) = self.entries.get_mut(digest)
            && entry.place == Place::Waiting
        {
            entry.place = Place::Ordered;
            self.waiting.remove(&entry.arrival);
        }
    }

    /// The request was handed to execution.
    pub fn mark_executed(&mut self, digest: &Digest) {
        if let Some(entry) = self.entries.get_mut(digest)
            && entry.place != Place::Executed
        {
            self.waiting.remove(&entry.arrival);
            entry.place = Place::Executed;
            if entry.authentic {
                self.ages.remove(&(entry.since, *digest));
                let (client, charge) = (entry.request.client(), charge(&entry.request));
                self.release(client, charge);
            }
        }
    }

    /// The state was replaced by one in which some of the open requests are executed, nobody here knows which: all are
    /// dropped. Their clients repeat what they still wait for.
    pub fn forget_open(&mut self) {
        let open: Vec<Digest> = self.ages.iter().map(|(_, digest)| *digest).collect();
        open.iter().for_each(|digest| self.mark_executed(digest));
    }

    /// Stops waiting for requests that their clients have not sent since `before`: those clients are gone. Their
    /// authenticators may be for links that the others have forgotten, so that no primary could have them ordered, and this
    /// replica would ask for one primary after the other. What proposals need stays, without a claim.
    pub fn forget_abandoned(&mut self, before: Millis) {
        let old = |digest: &&Digest| self.entries[*digest].heard < before;
        let digests = self.ages.iter().map(|(_, digest)| digest);
        let abandoned: Vec<Digest> = digests.filter(old).copied().collect();
        for digest in abandoned {
            let Some(entry) = self.entries.get_mut(&digest) else {
                continue;
            };
            entry.authentic = false;
            self.waiting.remove(&entry.arrival);
            self.ages.remove(&(entry.since, digest));
            let (client, charge) = (entry.request.client(), charge(&entry.request));
            if entry.place == Place::Waiting {
                self.entries.remove(&digest);
            }
            self.release(client, charge);
        }
    }

    fn release(&mut self, client: ClientId, weight: usize) {
        let left = self.in_flight.entry(client).or_default();
        *left = left.saturating_sub(weight);
        if *left == 0 {
            self.in_flight.remove(&client);
        }
    }

    /// A new view starts: what is not in `selected` waits again, and nobody has waited yet.
    pub fn restart(&mut self, selected: &BTreeSet<Digest>, now: Millis) {
        self.waiting.clear();
        self.ages.clear();
        for (digest, entry) in &mut self.entries {
            entry.since = now;
            if entry.place == Place::Executed {
                continue;
            }
            entry.place = if selected.contains(digest) {
                Place::Ordered
            } else {
                Place::Waiting
            };
            if entry.authentic {
                self.ages.insert((now, *digest));
                if entry.place == Place::Waiting {
                    self.waiting.insert(entry.arrival, *digest);
                }
            }
        }
    }

    /// Nobody has waited yet: what was waited for so far was this replica's own fault.
    pub fn wait_anew(&mut self, now: Millis) {
        let open = core::mem::take(&mut self.ages);
        for (_, digest) in open {
            if let Some(entry) = self.entries.get_mut(&digest) {
                entry.since = now;
                self.ages.insert((now, digest));
            }
        }
    }

    /// Authentic requests that wait to be ordered, oldest first.
    pub fn waiting(&self) -> impl Iterator<Item = (&Digest, &Entry)> {
        self.waiting
            .values()
            .map(|digest| (digest, &self.entries[digest]))
    }

    /// Whether any authentic request waits to be ordered.
    pub fn any_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Since when the longest-waiting authentic request that is not executed has waited.
    pub fn oldest_since(&self) -> Option<Millis> {
        self.ages.first().map(|(since, _)| *since)
    }

    /// Drops what neither waits nor is named by a batch in the log.
    pub fn collect_garbage(&mut self, named: &BTreeSet<Digest>) {
        self.entries.retain(|digest, e| {
            named.contains(digest) || (e.authentic && e.place != Place::Executed)
        });
    }

    /// Digests of a batch that are not here.
    pub fn missing(&self, requests: &[Digest]) -> Vec<Digest> {
        requests
            .iter()
            .filter(|d| !self.entries.contains_key(d))
            .copied()
            .collect()
    }

    /// The bookkeeping agrees with the entries.
    pub fn invariants(&self) {
        for (arrival, digest) in &self.waiting {
            let entry = &self.entries[digest];
            assert!(entry.authentic && entry.place == Place::Waiting && entry.arrival == *arrival);
        }
        let mut in_flight: BTreeMap<ClientId, usize> = BTreeMap::new();
        for entry in self.entries.values() {
            if entry.authentic && entry.place != Place::Executed {
                *in_flight.entry(entry.request.client()).or_default() += charge(&entry.request);
                assert!(self.ages.contains(&(entry.since, entry.request.digest())));
            }
        }
        assert_eq!(in_flight, self.in_flight, "bytes in flight by client");
    }
}
