//! Runs in which all replicas recover in turn, for hours: proactive recovery as a group lives with it (PBFT 2002, 4.3), with cuts of the
//! network and views that change meanwhile; in half of them f replicas are faulty, and the sound ones recover.

use std::panic::{AssertUnwindSafe, catch_unwind};

use quorate_fault::Fault;
use quorate_wire::{Quorum, ReplicaId};

use crate::checks::Failure;
use crate::dice::Dice;
use crate::knobs::{Adversary, Knobs};
use crate::trace::Sink;
use crate::world::{Stats, World};

const SECOND: u64 = 1_000_000;

/// How a run went.
#[derive(Clone, Debug)]
pub struct Rota {
    /// What did not hold, or what it cost.
    pub result: Result<Stats, Failure>,
    /// How many turns were taken.
    pub turns: u64,
}

/// Has the replicas recover in turn for so many seconds of virtual time.
pub fn recover_in_turn(seed: u64, seconds: u64) -> Rota {
    recover_in_turn_in(seed, seconds, Sink::None)
}

/// The same, with its events.
pub fn recover_in_turn_in(seed: u64, seconds: u64, sink: Sink) -> Rota {
    let (knobs, between) = draw(seed, seconds);
    let mut world = World::new(seed, knobs, sink);
    let result = catch_unwind(AssertUnwindSafe(|| {
        world.begin_storm();
        world.begin_turns(between);
        world.run_for(seconds * 1000)?;
        world.finish()
    }));
    Rota {
        result: result.unwrap_or_else(|panic| Err(Failure::panicked(&*panic))),
        turns: world.turns(),
    }
}

/// What a seed draws, and how many microseconds lie between two turns.
fn draw(seed: u64, seconds: u64) -> (Knobs, u64) {
    let mut d = Dice::new(seed, 15);
    let mut k = Knobs::calm(d.pick(&[4, 4, 4, 7]));
    // Back to back, or with rests.
    let between = d.pick(&[4, 15, 60]) * SECOND;
    k.clients = 2;
    k.keys = 100;
    k.reads = 200;
    let longest = d.pick(&[2, 20, 40]);
    k.think = (0, longest * SECOND);
    // So that clients have something to ask nearly to the end: each answer takes its time as well.
    k.operations = (5 * seconds / (4 * longest)) as usize;
    k.delay = (100, d.pick(&[500, 5_000, 40_000]));
    k.late = d.pick(&[0, 0, 20]);
    k.fifo = d.per_mille(500);
    k.sync = d.pick(&[(100, 300), (500, 5_000)]);
    k.timeout_ms = d.pick(&[250, 500]);
    k.epochs = d.pick(&[5, 15]) * SECOND;
    k.down = (100_000, d.pick(&[1, 10]) * SECOND);
    k.partition_every = d.pick(&[0, 100 * SECOND, 600 * SECOND]);
    k.storm = seconds * SECOND;
    let mut d = Dice::new(seed, 18);
    let f = Quorum::new(k.replicas).expect("a size of a group").f();
    if d.per_mille(500) {
        // As many as may be, while the sound ones recover.
        let first = d.below(k.replicas as u64) as u8;
        let ids = (0..f as u8).map(|i| ReplicaId((first + i) % k.replicas as u8));
        // But for floods, of which hours take too many events.
        let kinds: Vec<Fault> = Fault::ALL
            .into_iter()
            .filter(|kind| *kind != Fault::Flood)
            .collect();
        k.adversaries = ids
            .map(|id| (id, Adversary::Fault(d.pick(&kinds))))
            .collect();
    }
    // Clients that think long come to their end late.
    k.heal_within = 3_600 * SECOND;
    (k, between)
}
