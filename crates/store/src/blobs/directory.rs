//! Where segments are: files in a directory.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::blocks::Disk;

/// A directory of segments, or in tests one that forgets.
pub(crate) trait Directory: fmt::Debug + Send + Sync + 'static {
    /// The segments and how long they are.
    fn list(&self) -> io::Result<BTreeMap<u64, u64>>;
    /// Makes a segment; its name is durable when this returns.
    fn create(&self, number: u64) -> io::Result<Arc<dyn Disk>>;
    fn open(&self, number: u64) -> io::Result<Arc<dyn Disk>>;
    fn remove(&self, number: u64) -> io::Result<()>;
}

/// Makes a directory, and its name durable.
pub(super) fn make_directory(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        Err(e) => return Err(e),
    }
    match path.parent() {
        Some(parent) if parent != Path::new("") => File::open(parent)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

pub(super) fn name(number: u64) -> String {
    format!("{number:016}.blob")
}

/// Segments as files of a directory.
#[derive(Debug)]
pub(super) struct OnDisk(pub PathBuf);

impl Directory for OnDisk {
    fn list(&self) -> io::Result<BTreeMap<u64, u64>> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            let number = entry.file_name();
            let number = number.to_str().and_then(|n| n.strip_suffix(".blob"));
            let number = number.filter(|n| n.len() == 16 && n.bytes().all(|b| b.is_ascii_digit()));
            if let Some(number) = number.and_then(|n| n.parse().ok()) {
                found.insert(number, entry.metadata()?.len());
            }
        }
        Ok(found)
    }

    fn create(&self, number: u64) -> io::Result<Arc<dyn Disk>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        let file = options.open(self.0.join(name(number)))?;
        File::open(&self.0)?.sync_all()?;
        Ok(Arc::new(file))
    }

    fn open(&self, number: u64) -> io::Result<Arc<dyn Disk>> {
        Ok(Arc::new(File::open(self.0.join(name(number)))?))
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        fs::remove_file(self.0.join(name(number)))
    }
}
