//! The papers' benchmarks, with groups of real processes on loopback.
//!
//! - [`null`]: the service that does nothing, whose operations say how long their results are.
//! - [`group`] and [`replica`]: a group's processes; each replica is a child that runs [`replica::run`].
//! - [`load`]: many clients in one thread, each a state machine with its own links and session.
//! - [`micro`]: latency and throughput of 0/0, 4/0 and 0/4. Castro and Liskov, OSDI 2000, Table 1 and Figure 5.
//! - [`parallel`]: what parallel execution costs and gains. The CBASE paper, DSN 2004, Figures 4 and 5.
//! - [`graph`]: what the dependency graph takes by itself.
//! - [`attacks`] and [`attackers`]: what correct clients get while others attack. Aardvark, NSDI 2009.
//! - [`failover`]: what the end of a primary costs.
//! - [`recovery`]: what proactive recovery takes and costs. Castro and Liskov, PBFT 2002, Table 4.
//! - [`files`]: whole file systems under the papers' workloads.
//! - [`credentials`]: what credentials cost on them. DisCFS, 2003, Figures 5 to 7.
//! - [`router`]: what a storage router costs. Slite on Anypoint, 2003, Figure 9.
//! - [`run`]: variants in turns, rounds, medians.
//! - [`paper`]: the papers' figures.
//! - [`report`] and [`plot`]: what was measured, as JSON, as tables with the paper's figures beside ours, and as SVG.
//!
//! Clients and replicas share the machine, so figures of one run are to be compared with each other: variants take
//! turns within each round, and the medians of the rounds are reported. CPU time an operation says more than throughput.
//!
//! Absent on purpose: judgements. Nothing here fails because it was slow.

pub mod attackers;
pub mod attacks;
pub mod cpu;
pub mod credentials;
pub mod failover;
pub mod files;
pub mod graph;
pub mod group;
pub mod load;
pub mod micro;
pub mod paper;
pub mod parallel;
pub mod plot;
mod progress;
pub mod recovery;
pub mod replica;
pub mod report;
pub mod router;
mod rpc;
pub mod run;

pub use quorate_service::null;

/// The words of the papers' figures: a request of `request` KB with a result of `result` KB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Bytes of the request, beside what says what it wants.
    pub request: usize,
    /// Bytes of the result.
    pub result: usize,
    /// Whether the operation is said to only read.
    pub read_only: bool,
    /// Whether every other operation is said to only read.
    pub in_turn: bool,
}

impl Workload {
    /// An operation with a request and a result of so many KB.
    pub const fn of(request_kb: usize, result_kb: usize) -> Workload {
        Workload {
            request: request_kb << 10,
            result: result_kb << 10,
            read_only: false,
            in_turn: false,
        }
    }

    /// The same, and read-only, in turn.
    pub const fn and_reads(self) -> Workload {
        Workload {
            in_turn: true,
            ..self
        }
    }

    /// The same, read-only.
    pub const fn reads(self) -> Workload {
        Workload {
            read_only: true,
            ..self
        }
    }
}

impl std::fmt::Display for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.request >> 10, self.result >> 10)?;
        f.write_str(match (self.read_only, self.in_turn) {
            (true, _) => " read-only",
            (false, true) => " and read-only in turn",
            (false, false) => "",
        })
    }
}

/// What the time is.
#[allow(
    clippy::disallowed_methods,
    reason = "measuring is what this crate is for, and attackers keep to a rate"
)]
pub(crate) fn clock() -> std::time::Instant {
    std::time::Instant::now()
}
