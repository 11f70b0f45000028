//! What has come on links and waits until its signatures were checked on another thread.
//!
//! What needs no check, or comes on a link of which nothing waits, goes on at once. The rest gathers while verifiers are at work, and is
//! handed to them in batches, that of replicas first. What comes from somebody goes on in the order in which it came: behind what waits,
//! everything of the same sender waits as well, also that it is gone. Others do not.
//!
//! Whoever has sent a wrong signature is kept apart for a while: what it sends is checked by itself, so that it does not have the others'
//! signatures checked one by one, time and again.
//!
//! There are no threads here, and no clocks.

use std::collections::{BTreeMap, VecDeque};
use std::mem;

use quorate_agreement::Signed;
use quorate_net::Who;

use super::verifier::Verification;

/// Signatures of a batch, if there are so many. With fewer together each takes longer; with more, who comes next waits longer.
const LEAST: usize = 16;
const MOST: usize = 128;
/// What may wait of replicas, and of clients, until nothing more is read from these. Of signatures, some hundredths of a second of a
/// verifier's time.
const SIGNATURES: [usize; 2] = [1024, 512];
const EVENTS: [usize; 2] = [4096, 4096];
const BYTES: [usize; 2] = [32 << 20, 16 << 20];
/// Who has sent a wrong signature is believed to send right ones after so many of these.
const REPENTANCE: usize = 64;
/// So many are kept apart.
const MOST_APART: usize = 4096;

/// What a signature was found to be.
pub(crate) type Verdict = (Signed, bool);

/// Something that waits, for whoever checks its signatures.
#[derive(Debug)]
pub(crate) struct Open {
    arrival: u64,
    who: Who,
    /// How many checks that is.
    weight: usize,
    signatures: Vec<Signed>,
    /// To be checked by itself.
    pub is_apart: bool,
}

impl Open {
    /// What is to be checked.
    pub fn signatures(&self) -> &[Signed] {
        &self.signatures
    }

    /// The same with what came of it, in the same order.
    pub fn judged(self, right: impl IntoIterator<Item = bool>) -> Judged {
        Judged {
            arrival: self.arrival,
            who: self.who,
            verdicts: self.signatures.into_iter().zip(right).collect(),
        }
    }
}

/// Something whose signatures were checked.
#[derive(Debug)]
pub(crate) struct Judged {
    arrival: u64,
    who: Who,
    verdicts: Vec<Verdict>,
}

#[derive(Debug)]
struct Staged<E> {
    arrival: u64,
    event: E,
    bytes: usize,
    /// How many there are that are not that before them.
    signatures: usize,
    /// The last signature of the line up to here.
    last: Option<Signed>,
    state: State,
}

#[derive(Debug)]
enum State {
    Waits(Vec<Signed>),
    AtVerifiers,
    Ready(Vec<Verdict>),
}

/// What waits of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    events: usize,
    bytes: usize,
    signatures: usize,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Staging<E> {
    verification: Verification,
    /// What waits, by sender, in order.
    lines: BTreeMap<Who, VecDeque<Staged<E>>>,
    /// What waits for a verifier, by lane.
    unchecked: [VecDeque<(u64, Who)>; 2],
    /// How many signatures these have; those that are there several times in a row count once.
    unchecked_signatures: usize,
    load: [Load; 2],
    arrivals: u64,
    /// Batches that verifiers have.
    out: usize,
    /// Who has sent wrong signatures, and how many right ones are due.
    apart: BTreeMap<Who, usize>,
}

impl<E> Staging<E> {
    /// For verifiers, of which there is one at least.
    pub fn new(verification: Verification) -> Staging<E> {
        Staging {
            verification,
            lines: BTreeMap::new(),
            unchecked: Default::default(),
            unchecked_signatures: 0,
            load: Default::default(),
            arrivals: 0,
            out: 0,
            apart: BTreeMap::new(),
        }
    }

    /// Takes what has come from somebody, with the signatures in it that are to be checked. What can go on at once comes back.
    pub fn take(&mut self, who: Who, event: E, bytes: usize, open: Vec<Signed>) -> Option<E> {
        if open.is_empty() && !self.lines.contains_key(&who) {
            return Some(event);
        }
        let (lane, arrival) = (lane(&who), self.arrivals);
        self.arrivals += 1;
        let line = self.lines.entry(who).or_default();
        // What was signed together comes together, and its signature is checked once.
        let before = line.back().and_then(|staged| staged.last);
        let signatures = open.iter().filter(|s| Some(**s) != before).count();
        let last = open.last().copied().or(before);
        let load = &mut self.load[lane];
        load.events += 1;
        load.bytes += bytes;
        load.signatures += signatures;
        let state = match open.is_empty() {
            true => State::Ready(Vec::new()),
            false => {
                self.unchecked[lane].push_back((arrival, who));
                self.unchecked_signatures += signatures;
                State::Waits(open)
            }
        };
        line.push_back(Staged {
            arrival,
            event,
            bytes,
            signatures,
            last,
            state,
        });
        None
    }

    /// Whether so much waits of replicas, and of clients, that no more is to be taken from them.
    pub fn is_full(&self) -> [bool; 2] {
        [0, 1].map(|lane| {
            let load = self.load[lane];
            load.signatures >= SIGNATURES[lane]
                || load.events >= EVENTS[lane]
                || load.bytes >= BYTES[lane]
        })
    }

    fn is_worth_it(&self) -> bool {
        self.unchecked_signatures >= self.verification.from.max(1)
    }

    /// What is so little that it goes on as it is, while no verifier is at work: all that waits, in order.
    pub fn take_few(&mut self) -> Vec<E> {
        if self.out > 0 || self.is_worth_it() {
            return Vec::new();
        }
        self.unchecked = Default::default();
        (self.unchecked_signatures, self.load) = (0, Default::default());
        let mut all: Vec<Staged<E>> = mem::take(&mut self.lines).into_values().flatten().collect();
        all.sort_unstable_by_key(|staged| staged.arrival);
        all.into_iter().map(|staged| staged.event).collect()
    }

    /// The next batch, if it is worth it and there is a verifier for it.
    pub fn next_batch(&mut self) -> Option<Vec<Open>> {
        let idle = self.verification.threads.saturating_sub(self.out);
        if idle == 0 || !self.is_worth_it() {
            return None;
        }
        let share = self.unchecked_signatures.div_ceil(idle).clamp(LEAST, MOST);
        let (mut batch, mut signatures) = (Vec::new(), 0);
        while signatures < share
            && let Some(open) = self.next_open()
        {
            signatures += open.weight;
            batch.push(open);
        }
        self.out += 1;
        Some(batch)
    }

    fn next_open(&mut self) -> Option<Open> {
        let [peers, clients] = &mut self.unchecked;
        let (arrival, who) = peers.pop_front().or_else(|| clients.pop_front())?;
        let staged = find(&mut self.lines, who, arrival)?;
        let State::Waits(signatures) = mem::replace(&mut staged.state, State::AtVerifiers) else {
            return None;
        };
        self.unchecked_signatures -= staged.signatures;
        Some(Open {
            arrival,
            who,
            weight: staged.signatures,
            signatures,
            is_apart: self.apart.contains_key(&who),
        })
    }

    /// A verifier has checked a batch. What can go on now comes back, in the order in which it came, each with what its signatures were
    /// found to be.
    pub fn judged(&mut self, batch: Vec<Judged>) -> Vec<(E, Vec<Verdict>)> {
        self.out = self.out.saturating_sub(1);
        let mut senders = Vec::new();
        for Judged {
            arrival,
            who,
            verdicts,
        } in batch
        {
            self.note(who, &verdicts);
            if let Some(staged) = find(&mut self.lines, who, arrival) {
                staged.state = State::Ready(verdicts);
                senders.push(who);
            }
        }
        let mut ready = Vec::new();
        for who in senders {
            let Some(line) = self.lines.get_mut(&who) else {
                continue;
            };
            let load = &mut self.load[lane(&who)];
            let is_ready = |staged: &Staged<E>| matches!(staged.state, State::Ready(_));
            while line.front().is_some_and(is_ready)
                && let Some(staged) = line.pop_front()
            {
                load.events -= 1;
                load.bytes -= staged.bytes;
                load.signatures -= staged.signatures;
                if let State::Ready(verdicts) = staged.state {
                    ready.push((staged.arrival, staged.event, verdicts));
                }
            }
            if line.is_empty() {
                self.lines.remove(&who);
            }
        }
        ready.sort_unstable_by_key(|(arrival, ..)| *arrival);
        let ready = ready.into_iter();
        ready
            .map(|(_, event, verdicts)| (event, verdicts))
            .collect()
    }

    fn note(&mut self, who: Who, verdicts: &[Verdict]) {
        if verdicts.iter().any(|(_, is_right)| !is_right) {
            self.apart.insert(who, REPENTANCE);
            if self.apart.len() > MOST_APART {
                self.apart.pop_first();
            }
        } else if let Some(due) = self.apart.get_mut(&who) {
            *due = due.saturating_sub(verdicts.len());
            if *due == 0 {
                self.apart.remove(&who);
            }
        }
    }
}

/// As links are read: replicas first.
fn lane(who: &Who) -> usize {
    match who {
        Who::Peer(_) => 0,
        Who::Client(_) => 1,
    }
}

fn find<E>(
    lines: &mut BTreeMap<Who, VecDeque<Staged<E>>>,
    who: Who,
    arrival: u64,
) -> Option<&mut Staged<E>> {
    let line = lines.get_mut(&who)?;
    let at = line.binary_search_by_key(&arrival, |staged| staged.arrival);
    line.get_mut(at.ok()?)
}

#[cfg(test)]
mod tests;
