//! Different stories for different replicas, each in good form and in itself consistent.
//!
//! Replicas with an odd number hear the second story.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use quorate_wire::message::{
    Batch, Commit, NewView, PeerMessage, PrePrepare, Prepare, SignedNewView, SignedViewChange,
    ViewChange, Vote,
};
use quorate_wire::{Digest, ReplicaId, Seq, Time, View};

use crate::lie::other_digest;
use crate::{Identity, Sent, now};

/// How far above its stable checkpoint a replica may claim anything.
const WINDOW: u64 = 256;
/// For how many places the second story is remembered.
const MAX_PLACES: usize = 1024;

/// After how many milliseconds those who hear both stories hear the other one.
const LATER_MS: u64 = 20;

/// Whether everyone hears both stories of a place: in any view, whoever leads it.
fn hears_both(seq: Seq) -> bool {
    seq.0.is_multiple_of(3)
}

/// What the second story says of each place.
#[derive(Debug, Default)]
pub(crate) struct Equivocator {
    second: BTreeMap<(View, Seq), Digest>,
}

impl Equivocator {
    pub fn for_peer(
        &mut self,
        identity: &Identity,
        to: ReplicaId,
        message: PeerMessage,
    ) -> Sent<PeerMessage> {
        if to.0.is_multiple_of(2) {
            let mut sent = now(message.clone());
            // At some places everyone hears both stories, one after the other: the first alone may be voted for, or counted.
            match message {
                PeerMessage::PrePrepare(m) if hears_both(m.seq) => {
                    sent.push((PeerMessage::PrePrepare(self.second_batch(m)), LATER_MS));
                }
                PeerMessage::Prepare(m) if hears_both(m.seq) => {
                    sent.push((PeerMessage::Prepare(self.second_prepare(m)), LATER_MS));
                }
                _ => {}
            }
            return sent;
        }
        let first = message.clone();
        let message = match message {
            PeerMessage::PrePrepare(m) => PeerMessage::PrePrepare(self.second_batch(m)),
            // Votes follow the second story, so that both sides see a primary that keeps to its word.
            PeerMessage::Prepare(m) => PeerMessage::Prepare(self.second_prepare(m)),
            PeerMessage::Commit(m) => {
                let digest = self.second_digest(m.view, m.seq, m.digest);
                PeerMessage::Commit(Commit { digest, ..m })
            }
            PeerMessage::ViewChange(m) if m.body.replica == identity.me => {
                PeerMessage::ViewChange(self.second_view_change(identity, m.body))
            }
            PeerMessage::NewView(m) if identity.quorum.primary(m.body.view) == identity.me => {
                PeerMessage::NewView(second_new_view(identity, m.body))
            }
            other => other,
        };
        let mut sent = now(message);
        if let PeerMessage::PrePrepare(PrePrepare { seq, .. })
        | PeerMessage::Prepare(Prepare { seq, .. }) = &first
            && hears_both(*seq)
        {
            sent.push((first, LATER_MS));
        }
        sent
    }

    fn second_prepare(&self, m: Prepare) -> Prepare {
        let digest = self.second_digest(m.view, m.seq, m.digest);
        Prepare { digest, ..m }
    }

    fn second_batch(&mut self, m: PrePrepare) -> PrePrepare {
        let mut requests = m.batch.requests;
        // Another order, else a part, else another time: whatever tells the two batches apart.
        match requests.len() {
            0 | 1 => {}
            n if n.is_multiple_of(2) => requests.reverse(),
            _ => {
                requests.pop();
            }
        }
        let time = Time(m.batch.time.0 ^ 1);
        let batch = Batch { time, requests };
        if self.second.len() == MAX_PLACES {
            self.second.pop_first();
        }
        self.second.insert((m.view, m.seq), batch.digest());
        let named = |d: &Digest| batch.requests.contains(d);
        let bodies = m.bodies.into_iter();
        PrePrepare {
            view: m.view,
            seq: m.seq,
            bodies: bodies.filter(|b| named(&b.request.digest())).collect(),
            batch,
        }
    }

    fn second_digest(&self, view: View, seq: Seq, digest: Digest) -> Digest {
        let known = self.second.get(&(view, seq)).copied();
        known.unwrap_or_else(|| other_digest(digest))
    }

    /// What was prepared, says the second story, are the second batches; where there was none, nothing.
    fn second_view_change(&self, identity: &Identity, body: ViewChange) -> SignedViewChange {
        let second = self.second.iter();
        let second = second.map(|(&(view, seq), &digest)| Vote { seq, view, digest });
        let claimed: Vec<Vote> = second
            .filter(|v| v.view < body.view && v.seq > body.stable)
            .filter(|v| v.seq.0 - body.stable.0 <= WINDOW)
            .collect();
        // One vote for each place in P, the latest; one for each place and batch in Q.
        let last: BTreeMap<Seq, Vote> = claimed.iter().map(|v| (v.seq, v.clone())).collect();
        let both = body.preprepared.iter().chain(&claimed);
        let both: BTreeMap<(Seq, Digest), Vote> =
            both.map(|v| ((v.seq, v.digest), v.clone())).collect();
        let body = ViewChange {
            prepared: last.into_values().collect(),
            preprepared: both.into_values().collect(),
            ..body
        };
        SignedViewChange::sign(body, &identity.key).into_inner()
    }
}

/// The last place is missing, or there is one too many.
fn second_new_view(identity: &Identity, body: NewView) -> SignedNewView {
    let mut selection = body.selection;
    if selection.pop().is_none() {
        selection.push(Batch::null().digest());
    }
    let body = NewView { selection, ..body };
    SignedNewView::sign(body, &identity.key).into_inner()
}
