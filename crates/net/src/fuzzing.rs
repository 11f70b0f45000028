//! What the fuzz targets need of this crate's inside.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::frame::Deframer;

/// Cuts a stream that comes in pieces into messages; and whether it may go on or end so.
pub fn cut<'a>(
    max_bytes: usize,
    awaits_welcome: bool,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Bytes>, bool) {
    let mut deframer = Deframer::new(max_bytes, awaits_welcome.then_some(0));
    let mut out = VecDeque::new();
    let fed = pieces
        .into_iter()
        .try_for_each(|piece| deframer.feed(piece, &mut out));
    (out.into(), fed.is_ok() && deframer.is_between())
}
