//! A row that somebody has exchanged, tag and all: the store can't see it, the partition tree says something else of it.

use std::path::Path;

use bytes::Bytes;
use quorate_state::{Layer, tree};
use quorate_wire::Seq;

use crate::blobs::Blobs;
use crate::rows::{self, ENTRIES, Kind};
use crate::store::{Options, Store, open_existing};

fn open(directory: &Path) -> Store {
    let blobs = Blobs::open(&directory.join("blobs")).unwrap();
    Store::open(&directory.join("state"), blobs, Options::default()).unwrap()
}

fn layer<const N: usize>(rows: [(&'static str, Option<Bytes>); N]) -> Layer {
    let rows = rows.map(|(key, value)| (Bytes::from(key), value));
    Layer::from(rows)
}

/// The row is given back as it is, and what it should be can be told from the tree. Once it is taken out, its place in the tree differs from what
/// it should be, so that whoever compares fetches it; afterwards all is as before.
#[test]
fn it_is_found_out_by_the_tree_and_can_be_replaced() {
    for right in [Bytes::from_static(b"right"), vec![7; 50_000].into()] {
        let place = tempfile::tempdir().unwrap();
        let path = place.path();
        let mut store = open(path);
        let others = || Some(Bytes::from_static(b"another"));
        let all = layer([("a", others()), ("b", Some(right.clone())), ("c", others())]);
        let (root, _) = store.checkpoint(Seq(1), &all, true).unwrap();
        drop(store);

        let database = open_existing(&path.join("state"), Options::default()).unwrap();
        let write = database.begin_write().unwrap();
        let row = rows::seal(Kind::Entry, b"b", b"wrong");
        write
            .open_table(ENTRIES)
            .unwrap()
            .insert(&b"b"[..], &row[..])
            .unwrap();
        write.commit().unwrap();
        drop(database);

        let mut store = open(path);
        let newest = store.newest();
        assert_eq!(newest.root, root, "nobody has noticed");
        let found = newest.snapshot.get(b"b").unwrap().unwrap();
        assert_eq!(found, "wrong");
        let listed = tree::lookup(&*newest.snapshot, b"b").unwrap();
        assert!(tree::check(&*newest.snapshot).is_err() && listed.is_some());
        drop(newest);

        let (without, _) = store
            .checkpoint(Seq(1), &layer([("b", None)]), false)
            .unwrap();
        assert_ne!(without, root);
        let (again, snapshot) = store
            .checkpoint(Seq(1), &layer([("b", Some(right.clone()))]), true)
            .unwrap();
        assert_eq!((again, tree::check(&*snapshot).unwrap()), (root, root));
        assert_eq!(snapshot.get(b"b").unwrap(), Some(right));
        assert!(!store.damage().is_found());
    }
}
