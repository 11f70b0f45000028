//! What a replica finds on its disk when it starts, and what it does about damage.
//!
//! A damaged state is set aside and comes from the others again, while the replica votes on. A damaged log is another matter:
//! without it the replica does not know what it has told the others. It is set aside as well, and the new log begins with
//! [`Record::Recovering`], which is on disk before anything is said: until the group has gone on beyond all that may have been
//! said, the replica is silent (`quorate_agreement::recovery`). A group of one has no others: there, damage is the end.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quorate_agreement::Record;
use quorate_execution::Service;
use quorate_net::disk;
use quorate_replica::{Restored, genesis};
use quorate_store::{Blobs, Former, Hold, Options as StoreOptions, Store, StoreError};
use quorate_wire::{LogIndex, Seq};

use super::aside::{self, FORMER_LOG, if_there};
use super::{DaemonError, core_thread, former, packed};
use crate::wal::{self, Reached, Wal, WalError};

pub(super) const LOG: &str = "log";
pub(super) const REACHED: &str = "log.reached";
pub(super) const STATE: &str = "state.redb";
pub(super) const BLOBS: &str = "blobs";
/// Its presence says that the state is damaged, as a replica has found while it ran.
pub(super) const DAMAGED: &str = "state.damaged";

/// What is known of a directory before anything in it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Past {
    /// The replica has never said anything.
    None,
    /// It has, and there is a log.
    Logged,
    /// It has, and there is no log.
    Lost,
    /// It has, and what is there is not to be believed.
    Distrusted,
    /// It has, and goes on with what was not believed for a while.
    TakenBack,
}

/// What a replica goes on with.
pub(super) struct Found {
    pub store: Store,
    pub wal: Wal,
    pub restored: Restored,
    /// A store that is not believed and may be looked into.
    pub former: Option<Former>,
    /// Keeps the segments that what was set aside refers to, where there is any.
    pub hold: Option<Hold>,
    /// Whether it recovers, and could go back to the log that it had.
    pub former_log: bool,
}

/// Reads back what the disk holds. `alone`: there are no other replicas that could help.
pub(super) fn restore<S: Service + Clone>(
    data: &Path,
    past: Past,
    alone: bool,
    options: StoreOptions,
    service: S,
) -> Result<Found, DaemonError> {
    let blobs = open_blobs(data)?;
    if past == Past::Distrusted {
        distrust(data)?;
    }
    // Also for a state that can't be opened now, say since there are no descriptors left, and for the log: the replica may go back to both.
    let is_set_aside = former::is_there(data) || data.join(FORMER_LOG).exists();
    let mut hold = is_set_aside.then(|| blobs.hold());
    let mut former = former::open(data, &blobs);
    let mut store = open_store(data, &blobs, alone, options, service.clone())?;
    let mut log = open_log(data, &blobs, past, alone)?;
    let recovering = log
        .records
        .iter()
        .any(|r| matches!(r, Record::Recovering(_)));
    if recovering && !store.newest().complete {
        // Half of a state, and no log that says of which.
        drop(store);
        set_state_aside(data)?;
        store = open_store(data, &blobs, alone, options, service)?;
    }
    if !recovering {
        aside::drop_former_log(data)?;
        // Also one that can't be opened: a later recovery would keep it, and remove the present state for it.
        drop(former.take());
        drop(hold.take());
        former::remove(data).map_err(io(data))?;
    }
    let reached = Reached::read(&data.join(REACHED)).map_err(io(data))?;
    log.wal.note_in(reached);
    let position = store.newest();
    blobs.forget(position.seq);
    tracing::info!(
        seq = position.seq.0,
        records = log.records.len(),
        "restored from disk"
    );
    let restored = Restored {
        seq: position.seq,
        complete: position.complete,
        root: position.root,
        snapshot: position.snapshot,
        records: log.records,
        next_index: log.next_index,
        former: former.is_some(),
    };
    let wal = log.wal;
    Ok(Found {
        store,
        wal,
        restored,
        former,
        hold,
        former_log: recovering && data.join(FORMER_LOG).exists(),
    })
}

pub(super) fn open_blobs(data: &Path) -> Result<Arc<Blobs>, DaemonError> {
    Blobs::open(&data.join(BLOBS)).map_err(|e| DaemonError::Io {
        path: e.path,
        source: e.source,
    })
}

/// Sets aside all that the replica has written: the log until it has recovered, the state until it has been compared with the others'.
fn distrust(data: &Path) -> Result<(), DaemonError> {
    tracing::warn!(
        "recovering on purpose: log and state are not believed; each piece of the state is compared with what the others have"
    );
    // The log first: with it, the replica would go on as if nothing had been.
    aside::set_log_aside(data)?;
    former::set_aside(data, &data.join(STATE)).map_err(io(data))?;
    if_there(fs::remove_file(data.join(DAMAGED))).map_err(io(data))?;
    former::drop_cached_pages(data);
    Ok(())
}

/// Notes that the state is damaged, for the next start.
pub(super) fn note_damaged_state(data: &Path, reason: &str) {
    let path = data.join(DAMAGED);
    if let Err(e) = disk::replace(&path, reason.as_bytes(), 0o644) {
        tracing::error!("{} could not be written: {e}", path.display());
    }
}

fn open_store<S: Service>(
    data: &Path,
    blobs: &Arc<Blobs>,
    alone: bool,
    options: StoreOptions,
    service: S,
) -> Result<Store, DaemonError> {
    let path = data.join(STATE);
    if data.join(DAMAGED).exists() && !alone {
        set_state_aside(data)?;
    }
    let mut store = match Store::open(&path, blobs.clone(), options) {
        Err(e) if e.is_damage() && !alone => {
            tracing::error!("{e}");
            set_state_aside(data)?;
            Store::open(&path, blobs.clone(), options)?
        }
        opened => opened.map_err(|e| lost_for_good(alone, e))?,
    };
    if store.is_new() {
        let layer = genesis(service).map_err(|e| DaemonError::Fatal(e.to_string()))?;
        store.checkpoint(Seq(0), &layer, true)?;
    }
    Ok(store)
}

fn lost_for_good(alone: bool, error: StoreError) -> DaemonError {
    match alone && error.is_damage() {
        true => DaemonError::Alone(error.to_string()),
        false => error.into(),
    }
}

/// Removes a damaged state: what is right in it can't be told from the rest without the others, and they have all of it.
fn set_state_aside(data: &Path) -> Result<(), DaemonError> {
    tracing::warn!("the damaged state is removed, and fetched from the other replicas");
    for name in [STATE, DAMAGED] {
        let path = data.join(name);
        if_there(fs::remove_file(&path)).map_err(io(&path))?;
        disk::sync_directory_of(&path).map_err(io(data))?;
    }
    Ok(())
}

pub(super) struct Log {
    wal: Wal,
    records: Vec<Record>,
    next_index: LogIndex,
}

fn open_log(data: &Path, blobs: &Arc<Blobs>, past: Past, alone: bool) -> Result<Log, DaemonError> {
    let error = match past {
        Past::Distrusted => return begin_log(data, blobs),
        Past::Lost => WalError::Gone(data.join(LOG)),
        _ => match read_log(data, blobs, past)? {
            Ok(log) => return Ok(log),
            Err(error) => error,
        },
    };
    if alone {
        return Err(DaemonError::Alone(error.to_string()));
    }
    tracing::error!("{error}");
    tracing::warn!(
        "without its log the replica does not know what it has told the others: it is silent until the group has gone on \
         beyond all that it may have said; `quorate status` shows how far that is"
    );
    aside::forget_log(data)?;
    begin_log(data, blobs)
}

/// The log, or what damage there is.
fn read_log(
    data: &Path,
    blobs: &Arc<Blobs>,
    past: Past,
) -> Result<Result<Log, WalError>, DaemonError> {
    let directory = data.join(LOG);
    let (wal, found, recovery) = match Wal::open(&directory, blobs.clone()) {
        Err(e) if e.is_damage() => return Ok(Err(e)),
        opened => opened?,
    };
    if recovery.torn {
        tracing::info!("the log ended in an unfinished write, which was cut off");
    }
    let reached = Reached::read(&data.join(REACHED)).map_err(io(data))?;
    if let Err(e) = check_order(&directory, &found, reached.index()) {
        return Ok(Err(e));
    }
    let mut records = Vec::with_capacity(found.len());
    let mut next_index = LogIndex(0);
    for found in found {
        next_index = LogIndex(found.index.0 + 1);
        let record = packed::unpack(found);
        records.push(record.map_err(|_| DaemonError::UnknownRecord(directory.clone()))?);
    }
    let is_begun = |r: &Record| matches!(r, Record::Stable(_) | Record::Recovering(_));
    let has_run = matches!(past, Past::Logged | Past::TakenBack);
    if has_run && !records.iter().any(is_begun) {
        return Ok(Err(WalError::Gone(directory)));
    }
    Ok(Ok(Log {
        wal,
        records,
        next_index,
    }))
}

/// Records are numbered without gaps; the head of a segment has the number of the record before it.
fn check_order(
    directory: &Path,
    records: &[wal::Record],
    reached: Option<LogIndex>,
) -> Result<(), WalError> {
    let pairs = records.iter().zip(records.iter().skip(1));
    for (before, after) in pairs {
        let repeats = after.seq == Seq(0) && after.index == before.index;
        if !repeats && after.index.0 != before.index.0.wrapping_add(1) {
            return Err(WalError::Disordered {
                directory: directory.to_owned(),
                after: before.index.0,
                found: after.index.0,
            });
        }
    }
    let last = records.last().map_or(0, |record| record.index.0);
    match reached {
        Some(reached) if reached.0 > last => Err(WalError::Forgotten {
            directory: directory.to_owned(),
            last,
            reached: reached.0,
        }),
        _ => Ok(()),
    }
}

/// Begins a log that says that the one before is lost.
pub(super) fn begin_log(data: &Path, blobs: &Arc<Blobs>) -> Result<Log, DaemonError> {
    let (mut wal, ..) = Wal::open(&data.join(LOG), blobs.clone())?;
    let index = LogIndex(0);
    let record = Record::Recovering(core_thread::wall());
    wal.append(&[packed::pack(index, &record)])?;
    wal.sync()?;
    Ok(Log {
        wal,
        records: vec![record],
        next_index: LogIndex(1),
    })
}

pub(super) fn io(path: &Path) -> impl Fn(std::io::Error) -> DaemonError + use<> {
    let path: PathBuf = path.to_owned();
    move |source| DaemonError::Io {
        path: path.clone(),
        source,
    }
}

#[cfg(test)]
mod astray;

#[cfg(test)]
mod tests {
    use super::super::aside::OLD_LOG;
    use super::*;
    use bytes::Bytes;

    fn record(index: u64, seq: u64) -> wal::Record {
        wal::Record::new(LogIndex(index), Seq(seq), Bytes::from_static(b"record"))
    }

    /// Records that went astray, and a log that ends too early.
    #[test]
    fn records_out_of_order_are_damage() {
        let check = |all: &[wal::Record], reached| {
            check_order(Path::new("log"), all, Option::map(reached, LogIndex))
        };
        let whole = [record(5, 1), record(6, 0), record(6, 0), record(7, 2)];
        check(&whole, None).unwrap();
        check(&whole, Some(7)).unwrap();
        check(&[], Some(0)).unwrap();
        let forgotten = check(&whole, Some(8)).unwrap_err();
        assert!(forgotten.is_damage() && forgotten.to_string().contains('8'));
        assert!(check(&[], Some(1)).is_err());
        for wrong in [
            [record(5, 1), record(7, 2)],
            [record(5, 1), record(5, 2)],
            [record(5, 1), record(4, 2)],
        ] {
            assert!(matches!(
                check(&wrong, None),
                Err(WalError::Disordered { .. })
            ));
        }
    }

    /// A log that is set aside leaves a new one with one record; that one is read again as what it is.
    #[test]
    fn a_lost_log_is_remembered_as_lost() {
        let place = tempfile::tempdir().unwrap();
        let data = place.path();
        let blobs = || Blobs::open(&data.join("blobs")).unwrap();
        drop(open_log(data, &blobs(), Past::None, false).unwrap());
        // It has run, and has no record.
        for past in [Past::Logged, Past::Logged, Past::Lost] {
            let log = open_log(data, &blobs(), past, false).unwrap();
            assert!(matches!(log.records[..], [Record::Recovering(_)]));
            assert_eq!(log.next_index, LogIndex(1));
        }
        assert!(data.join(OLD_LOG).exists());
        let alone = open_log(data, &blobs(), Past::Lost, true);
        assert!(matches!(alone, Err(DaemonError::Alone(_))));
    }
}
