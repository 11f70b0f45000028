//! How a client deals with links that come one by one and with a replica that owes it results.

use std::collections::BTreeSet;

use crate::support::GROUP;
use bytes::Bytes;
use quorate_agreement::client::{Client, ClientOptions, ClientOutput, NoResult, window_for};
use quorate_agreement::{INLINE_BYTES, Millis};
use quorate_wire::message::session::{KEPT_BYTES, SESSION_WINDOW};
use quorate_wire::message::{
    AuthRequest, ClientMessage, MAX_RESULT_BYTES, Outcome, Parted, Read, ReadReply, Reply,
    ReplyBody, Span, Unsigned,
};
use quorate_wire::{
    Authenticator, Encode, KeyPair, MacKey, Quorum, ReplicaId, RequestNumber, Seq, SessionId, View,
};

mod reads;

const NONCE: u64 = 7;

fn link_key(replica: u8) -> MacKey {
    MacKey([replica + 1; 32])
}

/// A client whose first link stands at 0.
fn client() -> Client {
    let me = KeyPair::from_seed(&[50; 32]);
    Client::new(
        GROUP,
        Quorum::new(4).unwrap(),
        ClientOptions::default(),
        me,
        NONCE,
        0,
    )
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
    let is_right = |r: &u8| {
        let (replica, key) = (ReplicaId(*r), link_key(*r));
        m.auth.check_mac(replica, &key, &digest).is_ok()
    };
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
        tentative: false,
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
    assert!(opening.iter().all(|(_, m)| is_signed(m)));
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
    linked(ClientOptions::default())
}

fn linked(options: ClientOptions) -> Client {
    let me = KeyPair::from_seed(&[50; 32]);
    let mut client = Client::new(GROUP, Quorum::new(4).unwrap(), options, me, NONCE, 0);
    (0..4).for_each(|replica| link(&mut client, replica));
    let opening = requests(&mut client).remove(0).1;
    let session = SessionId(1).to_bytes();
    for replica in [0, 1, 2] {
        answer(&mut client, ReplicaId(replica), &opening, &session, true, 0);
    }
    assert_eq!(client.session(), Some(SessionId(1)));
    requests(&mut client);
    client
}

/// One operation whose full result comes `late` ms after 2f+1 others have sent its digest. Returns who was asked for it.
fn call(client: &mut Client, now: Millis, late: Millis) -> ReplicaId {
    client.call(now, Bytes::from_static(b"op"), now);
    let request = requests(client).remove(0).1;
    let others = (0..4).map(ReplicaId).filter(|r| *r != request.replier);
    for from in others {
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

/// A replica whose full result comes 25 ms or more after 2f+1 others have vouched for its digest delays its client, and others
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

/// An operation that is on its way.
fn called(client: &mut Client, now: Millis) -> AuthRequest {
    client.call(now, Bytes::from_static(b"op"), now);
    requests(client).remove(0).1
}

/// Replica `from` says that `result` is the outcome: tentatively in a view, or finally.
fn says(client: &mut Client, from: u8, to: &AuthRequest, result: &[u8], tentative: Option<u64>) {
    let done = Outcome::Done(Bytes::copy_from_slice(result));
    let reply = Reply {
        session: to.request.session(),
        number: to.request.number(),
        view: View(tentative.unwrap_or(0)),
        tentative: tentative.is_some(),
        body: ReplyBody::Full(done.to_bytes().into()),
    };
    client.on_reply(ReplicaId(from), reply, 1_000);
}

fn is_done(client: &mut Client) -> bool {
    client.drain().any(|o| matches!(o, ClientOutput::Done(..)))
}

/// 2f+1 tentative replies stand for a result only if they are of one view: a certificate of an earlier view may have been
/// dropped. Final ones count with either.
#[test]
fn tentative_replies_count_in_one_view() {
    let mut client = in_session();
    let request = called(&mut client, 1_000);
    says(&mut client, 0, &request, b"x", Some(0));
    says(&mut client, 1, &request, b"x", Some(1));
    says(&mut client, 2, &request, b"x", Some(1));
    assert!(!is_done(&mut client));
    says(&mut client, 3, &request, b"x", None);
    assert!(is_done(&mut client));
}

/// f+1 final replies are not enough for a client whose group has reads that are not ordered; without such reads they are, and
/// tentative ones are as little as before.
#[test]
fn how_many_replies_a_result_needs() {
    let mut client = in_session();
    let request = called(&mut client, 1_000);
    says(&mut client, 0, &request, b"x", None);
    says(&mut client, 1, &request, b"x", None);
    assert!(!is_done(&mut client));
    says(&mut client, 2, &request, b"y", None);
    assert!(!is_done(&mut client));
    says(&mut client, 3, &request, b"x", None);
    assert!(is_done(&mut client));

    let options = ClientOptions {
        unordered_reads: false,
        ..ClientOptions::default()
    };
    let mut client = linked(options);
    let request = called(&mut client, 1_000);
    says(&mut client, 0, &request, b"x", Some(0));
    says(&mut client, 1, &request, b"x", Some(0));
    assert!(!is_done(&mut client));
    says(&mut client, 2, &request, b"y", None);
    assert!(!is_done(&mut client));
    says(&mut client, 1, &request, b"x", None);
    says(&mut client, 0, &request, b"x", None);
    assert!(is_done(&mut client));
}

/// A client is told that an operation was executed whose result is not kept any more, and its session goes on.
#[test]
fn what_is_gone_has_a_name() {
    let mut client = in_session();
    let request = called(&mut client, 1_000);
    for from in [0, 1, 2] {
        let reply = Reply {
            session: request.request.session(),
            number: request.request.number(),
            view: View(0),
            tentative: false,
            body: ReplyBody::Full(Outcome::Gone(()).to_bytes().into()),
        };
        client.on_reply(ReplicaId(from), reply, 1_000);
    }
    let gone = ClientOutput::Done(1_000, Err(NoResult::ResultGone));
    assert!(client.drain().any(|o| o == gone));
    assert_eq!(client.session(), Some(SessionId(1)));
    let request = called(&mut client, 2_000);
    assert_eq!(request.request.answered(), RequestNumber(1));
}

/// As many are in flight as the group keeps results for, counted from the oldest: with the longest ones that is one.
#[test]
fn what_is_in_flight_is_kept() {
    for (longest, window) in [
        (0, 64),
        (17_000, 64),
        (17_500, 63),
        (100_000, 11),
        (MAX_RESULT_BYTES, 1),
        (usize::MAX, 1),
    ] {
        assert_eq!(window_for(longest), window, "{longest}");
        assert!(window == 1 || window as usize * (longest + 5) <= KEPT_BYTES);
        let mut client = linked(ClientOptions {
            window,
            ..ClientOptions::default()
        });
        (0..100).for_each(|token| client.call(token, Bytes::from_static(b"op"), 1_000));
        let sent = requests(&mut client);
        assert_eq!(sent.len() as u64, window);
        if window < 3 {
            continue;
        }
        // The second is answered: the first still needs the room.
        (0..3).for_each(|from| says(&mut client, from, &sent[1].1, b"x", None));
        assert_eq!(requests(&mut client), vec![]);
        (0..3).for_each(|from| says(&mut client, from, &sent[0].1, b"x", None));
        assert_eq!(requests(&mut client).len(), 2);
    }
}

/// A program that does the same few things again and again has each of them answered in full by every replica at times, and by each about as
/// often: else one of them might send the content of all files, and another's disk would never be looked at.
#[test]
fn repliers_do_not_go_with_what_is_asked() {
    let mut client = in_session();
    let mut asked = [[0_u32; 4]; 4];
    for token in 0..800_u64 {
        let request = ask(&mut client, token, 1_000);
        asked[token as usize % 4][usize::from(request.replier.0)] += 1;
    }
    let counts = asked.iter().flatten();
    assert!(
        counts.clone().all(|count| (25..80).contains(count)),
        "{asked:?}"
    );
}

/// What has gone out since the last look.
fn sent(client: &mut Client) -> Vec<(ReplicaId, ClientMessage)> {
    let sent = client.drain().filter_map(|o| match o {
        ClientOutput::Send(to, message) => Some((to, message)),
        _ => None,
    });
    sent.collect()
}

fn is_signed(m: &AuthRequest) -> bool {
    let Authenticator::Signed(signature) = &m.auth else {
        return false;
    };
    let digest = m.request.digest();
    signature
        .verify(&m.request.client(), &GROUP, &digest)
        .is_ok()
}

/// Asks for an operation and gets its answer at once.
fn ask(client: &mut Client, token: u64, now: Millis) -> AuthRequest {
    client.call(token, Bytes::from_static(b"op"), now);
    let request = requests(client).remove(0).1;
    for replica in 0..3 {
        answer(client, ReplicaId(replica), &request, b"r", true, now);
    }
    request
}

/// Now and then a small request goes to the backups as well, signed, so that they can see how soon the primary orders it.
#[test]
fn some_requests_are_watched() {
    let mut client = in_session();
    let mut watched = 0;
    for ms in (2_000..7_000).step_by(10) {
        client.call(ms, Bytes::from_static(b"op"), ms);
        let sent = sent(&mut client);
        let to_primary = sent.iter().filter(|(to, _)| *to == ReplicaId(0));
        assert_eq!(to_primary.count(), 1);
        let ClientMessage::Request(request) = sent[0].1.clone() else {
            panic!("{sent:?}")
        };
        for (_, message) in &sent[1..] {
            let ClientMessage::Watch(watch) = message else {
                panic!("{message:?}")
            };
            assert!(is_signed(watch) && watch.request == request.request);
        }
        assert!(sent.len() == 1 || sent.len() == 4);
        watched += usize::from(sent.len() == 4);
        for replica in 0..3 {
            answer(&mut client, ReplicaId(replica), &request, b"r", true, ms);
        }
    }
    assert_eq!(watched, 5);
}

/// What is so long that all replicas get it is signed for the backups now and then: else a primary that is slow with it is judged by nobody, as long as its
/// answers come before they are asked for again.
#[test]
fn some_long_requests_are_signed() {
    let mut client = in_session();
    let (long, mut signed) = (Bytes::from(vec![7; INLINE_BYTES + 1]), 0);
    for ms in (2_000..7_000).step_by(10) {
        client.call(ms, long.clone(), ms);
        let sent = requests(&mut client);
        assert_eq!(sent.len(), 4);
        let (to, request) = sent[0].clone();
        assert!(to == ReplicaId(0) && !is_signed(&request));
        let for_backups = sent[1..].iter().filter(|(_, r)| is_signed(r)).count();
        assert!(for_backups == 0 || for_backups == 3);
        signed += for_backups / 3;
        for replica in 0..3 {
            answer(&mut client, ReplicaId(replica), &request, b"r", true, ms);
        }
    }
    assert_eq!(signed, 5);
}

/// A read that had to be ordered is answered by f+1 replicas, twice: the third time its result is to be kept, and nothing else is under way beside it.
#[test]
fn a_read_that_too_few_answer_is_to_be_kept() {
    let mut client = in_session();
    let is_kept = |(_, r): &(ReplicaId, AuthRequest)| r.request.is_kept();
    // Nobody answers it unordered.
    client.read(1, Bytes::from_static(b"read"), 1_000);
    client.on_tick(1_100);
    client.on_tick(1_200);
    let ordered = requests(&mut client).remove(0).1;
    assert!(!ordered.request.is_kept());
    client.call(2, Bytes::from_static(b"write"), 1_200);
    let write = requests(&mut client).remove(0).1;
    let mut now = 1_200;
    for answered in [1, 2] {
        for replica in [0, 1] {
            answer(&mut client, ReplicaId(replica), &ordered, b"r", true, now);
        }
        let sent = requests(&mut client);
        assert!(!sent.iter().any(is_kept), "answered {answered} times");
        now += 10_000;
        client.on_tick(now);
    }
    assert_eq!(requests(&mut client), vec![], "a change is under way");
    for replica in 0..3 {
        answer(&mut client, ReplicaId(replica), &write, b"w", true, now);
    }
    let sent = requests(&mut client);
    assert!(!sent.is_empty() && sent.iter().all(is_kept));
    let kept = sent[0].1.clone();
    assert_eq!(kept.request.op(), ordered.request.op());
    client.call(3, Bytes::from_static(b"write"), now);
    assert_eq!(requests(&mut client), vec![], "it goes alone");
    for replica in [0, 1, 3] {
        answer(&mut client, ReplicaId(replica), &kept, b"r", true, now);
    }
    let sent = requests(&mut client);
    assert!(!sent.is_empty() && !sent.iter().any(is_kept));
}

/// A request is repeated sooner where answers are quick, and the repetition is signed.
#[test]
fn repetitions_are_signed_and_soon() {
    for (took, due) in [(0, 100), (50, 150), (900, 1_000)] {
        let mut client = in_session();
        for token in 0..100 {
            client.call(token, Bytes::from_static(b"op"), 100);
            let request = requests(&mut client).remove(0).1;
            for replica in 0..3 {
                let at = 100 + took;
                answer(&mut client, ReplicaId(replica), &request, b"r", true, at);
            }
        }
        client.call(100, Bytes::from_static(b"op"), 2_000);
        sent(&mut client);
        client.on_tick(2_000 + due - 1);
        assert_eq!(sent(&mut client), vec![]);
        // What times differ by is rounded.
        client.on_tick(2_000 + due + 4);
        let repeated = sent(&mut client);
        assert_eq!(repeated.len(), 4);
        for (_, message) in repeated {
            assert!(matches!(&message, ClientMessage::Repeat(m) if is_signed(m)));
        }
    }
}

/// A request with MACs that is answered when it was repeated. Returns that time.
fn repeats(client: &mut Client, token: u64, now: Millis) -> Millis {
    let (request, now) = late(client, token, now);
    assert!(!is_signed(&request));
    now
}

/// So many such requests in a row that all is signed for a while. Returns when the last was answered.
fn unheard(client: &mut Client, token: u64, now: Millis) -> Millis {
    (token..token + 3).fold(now, |now, token| repeats(client, token, now))
}

/// A request that is answered 5 s later, when it was repeated; and that time.
fn late(client: &mut Client, token: u64, now: Millis) -> (AuthRequest, Millis) {
    client.call(token, Bytes::from_static(b"op"), now);
    let request = requests(client).remove(0).1;
    let now = now + 5_000;
    client.on_tick(now);
    sent(client);
    for replica in 0..3 {
        answer(client, ReplicaId(replica), &request, b"r", true, now);
    }
    (request, now)
}

/// Where nothing but repetitions is answered, a primary does not believe this client's MACs: all is signed for a while.
#[test]
fn who_is_not_heard_signs() {
    let mut client = in_session();
    let now = unheard(&mut client, 0, 1_000);
    assert!(is_signed(&ask(&mut client, 10, now)));
    assert!(is_signed(&ask(&mut client, 11, now + 999)));
    assert!(!is_signed(&ask(&mut client, 12, now + 1_000)));
}

/// A primary that takes signed requests alone says so: what it has refused is sent again at once, and all else is signed for a while, longer each time.
/// Others have nothing to say in this, and nothing is sent again for it twice.
#[test]
fn who_is_told_to_sign_does_so_at_once() {
    let mut client = in_session();
    let mut now = 1_000;
    for (token, long) in (0..).zip([1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 32_000]) {
        client.call(token, Bytes::from_static(b"op"), now);
        let asked = requests(&mut client).remove(0).1;
        assert!(!is_signed(&asked));
        let refused = Unsigned {
            session: asked.request.session(),
            number: asked.request.number(),
        };
        client.on_unsigned(ReplicaId(1), &refused, now + 1);
        assert_eq!(sent(&mut client), vec![]);
        client.on_unsigned(ReplicaId(0), &refused, now + 1);
        let again = sent(&mut client);
        let [(ReplicaId(0), ClientMessage::Request(signed))] = &again[..] else {
            panic!("{again:?}")
        };
        assert!(is_signed(signed) && signed.request == asked.request);
        client.on_unsigned(ReplicaId(0), &refused, now + 1);
        assert_eq!(sent(&mut client), vec![]);
        for replica in 0..3 {
            answer(&mut client, ReplicaId(replica), &asked, b"r", true, now + 1);
        }
        now += 1 + long;
        assert!(is_signed(&ask(&mut client, 100 + token, now - 1)));
    }
}

/// If MACs do not bring requests through afterwards either, all is signed for twice as long each time, up to half a minute; and if they do
/// for a minute, for as long as at first.
#[test]
fn who_is_not_heard_again_signs_for_longer() {
    let mut client = in_session();
    let mut now = 1_000;
    for (turn, long) in [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 32_000]
        .into_iter()
        .enumerate()
    {
        now = unheard(&mut client, 10 * turn as u64, now);
        assert!(
            is_signed(&ask(&mut client, 1_000, now + long - 1)),
            "{turn}"
        );
        now += long;
    }
    now += 60_000;
    now = unheard(&mut client, 100, now);
    assert!(is_signed(&ask(&mut client, 1_000, now + 999)));
    assert!(!is_signed(&ask(&mut client, 1_000, now + 1_000)));
}

/// What was signed and late tells nothing of MACs: a group that is slow for another reason is not given more signatures for it.
#[test]
fn what_was_signed_and_is_late_does_not_count() {
    let mut client = in_session();
    let mut now = 1_000;
    for (turn, long) in [1_000, 2_000, 4_000, 8_000, 16_000, 32_000]
        .into_iter()
        .enumerate()
    {
        now = unheard(&mut client, 10 * turn as u64, now);
        now += long;
    }
    let end = now;
    now -= 32_000;
    for token in 100..104 {
        let (asked, answered) = late(&mut client, token, now);
        assert!(is_signed(&asked));
        now = answered;
    }
    assert!(now < end);
    assert!(!is_signed(&ask(&mut client, 200, end)));
}

/// That a request is answered which others have shown to the primary, signed, tells nothing of MACs.
#[test]
fn what_others_have_shown_was_not_heard() {
    let mut client = in_session();
    let mut now = 3_000;
    for token in 0..3 {
        // This one is watched, and answered when it was shown.
        client.call(10 + token, Bytes::from_static(b"op"), now);
        let all = sent(&mut client);
        let ClientMessage::Request(watched) = all[0].1.clone() else {
            panic!("{all:?}")
        };
        assert!(all.len() == 4 && !is_signed(&watched), "{all:?}");
        now += 65;
        for replica in 0..3 {
            answer(&mut client, ReplicaId(replica), &watched, b"r", true, now);
        }
        now = repeats(&mut client, token, now);
    }
    assert!(is_signed(&ask(&mut client, 20, now)));
}

/// A request that can't have all MACs is signed, so that nobody takes its client for one that gives wrong ones; as long as the replica
/// that lacks one may just be on its way.
#[test]
fn who_lacks_a_link_signs() {
    let me = KeyPair::from_seed(&[50; 32]);
    let options = ClientOptions::default();
    let mut client = Client::new(GROUP, Quorum::new(4).unwrap(), options, me, NONCE, 0);
    (0..3).for_each(|replica| link(&mut client, replica));
    let opening = requests(&mut client).remove(0).1;
    assert!(is_signed(&opening));
    let session = SessionId(1).to_bytes();
    for replica in [0, 1, 2] {
        answer(&mut client, ReplicaId(replica), &opening, &session, true, 0);
    }
    assert!(is_signed(&ask(&mut client, 0, 1_999)));
    let without = ask(&mut client, 1, 2_000);
    assert_eq!(right_macs(&without), 3);
    link(&mut client, 3);
    client.on_tick(5_000);
    client.on_link(ReplicaId(3), None);
    assert!(is_signed(&ask(&mut client, 2, 6_999)));
    assert!(!is_signed(&ask(&mut client, 3, 7_000)));
}

/// Ten requests of which nothing is heard: repeated at a time, they share a signature. They have waited for one reason, so that
/// this does not count for more than one that was not heard.
#[test]
fn what_waits_together_counts_once() {
    let mut client = in_session();
    let (mut now, mut token) = (1_000, 0);
    for round in 0..3 {
        let op = Bytes::from_static(b"op");
        for _ in 0..10 {
            client.call(token, op.clone(), now);
            token += 1;
        }
        let asked = requests(&mut client);
        assert!(!asked.iter().any(|(_, m)| is_signed(m)), "{round}");
        now += 5_000;
        client.on_tick(now);
        let repeated = sent(&mut client).into_iter().map(|(_, m)| match m {
            ClientMessage::Repeat(m) if is_signed(&m) => m,
            other => panic!("{other:?}"),
        });
        let repeated: Vec<AuthRequest> = repeated.collect();
        assert_eq!(repeated.len(), 4 * 10);
        let signature = |m: &AuthRequest| match &m.auth {
            Authenticator::Signed(shared) => *shared.signature(),
            Authenticator::Macs(_) => panic!("signed"),
        };
        assert!(
            repeated
                .iter()
                .all(|m| signature(m) == signature(&repeated[0]))
        );
        for (_, request) in &asked {
            for replica in 0..3 {
                answer(&mut client, ReplicaId(replica), request, b"r", true, now);
            }
        }
    }
    assert!(is_signed(&ask(&mut client, token, now)), "thrice in a row");
}

/// When the primary's process is gone, the backups get what waits, without waiting for a time-out.
#[test]
fn a_lost_primary_is_not_waited_for() {
    let mut client = in_session();
    client.call(1, Bytes::from_static(b"op"), 10);
    assert_eq!(requests(&mut client).len(), 1);
    client.on_link(ReplicaId(2), None);
    assert_eq!(requests(&mut client), vec![]);
    client.on_link(ReplicaId(0), None);
    let to: Vec<u8> = requests(&mut client).iter().map(|(to, _)| to.0).collect();
    assert_eq!(to, [1, 2, 3]);
    client.on_link(ReplicaId(0), None);
    assert_eq!(requests(&mut client), vec![]);
    client.call(2, Bytes::from_static(b"op"), 20);
    assert_eq!(requests(&mut client).len(), 4);
}

/// A primary may order what the backups show it and ignore what this client sends it alone: then all are asked at once, for a while,
/// rather than each time when the client has lost patience. What a change of views made late does not count.
#[test]
fn a_client_that_is_ignored_asks_all() {
    let mut client = in_session();
    let mut now = 1_000;
    for token in 0..3 {
        client.call(token, Bytes::from_static(b"op"), now);
        let sent_to = requests(&mut client);
        assert_eq!(sent_to.len(), 1);
        now += 5_000;
        client.on_tick(now);
        sent(&mut client);
        for replica in 0..3 {
            let to = &sent_to[0].1;
            answer(&mut client, ReplicaId(replica), to, b"r", true, now);
        }
    }
    let sent_to = |client: &mut Client, token, now| {
        client.call(token, Bytes::from_static(b"op"), now);
        let sent_to = requests(client);
        for replica in 0..3 {
            answer(client, ReplicaId(replica), &sent_to[0].1, b"r", true, now);
        }
        sent_to.len()
    };
    assert_eq!(sent_to(&mut client, 10, now), 4);
    assert_eq!(sent_to(&mut client, 11, now + 29_000), 4);
    assert_eq!(sent_to(&mut client, 12, now + 30_000), 1);
}
