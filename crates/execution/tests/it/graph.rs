//! The dependency graph: by hand, and under random schedules with a service that uses every scope in every mode.

use crate::arrays::{Arrays, Op, op};
use crate::support::{Freedom, Step, as_allowed, in_order};
use bytes::Bytes;
use proptest::prelude::*;
use quorate_execution::Call;
use quorate_execution::graph::{Conflicts, Graph, OpId, Scope, Uses};
use quorate_wire::{PublicKey, SessionId, Time};

const A: Scope = Scope::Object(1, 1);
const B: Scope = Scope::Object(1, 2);

fn graph() -> Graph {
    Graph::new(Conflicts::Declared, 64)
}

fn ready(graph: &mut Graph) -> Vec<u64> {
    graph.invariants();
    std::iter::from_fn(|| graph.take_ready())
        .map(|id| id.0)
        .collect()
}

fn settleable(graph: &mut Graph) -> Vec<u64> {
    graph.invariants();
    std::iter::from_fn(|| graph.take_settleable())
        .map(|id| id.0)
        .collect()
}

/// Runs, settles and ends an operation that can.
fn finish(graph: &mut Graph, id: u64) {
    graph.ran(OpId(id));
    assert!(settleable(graph).contains(&id));
    graph.done(OpId(id));
}

/// Writers of one object go one by one, in their order; those of another object don't wait for them.
#[test]
fn a_chain_and_a_bystander() {
    let mut g = graph();
    for scope in [A, A, B, A] {
        g.insert(Uses::none().write(scope));
    }
    assert_eq!(ready(&mut g), [0, 2]);
    finish(&mut g, 2);
    assert_eq!(ready(&mut g), []);
    finish(&mut g, 0);
    assert_eq!(ready(&mut g), [1]);
    finish(&mut g, 1);
    assert_eq!(ready(&mut g), [3]);
    finish(&mut g, 3);
    assert!(g.is_empty());
    g.invariants();
}

/// A writer runs beside earlier readers, and what it wrote waits for them.
#[test]
fn a_writer_settles_after_earlier_readers() {
    let mut g = graph();
    for _ in 0..2 {
        g.insert(Uses::none().read(A));
    }
    g.insert(Uses::none().write(A));
    g.insert(Uses::none().read(A));
    assert_eq!(ready(&mut g), [0, 1, 2]);
    g.ran(OpId(2));
    assert_eq!(settleable(&mut g), []);
    finish(&mut g, 1);
    g.ran(OpId(0));
    assert_eq!(settleable(&mut g), [0]);
    g.done(OpId(0));
    assert_eq!(settleable(&mut g), [2]);
    assert_eq!(ready(&mut g), []);
    g.done(OpId(2));
    assert_eq!(ready(&mut g), [3]);
}

/// Two that share only what they settle run at the same time and settle in their order. One that has nothing to run is
/// never handed out to run.
#[test]
fn settle_steps_keep_the_order() {
    let mut g = graph();
    for scope in [A, B] {
        g.insert(Uses::none().write(scope).settle(Scope::Class(9)));
    }
    g.insert(Uses::none().settle(Scope::Class(9)));
    assert_eq!(ready(&mut g), [0, 1]);
    g.ran(OpId(1));
    assert_eq!(settleable(&mut g), []);
    g.ran(OpId(0));
    for id in 0..3 {
        assert_eq!(settleable(&mut g), [id]);
        g.done(OpId(id));
    }
}

/// A scope conflicts with what lies in it and with what it lies in; ranges with ranges that they meet.
#[test]
fn scopes_lie_in_each_other() {
    let part = |from, to| Scope::Range(1, 1, from, to);
    for (earlier, later, free) in [
        (Scope::Everything, Scope::Class(1), false),
        (Scope::Class(1), Scope::Everything, false),
        (Scope::Class(1), Scope::Class(2), true),
        (Scope::Class(1), A, false),
        (A, Scope::Class(1), false),
        (A, Scope::Class(2), true),
        (A, part(3, 3), false),
        (part(3, 3), A, false),
        (part(3, 3), B, true),
        (part(3, 3), Scope::Class(1), false),
        (part(3, 3), Scope::Everything, false),
        (part(0, 3), part(3, 5), false),
        (part(0, 3), part(4, 5), true),
        (part(0, u64::MAX), part(7, 7), false),
    ] {
        let mut g = graph();
        g.insert(Uses::none().write(earlier));
        g.insert(Uses::none().read(later));
        assert_eq!(ready(&mut g).len() == 2, free, "{earlier:?} {later:?}");
    }
}

/// As BASE does it: one after the other, whatever they use.
#[test]
fn without_declarations_all_conflict() {
    let mut g = Graph::new(Conflicts::All, 64);
    for _ in 0..5 {
        g.insert(Uses::none());
    }
    for id in 0..5 {
        assert_eq!(ready(&mut g), [id]);
        finish(&mut g, id);
    }
}

/// What lies between the oldest operation and the newest is bounded.
#[test]
fn a_slow_operation_closes_the_window() {
    let mut g = Graph::new(Conflicts::Declared, 3);
    for id in 0..3 {
        assert!(g.has_room());
        assert_eq!(g.insert(Uses::none()), OpId(id));
    }
    assert_eq!(ready(&mut g), [0, 1, 2]);
    finish(&mut g, 1);
    finish(&mut g, 2);
    assert!(!g.has_room());
    assert_eq!(g.oldest(), Some(OpId(0)));
    finish(&mut g, 0);
    assert!(g.has_room() && g.oldest().is_none());
}

/// Beyond what is kept apart, everything counts as touched.
#[test]
fn too_many_uses_are_all_of_them() {
    let uses = (0..1000).fold(Uses::none(), |uses, i| uses.read(Scope::Object(1, i)));
    let mut g = graph();
    g.insert(uses);
    g.insert(Uses::none().read(Scope::Class(77)));
    assert_eq!(ready(&mut g), [0]);
}

fn script(ops: &[Op]) -> Vec<Step> {
    let steps = ops.iter().enumerate().map(|(i, op)| Step {
        call: Call {
            client: PublicKey([7; 32]),
            session: SessionId(1 + i as u64 % 3),
            now: Time(i as u64 + 1),
        },
        // Some of those that would let go end their session instead.
        op: (op[0] != 18 || op[4] >= 128).then(|| Bytes::copy_from_slice(op)),
    });
    steps.collect()
}

proptest! {
    #![proptest_config(crate::cases::cases(400))]

    /// Whatever the schedule, results and state are those of the script's order.
    #[test]
    fn the_order_of_execution_does_not_show(
        ops in prop::collection::vec(op(), 1..120),
        schedule in prop::collection::vec(any::<u8>(), 50..400),
        window in 1..60_usize,
    ) {
        let script = script(&ops);
        let found = as_allowed(&Arrays, &script, &schedule, window, &mut Freedom::default());
        prop_assert!(in_order(&Arrays, &script) == found);
    }
}

/// The property says something only if much runs at the same time and out of order.
#[test]
fn schedules_use_their_freedom() {
    let ops: Vec<Op> = (0..200_u8).map(|i| [2, i % 50, 0, 1, i]).collect();
    let schedule: Vec<u8> = (0..=255_u8)
        .map(|i| i.wrapping_mul(91) ^ (i >> 3))
        .collect();
    let mut freedom = Freedom::default();
    as_allowed(&Arrays, &script(&ops), &schedule, 64, &mut freedom);
    assert!(
        freedom.running >= 8 && freedom.overtaken >= 50,
        "{freedom:?}"
    );
}

/// What the graph costs for an operation, with hundreds in it. Run with `--release -- --ignored --nocapture cost`.
#[test]
#[ignore = "a measurement"]
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn cost_of_an_operation() {
    type MakeUses = fn(u64) -> Uses;
    let kinds: [(&str, Conflicts, MakeUses); 6] = [
        ("null, independent", Conflicts::Declared, |_| Uses::none()),
        ("null, all conflict", Conflicts::All, |_| Uses::none()),
        ("a bucket of 50", Conflicts::Declared, |i| {
            Uses::none().write(Scope::Object(1, i % 50))
        }),
        ("readers of one object", Conflicts::Declared, |_| {
            Uses::none().read(Scope::Object(1, 1))
        }),
        ("extents of one file", Conflicts::Declared, |i| {
            Uses::none()
                .write(Scope::Range(1, 1, i * 16, i * 16 + 15))
                .settle(Scope::Class(9))
        }),
        ("a write of the file service", Conflicts::Declared, |i| {
            Uses::none()
                .settle(Scope::Class(9))
                .read(Scope::Range(4, 1, i % 64, i % 64))
                .write(Scope::Range(1, i % 64, i, i))
                .settle(Scope::Object(2, i % 64))
                .settle(Scope::Object(3, i % 64))
        }),
    ];
    for (name, conflicts, uses) in kinds {
        for in_graph in [1, 64, 512] {
            let mut graph = Graph::new(conflicts, in_graph);
            let (rounds, mut next) = (400_000 / in_graph as u64, 0);
            let start = std::time::Instant::now();
            for _ in 0..rounds {
                while graph.has_room() {
                    graph.insert(uses(next));
                    next += 1;
                }
                while !graph.is_empty() {
                    while let Some(id) = graph.take_ready() {
                        graph.ran(id);
                    }
                    while let Some(id) = graph.take_settleable() {
                        graph.done(id);
                    }
                }
            }
            let each = start.elapsed().as_nanos() as u64 / next;
            println!("{name}, {in_graph} in the graph: {each} ns an operation");
        }
    }
}
