//! The nodes of the partition tree, over which replicas compare their states: their shape, bytes and digests.
//!
//! A key's place is the first 16 bytes of its digest as [`Content::StateKey`]. A node covers the keys whose place
//! begins with the node's *path* (0 to 16 bytes; the root's is empty). A node that covers at most [`LEAF_MAX`] entries,
//! or whose path has 16 bytes, is a leaf and lists them; any other is an inner node and lists its children. So the
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

use alloc::vec::Vec;

use bytes::Bytes;

use crate::codec::{Decode, DecodeError, Encode, Reader};
use crate::digest::{Content, Digest};

/// The most entries in a leaf above the lowest level. Part of the format.
pub const LEAF_MAX: usize = 16;
/// The longest path, in bytes. Part of the format. Who may write chooses keys, and all keys of one place are in one leaf, which has to fit in
/// a message: with 4 bytes some hours of search would fill one beyond that, with 16 it takes 2^64 tries to find two, and nobody finds as many as fill one.
pub const DEPTH: usize = 16;

const LEAF: u8 = 1;
const INNER: u8 = 2;
/// The least bytes of an entry: key length and digest.
const ENTRY_BYTES: usize = 4 + 32;
/// The bytes of a child.
const CHILD_BYTES: usize = 1 + 32 + 8;

/// Where in the tree a key belongs.
pub fn place(key: &[u8]) -> [u8; DEPTH] {
    let digest = Digest::of(Content::StateKey, key).0;
    *digest.first_chunk().expect("a digest is longer")
}

/// The digest of a node's bytes.
pub fn digest(node: &[u8]) -> Digest {
    Digest::of(Content::TreeNode, node)
}

/// A child among its siblings, which are in order.
pub fn find_child(children: &[Child], byte: u8) -> Option<&Child> {
    let found = children.binary_search_by_key(&byte, |child| child.byte);
    found.ok().map(|i| &children[i])
}

/// An entry of a leaf, which is in order.
pub fn find_entry<'a>(entries: &'a [Entry], key: &[u8]) -> Option<&'a Entry> {
    let found = entries.binary_search_by(|entry| entry.key[..].cmp(key));
    found.ok().map(|i| &entries[i])
}

/// A key and the digest of its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Bytes,
    /// The digest of its value.
    pub value: Digest,
}

/// What an inner node says of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    /// The last byte of the child's path.
    pub byte: u8,
    /// The child's digest.
    pub digest: Digest,
    /// How many entries it covers; at least 1.
    pub count: u64,
}

/// A node of the partition tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// Lists entries in rising key order.
    Leaf(Vec<Entry>),
    /// Lists children in rising order.
    Inner(Vec<Child>),
}

impl Node {
    /// The root of an empty state.
    pub const EMPTY: Node = Node::Leaf(Vec::new());

    /// How many entries the node covers.
    pub fn count(&self) -> u64 {
        match self {
            Node::Leaf(entries) => entries.len() as u64,
            Node::Inner(children) => children.iter().map(|child| child.count).sum(),
        }
    }

    /// The canonical bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        match self {
            Node::Leaf(entries) => {
                let keys: usize = entries.iter().map(|entry| entry.key.len()).sum();
                out.reserve_exact(5 + keys + entries.len() * ENTRY_BYTES);
                out.push(LEAF);
                (entries.len() as u32).encode(&mut out);
                for entry in entries {
                    entry.key.encode(&mut out);
                    entry.value.encode(&mut out);
                }
            }
            Node::Inner(children) => {
                out.reserve_exact(5 + children.len() * CHILD_BYTES);
                out.push(INNER);
                (children.len() as u32).encode(&mut out);
                for child in children {
                    child.byte.encode(&mut out);
                    child.digest.encode(&mut out);
                    child.count.encode(&mut out);
                }
            }
        }
        Bytes::from(out)
    }

    /// Reads the node at `path`. Only what the node at that path can look like is taken: rising order, keys that
    /// belong there, counts that call for this kind of node. The bytes may come from a peer.
    ///
    /// # Errors
    /// Whatever keeps the bytes from being a canonical node at that path.
    pub fn decode(path: &[u8], bytes: Bytes) -> Result<Node, DecodeError> {
        if path.len() > DEPTH {
            return Err(DecodeError::TooLong("bytes of a tree path"));
        }
        let mut r = Reader::new(bytes);
        let node = match u8::decode(&mut r)? {
            LEAF => Node::Leaf(decode_entries(path, &mut r)?),
            INNER => Node::Inner(decode_children(path, &mut r)?),
            _ => return Err(DecodeError::Invalid("kind of tree node")),
        };
        r.finish()?;
        Ok(node)
    }
}

fn decode_entries(path: &[u8], r: &mut Reader) -> Result<Vec<Entry>, DecodeError> {
    let count = r.count(ENTRY_BYTES)?;
    if count > LEAF_MAX && path.len() < DEPTH {
        return Err(DecodeError::TooLong("entries of a leaf"));
    }
    if count == 0 && !path.is_empty() {
        return Err(DecodeError::Invalid("empty leaf"));
    }
    let mut entries: Vec<Entry> = Vec::new();
    for _ in 0..count {
        let key = Bytes::decode(r)?;
        let value = Digest::decode(r)?;
        if entries.last().is_some_and(|last| last.key >= key) {
            return Err(DecodeError::Invalid("order of a leaf's keys"));
        }
        if !place(&key).starts_with(path) {
            return Err(DecodeError::Invalid("place of a leaf's key"));
        }
        entries.push(Entry { key, value });
    }
    Ok(entries)
}

fn decode_children(path: &[u8], r: &mut Reader) -> Result<Vec<Child>, DecodeError> {
    if path.len() == DEPTH {
        return Err(DecodeError::Invalid("inner node at the lowest level"));
    }
    let count = r.count(CHILD_BYTES)?;
    let mut children: Vec<Child> = Vec::new();
    let mut total = 0_u64;
    for _ in 0..count {
        let child = Child {
            byte: u8::decode(r)?,
            digest: Digest::decode(r)?,
            count: u64::decode(r)?,
        };
        if children.last().is_some_and(|last| last.byte >= child.byte) {
            return Err(DecodeError::Invalid("order of a node's children"));
        }
        if child.count == 0 {
            return Err(DecodeError::Invalid("empty child"));
        }
        total = total
            .checked_add(child.count)
            .ok_or(DecodeError::TooLong("entries of a node"))?;
        children.push(child);
    }
    if total <= LEAF_MAX as u64 {
        return Err(DecodeError::Invalid("inner node in place of a leaf"));
    }
    Ok(children)
}
