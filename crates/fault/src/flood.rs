//! Far more than anybody needs: each message is followed by many that are valid and of no use.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use quorate_wire::Digest;
use quorate_wire::message::{Fetch, PeerMessage};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

use crate::{Identity, Sent};

/// How many follow a message.
const EACH: usize = 32;
/// How many follow a STATUS, which comes several times in a second whatever else goes on.
const EACH_STATUS: usize = 512;
/// How many earlier messages are kept for use again.
const MEMORY: usize = 256;

/// What was sent before.
#[derive(Debug, Default)]
pub(crate) struct Flooder {
    earlier: VecDeque<PeerMessage>,
    at: usize,
}

impl Flooder {
    pub fn for_peer(
        &mut self,
        identity: &Identity,
        rng: &mut ChaCha8Rng,
        message: PeerMessage,
    ) -> Sent<PeerMessage> {
        let count = match &message {
            PeerMessage::Status(_) => EACH_STATUS,
            // One has as much to do for a short message as for a long one.
            PeerMessage::Prepare(_) | PeerMessage::Commit(_) | PeerMessage::Checkpoint(_) => EACH,
            _ => return Vec::from([(message, 0)]),
        };
        self.earlier.push_back(message.clone());
        // Each message goes to all others.
        if self.earlier.len() > MEMORY * identity.quorum.n() {
            self.earlier.pop_front();
        }
        let mut sent = Vec::with_capacity(1 + count);
        sent.push((message, 0));
        for _ in 0..count {
            self.at = self.at.wrapping_add(1);
            let useless = match self.at % 4 {
                0 => PeerMessage::Fetch(Fetch::Batch(no_digest(rng))),
                _ => {
                    let at = self.at % self.earlier.len();
                    self.earlier[at].clone()
                }
            };
            sent.push((useless, 0));
        }
        sent
    }
}

/// Of nothing that there is.
fn no_digest(rng: &mut ChaCha8Rng) -> Digest {
    let mut bytes = [0; 32];
    rng.fill_bytes(&mut bytes);
    Digest(bytes)
}
