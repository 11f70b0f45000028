//! Guests: whom the group file does not name, and who come by a credential of the group's owner.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::floods::reply;
use crate::support::{Cluster, Driven, client_key, eventually};
use quorate_credential::{Chain, ObjectId, Rights, Scope, Terms, VolumeId, Window};
use quorate_net::{
    ClientEvent, ClientLinks, ConnectionId, Event, Frame, Group, Limits, MAX_GUESTS,
};
use quorate_wire::message::ClientMessage;
use quorate_wire::{KeyPair, ReplicaId};

/// Longer than a refusal takes on a busy machine, were it to be none.
const WHILE: Duration = Duration::from_millis(700);

fn owner_key() -> KeyPair {
    numbered_key(1)
}

fn numbered_key(number: u64) -> KeyPair {
    let mut seed = [0xb0; 32];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    KeyPair::from_seed(&seed)
}

#[allow(
    clippy::disallowed_methods,
    reason = "credentials are of people's time"
)]
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap().as_secs()
}

fn terms(subject: &KeyPair, until: u64, depth: u8) -> Terms {
    Terms {
        subject: subject.public(),
        scope: Scope {
            object: ObjectId(1),
            subtree: true,
        },
        rights: Rights::READ | Rights::DELEGATE,
        window: Window {
            not_before: 0,
            not_after: until,
        },
        depth,
        serial: 1,
        caveats: Vec::new(),
    }
}

fn credential(group: &Group, by: &KeyPair, to: &KeyPair, until: u64) -> Chain {
    Chain::issue(VolumeId(group.id()), by, terms(to, until, 2)).unwrap()
}

fn connections(cluster: &Cluster, id: u8) -> usize {
    cluster.node(id).with(|links| links.client_connections())
}

fn is_down(event: &Event) -> bool {
    matches!(event, Event::ClientDown(_))
}

/// What a guest says reaches a replica, under its key.
fn asks(cluster: &Cluster, guest: &Driven<ClientLinks>, key: &KeyPair) {
    guest.next(|e| matches!(e, ClientEvent::Up(ReplicaId(0), _)));
    let message = ClientMessage::ReportPlease(7);
    let frame = Frame::encode(&message);
    let up = |e: &Event| matches!(e, Event::ClientUp { client, .. } if *client == key.public());
    let Event::ClientUp { connection, .. } = cluster.node(0).next(up) else {
        unreachable!()
    };
    assert!(guest.with(move |links| links.send(ReplicaId(0), &frame)));
    match cluster.node(0).next(|e| matches!(e, Event::Client(..))) {
        Event::Client(from, got) => assert_eq!((from, got), (connection, message)),
        _ => unreachable!(),
    }
}

/// The holder of a credential comes in, at first hand or by another, and so does the owner without one; with key holders and without.
#[test]
fn guests_come_in() {
    for key_holders in [false, true] {
        let cluster = Cluster::start_owned(1, key_holders, &owner_key());
        let (bob, carol) = (numbered_key(2), numbered_key(3));
        let to_bob = credential(&cluster.group, &owner_key(), &bob, now() + 1000);
        let to_carol = to_bob
            .delegate(&bob, terms(&carol, now() + 900, 0))
            .unwrap();
        for (key, chain, from_owner) in [(&bob, to_bob, true), (&carol, to_carol, false)] {
            let guest = cluster.guest(key, chain);
            let comes = cluster
                .node(0)
                .next(|e| matches!(e, Event::GuestComes { .. }));
            let Event::GuestComes { client, is_owners } = comes else {
                unreachable!()
            };
            assert_eq!((client, is_owners), (key.public(), from_owner));
            asks(&cluster, &guest, key);
        }
        let owner = cluster.client(&owner_key());
        asks(&cluster, &owner, &owner_key());
        let member = cluster.client(&client_key());
        asks(&cluster, &member, &client_key());
    }
}

/// Nobody else does: with a copied credential, one that has ended, another owner's, another group's, or none. A group without an owner has no guests.
#[test]
fn strangers_do_not() {
    let cluster = Cluster::start_owned(1, false, &owner_key());
    let other = Cluster::start(1, support_limits());
    let (bob, thief) = (numbered_key(2), numbered_key(3));
    let until = now() + 1000;
    let good = credential(&cluster.group, &owner_key(), &bob, until);
    let refused = [
        (&thief, good.clone()),
        (
            &bob,
            credential(&cluster.group, &owner_key(), &bob, now() - 60),
        ),
        (&bob, credential(&cluster.group, &thief, &bob, until)),
        (&bob, credential(&other.group, &owner_key(), &bob, until)),
    ];
    let mut callers: Vec<Driven<ClientLinks>> = Vec::new();
    for (key, chain) in refused {
        callers.push(cluster.guest(key, chain));
    }
    callers.push(cluster.client(&thief));
    callers.push(other.guest(&bob, credential(&other.group, &owner_key(), &bob, until)));
    std::thread::sleep(WHILE);
    assert_eq!(connections(&cluster, 0), 0);
    assert_eq!(connections(&other, 0), 0);
    let guest = cluster.guest(&bob, good);
    asks(&cluster, &guest, &bob);
}

fn support_limits() -> quorate_net::Limits {
    quorate_net::Limits::default()
}

/// Queues so many answers of a MiB in one turn, so that none is sent meanwhile; how many found room.
fn answer(cluster: &Cluster, to: ConnectionId, count: usize) -> usize {
    let frame = reply(1 << 20);
    let node = cluster.node(0);
    node.with(move |links| (0..count).filter(|_| links.reply(to, &frame)).count())
}

/// A guest may have as many answers on their way as any client. One that is dropped is asked for again, in agreement, and the reads that wait behind
/// it are forgotten: a guest that reads a file in order would pay for that all the time.
#[test]
fn a_guest_has_as_much_room_for_answers_as_others() {
    let cluster = Cluster::start_owned(1, false, &owner_key());
    let bob = numbered_key(2);
    let chain = credential(&cluster.group, &owner_key(), &bob, now() + 1000);
    let _guest = cluster.guest(&bob, chain);
    assert_eq!(answer(&cluster, cluster.next_client(0), 14), 14);
    let _client = cluster.client(&client_key());
    assert_eq!(answer(&cluster, cluster.next_client(0), 14), 14);
}

/// Guests have half of what all clients may have waiting: however little each of them has, with more it is a link of theirs that ends.
#[test]
fn guests_leave_half_of_the_room_to_others() {
    let limits = Limits {
        client_queue_bytes: 20 << 20,
        clients_queue_bytes: 24 << 20,
        ..Limits::default()
    };
    let cluster = Cluster::start_owned_within(1, limits, &owner_key());
    let bob = numbered_key(2);
    let chain = credential(&cluster.group, &owner_key(), &bob, now() + 1000);
    let _guests = [(); 2].map(|()| cluster.guest(&bob, chain.clone()));
    let guests = [(); 2].map(|()| cluster.next_client(0));
    let _client = cluster.client(&client_key());
    let client = cluster.next_client(0);
    let frame = reply(1 << 20);
    cluster.node(0).with(move |links| {
        for guest in guests {
            assert!((0..7).all(|_| links.reply(guest, &frame)));
        }
        assert!((0..11).all(|_| links.reply(client, &frame)));
    });
    let down = cluster.node(0).next(is_down);
    assert!(matches!(down, Event::ClientDown(id) if guests.contains(&id)));
    assert_eq!(answer(&cluster, client, 1), 1, "it is still there");
}

/// A link ends with the credential that it was made by, as clocks may be off.
#[test]
fn a_guest_goes_when_its_time_is_over() {
    let cluster = Cluster::start_owned(1, false, &owner_key());
    let bob = numbered_key(2);
    // It has ended already, within the bound.
    let chain = credential(&cluster.group, &owner_key(), &bob, now() - 7);
    let guest = cluster.guest(&bob, chain);
    asks(&cluster, &guest, &bob);
    cluster.node(0).next(is_down);
    eventually(|| connections(&cluster, 0) == 0);
}

/// Who passes a credential on to many keys has few of them in at once, and others find room all the same; clients do so however many guests there are.
#[test]
fn one_host_does_not_fill_the_house() {
    let cluster = Cluster::start_owned(1, false, &owner_key());
    let (host, other) = (numbered_key(2), numbered_key(3));
    let of_host = credential(&cluster.group, &owner_key(), &host, now() + 1000);
    let guests: Vec<Driven<ClientLinks>> = (0..40)
        .map(|at| {
            let key = numbered_key(100 + at);
            let chain = of_host.delegate(&host, terms(&key, now() + 900, 0));
            cluster.guest(&key, chain.unwrap())
        })
        .collect();
    eventually(|| connections(&cluster, 0) == 32);
    std::thread::sleep(WHILE);
    assert_eq!(connections(&cluster, 0), 32);
    assert!(guests.len() < MAX_GUESTS);
    let chain = credential(&cluster.group, &owner_key(), &other, now() + 1000);
    let guest = cluster.guest(&other, chain);
    asks(&cluster, &guest, &other);
    drop(guests);
    // Their places are taken by those who come when they have gone.
    eventually(|| connections(&cluster, 0) == 1);
    let key = numbered_key(200);
    let chain = of_host.delegate(&host, terms(&key, now() + 900, 0));
    let late = cluster.guest(&key, chain.unwrap());
    asks(&cluster, &late, &key);
}
