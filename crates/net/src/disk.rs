//! Files that are there whole or not at all, whatever happens while they are written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
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
}
