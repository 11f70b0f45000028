//! Tables, goals and plots of what was measured.

use super::{CONNECTIONS, Figures, LONG_READS, Routed, Row, Way, of_bytes, of_reads};
use crate::plot::Plot;
use crate::report::{Table, show};

/// What is aimed at, of the router: processor time of a call, and what it adds to the median.
const MOST_CPU_US: f64 = 5.0;
const MOST_ADDED_US: f64 = 9.5;
const MOST_ADDED_BY_KERNEL_US: f64 = 6.5;
/// And of calls a second: through the router to forwarded, and by the kernel to user space.
const LEAST_OF_FORWARDING: f64 = 0.75;
const LEAST_BY_KERNEL: f64 = 1.5;
const LEAST_BY_KERNEL_TCP: f64 = 1.25;
const LEAST_OF_FORWARDING_LONG: f64 = 0.9;
/// And of the router's processor time for a call, by the kernel over TCP to user space.
const MOST_CPU_BY_KERNEL_TCP: f64 = 0.7;

/// All rows, and what is aimed at.
pub fn tables(report: &Routed) -> Vec<Table> {
    let heads = [
        "load",
        "way",
        "calls/s",
        "p50 us",
        "p99 us",
        "router us/call",
        "servers us/call",
        "load us/call",
    ];
    let mut closed = Table::new("Connections x calls in flight, medians", &heads);
    let mut open = Table::new("Calls at a rate, medians (Figure 9)", &heads);
    for row in &report.router {
        let (table, load) = match (row.in_flight, row.offered_per_s) {
            (Some(calls), _) => {
                let reads = of_reads(row.reads_bytes);
                (&mut closed, format!("{} x {calls}{reads}", row.connections))
            }
            (None, rate) => (&mut open, format!("{}/s", show(rate.unwrap_or_default()))),
        };
        let f = &row.median;
        // Of the kernel's work for a router nobody knows but a processor that does nothing else.
        let is_unknown = row.way.is_direct() || row.way.is_by_kernel();
        let router = match is_unknown && !report.network {
            true => String::new(),
            false => show(f.router_cpu_us),
        };
        table.row(vec![
            load,
            row.way.name().into(),
            show(f.calls_per_s),
            show(f.p50_us),
            show(f.p99_us),
            router,
            show(f.servers_cpu_us),
            show(f.client_cpu_us),
        ]);
    }
    let mut tables = vec![closed, open, goals(report)];
    tables.retain(|table| !table.is_empty());
    tables
}

/// What was wanted and what it came to; whether it is reached says the reader, who knows what else the machine did.
fn goals(report: &Routed) -> Table {
    let mut table = Table::new("Goals", &["figure", "goal", "measured"]);
    if let Some(row) = report.find(Way::Router, CONNECTIONS, 16) {
        table.row(vec![
            "the router's processor time for a call, 4 x 16".into(),
            format!("at most {MOST_CPU_US} us"),
            format!("{} us", show(row.median.router_cpu_us)),
        ]);
    }
    for (direct, routed, most) in [
        (Way::Direct, Way::Router, MOST_ADDED_US),
        (Way::DirectUdp, Way::KernelUdp, MOST_ADDED_BY_KERNEL_US),
    ] {
        let [direct, found] = [direct, routed].map(|way| report.find(way, 1, 1));
        if let (Some(direct), Some(found)) = (direct, found) {
            table.row(vec![
                format!("what {:?} adds to the median, 1 x 1", routed.name()),
                format!("at most {most} us"),
                format!("{} us", show(found.median.p50_us - direct.median.p50_us)),
            ]);
        }
    }
    if !report.network {
        return table;
    }
    type Figure = (&'static str, fn(&Figures) -> f64);
    let mut ratio =
        |(what, figure): Figure, goal: String, load: String, found: [Option<&Row>; 2]| {
            if let [Some(of), Some(to)] = found {
                let ratio = figure(&of.median) / figure(&to.median);
                table.row(vec![
                    format!(
                        "{what} of {:?} to {:?}, {load}",
                        of.way.name(),
                        to.way.name()
                    ),
                    goal,
                    format!("{ratio:.2}"),
                ]);
            }
        };
    let calls: Figure = ("calls/s", |f| f.calls_per_s);
    let cpu: Figure = ("router us/call", |f| f.router_cpu_us);
    let at_least = |what| format!("at least {what}");
    let at_most = |what| format!("at most {what}");
    let full = |ways: [Way; 2]| ways.map(|way| report.find(way, CONNECTIONS, 16));
    let load = || format!("{CONNECTIONS} x 16");
    let tcp = full([Way::Router, Way::Direct]);
    ratio(calls, at_least(LEAST_OF_FORWARDING), load(), tcp);
    let udp = full([Way::KernelUdp, Way::RouterUdp]);
    ratio(calls, at_least(LEAST_BY_KERNEL), load(), udp);
    ratio(("p50", |f| f.p50_us), "below 1".into(), load(), udp);
    ratio(cpu, "below 1".into(), load(), udp);
    let kernel = [Way::KernelTcp, Way::Router];
    let many = kernel.map(|way| report.find(way, 64, 1));
    ratio(calls, at_least(LEAST_BY_KERNEL_TCP), "64 x 1".into(), many);
    ratio(cpu, at_most(MOST_CPU_BY_KERNEL_TCP), "64 x 1".into(), many);
    for bytes in LONG_READS {
        let found = kernel.map(|way| report.find_long(way, bytes));
        ratio(cpu, at_most(MOST_CPU_BY_KERNEL_TCP), of_bytes(bytes), found);
    }
    let [_, longest] = LONG_READS;
    let found = [Way::KernelTcp, Way::Direct].map(|way| report.find_long(way, longest));
    let goal = at_least(LEAST_OF_FORWARDING_LONG);
    ratio(calls, goal, of_bytes(longest), found);
    table
}

/// Response time, and the router's processor time, over the offered load.
pub fn plots(report: &Routed) -> Vec<(String, Plot)> {
    let lines = |ways: &[Way], y: fn(&Figures) -> f64| {
        let line = |way: &Way| {
            let rows = report.router.iter().filter(|row| row.way == *way);
            let points = rows.filter_map(|row| Some((row.offered_per_s?, y(&row.median))));
            (way.name().to_string(), points.collect())
        };
        ways.iter().map(line).collect()
    };
    let x = "calls offered in a second";
    let response = Plot {
        title: "Response time (Anypoint, Figure 9)".into(),
        x,
        y: "median, us",
        lines: lines(&Way::ALL, |f| f.p50_us),
        paper: Vec::new(),
    };
    let with_cpu: &[Way] = match report.network {
        true => &Way::ALL,
        false => &[Way::Router, Way::RouterThreads, Way::RouterUdp],
    };
    let cpu = Plot {
        title: "The router's processor (Anypoint, Figure 9)".into(),
        x,
        y: "parts of one processor",
        lines: lines(with_cpu, |f| f.router_cpu_us * f.calls_per_s / 1e6),
        paper: Vec::new(),
    };
    vec![
        ("router-response".into(), response),
        ("router-cpu".into(), cpu),
    ]
}
