//! `quorate bench`.

use anyhow::{Context, Result, anyhow, bail};
use quorate_bench::group::Launcher;
use quorate_bench::plot::Plot;
use quorate_bench::report::{Report, Table};
use quorate_bench::{attackers, attacks, failover, files, micro, parallel, replica, run};
use serde::Serialize;

use crate::args::{Bench, Benchmark, Files, Measure};
use crate::commands;

pub fn run(args: &Bench) -> Result<()> {
    match &args.benchmark {
        Benchmark::Micro(measure) => {
            let report = to_its_end(micro::run(&options(measure)?))?;
            let (tables, plots) = (micro::tables(&report), micro::plots(&report));
            show(measure, &report, &tables, &plots)
        }
        Benchmark::Overhead(measure) => {
            let report = to_its_end(parallel::overhead(&options(measure)?))?;
            let (tables, plots) = (parallel::tables(&report), parallel::plots(&report));
            show(measure, &report, &tables, &plots)
        }
        Benchmark::Parallel(measure) => {
            let report = to_its_end(parallel::scalability(&options(measure)?))?;
            let (tables, plots) = (parallel::tables(&report), parallel::plots(&report));
            show(measure, &report, &tables, &plots)
        }
        Benchmark::Attacks(measure) => {
            let report = to_its_end(attacks::run(&options(measure)?))?;
            let tables = attacks::tables(&report);
            save(measure, &report, &[])?;
            tables.iter().for_each(|table| println!("{table}"));
            Ok(())
        }
        Benchmark::Failover(measure) => {
            let report = to_its_end(failover::run(&options(measure)?))?;
            let tables = failover::tables(&report);
            save(measure, &report, &[])?;
            tables.iter().for_each(|table| println!("{table}"));
            Ok(())
        }
        Benchmark::Files(args) => {
            let measure = &args.measure;
            let files = to_its_end(files::run(&files_options(args)?))?;
            let (tables, plots) = (
                files::figures::tables(&files),
                files::figures::plots(&files),
            );
            if files.files.is_empty() {
                return Err(no_case(measure));
            }
            save(measure, &files, &plots)?;
            print(&files.machine, &tables);
            Ok(())
        }
        Benchmark::Attackers { spec } => attackers::run(spec),
        Benchmark::Replica { spec } => replica::run(spec),
    }
}

fn options(args: &Measure) -> Result<run::Options> {
    let program = std::env::current_exe().context("can't find this program's own file")?;
    let (rounds, seconds) = match args.quick {
        true => (1, 0.1),
        false => (usize::from(args.rounds.max(1)), args.seconds),
    };
    Ok(run::Options {
        launcher: Launcher {
            program,
            arguments: vec!["bench".into(), "replica".into()],
        },
        data: args.data.clone().unwrap_or_else(std::env::temp_dir),
        rounds,
        seconds,
        quick: args.quick,
        only: args.only.clone(),
    })
}

/// Runs a benchmark in this one thread; the load is driven by the thread itself. When the process is asked to end,
/// replicas and files go first.
fn to_its_end<R>(benchmark: impl Future<Output = Result<R>>) -> Result<R> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("can't start the asynchronous runtime")?;
    runtime.block_on(async {
        tokio::select! {
            report = benchmark => report,
            () = commands::asked_to_end() => bail!("ended before it was done"),
        }
    })
}

fn files_options(args: &Files) -> Result<files::Options> {
    let run = options(&args.measure)?;
    let launcher = |arguments: &[&str]| Launcher {
        program: run.launcher.program.clone(),
        arguments: arguments.iter().map(ToString::to_string).collect(),
    };
    Ok(files::Options {
        mount: launcher(&["mount", "--with-parent"]),
        umount: launcher(&["umount", "--lazy"]),
        copies: args.copies.iter().map(|n| usize::from(*n)).collect(),
        beside: args.beside.clone(),
        run,
    })
}

fn no_case(args: &Measure) -> anyhow::Error {
    anyhow!("no case has all of {:?} in its name", args.only)
}

fn show(args: &Measure, report: &Report, tables: &[Table], plots: &[(String, Plot)]) -> Result<()> {
    if tables.is_empty() {
        return Err(no_case(args));
    }
    save(args, report, plots)?;
    print(report, tables);
    Ok(())
}

/// What is to be known of the machine, and the tables.
fn print(report: &Report, tables: &[Table]) {
    println!(
        "{} processors, Linux {}, load average before {}, {} s each\n",
        report.processors, report.kernel, report.load_before, report.seconds
    );
    tables.iter().for_each(|table| println!("{table}"));
}

/// Writes what is wanted as files.
fn save(args: &Measure, report: &impl Serialize, plots: &[(String, Plot)]) -> Result<()> {
    if let Some(path) = &args.json {
        let json = serde_json::to_string_pretty(report)?;
        std::fs::write(path, json + "\n")
            .with_context(|| format!("can't write {}", path.display()))?;
    }
    if let Some(directory) = &args.out {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("can't make {}", directory.display()))?;
        for (name, plot) in plots {
            plot.save(&directory.join(format!("{name}.svg")))?;
        }
    }
    Ok(())
}
