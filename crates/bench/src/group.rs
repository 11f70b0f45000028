//! A group's processes.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quorate_fault::Fault;
use quorate_net::group::{Durability, Files, Group, Protocol, Purpose};
use quorate_net::{Identity, keys};
use quorate_wire::{Authentication, KeyPair};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

use crate::files::service::Serving;
use crate::replica::{Spec, Tunings, key_file};

/// How long a replica may take to start, and to end before it is killed.
const PATIENCE: Duration = Duration::from_secs(20);

/// How a group is made.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// How many replicas: 1 or 3f+1.
    pub replicas: usize,
    /// Where votes are kept before they leave.
    pub durability: Durability,
    /// What makes requests and votes believed.
    pub authentication: Authentication,
    /// Whether reads go unordered.
    pub unordered_reads: bool,
    /// The replicas' optimisations.
    pub tuning: Tunings,
    /// Threads that execute operations; 0: the replica's own.
    pub workers: usize,
    /// Whether those execute one operation after the other: BASE.
    pub one_by_one: bool,
    /// Threads that check signatures; 0: the replica's own does.
    pub verifiers: usize,
    /// Threads that seal what is long; 0: the replica's own does.
    pub sealers: usize,
    /// What is replicated: files in this way, or the service that does nothing.
    pub files: Option<Serving>,
    /// Whether the volume has an owner, and so may have guests.
    pub owned: bool,
    /// Which replica misbehaves, and how.
    pub fault: Option<(u8, Fault)>,
}

/// How to start this program as a replica: the program and the arguments before the replica's own.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The program.
    pub program: PathBuf,
    /// What comes before the [`Spec`].
    pub arguments: Vec<String>,
}

/// A group that runs. Its replicas end when it is dropped, and its files go.
#[derive(Debug)]
pub struct Running {
    group: Arc<Group>,
    /// The clients' keys; they are nowhere else, but for the first one's where files are served.
    clients: Vec<Identity>,
    children: Vec<Child>,
    /// Those of the correct replicas, and of the faulty one.
    pids: Vec<u32>,
    faulty: Option<u32>,
    owner: Option<KeyPair>,
    directory: TempDir,
}

impl Running {
    /// Starts all replicas of a new group that has this many clients, with its files in a new directory under `data`.
    ///
    /// # Errors
    /// Where a replica does not start.
    pub async fn start(
        setup: &Setup,
        clients: usize,
        data: &Path,
        launcher: &Launcher,
    ) -> Result<Running> {
        let directory = tempfile::Builder::new()
            .prefix("quorate-bench-")
            .tempdir_in(data)
            .with_context(|| format!("can't make a directory in {}", data.display()))?;
        let clients = (0..clients).map(|_| keys::generate());
        let clients = clients.collect::<Result<Vec<_>, _>>()?;
        let mut group = make_group(setup, &clients, directory.path())?;
        let owner = setup.owned.then(keys::generate).transpose()?;
        if let Some(owner) = &owner {
            group = group.with_owner(owner.public())?;
        }
        let file = group_file(directory.path());
        group.save(&file)?;
        if let (Some(_), Some(key)) = (setup.files, clients.first()) {
            // Where the process that mounts looks for it.
            keys::save(&directory.path().join("client.key"), key)?;
        }
        let mut running = Running {
            group: Arc::new(group),
            clients: clients.iter().map(Identity::new).collect(),
            children: Vec::new(),
            pids: Vec::new(),
            faulty: None,
            owner,
            directory,
        };
        for id in running.group.quorum().replicas() {
            let spec = Spec {
                id: id.0,
                group: file.clone(),
                data: running.replica(id.0),
                tuning: setup.tuning,
                workers: setup.workers,
                one_by_one: setup.one_by_one,
                verifiers: setup.verifiers,
                sealers: setup.sealers,
                files: setup.files,
                fault: setup
                    .fault
                    .filter(|(at, _)| *at == id.0)
                    .map(|(_, f)| f.to_string()),
            };
            let child = spawn(launcher, &spec)?;
            match spec.fault {
                None => running.pids.extend(child.id()),
                Some(_) => running.faulty = child.id(),
            }
            running.children.push(child);
        }
        for id in 0..running.children.len() {
            running.wait_for(id).await?;
        }
        Ok(running)
    }

    /// The group.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Who a client is.
    pub fn client(&self, at: usize) -> Option<&Identity> {
        self.clients.get(at)
    }

    /// The owner's key, where there is one.
    pub fn owner(&self) -> Option<&KeyPair> {
        self.owner.as_ref()
    }

    /// The processes of the replicas that are correct.
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// The process of the one that is not.
    pub fn faulty(&self) -> Option<u32> {
        self.faulty
    }

    /// Where the group's files are.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The group file.
    pub fn file(&self) -> PathBuf {
        group_file(self.directory.path())
    }

    /// The last lines that the replicas have said, for when something goes wrong.
    pub fn last_words(&self) -> String {
        let words = |id: u8| {
            let log = std::fs::read(log_file(&self.replica(id))).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let last = log.lines().last().unwrap_or("nothing");
            format!("\n  replica {id} said: {last}")
        };
        (0..self.children.len() as u8).map(words).collect()
    }

    /// Stops the replicas and waits until they have ended.
    ///
    /// # Errors
    /// Where a process can't be ended.
    pub async fn stop(mut self) -> Result<()> {
        for child in &mut self.children {
            drop(child.stdin.take());
        }
        for child in &mut self.children {
            if timeout(PATIENCE, child.wait()).await.is_err() {
                child.kill().await?;
            }
        }
        Ok(())
    }

    /// What tells one of the correct replicas that it is needed: it ends when this is dropped.
    pub fn sign_of_life(&mut self, at: usize) -> Option<ChildStdin> {
        let pid = *self.pids.get(at)?;
        let child = self.children.iter_mut().find(|c| c.id() == Some(pid));
        child?.stdin.take()
    }

    /// Goes on without one of the correct replicas, whose process is of no use any more.
    ///
    /// # Errors
    /// Where the process can't be ended.
    pub async fn lose(&mut self, at: usize) -> Result<()> {
        let pid = self.pids.remove(at);
        let child = self.children.iter_mut().find(|c| c.id() == Some(pid));
        child.context("no such process")?.kill().await?;
        Ok(())
    }

    fn replica(&self, id: u8) -> PathBuf {
        replica_directory(self.directory.path(), id)
    }

    async fn wait_for(&mut self, id: usize) -> Result<()> {
        let stdout = self.children[id].stdout.take();
        let mut lines = BufReader::new(stdout.context("no pipe")?).lines();
        match timeout(PATIENCE, lines.next_line()).await {
            Ok(Ok(Some(_))) => Ok(()),
            _ => bail!("replica {id} does not start{}", self.last_words()),
        }
    }
}

fn make_group(setup: &Setup, clients: &[KeyPair], directory: &Path) -> Result<Group> {
    let mut replicas = Vec::new();
    for (id, address) in (0..).zip(free_addresses(setup.replicas)?) {
        let own = replica_directory(directory, id);
        std::fs::create_dir_all(&own)?;
        let key = keys::generate()?;
        keys::save(&key_file(&own), &key)?;
        replicas.push((address, key.public()));
    }
    let clients = clients.iter().enumerate();
    let clients = clients.map(|(at, key)| (format!("client-{at}"), key.public()));
    let files = Files::default();
    let purpose = match setup.fault {
        None => Purpose::Service,
        Some(_) => Purpose::Demonstration,
    };
    let group = Group::new("benchmark", replicas, clients.collect(), files, purpose)?;
    Ok(group.with_protocol(Protocol {
        durability: setup.durability,
        unordered_reads: setup.unordered_reads,
        authentication: setup.authentication,
        key_refresh: None,
    }))
}

/// Loopback addresses that nobody listens on; all are held until all are known, so that they differ.
pub(crate) fn free_addresses(count: usize) -> Result<Vec<String>> {
    let bound = (0..count).map(|_| std::net::TcpListener::bind("127.0.0.1:0"));
    let bound = bound.collect::<std::io::Result<Vec<_>>>()?;
    let addresses = bound.iter().map(|b| b.local_addr().map(|a| a.to_string()));
    Ok(addresses.collect::<std::io::Result<_>>()?)
}

/// The first of so many ports that follow each other, on which nobody listens.
pub(crate) fn free_ports_in_a_row(count: u8) -> Result<u16> {
    let listen = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port));
    let first = 7400 + (std::process::id() % 2000) as u16;
    let mut firsts = (first..first + 10_000).step_by(usize::from(count));
    let is_free = |first: &u16| (0..u16::from(count)).all(|at| listen(first + at).is_ok());
    firsts.find(is_free).context("no ports are free")
}

fn spawn(launcher: &Launcher, spec: &Spec) -> Result<Child> {
    let log = std::fs::File::create(log_file(&spec.data))?;
    let child = Command::new(&launcher.program)
        .args(&launcher.arguments)
        .arg(serde_json::to_string(spec)?)
        // Its end tells the replica that nobody needs it any more.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        // Ctrl-C in the terminal is for the benchmark, which then stops the replicas.
        .process_group(0)
        .kill_on_drop(true)
        .spawn();
    child.with_context(|| format!("can't start {}", launcher.program.display()))
}

fn group_file(group: &Path) -> PathBuf {
    group.join("group.toml")
}

fn replica_directory(group: &Path, id: u8) -> PathBuf {
    group.join(format!("replica-{id}"))
}

fn log_file(replica: &Path) -> PathBuf {
    replica.join("messages.log")
}
