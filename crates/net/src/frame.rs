//! Messages in a stream of bytes: a length (`u32`, little-endian) and that many bytes, again and again.
//!
//! A length of 0 is no message. Once, at the start, the accepting side sends it as a welcome, so that the
//! dialer knows that it was let in: in TLS 1.3 a client's handshake ends before the server has judged its key.
//!
//! Where replicas have epoch keys, a replica's first frame is the certificate of its key, which is the welcome as well where it
//! accepts. There a length of 0 comes later, from the accepting side: it has a new key, and asks that the link be made anew.
//!
//! The first frame of a guest, who dials, is its credential (`guests.rs`).

use std::collections::VecDeque;
use std::fmt;
use std::io;

use bytes::{Bytes, BytesMut};
use quorate_credential::Refusal;
use quorate_wire::message::MAX_FRAME_BYTES;
use quorate_wire::segments::SHARED_FROM;
use quorate_wire::{DecodeError, Encode, SegmentWriter};

use crate::epochs::CertificateError;

/// Bytes of the length before each message.
const LENGTH_BYTES: usize = 4;
/// Votes and short replies are no longer.
const SMALL_BYTES: usize = 160;

/// A message in the form in which links carry it: encoded once, however many peers it goes to.
#[derive(Clone, Debug)]
pub struct Frame {
    /// With the length before it.
    first: Bytes,
    /// What comes after that, where long strings are not copied into the frame.
    rest: Vec<Bytes>,
}

impl Frame {
    /// Encodes a message of at most [`MAX_FRAME_BYTES`].
    pub fn encode(message: &impl Encode) -> Frame {
        let mut out = Vec::with_capacity(SMALL_BYTES + message.string_bytes());
        out.extend_from_slice(&[0; LENGTH_BYTES]);
        message.encode(&mut out);
        Frame::finish(out, Vec::new())
    }

    /// The same frame, which shares the memory of the message's long strings: it is not copied, and not given back before the frame is written.
    pub fn encode_shared(message: &impl Encode) -> Frame {
        if message.string_bytes() < SHARED_FROM {
            return Frame::encode(message);
        }
        let mut first = Vec::with_capacity(SMALL_BYTES);
        first.extend_from_slice(&[0; LENGTH_BYTES]);
        let mut out = SegmentWriter::after(first);
        message.encode_shared(&mut out);
        let (first, rest) = out.end();
        Frame::finish(first, rest)
    }

    /// A message that is encoded already.
    pub(crate) fn of_bytes(message: &[u8]) -> Frame {
        let out = [&[0; LENGTH_BYTES][..], message].concat();
        Frame::finish(out, Vec::new())
    }

    fn finish(mut first: Vec<u8>, rest: Vec<Bytes>) -> Frame {
        let length = first.len() - LENGTH_BYTES + rest.iter().map(Bytes::len).sum::<usize>();
        assert!(
            (1..=MAX_FRAME_BYTES).contains(&length),
            "a message of {length} bytes fits no frame"
        );
        first[..LENGTH_BYTES].copy_from_slice(&(length as u32).to_le_bytes());
        Frame {
            first: Bytes::from(first),
            rest,
        }
    }

    /// What tells a dialer that it is let in.
    pub(crate) fn welcome() -> Frame {
        Frame {
            first: Bytes::from_static(&[0; LENGTH_BYTES]),
            rest: Vec::new(),
        }
    }

    /// What asks the dialer to make the link anew.
    pub(crate) fn notice() -> Frame {
        Frame::welcome()
    }

    /// Bytes on the link, its length included.
    pub fn wire_bytes(&self) -> usize {
        self.first.len() + self.rest.iter().map(Bytes::len).sum::<usize>()
    }

    /// Its bytes, piece by piece.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &Bytes> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// How many pieces these are.
    pub(crate) fn count(&self) -> usize {
        1 + self.rest.len()
    }

    /// Whether it shares memory with the message that it is made of.
    pub(crate) fn is_shared(&self) -> bool {
        !self.rest.is_empty()
    }

    /// The same with memory of its own.
    pub(crate) fn unshared(&self) -> Frame {
        let parts: Vec<&[u8]> = self.segments().map(|part| &part[..]).collect();
        Frame {
            first: parts.concat().into(),
            rest: Vec::new(),
        }
    }
}

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum LinkEnd {
    /// The peer closed it between two frames.
    Closed,
    /// It was closed on this side.
    ClosedHere,
    /// The environment's fault, or the peer's.
    Io(io::Error),
    /// The peer closed it within a frame.
    Truncated,
    /// It was not there in time.
    TooSlow,
    /// All clients together have more than there is memory for, and it has most.
    TooMuch,
    /// The peer's bytes are not TLS, or it is not who it should be, or it says so of us.
    Tls(rustls::Error),
    /// The peer speaks another protocol, or does not say who it is.
    AnotherProtocol,
    /// The peer announced a frame of no or too many bytes.
    BadLength(usize),
    /// The peer sent records that bring no message, more than any correct one does.
    Barren,
    /// The peer sent bytes that are no message.
    Malformed(DecodeError),
    /// The peer's certificate does not make its key a replica's.
    Certificate(CertificateError),
    /// The peer's credential does not make it a guest.
    Credential(Refusal),
}

impl LinkEnd {
    /// Whether the peer broke the rules.
    pub fn is_misbehaviour(&self) -> bool {
        match self {
            LinkEnd::Closed | LinkEnd::ClosedHere | LinkEnd::Io(_) => false,
            LinkEnd::Truncated | LinkEnd::TooSlow | LinkEnd::TooMuch => false,
            LinkEnd::Tls(_) | LinkEnd::AnotherProtocol => true,
            LinkEnd::BadLength(_) | LinkEnd::Malformed(_) | LinkEnd::Barren => true,
            LinkEnd::Certificate(CertificateError::NotKept(_) | CertificateError::TooSoon) => false,
            LinkEnd::Certificate(_) => true,
            LinkEnd::Credential(_) => true,
        }
    }
}

impl fmt::Display for LinkEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkEnd::Closed => write!(f, "the peer closed the connection"),
            LinkEnd::ClosedHere => write!(f, "closed here"),
            LinkEnd::Io(e) => write!(f, "{e}"),
            LinkEnd::Truncated => write!(f, "the connection ended within a message"),
            LinkEnd::TooSlow => write!(f, "the peer did not answer in time"),
            LinkEnd::TooMuch => {
                write!(f, "it had most of what filled the memory for all clients")
            }
            LinkEnd::Tls(e) => write!(f, "{e}"),
            LinkEnd::AnotherProtocol => write!(f, "the peer speaks another protocol"),
            LinkEnd::BadLength(n) => write!(f, "the peer announced a message of {n} bytes"),
            LinkEnd::Barren => write!(f, "the peer sends records that bring no message"),
            LinkEnd::Malformed(e) => write!(f, "the peer sent a malformed message: {e}"),
            LinkEnd::Certificate(e) => write!(f, "the peer's certificate is refused: {e}"),
            LinkEnd::Credential(e) => write!(f, "the peer's credential is refused: {e}"),
        }
    }
}

/// How long a first frame must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    Exactly(usize),
    /// From one byte to so many.
    UpTo(usize),
}

impl Length {
    fn allows(self, bytes: usize) -> bool {
        match self {
            Length::Exactly(all) => bytes == all,
            Length::UpTo(most) => (1..=most).contains(&bytes),
        }
    }
}

/// Cuts a stream of bytes into messages.
#[derive(Debug)]
pub(crate) struct Deframer {
    max_bytes: usize,
    /// What the first length must be, until that frame is there.
    pub opening: Option<Length>,
    /// Whether a length of 0 may come later; an empty message tells of it.
    pub takes_notices: bool,
    /// The first bytes of a length that is not whole.
    head: [u8; LENGTH_BYTES],
    head_bytes: usize,
    /// A message that is not whole, and how much of it is missing.
    body: BytesMut,
    missing: usize,
}

impl Deframer {
    pub fn new(max_bytes: usize, opening: Option<Length>) -> Deframer {
        Deframer {
            max_bytes,
            opening,
            takes_notices: false,
            head: [0; LENGTH_BYTES],
            head_bytes: 0,
            body: BytesMut::new(),
            missing: 0,
        }
    }

    /// Whether the stream may end here.
    pub fn is_between(&self) -> bool {
        self.head_bytes == 0 && self.missing == 0
    }

    /// Bytes of a message that is not whole.
    pub fn partial_bytes(&self) -> usize {
        self.body.len()
    }

    /// Bytes that are missing of it.
    pub fn missing_bytes(&self) -> usize {
        self.missing
    }

    /// Forgets the message that is not whole; the stream can't be gone on with.
    pub fn clear(&mut self) {
        self.body = BytesMut::new();
    }

    /// Takes bytes in, and appends the messages that are whole now. Each has memory of its own: a slice of a common buffer
    /// would keep all of it.
    pub fn feed(&mut self, mut input: &[u8], out: &mut VecDeque<Bytes>) -> Result<(), LinkEnd> {
        while !input.is_empty() {
            if self.missing > 0 {
                let (part, rest) = input.split_at(self.missing.min(input.len()));
                self.body.extend_from_slice(part);
                self.missing -= part.len();
                input = rest;
                if self.missing == 0 {
                    out.push_back(std::mem::take(&mut self.body).freeze());
                    self.opening = None;
                }
                continue;
            }
            let part = (LENGTH_BYTES - self.head_bytes).min(input.len());
            self.head[self.head_bytes..][..part].copy_from_slice(&input[..part]);
            self.head_bytes += part;
            input = &input[part..];
            if self.head_bytes < LENGTH_BYTES {
                break;
            }
            self.head_bytes = 0;
            let length = u32::from_le_bytes(self.head) as usize;
            let is_good = match self.opening {
                Some(first) => first.allows(length),
                None if length == 0 => self.takes_notices,
                None => length <= self.max_bytes,
            };
            if !is_good {
                return Err(LinkEnd::BadLength(length));
            }
            if length == 0 {
                let is_welcome = self.opening.take().is_some();
                // Several in a row say no more than one.
                if !is_welcome && out.back().is_none_or(|last| !last.is_empty()) {
                    out.push_back(Bytes::new());
                }
                continue;
            }
            if let Some((whole, rest)) = input.split_at_checked(length) {
                out.push_back(Bytes::copy_from_slice(whole));
                self.opening = None;
                input = rest;
            } else {
                // What is announced and does not come costs address space, not memory.
                self.body = BytesMut::with_capacity(length);
                self.missing = length;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(payload: &[u8]) -> Vec<u8> {
        let mut out = (payload.len() as u32).to_le_bytes().to_vec();
        out.extend_from_slice(payload);
        out
    }

    /// A frame that shares long strings has the bytes of the one that copies them, and so has what is made of it where that may not be.
    #[test]
    fn a_shared_frame_has_the_same_bytes() {
        let bytes = |frame: &Frame| {
            frame
                .segments()
                .flat_map(|s| s.to_vec())
                .collect::<Vec<u8>>()
        };
        for length in [0, 1, SHARED_FROM - 1, SHARED_FROM, 1 << 20] {
            let long = Bytes::from(vec![7_u8; length]);
            let message = (
                (9_u32, long.clone()),
                (long.clone(), vec![long.clone(), long.clone()]),
            );
            let (copied, shared) = (Frame::encode(&message), Frame::encode_shared(&message));
            assert_eq!(bytes(&copied), framed(&message.to_bytes()));
            assert_eq!(bytes(&shared), bytes(&copied));
            assert_eq!(shared.wire_bytes(), copied.wire_bytes());
            assert!(!copied.is_shared() && shared.is_shared() == (length >= SHARED_FROM));
            let own = shared.unshared();
            assert!(!own.is_shared() && bytes(&own) == bytes(&copied));
        }
    }

    /// However the bytes are cut, the messages that come out are those that went in.
    #[test]
    fn whole_messages_come_out() {
        let messages: Vec<Vec<u8>> = [1, 5, 300, 2].map(|n| vec![n as u8; n]).to_vec();
        let stream: Vec<u8> = messages.iter().flat_map(|m| framed(m)).collect();
        for step in 1..stream.len() {
            let (mut deframer, mut out) = (Deframer::new(300, None), VecDeque::new());
            for piece in stream.chunks(step) {
                deframer.feed(piece, &mut out).unwrap();
            }
            assert!(deframer.is_between());
            assert!(out.iter().eq(messages.iter()), "in steps of {step}");
        }
        let (mut deframer, mut out) = (Deframer::new(300, None), VecDeque::new());
        deframer.feed(&stream[..3], &mut out).unwrap();
        assert!(!deframer.is_between() && out.is_empty());
        deframer.feed(&stream[3..8], &mut out).unwrap();
        assert!(!deframer.is_between() && out.len() == 1);
    }

    /// However many records bring a long message, it is put together in memory that was asked for once, and comes out as that.
    #[test]
    fn a_long_message_has_its_memory_at_once() {
        const LENGTH: usize = 1 << 20;
        let message: Vec<u8> = (0..LENGTH).map(|at| (at >> 8) as u8).collect();
        let stream = framed(&message);
        for step in [1_000, 4_096, 16_384, 65_536] {
            let (mut deframer, mut out) = (Deframer::new(LENGTH, None), VecDeque::new());
            let mut pieces = stream.chunks(step);
            deframer.feed(pieces.next().unwrap(), &mut out).unwrap();
            let memory = deframer.body.as_ptr();
            for piece in pieces {
                assert!(deframer.body.capacity() >= LENGTH);
                deframer.feed(piece, &mut out).unwrap();
            }
            let whole = out.pop_front().expect("it is whole");
            assert!(whole == message && out.is_empty());
            assert_eq!(whole.as_ptr(), memory, "in steps of {step}");
        }
    }

    /// Lengths of nothing and of too much are no messages; a welcome is one length of nothing, at the start.
    #[test]
    fn bad_lengths_are_refused() {
        for length in [0u32, 301, u32::MAX] {
            let mut deframer = Deframer::new(300, None);
            let end = deframer.feed(&length.to_le_bytes(), &mut VecDeque::new());
            assert!(matches!(end, Err(LinkEnd::BadLength(n)) if n == length as usize));
        }
        let mut deframer = Deframer::new(300, Some(Length::Exactly(0)));
        let mut out = VecDeque::new();
        deframer.feed(&[0; 4], &mut out).unwrap();
        assert!(deframer.opening.is_none() && out.is_empty());
        assert!(deframer.feed(&[0; 4], &mut out).is_err());
        let mut deframer = Deframer::new(300, Some(Length::Exactly(0)));
        assert!(deframer.feed(&framed(b"hello"), &mut out).is_err());
    }

    /// A first frame of a certain length comes whole before all others, whatever the bound on those is; and notices are told of once.
    #[test]
    fn an_opening_has_its_length() {
        for step in 1..20 {
            let mut deframer = Deframer::new(2, Some(Length::Exactly(5)));
            deframer.takes_notices = true;
            let stream = [
                &framed(b"hello")[..],
                &framed(b"a"),
                &[0; 12],
                &framed(b"b"),
            ]
            .concat();
            let mut out = VecDeque::new();
            for piece in stream.chunks(step) {
                deframer.feed(piece, &mut out).unwrap();
            }
            let expected: [&[u8]; 4] = [b"hello", b"a", b"", b"b"];
            assert!(out.iter().eq(expected.iter()), "in steps of {step}");
        }
        for first in [&[0; 4][..], &framed(b"hell"), &framed(b"hello!")] {
            let mut deframer = Deframer::new(300, Some(Length::Exactly(5)));
            assert!(deframer.feed(first, &mut VecDeque::new()).is_err());
            assert!(deframer.opening.is_some());
        }
        // Nothing may follow where nobody has been let in.
        let mut deframer = Deframer::new(0, Some(Length::Exactly(5)));
        let two = [framed(b"hello"), framed(b"x")].concat();
        assert!(deframer.feed(&two, &mut VecDeque::new()).is_err());
    }
}
