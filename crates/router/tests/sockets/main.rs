//! The router over TCP, between a client and three servers: first use, placement, operations on two servers, a new router on the same log.

#[allow(dead_code, reason = "the log and the faults are not needed here")]
#[path = "../crash/model.rs"]
mod model;
mod responder;

use std::path::Path;
use std::sync::Mutex;

use bytes::Bytes;
use quorate_files::Who;
use quorate_nfs::call::{Fh, NewAttrs, Place};
use quorate_nfs::serve;
use quorate_nfs::status::Status;
use quorate_nfs::xdr::{Reader, Writer};
use quorate_router::ask::{Ask, Given};
use quorate_router::config::{Config, Keeper};
use quorate_router::coordinator::Coordinator;
use quorate_router::journal::Journal;
use quorate_router::proxy::Proxy;
use quorate_router::setup::set_up;
use quorate_router::upstream::{Upstream, Upstreams};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use responder::Responder;

async fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// A router of servers at these ports, which ends with the handle.
async fn route(place: &Path, ports: &[u16], new: [u8; 16]) -> (AbortHandle, u16) {
    let urls: Vec<String> = ports
        .iter()
        .map(|port| format!("\"nfs://127.0.0.1:{port}/\""))
        .collect();
    let file = place.join("route.toml");
    let text = format!(
        "log = \"route.log\"\nvolumes = [{}]\npolicy = \"stay\"\n\
         [pin]\na = 0\nb = 1\nc = 2\n[[export]]\npath = \"/\"\nsecure = false\nsquash = \"no_root_squash\"\n",
        urls.join(", ")
    );
    std::fs::write(&file, text).unwrap();
    let config = Config::load(&file).unwrap();
    let upstreams = config
        .volumes
        .iter()
        .map(|v| Upstream::start(v.nfs.clone()));
    let upstreams = Upstreams(upstreams.collect());
    let volumes = set_up(&upstreams, &config.volumes, new).await.unwrap();
    assert_eq!(volumes.set, [1; 16]);
    let Keeper::File(log) = &config.keeper else {
        panic!("a file");
    };
    let (journal, open) = Journal::open(log, volumes.set, 0).unwrap();
    assert!(open.is_empty());
    let coordinator = Coordinator::new(upstreams, journal, volumes.hidden, volumes.root);
    let layout = config.layout();
    let proxy = Proxy::new(
        coordinator,
        layout,
        config.exports,
        volumes.tops,
        volumes.set,
    );
    let (listener, port) = listen().await;
    let task = tokio::spawn(async move { serve(listener, proxy).await.unwrap() });
    (task.abort_handle(), port)
}

struct Client(Upstream);

impl Client {
    async fn connect(port: u16) -> (Client, Fh) {
        let upstream = Upstream::start(format!("127.0.0.1:{port}"));
        let mut w = Writer::default();
        w.opaque(b"/");
        let mounted = upstream.call((100_005, 3), 1, &Who::root(), &w.out).await;
        let mut r = Reader::new(mounted.unwrap());
        assert_eq!(r.u32(), Ok(0));
        (Client(upstream), r.opaque(64, "handle").unwrap())
    }

    async fn ask(&self, ask: Ask) -> Result<Given, Status> {
        let (who, arguments) = (Who::root(), ask.write());
        let called = self.0.call((100_003, 3), ask.procedure(), &who, &arguments);
        ask.read(called.await.unwrap())
    }

    async fn object(&self, ask: Ask) -> Result<Fh, Status> {
        match self.ask(ask).await? {
            Given::Object(object) => {
                let attrs = object.attrs.unwrap();
                assert_eq!(attrs.0[44..52], [1; 8], "one file system");
                Ok(object.handle)
            }
            other => panic!("{other:?}"),
        }
    }
}

fn at(dir: &Fh, name: &'static str) -> Place {
    Place {
        dir: dir.clone(),
        name: name.into(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_volume_over_sockets() {
    let place = tempfile::tempdir().unwrap();
    let mut ports = Vec::new();
    for _ in 0..3 {
        let (listener, port) = listen().await;
        let server = Responder(Mutex::new(model::Server::default()));
        tokio::spawn(async move { serve(listener, server).await.unwrap() });
        ports.push(port);
    }
    let (router, port) = route(place.path(), &ports, [1; 16]).await;
    let (client, root) = Client::connect(port).await;
    let new = NewAttrs::default;
    let mut dirs = Vec::new();
    for (name, volume) in [("a", 0), ("b", 1), ("c", 2)] {
        let made = client.object(Ask::Mkdir(at(&root, name), new())).await;
        let dir = made.unwrap();
        assert_eq!((dir[3], dir[7]), (volume, volume), "{name}");
        let again = client.object(Ask::Lookup(at(&root, name))).await;
        assert_eq!(again.as_ref(), Ok(&dir));
        let again = client.ask(Ask::Mkdir(at(&root, name), new())).await;
        assert!(again.is_err());
        let up = client.object(Ask::Lookup(at(&dir, ".."))).await;
        assert_eq!(up.as_ref(), Ok(&root));
        dirs.push(dir);
    }
    let [a, b, c] = &dirs[..] else {
        panic!("three")
    };
    let text = Bytes::from_static(b"text");
    let file = client.object(Ask::Symlink(at(b, "file"), text.clone()));
    let file = file.await.unwrap();
    // To another server and under a second name on a third; its handle stays.
    let moved = Ask::Rename(at(b, "file"), at(c, "moved"));
    client.ask(moved).await.unwrap();
    client
        .ask(Ask::Link(file.clone(), at(a, "linked")))
        .await
        .unwrap();
    for place in [at(c, "moved"), at(a, "linked")] {
        assert_eq!(client.object(Ask::Lookup(place)).await.as_ref(), Ok(&file));
    }
    // Into itself is no way, though no server could see it.
    let circle = client.ask(Ask::Rename(at(&root, "b"), at(b, "b"))).await;
    assert_eq!(circle.unwrap_err(), Status::Inval);
    client
        .ask(Ask::Rename(at(&root, "b"), at(c, "b")))
        .await
        .unwrap();
    let full = client.ask(Ask::Rmdir(at(&root, "c"))).await;
    assert_eq!(full.unwrap_err(), Status::NotEmpty);

    // Another router with the same log; the number that it would give a new set is not used.
    router.abort();
    let log = place.path().join("route.lock");
    let free = || std::fs::File::open(&log).unwrap().try_lock().is_ok();
    for _ in 0..200 {
        if free() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let (_router, port) = route(place.path(), &ports, [2; 16]).await;
    let (client, again) = Client::connect(port).await;
    assert_eq!(again, root);
    let deep = client.object(Ask::Lookup(at(c, "b"))).await;
    assert_eq!(deep.as_ref(), Ok(b));
    match client.ask(Ask::Readlink(file.clone())).await.unwrap() {
        Given::Text(found) => assert_eq!(found, text),
        other => panic!("{other:?}"),
    }
    client.ask(Ask::Remove(at(c, "moved"))).await.unwrap();
    client.ask(Ask::Remove(at(a, "linked"))).await.unwrap();
    client.ask(Ask::Rmdir(at(c, "b"))).await.unwrap();
    for name in ["a", "c"] {
        client.ask(Ask::Rmdir(at(&root, name))).await.unwrap();
    }
    let gone = client.ask(Ask::Readlink(file)).await;
    assert_eq!(gone.unwrap_err(), Status::Stale);
}
