//! A run: groups, one after the other, and on each of them rounds.
//!
//! A round has new files, a schedule, and clients that work while it goes on. Then all is healed, and within a bound
//! every client must be answered and the correct replicas must come to one state. What the clients saw is checked, and forgotten.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use quorate_client::Session;
use quorate_wire::ReplicaId;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

use crate::check::{self, Verdict};
use crate::disk::SmallDisk;
use crate::group::Group;
use crate::history::{Operation, Recorder};
use crate::knobs::{Knobs, Means, Wanted};
use crate::mount::{self, Mount};
use crate::nemesis;
use crate::report::{Report, Round};
use crate::schedule::{Cast, Schedule};
use crate::work::{self, Client, Layout, Shared};

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The command `quorate`.
    pub quorate: PathBuf,
    /// Where files are made; kept if something is wrong.
    pub directory: PathBuf,
    /// Everything is drawn from it.
    pub seed: u64,
    /// How long all rounds may take together. The last one is finished.
    pub duration: Duration,
    /// How many rounds there are at most.
    pub rounds: Option<u64>,
    /// How long the schedule of a round is.
    pub round: Duration,
    /// How many rounds a group has before another one takes its place.
    pub rounds_per_group: u64,
    /// How long the group may take to answer, and to agree, when all is healed.
    pub patience: Duration,
    /// Whether there are mounts.
    pub mounts: bool,
    /// The program that works on mounts, and its arguments: it calls [`crate::hand::serve`].
    pub hand: Vec<OsString>,
    /// Whether ctrl-C (or SIGTERM) ends the run in order, with the report of the rounds that were finished.
    pub ends_at_interrupt: bool,
    /// In place of what the seed would give: one schedule, for all rounds.
    pub schedule: Option<Schedule>,
    /// In place of what the seed would give.
    pub knobs: Option<Knobs>,
    /// What is wanted of groups that the seed gives.
    pub wanted: Wanted,
}

/// What went wrong, and what is known of the round.
#[derive(Debug)]
pub struct Failure {
    /// What.
    pub error: anyhow::Error,
    /// The seed of the group that it happened in: as the seed of a run it gives this group again.
    pub seed: u64,
    /// The round of that group.
    pub round: u64,
    /// What was going on.
    pub schedule: Schedule,
    /// What clients saw.
    pub history: Vec<Operation>,
    /// Where the logs are.
    pub logs: PathBuf,
}

impl Settings {
    /// What this machine and these settings allow.
    pub fn means(&self) -> Means {
        Means {
            mounts: self.mounts && Mount::is_possible(),
            disks: SmallDisk::is_possible(),
        }
    }
}

/// The seed of a run's groups: that of the first is the run's own.
fn group_seed(seed: u64, group: u64) -> u64 {
    seed.wrapping_add(group.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The seed of a group's rounds: that of the first is the group's own.
pub fn round_seed(seed: u64, round: u64) -> u64 {
    seed ^ round.wrapping_mul(0xd1b5_4a32_d192_ed03)
}

/// Runs until the time is over, or something is wrong. `told` hears what goes on.
///
/// # Errors
/// The first [`Failure`].
pub fn run(settings: &Settings, told: &(dyn Fn(String) + Sync)) -> Result<Report, Box<Failure>> {
    let start = Instant::now();
    // Processes that a fault ends within a write need not leave their memory behind; theirs are the limits of this one.
    let no_core = Rlimit {
        current: Some(0),
        maximum: getrlimit(Resource::Core).maximum,
    };
    // If it can't be had, files are left behind.
    let _ = setrlimit(Resource::Core, no_core);
    let means = settings.means();
    if !means.mounts {
        told("without mounts".into());
    }
    if !means.disks {
        told("without full disks: this user may not mount small file systems".into());
    }
    let mut report = Report::new(settings.seed);
    let is_over = |report: &Report| {
        start.elapsed() >= settings.duration
            || settings
                .rounds
                .is_some_and(|most| report.rounds.len() as u64 >= most)
    };
    let mut number = 0;
    while number == 0 || !is_over(&report) {
        let seed = group_seed(settings.seed, number);
        let directory = settings.directory.join(format!("group-{number}"));
        let mut at = Progress::default();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        let ended = runtime.map_err(anyhow::Error::from).and_then(|runtime| {
            let rounds = one_group(
                settings,
                seed,
                &directory,
                &mut at,
                &mut report,
                told,
                &is_over,
            );
            let ended = runtime.block_on(async {
                tokio::select! {
                    ended = rounds => ended.map(|()| true),
                    () = interrupt(settings) => Ok(false),
                }
            });
            runtime.shutdown_timeout(Duration::from_secs(5));
            // What is kept must not be removed with what is mounted there.
            if ended.is_ok() && mount::is_any_below(&directory) {
                bail!("a mount below {} can't be taken away", directory.display());
            }
            ended
        });
        let goes_on = ended.map_err(|error| {
            Box::new(Failure {
                error,
                seed,
                round: at.round,
                schedule: at.schedule,
                history: at.shared.map_or(Vec::new(), |s| s.recorder.copy()),
                logs: directory.clone(),
            })
        })?;
        // Only what went wrong is worth the room.
        let _ = std::fs::remove_dir_all(&directory);
        if !goes_on {
            break;
        }
        number += 1;
    }
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

/// Done when somebody wants the run to end.
async fn interrupt(settings: &Settings) {
    let (interrupt, terminate) = (SignalKind::interrupt(), SignalKind::terminate());
    let (true, Ok(mut interrupt), Ok(mut terminate)) = (
        settings.ends_at_interrupt,
        signal(interrupt),
        signal(terminate),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// Where a group is, for a failure's sake.
#[derive(Default)]
struct Progress {
    round: u64,
    schedule: Schedule,
    shared: Option<Arc<Shared>>,
}

async fn one_group(
    settings: &Settings,
    seed: u64,
    directory: &Path,
    at: &mut Progress,
    report: &mut Report,
    told: &(dyn Fn(String) + Sync),
    is_over: &dyn Fn(&Report) -> bool,
) -> Result<()> {
    let (knobs, means) = (settings.knobs.clone(), settings.means());
    let knobs = knobs.unwrap_or_else(|| Knobs::draw(seed, means).but(settings.wanted, means));
    told(format!("group of seed {seed}: {knobs}"));
    std::fs::create_dir_all(directory)?;
    let mut group =
        Group::start(&settings.quorate, directory, &knobs, knobs.members(), seed).await?;
    let mut members = Members::connect(&group, &knobs, directory, &settings.hand).await?;
    for round in 0..settings.rounds_per_group {
        at.round = round;
        let seed = round_seed(seed, round);
        let cast = Cast {
            replicas: knobs.replicas,
            clients: knobs.members(),
            disks: knobs.disks,
            rots: knobs.rots(),
            forgetful: knobs.forgetful,
        };
        let length = settings.round.as_millis() as u64;
        at.schedule = match &settings.schedule {
            Some(schedule) => schedule.clone(),
            None => Schedule::draw(seed, length, &cast),
        };
        let done = one_round(
            settings,
            &mut group,
            &mut members,
            round,
            seed,
            at,
            &knobs,
            told,
        );
        let done = match done.await {
            Ok(done) => done,
            Err(error) => {
                let heads = heads(&members.observer, &group.all()).await;
                let processes = group.describe();
                let mounts: String = members.mounts.iter().map(Mount::describe).collect();
                return Err(anyhow!(
                    "{error:#}\nthe replicas say {heads:#?}\n{processes}{mounts}"
                ));
            }
        };
        told(done.to_string());
        report.add(done);
        if is_over(report) {
            break;
        }
    }
    Ok(())
}

/// Those who use a group.
struct Members {
    clients: Vec<Client>,
    mounts: Vec<Mount>,
    observer: Session,
}

impl Members {
    async fn connect(
        group: &Group,
        knobs: &Knobs,
        directory: &Path,
        hand: &[OsString],
    ) -> Result<Members> {
        let mut clients = Vec::new();
        for client in 0..knobs.clients {
            let (file, identity) = group.client(client)?;
            clients.push(Client::new(Session::connect(&file, &identity)?));
        }
        let mut mounts = Vec::new();
        for mount in 0..knobs.mounts {
            mounts.push(Mount::start(group, knobs.clients + mount, directory, hand).await?);
        }
        let (file, identity) = group.observer()?;
        Ok(Members {
            clients,
            mounts,
            observer: Session::connect(&file, &identity)?,
        })
    }

    fn check_mounts(&mut self) -> Result<()> {
        self.mounts.iter_mut().try_for_each(Mount::check)
    }
}

#[allow(
    clippy::too_many_arguments,
    reason = "a round needs them all, and nobody else does"
)]
async fn one_round(
    settings: &Settings,
    group: &mut Group,
    members: &mut Members,
    round: u64,
    seed: u64,
    at: &mut Progress,
    knobs: &Knobs,
    told: &(dyn Fn(String) + Sync),
) -> Result<Round> {
    let first = &members.clients[0];
    let made = Layout::make(&first.volume, &first.who, round);
    let made = tokio::time::timeout(settings.patience, made).await;
    let made = made.context("the group did not answer before the round")?;
    let layout = made.context("the files of the round can't be made")?;
    let start = Instant::now();
    let shared = Arc::new(Shared {
        recorder: Recorder::start(),
        stop: AtomicBool::new(false),
        stopped: AtomicU64::new(0),
        rest_ms: knobs.rest_ms,
    });
    at.shared = Some(shared.clone());
    for (number, client) in (0..).zip(&members.clients) {
        let client = client.clone();
        tokio::spawn(work::library(
            client,
            number,
            layout.clone(),
            shared.clone(),
            seed,
        ));
    }
    for (number, mount) in (knobs.clients..).zip(&members.mounts) {
        let (link, path) = (mount.link.clone(), mount.directory().to_owned());
        let (layout, shared) = (layout.clone(), shared.clone());
        tokio::spawn(work::mounted(link, path, number, layout, shared, seed));
    }
    let say = |step: String| told(format!("{:8.3} s  {step}", start.elapsed().as_secs_f64()));
    nemesis::run(group, &at.schedule, &say).await?;
    group.net.heal();
    let healed = Instant::now();
    shared.stop.store(true, Ordering::Release);
    wait_for_clients(settings, group, members, &shared).await?;
    let looks = work::look_at_all(&members.clients[0], 0, &layout, &shared);
    let looks = tokio::time::timeout(settings.patience, looks).await;
    looks.context("the group does not answer")?;
    let answered = healed.elapsed();
    let view = wait_for_agreement(settings, group, &members.observer).await?;
    let agreed = healed.elapsed();
    group.check_processes()?;
    group.check_traces()?;
    group.check_rot()?;
    members.check_mounts()?;
    let history = shared.recorder.copy();
    let undecided = check(&history)?;
    Ok(Round {
        seed,
        round,
        schedule: at.schedule.clone(),
        answered_s: answered.as_secs_f64(),
        agreed_s: agreed.as_secs_f64(),
        view,
        undecided,
        stopped: group.take_stopped(),
        ..Round::measure(&history)
    })
}

async fn wait_for_clients(
    settings: &Settings,
    group: &mut Group,
    members: &mut Members,
    shared: &Shared,
) -> Result<()> {
    let end = Instant::now() + settings.patience;
    let all = (members.clients.len() + members.mounts.len()) as u64;
    while shared.stopped.load(Ordering::Acquire) < all {
        group.check_processes()?;
        members.check_mounts()?;
        if Instant::now() > end {
            let open = shared.recorder.copy();
            let open = open.iter().filter(|o| o.ended.is_none());
            let open: Vec<String> = open.map(|o| format!("  {o}\n")).collect();
            bail!(
                "{:?} after all was healed these are not answered:\n{}",
                settings.patience,
                open.concat()
            );
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Waits until the correct replicas have executed the same and hold the same state; their view.
async fn wait_for_agreement(
    settings: &Settings,
    group: &mut Group,
    observer: &Session,
) -> Result<u64> {
    let end = Instant::now() + settings.patience;
    let correct = group.correct();
    loop {
        group.check_processes()?;
        let heads = heads(observer, &correct).await;
        let agreed = heads.iter().all(|head| match (head, &heads[0]) {
            (Ok(head), Ok(first)) => head.is_steady && head.same(first),
            _ => false,
        });
        if agreed && let Ok(first) = &heads[0] {
            return Ok(first.view);
        }
        if Instant::now() > end {
            bail!(
                "{:?} after all was healed the correct replicas are not at one state: {heads:#?}",
                settings.patience
            );
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Where a replica is.
#[derive(Debug)]
struct Head {
    view: u64,
    executed: u64,
    stable: u64,
    root: String,
    is_steady: bool,
}

impl Head {
    fn same(&self, other: &Head) -> bool {
        (self.executed, self.stable, &self.root) == (other.executed, other.stable, &other.root)
    }
}

async fn heads(observer: &Session, ids: &[ReplicaId]) -> Vec<Result<Head>> {
    let mut heads = Vec::new();
    for id in ids {
        heads.push(head(observer, *id).await);
    }
    heads
}

async fn head(observer: &Session, id: ReplicaId) -> Result<Head> {
    let report = observer.report(id, Duration::from_secs(2)).await;
    let report = report.map_err(|e| anyhow!("replica {id}: {e}"))?;
    Ok(Head {
        view: report.view.0,
        executed: report.executed.0,
        stable: report.stable.0,
        root: format!("{:?}", report.root),
        is_steady: report.active
            && !report.fetching
            && report.recovering.is_none()
            && report.committed == report.executed,
    })
}

/// Checks a history; how many objects could not be decided.
///
/// # Errors
/// What clients saw that can't be.
pub fn check(history: &[Operation]) -> Result<usize> {
    let verdicts = check::check(history, check::BUDGET);
    for (object, verdict) in &verdicts {
        if let Verdict::Violation(_, text) = verdict {
            bail!("{object:?} is not linearizable:\n{text}");
        }
    }
    let undecided = verdicts.values().filter(|v| **v == Verdict::Undecided);
    Ok(undecided.count())
}
