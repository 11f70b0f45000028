//! The donor's side.

use alloc::vec::Vec;

use bytes::Bytes;
use quorate_wire::Seq;
use quorate_wire::message::MAX_FRAME_BYTES;
use quorate_wire::message::transfer::{Nodes, StateMessage, Values};

use super::{MAX_KEYS, MAX_PATHS, REPLY_BYTES};
use crate::snapshot::{Fault, Snapshot};
use crate::tree::DEPTH;

/// Room for what surrounds the pieces in a frame.
const FRAME_ROOM: usize = 4 << 10;

/// The answer to a peer that catches up, from the snapshot of `checkpoint`; `None` for what calls for no answer.
///
/// Work and answer are bounded whatever is asked: pieces beyond [`REPLY_BYTES`] are left out, and the peer asks again.
/// A peer that asks for what this checkpoint does not hold gets nothing for it.
///
/// # Errors
/// [`Fault`] where the store fails.
pub fn serve(
    snapshot: &dyn Snapshot,
    checkpoint: Seq,
    message: &StateMessage,
) -> Result<Option<StateMessage>, Fault> {
    let reply = match message {
        StateMessage::GetNodes(ask) if ask.checkpoint == checkpoint => {
            let paths = ask.paths.iter().take(MAX_PATHS);
            let paths = paths.filter(|path| path.len() <= DEPTH);
            let nodes = gather(paths, |path| snapshot.node(path))?;
            (!nodes.is_empty()).then_some(StateMessage::Nodes(Nodes { checkpoint, nodes }))
        }
        StateMessage::GetValues(ask) if ask.checkpoint == checkpoint => {
            let values = gather(ask.keys.iter().take(MAX_KEYS), |key| snapshot.get(key))?;
            (!values.is_empty()).then_some(StateMessage::Values(Values { checkpoint, values }))
        }
        StateMessage::GetNodes(ask) => Some(StateMessage::NotHere(ask.checkpoint)),
        StateMessage::GetValues(ask) => Some(StateMessage::NotHere(ask.checkpoint)),
        StateMessage::Nodes(_) | StateMessage::Values(_) | StateMessage::NotHere(_) => None,
    };
    Ok(reply)
}

/// The first pieces that fit.
fn gather<'a>(
    asked: impl Iterator<Item = &'a Bytes>,
    get: impl Fn(&[u8]) -> Result<Option<Bytes>, Fault>,
) -> Result<Vec<(Bytes, Bytes)>, Fault> {
    let mut pieces = Vec::new();
    let mut total = 0;
    for name in asked {
        let Some(piece) = get(name)? else {
            continue;
        };
        total += 8 + name.len() + piece.len();
        let limit = match pieces.is_empty() {
            true => MAX_FRAME_BYTES - FRAME_ROOM,
            false => REPLY_BYTES,
        };
        if total > limit {
            break;
        }
        pieces.push((name.clone(), piece));
    }
    Ok(pieces)
}
