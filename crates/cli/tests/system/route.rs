//! `quorate route` in front of three servers, beside a directory of this machine that undergoes the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use quorate_files::Who;
use quorate_nfs::call::{Fh, NewAttrs, Place};
use quorate_nfs::status::Status;
use quorate_nfs::xdr::{Reader, Writer};
use quorate_router::ask::{Ask, Given};
use quorate_router::upstream::Upstream;
use tokio::runtime::Runtime;

use crate::command_line::{assert_said, ends};

use crate::harness::{
    Group, Random, Setup, eventually, free_ports, program, quorate, run, scratch,
};

const NFS: (u32, u32) = (100_003, 3);
const MOUNT: (u32, u32) = (100_005, 3);
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// A process that is killed at the end, as it may be at any time.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn start(mut command: Command, port: u16, log: &Path) -> Process {
    let log = File::options().append(true).create(true).open(log);
    command.stderr(log.expect("a log"));
    let process = Process(command.spawn().expect("it starts"));
    eventually("it listens", || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    process
}

/// How many servers there are, of which the router has three at first.
const SERVERS: usize = 4;

/// Servers, each with a directory of its own in a group, and what is in front of them.
pub struct Routed {
    pub servers: Vec<(Process, u16)>,
    pub router: Option<Process>,
    pub port: u16,
    pub place: PathBuf,
    pub group: Group,
    arguments: Vec<&'static str>,
}

impl Routed {
    pub fn start() -> Routed {
        Routed::with("", &[])
    }

    /// With more in the configuration, and further arguments.
    pub fn with(more: &str, arguments: &[&'static str]) -> Routed {
        let group = Setup::new(1).start();
        let mount = group.mount();
        for number in 0..SERVERS {
            fs::create_dir(mount.path().join(format!("v{number}"))).expect("a directory");
        }
        drop(mount);
        let ports = free_ports(SERVERS + 1);
        let place = group.directory().to_path_buf();
        let server = |number: usize| {
            let exports = place.join(format!("exports-{number}.toml"));
            let text = format!(
                "[[export]]\npath = \"/v{number}\"\nsecure = false\nsquash = \"no_root_squash\"\n"
            );
            fs::write(&exports, text).expect("a file");
            (server(&group, &exports, ports[number]), ports[number])
        };
        let servers: Vec<_> = (0..SERVERS).map(server).collect();
        let url = |n: usize| format!("\"nfs://127.0.0.1:{}/v{n}\"", ports[n]);
        let config = format!(
            "listen = \"127.0.0.1:{}\"\n{more}log = \"route.log\"\nvolumes = [{}, {}, {}]\nbuckets = 8\n\
             [[export]]\npath = \"/\"\nsecure = false\nsquash = \"no_root_squash\"\n",
            ports[SERVERS],
            url(0),
            url(1),
            url(2)
        );
        fs::write(place.join("route.toml"), config).expect("a file");
        let mut routed = Routed {
            servers,
            router: None,
            port: ports[SERVERS],
            place,
            group,
            arguments: arguments.to_vec(),
        };
        routed.start_router();
        routed
    }

    pub fn command(&self) -> Command {
        let mut command = quorate();
        command.arg("route").arg("--config");
        command.arg(self.place.join("route.toml"));
        command.args(&self.arguments);
        command
    }

    pub fn start_router(&mut self) {
        let log = self.place.join("route.err");
        self.router = Some(start(self.command(), self.port, &log));
    }

    pub fn kill_router(&mut self) {
        self.router = None;
    }

    fn url(&self, path: &str) -> String {
        let port = self.port;
        format!("nfs://127.0.0.1//{path}?nfsport={port}&mountport={port}")
    }
}

pub fn server(group: &Group, exports: &Path, port: u16) -> Process {
    let mut command = quorate();
    command.arg("nfs").arg(group.file());
    command.arg("--key").arg(group.client_key(0));
    command.args(["--listen", &format!("127.0.0.1:{port}")]);
    command.arg("--exports").arg(exports);
    start(command, port, &exports.with_extension("err"))
}

/// A client; errors that have a number, or none for a call without an answer.
pub struct Client {
    call: Call,
    pub root: Fh,
}

/// The results of a procedure of a program, by user 0.
pub type Call = Box<dyn Fn((u32, u32), u32, &[u8]) -> Option<Bytes> + Send + Sync>;

pub type Outcome<T> = Result<T, Option<Status>>;

impl Client {
    pub fn connect(port: u16) -> Client {
        let runtime = Runtime::new().expect("a runtime");
        let upstream = Upstream::start(format!("127.0.0.1:{port}"));
        Client::calling(Box::new(move |program, procedure, arguments| {
            let who = Who::root();
            let called = upstream.call(program, procedure, &who, arguments);
            runtime.block_on(called).ok()
        }))
    }

    pub fn calling(call: Call) -> Client {
        let mut w = Writer::default();
        w.opaque(b"/");
        let mounted = call(MOUNT, 1, &w.out);
        let mut r = Reader::new(mounted.expect("an answer"));
        assert_eq!(r.u32(), Ok(0));
        let root = r.opaque(64, "handle").expect("a handle");
        Client { call, root }
    }

    pub fn ask(&self, ask: Ask) -> Outcome<Given> {
        let results = (self.call)(NFS, ask.procedure(), &ask.write());
        ask.read(results.ok_or(None)?).map_err(Some)
    }

    fn object(&self, ask: Ask) -> Outcome<(Fh, bool, u32)> {
        match self.ask(ask)? {
            Given::Object(object) => {
                let attrs = object.attrs.expect("attributes");
                let nlink = u32::from_be_bytes(attrs.0[8..12].try_into().expect("four"));
                Ok((object.handle, attrs.is_dir(), nlink))
            }
            other => panic!("{other:?}"),
        }
    }

    fn at(&self, path: &str) -> Outcome<Place> {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut dir = self.root.clone();
        for name in above.split('/').filter(|name| !name.is_empty()) {
            let name = name.to_string().into();
            dir = self.object(Ask::Lookup(Place { dir, name }))?.0;
        }
        let name = name.to_string().into();
        Ok(Place { dir, name })
    }

    pub fn act(&self, op: &Op) -> Outcome<()> {
        let ask = match op {
            Op::Mkdir(path) => Ask::Mkdir(self.at(path)?, NewAttrs::default()),
            Op::Make(path, text) => Ask::Symlink(self.at(path)?, text.clone().into()),
            Op::Rmdir(path) => Ask::Rmdir(self.at(path)?),
            Op::Remove(path) => Ask::Remove(self.at(path)?),
            Op::Rename(from, to) => Ask::Rename(self.at(from)?, self.at(to)?),
            Op::Link(old, new) => {
                let (file, ..) = self.object(Ask::Lookup(self.at(old)?))?;
                Ask::Link(file, self.at(new)?)
            }
        };
        self.ask(ask).map(drop)
    }

    /// The volumes of the directories in the root: the number stands in a handle.
    pub fn volumes(&self) -> Outcome<BTreeSet<u8>> {
        let listing = Ask::ReadDir {
            dir: self.root.clone(),
            cookie: 0,
            verifier: 0,
        };
        let Given::Entries { entries, .. } = self.ask(listing)? else {
            panic!("no listing");
        };
        let mut found = BTreeSet::new();
        for entry in entries {
            if matches!(&entry.name[..], b"." | b"..") {
                continue;
            }
            let dir = self.root.clone();
            let name = entry.name;
            let (handle, is_dir, _) = self.object(Ask::Lookup(Place { dir, name }))?;
            if is_dir {
                found.insert(handle[3]);
            }
        }
        Ok(found)
    }

    pub fn tree(&self) -> Tree {
        let mut seen = BTreeMap::new();
        let mut todo = vec![(self.root.clone(), String::new())];
        while let Some((dir, path)) = todo.pop() {
            let (mut cookie, mut verifier, mut end) = (0, 0, false);
            while !end {
                let listing = Ask::ReadDir {
                    dir: dir.clone(),
                    cookie,
                    verifier,
                };
                let listed = self.ask(listing).expect("a listing");
                let Given::Entries {
                    verifier: next,
                    entries,
                    end: last,
                } = listed
                else {
                    panic!("no listing");
                };
                (verifier, end) = (next, last);
                for entry in entries {
                    cookie = entry.cookie;
                    if matches!(&entry.name[..], b"." | b"..") {
                        continue;
                    }
                    let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
                    let place = Place {
                        dir: dir.clone(),
                        name: entry.name,
                    };
                    let found = self.object(Ask::Lookup(place));
                    let (handle, is_dir, nlink) = found.expect("what is listed is there");
                    if is_dir {
                        todo.push((handle, path.clone()));
                        seen.insert(path, None);
                        continue;
                    }
                    match self.ask(Ask::Readlink(handle)).expect("a link") {
                        Given::Text(text) => {
                            let text = String::from_utf8_lossy(&text).into_owned();
                            seen.insert(path, Some((text, nlink)))
                        }
                        other => panic!("{other:?}"),
                    };
                }
            }
        }
        seen
    }
}

/// Directories; and symbolic links, with how many names they have.
pub type Tree = BTreeMap<String, Option<(String, u32)>>;

pub fn local_tree(dir: &Path, path: &str, seen: &mut Tree) {
    use std::os::unix::fs::MetadataExt;
    for entry in fs::read_dir(dir).expect("a directory") {
        let entry = entry.expect("an entry");
        let path = format!("{path}/{}", entry.file_name().to_string_lossy());
        let found = entry.metadata().expect("attributes");
        if found.is_dir() {
            local_tree(&entry.path(), &path, seen);
            seen.insert(path, None);
            continue;
        }
        let text = fs::read_link(entry.path()).expect("a link");
        let text = text.to_string_lossy().into_owned();
        seen.insert(path, Some((text, found.nlink() as u32)));
    }
}

#[derive(Clone, Debug)]
pub enum Op {
    Mkdir(String),
    Make(String, String),
    Rmdir(String),
    Remove(String),
    Rename(String, String),
    Link(String, String),
}

pub fn op(random: &mut Random) -> Op {
    let path = |random: &mut Random| {
        let depth = 1 + random.below(3);
        let names = (0..depth).map(|_| NAMES[random.below(4) as usize]);
        names.collect::<Vec<_>>().join("/")
    };
    match random.below(12) {
        0..4 => Op::Mkdir(path(random)),
        4 | 5 => Op::Make(path(random), format!("text-{}", random.below(1 << 30))),
        6 => Op::Rmdir(path(random)),
        7 => Op::Remove(path(random)),
        8..11 => Op::Rename(path(random), path(random)),
        _ => Op::Link(path(random), path(random)),
    }
}

pub fn act_locally(base: &Path, op: &Op) -> std::io::Result<()> {
    let at = |path: &str| base.join(path);
    match op {
        Op::Mkdir(path) => fs::create_dir(at(path)),
        Op::Make(path, text) => std::os::unix::fs::symlink(text, at(path)),
        Op::Rmdir(path) => fs::remove_dir(at(path)),
        Op::Remove(path) => fs::remove_file(at(path)),
        Op::Rename(from, to) => fs::rename(at(from), at(to)),
        Op::Link(old, new) => fs::hard_link(at(old), at(new)),
    }
}

/// What is done through the router and what is done here end alike, and lead to the same tree; also when the router is killed at any
/// moment: then an operation without an answer is done, or not.
#[test]
fn a_tree_over_three_servers_is_as_one_here() {
    let mut routed = Routed::start();
    let here = scratch();
    let mut random = Random::new(8);
    let client = Client::connect(routed.port);
    let local = || {
        let mut seen = Tree::new();
        local_tree(here.path(), "", &mut seen);
        seen
    };
    let (mut kills, mut unanswered, mut done) = (0, 0, 0);
    for n in 0..400 {
        let op = op(&mut random);
        let killed = n >= 100 && random.below(4) == 0;
        let outcome = match killed {
            false => client.act(&op),
            true => {
                kills += 1;
                let wait = Duration::from_micros(random.below(12_000));
                thread::scope(|scope| {
                    let acting = scope.spawn(|| client.act(&op));
                    thread::sleep(wait);
                    routed.kill_router();
                    acting.join().expect("no panic")
                })
            }
        };
        if killed {
            routed.start_router();
            eventually("the client is back", || {
                client.ask(Ask::GetAttr(client.root.clone())).is_ok()
            });
        }
        match outcome {
            Err(None) => {
                assert!(killed, "{n}: {op:?}: no answer");
                unanswered += 1;
                let seen = client.tree();
                if seen != local() {
                    act_locally(here.path(), &op).expect("it was done there");
                    assert_eq!(seen, local(), "{n}: {op:?}");
                }
            }
            answered => {
                let expected = act_locally(here.path(), &op);
                assert_eq!(
                    answered.is_ok(),
                    expected.is_ok(),
                    "{n}: {op:?}: {answered:?}, {expected:?}"
                );
                done += u32::from(answered.is_ok());
            }
        }
        if n % 20 == 19 {
            assert_eq!(client.tree(), local(), "{n}: {op:?}");
        }
    }
    println!("{done} operations done; {kills} kills, {unanswered} without an answer");
    assert!(done > 20 && unanswered > 0);
}

/// Files go in and out by a client that knows nothing of all this, to directories on all servers; a server that dies takes no other with it.
#[test]
fn files_are_copied_and_servers_die_alone() {
    let mut routed = Routed::start();
    let place = scratch();
    let client = Client::connect(routed.port);
    let mut random = Random::new(9);
    let bytes: Vec<u8> = (0..2_000_003).map(|_| random.below(256) as u8).collect();
    let file = place.path().join("file");
    fs::write(&file, &bytes).expect("a file");
    let (mut volumes, mut dirs) = ([0; 3], Vec::new());
    for n in 0..200 {
        // Where one goes is chance.
        if n >= 12 && volumes.iter().all(|&count| count > 0) {
            break;
        }
        let dir = format!("d{n}");
        let place = client.at(&dir).expect("the root");
        let made = client.object(Ask::Mkdir(place, NewAttrs::default()));
        let (handle, ..) = made.expect("a directory");
        // The volume's number stands in the handle.
        let volume = usize::from(handle[3]);
        volumes[volume] += 1;
        dirs.push((dir, handle, volume));
    }
    assert!(volumes.iter().all(|&count| count > 0), "{volumes:?}");
    for (dir, ..) in dirs.iter().take(6) {
        let to = routed.url(&format!("{dir}/file"));
        run(program("nfs-cp").arg(&file).arg(&to));
        let back = place.path().join(dir);
        run(program("nfs-cp").arg(&to).arg(&back));
        assert!(fs::read(&back).expect("a copy") == bytes, "{dir}");
    }
    // A file that is moved to another server keeps its handle.
    let (from, to) = (&dirs[0], dirs.iter().find(|d| d.2 != dirs[0].2));
    let to = to.expect("a directory elsewhere");
    let old = client.at(&format!("{}/file", from.0)).expect("a place");
    let before = client.object(Ask::Lookup(old.clone())).expect("a file");
    let new = client.at(&format!("{}/moved", to.0)).expect("a place");
    client.ask(Ask::Rename(old, new.clone())).expect("a move");
    let after = client.object(Ask::Lookup(new)).expect("a file");
    assert_eq!(before.0, after.0);
    let back = place.path().join("moved");
    let url = routed.url(&format!("{}/moved", to.0));
    run(program("nfs-cp").arg(url).arg(&back));
    assert!(fs::read(&back).expect("a copy") == bytes);

    let (_, port) = routed.servers.remove(2);
    for (dir, handle, volume) in &dirs {
        let answer = client.ask(Ask::GetAttr(handle.clone()));
        match volume {
            2 => assert_eq!(answer.unwrap_err(), Some(Status::Jukebox), "{dir}"),
            _ => assert!(answer.is_ok(), "{dir}: {answer:?}"),
        }
    }
    let exports = routed.place.join("exports-2.toml");
    let server = server(&routed.group, &exports, port);
    routed.servers.push((server, port));
    for (dir, handle, _) in &dirs {
        eventually("it is back", || {
            client.ask(Ask::GetAttr(handle.clone())).is_ok()
        });
        assert!(client.at(&format!("{dir}/x")).is_ok());
    }
}

/// A volume is added, another drained and removed, while a tree is used; then one is drained and the router killed meanwhile. What is done ends as it
/// does here, and the tree is the same.
#[test]
fn volumes_come_and_go_while_a_tree_is_used() {
    let mut routed = Routed::start();
    let here = scratch();
    let client = Client::connect(routed.port);
    let config = routed.place.join("route.toml");
    let volume = |words: &[&str]| {
        let mut command = quorate();
        command.arg("volume").args(words);
        command.arg("--config").arg(&config);
        command
    };
    let local = || {
        let mut seen = Tree::new();
        local_tree(here.path(), "", &mut seen);
        seen
    };
    let mut random = Random::new(10);
    let mut use_it = |count: usize| {
        let mut done = 0;
        for n in 0..count {
            let op = op(&mut random);
            let answered = client.act(&op);
            let expected = act_locally(here.path(), &op);
            assert_eq!(
                answered.is_ok(),
                expected.is_ok(),
                "{n}: {op:?}: {answered:?}, {expected:?}"
            );
            done += u32::from(answered.is_ok());
        }
        done
    };
    let mut done = use_it(60);
    let new = format!("nfs://127.0.0.1:{}/v3", routed.servers[3].1);
    for order in [&["add", &new][..], &["drain", "0"]] {
        let mut command = volume(order);
        thread::scope(|scope| {
            let ordered = scope.spawn(move || run(&mut command));
            while !ordered.is_finished() {
                done += use_it(1);
            }
            ordered.join().expect("no panic");
        });
        assert_eq!(client.tree(), local(), "{order:?}");
    }
    let list = || -> serde_json::Value {
        let listed = run(&mut volume(&["list", "--json"]));
        serde_json::from_str(&listed).expect("JSON")
    };
    let all = list();
    assert_eq!(all["volumes"].as_array().map(Vec::len), Some(4));
    assert_eq!(all["volumes"][0]["buckets"], 0, "{all}");
    assert!(all["moved"].as_u64() >= Some(3), "{all}");
    let refused = ends(&mut volume(&["remove", "1"]));
    assert_said(&refused, 1, &["still holds"]);
    run(&mut volume(&["remove", "0"]));
    // Its server may go for good.
    routed.servers.remove(0);
    assert_eq!(client.tree(), local());
    let good = fs::read_to_string(&config).expect("a file");
    let volumes = good.find("volumes").expect("volumes");
    let end = volumes + good[volumes..].find(']').expect("their end");
    let without = format!("{}volumes = [\"{new}\"{}", &good[..volumes], &good[end..]);
    fs::write(&config, without).expect("a file");
    run(&mut volume(&["drain", "1", "--detach"]));
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(700));
        routed.kill_router();
        routed.start_router();
    }
    eventually("the client is back", || {
        client.ask(Ask::GetAttr(client.root.clone())).is_ok()
    });
    done += use_it(20);
    eventually("it is drained", || {
        let all = list();
        all["to_move"] == 0 && all["moving"].is_null()
    });
    assert_eq!(client.tree(), local());
    let text = run(&mut volume(&["list", "--prometheus"]));
    assert!(
        text.contains("quorate_volume_buckets{volume=\"1\"} 0\n"),
        "{text}"
    );
    run(&mut volume(&["remove", "1"]));
    done += use_it(40);
    assert_eq!(client.tree(), local());
    println!("{done} operations done");
    assert!(done > 20);
}
