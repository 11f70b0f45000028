//! A store that is brought to another replica's state, with restarts on the way.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use quorate_state::transfer::{self, Fetcher, Target};
use quorate_state::{Layer, tree};
use quorate_store::{Blobs, Options, Store};
use quorate_wire::{ReplicaId, Seq};

/// The segments beside a store, with no log that needs any.
fn blobs(path: &Path) -> Arc<Blobs> {
    let blobs = Blobs::open(&path.with_extension("blobs")).unwrap();
    blobs.unpin_below(u64::MAX);
    blobs
}

fn entries(keys: std::ops::Range<u32>, salt: u32, bytes: usize) -> Layer {
    keys.map(|k| {
        let value = vec![(k ^ salt) as u8; bytes];
        (Bytes::from(format!("key {k}")), Some(Bytes::from(value)))
    })
    .collect()
}

/// Layers are written as they come, marked as no checkpoint until the last; a restart at any of them goes on from there.
#[test]
fn a_transfer_goes_on_after_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let mut donor = Store::open(
        &dir.path().join("donor"),
        blobs(&dir.path().join("donor")),
        Options::default(),
    )
    .unwrap();
    donor
        .checkpoint(Seq(128), &entries(0..3_000, 0, 100), true)
        .unwrap();
    let (root, target) = donor
        .checkpoint(Seq(256), &entries(2_900..2_960, 1, 1 << 20), true)
        .unwrap();

    let path = dir.path().join("laggard");
    let mut store = Store::open(&path, blobs(&path), Options::default()).unwrap();
    store
        .checkpoint(Seq(128), &entries(0..3_500, 0, 100), true)
        .unwrap();
    let mut restarts = 0;
    loop {
        let base = store.newest().snapshot;
        let target_root = Target {
            checkpoint: Seq(256),
            root,
        };
        let mut fetcher = Fetcher::new(target_root, base, [ReplicaId(1)]).unwrap();
        let layer = loop {
            for (from, ask) in fetcher.poll(0).unwrap() {
                let answer = transfer::serve(&*target, Seq(256), &ask).unwrap();
                fetcher.handle(0, from, answer.unwrap()).unwrap();
            }
            if let Some(layer) = fetcher.take_chunk().unwrap() {
                break layer;
            }
        };
        let done = fetcher.is_done();
        store.checkpoint(Seq(256), &layer, done).unwrap();
        drop(fetcher);
        drop(store);
        store = Store::open(&path, blobs(&path), Options::default()).unwrap();
        assert_eq!(store.newest().complete, done);
        restarts += 1;
        if done {
            break;
        }
    }
    assert!(restarts > 2, "{restarts}");
    let newest = store.newest();
    assert_eq!((newest.seq, newest.root), (Seq(256), root));
    assert_eq!(tree::check(&*newest.snapshot), Ok(root));
}
