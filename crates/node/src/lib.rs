//! What a replica's process is made of, around the cores that know no sockets, disks or clocks.
//!
//! - [`daemon`]: all of it together, around a replica of any [service](quorate_execution::Service).
//! - [`wal`]: the write-ahead log.
//!
//! Links, and the group and key files, are those of [`quorate_net`].
//!
//! Absent on purpose: decisions of the protocol. They are in the cores; this crate moves bytes.

extern crate alloc;

pub mod daemon;
#[doc(hidden)]
pub mod fuzzing;
pub mod wal;

pub use daemon::{
    Daemon, DaemonError, KeyHolder, Options, PATIENCE, Stopper, StoreOptions, Trust, Verification,
};
pub use quorate_agreement::Tuning;
pub use quorate_net::{
    Group, GroupError, Identity, KeyError, Sealing, disk, generate, group, hex, keys, tls,
};
pub use wal::{Recovery, Wal, WalError, WalEvent, WalOptions, WalThread};
