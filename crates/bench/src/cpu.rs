//! CPU time of processes, as the kernel counts it.

use std::time::Duration;

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

/// CPU time of a process with all its threads, also those that have ended, in seconds, to the nanosecond.
///
/// # Errors
/// Where the process is gone.
pub fn seconds(pid: u32) -> Result<f64> {
    let of_process = || {
        let pid = Pid::from_raw(i32::try_from(pid).map_err(|_| nix::Error::ESRCH)?);
        clock_gettime(ClockId::pid_cpu_clock_id(pid)?)
    };
    let time = of_process().with_context(|| format!("the CPU time of process {pid}"))?;
    Ok(Duration::from(time).as_secs_f64())
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
    use std::process::{Command, Stdio};

    /// Far less than a tick of 10 ms shows, also of another process and after threads that worked have ended, whose time is not lost with them.
    #[test]
    fn time_is_finer_than_ticks_and_outlives_threads() {
        let me = std::process::id();
        let work = |until: f64| {
            let mut x = 1u64;
            while super::seconds(me).unwrap() < until {
                x = std::hint::black_box(x.wrapping_mul(3));
            }
        };
        let before = super::seconds(me).unwrap();
        std::thread::scope(|s| {
            s.spawn(|| work(before + 0.1));
        });
        let mut last = super::seconds(me).unwrap();
        assert!(last >= before + 0.1);
        let steps = (0..50).filter(|_| {
            let now = super::seconds(me).unwrap();
            std::mem::replace(&mut last, now) < now
        });
        assert!(steps.count() >= 40);
    }

    /// So it is of another process, of which no tick may have been counted yet.
    #[test]
    fn another_process_has_a_time() {
        let cat = Command::new("cat").stdin(Stdio::piped()).spawn();
        let mut cat = cat.unwrap();
        // It may not have had its turn yet.
        let mut looks = 0..1_000;
        let has_run = looks.any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            super::seconds(cat.id()).unwrap() > 0.0
        });
        assert!(has_run);
        drop(cat.stdin.take());
        cat.wait().unwrap();
        assert!(super::seconds(cat.id()).is_err());
        assert!(super::seconds(u32::MAX).is_err());
    }
}
