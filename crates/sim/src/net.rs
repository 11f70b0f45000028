//! The network between nodes: which messages arrive, when and how often.

use std::collections::{BTreeMap, BTreeSet};

use crate::dice::Dice;
use crate::knobs::Knobs;

/// A node's number: servers first, then clients.
pub type Node = usize;

/// The network.
#[derive(Debug)]
pub struct Net {
    dice: Dice,
    calm: bool,
    blocked: BTreeSet<(Node, Node)>,
    /// Cut off from all others, for long.
    exile: Option<Node>,
    last_arrival: BTreeMap<(Node, Node), u64>,
}

impl Net {
    /// A network without partitions.
    pub fn new(seed: u64) -> Net {
        Net {
            dice: Dice::new(seed, 1),
            calm: false,
            blocked: BTreeSet::new(),
            exile: None,
            last_arrival: BTreeMap::new(),
        }
    }

    /// When a message that leaves now arrives, and its second copy; neither if it is lost.
    pub fn arrivals(&mut self, knobs: &Knobs, now: u64, from: Node, to: Node) -> [Option<u64>; 2] {
        if self.is_blocked(from, to) {
            return [None, None];
        }
        if !self.calm && self.dice.per_mille(knobs.loss) {
            return [None, None];
        }
        let first = self.arrival(knobs, now, from, to);
        let twice = !self.calm && self.dice.per_mille(knobs.duplicates);
        let again = twice.then(|| self.arrival(knobs, now, from, to));
        [Some(first), again]
    }

    fn arrival(&mut self, knobs: &Knobs, now: u64, from: Node, to: Node) -> u64 {
        let mut delay = self.dice.range(knobs.delay);
        if !self.calm && self.dice.per_mille(knobs.late) {
            delay = delay * 10 + self.dice.below(300_000);
        }
        let mut at = now + delay;
        if knobs.fifo {
            let last = self.last_arrival.entry((from, to)).or_default();
            at = at.max(*last);
            *last = at;
        }
        at
    }

    /// Cuts a set of nodes off from the rest; `one_way` leaves what they send.
    pub fn cut(&mut self, island: &BTreeSet<Node>, nodes: usize, one_way: bool) {
        for a in island.iter().copied() {
            for b in (0..nodes).filter(|b| !island.contains(b)) {
                self.blocked.insert((b, a));
                if !one_way {
                    self.blocked.insert((a, b));
                }
            }
        }
    }

    /// Cuts one direction between two nodes.
    pub fn block(&mut self, from: Node, to: Node) {
        self.blocked.insert((from, to));
    }

    /// Whether nothing gets from one node to another.
    pub fn is_blocked(&self, from: Node, to: Node) -> bool {
        let is_exiled = |node| self.exile == Some(node);
        self.blocked.contains(&(from, to)) || is_exiled(from) || is_exiled(to)
    }

    /// Cuts a node off until another is named or none, whatever else is cut.
    pub fn exile(&mut self, node: Option<Node>) {
        self.exile = node;
    }

    /// All can talk to all again.
    pub fn join(&mut self) {
        self.blocked.clear();
    }

    /// From now on nothing is lost or late.
    pub fn heal(&mut self) {
        self.join();
        (self.exile, self.calm) = (None, true);
    }

    /// A random set of nodes that is cut off.
    pub fn random_island(&mut self, nodes: usize) -> (BTreeSet<Node>, bool) {
        let island = (0..nodes).filter(|_| self.dice.per_mille(400)).collect();
        (island, self.dice.per_mille(250))
    }

    /// A choice of the network's.
    pub fn dice(&mut self) -> &mut Dice {
        &mut self.dice
    }
}
