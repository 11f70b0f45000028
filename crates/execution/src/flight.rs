//! Executes agreed operations beside each other, as the [dependency graph](crate::graph) allows, with the results, the
//! replies and the state that come of executing them one after the other.
//!
//! An operation **enters** in the agreed order. Then all is done that must be in this order and is short: it gets its time,
//! its session is looked up and touched, and it is looked for among the replies. It **runs** as a [`Job`], wherever the driver
//! likes, on a view of the state; what it wrote comes back. It **settles** here: the rest of it is done, its
//! writes become part of the state and its reply is kept. Whose settling comes first is up to the graph.
//!
//! What concerns sessions themselves (opening, ending, expiry) is done as it enters. A session ends when nothing of its own is at work any more, and the
//! service lets go of what it held when nothing is that conflicts with that ([`Service::uses_at_end`]); what comes after it waits so long. So is an
//! operation kept from entering while another is at work whose reply has the same place, and one that comes again while it depends on
//! others at work whether its result is still kept.
//!
//! A checkpoint's layer must hold the operations up to its place and no others. So each checkpoint begins a new open layer, and
//! an operation writes to the layer of its own checkpoint, whenever it settles. When all before a checkpoint are done, its
//! layer is frozen.
//!
//! What is undone or given up is not stopped: its run step comes to its end, and nothing comes of it.
//!
//! Absent on purpose: threads. Jobs go out, completions come in, in any order.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use bytes::Bytes;
use quorate_state::{Fault, Layer, Place, State, Txn};
use quorate_wire::message::{Outcome, ReplyBody, Request};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{ClientId, Encode, RequestNumber, Seq, SessionId, Time};

use crate::ends::Ends;
use crate::executor::{Executor, done, next_time};
use crate::graph::{Conflicts, Graph, OpId};
use crate::job::{Broken, Came, Completion, How, Job};
use crate::reading;
use crate::service::{Call, Ran, Service};
use crate::sessions::{self, Clock, KeptReply};
use crate::table::{Cached, Table};

/// The most operations from the oldest that is not done to the newest.
const CAPACITY: usize = 4096;
/// The most bytes of operations in the graph, if there are several.
const MAX_BYTES: usize = 32 << 20;
/// Jobs that are handed out beyond those that workers are busy with, so that a worker finds the next one without asking.
const AHEAD: usize = 64;

/// How operations are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    /// On how many threads of their own; 0: one after the other, where they are ordered.
    pub count: usize,
    /// Which of them may be at work at the same time.
    pub conflicts: Conflicts,
}

impl Default for Workers {
    fn default() -> Workers {
        Workers {
            count: 0,
            conflicts: Conflicts::Declared,
        }
    }
}

/// An operation that is done.
#[derive(Debug)]
pub struct Done<T> {
    /// What it came with.
    pub tag: T,
    /// An [`Outcome`]; of a read by its digest, if it was wanted so.
    pub body: ReplyBody,
    /// Whether it may be undone.
    pub is_tentative: bool,
}

/// The operations at work. `T` comes back with an operation's outcome.
#[derive(Debug)]
pub struct Flight<T> {
    graph: Graph,
    /// Those in the graph, in its order.
    entries: VecDeque<Entry<T>>,
    /// The number of the one at the front of `entries`.
    first: OpId,
    /// Those from here on may be undone.
    tentative: Option<OpId>,
    /// Sessions were not let go of from memory, for what may be undone.
    is_full: bool,
    /// Checkpoints that wait, each for the operations before it.
    marks: VecDeque<Mark>,
    /// How many checkpoints were before: the number of the oldest open layer.
    epoch: u64,
    /// Jobs handed out and not back.
    running: usize,
    at_once: usize,
    bytes: usize,
    jobs: Vec<Job>,
    done: Vec<Done<T>>,
    layers: Vec<(Seq, Arc<Layer>)>,
}

#[derive(Debug)]
struct Entry<T> {
    /// Nothing once it is done, or given up.
    work: Option<Work<T>>,
    bytes: usize,
}

#[derive(Debug)]
struct Work<T> {
    tag: T,
    call: Call,
    op: Bytes,
    keeps: Option<Keeps>,
    /// The number of the open layer that it writes to.
    epoch: u64,
    how: How,
    came: Option<Came>,
}

/// How the reply of an operation at work will be kept.
#[derive(Clone, Copy, Debug)]
struct Keeps {
    number: RequestNumber,
    /// The session's answered mark after the request.
    answered: RequestNumber,
    /// Its client has said before a checkpoint, its own or a later one, that it has the reply: that checkpoint takes the
    /// row away again.
    is_answered: bool,
}

#[derive(Debug)]
struct Mark {
    seq: Seq,
    /// All before this one are before the checkpoint.
    end: OpId,
    /// The clock and the sessions as they were at the checkpoint's place.
    rows: Layer,
}

impl<T> Flight<T> {
    /// Nothing is at work.
    pub fn new(workers: Workers) -> Flight<T> {
        Flight {
            graph: Graph::new(workers.conflicts, CAPACITY),
            entries: VecDeque::new(),
            first: OpId(0),
            tentative: None,
            is_full: false,
            marks: VecDeque::new(),
            epoch: 0,
            running: 0,
            at_once: workers.count + AHEAD,
            bytes: 0,
            jobs: Vec::new(),
            done: Vec::new(),
            layers: Vec::new(),
        }
    }

    /// Lets the next request of the agreed order in; `is_first`: whether it is the first of its batch. False if it has to wait:
    /// then it is to be tried again when something has been done.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    pub fn enter<S: Service>(
        &mut self,
        executor: &mut Executor<S>,
        state: &mut State,
        (proposed, is_first): (Time, bool),
        request: &Request,
        tag: impl FnOnce() -> T,
    ) -> Result<bool, Fault> {
        let txn = state.begin();
        let clock = executor.table.clock(&txn)?;
        let now = next_time(clock.last, proposed);
        let ends = executor.ends(&txn, &clock, now, (is_first, request))?;
        if self.keeps_from_ending(executor, &txn, &clock, (now, &ends))? {
            return Ok(false);
        }
        let (session, number) = (request.session(), request.number());
        if session == SessionId(0) {
            self.write_out(executor, state, &ends)?;
            let outcome = executor.execute_at(state, now, ends.sweep, request)?;
            self.finish(tag(), ReplyBody::Full(outcome), self.tentative.is_some());
            return Ok(true);
        }
        let call = Call {
            client: request.client(),
            session,
            now,
        };
        let is_own = executor.table.owner(&txn, session)? == Some(call.client);
        let table = &executor.table;
        let is_twin = table.is_at_work(session, number) && !is_on(Mutant::TwinsExecuted);
        if is_own && !is_twin && self.has_to_wait(table, request) {
            return Ok(false);
        }
        // From here on nothing waits.
        if ends.sweep.is_some() || clock.ending > 0 {
            self.write_out(executor, state, &ends)?;
            executor.end_before(state, now, ends.sweep)?;
        }
        let txn = state.begin();
        let mut clock = executor.table.clock(&txn)?;
        clock.last = now;
        executor.table.set_clock(clock);
        // It may just have ended.
        let is_own = executor.table.owner(&txn, session)? == Some(call.client);
        if is_own && is_twin {
            // It was ordered twice. The first is answered, and nothing has to wait for that.
            return Ok(true);
        }
        let early = if !is_own {
            Some(Outcome::NoSession(()).to_bytes().into())
        } else {
            match executor.table.lookup(&txn, session, number)? {
                Cached::Reply(outcome) => Some(executor.table.as_agreed(session, number, outcome)),
                Cached::TooOld => Some(Outcome::TooOld(()).to_bytes().into()),
                Cached::AtWork | Cached::Unknown => None,
            }
        };
        if let Some(outcome) = early {
            self.finish(tag(), ReplyBody::Full(outcome), self.tentative.is_some());
            return Ok(true);
        }
        let keeps = executor.keeps_result(request).then(|| {
            let table = &mut executor.table;
            table.touch(session, now);
            Keeps {
                number,
                answered: table.raise_answered(session, number, request.answered()),
                is_answered: false,
            }
        });
        match keeps {
            // An empty operation only keeps the session alive.
            Some(keeps) if request.op().is_empty() => {
                let outcome = done(Bytes::new());
                let epoch = self.epoch + self.marks.len() as u64;
                let may_be_undone = self.tentative.is_some();
                let table = &mut executor.table;
                self.keep_unwritten(table, state, session, (number, epoch));
                let mut txn = state.begin_at(self.place(epoch, may_be_undone), Layer::new());
                self.keep(
                    table,
                    &mut txn,
                    session,
                    (keeps, outcome.clone()),
                    (epoch, may_be_undone),
                );
                txn.commit();
                self.finish(tag(), ReplyBody::Full(outcome), may_be_undone);
            }
            keeps => {
                if keeps.is_some() {
                    executor.table.set_busy(session, number, true);
                }
                self.insert(executor, tag(), call, request.op(), (How::Ordered, keeps));
            }
        }
        Ok(true)
    }

    /// Whether a request of a session must not enter yet.
    fn has_to_wait(&self, table: &Table, request: &Request) -> bool {
        let (session, number) = (request.session(), request.number());
        let is_busy = table.is_busy(session, number)
            && !is_on(Mutant::PlacesShared)
            && !is_on(Mutant::TwinsExecuted);
        is_busy || table.is_undecided(session, number) || !self.has_room(request.op())
    }

    /// Whether something at work must be done before sessions end, or before the service lets go of what ended ones hold. All that is at work
    /// in a session belongs before its end; by then it is known what it holds. Of others, what the service says.
    fn keeps_from_ending<S: Service>(
        &self,
        executor: &Executor<S>,
        txn: &Txn<'_>,
        clock: &Clock,
        (now, ends): (Time, &Ends),
    ) -> Result<bool, Fault> {
        let table = &executor.table;
        if ends.sessions().any(|id| table.has_work(id)) && !is_on(Mutant::SessionsBeside) {
            return Ok(true);
        }
        if is_on(Mutant::EndsBeside) {
            return Ok(false);
        }
        let touched = executor.touched(txn, clock, now, ends.sweep.as_ref())?;
        Ok(touched.iter().any(|uses| !self.graph.is_free_for(uses)))
    }

    /// Checkpoints that wait have the replies of sessions that end now: they get what is nowhere but in memory, which forgets it.
    fn write_out<S: Service>(
        &self,
        executor: &mut Executor<S>,
        state: &mut State,
        ends: &Ends,
    ) -> Result<(), Fault> {
        if is_on(Mutant::EndsTakeReplies) {
            return Ok(());
        }
        for id in ends.sessions() {
            for place in 0..self.marks.len() {
                let mut txn = state.begin_at(Place::Open(place), Layer::new());
                // What is in memory belongs to the oldest.
                executor.table.flush_replies_of(id, &mut txn);
                executor.table.bound_rows_of(id, &mut txn)?;
                txn.commit();
            }
        }
        Ok(())
    }

    /// Lets an operation in that only reads and is not ordered: it finds the state as it is after all that have entered.
    /// False if it has to wait. One that does not only read is dropped, and one that came after [`Flight::begin_tentative`] is undone with what did.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    pub fn enter_read<S: Service>(
        &mut self,
        executor: &mut Executor<S>,
        state: &mut State,
        (client, session, in_full): (ClientId, SessionId, bool),
        op: &Bytes,
        tag: impl FnOnce() -> T,
    ) -> Result<bool, Fault> {
        if !self.has_room(op) {
            return Ok(false);
        }
        if op.is_empty() || !executor.service.is_read_only(op) {
            return Ok(true);
        }
        let txn = state.begin();
        if executor.table.owner(&txn, session)? != Some(client) {
            let outcome = Outcome::NoSession(()).to_bytes().into();
            self.finish(tag(), ReplyBody::of(outcome, in_full), false);
            return Ok(true);
        }
        let call = Call {
            client,
            session,
            now: executor.table.clock(&txn)?.last,
        };
        self.insert(executor, tag(), call, op, (How::Read { in_full }, None));
        Ok(true)
    }

    fn has_room(&self, op: &Bytes) -> bool {
        let fits = self.bytes + op.len() <= MAX_BYTES || self.entries.is_empty();
        fits && self.graph.has_room()
    }

    fn insert<S: Service>(
        &mut self,
        executor: &Executor<S>,
        tag: T,
        call: Call,
        op: &Bytes,
        (how, keeps): (How, Option<Keeps>),
    ) {
        let id = self.graph.insert(executor.service.uses(&call, op));
        assert_eq!(id, self.next_id());
        self.bytes += op.len();
        let work = Work {
            tag,
            call,
            op: op.clone(),
            keeps,
            epoch: self.epoch + self.marks.len() as u64,
            how,
            came: None,
        };
        self.entries.push_back(Entry {
            work: Some(work),
            bytes: op.len(),
        });
    }

    /// All that have entered belong to this checkpoint, and none that will.
    pub fn mark<S: Service>(&mut self, executor: &mut Executor<S>, state: &mut State, seq: Seq) {
        let mut txn = state.begin();
        let table = &mut executor.table;
        table.flush_sessions(&mut txn);
        let still_needed = table.forget_answered(&mut txn, self.marks.is_empty());
        let works = self.entries.iter_mut().filter_map(|e| e.work.as_mut());
        for work in works {
            let Some(keeps) = &mut work.keeps else {
                continue;
            };
            let answered = table.answered(work.call.session);
            if !keeps.is_answered && keeps.number <= answered && !is_on(Mutant::AnsweredKept) {
                keeps.is_answered = true;
                sessions::forget(&mut txn, work.call.session, keeps.number);
            }
        }
        let rows = txn.into_writes();
        let mut oldest = state.begin_at(Place::Open(0), Layer::new());
        for (session, reply) in still_needed {
            sessions::keep(&mut oldest, session, &reply);
        }
        oldest.commit();
        let short = is_on(Mutant::CheckpointsShort) && !self.entries.is_empty();
        let end = OpId(self.next_id().0 - u64::from(short));
        self.marks.push_back(Mark { seq, end, rows });
        state.close();
    }

    /// Those that enter from here on can be undone.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    pub fn begin_tentative<S: Service>(
        &mut self,
        executor: &mut Executor<S>,
        state: &mut State,
    ) -> Result<(), Fault> {
        self.tentative = Some(self.next_id());
        executor.begin_tentative(state)
    }

    /// Those that entered since [`Flight::begin_tentative`] are as the others.
    pub fn keep_tentative<S: Service>(&mut self, executor: &mut Executor<S>, state: &mut State) {
        self.tentative = None;
        executor.keep_tentative(state);
        self.forget_some(executor);
    }

    /// Lets go of sessions in memory where there are too many, if that was put off.
    fn forget_some<S: Service>(&mut self, executor: &mut Executor<S>) {
        // Else the last of the checkpoints that wait will do it.
        if core::mem::take(&mut self.is_full) && self.marks.is_empty() {
            executor.table.forget_some();
        }
    }

    /// Undoes those that entered since [`Flight::begin_tentative`].
    pub fn drop_tentative<S: Service>(&mut self, executor: &mut Executor<S>, state: &mut State) {
        let Some(from) = self.tentative.take() else {
            return;
        };
        executor.drop_tentative(state);
        for entry in self
            .entries
            .range_mut((from.0.max(self.first.0) - self.first.0) as usize..)
        {
            let undone = match is_on(Mutant::UndoneSettles) {
                true => entry.work.as_ref().map(|work| (work.call, work.keeps)),
                false => entry.work.take().map(|work| (work.call, work.keeps)),
            };
            if let Some((call, Some(keeps))) = undone {
                let table = &mut executor.table;
                table.set_busy(call.session, keeps.number, false);
            }
        }
        if self.marks.is_empty() {
            // What others have made go, which are not undone.
            executor.table.bound_all();
        }
        self.forget_some(executor);
    }

    /// The state is given up, and with it all that is at work on it.
    pub fn give_up<S: Service>(&mut self, executor: &mut Executor<S>) {
        if !is_on(Mutant::GivenUpSettles) {
            self.entries.iter_mut().for_each(|entry| entry.work = None);
        }
        self.marks.clear();
        self.done.clear();
        self.layers.clear();
        (self.tentative, self.epoch) = (None, 0);
        executor.reset();
    }

    /// A job has come back.
    ///
    /// # Errors
    /// Why this replica can't go on.
    pub fn complete(&mut self, completion: Completion) -> Result<(), Broken> {
        let Completion { id, came } = completion;
        self.running -= 1;
        self.graph.ran(id);
        // What comes of work that was given up is nobody's concern, not even that it failed.
        if let Some(work) = &mut self.entry(id).work {
            work.came = Some(came?);
        }
        Ok(())
    }

    /// Settles what can, freezes what is complete and hands out what can run. Whether anything was done, so that more may
    /// enter.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    pub fn proceed<S: Service>(
        &mut self,
        executor: &mut Executor<S>,
        state: &mut State,
    ) -> Result<bool, Fault> {
        let mut has_moved = false;
        loop {
            while let Some(id) = self.graph.take_settleable() {
                self.settle(executor, state, id)?;
                has_moved = true;
            }
            while self
                .marks
                .front()
                .is_some_and(|m| self.is_done_before(m.end) || is_on(Mutant::CheckpointsHurry))
            {
                self.freeze(executor, state)?;
                has_moved = true;
            }
            if !self.hand_out(state) {
                return Ok(has_moved);
            }
        }
    }

    /// Whether one of those that can run had nothing to run any more.
    fn hand_out(&mut self, state: &mut State) -> bool {
        let mut was_given_up = false;
        while self.running < self.at_once
            && let Some(id) = self.graph.take_ready()
        {
            let at = (id.0 - self.first.0) as usize;
            match &self.entries[at].work {
                Some(work) => {
                    self.running += 1;
                    self.jobs.push(Job {
                        id,
                        view: state.view(),
                        call: work.call,
                        op: work.op.clone(),
                        how: work.how,
                    });
                }
                None => {
                    self.graph.ran(id);
                    was_given_up = true;
                }
            }
        }
        was_given_up
    }

    fn settle<S: Service>(
        &mut self,
        executor: &mut Executor<S>,
        state: &mut State,
        id: OpId,
    ) -> Result<(), Fault> {
        // What fails is over all the same: else all that conflicts with it would wait for ever, also when the state is whole again.
        let settled = self.settle_work(executor, state, id);
        self.graph.done(id);
        let first = self.graph.oldest().unwrap_or(self.next_id());
        while self.first < first {
            self.bytes -= self.entries.pop_front().map_or(0, |entry| entry.bytes);
            self.first.0 += 1;
        }
        settled
    }

    fn settle_work<S: Service>(
        &mut self,
        executor: &mut Executor<S>,
        state: &mut State,
        id: OpId,
    ) -> Result<(), Fault> {
        let is_tentative = self.tentative.is_some_and(|from| id >= from);
        if let Some(work) = self.entry(id).work.take() {
            let Work {
                tag,
                call,
                op,
                keeps,
                epoch,
                how,
                came,
            } = work;
            let Executor { service, table, .. } = executor;
            let (ran, writes) = match (came, how) {
                (Some(Came::Read(body)), _) => {
                    self.finish(tag, body, is_tentative);
                    return Ok(());
                }
                (None, How::Read { in_full }) => {
                    // There was nothing to run.
                    let mut txn = state.begin();
                    let (body, _) = reading::read(service, &mut txn, &call, &op, in_full)?;
                    self.finish(tag, body, is_tentative);
                    return Ok(());
                }
                (Some(Came::Ran(ran, writes)), _) => (Some(ran), writes),
                (None, How::Ordered) => (None, Layer::new()),
            };
            if let Some(keeps) = &keeps {
                self.keep_unwritten(table, state, call.session, (keeps.number, epoch));
            }
            let mut txn = state.begin_at(self.place(epoch, is_tentative), writes);
            let answer = match ran {
                Some(Ran::Done(answer)) => answer,
                Some(Ran::Settle(ran)) => service.settle(&mut txn, &call, &op, ran)?,
                // There was nothing to run.
                None => service.execute(&mut txn, &call, &op)?,
            };
            debug_assert!(
                txn.writes()
                    .keys()
                    .all(|k| k.first() != Some(&sessions::OWN_KEYS))
            );
            let outcome = done(answer);
            if let Some(keeps) = keeps {
                let what = (keeps, outcome.clone());
                table.set_busy(call.session, keeps.number, false);
                self.keep(table, &mut txn, call.session, what, (epoch, is_tentative));
            } else {
                debug_assert!(txn.writes().is_empty(), "an operation that only reads");
            }
            txn.commit();
            self.finish(tag, ReplyBody::Full(outcome), is_tentative);
        }
        Ok(())
    }

    /// Where an operation of this open layer writes.
    fn place(&self, epoch: u64, is_tentative: bool) -> Place {
        match is_tentative {
            true => Place::Tentative,
            false if is_on(Mutant::SettlesInNewest) => Place::Open(self.marks.len()),
            false => Place::Open((epoch - self.epoch) as usize),
        }
    }

    fn is_oldest(&self, epoch: u64) -> bool {
        epoch == self.epoch || is_on(Mutant::RepliesInOldest)
    }

    /// What is in the place of a reply that is about to be kept by an operation of this open layer, and nowhere but in memory, belongs to the oldest
    /// one: it is written there.
    fn keep_unwritten(
        &self,
        table: &mut Table,
        state: &mut State,
        session: SessionId,
        (number, epoch): (RequestNumber, u64),
    ) {
        if !self.is_oldest(epoch)
            && let Some(before) = table.take_unwritten(session, number)
        {
            let mut txn = state.begin_at(Place::Open(0), Layer::new());
            sessions::keep(&mut txn, session, &before);
            txn.commit();
        }
    }

    /// Keeps the reply of an operation that is done, which writes to this open layer.
    fn keep(
        &self,
        table: &mut Table,
        txn: &mut Txn<'_>,
        session: SessionId,
        (keeps, outcome): (Keeps, Bytes),
        (epoch, is_tentative): (u64, bool),
    ) {
        let is_oldest = self.is_oldest(epoch);
        let reply = KeptReply {
            number: keeps.number,
            answered: keeps.answered,
            outcome,
        };
        if keeps.is_answered || !is_oldest {
            sessions::keep(txn, session, &reply);
        }
        match keeps.is_answered {
            true => table.pass_over(session, &reply),
            false => table.replace(session, reply, is_tentative, is_oldest),
        }
        if self.marks.is_empty() || is_on(Mutant::BoundWhileWaiting) {
            table.bound(session);
        }
    }

    /// All that belong to the oldest mark are done.
    fn freeze<S: Service>(
        &mut self,
        executor: &mut Executor<S>,
        state: &mut State,
    ) -> Result<(), Fault> {
        let Some(Mark { seq, rows, .. }) = self.marks.pop_front() else {
            return Ok(());
        };
        let mut txn = state.begin_at(Place::Open(0), rows);
        executor.table.flush_replies(&mut txn);
        executor.table.bound_rows(&mut txn)?;
        txn.commit();
        self.layers.push((seq, state.freeze(seq)));
        self.epoch += 1;
        if self.marks.is_empty() {
            executor.table.bound_all();
            self.is_full = true;
            if self.tentative.is_none() {
                self.forget_some(executor);
            }
        }
        Ok(())
    }

    fn finish(&mut self, tag: T, body: ReplyBody, is_tentative: bool) {
        self.done.push(Done {
            tag,
            body,
            is_tentative,
        });
    }

    fn entry(&mut self, id: OpId) -> &mut Entry<T> {
        &mut self.entries[(id.0 - self.first.0) as usize]
    }

    /// The number of the next one to enter.
    pub fn next_id(&self) -> OpId {
        OpId(self.first.0 + self.entries.len() as u64)
    }

    /// Whether all operations before this one are done.
    pub fn is_done_before(&self, id: OpId) -> bool {
        self.graph.oldest().is_none_or(|oldest| oldest >= id)
    }

    /// How many checkpoints wait for operations before them.
    pub fn marks(&self) -> usize {
        self.marks.len()
    }

    /// What can run; to be given to workers.
    pub fn take_jobs(&mut self) -> Vec<Job> {
        core::mem::take(&mut self.jobs)
    }

    /// What is done.
    pub fn take_done(&mut self) -> Vec<Done<T>> {
        core::mem::take(&mut self.done)
    }

    /// The layers of checkpoints, complete.
    pub fn take_layers(&mut self) -> Vec<(Seq, Arc<Layer>)> {
        core::mem::take(&mut self.layers)
    }

    /// What holds after every input.
    ///
    /// # Panics
    /// Where something does not hold: a defect of this code.
    pub fn invariants(&self) {
        assert_eq!(self.graph.oldest().unwrap_or(self.next_id()), self.first);
        assert_eq!(self.bytes, self.entries.iter().map(|e| e.bytes).sum());
        assert!(self.running <= self.at_once && self.running <= self.entries.len());
        assert!(self.marks.iter().is_sorted_by_key(|m| (m.seq, m.end)));
    }
}
