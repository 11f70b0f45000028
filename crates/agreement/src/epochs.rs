//! How old the key may be under which a replica has spoken. PBFT 2002, 4.3.1.
//!
//! In a group with key holders a replica has a new key time and again. Of each other one the highest number of a certificate is known here;
//! what is signed under a certificate before the last but one is refused, and what was taken while that was good and is part of nothing
//! yet is forgotten: else an attacker that has one replica after another could add up what they said. `docs/protocol.md`,
//! section 13, has the argument.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use quorate_wire::epoch::EpochStatus;
use quorate_wire::message::{PeerMessage, SignedNewView, SignedViewChange};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Counters, Digest, ReplicaId, ReplicaKeys, ReplicaSignature, Seq, Signer, View};

use crate::core::{Agreement, Held};
use crate::durable::Record;
use crate::io::{Output, Rejected};
use crate::slot::Stage;
use crate::statements::Statements;

/// What is known of the replicas' epochs.
#[derive(Clone, Debug)]
pub(crate) struct Epochs {
    seen: Counters,
    /// How the present view of each other replica began, by its own word under its key of now.
    began: BTreeMap<ReplicaId, (View, Digest)>,
    /// The highest place that there was, or that it claimed to have reached, when the number of a replica last rose: what it says of later ones is younger than that.
    marks: BTreeMap<ReplicaId, Seq>,
    /// Which of them have recovered.
    pub(crate) statements: Statements,
}

impl Epochs {
    /// Where the group has key holders. `before` is what the log knows.
    pub fn new(keys: &ReplicaKeys, before: Option<Vec<u64>>) -> Option<Epochs> {
        let ReplicaKeys::Certified { identities, .. } = keys else {
            return None;
        };
        let before = before.filter(|highest| highest.len() == identities.len());
        Some(Epochs {
            seen: match before {
                Some(highest) => Counters::from_highest(highest),
                None => Counters::new(identities.len()),
            },
            began: BTreeMap::new(),
            marks: BTreeMap::new(),
            statements: Statements::new(identities.len()),
        })
    }

    /// What a log is to know of it.
    pub fn record(&self) -> Record {
        Record::Epochs(self.seen.highest().to_vec())
    }
}

impl Agreement {
    /// Refuses what is signed under a certificate that is too old by now. In groups without key holders none is.
    pub(crate) fn check_age(
        &self,
        replica: ReplicaId,
        signature: &ReplicaSignature,
    ) -> Result<(), Rejected> {
        let (Some(epochs), Some(counter)) = (&self.epochs, signature.counter()) else {
            return Ok(());
        };
        if is_on(Mutant::AgeUnchecked) {
            return Ok(());
        }
        let checked = epochs.seen.check(replica, counter);
        checked.map_err(|_| Rejected::OldEpoch)
    }

    /// Whether f+1 others say that a view has started here and there with this NEW-VIEW: one of them is correct, and has checked it
    /// while its signatures were of their time.
    pub(crate) fn is_view_vouched(&self, view: View, new_view: &Digest) -> bool {
        let Some(epochs) = &self.epochs else {
            return false;
        };
        let named = epochs.began.values().filter(|b| **b == (view, *new_view));
        named.count() >= self.config.quorum.weak()
    }

    /// Whether a VIEW-CHANGE is named by a NEW-VIEW that f+1 others vouch for.
    pub(crate) fn is_proof_vouched(&self, replica: ReplicaId, digest: &Digest) -> bool {
        let mut waiting = self.new_views_to_look_at();
        waiting.any(|m| {
            let names = m.body.proofs.contains(&(replica, *digest));
            names && self.is_view_vouched(m.body.view, &m.digest())
        })
    }

    /// Takes note of a certificate that was verified.
    pub(crate) fn saw_signature(&mut self, replica: ReplicaId, signature: &ReplicaSignature) {
        if let Some(counter) = signature.counter() {
            self.saw_epoch(replica, counter);
        }
    }

    pub(crate) fn saw_epoch(&mut self, replica: ReplicaId, counter: u64) {
        let Some(epochs) = &mut self.epochs else {
            return;
        };
        let before = epochs.seen.of(replica);
        if !epochs.seen.saw(replica, counter) {
            return;
        }
        let record = epochs.record();
        self.persist(record);
        if replica != self.config.me && !is_on(Mutant::FormerWordsCount) {
            // Two of its numbers count at a time.
            let void = before.saturating_add(1) < counter;
            self.forget_words(replica, void);
        }
    }

    /// What a replica has said under keys that are worth nothing any more counts no longer, unless it is part of what is complete. It
    /// says again what is still so: a VIEW-CHANGE under its key of now, votes in answer to STATUS.
    fn forget_words(&mut self, replica: ReplicaId, void: bool) {
        let Some(epochs) = &mut self.epochs else {
            return;
        };
        epochs.began.remove(&replica);
        // Votes have no certificate. Those at places that came after the number rose the last time are of the last two epochs.
        let last = self.slots.keys().next_back().copied();
        let claimed = self.checkpoint_votes.last_of(replica);
        let last = last.max(claimed).unwrap_or(self.stable.0);
        let former = epochs.marks.insert(replica, last).unwrap_or_default();
        self.forget_votes(replica, former);
        self.statuses.remove(&replica);
        if let Some(recovery) = &mut self.recovery {
            recovery.forget_answer(replica, void);
            self.settle_bound();
        }

        let primary_of = |m: &SignedNewView| self.config.quorum.primary(m.body.view);
        let is_old = |it: &Agreement, of: ReplicaId, by: &ReplicaSignature| {
            of == replica && it.check_age(of, by).is_err()
        };
        let old = |m: &&SignedViewChange| is_old(self, m.body.replica, &m.signature);
        let old_new_view = |m: &SignedNewView| is_old(self, primary_of(m), &m.signature);
        let change = self.view_changes.get(&replica).filter(old).is_some();
        let proofs = self.proofs.iter().filter(|(_, m)| old(m));
        let proofs: Vec<Digest> = proofs.map(|(digest, _)| *digest).collect();
        let waiting = self.waiting_new_views.get(&replica);
        let waiting = waiting.is_some_and(old_new_view);
        let heard = self.heard_new_views.get(&replica);
        let heard = heard.is_some_and(old_new_view);
        if change {
            self.view_changes.remove(&replica);
        }
        for digest in proofs {
            self.proofs.remove(&digest);
        }
        if waiting {
            self.waiting_new_views.remove(&replica);
        }
        // They are shown again.
        self.missed_new_views.clear();
        if heard {
            self.heard_new_views.remove(&replica);
        }
    }

    /// What a replica has voted at places up to here counts no longer, unless it is part of what is complete.
    pub(crate) fn forget_votes(&mut self, replica: ReplicaId, up_to: Seq) {
        for (_, slot) in self.slots.range_mut(..=up_to) {
            if slot.committed.is_none() {
                slot.commits.forget(replica);
                slot.hints.forget(replica);
            }
            if slot.proposal.is_none_or(|p| p.stage < Stage::Prepared) {
                slot.prepares.forget(replica);
            }
        }
        self.checkpoint_votes.forget_of(replica, up_to);
    }

    /// This replica has another key. What it has said and is still so it says again under that.
    pub(crate) fn on_renewed(&mut self, signer: Signer) {
        let Some(certificate) = signer.certificate() else {
            return;
        };
        let counter = certificate.counter;
        self.config.key = signer;
        self.saw_epoch(self.config.me, counter);
        let key = &self.config.key;
        let again = |m: &mut SignedViewChange| {
            *m = SignedViewChange::sign(m.body.clone(), key).into_inner();
        };
        self.own_change.iter_mut().for_each(again);
        for (_, Held::Tell(message)) in &mut self.held {
            if let PeerMessage::ViewChange(m) = message {
                again(m);
            }
        }
        let counted = self.view_changes.get_mut(&self.config.me);
        if let Some(m) = counted {
            again(m);
            let message = PeerMessage::ViewChange(m.clone());
            if !self.active {
                self.out.push_back(Output::Broadcast(message));
            }
        }
        self.tell_epoch();
    }

    /// Under which key this replica speaks, and how its view began.
    pub(crate) fn own_epoch(&self) -> Option<PeerMessage> {
        let certificate = self.config.key.certificate().cloned()?;
        let entered = self.entered.as_ref().filter(|_| self.is_entry_durable());
        let began = entered.map(|e| (e.new_view.body.view, e.new_view.digest()));
        // Who has lost its log vouches for nothing.
        let began = began.filter(|_| !self.is_recovering());
        Some(PeerMessage::Epoch(EpochStatus { certificate, began }))
    }

    /// Tells all of it.
    pub(crate) fn tell_epoch(&mut self) {
        let own = self.own_epoch();
        self.out.extend(own.map(Output::Broadcast));
    }

    /// Another replica says under which key it speaks.
    pub(crate) fn on_epoch(&mut self, from: ReplicaId, m: EpochStatus) -> Result<(), Rejected> {
        let EpochStatus { certificate, began } = m;
        let (Some(epochs), ReplicaKeys::Certified { group, identities }) =
            (&self.epochs, &self.config.keys)
        else {
            return Err(Rejected::NotAsked);
        };
        if certificate.replica != from {
            return Err(Rejected::Malformed);
        }
        let counter = certificate.counter;
        let checked = epochs.seen.check(from, counter);
        checked.map_err(|_| Rejected::OldEpoch)?;
        if counter > epochs.seen.highest()[usize::from(from.0)] {
            let certified = certificate.verify(group, identities);
            certified.map_err(|_| Rejected::BadAuthentication)?;
            self.saw_epoch(from, counter);
        }
        if let Some(epochs) = &mut self.epochs {
            match began {
                Some(began) => epochs.began.insert(from, began),
                None => epochs.began.remove(&from),
            };
        }
        Ok(())
    }
}
