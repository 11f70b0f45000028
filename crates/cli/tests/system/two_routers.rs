//! Two `quorate route` before three servers, with their log on a group of four, while one thing after the other is killed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quorate_nfs::status::Status;

use crate::command_line::{assert_said, ends};
use crate::harness::{Group, Random, Setup, eventually, free_ports, quorate, run, scratch};
use crate::route::{Client, Op, Process, Tree, act_locally, local_tree, op, server, start};

/// How long the others work between two kills.
const BETWEEN: Duration = Duration::from_secs(3);

/// How long an operation may get no answer, whatever is killed meanwhile.
const UNANSWERED: Duration = Duration::from_secs(120);

struct Routed {
    place: PathBuf,
    coordinators: Vec<(Option<Process>, u16)>,
    servers: Vec<(Option<Process>, u16)>,
    routers: Vec<(Option<Process>, u16)>,
    group: Group,
}

impl Routed {
    fn start() -> Routed {
        let group = Setup::new(1).start();
        let mount = group.mount();
        for number in 0..3 {
            fs::create_dir(mount.path().join(format!("v{number}"))).expect("a directory");
        }
        drop(mount);
        let place = group.directory().to_path_buf();
        let ports = free_ports(9);
        let (four, rest) = ports.split_at(4);
        let (three, two) = rest.split_at(3);
        let addresses: Vec<String> = four.iter().map(|p| format!("127.0.0.1:{p}")).collect();
        run(quorate()
            .args(["init", "--no-key-holders", "--coordinator", "--replicas"])
            .arg(addresses.join(","))
            .arg(place.join("routers")));
        for number in 0..3 {
            let text = format!(
                "[[export]]\npath = \"/v{number}\"\nsecure = false\nsquash = \"no_root_squash\"\n"
            );
            fs::write(place.join(format!("exports-{number}.toml")), text).expect("a file");
        }
        let url = |n: usize| format!("\"nfs://127.0.0.1:{}/v{n}\"", three[n]);
        for (number, port) in two.iter().enumerate() {
            let text = format!(
                "listen = \"127.0.0.1:{port}\"\nvolumes = [{}, {}, {}]\nbuckets = 8\n\
                 [coordinator]\ngroup = \"routers/group.toml\"\n\
                 [[export]]\npath = \"/\"\nsecure = false\nsquash = \"no_root_squash\"\n",
                url(0),
                url(1),
                url(2)
            );
            fs::write(place.join(format!("route-{number}.toml")), text).expect("a file");
        }
        let off = |ports: &[u16]| ports.iter().map(|&port| (None, port)).collect::<Vec<_>>();
        let mut routed = Routed {
            place,
            coordinators: off(four),
            servers: off(three),
            routers: off(two),
            group,
        };
        (0..4).for_each(|n| routed.start_coordinator(n));
        (0..3).for_each(|n| routed.start_server(n));
        (0..2).for_each(|n| routed.start_router(n));
        routed
    }

    fn start_coordinator(&mut self, n: usize) {
        let mut command = quorate();
        command.args(["replica", "--id", &n.to_string(), "--group"]);
        command.arg(self.place.join("routers/group.toml"));
        let log = self.place.join(format!("coordinator-{n}.err"));
        let (process, port) = &mut self.coordinators[n];
        *process = Some(start(command, *port, &log));
    }

    fn start_server(&mut self, n: usize) {
        let exports = self.place.join(format!("exports-{n}.toml"));
        let (process, port) = &mut self.servers[n];
        *process = Some(server(&self.group, &exports, *port));
    }

    fn start_router(&mut self, n: usize) {
        let mut command = quorate();
        command.args(["-v", "route", "--config"]);
        command.arg(self.place.join(format!("route-{n}.toml")));
        let log = self.place.join(format!("route-{n}.err"));
        let (process, port) = &mut self.routers[n];
        *process = Some(start(command, *port, &log));
    }
}

/// The operation with the first name of each path one's own.
fn own(op: Op, worker: usize) -> Op {
    let own = |path: String| format!("w{worker}-{path}");
    match op {
        Op::Mkdir(path) => Op::Mkdir(own(path)),
        Op::Make(path, text) => Op::Make(own(path), text),
        Op::Rmdir(path) => Op::Rmdir(own(path)),
        Op::Remove(path) => Op::Remove(own(path)),
        Op::Rename(from, to) => Op::Rename(own(from), own(to)),
        Op::Link(old, new) => Op::Link(own(old), own(new)),
    }
}

#[derive(Debug, Default)]
struct Count {
    done: usize,
    refused: usize,
    unanswered: usize,
}

/// Does one thing after the other through one of two routers, and the same in a directory here. What gets no answer, or the answer to come
/// again, is tried again through the other until it gets one: then it was done, by the first try or the last, if it could be.
fn work(worker: usize, ports: [u16; 2], here: &Path, ends: &AtomicBool) -> Count {
    let clients = ports.map(Client::connect);
    let mut random = Random::new(worker as u64 + 70);
    let (mut count, mut at) = (Count::default(), worker);
    while !ends.load(Ordering::Relaxed) {
        let op = own(op(&mut random), worker);
        let (mut was_unanswered, begun) = (false, Instant::now());
        let outcome = loop {
            match clients[at].act(&op) {
                Err(None | Some(Status::Jukebox)) => {
                    assert!(begun.elapsed() < UNANSWERED, "{op:?} gets no answer");
                    was_unanswered = true;
                    at = 1 - at;
                    thread::sleep(Duration::from_millis(200));
                }
                answered => break answered,
            }
        };
        let expected = act_locally(here, &op);
        if was_unanswered {
            count.unanswered += 1;
            continue;
        }
        assert_eq!(
            outcome.is_ok(),
            expected.is_ok(),
            "{op:?}: {outcome:?}, {expected:?}"
        );
        match outcome {
            Ok(()) => count.done += 1,
            Err(_) => count.refused += 1,
        }
    }
    count
}

fn tree_of(tree: &Tree, worker: usize) -> BTreeMap<&str, &Option<(String, u32)>> {
    let own = format!("/w{worker}-");
    let found = tree.iter().filter(|(path, _)| path.starts_with(&own));
    found.map(|(path, what)| (path.as_str(), what)).collect()
}

#[test]
fn whatever_is_killed_two_routers_go_on_as_one() {
    let mut routed = Routed::start();
    let ports = [routed.routers[0].1, routed.routers[1].1];
    let here = [scratch(), scratch()];
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|worker| {
                let (here, ends) = (here[worker].path(), &ends);
                scope.spawn(move || work(worker, ports, here, ends))
            })
            .collect();
        // Ends the workers also where something here fails.
        let ending = Ending(&ends);
        for round in 0..2 {
            thread::sleep(BETWEEN);
            // Comes back at once: it takes over from itself.
            routed.routers[0].0 = None;
            routed.start_router(0);
            thread::sleep(BETWEEN);
            // The first one is the primary.
            routed.coordinators[round].0 = None;
            thread::sleep(BETWEEN);
            routed.start_coordinator(round);
            thread::sleep(BETWEEN);
            routed.servers[round + 1].0 = None;
            thread::sleep(Duration::from_secs(1));
            routed.start_server(round + 1);
            thread::sleep(BETWEEN);
            // Stays away until the other has taken over.
            routed.routers[1].0 = None;
            let log = routed.place.join("route-0.err");
            let said = || fs::read_to_string(&log).unwrap_or_default();
            let before = said().matches("taking over").count();
            eventually("the other takes over", || {
                said().matches("taking over").count() > before
            });
            routed.start_router(1);
        }
        thread::sleep(BETWEEN);
        drop(ending);
        for (number, worker) in workers.into_iter().enumerate() {
            let count = worker.join().expect("no panic");
            println!("worker {number}: {count:?}");
            assert!(count.done > 20 && count.unanswered > 0, "{count:?}");
        }
    });
    let seen = ports.map(|port| Client::connect(port).tree());
    assert_eq!(seen[0], seen[1]);
    for (worker, here) in here.iter().enumerate() {
        let mut local = Tree::new();
        local_tree(here.path(), "", &mut local);
        assert_eq!(tree_of(&seen[0], worker), tree_of(&local, worker));
    }
}

struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A group that `quorate init` makes, of one replica that runs.
fn one_replica(place: &Path, name: &str, options: &[&str]) -> Process {
    let port = free_ports(1)[0];
    let directory = place.join(name);
    run(quorate()
        .args(["init", "--no-key-holders", "--name", name, "--replicas"])
        .arg(format!("127.0.0.1:{port}"))
        .args(options)
        .arg(&directory));
    let mut command = quorate();
    command.args(["replica", "--id", "0", "--group"]);
    command.arg(directory.join("group.toml"));
    start(command, port, &place.join(format!("{name}.err")))
}

/// Two groups are one volume, without servers in between: directories are on both, and what is done across is as it is here; also when the router is
/// killed.
#[test]
fn groups_are_volumes() {
    let _turn = Group::take_turn();
    let place = scratch();
    let _one = one_replica(place.path(), "one", &[]);
    let _two = one_replica(place.path(), "two", &[]);
    let _routers = one_replica(place.path(), "routers", &["--coordinator"]);
    let port = free_ports(1)[0];
    let config = place.path().join("route.toml");
    let text = |second: &str| {
        format!(
            "listen = \"127.0.0.1:{port}\"\nvolumes = [\"one/group.toml\", \"{second}\"]\nbuckets = 8\n\
             [coordinator]\ngroup = \"routers/group.toml\"\n\
             [[export]]\npath = \"/\"\nsecure = false\nsquash = \"no_root_squash\"\n"
        )
    };
    let command = || {
        let mut command = quorate();
        command.args(["-v", "route", "--config"]).arg(&config);
        command
    };
    fs::write(&config, text("routers/group.toml")).expect("a file");
    assert_said(&ends(&mut command()), 1, &["keeps no files"]);
    fs::write(&config, text("two/group.toml?key=one/client.key")).expect("a file");
    assert_said(&ends(&mut command()), 1, &["not the key of a client"]);
    fs::write(&config, text("two/group.toml")).expect("a file");
    let log = place.path().join("route.err");
    let mut router = Some(start(command(), port, &log));
    let client = Client::connect(port);
    let here = scratch();
    let mut random = Random::new(12);
    for n in 0..200 {
        let op = op(&mut random);
        let done = client.act(&op);
        let expected = act_locally(here.path(), &op);
        assert_eq!(done.is_ok(), expected.is_ok(), "{n}: {op:?}: {done:?}");
        if n % 50 == 49 {
            router.take();
            router = Some(start(command(), port, &log));
            eventually("the client is back", || client.volumes().is_ok());
        }
    }
    let mut local = Tree::new();
    local_tree(here.path(), "", &mut local);
    assert_eq!(client.tree(), local);
    for n in 0..12 {
        client
            .act(&Op::Mkdir(format!("d{n}")))
            .expect("a directory");
    }
    assert_eq!(client.volumes().expect("a listing").len(), 2);
}
