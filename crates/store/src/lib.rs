//! The stable store of the replicated state: one file, on redb, and segments of large values.
//!
//! [`Store::checkpoint`] writes a layer and what it changes in the partition tree in one durable transaction.
//! What it returns is a [`Snapshot`](quorate_state::Snapshot) of exactly that state, which later checkpoints leave alone. After a crash
//! the store is at the last checkpoint that was returned, or at the one that was being written, whole.
//!
//! # The files
//!
//! redb's file goes through a layer of checked blocks (`blocks.rs`, with the format), so that redb never sees a byte that
//! has changed on the disk. In redb there are tables of byte strings. The first three have rows: a tag of 16 bytes, and 0 and
//! the content, or 2 and where in a blob segment ([`Place`]) the content is. That is so for contents of `entries` of
//! [`LARGE_BYTES`] or more.
//!
//! | table | its byte in the tag | key | content |
//! |---|---|---|---|
//! | `entries` | 1 | the state's key | the state's value |
//! | `nodes` | 2 | the path in the partition tree | the node's canonical bytes |
//! | `meta` | 3 | `position` | checkpoint (`u64`), root digest (32 bytes), whether it is complete (`u8`, 0 or 1) |
//! | `refs` | | a [`Place`], big-endian, and the key of the row that refers to it | empty |
//! | `segments` | | a segment's number, big-endian | how many bytes rows refer to (`u64`) |
//!
//! The tag is the first 16 bytes of BLAKE3 (key derivation, context "quorate v1 store row") over: the table's byte, the
//! key's length (`u32`), the key, the content; of content in a segment over the table's byte plus 16, the key's length, the key, and the
//! content's digest in the partition tree, so that a large value is hashed once when it is written, and once when it is read. It is checked at each read: blocks prove what the disk gave, tags prove
//! the way from the value that was put in to the value that is handed out, wherever it was. Integers are little-endian where
//! nothing else is said.
//!
//! Blob segments are shared with the write-ahead log: a large value that the log has written is not written again
//! (`blobs.rs`); what is dead in them is given back (`space.rs`).
//!
//! Beside the file `state` lies `state.lock`, locked while a process has the store open, with that process's number in
//! text; and while a store is first made, `state.new`.
//!
//! # Absent on purpose
//!
//! Older checkpoints: a snapshot lives as long as someone holds it, and only the newest survives a restart. Repair:
//! a damaged store is told ([`StoreError::is_damage`], [`Damage`]), and whoever has opened it deletes it and gets the state elsewhere; or
//! sets it aside and takes from it what turns out to be right ([`Former`]).

extern crate alloc;

mod blobs;
mod blocks;
mod error;
mod former;
#[cfg(test)]
mod power_cut;
mod rows;
mod space;
#[cfg(test)]
mod spoiled;
mod store;

pub use blobs::{Appender, BlobError, Blobs, Hold, LARGE_BYTES, Place};
pub use error::StoreError;
pub use former::Former;
pub use rows::Damage;
pub use store::{Options, Position, Store};
