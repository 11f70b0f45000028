//! Servers that are called over UDP: datagrams that are lost or come twice, and servers that are silent there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate_files::Who;
use quorate_nfs::call::{Fh, NewAttrs};
use quorate_nfs::{Answers, serve};
use quorate_router::ask::Ask;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::calls::{GETATTR, JUKEBOX, READ, call, of, status};
use super::straight::TEXT;
use super::told::{Teller, Told};
use super::{Client, Ends, Serving, at, eventually, listen, route_with};

/// What becomes of the datagrams to a server.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Net {
    /// The first two of each call are lost.
    Loses,
    /// Each reply comes three times, and after a strange one.
    Repeats,
    Silent,
    /// Nobody listens.
    Closed,
}

/// A router of one server, which hears datagrams as the net lets it.
struct Site {
    told: Arc<Told>,
    /// How often each number came.
    came: Arc<Mutex<BTreeMap<u32, usize>>>,
    socket: UdpSocket,
    file: Fh,
    _router: Ends,
    _place: tempfile::TempDir,
}

impl Site {
    async fn start(net: Net) -> Site {
        let told = Told::new();
        let came = Arc::<Mutex<BTreeMap<u32, usize>>>::default();
        let (listener, server) = listen().await;
        let teller = Arc::new(Teller(told.clone()));
        let stream = Teller(told.clone());
        tokio::spawn(async move { serve(listener, stream).await.unwrap() });
        if net != Net::Closed {
            let socket = UdpSocket::bind(("127.0.0.1", server)).await.unwrap();
            tokio::spawn(hear(socket, net, teller, came.clone()));
        }
        let place = tempfile::tempdir().unwrap();
        let serving = Serving {
            udp: true,
            servers_speak_udp: true,
            ..Serving::default()
        };
        let router = route_with(place.path(), &[server], [1; 16], "stay", serving).await;
        let (router, port, ..) = router;
        let (client, root) = Client::connect(port).await;
        let ask = Ask::Create(at(&root, "file"), NewAttrs::default());
        let file = client.object(ask).await.unwrap();
        let ask = Ask::Write {
            file: file.clone(),
            offset: 0,
            data: TEXT.into(),
            stable: true,
        };
        client.ask(ask).await.unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(("127.0.0.1", port)).await.unwrap();
        Site {
            told,
            came,
            socket,
            file,
            _router: router,
            _place: place,
        }
    }

    /// The status of a READ's results, and what was read.
    async fn read(&self, xid: u32) -> (u32, Vec<u8>) {
        let asked = call(xid, READ, &Who::root(), &of(&self.file, &[0, 0, 9]));
        self.socket.send(&asked).await.unwrap();
        let mut buffer = vec![0; 1 << 16];
        let read = timeout(Duration::from_secs(60), self.socket.recv(&mut buffer));
        let len = read.await.expect("in time").unwrap();
        assert_eq!(buffer[..4], xid.to_be_bytes());
        let results = &buffer[24..len];
        (
            status(results),
            results.get(20..29).unwrap_or_default().into(),
        )
    }
}

/// Answers as far as the net lets it.
async fn hear(
    socket: UdpSocket,
    net: Net,
    teller: Arc<Teller>,
    came: Arc<Mutex<BTreeMap<u32, usize>>>,
) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let (len, from) = socket.recv_from(&mut buffer).await.unwrap();
        let record = buffer[..len].to_vec();
        let xid = u32::from_be_bytes(*record.first_chunk().unwrap());
        let times = {
            let mut came = came.lock().unwrap();
            let times = came.entry(xid).or_default();
            *times += 1;
            *times
        };
        if net == Net::Silent || net == Net::Loses && times < 3 {
            continue;
        }
        let reply = teller.answer(from.into(), record.into()).await;
        if net == Net::Repeats {
            socket
                .send_to(&[reply[0] ^ 1, 2, 3, 4, 5], from)
                .await
                .unwrap();
            socket.send_to(&[0], from).await.unwrap();
            socket.send_to(&reply, from).await.unwrap();
            socket.send_to(&reply, from).await.unwrap();
        }
        socket.send_to(&reply, from).await.unwrap();
    }
}

/// What is lost is sent again, under the same number, and answered once.
#[tokio::test]
async fn what_is_lost_is_sent_again() {
    let site = Site::start(Net::Loses).await;
    let over_tcp = site.told.count(READ);
    assert_eq!(site.read(1).await, (0, TEXT[..9].to_vec()));
    assert_eq!(site.read(2).await, (0, TEXT[..9].to_vec()));
    let came: Vec<usize> = site.came.lock().unwrap().values().copied().collect();
    assert_eq!(came, [3, 3]);
    assert_eq!(site.told.count(READ), over_tcp + 2);
}

/// Replies that come twice, and what is none, are nobody's.
#[tokio::test]
async fn replies_that_come_twice_are_for_nobody() {
    let site = Site::start(Net::Repeats).await;
    for xid in 0..50 {
        assert_eq!(site.read(xid).await, (0, TEXT[..9].to_vec()));
    }
    assert_eq!(site.came.lock().unwrap().len(), 50);
}

/// Who is silent over UDP is asked over TCP soon.
#[tokio::test]
async fn a_silent_server_is_asked_over_tcp() {
    for net in [Net::Silent, Net::Closed] {
        let site = Site::start(net).await;
        let (first, _) = site.read(1).await;
        assert!([0, JUKEBOX].contains(&first), "{net:?}: {first}");
        assert_eq!(site.read(2).await, (0, TEXT[..9].to_vec()), "{net:?}");
        let asked = site.came.lock().unwrap().len();
        for xid in 3..20 {
            assert_eq!(site.read(xid).await.0, 0, "{net:?}");
        }
        // And is left in peace for a while.
        assert_eq!(site.came.lock().unwrap().len(), asked, "{net:?}");
        assert_eq!(asked, usize::from(net == Net::Silent));
    }
}

/// Calls over TCP go over TCP, whatever servers speak.
#[tokio::test]
async fn calls_go_on_as_they_came() {
    let site = Site::start(Net::Repeats).await;
    assert_eq!(site.read(1).await.0, 0);
    eventually(|| site.came.lock().unwrap().len() == 1).await;
    let before = site.told.count(GETATTR);
    let port = site.socket.peer_addr().unwrap().port();
    let client = Client::connect(port).await.0;
    client.ask(Ask::GetAttr(site.file.clone())).await.unwrap();
    assert!(site.told.count(GETATTR) > before);
    assert_eq!(site.came.lock().unwrap().len(), 1);
}
