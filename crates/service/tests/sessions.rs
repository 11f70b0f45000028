//! What a thread that waits can do with a session: give up, and close it.

use std::time::Duration;

use quorate_service::{
    Bytes, Call, Fault, Local, NoResult, Rest, Service, Session, TimedCallError, Txn,
};

/// Counts its operations and the sessions that have ended. An operation takes as many times 10 ms as its first byte says.
#[derive(Clone, Debug)]
struct Slow;

fn add(txn: &mut Txn<'_>, key: &'static [u8]) -> Result<(), Fault> {
    let count = txn.get(key)?.unwrap_or_default();
    txn.put(key.into(), [&count[..], b"+"].concat().into());
    Ok(())
}

impl Service for Slow {
    fn genesis(&self, _txn: &mut Txn<'_>) -> Result<(), Fault> {
        Ok(())
    }

    fn is_read_only(&self, op: &[u8]) -> bool {
        op == b"done" || op == b"ended"
    }

    fn execute(&self, txn: &mut Txn<'_>, _call: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        if self.is_read_only(op) {
            return Ok(txn.get(op)?.unwrap_or_default());
        }
        std::thread::sleep(Duration::from_millis(10) * u32::from(op[0]));
        add(txn, b"done")?;
        Ok(Bytes::new())
    }

    fn session_ended(&self, txn: &mut Txn<'_>, _call: &Call) -> Result<Rest, Fault> {
        add(txn, b"ended")?;
        Ok(Rest::Nothing)
    }
}

const LONG: Duration = Duration::from_secs(60);

/// Who gives up is told so, in time, and the operation is executed all the same; the session goes on. With nobody there, too.
#[test]
fn a_thread_can_give_up() {
    for replicas in [1, 4] {
        let group = Local::start(replicas, Slow).expect("a group");
        let session = group.session().expect("a session");
        let quick = Bytes::from_static(&[0]);
        assert_eq!(
            session.call_blocking_for(quick.clone(), LONG),
            Ok(Bytes::new())
        );
        let slow = session.call_blocking_for(vec![100].into(), Duration::from_millis(50));
        assert_eq!(slow, Err(TimedCallError::TimedOut));
        // Ordered after the one that was given up, which was sent before.
        assert_eq!(session.call_blocking_for(quick, LONG), Ok(Bytes::new()));
        let done = session.read_blocking_for("done".into(), LONG);
        assert_eq!(done, Ok("+++".into()));
        let empty = session.call_blocking_for(Bytes::new(), LONG);
        assert_eq!(empty, Err(NoResult::OpEmpty.into()));

        drop(group);
        let gone = session.read_blocking_for("done".into(), Duration::from_millis(50));
        assert_eq!(gone, Err(TimedCallError::TimedOut));
    }
}

/// The service hears of it when a thread closes a session, long before its lease ends; nothing can be asked of that session then.
#[test]
fn a_thread_can_close_a_session() {
    let group = Local::start(4, Slow).expect("a group");
    let (first, second) = (group.session(), group.session());
    let (first, second) = (first.expect("a session"), second.expect("a session"));
    first.call_blocking(vec![0].into()).expect("it is open");
    assert_eq!(second.call_blocking("ended".into()), Ok(Bytes::new()));
    first.close_blocking();
    let late = first.call_blocking_for(vec![0].into(), LONG);
    assert_eq!(late, Err(NoResult::SessionLost.into()));
    assert_eq!(second.call_blocking("ended".into()), Ok("+".into()));
    first.close_blocking();
}

/// A session in its caller's thread can give up as well. What was given up is executed, and its result is nobody's: it is not taken for that of another.
#[test]
fn an_inline_session_can_give_up() {
    let group = Local::start(4, Slow).expect("a group");
    let mut session = group.inline_session().expect("a session");
    assert_eq!(session.call_for(vec![0].into(), LONG), Ok(Bytes::new()));
    let slow = session.call_for(vec![100].into(), Duration::from_millis(50));
    assert_eq!(slow, Err(TimedCallError::TimedOut));
    assert_eq!(session.in_flight(), 1);
    assert_eq!(session.call(vec![0].into()), Ok(Bytes::new()));
    assert_eq!(session.read_for("done".into(), LONG), Ok("+++".into()));
    assert_eq!(session.in_flight(), 0);
    assert_eq!(session.poll(Duration::ZERO).expect("it lives"), None);
    drop(group);
    let gone = session.read_for("done".into(), Duration::from_millis(50));
    assert_eq!(gone, Err(TimedCallError::TimedOut));
}

/// The clients of a local group are told apart.
#[test]
fn a_local_group_has_several_clients() {
    #[derive(Clone, Debug)]
    struct Who;
    impl Service for Who {
        fn is_read_only(&self, _op: &[u8]) -> bool {
            false
        }
        fn execute(&self, _txn: &mut Txn<'_>, call: &Call, _op: &Bytes) -> Result<Bytes, Fault> {
            Ok(Bytes::copy_from_slice(&call.client.0))
        }
    }
    let group = Local::start(1, Who).expect("a group");
    let mut seen = std::collections::BTreeSet::new();
    for client in 0..Local::CLIENTS {
        let session = Session::connect(group.group(), &group.identity(client)).expect("a session");
        let who = session.call_blocking("who".into()).expect("it is open");
        assert!(seen.insert(who));
    }
}
