use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mio::Interest;
use quorate_wire::KeyPair;

use super::*;
use crate::group::{Files, Purpose};
use crate::replica::{Limits, ReplicaLinks};

/// More than a link takes on any machine.
const PATIENCE: Duration = Duration::from_secs(60);
const TURN: Duration = Duration::from_millis(20);
const ME: ReplicaId = ReplicaId(0);

/// The links of a client to a replica of which only links are there, until the flag is set.
fn linked(stop: &Arc<AtomicBool>) -> ClientLinks {
    let [server, client] = [1, 2].map(|seed| Identity::new(&KeyPair::from_seed(&[seed; 32])));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let members = vec![(address, server.public())];
    let clients = vec![("client".into(), client.public())];
    let (files, purpose) = (Files::default(), Purpose::Service);
    let group = Group::new("home", members, clients, files, purpose).unwrap();
    let group = Arc::new(group);
    let mut replica =
        ReplicaLinks::start(group.clone(), ME, &server, listener, Limits::default()).unwrap();
    let stop = stop.clone();
    std::thread::spawn(move || {
        while !stop.load(Ordering::Acquire) {
            replica.poll(Some(TURN)).unwrap();
            while replica.next_event().is_some() {}
            replica.flush();
        }
    });
    ClientLinks::connect(&group, &client).unwrap()
}

/// A link whose handshake is done, before it is a part of the hub.
fn shaken(links: &mut ClientLinks) -> Box<Link> {
    let began = clock::now();
    loop {
        assert!(began.elapsed() < PATIENCE, "no link");
        let slots = &mut links.slots;
        let on_ready = |_, event: &mio::event::Event| slots[0].dialer.on_ready(event);
        links.hub.poll(Some(TURN), on_ready).unwrap();
        let (registry, scratch) = links.hub.parts();
        let dialer = &mut links.slots[0].dialer;
        if let Some(link) = dialer.advance(registry, clock::now(), scratch, &mut None) {
            return link;
        }
    }
}

/// A link that the system takes no part of now is as a call that has failed: the replica is called again, and who owns the links goes on.
#[test]
fn a_link_that_cannot_be_kept_is_made_anew() {
    let stop = Arc::<AtomicBool>::default();
    let mut links = linked(&stop);
    let mut link = shaken(&mut links);
    assert!(links.slots[0].dialer.rests());
    // What is registered once is not again.
    let (registry, _) = links.hub.parts();
    let other = Token(FIRST_DIALER - 1);
    let registered = registry.register(link.stream(), other, Interest::READABLE);
    registered.unwrap();
    links.on_link(ME, link, clock::now());
    assert!(links.slots[0].link.is_none() && links.told.is_empty());

    let began = clock::now();
    let is_up = |event| matches!(event, ClientEvent::Up(ME, _));
    while !links.next_event().is_some_and(is_up) {
        assert!(began.elapsed() < PATIENCE, "it is not called again");
        links.poll(Some(TURN)).unwrap();
    }
    stop.store(true, Ordering::Release);
}
