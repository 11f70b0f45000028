//! Proposals that name what was not here when they came.
//!
//! A right primary sends small requests with its proposals, and long ones come from their clients. Which of the two was missing shows when it is here; until then nobody
//! can vote. So what such a proposal names counts as proposed when it is complete, if anything small was missing: a primary that sends proposals without their content
//! would otherwise have made each request wait, and be blamed for none (it need only answer soon enough that none is given up).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use quorate_wire::{Digest, Seq};

use crate::Millis;
use crate::pool::WaitingClaim;

/// A claim that was named: whether it is one of those that are measured, and for how long it may have been held back.
#[derive(Clone, Debug)]
pub(crate) struct NamedClaim {
    pub claim: WaitingClaim,
    pub is_sample: bool,
    pub held: Millis,
    /// When there last was no place for another batch before it was named, where that is not to be asked later: what the primary withholds takes places.
    pub full_at: Option<Millis>,
}

/// What a proposal lacked, and what else it named.
#[derive(Clone, Debug)]
pub(crate) struct Lacking {
    pub since: Millis,
    pub missing: Vec<Digest>,
    pub claims: Vec<NamedClaim>,
}

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(crate) struct Withheld {
    places: BTreeMap<Seq, Lacking>,
    /// Up to when what was withheld has been counted: several proposals may lack something at once.
    counted: Millis,
}

impl Withheld {
    pub fn begin_view(&mut self) {
        self.places.clear();
    }

    /// A proposal has come that lacks something. What counts is the first time.
    pub fn on_lacking(&mut self, seq: Seq, lacking: Lacking) {
        self.places.entry(seq).or_insert(lacking);
    }

    /// Whether the proposal of a place came without all that it names.
    pub fn lacked(&self, seq: Seq) -> bool {
        self.places.contains_key(&seq)
    }

    /// It is complete.
    pub fn take(&mut self, seq: Seq) -> Option<Lacking> {
        self.places.remove(&seq)
    }

    /// For how long something was withheld since then, beyond what was counted before.
    pub fn count(&mut self, since: Millis, now: Millis) -> Millis {
        let passed = now.saturating_sub(since.max(self.counted));
        self.counted = self.counted.max(now);
        passed
    }

    /// Nobody asks for these places any more.
    pub fn on_stable(&mut self, seq: Seq) {
        self.places = self.places.split_off(&seq.next());
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        let entries = self.places.values();
        entries
            .map(|it| 1 + it.missing.len() + it.claims.len())
            .sum()
    }
}
