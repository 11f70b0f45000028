//! Groups whose replicas have all that they send sealed beside the ordering thread: real replicas and clients in this process.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use quorate_client::Session;
use quorate_execution::{Call, Rest, Service};
use quorate_net::group::{Files, Purpose};
use quorate_net::{Group, Identity};
use quorate_node::{Daemon, Options, Sealing};
use quorate_state::{Fault, Txn};
use quorate_wire::ReplicaId;

use crate::service::key;

/// The seeds of the clients' keys.
const CLIENTS: std::ops::Range<u8> = 100..103;
/// How many values each of them puts down, and how long these are.
const VALUES: u8 = 12;
const BYTES: usize = 1 << 20;
/// Far longer than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(300);
/// Values of the state are no longer than those of files.
const PIECE: usize = 64 << 10;

/// Keeps values under names of two bytes, with which operations begin; one of nothing else asks for the value.
#[derive(Clone, Debug)]
struct Shelf;

impl Service for Shelf {
    fn genesis(&self, _txn: &mut Txn<'_>) -> Result<(), Fault> {
        Ok(())
    }

    fn is_read_only(&self, op: &[u8]) -> bool {
        op.len() == 2
    }

    fn execute(&self, txn: &mut Txn<'_>, _call: &Call, op: &Bytes) -> Result<Bytes, Fault> {
        let (name, value) = (op.slice(..2), op.slice(2..));
        let at = |piece: usize| Bytes::from([&name[..], &piece.to_be_bytes()].concat());
        if !value.is_empty() {
            for (piece, begin) in (0..value.len()).step_by(PIECE).enumerate() {
                let end = value.len().min(begin + PIECE);
                txn.put(at(piece), value.slice(begin..end));
            }
            return Ok(Bytes::new());
        }
        let mut value = Vec::new();
        while let Some(piece) = txn.get(&at(value.len() / PIECE))? {
            value.extend(&piece[..]);
        }
        Ok(value.into())
    }

    fn result_bytes(&self, op: &Bytes) -> usize {
        if self.is_read_only(op) { BYTES } else { 0 }
    }

    fn session_ended(&self, _txn: &mut Txn<'_>, _call: &Call) -> Result<Rest, Fault> {
        Ok(Rest::Nothing)
    }
}

/// Stands before a replica, and cuts all connections that lead there when it is told to.
struct Gate {
    address: SocketAddr,
    open: Arc<Mutex<Vec<TcpStream>>>,
    over: Arc<AtomicBool>,
}

impl Gate {
    fn before(replica: SocketAddr) -> Gate {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let gate = Gate {
            address: listener.local_addr().unwrap(),
            open: Arc::default(),
            over: Arc::default(),
        };
        let (open, over) = (gate.open.clone(), gate.over.clone());
        std::thread::spawn(move || {
            for came in listener.incoming() {
                if over.load(Ordering::Acquire) {
                    return;
                }
                // Who comes while the replica is not there is sent away.
                let (Ok(came), Ok(there)) = (came, TcpStream::connect(replica)) else {
                    continue;
                };
                for (from, to) in [(&came, &there), (&there, &came)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let _ = io::copy(&mut from, &mut to);
                        let _ = from.shutdown(Shutdown::Both);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                open.lock().unwrap().push(came);
            }
        });
        gate
    }

    fn cut(&self) {
        for connection in self.open.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        let _ = TcpStream::connect(self.address);
        self.cut();
    }
}

/// A group, and the same with a gate before its first replica.
fn group() -> (Group, Group, Gate) {
    let ports: Vec<_> = (0..4)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let addresses = ports.iter().map(|port| port.local_addr().unwrap());
    let addresses: Vec<SocketAddr> = addresses.collect();
    let replicas = addresses.iter().zip(0..);
    let replicas = replicas.map(|(address, id)| (address.to_string(), key(id).public()));
    let clients = CLIENTS.map(|seed| (format!("client-{seed}"), key(seed).public()));
    let (files, purpose) = (Files::default(), Purpose::Service);
    let group = Group::new(
        "shelf",
        replicas.collect(),
        clients.collect(),
        files,
        purpose,
    );
    let group = group.unwrap();
    let gate = Gate::before(addresses[0]);
    let led = group.clone();
    let led = led.with_route(ReplicaId(0), &gate.address.to_string());
    (group, led.unwrap(), gate)
}

fn value(client: u8, number: u8) -> Bytes {
    let of = |i: usize| (i / 251) as u8 ^ (i % 251) as u8 ^ client.wrapping_mul(number + 1);
    (0..BYTES).map(of).collect::<Vec<u8>>().into()
}

/// Long operations are carried out, and long answers come whole, while all links of the first primary are cut again and again: nobody can
/// tell where they are sealed.
#[test]
fn long_operations_outlive_cut_links() {
    let ((group, led, gate), data) = (group(), tempfile::tempdir().unwrap());
    let (group, led) = (Arc::new(group), Arc::new(led));
    let start = |id: u8| {
        let group = if id == 0 { &group } else { &led };
        let data = data.path().join(id.to_string());
        let options = Options {
            first_start: true,
            sealing: Sealing {
                threads: 1,
                from: 1,
            },
            ..Options::new(group.clone(), ReplicaId(id), key(id), data)
        };
        Daemon::start(options, Shelf).unwrap()
    };
    let replicas: Vec<Daemon> = (0..4).map(start).collect();
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let clients = CLIENTS.map(|seed| {
            let (led, done) = (&led, &done);
            scope.spawn(move || {
                let identity = Identity::new(&key(seed));
                let session = Session::connect_for_results(led, &identity, BYTES).unwrap();
                for number in 0..VALUES {
                    let value = value(seed, number);
                    let op = [&[seed, number], &value[..]].concat();
                    let answer = session.call_blocking_for(op.into(), PATIENCE).unwrap();
                    assert!(answer.is_empty());
                    // One by which it is not ordered, and one by which it is.
                    let name = Bytes::copy_from_slice(&[seed, number]);
                    let read = session.read_blocking_for(name.clone(), PATIENCE).unwrap();
                    assert!(read == value, "{number} of {seed}");
                    let read = session.call_blocking_for(name, PATIENCE).unwrap();
                    assert!(read == value, "{number} of {seed}");
                    done.fetch_add(1, Ordering::AcqRel);
                }
            })
        });
        let clients: Vec<_> = clients.collect();
        let mut cuts = 0;
        while clients.iter().any(|client| !client.is_finished()) {
            // After each third.
            if done.load(Ordering::Acquire) >= 3 * (cuts + 1) {
                cuts += 1;
                gate.cut();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        for client in clients {
            client.join().unwrap();
        }
        assert!(cuts > 5, "{cuts} cuts");
    });
    replicas.iter().for_each(|r| r.stopper().stop());
    replicas.into_iter().for_each(|r| r.wait().unwrap());
}
