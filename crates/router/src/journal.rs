//! The coordinator's log in a file.
//!
//! Frames of the same kind as a replica's log (`quorate_wire::frame`). The first says which set of volumes it is of; then intentions and
//! ends. When the file is opened, and when it is long, it is written anew with what is open.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use quorate_nfs::status::Status;
use quorate_nfs::xdr::{Malformed, Read, Reader, Writer};
use quorate_wire::{LogIndex, frame};

use crate::handle::Handle;
use crate::intent::{Intent, Log, Number};
use crate::map::Map;

/// The identity of a set of volumes.
pub type Set = [u8; 16];

/// A longer file is written anew.
const MAX_BYTES: u64 = 4 << 20;

const HEAD: u32 = 0;
const BEGIN: u32 = 1;
const END: u32 = 2;
const MAP: u32 = 3;

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file can't be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// Another process has it.
    #[error("{0}: another router uses this log")]
    InUse(PathBuf),
    /// It is the log of something else.
    #[error("{0}: this is no log of these volumes")]
    Other(PathBuf),
    /// A part of it was changed, and what was written after that part is there.
    #[error(
        "{path}: the log is damaged at byte {at}, and there is more after it: bring back a copy of the file. If there is none, put the file aside and \
         say --new-log: an operation on two servers that was under way may have left a name that leads nowhere"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the first record begins that can't be read.
        at: usize,
    },
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    file: File,
    set: Set,
    epoch: u64,
    /// The number of the next frame.
    index: u64,
    next: u64,
    bytes: u64,
    open: BTreeMap<u64, Intent>,
    map: Option<Map>,
    /// A write that failed leaves nobody knows what, and what a system has not written once it may take for written: nothing comes after it
    /// in the same file. The next record comes with a new one.
    anew: bool,
    /// Held by the process; the file itself is replaced.
    _lock: File,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Journal(Arc<Mutex<Inner>>);

impl Journal {
    /// Opens or makes the log of a set of volumes, and gives what was begun and not ended. All numbers that it gives from now on are
    /// above `above`.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn open(
        path: &Path,
        set: Set,
        above: u64,
    ) -> Result<(Journal, BTreeMap<u64, Intent>), JournalError> {
        let failed = |source| JournalError::Io {
            path: path.into(),
            source,
        };
        let lock = path.with_extension("lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(lock)
            .map_err(failed)?;
        if lock.try_lock().is_err() {
            return Err(JournalError::InUse(path.into()));
        }
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(failed(e)),
        };
        let is_new = bytes.is_empty();
        let Ok(Replayed {
            set: found,
            open,
            next,
            map,
        }) = replay(frames(path, bytes.into())?)
        else {
            return Err(JournalError::Other(path.into()));
        };
        if found != Some(set) && !(found.is_none() && is_new) {
            return Err(JournalError::Other(path.into()));
        }
        let epoch = next.max(above.saturating_add(1));
        let next = epoch.saturating_add(1);
        let inner = Inner {
            path: path.into(),
            epoch,
            file: rewrite(path, &set, next, &open, map.as_ref()).map_err(failed)?,
            set,
            index: open.len() as u64 + 2,
            next,
            bytes: 0,
            open: open.clone(),
            map,
            anew: false,
            _lock: lock,
        };
        Ok((Journal(Arc::new(Mutex::new(inner))), open))
    }

    /// The map that is kept.
    pub fn map(&self) -> Option<Map> {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.map.clone()
    }

    /// The number of this opening, which no other has, and no intention.
    pub fn epoch(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).epoch
    }

    async fn write(&self, record: Record) -> Result<Number, Status> {
        let journal = self.0.clone();
        let written = tokio::task::spawn_blocking(move || {
            let mut inner = journal.lock().unwrap_or_else(PoisonError::into_inner);
            inner.write(record)
        });
        match written.await {
            Ok(Ok(number)) => Ok(number),
            Ok(Err(error)) => {
                tracing::error!(%error, "the log can't be written: what touches two volumes is not done until it can");
                Err(Status::Io)
            }
            Err(_) => Err(Status::ServerFault),
        }
    }
}

/// What is to be written down.
enum Record {
    Begin(Box<Intent>),
    End(Number),
    Keep(Map),
}

/// What does not hold if it can't be written.
enum Undo {
    Begin(u64),
    Keep(Option<Map>),
    /// What has ended has ended; it is told with the next record.
    Nothing,
}

impl Inner {
    fn write(&mut self, record: Record) -> io::Result<Number> {
        let (number, payload, undo) = self.take(record);
        if !self.anew {
            match self.append(&payload) {
                Ok(()) => {
                    if self.bytes > MAX_BYTES
                        && let Err(error) = self.rewrite()
                    {
                        tracing::warn!(%error, "the log can't be written anew");
                    }
                    return Ok(number);
                }
                Err(error) => {
                    tracing::warn!(%error, "a write of the log failed: it is written anew")
                }
            }
        }
        let written = self.rewrite();
        if written.is_err() {
            match undo {
                Undo::Begin(number) => drop(self.open.remove(&number)),
                Undo::Keep(map) => self.map = map,
                Undo::Nothing => {}
            }
        }
        written.map(|()| number)
    }

    fn take(&mut self, record: Record) -> (Number, Vec<u8>, Undo) {
        match record {
            Record::Begin(intent) => {
                let number = self.next;
                self.next += 1;
                let payload = begin(number, &intent);
                self.open.insert(number, *intent);
                (Number(number), payload, Undo::Begin(number))
            }
            Record::End(number) => {
                self.open.remove(&number.0);
                let mut w = Writer::default();
                w.u32(END);
                w.u64(number.0);
                (number, w.out, Undo::Nothing)
            }
            Record::Keep(map) => {
                let payload = map_record(&map);
                let before = self.map.replace(map);
                (Number(self.next), payload, Undo::Keep(before))
            }
        }
    }

    fn append(&mut self, payload: &[u8]) -> io::Result<()> {
        let mut out = Vec::new();
        frame::write(&mut out, LogIndex(self.index), payload);
        self.file.write_all(&out)?;
        self.file.sync_data()?;
        self.index += 1;
        self.bytes += out.len() as u64;
        Ok(())
    }

    /// Puts a file with all that holds in the place of the log.
    fn rewrite(&mut self) -> io::Result<()> {
        // Until it is there, nobody knows which of the two is the log.
        self.anew = true;
        let (open, map) = (&self.open, self.map.as_ref());
        self.file = rewrite(&self.path, &self.set, self.next, open, map)?;
        (self.index, self.bytes) = (self.open.len() as u64 + 2, 0);
        self.anew = false;
        Ok(())
    }
}

/// The map that a log keeps, without opening it; none if there is no such log.
///
/// # Errors
/// [`JournalError`].
pub fn kept_map(path: &Path) -> Result<Option<Map>, JournalError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            let path = path.into();
            return Err(JournalError::Io { path, source });
        }
    };
    match replay(frames(path, bytes.into())?) {
        Ok(replayed) => Ok(replayed.map),
        Err(_) => Err(JournalError::Other(path.into())),
    }
}

/// What is in a file. Its end may be torn: that was told to nobody. But one record is written after another is on the disk, so if there is a whole one
/// after what can't be read, that was whole as well.
fn frames(path: &Path, bytes: Bytes) -> Result<Vec<(LogIndex, Bytes)>, JournalError> {
    let (frames, _) = frame::read(&bytes);
    let lengths = frames.iter().map(|(_, payload)| payload.len());
    let at = lengths.map(|length| frame::HEADER_BYTES + length).sum();
    let last = frames.last().map_or(0, |(index, _)| index.0);
    let is_later = |start: usize| {
        let index = bytes.get(start + 8..start + frame::HEADER_BYTES);
        let index = index.and_then(|index| index.try_into().ok());
        // There can't be more of them than bytes.
        let later = last..=last + bytes.len() as u64;
        index.is_some_and(|index| later.contains(&u64::from_le_bytes(index)))
            && !frame::read(&bytes.slice(start..)).0.is_empty()
    };
    match (at + 1..bytes.len()).any(is_later) {
        true => Err(JournalError::Damaged {
            path: path.into(),
            at,
        }),
        false => Ok(frames),
    }
}

/// Whether there is a log. None was ever left empty.
pub fn is_there(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.len() > 0)
}

/// What a log says: the set, what is open, the number of the next intention, and the map.
struct Replayed {
    set: Option<Set>,
    open: BTreeMap<u64, Intent>,
    next: u64,
    map: Option<Map>,
}

fn replay(frames: Vec<(LogIndex, Bytes)>) -> Read<Replayed> {
    let (mut set, mut open, mut next, mut map) = (None, BTreeMap::new(), 1, None);
    for (_, payload) in frames {
        let r = &mut Reader::new(payload);
        match r.u32()? {
            HEAD => {
                set = Some(r.array()?);
                next = r.u64()?;
            }
            BEGIN => {
                let number = r.u64()?;
                next = next.max(number.saturating_add(1));
                open.insert(number, Intent::read(r.rest().clone())?);
            }
            END => drop(open.remove(&r.u64()?)),
            MAP => map = Some(Map::read(r.rest().clone())?),
            _ => return Err(Malformed::Value("record")),
        }
    }
    Ok(Replayed {
        set,
        open,
        next,
        map,
    })
}

fn begin(number: u64, intent: &Intent) -> Vec<u8> {
    let mut w = Writer::default();
    w.u32(BEGIN);
    w.u64(number);
    w.fixed(&intent.write());
    w.out
}

fn map_record(map: &Map) -> Vec<u8> {
    let mut w = Writer::default();
    w.u32(MAP);
    w.fixed(&map.write());
    w.out
}

/// Puts a file with what is open in the place of the log.
fn rewrite(
    path: &Path,
    set: &Set,
    next: u64,
    open: &BTreeMap<u64, Intent>,
    map: Option<&Map>,
) -> io::Result<File> {
    let mut out = Vec::new();
    let mut head = Writer::default();
    head.u32(HEAD);
    head.fixed(set);
    head.u64(next);
    frame::write(&mut out, LogIndex(0), &head.out);
    for (index, (number, intent)) in open.iter().enumerate() {
        frame::write(
            &mut out,
            LogIndex(index as u64 + 1),
            &begin(*number, intent),
        );
    }
    if let Some(map) = map {
        let index = LogIndex(open.len() as u64 + 1);
        frame::write(&mut out, index, &map_record(map));
    }
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(&out)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(directory)?.sync_all()?;
    Ok(file)
}

impl Log for Journal {
    /// There is no other router: the file is locked.
    type Hold = ();

    fn is_current(&self) -> bool {
        true
    }

    async fn confirm(&self) -> bool {
        true
    }

    async fn hold(&self, _dirs: Vec<Handle>) -> Result<(), Status> {
        Ok(())
    }

    async fn begin(&self, intent: &Intent) -> Result<Number, Status> {
        self.write(Record::Begin(Box::new(intent.clone()))).await
    }

    async fn end(&self, number: Number) -> Result<(), Status> {
        self.write(Record::End(number)).await.map(drop)
    }

    async fn keep(&self, map: &Map) -> Result<(), Status> {
        self.write(Record::Keep(map.clone())).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intent::Name;
    use crate::layout::Bucket;

    fn intent(name: u64) -> Intent {
        let key = Bytes::from_static(b"dir");
        let bucket = Bucket(0);
        Intent::Mkdir {
            at: Name {
                dir: Handle { bucket, key },
                name: name.to_string().into(),
            },
            bucket: Bucket(1),
        }
    }

    /// What was begun and not ended is there again, however the file was cut after it; no number is given twice.
    #[tokio::test]
    async fn what_is_open_comes_back() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("route.log");
        let (log, open) = Journal::open(&path, [1; 16], 0).unwrap();
        assert!(open.is_empty());
        let first = log.begin(&intent(1)).await.unwrap();
        let second = log.begin(&intent(2)).await.unwrap();
        log.end(first).await.unwrap();
        assert!(matches!(
            Journal::open(&path, [1; 16], 0),
            Err(JournalError::InUse(_))
        ));
        drop(log);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&whole[..], &[7; 9]].concat()).unwrap();
        let (log, open) = Journal::open(&path, [1; 16], 0).unwrap();
        assert_eq!(open, BTreeMap::from([(second.0, intent(2))]));
        log.end(second).await.unwrap();
        let epoch = log.epoch();
        drop(log);
        let (log, open) = Journal::open(&path, [1; 16], 0).unwrap();
        assert!(open.is_empty());
        assert!(log.epoch() > epoch && epoch > second.0);
        assert!(log.begin(&intent(3)).await.unwrap() > second);
        drop(log);
        let (log, _) = Journal::open(&path, [1; 16], 1000).unwrap();
        assert!(log.epoch() > 1000);
        drop(log);
        assert!(matches!(
            Journal::open(&path, [2; 16], 0),
            Err(JournalError::Other(_))
        ));
        std::fs::write(&path, b"something else").unwrap();
        assert!(Journal::open(&path, [1; 16], 0).is_err());
    }

    /// From now on the file is on a disk that is full.
    fn fill(log: &Journal) {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        log.0.lock().unwrap().file = full;
    }

    /// A write that fails is made good by a new file, and nobody hears of it.
    #[tokio::test]
    async fn a_file_that_can_not_be_written_is_replaced() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("route.log");
        let (log, _) = Journal::open(&path, [1; 16], 0).unwrap();
        let first = log.begin(&intent(1)).await.unwrap();
        fill(&log);
        let second = log.begin(&intent(2)).await.unwrap();
        log.end(first).await.unwrap();
        let third = log.begin(&intent(3)).await.unwrap();
        fill(&log);
        log.end(second).await.unwrap();
        fill(&log);
        log.keep(&map(7)).await.unwrap();
        drop(log);
        let (log, open) = Journal::open(&path, [1; 16], 0).unwrap();
        assert_eq!(open, BTreeMap::from([(third.0, intent(3))]));
        assert_eq!(log.map(), Some(map(7)));
    }

    fn map(version: u64) -> Map {
        let volumes = (0..2).map(|n| n.to_string()).collect();
        Map {
            version,
            ..Map::first(volumes, 4)
        }
    }

    /// While there is no place for a new file either, nothing is begun; when there is, all goes on, and what was refused is not there.
    #[tokio::test]
    async fn a_full_disk_is_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("route.log");
        let new = path.with_extension("new");
        let (log, _) = Journal::open(&path, [1; 16], 0).unwrap();
        log.keep(&map(1)).await.unwrap();
        let first = log.begin(&intent(1)).await.unwrap();
        fill(&log);
        std::fs::create_dir(&new).unwrap();
        assert_eq!(log.begin(&intent(2)).await, Err(Status::Io));
        assert_eq!(log.keep(&map(2)).await, Err(Status::Io));
        assert_eq!(log.end(first).await, Err(Status::Io));
        assert_eq!(log.begin(&intent(3)).await, Err(Status::Io));
        std::fs::remove_dir(&new).unwrap();
        let fourth = log.begin(&intent(4)).await.unwrap();
        let check = |open| assert_eq!(open, BTreeMap::from([(fourth.0, intent(4))]));
        assert_eq!(log.map(), Some(map(1)));
        drop(log);
        let (log, open) = Journal::open(&path, [1; 16], 0).unwrap();
        check(open);
        assert_eq!(log.map(), Some(map(1)));
        // What is on the disk already is not refused since the file has become long; it is written anew another time.
        std::fs::create_dir(&new).unwrap();
        log.0.lock().unwrap().bytes = MAX_BYTES;
        log.keep(&map(5)).await.unwrap();
        assert_eq!(log.begin(&intent(6)).await, Err(Status::Io));
        std::fs::remove_dir(&new).unwrap();
        log.keep(&map(6)).await.unwrap();
        drop(log);
        let (log, open) = Journal::open(&path, [1; 16], 0).unwrap();
        check(open);
        assert_eq!(log.map(), Some(map(6)));
    }

    /// Damage in the midst of the file is told, and nothing is written over it; a torn end is none, wherever it was cut.
    #[tokio::test]
    async fn damage_in_the_midst_is_told() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("route.log");
        assert!(!is_there(&path));
        let (log, _) = Journal::open(&path, [1; 16], 0).unwrap();
        assert!(is_there(&path));
        let head = std::fs::read(&path).unwrap().len();
        log.begin(&intent(1)).await.unwrap();
        let first = std::fs::read(&path).unwrap().len();
        log.begin(&intent(2)).await.unwrap();
        drop(log);
        let whole = std::fs::read(&path).unwrap();
        for at in 0..first {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x41;
            std::fs::write(&path, &damaged).unwrap();
            let expected = if at < head { 0 } else { head };
            match Journal::open(&path, [1; 16], 0) {
                Err(JournalError::Damaged { at, .. }) => assert_eq!(at, expected),
                other => panic!("{at}: {other:?}"),
            }
            assert!(kept_map(&path).is_err());
            assert_eq!(std::fs::read(&path).unwrap(), damaged);
        }
        // A block that was never written is none either.
        let mut hole = whole.clone();
        hole[head..first].fill(0);
        std::fs::write(&path, &hole).unwrap();
        assert!(Journal::open(&path, [1; 16], 0).is_err());
        for cut in first..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let (_, open) = Journal::open(&path, [1; 16], 0).unwrap();
            assert_eq!(open.len(), 1, "{cut}");
        }
        File::create(&path).unwrap();
        assert!(!is_there(&path));
    }
}
