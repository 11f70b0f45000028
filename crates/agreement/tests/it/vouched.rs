//! Replies that come together: what one replica brings of the others counts if it is theirs.

use crate::support::GROUP;
use bytes::Bytes;
use quorate_agreement::Millis;
use quorate_agreement::client::{Client, ClientOptions, ClientOutput};
use quorate_wire::message::{
    AuthRequest, ClientMessage, EVERYONE, Outcome, Reply, ReplyBody, Vouched, Voucher,
};
use quorate_wire::{Encode, KeyPair, Mac, MacKey, Quorum, ReplicaId, SessionId, View};

fn link_key(replica: u8) -> MacKey {
    MacKey([replica + 1; 32])
}

/// A client with an open session and links with all replicas.
fn client() -> Client {
    let me = KeyPair::from_seed(&[50; 32]);
    let quorum = Quorum::new(4).expect("f = 1");
    let mut client = Client::new(GROUP, quorum, ClientOptions::default(), me, 7, 0);
    (0..4).for_each(|r| client.on_link(ReplicaId(r), Some(link_key(r))));
    let opening = sent(&mut client).remove(0);
    for replica in 0..3 {
        let reply = reply(&opening, &SessionId(1).to_bytes(), None);
        client.on_reply(ReplicaId(replica), reply, 0);
    }
    sent(&mut client);
    client
}

/// The requests that have gone out since the last look.
fn sent(client: &mut Client) -> Vec<AuthRequest> {
    let sent = client.drain().filter_map(|output| match output {
        ClientOutput::Send(_, ClientMessage::Request(m)) => Some(m),
        _ => None,
    });
    sent.collect()
}

/// A reply in full; tentative in a view, or final.
fn reply(to: &AuthRequest, result: &[u8], tentative: Option<u64>) -> Reply {
    let done = Outcome::Done(Bytes::copy_from_slice(result));
    Reply {
        session: to.request.session(),
        number: to.request.number(),
        view: View(tentative.unwrap_or(0)),
        tentative: tentative.is_some(),
        body: ReplyBody::Full(done.to_bytes().into()),
    }
}

/// A replica's word for a reply of its own.
fn word(replica: u8, reply: &Reply) -> Voucher {
    Voucher {
        replica: ReplicaId(replica),
        view: reply.view,
        tentative: reply.tentative,
        mac: reply.voucher(&link_key(replica)),
    }
}

fn bring(client: &mut Client, from: u8, reply: Reply, vouchers: &[Voucher], now: Millis) {
    let vouchers = vouchers.to_vec();
    client.on_vouched(ReplicaId(from), Vouched { reply, vouchers }, now);
}

fn asked(client: &mut Client, now: Millis) -> AuthRequest {
    client.call(now, Bytes::from_static(b"op"), now);
    sent(client).remove(0)
}

/// What has come of it: whether it is done, and how many repetitions have gone out.
fn outcome(client: &mut Client) -> (bool, usize) {
    let outputs: Vec<_> = client.drain().collect();
    let repeats = outputs.iter().filter(|output| {
        let ClientOutput::Send(_, message) = output else {
            return false;
        };
        matches!(message, ClientMessage::Repeat(_))
    });
    let is_done = |output: &ClientOutput| matches!(output, ClientOutput::Done(..));
    (outputs.iter().any(is_done), repeats.count())
}

/// One message suffices if it brings the word of 2f others, and one of fewer does not. They count as those replicas' replies:
/// tentative ones of one view.
#[test]
fn one_message_brings_a_result() {
    let mut client = client();
    let request = asked(&mut client, 1_000);
    let said = reply(&request, b"x", Some(0));
    let of_another_view = reply(&request, b"x", Some(1));
    let vouchers = [word(1, &said), word(2, &of_another_view)];
    bring(&mut client, 0, said.clone(), &vouchers, 1_001);
    assert_eq!(outcome(&mut client), (false, 0), "two views");
    bring(&mut client, 0, said.clone(), &[word(3, &said)], 1_002);
    assert_eq!(outcome(&mut client), (true, 0));

    let request = asked(&mut client, 1_010);
    let said = reply(&request, b"x", None);
    let vouchers = [word(1, &said), word(1, &said), word(0, &said)];
    bring(&mut client, 0, said.clone(), &vouchers, 1_011);
    assert_eq!(
        outcome(&mut client),
        (false, 0),
        "two replicas, however often"
    );
    client.on_reply(ReplicaId(2), said, 1_012);
    assert_eq!(outcome(&mut client), (true, 0));
}

/// Words that are not the replicas' own bring no result, whichever part of them is changed. The client asks all again at once, and
/// for a while has each answer for itself; then it has another try.
#[test]
fn false_words_are_noticed() {
    for change in 0..4 {
        let mut client = client();
        let request = asked(&mut client, 1_000);
        let said = reply(&request, b"x", Some(0));
        let mut vouchers = [word(1, &said), word(2, &said), word(3, &said)];
        let mut brought = said.clone();
        match change {
            0 => vouchers.iter_mut().for_each(|v| v.mac = Mac([0; 16])),
            1 => vouchers.iter_mut().for_each(|v| v.tentative = false),
            2 => vouchers.iter_mut().for_each(|v| v.view = View(1)),
            _ => brought = reply(&request, b"another", Some(0)),
        }
        bring(&mut client, 0, brought, &vouchers, 1_001);
        assert_eq!(outcome(&mut client), (false, 4), "change {change}");
        (1..4).for_each(|r| client.on_reply(ReplicaId(r), said.clone(), 1_002));
        assert!(outcome(&mut client).0);

        let next = asked(&mut client, 1_100);
        assert_eq!(next.replier, EVERYONE);
        assert_ne!(asked(&mut client, 3_001).replier, EVERYONE);
    }
}

/// A faulty replica that brings an old word of another does not cover what that one has said itself since.
#[test]
fn an_old_word_replaces_nothing() {
    let mut client = client();
    let request = asked(&mut client, 1_000);
    let (old, new) = (
        reply(&request, b"x", Some(0)),
        reply(&request, b"x", Some(1)),
    );
    client.on_reply(ReplicaId(1), new.clone(), 1_001);
    client.on_reply(ReplicaId(2), new.clone(), 1_001);
    bring(
        &mut client,
        0,
        old.clone(),
        &[word(1, &old), word(2, &old)],
        1_002,
    );
    assert!(!outcome(&mut client).0);
    client.on_reply(ReplicaId(3), new, 1_003);
    assert!(outcome(&mut client).0);
}

/// Where replies have come together, a replica that owes one and keeps it back is not asked for the next ones.
#[test]
fn who_withholds_is_passed_over() {
    let mut client = client();
    let request = asked(&mut client, 1_000);
    let said = reply(&request, b"x", None);
    bring(
        &mut client,
        0,
        said.clone(),
        &[word(1, &said), word(2, &said)],
        1_001,
    );
    assert!(outcome(&mut client).0);

    let silent = asked(&mut client, 1_010).replier;
    client.on_tick(2_000);
    assert_eq!(outcome(&mut client).1, 4);
    for i in 0..8 {
        assert_ne!(asked(&mut client, 2_001 + i).replier, silent);
    }
}
