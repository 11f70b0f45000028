//! `quorate bench`.

use std::fs::OpenOptions;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use quorate_bench::group::Launcher;
use quorate_bench::micro::Beside;
use quorate_bench::plot::Plot;
use quorate_bench::report::{Report, Table, VERSION};
use quorate_bench::{
    attackers, attacks, credentials, failover, files, micro, parallel, recovery, replica, router,
    run,
};
use serde::Serialize;

use crate::args::{Bench, Benchmark, Files, Measure, Micro, Recovery, Router};
use crate::commands;

pub fn run(args: &Bench) -> Result<()> {
    match &args.benchmark {
        Benchmark::Micro(args) => {
            let Micro { measure, .. } = args;
            let options = options(measure)?;
            let mut report = Report::new("micro", options.seconds, &options.data);
            let beside = Beside {
                verifiers: args.verifiers.map(usize::from),
                sealers: args.sealers.map(usize::from),
            };
            let ended = to_its_end(micro::run(&options, beside, &mut report));
            report.cut_short = why(&ended);
            let (tables, plots) = (micro::tables(&report), micro::plots(&report));
            show(measure, &report, &report, &tables, plots, ended)
        }
        Benchmark::Overhead(measure) => {
            let options = options(measure)?;
            let mut report = Report::new("overhead", options.seconds, &options.data);
            let ended = to_its_end(parallel::overhead(&options, &mut report));
            report.cut_short = why(&ended);
            let (tables, plots) = (parallel::tables(&report), parallel::plots(&report));
            show(measure, &report, &report, &tables, plots, ended)
        }
        Benchmark::Parallel(measure) => {
            let options = options(measure)?;
            let mut report = Report::new("parallel", options.seconds, &options.data);
            let ended = to_its_end(parallel::scalability(&options, &mut report));
            report.cut_short = why(&ended);
            let (tables, plots) = (parallel::tables(&report), parallel::plots(&report));
            show(measure, &report, &report, &tables, plots, ended)
        }
        Benchmark::Attacks(measure) => {
            let options = options(measure)?;
            let mut report = attacks::Attacks::new(&options);
            let ended = to_its_end(attacks::run(&options, &mut report));
            report.machine.cut_short = why(&ended);
            let tables = match report.attacks.is_empty() {
                true => Vec::new(),
                false => attacks::tables(&report),
            };
            show(
                measure,
                &report,
                &report.machine,
                &tables,
                Vec::new(),
                ended,
            )
        }
        Benchmark::Failover(measure) => {
            let options = options(measure)?;
            let mut report = failover::Failover::new(&options);
            let ended = to_its_end(failover::run(&options, &mut report));
            report.machine.cut_short = why(&ended);
            let tables = match report.failover.is_empty() {
                true => Vec::new(),
                false => failover::tables(&report),
            };
            show(
                measure,
                &report,
                &report.machine,
                &tables,
                Vec::new(),
                ended,
            )
        }
        Benchmark::Recovery(args) => {
            let options = recovery_options(args)?;
            let mut report = recovery::Recovery::new(&options);
            let ended = to_its_end(recovery::run(&options, &mut report));
            report.machine.cut_short = why(&ended);
            let (tables, plots) = (recovery::tables(&report), recovery::plots(&report));
            let machine = &report.machine;
            show(&args.measure, &report, machine, &tables, plots, ended)
        }
        Benchmark::Files(args) => {
            let (measure, options) = (&args.measure, files_options(args)?);
            let mut report = files::Files::new(&options);
            let ended = to_its_end(files::run(&options, &mut report));
            report.machine.cut_short = why(&ended);
            let (tables, plots) = match report.files.is_empty() {
                true => (Vec::new(), Vec::new()),
                false => (
                    files::figures::tables(&report),
                    files::figures::plots(&report),
                ),
            };
            show(measure, &report, &report.machine, &tables, plots, ended)
        }
        Benchmark::Credentials(args) => {
            let measure = &args.measure;
            let options = mounted_options(measure, &args.beside, Vec::new())?;
            let mut report = credentials::report(&options);
            let ended = to_its_end(credentials::run(&options, &mut report));
            report.machine.cut_short = why(&ended);
            let tables = match report.files.is_empty() {
                true => Vec::new(),
                false => credentials::tables(&report),
            };
            show(
                measure,
                &report,
                &report.machine,
                &tables,
                Vec::new(),
                ended,
            )
        }
        Benchmark::Router(Router { measure, network }) => {
            let run = options(measure)?;
            let launcher = |arguments: &[&str]| launcher(&run, arguments);
            let options = router::Options {
                server: launcher(&["bench", "server"]),
                router: launcher(&["route", "--json"]),
                network: *network,
                run,
            };
            let mut report = router::Routed::new(&options);
            let ended = to_its_end(router::run(&options, &mut report));
            report.machine.cut_short = why(&ended);
            let (tables, plots) = (router::tables(&report), router::plots(&report));
            show(measure, &report, &report.machine, &tables, plots, ended)
        }
        Benchmark::Server { at } => router::memory::run(*at),
        Benchmark::Attackers { spec } => attackers::run(spec),
        Benchmark::Replica { spec } => replica::run(spec),
    }
}

/// Why a benchmark did not come to its end.
fn why(ended: &Result<()>) -> Option<String> {
    ended.as_ref().err().map(|e| format!("{e:#}"))
}

fn options(args: &Measure) -> Result<run::Options> {
    can_save(args)?;
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

/// How to start this program with other arguments.
fn launcher(run: &run::Options, arguments: &[&str]) -> Launcher {
    Launcher {
        program: run.launcher.program.clone(),
        arguments: arguments.iter().map(ToString::to_string).collect(),
    }
}

/// Runs a benchmark in this one thread; the load is driven by the thread itself. When the process is asked to end,
/// replicas and files go first.
fn to_its_end(benchmark: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("can't start the asynchronous runtime")?;
    runtime.block_on(async {
        tokio::select! {
            ended = benchmark => ended,
            () = commands::asked_to_end() => bail!("asked to end before it was done"),
        }
    })
}

fn files_options(args: &Files) -> Result<files::Options> {
    let copies = args.copies.iter().map(|n| usize::from(*n)).collect();
    mounted_options(&args.measure, &args.beside, copies)
}

fn mounted_options(
    measure: &Measure,
    beside: &[(String, PathBuf)],
    copies: Vec<usize>,
) -> Result<files::Options> {
    let run = options(measure)?;
    Ok(files::Options {
        mount: launcher(&run, &["mount", "--with-parent"]),
        umount: launcher(&run, &["umount", "--lazy"]),
        nfs: launcher(&run, &["nfs", "--with-parent"]),
        copies,
        beside: beside.to_vec(),
        run,
    })
}

fn recovery_options(args: &Recovery) -> Result<recovery::Options> {
    let run = options(&args.measure)?;
    let seconds = |periods: &[u16]| periods.iter().map(|s| u64::from(*s)).collect();
    Ok(match run.quick {
        true => recovery::Options {
            run,
            state_mb: vec![8],
            periods_s: vec![4],
            in_a_row: 1,
            refresh_s: vec![1],
        },
        false => recovery::Options {
            run,
            state_mb: args.state.iter().map(|mb| usize::from(*mb)).collect(),
            periods_s: seconds(&args.periods),
            in_a_row: u32::from(args.in_a_row),
            refresh_s: seconds(&args.key_refresh),
        },
    })
}

fn no_case(args: &Measure) -> anyhow::Error {
    anyhow!("no case has all of {:?} in its name", args.only)
}

/// Shows and writes what was measured, also where the benchmark did not come to its end.
fn show(
    args: &Measure,
    report: &impl Serialize,
    machine: &Report,
    tables: &[Table],
    mut plots: Vec<(String, Plot)>,
    ended: Result<()>,
) -> Result<()> {
    if tables.is_empty() {
        return ended.and(Err(no_case(args)));
    }
    if machine.cut_short.is_some() {
        for (_, plot) in &mut plots {
            plot.title.push_str(" - incomplete");
        }
    }
    tell!(
        "Quorate {}, {} processors ({}), Linux {}, load average before {}, {} s each\n",
        VERSION,
        machine.processors,
        machine.processor,
        machine.kernel,
        machine.load_before,
        machine.seconds
    );
    if !machine.optimised {
        tell!(
            "Built without optimisations (`cargo build --release` has them): the figures mean nothing.\n"
        );
    }
    if let Some(why) = &machine.cut_short {
        tell!("INCOMPLETE: {why}. Medians are over the rounds that were measured.\n");
    }
    tables.iter().for_each(|table| tell!("{table}"));
    // The figures are shown by now, whatever becomes of the files.
    save(args, report, &plots).and(ended)
}

/// Finds out before anything is measured whether the files that are wanted can be written.
fn can_save(args: &Measure) -> Result<()> {
    if let Some(path) = &args.json {
        let opened = OpenOptions::new().create(true).append(true).open(path);
        opened.with_context(|| format!("can't write {}", path.display()))?;
    }
    if let Some(directory) = &args.out {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("can't make {}", directory.display()))?;
        let may = rustix::fs::access(directory, rustix::fs::Access::WRITE_OK);
        may.with_context(|| format!("can't write files in {}", directory.display()))?;
    }
    Ok(())
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
