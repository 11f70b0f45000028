//! Runs cases: all groups up at once, their variants in turns, medians over the rounds.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use quorate_agreement::client::ClientOptions;

use crate::group::{Launcher, Running, Setup};
use crate::load::{Fleet, Load, Parallelism, Window};
use crate::paper;
use crate::progress::Progress;
use crate::report::{Figures, Report, Row, show};

/// What is run, and for how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// How replicas are started.
    pub launcher: Launcher,
    /// Where the groups keep their files.
    pub data: PathBuf,
    /// How often each case is measured.
    pub rounds: usize,
    /// How long each time.
    pub seconds: f64,
    /// Only that everything runs: few cases, short ones.
    pub quick: bool,
    /// Only cases whose names have all of these in them.
    pub only: Vec<String>,
}

/// A kind of group.
#[derive(Clone, Debug)]
pub struct Variant {
    /// Such as `BFT memory`.
    pub name: String,
    /// The replicas.
    pub setup: Setup,
    /// The clients.
    pub options: ClientOptions,
    /// Which operations can be at work at the same time.
    pub parallelism: Parallelism,
}

/// A variant under a load.
#[derive(Clone, Debug)]
pub struct Case {
    /// See [`Row::part`].
    pub part: &'static str,
    /// Which of the variants.
    pub variant: usize,
    /// What is asked of it.
    pub load: Load,
    /// See [`Row::ideal_ops_per_s`].
    pub ideal_ops_per_s: Option<f64>,
    /// How long it takes until each client waits for as long as it will from then on, where that is known.
    pub settles_in: Duration,
}

/// Each load on each variant, as far as they are wanted.
pub fn all_cases(
    options: &Options,
    variants: &[Variant],
    loads: &[(&'static str, Load)],
) -> Vec<Case> {
    let case = |&(part, load): &(&'static str, Load)| {
        (0..variants.len()).map(move |variant| Case {
            part,
            variant,
            load,
            ideal_ops_per_s: None,
            settles_in: Duration::ZERO,
        })
    };
    let wanted = |case: &Case| {
        let name = case.name(variants);
        options.only.iter().all(|word| name.contains(word))
    };
    loads.iter().flat_map(case).filter(wanted).collect()
}

impl Case {
    fn name(&self, variants: &[Variant]) -> String {
        let Load {
            workload,
            clients,
            in_flight,
            ..
        } = self.load;
        let (part, variant) = (self.part, &variants[self.variant].name);
        format!("{part}, {workload}, {variant}, {clients} clients x {in_flight}")
    }
}

/// Measures all cases, with all their groups up at once. The variants of one load take turns within each round, so that what
/// else happens on the machine hits them alike; each round begins with another of them, and a short one that is not reported
/// comes first, so that none is always the cold one. What is done is in the report after each measurement, and counted in `progress`, which
/// may be that of several calls.
///
/// # Errors
/// Where a group does not start or answer.
pub(crate) async fn measure(
    options: &Options,
    variants: &[Variant],
    cases: &[Case],
    progress: &mut Progress,
    report: &mut Report,
) -> Result<()> {
    quorate_net::open_files::allow_many();
    let mut groups = Vec::new();
    for (at, variant) in variants.iter().enumerate() {
        let own = cases.iter().filter(|case| case.variant == at);
        groups.push(match own.map(|case| case.load.clients).max() {
            Some(clients) => Some(start(variant, clients, options).await?),
            None => None,
        });
    }
    // Runs of cases under the same load.
    for turn in cases.chunk_by(|a, b| a.part == b.part && a.load == b.load) {
        let first = report.rows.len();
        let mut rounds = vec![Vec::new(); turn.len()];
        for (round, at) in order(options.rounds, turn.len()) {
            let case = &turn[at];
            let name = case.name(variants);
            let Some((group, fleet)) = &mut groups[case.variant] else {
                continue;
            };
            let window = options.window(round, case.settles_in);
            let sample = fleet.measure(group, &case.load, window);
            let figures = Figures::of(&sample.with_context(|| name.clone())?);
            if round > 0 {
                progress.tell(&name, &told(&figures));
                rounds[at].push(figures);
                report.rows.truncate(first);
                report.rows.extend(rows(variants, turn, &rounds));
            }
            // So that a benchmark that is to end does.
            tokio::task::yield_now().await;
        }
    }
    for (group, fleet) in groups.into_iter().flatten() {
        drop(fleet);
        group.stop().await?;
    }
    Ok(())
}

/// Which case of a turn is measured in which round. Round 0 is the one that is not reported.
fn order(rounds: usize, cases: usize) -> impl Iterator<Item = (usize, usize)> {
    let in_round = move |round: usize| {
        let first = round.saturating_sub(1);
        (0..cases).map(move |at| (round, (first + at) % cases))
    };
    (0..=rounds).flat_map(in_round)
}

/// The rows of the cases that have been measured.
fn rows(variants: &[Variant], turn: &[Case], rounds: &[Vec<Figures>]) -> Vec<Row> {
    let measured = turn.iter().zip(rounds).filter(|(_, r)| !r.is_empty());
    let row = |(case, rounds): (&Case, &Vec<Figures>)| Row {
        part: case.part,
        workload: case.load.workload.to_string(),
        variant: variants[case.variant].name.clone(),
        clients: case.load.clients,
        in_flight: case.load.in_flight,
        ideal_ops_per_s: case.ideal_ops_per_s,
        paper: paper::of(
            case.part,
            &case.load.workload.to_string(),
            &variants[case.variant].name,
        ),
        median: Figures::medians(rounds),
        rounds: rounds.clone(),
    };
    measured.map(row).collect()
}

async fn start(variant: &Variant, clients: usize, options: &Options) -> Result<(Running, Fleet)> {
    let group = Running::start(&variant.setup, clients, &options.data, &options.launcher);
    let group = group
        .await
        .with_context(|| format!("the group of {}", variant.name))?;
    // For those who attach a profiler.
    eprintln!(
        "{}: replicas are processes {:?}",
        variant.name,
        group.pids()
    );
    Ok((group, Fleet::new(variant.options, variant.parallelism)))
}

impl Options {
    /// The first round, 0, is not reported.
    pub(crate) fn window(&self, round: usize, settles_in: Duration) -> Window {
        let short = Duration::from_secs_f64(self.seconds / 8.0);
        Window {
            warm_up: short.max(if self.quick {
                Duration::ZERO
            } else {
                settles_in
            }),
            measured: match round {
                0 => short,
                _ => Duration::from_secs_f64(self.seconds),
            },
        }
    }
}

/// Figures for people who wait.
fn told(figures: &Figures) -> String {
    format!(
        "p50 {} us, {} ops/s, replicas' CPU {} us",
        show(figures.p50_us),
        show(figures.ops_per_s),
        show(figures.replica_cpu_us)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each case is measured once a round, and comes first as often as the others; rows stand in the order of the cases.
    #[test]
    fn each_comes_first_in_turn() {
        let of = |round| {
            let cases = order(3, 3).filter(move |(r, _)| *r == round);
            cases.map(|(_, at)| at).collect::<Vec<_>>()
        };
        assert_eq!(of(0), [0, 1, 2]);
        assert_eq!(of(1), [0, 1, 2]);
        assert_eq!(of(2), [1, 2, 0]);
        assert_eq!(of(3), [2, 0, 1]);
        assert_eq!(order(3, 3).count(), 12);
    }
}
