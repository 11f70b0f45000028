//! What misleads a replica that recovers, and those who help one: answers to how far the group is, and words of its own that it recovers.

use alloc::vec::Vec;

use quorate_wire::message::{Estimate, PeerMessage, Status};
use quorate_wire::{Seq, View};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

use crate::{Identity, Sent, below, change_to, now};

/// A place or a view that nobody comes to.
const NOWHERE: u64 = 1 << 40;
/// How far ahead what could be true is, at the most.
const NEAR: u64 = 400;
/// How far ahead the views are that it wants to have begun: some nearer than others are led at a time, some farther.
const FAR: u64 = 40;

pub(crate) fn for_peer(
    identity: &Identity,
    rng: &mut ChaCha8Rng,
    message: PeerMessage,
) -> Sent<PeerMessage> {
    match message {
        PeerMessage::Estimate(m) => now(PeerMessage::Estimate(answer(rng, m))),
        PeerMessage::Status(status) => {
            let view = View(status.view.0.saturating_add(1 + below(rng, FAR)));
            let change = PeerMessage::ViewChange(change_to(identity, view));
            let status = match rng.next_u64() % 4 {
                0 => status,
                _ => waiting(status, view),
            };
            Vec::from([(PeerMessage::Status(status), 0), (change, 0)])
        }
        other => now(other),
    }
}

/// Nothing, all, or what could be true; of the view alone, or of places as well.
fn answer(rng: &mut ChaCha8Rng, m: Estimate) -> Estimate {
    let near = |rng: &mut ChaCha8Rng, of: u64| of.saturating_add(below(rng, NEAR));
    match rng.next_u64() % 5 {
        0 => Estimate {
            checkpoint: Seq(NOWHERE),
            prepared: Seq(NOWHERE),
            view: View(NOWHERE),
            ..m
        },
        1 => Estimate {
            checkpoint: Seq(0),
            prepared: Seq(0),
            view: View(0),
            ..m
        },
        2 => Estimate {
            checkpoint: Seq(NOWHERE),
            prepared: Seq(0),
            ..m
        },
        3 => Estimate {
            view: View(near(rng, m.view.0)),
            ..m
        },
        _ => Estimate {
            checkpoint: Seq(near(rng, m.checkpoint.0)),
            prepared: Seq(near(rng, m.prepared.0)),
            view: View(near(rng, m.view.0)),
            ..m
        },
    }
}

/// As if it recovered, and waited for a view and for nothing else.
fn waiting(status: Status, view: View) -> Status {
    Status {
        view,
        active: false,
        recovering: Some(status.stable.max(Seq(1))),
        ..status
    }
}
