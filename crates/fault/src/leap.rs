//! A primary that looks busy: something of its is always in flight, far ahead, while what leads there comes late.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use quorate_wire::message::{PeerMessage, PrePrepare};
use quorate_wire::{ReplicaId, Seq};

use crate::{Sent, now};

/// How far ahead: half of the window, so that it is inside of it wherever the low water mark is.
const AHEAD: u64 = 128;
/// How late the rest is, in milliseconds: earlier than any time-out.
const LATE_MS: u64 = 200;

/// The place far ahead that each replica was last shown.
#[derive(Debug, Default)]
pub(crate) struct Leaper(BTreeMap<ReplicaId, Seq>);

impl Leaper {
    pub fn for_peer(&mut self, to: ReplicaId, message: PeerMessage) -> Sent<PeerMessage> {
        let PeerMessage::PrePrepare(m) = message else {
            return now(message);
        };
        let mut sent = Vec::new();
        if self.0.get(&to).is_none_or(|far| m.seq >= *far) {
            let far = Seq(m.seq.0.saturating_add(AHEAD));
            self.0.insert(to, far);
            let ahead = PrePrepare {
                seq: far,
                ..m.clone()
            };
            sent.push((PeerMessage::PrePrepare(ahead), 0));
        }
        sent.push((PeerMessage::PrePrepare(m), LATE_MS));
        sent
    }
}
