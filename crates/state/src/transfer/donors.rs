//! Whom to ask: each donor for the root first, and for more when it has answered that; donors that have not failed are preferred, those that fail get a
//! pause, and those that lie are put aside.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use quorate_wire::ReplicaId;

use super::{ASKS_PER_DONOR, PAUSE_MS, TIMEOUT_MS};

/// Nobody is slow before that.
const LEAST_PATIENCE_MS: u64 = 50;
/// Pauses and time-outs double up to this many times.
const MAX_DOUBLINGS: u32 = 4;

#[derive(Debug, Default)]
struct Donor {
    /// Requests that wait for it.
    asks: usize,
    /// Time-outs and refusals, less what it answered since.
    failures: u32,
    lies: u32,
    /// Lied in this round.
    aside: bool,
    /// It has answered with the root since it failed last.
    has_root: bool,
    /// About how long its answers take, in milliseconds.
    usual: u64,
    /// Said last that it does not have the checkpoint.
    not_here: bool,
    /// It is left alone until then, in milliseconds.
    paused_until: u64,
}

#[derive(Debug)]
pub(super) struct Donors(BTreeMap<ReplicaId, Donor>);

/// Donors that left requests of former transfers unanswered: how often, and until when they are left alone.
#[derive(Clone, Debug, Default)]
pub struct Silences(BTreeMap<ReplicaId, (u32, u64)>);

impl Donors {
    pub(super) fn new(ids: impl IntoIterator<Item = ReplicaId>) -> Donors {
        Donors(ids.into_iter().map(|id| (id, Donor::default())).collect())
    }

    /// Which donors have left requests unanswered.
    pub(super) fn silences(&self) -> Silences {
        let silent = self.0.iter().filter(|(_, d)| d.failures > 0 && !d.not_here);
        Silences(
            silent
                .map(|(id, d)| (*id, (d.failures, d.paused_until)))
                .collect(),
        )
    }

    /// Donors have left requests of former transfers unanswered. Where more of them have than may be faulty, it was not the donors.
    pub(super) fn mistrust(&mut self, before: &Silences) {
        if before.0.len() > self.0.len() / 3 {
            return;
        }
        for (id, (failures, paused_until)) in &before.0 {
            if let Some(donor) = self.0.get_mut(id) {
                (donor.failures, donor.paused_until) = (*failures, *paused_until);
            }
        }
    }

    /// The donors to ask for the root.
    pub(super) fn unheard(&self, now: u64) -> Vec<ReplicaId> {
        let unheard = self
            .0
            .iter()
            .filter(|(_, donor)| donor.is_ready(now) && !donor.has_root && donor.asks == 0);
        unheard.map(|(id, _)| *id).collect()
    }

    /// How many more requests may go out, to those as well that have yet to answer with the root: who is first is not to get all.
    pub(super) fn room(&self, now: u64) -> usize {
        let room = |donor: &Donor| match donor.has_root {
            true => ASKS_PER_DONOR - donor.asks,
            false => ASKS_PER_DONOR,
        };
        let there = self.0.values();
        let there = there.filter(|donor| !donor.aside && donor.paused_until <= now);
        there.map(room).sum()
    }

    /// The donor to ask next.
    pub(super) fn pick(&self, now: u64) -> Option<ReplicaId> {
        let ready = self.0.iter().filter(|(_, d)| d.has_root && d.is_ready(now));
        let best = ready.min_by_key(|(id, donor)| (donor.failures, donor.asks, **id));
        best.map(|(id, _)| *id)
    }

    /// How long another one may take for an answer when this one has nothing to do, in milliseconds.
    pub(super) fn patience(&self, id: ReplicaId) -> u64 {
        let usual = self.0.get(&id).map_or(0, |donor| donor.usual);
        usual.saturating_mul(4).max(LEAST_PATIENCE_MS)
    }

    /// Whether a donor has failed of late.
    pub(super) fn has_failed(&self, id: ReplicaId) -> bool {
        self.0.get(&id).is_some_and(|donor| donor.failures > 0)
    }

    /// Notes a request; gives the time until which its answer is waited for.
    pub(super) fn asked(&mut self, id: ReplicaId, now: u64) -> u64 {
        let Some(donor) = self.0.get_mut(&id) else {
            return now;
        };
        donor.asks += 1;
        assert!(donor.asks <= ASKS_PER_DONOR);
        now.saturating_add(doubled(TIMEOUT_MS, donor.failures))
    }

    /// An answer has come after so long.
    pub(super) fn took(&mut self, id: ReplicaId, ms: u64) {
        if let Some(donor) = self.0.get_mut(&id) {
            donor.usual = ms.max(donor.usual / 4 * 3);
        }
    }

    /// A request no longer waits.
    pub(super) fn settled(&mut self, id: ReplicaId) {
        if let Some(donor) = self.0.get_mut(&id) {
            donor.asks -= 1;
        }
    }

    /// The donor answered with the root. That costs it little, so it makes nothing good.
    pub(super) fn has_root(&mut self, id: ReplicaId) {
        if let Some(donor) = self.0.get_mut(&id) {
            donor.has_root = true;
            donor.not_here = false;
        }
    }

    /// The donor answered with what is true.
    pub(super) fn answered(&mut self, id: ReplicaId) {
        if let Some(donor) = self.0.get_mut(&id) {
            donor.failures = donor.failures.saturating_sub(1);
            donor.not_here = false;
        }
    }

    /// The donor did not answer in time, or (`not_here`) does not have the checkpoint.
    pub(super) fn failed(&mut self, id: ReplicaId, now: u64, not_here: bool) {
        if let Some(donor) = self.0.get_mut(&id) {
            donor.pause(now);
            donor.not_here = not_here;
        }
    }

    /// The donor answered with what is false, which its digest shows (PBFT 2002, 5.3.2): that costs one retry, and it is put aside (docs/protocol.md, section 5). When all have, none is trusted less than another: all get another turn.
    pub(super) fn lied(&mut self, id: ReplicaId, now: u64) {
        if let Some(donor) = self.0.get_mut(&id) {
            donor.pause(now);
            donor.lies = donor.lies.saturating_add(1);
            donor.aside = true;
        }
        if self.0.values().all(|donor| donor.aside) {
            self.0.values_mut().for_each(|donor| donor.aside = false);
        }
    }

    /// When the next pause ends.
    pub(super) fn next_pause(&self, now: u64) -> Option<u64> {
        let paused = self.0.values().filter(|donor| !donor.aside);
        let until = paused.map(|donor| donor.paused_until);
        until.filter(|until| *until > now).min()
    }

    pub(super) fn liars(&self) -> impl Iterator<Item = (ReplicaId, u32)> {
        let lies = self.0.iter().map(|(id, donor)| (*id, donor.lies));
        lies.filter(|(_, lies)| *lies > 0)
    }

    /// Whether those donors that can be waited for said last that they do not have the checkpoint, or have lied. A third of them
    /// may be faulty, and say nothing for ever.
    pub(super) fn none_has_it(&self) -> bool {
        let without = self.0.values().filter(|d| d.aside || d.not_here).count();
        without >= self.0.len() - self.0.len() / 3
    }

    pub(super) fn asks(&self, id: ReplicaId) -> usize {
        self.0.get(&id).map_or(0, |donor| donor.asks)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = ReplicaId> {
        self.0.keys().copied()
    }
}

impl Donor {
    fn is_ready(&self, now: u64) -> bool {
        !self.aside && self.paused_until <= now && self.asks < ASKS_PER_DONOR
    }

    fn pause(&mut self, now: u64) {
        self.has_root = false;
        self.paused_until = now.saturating_add(doubled(PAUSE_MS, self.failures));
        self.failures = (self.failures + 1).min(MAX_DOUBLINGS);
    }
}

fn doubled(ms: u64, times: u32) -> u64 {
    ms << times.min(MAX_DOUBLINGS)
}
