//! How far the log has come, noted in a file of its own. A log that ends before that has lost what was safe once: a disk that
//! said so too early, a file that was cut, an older copy that was put back. What it lost after the last note is not told by this.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use quorate_net::disk;
use quorate_wire::LogIndex;

/// It is noted anew after so many records, when the log is cut, and at a clean end: seldom, since it costs two syncs.
const EVERY: u64 = 4096;
const BYTES: usize = 8 + 4;

/// The note.
#[derive(Debug)]
pub struct Reached {
    path: PathBuf,
    index: Option<LogIndex>,
}

impl Reached {
    /// Reads the note at `path`. One that is not there or is damaged proves nothing.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn read(path: &Path) -> io::Result<Reached> {
        let index = match std::fs::read(path) {
            Ok(bytes) => parse(&bytes),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        };
        let path = path.to_owned();
        Ok(Reached { path, index })
    }

    /// The last record that was durable when this was written.
    pub fn index(&self) -> Option<LogIndex> {
        self.index
    }

    /// Forgets it: a new log begins.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn clear(&mut self) -> io::Result<()> {
        self.index = None;
        match std::fs::remove_file(&self.path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
            _ => disk::sync_directory_of(&self.path),
        }
    }

    /// All records up to `index` are durable.
    pub(super) fn note(&mut self, index: LogIndex, now: bool) -> io::Result<()> {
        let passed = index
            .0
            .saturating_sub(self.index.map_or(0, |index| index.0));
        if passed == 0 || (passed < EVERY && !now) {
            return Ok(());
        }
        let mut bytes = index.0.to_le_bytes().to_vec();
        bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
        disk::replace(&self.path, &bytes, 0o644)?;
        self.index = Some(index);
        Ok(())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

pub(crate) fn parse(bytes: &[u8]) -> Option<LogIndex> {
    let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
    let (index, sum) = bytes.split_at(8);
    let index = <[u8; 8]>::try_from(index).ok()?;
    let right = crc32fast::hash(&index).to_le_bytes() == sum;
    right.then_some(LogIndex(u64::from_le_bytes(index)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was noted is read again; a note that has changed says nothing.
    #[test]
    fn a_note_is_believed_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("reached");
        let mut note = Reached::read(&path).unwrap();
        assert_eq!(note.index(), None);
        note.note(LogIndex(10), false).unwrap();
        assert_eq!(Reached::read(&path).unwrap().index(), None, "too soon");
        note.note(LogIndex(EVERY + 10), false).unwrap();
        note.note(LogIndex(EVERY + 11), true).unwrap();
        let index = Some(LogIndex(EVERY + 11));
        assert_eq!(Reached::read(&path).unwrap().index(), index);
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 4;
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(Reached::read(&path).unwrap().index(), None);
            std::fs::write(&path, &whole[..at]).unwrap();
            assert_eq!(Reached::read(&path).unwrap().index(), None);
        }
        note.clear().unwrap();
        assert!(!path.exists());
    }
}
