//! `quorate status`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use quorate_node::{ClientEvent, ClientTransport, Frame, Group, Identity, keys};
use quorate_wire::message::{ClientMessage, ReplicaMessage, Report};
use quorate_wire::{Quorum, ReplicaId, Seq};
use serde_json::{Value, json};

use crate::args::Status;
use crate::{commands, paths};

/// What the replicas said, as far as they did.
pub type Reports = BTreeMap<ReplicaId, Report>;

pub fn run(args: &Status) -> ExitCode {
    match ask(args) {
        Ok((group, reports)) => {
            let whole = Health::judge(group.quorum(), &reports);
            if args.json {
                println!("{}", to_json(&group, &reports, whole));
            } else {
                print(&group, &reports, whole);
            }
            ExitCode::from(whole as u8)
        }
        Err(e) => {
            eprintln!("quorate: {e:#}");
            ExitCode::from(2)
        }
    }
}

fn ask(args: &Status) -> Result<(Group, Reports)> {
    let file = match &args.group {
        Some(file) => file.clone(),
        None => paths::group_file(&paths::local_group()?),
    };
    let group = Group::load(&file)?;
    let key = args
        .key
        .clone()
        .unwrap_or_else(|| paths::client_key(&paths::beside(&file)));
    let identity = Identity::new(&keys::load(&key)?);
    if group.client_of_key(&identity.public()).is_none() {
        anyhow::bail!(
            "{} is no client of this group: give one that is (--key)",
            key.display()
        );
    }
    let timeout = Duration::from_millis(args.timeout_ms);
    let reports = commands::runtime()?.block_on(collect(&group, &identity, timeout));
    Ok((group, reports))
}

/// Asks all replicas, and waits until all have answered or the time is over.
pub async fn collect(group: &Group, identity: &Identity, timeout: Duration) -> Reports {
    let (transport, mut events) = ClientTransport::connect(group, identity);
    let mut reports = Reports::new();
    let question = Frame::encode(&ClientMessage::ReportPlease(1));
    let all = async {
        while reports.len() < group.quorum().n() {
            match events.recv().await {
                Some(ClientEvent::Up(replica, _)) => {
                    transport.links().send(replica, &question);
                }
                // What it says of itself is believed; that it is itself, TLS has made sure.
                Some(ClientEvent::Message(replica, ReplicaMessage::Report(report))) => {
                    reports.insert(replica, report);
                }
                Some(ClientEvent::Message(..) | ClientEvent::Down(_)) => {}
                None => break,
            }
        }
    };
    let _ = tokio::time::timeout(timeout, all).await;
    reports
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

fn newest(reports: &Reports) -> Seq {
    reports
        .values()
        .map(|r| r.executed)
        .max()
        .unwrap_or_default()
}

fn note(report: &Report, quorum: Quorum, reports: &Reports) -> String {
    let mut notes = Vec::new();
    if !report.fault.is_empty() {
        notes.push(format!(
            "FAULT INJECTED: {}",
            String::from_utf8_lossy(&report.fault)
        ));
    }
    if report.fetching {
        notes.push("fetching state".into());
    }
    if !report.active {
        notes.push("waiting for a new view".into());
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
    notes.join("; ")
}

fn print(group: &Group, reports: &Reports, whole: Health) {
    let quorum = group.quorum();
    println!(
        "group {}: {} ({} of {} replicas answer; {} may be faulty)",
        group.name(),
        whole.name(),
        reports.len(),
        quorum.n(),
        quorum.f()
    );
    println!(
        "{:<8} {:>6} {:>10} {:>6} {:>10} {:<10} {:>6} {:>8}  notes",
        "replica", "view", "executed", "lag", "stable", "root", "links", "clients"
    );
    let newest = newest(reports);
    for id in quorum.replicas() {
        let Some(r) = reports.get(&id) else {
            let address = group.replica(id).map_or("", |entry| entry.address.as_str());
            println!("{id:<8} does not answer at {address}");
            continue;
        };
        let primary = if quorum.primary(r.view) == id {
            "*"
        } else {
            ""
        };
        println!(
            "{:<8} {:>6} {:>10} {:>6} {:>10} {:<10} {:>6} {:>8}  {}",
            format!("{id}{primary}"),
            r.view.0,
            r.executed.0,
            newest.0 - r.executed.0,
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
    println!(
        "* primary; executed and stable count batches; root is the state's digest at `stable`"
    );
}

fn to_json(group: &Group, reports: &Reports, whole: Health) -> Value {
    let quorum = group.quorum();
    let newest = newest(reports);
    let replica = |id: ReplicaId| -> Value {
        let address = group.replica(id).map(|entry| entry.address.clone());
        let Some(r) = reports.get(&id) else {
            return json!({ "id": id.0, "address": address, "answers": false });
        };
        let links: Vec<Value> = r
            .links
            .iter()
            .map(|l| json!({ "peer": l.peer.0, "up": l.up, "dropped": l.dropped }))
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
            "lag": newest.0 - r.executed.0,
            "stable": r.stable.0,
            "root": r.root.to_string(),
            "root_differs": odd_root(r, quorum, reports),
            "fetching": r.fetching,
            "links": links,
            "clients": r.clients,
            "view_changes": r.view_changes,
            "uptime_ms": r.uptime_ms,
            "fault": String::from_utf8_lossy(&r.fault),
        })
    };
    json!({
        "group": group.name(),
        "state": whole.name(),
        "n": quorum.n(),
        "f": quorum.f(),
        "replicas": quorum.replicas().map(replica).collect::<Vec<_>>(),
    })
}

/// The reports of a group whose client key is beside its group file.
pub fn of_directory(group: &Group, directory: &std::path::Path) -> Result<Identity> {
    let key = keys::load(&paths::client_key(directory)).context("the client's key")?;
    debug_assert!(group.client_of_key(&key.public()).is_some());
    Ok(Identity::new(&key))
}

/// Asks all replicas again and again.
#[derive(Debug)]
pub struct Watch {
    reports: std::sync::Arc<std::sync::Mutex<BTreeMap<ReplicaId, (tokio::time::Instant, Report)>>>,
    _task: tokio::task::JoinHandle<()>,
}

impl Watch {
    /// How often the replicas are asked.
    const PERIOD: Duration = Duration::from_millis(500);
    /// A report older than this counts as silence.
    const FRESH: Duration = Duration::from_secs(2);

    /// Starts to ask, within a tokio runtime.
    pub fn start(group: &Group, identity: &Identity) -> Watch {
        let reports = std::sync::Arc::<std::sync::Mutex<BTreeMap<_, _>>>::default();
        let (transport, mut events) = ClientTransport::connect(group, identity);
        let quorum = group.quorum();
        let kept = reports.clone();
        let task = tokio::spawn(async move {
            let mut period = tokio::time::interval(Watch::PERIOD);
            let question = Frame::encode(&ClientMessage::ReportPlease(1));
            loop {
                tokio::select! {
                    _ = period.tick() => for id in quorum.replicas() {
                        transport.links().send(id, &question);
                    },
                    event = events.recv() => match event {
                        Some(ClientEvent::Message(id, ReplicaMessage::Report(report))) => {
                            let mut kept = kept.lock().unwrap_or_else(|e| e.into_inner());
                            kept.insert(id, (tokio::time::Instant::now(), report));
                        }
                        Some(_) => {}
                        None => return,
                    },
                }
            }
        });
        Watch {
            reports,
            _task: task,
        }
    }

    /// What was said last, as far as it is fresh.
    pub fn reports(&self) -> Reports {
        let kept = self.reports.lock().unwrap_or_else(|e| e.into_inner());
        let fresh = kept
            .iter()
            .filter(|(_, (at, _))| at.elapsed() < Watch::FRESH);
        fresh
            .map(|(id, (_, report))| (*id, report.clone()))
            .collect()
    }
}
