//! What the corpus has to begin with: mutations come to a new kind of message by chance alone.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use bytes::Bytes;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use quorate_credential::Chain;
use quorate_fuzz::credential::judged;
use quorate_router::fuzzing::{passed_on, results};
use quorate_state::tree::{DEPTH, Node};
use quorate_wire::{Decode, Encode};

#[path = "../../crates/wire/tests/it/support/mod.rs"]
mod support;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = fs::read_dir(home.join("corpus").join(target)).expect("a corpus");
    let read = |file: std::io::Result<fs::DirEntry>| fs::read(file?.path());
    files.map(|file| read(file).expect("its file")).collect()
}

/// Each kind that the property tests make is in the corpus as well, whole.
fn has_each_kind<T: Encode + Decode>(target: &str, strategy: impl Strategy<Value = T>) {
    let mut runner = TestRunner::deterministic();
    let kind = |bytes: &[u8]| bytes[0];
    let mut kinds = BTreeSet::new();
    for _ in 0..1000 {
        let message = strategy.new_tree(&mut runner).expect("a message").current();
        kinds.insert(kind(&message.to_bytes()));
    }
    for input in corpus(target) {
        if T::from_bytes(Bytes::copy_from_slice(&input)).is_ok() {
            kinds.remove(&kind(&input));
        }
    }
    assert!(kinds.is_empty(), "{target} has none of {kinds:?}");
}

#[test]
fn each_kind_of_message_is_in_it() {
    has_each_kind("peer_message", support::peer_message());
    has_each_kind("client_message", support::client_message());
    has_each_kind("replica_message", support::replica_message());
}

#[test]
fn nodes_at_each_depth_are_in_it() {
    let mut depths: BTreeSet<usize> = (0..=DEPTH).collect();
    for input in corpus("tree_node") {
        let Some((&length, rest)) = input.split_first() else {
            continue;
        };
        let length = usize::from(length) % (DEPTH + 2);
        if let Some((path, node)) = rest.split_at_checked(length)
            && Node::decode(path, Bytes::copy_from_slice(node)).is_ok()
        {
            depths.remove(&length);
        }
    }
    assert!(depths.is_empty(), "there are none at {depths:?}");
}

/// Chains that hold, of one link and of many, with all kinds of caveats: what is about links after the first is reached by no mutation of one that ends there.
#[test]
fn chains_that_hold_are_in_it() {
    let lengths = [1, 2, 3, 5, 16];
    let each = |links| [1_u8, 2, 4, 5].map(|kind| (links, kind));
    let mut missing: BTreeSet<(usize, u8)> = lengths.into_iter().flat_map(each).collect();
    for input in corpus("credential") {
        let Ok(chain) = Chain::from_bytes(Bytes::copy_from_slice(&input)) else {
            continue;
        };
        if judged(&input) {
            let caveats = chain.links().iter().flat_map(|link| &link.terms.caveats);
            for caveat in caveats {
                missing.remove(&(chain.links().len(), caveat.kind()));
            }
        }
    }
    assert!(
        missing.is_empty(),
        "no chain that holds of so many links with this kind of caveat: {missing:?}"
    );
}

/// Of a router: calls that go straight through, and results that are changed.
#[test]
fn each_procedure_is_in_it() {
    let mut calls = BTreeSet::from([1, 3, 4, 5, 6, 7, 16, 17, 19, 20, 21]);
    for input in corpus("router_call") {
        if passed_on(&input, 1 << 16, b"called").is_some() {
            calls.remove(&input[23]);
        }
    }
    assert!(
        calls.is_empty(),
        "no calls of {calls:?} go straight through"
    );
    let mut replies: BTreeSet<u8> = (1..=21).collect();
    for input in corpus("router_reply") {
        if let Some((first, reply)) = input.split_first()
            && results(reply).is_ok_and(|results| results.starts_with(&[0; 4]))
        {
            replies.remove(&(first & 31));
        }
    }
    assert!(replies.is_empty(), "there are no replies of {replies:?}");
}
