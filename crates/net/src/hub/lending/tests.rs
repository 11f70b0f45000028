use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use quorate_wire::KeyPair;
use rustix::net::sockopt;
use rustls::{ClientConnection, StreamOwned};

use super::super::{HubLimits, Item, SourceId};
use super::*;
use crate::clock;
use crate::frame::{Frame, LinkEnd};
use crate::group::{Files, Group, Purpose};
use crate::link::{Link, LinkLimits, Opening};
use crate::outbox::OutboxLimits;
use crate::tls::{self, Identity};

/// More than anything here takes on any machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// All that waits is lent.
const ALL: Sealing = Sealing {
    threads: 1,
    from: 1,
};
const MIB: usize = 1 << 20;

type Peer = StreamOwned<ClientConnection, TcpStream>;

fn hub(waiting_bytes: usize) -> Hub<()> {
    let partial_bytes = usize::MAX;
    Hub::new(HubLimits {
        waiting_bytes,
        partial_bytes,
    })
    .unwrap()
}

/// A link in a hub, and its other end. Sockets take little, so that it can be full.
fn linked(hub: &mut Hub<()>, lane: Lane) -> (usize, SourceId, Peer) {
    let (server, client) = (
        KeyPair::from_seed(&[1; 32]),
        Identity::new(&KeyPair::from_seed(&[2; 32])),
    );
    let members = vec![("127.0.0.1:1".into(), server.public())];
    let clients = vec![("client".into(), client.public())];
    let (files, purpose) = (Files::default(), Purpose::Service);
    let group = Group::new("home", members, clients, files, purpose)
        .unwrap()
        .into();

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    sockopt::set_socket_recv_buffer_size(&listener, 32 << 10).unwrap();
    sockopt::set_socket_send_buffer_size(&listener, 32 << 10).unwrap();
    let mut dialed = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    sockopt::set_socket_recv_buffer_size(&dialed, 32 << 10).unwrap();
    dialed.set_read_timeout(Some(PATIENCE)).unwrap();
    let config = client.client_config(server.public());
    let mut peer = ClientConnection::new(config, tls::server_name()).unwrap();
    let shaking = std::thread::spawn(move || {
        while peer.is_handshaking() {
            peer.complete_io(&mut dialed).unwrap();
        }
        StreamOwned::new(peer, dialed)
    });

    let (taken, _) = listener.accept().unwrap();
    taken.set_nonblocking(true).unwrap();
    let limits = LinkLimits {
        max_frame_bytes: 4 * MIB,
        outbox: OutboxLimits {
            bytes: 64 * MIB,
            frames: 4096,
        },
    };
    let opening = Opening {
        says: None,
        awaits: None,
    };
    let config = Identity::new(&server).server_config(&group);
    let taken = mio::net::TcpStream::from_std(taken);
    let mut link = Link::accepted(taken, config, limits, opening).unwrap();
    let mut scratch = vec![0; 4096];
    while !link.shake(&mut scratch).unwrap() {
        link.readable = true;
        std::thread::sleep(Duration::from_millis(1));
    }
    let source = hub.source(lane);
    let token = hub.insert(Box::new(link), (), source).unwrap();
    // What the poll tells at first.
    hub.poll(Some(PATIENCE), |_, _| {}).unwrap();
    assert!(hub.next().is_none());
    (token, source, shaking.join().unwrap())
}

/// Of so many bytes in all.
fn frame(bytes: usize, with: u8) -> Frame {
    let frame = Frame::encode(&vec![with; bytes - 8]);
    assert_eq!(frame.wire_bytes(), bytes);
    frame
}

fn bytes_of(frames: &[Frame]) -> Vec<u8> {
    let segments = frames.iter().flat_map(Frame::segments);
    segments.flat_map(|s| s.to_vec()).collect()
}

fn lend_one(hub: &mut Hub<()>) -> Errand {
    let mut errands = hub.lend(ALL);
    assert_eq!(errands.len(), 1, "one link has something to send");
    errands.remove(0)
}

/// Reads so many bytes, while the hub does what it does.
fn take(hub: &mut Hub<()>, mut peer: Peer, bytes: usize) -> (Vec<u8>, Peer) {
    let (sender, taken) = mpsc::channel();
    let reading = std::thread::spawn(move || {
        let mut got = vec![0; bytes];
        let read = peer.read_exact(&mut got);
        let _ = sender.send(());
        read.map(|()| (got, peer))
    });
    while matches!(taken.try_recv(), Err(mpsc::TryRecvError::Empty)) {
        hub.flush();
        hub.poll(Some(Duration::from_millis(10)), |_, _| {})
            .unwrap();
    }
    reading.join().unwrap().expect("it comes in time")
}

/// Goes on with polls until something is so.
fn poll_until(hub: &mut Hub<()>, mut is_so: impl FnMut(&Hub<()>) -> bool) {
    let until = clock::now() + PATIENCE;
    while !is_so(hub) {
        assert!(clock::now() < until, "it is so in time");
        hub.poll(Some(Duration::from_millis(10)), |_, _| {})
            .unwrap();
    }
}

/// Reads what is there, or comes soon.
fn read_some(peer: &mut Peer, got: &mut Vec<u8>) {
    let soon = Some(Duration::from_millis(10));
    peer.sock.set_read_timeout(soon).unwrap();
    let mut piece = vec![0; 64 << 10];
    while let Ok(read @ 1..) = peer.read(&mut piece) {
        got.extend(&piece[..read]);
    }
    peer.sock.set_read_timeout(Some(PATIENCE)).unwrap();
}

fn is_idle(hub: &Hub<()>) -> bool {
    let queues = hub.ready.iter().chain(&hub.again);
    queues.map(|queue| queue.len()).sum::<usize>() == 0 && hub.dirty.is_empty()
}

/// What was lent comes first, what is left of it next, and then what was queued meanwhile, whether that is lent as well or not.
#[test]
fn frames_keep_their_order() {
    let mut hub = hub(usize::MAX);
    let (token, _, peer) = linked(&mut hub, Lane::First);
    let sizes = [8, 3 * MIB, 100, 70_000, MIB, 9];
    let frames = (0..48).map(|n| frame(sizes[n % sizes.len()], n as u8));
    let frames: Vec<Frame> = frames.collect();
    let expected = bytes_of(&frames);
    let reading = std::thread::spawn(move || {
        let (mut peer, mut got) = (peer, vec![0; expected.len()]);
        peer.read_exact(&mut got).expect("it comes in time");
        assert!(got == expected, "other bytes, or in another order");
    });
    let (mut rounds, mut lent, mut rest) = (0, 0, frames.iter());
    while !reading.is_finished() {
        rounds += 1;
        let errand = match rounds % 2 {
            0 => hub.lend(ALL).pop(),
            _ => {
                hub.flush();
                None
            }
        };
        for frame in rest.by_ref().take(3) {
            assert!(hub.push(token, frame));
        }
        if let Some(mut errand) = errand {
            lent += 1;
            hub.flush();
            errand.lent.flush();
            hub.on_errand(errand);
        }
        hub.poll(Some(Duration::from_millis(1)), |_, _| {}).unwrap();
    }
    reading.join().unwrap();
    assert!(lent > 3, "lent {lent} times");
    let link = &hub.links[&token].link;
    assert_eq!((link.waiting_bytes(), link.idle_bytes()), (0, 0));
}

/// What comes while the channel is lent is read when it is back; until then it does not keep the owner from waiting.
#[test]
fn what_comes_meanwhile_is_read() {
    let mut hub = hub(usize::MAX);
    let (token, _, mut peer) = linked(&mut hub, Lane::Second);
    assert!(hub.push(token, &frame(10, 1)));
    let mut errand = lend_one(&mut hub);
    let said = bytes_of(&[frame(20, 2)]);
    peer.write_all(&said).unwrap();
    peer.flush().unwrap();
    poll_until(&mut hub, |hub| hub.links[&token].link.readable);
    assert!(hub.next().is_none(), "it is lent");
    assert!(is_idle(&hub), "the hub would not wait");
    errand.lent.flush();
    hub.on_errand(errand);
    match hub.next() {
        Some((from, (), Item::Frame(frame))) => assert!(from == token && frame == said[4..]),
        other => panic!("{other:?}"),
    }
    assert!(hub.next().is_none() && is_idle(&hub));
    take(&mut hub, peer, 10);
}

/// Whoever is sent much all the time is heard all the same: what came while the channel was lent is read before it is lent again.
#[test]
fn what_came_is_read_before_it_is_lent_again() {
    let mut hub = hub(usize::MAX);
    let (token, _, mut peer) = linked(&mut hub, Lane::Second);
    assert!(hub.push(token, &frame(10, 1)));
    let errand = lend_one(&mut hub);
    peer.write_all(&bytes_of(&[frame(20, 2)])).unwrap();
    peer.flush().unwrap();
    poll_until(&mut hub, |hub| hub.links[&token].link.readable);
    hub.on_errand(errand);
    assert!(hub.push(token, &frame(30, 3)));
    assert!(hub.lend(ALL).is_empty(), "it is to be read first");
    assert!(matches!(hub.next(), Some((_, (), Item::Frame(_)))));
    assert!(hub.next().is_none());
    let errand = lend_one(&mut hub);
    hub.on_errand(errand);
    take(&mut hub, peer, 40);
}

/// A source that was put aside while its channel was lent is not read when that is back, but when the source is heard again.
#[test]
fn who_was_put_aside_meanwhile_is_not_read() {
    let mut hub = hub(usize::MAX);
    let (token, source, mut peer) = linked(&mut hub, Lane::Second);
    assert!(hub.push(token, &frame(10, 1)));
    let errand = lend_one(&mut hub);
    peer.write_all(&bytes_of(&[frame(20, 2)])).unwrap();
    peer.flush().unwrap();
    poll_until(&mut hub, |hub| hub.links[&token].link.readable);
    hub.put_aside(source);
    hub.on_errand(errand);
    assert!(hub.next().is_none());
    hub.take_back(source);
    assert!(matches!(hub.next(), Some((_, (), Item::Frame(_)))));
}

/// A socket that is full when the channel comes back is written to when it takes more, also where the poll has told of that before.
#[test]
fn who_does_not_read_goes_on_when_it_does() {
    for told_meanwhile in [false, true] {
        let mut hub = hub(usize::MAX);
        let (token, _, mut peer) = linked(&mut hub, Lane::Second);
        let frames = [frame(4 * MIB, 3)];
        assert!(hub.push(token, &frames[0]));
        let mut errand = lend_one(&mut hub);
        while !errand.lent.channel.blocked {
            errand.lent.flush();
        }
        let mut got = Vec::new();
        if told_meanwhile {
            poll_until(&mut hub, |hub| {
                read_some(&mut peer, &mut got);
                hub.links[&token].link.became_writable
            });
        }
        hub.on_errand(errand);
        let takes_more = hub.links[&token].link.wants_flush();
        assert_eq!(takes_more, told_meanwhile);
        assert_eq!(is_idle(&hub), !takes_more, "whether the hub would wait");
        let expected = bytes_of(&frames);
        let left = expected.len() - got.len();
        got.extend(take(&mut hub, peer, left).0);
        assert!(got == expected);
    }
}

/// A link that is closed while its channel is lent has its end at once, and its socket is closed when the channel is back. Until then what it
/// was to send counts.
#[test]
fn who_is_closed_meanwhile_ends() {
    for at_once in [false, true] {
        let mut hub = hub(usize::MAX);
        let (token, _, mut peer) = linked(&mut hub, Lane::Second);
        assert!(hub.push(token, &frame(1000, 1)));
        let mut errand = lend_one(&mut hub);
        assert!(hub.push(token, &frame(500, 2)));
        assert_eq!(hub.waiting_bytes, 1500);
        if at_once {
            hub.remove(token);
        } else {
            hub.close(token);
            let next = hub.next();
            assert!(matches!(
                next,
                Some((_, (), Item::End(LinkEnd::ClosedHere)))
            ));
        }
        assert_eq!((hub.len(), hub.waiting_bytes), (0, 1000));
        assert!(!hub.push(token, &frame(10, 3)));
        errand.lent.flush();
        hub.on_errand(errand);
        assert_eq!(hub.waiting_bytes, 0);
        let mut got = Vec::new();
        let end = peer.read_to_end(&mut got);
        assert_eq!(end.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert!(got == bytes_of(&[frame(1000, 1)]));
    }
}

/// That the connection is over may be found by whoever seals; it is told like all ends, and what waits is let go of.
#[test]
fn an_end_that_is_found_elsewhere_is_told() {
    let mut hub = hub(usize::MAX);
    let (token, source, _peer) = linked(&mut hub, Lane::Second);
    assert!(hub.push(token, &frame(1000, 1)));
    let mut errand = lend_one(&mut hub);
    assert!(hub.push(token, &frame(500, 2)));
    hub.put_aside(source);
    errand.lent.end = Some(LinkEnd::Io(ErrorKind::BrokenPipe.into()));
    hub.on_errand(errand);
    assert_eq!(hub.waiting_bytes, 0);
    let next = hub.next();
    assert!(matches!(next, Some((_, (), Item::End(LinkEnd::Io(_))))));
    assert_eq!(hub.len(), 0);
}

/// What is lent counts against what all links may have waiting. When that is reached, whoever has most is ended that can be let go of.
#[test]
fn what_is_lent_counts() {
    let mut hub = hub(3 * MIB);
    let (first, _, _first_peer) = linked(&mut hub, Lane::Second);
    let (second, _, _second_peer) = linked(&mut hub, Lane::Second);
    for _ in 0..2 {
        assert!(hub.push(first, &frame(MIB, 1)));
    }
    let errand = lend_one(&mut hub);
    assert_eq!(errand.lent.bytes, MIB, "what a flush seals");
    assert_eq!(hub.links[&first].link.idle_bytes(), MIB);
    assert!(hub.push(second, &frame(MIB / 2, 2)));
    assert!(hub.next().is_none(), "all is within the bound");
    hub.push(second, &frame(MIB / 2 + 1, 3));
    let next = hub.next();
    assert!(matches!(next, Some((token, (), Item::End(LinkEnd::TooMuch))) if token == second));
    assert_eq!(hub.waiting_bytes, 2 * MIB);
    for _ in 0..2 {
        hub.push(first, &frame(MIB, 4));
    }
    let next = hub.next();
    assert!(matches!(next, Some((token, (), Item::End(LinkEnd::TooMuch))) if token == first));
    assert_eq!(hub.waiting_bytes, MIB, "it is still lent");
    hub.on_errand(errand);
    assert_eq!(hub.waiting_bytes, 0);
}

/// Little is not handed over by itself, and is where much is to be sent on all links together.
#[test]
fn what_is_handed_over() {
    let sealing = Sealing {
        threads: 1,
        from: 64 << 10,
    };
    for (kib, expected) in [
        ([63, 1, 1, 1], [false; 4]),
        ([64, 1, 1, 1], [true, false, false, false]),
        ([63, 63, 63, 3], [false; 4]),
        ([100, 100, 53, 3], [true, true, true, false]),
    ] {
        let mut hub = hub(usize::MAX);
        let links = kib.map(|kib| {
            let (token, _, peer) = linked(&mut hub, Lane::Second);
            (token, kib, peer)
        });
        for (token, kib, _) in &links {
            assert!(hub.push(*token, &frame(kib << 10, 1)));
        }
        let errands = hub.lend(sealing);
        let is_lent = |token| errands.iter().any(|errand| errand.token == token);
        assert_eq!(links.map(|(token, ..)| is_lent(token)), expected);
        // What stays is for this thread.
        let dirty = expected.iter().filter(|lent| !**lent).count();
        assert_eq!(hub.dirty.len(), dirty);
    }
}

/// Threads do it, and the hub is woken when something is done.
#[test]
fn threads_seal() {
    let mut hub = hub(usize::MAX);
    hub.spawn_sealers(ALL, |panicked| panic!("{panicked}"))
        .unwrap();
    let links = [Lane::Second, Lane::First].map(|lane| linked(&mut hub, lane));
    for (token, ..) in &links {
        for n in 0..4 {
            assert!(hub.push(*token, &frame(MIB, n)));
        }
    }
    let expected = bytes_of(&[0, 1, 2, 3].map(|n| frame(MIB, n)));
    for (_, _, peer) in links {
        let (got, _) = take(&mut hub, peer, expected.len());
        assert!(got == expected);
    }
    poll_until(&mut hub, |hub| {
        let mut links = hub.links.values();
        links.all(|entry| entry.link.waiting_bytes() == 0)
    });
    assert_eq!(hub.waiting_bytes, 0);
}

/// What goes to replicas goes first.
#[test]
fn replicas_go_first() {
    let mut hub = hub(usize::MAX);
    let links = [Lane::Second, Lane::Second, Lane::First].map(|lane| linked(&mut hub, lane));
    let (opens, gate) = mpsc::channel::<()>();
    let gate = std::sync::Arc::new(std::sync::Mutex::new(gate));
    let tell = move || {
        // Until it is opened.
        let _ = gate.lock().unwrap().recv();
    };
    let sealers = Sealers::spawn(ALL, tell, |panicked| panic!("{panicked}")).unwrap();
    let mut done: Vec<usize> = Vec::new();
    for (token, ..) in &links {
        assert!(hub.push(*token, &frame(1000, 1)));
    }
    let mut errands = hub.lend(ALL);
    let others = errands.split_off(1);
    sealers.send(errands);
    while done.is_empty() {
        done.extend(sealers.take_done().iter().map(|errand| errand.token));
    }
    sealers.send(others);
    drop(opens);
    while done.len() < 3 {
        done.extend(sealers.take_done().iter().map(|errand| errand.token));
    }
    let tokens = links.map(|(token, ..)| token);
    assert_eq!(done, [tokens[0], tokens[2], tokens[1]]);
}

/// What was handed over is written when the threads end.
#[test]
fn last_words_are_written() {
    let mut hub = hub(usize::MAX);
    let (token, _, mut peer) = linked(&mut hub, Lane::First);
    assert!(hub.push(token, &frame(1000, 1)));
    let sealers = Sealers::spawn(ALL, || (), |panicked| panic!("{panicked}")).unwrap();
    sealers.send(hub.lend(ALL));
    drop(sealers);
    let mut got = vec![0; 1000];
    peer.read_exact(&mut got).unwrap();
    assert!(got == bytes_of(&[frame(1000, 1)]));
}

/// A panic of one of the threads is told by its name: what it was given never comes back.
#[test]
fn a_panic_is_told() {
    let mut hub = hub(usize::MAX);
    let (token, _, _peer) = linked(&mut hub, Lane::Second);
    assert!(hub.push(token, &frame(1000, 1)));
    let (dying, died) = mpsc::channel();
    let tell = || panic!("as asked");
    let died_too = move |panicked| dying.send(panicked).unwrap();
    let sealers = Sealers::spawn(ALL, tell, died_too).unwrap();
    sealers.send(hub.lend(ALL));
    let panicked: Panicked = died.recv().expect("it is told");
    let told = (&*panicked.thread, &*panicked.words);
    assert_eq!(told, ("sealer 0", "as asked"));
}
