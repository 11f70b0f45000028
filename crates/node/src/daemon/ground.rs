//! The ground on which a replica recovers: what may lie in its directory when it starts to. Whoever had the replica may have left things there
//! that keep it from starting, each time: a directory under a file's name, a pipe, what nobody may open, a file that fills the memory that
//! reads it, a tree too deep to be taken away, a full disk. Or such as outlive the recovery: a link by which values come to lie elsewhere.
//!
//! So what stays is listed, by name and kind. It stays where it is its owner's, with plain permissions; all else is taken away.
//! A supervisor does this with its own rights, when all processes of the replica's user have ended; the replica does it too, with its own.
//! Everything is reached by an open directory and names in it, and no link is followed but root's: so nobody who still has a hand in there
//! leads a supervisor elsewhere. Nothing is given another owner.

mod leavings;
pub mod nonce;

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, DirEntry, File, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use quorate_wire::Quorum;
use rustix::fs::{Mode, OFlags, open};

use super::evidence::Allowance;
use super::{aside, directory, epoch, evidence, former, restore};

pub use leavings::{Taken, take_away_of};

/// The replica's key, where it is in its directory.
const KEY: &str = "key";
/// What is read whole is no longer than this, in bytes.
const NOTE_BYTES: u64 = 1 << 16;

/// How much of what a replica has written is kept when it starts to recover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// All that it could use.
    All,
    /// All but the state: a start with it has failed.
    NoState,
    /// All but the log: the directory is not the one that the replica had last, and what it has told since is not in there.
    NoLog,
    /// Nothing but its key: without the state a start has failed as well.
    Nothing,
}

/// A user and its group, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// The user's group.
    pub gid: u32,
}

/// What stands under a name.
#[derive(Clone, Copy)]
enum Kind {
    /// A file that is read whole.
    Note,
    File,
    /// A directory of files with such names.
    Directory(fn(&str) -> bool),
    /// The directory of proofs against others.
    Proofs,
}

fn is_of_log(name: &str) -> bool {
    name.ends_with(".wal")
}

/// Segments are numbered, in sixteen digits. One with a number so high that soon there would be none left is somebody's who knew that.
fn is_segment(name: &str) -> bool {
    let number = name.strip_suffix(".blob").unwrap_or_default();
    number.len() == 16 && number.starts_with('0') && number.bytes().all(|b| b.is_ascii_digit())
}

const KNOWN: [(&str, Kind); 15] = [
    (directory::MARK, Kind::Note),
    (KEY, Kind::Note),
    (epoch::SEEN, Kind::Note),
    (restore::REACHED, Kind::Note),
    (aside::FORMER_REACHED, Kind::Note),
    (restore::DAMAGED, Kind::Note),
    (restore::STATE, Kind::File),
    ("state.redb.lock", Kind::Note),
    (former::FILES[0], Kind::File),
    (former::FILES[1], Kind::Note),
    (restore::LOG, Kind::Directory(is_of_log)),
    (aside::FORMER_LOG, Kind::Directory(is_of_log)),
    (aside::OLD_LOG, Kind::Directory(is_of_log)),
    (restore::BLOBS, Kind::Directory(is_segment)),
    (evidence::DIRECTORY, Kind::Proofs),
];

impl Keep {
    fn keeps(self, name: &str) -> bool {
        let state = [restore::STATE, former::FILES[0]];
        let log = [
            restore::LOG,
            restore::REACHED,
            aside::FORMER_LOG,
            aside::FORMER_REACHED,
        ];
        match self {
            Keep::All => true,
            Keep::NoState => !state.contains(&name),
            Keep::NoLog => !log.contains(&name),
            Keep::Nothing => name == KEY,
        }
    }

    /// The same without a log, to which the replica could go back.
    pub fn without_log(self) -> Keep {
        match self {
            Keep::All | Keep::NoLog => Keep::NoLog,
            Keep::NoState | Keep::Nothing => Keep::Nothing,
        }
    }
}

/// Makes a replica's directory, if it is there, ready for a start as one that recovers. `owner` is the replica's user where that is not this process's: then
/// the directory is made if it is not there and is that user's alone, and what this user has under other names is taken away as well.
///
/// # Errors
/// If something can be neither used nor taken away.
pub fn clear(data: &Path, owner: Option<Owner>, keep: Keep) -> io::Result<()> {
    if let Some(Owner { uid, gid }) = owner {
        match DirBuilder::new().mode(0o700).create(data) {
            Ok(()) => chown(data, Some(uid), Some(gid))?,
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    let top = match Place::open(data, true) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    top.allow(match owner {
        Some(_) => 0o700,
        None => top.metadata()?.mode() | 0o700,
    })?;
    let ground = Ground {
        uid: owner.map_or_else(|| rustix::process::geteuid().as_raw(), |owner| owner.uid),
        is_its_alone: owner.is_some(),
        keep,
    };
    for entry in top.entries()? {
        let name = entry?.file_name();
        let judged = ground.judge(&top, &name);
        judged.map_err(|e| {
            io::Error::new(e.kind(), format!("{}: {e}", data.join(&name).display()))
        })?;
    }
    Ok(())
}

struct Ground {
    uid: u32,
    is_its_alone: bool,
    keep: Keep,
}

impl Ground {
    /// Leaves, mends or takes away what stands in the replica's directory under a name.
    fn judge(&self, top: &Place, name: &OsStr) -> io::Result<()> {
        let text = name.to_string_lossy();
        let known = KNOWN.iter().find(|(known, _)| *known == text);
        if let Some((known, kind)) = known {
            // What was a log is of no use to a replica, and may be what fills the disk.
            let is_old = self.is_its_alone && *known == aside::OLD_LOG;
            return match self.keep.keeps(known) && !is_old {
                true => self.mend(top, name, *kind),
                false => self.drop(top, name),
            };
        }
        // What is to get a known name when it is whole, of a process that was killed.
        let is_half = text.ends_with(".new") && KNOWN.iter().any(|(k, _)| text.starts_with(k));
        let is_its_own = Place::open(&top.join(name), false)?.metadata()?.uid() == self.uid;
        match is_its_own && (is_half || self.is_its_alone) {
            true => take_away(top, name),
            false => Ok(()),
        }
    }

    fn mend(&self, place: &Place, name: &OsStr, kind: Kind) -> io::Result<()> {
        let it = Place::open(&place.join(name), false)?;
        let about = it.metadata()?;
        let is_its_own = about.uid() == self.uid;
        match kind {
            Kind::Note if is_its_own && about.is_file() && about.len() <= NOTE_BYTES => {
                it.allow(0o600)
            }
            Kind::File if is_its_own && about.is_file() => it.allow(0o600),
            Kind::Directory(_) | Kind::Proofs if is_its_own && about.is_dir() => {
                it.allow(0o700)?;
                self.mend_files(&it, kind)
            }
            // Root may have put it on another disk. Nobody else makes a link that is root's; but it may have had another name.
            Kind::Directory(_) | Kind::Proofs if about.is_symlink() && about.uid() == 0 => {
                let there = Place::open(&place.join(name), true)?;
                let about = there.metadata()?;
                match about.is_dir() && about.uid() == self.uid {
                    true => self.mend_files(&there, kind),
                    false => take_away(place, name),
                }
            }
            _ => self.drop(place, name),
        }
    }

    /// Takes away what has a known name. A directory of another user's, to whom the replica's has given that name, gets another one.
    fn drop(&self, place: &Place, name: &OsStr) -> io::Result<()> {
        let about = Place::open(&place.join(name), false)?.metadata()?;
        match about.is_dir() && about.uid() != self.uid {
            true => move_free(place, name, place, "of-another", &mut 0),
            false => take_away(place, name),
        }
    }

    fn mend_files(&self, directory: &Place, kind: Kind) -> io::Result<()> {
        // Which of a group's replicas there are is not known here; of more than it has none is read.
        let mut allowance = Allowance::new(Quorum::MAX_REPLICAS);
        let mut stays = |entry: &DirEntry| -> io::Result<bool> {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            Ok(match kind {
                Kind::Directory(has) => has(&name),
                Kind::Proofs => allowance.admits(&name, &entry.metadata()?),
                Kind::Note | Kind::File => false,
            })
        };
        for entry in directory.entries()? {
            let entry = entry?;
            let name = entry.file_name();
            match stays(&entry)? {
                true => self.mend(directory, &name, Kind::File)?,
                false => take_away(directory, &name)?,
            }
        }
        Ok(())
    }
}

/// An open file, directory or link, of which only its place is used.
struct Place(File);

impl Place {
    fn open(path: &Path, follow: bool) -> io::Result<Place> {
        let flags = match follow {
            true => OFlags::PATH | OFlags::CLOEXEC,
            false => OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        };
        Ok(Place(open(path, flags, Mode::empty())?.into()))
    }

    /// A name for just this one, whatever has become of the one by which it was opened.
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }

    fn join(&self, name: &OsStr) -> PathBuf {
        self.path().join(name)
    }

    fn metadata(&self) -> io::Result<Metadata> {
        self.0.metadata()
    }

    fn entries(&self) -> io::Result<impl Iterator<Item = io::Result<DirEntry>>> {
        fs::read_dir(self.path())
    }

    /// Gives it this mode. Never of a link: it would be what the link leads to.
    fn allow(&self, mode: u32) -> io::Result<()> {
        match self.metadata()?.mode() & 0o7777 == mode & 0o7777 {
            true => Ok(()),
            false => fs::set_permissions(self.path(), Permissions::from_mode(mode & 0o7777)),
        }
    }
}

/// Removes whatever stands under a name, however deep it is: what is below comes up before it goes, so that two directories are open at most.
fn take_away(place: &Place, name: &OsStr) -> io::Result<()> {
    let path = place.join(name);
    if !is_directory(place, name)? {
        return fs::remove_file(&path);
    }
    let tree = Place::open(&path, false)?;
    tree.allow(0o700)?;
    let mut risen = 0;
    loop {
        match fs::remove_dir(&path) {
            Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => {}
            removed => return removed,
        }
        // What comes up in this pass may be met in the next one only.
        for entry in tree.entries()? {
            let name = entry?.file_name();
            if !is_directory(&tree, &name)? {
                fs::remove_file(tree.join(&name))?;
                continue;
            }
            let inner = Place::open(&tree.join(&name), false)?;
            inner.allow(0o700)?;
            for below in inner.entries()? {
                let below = below?.file_name();
                match is_directory(&inner, &below)? {
                    true => rise(&inner, &below, &tree, &mut risen)?,
                    false => fs::remove_file(inner.join(&below))?,
                }
            }
            match fs::remove_dir(tree.join(&name)) {
                Err(e) if e.kind() != ErrorKind::DirectoryNotEmpty => return Err(e),
                _ => {}
            }
        }
    }
}

fn is_directory(place: &Place, name: &OsStr) -> io::Result<bool> {
    Ok(fs::symlink_metadata(place.join(name))?.is_dir())
}

/// Moves a directory up, under a name that is free there.
fn rise(from: &Place, name: &OsStr, tree: &Place, risen: &mut u64) -> io::Result<()> {
    // To be moved it has to be written to: it has another directory above it then.
    Place::open(&from.join(name), false)?.allow(0o700)?;
    move_free(from, name, tree, "risen", risen)
}

/// Gives a directory another name, which is free: this word, and a number above `number`.
fn move_free(
    from: &Place,
    name: &OsStr,
    to: &Place,
    word: &str,
    number: &mut u64,
) -> io::Result<()> {
    loop {
        *number += 1;
        let free = to.join(OsStr::new(&format!("{word}-{number}")));
        match fs::rename(from.join(name), free) {
            Err(e) if is_taken(e.kind()) => {}
            moved => return moved,
        }
    }
}

fn is_taken(kind: ErrorKind) -> bool {
    [ErrorKind::DirectoryNotEmpty, ErrorKind::NotADirectory].contains(&kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn names(place: &Path) -> Vec<String> {
        let entries = fs::read_dir(place).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    fn own() -> Owner {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        Owner { uid, gid }
    }

    /// Files under their names stay and can be opened; what is something else goes, and what is half made; other names are no business of a
    /// replica, but are a supervisor's.
    #[test]
    fn what_is_listed_stays() {
        let place = tempfile::tempdir().unwrap();
        let data = place.path();
        for directory in [
            "log",
            "blobs",
            "evidence",
            "log.damaged",
            "state.redb.new",
            "former.redb",
            "mine",
        ] {
            fs::create_dir(data.join(directory)).unwrap();
        }
        let files = [
            "key",
            "state.redb",
            "epochs.71.new",
            "log.former",
            "notes",
            "log/1.wal",
            "blobs/0000000000000001.blob",
            "blobs/9999999999999999.blob",
            "blobs/words",
            "evidence/2-view-change-1-0.evidence",
            "evidence/2-x.evidence",
            "log/lock",
            "log.damaged/1.wal",
            "former.redb/file",
        ];
        for file in files {
            fs::write(data.join(file), b"content").unwrap();
        }
        fs::create_dir(data.join("log/directory")).unwrap();
        File::create(data.join("log.reached"))
            .unwrap()
            .set_len(1 << 40)
            .unwrap();
        symlink("/dev/null", data.join("group-id")).unwrap();
        for shut in ["state.redb", "blobs/0000000000000001.blob", "blobs", "mine"] {
            fs::set_permissions(data.join(shut), Permissions::from_mode(0o0)).unwrap();
        }
        clear(data, None, Keep::All).unwrap();
        let kept = [
            "blobs",
            "evidence",
            "key",
            "log",
            "log.damaged",
            "mine",
            "notes",
            "state.redb",
        ];
        assert_eq!(names(data), kept);
        assert_eq!(
            names(&data.join("evidence")),
            ["2-view-change-1-0.evidence"]
        );
        assert_eq!(names(&data.join("log")), ["1.wal"]);
        assert_eq!(names(&data.join("blobs")), ["0000000000000001.blob"]);
        assert_eq!(fs::read(data.join("state.redb")).unwrap(), b"content");
        assert_eq!(
            (mode(&data.join("state.redb")), mode(&data.join("blobs"))),
            (0o600, 0o700)
        );
        assert_eq!(mode(&data.join("mine")), 0);

        fs::create_dir(data.join("log.former")).unwrap();
        clear(data, None, Keep::NoLog).unwrap();
        let kept = [
            "blobs",
            "evidence",
            "key",
            "log.damaged",
            "mine",
            "notes",
            "state.redb",
        ];
        assert_eq!(names(data), kept);
        fs::create_dir(data.join("log")).unwrap();
        clear(data, Some(own()), Keep::NoState).unwrap();
        assert_eq!(names(data), ["blobs", "evidence", "key", "log"]);
        assert_eq!(mode(data), 0o700);
        clear(data, Some(own()), Keep::Nothing).unwrap();
        assert_eq!(names(data), ["key"]);
        let new = data.join("new");
        clear(&new, Some(own()), Keep::All).unwrap();
        assert_eq!(mode(&new), 0o700);
    }

    /// A tree that is deeper than a path may be long, and than files may be open at once.
    #[test]
    fn a_deep_tree_goes() {
        const DEPTH: usize = 3_000;
        let place = tempfile::tempdir().unwrap();
        let data = place.path();
        // Made from below: each time what there is goes into a new directory.
        fs::create_dir(data.join("tree")).unwrap();
        for _ in 0..DEPTH {
            fs::create_dir(data.join("above")).unwrap();
            fs::write(data.join("above/risen-1"), b"in the way").unwrap();
            fs::rename(data.join("tree"), data.join("above/tree")).unwrap();
            fs::rename(data.join("above"), data.join("tree")).unwrap();
        }
        fs::rename(data.join("tree"), data.join("state.redb")).unwrap();
        clear(data, None, Keep::All).unwrap();
        assert!(names(data).is_empty());
    }

    /// A link leads elsewhere only where root has made it: else values would come to lie where whoever made the link wants them.
    #[test]
    fn only_roots_links_are_followed() {
        let (place, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (data, link) = (place.path(), place.path().join("blobs"));
        fs::write(elsewhere.path().join("words"), b"").unwrap();
        symlink(elsewhere.path(), &link).unwrap();
        if rustix::process::geteuid().is_root() {
            clear(data, None, Keep::All).unwrap();
            assert_eq!(names(data), ["blobs"]);
            assert!(names(elsewhere.path()).is_empty(), "no segment");
            fs::write(elsewhere.path().join("words"), b"").unwrap();
            // Root's link to what is another's, which has got this name.
            chown(elsewhere.path(), Some(61_235), None).unwrap();
            clear(data, None, Keep::All).unwrap();
            assert!(names(data).is_empty());
            symlink(elsewhere.path(), &link).unwrap();
            fs::create_dir(data.join("state.redb")).unwrap();
            chown(data.join("state.redb"), Some(61_235), None).unwrap();
            std::os::unix::fs::lchown(&link, Some(61_234), None).unwrap();
        }
        clear(data, None, Keep::All).unwrap();
        assert!(fs::symlink_metadata(&link).is_err());
        let another = names(data);
        assert!(
            another.iter().all(|name| name == "of-another-1"),
            "{another:?}"
        );
        assert_eq!(names(elsewhere.path()), ["words"], "it is not gone into");
    }
}
