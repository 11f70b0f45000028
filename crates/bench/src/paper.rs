//! The papers' figures, as far as their texts give them.
//!
//! Their machines are of another time, so what is compared is ratios between variants of one run.

use serde::Serialize;

/// What the paper says of a row, and of which figure it says it: for JSON, where tables have it beside ours. None where the paper's text gives nothing.
pub fn of(part: &str, workload: &str, variant: &str) -> Option<Paper> {
    let (of, value) = match part {
        "latency" => (
            "p50_us to NO-REP's of the same durability (BFT), to BFT's (BFT-PK)",
            latency(variant, workload),
        ),
        "throughput" => (
            "highest ops_per_s to NO-REP's of the same durability (BFT), to BFT's (BFT-PK)",
            throughput(variant, workload),
        ),
        "figure-5a" | "figure-5b" => (
            "highest ops_per_s (of ideal)",
            parallel(part, variant).into(),
        ),
        "figure-4" => ("replica_cpu_us beyond BASE", overhead(part, variant).into()),
        "graph" => ("replica_cpu_us", overhead(part, workload).into()),
        _ => return None,
    };
    (!value.is_empty()).then_some(Paper { of, value })
}

/// A figure that the text gives as a number or as a range; none where it gives a bound alone.
pub(crate) fn range(value: &str) -> Option<(f64, f64)> {
    let value = value.strip_prefix("about ").unwrap_or(value);
    let number = value.split(' ').next()?;
    let (from, to) = number.split_once('-').unwrap_or((number, number));
    Some((from.parse().ok()?, to.parse().ok()?))
}

/// A figure of a paper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Paper {
    /// What it is a figure of, in the words of the report's fields.
    pub of: &'static str,
    /// As the text has it, which may be a range.
    pub value: String,
}

/// Castro and Liskov, OSDI 2000, Table 1 as the text puts it: the latency of BFT to that of NO-REP, and of BFT-PK to that of
/// BFT, with one client. The text gives the range of the first over all operations: 1.6 is its lower end.
pub fn latency(variant: &str, workload: &str) -> String {
    let ratio = match (variant.split(' ').next(), workload) {
        (Some("BFT-PK"), "0/0" | "4/0" | "0/4") => "57-138",
        (Some("BFT"), "0/0") => "4.07",
        (Some("BFT"), "4/0" | "0/4") => "1.6",
        (Some("BFT"), "0/0 read-only") => "1.93",
        (Some("BFT"), "0/4 read-only") => "1.25",
        _ => "",
    };
    ratio.into()
}

/// Figure 5 of the same, as the text puts it: ratios of the highest throughputs. 4/0's is bound by the network, and 0/4's is
/// above 1 because NO-REP's one server filled its link.
pub fn throughput(variant: &str, workload: &str) -> String {
    let ratio = match (variant.split(' ').next(), workload) {
        (Some("BFT-PK"), "0/0" | "4/0" | "0/4") => "0.09-0.2",
        (Some("BFT"), "0/0") => "0.47",
        (Some("BFT"), "4/0") => "0.89",
        (Some("BFT"), "0/4") => "2.2",
        _ => "",
    };
    ratio.into()
}

/// The highest throughput in Figure 5 (a) and (b) of the CBASE paper (DSN 2004, 6.1.2), where its text gives it: operations/s, and of the ideal.
pub fn parallel(part: &str, variant: &str) -> &'static str {
    match (part, variant) {
        ("figure-5a", "BASE" | "CBASE, 1 threads") | ("figure-5b", "BASE" | "CBASE, factor 1") => {
            "50 (100 %)"
        }
        ("figure-5a", "CBASE, 128 threads") => "4700 (73 %)",
        _ => "",
    }
}

/// CPU time of a request in Figure 4 of the same (6.1.1), beyond that of BASE: microseconds.
pub fn overhead(part: &str, variant: &str) -> &'static str {
    match (part, variant) {
        ("figure-4", "CBASE") | ("graph", "null, CBASE") => "under 100",
        _ => "",
    }
}

/// How many times as fast as BASE-FS CBASE-FS was: the CBASE paper (DSN 2004), 6.2 and 6.3, Figure 6.
/// PostMark and IOzone are from servers with a remote disk, Andrew from 100 copies.
pub fn files(part: &str, phase: &str, clients: usize, wait_ms: u32) -> &'static str {
    match (part, clients, wait_ms) {
        // They give the whole.
        ("Andrew" | "PostMark", ..) if phase != "all" => "",
        ("Andrew", _, 0) => "0.96",
        ("PostMark", 1, 0) => "1",
        ("PostMark", 2.., 0) => "1.20-1.25",
        ("IOzone", 2.., _) => "2",
        ("4 KiB writes", 64.., 1..) => "about 20",
        _ => "",
    }
}

/// What killing the primary cost the client that was hit worst, in milliseconds; measured with each system's own client.
pub const FAILOVER: [[&str; 2]; 3] = [
    ["PBFT library (C++)", "650-1,000"],
    ["Themis", "4,700"],
    ["BFT-SMaRt", "6,200"],
];

/// Systems under their worst attack: Aardvark, NSDI 2009 (PBFT and Aardvark itself); RBFT, ICDCS 2013.
pub const ATTACKS: [[&str; 3]; 3] = [
    ["PBFT", "", "0 %"],
    ["Aardvark", "38,667", "30 % (11,706)"],
    ["RBFT", "", "97 %"],
];

/// Table 4 of PBFT 2002 (TOCS): seconds of each phase of a recovery, for a state of 205 MB and of 1 GB, on 600 MHz processors with a
/// reboot of 30 s.
pub const RECOVERY: [[&str; 3]; 8] = [
    ["save state", "2.84", "6.3"],
    ["reboot", "30.05", "30.05"],
    ["restore state", "0.09", "0.30"],
    ["estimation", "0.21", "0.15"],
    ["send new-key", "0.03", "0.04"],
    ["send request", "0.03", "0.03"],
    ["fetch and check", "9.34", "106.81"],
    ["total", "42.59", "143.68"],
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Each part that a paper has has its figures in JSON, and no other.
    #[test]
    fn reports_have_what_papers_say() {
        let value = |part, workload, variant| of(part, workload, variant).map(|p| p.value);
        let found = value("latency", "0/0", "BFT memory");
        assert_eq!(found.as_deref(), Some("4.07"));
        let found = value("throughput", "0/4", "BFT memory");
        assert_eq!(found.as_deref(), Some("2.2"));
        let found = value("figure-5a", "0/0", "CBASE, 128 threads");
        assert_eq!(found.as_deref(), Some("4700 (73 %)"));
        let found = value("graph", "null, CBASE", "graph");
        assert_eq!(found.as_deref(), Some("under 100"));
        assert_eq!(value("latency", "0/0", "NO-REP memory"), None);
        assert_eq!(value("window", "0/0", "BFT memory"), None);
    }

    /// Figures as they can be drawn.
    #[test]
    fn figures_are_numbers_and_ranges() {
        assert_eq!(range("0.09-0.2"), Some((0.09, 0.2)));
        assert_eq!(range("4700 (73 %)"), Some((4700.0, 4700.0)));
        assert_eq!(range("about 20"), Some((20.0, 20.0)));
        assert_eq!(range("under 100"), None);
        assert_eq!(range(""), None);
    }
}
