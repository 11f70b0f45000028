//! The whole product, as people run it: real processes, real sockets and disks, the kernel's FUSE.
//!
//! Each file holds one part of what is promised; `harness` is what they stand on. Times are printed and never
//! judged. Clocks are for waiting only.
#![allow(
    clippy::disallowed_methods,
    reason = "waits need a clock; no result depends on it"
)]

mod acl;
mod bench;
mod blobs;
mod chaos;
mod command_line;
mod contrast;
mod credentials;
mod detached;
mod evidence;
mod failing_disk;
mod full_disk;
mod guest_ends;
mod guests;
mod harness;
mod hostile;
mod keyholder;
mod large;
mod lost_state;
mod memory;
mod mount_options;
mod nfs;
mod power_cut;
mod programs;
mod quota;
mod recovery;
mod results;
mod route;
mod route_kernel;
mod route_starts;
mod route_udp;
mod several_groups;
mod supervise;
mod tools;
#[cfg(feature = "tpm")]
mod tpm;
mod two_mounts;
mod two_routers;
mod up;
mod users;
mod workload;
