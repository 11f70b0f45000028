//! Byzantine agreement: PBFT (Castro and Liskov, OSDI 1999, OSDI 2000, TOCS 2002) as a state machine.
//!
//! # The loop that drives it
//!
//! ```text
//! loop {
//!     core.take(now, input);                // a message, a completion, or a tick; as many as there are
//!     core.end_turn();
//!     for output in core.drain() { ... }    // send, persist, execute
//!     wait for inputs, at most until core.next_timeout();
//! }
//! ```
//!
//! The disk is a peer: [`Output::Persist`] hands it a record, [`Input::Persisted`] says that all records up to an
//! index are on disk. Votes that depend on a record are held back inside until then, so *persist before send* can't
//! be forgotten by a driver. A replica's own votes count for it only when they are on disk, too.
//!
//! Execution is apart: [`Output::Execute`] hands over batches in order ([`Output::Tentative`] one that may have to be undone),
//! [`Input::CheckpointMade`] brings the root of the state back.
//!
//! # The way of a request
//!
//! [`normal`] pre-prepare, prepare, commit; [`checkpoint`] stability and the window; [`catch_up`] status, hints and
//! fetching; [`view_change`] leaving a view and starting the next, with [`selection`] as a pure function;
//! [`durable`] the records of the log and how a replica comes back from them, [`recovery`] how without. [`client`] is the client's half.
//!
//! Absent on purpose: clock, sockets, threads, randomness, hash order. The crate is `no_std`.
#![no_std]

extern crate alloc;

mod allowance;
mod authenticity;
mod budget;
mod catch_up;
mod checked;
mod checkpoint;
pub mod client;
mod core;
pub mod durable;
mod epochs;
mod estimation;
mod evidence;
mod fingerprint;
mod guests;
mod io;
mod judge;
mod memory;
mod normal;
mod pace;
mod pool;
mod primary;
pub mod recovery;
mod requests;
mod room;
pub mod selection;
mod signed_terms;
mod slot;
mod spared;
mod statements;
mod turns;
mod view_change;
mod watched;

pub use crate::core::{Agreement, Standing};
pub use authenticity::{CLIENT_KEYS_LAST_MS, Checks};
pub use budget::Budget;
pub use checked::Signed;
pub use durable::Record;
pub use estimation::Bound;
pub use guests::MAX_GUESTS;
pub use io::{Config, Input, Missed, Now, Ordered, Output, Rejected, Tuning};
pub use memory::{Memory, Part};
pub use recovery::Recovering;
pub use watched::Seen;

/// Milliseconds on some monotonic clock of the driver's.
pub type Millis = u64;

/// K: the state has a root digest after every so many places. PBFT 2000, 5 (K = 128).
pub const CHECKPOINT_INTERVAL: u64 = 128;
/// A checkpoint is due earlier when the batches since the last one weigh this much: until then they are in memory. Or when executing them may have
/// written four times as much: that counts where it is executed, not here. [`Config::checkpoint_bytes`].
pub const CHECKPOINT_BYTES: usize = 32 << 20;
/// L: how far above the last stable checkpoint places are given. PBFT 2000, 5 (L = 2K).
pub const LOG_WINDOW: u64 = 2 * CHECKPOINT_INTERVAL;
/// The requests of the batches above the last stable checkpoint may weigh this much, and a little more where it is needed to
/// go on.
pub const LOG_BYTES: usize = 256 << 20;
/// Requests up to this size travel inside the primary's pre-prepare; clients send longer ones to all replicas.
/// A default: see [`Tuning`].
pub const INLINE_BYTES: usize = 16 << 10;
/// A batch closes when its requests weigh this much.
pub const BATCH_BYTES: usize = 2 << 20;
/// Nor is a request put into it with which the execution of all in it would read and write more than so many bytes beside theirs, unless it is
/// alone: see [`Agreement::charge_work`].
pub const BATCH_WORK: usize = 8 << 20;
