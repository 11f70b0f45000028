//! Groups in which all is signed, with replicas that have signatures checked beside the ordering thread: real replicas and clients in
//! this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_client::Session;
use quorate_net::group::{Files, Protocol, Purpose};
use quorate_net::{ClientLinks, Frame, Group, Identity};
use quorate_node::{Daemon, Options, Verification};
use quorate_wire::message::{AuthRequest, ClientMessage, Request};
use quorate_wire::{Authentication, Authenticator, ReplicaId, RequestNumber, SessionId};

use crate::service::{Sum, key};

/// The seeds of the keys of correct clients, and of one that is not.
const HONEST: std::ops::Range<u8> = 100..108;
const FLOODER: u8 = 120;
/// How often each of them asks.
const CALLS: u64 = 60;
/// Far longer than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(120);

fn group() -> Arc<Group> {
    let ports: Vec<_> = (0..4)
        .map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let replicas = ports.iter().zip(0..);
    let replicas = replicas.map(|(port, id)| {
        let address = port.local_addr().unwrap().to_string();
        (address, key(id).public())
    });
    let clients = HONEST.chain([FLOODER]);
    let clients = clients.map(|seed| (format!("client-{seed}"), key(seed).public()));
    let (files, purpose) = (Files::default(), Purpose::Service);
    let group = Group::new(
        "signed",
        replicas.collect(),
        clients.collect(),
        files,
        purpose,
    );
    let group = group.unwrap().with_protocol(Protocol {
        authentication: Authentication::Signature,
        ..Protocol::default()
    });
    Arc::new(group)
}

/// Three with verifiers, to which they hand all there is to check, and one without: nobody can tell.
fn start(group: &Arc<Group>, id: u8, data: &std::path::Path, first_start: bool) -> Daemon {
    let options = Options {
        first_start,
        verification: Verification {
            threads: (usize::from(id) + 1) % 4,
            from: 1,
        },
        ..Options::new(
            group.clone(),
            ReplicaId(id),
            key(id),
            data.join(id.to_string()),
        )
    };
    Daemon::start(options, Sum).unwrap()
}

/// Requests with signatures of others, in great number, to all replicas, until it is told to stop.
fn flood(group: &Group, over: &AtomicBool) {
    let own = key(FLOODER);
    let mut links = ClientLinks::connect(group, &Identity::new(&own)).unwrap();
    let op = Bytes::from_static(&[100]);
    let signature =
        own.sign(&Request::new(own.public(), SessionId(1), RequestNumber(0), op.clone()).digest());
    let mut number = 0;
    while !over.load(Ordering::Acquire) {
        links.poll(Some(Duration::from_millis(2))).unwrap();
        while links.next_event().is_some() {}
        for _ in 0..32 {
            number += 1;
            let (session, number) = (SessionId(1), RequestNumber(number));
            let message = ClientMessage::Request(AuthRequest {
                request: Request::new(own.public(), session, number, op.clone()),
                auth: Authenticator::Signed(signature.into()),
                replier: ReplicaId(0),
            });
            let frame = Frame::encode(&message);
            for id in 0..4 {
                links.send(ReplicaId(id), &frame);
            }
        }
        links.flush();
    }
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let begun = now();
    while !holds() {
        assert!(
            begun.elapsed() < PATIENCE,
            "{what}: not within {PATIENCE:?}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[allow(clippy::disallowed_methods, reason = "how long a test waits at most")]
fn now() -> Instant {
    Instant::now()
}

/// Correct clients are served while another floods with wrong signatures, none of which brings anything about; it is put aside, by those
/// with verifiers as well. A replica that is stopped meanwhile comes back.
#[test]
fn wrong_signatures_bring_nothing() {
    let (group, data) = (group(), tempfile::tempdir().unwrap());
    let start = |id, first| start(&group, id, data.path(), first);
    let mut replicas: Vec<Daemon> = (0..4).map(|id| start(id, true)).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&over);
        scope.spawn(|| flood(&group, &over));
        let honest: Vec<_> = HONEST
            .map(|seed| {
                let group = group.clone();
                scope.spawn(move || {
                    let session = Session::connect(&group, &Identity::new(&key(seed))).unwrap();
                    let mut last = 0;
                    for _ in 0..CALLS {
                        let sum = session.call_blocking(Bytes::from_static(&[1])).unwrap();
                        let sum = u64::from_le_bytes(sum[..].try_into().unwrap());
                        assert!(sum > last, "{sum} after {last}");
                        last = sum;
                    }
                    last
                })
            })
            .collect();
        let stopped = replicas.remove(2);
        stopped.stopper().stop();
        stopped.wait().unwrap();
        replicas.insert(2, start(2, false));
        let sums = honest.into_iter().map(|client| client.join().unwrap());
        let all = CALLS * HONEST.len() as u64;
        assert_eq!(
            sums.max(),
            Some(all),
            "each counts once, and nothing else does"
        );
        for replica in &replicas[..2] {
            let stopper = replica.stopper();
            eventually("it is put aside", || {
                let report = stopper.report(Duration::from_secs(10));
                report.is_some_and(|report| report.clients_put_aside > 0)
            });
        }
    });
    replicas.iter().for_each(|r| r.stopper().stop());
    replicas.into_iter().for_each(|r| r.wait().unwrap());
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
