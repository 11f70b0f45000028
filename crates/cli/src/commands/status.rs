//! `quorate status`.

mod prometheus;
mod recovery;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use quorate_fault::Fault;
use quorate_net::{ClientEvent, ClientLinks, Epochs, Frame, Group, Identity, Waker, keys};
use quorate_router::config::{Config, Keeper};
use quorate_wire::message::{ClientMessage, ReplicaMessage, Report, StateCheck};
use quorate_wire::{Quorum, ReplicaId, Seq};
use serde_json::{Value, json};

use crate::args::Status;
use crate::{paths, supervision, words};
use recovery::Recoveries;

/// What the replicas said, as far as they did.
pub type Reports = BTreeMap<ReplicaId, Report>;

pub fn run(args: &Status) -> ExitCode {
    match ask(args) {
        Ok((group, reports, recoveries)) => {
            let whole = Health::judge(group.quorum(), &reports);
            if args.json {
                tell!("{}", to_json(&group, &reports, whole, &recoveries));
            } else if args.prometheus {
                let now = supervision::now_ms();
                words::put(&prometheus::text(&group, &reports, whole, &recoveries, now));
            } else {
                print(&group, &reports, whole);
                for line in recoveries.lines(group.quorum()) {
                    tell!("{line}");
                }
            }
            exit_code(whole, &recoveries)
        }
        Err(e) => {
            say!("quorate: {}", words::of(&e));
            ExitCode::from(2)
        }
    }
}

/// A supervisor that was named and does not answer says nothing of the group, and is to be noticed.
fn exit_code(whole: Health, recoveries: &Recoveries) -> ExitCode {
    let least = u8::from(recoveries.away() > 0);
    ExitCode::from(least.max(whole as u8))
}

fn ask(args: &Status) -> Result<(Group, Reports, Recoveries)> {
    let file = match &args.group {
        Some(file) => file.clone(),
        None => paths::group_file(&paths::local_group()?),
    };
    check_one_group(&file)?;
    let group = Group::load(&file)?;
    let key = args
        .key
        .clone()
        .unwrap_or_else(|| paths::client_key(&paths::beside(&file)));
    let identity = identity_of(&group, &key, "--key")?;
    let timeout = Duration::from_millis(args.timeout_ms);
    let reports = collect(&group, &identity, timeout).context("connecting to the group")?;
    let beside = paths::beside(&file);
    let recoveries = Recoveries::ask(group.quorum(), &beside, &args.supervisor, timeout);
    Ok((group, reports, recoveries))
}

/// Refuses the file of a volume, and says which groups there are.
fn check_one_group(file: &Path) -> Result<()> {
    let volume = match file.exists() {
        true => file.to_path_buf(),
        false => paths::volume_file(&paths::beside(file)),
    };
    if !Config::is_at(&volume) {
        return Ok(());
    }
    let config = Config::load(&volume)?;
    let mut files = Vec::new();
    for location in &config.volumes {
        let group = location.url.split("?key=").next().unwrap_or_default();
        files.push(group.to_string());
    }
    if let Keeper::Group { group, .. } = &config.keeper {
        files.push(group.display().to_string());
    }
    anyhow::bail!(
        "{} is a volume of several groups, and `quorate status GROUP` tells of one: {}",
        volume.display(),
        files.join(", ")
    )
}

/// The client of the group that has the key in a file, which `option` has named.
pub fn identity_of(group: &Group, key: &Path, option: &str) -> Result<Identity> {
    let identity = Identity::new(&keys::load(key)?);
    if !group.is_client(&identity.public()) {
        anyhow::bail!(
            "{} is no client of this group: give one that is ({option})",
            key.display()
        );
    }
    Ok(identity)
}

/// Asks all replicas, and waits until all have answered or the time is over.
pub fn collect(group: &Group, identity: &Identity, timeout: Duration) -> io::Result<Reports> {
    let mut links = ClientLinks::connect(group, identity)?;
    let mut reports = Reports::new();
    let question = Frame::encode(&ClientMessage::ReportPlease(1));
    let until = now() + timeout;
    while reports.len() < group.quorum().n() {
        let left = until.saturating_duration_since(now());
        if left.is_zero() {
            break;
        }
        links.poll(Some(left))?;
        while let Some(event) = links.next_event() {
            match event {
                ClientEvent::Up(replica, _) => {
                    links.send(replica, &question);
                }
                // What it says of itself is believed; that it is itself, TLS has made sure.
                ClientEvent::Message(replica, ReplicaMessage::Report(report)) => {
                    reports.insert(replica, *report);
                }
                ClientEvent::Message(..) | ClientEvent::Down(_) => {}
            }
        }
        links.flush();
    }
    Ok(reports)
}

#[allow(
    clippy::disallowed_methods,
    reason = "a command's patience runs on this machine's clock"
)]
fn now() -> Instant {
    Instant::now()
}

/// How the group is, judged by what its replicas say; also the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Health {
    /// All answer, are in one view, and agree on the state.
    Whole = 0,
    /// A quorum works, the rest does not answer, lags or contradicts.
    Degraded = 1,
    /// No quorum works.
    Down = 2,
}

impl Health {
    pub fn judge(quorum: Quorum, reports: &Reports) -> Health {
        let working = |r: &&Report| r.active && !r.fetching;
        let views: Vec<_> = reports.values().filter(working).map(|r| r.view).collect();
        let most = views
            .iter()
            .map(|v| views.iter().filter(|w| *w == v).count())
            .max();
        if most.unwrap_or(0) < quorum.commit() {
            return Health::Down;
        }
        let odd = reports.values().any(|r| odd_root(r, quorum, reports));
        match most == Some(quorum.n()) && !odd {
            true => Health::Whole,
            false => Health::Degraded,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Health::Whole => "whole",
            Health::Degraded => "degraded",
            Health::Down => "down",
        }
    }
}

/// Whether f+1 others have another root at the same checkpoint: then this replica's state, or its word, is wrong.
fn odd_root(report: &Report, quorum: Quorum, reports: &Reports) -> bool {
    let others = reports
        .values()
        .filter(|r| r.stable == report.stable && r.root != report.root);
    others.count() >= quorum.weak()
}

/// The greatest of what replicas say that one correct replica at least says, or less than it does: what up to f say above that may be made up.
pub fn vouched<T: Ord>(quorum: Quorum, reports: &Reports, of: impl Fn(&Report) -> T) -> Option<T> {
    let mut said: Vec<T> = reports.values().map(of).collect();
    said.sort_unstable();
    let at = said.len().saturating_sub(quorum.weak());
    (!said.is_empty()).then(|| said.swap_remove(at))
}

/// How far the group is, against which replicas lag.
pub fn newest(quorum: Quorum, reports: &Reports) -> Seq {
    vouched(quorum, reports, |r| r.executed).unwrap_or_default()
}

/// How many batches a replica is behind.
pub fn lag(report: &Report, newest: Seq) -> u64 {
    newest.0.saturating_sub(report.executed.0)
}

/// Which fault a replica says that it was told to show. It may say anything, and what it says goes to a terminal.
fn fault_name(report: &Report) -> &'static str {
    let known = |fault: &Fault| fault.name().as_bytes() == &report.fault[..];
    let known = Fault::ALL.into_iter().find(known);
    known.map_or("one that is not known here", Fault::name)
}

fn note(report: &Report, quorum: Quorum, reports: &Reports) -> String {
    let mut notes = Vec::new();
    if !report.fault.is_empty() {
        notes.push(format!("FAULT INJECTED: {}", fault_name(report)));
    }
    if report.fetching {
        notes.push("fetching state".into());
    }
    match report.recovering {
        Some(Seq(0)) => notes.push("recovering: asks the others how far they are".into()),
        Some(bound) if report.stable < bound => {
            notes.push(format!("recovering: silent until {} is stable", bound.0));
        }
        Some(_) => notes.push("recovering: silent until a new view begins".into()),
        None if !report.active => notes.push("waiting for a new view".into()),
        None => {}
    }
    if report.recovery_intended {
        notes.push("is about to recover".into());
    }
    if report.went_back {
        notes.push("it could not recover, and went back to what it had".into());
    }
    if let Some(check) = &report.check {
        let (right, wrong) = (check.right, check.differing.saturating_add(check.damaged));
        let is = if check.done { "were" } else { "are" };
        notes.push(format!(
            "of its own state {right} pieces {is} right, {wrong} not"
        ));
    }
    if odd_root(report, quorum, reports) {
        notes.push("its root differs from the others'".into());
    }
    let down: Vec<String> = report
        .links
        .iter()
        .filter(|l| !l.up)
        .map(|l| l.peer.to_string())
        .collect();
    if !down.is_empty() {
        notes.push(format!("no link to {}", down.join(", ")));
    }
    for link in report.links.iter().filter(|l| l.put_aside > 0) {
        let (peer, times) = (link.peer, link.put_aside);
        notes.push(format!("was flooded by {peer} (put aside {times} times)"));
    }
    notes.join("; ")
}

fn print(group: &Group, reports: &Reports, whole: Health) {
    let quorum = group.quorum();
    tell!(
        "group {}: {} ({} of {} replicas answer; {} may be faulty)",
        group.name(),
        whole.name(),
        reports.len(),
        quorum.n(),
        quorum.f()
    );
    tell!(
        "{:<8} {:>6} {:>10} {:>6} {:>10} {:<10} {:>6} {:>8}  notes",
        "replica",
        "view",
        "executed",
        "lag",
        "stable",
        "root",
        "links",
        "clients"
    );
    let newest = newest(quorum, reports);
    for id in quorum.replicas() {
        let Some(r) = reports.get(&id) else {
            let address = group.replica(id).map_or("", |entry| entry.address.as_str());
            tell!("{id:<8} does not answer at {address}");
            continue;
        };
        let primary = if quorum.primary(r.view) == id {
            "*"
        } else {
            ""
        };
        tell!(
            "{:<8} {:>6} {:>10} {:>6} {:>10} {:<10} {:>6} {:>8}  {}",
            format!("{id}{primary}"),
            r.view.0,
            r.executed.0,
            lag(r, newest),
            r.stable.0,
            r.root.short(),
            format!(
                "{}/{}",
                r.links.iter().filter(|l| l.up).count(),
                r.links.len()
            ),
            r.clients,
            note(r, quorum, reports)
        );
    }
    tell!("* primary; executed and stable count batches; root is the state's digest at `stable`");
}

fn to_json(group: &Group, reports: &Reports, whole: Health, recoveries: &Recoveries) -> Value {
    let quorum = group.quorum();
    let newest = newest(quorum, reports);
    let replica = |id: ReplicaId| -> Value {
        let address = group.replica(id).map(|entry| entry.address.clone());
        let Some(r) = reports.get(&id) else {
            return json!({ "id": id.0, "address": address, "answers": false });
        };
        let links: Vec<Value> = r
            .links
            .iter()
            .map(|l| {
                json!({
                    "peer": l.peer.0, "up": l.up, "dropped": l.dropped, "put_aside": l.put_aside
                })
            })
            .collect();
        json!({
            "id": id.0,
            "address": address,
            "answers": true,
            "primary": quorum.primary(r.view) == id,
            "view": r.view.0,
            "active": r.active,
            "committed": r.committed.0,
            "executed": r.executed.0,
            "lag": lag(r, newest),
            "stable": r.stable.0,
            "root": r.root.to_string(),
            "root_differs": odd_root(r, quorum, reports),
            "fetching": r.fetching,
            "recovering": r.recovering.is_some(),
            "recovering_up_to": r.recovering.map(|bound| bound.0),
            "check": r.check.map(|check| check_to_json(&check)),
            "links": links,
            "clients": r.clients,
            "clients_put_aside": r.clients_put_aside,
            "view_changes": r.view_changes,
            "uptime_ms": r.uptime_ms,
            "steps": supervision::steps_to_json(&r.steps, r.ordered),
            "went_back": r.went_back,
            "recoveries": r.recoveries,
            "recovery_intended": r.recovery_intended,
            "keys": r.keys.map(|k| json!({ "every_ms": k.every_ms, "age_ms": k.age_ms })),
            "fault": match r.fault.is_empty() {
                true => "",
                false => fault_name(r),
            },
        })
    };
    json!({
        "group": group.name(),
        "state": whole.name(),
        "n": quorum.n(),
        "f": quorum.f(),
        "recovery": recoveries.to_json(quorum),
        "replicas": quorum.replicas().map(replica).collect::<Vec<_>>(),
    })
}

/// How a replica that has recovered on purpose found its own state.
fn check_to_json(check: &StateCheck) -> Value {
    json!({
        "done": check.done,
        "took_ms": check.took_ms,
        "right": check.right,
        "right_bytes": check.right_bytes,
        "differing": check.differing,
        "damaged": check.damaged,
    })
}

/// The reports of a group whose client key is beside its group file.
pub fn of_directory(group: &Group, directory: &Path) -> Result<Identity> {
    let key = keys::load(&paths::client_key(directory)).context("the client's key")?;
    debug_assert!(group.client_of_key(&key.public()).is_some());
    Ok(Identity::new(&key))
}

/// Asks all replicas again and again, on a thread of its own.
#[derive(Debug)]
pub struct Watch {
    kept: Arc<Kept>,
    waker: Waker,
}

#[derive(Debug, Default)]
struct Kept {
    reports: Mutex<BTreeMap<ReplicaId, (Instant, Report)>>,
    ended: AtomicBool,
}

/// The end of the thread that asks.
struct Ends(Arc<Kept>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.kept.ended.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl Watch {
    /// How often the replicas are asked.
    const PERIOD: Duration = Duration::from_millis(500);
    /// A report older than this counts as silence.
    const FRESH: Duration = Duration::from_secs(2);

    /// Starts to ask. `known`: what is known of the replicas' certificates, and where what is seen of them is noted.
    pub fn start(group: &Group, identity: &Identity, known: Option<Epochs>) -> io::Result<Watch> {
        let links = ClientLinks::connect_with(group, identity, known)?;
        let (quorum, waker) = (group.quorum(), links.waker());
        Watch::begin(waker, move |kept| ask_on(links, quorum, kept))
    }

    /// Asks on a thread. However that ends, also by a panic, it is seen that nobody asks any more.
    fn begin(
        waker: Waker,
        ask: impl FnOnce(&Kept) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Watch> {
        let kept = Arc::<Kept>::default();
        let ends = Ends(kept.clone());
        let thread = std::thread::Builder::new().name("watch".into());
        thread.spawn(move || {
            // All of it, so that it ends with this thread.
            let ends = ends;
            if let Err(e) = ask(&ends.0) {
                tracing::error!("the replicas are not asked any more: {e}");
            }
        })?;
        Ok(Watch { kept, waker })
    }

    /// Whether nobody is asked any more, since the links have failed or the thread has panicked.
    pub fn has_ended(&self) -> bool {
        self.kept.ended.load(Ordering::Acquire)
    }

    /// What was said last, as far as it is fresh.
    pub fn reports(&self) -> Reports {
        let reports = self.kept.reports.lock();
        let reports = reports.unwrap_or_else(|e| e.into_inner());
        let fresh = reports
            .iter()
            .filter(|(_, (at, _))| at.elapsed() < Watch::FRESH);
        fresh
            .map(|(id, (_, report))| (*id, report.clone()))
            .collect()
    }
}

/// Asks until it is told to end.
fn ask_on(mut links: ClientLinks, quorum: Quorum, kept: &Kept) -> io::Result<()> {
    let question = Frame::encode(&ClientMessage::ReportPlease(1));
    let mut due = now();
    while !kept.ended.load(Ordering::Acquire) {
        if due <= now() {
            due = now() + Watch::PERIOD;
            for id in quorum.replicas() {
                links.send(id, &question);
            }
        }
        links.flush();
        let left = due.saturating_duration_since(now());
        links.poll(Some(left))?;
        while let Some(event) = links.next_event() {
            if let ClientEvent::Message(id, ReplicaMessage::Report(report)) = event {
                let mut reports = kept.reports.lock().unwrap_or_else(|e| e.into_inner());
                reports.insert(id, (now(), *report));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use quorate_net::group::{Files, Purpose};
    use quorate_wire::KeyPair;

    use super::*;
    use crate::supervision::window::tests::report;

    /// Longer than a thread takes to end on any machine.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Who looks whether the replicas are still asked sees that too where the thread that asks has failed or panicked: a supervisor ends for that.
    #[test]
    fn a_watch_that_fails_has_ended() {
        let key = KeyPair::from_seed(&[1; 32]);
        let members = vec![("127.0.0.1:1".into(), key.public())];
        let (files, purpose) = (Files::default(), Purpose::Service);
        let group = Group::new("home", members, Vec::new(), files, purpose).unwrap();
        let waker = || {
            ClientLinks::connect(&group, &Identity::new(&key))
                .unwrap()
                .waker()
        };
        let fails = |_: &Kept| Err(io::Error::other("as the test wants it"));
        let panics = |_: &Kept| panic!("as the test wants it");
        let watches = [Watch::begin(waker(), fails), Watch::begin(waker(), panics)];
        for watch in watches {
            let (watch, began) = (watch.unwrap(), now());
            while !watch.has_ended() {
                assert!(began.elapsed() < PATIENCE, "it seems to ask for ever");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    fn said(executed: u64, fault: &'static [u8]) -> Report {
        Report {
            executed: Seq(executed),
            fault: fault.into(),
            ..report(None)
        }
    }

    /// A replica that makes up how far it is has no other lag, and what it calls its fault does nothing to a terminal.
    #[test]
    fn one_that_lies_makes_up_no_lag() {
        let quorum = Quorum::new(4).expect("a group");
        let reports: Reports = [
            said(70, b""),
            said(u64::MAX, b"\x1b[H\x1b[2J"),
            said(69, b"lie"),
            said(12, b""),
        ]
        .into_iter()
        .zip(quorum.replicas())
        .map(|(report, id)| (id, report))
        .collect();
        let newest = newest(quorum, &reports);
        assert_eq!(newest, Seq(70));
        let lags = reports.values().map(|report| lag(report, newest));
        assert_eq!(lags.collect::<Vec<_>>(), [0, 0, 1, 58]);
        let notes = reports.values().map(|r| note(r, quorum, &reports));
        let notes: Vec<String> = notes.collect();
        assert!(notes[1].contains("not known here"), "{notes:?}");
        assert!(notes[2].contains("lie"), "{notes:?}");
        assert!(!notes.concat().contains('\x1b'));
    }
}
