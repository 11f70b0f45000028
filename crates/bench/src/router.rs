//! What a storage router costs: the load of a web server's files on servers, straight and through the router. After Slite on Anypoint
//! (Yocum, 2003), Figure 9, of which this has direct access, the proxies over TCP and UDP, that over TCP with several threads, and the kernel's ways over both.
//!
//! The servers keep their files in memory and do as little as they can ([`memory`]), so that the router's own limit shows. Each answer is looked at:
//! it must be of the very file that was asked for.

mod link;
mod load;
pub mod memory;
mod network;
mod shown;
mod site;
mod tree;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use crate::group::Launcher;
use crate::progress::Progress;
use crate::report::{Report, median, percentile_us};
use crate::{clock, cpu, run};
use link::Link;
use load::{Asks, Lane, Names, Pace, Window, drive};
use network::Network;
pub use shown::{plots, tables};
use site::{Manner, Site};
use tree::Tree;

const SERVERS: usize = 4;
/// Parts of what the servers bear when they are asked straight.
const OFFERED: [f64; 6] = [0.1, 0.2, 0.4, 0.6, 0.8, 1.0];
/// How many of them there are in a run that only shows that it runs.
const QUICK_OFFERED: usize = 2;
/// Connections over which calls come at a rate.
const CONNECTIONS: usize = 4;
/// Bytes of long READs, and how many each connection has in flight.
const LONG_READS: [u32; 2] = [64 << 10, 1 << 20];
const LONG_READS_IN_FLIGHT: usize = 4;
/// How often a measurement is tried in which nothing is answered.
const TRIES: usize = 5;

/// What is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rounds, seconds, and which cases.
    pub run: run::Options,
    /// How a server in memory is started.
    pub server: Launcher,
    /// How a router is started.
    pub router: Launcher,
    /// Whether load, router and servers each have a network of their own.
    pub network: bool,
}

/// How calls go to the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Each connection to one of the servers.
    Direct,
    /// All through the router, over TCP, in user space.
    Router,
    /// The same with a thread for each processor.
    RouterThreads,
    /// Over TCP, passed on by the kernel.
    KernelTcp,
    /// As direct, by datagrams.
    DirectUdp,
    /// Through the router in user space, by datagrams on both sides.
    RouterUdp,
    /// By datagrams, passed on by the kernel.
    KernelUdp,
}

impl Way {
    const ALL: [Way; 7] = [
        Way::Direct,
        Way::Router,
        Way::RouterThreads,
        Way::KernelTcp,
        Way::DirectUdp,
        Way::RouterUdp,
        Way::KernelUdp,
    ];

    fn name(self) -> &'static str {
        match self {
            Way::Direct => "direct",
            Way::Router => "router, TCP",
            Way::RouterThreads => "router, TCP, a thread a processor",
            Way::KernelTcp => "router, TCP, by the kernel",
            Way::DirectUdp => "direct, UDP",
            Way::RouterUdp => "router, UDP",
            Way::KernelUdp => "router, UDP, by the kernel",
        }
    }

    fn is_direct(self) -> bool {
        matches!(self, Way::Direct | Way::DirectUdp)
    }

    fn is_udp(self) -> bool {
        matches!(self, Way::DirectUdp | Way::RouterUdp | Way::KernelUdp)
    }

    fn is_by_kernel(self) -> bool {
        matches!(self, Way::KernelTcp | Way::KernelUdp)
    }

    fn manner(self) -> Manner {
        let threads = match self {
            Way::RouterThreads => std::thread::available_parallelism().map_or(1, usize::from),
            _ => 1,
        };
        let kernel = self.is_by_kernel();
        Manner { threads, kernel }
    }
}

/// A load.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Load {
    connections: usize,
    asks: Asks,
}

impl Load {
    fn in_flight(connections: usize, calls: usize, reads: Option<u32>) -> Load {
        Load {
            connections,
            asks: Asks {
                pace: Pace::InFlight(calls),
                reads,
            },
        }
    }

    /// Over datagrams no call asks for as much as a long READ does.
    fn is_for(&self, way: Way) -> bool {
        self.asks.reads.is_none() || !way.is_udp()
    }
}

/// The figures of one measurement, or the medians of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Half of the calls took no longer. Where they come at a rate, from when each was to be sent.
    pub p50_us: f64,
    /// All but one of a hundred took no longer.
    pub p99_us: f64,
    /// Calls that were answered in a second.
    pub calls_per_s: f64,
    /// Processor time of the router for a call; where it has a processor of its own, all that this did, also for calls that go straight.
    pub router_cpu_us: f64,
    /// Of all servers together.
    pub servers_cpu_us: f64,
    /// Of the load.
    pub client_cpu_us: f64,
}

/// A load in one of the ways.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// How calls went.
    pub way: Way,
    /// Over how many connections.
    pub connections: usize,
    /// How many each had in flight; none where they came at a rate.
    pub in_flight: Option<usize>,
    /// At which rate they came.
    pub offered_per_s: Option<f64>,
    /// How many bytes each READ asked for, if nothing else was asked.
    pub reads_bytes: Option<u32>,
    /// Each figure's median over the rounds.
    pub median: Figures,
    /// Each round.
    pub rounds: Vec<Figures>,
}

/// All of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Routed {
    /// The machine, and how long measurements were.
    #[serde(flatten)]
    pub machine: Report,
    /// Whether the router had a network and a processor of its own.
    pub network: bool,
    /// What was measured.
    pub router: Vec<Row>,
}

impl Routed {
    /// Nothing yet.
    pub fn new(options: &Options) -> Routed {
        Routed {
            machine: Report::new("router", options.run.seconds, &options.run.data),
            network: options.network,
            router: Vec::new(),
        }
    }

    fn find(&self, way: Way, connections: usize, in_flight: usize) -> Option<&Row> {
        let is_it = |row: &&Row| {
            (row.way, row.connections, row.in_flight) == (way, connections, Some(in_flight))
                && row.reads_bytes.is_none()
        };
        self.router.iter().find(is_it)
    }

    fn find_long(&self, way: Way, bytes: u32) -> Option<&Row> {
        let is_it = |row: &&Row| (row.way, row.reads_bytes) == (way, Some(bytes));
        self.router.iter().find(is_it)
    }
}

/// What a load is on: the files by the names that they have on one of the ways.
struct Side {
    way: Way,
    names: Arc<Names>,
    /// Which files are asked for over a lane, of which there is one for each server.
    has: Vec<Vec<bool>>,
}

impl Side {
    /// Where a lane leads.
    fn end(&self, site: &Site, lane: usize) -> SocketAddr {
        match self.way.is_direct() {
            true => site.servers()[lane],
            false => site.router(),
        }
    }
}

/// Runs the benchmark. What is done is in the report after each load.
///
/// # Errors
/// Where a process does not start, or an answer is wrong.
pub async fn run(options: &Options, report: &mut Routed) -> Result<()> {
    let network = options.network.then(Network::make).transpose();
    let network = network.context("a network for the benchmark")?;
    let (data, server, router) = (&options.run.data, &options.server, &options.router);
    let mut site = Site::start(SERVERS, data, server, router, network).await?;
    let mut tree = Tree::new(options.run.quick);
    eprintln!("making {} files through the router", tree.files.len());
    site.fill(&mut tree).await?;
    let (direct, volumes) = site.direct(&tree).await?;
    let routed = site.routed(&tree).await?;
    for is_large in [false, true] {
        let files = volumes.iter().enumerate();
        let files = files.filter(|(file, _)| tree.is_large(*file) == is_large);
        let have: BTreeSet<usize> = files.map(|(_, volume)| *volume).collect();
        ensure!(have.len() == SERVERS, "a server has no files");
    }
    // Lanes ask for the files of one server each, on both ways: so they are the same calls, and the same servers have them.
    let has = |server| volumes.iter().map(|at| *at == server).collect();
    let has: Vec<Vec<bool>> = (0..SERVERS).map(has).collect();
    let (direct, routed) = (Arc::new(direct), Arc::new(routed));
    let sides = Way::ALL.map(|way| Side {
        way,
        names: match way.is_direct() {
            true => direct.clone(),
            false => routed.clone(),
        },
        has: has.clone(),
    });
    let tree = Arc::new(tree);
    let offered = match options.run.quick {
        true => &OFFERED[..QUICK_OFFERED],
        false => &OFFERED,
    };
    let web = [(1, 1), (CONNECTIONS, 16), (64, 1)];
    let web = web.map(|(connections, calls)| Load::in_flight(connections, calls, None));
    let long = LONG_READS;
    let long = long.map(|bytes| Load::in_flight(CONNECTIONS, LONG_READS_IN_FLIGHT, Some(bytes)));
    let closed = [&web[..], &long].concat();
    let takers = |load: &Load| sides.iter().filter(|side| load.is_for(side.way)).count();
    let cases = closed.iter().map(takers).sum::<usize>() + offered.len() * sides.len();
    let mut progress = Progress::new(cases * options.run.rounds);
    let sides = &sides;
    for load in closed {
        measure(
            options,
            &mut site,
            &tree,
            sides,
            load,
            &mut progress,
            report,
        )
        .await?;
    }
    let peak = report.find(Way::Direct, CONNECTIONS, 16);
    let Some(peak) = peak.map(|row| row.median.calls_per_s) else {
        ensure!(
            !options.run.only.is_empty(),
            "nothing was measured of the servers"
        );
        eprintln!("no rates: they are parts of what \"direct, 4 connections x 16\" bears");
        return Ok(());
    };
    for part in offered {
        let load = Load {
            connections: CONNECTIONS,
            asks: Asks {
                pace: Pace::PerSecond(((part * peak / 100.0).round() * 100.0).max(100.0)),
                reads: None,
            },
        };
        measure(
            options,
            &mut site,
            &tree,
            sides,
            load,
            &mut progress,
            report,
        )
        .await?;
    }
    Ok(())
}

/// A load on all ways in turns.
async fn measure(
    options: &Options,
    site: &mut Site,
    tree: &Arc<Tree>,
    sides: &[Side],
    load: Load,
    progress: &mut Progress,
    report: &mut Routed,
) -> Result<()> {
    let first = report.router.len();
    let mut rounds = vec![Vec::new(); sides.len()];
    let mut skipped = false;
    for round in 0..options.run.rounds {
        for turn in 0..sides.len() {
            let at = (turn + round) % sides.len();
            let side = &sides[at];
            let name = name(side.way, load);
            let is_wanted = options.run.only.iter().all(|word| name.contains(word));
            if !load.is_for(side.way) || !is_wanted {
                continue;
            }
            if !side.way.is_direct() {
                let refused = site.have(side.way.manner()).await?;
                if let Some(why) = refused.filter(|_| side.way.manner().kernel) {
                    if !std::mem::replace(&mut skipped, true) {
                        eprintln!("{name}: left out: {why}");
                    }
                    continue;
                }
            }
            let figures = once(site, tree, side, load, options.run.seconds).await;
            let figures = figures.with_context(|| name.clone())?;
            let Figures {
                calls_per_s,
                p50_us,
                router_cpu_us,
                ..
            } = figures;
            let told = format!(
                "{calls_per_s:.0} calls/s, p50 {p50_us:.0} us, {router_cpu_us:.1} us of the router"
            );
            progress.tell(&name, &told);
            rounds[at].push(figures);
            report.router.truncate(first);
            report.router.extend(rows(sides, load, &rounds));
        }
    }
    Ok(())
}

/// What is known of a load, on each way that was measured.
fn rows(sides: &[Side], load: Load, rounds: &[Vec<Figures>]) -> Vec<Row> {
    let (in_flight, offered_per_s) = match load.asks.pace {
        Pace::InFlight(calls) => (Some(calls), None),
        Pace::PerSecond(rate) => (None, Some(rate)),
    };
    let both = sides.iter().zip(rounds);
    let measured = both.filter(|(_, rounds)| !rounds.is_empty());
    let row = |(side, rounds): (&Side, &Vec<Figures>)| Row {
        way: side.way,
        connections: load.connections,
        in_flight,
        offered_per_s,
        reads_bytes: load.asks.reads,
        median: medians(rounds),
        rounds: rounds.clone(),
    };
    measured.map(row).collect()
}

fn name(way: Way, load: Load) -> String {
    let way = way.name();
    match load.asks.pace {
        Pace::InFlight(calls) => {
            let reads = of_reads(load.asks.reads);
            format!("{way}, {} connections x {calls}{reads}", load.connections)
        }
        Pace::PerSecond(rate) => format!("{way}, {rate} calls/s offered"),
    }
}

/// What is said of a load behind its connections.
fn of_reads(bytes: Option<u32>) -> String {
    bytes.map_or_else(String::new, |bytes| format!(", {}", of_bytes(bytes)))
}

fn of_bytes(bytes: u32) -> String {
    format!("READs of {} KiB", bytes >> 10)
}

/// Measures once. Where not one call was answered within it, as may be where others have the machine for longer than a short
/// measurement takes, it is measured anew, each time twice as long.
async fn once(
    site: &Site,
    tree: &Arc<Tree>,
    side: &Side,
    load: Load,
    seconds: f64,
) -> Result<Figures> {
    let mut seconds = seconds;
    for _ in 0..TRIES {
        if let Some(figures) = attempt(site, tree, side, load, seconds).await? {
            return Ok(figures);
        }
        seconds *= 2.0;
    }
    bail!("nothing was answered within {:.1} s", seconds / 2.0)
}

/// The figures of so many seconds; none where nothing was answered in them.
async fn attempt(
    site: &Site,
    tree: &Arc<Tree>,
    side: &Side,
    load: Load,
    seconds: f64,
) -> Result<Option<Figures>> {
    let mut asks = load.asks;
    if let Pace::PerSecond(rate) = &mut asks.pace {
        *rate /= load.connections as f64;
    }
    // What it takes to connect is no part of what is measured, and the router may take its time over it.
    let mut connecting = JoinSet::new();
    for number in 0..load.connections {
        let at = number % side.has.len();
        let (address, has) = (side.end(site, at), side.has[at].clone());
        let (names, is_udp) = (side.names.clone(), side.way.is_udp());
        connecting.spawn(async move {
            let link = Link::connect(address, is_udp).await?;
            let mut lane = Lane { link, has };
            lane.greet(&names).await?;
            Ok::<_, anyhow::Error>((number, lane))
        });
    }
    let mut connected = Vec::new();
    while let Some(lane) = connecting.join_next().await {
        connected.push(lane.context("a connection's task")??);
    }
    let start = clock();
    let from = start + Duration::from_secs_f64(seconds / 8.0);
    let window = Window {
        from,
        to: from + Duration::from_secs_f64(seconds),
    };
    let mut lanes = JoinSet::new();
    for (number, mut lane) in connected {
        let (tree, names) = (tree.clone(), side.names.clone());
        lanes.spawn(
            async move { drive(&mut lane, &tree, &names, asks, number as u64, window).await },
        );
    }
    let (_, servers) = site.pids()?;
    let used = || -> Result<[f64; 3]> {
        let client = cpu::seconds(std::process::id())?;
        Ok([site.used_by_router()?, cpu::total(&servers)?, client])
    };
    sleep_until(window.from.into()).await;
    let (before, began) = (used()?, clock());
    sleep_until(window.to.into()).await;
    let (after, ended) = (used()?, clock());
    let mut took = Vec::new();
    while let Some(lane) = lanes.join_next().await {
        took.extend(lane.context("a connection's task")??);
    }
    if took.is_empty() {
        return Ok(None);
    }
    took.sort_unstable();
    let calls = took.len() as f64;
    let each = |part: usize| (after[part] - before[part]) * 1e6 / calls;
    Ok(Some(Figures {
        p50_us: percentile_us(&took, 0.5),
        p99_us: percentile_us(&took, 0.99),
        calls_per_s: calls / ended.duration_since(began).as_secs_f64(),
        router_cpu_us: each(0),
        servers_cpu_us: each(1),
        client_cpu_us: each(2),
    }))
}

fn medians(rounds: &[Figures]) -> Figures {
    let of = |figure: fn(&Figures) -> f64| median(rounds.iter().map(figure).collect());
    Figures {
        p50_us: of(|f| f.p50_us),
        p99_us: of(|f| f.p99_us),
        calls_per_s: of(|f| f.calls_per_s),
        router_cpu_us: of(|f| f.router_cpu_us),
        servers_cpu_us: of(|f| f.servers_cpu_us),
        client_cpu_us: of(|f| f.client_cpu_us),
    }
}
