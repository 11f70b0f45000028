//! A group of real replica processes, whose links go through proxies.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};
use quorate_net::group::{Files, Protocol, Purpose};
use quorate_net::{Group as GroupFile, Identity, keys};
use quorate_node::daemon::directory;
use quorate_wire::ReplicaId;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

use crate::dice::Dice;
use crate::disk::SmallDisk;
use crate::knobs::Knobs;
use crate::net::Net;
use crate::rot;
use crate::schedule::{Node, Rotten};
use crate::traces;

/// Whose links go past the proxies: who looks from outside.
const OBSERVER: &str = "observer";

/// A running group. Its processes end when it is dropped; its files stay.
#[derive(Debug)]
pub struct Group {
    program: PathBuf,
    directory: PathBuf,
    file: GroupFile,
    replicas: Vec<Replica>,
    byzantine: Option<(u8, String)>,
    /// Against whom there may be evidence.
    misbehaving: Option<u8>,
    workers: u16,
    verifiers: u16,
    sealers: u16,
    /// See [`Group::take_stopped`].
    stopped: usize,
    /// The links of its members.
    pub net: Net,
}

#[derive(Debug)]
struct Replica {
    id: u8,
    address: SocketAddr,
    child: Option<Child>,
    disk: Option<SmallDisk>,
    /// Why the process may end by itself at present.
    may_end: bool,
    /// If it must say that its log is damaged: where in its words that must stand.
    must_tell: Option<u64>,
}

impl Group {
    /// Makes the files of a new group in a directory, and starts all replicas. `clients` have links through proxies.
    ///
    /// # Errors
    /// Where files, sockets or processes can't be made.
    pub async fn start(
        program: &Path,
        directory: &Path,
        knobs: &Knobs,
        clients: u8,
        seed: u64,
    ) -> Result<Group> {
        let file = make_files(directory, knobs, clients, seed)?;
        let mut net = Net::default();
        let mut replicas = Vec::new();
        for (id, entry) in (0..).zip(file.replicas()) {
            let data = data(directory, id);
            std::fs::create_dir_all(&data)?;
            let disk = match knobs.disks {
                true => Some(SmallDisk::mount(&data)?),
                false => None,
            };
            directory::make(&data, &file)?;
            replicas.push(Replica {
                id,
                address: entry.address.parse()?,
                child: None,
                disk,
                may_end: false,
                must_tell: None,
            });
        }
        let addresses: Vec<(u8, SocketAddr)> = replicas.iter().map(|r| (r.id, r.address)).collect();
        for id in 0..knobs.replicas {
            let lower = addresses.iter().filter(|(other, _)| *other < id).copied();
            net.connect(Node::Replica(id), lower, seed).await?;
        }
        for client in 0..clients {
            let all = addresses.iter().copied();
            net.connect(Node::Client(client), all, seed).await?;
        }
        let mut group = Group {
            program: program.into(),
            directory: directory.into(),
            file,
            replicas,
            byzantine: knobs.byzantine.map(|(id, fault)| (id, fault.to_string())),
            stopped: 0,
            misbehaving: knobs.misbehaving(),
            workers: knobs.workers,
            verifiers: knobs.verifiers,
            sealers: knobs.sealers,
            net,
        };
        for id in 0..knobs.replicas {
            group.start_replica(id)?;
        }
        Ok(group)
    }

    /// All replicas.
    pub fn all(&self) -> Vec<ReplicaId> {
        self.file.quorum().replicas().collect()
    }

    /// The replicas that follow the protocol.
    pub fn correct(&self) -> Vec<ReplicaId> {
        let faulty = self.byzantine.as_ref().map(|(id, _)| *id);
        let mut ids = self.all();
        ids.retain(|id| Some(id.0) != faulty);
        ids
    }

    /// The group as a client reaches it, and the client's key.
    ///
    /// # Errors
    /// Where its key can't be read.
    pub fn client(&self, client: u8) -> Result<(GroupFile, Identity)> {
        let mut group = self.file.clone();
        for (replica, address) in self.net.routes(Node::Client(client)) {
            group = group.with_route(ReplicaId(replica), &address.to_string())?;
        }
        let key = keys::load(&self.client_key(client))?;
        Ok((group, Identity::new(&key)))
    }

    /// The group as it is, and the key of who looks from outside.
    ///
    /// # Errors
    /// Where the key can't be read.
    pub fn observer(&self) -> Result<(GroupFile, Identity)> {
        let key = keys::load(&self.directory.join(format!("{OBSERVER}.key")))?;
        Ok((self.file.clone(), Identity::new(&key)))
    }

    /// A client's command `quorate mount`, but for what it is to be mounted at and where its words go.
    pub fn mount_command(&self, client: u8, at: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["-v", "mount"]).arg(self.group_file()).arg(at);
        command.arg("--key").arg(self.client_key(client));
        self.add_routes(&mut command, Node::Client(client));
        command
    }

    fn group_file(&self) -> PathBuf {
        self.directory.join("group.toml")
    }

    fn client_key(&self, client: u8) -> PathBuf {
        self.directory.join(format!("client-{client}.key"))
    }

    fn add_routes(&self, command: &mut Command, dialer: Node) {
        for (replica, address) in self.net.routes(dialer) {
            command.args(["--route", &format!("{replica}={address}")]);
        }
    }

    /// Where a replica's words are.
    pub fn log(&self, id: u8) -> PathBuf {
        self.directory.join(format!("replica-{id}.log"))
    }

    /// Starts a replica, unless it runs.
    ///
    /// # Errors
    /// Where the process can't be made.
    pub fn start_replica(&mut self, id: u8) -> Result<()> {
        if self.replica(id).child.is_some() {
            return Ok(());
        }
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log(id))?;
        let mut command = Command::new(&self.program);
        // Ends with this process, however that ends: the pipe is its sign of life.
        command.args(["-v", "replica", "--with-parent", "--id", &id.to_string()]);
        command.args(["--workers", &self.workers.to_string()]);
        command.args(["--verifiers", &self.verifiers.to_string()]);
        command.args(["--verify-from", "1"]);
        command.args(["--sealers", &self.sealers.to_string()]);
        command.args(["--seal-from", "1"]);
        command.arg("--group").arg(self.group_file());
        command.arg("--data").arg(data(&self.directory, id));
        self.add_routes(&mut command, Node::Replica(id));
        if let Some((faulty, kind)) = &self.byzantine
            && *faulty == id
        {
            command.args(["--fault", kind]);
        }
        command
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = command.spawn();
        let child = child.with_context(|| format!("can't start {}", self.program.display()))?;
        self.replica(id).child = Some(child);
        Ok(())
    }

    /// Kills a replica at once.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn kill(&mut self, id: u8) -> Result<()> {
        if let Some(mut child) = self.replica(id).child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Has a replica stand still, or go on.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn pause(&mut self, id: u8, still: bool) -> Result<()> {
        if let Some(child) = &self.replica(id).child {
            let signal = if still { Signal::STOP } else { Signal::CONT };
            kill_process(Pid::from_child(child), signal)?;
        }
        Ok(())
    }

    /// Takes the room on a replica's disk away, but for so many bytes; or gives it back, and starts the replica if it
    /// has stopped.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn fill_disk(&mut self, id: u8, left: Option<u64>) -> Result<()> {
        let replica = self.replica(id);
        replica.may_end |= left.is_some();
        if let Some(disk) = &replica.disk {
            match left {
                Some(left) => disk.fill(left)?,
                None => disk.clear()?,
            }
        }
        match left {
            Some(_) => Ok(()),
            None => self.recover(id),
        }
    }

    /// Has no file of a replica become longer than so many bytes: whatever writes beyond that is killed. `None`: as before,
    /// and the replica is started if it was killed.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn limit_files(&mut self, id: u8, longest: Option<u64>) -> Result<()> {
        let replica = self.replica(id);
        replica.may_end |= longest.is_some();
        if let Some(child) = &replica.child {
            let limit = Rlimit {
                current: longest,
                maximum: getrlimit(Resource::Fsize).maximum,
            };
            // It may have ended, and not have been waited for.
            let _ = prlimit(Some(Pid::from_child(child)), Resource::Fsize, limit);
        }
        match longest {
            Some(_) => Ok(()),
            None => self.recover(id),
        }
    }

    /// Kills a replica and damages what it has written.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn rot(&mut self, id: u8, what: Rotten, at_per_mille: u64, every: u64) -> Result<()> {
        self.kill(id)?;
        let data = data(&self.directory, id);
        if rot::damage(&data, what, at_per_mille, every)? && what == Rotten::Log {
            let said = std::fs::metadata(self.log(id)).map_or(0, |words| words.len());
            self.replica(id).must_tell = Some(said);
        }
        Ok(())
    }

    /// Fails if a correct replica has not said that its log was damaged. It has been started since, and recovered.
    ///
    /// # Errors
    /// The replica, and its last words.
    pub fn check_rot(&mut self) -> Result<()> {
        for replica in &mut self.replicas {
            let Some(said) = replica.must_tell.take() else {
                continue;
            };
            // Nobody has waited for it.
            if self
                .byzantine
                .as_ref()
                .is_some_and(|(id, _)| *id == replica.id)
            {
                continue;
            }
            let path = log_path(&self.directory, replica.id);
            let words = std::fs::read(&path)?;
            let words = String::from_utf8_lossy(&words[said as usize..]);
            // Both: that it is damaged, and that it has come back from that.
            for expected in ["is damaged at byte", "the replica votes again"] {
                if !words.contains(expected) {
                    let (id, last) = (replica.id, last_lines(&path, 12));
                    bail!("replica {id} has not said {expected:?} of its damaged log:\n{last}");
                }
            }
        }
        Ok(())
    }

    /// What kept a replica's disk from working is over.
    fn recover(&mut self, id: u8) -> Result<()> {
        self.check_processes()?;
        self.stopped += usize::from(self.replica(id).child.is_none());
        // Its last write may have failed, and it may be about to stop for that: so it is started anew.
        self.kill(id)?;
        self.replica(id).may_end = false;
        self.start_replica(id)
    }

    /// How many replicas have stopped since this was last asked because their disks were full, or a write was cut.
    pub fn take_stopped(&mut self) -> usize {
        std::mem::take(&mut self.stopped)
    }

    /// Fails if a replica has ended by itself without being allowed to.
    ///
    /// # Errors
    /// The replica, and its last words.
    pub fn check_processes(&mut self) -> Result<()> {
        for replica in &mut self.replicas {
            let Some(child) = &mut replica.child else {
                continue;
            };
            let Some(status) = child.try_wait()? else {
                continue;
            };
            let log = last_lines(&log_path(&self.directory, replica.id), 12);
            let id = replica.id;
            if !replica.may_end {
                bail!("replica {id} ended by itself ({status}):\n{log}");
            }
            replica.child = None;
            if !is_orderly(status) {
                bail!("replica {id} did not end in order ({status}) when its disk failed:\n{log}");
            }
        }
        Ok(())
    }

    /// Fails if a replica has panicked, or if there is evidence against a correct one.
    ///
    /// # Errors
    /// Where, and what.
    pub fn check_traces(&self) -> Result<()> {
        for replica in &self.replicas {
            let path = self.log(replica.id);
            let log = std::fs::read(&path).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            if let Some(line) = log.lines().find(|line| line.contains("panicked at")) {
                bail!("replica {} panicked: {line}", replica.id);
            }
            for name in names_in(&data(&self.directory, replica.id).join("evidence")) {
                let accused = name.split('-').next().and_then(|id| id.parse().ok());
                if accused.is_none() || accused != self.misbehaving {
                    bail!("replica {} keeps {name}, against a correct one", replica.id);
                }
            }
        }
        Ok(())
    }

    /// What each replica's process is doing.
    pub fn describe(&self) -> String {
        let describe = |replica: &Replica| match &replica.child {
            Some(child) => format!("replica {}:\n{}", replica.id, traces::of(child.id())),
            None => format!("replica {} does not run\n", replica.id),
        };
        self.replicas.iter().map(describe).collect()
    }

    fn replica(&mut self, id: u8) -> &mut Replica {
        &mut self.replicas[usize::from(id)]
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for replica in &mut self.replicas {
            if let Some(child) = &mut replica.child {
                // It may have ended by itself.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// A full disk ends a replica with a message, and a cut write by the system's signal; a panic or another signal is a defect.
fn is_orderly(status: ExitStatus) -> bool {
    // As `quorate replica` has them: the environment's fault alone.
    const IO: i32 = 74;
    match status.code() {
        Some(code) => code == IO,
        None => status.signal() == Some(Signal::XFSZ.as_raw()),
    }
}

fn data(directory: &Path, id: u8) -> PathBuf {
    directory.join(format!("data-{id}"))
}

fn log_path(directory: &Path, id: u8) -> PathBuf {
    directory.join(format!("replica-{id}.log"))
}

fn names_in(directory: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.map(|e| e.file_name().to_string_lossy().into_owned());
    names.filter(|n| n.ends_with(".evidence")).collect()
}

/// The last lines of a text file, indented.
pub fn last_lines(path: &Path, count: usize) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(count)..];
    last.iter().map(|line| format!("    {line}\n")).collect()
}

/// Keys, and a group file for a demonstration: only such a group takes faults.
fn make_files(directory: &Path, knobs: &Knobs, clients: u8, seed: u64) -> Result<GroupFile> {
    let make_key = |path: PathBuf| {
        let key = keys::generate()?;
        keys::save(&path, &key)?;
        Ok::<_, anyhow::Error>(key.public())
    };
    let ports = free_ports(usize::from(knobs.replicas), seed)?;
    let mut members = Vec::new();
    for (id, port) in ports.iter().enumerate() {
        let own = directory.join(format!("replica-{id}"));
        std::fs::create_dir_all(&own)?;
        members.push((format!("127.0.0.1:{port}"), make_key(own.join("key"))?));
    }
    let mut keys = vec![(
        OBSERVER.to_string(),
        make_key(directory.join("observer.key"))?,
    )];
    for client in 0..clients {
        let name = format!("client-{client}");
        let key = make_key(directory.join(format!("{name}.key")))?;
        keys.push((name, key));
    }
    let protocol = Protocol {
        authentication: knobs.authentication(),
        ..Protocol::default()
    };
    let purpose = Purpose::Demonstration;
    let group = GroupFile::new("chaos", members, keys, Files::default(), purpose);
    let group = group.map_err(|problem| anyhow::anyhow!("no such group: {problem}"))?;
    let group = group.with_protocol(protocol);
    group.save(&directory.join("group.toml"))?;
    Ok(group)
}

/// Ports on which nobody listens, below those that the system gives to outgoing connections: a replica's port
/// must not become the near end of somebody's connection while it is down.
fn free_ports(count: usize, seed: u64) -> Result<Vec<u16>> {
    const ATTEMPTS: usize = 1000;
    let mut dice = Dice::new(seed ^ u64::from(std::process::id()) << 32, 2);
    let mut ports = Vec::new();
    for _ in 0..ATTEMPTS {
        let port = 12_000 + dice.below(18_000) as u16;
        if !ports.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            ports.push(port);
        }
        if ports.len() == count {
            return Ok(ports);
        }
    }
    bail!("there are no {count} free ports");
}

/// A new file, for words of a process.
///
/// # Errors
/// Where it can't be made.
pub fn new_log(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("can't make {}", path.display()))
}
