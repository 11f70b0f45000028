//! Damaged content for those who fetch it.

use quorate_wire::message::transfer::{Nodes, Values};
use quorate_wire::message::{AuthRequest, Batch, BatchBody, PeerMessage, Request, StateMessage};
use quorate_wire::{RequestNumber, Time};

use crate::lie::other_bytes;

pub(crate) fn for_peer(message: PeerMessage) -> PeerMessage {
    match message {
        PeerMessage::State(StateMessage::Nodes(m)) => {
            let nodes = m.nodes.into_iter().map(|(p, n)| (p, other_bytes(&n)));
            PeerMessage::State(StateMessage::Nodes(Nodes {
                checkpoint: m.checkpoint,
                nodes: nodes.collect(),
            }))
        }
        PeerMessage::State(StateMessage::Values(m)) => {
            let values = m.values.into_iter().map(|(k, v)| (k, other_bytes(&v)));
            PeerMessage::State(StateMessage::Values(Values {
                checkpoint: m.checkpoint,
                values: values.collect(),
            }))
        }
        PeerMessage::Batch(m) => PeerMessage::Batch(BatchBody {
            batch: Batch {
                time: Time(m.batch.time.0 ^ 1),
                ..m.batch
            },
        }),
        PeerMessage::Body(AuthRequest {
            request: m,
            auth,
            replier,
        }) => {
            let number = RequestNumber(m.number().0 ^ 1);
            PeerMessage::Body(AuthRequest {
                request: Request::new(m.client(), m.session(), number, m.op().clone()),
                auth,
                replier,
            })
        }
        other => other,
    }
}
