//! Whose turn it is: requests that wait to be ordered, by client.
//!
//! A primary that orders by arrival serves whoever asks most, and who fills its queue keeps the others out (Aardvark, NSDI 2009,
//! section 4). So clients take turns, by start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996): each has a *turn*, a point in
//! virtual time; the smallest is served next, and moves on by what it cost: a request, its bytes and those that the service reads and
//! writes for it beside them, about in the measure in which they take processor time. Who comes back after a pause begins at the present time, so that nobody saves up.
//!
//! And each has a *share*: what all have cost, divided by how many clients have something open, on the average of late.
//! Who is ahead of it waits, also where nobody else does right now. A client with one request in flight is there again
//! as soon as it was answered; were the time between filled with the requests of those who have many, it would find each batch
//! full of these, and take as many times longer. Nor does who is ahead have batches of its own while such clients are about
//! (`primary.rs`). A batch costs something by itself, whoever is in it, and that is shared out as
//! well: so a client that is alone, or among others of its kind, never waits for this.

use alloc::collections::{BTreeMap, BTreeSet, btree_map};
use alloc::vec::Vec;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use quorate_wire::message::MAX_BATCH_REQUESTS;
use quorate_wire::{ClientId, Digest};

use crate::{BATCH_BYTES, BATCH_WORK, Millis};

/// What the smallest request is charged where requests are bounded, so that their number is bounded as well.
pub(crate) const LEAST_CHARGE: usize = 16 << 10;

/// What a request counts for where requests are bounded.
pub(crate) fn charge(weight: usize) -> usize {
    weight.max(LEAST_CHARGE)
}

/// What a request costs beside its bytes, and what a batch does beside its requests; in bytes.
const REQUEST_COST: u64 = 4 << 10;
const BATCH_COST: u64 = 10 * REQUEST_COST;
/// How far a client may be ahead of its share: a batch, of whatever requests.
const AHEAD: u64 = BATCH_BYTES as u64 + MAX_BATCH_REQUESTS as u64 * REQUEST_COST;
/// What a client that is ahead is given where nobody else has come: a batch of small requests.
const GIVEN: u64 = MAX_BATCH_REQUESTS as u64 * REQUEST_COST;
/// The number of clients is kept in parts of one, and is the average of about so many milliseconds.
const PARTS: u64 = 16;

/// How large a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// The bytes that it takes up itself.
    pub weight: usize,
    /// Those that its execution reads and writes beside them, as the service says. Only turns and batches follow from it, and those are this
    /// replica's own affair.
    pub work: usize,
}

impl From<usize> for Size {
    /// Of a request for which nothing else is read or written.
    fn from(weight: usize) -> Size {
        Size { weight, work: 0 }
    }
}

fn cost(size: impl Into<Size>) -> u64 {
    let Size { weight, work } = size.into();
    REQUEST_COST + weight as u64 + work as u64
}

/// One client's requests, in the order of their arrival.
#[derive(Clone, Debug, Default)]
struct Line {
    turn: u64,
    /// Up to where it has used its share.
    used: u64,
    charged: usize,
    requests: BTreeMap<u64, (Digest, Size)>,
}

/// What is to be ordered next.
#[derive(Clone, Debug)]
pub struct Next {
    pub requests: Vec<Digest>,
    /// Whether somebody is among these who is not ahead of its share.
    pub is_due: bool,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    lines: HashMap<ClientId, Line, FixedState>,
    /// Clients that have something here, by their turns.
    order: BTreeSet<(u64, ClientId)>,
    /// Virtual time: the turn of who was served last, in bytes.
    now: u64,
    /// What was each client's share so far, in bytes.
    share: u64,
    /// How many clients have something open, in [`PARTS`], and when that was looked at.
    rivals: u64,
    looked_at: Millis,
    count: usize,
    weight: usize,
    charged: usize,
}

impl Turns {
    pub fn new(hash: FixedState) -> Turns {
        Turns {
            lines: HashMap::with_hasher(hash),
            order: BTreeSet::new(),
            now: 0,
            share: 0,
            rivals: PARTS,
            looked_at: 0,
            count: 0,
            weight: 0,
            charged: 0,
        }
    }

    /// A request waits.
    pub fn push(&mut self, client: ClientId, arrival: u64, digest: Digest, size: impl Into<Size>) {
        let size = size.into();
        let line = self.lines.entry(client).or_default();
        if line.requests.is_empty() {
            line.turn = line.turn.max(self.now);
            self.order.insert((line.turn, client));
        }
        line.requests.insert(arrival, (digest, size));
        line.charged += charge(size.weight);
        self.charged += charge(size.weight);
        self.count += 1;
        self.weight += size.weight;
    }

    /// The request waits no more, and it was not its turn.
    pub fn remove(&mut self, client: &ClientId, arrival: u64) -> Option<Size> {
        let line = self.lines.get_mut(client)?;
        let (_, size) = line.requests.remove(&arrival)?;
        line.charged -= charge(size.weight);
        self.charged -= charge(size.weight);
        self.count -= 1;
        self.weight -= size.weight;
        if line.requests.is_empty() {
            self.order.remove(&(line.turn, *client));
        }
        Some(size)
    }

    /// The request was ordered.
    pub fn serve(&mut self, client: &ClientId, arrival: u64) {
        let Some(size) = self.remove(client, arrival) else {
            return;
        };
        let Some(line) = self.lines.get_mut(client) else {
            return;
        };
        let turn = line.turn;
        line.turn += cost(size);
        line.used = line.used.max(self.share) + cost(size);
        self.now = self.now.max(turn);
        self.share += cost(size) * PARTS / self.rivals;
        if self.order.remove(&(turn, *client)) {
            self.order.insert((line.turn, *client));
        }
    }

    /// A request was ordered that did not wait here.
    pub fn pass(&mut self, client: ClientId, size: impl Into<Size>) {
        let size = size.into();
        let line = self.lines.entry(client).or_default();
        let waits = !line.requests.is_empty();
        let before = line.turn;
        let turn = match waits {
            true => before,
            false => before.max(self.now),
        };
        line.turn = turn + cost(size);
        line.used = line.used.max(self.share) + cost(size);
        let after = line.turn;
        self.share += cost(size) * PARTS / self.rivals;
        self.now = self.now.max(turn);
        if waits {
            self.order.remove(&(before, client));
            self.order.insert((after, client));
        }
    }

    /// A batch was made.
    pub fn on_batch(&mut self) {
        self.share += BATCH_COST * PARTS / self.rivals;
    }

    /// So many clients have something open now.
    pub fn look(&mut self, rivals: usize, now: Millis) {
        let passed = now.saturating_sub(self.looked_at).min(PARTS);
        self.looked_at = self.looked_at.max(now);
        let rivals = rivals as u64 * PARTS;
        for _ in 0..passed {
            self.rivals = (self.rivals * (PARTS - 1) + rivals) / PARTS;
        }
        self.rivals = self.rivals.max(PARTS);
    }

    /// All that wait are ahead of their shares, and nobody else has come: the first of them goes on.
    pub fn go_on(&mut self) {
        let waiting = self.order.iter().filter_map(|(_, c)| self.lines.get(c));
        if let Some(least) = waiting.map(|line| line.used).min() {
            self.share = self.share.max((least + GIVEN).saturating_sub(AHEAD));
        }
    }

    /// Those whose turns are next, of those that are not ahead of their shares: up to `most`, of up to `bytes` and [`BATCH_WORK`] unless it is
    /// one alone. Who has what is too much work waits for the next batch, and others go on.
    pub fn next(&self, most: usize, bytes: usize) -> Next {
        let room = Size {
            weight: bytes,
            work: BATCH_WORK,
        };
        self.choose(most, room, self.share + AHEAD)
    }

    /// All that wait, in the order of their turns.
    pub fn all(&self) -> Vec<Digest> {
        let room = Size {
            weight: usize::MAX,
            work: usize::MAX,
        };
        let all = self.choose(usize::MAX, room, u64::MAX);
        all.requests
    }

    fn choose(&self, most: usize, room: Size, until: u64) -> Next {
        let lines = self.order.iter().filter_map(|(_, c)| self.lines.get(c));
        let first = lines.filter(|line| line.used <= until).take(most);
        type Rest<'a> = (btree_map::Values<'a, u64, (Digest, Size)>, u64);
        let mut heads: BTreeMap<(u64, usize), Rest<'_>> = first
            .enumerate()
            .map(|(i, line)| {
                let used = line.used.max(self.share);
                ((line.turn, i), (line.requests.values(), used))
            })
            .collect();
        let (mut chosen, mut weight, mut work, mut is_due) = (Vec::new(), 0, 0, false);
        while chosen.len() < most
            && let Some(((turn, i), (mut rest, used))) = heads.pop_first()
        {
            if used > until {
                continue;
            }
            let Some(&(digest, size)) = rest.next() else {
                continue;
            };
            if !chosen.is_empty() && size.work > 0 && size.work.saturating_add(work) > room.work {
                continue;
            }
            weight += size.weight;
            if !chosen.is_empty() && weight > room.weight {
                break;
            }
            work = size.work.saturating_add(work);
            chosen.push(digest);
            is_due |= used <= self.share;
            let cost = cost(size);
            heads.insert((turn + cost, i), (rest, used.saturating_add(cost)));
        }
        Next {
            requests: chosen,
            is_due,
        }
    }

    /// What all that waits is charged, and what one client's is.
    pub fn charged(&self, client: &ClientId) -> (usize, usize) {
        let own = self.lines.get(client).map_or(0, |line| line.charged);
        (self.charged, own)
    }

    /// The client with the most here, what that is charged, and its newest request.
    pub fn heaviest(&self) -> Option<(usize, Digest)> {
        let lines = self.lines.iter().filter(|(_, l)| !l.requests.is_empty());
        let (_, line) = lines.max_by_key(|(client, line)| (line.charged, **client))?;
        let (_, (newest, _)) = line.requests.last_key_value()?;
        Some((line.charged, *newest))
    }

    /// How many requests wait, and their weight.
    pub fn size(&self) -> (usize, usize) {
        (self.count, self.weight)
    }

    /// Nothing waits. Turns stay as they are.
    pub fn clear(&mut self) {
        for line in self.lines.values_mut() {
            line.requests.clear();
            line.charged = 0;
        }
        self.order.clear();
        (self.count, self.weight, self.charged) = (0, 0, 0);
    }

    /// Forgets clients that have nothing here and owe nothing.
    pub fn forget_idle(&mut self) {
        let (now, share) = (self.now, self.share);
        let is_needed =
            |line: &Line| !line.requests.is_empty() || line.turn > now || line.used > share;
        self.lines.retain(|_, line| is_needed(line));
    }

    /// The bookkeeping agrees with what is known of each request: its client, arrival and weight.
    pub fn invariants(&self, known: impl Fn(&Digest) -> Option<(ClientId, u64, usize)>) {
        let (mut count, mut weight, mut charged) = (0, 0, 0);
        for (client, line) in &self.lines {
            let own = line.requests.values().map(|(_, size)| charge(size.weight));
            assert_eq!(own.sum::<usize>(), line.charged);
            charged += line.charged;
            let is_in_order = self.order.contains(&(line.turn, *client));
            assert_eq!(is_in_order, !line.requests.is_empty(), "{line:?}");
            for (arrival, (digest, size)) in &line.requests {
                assert_eq!(known(digest), Some((*client, *arrival, size.weight)));
                count += 1;
                weight += size.weight;
            }
        }
        assert_eq!((count, weight), (self.count, self.weight));
        assert_eq!(charged, self.charged);
        assert!(self.order.len() <= self.lines.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_wire::digest::Content;

    const A: ClientId = quorate_wire::PublicKey([1; 32]);
    const B: ClientId = quorate_wire::PublicKey([2; 32]);
    const C: ClientId = quorate_wire::PublicKey([3; 32]);

    fn turns() -> Turns {
        Turns::new(FixedState::with_seed(0))
    }

    /// Requests are named by their arrival.
    fn name(arrival: u64) -> Digest {
        Digest::of(Content::Batch, &arrival.to_le_bytes())
    }

    /// So many have had something open for long.
    fn compete(turns: &mut Turns, clients: usize) {
        (1..=200).for_each(|ms| turns.look(clients, ms));
    }

    fn serve_next(turns: &mut Turns, clients: &[(ClientId, u64)]) -> Vec<u64> {
        turns.on_batch();
        let next = turns.next(MAX_BATCH_REQUESTS, BATCH_BYTES).requests;
        let numbers: Vec<(ClientId, u64)> = next
            .iter()
            .map(|d| *clients.iter().find(|(_, n)| name(*n) == *d).unwrap())
            .collect();
        numbers.iter().for_each(|(c, n)| turns.serve(c, *n));
        numbers.into_iter().map(|(_, n)| n).collect()
    }

    /// Who has a thousand requests here keeps out nobody who comes with one.
    #[test]
    fn one_goes_between_many() {
        let mut turns = turns();
        let mut all: Vec<(ClientId, u64)> = (0..1000).map(|n| (A, n)).collect();
        all.extend([(B, 1000), (C, 1001)]);
        for (client, arrival) in &all {
            turns.push(*client, *arrival, name(*arrival), 100);
        }
        let first = serve_next(&mut turns, &all);
        assert_eq!(first.len(), MAX_BATCH_REQUESTS);
        assert!(first.contains(&1000) && first.contains(&1001));
        // In order, for each.
        let of_a: Vec<u64> = first.into_iter().filter(|n| *n < 1000).collect();
        assert!(of_a.is_sorted());
        turns.invariants(|d| {
            let (client, n) = all.iter().find(|(_, n)| name(*n) == *d)?;
            Some((*client, *n, 100))
        });
    }

    /// Two clients get the same, whether in few large requests or in many small ones: one of a MiB costs what 257 small ones do.
    #[test]
    fn large_and_small_get_the_same() {
        let mut turns = turns();
        compete(&mut turns, 2);
        let large: Vec<(ClientId, u64)> = (0..40).map(|n| (A, n)).collect();
        let small: Vec<(ClientId, u64)> = (100..4000).map(|n| (B, n)).collect();
        for (client, n) in large.iter().chain(&small) {
            let weight = if *client == A { 1 << 20 } else { 100 };
            turns.push(*client, *n, name(*n), weight);
        }
        let all = [large, small].concat();
        let mut served = Vec::new();
        while served.len() < 2_500 {
            served.extend(serve_next(&mut turns, &all));
        }
        let of_a = served.iter().filter(|n| **n < 100).count();
        let of_b = served.len() - of_a;
        let parity = (REQUEST_COST + (1 << 20)) / cost(100);
        assert!(
            of_b.abs_diff(parity as usize * of_a) <= 700,
            "{of_a} and {of_b}"
        );
    }

    /// A request that was ordered without having waited costs what one does that has, whether others of its client wait or not.
    #[test]
    fn what_did_not_wait_is_paid_for() {
        let all = [(A, 0), (B, 1), (C, 2), (A, 3), (A, 5)];
        for waits in [false, true] {
            let (mut pushed, mut passed) = (turns(), turns());
            for (client, n) in &all[..3 + 2 * usize::from(waits)] {
                pushed.push(*client, *n, name(*n), 100);
                passed.push(*client, *n, name(*n), 100);
            }
            for (client, n) in &all[..3] {
                pushed.serve(client, *n);
                passed.serve(client, *n);
            }
            pushed.push(B, 9, name(9), 70_000);
            pushed.serve(&B, 9);
            passed.pass(B, 70_000);
            pushed.push(A, 4, name(4), 100);
            pushed.serve(&A, 4);
            passed.pass(A, 100);
            let turn = |t: &Turns, client| t.lines[&client].turn;
            for client in [A, B, C] {
                assert_eq!(turn(&pushed, client), turn(&passed, client));
            }
            assert_eq!((pushed.now, pushed.order), (passed.now, passed.order));
        }
    }

    /// Who was away has saved nothing up, and who was served owes no more than what it got.
    #[test]
    fn a_pause_earns_nothing() {
        let mut turns = turns();
        let all: Vec<(ClientId, u64)> = (0..300).map(|n| (A, n)).collect();
        for (client, n) in &all {
            turns.push(*client, *n, name(*n), 100);
        }
        compete(&mut turns, 2);
        serve_next(&mut turns, &all);
        serve_next(&mut turns, &all);
        let late: Vec<(ClientId, u64)> = (500..700).map(|n| (B, n)).collect();
        for (client, n) in &late {
            turns.push(*client, *n, name(*n), 100);
        }
        let all = [all, late].concat();
        let next = serve_next(&mut turns, &all);
        let of_b = next.iter().filter(|n| **n >= 500).count();
        assert!((31..=33).contains(&of_b), "{of_b} of {}", next.len());
    }

    /// Requests by name.
    type Named = BTreeMap<Digest, (ClientId, u64)>;

    fn push(turns: &mut Turns, named: &mut Named, client: u8, arrival: u64, size: impl Into<Size>) {
        let (client, digest) = (quorate_wire::PublicKey([client; 32]), name(arrival));
        turns.push(client, arrival, digest, size);
        named.insert(digest, (client, arrival));
    }

    fn serve_named(turns: &mut Turns, named: &Named) -> Vec<u64> {
        let next = turns.next(MAX_BATCH_REQUESTS, BATCH_BYTES).requests;
        let next: Vec<(ClientId, u64)> = next.iter().map(|digest| named[digest]).collect();
        next.iter().for_each(|(c, n)| turns.serve(c, *n));
        turns.on_batch();
        next.into_iter().map(|(_, n)| n).collect()
    }

    /// Twenty clients have one small request in flight each, and are there again after every second batch; four others have as many
    /// as can be, small or large. Those get their shares and no more, though nobody else waits half of the time.
    #[test]
    fn who_has_many_does_not_fill_the_gaps() {
        for weight in [100, 1 << 20] {
            let (mut turns, mut named) = (turns(), Named::new());
            for n in 0..8_000 {
                push(&mut turns, &mut named, 100 + n as u8 % 4, n, weight);
            }
            compete(&mut turns, 24);
            let (mut modest, mut others) = (0, 0);
            for round in 0..1_000_u64 {
                for n in 0..if round % 2 == 0 { 20 } else { 0 } {
                    push(
                        &mut turns,
                        &mut named,
                        n as u8,
                        10_000 + round * 20 + n,
                        100,
                    );
                }
                for n in serve_named(&mut turns, &named) {
                    match n >= 10_000 {
                        true => modest += cost(100),
                        false => others += cost(weight),
                    }
                }
            }
            assert_eq!(modest, 500 * 20 * cost(100), "all of them at once");
            let share = (modest + others + 1_000 * BATCH_COST) / 24;
            let most = 4 * (share + share / 10 + AHEAD + cost(weight));
            assert!(
                (3 * share..most).contains(&others),
                "{weight}: {others}, {share}"
            );
        }
    }

    /// The dearest copies: short requests, each of which reads and writes a MiB.
    const COPY: Size = Size {
        weight: 200,
        work: 2 << 20,
    };

    /// Copies of many clients are spread over batches, each of bounded work, and what others ask goes on in the first of them.
    #[test]
    fn copies_are_spread_over_batches() {
        let (mut turns, mut named) = (turns(), Named::new());
        for n in 0..64 {
            push(&mut turns, &mut named, n as u8 % 8, n, COPY);
        }
        for n in 100..140 {
            push(&mut turns, &mut named, 9, n, 100);
        }
        let at_once = BATCH_WORK / COPY.work;
        let first = serve_named(&mut turns, &named);
        let copies = first.iter().filter(|n| **n < 64).count();
        assert_eq!((copies, first.len()), (at_once, at_once + 40));
        let mut left = 64 - copies;
        for _ in 0..200 {
            let next = serve_named(&mut turns, &named).len();
            assert!(next <= at_once);
            left -= next;
            if next == 0 {
                turns.go_on();
            }
        }
        assert_eq!(left, 0, "each has its turn");
    }

    /// What is too much for any batch goes alone.
    #[test]
    fn too_much_work_goes_alone() {
        let mut turns = turns();
        let work = 2 * BATCH_WORK;
        turns.push(A, 1, name(1), Size { weight: 1, work });
        turns.push(B, 2, name(2), COPY);
        assert_eq!(turns.next(64, BATCH_BYTES).requests, [name(1)]);
    }

    /// Who copies gets as much as who writes, by the bytes that are read and written.
    #[test]
    fn copies_are_paid_for() {
        let mut turns = turns();
        compete(&mut turns, 2);
        let copies: Vec<(ClientId, u64)> = (0..100).map(|n| (A, n)).collect();
        let small: Vec<(ClientId, u64)> = (100..20_000).map(|n| (B, n)).collect();
        copies
            .iter()
            .for_each(|(c, n)| turns.push(*c, *n, name(*n), COPY));
        small
            .iter()
            .for_each(|(c, n)| turns.push(*c, *n, name(*n), 100));
        let mut named = Named::new();
        for (client, n) in copies.iter().chain(&small) {
            named.insert(name(*n), (*client, *n));
        }
        let mut served = Vec::new();
        while served.len() < 10_000 {
            served.extend(serve_named(&mut turns, &named));
        }
        let of_a = served.iter().filter(|n| **n < 100).count() as u64;
        let of_b = served.len() as u64 - of_a;
        let (of_a, of_b) = (of_a * cost(COPY), of_b * cost(100));
        assert!(
            of_a.abs_diff(of_b) <= 2 * (AHEAD + cost(COPY)),
            "{of_a} and {of_b}"
        );
    }

    /// A client that is alone, or with others of its kind, has whole batches all the time.
    #[test]
    fn among_equals_nobody_waits() {
        for clients in [1, 2, 5] {
            let (mut turns, mut named) = (turns(), Named::new());
            for n in 0..6_400 {
                push(&mut turns, &mut named, (n % clients) as u8, n, 100);
            }
            compete(&mut turns, clients as usize);
            for _ in 0..60 {
                assert_eq!(serve_named(&mut turns, &named).len(), MAX_BATCH_REQUESTS);
            }
        }
    }
}
