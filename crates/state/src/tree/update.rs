//! What a layer of writes changes in the tree.
//!
//! The layer's keys are sorted by place, so that each node on the way is read, encoded and hashed once, however many
//! keys below it change.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::ControlFlow;

use bytes::Bytes;
use quorate_wire::Digest;
use quorate_wire::digest::Content;

use super::{Child, DEPTH, Entry, LEAF_MAX, Node, child_path, decode_own, digest, missing, place};
use crate::layers::Layer;
use crate::snapshot::{Fault, Snapshot};

/// The nodes that a layer changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// The root digest after the layer.
    pub root: Digest,
    /// New bytes by path; `None` removes a node. Nodes that stay as they are, are not listed.
    pub nodes: BTreeMap<Bytes, Option<Bytes>>,
    /// The digest of each value of the layer, in the layer's order; `None` where it removes a key. Hashing a large value once is
    /// enough.
    pub values: Vec<Option<Digest>>,
}

/// The changes that `delta` makes to the tree of `base`. `known` says the digest of a value for which it was taken already: the
/// caller's own, of the same bytes in memory.
///
/// # Errors
/// [`Fault`] where the store fails or its tree is damaged.
pub fn update(
    base: &dyn Snapshot,
    delta: &Layer,
    known: impl Fn(&Bytes) -> Option<Digest>,
) -> Result<Update, Fault> {
    let digest = |value: &Bytes| {
        let known = known(value);
        known.unwrap_or_else(|| Digest::of(Content::StateValue, value))
    };
    let values: Vec<_> = delta.values().map(|v| v.as_ref().map(digest)).collect();
    let keys = delta.keys().zip(&values);
    let mut changes: Vec<Change> = keys
        .map(|(key, value)| Change {
            place: place(key),
            key,
            value: *value,
        })
        .collect();
    // The sort is stable: within a place, keys stay in rising order.
    changes.sort_by_key(|change| change.place);

    let mut updater = Updater {
        base,
        nodes: BTreeMap::new(),
    };
    let root = updater.apply(&[], base.node(&[])?, &changes)?;
    let root = updater.write(&[], &root);
    Ok(Update {
        root,
        nodes: updater.nodes,
        values,
    })
}

struct Change<'a> {
    place: [u8; DEPTH],
    key: &'a Bytes,
    value: Option<Digest>,
}

/// A node after the changes, which its parent may still take into itself, and its bytes before.
struct Built {
    node: Node,
    old: Option<Bytes>,
}

/// A child of an inner node while the changes are made.
enum Slot {
    Untouched(Child),
    Built(Built),
}

struct Updater<'a> {
    base: &'a dyn Snapshot,
    nodes: BTreeMap<Bytes, Option<Bytes>>,
}

impl Updater<'_> {
    /// The node at `path` after `changes`, which are not empty unless this is the root. Recurses at most [`DEPTH`] deep.
    fn apply(
        &mut self,
        path: &[u8],
        old: Option<Bytes>,
        changes: &[Change<'_>],
    ) -> Result<Built, Fault> {
        let before = match &old {
            Some(bytes) => decode_own(path, bytes.clone())?,
            None => Node::EMPTY,
        };
        let node = match before {
            Node::Leaf(entries) => self.change_leaf(path, entries, changes),
            Node::Inner(children) => self.change_inner(path, children, changes)?,
        };
        Ok(Built { node, old })
    }

    fn change_leaf(&mut self, path: &[u8], entries: Vec<Entry>, changes: &[Change<'_>]) -> Node {
        let entries = entries.into_iter().map(|entry| (entry.key, entry.value));
        let mut merged: BTreeMap<Bytes, Digest> = entries.collect();
        for change in changes {
            match change.value {
                Some(value) => merged.insert(change.key.clone(), value),
                None => merged.remove(change.key),
            };
        }
        if merged.len() <= LEAF_MAX {
            let entries = merged.into_iter().map(|(key, value)| Entry { key, value });
            return Node::Leaf(entries.collect());
        }
        // Where a key belongs costs a digest, and only a leaf that grows out of its size asks for it.
        let placed = merged
            .into_iter()
            .map(|(key, value)| (place(&key), key, value));
        let mut placed: Vec<_> = placed.collect();
        placed.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
        self.grow(path, &placed)
    }

    /// The node at `path` for exactly these entries, sorted by place; what is below it is written. The base has
    /// nothing below `path`.
    fn grow(&mut self, path: &[u8], placed: &[([u8; DEPTH], Bytes, Digest)]) -> Node {
        if placed.len() <= LEAF_MAX || path.len() == DEPTH {
            let entries = placed.iter().map(|(_, key, value)| Entry {
                key: key.clone(),
                value: *value,
            });
            return leaf(entries.collect());
        }
        let depth = path.len();
        let groups = placed.chunk_by(|a, b| a.0[depth] == b.0[depth]);
        let children = groups.map(|group| {
            let byte = group[0].0[depth];
            let path = child_path(path, byte);
            let node = self.grow(&path, group);
            let count = node.count();
            let digest = self.write(&path, &Built { node, old: None });
            Child {
                byte,
                digest,
                count,
            }
        });
        Node::Inner(children.collect())
    }

    fn change_inner(
        &mut self,
        path: &[u8],
        children: Vec<Child>,
        changes: &[Change<'_>],
    ) -> Result<Node, Fault> {
        let depth = path.len();
        let mut slots: BTreeMap<u8, Slot> = children
            .into_iter()
            .map(|child| (child.byte, Slot::Untouched(child)))
            .collect();
        for group in changes.chunk_by(|a, b| a.place[depth] == b.place[depth]) {
            let byte = group[0].place[depth];
            let path = child_path(path, byte);
            let old = match slots.contains_key(&byte) {
                true => Some(self.base.node(&path)?.ok_or_else(|| missing(&path))?),
                false => None,
            };
            let built = self.apply(&path, old, group)?;
            slots.insert(byte, Slot::Built(built));
        }

        // Stop counting at the first that decides: counts of a damaged store could overflow.
        let total = slots.values().try_fold(0, |total: u64, slot| {
            let total = total.saturating_add(match slot {
                Slot::Untouched(child) => child.count,
                Slot::Built(built) => built.node.count(),
            });
            match total > LEAF_MAX as u64 {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(total),
            }
        });
        if total.is_continue() {
            return self.collapse(path, slots);
        }
        let mut children = Vec::with_capacity(slots.len());
        for (byte, slot) in slots {
            match slot {
                Slot::Untouched(child) => children.push(child),
                Slot::Built(built) if built.node == Node::EMPTY => {
                    self.remove(child_path(path, byte), built.old.is_some());
                }
                Slot::Built(built) => children.push(Child {
                    byte,
                    digest: self.write(&child_path(path, byte), &built),
                    count: built.node.count(),
                }),
            }
        }
        Ok(Node::Inner(children))
    }

    /// Takes the children's entries into a leaf at `path`. There are so few that all children are leaves.
    fn collapse(&mut self, path: &[u8], slots: BTreeMap<u8, Slot>) -> Result<Node, Fault> {
        let mut all = Vec::new();
        for (byte, slot) in slots {
            let path = child_path(path, byte);
            let (node, stored) = match slot {
                Slot::Built(built) => (built.node, built.old.is_some()),
                Slot::Untouched(_) => {
                    let bytes = self.base.node(&path)?.ok_or_else(|| missing(&path))?;
                    (decode_own(&path, bytes)?, true)
                }
            };
            match node {
                Node::Leaf(entries) => all.extend(entries),
                Node::Inner(_) => {
                    return Err(Fault::Tree(alloc::format!(
                        "the tree's node at {path:?} covers more entries than its parent says"
                    )));
                }
            }
            self.remove(path, stored);
        }
        Ok(leaf(all))
    }

    fn write(&mut self, path: &[u8], built: &Built) -> Digest {
        let bytes = built.node.encode();
        let digest = digest(&bytes);
        if built.old.as_ref() != Some(&bytes) {
            self.nodes.insert(Bytes::copy_from_slice(path), Some(bytes));
        }
        digest
    }

    fn remove(&mut self, path: Bytes, stored: bool) {
        if stored {
            self.nodes.insert(path, None);
        }
    }
}

fn leaf(mut entries: Vec<Entry>) -> Node {
    entries.sort_by(|a, b| a.key.cmp(&b.key));
    Node::Leaf(entries)
}
