//! What strangers and hostile clients send costs them a connection, and the group nothing.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use quorate_net::{Identity, keys, tls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

use crate::harness::{Group, Mount, Random, Setup, eventually, require_fuse};

/// More than a replica lets wait for a handshake, and more than a process may have open by default.
const CONNECTIONS: usize = 3_000;

/// What a replica's process may take meanwhile.
const MOST_MEMORY: u64 = 256 << 20;

/// Files are served while `attack` goes on, and all replicas are there afterwards, none of which has taken much memory.
fn served_during(group: &mut Group, mount: &Mount, attack: impl FnOnce(&Group) + Send) {
    let over = AtomicBool::new(false);
    let rounds = AtomicUsize::new(0);
    let attacked: &Group = group;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _over = SetOnDrop(&over);
            attack(attacked);
        });
        let mut round = 0;
        while !over.load(Ordering::Relaxed) || round < 20 {
            let content = format!("round {round}");
            fs::write(mount.at("file"), &content).expect("a file is written");
            assert_eq!(
                fs::read_to_string(mount.at("file")).expect("it is read"),
                content
            );
            round += 1;
        }
        rounds.store(round, Ordering::Relaxed);
    });
    println!(
        "{} rounds of writing and reading",
        rounds.load(Ordering::Relaxed)
    );
    assert!(group.all_run(), "a replica died");
    check_memory(group);
    let fresh = group.mount_as(1);
    fs::metadata(fresh.at("file")).expect("a new mount is served too");
    drop(fresh);
    group.wait_until_they_agree(&[0, 1, 2, 3]);
}

/// The bound of docs/protocol.md, section 11, is for the worst of all that these attacks have a small part of.
fn check_memory(group: &Group) {
    for id in 0..4 {
        let peak = group.peak_memory(id);
        println!("replica {id} had {} MiB at most", peak >> 20);
        assert!(peak < MOST_MEMORY, "replica {id} took {peak} bytes");
    }
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does something with the key of a client that the group knows.
fn as_known_client(group: &Group, attack: impl AsyncFnOnce(&Identity)) {
    let key = keys::load(&group.client_key(2)).expect("a client's key");
    let identity = Identity::new(&key);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(attack(&identity));
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the port takes connections");
    let patience = Some(Duration::from_secs(10));
    stream.set_read_timeout(patience).expect("a bound");
    stream.set_write_timeout(patience).expect("a bound");
    stream
}

/// Noise, in whole and cut short, announced lengths of any size, and the start of a real handshake, before anybody
/// is known.
#[test]
fn noise_on_the_port_does_no_harm() {
    if !require_fuse() {
        return;
    }
    let mut group = Group::start();
    let mount = group.mount();
    served_during(&mut group, &mount, |group| {
        let mut random = Random::new(666);
        for round in 0..400 {
            let mut stream = connect(group.address((round % 4) as u8));
            let noise = match round % 5 {
                0 => random.bytes(1 << 16),
                1 => u32::MAX.to_le_bytes().repeat(10),
                // A TLS record that announces more than comes, then one that announces too much.
                2 => [&[0x16, 3, 1, 0x40, 0][..], &random.bytes(100)].concat(),
                3 => [&[0x16, 3, 1, 0xff, 0xff][..], &random.bytes(70_000)].concat(),
                _ => b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
            };
            // It may hang up before it has read all.
            let _ = stream.write_all(&noise);
            // It waits for the rest of what was announced; that is another test.
            let is_complete = !matches!(round % 5, 2 | 3);
            if is_complete {
                let _ = stream.read(&mut [0; 64]);
            }
        }
    });
    mount.unmount();
}

/// Thousands of connections that say nothing, on every replica's port, held for as long as they are let.
#[test]
fn idle_connections_do_no_harm() {
    if !require_fuse() {
        return;
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let room = limit
        .current
        .map_or(CONNECTIONS, |n| (n as usize).saturating_sub(200));
    let connections = CONNECTIONS.min(room);
    println!("{connections} connections");
    let mut group = Group::start();
    let mount = group.mount();
    served_during(&mut group, &mount, |group| {
        let held: Vec<TcpStream> = (0..connections)
            .map(|n| connect(group.address((n % 4) as u8)))
            .collect();
        std::thread::sleep(Duration::from_secs(3));
        drop(held);
    });
    mount.unmount();
}

/// A client that the group knows says things that are no messages: each costs it the connection.
#[test]
fn malformed_messages_cost_the_connection() {
    if !require_fuse() {
        return;
    }
    let mut group = Group::start();
    let mount = group.mount();
    served_during(&mut group, &mount, |group| {
        as_known_client(group, async |identity| {
            let mut random = Random::new(13);
            // Each kind to each replica. With more of it the client would be put aside, and its connections would stay unread.
            for round in 0..24 {
                let bytes = nonsense(round, &mut random);
                let closed = say(group, identity, (round / 6) as u8, &bytes).await;
                assert!(closed, "round {round}: the connection goes on");
            }
        });
    });
    mount.unmount();
}

/// Bytes that no client that keeps the rules sends.
fn nonsense(round: usize, random: &mut Random) -> Vec<u8> {
    let framed = |payload: Vec<u8>| {
        let len = payload.len() as u32;
        [len.to_le_bytes().to_vec(), payload].concat()
    };
    match round % 6 {
        // No such message.
        0 => framed([vec![0xff], random.bytes(50)].concat()),
        // Lengths of nothing and of too much.
        1 => 0u32.to_le_bytes().to_vec(),
        2 => u32::MAX.to_le_bytes().to_vec(),
        // A request whose operation claims to be of four gibibytes.
        3 => framed([vec![1], random.bytes(64), vec![0xff; 64]].concat()),
        // A report's number with something behind it.
        4 => framed([vec![2], random.bytes(40)].concat()),
        // A request of noise, a mebibyte of it.
        _ => framed([vec![1], random.bytes(1 << 20)].concat()),
    }
}

/// Says something over a link of its own; whether the replica then closes it.
async fn say(group: &Group, identity: &Identity, id: u8, bytes: &[u8]) -> bool {
    let entry = &group.contents().replicas()[usize::from(id)];
    let tcp = tokio::net::TcpStream::connect(&entry.address)
        .await
        .expect("the port");
    let connector = TlsConnector::from(identity.client_config(entry.key));
    let stream = connector.connect(tls::server_name(), tcp).await;
    let mut stream = stream.expect("a handshake");
    let mut welcome = [1; 4];
    stream.read_exact(&mut welcome).await.expect("a welcome");
    assert_eq!(welcome, [0; 4]);
    // It may hang up before it has read all.
    let _ = stream.write_all(bytes).await;
    let _ = stream.flush().await;
    let mut rest = Vec::new();
    let closed = stream.read_to_end(&mut rest);
    tokio::time::timeout(Duration::from_secs(30), closed)
        .await
        .is_ok()
}

/// A client of the group whose operations are noise is told so, one by one; its session goes on.
#[test]
fn noise_as_operations_is_refused() {
    if !require_fuse() {
        return;
    }
    let mut group = Group::start();
    let mount = group.mount();
    served_during(&mut group, &mount, |group| {
        as_known_client(group, async |identity| {
            let session =
                quorate_client::Session::connect(group.contents(), identity).expect("a session");
            let mut random = Random::new(17);
            for round in 0..200 {
                let len = if round % 20 == 0 {
                    1 << 20
                } else {
                    random.below(300) as usize
                };
                let op = match round % 3 {
                    0 => random.bytes(len),
                    // User 0 with no groups, and then noise where the action stands.
                    1 => [vec![0; 12], vec![(round % 30) as u8], random.bytes(len)].concat(),
                    // Four thousand million groups.
                    _ => [vec![0; 8], vec![0xff; 4], random.bytes(len)].concat(),
                };
                let answer = session.call(op.into());
                let answer = tokio::time::timeout(Duration::from_secs(60), answer).await;
                answer
                    .expect("noise is answered")
                    .expect("the session goes on");
            }
            session.close().await;
        });
    });
    mount.unmount();
}

/// A replica sends dozens of valid and useless messages with each of its own, the first primary too: files are served, and the
/// others put it aside.
#[test]
fn a_replica_that_floods_is_put_aside() {
    if !require_fuse() {
        return;
    }
    for flooding in [3, 0] {
        let mut group = Setup::new(4).fault(flooding, "flood").start();
        let mount = group.mount();
        served_during(&mut group, &mount, |group| {
            eventually("it is put aside", || {
                let log = group.log(1);
                log.contains("sends far more than the others")
            });
        });
        mount.unmount();
    }
}
