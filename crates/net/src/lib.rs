//! Who belongs to a group, and the links between its members.
//!
//! - [`group`]: the group file, which says who belongs to a group. [`keys`]: key files. [`holder`]: the process that has a
//!   replica's identity key.
//! - [`tls`]: links are TLS 1.3 between raw public keys; who is not in the group is refused in the handshake, or else has to show a
//!   credential of the group's owner (`guests.rs`).
//! - [`Frame`]: a message as links carry it.
//! - [`ReplicaLinks`] and [`ClientLinks`]: all links of a replica and of a client, driven by the thread that owns them.
//!
//! Where replicas have key holders, links are made with epoch keys, and the first frame of a replica is the certificate of its own (`epochs.rs`).
//!
//! A link has no thread, task or lock of its own. Its owner waits for all of its links at once, takes the messages that
//! came, works on them in the same thread, and then has what it queued written, with one system call for each link
//! that has something to send. So a message costs no change of threads. What strangers can cause, handshakes, is work
//! of another thread (`door.rs`). Where there are threads for it, what is long is sealed by others, to which the owner lends a link's socket and
//! TLS state (`hub/lending.rs`, `sealers.rs`). A thread whose panic must not go unnoticed is started by [`threads::spawn`].
//!
//! ```text
//! conduct.rs   hub.rs      who costs too much; all links of an owner: readiness, fairness, flushing
//!                 |    \
//!                 |    sealers.rs            threads that seal and write what is long
//!                 |               \
//! door, dial -> link.rs        channel.rs    one connection: frames, what waits to be sent; its socket and TLS
//!                /   \
//!         frame.rs   outbox.rs             and records.rs, which counts what brings no message
//! ```
//!
//! Absent on purpose: an asynchronous runtime, and decisions of the protocol. This crate moves bytes.

mod channel;
mod client;
mod clock;
mod conduct;
mod dial;
pub mod disk;
mod door;
mod epochs;
mod frame;
#[doc(hidden)]
pub mod fuzzing;
pub mod group;
mod guests;
pub mod hex;
pub mod holder;
mod hub;
pub mod keys;
mod link;
mod listen;
mod log_limit;
pub mod open_files;
mod outbox;
mod records;
mod replica;
mod sealers;
pub mod threads;
pub mod tls;

pub use client::{ClientEvent, ClientLinks};
pub use epochs::Epochs;
pub use frame::Frame;
pub use group::{Group, GroupError};
pub use hub::Waker;
pub use keys::{KeyError, generate};
pub use listen::{ListenError, bind, is_passing};
pub use replica::{ConnectionId, Event, Limits, MAX_GUESTS, Origin, ReplicaLinks, Who};
pub use sealers::Sealing;
pub use tls::Identity;
