//! A client's reads that are not ordered.

use super::*;

/// To whom reads have gone since the last look.
fn reads(client: &mut Client) -> Vec<(ReplicaId, Read)> {
    let sent = client.drain().filter_map(|o| match o {
        ClientOutput::Send(to, ClientMessage::Read(m)) => Some((to, m)),
        _ => None,
    });
    sent.collect()
}

/// A read that has gone to all replicas, since there is no other.
fn reading(client: &mut Client, now: Millis) -> Read {
    client.read(now, Bytes::from_static(b"read"), now);
    let sent = reads(client);
    assert_eq!(sent.len(), 4, "to all replicas");
    sent[0].1.clone()
}

/// A read beside another one, which has gone to 2f+1 replicas, and these.
fn reading_from(client: &mut Client, now: Millis) -> (Read, Vec<ReplicaId>) {
    client.read(now, Bytes::from_static(b"read"), now);
    let sent = reads(client);
    let asked: Vec<ReplicaId> = sent.iter().map(|(to, _)| *to).collect();
    assert_eq!(asked.len(), 3);
    assert!(asked.contains(&sent[0].1.replier));
    (sent[0].1.clone(), asked)
}

fn sees(client: &mut Client, from: u8, read: &Read, result: &[u8], now: Millis) {
    let done = Outcome::Done(Bytes::copy_from_slice(result));
    let full = ReplyBody::Full(done.to_bytes().into());
    let reply = Reply {
        session: read.session,
        number: read.number,
        view: View(0),
        tentative: false,
        body: match read.replier == ReplicaId(from) {
            true => full,
            false => ReplyBody::Digest(full.digest()),
        },
    };
    let at = Seq(1);
    client.on_read(ReplicaId(from), ReadReply { reply, at }, now);
}

/// A result that holds values of the state is taken by the digest that others vouch for, which is over those values' digests: and not where one
/// of its bytes is another, in a value or beside it, or where it says that the values are elsewhere.
#[test]
fn values_of_the_state_are_checked() {
    let result = Bytes::from(Outcome::Done(Bytes::from_static(b"head value tail")).to_bytes());
    let span = |offset| vec![Span { offset, length: 5 }];
    let parted = |result: &Bytes, at| Parted::new(result.clone(), span(at)).unwrap();
    let other = |at: usize| {
        let mut bytes = result.to_vec();
        bytes[at] ^= 1;
        bytes.into()
    };
    let good = parted(&result, 10);
    let sent = [
        (ReplyBody::Parted(good.clone()), true),
        (ReplyBody::Parted(parted(&other(12), 10)), false),
        (ReplyBody::Parted(parted(&other(16), 10)), false),
        (ReplyBody::Parted(parted(&result, 9)), false),
        (ReplyBody::Full(result.clone()), false),
    ];
    for (body, is_taken) in sent {
        let mut client = in_session();
        let read = reading(&mut client, 1_000);
        for from in [0, 1, 2, 3].map(ReplicaId) {
            let reply = Reply {
                session: read.session,
                number: read.number,
                view: View(0),
                tentative: false,
                body: match read.replier == from {
                    true => body.clone(),
                    false => ReplyBody::Digest(good.digest()),
                },
            };
            client.on_read(from, ReadReply { reply, at: Seq(1) }, 1_000);
        }
        assert_eq!(is_done(&mut client), is_taken, "{body:?}");
        assert_eq!(
            client.open_calls(),
            usize::from(!is_taken),
            "else it is ordered"
        );
    }
}

/// A read is answered by 2f+1 replicas that say the same. Where they can't any more, it is ordered at once.
#[test]
fn a_read_is_answered_or_ordered() {
    let mut client = in_session();
    let read = reading(&mut client, 1_000);
    for from in 0..4 {
        sees(&mut client, from, &read, b"x", 1_000);
    }
    let done = ClientOutput::Done(1_000, Ok(Bytes::from_static(b"x")));
    assert_eq!(client.drain().collect::<Vec<_>>(), vec![done]);

    let read = reading(&mut client, 2_000);
    sees(&mut client, 0, &read, b"x", 2_000);
    sees(&mut client, 1, &read, b"y", 2_000);
    assert_eq!(
        requests(&mut client),
        vec![],
        "three may still say the same"
    );
    sees(&mut client, 2, &read, b"x", 2_000);
    sees(&mut client, 3, &read, b"y", 2_000);
    let ordered = requests(&mut client);
    assert_eq!(ordered[0].1.request.op(), &read.op);
    says(&mut client, 0, &ordered[0].1, b"y", None);
    says(&mut client, 1, &ordered[0].1, b"y", None);
    says(&mut client, 2, &ordered[0].1, b"y", None);
    assert!(is_done(&mut client));
}

/// Replica `from` says what it has found up to a place; tentatively in view 0, or for good.
fn finds(client: &mut Client, from: u8, read: &Read, result: &[u8], at: u64, tentative: bool) {
    let done = Outcome::Done(Bytes::copy_from_slice(result));
    let reply = Reply {
        session: read.session,
        number: read.number,
        view: View(0),
        tentative,
        body: ReplyBody::Full(done.to_bytes().into()),
    };
    client.on_read(ReplicaId(from), ReadReply { reply, at: Seq(at) }, 1_000);
}

/// What may be undone counts together with what was found in the same state alone; what has committed, wherever it was found.
#[test]
fn early_answers_count_for_one_state() {
    let count = |answers: &[(&[u8], u64, bool)]| {
        let mut client = in_session();
        let read = reading(&mut client, 1_000);
        assert!(read.early, "nothing else is under way");
        for (from, (result, at, tentative)) in (0..).zip(answers) {
            finds(&mut client, from, &read, result, *at, *tentative);
        }
        is_done(&mut client)
    };
    let (x, y) = (&b"x"[..], &b"y"[..]);
    assert!(count(&[(x, 2, true), (x, 2, true), (x, 2, true)]));
    assert!(count(&[(x, 2, true), (x, 2, false), (x, 2, true)]));
    assert!(count(&[(x, 1, false), (x, 2, false), (x, 3, false)]));
    assert!(!count(&[(x, 2, true), (x, 2, true), (x, 1, false)]));
    assert!(!count(&[(x, 2, true), (x, 2, true), (x, 3, true)]));
    assert!(!count(&[(x, 2, true), (x, 2, true), (y, 2, true)]));
    assert!(count(&[
        (x, 2, true),
        (x, 1, false),
        (x, 2, true),
        (x, 2, false)
    ]));
}

/// A client that has changes under way does not read early. Where early answers are of too many states it asks once more, for what is settled, and reads nothing
/// early for a while.
#[test]
fn reads_beside_writes_are_not_early() {
    let mut client = in_session();
    let read = reading(&mut client, 1_000);
    for (from, at) in [(0, 2), (1, 3), (2, 4), (3, 2)] {
        finds(&mut client, from, &read, b"x", at, true);
    }
    let sent = reads(&mut client);
    assert_eq!(sent.len(), 4, "to all replicas");
    let again = sent[0].1.clone();
    assert!(!again.early && again.number > read.number && again.op == read.op);
    // Those who are late with the first question say nothing of the second.
    finds(&mut client, 0, &read, b"x", 2, false);
    for from in 0..3 {
        assert!(!is_done(&mut client));
        finds(&mut client, from, &again, b"x", u64::from(from), false);
    }
    assert!(is_done(&mut client));
    let next = reading(&mut client, 1_099);
    assert!(!next.early);
    (0..3).for_each(|from| finds(&mut client, from, &next, b"x", 1, false));
    client.drain().for_each(drop);
    client.call(1, Bytes::from_static(b"op"), 1_100);
    client.drain().for_each(drop);
    assert!(!reading(&mut client, 1_100).early, "a change is under way");
}

/// What waits behind early reads is asked for whatever becomes of those: here there are too few links to ask once more, so they are ordered.
#[test]
fn reads_behind_early_ones_do_not_wait_for_ever() {
    let mut client = in_session();
    for token in 0..100 {
        client.read(token, Bytes::from_static(b"read"), 1_000);
    }
    // One answer to each.
    let mut answered = BTreeSet::new();
    for (from, read) in reads(&mut client) {
        if answered.insert(read.number) {
            finds(&mut client, from.0, &read, b"x", 1, true);
        }
    }
    (2..4).for_each(|r| client.on_link(ReplicaId(r), None));
    client.on_tick(1_100);
    client.on_tick(1_200);
    let mut answered = 0;
    (2..4).for_each(|r| client.on_link(ReplicaId(r), Some(link_key(r))));
    for _ in 0..200 {
        for output in client.drain().collect::<Vec<_>>() {
            match output {
                ClientOutput::Send(to, ClientMessage::Request(m)) => {
                    says(&mut client, to.0, &m, b"x", None);
                    (1..4).for_each(|from| says(&mut client, from, &m, b"x", None));
                }
                ClientOutput::Send(to, ClientMessage::Read(m)) => {
                    finds(&mut client, to.0, &m, b"x", 1, false);
                }
                ClientOutput::Done(..) => answered += 1,
                _ => {}
            }
        }
    }
    assert_eq!(answered, 100);
}

/// A read that too few answer is ordered after 50 ms, and reads are ordered for a while: a replica that is away together with a
/// silent one must not cost each read its patience.
#[test]
fn silence_has_reads_ordered() {
    let mut client = in_session();
    let read = reading(&mut client, 1_000);
    sees(&mut client, 0, &read, b"x", 1_000);
    sees(&mut client, 1, &read, b"x", 1_000);
    client.on_tick(1_049);
    assert_eq!(requests(&mut client), vec![]);
    client.on_tick(1_050);
    assert_eq!(requests(&mut client)[0].1.request.op(), &read.op);
    client.read(1, Bytes::from_static(b"read"), 1_060);
    assert_eq!(requests(&mut client).len(), 1, "ordered at once");
    reading(&mut client, 1_200);
}

/// As many reads are asked for at a time as a session has requests in flight. Others wait, and are not ordered for that.
#[test]
fn reads_beyond_the_window_wait() {
    let mut client = in_session();
    let window = SESSION_WINDOW as usize;
    for token in 0..256 {
        client.read(token, Bytes::from_static(b"read"), 1_000);
    }
    let numbers = |sent: Vec<(ReplicaId, Read)>| -> Vec<RequestNumber> {
        let numbers: BTreeSet<_> = sent.iter().map(|(_, read)| read.number).collect();
        numbers.into_iter().collect()
    };
    let mut outputs: Vec<_> = client.drain().collect();
    let mut answered = 0;
    while !outputs.is_empty() {
        let mut asked: Vec<(ReplicaId, Read)> = Vec::new();
        for output in outputs {
            match output {
                ClientOutput::Send(to, ClientMessage::Read(m)) => asked.push((to, m)),
                ClientOutput::Done(_, result) => {
                    assert!(result.is_ok());
                    answered += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        let first = numbers(asked.clone()).len();
        assert!(first <= window, "{first}");
        for (to, read) in asked {
            sees(&mut client, to.0, &read, b"x", 1_000);
        }
        outputs = client.drain().collect();
    }
    assert_eq!(answered, 256);
}

/// A read is asked again where its session is lost, whether it waits for answers or has been ordered; what may have changed something is not.
#[test]
fn a_read_outlives_its_session() {
    let mut client = in_session();
    let read = reading(&mut client, 1_000);
    client.call(7, Bytes::from_static(b"change"), 1_000);
    let changing = requests(&mut client).remove(0).1;
    let gone = Outcome::NoSession(()).to_bytes();
    for from in 0..4 {
        let reply = Reply {
            session: read.session,
            number: read.number,
            view: View(0),
            tentative: false,
            body: ReplyBody::Full(gone.clone().into()),
        };
        client.on_read(ReplicaId(from), ReadReply { reply, at: Seq(1) }, 1_000);
    }
    let ordered = requests(&mut client).remove(0).1;
    assert_eq!(ordered.request.op(), &read.op);
    // Another one that was not answered at all by then.
    client.read(8, Bytes::from_static(b"another"), 1_000);
    client.drain().for_each(drop);
    for from in 0..3 {
        let reply = Reply {
            session: ordered.request.session(),
            number: ordered.request.number(),
            view: View(0),
            tentative: false,
            body: ReplyBody::Full(gone.clone().into()),
        };
        client.on_reply(ReplicaId(from), reply, 1_000);
    }
    let outputs: Vec<_> = client.drain().collect();
    let lost = ClientOutput::Done(7, Err(NoResult::SessionLost));
    assert!(outputs.contains(&lost), "{outputs:?}");
    let done = |o: &&ClientOutput| matches!(o, ClientOutput::Done(..));
    assert_eq!(outputs.iter().filter(done).count(), 1, "{outputs:?}");
    let opening = outputs.into_iter().find_map(|o| match o {
        ClientOutput::Send(_, ClientMessage::Request(m)) => Some(m),
        _ => None,
    });
    let opening = opening.expect("a session is opened");
    assert_ne!(opening.request.number(), changing.request.number());
    let session = SessionId(2).to_bytes();
    for from in 0..3 {
        let from = ReplicaId(from);
        answer(&mut client, from, &opening, &session, true, 1_000);
    }
    assert_eq!(client.session(), Some(SessionId(2)));
    let again: Vec<Bytes> = requests(&mut client)
        .into_iter()
        .map(|(_, m)| m.request.op().clone())
        .collect();
    assert!(again.contains(&read.op), "{again:?}");
    assert!(again.contains(&Bytes::from_static(b"another")), "{again:?}");
    assert!(!again.contains(&Bytes::from_static(b"change")), "{again:?}");
}

/// A read beside others goes to 2f+1 replicas, to each as often as to the others, and that is enough.
#[test]
fn a_read_goes_to_as_many_as_have_to_answer() {
    let mut client = in_session();
    reading(&mut client, 1_000);
    let mut asked = [0_u32; 4];
    for token in 1..400 {
        let (read, from) = reading_from(&mut client, 1_000 + token / 10);
        for replica in from {
            asked[usize::from(replica.0)] += 1;
            sees(&mut client, replica.0, &read, b"x", 1_000);
        }
        assert!(is_done(&mut client));
    }
    assert!(asked.iter().all(|n| (260..340).contains(n)), "{asked:?}");
}

/// Where those asked first differ, the others are asked at once, and who has said otherwise is not asked first for a while. So it is with
/// one that is silent, after 2 ms. One without a link is never asked first.
#[test]
fn who_differs_or_is_late_is_passed_over() {
    for is_silent in [false, true] {
        let mut client = in_session();
        let other = reading(&mut client, 1_000);
        let (read, asked) = reading_from(&mut client, 1_000);
        let bad = asked.iter().copied().find(|r| *r != read.replier).unwrap();
        let last = (0..4).map(ReplicaId).find(|r| !asked.contains(r)).unwrap();
        let others = asked.iter().filter(|r| **r != bad);
        others.for_each(|r| sees(&mut client, r.0, &read, b"x", 1_001));
        client.on_tick(1_001);
        assert_eq!(reads(&mut client), vec![]);
        match is_silent {
            true => client.on_tick(1_002),
            false => sees(&mut client, bad.0, &read, b"z", 1_001),
        }
        assert_eq!(reads(&mut client), vec![(last, read.clone())]);
        sees(&mut client, last.0, &read, b"x", 1_006);
        assert!(is_done(&mut client));
        for now in 1_010..1_040 {
            let (read, asked) = reading_from(&mut client, now);
            // It may still be the one that owes a result, in its turn: with that it may prove itself.
            assert!(!asked.contains(&bad) || read.replier == bad);
            asked
                .iter()
                .for_each(|r| sees(&mut client, r.0, &read, b"x", now));
            assert!(is_done(&mut client));
        }
        client.on_link(last, None);
        client.drain().for_each(drop);
        let (_, asked) = reading_from(&mut client, 1_041);
        assert!(!asked.contains(&last));
        (0..4).for_each(|r| sees(&mut client, r, &other, b"x", 1_041));
        assert!(is_done(&mut client));
    }
}

/// The replica that owes a read's full result and lies about it costs one ordered operation, and is not asked for a while.
#[test]
fn a_lying_replier_of_a_read_is_found_out() {
    let mut client = in_session();
    let read = reading(&mut client, 1_000);
    let liar = read.replier;
    for from in (0..4).filter(|r| ReplicaId(*r) != liar) {
        sees(&mut client, from, &read, b"x", 1_000);
    }
    sees(&mut client, liar.0, &read, b"z", 1_000);
    assert_eq!(requests(&mut client)[0].1.request.op(), &read.op);
    for i in 0..8 {
        let read = reading(&mut client, 1_100 + i);
        assert_ne!(read.replier, liar);
        (0..4).for_each(|r| sees(&mut client, r, &read, b"x", 1_100 + i));
        assert!(is_done(&mut client));
    }
}
