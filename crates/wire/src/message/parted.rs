//! Results that hold values of the state whole.

use alloc::vec::Vec;

use super::MAX_RESULT_BYTES;
use crate::codec::{Decode, DecodeError, Encode, Reader, bounded};
use crate::digest::{Content, Digest, Hashing};
use crate::record;
use crate::segments::{SegmentWriter, Segments};

/// The most values in one result: a read of 1 MiB has 16 chunks of a file.
pub const MAX_VALUES: usize = 64;

/// The byte before a piece of the result itself.
const BYTES: u8 = 0;
/// The byte before the digest of a value.
const VALUE: u8 = 1;

record! {
    /// A part of a result.
    #[derive(Copy)]
    pub struct Span {
        /// Its first byte.
        pub offset: u32,
        /// How many; never 0.
        pub length: u32,
    }
}

/// A result, some parts of which are values of the state, byte for byte. Its digest is over the digests of these values, which replicas have
/// in their partition trees already: so who only vouches for it need not read them, and who sends it need not hash them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parted {
    result: Segments,
    values: Vec<Span>,
}

/// The digest of a [`Parted`], piece by piece in their order. Two pieces of bytes are never next to each other, and none is empty.
#[derive(Debug)]
pub struct PartedDigest(Hashing);

impl Parted {
    /// A result with the values that are in it, in rising order. `None` if they overlap, are empty, reach beyond it or are more than
    /// [`MAX_VALUES`]; or if there are none, since then it is no other than a full one.
    pub fn new(result: impl Into<Segments>, values: Vec<Span>) -> Option<Parted> {
        let (result, mut end) = (result.into(), 0);
        let fits = values.iter().all(|span| {
            let from =
                core::mem::replace(&mut end, u64::from(span.offset) + u64::from(span.length));
            u64::from(span.offset) >= from && span.length > 0
        });
        let is_good = fits
            && end <= result.len() as u64
            && (1..=MAX_VALUES).contains(&values.len())
            && result.len() <= MAX_RESULT_BYTES;
        is_good.then_some(Parted { result, values })
    }

    /// All of it.
    pub fn result(&self) -> &Segments {
        &self.result
    }

    /// Where values of the state are in it.
    pub fn values(&self) -> &[Span] {
        &self.values
    }

    /// The digest that replicas vouch for.
    pub fn digest(&self) -> Digest {
        let mut digest = PartedDigest::new();
        let mut at = 0;
        for span in &self.values {
            let (from, to) = (span.offset as usize, (span.offset + span.length) as usize);
            digest.range(&self.result, at, from);
            let mut value = Digest::hashing(Content::StateValue);
            self.result.slices(from, to).for_each(|s| value.add(s));
            digest.value(span.length, value.end());
            at = to;
        }
        digest.range(&self.result, at, self.result.len());
        digest.end()
    }
}

impl Default for PartedDigest {
    fn default() -> PartedDigest {
        PartedDigest::new()
    }
}

impl PartedDigest {
    /// Of nothing yet.
    pub fn new() -> PartedDigest {
        PartedDigest(Digest::hashing(Content::PartedResult))
    }

    /// Bytes of the result itself; where there are none, nothing.
    pub fn bytes(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.head(BYTES, bytes.len() as u32);
            self.0.add(bytes);
        }
    }

    /// As [`PartedDigest::bytes`], of those from `from` to `to`.
    fn range(&mut self, result: &Segments, from: usize, to: usize) {
        if from < to {
            self.head(BYTES, (to - from) as u32);
            result.slices(from, to).for_each(|s| self.0.add(s));
        }
    }

    /// A value of this length, by its digest as [`Content::StateValue`].
    pub fn value(&mut self, length: u32, digest: Digest) {
        self.head(VALUE, length);
        self.0.add(&digest.0);
    }

    fn head(&mut self, kind: u8, length: u32) {
        let length = length.to_le_bytes();
        self.0
            .add(&[kind, length[0], length[1], length[2], length[3]]);
    }

    /// The digest.
    pub fn end(self) -> Digest {
        self.0.end()
    }
}

impl Encode for Parted {
    fn encode(&self, out: &mut Vec<u8>) {
        self.result.encode(out);
        self.values.encode(out);
    }

    fn encode_shared(&self, out: &mut SegmentWriter) {
        self.result.encode_shared(out);
        self.values.encode_shared(out);
    }

    /// The spans too: a frame that grows for their sake would be copied.
    fn string_bytes(&self) -> usize {
        self.result.len() + self.values.len() * size_of::<Span>()
    }
}

impl Decode for Parted {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        let result = Segments::decode(r)?;
        if result.len() > MAX_RESULT_BYTES {
            return Err(DecodeError::TooLong("result bytes"));
        }
        let values = bounded(r, MAX_VALUES, "values of a result")?;
        Parted::new(result, values).ok_or(DecodeError::Invalid("values of a result"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use bytes::Bytes;

    fn span(offset: u32, length: u32) -> Span {
        Span { offset, length }
    }

    /// The digest says where values are and what they are: the same bytes with other values, or as a full result, have another one.
    #[test]
    fn the_digest_binds_values_and_their_places() {
        let result = Bytes::from_static(b"head value tail");
        let parted = |values| Parted::new(result.clone(), values).unwrap().digest();
        let mut expected = PartedDigest::new();
        expected.bytes(b"head ");
        expected.value(5, Digest::of(Content::StateValue, b"value"));
        expected.bytes(b" tail");
        let expected = expected.end();
        assert_eq!(parted(vec![span(5, 5)]), expected);
        for other in [
            vec![span(4, 6)],
            vec![span(5, 4)],
            vec![span(5, 2), span(7, 3)],
        ] {
            assert_ne!(parted(other), expected);
        }
        assert_ne!(Digest::of(Content::Result, &result), expected);
        let mut joined = PartedDigest::new();
        joined.bytes(b"head ");
        joined.bytes(&[VALUE, 5, 0, 0, 0]);
        assert_ne!(joined.end(), expected);
    }

    /// Values that a result can't have are refused, and not taken for others.
    #[test]
    fn values_are_within_the_result_and_in_order() {
        let result = Bytes::from(vec![7; 100]);
        let many = (0..65).map(|at| span(at, 1)).collect();
        let bad = [
            vec![],
            vec![span(0, 0)],
            vec![span(0, 101)],
            vec![span(100, 1)],
            vec![span(u32::MAX, u32::MAX)],
            vec![span(0, 10), span(9, 5)],
            vec![span(10, 5), span(0, 5)],
            many,
        ];
        for values in bad {
            assert_eq!(Parted::new(result.clone(), values.clone()), None);
            let mut bytes = result.to_bytes();
            values.encode(&mut bytes);
            assert!(Parted::from_slice(&bytes).is_err(), "{values:?}");
        }
        let good = Parted::new(result, vec![span(0, 10), span(10, 90)]).unwrap();
        assert_eq!(Parted::from_slice(&good.to_bytes()), Ok(good));
    }
}
