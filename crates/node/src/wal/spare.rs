//! The next segment, made ready by a thread of its own while the current one fills.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::fs::{FallocateFlags, fallocate};

/// How much is zeroed between two looks at the stop sign.
const STEP_BYTES: u64 = 1 << 20;

/// A file of zeros that is being prepared. None, after it was taken.
#[derive(Debug, Default)]
pub(super) struct Spare(Option<Preparing>);

#[derive(Debug)]
struct Preparing {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<File>>,
}

impl Spare {
    /// Starts to prepare a file of `bytes` zeros in `directory`.
    pub fn prepare(directory: &Path, bytes: u64) -> Spare {
        let path = directory.join("spare");
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (path, stop) = (path.clone(), stop.clone());
            std::thread::spawn(move || fill(&path, bytes, &stop))
        };
        Spare(Some(Preparing { path, stop, thread }))
    }

    /// Waits until the file is ready and gives it its name. The caller syncs the directory.
    pub fn take(mut self, name: &Path) -> io::Result<File> {
        let missing = || io::Error::other("no spare segment");
        let preparing = self.0.take().ok_or_else(missing)?;
        let file = preparing.thread.join().map_err(|_| missing())??;
        fs::rename(&preparing.path, name)?;
        Ok(file)
    }
}

impl Drop for Spare {
    /// Leaves no thread behind that still writes to the directory.
    fn drop(&mut self) {
        if let Some(preparing) = self.0.take() {
            preparing.stop.store(true, Ordering::Relaxed);
            let _ = preparing.thread.join();
        }
    }
}

fn fill(path: &Path, bytes: u64, stop: &AtomicBool) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?;
    // Not all file systems can reserve; the zeros take the room in any case.
    let reserved = fallocate(&file, FallocateFlags::empty(), 0, bytes);
    if let Err(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) = reserved {
        return Err(io::ErrorKind::StorageFull.into());
    }
    // Written out, and not only reserved: else the first write to each block would change the file's map, and each
    // sync would wait for that as well.
    let mut at = 0;
    while at < bytes && !stop.load(Ordering::Relaxed) {
        let next = bytes.min(at + STEP_BYTES);
        zero(&file, at, next)?;
        at = next;
    }
    file.sync_all()?;
    Ok(file)
}

/// Writes zeros over the bytes from `start` to `end`.
pub(super) fn zero(file: &File, start: u64, end: u64) -> io::Result<()> {
    let zeros = vec![0; (end.saturating_sub(start)).min(STEP_BYTES) as usize];
    let mut at = start;
    while at < end {
        let step = (end - at).min(STEP_BYTES) as usize;
        file.write_all_at(&zeros[..step], at)?;
        at += step as u64;
    }
    Ok(())
}
