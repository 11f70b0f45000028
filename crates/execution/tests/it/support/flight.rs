//! Agreed batches through [`Flight`], held against the same ones in order: tentative ones that are kept or undone, checkpoints, reads, states that
//! are given up, and restarts, under a schedule.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use quorate_execution::graph::Conflicts;
use quorate_execution::{Cached, Completion, Done, Executor, Flight, Job, Service, Workers};
use quorate_state::{MemorySnapshot, State};
use quorate_wire::message::session::KEPT_BYTES;
use quorate_wire::message::{Outcome, ReplyBody, Request};
use quorate_wire::{ClientId, Digest, Seq, SessionId, Time};

/// What an operation comes with: in which attempt, and which of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    Request(u64, usize),
    Read(usize),
}

/// A batch.
#[derive(Clone, Debug)]
pub struct Agreed {
    pub time: Time,
    pub requests: Vec<Request>,
}

/// A batch that enters.
struct Entering {
    attempt: u64,
    batch: Agreed,
    next: usize,
}

/// Threads that run jobs, each with a service of its own, as a replica's workers.
struct Threads {
    jobs: Vec<Sender<Job>>,
    done: Receiver<Completion>,
    given: usize,
    taken: usize,
}

impl Threads {
    fn spawn<S: Service + Clone>(count: usize, service: &S) -> Threads {
        let (tell, done) = channel();
        let jobs = (0..count).map(|_| {
            let (jobs, take) = channel::<Job>();
            let (service, tell) = (service.clone(), tell.clone());
            thread::spawn(move || {
                for (at, job) in (0_u32..).zip(take) {
                    // Now sooner, now later, so that each is overtaken at times.
                    (0..at.wrapping_mul(2_654_435_761) >> 28).for_each(|_| thread::yield_now());
                    if tell.send(job.run(&service)).is_err() {
                        break;
                    }
                }
            });
            jobs
        });
        Threads {
            jobs: jobs.collect(),
            done,
            given: 0,
            taken: 0,
        }
    }

    fn give(&mut self, job: Job) {
        self.jobs[self.given % self.jobs.len()].send(job).unwrap();
        self.given += 1;
    }

    /// What is over next, if anything is at work.
    fn take(&mut self) -> Option<Completion> {
        if self.taken == self.given {
            return None;
        }
        self.taken += 1;
        // One that has died says nothing.
        Some(self.done.recv_timeout(Duration::from_secs(60)).unwrap())
    }
}

/// What was undone, as another primary has it ordered: at times in another order, after the batch that was to be the next, or never. What waits is
/// taken from the end.
fn order_anew(waiting: &mut Vec<Agreed>, undone: Option<Agreed>, which: u8) {
    let Some(mut batch) = undone else {
        return;
    };
    let by = usize::from(which / 8) % batch.requests.len().max(1);
    match which % 8 {
        0..=2 => batch.requests.rotate_left(by),
        3 => batch.requests.truncate(by),
        4 => return,
        5 => {
            if let Some(mut next) = waiting.pop() {
                // Time goes on.
                core::mem::swap(&mut batch.time, &mut next.time);
                waiting.push(batch);
                batch = next;
            }
        }
        _ => {}
    }
    waiting.push(batch);
}

/// A replica's execution: what is agreed is taken in under a schedule, and what comes of it is held against the same in order.
pub struct World<S> {
    /// Each that is used is a clone of this one.
    service: S,
    bounds: Bounds,
    executor: Executor<S>,
    state: State,
    conflicts: Conflicts,
    pub flight: Flight<Tag>,
    /// Jobs that are at work, where the schedule says which is over next.
    pub running: Vec<Job>,
    /// The first of them stays at work as long as there are others, so that checkpoints wait for it.
    is_pinned: bool,
    /// What they are run with, in turn: a replica's workers have a service each.
    hands: Vec<S>,
    runs: usize,
    /// Where they are at work on threads instead.
    threads: Option<Threads>,
    entering: Option<Entering>,
    tentative: Option<Tentative<S>>,
    attempts: u64,
    /// By attempt, what came of it and what should.
    found: Vec<Vec<Option<Bytes>>>,
    expected: Vec<Option<Vec<Bytes>>>,
    /// What reads should come to, in full or by its digest, and what they have.
    reads: Vec<(ReplyBody, Option<ReplyBody>)>,
    /// Requests that were at work when they came again: the first time is answered.
    pub twins: BTreeSet<(u64, usize)>,
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
    reference: (Executor<S>, State),
    roots: Vec<(Seq, Digest)>,
    played: Played,
}

/// A batch that may be undone.
struct Tentative<S> {
    attempt: u64,
    batch: Agreed,
    /// What should come of it meanwhile.
    expected: Vec<Bytes>,
    /// As the reference would be after it.
    reference: (Executor<S>, State),
    /// How many reads came before it.
    reads: usize,
}

/// Within which bounds a world is.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How many bytes of a session's results are kept.
    pub kept_bytes: usize,
    /// How many sessions stay in memory, here and not where all is done in order.
    pub in_memory: usize,
    /// Batches from checkpoint to checkpoint.
    pub interval: u64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            kept_bytes: KEPT_BYTES,
            in_memory: usize::MAX,
            interval: 3,
        }
    }
}

impl Bounds {
    fn executor<S: Service + Clone>(self, service: &S) -> Executor<S> {
        let executor = Executor::new(service.clone()).keeping(self.kept_bytes);
        executor.remembering(self.in_memory)
    }
}

/// What a schedule came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Played {
    /// The most jobs that were at work at once.
    pub most: usize,
    /// How many agreed requests were told that their results are gone.
    pub gone: usize,
}

fn snapshot_of(state: &mut State) -> MemorySnapshot {
    let all = (Bound::Unbounded, Bound::Unbounded, usize::MAX);
    let entries = state.begin().range(all.0, all.1, all.2).unwrap();
    let layer = entries.into_iter().map(|(k, v)| (k, Some(v))).collect();
    MemorySnapshot::default().apply(&layer).unwrap().0
}

impl<S: Service + Clone> World<S> {
    /// At the beginning; `plain` is what executes in order. With `threads` jobs run on so many, otherwise here.
    pub fn new(service: S, plain: S, conflicts: Conflicts, threads: usize) -> World<S> {
        let begin = |service: &S| {
            let executor = Executor::new(service.clone());
            let mut state = State::new(Arc::new(MemorySnapshot::default()));
            executor.genesis(&mut state).unwrap();
            (executor, state)
        };
        let (executor, state) = begin(&service);
        World {
            executor,
            state,
            conflicts,
            flight: Flight::new(Workers {
                count: 1,
                conflicts,
            }),
            running: Vec::new(),
            is_pinned: false,
            hands: vec![service.clone(); 3],
            runs: 0,
            threads: (threads > 0).then(|| Threads::spawn(threads, &service)),
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
            reference: begin(&plain),
            roots: Vec::new(),
            played: Played::default(),
            bounds: Bounds::default(),
            service,
        }
    }

    /// The same where of a session's results so many bytes are kept.
    pub fn keeping(self, kept_bytes: usize) -> World<S> {
        self.within(Bounds {
            kept_bytes,
            ..Bounds::default()
        })
    }

    /// The same within other bounds than the usual ones.
    pub fn within(mut self, bounds: Bounds) -> World<S> {
        self.bounds = bounds;
        self.executor = bounds.executor(&self.service);
        self.reference.0 = self.reference.0.keeping(bounds.kept_bytes);
        self
    }

    pub fn begin(&mut self, batch: Agreed, is_tentative: bool) {
        assert!(self.entering.is_none() && self.tentative.is_none());
        let attempt = self.attempt(&batch, None);
        if is_tentative {
            let begun = self
                .flight
                .begin_tentative(&mut self.executor, &mut self.state);
            begun.unwrap();
            self.tentative = Some(self.apart(attempt, &batch));
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

    /// What a batch would come to in order, without the reference's having it.
    fn apart(&mut self, attempt: u64, batch: &Agreed) -> Tentative<S> {
        let (executor, state) = &mut self.reference;
        executor.flush(state);
        let mut state = State::new(Arc::new(snapshot_of(state)));
        let mut executor = self.bounds.executor(&self.service);
        let done = executor.execute(&mut state, batch.time, &batch.requests);
        let outcomes = done.unwrap().into_iter().map(|done| done.outcome);
        Tentative {
            attempt,
            batch: batch.clone(),
            expected: outcomes.collect(),
            reference: (executor, state),
            reads: self.reads.len(),
        }
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
        if self.seq.is_multiple_of(self.bounds.interval) {
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
            let cached = executor.cached(state, request.client(), session, number);
            let cached = cached.unwrap();
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
        if self.at.is_multiple_of(self.bounds.interval) {
            let (executor, state) = (&mut self.executor, &mut self.state);
            self.flight.mark(executor, state, Seq(self.at));
        }
    }

    fn keep(&mut self) {
        let Some(tentative) = self.tentative.take() else {
            return;
        };
        let (executor, state) = (&mut self.executor, &mut self.state);
        self.flight.keep_tentative(executor, state);
        self.agree(tentative.attempt, &tentative.batch);
        if self.entering.is_none() {
            self.on_entered();
        }
    }

    pub fn is_entering(&self) -> bool {
        self.entering.is_some()
    }

    pub fn undo(&mut self) -> Option<Agreed> {
        let tentative = self.tentative.take()?;
        let (executor, state) = (&mut self.executor, &mut self.state);
        self.flight.drop_tentative(executor, state);
        self.entering = None;
        // Clients were told what came of it so far. Nothing may come of it from here on, nor of what was read after it.
        let found = &mut self.found[tentative.attempt as usize];
        for (found, expected) in found.drain(..).zip(&tentative.expected) {
            assert!(
                found.is_none_or(|found| found == expected),
                "told and undone"
            );
        }
        for (expected, found) in &mut self.reads[tentative.reads..] {
            found.get_or_insert(expected.clone());
        }
        Some(tentative.batch)
    }

    fn read(&mut self, who: (ClientId, SessionId), op: &Bytes) {
        let (executor, state) = match &mut self.tentative {
            Some(tentative) => &mut tentative.reference,
            None => &mut self.reference,
        };
        let in_full = self.reads.len().is_multiple_of(2);
        let expected = executor.read(state, who.0, who.1, op, true).unwrap();
        let expected = expected.map(|(body, _)| match in_full {
            true => body,
            false => ReplyBody::Digest(body.digest()),
        });
        let who = (who.0, who.1, in_full);
        let tag = Tag::Read(self.reads.len());
        let (executor, state) = (&mut self.executor, &mut self.state);
        let entered = self.flight.enter_read(executor, state, who, op, || tag);
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
        let executor = self.bounds.executor(&self.service);
        (self.executor, self.flight) = (executor, Flight::new(workers));
        self.state = State::new(Arc::new(self.snapshot.clone()));
        self.entering = None;
        self.running.clear();
        self.hands = vec![self.service.clone(); self.hands.len()];
        if let Some(threads) = &mut self.threads {
            *threads = Threads::spawn(threads.jobs.len(), &self.service);
        }
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
    pub fn proceed(&mut self) {
        loop {
            self.enter();
            let (executor, state) = (&mut self.executor, &mut self.state);
            let has_moved = self.flight.proceed(executor, state).unwrap();
            self.flight.invariants();
            for Done {
                tag,
                body,
                is_tentative,
            } in self.flight.take_done()
            {
                let found = match tag {
                    Tag::Read(at) => {
                        let found = self.reads[at].1.replace(body);
                        assert_eq!(found, None, "{tag:?} is done twice");
                        continue;
                    }
                    Tag::Request(attempt, at) => {
                        let tentative = self.tentative.as_ref().map(|t| t.attempt);
                        assert_eq!(is_tentative, tentative == Some(attempt));
                        &mut self.found[attempt as usize][at]
                    }
                };
                let outcome = body.result().unwrap();
                assert!(found.replace(outcome).is_none(), "{tag:?} is done twice");
            }
            self.layers.extend(self.flight.take_layers());
            if !has_moved {
                break;
            }
        }
        let jobs = self.flight.take_jobs();
        match &mut self.threads {
            Some(threads) => jobs.into_iter().for_each(|job| threads.give(job)),
            None => self.running.extend(jobs),
        }
        self.played.most = self.played.most.max(self.at_work());
    }

    fn at_work(&self) -> usize {
        let on_threads = self.threads.as_ref().map(|t| t.given - t.taken);
        on_threads.unwrap_or(self.running.len())
    }

    /// A job comes to its end: this one, or whichever is the next of those on threads.
    pub fn run(&mut self, which: u8) {
        let completion = match &mut self.threads {
            Some(threads) => threads.take(),
            None if self.running.is_empty() => None,
            None => {
                let is_pinned = self.is_pinned && self.running.len() > 1;
                let first = usize::from(is_pinned);
                let at = first + usize::from(which) % (self.running.len() - first);
                self.runs += 1;
                let hand = self.runs % self.hands.len();
                Some(self.running.swap_remove(at).run(&self.hands[hand]))
            }
        };
        if let Some(completion) = completion {
            self.flight.complete(completion).unwrap();
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

    /// Takes the batches in under a schedule. `reads` says what is read beside them, by a number of the schedule.
    pub fn play(
        mut self,
        mut waiting: Vec<Agreed>,
        schedule: &[(u8, u8)],
        reads: impl Fn(u8) -> Option<(ClientId, SessionId, Bytes)>,
    ) -> Played {
        // Taken from the end.
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
            let is_free = self.entering.is_none() && self.tentative.is_none();
            match what {
                0..=59 if is_free => self.begin(waiting.pop().unwrap(), which % 3 == 0),
                60..=139 => self.run(which),
                140..=169 => self.keep(),
                170..=179 => {
                    let undone = self.undo();
                    order_anew(&mut waiting, undone, which);
                }
                180..=199 => self.store(),
                200..=229 if self.entering.is_none() => {
                    if let Some((client, session, op)) = reads(which) {
                        self.read((client, session), &op);
                    }
                }
                230..=231 if self.tentative.is_none() => self.give_up(),
                232..=233 => {
                    let undone = self.restart(&mut choices);
                    order_anew(&mut waiting, undone, which);
                }
                234..=239 => self.is_pinned = which < 200,
                _ if steps > 3_000 => self.keep(),
                _ => {}
            }
            self.proceed();
        }
        self.finish()
    }

    /// All comes to its end, and is as it should be.
    pub fn finish(mut self) -> Played {
        self.keep();
        self.proceed();
        while self.at_work() > 0 {
            self.run(0);
            self.proceed();
        }
        assert!(!self.is_entering() && self.flight.marks() == 0);
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
        let all = self.expected.iter().flatten().flatten();
        self.played.gone = all.filter(|outcome| **outcome == Outcome::GONE).count();
        self.played
    }
}
