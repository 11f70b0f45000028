//! States and transactions against a plain ordered map.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use proptest::prelude::*;
use quorate_state::{Fault, Layer, MemorySnapshot, Place, Snapshot, State};
use quorate_wire::Seq;

#[derive(Clone, Debug)]
enum Step {
    Put(u8, u8),
    Delete(u8),
    Commit,
    Rollback,
    Freeze,
    Stored,
    View,
    Close,
    Get(u8),
    Range(Bound<u8>, Bound<u8>, usize),
}

fn bound() -> impl Strategy<Value = Bound<u8>> {
    prop_oneof![
        Just(Bound::Unbounded),
        (0..24_u8).prop_map(Bound::Included),
        (0..24_u8).prop_map(Bound::Excluded),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..24_u8, any::<u8>()).prop_map(|(k, v)| Step::Put(k, v)),
        3 => (0..24_u8).prop_map(Step::Delete),
        2 => Just(Step::Commit),
        1 => Just(Step::Rollback),
        1 => Just(Step::Freeze),
        1 => Just(Step::Stored),
        2 => Just(Step::View),
        1 => Just(Step::Close),
        2 => (0..24_u8).prop_map(Step::Get),
        4 => (bound(), bound(), 0..30_usize).prop_map(|(from, to, limit)| Step::Range(from, to, limit)),
    ]
}

fn bytes(b: u8) -> Bytes {
    Bytes::from(vec![b])
}

fn in_range(key: u8, from: Bound<u8>, to: Bound<u8>) -> bool {
    (match from {
        Bound::Unbounded => true,
        Bound::Included(a) => key >= a,
        Bound::Excluded(a) => key > a,
    }) && (match to {
        Bound::Unbounded => true,
        Bound::Included(b) => key <= b,
        Bound::Excluded(b) => key < b,
    })
}

/// Operations write to the layer of their checkpoint, whichever it is, and a checkpoint has what was written to its own.
#[test]
fn each_checkpoint_has_its_own_writes() {
    let mut state = State::new(Arc::new(MemorySnapshot::default()));
    state.close();
    state.begin_tentative();
    for (key, place) in [
        (1, Place::Open(1)),
        (2, Place::Open(0)),
        (3, Place::Tentative),
    ] {
        let writes = [(bytes(key), Some(bytes(key)))].into();
        state.begin_at(place, writes).commit();
    }
    let mut in_place = |place| {
        let txn = state.begin_at(place, [(bytes(0), Some(bytes(0)))].into());
        let (all, most) = ((Bound::Unbounded, Bound::Unbounded), 10);
        let rows = txn.range_in_place(all.0, all.1, most).unwrap();
        rows.into_iter().map(|(key, _)| key[0]).collect::<Vec<_>>()
    };
    assert_eq!(in_place(Place::Open(0)), [0, 2]);
    assert_eq!(in_place(Place::Open(1)), [0, 1, 2]);
    assert_eq!(in_place(Place::Tentative), [0, 1, 2, 3]);
    let view = state.view();
    let keys = |layer: &Layer| layer.keys().map(|k| k[0]).collect::<Vec<_>>();
    assert_eq!(keys(&state.freeze(Seq(1))), [2]);
    state.drop_tentative();
    assert_eq!(keys(&state.freeze(Seq(2))), [1]);
    assert_eq!(view.get(&[3]).unwrap(), Some(bytes(3)));
    assert_eq!(state.get(&[3]).unwrap(), None);
}

/// A history goes on where operations come on top, and ends where they are undone.
#[test]
fn what_is_undone_ends_a_history() {
    let mut state = State::new(Arc::new(MemorySnapshot::default()));
    let first = state.lineage().clone();
    state.begin_tentative();
    let view = state.view();
    state.keep_tentative();
    state.freeze(Seq(1));
    assert!(*state.lineage() == first && *state.begin().lineage() == first);
    state.begin_tentative();
    state.drop_tentative();
    assert!(*state.lineage() != first && *state.view().lineage() != first);
    assert!(*view.begin().lineage() == first);
    assert!(*State::new(Arc::new(MemorySnapshot::default())).lineage() != first);
}

proptest! {
    #![proptest_config(crate::cases::cases(1024))]

    /// Reads through all layers give what one map would give.
    #[test]
    fn layers_read_as_one_map(steps in prop::collection::vec(step(), 1..80)) {
        let mut store = MemorySnapshot::default();
        let mut state = State::new(Arc::new(store.clone()));
        let mut waiting = Vec::new();
        let mut committed = BTreeMap::<u8, u8>::new();
        let mut steps = steps.into_iter().peekable();
        let mut seq = Seq(0);
        // Views, with what they show for ever.
        let mut views = Vec::new();
        while steps.peek().is_some() {
            let mut model = committed.clone();
            let mut txn = state.begin();
            let end = loop {
                match steps.next() {
                    Some(Step::Put(k, v)) => {
                        txn.put(bytes(k), bytes(v));
                        model.insert(k, v);
                    }
                    Some(Step::Delete(k)) => {
                        txn.delete(bytes(k));
                        model.remove(&k);
                    }
                    Some(Step::Get(k)) => {
                        prop_assert_eq!(txn.get(&[k]).unwrap(), model.get(&k).map(|v| bytes(*v)));
                    }
                    Some(Step::Range(from, to, limit)) => {
                        let (from_key, to_key) = (from.map(bytes), to.map(bytes));
                        let got = txn.range(
                            from_key.as_ref().map(|k| &k[..]),
                            to_key.as_ref().map(|k| &k[..]),
                            limit,
                        );
                        let want: Vec<_> = model
                            .iter()
                            .filter(|(k, _)| in_range(**k, from, to))
                            .take(limit)
                            .map(|(k, v)| (bytes(*k), bytes(*v)))
                            .collect();
                        prop_assert_eq!(got.unwrap(), want);
                    }
                    Some(Step::Rollback) => {
                        txn.rollback();
                        model = committed.clone();
                    }
                    Some(Step::Commit) => {
                        txn.commit();
                        committed = model;
                        break None;
                    }
                    end => {
                        drop(txn);
                        break end;
                    }
                }
            };
            match end {
                Some(Step::Freeze) => {
                    seq = seq.next();
                    waiting.push((seq, state.freeze(seq)));
                }
                Some(Step::Stored) if !waiting.is_empty() => {
                    let (seq, layer) = waiting.remove(0);
                    store = store.apply(&layer).unwrap().0;
                    state.stored(seq, Arc::new(store.clone()));
                    prop_assert_eq!(state.layers_in_flight(), waiting.len());
                }
                Some(Step::View) => views.push((state.view(), committed.clone())),
                Some(Step::Close) => state.close(),
                _ => {}
            }
        }
        for (view, model) in &views {
            let seen = view.begin().range(Bound::Unbounded, Bound::Unbounded, 100).unwrap();
            let model: Vec<_> = model.iter().map(|(k, v)| (bytes(*k), bytes(*v))).collect();
            prop_assert_eq!(&seen, &model);
            for k in 0..24 {
                let of_model = model.iter().find(|(key, _)| key[..] == [k]);
                prop_assert_eq!(view.get(&[k]).unwrap(), of_model.map(|(_, v)| v.clone()));
            }
        }
        for k in 0..24 {
            prop_assert_eq!(state.get(&[k]).unwrap(), committed.get(&k).map(|v| bytes(*v)));
        }
    }

    /// A snapshot takes any pair of bounds, also those between which nothing can lie.
    #[test]
    fn a_snapshot_ranges_as_a_map(keys in prop::collection::btree_set(0..24_u8, 0..24), from in bound(), to in bound(), limit in 0..30_usize) {
        let snapshot = MemorySnapshot {
            entries: keys.iter().map(|k| (bytes(*k), bytes(*k))).collect(),
            nodes: BTreeMap::new(),
        };
        let (from_key, to_key) = (from.map(bytes), to.map(bytes));
        let got = snapshot
            .range(from_key.as_ref().map(|k| &k[..]), to_key.as_ref().map(|k| &k[..]), limit)
            .unwrap();
        let want: Vec<_> = keys
            .into_iter()
            .filter(|k| in_range(*k, from, to))
            .take(limit)
            .map(|k| (bytes(k), bytes(k)))
            .collect();
        prop_assert_eq!(got, want);
    }
}

/// A snapshot that counts how often it is asked for keys.
#[derive(Debug, Default)]
struct Asked {
    inner: MemorySnapshot,
    times: AtomicUsize,
}

impl Snapshot for Asked {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        self.inner.get(key)
    }

    fn range(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, Fault> {
        self.times.fetch_add(1, Ordering::Relaxed);
        self.inner.range(from, to, limit)
    }

    fn node(&self, path: &[u8]) -> Result<Option<Bytes>, Fault> {
        self.inner.node(path)
    }
}

/// Who looks for the first key behind many that are deleted asks the snapshot a few times for many, and not for each.
#[test]
fn keys_that_are_deleted_are_passed_over_together() {
    const KEYS: u32 = 10_000;
    let key = |n: u32| Bytes::copy_from_slice(&n.to_be_bytes());
    let mut base = Asked::default();
    base.inner.entries = (0..KEYS).map(|n| (key(n), Bytes::new())).collect();
    let base = Arc::new(base);
    let mut state = State::new(base.clone());
    let mut txn = state.begin();
    for n in 0..KEYS - 1 {
        txn.delete(key(n));
    }
    txn.commit();
    let found = state.begin().keys(Bound::Unbounded, Bound::Unbounded, 1);
    assert_eq!(found, Ok(vec![key(KEYS - 1)]));
    let times = base.times.load(Ordering::Relaxed);
    assert!(times < 30, "{times} times");
}
