//! Requests that this replica knows, by digest.

mod claims;
mod counts;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashSet};
use quorate_wire::message::{AuthRequest, MAX_BATCH_REQUESTS, Request};
use quorate_wire::{ClientId, Digest, Encode, SessionId};

use crate::Millis;
use crate::fingerprint::list;
use crate::io::Rejected;
use crate::turns::{Next, Size, Turns, charge};

use claims::Claim;
pub use claims::WaitingClaim;

/// The most bytes of open requests held for one client: a full window of writes of 1 MiB and room.
pub const CLIENT_BYTES: usize = 80 << 20;
/// The most bytes of requests that wait, of all clients. When there are more, the client with the most of them loses its newest.
pub const POOL_BYTES: usize = 256 << 20;
/// Beyond this much of one client nothing more of it is read: 256 small requests or four of a MiB keep a primary busy, and
/// what waits beyond that had better do so on the client's side.
pub const ENOUGH_BYTES: usize = 4 << 20;

/// Requests that go into the next batch whoever's turn it is.
const MAX_URGENT: usize = 4 * MAX_BATCH_REQUESTS;
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
    /// Whether a batch in the log names it: then it is kept, whatever becomes of its client.
    in_log: bool,
    /// Its claim, if this replica may hold it against a primary.
    claim: Option<Claim>,
    /// Whether this view's primary was shown it.
    was_shown: bool,
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

    /// The number of its claim, if this replica may hold it against a primary.
    pub fn claim_number(&self) -> Option<u64> {
        self.claim.map(|claim| claim.number)
    }

    /// Its claim, if it is one, and whether nothing else of its client was ordered since this replica waits for it.
    pub fn claimed(&self) -> Option<(WaitingClaim, bool)> {
        let claim = self.claim?;
        let waiting = WaitingClaim {
            client: self.request().client(),
            number: claim.number,
            since: claim.since + claim.grace,
        };
        Some((waiting, !claim.was_served))
    }

    /// Whether it waits for a primary to order it.
    pub fn is_waiting(&self) -> bool {
        self.place == Place::Waiting
    }

    /// Whether it was handed to execution.
    pub fn is_executed(&self) -> bool {
        self.place == Place::Executed
    }

    /// Whether a batch in the log names it.
    pub fn in_log(&self) -> bool {
        self.in_log
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

/// What to take off the books when a request is open no more.
struct Closed {
    client: ClientId,
    arrival: u64,
    charge: usize,
    claim: Option<u64>,
    waits: bool,
}

impl Closed {
    /// Of an authentic request that was at this place.
    fn of(entry: &mut Entry, place: Place) -> Closed {
        Closed {
            client: entry.request().client(),
            arrival: entry.arrival,
            charge: charge(entry.request().weight()),
            claim: entry.claim.take().map(|claim| claim.number),
            waits: place == Place::Waiting,
        }
    }
}

/// How large a request is, where the service says how much it reads and writes for an operation.
fn size(request: &Request, work: fn(&Bytes) -> usize) -> Size {
    let is_control = request.session() == SessionId(0);
    Size {
        weight: request.weight(),
        work: if is_control { 0 } else { work(request.op()) },
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
    /// Of whom there is a claim, and its number.
    claimants: HashMap<ClientId, u64, FixedState>,
    /// Those of them that wait.
    waiting: Turns,
    /// Some that go into the next batch, whoever's turn it is, in the order in which they were shown.
    urgent: VecDeque<Digest>,
    /// Charges of open requests by client.
    in_flight: HashMap<ClientId, usize, FixedState>,
    /// The bytes that the execution of an operation reads and writes beside its own.
    work: fn(&Bytes) -> usize,
    /// The weight of what batches in the log name.
    log_weight: usize,
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
            claimants: HashMap::with_hasher(state.clone()),
            waiting: Turns::new(state.clone()),
            urgent: VecDeque::new(),
            in_flight: HashMap::with_hasher(state),
            work: |_| 0,
            log_weight: 0,
            arrivals: 0,
        }
    }

    /// From here on it is taken into account what requests have the service read and write.
    pub fn charge_work(&mut self, work: fn(&Bytes) -> usize) {
        self.work = work;
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

    /// What a request costs in its batch: its bytes, and what the service reads and writes for it beyond those.
    pub fn cost(&self, entry: &Entry) -> usize {
        let size = size(entry.request(), self.work);
        size.weight.saturating_add(size.work)
    }

    /// Takes a request that is authentic.
    ///
    /// # Errors
    /// [`Rejected::Duplicate`] where it already waits or is ordered; [`Rejected::ClientOverLimit`] where its client has too much
    /// open, for itself or beside the others.
    pub fn insert_authentic(
        &mut self,
        request: Arc<AuthRequest>,
        now: Millis,
    ) -> Result<(), Rejected> {
        let known = self.entries.get(&request.request.digest());
        if !known.is_some_and(|e| e.authentic && e.place != Place::Executed) {
            self.make_room(&request.request)?;
        }
        self.insert(request, now, Place::Waiting)
    }

    /// Makes room for a request at the cost of whoever has most. What is ordered does not count for all together: a primary
    /// that orders much for one client must not shut the others out.
    fn make_room(&mut self, request: &Request) -> Result<(), Rejected> {
        let (client, charge) = (request.client(), charge(request.weight()));
        let open = self.in_flight.get(&client).copied().unwrap_or(0);
        if open + charge > CLIENT_BYTES {
            return Err(Rejected::ClientOverLimit);
        }
        loop {
            let (all, own) = self.waiting.charged(&client);
            if all + charge <= POOL_BYTES {
                return Ok(());
            }
            match self.waiting.heaviest() {
                Some((most, newest)) if most > own + charge => self.forget(&newest),
                Some(_) | None => return Err(Rejected::ClientOverLimit),
            }
        }
    }

    /// As [`Pool::insert_authentic`], for a request that the primary has ordered: it is taken even if its client is over
    /// its limit here, since the vote for its whole batch depends on it. The bound on what the log holds bounds these.
    pub fn insert_ordered(
        &mut self,
        request: Arc<AuthRequest>,
        now: Millis,
    ) -> Result<(), Rejected> {
        self.insert(request, now, Place::Ordered)
    }

    fn insert(
        &mut self,
        request: Arc<AuthRequest>,
        now: Millis,
        mut place: Place,
    ) -> Result<(), Rejected> {
        let digest = request.request.digest();
        let (client, weight) = (request.request.client(), request.request.weight());
        // What was executed waits again: a read that is asked again, since the executor keeps no reply for those.
        let (mut in_log, mut was_ordered) = (false, false);
        if let Some(known) = self.entries.get_mut(&digest) {
            known.heard = now;
            if known.authentic && known.place != Place::Executed {
                return Err(Rejected::Duplicate);
            }
            in_log = known.in_log;
            was_ordered = known.place == Place::Ordered;
        }
        self.arrivals += 1;
        let arrival = self.arrivals;
        let size = size(&request.request, self.work);
        match place {
            _ if was_ordered => place = Place::Ordered,
            Place::Ordered => self.waiting.pass(client, size),
            _ => self.waiting.push(client, arrival, digest, size),
        }
        if place == Place::Ordered && !core::mem::replace(&mut in_log, true) {
            self.log_weight += weight;
        }
        *self.in_flight.entry(client).or_default() += charge(weight);
        self.open.insert(arrival, digest);
        let entry = Entry {
            known: request,
            authentic: true,
            checked: false,
            place,
            in_log,
            claim: None,
            was_shown: false,
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
            in_log: false,
            claim: None,
            was_shown: false,
            heard: now,
            arrival: 0,
        });
        self.keep(&digest);
    }

    /// As [`Pool::insert_vouched`], for a request that comes without its client's authenticator.
    pub fn insert_bare(&mut self, request: Request, now: Millis) {
        let request = AuthRequest::bare(request);
        self.insert_vouched(Arc::new(request), now);
    }

    /// A batch in the log names it: it stays until [`Pool::collect_garbage`] says otherwise. Who has voted for a batch must be able to
    /// give it to others in a later view, also when its client has long gone.
    pub fn keep(&mut self, digest: &Digest) {
        if let Some(entry) = self.entries.get_mut(digest)
            && !core::mem::replace(&mut entry.in_log, true)
        {
            self.log_weight += entry.request().weight();
        }
    }

    /// The weight of the requests that batches in the log name, so far as they are here.
    pub fn log_weight(&self) -> usize {
        self.log_weight
    }

    /// The request's signature was checked.
    pub fn mark_checked(&mut self, digest: &Digest) {
        if let Some(entry) = self.entries.get_mut(digest) {
            entry.checked = true;
        }
    }

    fn remove(&mut self, digest: &Digest) {
        if let Some(entry) = self.entries.remove(digest)
            && entry.in_log
        {
            self.log_weight -= entry.request().weight();
        }
    }

    /// The request is in a proposal of the current view.
    pub fn mark_ordered(&mut self, digest: &Digest) {
        let Some(entry) = self.entries.get_mut(digest) else {
            return;
        };
        if !core::mem::replace(&mut entry.in_log, true) {
            self.log_weight += entry.request().weight();
        }
        if entry.place == Place::Waiting {
            entry.place = Place::Ordered;
            let (client, arrival) = (entry.request().client(), entry.arrival);
            self.waiting.serve(&client, arrival);
        }
    }

    /// The request was handed to execution.
    pub fn mark_executed(&mut self, digest: &Digest) {
        if let Some(entry) = self.entries.get_mut(digest) {
            let before = core::mem::replace(&mut entry.place, Place::Executed);
            if before != Place::Executed && entry.authentic {
                let closed = Closed::of(entry, before);
                self.close(closed);
            }
        }
    }

    /// A request is open no more.
    fn close(&mut self, closed: Closed) {
        let Closed {
            client,
            arrival,
            charge,
            claim,
            waits,
        } = closed;
        if let Some(number) = claim {
            self.claims.remove(&number);
            self.claimants.remove(&client);
        }
        self.open.remove(&arrival);
        if waits {
            self.waiting.remove(&client, arrival);
        }
        let left = self.in_flight.entry(client).or_default();
        *left = left.saturating_sub(charge);
        if *left == 0 {
            self.in_flight.remove(&client);
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
    /// replica would ask for one primary after the other. What the log needs stays, without a claim.
    pub fn forget_abandoned(&mut self, before: Millis) {
        let old = |digest: &&Digest| self.entries[*digest].heard < before;
        let abandoned: Vec<Digest> = self.open.values().filter(old).copied().collect();
        for digest in abandoned {
            self.forget(&digest);
        }
    }

    /// What waits, each by itself.
    pub fn waiting(&self) -> impl Iterator<Item = &Arc<AuthRequest>> {
        let open = self.open.values().map(|digest| &self.entries[digest]);
        open.filter(|entry| entry.is_waiting())
            .map(|entry| &entry.known)
    }

    /// The primary is about to be shown a request. Whether it was before, in this view.
    pub fn mark_shown(&mut self, digest: &Digest) -> bool {
        let entry = self.entries.get_mut(digest);
        entry.is_some_and(|entry| core::mem::replace(&mut entry.was_shown, true))
    }

    /// Does without some of what waits.
    pub fn forget_waiting(&mut self, meant: &[Digest]) {
        meant.iter().for_each(|digest| self.forget(digest));
    }

    /// Does without an open request, but for what the log needs of it.
    pub fn forget(&mut self, digest: &Digest) {
        let Some(entry) = self.entries.get_mut(digest) else {
            return;
        };
        let is_of_use = entry.in_log || entry.place != Place::Waiting;
        if core::mem::replace(&mut entry.authentic, false) {
            let closed = Closed::of(entry, entry.place);
            self.close(closed);
        }
        if !is_of_use {
            self.remove(digest);
        }
    }

    /// A new view starts: what is not in `selected` waits again, and nobody has waited yet.
    pub fn restart(&mut self, selected: &BTreeSet<Digest>, now: Millis) {
        self.waiting.clear();
        for (digest, entry) in &mut self.entries {
            entry.was_shown = false;
            entry.claim = entry.claim.map(|claim| claim.anew(now));
            if entry.place == Place::Executed {
                continue;
            }
            entry.place = match selected.contains(digest) {
                true => Place::Ordered,
                false => Place::Waiting,
            };
            if entry.authentic && entry.place == Place::Waiting {
                let (client, size) = (entry.request().client(), size(entry.request(), self.work));
                self.waiting.push(client, entry.arrival, *digest, size);
            }
        }
        self.trim();
    }

    /// Drops of what waits what may not: what was ordered was taken whatever its client had, and now it waits again. One primary after the other could
    /// else pile it up.
    fn trim(&mut self) {
        while let Some((most, newest)) = self.waiting.heaviest() {
            let (all, _) = self
                .waiting
                .charged(&self.entries[&newest].request().client());
            if all <= POOL_BYTES && most <= CLIENT_BYTES {
                return;
            }
            self.forget(&newest);
        }
    }

    /// The authentic requests that are to be ordered next: up to so many, of so many bytes unless it is one alone. Clients take
    /// turns; there may be none where all that wait have had more than their share.
    pub fn next(&self, most: usize, bytes: usize) -> Next {
        self.waiting.next(most, bytes)
    }

    /// Looks how many clients share what there is.
    pub fn look(&mut self, now: Millis) {
        self.waiting.look(self.in_flight.len(), now);
    }

    /// A request that a backup has shown goes into the next batch, at the cost of its client's later ones.
    pub fn hurry(&mut self, digest: &Digest) {
        let waits = self
            .entries
            .get(digest)
            .is_some_and(|e| e.authentic && e.is_waiting());
        if waits && self.urgent.len() < MAX_URGENT && !self.urgent.contains(digest) {
            self.urgent.push_back(*digest);
        }
    }

    /// Whether it goes into the next batch in any case.
    pub fn is_urgent(&self, digest: &Digest) -> bool {
        self.urgent.contains(digest)
    }

    /// Those that still wait of what is to go into the next batch, up to so many.
    pub fn urgent(&mut self, most: usize) -> Vec<Digest> {
        let entries = &self.entries;
        let waits = |e: &Entry| e.authentic && e.is_waiting();
        self.urgent
            .retain(|digest| entries.get(digest).is_some_and(waits));
        self.urgent.iter().take(most).copied().collect()
    }

    /// A batch was made of what [`Pool::next`] gave.
    pub fn on_batch(&mut self) {
        self.waiting.on_batch();
    }

    /// Nobody has come for whom the others were kept waiting.
    pub fn go_on(&mut self) {
        self.waiting.go_on();
    }

    /// What a client's open requests are charged.
    pub fn open_charge(&self, client: &ClientId) -> usize {
        self.in_flight.get(client).copied().unwrap_or(0)
    }

    /// How many authentic requests wait to be ordered, and their weight.
    pub fn queue(&self) -> (usize, usize) {
        self.waiting.size()
    }

    /// What is known of each request, and in which order they wait. See [`Agreement::fingerprint`](crate::Agreement::fingerprint).
    pub fn fingerprint(&self, out: &mut Vec<u8>) {
        let sorted: BTreeMap<&Digest, &Entry> = self.entries.iter().collect();
        for (digest, entry) in sorted {
            digest.encode(out);
            let flags = [
                entry.authentic,
                entry.checked,
                entry.in_log,
                entry.claim.is_some(),
                entry.relay().is_some(),
            ];
            flags.iter().for_each(|flag| flag.encode(out));
            out.push(entry.place as u8);
        }
        list(self.waiting.all().into_iter(), out);
    }

    /// Drops what neither waits nor is named by a batch in the log.
    pub fn collect_garbage(&mut self, named: &DigestSet) {
        self.log_weight = 0;
        let log_weight = &mut self.log_weight;
        self.entries.retain(|digest, e| {
            e.in_log = named.contains(digest);
            *log_weight += e.known.request.weight() * usize::from(e.in_log);
            (e.authentic && e.place != Place::Executed) || e.in_log
        });
        self.waiting.forget_idle();
    }

    /// Digests of a batch that are not here.
    pub fn missing(&self, requests: &[Digest]) -> Vec<Digest> {
        let missing = requests.iter().filter(|d| !self.entries.contains_key(*d));
        missing.copied().collect()
    }

    /// The bookkeeping agrees with the entries.
    pub fn invariants(&self) {
        let waits = |e: &Entry| e.authentic && e.place == Place::Waiting;
        self.waiting.invariants(|digest| {
            let entry = self.entries.get(digest).filter(|e| waits(e))?;
            let request = entry.request();
            Some((request.client(), entry.arrival, request.weight()))
        });
        let (mut waiting, mut log_weight, mut claimed) = (0, 0, 0);
        let mut in_flight: BTreeMap<ClientId, usize> = BTreeMap::new();
        for entry in self.entries.values() {
            waiting += usize::from(waits(entry));
            claimed += usize::from(entry.claim.is_some());
            if entry.in_log {
                log_weight += entry.request().weight();
            }
            if entry.authentic && entry.place != Place::Executed {
                *in_flight.entry(entry.request().client()).or_default() +=
                    charge(entry.request().weight());
                assert_eq!(
                    self.open.get(&entry.arrival),
                    Some(&entry.request().digest())
                );
            }
        }
        assert_eq!(waiting, self.waiting.size().0);
        assert_eq!(log_weight, self.log_weight);
        assert_eq!(claimed, self.claims.len());
        let claims = self.claims.iter().map(|(number, digest)| {
            let entry = &self.entries[digest];
            assert!(entry.authentic && entry.place != Place::Executed);
            let claim = entry.claim.expect("a claim");
            assert_eq!(claim.number, *number);
            claim.since
        });
        assert!(claims.is_sorted(), "a claim's number is its age");
        assert_eq!(claimed, self.claimants.len());
        for (client, number) in &self.claimants {
            let entry = &self.entries[&self.claims[number]];
            assert_eq!(entry.request().client(), *client);
        }
        let counted = self.in_flight.iter();
        let agree = counted.clone().all(|(c, n)| in_flight.get(c) == Some(n));
        assert!(
            agree && counted.len() == in_flight.len(),
            "charges in flight by client: {in_flight:?}, counted {:?}",
            self.in_flight
        );
    }
}
