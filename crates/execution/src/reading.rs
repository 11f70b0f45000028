//! What a read comes to: bytes, and values of the state that are only named as long as nobody has to send them.

use alloc::vec::Vec;

use bytes::Bytes;
use quorate_state::{Fault, Summary, Txn};
use quorate_wire::message::parted::MAX_VALUES;
use quorate_wire::message::{MAX_RESULT_BYTES, Outcome, Parted, PartedDigest, ReplyBody, Span};
use quorate_wire::{Digest, SegmentWriter, Segments};

use crate::executor::done;
use crate::service::{Call, Service};

/// The answer to an operation that only reads.
///
/// A large value of the state that is a part of the answer, byte for byte, can be named instead of being read: then the one replica that
/// sends the answer reads it, and the others vouch for it by the digest that they have beside it. Which values are named must follow from the
/// state alone, as all else does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    parts: Vec<Part>,
    length: usize,
    values: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Bytes(Bytes),
    /// Under this key.
    Value(Bytes, Summary),
}

impl From<Bytes> for Reading {
    fn from(answer: Bytes) -> Reading {
        let mut reading = Reading::new();
        reading.push(answer);
        reading
    }
}

impl Reading {
    /// An answer of nothing yet.
    pub fn new() -> Reading {
        Reading::default()
    }

    /// Adds bytes.
    pub fn push(&mut self, bytes: Bytes) {
        self.length += bytes.len();
        self.parts.push(Part::Bytes(bytes));
    }

    /// Adds the value under a key, which has this summary.
    pub fn push_value(&mut self, key: Bytes, summary: Summary) {
        // An empty one is no part of an answer: whoever sends it could not say where it is.
        if summary.length == 0 {
            return;
        }
        self.length += summary.length as usize;
        self.values += 1;
        self.parts.push(Part::Value(key, summary));
    }

    /// How many bytes the answer has.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The answer with all values in it.
    ///
    /// # Errors
    /// [`Fault`] where the store fails, or has another value than it says.
    pub fn gather(&self, txn: &Txn<'_>) -> Result<Bytes, Fault> {
        match &self.parts[..] {
            [Part::Bytes(answer)] => Ok(answer.clone()),
            _ => self.segments(txn, &[]).map(|(all, _)| all.joined()),
        }
    }

    /// All of it after a head, and where values are in that. Long values are not copied: the segments share the memory of the state's.
    fn segments(&self, txn: &Txn<'_>, head: &[u8]) -> Result<(Segments, Vec<Span>), Fault> {
        let mut out = SegmentWriter::after(head.to_vec());
        let (mut length, mut spans) = (head.len(), Vec::with_capacity(self.values));
        for part in &self.parts {
            let bytes = match part {
                Part::Bytes(bytes) => bytes.clone(),
                Part::Value(key, summary) => {
                    let value = txn.get(key)?.unwrap_or_default();
                    if value.len() != summary.length as usize {
                        return Err(Fault::value(key, "it has another length than its row says"));
                    }
                    let (offset, length) = (length as u32, summary.length);
                    spans.push(Span { offset, length });
                    value
                }
            };
            length += bytes.len();
            out.put(&bytes);
        }
        Ok((out.into(), spans))
    }

    fn digest(&self, head: &[u8]) -> Digest {
        let mut digest = PartedDigest::new();
        let mut bytes = head.to_vec();
        for part in &self.parts {
            match part {
                Part::Bytes(more) => bytes.extend_from_slice(more),
                Part::Value(_, summary) => {
                    digest.bytes(&bytes);
                    bytes.clear();
                    digest.value(summary.length, summary.digest);
                }
            }
        }
        digest.bytes(&bytes);
        digest.end()
    }

    /// The reply to the operation: an [`Outcome`] in full, or its digest.
    fn reply(&self, txn: &Txn<'_>, in_full: bool) -> Result<ReplyBody, Fault> {
        let head = Outcome::before_answer(self.length as u32);
        let is_parted =
            (1..=MAX_VALUES).contains(&self.values) && head.len() + self.length <= MAX_RESULT_BYTES;
        if !is_parted {
            return Ok(ReplyBody::of(done(self.gather(txn)?), in_full));
        }
        if !in_full {
            return Ok(ReplyBody::Digest(self.digest(&head)));
        }
        let (result, spans) = self.segments(txn, &head)?;
        let parted = Parted::new(result, spans);
        Ok(ReplyBody::Parted(
            parted.expect("values one after the other"),
        ))
    }
}

/// Executes an operation that only reads: the reply, and how many bytes its result has, in full or not.
pub(crate) fn read<S: Service>(
    service: &S,
    txn: &mut Txn<'_>,
    call: &Call,
    op: &Bytes,
    in_full: bool,
) -> Result<(ReplyBody, usize), Fault> {
    let reading = service.read(txn, call, op)?;
    debug_assert!(txn.writes().is_empty(), "an operation that only reads");
    Ok((reading.reply(txn, in_full)?, reading.length))
}
