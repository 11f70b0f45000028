//! View changes by the hundred.

use bytes::Bytes;
use quorate_sim::dice::Dice;
use quorate_sim::service::{APPEND, ListOp};
use quorate_sim::trace::Sink;
use quorate_sim::{Failure, Knobs, World};
use quorate_wire::Encode;

/// Apart from what a seed draws otherwise.
const DICE: u64 = 1 << 39;

fn ask(w: &mut World, token: u64) -> usize {
    let op = ListOp {
        kind: APPEND,
        key: (token % 3) as u8,
        token,
        expected: 0,
        work: 0,
        padding: Bytes::from_static(&[7; 60]),
    };
    w.call(0, op.to_bytes().into(), false)
}

fn answered(w: &mut World, operation: usize) -> Result<(), Failure> {
    w.run_until("answered", 20_000, |w| {
        w.operation(operation).done.is_some()
    })
}

fn view(w: &World) -> u64 {
    let views = (0..4).filter_map(|i| w.server(i).replica.as_ref());
    views.map(|r| r.standing().view.0).max().unwrap_or(0)
}

/// What came of a run beside view changes.
#[derive(Clone, Copy, Debug, Default)]
struct Went {
    rounds: u64,
    /// Starts of one replica alone, of two or three at once, and of all.
    alone: u64,
    several: u64,
    cold: u64,
    /// Times for which some were down for longer than anybody's patience.
    long: u64,
}

/// Primaries start again, one after the other, and others with them by chance; now and then the power goes for all. They are down for a moment, or
/// for longer than the others wait. Nobody does anything by hand, and after each the group serves.
fn run(seed: u64, views: u64) -> Result<Went, Failure> {
    let mut knobs = Knobs::calm(4);
    knobs.clients = 1;
    let patience = knobs.timeout_ms;
    let mut w = World::new(seed, knobs, Sink::None);
    w.run_for(20)?;
    let mut dice = Dice::new(seed, DICE);
    let (mut token, mut went) = (0, Went::default());
    while view(&w) < views {
        went.rounds += 1;
        assert!(went.rounds < 4 * views, "view {} only", view(&w));
        let primary = (view(&w) % 4) as usize;
        let mut down: Vec<usize> = vec![primary];
        if dice.per_mille(20) {
            down = (0..4).collect();
        } else {
            down.extend((0..4).filter(|&server| server != primary && dice.per_mille(60)));
        }
        match down.len() {
            1 => went.alone += 1,
            4 => went.cold += 1,
            _ => went.several += 1,
        }
        let moment = dice.below(5);
        let for_ms = dice.pick(&[moment, moment, 20 + moment, 300, 2 * patience, 7 * patience]);
        went.long += u64::from(for_ms > patience);
        let is_asked_before = dice.per_mille(500);
        token += 1;
        let before = is_asked_before.then(|| ask(&mut w, token));
        w.run_for(dice.below(2))?;
        down.iter().for_each(|server| w.crash(*server));
        w.run_for(for_ms)?;
        down.iter().try_for_each(|server| w.start(*server))?;
        let operation = before.unwrap_or_else(|| ask(&mut w, token));
        answered(&mut w, operation)?;
    }
    (0..4).for_each(|server| w.crash(server));
    w.run_for(100)?;
    (0..4).try_for_each(|server| w.start(server))?;
    let last = ask(&mut w, token + 1);
    answered(&mut w, last)?;
    let stats = w.finish()?;
    assert!(stats.view >= views, "{stats:?}");
    Ok(went)
}

#[test]
fn two_hundred_view_changes() {
    let mut all = Went::default();
    for seed in 0..4 {
        let went = run(seed, 50).unwrap_or_else(|failure| panic!("seed {seed}: {failure:?}"));
        all.alone += went.alone;
        all.several += went.several;
        all.cold += went.cold;
        all.long += went.long;
    }
    // Of each kind there are some, and none is all there is.
    assert!(all.alone > 20 && all.several > 5, "{all:?}");
    assert!(all.cold > 0 && all.long > 20, "{all:?}");
}

/// By hand: see docs/simulator.md.
#[test]
#[ignore = "it takes minutes"]
fn a_thousand_view_changes() {
    for seed in 0..4 {
        let went = run(seed, 1_000).unwrap_or_else(|failure| panic!("seed {seed}: {failure:?}"));
        println!("seed {seed}: {went:?}");
        assert!(went.cold > 0 && went.several > 50, "{went:?}");
    }
}
