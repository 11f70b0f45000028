//! Links over real sockets on the loopback address.

#[path = "links/support.rs"]
mod support;

use std::io::Write as _;
use std::time::Duration;

use bytes::Bytes;
use quorate_node::{ClientEvent, ClientTransport, Event, Frame, Limits};
use quorate_wire::message::{
    ClientMessage, Fetch, PeerMessage, ReplicaMessage, Reply, ReplyBody, Request,
};
use quorate_wire::{Digest, ReplicaId, RequestNumber, SessionId, View};
use support::{Cluster, client_key, eventually, identity_of, stranger_key};

fn peer_message(bytes: usize) -> PeerMessage {
    let op = Bytes::from(vec![7; bytes]);
    let request = Request::new(client_key().public(), SessionId(1), RequestNumber(1), op);
    PeerMessage::Body(request)
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
#[tokio::test(flavor = "multi_thread")]
async fn all_pairs_connect() {
    let mut cluster = Cluster::start(4, Limits::default()).await;
    cluster.wait_until_linked().await;
    for from in 0..4u8 {
        let message = PeerMessage::Fetch(Fetch::Batch(Digest([from; 32])));
        cluster.links(from).broadcast(&Frame::encode(&message));
        for to in (0..4u8).filter(|&to| to != from) {
            let (sender, got) = cluster.next_peer_message(to).await;
            assert_eq!((sender, &got), (ReplicaId(from), &message));
        }
    }
    assert!(
        cluster
            .links(0)
            .reports()
            .iter()
            .all(|l| l.up && l.dropped == 0)
    );
    assert_eq!(cluster.links(0).reports().len(), 3);
}

/// Messages of many sizes, up to several MiB, arrive whole and in order.
#[tokio::test(flavor = "multi_thread")]
async fn large_and_small_messages_keep_their_order() {
    let mut cluster = Cluster::start(4, Limits::default()).await;
    cluster.wait_until_linked().await;
    let sizes = [0, 1, 1 << 20, 5, 100_000, 16 << 10, 70_000, 1 << 20, 3];
    for size in sizes {
        let frame = Frame::encode(&peer_message(size));
        assert!(cluster.links(3).send(ReplicaId(0), &frame));
    }
    for size in sizes {
        let (from, got) = cluster.next_peer_message(0).await;
        assert_eq!((from, got), (ReplicaId(3), peer_message(size)));
    }
}

/// A replica that dies is noticed, and one that comes back is linked again.
#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_replica_is_linked_again() {
    let mut cluster = Cluster::start(4, Limits::default()).await;
    cluster.wait_until_linked().await;
    for restarted in [0u8, 3, 1] {
        cluster.stop(restarted);
        let others: Vec<u8> = (0..4).filter(|&i| i != restarted).collect();
        for &other in &others {
            let down = |e: &Event| matches!(e, Event::PeerDown(r) if r.0 == restarted);
            cluster.next_event(other, down).await;
        }
        cluster.restart(restarted).await;
        cluster.wait_until_linked().await;
        let frame = Frame::encode(&peer_message(10));
        cluster.links(restarted).broadcast(&frame);
        for &other in &others {
            assert_eq!(cluster.next_peer_message(other).await.0.0, restarted);
        }
    }
}

/// A client is linked to all replicas; both ends of each link have the same key for MACs, and no two links the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_shares_a_key_with_each_replica() {
    let mut cluster = Cluster::start(4, Limits::default()).await;
    let identity = identity_of(&client_key());
    let (client, mut events) = ClientTransport::connect(&cluster.group, &identity);
    let mut keys = vec![None; 4];
    for _ in 0..4 {
        match events.recv().await {
            Some(ClientEvent::Up(id, key)) => keys[usize::from(id.0)] = Some(key),
            other => panic!("{other:?}"),
        }
    }
    for id in 0..4u8 {
        let up = |e: &Event| matches!(e, Event::ClientUp { .. });
        let Event::ClientUp {
            connection,
            client: who,
            mac_key,
        } = cluster.next_event(id, up).await
        else {
            unreachable!()
        };
        assert_eq!(who, client_key().public());
        assert!(keys[usize::from(id)] == Some(mac_key));
        assert!(keys.iter().filter(|k| **k == keys[usize::from(id)]).count() == 1);

        let message = ClientMessage::ReportPlease(7);
        assert!(client.links().send(ReplicaId(id), &Frame::encode(&message)));
        let said = |e: &Event| matches!(e, Event::Client(..));
        let Event::Client(from, got) = cluster.next_event(id, said).await else {
            unreachable!()
        };
        assert_eq!((from, got), (connection, message));

        assert!(cluster.links(id).reply(connection, &reply(7, 1 << 20)));
        match events.recv().await {
            Some(ClientEvent::Message(from, ReplicaMessage::Reply(r))) => {
                assert_eq!((from, r.number), (ReplicaId(id), RequestNumber(7)));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(cluster.links(id).client_connections(), 1);
    }
    drop(client);
    for id in 0..4u8 {
        let down = |e: &Event| matches!(e, Event::ClientDown(_));
        cluster.next_event(id, down).await;
        assert_eq!(cluster.links(id).client_connections(), 0);
    }
}

/// Whoever is not in the group is refused in the handshake, and the core hears nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_gets_nowhere() {
    let cluster = Cluster::start(1, Limits::default()).await;
    let identity = identity_of(&stranger_key());
    let (_client, mut events) = ClientTransport::connect(&cluster.group, &identity);
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert!(events.try_recv().is_none(), "the stranger has no link");
    assert!(cluster.try_event(0).is_none(), "the replica has no client");
}

/// A server that does not have the replica's key is left, though it is a member of the group.
#[tokio::test(flavor = "multi_thread")]
async fn a_false_server_is_left() {
    let mut cluster = Cluster::start(4, Limits::default()).await;
    cluster.stop(1);
    cluster.stop(2);
    // Replica 2's key answers at replica 1's address.
    cluster.impersonate(2, 1).await;
    let identity = identity_of(&client_key());
    let (_client, mut events) = ClientTransport::connect(&cluster.group, &identity);
    let mut up = Vec::new();
    let deadline = tokio::time::sleep(Duration::from_millis(600));
    tokio::pin!(deadline);
    loop {
        tokio::select! {
            event = events.recv() => if let Some(ClientEvent::Up(id, _)) = event { up.push(id.0) },
            () = &mut deadline => break,
        }
    }
    up.sort_unstable();
    assert_eq!(up, [0, 3]);
}

/// Bytes that are no handshake, and silence, cost only their own connection.
#[tokio::test(flavor = "multi_thread")]
async fn nonsense_does_not_disturb_others() {
    let mut cluster = Cluster::start(4, Limits::default()).await;
    let address = cluster.group.replicas()[0].address.clone();
    let mut open = Vec::new();
    for i in 0..40usize {
        let mut tcp = std::net::TcpStream::connect(&address).unwrap();
        let nonsense: Vec<u8> = (0..i * 50).map(|j| (i * 31 + j * 17) as u8).collect();
        let _ = tcp.write_all(&nonsense);
        open.push(tcp);
    }
    cluster.wait_until_linked().await;
    cluster
        .links(3)
        .send(ReplicaId(0), &Frame::encode(&peer_message(10)));
    assert_eq!(cluster.next_peer_message(0).await.0, ReplicaId(3));
}

/// A member who breaks the framing loses its connection and no more: it may come back.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_who_breaks_the_rules_is_cut_off() {
    let mut cluster = Cluster::start(1, Limits::default()).await;
    let identity = identity_of(&client_key());
    let giant = u32::MAX.to_le_bytes().to_vec();
    let empty = vec![0; 4];
    let no_message = [4u32.to_le_bytes().as_slice(), b"\xff\xff\xff\xff"].concat();
    for bytes in [giant, empty, no_message] {
        let mut tls = support::raw_connection(&cluster.group, &identity).await;
        cluster
            .next_event(0, |e| matches!(e, Event::ClientUp { .. }))
            .await;
        support::send_raw(&mut tls, &bytes).await;
        cluster
            .next_event(0, |e| matches!(e, Event::ClientDown(_)))
            .await;
    }
    let (_client, mut events) = ClientTransport::connect(&cluster.group, &identity);
    assert!(matches!(events.recv().await, Some(ClientEvent::Up(..))));
}

/// A client that does not read costs only its own replies, which are counted.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_does_not_hold_up_others() {
    let mut cluster = Cluster::start(1, Limits::default()).await;
    let identity = identity_of(&client_key());
    let _slow = support::raw_connection(&cluster.group, &identity).await;
    let slow = cluster.next_client(0).await;
    let (_client, mut events) = ClientTransport::connect(&cluster.group, &identity);
    let quick = cluster.next_client(0).await;
    assert!(matches!(events.recv().await, Some(ClientEvent::Up(..))));

    let frame = reply(1, 1 << 20);
    let sent = (0..200)
        .filter(|_| cluster.links(0).reply(slow, &frame))
        .count();
    assert!(sent < 200, "the queue is bounded");
    assert_eq!(cluster.links(0).dropped_replies(), 200 - sent as u64);
    for number in 0..50 {
        assert!(cluster.links(0).reply(quick, &reply(number, 1 << 20)));
        match events.recv().await {
            Some(ClientEvent::Message(_, ReplicaMessage::Reply(r))) => {
                assert_eq!(r.number, RequestNumber(number));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A replica that floods waits for its own budget; the others get through.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_blocks_only_its_own_link() {
    let mut cluster = Cluster::start(4, Limits::default()).await;
    cluster.wait_until_linked().await;
    let frame = Frame::encode(&peer_message(1 << 20));
    let queued = (0..60)
        .filter(|_| cluster.links(3).send(ReplicaId(0), &frame))
        .count();
    tokio::time::sleep(Duration::from_millis(300)).await;
    // Nobody has taken anything at replica 0 yet, and still replica 2 is heard.
    cluster
        .links(2)
        .send(ReplicaId(0), &Frame::encode(&peer_message(1)));
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (mut flood, mut waited) = (0, false);
    while !waited {
        match cluster.next_peer_message(0).await.0 {
            ReplicaId(2) => waited = true,
            _ => flood += 1,
        }
    }
    assert!(flood <= 16, "{flood} of {queued} messages were in flight");
    for _ in flood..queued {
        assert_eq!(cluster.next_peer_message(0).await.0, ReplicaId(3));
    }
}

/// One client can't take all connections: its oldest one makes room for its newest.
#[tokio::test(flavor = "multi_thread")]
async fn connections_of_one_client_are_bounded() {
    let limits = Limits {
        connections_per_client: 2,
        ..Limits::default()
    };
    let mut cluster = Cluster::start(1, limits).await;
    let identity = identity_of(&client_key());
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(support::raw_connection(&cluster.group, &identity).await);
    }
    let first = cluster.next_client(0).await;
    let _second = cluster.next_client(0).await;
    held.push(support::raw_connection(&cluster.group, &identity).await);
    let down = |e: &Event| matches!(e, Event::ClientDown(_));
    assert!(matches!(cluster.next_event(0, down).await, Event::ClientDown(id) if id == first));
    eventually(|| cluster.links(0).client_connections() == 2).await;
}

/// Session keys are renewed on demand, without a restart.
#[tokio::test(flavor = "multi_thread")]
async fn links_are_renewed() {
    let mut cluster = Cluster::start(4, Limits::default()).await;
    cluster.wait_until_linked().await;
    cluster.links(0).renew(ReplicaId(2));
    cluster
        .next_event(0, |e| matches!(e, Event::PeerDown(ReplicaId(2))))
        .await;
    cluster
        .next_event(0, |e| matches!(e, Event::PeerUp(ReplicaId(2))))
        .await;
}

/// A port that is taken is told with what to do.
#[tokio::test]
async fn a_taken_port_is_told() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let error = quorate_node::transport::bind(&address).await.unwrap_err();
    assert!(error.to_string().contains("is in use"), "{error}");
    let error = quorate_node::transport::bind("192.0.2.1:7000")
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("not one of this machine"),
        "{error}"
    );
}

/// Many small messages get through without loss where the queue is large enough.
#[tokio::test(flavor = "multi_thread")]
async fn many_small_messages_get_through() {
    let mut cluster = Cluster::start(4, Limits::default()).await;
    cluster.wait_until_linked().await;
    let frame = Frame::encode(&PeerMessage::Fetch(Fetch::Batch(Digest([1; 32]))));
    let count = 50_000;
    assert!((0..count).all(|_| cluster.links(2).send(ReplicaId(1), &frame)));
    for _ in 0..count {
        assert_eq!(cluster.next_peer_message(1).await.0, ReplicaId(2));
    }
}
