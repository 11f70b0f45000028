//! What waits to be written to one link: bounded in bytes and count, and never waited for.
//!
//! The protocol bears loss, since replicas and clients ask again for what they lack. So a message that
//! finds the queue full is dropped, and a slow or dead peer costs the others nothing.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

use crate::frame::Frame;

/// Pieces that are sealed together.
const PIECES: usize = 64;

/// How much may wait on a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutboxLimits {
    pub bytes: usize,
    pub frames: usize,
}

/// The queue of one link. Frames are shared with other links and never copied here.
#[derive(Debug)]
pub(crate) struct Outbox {
    limits: OutboxLimits,
    /// The segments of frames: of most it is one, and each counts as a frame.
    segments: VecDeque<Bytes>,
    bytes: usize,
}

impl Outbox {
    pub fn new(limits: OutboxLimits) -> Outbox {
        Outbox {
            limits,
            segments: VecDeque::new(),
            bytes: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Bytes that wait.
    pub fn waiting_bytes(&self) -> usize {
        self.bytes
    }

    /// Queues a frame; false if it was dropped.
    pub fn push(&mut self, frame: &Frame) -> bool {
        let bytes = frame.wire_bytes();
        let count = self.segments.len() + frame.count();
        if count > self.limits.frames || self.bytes + bytes > self.limits.bytes {
            return false;
        }
        self.bytes += bytes;
        self.segments.extend(frame.segments().cloned());
        true
    }

    /// Gives the first pieces, up to `most` bytes, to `seal`, which says how many it has taken; returns that.
    pub fn take<E>(
        &mut self,
        most: usize,
        seal: impl FnOnce(&[IoSlice<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let mut pieces = [IoSlice::new(&[]); PIECES];
        let (mut count, mut left) = (0, most);
        for (piece, segment) in pieces.iter_mut().zip(&self.segments) {
            if left == 0 {
                break;
            }
            let part = &segment[..segment.len().min(left)];
            *piece = IoSlice::new(part);
            left -= part.len();
            count += 1;
        }
        let taken = seal(&pieces[..count])?;
        self.advance(taken);
        Ok(taken)
    }

    fn advance(&mut self, mut taken: usize) {
        self.bytes -= taken;
        while let Some(first) = self.segments.front_mut() {
            if taken < first.len() {
                first.advance(taken);
                return;
            }
            taken -= first.len();
            self.segments.pop_front();
        }
        if self.segments.capacity() > 4 * PIECES {
            self.segments = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(bytes: usize) -> Frame {
        Frame::encode(&vec![7u8; bytes - 4])
    }

    fn take(outbox: &mut Outbox, most: usize) -> Vec<u8> {
        let mut got = Vec::new();
        let all = |pieces: &[IoSlice<'_>]| {
            got = pieces.iter().flat_map(|p| p.to_vec()).collect();
            Ok::<_, ()>(got.len())
        };
        outbox.take(most, all).unwrap();
        got
    }

    /// A full queue drops what is new and keeps what is old; what was taken makes room.
    #[test]
    fn a_full_queue_drops() {
        let mut outbox = Outbox::new(OutboxLimits {
            bytes: 1000,
            frames: 3,
        });
        assert!((0..3).all(|_| outbox.push(&frame(100))));
        assert!(!outbox.push(&frame(100)), "too many");
        assert_eq!(take(&mut outbox, 10_000).len(), 3 * 104);
        assert!(outbox.is_empty());
        assert!(outbox.push(&frame(900)));
        assert!(!outbox.push(&frame(100)), "too many bytes");
    }

    /// The bytes come out in order, however they are cut.
    #[test]
    fn bytes_leave_in_order() {
        for most in [1, 7, 50, 1000] {
            let mut outbox = Outbox::new(OutboxLimits {
                bytes: 10_000,
                frames: 200,
            });
            let frames: Vec<_> = (0..150u64).map(|n| Frame::encode(&n)).collect();
            assert!(frames.iter().all(|f| outbox.push(f)));
            let mut got = Vec::new();
            while !outbox.is_empty() {
                got.extend(take(&mut outbox, most));
            }
            let sent: Vec<u8> = frames
                .iter()
                .flat_map(Frame::segments)
                .flat_map(|s| s.to_vec())
                .collect();
            assert_eq!(got, sent);
        }
    }
}
