//! Files that come from other people, or from a disk that may have changed them.

use std::fs;
use std::io::Write;
use std::ops::Bound;
use std::os::unix::fs::OpenOptionsExt;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use quorate_agreement::durable;
use quorate_net::group::{Files, Purpose};
use quorate_net::{Group, fuzzing as net, keys};
use quorate_node::fuzzing as node;
use quorate_node::wal::{Opened, Record, Wal, WalError, WalOptions};
use quorate_state::Layer;
use quorate_store::{Blobs, LARGE_BYTES, Options, Store};
use quorate_wire::{KeyPair, LogIndex, PublicKey, Seq};

/// A directory that this process alone uses, in memory where there is such a place.
fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        directory.expect("a place for files").keep()
    })
}

/// Group files. They have a text form that is not the only one; what is read and written again means the same.
pub fn group_file(data: &[u8]) {
    let path = directory().join("group");
    fs::write(&path, data).expect("the file can be written");
    if let Ok(group) = Group::load(&path) {
        group.save(&path).expect("the file can be written");
        assert_eq!(Group::load(&path).expect("our own file"), group);
    }
}

/// Key files: what is read is a key that, saved, is read again.
pub fn key_file(data: &[u8]) {
    let path = directory().join("key");
    let _ = fs::remove_file(&path);
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&path);
    let written = file.and_then(|mut file| file.write_all(data));
    written.expect("the file can be written");
    if let Ok(key) = keys::load(&path) {
        fs::remove_file(&path).expect("it is there");
        keys::save(&path, &key).expect("the file can be written");
        assert_eq!(keys::load(&path).expect("our own").public(), key.public());
    }
}

const SEGMENT_BYTES: u64 = 1 << 13;

/// A write-ahead log: the first byte says where the input is cut into two segments. What is read is read again by the next
/// process, and is followed by what this one appends.
pub fn log(data: &[u8]) {
    let Some((&at, bytes)) = data.split_first() else {
        return;
    };
    let path = directory().join("log");
    let _ = fs::remove_dir_all(&path);
    let _ = fs::remove_dir_all(path.with_extension("blobs"));
    fs::create_dir(&path).expect("a directory");
    let (first, second) = bytes.split_at((usize::from(at) * 16).min(bytes.len()));
    let segments = [first, second].into_iter().filter(|part| !part.is_empty());
    for (number, part) in (1..).zip(segments) {
        let name = path.join(format!("{number:016}.wal"));
        fs::write(name, part).expect("the file can be written");
    }
    let Ok((mut log, mut records, _)) = open_log(&path) else {
        return;
    };
    let last = records.iter().map(|record| record.index.0).max();
    // The last number there is stands for marks.
    let next = last.map_or(Some(0), |last| last.checked_add(1));
    let Some(next) = next.filter(|next| *next < u64::MAX) else {
        return;
    };
    let record = Record {
        bodies: vec![Bytes::from_static(b"body").into()],
        ..Record::new(LogIndex(next), Seq(1), Bytes::from_static(b"next"))
    };
    log.append(std::slice::from_ref(&record))
        .expect("an open log");
    log.sync().expect("an open log");
    drop(log);
    records.push(record);
    let (_, again, recovery) = open_log(&path).expect("our own log");
    assert!(again == records && !recovery.torn);
}

fn open_log(path: &Path) -> Result<Opened, WalError> {
    let options = WalOptions {
        segment_bytes: SEGMENT_BYTES,
    };
    Wal::open_with(path, blobs(path), options)
}

/// The segments of large values beside a log or store.
fn blobs(path: &Path) -> Arc<Blobs> {
    Blobs::open(&path.with_extension("blobs")).expect("a directory")
}

/// What the store that is damaged below holds: enough for several pages.
fn content(key: u8) -> Bytes {
    vec![key; 64 * (usize::from(key) + 1)].into()
}

fn whole_store() -> &'static [u8] {
    static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let path = directory().join("whole");
        let mut store = Store::open(&path, blobs(&path), options()).expect("a new store");
        for seq in 1..=2_u8 {
            let keys = (0..32).filter(|key| key % 2 == seq % 2);
            let delta: Layer = keys
                .map(|key| (Bytes::from(vec![1, key]), Some(content(key))))
                .collect();
            let written = store.checkpoint(Seq(seq.into()), &delta, true);
            written.expect("a store");
        }
        drop(store);
        fs::read(&path).expect("the store's file")
    })
}

fn options() -> Options {
    Options {
        cache_bytes: 1 << 16,
    }
}

/// A store whose file has changed at some places: three bytes say where, one says what is there, again and again; an odd
/// number of bytes left over cuts the file there. It reads what was written, or says that it can't.
pub fn store(data: &[u8]) {
    let mut file = whole_store().to_vec();
    let mut edits = data.chunks_exact(4);
    for edit in &mut edits {
        let at = u32::from_le_bytes([edit[0], edit[1], edit[2], 0]) as usize % file.len();
        file[at] = edit[3];
    }
    if let [a, rest @ ..] = edits.remainder() {
        let b = rest.first().copied().unwrap_or(0);
        let cut = usize::from(u16::from_le_bytes([*a, b])) * 64;
        file.truncate(cut);
    }
    let path = directory().join("damaged");
    fs::write(&path, &file).expect("the file can be written");
    // The store answers for panics of what it is built on; the fuzzer's hook would end the process at once.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let opened = Store::open(&path, blobs(&path), options());
    panic::set_hook(hook);
    let Ok(store) = opened else {
        return;
    };
    if store.is_new() {
        return;
    }
    let newest = store.newest();
    assert!(newest.complete && (1..=2).contains(&newest.seq.0));
    let read = newest
        .snapshot
        .range(Bound::Unbounded, Bound::Unbounded, 100);
    if let Ok(entries) = read {
        let expected = (0..32).filter(|key| newest.seq.0 == 2 || key % 2 == 1);
        assert!(
            entries
                .into_iter()
                .eq(expected.map(|key| (Bytes::from(vec![1, key]), content(key)))),
            "the store reads what was not written"
        );
    }
    for key in 0..32 {
        if let Ok(value) = newest.snapshot.get(&[1, key]) {
            let there = newest.seq.0 == 2 || key % 2 == 1;
            assert_eq!(value, there.then(|| content(key)));
        }
    }
}

/// The group whose replicas have seen certificates of each other.
pub fn certified() -> &'static Group {
    static GROUP: OnceLock<Group> = OnceLock::new();
    GROUP.get_or_init(|| {
        let key = |seed: u8| KeyPair::from_seed(&[seed; 32]).public();
        let replicas = (1..=4).map(|r| (format!("192.0.2.{r}:7000"), key(r)));
        let (replicas, files) = (replicas.collect(), Files::default());
        let group = Group::new("home", replicas, Vec::new(), files, Purpose::Service);
        let identities: Vec<PublicKey> = (11..=14).map(key).collect();
        let group = group.map(|group| group.with_identities(&identities));
        group.expect("a group").expect("four other keys")
    })
}

/// As for encodings.
const MEMORY_PER_BYTE: usize = 64;
const MEMORY_AT_LEAST: usize = 64 << 10;

/// Notes beside a log and a key, and records as the log keeps them; the first byte says which. A note is refused, or the one form of what it says; a record that
/// is read and kept again is the same.
pub fn small(data: &[u8]) {
    let Some((&kind, rest)) = data.split_first() else {
        return;
    };
    match kind % 4 {
        0 => {
            let text = String::from_utf8_lossy(rest);
            seen(&text);
            // With the title and the group's id, which no mutation finds.
            let empty = net::epochs_text(certified(), Vec::new());
            seen(&(empty.expect("it has key holders") + &text));
        }
        1 => {
            let text = String::from_utf8_lossy(rest);
            if let Some((key, counter)) = net::counter(&text) {
                assert_eq!(net::counter_text(&key, counter), text);
            }
        }
        2 => {
            let note = |bytes: &[u8]| node::reached(bytes).map(|index| index.0.to_le_bytes());
            assert!(note(rest).is_none_or(|index| rest.starts_with(&index)));
            let summed = [rest, &crc32fast::hash(rest).to_le_bytes()].concat();
            assert_eq!(
                note(&summed).as_ref().map(|n| &n[..]),
                (rest.len() == 8).then_some(rest)
            );
        }
        _ => {
            if let Some(record) = unpacked(rest) {
                let again = node::pack(LogIndex(1), &record);
                assert_eq!(node::unpack(again).as_ref(), Ok(&record));
            }
        }
    }
}

/// A file of the certificates that were seen.
fn seen(text: &str) {
    if let Some(highest) = net::epochs(certified(), text) {
        let again = net::epochs_text(certified(), highest);
        assert_eq!(again.as_deref(), Some(text));
    }
}

/// A record with large operations beside it. The first byte says how many, and whether they are lost; each is the next byte again and again.
pub fn unpacked(data: &[u8]) -> Option<durable::Record> {
    let (&first, rest) = data.split_first()?;
    let (bodies, bytes) = rest.split_at_checked(usize::from(first & 3))?;
    let large = |byte: &u8| Bytes::from(vec![*byte; LARGE_BYTES]).into();
    let kept = Record {
        bodies: bodies.iter().map(large).collect(),
        damaged: first & 4 == 4,
        ..Record::new(LogIndex(1), Seq(1), Bytes::copy_from_slice(bytes))
    };
    let most = MEMORY_AT_LEAST + MEMORY_PER_BYTE * bytes.len();
    crate::within(most, || node::unpack(kept)).ok()
}

/// A key file and a segment of a log, for seeds.
pub fn samples() -> (Vec<u8>, Vec<u8>) {
    let path = directory().join("sample");
    keys::save(&path, &KeyPair::from_seed(&[1; 32])).expect("a new file");
    let key = fs::read(&path).expect("it is there");
    let path = directory().join("sample-log");
    let (mut log, _, _) = open_log(&path).expect("a new log");
    for index in 0..4 {
        let record = Bytes::from(vec![index as u8; 9]);
        let written = log.append(&[Record::new(LogIndex(index), Seq(index), record)]);
        written.and_then(|()| log.sync()).expect("a new log");
    }
    drop(log);
    let mut log = fs::read(path.join("0000000000000001.wal")).expect("a segment");
    let end = log
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |at| at + 1);
    log.truncate(end);
    (key, log)
}
