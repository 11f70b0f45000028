//! Hearing that a replica has contradicted itself, where all messages are signed.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use quorate_wire::evidence::{Evidence, Kind, Subject, TwoMessages, statement};
use quorate_wire::message::{PeerMessage, SignedMessage};
use quorate_wire::{Digest, ReplicaId};

/// How many statements of each replica are remembered: four for each place of a window.
const STATEMENTS: usize = 1024;
/// And how many bytes of them.
const BYTES: usize = 16 << 20;

/// What each replica has said lately.
#[derive(Clone, Debug, Default)]
pub(crate) struct Witness {
    heard: BTreeMap<ReplicaId, Heard>,
    /// One of each kind is enough.
    accused: BTreeSet<(ReplicaId, Kind)>,
    evidence: Vec<Evidence>,
}

#[derive(Clone, Debug, Default)]
struct Heard {
    statements: BTreeMap<Subject, (Digest, SignedMessage)>,
    /// Oldest first.
    order: VecDeque<Subject>,
    bytes: usize,
}

impl Witness {
    /// A replica has said this, and signed it.
    pub fn hear(&mut self, from: ReplicaId, message: &PeerMessage, signed: SignedMessage) {
        let Some((subject, what)) = statement(from, message) else {
            return;
        };
        let heard = self.heard.entry(from).or_default();
        let Some((before, first)) = heard.statements.get(&subject) else {
            return heard.keep(subject, what, signed);
        };
        if *before != what && self.accused.insert((from, subject.kind)) {
            let two = TwoMessages {
                replica: from,
                first: first.clone(),
                second: signed,
            };
            self.evidence.push(Evidence::Messages(two));
        }
    }

    /// What came of it since the last time.
    pub fn take(&mut self) -> Vec<Evidence> {
        core::mem::take(&mut self.evidence)
    }
}

impl Heard {
    fn keep(&mut self, subject: Subject, what: Digest, signed: SignedMessage) {
        self.bytes += signed.content.len();
        self.order.push_back(subject);
        self.statements.insert(subject, (what, signed));
        while self.order.len() > STATEMENTS || self.bytes > BYTES {
            let Some(oldest) = self.order.pop_front() else {
                return;
            };
            if let Some((_, gone)) = self.statements.remove(&oldest) {
                self.bytes -= gone.content.len();
            }
        }
    }
}
