//! A group of real replica processes.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use quorate_net::group::{Durability, Files, Protocol, Purpose};
use quorate_net::holder::CounterFile;
use quorate_net::{Group as GroupFile, keys};
use quorate_node::daemon::directory;
use quorate_wire::{Authentication, IdentityKey};

use super::programs::wait;
use super::watchdog::{Mounts, Watchdog};
use super::{
    Mount, Patience, Random, Status, eventually, finish, last_lines, quorate, scratch,
    scratch_in_memory,
};

/// How long a test with a group may take before it counts as hung.
pub(super) const LIMIT: Duration = Duration::from_secs(5 * 60);
/// How many tests have a group at a time. One alone waits for most of its time: for timeouts, and for processes that end and start.
const TURNS: usize = 2;
/// The names of the clients in the group file.
const CLIENTS: [&str; 3] = ["client", "second", "third"];

/// A group to be started.
#[derive(Debug)]
pub struct Setup {
    replicas: u8,
    faults: Vec<(u8, &'static str)>,
    data: Vec<(u8, PathBuf)>,
    on_disk: bool,
    protocol: Protocol,
    key_holders: bool,
    chip: Option<Chip>,
    owner: bool,
}

/// A key holder whose key is in a TPM.
#[derive(Clone, Debug)]
#[cfg_attr(
    not(feature = "tpm"),
    allow(dead_code, reason = "it takes a TPM to make one")
)]
pub struct Chip {
    /// Whose it is.
    pub replica: u8,
    /// How it is reached.
    pub tcti: String,
    /// The file that says which key it is.
    pub file: PathBuf,
    /// That key.
    pub identity: IdentityKey,
}

/// A running group. Its processes and files go with it.
#[derive(Debug)]
pub struct Group {
    directory: tempfile::TempDir,
    file: GroupFile,
    replicas: Vec<Replica>,
    /// Where replicas have them.
    holders: Vec<Option<Child>>,
    chip: Option<Chip>,
    watchdog: Watchdog,
    _turn: File,
}

#[derive(Debug)]
struct Replica {
    id: u8,
    fault: Option<&'static str>,
    data: Option<PathBuf>,
    child: Option<Child>,
}

impl Setup {
    pub fn new(replicas: u8) -> Setup {
        Setup {
            replicas,
            faults: Vec::new(),
            data: Vec::new(),
            on_disk: false,
            protocol: Protocol::default(),
            key_holders: false,
            chip: None,
            owner: false,
        }
    }

    /// Gives the volume an owner, whose key is in a file beside the group file.
    pub fn owner(mut self) -> Setup {
        self.owner = true;
        self
    }

    /// Starts a replica with a fault.
    pub fn fault(mut self, id: u8, kind: &'static str) -> Setup {
        self.faults.push((id, kind));
        self
    }

    /// Puts a replica's log and state elsewhere.
    pub fn data(mut self, id: u8, directory: PathBuf) -> Setup {
        self.data.push((id, directory));
        self
    }

    /// Keeps logs and state on the disk rather than in memory.
    pub fn on_disk(mut self) -> Setup {
        self.on_disk = true;
        self
    }

    /// Has votes leave before they are written down; a replica that is killed then can't come back.
    pub fn votes_in_memory(mut self) -> Setup {
        self.protocol.durability = Durability::Memory;
        self
    }

    /// Has every request and every message between replicas signed.
    pub fn signed(mut self) -> Setup {
        self.protocol.authentication = Authentication::Signature;
        self
    }

    /// Gives the replicas key holders, and has the keys of links renewed every second.
    pub fn key_holders(mut self) -> Setup {
        self.key_holders = true;
        self
    }

    /// Gives the replicas key holders, of which one has its key in a TPM.
    #[cfg(feature = "tpm")]
    pub fn chip(mut self, chip: Chip) -> Setup {
        self.chip = Some(chip);
        self.key_holders()
    }

    pub fn start(self) -> Group {
        let turn = Group::take_turn();
        let directory = match self.on_disk {
            true => scratch(),
            false => scratch_in_memory(),
        };
        let file = make_files(
            directory.path(),
            self.replicas,
            self.protocol,
            (self.key_holders, self.chip.as_ref()),
            self.owner,
        );
        for (_, elsewhere) in &self.data {
            directory::make(elsewhere, &file).expect("a replica's directory");
        }
        let replica = |id| Replica {
            id,
            fault: self
                .faults
                .iter()
                .find(|(at, _)| *at == id)
                .map(|(_, kind)| *kind),
            data: self
                .data
                .iter()
                .find(|(at, _)| *at == id)
                .map(|(_, place)| place.clone()),
            child: None,
        };
        let replicas = (0..self.replicas).map(replica).collect();
        let watchdog = Watchdog::start(LIMIT);
        let mut group = Group {
            directory,
            holders: match self.key_holders {
                true => (0..self.replicas).map(|_| None).collect(),
                false => Vec::new(),
            },
            chip: self.chip,
            file,
            replicas,
            watchdog,
            _turn: turn,
        };
        for id in 0..group.holders.len() {
            group.start_holder(id as u8);
        }
        group.start_all();
        group.wait_until_it_works();
        group
    }
}

impl Group {
    /// Four sound replicas.
    pub fn start() -> Group {
        Setup::new(4).start()
    }

    /// Waits until few other tests have a group; the turn ends when the file is dropped.
    pub fn take_turn() -> File {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let turns = (0..TURNS).map(|turn| directory.join(format!("turn-{turn}")));
        let turns: Vec<File> = turns
            .map(|path| File::create(path).expect("a file that gives turns"))
            .collect();
        loop {
            for turn in &turns {
                if turn.try_lock().is_ok() {
                    return turn.try_clone().expect("a file");
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn file(&self) -> PathBuf {
        self.directory().join("group.toml")
    }

    pub fn contents(&self) -> &GroupFile {
        &self.file
    }

    /// A replica's `host:port`.
    pub fn address(&self, id: u8) -> &str {
        &self.file.replicas()[usize::from(id)].address
    }

    /// The key file of a client; there are three clients.
    pub fn client_key(&self, client: usize) -> PathBuf {
        self.directory().join(format!("{}.key", CLIENTS[client]))
    }

    pub fn mount(&self) -> Mount {
        self.mount_as(0)
    }

    /// Mounts on behalf of one of the clients.
    pub fn mount_as(&self, client: usize) -> Mount {
        Mount::start(self, &self.client_key(client), &[])
    }

    /// The key file of the volume's owner, where it has one.
    pub fn owner_key(&self) -> PathBuf {
        self.directory().join("owner.key")
    }

    pub(super) fn mounts(&self) -> Mounts {
        self.watchdog.mounts()
    }

    pub fn status(&self) -> Status {
        Status::ask(self.directory())
    }

    pub fn log(&self, id: u8) -> String {
        let text = std::fs::read(self.log_path(id)).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    fn log_path(&self, id: u8) -> PathBuf {
        self.directory().join(format!("replica-{id}.log"))
    }

    /// Starts a replica that does not run.
    pub fn start_replica(&mut self, id: u8) {
        self.start_replica_with(id, &[]);
    }

    /// The same, with more options.
    pub fn start_replica_with(&mut self, id: u8, options: &[&str]) {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_path(id));
        let log = log.expect("a replica's log");
        let group_file = self.file();
        let has_holders = !self.holders.is_empty();
        let replica = &mut self.replicas[usize::from(id)];
        assert!(replica.child.is_none(), "replica {id} runs already");
        let mut command = quorate();
        // Ends with this process, however that ends: the pipe is its sign of life.
        command.args([
            "-v",
            "replica",
            "--with-parent",
            "--id",
            &id.to_string(),
            "--group",
        ]);
        command.arg(group_file).args(options);
        // Some have all signatures checked beside the thread that orders, some none: nobody can tell.
        let verifiers = if id.is_multiple_of(2) { "2" } else { "0" };
        command.args(["--verifiers", verifiers, "--verify-from", "1"]);
        // And some have all sealed beside it.
        let sealers = if id % 4 > 1 { "1" } else { "0" };
        command.args(["--sealers", sealers, "--seal-from", "1"]);
        if has_holders {
            command.args(["--key-refresh", "1s"]);
        }
        if let Some(data) = &replica.data {
            command.arg("--data").arg(data);
        }
        if let Some(fault) = replica.fault {
            command.args(["--fault", fault]);
        }
        command
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log);
        replica.child = Some(command.spawn().expect("a replica's process starts"));
    }

    /// Starts the key holder of a replica.
    pub fn start_holder(&mut self, id: u8) {
        let mut command = quorate();
        command.args(["keyholder", "--with-parent", "--id", &id.to_string()]);
        command.arg("--group").arg(self.file());
        if let Some(chip) = self.chip.as_ref().filter(|chip| chip.replica == id) {
            command.args(["--tpm", &chip.tcti, "--key"]).arg(&chip.file);
        }
        command.stdin(Stdio::piped()).stderr(Stdio::null());
        let child = command.spawn().expect("a key holder's process starts");
        self.holders[usize::from(id)] = Some(child);
    }

    /// Kills the key holder of a replica at once.
    pub fn kill_holder(&mut self, id: u8) {
        if let Some(mut child) = self.holders[usize::from(id)].take() {
            child.kill().expect("a child can be killed");
            child.wait().expect("a child can be waited for");
        }
    }

    pub fn start_all(&mut self) {
        for id in 0..self.replicas.len() {
            self.start_replica(id as u8);
        }
    }

    /// The number of a replica's process.
    pub fn pid(&self, id: u8) -> u32 {
        let child = self.replicas[usize::from(id)].child.as_ref();
        child.expect("a replica that runs").id()
    }

    /// The most memory that a replica's process has had so far, in bytes.
    pub fn peak_memory(&self, id: u8) -> u64 {
        let child = self.replicas[usize::from(id)].child.as_ref();
        let child = child.expect("a replica that runs");
        let path = format!("/proc/{}/status", child.id());
        let status = std::fs::read_to_string(path).expect("a process's status");
        let peak = status.lines().find_map(|line| {
            let kibibytes = line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?;
            kibibytes.parse::<u64>().ok()
        });
        peak.expect("the peak of its memory") << 10
    }

    /// Kills a replica at once, as a power cut would.
    pub fn kill(&mut self, id: u8) {
        let Some(mut child) = self.replicas[usize::from(id)].child.take() else {
            return;
        };
        child.kill().expect("a child can be killed");
        child.wait().expect("a child can be waited for");
    }

    /// Kills all replicas at once.
    pub fn kill_all(&mut self) {
        let mut children: Vec<Child> = self
            .replicas
            .iter_mut()
            .filter_map(|r| r.child.take())
            .collect();
        for child in &mut children {
            child.kill().expect("a child can be killed");
        }
        for child in &mut children {
            child.wait().expect("a child can be waited for");
        }
    }

    /// Waits until a replica has ended by itself.
    pub fn wait_for_end(&mut self, id: u8) -> ExitStatus {
        let child = self.replicas[usize::from(id)]
            .child
            .as_mut()
            .expect("a replica that runs");
        let status = wait(child, Patience::default());
        self.replicas[usize::from(id)].child = None;
        status.unwrap_or_else(|| panic!("replica {id} does not end"))
    }

    /// Waits until a quorum works.
    pub fn wait_until_it_works(&mut self) {
        let mut died = None;
        eventually("the group works", || {
            died = self.first_that_died();
            died.is_some() || self.status().code < 2
        });
        if let Some(id) = died {
            panic!("replica {id} died:\n{}", last_lines(&self.log_path(id), 20));
        }
    }

    /// Whether no replica has ended by itself.
    pub fn all_run(&mut self) -> bool {
        self.first_that_died().is_none()
    }

    fn first_that_died(&mut self) -> Option<u8> {
        let mut running = self
            .replicas
            .iter_mut()
            .filter_map(|r| Some((r.id, r.child.as_mut()?)));
        running.find_map(|(id, child)| match child.try_wait() {
            Ok(None) => None,
            _ => Some(id),
        })
    }

    /// Waits until these replicas have executed the same and hold the same state.
    pub fn wait_until_they_agree(&mut self, ids: &[u8]) {
        Status::wait_until_they_agree(self.directory(), ids);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let status = finish(
                quorate().arg("status").arg(self.file()),
                Patience::default(),
            );
            eprintln!("  status said:\n{}{}", status.stdout, status.stderr);
            for replica in &self.replicas {
                let last = last_lines(&self.log_path(replica.id), 12);
                eprintln!("  replica {} said last:\n{last}", replica.id);
            }
        }
        let replicas = self.replicas.iter_mut().filter_map(|r| r.child.as_mut());
        for child in replicas.chain(self.holders.iter_mut().flatten()) {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Keys, and a group file for a demonstration: only such a group takes faults.
fn make_files(
    directory: &Path,
    replicas: u8,
    protocol: Protocol,
    (key_holders, chip): (bool, Option<&Chip>),
    owner: bool,
) -> GroupFile {
    let make_key = |path: &Path| {
        let key = keys::generate().expect("a key");
        keys::save(path, &key).expect("a key file");
        key.public()
    };
    let ports = free_ports(usize::from(replicas));
    let mut members = Vec::new();
    for (id, port) in ports.iter().enumerate() {
        let own = directory.join(format!("replica-{id}"));
        std::fs::create_dir(&own).expect("a replica's directory");
        members.push((format!("127.0.0.1:{port}"), make_key(&own.join("key"))));
    }
    let clients = CLIENTS.map(|name| {
        (
            name.to_string(),
            make_key(&directory.join(format!("{name}.key"))),
        )
    });
    let purpose = Purpose::Demonstration;
    let group = GroupFile::new("test", members, clients.to_vec(), Files::default(), purpose);
    let mut group = group.expect("a group").with_protocol(protocol);
    if key_holders {
        let identity = |id| {
            let own = directory.join(format!("holder-{id}"));
            std::fs::create_dir(&own).expect("a key holder's directory");
            if let Some(chip) = chip.filter(|chip| chip.replica == id) {
                return chip.identity;
            }
            let key = make_key(&own.join("key"));
            CounterFile::create(&own.join("counter"), &key).expect("a counter");
            key.into()
        };
        let identities: Vec<IdentityKey> = (0..replicas).map(identity).collect();
        group = group.with_identities(&identities).expect("a group");
    }
    if owner {
        let owner = make_key(&directory.join("owner.key"));
        group = group.with_owner(owner).expect("a group");
    }
    for id in 0..replicas {
        let own = directory.join(format!("replica-{id}"));
        directory::make(&own, &group).expect("a replica's directory");
    }
    group
        .save(&directory.join("group.toml"))
        .expect("a group file");
    group
}

/// Ports on which nobody listens, below those that the system gives to outgoing connections: a replica's port
/// must not become the near end of somebody's connection while it is down.
pub fn free_ports(count: usize) -> Vec<u16> {
    /// Groups that are given one port take the next ones as well: `up --groups 4` so many.
    const BLOCK: u16 = 24;
    const BLOCKS: u16 = 18_000 / BLOCK;
    // Nobody listens there yet when the next test asks.
    static TAKEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut random = Random::new(u64::from(std::process::id()) << 16 | taken.len() as u64);
    let mut ports = Vec::new();
    while ports.len() < count {
        if taken.len() > usize::from(BLOCKS) / 2 {
            taken.clear();
        }
        let block = random.below(u64::from(BLOCKS)) as u16;
        let first = 12_000 + block * BLOCK;
        let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if (first..first + BLOCK).all(is_free) && taken.insert(block) {
            // Four for each where several are asked for, all for one.
            let step = if count == 1 { BLOCK } else { 4 };
            ports.extend((first..first + BLOCK).step_by(usize::from(step)));
        }
    }
    ports.truncate(count);
    ports
}
