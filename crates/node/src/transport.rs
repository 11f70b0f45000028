//! A replica's links: to the other replicas, and to clients.
//!
//! Of two replicas the one with the higher id dials the other. A newer connection of a replica takes the place of
//! the older, whose end may not have been noticed yet. Events of one replica or client come in order: up,
//! messages, down.

mod clients;
mod peers;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quorate_wire::message::{
    ClientMessage, LinkReport, MAX_FRAME_BYTES, MAX_OP_BYTES, PeerMessage,
};
use quorate_wire::{ClientId, MacKey, ReplicaId};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::event::{Deliver, LogLimit};
use crate::group::{Group, Member};
use crate::link::{self, Stream, Task};
use crate::outbox::{Frame, OutboxLimits};
use crate::tls::Identity;
use clients::Clients;
use peers::Peers;

/// What bounds a replica's links. The defaults are right for all but tests.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes that may wait to be sent to another replica.
    pub peer_queue_bytes: usize,
    /// Bytes that may wait to be sent on a client's connection.
    pub client_queue_bytes: usize,
    /// Messages that may wait on any link.
    pub queue_frames: usize,
    /// Bytes of another replica's messages that may wait for the core.
    pub peer_intake_bytes: usize,
    /// Bytes of a client connection's messages that may wait for the core.
    pub client_intake_bytes: usize,
    /// Connections whose other end is not known yet.
    pub handshakes: usize,
    /// Connections of all clients.
    pub clients: usize,
    /// Connections of one client; with one more the oldest is closed.
    pub connections_per_client: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            peer_queue_bytes: 64 << 20,
            client_queue_bytes: 16 << 20,
            queue_frames: 64 << 10,
            peer_intake_bytes: 2 * MAX_FRAME_BYTES,
            client_intake_bytes: 4 * MAX_CLIENT_FRAME_BYTES,
            handshakes: 256,
            clients: 1024,
            connections_per_client: 8,
        }
    }
}

/// The longest frame of a client: an operation, its MACs and its head.
const MAX_CLIENT_FRAME_BYTES: usize = MAX_OP_BYTES + (4 << 10);

/// One connection of a client. Numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// What happens on a replica's links.
#[derive(Debug)]
pub enum Event {
    /// A link to another replica stands.
    PeerUp(ReplicaId),
    /// A link to another replica has ended.
    PeerDown(ReplicaId),
    /// Another replica says something; TLS vouches for it.
    Peer(ReplicaId, PeerMessage),
    /// A client has connected.
    ClientUp {
        /// The connection.
        connection: ConnectionId,
        /// Whose.
        client: ClientId,
        /// The key for the MACs on requests that the client makes from now on.
        mac_key: MacKey,
    },
    /// A client says something; TLS vouches for it.
    Client(ConnectionId, ClientMessage),
    /// A client's connection has ended.
    ClientDown(ConnectionId),
}

/// Why a replica can't take connections. The operator's fault, or the environment's.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// Another program has the port.
    #[error(
        "the address {0} is in use: stop the program that listens there (another run of this \
         replica?), or give this replica another address in a new group file"
    )]
    InUse(String),
    /// The address belongs to another machine.
    #[error(
        "the address {0} is not one of this machine: check the replica's address in the group file, \
         or say on which address to listen"
    )]
    NotHere(String),
    /// Low ports are not for everyone.
    #[error("this user may not listen on {0}: choose a port from 1024 up")]
    NotAllowed(String),
    /// Anything else.
    #[error("can't listen on {address}: {source}")]
    Io {
        /// The address.
        address: String,
        /// What the operating system said.
        source: io::Error,
    },
}

/// Takes the address on which a replica listens.
///
/// # Errors
/// Any [`TransportError`].
pub async fn bind(address: &str) -> Result<TcpListener, TransportError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => TransportError::InUse(address.into()),
            io::ErrorKind::AddrNotAvailable => TransportError::NotHere(address.into()),
            io::ErrorKind::PermissionDenied => TransportError::NotAllowed(address.into()),
            _ => TransportError::Io {
                address: address.into(),
                source,
            },
        })
}

/// A replica's links. They end when this is dropped.
#[derive(Debug)]
pub struct Transport {
    links: Links,
    _tasks: Vec<Task>,
}

/// The sending side of a replica's links, to be given to whoever sends. No call of it waits.
#[derive(Clone, Debug)]
pub struct Links(Arc<Shared>);

struct Shared {
    me: ReplicaId,
    group: Arc<Group>,
    limits: Limits,
    deliver: Deliver<Event>,
    peers: Peers,
    clients: Clients,
    strangers: LogLimit,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "links of {:?}", self.me)
    }
}

impl Transport {
    /// Starts to accept and to dial, as the group's replica `me` whose key `identity` holds. To be called within a
    /// tokio runtime.
    pub fn start(
        group: Arc<Group>,
        me: ReplicaId,
        identity: &Identity,
        listener: TcpListener,
        limits: Limits,
        deliver: Deliver<Event>,
    ) -> Transport {
        assert_eq!(
            group.replica_of_key(&identity.public()),
            Some(me),
            "the key is not that of {me:?}"
        );
        assert!(limits.peer_intake_bytes >= MAX_FRAME_BYTES);
        assert!(limits.client_intake_bytes >= MAX_CLIENT_FRAME_BYTES);
        let shared = Arc::new(Shared {
            me,
            peers: Peers::new(group.quorum(), &limits),
            clients: Clients::new(&limits),
            group: group.clone(),
            limits,
            deliver,
            strangers: LogLimit::default(),
        });
        let config = identity.server_config(&group);
        let mut tasks = vec![Task::spawn(accept_all(shared.clone(), listener, config))];
        for peer in group.quorum().replicas().filter(|&peer| peer < me) {
            let entry = &group.replicas()[usize::from(peer.0)];
            let (address, config) = (entry.address.clone(), identity.client_config(entry.key));
            let shared = shared.clone();
            tasks.push(Task::spawn(async move {
                let serve = |stream| peers::serve(&shared, peer, stream);
                crate::dial::for_ever(&address, config, serve).await;
            }));
        }
        Transport {
            links: Links(shared),
            _tasks: tasks,
        }
    }

    /// The sending side.
    pub fn links(&self) -> Links {
        self.links.clone()
    }
}

impl Links {
    /// Queues a frame for another replica; false if it was dropped, because the link is down or full.
    pub fn send(&self, to: ReplicaId, frame: &Frame) -> bool {
        self.0.peers.send(to, frame)
    }

    /// Queues a frame for all other replicas.
    pub fn broadcast(&self, frame: &Frame) {
        for to in self.0.group.quorum().others(self.0.me) {
            self.send(to, frame);
        }
    }

    /// Queues a frame for a client; false if it was dropped, because the connection has ended or is full.
    pub fn reply(&self, to: ConnectionId, frame: &Frame) -> bool {
        self.0.clients.send(to, frame)
    }

    /// Ends the link to another replica, which is then made anew, with new session keys.
    pub fn renew(&self, peer: ReplicaId) {
        self.0.peers.close(peer);
    }

    /// Ends a client's connection.
    pub fn disconnect(&self, connection: ConnectionId) {
        self.0.clients.close(connection);
    }

    /// How the links to the other replicas are.
    pub fn reports(&self) -> Vec<LinkReport> {
        let others = self.0.group.quorum().others(self.0.me);
        others.map(|peer| self.0.peers.report(peer)).collect()
    }

    /// How many connections clients have.
    pub fn client_connections(&self) -> u32 {
        self.0.clients.count()
    }

    /// Replies dropped because clients did not take them in time.
    pub fn dropped_replies(&self) -> u64 {
        self.0.clients.dropped()
    }
}

async fn accept_all(shared: Arc<Shared>, listener: TcpListener, config: Arc<ServerConfig>) {
    let handshakes = Arc::new(Semaphore::new(shared.limits.handshakes));
    // Ends the connections together with this task.
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let (tcp, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(e) => {
                // Out of file descriptors, most likely: wait until some are given back.
                shared.grumble(None, &format!("can't accept connections: {e}"));
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(permit) = handshakes.clone().try_acquire_owned() else {
            shared.grumble(Some(from), "too many connections without a known peer");
            continue;
        };
        let (shared, config) = (shared.clone(), config.clone());
        connections.spawn(async move { serve_one(&shared, tcp, from, config, permit).await });
    }
}

async fn serve_one(
    shared: &Arc<Shared>,
    tcp: TcpStream,
    from: SocketAddr,
    config: Arc<ServerConfig>,
    handshake: OwnedSemaphorePermit,
) {
    let (stream, key) = match link::accept(tcp, config).await {
        Ok(accepted) => accepted,
        Err(e) => return shared.grumble(Some(from), &format!("refused in the handshake: {e}")),
    };
    match shared.group.member(&key) {
        Some(Member::Replica(peer)) if peer > shared.me => {
            if let Some(stream) = welcome(stream, handshake).await {
                peers::serve(shared, peer, stream).await;
            }
        }
        Some(Member::Replica(peer)) => {
            // Not how a correct replica behaves: it waits for our call, or is this very replica.
            shared.grumble(Some(from), &format!("{peer:?} dialed, but is to be dialed"));
        }
        Some(Member::Client(_)) => clients::serve(shared, key, stream, handshake).await,
        // The handshake has let in members only; the group does not change while the process runs.
        None => shared.grumble(Some(from), "a key of nobody in the group"),
    }
}

/// Lets a peer in, and makes room for another handshake.
async fn welcome(mut stream: Stream, handshake: OwnedSemaphorePermit) -> Option<Stream> {
    link::welcome(&mut stream).await.ok()?;
    drop(handshake);
    Some(stream)
}

impl Shared {
    fn grumble(&self, from: Option<SocketAddr>, what: &str) {
        if let Some(more) = self.strangers.pass() {
            let from = from.map(|f| f.to_string()).unwrap_or_default();
            tracing::warn!(%from, more, "{what}");
        }
    }
}

fn outbox_limits(bytes: usize, limits: &Limits) -> OutboxLimits {
    OutboxLimits {
        bytes,
        frames: limits.queue_frames,
    }
}
