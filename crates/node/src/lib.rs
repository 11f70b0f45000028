//! What a replica's process is made of, around the cores that know no sockets, disks or clocks.
//!
//! - [`group`]: the group file, which says who belongs to a group.
//! - [`keys`]: key files.
//! - [`tls`]: links are TLS 1.3 between raw public keys; who is not in the group is refused in the handshake.
//! - [`link`]: messages over a connection; what is sent too fast waits in its sender's socket.
//! - [`transport`] and [`client_transport`]: the links of a replica and of a client.
//! - [`event`]: how links hand over what happens.
//! - [`wal`]: the write-ahead log.
//! - [`daemon`]: all of it together, around a replica of any [service](quorate_execution::Service).
//!
//! Absent on purpose: decisions of the protocol. They are in the cores; this crate moves bytes.

pub mod client_transport;
pub mod daemon;
mod dial;
pub mod disk;
pub mod event;
pub mod group;
pub mod hex;
pub mod keys;
pub mod link;
mod outbox;
pub mod tls;
pub mod transport;
pub mod wal;

pub use client_transport::{ClientEvent, ClientEvents, ClientLinks, ClientTransport};
pub use daemon::{Daemon, DaemonError, Options, Stopper};
pub use group::{Group, GroupError};
pub use keys::{KeyError, generate};
pub use outbox::Frame;
pub use quorate_agreement::Tuning;
pub use tls::Identity;
pub use transport::{ConnectionId, Event, Limits, Links, Transport, TransportError};
pub use wal::{Recovery, Wal, WalError, WalEvent, WalOptions, WalThread};
