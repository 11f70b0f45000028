//! `quorate nfs`, with a client that knows nothing of Quorate: the tools of libnfs.

use std::fs::{self, File};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::command_line::{assert_said, ends};
use crate::harness::{Group, Random, eventually, free_ports, program, quorate, run, scratch};

/// A process `quorate nfs`. It is killed at the end, as it may be at any time.
pub struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(group: &Group, port: u16) -> Server {
        let mut command = command(group, &format!("127.0.0.1:{port}"));
        Server::run(group, port, &mut command)
    }

    /// As the holder of a credential.
    pub fn of_guest(group: &Group, port: u16, key: &Path, credential: &Path) -> Server {
        let mut command = quorate();
        command.arg("nfs").arg(group.file()).arg("--key").arg(key);
        command.arg("--credential").arg(credential);
        command.args(["--listen", &format!("127.0.0.1:{port}")]);
        Server::run(group, port, &mut command)
    }

    fn run(group: &Group, port: u16, command: &mut Command) -> Server {
        let exports = group.directory().join("exports.toml");
        let text = "[[export]]\npath = \"/\"\nsecure = false\nsquash = \"no_root_squash\"\n";
        fs::write(&exports, text).expect("a file");
        let log = File::create(group.directory().join("nfs.log")).expect("a log");
        command.arg("--exports").arg(exports);
        command.stderr(log);
        let child = command.spawn().expect("it starts");
        eventually("it listens", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Server { child, port }
    }

    pub fn url(&self, path: &str) -> String {
        let port = self.port;
        // The second stroke: what is mounted is `/`, which libnfs would else take for nothing.
        format!("nfs://127.0.0.1//{path}?nfsport={port}&mountport={port}")
    }

    fn copy(&self, local: &Path, path: &str) {
        run(program("nfs-cp").arg(local).arg(self.url(path)));
    }

    fn assert_same(&self, local: &Path, path: &str, place: &Path) {
        let back = place.join("back");
        // It overwrites nothing.
        let _ = fs::remove_file(&back);
        run(program("nfs-cp").arg(self.url(path)).arg(&back));
        let same = fs::read(&back).expect("a copy") == fs::read(local).expect("a file");
        assert!(same, "{path} came back as another");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(group: &Group, listen: &str) -> Command {
    let mut command = quorate();
    command.arg("nfs").arg(group.file());
    command.arg("--key").arg(group.client_key(0));
    command.args(["--listen", listen]);
    command
}

fn noise(place: &Path, seed: u64, len: usize) -> PathBuf {
    let mut random = Random::new(seed);
    let bytes: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
    let path = place.join(format!("noise-{seed}"));
    fs::write(&path, bytes).expect("a file");
    path
}

/// Files are copied in and out, while the primary dies and after the server was killed.
#[test]
fn a_client_of_nfs_copies_files() {
    let mut group = Group::start();
    let place = scratch();
    let [port] = free_ports(1)[..] else {
        panic!("one port");
    };
    let (one, two) = (noise(place.path(), 1, 3_000_001), noise(place.path(), 2, 5));
    let server = Server::start(&group, port);
    server.copy(&one, "one");
    server.assert_same(&one, "one", place.path());
    let listed = run(program("nfs-ls").arg(server.url("")));
    assert!(
        listed.contains("3000001") && listed.contains("one"),
        "{listed}"
    );

    group.kill(0);
    server.copy(&two, "two");
    server.assert_same(&two, "two", place.path());
    drop(server);
    let server = Server::start(&group, port);
    server.assert_same(&one, "one", place.path());
    server.assert_same(&two, "two", place.path());
}

/// What would open the files to a network, or can't be meant, is refused with what to do about it.
#[test]
fn what_is_not_safe_must_be_said() {
    let group = Group::start();
    for listen in ["0.0.0.0:0", "[::]:0"] {
        let refused = ends(&mut command(&group, listen));
        assert_said(&refused, 1, &["--trust-network", "127.0.0.1"]);
    }
    let exports = group.directory().join("wrong.toml");
    fs::write(&exports, "[[export]]\npath = \"/\"\nreadonly = true\n").expect("a file");
    let mut with_exports = command(&group, "127.0.0.1:0");
    let refused = ends(with_exports.arg("--exports").arg(&exports));
    assert_said(&refused, 1, &["readonly"]);
}
