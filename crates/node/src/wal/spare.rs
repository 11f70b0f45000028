//! The next segment, made ready by a thread of its own while the current one fills: a new file of zeros, or one that was a
//! segment, with zeros over what was written to it.

use std::any::Any;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use quorate_net::threads::Panicked;
use rustix::fs::{FallocateFlags, fallocate};

/// Its name until it is a segment, and that of the thread.
const NAME: &str = "spare";
/// The name of a discarded segment that will be cleaned and become the spare one.
const WAITING: &str = "waiting";
/// How much is zeroed between two looks at the stop sign.
const STEP_BYTES: u64 = 1 << 20;
const PAGE_BYTES: u64 = 4096;

/// A file of zeros that is being prepared. None, after it was taken.
#[derive(Debug, Default)]
pub(super) struct Spare(Option<Preparing>);

#[derive(Debug)]
struct Preparing {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    /// It may be that there was no more thread to be had.
    thread: io::Result<JoinHandle<io::Result<File>>>,
}

impl Spare {
    /// Starts to prepare a file of `bytes` zeros in `directory`.
    pub fn prepare(directory: &Path, bytes: u64) -> Spare {
        let path = directory.join(NAME);
        Spare::spawn(path.clone(), move |stop| fill(&path, bytes, stop))
    }

    /// As [`Spare::prepare`], with the file that [`keep`] has kept and that has content up to `used`. That its old name is
    /// gone must be durable.
    pub fn recycle(directory: &Path, bytes: u64, used: u64) -> Spare {
        let path = directory.join(NAME);
        // Here, and not on the thread: the next segment that is kept takes the name as soon as this returns.
        let renamed = fs::rename(directory.join(WAITING), &path);
        Spare::spawn(path.clone(), move |stop| {
            renamed?;
            clean(&path, bytes, used, stop)
        })
    }

    fn spawn(
        path: PathBuf,
        work: impl FnOnce(&AtomicBool) -> io::Result<File> + Send + 'static,
    ) -> Spare {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let stop = stop.clone();
            let builder = std::thread::Builder::new().name(NAME.into());
            builder.spawn(move || work(&stop))
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
        let died =
            |panic: Box<dyn Any + Send>| io::Error::other(Panicked::new(NAME, &*panic).to_string());
        let file = preparing.thread?.join().map_err(died)??;
        fs::rename(&preparing.path, name)?;
        Ok(file)
    }
}

impl Drop for Spare {
    /// Leaves no thread behind that still writes to the directory.
    fn drop(&mut self) {
        if let Some(preparing) = self.0.take() {
            preparing.stop.store(true, Ordering::Relaxed);
            if let Ok(thread) = preparing.thread {
                let _ = thread.join();
            }
        }
    }
}

/// Keeps the file of a discarded segment for later. The caller syncs the directory.
pub(super) fn keep(segment: &Path, directory: &Path) -> io::Result<()> {
    fs::rename(segment, directory.join(WAITING))
}

/// Removes what was kept: how much of it is not zero is no longer known.
pub(super) fn forget_waiting(directory: &Path) -> io::Result<()> {
    match fs::remove_file(directory.join(WAITING)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
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

/// Writes zeros over the bytes from `start` to `end`, a page at a time: the kernel keeps what is written together in one
/// piece, and would have the whole of it to look through, and count it as written, for each short record that comes later.
pub(super) fn zero(file: &File, start: u64, end: u64) -> io::Result<()> {
    let zeros = [0; PAGE_BYTES as usize];
    let mut at = start;
    while at < end {
        let next = end.min(at - at % PAGE_BYTES + PAGE_BYTES);
        file.write_all_at(&zeros[..(next - at) as usize], at)?;
        at = next;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever wants a segment whose preparation has panicked is told that, and not that the disk has failed.
    #[test]
    fn a_panic_is_told() {
        let place = tempfile::tempdir().unwrap();
        let spare = Spare::spawn(place.path().join(NAME), |_| panic!("as asked"));
        let told = spare.take(&place.path().join("1")).unwrap_err().to_string();
        assert!(
            told.contains("\"spare\"") && told.contains("as asked"),
            "{told}"
        );
    }
}
