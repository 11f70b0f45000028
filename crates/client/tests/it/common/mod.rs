//! A group of one replica in this process, and real mounts of its volume.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use quorate_client::fuse::{MountOptions, Mounted, mount};
use quorate_client::{Session, Volume};
use quorate_execution::Executor;
use quorate_files::{Action, Admission, FileService, Genesis, Op};
use quorate_net::group::{Files, Purpose};
use quorate_net::{ConnectionId, Event, Frame, Identity, Limits, ReplicaLinks};
use quorate_state::{MemorySnapshot, State};
use quorate_wire::message::{
    ClientMessage, Control, ReadReply, ReplicaMessage, Reply, ReplyBody, Report,
};
use quorate_wire::{
    Authenticator, ClientId, Decode, Digest, KeyPair, MacKey, ReplicaId, Seq, Time, View,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// The group. Its clients' messages are executed in the order in which they come.
pub struct Group {
    contents: Arc<quorate_net::Group>,
    /// By how much the group's time is ahead of the clock.
    pub ahead_ms: Arc<AtomicU64>,
    /// While this is set, nothing is answered.
    pub paused: Arc<AtomicBool>,
    /// While this is set, a write is executed after the next change of attributes.
    pub late_writes: Arc<AtomicBool>,
    /// While this is set, answers are lost on their way.
    pub answers_lost: Arc<AtomicBool>,
    /// How many sessions were closed by their clients.
    pub closed: Arc<AtomicU64>,
    /// How many operations were executed.
    pub executed: Arc<AtomicU64>,
    /// The same by kind.
    pub kinds: Kinds,
    /// How often a write and attributes came at once.
    pub together: Arc<AtomicU64>,
    pub runtime: Arc<Runtime>,
}

/// Counts operations by their names, with attributes asked for beside them or without; and the bytes that reads ask for.
#[derive(Clone, Debug, Default)]
pub struct Kinds(Arc<Mutex<BTreeMap<String, u64>>>);

impl Kinds {
    fn add(&self, op: &[u8]) {
        let Ok(op) = Op::from_slice(op) else { return };
        let action = match &op.action {
            Action::WithAttrs(with) => &with.action,
            action => action,
        };
        let name = format!("{action:?}");
        let name = name.split(['(', ' ']).next().unwrap().to_string();
        let mut kinds = self.0.lock().unwrap();
        *kinds.entry(name).or_default() += 1;
        if let Action::Read(read) = &op.action {
            *kinds.entry("bytes to read".into()).or_default() += u64::from(read.len);
        }
    }

    /// What was counted since the last time.
    pub fn take(&self) -> BTreeMap<String, u64> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// A volume of this size.
pub const CAPACITY: u64 = 256 << 20;

fn key(number: u8) -> KeyPair {
    KeyPair::from_seed(&[number; 32])
}

impl Group {
    pub fn start() -> Group {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let replicas = vec![(address, key(100).public())];
        let clients = (0..10).map(|n| (format!("client{n}"), key(n).public()));
        let contents = quorate_net::Group::new(
            "test",
            replicas,
            clients.collect(),
            Files::default(),
            Purpose::Demonstration,
        );
        let contents = Arc::new(contents.unwrap());
        let identity = Identity::new(&key(100));
        let limits = Limits::default();
        let links =
            ReplicaLinks::start(contents.clone(), ReplicaId(0), &identity, listener, limits);
        let group = Group {
            contents,
            ahead_ms: Arc::default(),
            paused: Arc::default(),
            late_writes: Arc::default(),
            answers_lost: Arc::default(),
            closed: Arc::default(),
            executed: Arc::default(),
            kinds: Kinds::default(),
            together: Arc::default(),
            runtime: Arc::new(runtime),
        };
        let replica = Replica {
            group: group.contents.id(),
            links: links.unwrap(),
            clients: BTreeMap::new(),
            ahead_ms: group.ahead_ms.clone(),
            paused: group.paused.clone(),
            late_writes: group.late_writes.clone(),
            answers_lost: group.answers_lost.clone(),
            held: None,
            closed: group.closed.clone(),
            executed: group.executed.clone(),
            kinds: group.kinds.clone(),
            together: group.together.clone(),
        };
        std::thread::spawn(move || replica.run());
        group
    }

    /// A session of a client of this group.
    pub fn session(&self, client: u8) -> Session {
        Session::connect(&self.contents, &Identity::new(&key(client))).unwrap()
    }

    /// Mounts the volume at a new directory.
    pub fn mount(&self, client: u8) -> Mount {
        self.mount_with(client, MountOptions::default())
    }

    /// The same, with options.
    pub fn mount_with(&self, client: u8, options: MountOptions) -> Mount {
        let dir = TempDir::new().unwrap();
        let volume = Volume::new(self.session(client));
        let options = MountOptions {
            name: "test".into(),
            ..options
        };
        let mounted = mount(volume.clone(), dir.path(), &options).unwrap();
        Mount {
            mounted: Some(mounted),
            volume,
            runtime: self.runtime.clone(),
            dir,
        }
    }
}

/// A mount that goes at its end.
pub struct Mount {
    pub mounted: Option<Mounted>,
    pub volume: Volume,
    runtime: Arc<Runtime>,
    dir: TempDir,
}

impl Mount {
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Unmounts, and wants it to succeed.
    pub fn unmount(&mut self) {
        let mounted = self.mounted.take().unwrap();
        self.runtime.block_on(mounted.unmount()).unwrap();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(mounted) = self.mounted.take() {
            let _ = self.runtime.block_on(mounted.unmount());
        }
    }
}

struct Replica {
    group: Digest,
    links: ReplicaLinks,
    clients: BTreeMap<ConnectionId, (ClientId, MacKey)>,
    ahead_ms: Arc<AtomicU64>,
    paused: Arc<AtomicBool>,
    late_writes: Arc<AtomicBool>,
    answers_lost: Arc<AtomicBool>,
    held: Option<(ConnectionId, ClientMessage)>,
    closed: Arc<AtomicU64>,
    executed: Arc<AtomicU64>,
    kinds: Kinds,
    together: Arc<AtomicU64>,
}

impl Replica {
    /// Runs until the group is gone.
    fn run(mut self) {
        let mut executor = Executor::new(FileService::new(
            Genesis {
                capacity_bytes: CAPACITY,
                capacity_inodes: 1 << 20,
                root_uid: 0,
                root_gid: 0,
                root_mode: 0o755,
            },
            Admission::members_only(),
        ));
        let mut state = State::new(Arc::new(MemorySnapshot::default()));
        executor.genesis(&mut state).unwrap();
        while Arc::strong_count(&self.paused) > 1 {
            self.links.poll(Some(Duration::from_millis(100))).unwrap();
            let (mut writes, mut sets_any) = (false, false);
            while let Some(event) = self.links.next_event() {
                match event {
                    Event::ClientUp {
                        connection,
                        client,
                        mac_key,
                    } => {
                        self.clients.insert(connection, (client, mac_key));
                    }
                    Event::Client(from, message) => {
                        while self.paused.load(Ordering::Acquire)
                            && Arc::strong_count(&self.paused) > 1
                        {
                            std::thread::sleep(Duration::from_millis(5));
                        }
                        let late = self.late_writes.load(Ordering::Acquire);
                        if late
                            && self.held.is_none()
                            && has(&message, |action| matches!(action, Action::Write(_)))
                        {
                            self.held = Some((from, message));
                            continue;
                        }
                        let sets = has(&message, |action| matches!(action, Action::SetAttr(_)));
                        writes |= has(&message, |action| matches!(action, Action::Write(_)));
                        sets_any |= sets;
                        let held = self.held.take_if(|_| sets);
                        for (from, message) in [(from, message)].into_iter().chain(held) {
                            let answer = self.answer(&mut executor, &mut state, from, message);
                            let are_lost = self.answers_lost.load(Ordering::Acquire);
                            if let Some(answer) = answer.filter(|_| !are_lost) {
                                self.links.reply(from, &Frame::encode(&answer));
                            }
                        }
                    }
                    _ => {}
                }
            }
            self.links.flush();
            let both = u64::from(writes && sets_any);
            self.together.fetch_add(both, Ordering::AcqRel);
        }
    }

    fn answer(
        &mut self,
        executor: &mut Executor<FileService>,
        state: &mut State,
        from: ConnectionId,
        message: ClientMessage,
    ) -> Option<ReplicaMessage> {
        match message {
            ClientMessage::Attach(_) => None,
            ClientMessage::ReportPlease(nonce) => {
                Some(ReplicaMessage::Report(Box::new(report(nonce))))
            }
            ClientMessage::Read(read) => {
                self.kinds.add(&read.op);
                self.executed.fetch_add(1, Ordering::AcqRel);
                let (me, _) = self.clients.get(&from)?;
                let (session, number) = (read.session, read.number);
                let body = executor.read(state, *me, session, &read.op, true);
                let reply = Reply {
                    session,
                    number,
                    view: View(0),
                    tentative: false,
                    body: body.unwrap().unwrap().0,
                };
                Some(ReplicaMessage::Read(ReadReply { reply, at: Seq(0) }))
            }
            ClientMessage::Watch(_) => None,
            ClientMessage::Request(request) | ClientMessage::Repeat(request) => {
                let digest = request.request.digest();
                let (_, key) = self.clients.get(&from)?;
                match &request.auth {
                    Authenticator::Signed(signature) => {
                        let client = request.request.client();
                        signature.verify(&client, &self.group, &digest).ok()?;
                    }
                    macs => macs.check_mac(ReplicaId(0), key, &digest).ok()?,
                }
                let request = &request.request;
                if request.session().0 == 0
                    && request.op()[..] != quorate_wire::Encode::to_bytes(&Control::Open(()))
                {
                    self.closed.fetch_add(1, Ordering::AcqRel);
                }
                self.executed.fetch_add(1, Ordering::AcqRel);
                self.kinds.add(request.op());
                let done = executor.execute(state, self.now(), [request]).unwrap();
                Some(ReplicaMessage::Reply(Reply {
                    session: request.session(),
                    number: request.number(),
                    view: View(0),
                    tentative: false,
                    body: ReplyBody::Full(done[0].outcome.clone()),
                }))
            }
        }
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "a replica proposes its clock's time"
    )]
    fn now(&self) -> Time {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let ahead = self.ahead_ms.load(Ordering::Acquire) * 1_000_000;
        Time(now.unwrap().as_nanos() as u64 + ahead)
    }
}

fn has(message: &ClientMessage, is: impl Fn(&Action) -> bool) -> bool {
    match message {
        ClientMessage::Request(request) => {
            Op::from_slice(request.request.op()).is_ok_and(|op| is(&op.action))
        }
        _ => false,
    }
}

fn report(nonce: u64) -> Report {
    Report {
        nonce,
        replica: ReplicaId(0),
        view: View(0),
        active: true,
        committed: Seq(1),
        executed: Seq(1),
        stable: Seq(0),
        root: Digest([0; 32]),
        fetching: false,
        links: Vec::new(),
        clients: 1,
        clients_put_aside: 0,
        view_changes: 0,
        uptime_ms: 1,
        fault: bytes::Bytes::new(),
        recovering: None,
        check: None,
        steps: Vec::new(),
        keys: None,
        ordered: None,
        went_back: false,
        recoveries: Vec::new(),
        recovery_intended: false,
    }
}

/// Whether this machine can mount; says why not.
pub fn can_mount() -> bool {
    if std::env::var_os("QUORATE_SKIP_FUSE").is_some() {
        println!("skipped: QUORATE_SKIP_FUSE is set");
        return false;
    }
    let can = Path::new("/dev/fuse").exists();
    if !can {
        left_out("/dev/fuse is absent");
    }
    can
}

/// A test can't have what it needs: it is skipped, with a word, and fails where continuous integration runs.
pub fn left_out(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "{why}");
    println!("skipped: {why}");
}

/// Bytes that look random, the same for the same seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out.extend_from_slice(&x.to_le_bytes());
    }
    out.truncate(len);
    out
}
