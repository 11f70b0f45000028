//! The dependency graph: which of the agreed operations may be at work at the same time (CBASE 2004, 3).
//!
//! An operation has two steps. It **runs**, beside others, on the state as it is then, and what it writes is
//! buffered. Then it **settles**: on the current state, with what it wrote so far on top, it does what has to be done
//! in the agreed order; after that its writes become part of the state and it is **done**. [`Uses`] says what each step
//! touches, and the graph holds back a step until it can't tell the state from the one in sequential order:
//!
//! | earlier \ later | `Read` | `Write` | `Settle` |
//! |---|---|---|---|
//! | `Read` | - | settles after | settles after |
//! | `Write` | runs after | runs after | settles after |
//! | `Settle` | runs after | runs after | settles after |
//!
//! "After" is always after the earlier operation is done. An operation that only settles has no run step at all and never
//! waits for a worker: what is short, and would conflict with everything, is best done so.
//!
//! Absent on purpose: threads, operations, state. The graph knows numbers; its driver knows what they stand for. The same
//! inputs give the same outputs, and whatever its driver does with the freedom that it has, results are the same.

mod index;
mod uses;

use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;

use quorate_wire::mutants::{Mutant, is_on};

use index::Index;
pub use uses::{Mode, Scope, Use, Uses};

/// An operation's place in the order in which operations entered the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpId(pub u64);

/// Whether the graph looks at what operations use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflicts {
    /// As the service declares.
    Declared,
    /// All operations conflict, whatever is declared, so that they run one after the other, as in BASE: to be measured beside the other. Simulations
    /// hold it to the same results.
    All,
}

/// Which step waits for an earlier operation to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Run,
    Settle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits to run, or runs.
    Runs,
    /// Has run, or has nothing to run.
    Ran,
    Done,
}

#[derive(Debug)]
struct Node {
    uses: Uses,
    phase: Phase,
    /// How many operations must be done before it runs.
    run_after: u32,
    /// How many more must be done before it settles.
    settle_after: u32,
    /// Who waits for it. Each only once.
    followers: Vec<(OpId, After)>,
}

/// The graph of the operations that are not done.
#[derive(Debug)]
pub struct Graph {
    conflicts: Conflicts,
    capacity: usize,
    /// The operation at the front of `nodes`.
    first: OpId,
    /// By number, without gaps. The front one is not done.
    nodes: VecDeque<Node>,
    index: Index,
    /// The oldest goes first: others settle after it.
    ready: BinaryHeap<Reverse<OpId>>,
    settleable: BinaryHeap<Reverse<OpId>>,
}

impl Graph {
    /// An empty graph. `capacity` bounds how many operations lie between the oldest that is not done and the newest.
    pub fn new(conflicts: Conflicts, capacity: usize) -> Graph {
        assert!(capacity > 0, "a graph without room");
        Graph {
            conflicts,
            capacity,
            first: OpId(0),
            nodes: VecDeque::new(),
            index: Index::default(),
            ready: BinaryHeap::new(),
            settleable: BinaryHeap::new(),
        }
    }

    /// Whether one more operation fits.
    pub fn has_room(&self) -> bool {
        self.nodes.len() < self.capacity
    }

    /// Whether all operations are done.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The oldest operation that is not done: all before it are.
    pub fn oldest(&self) -> Option<OpId> {
        (!self.nodes.is_empty()).then_some(self.first)
    }

    /// Whether no operation in the graph conflicts with these uses: what touches nothing else need not wait, and can be done
    /// without being put in.
    pub fn is_free_for(&self, uses: &Uses) -> bool {
        if self.conflicts == Conflicts::All {
            return self.is_empty();
        }
        let mut is_free = true;
        for new in uses.all() {
            self.index.conflicts(new, &mut |_, _| is_free = false);
        }
        is_free
    }

    /// Puts the next operation of the agreed order in. There must be room.
    pub fn insert(&mut self, uses: Uses) -> OpId {
        assert!(self.has_room(), "the graph is full");
        let uses = match self.conflicts {
            Conflicts::Declared => uses,
            Conflicts::All if is_on(Mutant::BaseBeside) => uses,
            Conflicts::All => Uses::everything(),
        };
        let id = OpId(self.first.0 + self.nodes.len() as u64);
        let (mut run_after, mut settle_after) = (0, 0);
        // All conflicts first: a use that is noted hides those that it stands for, also from the operation's other uses.
        for new in uses.all() {
            let (first, nodes) = (self.first, &mut self.nodes);
            self.index.conflicts(new, &mut |earlier, after| {
                let followers = &mut nodes[(earlier.0 - first.0) as usize].followers;
                match (followers.last_mut(), after) {
                    // What is there already may have to become the stronger of the two.
                    (Some((follower, known)), After::Run)
                        if *follower == id
                            && *known == After::Settle
                            && !is_on(Mutant::WeakerStays) =>
                    {
                        *known = After::Run;
                        settle_after -= 1;
                        run_after += 1;
                    }
                    (Some((follower, _)), _) if *follower == id => {}
                    (_, After::Run) => {
                        followers.push((id, after));
                        run_after += 1;
                    }
                    (_, After::Settle) => {
                        followers.push((id, after));
                        settle_after += 1;
                    }
                }
            });
            if is_on(Mutant::OwnUsesHide) {
                self.index.add(new, id);
            }
        }
        if !is_on(Mutant::OwnUsesHide) {
            for new in uses.all() {
                self.index.add(new, id);
            }
        }
        let phase = match uses.only_settles() {
            true => Phase::Ran,
            false => Phase::Runs,
        };
        match phase {
            Phase::Runs if run_after == 0 => self.ready.push(Reverse(id)),
            Phase::Ran if settle_after == 0 => self.settleable.push(Reverse(id)),
            Phase::Runs | Phase::Ran | Phase::Done => {}
        }
        self.nodes.push_back(Node {
            uses,
            phase,
            run_after,
            settle_after,
            followers: Vec::new(),
        });
        id
    }

    /// An operation whose run step may begin: the oldest one. Each is given out once; then [`Graph::ran`] is due.
    pub fn take_ready(&mut self) -> Option<OpId> {
        self.ready.pop().map(|Reverse(id)| id)
    }

    /// The run step of an operation is over.
    pub fn ran(&mut self, id: OpId) {
        let node = self.node(id);
        assert!(
            node.phase == Phase::Runs && node.run_after == 0,
            "{id:?} can't have run"
        );
        node.phase = Phase::Ran;
        if node.settle_after == 0 {
            self.settleable.push(Reverse(id));
        }
    }

    /// An operation that may settle now: the oldest one. Each is given out once; then [`Graph::done`] is due. One that
    /// [`Uses::only_settles`] comes here without a run step.
    pub fn take_settleable(&mut self) -> Option<OpId> {
        self.settleable.pop().map(|Reverse(id)| id)
    }

    /// What an operation wrote is part of the state.
    pub fn done(&mut self, id: OpId) {
        let node = self.node(id);
        assert!(
            node.phase == Phase::Ran && (node.run_after, node.settle_after) == (0, 0),
            "{id:?} can't be done"
        );
        node.phase = Phase::Done;
        let uses = core::mem::take(&mut node.uses);
        let followers = core::mem::take(&mut node.followers);
        for old in uses.all() {
            self.index.remove(old, id);
        }
        for (follower, after) in followers {
            self.released(follower, after);
        }
        while self.nodes.front().is_some_and(|n| n.phase == Phase::Done) {
            self.nodes.pop_front();
            self.first.0 += 1;
        }
    }

    /// What must hold after each input; for tests.
    pub fn invariants(&self) {
        assert!(self.nodes.len() <= self.capacity);
        assert!(
            self.nodes.front().is_none_or(|n| n.phase != Phase::Done),
            "the front is done"
        );
        assert!(
            !self.nodes.is_empty() || (self.index.is_empty() && self.ready.is_empty()),
            "something is left of operations that are done"
        );
        let mut waits = alloc::vec![(0, 0); self.nodes.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            for (follower, after) in &node.followers {
                let place = (follower.0 - self.first.0) as usize;
                assert!(place > at, "{follower:?} waits for a later one");
                match after {
                    After::Run => waits[place].0 += 1,
                    After::Settle => waits[place].1 += 1,
                }
            }
        }
        for (node, waits) in self.nodes.iter().zip(waits) {
            assert_eq!((node.run_after, node.settle_after), waits);
        }
    }

    /// One of those that an operation waits for is done. The last one brings it to the next list.
    fn released(&mut self, id: OpId, after: After) {
        let node = self.node(id);
        match after {
            After::Run => node.run_after -= 1,
            After::Settle => node.settle_after -= 1,
        }
        let waits = (node.run_after, node.settle_after);
        match (node.phase, after, waits) {
            (Phase::Runs, After::Run, (0, _)) => self.ready.push(Reverse(id)),
            (Phase::Ran, _, (0, 0)) => self.settleable.push(Reverse(id)),
            _ => {}
        }
    }

    fn node(&mut self, id: OpId) -> &mut Node {
        let at = id.0.checked_sub(self.first.0);
        at.and_then(|at| self.nodes.get_mut(at as usize))
            .unwrap_or_else(|| panic!("{id:?} is not in the graph"))
    }
}
