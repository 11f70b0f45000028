//! Small changes of single fields, as few as a defect of a real implementation would make.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use quorate_wire::message::{
    AuthRequest, Checkpoint, Commit, Committed, NewView, PeerMessage, PrePrepare, Prepare,
    ReplicaMessage, Reply, Request, SignedNewView, SignedViewChange, Status, ViewChange, Vote,
};
use quorate_wire::{Digest, ReplicaId, Seq, Time, View};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

use crate::{Identity, Sent, below, now};

/// How many earlier messages and digests are kept for use again.
const MEMORY: usize = 32;
/// An hour.
const FAR_NS: u64 = 3_600_000_000_000;

/// What was sent before.
#[derive(Debug, Default)]
pub(crate) struct Mutator {
    earlier: VecDeque<PeerMessage>,
    digests: VecDeque<Digest>,
}

impl Mutator {
    pub fn for_peer(
        &mut self,
        identity: &Identity,
        rng: &mut ChaCha8Rng,
        to: ReplicaId,
        message: PeerMessage,
    ) -> Sent<PeerMessage> {
        self.remember(&message);
        if let PeerMessage::PrePrepare(m) = &message
            && m.seq.0 % 16 == 5
            && !m.bodies.is_empty()
        {
            return now(PeerMessage::PrePrepare(forge(m.clone())));
        }
        if let PeerMessage::PrePrepare(m) = &message
            && m.seq.0 % 16 == 9
        {
            // All hear of the same batch, of a time to come.
            let mut m = m.clone();
            m.batch.time = Time(m.batch.time.0.saturating_add(FAR_NS));
            return now(PeerMessage::PrePrepare(m));
        }
        if let PeerMessage::ViewChange(m) = &message
            && m.body.replica == identity.me
            && below(rng, 3) == 0
        {
            let others = identity.quorum.others(identity.me);
            let forged = others.map(|other| (in_the_name_of(other, identity, m.body.clone()), 0));
            return [(message.clone(), 0)].into_iter().chain(forged).collect();
        }
        match below(rng, 16) {
            0 | 1 => Vec::new(),
            2 => Vec::from([(message.clone(), 0), (message, below(rng, 500))]),
            3 => {
                let at = below(rng, self.earlier.len() as u64) as usize;
                let old = self.earlier.get(at).cloned();
                [Some((message, 0)), old.map(|m| (m, 0))]
                    .into_iter()
                    .flatten()
                    .collect()
            }
            // Some destinations see every message of some places changed.
            4 | 5 => now(self.change(identity, rng, message)),
            6 if to.0 % 3 == (rng.next_u32() % 3) as u8 => now(self.change(identity, rng, message)),
            _ => now(message),
        }
    }

    pub fn for_client(
        &mut self,
        rng: &mut ChaCha8Rng,
        message: ReplicaMessage,
    ) -> Sent<ReplicaMessage> {
        match (below(rng, 9), message) {
            (0, _) => Vec::new(),
            (8, ReplicaMessage::Reply(reply)) => {
                let tentative = !reply.tentative;
                now(ReplicaMessage::Reply(Reply { tentative, ..reply }))
            }
            (1, ReplicaMessage::Reply(reply)) => {
                let view = View(off_by_one(rng, reply.view.0));
                now(ReplicaMessage::Reply(Reply { view, ..reply }))
            }
            (8, ReplicaMessage::Vouched(mut m)) => {
                m.vouchers.pop();
                now(ReplicaMessage::Vouched(m))
            }
            // The others' word, with another story of how final it is.
            (1, ReplicaMessage::Vouched(mut m)) => {
                let vouchers = m.vouchers.iter_mut();
                vouchers.for_each(|voucher| voucher.tentative ^= true);
                now(ReplicaMessage::Vouched(m))
            }
            (2, message) => now(crate::lie::for_client(message)),
            (_, message) => now(message),
        }
    }

    fn remember(&mut self, message: &PeerMessage) {
        let digest = match message {
            PeerMessage::PrePrepare(m) => Some(m.batch.digest()),
            PeerMessage::Prepare(m) => Some(m.digest),
            PeerMessage::Checkpoint(m) => Some(m.root),
            _ => None,
        };
        if let Some(digest) = digest
            && self.digests.back() != Some(&digest)
        {
            self.digests.push_back(digest);
        }
        self.earlier.push_back(message.clone());
        if self.earlier.len() > MEMORY {
            self.earlier.pop_front();
        }
        if self.digests.len() > MEMORY {
            self.digests.pop_front();
        }
    }

    fn old_digest(&self, rng: &mut ChaCha8Rng, otherwise: Digest) -> Digest {
        let at = below(rng, self.digests.len() as u64) as usize;
        self.digests.get(at).copied().unwrap_or(otherwise)
    }

    /// View, place and digest, of which one is changed.
    fn vote(
        &self,
        rng: &mut ChaCha8Rng,
        view: View,
        seq: Seq,
        digest: Digest,
    ) -> (View, Seq, Digest) {
        match below(rng, 3) {
            0 => (View(off_by_one(rng, view.0)), seq, digest),
            1 => (view, Seq(off_by_one(rng, seq.0)), digest),
            // Beyond every window.
            2 if below(rng, 4) == 0 => (view, Seq(seq.0 | 1 << (9 + below(rng, 55))), digest),
            _ => (view, seq, self.old_digest(rng, digest)),
        }
    }

    fn change(
        &self,
        identity: &Identity,
        rng: &mut ChaCha8Rng,
        message: PeerMessage,
    ) -> PeerMessage {
        match message {
            PeerMessage::PrePrepare(m) => {
                let (view, seq, _) = self.vote(rng, m.view, m.seq, Digest::ZERO);
                PeerMessage::PrePrepare(PrePrepare { view, seq, ..m })
            }
            PeerMessage::Prepare(m) => {
                let (view, seq, digest) = self.vote(rng, m.view, m.seq, m.digest);
                PeerMessage::Prepare(Prepare { view, seq, digest })
            }
            PeerMessage::Commit(m) => {
                let (view, seq, digest) = self.vote(rng, m.view, m.seq, m.digest);
                PeerMessage::Commit(Commit { view, seq, digest })
            }
            PeerMessage::Committed(m) => {
                let (_, seq, digest) = self.vote(rng, View(0), m.seq, m.digest);
                PeerMessage::Committed(Committed { seq, digest })
            }
            PeerMessage::Checkpoint(m) => {
                let (_, seq, root) = self.vote(rng, View(0), m.seq, m.root);
                PeerMessage::Checkpoint(Checkpoint { seq, root })
            }
            PeerMessage::Status(m) => PeerMessage::Status(Status {
                view: View(off_by_one(rng, m.view.0)),
                committed: Seq(off_by_one(rng, m.committed.0)),
                ..m
            }),
            PeerMessage::Vouchers(mut m) => {
                match below(rng, 3) {
                    0 => m.seq = Seq(off_by_one(rng, m.seq.0)),
                    1 => m.view = View(off_by_one(rng, m.view.0)),
                    _ => m.tentative = !m.tentative,
                }
                PeerMessage::Vouchers(m)
            }
            PeerMessage::ViewChange(m) if m.body.replica == identity.me => {
                PeerMessage::ViewChange(change_view_change(identity, rng, m.body))
            }
            PeerMessage::NewView(m) if identity.quorum.primary(m.body.view) == identity.me => {
                PeerMessage::NewView(change_new_view(identity, rng, m.body))
            }
            other => other,
        }
    }
}

/// The first request says something else than its client did; the batch goes to all alike.
fn forge(mut m: PrePrepare) -> PrePrepare {
    let body = &mut m.bodies[0];
    let old = body.request.clone();
    let op = crate::lie::other_bytes(old.op());
    let forged = Request::new(old.client(), old.session(), old.number(), op);
    let named = m.batch.requests.iter_mut();
    named
        .filter(|d| **d == old.digest())
        .for_each(|d| *d = forged.digest());
    *body = Arc::new(AuthRequest {
        request: forged,
        ..(**body).clone()
    });
    m
}

fn change_view_change(
    identity: &Identity,
    rng: &mut ChaCha8Rng,
    mut body: ViewChange,
) -> SignedViewChange {
    match below(rng, 6) {
        0 => {
            body.prepared.pop();
        }
        5 => body.prepared.push(Vote {
            seq: Seq(u64::MAX),
            view: View(0),
            digest: Digest::ZERO,
        }),
        1 => body.preprepared.clear(),
        2 => body.view = View(off_by_one(rng, body.view.0)),
        3 => body.checkpoints.truncate(1),
        _ => {
            if let Some(vote) = body.prepared.last_mut() {
                vote.view = View(off_by_one(rng, vote.view.0));
            }
        }
    }
    SignedViewChange::sign(body, &identity.key).into_inner()
}

/// What another replica never said: that nothing has prepared there.
fn in_the_name_of(other: ReplicaId, identity: &Identity, body: ViewChange) -> PeerMessage {
    let body = ViewChange {
        replica: other,
        prepared: Vec::new(),
        preprepared: Vec::new(),
        ..body
    };
    PeerMessage::ViewChange(SignedViewChange::sign(body, &identity.key).into_inner())
}

fn change_new_view(identity: &Identity, rng: &mut ChaCha8Rng, mut body: NewView) -> SignedNewView {
    match below(rng, 5) {
        0 => {
            body.selection.pop();
        }
        1 => body.proofs.clear(),
        // The same primary's next turn; far off, with nothing to show for it.
        2 => body.view = View(body.view.0 + (identity.quorum.n() as u64) * below(rng, 1 << 40)),
        3 => body.start.0 = Seq(u64::MAX),
        _ => body.selection.reverse(),
    }
    SignedNewView::sign(body, &identity.key).into_inner()
}

/// One more or one less; the ends of the range stay where they are.
fn off_by_one(rng: &mut ChaCha8Rng, number: u64) -> u64 {
    match below(rng, 2) {
        0 => number.saturating_add(1),
        _ => number.saturating_sub(1),
    }
}
