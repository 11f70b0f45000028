//! Links over real sockets on the loopback address.

use std::io::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::{Cluster, Raw, client_key, eventually, other_client_key, stranger_key};
use bytes::Bytes;
use quorate_net::{ClientEvent, Event, Frame, Limits, bind};
use quorate_wire::message::{
    AuthRequest, ClientMessage, Fetch, PeerMessage, ReplicaMessage, Reply, ReplyBody, Request,
};
use quorate_wire::{Digest, ReplicaId, RequestNumber, SessionId, View};

fn peer_message(bytes: usize) -> PeerMessage {
    let op = Bytes::from(vec![7; bytes]);
    let request = Request::new(client_key().public(), SessionId(1), RequestNumber(1), op);
    PeerMessage::Body(AuthRequest::bare(request))
}

fn reply(number: u64, bytes: usize) -> Frame {
    Frame::encode(&ReplicaMessage::Reply(Reply {
        session: SessionId(1),
        number: RequestNumber(number),
        view: View(0),
        tentative: false,
        body: ReplyBody::Full(Bytes::from(vec![9; bytes])),
    }))
}

/// Four replicas find each other, and what one broadcasts reaches each of the others once.
#[test]
fn all_pairs_connect() {
    let cluster = Cluster::start(4, Limits::default());
    cluster.wait_until_linked();
    for from in 0..4u8 {
        let message = PeerMessage::Fetch(Fetch::Batch(Digest([from; 32])));
        cluster.broadcast(from, &Frame::encode(&message));
        for to in (0..4u8).filter(|&to| to != from) {
            let (sender, got) = cluster.next_peer_message(to);
            assert_eq!((sender, &got), (ReplicaId(from), &message));
        }
    }
    let reports = cluster.node(0).with(|links| links.reports());
    assert!(reports.iter().all(|l| l.up && l.dropped == 0));
    assert_eq!(reports.len(), 3);
}

/// Messages of many sizes, up to a MiB, arrive whole and in order.
#[test]
fn large_and_small_messages_keep_their_order() {
    let cluster = Cluster::start(4, Limits::default());
    cluster.wait_until_linked();
    let sizes = [0, 1, 1 << 20, 5, 100_000, 16 << 10, 70_000, 1 << 20, 3];
    for size in sizes {
        assert!(cluster.send(3, 0, &Frame::encode(&peer_message(size))));
    }
    for size in sizes {
        let (from, got) = cluster.next_peer_message(0);
        assert_eq!((from, got), (ReplicaId(3), peer_message(size)));
    }
}

/// What may wait for others comes in its place among them; and by itself if there are none.
#[test]
fn what_may_wait_comes_in_order() {
    let cluster = Cluster::start(4, Limits::default());
    cluster.wait_until_linked();
    let frames = [1, 2, 3].map(|n| Frame::encode(&peer_message(n)));
    cluster.node(1).with(move |links| {
        links.broadcast(&frames[0]);
        links.broadcast_later(&frames[1]);
        links.broadcast(&frames[2]);
        links.broadcast_later(&frames[0]);
    });
    for size in [1, 2, 3, 1] {
        for to in [0, 2, 3] {
            let (from, got) = cluster.next_peer_message(to);
            assert_eq!((from, got), (ReplicaId(1), peer_message(size)));
        }
    }
}

/// A replica that dies is noticed, and one that comes back is linked again.
#[test]
fn a_restarted_replica_is_linked_again() {
    let mut cluster = Cluster::start(4, Limits::default());
    cluster.wait_until_linked();
    for restarted in [0u8, 3, 1] {
        cluster.stop(restarted);
        let others: Vec<u8> = (0..4).filter(|&i| i != restarted).collect();
        for &other in &others {
            let down = |e: &Event| matches!(e, Event::PeerDown(r) if r.0 == restarted);
            cluster.node(other).next(down);
        }
        cluster.restart(restarted);
        cluster.wait_until_linked();
        cluster.broadcast(restarted, &Frame::encode(&peer_message(10)));
        for &other in &others {
            assert_eq!(cluster.next_peer_message(other).0.0, restarted);
        }
    }
}

/// A client is linked to all replicas; both ends of each link have the same key for MACs, and no two links the same.
#[test]
fn a_client_shares_a_key_with_each_replica() {
    let cluster = Cluster::start(4, Limits::default());
    let client = cluster.client(&client_key());
    let mut keys = vec![None; 4];
    for _ in 0..4 {
        match client.next(|_| true) {
            ClientEvent::Up(id, key) => keys[usize::from(id.0)] = Some(key),
            other => panic!("{other:?}"),
        }
    }
    for id in 0..4u8 {
        let up = |e: &Event| matches!(e, Event::ClientUp { .. });
        let Event::ClientUp {
            connection,
            client: who,
            mac_key,
        } = cluster.node(id).next(up)
        else {
            unreachable!()
        };
        assert_eq!(who, client_key().public());
        assert!(keys[usize::from(id)] == Some(mac_key));
        assert!(keys.iter().filter(|k| **k == keys[usize::from(id)]).count() == 1);

        let message = ClientMessage::ReportPlease(7);
        let frame = Frame::encode(&message);
        assert!(client.with(move |links| links.send(ReplicaId(id), &frame)));
        match cluster.node(id).next(|e| matches!(e, Event::Client(..))) {
            Event::Client(from, got) => assert_eq!((from, got), (connection, message)),
            _ => unreachable!(),
        }
        assert!(cluster.reply(id, connection, &reply(7, 1 << 20)));
        match client.next(|_| true) {
            ClientEvent::Message(from, ReplicaMessage::Reply(r)) => {
                assert_eq!((from, r.number), (ReplicaId(id), RequestNumber(7)));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(connections(&cluster, id), 1);
    }
    drop(client);
    for id in 0..4u8 {
        let down = |e: &Event| matches!(e, Event::ClientDown(_));
        cluster.node(id).next(down);
        assert_eq!(connections(&cluster, id), 0);
    }
}

fn connections(cluster: &Cluster, id: u8) -> usize {
    cluster.node(id).with(|links| links.client_connections())
}

/// Whoever is not in the group is refused in the handshake, and the core hears nothing of it.
#[test]
fn a_stranger_gets_nowhere() {
    let cluster = Cluster::start(1, Limits::default());
    let stranger = cluster.client(&stranger_key());
    let told = stranger.events.recv_timeout(Duration::from_millis(400));
    assert!(told.is_err(), "the stranger has no link");
    let told = cluster.node(0).events.try_recv();
    assert!(told.is_err(), "the replica has no client");
}

/// A server that does not have the replica's key is left, though it is a member of the group.
#[test]
fn a_false_server_is_left() {
    let mut cluster = Cluster::start(4, Limits::default());
    cluster.stop(1);
    cluster.stop(2);
    // Replica 2's key answers at replica 1's address.
    cluster.impersonate(2, 1);
    let client = cluster.client(&client_key());
    let mut up = Vec::new();
    while let Ok(event) = client.events.recv_timeout(Duration::from_millis(600)) {
        if let ClientEvent::Up(id, _) = event {
            up.push(id.0);
        }
    }
    up.sort_unstable();
    assert_eq!(up, [0, 3]);
}

/// Bytes that are no handshake, and silence, cost only their own connection.
#[test]
fn nonsense_does_not_disturb_others() {
    let cluster = Cluster::start(4, Limits::default());
    let address = cluster.group.replicas()[0].address.clone();
    let mut open = Vec::new();
    for i in 0..40usize {
        let mut tcp = std::net::TcpStream::connect(&address).unwrap();
        let nonsense: Vec<u8> = (0..i * 50).map(|j| (i * 31 + j * 17) as u8).collect();
        let _ = tcp.write_all(&nonsense);
        open.push(tcp);
    }
    cluster.wait_until_linked();
    cluster.send(3, 0, &Frame::encode(&peer_message(10)));
    assert_eq!(cluster.next_peer_message(0).0, ReplicaId(3));
}

/// A member who breaks the framing loses its connection and no more: it may come back.
#[test]
fn a_member_who_breaks_the_rules_is_cut_off() {
    let cluster = Cluster::start(1, Limits::default());
    let giant = u32::MAX.to_le_bytes().to_vec();
    let empty = vec![0; 4];
    let no_message = [4u32.to_le_bytes().as_slice(), b"\xff\xff\xff\xff"].concat();
    for bytes in [giant, empty, no_message] {
        let mut raw = Raw::connect(&cluster.group, &client_key());
        cluster.next_client(0);
        raw.send(&bytes);
        cluster.node(0).next(|e| matches!(e, Event::ClientDown(_)));
    }
    let client = cluster.client(&client_key());
    assert!(matches!(client.next(|_| true), ClientEvent::Up(..)));
}

/// What came before a connection ended is heard before its end.
#[test]
fn last_words_are_heard() {
    let cluster = Cluster::start(1, Limits::default());
    let mut raw = Raw::connect(&cluster.group, &client_key());
    cluster.next_client(0);
    cluster.node(0).held.store(true, Ordering::Release);
    let message = Frame::encode(&ClientMessage::ReportPlease(5));
    let payload = quorate_wire::Encode::to_bytes(&ClientMessage::ReportPlease(5));
    let framed = [(payload.len() as u32).to_le_bytes().to_vec(), payload].concat();
    assert_eq!(framed.len(), message.wire_bytes());
    raw.send(&framed.repeat(3));
    drop(raw);
    cluster.node(0).held.store(false, Ordering::Release);
    let node = cluster.node(0);
    for _ in 0..3 {
        assert!(matches!(node.next(|_| true), Event::Client(..)));
    }
    assert!(matches!(node.next(|_| true), Event::ClientDown(_)));
}

/// A client that does not read costs only its own replies, which are counted.
#[test]
fn a_slow_reader_does_not_hold_up_others() {
    let cluster = Cluster::start(1, Limits::default());
    let _slow = Raw::connect(&cluster.group, &client_key());
    let slow = cluster.next_client(0);
    let client = cluster.client(&client_key());
    let quick = cluster.next_client(0);
    assert!(matches!(client.next(|_| true), ClientEvent::Up(..)));

    let frame = reply(1, 1 << 20);
    let sent = (0..200).filter(|_| cluster.reply(0, slow, &frame)).count();
    assert!(sent < 200, "the queue is bounded");
    let dropped = cluster.node(0).with(|links| links.dropped_replies());
    assert_eq!(dropped, 200 - sent as u64);
    for number in 0..50 {
        assert!(cluster.reply(0, quick, &reply(number, 1 << 20)));
        match client.next(|_| true) {
            ClientEvent::Message(_, ReplicaMessage::Reply(r)) => {
                assert_eq!(r.number, RequestNumber(number));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A replica that floods has its turn like others, who get through.
#[test]
fn a_flood_blocks_only_its_own_link() {
    let cluster = Cluster::start(4, Limits::default());
    cluster.wait_until_linked();
    cluster.node(0).held.store(true, Ordering::Release);
    let frame = Frame::encode(&peer_message(1 << 20));
    let queued = (0..60).filter(|_| cluster.send(3, 0, &frame)).count();
    assert!(queued > 10);
    cluster.send(2, 0, &Frame::encode(&peer_message(1)));
    std::thread::sleep(Duration::from_millis(300));
    cluster.node(0).held.store(false, Ordering::Release);
    let mut flood = 0;
    while cluster.next_peer_message(0).0 == ReplicaId(3) {
        flood += 1;
    }
    assert!(flood <= 2, "{flood} of {queued} messages came first");
    for _ in flood..queued {
        assert_eq!(cluster.next_peer_message(0).0, ReplicaId(3));
    }
}

/// One client can't take all connections: its oldest one makes room for its newest.
#[test]
fn connections_of_one_client_are_bounded() {
    let limits = Limits {
        connections_per_client: 2,
        ..Limits::default()
    };
    let cluster = Cluster::start(1, limits);
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(Raw::connect(&cluster.group, &client_key()));
    }
    let first = cluster.next_client(0);
    let _second = cluster.next_client(0);
    held.push(Raw::connect(&cluster.group, &client_key()));
    let down = |e: &Event| matches!(e, Event::ClientDown(_));
    assert!(matches!(cluster.node(0).next(down), Event::ClientDown(id) if id == first));
    eventually(|| connections(&cluster, 0) == 2);
}

/// Nor can a few clients: where all connections are taken, the oldest of whoever has most makes room for one who has fewer.
#[test]
fn connections_of_all_clients_are_shared() {
    let limits = Limits {
        clients: 4,
        ..Limits::default()
    };
    let cluster = Cluster::start(1, limits);
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(Raw::connect(&cluster.group, &client_key()));
    }
    let first = cluster.next_client(0);
    for _ in 1..4 {
        cluster.next_client(0);
    }
    held.push(Raw::connect(&cluster.group, &other_client_key()));
    let down = |e: &Event| matches!(e, Event::ClientDown(_));
    assert!(matches!(cluster.node(0).next(down), Event::ClientDown(id) if id == first));
    let others = cluster.next_client(0);
    held.push(Raw::connect(&cluster.group, &other_client_key()));
    assert!(matches!(cluster.node(0).next(down), Event::ClientDown(id) if id != others));
    eventually(|| connections(&cluster, 0) == 4);
}

/// As many mounts as have sessions with one key have links, and others who only ask: nobody's is cut for another's.
#[test]
fn mounts_with_one_key_do_not_cut_each_other_off() {
    let cluster = Cluster::start(1, Limits::default());
    let clients: Vec<_> = (0..20).map(|_| cluster.client(&client_key())).collect();
    for _ in &clients {
        let comes_or_goes = |e: &Event| matches!(e, Event::ClientUp { .. } | Event::ClientDown(_));
        let event = cluster.node(0).next(comes_or_goes);
        assert!(matches!(event, Event::ClientUp { .. }), "{event:?}");
    }
    assert_eq!(connections(&cluster, 0), clients.len());
}

/// Session keys are renewed on demand, without a restart.
#[test]
fn links_are_renewed() {
    let cluster = Cluster::start(4, Limits::default());
    cluster.wait_until_linked();
    for (at, other) in [(0, 2), (2, 0)] {
        cluster
            .node(at)
            .with(move |links| links.renew(ReplicaId(other)));
        let node = cluster.node(at);
        node.next(|e| matches!(e, Event::PeerDown(ReplicaId(r)) if *r == other));
        node.next(|e| matches!(e, Event::PeerUp(ReplicaId(r)) if *r == other));
    }
}

/// A port that is taken is told with what to do.
#[test]
fn a_taken_port_is_told() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let error = bind(&address).unwrap_err();
    assert!(error.to_string().contains("is in use"), "{error}");
    let error = bind("192.0.2.1:7000").unwrap_err();
    assert!(
        error.to_string().contains("not one of this machine"),
        "{error}"
    );
}

/// Many small messages get through without loss where the queue is large enough.
#[test]
fn many_small_messages_get_through() {
    let cluster = Cluster::start(4, Limits::default());
    cluster.wait_until_linked();
    let frame = Frame::encode(&PeerMessage::Fetch(Fetch::Batch(Digest([1; 32]))));
    let count = 50_000;
    let all = cluster
        .node(2)
        .with(move |links| (0..count).all(|_| links.send(ReplicaId(1), &frame)));
    assert!(all);
    for _ in 0..count {
        assert_eq!(cluster.next_peer_message(1).0, ReplicaId(2));
    }
}
