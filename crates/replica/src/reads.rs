//! Reads that are not ordered, while they wait for a state that they may see: of which everything has committed, or, where they are early, for any that
//! misses nothing. PBFT 2002, 5.1.3.

use alloc::collections::{BTreeMap, VecDeque};

use quorate_agreement::Part;
use quorate_wire::message::Read;
use quorate_wire::{ClientId, Seq, View};

use crate::clients::ConnectionId;

/// The most reads that wait for one client; it has those beyond ordered. Two windows of requests and room.
const MAX_OF_CLIENT: usize = 256;
/// The most reads that wait, early ones and others each.
const MAX_WAITING: usize = 2048;
/// The most bytes of their operations.
const MAX_BYTES: usize = 2 << 20;

/// The state that a read finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadAt {
    /// The place of its last batch.
    pub seq: Seq,
    /// In which view that one prepared, if it has not committed.
    pub view: Option<View>,
}

/// Reads, of each client in the order of their arrival. Clients take turns. Where there is no room the client with the most loses
/// its newest.
#[derive(Debug, Default)]
struct WaitingReads {
    of_client: BTreeMap<ClientId, VecDeque<(ConnectionId, Read)>>,
    /// Whose turn it is.
    turns: VecDeque<ClientId>,
    count: usize,
    bytes: usize,
}

/// All reads that wait.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    early: WaitingReads,
    others: WaitingReads,
    /// Where both can be answered they take turns, whatever there is of each.
    was_early: bool,
    /// Whether some could be answered now that are left for the next turn.
    pub has_more: bool,
}

impl Reads {
    /// Keeps a read, if there is room.
    pub fn push(&mut self, client: ClientId, from: ConnectionId, read: Read) {
        let queue = match read.early {
            true => &mut self.early,
            false => &mut self.others,
        };
        queue.push(client, from, read);
    }

    /// Forgets the reads of a connection.
    pub fn forget(&mut self, client: &ClientId, from: ConnectionId) {
        self.early.forget(client, from);
        self.others.forget(client, from);
    }

    /// The next one, of early ones alone or of all.
    pub fn first(&self, early_alone: bool) -> Option<&(ConnectionId, Read)> {
        let (early, others) = (self.early.first(), self.others.first());
        match early_alone {
            true => early,
            false if self.was_early => others.or(early),
            false => early.or(others),
        }
    }

    /// Takes it out.
    pub fn pop(&mut self, early_alone: bool) -> Option<(ConnectionId, Read)> {
        self.was_early = self.first(early_alone)?.1.early;
        match self.was_early {
            true => self.early.pop(),
            false => self.others.pop(),
        }
    }

    /// How much waits, and how much may, of early ones and of others.
    pub fn parts(&self) -> impl Iterator<Item = Part> + use<> {
        self.early.parts().into_iter().chain(self.others.parts())
    }
}

impl WaitingReads {
    /// Keeps a read, if there is room.
    fn push(&mut self, client: ClientId, from: ConnectionId, read: Read) {
        let own = self.of_client.get(&client).map_or(0, VecDeque::len);
        if own >= MAX_OF_CLIENT {
            return;
        }
        while self.count >= MAX_WAITING || self.bytes + read.op.len() > MAX_BYTES {
            let all = self.of_client.iter().map(|(c, reads)| (reads.len(), *c));
            match all.max() {
                Some((most, other)) if most > own + 1 => self.drop_newest(&other),
                _ => return,
            }
        }
        self.count += 1;
        self.bytes += read.op.len();
        if own == 0 {
            self.turns.push_back(client);
        }
        let reads = self.of_client.entry(client).or_default();
        reads.push_back((from, read));
    }

    fn drop_newest(&mut self, client: &ClientId) {
        let Some(reads) = self.of_client.get_mut(client) else {
            return;
        };
        if let Some((_, read)) = reads.pop_back() {
            self.count -= 1;
            self.bytes -= read.op.len();
        }
        if reads.is_empty() {
            self.of_client.remove(client);
            self.turns.retain(|c| c != client);
        }
    }

    fn forget(&mut self, client: &ClientId, from: ConnectionId) {
        let Some(reads) = self.of_client.get_mut(client) else {
            return;
        };
        reads.retain(|(connection, read)| {
            let stays = *connection != from;
            if !stays {
                self.count -= 1;
                self.bytes -= read.op.len();
            }
            stays
        });
        if reads.is_empty() {
            self.of_client.remove(client);
            self.turns.retain(|c| c != client);
        }
    }

    /// How much waits, and how much may.
    fn parts(&self) -> [Part; 3] {
        let of_one = self.of_client.values().map(VecDeque::len).max();
        [
            Part::new("reads of a client", of_one.unwrap_or(0), MAX_OF_CLIENT),
            Part::new("reads", self.count, MAX_WAITING),
            Part::new("bytes of reads", self.bytes, MAX_BYTES),
        ]
    }

    fn first(&self) -> Option<&(ConnectionId, Read)> {
        self.of_client.get(self.turns.front()?)?.front()
    }

    fn pop(&mut self) -> Option<(ConnectionId, Read)> {
        let client = self.turns.pop_front()?;
        let reads = self.of_client.get_mut(&client)?;
        let (from, read) = reads.pop_front()?;
        match reads.is_empty() {
            true => drop(self.of_client.remove(&client)),
            false => self.turns.push_back(client),
        }
        self.count -= 1;
        self.bytes -= read.op.len();
        Some((from, read))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use quorate_wire::message::EVERYONE;
    use quorate_wire::{PublicKey, RequestNumber, SessionId};

    fn read(number: u64, bytes: usize) -> Read {
        Read {
            session: SessionId(1),
            number: RequestNumber(number),
            replier: EVERYONE,
            early: false,
            op: Bytes::from(alloc::vec![0; bytes]),
        }
    }

    /// Many clients flood; the reads of one that has few are kept, and come soon.
    #[test]
    fn a_flood_of_reads_keeps_nobody_out() {
        let mut reads = WaitingReads::default();
        let flooder = |n: u8| (PublicKey([n; 32]), ConnectionId(u64::from(n)));
        for round in 0..300 {
            for n in 1..=40 {
                let (client, from) = flooder(n);
                reads.push(client, from, read(round, 2_000));
            }
            assert!(reads.count <= MAX_WAITING && reads.bytes <= MAX_BYTES);
        }
        let (client, from) = flooder(99);
        (0..10).for_each(|n| reads.push(client, from, read(n, 2_000)));
        let mut order = Vec::new();
        while let Some((first, _)) = reads.first().cloned() {
            assert_eq!(reads.pop().map(|(c, _)| c), Some(first));
            order.push(first);
        }
        let of_it: Vec<usize> = (0..order.len()).filter(|i| order[*i] == from).collect();
        assert_eq!(of_it.len(), 10);
        assert!(of_it[9] <= 41 * 10, "{of_it:?}");
        assert_eq!((reads.count, reads.bytes, reads.turns.len()), (0, 0, 0));
    }

    /// Early reads wait for less than others, and yet keep none of them out.
    #[test]
    fn early_reads_and_others_take_turns() {
        let mut reads = Reads::default();
        let (client, from) = (PublicKey([1; 32]), ConnectionId(1));
        for number in 0..20 {
            let early = number >= 5;
            reads.push(
                client,
                from,
                Read {
                    early,
                    ..read(number, 10)
                },
            );
        }
        let mut taken = Vec::new();
        while let Some((_, first)) = reads.first(taken.len() < 3).cloned() {
            let popped = reads.pop(taken.len() < 3).map(|(_, read)| read.number);
            assert_eq!(popped, Some(first.number));
            taken.push(first.number.0);
        }
        let start = [5, 6, 7, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 13];
        assert_eq!(taken[..14], start);
        assert_eq!(taken.len(), 20);
        reads.push(client, from, read(1, 10));
        assert!(reads.first(true).is_none());
        reads.forget(&client, from);
        assert!(reads.first(false).is_none());
    }

    use alloc::vec::Vec;
}
