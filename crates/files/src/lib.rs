//! The replicated file service: a pure function of state, operation and agreed time.
//!
//! - [`op`]: what a client may ask; [`answer`]: what it is told; [`errno`]: why it was refused.
//! - [`layout`]: the state, byte by byte, and every limit.
//! - [`FileService`] is the [`Service`](quorate_execution::Service): one `match` hands each operation to the file of its group:
//!   names, rename, opens, readdir, data, ranges, attr, rights, xattr, locks.
//! - [`check`]: the whole state judged, for tests and the simulator.
//!
//! Every check is made here, on each replica, and none is left to the client. A refused operation leaves
//! nothing written. The work of one operation is bounded by [`layout`]'s limits and not by the size of any file.
//!
//! Absent on purpose: clocks, threads, caches, and trust in what a client says of the state. The crate is `no_std`.
#![no_std]

extern crate alloc;

#[macro_use]
mod types;
mod accesses;
mod acl;
mod admission;
pub mod answer;
mod attr;
mod audit;
pub mod check;
mod conflicts;
mod data;
mod decisions;
pub mod errno;
mod extent;
mod fs;
mod gate;
mod grants;
mod guest;
pub mod layout;
mod linger;
mod locks;
mod names;
mod needs;
pub mod op;
mod opens;
mod perm;
mod quota;
mod ranges;
mod readdir;
mod reading;
mod rename;
mod revocations;
mod rights;
mod service;
mod walk;
mod weight;
mod xattr;

pub use accesses::is_access_due;
pub use admission::Admission;
pub use answer::{Answer, Attr, Outcome};
pub use errno::Errno;
pub use op::{Action, Op, Target, Who};
pub use service::{FileService, Genesis};
pub use types::{Handle, Ino, Kind, Nothing, Stamp};
