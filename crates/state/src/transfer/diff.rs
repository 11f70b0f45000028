//! What is still to be fetched, and what was gathered so far.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

use bytes::Bytes;
use quorate_wire::Digest;

use super::CHUNK_BYTES;
use crate::layers::Layer;
use crate::snapshot::{Fault, Snapshot};
use crate::tree::{self, Child, Entry, Node};

/// A node of the target's tree that was checked, and those above it: what the digests below it are believed for.
#[derive(Clone, Debug)]
pub(super) struct Above {
    bytes: Bytes,
    parent: Option<Arc<Above>>,
}

impl Above {
    /// Copies the node, so that it does not keep a reply alive.
    pub(super) fn new(node: &[u8], parent: Option<Arc<Above>>) -> Arc<Above> {
        let bytes = Bytes::copy_from_slice(node);
        Arc::new(Above { bytes, parent })
    }

    /// The nodes, from the root down.
    pub(super) fn nodes(above: Option<&Arc<Above>>) -> Vec<Bytes> {
        let upwards = core::iter::successors(above, |above| above.parent.as_ref());
        let mut nodes: Vec<Bytes> = upwards.map(|above| above.bytes.clone()).collect();
        nodes.reverse();
        nodes
    }
}

/// A node of the target's tree that differs from the own one.
#[derive(Clone, Debug)]
pub(super) struct NodeWant {
    pub(super) path: Bytes,
    pub(super) digest: Digest,
    /// How many entries its parent says it covers; `None` for the root.
    pub(super) count: Option<u64>,
    /// `None` for the root.
    pub(super) above: Option<Arc<Above>>,
}

/// A value of the target that differs from the own one.
#[derive(Clone, Debug)]
pub(super) struct ValueWant {
    pub(super) key: Bytes,
    pub(super) digest: Digest,
    pub(super) above: Option<Arc<Above>>,
}

/// Own entries below `path` are to be deleted, but for those in `keep`.
#[derive(Debug)]
struct Sweep {
    path: Bytes,
    keep: Arc<BTreeSet<Bytes>>,
}

/// The own entries in a part of the tree.
enum Own {
    /// These; there may be none.
    Few(Vec<Entry>),
    /// More than a leaf's, below these children.
    Many(Vec<Child>),
}

/// What may be found in the former state.
#[derive(Debug, Default)]
pub(super) struct Near {
    pub(super) nodes: Vec<NodeWant>,
    pub(super) values: Vec<ValueWant>,
}

/// Lists are used from their ends, so that the walk goes down before it goes on, and the lists stay short.
#[derive(Debug)]
pub(super) struct Diff {
    base: Arc<dyn Snapshot>,
    pub(super) nodes: Vec<NodeWant>,
    pub(super) values: Vec<ValueWant>,
    /// What is looked for at home first, if anything is.
    pub(super) near: Option<Near>,
    sweeps: Vec<Sweep>,
    gathered: Layer,
    gathered_bytes: usize,
}

impl Diff {
    pub(super) fn new(base: Arc<dyn Snapshot>, root: Digest) -> Result<Diff, Fault> {
        let mut diff = Diff {
            base,
            nodes: Vec::new(),
            values: Vec::new(),
            near: None,
            sweeps: Vec::new(),
            gathered: Layer::new(),
            gathered_bytes: 0,
        };
        if root == tree::empty_root() {
            // Nobody needs to be asked what an empty state looks like.
            diff.compare(&[], Node::EMPTY, None)?;
        } else if tree::root(&*diff.base)? != root {
            diff.nodes.push(root_want(root));
        }
        Ok(diff)
    }

    pub(super) fn is_full(&self) -> bool {
        self.gathered_bytes >= CHUNK_BYTES
    }

    pub(super) fn has_work(&self) -> bool {
        let near = self.near.as_ref();
        let near = near.is_some_and(|near| !near.nodes.is_empty() || !near.values.is_empty());
        near || !self.nodes.is_empty() || !self.values.is_empty() || !self.sweeps.is_empty()
    }

    /// From now on all is looked for at home before it is asked for.
    pub(super) fn look_at_home_first(&mut self) {
        let nodes = core::mem::take(&mut self.nodes);
        let values = core::mem::take(&mut self.values);
        self.near = Some(Near { nodes, values });
    }

    /// From now on nothing is looked for at home.
    pub(super) fn leave_home(&mut self) {
        if let Some(near) = self.near.take() {
            self.nodes.extend(near.nodes);
            self.values.extend(near.values);
        }
    }

    pub(super) fn has_gathered(&self) -> bool {
        !self.gathered.is_empty()
    }

    /// Takes up to [`CHUNK_BYTES`] of what was gathered, but at least one entry if there is any.
    pub(super) fn drain(&mut self) -> Layer {
        let mut chunk = Layer::new();
        let mut bytes = 0;
        while let Some(entry) = self.gathered.first_entry() {
            let cost = cost(entry.key(), entry.get().as_ref());
            if !chunk.is_empty() && bytes + cost > CHUNK_BYTES {
                break;
            }
            bytes += cost;
            let (key, value) = entry.remove_entry();
            chunk.insert(key, value);
        }
        self.gathered_bytes -= bytes;
        chunk
    }

    /// A value that was checked, and keeps nothing else alive.
    pub(super) fn put_own(&mut self, key: Bytes, value: Bytes) {
        self.gather(key, Some(value));
    }

    /// A value that was checked.
    pub(super) fn put(&mut self, key: Bytes, value: Bytes) {
        // A slice would keep the whole reply alive.
        let (key, value) = (Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value));
        self.gather(key, Some(value));
    }

    /// A node of the target that was checked, as itself and as what is above others: finds what differs below it.
    pub(super) fn compare(
        &mut self,
        path: &[u8],
        node: Node,
        above: Option<&Arc<Above>>,
    ) -> Result<(), Fault> {
        match (node, self.own(path)?) {
            (Node::Leaf(target), Own::Few(own)) => {
                for entry in &own {
                    if tree::find_entry(&target, &entry.key).is_none() {
                        self.gather(entry.key.clone(), None);
                    }
                }
                for entry in target {
                    if tree::find_entry(&own, &entry.key)
                        .is_none_or(|found| found.value != entry.value)
                    {
                        self.want_value(entry, above);
                    }
                }
            }
            (Node::Leaf(target), Own::Many(_)) => {
                let keep = target.iter().map(|entry| own_bytes(&entry.key)).collect();
                self.sweeps.push(Sweep {
                    path: Bytes::copy_from_slice(path),
                    keep: Arc::new(keep),
                });
                for entry in target {
                    if tree::lookup(&*self.base, &entry.key)? != Some(entry.value) {
                        self.want_value(entry, above);
                    }
                }
            }
            (Node::Inner(target), Own::Few(own)) => {
                for entry in own {
                    // An inner node's path has less than `DEPTH` bytes, so the index is in range.
                    let byte = tree::place(&entry.key)[path.len()];
                    if tree::find_child(&target, byte).is_none() {
                        self.gather(entry.key, None);
                    }
                }
                for child in target {
                    self.want_node(path, child, above);
                }
            }
            (Node::Inner(target), Own::Many(own)) => {
                for child in &own {
                    if tree::find_child(&target, child.byte).is_none() {
                        self.sweeps.push(Sweep {
                            path: tree::child_path(path, child.byte),
                            keep: Arc::default(),
                        });
                    }
                }
                for child in target {
                    if tree::find_child(&own, child.byte) != Some(&child) {
                        self.want_node(path, child, above);
                    }
                }
            }
        }
        Ok(())
    }

    /// Goes on with the deletes until enough is gathered.
    pub(super) fn sweep(&mut self) -> Result<(), Fault> {
        while !self.is_full() {
            let Some(Sweep { path, keep }) = self.sweeps.pop() else {
                break;
            };
            let node = tree::node(&*self.base, &path)?;
            match node.ok_or_else(|| tree::missing(&path))? {
                Node::Leaf(entries) => {
                    for entry in entries {
                        if !keep.contains(&entry.key) {
                            self.gather(entry.key, None);
                        }
                    }
                }
                Node::Inner(children) => self.sweeps.extend(children.iter().map(|child| Sweep {
                    path: tree::child_path(&path, child.byte),
                    keep: keep.clone(),
                })),
            }
        }
        Ok(())
    }

    /// The own entries below a path. Where the own tree is shallower, they are in a leaf above.
    fn own(&self, path: &[u8]) -> Result<Own, Fault> {
        for length in (0..=path.len()).rev() {
            match tree::node(&*self.base, &path[..length])? {
                None => {}
                Some(Node::Inner(children)) if length == path.len() => {
                    return Ok(Own::Many(children));
                }
                Some(Node::Inner(_)) => break,
                Some(Node::Leaf(mut entries)) => {
                    entries.retain(|entry| tree::place(&entry.key).starts_with(path));
                    return Ok(Own::Few(entries));
                }
            }
        }
        Ok(Own::Few(Vec::new()))
    }

    fn want_node(&mut self, parent: &[u8], child: Child, above: Option<&Arc<Above>>) {
        let wants = match &mut self.near {
            Some(near) => &mut near.nodes,
            None => &mut self.nodes,
        };
        wants.push(NodeWant {
            path: tree::child_path(parent, child.byte),
            digest: child.digest,
            count: Some(child.count),
            above: above.cloned(),
        });
    }

    fn want_value(&mut self, entry: Entry, above: Option<&Arc<Above>>) {
        let wants = match &mut self.near {
            Some(near) => &mut near.values,
            None => &mut self.values,
        };
        wants.push(ValueWant {
            key: own_bytes(&entry.key),
            digest: entry.value,
            above: above.cloned(),
        });
    }

    fn gather(&mut self, key: Bytes, value: Option<Bytes>) {
        self.gathered_bytes += cost(&key, value.as_ref());
        let before = self.gathered.insert(key, value);
        // Each key is wanted or swept once: target's keys are put, others deleted.
        assert!(before.is_none());
    }
}

/// The root of the target.
pub(super) fn root_want(root: Digest) -> NodeWant {
    NodeWant {
        path: Bytes::new(),
        digest: root,
        count: None,
        above: None,
    }
}

/// A copy, which does not keep a reply alive.
fn own_bytes(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

/// What an entry counts towards a chunk: its bytes, and what holding it takes.
fn cost(key: &Bytes, value: Option<&Bytes>) -> usize {
    64 + key.len() + value.map_or(0, Bytes::len)
}
