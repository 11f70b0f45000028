//! A whole replica without input or output: agreement, execution and state put together, generic over the service.
//!
//! A driver brings messages, completions and time in with [`Replica::handle`], and carries out what
//! [`Replica::drain`] gives: send, reply, append to the log, write a layer to the store. The simulator and the daemon
//! are such drivers, so that what the simulator tests is what runs.
//!
//! Absent on purpose: sockets, files, threads, clocks. The crate is `no_std`.
#![no_std]

extern crate alloc;

mod answers;
mod asks;
mod checkpoints;
mod clients;
mod doubt;
mod former;
mod io;
mod parallel;
mod parts;
mod reads;
mod replica;
mod signing;
mod transfer;
mod vouchers;
mod witness;

pub use checkpoints::Checkpoints;
pub use clients::ConnectionId;
pub use io::{Input, Output};
pub use replica::{Replica, Restored, genesis};
pub use signing::{Sealed, Signing};
