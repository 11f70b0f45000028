//! What a peer's TLS records bring: they are counted by their heads, beside TLS, which says of none what was in it.
//!
//! TLS bounds what brings no message (an empty record, a change of keys, a ticket) only in a row or not at all. So a peer could have
//! whoever reads from it derive keys without end, and no message would ever come of it that could be counted. A correct peer
//! sends such records in its handshake, and a change of keys after some millions of records.

use crate::conduct::BYTES_PER_UNIT;

/// Type, version and length.
const HEAD_BYTES: usize = 5;
/// What a sealed record has beside its content: the content's type and a tag.
const SEAL_BYTES: u64 = 17;
/// What a record counts as that has no content: as much as a change of keys has.
const LEAST_BARREN: u64 = 5;
/// Bytes that may bring nothing. A handshake has some two or three thousand.
const MOST_BARREN: u64 = 8 << 10;
/// For so many bytes of messages one is forgiven.
const FORGIVING: u64 = 1 << 10;

/// The records that have come on a link.
#[derive(Debug, Default)]
pub(crate) struct Records {
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
    /// What is missing of a record whose head is there.
    missing: usize,
    /// Bytes that came in records and were no part of a message, as far as they are not forgiven.
    barren: u64,
    /// Bytes of messages that were not counted as forgiving.
    change: u64,
    /// Of what came since [`Records::take_overhead`].
    count: u64,
    bytes: u64,
}

impl Records {
    /// Takes note of bytes as they came.
    pub fn pass(&mut self, mut wire: &[u8]) {
        while !wire.is_empty() {
            if self.head_bytes < HEAD_BYTES {
                let part = (HEAD_BYTES - self.head_bytes).min(wire.len());
                self.head[self.head_bytes..][..part].copy_from_slice(&wire[..part]);
                self.head_bytes += part;
                wire = &wire[part..];
                self.missing = self.length();
            }
            if self.head_bytes == HEAD_BYTES {
                let part = self.missing.min(wire.len());
                self.missing -= part;
                wire = &wire[part..];
                if self.missing == 0 {
                    self.head_bytes = 0;
                    self.count += 1;
                    self.barren += match (self.length() as u64).saturating_sub(SEAL_BYTES) {
                        0 => LEAST_BARREN,
                        content => content,
                    };
                }
            }
        }
    }

    /// Of the record with the present head.
    fn length(&self) -> usize {
        usize::from(u16::from_be_bytes([self.head[3], self.head[4]]))
    }

    /// Takes note of so many bytes of messages that have come of that.
    pub fn brought(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        self.bytes += bytes;
        self.change += bytes;
        let forgiven = self.change / FORGIVING;
        self.change %= FORGIVING;
        self.barren = self.barren.saturating_sub(bytes + forgiven);
    }

    /// Whether more came that brings nothing than a correct peer sends.
    pub fn are_barren(&self) -> bool {
        self.barren > MOST_BARREN
    }

    /// How many more records came than so many messages, and their bytes, account for.
    pub fn take_overhead(&mut self, messages: usize) -> u64 {
        let due = messages as u64 + self.bytes / BYTES_PER_UNIT as u64;
        self.bytes = 0;
        std::mem::take(&mut self.count).saturating_sub(due)
    }
}

#[cfg(test)]
mod tests;
