//! Hearing that a replica has contradicted itself or the group, where all messages are signed.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use bytes::Bytes;
use quorate_state::transfer::{ASKS_PER_DONOR, Lie, REPLY_BYTES};
use quorate_wire::evidence::{
    Certificate, Evidence, Kind, Subject, TwoMessages, WrongCheckpoint, WrongPiece, statement,
};
use quorate_wire::message::transfer::StateMessage;
use quorate_wire::message::{PeerMessage, SignedMessage};
use quorate_wire::{Decode, Digest, Quorum, ReplicaId, Seq, View};

/// How many statements of each replica are remembered: four for each place of a window.
const STATEMENTS: usize = 1024;
/// And how many bytes of them.
const BYTES: usize = 16 << 20;
/// The longest answer with pieces of state that is remembered; a correct one has little more than [`REPLY_BYTES`].
const ANSWER_BYTES: usize = 2 * REPLY_BYTES;

/// What each replica has said lately.
#[derive(Clone, Debug)]
pub(crate) struct Witness {
    quorum: Quorum,
    heard: BTreeMap<ReplicaId, Heard>,
    /// A lie of each donor, with what it came in, for which no certificate has been heard.
    lies: BTreeMap<ReplicaId, (Lie, SignedMessage, u32)>,
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
    /// The last answers with pieces of state: as many as are asked for at a time.
    answers: VecDeque<SignedMessage>,
}

impl Witness {
    pub fn new(quorum: Quorum) -> Witness {
        Witness {
            quorum,
            heard: BTreeMap::new(),
            lies: BTreeMap::new(),
            accused: BTreeSet::new(),
            evidence: Vec::new(),
        }
    }

    /// A replica has said this, and signed it.
    pub fn hear(&mut self, from: ReplicaId, message: &PeerMessage, signed: SignedMessage) {
        let heard = self.heard.entry(from).or_default();
        if let PeerMessage::State(StateMessage::Nodes(_) | StateMessage::Values(_)) = message {
            return heard.keep_answer(signed);
        }
        let Some((subject, what)) = statement(from, message) else {
            return;
        };
        match heard.statements.get(&subject) {
            None => heard.keep(subject, what, signed),
            Some((before, first)) => {
                if *before != what && self.accused.insert((from, subject.kind)) {
                    let two = TwoMessages {
                        replica: from,
                        first: first.clone(),
                        second: signed,
                    };
                    self.evidence.push(Evidence::Messages(two));
                }
                return;
            }
        }
        if subject.kind == Kind::Checkpoint {
            self.compare_checkpoints(subject.seq);
            self.judge_lies();
        }
    }

    /// A donor has sent this, which is not in the certified state.
    pub fn convict(&mut self, lie: &Lie) {
        let replica = lie.donor;
        if self.accused.contains(&(replica, Kind::State)) {
            return;
        }
        let Some(heard) = self.heard.get(&replica) else {
            return;
        };
        let mut answers = heard.answers.iter();
        let Some((said, at)) = answers.find_map(|m| Some((m.clone(), position(m, lie)?))) else {
            return;
        };
        self.lies.insert(replica, (lie.clone(), said, at));
        self.judge_lies();
    }

    /// Holds what donors have sent against the roots that f+1 have signed.
    fn judge_lies(&mut self) {
        let judged = self.lies.iter().filter_map(|(&replica, (lie, said, at))| {
            // A donor may say the right root and send wrong pieces of it: its own word is not one of those that it is held against.
            let certificates = self.certificates(lie.checkpoint, replica).into_iter();
            let mut wrongs = certificates.map(|(_, certificate)| {
                Evidence::Piece(WrongPiece {
                    replica,
                    said: said.clone(),
                    at: *at,
                    certificate,
                    nodes: lie.nodes.clone(),
                })
            });
            // The root that was fetched is one of them.
            let wrong = wrongs.find(|wrong| wrong.subject(self.quorum).is_ok())?;
            Some((replica, wrong))
        });
        let judged: Vec<_> = judged.collect();
        for (replica, wrong) in judged {
            self.lies.remove(&replica);
            if self.accused.insert((replica, Kind::State)) {
                self.evidence.push(wrong);
            }
        }
    }

    /// What came of it since the last time.
    pub fn take(&mut self) -> Vec<Evidence> {
        core::mem::take(&mut self.evidence)
    }

    /// Holds all CHECKPOINTs of a place against what f+1 have said of it.
    fn compare_checkpoints(&mut self, seq: Seq) {
        for (root, certificate) in self.certificates(seq, None) {
            let heard = self.heard.iter();
            let others = heard.filter_map(|(&replica, heard)| {
                let (other, said) = heard.statements.get(&checkpoint(replica, seq))?;
                (*other != root).then(|| (replica, said.clone()))
            });
            let others: Vec<_> = others.collect();
            for (replica, said) in others {
                if self.accused.insert((replica, Kind::State)) {
                    let certificate = certificate.clone();
                    self.evidence.push(Evidence::Checkpoint(WrongCheckpoint {
                        replica,
                        said,
                        certificate,
                    }));
                }
            }
        }
    }

    /// The roots that f+1, `but` one, have signed for a place: one root, if at most f are faulty.
    fn certificates(
        &self,
        seq: Seq,
        but: impl Into<Option<ReplicaId>>,
    ) -> Vec<(Digest, Certificate)> {
        let but = but.into();
        let mut roots: BTreeMap<Digest, Vec<(ReplicaId, SignedMessage)>> = BTreeMap::new();
        for (&replica, heard) in self.heard.iter().filter(|(id, _)| Some(**id) != but) {
            if let Some((root, said)) = heard.statements.get(&checkpoint(replica, seq)) {
                roots
                    .entry(*root)
                    .or_default()
                    .push((replica, said.clone()));
            }
        }
        let enough = self.quorum.weak();
        let certified = roots
            .into_iter()
            .filter(|(_, signed)| signed.len() >= enough);
        let certified = certified.map(|(root, mut signed)| {
            signed.truncate(enough);
            (root, Certificate { signed })
        });
        certified.collect()
    }
}

impl Heard {
    fn keep(&mut self, subject: Subject, what: Digest, signed: SignedMessage) {
        self.bytes += weight(&signed);
        self.order.push_back(subject);
        self.statements.insert(subject, (what, signed));
        while self.order.len() > STATEMENTS || self.bytes > BYTES {
            let Some(oldest) = self.order.pop_front() else {
                return;
            };
            if let Some((_, gone)) = self.statements.remove(&oldest) {
                self.bytes -= weight(&gone);
            }
        }
    }

    fn keep_answer(&mut self, signed: SignedMessage) {
        if signed.content.len() > ANSWER_BYTES {
            return;
        }
        if self.answers.len() == ASKS_PER_DONOR {
            self.answers.pop_front();
        }
        self.answers.push_back(signed);
    }
}

fn checkpoint(replica: ReplicaId, seq: Seq) -> Subject {
    Subject {
        replica,
        kind: Kind::Checkpoint,
        view: View(0),
        seq,
    }
}

/// Which piece of an answer the lie is, if it is in it.
fn position(answer: &SignedMessage, lie: &Lie) -> Option<u32> {
    let pieces: Vec<(Bytes, Bytes)> = match PeerMessage::from_bytes(answer.content.clone()).ok()? {
        PeerMessage::State(StateMessage::Nodes(m)) if m.checkpoint == lie.checkpoint => m.nodes,
        PeerMessage::State(StateMessage::Values(m)) if m.checkpoint == lie.checkpoint => m.values,
        _ => return None,
    };
    let at = pieces
        .iter()
        .position(|(name, piece)| *name == lie.name && *piece == lie.piece)?;
    u32::try_from(at).ok()
}

fn weight(signed: &SignedMessage) -> usize {
    signed.content.len() + signed.signature.weight()
}
