//! Sessions with a group: operations go in, and results come out that 2f+1 replicas vouch for.
//!
//! - [`Session`]: a thread drives the session; handles of it are cheap, and callers wait in any executor or none.
//! - [`InlineSession`]: driven by the thread that calls, which saves two changes of threads for each operation.
//!
//! A caller waits for 2f+1 replicas however long that takes. A session that the group has closed is opened again by
//! itself; what was bound to the old one (handles, locks) is gone then, which [`Session::generation`] tells.

mod block;
mod engine;
mod inline;
#[cfg(test)]
mod tests;
mod thread;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use bytes::Bytes;
use quorate_net::{ClientLinks, Group, Identity, Waker, threads};
use quorate_wire::message::report::Report;
use quorate_wire::{Digest, ReplicaId};
use tokio::sync::{Semaphore, oneshot, watch};

pub(crate) use engine::random;
use engine::{Engine, link_bit};
pub use inline::{InlineSession, Ticket};
pub use quorate_agreement::client::NoResult;
use thread::{Ask, Driver, Waiter};

/// Up to this length of results, in bytes, a session has as many operations in flight as it may have.
pub const SHORT_RESULT: usize = 17_000;
/// How many calls may wait for their results; further callers wait for a place.
pub const MAX_CALLS: usize = 256;
/// How long closing a session may take.
const CLOSING: Duration = Duration::from_secs(2);

/// Why there is no report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// There is no link to the replica.
    #[error("no link to the replica")]
    NoLink,
    /// It did not answer in time.
    #[error("the replica does not answer")]
    NoAnswer,
}

/// Why a call with a time limit has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimedCallError {
    /// The time is over. The operation may have been executed, or may still be.
    #[error("no result in time; the operation may have been executed, or may still be")]
    TimedOut,
    /// See [`NoResult`].
    #[error(transparent)]
    NoResult(#[from] NoResult),
}

/// Why a session's thread has ended though nobody has ended the session: a defect of this program, or something that the system does not give. All that is
/// asked of the session from then on is [`NoResult::SessionLost`], and so it stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the session with the group has failed: {0}")]
pub struct SessionFailed(String);

/// A handle of a session; clones share it. The session's thread ends when the last one is dropped.
#[derive(Clone, Debug)]
pub struct Session {
    places: Arc<Semaphore>,
    door: Arc<Door>,
    group: Digest,
}

/// Where callers leave what they want.
#[derive(Debug)]
struct Door {
    asks: Sender<Ask>,
    waker: Waker,
    shared: Arc<Shared>,
    /// How many callers have more to ask before the thread is to be woken.
    gathering: AtomicUsize,
}

/// As long as one is kept, what is asked of the session waits, to leave together with what is asked next; see [`Session::gather`].
#[derive(Debug)]
#[must_use = "what is asked leaves when this is dropped"]
pub struct Gathering(Arc<Door>);

impl Drop for Gathering {
    fn drop(&mut self) {
        if self.0.gathering.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.waker.wake();
        }
    }
}

/// What the session's thread tells all callers.
#[derive(Debug, Default)]
struct Shared {
    generation: AtomicU64,
    links: AtomicU64,
    failed: watch::Sender<Option<SessionFailed>>,
}

impl Shared {
    fn fail(&self, why: String) {
        let failed = SessionFailed(why);
        tracing::error!("{failed}");
        self.failed.send_replace(Some(failed));
    }
}

impl Door {
    fn ask(&self, ask: Ask) {
        // If the thread has ended, what the ask would be answered with is dropped, which its caller sees.
        let _ = self.asks.send(ask);
        // Whoever gathers wakes it afterwards, and by this exchange sees what was sent before it.
        if self.gathering.fetch_add(0, Ordering::AcqRel) == 0 {
            self.waker.wake();
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.ask(Ask::End);
    }
}

impl Session {
    /// Connects to all replicas of a group. Returns at once, and calls wait until the group answers.
    ///
    /// # Errors
    /// If the system gives no more threads or file descriptors.
    pub fn connect(group: &Group, identity: &Identity) -> io::Result<Session> {
        Session::connect_for_results(group, identity, SHORT_RESULT)
    }

    /// The same where operations that do not only read may have results of so many bytes. The longer they are, the fewer operations are in flight
    /// at a time, so that the group keeps the results of all of them until they have come here: [`KEPT_BYTES`](quorate_wire::message::session::KEPT_BYTES) in a session. Of one that has longer
    /// results than it said, an operation whose answer was lost may end as [`NoResult::ResultGone`].
    ///
    /// # Errors
    /// As [`Session::connect`].
    pub fn connect_for_results(
        group: &Group,
        identity: &Identity,
        longest_result: usize,
    ) -> io::Result<Session> {
        Session::driven_by(Driver::run, group, identity, longest_result)
    }

    /// The same, where the thread does this with its driver.
    fn driven_by(
        drive: impl FnOnce(Driver) -> io::Result<()> + Send + 'static,
        group: &Group,
        identity: &Identity,
        longest_result: usize,
    ) -> io::Result<Session> {
        let links = ClientLinks::connect(group, identity)?;
        // Bounded by `places`: a call waits for one of them before it asks.
        let (asks, receiver) = mpsc::channel();
        let (waker, shared) = (links.waker(), Arc::<Shared>::default());
        let engine = Engine::new(group, identity, links, longest_result);
        let driver = Driver::new(engine, receiver, shared.clone());
        let (of_panic, of_error) = (shared.clone(), shared.clone());
        let died = move |panicked: threads::Panicked| of_panic.fail(panicked.to_string());
        threads::spawn("session", died, move || {
            if let Err(e) = drive(driver) {
                of_error.fail(e.to_string());
            }
        })?;
        let door = Door {
            asks,
            waker,
            shared,
            gathering: AtomicUsize::new(0),
        };
        Ok(Session {
            places: Arc::new(Semaphore::new(MAX_CALLS)),
            door: Arc::new(door),
            group: group.id(),
        })
    }

    /// What is asked from now on, by anybody, leaves together when the result is dropped, and so is mostly ordered in one batch: for a caller that has
    /// several operations to ask without waiting in between. Nobody's answer comes meanwhile, so it is not to be kept over an `await` that may wait.
    pub fn gather(&self) -> Gathering {
        self.door.gathering.fetch_add(1, Ordering::AcqRel);
        Gathering(self.door.clone())
    }

    /// Links that are made from now on are made with this identity: the same key, and another credential.
    pub fn renew(&self, group: &Group, identity: &Identity) {
        let (group, identity) = (Box::new(group.clone()), Box::new(identity.clone()));
        self.door.ask(Ask::Renew(group, identity));
    }

    /// The id of the group that it is with.
    pub fn group(&self) -> Digest {
        self.group
    }

    /// Has the group execute an operation, once. Who wants to give up drops the future.
    ///
    /// # Errors
    /// [`NoResult`]: mostly that the group has closed the session, and whether the operation was executed is not known.
    pub async fn call(&self, op: Bytes) -> Result<Bytes, NoResult> {
        self.ask(|waiter| Ask::Call(op, waiter)).await
    }

    /// As [`Session::call`], for an operation that only reads: it is not ordered if the replicas can answer it alike at once. It may be executed more than
    /// once. One that is no such operation for the service gets no answer at first, and is ordered after 50 ms, as are other reads for a while then.
    ///
    /// # Errors
    /// As [`Session::call`].
    pub async fn read(&self, op: Bytes) -> Result<Bytes, NoResult> {
        self.ask(|waiter| Ask::Read(op, waiter)).await
    }

    /// As [`Session::call`], for a thread that may wait.
    ///
    /// # Errors
    /// As [`Session::call`].
    pub fn call_blocking(&self, op: Bytes) -> Result<Bytes, NoResult> {
        block::on(self.call(op))
    }

    /// As [`Session::read`], for a thread that may wait.
    ///
    /// # Errors
    /// As [`Session::call`].
    pub fn read_blocking(&self, op: Bytes) -> Result<Bytes, NoResult> {
        block::on(self.read(op))
    }

    /// As [`Session::call_blocking`], for so long at the most. An operation that is given up keeps its place among the
    /// [`MAX_CALLS`] until the group has answered it.
    ///
    /// # Errors
    /// [`TimedCallError`].
    pub fn call_blocking_for(
        &self,
        op: Bytes,
        patience: Duration,
    ) -> Result<Bytes, TimedCallError> {
        let result = block::on_for(patience, self.call(op));
        Ok(result.ok_or(TimedCallError::TimedOut)??)
    }

    /// As [`Session::read_blocking`], for so long at the most.
    ///
    /// # Errors
    /// As [`Session::call_blocking_for`].
    pub fn read_blocking_for(
        &self,
        op: Bytes,
        patience: Duration,
    ) -> Result<Bytes, TimedCallError> {
        let result = block::on_for(patience, self.read(op));
        Ok(result.ok_or(TimedCallError::TimedOut)??)
    }

    async fn ask(&self, ask: impl FnOnce(Waiter) -> Ask) -> Result<Bytes, NoResult> {
        let place = self.places.clone().acquire_owned().await;
        let place = place.map_err(|_| NoResult::SessionLost)?;
        let (result, answer) = oneshot::channel();
        self.door.ask(ask(Waiter::new(result, place)));
        answer.await.map_err(|_| NoResult::SessionLost)?
    }

    /// How a replica is, as it says itself.
    ///
    /// # Errors
    /// [`ReportError`], after `patience` at most.
    pub async fn report(
        &self,
        replica: ReplicaId,
        patience: Duration,
    ) -> Result<Report, ReportError> {
        let (sender, report) = oneshot::channel();
        let until = engine::now() + patience;
        self.door.ask(Ask::Report(replica, until, sender));
        report.await.unwrap_or(Err(ReportError::NoAnswer))
    }

    /// Whether there is a link to a replica now.
    pub fn is_linked(&self, replica: ReplicaId) -> bool {
        self.door.shared.links.load(Ordering::Acquire) & link_bit(replica) != 0
    }

    /// Rises with each session that was opened: 0 before the first. What was bound to an earlier session is gone.
    pub fn generation(&self) -> u64 {
        self.door.shared.generation.load(Ordering::Acquire)
    }

    /// Done when the session has failed, so that nothing that is asked of it will ever be answered; never where it does not, also when it is closed.
    pub fn failed(&self) -> impl Future<Output = SessionFailed> + Send + use<> {
        let mut failed = self.door.shared.failed.subscribe();
        async move {
            let failed = failed.wait_for(Option::is_some).await;
            match failed.ok().and_then(|failed| failed.clone()) {
                Some(failed) => failed,
                None => std::future::pending().await,
            }
        }
    }

    /// Closes the session at the group, so that its locks and handles end now and not with its lease. Calls fail from
    /// now on. Gives up after two seconds: the lease ends it then.
    pub async fn close(&self) {
        let (sender, done) = oneshot::channel();
        self.door.ask(Ask::Close(engine::now() + CLOSING, sender));
        // If it has ended already, it is closed.
        let _ = done.await;
    }

    /// As [`Session::close`], for a thread that may wait.
    pub fn close_blocking(&self) {
        block::on(self.close());
    }
}
