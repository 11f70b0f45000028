//! Reads that are not ordered, while they wait for a state of which everything has committed. PBFT 2002, 5.1.3.

use alloc::collections::VecDeque;

use quorate_wire::message::Read;

use crate::clients::ConnectionId;

/// The most reads that wait; clients have those beyond ordered.
const MAX_WAITING: usize = 4096;
/// The most bytes of their operations.
const MAX_BYTES: usize = 4 << 20;

/// Reads in the order of their arrival.
#[derive(Debug, Default)]
pub(crate) struct WaitingReads {
    reads: VecDeque<(ConnectionId, Read)>,
    bytes: usize,
}

impl WaitingReads {
    /// Keeps a read, if there is room.
    pub fn push(&mut self, from: ConnectionId, read: Read) {
        let bytes = self.bytes + read.op.len();
        if self.reads.len() < MAX_WAITING && bytes <= MAX_BYTES {
            self.bytes = bytes;
            self.reads.push_back((from, read));
        }
    }

    pub fn first(&self) -> Option<&(ConnectionId, Read)> {
        self.reads.front()
    }

    pub fn pop(&mut self) -> Option<(ConnectionId, Read)> {
        let (from, read) = self.reads.pop_front()?;
        self.bytes -= read.op.len();
        Some((from, read))
    }
}
