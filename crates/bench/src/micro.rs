//! The micro-benchmark: 0/0, 4/0 and 0/4 of BFT beside NO-REP. Castro and Liskov, OSDI 2000, Table 1 and Figure 5.

use anyhow::Result;
use quorate_agreement::client::ClientOptions;
use quorate_net::group::Durability;
use quorate_wire::Authentication;

use crate::Workload;
use crate::group::Setup;
use crate::load::{Load, Parallelism};
use crate::paper;
use crate::plot::{Mark, Plot};
use crate::progress::Progress;
use crate::replica::Tunings;
use crate::report::{Figures, Report, Row, Table, show};
use crate::run::{self, Case, Options, Variant, all_cases};

const OPERATIONS: [Workload; 3] = [Workload::of(0, 0), Workload::of(4, 0), Workload::of(0, 4)];
/// As in the papers' plots.
const CLIENTS: [usize; 7] = [1, 5, 10, 20, 50, 100, 200];
/// What a mount has in flight at most: a session's window.
const WINDOW: usize = 64;
/// Separate clients, where they are what a switch is about.
const MANY: usize = 100;

/// How many threads of each replica are to do what its ordering thread does else, where that is to be measured as well.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beside {
    /// Check signatures.
    pub verifiers: Option<usize>,
    /// Seal what is long, or much together.
    pub sealers: Option<usize>,
}

/// Runs the benchmark.
///
/// # Errors
/// Where a group does not start or answer.
pub async fn run(options: &Options, beside: Beside, report: &mut Report) -> Result<()> {
    let mut variants = variants();
    if let Some(verifiers) = beside.verifiers {
        variants.extend(verifying(verifiers));
    }
    let cases = cases(options, &variants);
    let mut switches = switches();
    if let Some(sealers) = beside.sealers {
        let mut sealing = variant("with sealers", 4, Durability::Memory);
        sealing.setup.sealers = sealers;
        switches.push(sealing);
    }
    let switched = switch_cases(options, &switches);
    let mut progress = Progress::new((cases.len() + switched.len()) * options.rounds);
    run::measure(options, &variants, &cases, &mut progress, report).await?;
    run::measure(options, &switches, &switched, &mut progress, report).await
}

/// The systems that the paper compares.
fn variants() -> Vec<Variant> {
    vec![
        variant("NO-REP memory", 1, Durability::Memory),
        variant("NO-REP disk", 1, Durability::Disk),
        variant("BFT memory", 4, Durability::Memory),
        variant("BFT disk", 4, Durability::Disk),
        signing("BFT-PK memory", 4),
    ]
}

/// A group in which all that is asked is signed, reads among it: these are ordered, since one that is not rests on TLS.
fn signing(name: &str, replicas: usize) -> Variant {
    let mut variant = variant(name, replicas, Durability::Memory);
    variant.setup.authentication = Authentication::Signature;
    variant.setup.unordered_reads = false;
    variant.options.unordered_reads = false;
    variant
}

/// Groups with signatures, with and without threads that check these. A group of one has a processor to spare for them also where four
/// replicas have none.
fn verifying(verifiers: usize) -> Vec<Variant> {
    let with = |name: &str, replicas| {
        let mut variant = signing(name, replicas);
        variant.setup.verifiers = verifiers;
        variant
    };
    vec![
        with("BFT-PK memory, verifiers", 4),
        signing("NO-REP-PK memory", 1),
        with("NO-REP-PK memory, verifiers", 1),
    ]
}

/// A variant with all optimisations, whose operations are executed one after the other.
pub(crate) fn variant(name: &str, replicas: usize, durability: Durability) -> Variant {
    Variant {
        name: name.into(),
        setup: Setup {
            replicas,
            durability,
            authentication: Authentication::Mac,
            unordered_reads: true,
            tuning: Tunings::default(),
            workers: 0,
            one_by_one: false,
            verifiers: 0,
            sealers: 0,
            owned: false,
            files: None,
            fault: None,
        },
        options: ClientOptions::default(),
        parallelism: Parallelism::None,
    }
}

fn cases(options: &Options, variants: &[Variant]) -> Vec<Case> {
    let reads = [Workload::of(0, 0).reads(), Workload::of(0, 4).reads()];
    let operations: Vec<_> = OPERATIONS.into_iter().chain(reads).collect();
    let mut loads = Vec::new();
    for workload in operations {
        loads.push(("latency", Load::of(workload, 1, 1)));
        loads.push(("window", Load::of(workload, 1, WINDOW)));
        let clients: &[usize] = if options.quick { &[8] } else { &CLIENTS };
        let points = clients
            .iter()
            .map(|c| ("throughput", Load::of(workload, *c, 1)));
        loads.extend(points);
    }
    if options.quick {
        // Each part once, and each way that an operation goes.
        loads.retain(|(part, load)| match *part {
            "latency" => load.workload.request == 0,
            "window" => load.workload == OPERATIONS[1],
            _ => load.workload.read_only && load.workload.result == 0,
        });
    }
    all_cases(options, variants, &loads)
}

/// The optimisations, each switched off by itself.
fn switches() -> Vec<Variant> {
    let all = || variant("all on", 4, Durability::Memory);
    let without = |name: &str, change: fn(&mut Variant)| {
        let mut variant = Variant {
            name: name.into(),
            ..all()
        };
        change(&mut variant);
        variant
    };
    vec![
        all(),
        without("no tentative execution", |v| {
            v.setup.tuning.tentative = false;
        }),
        without("all reads ordered", |v| {
            v.setup.unordered_reads = false;
            v.options.unordered_reads = false;
        }),
        without("no early reads", |v| v.options.early_reads = false),
        without("no digest replies", |v| v.options.digest_replies = false),
        without("each replica replies", |v| {
            v.setup.tuning.vouched_from = usize::MAX;
        }),
        without("no batching", |v| v.setup.tuning.batch_requests = 1),
        without("one batch at a time", |v| v.setup.tuning.batches = 1),
        without("no separate sending", |v| {
            v.setup.tuning.inline_bytes = usize::MAX;
            v.options.inline_bytes = usize::MAX;
        }),
    ]
}

fn switch_cases(options: &Options, variants: &[Variant]) -> Vec<Case> {
    let mut operations = vec![
        Workload::of(0, 0),
        Workload::of(0, 0).reads(),
        Workload::of(0, 0).and_reads(),
        Workload::of(0, 4),
        // Long enough to be sent separately.
        Workload::of(64, 0),
        // Long enough for sealers.
        Workload::of(0, 64).reads(),
    ];
    if options.quick {
        operations.truncate(1);
    }
    let of = |w: Workload| {
        [
            Load::of(w, 1, 1),
            Load::of(w, 1, WINDOW),
            Load::of(w, MANY, 1),
        ]
    };
    let loads = operations.into_iter().flat_map(of);
    let mut loads: Vec<_> = loads.map(|load| ("switches", load)).collect();
    if options.quick {
        loads.truncate(1);
    }
    all_cases(options, variants, &loads)
}

/// The tables of a report.
pub fn tables(report: &Report) -> Vec<Table> {
    let tables = [
        latency(report),
        peaks(report),
        points(report),
        switched(report),
    ];
    tables.into_iter().filter(|t| !t.is_empty()).collect()
}

const FIGURES: [&str; 5] = [
    "p50 us",
    "p99 us",
    "ops/s",
    "CPU us/op, replicas",
    "CPU us/op, clients",
];

fn figures(figures: &Figures) -> impl Iterator<Item = String> {
    let Figures {
        p50_us,
        p99_us,
        ops_per_s,
        replica_cpu_us,
        client_cpu_us,
    } = *figures;
    [p50_us, p99_us, ops_per_s, replica_cpu_us, client_cpu_us]
        .into_iter()
        .map(show)
}

/// What a variant is compared with: BFT with NO-REP, BFT-PK with BFT.
fn baseline(variant: &str) -> Option<String> {
    if let Some(durability) = variant.strip_prefix("BFT-PK ") {
        return Some(format!("BFT {durability}"));
    }
    let durability = variant.strip_prefix("BFT ")?;
    Some(format!("NO-REP {durability}"))
}

const COMPARED: [&str; 3] = ["ratio", "to", "paper"];

/// The ratio of a figure to that of the variant's baseline among these rows.
fn compared(
    rows: &[&Row],
    row: &Row,
    figure: fn(&Figures) -> f64,
    paper: String,
) -> Option<[String; 3]> {
    let name = baseline(&row.variant)?;
    let mut rows = rows.iter();
    let base = rows.find(|r| r.variant == name && r.workload == row.workload)?;
    let ratio = figure(&row.median) / figure(&base.median);
    Some([show(ratio), name, paper])
}

fn latency(report: &Report) -> Table {
    let heads = [&["operation, variant"], &FIGURES[..], &COMPARED].concat();
    let mut table = Table::new("One client (paper: Table 1; ratio of p50)", &heads);
    let rows: Vec<&Row> = report.part("latency").collect();
    for row in &rows {
        let mut cells = vec![format!("{} {}", row.workload, row.variant)];
        cells.extend(figures(&row.median));
        let paper = paper::latency(&row.variant, &row.workload);
        let ratio = compared(&rows, row, |f| f.p50_us, paper);
        cells.extend(ratio.into_iter().flatten());
        table.row(cells);
    }
    table
}

/// The highest throughput of each variant, over separate clients and over one connection.
fn peaks(report: &Report) -> Table {
    let heads = [
        &["operation, variant", "clients x in flight"],
        &FIGURES[..],
        &COMPARED,
    ];
    let title = "Highest throughput (paper: Figure 5; ratio of ops/s)";
    let mut table = Table::new(title, &heads.concat());
    for part in ["throughput", "window"] {
        let rows = best(report, part);
        for row in &rows {
            let mut cells = vec![
                format!("{} {}", row.workload, row.variant),
                format!("{} x {}", row.clients, row.in_flight),
            ];
            cells.extend(figures(&row.median));
            let paper = match part {
                "throughput" => paper::throughput(&row.variant, &row.workload),
                _ => String::new(),
            };
            let ratio = compared(&rows, row, |f| f.ops_per_s, paper);
            cells.extend(ratio.into_iter().flatten());
            table.row(cells);
        }
    }
    table
}

/// Of each workload and variant the row with the highest throughput.
fn best<'a>(report: &'a Report, part: &'static str) -> Vec<&'a Row> {
    let mut best: Vec<&Row> = Vec::new();
    for row in report.part(part) {
        let known = best
            .iter_mut()
            .find(|b| b.workload == row.workload && b.variant == row.variant);
        match known {
            Some(known) if known.median.ops_per_s >= row.median.ops_per_s => {}
            Some(known) => *known = row,
            None => best.push(row),
        }
    }
    best
}

/// Throughput over clients, a line each variant.
fn points(report: &Report) -> Table {
    let rows: Vec<&Row> = report.part("throughput").collect();
    let mut clients: Vec<usize> = rows.iter().map(|r| r.clients).collect();
    clients.sort_unstable();
    clients.dedup();
    let heads: Vec<String> = clients.iter().map(ToString::to_string).collect();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let mut table = Table::new(
        "ops/s over separate clients (paper: Figure 5)",
        &[&["operation, variant"], &heads[..]].concat(),
    );
    for line in best(report, "throughput") {
        let of = |clients: &usize| {
            let row = rows.iter().find(|r| {
                (&r.workload, &r.variant, r.clients) == (&line.workload, &line.variant, *clients)
            });
            row.map_or(String::new(), |r| show(r.median.ops_per_s))
        };
        let mut cells = vec![format!("{} {}", line.workload, line.variant)];
        cells.extend(clients.iter().map(of));
        table.row(cells);
    }
    table
}

fn switched(report: &Report) -> Table {
    let heads = [&["operation, clients x in flight, variant"], &FIGURES[..]].concat();
    let mut table = Table::new("BFT memory, optimisations switched off one by one", &heads);
    for row in report.part("switches") {
        let name = format!(
            "{} {} x {} {}",
            row.workload, row.clients, row.in_flight, row.variant
        );
        let mut cells = vec![name];
        cells.extend(figures(&row.median));
        table.row(cells);
    }
    table
}

/// The plots of a report, with names for their files.
pub fn plots(report: &Report) -> Vec<(String, Plot)> {
    let lines = best(report, "throughput");
    let mut workloads: Vec<&String> = lines.iter().map(|row| &row.workload).collect();
    workloads.dedup();
    let plot = |workload: &String| {
        let of = |line: &&Row| {
            let points = report
                .part("throughput")
                .filter(|r| r.workload == line.workload && r.variant == line.variant);
            let points = points.map(|r| (r.clients as f64, r.median.ops_per_s));
            (line.variant.clone(), points.collect())
        };
        let lines = lines.iter().filter(|line| line.workload == *workload);
        // To what it is compared with here, as it was there.
        let mark = |line: &Row| {
            let name = baseline(&line.variant)?;
            let base = lines.clone().find(|base| base.variant == name)?;
            let (from, to) = paper::range(&paper::throughput(&line.variant, workload))?;
            let base = base.median.ops_per_s;
            Some(Mark {
                line: line.variant.clone(),
                x: line.clients as f64,
                from: from * base,
                to: to * base,
            })
        };
        let paper = lines.clone().copied().filter_map(mark).collect();
        let plot = Plot {
            title: format!("{workload}: throughput over clients (OSDI 2000, Figure 5)"),
            x: "clients",
            y: "operations/s",
            lines: lines.map(of).collect(),
            paper,
        };
        (format!("micro-{}", workload.replace(['/', ' '], "-")), plot)
    };
    workloads.into_iter().map(plot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(variant: &str, clients: usize, ops_per_s: f64) -> Row {
        let median = Figures {
            ops_per_s,
            ..Figures::default()
        };
        Row {
            part: "throughput",
            workload: "0/0".into(),
            variant: variant.into(),
            clients,
            in_flight: 1,
            ideal_ops_per_s: None,
            paper: None,
            median,
            rounds: vec![median],
        }
    }

    /// What has signatures in its name has none that are spared: its reads are ordered, by its replicas and its clients.
    #[test]
    fn what_signs_orders_its_reads() {
        for variant in variants().into_iter().chain(verifying(1)) {
            let signs = variant.setup.authentication == Authentication::Signature;
            assert_eq!(variant.name.contains("-PK "), signs);
            let unordered = [
                variant.setup.unordered_reads,
                variant.options.unordered_reads,
            ];
            assert_eq!(unordered, [!signs; 2], "{}", variant.name);
        }
    }

    /// The paper's ratios are drawn from what they are ratios to, where the variant itself is highest.
    #[test]
    fn plots_have_the_papers_ratios() {
        let mut report = Report::new("micro", 1.0, std::path::Path::new("/"));
        report.rows = vec![
            row("NO-REP memory", 10, 1_000.0),
            row("NO-REP memory", 50, 2_000.0),
            row("BFT memory", 10, 600.0),
            row("BFT memory", 50, 500.0),
            row("BFT-PK memory", 10, 20.0),
        ];
        let plots = plots(&report);
        assert_eq!(plots.len(), 1);
        let mark = |line: &str, from, to| Mark {
            line: line.into(),
            x: 10.0,
            from,
            to,
        };
        let of_bft = mark("BFT memory", 0.47 * 2_000.0, 0.47 * 2_000.0);
        let of_bft_pk = mark("BFT-PK memory", 0.09 * 600.0, 0.2 * 600.0);
        assert_eq!(plots[0].1.paper, [of_bft, of_bft_pk]);
    }
}
