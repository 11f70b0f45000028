//! The replica that catches up.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use bytes::Bytes;
use quorate_wire::digest::Content;
use quorate_wire::message::transfer::{GetNodes, GetValues, StateMessage};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Digest, ReplicaId, Seq};

use super::diff::{self, Above, Diff, NodeWant, ValueWant};
use super::donors::{Donors, Silences};
use super::former::{Counts, Former};
use super::{MAX_ASK_BYTES, MAX_KEYS, MAX_PATHS, MAX_VALUE_ASKS};
use crate::layers::Layer;
use crate::snapshot::{Fault, Snapshot};
use crate::tree::{self, Node};

/// Requests smaller than this are not made smaller still to involve more donors.
const MIN_SHARE: usize = 8;

/// The state to get to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The checkpoint to ask donors for.
    pub checkpoint: Seq,
    /// Its root digest, vouched for by a certificate: the fetcher believes it.
    pub root: Digest,
}

/// A piece that does not match the certified root, and what proves it.
#[derive(Clone, Debug)]
pub struct Lie {
    /// Who sent it.
    pub donor: ReplicaId,
    /// Of which checkpoint it was said to be.
    pub checkpoint: Seq,
    /// The path of the node, or the key of the value.
    pub name: Bytes,
    /// As it came.
    pub piece: Bytes,
    /// The certified nodes from the root down to the one that has the digest of the right piece.
    pub nodes: Vec<Bytes>,
}

/// Fetches what differs between an own snapshot and a target. Times are in milliseconds on any clock that does not go
/// back. See the [module](super) for the driver's loop.
#[derive(Debug)]
pub struct Fetcher {
    target: Target,
    pub(super) diff: Diff,
    donors: Donors,
    in_flight: Vec<Ask>,
    pub(super) former: Option<Former>,
    /// What came of looking in the former state.
    pub(super) counts: Counts,
    lies: Vec<Lie>,
    fetched_bytes: u64,
    /// The latest time heard of.
    pub(super) now: u64,
}

/// A request that waits for its answer.
#[derive(Debug)]
struct Ask {
    donor: ReplicaId,
    asked: u64,
    deadline: u64,
    wants: Wants,
}

#[derive(Debug)]
enum Wants {
    /// The root, from a donor that is to show that it answers; whether it is wanted any more or not.
    Root,
    Nodes(BTreeMap<Bytes, NodeWant>),
    Values(BTreeMap<Bytes, ValueWant>),
}

impl Fetcher {
    /// Starts from `base`, which may be anything from an empty state to the target itself.
    ///
    /// # Errors
    /// [`Fault`] where the own store fails.
    pub fn new(
        target: Target,
        base: Arc<dyn Snapshot>,
        donors: impl IntoIterator<Item = ReplicaId>,
    ) -> Result<Fetcher, Fault> {
        Ok(Fetcher {
            target,
            diff: Diff::new(base, target.root)?,
            donors: Donors::new(donors),
            in_flight: Vec::new(),
            former: None,
            counts: Counts::default(),
            lies: Vec::new(),
            fetched_bytes: 0,
            now: 0,
        })
    }

    /// Donors have left requests of former transfers unanswered: those come last.
    pub fn mistrust(&mut self, before: &Silences) {
        self.donors.mistrust(before);
    }

    /// Which donors have left requests unanswered, in this transfer and those of which it was told.
    pub fn silences(&self) -> Silences {
        self.donors.silences()
    }

    /// The state to get to.
    pub fn target(&self) -> Target {
        self.target
    }

    /// Whether nothing differs any more, and all that was gathered has been taken.
    pub fn is_done(&self) -> bool {
        self.is_fetched() && !self.diff.has_gathered()
    }

    /// The donors that sent what does not match the certified root, and how often.
    pub fn liars(&self) -> impl Iterator<Item = (ReplicaId, u32)> {
        self.donors.liars()
    }

    /// What donors sent since the last time that does not match the certified root; at most one of each answer.
    pub fn take_lies(&mut self) -> Vec<Lie> {
        core::mem::take(&mut self.lies)
    }

    /// Whether all donors but those that may be faulty say that they do not keep the checkpoint. The group has probably
    /// moved on: look for a newer target. Until then the fetcher goes on asking now and then.
    pub fn is_unavailable(&self) -> bool {
        !self.is_fetched() && self.donors.none_has_it()
    }

    /// Bytes of nodes and values that were fetched and found right.
    pub fn fetched_bytes(&self) -> u64 {
        self.fetched_bytes
    }

    /// When to call [`Fetcher::poll`] again if nothing else happens.
    pub fn next_timeout(&self) -> Option<u64> {
        if self.is_fetched() {
            return None;
        }
        let deadlines = self.in_flight.iter().map(|ask| ask.deadline).min();
        let pause = match self.diff.has_work() {
            true => self.donors.next_pause(self.now),
            false => None,
        };
        let former = self.former.as_ref().and_then(Former::deadline);
        let idle = self.donors.pick(self.now);
        let slow = idle.and_then(|donor| self.to_take_back(donor));
        let slow = slow.map(|(_, at)| at).filter(|at| *at > self.now);
        let times = deadlines.into_iter().chain(pause);
        times.chain(former).chain(slow).min()
    }

    /// A message from a peer. Whatever was not asked for is ignored.
    ///
    /// # Errors
    /// [`Fault`] where the own store fails; never for what a peer sent.
    pub fn handle(
        &mut self,
        now: u64,
        from: ReplicaId,
        message: StateMessage,
    ) -> Result<(), Fault> {
        self.now = self.now.max(now);
        match message {
            StateMessage::Nodes(reply) if reply.checkpoint == self.target.checkpoint => {
                self.on_nodes(from, reply.nodes)
            }
            StateMessage::Values(reply) if reply.checkpoint == self.target.checkpoint => {
                self.on_values(from, reply.values);
                Ok(())
            }
            StateMessage::NotHere(checkpoint) if checkpoint == self.target.checkpoint => {
                self.on_not_here(from);
                Ok(())
            }
            StateMessage::Nodes(_)
            | StateMessage::Values(_)
            | StateMessage::NotHere(_)
            | StateMessage::GetNodes(_)
            | StateMessage::GetValues(_) => Ok(()),
        }
    }

    /// What to send now, and to whom.
    ///
    /// # Errors
    /// [`Fault`] where the own store fails.
    pub fn poll(&mut self, now: u64) -> Result<Vec<(ReplicaId, StateMessage)>, Fault> {
        self.now = self.now.max(now);
        self.expire();
        self.diff.sweep()?;
        let mut out = Vec::new();
        if !self.diff.nodes.is_empty() || !self.diff.values.is_empty() {
            for donor in self.donors.unheard(self.now) {
                out.push(self.ask(donor, Wants::Root));
            }
        }
        while let Some(donor) = self.donors.pick(self.now) {
            match self.next_wants() {
                Some(wants) => out.push(self.ask(donor, wants)),
                None if self.take_back(donor) => {}
                None => break,
            }
        }
        Ok(out)
    }

    fn ask(&mut self, donor: ReplicaId, wants: Wants) -> (ReplicaId, StateMessage) {
        let message = wants.to_message(self.target.checkpoint);
        let deadline = self.donors.asked(donor, self.now);
        self.in_flight.push(Ask {
            donor,
            asked: self.now,
            deadline,
            wants,
        });
        (donor, message)
    }

    /// A donor has nothing to do. If it has not failed, it gets what one is asked for that has, and may never answer, or that takes far longer than this one
    /// would, which counts as a failure; whether there was any.
    fn take_back(&mut self, donor: ReplicaId) -> bool {
        let Some((from, _)) = self.to_take_back(donor).filter(|(_, at)| *at <= self.now) else {
            return false;
        };
        if !self.donors.has_failed(from) {
            self.donors.failed(from, self.now, false);
        }
        self.drop_asks(|ask| ask.donor == from && !matches!(ask.wants, Wants::Root))
    }

    /// Whose requests such a donor gets, and when.
    fn to_take_back(&self, donor: ReplicaId) -> Option<(ReplicaId, u64)> {
        if self.donors.has_failed(donor) {
            return None;
        }
        let patience = self.donors.patience(donor);
        let asks = self.in_flight.iter();
        let others = asks.filter(|ask| !matches!(ask.wants, Wants::Root) && ask.donor != donor);
        let when = |ask: &Ask| match self.donors.has_failed(ask.donor) {
            true => 0,
            false => ask.asked.saturating_add(patience),
        };
        others
            .map(|ask| (ask.donor, when(ask)))
            .min_by_key(|(id, at)| (*at, *id))
    }

    /// A part of the difference, when enough is gathered or all of the rest is: up to [`CHUNK_BYTES`](super::CHUNK_BYTES)
    /// of puts and deletes.
    ///
    /// # Errors
    /// [`Fault`] where the own store fails.
    pub fn take_chunk(&mut self) -> Result<Option<Layer>, Fault> {
        self.diff.sweep()?;
        let ready = self.diff.is_full() || (self.is_fetched() && self.diff.has_gathered());
        Ok(ready.then(|| self.diff.drain()))
    }

    /// What was gathered so far, up to [`CHUNK_BYTES`](super::CHUNK_BYTES): of use to who goes on to another target, once it is written.
    pub fn leave(&mut self) -> Option<Layer> {
        self.diff.has_gathered().then(|| self.diff.drain())
    }

    /// Checks what must hold between any two calls.
    ///
    /// # Panics
    /// If it does not hold: that is a bug here.
    pub fn invariants(&self) {
        for id in self.donors.ids() {
            let asks = self.in_flight.iter().filter(|ask| ask.donor == id);
            assert_eq!(asks.count(), self.donors.asks(id), "requests of {id:?}");
        }
        let mut wanted = BTreeSet::new();
        let in_flight = self.in_flight.iter().flat_map(|ask| match &ask.wants {
            Wants::Nodes(nodes) => nodes.keys().collect::<Vec<_>>(),
            Wants::Values(_) | Wants::Root => Vec::new(),
        });
        for path in self
            .diff
            .nodes
            .iter()
            .map(|want| &want.path)
            .chain(in_flight)
            .chain(self.former.iter().flat_map(Former::waiting_nodes))
            .chain(
                self.diff
                    .near
                    .iter()
                    .flat_map(|near| near.nodes.iter().map(|want| &want.path)),
            )
        {
            assert!(wanted.insert(path), "{path:?} is wanted twice");
        }
    }

    /// Whether there is nothing left to fetch or delete.
    fn is_fetched(&self) -> bool {
        let looks = self.former.as_ref().is_some_and(|f| !f.is_idle());
        let mut asks = self.in_flight.iter();
        !self.diff.has_work() && asks.all(|ask| matches!(ask.wants, Wants::Root)) && !looks
    }

    fn on_nodes(&mut self, from: ReplicaId, nodes: Vec<(Bytes, Bytes)>) -> Result<(), Fault> {
        let asked = |wants: &Wants| match (wants, nodes.first()) {
            (Wants::Nodes(wanted), Some((path, _))) => wanted.contains_key(path),
            (Wants::Root, Some((path, _))) => path.is_empty(),
            _ => false,
        };
        let mut wanted = match self.take_ask(from, asked) {
            Some(Wants::Nodes(wanted)) => wanted,
            Some(Wants::Root) => return self.on_root(from, nodes),
            Some(Wants::Values(_)) | None => return Ok(()),
        };
        let mut lied = false;
        for (path, bytes) in nodes {
            let Some(want) = wanted.remove(&path) else {
                continue;
            };
            let length = bytes.len() as u64;
            let Some(node) = check_node(&want, bytes.clone()) else {
                lied = true;
                self.note_lie(from, &path, bytes, want.above.as_ref());
                wanted.insert(path, want);
                break;
            };
            self.fetched_bytes += length;
            let above = Above::new(&bytes, want.above);
            self.diff.compare(&path, node, Some(&above))?;
        }
        self.diff.nodes.extend(wanted.into_values());
        self.judge(from, lied);
        Ok(())
    }

    /// A donor has answered with the root: the first that does is the one who was waited for.
    fn on_root(&mut self, from: ReplicaId, nodes: Vec<(Bytes, Bytes)>) -> Result<(), Fault> {
        let root = diff::root_want(self.target.root);
        let Some((_, bytes)) = nodes.into_iter().next() else {
            return Ok(());
        };
        let Some(node) = check_node(&root, bytes.clone()) else {
            self.note_lie(from, &root.path, bytes, None);
            self.judge(from, true);
            return Ok(());
        };
        self.donors.has_root(from);
        let mut wanted = self.diff.nodes.iter();
        if let Some(at) = wanted.position(|want| want.path.is_empty()) {
            self.diff.nodes.swap_remove(at);
            self.fetched_bytes += bytes.len() as u64;
            let above = Above::new(&bytes, None);
            self.diff.compare(&root.path, node, Some(&above))?;
        }
        Ok(())
    }

    fn on_values(&mut self, from: ReplicaId, values: Vec<(Bytes, Bytes)>) {
        let asked = |wants: &Wants| match (wants, values.first()) {
            (Wants::Values(wanted), Some((key, _))) => wanted.contains_key(key),
            _ => false,
        };
        let Some(Wants::Values(mut wanted)) = self.take_ask(from, asked) else {
            return;
        };
        let mut lied = false;
        for (key, value) in values {
            let Some(want) = wanted.remove(&key) else {
                continue;
            };
            let wrong = Digest::of(Content::StateValue, &value) != want.digest;
            if wrong && !is_on(Mutant::PiecesUnchecked) {
                lied = true;
                self.note_lie(from, &key, value, want.above.as_ref());
                wanted.insert(key, want);
                break;
            }
            self.fetched_bytes += value.len() as u64;
            self.diff.put(want.key, value);
        }
        self.diff.values.extend(wanted.into_values());
        self.judge(from, lied);
    }

    fn on_not_here(&mut self, from: ReplicaId) {
        if self.drop_asks(|ask| ask.donor == from) {
            self.donors.failed(from, self.now, true);
        }
    }

    fn note_lie(
        &mut self,
        donor: ReplicaId,
        name: &Bytes,
        piece: Bytes,
        above: Option<&Arc<Above>>,
    ) {
        self.lies.push(Lie {
            donor,
            checkpoint: self.target.checkpoint,
            name: name.clone(),
            piece,
            nodes: Above::nodes(above),
        });
    }

    fn judge(&mut self, donor: ReplicaId, lied: bool) {
        if lied {
            self.drop_asks(|ask| ask.donor == donor);
            self.donors.lied(donor, self.now);
        } else {
            self.donors.answered(donor);
        }
    }

    /// Takes the request of this donor that a reply answers, if there is one.
    fn take_ask(&mut self, from: ReplicaId, asked: impl Fn(&Wants) -> bool) -> Option<Wants> {
        let mut asks = self.in_flight.iter();
        let at = asks.position(|ask| ask.donor == from && asked(&ask.wants))?;
        self.donors.settled(from);
        let ask = self.in_flight.remove(at);
        self.donors.took(from, self.now.saturating_sub(ask.asked));
        Some(ask.wants)
    }

    /// Gives up requests: what they wanted is wanted from someone else. Says whether there were any.
    fn drop_asks(&mut self, which: impl Fn(&Ask) -> bool) -> bool {
        let (dropped, kept): (Vec<Ask>, Vec<Ask>) = core::mem::take(&mut self.in_flight)
            .into_iter()
            .partition(which);
        self.in_flight = kept;
        let any = !dropped.is_empty();
        for ask in dropped {
            self.donors.settled(ask.donor);
            match ask.wants {
                Wants::Nodes(wanted) => self.diff.nodes.extend(wanted.into_values()),
                Wants::Values(wanted) => self.diff.values.extend(wanted.into_values()),
                Wants::Root => {}
            }
        }
        any
    }

    fn expire(&mut self) {
        let now = self.now;
        let former = self.former.as_ref().and_then(Former::deadline);
        if former.is_some_and(|deadline| deadline <= now) {
            self.leave_home();
        }
        let late = self.in_flight.iter().filter(|ask| ask.deadline <= now);
        let late: BTreeSet<ReplicaId> = late.map(|ask| ask.donor).collect();
        for donor in late {
            self.drop_asks(|ask| ask.donor == donor && ask.deadline <= now);
            self.donors.failed(donor, now, false);
        }
    }

    /// What the next request asks for: a fair share of what is wanted, so that all donors are kept busy.
    fn next_wants(&mut self) -> Option<Wants> {
        let room = self.donors.room(self.now).max(1);
        let in_flight = self.in_flight.iter();
        let value_asks = in_flight.filter(|ask| matches!(ask.wants, Wants::Values(_)));
        let values_may = !self.diff.is_full() && value_asks.count() < MAX_VALUE_ASKS;
        // Values come first when there is a full request of them: nodes would only bring more.
        let enough = self.diff.values.len() >= MAX_KEYS;
        if !enough && !self.diff.nodes.is_empty() {
            let share = share(self.diff.nodes.len(), room, MAX_PATHS);
            let wants = pop_wants(&mut self.diff.nodes, share, |want| &want.path);
            return Some(Wants::Nodes(wants));
        }
        if values_may && !self.diff.values.is_empty() {
            let share = share(self.diff.values.len(), room, MAX_KEYS);
            let wants = pop_wants(&mut self.diff.values, share, |want| &want.key);
            return Some(Wants::Values(wants));
        }
        None
    }
}

impl Wants {
    fn to_message(&self, checkpoint: Seq) -> StateMessage {
        match self {
            Wants::Root => StateMessage::GetNodes(GetNodes {
                checkpoint,
                paths: [Bytes::new()].into(),
            }),
            Wants::Nodes(wanted) => StateMessage::GetNodes(GetNodes {
                checkpoint,
                paths: wanted.keys().cloned().collect(),
            }),
            Wants::Values(wanted) => StateMessage::GetValues(GetValues {
                checkpoint,
                keys: wanted.keys().cloned().collect(),
            }),
        }
    }
}

/// The node, if it is the one that is wanted.
pub(super) fn check_node(want: &NodeWant, bytes: Bytes) -> Option<Node> {
    if tree::digest(&bytes) != want.digest && !is_on(Mutant::PiecesUnchecked) {
        return None;
    }
    let node = Node::decode(&want.path, bytes).ok()?;
    let fits = want.count.is_none_or(|count| count == node.count());
    fits.then_some(node)
}

fn share(wanted: usize, room: usize, most: usize) -> usize {
    wanted.div_ceil(room).clamp(MIN_SHARE, most)
}

/// Takes wants from the end of a list, up to a number and to the bytes that a request may have.
fn pop_wants<W>(list: &mut Vec<W>, most: usize, name: impl Fn(&W) -> &Bytes) -> BTreeMap<Bytes, W> {
    let mut wants = BTreeMap::new();
    let mut bytes = 0;
    while wants.len() < most {
        let Some(want) = list.pop() else {
            break;
        };
        bytes += 4 + name(&want).len();
        if bytes > MAX_ASK_BYTES && !wants.is_empty() {
            list.push(want);
            break;
        }
        wants.insert(name(&want).clone(), want);
    }
    wants
}
