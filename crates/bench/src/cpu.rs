//! CPU time of processes, as the kernel counts it.

use anyhow::{Context, Result};

/// User and system time of a process with all its threads, also those that have ended, in seconds.
///
/// # Errors
/// Where the process is gone.
pub fn seconds(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).with_context(|| path.clone())?;
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
}
