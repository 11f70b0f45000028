//! The papers' figures, as far as their texts give them.
//!
//! Their machines are of another time, so what is compared is ratios between variants of one run.

/// What the papers say of a variant in relation to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Such as `0/0`.
    pub workload: &'static str,
    /// The ratio of latencies BFT to NO-REP with one client.
    pub latency: Option<f64>,
    /// The ratio of the highest throughputs BFT to NO-REP.
    pub throughput: Option<f64>,
}

/// Castro and Liskov, OSDI 2000, Table 1 and Figure 5, as the text puts them. 0/4's throughput is above 1 because NO-REP's one
/// server filled its network link; 4/0's is bound by the network too.
pub const MICRO: [Ratio; 5] = [
    ratio("0/0", Some(4.07), Some(0.47)),
    ratio("4/0", Some(1.6), Some(0.89)),
    ratio("0/4", Some(1.6), Some(26.0 / 12.0)),
    ratio("0/0 read-only", Some(1.93), None),
    ratio("0/4 read-only", Some(1.25), None),
];

const fn ratio(workload: &'static str, latency: Option<f64>, throughput: Option<f64>) -> Ratio {
    Ratio {
        workload,
        latency,
        throughput,
    }
}

/// The ratios of a workload.
pub fn micro(workload: &str) -> Option<&'static Ratio> {
    MICRO.iter().find(|r| r.workload == workload)
}
