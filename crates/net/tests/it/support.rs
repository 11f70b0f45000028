//! A group in one process, for tests of links: each member has a thread that drives its links.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quorate_credential::Chain;
use quorate_net::group::{Files, Protocol, Purpose};
use quorate_net::{
    ClientEvent, ClientLinks, ConnectionId, Event, Frame, Group, Identity, Limits, ReplicaLinks,
    Sealing, Waker, bind, tls,
};
use quorate_wire::message::PeerMessage;
use quorate_wire::{Encode, EpochCertificate, KeyPair, PublicKey, ReplicaId};
use rustls::{ClientConnection, StreamOwned};

/// Generous: tests share their processors.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn replica_key(id: u8) -> KeyPair {
    KeyPair::from_seed(&[id + 1; 32])
}

/// The key that a replica's key holder has.
pub fn identity_key(id: u8) -> KeyPair {
    KeyPair::from_seed(&[id + 50; 32])
}

/// A replica's key in the epoch with this number.
pub fn epoch_key(id: u8, counter: u64) -> KeyPair {
    let mut seed = [id + 1; 32];
    seed[..8].copy_from_slice(&counter.to_le_bytes());
    KeyPair::from_seed(&seed)
}

/// The certificate of that key.
pub fn certificate(group: &Group, id: u8, counter: u64) -> EpochCertificate {
    let (identity, epoch) = (identity_key(id), epoch_key(id, counter).public());
    EpochCertificate::sign(&identity, group.id(), ReplicaId(id), counter, epoch)
}

pub fn client_key() -> KeyPair {
    KeyPair::from_seed(&[100; 32])
}

pub fn other_client_key() -> KeyPair {
    KeyPair::from_seed(&[101; 32])
}

pub fn stranger_key() -> KeyPair {
    KeyPair::from_seed(&[200; 32])
}

/// What a member of either kind has.
pub trait Member: Send + 'static {
    type Event: Send + 'static;
    fn poll(&mut self, timeout: Duration);
    fn next(&mut self) -> Option<Self::Event>;
    /// What came last was of no use.
    fn refused(&mut self) {}
    fn flush(&mut self);
    fn waker(&self) -> Waker;
}

impl Member for ReplicaLinks {
    type Event = Event;
    fn poll(&mut self, timeout: Duration) {
        ReplicaLinks::poll(self, Some(timeout)).unwrap();
    }
    fn next(&mut self) -> Option<Event> {
        self.next_event()
    }
    fn refused(&mut self) {
        let origin = self.origin();
        ReplicaLinks::refused(self, origin);
    }
    fn flush(&mut self) {
        ReplicaLinks::flush(self);
    }
    fn waker(&self) -> Waker {
        ReplicaLinks::waker(self)
    }
}

impl Member for ClientLinks {
    type Event = ClientEvent;
    fn poll(&mut self, timeout: Duration) {
        ClientLinks::poll(self, Some(timeout)).unwrap();
    }
    fn next(&mut self) -> Option<ClientEvent> {
        self.next_event()
    }
    fn flush(&mut self) {
        ClientLinks::flush(self);
    }
    fn waker(&self) -> Waker {
        ClientLinks::waker(self)
    }
}

type Work<M> = Box<dyn FnOnce(&mut M) + Send>;

/// A member's thread.
pub struct Driven<M: Member> {
    work: Sender<Work<M>>,
    pub events: Receiver<M::Event>,
    waker: Waker,
    /// While this is set, the thread takes nothing from links.
    pub held: Arc<AtomicBool>,
    /// While this is set, nothing that comes is of use.
    pub refuses: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl<M: Member> Driven<M> {
    pub fn new(mut links: M) -> Driven<M> {
        let (work, jobs) = mpsc::channel::<Work<M>>();
        let (sender, events) = mpsc::channel();
        let (held, ended) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let refuses = Arc::<AtomicBool>::default();
        let (waker, hold, end) = (links.waker(), held.clone(), ended.clone());
        let refuse = refuses.clone();
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Acquire) {
                if hold.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_millis(1));
                } else {
                    links.poll(Duration::from_millis(200));
                    while let Some(event) = links.next() {
                        let _ = sender.send(event);
                        if refuse.load(Ordering::Acquire) {
                            links.refused();
                        }
                    }
                }
                while let Ok(job) = jobs.try_recv() {
                    job(&mut links);
                }
                links.flush();
            }
        });
        Driven {
            work,
            events,
            waker,
            held,
            refuses,
            ended,
            thread: Some(thread),
        }
    }

    /// Does something with the links, on their thread.
    pub fn with<R: Send + 'static>(&self, job: impl FnOnce(&mut M) -> R + Send + 'static) -> R {
        let (sender, result) = mpsc::channel();
        let job = move |links: &mut M| drop(sender.send(job(links)));
        self.work.send(Box::new(job)).unwrap();
        self.waker.wake();
        result.recv_timeout(PATIENCE).unwrap()
    }

    /// The next event of the wanted kind; others are passed over.
    pub fn next(&self, wanted: impl Fn(&M::Event) -> bool) -> M::Event {
        loop {
            let event = self.events.recv_timeout(PATIENCE);
            let event = event.expect("the event comes in time");
            if wanted(&event) {
                return event;
            }
        }
    }
}

impl<M: Member> Drop for Driven<M> {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Whether what replicas send is sealed by the threads that own the links, or all of it by others: nobody can tell.
pub const SEALINGS: [Sealing; 2] = [
    Sealing {
        threads: 0,
        from: 1,
    },
    Sealing {
        threads: 2,
        from: 1,
    },
];

/// What replicas are known by.
enum Keys {
    /// The keys in the group file.
    Own,
    /// Those that their key holders certify, and how often these change at least.
    OfEpochs(Option<Duration>),
}

pub struct Cluster {
    pub group: Arc<Group>,
    limits: Limits,
    sealing: Sealing,
    nodes: Vec<Option<Driven<ReplicaLinks>>>,
    /// The number of each replica's epoch, where replicas have key holders.
    epochs: Mutex<Vec<u64>>,
}

impl Cluster {
    pub fn start(n: u8, limits: Limits) -> Cluster {
        Cluster::start_with(n, limits, Keys::Own, None)
    }

    /// A group whose replicas have what they send sealed in this way.
    pub fn start_sealing(n: u8, limits: Limits, sealing: Sealing) -> Cluster {
        Cluster::start_as(n, limits, Keys::Own, None, sealing)
    }

    /// A group whose replicas have key holders.
    pub fn start_with_epochs(n: u8) -> Cluster {
        Cluster::start_with(n, Limits::default(), Keys::OfEpochs(None), None)
    }

    /// The same, whose file says how often they take other keys at least.
    pub fn start_renewing(n: u8, every: Duration) -> Cluster {
        Cluster::start_with(n, Limits::default(), Keys::OfEpochs(Some(every)), None)
    }

    /// A group with an owner, whose replicas may have key holders.
    pub fn start_owned(n: u8, key_holders: bool, owner: &KeyPair) -> Cluster {
        let keys = match key_holders {
            true => Keys::OfEpochs(None),
            false => Keys::Own,
        };
        Cluster::start_with(n, Limits::default(), keys, Some(owner.public()))
    }

    /// The same, without key holders.
    pub fn start_owned_within(n: u8, limits: Limits, owner: &KeyPair) -> Cluster {
        Cluster::start_with(n, limits, Keys::Own, Some(owner.public()))
    }

    fn start_with(n: u8, limits: Limits, keys: Keys, owner: Option<PublicKey>) -> Cluster {
        Cluster::start_as(n, limits, keys, owner, SEALINGS[0])
    }

    fn start_as(
        n: u8,
        limits: Limits,
        keys: Keys,
        owner: Option<PublicKey>,
        sealing: Sealing,
    ) -> Cluster {
        let listeners: Vec<_> = (0..n)
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let replicas = listeners.iter().zip(0..n).map(|(listener, id)| {
            let address = listener.local_addr().unwrap().to_string();
            (address, replica_key(id).public())
        });
        let group = Group::new(
            "test",
            replicas.collect(),
            vec![
                ("client".to_string(), client_key().public()),
                ("other".to_string(), other_client_key().public()),
            ],
            Files::default(),
            Purpose::Demonstration,
        );
        let mut group = group.unwrap();
        if let Keys::OfEpochs(key_refresh) = keys {
            let identities: Vec<_> = (0..n).map(|id| identity_key(id).public()).collect();
            let protocol = Protocol {
                key_refresh,
                ..Protocol::default()
            };
            // Shorter than a file may say.
            group = group.with_identities(&identities).unwrap();
            group = group.with_protocol(protocol);
        }
        if let Some(owner) = owner {
            group = group.with_owner(owner).unwrap();
        }
        let mut cluster = Cluster {
            group: Arc::new(group),
            limits,
            sealing,
            nodes: Vec::new(),
            epochs: Mutex::new(vec![0; usize::from(n)]),
        };
        for (id, listener) in (0..n).zip(listeners) {
            let node = cluster.make(id, listener);
            cluster.nodes.push(Some(node));
        }
        cluster
    }

    fn make(&self, id: u8, listener: TcpListener) -> Driven<ReplicaLinks> {
        let identity = self.new_identity(id);
        let group = self.group.clone();
        let links = ReplicaLinks::start(group, ReplicaId(id), &identity, listener, self.limits);
        let mut links = links.unwrap();
        let died = |panicked| panic!("{panicked}");
        links.spawn_sealers(self.sealing, died).unwrap();
        Driven::new(links)
    }

    /// A replica's key: the one in the group file, or that of its next epoch.
    fn new_identity(&self, id: u8) -> Identity {
        if self.group.identities().is_none() {
            return Identity::new(&replica_key(id));
        }
        let mut epochs = self.epochs.lock().unwrap();
        let counter = &mut epochs[usize::from(id)];
        *counter += 1;
        let certificate = certificate(&self.group, id, *counter);
        Identity::of_epoch(&epoch_key(id, *counter), certificate)
    }

    /// The number of a replica's epoch.
    pub fn epoch(&self, id: u8) -> u64 {
        self.epochs.lock().unwrap()[usize::from(id)]
    }

    /// Gives a replica its next epoch's key.
    pub fn renew(&self, id: u8) {
        let identity = self.new_identity(id);
        self.node(id).with(move |links| links.renew_keys(&identity));
    }

    pub fn stop(&mut self, id: u8) {
        self.nodes[usize::from(id)] = None;
    }

    pub fn restart(&mut self, id: u8) {
        self.impersonate(id, id);
    }

    /// Starts replica `id` at the address of another.
    pub fn impersonate(&mut self, id: u8, at: u8) {
        let address = &self.group.replicas()[usize::from(at)].address;
        self.nodes[usize::from(id)] = Some(self.make(id, bind(address).unwrap()));
    }

    pub fn node(&self, id: u8) -> &Driven<ReplicaLinks> {
        self.nodes[usize::from(id)].as_ref().unwrap()
    }

    pub fn send(&self, from: u8, to: u8, frame: &Frame) -> bool {
        let frame = frame.clone();
        self.node(from)
            .with(move |links| links.send(ReplicaId(to), &frame))
    }

    pub fn broadcast(&self, from: u8, frame: &Frame) {
        let frame = frame.clone();
        self.node(from).with(move |links| links.broadcast(&frame));
    }

    pub fn reply(&self, from: u8, to: ConnectionId, frame: &Frame) -> bool {
        let frame = frame.clone();
        self.node(from).with(move |links| links.reply(to, &frame))
    }

    pub fn next_peer_message(&self, id: u8) -> (ReplicaId, PeerMessage) {
        match self.node(id).next(|e| matches!(e, Event::Peer(..))) {
            Event::Peer(from, message) => (from, message),
            _ => unreachable!(),
        }
    }

    pub fn next_client(&self, id: u8) -> ConnectionId {
        match self.node(id).next(|e| matches!(e, Event::ClientUp { .. })) {
            Event::ClientUp { connection, .. } => connection,
            _ => unreachable!(),
        }
    }

    pub fn client(&self, key: &KeyPair) -> Driven<ClientLinks> {
        Cluster::client_of(&self.group, key)
    }

    pub fn client_of(group: &Group, key: &KeyPair) -> Driven<ClientLinks> {
        Driven::new(ClientLinks::connect(group, &Identity::new(key)).unwrap())
    }

    /// Somebody who has the present key of a replica, and listens with it at an address of his own; and a client that is led there when it calls that
    /// replica.
    pub fn client_of_a_thief(
        &self,
        key: &KeyPair,
        id: u8,
    ) -> (Driven<ReplicaLinks>, Driven<ClientLinks>) {
        let id = ReplicaId(id);
        let led = |group: Group, id, address: &str| group.with_route(id, address).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap().to_string();
        // The thief calls nobody.
        let others = (0..id.0).map(ReplicaId);
        let nowhere = others.fold((*self.group).clone(), |g, id| led(g, id, "127.0.0.1:1"));
        let counter = self.epoch(id.0);
        let certificate = certificate(&self.group, id.0, counter);
        let identity = Identity::of_epoch(&epoch_key(id.0, counter), certificate);
        let thief = ReplicaLinks::start(nowhere.into(), id, &identity, listener, self.limits);
        let group = led((*self.group).clone(), id, &there);
        let client = ClientLinks::connect(&group, &Identity::new(key));
        (Driven::new(thief.unwrap()), Driven::new(client.unwrap()))
    }

    /// Somebody who comes by a credential.
    pub fn guest(&self, key: &KeyPair, credential: Chain) -> Driven<ClientLinks> {
        let identity = Identity::of_guest(key, credential);
        Driven::new(ClientLinks::connect(&self.group, &identity).unwrap())
    }

    pub fn wait_until_linked(&self) {
        eventually(|| {
            let nodes = self.nodes.iter().flatten();
            let reports = nodes.map(|n| n.with(|links| links.reports()));
            reports.flatten().all(|l| l.up)
        });
    }
}

pub fn eventually(condition: impl Fn() -> bool) {
    let until = now() + PATIENCE;
    while !condition() {
        assert!(now() < until, "it comes true in time");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[allow(clippy::disallowed_methods, reason = "a test's patience")]
fn now() -> Instant {
    Instant::now()
}

/// A connection in which the test itself says what is sent.
pub struct Raw(StreamOwned<ClientConnection, TcpStream>);

impl Raw {
    /// A welcome connection to replica 0.
    pub fn connect(group: &Group, key: &KeyPair) -> Raw {
        Raw::try_connect(group, key).unwrap()
    }

    /// The same, where it may not be welcome.
    pub fn try_connect(group: &Group, key: &KeyPair) -> io::Result<Raw> {
        let replica = &group.replicas()[0];
        let tcp = TcpStream::connect(&replica.address)?;
        tcp.set_read_timeout(Some(PATIENCE))?;
        let config = Identity::new(key).client_config(replica.key);
        let tls = ClientConnection::new(config, tls::server_name()).unwrap();
        let mut raw = Raw(StreamOwned::new(tls, tcp));
        let mut welcome = [1; 4];
        raw.0.read_exact(&mut welcome)?;
        assert_eq!(welcome, [0; 4]);
        Ok(raw)
    }

    /// A connection to replica 0, which has this key, whose first frame is `shown`; with what comes first from there.
    pub fn introduce(
        group: &Group,
        key: &KeyPair,
        called: PublicKey,
        shown: Option<&EpochCertificate>,
    ) -> io::Result<(Raw, Vec<u8>)> {
        let tcp = TcpStream::connect(&group.replicas()[0].address)?;
        tcp.set_read_timeout(Some(PATIENCE))?;
        let config = Identity::new(key).client_config(called);
        let tls = ClientConnection::new(config, tls::server_name()).unwrap();
        let mut raw = Raw(StreamOwned::new(tls, tcp));
        if let Some(shown) = shown {
            let frame = shown.to_bytes();
            raw.0.write_all(&(frame.len() as u32).to_le_bytes())?;
            raw.0.write_all(&frame)?;
        }
        raw.0.flush()?;
        let mut first = vec![0; 4 + EpochCertificate::BYTES];
        raw.0.read_exact(&mut first)?;
        Ok((raw, first))
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
        self.0.flush().unwrap();
    }

    /// Takes so many bytes of what it is sent.
    pub fn take(&mut self, bytes: usize) -> Vec<u8> {
        let mut taken = vec![0; bytes];
        self.0.read_exact(&mut taken).unwrap();
        taken
    }
}
