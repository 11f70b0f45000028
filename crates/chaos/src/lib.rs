//! Chaos: a group of real processes under faults, and clients whose histories are checked.
//!
//! - [`schedule`]: what goes wrong and when, drawn from a seed; [`nemesis`] carries it out.
//! - [`group`], [`mount`], [`disk`], [`rot`]: the processes, disks that can be filled, and damage on them; [`net`]: proxies for each direction of each link.
//! - [`work`]: clients of the library and of mounts; [`hand`]: the processes that alone touch mounts; [`history`]: what they saw; [`model`] and [`check`]: whether that can be.
//! - [`run`]: groups and rounds; [`report`] and [`picture`]: what comes of it.
//!
//! Seeds give equal schedules and choices, not equal runs: processes, disks and sockets are real. So a failure keeps all that is
//! needed to understand it, and a history can be checked again by itself. The simulator is where runs are repeated.
#![allow(
    clippy::disallowed_methods,
    reason = "faults happen at times, and histories are made of them"
)]

pub mod check;
mod dice;
pub mod disk;
pub mod group;
pub mod hand;
pub mod history;
pub mod knobs;
pub mod model;
pub mod mount;
pub mod nemesis;
pub mod net;
pub mod picture;
pub mod report;
pub mod rot;
pub mod run;
pub mod schedule;
mod traces;
pub mod work;

pub use report::Report;
pub use run::{Failure, Settings, run};
pub use schedule::Schedule;
