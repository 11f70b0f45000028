//! Runs with an intruder who has more than f replicas over time: at most f of them within one window of vulnerability, or more.

use std::panic::{AssertUnwindSafe, catch_unwind};

use quorate_wire::Quorum;

use crate::checks::Failure;
use crate::dice::Dice;
use crate::knobs::Knobs;
use crate::trace::Sink;
use crate::world::{Stats, World};

/// How a run went.
#[derive(Clone, Debug)]
pub struct Intrusion {
    /// What did not hold, or what it cost.
    pub result: Result<Stats, Failure>,
    /// How many replicas the intruder has had, one more than once perhaps.
    pub seizures: u64,
}

/// Lets an intruder have f replicas at a time, and `more` than that.
pub fn intrude(seed: u64, more: usize) -> Intrusion {
    intrude_in(seed, more, Sink::None)
}

/// The same, with its events.
pub fn intrude_in(seed: u64, more: usize, sink: Sink) -> Intrusion {
    let (knobs, stay) = draw(seed);
    let f = Quorum::new(knobs.replicas).expect("a size of a group").f();
    let storm = knobs.storm / 1000;
    let mut world = World::new(seed, knobs, sink);
    let result = catch_unwind(AssertUnwindSafe(|| {
        world.begin_storm();
        world.begin_intrusion(f + more, stay);
        world.run_for(storm)?;
        world.finish()
    }));
    Intrusion {
        result: result.unwrap_or_else(|panic| Err(Failure::panicked(&*panic))),
        seizures: world.seizures(),
    }
}

/// What a seed draws, and how long the intruder stays, in microseconds. Little else goes wrong than cuts and crashes in some: what the intruder
/// does is trouble enough, and it must not be too many faults at a time.
fn draw(seed: u64) -> (Knobs, (u64, u64)) {
    let mut d = Dice::new(seed, 14);
    let mut k = Knobs::calm(d.pick(&[4, 4, 4, 7]));
    k.clients = 2;
    k.window = d.pick(&[1, 4]);
    k.think = (100_000, d.pick(&[300_000, 900_000]));
    k.reads = 200;
    k.delay = (100, d.pick(&[500, 5_000, 40_000]));
    k.late = d.pick(&[0, 0, 20]);
    k.fifo = d.per_mille(500);
    k.sync = d.pick(&[(100, 300), (500, 5_000)]);
    k.timeout_ms = d.pick(&[250, 500]);
    k.epochs = d.pick(&[300_000, 600_000, 1_000_000, 2_000_000]);
    // Most runs are short: they have two or three intrusions, which is what one can rest on another in.
    k.storm = d.pick(&[10, 10, 10, 10, 10, 15, 15, 40]) * 1_000_000;
    // So that clients ask for something nearly to the end, and the run is over soon after.
    k.operations = (2 * k.storm / (k.think.0 + k.think.1)) as usize;
    let stay = d.pick(&[(100_000, 700_000), (500_000, 3_500_000)]);
    k.heal_within = 200_000_000;
    // A replica that lags, so that old beginnings of views are shown to it.
    if d.per_mille(300) {
        k.rounds = 20;
    }
    let mut d = Dice::new(seed, 22);
    if d.per_mille(200) {
        k.partition_every = d.pick(&[1_000_000, 5_000_000]);
    }
    if d.per_mille(200) {
        k.crash_every = d.pick(&[1_000_000, 5_000_000]);
        k.down = (1_000, 400_000);
    }
    (k, stay)
}
