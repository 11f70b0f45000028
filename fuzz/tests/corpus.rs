//! What the corpus has to begin with: mutations come to a new kind of message by chance alone.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use bytes::Bytes;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use quorate_credential::Chain;
use quorate_fuzz::credential::judged;
use quorate_fuzz::disk::{certified, unpacked};
use quorate_fuzz::links::nfs_handle_sample;
use quorate_net::fuzzing as net;
use quorate_node::fuzzing as node;
use quorate_router::fuzzing::{self as router, passed_on, results};
use quorate_state::tree::{DEPTH, Node};
use quorate_store::LARGE_BYTES;
use quorate_wire::message::Request;
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

/// What is whole of each kind: sums, titles and tags are found by no mutation.
#[test]
fn small_things_are_in_it() {
    let mut missing = BTreeSet::from([
        "certificates that were seen",
        "a counter",
        "a note of the log",
        "a record",
        "a record with large operations",
        "a handle",
        "space",
        "an export",
        "a label",
    ]);
    let whole = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for input in corpus("disk_small") {
        let Some((&kind, rest)) = input.split_first() else {
            continue;
        };
        let is_whole = match kind % 4 {
            0 => net::epochs(certified(), &whole(rest)).map(|_| "certificates that were seen"),
            1 => net::counter(&whole(rest)).map(|_| "a counter"),
            2 => node::reached(rest).map(|_| "a note of the log"),
            _ => unpacked(rest).map(|record| {
                let is_large = |request: &Request| request.op().len() >= LARGE_BYTES;
                match record.requests().iter().any(is_large) {
                    true => "a record with large operations",
                    false => "a record",
                }
            }),
        };
        is_whole.map(|name| missing.remove(name));
    }
    for input in corpus("router_setup") {
        let Some((&kind, rest)) = input.split_first() else {
            continue;
        };
        let bytes = Bytes::copy_from_slice(rest);
        let is_whole = match kind % 3 {
            0 => matches!(router::space(bytes), Ok(Ok(_))).then_some("space"),
            1 => router::mounted(bytes).ok().map(|_| "an export"),
            _ => router::label(rest).map(|_| "a label"),
        };
        is_whole.map(|name| missing.remove(name));
    }
    if corpus("nfs_handle").contains(&nfs_handle_sample()) {
        missing.remove("a handle");
    }
    assert!(missing.is_empty(), "there is none of {missing:?}");
}

/// ACLs are attributes by their names, which lead to a decoder of their own.
#[test]
fn acls_are_in_it() {
    let names: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
    for target in ["op", "service"] {
        for name in names {
            let has = |input: &Vec<u8>| input.windows(name.len()).any(|part| part == name);
            let shown = String::from_utf8_lossy(name);
            assert!(corpus(target).iter().any(has), "{target} has no {shown}");
        }
    }
}
