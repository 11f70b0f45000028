//! How `quorate route` starts: what it refuses, and what it needs of the system.

use std::fs;

use crate::command_line::{assert_said, ends};
use crate::harness::program;
use crate::route::{Client, Op, Routed, start};

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
