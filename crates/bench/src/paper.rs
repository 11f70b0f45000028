//! The papers' figures, as far as their texts give them.
//!
//! Their machines are of another time, so what is compared is ratios between variants of one run.

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
