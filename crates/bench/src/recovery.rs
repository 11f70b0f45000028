//! What proactive recovery takes and costs: Table 4 of PBFT 2002 (TOCS) done anew, and the work of clients with and without staggered recoveries
//! and renewals of keys.
//!
//! Groups are those of `quorate up`, with their files mounted; recoveries are begun as operators begin them. The steps are told by the
//! replica, the whole by its supervisor.

mod figures;
mod site;
mod work;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use tokio::time::{Instant, sleep, sleep_until};

use crate::report::Report;
use crate::run;
pub use figures::{plots, tables};
use site::Site;
use work::Work;

/// Replicas of a group.
const REPLICAS: u8 = 4;
/// Threads that write files, one after the other each.
const WRITERS: usize = 4;

/// What is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rounds, directories.
    pub run: run::Options,
    /// Sizes of the state, in MB.
    pub state_mb: Vec<usize>,
    /// Periods Tw, in seconds.
    pub periods_s: Vec<u64>,
    /// How many periods Tw follow one another before it is another's turn.
    pub in_a_row: u32,
    /// Periods Tk, in seconds; beside a group that never renews its keys.
    pub refresh_s: Vec<u64>,
}

/// One recovery, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Phases {
    /// Until the process had ended.
    pub shutdown: f64,
    /// Until the next one was at work, and what the supervisor took to see that it was back.
    pub restart: f64,
    /// Setting the log aside, dropping pages, a new store.
    pub restore: f64,
    /// A key for links, where there is a key holder; listening.
    pub new_keys: f64,
    /// Asking how far the others are.
    pub estimation: f64,
    /// Until the group had ordered it, from when it listened: while the state is compared and fetched.
    pub ordering: f64,
    /// Comparing and fetching the state, until a checkpoint is stable at the estimate.
    pub check_and_fetch: f64,
    /// Until it votes, in a view of its own time.
    pub vote: f64,
    /// Doing what was done meanwhile.
    pub catch_up: f64,
    /// All, by the supervisor's clock.
    pub total: f64,
    /// Pieces of its state that it found damaged.
    pub damaged: f64,
}

/// Recoveries with one size of the state.
#[derive(Clone, Debug, Serialize)]
pub struct Recovered {
    /// The state, in MB.
    pub state_mb: usize,
    /// Whether one of a hundred chunks was overwritten before.
    pub tampered: bool,
    /// Each recovery that came to its end.
    pub rounds: Vec<Phases>,
    /// How many came to nothing.
    pub missed: usize,
    /// Errors that the client saw that worked meanwhile.
    pub client_errors: usize,
}

/// What the clients got in one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Got {
    /// Files written in a second.
    pub ops_per_s: f64,
    /// Half of them took no longer, in milliseconds.
    pub p50_ms: f64,
    /// All but one of a hundred took no longer.
    pub p99_ms: f64,
    /// How many could not be written, or were read back wrongly.
    pub errors: usize,
    /// How many recoveries there were meanwhile that came to their end.
    pub recoveries: usize,
    /// How many came to nothing.
    pub missed: usize,
}

/// One way to go on, beside others in the same run.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// `recoveries` or `keys`.
    pub part: &'static str,
    /// The period in seconds; none: never.
    pub period_s: Option<u64>,
    /// Each round.
    pub rounds: Vec<Got>,
}

/// All of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Recovery {
    /// What is to be known of the machine.
    #[serde(flatten)]
    pub machine: Report,
    /// How many clients write.
    pub writers: usize,
    /// Table 4.
    pub recovered: Vec<Recovered>,
    /// With and without.
    pub compared: Vec<Compared>,
}

impl Recovery {
    /// Nothing yet.
    pub fn new(options: &Options) -> Recovery {
        Recovery {
            machine: Report::new("recovery", options.run.seconds, &options.run.data),
            writers: WRITERS,
            recovered: Vec::new(),
            compared: Vec::new(),
        }
    }
}

/// Runs the benchmark.
///
/// # Errors
/// Where a group does not start, or a replica does not recover.
pub async fn run(options: &Options, report: &mut Recovery) -> Result<()> {
    let wanted = |part: &str| options.run.only.iter().all(|word| part.contains(word));
    if wanted("phases") {
        for &state_mb in &options.state_mb {
            phases(options, state_mb, report)
                .await
                .with_context(|| format!("recoveries with {state_mb} MB"))?;
        }
    }
    if wanted("recoveries") {
        recoveries(options, report)
            .await
            .context("recoveries under load")?;
    }
    if wanted("keys") {
        renewals(options, report)
            .await
            .context("renewals of keys under load")?;
    }
    Ok(())
}

/// Each round: a sound replica recovers, and one of which somebody has overwritten a hundredth.
async fn phases(options: &Options, state_mb: usize, report: &mut Recovery) -> Result<()> {
    let mut site = Site::start(&options.run, &[]).await?;
    site.fill(state_mb).await?;
    let first = report.recovered.len();
    let of = |tampered| Recovered {
        state_mb,
        tampered,
        rounds: Vec::new(),
        missed: 0,
        client_errors: 0,
    };
    report.recovered.extend([of(false), of(true)]);
    for round in 0..options.run.rounds {
        for (at, tampered) in [false, true].into_iter().enumerate() {
            let replica = ((2 * round + at) % usize::from(REPLICAS)) as u8;
            if tampered {
                site.tamper(replica, round)?;
            }
            let work = Work::start(site.mount(), 1);
            let phases = site.recover(replica).await?;
            let got = work.end();
            let how = phases.map_or("missed".into(), |phases| {
                let total = phases.total / 1000.0;
                format!("{total:.1} s, {} pieces damaged", phases.damaged)
            });
            eprintln!(
                "{state_mb} MB, {}, round {}: {how}",
                if tampered { "1 % overwritten" } else { "sound" },
                round + 1,
            );
            let row = &mut report.recovered[first + at];
            row.missed += usize::from(phases.is_none());
            row.rounds.extend(phases);
            row.client_errors += got.errors;
        }
    }
    site.stop().await
}

/// Windows without and with staggered recoveries in turns, on one group.
async fn recoveries(options: &Options, report: &mut Recovery) -> Result<()> {
    let mut site = Site::start(&options.run, &[]).await?;
    let least = options.state_mb.iter().copied().min();
    site.fill(least.unwrap_or(1)).await?;
    let periods = options.periods_s.iter().copied().map(Some);
    let periods: Vec<Option<u64>> = std::iter::once(None).chain(periods).collect();
    let first = begin(report, "recoveries", &periods);
    // As long as the shortest period, which is enough to see nothing happen.
    let calm = options.periods_s.iter().copied().min().unwrap_or(1);
    let calm = Duration::from_secs(calm);
    for (round, at) in in_turns(options.run.rounds, periods.len()) {
        let work = Work::start(site.mount(), WRITERS);
        let begin = Instant::now();
        let (mut begun, mut missed) = (0, 0);
        if let Some(period) = periods[at] {
            let apart = Duration::from_secs(period) / u32::from(REPLICAS);
            for replica in (0..options.in_a_row).flat_map(|_| 0..REPLICAS) {
                sleep_until(begin + apart * begun).await;
                missed += u32::from(site.recover(replica).await?.is_none());
                begun += 1;
                eprint!("\rrecoveries every {period} s: {begun} so far, {missed} missed ");
            }
            eprintln!();
            sleep_until(begin + apart * begun).await;
        } else {
            sleep(calm).await;
        }
        let got = Got {
            recoveries: (begun - missed) as usize,
            missed: missed as usize,
            ..work.end()
        };
        tell("recoveries", periods[at], round, &got);
        report.compared[first + at].rounds.push(got);
    }
    site.stop().await
}

/// Groups that renew their keys more or less often, all up at once; their windows in turns.
async fn renewals(options: &Options, report: &mut Recovery) -> Result<()> {
    let periods = options.refresh_s.iter().copied().map(Some);
    let periods: Vec<Option<u64>> = std::iter::once(None).chain(periods).collect();
    let mut sites = Vec::new();
    for period in &periods {
        let refresh = period.map_or("0".into(), |s| format!("{s}s"));
        let setup = ["--key-refresh", &refresh];
        sites.push(Site::start(&options.run, &setup).await?);
    }
    let first = begin(report, "keys", &periods);
    // The longest period, so that each is seen at least once.
    let length = Duration::from_secs(options.refresh_s.iter().copied().max().unwrap_or(1));
    for (round, at) in in_turns(options.run.rounds, periods.len()) {
        let work = Work::start(sites[at].mount(), WRITERS);
        sleep(length).await;
        let got = work.end();
        tell("keys", periods[at], round, &got);
        report.compared[first + at].rounds.push(got);
    }
    for site in sites {
        site.stop().await?;
    }
    Ok(())
}

/// Rows of a part; gives where they begin.
fn begin(report: &mut Recovery, part: &'static str, periods: &[Option<u64>]) -> usize {
    let first = report.compared.len();
    let row = |period_s: &Option<u64>| Compared {
        part,
        period_s: *period_s,
        rounds: Vec::new(),
    };
    report.compared.extend(periods.iter().map(row));
    first
}

/// Which case is measured in which round: each comes first in turn.
fn in_turns(rounds: usize, cases: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rounds).flat_map(move |round| (0..cases).map(move |at| (round, (round + at) % cases)))
}

fn tell(part: &str, period_s: Option<u64>, round: usize, got: &Got) {
    let period = period_s.map_or("never".into(), |s| format!("every {s} s"));
    eprintln!(
        "{part} {period}, round {}: {:.0} files/s, p50 {:.1} ms, p99 {:.1} ms, {} errors",
        round + 1,
        got.ops_per_s,
        got.p50_ms,
        got.p99_ms,
        got.errors,
    );
}

/// Overwrites 4 KiB in one of a hundred chunks of 64 KiB of all files in a directory, others in each round: what was found damaged
/// is kept elsewhere since; gives how many.
fn overwrite(directory: &Path, round: usize) -> Result<usize> {
    use std::os::unix::fs::FileExt;
    const CHUNK: u64 = 64 << 10;
    let mut chunks = 0;
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let file = std::fs::File::options().write(true).open(&path)?;
        let bytes = file.metadata()?.len();
        let first = (16 << 10) + (round as u64 % 100) * CHUNK;
        for at in (first..bytes.saturating_sub(4 << 10)).step_by(100 * CHUNK as usize) {
            file.write_all_at(&[0xa5; 4 << 10], at)?;
            chunks += 1;
        }
    }
    Ok(chunks)
}
