//! A group in one process, for tests of links.

use std::sync::Arc;
use std::time::Duration;

use quorate_node::event::{self, Events};
use quorate_node::group::{Files, Purpose};
use quorate_node::{
    ConnectionId, Event, Group, Identity, Limits, Links, Transport, tls, transport,
};
use quorate_wire::message::PeerMessage;
use quorate_wire::{KeyPair, ReplicaId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Generous: tests share their processors.
const PATIENCE: Duration = Duration::from_secs(20);

pub fn replica_key(id: u8) -> KeyPair {
    KeyPair::from_seed(&[id + 1; 32])
}

pub fn client_key() -> KeyPair {
    KeyPair::from_seed(&[100; 32])
}

pub fn stranger_key() -> KeyPair {
    KeyPair::from_seed(&[200; 32])
}

pub fn identity_of(key: &KeyPair) -> Identity {
    Identity::new(key)
}

pub struct Cluster {
    pub group: Arc<Group>,
    limits: Limits,
    nodes: Vec<Option<(Transport, Events<Event>)>>,
}

impl Cluster {
    pub async fn start(n: u8, limits: Limits) -> Cluster {
        let mut listeners = Vec::new();
        let mut replicas = Vec::new();
        for id in 0..n {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap().to_string();
            replicas.push((address, replica_key(id).public()));
            listeners.push(listener);
        }
        let clients = vec![("client".to_string(), client_key().public())];
        let group = Group::new(
            "test",
            replicas,
            clients,
            Files::default(),
            Purpose::Demonstration,
        );
        let group = Arc::new(group.unwrap());
        let mut cluster = Cluster {
            group,
            limits,
            nodes: Vec::new(),
        };
        for (id, listener) in (0..n).zip(listeners) {
            let node = cluster.node(id, listener);
            cluster.nodes.push(Some(node));
        }
        cluster
    }

    fn node(&self, id: u8, listener: TcpListener) -> (Transport, Events<Event>) {
        let (deliver, events) = event::channel();
        let identity = identity_of(&replica_key(id));
        let group = self.group.clone();
        let me = ReplicaId(id);
        let transport = Transport::start(group, me, &identity, listener, self.limits, deliver);
        (transport, events)
    }

    pub fn stop(&mut self, id: u8) {
        self.nodes[usize::from(id)] = None;
    }

    pub async fn restart(&mut self, id: u8) {
        self.impersonate(id, id).await;
    }

    /// Starts replica `id` at the address of another.
    pub async fn impersonate(&mut self, id: u8, at: u8) {
        let address = &self.group.replicas()[usize::from(at)].address;
        // The old listener is gone as soon as its task has been dropped.
        let listener = loop {
            match transport::bind(address).await {
                Ok(listener) => break listener,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        self.nodes[usize::from(id)] = Some(self.node(id, listener));
    }

    pub fn links(&self, id: u8) -> Links {
        self.nodes[usize::from(id)].as_ref().unwrap().0.links()
    }

    pub fn try_event(&self, id: u8) -> Option<Event> {
        self.nodes[usize::from(id)].as_ref().unwrap().1.try_recv()
    }

    /// The next event of the wanted kind; others are passed over.
    pub async fn next_event(&mut self, id: u8, wanted: impl Fn(&Event) -> bool) -> Event {
        let search = async {
            loop {
                match self.try_event(id) {
                    Some(event) if wanted(&event) => return event,
                    Some(_) => {}
                    None => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            }
        };
        tokio::time::timeout(PATIENCE, search)
            .await
            .expect("the event comes in time")
    }

    pub async fn next_peer_message(&mut self, id: u8) -> (ReplicaId, PeerMessage) {
        match self.next_event(id, |e| matches!(e, Event::Peer(..))).await {
            Event::Peer(from, message) => (from, message),
            _ => unreachable!(),
        }
    }

    pub async fn next_client(&mut self, id: u8) -> ConnectionId {
        let up = |e: &Event| matches!(e, Event::ClientUp { .. });
        match self.next_event(id, up).await {
            Event::ClientUp { connection, .. } => connection,
            _ => unreachable!(),
        }
    }

    pub async fn wait_until_linked(&self) {
        let linked = || {
            let nodes = self.nodes.iter().flatten();
            nodes.flat_map(|n| n.0.links().reports()).all(|l| l.up)
        };
        eventually(linked).await;
    }
}

pub async fn eventually(condition: impl Fn() -> bool) {
    let search = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, search)
        .await
        .expect("it comes true in time");
}

/// A welcome connection to replica 0 in which the test itself says what is sent.
pub async fn raw_connection(group: &Group, identity: &Identity) -> TlsStream<TcpStream> {
    let replica = &group.replicas()[0];
    let tcp = TcpStream::connect(&replica.address).await.unwrap();
    let connector = TlsConnector::from(identity.client_config(replica.key));
    let mut stream = connector.connect(tls::server_name(), tcp).await.unwrap();
    let mut welcome = [1; 4];
    stream.read_exact(&mut welcome).await.unwrap();
    assert_eq!(welcome, [0; 4]);
    stream
}

pub async fn send_raw(stream: &mut TlsStream<TcpStream>, bytes: &[u8]) {
    stream.write_all(bytes).await.unwrap();
    stream.flush().await.unwrap();
}
