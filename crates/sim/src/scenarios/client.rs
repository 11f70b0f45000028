//! The client alone.

use quorate_agreement::client::{Client, ClientOptions, ClientOutput};
use quorate_wire::message::{ClientMessage, Outcome as Told, Reply, ReplyBody};
use quorate_wire::{MacKey, Quorum, RequestNumber, SessionId, View};

use super::*;
use crate::client::client_key;

/// A batch that prepared in three views, at one replica in each, may still be dropped: no client may believe it. One that prepared
/// at three in one view may not.
pub(super) fn tentative_replies_of_three_views() -> Outcome {
    let quorum = Quorum::new(4).expect("a size of a group");
    let key = client_key(0);
    let mut client = Client::new(quorum, ClientOptions::default(), key, 7, 0);
    for replica in quorum.replicas() {
        client.on_link(replica, Some(MacKey([replica.0 + 1; 32])));
    }
    let opening = client.drain().find_map(|output| match output {
        ClientOutput::Send(_, ClientMessage::Request(m)) => Some(m.request.number()),
        _ => None,
    });
    let number = opening.expect("it wants a session");
    let reply = |session, number, view, tentative, answer: Vec<u8>| Reply {
        session: SessionId(session),
        number,
        view: View(view),
        tentative,
        body: ReplyBody::Full(Told::Done(answer.into()).to_bytes().into()),
    };
    for replica in quorum.replicas() {
        let answer = SessionId(1).to_bytes();
        client.on_reply(replica, reply(0, number, 0, false, answer), 1);
    }
    client.call(1, Bytes::from_static(b"write"), 2);
    let is_done = |client: &mut Client| {
        let mut outputs = client.drain();
        outputs.any(|output| matches!(output, ClientOutput::Done(1, _)))
    };
    for replica in quorum.replicas().take(3) {
        let view = u64::from(replica.0);
        let answer = reply(1, RequestNumber(1), view, true, b"written".to_vec());
        client.on_reply(replica, answer, 3);
    }
    assert!(!is_done(&mut client), "three views do not make a quorum");
    for replica in quorum.replicas().take(3) {
        let answer = reply(1, RequestNumber(1), 3, true, b"written".to_vec());
        client.on_reply(replica, answer, 4);
    }
    assert!(is_done(&mut client), "three of one view do");
    Ok(())
}
