//! Requests that this replica knows, by digest.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashSet};
use quorate_wire::message::{AuthRequest, EVERYONE, Request};
use quorate_wire::{Authenticator, ClientId, Digest};

use crate::Millis;
use crate::io::Rejected;

/// The most bytes of unordered requests held for one client: a full window of writes of 1 MiB and room.
const CLIENT_BYTES: usize = 80 << 20;

/// How many claims are looked at to find one that waits.
const CLAIMS_AT_ONCE: usize = 64;

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
    /// The request; without an authenticator where it came without one, and then with nobody in particular to reply in full.
    known: Arc<AuthRequest>,
    /// Whether this replica itself has established that the client made it.
    pub authentic: bool,
    /// Whether its signature was checked here, where that is still to be done.
    pub checked: bool,
    /// Where it is.
    place: Place,
    /// Its claim, if this replica may hold it against a primary: the claim's number, and since when; set anew when a view starts.
    claim: Option<(u64, Millis)>,
    /// When its client last sent it here.
    heard: Millis,
    /// The order of arrival.
    arrival: u64,
}

impl Entry {
    /// The request.
    pub fn request(&self) -> &Request {
        &self.known.request
    }

    /// The request, with the replica that is to reply in full.
    pub fn known(&self) -> &Arc<AuthRequest> {
        &self.known
    }

    /// The request with its authenticator, where it came with one.
    pub fn relay(&self) -> Option<&Arc<AuthRequest>> {
        Some(&self.known).filter(|known| !known.auth.is_empty())
    }
}

/// Digests, hashed as in the pool.
pub type DigestSet = HashSet<Digest, FixedState>;

/// The requests that a replica knows.
///
/// The maps are hashed, which is several times as fast as a tree of digests. Nothing follows from their order, and their seed
/// is a secret, so that no client can aim at one bucket.
#[derive(Clone, Debug)]
pub struct Pool {
    entries: HashMap<Digest, Entry, FixedState>,
    /// The authentic requests that are not executed, in the order of their arrival.
    open: BTreeMap<u64, Digest>,
    /// Those of them that are claims, in the order of their age.
    claims: BTreeMap<u64, Digest>,
    last_claim: u64,
    /// Those of them that wait, with their weights.
    waiting: BTreeMap<u64, (Digest, usize)>,
    waiting_weight: usize,
    /// Charges of open requests by client.
    in_flight: HashMap<ClientId, usize, FixedState>,
    arrivals: u64,
}

impl Pool {
    /// An empty one. `seed` is nobody else's to know.
    pub fn new(seed: u64) -> Pool {
        let state = FixedState::with_seed(seed);
        Pool {
            entries: HashMap::with_hasher(state.clone()),
            open: BTreeMap::new(),
            claims: BTreeMap::new(),
            last_claim: 0,
            waiting: BTreeMap::new(),
            waiting_weight: 0,
            in_flight: HashMap::with_hasher(state),
            arrivals: 0,
        }
    }

    /// A set of digests with the pool's secret.
    pub fn set(&self, digests: impl Iterator<Item = Digest>) -> DigestSet {
        let mut set = HashSet::with_hasher(self.entries.hasher().clone());
        set.extend(digests);
        set
    }

    /// The entry of a digest.
    pub fn get(&self, digest: &Digest) -> Option<&Entry> {
        self.entries.get(digest)
    }

    /// Takes a request that is authentic. `Err(Duplicate)` where it already waits or is ordered.
    pub fn insert_authentic(
        &mut self,
        request: Arc<AuthRequest>,
        now: Millis,
    ) -> Result<(), Rejected> {
        let in_flight = self.in_flight.get(&request.request.client()).copied();
        if in_flight.unwrap_or(0) + charge(&request.request) > CLIENT_BYTES {
            let known = self.entries.get(&request.request.digest());
            if !known.is_some_and(|e| e.authentic && e.place != Place::Executed) {
                return Err(Rejected::ClientOverLimit);
            }
        }
        self.insert_ordered(request, now)
    }

    /// As [`Pool::insert_authentic`], for a request that the primary has ordered: it is taken even if its client is over
    /// its limit here, since the vote for its whole batch depends on it. The primary's limits bound these.
    pub fn insert_ordered(
        &mut self,
        request: Arc<AuthRequest>,
        now: Millis,
    ) -> Result<(), Rejected> {
        let digest = request.request.digest();
        // What was executed waits again: a read that is asked again, since the executor keeps no reply for those.
        let mut place = Place::Waiting;
        if let Some(known) = self.entries.get_mut(&digest) {
            known.heard = now;
            if known.authentic && known.place != Place::Executed {
                return Err(Rejected::Duplicate);
            }
            if known.place == Place::Ordered {
                place = Place::Ordered;
            }
        }
        self.arrivals += 1;
        let arrival = self.arrivals;
        if place == Place::Waiting {
            self.wait(arrival, digest, request.request.weight());
        }
        *self.in_flight.entry(request.request.client()).or_default() += charge(&request.request);
        self.open.insert(arrival, digest);
        let entry = Entry {
            known: request,
            authentic: true,
            checked: false,
            place,
            claim: None,
            heard: now,
            arrival,
        };
        self.entries.insert(digest, entry);
        Ok(())
    }

    /// Takes a request that a proposal or a committed batch names; others vouch for it.
    pub fn insert_vouched(&mut self, request: Arc<AuthRequest>, now: Millis) {
        let digest = request.request.digest();
        self.entries.entry(digest).or_insert_with(|| Entry {
            known: request,
            authentic: false,
            checked: false,
            place: Place::Waiting,
            claim: None,
            heard: now,
            arrival: 0,
        });
    }

    /// As [`Pool::insert_vouched`], for a request that comes without its client's authenticator.
    pub fn insert_bare(&mut self, request: Request, now: Millis) {
        let request = AuthRequest {
            request,
            auth: Authenticator::default(),
            replier: EVERYONE,
        };
        self.insert_vouched(Arc::new(request), now);
    }

    fn wait(&mut self, arrival: u64, digest: Digest, weight: usize) {
        self.waiting_weight += weight;
        self.waiting.insert(arrival, (digest, weight));
    }

    fn wait_no_more(&mut self, arrival: u64) {
        if let Some((_, weight)) = self.waiting.remove(&arrival) {
            self.waiting_weight -= weight;
        }
    }

    /// Any replica can see that this request is its client's, and its client waits for it.
    pub fn claim(&mut self, digest: &Digest, now: Millis) {
        if let Some(entry) = self.entries.get_mut(digest)
            && entry.authentic
            && entry.place != Place::Executed
            && entry.claim.is_none()
        {
            self.last_claim += 1;
            entry.claim = Some((self.last_claim, now));
            self.claims.insert(self.last_claim, *digest);
        }
    }

    /// Whether a request is a claim.
    pub fn is_claim(&self, digest: &Digest) -> bool {
        self.get(digest).is_some_and(|entry| entry.claim.is_some())
    }

    /// The oldest claim: its number, and since when this replica waits for it.
    pub fn oldest_claim(&self) -> Option<(u64, Millis)> {
        let (_, digest) = self.claims.first_key_value()?;
        self.entries.get(digest)?.claim
    }

    /// The oldest claim among the first few that no proposal has.
    pub fn oldest_waiting_claim(&self) -> Option<(u64, Millis)> {
        let few = self.claims.values().take(CLAIMS_AT_ONCE);
        let mut entries = few.filter_map(|digest| self.entries.get(digest));
        entries.find(|e| e.place == Place::Waiting)?.claim
    }

    /// The request's signature was checked.
    pub fn mark_checked(&mut self, digest: &Digest) {
        if let Some(entry) = self.entries.get_mut(digest) {
            entry.checked = true;
        }
    }

    /// The request is not its client's.
    pub fn forget(&mut self, digest: &Digest) {
        self.mark_executed(digest);
        self.entries.remove(digest);
    }

    /// The request is in a proposal of the current view.
    pub fn mark_ordered(&mut self, digest: &Digest) {
        if let Some(entry) = self.entries.get_mut(digest)
            && entry.place == Place::Waiting
        {
            entry.place = Place::Ordered;
            let arrival = entry.arrival;
            self.wait_no_more(arrival);
        }
    }

    /// The request was handed to execution.
    pub fn mark_executed(&mut self, digest: &Digest) {
        if let Some(entry) = self.entries.get_mut(digest)
            && entry.place != Place::Executed
        {
            entry.place = Place::Executed;
            if entry.authentic {
                let arrival = entry.arrival;
                let (client, charge) = (entry.request().client(), charge(entry.request()));
                let claim = entry.claim.take();
                self.open.remove(&arrival);
                claim.map(|(number, _)| self.claims.remove(&number));
                self.wait_no_more(arrival);
                self.release(client, charge);
            }
        }
    }

    /// The state was replaced by one in which some of the open requests are executed, nobody here knows which: all are
    /// dropped. Their clients repeat what they still wait for.
    pub fn forget_open(&mut self) {
        let open: Vec<Digest> = self.open.values().copied().collect();
        open.iter().for_each(|digest| self.mark_executed(digest));
    }

    /// Stops waiting for requests that their clients have not sent since `before`: those clients are gone. Their
    /// authenticators may be for links that the others have forgotten, so that no primary could have them ordered, and this
    /// replica would ask for one primary after the other. What proposals need stays, without a claim.
    pub fn forget_abandoned(&mut self, before: Millis) {
        let old = |digest: &&Digest| self.entries[*digest].heard < before;
        let abandoned: Vec<Digest> = self.open.values().filter(old).copied().collect();
        for digest in abandoned {
            let Some(entry) = self.entries.get_mut(&digest) else {
                continue;
            };
            entry.authentic = false;
            let (arrival, place) = (entry.arrival, entry.place);
            let (client, charge) = (entry.request().client(), charge(entry.request()));
            let claim = entry.claim.take();
            self.open.remove(&arrival);
            claim.map(|(number, _)| self.claims.remove(&number));
            self.wait_no_more(arrival);
            if place == Place::Waiting {
                self.entries.remove(&digest);
            }
            self.release(client, charge);
        }
    }

    fn release(&mut self, client: ClientId, charge: usize) {
        let left = self.in_flight.entry(client).or_default();
        *left = left.saturating_sub(charge);
        if *left == 0 {
            self.in_flight.remove(&client);
        }
    }

    /// A new view starts: what is not in `selected` waits again, and nobody has waited yet.
    pub fn restart(&mut self, selected: &BTreeSet<Digest>, now: Millis) {
        self.waiting.clear();
        self.waiting_weight = 0;
        for (digest, entry) in &mut self.entries {
            entry.claim = entry.claim.map(|(number, _)| (number, now));
            if entry.place == Place::Executed {
                continue;
            }
            entry.place = match selected.contains(digest) {
                true => Place::Ordered,
                false => Place::Waiting,
            };
            if entry.authentic && entry.place == Place::Waiting {
                let weight = entry.request().weight();
                self.waiting.insert(entry.arrival, (*digest, weight));
                self.waiting_weight += weight;
            }
        }
    }

    /// Nobody has waited yet: what was waited for so far was this replica's own fault.
    pub fn wait_anew(&mut self, now: Millis) {
        for (&number, digest) in &self.claims {
            if let Some(entry) = self.entries.get_mut(digest) {
                entry.claim = Some((number, now));
            }
        }
    }

    /// Authentic requests that wait to be ordered with their weights, oldest first.
    pub fn waiting(&self) -> impl Iterator<Item = (Digest, usize)> {
        self.waiting.values().copied()
    }

    /// How many authentic requests wait to be ordered, and their weight.
    pub fn queue(&self) -> (usize, usize) {
        (self.waiting.len(), self.waiting_weight)
    }

    /// Drops what neither waits nor is named by a batch in the log.
    pub fn collect_garbage(&mut self, named: &DigestSet) {
        self.entries.retain(|digest, e| {
            (e.authentic && e.place != Place::Executed) || named.contains(digest)
        });
    }

    /// Digests of a batch that are not here.
    pub fn missing(&self, requests: &[Digest]) -> Vec<Digest> {
        let missing = requests.iter().filter(|d| !self.entries.contains_key(*d));
        missing.copied().collect()
    }

    /// The bookkeeping agrees with the entries.
    pub fn invariants(&self) {
        for (arrival, (digest, weight)) in &self.waiting {
            let entry = &self.entries[digest];
            assert!(entry.authentic && entry.place == Place::Waiting && entry.arrival == *arrival);
            assert_eq!(entry.request().weight(), *weight);
        }
        let weights = self.waiting.values().map(|(_, weight)| weight);
        assert_eq!(weights.sum::<usize>(), self.waiting_weight);
        let mut in_flight: BTreeMap<ClientId, usize> = BTreeMap::new();
        for entry in self.entries.values() {
            if entry.authentic && entry.place != Place::Executed {
                *in_flight.entry(entry.request().client()).or_default() += charge(entry.request());
                assert_eq!(
                    self.open.get(&entry.arrival),
                    Some(&entry.request().digest())
                );
            }
        }
        let claims = self.claims.iter().map(|(number, digest)| {
            let entry = &self.entries[digest];
            assert!(entry.authentic && entry.place != Place::Executed);
            let (its_number, since) = entry.claim.expect("a claim");
            assert_eq!(its_number, *number);
            since
        });
        assert!(claims.is_sorted(), "a claim's number is its age");
        let claimed = self.entries.values().filter(|e| e.claim.is_some()).count();
        assert_eq!(claimed, self.claims.len());
        let counted: BTreeMap<ClientId, usize> =
            self.in_flight.iter().map(|(c, n)| (*c, *n)).collect();
        assert_eq!(in_flight, counted, "charges in flight by client");
    }
}
