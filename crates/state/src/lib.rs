//! The replicated state: an authenticated, copy-on-write, ordered map from keys to values.
//!
//! - [`Snapshot`] is the stable map at one checkpoint, wherever it is kept; drivers bring it.
//! - [`State`] is what execution sees: a snapshot under in-memory layers of newer writes. Freezing the top layer at
//!   a checkpoint is O(1), so service goes on while a driver writes the layer to its store.
//! - [`View`] is that state at one moment, to be read from other threads while it goes on.
//! - [`Txn`] is one operation's reads and writes; they take effect together or not at all.
//! - [`tree`]: the partition tree over a snapshot; its root is what replicas compare.
//! - [`transfer`]: fetches what differs between an own snapshot and a certified root.
//!
//! Absent on purpose: files, threads, clocks. The crate is `no_std`.
#![no_std]

extern crate alloc;

mod layers;
mod levels;
mod memory;
mod merge;
mod snapshot;
pub mod transfer;
pub mod tree;
mod txn;

pub use layers::{Layer, Lineage, Place, State, View};
pub use memory::MemorySnapshot;
pub use snapshot::{Fault, Snapshot, Summary};
pub use txn::Txn;
