//! The service that a group replicates.

use bytes::Bytes;
use quorate_state::{Fault, Txn};
use quorate_wire::{ClientId, SessionId, Time};

use crate::graph::Uses;

/// Who calls, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The client's authenticated key.
    pub client: ClientId,
    /// The client's session.
    pub session: SessionId,
    /// The agreed time of this operation: strictly rising from operation to operation.
    pub now: Time,
}

/// What the run step of an operation came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ran {
    /// The result; nothing is left for the settle step.
    Done(Bytes),
    /// What the service wants to be told in [`Service::settle`].
    Settle(Bytes),
}

/// A deterministic state machine over the replicated state.
///
/// Whatever `execute` returns and writes must follow from the state, the call and the operation alone: no clock, no
/// randomness, no hash order, no memory of its own. An operation that the client got wrong is a result like any
/// other (in the service's own encoding); a [`Fault`] says that this replica's store failed and takes the replica out.
///
/// Keys whose first byte is 0 belong to the executor; a service uses the others.
///
/// # Operations at the same time
///
/// A service that only implements `execute` has its operations executed one after the other. One that says with
/// [`Service::uses`] what they touch can have those that don't conflict at work at the same time, each on a thread of its
/// own; results and state are those of the agreed order all the same. An operation that has a part which conflicts with
/// everything (a counter, say) leaves it to its settle step, so that the rest need not wait: see [`crate::graph`]. Then `run`
/// and `settle`, one after the other, do what `execute` does.
pub trait Service: Send + 'static {
    /// Writes the initial state.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    fn genesis(&self, txn: &mut Txn<'_>) -> Result<(), Fault>;

    /// Whether an operation only reads. Its result is not kept for retries: a retry reads again. Such an operation may be
    /// executed outside of the agreed order, at replicas that are a few batches apart; `call.now` is then the time of the last
    /// agreed operation, and the result should not follow from it.
    fn is_read_only(&self, op: &[u8]) -> bool;

    /// Executes one operation. `op` comes from a client and may be anything.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    fn execute(&self, txn: &mut Txn<'_>, call: &Call, op: &Bytes) -> Result<Bytes, Fault>;

    /// A session was closed or its lease ran out: what it held is let go.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    fn session_ended(&self, txn: &mut Txn<'_>, call: &Call) -> Result<(), Fault>;

    /// What an operation touches, from the call and the operation alone: no look at the state, which may not be there yet.
    /// Called once an operation on the ordering thread, so it should cost little.
    ///
    /// What `session_ended` does is not asked about: it conflicts with everything.
    fn uses(&self, _call: &Call, _op: &Bytes) -> Uses {
        Uses::everything()
    }

    /// The run step. Reads and writes only what [`Service::uses`] says that it does; others may be at work.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    fn run(&self, txn: &mut Txn<'_>, call: &Call, op: &Bytes) -> Result<Ran, Fault> {
        self.execute(txn, call, op).map(Ran::Done)
    }

    /// The settle step: called where `run` asked for it, in the agreed order among those that conflict, on a transaction that
    /// holds what `run` wrote. Answers with the result. An operation that only settles ([`Uses::only_settles`]) is
    /// executed whole in this place instead.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    fn settle(
        &self,
        _txn: &mut Txn<'_>,
        _call: &Call,
        _op: &Bytes,
        ran: Bytes,
    ) -> Result<Bytes, Fault> {
        Ok(ran)
    }
}
