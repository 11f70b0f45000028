//! An NFS version 3 server in front of a group's files: the way in for machines that have no Quorate on them.
//!
//! - [`records`], [`rpc`], [`xdr`]: records, heads and bytes. What strangers send is read here and in [`call`]; nothing in it panics, and
//!   nothing is allocated by what they only announce.
//! - [`exports`]: what is offered to whom, and as whom they act there. [`handle`]: what names an object.
//! - [`Front`]: the procedures, each an operation of the file service. [`replays`]: none is done twice.
//! - Connections: [`serve`]; with datagrams, and on several threads, [`Listeners`].
//!
//! The front has no state that matters: it can be killed at any time. It believes the group (2f+1 replicas) and nobody else,
//! and its clients believe it: it belongs on the machine that mounts, or as near to it as can be.
//!
//! Absent on purpose: a port mapper (mount with `port=` and `mountport=`), locks (`nolock`), NFS versions 2 and 4, any
//! cache, and any decision about permissions: the service makes those.

pub mod call;
pub mod exports;
mod front;
pub mod handle;
pub mod records;
pub mod replays;
pub mod reply;
pub mod rpc;
mod server;
pub mod status;
pub mod xdr;

pub use exports::Exports;
pub use front::{Front, Parsed, Settings, parse};
pub use handle::Secrets;
pub use server::carrier::{Carried, Carrier, Doing, Tally};
pub use server::client::{Client, Peer, Ticket};
pub use server::datagrams::{Drops, UDP_IO_BYTES, widen};
pub use server::listen::{Listeners, MAX_THREADS, thread};
pub use server::{Answers, serve, take_back};
