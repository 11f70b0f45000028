//! The dependency graph: by hand, and under random schedules with a service that uses every scope in every mode.

mod support;

use std::ops::Bound;

use bytes::Bytes;
use proptest::prelude::*;
use quorate_execution::graph::{Conflicts, Graph, OpId, Scope, Uses};
use quorate_execution::{Call, Ran, Service};
use quorate_state::{Fault, Txn};
use quorate_wire::{PublicKey, SessionId, Time};
use support::{Freedom, Step, as_allowed, in_order};

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

/// Arrays of numbers, and a counter that is only touched in settle steps and by those who read it.
struct Arrays;

const CELLS: u32 = 1;
const COUNTER: Scope = Scope::Object(2, 0);
const LIMIT: u8 = 200;

/// An operation: what, which array, from, to, value.
type Op = [u8; 5];

fn cell(array: u8, at: u8) -> Bytes {
    Bytes::copy_from_slice(&[1, array, at])
}

fn cells(txn: &Txn<'_>, from: &[u8], to: &[u8]) -> Result<Vec<(Bytes, u8)>, Fault> {
    let found = txn.range(Bound::Included(from), Bound::Included(to), 10_000)?;
    Ok(found.into_iter().map(|(key, v)| (key, v[0])).collect())
}

fn counter(txn: &Txn<'_>) -> Result<u8, Fault> {
    Ok(txn.get(&[2])?.map_or(0, |v| v[0]))
}

fn digest(cells: &[(Bytes, u8)]) -> u8 {
    let mix = |sum: u8, (key, v): &(Bytes, u8)| {
        key.iter()
            .fold(sum.wrapping_mul(31).wrapping_add(*v), |s, b| {
                s.wrapping_mul(7).wrapping_add(*b)
            })
    };
    cells.iter().fold(1, mix)
}

impl Arrays {
    /// Changes what there is in a range, by what there was; answers with a digest of it.
    fn change(txn: &mut Txn<'_>, from: &[u8], to: &[u8], value: u8) -> Result<u8, Fault> {
        let before = cells(txn, from, to)?;
        let sum = digest(&before);
        if let (&[1, array, first], &[1, _, last]) = (from, to) {
            for at in first..=last {
                let value = value.wrapping_add(sum) % 5;
                match value {
                    0 => txn.delete(cell(array, at)),
                    _ => txn.put(cell(array, at), Bytes::copy_from_slice(&[value])),
                }
            }
        } else {
            for (key, v) in before {
                txn.put(key, Bytes::copy_from_slice(&[v.wrapping_mul(3) ^ value]));
            }
        }
        Ok(sum)
    }

    fn count(txn: &mut Txn<'_>, by: u8) -> Result<Option<u8>, Fault> {
        let sum = counter(txn)?.checked_add(by % 8).filter(|&s| s < LIMIT);
        if let Some(sum) = sum {
            txn.put(Bytes::from_static(&[2]), Bytes::copy_from_slice(&[sum]));
        }
        Ok(sum)
    }
}

impl Service for Arrays {
    fn genesis(&self, txn: &mut Txn<'_>) -> Result<(), Fault> {
        for at in 0..6 {
            txn.put(cell(1, at), Bytes::from_static(&[1]));
        }
        Ok(())
    }

    fn is_read_only(&self, _: &[u8]) -> bool {
        false
    }

    fn execute(&self, txn: &mut Txn<'_>, call: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        match self.run(txn, call, op)? {
            Ran::Done(result) => Ok(result),
            Ran::Settle(ran) => self.settle(txn, call, op, ran),
        }
    }

    fn session_ended(&self, _: &mut Txn<'_>, _: &Call) -> Result<(), Fault> {
        Ok(())
    }

    fn uses(&self, _: &Call, op: &Bytes) -> Uses {
        let (array, from, to) = (u64::from(op[1]), u64::from(op[2]), u64::from(op[3]));
        let part = Scope::Range(CELLS, array, from, to);
        let whole = Scope::Object(CELLS, array);
        match op[0] {
            0 | 1 => Uses::none().read(part),
            2 | 3 => Uses::none().write(part),
            4 | 5 => Uses::none().write(part).settle(COUNTER),
            6 => Uses::none().settle(COUNTER),
            7 => Uses::none().read(whole),
            8 => Uses::none().write(whole),
            9 => Uses::none().read(Scope::Class(CELLS)),
            10 => Uses::none().write(Scope::Class(CELLS)),
            11 => Uses::none().settle(whole),
            12 => Uses::none().read(Scope::Everything),
            13 => Uses::everything(),
            14 => Uses::none().settle(COUNTER).read(part).settle(whole),
            15 => Uses::none().read(COUNTER),
            _ => Uses::none(),
        }
    }

    fn run(&self, txn: &mut Txn<'_>, _: &Call, op: &Bytes) -> Result<Ran, Fault> {
        let (array, value) = (op[1], op[4]);
        let part = ([1, array, op[2]], [1, array, op[3]]);
        let (first, last): (&[u8], &[u8]) = (&[1, array], &[1, array, 255]);
        let done = |byte: u8| Ok(Ran::Done(Bytes::copy_from_slice(&[byte])));
        let rest = |byte: u8| Ok(Ran::Settle(Bytes::copy_from_slice(&[byte])));
        match op[0] {
            0 | 1 => done(digest(&cells(txn, &part.0, &part.1)?)),
            2 | 3 => done(Arrays::change(txn, &part.0, &part.1, value)?),
            4 | 5 => rest(Arrays::change(txn, &part.0, &part.1, value)?),
            14 => rest(digest(&cells(txn, &part.0, &part.1)?)),
            6 | 11 => rest(0),
            7 => done(digest(&cells(txn, first, last)?)),
            8 => done(Arrays::change(txn, first, last, value)?),
            9 => done(digest(&cells(txn, &[1], &[1, 255, 255])?)),
            10 => done(Arrays::change(txn, &[1], &[1, 255, 255], value)?),
            12 => done(digest(&cells(txn, &[1], &[1, 255, 255])?) ^ counter(txn)?),
            13 => {
                Arrays::count(txn, value)?;
                done(Arrays::change(txn, &[1], &[1, 255, 255], value)?)
            }
            15 => done(counter(txn)?),
            other => done(other),
        }
    }

    fn settle(&self, txn: &mut Txn<'_>, _: &Call, op: &Bytes, ran: Bytes) -> Result<Bytes, Fault> {
        let (first, last): (&[u8], &[u8]) = (&[1, op[1]], &[1, op[1], 255]);
        let mut answer = ran.to_vec();
        match op[0] {
            4..=6 => match Arrays::count(txn, op[4])? {
                Some(sum) => answer.push(sum),
                // Refused: what ran is undone.
                None => txn.rollback(),
            },
            11 => answer.push(Arrays::change(txn, first, last, op[4])?),
            14 => {
                answer.push(Arrays::change(txn, first, last, op[4])?);
                answer.extend(Arrays::count(txn, 1)?);
            }
            other => panic!("{other} does not settle"),
        }
        Ok(answer.into())
    }
}

fn op() -> impl Strategy<Value = Op> {
    let what = prop_oneof![12 => 0..9_u8, 3 => Just(14), 2 => 9..17_u8];
    (what, 1..4_u8, 0..8_u8, 0..4_u8, any::<u8>())
        .prop_map(|(what, array, from, more, value)| [what, array, from, from + more, value])
}

fn script(ops: &[Op]) -> Vec<Step> {
    let steps = ops.iter().enumerate().map(|(i, op)| Step {
        call: Call {
            client: PublicKey([7; 32]),
            session: SessionId(1),
            now: Time(i as u64 + 1),
        },
        op: Some(Bytes::copy_from_slice(op)),
    });
    steps.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

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
