//! How `quorate route` starts: what it refuses, what it waits for, and what it needs of the system.

use std::fs::{self, File};
use std::net::TcpStream;

use quorate_router::ask::Ask;

use crate::command_line::{assert_said, ends};
use crate::harness::{eventually, program};
use crate::route::{Client, Op, Process, Routed, server, start};

/// A router that starts while a server is away says for which it waits, and goes on when that is back.
#[test]
fn a_router_that_starts_waits_for_servers() {
    let mut routed = Routed::start();
    let client = Client::connect(routed.port);
    assert_eq!(client.act(&Op::Mkdir("a".into())), Ok(()));
    let tree = client.tree();
    routed.kill_router();
    let (server_that_goes, port) = routed.servers.remove(2);
    drop(server_that_goes);
    let log = routed.place.join("waiting.err");
    let mut command = routed.command();
    command.stderr(File::create(&log).expect("a log"));
    routed.router = Some(Process(command.spawn().expect("it starts")));
    let waits = format!("waiting for the server of nfs://127.0.0.1:{port}/v2");
    eventually("it says for whom it waits", || {
        fs::read_to_string(&log).expect("a log").contains(&waits)
    });
    assert!(TcpStream::connect(("127.0.0.1", routed.port)).is_err());
    let exports = routed.place.join("exports-2.toml");
    let server = server(&routed.group, &exports, port);
    routed.servers.push((server, port));
    eventually("it serves", || {
        client.ask(Ask::GetAttr(client.root.clone())).is_ok()
    });
    assert_eq!(client.tree(), tree);
}

/// It may have been started by what has ended since.
#[test]
fn a_router_goes_on_when_nobody_reads_what_it_says() {
    let mut routed = Routed::with("", &["--json"]);
    routed.kill_router();
    let (reader, output) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = routed.command();
    command.stdout(output);
    let log = routed.place.join("route.err");
    routed.router = Some(start(command, routed.port, &log));
    let client = Client::connect(routed.port);
    let made = client.act(&Op::Mkdir("a".into()));
    assert_eq!(made, Ok(()));
}

/// Volumes that are not what they were are refused, and so are a log that is lost and a configuration that means nothing.
#[test]
fn what_does_not_fit_is_told() {
    let mut routed = Routed::start();
    routed.kill_router();
    let config = routed.place.join("route.toml");
    let good = fs::read_to_string(&config).expect("a file");
    let port = routed.servers[0].1;
    let known = format!("\"nfs://localhost:{port}/v0\"");
    let unused = format!("\"nfs://127.0.0.1:{}/v3\"", routed.servers[3].1);
    let third = format!("\"nfs://127.0.0.1:{}/v2\"", routed.servers[2].1);
    for (text, told) in [
        (good.replace(&third, &known), "and so is"),
        (good.replace(&third, &unused), "quorate volume add"),
        (
            good.replace("[[export]]", "[pin]\nx = 9\n[[export]]"),
            "pinned",
        ),
        (good.replace("/v2\"", "/no\""), "MOUNT"),
        (good.replace("log =", "lgo ="), "lgo"),
        (good.replace("127.0.0.1:", "0.0.0.0:"), "--trust-network"),
    ] {
        fs::write(&config, text).expect("a file");
        assert_said(&ends(&mut routed.command()), 1, &[told]);
    }
    fs::write(&config, &good).expect("a file");
    fs::remove_file(routed.place.join("route.log")).expect("the log");
    assert_said(&ends(&mut routed.command()), 1, &["--new-log"]);
}

/// Each client has a connection, and the usual limit is soon reached.
#[test]
fn a_router_may_have_many_files_open() {
    let mut routed = Routed::start();
    routed.kill_router();
    let route = routed.command();
    let mut command = program("sh");
    command.args(["-c", "ulimit -S -n 200 && exec \"$@\"", "sh"]);
    command.arg(route.get_program()).args(route.get_args());
    let log = routed.place.join("route.err");
    let router = start(command, routed.port, &log);
    let limits = fs::read_to_string(format!("/proc/{}/limits", router.0.id()));
    let limits = limits.expect("its limits");
    let files = limits.lines().find(|line| line.contains("open files"));
    let words: Vec<&str> = files.expect("a limit").split_whitespace().collect();
    // Soft and hard, after the three words of its name.
    assert_eq!(words[3], words[4], "{limits}");
    assert_ne!(words[3], "200", "{limits}");
}
