use super::thread::NOW_BYTES;
use super::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use tempfile::TempDir;

const SMALL: WalOptions = WalOptions {
    segment_bytes: 4096,
};

/// A directory in memory where there is one: the tests sync thousands of times.
fn scratch() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

/// A record whose bytes follow from its index.
fn record(index: u64, seq: u64, bytes: usize) -> Record {
    let payload: Vec<u8> = (0..bytes).map(|i| (index as usize * 7 + i) as u8).collect();
    Record::new(LogIndex(index), Seq(seq), Bytes::from(payload))
}

fn blobs(directory: &Path) -> Arc<Blobs> {
    Blobs::open_with(&directory.join("blobs"), 100_000).unwrap()
}

fn try_open(directory: &Path) -> Result<Opened, WalError> {
    Wal::open_with(directory, blobs(directory), SMALL)
}

fn open(directory: &Path) -> Opened {
    try_open(directory).unwrap()
}

/// A directory with the same segments, as a killed process leaves them.
fn copy(from: &Path) -> TempDir {
    let to = scratch();
    for number in segment::list(from).unwrap() {
        fs::copy(
            segment::path(from, number),
            segment::path(to.path(), number),
        )
        .unwrap();
    }
    to
}

/// The thread of a log, which does not panic.
fn spawn(wal: Wal, tell: impl FnMut(WalEvent) + Send + 'static) -> WalThread {
    WalThread::spawn(wal, tell, |panicked| panic!("{panicked}")).unwrap()
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

/// Whatever was synced comes back in order, over many segments and restarts.
#[test]
fn records_come_back_in_order() {
    let directory = scratch();
    let mut all = Vec::new();
    for run in 0..5 {
        let (mut wal, found, recovery) = open(directory.path());
        assert_eq!(found, all);
        assert!(!recovery.torn);
        for batch in 0..10 {
            let first = run * 30 + batch * 3;
            let records: Vec<_> = (first..first + 3)
                .map(|i| record(i, i, 1 + (i as usize * 37) % 700))
                .collect();
            wal.append(&records).unwrap();
            wal.sync().unwrap();
            all.extend(records);
        }
    }
    let (wal, found, recovery) = open(directory.path());
    assert_eq!(found, all);
    assert!(wal.segments() > 10 && recovery.segments == wal.segments());
}

/// One batch may span segments, and a record larger than a segment gets one of its own.
#[test]
fn large_records_and_batches() {
    let directory = scratch();
    let records = [
        record(1, 1, 10),
        record(2, 2, 3 << 20),
        record(3, 3, 10),
        record(4, 4, 4000),
        record(5, 5, 100),
    ];
    let (mut wal, ..) = open(directory.path());
    wal.append(&records).unwrap();
    wal.sync().unwrap();
    assert!(wal.segments() >= 4);
    drop(wal);
    assert_eq!(open(directory.path()).1, records);
}

/// Wherever a write is cut, the whole records before it come back, and writing goes on after them.
#[test]
fn a_write_may_be_torn_at_every_byte() {
    let directory = scratch();
    let (mut wal, ..) = open(directory.path());
    let records: Vec<_> = (1..=6).map(|i| record(i, i, 10 * i as usize)).collect();
    let mut ends = Vec::new();
    for (at, r) in records.iter().enumerate() {
        wal.append(std::slice::from_ref(r)).unwrap();
        ends.push(wal.current.end);
        if at % 2 == 1 {
            wal.sync().unwrap();
        }
    }
    let end = wal.current.end;
    for cut in 0..=end {
        let killed = copy(directory.path());
        let path = segment::path(killed.path(), 1);
        change(&path, |bytes| bytes.truncate(cut as usize));
        let (mut wal, found, _) = open(killed.path());
        let whole = ends.iter().filter(|&&e| e <= cut).count();
        assert_eq!(found, records[..whole], "cut at {cut}");
        wal.append(&[record(100, 100, 50)]).unwrap();
        wal.sync().unwrap();
        drop(wal);
        let (_, found, recovery) = open(killed.path());
        assert_eq!(found.len(), whole + 1);
        assert_eq!(found[whole].index, LogIndex(100));
        assert!(!recovery.torn, "the torn bytes are gone, cut at {cut}");
    }
}

/// The pages of the last write may reach the disk in any order: zeros in it are a torn tail, and are told.
#[test]
fn holes_in_the_last_write_are_a_torn_tail() {
    let directory = scratch();
    let (mut wal, ..) = open(directory.path());
    let safe = record(1, 1, 100);
    wal.append(std::slice::from_ref(&safe)).unwrap();
    wal.sync().unwrap();
    let synced = wal.current.end as usize;
    wal.append(&[record(2, 2, 500), record(3, 3, 500)]).unwrap();
    let end = wal.current.end as usize;
    for hole in (synced..end - 64).step_by(32) {
        let killed = copy(directory.path());
        let path = segment::path(killed.path(), 1);
        change(&path, |bytes| bytes[hole..hole + 64].fill(0));
        let (wal, found, recovery) = open(killed.path());
        assert_eq!(found[0], safe);
        assert!(found.len() < 3 && recovery.torn, "hole at {hole}");
        drop(wal);
        assert!(!open(killed.path()).2.torn, "the rest is zeroed");
    }
}

/// What later marks prove to have been durable must not vanish: its damage is an error, at every byte.
#[test]
fn damage_to_what_was_synced_is_an_error() {
    let directory = scratch();
    let (mut wal, ..) = open(directory.path());
    for i in 1..=3 {
        wal.append(&[record(i, i, 40)]).unwrap();
        wal.sync().unwrap();
    }
    let proven = wal.current.end as usize - segment::frame_bytes(40, 0) - segment::MARK_FRAME_BYTES;
    for at in 0..proven {
        let damaged = copy(directory.path());
        let path = segment::path(damaged.path(), 1);
        change(&path, |bytes| bytes[at] ^= 0x10);
        match try_open(damaged.path()) {
            Err(WalError::Damaged { offset, .. }) => assert!(offset <= at as u64),
            other => panic!("byte {at}: {other:?}"),
        }
    }
    let damaged = copy(directory.path());
    let path = segment::path(damaged.path(), 1);
    change(&path, |bytes| bytes[..proven].fill(0));
    let error = try_open(damaged.path()).unwrap_err();
    assert!(error.to_string().contains("check the disk"), "{error}");
}

/// Earlier segments are whole, since a segment is closed only after a sync: each of their bytes counts.
#[test]
fn damage_to_earlier_segments_is_an_error() {
    let directory = scratch();
    let (mut wal, ..) = open(directory.path());
    for i in 1..=30 {
        wal.append(&[record(i, i, 400)]).unwrap();
    }
    wal.sync().unwrap();
    assert!(wal.segments() >= 3);
    for at in (0..4096).step_by(7) {
        let damaged = copy(directory.path());
        change(&segment::path(damaged.path(), 1), |bytes| bytes[at] ^= 1);
        let error = try_open(damaged.path()).unwrap_err();
        assert!(
            matches!(error, WalError::Damaged { .. }),
            "byte {at}: {error}"
        );
    }
    let robbed = copy(directory.path());
    let second = segment::path(robbed.path(), 2);
    fs::remove_file(&second).unwrap();
    let error = try_open(robbed.path()).unwrap_err();
    assert!(matches!(error, WalError::Missing(path) if path == second));
}

/// A client can't make a torn tail look like damage by writing bytes that look like a mark.
#[test]
fn forged_marks_are_not_believed() {
    let directory = scratch();
    let (mut wal, ..) = open(directory.path());
    wal.append(&[record(1, 1, 10)]).unwrap();
    wal.sync().unwrap();
    // Where the forged frame will lie: after the mark, the first record's frame, and the second one's head.
    let second =
        wal.current.end as usize + segment::MARK_FRAME_BYTES + segment::frame_bytes(100, 0);
    let mut forged = Vec::new();
    let offset = (second + segment::frame_bytes(0, 0)) as u64;
    Mark::Synced.write(&mut forged, 1, offset, [7; 16]);
    let torn = second - 50;
    let forged = Record::new(LogIndex(3), Seq(3), Bytes::from(forged));
    wal.append(&[record(2, 2, 100), forged]).unwrap();
    let killed = copy(directory.path());
    change(&segment::path(killed.path(), 1), |bytes| bytes[torn] ^= 1);
    let (_, found, recovery) = open(killed.path());
    assert_eq!(found.len(), 1);
    assert!(recovery.torn);
}

/// Old segments go once a head repeats what must stay; records above the stable place hold theirs.
#[test]
fn discarding_waits_for_a_head() {
    let directory = scratch();
    let (mut wal, ..) = open(directory.path());
    for i in 1..=30 {
        wal.append(&[record(i, i, 400)]).unwrap();
    }
    let segments = wal.segments();
    wal.discard(Seq(1000)).unwrap();
    assert_eq!(wal.segments(), segments, "there is no head yet");

    let head = vec![record(31, 0, 50), record(32, 0, 60)];
    wal.rotate(&head).unwrap();
    wal.append(&[record(33, 31, 10)]).unwrap();
    wal.discard(Seq(15)).unwrap();
    assert!(
        wal.segments() < segments + 1 && wal.segments() > 2,
        "half of them go"
    );
    wal.discard(Seq(30)).unwrap();
    assert_eq!(wal.segments(), 1);
    drop(wal);

    let (mut wal, found, _) = open(directory.path());
    assert_eq!(found, [head, vec![record(33, 31, 10)]].concat());
    // The head is known after a restart too.
    wal.append(&[record(34, 32, 3900)]).unwrap();
    wal.rotate(&[]).unwrap();
    wal.discard(Seq(32)).unwrap();
    assert_eq!(wal.segments(), 1);
}

/// The oldest segment that is still needed is missed when it is gone, and those that were discarded are not, whatever is left of them after a power cut.
#[test]
fn the_oldest_segment_is_missed() {
    let directory = scratch();
    let (mut wal, ..) = open(directory.path());
    for i in 1..=30 {
        wal.append(&[record(i, i, 400)]).unwrap();
    }
    let whole = copy(directory.path());
    wal.rotate(&[record(31, 0, 50)]).unwrap();
    wal.append(&[record(32, 31, 10)]).unwrap();
    wal.discard(Seq(15)).unwrap();
    let numbers = segment::list(directory.path()).unwrap();
    assert!(numbers[0] > 1 && numbers.len() > 2, "half of them go");
    drop(wal);

    let back = copy(directory.path());
    for number in 1..numbers[0] {
        let path = segment::path(whole.path(), number);
        fs::copy(path, segment::path(back.path(), number)).unwrap();
    }
    assert_eq!(
        open(back.path()).2.segments,
        numbers.len() + numbers[0] as usize - 1
    );
    assert_eq!(open(directory.path()).2.segments, numbers.len());
    let oldest = segment::path(directory.path(), numbers[0]);
    fs::remove_file(&oldest).unwrap();
    let error = try_open(directory.path()).unwrap_err();
    assert!(matches!(error, WalError::Missing(path) if path == oldest));
}

/// A segment that is discarded while another one is being made ready for use again does not take its place.
#[test]
fn discarded_segments_do_not_get_mixed_up() {
    let directory = scratch();
    let (mut wal, ..) = open(directory.path());
    for i in 1..=400 {
        wal.append(&[record(i, i, 3_000)]).unwrap();
        wal.rotate(&[]).unwrap();
        wal.discard(Seq(i)).unwrap();
        wal.rotate(&[]).unwrap();
        wal.discard(Seq(i)).unwrap();
    }
    wal.append(&[record(500, 500, 100)]).unwrap();
    wal.sync().unwrap();
    drop(wal);
    let (_, found, _) = open(directory.path());
    assert_eq!(found, [record(500, 500, 100)]);
}

/// A head that a power cut tore does not count as one: the segments that it was to replace stay.
#[test]
fn a_torn_head_replaces_nothing() {
    let directory = scratch();
    let (mut wal, ..) = open(directory.path());
    let view = record(1, 0, 40);
    wal.append(std::slice::from_ref(&view)).unwrap();
    wal.rotate(&[record(2, 0, 40)]).unwrap();
    let end = wal.current.end;
    for cut in 0..end {
        let killed = copy(directory.path());
        let path = segment::path(killed.path(), 2);
        change(&path, |bytes| bytes.truncate(cut as usize));
        let (mut wal, found, _) = open(killed.path());
        assert_eq!(found[0], view);
        wal.discard(Seq(1000)).unwrap();
        assert_eq!(wal.segments(), 2, "cut at {cut}");
    }
}

/// Two processes can't share a log.
#[test]
fn a_log_has_one_owner() {
    let directory = scratch();
    let (_wal, ..) = open(directory.path());
    let error = try_open(directory.path()).unwrap_err();
    assert!(matches!(error, WalError::InUse(_)));
}

/// The default layout works, and its segments have their full size from the start.
#[test]
fn segments_are_allocated_ahead() {
    let directory = scratch();
    let (mut wal, ..) = Wal::open(directory.path(), blobs(directory.path())).unwrap();
    wal.append(&[record(1, 1, 10)]).unwrap();
    wal.sync().unwrap();
    let path = segment::path(directory.path(), 1);
    assert_eq!(fs::metadata(&path).unwrap().len(), 32 << 20);
    drop(wal);
    assert_eq!(
        Wal::open(directory.path(), blobs(directory.path()))
            .unwrap()
            .1
            .len(),
        1
    );
}

/// The thread makes many appends durable with few syncs, and says so in order.
#[test]
fn the_thread_commits_in_groups() {
    let directory = scratch();
    let (wal, ..) = open(directory.path());
    let (sender, events) = mpsc::channel();
    let thread = spawn(wal, move |event| drop(sender.send(event)));
    let mut written = Vec::new();
    for i in 1..=500 {
        let r = record(i, i, 100);
        thread.append(vec![r.clone()]);
        written.push(r);
        if i % 100 == 0 {
            thread.rotate(vec![record(i, 0, 5)]);
            written.push(record(i, 0, 5));
        }
    }
    let mut last = LogIndex(0);
    while last < LogIndex(500) {
        match events.recv_timeout(Duration::from_secs(20)).unwrap() {
            WalEvent::Persisted(index) => {
                assert!(index > last || index == LogIndex(500));
                last = index;
            }
            WalEvent::Failed(e) => panic!("{e}"),
        }
    }
    thread.discard(Seq(400));
    drop(thread);
    let (wal, found, _) = open(directory.path());
    assert!(found.len() < written.len() && written.ends_with(&found));
    assert!(found.iter().any(|r| r.index == LogIndex(401)));
    assert!(wal.segments() < 20);
}

/// A log's directory that can be taken away from under it.
fn below(directory: &TempDir) -> PathBuf {
    let log = directory.path().join("log");
    fs::create_dir(&log).unwrap();
    log
}

/// In one step: a directory in which segments are made meanwhile can't be removed file by file.
fn take_away(directory: &TempDir) {
    fs::rename(directory.path().join("log"), directory.path().join("gone")).unwrap();
}

/// After an error the log says so once and writes no more.
#[test]
fn a_failed_log_stays_failed() {
    let directory = scratch();
    let (mut wal, ..) = open(&below(&directory));
    take_away(&directory);
    assert!(matches!(wal.rotate(&[]), Err(WalError::Io { .. })));
    assert!(matches!(wal.append(&[]), Err(WalError::Failed)));
    assert!(matches!(wal.sync(), Err(WalError::Failed)));

    let directory = scratch();
    let (wal, ..) = open(&below(&directory));
    let (sender, events) = mpsc::channel();
    let thread = spawn(wal, move |event| drop(sender.send(event)));
    take_away(&directory);
    thread.rotate(vec![]);
    thread.append(vec![record(1, 1, 1)]);
    let told = events.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(matches!(told, WalEvent::Failed(_)), "{told:?}");
    thread.append(vec![record(2, 2, 1)]);
    assert!(
        events.recv_timeout(Duration::from_secs(20)).is_err(),
        "no more is said"
    );
}

/// What is small is durable when the call returns, unless the thread has something to do; what is long is for the thread. Either way records are in order.
#[test]
fn small_records_need_no_thread() {
    let directory = scratch();
    let (wal, ..) = open(directory.path());
    let (sender, events) = mpsc::channel();
    let mut thread = spawn(wal, move |event| drop(sender.send(event)));
    let mut written = Vec::new();
    let (mut now, mut later, mut persisted) = (0, 0, LogIndex(0));
    for i in 1..=300 {
        let r = record(i, i, if i % 50 == 0 { NOW_BYTES + 1 } else { 100 });
        written.push(r.clone());
        match thread.append_now(vec![r]).unwrap() {
            Some(index) => {
                assert_eq!(index, LogIndex(i));
                assert!(i % 50 != 0, "a long record was waited for");
                (now, persisted) = (now + 1, index);
            }
            None => later += 1,
        }
        if i % 50 == 0 {
            // The thread's word for it comes, and then it is idle again, if the disk is not slow.
            while persisted < LogIndex(i) {
                match events.recv_timeout(Duration::from_secs(20)).unwrap() {
                    WalEvent::Persisted(index) => persisted = persisted.max(index),
                    WalEvent::Failed(e) => panic!("{e}"),
                }
            }
        }
    }
    assert!(now > 0, "the first is short, and nothing waits");
    assert!(later >= 6);
    drop(thread);
    let (_wal, found, recovery) = open(directory.path());
    assert!(found == written && !recovery.torn);
}

/// After an error whoever writes is told of it, and the thread writes no more.
#[test]
fn a_log_that_fails_at_once_says_so() {
    let directory = scratch();
    let (mut wal, ..) = open(&below(&directory));
    take_away(&directory);
    assert!(wal.rotate(&[]).is_err());
    let mut thread = spawn(wal, |_| {});
    let error = thread.append_now(vec![record(1, 1, 1)]).unwrap_err();
    assert!(matches!(error, WalError::Failed), "{error}");
}

/// Where the disk does not keep up, whoever has more than there is room for waits; and all is written in the end.
#[test]
fn what_waits_for_the_disk_is_bounded() {
    const RECORDS: u64 = 100;
    let directory = scratch();
    let (wal, ..) = open(directory.path());
    let (go_on, may_go_on) = mpsc::channel();
    let tell = move |event| {
        if matches!(event, WalEvent::Persisted(LogIndex(1))) {
            may_go_on.recv().unwrap();
        }
    };
    let thread = spawn(wal, tell);
    thread.append(vec![record(1, 1, 1)]);
    let given = Arc::new(AtomicU64::new(0));
    let counted = given.clone();
    let giver = std::thread::spawn(move || {
        for index in 2..=RECORDS {
            thread.append(vec![record(index, index, 64 << 10)]);
            counted.store(index, Ordering::Release);
        }
        thread
    });
    // Until it has not gone on for a while.
    let mut before = u64::MAX;
    while before != given.load(Ordering::Acquire) {
        before = given.load(Ordering::Acquire);
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!((16..20).contains(&before), "{before}");
    go_on.send(()).unwrap();
    drop(giver.join().unwrap());
    let (_, found, _) = open(directory.path());
    assert_eq!(found.len() as u64, RECORDS);
}

/// A panic of the log's thread is told, so that nobody waits for it. What comes after it is neither written nor said to be, and the log can be opened
/// again.
#[test]
fn a_panic_of_the_thread_is_told() {
    let directory = scratch();
    let (wal, ..) = open(directory.path());
    let (sender, events) = mpsc::channel();
    let (dying, died) = mpsc::channel();
    let tell = move |event| {
        assert!(
            !matches!(event, WalEvent::Persisted(LogIndex(2))),
            "as asked"
        );
        sender.send(event).unwrap();
    };
    let died_too = move |panicked| dying.send(panicked).unwrap();
    let mut thread = WalThread::spawn(wal, tell, died_too).unwrap();
    thread.append(vec![record(1, 1, 1)]);
    let patience = Duration::from_secs(20);
    let told = events.recv_timeout(patience).unwrap();
    assert!(matches!(told, WalEvent::Persisted(LogIndex(1))), "{told:?}");
    thread.append(vec![record(2, 2, 1)]);
    let panicked = died.recv_timeout(patience).unwrap();
    assert_eq!((&*panicked.thread, &*panicked.words), ("log", "as asked"));
    thread.append(vec![record(3, 3, 1)]);
    let now = thread.append_now(vec![record(4, 4, 1)]).unwrap();
    assert_eq!(now, None);
    assert!(events.recv_timeout(patience).is_err(), "no more is said");
    drop(thread);
    let (_, found, _) = open(directory.path());
    assert_eq!(found, [record(1, 1, 1), record(2, 2, 1)]);
}
