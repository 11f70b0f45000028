//! `quorate bench`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Measure this machine with groups of its own, and set the papers' figures beside.
///
/// Starts replicas as child processes on loopback, puts clients' load on them, and prints tables. Clients and replicas share the
/// machine: compare variants of one run with each other. Takes care of its own files and processes.
///
/// Each case says how many seconds are left of the whole. Ctrl-C ends a run early: the rounds that are done are shown and
/// written, marked incomplete, and the exit code is not 0.
///
/// Examples:
///   quorate bench micro                                 all of it: about 20 minutes
///   quorate bench micro --only latency --only 0/0       a part of it
///   quorate bench parallel --only 5a --only "200 clients"   where the threads are full
///   quorate bench micro --json r.json --out plots       for other programs, and as pictures
///   quorate bench files --only PostMark                 whole file systems
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Bench {
    #[command(subcommand)]
    pub benchmark: Benchmark,
}

#[derive(Debug, Subcommand)]
pub enum Benchmark {
    /// Latency and throughput of operations that do nothing: BFT beside a server that is not replicated.
    Micro(Micro),
    /// What parallel execution costs where it gains nothing: null operations. About 2 minutes.
    Overhead(Measure),
    /// What parallel execution gains where operations wait: 20 ms each. 128 cases: about 15 minutes.
    Parallel(Measure),
    /// What correct clients get while clients, strangers and replicas attack.
    Attacks(Measure),
    /// How long clients wait when the primary is killed, stands still or is asked to end.
    Failover(Measure),
    /// What the recovery of a replica takes, step by step, and what staggered recoveries and renewed keys cost clients. About 8 minutes.
    Recovery(Recovery),
    /// Whole file systems: the papers' workloads on the local disk, on a FUSE passthrough to it (bindfs, where it is installed), and
    /// on groups of ours.
    Files(Files),
    /// What credentials cost: one large file in order and the search of a source tree, on the local disk, on what is given, and on groups of
    /// ours by clients without a credential and by guests with chains of 1 and 5 links. Mounted, and over NFS: there beside nfs-ganesha,
    /// which is started where it is installed and this is root.
    Credentials(Credentials),
    /// What a storage router costs: the load of a web server's files on four NFS servers in memory, straight and through `quorate route`.
    /// About 3 minutes; 4 as root, with what the kernel passes on.
    Router(Router),
    /// A server of a benchmark.
    #[command(hide = true)]
    Server {
        #[arg(long, default_value = "127.0.0.1")]
        at: IpAddr,
    },
    /// The attackers of a benchmark.
    #[command(hide = true)]
    Attackers { spec: String },
    /// A replica of a benchmark.
    #[command(hide = true)]
    Replica { spec: String },
}

#[derive(Debug, Args)]
pub struct Measure {
    /// Measure only cases whose name, as shown while they run, has this in it. Repeatable: all must be in it.
    #[arg(long, value_name = "TEXT")]
    pub only: Vec<String>,
    /// How often each case is measured; medians are shown.
    #[arg(long, default_value_t = 3, value_name = "N")]
    pub rounds: u16,
    /// How long each measurement is; an eighth of it comes before as warm-up.
    #[arg(long, default_value_t = 1.0, value_name = "S", value_parser = seconds)]
    pub seconds: f64,
    /// Few and short measurements, to see that everything runs. The figures mean nothing.
    #[arg(long, conflicts_with_all = ["rounds", "seconds"])]
    pub quick: bool,
    /// Write all figures to this file as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write plots to this directory, as SVG; made if it is not there.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Where the groups keep their files while they run [default: the directory for temporary files].
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Micro {
    #[command(flatten)]
    pub measure: Measure,
    /// Measure groups with signatures also with so many threads in each replica that check them.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub verifiers: Option<u16>,
    /// Among the switches, measure a group also with so many threads in each replica that encrypt and write what is long, or much together.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub sealers: Option<u16>,
}

#[derive(Debug, Args)]
pub struct Router {
    #[command(flatten)]
    pub measure: Measure,
    /// With a network of its own for the load, the router and the servers, and a processor that only the router's machine uses: what that does is
    /// what a router costs, in user space or by the kernel, and what forwarding alone costs. For root; makes two network namespaces, and an
    /// interface with an address in 198.18.0.0/24 in this one, and removes them.
    #[arg(long)]
    pub network: bool,
}

#[derive(Debug, Args)]
pub struct Recovery {
    #[command(flatten)]
    pub measure: Measure,
    /// How much the group holds, in MB, where recoveries are looked at step by step; the least of it where clients work.
    #[arg(long, value_name = "MB,...", value_delimiter = ',', default_value = "20,200", value_parser = clap::value_parser!(u16).range(1..=8192))]
    pub state: Vec<u16>,
    /// Periods Tw, in seconds: each replica recovers once in that time.
    #[arg(long, value_name = "S,...", value_delimiter = ',', default_value = "20,60", value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub periods: Vec<u16>,
    /// How many such periods follow one another before those without recoveries are measured again.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub in_a_row: u16,
    /// Periods Tk, in seconds: all keys of links are renewed once in that time.
    #[arg(long, value_name = "S,...", value_delimiter = ',', default_value = "1,15", value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub key_refresh: Vec<u16>,
}

#[derive(Debug, Args)]
pub struct Credentials {
    #[command(flatten)]
    pub measure: Measure,
    /// Measure this file system too: a name, and a directory on it. Repeatable.
    #[arg(long, value_name = "NAME=DIR", value_parser = named)]
    pub beside: Vec<(String, PathBuf)>,
}

#[derive(Debug, Args)]
pub struct Files {
    #[command(flatten)]
    pub measure: Measure,
    /// How many copies of the sources Andrew makes: the papers' n, such as 1,10,100.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub copies: Vec<u16>,
    /// Measure this file system too, such as GlusterFS: a name, and a directory on it. Repeatable.
    #[arg(long, value_name = "NAME=DIR", value_parser = named)]
    pub beside: Vec<(String, PathBuf)>,
}

fn named(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, directory)) if !name.is_empty() => Ok((name.into(), directory.into())),
        _ => Err("write it as NAME=DIR, for example GlusterFS=/mnt/gluster".into()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|e| format!("{e}"))?;
    match (0.05..=60.0).contains(&seconds) {
        true => Ok(seconds),
        false => Err("give 0.05 to 60 seconds".into()),
    }
}
