//! Writes a file again and again, on a thread of its own: a disk that stands still for a while must not keep a supervisor from giving signs of life.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::Duration;

use quorate_net::disk;

/// How long is waited until a content is on the disk.
const PATIENCE: Duration = Duration::from_secs(2);
/// Contents that may wait.
const WAITING: usize = 16;

type Job = (Vec<u8>, SyncSender<io::Result<()>>);

/// The one that writes it. It goes on after this is dropped until all is written.
#[derive(Debug)]
pub struct Scribe {
    file: PathBuf,
    jobs: SyncSender<Job>,
}

impl Scribe {
    /// Of this file.
    pub fn new(file: PathBuf) -> Scribe {
        let place = file.clone();
        Scribe::with(file, move |text| disk::replace(&place, text, 0o644))
    }

    fn with(file: PathBuf, write: impl Fn(&[u8]) -> io::Result<()> + Send + 'static) -> Scribe {
        let (jobs, waiting) = mpsc::sync_channel::<Job>(WAITING);
        let work = move || {
            for (text, done) in waiting {
                // Who waits for it may have no more patience.
                let _ = done.send(write(&text));
            }
        };
        // Where there is no thread nothing can be handed to it, and that is told then.
        let _ = thread::Builder::new().name("scribe".into()).spawn(work);
        Scribe { file, jobs }
    }

    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Has the file be this.
    ///
    /// # Errors
    /// Those of the disk. [`ErrorKind::TimedOut`]: it takes long, and may be done later; in the order in which it was asked for.
    pub fn write(&self, text: Vec<u8>) -> io::Result<()> {
        let (done, is_done) = mpsc::sync_channel(1);
        let slow = || io::Error::new(ErrorKind::TimedOut, "the disk takes long");
        self.jobs.try_send((text, done)).map_err(|_| slow())?;
        match is_done.recv_timeout(PATIENCE) {
            Ok(written) => written,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Err(slow()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A disk that stands still is not waited for, and little is kept for it; what was asked for last is written last.
    #[test]
    fn a_disk_that_stands_still_is_not_waited_for() {
        let (release, stands_still) = mpsc::channel::<()>();
        let stands_still = Mutex::new(stands_still);
        let written = Arc::new(Mutex::new(Vec::new()));
        let to = written.clone();
        let scribe = Scribe::with("file".into(), move |text| {
            let _ = stands_still.lock().unwrap().recv();
            to.lock().unwrap().push(text[0]);
            Ok(())
        });
        assert_eq!(
            scribe.write(vec![0]).unwrap_err().kind(),
            ErrorKind::TimedOut
        );
        let (done, is_done) = mpsc::sync_channel(100);
        let kept = (1..100).filter(|n| scribe.jobs.try_send((vec![*n], done.clone())).is_ok());
        assert_eq!(kept.count(), WAITING);
        drop(release);
        for _ in 0..WAITING {
            is_done.recv().unwrap().unwrap();
        }
        scribe.write(vec![200]).unwrap();
        let written = written.lock().unwrap();
        assert!(
            written.is_sorted() && written.last() == Some(&200),
            "{written:?}"
        );
    }
}
