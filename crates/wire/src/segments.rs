//! Bytes that lie in several places of memory: long strings are not copied only to lie beside what is said of them.

use alloc::vec::Vec;

use bytes::Bytes;

use crate::codec::{Decode, DecodeError, Encode, Reader};

/// Byte strings of at least so many bytes are shared: a chunk of a file. A shorter one is copied for not much more than it costs to keep it
/// apart; and what is shared may be a slice of a whole operation, which it keeps: the shorter the slices, the more of them.
pub const SHARED_FROM: usize = 64 << 10;

/// Bytes in several places, one after the other. Equal ones have equal bytes, wherever they are cut.
#[derive(Clone, Debug, Default)]
pub struct Segments {
    /// None is empty.
    parts: Vec<Bytes>,
    length: usize,
}

impl Segments {
    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The bytes from `from` to `to`, piece by piece; `to` is no more than there are.
    pub fn slices(&self, from: usize, to: usize) -> impl Iterator<Item = &[u8]> {
        let mut begins = 0;
        self.parts.iter().filter_map(move |part| {
            let (begin, end) = (begins, begins + part.len());
            begins = end;
            let (from, to) = (from.max(begin), to.min(end));
            (from < to).then(|| &part[from - begin..to - begin])
        })
    }

    /// All bytes in one place: copied, unless they are.
    pub fn joined(&self) -> Bytes {
        match &self.parts[..] {
            [only] => only.clone(),
            parts => parts.concat().into(),
        }
    }
}

impl From<Bytes> for Segments {
    fn from(bytes: Bytes) -> Segments {
        let length = bytes.len();
        let parts = match length {
            0 => Vec::new(),
            _ => alloc::vec![bytes],
        };
        Segments { parts, length }
    }
}

impl PartialEq for Segments {
    fn eq(&self, other: &Segments) -> bool {
        self.length == other.length && self.joined() == other.joined()
    }
}

impl Eq for Segments {}

/// As [`Bytes`].
impl Encode for Segments {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.length as u32).encode(out);
        for part in &self.parts {
            out.extend_from_slice(part);
        }
    }

    fn encode_shared(&self, out: &mut SegmentWriter) {
        (self.length as u32).encode(out.tail());
        for part in &self.parts {
            out.put(part);
        }
    }

    fn string_bytes(&self) -> usize {
        self.length
    }
}

impl Decode for Segments {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        Bytes::decode(r).map(Segments::from)
    }
}

/// Puts bytes one after the other: copies short strings, and shares long ones.
#[derive(Debug)]
pub struct SegmentWriter {
    shared_from: usize,
    first: Vec<u8>,
    /// What came before the tail, if a long string did. None is empty.
    rest: Vec<Bytes>,
    tail: Vec<u8>,
}

impl SegmentWriter {
    /// Begins with these bytes.
    pub fn after(first: Vec<u8>) -> SegmentWriter {
        SegmentWriter {
            shared_from: SHARED_FROM,
            first,
            rest: Vec::new(),
            tail: Vec::new(),
        }
    }

    /// Takes strings of at least so many bytes, and at least one, for long.
    #[must_use]
    pub fn sharing_from(self, bytes: usize) -> SegmentWriter {
        SegmentWriter {
            shared_from: bytes.max(1),
            ..self
        }
    }

    /// Where short strings are appended.
    pub fn tail(&mut self) -> &mut Vec<u8> {
        match self.rest.is_empty() {
            true => &mut self.first,
            false => &mut self.tail,
        }
    }

    /// Appends a string, which is shared if it is long.
    pub fn put(&mut self, bytes: &Bytes) {
        if bytes.len() < self.shared_from {
            return self.tail().extend_from_slice(bytes);
        }
        self.cut();
        self.rest.push(bytes.clone());
    }

    fn cut(&mut self) {
        if !self.tail.is_empty() {
            self.rest.push(core::mem::take(&mut self.tail).into());
        }
    }

    /// What comes before the first long string, and the rest.
    pub fn end(mut self) -> (Vec<u8>, Vec<Bytes>) {
        self.cut();
        (self.first, self.rest)
    }
}

impl From<SegmentWriter> for Segments {
    fn from(writer: SegmentWriter) -> Segments {
        let (first, rest) = writer.end();
        let mut all = Segments::from(Bytes::from(first));
        all.length += rest.iter().map(Bytes::len).sum::<usize>();
        all.parts.extend(rest);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn string(length: usize, begin: usize) -> Bytes {
        let bytes: Vec<u8> = (begin..begin + length).map(|i| (i % 251) as u8).collect();
        bytes.into()
    }

    /// Short and long strings come out in their order; a long one is where it was, and whatever range is asked for is that of the bytes together.
    #[test]
    fn what_was_put_comes_out() {
        let lengths = [
            5,
            SHARED_FROM,
            0,
            3,
            SHARED_FROM - 1,
            2 * SHARED_FROM,
            SHARED_FROM,
            1,
        ];
        let strings: Vec<Bytes> = lengths.iter().map(|&n| string(n, n / 7)).collect();
        let mut writer = SegmentWriter::after(vec![1, 2, 3]);
        strings.iter().for_each(|s| writer.put(s));
        let segments = Segments::from(writer);
        let whole = [&[1, 2, 3], &strings.concat()[..]].concat();
        assert_eq!(
            (segments.len(), &segments.joined()[..]),
            (whole.len(), &whole[..])
        );
        for long in strings.iter().filter(|s| s.len() >= SHARED_FROM) {
            let is_it = |part: &&Bytes| part.as_ptr() == long.as_ptr();
            assert_eq!(segments.parts.iter().filter(is_it).count(), 1);
        }
        assert_eq!(
            segments.parts.len(),
            6,
            "two long ones are not put together"
        );
        let ends = [
            0,
            1,
            8,
            9,
            SHARED_FROM,
            SHARED_FROM + 8,
            3 * SHARED_FROM,
            whole.len(),
        ];
        for (from, to) in ends.iter().flat_map(|&from| ends.map(|to| (from, to))) {
            let found: Vec<&[u8]> = segments.slices(from, to).collect();
            assert!(found.iter().all(|slice| !slice.is_empty()));
            assert!(
                from > to || found.concat() == whole[from..to],
                "{from} to {to}"
            );
        }
    }

    /// Where bytes are cut makes no difference to what they are equal to, nor to their encoding.
    #[test]
    fn cuts_do_not_show() {
        const F: usize = SHARED_FROM;
        let (all, other) = (string(3 * F, 0), string(3 * F, 1));
        let mut writer = SegmentWriter::after(Vec::new());
        for range in [0..F, F..F + 1, F + 1..3 * F] {
            writer.put(&all.slice(range));
        }
        let cut = Segments::from(writer);
        assert!(cut.parts.len() > 1);
        assert_eq!(cut, Segments::from(all.clone()));
        assert_ne!(cut, Segments::from(other));
        assert_eq!(cut.to_bytes(), all.to_bytes());
        assert_eq!(Segments::from_slice(&cut.to_bytes()), Ok(cut));
        assert!(Segments::default().is_empty() && Segments::from(Bytes::new()).parts.is_empty());
    }
}
