//! What the fuzz targets need of this crate's inside.

use std::collections::VecDeque;

use bytes::Bytes;
use quorate_wire::{Counters, EpochCertificate, PublicKey};

use crate::epochs::Epochs;
use crate::frame::{Deframer, Length};
use crate::group::Group;
use crate::holder::counter;

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

/// The same of a stream from somebody who dials a group with an owner: a credential or a certificate is the first message, of up to `first_bytes`.
pub fn cut_guest<'a>(
    max_bytes: usize,
    first_bytes: usize,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Bytes>, bool) {
    feed(
        Deframer::new(max_bytes, Some(Length::UpTo(first_bytes))),
        pieces,
    )
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

/// The numbers in a file of the certificates that were seen in a group with key holders, if it is whole.
pub fn epochs(group: &Group, text: &str) -> Option<Vec<u64>> {
    Epochs::of(group)?.parse(text)
}

/// The file that says these numbers; none in a group without key holders.
pub fn epochs_text(group: &Group, highest: Vec<u64>) -> Option<String> {
    Some(Epochs::of(group)?.text(&Counters::from_highest(highest)))
}

/// The key and the number in a key holder's counter, if it is whole.
pub fn counter(text: &str) -> Option<(PublicKey, u64)> {
    counter::parse(text)
}

/// The counter that says this number.
pub fn counter_text(key: &PublicKey, counter: u64) -> String {
    counter::text(key, counter)
}
