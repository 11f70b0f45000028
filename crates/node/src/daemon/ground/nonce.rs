//! Which directory a replica has. A disk that is not mounted leaves another one under its name: a replica that has recovered in that one must not go on
//! with the log of the first when the disk is back. So a random number lies in the directory, and its supervisor notes it in one of its own. It has
//! another one with each recovery, so that a copy from before the last one is found out as well.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use quorate_net::{disk, hex};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use super::super::directory::MARK;
use super::{Place, is_directory, take_away};

/// Its file in a replica's directory. Other users' processes may have a hand in there, so what is read may be anything.
const NAME: &str = "ground";

type Nonce = [u8; 32];

/// What a supervisor's note says of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing: there is no note.
    Unnoted,
    /// It is the one that was noted.
    Same,
    /// It is not, as far as can be told.
    Another,
}

/// Compares a replica's directory with the supervisor's note, the file `note`.
///
/// # Errors
/// Where it can't be told for the moment, since the system has no descriptors or memory left: nothing is to be concluded from that.
pub fn look(data: &Path, note: &Path) -> io::Result<Found> {
    match std::fs::symlink_metadata(note) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Found::Unnoted),
        _ => {}
    }
    let number = |path: &Path| match read(path) {
        Err(e) if is_of_the_moment(&e) => Err(e),
        read => Ok(read.ok()),
    };
    let (noted, there) = (number(note)?, number(&data.join(NAME))?);
    Ok(match noted.is_some() && noted == there {
        true => Found::Same,
        false => Found::Another,
    })
}

fn is_of_the_moment(error: &io::Error) -> bool {
    let passing = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::INTR];
    let passing = passing.map(|errno| Some(errno.raw_os_error()));
    passing.contains(&error.raw_os_error())
}

/// Whether a replica was made in this directory, or has run there.
pub fn is_made(data: &Path) -> bool {
    std::fs::symlink_metadata(data.join(MARK)).is_ok()
}

/// Gives a directory, which is made if need be, another number, and notes it.
///
/// # Errors
/// Those of the disks, and of the system's random numbers. A directory that was the one noted is that still, as far as the disks allow.
pub fn renew(data: &Path, note: &Path) -> io::Result<()> {
    let before = match look(data, note)? {
        Found::Same => read(note).ok(),
        Found::Unnoted | Found::Another => None,
    };
    let mut nonce = Nonce::default();
    getrandom::fill(&mut nonce).map_err(|e| io::Error::other(e.to_string()))?;
    disk::make_private_directory(data)?;
    let there = data.join(NAME);
    let top = Place::open(data, true)?;
    if is_directory(&top, NAME.as_ref()).unwrap_or(false) {
        take_away(&top, NAME.as_ref())?;
    }
    // As long as the second of the two is not written the directory is another one: then the replica recovers once more.
    write(&there, &nonce)?;
    write(note, &nonce).inspect_err(|_| {
        let _ = before.map(|before| write(&there, &before));
    })
}

fn write(path: &Path, nonce: &Nonce) -> io::Result<()> {
    let text = format!("{}\n", hex::encode(nonce));
    disk::replace(path, text.as_bytes(), 0o600)
}

/// Waits for nothing that somebody has put there in its place.
fn read(path: &Path) -> io::Result<Nonce> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::from(open(path, flags, Mode::empty())?);
    let none = || io::Error::from(ErrorKind::InvalidData);
    if !file.metadata()?.is_file() {
        return Err(none());
    }
    let mut text = String::new();
    // One byte more than it has: what is longer is another thing.
    file.take(66).read_to_string(&mut text)?;
    text.strip_suffix('\n')
        .and_then(hex::decode32)
        .ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    fn places() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let place = tempfile::tempdir().unwrap();
        let (data, note) = (place.path().join("replica-2"), place.path().join("note"));
        (place, data, note)
    }

    /// A directory that comes back after the replica has recovered in another one is told from that, and so is a copy of before.
    #[test]
    fn a_directory_that_comes_back_is_another() {
        let (place, data, note) = places();
        let away = place.path().join("away");
        assert_eq!(look(&data, &note).unwrap(), Found::Unnoted);
        renew(&data, &note).unwrap();
        assert_eq!(look(&data, &note).unwrap(), Found::Same);
        fs::rename(&data, &away).unwrap();
        assert_eq!(look(&data, &note).unwrap(), Found::Another);
        renew(&data, &note).unwrap();
        assert_eq!(look(&data, &note).unwrap(), Found::Same);
        assert_eq!(look(&away, &note).unwrap(), Found::Another);
        let copy = fs::read(data.join(NAME)).unwrap();
        renew(&data, &note).unwrap();
        fs::write(data.join(NAME), copy).unwrap();
        assert_eq!(look(&data, &note).unwrap(), Found::Another);
    }

    /// Who can't open a file for the moment does not take the directory for another one: its replica would lose its log.
    #[test]
    fn a_moment_without_descriptors_tells_nothing() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
            assert!(is_of_the_moment(&errno.into()), "{errno}");
        }
        for errno in [Errno::NOENT, Errno::LOOP, Errno::ACCESS, Errno::IO] {
            assert!(!is_of_the_moment(&errno.into()), "{errno}");
        }
    }

    /// Whatever stands in the place of the number, or of the note, is none, is not waited for, and gives way.
    #[test]
    fn what_is_no_number_is_none() {
        let (place, data, note) = places();
        renew(&data, &note).unwrap();
        let own = data.join(NAME);
        let number = fs::read(&own).unwrap();
        let elsewhere = place.path().join("elsewhere");
        fs::write(&elsewhere, &number).unwrap();
        let pipe = || {
            let kind = rustix::fs::FileType::Fifo;
            let made = rustix::fs::mknodat(rustix::fs::CWD, &own, kind, Mode::RUSR, 0);
            made.unwrap();
        };
        let longer = [&number[..], b"\n"].concat();
        let ways: [&dyn Fn(); 5] = [
            &pipe,
            &|| fs::create_dir_all(own.join("directory")).unwrap(),
            &|| std::os::unix::fs::symlink(&elsewhere, &own).unwrap(),
            &|| fs::write(&own, &longer).unwrap(),
            &|| fs::write(&own, &number[..64]).unwrap(),
        ];
        for put in ways {
            fs::remove_file(&own).unwrap();
            put();
            assert_eq!(look(&data, &note).unwrap(), Found::Another);
            renew(&data, &note).unwrap();
            assert_eq!(look(&data, &note).unwrap(), Found::Same);
        }
        assert_eq!(fs::read(&elsewhere).unwrap(), number);
        fs::write(&note, b"").unwrap();
        assert_eq!(look(&data, &note).unwrap(), Found::Another);
    }

    /// Where the note can't be written a directory that was known stays so, and one that was not is no more known than before.
    #[test]
    fn a_note_that_cant_be_written_changes_nothing() {
        let (place, data, _) = places();
        let shelf = place.path().join("shelf");
        fs::create_dir(&shelf).unwrap();
        let note = shelf.join("note");
        renew(&data, &note).unwrap();
        let (away, noted) = (place.path().join("away"), fs::read(&note).unwrap());
        fs::rename(&shelf, &away).unwrap();
        assert!(renew(&data, &note).is_err());
        assert_eq!(look(&data, &away.join("note")).unwrap(), Found::Another);
        fs::rename(&away, &shelf).unwrap();
        fs::write(data.join(NAME), &noted).unwrap();
        // A directory that is not empty can't be replaced by the file that is to be the note.
        let half = shelf.join(format!("note.{}.new", std::process::id()));
        fs::create_dir_all(half.join("in the way")).unwrap();
        assert!(renew(&data, &note).is_err());
        assert_eq!(look(&data, &note).unwrap(), Found::Same);
    }
}
