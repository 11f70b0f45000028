//! The client alone.

use quorate_agreement::client::{Client, ClientOptions, ClientOutput};
use quorate_wire::message::{ClientMessage, Outcome as Told, ReadReply, Reply, ReplyBody};
use quorate_wire::{MacKey, Quorum, ReplicaId, RequestNumber, Seq, SessionId, View};

use super::*;
use crate::client::client_key;
use crate::keys::GROUP;

/// A client with links to four replicas and a session.
fn with_session() -> (Quorum, Client) {
    let quorum = Quorum::new(4).expect("a size of a group");
    let key = client_key(0);
    let mut client = Client::new(GROUP, quorum, ClientOptions::default(), key, 7, 0);
    for replica in quorum.replicas() {
        client.on_link(replica, Some(MacKey([replica.0 + 1; 32])));
    }
    let opening = client.drain().find_map(|output| match output {
        ClientOutput::Send(_, ClientMessage::Request(m)) => Some(m.request.number()),
        _ => None,
    });
    let number = opening.expect("it wants a session").0;
    for replica in quorum.replicas() {
        let answer = SessionId(1).to_bytes();
        client.on_reply(replica, reply(0, number, 0, false, answer), 1);
    }
    client.drain().for_each(drop);
    (quorum, client)
}

fn reply(session: u64, number: u64, view: u64, tentative: bool, answer: Vec<u8>) -> Reply {
    Reply {
        session: SessionId(session),
        number: RequestNumber(number),
        view: View(view),
        tentative,
        body: ReplyBody::Full(Told::Done(answer.into()).to_bytes().into()),
    }
}

fn is_done(client: &mut Client, token: u64) -> bool {
    let mut outputs = client.drain();
    outputs.any(|output| matches!(output, ClientOutput::Done(done, _) if done == token))
}

/// A batch that prepared in three views, at one replica in each, may still be dropped: no client may believe it. One that prepared
/// at three in one view may not.
pub(super) fn tentative_replies_of_three_views() -> Outcome {
    let (quorum, mut client) = with_session();
    client.call(1, Bytes::from_static(b"write"), 2);
    for replica in quorum.replicas().take(3) {
        let view = u64::from(replica.0);
        let answer = reply(1, 1, view, true, b"written".to_vec());
        client.on_reply(replica, answer, 3);
    }
    assert!(!is_done(&mut client, 1), "three views do not make a quorum");
    for replica in quorum.replicas().take(3) {
        let answer = reply(1, 1, 3, true, b"written".to_vec());
        client.on_reply(replica, answer, 4);
    }
    assert!(is_done(&mut client, 1), "three of one view do");
    Ok(())
}

/// A replica that lies and one that executed tentatively may say the same of a batch that a view change drops: a result that is not
/// final needs a third.
pub(super) fn two_tentative_replies_do_not_suffice() -> Outcome {
    let (quorum, mut client) = with_session();
    client.call(1, Bytes::from_static(b"write"), 2);
    for (count, replica) in quorum.replicas().enumerate().take(3) {
        assert!(!is_done(&mut client, 1), "{count} suffice");
        let answer = reply(1, 1, 0, true, b"written".to_vec());
        client.on_reply(replica, answer, 3);
    }
    assert!(is_done(&mut client, 1), "three do");
    Ok(())
}

/// One replica that lags and one that lies may say the same of a state that is no more: a read needs a third.
pub(super) fn two_do_not_make_a_read() -> Outcome {
    let (quorum, mut client) = with_session();
    client.read(1, Bytes::from_static(b"read"), 2);
    for (count, replica) in quorum.replicas().enumerate().take(3) {
        assert!(!is_done(&mut client, 1), "{count} suffice");
        let reply = reply(1, 1, 0, false, b"old".to_vec());
        client.on_read(replica, ReadReply { reply, at: Seq(1) }, 3);
    }
    assert!(is_done(&mut client, 1), "three suffice");
    Ok(())
}

/// One replica has what was before the last write and another one what a view change undoes, which gives the old value back; the third lies. That all say
/// the same makes it no state that ever was after that write.
pub(super) fn early_reads_of_two_states_do_not_count_together() -> Outcome {
    let (quorum, mut client) = with_session();
    client.read(1, Bytes::from_static(b"read"), 2);
    for (replica, at) in quorum.replicas().zip([1, 3, 3]) {
        let reply = reply(1, 1, 0, at == 3, b"old".to_vec());
        client.on_read(replica, ReadReply { reply, at: Seq(at) }, 3);
    }
    assert!(!is_done(&mut client, 1), "two of one state suffice");
    let reply = reply(1, 1, 0, true, b"old".to_vec());
    client.on_read(ReplicaId(3), ReadReply { reply, at: Seq(3) }, 3);
    assert!(is_done(&mut client, 1), "three of one state do");
    Ok(())
}
