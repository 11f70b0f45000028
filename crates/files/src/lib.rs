//! The replicated file service: a pure function of state, operation and agreed time.
//!
//! - [`op`]: what a client may ask; [`answer`]: what it is told; [`errno`]: why it was refused.
//!
//! Absent on purpose: clocks, threads, caches, and trust in what a client says of the state. The crate is `no_std`.
#![no_std]

extern crate alloc;

#[macro_use]
mod types;
pub mod answer;
pub mod errno;
pub mod op;

pub use answer::{Answer, Attr, Outcome};
pub use errno::Errno;
pub use op::{Action, Op, Target, Who};
pub use types::{Handle, Ino, Kind, Nothing, Stamp};
