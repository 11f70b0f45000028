//! Clients over UDP: that they are told the same as over TCP, that nothing is done twice, and what is dropped.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quorate_files::Who;
use quorate_nfs::call::{Fh, NewAttrs};
use quorate_nfs::status::Status;
use quorate_nfs::xdr::Writer;
use quorate_nfs::{Drops, Listeners, UDP_IO_BYTES};
use quorate_router::ask::Ask;
use quorate_router::journal::Journal;
use quorate_router::volumes::Keeper;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::calls::{
    self, ACCESS, COMMIT, GETATTR, LOOKUP, READ, READDIR, READLINK, WRITE, call, of, status,
};
use super::responder::IO_BYTES;
use super::straight::TEXT;
use super::told::{Manner, Teller, Told};
use super::{Client, Ends, Serving, at, eventually, route_with};

const CREATE: u32 = 8;
const MKDIR: u32 = 9;
const REMOVE: u32 = 12;
const RENAME: u32 = 14;
const FSINFO: u32 = 19;

/// A router of two servers with a file on the first.
pub struct Site {
    pub told: Arc<Told>,
    pub port: u16,
    pub dir: Fh,
    pub file: Fh,
    pub root: Fh,
    pub tcp: Client,
    pub keeper: Arc<Keeper<Journal>>,
    drops: Arc<Drops>,
    pub router: Ends,
    _place: tempfile::TempDir,
}

impl Site {
    /// Datagrams on both sides, served by two threads.
    async fn start() -> Site {
        Site::with(Serving {
            threads: 2,
            udp: true,
            servers_speak_udp: true,
            ..Serving::default()
        })
        .await
    }

    pub async fn with(serving: Serving<'_>) -> Site {
        let told = Told::new();
        let mut ports = Vec::new();
        for server in [told.clone(), Told::new()] {
            let address = ([127, 0, 0, 1], 0).into();
            let listeners = Listeners::bind(address, 1, true).unwrap();
            ports.push(listeners.address().port());
            let teller = Arc::new(Teller(server));
            tokio::spawn(async move { listeners.serve(teller).await.unwrap() });
        }
        let place = tempfile::tempdir().unwrap();
        let router = route_with(place.path(), &ports, [1; 16], "stay", serving).await;
        let (router, port, keeper, drops) = router;
        let (tcp, root) = Client::connect(port).await;
        let made = tcp.object(Ask::Mkdir(at(&root, "a"), NewAttrs::default()));
        let dir = made.await.unwrap();
        tcp.object(Ask::Mkdir(at(&root, "b"), NewAttrs::default()))
            .await
            .unwrap();
        let made = tcp.object(Ask::Create(at(&dir, "file"), NewAttrs::default()));
        let file = made.await.unwrap();
        let ask = Ask::Write {
            file: file.clone(),
            offset: 0,
            data: TEXT.into(),
            stable: true,
        };
        tcp.ask(ask).await.unwrap();
        Site {
            told,
            port,
            dir,
            file,
            root,
            tcp,
            keeper,
            drops,
            router,
            _place: place,
        }
    }

    fn dropped(&self, why: &str) -> u64 {
        let found = self.drops.all().find(|(name, _)| *name == why);
        found.expect("a reason").1
    }

    pub async fn socket(&self) -> Socket {
        self.socket_from("127.0.0.1").await
    }

    async fn socket_from(&self, address: &str) -> Socket {
        let socket = UdpSocket::bind((address, 0)).await.unwrap();
        socket.connect(("127.0.0.1", self.port)).await.unwrap();
        Socket(socket)
    }
}

pub struct Socket(pub UdpSocket);

impl Socket {
    async fn send(&self, call: &[u8]) {
        self.0.send(call).await.unwrap();
    }

    async fn receive(&self) -> Bytes {
        let mut buffer = vec![0; 1 << 16];
        let read = timeout(Duration::from_secs(60), self.0.recv(&mut buffer));
        let len = read.await.expect("in time").unwrap();
        buffer.truncate(len);
        buffer.into()
    }

    /// The results of a call that is sent once.
    pub async fn ask(&self, xid: u32, procedure: u32, arguments: &[u8]) -> Bytes {
        self.send(&call(xid, procedure, &Who::root(), arguments))
            .await;
        let reply = self.receive().await;
        assert_eq!(reply[..4], xid.to_be_bytes());
        assert_eq!(reply[4..24], [[0, 0, 0, 1].as_slice(), &[0; 16]].concat());
        reply.slice(24..)
    }

    /// Whether nothing more comes, as a call that is answered after it would have shown.
    async fn is_quiet(&self, site: &Site) {
        let answer = self.ask(u32::MAX, GETATTR, &of(&site.root, &[])).await;
        assert_eq!(status(&answer), 0);
    }
}

pub fn name(dir: &Fh, name: &str) -> Vec<u8> {
    let mut w = Writer::default();
    w.opaque(dir);
    w.opaque(name.as_bytes());
    w.out
}

/// A directory or, guarded, a file with no attributes set.
fn made(dir: &Fh, new: &str, procedure: u32) -> Vec<u8> {
    let mut out = name(dir, new);
    let guarded: &[u8] = if procedure == CREATE {
        &[0, 0, 0, 1]
    } else {
        &[]
    };
    out.extend_from_slice(guarded);
    out.extend_from_slice(&[0; 24]);
    out
}

pub fn written(file: &Fh, offset: u32, data: &[u8]) -> Vec<u8> {
    let mut w = Writer::default();
    w.opaque(file);
    let words = [0, offset, data.len() as u32, 2];
    words.into_iter().for_each(|word| w.u32(word));
    w.opaque(data);
    w.out
}

/// The same bytes as over TCP, whether the call is passed on by datagrams or goes the other way.
#[tokio::test]
async fn udp_says_the_same() {
    says_the_same(&Site::start().await).await;
}

pub async fn says_the_same(site: &Site) {
    let ask = Ask::Symlink(at(&site.root, "link"), "target".into());
    let link = site.tcp.object(ask).await.unwrap();
    let socket = site.socket().await;
    let mut tcp = tokio::net::TcpStream::connect(("127.0.0.1", site.port))
        .await
        .unwrap();
    let mut gone = site.file.to_vec();
    gone[4] = 0xff;
    let calls = [
        (GETATTR, of(&site.file, &[]), 0),
        (ACCESS, of(&site.file, &[0x3f]), 0),
        (READ, of(&site.file, &[0, 2, 9]), 0),
        (READLINK, of(&link, &[]), 0),
        (READDIR, of(&site.root, &[0, 0, 0, 0, 1 << 15]), 0),
        (COMMIT, of(&site.file, &[0, 0, 0]), 0),
        (WRITE, written(&site.file, 0, TEXT), 0),
        (LOOKUP, name(&site.dir, "file"), 0),
        // A stub, and what is looked for where the directory was placed.
        (LOOKUP, name(&site.root, "b"), 0),
        (LOOKUP, name(&site.dir, ".."), 0),
        (LOOKUP, name(&site.root, "nothing"), Status::NoEnt as u32),
        (GETATTR, of(&gone.into(), &[]), Status::Stale as u32),
    ];
    for (xid, (procedure, arguments, expected)) in calls.into_iter().enumerate() {
        let xid = xid as u32;
        let over_udp = socket.ask(xid, procedure, &arguments).await;
        let called = call(xid, procedure, &Who::root(), &arguments);
        calls::send(&mut tcp, &called).await;
        let (_, over_tcp) = calls::reply(&mut tcp).await.unwrap();
        assert_eq!(over_udp, over_tcp, "{procedure}");
        assert_eq!(status(&over_udp), expected, "{procedure}");
    }
}

/// FSINFO says what fits, and no more comes.
#[tokio::test]
async fn datagrams_have_bounds() {
    let site = Site::start().await;
    let socket = site.socket().await;
    let info = socket.ask(1, FSINFO, &of(&site.file, &[])).await;
    let udp = (UDP_IO_BYTES as u32).to_be_bytes();
    assert_eq!((&info[8..12], &info[20..24]), (&udp[..], &udp[..]));
    // What the server says of multiples stays.
    assert_eq!(info[16..20], IO_BYTES.to_be_bytes());
    let mut tcp = tokio::net::TcpStream::connect(("127.0.0.1", site.port))
        .await
        .unwrap();
    let asked = call(2, FSINFO, &Who::root(), &of(&site.file, &[]));
    calls::send(&mut tcp, &asked).await;
    let (_, info) = calls::reply(&mut tcp).await.unwrap();
    assert_eq!(info[8..12], (1u32 << 20).to_be_bytes());
    let data: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
    for (n, part) in data.chunks(UDP_IO_BYTES).enumerate() {
        let at = (n * UDP_IO_BYTES) as u32;
        let part = written(&site.file, at, part);
        assert_eq!(status(&socket.ask(10 + at, WRITE, &part).await), 0);
    }
    for asked in [UDP_IO_BYTES as u32, 100_000, 1 << 20] {
        let read = socket.ask(3, READ, &of(&site.file, &[0, 5, asked])).await;
        // No attributes; how many bytes, not the end, and these.
        let head = [0, 0, UDP_IO_BYTES as u32, 0, UDP_IO_BYTES as u32];
        assert_eq!(read[..20], head.map(u32::to_be_bytes).concat());
        assert_eq!(read[20..], data[5..5 + UDP_IO_BYTES]);
    }
    // More than a call has; what is none; less than a number.
    socket
        .send(&call(
            4,
            WRITE,
            &Who::root(),
            &written(&site.file, 0, &data[..60_000]),
        ))
        .await;
    socket.send(&[7; 40]).await;
    socket.send(&[1, 2]).await;
    socket.is_quiet(&site).await;
    let dropped = ["too_long", "no_call", "repeated"].map(|why| site.dropped(why));
    assert_eq!(dropped, [1, 2, 0]);
}

/// A call that changes something is done once, however often it comes, by this number; anew by another.
#[tokio::test]
async fn what_comes_again_is_not_done_again() {
    let site = Site::start().await;
    let socket = site.socket().await;
    let renamed = [name(&site.dir, "d"), name(&site.dir, "e")].concat();
    for (xid, procedure, arguments, anew) in [
        (1, MKDIR, made(&site.dir, "d", MKDIR), Status::Exist),
        (2, CREATE, made(&site.dir, "f", CREATE), Status::Exist),
        (3, RENAME, renamed, Status::NoEnt),
        (4, REMOVE, name(&site.dir, "f"), Status::NoEnt),
    ] {
        let first = socket.ask(xid, procedure, &arguments).await;
        assert_eq!(status(&first), 0, "{procedure}");
        let came = site.told.count(procedure);
        for _ in 0..3 {
            assert_eq!(socket.ask(xid, procedure, &arguments).await, first);
        }
        assert_eq!(site.told.count(procedure), came, "{procedure}");
        let again = socket.ask(100 + xid, procedure, &arguments).await;
        assert_eq!(status(&again), anew as u32, "{procedure}");
    }
    // From another port it is another's call.
    let other = site.socket().await;
    let answer = other.ask(2, CREATE, &made(&site.dir, "f", CREATE)).await;
    assert_eq!(status(&answer), 0);
    let answer = other.ask(4, REMOVE, &name(&site.dir, "nothing")).await;
    assert_eq!(status(&answer), Status::NoEnt as u32);
}

/// A late copy of a WRITE does not undo a later one.
#[tokio::test]
async fn late_copies_change_nothing() {
    let site = Site::start().await;
    let socket = site.socket().await;
    let old = written(&site.file, 0, b"old");
    let first = socket.ask(1, WRITE, &old).await;
    let new = socket.ask(2, WRITE, &written(&site.file, 0, b"new")).await;
    assert_eq!((status(&first), status(&new)), (0, 0));
    assert_eq!(socket.ask(1, WRITE, &old).await, first);
    let read = socket.ask(3, READ, &of(&site.file, &[0, 0, 3])).await;
    assert_eq!(&read[20..23], b"new");
}

/// While a call is at work, repetitions of it are dropped, and it is answered once.
#[tokio::test]
async fn what_is_at_work_is_answered_once() {
    let site = Site::start().await;
    let socket = site.socket().await;
    for (xid, procedure, arguments) in [
        (1, REMOVE, name(&site.dir, "file")),
        (2, GETATTR, of(&site.dir, &[])),
    ] {
        let came = site.told.count(procedure);
        let repeated = site.dropped("repeated");
        site.told.manner(Manner::Held);
        let asked = call(xid, procedure, &Who::root(), &arguments);
        for _ in 0..4 {
            socket.send(&asked).await;
        }
        eventually(|| site.dropped("repeated") == repeated + 3).await;
        eventually(|| site.told.count(procedure) > came).await;
        site.told.manner(Manner::Well);
        let reply = socket.receive().await;
        assert_eq!((reply[3] as u32, status(&reply[24..])), (xid, 0));
        socket.is_quiet(&site).await;
        assert_eq!(site.told.count(REMOVE), 1);
    }
}

/// Nothing goes to whom nothing is offered, not even a refusal.
#[tokio::test]
async fn strangers_get_nothing() {
    let site = Site::with(Serving {
        udp: true,
        clients: "127.0.0.1",
        ..Serving::default()
    })
    .await;
    let stranger = site.socket_from("127.0.0.2").await;
    let friend = site.socket().await;
    for sent in [
        call(1, GETATTR, &Who::root(), &of(&site.root, &[])),
        call(2, 99, &Who::root(), &[]),
        vec![0; 24],
    ] {
        stranger.send(&sent).await;
    }
    eventually(|| site.dropped("not_exported") == 3).await;
    friend.is_quiet(&site).await;
    let mut buffer = [0; 64];
    let came = stranger.0.try_recv(&mut buffer);
    assert_eq!(came.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

/// Calls of one source have a bound, and sources have; who comes when they are done is served.
#[tokio::test]
async fn calls_and_sources_have_bounds() {
    let site = Site::with(Serving {
        udp: true,
        ..Serving::default()
    })
    .await;
    let socket = site.socket().await;
    site.told.manner(Manner::Held);
    let asked = |xid| call(xid, READ, &Who::root(), &of(&site.file, &[0, 0, 9]));
    for xid in 0..70 {
        socket.send(&asked(xid)).await;
    }
    eventually(|| site.dropped("too_many_calls") == 6).await;
    let mut sockets = Vec::new();
    for _ in 0..256 {
        let other = site.socket().await;
        other.send(&asked(7)).await;
        sockets.push(other);
    }
    eventually(|| site.dropped("too_many_sources") == 1).await;
    site.told.manner(Manner::Well);
    for _ in 0..64 {
        assert_eq!(status(&socket.receive().await[24..]), 0);
    }
    eventually(|| site.told.count(READ) == 64 + 255).await;
    for _ in 0..20 {
        site.socket().await.is_quiet(&site).await;
    }
}

/// Who listens alone is not joined, and nobody else can listen where threads do.
#[tokio::test]
async fn a_port_is_not_shared_with_strangers() {
    let address = ([127, 0, 0, 1], 0).into();
    for (threads, udp) in [(1, false), (3, true)] {
        let first = Listeners::bind(address, threads, udp).unwrap();
        for others in [1, 2] {
            let second = Listeners::bind(first.address(), others, false);
            assert_eq!(second.unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
        }
        let again = first.address();
        drop(first);
        Listeners::bind(again, 2, udp).unwrap();
    }
    let everywhere = Listeners::bind(([0, 0, 0, 0], 0).into(), 1, true);
    assert!(everywhere.unwrap_err().to_string().contains("one address"));
}
