//! The partition tree: what replicas compare, and what a replica that catches up walks down.
//!
//! A key's place is the first 4 bytes of its digest as [`Content::StateKey`]. A node covers the keys whose place
//! begins with the node's *path* (0 to 4 bytes; the root's is empty). A node that covers at most [`LEAF_MAX`] entries,
//! or whose path has 4 bytes, is a leaf and lists them; any other is an inner node and lists its children. So the
//! shape follows from the contents alone, and equal contents have equal trees whatever their histories. PBFT 2002, 5.3.1.
//!
//! Bytes of a node, integers little-endian:
//!
//! | node | bytes |
//! |---|---|
//! | leaf | 1 (`u8`), count (`u32`), then for each entry in rising key order: key length (`u32`), key, digest of the value (32) |
//! | inner | 2 (`u8`), count (`u32`), then for each child in rising order: its path's last byte (`u8`), its digest (32), how many entries it covers (`u64`) |
//!
//! A node's digest is taken over these bytes as [`Content::TreeNode`]. Children without entries are not listed. An
//! empty state is an empty leaf at the root.
//!
//! Absent on purpose: last-modified numbers, as in the paper. Digests alone say what differs, and a tree without
//! history can be recomputed from the entries.

mod check;
mod node;
mod update;

pub use check::check;
pub use node::{Child, Entry, Node};
pub use update::{Update, update};

use alloc::format;

use bytes::Bytes;
use quorate_wire::Digest;
use quorate_wire::digest::Content;

use crate::snapshot::{Fault, Snapshot};

/// The most entries in a leaf above the lowest level. Part of the format.
pub const LEAF_MAX: usize = 16;
/// The longest path, in bytes. Part of the format.
pub const DEPTH: usize = 4;

/// Where in the tree a key belongs.
pub fn place(key: &[u8]) -> [u8; DEPTH] {
    let digest = Digest::of(Content::StateKey, key).0;
    [digest[0], digest[1], digest[2], digest[3]]
}

/// The digest of a node's bytes.
pub fn digest(node: &[u8]) -> Digest {
    Digest::of(Content::TreeNode, node)
}

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
            return Err(Fault(format!(
                "the tree's node at {path:?} does not match its parent"
            )));
        }
        match decode_own(path, bytes)? {
            Node::Leaf(entries) => {
                let found = entries.binary_search_by(|e| e.key[..].cmp(key));
                return Ok(found.ok().map(|i| entries[i].value));
            }
            // A path of 4 bytes is never an inner node, so the index is in range.
            Node::Inner(children) => match find_child(&children, place[depth]) {
                Some(child) => expected = Some(child.digest),
                None => return Ok(None),
            },
        }
    }
    Err(Fault(format!("the tree has no leaf for {place:?}")))
}

pub(crate) fn find_child(children: &[Child], byte: u8) -> Option<&Child> {
    let found = children.binary_search_by_key(&byte, |child| child.byte);
    found.ok().map(|i| &children[i])
}

/// The path of a node's child.
pub(crate) fn child_path(path: &[u8], byte: u8) -> Bytes {
    path.iter().copied().chain([byte]).collect()
}

pub(crate) fn decode_own(path: &[u8], bytes: Bytes) -> Result<Node, Fault> {
    Node::decode(path, bytes)
        .map_err(|e| Fault(format!("the tree's node at {path:?} is damaged: {e}")))
}

pub(crate) fn missing(path: &[u8]) -> Fault {
    Fault(format!("the tree's node at {path:?} is missing"))
}
