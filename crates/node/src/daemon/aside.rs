//! Logs that are set aside: one that is damaged, to be looked at; that of a replica that recovers, until it has.
//!
//! What goes with the log is moved in an order in which a crash between two steps leads to what could have been before or after all of them.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use quorate_net::disk;

use super::restore::{LOG, REACHED, STATE, io, open_blobs};
use super::{DaemonError, former};
use crate::wal::Reached;

/// What was a log, for those who want to know what has happened to it; one at most.
pub(super) const OLD_LOG: &str = "log.damaged";
/// A log that was set aside since the replica recovers, and what was noted of it: as long as it has not recovered it can go back to it.
pub(super) const FORMER_LOG: &str = "log.former";
pub(super) const FORMER_REACHED: &str = "log.former.reached";

/// Sets the log aside for good, and what was noted of it.
pub(super) fn forget_log(data: &Path) -> Result<(), DaemonError> {
    forget(data, LOG, REACHED).map_err(io(&data.join(LOG)))
}

/// The replica has recovered, and must never go back to the log that it had. It is removed: an intruder may have made it as long as the disk bears. But in one
/// step it is no log any more: half of one could be taken for all of it.
pub(super) fn drop_former_log(data: &Path) -> Result<(), DaemonError> {
    let clear_note = || {
        let mut reached = Reached::read(&data.join(FORMER_REACHED)).map_err(io(data))?;
        reached.clear().map_err(io(data))
    };
    if !data.join(FORMER_LOG).exists() {
        // A crash may have left it, and it would be taken for that of the next log that is set aside.
        return match data.join(FORMER_REACHED).exists() {
            true => clear_note(),
            false => Ok(()),
        };
    }
    let mut gone = Vec::new();
    for log in [FORMER_LOG, OLD_LOG] {
        gone.extend(move_away(data, log).map_err(io(data))?);
    }
    disk::sync_directory_of(&data.join(FORMER_LOG)).map_err(io(data))?;
    clear_note()?;
    let remove = move || {
        for log in &gone {
            if let Err(e) = if_there(fs::remove_dir_all(log)) {
                tracing::warn!("{} stays: {e}", log.display());
            }
        }
    };
    // The thread that orders goes on meanwhile: it may be much.
    let thread = std::thread::Builder::new().name("former-log".into());
    thread.spawn(remove).map(drop).map_err(io(data))
}

/// Gives a log a free name that says that it is half of something: what has such a name goes before the replica recovers, if it is still there.
fn move_away(data: &Path, log: &str) -> io::Result<Option<PathBuf>> {
    if !data.join(log).exists() {
        return Ok(None);
    }
    let names = (0..).map(|number: u64| data.join(format!("{log}.{number}.new")));
    let free = names
        .into_iter()
        .find(|name| fs::symlink_metadata(name).is_err());
    let free = free.expect("one of the next is");
    fs::rename(data.join(log), &free)?;
    Ok(Some(free))
}

fn forget(data: &Path, log: &str, reached: &str) -> io::Result<()> {
    let (log, old) = (data.join(log), data.join(OLD_LOG));
    if log.exists() {
        if_there(fs::remove_dir_all(&old))?;
        fs::rename(&log, &old)?;
    }
    disk::sync_directory_of(&log)?;
    Reached::read(&data.join(reached))?.clear()
}

/// Sets the log aside for as long as the replica recovers. One that was set aside before is older, and what came after it says no more
/// than that the replica recovers: it would have been dropped else.
pub(super) fn set_log_aside(data: &Path) -> Result<(), DaemonError> {
    if data.join(FORMER_LOG).exists() {
        return forget_log(data);
    }
    // The note first: alone it proves nothing, and a log without it can't be told from one that ends too early.
    rename(data, REACHED, FORMER_REACHED)?;
    rename(data, LOG, FORMER_LOG)
}

/// Goes back to the log that was set aside, if there is one, and to the state; whether there was. The log that is there in its place says no
/// more than that the replica recovers, and goes last: until then it may recover once more.
pub(super) fn take_back(data: &Path) -> Result<bool, DaemonError> {
    if !data.join(FORMER_LOG).exists() {
        return Ok(false);
    }
    let blobs = open_blobs(data)?;
    former::take_back(data, &data.join(STATE), &blobs)?;
    if_there(fs::remove_dir_all(data.join(LOG))).map_err(io(data))?;
    // That of the log that was there in its place: the former one may have none, and would be taken for one that ends too early.
    if_there(fs::remove_file(data.join(REACHED))).map_err(io(data))?;
    rename(data, FORMER_LOG, LOG)?;
    rename(data, FORMER_REACHED, REACHED)?;
    Ok(true)
}

/// Renames a file or a directory, if it is there.
fn rename(data: &Path, from: &str, to: &str) -> Result<(), DaemonError> {
    let (from, to) = (data.join(from), data.join(to));
    if_there(fs::rename(&from, &to)).map_err(io(&from))?;
    disk::sync_directory_of(&to).map_err(io(data))
}

/// What was done to something, if it was there.
pub(super) fn if_there(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::restore::begin_log;
    use super::*;
    use crate::wal::{self, Wal};
    use bytes::Bytes;
    use quorate_store::Blobs;
    use quorate_wire::{LogIndex, Seq};

    fn record(index: u64) -> wal::Record {
        wal::Record::new(LogIndex(index), Seq(index), Bytes::from_static(b"record"))
    }

    /// A log is set aside once, however often the recovery begins anew; it comes back as it was, and not after the replica has.
    #[test]
    fn a_log_comes_back_until_the_replica_has() {
        let place = tempfile::tempdir().unwrap();
        let data = place.path();
        let blobs = || Blobs::open(&data.join("blobs")).unwrap();
        let make_log = |index| {
            let (mut wal, ..) = Wal::open(&data.join(LOG), blobs()).unwrap();
            wal.append(&[record(index)]).unwrap();
            wal.sync().unwrap();
            fs::write(data.join(REACHED), format!("{index}")).unwrap();
        };
        let last = || {
            let (_, found, _) = Wal::open(&data.join(LOG), blobs()).unwrap();
            (found.last().unwrap().index, data.join(REACHED).exists())
        };
        assert!(!take_back(data).unwrap());
        make_log(7);
        for _ in 0..3 {
            set_log_aside(data).unwrap();
            assert!(!data.join(LOG).exists() && !data.join(REACHED).exists());
            begin_log(data, &blobs()).unwrap();
        }
        assert!(take_back(data).unwrap());
        assert_eq!(last(), (LogIndex(7), true));
        assert!(!take_back(data).unwrap());

        // One that has no note gets none of the log that was there in its place.
        fs::remove_file(data.join(REACHED)).unwrap();
        set_log_aside(data).unwrap();
        begin_log(data, &blobs()).unwrap();
        fs::write(data.join(REACHED), "100").unwrap();
        assert!(take_back(data).unwrap());
        assert_eq!(last(), (LogIndex(7), false));
        // Nor that of one that is gone, where a crash has left it.
        fs::write(data.join(FORMER_REACHED), "100").unwrap();
        drop_former_log(data).unwrap();
        assert!(!data.join(FORMER_REACHED).exists());
        fs::write(data.join(REACHED), "7").unwrap();

        set_log_aside(data).unwrap();
        begin_log(data, &blobs()).unwrap();
        drop_former_log(data).unwrap();
        assert!(!take_back(data).unwrap() && !data.join(FORMER_REACHED).exists());
        assert!(!data.join(FORMER_LOG).exists());
        let left = || {
            let names = fs::read_dir(data)
                .unwrap()
                .map(|entry| entry.unwrap().file_name());
            names
                .filter(|name| name.to_string_lossy().starts_with("log."))
                .count()
        };
        while left() > 0 {
            // Another thread does it: it may be what fills the disk.
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        // The next one sets aside the log that it has then.
        fs::remove_dir_all(data.join(LOG)).unwrap();
        make_log(9);
        set_log_aside(data).unwrap();
        assert!(take_back(data).unwrap());
        assert_eq!(last(), (LogIndex(9), true));
    }
}
