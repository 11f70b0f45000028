//! What correct clients get while faulty clients, strangers and replicas attack. Aardvark (Clement et al., NSDI 2009), its table of
//! throughput under attack; RBFT (Aublin et al., ICDCS 2013).
//!
//! All in one run: in each round a group is measured in peace, then one under each attack. Each attack has a group of its own, so that
//! none suffers from what another has brought about. Attackers share the machine with the replicas, which the papers' did not:
//! so after each attack the group in peace is measured again while a process takes as much processor time as the attackers took and sends
//! nothing (*control*). Where attackers are clients of whom operations are taken, the control has as many clients more, and what counts of it is the correct ones' part. What is below the
//! control's throughput was done by what they sent. The processor time of correct
//! replicas for an operation of a correct client says the same in another way.

mod figures;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use quorate_fault::Fault;
use quorate_net::group::Durability;
use quorate_net::keys;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::Workload;
use crate::attackers::{self, Attack};
use crate::clock;
use crate::cpu;
use crate::group::{Launcher, Running, Setup};
use crate::load::{Fleet, Load, Sample, Window};
use crate::micro;
use crate::progress::Progress;
use crate::report::{Figures, Report, show};
use crate::run::Options;

pub use figures::{Attacks, Round, Row, tables};
use figures::{medians, percent};

/// Correct clients, one operation in flight each.
const CLIENTS: usize = 20;
const LOAD: Load = Load::of(Workload::of(0, 0), CLIENTS, 1);
/// Faulty ones, all with keys of the group's.
const ATTACKERS: usize = 4;
/// As many correct ones, where attackers have operations ordered.
const CROWD: Load = Load::of(Workload::of(0, 0), CLIENTS + ATTACKERS, 1);
/// How long attackers may take to begin.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an attack goes on before it is measured, at least: what it brings about at first shows in the longest wait.
const UNMEASURED: Duration = Duration::from_secs(2);
/// Wrong MACs are measured in a group that is sure whose fault they are: 10 s after its start a replica is, also of a client that has no link with it
/// (`agreement/src/authenticity.rs`).
const SETTLING: Duration = Duration::from_secs(11);
/// By when a slow primary's group is to be at work again.
const LEFT_WITHIN: Duration = Duration::from_secs(10);
/// The share of the throughput in peace that it is to have then.
const LEFT_SHARE: f64 = 0.7;
/// The faulty replica: a backup at first.
const FLOODER: u8 = 3;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Peace,
    ByClients(Attack),
    FloodingReplica,
    SlowPrimary,
    LeapingPrimary,
    DawdlingPrimary,
    LingeringPrimary,
    BarePrimary,
}

impl Case {
    fn all() -> Vec<Case> {
        let by_clients = Attack::ALL.into_iter().map(Case::ByClients);
        let others = [
            Case::FloodingReplica,
            Case::SlowPrimary,
            Case::LeapingPrimary,
            Case::DawdlingPrimary,
            Case::LingeringPrimary,
            Case::BarePrimary,
        ];
        by_clients.chain(others).collect()
    }

    /// Whether the primary attacks: it is left for good, so that each round takes a new group.
    fn is_primary(self) -> bool {
        use Case::{BarePrimary, DawdlingPrimary, LeapingPrimary, LingeringPrimary, SlowPrimary};
        matches!(
            self,
            SlowPrimary | LeapingPrimary | DawdlingPrimary | LingeringPrimary | BarePrimary
        )
    }

    fn name(self) -> String {
        match self {
            Case::Peace => "peace".into(),
            Case::ByClients(Attack::Strangers) => "strangers".into(),
            Case::ByClients(attack) => format!("clients: {}", attack.name()),
            Case::FloodingReplica => "replica: floods".into(),
            Case::SlowPrimary => "primary: slow".into(),
            Case::LeapingPrimary => "primary: leaps".into(),
            Case::DawdlingPrimary => "primary: dawdles".into(),
            Case::LingeringPrimary => "primary: lingers".into(),
            Case::BarePrimary => "primary: bare".into(),
        }
    }
}

/// Runs the benchmark.
///
/// # Errors
/// Where a group does not start or does not answer.
pub async fn run(options: &Options, attacks: &mut Attacks) -> Result<()> {
    quorate_net::open_files::allow_many();
    let mut cases = Case::all();
    cases.retain(|case| options.only.iter().all(|word| case.name().contains(word)));
    let mut bench = Bench::start(options, &cases).await?;
    let mut rounds = vec![Vec::new(); cases.len() + 1];
    for round in 0..options.rounds {
        let peace = bench.in_peace(round)?;
        rounds[0].push(peace);
        attacks.attacks = rows(&cases, &rounds);
        for (at, case) in cases.iter().enumerate() {
            let measured = bench.case(*case, round, &peace).await?;
            rounds[at + 1].push(measured);
            attacks.attacks = rows(&cases, &rounds);
            // So that a benchmark that is to end does.
            tokio::task::yield_now().await;
        }
    }
    bench.stop().await
}

/// The rows of peace and of the attacks that have been measured.
fn rows(cases: &[Case], rounds: &[Vec<Round>]) -> Vec<Row> {
    let cases = [Case::Peace].into_iter().chain(cases.iter().copied());
    let measured = cases.zip(rounds).filter(|(_, r)| !r.is_empty());
    let row = |(case, rounds): (Case, &Vec<Round>)| Row {
        attack: case.name(),
        median: medians(rounds),
        rounds: rounds.clone(),
    };
    measured.map(row).collect()
}

impl Attacks {
    /// Nothing yet.
    pub fn new(options: &Options) -> Attacks {
        Attacks {
            machine: Report::new("attacks", options.seconds, &options.data),
            clients: CLIENTS,
            attackers: ATTACKERS,
            attacks: Vec::new(),
        }
    }
}

struct Bench<'a> {
    options: &'a Options,
    /// The one that is left in peace.
    sound: Attacked,
    attacked: BTreeMap<String, Attacked>,
    progress: Progress,
}

/// A group and its correct clients.
struct Attacked {
    group: Running,
    fleet: Fleet,
    /// Attackers' key files: each round has its own, since replicas remember whom they suspect.
    keys: Vec<PathBuf>,
    started: Instant,
}

fn setup(fault: Option<(u8, Fault)>) -> Setup {
    let variant = micro::variant("attacked", 4, Durability::Memory);
    Setup {
        fault,
        ..variant.setup
    }
}

impl<'a> Bench<'a> {
    async fn start(options: &'a Options, cases: &[Case]) -> Result<Bench<'a>> {
        let mut bench = Bench {
            options,
            sound: Attacked::start(options, Case::Peace).await?,
            attacked: BTreeMap::new(),
            progress: Progress::new((cases.len() + 1) * options.rounds),
        };
        // All of them up from the start on; but to see whether everything runs they need not be.
        for case in cases.iter().filter(|_| !options.quick) {
            bench.group_of(*case).await?;
        }
        Ok(bench)
    }

    async fn group_of(&mut self, case: Case) -> Result<()> {
        if !case.is_primary() && !self.attacked.contains_key(&case.name()) {
            let group = Attacked::start(self.options, case).await?;
            self.attacked.insert(case.name(), group);
        }
        Ok(())
    }

    async fn stop(self) -> Result<()> {
        self.sound.stop().await?;
        for (_, attacked) in self.attacked {
            attacked.stop().await?;
        }
        Ok(())
    }

    fn quick_or(&self, usual: Duration) -> Duration {
        if self.options.quick {
            Duration::from_millis(300)
        } else {
            usual
        }
    }

    fn window(&self) -> Window {
        Window {
            warm_up: self.quick_or(UNMEASURED),
            measured: Duration::from_secs_f64(self.options.seconds),
        }
    }

    fn in_peace(&mut self, round: usize) -> Result<Round> {
        let window = self.window();
        let sample = self.sound.measure(window)?;
        let peace = Round {
            share: 1.0,
            share_of_control: Some(1.0),
            cpu_ratio: 1.0,
            ..Round::of(&sample)
        };
        self.tell(Case::Peace, round, &peace);
        Ok(peace)
    }

    async fn case(&mut self, case: Case, round: usize, peace: &Round) -> Result<Round> {
        self.group_of(case).await?;
        let result = match case {
            Case::Peace => self.in_peace(round),
            Case::ByClients(attack) => self.by_clients(attack, round, peace).await,
            Case::FloodingReplica => self.flooding_replica(peace).await,
            Case::SlowPrimary
            | Case::LeapingPrimary
            | Case::DawdlingPrimary
            | Case::LingeringPrimary
            | Case::BarePrimary => self.slow_primary(case, peace).await,
        };
        let measured = result.with_context(|| case.name())?;
        self.tell(case, round, &measured);
        if self.options.quick
            && let Some(attacked) = self.attacked.remove(&case.name())
        {
            attacked.stop().await?;
        }
        Ok(measured)
    }

    async fn by_clients(&mut self, attack: Attack, round: usize, peace: &Round) -> Result<Round> {
        let window = self.window();
        let attacked = self.attacked.get_mut(&Case::ByClients(attack).name());
        let attacked = attacked.context("no such group")?;
        if attack == Attack::WrongMacs {
            let rest = SETTLING.saturating_sub(attacked.started.elapsed());
            tokio::time::sleep(rest).await;
        }
        let launcher = &self.options.launcher;
        let attackers = Attackers::start(launcher, attack, attacked, round).await?;
        let measured = Measured::new(attackers.pid, || attacked.measure(window))?;
        attackers.stop().await?;
        let load = if attack.has_orders() { &CROWD } else { &LOAD };
        self.beside_control(measured, load, peace).await
    }

    async fn flooding_replica(&mut self, peace: &Round) -> Result<Round> {
        let window = self.window();
        let attacked = self.attacked.get_mut(&Case::FloodingReplica.name());
        let attacked = attacked.context("no such group")?;
        let pid = attacked.group.faulty().context("no such process")?;
        let mut measured = Measured::new(pid, || attacked.measure(window))?;
        // It has its share of the work to do besides.
        let honest = peace.figures.replica_cpu_us * peace.figures.ops_per_s / 1e6 / 4.0;
        measured.attackers = (measured.attackers - honest).max(0.0);
        // Three of the four are correct.
        measured.sample.replica_cpu *= 4.0 / 3.0;
        self.beside_control(measured, &LOAD, peace).await
    }

    /// Measures the group in peace again, with the processor time taken that the attackers took.
    async fn beside_control(
        &mut self,
        measured: Measured,
        load: &Load,
        peace: &Round,
    ) -> Result<Round> {
        let window = self.window();
        let thousandths = (measured.attackers * 1e3) as u64;
        let burner = Attackers::burn(&self.options.launcher, thousandths).await?;
        let control = self.sound.measure_with(load, window)?;
        burner.stop().await?;
        let round = Round::of(&measured.sample).beside(peace);
        let control = Figures::of(&control);
        let of_correct = control.ops_per_s * CLIENTS as f64 / load.clients as f64;
        Ok(Round {
            share_of_control: Some(round.figures.ops_per_s / of_correct),
            cpu_ratio: round.figures.replica_cpu_us / control.replica_cpu_us,
            attackers: measured.attackers,
            ..round
        })
    }

    /// A group of its own, whose first primary is slow from the start on; what it does after ten seconds, and when it had come
    /// back.
    async fn slow_primary(&mut self, case: Case, peace: &Round) -> Result<Round> {
        let mut attacked = Attacked::start(self.options, case).await?;
        let (began, within) = (clock(), self.quick_or(LEFT_WITHIN));
        let short = Window {
            warm_up: Duration::ZERO,
            measured: Duration::from_millis(250),
        };
        let mut back_after = None;
        let mut longest_ms = 0.0;
        while began.elapsed() < within {
            let sample = attacked.measure(short)?;
            let share = Round::of(&sample).beside(peace);
            longest_ms = share.longest_ms.max(longest_ms);
            if share.share >= LEFT_SHARE && back_after.is_none() {
                back_after = Some(began.elapsed().as_secs_f64());
            }
        }
        let window = Window {
            warm_up: Duration::ZERO,
            ..self.window()
        };
        let sample = attacked.measure(window)?;
        attacked.stop().await?;
        let after = Figures::of(&self.sound.measure(window)?);
        let round = Round::of(&sample).beside(peace);
        Ok(Round {
            share_of_control: Some(round.figures.ops_per_s / after.ops_per_s),
            longest_ms: round.longest_ms.max(longest_ms),
            // Three of the four are correct.
            cpu_ratio: round.cpu_ratio * 4.0 / 3.0,
            back_after_s: back_after,
            ..round
        })
    }

    fn tell(&mut self, case: Case, round: usize, measured: &Round) {
        let name = format!("{}, round {}", case.name(), round + 1);
        let share = measured.share_of_control.unwrap_or(f64::NAN);
        let figures = format!(
            "{} ops/s, {} of peace, {} of control",
            show(measured.figures.ops_per_s),
            percent(measured.share),
            percent(share),
        );
        self.progress.tell(&name, &figures);
    }
}

impl Attacked {
    async fn start(options: &Options, case: Case) -> Result<Attacked> {
        let fault = match case {
            Case::Peace | Case::ByClients(_) => None,
            Case::FloodingReplica => Some((FLOODER, Fault::Flood)),
            Case::SlowPrimary => Some((0, Fault::Slow)),
            Case::LeapingPrimary => Some((0, Fault::Leap)),
            Case::DawdlingPrimary => Some((0, Fault::Dawdle)),
            Case::LingeringPrimary => Some((0, Fault::Linger)),
            Case::BarePrimary => Some((0, Fault::Bare)),
        };
        let attackers = match case {
            Case::ByClients(_) => ATTACKERS * options.rounds,
            // For the control.
            Case::Peace => ATTACKERS,
            _ => 0,
        };
        let (clients, launcher) = (CLIENTS + attackers, &options.launcher);
        let group = Running::start(&setup(fault), clients, &options.data, launcher).await?;
        eprintln!("{}: replicas are processes {:?}", case.name(), group.pids());
        let mut keys = Vec::new();
        for at in 0..attackers {
            let file = group.directory().join(format!("attacker-{at}"));
            let key = group.client(CLIENTS + at).context("a key")?.key();
            keys::save(&file, key)?;
            keys.push(file);
        }
        let variant = micro::variant("attacked", 4, Durability::Memory);
        Ok(Attacked {
            fleet: Fleet::new(variant.options, variant.parallelism),
            group,
            keys,
            started: clock(),
        })
    }

    fn measure(&mut self, window: Window) -> Result<Sample> {
        self.measure_with(&LOAD, window)
    }

    fn measure_with(&mut self, load: &Load, window: Window) -> Result<Sample> {
        self.fleet.measure(&self.group, load, window)
    }

    async fn stop(self) -> Result<()> {
        drop(self.fleet);
        self.group.stop().await
    }
}

/// The process of the attackers; it ends when this is dropped.
struct Attackers {
    child: Child,
    pid: u32,
}

impl Attackers {
    async fn start(
        launcher: &Launcher,
        attack: Attack,
        attacked: &Attacked,
        round: usize,
    ) -> Result<Attackers> {
        let spec = attackers::Spec {
            attack: attack.name().into(),
            group: attacked.group.file(),
            keys: attacked.keys[round * ATTACKERS..][..ATTACKERS].to_vec(),
            per_second: attack.rate(),
        };
        Attackers::spawn(launcher, &spec).await
    }

    async fn burn(launcher: &Launcher, thousandths: u64) -> Result<Attackers> {
        let spec = attackers::Spec {
            attack: Attack::Burn.name().into(),
            group: PathBuf::new(),
            keys: Vec::new(),
            per_second: thousandths,
        };
        Attackers::spawn(launcher, &spec).await
    }

    async fn spawn(launcher: &Launcher, spec: &attackers::Spec) -> Result<Attackers> {
        let mut child = Command::new(&launcher.program)
            .args(["bench", "attackers"])
            .arg(serde_json::to_string(spec)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("can't start {}", launcher.program.display()))?;
        let mut lines = BufReader::new(child.stdout.take().context("no pipe")?).lines();
        match timeout(PATIENCE, lines.next_line()).await {
            Ok(Ok(Some(_))) => {}
            _ => bail!("the attackers do not start"),
        }
        let pid = child.id().context("the attackers have ended")?;
        Ok(Attackers { child, pid })
    }

    async fn stop(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        if timeout(Duration::from_secs(5), self.child.wait())
            .await
            .is_err()
        {
            self.child.kill().await?;
        }
        Ok(())
    }
}

/// A sample, and how many processors the attackers took meanwhile.
struct Measured {
    sample: Sample,
    attackers: f64,
}

impl Measured {
    fn new(pid: u32, measure: impl FnOnce() -> Result<Sample>) -> Result<Measured> {
        let (before, since) = (cpu::seconds(pid)?, clock());
        let sample = measure()?;
        let attackers = (cpu::seconds(pid)? - before) / since.elapsed().as_secs_f64();
        Ok(Measured { sample, attackers })
    }
}
