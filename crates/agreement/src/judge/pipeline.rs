//! How far this view's proposals have come here, and how long batches take.
//!
//! Only what leads on from the last committed place without a gap is in flight: a proposal far ahead keeps nobody from proposing
//! what comes before it. And only those parts of a batch's way are measured in which its primary has no hand.

use alloc::collections::BTreeMap;

use quorate_wire::Seq;
use quorate_wire::mutants::{Mutant, is_on};

use super::{REMEMBERED_MS, remember};
use crate::Millis;

/// When a place was proposed, accepted and voted for here, and when it had prepared.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    proposed: Option<Millis>,
    accepted: Option<Millis>,
    voted: Option<Millis>,
    prepared: Option<Millis>,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Pipeline {
    /// Places that have not committed.
    places: BTreeMap<Seq, Progress>,
    /// The last place up to which all have a proposal, and the highest that the primary has proposed.
    run: Seq,
    highest: Seq,
    /// When the view began, and since when `highest` is above `run`.
    began: Millis,
    gap_since: Option<Millis>,
    /// The slowest batch of late, and when that was.
    slowest: (Millis, Millis),
    /// The quickest COMMIT: about what a message and a vote take.
    quickest: Option<(Millis, Millis)>,
    measured: u32,
}

impl Pipeline {
    pub fn new(now: Millis) -> Pipeline {
        Pipeline {
            places: BTreeMap::new(),
            run: Seq(0),
            highest: Seq(0),
            began: now,
            gap_since: None,
            slowest: (0, now),
            quickest: None,
            measured: 0,
        }
    }

    /// A view begins, which gives the places up to `start`.
    pub fn begin_view(&mut self, start: Seq, now: Millis) {
        self.places.clear();
        (self.run, self.highest) = (start, start);
        (self.began, self.gap_since) = (now, None);
    }

    /// When it did, or was left.
    pub fn began(&self) -> Millis {
        self.began
    }

    /// The primary has proposed something.
    pub fn on_proposed(&mut self, seq: Seq, now: Millis) {
        self.highest = self.highest.max(seq);
        let place = self.places.entry(seq).or_default();
        // Said again it is no newer.
        place.proposed.get_or_insert(now);
    }

    /// This replica votes for a proposal, when that is on disk.
    pub fn on_accepted(&mut self, seq: Seq, now: Millis) {
        self.places.entry(seq).or_default().accepted = Some(now);
    }

    /// Its vote is on disk.
    pub fn on_voted(&mut self, seq: Seq, now: Millis) {
        if let Some(place) = self.places.get_mut(&seq) {
            place.voted = Some(now);
        }
    }

    /// 2f+1 replicas have voted for it.
    pub fn on_prepared(&mut self, seq: Seq, now: Millis) {
        if let Some(place) = self.places.get_mut(&seq) {
            place.prepared = Some(now);
        }
    }

    /// What a batch took is what this replica's disk did, and COMMIT. What is between its vote and the 2f+1 is the primary's: it may tell
    /// one backup of its proposals long before the others, which would then be patient with it. Once 2f+1 have voted, f+1 correct
    /// replicas have told all others so.
    pub fn on_committed(&mut self, seq: Seq, now: Millis) {
        let Some(place) = self.places.remove(&seq) else {
            return;
        };
        let (Some(accepted), Some(prepared)) = (place.accepted, place.prepared) else {
            return;
        };
        let commit = now.saturating_sub(prepared);
        let is_true = |&(quickest, at): &(Millis, Millis)| {
            commit > quickest && now.saturating_sub(at) < REMEMBERED_MS
        };
        self.quickest = self.quickest.filter(is_true).or(Some((commit, now)));
        let disk = place.voted.unwrap_or(now).saturating_sub(accepted);
        remember(&mut self.slowest, disk + commit, now);
        self.measured = self.measured.saturating_add(1);
    }

    /// Nothing up to here will be told to have committed.
    pub fn on_stable(&mut self, seq: Seq) {
        self.places = self.places.split_off(&seq.next());
    }

    /// Places up to `committed` have committed; which have a proposal.
    pub fn follow(&mut self, committed: Seq, has_proposal: impl Fn(Seq) -> bool, now: Millis) {
        self.run = self.run.max(committed);
        while has_proposal(self.run.next()) {
            self.run = self.run.next();
        }
        if is_on(Mutant::FarPlacesCount) {
            self.run = self.run.max(self.highest);
        }
        self.gap_since = match self.highest > self.run {
            true => self.gap_since.or(Some(now)),
            false => None,
        };
    }

    /// The last place up to which all have a proposal.
    pub fn run(&self) -> Seq {
        self.run
    }

    /// A gap is of now at the earliest: what was there before is not the primary's fault.
    pub fn excuse_gap(&mut self, now: Millis) {
        self.gap_since = self.gap_since.map(|_| now);
    }

    /// Since when a place has no proposal although a later one has. Links keep their order, and a right primary goes from one place
    /// to the next.
    pub fn gap_since(&self) -> Option<Millis> {
        self.gap_since
    }

    /// How many batches are in flight.
    pub fn in_flight(&self, committed: Seq) -> u64 {
        self.run.0.saturating_sub(committed.0)
    }

    /// When the last of them was proposed, and whether it waits for votes, or for what it takes to vote here.
    pub fn last(&self) -> (Millis, bool) {
        let place = self.places.get(&self.run).copied().unwrap_or_default();
        let at = place.proposed.or(place.accepted).unwrap_or(self.began);
        (at, place.prepared.is_none())
    }

    /// How long the slowest batch of late took, and how many have been measured.
    pub fn slowest(&self) -> (Millis, u32) {
        (self.slowest.0, self.measured)
    }

    /// How long COMMIT took at its quickest of late.
    pub fn quickest(&self) -> Option<Millis> {
        self.quickest.map(|(took, _)| took)
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }
}
