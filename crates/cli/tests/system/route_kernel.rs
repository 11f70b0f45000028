//! `quorate route` with the kernel's way for UDP, on three networks: clients, the router, and two servers. Reads come in pieces there, which
//! the receiving side puts together and whose sums it checks. For root; elsewhere it says so and passes, but where `CI` is set.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_nfs::xdr::{Reader, Writer};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

use crate::harness::{left_out, quorate, scratch};
use crate::route_udp::call;

const NFS: (u32, u32) = (100_003, 3);
const MOUNT: (u32, u32) = (100_005, 3);
const DIRECTORIES: usize = 12;
const PART: usize = 32 << 10;
/// What a file has: three datagrams' worth, and not the last of them whole.
const BYTES: usize = 2 * PART + 12_345;
const PATIENCE: Duration = Duration::from_secs(40);

/// Namespaces that go at the end, by name.
struct Networks(Vec<String>);

impl Networks {
    fn make() -> Option<Networks> {
        let name = |end: &str| format!("qrk{}{end}", std::process::id());
        let names: Vec<String> = ["c", "r", "s"].map(name).into();
        let is_root = rustix::process::geteuid().is_root();
        if !is_root
            || !Path::new("/sys/kernel/btf/vmlinux").exists()
            || !ip(&["netns", "add", &names[0]])
        {
            return None;
        }
        let networks = Networks(names);
        let [c, r, s] = &networks.0[..] else {
            panic!("three");
        };
        for made in [r, s] {
            assert!(ip(&["netns", "add", made]));
        }
        let wires: [[&str; 4]; 2] = [[c, "wire", r, "front"], [r, "back", s, "wire"]];
        for [from, own, to, other] in wires {
            let made = [
                "link", "add", own, "netns", from, "type", "veth", "peer", "name", other, "netns",
                to,
            ];
            assert!(ip(&made), "a wire");
        }
        let ends = [
            (c, "wire", "198.18.0.1/24"),
            (r, "front", "198.18.0.2/24"),
            (r, "back", "198.18.1.1/24"),
            (s, "wire", "198.18.1.2/24"),
        ];
        for (namespace, end, address) in ends {
            assert!(ip(&[
                "-n", namespace, "address", "add", address, "dev", end
            ]));
            assert!(ip(&["-n", namespace, "link", "set", end, "up"]));
            assert!(ip(&["-n", namespace, "link", "set", "lo", "up"]));
        }
        Some(networks)
    }

    fn command(&self, at: usize) -> Command {
        let program = quorate();
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.0[at]])
            .arg(program.get_program());
        command.args(program.get_args());
        command
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        self.0.iter().for_each(|name| {
            ip(&["netns", "delete", name]);
        });
    }
}

fn ip(arguments: &[&str]) -> bool {
    let output = Command::new("ip").args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}

/// A process that says something, until this goes.
struct Says(Child, BufReader<ChildStdout>);

impl Says {
    fn start(mut command: Command, log: &Path) -> Says {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(File::create(log).expect("a log"));
        let mut child = command.spawn().expect("it starts");
        let out = child.stdout.take().expect("a pipe");
        Says(child, BufReader::new(out))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).expect("a line");
        line
    }
}

impl Drop for Says {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Calls over UDP that are sent again until they are answered.
struct Caller {
    socket: UdpSocket,
    xid: u32,
}

impl Caller {
    fn call(&mut self, program: (u32, u32), procedure: u32, arguments: &[u8]) -> Bytes {
        self.xid += 1;
        let asked = call(self.xid, program, procedure, arguments);
        let mut buffer = vec![0; 1 << 16];
        for _ in 0..20 {
            self.socket.send(&asked).expect("sent");
            while let Ok(len) = self.socket.recv(&mut buffer) {
                if buffer[..4] == self.xid.to_be_bytes() {
                    assert_eq!(buffer[4..8], [0, 0, 0, 1]);
                    return Bytes::copy_from_slice(&buffer[24..len]);
                }
            }
        }
        panic!("no answer to {procedure}");
    }

    fn done(&mut self, procedure: u32, arguments: &[u8]) -> Reader {
        let mut results = Reader::new(self.call(NFS, procedure, arguments));
        assert_eq!(results.u32(), Ok(0), "{procedure}");
        results
    }

    /// MKDIR or CREATE.
    fn make(&mut self, procedure: u32, dir: &[u8], name: &str) -> Bytes {
        let mut w = named(dir, name);
        let words = if procedure == 8 { 7 } else { 6 };
        (0..words).for_each(|_| w.u32(0));
        let mut made = self.done(procedure, &w.out);
        assert_eq!(made.bool(), Ok(true));
        made.opaque(64, "handle").expect("a handle")
    }

    fn look_up(&mut self, dir: &[u8], name: &str) -> Bytes {
        let mut found = self.done(3, &named(dir, name).out);
        found.opaque(64, "handle").expect("a handle")
    }

    fn write(&mut self, file: &[u8], at: usize, data: &[u8]) {
        let mut w = Writer::default();
        w.opaque(file);
        [0, at as u32, data.len() as u32, 2]
            .into_iter()
            .for_each(|word| w.u32(word));
        w.opaque(data);
        self.done(7, &w.out);
    }

    fn read(&mut self, file: &[u8], at: usize, len: usize) -> Bytes {
        let mut w = Writer::default();
        w.opaque(file);
        [0, at as u32, len as u32]
            .into_iter()
            .for_each(|word| w.u32(word));
        let mut r = self.done(6, &w.out);
        if r.bool() == Ok(true) {
            r.array::<84>().expect("attributes");
        }
        let (count, _end) = (r.u32().expect("a count"), r.bool());
        let data = r.opaque(PART, "data").expect("data");
        assert_eq!(data.len(), count as usize);
        data
    }
}

fn named(dir: &[u8], name: &str) -> Writer {
    let mut w = Writer::default();
    w.opaque(dir);
    w.opaque(name.as_bytes());
    w
}

fn content(file: usize) -> Vec<u8> {
    (0..BYTES)
        .map(|at| (at / 251 + at * (file + 3)) as u8)
        .collect()
}

/// What the router says of the calls that the kernel has passed on.
fn passed(router: &mut Says) -> [u64; 3] {
    loop {
        let said: Value = serde_json::from_str(&router.line()).expect("JSON");
        if said["event"] == "status" {
            let count = |name: &str| said["udp_switch"][name].as_u64().expect("a number");
            return ["passed", "answered", "done_again"].map(count);
        }
    }
}

#[test]
fn the_kernel_passes_calls_on_between_networks() {
    let networks = Networks::make()
        .or_else(|| left_out("it takes root, network namespaces and programs for the kernel"));
    let Some(networks) = networks else { return };
    let place = scratch();
    let log = |name: &str| place.path().join(name);
    let mut servers = Vec::new();
    let mut urls = Vec::new();
    for number in 0..2 {
        let mut command = networks.command(2);
        command.args(["bench", "server", "--at", "198.18.1.2"]);
        let mut server = Says::start(command, &log(&format!("server-{number}.err")));
        urls.push(format!(
            "\"nfs://198.18.1.2:{}/?udp=yes\"",
            server.line().trim()
        ));
        servers.push(server);
    }
    let config = format!(
        "listen = \"198.18.0.2:0\"\nudp = true\ntransport = \"auto\"\nlog = \"route.log\"\nvolumes = [{}]\n\
         [[export]]\npath = \"/\"\nsecure = false\nsquash = \"no_root_squash\"\nclients = [\"198.18.0.0/24\"]\n",
        urls.join(", ")
    );
    std::fs::write(log("route.toml"), config).expect("a file");
    let mut command = networks.command(1);
    command.args(["route", "--json", "--trust-network", "--config"]);
    let mut router = Says::start(command_with(command, &log("route.toml")), &log("route.err"));
    let ready: Value = serde_json::from_str(&router.line()).expect("JSON");
    let to = ready["address"].as_str().expect("an address").to_string();

    let client = networks.0[0].clone();
    let used = std::thread::spawn(move || {
        // This thread alone; the socket stays there.
        let space = File::open(format!("/run/netns/{client}")).expect("a namespace");
        let there = move_into_link_name_space(
            std::os::fd::AsFd::as_fd(&space),
            Some(LinkNameSpaceType::Network),
        );
        there.expect("entered");
        use_it(&to);
    });
    used.join().expect("it goes well");
    // What is in the pipe may be older.
    let mut told = passed(&mut router);
    for _ in 0..4 {
        let reads = passed(&mut router);
        let is_last = reads == told && reads[1] > 0;
        told = reads;
        if is_last {
            break;
        }
    }
    let [passed, answered, again] = told;
    let reads = (DIRECTORIES * BYTES.div_ceil(PART)) as u64;
    assert!(
        answered > reads && passed >= answered + again,
        "{passed} {answered} {again}"
    );
    assert!(again > 0, "stubs come back");
}

fn command_with(mut command: Command, file: &Path) -> Command {
    command.arg(file);
    command
}

/// Makes directories and files, and reads them until the kernel has passed on enough.
fn use_it(to: &str) {
    let socket = UdpSocket::bind("198.18.0.1:0").expect("a socket");
    socket.connect(to).expect("a way");
    socket
        .set_read_timeout(Some(Duration::from_millis(500)))
        .expect("a time");
    let mut caller = Caller { socket, xid: 0 };
    let mut w = Writer::default();
    w.opaque(b"/");
    let mut mounted = Reader::new(caller.call(MOUNT, 1, &w.out));
    assert_eq!(mounted.u32(), Ok(0));
    let root = mounted.opaque(64, "handle").expect("the root");
    let mut files = Vec::new();
    for number in 0..DIRECTORIES {
        let dir = caller.make(9, &root, &format!("d{number}"));
        let file = caller.make(8, &dir, "file");
        let data = content(number);
        for (n, part) in data.chunks(PART).enumerate() {
            caller.write(&file, n * PART, part);
        }
        files.push((dir, file, data));
    }
    let volumes: std::collections::BTreeSet<u8> = files.iter().map(|(dir, ..)| dir[3]).collect();
    assert_eq!(volumes.len(), 2, "both servers have some");
    // Servers are asked twice a second whether they are there.
    std::thread::sleep(Duration::from_secs(2));
    let begun = Instant::now();
    for _ in 0..3 {
        for (number, (dir, file, data)) in files.iter().enumerate() {
            assert_eq!(caller.look_up(&root, &format!("d{number}")), dir);
            assert_eq!(caller.look_up(dir, "file"), file);
            for len in [PART, 8 << 10, 1_000] {
                for at in (0..BYTES).step_by(len).take(4) {
                    let expected = &data[at..BYTES.min(at + len)];
                    assert!(
                        caller.read(file, at, len) == expected,
                        "{number} {at} {len}"
                    );
                }
            }
            assert!(caller.read(file, BYTES - 100, PART) == data[BYTES - 100..]);
        }
    }
    assert!(begun.elapsed() < PATIENCE, "it is lost and sent again");
    // The status is told every five seconds.
    std::thread::sleep(Duration::from_secs(2));
}
