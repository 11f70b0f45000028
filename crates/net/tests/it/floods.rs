//! Who sends too much, or nothing where something is due, costs others little.

use std::io::Read as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{Cluster, Raw, SEALINGS, client_key, eventually, other_client_key};
use bytes::Bytes;
use quorate_net::{ClientEvent, ConnectionId, Event, Frame, Limits, Sealing};
use quorate_wire::message::{
    AuthRequest, ClientMessage, Fetch, PeerMessage, ReplicaMessage, Reply, ReplyBody, Request,
};
use quorate_wire::{Digest, Encode, ReplicaId, RequestNumber, SessionId, View};

fn vote() -> Frame {
    Frame::encode(&PeerMessage::Fetch(Fetch::Batch(Digest([1; 32]))))
}

fn question(number: u64) -> Vec<u8> {
    let payload = ClientMessage::ReportPlease(number).to_bytes();
    [(payload.len() as u32).to_le_bytes().to_vec(), payload].concat()
}

/// An answer that is so long.
pub fn reply(bytes: usize) -> Frame {
    let reply = reply_of(vec![9; bytes].into());
    Frame::encode(&ReplicaMessage::Reply(reply))
}

fn reply_of(result: Bytes) -> Reply {
    Reply {
        session: SessionId(1),
        number: RequestNumber(1),
        view: View(0),
        tentative: false,
        body: ReplyBody::Full(result),
    }
}

fn put_aside(cluster: &Cluster, at: u8, peer: u8) -> u64 {
    let reports = cluster.node(at).with(|links| links.reports());
    let report = reports.iter().find(|l| l.peer == ReplicaId(peer));
    report.map_or(0, |l| l.put_aside)
}

/// A replica that sends many times what the others do is put aside, which is counted; all that it sent comes in the end, and nobody
/// else is put aside.
#[test]
fn a_flooding_replica_is_put_aside_for_a_while() {
    let cluster = Cluster::start(4, Limits::default());
    cluster.wait_until_linked();
    let (frame, count) = (vote(), 60_000);
    let queued = cluster
        .node(3)
        .with(move |links| (0..count).all(|_| links.send(ReplicaId(0), &frame)));
    assert!(queued);
    for other in [1, 2] {
        assert!(cluster.send(other, 0, &vote()));
    }
    let mut from = [0; 4];
    for _ in 0..count + 2 {
        from[usize::from(cluster.next_peer_message(0).0.0)] += 1;
    }
    assert_eq!(from, [0, 1, 1, count]);
    assert!(put_aside(&cluster, 0, 3) >= 1);
    assert_eq!([1, 2].map(|peer| put_aside(&cluster, 0, peer)), [0, 0]);
}

/// What a replica sends that is refused counts with its bytes: a few long messages are a flood as well.
#[test]
fn long_useless_messages_are_a_flood() {
    let cluster = Cluster::start(4, Limits::default());
    cluster.wait_until_linked();
    let op = Bytes::from(vec![7; 1 << 20]);
    let request = Request::new(client_key().public(), SessionId(1), RequestNumber(1), op);
    let frame = Frame::encode(&PeerMessage::Body(AuthRequest::bare(request)));
    for (refuses, aside) in [(false, 0), (true, 1)] {
        cluster.node(0).refuses.store(refuses, Ordering::Release);
        for _ in 0..200 {
            while !cluster.send(3, 0, &frame) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        for _ in 0..200 {
            assert_eq!(cluster.next_peer_message(0).0, ReplicaId(3));
        }
        assert!(put_aside(&cluster, 0, 3) >= aside);
        assert!(refuses || put_aside(&cluster, 0, 3) == 0);
    }
}

/// However much a client sends, what a replica says is heard first; and a client hears no more of a turn for having many connections.
#[test]
fn everyone_has_a_turn() {
    let cluster = Cluster::start(4, Limits::default());
    cluster.wait_until_linked();
    let node = cluster.node(0);
    let mut greedy: Vec<Raw> = (0..8)
        .map(|_| Raw::connect(&cluster.group, &client_key()))
        .collect();
    let mut modest = Raw::connect(&cluster.group, &other_client_key());
    let of_greedy: Vec<ConnectionId> = (0..8).map(|_| cluster.next_client(0)).collect();
    cluster.next_client(0);
    node.held.store(true, Ordering::Release);
    for raw in &mut greedy {
        raw.send(&question(0).repeat(2_000));
    }
    modest.send(&question(1).repeat(200));
    assert!(cluster.send(2, 0, &vote()));
    std::thread::sleep(Duration::from_millis(300));
    node.held.store(false, Ordering::Release);
    let (mut before_peer, mut of_others, mut of_modest) = (None, 0, 0);
    while of_modest < 200 || before_peer.is_none() {
        match node.next(|_| true) {
            Event::Peer(..) => before_peer = Some(of_others + of_modest),
            Event::Client(id, _) if of_greedy.contains(&id) => of_others += 1,
            Event::Client(..) => of_modest += 1,
            other => panic!("{other:?}"),
        }
    }
    // At most what was in a turn that had begun.
    let before_peer = before_peer.unwrap();
    assert!(
        before_peer <= 600,
        "{before_peer} messages of clients came first"
    );
    assert!(of_others <= 600, "{of_others} to 200");
    for _ in of_others..8 * 2_000 {
        node.next(|e| matches!(e, Event::Client(..)));
    }
}

/// While clients rest replicas are heard and clients are not; what these have sent comes afterwards.
#[test]
fn who_rests_is_heard_later() {
    let cluster = Cluster::start(4, Limits::default());
    cluster.wait_until_linked();
    let node = cluster.node(0);
    let mut raw = Raw::connect(&cluster.group, &client_key());
    cluster.next_client(0);
    node.with(|links| links.rest(false, true));
    raw.send(&question(1).repeat(3));
    std::thread::sleep(Duration::from_millis(200));
    assert!(cluster.send(2, 0, &vote()));
    let first = node.next(|e| matches!(e, Event::Peer(..) | Event::Client(..)));
    assert!(matches!(first, Event::Peer(..)), "{first:?}");
    node.with(|links| links.rest(true, false));
    for _ in 0..3 {
        node.next(|e| matches!(e, Event::Client(..)));
    }
    assert!(cluster.send(2, 0, &vote()));
    std::thread::sleep(Duration::from_millis(200));
    raw.send(&question(2));
    let first = node.next(|e| matches!(e, Event::Peer(..) | Event::Client(..)));
    assert!(matches!(first, Event::Client(..)), "{first:?}");
    node.with(|links| links.rest(false, false));
    node.next(|e| matches!(e, Event::Peer(..)));
}

/// A client whose messages are of no use is not read for a while, on none of its connections; nor does a new one help. Others
/// are served meanwhile, and it is when the time is over.
#[test]
fn a_useless_client_is_put_aside_for_a_while() {
    let cluster = Cluster::start(1, Limits::default());
    let node = cluster.node(0);
    let mut useless = Raw::connect(&cluster.group, &client_key());
    cluster.next_client(0);
    node.refuses.store(true, Ordering::Release);
    useless.send(&question(0).repeat(3_000));
    eventually(|| node.with(|links| links.clients_put_aside()) >= 1);
    let again = Raw::try_connect(&cluster.group, &client_key());
    assert!(again.is_err(), "it is put aside wherever it comes from");
    let client = cluster.client(&other_client_key());
    assert!(matches!(client.next(|_| true), ClientEvent::Up(..)));
    for _ in 0..3_000 {
        node.next(|e| matches!(e, Event::Client(..)));
    }
    node.refuses.store(false, Ordering::Release);
    eventually(|| Raw::try_connect(&cluster.group, &client_key()).is_ok());
}

/// To come and go all the time is of no use either: each time costs a handshake.
#[test]
fn who_connects_again_and_again_is_put_aside() {
    let cluster = Cluster::start(1, Limits::default());
    let welcome = (0..200).filter(|_| Raw::try_connect(&cluster.group, &client_key()).is_ok());
    let welcome = welcome.count();
    assert!((30..200).contains(&welcome), "{welcome} times");
}

/// When clients that don't read fill what all clients may have waiting, the one that has most is let go.
#[test]
fn who_does_not_read_makes_room() {
    SEALINGS.into_iter().for_each(makes_room);
}

fn makes_room(sealing: Sealing) {
    let limits = Limits {
        client_queue_bytes: 20 << 20,
        clients_queue_bytes: 24 << 20,
        ..Limits::default()
    };
    let cluster = Cluster::start_sealing(1, limits, sealing);
    let raw = |key| {
        let raw = Raw::connect(&cluster.group, &key);
        (raw, cluster.next_client(0))
    };
    let ((_deaf, deaf), (mut modest, id)) = (raw(client_key()), raw(other_client_key()));
    let down = |e: &Event| matches!(e, Event::ClientDown(id) if *id == deaf);
    // Sockets hold some as well.
    while cluster.reply(0, deaf, &reply(1 << 20)) {}
    for _ in 0..16 {
        assert!(cluster.reply(0, id, &reply(1 << 20)), "the other has less");
    }
    assert!(matches!(cluster.node(0).next(down), Event::ClientDown(_)));
    modest.take(15 << 20);
    modest.send(&question(1));
    let heard = cluster.node(0).next(|e| matches!(e, Event::Client(..)));
    assert!(matches!(heard, Event::Client(from, _) if from == id));
}

/// Bytes in memory of which it is counted how many there are.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl Counted {
    fn bytes(length: usize, count: &Arc<AtomicUsize>) -> Bytes {
        count.fetch_add(length, Ordering::AcqRel);
        Bytes::from_owner(Counted(vec![7; length], count.clone()))
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(self.0.len(), Ordering::AcqRel);
    }
}

/// An answer that waits for whoever does not read it is perhaps a part of something longer: all of these together keep no more than
/// a few MiB of answers have in common with that, and what comes is right either way.
#[test]
fn unread_answers_keep_little_beside_themselves() {
    SEALINGS.into_iter().for_each(keep_little);
}

fn keep_little(sealing: Sealing) {
    let cluster = Cluster::start_sealing(1, Limits::default(), sealing);
    let mut deaf = Raw::connect(&cluster.group, &client_key());
    let id = cluster.next_client(0);
    let (kept, count, length) = (Arc::new(AtomicUsize::new(0)), 200, 1 << 16);
    for _ in 0..count {
        let part = Counted::bytes(1 << 20, &kept).slice(..length);
        let message = ReplicaMessage::Reply(reply_of(part));
        assert!(cluster.reply(0, id, &Frame::encode_shared(&message)));
    }
    let kept_bytes = kept.load(Ordering::Acquire);
    assert!(
        kept_bytes <= 16 * (4 << 20) + (1 << 20),
        "{kept_bytes} bytes"
    );
    assert!(kept_bytes > 0, "nothing was shared");
    let frame = Frame::encode(&ReplicaMessage::Reply(reply_of(vec![7; length].into())));
    deaf.take(count * frame.wire_bytes());
    eventually(|| kept.load(Ordering::Acquire) == 0);
}

/// Who does not take its answers is asked for no more questions, and is when it has taken them; others are served all the while.
#[test]
fn who_does_not_read_is_not_read() {
    SEALINGS.into_iter().for_each(is_not_read);
}

fn is_not_read(sealing: Sealing) {
    let cluster = Cluster::start_sealing(1, Limits::default(), sealing);
    let raw = |key| {
        let raw = Raw::connect(&cluster.group, &key);
        (raw, cluster.next_client(0))
    };
    let ((mut deaf, deaf_id), (mut modest, modest_id)) =
        (raw(client_key()), raw(other_client_key()));
    for _ in 0..14 {
        assert!(cluster.reply(0, deaf_id, &reply(1 << 20)));
    }
    for number in 0..20 {
        deaf.send(&question(number));
        modest.send(&question(number));
        let next = cluster.node(0).next(|e| matches!(e, Event::Client(..)));
        assert!(matches!(next, Event::Client(id, _) if id == modest_id));
    }
    deaf.take(13 << 20);
    for _ in 0..20 {
        let next = cluster.node(0).next(|e| matches!(e, Event::Client(..)));
        assert!(matches!(next, Event::Client(id, _) if id == deaf_id));
    }
}

/// A client of which its owner has enough is not read on any of its connections, until it is again.
#[test]
fn a_held_client_waits() {
    let cluster = Cluster::start(1, Limits::default());
    let node = cluster.node(0);
    let mut first = Raw::connect(&cluster.group, &client_key());
    cluster.next_client(0);
    let hold = |is_held| node.with(move |links| links.hold(&client_key().public(), is_held));
    hold(true);
    let mut second = Raw::connect(&cluster.group, &client_key());
    cluster.next_client(0);
    let mut other = Raw::connect(&cluster.group, &other_client_key());
    let other_id = cluster.next_client(0);
    for number in 0..20 {
        first.send(&question(number));
        second.send(&question(number));
        other.send(&question(number));
        let next = node.next(|e| matches!(e, Event::Client(..)));
        assert!(matches!(next, Event::Client(id, _) if id == other_id));
    }
    hold(false);
    for _ in 0..40 {
        let next = node.next(|e| matches!(e, Event::Client(..)));
        assert!(matches!(next, Event::Client(id, _) if id != other_id));
    }
}

/// Nor can messages that are begun and not ended fill the memory.
#[test]
fn who_leaves_messages_unfinished_makes_room() {
    let limits = Limits {
        clients_partial_bytes: 1 << 20,
        ..Limits::default()
    };
    let cluster = Cluster::start(1, limits);
    let begin = |bytes: usize| [(1u32 << 20).to_le_bytes().to_vec(), vec![1; bytes]].concat();
    let mut much = Raw::connect(&cluster.group, &client_key());
    let first = cluster.next_client(0);
    let mut little = Raw::connect(&cluster.group, &other_client_key());
    cluster.next_client(0);
    much.send(&begin(900 << 10));
    little.send(&begin(300 << 10));
    let down = |e: &Event| matches!(e, Event::ClientDown(_));
    assert!(matches!(cluster.node(0).next(down), Event::ClientDown(id) if id == first));
    eventually(|| cluster.node(0).with(|links| links.client_connections()) == 1);
}

/// Those who connect and say nothing take up the places for handshakes until others come, and no longer than a handshake may last.
#[test]
fn silent_strangers_make_room() {
    let limits = Limits {
        handshakes: 5,
        ..Limits::default()
    };
    let cluster = Cluster::start(1, limits);
    let address = cluster.group.replicas()[0].address.clone();
    let connect = |_| TcpStream::connect(&address).unwrap();
    let mut silent: Vec<_> = (0..5).map(connect).collect();
    let client = cluster.client(&client_key());
    let up = client.events.recv_timeout(Duration::from_secs(3));
    assert!(matches!(up, Ok(ClientEvent::Up(..))), "{up:?}");
    for stranger in &mut silent {
        let patience = Some(Duration::from_secs(10));
        stranger.set_read_timeout(patience).unwrap();
        let end = stranger.read(&mut [0; 16]);
        assert!(matches!(end, Ok(0)), "{end:?}");
    }
}

/// Who is sent long answers has paid with some of its turns: others are heard first.
#[test]
fn long_answers_cost_turns() {
    let cluster = Cluster::start(1, Limits::default());
    let node = cluster.node(0);
    let mut asks_for_much = Raw::connect(&cluster.group, &client_key());
    let much = cluster.next_client(0);
    let mut modest = Raw::connect(&cluster.group, &other_client_key());
    cluster.next_client(0);
    node.held.store(true, Ordering::Release);
    assert!(cluster.reply(0, much, &reply(1 << 20)));
    asks_for_much.send(&question(0).repeat(10));
    modest.send(&question(1).repeat(10));
    std::thread::sleep(Duration::from_millis(300));
    node.held.store(false, Ordering::Release);
    let first = [(); 10].map(|()| match node.next(|_| true) {
        Event::Client(id, _) => id != much,
        other => panic!("{other:?}"),
    });
    assert_eq!(first, [true; 10]);
    for _ in 0..10 {
        node.next(|e| matches!(e, Event::Client(id, _) if *id == much));
    }
}
