//! A disk that can be filled: a small file system in memory, mounted where a replica keeps its log and state.

use std::ffi::CString;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// How much a disk holds. Memory is used for what is written alone.
const MEGABYTES: u64 = 600;
/// The file that takes the room away.
const BALLAST: &str = "ballast";

/// A mounted disk. Unmounted when it is dropped.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts an empty one over a directory.
    ///
    /// # Errors
    /// Those of mount(2); only root may.
    pub fn mount(at: &Path) -> Result<SmallDisk> {
        let size = CString::new(format!("size={MEGABYTES}m"))?;
        let mounted = mount("chaos", at, "tmpfs", MountFlags::empty(), size.as_c_str());
        mounted.with_context(|| format!("can't mount a small disk at {}", at.display()))?;
        Ok(SmallDisk(at.into()))
    }

    /// Whether this user may.
    pub fn is_possible() -> bool {
        let place = tempfile::tempdir();
        place.is_ok_and(|place| SmallDisk::mount(place.path()).is_ok())
    }

    /// Takes the room away, but for so many bytes.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn fill(&self, left: u64) -> Result<()> {
        let ballast = File::create(self.0.join(BALLAST))?;
        let room = statvfs(&self.0)?;
        let free = (room.f_bavail * room.f_frsize).saturating_sub(left);
        if free > 0 {
            // What the replica writes meanwhile may have taken some of it; then the disk is full already.
            match fallocate(&ballast, FallocateFlags::empty(), 0, free) {
                Ok(()) | Err(rustix::io::Errno::NOSPC) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Gives the room back.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn clear(&self) -> Result<()> {
        match std::fs::remove_file(self.0.join(BALLAST)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e.into()),
            _ => Ok(()),
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // What still uses it is about to end.
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full disk takes nothing, and with room again it does.
    #[test]
    fn a_disk_is_filled_and_cleared() {
        if !SmallDisk::is_possible() {
            let why = "this user may not mount";
            assert!(std::env::var_os("CI").is_none(), "{why}");
            eprintln!("skipped: {why}");
            return;
        }
        let place = tempfile::tempdir().expect("a directory");
        let disk = SmallDisk::mount(place.path()).expect("a disk");
        let file = place.path().join("file");
        disk.fill(64 << 10).expect("it is filled");
        std::fs::write(&file, [1; 32 << 10]).expect("that much is left");
        assert!(std::fs::write(&file, vec![2; 1 << 20]).is_err());
        disk.clear().expect("it is cleared");
        std::fs::write(&file, vec![3; 1 << 20]).expect("there is room");
    }
}
