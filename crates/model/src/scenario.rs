//! What is explored: who is faulty, and how much there is to agree on.

use quorate_wire::{Quorum, ReplicaId, View};

/// A bounded world to explore whole.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name on the command line and in reports.
    pub name: &'static str,
    /// What it is about.
    pub what: &'static str,
    /// The replica that may say anything of its vocabulary, at any time, to anyone.
    pub faulty: ReplicaId,
    /// Places that are filled, and as many requests.
    pub places: u64,
    /// The last view that is entered: a replica that leaves it takes part no more.
    pub last_view: View,
    /// How much the faulty replica may claim in its VIEW-CHANGEs.
    pub claims: Claims,
    /// Whether the faulty primary of the first view also proposes each batch at each place, and a request that no client made.
    pub free_proposals: bool,
    /// Whether hints are given of what has committed, as replicas do where somebody says that they lack it.
    pub hints: bool,
    /// Whether a checkpoint is made after the first place.
    pub checkpoints: bool,
    /// Whether batches are executed tentatively.
    pub tentative: bool,
    /// Whether what a replica could commit or execute is looked at and compared, and then left undone: fewer states, but none after a
    /// replica has committed.
    pub look_only: bool,
    /// Whether steps are taken in one order where others lead to nothing else, and what a replica has heard for a step is forgotten after it: far fewer
    /// states, and as much that can commit (docs/model.md). For scenarios with one view change, in which nothing is done after a commit.
    pub reduced: bool,
    /// From one in so many states, chosen by their numbers, and from some in which nothing can happen any more, it is seen that all
    /// requests are executed once the network and the clock work; 0 for none.
    pub live_every: u64,
    /// Whether it is one of those that continuous integration has time for.
    pub quick: bool,
    /// Whether its search has come to no end yet: it is explored only where somebody names it.
    pub open: bool,
}

/// What the faulty replica may say in a VIEW-CHANGE, for each place apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claims {
    /// It sends none.
    None,
    /// Nothing; or a certificate for one of the batches, having pre-prepared all of them.
    Some,
    /// Any certificate or none, having pre-prepared all batches or none.
    All,
}

/// The group of all scenarios.
pub fn quorum() -> Quorum {
    Quorum::new(4).expect("a size of a group")
}

/// All scenarios; the cheap ones first.
pub fn all() -> Vec<Scenario> {
    let calm = Scenario {
        name: "",
        what: "",
        faulty: ReplicaId(3),
        places: 1,
        last_view: View(0),
        claims: Claims::None,
        free_proposals: false,
        hints: false,
        checkpoints: false,
        tentative: false,
        look_only: false,
        reduced: false,
        live_every: 0,
        quick: false,
        open: false,
    };
    let two = Scenario {
        places: 2,
        last_view: View(1),
        look_only: true,
        reduced: true,
        claims: Claims::Some,
        live_every: 100,
        ..calm.clone()
    };
    vec![
        Scenario {
            name: "backup-1",
            what: "one place, a faulty backup, no view change",
            hints: true,
            live_every: 20,
            quick: true,
            ..calm.clone()
        },
        Scenario {
            name: "primary-1",
            what: "one place, an equivocating primary, no view change",
            faulty: ReplicaId(0),
            free_proposals: true,
            hints: true,
            quick: true,
            ..calm.clone()
        },
        Scenario {
            name: "primary-2",
            what: "two places, an equivocating primary, no view change",
            faulty: ReplicaId(0),
            places: 2,
            look_only: true,
            live_every: 2_000,
            ..calm.clone()
        },
        Scenario {
            name: "old-primary-1",
            what: "one place, an equivocating primary, and a view change in which it lies",
            faulty: ReplicaId(0),
            last_view: View(1),
            look_only: true,
            claims: Claims::Some,
            live_every: 500,
            quick: true,
            ..calm.clone()
        },
        Scenario {
            name: "new-primary-1",
            what: "one place, a change to a view whose primary is faulty",
            faulty: ReplicaId(1),
            last_view: View(1),
            look_only: true,
            claims: Claims::All,
            live_every: 1_000,
            quick: true,
            ..calm.clone()
        },
        Scenario {
            name: "backup-view-1",
            what: "one place, and a view change in which a backup lies",
            faulty: ReplicaId(3),
            last_view: View(1),
            look_only: true,
            claims: Claims::All,
            live_every: 1_000,
            quick: true,
            ..calm.clone()
        },
        Scenario {
            name: "old-primary-1-all",
            what: "one place, an equivocating primary, and a view change in which it lies in any way",
            faulty: ReplicaId(0),
            last_view: View(1),
            look_only: true,
            claims: Claims::All,
            live_every: 20_000,
            ..calm.clone()
        },
        Scenario {
            name: "old-primary-1-tentative",
            what: "one place, executed tentatively, an equivocating primary, and a view change in which it lies",
            faulty: ReplicaId(0),
            last_view: View(1),
            look_only: true,
            tentative: true,
            claims: Claims::Some,
            live_every: 500,
            ..calm.clone()
        },
        Scenario {
            name: "new-primary-1-tentative",
            what: "one place, executed tentatively, a change to a view whose primary is faulty",
            faulty: ReplicaId(1),
            last_view: View(1),
            look_only: true,
            tentative: true,
            claims: Claims::All,
            live_every: 1_000,
            ..calm.clone()
        },
        Scenario {
            name: "checkpoint-1",
            what: "one place and a checkpoint after it, a faulty backup, no view change",
            hints: true,
            checkpoints: true,
            live_every: 20,
            quick: true,
            ..calm.clone()
        },
        Scenario {
            name: "checkpoint-primary-1",
            what: "one place and a checkpoint after it, an equivocating primary, no view change",
            faulty: ReplicaId(0),
            hints: true,
            checkpoints: true,
            live_every: 100,
            ..calm.clone()
        },
        Scenario {
            name: "checkpoint-view-1",
            what: "one place and a checkpoint after it, and a view change in which a backup lies",
            faulty: ReplicaId(3),
            last_view: View(1),
            checkpoints: true,
            claims: Claims::Some,
            live_every: 1_000,
            ..calm.clone()
        },
        Scenario {
            name: "backup-view-2",
            what: "two places, and a view change in which a backup lies",
            faulty: ReplicaId(3),
            quick: true,
            ..two.clone()
        },
        Scenario {
            name: "old-primary-2",
            what: "two places, an equivocating primary, and a view change in which it lies",
            faulty: ReplicaId(0),
            ..two.clone()
        },
        Scenario {
            name: "new-primary-2-alone",
            what: "two places, a change to a view whose primary is faulty, which sends no VIEW-CHANGE itself",
            faulty: ReplicaId(1),
            claims: Claims::None,
            ..two.clone()
        },
        Scenario {
            name: "new-primary-2",
            what: "two places, a change to a view whose primary is faulty",
            faulty: ReplicaId(1),
            open: true,
            ..two
        },
    ]
}
