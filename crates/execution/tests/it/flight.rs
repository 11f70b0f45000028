//! Operations beside each other, against the same ones after each other: batches with repeats, sessions that open, end and expire,
//! tentative batches that are kept or undone, checkpoints, reads, states that are given up, and restarts, under random schedules.

use std::sync::Arc;

use crate::arrays::{Arrays, Op, op};
use crate::support::flight::{Agreed, Bounds, Played, World};
use bytes::Bytes;
use proptest::prelude::*;
use quorate_execution::graph::{Conflicts, Scope, Uses};
use quorate_execution::{Broken, Call, Executor, Flight, Ran, Rest, Service, Workers};
use quorate_state::{Fault, MemorySnapshot, State, Txn};
use quorate_wire::message::session::KEPT_BYTES;
use quorate_wire::message::{Control, Request};
use quorate_wire::{Encode, PublicKey, RequestNumber, SessionId, Time};

const CLIENT: PublicKey = PublicKey([7; 32]);
const OTHER: PublicKey = PublicKey([8; 32]);

/// Whose a seat is. Where another's session is in it, it is used by whom it does not belong to.
fn client(seat: u64) -> PublicKey {
    match seat {
        4 | 5 => OTHER,
        _ => CLIENT,
    }
}

/// A request, before its number is known. Sessions are named by seats, each of which has the session that was opened last for it.
#[derive(Clone, Debug)]
enum Ask {
    /// In one of a few sessions, under a new number plus so much.
    Op(u64, i64, Op),
    /// Nothing but a sign of life, a new one or one that is shown again.
    Empty(u64, i64),
    /// Under a number of its own, or one that another session was opened with.
    Open(u64, bool),
    Close(u64),
}

fn ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        20 => (1..4_u64, Just(0), op()).prop_map(|(s, back, op)| Ask::Op(s, back, op)),
        // Repeats; numbers that share a slot with others; old ones; sessions that are not there.
        4 => (1..6_u64, -4..2_i64, op()).prop_map(|(s, back, op)| Ask::Op(s, back, op)),
        4 => (1..4_u64, prop_oneof![Just(64_i64), Just(-64)], op())
            .prop_map(|(s, back, op)| Ask::Op(s, back, op)),
        2 => (1..5_u64, prop_oneof![2 => Just(0), 1 => -4..2_i64])
            .prop_map(|(s, back)| Ask::Empty(s, back)),
        2 => (1..5_u64, prop::bool::weighted(0.2)).prop_map(|(s, again)| Ask::Open(s, again)),
        1 => (1..5_u64).prop_map(Ask::Close),
    ]
}

/// A batch: how long after the one before, and its requests.
type Batch = (u64, Vec<Ask>);

fn batch() -> impl Strategy<Value = Batch> {
    let passed = prop_oneof![6 => 0..2_000_u64, 2 => Just(7_000), 1 => Just(46_000)];
    (passed, prop::collection::vec(ask(), 1..12))
}

/// Gives requests their numbers.
struct Numbers {
    /// By seat, its session and the number of the next request there.
    seats: [(u64, u64); 8],
    opened: u64,
    time: u64,
}

impl Default for Numbers {
    fn default() -> Numbers {
        Numbers {
            seats: std::array::from_fn(|seat| (seat as u64, 0)),
            opened: 0,
            time: 1_000_000_000_000,
        }
    }
}

impl Numbers {
    /// Has a world agree on these, a millisecond later, and take up what it can.
    fn enter(&mut self, world: &mut World<Arrays>, asks: Vec<Ask>) {
        let batch = self.agreed(&(1, asks));
        world.begin(batch, false);
        world.proceed();
    }

    fn agreed(&mut self, (passed_ms, asks): &Batch) -> Agreed {
        self.time += passed_ms * 1_000_000;
        let mut request = |ask: &Ask| {
            let op = |op: &[u8]| Bytes::copy_from_slice(op);
            let mut number = |seat: u64, back: i64| {
                let (session, next) = &mut self.seats[seat as usize];
                *next += u64::from(back == 0);
                (*session, (*next).saturating_add_signed(back).max(1))
            };
            let (Ask::Op(seat, ..) | Ask::Empty(seat, _) | Ask::Open(seat, _) | Ask::Close(seat)) =
                ask;
            let client = client(*seat);
            let ((session, number), op) = match ask {
                Ask::Op(seat, back, body) => (number(*seat, *back), op(body)),
                Ask::Empty(seat, back) => (number(*seat, *back), Bytes::new()),
                Ask::Open(seat, again) => {
                    // The group counts the same, unless the order is changed by an undone batch.
                    if !again {
                        self.opened += 1;
                        self.seats[*seat as usize] = (self.opened, 0);
                    }
                    ((0, self.opened), op(&Control::Open(()).to_bytes()))
                }
                Ask::Close(seat) => {
                    let id = SessionId(self.seats[*seat as usize].0);
                    ((0, 1), op(&Control::Close(id).to_bytes()))
                }
            };
            // What the client says it has had the answers to: mostly nearly all before, sometimes too much, sometimes nothing. And sometimes that the result is to be kept,
            // whatever the operation is.
            if matches!(op.last(), Some(230..=250)) {
                return Request::kept(client, SessionId(session), RequestNumber(number), op);
            }
            let answered = match op.last() {
                Some(&value) if value < 200 => (number + 1).saturating_sub(u64::from(value % 8)),
                _ => 0,
            };
            let (number, answered) = (RequestNumber(number), RequestNumber(answered));
            Request::after(client, SessionId(session), number, answered, op)
        };
        let requests = asks.iter().map(&mut request).collect();
        let time = Time(self.time);
        Agreed { time, requests }
    }
}

/// Takes the batches in under a schedule.
fn play(
    batches: &[Batch],
    schedule: &[(u8, u8)],
    conflicts: Conflicts,
    threads: usize,
    (bounds, is_crowded): (Bounds, bool),
) -> Played {
    let mut numbers = Numbers::default();
    // Where a client has as many sessions as it can have, the ones that are used make room for others.
    let seats = [1, 2, 3].into_iter().chain([7; 13]);
    let opens = seats.map(|seat| Ask::Open(seat, false));
    let opens = (0, opens.take(if is_crowded { 16 } else { 3 }).collect());
    let batches = [&opens].into_iter().chain(batches);
    let batches = batches.map(|batch| numbers.agreed(batch)).collect();
    let reads = |which: u8| {
        let what = [0, 7, 9, 12, 15, 16][usize::from(which % 6)];
        let op = Bytes::copy_from_slice(&[what, 1 + which % 3, 0, 7, 0]);
        let session = 1 + u64::from(which / 64);
        Some((client(session), SessionId(session), op))
    };
    let world = World::new(Arrays, Arrays, conflicts, threads).within(bounds);
    world.play(batches, schedule, reads)
}

/// A result has six or seven bytes here, and some have more: of some there is room for few.
fn bounds() -> impl Strategy<Value = Bounds> {
    let kept_bytes = prop_oneof![1 => Just(KEPT_BYTES), 1 => 0..200_usize, 1 => 10..60_usize];
    let in_memory = prop_oneof![1 => Just(usize::MAX), 1 => 0..4_usize];
    (kept_bytes, in_memory, 1..4_u64).prop_map(|(kept_bytes, in_memory, interval)| Bounds {
        kept_bytes,
        in_memory,
        interval,
    })
}

fn keeping(kept_bytes: usize) -> Bounds {
    Bounds {
        kept_bytes,
        ..Bounds::default()
    }
}

proptest! {
    #![proptest_config(crate::cases::cases(1000))]

    /// Whatever the schedule, outcomes, checkpoints, reads and the state are those of the agreed order.
    #[test]
    fn beside_each_other_is_as_after_each_other(
        batches in prop::collection::vec(batch(), 1..30),
        schedule in prop::collection::vec(any::<(u8, u8)>(), 20..300),
        all_conflict in prop::bool::weighted(0.1),
        bounds in bounds(),
        is_crowded in prop::bool::weighted(0.3),
    ) {
        let conflicts = if all_conflict { Conflicts::All } else { Conflicts::Declared };
        play(&batches, &schedule, conflicts, 0, (bounds, is_crowded));
    }
}

proptest! {
    #![proptest_config(crate::cases::cases(60))]

    /// The same where jobs are at work on threads, which are over when they like.
    #[test]
    fn so_it_is_on_threads(
        batches in prop::collection::vec(batch(), 1..30),
        schedule in prop::collection::vec(any::<(u8, u8)>(), 20..300),
        bounds in bounds(),
        is_crowded in prop::bool::weighted(0.3),
    ) {
        play(&batches, &schedule, Conflicts::Declared, 4, (bounds, is_crowded));
    }
}

/// The property says something only if much is at work at once.
#[test]
fn much_is_at_work_at_once() {
    let asks =
        |at: u8| (0..10).map(move |i| Ask::Op(1 + u64::from(i % 3), 0, [2, 10 * at + i, 0, 1, i]));
    let batches: Vec<Batch> = (0..20).map(|at| (10, asks(at).collect())).collect();
    let schedule: Vec<(u8, u8)> = (0..97_u8).map(|i| (i.wrapping_mul(83) % 80, i)).collect();
    let most = play(
        &batches,
        &schedule,
        Conflicts::Declared,
        0,
        (Bounds::default(), false),
    )
    .most;
    assert!(most >= 40, "{most}");
}

/// And only if results go: of 20 operations in a batch each second one asks again for what was asked a while ago.
#[test]
fn some_results_are_gone_when_they_are_asked_for() {
    let asks = |at: u8| {
        (0..10).flat_map(move |i| {
            let op = [2, 10 * at + i, 0, 1, 255];
            [Ask::Op(1, 0, op), Ask::Op(1, -4, op)]
        })
    };
    let batches: Vec<Batch> = (0..20).map(|at| (10, asks(at).collect())).collect();
    let schedule: Vec<(u8, u8)> = (0..97_u8).map(|i| (i.wrapping_mul(83) % 230, i)).collect();
    let played = play(
        &batches,
        &schedule,
        Conflicts::Declared,
        0,
        (keeping(24), false),
    );
    assert!(played.gone >= 100 && played.most >= 2, "{played:?}");
}

/// Below a result that is gone nothing is kept, also where it comes later and there would be room: what counts is which requests were executed.
#[test]
fn below_a_result_that_is_gone_nothing_is_kept() {
    // By their numbers; the results of 3 and 5 have seven bytes, the others six.
    let op = |number, what| Ask::Op(1, number, [what, 1, 0, 1, 255]);
    let asks = vec![op(3, 4), op(4, 2), op(5, 4), op(2, 2)];
    // Asked again, one is gone and one is not.
    let batches = [(1, asks), (1, vec![op(2, 2), op(4, 2)])];
    let schedule: Vec<(u8, u8)> = (0..97_u8).map(|i| (i.wrapping_mul(83) % 80, i)).collect();
    let played = play(
        &batches,
        &schedule,
        Conflicts::Declared,
        0,
        (keeping(19), false),
    );
    assert_eq!(played.gone, 1);
}

/// An operation beyond a checkpoint that still waits comes to its end first. By its result others are gone for who asks, and none is in that
/// checkpoint.
#[test]
fn a_result_goes_beyond_a_checkpoint() {
    let mut world = World::new(Arrays, Arrays, Conflicts::Declared, 0).keeping(14);
    let mut numbers = Numbers::default();
    // Nothing is said of what was answered.
    let write = |array| Ask::Op(1, 0, [2, array, 0, 1, 255]);
    for (asks, which) in [
        (vec![Ask::Open(1, false)], 0),
        (vec![write(1), write(2)], 0),
        (vec![write(3)], 1),
    ] {
        numbers.enter(&mut world, asks);
        // The second operation stays at work.
        world.run(which);
        world.proceed();
    }
    assert_eq!((world.flight.marks(), world.running.len()), (1, 1));
    numbers.enter(&mut world, vec![write(4), write(5)]);
    world.run(1);
    world.run(1);
    world.proceed();
    // Whether the first is gone depends on the second.
    numbers.enter(&mut world, vec![Ask::Op(1, -4, [2, 1, 0, 1, 255])]);
    assert!(world.is_entering());
    assert_eq!((world.flight.marks(), world.running.len()), (1, 1));
    assert_eq!(world.finish().gone, 1);
}

/// A result that has gone by what was tentative is back when that is undone.
#[test]
fn what_is_undone_makes_no_result_go() {
    let mut world = World::new(Arrays, Arrays, Conflicts::Declared, 0).keeping(14);
    let mut numbers = Numbers::default();
    let write = |array, back| Ask::Op(1, back, [2, array, 0, 1, 255]);
    for asks in [
        vec![Ask::Open(1, false)],
        vec![write(1, 0)],
        vec![write(2, 0)],
    ] {
        numbers.enter(&mut world, asks);
        world.run(0);
        world.proceed();
    }
    assert_eq!((world.flight.marks(), world.running.len()), (0, 0));
    let batch = numbers.agreed(&(1, vec![write(3, 0)]));
    world.begin(batch, true);
    world.proceed();
    world.run(0);
    world.proceed();
    assert!(world.undo().is_some());
    // The first is asked for again; what was undone does not come any more.
    numbers.enter(&mut world, vec![write(1, -2)]);
    assert_eq!(world.finish().gone, 0);
}

/// A result that is gone counts again when what had said that it is answered is undone: no lower one is kept beside it.
#[test]
fn what_is_gone_counts_again_when_its_answer_is_undone() {
    let mut world = World::new(Arrays, Arrays, Conflicts::Declared, 0).keeping(40);
    let mut numbers = Numbers::default();
    // Of five bytes, and as many as the value is beyond a multiple of 40; only 0 says that all before was answered.
    let write = |number, value| Ask::Op(1, number, [19, 1, 0, 1, value]);
    let end_all = |world: &mut World<Arrays>| {
        while !world.running.is_empty() {
            world.run(0);
            world.proceed();
        }
    };
    numbers.enter(&mut world, vec![Ask::Open(1, false)]);
    // The second makes itself go.
    numbers.enter(&mut world, vec![write(5, 215), write(4, 220)]);
    end_all(&mut world);
    let batch = numbers.agreed(&(1, vec![write(6, 0)]));
    world.begin(batch, true);
    world.proceed();
    end_all(&mut world);
    assert!(world.undo().is_some());
    for _ in 0..2 {
        numbers.enter(&mut world, vec![write(3, 200)]);
        end_all(&mut world);
    }
    assert_eq!(world.finish().gone, 1);
}

/// A session leaves memory when a checkpoint is frozen beyond which it has said that a reply is answered: the next checkpoint is without that reply.
#[test]
fn who_leaves_memory_has_its_answered_replies_taken_away() {
    let bounds = Bounds {
        in_memory: 0,
        ..Bounds::default()
    };
    let mut world = World::new(Arrays, Arrays, Conflicts::Declared, 0).within(bounds);
    let mut numbers = Numbers::default();
    let write = |seat, array| Ask::Op(seat, 0, [2, array, 0, 1, 8]);
    for asks in [
        vec![Ask::Open(1, false), Ask::Open(2, false)],
        // The first stays at work.
        vec![write(2, 2), write(1, 1)],
        vec![Ask::Empty(3, 0)],
        // It says that the one before is answered.
        vec![write(1, 3)],
    ] {
        numbers.enter(&mut world, asks);
        if world.running.len() > 1 {
            world.run(1);
            world.proceed();
        }
    }
    assert_eq!((world.flight.marks(), world.running.len()), (1, 1));
    world.run(0);
    world.proceed();
    assert_eq!((world.flight.marks(), world.running.len()), (0, 0));
    numbers.enter(&mut world, vec![Ask::Empty(3, 0)]);
    numbers.enter(&mut world, vec![Ask::Empty(3, 0)]);
    world.finish();
}

/// A reply takes another's place after a checkpoint that still waits: the checkpoint has the one before.
#[test]
fn a_reply_is_replaced_beyond_a_checkpoint() {
    let mut world = World::new(Arrays, Arrays, Conflicts::Declared, 0);
    let mut numbers = Numbers::default();
    let write = |array, back| Ask::Op(1, back, [2, array, 0, 1, 9]);
    for (asks, which) in [
        (vec![Ask::Open(1, false)], 0),
        (vec![write(1, 0), write(2, 0)], 0),
        (vec![write(3, 0)], 1),
    ] {
        numbers.enter(&mut world, asks);
        // The second operation stays at work.
        world.run(which);
        world.proceed();
    }
    assert_eq!((world.flight.marks(), world.running.len()), (1, 1));
    // Number 65, which has the slot of number 1.
    numbers.enter(&mut world, vec![write(4, 62)]);
    world.run(1);
    world.proceed();
    assert_eq!((world.flight.marks(), world.running.len()), (1, 1));
    world.finish();
}

/// A session of which nothing is at work ends beside operations of others, and what comes after it is at work with these, if it held nothing.
#[test]
fn a_session_that_holds_nothing_ends_beside_others() {
    let mut world = World::new(Arrays, Arrays, Conflicts::Declared, 0);
    let mut numbers = Numbers::default();
    let write = |seat, array| Ask::Op(seat, 0, [2, array, 0, 1, 9]);
    for asks in [
        (1..4).map(|seat| Ask::Open(seat, false)).collect(),
        // One is at work.
        vec![write(2, 2)],
        vec![Ask::Close(1), write(1, 1), write(3, 3)],
    ] {
        numbers.enter(&mut world, asks);
    }
    assert!(!world.is_entering());
    assert_eq!(world.running.len(), 2);
    world.finish();
}

/// What a session held waits for who uses it, and for nobody else; what comes after that waits as long.
#[test]
fn what_is_let_go_of_waits_for_who_uses_it() {
    let mut world = World::new(Arrays, Arrays, Conflicts::Declared, 0);
    let mut numbers = Numbers::default();
    let write = |seat, array| Ask::Op(seat, 0, [2, array, 0, 1, 9]);
    let hold = |seat, array| Ask::Op(seat, 0, [17, array, 0, 0, 5]);
    for asks in [
        vec![
            Ask::Open(1, false),
            Ask::Open(2, false),
            Ask::Open(3, false),
        ],
        vec![hold(1, 1), hold(1, 2)],
    ] {
        numbers.enter(&mut world, asks);
    }
    while !world.running.is_empty() {
        world.run(0);
        world.proceed();
    }
    // Of what it holds the second is in use, and something that it does not hold.
    for asks in [
        vec![write(2, 3), write(2, 2)],
        vec![Ask::Close(1), write(3, 4), write(3, 5)],
    ] {
        numbers.enter(&mut world, asks);
    }
    assert!(world.is_entering());
    assert_eq!(world.running.len(), 2);
    world.run(1);
    world.proceed();
    assert!(!world.is_entering());
    assert_eq!(world.running.len(), 3);
    world.finish();
}

/// A session ends when what is at work in it is done.
#[test]
fn a_session_ends_after_its_own_operations() {
    let mut world = World::new(Arrays, Arrays, Conflicts::Declared, 0);
    let mut numbers = Numbers::default();
    let write = |seat, array| Ask::Op(seat, 0, [2, array, 0, 1, 9]);
    for asks in [
        vec![Ask::Open(1, false), Ask::Open(2, false)],
        vec![write(2, 2), write(1, 1)],
        vec![Ask::Close(1), write(2, 3)],
    ] {
        numbers.enter(&mut world, asks);
    }
    assert!(world.is_entering());
    assert_eq!(world.running.len(), 2);
    world.run(1);
    world.proceed();
    assert!(!world.is_entering());
    assert_eq!(world.running.len(), 2);
    world.finish();
}

/// A session ends beyond a checkpoint that still waits: the checkpoint has the session with its replies, of which some are gone.
#[test]
fn a_session_ends_beyond_a_checkpoint() {
    let mut world = World::new(Arrays, Arrays, Conflicts::Declared, 0).keeping(14);
    let mut numbers = Numbers::default();
    // Nothing is said of what was answered.
    let write = |seat, array| Ask::Op(seat, 0, [2, array, 0, 1, 255]);
    for asks in [
        vec![Ask::Open(1, false), Ask::Open(2, false)],
        // This one stays at work.
        vec![write(2, 2)],
        (3..8).map(|array| write(1, array)).collect(),
    ] {
        numbers.enter(&mut world, asks);
    }
    while world.running.len() > 1 {
        world.run(1);
        world.proceed();
    }
    assert_eq!((world.flight.marks(), world.running.len()), (1, 1));
    numbers.enter(&mut world, vec![write(1, 3), write(1, 4)]);
    world.run(1);
    world.run(1);
    world.proceed();
    numbers.enter(&mut world, vec![Ask::Close(1)]);
    assert!(!world.is_entering());
    assert_eq!((world.flight.marks(), world.running.len()), (1, 1));
    world.finish();
}

/// A session ends beyond several checkpoints that wait: what the first of them takes away, since it is answered, is not back in the next one, where
/// others of its results are gone.
#[test]
fn what_is_answered_is_not_back_when_a_session_ends() {
    let mut world = World::new(Arrays, Arrays, Conflicts::Declared, 0).keeping(14);
    let mut numbers = Numbers::default();
    // Nothing is said of what was answered, or that all before was.
    let write = |seat, array| Ask::Op(seat, 0, [2, array, 0, 1, 255]);
    let answered = |array| Ask::Op(1, 0, [2, array, 0, 1, 8]);
    for asks in [
        vec![Ask::Open(1, false), Ask::Open(2, false)],
        // This one stays at work.
        vec![write(2, 2)],
        vec![write(1, 3), write(1, 4)],
        vec![answered(3)],
        vec![Ask::Empty(2, 0)],
        vec![Ask::Empty(2, 0)],
        vec![write(1, 3), write(1, 4), write(1, 5)],
        vec![Ask::Empty(2, 0)],
        vec![Ask::Empty(2, 0)],
    ] {
        numbers.enter(&mut world, asks);
        while world.running.len() > 1 {
            world.run(1);
            world.proceed();
        }
    }
    assert_eq!((world.flight.marks(), world.running.len()), (3, 1));
    numbers.enter(&mut world, vec![Ask::Close(1)]);
    assert!(!world.is_entering());
    world.finish();
}

/// An operation that was ordered twice has its end once, and what comes after it need not wait for that.
#[test]
fn nothing_waits_for_a_twin() {
    let mut world = World::new(Arrays, Arrays, Conflicts::Declared, 0);
    let mut numbers = Numbers::default();
    let write = |session, array, back| Ask::Op(session, back, [2, array, 0, 1, 9]);
    for asks in [
        vec![Ask::Open(1, false), Ask::Open(2, false)],
        vec![write(1, 1, 0)],
        vec![write(1, 1, -1), write(1, 1, -1), write(2, 2, 0)],
    ] {
        numbers.enter(&mut world, asks);
    }
    assert!(!world.is_entering());
    assert_eq!((world.twins.len(), world.running.len()), (2, 2));
    world.finish();
}

/// An operation that fails on a worker takes the replica out; not if it was given up.
#[test]
fn a_failure_is_told() {
    let mut world = World::new(Arrays, Arrays, Conflicts::Declared, 0);
    let mut numbers = Numbers::default();
    for asks in [
        vec![Ask::Open(1, false)],
        vec![Ask::Op(1, 0, [2, 1, 0, 1, 1])],
    ] {
        numbers.enter(&mut world, asks);
    }
    let job = world.running.pop().unwrap();
    let told = world.flight.complete(job.failed("out of luck".into()));
    assert_eq!(told, Err(Broken::Died("out of luck".into())));

    let batch = numbers.agreed(&(1, vec![Ask::Op(1, 0, [2, 2, 0, 1, 1])]));
    world.begin(batch, true);
    world.proceed();
    world.undo();
    let job = world.running.pop().unwrap();
    assert_eq!(
        world.flight.complete(job.failed("out of luck".into())),
        Ok(())
    );
}

/// Counts in one place, which all operations settle; one of them can't.
struct Counting;

const COUNT: &[u8] = &[0x80];
const BAD: &[u8] = b"bad";

impl Service for Counting {
    fn genesis(&self, _: &mut Txn<'_>) -> Result<(), Fault> {
        Ok(())
    }

    fn is_read_only(&self, _: &[u8]) -> bool {
        false
    }

    fn execute(&self, txn: &mut Txn<'_>, call: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        self.settle(txn, call, op, Bytes::new())
    }

    fn session_ended(&self, _: &mut Txn<'_>, _: &Call) -> Result<Rest, Fault> {
        Ok(Rest::Nothing)
    }

    fn uses(&self, _: &Call, op: &Bytes) -> Uses {
        let own = Uses::none().write(Scope::named(1, op));
        own.settle(Scope::named(2, COUNT))
    }

    fn run(&self, _: &mut Txn<'_>, _: &Call, _: &Bytes) -> Result<Ran, Fault> {
        Ok(Ran::Settle(Bytes::new()))
    }

    fn settle(&self, txn: &mut Txn<'_>, _: &Call, op: &Bytes, _: Bytes) -> Result<Bytes, Fault> {
        let count = txn.get(COUNT)?.map_or(0, |count| count[0]) + 1;
        txn.put(Bytes::from_static(COUNT), Bytes::from(vec![count]));
        match &op[..] {
            BAD => Err(Fault::Store("it is broken".into())),
            _ => Ok(Bytes::from(vec![count])),
        }
    }
}

/// A settle step that fails is told once, and leaves nothing; what conflicts with it does not wait for it.
#[test]
fn a_settle_step_that_fails_is_over() {
    let mut executor = Executor::new(Counting);
    let mut state = State::new(Arc::new(MemorySnapshot::default()));
    executor.genesis(&mut state).unwrap();
    let mut flight: Flight<usize> = Flight::new(Workers::default());
    let open = Control::Open(()).to_bytes().into();
    let open = Request::new(CLIENT, SessionId(0), RequestNumber(1), open);
    executor.execute(&mut state, Time(1), &[open]).unwrap();
    let ops = [&b"one"[..], BAD, BAD, b"two"];
    for (at, op) in ops.into_iter().enumerate() {
        let number = RequestNumber(at as u64 + 1);
        let request = Request::new(CLIENT, SessionId(1), number, Bytes::from_static(op));
        let time = (Time(2), at == 0);
        let entered = flight.enter(&mut executor, &mut state, time, &request, || at);
        assert!(entered.unwrap());
    }
    let (mut done, mut faults) = (Vec::new(), 0);
    // As often as there are operations and then some: it comes to its end by itself.
    for _ in 0..20 {
        match flight.proceed(&mut executor, &mut state) {
            Ok(_) => {}
            Err(fault) => {
                assert_eq!(fault, Fault::Store("it is broken".into()));
                faults += 1;
            }
        }
        flight.invariants();
        for job in flight.take_jobs() {
            flight.complete(job.run(&Counting)).unwrap();
        }
        done.extend(flight.take_done().into_iter().map(|done| done.tag));
    }
    assert_eq!((faults, &done[..]), (2, &[0, 3][..]));
    assert!(flight.is_done_before(flight.next_id()));
    let count = state.begin().get(COUNT).unwrap();
    assert_eq!(count.as_deref(), Some(&[2][..]), "what failed is not kept");
}

/// Does nothing.
struct Null(Conflicts);

impl Service for Null {
    fn genesis(&self, _: &mut Txn<'_>) -> Result<(), Fault> {
        Ok(())
    }

    fn is_read_only(&self, _: &[u8]) -> bool {
        false
    }

    fn execute(&self, _: &mut Txn<'_>, _: &Call, _: &Bytes) -> Result<Bytes, Fault> {
        Ok(Bytes::new())
    }

    fn session_ended(&self, _: &mut Txn<'_>, _: &Call) -> Result<Rest, Fault> {
        Ok(Rest::Nothing)
    }

    fn uses(&self, _: &Call, _: &Bytes) -> Uses {
        match self.0 {
            Conflicts::Declared => Uses::none(),
            Conflicts::All => Uses::everything(),
        }
    }
}

/// What an operation that does nothing costs, without threads: executed inline, and by way of the graph. Run with
/// `--release -- --ignored --nocapture cost`.
#[test]
#[ignore = "a measurement"]
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn cost_of_an_operation() {
    const ROUNDS: u64 = 5_000;
    const BATCH: u64 = 64;
    let requests: Vec<Vec<Request>> = (0..=ROUNDS)
        .map(|round| match round {
            0 => {
                let op = Control::Open(()).to_bytes().into();
                vec![Request::new(CLIENT, SessionId(0), RequestNumber(1), op)]
            }
            _ => {
                let number = |i| RequestNumber((round - 1) * BATCH + i + 1);
                let null = Bytes::from_static(&[0; 13]);
                let request = |i| Request::new(CLIENT, SessionId(1), number(i), null.clone());
                (0..BATCH).map(request).collect()
            }
        })
        .collect();
    let begin = |conflicts| {
        let executor = Executor::new(Null(conflicts));
        let mut state = State::new(Arc::new(MemorySnapshot::default()));
        executor.genesis(&mut state).unwrap();
        (executor, state)
    };
    let show = |what: &str, start: std::time::Instant| {
        let each = start.elapsed().as_nanos() / u128::from(ROUNDS * BATCH);
        println!("{what}: {each} ns an operation");
    };
    for _ in 0..3 {
        let (mut executor, mut state) = begin(Conflicts::All);
        let start = std::time::Instant::now();
        for (at, requests) in (1..).zip(&requests) {
            let done = executor.execute(&mut state, Time(at), requests).unwrap();
            assert_eq!(done.len(), requests.len());
        }
        show("inline", start);
        for conflicts in [Conflicts::All, Conflicts::Declared] {
            let (mut executor, mut state) = begin(conflicts);
            let workers = Workers {
                count: 16,
                ..Workers::default()
            };
            let mut flight: Flight<usize> = Flight::new(workers);
            let start = std::time::Instant::now();
            for (at, requests) in (1..).zip(&requests) {
                let mut done = 0;
                for (i, request) in requests.iter().enumerate() {
                    let (executor, state) = (&mut executor, &mut state);
                    let time = (Time(at), i == 0);
                    let entered = flight.enter(executor, state, time, request, || i);
                    assert!(entered.unwrap());
                }
                while done < requests.len() {
                    flight.proceed(&mut executor, &mut state).unwrap();
                    done += flight.take_done().len();
                    for job in flight.take_jobs() {
                        flight.complete(job.run(&Null(conflicts))).unwrap();
                    }
                }
            }
            show(&format!("by way of the graph, {conflicts:?}"), start);
        }
    }
}

/// A value that is named in a read's answer is what executing the operation answers.
#[test]
fn what_is_named_is_what_is_answered() {
    let mut state = State::new(Arc::new(MemorySnapshot::default()));
    let call = Call {
        client: CLIENT,
        session: SessionId(1),
        now: Time(0),
    };
    let counter = Bytes::from_static(&[15, 1, 0, 0, 0]);
    for count in [None, Some(7)] {
        let mut txn = state.begin();
        if let Some(count) = count {
            txn.put(Bytes::from_static(&[2]), Bytes::copy_from_slice(&[count]));
        }
        let answer = Arrays.execute(&mut txn, &call, &counter).unwrap();
        let reading = Arrays.read(&mut txn, &call, &counter).unwrap();
        assert_eq!(reading.gather(&txn).unwrap(), answer);
        assert_eq!(reading.length(), answer.len());
        txn.commit();
    }
}
