//! Clients at work: threads that write a short file each, over and over, and read it back.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Got;
use crate::clock;

/// Bytes of a file.
const BYTES: usize = 4 << 10;

/// The threads; they end when this is dropped.
#[derive(Debug)]
pub(super) struct Work {
    over: Arc<AtomicBool>,
    since: Instant,
    threads: Vec<JoinHandle<Done>>,
}

#[derive(Debug, Default)]
struct Done {
    took: Vec<Duration>,
    errors: usize,
}

impl Work {
    /// Starts them.
    pub fn start(mount: &Path, writers: usize) -> Work {
        let over = Arc::new(AtomicBool::new(false));
        let writer = |at: usize| {
            let (path, over) = (mount.join(format!("work-{at}")), over.clone());
            std::thread::spawn(move || write(&path, &over))
        };
        Work {
            since: clock(),
            threads: (0..writers).map(writer).collect(),
            over,
        }
    }

    /// Ends them; what they got. Nobody who waits for an answer is left out.
    pub fn end(mut self) -> Got {
        self.over.store(true, Ordering::Relaxed);
        let done = std::mem::take(&mut self.threads).into_iter();
        let done: Vec<Done> = done
            .map(|thread| thread.join().unwrap_or_else(|_| failed()))
            .collect();
        let seconds = self.since.elapsed().as_secs_f64();
        let mut took: Vec<Duration> = done.iter().flat_map(|d| d.took.iter().copied()).collect();
        took.sort_unstable();
        Got {
            ops_per_s: took.len() as f64 / seconds,
            p50_ms: share(&took, 0.5),
            p99_ms: share(&took, 0.99),
            errors: done.iter().map(|d| d.errors).sum(),
            recoveries: 0,
            missed: 0,
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn failed() -> Done {
    Done {
        errors: 1,
        ..Done::default()
    }
}

fn write(path: &PathBuf, over: &AtomicBool) -> Done {
    let mut done = Done::default();
    let mut content = vec![0; BYTES];
    let mut count: u64 = 0;
    while !over.load(Ordering::Relaxed) {
        count += 1;
        content[..8].copy_from_slice(&count.to_le_bytes());
        let since = clock();
        let written = std::fs::write(path, &content);
        let took = since.elapsed();
        let is_right = || std::fs::read(path).is_ok_and(|read| read == content);
        match written.is_ok() && is_right() {
            true => done.took.push(took),
            false => done.errors += 1,
        }
    }
    done
}

/// The time within which so many were done, in milliseconds.
fn share(sorted: &[Duration], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share) as usize;
    let took = sorted.get(rank.min(sorted.len().saturating_sub(1)));
    took.map_or(f64::NAN, |took| took.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written is counted, with its times; where nothing can be written, errors are.
    #[test]
    fn work_is_counted() {
        let directory = tempfile::tempdir().unwrap();
        let work = Work::start(directory.path(), 2);
        std::thread::sleep(Duration::from_millis(100));
        let got = work.end();
        assert!(got.ops_per_s > 0.0 && got.p99_ms >= got.p50_ms, "{got:?}");
        assert_eq!(got.errors, 0);
        let work = Work::start(&directory.path().join("none"), 1);
        std::thread::sleep(Duration::from_millis(50));
        assert!(work.end().errors > 0);
    }
}
