//! The partition tree is a function of the contents alone.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use quorate_state::tree::{self, Node};
use quorate_state::{Layer, MemorySnapshot, Snapshot};
use quorate_wire::Digest;
use quorate_wire::digest::Content;

/// Keys from a small set, so that histories meet; values from a smaller one, so that some writes change nothing.
fn layer(keys: u32, writes: usize) -> impl Strategy<Value = Layer> {
    let write = (0..keys, prop::option::weighted(0.6, 0..3_u8));
    prop::collection::vec(write, 0..writes).prop_map(|writes| {
        let entry =
            |(k, v): (u32, Option<u8>)| (key(k), v.map(|v| Bytes::from(vec![v; v as usize])));
        writes.into_iter().map(entry).collect()
    })
}

fn key(k: u32) -> Bytes {
    Bytes::from(format!("key {k}"))
}

/// The tree straight from its definition, by recursion over all entries.
fn by_definition(entries: &BTreeMap<Bytes, Bytes>) -> BTreeMap<Bytes, Bytes> {
    let all: Vec<_> = entries
        .iter()
        .map(|(k, v)| tree::Entry {
            key: k.clone(),
            value: Digest::of(Content::StateValue, v),
        })
        .collect();
    let mut nodes = BTreeMap::new();
    define(&[], all, &mut nodes);
    nodes
}

fn define(path: &[u8], covered: Vec<tree::Entry>, nodes: &mut BTreeMap<Bytes, Bytes>) -> Digest {
    let node = if covered.len() <= tree::LEAF_MAX || path.len() == tree::DEPTH {
        Node::Leaf(covered)
    } else {
        let mut children = Vec::new();
        let mut below = BTreeMap::<u8, Vec<tree::Entry>>::new();
        for entry in covered {
            let byte = tree::place(&entry.key)[path.len()];
            below.entry(byte).or_default().push(entry);
        }
        for (byte, below) in below {
            let count = below.len() as u64;
            let digest = define(&[path, &[byte]].concat(), below, nodes);
            children.push(tree::Child {
                byte,
                digest,
                count,
            });
        }
        Node::Inner(children)
    };
    let bytes = node.encode();
    assert_eq!(Node::decode(path, bytes.clone()).as_ref(), Ok(&node));
    let digest = tree::digest(&bytes);
    nodes.insert(Bytes::copy_from_slice(path), bytes);
    digest
}

fn apply(snapshot: &MemorySnapshot, delta: &Layer) -> MemorySnapshot {
    let (after, root) = snapshot.apply(delta).unwrap();
    assert_eq!(tree::root(&after).unwrap(), root);
    after
}

fn as_layer(entries: &BTreeMap<Bytes, Bytes>) -> Layer {
    entries
        .iter()
        .map(|(k, v)| (k.clone(), Some(v.clone())))
        .collect()
}

proptest! {
    #![proptest_config(crate::cases::cases(96))]

    /// After any history, the nodes are those of the definition, and one big write gives the same.
    #[test]
    fn incremental_is_from_scratch(layers in prop::collection::vec(layer(60, 60), 1..8)) {
        let mut snapshot = MemorySnapshot::default();
        for delta in &layers {
            snapshot = apply(&snapshot, delta);
            prop_assert_eq!(&snapshot.nodes, &by_definition(&snapshot.entries));
        }
        let again = apply(&MemorySnapshot::default(), &as_layer(&snapshot.entries));
        prop_assert_eq!(again, snapshot);
    }

}

proptest! {
    #![proptest_config(crate::cases::cases(16))]

    /// The same with enough entries for a second level of inner nodes, and with deletes that take it away again.
    #[test]
    fn deep_trees_grow_and_collapse(layers in prop::collection::vec(layer(9_000, 3_000), 1..3), rest in 0..40_u32) {
        let mut snapshot = apply(&MemorySnapshot::default(), &(0..9_000).map(|k| (key(k), Some(key(k)))).collect());
        for delta in &layers {
            snapshot = apply(&snapshot, delta);
            prop_assert_eq!(&snapshot.nodes, &by_definition(&snapshot.entries));
        }
        let shrunk = apply(&snapshot, &(rest..9_000).map(|k| (key(k), None)).collect());
        prop_assert_eq!(&shrunk.nodes, &by_definition(&shrunk.entries));
    }

}

proptest! {
    #![proptest_config(crate::cases::cases(96))]

    /// Writing what is there already, or deleting what is not, changes no node.
    #[test]
    fn writes_without_effect_change_nothing(delta in layer(200, 200)) {
        let snapshot = apply(&MemorySnapshot::default(), &delta);
        let mut same = as_layer(&snapshot.entries);
        same.extend((1000..1100).map(|k| (key(k), None)));
        let update = tree::update(&snapshot, &same, |_| None).unwrap();
        prop_assert_eq!(update.nodes.len(), 0);
        prop_assert_eq!(update.root, tree::root(&snapshot).unwrap());
    }

    /// Whatever bytes a peer sends, a node that decodes encodes to the same bytes.
    #[test]
    fn decoding_takes_canonical_bytes_only(delta in layer(60, 60), at in any::<prop::sample::Index>(), to in any::<u8>(), cut in any::<bool>()) {
        let snapshot = apply(&MemorySnapshot::default(), &delta);
        for (path, bytes) in &snapshot.nodes {
            let mut damaged = bytes.to_vec();
            let at = at.index(damaged.len());
            if cut { damaged.truncate(at) } else { damaged[at] = to }
            if let Ok(node) = Node::decode(path, Bytes::from(damaged.clone())) {
                prop_assert_eq!(&node.encode()[..], &damaged[..]);
            }
        }
    }

    /// The tree says of each key what the entries say.
    #[test]
    fn lookup_agrees_with_the_entries(delta in layer(300, 300)) {
        let snapshot = apply(&MemorySnapshot::default(), &delta);
        for k in 0..300 {
            let value = snapshot.get(&key(k)).unwrap().map(|v| Digest::of(Content::StateValue, &v));
            prop_assert_eq!(tree::lookup(&snapshot, &key(k)).unwrap(), value);
        }
    }
}

/// An empty state has a root of its own, with or without a node for it.
#[test]
fn the_empty_state_is_an_empty_leaf() {
    let nothing = MemorySnapshot::default();
    let (empty, root) = nothing.apply(&Layer::new()).unwrap();
    assert_eq!(root, tree::empty_root());
    assert_eq!(root, tree::root(&nothing).unwrap());
    assert_eq!(empty.nodes.len(), 1);
    let one = apply(&empty, &[(key(1), Some(key(1)))].into_iter().collect());
    assert_eq!(apply(&one, &[(key(1), None)].into_iter().collect()), empty);
}

/// Nodes out of order, in the wrong place, of the wrong kind for their count, or too deep are refused.
#[test]
fn non_canonical_nodes_are_refused() {
    let entry = |k| tree::Entry {
        key: key(k),
        value: Digest::ZERO,
    };
    let child = |byte, count| tree::Child {
        byte,
        digest: Digest::ZERO,
        count,
    };
    let refused: [(&[u8], Node); 9] = [
        (&[], Node::Leaf(vec![entry(2), entry(1)])),
        (&[], Node::Leaf(vec![entry(1), entry(1)])),
        (&[], Node::Leaf((100..117).map(entry).collect())),
        (&[tree::place(&key(1))[0] ^ 1], Node::Leaf(vec![entry(1)])),
        (&[7], Node::EMPTY),
        (&[], Node::Inner(vec![child(1, 8), child(2, 8)])),
        (&[], Node::Inner(vec![child(2, 20), child(1, 20)])),
        (&[], Node::Inner(vec![child(1, 20), child(2, 0)])),
        (&[1; tree::DEPTH], Node::Inner(vec![child(1, 20)])),
    ];
    for (path, node) in refused {
        assert!(Node::decode(path, node.encode()).is_err(), "{node:?}");
    }
    let overflow = Node::Inner(vec![child(1, u64::MAX), child(2, 2)]);
    assert!(Node::decode(&[], overflow.encode()).is_err());
    assert!(Node::decode(&[0; tree::DEPTH + 1], Node::EMPTY.encode()).is_err());
}

/// At the lowest level a leaf takes any count; the format's last resort.
#[test]
fn nodes_stay_leaves_at_the_lowest_level() {
    // Too many colliding keys to find here: the rule is checked on the decoder.
    let path = tree::place(&key(1));
    let node = Node::Leaf(vec![tree::Entry {
        key: key(1),
        value: Digest::ZERO,
    }]);
    assert_eq!(Node::decode(&path, node.encode()), Ok(node));
}

/// Recomputing finds every kind of disagreement between entries and tree.
#[test]
fn check_finds_what_does_not_agree() {
    assert_eq!(
        tree::check(&MemorySnapshot::default()),
        Ok(tree::empty_root())
    );
    let right = apply(
        &MemorySnapshot::default(),
        &(0..2_000).map(|k| (key(k), Some(key(k)))).collect(),
    );
    assert_eq!(tree::check(&right), tree::root(&right));

    let mut changed = right.clone();
    changed.entries.insert(key(7), key(8));
    let mut extra = right.clone();
    extra.entries.insert(key(5_000), key(1));
    let mut gone = right.clone();
    gone.entries.remove(&key(7));
    let mut no_tree = right.clone();
    no_tree.nodes.clear();
    for damaged in [changed, extra, gone, no_tree] {
        assert!(tree::check(&damaged).is_err());
    }
    for path in right.nodes.keys().filter(|path| path.len() == 1).take(20) {
        let mut damaged = right.clone();
        damaged.nodes.remove(path);
        assert!(tree::check(&damaged).is_err(), "{path:?}");
    }
}
