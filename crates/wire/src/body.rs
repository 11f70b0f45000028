//! The bytes of an operation, of which a long one is hashed in pieces.

use alloc::sync::Arc;

use bytes::Bytes;

use crate::digest::{Content, Digest, Hashing};

/// Bytes of a piece of a long body.
pub const PIECE_BYTES: usize = 64 << 10;

/// The bytes of an operation, and the digests of its pieces, if it is so long as to have any.
///
/// Pieces have [`PIECE_BYTES`] each and are counted from the end; what comes before the first is the head, shorter than a
/// piece. So an operation whose last part goes into the state in values of that length is hashed once for both: a piece's
/// digest is that of a value of the state ([`Content::StateValue`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    bytes: Bytes,
    pieces: Option<Arc<[Digest]>>,
}

impl Body {
    /// Hashes the pieces.
    pub fn new(bytes: Bytes) -> Body {
        let (_, whole) = bytes.split_at(bytes.len() % PIECE_BYTES);
        let pieces = (!whole.is_empty()).then(|| {
            let pieces = whole.chunks_exact(PIECE_BYTES);
            pieces.map(|p| Digest::of(Content::StateValue, p)).collect()
        });
        Body { bytes, pieces }
    }

    /// All of it.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The same in memory of its own: not in that of the message that it came in.
    pub(crate) fn detached(&self) -> Body {
        Body {
            bytes: Bytes::copy_from_slice(&self.bytes),
            pieces: self.pieces.clone(),
        }
    }

    /// Whether it is so long as to be hashed in pieces.
    pub fn is_long(&self) -> bool {
        self.pieces.is_some()
    }

    /// The digest of `length` bytes from `from` on as a value of the state, if these are a piece.
    pub fn piece(&self, from: usize, length: usize) -> Option<Digest> {
        let pieces = self.pieces.as_ref()?;
        let behind_head = from.checked_sub(self.bytes.len() % PIECE_BYTES)?;
        let is_piece = length == PIECE_BYTES && behind_head.is_multiple_of(PIECE_BYTES);
        is_piece.then(|| pieces.get(behind_head / PIECE_BYTES).copied())?
    }

    /// Adds to a digest what stands for this body in it: a short one itself; of a long one the head, the pieces' digests, and
    /// the length, from which follows where one ends and the others begin.
    pub(crate) fn add_to(&self, hashing: &mut Hashing) {
        let Some(pieces) = &self.pieces else {
            return hashing.add(&self.bytes);
        };
        hashing.add(&self.bytes[..self.bytes.len() % PIECE_BYTES]);
        pieces.iter().for_each(|piece| hashing.add(&piece.0));
        hashing.add(&(self.bytes.len() as u64).to_le_bytes());
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Body {
        Body::new(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn body(length: usize) -> Body {
        let bytes: Vec<u8> = (0..length).map(|i| (i * i / 7 + i / 251) as u8).collect();
        Body::new(Bytes::from(bytes))
    }

    /// Each whole piece, counted from the end, has its digest, and nothing else has one.
    #[test]
    fn pieces_are_counted_from_the_end() {
        for length in [
            0,
            1,
            65_535,
            65_536,
            65_537,
            131_071,
            131_072,
            300_000,
            1 << 20,
        ] {
            let body = body(length);
            let mut found = 0;
            for from in 0..length.min(200_000) {
                let to = from + PIECE_BYTES;
                let is_piece = to <= length && (length - to).is_multiple_of(PIECE_BYTES);
                let digest =
                    is_piece.then(|| Digest::of(Content::StateValue, &body.bytes[from..to]));
                assert_eq!(body.piece(from, PIECE_BYTES), digest, "{from} of {length}");
                assert_eq!(body.piece(from, PIECE_BYTES - 1), None);
                assert_eq!(body.piece(from, PIECE_BYTES + 1), None);
                found += usize::from(is_piece);
            }
            assert_eq!(found > 0, body.is_long());
            assert_eq!(body.piece(length, PIECE_BYTES), None);
            assert_eq!(body.piece(usize::MAX, PIECE_BYTES), None);
        }
    }
}
