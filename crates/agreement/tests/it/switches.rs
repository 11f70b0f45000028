//! What each optimisation that can be switched off changes of what is sent.

use std::collections::BTreeSet;

use bytes::Bytes;
use quorate_agreement::client::{Client, ClientOptions, ClientOutput};
use quorate_agreement::{Agreement, Input, Output, Record, Tuning};
use quorate_wire::message::{
    AuthRequest, ClientMessage, Commit, EVERYONE, Outcome, PeerMessage, PrePrepare, Prepare, Reply,
    ReplyBody,
};
use quorate_wire::{Encode, KeyPair, ReplicaId, SessionId, Verified, View};

use crate::support::*;

/// A client with these options, an open session and links with all replicas.
fn linked(options: ClientOptions) -> Client {
    let mut client = Client::new(
        GROUP,
        quorum(),
        options,
        KeyPair::from_seed(&[50; 32]),
        7,
        0,
    );
    (0..4).for_each(|r| client.on_link(ReplicaId(r), Some(link_key(r))));
    let (_, opening) = sent(&mut client).remove(0);
    for replica in 0..3 {
        let done = Outcome::Done(SessionId(1).to_bytes().into());
        let reply = Reply {
            session: opening.request.session(),
            number: opening.request.number(),
            view: View(0),
            tentative: false,
            body: ReplyBody::Full(done.to_bytes().into()),
        };
        client.on_reply(ReplicaId(replica), reply, 0);
    }
    assert_eq!(client.session(), Some(SessionId(1)));
    sent(&mut client);
    client
}

/// The requests that have gone out since the last look, with their receivers.
fn sent(client: &mut Client) -> Vec<(u8, AuthRequest)> {
    let sent = client.drain().filter_map(|output| match output {
        ClientOutput::Send(to, ClientMessage::Request(m)) => Some((to.0, m)),
        _ => None,
    });
    sent.collect()
}

/// Who is asked for the full results of eight operations and of eight reads that are not ordered.
fn asked(digest_replies: bool) -> [BTreeSet<ReplicaId>; 2] {
    let mut client = linked(ClientOptions {
        digest_replies,
        ..ClientOptions::default()
    });
    for token in 0..8 {
        client.call(token, Bytes::from_static(b"op"), 1);
        client.read(100 + token, Bytes::from_static(b"read"), 1);
    }
    let (mut requests, mut reads) = (BTreeSet::new(), BTreeSet::new());
    for output in client.drain() {
        match output {
            ClientOutput::Send(_, ClientMessage::Request(m)) => requests.insert(m.replier),
            ClientOutput::Send(_, ClientMessage::Read(m)) => reads.insert(m.replier),
            _ => continue,
        };
    }
    [requests, reads]
}

/// One replica at a time sends the result, and each has its turn; else all of them send each.
#[test]
fn digest_replies() {
    for repliers in asked(true) {
        assert!(repliers.len() > 1, "{repliers:?}");
        assert!(repliers.iter().all(|r| quorum().contains(*r)));
    }
    for repliers in asked(false) {
        assert_eq!(repliers, [EVERYONE].into());
    }
}

/// A client that has nothing else under way takes what was read before the last batch has committed; else nobody does.
#[test]
fn early_reads() {
    for early_reads in [true, false] {
        let mut client = linked(ClientOptions {
            early_reads,
            ..ClientOptions::default()
        });
        client.read(1, Bytes::from_static(b"read"), 1);
        let asked = client.drain().filter_map(|output| match output {
            ClientOutput::Send(_, ClientMessage::Read(m)) => Some(m.early),
            _ => None,
        });
        assert_eq!(asked.collect::<BTreeSet<_>>(), [early_reads].into());
    }
}

/// Who gets an operation of so many bytes from its client.
fn receivers(inline_bytes: usize, len: usize) -> Vec<u8> {
    let mut client = linked(ClientOptions {
        inline_bytes,
        ..ClientOptions::default()
    });
    client.call(1, Bytes::from(vec![1; len]), 1);
    sent(&mut client).into_iter().map(|(to, _)| to).collect()
}

/// A long operation goes from its client to all, and any other to the primary alone.
#[test]
fn a_client_sends_what_is_long_to_all() {
    assert_eq!(receivers(100, 100), [0]);
    assert_eq!(receivers(100, 101), [0, 1, 2, 3]);
    assert_eq!(receivers(99, 100), [0, 1, 2, 3]);
    assert_eq!(receivers(usize::MAX, 1 << 20), [0]);
}

/// This replica of a group that has been tuned.
fn tuned(me: u8, tuning: Tuning) -> Agreement {
    fresh_with(me, |config| config.tuning = tuning)
}

/// So many requests of so many bytes come in one turn.
fn come(replica: &mut Agreement, numbers: core::ops::RangeInclusive<u64>, len: usize) {
    for number in numbers {
        let request = request(number, Bytes::from(vec![1; len]));
        let input = Input::Request(Verified::from_link(request));
        replica.take(at(1), input).expect("it is right");
    }
    replica.end_turn();
    replica.invariants();
}

fn proposals(replica: &mut Agreement) -> Vec<PrePrepare> {
    let proposals = outputs(replica)
        .into_iter()
        .filter_map(|output| match output {
            Output::Broadcast(PeerMessage::PrePrepare(m)) => Some(m),
            _ => None,
        });
    proposals.collect()
}

/// How many requests, of one that came, go along with the proposal that names it.
fn relayed(inline_bytes: usize, len: usize) -> usize {
    let tuning = Tuning {
        inline_bytes,
        ..Tuning::default()
    };
    let mut primary = tuned(0, tuning);
    come(&mut primary, 1..=1, len);
    let proposal = proposals(&mut primary).remove(0);
    assert_eq!(proposal.batch.requests.len(), 1);
    proposal.bodies.len()
}

/// A primary does not send on what is long, for its client sends that to all.
#[test]
fn a_primary_sends_on_what_is_short() {
    assert_eq!(relayed(100, 100), 1);
    assert_eq!(relayed(100, 101), 0);
    assert_eq!(relayed(usize::MAX, 1 << 20), 1);
}

/// A backup shows the primary what comes although it is short: its client has not been heard there. What is long comes to it anyway.
#[test]
fn a_backup_shows_the_primary_what_is_short() {
    for (inline_bytes, expected) in [(100, true), (99, false)] {
        let tuning = Tuning {
            inline_bytes,
            ..Tuning::default()
        };
        let mut backup = tuned(1, tuning);
        come(&mut backup, 1..=1, 100);
        let shown = |o: &Output| matches!(o, Output::Send(ReplicaId(0), PeerMessage::Request(_)));
        assert_eq!(outputs(&mut backup).iter().any(shown), expected);
    }
}

/// A primary has so many full batches open and no more; when one has committed, the next leaves.
#[test]
fn batches_in_flight() {
    for batches in [1, 3, Tuning::default().batches] {
        let tuning = Tuning {
            batches,
            batch_requests: 1,
            ..Tuning::default()
        };
        let mut primary = tuned(0, tuning);
        come(&mut primary, 1..=20, 2);
        let open = proposals(&mut primary);
        assert_eq!(open.len() as u64, batches);
        let (view, seq, digest) = (View(0), open[0].seq, open[0].batch.digest());
        for from in 1..4 {
            let vote = PeerMessage::Prepare(Prepare { view, seq, digest });
            from_peer(&mut primary, 1, from, vote).unwrap();
        }
        assert_eq!(proposals(&mut primary).len(), 0, "it has prepared only");
        for from in 1..4 {
            let vote = PeerMessage::Commit(Commit { view, seq, digest });
            from_peer(&mut primary, 1, from, vote).unwrap();
        }
        assert_eq!(primary.standing().committed, seq);
        assert_eq!(proposals(&mut primary).len(), 1);
    }
}

/// Six requests that come at once go in batches of so many.
#[test]
fn requests_of_a_batch() {
    let most = Tuning::default().batch_requests;
    for (batch_requests, expected) in [(most, &[6][..]), (3, &[3; 2]), (2, &[2; 3]), (1, &[1; 6])] {
        let tuning = Tuning {
            batch_requests,
            ..Tuning::default()
        };
        let mut primary = tuned(0, tuning);
        come(&mut primary, 1..=6, 2);
        let proposals = proposals(&mut primary).into_iter();
        let lengths: Vec<_> = proposals.map(|m| m.batch.requests.len()).collect();
        assert_eq!(lengths, expected);
    }
}

/// What has prepared is executed at once, to be undone if need be; else nothing is before it has committed.
#[test]
fn tentative_execution() {
    for tentative in [true, false] {
        let tuning = Tuning {
            tentative,
            ..Tuning::default()
        };
        let mut primary = tuned(0, tuning);
        come(&mut primary, 1..=1, 2);
        let proposal = proposals(&mut primary).remove(0);
        let (view, seq, digest) = (View(0), proposal.seq, proposal.batch.digest());
        for from in 1..4 {
            let vote = PeerMessage::Prepare(Prepare { view, seq, digest });
            from_peer(&mut primary, 1, from, vote).unwrap();
        }
        // Nobody is told of it before its certificate is on disk.
        persist_up_to(&mut primary, 1, |r| matches!(r, Record::Prepared(_)));
        let prepared = outputs(&mut primary);
        let early = |o: &Output| matches!(o, Output::Tentative(_));
        let executed = |o: &Output| matches!(o, Output::Execute(_));
        assert_eq!(prepared.iter().any(early), tentative);
        assert!(!prepared.iter().any(executed));
        for from in 1..4 {
            let vote = PeerMessage::Commit(Commit { view, seq, digest });
            from_peer(&mut primary, 1, from, vote).unwrap();
        }
        assert!(outputs(&mut primary).iter().any(executed));
    }
}
