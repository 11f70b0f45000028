//! From agreed batches to results: the [`Service`] that a group replicates, sessions, and replies that are given
//! exactly once.
//!
//! Absent on purpose: threads, clocks, input and output. The crate is `no_std`.
#![no_std]

extern crate alloc;

mod ends;
mod executor;
mod flight;
pub mod graph;
mod job;
mod reading;
mod recoveries;
mod service;
mod sessions;
mod table;

pub use executor::{Executed, Executor};
pub use flight::{Done, Flight, Workers};
pub use job::{Broken, Completion, Job};
pub use reading::Reading;
pub use recoveries::recoveries;
pub use service::{Call, Ran, Rest, Service};
pub use sessions::SESSIONS_PER_CLIENT;
pub use table::Cached;
