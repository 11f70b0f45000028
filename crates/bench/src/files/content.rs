//! What files hold: bytes that look random, follow from a number, and are known at each offset without the rest.

use anyhow::{Result, bail};

/// What one file holds, or one version of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content(u64);

const WORD: usize = 8;
/// Checked so much at a time.
const STEP: usize = 4096;

impl Content {
    /// The content with this number, and this version of it.
    pub fn of(number: u64, version: u64) -> Content {
        Content(mix(number ^ mix(version)))
    }

    /// Writes the bytes from `offset` on.
    pub fn fill(self, offset: u64, mut out: &mut [u8]) {
        let (mut word, skip) = (offset / WORD as u64, (offset % WORD as u64) as usize);
        if skip > 0 {
            let (head, rest) = out.split_at_mut((WORD - skip).min(out.len()));
            head.copy_from_slice(&self.word(word)[skip..skip + head.len()]);
            (out, word) = (rest, word + 1);
        }
        let (words, tail) = out.as_chunks_mut::<WORD>();
        for out in words {
            *out = self.word(word);
            word += 1;
        }
        tail.copy_from_slice(&self.word(word)[..tail.len()]);
    }

    /// The bytes from `offset` on.
    pub fn bytes(self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.fill(offset, &mut out);
        out
    }

    /// Whether these are the bytes from `offset` on.
    ///
    /// # Errors
    /// Where they are not: the file system has lost or changed what was written.
    pub fn check(self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut wanted = [0; STEP];
        for (at, part) in (offset..).step_by(STEP).zip(bytes.chunks(STEP)) {
            let wanted = &mut wanted[..part.len()];
            self.fill(at, wanted);
            if wanted != part {
                bail!("what was read at {at} is not what was written");
            }
        }
        Ok(())
    }

    fn word(self, at: u64) -> [u8; WORD] {
        mix(self.0.wrapping_add(at)).to_le_bytes()
    }
}

/// Splitmix64's step and finalizer.
pub(super) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any part is what the whole has there; another byte, place, number or version is noticed.
    #[test]
    fn parts_are_parts_of_the_whole() {
        let content = Content::of(7, 1);
        let whole = content.bytes(0, 10_000);
        for (offset, len) in [(0, 0), (3, 2), (5, 11), (8, 8), (4093, 5000), (9999, 1)] {
            let part = content.bytes(offset as u64, len);
            assert_eq!(part, whole[offset..offset + len], "{offset}, {len}");
            content.check(offset as u64, &part).unwrap();
        }
        assert!(content.check(8, &whole[..5000]).is_err());
        assert!(Content::of(7, 2).check(0, &whole).is_err());
        assert!(Content::of(8, 1).check(0, &whole).is_err());
        let mut wrong = whole.clone();
        wrong[9_999] ^= 1;
        assert!(content.check(0, &wrong).is_err());
    }
}
