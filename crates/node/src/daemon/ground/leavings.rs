//! What a user has in a directory in which others have something too.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::{Place, rise};

/// What became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// So many entries are gone.
    pub gone: usize,
    /// So many stay, with what is another user's below them or is another file system, and what leads there.
    pub stay: usize,
}

/// Takes away all in a directory that is this user's, however deep. What another user has stays, wherever it is, and so does what is mounted. Where there
/// is no such directory there is nothing to do.
///
/// # Errors
/// The first one of the disk, when all else was tried; and where the user is root, who has more than its processes have left.
pub fn take_away_of(directory: &Path, uid: u32) -> io::Result<Taken> {
    if uid == 0 {
        return Err(ErrorKind::InvalidInput.into());
    }
    let place = match Place::open(directory, true) {
        Err(e) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&e.kind()) => {
            return Ok(Taken::default());
        }
        opened => opened?,
    };
    let (mut taken, mut failed) = (Taken::default(), None);
    for entry in place.entries()? {
        match take_away(&place, &entry?.file_name(), uid) {
            Ok(Some(true)) => taken.gone += 1,
            Ok(Some(false)) => taken.stay += 1,
            // Others clear there as well.
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Ok(None) => {}
            Err(e) => drop(failed.get_or_insert(e)),
        }
    }
    failed.map_or(Ok(taken), Err)
}

/// Opens what stands under a name if it is this user's, and of the same file system: what is mounted there may be anybody's.
fn own(place: &Place, name: &OsStr, uid: u32) -> io::Result<Option<Place>> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let here = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    let it = match openat2(&place.0, name, flags, Mode::empty(), here) {
        Err(Errno::XDEV) => return Ok(None),
        it => Place(it?.into()),
    };
    use std::os::unix::fs::MetadataExt;
    Ok((it.metadata()?.uid() == uid).then_some(it))
}

/// Whether it is gone; `None` where it is not this user's. As [`super::take_away`], only the user's own comes up and goes: before anybody looks whose it
/// is, the directory above it is shut to all others, so that nobody exchanges it. (In the first one that is for its sticky bit to see to.)
fn take_away(place: &Place, name: &OsStr, uid: u32) -> io::Result<Option<bool>> {
    let path = place.join(name);
    let Some(tree) = own(place, name, uid)? else {
        return Ok(None);
    };
    if !tree.metadata()?.is_dir() {
        return fs::remove_file(&path).map(|()| Some(true));
    }
    tree.allow(0o700)?;
    let mut risen = 0;
    loop {
        let before = risen;
        for entry in tree.entries()? {
            let name = entry?.file_name();
            let Some(inner) = own(&tree, &name, uid)? else {
                continue;
            };
            if !inner.metadata()?.is_dir() {
                fs::remove_file(tree.join(&name))?;
                continue;
            }
            inner.allow(0o700)?;
            for below in inner.entries()? {
                let below = below?.file_name();
                match own(&inner, &below, uid)? {
                    Some(it) if it.metadata()?.is_dir() => rise(&inner, &below, &tree, &mut risen)?,
                    Some(_) => fs::remove_file(inner.join(&below))?,
                    None => {}
                }
            }
            remove_empty(&tree.join(&name))?;
        }
        // What came up in this pass may be met in the next one only. Where nothing did, what is left is not this user's.
        if remove_empty(&path)? {
            return Ok(Some(true));
        }
        if risen == before {
            return Ok(Some(false));
        }
    }
}

fn remove_empty(path: &Path) -> io::Result<bool> {
    match fs::remove_dir(path) {
        Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => Ok(false),
        removed => removed.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};

    const THEIRS: u32 = 61_246;

    /// A test can't have what it needs: it is skipped, with a word, and fails where continuous integration runs.
    fn left_out(why: &str) {
        assert!(std::env::var_os("CI").is_none(), "{why}");
        println!("skipped: {why}");
    }

    /// Only what is the user's goes: not what others have below it, however deep, nor what its links lead to, nor what is mounted there.
    #[test]
    fn what_others_have_stays() {
        if !rustix::process::geteuid().is_root() {
            return left_out("only root can give a file to another user");
        }
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let theirs = |name: &str| lchown(at(name), Some(THEIRS), Some(THEIRS)).unwrap();
        fs::create_dir_all(at("tree/a/b/c")).unwrap();
        fs::create_dir_all(at("mixed/a/b/of-another/own")).unwrap();
        fs::create_dir_all(at("of-another")).unwrap();
        for file in [
            "file",
            "kept",
            "tree/a/b/c/file",
            "mixed/file",
            "mixed/a/b/file",
            "mixed/a/kept",
            "mixed/a/b/of-another/kept",
            "mixed/a/b/of-another/own/kept",
            "of-another/own",
        ] {
            fs::write(at(file), "").unwrap();
        }
        symlink(at("of-another"), at("link")).unwrap();
        symlink(at("of-another"), at("tree/a/link")).unwrap();
        for own in [
            "file",
            "link",
            "tree",
            "tree/a",
            "tree/a/b",
            "tree/a/b/c",
            "tree/a/b/c/file",
            "tree/a/link",
            "mixed",
            "mixed/file",
            "mixed/a",
            "mixed/a/b",
            "mixed/a/b/file",
            "mixed/a/b/of-another/own",
            "of-another/own",
        ] {
            theirs(own);
        }
        fs::set_permissions(at("tree/a/b"), fs::Permissions::from_mode(0o0)).unwrap();
        let taken = take_away_of(place.path(), THEIRS).unwrap();
        assert_eq!(taken, Taken { gone: 3, stay: 1 });
        for gone in ["file", "link", "tree", "mixed/file"] {
            assert!(fs::symlink_metadata(at(gone)).is_err(), "{gone}");
        }
        assert!(at("kept").exists() && at("of-another/own").exists());
        let mut left = Vec::new();
        let mut open = vec![at("mixed")];
        while let Some(directory) = open.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let entry = entry.unwrap();
                let about = entry.metadata().unwrap();
                left.push((
                    entry.file_name().into_string().unwrap(),
                    about.uid() == THEIRS,
                ));
                if about.is_dir() {
                    open.push(entry.path());
                }
            }
        }
        let of_others = left.iter().filter(|(_, is_theirs)| !is_theirs);
        assert_eq!(of_others.count(), 4, "{left:?}");
        assert!(!left.iter().any(|(name, _)| name == "file"), "{left:?}");
        let again = take_away_of(place.path(), THEIRS).unwrap();
        assert_eq!(again, Taken { gone: 0, stay: 1 });
    }

    #[test]
    fn what_is_mounted_stays() {
        use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        for directory in ["own", "own/bound", "top", "disk"] {
            fs::create_dir(at(directory)).unwrap();
        }
        fs::write(at("disk/file"), "").unwrap();
        for own in ["own", "own/bound", "top", "disk/file", "disk"] {
            let given = lchown(at(own), Some(THEIRS), Some(THEIRS));
            if given.is_err() {
                return left_out("only root can give a file to another user");
            }
        }
        if mount_bind(at("disk"), at("own/bound")).is_err() {
            return left_out("this user may not mount");
        }
        mount("none", at("top"), "tmpfs", MountFlags::empty(), None).unwrap();
        fs::write(at("top/file"), "").unwrap();
        for own in ["top/file", "top"] {
            lchown(at(own), Some(THEIRS), Some(THEIRS)).unwrap();
        }
        lchown(at("disk"), Some(0), Some(0)).unwrap();
        let taken = take_away_of(place.path(), THEIRS);
        let kept = at("disk/file").exists() && at("top/file").exists();
        for mounted in ["own/bound", "top"] {
            unmount(at(mounted), UnmountFlags::DETACH).unwrap();
        }
        assert_eq!(taken.unwrap(), Taken { gone: 0, stay: 1 });
        assert!(kept);
    }

    #[test]
    fn nothing_of_root_goes() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("file"), "").unwrap();
        assert!(take_away_of(place.path(), 0).is_err());
        assert!(place.path().join("file").exists());
        let none = take_away_of(&place.path().join("none"), THEIRS).unwrap();
        assert_eq!(none, Taken::default());
    }
}
