//! The service that a group replicates.

use bytes::Bytes;
use quorate_state::{Fault, Txn};
use quorate_wire::{ClientId, SessionId, Time};

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

/// A deterministic state machine over the replicated state.
///
/// Whatever `execute` returns and writes must follow from the state, the call and the operation alone: no clock, no
/// randomness, no hash order, no memory of its own. An operation that the client got wrong is a result like any
/// other (in the service's own encoding); a [`Fault`] says that this replica's store failed and takes the replica out.
///
/// Keys whose first byte is 0 belong to the executor; a service uses the others.
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
}
