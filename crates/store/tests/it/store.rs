//! What the store keeps, isolates, and how it says no.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use quorate_state::{Layer, MemorySnapshot, Snapshot, tree};
use quorate_store::{Blobs, Options, Store, StoreError};
use quorate_wire::Seq;

/// The segments beside a store, with no log that needs any.
fn blobs(path: &Path) -> Arc<Blobs> {
    let blobs = Blobs::open(&path.with_extension("blobs")).unwrap();
    blobs.unpin_below(u64::MAX);
    blobs
}

fn open(path: &Path) -> Store {
    Store::open(path, blobs(path), Options::default()).unwrap()
}

fn layer(entries: impl IntoIterator<Item = (Vec<u8>, Option<Vec<u8>>)>) -> Layer {
    let own = |(k, v): (Vec<u8>, Option<Vec<u8>>)| (Bytes::from(k), v.map(Bytes::from));
    entries.into_iter().map(own).collect()
}

fn key(k: u32) -> Vec<u8> {
    format!("key {k}").into_bytes()
}

fn all(snapshot: &dyn Snapshot) -> Vec<(Bytes, Bytes)> {
    let range = snapshot.range(Bound::Unbounded, Bound::Unbounded, usize::MAX);
    range.unwrap()
}

fn assert_same(snapshot: &dyn Snapshot, model: &MemorySnapshot) {
    let entries: BTreeMap<_, _> = all(snapshot).into_iter().collect();
    assert!(entries == model.entries);
    for (path, node) in &model.nodes {
        assert_eq!(snapshot.node(path).unwrap().as_ref(), Some(node));
    }
    assert_eq!(tree::root(snapshot), tree::root(model));
}

/// What a checkpoint wrote is there after the store was closed, in the same place.
#[test]
fn checkpoints_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let mut store = open(&path);
    assert!(store.is_new());
    assert_eq!(store.newest().seq, Seq(0));
    assert_eq!(store.newest().root, tree::empty_root());

    let mut model = MemorySnapshot::default();
    let steps = [
        (
            Seq(128),
            true,
            layer((0..300).map(|k| (key(k), Some(vec![1; k as usize])))),
        ),
        (Seq(256), false, layer((100..290).map(|k| (key(k), None)))),
        (
            Seq(256),
            true,
            layer((0..20).map(|k| (key(k), Some(key(k))))),
        ),
        (Seq(384), true, Layer::new()),
    ];
    for (seq, complete, delta) in steps {
        let (root, snapshot) = store.checkpoint(seq, &delta, complete).unwrap();
        let expected;
        (model, expected) = model.apply(&delta).unwrap();
        assert_eq!(root, expected);
        assert_same(&*snapshot, &model);
        drop(snapshot);
        drop(store);
        store = open(&path);
        let newest = store.newest();
        assert!(!store.is_new());
        assert_eq!(
            (newest.seq, newest.root, newest.complete),
            (seq, root, complete)
        );
        assert_same(&*newest.snapshot, &model);
    }
}

/// Each snapshot stays as it was while later checkpoints overwrite and delete what it holds.
#[test]
fn snapshots_are_isolated() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(&dir.path().join("state"));
    let mut model = MemorySnapshot::default();
    let mut kept = Vec::new();
    for round in 0..30_u32 {
        let delta = layer((0..40).map(|i| {
            let k = (round * 7 + i * 3) % 100;
            let value = (i % 3 > 0).then(|| vec![round as u8; 1 + (i * 100) as usize]);
            (key(k), value)
        }));
        let (_, snapshot) = store
            .checkpoint(Seq(u64::from(round) + 1), &delta, true)
            .unwrap();
        model = model.apply(&delta).unwrap().0;
        kept.push((snapshot, model.clone()));
        if round % 5 == 0 {
            kept.remove(0);
        }
    }
    for (snapshot, model) in &kept {
        assert_same(&**snapshot, model);
    }
}

/// Values from nothing to the longest that an operation writes.
#[test]
fn values_of_all_sizes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let mut store = open(&path);
    let sizes = [
        0,
        1,
        15,
        16,
        17,
        4079,
        4080,
        4096,
        65_536,
        1 << 20,
        (1 << 20) + (100 << 10),
    ];
    let value = |size: usize| (0..size).map(|i| (i * 7 + size) as u8).collect::<Vec<_>>();
    let delta = layer(sizes.map(|size| (key(size as u32), Some(value(size)))));
    store.checkpoint(Seq(1), &delta, true).unwrap();
    drop(store);
    let newest = open(&path).newest();
    for size in sizes {
        let got = newest.snapshot.get(&key(size as u32)).unwrap().unwrap();
        assert!(got == value(size), "{size}");
    }
    assert_eq!(newest.snapshot.get(b"absent").unwrap(), None);
}

/// A state of some size; a small checkpoint on it reads and writes little, and reopening does not read it all.
#[test]
fn two_hundred_thousand_entries() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let mut store = open(&path);
    let delta = layer((0..200_000).map(|k| (key(k), Some(vec![k as u8; 64]))));
    let (root, _) = store.checkpoint(Seq(1), &delta, true).unwrap();
    drop(store);
    let mut store = open(&path);
    assert_eq!(store.newest().root, root);
    let change = layer([(key(77), Some(vec![9]))]);
    let (changed, snapshot) = store.checkpoint(Seq(2), &change, true).unwrap();
    assert_ne!(changed, root);
    assert_eq!(snapshot.get(&key(199_999)).unwrap().unwrap(), vec![63; 64]);
    assert_eq!(all(&*snapshot).len(), 200_000);
    let back = layer([(key(77), Some(vec![77; 64]))]);
    assert_eq!(store.checkpoint(Seq(3), &back, true).unwrap().0, root);
}

/// Two replicas on one directory: the second is told who is there, and gets in when the first has gone.
#[test]
fn a_second_opener_is_told_who_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let store = open(&path);
    let error = Store::open(&path, blobs(&path), Options::default()).unwrap_err();
    assert!(
        matches!(error, StoreError::Locked { process: Some(id), .. } if id == std::process::id())
    );
    assert!(error.to_string().contains("another replica running"));
    drop(store);
    open(&path);
}

/// A file that is not a store is said to be damaged, and is left as it is.
#[test]
fn foreign_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for content in [&b""[..], b"hello", &[0; 100_000], &[7; 100_000]] {
        let path = dir.path().join("state");
        fs::write(&path, content).unwrap();
        let error = Store::open(&path, blobs(&path), Options::default()).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
        assert_eq!(fs::read(&path).unwrap(), content);
    }
    let error = Store::open(
        &dir.path().join("none/state"),
        blobs(&dir.path().join("state")),
        Options::default(),
    )
    .unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }), "{error}");
}

/// What a crash while a store is first made leaves behind does not keep it from being made.
#[test]
fn a_half_made_store_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    fs::write(dir.path().join("state.new"), vec![3; 10_000]).unwrap();
    assert!(open(&path).is_new());
    assert!(!dir.path().join("state.new").exists());
}

fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
    let key = || prop::collection::vec(0..4_u8, 0..3);
    prop_oneof![
        Just(Bound::Unbounded),
        key().prop_map(Bound::Included),
        key().prop_map(Bound::Excluded),
    ]
}

fn delta() -> impl Strategy<Value = Layer> {
    let write = (
        prop::collection::vec(0..4_u8, 0..3),
        prop::option::of(prop::collection::vec(any::<u8>(), 0..3)),
    );
    prop::collection::vec(write, 0..30).prop_map(layer)
}

proptest! {
    #![proptest_config(crate::cases::cases(24))]

    /// Roots, reads and ranges are those of the snapshot in memory, for any bounds and limit.
    #[test]
    fn reads_as_the_snapshot_in_memory(
        deltas in prop::collection::vec(delta(), 1..4),
        ranges in prop::collection::vec((bound(), bound(), 0..20_usize), 40),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut store = open(&dir.path().join("state"));
        let mut model = MemorySnapshot::default();
        for (seq, delta) in (1..).zip(&deltas) {
            let (root, snapshot) = store.checkpoint(Seq(seq), delta, true).unwrap();
            let expected;
            (model, expected) = model.apply(delta).unwrap();
            prop_assert_eq!(root, expected);
            assert_same(&*snapshot, &model);
            for (from, to, limit) in &ranges {
                let from = from.as_ref().map(|k| &k[..]);
                let to = to.as_ref().map(|k| &k[..]);
                prop_assert_eq!(snapshot.range(from, to, *limit), model.range(from, to, *limit));
                if let Bound::Included(key) = from {
                    prop_assert_eq!(snapshot.get(key), model.get(key));
                }
            }
        }
    }
}

/// A store that is closed, since a write of it has failed, say, is no damaged one: who still reads then is refused, and the state is not thrown away for it.
#[test]
fn a_closed_store_is_not_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        cache_bytes: 64 << 10,
    };
    let path = dir.path().join("state");
    let mut store = Store::open(&path, blobs(&path), options).unwrap();
    let entries = (0..20_000).map(|k| (key(k), Some(vec![7; 200])));
    let (_, snapshot) = store.checkpoint(Seq(1), &layer(entries), true).unwrap();
    let damage = store.damage();
    drop(store);
    let read = |k| snapshot.get(&Bytes::from(key(k)));
    let refused = (0..20_000).filter(|&k| read(k).is_err()).count();
    assert!(refused > 0, "all of it is in memory");
    assert!(damage.has_failed() && !damage.is_found());
}
