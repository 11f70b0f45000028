//! The states of one correct replica, each once under a number, and what each message makes of each of them: the real core is asked
//! once, and looked up after that.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use quorate_agreement::{Agreement, Input, Millis, Output};
use quorate_wire::message::PeerMessage;
use quorate_wire::{Digest, ReplicaId, Seq, View};

use crate::Violation;
use crate::cast::{Cast, at};
use crate::words::{Book, Map, SetId, Word, WordId, print_of};

/// The number of a [`Node`].
pub type NodeId = u32;

/// The most ticks until a time-out that is due has passed.
const MAX_TICKS: usize = 100;

/// A state of a replica, together with all that it has said and done.
#[derive(Debug)]
pub struct Node {
    /// One of the replicas that are in this state.
    pub core: Agreement,
    /// Its monotonic clock.
    pub mono: Millis,
    /// What it has said.
    pub said: SetId,
    /// Its view.
    pub view: View,
    /// Whether that has started.
    pub active: bool,
    /// What it takes to be proposed at each place, whether it has voted for that or not: other proposals it refuses.
    pub proposals: Vec<Option<Digest>>,
    /// The state that it wants to fetch.
    pub fetching: Option<(Seq, Digest)>,
}

/// What happens to a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It hears a word.
    Hears(WordId),
    /// It has waited for its primary long enough.
    TimeOut,
    /// The state that it fetches has come.
    Fetched,
}

impl Event {
    fn number(self) -> u64 {
        match self {
            Event::Hears(word) => u64::from(word),
            Event::TimeOut => u64::from(u32::MAX),
            Event::Fetched => u64::from(u32::MAX - 1),
        }
    }
}

/// All states of one replica that were come upon.
#[derive(Debug)]
pub struct Local {
    me: ReplicaId,
    nodes: Vec<Node>,
    numbers: Map<(u128, SetId), NodeId>,
    steps: Map<u64, NodeId>,
    effective: Map<(NodeId, SetId), Rc<[WordId]>>,
    /// Replicas that came to a state in another way, so that something in them differs that is taken not to matter.
    others: Vec<(NodeId, Agreement, Millis)>,
    /// How many of them to keep.
    keep: usize,
}

impl Local {
    /// A replica that has just started: node 0. So many `others` are kept, for [`Local::verify`].
    pub fn new(
        me: ReplicaId,
        keep: usize,
        cast: &Cast,
        book: &mut Book,
    ) -> Result<Local, Violation> {
        let mut local = Local {
            me,
            nodes: Vec::new(),
            numbers: Map::default(),
            steps: Map::default(),
            effective: Map::default(),
            others: Vec::new(),
            keep,
        };
        local.settle(cast.replica(me), 0, None, cast, book)?;
        Ok(local)
    }

    /// How many states there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// A state.
    pub fn get(&self, node: NodeId) -> &Node {
        &self.nodes[node as usize]
    }

    /// Whether something of a step shows: the replica says something, or has moved.
    pub fn shows(&self, before: NodeId, after: NodeId) -> bool {
        self.get(before).said != self.get(after).said || self.moves(before, after)
    }

    /// Whether a step leads to another view, or to another proposal at some place.
    pub fn moves(&self, before: NodeId, after: NodeId) -> bool {
        let (a, b) = (self.get(before), self.get(after));
        (a.view, a.active, &a.proposals) != (b.view, b.active, &b.proposals)
    }

    /// The words of a set that change a state by themselves.
    pub fn effective(
        &mut self,
        node: NodeId,
        said: SetId,
        cast: &Cast,
        book: &mut Book,
    ) -> Result<Rc<[WordId]>, Violation> {
        if let Some(words) = self.effective.get(&(node, said)) {
            return Ok(words.clone());
        }
        let mut out = Vec::new();
        for word in book.words_of(said).iter() {
            if self.step(node, Event::Hears(*word), cast, book)? != node {
                out.push(*word);
            }
        }
        let out: Rc<[WordId]> = out.into();
        self.effective.insert((node, said), out.clone());
        Ok(out)
    }

    /// Sees that what is left out of a fingerprint does not matter: replicas that are taken to be in one state come from it to one state
    /// by whatever may happen. Gives the number of comparisons.
    pub fn verify(&mut self, cast: &Cast, book: &mut Book) -> Result<usize, Violation> {
        let mut compared = 0;
        for (node, core, mono) in std::mem::take(&mut self.others) {
            let words = (0..book.len() as WordId).map(Event::Hears);
            for event in words.chain([Event::TimeOut]) {
                if event == Event::TimeOut && self.get(node).view == cast.scenario.last_view {
                    continue;
                }
                let a = self.step(node, event, cast, book);
                let other = Some((core.clone(), mono));
                let b = self.ask(node, other, event, cast, book);
                compared += 1;
                // Not all that was ever said can come together, so something may be wrong after it: then for both.
                let (Ok(a), Ok(b)) = (&a, &b) else {
                    if a.map_err(|v| v.property) != b.map_err(|v| v.property) {
                        let what = format!("one of two is wrong after {event:?}");
                        return Err(Violation::new("fingerprint", what));
                    }
                    continue;
                };
                let (a, b) = (*a, *b);
                if a != b {
                    let heard = match event {
                        Event::Hears(word) => book.tell(word),
                        _ => format!("{event:?}"),
                    };
                    let core_of = |node: NodeId| format!("{:?}", self.get(node).core);
                    let what = format!(
                        "{:?} hears {heard} in two ways:\n{core:?}\n{}\nand then is\n{}\n{}",
                        self.me,
                        core_of(node),
                        core_of(a),
                        core_of(b),
                    );
                    return Err(Violation::new("fingerprint", what));
                }
            }
        }
        Ok(compared)
    }

    /// What an event makes of a state.
    pub fn step(
        &mut self,
        node: NodeId,
        event: Event,
        cast: &Cast,
        book: &mut Book,
    ) -> Result<NodeId, Violation> {
        let key = u64::from(node) << 32 | event.number();
        if let Some(next) = self.steps.get(&key) {
            return Ok(*next);
        }
        let next = self.ask(node, None, event, cast, book)?;
        self.steps.insert(key, next);
        Ok(next)
    }

    /// As [`Local::step`], for a replica that is in the state in its own way.
    fn ask(
        &mut self,
        node: NodeId,
        other: Option<(Agreement, Millis)>,
        event: Event,
        cast: &Cast,
        book: &mut Book,
    ) -> Result<NodeId, Violation> {
        let last = cast.scenario.last_view;
        let it = self.get(node);
        if it.view > last {
            return Ok(node);
        }
        let fetching = it.fetching;
        let mut inputs: Vec<Input> = Vec::new();
        match event {
            Event::TimeOut => {}
            Event::Fetched => {
                inputs.extend(fetching.map(|(seq, root)| Input::StateFetched(seq, root)));
            }
            Event::Hears(word) => {
                let spoken = book.get(word);
                let (seq, view) = spoken.word.bounds();
                let Word::Message(message) = &spoken.word else {
                    return Ok(node);
                };
                if spoken.by == self.me || seq.0 > cast.scenario.places || view > last {
                    return Ok(node);
                }
                inputs.push(Input::Peer(spoken.by, message.clone()));
                // What a NEW-VIEW names is there, since its author had it; without it, it would wait.
                for proof in book.proofs(message) {
                    inputs.push(Input::Peer(spoken.by, proof));
                }
            }
        }
        let (mut core, mut mono) = other.unwrap_or_else(|| (it.core.clone(), it.mono));
        let me = self.me;
        let handled = catch_unwind(AssertUnwindSafe(|| {
            for input in inputs {
                // A refusal is the receiver's right.
                let _ = core.handle(at(me, mono, 0), input);
            }
            let view = core.standing().view;
            let ticks = if event == Event::TimeOut {
                MAX_TICKS
            } else {
                0
            };
            for _ in 0..ticks {
                mono = core.next_timeout().max(mono);
                let _ = core.handle(at(me, mono, 0), Input::Tick);
                if core.standing().view != view {
                    break;
                }
            }
            core
        }));
        match handled {
            Ok(core) => self.settle(core, mono, Some(node), cast, book),
            Err(panic) => Err(Violation::panicked(&*panic)),
        }
    }

    /// Takes in what a replica has put out since it was in a state, and gives the number of the one that it is in.
    fn settle(
        &mut self,
        mut core: Agreement,
        mono: Millis,
        before: Option<NodeId>,
        cast: &Cast,
        book: &mut Book,
    ) -> Result<NodeId, Violation> {
        let me = self.me;
        let before = before.map(|node| self.get(node));
        let said = before.map_or_else(|| book.set(vec![]), |it| it.said);
        let mut fetching = before.and_then(|it| it.fetching);
        let mut words: Vec<WordId> = book.words_of(said).to_vec();
        loop {
            let outputs: Vec<Output> = core.drain().collect();
            if outputs.is_empty() {
                break;
            }
            for output in outputs {
                let word = match output {
                    // Where others stand is nobody's business here, and what is asked for is there to be heard.
                    Output::Broadcast(PeerMessage::Status(_)) | Output::Send(..) => continue,
                    Output::Broadcast(message) => {
                        words.push(book.message(me, message));
                        continue;
                    }
                    Output::Execute(ordered) => {
                        if cast.scenario.checkpoints && ordered.seq == Seq(1) {
                            let root = cast.root_after(&ordered.digest);
                            let made = Input::CheckpointMade(ordered.seq, root);
                            let _ = core.handle(at(me, mono, 0), made);
                        }
                        Word::Executed(ordered.seq, ordered.digest)
                    }
                    Output::Tentative(ordered) => {
                        Word::Tentative(ordered.seq, ordered.digest, ordered.view)
                    }
                    Output::Stable { seq, root, .. } => Word::Stable(seq, root),
                    Output::FetchState(seq, root) => {
                        fetching = Some((seq, root));
                        continue;
                    }
                    Output::Fatal(reason) => {
                        let what = format!("{me:?} gives up: {reason}");
                        return Err(Violation::new("correct replicas go on", what));
                    }
                    Output::Rollback
                    | Output::Evidence(_)
                    | Output::Void(..)
                    | Output::Missed(_)
                    | Output::Persist(..) => continue,
                };
                words.push(book.word(me, word));
            }
        }
        let checked = catch_unwind(AssertUnwindSafe(|| core.invariants()));
        checked.map_err(|panic| Violation::panicked(&*panic))?;
        for seq in (1..=cast.scenario.places).map(Seq) {
            if let Some(digest) = core.committed_at(seq) {
                words.push(book.word(me, Word::Committed(seq, digest)));
                if cast.scenario.hints {
                    use quorate_wire::message::Committed;
                    let hint = PeerMessage::Committed(Committed { seq, digest });
                    words.push(book.word(me, Word::Message(hint)));
                }
            }
        }
        let mut after = book.set(words);
        if after != said {
            crate::checks::of_one(me, after, cast, book)?;
        }
        let standing = core.standing();
        let places = (1..=cast.scenario.places).map(Seq);
        let proposals: Vec<_> = places.map(|seq| core.proposal_at(seq)).collect();
        let (view, active) = (standing.view, standing.active);
        if cast.scenario.reduced {
            let stays =
                |it: &Node| (it.view, it.active, &it.proposals) == (view, active, &proposals);
            if after != said || !before.is_none_or(stays) {
                core.forget_heard();
            }
            if view > View(0) {
                after = book.outliving(after, View(0));
            }
        }
        let mut bytes = Vec::new();
        core.fingerprint(cast.scenario.last_view, &mut bytes);
        let key = (print_of(&bytes), after);
        let next = self.nodes.len() as NodeId;
        let number = *self.numbers.entry(key).or_insert(next);
        if number != next && self.others.len() < self.keep {
            let (known, new) = (&self.nodes[number as usize].core, &core);
            if format!("{known:?}") != format!("{new:?}") {
                self.others.push((number, core, mono));
            }
        } else if number == next {
            self.nodes.push(Node {
                proposals,
                core,
                mono,
                said: after,
                view,
                active,
                fetching: fetching.filter(|_| standing.fetching),
            });
        }
        Ok(number)
    }
}
