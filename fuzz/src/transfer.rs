//! State transfer: donors that send anything, and peers that ask for anything.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use quorate_state::transfer::{Fetcher, Target, serve};
use quorate_state::{Layer, MemorySnapshot, tree};
use quorate_wire::message::StateMessage;
use quorate_wire::message::transfer::{GetNodes, GetValues, Nodes, Values};
use quorate_wire::{Decode, Digest, ReplicaId, Seq};

use crate::choices::Choices;

const CHECKPOINT: Seq = Seq(128);
const STEPS: usize = 256;

/// The state at the donors, and the one of the replica that lags.
struct States {
    target: MemorySnapshot,
    root: Digest,
    base: MemorySnapshot,
}

fn states() -> &'static States {
    static STATES: OnceLock<States> = OnceLock::new();
    STATES.get_or_init(|| {
        let layer = |keys: core::ops::Range<u8>, value: u8| -> Layer {
            let entry = |key| {
                (
                    Bytes::from(vec![1, key]),
                    Some(Bytes::from(vec![value; 40])),
                )
            };
            keys.map(entry).collect()
        };
        let state = |layers: [Layer; 2]| {
            let empty = MemorySnapshot::default();
            let (first, _) = empty.apply(&layers[0]).expect("a tree");
            first.apply(&layers[1]).expect("a tree")
        };
        let (base, _) = state([layer(0..60, 1), layer(200..240, 1)]);
        let (target, root) = state([layer(20..120, 1), layer(30..50, 2)]);
        States { target, root, base }
    })
}

/// A replica fetches a state. Each choice: a donor answers truly, or alters its answer, or says what the input says; or time
/// passes. What was fetched is the certified state, or not whole.
pub fn transfer(data: &[u8]) {
    let mut choices = Choices::new(data);
    let states = states();
    let target = Target {
        checkpoint: CHECKPOINT,
        root: states.root,
    };
    let donors = [0, 1, 2].map(ReplicaId);
    let mut fetcher = Fetcher::new(target, Arc::new(states.base.clone()), donors).expect("a base");
    let (mut now, mut open) = (0, Vec::new());
    let mut fetched = states.base.clone();
    for _ in 0..STEPS {
        open.extend(fetcher.poll(now).expect("a base"));
        fetcher.invariants();
        if let Some(layer) = fetcher.take_chunk().expect("a base") {
            fetched = fetched.apply(&layer).expect("a tree").0;
        }
        if fetcher.is_done() {
            assert_eq!(fetched, states.target, "what was fetched is the state");
            return;
        }
        if choices.is_empty() {
            return;
        }
        match choices.below(8) {
            0 => now += 250 << choices.below(8),
            1 => {
                let length = choices.below(200);
                let message = StateMessage::from_slice(choices.take(length));
                let from = ReplicaId(choices.below(4) as u8);
                if let Ok(message) = message {
                    let asked = serve(&states.target, CHECKPOINT, &message);
                    let _ = asked.expect("a state in memory");
                    fetcher.handle(now, from, message).expect("a base");
                }
            }
            kind if !open.is_empty() => {
                let (donor, ask) = open.remove(choices.below(open.len().min(256)));
                let answer = serve(&states.target, CHECKPOINT, &ask).expect("a state");
                let Some(mut answer) = answer else {
                    continue;
                };
                if kind == 2 {
                    alter(&mut answer, &mut choices);
                }
                fetcher.handle(now, donor, answer).expect("a base");
            }
            _ => now += 100,
        }
        fetcher.invariants();
    }
}

/// Makes a true answer another one.
fn alter(answer: &mut StateMessage, choices: &mut Choices) {
    let pieces = match answer {
        StateMessage::Nodes(Nodes { nodes, .. }) => nodes,
        StateMessage::Values(Values { values, .. }) => values,
        StateMessage::GetNodes(GetNodes { .. })
        | StateMessage::GetValues(GetValues { .. })
        | StateMessage::NotHere(_) => return,
    };
    let at = choices.below(pieces.len().clamp(1, 256));
    match choices.below(6) {
        0 => *answer = StateMessage::NotHere(CHECKPOINT),
        1 => pieces.truncate(at),
        2 => pieces.extend_from_within(..at),
        3 => pieces[at].0 = Bytes::copy_from_slice(choices.take(3)),
        4 => {
            let (length, last) = (pieces[at].1.len(), pieces.len() - 1);
            pieces[at].1 = pieces[last].1.slice(..length.min(pieces[last].1.len()));
        }
        _ => {
            let mut bytes = pieces[at].1.to_vec();
            let place = choices.below(bytes.len().clamp(1, 256));
            if let Some(byte) = bytes.get_mut(place) {
                *byte ^= choices.byte();
            }
            // Nodes that decode, and are not the ones that are wanted.
            let _ = tree::digest(&bytes);
            pieces[at].1 = bytes.into();
        }
    }
}
