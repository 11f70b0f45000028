//! The router over TCP, between a client and three servers: first use, placement, operations on two servers, a new router on the same log.

mod calls;
mod creates;
mod datagrams;
mod gate;
mod kernel;
mod load;
#[allow(dead_code, reason = "the log and the faults are not needed here")]
#[path = "../crash/model.rs"]
mod model;
mod responder;
mod straight;
mod streams;
mod told;
mod udp_servers;

use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use quorate_files::Who;
use quorate_nfs::call::{Fh, NewAttrs, Place};
use quorate_nfs::status::Status;
use quorate_nfs::xdr::{Reader, Writer};
use quorate_nfs::{Drops, Listeners, serve};
use quorate_router::ask::{Ask, Given};
use quorate_router::buckets::Buckets;
use quorate_router::config::{self, Config};
use quorate_router::coordinator::Coordinator;
use quorate_router::intent::Log;
use quorate_router::journal::Journal;
use quorate_router::kernel::{Choice, TcpSwitch, UdpSwitch};
use quorate_router::mover::Mover;
use quorate_router::proxy::Proxy;
use quorate_router::setup::{set_up, survey};
use quorate_router::shelf::Shelves;
use quorate_router::upstream::{Upstream, Upstreams};
use quorate_router::volumes::Keeper;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use responder::Responder;

async fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Servers of the model; their ports.
async fn servers(count: usize) -> Vec<u16> {
    let mut ports = Vec::new();
    for _ in 0..count {
        let (listener, port) = listen().await;
        let server = Responder(Mutex::new(model::Server::default()));
        tokio::spawn(async move { serve(listener, server).await.unwrap() });
        ports.push(port);
    }
    ports
}

async fn eventually(is_so: impl Fn() -> bool) {
    for _ in 0..3_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("it does not come to be so");
}

fn lock_is_free(place: &Path) -> bool {
    let lock = std::fs::File::open(place.join("route.lock"));
    lock.unwrap().try_lock().is_ok()
}

/// A router, until this goes.
struct Ends {
    tasks: Vec<AbortHandle>,
    switch: Option<Arc<UdpSwitch>>,
    streams: Option<Arc<TcpSwitch>>,
    buckets: Arc<Buckets<Upstreams>>,
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// A router of servers at these ports, which ends with the handle.
async fn route(
    place: &Path,
    ports: &[u16],
    new: [u8; 16],
    policy: &str,
) -> (Ends, u16, Arc<Keeper<Journal>>) {
    let serving = Serving::default();
    let (ends, port, keeper, _) = route_with(place, ports, new, policy, serving).await;
    (ends, port, keeper)
}

/// How clients are served.
struct Serving<'a> {
    squash: &'a str,
    threads: usize,
    udp: bool,
    /// Whether servers speak UDP.
    servers_speak_udp: bool,
    /// To whom the volume is offered.
    clients: &'a str,
    /// What becomes of calls to a server that can't be reached.
    away: &'a str,
    /// Whether the system passes calls on, where it can.
    switch: bool,
    /// The same over TCP: for which connections.
    streams: Option<Choice>,
    /// Whether the first server is on a machine that can fall silent.
    gate: bool,
}

impl Default for Serving<'_> {
    fn default() -> Self {
        Serving {
            squash: "no_root_squash",
            threads: 1,
            udp: false,
            servers_speak_udp: false,
            clients: "127.0.0.0/8",
            away: "jukebox",
            switch: false,
            streams: None,
            gate: false,
        }
    }
}

async fn route_with(
    place: &Path,
    ports: &[u16],
    new: [u8; 16],
    policy: &str,
    serving: Serving<'_>,
) -> (Ends, u16, Arc<Keeper<Journal>>, Arc<Drops>) {
    let udp = match serving.servers_speak_udp {
        true => "?udp=yes",
        false => "",
    };
    let urls: Vec<String> = ports
        .iter()
        .map(|port| format!("\"nfs://127.0.0.1:{port}/{udp}\""))
        .collect();
    let pins = ["a", "b", "c"].iter().enumerate().take(ports.len());
    let pins: Vec<_> = pins.map(|(n, name)| format!("{name} = {n}\n")).collect();
    let file = place.join("route.toml");
    let text = format!(
        "log = \"route.log\"\naway = \"{}\"\nvolumes = [{}]\npolicy = \"{policy}\"\nbuckets = 12\n\
         [pin]\n{}[[export]]\npath = \"/\"\nsecure = false\nsquash = \"{}\"\nclients = [\"{}\"]\n",
        serving.away,
        urls.join(", "),
        pins.concat(),
        serving.squash,
        serving.clients
    );
    std::fs::write(&file, text).unwrap();
    let config = Config::load(&file).unwrap();
    let survey = survey(&config.volumes, new).await.unwrap();
    let set = survey.set;
    assert_eq!(set, [1; 16]);
    let config::Keeper::File(log) = &config.keeper else {
        panic!("a file");
    };
    let (journal, open) = Journal::open(log, set, 0).unwrap();
    assert!(open.is_empty());
    let kept = journal.map();
    let volumes = set_up(survey, kept.clone(), config.buckets, 0)
        .await
        .unwrap();
    let buckets = volumes.buckets;
    let map = buckets.map();
    if kept.as_ref() != Some(&*map) {
        journal.keep(&map).await.unwrap();
    }
    let shelves: Arc<Shelves> = Arc::new(volumes.shelves.into());
    let mover = Mover::new(buckets.clone(), journal.clone(), shelves.clone());
    let keeper = Arc::new(Keeper::new(mover, shelves.clone(), set, true));
    let coordinator = Coordinator::new(buckets, journal, volumes.hidden, volumes.root);
    let layout = Arc::new(config.layout());
    let exports = config.exports.clone();
    let buckets = coordinator.servers.clone();
    let mut proxy = Proxy::new(coordinator, layout, config.exports, shelves, set);
    proxy.set_away(config.away);
    let background = keeper.clone();
    let moving = tokio::spawn(async move { background.run().await });
    let address = ([127, 0, 0, 1], 0).into();
    let mut listeners = Listeners::bind(address, serving.threads, serving.udp).unwrap();
    let (port, drops) = (listeners.address().port(), listeners.drops());
    let mut tasks = vec![moving.abort_handle()];
    let streams = serving.streams.map(|choice| {
        let streams = TcpSwitch::start(&exports, proxy.fsid(), buckets.clone(), choice);
        Arc::new(streams.unwrap())
    });
    if let Some(streams) = &streams {
        proxy.set_streams(streams.clone());
        let served = streams.clone();
        tasks.push(tokio::spawn(async move { served.serve().await }).abort_handle());
    }
    let mut switch = None;
    if serving.switch {
        let started =
            UdpSwitch::start(listeners.address(), &exports, proxy.fsid(), buckets.clone()).await;
        let started = Arc::new(started.unwrap());
        switch = Some(started.clone());
        let again = listeners.again();
        tasks.push(tokio::spawn(async move { started.serve(again).await }).abort_handle());
    }
    let task = tokio::spawn(async move { listeners.serve(Arc::new(proxy)).await.unwrap() });
    tasks.push(task.abort_handle());
    let ends = Ends {
        tasks,
        switch,
        streams,
        buckets,
    };
    (ends, port, keeper, drops)
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
    let ports = servers(3).await;
    let (router, port, keeper) = route(place.path(), &ports, [1; 16], "stay").await;
    let (client, root) = Client::connect(port).await;
    let new = NewAttrs::default;
    let mut dirs = Vec::new();
    for (name, volume) in [("a", 0), ("b", 1), ("c", 2)] {
        let made = client.object(Ask::Mkdir(at(&root, name), new())).await;
        let dir = made.unwrap();
        // Bucket 0 and 3 are on volume 0, and so on.
        assert_eq!((dir[3], dir[7] % 3), (volume, volume), "{name}");
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
    drop((router, keeper));
    let free = || lock_is_free(place.path());
    eventually(free).await;
    let (_router, port, _) = route(place.path(), &ports, [2; 16], "stay").await;
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
