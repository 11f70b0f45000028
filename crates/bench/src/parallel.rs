//! Parallel execution: what it costs where nothing is gained, and what it gains where operations wait. The CBASE paper (DSN
//! 2004), Figures 4 and 5.
//!
//! BASE executes one operation after the other, which all conflict; CBASE runs what does not conflict on worker threads.

use std::time::Duration;

use anyhow::Result;
use quorate_net::group::Durability;

use crate::Workload;
use crate::graph;
use crate::load::{Load, Parallelism, Random};
use crate::micro::variant;
use crate::paper;
use crate::plot::{Mark, Plot};
use crate::progress::Progress;
use crate::report::{Figures, Report, Row, Table, show};
use crate::run::{self, Case, Options, Variant, all_cases};

/// How long an operation of Figure 5 waits.
const WAIT_MS: u32 = 20;
const ROUND: Duration = Duration::from_millis(WAIT_MS as u64);
const CLIENTS: [usize; 8] = [1, 10, 25, 50, 75, 100, 150, 200];
/// The threads of Figure 5 (a).
const THREADS: [usize; 6] = [1, 2, 8, 16, 64, 128];
/// The parallelism factors of Figure 5 (b), where 100 threads stand for 100 disks; the last is infinite.
const FACTORS: [u32; 7] = [1, 5, 10, 20, 50, 100, 150];
const DISKS: usize = 100;

/// Figure 4, after the graph by itself: null operations, which return at once and are all independent for CBASE, with 16 threads as in the paper.
///
/// # Errors
/// Where a group does not start or answer.
pub async fn overhead(options: &Options, report: &mut Report) -> Result<()> {
    graph::measure(options, report);
    let inline = variant("inline", 4, Durability::Memory);
    let variants = vec![
        base(),
        cbase("CBASE".into(), 16, Parallelism::Infinite),
        inline,
    ];
    let figure = figure(options, "figure-4", 0, variants);
    measure(options, &[figure], report).await
}

/// Figure 5, (a) and (b): operations of 20 ms.
///
/// # Errors
/// Where a group does not start or answer.
pub async fn scalability(options: &Options, report: &mut Report) -> Result<()> {
    let threads = THREADS.map(|n| {
        let name = format!("CBASE, {n} threads");
        cbase(name, n, Parallelism::Infinite)
    });
    let variants = [base()].into_iter().chain(threads).collect();
    let by_threads = figure(options, "figure-5a", WAIT_MS, variants);

    let factors = FACTORS.map(|p| {
        let name = format!("CBASE, factor {p}");
        cbase(name, DISKS, Parallelism::Factor(p))
    });
    let infinite = cbase("CBASE, factor inf".into(), DISKS, Parallelism::Infinite);
    let variants = [base()].into_iter().chain(factors).chain([infinite]);
    let by_factor = figure(options, "figure-5b", WAIT_MS, variants.collect());
    measure(options, &[by_threads, by_factor], report).await
}

/// One thread, and a graph in which all conflict.
fn base() -> Variant {
    let mut base = variant("BASE", 4, Durability::Memory);
    (base.setup.workers, base.setup.one_by_one) = (1, true);
    base
}

fn cbase(name: String, workers: usize, parallelism: Parallelism) -> Variant {
    let mut variant = Variant {
        name,
        parallelism,
        ..base()
    };
    (variant.setup.workers, variant.setup.one_by_one) = (workers, false);
    variant
}

/// A figure's systems and cases.
struct Figure {
    variants: Vec<Variant>,
    cases: Vec<Case>,
}

fn figure(
    options: &Options,
    part: &'static str,
    wait_ms: u32,
    mut variants: Vec<Variant>,
) -> Figure {
    if options.quick {
        // The fewest, some, and the most at the same time.
        let some = [0, variants.len() / 2, variants.len() - 1];
        variants = some.iter().map(|at| variants[*at].clone()).collect();
    }
    let clients: &[usize] = if options.quick { &[4] } else { &CLIENTS };
    let load = |clients: &usize| Load {
        workload: Workload::of(0, 0),
        wait_ms,
        clients: *clients,
        in_flight: 1,
    };
    let loads: Vec<_> = clients.iter().map(|c| (part, load(c))).collect();
    let mut cases = all_cases(options, &variants, &loads);
    if wait_ms > 0 {
        for case in &mut cases {
            let (variant, clients) = (&variants[case.variant], case.load.clients);
            // The last of those that came at the same time has its turn then.
            let rough = ideal(variant, clients, (Duration::ZERO, 500 * ROUND));
            case.settles_in = Duration::from_secs_f64(clients as f64 / rough);
            let window = options.window(1, case.settles_in);
            let ideal = ideal(variant, clients, (window.warm_up, window.measured));
            case.ideal_ops_per_s = Some(ideal);
        }
    }
    Figure { variants, cases }
}

async fn measure(options: &Options, figures: &[Figure], report: &mut Report) -> Result<()> {
    let cases: usize = figures.iter().map(|figure| figure.cases.len()).sum();
    let mut progress = Progress::new(cases * options.rounds);
    for Figure { variants, cases } in figures {
        run::measure(options, variants, cases, &mut progress, report).await?;
    }
    Ok(())
}

/// Operations in a second where nothing but waiting takes time: rounds of [`WAIT_MS`] in which each thread serves one
/// operation whose bucket is free, in the order in which they came. Counted over what is measured after the warm-up, since random buckets
/// lose more once long queues have grown; the mean of many such runs.
fn ideal(variant: &Variant, clients: usize, (warm_up, measured): (Duration, Duration)) -> f64 {
    const RUNS: u64 = 40;
    let rounds = |time: Duration| (time.as_millis() / ROUND.as_millis()) as usize;
    let (skipped, rounds) = (rounds(warm_up), rounds(measured).max(1));
    let threads = variant.setup.workers.max(1);
    let factor = match variant.parallelism {
        Parallelism::None => 1,
        Parallelism::Factor(factor) => factor,
        Parallelism::Infinite => return per_second(threads.min(clients) as f64),
    };
    let served = (0..RUNS).map(|run| served(run, (threads, factor, clients), (skipped, rounds)));
    per_second(served.sum::<usize>() as f64 / (RUNS as usize * rounds) as f64)
}

/// The operations of one run that are served after the rounds that are skipped.
fn served(
    run: u64,
    (threads, factor, clients): (usize, u32, usize),
    (skipped, rounds): (usize, usize),
) -> usize {
    let mut random = Random(run);
    let mut queue: Vec<u32> = (0..clients).map(|_| random.below(factor)).collect();
    let mut served = 0;
    for round in 0..skipped + rounds {
        let mut busy = vec![false; factor as usize];
        let (mut free, before) = (threads, queue.len());
        queue.retain(|bucket| {
            let bucket = &mut busy[*bucket as usize];
            let runs = !*bucket && free > 0;
            if runs {
                (*bucket, free) = (true, free - 1);
            }
            !runs
        });
        let done = before - queue.len();
        served += if round < skipped { 0 } else { done };
        queue.extend((0..done).map(|_| random.below(factor)));
    }
    served
}

fn per_second(at_once: f64) -> f64 {
    at_once * 1000.0 / f64::from(WAIT_MS)
}

/// The tables of a report.
pub fn tables(report: &Report) -> Vec<Table> {
    let mut tables = vec![alone(report)];
    for (part, title) in [
        ("figure-4", "Null operations (CBASE paper, Figure 4)"),
        (
            "figure-5a",
            "20 ms operations, threads (CBASE paper, Figure 5 a)",
        ),
        (
            "figure-5b",
            "20 ms operations, 100 threads (CBASE paper, Figure 5 b: grows up to factor 100)",
        ),
    ] {
        let heads = [
            "variant, clients",
            "ops/s",
            "of ideal",
            "paper: ops/s at most",
            "rounds: ops/s",
            "p50 us",
            "p99 us",
            "CPU us/op, clients",
            "CPU us/op, replicas",
            "more than BASE",
            "paper",
        ];
        let mut table = Table::new(title, &heads);
        for row in report.part(part) {
            let more = of_base(report, row).map(|base| {
                let more = row.median.replica_cpu_us - base.median.replica_cpu_us;
                show(more)
            });
            let share = row
                .ideal_ops_per_s
                .map(|i| row.median.ops_per_s / i * 100.0);
            table.row(vec![
                format!("{}, {}", row.variant, row.clients),
                show(row.median.ops_per_s),
                share.map_or(String::new(), |s| format!("{s:.1} %")),
                paper::parallel(part, &row.variant).into(),
                range(&row.rounds),
                show(row.median.p50_us),
                show(row.median.p99_us),
                show(row.median.client_cpu_us),
                show(row.median.replica_cpu_us),
                more.unwrap_or_default(),
                paper::overhead(part, &row.variant).into(),
            ]);
        }
        tables.push(table);
    }
    tables.retain(|t| !t.is_empty());
    tables
}

/// The slowest and the fastest round: a stall in one would not show in the median.
fn range(rounds: &[Figures]) -> String {
    let all = rounds.iter().map(|round| round.ops_per_s);
    let (low, high) = all.fold((f64::INFINITY, 0.0_f64), |(low, high), ops| {
        (low.min(ops), high.max(ops))
    });
    format!("{}-{}", show(low), show(high))
}

/// The graph by itself.
fn alone(report: &Report) -> Table {
    let heads = ["operation", "in the graph", "CPU us/op", "paper"];
    let title =
        "The dependency graph by itself, in one thread (goal: under 1 us for null operations)";
    let mut table = Table::new(title, &heads);
    for row in report.part(graph::PART) {
        table.row(vec![
            row.workload.clone(),
            row.in_flight.to_string(),
            show(row.median.replica_cpu_us),
            paper::overhead(row.part, &row.workload).into(),
        ]);
    }
    table
}

fn of_base<'a>(report: &'a Report, row: &Row) -> Option<&'a Row> {
    let mut rows = report.part(row.part);
    rows.find(|r| r.variant == "BASE" && r.clients == row.clients && row.variant != "BASE")
}

/// The plots of a report, with names for their files.
pub fn plots(report: &Report) -> Vec<(String, Plot)> {
    let plot = |(part, title): (&'static str, &str)| {
        let mut lines: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
        for row in report.part(part) {
            let point = (row.clients as f64, row.median.ops_per_s);
            match lines.iter_mut().find(|(name, _)| *name == row.variant) {
                Some((_, points)) => points.push(point),
                None => lines.push((row.variant.clone(), vec![point])),
            }
        }
        let mark = |(name, points): &(String, Vec<(f64, f64)>)| {
            let (from, to) = paper::range(paper::parallel(part, name))?;
            let (x, _) = points.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
            Some(Mark {
                line: name.clone(),
                x: *x,
                from,
                to,
            })
        };
        let plot = Plot {
            title: title.into(),
            x: "clients",
            y: "operations/s",
            paper: lines.iter().filter_map(mark).collect(),
            lines,
        };
        (part.to_string(), plot)
    };
    [
        (
            "figure-4",
            "Overhead of CBASE over BASE (DSN 2004, Figure 4)",
        ),
        (
            "figure-5a",
            "20 ms operations over threads (DSN 2004, Figure 5 a)",
        ),
        (
            "figure-5b",
            "20 ms operations over parallelism (DSN 2004, Figure 5 b)",
        ),
    ]
    .map(plot)
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where requests collide in their buckets, the ideal is below what the threads could do; else it is that.
    #[test]
    fn the_ideal() {
        let of = |threads, parallelism, clients| {
            let window = (50 * ROUND, 500 * ROUND);
            ideal(&cbase("x".into(), threads, parallelism), clients, window).round()
        };
        assert_eq!(ideal(&base(), 200, (ROUND, ROUND)), 50.0);
        assert_eq!(of(128, Parallelism::Infinite, 200), 6400.0);
        assert_eq!(of(128, Parallelism::Infinite, 10), 500.0);
        assert_eq!(of(100, Parallelism::Factor(1), 200), 50.0);
        let hundred = of(100, Parallelism::Factor(100), 200);
        assert!((3000.0..4900.0).contains(&hundred), "{hundred}");
        assert!(of(100, Parallelism::Factor(150), 200) > hundred);
        // Long queues take time to grow.
        let variant = cbase("x".into(), 100, Parallelism::Factor(20));
        let after = |rounds| ideal(&variant, 100, (rounds * ROUND, 50 * ROUND));
        assert!(after(500) < after(0));
    }
}
