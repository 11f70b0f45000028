//! What replicas say, in files: of a bounded length, and read with care.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A file that takes more room is begun anew.
const LONG_BYTES: u64 = 10 << 20;
/// What is kept of it.
const KEPT_BYTES: u64 = 1 << 20;

/// Appends to what was said before.
pub fn open(path: &Path) -> io::Result<File> {
    // A replica whose directory is gone is to say so itself.
    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    OpenOptions::new().create(true).append(true).open(path)
}

/// Empties a file that has grown long, also while somebody writes to it: whoever does so can't fill the disk for longer than until the next
/// look. The last that was said is then in a file beside it.
pub fn shorten(path: &Path) -> io::Result<()> {
    let about = match std::fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        about => about?,
    };
    // Room can be taken beyond a file's end as well.
    if about.len().max(about.blocks() * 512) <= LONG_BYTES {
        return Ok(());
    }
    // The disk may be full of what is to go.
    let _ = last_bytes(path, KEPT_BYTES)
        .and_then(|last| std::fs::write(path.with_extension("log.1"), last));
    OpenOptions::new().write(true).open(path)?.set_len(0)
}

/// The last line of what was said. It was written by who may have been taken over: little of it is read, and it moves no cursor.
pub fn last_words(path: &Path) -> String {
    const LAST_BYTES: u64 = 4096;
    let last = last_bytes(path, LAST_BYTES).unwrap_or_default();
    let last = String::from_utf8_lossy(&last);
    let line = last.lines().last().unwrap_or("it said nothing");
    line.chars().filter(|c| !c.is_control()).collect()
}

fn last_bytes(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let from = file.metadata()?.len().saturating_sub(most);
    file.seek(SeekFrom::Start(from))?;
    let mut last = Vec::new();
    file.take(most).read_to_end(&mut last)?;
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Of a log that was made as long as can be, little is read; and what would move the terminal's cursor is left out.
    #[test]
    fn last_words_are_few() {
        let directory = tempfile::tempdir().expect("a directory");
        let log = directory.path().join("log");
        let file = File::create(&log).expect("a log");
        file.set_len(1 << 40).expect("a hole");
        assert!(last_words(&log).len() <= 4096);
        std::fs::write(&log, "before\nthe \x1b[2Jend\n").expect("a log");
        assert_eq!(last_words(&log), "the [2Jend");
    }

    /// A process that says too much goes on at the begin of the file; what it said last is beside it.
    #[test]
    fn a_long_log_is_emptied_while_it_is_written() {
        let directory = tempfile::tempdir().expect("a directory");
        let log = directory.path().join("messages.log");
        shorten(&log).expect("there is none");
        let mut process = open(&log).expect("a log");
        process.write_all(b"a line\n").expect("it is written");
        shorten(&log).expect("it is short");
        assert_eq!(last_words(&log), "a line");
        process
            .write_all(&vec![b'x'; LONG_BYTES as usize])
            .expect("it is written");
        shorten(&log).expect("it is long");
        process.write_all(b"another\n").expect("it is written");
        assert_eq!(std::fs::read(&log).expect("a log"), b"another\n");
        let kept = std::fs::read(directory.path().join("messages.log.1")).expect("a file");
        assert_eq!(kept.len() as u64, KEPT_BYTES);
    }
}
