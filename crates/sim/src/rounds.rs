//! Cuts by round: a round is all messages of one kind about one place in one view, or about one view. In a round that is cut
//! the network falls in two, for all of its messages, also those that are repeated. So cuts fall between the steps of the
//! protocol, where cuts by the clock seldom do. Winter et al., "Randomized Testing of Byzantine Fault Tolerant Algorithms" (ByzzFuzz),
//! OOPSLA 2023. Faults of a process by round are in [`process`].

pub mod process;

use quorate_wire::Decode;
use quorate_wire::message::PeerMessage;

use crate::net::Node;

/// Whether a message does not get from one node to another. It follows from the seed alone.
pub fn is_cut(seed: u64, per_mille: u64, from: Node, to: Node, message: &PeerMessage) -> bool {
    let Some((kind, view, place)) = round(message).filter(|_| per_mille > 0) else {
        return false;
    };
    let round = [kind, view, place]
        .into_iter()
        .fold(mix(seed), |h, n| mix(h ^ n));
    if round % 1000 >= per_mille {
        return false;
    }
    let side = |node: Node| mix(round ^ (node as u64 + 1)) & 1;
    side(from) != side(to)
}

fn round(message: &PeerMessage) -> Option<(u64, u64, u64)> {
    Some(match message {
        PeerMessage::PrePrepare(m) => (1, m.view.0, m.seq.0),
        PeerMessage::Prepare(m) => (2, m.view.0, m.seq.0),
        PeerMessage::Commit(m) => (3, m.view.0, m.seq.0),
        PeerMessage::Committed(m) => (4, 0, m.seq.0),
        PeerMessage::ViewChange(m) => (5, m.body.view.0, 0),
        PeerMessage::NewView(m) => (6, m.body.view.0, 0),
        PeerMessage::Checkpoint(m) => (7, 0, m.seq.0),
        PeerMessage::Signed(m) => {
            return PeerMessage::from_bytes(m.content.clone())
                .ok()
                .and_then(|m| round(&m));
        }
        _ => return None,
    })
}

/// Spreads a number over all 64 bits (the finish of SplitMix64).
pub(crate) fn mix(mut n: u64) -> u64 {
    n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}
