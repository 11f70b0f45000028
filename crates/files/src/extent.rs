//! The content of one 64 KiB chunk and its canonical form, which [`crate::layout`] describes.

use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;

use crate::layout::{BLOCK_BYTES, CHUNK_BYTES};

const BLOCK: usize = BLOCK_BYTES as usize;
const CHUNK: usize = CHUNK_BYTES as usize;
const BLOCKS: usize = CHUNK / BLOCK;
/// A chunk is stored bare if not all of so many bytes at its end are zero. Fewer, and a chunk with its bitmap could be as long
/// as a bare one.
const BARE_TAIL: usize = 3;

/// A chunk, laid out flat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Which blocks are present.
    pub present: u16,
    /// All 64 KiB; absent blocks are zero.
    bytes: Vec<u8>,
}

/// A chunk's bitmap, and its bytes as they are stored.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// Which blocks are present.
    pub present: u16,
    packed: Bytes,
}

/// The bits of the blocks that `from..to` touches, within a chunk.
pub(crate) fn touched(from: usize, to: usize) -> u16 {
    mask(from / BLOCK, to.div_ceil(BLOCK))
}

/// The bits of the blocks that lie in `from..to` whole.
pub(crate) fn covered(from: usize, to: usize) -> u16 {
    mask(from.div_ceil(BLOCK), to / BLOCK)
}

fn mask(first: usize, end: usize) -> u16 {
    let below = |n: usize| ((1u32 << n.min(BLOCKS)) - 1) as u16;
    below(end) & !below(first)
}

impl Stored {
    /// Takes a stored value apart; `None` if it is not in canonical form.
    pub fn parse(value: &Bytes) -> Option<Stored> {
        if value.len() == CHUNK {
            let (present, packed) = (u16::MAX, value.clone());
            return is_bare(value).then_some(Stored { present, packed });
        }
        let present = u16::from_le_bytes([*value.first()?, *value.get(1)?]);
        let packed = value.slice(2..);
        let most = match present {
            u16::MAX => CHUNK - BARE_TAIL,
            _ => present.count_ones() as usize * BLOCK,
        };
        let fits = packed.len() <= most;
        let trimmed = packed.last() != Some(&0);
        (present != 0 && fits && trimmed).then_some(Stored { present, packed })
    }

    /// Copies the content from `from` on into `out`, which is zero.
    pub fn copy_to(&self, from: usize, out: &mut [u8]) {
        if self.present == u16::MAX {
            copy_part(&self.packed, from, out);
            return;
        }
        let to = from + out.len();
        let mut packed_at = 0;
        for block in 0..BLOCKS {
            if self.present & (1 << block) == 0 {
                continue;
            }
            let (start, end) = (block * BLOCK, (block + 1) * BLOCK);
            if end > from && start < to {
                let low = from.max(start);
                let high = to.min(end);
                let source = packed_at + (low - start);
                copy_part(&self.packed, source, &mut out[low - from..high - from]);
            }
            packed_at += BLOCK;
        }
    }
}

/// The bitmap and the stored form of a chunk after `data` was written to it from `from` on. The content is copied once: whoever
/// overwrites blocks of large files pays for the chunk around each.
pub(crate) fn write_over(old: Option<&Stored>, from: usize, data: &[u8]) -> (u16, Bytes) {
    let to = from + data.len();
    let present = old.map_or(0, |old| old.present) | touched(from, to);
    let head = if present == u16::MAX { 0 } else { 2 };
    let mut value = Vec::with_capacity(head + present.count_ones() as usize * BLOCK);
    value.extend_from_slice(&present.to_le_bytes()[..head]);
    let mut rest = old.map_or(&[][..], |old| &old.packed);
    for block in (0..BLOCKS).filter(|block| present & (1 << block) != 0) {
        let was_present = old.is_some_and(|old| old.present & (1 << block) != 0);
        let kept;
        (kept, rest) = rest.split_at(if was_present {
            rest.len().min(BLOCK)
        } else {
            0
        });
        let (start, end) = (block * BLOCK, (block + 1) * BLOCK);
        let (low, high) = (from.max(start), to.min(end));
        if low == start && high == end {
            value.extend_from_slice(&data[low - from..high - from]);
            continue;
        }
        let at = value.len();
        value.extend_from_slice(kept);
        value.resize(at + BLOCK, 0);
        if low < high {
            value[at + low - start..at + high - start]
                .copy_from_slice(&data[low - from..high - from]);
        }
    }
    if present == u16::MAX {
        return (present, pack_full(&Bytes::from(value)));
    }
    let len = head + trimmed_len(&value[head..]);
    value.truncate(len);
    value.shrink_to_fit();
    (present, Bytes::from(value))
}

/// Copies what `packed` has from `from` on; what was trimmed is zero.
fn copy_part(packed: &[u8], from: usize, out: &mut [u8]) {
    let rest = packed.get(from..).unwrap_or(&[]);
    let len = rest.len().min(out.len());
    out[..len].copy_from_slice(&rest[..len]);
}

impl Extent {
    /// Nothing present.
    pub fn empty() -> Extent {
        Extent {
            present: 0,
            bytes: vec![0; CHUNK],
        }
    }

    pub fn unpack(stored: &Stored) -> Extent {
        let mut extent = Extent::empty();
        extent.present = stored.present;
        stored.copy_to(0, &mut extent.bytes);
        extent
    }

    /// Writes bytes; the blocks that they touch are present then.
    #[cfg(test)]
    pub fn write(&mut self, from: usize, data: &[u8]) {
        self.bytes[from..from + data.len()].copy_from_slice(data);
        self.present |= touched(from, from + data.len());
    }

    /// Makes the blocks of a mask present.
    pub fn allocate(&mut self, blocks: u16) {
        self.present |= blocks;
    }

    /// Makes a range read as zeros; what is present stays so.
    pub fn zero(&mut self, from: usize, to: usize) {
        self.bytes[from..to].fill(0);
    }

    /// Makes a range read as zeros, and the blocks in it that are whole absent.
    pub fn punch(&mut self, from: usize, to: usize) {
        self.zero(from, to);
        self.present &= !covered(from, to);
    }

    /// The stored form; `None` if nothing is present.
    pub fn pack(&self) -> Option<Bytes> {
        match self.present {
            0 => None,
            u16::MAX => Some(pack_full(&Bytes::copy_from_slice(&self.bytes))),
            present => {
                let mut value = present.to_le_bytes().to_vec();
                for block in (0..BLOCKS).filter(|block| present & (1 << block) != 0) {
                    value.extend_from_slice(&self.bytes[block * BLOCK..(block + 1) * BLOCK]);
                }
                let len = 2 + trimmed_len(&value[2..]);
                value.truncate(len);
                value.shrink_to_fit();
                Some(Bytes::from(value))
            }
        }
    }
}

/// The stored form of a chunk that is present whole: as a rule the bytes themselves, without a copy.
pub(crate) fn pack_full(data: &Bytes) -> Bytes {
    assert_eq!(data.len(), CHUNK);
    if is_bare(data) {
        return data.clone();
    }
    let len = trimmed_len(data);
    let mut value = Vec::with_capacity(2 + len);
    value.extend_from_slice(&u16::MAX.to_le_bytes());
    value.extend_from_slice(&data[..len]);
    Bytes::from(value)
}

/// Whether a chunk that is present whole is stored without its bitmap.
fn is_bare(data: &[u8]) -> bool {
    data[CHUNK - BARE_TAIL..].iter().any(|&b| b != 0)
}

fn trimmed_len(data: &[u8]) -> usize {
    data.iter()
        .rposition(|&b| b != 0)
        .map_or(0, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stored form has one shape for each content, and gives the content back.
    #[test]
    fn extents_pack_and_unpack() {
        let mut extent = Extent::empty();
        assert_eq!(extent.pack(), None);
        extent.write(5000, b"abc");
        extent.write(4 * BLOCK + 1, b"z");
        let value = extent.pack().unwrap();
        assert_eq!(extent.present, 0b10010);
        assert_eq!(value.len(), 2 + BLOCK + 2);
        let stored = Stored::parse(&value).unwrap();
        assert_eq!(Extent::unpack(&stored), extent);
        let mut part = [0; 4];
        stored.copy_to(4999, &mut part);
        assert_eq!(&part, b"\0abc");
        stored.copy_to(4 * BLOCK - 1, &mut part[..2]);
        extent.punch(4096, 2 * BLOCK);
        assert_eq!(extent.present, 0b10000);
    }

    /// Forms that are not canonical are refused: two forms of one content would be two digests.
    #[test]
    fn other_forms_are_refused() {
        for bad in [&[][..], &[1], &[0, 0], &[1, 0, 0], &[1, 0, 5, 0]] {
            assert!(
                Stored::parse(&Bytes::copy_from_slice(bad)).is_none(),
                "{bad:?}"
            );
        }
        let mut long = vec![7; 2 + BLOCK + 1];
        long[..2].copy_from_slice(&1u16.to_le_bytes());
        assert!(Stored::parse(&Bytes::from(long)).is_none());
    }

    /// A chunk that is present whole is its own stored form, unless it ends in zeros; the two can't be mistaken for each other.
    #[test]
    fn whole_chunks_are_bare() {
        for zeros in 0..6 {
            let mut bytes = vec![9; CHUNK];
            bytes[CHUNK - zeros..].fill(0);
            let mut extent = Extent::empty();
            extent.write(0, &bytes);
            let bytes = Bytes::from(bytes);
            let value = pack_full(&bytes);
            assert_eq!(extent.pack().as_ref(), Some(&value));
            match zeros {
                // Not a copy.
                0..3 => assert_eq!(value.as_ptr(), bytes.as_ptr()),
                _ => assert_eq!(value.len(), 2 + CHUNK - zeros),
            }
            assert_eq!(Extent::unpack(&Stored::parse(&value).unwrap()), extent);
            let other = match zeros {
                0..2 => [&[0xff, 0xff], &bytes[..CHUNK - zeros]].concat(),
                // That long it is a bare chunk, of other bytes.
                2 => continue,
                _ => bytes.to_vec(),
            };
            assert!(Stored::parse(&Bytes::from(other)).is_none(), "{zeros}");
        }
    }

    /// Writing over what is stored comes to the same as laying it out, writing and storing it.
    #[test]
    fn writing_over_is_writing() {
        let mut rng = 7_u64;
        let mut random = |below: usize| {
            rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (rng >> 33) as usize % below
        };
        for _ in 0..40 {
            let mut old: Option<Stored> = None;
            for _ in 0..20 {
                let from = match random(3) {
                    0 => random(BLOCKS) * BLOCK,
                    1 => CHUNK - 1 - random(5000),
                    _ => random(CHUNK),
                };
                let most = CHUNK - from;
                let length = match random(3) {
                    0 => BLOCK.min(most),
                    1 => most,
                    _ => 1 + random(most),
                };
                // Ends in zeros now and then, or is nothing but zeros.
                let zeros = [0, 1, 3, length].get(random(8)).copied().unwrap_or(0);
                let mut data = vec![1 + random(255) as u8; length];
                data[length - zeros.min(length)..].fill(0);
                let mut extent = old.as_ref().map_or_else(Extent::empty, Extent::unpack);
                extent.write(from, &data);
                let (present, value) = write_over(old.as_ref(), from, &data);
                assert_eq!(
                    (present, Some(&value)),
                    (extent.present, extent.pack().as_ref())
                );
                old = Some(Stored::parse(&value).unwrap());
            }
        }
    }

    /// Masks at the edges of blocks.
    #[test]
    fn masks() {
        assert_eq!(touched(0, 1), 1);
        assert_eq!(touched(4095, 4097), 3);
        assert_eq!(touched(0, CHUNK), u16::MAX);
        assert_eq!(covered(1, 8192), 2);
        assert_eq!(covered(1, 8191), 0);
        assert_eq!(covered(0, CHUNK), u16::MAX);
        assert_eq!(covered(5, 10), 0);
    }
}
