//! What the fuzz targets need of this crate's inside.

use std::collections::VecDeque;

use bytes::Bytes;
use quorate_wire::EpochCertificate;

use crate::frame::{Deframer, Length};

pub use crate::holder::talk::{Answer, Ask, Wanted, Whose};

/// The longest of what a replica and its key holder say to each other.
pub const MAX_TALK_BYTES: usize = crate::holder::MAX_BYTES as usize;

/// Cuts a stream that comes in pieces into messages; and whether it may go on or end so.
pub fn cut<'a>(
    max_bytes: usize,
    awaits_welcome: bool,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Bytes>, bool) {
    feed(
        Deframer::new(max_bytes, awaits_welcome.then_some(Length::Exactly(0))),
        pieces,
    )
}

/// The same of a stream from a replica that was dialed and has a certificate, which is the first message; an empty one is a notice.
pub fn cut_certified<'a>(
    max_bytes: usize,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Bytes>, bool) {
    let mut deframer = Deframer::new(max_bytes, Some(Length::Exactly(EpochCertificate::BYTES)));
    deframer.takes_notices = true;
    feed(deframer, pieces)
}

fn feed<'a>(
    mut deframer: Deframer,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Bytes>, bool) {
    let mut out = VecDeque::new();
    let fed = pieces
        .into_iter()
        .try_for_each(|piece| deframer.feed(piece, &mut out));
    (out.into(), fed.is_ok() && deframer.is_between())
}
