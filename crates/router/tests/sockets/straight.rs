//! Calls that are passed on without a task of their own: that they say the same, and what becomes of them when a side fails.

use std::sync::Arc;
use std::time::Duration;

use quorate_files::Who;
use quorate_nfs::call::{Fh, NewAttrs};
use quorate_nfs::rpc::{Credential, LAST, MAX_RECORD_BYTES};
use quorate_nfs::serve;
use quorate_nfs::status::Status;
use quorate_nfs::xdr::Writer;
use quorate_router::ask::{Ask, Given};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::calls::{
    ACCESS, COMMIT, FSSTAT, GETATTR, JUKEBOX, LOOKUP, READ, READDIR, READLINK, SERVERFAULT, WRITE,
    call, fragment, of, reply, send, status,
};
use super::gate::Gate;
use super::responder::SPACE;
use super::told::{Manner, Teller, Told};
use super::{Client, at, eventually, listen, servers};

/// A server of this kind on a port: a free one, or that which it had.
async fn told(told: &Arc<Told>, port: u16) -> (AbortHandle, u16) {
    let (listener, port) = match port {
        0 => listen().await,
        port => (
            tokio::net::TcpListener::bind(("127.0.0.1", port))
                .await
                .unwrap(),
            port,
        ),
    };
    let teller = Teller(told.clone());
    let task = tokio::spawn(async move { serve(listener, teller).await.unwrap() });
    (task.abort_handle(), port)
}

/// A router before two servers: one that is told how to answer, and one that answers. A file is on each.
pub struct Site {
    pub told: Arc<Told>,
    pub server: AbortHandle,
    server_port: u16,
    /// Before that server, if it is there.
    pub gate: Option<Gate>,
    pub port: u16,
    pub root: Fh,
    pub files: [Fh; 2],
    pub router: super::Ends,
    pub keeper: Arc<super::Keeper<super::Journal>>,
    _place: tempfile::TempDir,
}

pub const TEXT: &[u8] = b"what is in the file";

impl Site {
    async fn start(squash: &str) -> Site {
        Site::with(super::Serving {
            squash,
            ..super::Serving::default()
        })
        .await
    }

    pub async fn with(serving: super::Serving<'_>) -> Site {
        let told_server = Told::new();
        let (server, server_port) = told(&told_server, 0).await;
        let gate = serving.gate.then(|| Gate::to(server_port));
        let first = gate.as_ref().map_or(server_port, |gate| gate.port);
        let ports = [first, servers(1).await[0]];
        let place = tempfile::tempdir().unwrap();
        let (router, port, keeper, _) =
            super::route_with(place.path(), &ports, [1; 16], "stay", serving).await;
        let (client, root) = Client::connect(port).await;
        let mut files = Vec::new();
        for dir in ["a", "b"] {
            let made = client.object(Ask::Mkdir(at(&root, dir), NewAttrs::default()));
            let dir = made.await.unwrap();
            let made = client.object(Ask::Create(at(&dir, "file"), NewAttrs::default()));
            let file = made.await.unwrap();
            let ask = Ask::Write {
                file: file.clone(),
                offset: 0,
                data: TEXT.into(),
                stable: true,
            };
            client.ask(ask).await.unwrap();
            files.push(file);
        }
        Site {
            told: told_server,
            server,
            server_port,
            gate,
            port,
            root,
            files: files.try_into().unwrap(),
            router,
            keeper,
            _place: place,
        }
    }

    pub fn manner(&self, manner: Manner) {
        self.told.manner(manner);
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).await.unwrap()
    }
}

/// What is passed on is answered, to the byte, as what is not, and which is not because something follows its arguments.
#[tokio::test]
async fn both_ways_say_the_same() {
    let site = Site::start("no_root_squash").await;
    let who = Who::new(5, 6);
    let mut stream = site.connect().await;
    let client = Client::connect(site.port).await.0;
    let name = |dir: &Fh, name: &[u8]| {
        let mut w = Writer::default();
        w.opaque(dir);
        w.opaque(name);
        w.out
    };
    let ask = Ask::Symlink(at(&site.root, "link"), "target".into());
    let link = client.object(ask).await.unwrap();
    let mut xid = 0;
    for file in &site.files {
        let mut written = Writer::default();
        written.opaque(file);
        [0, 3, 4, 2].into_iter().for_each(|word| written.u32(word));
        written.opaque(b"some");
        let mut bad = file.to_vec();
        bad[0] = 9;
        let mut nowhere = file.to_vec();
        nowhere[4] = 0xff;
        let mut gone = file.to_vec();
        gone.truncate(9);
        for (procedure, arguments, expected) in [
            (GETATTR, of(file, &[]), 0),
            (WRITE, written.out, 0),
            (COMMIT, of(file, &[0, 0, 0]), 0),
            (ACCESS, of(file, &[0x3f]), 0),
            (READDIR, of(&site.root, &[0, 0, 0, 0, 1 << 15]), 0),
            (READDIR, of(&site.root, &[0, 1, 0, 0, 2 << 20]), 0),
            (READ, of(file, &[0, 2, 9]), 0),
            (READ, of(file, &[0, 2, 2 << 20]), 0),
            (LOOKUP, name(&site.root, b"link"), 0),
            // A stub: it is asked for once more.
            (LOOKUP, name(&site.root, b"b"), 0),
            (LOOKUP, name(&site.root, b".."), 0),
            (LOOKUP, name(&site.root, b"nothing"), Status::NoEnt as u32),
            (READLINK, of(&link, &[]), 0),
            (GETATTR, of(&bad.into(), &[]), Status::BadHandle as u32),
            (GETATTR, of(&nowhere.into(), &[]), Status::Stale as u32),
            (GETATTR, of(&gone.into(), &[]), Status::BadHandle as u32),
        ] {
            let mut results = Vec::new();
            for more in [&[][..], &[0; 4]] {
                let arguments = [&arguments[..], more].concat();
                xid += 1;
                send(&mut stream, &call(xid, procedure, &who, &arguments)).await;
                let (answered, result) = reply(&mut stream).await.unwrap();
                assert_eq!(answered, xid);
                results.push(result);
            }
            let [one, two] = &results[..] else {
                unreachable!("two")
            };
            assert_eq!(one, two, "{procedure}");
            assert_eq!(status(one), expected, "{procedure}");
        }
    }
    // In any pieces.
    let mut stream = site.connect().await;
    let record = call(9, READ, &who, &of(&site.files[0], &[0, 7, 20]));
    let mut results = Vec::new();
    for cut in [1, 4, 60, record.len() - 1] {
        let mut out = Vec::new();
        fragment(&mut out, &record[..cut], false);
        fragment(&mut out, &record[cut..], true);
        for piece in out.chunks(cut + 3) {
            stream.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        results.push(reply(&mut stream).await.unwrap());
    }
    assert!(results.iter().all(|result| *result == results[0]));
    assert!(results[0].1.windows(12).any(|part| part == &TEXT[7..]));
}

#[tokio::test]
async fn servers_are_told_the_ids_that_the_export_leaves() {
    let nobody = 65534;
    let ids = |uid, gid, groups: &[u32]| Credential::Sys {
        uid,
        gid,
        groups: groups.to_vec(),
    };
    for (squash, root, user) in [
        ("no_root_squash", ids(0, 0, &[0, 7]), ids(5, 0, &[6])),
        (
            "root_squash",
            ids(nobody, nobody, &[nobody, 7]),
            ids(5, nobody, &[6]),
        ),
        (
            "all_squash",
            ids(nobody, nobody, &[]),
            ids(nobody, nobody, &[]),
        ),
    ] {
        let site = Site::start(squash).await;
        let mut stream = site.connect().await;
        for (uid, groups, expected) in [(0, vec![0, 7], root), (5, vec![6], user)] {
            let mut who = Who::new(uid, 0);
            who.groups = groups;
            site.told.came.lock().unwrap().clear();
            send(
                &mut stream,
                &call(1, GETATTR, &who, &of(&site.files[0], &[])),
            )
            .await;
            assert_eq!(status(&reply(&mut stream).await.unwrap().1), 0);
            assert_eq!(*site.told.came.lock().unwrap(), [expected], "{squash}");
        }
        // The owner of stubs is nobody, whoever says so.
        let stubs = Who::new(quorate_router::attrs::STUB_OWNER, 0);
        send(
            &mut stream,
            &call(2, GETATTR, &stubs, &of(&site.files[0], &[])),
        )
        .await;
        let told = status(&reply(&mut stream).await.unwrap().1);
        let expected = if squash == "all_squash" {
            0
        } else {
            Status::Acces as u32
        };
        assert_eq!(told, expected, "{squash}");
    }
}

/// Two clients number their calls alike, many at once and over both servers: each gets its own answers.
#[tokio::test]
async fn clients_use_the_same_numbers() {
    let site = Site::start("no_root_squash").await;
    let who = Who::new(5, 6);
    let mut streams = [site.connect().await, site.connect().await];
    for (client, stream) in streams.iter_mut().enumerate() {
        let mut out = Vec::new();
        for xid in 0..50 {
            let file = &site.files[(xid as usize + client) % 2];
            let words = [0, xid % 10, 1 + client as u32];
            fragment(&mut out, &call(xid, READ, &who, &of(file, &words)), true);
        }
        stream.write_all(&out).await.unwrap();
    }
    for (client, stream) in streams.iter_mut().enumerate() {
        let mut seen = [false; 50];
        for _ in 0..50 {
            let (xid, results) = reply(stream).await.unwrap();
            assert!(!std::mem::replace(&mut seen[xid as usize], true));
            let from = xid as usize % 10;
            let expected = &TEXT[from..=from + client];
            assert!(results[8..].starts_with(&(expected.len() as u32).to_be_bytes()));
            assert_eq!(&results[20..20 + expected.len()], expected);
        }
    }
}

/// A server that is away, refuses or is silent has the space of which it spoke last.
#[tokio::test]
async fn one_server_does_not_stop_fsstat() {
    let site = Site::start("no_root_squash").await;
    let who = Who::new(5, 6);
    let mut stream = site.connect().await;
    let both = SPACE.map(|word| 2 * word).map(u64::to_be_bytes).concat();
    for (manner, expected) in [
        (Some(Manner::Refusing), JUKEBOX),
        (Some(Manner::Well), 0),
        (Some(Manner::Refusing), 0),
        (Some(Manner::Never), 0),
        (None, 0),
    ] {
        match manner {
            Some(manner) => site.manner(manner),
            None => site.server.abort(),
        }
        // Of a file on the other.
        let asked = call(7, FSSTAT, &who, &of(&site.files[1], &[]));
        send(&mut stream, &asked).await;
        let told = timeout(Duration::from_secs(15), reply(&mut stream)).await;
        let (_, results) = told.expect("before it is given up").unwrap();
        assert_eq!(status(&results), expected, "{manner:?}");
        if expected == 0 {
            let end = results.len() - 4;
            assert_eq!(results[end - both.len()..end], both, "{manner:?}");
        }
    }
}

#[tokio::test]
async fn a_server_that_ends_or_lies_fails_its_own_calls() {
    let site = Site::start("no_root_squash").await;
    let who = Who::new(5, 6);
    let mut stream = site.connect().await;
    let ask = |xid: u32| {
        call(
            xid,
            READ,
            &who,
            &of(&site.files[xid as usize % 2], &[0, 0, 9]),
        )
    };
    for (manner, expected) in [
        (Manner::Refusing, JUKEBOX),
        (Manner::Garbled, SERVERFAULT),
        (Manner::Long, SERVERFAULT),
        (Manner::Well, 0),
    ] {
        site.manner(manner);
        for xid in 0..2 {
            send(&mut stream, &ask(xid)).await;
            let (_, results) = reply(&mut stream).await.unwrap();
            let expected = if xid == 0 { expected } else { 0 };
            assert_eq!(status(&results), expected, "{manner:?}");
            assert_eq!(results.len() > 12, expected == 0);
        }
    }
    // With calls in flight: those to the other server are answered, then these.
    site.manner(Manner::Never);
    let asked = site.told.count(READ);
    for xid in 0..40 {
        send(&mut stream, &ask(xid)).await;
    }
    for _ in 0..20 {
        let (xid, results) = reply(&mut stream).await.unwrap();
        assert_eq!((xid % 2, status(&results)), (1, 0));
    }
    eventually(|| site.told.count(READ) == asked + 20).await;
    site.server.abort();
    for _ in 0..20 {
        let (xid, results) = reply(&mut stream).await.unwrap();
        assert_eq!((xid % 2, status(&results)), (0, JUKEBOX));
    }
    // Not there; there again.
    site.manner(Manner::Well);
    send(&mut stream, &ask(0)).await;
    assert_eq!(status(&reply(&mut stream).await.unwrap().1), JUKEBOX);
    let _server = told(&site.told, site.server_port).await;
    for _ in 0..100 {
        send(&mut stream, &ask(0)).await;
        if status(&reply(&mut stream).await.unwrap().1) == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the server is back, and not asked");
}

/// A server whose process stands still, and whose machine goes on taking connections and bytes, takes all the room that a client has for calls at work. Those are given up, and no
/// more are sent to it, so that the client's calls to others go on; until it is back.
#[tokio::test]
async fn a_server_that_hangs_keeps_no_room() {
    let site = Site::start("no_root_squash").await;
    let who = Who::new(5, 6);
    let mut stream = site.connect().await;
    let ask = |xid: u32, at: usize| call(xid, READ, &who, &of(&site.files[at], &[0, 0, 9]));
    site.manner(Manner::Held);
    for xid in 0..64 {
        send(&mut stream, &ask(xid, 0)).await;
    }
    send(&mut stream, &ask(64, 1)).await;
    for _ in 0..65 {
        let (xid, results) = reply(&mut stream).await.unwrap();
        let expected = if xid < 64 { JUKEBOX } else { 0 };
        assert_eq!(status(&results), expected, "{xid}");
    }
    let told = site.told.count(READ);
    for xid in 0..100 {
        send(&mut stream, &ask(xid, 0)).await;
        assert_eq!(status(&reply(&mut stream).await.unwrap().1), JUKEBOX);
    }
    assert_eq!(site.told.count(READ), told, "it hangs, and is asked");
    site.manner(Manner::Well);
    for _ in 0..600 {
        send(&mut stream, &ask(0, 0)).await;
        if status(&reply(&mut stream).await.unwrap().1) == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the server is back, and not asked");
}

/// Who reads no replies is asked for no more than there is room for, and holds up nobody.
#[tokio::test]
async fn a_client_that_stalls() {
    let site = Site::start("no_root_squash").await;
    let who = Who::new(5, 6);
    let client = Client::connect(site.port).await.0;
    const MEGABYTE: u32 = 1 << 20;
    let ask = Ask::Write {
        file: site.files[0].clone(),
        offset: 0,
        data: vec![7; MEGABYTE as usize].into(),
        stable: true,
    };
    client.ask(ask).await.unwrap();
    let mut stalled = site.connect().await;
    for xid in 0..64 {
        let words = [0, 0, MEGABYTE];
        send(
            &mut stalled,
            &call(xid, READ, &who, &of(&site.files[0], &words)),
        )
        .await;
    }
    let reads = || site.told.count(READ);
    // 16 MiB of replies are taken up, less what they are counted for beside their data; and what lies in sockets.
    eventually(|| reads() >= 15).await;
    let mut other = site.connect().await;
    for xid in 0..500 {
        let words = [0, 0, 9];
        send(
            &mut other,
            &call(xid, READ, &who, &of(&site.files[0], &words)),
        )
        .await;
        assert_eq!(status(&reply(&mut other).await.unwrap().1), 0);
    }
    let taken_up = reads() - 500;
    assert!((15..40).contains(&taken_up), "{taken_up}");
    // It gets all when it reads at last.
    for _ in 0..64 {
        let (_, results) = reply(&mut stalled).await.unwrap();
        assert_eq!(
            (status(&results), results.len()),
            (0, 20 + MEGABYTE as usize)
        );
    }
    assert_eq!(reads(), 564);
}

#[tokio::test]
async fn a_record_that_is_too_long_ends_the_connection() {
    let site = Site::start("no_root_squash").await;
    let who = Who::new(5, 6);
    let mut stream = site.connect().await;
    let mut out = Vec::new();
    fragment(
        &mut out,
        &call(1, GETATTR, &who, &of(&site.files[0], &[])),
        true,
    );
    out.extend_from_slice(&(LAST | (MAX_RECORD_BYTES as u32 + 1)).to_be_bytes());
    stream.write_all(&out).await.unwrap();
    while let Some((xid, _)) = reply(&mut stream).await {
        assert_eq!(xid, 1);
    }
    let (client, root) = Client::connect(site.port).await;
    assert_eq!(root, site.root);
    match client.ask(Ask::GetAttr(site.files[0].clone())).await {
        Ok(Given::Attrs(_)) => {}
        other => panic!("{other:?}"),
    }
}

/// Calls to a server that is away wait for it, as many as there is room for, and those to others go on.
#[tokio::test]
async fn calls_wait_for_a_server_that_is_away() {
    // Of each of ten connections: 8 may wait, and 64 of all.
    const CONNECTIONS: u32 = 10;
    const CALLS: u32 = 12;
    const WAITING: u32 = 64;
    let mut site = Site::with(super::Serving {
        away: "wait",
        ..super::Serving::default()
    })
    .await;
    let who = Who::new(5, 6);
    site.server.abort();
    eventually(|| !site.keeper.overview(|_| 0).volumes[0].connected).await;
    let (tell, mut replies) = mpsc::unbounded_channel();
    for _ in 0..CONNECTIONS {
        let (mut stream, tell) = (site.connect().await, tell.clone());
        let asked = call(1, GETATTR, &who, &of(&site.files[0], &[]));
        tokio::spawn(async move {
            for _ in 0..CALLS {
                send(&mut stream, &asked).await;
            }
            while let Some((_, results)) = reply(&mut stream).await {
                tell.send(status(&results)).unwrap();
            }
        });
    }
    for _ in WAITING..CONNECTIONS * CALLS {
        assert_eq!(replies.recv().await, Some(JUKEBOX));
    }
    // What is long does not wait, and so takes no room from what comes behind it on its connection.
    let mut stream = site.connect().await;
    let long = call(1, READ, &who, &of(&site.files[0], &[0, 0, 1 << 20]));
    for _ in 0..80 {
        send(&mut stream, &long).await;
    }
    let asked = call(2, READ, &who, &of(&site.files[1], &[0, 0, 9]));
    send(&mut stream, &asked).await;
    let mut refused = 0;
    loop {
        let (number, results) = reply(&mut stream).await.unwrap();
        match number {
            1 => assert_eq!(status(&results), JUKEBOX),
            _ => break assert_eq!(status(&results), 0),
        }
        refused += 1;
    }
    assert!(refused <= 80);
    let more = timeout(Duration::from_secs(2), replies.recv()).await;
    assert!(more.is_err(), "the others are answered too: {more:?}");
    site.server = told(&site.told, site.server_port).await.0;
    for _ in 0..WAITING {
        assert_eq!(replies.recv().await, Some(0));
    }
}
