//! Executes agreed batches, each request once.

use alloc::vec::Vec;

use bytes::Bytes;
use quorate_state::{Fault, State, Txn};
use quorate_wire::message::session::KEPT_BYTES;
use quorate_wire::message::{Control, MAX_RESULT_BYTES, Outcome, ReplyBody, Request};
use quorate_wire::{ClientId, Decode, Encode, ReplicaKeys, RequestNumber, SessionId, Time};

use crate::ends::{Sweep, makes_room};
use crate::reading;
use crate::recoveries::Identities;
use crate::service::{Call, Service};
use crate::sessions::{self, Clock, KeptReply, Session};
use crate::table::{Cached, MAX_LIVE, Table};

/// A request that was executed, with its outcome in canonical form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executed {
    /// Who asked.
    pub client: ClientId,
    /// In which session.
    pub session: SessionId,
    /// Under which number.
    pub number: RequestNumber,
    /// An [`Outcome`].
    pub outcome: Bytes,
}

/// Executes batches against a state.
#[derive(Debug)]
pub struct Executor<S> {
    pub(crate) service: S,
    pub(crate) table: Table,
    identities: Option<Identities>,
}

impl<S: Service> Executor<S> {
    /// An executor of this service.
    pub fn new(service: S) -> Executor<S> {
        Executor {
            service,
            table: Table::new(KEPT_BYTES, MAX_LIVE),
            identities: None,
        }
    }

    /// The same where the results that are kept of a session, for requests that are repeated, may have so many bytes together, and not
    /// [`KEPT_BYTES`]. To be the same at all replicas of a group.
    #[must_use]
    pub fn keeping(self, kept_bytes: usize) -> Executor<S> {
        let table = Table::new(kept_bytes, self.table.max_live);
        Executor { table, ..self }
    }

    /// The same where no more than so many sessions stay in memory beyond a checkpoint, if it needs no more of them. Replicas of a group may differ
    /// in it: it shows nowhere.
    #[must_use]
    pub fn remembering(self, sessions: usize) -> Executor<S> {
        let table = Table::new(self.table.kept_bytes(), sessions);
        Executor { table, ..self }
    }

    /// The same for a group whose replicas have these keys: where they have key holders, it is kept which recoveries were ordered.
    #[must_use]
    pub fn of_group(self, keys: &ReplicaKeys) -> Executor<S> {
        let identities = Identities::of(keys);
        Executor { identities, ..self }
    }

    /// The state was replaced.
    pub fn reset(&mut self) {
        self.table = self.table.emptied();
    }

    /// From here on what is executed can be undone, together with the state's overlay.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    pub fn begin_tentative(&mut self, state: &mut State) -> Result<(), Fault> {
        self.table.begin_tentative(&state.begin())?;
        state.begin_tentative();
        Ok(())
    }

    /// Keeps what was executed since [`Executor::begin_tentative`].
    pub fn keep_tentative(&mut self, state: &mut State) {
        self.table.keep_tentative();
        state.keep_tentative();
    }

    /// Undoes what was executed since [`Executor::begin_tentative`].
    pub fn drop_tentative(&mut self, state: &mut State) {
        self.table.drop_tentative();
        state.drop_tentative();
    }

    /// Writes into the state what the executor has kept for itself. To be called before a layer is frozen.
    pub fn flush(&mut self, state: &mut State) {
        let mut txn = state.begin();
        self.table.flush(&mut txn);
        txn.commit();
    }

    /// Writes the initial state.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    pub fn genesis(&self, state: &mut State) -> Result<(), Fault> {
        let mut txn = state.begin();
        self.service.genesis(&mut txn)?;
        sessions::set_clock(&mut txn, &Clock::default());
        txn.commit();
        Ok(())
    }

    /// Looks a request up in the reply cache.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    pub fn cached(
        &mut self,
        state: &mut State,
        client: ClientId,
        session: SessionId,
        number: RequestNumber,
    ) -> Result<Cached, Fault> {
        // What one client was answered is not for another that names its session.
        let txn = state.begin();
        if self.table.owner(&txn, session)? != Some(client) {
            return Ok(Cached::Unknown);
        }
        if self.table.is_at_work(session, number) {
            return Ok(Cached::AtWork);
        }
        Ok(match self.table.lookup(&txn, session, number)? {
            // It is told to one client now, and what made it go may be undone.
            Cached::Reply(outcome) if outcome == Outcome::GONE => {
                let kept = self.table.not_gone_for_good(session, number);
                Cached::Reply(kept.unwrap_or(outcome))
            }
            cached => cached,
        })
    }

    /// Whether the result of this request is kept for when it is asked again: not that of a read. That a session was used counts with such requests
    /// alone: else whoever has seen the last read of a client that is no more could keep its session by showing it again and again.
    pub fn keeps_result(&self, request: &Request) -> bool {
        request.op().is_empty() || request.is_kept() || !self.service.is_read_only(request.op())
    }

    /// How many bytes of results are kept of a session.
    pub fn kept_bytes(&self) -> usize {
        self.table.kept_bytes()
    }

    /// How many bytes the result of this request may bring into a layer of the state, at the most: those of a session together no more than
    /// [`Executor::kept_bytes`].
    pub fn result_bytes(&self, request: &Request) -> usize {
        let is_own = request.session() == SessionId(0) || request.op().is_empty();
        match is_own || !self.keeps_result(request) {
            true => 0,
            // What the service says is of operations whose results are kept as a rule.
            false if request.is_kept() => self.kept_bytes(),
            false => self.service.result_bytes(request.op()),
        }
    }

    /// How many bytes the execution of this request may bring into a layer of the state, at the most, beside its result.
    pub fn weight(&self, request: &Request) -> usize {
        let is_own = request.session() == SessionId(0) || request.op().is_empty();
        let written = match is_own {
            true => 0,
            false => self.service.weight(request.op()),
        };
        request.weight() + written
    }

    /// Executes an operation that only reads, outside of the agreed order. `None` where it is not such an operation.
    /// With the reply goes how many bytes its result has, whether it is said in full or by its digest.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    pub fn read(
        &mut self,
        state: &mut State,
        client: ClientId,
        session: SessionId,
        op: &Bytes,
        in_full: bool,
    ) -> Result<Option<(ReplyBody, usize)>, Fault> {
        if op.is_empty() || !self.service.is_read_only(op) {
            return Ok(None);
        }
        let mut txn = state.begin();
        if self.table.owner(&txn, session)? != Some(client) {
            let outcome = Outcome::NoSession(()).to_bytes().into();
            return Ok(Some((ReplyBody::of(outcome, in_full), 0)));
        }
        let call = Call {
            client,
            session,
            now: self.table.clock(&txn)?.last,
        };
        reading::read(&self.service, &mut txn, &call, op, in_full).map(Some)
    }

    /// Executes a batch: requests in their order, at times that rise strictly from the primary's proposal on.
    ///
    /// # Errors
    /// [`Fault`] where the store fails. The state is then good for nothing.
    pub fn execute<'r>(
        &mut self,
        state: &mut State,
        proposed: Time,
        requests: impl IntoIterator<Item = &'r Request>,
    ) -> Result<Vec<Executed>, Fault> {
        let mut out = Vec::new();
        for request in requests {
            let outcome = self.execute_next(state, proposed, out.is_empty(), request)?;
            out.push(Executed {
                client: request.client(),
                session: request.session(),
                number: request.number(),
                outcome,
            });
        }
        Ok(out)
    }

    /// Executes the next request of a batch; `is_first`: whether none of the batch came before.
    fn execute_next(
        &mut self,
        state: &mut State,
        proposed: Time,
        is_first: bool,
        request: &Request,
    ) -> Result<Bytes, Fault> {
        let txn = state.begin();
        let clock = self.table.clock(&txn)?;
        let now = next_time(clock.last, proposed);
        let sweep = self.sweep(&txn, &clock, now, is_first)?;
        self.execute_at(state, now, sweep, request)
    }

    /// Executes a request at its time, after what ends before it.
    pub(crate) fn execute_at(
        &mut self,
        state: &mut State,
        now: Time,
        sweep: Option<Sweep>,
        request: &Request,
    ) -> Result<Bytes, Fault> {
        let mut txn = state.begin();
        let mut clock = self.table.clock(&txn)?;
        self.end_some(&mut txn, &mut clock, now, sweep)?;
        let outcome = self.execute_one(&mut txn, &mut clock, request)?;
        txn.commit();
        self.table.set_clock(clock);
        Ok(outcome)
    }

    fn execute_one(
        &mut self,
        txn: &mut Txn<'_>,
        clock: &mut Clock,
        request: &Request,
    ) -> Result<Bytes, Fault> {
        let call = Call {
            client: request.client(),
            session: request.session(),
            now: clock.last,
        };
        if call.session == SessionId(0) {
            let outcome = self.control(txn, clock, &call, request)?;
            return Ok(outcome.to_bytes().into());
        }
        if self.table.owner(txn, call.session)? != Some(call.client) {
            return Ok(Outcome::NoSession(()).to_bytes().into());
        }
        let number = request.number();
        match self.table.lookup(txn, call.session, number)? {
            Cached::Reply(outcome) => return Ok(outcome),
            Cached::TooOld => return Ok(Outcome::TooOld(()).to_bytes().into()),
            Cached::AtWork | Cached::Unknown => {}
        }
        let keeps = self.keeps_result(request);
        if keeps {
            self.table.touch(call.session, call.now);
        }
        // An empty operation only keeps the session alive.
        let answer = match request.op().is_empty() {
            true => Bytes::new(),
            false => self.service.execute(txn, &call, request.op())?,
        };
        debug_assert!(txn.writes().keys().all(|k| !k.is_empty()));
        let outcome = done(answer);
        if keeps {
            let answered = request.answered();
            let reply = KeptReply {
                number,
                answered: self.table.raise_answered(call.session, number, answered),
                outcome: outcome.clone(),
            };
            self.table.keep(call.session, reply);
        }
        Ok(outcome)
    }

    fn control(
        &mut self,
        txn: &mut Txn<'_>,
        clock: &mut Clock,
        call: &Call,
        request: &Request,
    ) -> Result<Outcome, Fault> {
        match Control::from_bytes(request.op().clone()) {
            Ok(Control::Open(())) => {
                let id = self.open(txn, clock, call, request.number().0)?;
                Ok(Outcome::Done(id.to_bytes().into()))
            }
            Ok(Control::Close(id)) => {
                if self.table.owner(txn, id)? == Some(call.client) {
                    self.end(txn, clock, id, &call.client)?;
                }
                Ok(Outcome::Done(Bytes::new()))
            }
            Ok(Control::Recover(recovers)) => match &self.identities {
                Some(known) => known.recover(txn, &call.client, request.number(), recovers),
                None => Ok(Outcome::Malformed(())),
            },
            Err(_) => Ok(Outcome::Malformed(())),
        }
    }

    fn open(
        &mut self,
        txn: &mut Txn<'_>,
        clock: &mut Clock,
        call: &Call,
        nonce: u64,
    ) -> Result<SessionId, Fault> {
        let open = self.table.of_client(txn, &call.client)?;
        if let Some((id, _)) = open.iter().find(|(_, s)| s.nonce == nonce) {
            return Ok(*id);
        }
        if let Some(id) = makes_room(&open, call.now) {
            self.end(txn, clock, id, &call.client)?;
        }
        let id = clock.next_session;
        clock.next_session = SessionId(id.0 + 1);
        let session = Session {
            client: call.client,
            nonce,
            active: call.now,
            is_used: false,
        };
        self.table.create(txn, id, session);
        Ok(id)
    }
}

/// files.md: two changes never share a time, and a faulty primary can't turn time back.
pub(crate) fn next_time(last: Time, proposed: Time) -> Time {
    Time(proposed.0.max(last.0 + 1))
}

/// A service's answer as an outcome. One that is too long for a result is a defect of the service, and all replicas have it: they say so
/// alike, where a panic would stop them at the same operation, for good.
pub(crate) fn done(answer: Bytes) -> Bytes {
    match answer.len() + 16 <= MAX_RESULT_BYTES {
        true => Outcome::Done(answer).to_bytes().into(),
        false => Outcome::TooLong(()).to_bytes().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Rest;
    use crate::sessions::SESSIONS_PER_CLIENT;
    use alloc::sync::Arc;
    use quorate_state::MemorySnapshot;
    use quorate_wire::PublicKey;
    use quorate_wire::message::session::SESSION_LEASE_MS;

    /// A counter: an operation adds its first byte and answers with the sum.
    struct Counter;

    impl Service for Counter {
        fn genesis(&self, txn: &mut Txn<'_>) -> Result<(), Fault> {
            txn.put(Bytes::from_static(b"sum"), Bytes::from_static(&[0]));
            Ok(())
        }

        fn is_read_only(&self, op: &[u8]) -> bool {
            op[0] == 0
        }

        fn execute(&self, txn: &mut Txn<'_>, _: &Call, op: &Bytes) -> Result<Bytes, Fault> {
            let sum = txn.get(b"sum")?.map_or(0, |v| v[0]) + op[0];
            let sum = Bytes::copy_from_slice(&[sum]);
            if !self.is_read_only(op) {
                txn.put(Bytes::from_static(b"sum"), sum.clone());
            }
            Ok(sum)
        }

        fn session_ended(&self, txn: &mut Txn<'_>, call: &Call) -> Result<Rest, Fault> {
            txn.put(Bytes::from_static(b"ended"), call.session.to_bytes().into());
            Ok(Rest::Nothing)
        }
    }

    /// Answers with so many bytes as an operation says.
    struct Lengths;

    impl Service for Lengths {
        fn genesis(&self, _: &mut Txn<'_>) -> Result<(), Fault> {
            Ok(())
        }

        fn is_read_only(&self, _: &[u8]) -> bool {
            false
        }

        fn execute(&self, _: &mut Txn<'_>, _: &Call, op: &Bytes) -> Result<Bytes, Fault> {
            Ok(alloc::vec![0; op[0].into()].into())
        }

        fn session_ended(&self, _: &mut Txn<'_>, _: &Call) -> Result<Rest, Fault> {
            Ok(Rest::Nothing)
        }
    }

    struct World<S> {
        executor: Executor<S>,
        state: State,
        time: u64,
    }

    const CLIENT: ClientId = PublicKey([7; 32]);

    impl World<Counter> {
        fn new() -> World<Counter> {
            World::of(Executor::new(Counter))
        }
    }

    impl<S: Service> World<S> {
        fn of(executor: Executor<S>) -> World<S> {
            let mut state = State::new(Arc::new(MemorySnapshot::default()));
            executor.genesis(&mut state).unwrap();
            World {
                executor,
                state,
                time: 1_000_000_000_000,
            }
        }

        fn run(&mut self, session: u64, number: u64, op: &[u8]) -> Outcome {
            self.run_as(CLIENT, session, number, op)
        }

        fn run_as(&mut self, client: ClientId, session: u64, number: u64, op: &[u8]) -> Outcome {
            let op = Bytes::copy_from_slice(op);
            self.execute(Request::new(
                client,
                SessionId(session),
                RequestNumber(number),
                op,
            ))
        }

        fn run_after(&mut self, session: u64, number: u64, answered: u64, op: &[u8]) -> Outcome {
            let (number, answered) = (RequestNumber(number), RequestNumber(answered));
            let op = Bytes::copy_from_slice(op);
            self.execute(Request::after(
                CLIENT,
                SessionId(session),
                number,
                answered,
                op,
            ))
        }

        fn execute(&mut self, request: Request) -> Outcome {
            self.time += 1;
            let done = self
                .executor
                .execute(&mut self.state, Time(self.time), [&request])
                .unwrap();
            Outcome::from_bytes(done[0].outcome.clone()).unwrap()
        }

        fn open(&mut self, nonce: u64) -> u64 {
            let Outcome::Done(id) = self.run(0, nonce, &Control::Open(()).to_bytes()) else {
                panic!("not opened")
            };
            SessionId::from_bytes(id).unwrap().0
        }
    }

    fn done(byte: u8) -> Outcome {
        Outcome::Done(Bytes::copy_from_slice(&[byte]))
    }

    /// An answer that is too long for a result is told as such, and stops nobody.
    #[test]
    fn an_answer_that_is_too_long_is_told() {
        let answer = |bytes: usize| {
            let outcome = super::done(alloc::vec![0; bytes].into());
            assert!(outcome.len() <= MAX_RESULT_BYTES);
            Outcome::from_bytes(outcome).unwrap()
        };
        assert_eq!(answer(MAX_RESULT_BYTES), Outcome::TooLong(()));
        assert!(matches!(answer(MAX_RESULT_BYTES - 16), Outcome::Done(_)));
    }

    /// A request that is ordered twice takes effect once, and gives the same result; also after others.
    #[test]
    fn a_repeated_request_takes_effect_once() {
        let mut w = World::new();
        let s = w.open(1);
        assert_eq!(w.run(s, 1, &[5]), done(5));
        assert_eq!(w.run(s, 2, &[1]), done(6));
        assert_eq!(w.run(s, 1, &[5]), done(5));
        assert_eq!(w.run(s, 3, &[1]), done(7));
    }

    /// Requests of a window may come in any order; one that fell out of it is refused.
    #[test]
    fn a_window_of_requests_in_any_order() {
        let mut w = World::new();
        let s = w.open(1);
        for number in (1..=64).rev() {
            assert!(matches!(w.run(s, number, &[1]), Outcome::Done(_)));
        }
        assert_eq!(w.run(s, 65, &[1]), done(65));
        assert_eq!(w.run(s, 1, &[1]), Outcome::TooOld(()));
        assert_eq!(w.run(s, 66, &[0]), done(65));
    }

    /// A read's result is not kept, unless the client asks for that: then it is in the state, and says nothing of what was answered.
    #[test]
    fn a_read_is_kept_where_that_is_asked_for() {
        let mut w = World::new();
        let s = w.open(1);
        assert_eq!(w.run(s, 1, &[5]), done(5));
        assert_eq!(w.run(s, 2, &[0]), done(5));
        let op = Bytes::from_static(&[0]);
        let kept = Request::kept(CLIENT, SessionId(s), RequestNumber(3), op);
        assert_eq!(w.execute(kept.clone()), done(5));
        assert_eq!(w.run(s, 4, &[1]), done(6));
        assert_eq!(w.run(s, 2, &[0]), done(6), "it is executed again");
        w.executor.flush(&mut w.state);
        w.executor = Executor::new(Counter);
        assert_eq!(w.execute(kept), done(5));
        assert_eq!(w.run(s, 1, &[5]), done(5));
    }

    /// What the client says it was answered is in no checkpoint, and is not executed again; also not by an executor that
    /// begins with that checkpoint.
    #[test]
    fn answered_replies_are_forgotten() {
        let mut w = World::new();
        let s = w.open(1);
        let rows = |w: &mut World<Counter>| {
            w.executor.flush(&mut w.state);
            sessions::replies(&w.state.begin(), SessionId(s))
                .unwrap()
                .into_iter()
                .map(|r| r.number.0)
                .collect::<Vec<_>>()
        };
        (1..=5).for_each(|n| assert_eq!(w.run(s, n, &[1]), done(n as u8)));
        assert_eq!(rows(&mut w), [1, 2, 3, 4, 5]);
        assert_eq!(w.run_after(s, 7, 3, &[1]), done(6));
        assert_eq!(w.run(s, 3, &[1]), Outcome::TooOld(()));
        assert_eq!(rows(&mut w), [4, 5, 7]);
        w.executor.reset();
        assert_eq!(w.run(s, 2, &[1]), Outcome::TooOld(()));
        assert_eq!(w.run(s, 5, &[1]), done(5));
        // Number 6 was on its way meanwhile.
        assert_eq!(w.run(s, 6, &[1]), done(7));
        // Nobody can have had the answer to the request itself, or to later ones.
        assert_eq!(w.run_after(s, 8, 100, &[1]), done(8));
        assert_eq!(w.run(s, 8, &[1]), done(8));
        assert_eq!(w.run(s, 9, &[1]), done(9));
        assert_eq!(rows(&mut w), [8, 9]);
    }

    /// Where results have too many bytes together, those of the lowest numbers go, whatever the order in which they were executed. What is gone is
    /// not executed again, and its client is told; also by an executor that begins with that state.
    #[test]
    fn the_lowest_results_go() {
        // A result has six bytes.
        let mut w = World::of(Executor::new(Counter).keeping(20));
        let s = w.open(1);
        for number in [5, 2, 4] {
            w.run(s, number, &[1]);
        }
        assert_eq!([2, 4, 5].map(|n| w.run(s, n, &[1])), [2, 3, 1].map(done));
        w.run(s, 6, &[1]);
        let told = |w: &mut World<Counter>| [2, 4, 5, 6].map(|n| w.run(s, n, &[1]));
        let expected = [Outcome::Gone(()), done(3), done(1), done(4)];
        assert_eq!(told(&mut w), expected);
        // What is lower than one that is gone is so at once.
        assert_eq!(w.run(s, 1, &[1]), done(5));
        assert_eq!(w.run(s, 1, &[1]), Outcome::Gone(()));
        w.executor.flush(&mut w.state);
        w.executor.reset();
        assert_eq!(told(&mut w), expected);
        assert_eq!(w.run(s, 1, &[1]), Outcome::Gone(()));
        assert_eq!(w.run(s, 3, &[1]), done(6));
        assert_eq!(w.run(s, 3, &[1]), Outcome::Gone(()));
        assert_eq!(w.run(s, 7, &[0]), done(6), "each was executed once");
    }

    /// Below a result that is gone none is kept, also where there would be room: what is gone does not follow from the order of execution.
    #[test]
    fn none_is_kept_below_one_that_is_gone() {
        for numbers in [[3, 1, 2], [1, 2, 3], [2, 3, 1]] {
            let mut w = World::of(Executor::new(Counter).keeping(6));
            let s = w.open(1);
            for n in numbers {
                w.run(s, n, &[1]);
            }
            w.executor.flush(&mut w.state);
            let rows = sessions::replies(&w.state.begin(), SessionId(s)).unwrap();
            let kept = rows.iter().filter(|row| !row.is_gone());
            assert_eq!(kept.map(|row| row.number.0).collect::<Vec<_>>(), [3]);
        }
        let mut w = World::of(Executor::new(Lengths).keeping(20));
        let s = w.open(1);
        // Of twelve bytes, eleven, and six: the second makes itself go, and the third would have room.
        for (n, bytes) in [(5, 7), (4, 6), (3, 1)] {
            w.run(s, n, &[bytes]);
        }
        assert_eq!(w.run(s, 3, &[1]), Outcome::Gone(()));
    }

    /// A result that no others fit beside is kept; one that does not fit at all is told, and gone when it is asked for again.
    #[test]
    fn the_longest_result_is_kept() {
        for (room, kept) in [(6, true), (5, false)] {
            let mut w = World::of(Executor::new(Counter).keeping(room));
            let s = w.open(1);
            assert_eq!([1, 2].map(|n| w.run(s, n, &[1])), [1, 2].map(done));
            let told = if kept { done(2) } else { Outcome::Gone(()) };
            assert_eq!(w.run(s, 2, &[1]), told);
            assert_eq!(w.run(s, 1, &[1]), Outcome::Gone(()));
        }
    }

    /// What goes by what is undone is there again. Meanwhile it is gone for what is ordered, and told to who asks.
    #[test]
    fn what_is_undone_makes_nothing_go() {
        let mut w = World::of(Executor::new(Counter).keeping(12));
        let s = w.open(1);
        for n in [1, 2] {
            w.run(s, n, &[1]);
        }
        w.executor.begin_tentative(&mut w.state).unwrap();
        assert_eq!(w.run(s, 3, &[1]), done(3));
        assert_eq!(w.run(s, 1, &[1]), Outcome::Gone(()));
        let (session, number) = (SessionId(s), RequestNumber(1));
        let ask = |w: &mut World<Counter>| {
            let (executor, state) = (&mut w.executor, &mut w.state);
            executor.cached(state, CLIENT, session, number).unwrap()
        };
        assert_eq!(ask(&mut w), Cached::Reply(done(1).to_bytes().into()));
        w.executor.drop_tentative(&mut w.state);
        assert_eq!([1, 2].map(|n| w.run(s, n, &[1])), [1, 2].map(done));
        assert_eq!(w.run(s, 3, &[1]), done(3));
        assert_eq!(
            ask(&mut w),
            Cached::Reply(Outcome::Gone(()).to_bytes().into())
        );
        assert_eq!(w.executor.table.kept_in_memory(), 12);
    }

    /// Results take no more memory than they may have, whether clients say that they have had them or not.
    #[test]
    fn results_in_memory_are_bounded() {
        for says in [false, true] {
            let mut w = World::of(Executor::new(Counter).keeping(60));
            let s = w.open(1);
            for number in 1..=200 {
                let answered = if says { number - 1 } else { 0 };
                w.run_after(s, number, answered, &[1]);
                assert!(w.executor.table.kept_in_memory() <= 60);
            }
            w.executor.flush(&mut w.state);
            let rows = sessions::replies(&w.state.begin(), SessionId(s)).unwrap();
            let bytes: usize = rows.iter().map(KeptReply::bytes).sum();
            assert_eq!((rows.len(), bytes), if says { (1, 6) } else { (64, 60) });
        }
    }

    /// Repeating an opening gives the same session; a new run of the client (another nonce) gets another one.
    #[test]
    fn opening_is_idempotent_per_nonce() {
        let mut w = World::new();
        let a = w.open(1);
        assert_eq!(w.open(1), a);
        assert_ne!(w.open(2), a);
    }

    /// Nobody uses another client's session.
    #[test]
    fn a_session_belongs_to_its_client() {
        let mut w = World::new();
        let s = w.open(1);
        let thief = PublicKey([8; 32]);
        assert_eq!(w.run_as(thief, s, 1, &[1]), Outcome::NoSession(()));
        assert_eq!(w.run(s, 1, &[1]), done(1));
    }

    /// A session whose lease ran out is closed, and the service is told.
    #[test]
    fn an_idle_session_expires() {
        let mut w = World::new();
        let s = w.open(1);
        let other = w.open(2);
        w.time += (SESSION_LEASE_MS - 10_000) * 1_000_000;
        assert_eq!(w.run(other, 1, &[]), Outcome::Done(Bytes::new()));
        w.time += 20_000 * 1_000_000;
        assert_eq!(w.run(other, 2, &[1]), done(1));
        assert_eq!(w.run(s, 1, &[1]), Outcome::NoSession(()));
        let ended = w.state.get(b"ended").unwrap().unwrap();
        assert_eq!(SessionId::from_bytes(ended).unwrap().0, s);
    }

    /// A client that opens many sessions pushes out its own oldest and nobody else's.
    #[test]
    fn too_many_sessions_cost_their_owner() {
        let mut w = World::new();
        let first = w.open(1);
        for nonce in 2..=SESSIONS_PER_CLIENT as u64 + 1 {
            w.open(nonce);
        }
        assert_eq!(w.run(first, 1, &[1]), Outcome::NoSession(()));
    }

    /// A client that names another's session learns nothing of what that one was answered.
    #[test]
    fn kept_replies_are_for_their_client() {
        let mut w = World::new();
        let s = SessionId(w.open(1));
        w.run(s.0, 1, &[5]);
        let mut ask = |client| {
            w.executor
                .cached(&mut w.state, client, s, RequestNumber(1))
                .unwrap()
        };
        assert!(matches!(ask(CLIENT), Cached::Reply(_)));
        assert_eq!(ask(PublicKey([8; 32])), Cached::Unknown);
    }

    /// A read outside of the order sees the state and leaves it as it was; what writes is not executed there, and nobody
    /// reads in another client's session.
    #[test]
    fn reads_outside_of_the_order() {
        let mut w = World::new();
        let s = SessionId(w.open(1));
        w.run(s.0, 1, &[5]);
        let mut read = |client, op: &'static [u8]| {
            let op = Bytes::from_static(op);
            let (executor, state) = (&mut w.executor, &mut w.state);
            let mut read = |in_full| {
                let read = executor.read(state, client, s, &op, in_full).unwrap();
                read.map(|(body, _)| body)
            };
            let (body, digest) = (read(true), read(false));
            assert_eq!(digest, body.as_ref().map(|b| ReplyBody::Digest(b.digest())));
            body.map(|b| Outcome::from_bytes(b.result().unwrap().clone()).unwrap())
        };
        assert_eq!(read(CLIENT, &[0]), Some(done(5)));
        assert_eq!(read(CLIENT, &[1]), None);
        assert_eq!(read(CLIENT, &[]), None);
        let stranger = PublicKey([8; 32]);
        assert_eq!(read(stranger, &[0]), Some(Outcome::NoSession(())));
        assert_eq!(w.run(s.0, 2, &[0]), done(5));
    }

    /// Time rises strictly, whatever the primary proposes.
    #[test]
    fn a_primary_cannot_turn_time_back() {
        let mut w = World::new();
        let s = w.open(1);
        let mut last = || {
            w.executor.flush(&mut w.state);
            sessions::clock(&w.state.begin()).unwrap().last
        };
        let before = last();
        w.time = 5;
        w.run(s, 1, &[1]);
        w.executor.flush(&mut w.state);
        assert!(sessions::clock(&w.state.begin()).unwrap().last > before);
    }
}
