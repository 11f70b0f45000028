//! Trees on servers in memory, and a router in front of them.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use quorate_files::Who;
use quorate_nfs::call::{Fh, NewAttrs, Place};
use quorate_nfs::status::Status;
use quorate_router::ask::{Ask, Given, Servers};
use quorate_router::attrs::Attrs;
use quorate_router::buckets::Buckets;
use quorate_router::coordinator::{Coordinator, Found, Hidden, Renamed};
use quorate_router::handle::Handle;
use quorate_router::intent::Name;
use quorate_router::layout::{Bucket, HOME, Volume};
use quorate_router::map::Map;
use quorate_router::shelf::{self, Shelf, Shelved, bucket_name, table_name};

use crate::model::{ROOT, Server, State, World, fh};

pub const VOLUMES: u16 = 3;
/// The one life of a router in `staging`.
const LIFE: &[u8] = b"life";
/// More than volumes, so that some are side by side.
const BUCKETS: u32 = 5;
/// `ftype3` of a file.
const REGULAR: u32 = 1;
const NAMES: [&[u8]; 6] = [b"a", b"b", b"c", b"d", b"e", b"f"];
/// How many operations on one tree.
const OPERATIONS: usize = 60;

/// A generator of numbers (SplitMix64).
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

pub type Path = Vec<&'static [u8]>;

/// An operation, by paths from the root.
#[derive(Clone, Debug)]
pub enum Op {
    Mkdir(Path, Bucket),
    Make(Path, u64),
    Write(Path, u64, Bytes),
    Cut(Path, u64),
    Rmdir(Path),
    Remove(Path),
    Rename(Path, Path),
    Link(Path, Path),
}

fn path(random: &mut Random) -> Path {
    let depth = 1 + random.below(3);
    (0..depth)
        .map(|_| NAMES[random.below(NAMES.len() as u64) as usize])
        .collect()
}

pub fn op(random: &mut Random) -> Op {
    let bucket = Bucket(random.below(BUCKETS.into()) as u32);
    match random.below(15) {
        0..4 => Op::Mkdir(path(random), bucket),
        4 | 5 => Op::Make(path(random), random.next()),
        6 => Op::Rmdir(path(random)),
        7 => Op::Remove(path(random)),
        8..11 => Op::Rename(path(random), path(random)),
        11 => Op::Link(path(random), path(random)),
        12 | 13 => {
            let text = vec![random.below(256) as u8; 1 + random.below(9) as usize];
            // Holes, and more than one chunk.
            let offset = random.below(20) << (random.below(2) * 17);
            Op::Write(path(random), offset, text.into())
        }
        _ => Op::Cut(path(random), random.below(40)),
    }
}

/// Runs to the end, or to where the router dies.
pub fn run<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

pub type Router<'a> = Coordinator<Arc<Buckets<&'a World>>, &'a World>;

/// The numbers of directories that all volumes have.
const BUCKETS_DIR: u64 = ROOT + 2;
const TABLES_DIR: u64 = ROOT + 3;

fn shelf() -> Shelf {
    Shelf {
        top: fh(ROOT),
        buckets: fh(BUCKETS_DIR),
        tables: fh(TABLES_DIR),
    }
}

pub fn shelves(volumes: usize) -> BTreeMap<Volume, Shelf> {
    (0..volumes as u16).map(|n| (Volume(n), shelf())).collect()
}

/// A world whose volumes have their hidden directories.
pub fn world(volumes: u16, buckets: u32) -> World {
    let urls = (0..volumes).map(|n| n.to_string()).collect();
    let map = Map::first(urls, buckets);
    let servers = (0..volumes).map(|volume| {
        let mut server = empty();
        for bucket in map.held_by(Volume(volume)) {
            let own = make(&mut server, &fh(BUCKETS_DIR), &bucket_name(bucket, 0));
            let staging = make(&mut server, &own, b"staging");
            make(&mut server, &staging, LIFE);
            make(&mut server, &own, b"placed");
            if bucket == HOME {
                make(&mut server, &own, b"root");
            }
        }
        server
    });
    let state = State {
        servers: servers.collect(),
        map: Some(map),
        ..State::default()
    };
    World(state.into())
}

/// A server that is new to the set.
pub fn empty() -> Server {
    let mut server = Server::default();
    let own = make(&mut server, &fh(ROOT), b"hidden");
    assert_eq!(make(&mut server, &own, b"buckets"), fh(BUCKETS_DIR));
    assert_eq!(make(&mut server, &own, b"tables"), fh(TABLES_DIR));
    server
}

fn make(server: &mut Server, dir: &Fh, name: &[u8]) -> Fh {
    let at = Place {
        dir: dir.clone(),
        name: Bytes::copy_from_slice(name),
    };
    match server.ask(Ask::Mkdir(at, NewAttrs::default())) {
        Ok(Given::Object(object)) => object.handle,
        other => panic!("{other:?}"),
    }
}

/// Asks that are no steps: nothing befalls them.
struct Direct<'a>(&'a World);

impl Servers for Direct<'_> {
    async fn ask(&self, volume: Volume, _: &Who, ask: Ask) -> Result<Given, Status> {
        self.0.lock().servers[usize::from(volume.0)].ask(ask)
    }

    async fn pause(&self) {}
}

/// A directory that a bucket has, by its key.
fn own(world: &World, buckets: &Buckets<&World>, bucket: Bucket, name: &'static [u8]) -> Fh {
    let servers = &Direct(world);
    let place = buckets.map().place(bucket).unwrap();
    let on = Shelved {
        servers,
        volume: place.volume,
    };
    let look = |dir: &Fh, name: Bytes| {
        let found = run(on.look(dir, &name)).unwrap();
        found.unwrap().expect("a hidden directory")
    };
    let own = look(&fh(BUCKETS_DIR), bucket_name(bucket, place.moved));
    let named = look(&own, name.into());
    let named = match name {
        b"staging" => look(&named, LIFE.into()),
        _ => named,
    };
    buckets.locate(bucket).unwrap().key(&named)
}

fn hidden(world: &World, buckets: &Buckets<&World>) -> Vec<Hidden> {
    let of = |bucket: Bucket| Hidden {
        staging: own(world, buckets, bucket, b"staging"),
        placed: own(world, buckets, bucket, b"placed"),
    };
    buckets
        .map()
        .places()
        .map(|(bucket, _)| of(bucket))
        .collect()
}

/// A router as it starts, from what is on the servers and in its log.
pub fn router(world: &World) -> Router<'_> {
    let map = world.lock().map.clone().unwrap();
    let shelves = shelves(map.volumes.len());
    let tables = run(shelf::read_tables(&Direct(world), &map, &shelves)).unwrap();
    let (names, numbers) = tables.unwrap();
    let buckets = Arc::new(Buckets::new(world, map, names, numbers));
    let root = Handle {
        bucket: HOME,
        key: own(world, &buckets, HOME, b"root"),
    };
    let hidden = hidden(world, &buckets);
    Coordinator::new(buckets, world, hidden, root)
}

async fn name(router: &Router<'_>, path: &Path) -> Result<Name, Status> {
    let (last, above) = path.split_last().unwrap();
    let mut dir = router.root().clone();
    for &name in above {
        let at = Name {
            dir,
            name: name.into(),
        };
        dir = match router.find(&at).await? {
            Found::Thing(thing, _) if thing.is_dir => thing.object,
            Found::Thing(..) => return Err(Status::NotDir),
            Found::Nothing { .. } => return Err(Status::NoEnt),
        };
    }
    let name = Bytes::from_static(last);
    Ok(Name { dir, name })
}

/// The file under a name.
async fn file(router: &Router<'_>, at: &Name) -> Result<Handle, Status> {
    match router.find(at).await? {
        Found::Thing(thing, attrs) if attrs.kind() == REGULAR => Ok(thing.object),
        Found::Thing(..) => Err(Status::Inval),
        Found::Nothing { .. } => Err(Status::NoEnt),
    }
}

/// As the proxy does it.
pub async fn act(router: &Router<'_>, op: &Op) -> Result<(), Status> {
    let who = Who::root();
    let straight = |bucket: Bucket, ask: Ask| async move {
        let asked = router.servers.ask(bucket, &Who::root(), ask).await;
        asked.map(drop)
    };
    let _passage = router.servers.pass_all().await;
    match op {
        Op::Mkdir(path, bucket) => {
            let at = name(router, path).await?;
            let bucket = Bucket(bucket.0 % router.servers.map().buckets.len() as u32);
            if bucket == at.dir.bucket {
                let ask = Ask::Mkdir(at.place(), NewAttrs::default());
                return straight(bucket, ask).await;
            }
            let made = router.mkdir(&who, at, bucket, NewAttrs::default());
            made.await.map(drop)
        }
        Op::Make(path, text) => {
            let at = name(router, path).await?;
            let text = Bytes::copy_from_slice(&text.to_be_bytes());
            straight(at.dir.bucket, Ask::Symlink(at.place(), text)).await
        }
        Op::Write(path, offset, data) => {
            let at = name(router, path).await?;
            let file = match router.find(&at).await? {
                Found::Nothing { .. } => {
                    let ask = Ask::Create(at.place(), NewAttrs::default());
                    straight(at.dir.bucket, ask).await?;
                    file(router, &at).await?
                }
                Found::Thing(..) => file(router, &at).await?,
            };
            let ask = Ask::Write {
                file: file.key,
                offset: *offset,
                data: data.clone(),
                stable: true,
            };
            straight(file.bucket, ask).await
        }
        Op::Cut(path, size) => {
            let at = name(router, path).await?;
            let file = file(router, &at).await?;
            let new = NewAttrs {
                size: Some(*size),
                mode: Some(*size as u32),
                ..NewAttrs::default()
            };
            straight(file.bucket, Ask::SetAttr(file.key, new)).await
        }
        Op::Rmdir(path) => {
            let at = name(router, path).await?;
            match router.find(&at).await? {
                Found::Thing(thing, _) if thing.stub.is_none() => {
                    straight(at.dir.bucket, Ask::Rmdir(at.place())).await
                }
                _ => router.remove(&who, at, true).await,
            }
        }
        Op::Remove(path) => {
            let at = name(router, path).await?;
            match straight(at.dir.bucket, Ask::Remove(at.place())).await {
                Err(Status::IsDir) => router.remove(&who, at, false).await,
                other => other,
            }
        }
        Op::Rename(from, to) => {
            let (from, to) = (name(router, from).await?, name(router, to).await?);
            let renaming = router.find_rename(from.clone(), to.clone()).await?;
            let renamed = router.rename(&who, renaming).await?;
            match renamed {
                Renamed::Done => Ok(()),
                Renamed::Straight(_guard) => {
                    let ask = Ask::Rename(from.place(), to.place());
                    straight(from.dir.bucket, ask).await
                }
            }
        }
        Op::Link(old, new) => {
            let (old, to) = (name(router, old).await?, name(router, new).await?);
            let Found::Thing(thing, _) = router.find(&old).await? else {
                return Err(Status::NoEnt);
            };
            let file = thing.object;
            if file.bucket != to.dir.bucket {
                return router.link(&who, file, to).await;
            }
            straight(file.bucket, Ask::Link(file.key, to.place())).await
        }
    }
}

/// What is in a file, or where a symbolic link leads.
pub fn text(router: &Router<'_>, object: &Handle) -> Bytes {
    let attrs = run(router.attrs(object)).unwrap().unwrap();
    let file = object.key.clone();
    let ask = match attrs.kind() {
        REGULAR => Ask::Read {
            file,
            offset: 0,
            count: u32::MAX,
        },
        _ => Ask::Readlink(file),
    };
    match run(router.servers.ask(object.bucket, &Who::root(), ask)).unwrap() {
        Ok(Given::Text(text)) => text,
        Ok(Given::Data { data, .. }) => data,
        other => panic!("{other:?}"),
    }
}

/// What clients see: each path, and for what is no directory its content and how many names it has.
pub fn tree(router: &Router<'_>) -> BTreeMap<Vec<u8>, Option<(Bytes, u32)>> {
    let mut seen = BTreeMap::new();
    let mut todo = vec![(router.root().clone(), Vec::new())];
    while let Some((dir, path)) = todo.pop() {
        let (mut cookie, mut end) = (0, false);
        while !end {
            let ask = Ask::ReadDir {
                dir: dir.key.clone(),
                cookie,
                verifier: 0,
            };
            let listed = run(router.servers.ask(dir.bucket, &Who::root(), ask)).unwrap();
            let Given::Entries {
                entries, end: last, ..
            } = listed.unwrap()
            else {
                panic!("no listing");
            };
            end = last;
            for entry in entries {
                cookie = entry.cookie;
                let path = [&path[..], b"/", &entry.name[..]].concat();
                let at = Name {
                    dir: dir.clone(),
                    name: entry.name,
                };
                let found = run(router.find(&at)).unwrap().unwrap();
                let Found::Thing(thing, attrs) = found else {
                    panic!("{at:?} is a stub without a target");
                };
                if thing.is_dir {
                    let parent = run(router.parent(&thing.object)).unwrap();
                    assert_eq!(parent.as_ref(), Ok(&dir), "{path:?}");
                    todo.push((thing.object, path.clone()));
                    seen.insert(path, None);
                    continue;
                }
                let text = text(router, &thing.object);
                let nlink = u32::from_be_bytes(attrs.0[8..12].try_into().unwrap());
                seen.insert(path, Some((text, nlink)));
            }
        }
    }
    seen
}

/// All names in a directory of a server.
fn listed(world: &World, volume: Volume, dir: &Fh) -> Vec<Bytes> {
    let direct = Direct(world);
    let on = Shelved {
        servers: &direct,
        volume,
    };
    let entries = run(on.list(dir)).unwrap().unwrap();
    entries.into_iter().map(|entry| entry.name).collect()
}

/// Nothing is left that nobody sees: no stub half made, no more targets than stubs, no copy of a bucket or table that does not count.
pub fn assert_clean(world: &World, router: &Router<'_>) {
    let (mut targets, mut stubs) = (0, 0);
    let map = router.servers.map();
    assert_eq!(Some(&*map), world.lock().map.as_ref());
    for volume in map.present() {
        let own = listed(world, volume, &fh(BUCKETS_DIR));
        let expected = map.held_by(volume);
        let expected = expected.map(|b| bucket_name(b, map.place(b).unwrap().moved));
        assert_eq!(own, expected.collect::<Vec<_>>(), "buckets of {volume:?}");
        let tables = listed(world, volume, &fh(TABLES_DIR));
        let expected = map.member(volume).unwrap().tables.iter();
        let expected: Vec<_> = expected.map(|&n| table_name(n)).collect();
        assert_eq!(tables, expected, "tables of {volume:?}");
    }
    for (bucket, hidden) in (0u32..).map(Bucket).zip(hidden(world, &router.servers)) {
        let at = router.servers.locate(bucket).unwrap();
        let list = |key: &Fh| listed(world, at.volume, &at.server(key).unwrap());
        assert!(list(&hidden.staging).is_empty(), "staging of {bucket:?}");
        targets += list(&hidden.placed).len();
    }
    let mut todo = vec![router.root().clone()];
    while let Some(dir) = todo.pop() {
        let at = router.servers.locate(dir.bucket).unwrap();
        for name in listed(world, at.volume, &at.server(&dir.key).unwrap()) {
            let at = Name {
                dir: dir.clone(),
                name,
            };
            if let Found::Thing(thing, _) = run(router.find(&at)).unwrap().unwrap() {
                stubs += usize::from(thing.stub.is_some());
                if thing.is_dir {
                    todo.push(thing.object);
                }
            }
        }
    }
    assert_eq!(targets, stubs, "targets and stubs");
}

/// What clients see in a directory: names, handles, and which are directories.
pub fn listing(router: &Router<'_>, dir: &Handle) -> Vec<(Bytes, Handle, bool)> {
    let world = router.servers.servers;
    let at = router.servers.locate(dir.bucket).unwrap();
    let mut all = Vec::new();
    for name in listed(world, at.volume, &at.server(&dir.key).unwrap()) {
        let at = Name {
            dir: dir.clone(),
            name: name.clone(),
        };
        let Found::Thing(thing, _) = run(router.find(&at)).unwrap().unwrap() else {
            panic!("{at:?} is a stub without a target");
        };
        all.push((name, thing.object, thing.is_dir));
    }
    all
}

/// A file's number, as clients see it.
pub fn file_number(router: &Router<'_>, object: &Handle, attrs: &Attrs) -> u64 {
    let at = router.servers.locate(object.bucket).unwrap();
    router.servers.shown(at.volume, attrs.fileid())
}

/// Some trees.
pub fn some(random: &mut Random, seed: u64) -> (World, World) {
    let (many, one) = (world(VOLUMES, BUCKETS), world(1, 1));
    for n in 0..OPERATIONS {
        let op = op(random);
        let (routed, alone) = (router(&many), router(&one));
        let done = run(act(&routed, &op)).expect("nothing dies");
        let expected = run(act(&alone, &op)).expect("nothing dies");
        assert_eq!(done, expected, "seed {seed}, {n}: {op:?}");
        if n % 10 == 9 {
            assert_eq!(tree(&routed), tree(&alone), "seed {seed}, {n}: {op:?}");
        }
    }
    assert!(many.lock().open.is_empty());
    assert_clean(&many, &router(&many));
    (many, one)
}
