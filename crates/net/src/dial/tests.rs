use std::net::TcpListener;

use mio::Poll;
use quorate_wire::KeyPair;

use super::*;
use crate::group::{Files, Purpose};

/// One that dials a name with these addresses, and what the poll of its loop is.
fn dialer(addresses: Vec<SocketAddr>) -> (Dialer, Poll) {
    let keys = [1, 2].map(|seed| KeyPair::from_seed(&[seed; 32]));
    let members = vec![("127.0.0.1:1".into(), keys[0].public())];
    let (files, purpose) = (Files::default(), Purpose::Service);
    let group = Group::new("home", members, Vec::new(), files, purpose).unwrap();
    let poll = Poll::new().unwrap();
    let waker = Waker::new(poll.registry()).unwrap();
    let whom = (&group, ReplicaId(0));
    let identity = Identity::new(&keys[1]);
    let limits = LinkLimits::of_strangers();
    let mut dialer = Dialer::new(whom, &identity, limits, Token(7), waker);
    let (sender, answer) = mpsc::sync_channel(1);
    sender.send(Ok(addresses)).unwrap();
    dialer.state = State::Resolving(answer);
    (dialer, poll)
}

/// Goes on at this time.
fn advance(dialer: &mut Dialer, poll: &Poll, now: Instant) {
    let link = dialer.advance(poll.registry(), now, &mut [0; 4096], &mut None);
    assert!(link.is_none());
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A listener that takes nobody more: who calls there is not answered.
fn silent() -> (TcpListener, SocketAddr, Vec<std::net::TcpStream>) {
    let (listener, address) = listener();
    rustix::net::listen(&listener, 0).unwrap();
    let first = std::net::TcpStream::connect(address).unwrap();
    (listener, address, vec![first])
}

/// An address that does not answer keeps nobody from the next one for longer than its share, and the last one has time for a handshake.
#[test]
fn an_address_that_is_silent_is_not_the_last() {
    let (_silent, silent, _waiting) = silent();
    let (good, there) = listener();
    good.set_nonblocking(true).unwrap();
    let (mut dialer, poll) = dialer(vec![silent, silent, there]);
    let began = dialer.started;
    let due = |dialer: &Dialer| dialer.next_due().unwrap() - began;
    advance(&mut dialer, &poll, began);
    for share in [1, 2] {
        assert_eq!(due(&dialer), HANDSHAKE_TIMEOUT * share / 4);
        let early = began + due(&dialer) - Duration::from_millis(1);
        advance(&mut dialer, &poll, early);
        assert_eq!(due(&dialer), HANDSHAKE_TIMEOUT * share / 4);
        assert!(good.accept().is_err(), "it is not called yet");
        let at = began + due(&dialer);
        advance(&mut dialer, &poll, at);
    }
    assert_eq!(due(&dialer), HANDSHAKE_TIMEOUT);
    good.set_nonblocking(false).unwrap();
    good.accept().unwrap();
}

/// Nor does one that can't be called at all.
#[test]
fn an_address_that_is_none_is_not_the_last() {
    let (good, there) = listener();
    // Refused at once: this kind of socket may not call all machines of a network together.
    let none = "255.255.255.255:9".parse().unwrap();
    let (mut dialer, poll) = dialer(vec![none, none, there]);
    let began = dialer.started;
    advance(&mut dialer, &poll, began);
    assert!(matches!(dialer.state, State::Connecting(_)));
    good.accept().unwrap();
    let (mut dialer, poll) = super::tests::dialer(vec![none]);
    advance(&mut dialer, &poll, began);
    assert!(matches!(dialer.state, State::Waiting(_)));
}
