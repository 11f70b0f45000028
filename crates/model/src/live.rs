//! Liveness: from a state of the search on, the network brings everything, clocks run, and the faulty replica is silent. All requests
//! must be executed by all correct replicas, alike.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quorate_agreement::{Agreement, Input, Millis, Output};
use quorate_wire::message::PeerMessage;
use quorate_wire::{Digest, ReplicaId, Seq, Verified};

use crate::cast::{Cast, at};
use crate::checks::Violation;
use crate::local::Node;
use crate::words::{Book, Word};

/// A message takes so long.
const DELAY_MS: Millis = 1;
/// The client asks again so often.
const ASK_EVERY_MS: Millis = 1_000;
/// All is done within this time: a few views that fail, with doubled patience, and a replica that waits alone.
const WITHIN_MS: Millis = 60_000;

struct Live<'a> {
    cast: &'a Cast,
    ids: Vec<ReplicaId>,
    cores: Vec<Agreement>,
    start: Millis,
    now: Millis,
    queue: VecDeque<(Millis, usize, ReplicaId, PeerMessage)>,
    agreed: BTreeMap<Seq, Digest>,
    executed: BTreeSet<Digest>,
    /// Checkpoints that some correct replica has.
    roots: BTreeSet<(Seq, Digest)>,
    wanted: BTreeMap<usize, (Seq, Digest)>,
}

/// Runs the correct replicas from where they are.
pub fn run(cast: &Cast, book: &Book, state: &[&Node]) -> Result<(), Violation> {
    let ids = cast.correct();
    let start = 1 + state
        .iter()
        .map(|node| node.core.clock())
        .max()
        .unwrap_or(0);
    let mut live = Live {
        cast,
        ids,
        cores: state.iter().map(|node| node.core.clone()).collect(),
        start,
        now: start,
        queue: VecDeque::new(),
        agreed: BTreeMap::new(),
        executed: BTreeSet::new(),
        roots: BTreeSet::new(),
        wanted: BTreeMap::new(),
    };
    for (i, node) in state.iter().enumerate() {
        live.wanted.extend(node.fetching.map(|target| (i, target)));
        for (_, spoken) in book.spoken(node.said) {
            match &spoken.word {
                Word::Message(message) => live.broadcast(i, message),
                Word::Committed(seq, digest) => live.agree(*seq, *digest)?,
                Word::Executed(seq, digest) => live.execute(*seq, *digest)?,
                Word::Tentative(..) | Word::Stable(..) => {}
            }
        }
    }
    live.run()
}

impl Live<'_> {
    fn run(&mut self) -> Result<(), Violation> {
        let end = self.start + WITHIN_MS;
        let mut ask_at = self.start;
        while !self.is_done() {
            if self.now >= end {
                return Err(Violation::new("liveness", self.describe()));
            }
            if self.now >= ask_at {
                ask_at = self.now + ASK_EVERY_MS;
                self.ask()?;
            }
            let due = self.cores.iter().map(Agreement::next_timeout).min();
            let due = due.unwrap_or(end).max(self.now + 1).min(ask_at).min(end);
            let arrival = self.queue.front().map(|(at, ..)| *at);
            if arrival.is_some_and(|at| at <= due)
                && let Some((at, to, from, message)) = self.queue.pop_front()
            {
                self.now = self.now.max(at);
                self.handle(to, Input::Peer(from, message))?;
                continue;
            }
            self.now = due;
            for i in 0..self.cores.len() {
                if self.cores[i].next_timeout() <= self.now {
                    self.handle(i, Input::Tick)?;
                }
            }
            for (i, target) in std::mem::take(&mut self.wanted) {
                match self.roots.contains(&target) {
                    true => self.handle(i, Input::StateFetched(target.0, target.1))?,
                    false => drop(self.wanted.insert(i, target)),
                }
            }
        }
        Ok(())
    }

    fn ask(&mut self) -> Result<(), Violation> {
        for request in self.cast.requests.clone() {
            for i in 0..self.cores.len() {
                let request = Verified::from_link(request.clone());
                self.handle(i, Input::Request(request))?;
            }
        }
        Ok(())
    }

    fn handle(&mut self, i: usize, input: Input) -> Result<(), Violation> {
        let now = at(self.ids[i], self.now, self.now);
        // A refusal is the receiver's right.
        let _ = self.cores[i].handle(now, input);
        self.cores[i].invariants();
        loop {
            let outputs: Vec<Output> = self.cores[i].drain().collect();
            if outputs.is_empty() {
                return Ok(());
            }
            for output in outputs {
                self.carry_out(i, output)?;
            }
        }
    }

    fn carry_out(&mut self, i: usize, output: Output) -> Result<(), Violation> {
        match output {
            Output::Send(to, message) => self.send(i, to, &message),
            Output::Broadcast(message) => self.broadcast(i, &message),
            Output::Execute(ordered) => {
                self.execute(ordered.seq, ordered.digest)?;
                let requests = ordered.requests.iter();
                self.executed.extend(requests.map(|r| r.request.digest()));
                if self.cast.scenario.checkpoints && ordered.seq == Seq(1) {
                    let root = self.cast.root_after(&ordered.digest);
                    let now = at(self.ids[i], self.now, self.now);
                    let _ = self.cores[i].handle(now, Input::CheckpointMade(Seq(1), root));
                }
            }
            Output::FetchState(seq, root) => drop(self.wanted.insert(i, (seq, root))),
            Output::Fatal(reason) => {
                let what = format!("{:?} gives up: {reason}", self.ids[i]);
                return Err(Violation::new("correct replicas go on", what));
            }
            _ => {}
        }
        Ok(())
    }

    fn agree(&mut self, seq: Seq, digest: Digest) -> Result<(), Violation> {
        match *self.agreed.entry(seq).or_insert(digest) == digest {
            true => Ok(()),
            false => {
                let what = format!("{digest:?} at {seq:?}, once the network is whole");
                Err(Violation::new("agreement", what))
            }
        }
    }

    fn execute(&mut self, seq: Seq, digest: Digest) -> Result<(), Violation> {
        let known = self.cast.batches.iter().find(|(_, b)| b.digest() == digest);
        if let Some((_, batch)) = known {
            self.executed.extend(&batch.requests);
        }
        if self.cast.scenario.checkpoints && seq == Seq(1) {
            self.roots.insert((seq, self.cast.root_after(&digest)));
        }
        self.agree(seq, digest)
    }

    fn broadcast(&mut self, from: usize, message: &PeerMessage) {
        for to in self.ids.clone() {
            if to != self.ids[from] {
                self.send(from, to, message);
            }
        }
    }

    fn send(&mut self, from: usize, to: ReplicaId, message: &PeerMessage) {
        if let Some(target) = self.ids.iter().position(|id| *id == to) {
            let entry = (self.now + DELAY_MS, target, self.ids[from], message.clone());
            self.queue.push_back(entry);
        }
    }

    /// Whether all correct replicas have executed the same, and all that was asked for.
    fn is_done(&self) -> bool {
        let last = self.agreed.keys().next_back().copied().unwrap_or_default();
        let mut requests = self.cast.requests.iter();
        requests.all(|r| self.executed.contains(&r.request.digest()))
            && self.cores.iter().all(|c| c.standing().executed == last)
    }

    fn describe(&self) -> String {
        let mut out = String::from("the network is whole, but not all is done");
        for (id, core) in self.ids.iter().zip(&self.cores) {
            out += &format!("\n  {id:?}: {:?}", core.standing());
        }
        out
    }
}
