//! A replica of the null service or of files, as a child process of the benchmark.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use quorate_execution::graph::Conflicts;
use quorate_files::Admission;
use quorate_net::{Group, keys};
use quorate_node::{Daemon, Options, PATIENCE, Sealing, StoreOptions, Trust, Tuning, Verification};
use quorate_wire::ReplicaId;
use serde::{Deserialize, Serialize};

use crate::files::service::{ServedFiles, Serving};
use crate::null::NullService;

/// What a replica's process is told, as JSON in its last argument.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// The replica's number.
    pub id: u8,
    /// The group file.
    pub group: PathBuf,
    /// The replica's directory, with its key; made at the start.
    pub data: PathBuf,
    /// The protocol's optimisations.
    pub tuning: Tunings,
    /// Threads that execute operations beside the replica's own.
    pub workers: usize,
    /// Whether they execute one operation after the other.
    #[serde(default)]
    pub one_by_one: bool,
    /// Threads that check signatures beside the replica's own.
    #[serde(default)]
    pub verifiers: usize,
    /// Threads that seal what is long beside the replica's own.
    #[serde(default)]
    pub sealers: usize,
    /// How files are served, if it is not the null service.
    #[serde(default)]
    pub files: Option<Serving>,
    /// The name of the fault that it has, if it is to misbehave.
    #[serde(default)]
    pub fault: Option<String>,
}

/// [`Tuning`], field by field.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "see Tuning")]
pub struct Tunings {
    pub tentative: bool,
    pub inline_bytes: usize,
    pub batch_requests: usize,
    pub batches: u64,
    pub vouched_from: usize,
}

impl Default for Tunings {
    fn default() -> Tunings {
        let Tuning {
            tentative,
            inline_bytes,
            batch_requests,
            batches,
            vouched_from,
        } = Tuning::default();
        Tunings {
            tentative,
            inline_bytes,
            batch_requests,
            batches,
            vouched_from,
        }
    }
}

impl Tunings {
    fn tuning(self) -> Tuning {
        Tuning {
            tentative: self.tentative,
            inline_bytes: self.inline_bytes,
            batch_requests: self.batch_requests,
            batches: self.batches,
            vouched_from: self.vouched_from,
        }
    }
}

/// Runs a replica until standard input ends, which it does with the benchmark, however that ends. Says a line when it
/// listens.
///
/// # Errors
/// Where the replica can't run.
pub fn run(spec: &str) -> Result<()> {
    let spec: Spec = serde_json::from_str(spec).context("this command is the benchmark's own")?;
    let options = Options {
        group: Arc::new(Group::load(&spec.group)?),
        me: ReplicaId(spec.id),
        key: keys::load(&key_file(&spec.data))?,
        key_holder: None,
        data: spec.data,
        first_start: true,
        lost_disk: false,
        trust: Trust::All,
        seen: Vec::new(),
        listen: None,
        tuning: spec.tuning.tuning(),
        workers: spec.workers,
        conflicts: match spec.one_by_one {
            true => Conflicts::All,
            false => Conflicts::Declared,
        },
        verification: Verification {
            threads: spec.verifiers,
            ..Verification::default()
        },
        sealing: Sealing {
            threads: spec.sealers,
            ..Sealing::default()
        },
        store: StoreOptions::default(),
        patience: PATIENCE,
        fault: spec.fault.map(|name| name.parse()).transpose()?,
    };
    let (volume, group) = (options.group.files(), options.group.clone());
    let admission = Admission {
        volume: group.id(),
        owner: group.owner(),
        members: group.clients().iter().map(|client| client.key).collect(),
    };
    let replica = match spec.files {
        None => Daemon::start(options, NullService::default())?,
        Some(serving) => Daemon::start(options, ServedFiles::new(volume, serving, admission))?,
    };
    println!("ready");
    std::io::stdout().flush()?;
    let stopper = replica.stopper();
    std::thread::spawn(move || {
        let mut byte = [0];
        while matches!(std::io::stdin().read(&mut byte), Ok(1..)) {}
        stopper.stop();
    });
    Ok(replica.wait()?)
}

/// Where a replica's key is, in its directory.
pub fn key_file(data: &std::path::Path) -> PathBuf {
    data.join("key")
}
