//! The partition tree: what replicas compare, and what a replica that catches up walks down.
//!
//! What a node is, and its bytes: [`quorate_wire::tree`].

mod check;
mod update;

pub use check::check;
pub use quorate_wire::tree::{
    Child, DEPTH, Entry, LEAF_MAX, Node, digest, find_child, find_entry, place,
};
pub use update::{Update, update};

use alloc::format;

use bytes::Bytes;
use quorate_wire::Digest;

use crate::snapshot::{Fault, Snapshot};

/// The root of a state without entries.
pub fn empty_root() -> Digest {
    digest(&Node::EMPTY.encode())
}

/// The root digest of a snapshot. One without nodes is taken as empty.
///
/// # Errors
/// [`Fault`] where the store fails.
pub fn root(snapshot: &dyn Snapshot) -> Result<Digest, Fault> {
    Ok(match snapshot.node(&[])? {
        Some(bytes) => digest(&bytes),
        None => empty_root(),
    })
}

/// The node of a snapshot's own tree at a path; `None` where there is none.
///
/// # Errors
/// [`Fault`] where the store fails or the node's bytes are not canonical.
pub fn node(snapshot: &dyn Snapshot, path: &[u8]) -> Result<Option<Node>, Fault> {
    snapshot
        .node(path)?
        .map(|bytes| decode_own(path, bytes))
        .transpose()
}

/// The digest of a key's value, as the snapshot's own tree has it. Each node on the way is checked against its parent.
///
/// # Errors
/// [`Fault`] where the store fails or a node does not match its parent.
pub fn lookup(snapshot: &dyn Snapshot, key: &[u8]) -> Result<Option<Digest>, Fault> {
    let place = place(key);
    let mut expected = None;
    for depth in 0..=DEPTH {
        let path = &place[..depth];
        let Some(bytes) = snapshot.node(path)? else {
            return match expected {
                None => Ok(None),
                Some(_) => Err(missing(path)),
            };
        };
        if expected.is_some_and(|expected| digest(&bytes) != expected) {
            return Err(Fault::Tree(format!(
                "the tree's node at {path:?} does not match its parent"
            )));
        }
        match decode_own(path, bytes)? {
            Node::Leaf(entries) => {
                return Ok(find_entry(&entries, key).map(|entry| entry.value));
            }
            // A path of `DEPTH` bytes is never an inner node, so the index is in range.
            Node::Inner(children) => match find_child(&children, place[depth]) {
                Some(child) => expected = Some(child.digest),
                None => return Ok(None),
            },
        }
    }
    Err(Fault::Tree(format!("the tree has no leaf for {place:?}")))
}

/// The path of a node's child.
pub(crate) fn child_path(path: &[u8], byte: u8) -> Bytes {
    path.iter().copied().chain([byte]).collect()
}

pub(crate) fn decode_own(path: &[u8], bytes: Bytes) -> Result<Node, Fault> {
    Node::decode(path, bytes)
        .map_err(|e| Fault::Tree(format!("the tree's node at {path:?} is damaged: {e}")))
}

pub(crate) fn missing(path: &[u8]) -> Fault {
    Fault::Tree(format!("the tree's node at {path:?} is missing"))
}
