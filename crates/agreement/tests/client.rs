//! How a client deals with links that come one by one and with a replica that owes it results.

use bytes::Bytes;
use quorate_agreement::Millis;
use quorate_agreement::client::{Client, ClientOutput};
use quorate_wire::message::{AuthRequest, ClientMessage, Outcome, Reply, ReplyBody};
use quorate_wire::{Encode, KeyPair, MacKey, Quorum, ReplicaId, SessionId, View};

const NONCE: u64 = 7;

fn link_key(replica: u8) -> MacKey {
    MacKey([replica + 1; 32])
}

/// A client whose first link stands at 0.
fn client() -> Client {
    let me = KeyPair::from_seed(&[50; 32]).public();
    Client::new(Quorum::new(4).unwrap(), me, NONCE, 0)
}

fn link(client: &mut Client, replica: u8) {
    client.on_link(ReplicaId(replica), Some(link_key(replica)));
}

/// The requests that have gone out since the last look, with their receivers.
fn requests(client: &mut Client) -> Vec<(ReplicaId, AuthRequest)> {
    let sent = client.drain().filter_map(|o| match o {
        ClientOutput::Send(to, ClientMessage::Request(m)) => Some((to, m)),
        _ => None,
    });
    sent.collect()
}

fn right_macs(m: &AuthRequest) -> usize {
    let digest = m.request.digest();
    let is_right = |r: &u8| m.auth.check(ReplicaId(*r), &link_key(*r), &digest).is_ok();
    (0..4).filter(is_right).count()
}

/// A replica answers a request: in full, or with the digest of the same.
fn answer(
    client: &mut Client,
    from: ReplicaId,
    to: &AuthRequest,
    result: &[u8],
    full: bool,
    now: Millis,
) {
    let done = Outcome::Done(Bytes::copy_from_slice(result));
    let body = ReplyBody::Full(done.to_bytes().into());
    let body = match full {
        true => body,
        false => ReplyBody::Digest(body.digest()),
    };
    let reply = Reply {
        session: to.request.session(),
        number: to.request.number(),
        view: View(0),
        body,
    };
    client.on_reply(from, reply, now);
}

/// The session is asked for only when 2f+1 replicas can check the request themselves; a replica without a MAC would have to
/// wait for a repetition.
#[test]
fn a_session_is_opened_over_most_links() {
    let mut client = client();
    for replica in [3, 2] {
        link(&mut client, replica);
        assert_eq!(requests(&mut client), vec![]);
    }
    link(&mut client, 1);
    let opening = requests(&mut client);
    assert!(!opening.is_empty());
    assert!(opening.iter().all(|(_, m)| right_macs(m) == 3));
    // The primary's link comes last; it gets its own copy.
    link(&mut client, 0);
    let late = requests(&mut client);
    assert_eq!(late.len(), 1);
    assert_eq!((late[0].0, right_macs(&late[0].1)), (ReplicaId(0), 4));
}

/// Where fewer links stand than the client would like, it waits 300 ms for more and then opens its session all the same.
#[test]
fn a_session_is_opened_over_few_links_after_a_while() {
    let mut client = client();
    client.on_tick(1_000);
    assert_eq!(client.next_timeout(), None, "there is nobody to ask");
    link(&mut client, 0);
    assert_eq!(client.next_timeout(), Some(1_300));
    client.on_tick(1_299);
    assert_eq!(requests(&mut client), vec![]);
    client.on_tick(1_300);
    let opening = requests(&mut client);
    assert_eq!(opening.len(), 1);
    assert_eq!(opening[0].0, ReplicaId(0));
}

/// A client with an open session and links with all replicas.
fn in_session() -> Client {
    let mut client = client();
    (0..4).for_each(|replica| link(&mut client, replica));
    let opening = requests(&mut client).remove(0).1;
    let session = SessionId(1).to_bytes();
    for replica in [0, 1] {
        answer(&mut client, ReplicaId(replica), &opening, &session, true, 0);
    }
    assert_eq!(client.session(), Some(SessionId(1)));
    requests(&mut client);
    client
}

/// One operation whose full result comes `late` ms after f+1 others have sent its digest. Returns who was asked for it.
fn call(client: &mut Client, now: Millis, late: Millis) -> ReplicaId {
    client.call(now, Bytes::from_static(b"op"), now);
    let request = requests(client).remove(0).1;
    let others = (0..4).map(ReplicaId).filter(|r| *r != request.replier);
    for from in others.take(2) {
        answer(client, from, &request, b"result", false, now);
    }
    assert_eq!(client.drain().count(), 0, "nobody has sent the result yet");
    let at = now + late;
    answer(client, request.replier, &request, b"result", true, at);
    let done = ClientOutput::Done(now, Ok(Bytes::from_static(b"result")));
    assert!(client.drain().any(|o| o == done));
    request.replier
}

/// Who is asked for the next eight full results, all of them within the two seconds of a first failure.
fn asked_next(client: &mut Client, from: Millis) -> Vec<ReplicaId> {
    (0..8).map(|i| call(client, from + i * 100, 0)).collect()
}

/// A replica whose full result comes 25 ms or more after f+1 others have vouched for its digest delays its client, and others
/// are asked for a while; then it has another chance. One that is a little slower than the others keeps its turn.
#[test]
fn a_late_result_makes_another_the_replier() {
    let mut client = in_session();
    let slow = call(&mut client, 1_000, 24);
    assert!(asked_next(&mut client, 1_100).contains(&slow));

    let late = call(&mut client, 10_000, 25);
    assert!(!asked_next(&mut client, 10_100).contains(&late));
    assert!(asked_next(&mut client, 12_100).contains(&late));
}
