//! Disks that give back other bytes than they were given.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::schedule::Rotten;

/// What a mark of the log begins with. Whatever stands before the last one was safe on the disk (docs/design.md).
const MARK: &[u8] = b"quorate log mark";
/// The longest end that a log loses, of one segment.
const END_BYTES: usize = 64 << 10;

/// Changes some of what a replica, which does not run, has written in its directory: see [`crate::schedule::Fault::Rot`]. Whether
/// there was anything.
///
/// # Errors
/// Those of the file system.
pub fn damage(data: &Path, what: Rotten, at_per_mille: u64, every: u64) -> Result<bool> {
    let (directory, ending, every) = match what {
        Rotten::Log | Rotten::LogEnd => (data.join("log"), ".wal", 0),
        Rotten::State => (data.to_owned(), "state.redb", every),
        Rotten::Blobs => (data.join("blobs"), "", every),
    };
    for path in newest_first(&directory, ending)? {
        let reading = || format!("can't read {}", path.display());
        let bytes = fs::read(&path).with_context(reading)?;
        // A segment that is kept ready has no mark.
        let mark = last_mark(&bytes);
        let length = match what {
            Rotten::Log => mark.unwrap_or(0),
            Rotten::LogEnd => mark.map_or(0, |_| used(&bytes)),
            Rotten::State | Rotten::Blobs => bytes.len(),
        };
        if length == 0 {
            continue;
        }
        let of = |length: usize| length * at_per_mille as usize / 1000;
        let (first, step) = match what {
            Rotten::LogEnd => (length - of(END_BYTES.min(length)), 1),
            _ if every == 0 => (of(length), length),
            _ => (of(length), every as usize),
        };
        let file = File::options().write(true).open(&path)?;
        let writing = || format!("can't write {}", path.display());
        if what == Rotten::LogEnd {
            // As before it was used.
            let zeros = vec![0; length - first];
            file.write_all_at(&zeros, first as u64)
                .with_context(writing)?;
            return Ok(true);
        }
        for at in (first..length).step_by(step) {
            file.write_all_at(&[bytes[at] ^ 0x20], at as u64)
                .with_context(writing)?;
        }
        return Ok(true);
    }
    Ok(false)
}

/// The files with such names, those with the highest numbers first.
fn newest_first(directory: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.is_file() && path.to_string_lossy().ends_with(ending) {
            paths.push(path);
        }
    }
    paths.sort_unstable();
    paths.reverse();
    Ok(paths)
}

fn last_mark(bytes: &[u8]) -> Option<usize> {
    let used = &bytes[..used(bytes)];
    used.windows(MARK.len()).rposition(|window| window == MARK)
}

fn used(bytes: &[u8]) -> usize {
    let last = bytes.iter().rposition(|byte| *byte != 0);
    last.map_or(0, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a log one byte is changed, before the last mark of the newest segment that was used; of other files as many as is said.
    #[test]
    fn bytes_are_changed() {
        let place = tempfile::tempdir().expect("a directory");
        let data = place.path();
        assert!(!damage(data, Rotten::Log, 0, 0).expect("nothing is there"));
        fs::create_dir(data.join("log")).expect("a directory");
        let segment = |number: u8| data.join(format!("log/{number}.wal"));
        let mut log = [[1; 100].as_slice(), MARK, &[1; 50], MARK, &[1; 80]].concat();
        log.resize(1000, 0);
        fs::write(segment(1), &log).expect("a segment");
        fs::write(segment(2), &log).expect("a segment");
        fs::write(segment(3), [0; 1000]).expect("a segment");
        fs::write(data.join("state.redb"), [0; 1000]).expect("a state");
        let changed = |path: PathBuf, old: &[u8]| {
            let new = fs::read(path).expect("a file");
            let differs = |at: &usize| new[*at] != old[*at];
            (0..old.len()).filter(differs).collect::<Vec<_>>()
        };
        assert!(damage(data, Rotten::Log, 999, 7).expect("it is written"));
        let last = changed(segment(2), &log);
        assert!(last.len() == 1 && (160..166).contains(&last[0]), "{last:?}");
        assert!(changed(segment(1), &log).is_empty());
        assert!(changed(segment(3), &[0; 1000]).is_empty());
        assert!(damage(data, Rotten::LogEnd, 900, 0).expect("it is written"));
        let left = fs::read(segment(2)).expect("a segment");
        assert_eq!((used(&left), used(&log)), (27, 262));
        assert!(damage(data, Rotten::State, 500, 100).expect("it is written"));
        let many = changed(data.join("state.redb"), &[0; 1000]);
        assert_eq!(many, [500, 600, 700, 800, 900]);
    }
}
