//! Connections that the system carries: told the same as in user space, whatever they bring, and which are chosen. Where programs can't be loaded,
//! these say so and pass.

mod endings;
mod together;

use std::time::Duration;

use quorate_files::Who;
use quorate_nfs::rpc::LAST;
use quorate_router::ask::Ask;
use quorate_router::kernel::{Choice, Streamed};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::calls::{
    ACCESS, COMMIT, GETATTR, LOOKUP, READ, READDIR, READLINK, WRITE, call, fragment, of, reply,
    send, status,
};
use super::datagrams::{name, written};
use super::kernel::can_load;
use super::straight::Site;
use super::{Client, Serving, at, eventually};

const MEGABYTE: u32 = 1 << 20;

fn streamed(site: &Site) -> Streamed {
    site.router.streams.as_ref().unwrap().streamed()
}

async fn start(streams: bool, squash: &str) -> Site {
    Site::with(Serving {
        streams: streams.then_some(Choice::All),
        squash,
        ..Serving::default()
    })
    .await
}

/// A connection by which calls go to both servers already.
async fn carried(site: &Site) -> TcpStream {
    let mut stream = site.connect().await;
    let who = Who::new(5, 6);
    for xid in 0..1_000 {
        let before = streamed(site).answered;
        for file in &site.files {
            let asked = call(1 << 30 | xid, GETATTR, &who, &of(file, &[]));
            send(&mut stream, &asked).await;
            reply(&mut stream).await.unwrap();
        }
        if streamed(site).answered == before + 2 {
            return stream;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("nothing is passed on: {:?}", streamed(site));
}

/// A reply with its head, as it came.
async fn raw(stream: &mut TcpStream) -> Vec<u8> {
    let read = async {
        let head = stream.read_u32().await.unwrap();
        assert!(head & LAST != 0, "a reply in parts");
        let mut record = vec![0; (head & !LAST) as usize];
        stream.read_exact(&mut record).await.unwrap();
        record
    };
    timeout(Duration::from_secs(60), read)
        .await
        .expect("in time")
}

/// The bytes are those of the way through user space, whichever way a call goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_say_the_same() {
    if !can_load("streams_say_the_same") {
        return;
    }
    let mut told = Vec::new();
    for streams in [false, true] {
        let site = start(streams, "no_root_squash").await;
        let client = Client::connect(site.port).await.0;
        let link = Ask::Symlink(at(&site.root, "link"), "target".into());
        let link = client.object(link).await.unwrap();
        let mut stream = match streams {
            true => carried(&site).await,
            false => site.connect().await,
        };
        let before = streams.then(|| streamed(&site));
        let mut replies = Vec::new();
        let mut xid = 0;
        for file in &site.files {
            let mut bad = file.to_vec();
            bad[0] = 9;
            let mut nowhere = file.to_vec();
            nowhere[4] = 0xff;
            let mut unknown = file.to_vec();
            unknown.push(1);
            for (procedure, arguments) in [
                (GETATTR, of(file, &[])),
                (ACCESS, of(file, &[0x3f])),
                (READ, of(file, &[0, 2, 9])),
                (READ, of(file, &[0, 999, 9])),
                (READ, of(file, &[0, 2, 2 << 20])),
                (WRITE, written(file, 3, b"odd")),
                (COMMIT, of(file, &[0, 0, 0])),
                (READLINK, of(&link, &[])),
                (READLINK, of(file, &[])),
                (GETATTR, of(&unknown.into(), &[])),
                (GETATTR, of(&bad.into(), &[])),
                (GETATTR, of(&nowhere.into(), &[])),
                (LOOKUP, name(&site.root, "b")),
                (LOOKUP, name(&site.root, "link")),
                (READDIR, of(&site.root, &[0, 0, 0, 0, 1 << 15])),
                (0, Vec::new()),
            ] {
                xid += 1;
                send(
                    &mut stream,
                    &call(xid, procedure, &Who::new(5, 6), &arguments),
                )
                .await;
                replies.push(raw(&mut stream).await);
            }
        }
        if let Some(before) = before {
            let after = streamed(&site);
            // Of the first ten but READ of 2 MiB, and the handle that is not known: nine of a file.
            let passed = after.passed - before.passed;
            assert_eq!(
                (passed, after.answered - before.answered),
                (18, 18),
                "{after:?}"
            );
            assert_eq!(after.left - before.left, 14);
        }
        told.push(replies);
    }
    let [user, kernel] = &told[..] else {
        unreachable!("two");
    };
    for (n, (user, kernel)) in user.iter().zip(kernel).enumerate() {
        assert_eq!(user, kernel, "{n}");
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize
    }
}

/// Any bytes: each call is answered, or its connection ended, as in user space.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_take_any_bytes() {
    if !can_load("streams_take_any_bytes") {
        return;
    }
    let sites = [
        start(false, "root_squash").await,
        start(true, "root_squash").await,
    ];
    let mut random = Random(7);
    let mut streams = [sites[0].connect().await, carried(&sites[1]).await];
    let (mut answered, mut ended) = (0, 0);
    for n in 0..3_000 {
        let mut told = Vec::new();
        let (kind, at, bits, cut) = (random.next(), random.next(), random.next(), random.next());
        for (site, stream) in sites.iter().zip(&mut streams) {
            let file = &site.files[kind % 2];
            let who = Who {
                uid: 5,
                gid: 6,
                groups: vec![7; kind % 5],
            };
            let mut bytes = match kind / 2 % 4 {
                0 => call(n, GETATTR, &who, &of(file, &[])),
                1 => call(n, READ, &who, &of(file, &[0, 3, 9])),
                2 => call(n, WRITE, &who, &written(file, 3, b"some bytes")),
                _ => call(n, ACCESS, &who, &of(file, &[0x3f])),
            };
            let at = at % bytes.len();
            // The server of the tests has few procedures, and files in memory: no others are asked for, nor places far out.
            let far = bytes.len() - 32..bytes.len() - 24;
            match cut % 4 {
                0 | 1 if !(12..24).contains(&at) && !far.contains(&at) => bytes[at] ^= bits as u8,
                2 => bytes.truncate(at),
                _ => bytes.extend_from_slice(&bits.to_be_bytes()),
            }
            send(stream, &bytes).await;
            // Where it stays silent, what follows is answered.
            let mut reply = [0; 4];
            let came = timeout(Duration::from_secs(30), stream.read_exact(&mut reply)).await;
            told.push(match came.expect("an answer, or an end") {
                Err(_) => None,
                Ok(_) => {
                    let len = (u32::from_be_bytes(reply) & !LAST) as usize;
                    let mut record = vec![0; len];
                    stream.read_exact(&mut record).await.unwrap();
                    Some(record)
                }
            });
        }
        assert_eq!(told[0], told[1], "{n}: {kind} {at} {bits:x} {cut}");
        match &told[0] {
            Some(_) => answered += 1,
            None => {
                ended += 1;
                streams = [sites[0].connect().await, carried(&sites[1]).await];
            }
        }
    }
    let all = streamed(&sites[1]);
    assert!(answered > 1_000 && ended > 10, "{answered} {ended}");
    assert!(
        all.passed > 500 && all.left > 500 && all.ended == 0,
        "{all:?}"
    );
}

/// Large reads and writes of many connections at once, in any order and over both servers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_carry_large_records() {
    if !can_load("streams_carry_large_records") {
        return;
    }
    let site = start(true, "no_root_squash").await;
    let who = Who::new(0, 0);
    let data = |seed: usize, len: usize| -> Vec<u8> {
        (0..len)
            .map(|n| ((n * 31 + seed * 7) % 251) as u8)
            .collect()
    };
    let mut random = Random(3);
    for round in 0..6 {
        let mut stream = carried(&site).await;
        let before = streamed(&site);
        for file in &site.files {
            let content = data(round, MEGABYTE as usize);
            send(
                &mut stream,
                &call(1, WRITE, &who, &written(file, 0, &content)),
            )
            .await;
            assert_eq!(status(&reply(&mut stream).await.unwrap().1), 0);
        }
        let content = data(round, MEGABYTE as usize);
        let (mut from, mut to) = stream.into_split();
        let mut asked = Vec::new();
        let mut out = Vec::new();
        for xid in 0..40u32 {
            let file = &site.files[random.next() % 2];
            let len = [1, 100, 70_000, MEGABYTE as usize - 7][random.next() % 4];
            let at = random.next() % (MEGABYTE as usize - len);
            asked.push((at, len));
            match random.next() % 3 {
                // The same bytes again.
                0 => {
                    let bytes = &content[at..at + len];
                    fragment(
                        &mut out,
                        &call(xid, WRITE, &who, &written(file, at as u32, bytes)),
                        true,
                    );
                }
                _ => fragment(
                    &mut out,
                    &call(xid, READ, &who, &of(file, &[0, at as u32, len as u32])),
                    true,
                ),
            }
        }
        let sent = tokio::spawn(async move {
            for part in out.chunks(100_003) {
                to.write_all(part).await.unwrap();
            }
            to
        });
        let mut seen = 0u64;
        for _ in 0..40 {
            let head = timeout(Duration::from_secs(30), from.read_u32()).await;
            let mut record = vec![0; (head.expect("in time").unwrap() & !LAST) as usize];
            from.read_exact(&mut record).await.unwrap();
            let xid = u32::from_be_bytes(*record.first_chunk().unwrap());
            assert_eq!(status(&record[24..]), 0);
            assert_eq!(seen & 1 << xid, 0, "twice");
            seen |= 1 << xid;
            let (at, len) = asked[xid as usize];
            // A READ has its data, a WRITE some words.
            if record.len() > 64 + len.min(40) || len > 64 && record.len() > len {
                assert!(record[44..44 + len] == content[at..at + len], "{xid}");
            }
        }
        drop(sent.await.unwrap());
        let after = streamed(&site);
        assert!(after.passed >= before.passed + 22, "{after:?}");
    }
    assert_eq!(streamed(&site).ended, 0);
}

/// Where it is chosen by use, a client begins in user space; after large reads its next connection is carried, and that is ended once its
/// calls are small.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_chosen_by_their_use() {
    if !can_load("connections_are_chosen_by_their_use") {
        return;
    }
    let site = Site::with(Serving {
        streams: Some(Choice::ByUse),
        ..Serving::default()
    })
    .await;
    let who = Who::new(5, 6);
    let file = &site.files[0];
    let mut stream = site.connect().await;
    let content = vec![7; MEGABYTE as usize];
    send(
        &mut stream,
        &call(1, WRITE, &who, &written(file, 0, &content)),
    )
    .await;
    assert_eq!(status(&reply(&mut stream).await.unwrap().1), 0);
    let small = call(2, GETATTR, &who, &of(file, &[]));
    let large = call(3, READ, &who, &of(file, &[0, 0, 64 << 10]));
    for (asked, times) in [(&small, 300), (&large, 100)] {
        for _ in 0..times {
            send(&mut stream, asked).await;
            assert_eq!(status(&reply(&mut stream).await.unwrap().1), 0);
        }
        // A call of four is large: not yet.
        stream = site.connect().await;
        send(&mut stream, &small).await;
        reply(&mut stream).await.unwrap();
        assert_eq!(streamed(&site).connections, 0);
    }
    for _ in 0..600 {
        send(&mut stream, &large).await;
        assert_eq!(status(&reply(&mut stream).await.unwrap().1), 0);
    }
    assert_eq!(
        streamed(&site),
        Streamed::default(),
        "a connection stays where it began"
    );
    let mut stream = carried(&site).await;
    for _ in 0..100 {
        send(&mut stream, &large).await;
        assert_eq!(status(&reply(&mut stream).await.unwrap().1), 0);
    }
    assert!(streamed(&site).passed > 90);
    // Small ones, until it ends.
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        assert!(Instant::now() < end, "it goes on");
        let mut out = Vec::new();
        fragment(&mut out, &small, true);
        if stream.write_all(&out).await.is_err() || reply(&mut stream).await.is_none() {
            break;
        }
    }
    let before = streamed(&site);
    assert_eq!(before.ended, 0, "it is not set apart for that");
    let mut stream = site.connect().await;
    send(&mut stream, &small).await;
    assert_eq!(status(&reply(&mut stream).await.unwrap().1), 0);
    eventually(|| streamed(&site).connections == 0).await;
    assert_eq!(streamed(&site).passed, before.passed);
}

/// Without rights there is no switch, and that is said.
#[test]
fn without_rights_there_is_no_switch() {
    if !can_load("without_rights_there_is_no_switch") {
        return;
    }
    let without = std::thread::spawn(|| {
        let none = rustix::thread::CapabilitySet::empty();
        let sets = rustix::thread::CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        };
        // Of this thread alone.
        rustix::thread::set_capabilities(None, sets).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let site = start(false, "no_root_squash").await;
            let buckets = site.router.buckets.clone();
            let exports = quorate_nfs::Exports::default();
            let refused =
                quorate_router::kernel::TcpSwitch::start(&exports, 1, buckets, Choice::All);
            refused.unwrap_err().to_string()
        })
    });
    let why = without.join().unwrap();
    assert!(why.contains("rights"), "{why}");
}
