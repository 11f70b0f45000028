//! What a primary does that the others don't: it gives requests their places. PBFT 2002, 4.2.

use alloc::sync::Arc;
use alloc::vec::Vec;

use quorate_wire::message::{AuthRequest, Batch, PeerMessage, PrePrepare};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Digest, Seq};

use crate::core::Agreement;
use crate::io::Output;
use crate::slot::{Proposal, Stage};
use crate::{BATCH_BYTES, Millis};

/// Batches that may be in flight while the next one is not full: at low load a request leaves at once, under load
/// batches fill while earlier ones are on their way.
pub(crate) const EAGER_BATCHES: u64 = 2;
/// How long those who are ahead of their shares wait for somebody who is not, to go along with: a batch of their own would cost all the
/// others as much as a batch costs. From when the last such batch committed, beyond the time that it took, for its clients to
/// hear of it and ask again; and the most of that time that counts.
const AHEAD_WAITS_MS: Millis = 20;
const MOST_TAKEN_MS: Millis = 100;

/// The last batch with something of a client that was not ahead of its share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    seq: Seq,
    since: Millis,
    /// Until when others wait for the next.
    until: Millis,
}

impl Due {
    pub fn new(now: Millis) -> Due {
        Due {
            seq: Seq(0),
            since: now,
            until: now,
        }
    }
}

impl Agreement {
    /// As primary: gives waiting requests the next place.
    pub(crate) fn propose(&mut self) {
        self.last_given = self.last_given.max(self.committed);
        // Nobody takes a proposal before the NEW-VIEW, and that waits for the disk.
        let leads = self.active && self.is_primary() && self.is_entry_durable();
        while leads && self.fetching.is_none() {
            let (requests, weight) = self.pool.queue();
            let in_flight = self.last_given.0.saturating_sub(self.committed.0);
            let most = self.config.tuning.batches;
            let full = requests >= self.config.tuning.batch_requests || weight >= BATCH_BYTES;
            let seq = self.last_given.next();
            let null = requests == 0 && self.is_to_be_filled(seq);
            let room = match full || null {
                true => most,
                false if self.is_on_its_way(self.last_given) => 1,
                false => most.min(EAGER_BATCHES),
            };
            if (requests == 0 && !null) || in_flight >= room || !self.in_window(seq) {
                return;
            }
            if !full && !null && self.pace.held_until(self.now.mono).is_some() {
                return;
            }
            if self.slots.get(&seq).is_some_and(|s| s.committed.is_some()) {
                // The others have gone on to a later view and given this place there.
                self.last_given = seq;
                continue;
            }
            if !self.may_propose(in_flight) {
                return;
            }
            if null {
                self.give_place(seq, Batch::null(), Vec::new());
                continue;
            }
            let Some(requests) = self.next_batch(in_flight) else {
                return;
            };
            if self.are_checked(&requests) {
                let bodies = self.bodies_to_relay(&requests);
                requests
                    .iter()
                    .for_each(|digest| self.pool.mark_ordered(digest));
                self.pool.on_batch();
                let time = self.now.wall;
                self.give_place(seq, Batch { time, requests }, bodies);
            }
        }
    }

    /// Whether a proposal waits for votes: those who ask in it wait too, and what came after it may wait for what they ask next.
    fn is_on_its_way(&self, seq: Seq) -> bool {
        let proposal = self.slots.get(&seq).and_then(|slot| slot.proposal);
        proposal.is_some_and(|proposal| proposal.stage < Stage::Prepared)
    }

    /// The requests for the next batch, if it is time for one.
    fn next_batch(&mut self, in_flight: u64) -> Option<Vec<Digest>> {
        let (most, now) = (self.config.tuning.batch_requests, self.now.mono);
        self.pool.look(now);
        let mut next = self.pool.next(most, BATCH_BYTES);
        let urgent = self.pool.urgent(most / 2);
        let is_due = next.is_due || !urgent.is_empty();
        let is_in_flight = in_flight > 0 && self.due.seq > self.committed;
        if !is_due && (is_in_flight || now < self.due.until) {
            return None;
        } else if !is_due && next.requests.len() < most {
            self.pool.go_on();
            next = self.pool.next(most, BATCH_BYTES);
        }
        let mut requests = next.requests;
        if !urgent.is_empty() {
            requests.retain(|digest| !urgent.contains(digest));
            requests.truncate(most - urgent.len());
            requests.splice(..0, urgent);
        }
        // A batch that is not full follows others only when few of these are in flight.
        let known = requests.iter().filter_map(|digest| self.pool.get(digest));
        let weight: usize = known.map(|e| e.request().weight()).sum();
        let full = requests.len() >= most || weight >= BATCH_BYTES;
        let eager = match self.is_on_its_way(self.last_given) {
            true => 1,
            false => EAGER_BATCHES,
        };
        if requests.is_empty() || (!full && in_flight >= eager) {
            return None;
        }
        if is_due {
            let seq = self.last_given.next();
            self.due = Due {
                seq,
                since: now,
                until: now,
            };
        }
        Some(requests)
    }

    /// Places up to `committed` have committed: who waits for the clients of the last due batch does so a little longer.
    pub(crate) fn note_due(&mut self, before: Seq) {
        let due = &mut self.due;
        if before < due.seq && due.seq <= self.committed {
            let took = self.now.mono.saturating_sub(due.since);
            due.until = self.now.mono + AHEAD_WAITS_MS + took.min(MOST_TAKEN_MS);
        }
    }

    /// When those who are ahead of their shares need not wait any more for somebody to go along with.
    pub(crate) fn ahead_deadline(&self) -> Option<Millis> {
        let at = self.due.until;
        let waits = self.active && self.is_primary() && self.pool.queue().0 > 0;
        (waits && at > self.now.mono).then_some(at)
    }

    /// When the next batch leaves that is held back although nothing else keeps it.
    pub(crate) fn pace_deadline(&self) -> Option<Millis> {
        let waits = self.active && self.is_primary() && self.pool.queue().0 > 0;
        self.pace.held_until(self.now.mono).filter(|_| waits)
    }

    fn give_place(&mut self, seq: Seq, batch: Batch, bodies: Vec<Arc<AuthRequest>>) {
        self.last_given = seq;
        self.pace.on_given(seq, self.now.mono);
        let (view, digest) = (self.view, batch.digest());
        let slot = self.slots.entry(seq).or_default();
        assert!(slot.proposal.is_none() && slot.committed.is_none());
        slot.proposal = Some(Proposal {
            view,
            digest,
            stage: Stage::Accepted,
            vouched: false,
        });
        slot.batches.insert(digest, Arc::new(batch.clone()));
        let message = PeerMessage::PrePrepare(PrePrepare {
            view,
            seq,
            batch,
            bodies,
        });
        // The proposal is no vote, so the backups' disks work while this one does. A primary that forgets it in a crash
        // hands its view over rather than propose in it again (`Agreement::new`).
        self.out.push_back(Output::Broadcast(message));
        self.vote(seq, digest);
    }

    /// Whether this primary has a proposal that no 2f+1 replicas have voted for in all the time for half of which they would have
    /// taken it: who has not heard of it yet will refuse it for its time, and the place can't be filled in this view any more.
    pub(crate) fn has_stale_proposal(&self) -> bool {
        if !self.active || !self.is_primary() || is_on(Mutant::StaleProposalsKept) {
            return false;
        }
        let bound = self.config.clock_bound_ms.saturating_mul(500_000);
        let mut open = self.slots.range(self.committed.next()..);
        open.any(|(_, slot)| {
            // What the new view selected is taken whatever its time.
            let own = |p: &Proposal| !p.vouched && p.stage < Stage::Prepared;
            let batch = slot.proposal.filter(own).map(|p| p.digest);
            let batch = batch.and_then(|digest| slot.batches.get(&digest));
            // Nor has the null batch any.
            let batch = batch.filter(|b| ***b != Batch::null());
            batch.is_some_and(|b| self.now.wall.0.saturating_sub(b.time.0) >= bound)
        })
    }
}
