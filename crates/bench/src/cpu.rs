//! CPU time of processes, as the kernel counts it.

use std::fs::{read_dir, read_to_string};

use anyhow::{Context, Result};

/// CPU time of a process with all its threads, also those that have ended, in seconds. To the nanosecond while no thread ends that has worked; else to two
/// ticks of 10 ms.
///
/// # Errors
/// Where the process is gone.
pub fn seconds(pid: u32) -> Result<f64> {
    // The kernel rounds what it tells of the whole process down to ticks, so what its threads add up to is no less, unless some have ended.
    Ok(of_threads(pid)?.max(of_process(pid)?))
}

/// The sum over the threads that there are.
fn of_threads(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/task");
    let mut nanoseconds = 0;
    for thread in read_dir(&path).with_context(|| path.clone())? {
        // One that has ended since then is of the process alone.
        let Ok(stat) = read_to_string(thread?.path().join("schedstat")) else {
            continue;
        };
        let first = stat.split(' ').next().and_then(|ns| ns.parse::<u64>().ok());
        nanoseconds += first.unwrap_or(0);
    }
    Ok(nanoseconds as f64 / 1e9)
}

/// User and system time of the process, in ticks.
fn of_process(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let stat = read_to_string(&path).with_context(|| path.clone())?;
    // The name is in brackets and may hold anything; what follows the last bracket is numbers.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut ticks = fields.split_ascii_whitespace().skip(11);
    let mut next = || ticks.next()?.parse::<u64>().ok();
    let (user, system) = next().zip(next()).with_context(|| path.clone())?;
    Ok((user + system) as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// The sum over several processes.
///
/// # Errors
/// Where one is gone.
pub fn total(pids: &[u32]) -> Result<f64> {
    pids.iter().map(|pid| seconds(*pid)).sum()
}

#[cfg(test)]
mod tests {
    /// Work shows in this process's own time.
    #[test]
    fn work_takes_time() {
        let me = std::process::id();
        let before = super::seconds(me).unwrap();
        let mut x = 1u64;
        while super::seconds(me).unwrap() < before + 0.05 {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(super::seconds(u32::MAX).is_err());
    }

    /// Far less than a tick shows, and what a thread did is not lost with it.
    #[test]
    fn time_is_finer_than_ticks_and_outlives_threads() {
        let me = std::process::id();
        let work = |until: f64| {
            let mut x = 1u64;
            while super::seconds(me).unwrap() < until {
                x = std::hint::black_box(x.wrapping_mul(3));
            }
        };
        let mut last = super::seconds(me).unwrap();
        let steps = (0..50).filter(|_| {
            let now = super::seconds(me).unwrap();
            std::mem::replace(&mut last, now) < now
        });
        assert!(steps.count() >= 40);
        let before = super::seconds(me).unwrap();
        std::thread::scope(|s| {
            s.spawn(|| work(before + 0.1));
        });
        assert!(super::seconds(me).unwrap() >= before + 0.05);
    }
}
