//! Links that are sealed beside the thread that owns them.

use std::time::Duration;

use crate::support::{Cluster, Raw, SEALINGS, client_key};
use bytes::Bytes;
use quorate_net::{Event, Frame, Limits, Sealing};
use quorate_wire::message::{
    AuthRequest, ClientMessage, Fetch, PeerMessage, ReplicaMessage, Reply, ReplyBody, Request,
};
use quorate_wire::{Digest, Encode, ReplicaId, RequestNumber, SessionId, View};

/// Messages of many lengths, each of which says which one it is.
fn numbered(from: u8, number: u64) -> PeerMessage {
    let sizes = [1, 200, 1 << 20, 70_000, 5, 300_000];
    let size = sizes[(number as usize + usize::from(from)) % sizes.len()];
    let op = Bytes::from(vec![from ^ number as u8; size]);
    let (session, number) = (SessionId(u64::from(from)), RequestNumber(number));
    let request = Request::new(client_key().public(), session, number, op);
    PeerMessage::Body(AuthRequest::bare(request))
}

fn answer(number: u64, bytes: usize) -> ReplicaMessage {
    ReplicaMessage::Reply(Reply {
        session: SessionId(1),
        number: RequestNumber(number),
        view: View(0),
        tentative: false,
        body: ReplyBody::Full(vec![number as u8; bytes].into()),
    })
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u32).to_le_bytes(), message].concat()
}

/// All send to all at the same time, and hear each other meanwhile: everything comes once, and in order.
#[test]
fn both_directions_keep_their_order() {
    let cluster = Cluster::start_sealing(4, Limits::default(), SEALINGS[1]);
    cluster.wait_until_linked();
    let count = 60;
    for number in 0..count {
        for from in 0..4 {
            cluster.broadcast(from, &Frame::encode(&numbered(from, number)));
        }
    }
    for to in 0..4 {
        let mut next = [0; 4];
        for _ in 0..3 * count {
            let (ReplicaId(from), message) = cluster.next_peer_message(to);
            let number = &mut next[usize::from(from)];
            assert!(message == numbered(from, *number), "{number} of {from}");
            *number += 1;
        }
    }
    let reports = cluster.node(0).with(|links| links.reports());
    assert!(reports.iter().all(|l| l.up && l.dropped == 0));
}

/// Whoever reads now and then has all that it was sent, and is asked for more when it has read it.
#[test]
fn who_reads_slowly_has_all() {
    let cluster = Cluster::start_sealing(1, Limits::default(), SEALINGS[1]);
    let mut slow = Raw::connect(&cluster.group, &client_key());
    let id = cluster.next_client(0);
    let lengths = [3_000, 1 << 20, 10, 100_000];
    let answers = (0..32_u64).map(|number| answer(number, lengths[number as usize % 4]));
    let answers: Vec<ReplicaMessage> = answers.collect();
    for answer in &answers {
        assert!(cluster.reply(0, id, &Frame::encode(answer)));
    }
    for (number, answer) in answers.iter().enumerate() {
        if number % 4 == 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
        let expected = framed(&answer.to_bytes());
        assert!(slow.take(expected.len()) == expected, "{number}");
    }
    slow.send(&framed(&ClientMessage::ReportPlease(7).to_bytes()));
    let heard = cluster.node(0).next(|e| matches!(e, Event::Client(..)));
    assert!(matches!(heard, Event::Client(from, ClientMessage::ReportPlease(7)) if from == id));
}

/// Replicas that are started again and again while long messages are on their way are linked again, and what is sent then comes whole.
#[test]
fn who_ends_in_the_midst_is_linked_again() {
    let mut cluster = Cluster::start_sealing(4, Limits::default(), SEALINGS[1]);
    cluster.wait_until_linked();
    for round in 0..6 {
        let restarted = [0, 3][round % 2];
        for number in 0..20 {
            for from in 1..3 {
                cluster.broadcast(from, &Frame::encode(&numbered(from, number)));
            }
        }
        cluster.stop(restarted);
        cluster.restart(restarted);
        cluster.wait_until_linked();
        let last = PeerMessage::Fetch(Fetch::Batch(Digest([round as u8; 32])));
        cluster.broadcast(restarted, &Frame::encode(&last));
        for other in 1..3 {
            cluster.broadcast(other, &Frame::encode(&last));
        }
        for to in [1, 2, restarted] {
            let mut left = 2;
            while left > 0 {
                match cluster.next_peer_message(to) {
                    (_, message) if message == last => left -= 1,
                    (ReplicaId(from), PeerMessage::Body(body)) => {
                        let number = body.request.number().0;
                        assert!(PeerMessage::Body(body) == numbered(from, number));
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

/// What the owner of links spends on frames of some lengths to one link, and to sixteen at once, and what the process does, sealed by itself and by another
/// thread: `cargo test --release -p quorate-net -- --ignored --nocapture cost`.
#[test]
#[ignore = "a measurement"]
fn cost() {
    println!("links KiB-each  owner-us owner-us  process-us process-us (without, with a sealer)");
    for (links, kib) in [
        // What is spent on looking alone.
        (0, 4),
        (1, 4),
        (1, 16),
        (1, 32),
        (1, 64),
        (1, 128),
        (1, 256),
        (1, 1023),
        (16, 4),
        (16, 16),
        (64, 4),
    ] {
        // In turns; the median of each.
        let mut found = [0, 1].map(|_| Vec::new());
        for _ in 0..7 {
            for threads in [0, 1] {
                let sealing = Sealing { threads, from: 1 };
                found[threads].push(spent(sealing, links, kib << 10));
            }
        }
        let median = |of: &mut Vec<(f64, f64)>| {
            let mut owner: Vec<f64> = of.iter().map(|it| it.0).collect();
            let mut process: Vec<f64> = of.iter().map(|it| it.1).collect();
            owner.sort_by(f64::total_cmp);
            process.sort_by(f64::total_cmp);
            (owner[owner.len() / 2], process[process.len() / 2])
        };
        let [without, with] = found.each_mut().map(median);
        println!(
            "{links:5} {kib:8}  {:8.1} {:8.1}  {:10.1} {:10.1}",
            without.0, with.0, without.1, with.1
        );
    }
}

/// Processor time of the owner, and of the process, in microseconds for each round.
fn spent(sealing: Sealing, links: usize, bytes: usize) -> (f64, f64) {
    use rustix::time::{ClockId, clock_gettime};
    let micros = |id| {
        let time = clock_gettime(id);
        time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
    };
    let limits = Limits {
        connections_per_client: links.max(1),
        ..Limits::default()
    };
    let cluster = Cluster::start_sealing(1, limits, sealing);
    let mut connections = Vec::new();
    let frame = Frame::encode(&answer(1, bytes));
    let rounds = 60;
    let readers: Vec<_> = (0..links)
        .map(|_| {
            let mut raw = Raw::connect(&cluster.group, &client_key());
            connections.push(cluster.next_client(0));
            let bytes = frame.wire_bytes();
            std::thread::spawn(move || {
                for _ in 0..rounds {
                    raw.take(bytes);
                }
            })
        })
        .collect();
    let (owner, process) = cluster.node(0).with(move |node| {
        let began = micros(ClockId::ProcessCPUTime);
        let mut owner = 0.0;
        for _ in 0..rounds {
            let before = micros(ClockId::ThreadCPUTime);
            for connection in &connections {
                assert!(node.reply(*connection, &frame));
            }
            node.flush();
            owner += micros(ClockId::ThreadCPUTime) - before;
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(2));
                let before = micros(ClockId::ThreadCPUTime);
                node.poll(Some(Duration::ZERO)).unwrap();
                while node.next_event().is_some() {}
                node.flush();
                owner += micros(ClockId::ThreadCPUTime) - before;
            }
        }
        (owner, micros(ClockId::ProcessCPUTime) - began)
    });
    for reader in readers {
        reader.join().unwrap();
    }
    let rounds = f64::from(rounds);
    (owner / rounds, process / rounds)
}
