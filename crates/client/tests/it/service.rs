//! A service of one's own, replicated: real replicas and a client in this process.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bytes::Bytes;
use quorate_client::{InlineSession, Session};
use quorate_execution::graph::{Conflicts, Uses};
use quorate_execution::{Call, Rest, Service};
use quorate_net::group::{Files, Purpose};
use quorate_net::{Group, Identity};
use quorate_node::{Daemon, Options};
use quorate_state::{Fault, Txn};
use quorate_wire::{KeyPair, ReplicaId};

/// Adds what it is told to, and says the sum.
#[derive(Clone, Debug)]
pub(crate) struct Sum;

const KEY: &[u8] = b"sum";

impl Service for Sum {
    fn genesis(&self, txn: &mut Txn<'_>) -> Result<(), Fault> {
        txn.put(KEY.into(), vec![0; 8].into());
        Ok(())
    }

    fn is_read_only(&self, op: &[u8]) -> bool {
        op == b"panic?"
    }

    fn execute(&self, txn: &mut Txn<'_>, _call: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        assert!(!op.starts_with(b"panic"), "as asked");
        let sum = txn.get(KEY)?.unwrap_or_default();
        let sum = u64::from_le_bytes(sum[..].try_into().unwrap_or_default());
        let sum = sum + op.first().map_or(0, |add| u64::from(*add));
        let sum = Bytes::copy_from_slice(&sum.to_le_bytes());
        txn.put(KEY.into(), sum.clone());
        Ok(sum)
    }

    fn session_ended(&self, _txn: &mut Txn<'_>, _call: &Call) -> Result<Rest, Fault> {
        Ok(Rest::Nothing)
    }
}

pub(crate) fn key(seed: u8) -> KeyPair {
    KeyPair::from_seed(&[seed; 32])
}

/// A group on ports that are free now.
fn group(n: u8) -> Arc<Group> {
    let ports: Vec<_> = (0..n)
        .map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let address = |i: u8| ports[usize::from(i)].local_addr().unwrap().to_string();
    let replicas = (0..n).map(|i| (address(i), key(i).public())).collect();
    let clients = vec![("client".into(), key(100).public())];
    let group = Group::new("sum", replicas, clients, Files::default(), Purpose::Service);
    Arc::new(group.unwrap())
}

fn start(group: &Arc<Group>, id: u8, data: &std::path::Path, first_start: bool) -> Daemon {
    Daemon::start(options(group, id, data, first_start), Sum).unwrap()
}

fn options(group: &Arc<Group>, id: u8, data: &std::path::Path, first_start: bool) -> Options {
    Options {
        first_start,
        // Some with workers, some without: nobody can tell.
        workers: usize::from(id % 2) * 3,
        ..Options::new(
            group.clone(),
            ReplicaId(id),
            key(id),
            data.join(id.to_string()),
        )
    }
}

/// Calls the group, stops all its replicas, starts them again and calls once more.
fn adds_up(n: u8) {
    let (group, data) = (group(n), tempfile::tempdir().unwrap());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for round in 0..2u64 {
        let replicas: Vec<_> = (0..n)
            .map(|id| start(&group, id, data.path(), round == 0))
            .collect();
        let session = Session::connect(&group, &Identity::new(&key(100))).unwrap();
        for i in 1..=200 {
            let sum = session.call_blocking(Bytes::from_static(&[3])).unwrap();
            assert_eq!(sum[..], (600 * round + 3 * i).to_le_bytes());
        }
        runtime.block_on(session.close());
        replicas.iter().for_each(|r| r.stopper().stop());
        replicas.into_iter().for_each(|r| r.wait().unwrap());
    }
}

/// A group of one is a server that is not replicated: nothing is voted on, all else is the same.
#[test]
fn a_group_of_one_serves() {
    adds_up(1);
}

/// Four replicas agree, and remember over a restart.
#[test]
fn a_group_of_four_serves() {
    adds_up(4);
}

/// As [`Sum`], but it has an answer to what that one panics over.
#[derive(Clone, Debug)]
struct Mended;

impl Service for Mended {
    fn genesis(&self, txn: &mut Txn<'_>) -> Result<(), Fault> {
        Sum.genesis(txn)
    }

    fn is_read_only(&self, op: &[u8]) -> bool {
        Sum.is_read_only(op)
    }

    fn execute(&self, txn: &mut Txn<'_>, call: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        match op.starts_with(b"panic") {
            true => Ok("mended".into()),
            false => Sum.execute(txn, call, op),
        }
    }

    fn session_ended(&self, txn: &mut Txn<'_>, call: &Call) -> Result<Rest, Fault> {
        Sum.session_ended(txn, call)
    }
}

/// A service that panics takes its replica out, which says why: on a worker and on the thread that orders, in an operation and in a read.
/// A read that was asked for again, and ordered, is like an operation. That was agreed on, so it takes the replica out again whenever that starts, until the service is mended: then all goes on, and the operation
/// has its answer.
#[test]
fn a_panic_is_told() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for (workers, is_read) in [(0, false), (2, false), (0, true), (2, true)] {
        let (group, data) = (group(1), tempfile::tempdir().unwrap());
        let options = |first_start| Options {
            workers,
            ..options(&group, 0, data.path(), first_start)
        };
        let replica = Daemon::start(options(true), Sum).unwrap();
        let session = Session::connect(&group, &Identity::new(&key(100))).unwrap();
        let sum = session.call_blocking(Bytes::from_static(&[3])).unwrap();
        assert_eq!(sum[..], 3u64.to_le_bytes());
        let asking = session.clone();
        let call = runtime.spawn(async move {
            match is_read {
                true => asking.read("panic?".into()).await,
                false => asking.call("panic".into()).await,
            }
        });
        let told = replica.wait().unwrap_err().to_string();
        assert!(
            told.contains("panicked") && told.contains("as asked"),
            "{told}"
        );
        if !is_read {
            let again = Daemon::start(options(false), Sum).and_then(Daemon::wait);
            let told = again.unwrap_err().to_string();
            assert!(
                told.contains("panicked") && told.contains("as asked"),
                "{told}"
            );
        }
        let replica = Daemon::start(options(false), Mended).unwrap();
        let answer = runtime.block_on(call).unwrap();
        assert_eq!(answer.unwrap(), "mended");
        let sum = session.call_blocking(Bytes::from_static(&[4])).unwrap();
        assert_eq!(sum[..], 7u64.to_le_bytes());
        replica.stopper().stop();
        replica.wait().unwrap();
    }
}

/// Where the replicas of a group of four panic over an operation, all that was agreed on is there when they run a service that is mended.
#[test]
fn a_group_outlives_a_panic() {
    let (group, data) = (group(4), tempfile::tempdir().unwrap());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let replicas: Vec<_> = (0..4)
        .map(|id| start(&group, id, data.path(), true))
        .collect();
    let session = Session::connect(&group, &Identity::new(&key(100))).unwrap();
    for i in 1..=20u64 {
        let sum = session.call_blocking(Bytes::from_static(&[3])).unwrap();
        assert_eq!(sum[..], (3 * i).to_le_bytes());
    }
    let asking = session.clone();
    let call = runtime.spawn(async move { asking.call("panic".into()).await });
    // Where one is left behind by three that have ended, it would wait for them.
    let mut replicas = replicas.into_iter();
    let told = replicas.next().unwrap().wait().unwrap_err().to_string();
    assert!(told.contains("as asked"), "{told}");
    for replica in replicas {
        replica.stopper().stop();
        if let Err(e) = replica.wait() {
            assert!(e.to_string().contains("as asked"), "{e}");
        }
    }
    let replicas: Vec<_> = (0..4)
        .map(|id| Daemon::start(options(&group, id, data.path(), false), Mended).unwrap())
        .collect();
    let answer = runtime.block_on(call).unwrap();
    assert_eq!(answer.unwrap(), "mended");
    let sum = session.call_blocking(Bytes::from_static(&[3])).unwrap();
    assert_eq!(sum[..], 63u64.to_le_bytes());
    replicas.iter().for_each(|r| r.stopper().stop());
    replicas.into_iter().for_each(|r| r.wait().unwrap());
}

/// A session in the thread of its caller: one operation after the other, and many at a time.
#[test]
fn operations_in_the_callers_thread() {
    let (group, data) = (group(4), tempfile::tempdir().unwrap());
    let replicas: Vec<_> = (0..4)
        .map(|id| start(&group, id, data.path(), true))
        .collect();
    let mut session = InlineSession::connect(&group, &Identity::new(&key(100))).unwrap();
    let one = Bytes::from_static(&[1]);
    for sum in 1..=50u64 {
        let result = session.call(one.clone()).unwrap();
        assert_eq!(result[..], sum.to_le_bytes());
    }
    assert_eq!(session.generation(), 1);
    // More than are in flight at a time. Results come in any order, each under its ticket.
    let tickets: Vec<_> = (0..3 * InlineSession::WINDOW)
        .map(|_| session.submit(one.clone()))
        .collect();
    let mut sums = BTreeSet::new();
    let mut open: BTreeSet<_> = tickets.into_iter().collect();
    while !open.is_empty() {
        assert!(session.in_flight() <= open.len());
        let result = session.poll(Duration::from_secs(20)).unwrap();
        let (ticket, result) = result.expect("a result comes in time");
        assert!(open.remove(&ticket));
        sums.insert(u64::from_le_bytes(result.unwrap()[..].try_into().unwrap()));
    }
    let last = 50 + 3 * InlineSession::WINDOW as u64;
    assert!(sums.into_iter().eq(51..=last));
    assert!(session.poll(Duration::from_millis(1)).unwrap().is_none());
    session.close();
    replicas.iter().for_each(|r| r.stopper().stop());
    replicas.into_iter().for_each(|r| r.wait().unwrap());
}

/// Sees how many of its operations are at work at a time, now and at the most. None conflicts with another; `two` waits until another is at work.
#[derive(Clone, Debug, Default)]
struct Gauge(Arc<(Mutex<(usize, usize)>, Condvar)>);

impl Service for Gauge {
    fn genesis(&self, _txn: &mut Txn<'_>) -> Result<(), Fault> {
        Ok(())
    }

    fn is_read_only(&self, _op: &[u8]) -> bool {
        false
    }

    fn execute(&self, _txn: &mut Txn<'_>, _call: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        let (gauge, changed) = &*self.0;
        let mut at_work = gauge.lock().unwrap();
        at_work.0 += 1;
        at_work.1 = at_work.1.max(at_work.0);
        changed.notify_all();
        if op == "two" {
            let mut at_work = changed.wait_while(at_work, |g| g.1 < 2).unwrap();
            at_work.0 -= 1;
            return Ok(Bytes::new());
        }
        drop(at_work);
        std::thread::sleep(Duration::from_millis(2));
        gauge.lock().unwrap().0 -= 1;
        Ok(Bytes::new())
    }

    fn session_ended(&self, _txn: &mut Txn<'_>, _call: &Call) -> Result<Rest, Fault> {
        Ok(Rest::Nothing)
    }

    fn uses(&self, _call: &Call, _op: &Bytes) -> Uses {
        Uses::none()
    }
}

/// What does not conflict is at work at the same time, and in BASE nothing is.
#[test]
fn in_base_all_conflict() {
    for (conflicts, op) in [(Conflicts::Declared, "two"), (Conflicts::All, "one")] {
        let (group, data, gauge) = (group(1), tempfile::tempdir().unwrap(), Gauge::default());
        let options = Options {
            workers: 4,
            conflicts,
            ..options(&group, 0, data.path(), true)
        };
        let replica = Daemon::start(options, gauge.clone()).unwrap();
        let mut session = InlineSession::connect(&group, &Identity::new(&key(100))).unwrap();
        for _ in 0..32 {
            session.submit(op.into());
        }
        while session.in_flight() > 0 {
            session.poll(Duration::from_secs(1)).unwrap();
        }
        let most = gauge.0.0.lock().unwrap().1;
        assert_eq!(most > 1, conflicts == Conflicts::Declared, "{most} at work");
        replica.stopper().stop();
        replica.wait().unwrap();
    }
}
