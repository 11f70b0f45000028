//! A session in the thread of its caller.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::time::Duration;

use bytes::Bytes;
use quorate_agreement::client::{NoResult, Token};
use quorate_net::{ClientLinks, Group, Identity};

use super::engine::{self, Engine, Happened};
use super::{CLOSING, SHORT_RESULT, TimedCallError};

/// Which of several operations a result belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(Token);

/// A session that has no thread of its own: it lives while it is called. The lowest latency there is, for programs
/// that do one thing after the other or keep some operations in flight by themselves.
///
/// Between calls nothing is sent and nothing taken. A session that is left alone for longer than 45 s is closed by the
/// group, and the next operation goes out in a new one; [`InlineSession::poll`] keeps it alive.
#[derive(Debug)]
pub struct InlineSession {
    engine: Engine,
    results: VecDeque<(Ticket, Result<Bytes, NoResult>)>,
    /// Nobody waits for their results any more. No more than are open.
    given_up: BTreeSet<Token>,
    open: usize,
    generation: u64,
    closed: bool,
}

impl InlineSession {
    /// How many operations are in flight at a time, or fewer where their results may be longer than [`SHORT_RESULT`]; what is submitted beyond
    /// waits here.
    pub const WINDOW: usize = quorate_wire::message::session::SESSION_WINDOW as usize;

    /// Connects to all replicas of a group. Returns at once; links are made while operations wait for them.
    ///
    /// # Errors
    /// If the system gives no more file descriptors.
    pub fn connect(group: &Group, identity: &Identity) -> io::Result<InlineSession> {
        InlineSession::connect_for_results(group, identity, SHORT_RESULT)
    }

    /// The same where operations that do not only read may have results of so many bytes: see [`Session::connect_for_results`].
    ///
    /// # Errors
    /// As [`InlineSession::connect`].
    ///
    /// [`Session::connect_for_results`]: super::Session::connect_for_results
    pub fn connect_for_results(
        group: &Group,
        identity: &Identity,
        longest_result: usize,
    ) -> io::Result<InlineSession> {
        let links = ClientLinks::connect(group, identity)?;
        Ok(InlineSession {
            engine: Engine::new(group, identity, links, longest_result),
            results: VecDeque::new(),
            given_up: BTreeSet::new(),
            open: 0,
            generation: 0,
            closed: false,
        })
    }

    /// Has the group execute an operation, once, and waits for the result however long that takes. Results of
    /// operations that were submitted before are kept for [`InlineSession::poll`].
    ///
    /// # Errors
    /// [`NoResult`]: mostly that the group has closed the session, and whether the operation was executed is not known.
    pub fn call(&mut self, op: Bytes) -> Result<Bytes, NoResult> {
        let ticket = self.submit(op);
        self.wait_for(ticket)
    }

    /// As [`InlineSession::call`], for an operation that only reads: it is not ordered if the replicas can answer it alike at
    /// once. It may be executed more than once.
    ///
    /// # Errors
    /// As [`InlineSession::call`].
    pub fn read(&mut self, op: Bytes) -> Result<Bytes, NoResult> {
        let ticket = self.submit_read(op);
        self.wait_for(ticket)
    }

    /// As [`InlineSession::call`], for so long at the most. An operation that is given up keeps its place among those in flight until the group has
    /// answered it.
    ///
    /// # Errors
    /// [`TimedCallError`].
    pub fn call_for(&mut self, op: Bytes, patience: Duration) -> Result<Bytes, TimedCallError> {
        let ticket = self.submit(op);
        self.wait_for_at_most(ticket, patience)
    }

    /// As [`InlineSession::read`], for so long at the most.
    ///
    /// # Errors
    /// As [`InlineSession::call_for`].
    pub fn read_for(&mut self, op: Bytes, patience: Duration) -> Result<Bytes, TimedCallError> {
        let ticket = self.submit_read(op);
        self.wait_for_at_most(ticket, patience)
    }

    fn wait_for(&mut self, ticket: Ticket) -> Result<Bytes, NoResult> {
        loop {
            if let Some(result) = self.result_of(ticket) {
                return result;
            }
            self.turn(None).map_err(|_| NoResult::SessionLost)?;
        }
    }

    fn wait_for_at_most(
        &mut self,
        ticket: Ticket,
        patience: Duration,
    ) -> Result<Bytes, TimedCallError> {
        let began = engine::now();
        loop {
            if let Some(result) = self.result_of(ticket) {
                return Ok(result?);
            }
            let waited = engine::now().saturating_duration_since(began);
            let left = patience.saturating_sub(waited);
            if left.is_zero() {
                self.given_up.insert(ticket.0);
                return Err(TimedCallError::TimedOut);
            }
            self.turn(Some(left)).map_err(|_| NoResult::SessionLost)?;
        }
    }

    fn result_of(&mut self, ticket: Ticket) -> Option<Result<Bytes, NoResult>> {
        let at = self.results.iter().position(|(t, _)| *t == ticket)?;
        self.results.remove(at).map(|(_, result)| result)
    }

    /// Starts an operation. It goes out with the next [`InlineSession::poll`] or [`InlineSession::call`], together with
    /// others.
    pub fn submit(&mut self, op: Bytes) -> Ticket {
        self.open += 1;
        Ticket(self.engine.call(op))
    }

    /// As [`InlineSession::submit`], for an operation that only reads.
    pub fn submit_read(&mut self, op: Bytes) -> Ticket {
        self.open += 1;
        Ticket(self.engine.read(op))
    }

    /// The next result; `None` if there is none within `timeout`.
    ///
    /// # Errors
    /// Those of the operating system, which are final.
    pub fn poll(
        &mut self,
        timeout: Duration,
    ) -> io::Result<Option<(Ticket, Result<Bytes, NoResult>)>> {
        let began = engine::now();
        while self.results.is_empty() {
            let waited = engine::now().saturating_duration_since(began);
            let left = timeout.saturating_sub(waited);
            self.turn(Some(left))?;
            if left.is_zero() {
                break;
            }
        }
        Ok(self.results.pop_front())
    }

    /// Operations that have no result yet, those that were given up among them.
    pub fn in_flight(&self) -> usize {
        self.open
    }

    /// Rises with each session that was opened: 0 before the first. What was bound to an earlier session is gone.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Closes the session at the group, so that what is bound to it ends now and not with its lease. Gives up after two
    /// seconds: the lease ends it then.
    pub fn close(mut self) {
        self.engine.close();
        let until = engine::now() + CLOSING;
        while !self.closed {
            let left = until.saturating_duration_since(engine::now());
            if left.is_zero() || self.turn(Some(left)).is_err() {
                break;
            }
        }
    }

    fn turn(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.engine.turn(timeout)?;
        while let Some(happened) = self.engine.happened.pop_front() {
            match happened {
                Happened::Done(token, result) => {
                    self.open -= 1;
                    if !self.given_up.remove(&token) {
                        self.results.push_back((Ticket(token), result));
                    }
                }
                Happened::Opened => self.generation += 1,
                Happened::Closed => self.closed = true,
                Happened::Report(..) => {}
            }
        }
        Ok(())
    }
}
