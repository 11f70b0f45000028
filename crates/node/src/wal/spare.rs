//! The next segment, made ready by a thread of its own while the current one fills: a new file of zeros, or one that was a
//! segment, with zeros over what was written to it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::fs::{FallocateFlags, fallocate};

/// Its name until it is a segment.
const NAME: &str = "spare";
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
        let path = directory.join(NAME);
        Spare::spawn(path.clone(), move |stop| fill(&path, bytes, stop))
    }

    /// As [`Spare::prepare`], with the file that [`take_back`] has renamed and that has content up to `used`. That it has
    /// its new name is durable.
    pub fn recycle(directory: &Path, bytes: u64, used: u64) -> Spare {
        let path = directory.join(NAME);
        Spare::spawn(path.clone(), move |stop| clean(&path, bytes, used, stop))
    }

    fn spawn(
        path: PathBuf,
        work: impl FnOnce(&AtomicBool) -> io::Result<File> + Send + 'static,
    ) -> Spare {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let stop = stop.clone();
            std::thread::spawn(move || work(&stop))
        };
        Spare(Some(Preparing { path, stop, thread }))
    }

    /// Whether there is none, and none is being prepared.
    pub fn is_none(&self) -> bool {
        self.0.is_none()
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

/// Gives a segment that is no longer needed the name of a spare one. The caller syncs the directory.
pub(super) fn take_back(segment: &Path, directory: &Path) -> io::Result<()> {
    fs::rename(segment, directory.join(NAME))
}

fn clean(path: &Path, bytes: u64, used: u64, stop: &AtomicBool) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut at = 0;
    while at < used && !stop.load(Ordering::Relaxed) {
        let next = used.min(at + STEP_BYTES);
        zero(&file, at, next)?;
        at = next;
    }
    // Longer where a record was longer than a segment; shorter never, unless it was changed from outside.
    let length = file.metadata()?.len();
    file.set_len(length.max(bytes))?;
    file.sync_all()?;
    Ok(file)
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
