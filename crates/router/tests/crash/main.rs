//! The coordinator over servers in memory, beside one server that does the same alone: what clients see is the same after each
//! operation, and if the router dies, an order is lost or refused at any step, it is what it was before or what it is after.

mod model;
mod removed;
mod two_routers;

use std::collections::BTreeMap;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use quorate_files::Who;
use quorate_nfs::call::{Fh, NewAttrs, Place};
use quorate_nfs::status::Status;
use quorate_router::ask::{Ask, Given, Servers};
use quorate_router::coordinator::{Coordinator, Found, Hidden, Renamed};
use quorate_router::fence::{adopt, enter};
use quorate_router::handle::Handle;
use quorate_router::intent::{Log, Name, Number};
use quorate_router::layout::{Bucket, HOME};
use quorate_router::names::Names;

use model::{FAULTS, Fault, PLACED, ROOT, Server, State, World, fh};

const VOLUMES: u32 = 3;
const NAMES: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
/// How many operations on one tree.
const OPERATIONS: usize = 60;

/// A generator of numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

type Path = Vec<&'static [u8]>;

/// An operation, by paths from the root.
#[derive(Clone, Debug)]
enum Op {
    Mkdir(Path, Bucket),
    Make(Path, u64),
    Rmdir(Path),
    Remove(Path),
    Rename(Path, Path),
    Link(Path, Path),
}

fn path(random: &mut Random) -> Path {
    let depth = 1 + random.below(3);
    (0..depth)
        .map(|_| NAMES[random.below(4) as usize])
        .collect()
}

fn op(random: &mut Random) -> Op {
    let volume = Bucket(random.below(VOLUMES.into()) as u32);
    match random.below(12) {
        0..4 => Op::Mkdir(path(random), volume),
        4 | 5 => Op::Make(path(random), random.next()),
        6 => Op::Rmdir(path(random)),
        7 => Op::Remove(path(random)),
        8..11 => Op::Rename(path(random), path(random)),
        _ => Op::Link(path(random), path(random)),
    }
}

/// Runs to the end, or to where the router dies.
fn run<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

type Router<'a> = Coordinator<&'a World, &'a World>;

/// A world whose volumes have their hidden directories; their numbers follow from the order in which they are made.
fn world(volumes: u32) -> World {
    let servers = (0..volumes).map(|_| {
        let mut server = Server::default();
        let mut make = |dir: u64, name: &'static [u8]| {
            let at = Place {
                dir: fh(dir),
                name: name.into(),
            };
            server.ask(Ask::Mkdir(at, NewAttrs::default())).unwrap();
        };
        make(ROOT, b"hidden");
        make(ROOT, b"root");
        make(ROOT + 1, b"staging");
        make(ROOT + 1, b"placed");
        server
    });
    let state = State {
        servers: servers.collect(),
        ..State::default()
    };
    let world = World(state.into());
    live(&world);
    world
}

/// What all routers know of a volume.
fn shared() -> Hidden {
    Hidden {
        staging: fh(ROOT + 3),
        placed: fh(PLACED),
    }
}

fn volumes(world: &World) -> impl Iterator<Item = Bucket> + use<> {
    (0..world.lock().servers.len() as u32).map(Bucket)
}

/// Another life of the router begins: its number.
fn live(world: &World) -> u64 {
    world.lock().epoch += 1;
    let epoch = world.lock().epoch;
    let steps = world.lock().steps;
    for volume in volumes(world) {
        run(enter(&world, volume, &shared(), epoch))
            .unwrap()
            .unwrap();
    }
    world.lock().steps = steps;
    epoch
}

fn router(world: &World) -> Router<'_> {
    let epoch = world.lock().epoch;
    let name = Bytes::from(format!("{epoch:016x}"));
    let hidden = volumes(world).map(|volume| {
        let dir = shared().staging;
        let place = Place {
            dir,
            name: name.clone(),
        };
        let found = world.lock().servers[volume.0 as usize].ask(Ask::Lookup(place));
        match found {
            Ok(Given::Object(object)) => Hidden {
                staging: object.handle,
                ..shared()
            },
            other => panic!("{other:?}"),
        }
    });
    Coordinator::new(world, world, hidden.collect(), root())
}

fn root() -> Handle {
    Handle {
        bucket: HOME,
        key: fh(ROOT + 2),
    }
}

async fn name<S: Servers<Bucket>, L: Log>(
    router: &Coordinator<S, L>,
    path: &Path,
) -> Result<Name, Status> {
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

/// An operation beside which there are no others.
async fn act<S: Servers<Bucket>, L: Log>(
    router: &Coordinator<S, L>,
    volumes: u32,
    op: &Op,
) -> Result<(), Status> {
    act_beside(router, &Names::default(), volumes, op).await
}

/// As the proxy does it.
async fn act_beside<S: Servers<Bucket>, L: Log>(
    router: &Coordinator<S, L>,
    names: &Names,
    volumes: u32,
    op: &Op,
) -> Result<(), Status> {
    let (who, log) = (Who::root(), router.log());
    let hold = |at: &Name| names.hold(log, vec![at.clone()]);
    let straight = |volume: Bucket, ask: Ask| async move {
        let servers = &router.servers;
        servers.ask(volume, &Who::root(), ask).await.map(drop)
    };
    match op {
        Op::Mkdir(path, volume) => {
            let at = name(router, path).await?;
            let _held = hold(&at).await?;
            let volume = Bucket(volume.0 % volumes);
            if volume == at.dir.bucket {
                let ask = Ask::Mkdir(at.place(), NewAttrs::default());
                return straight(volume, ask).await;
            }
            let made = router.mkdir(&who, at, volume, NewAttrs::default());
            made.await.map(drop)
        }
        Op::Make(path, text) => {
            let at = name(router, path).await?;
            let _held = hold(&at).await?;
            let text = Bytes::copy_from_slice(&text.to_be_bytes());
            straight(at.dir.bucket, Ask::Symlink(at.place(), text)).await
        }
        Op::Rmdir(path) => {
            let at = name(router, path).await?;
            let _held = hold(&at).await?;
            let found = router.find(&at).await?;
            let _goes = match &found {
                Found::Thing(thing, _) if thing.is_dir => {
                    Some(names.hold_removal(log, &thing.object).await?)
                }
                _ => None,
            };
            match found {
                Found::Thing(thing, _) if thing.stub.is_none() => {
                    straight(at.dir.bucket, Ask::Rmdir(at.place())).await
                }
                _ => router.remove(&who, at, true).await,
            }
        }
        Op::Remove(path) => {
            let at = name(router, path).await?;
            let _held = hold(&at).await?;
            match straight(at.dir.bucket, Ask::Remove(at.place())).await {
                Err(Status::IsDir) => router.remove(&who, at, false).await,
                other => other,
            }
        }
        Op::Rename(from, to) => {
            let (from, to) = (name(router, from).await?, name(router, to).await?);
            let _held = names.hold_rename(log, &from, &to).await?;
            let renaming = router.find_rename(from.clone(), to.clone()).await?;
            let _goes = match renaming.removes() {
                Some(dir) => Some(names.hold_removal(log, dir).await?),
                None => None,
            };
            match router.rename(&who, renaming).await? {
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
            let _held = hold(&to).await?;
            if file.bucket != to.dir.bucket {
                return router.link(&who, file, to).await;
            }
            straight(file.bucket, Ask::Link(file.key, to.place())).await
        }
    }
}

type Tree = BTreeMap<Vec<u8>, Option<(Bytes, u32)>>;

/// What clients see: each path, and for what is no directory its content and how many names it has.
fn tree<S: Servers<Bucket>, L: Log>(router: &Coordinator<S, L>) -> Tree {
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
                let ask = Ask::Readlink(thing.object.key);
                let text = run(router.servers.ask(thing.object.bucket, &Who::root(), ask)).unwrap();
                let Given::Text(text) = text.unwrap() else {
                    panic!("no text");
                };
                let nlink = u32::from_be_bytes(attrs.0[8..12].try_into().unwrap());
                seen.insert(path, Some((text, nlink)));
            }
        }
    }
    seen
}

/// Nothing is left that nobody sees: no stub half made, and no more targets than stubs.
/// `lives`: how many routers have a directory in `staging`. `orphans`: how many directories may lie in `placed` that nothing leads to.
fn assert_clean<S: Servers<Bucket>, L: Log>(
    world: &World,
    router: &Coordinator<S, L>,
    lives: usize,
    orphans: usize,
) {
    let (mut targets, mut stubs) = (0, 0);
    let volumes = world.lock().servers.len() as u32;
    for volume in 0..volumes {
        let list = |number| {
            let ask = Ask::ReadDir {
                dir: fh(number),
                cookie: 0,
                verifier: 0,
            };
            let mut all = Vec::new();
            let mut next = ask;
            loop {
                let listed = world.lock().servers[volume as usize].ask(next).unwrap();
                let Given::Entries {
                    entries: e, end, ..
                } = listed
                else {
                    panic!("no listing");
                };
                let last = e.last().map(|entry| entry.cookie);
                all.extend(e.into_iter().map(|entry| entry.fileid));
                if end {
                    return all;
                }
                next = Ask::ReadDir {
                    dir: fh(number),
                    cookie: last.unwrap(),
                    verifier: 0,
                };
            }
        };
        let staged = list(ROOT + 3);
        assert_eq!(staged.len(), lives, "staging of {volume}");
        for own in staged {
            assert!(list(own).is_empty(), "staging of {volume}");
        }
        targets += list(PLACED).len();
    }
    let mut todo = vec![router.root().clone()];
    while let Some(dir) = todo.pop() {
        let mut cookie = 0;
        loop {
            let ask = Ask::ReadDir {
                dir: dir.key.clone(),
                cookie,
                verifier: 0,
            };
            let listed = world.lock().servers[dir.bucket.0 as usize].ask(ask);
            let Given::Entries { entries, end, .. } = listed.unwrap() else {
                panic!("no listing");
            };
            for entry in entries {
                cookie = entry.cookie;
                let at = Name {
                    dir: dir.clone(),
                    name: entry.name,
                };
                if let Found::Thing(thing, _) = run(router.find(&at)).unwrap().unwrap() {
                    stubs += usize::from(thing.stub.is_some());
                    if thing.is_dir {
                        todo.push(thing.object);
                    }
                }
            }
            if end {
                break;
            }
        }
    }
    assert!(
        (stubs..=stubs + orphans).contains(&targets),
        "{targets} targets, {stubs} stubs"
    );
}

/// Some trees.
fn some(random: &mut Random, seed: u64) -> (World, World) {
    let (many, one) = (world(VOLUMES), world(1));
    for n in 0..OPERATIONS {
        let op = op(random);
        let (routed, alone) = (router(&many), router(&one));
        let done = run(act(&routed, VOLUMES, &op)).expect("nothing dies");
        let expected = run(act(&alone, 1, &op)).expect("nothing dies");
        assert_eq!(done, expected, "seed {seed}, {n}: {op:?}");
        if n % 10 == 9 {
            assert_eq!(tree(&routed), tree(&alone), "seed {seed}, {n}: {op:?}");
        }
    }
    assert!(many.lock().open.is_empty());
    assert_clean(&many, &router(&many), 1, 0);
    (many, one)
}

#[test]
fn many_servers_are_as_one() {
    for seed in 0..1500 {
        some(&mut Random(seed), seed);
    }
}

/// What is asked of servers, and the records of the log, of one operation; at each of them each fault happens once, and in some runs the router dies
/// again while it recovers.
#[test]
fn each_step_can_be_the_last() {
    let (mut runs, mut operations, mut done_after, mut undone) = (0u64, 0u64, 0u64, 0u64);
    for seed in 0..60 {
        let mut random = Random(seed + 10_000);
        let (many, one) = some(&mut random, seed);
        let (many, one) = (many.lock().clone(), one.lock().clone());
        for _ in 0..40 {
            let op = op(&mut random);
            // In every other tree what is replaced seems to be empty, so that it has to be given back.
            let hides = seed % 2 == 1;
            let whole = World(many.clone().into());
            whole.lock().hides = hides;
            let steps = whole.lock().steps;
            let outcome = run(act(&router(&whole), VOLUMES, &op)).unwrap();
            let used = whole.lock().steps - steps;
            // What goes straight has no record.
            let coordinated = whole.lock().open.is_empty() && used > 12;
            if !coordinated {
                continue;
            }
            operations += 1;
            let alone = World(one.clone().into());
            let before = tree(&router(&alone));
            assert_eq!(run(act(&router(&alone), 1, &op)).unwrap(), outcome);
            let after = tree(&router(&alone));
            for at in 1..=used {
                for fault in FAULTS {
                    let told = format!("seed {seed}, {op:?}, {fault:?} at {at} of {used}");
                    let faulty = World(many.clone().into());
                    faulty.lock().fault = Some((steps + at, fault));
                    faulty.lock().hides = hides;
                    let answer = run(act(&router(&faulty), VOLUMES, &op));
                    faulty.lock().hides = false;
                    recover(&faulty, &mut random);
                    let router = router(&faulty);
                    let found = tree(&router);
                    assert!(found == before || found == after, "{told}: {found:?}");
                    match answer {
                        // It was told.
                        Some(Ok(())) => assert_eq!(found, after, "{told}"),
                        // A refusal is none: nothing was done.
                        Some(Err(_)) => assert_eq!(found, before, "{told}"),
                        None => {}
                    }
                    assert_clean(&faulty, &router, 1, 0);
                    runs += 1;
                    done_after += u64::from(found == after && before != after);
                    undone += u64::from(found == before && before != after);
                }
            }
        }
    }
    println!("{runs} runs of {operations} operations; {done_after} done, {undone} undone");
    assert!(runs > 10_000 && done_after > 1_000 && undone > 1_000);
}

/// As at the start of a router; it may die a few times more.
fn recover(world: &World, random: &mut Random) {
    for again in 0..5 {
        let open: Vec<_> = {
            let mut state = world.lock();
            let at = state.steps + 1 + random.below(40);
            let dies = again < 4 && random.below(2) == 0;
            state.fault = dies.then_some((at, Fault::CrashAfter));
            state.open.clone().into_iter().collect()
        };
        let (ended, hidden) = (world.lock().epoch, shared());
        world.lock().epoch += 1;
        let epoch = world.lock().epoch;
        let all = async {
            for volume in volumes(world) {
                let own = enter(&world, volume, &hidden, epoch).await.unwrap();
                for ended in 1..=ended {
                    let adopted = adopt(&world, volume, &hidden, &own, ended).await;
                    adopted.unwrap();
                }
            }
            let router = router(world);
            for (number, intent) in &open {
                router.recover(Number(*number), intent).await.unwrap();
            }
        };
        if run(all).is_some() {
            world.lock().fault = None;
            return;
        }
    }
    panic!("it never recovers");
}
