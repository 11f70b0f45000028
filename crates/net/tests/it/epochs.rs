//! Links under epoch keys: who is let in by which certificate, and that links are made anew under load.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::{
    Cluster, Driven, Raw, certificate, client_key, epoch_key, eventually, identity_key,
    replica_key, stranger_key,
};
use quorate_net::group::BELIEVED_AT_LEAST;
use quorate_net::{ClientEvent, Event, Frame};
use quorate_wire::message::{ClientMessage, Fetch, PeerMessage};
use quorate_wire::{Decode, Digest, EpochCertificate, KeyPair, ReplicaId};

fn numbered(number: u32) -> PeerMessage {
    let mut digest = [0; 32];
    digest[..4].copy_from_slice(&number.to_le_bytes());
    PeerMessage::Fetch(Fetch::Batch(Digest(digest)))
}

fn number_of(message: &PeerMessage) -> u32 {
    match message {
        PeerMessage::Fetch(Fetch::Batch(digest)) => {
            u32::from_le_bytes(digest.0[..4].try_into().unwrap())
        }
        other => panic!("{other:?}"),
    }
}

/// Until a client has a link to each of the replicas.
fn linked(client: &Driven<quorate_net::ClientLinks>, n: usize) {
    let mut up = BTreeSet::new();
    while up.len() < n {
        if let ClientEvent::Up(id, _) = client.next(|e| matches!(e, ClientEvent::Up(..))) {
            up.insert(id);
        }
    }
}

/// Replicas and clients find each other by certificates, also those of a replica that was started again.
#[test]
fn certificates_make_links() {
    let mut cluster = Cluster::start_with_epochs(4);
    cluster.wait_until_linked();
    let client = cluster.client(&client_key());
    linked(&client, 4);
    for restarted in [0, 3] {
        cluster.stop(restarted);
        cluster.restart(restarted);
        cluster.wait_until_linked();
        linked(&client, 1);
    }
    assert_eq!(cluster.epoch(0), 2);
    cluster.broadcast(3, &Frame::encode(&numbered(7)));
    for to in 0..3 {
        let (from, got) = cluster.next_peer_message(to);
        assert_eq!((from, number_of(&got)), (ReplicaId(3), 7));
    }
}

/// A client that the group file lists is let in by its key, and is shown the replica's certificate first.
#[test]
fn clients_are_shown_a_certificate() {
    let cluster = Cluster::start_with_epochs(4);
    cluster.wait_until_linked();
    let called = epoch_key(0, 1).public();
    let (_, first) = Raw::introduce(&cluster.group, &client_key(), called, None).unwrap();
    let shown = EpochCertificate::from_slice(&first[4..]).unwrap();
    assert_eq!(shown, certificate(&cluster.group, 0, 1));
}

/// Nobody is let in with a key that no certificate names: not strangers, not the replica's own old key, not who borrows a certificate or has
/// made one himself, nor a replica that does not wait to be let in.
#[test]
fn who_has_no_certificate_is_a_stranger() {
    let cluster = Cluster::start_with_epochs(4);
    cluster.wait_until_linked();
    let (group, called) = (&cluster.group, epoch_key(0, 1).public());
    let refused = |key: &KeyPair, shown: Option<&EpochCertificate>| {
        assert!(Raw::introduce(group, key, called, shown).is_err());
    };
    let theirs = certificate(group, 2, 1);
    refused(&stranger_key(), Some(&theirs));
    refused(&replica_key(2), Some(&theirs));
    let own = |by: KeyPair, group, replica, key: &KeyPair| {
        EpochCertificate::sign(&by, group, ReplicaId(replica), 9, key.public())
    };
    let key = stranger_key();
    refused(&key, Some(&own(stranger_key(), group.id(), 2, &key)));
    refused(&key, Some(&own(replica_key(2), group.id(), 2, &key)));
    refused(&key, Some(&own(identity_key(2), Digest::ZERO, 2, &key)));
    refused(&key, Some(&own(identity_key(2), group.id(), 9, &key)));
    // A right one, of a replica that has to wait for our call: its own.
    refused(&epoch_key(0, 2), Some(&certificate(group, 0, 2)));
    // And the right one is let in: what was refused was refused for what it was.
    let (key, shown) = (epoch_key(2, 2), certificate(group, 2, 2));
    assert!(Raw::introduce(group, &key, called, Some(&shown)).is_ok());
}

/// A stolen key is worth something until its owner has renewed twice, and nothing from then on.
#[test]
fn a_stolen_key_ends_with_the_second_renewal() {
    let cluster = Cluster::start_with_epochs(4);
    cluster.wait_until_linked();
    let (key, shown) = (epoch_key(2, 1), certificate(&cluster.group, 2, 1));
    let steal = || {
        let called = epoch_key(0, cluster.epoch(0)).public();
        Raw::introduce(&cluster.group, &key, called, Some(&shown)).is_ok()
    };
    let seen = |number: u32| {
        // What comes over the new link says that its certificate was seen.
        cluster.renew(2);
        let counts = |e: &Event| matches!(e, Event::PeerUp(ReplicaId(2)));
        cluster.node(0).next(counts);
        cluster.send(2, 0, &Frame::encode(&numbered(number)));
    };
    while !matches!(cluster.node(0).next(|_| true), Event::PeerUp(ReplicaId(2))) {}
    assert!(steal());
    // The thief's link had taken the place of the true one, which is made again.
    cluster.wait_until_linked();
    seen(1);
    assert!(steal());
    cluster.wait_until_linked();
    while cluster.node(0).events.try_recv().is_ok() {}
    seen(2);
    eventually(|| !steal());
}

/// Who has a replica's stolen key, and stands between that replica and a client, is that replica to the client until its owner has renewed twice: then any other
/// one shows the client a newer certificate, the thief's link ends, and none is made with that key any more.
#[test]
fn a_client_is_shown_what_others_certified() {
    let cluster = Cluster::start_with_epochs(4);
    cluster.wait_until_linked();
    let (thief, client) = cluster.client_of_a_thief(&client_key(), 2);
    linked(&client, 4);
    assert_eq!(thief.with(|links| links.client_connections()), 1);
    let renew_and_tell = || {
        while cluster.node(0).events.try_recv().is_ok() {}
        cluster.renew(2);
        cluster
            .node(0)
            .next(|e| matches!(e, Event::PeerUp(ReplicaId(2))));
        // It tells with each new link what it has seen; others tell by and by.
        cluster.renew(0);
    };
    let is_about_thief = |e: &ClientEvent| {
        matches!(
            e,
            ClientEvent::Up(ReplicaId(2), _) | ClientEvent::Down(ReplicaId(2))
        )
    };
    let waits = Duration::from_millis(500);
    renew_and_tell();
    client.next(|e| matches!(e, ClientEvent::Up(ReplicaId(0), _)));
    std::thread::sleep(waits);
    assert!(!client.events.try_iter().any(|e| is_about_thief(&e)));
    renew_and_tell();
    let end = client.next(is_about_thief);
    assert!(matches!(end, ClientEvent::Down(_)));
    std::thread::sleep(waits);
    assert!(!client.events.try_iter().any(|e| is_about_thief(&e)));
}

/// A client that is connected is shown newer certificates of others as they are seen: a thief's link ends though no other link is made anew.
#[test]
fn a_connected_client_is_shown_newer_certificates() {
    let cluster = Cluster::start_with_epochs(4);
    cluster.wait_until_linked();
    let (_thief, client) = cluster.client_of_a_thief(&client_key(), 2);
    linked(&client, 4);
    for _ in 0..2 {
        while cluster.node(0).events.try_recv().is_ok() {}
        cluster.renew(2);
        let counts = |e: &Event| matches!(e, Event::PeerUp(ReplicaId(2)));
        cluster.node(0).next(counts);
    }
    let end = client.next(|e| matches!(e, ClientEvent::Up(..) | ClientEvent::Down(_)));
    assert!(matches!(end, ClientEvent::Down(ReplicaId(2))), "{end:?}");
}

/// Who is cut off from all sound replicas would take old keys for ever: so a client lets go of a replica that has no newer key for three times as long as the group file
/// says, or for fifteen seconds, and comes back to it when it has one. As long as keys are renewed nothing ends.
#[test]
fn a_client_lets_go_of_keys_that_are_not_renewed() {
    const EVERY: Duration = Duration::from_millis(2_000);
    let cluster = Cluster::start_renewing(4, EVERY);
    cluster.wait_until_linked();
    let client = cluster.client(&client_key());
    linked(&client, 4);
    for _ in 0..5 {
        // Far more often than it has to be.
        std::thread::sleep(EVERY / 2);
        (0..4).for_each(|id| cluster.renew(id));
        let mut up = BTreeSet::new();
        while up.len() < 4 {
            let of_link = |e: &ClientEvent| !matches!(e, ClientEvent::Message(..));
            match client.next(of_link) {
                ClientEvent::Up(id, _) => up.insert(id),
                ended => panic!("{ended:?}"),
            };
        }
    }
    let ended = |e: &ClientEvent| matches!(e, ClientEvent::Down(_));
    assert!(!client.events.try_iter().any(|e| ended(&e)));
    let mut down = BTreeSet::new();
    while down.len() < 4 {
        if let ClientEvent::Down(id) = client.next(ended) {
            down.insert(id);
        }
    }
    std::thread::sleep(EVERY);
    let up = |e: &ClientEvent| matches!(e, ClientEvent::Up(..));
    assert!(!client.events.try_iter().any(|e| up(&e)));
    cluster.renew(1);
    let is_one = |e: &ClientEvent| matches!(e, ClientEvent::Up(ReplicaId(1), _));
    client.next(is_one);
}

/// A client that could not look for longer than it believes a certificate lets go of nobody who has renewed meanwhile: what has come is read first.
#[test]
fn a_client_that_was_held_up_lets_go_of_nobody() {
    let cluster = Cluster::start_renewing(4, Duration::from_secs(1));
    cluster.wait_until_linked();
    let client = cluster.client(&client_key());
    linked(&client, 4);
    client.held.store(true, Ordering::Release);
    std::thread::sleep(BELIEVED_AT_LEAST);
    for id in 0..4 {
        while cluster.node(id).events.try_recv().is_ok() {}
    }
    // Once: with the next renewal the replicas would end the links themselves.
    (0..4).for_each(|id| cluster.renew(id));
    for id in 0..4 {
        // Who has seen the others' newest certificates shows them to the client.
        let mut seen = BTreeSet::new();
        while seen.len() < 3 {
            if let Event::PeerUp(other) = cluster.node(id).next(|e| matches!(e, Event::PeerUp(_))) {
                seen.insert(other);
            }
        }
    }
    std::thread::sleep(Duration::from_secs(3));
    client.held.store(false, Ordering::Release);
    let mut up = BTreeSet::new();
    while up.len() < 4 {
        match client.next(|e| !matches!(e, ClientEvent::Message(..))) {
            ClientEvent::Up(id, _) => up.insert(id),
            ended => panic!("{ended:?}"),
        };
    }
}

/// What a replica certified before its last recovery is refused at once, and the links that rest on it end; its present ones stand.
#[test]
fn a_stolen_key_ends_with_a_recovery() {
    let cluster = Cluster::start_with_epochs(4);
    cluster.wait_until_linked();
    let (key, shown) = (epoch_key(2, 1), certificate(&cluster.group, 2, 1));
    let called = || epoch_key(0, cluster.epoch(0)).public();
    let stolen = Raw::introduce(&cluster.group, &key, called(), Some(&shown));
    assert!(stolen.is_ok());
    cluster.wait_until_linked();
    let voids = |number| {
        let void = move |links: &mut quorate_net::ReplicaLinks| links.void(ReplicaId(2), number);
        cluster.node(0).with(void);
    };
    // Its recovery has the number after that of its present key.
    voids(2);
    cluster.send(2, 0, &Frame::encode(&numbered(1)));
    let (from, got) = cluster.next_peer_message(0);
    assert_eq!((from, number_of(&got)), (ReplicaId(2), 1));
    while cluster.node(0).events.try_recv().is_ok() {}
    // The next one: all that was made with the first key is over.
    voids(3);
    let is_down = |e: &Event| matches!(e, Event::PeerDown(ReplicaId(2)));
    cluster.node(0).next(is_down);
    eventually(|| Raw::introduce(&cluster.group, &key, called(), Some(&shown)).is_err());
}

/// A replica that answers in another's place is not taken for it, though its certificate is right.
#[test]
fn another_replica_is_no_substitute() {
    let mut cluster = Cluster::start_with_epochs(4);
    cluster.stop(0);
    cluster.stop(1);
    cluster.impersonate(1, 0);
    let client = cluster.client(&client_key());
    linked(&client, 2);
    let waited = client.events.recv_timeout(Duration::from_millis(500));
    assert!(waited.is_err(), "{waited:?}");
}

/// Keys are renewed while messages flow: none is lost, links are never down for long, and of the old ones none is left.
#[test]
fn renewals_lose_nothing() {
    const MESSAGES: u32 = 3_000;
    let cluster = Cluster::start_with_epochs(4);
    cluster.wait_until_linked();
    let client = cluster.client(&client_key());
    linked(&client, 4);
    let mut keys = BTreeSet::new();
    for number in 0..MESSAGES {
        let frame = Frame::encode(&numbered(number));
        assert!(cluster.send(3, 0, &frame) && cluster.send(0, 3, &frame));
        let ask = Frame::encode(&ClientMessage::ReportPlease(number.into()));
        let sent = client.with(move |links| links.send(ReplicaId(0), &ask));
        assert!(sent, "the client's link is never away");
        if number % 500 == 250 {
            (0..4).for_each(|id| cluster.renew(id));
            // Each link is made anew by who dials; the former ones end after a second.
            std::thread::sleep(Duration::from_millis(1_500));
        }
    }
    for (to, from) in [(0, 3), (3, 0)] {
        let mut got = BTreeSet::new();
        while got.len() < MESSAGES as usize {
            let (sender, message) = cluster.next_peer_message(to);
            assert_eq!(sender, ReplicaId(from));
            assert!(got.insert(number_of(&message)), "twice");
        }
    }
    let mut ups = 0;
    while let Ok(event) = client.events.try_recv() {
        match event {
            ClientEvent::Up(ReplicaId(0), key) => {
                ups += 1;
                let digest = Digest::ZERO;
                assert!(keys.insert(key.mac(&digest).0), "a MAC key comes again");
            }
            ClientEvent::Down(id) => panic!("the link to {id} is down"),
            _ => {}
        }
    }
    let renewals = MESSAGES.div_ceil(500);
    assert!(ups >= renewals, "{ups} new links in {renewals} renewals");
    let connections = || cluster.node(0).with(|links| links.client_connections());
    eventually(|| connections() == 1);
}
