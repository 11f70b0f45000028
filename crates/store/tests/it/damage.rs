//! Crashes and bit rot: the store comes back whole, or says that it can't.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Bound;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quorate_state::{Fault, Layer, MemorySnapshot, Snapshot, tree};
use quorate_store::{Blobs, Options, Store, StoreError};
use quorate_wire::Seq;

const STORE: &str = "QUORATE_TEST_STORE";

/// The segments beside a store, with no log that needs any.
fn blobs(path: &Path) -> Arc<Blobs> {
    let blobs = Blobs::open(&path.with_extension("blobs")).unwrap();
    blobs.unpin_below(u64::MAX);
    blobs
}

/// The change that checkpoint `seq` makes; some values take several pages.
fn delta(seq: u64) -> Layer {
    (0..30_u64)
        .map(|i| {
            let key = Bytes::from(format!("key {}", (seq * 17 + i * 5) % 400));
            let value = vec![seq as u8; (seq * i % 37 * 400) as usize];
            (key, (i % 4 != 0).then(|| Bytes::from(value)))
        })
        .collect()
}

fn state_after(seq: u64) -> MemorySnapshot {
    let mut state = MemorySnapshot::default();
    for seq in 1..=seq {
        state = state.apply(&delta(seq)).unwrap().0;
    }
    state
}

fn all(snapshot: &dyn Snapshot) -> Result<BTreeMap<Bytes, Bytes>, Fault> {
    let range = snapshot.range(Bound::Unbounded, Bound::Unbounded, usize::MAX)?;
    Ok(range.into_iter().collect())
}

/// The store is at a complete checkpoint: all of its entries, and the root that they have when the tree is made from scratch.
fn assert_at_a_checkpoint(path: &Path) -> u64 {
    let store = Store::open(path, blobs(path), Options::default()).unwrap();
    let newest = store.newest();
    let entries = all(&*newest.snapshot).unwrap();
    let state = state_after(newest.seq.0);
    assert!(entries == state.entries, "after {:?}", newest.seq);
    let whole: Layer = entries.into_iter().map(|(k, v)| (k, Some(v))).collect();
    let (_, root) = MemorySnapshot::default().apply(&whole).unwrap();
    assert_eq!(root, newest.root);
    for (path, node) in &state.nodes {
        assert_eq!(newest.snapshot.node(path).unwrap().as_ref(), Some(node));
    }
    newest.seq.0
}

/// Not a test of its own: what [`kill_in_the_middle`] starts and kills. It writes checkpoints until then.
#[test]
fn child_that_writes() {
    let Some(path) = std::env::var_os(STORE) else {
        return;
    };
    let mut store = Store::open(
        Path::new(&path),
        blobs(Path::new(&path)),
        Options::default(),
    )
    .unwrap();
    loop {
        let seq = store.newest().seq.next();
        store.checkpoint(seq, &delta(seq.0), true).unwrap();
    }
}

/// A process that is killed between any two instructions leaves a store at a checkpoint; time and again.
#[test]
fn kill_in_the_middle() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let mut seq = 0;
    for round in 0..12_u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "damage::child_that_writes", "--nocapture"])
            .env(STORE, &path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(15 + round * 37 % 120));
        child.kill().unwrap();
        child.wait().unwrap();
        let now = assert_at_a_checkpoint(&path);
        assert!(now >= seq, "a checkpoint was lost");
        seq = now;
    }
    assert!(seq > 0, "the children never got to write");
}

/// A copy of the file as it is while the store is open, as a power cut would leave it, is at that checkpoint.
#[test]
fn an_image_without_a_close_is_at_the_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let image = dir.path().join("image");
    let mut store = Store::open(&path, blobs(&path), Options::default()).unwrap();
    for seq in 1..=12 {
        store.checkpoint(Seq(seq), &delta(seq), true).unwrap();
        fs::copy(&path, &image).unwrap();
        assert_eq!(assert_at_a_checkpoint(&image), seq);
    }
}

/// Whatever the damaged store still says, is true.
fn read_all(path: &Path, right: &MemorySnapshot) -> Result<(), Fault> {
    let mut store = Store::open(
        path,
        blobs(path),
        Options {
            cache_bytes: 1 << 20,
        },
    )?;
    let newest = store.newest();
    assert_eq!(newest.root, tree::root(right).unwrap());
    let mut faults = Vec::new();
    for k in 0..400 {
        let key = Bytes::from(format!("key {k}"));
        match newest.snapshot.get(&key) {
            Ok(value) => assert_eq!(value.as_ref(), right.entries.get(&key)),
            Err(fault) => faults.push(fault),
        }
    }
    match all(&*newest.snapshot) {
        Ok(entries) => assert!(entries == right.entries),
        Err(fault) => faults.push(fault),
    }
    for (path, node) in &right.nodes {
        match newest.snapshot.node(path) {
            Ok(found) => assert_eq!(found.as_ref(), Some(node)),
            Err(fault) => faults.push(fault),
        }
    }
    let change = delta(newest.seq.0 + 1);
    let (root, _) = store.checkpoint(newest.seq.next(), &change, true)?;
    assert_eq!(root, right.apply(&change).unwrap().1);
    faults.pop().map_or(Ok(()), Err)
}

/// Bytes that changed on the disk, anywhere, are a fault or without effect, and never wrong data.
#[test]
fn flipped_bytes_are_never_wrong_data() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let mut store = Store::open(&path, blobs(&path), Options::default()).unwrap();
    for seq in 1..=20 {
        store.checkpoint(Seq(seq), &delta(seq), true).unwrap();
    }
    drop(store);
    let right = state_after(20);
    let image = fs::read(&path).unwrap();
    let damaged = dir.path().join("damaged");
    let mut x = 42_u64;
    let mut next = |below: usize| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (x >> 33) as usize % below
    };
    let (mut found, mut without_effect) = (0, 0);
    for round in 0..250 {
        let mut bytes = image.clone();
        match round % 5 {
            // One bit, where something is written.
            0..3 => {
                let used: Vec<usize> = (0..64).map(|_| next(bytes.len())).collect();
                let at = used.iter().find(|at| bytes[**at] != 0).unwrap_or(&used[0]);
                bytes[*at] ^= 1 << next(8);
            }
            // The headers and the first sums.
            3 => {
                let at = next(12 << 10);
                bytes[at] ^= 1 << next(8);
            }
            // A block that was lost, or that another one overwrote.
            _ => {
                let (from, to) = (next(bytes.len() / 4096), next(bytes.len() / 4096));
                bytes.copy_within(from * 4096..(from + 1) * 4096, to * 4096);
            }
        }
        fs::write(&damaged, bytes).unwrap();
        match read_all(&damaged, &right) {
            Ok(()) => without_effect += 1,
            Err(_) => found += 1,
        }
    }
    assert!(
        found > 50 && without_effect > 10,
        "{found} {without_effect}"
    );
}

/// A file that was cut short is refused, or found out where the missing part is read.
#[test]
fn a_file_cut_short_is_never_wrong_data() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let mut store = Store::open(&path, blobs(&path), Options::default()).unwrap();
    for seq in 1..=20 {
        store.checkpoint(Seq(seq), &delta(seq), true).unwrap();
    }
    drop(store);
    let right = state_after(20);
    let image = fs::read(&path).unwrap();
    let cut = dir.path().join("cut");
    for part in 0..16 {
        fs::write(&cut, &image[..image.len() * part / 16]).unwrap();
        let _ = read_all(&cut, &right);
    }
}

/// Where the newer header is lost as well, a file that is cut anywhere ends in an error or in a store, and never in a panic.
#[test]
fn a_file_may_be_cut_anywhere() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let mut store = Store::open(&path, blobs(&path), Options::default()).unwrap();
    for seq in 1..=2 {
        store.checkpoint(Seq(seq), &delta(seq), true).unwrap();
    }
    drop(store);
    let image = fs::read(&path).unwrap();
    let cut = dir.path().join("cut");
    let mut damaged = 0;
    for slot in [0, 4096] {
        let mut bytes = image.clone();
        bytes[slot] ^= 1;
        for blocks in 2..bytes.len() / 4096 {
            fs::write(&cut, &bytes[..blocks * 4096]).unwrap();
            let opened = Store::open(&cut, blobs(&cut), Options::default());
            damaged += u32::from(matches!(opened, Err(StoreError::Corrupt { .. })));
        }
    }
    assert!(damaged > 10, "{damaged}");
}

/// A store of another version is told from a damaged one, and left as it is; damage to the version's number is damage.
#[test]
fn another_version_is_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let mut store = Store::open(&path, blobs(&path), Options::default()).unwrap();
    store.checkpoint(Seq(1), &delta(1), true).unwrap();
    drop(store);
    let image = fs::read(&path).unwrap();
    let open = |sums_too: bool| {
        let mut bytes = image.clone();
        for slot in bytes[..2 * 4096].chunks_mut(4096) {
            slot[4064 + 7] = b'9';
            if sums_too {
                let sum = crc32fast::hash(&slot[..4080]).to_le_bytes();
                slot[4080..4084].copy_from_slice(&sum);
            }
        }
        fs::write(&path, &bytes).unwrap();
        let error = Store::open(&path, blobs(&path), Options::default()).unwrap_err();
        assert!(fs::read(&path).unwrap() == bytes, "it was changed");
        error
    };
    let error = open(true);
    assert!(matches!(error, StoreError::Version { .. }), "{error}");
    assert!(!error.is_damage() && error.to_string().contains("its format is 9"));
    assert!(open(false).is_damage());
}
