//! Twins: systematic schedules in which some replicas run twice under one identity, with the same keys, while the network is cut
//! differently in each round. Bano et al., "Twins: BFT Systems Made Robust", 2020.
//!
//! A twin is a faulty replica that needs no faulty code: two correct ones that know nothing of each other vote for
//! different batches, lead a view in two ways, and forget. Which cuts there are is counted out, not drawn, so far as that
//! can be done; larger plans are sampled.
//!
//! The primary follows from the view, so a round is a view, and the cuts of a view are told apart by what they cut: the way
//! to a certificate, the COMMITs, and the change to the view itself. A cut stands between the *instances* on its two sides.
//! What is run is the agreement core alone, on a network without loss otherwise and without disks. After the rounds the
//! network is whole, and a group with at most f twins must execute all that was asked for.

mod group;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use quorate_wire::{Quorum, ReplicaId, View};

use crate::checks::Failure;
use crate::dice::Dice;

/// What is cut by itself within a view.
pub const PHASES: usize = 3;

/// The instances on the second side of a cut, one bit each; 0 for no cut. The first instance stands on the first side: the
/// other way round it would be the same cut.
pub type Cut = u32;

/// One run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Size of the group.
    pub replicas: usize,
    /// Those of which there are two.
    pub twins: Vec<ReplicaId>,
    /// The cuts of the first views, by what is cut: PRE-PREPARE and PREPARE; COMMIT and hints; all else, above all
    /// VIEW-CHANGE and NEW-VIEW.
    pub cuts: Vec<[Cut; PHASES]>,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The highest view in which a correct replica has been while the cuts stood: those of later views cut nothing.
    pub last_view: View,
}

/// All schedules of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Size of the group.
    pub replicas: usize,
    /// How many twins, at most f.
    pub twins: usize,
    /// How many views have cuts.
    pub views: usize,
    /// What is cut apart from each other: 3: each phase; 2: the phases of votes, while changes of views are left alone;
    /// 1: nothing: one cut in each view, for all messages, as in the paper.
    pub phases: usize,
}

impl Plan {
    /// Whether there is such a plan.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<(), String> {
        let quorum = Quorum::new(self.replicas).ok_or("not the size of a group")?;
        let phases = (1..=PHASES).contains(&self.phases);
        match self.replicas <= 13 && self.twins <= quorum.f() && phases {
            true => Ok(()),
            false => Err(format!(
                "at most 13 replicas and f twins, and 1 to {PHASES} phases"
            )),
        }
    }

    fn instances(&self) -> usize {
        self.replicas + self.twins
    }

    /// How many cuts there are of one phase.
    fn cuts(&self) -> u64 {
        1 << (self.instances() - 1)
    }

    /// How many ways there are to choose the twins.
    fn choices(&self) -> u64 {
        let chosen =
            (0u64..1 << self.replicas).filter(|set| set.count_ones() as usize == self.twins);
        chosen.count() as u64
    }

    fn twins(&self, choice: u64) -> Vec<ReplicaId> {
        let mut sets = (0u64..1 << self.replicas).filter(|s| s.count_ones() as usize == self.twins);
        let set = sets.nth(choice as usize).unwrap_or_default();
        let ids = (0..self.replicas as u8).filter(|id| set & (1 << id) != 0);
        ids.map(ReplicaId).collect()
    }

    /// How many schedules there are.
    pub fn count(&self) -> u64 {
        let cuts = (0..self.views * self.phases).fold(1u64, |n, _| n.saturating_mul(self.cuts()));
        cuts.saturating_mul(self.choices())
    }

    /// The schedule with a number below [`Plan::count`].
    pub fn schedule(&self, number: u64) -> Schedule {
        let mut rest = number;
        let mut next = |below: u64| {
            let digit = rest % below;
            rest /= below;
            digit
        };
        let twins = self.twins(next(self.choices()));
        self.fill(twins, || next(self.cuts()))
    }

    /// A schedule by chance.
    pub fn sample(&self, seed: u64) -> Schedule {
        let mut dice = Dice::new(seed, 20);
        let twins = self.twins(dice.below(self.choices()));
        self.fill(twins, || dice.below(self.cuts()))
    }

    fn fill(&self, twins: Vec<ReplicaId>, mut cut: impl FnMut() -> u64) -> Schedule {
        let mut cuts = vec![[0; PHASES]; self.views];
        for of_view in &mut cuts {
            for of_phase in &mut of_view[..self.phases] {
                *of_phase = (cut() << 1) as Cut;
            }
            if self.phases == 1 {
                *of_view = [of_view[0]; PHASES];
            }
        }
        Schedule {
            replicas: self.replicas,
            twins,
            cuts,
        }
    }
}

impl Schedule {
    /// Runs it.
    ///
    /// # Errors
    /// A property that does not hold.
    pub fn run(&self) -> Result<Ran, Failure> {
        let quorum = Quorum::new(self.replicas).expect("a size of a group");
        assert!(
            self.twins.len() <= quorum.f(),
            "more than f faulty replicas"
        );
        let result = catch_unwind(AssertUnwindSafe(|| group::Group::new(self).run()));
        result.unwrap_or_else(|panic| Err(Failure::panicked(&*panic)))
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<u8> = self.twins.iter().map(|r| r.0).collect();
        write!(f, "{} replicas, twins of {ids:?}", self.replicas)?;
        for (view, cuts) in self.cuts.iter().enumerate() {
            write!(f, "; view {view}:")?;
            cuts.iter().try_for_each(|cut| write!(f, " {cut:b}"))?;
        }
        Ok(())
    }
}
