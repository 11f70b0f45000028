//! View changes by the hundred.

use bytes::Bytes;
use quorate_sim::service::{APPEND, ListOp};
use quorate_sim::trace::Sink;
use quorate_sim::{Failure, Knobs, World};
use quorate_wire::Encode;

fn append(w: &mut World, token: u64) -> Result<(), Failure> {
    let op = ListOp {
        kind: APPEND,
        key: (token % 3) as u8,
        token,
        expected: 0,
        work: 0,
        padding: Bytes::from_static(&[7; 60]),
    };
    let operation = w.call(0, op.to_bytes().into(), false);
    w.run_until("answered", 10_000, |w| {
        w.operation(operation).done.is_some()
    })
}

fn view(w: &World) -> u64 {
    let views = (0..4).filter_map(|i| w.server(i).replica.as_ref());
    views.map(|r| r.standing().view.0).max().unwrap_or(0)
}

/// Primaries start again, one after the other, and others with them at random; now and then the power goes for all. Nobody does
/// anything by hand, and after each the group serves.
fn run(views: u64) -> Result<(), Failure> {
    let mut knobs = Knobs::calm(4);
    knobs.clients = 1;
    let mut w = World::new(5, knobs, Sink::None);
    w.run_for(20)?;
    let (mut token, mut round, mut cold) = (0, 0_u64, 0_u64);
    while view(&w) < views {
        round += 1;
        assert!(round < 4 * views, "view {} only", view(&w));
        let primary = (view(&w) % 4) as usize;
        // A multiplicative congruential generator (Park, Miller, CACM 1988).
        let chance = round * 16_807 % 0x7fff_ffff;
        let mut down = vec![primary];
        if chance % 7 == 0 {
            down.push((primary + 1 + (chance / 7 % 3) as usize) % 4);
        }
        if chance % 50 == 0 {
            down = (0..4).collect();
            cold += 1;
        }
        down.iter().for_each(|server| w.crash(*server));
        w.run_for(chance % 5)?;
        down.iter().try_for_each(|server| w.start(*server))?;
        token += 1;
        append(&mut w, token)?;
    }
    assert!(cold >= views / 100, "{cold} cold starts");
    (0..4).for_each(|server| w.crash(server));
    w.run_for(100)?;
    (0..4).try_for_each(|server| w.start(server))?;
    append(&mut w, token + 1)?;
    w.finish().map(|stats| {
        assert!(stats.view >= views, "{stats:?}");
    })
}

#[test]
fn two_hundred_view_changes() {
    let result = run(200);
    assert!(result.is_ok(), "{result:?}");
}

/// By hand: a minute on a machine that does nothing else.
#[test]
#[ignore = "it takes a minute"]
fn a_thousand_view_changes() {
    let result = run(1_000);
    assert!(result.is_ok(), "{result:?}");
}
