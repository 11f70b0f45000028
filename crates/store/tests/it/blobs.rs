//! Large values in segments: they are written once, go when nobody needs them, and are never read wrong.

use std::fs;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use quorate_state::{Layer, MemorySnapshot, Snapshot, Summary};
use quorate_store::{Appender, Blobs, LARGE_BYTES, Options, Place, Store};
use quorate_wire::Seq;

const SEGMENT: u64 = 1 << 20;
const VALUE: usize = 64 << 10;

fn blobs(dir: &Path) -> Arc<Blobs> {
    Blobs::open_with(&dir.join("blobs"), SEGMENT).unwrap()
}

/// A store with no log beside it.
fn open(dir: &Path) -> Store {
    let blobs = blobs(dir);
    blobs.unpin_below(u64::MAX);
    Store::open(&dir.join("state"), blobs, Options::default()).unwrap()
}

fn key(k: u64) -> Bytes {
    Bytes::from(format!("key {k:06}"))
}

fn value(k: u64, salt: u64) -> Bytes {
    let mut x = k * 1_000 + salt;
    let next = || {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (x >> 40) as u8
    };
    std::iter::repeat_with(next).take(VALUE).collect()
}

fn layer(keys: impl IntoIterator<Item = u64>, salt: u64) -> Layer {
    let entry = |k| (key(k), Some(value(k, salt)));
    keys.into_iter().map(entry).collect()
}

fn deleted(keys: impl IntoIterator<Item = u64>) -> Layer {
    keys.into_iter().map(|k| (key(k), None)).collect()
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir.join("blobs")).unwrap();
    let mut paths: Vec<_> = entries.map(|e| e.unwrap().path()).collect();
    paths.sort();
    paths
}

fn segment_bytes(dir: &Path) -> u64 {
    let length = |path| fs::metadata(path).unwrap().len();
    segments(dir).into_iter().map(length).sum()
}

fn all(snapshot: &dyn Snapshot) -> Vec<(Bytes, Bytes)> {
    let range = snapshot.range(Bound::Unbounded, Bound::Unbounded, usize::MAX);
    range.unwrap()
}

fn assert_same(snapshot: &dyn Snapshot, model: &MemorySnapshot) {
    assert!(all(snapshot).into_iter().eq(model.entries.clone()));
}

/// A place of four gigabytes is not read, though there is a file of that length, with nothing in it.
#[test]
fn a_place_that_is_too_long_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(blobs(dir.path()));
    let hollow = fs::File::create(dir.path().join("blobs/0000000000000777.blob")).unwrap();
    hollow.set_len(8 << 30).unwrap();
    let blobs = blobs(dir.path());
    let place = |length| Place {
        segment: 777,
        offset: 0,
        length,
    };
    assert!(blobs.read(place(u32::MAX)).is_err());
    assert_eq!(blobs.read(place(4)).unwrap()[..], [0; 4]);
}

/// What is known of bytes that no log has is their digest alone: they are written, and the state is the same.
#[test]
fn what_only_its_digest_is_known_of_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    let body: Bytes = (0..3).flat_map(|k| value(k, 0)).collect();
    store.know(body.clone().into(), Seq(1));
    let piece = |k: usize| Some(body.slice(k * VALUE..(k + 1) * VALUE));
    let delta: Layer = (0..3).map(|k| (key(k as u64), piece(k))).collect();
    let (model, root) = MemorySnapshot::default().apply(&delta).unwrap();
    assert_eq!(store.checkpoint(Seq(1), &delta, true).unwrap().0, root);
    assert_eq!(segment_bytes(dir.path()), body.len() as u64);
    drop((store, body, delta));
    assert_same(&*open(dir.path()).newest().snapshot, &model);
}

/// Bytes that the log has written are not written again; others are, once; and small ones lie in the store's file.
#[test]
fn large_values_are_written_once() {
    let dir = tempfile::tempdir().unwrap();
    let blobs = blobs(dir.path());
    let path = dir.path().join("state");
    let mut store = Store::open(&path, blobs.clone(), Options::default()).unwrap();
    let mut log = Appender::pinning(blobs.clone());
    let body: Bytes = (0..6).flat_map(|k| value(k, 0)).collect();
    let place = log.append(&body).unwrap();
    log.sync().unwrap();
    blobs.remember(body.clone().into(), place, Seq(1));
    let before = segment_bytes(dir.path());
    assert_eq!(before, body.len() as u64);
    let piece = |k: usize| Some(body.slice(k * VALUE + 100..(k + 1) * VALUE + 100));
    let mut delta: Layer = (0..5).map(|k| (key(k as u64), piece(k))).collect();
    delta.insert(key(10), Some(Bytes::from(vec![1; LARGE_BYTES - 1])));
    store.checkpoint(Seq(1), &delta, true).unwrap();
    assert_eq!(segment_bytes(dir.path()), before);
    let model = MemorySnapshot::default().apply(&delta).unwrap().0;
    assert_same(&*store.newest().snapshot, &model);

    // The same bytes elsewhere in memory, or after their checkpoint, are not known.
    let later: Layer = [
        (key(20), Some(Bytes::copy_from_slice(&body[..VALUE]))),
        (key(21), piece(0)),
    ]
    .into();
    store.checkpoint(Seq(2), &later, true).unwrap();
    assert_eq!(segment_bytes(dir.path()), before + 2 * VALUE as u64);
    let model = model.apply(&later).unwrap().0;
    drop(store);
    assert_same(&*open(dir.path()).newest().snapshot, &model);
}

/// A piece of an operation that goes into the state whole has the digest that it had in the operation; where a value is another
/// part of the same bytes, that of a piece is not taken for its own.
#[test]
fn pieces_of_operations_have_their_own_digests() {
    let dir = tempfile::tempdir().unwrap();
    let blobs = blobs(dir.path());
    let mut store = Store::open(&dir.path().join("state"), blobs.clone(), Options::default());
    let store = store.as_mut().unwrap();
    let mut log = Appender::pinning(blobs.clone());
    let mut model = MemorySnapshot::default();
    for (seq, head) in (1..).zip([0, 57, VALUE - 1]) {
        let body: Bytes = (0..5).flat_map(|k| value(k, seq)).collect();
        let body = body.slice(VALUE - head..);
        let place = log.append(&body).unwrap();
        log.sync().unwrap();
        blobs.remember(body.clone().into(), place, Seq(seq));
        let starts = [
            head,
            head + VALUE,
            head + VALUE / 2,
            head + 3 * VALUE,
            head + 1,
            0,
        ];
        let part = |(k, from): (u64, usize)| (key(k), Some(body.slice(from..from + VALUE)));
        let mut delta: Layer = (0..).zip(starts).map(part).collect();
        for (k, length) in (10..).zip([LARGE_BYTES, VALUE - 1, VALUE + 1, 2 * VALUE]) {
            delta.insert(key(k), Some(body.slice(head..head + length)));
        }
        let (root, snapshot) = store.checkpoint(Seq(seq), &delta, true).unwrap();
        let hashed = model.apply(&delta).unwrap();
        assert_eq!(root, hashed.1);
        model = hashed.0;
        assert_same(&*snapshot, &model);
        for (key, value) in &model.entries {
            let hashed = snapshot.get_hashed(key).unwrap().unwrap();
            let digest = Summary::of(value).digest;
            assert_eq!(hashed, (value.clone(), digest));
        }
        assert_eq!(snapshot.get_hashed(b"no key").unwrap(), None);
    }
}

/// What is overwritten and deleted gives its room back, while what is alive is moved away; snapshots go on reading what
/// they saw.
#[test]
fn dead_room_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    let mut model = MemorySnapshot::default();
    let mut kept = Vec::new();
    for round in 0..40_u64 {
        // One in eight stays for long: each segment keeps a few.
        let delta = match round % 10 {
            9 => deleted((0..200).filter(|k| k % 3 == 0)),
            _ => layer((0..20).map(|i| (round * 7 + i * 9) % 160), round),
        };
        let (_, snapshot) = store.checkpoint(Seq(round + 1), &delta, true).unwrap();
        model = model.apply(&delta).unwrap().0;
        assert_same(&*snapshot, &model);
        match round {
            10..14 => kept.push((snapshot, model.clone())),
            30 => kept.clear(),
            _ => {}
        }
        for (snapshot, model) in &kept {
            assert_same(&**snapshot, model);
        }
        if round % 13 == 12 && kept.is_empty() {
            drop(store);
            store = open(dir.path());
        }
    }
    let live = (model.entries.len() * VALUE) as u64;
    let used = segment_bytes(dir.path());
    assert!(used < 2 * live + 4 * SEGMENT, "{used} for {live}");

    let keys: Vec<u64> = (0..200).collect();
    for seq in 50..54 {
        let gone = store.checkpoint(Seq(seq), &deleted(keys.clone()), true);
        gone.unwrap();
    }
    // All but the one that it writes to.
    assert!(segments(dir.path()).len() <= 1);
}

/// Segments that the log needs stay, with rows or without; and those that nobody knows go after a restart.
#[test]
fn the_log_keeps_what_it_needs() {
    let dir = tempfile::tempdir().unwrap();
    {
        let blobs = blobs(dir.path());
        let mut log = Appender::pinning(blobs.clone());
        for k in 0..40 {
            log.append(&value(k, 0)).unwrap();
        }
        log.sync().unwrap();
    }
    let count = segments(dir.path()).len();
    assert_eq!(count, 3);
    let blobs = blobs(dir.path());
    let path = dir.path().join("state");
    let mut store = Store::open(&path, blobs.clone(), Options::default()).unwrap();
    let mut seq = 0;
    let mut step = |store: &mut Store| {
        seq += 1;
        store.checkpoint(Seq(seq), &Layer::new(), true).unwrap();
        segments(dir.path()).len()
    };
    assert_eq!(step(&mut store), 3);
    blobs.unpin_below(3);
    step(&mut store);
    assert_eq!(step(&mut store), 1);
    // As long as anybody holds them all.
    let (one, other) = (blobs.hold(), blobs.hold());
    blobs.unpin_below(u64::MAX);
    step(&mut store);
    drop(one);
    step(&mut store);
    assert_eq!(step(&mut store), 1);
    drop(other);
    step(&mut store);
    assert_eq!(step(&mut store), 0);
}

/// A segment that was changed, cut short or lost is found out where it is read, and says what to do.
#[test]
fn damaged_segments_are_never_wrong_data() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    store.checkpoint(Seq(1), &layer(0..10, 0), true).unwrap();
    drop(store);
    let path = segments(dir.path()).remove(0);
    let image = fs::read(&path).unwrap();
    let read_all = || {
        let snapshot = open(dir.path()).newest().snapshot;
        let mut faults = Vec::new();
        for k in 0..10 {
            match snapshot.get(&key(k)) {
                Ok(found) => assert!(found.unwrap() == value(k, 0)),
                Err(fault) => faults.push(fault.to_string()),
            }
        }
        faults
    };
    for at in (0..image.len()).step_by(50_021) {
        let mut bytes = image.clone();
        bytes[at] ^= 4;
        fs::write(&path, bytes).unwrap();
        let faults = read_all();
        assert_eq!(faults.len(), 1, "{at}");
        assert!(faults[0].contains(".blob") && faults[0].contains("is damaged"));
    }
    for part in 0..10 {
        fs::write(&path, &image[..part * VALUE]).unwrap();
        assert_eq!(read_all().len(), 10 - part);
    }
    fs::remove_file(&path).unwrap();
    let faults = read_all();
    assert!(
        faults.len() == 10 && faults[0].contains("is damaged"),
        "{faults:?}"
    );
    // Its number is not given to another one, from which the lost rows would be read.
    let mut store = open(dir.path());
    store.checkpoint(Seq(2), &layer(20..30, 0), true).unwrap();
    assert_ne!(segments(dir.path()).remove(0), path);
    assert!(store.newest().snapshot.get(&key(3)).is_err());
    assert!(store.newest().snapshot.get(&key(23)).is_ok());
}

/// The length and digest of a large value are beside it: they are told without reading it, also when it is gone. Of a small one they are those
/// of what is read.
#[test]
fn summaries_need_no_content() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    let mut all = layer(0..3, 1);
    all.insert(key(9), Some(Bytes::from_static(b"small")));
    let (_, snapshot) = store.checkpoint(Seq(1), &all, true).unwrap();
    let told = |k| snapshot.summary(&key(k)).unwrap();
    for segment in segments(dir.path()) {
        fs::write(segment, b"").unwrap();
    }
    for k in 0..3 {
        assert_eq!(told(k), Some(Summary::of(&value(k, 1))));
        assert!(snapshot.get(&key(k)).is_err());
    }
    assert_eq!(told(9), Some(Summary::of(b"small")));
    assert_eq!(told(77), None);
}
