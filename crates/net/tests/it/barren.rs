//! Whoever sends what costs work to read, and of which no message comes, costs others little and is let go.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::floods::reply;
use crate::support::{
    Cluster, client_key, eventually, other_client_key, replica_key, stranger_key,
};
use quorate_net::{ClientEvent, Event, Group, Identity, Limits, tls};
use quorate_wire::{KeyPair, ReplicaId};
use rustls::server::ProducesTickets;
use rustls::{ClientConnection, ServerConnection};

/// A connection to replica 0 on which a message of so many bytes begins, once it is welcome there; who says that it is a guest does not wait for that.
fn begin(cluster: &Cluster, key: &KeyPair, is_guest: bool, bytes: u32) -> Sender {
    let replica = &cluster.group.replicas()[0];
    let mut tcp = TcpStream::connect(&replica.address).unwrap();
    let mut config = (*Identity::new(key).client_config(replica.key)).clone();
    if is_guest {
        config.alpn_protocols = vec![b"quorate-guest/4".to_vec()];
    }
    let mut tls = ClientConnection::new(config.into(), tls::server_name()).unwrap();
    while tls.is_handshaking() {
        tls.complete_io(&mut tcp).unwrap();
    }
    if !is_guest {
        let mut welcome = [1; 4];
        let mut stream = rustls::Stream::new(&mut tls, &mut tcp);
        stream.read_exact(&mut welcome).unwrap();
    }
    tls.writer().write_all(&bytes.to_le_bytes()).unwrap();
    Sender(tls, tcp)
}

struct Sender(ClientConnection, TcpStream);

impl Sender {
    fn write(&mut self) -> std::io::Result<()> {
        while self.0.wants_write() {
            self.0.write_tls(&mut self.1)?;
        }
        Ok(())
    }

    /// As many changes of keys as TLS takes in a row, and a byte; again and again, as long as somebody takes that.
    fn change_keys(&mut self, bytes: usize) {
        for _ in 0..bytes {
            for _ in 0..31 {
                self.0.refresh_traffic_keys().unwrap();
            }
            self.0.writer().write_all(&[0]).unwrap();
            if self.write().is_err() {
                return;
            }
        }
    }

    /// A byte in each record, until nobody takes that or it is to stop.
    fn trickle(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            for _ in 0..100 {
                self.0.writer().write_all(&[0]).unwrap();
            }
            if self.write().is_err() {
                return;
            }
        }
    }
}

/// Strangers who come as guests and have the replica change keys instead of saying who they are keep no member out, nor the replica from
/// its end.
#[test]
fn strangers_who_bring_nothing_keep_nobody_out() {
    let cluster = Cluster::start_owned(1, false, &KeyPair::from_seed(&[7; 32]));
    let strangers = [(); 6].map(|()| begin(&cluster, &stranger_key(), true, 8_192));
    let strangers =
        strangers.map(|mut sender| std::thread::spawn(move || sender.change_keys(8_000)));
    for stranger in strangers {
        stranger.join().unwrap();
    }
    let member = cluster.client(&client_key());
    member.next(|e| matches!(e, ClientEvent::Up(..)));
}

/// A client that has a replica change keys instead of sending the message that it has begun is let go, and others are served.
#[test]
fn a_client_who_brings_nothing_is_let_go() {
    let cluster = Cluster::start(1, Limits::default());
    let mut sender = begin(&cluster, &client_key(), false, 1 << 20);
    let id = cluster.next_client(0);
    let sends = std::thread::spawn(move || sender.change_keys(1 << 20));
    let down = |e: &Event| matches!(e, Event::ClientDown(_));
    assert!(matches!(cluster.node(0).next(down), Event::ClientDown(it) if it == id));
    sends.join().unwrap();
    let other = cluster.client(&other_client_key());
    other.next(|e| matches!(e, ClientEvent::Up(..)));
}

/// Who sends a message a byte at a time has the replica open a record for each: that is of no use, and counts as such.
#[test]
fn a_byte_at_a_time_is_a_flood() {
    let cluster = Cluster::start(1, Limits::default());
    let mut sender = begin(&cluster, &client_key(), false, 1 << 20);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let sends = std::thread::spawn(move || sender.trickle(&stopped));
    eventually(|| cluster.node(0).with(|links| links.clients_put_aside()) >= 1);
    let other = cluster.client(&other_client_key());
    other.next(|e| matches!(e, ClientEvent::Up(..)));
    stop.store(true, Ordering::Release);
    drop(cluster);
    sends.join().unwrap();
}

/// Tickets of which sixteen fill a record: with them TLS has nothing to put together.
#[derive(Debug)]
struct LongTickets;

impl ProducesTickets for LongTickets {
    fn enabled(&self) -> bool {
        true
    }
    fn lifetime(&self) -> u32 {
        1_000
    }
    fn encrypt(&self, _plain: &[u8]) -> Option<Vec<u8>> {
        Some(vec![7; 1_024 - 49])
    }
    fn decrypt(&self, _cipher: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

/// Answers whoever calls with tickets instead of a welcome, as long as they are taken. Counts how many callers have taken all: more than fit into sockets.
fn hand_out_tickets(
    group: &Arc<Group>,
    listener: TcpListener,
    all_taken: &AtomicUsize,
    callers: &AtomicUsize,
) {
    const TICKETS: usize = 60_000;
    let mut config = (*Identity::new(&replica_key(0)).server_config(group)).clone();
    config.ticketer = Arc::new(LongTickets);
    config.send_tls13_tickets = TICKETS;
    let config = Arc::new(config);
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let mut tls = ServerConnection::new(config.clone()).unwrap();
        while tls.is_handshaking() && tls.complete_io(&mut stream).is_ok() {}
        callers.fetch_add(1, Ordering::AcqRel);
        let mut taken = !tls.is_handshaking();
        while taken && tls.wants_write() {
            taken = tls.write_tls(&mut stream).is_ok();
        }
        all_taken.fetch_add(usize::from(taken), Ordering::AcqRel);
    }
}

/// Whoever answers in a replica's place with what is no welcome, without end, is let go at once, and the other replicas are dialed and heard.
#[test]
fn who_answers_with_nothing_holds_no_client_up() {
    let cluster = Cluster::start(4, Limits::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let there = listener.local_addr().unwrap().to_string();
    let (all_taken, callers) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (group, taken, came) = (cluster.group.clone(), all_taken.clone(), callers.clone());
    std::thread::spawn(move || hand_out_tickets(&group, listener, &taken, &came));
    let group = (*cluster.group).clone().with_route(ReplicaId(0), &there);
    let client = Cluster::client_of(&group.unwrap(), &client_key());
    let mut up = [false; 4];
    while up != [false, true, true, true] {
        let event = client.next(|e| matches!(e, ClientEvent::Up(..)));
        let ClientEvent::Up(id, _) = event else {
            unreachable!()
        };
        up[usize::from(id.0)] = true;
    }
    for id in 1..4 {
        let connection = cluster.next_client(id);
        assert!(cluster.reply(id, connection, &reply(100)));
        client.next(|e| matches!(e, ClientEvent::Message(from, _) if *from == ReplicaId(id)));
    }
    eventually(|| callers.load(Ordering::Acquire) >= 3);
    assert_eq!(all_taken.load(Ordering::Acquire), 0);
}
