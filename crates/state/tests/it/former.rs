//! A replica that does not trust its store gets to the certified state with what is right in it, whatever else is there.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use quorate_state::transfer::{self, CHUNK_BYTES, Counts, FORMER_TIMEOUT_MS, Fetcher, Target};
use quorate_state::{Fault, MemorySnapshot, Snapshot, tree};
use quorate_wire::{ReplicaId, Seq};

const CHECKPOINT: Seq = Seq(256);

fn state(entries: &BTreeMap<Bytes, Bytes>) -> MemorySnapshot {
    let layer = entries.iter().map(|(k, v)| (k.clone(), Some(v.clone())));
    let empty = MemorySnapshot::default();
    empty.apply(&layer.collect()).unwrap().0
}

/// A state of which some can't be read.
#[derive(Debug)]
struct Damaged {
    state: MemorySnapshot,
    names: BTreeSet<Bytes>,
}

impl Damaged {
    fn check(&self, name: &[u8]) -> Result<(), Fault> {
        match self.names.contains(name) {
            true => Err(Fault::Store("damaged".into())),
            false => Ok(()),
        }
    }
}

impl Snapshot for Damaged {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        self.check(key).and_then(|()| self.state.get(key))
    }

    fn range(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, Fault> {
        self.state.range(from, to, limit)
    }

    fn node(&self, path: &[u8]) -> Result<Option<Bytes>, Fault> {
        self.check(path).and_then(|()| self.state.node(path))
    }
}

/// What came of a recovery.
struct Ended {
    counts: Counts,
    fetched_bytes: u64,
    took_ms: u64,
}

/// Recovers over `former`; where it `hangs`, nothing that is looked up there comes back.
fn recover(target: &MemorySnapshot, former: &dyn Snapshot, hangs: bool) -> Ended {
    let donor = ReplicaId(1);
    let root = tree::root(target).unwrap();
    let to = Target {
        checkpoint: CHECKPOINT,
        root,
    };
    let mut store = state(&BTreeMap::new());
    let mut fetcher = Fetcher::new(to, Arc::new(store.clone()), [donor]).unwrap();
    fetcher.look_at_home_first(0);
    let mut now = 0;
    for _ in 0..200_000 {
        if fetcher.is_done() {
            assert!(store == *target, "not the target's contents");
            assert_eq!(fetcher.next_timeout(), None);
            return Ended {
                counts: fetcher.former_counts(),
                fetched_bytes: fetcher.fetched_bytes(),
                took_ms: now,
            };
        }
        let asks = fetcher.poll(now).unwrap();
        let mut idle = asks.is_empty();
        for (to, ask) in asks {
            if let Some(answer) = transfer::serve(target, CHECKPOINT, &ask).unwrap() {
                fetcher.handle(now, to, answer).unwrap();
            }
        }
        while let Some(lookup) = fetcher.look_up() {
            fetcher.invariants();
            if !hangs {
                idle = false;
                let found = transfer::look(former, &lookup);
                fetcher.found(now, found).unwrap();
            }
        }
        fetcher.invariants();
        while let Some(layer) = fetcher.take_chunk().unwrap() {
            idle = false;
            let bytes = layer
                .iter()
                .map(|(k, v)| k.len() + v.as_ref().map_or(0, Bytes::len));
            assert!(bytes.sum::<usize>() <= CHUNK_BYTES);
            store = store.apply(&layer).unwrap().0;
        }
        if let (true, Some(next)) = (idle, fetcher.next_timeout()) {
            assert!(next > now, "a timer that is over and does nothing");
            now = next;
        }
    }
    panic!("it does not end: {fetcher:?}");
}

fn key(k: u32) -> Bytes {
    Bytes::from(format!("key {k}"))
}

fn entries(most: usize) -> impl Strategy<Value = BTreeMap<Bytes, Bytes>> {
    let value = (0..3_u8, 0..60_usize).prop_map(|(b, n)| Bytes::from(vec![b; n]));
    prop::collection::btree_map((0..6_000_u32).prop_map(key), value, 0..most)
}

proptest! {
    #![proptest_config(crate::cases::cases(96))]

    /// Whatever was changed, taken away, put in or damaged: the target, byte for byte. And what is asked of others is not more than
    /// what was not right here.
    #[test]
    fn the_former_state_helps_and_never_harms(
        (target, changes) in (1..4_000_usize).prop_flat_map(|most| (entries(most), entries(most / 8 + 1))),
        gone in prop::collection::btree_set((0..6_000_u32).prop_map(key), 0..40),
        damaged in prop::collection::btree_set((0..6_000_u32).prop_map(key), 0..40),
        nodes in prop::collection::btree_set(any::<u8>(), 0..3),
    ) {
        let mut former = target.clone();
        former.extend(changes);
        former.retain(|key, _| !gone.contains(key));
        let mut names = damaged;
        names.extend(nodes.into_iter().map(|byte| Bytes::from(vec![byte])));
        let whole = state(&target);
        let ended = recover(&whole, &Damaged { state: state(&former), names }, false);
        let asked = ended.counts.differing + ended.counts.damaged;
        prop_assert!(asked > 0 || ended.fetched_bytes == 0);
        prop_assert_eq!(ended.took_ms, 0, "nothing was waited for");
    }

    /// A state from which nothing comes back costs one time-out.
    #[test]
    fn a_state_that_hangs_is_left_alone(target in entries(500)) {
        let target = state(&target);
        let ended = recover(&target, &target, true);
        prop_assert_eq!(ended.counts, Counts::default());
        prop_assert!(ended.took_ms <= FORMER_TIMEOUT_MS);
    }
}

/// What was not touched is taken from here, all of it, and nobody is asked for anything.
#[test]
fn a_sound_state_is_not_fetched() {
    let entries: BTreeMap<Bytes, Bytes> = (0..300)
        .map(|k| (key(k), Bytes::from(vec![k as u8; 100_000])))
        .collect();
    let target = state(&entries);
    let ended = recover(&target, &target, false);
    assert_eq!(ended.fetched_bytes, 0);
    assert_eq!((ended.counts.differing, ended.counts.damaged), (0, 0));
    assert!(ended.counts.right_bytes > 30_000_000);
}

/// What was changed behind the replica's back is counted: what its store knows to be damaged, and what only the others know.
#[test]
fn what_is_wrong_is_counted() {
    let mut entries: BTreeMap<Bytes, Bytes> = (0..2_000).map(|k| (key(k), key(k))).collect();
    let target = state(&entries);
    for k in [7, 70, 700] {
        entries.insert(key(k), Bytes::from_static(b"another"));
    }
    let former = Damaged {
        state: state(&entries),
        names: [key(3), key(33)].into(),
    };
    let counts = recover(&target, &former, false).counts;
    assert_eq!(counts.damaged, 2);
    // The three, and the nodes above them.
    assert!((4..30).contains(&counts.differing), "{counts:?}");
    assert!(counts.right > 1_900);
}
