//! Every node of the partition tree has one form at its path, and whatever a donor sends, nothing panics.

#[path = "../../../wire/tests/it/support/mod.rs"]
mod support;

use bytes::Bytes;
use proptest::collection::{btree_map, btree_set};
use proptest::prelude::*;
use quorate_state::tree::{Child, DEPTH, Entry, LEAF_MAX, Node};
use quorate_wire::{DecodeError, Digest};
use support::Codec;

fn leaf() -> impl Strategy<Value = Node> {
    let entries = btree_map(support::bytes(12), support::digest(), 0..=LEAF_MAX);
    entries.prop_map(|entries| {
        let entries = entries.into_iter();
        Node::Leaf(entries.map(|(key, value)| Entry { key, value }).collect())
    })
}

fn inner() -> impl Strategy<Value = Node> {
    let children = (
        btree_set(any::<u8>(), 1..8),
        support::digest(),
        17..1_u64 << 40,
    );
    children.prop_map(|(bytes, digest, count)| {
        let child = |byte| Child {
            byte,
            digest,
            count,
        };
        Node::Inner(bytes.into_iter().map(child).collect())
    })
}

/// Nodes as they stand at the root, where every key belongs.
fn at_root() -> Codec<Node> {
    Codec {
        encode: |node| node.encode().to_vec(),
        decode: |bytes| Node::decode(&[], bytes),
    }
}

crate::canonical! {
    node: at_root(), prop_oneof![leaf(), inner()];
}

proptest! {
    #![proptest_config(crate::cases::cases(2000))]

    /// At other paths too: what is taken has those bytes.
    #[test]
    fn at_any_path(
        path in proptest::collection::vec(any::<u8>(), 0..DEPTH + 3),
        node in prop_oneof![leaf(), inner()],
        edits in support::edits(),
    ) {
        let bytes = support::edited(node.encode().to_vec(), &edits);
        for bytes in [node.encode().to_vec(), bytes] {
            if let Ok(node) = Node::decode(&path, bytes.clone().into()) {
                prop_assert_eq!(&node.encode()[..], &bytes[..]);
            }
        }
    }
}

/// Who may write chooses keys, and with keys of one place fills a leaf. So only where nobody finds two such keys may a leaf have more than its
/// share of entries, and others of its keys' path are spread over further levels.
#[test]
fn no_search_fills_a_leaf() {
    // 2^64 tries for two keys of one place.
    const { assert!(DEPTH >= 16) };
    let child = |byte| Child {
        byte,
        digest: Digest([1; 32]),
        count: 9,
    };
    let spread = Node::Inner(vec![child(1), child(2)]).encode();
    let entry = |n: usize| Entry {
        key: Bytes::from(vec![n as u8; 8]),
        value: Digest([1; 32]),
    };
    let crowded = Node::Leaf((0..=LEAF_MAX).map(entry).collect()).encode();
    for length in 0..DEPTH {
        let path = vec![7; length];
        assert!(Node::decode(&path, spread.clone()).is_ok(), "{length}");
        let crowded = Node::decode(&path, crowded.clone());
        assert_eq!(crowded, Err(DecodeError::TooLong("entries of a leaf")));
    }
    assert!(Node::decode(&[7; DEPTH], spread).is_err());
}
