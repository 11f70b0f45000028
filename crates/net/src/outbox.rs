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
    /// Bytes that wait, those that are lent among them.
    bytes: usize,
    /// Bytes and segments that are lent.
    lent: (usize, usize),
}

impl Outbox {
    pub fn new(limits: OutboxLimits) -> Outbox {
        Outbox {
            limits,
            segments: VecDeque::new(),
            bytes: 0,
            lent: (0, 0),
        }
    }

    /// Whether nothing waits that is not lent.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Bytes that wait, those that are lent among them.
    pub fn waiting_bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes that wait and are not lent.
    pub fn idle_bytes(&self) -> usize {
        self.bytes - self.lent.0
    }

    /// Queues a frame; false if it was dropped.
    pub fn push(&mut self, frame: &Frame) -> bool {
        let bytes = frame.wire_bytes();
        let count = self.segments.len() + self.lent.1 + frame.count();
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

    /// Takes out what is to be sealed elsewhere: from the first segment on, `most` bytes and what the last one has beyond. It counts here
    /// until it is given back.
    pub fn lend(&mut self, most: usize) -> Outbox {
        let mut lent = Outbox::new(self.limits);
        while lent.bytes < most
            && let Some(segment) = self.segments.pop_front()
        {
            lent.bytes += segment.len();
            lent.segments.push_back(segment);
        }
        self.lent = (lent.bytes, lent.segments.len());
        lent
    }

    /// Takes back what is left of what was lent: it goes before all that came since.
    pub fn give_back(&mut self, mut left: Outbox) {
        self.bytes = self.idle_bytes() + left.bytes;
        self.lent = (0, 0);
        left.segments.append(&mut self.segments);
        self.segments = left.segments;
    }

    /// Lets go of all that is not lent, and takes nothing more. Says how much that was.
    pub fn close(&mut self) -> usize {
        let dropped = self.idle_bytes();
        self.limits = OutboxLimits {
            bytes: 0,
            frames: 0,
        };
        self.segments = VecDeque::new();
        self.bytes = self.lent.0;
        dropped
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

    /// What is lent counts until it is back; what is left of it comes first then.
    #[test]
    fn what_is_lent_counts() {
        let mut outbox = Outbox::new(OutboxLimits {
            bytes: 1000,
            frames: 4,
        });
        assert!([100, 200, 300].iter().all(|n| outbox.push(&frame(*n))));
        let mut lent = outbox.lend(105);
        assert_eq!(lent.waiting_bytes(), 104 + 204, "whole segments");
        assert_eq!((outbox.waiting_bytes(), outbox.idle_bytes()), (612, 304));
        assert!(!outbox.push(&frame(390)), "too many bytes");
        assert!(outbox.push(&frame(10)));
        assert!(!outbox.push(&frame(10)), "too many");
        let mut got = take(&mut lent, 120);
        outbox.give_back(lent);
        assert_eq!(outbox.waiting_bytes(), 188 + 304 + 14);
        assert_eq!(outbox.waiting_bytes(), outbox.idle_bytes());
        got.extend(take(&mut outbox, 10_000));
        let frames = [100, 200, 300, 10].map(frame);
        let sent: Vec<u8> = frames
            .iter()
            .flat_map(Frame::segments)
            .flat_map(|s| s.to_vec())
            .collect();
        assert_eq!(got, sent);
        assert!(outbox.push(&frame(990)), "there is room again");
    }

    /// An outbox that is closed lets go of all but what is lent, and takes nothing.
    #[test]
    fn a_closed_outbox_takes_nothing() {
        let mut outbox = Outbox::new(OutboxLimits {
            bytes: 1000,
            frames: 4,
        });
        assert!([100, 200].iter().all(|n| outbox.push(&frame(*n))));
        let lent = outbox.lend(100);
        assert_eq!(outbox.close(), 204);
        assert_eq!((outbox.waiting_bytes(), outbox.idle_bytes()), (104, 0));
        assert!(!outbox.push(&frame(10)));
        outbox.give_back(lent);
        assert_eq!(outbox.close(), 104);
        assert!(outbox.is_empty() && outbox.waiting_bytes() == 0);
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
