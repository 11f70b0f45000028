//! Peers that fetch this replica's state: each is given so much in so much time, and waits for the rest.
//!
//! A correct peer has few asks under way, and they are answered as quickly as it can use them. One that asks without end costs
//! reads of the store and room in its link, so its asks wait here, a few of them, and more are dropped.

use alloc::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use quorate_agreement::{Budget, Millis, Part};
use quorate_state::transfer::ASKS_PER_DONOR;
use quorate_wire::ReplicaId;
use quorate_wire::message::StateMessage;

/// The most asks of a peer that wait: a correct one's, and as many that a transfer before left.
const MAX_WAITING: usize = 2 * ASKS_PER_DONOR;
/// The longest ask that waits.
const MAX_ASK_BYTES: usize = 2 << 20;
/// What a peer is given at once and in a millisecond, in bytes.
const GIVEN_AT_ONCE: u64 = 32 << 20;
const GIVEN_IN_A_MS: u64 = 128 << 10;
/// What an answer counts for at least, and for each name that was looked for, found or not.
const LEAST_COST: usize = 4 << 10;
const NAME_COST: usize = 256;

#[derive(Debug)]
struct Desk {
    asks: VecDeque<StateMessage>,
    budget: Budget,
}

/// What peers ask for.
#[derive(Debug, Default)]
pub(crate) struct Asks(BTreeMap<ReplicaId, Desk>);

/// How many bytes of names and pieces are in a message, about.
fn bytes(message: &StateMessage) -> usize {
    let names = |names: &[Bytes]| names.iter().map(|n| 8 + n.len()).sum();
    let pieces =
        |pieces: &[(Bytes, Bytes)]| pieces.iter().map(|(n, p)| 8 + n.len() + p.len()).sum();
    match message {
        StateMessage::GetNodes(ask) => names(&ask.paths),
        StateMessage::GetValues(ask) => names(&ask.keys),
        StateMessage::Nodes(answer) => pieces(&answer.nodes),
        StateMessage::Values(answer) => pieces(&answer.values),
        StateMessage::NotHere(_) => 0,
    }
}

/// How many names it asks for.
fn names(message: &StateMessage) -> usize {
    match message {
        StateMessage::GetNodes(ask) => ask.paths.len(),
        StateMessage::GetValues(ask) => ask.keys.len(),
        StateMessage::Nodes(_) | StateMessage::Values(_) | StateMessage::NotHere(_) => 0,
    }
}

impl Asks {
    /// How many asks of a peer wait, and how many may.
    pub fn part(&self) -> Part {
        let most = self.0.values().map(|desk| desk.asks.len()).max();
        Part::new("asks of a peer", most.unwrap_or(0), MAX_WAITING)
    }

    /// A peer asks. False where it has asked for too much already.
    pub fn push(&mut self, now: Millis, from: ReplicaId, ask: StateMessage) -> bool {
        let new = || Desk {
            asks: VecDeque::new(),
            budget: Budget::new(GIVEN_AT_ONCE, GIVEN_IN_A_MS, now),
        };
        let desk = self.0.entry(from).or_insert_with(new);
        let has_room = desk.asks.len() < MAX_WAITING && bytes(&ask) <= MAX_ASK_BYTES;
        if has_room {
            desk.asks.push_back(ask);
        }
        has_room
    }

    /// The next ask that may be answered.
    pub fn pop(&mut self, now: Millis) -> Option<(ReplicaId, StateMessage)> {
        let mut desks = self.0.iter_mut();
        desks.find_map(|(from, desk)| {
            let is_due = !desk.asks.is_empty() && desk.budget.is_open(now);
            let ask = if is_due { desk.asks.pop_front() } else { None };
            Some((*from, ask?))
        })
    }

    /// This was answered to what a peer asked; where nothing was, the search for it counts.
    pub fn answered(&mut self, to: ReplicaId, ask: &StateMessage, answer: Option<&StateMessage>) {
        if let Some(desk) = self.0.get_mut(&to) {
            let looked = NAME_COST * names(ask);
            desk.budget
                .spend(LEAST_COST + looked + answer.map_or(0, bytes));
        }
    }

    /// When an ask that waits may be answered.
    pub fn next_timeout(&self) -> Option<Millis> {
        let waiting = self.0.values().filter(|desk| !desk.asks.is_empty());
        waiting.map(|desk| desk.budget.opens_at()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_wire::Seq;
    use quorate_wire::message::transfer::{GetNodes, Nodes};

    fn ask() -> StateMessage {
        StateMessage::GetNodes(GetNodes {
            checkpoint: Seq(1),
            paths: [Bytes::new()].into(),
        })
    }

    /// A peer that asks a thousand times in each millisecond, for answers of 2 MiB, gets the rate; one that asks twice at a time
    /// gets all that it asks for.
    #[test]
    fn who_asks_without_end_gets_the_rate() {
        let answer = StateMessage::Nodes(Nodes {
            checkpoint: Seq(1),
            nodes: [(Bytes::new(), Bytes::from_static(&[0; 2 << 20]))].into(),
        });
        let (mut asks, mut given, mut dropped, mut modest) = (Asks::default(), 0, 0, 0);
        for now in 0..2_000 {
            for _ in 0..1_000 {
                dropped += usize::from(!asks.push(now, ReplicaId(3), ask()));
            }
            if now % 100 == 0 {
                assert!(asks.push(now, ReplicaId(2), ask()) && asks.push(now, ReplicaId(2), ask()));
            }
            while let Some((to, ask)) = asks.pop(now) {
                asks.answered(to, &ask, Some(&answer));
                given += if to == ReplicaId(3) {
                    bytes(&answer)
                } else {
                    0
                };
                modest += usize::from(to == ReplicaId(2));
            }
            let waits = asks.0.values().map(|desk| desk.asks.len()).sum::<usize>();
            assert!(waits <= MAX_WAITING);
            assert!(waits == 0 || asks.next_timeout().is_some_and(|at| at > now));
        }
        let most = GIVEN_AT_ONCE + 2_000 * GIVEN_IN_A_MS + (2 << 20) + (1 << 20);
        assert!(given as u64 <= most, "{given}");
        assert!(given as u64 >= most / 2, "{given}");
        assert!(dropped > 1_000_000, "{dropped}");
        assert_eq!(modest, 40);
    }

    /// To look for a thousand names that are not there is no cheaper than to find some.
    #[test]
    fn what_is_not_there_counts() {
        let (mut asks, mut answered) = (Asks::default(), 0);
        let paths = (0..1_000).map(|_| Bytes::new()).collect();
        let checkpoint = Seq(1);
        let ask = StateMessage::GetNodes(GetNodes { checkpoint, paths });
        for now in 0..1_000 {
            asks.push(now, ReplicaId(3), ask.clone());
            while let Some((to, ask)) = asks.pop(now) {
                asks.answered(to, &ask, None);
                answered += 1;
            }
        }
        let most = (GIVEN_AT_ONCE + 1_000 * GIVEN_IN_A_MS) / 256_000;
        assert!((most / 2..=most + 1).contains(&answered), "{answered}");
    }
}
