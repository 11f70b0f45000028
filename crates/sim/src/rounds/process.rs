//! Faults of a process by round: in some rounds, what a faulty replica says to some of the others is changed a little, always in the
//! same way; all else that it says is right. Winter et al. (ByzzFuzz, OOPSLA 2023), 4.2: small-scope mutations.
//!
//! `quorate_fault::Fault::Mutate` changes single messages by chance, so that hardly ever two replicas hear the same wrong thing,
//! or one hears it of each of the messages that make a round.

use std::collections::{BTreeMap, VecDeque};

use quorate_wire::message::{
    Batch, Checkpoint, Commit, Committed, NewView, PeerMessage, PrePrepare, Prepare, SignedNewView,
    SignedViewChange, ViewChange, Vote,
};
use quorate_wire::{Digest, ReplicaId, Seq, Signer, View};

use super::{mix, round};

/// Earlier messages of one kind that are kept for use again.
const MEMORY: usize = 8;

/// What is changed in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    View(i8),
    Place(i8),
    OldDigest,
    Replay,
    Withhold,
}

/// A faulty replica's outgoing side.
#[derive(Debug)]
pub struct ByRound {
    seed: u64,
    /// Rounds with a fault, in a thousand.
    per_mille: u64,
    me: ReplicaId,
    key: Signer,
    /// What was said before, by kind.
    earlier: BTreeMap<u64, VecDeque<PeerMessage>>,
    digests: VecDeque<Digest>,
    batches: VecDeque<Batch>,
}

impl ByRound {
    /// It signs with another key from now on.
    pub fn renew(&mut self, key: Signer) {
        self.key = key;
    }

    /// The replica `me` with its own `key`. Equal seeds give equal faults.
    pub fn new(seed: u64, per_mille: u64, me: ReplicaId, key: Signer) -> ByRound {
        ByRound {
            seed,
            per_mille,
            me,
            key,
            earlier: BTreeMap::new(),
            digests: VecDeque::new(),
            batches: VecDeque::new(),
        }
    }

    /// What leaves for a replica in place of a message.
    pub fn for_peer(&mut self, to: ReplicaId, message: PeerMessage) -> Vec<PeerMessage> {
        let Some((kind, view, place)) = round(&message) else {
            return vec![message];
        };
        let mixed = [kind, view, place]
            .into_iter()
            .fold(mix(self.seed ^ 0xfa), |h, n| mix(h ^ n));
        let is_faulty = mixed % 1000 < self.per_mille;
        let is_receiver = mix(mixed ^ (u64::from(to.0) + 1)) & 1 == 1;
        // Once for all receivers, so that all who hear something wrong hear the same.
        if self.earlier.get(&kind).and_then(VecDeque::back) != Some(&message) {
            self.remember(kind, message.clone());
        }
        let sent = match is_faulty && is_receiver {
            true => self.changed(change(mix(mixed)), kind, message),
            false => Some(message),
        };
        sent.into_iter().collect()
    }

    fn remember(&mut self, kind: u64, message: PeerMessage) {
        let digest = match &message {
            PeerMessage::PrePrepare(m) => {
                push(&mut self.batches, m.batch.clone());
                Some(m.batch.digest())
            }
            PeerMessage::Prepare(m) => Some(m.digest),
            PeerMessage::Commit(m) => Some(m.digest),
            PeerMessage::Checkpoint(m) => Some(m.root),
            _ => None,
        };
        digest.into_iter().for_each(|d| push(&mut self.digests, d));
        push(self.earlier.entry(kind).or_default(), message);
    }

    /// The oldest that is remembered and differs.
    fn old_digest(&self, digest: Digest) -> Digest {
        let mut old = self.digests.iter().copied();
        old.find(|d| *d != digest).unwrap_or(Digest::ZERO)
    }

    fn changed(&self, change: Change, kind: u64, message: PeerMessage) -> Option<PeerMessage> {
        match change {
            Change::Withhold => None,
            Change::Replay => {
                let old = self.earlier.get(&kind).and_then(|old| old.front());
                Some(old.cloned().unwrap_or(message))
            }
            _ => Some(self.with_a_field_changed(change, message)),
        }
    }

    fn with_a_field_changed(&self, change: Change, message: PeerMessage) -> PeerMessage {
        let vote = |view: View, seq: Seq, digest: Digest| match change {
            Change::View(by) => (View(near(view.0, by)), seq, digest),
            Change::Place(by) => (view, Seq(near(seq.0, by)), digest),
            _ => (view, seq, self.old_digest(digest)),
        };
        match message {
            PeerMessage::PrePrepare(m) => {
                let (view, seq, _) = vote(m.view, m.seq, Digest::ZERO);
                let old = self.batches.iter().find(|b| **b != m.batch);
                let batch = match (change, old) {
                    (Change::OldDigest, Some(old)) => old.clone(),
                    _ => m.batch,
                };
                PeerMessage::PrePrepare(PrePrepare {
                    view,
                    seq,
                    batch,
                    bodies: m.bodies,
                })
            }
            PeerMessage::Prepare(m) => {
                let (view, seq, digest) = vote(m.view, m.seq, m.digest);
                PeerMessage::Prepare(Prepare { view, seq, digest })
            }
            PeerMessage::Commit(m) => {
                let (view, seq, digest) = vote(m.view, m.seq, m.digest);
                PeerMessage::Commit(Commit { view, seq, digest })
            }
            PeerMessage::Committed(m) => {
                let (_, seq, digest) = vote(View(0), m.seq, m.digest);
                PeerMessage::Committed(Committed { seq, digest })
            }
            PeerMessage::Checkpoint(m) => {
                let (_, seq, root) = vote(View(0), m.seq, m.root);
                PeerMessage::Checkpoint(Checkpoint { seq, root })
            }
            PeerMessage::ViewChange(m) if m.body.replica == self.me => {
                let body = self.view_change(change, m.body, vote);
                PeerMessage::ViewChange(SignedViewChange::sign(body, &self.key).into_inner())
            }
            PeerMessage::NewView(m) => {
                let body = self.new_view(change, m.body);
                PeerMessage::NewView(SignedNewView::sign(body, &self.key).into_inner())
            }
            other => other,
        }
    }

    /// Its view, or in its last certificate the place or the batch.
    fn view_change(
        &self,
        change: Change,
        mut body: ViewChange,
        vote: impl Fn(View, Seq, Digest) -> (View, Seq, Digest),
    ) -> ViewChange {
        if let Change::View(by) = change {
            body.view = View(near(body.view.0, by));
        } else if let Some(last) = body.prepared.last_mut() {
            let (view, seq, digest) = vote(last.view, last.seq, last.digest);
            *last = Vote { seq, view, digest };
        }
        body
    }

    fn new_view(&self, change: Change, mut body: NewView) -> NewView {
        match change {
            Change::View(by) => body.view = View(near(body.view.0, by)),
            Change::Place(by) => body.start.0 = Seq(near(body.start.0.0, by)),
            _ => {
                if let Some(last) = body.selection.last_mut() {
                    *last = self.old_digest(*last);
                }
            }
        }
        body
    }
}

fn change(mixed: u64) -> Change {
    match mixed % 7 {
        0 => Change::View(1),
        1 => Change::View(-1),
        2 => Change::Place(1),
        3 => Change::Place(-1),
        4 => Change::OldDigest,
        5 => Change::Replay,
        _ => Change::Withhold,
    }
}

/// One more or less; the ends of the range stay where they are.
fn near(number: u64, by: i8) -> u64 {
    number.saturating_add_signed(i64::from(by))
}

fn push<T>(queue: &mut VecDeque<T>, item: T) {
    queue.push_back(item);
    if queue.len() > MEMORY {
        queue.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vote(view: u64, seq: u64, digest: u8) -> PeerMessage {
        PeerMessage::Prepare(Prepare {
            view: View(view),
            seq: Seq(seq),
            digest: Digest([digest; 32]),
        })
    }

    /// In a round with a fault some replicas hear the right thing and the others all the same wrong one, also when it is said again;
    /// rounds without a fault exist, and each kind of change does.
    #[test]
    fn a_round_has_one_fault() {
        let key = crate::keys::standing_signer(ReplicaId(0));
        let mut it = ByRound::new(5, 500, ReplicaId(0), key);
        let (mut right, mut withheld, mut wrong) = (0, 0, Vec::new());
        for seq in 1..200 {
            let message = vote(3, seq, (seq % 7) as u8);
            let heard: Vec<_> = (1..4)
                .map(|to| it.for_peer(ReplicaId(to), message.clone()))
                .collect();
            let mut lies: Vec<_> = heard
                .iter()
                .filter(|h| **h != vec![message.clone()])
                .collect();
            lies.dedup();
            assert!(lies.len() <= 1, "two different lies at {seq}: {lies:?}");
            match lies.first() {
                None => right += 1,
                Some(lie) if lie.is_empty() => withheld += 1,
                Some(lie) => wrong.extend(lie.iter().cloned()),
            }
        }
        assert!(right > 50 && withheld > 3 && wrong.len() > 30);
        let fields = |f: fn(&Prepare) -> bool| {
            let some = wrong
                .iter()
                .filter(|m| matches!(m, PeerMessage::Prepare(p) if f(p)));
            some.count()
        };
        assert!(fields(|p| p.view == View(2)) > 0 && fields(|p| p.view == View(4)) > 0);
        assert!(fields(|p| p.view == View(3)) > 0);
    }
}
