//! The service that a group replicates.

use bytes::Bytes;
use quorate_state::{Fault, Txn};
use quorate_wire::{ClientId, SessionId, Time};

use crate::graph::Uses;
use crate::reading::Reading;

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

/// Whether a session that has ended still holds something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// No: all is let go of.
    Nothing,
    /// Yes: it is to be asked again.
    More,
}

/// A deterministic state machine over the replicated state.
///
/// Whatever `execute` returns and writes must follow from the state, the call and the operation alone: no clock, no
/// randomness, no hash order, no memory that shows (what is kept from earlier operations must hold for the [`Txn`]'s
/// [lineage](quorate_state::Lineage)). An operation that the client got wrong is a result like any
/// other (in the service's own encoding); a [`Fault`] says that this replica's store failed and takes the replica out. So does a panic, and all
/// replicas come to it: a service must not panic, whatever the operation.
///
/// Keys whose first byte is 0 belong to the executor; a service uses the others.
///
/// # Operations at the same time
///
/// A replica with workers executes operations on threads of their own, at the same time where that gives what the agreed order
/// gives. Which those are, the service says. Whether there are workers is for each replica's operator to decide; the service's
/// results are the same.
///
/// The defaults are right for a service whose operations take microseconds: [`Service::uses`] says that all conflict,
/// and one is executed after the other. It is worth more where operations wait (for a disk, a device, another program) or
/// compute for long:
///
/// - [`Service::uses`] names what an operation reads and writes, in [scopes](crate::graph::Scope) of the service's own making: an
///   account, a row, a range of a file. What is not named must not be touched, not even read; to name too much only
///   costs parallelism. Where it depends on the state what is touched, name all that it can be.
/// - [`Service::run`] is the operation, on a worker; by default that is `execute`. It sees the state with all that came before
///   it *and is named*, and its writes are its own until it is done.
/// - [`Service::settle`] is for the part that nearly all operations share and that would make them all conflict, such as a counter
///   or the next free number. `run` leaves it over by answering [`Ran::Settle`]; it is then done in the agreed order on the
///   ordering thread, so it must be short and must not wait. What only settle touches is named with
///   [`Uses::settle`](crate::graph::Uses::settle). A service without such a part needs no `settle`.
///
/// `run` and `settle`, one after the other, must do what `execute` does: replicas without workers call that.
///
/// ```
/// # use bytes::Bytes;
/// # use quorate_execution::{Call, Service, graph::{Scope, Uses}};
/// # use quorate_state::{Fault, Txn};
/// # struct Registers;
/// # impl Service for Registers {
/// # fn is_read_only(&self, op: &[u8]) -> bool { op.len() == 1 }
/// # fn execute(&self, _: &mut Txn<'_>, _: &Call, _: &Bytes) -> Result<Bytes, Fault> { Ok(Bytes::new()) }
/// // 256 registers; an operation is the register's number, and what to write to it if it does not only read. `Object` has the number of a
/// // class, here the only one, and that of a thing in it; what has a name and no number is `Scope::named(0, name)`.
/// fn uses(&self, _call: &Call, op: &Bytes) -> Uses {
///     match op[..] {
///         [] => Uses::none(),
///         [register] => Uses::none().read(Scope::Object(0, u64::from(register))),
///         [register, ..] => Uses::none().write(Scope::Object(0, u64::from(register))),
///     }
/// }
/// # }
/// ```
pub trait Service: Send + 'static {
    /// Writes the initial state; by default there is none.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    fn genesis(&self, _txn: &mut Txn<'_>) -> Result<(), Fault> {
        Ok(())
    }

    /// Whether an operation only reads. Its result is not kept for retries: a retry reads again. Such an operation may be
    /// executed outside of the agreed order, at replicas that are a few batches apart; `call.now` is then the time of the last
    /// agreed operation, and the result should not follow from it.
    fn is_read_only(&self, op: &[u8]) -> bool;

    /// Executes one operation. `op` comes from a client and may be anything but empty.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    fn execute(&self, txn: &mut Txn<'_>, call: &Call, op: &Bytes) -> Result<Bytes, Fault>;

    /// Executes one operation of which [`Service::is_read_only`] is true, outside of the agreed order. It answers what `execute` does. A
    /// service whose answers hold large values of the state, byte for byte, says here which: see [`Reading`].
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    fn read(&self, txn: &mut Txn<'_>, call: &Call, op: &Bytes) -> Result<Reading, Fault> {
        self.execute(txn, call, op).map(Reading::from)
    }

    /// A session was closed or its lease ran out: what it held is let go. Nobody can use it any more. A session that may hold
    /// much lets go of a part and answers [`Rest::More`]: it is called again with the next operation, so that none takes long. What it
    /// touches is named by [`Service::uses_at_end`].
    ///
    /// The default is for services in which sessions hold nothing.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    fn session_ended(&self, _txn: &mut Txn<'_>, _call: &Call) -> Result<Rest, Fault> {
        Ok(Rest::Nothing)
    }

    /// What [`Service::session_ended`] touches of a session that ends, or has ended and still holds something: `None` where it holds nothing,
    /// and then `session_ended` is not called, which would have nothing to let go of. Before that is done, all at work that conflicts with it must be done, and what comes after it waits
    /// so long. So who answers `None`, or names little, spares others that wait; as of [`Service::uses`], what is not named must not be touched.
    ///
    /// It may look at the state, but only at what operations of the session itself change, and what `session_ended` does of it. As everything, it must be
    /// the same at all replicas. `call.session` is the session, and `call.client` whose it was.
    ///
    /// The default says that it holds something, and that this conflicts with everything. A service in which sessions hold nothing answers `Ok(None)`
    /// where it has worker threads; without them the default costs it nothing.
    ///
    /// # Errors
    /// [`Fault`] where the store fails.
    fn uses_at_end(&self, _txn: &Txn<'_>, _call: &Call) -> Result<Option<Uses>, Fault> {
        Ok(Some(Uses::everything()))
    }

    /// What an operation touches, from the call and the operation alone: no look at the state, which may not be there yet.
    /// Called once an operation on the ordering thread, so it should cost little.
    ///
    /// What `session_ended` touches is asked of [`Service::uses_at_end`].
    fn uses(&self, _call: &Call, _op: &Bytes) -> Uses {
        Uses::everything()
    }

    /// How many bytes of state an operation may write at the most, from the operation alone, beside those that it brings itself: values that are
    /// written anew because a part of them changes, and what it copies. What has been written since the
    /// last checkpoint is in memory, and a checkpoint is due after so much of it; so an operation that writes more than it says
    /// makes replicas hold more than they should. As everything, it must be the same at all replicas.
    ///
    /// The default is for operations that write about what they bring.
    fn weight(&self, op: &Bytes) -> usize {
        op.len()
    }

    /// How many bytes the result of an operation may have at the most, of one that does not only read: it is kept in the state for a while, and counts
    /// there as [`Service::weight`] does, up to what is kept of a session. As everything, it must be the same at all replicas.
    ///
    /// The default is for operations that answer with no more than they bring, or than 64 bytes.
    fn result_bytes(&self, op: &Bytes) -> usize {
        op.len().max(64)
    }

    /// How many bytes an operation reads and writes, at the most and about, beside those that it brings; of one that is ordered. A primary counts them
    /// like those of requests where clients take turns and where it closes a batch, so that short operations that copy much take no more than their
    /// client's share, and hold up nobody for long. From the operation alone; replicas need not agree on it. Small change is counted with each request.
    ///
    /// The default is for operations that touch about what they bring.
    fn work(_op: &Bytes) -> usize
    where
        Self: Sized,
    {
        0
    }

    /// The run step. Reads and writes only what [`Service::uses`] says that it does; others may be at work. It may wait, but not for
    /// ever: what conflicts with it waits too. It may be run for an operation that is then undone, and run again.
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
