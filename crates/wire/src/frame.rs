//! Frames of the write-ahead log: what a torn or lost write leaves behind is told apart from a whole record.
//!
//! A frame is: length of the payload (`u32`), CRC-32 over index and payload (`u32`), index (`u64`), payload. A length
//! of 0 ends a segment, since new segments are filled with zeros. Integers are little-endian.

use alloc::vec::Vec;
use bytes::Bytes;

use crate::ids::LogIndex;
use crate::message::MAX_FRAME_BYTES;

/// Bytes before the payload.
pub const HEADER_BYTES: usize = 16;

/// Why reading frames stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// At the end of what was written.
    Clean,
    /// At a frame that was not written whole, or was changed since.
    Torn,
}

/// Appends one frame.
pub fn write(out: &mut Vec<u8>, index: LogIndex, payload: &[u8]) {
    assert!(!payload.is_empty() && payload.len() <= MAX_FRAME_BYTES);
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&checksum(index, payload).to_le_bytes());
    out.extend_from_slice(&index.0.to_le_bytes());
    out.extend_from_slice(payload);
}

/// Reads the frames of a segment up to the first that is not whole.
pub fn read(segment: &Bytes) -> (Vec<(LogIndex, Bytes)>, End) {
    let mut frames = Vec::new();
    let mut at = 0;
    loop {
        let Some(header) = segment.get(at..at + HEADER_BYTES) else {
            let clean = segment[at..].iter().all(|&b| b == 0);
            return (frames, if clean { End::Clean } else { End::Torn });
        };
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        if length == 0 {
            let clean = header.iter().all(|&b| b == 0);
            return (frames, if clean { End::Clean } else { End::Torn });
        }
        let crc = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        let mut index = [0; 8];
        index.copy_from_slice(&header[8..16]);
        let index = LogIndex(u64::from_le_bytes(index));
        let start = at + HEADER_BYTES;
        if length > MAX_FRAME_BYTES || segment.len() - start < length {
            return (frames, End::Torn);
        }
        let payload = segment.slice(start..start + length);
        if checksum(index, &payload) != crc {
            return (frames, End::Torn);
        }
        frames.push((index, payload));
        at = start + length;
    }
}

fn checksum(index: LogIndex, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&index.0.to_le_bytes());
    hasher.update(payload);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    /// Whatever prefix of the bytes survives, exactly the whole frames in it come back.
    #[test]
    fn a_torn_tail_costs_the_torn_frame_alone() {
        let payloads: [&[u8]; 3] = [b"a", b"some more", &[7; 100]];
        let mut bytes = Vec::new();
        let mut ends = vec![0];
        for (i, payload) in payloads.iter().enumerate() {
            write(&mut bytes, LogIndex(i as u64), payload);
            ends.push(bytes.len());
        }
        for cut in 0..=bytes.len() {
            let (frames, end) = read(&Bytes::copy_from_slice(&bytes[..cut]));
            let whole = ends.iter().filter(|&&e| e <= cut).count() - 1;
            assert_eq!(frames.len(), whole);
            assert_eq!(end == End::Clean, ends.contains(&cut), "cut at {cut}");
        }
    }

    /// A changed byte anywhere in a frame ends the log before it.
    #[test]
    fn a_changed_byte_is_found() {
        let mut bytes = Vec::new();
        write(&mut bytes, LogIndex(1), b"first");
        let second = bytes.len();
        write(&mut bytes, LogIndex(2), b"second");
        for at in second..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            let (frames, end) = read(&Bytes::from(damaged));
            assert_eq!((frames.len(), end), (1, End::Torn), "byte {at}");
        }
    }
}
