//! What waits to be written to one link: bounded in bytes and count, and never waited for.
//!
//! The protocol bears loss, since replicas and clients ask again for what they lack. So a message that
//! finds the queue full is dropped and counted, and a slow or dead peer costs the others nothing.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use quorate_wire::Encode;
use quorate_wire::message::MAX_FRAME_BYTES;
use tokio::sync::Notify;

/// Bytes of the length before each message.
pub(crate) const LENGTH_BYTES: usize = 4;
/// Frames from this size on are written as they lie; copying them together would cost more than it saves.
const LARGE_BYTES: usize = 64 << 10;
/// How much is copied together for one write.
const GATHER_BYTES: usize = 256 << 10;

/// A message in the form in which links carry it: encoded once, however many peers it goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame(Bytes);

impl Frame {
    /// Encodes a message of at most [`MAX_FRAME_BYTES`].
    pub fn encode(message: &impl Encode) -> Frame {
        let mut out = vec![0; LENGTH_BYTES];
        message.encode(&mut out);
        let length = out.len() - LENGTH_BYTES;
        assert!(
            (1..=MAX_FRAME_BYTES).contains(&length),
            "a message of {length} bytes fits no frame"
        );
        out[..LENGTH_BYTES].copy_from_slice(&(length as u32).to_le_bytes());
        Frame(Bytes::from(out))
    }

    /// Bytes on the link, its length included.
    pub fn wire_bytes(&self) -> usize {
        self.0.len()
    }
}

/// How much may wait on a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutboxLimits {
    pub bytes: usize,
    pub frames: usize,
}

/// The queue of one connection.
#[derive(Debug)]
pub(crate) struct Outbox {
    limits: OutboxLimits,
    queue: Mutex<Queue>,
    filled: Notify,
    closed: AtomicBool,
    closing: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Bytes>,
    bytes: usize,
}

/// What [`Outbox::take`] found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Nothing,
    /// Small frames, appended to the buffer.
    Gathered,
    Large(Bytes),
}

impl Outbox {
    pub fn new(limits: OutboxLimits) -> Outbox {
        Outbox {
            limits,
            queue: Mutex::default(),
            filled: Notify::new(),
            closed: AtomicBool::new(false),
            closing: Notify::new(),
        }
    }

    /// Queues a frame; false if it was dropped.
    pub fn push(&self, frame: &Frame) -> bool {
        let mut queue = self.lock();
        let full = queue.frames.len() >= self.limits.frames
            || queue.bytes + frame.0.len() > self.limits.bytes;
        if full || self.is_closed() {
            return false;
        }
        queue.bytes += frame.0.len();
        queue.frames.push_back(frame.0.clone());
        drop(queue);
        self.filled.notify_one();
        true
    }

    /// Takes the next frames, as many small ones as one write should carry.
    pub fn take(&self, buffer: &mut Vec<u8>) -> Taken {
        let mut queue = self.lock();
        loop {
            let next = queue.frames.front().map_or(0, Bytes::len);
            let ends = next == 0 || buffer.len() + next > GATHER_BYTES || next >= LARGE_BYTES;
            if ends && !buffer.is_empty() {
                return Taken::Gathered;
            }
            let Some(frame) = queue.frames.pop_front() else {
                return Taken::Nothing;
            };
            queue.bytes -= frame.len();
            if next >= LARGE_BYTES {
                return Taken::Large(frame);
            }
            buffer.extend_from_slice(&frame);
        }
    }

    /// Waits until there may be something to take.
    pub async fn filled(&self) {
        self.filled.notified().await;
    }

    /// Ends the connection, from either of its sides or from outside.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.closing.notify_waiters();
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Waits for [`Outbox::close`].
    pub async fn closed(&self) {
        // In this order: a close after the future is made wakes it, one before it is seen.
        let closing = self.closing.notified();
        if !self.is_closed() {
            closing.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing in here can panic halfway through a change.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(bytes: usize) -> Frame {
        Frame::encode(&vec![7u8; bytes - 4])
    }

    /// A full queue drops what is new and keeps what is old; what was taken makes room.
    #[test]
    fn a_full_queue_drops() {
        let limits = OutboxLimits {
            bytes: 1000,
            frames: 3,
        };
        let outbox = Outbox::new(limits);
        let mut buffer = Vec::new();
        assert!((0..3).all(|_| outbox.push(&frame(100))));
        assert!(!outbox.push(&frame(100)), "too many");
        assert_eq!(outbox.take(&mut buffer), Taken::Gathered);
        assert_eq!(buffer.len(), 3 * 104);
        buffer.clear();
        assert_eq!(outbox.take(&mut buffer), Taken::Nothing);
        assert!(outbox.push(&frame(900)));
        assert!(!outbox.push(&frame(100)), "too many bytes");
    }

    /// Order is kept where small and large frames alternate, and large ones are not copied.
    #[test]
    fn frames_leave_in_order() {
        let outbox = Outbox::new(OutboxLimits {
            bytes: 10 << 20,
            frames: 100,
        });
        let large = frame(LARGE_BYTES);
        assert!([&frame(10), &frame(20), &large, &frame(30)].map(|f| outbox.push(f)) == [true; 4]);
        let mut buffer = Vec::new();
        assert_eq!(outbox.take(&mut buffer), Taken::Gathered);
        assert_eq!(std::mem::take(&mut buffer).len(), 14 + 24);
        assert_eq!(outbox.take(&mut buffer), Taken::Large(large.0));
        assert_eq!(outbox.take(&mut buffer), Taken::Gathered);
        assert_eq!(buffer.len(), 34);
    }

    /// A closed queue takes nothing more and says so to who waits.
    #[tokio::test]
    async fn closing_is_seen() {
        let outbox = Outbox::new(OutboxLimits {
            bytes: 100,
            frames: 3,
        });
        outbox.close();
        outbox.closed().await;
        assert!(!outbox.push(&frame(10)));
    }
}
