//! Sessions in great number, that hold much, or whose clients never say what they have.

use std::sync::Arc;

use bytes::Bytes;
use quorate_execution::{Call, Executor, Rest, Service};
use quorate_state::{Fault, MemorySnapshot, State, Txn};
use quorate_wire::message::session::{SESSION_LEASE_MS, SESSION_WINDOW};
use quorate_wire::message::{Control, Outcome, Request};
use quorate_wire::{ClientId, Decode, Encode, PublicKey, RequestNumber, SessionId, Time};

/// What is let go of at once.
const PART: u8 = 10;

/// An operation takes so many things, which its session holds from then on; [`LOOK`] says how many.
struct Holder;

const LOOK: &[u8] = b"?";

fn key(session: SessionId) -> Bytes {
    [&b"h"[..], &session.0.to_be_bytes()].concat().into()
}

fn held(txn: &Txn<'_>, session: SessionId) -> Result<u8, Fault> {
    Ok(txn.get(&key(session))?.map_or(0, |bytes| bytes[0]))
}

impl Service for Holder {
    fn genesis(&self, _: &mut Txn<'_>) -> Result<(), Fault> {
        Ok(())
    }

    fn is_read_only(&self, op: &[u8]) -> bool {
        op == LOOK
    }

    fn execute(&self, txn: &mut Txn<'_>, call: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        if op == LOOK {
            return Ok(vec![held(txn, call.session)?].into());
        }
        let now = held(txn, call.session)? + op[0];
        txn.put(key(call.session), vec![now].into());
        Ok(vec![now].into())
    }

    fn session_ended(&self, txn: &mut Txn<'_>, call: &Call) -> Result<Rest, Fault> {
        let left = held(txn, call.session)?.saturating_sub(PART);
        match left {
            0 => txn.delete(key(call.session)),
            left => txn.put(key(call.session), vec![left].into()),
        }
        Ok(if left == 0 { Rest::Nothing } else { Rest::More })
    }
}

struct World {
    executor: Executor<Holder>,
    state: State,
    time: u64,
}

fn client(number: u8) -> ClientId {
    PublicKey([number; 32])
}

impl World {
    fn new() -> World {
        let mut state = State::new(Arc::new(MemorySnapshot::default()));
        let executor = Executor::new(Holder);
        executor.genesis(&mut state).unwrap();
        let time = 1_000_000_000_000;
        World {
            executor,
            state,
            time,
        }
    }

    fn run(&mut self, client: ClientId, session: u64, number: u64, op: Bytes) -> Outcome {
        self.time += 1;
        let request = Request::new(client, SessionId(session), RequestNumber(number), op);
        let (executor, state) = (&mut self.executor, &mut self.state);
        let done = executor.execute(state, Time(self.time), [&request]);
        Outcome::from_bytes(done.unwrap().remove(0).outcome).unwrap()
    }

    fn open(&mut self, client: ClientId, nonce: u64) -> u64 {
        let op = Control::Open(()).to_bytes().into();
        match self.run(client, 0, nonce, op) {
            Outcome::Done(id) => SessionId::from_bytes(id).unwrap().0,
            other => panic!("{other:?}"),
        }
    }

    /// How much all sessions up to a number hold.
    fn held(&mut self, sessions: u64) -> usize {
        let txn = self.state.begin();
        let all = (1..=sessions).map(|s| usize::from(held(&txn, SessionId(s)).unwrap()));
        all.sum()
    }

    fn pass(&mut self, ms: u64) {
        self.time += ms * 1_000_000;
    }
}

/// Many sessions end at once that hold much: each operation lets go of a part, also after a restart in between, and in the
/// end nothing is held.
#[test]
fn what_many_sessions_held_goes_in_parts() {
    let mut w = World::new();
    let sessions: Vec<(ClientId, u64)> = (1..=40)
        .map(|n| (client(n), w.open(client(n), 1)))
        .collect();
    for (client, session) in &sessions {
        w.run(*client, *session, 1, Bytes::from_static(&[200]));
    }
    let last = sessions.len() as u64 + 1;
    assert_eq!(w.held(last), 40 * 200);
    w.pass(2 * SESSION_LEASE_MS);
    let other = w.open(client(99), 1);
    let mut before = w.held(last);
    let mut steps = 0;
    while before > 0 {
        steps += 1;
        assert!(steps < 1_000, "it never ends");
        if steps % 100 == 0 {
            w.executor.flush(&mut w.state);
            w.executor.reset();
        }
        w.run(client(99), other, steps, Bytes::from_static(&[0]));
        let now = w.held(last);
        assert!(before - now <= 4 * usize::from(PART), "{before} {now}");
        before = now;
    }
    for (client, session) in sessions {
        let told = w.run(client, session, 2, Bytes::from_static(&[1]));
        assert_eq!(told, Outcome::NoSession(()));
    }
}

/// A closed session's things go with the next operations; nobody can use it meanwhile.
#[test]
fn a_closed_session_holds_on_for_a_while_only() {
    let mut w = World::new();
    let session = w.open(client(1), 1);
    w.run(client(1), session, 1, Bytes::from_static(&[25]));
    let close = Control::Close(SessionId(session)).to_bytes();
    w.run(client(1), 0, 7, close.into());
    let other = w.open(client(1), 2);
    assert_eq!(w.held(session), 15);
    let told = w.run(client(1), session, 2, Bytes::from_static(&[1]));
    assert_eq!(told, Outcome::NoSession(()));
    w.run(client(1), other, 1, Bytes::from_static(&[0]));
    assert_eq!(w.held(session), 0);
}

/// A session ends with its client, whoever shows its last requests again: what kept it alive, what it read, and what it wrote.
#[test]
fn no_session_lives_on_by_what_is_shown_again() {
    for last in [&b""[..], LOOK, &[1]] {
        let mut w = World::new();
        let (ours, other) = (w.open(client(1), 1), w.open(client(2), 1));
        w.run(client(1), ours, 1, Bytes::from_static(last));
        let mut again = Outcome::Done(Bytes::new());
        for renewal in 1..=8 {
            w.pass(SESSION_LEASE_MS / 4);
            w.run(client(2), other, renewal, Bytes::new());
            again = w.run(client(1), ours, 1, Bytes::from_static(last));
        }
        assert_eq!(again, Outcome::NoSession(()), "{last:?}");
        // Who is there keeps its session.
        let told = w.run(client(2), other, 9, Bytes::new());
        assert_eq!(told, Outcome::Done(Bytes::new()));
    }
}

/// Old openings that are shown again make sessions that nobody uses: they make room for each other, and not one that is in use does, though it was used long before.
#[test]
fn old_openings_end_no_session_that_is_in_use() {
    for used in [&b""[..], &[1]] {
        let mut w = World::new();
        let ours = w.open(client(1), 100);
        w.run(client(1), ours, 1, Bytes::copy_from_slice(used));
        w.pass(10_000);
        for nonce in 1..=50 {
            w.open(client(1), nonce);
        }
        let told = w.run(client(1), ours, 2, Bytes::new());
        assert_eq!(told, Outcome::Done(Bytes::new()));
    }
}

/// Sessions of processes that have died make room before one that has just been opened.
#[test]
fn who_is_gone_makes_room_before_who_has_just_come() {
    let mut w = World::new();
    for nonce in 1..=15 {
        let dead = w.open(client(1), nonce);
        w.run(client(1), dead, 1, Bytes::from_static(&[1]));
    }
    w.pass(40_000);
    let first = w.open(client(1), 100);
    w.open(client(1), 101);
    let told = w.run(client(1), first, 1, Bytes::from_static(&[1]));
    assert!(matches!(told, Outcome::Done(_)), "{told:?}");
}

/// What was undone has used no session.
#[test]
fn what_is_undone_has_used_nothing() {
    let mut w = World::new();
    let (first, second) = (w.open(client(1), 100), w.open(client(1), 101));
    w.executor.begin_tentative(&mut w.state).unwrap();
    w.run(client(1), first, 1, Bytes::new());
    w.executor.drop_tentative(&mut w.state);
    w.run(client(1), second, 1, Bytes::new());
    for nonce in 1..=15 {
        w.open(client(1), nonce);
    }
    let [first, second] = [first, second].map(|session| w.run(client(1), session, 2, Bytes::new()));
    assert_eq!(first, Outcome::NoSession(()));
    assert_eq!(second, Outcome::Done(Bytes::new()));
}

/// Thousands of sessions are looked at a part at a time, and all whose leases are over end.
#[test]
fn thousands_of_sessions_end() {
    let mut w = World::new();
    let mut sessions = Vec::new();
    for number in 1..=200 {
        for nonce in 0..16 {
            sessions.push((client(number), w.open(client(number), nonce)));
        }
    }
    w.pass(2 * SESSION_LEASE_MS);
    let mut alive = w.open(client(250), 0);
    for second in 0..1_000 {
        w.pass(1_000);
        if w.run(client(250), alive, 1 + second, Bytes::new()) == Outcome::NoSession(()) {
            alive = w.open(client(250), second);
        }
    }
    for (client, session) in sessions {
        let told = w.run(client, session, 1, Bytes::from_static(&[1]));
        assert_eq!(told, Outcome::NoSession(()), "{session}");
    }
}

/// A client that never says what it has been answered has as many replies kept as it may have requests in flight, in one
/// session, and has as many sessions as others.
#[test]
fn who_never_acknowledges_has_a_window_kept() {
    let mut w = World::new();
    let mut newest = 0;
    for nonce in 0..40 {
        newest = w.open(client(1), nonce);
        for number in 1..=200 {
            w.run(client(1), newest, number, Bytes::from_static(&[0]));
        }
        w.executor.flush(&mut w.state);
    }
    // 16 sessions, each with a window of replies.
    let mut kept = 0;
    for session in 1..=newest {
        for number in 1..=200 {
            let (session, number) = (SessionId(session), RequestNumber(number));
            let (executor, state) = (&mut w.executor, &mut w.state);
            let cached = executor.cached(state, client(1), session, number).unwrap();
            kept += usize::from(matches!(cached, quorate_execution::Cached::Reply(_)));
        }
    }
    assert_eq!(kept, 16 * SESSION_WINDOW as usize);
}
