//! What of a replica's state its future depends on, as bytes: two replicas with equal bytes answer equal inputs alike.
//!
//! For exploring the core exhaustively (`crates/model`): states that differ only in what can't matter any more are one state.
//! Left out are
//!
//! - times: whoever explores lets time-outs pass when it likes. That one is set is kept where something hangs on it;
//! - votes that were counted already, or can't be any more: PREPAREs of views that were left, or for what has prepared here;
//!   COMMITs at a place that has committed; VIEW-CHANGEs for a view that has started;
//! - what is only reported: evidence, counters, who is to be asked next;
//! - what only repeats earlier words to those who lack them: they may be had from whoever said them first.
//!
//! That this is no more than can be left out is tested: `crates/model/tests/model.rs`.

use alloc::vec::Vec;

use quorate_wire::{Digest, Encode, ReplicaId, Seq, View};

use crate::Millis;
use crate::core::Agreement;
use crate::slot::{Proposal, Slot, Stage, Votes};

impl Agreement {
    /// Appends the bytes to `out`. `last` is the last view that will be entered: what would matter in later ones only is left out.
    ///
    /// Where there is a log this says nothing of what waits for it; it is for replicas without one.
    pub fn fingerprint(&self, last: View, out: &mut Vec<u8>) {
        // Named one by one, so that a new field breaks the build here.
        let Agreement {
            config: _,
            now: _,
            out: _,
            view,
            active,
            slots,
            // Follows from the slots' stages, but for places that it still names in vain.
            awaiting: _,
            pool,
            // Times, and what follows from them.
            judge: _,
            mac_keys: _,
            // Would only be checked again.
            shared: _,
            checked: _,
            checks: _,
            suspects: _,
            allowances: _,
            // Who has a link may come at any time.
            guests: _,
            started: _,
            last_given,
            due: _,
            pace: _,
            committed,
            executed,
            unstable_weight,
            tentative,
            // Follows from the certificates.
            certified: _,
            stable,
            own_checkpoints,
            checkpoint_votes,
            fetching,
            view_changes,
            proofs,
            // Said already; a restart would need it.
            own_change: _,
            waiting_new_views,
            // What they bring is in the slots.
            missed_new_views: _,
            heard_new_views: _,
            accused: _,
            // Its view and selection are in the slots.
            entered: _,
            new_view_deadline,
            failed_views: _,
            slow_views: _,
            failed_to_begin,
            view_changes_seen: _,
            next_index: _,
            persisted: _,
            entered_at: _,
            fetching_at: _,
            stable_at: _,
            held,
            statuses,
            // Refilled by time.
            budgets: _,
            next_status: _,
            content_due: _,
            told_loss: _,
            stranded: _,
            fetch_turn: _,
            asked,
            behind: _,
            recovery,
            ending: _,
            epochs,
            // It is given to those who say in STATUS that they recover.
            help: _,
        } = self;
        assert!(held.is_empty(), "a replica with a log");
        assert!(recovery.is_none(), "a replica that has lost its log");
        assert!(epochs.is_none(), "a replica with a key holder");
        view.encode(out);
        active.encode(out);
        last_given.encode(out);
        committed.encode(out);
        executed.encode(out);
        (*unstable_weight as u64).encode(out);
        let tentative = tentative.as_ref().map(|t| (t.seq, t.digest));
        list(tentative.into_iter(), out);
        stable.encode(out);
        list(own_checkpoints.iter().map(|(s, r)| (*s, *r)), out);
        checkpoint_votes.fingerprint(stable.0, out);
        list(fetching.iter().copied(), out);
        list(asked.iter().copied(), out);
        pool.fingerprint(out);
        let slots = || slots.iter().filter(|(_, slot)| !slot.is_blank());
        (slots().count() as u32).encode(out);
        for (seq, slot) in slots() {
            seq.encode(out);
            slot.fingerprint(self.config.me, *view, out);
        }

        // Who is to lead the view that is awaited selects from what came for it; the others look at later views only.
        let leads = !active && self.is_primary();
        let counts = |v: View| v <= last && (v > *view || (v == *view && leads));
        let changes = view_changes.values().filter(|m| counts(m.body.view));
        list(changes.map(|m| (m.body.replica, m.digest())), out);
        (new_view_deadline.is_some() && *view < last).encode(out);
        (*failed_to_begin as u64).encode(out);
        let waiting = waiting_new_views
            .values()
            .filter(|m| m.body.view <= last)
            .filter(|m| m.body.view > *view || (m.body.view == *view && !active));
        let waiting: Vec<_> = waiting.map(|m| m.body.clone()).collect();
        let proofs = proofs.keys().filter(|_| !waiting.is_empty());
        list(proofs.copied(), out);
        waiting.encode(out);
        let statuses = statuses.iter();
        list(
            statuses.map(|(r, (s, moved))| (*r, (s.clone(), *moved))),
            out,
        );
    }
}

impl Agreement {
    /// Forgets what it has heard from others and only waits for more of the like: votes at places where nothing has committed, and
    /// VIEW-CHANGEs. For exploring, where all of that can be heard again: it could as well not have been heard yet.
    pub fn forget_heard(&mut self) {
        let others: Vec<ReplicaId> = self.config.quorum.others(self.config.me).collect();
        for other in others {
            self.view_changes.remove(&other);
            for slot in self.slots.values_mut().filter(|s| s.committed.is_none()) {
                slot.prepares.forget(other);
                slot.commits.forget(other);
                slot.hints.forget(other);
            }
        }
    }

    /// The monotonic clock as it was last told; for exploring.
    pub fn clock(&self) -> Millis {
        self.now.mono
    }

    /// What this replica takes the present view's primary to have put at a place; for exploring.
    pub fn proposal_at(&self, seq: Seq) -> Option<Digest> {
        self.slots.get(&seq)?.proposal.map(|p| p.digest)
    }

    /// What has committed at a place above the stable checkpoint; for reports and tests.
    pub fn committed_at(&self, seq: Seq) -> Option<Digest> {
        self.slots.get(&seq)?.committed
    }
}

impl Slot {
    /// Whether nothing is known of the place.
    fn is_blank(&self) -> bool {
        let votes = [&self.prepares, &self.commits, &self.hints];
        self.proposal.is_none()
            && votes.iter().all(|votes| votes.iter().next().is_none())
            && self.prepared.is_none()
            && self.preprepared.is_empty()
            && self.committed.is_none()
            && self.batches.is_empty()
    }

    fn fingerprint(&self, me: ReplicaId, view: View, out: &mut Vec<u8>) {
        let proposal = self.proposal.as_ref();
        let stage = proposal.map(|p| p.stage);
        match proposal {
            None => out.push(0),
            Some(Proposal {
                view,
                digest,
                stage,
                vouched,
            }) => {
                out.push(1 + *stage as u8);
                view.encode(out);
                digest.encode(out);
                // Asked no more once the vote is cast.
                (*vouched && *stage == Stage::Proposed).encode(out);
            }
        }
        // One vote in a view, so that after it no other proposal is taken from others' votes.
        let has_voted = self.preprepared.iter().any(|v| v.view == view);
        let may_be_adopted = proposal.is_none() && !has_voted;
        let may_prepare = stage.is_some_and(|s| s < Stage::Prepared) || may_be_adopted;
        votes(&self.prepares, out, |from, its| {
            its > view || (its == view && (from == me || may_prepare))
        });
        votes(&self.commits, out, |from, its| {
            from == me || self.committed.is_none() || its > view || (its == view && may_be_adopted)
        });
        votes(&self.hints, out, |_, _| self.committed.is_none());
        list(self.prepared.iter().cloned(), out);
        list(self.preprepared.iter().cloned(), out);
        list(self.committed.iter().copied(), out);
        list(self.batches.keys().copied(), out);
    }
}

/// The votes that still count.
fn votes(votes: &Votes, out: &mut Vec<u8>, counts: impl Fn(ReplicaId, View) -> bool) {
    let some = votes
        .iter()
        .filter(|(from, (view, _))| counts(*from, *view));
    list(some, out);
}

/// How many, and each.
pub(crate) fn list<T: Encode>(items: impl Iterator<Item = T>, out: &mut Vec<u8>) {
    items.collect::<Vec<T>>().encode(out);
}
