//! Calls over UDP that the system passes on: told the same, and left to the router where they are not plain. On the loopback; a network with
//! pieces of datagrams is in the system tests. Where programs can't be loaded, these say so and pass, but where `CI` is set.

use std::time::Duration;

use quorate_files::Who;
use quorate_nfs::UDP_IO_BYTES;
use quorate_nfs::call::NewAttrs;
use quorate_router::ask::Ask;
use quorate_router::kernel::Passed;
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout};

use super::calls::{GETATTR, LOOKUP, READ, WRITE, call, of, status};
use super::datagrams::{Site, Socket, name, says_the_same, written};
use super::straight::TEXT;
use super::told::Manner;
use super::{Serving, at, eventually};

/// Whether programs can be loaded here.
pub fn can_load(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    let has_types = std::path::Path::new("/sys/kernel/btf/vmlinux").exists();
    let can = is_root && has_types;
    if !can {
        // What was not tested must not look tested where nobody reads this.
        let why = "no programs can be given to the system here";
        assert!(std::env::var_os("CI").is_none(), "{test}: {why}");
        eprintln!("{test}: skipped, {why}");
    }
    can
}

async fn start(serving: Serving<'_>) -> Site {
    let serving = Serving {
        udp: true,
        servers_speak_udp: true,
        switch: true,
        ..serving
    };
    let site = Site::with(serving).await;
    // It begins once servers have answered.
    let socket = site.socket().await;
    let who = Who {
        uid: 5,
        gid: 5,
        groups: vec![6],
    };
    for xid in 0.. {
        assert!(xid < 1_000, "nothing is passed on");
        let asked = call(xid, GETATTR, &who, &of(&site.file, &[]));
        socket.0.send(&asked).await.unwrap();
        socket.0.recv(&mut [0; 4096]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        if passed(&site).passed > 0 {
            break;
        }
    }
    site
}

fn passed(site: &Site) -> Passed {
    site.router.switch.as_ref().unwrap().passed()
}

/// What has passed when all is counted that had passed before.
async fn counted(site: &Site) -> Passed {
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    passed(site)
}

/// The bytes are those of TCP, also of what comes back to be done again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_switch_says_the_same() {
    if !can_load("the_switch_says_the_same") {
        return;
    }
    let site = start(Serving::default()).await;
    let before = counted(&site).await;
    says_the_same(&site).await;
    let after = counted(&site).await;
    // GETATTR, ACCESS, READ, READLINK, and three of LOOKUP; of these one is a stub.
    let (went, back) = (
        after.passed - before.passed,
        after.done_again - before.done_again,
    );
    assert_eq!((went, back), (7, 1), "{after:?}");
    assert_eq!(after.answered - before.answered, 6);
}

/// As long as datagrams may be, and byte for byte.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_switch_passes_large_reads() {
    if !can_load("the_switch_passes_large_reads") {
        return;
    }
    let site = start(Serving::default()).await;
    let socket = site.socket().await;
    let data: Vec<u8> = (0..UDP_IO_BYTES as u32).map(|n| (n % 251) as u8).collect();
    let write = written(&site.file, 0, &data);
    assert_eq!(status(&socket.ask(1, WRITE, &write).await), 0);
    let before = counted(&site).await;
    for len in [0, 1, 8 << 10, 30_001, UDP_IO_BYTES as u32] {
        let read = socket.ask(2, READ, &of(&site.file, &[0, 0, len])).await;
        assert_eq!(status(&read), 0);
        assert_eq!(&read[20..20 + len as usize], &data[..len as usize]);
    }
    assert_eq!(counted(&site).await.answered - before.answered, 5);
}

/// Who is to be somebody else on the way, comes from elsewhere or is nobody goes through the router's own sockets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_switch_leaves_who_is_changed() {
    if !can_load("the_switch_leaves_who_is_changed") {
        return;
    }
    let site = start(Serving {
        squash: "root_squash",
        clients: "127.0.0.1",
        ..Serving::default()
    })
    .await;
    let before = counted(&site).await.passed;
    let socket = site.socket().await;
    let who = |uid, gid, groups: &[u32]| Who {
        uid,
        gid,
        groups: groups.to_vec(),
    };
    let asking = [
        (who(0, 5, &[]), false),
        (who(5, 0, &[]), false),
        (who(5, 5, &[6, 0, 7]), false),
        (who(5, 5, &[6, 7]), true),
        (who(5, 5, &[9; 16]), true),
    ];
    let mut passing = 0;
    for (xid, (who, passes)) in asking.into_iter().enumerate() {
        let asked = call(xid as u32, GETATTR, &who, &of(&site.file, &[]));
        socket.0.send(&asked).await.unwrap();
        let mut reply = [0; 4096];
        let len = socket.0.recv(&mut reply).await.unwrap();
        assert_eq!((reply[3], status(&reply[24..len])), (xid as u8, 0));
        passing += u64::from(passes);
    }
    let stranger = UdpSocket::bind("127.0.0.2:0").await.unwrap();
    stranger.connect(("127.0.0.1", site.port)).await.unwrap();
    let asked = call(9, GETATTR, &who(5, 5, &[]), &of(&site.file, &[]));
    stranger.send(&asked).await.unwrap();
    let none = timeout(Duration::from_millis(300), stranger.recv(&mut [0; 99])).await;
    assert!(none.is_err(), "strangers get nothing");
    assert_eq!(counted(&site).await.passed - before, passing);
}

/// Any bytes are left to the router or refused by the server, and what passes is answered as over TCP.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_switch_takes_any_bytes() {
    if !can_load("the_switch_takes_any_bytes") {
        return;
    }
    let site = start(Serving::default()).await;
    let socket = site.socket().await;
    let whole = call(1, LOOKUP, &Who::root(), &name(&site.dir, "file"));
    let mut random = 1u64;
    for n in 0..4_000usize {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        let mut bytes = whole.clone();
        let at = (random >> 33) as usize % bytes.len();
        match n % 3 {
            0 => bytes[at] ^= (random >> 20) as u8,
            1 => bytes.truncate(at),
            _ => bytes.extend_from_slice(&random.to_be_bytes()),
        }
        socket.0.send(&bytes).await.unwrap();
        // What has come is not kept for those who ask below.
        let mut reply = [0; 4096];
        while socket.0.try_recv(&mut reply).is_ok() {}
    }
    // Where so much is still on its way, one more datagram may find no room: who asks over UDP asks again.
    for _ in 0..60 {
        let fresh = site.socket().await;
        let wanted = name(&site.dir, "file");
        let asked = fresh.ask(7, LOOKUP, &wanted);
        if let Ok(found) = timeout(Duration::from_secs(1), asked).await {
            assert_eq!(found[8..8 + site.file.len()], site.file[..]);
            return;
        }
    }
    panic!("nothing was answered");
}

/// Reads until something is answered; the answer's status.
async fn read(socket: &Socket, site: &Site, xid: u32) -> u32 {
    let asked = call(xid, READ, &Who::root(), &of(&site.file, &[0, 0, 9]));
    let mut reply = [0; 4096];
    for _ in 0..40 {
        socket.0.send(&asked).await.unwrap();
        let came = timeout(Duration::from_millis(500), socket.0.recv(&mut reply));
        match came.await {
            Ok(Ok(len)) if reply[..4] == xid.to_be_bytes() => {
                let results = &reply[24..len];
                if status(results) == 0 {
                    assert_eq!(&results[20..29], &TEXT[..9]);
                }
                return status(results);
            }
            _ => {}
        }
    }
    panic!("no answer");
}

/// A bucket that moves while it is read: each call is answered, by the one server or the other, and nothing passes by the switch any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buckets_leave_the_switch_before_they_move() {
    if !can_load("buckets_leave_the_switch_before_they_move") {
        return;
    }
    let site = start(Serving::default()).await;
    let socket = site.socket().await;
    let keeper = site.keeper.clone();
    let draining = tokio::spawn(async move { keeper.drain(0, false).await });
    let mut xid = 100;
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        xid += 1;
        assert_eq!(read(&socket, &site, xid).await, 0);
        let overview = site.keeper.overview(|_| 0);
        if overview.moving.is_none() && overview.to_move == 0 && overview.moved > 0 {
            break;
        }
        assert!(Instant::now() < end, "it does not end: {overview:?}");
    }
    draining.await.unwrap().unwrap();
    let before = counted(&site).await;
    for more in 0..20 {
        assert_eq!(read(&socket, &site, xid + 1 + more).await, 0);
    }
    assert_eq!(counted(&site).await.passed, before.passed);
    says_the_same(&site).await;
}

/// A server that is silent over UDP gets no calls from the switch after two seconds: the router sees to them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_server_is_left_to_the_router() {
    if !can_load("a_silent_server_is_left_to_the_router") {
        return;
    }
    let site = start(Serving::default()).await;
    let socket = site.socket().await;
    let made = site
        .tcp
        .object(Ask::Create(at(&site.root, "own"), NewAttrs::default()));
    made.await.unwrap();
    site.told.manner(Manner::Never);
    let silent = Instant::now();
    let asked = call(1, GETATTR, &Who::root(), &of(&site.file, &[]));
    let before = passed(&site).passed;
    // It is sent again and again; by and by the router has it, and says JUKEBOX.
    let mut reply = [0; 4096];
    loop {
        socket.0.send(&asked).await.unwrap();
        let came = timeout(Duration::from_millis(200), socket.0.recv(&mut reply)).await;
        if let Ok(Ok(len)) = came {
            assert_eq!(status(&reply[24..len]), super::calls::JUKEBOX);
            break;
        }
        assert!(silent.elapsed() < Duration::from_secs(30), "no answer");
    }
    assert!(passed(&site).passed >= before);
    site.told.manner(Manner::Well);
    let socket = site.socket().await;
    let now = counted(&site).await.passed;
    let mut xid = 10;
    while passed(&site).passed == now {
        xid += 1;
        read(&socket, &site, xid).await;
        assert!(xid < 10_000, "it does not come back");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    eventually(|| passed(&site).answered > 0).await;
}
