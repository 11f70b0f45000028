//! Files that are there whole or not at all, whatever happens while they are written; and directories that are one user's alone.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Writes a file under a name that may be taken: readers see the old content or the new, never a mixture.
///
/// # Errors
/// Those of the file system; the old file is then still there.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let temporary = write_beside(path, content, mode)?;
    fs::rename(&temporary, path).inspect_err(|_| drop(fs::remove_file(&temporary)))?;
    sync_directory_of(path)
}

/// Writes a file under a name that must be free.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] if the name is taken, or those of the file system.
pub fn create(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let temporary = write_beside(path, content, mode)?;
    // A hard link fails where a rename would replace what somebody else put there meanwhile.
    let linked = fs::hard_link(&temporary, path);
    fs::remove_file(&temporary)?;
    linked?;
    sync_directory_of(path)
}

/// Makes the names in the directory of `path` outlive a power cut.
///
/// # Errors
/// Those of the file system.
pub fn sync_directory_of(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

/// Makes a directory that is this process's user's alone, where there is none; what is missing above it is made as usual.
///
/// # Errors
/// Those of the file system.
pub fn make_private_directory(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made,
    }
}

/// Shuts a directory of this process's user to all others; whether it was open to some. Another user's stays as it is.
///
/// # Errors
/// Those of the file system.
pub fn shut_directory(path: &Path) -> io::Result<bool> {
    let about = fs::metadata(path)?;
    let is_own = about.uid() == rustix::process::geteuid().as_raw();
    let is_open = is_own && about.mode() & 0o077 != 0;
    if is_open {
        let mode = about.mode() & 0o7700;
        fs::set_permissions(path, Permissions::from_mode(mode))?;
    }
    Ok(is_open)
}

fn write_beside(path: &Path, content: &[u8], mode: u32) -> io::Result<PathBuf> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.new", std::process::id()));
    let temporary = path.with_file_name(name);
    let write = || {
        // A leftover of a process that was killed here and had the same number.
        let _ = fs::remove_file(&temporary);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&temporary)?;
        file.write_all(content)?;
        file.sync_all()
    };
    write().inspect_err(|_| drop(fs::remove_file(&temporary)))?;
    Ok(temporary)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `replace` replaces, `create` does not, and neither leaves anything else behind.
    #[test]
    fn create_never_replaces() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        create(&path, b"one", 0o600).unwrap();
        let error = create(&path, b"two", 0o600).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"one");
        replace(&path, b"three", 0o600).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"three");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    /// What is above may be for others as well; one that is there stays as it is until it is shut.
    #[test]
    fn a_private_directory_is_its_users_alone() {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        let place = tempfile::tempdir().unwrap();
        let (above, own) = (place.path().join("above"), place.path().join("above/own"));
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        make_private_directory(&own).unwrap();
        assert_eq!((mode(&above), mode(&own)), (0o755, 0o700));
        assert!(!shut_directory(&own).unwrap());
        make_private_directory(&above).unwrap();
        assert_eq!(mode(&above), 0o755);
        assert!(shut_directory(&above).unwrap());
        assert_eq!(mode(&above), 0o700);
        fs::write(own.join("file"), b"").unwrap();
        let error = make_private_directory(&own.join("file")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    }
}
