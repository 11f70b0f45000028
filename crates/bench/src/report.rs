//! What was measured: medians of rounds, as JSON and as tables.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::load::Sample;
use crate::paper::Paper;

/// This program's version, with the commit that it was built from where that is known, as of a release build.
pub const VERSION: &str = env!("QUORATE_VERSION");

/// The figures of one measurement, or the medians of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Half of the operations took no longer.
    pub p50_us: f64,
    /// All but one of a hundred took no longer.
    pub p99_us: f64,
    /// Operations in a second.
    pub ops_per_s: f64,
    /// CPU time of all replicas together for one operation.
    pub replica_cpu_us: f64,
    /// CPU time of all clients together for one operation.
    pub client_cpu_us: f64,
}

/// A case: one variant under one load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Which part of the benchmark: `latency`, `throughput`, `window`, `switches`...
    pub part: &'static str,
    /// Such as `0/4 read-only`.
    pub workload: String,
    /// Such as `BFT memory`.
    pub variant: String,
    /// How many clients.
    pub clients: usize,
    /// How many operations each had in flight.
    pub in_flight: usize,
    /// How many operations in a second there would be if nothing but waiting took time; where they wait.
    pub ideal_ops_per_s: Option<f64>,
    /// What the paper says beside it.
    pub paper: Option<Paper>,
    /// Each figure's median over the rounds.
    pub median: Figures,
    /// Each round.
    pub rounds: Vec<Figures>,
}

/// All of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `micro`, `overhead`, `parallel`, `attacks`, `failover` or `recovery`.
    pub benchmark: &'static str,
    /// This program's version.
    pub version: &'static str,
    /// The commit that it was built from, of a release build where git knew it. What was changed and not committed does not show.
    pub commit: Option<&'static str>,
    /// What the program was started with.
    pub arguments: Vec<String>,
    /// Where the groups kept their files.
    pub data: PathBuf,
    /// Whether it was built with optimisations; otherwise its figures mean nothing.
    pub optimised: bool,
    /// Processors that the kernel gives to this process.
    pub processors: usize,
    /// What they are, as the kernel says; empty where it does not.
    pub processor: String,
    /// The kernel's release.
    pub kernel: String,
    /// How much else ran in the minute before the start: the load average, which includes nothing of this run.
    pub load_before: f64,
    /// How long each measurement was.
    pub seconds: f64,
    /// Why the run ended before it was done, if it did: what was measured until then is there.
    pub cut_short: Option<String>,
    /// What was measured.
    pub rows: Vec<Row>,
}

impl Report {
    /// A report of nothing yet, with what is to be known of the machine.
    pub fn new(benchmark: &'static str, seconds: f64, data: &Path) -> Report {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().and_then(|l| l.parse().ok());
        Report {
            benchmark,
            version: env!("CARGO_PKG_VERSION"),
            commit: option_env!("QUORATE_COMMIT"),
            arguments: std::env::args_os()
                .skip(1)
                .map(|argument| argument.to_string_lossy().into_owned())
                .collect(),
            data: std::path::absolute(data).unwrap_or_else(|_| data.into()),
            optimised: !cfg!(debug_assertions),
            processor: processor(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            load_before: load.unwrap_or_default(),
            seconds,
            cut_short: None,
            rows: Vec::new(),
        }
    }

    /// The rows of a part.
    pub fn part(&self, part: &'static str) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.part == part)
    }
}

impl Figures {
    /// The figures of a sample.
    pub fn of(sample: &Sample) -> Figures {
        let ops = sample.latencies_ns.len();
        let at = |share| percentile_us(&sample.latencies_ns, share);
        let each = |seconds: f64| seconds * 1e6 / ops as f64;
        Figures {
            p50_us: at(0.5),
            p99_us: at(0.99),
            ops_per_s: sample.ops_per_s(),
            replica_cpu_us: each(sample.replica_cpu),
            client_cpu_us: each(sample.client_cpu),
        }
    }

    /// Each figure's median by itself.
    pub fn medians(rounds: &[Figures]) -> Figures {
        let of = |figure: fn(&Figures) -> f64| median(rounds.iter().map(figure).collect());
        Figures {
            p50_us: of(|f| f.p50_us),
            p99_us: of(|f| f.p99_us),
            ops_per_s: of(|f| f.ops_per_s),
            replica_cpu_us: of(|f| f.replica_cpu_us),
            client_cpu_us: of(|f| f.client_cpu_us),
        }
    }
}

/// The first processor's name.
fn processor() -> String {
    let all = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = all.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_string())
    });
    name.unwrap_or_default()
}

/// How long so large a part took at most, in microseconds, of times in nanoseconds and in rising order.
pub(crate) fn percentile_us(times_ns: &[u32], share: f64) -> f64 {
    let rank = (times_ns.len() as f64 * share) as usize;
    let ns = times_ns.get(rank.min(times_ns.len().saturating_sub(1)));
    ns.map_or(f64::NAN, |ns| f64::from(*ns) / 1e3)
}

/// The value in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

/// A table in plain text: the first column to the left, the others to the right.
#[derive(Clone, Debug)]
pub struct Table {
    title: String,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with its heads.
    pub fn new(title: &str, heads: &[&str]) -> Table {
        Table {
            title: title.into(),
            rows: vec![heads.iter().map(ToString::to_string).collect()],
        }
    }

    /// Whether it has heads alone.
    pub fn is_empty(&self) -> bool {
        self.rows.len() <= 1
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |at: usize| {
            let cells = self.rows.iter().filter_map(|r| r.get(at));
            cells.map(|c| c.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        writeln!(f, "{}", self.title)?;
        for row in &self.rows {
            let mut line = String::new();
            for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
                match at {
                    0 => write!(line, "  {cell:<width$}")?,
                    _ => write!(line, "  {cell:>width$}")?,
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A number with as many digits as are worth reading; a dash where there is none, such as for what an operation took of which there were none.
pub fn show(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() => "-".into(),
        v if v < 10.0 => format!("{value:.2}"),
        v if v < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Percentiles and CPU times of a known sample.
    #[test]
    fn figures_of_a_sample() {
        let sample = Sample {
            latencies_ns: (1..=100).map(|us| us * 1000).collect(),
            seconds: 2.0,
            replica_cpu: 0.001,
            client_cpu: 0.0005,
        };
        let figures = Figures::of(&sample);
        assert_eq!((figures.p50_us, figures.p99_us), (51.0, 100.0));
        assert_eq!((figures.ops_per_s, figures.replica_cpu_us), (50.0, 10.0));
    }

    /// One slow round does not move the median.
    #[test]
    fn a_median_ignores_an_outlier() {
        assert_eq!(median(vec![3.0, 900.0, 1.0]), 3.0);
        assert_eq!(median(vec![1.0, 2.0]), 1.5);
        assert!(median(Vec::new()).is_nan());
    }

    /// Processor time of operations of which there were none.
    #[test]
    fn what_is_no_number_is_a_dash() {
        assert_eq!(
            (show(f64::INFINITY), show(f64::NAN)),
            ("-".into(), "-".into())
        );
        assert_eq!((show(1234.5), show(0.125)), ("1234".into(), "0.12".into()));
    }
}
