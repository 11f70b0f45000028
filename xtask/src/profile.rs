//! `cargo xtask profile`: where replicas' processor time goes under one load of `quorate bench`.
//!
//! `perf` takes samples of all replicas while the load goes on, and each sample is counted where its stack says. The shares are what
//! docs/performance.md has in its tables.

mod parts;
mod stacks;

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::packages;
use parts::Shares;

const NEEDS: &[(&str, &str)] = &[("perf", "linux-perf")];

pub const USAGE: &str = "\
cargo xtask profile [--seconds S] -- BENCHMARK [OPTIONS]
    where replicas' processor time goes under one load, by samples of `perf` (S seconds of them, 5 unless told): options
    after -- are those of `quorate bench`, which should choose one case, such as
        cargo xtask profile -- micro --data /dev/shm --only latency --only '0/0, BFT memory'
    Needs the Debian package linux-perf, and for figures to be compared a machine that does nothing else";

/// From when the group is there to the first sample: a round that is not reported and the warm-up come first.
const BEFORE: Duration = Duration::from_secs(3);
/// How long a group may take to be there.
const START_LIMIT: Duration = Duration::from_secs(60);

pub fn main(args: &[String]) -> Result<(), String> {
    let (seconds, benchmark) = parse(args)?;
    let missing = packages::missing(NEEDS);
    if !missing.is_empty() {
        return Err(format!("missing: apt-get install {}", missing.join(" ")));
    }
    let quorate = crate::up::build()?;
    let place = crate::up::target().join("profile");
    std::fs::create_dir_all(&place).map_err(|e| format!("{}: {e}", place.display()))?;
    let (json, data) = (place.join("bench.json"), place.join("perf.data"));
    let mut bench = Running::start(
        Command::new(quorate)
            .arg("bench")
            .args(benchmark)
            .args(["--rounds", "1", "--seconds"])
            .arg((seconds + 4).to_string())
            .arg("--json")
            .arg(&json),
    )?;
    let replicas = bench.replicas()?;
    std::thread::sleep(BEFORE);
    sample(&replicas, seconds, &data)?;
    if !bench.goes_on()? {
        return Err("the load was over before the samples were taken: choose one case".into());
    }
    bench.end()?;
    let shares = Shares::of(&stacks(&data)?);
    print!("{}", shares.table(measured(&json)?.as_deref()));
    Ok(())
}

/// A benchmark that goes on, and ends with this.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Result<Running, String> {
        let child = command.stdout(Stdio::null()).spawn();
        child
            .map(Running)
            .map_err(|e| format!("can't start the benchmark: {e}"))
    }

    /// The processes of its replicas, when there are no more of them than a while ago.
    fn replicas(&mut self) -> Result<Vec<u32>, String> {
        let (mut found, mut waited) = (Vec::new(), Duration::ZERO);
        while waited < START_LIMIT && self.goes_on()? {
            let step = Duration::from_millis(500);
            std::thread::sleep(step);
            waited += step;
            let now = children(self.0.id());
            if !now.is_empty() && now == found {
                return Ok(now);
            }
            found = now;
        }
        Err("the benchmark has no replicas".into())
    }

    fn goes_on(&mut self) -> Result<bool, String> {
        let ended = self.0.try_wait().map_err(|e| e.to_string())?;
        Ok(ended.is_none())
    }

    fn end(mut self) -> Result<(), String> {
        let status = self.0.wait().map_err(|e| e.to_string())?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("the benchmark failed: {status}")),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended is not there to be killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The processes that this one has started.
fn children(pid: u32) -> Vec<u32> {
    let mut all = Vec::new();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        all.extend(
            text.split_ascii_whitespace()
                .filter_map(|pid| pid.parse::<u32>().ok()),
        );
    }
    all.sort_unstable();
    all
}

fn sample(replicas: &[u32], seconds: u64, data: &Path) -> Result<(), String> {
    let pids: Vec<String> = replicas.iter().map(u32::to_string).collect();
    let status = Command::new("perf")
        .args(["record", "-q", "-e", "cpu-clock", "-F", "997", "-g", "-p"])
        .arg(pids.join(","))
        .arg("-o")
        .arg(data)
        .args(["--", "sleep", &seconds.to_string()])
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("perf record: {status}")),
        Err(e) => Err(format!("perf record: {e}")),
    }
}

/// Each sample's stack, from the leaf up.
fn stacks(data: &Path) -> Result<Vec<Vec<String>>, String> {
    let child = Command::new("perf")
        .args(["script", "--no-inline", "-F", "ip,sym,dso", "-i"])
        .arg(data)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = child.map_err(|e| format!("perf script: {e}"))?;
    let mut text = Vec::new();
    let mut out = child.stdout.take().ok_or("perf script says nothing")?;
    out.read_to_end(&mut text).map_err(|e| e.to_string())?;
    child.wait().map_err(|e| e.to_string())?;
    Ok(stacks::parse(&String::from_utf8_lossy(&text)))
}

/// The replicas' processor time an operation of each case that was measured, in microseconds, samples included.
fn measured(json: &Path) -> Result<Option<String>, String> {
    let text = std::fs::read_to_string(json).map_err(|e| format!("{}: {e}", json.display()))?;
    let report: serde_json::Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
    let Some([row]) = report["rows"].as_array().map(Vec::as_slice) else {
        return Ok(None);
    };
    Ok(row["median"]["replica_cpu_us"].as_f64().map(|us| {
        let rate = row["median"]["ops_per_s"].as_f64().unwrap_or(0.0);
        format!("{us:.1} us of the replicas' processor time an operation, {rate:.0} operations/s, samples included")
    }))
}

fn parse(args: &[String]) -> Result<(u64, &[String]), String> {
    let at = args.iter().position(|arg| arg == "--").ok_or(USAGE)?;
    let seconds = match &args[..at] {
        [] => 5,
        [name, value] if name == "--seconds" => value.parse().map_err(|_| USAGE)?,
        _ => return Err(USAGE.into()),
    };
    match (seconds, &args[at + 1..]) {
        (1..=600, benchmark @ [_, ..]) => Ok((seconds, benchmark)),
        _ => Err(USAGE.into()),
    }
}
