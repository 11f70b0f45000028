//! Logs that are set aside: one that is damaged, to be looked at; that of a replica that recovers, until it has.
//!
//! What goes with the log is moved in an order in which a crash between two steps leads to what could have been before or after all of them.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

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
    if !data.join(FORMER_LOG).exists() {
        return Ok(());
    }
    forget(data, FORMER_LOG, FORMER_REACHED).map_err(io(data))?;
    if_there(fs::remove_dir_all(data.join(OLD_LOG))).map_err(io(data))
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

        set_log_aside(data).unwrap();
        begin_log(data, &blobs()).unwrap();
        drop_former_log(data).unwrap();
        assert!(!take_back(data).unwrap() && !data.join(FORMER_REACHED).exists());
        assert!(!data.join(OLD_LOG).exists(), "it may fill the disk");
        // The next one sets aside the log that it has then.
        fs::remove_dir_all(data.join(LOG)).unwrap();
        make_log(9);
        set_log_aside(data).unwrap();
        assert!(take_back(data).unwrap());
        assert_eq!(last(), (LogIndex(9), true));
    }
}
