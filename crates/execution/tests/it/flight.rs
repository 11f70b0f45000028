//! Operations beside each other, against the same ones after each other: batches with repeats, sessions that open, end and expire,
//! tentative batches that are kept or undone, checkpoints, reads, states that are given up, and restarts, under random schedules.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use crate::arrays::{Arrays, Op, op};
use bytes::Bytes;
use proptest::prelude::*;
use quorate_execution::graph::{Conflicts, Scope, Uses};
use quorate_execution::{
    Broken, Cached, Call, Done, Executor, Flight, Job, Ran, Rest, Service, Workers,
};
use quorate_state::{Fault, MemorySnapshot, State, Txn};
use quorate_wire::message::{Control, Request};
use quorate_wire::{Digest, Encode, PublicKey, RequestNumber, Seq, SessionId, Time};

const CLIENT: PublicKey = PublicKey([7; 32]);
/// Batches from checkpoint to checkpoint.
const INTERVAL: u64 = 3;

/// A request, before its number is known.
#[derive(Clone, Debug)]
enum Ask {
    /// In one of a few sessions, under a new number plus so much.
    Op(u64, i64, Op),
    /// Nothing but a sign of life.
    Empty(u64),
    Open(u64),
    Close(u64),
}

fn ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        20 => (1..4_u64, Just(0), op()).prop_map(|(s, back, op)| Ask::Op(s, back, op)),
        // Repeats; numbers that share a slot with others; old ones; sessions that are not there.
        4 => (1..6_u64, -4..2_i64, op()).prop_map(|(s, back, op)| Ask::Op(s, back, op)),
        4 => (1..4_u64, prop_oneof![Just(64_i64), Just(-64)], op())
            .prop_map(|(s, back, op)| Ask::Op(s, back, op)),
        1 => (1..5_u64).prop_map(Ask::Empty),
        1 => (0..20_u64).prop_map(Ask::Open),
        1 => (1..5_u64).prop_map(Ask::Close),
    ]
}

/// A batch: how long after the one before, and its requests.
type Batch = (u64, Vec<Ask>);

fn batch() -> impl Strategy<Value = Batch> {
    let passed = prop_oneof![6 => 0..2_000_u64, 2 => Just(7_000), 1 => Just(46_000)];
    (passed, prop::collection::vec(ask(), 1..12))
}

/// What an operation comes with: in which attempt, and which of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    Request(u64, usize),
    Read(usize),
}

#[derive(Clone, Debug)]
struct Agreed {
    time: Time,
    requests: Vec<Request>,
}

/// A batch that enters.
struct Entering {
    attempt: u64,
    batch: Agreed,
    next: usize,
}

struct World {
    executor: Executor<Arrays>,
    state: State,
    conflicts: Conflicts,
    flight: Flight<Tag>,
    running: Vec<Job>,
    entering: Option<Entering>,
    tentative: Option<(u64, Agreed)>,
    attempts: u64,
    /// By attempt, what came of it and what should.
    found: Vec<Vec<Option<Bytes>>>,
    expected: Vec<Option<Vec<Bytes>>>,
    reads: Vec<(Bytes, Option<Bytes>)>,
    /// Requests that were at work when they came again: the first time is answered.
    twins: BTreeSet<(u64, usize)>,
    /// Layers on their way to the store.
    layers: Vec<(Seq, Arc<quorate_state::Layer>)>,
    snapshot: MemorySnapshot,
    seq: u64,
    /// What was agreed and what came of it, by its place: what a replica has in its log, and takes in again after a restart.
    log: Vec<(Agreed, Vec<Bytes>)>,
    /// The place of the snapshot, and that of the last batch that was begun: behind `seq` while the log is taken in again.
    stored: u64,
    at: u64,
    /// The same in order.
    reference: (Executor<Arrays>, State),
    roots: Vec<(Seq, Digest)>,
    /// The most jobs at once.
    most: usize,
}

fn snapshot_of(state: &mut State) -> MemorySnapshot {
    let all = (Bound::Unbounded, Bound::Unbounded, usize::MAX);
    let entries = state.begin().range(all.0, all.1, all.2).unwrap();
    let layer = entries.into_iter().map(|(k, v)| (k, Some(v))).collect();
    MemorySnapshot::default().apply(&layer).unwrap().0
}

impl World {
    fn new(conflicts: Conflicts) -> World {
        let begin = || {
            let executor = Executor::new(Arrays);
            let mut state = State::new(Arc::new(MemorySnapshot::default()));
            executor.genesis(&mut state).unwrap();
            (executor, state)
        };
        let (executor, state) = begin();
        World {
            executor,
            state,
            conflicts,
            flight: Flight::new(Workers {
                count: 1,
                conflicts,
            }),
            running: Vec::new(),
            entering: None,
            tentative: None,
            attempts: 0,
            found: Vec::new(),
            expected: Vec::new(),
            reads: Vec::new(),
            twins: BTreeSet::new(),
            layers: Vec::new(),
            snapshot: MemorySnapshot::default(),
            seq: 0,
            log: Vec::new(),
            stored: 0,
            at: 0,
            reference: begin(),
            roots: Vec::new(),
            most: 0,
        }
    }

    fn begin(&mut self, batch: Agreed, is_tentative: bool) {
        assert!(self.entering.is_none() && self.tentative.is_none());
        let attempt = self.attempt(&batch, None);
        if is_tentative {
            let begun = self
                .flight
                .begin_tentative(&mut self.executor, &mut self.state);
            begun.unwrap();
            self.tentative = Some((attempt, batch.clone()));
        } else {
            self.agree(attempt, &batch);
        }
        self.entering = Some(Entering {
            attempt,
            batch,
            next: 0,
        });
        self.enter();
    }

    /// A place for what comes of a batch, and should, if that is known yet.
    fn attempt(&mut self, batch: &Agreed, expected: Option<Vec<Bytes>>) -> u64 {
        self.found.push(vec![None; batch.requests.len()]);
        self.expected.push(expected);
        self.attempts += 1;
        self.attempts - 1
    }

    /// The batch is executed for good, in order.
    fn agree(&mut self, attempt: u64, batch: &Agreed) {
        self.seq += 1;
        self.at = self.seq;
        let (executor, state) = &mut self.reference;
        let done = executor
            .execute(state, batch.time, &batch.requests)
            .unwrap();
        let outcomes: Vec<Bytes> = done.into_iter().map(|d| d.outcome).collect();
        self.log.push((batch.clone(), outcomes.clone()));
        self.expected[attempt as usize] = Some(outcomes);
        if self.seq.is_multiple_of(INTERVAL) {
            executor.flush(state);
            let layer = snapshot_of(state);
            let layer = layer.entries.into_iter().map(|(k, v)| (k, Some(v)));
            let (_, root) = MemorySnapshot::default().apply(&layer.collect()).unwrap();
            self.roots.push((Seq(self.seq), root));
        }
    }

    fn enter(&mut self) {
        while let Some(Entering {
            attempt,
            batch,
            next,
        }) = &mut self.entering
        {
            let Some(request) = batch.requests.get(*next) else {
                self.entering = None;
                if self.tentative.is_none() {
                    self.on_entered();
                }
                return;
            };
            let tag = Tag::Request(*attempt, *next);
            let at = (batch.time, *next == 0);
            let (executor, state) = (&mut self.executor, &mut self.state);
            let (session, number) = (request.session(), request.number());
            let cached = executor.cached(state, CLIENT, session, number).unwrap();
            if session != SessionId(0) && cached == Cached::AtWork {
                self.twins.insert((*attempt, *next));
            }
            if !self
                .flight
                .enter(executor, state, at, request, || tag)
                .unwrap()
            {
                return;
            }
            *next += 1;
        }
    }

    fn on_entered(&mut self) {
        if self.at.is_multiple_of(INTERVAL) {
            let (executor, state) = (&mut self.executor, &mut self.state);
            self.flight.mark(executor, state, Seq(self.at));
        }
    }

    fn keep(&mut self) {
        let Some((attempt, batch)) = self.tentative.take() else {
            return;
        };
        let (executor, state) = (&mut self.executor, &mut self.state);
        self.flight.keep_tentative(executor, state);
        self.agree(attempt, &batch);
        if self.entering.is_none() {
            self.on_entered();
        }
    }

    fn undo(&mut self) -> Option<Agreed> {
        let (attempt, batch) = self.tentative.take()?;
        let (executor, state) = (&mut self.executor, &mut self.state);
        self.flight.drop_tentative(executor, state);
        self.entering = None;
        // Nothing may come of it from here on.
        self.found[attempt as usize].clear();
        Some(batch)
    }

    fn read(&mut self, op: Op) {
        let op = Bytes::copy_from_slice(&op);
        let (executor, state) = &mut self.reference;
        let expected = executor.read(state, CLIENT, SessionId(1), &op).unwrap();
        let tag = Tag::Read(self.reads.len());
        let (executor, state) = (&mut self.executor, &mut self.state);
        let who = (CLIENT, SessionId(1));
        let entered = self.flight.enter_read(executor, state, who, &op, || tag);
        if let (true, Some(expected)) = (entered.unwrap(), expected) {
            self.reads.push((expected, None));
        }
    }

    /// The state comes from elsewhere, as after a transfer.
    fn give_up(&mut self) {
        self.flight.give_up(&mut self.executor);
        self.entering = None;
        let (executor, state) = &mut self.reference;
        executor.flush(state);
        self.snapshot = snapshot_of(state);
        self.state = State::new(Arc::new(self.snapshot.clone()));
        self.layers.clear();
        self.stored = self.seq;
        self.forgive();
    }

    /// What has no answer yet never gets one.
    fn forgive(&mut self) {
        self.reads.iter_mut().for_each(|(expected, found)| {
            found.get_or_insert(expected.clone());
        });
        for (found, expected) in self.found.iter_mut().zip(&self.expected) {
            for (found, expected) in found.iter_mut().zip(expected.iter().flatten()) {
                found.get_or_insert(expected.clone());
            }
        }
    }

    /// The replica dies and starts again: with the state that the store has, and with what its log has from there on. What was at work is gone, and so
    /// is a tentative batch, which is to be agreed on again.
    fn restart(&mut self, choices: &mut dyn Iterator<Item = (u8, u8)>) -> Option<Agreed> {
        let undone = self.undo();
        let workers = Workers {
            count: 1,
            conflicts: self.conflicts,
        };
        (self.executor, self.flight) = (Executor::new(Arrays), Flight::new(workers));
        self.state = State::new(Arc::new(self.snapshot.clone()));
        self.entering = None;
        self.running.clear();
        self.layers.clear();
        self.forgive();
        if self.stored == 0 {
            self.executor.genesis(&mut self.state).unwrap();
        }
        for seq in self.stored + 1..=self.seq {
            let (batch, outcomes) = self.log[seq as usize - 1].clone();
            let attempt = self.attempt(&batch, Some(outcomes));
            self.at = seq;
            self.entering = Some(Entering {
                attempt,
                batch,
                next: 0,
            });
            self.proceed();
            while self.entering.is_some() {
                self.run(choices.next().map_or(0, |(_, which)| which));
                self.proceed();
            }
        }
        undone
    }

    /// What follows of the last input.
    fn proceed(&mut self) {
        loop {
            self.enter();
            let (executor, state) = (&mut self.executor, &mut self.state);
            let has_moved = self.flight.proceed(executor, state).unwrap();
            self.flight.invariants();
            for Done {
                tag,
                outcome,
                is_tentative,
            } in self.flight.take_done()
            {
                let found = match tag {
                    Tag::Read(at) => &mut self.reads[at].1,
                    Tag::Request(attempt, at) => {
                        let tentative = self.tentative.as_ref().map(|t| t.0);
                        assert_eq!(is_tentative, tentative == Some(attempt));
                        &mut self.found[attempt as usize][at]
                    }
                };
                assert!(found.replace(outcome).is_none(), "{tag:?} is done twice");
            }
            self.layers.extend(self.flight.take_layers());
            if !has_moved {
                break;
            }
        }
        self.running.extend(self.flight.take_jobs());
        self.most = self.most.max(self.running.len());
    }

    fn run(&mut self, which: u8) {
        if !self.running.is_empty() {
            let at = usize::from(which) % self.running.len();
            let job = self.running.swap_remove(at);
            self.flight.complete(job.run(&Arrays)).unwrap();
        }
    }

    /// The store has the oldest layer.
    fn store(&mut self) {
        if !self.layers.is_empty() {
            let (seq, layer) = self.layers.remove(0);
            let (snapshot, root) = self.snapshot.apply(&layer).unwrap();
            let expected = self.roots.iter().find(|(at, _)| *at == seq).unwrap();
            assert_eq!(root, expected.1, "the state at {seq:?}");
            self.snapshot = snapshot.clone();
            self.stored = seq.0;
            self.state.stored(seq, Arc::new(snapshot));
        }
    }

    /// All comes to its end, and is as it should be.
    fn finish(mut self) -> usize {
        self.keep();
        self.proceed();
        while !self.running.is_empty() {
            self.run(0);
            self.proceed();
        }
        assert!(self.entering.is_none() && self.flight.marks() == 0);
        while !self.layers.is_empty() {
            self.store();
        }
        for (attempt, (found, expected)) in self.found.iter().zip(&self.expected).enumerate() {
            for (at, (found, expected)) in found.iter().zip(expected.iter().flatten()).enumerate() {
                let is_twin = self.twins.contains(&(attempt as u64, at));
                assert!(found.as_ref() == Some(expected) || is_twin && found.is_none());
            }
        }
        for (expected, found) in &self.reads {
            assert_eq!(found.as_ref(), Some(expected), "what was read");
        }
        self.executor.flush(&mut self.state);
        self.reference.0.flush(&mut self.reference.1);
        let [ours, theirs] = [&mut self.state, &mut self.reference.1].map(snapshot_of);
        assert_eq!(ours.entries, theirs.entries);
        self.most
    }
}

/// Gives requests their numbers.
struct Numbers {
    next: [u64; 8],
    time: u64,
}

impl Numbers {
    fn agreed(&mut self, (passed_ms, asks): &Batch) -> Agreed {
        self.time += passed_ms * 1_000_000;
        let mut request = |ask: &Ask| {
            let op = |op: &[u8]| Bytes::copy_from_slice(op);
            let mut number = |session: u64, back: i64| {
                let next = &mut self.next[session as usize];
                *next += u64::from(back == 0);
                (*next).saturating_add_signed(back).max(1)
            };
            let (session, number, op) = match ask {
                Ask::Op(session, back, body) => (*session, number(*session, *back), op(body)),
                Ask::Empty(session) => (*session, number(*session, 0), Bytes::new()),
                Ask::Open(nonce) => (0, *nonce, op(&Control::Open(()).to_bytes())),
                Ask::Close(id) => (0, 1, op(&Control::Close(SessionId(*id)).to_bytes())),
            };
            // What the client says it has had the answers to: mostly nearly all before, sometimes too much, sometimes nothing.
            let answered = match op.last() {
                Some(&value) if value < 200 => (number + 1).saturating_sub(u64::from(value % 8)),
                _ => 0,
            };
            let (number, answered) = (RequestNumber(number), RequestNumber(answered));
            Request::after(CLIENT, SessionId(session), number, answered, op)
        };
        let requests = asks.iter().map(&mut request).collect();
        let time = Time(self.time);
        Agreed { time, requests }
    }
}

/// Takes the batches in under a schedule.
fn play(batches: &[Batch], schedule: &[(u8, u8)], conflicts: Conflicts) -> usize {
    let mut world = World::new(conflicts);
    let mut numbers = Numbers {
        next: [0; 8],
        time: 1_000_000_000_000,
    };
    let opens = (0, (101..104).map(Ask::Open).collect());
    let mut waiting: Vec<Agreed> = [&opens]
        .into_iter()
        .chain(batches)
        .map(|batch| numbers.agreed(batch))
        .collect();
    // Taken from the end; turned only now, since numbers and times are given in the order.
    waiting.reverse();
    let mut choices = schedule.iter().copied().cycle();
    let mut steps = 0;
    while !waiting.is_empty() {
        let (what, which) = choices.next().unwrap();
        steps += 1;
        // A schedule that never lets anything run, or undoes all, is brought to an end.
        let what = if steps > 3_000 {
            steps as u8 % 120
        } else {
            what
        };
        let is_free = world.entering.is_none() && world.tentative.is_none();
        match what {
            0..=59 if is_free => world.begin(waiting.pop().unwrap(), which % 3 == 0),
            60..=139 => world.run(which),
            140..=169 => world.keep(),
            170..=179 => waiting.extend(world.undo()),
            180..=199 => world.store(),
            200..=229 if is_free => world.read([
                [0, 7, 9, 12, 15, 16][usize::from(which % 6)],
                1 + which % 3,
                0,
                7,
                0,
            ]),
            230..=231 if world.tentative.is_none() => world.give_up(),
            232..=233 => waiting.extend(world.restart(&mut choices)),
            _ if steps > 3_000 => world.keep(),
            _ => {}
        }
        world.proceed();
    }
    world.finish()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    /// Whatever the schedule, outcomes, checkpoints, reads and the state are those of the agreed order.
    #[test]
    fn beside_each_other_is_as_after_each_other(
        batches in prop::collection::vec(batch(), 1..30),
        schedule in prop::collection::vec(any::<(u8, u8)>(), 20..300),
        all_conflict in prop::bool::weighted(0.1),
    ) {
        let conflicts = if all_conflict { Conflicts::All } else { Conflicts::Declared };
        play(&batches, &schedule, conflicts);
    }
}

/// The property says something only if much is at work at once.
#[test]
fn much_is_at_work_at_once() {
    let asks =
        |at: u8| (0..10).map(move |i| Ask::Op(1 + u64::from(i % 3), 0, [2, 10 * at + i, 0, 1, i]));
    let batches: Vec<Batch> = (0..20).map(|at| (10, asks(at).collect())).collect();
    let schedule: Vec<(u8, u8)> = (0..97_u8).map(|i| (i.wrapping_mul(83) % 80, i)).collect();
    let most = play(&batches, &schedule, Conflicts::Declared);
    assert!(most >= 40, "{most}");
}

/// A reply takes another's place after a checkpoint that still waits: the checkpoint has the one before.
#[test]
fn a_reply_is_replaced_beyond_a_checkpoint() {
    let mut world = World::new(Conflicts::Declared);
    let mut numbers = Numbers {
        next: [0; 8],
        time: 1_000_000_000_000,
    };
    let write = |array, back| Ask::Op(1, back, [2, array, 0, 1, 9]);
    for (asks, which) in [
        (vec![Ask::Open(1)], 0),
        (vec![write(1, 0), write(2, 0)], 0),
        (vec![write(3, 0)], 1),
    ] {
        let batch = numbers.agreed(&(1, asks));
        world.begin(batch, false);
        world.proceed();
        // The second operation stays at work.
        world.run(which);
        world.proceed();
    }
    assert_eq!((world.flight.marks(), world.running.len()), (1, 1));
    // Number 65, which has the slot of number 1.
    let batch = numbers.agreed(&(1, vec![write(4, 62)]));
    world.begin(batch, false);
    world.proceed();
    world.run(1);
    world.proceed();
    assert_eq!((world.flight.marks(), world.running.len()), (1, 1));
    world.finish();
}

/// An operation that was ordered twice has its end once, and what comes after it need not wait for that.
#[test]
fn nothing_waits_for_a_twin() {
    let mut world = World::new(Conflicts::Declared);
    let mut numbers = Numbers {
        next: [0; 8],
        time: 1_000_000_000_000,
    };
    let write = |session, array, back| Ask::Op(session, back, [2, array, 0, 1, 9]);
    for asks in [
        vec![Ask::Open(1), Ask::Open(2)],
        vec![write(1, 1, 0)],
        vec![write(1, 1, -1), write(1, 1, -1), write(2, 2, 0)],
    ] {
        let batch = numbers.agreed(&(1, asks));
        world.begin(batch, false);
        world.proceed();
    }
    assert!(world.entering.is_none());
    assert_eq!((world.twins.len(), world.running.len()), (2, 2));
    world.finish();
}

/// An operation that fails on a worker takes the replica out; not if it was given up.
#[test]
fn a_failure_is_told() {
    let mut world = World::new(Conflicts::Declared);
    let mut numbers = Numbers {
        next: [0; 8],
        time: 1_000_000_000_000,
    };
    for asks in [vec![Ask::Open(1)], vec![Ask::Op(1, 0, [2, 1, 0, 1, 1])]] {
        let batch = numbers.agreed(&(1, asks));
        world.begin(batch, false);
        world.proceed();
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
