//! The whole product, as people run it: real processes, real sockets and disks, the kernel's FUSE.
//!
//! Each file holds one part of what is promised; `harness` is what they stand on. Times are printed and never
//! judged. Clocks are for waiting only.
#![allow(
    clippy::disallowed_methods,
    reason = "waits need a clock; no result depends on it"
)]

mod harness;
mod power_cut;
mod programs;
mod two_mounts;
mod workload;
