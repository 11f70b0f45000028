//! `quorate up`: a whole group by one command.

use std::fs;
use std::net::TcpListener;

use quorate_fault::Fault;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::command_line::{assert_said, ends};
use crate::harness::{
    Status, Up, eventually, free_ports, is_mounted, quorate, require_fuse, run, scratch,
};

/// `up` makes a group, mounts it, and takes all of it away on Ctrl-C; the next `up` finds the files.
#[test]
fn up_twice_finds_the_files_again() {
    if !require_fuse() {
        return;
    }
    let place = scratch();
    let data = place.path().join("data");
    let files = data.join("files");
    let port = free_ports(1)[0];
    for round in 0..2 {
        let up = Up::start(&data, port, &[]);
        assert!(is_mounted(&files));
        match round {
            0 => fs::write(files.join("kept"), b"for the next time").expect("a file"),
            _ => assert_eq!(
                fs::read(files.join("kept")).expect("it"),
                b"for the next time"
            ),
        }
        assert_eq!(Status::ask(&data).code, 0);
        up.stop();
        assert!(!is_mounted(&files), "the mount is still there");
        assert_eq!(Status::ask(&data).code, 2, "replicas still answer");
    }
}

/// What is in the way of a replica's first start may be about to go, as replicas are of an `up` that was killed: it is tried once more before it is given up.
#[test]
fn what_was_in_the_way_may_go() {
    if !require_fuse() {
        return;
    }
    let place = scratch();
    let data = place.path().join("data");
    let port = free_ports(1)[0];
    let alone: &[&str] = &["--replicas", "1"];
    Up::start(&data, port, alone).stop();
    let taken = TcpListener::bind(("127.0.0.1", port)).expect("the port is free again");
    let log = data.join("replica-0/messages.log");
    let before = fs::read_to_string(&log).unwrap_or_default().len();
    std::thread::scope(|scope| {
        let up = scope.spawn(|| Up::start(&data, port, &[]));
        eventually("the replica has tried", || {
            let said = fs::read_to_string(&log).unwrap_or_default();
            up.is_finished() || said.get(before..).unwrap_or(&said).contains("in use")
        });
        drop(taken);
        up.join().expect("it is ready").stop();
    });
}

/// Where the files are is told so that it holds for whoever reads it, whatever the options said.
#[test]
fn a_relative_mount_is_told_in_full() {
    if !require_fuse() {
        return;
    }
    let place = scratch();
    let data = place.path().join("data");
    let up = Up::start(&data, free_ports(1)[0], &["--mount", "files-here"]);
    let mount = place.path().join("files-here");
    assert!(is_mounted(&mount));
    eventually("a status is told", || !up.events("status").is_empty());
    for event in ["ready", "status"] {
        let told = up.events(event)[0]["mount"].clone();
        assert_eq!(told.as_str(), mount.to_str(), "{event}");
    }
    up.stop();
}

/// A second `up` on a directory says who runs the group, and harms nothing.
#[test]
fn a_second_up_is_told_of_the_first() {
    let place = scratch();
    let data = place.path().join("data");
    let port = free_ports(1)[0];
    let up = Up::start(&data, port, &["--no-mount"]);
    let process = format!("by process {};", up.id());
    let second = ends(Up::command(&data, port).arg("--no-mount"));
    assert_said(
        &second,
        1,
        &["already running", &process, "it is not mounted"],
    );
    assert_eq!(Status::ask(&data).code, 0);
    up.stop();

    if !require_fuse() {
        return;
    }
    let up = Up::start(&data, port, &[]);
    let mount = format!("its mount is {}", data.join("files").display());
    // Ready or not, mounted there or elsewhere.
    let second = ends(&mut Up::command(&data, port));
    assert_said(&second, 1, &["already running", &mount]);
    assert!(is_mounted(&data.join("files")));
    up.stop();
}

/// A script is told how the group is: at first, when a replica is killed, and when it is back.
#[test]
fn scripts_are_told_the_status() {
    let place = scratch();
    let data = place.path().join("data");
    let up = Up::start(&data, free_ports(1)[0], &["--no-mount"]);
    let last = || up.events("status").pop();
    let whole = || last().is_some_and(|s| s["state"] == "whole");
    eventually("it is whole", whole);
    let fields: Vec<String> = last()
        .and_then(|s| Some(s.as_object()?.keys().cloned().collect()))
        .expect("a status");
    let expected = [
        "batches", "event", "lag", "mount", "silent", "state", "view",
    ];
    assert_eq!(fields, expected);
    let down = |s: &Value| s["state"] == "down";
    assert!(!up.events("status").iter().any(down), "{}", up.said());

    // Paused, not killed: one that was killed may be back before anybody asks it.
    let victim = up.replica(2);
    kill_process(victim, Signal::STOP).expect("the replica lives");
    eventually("its silence is told", || {
        last().is_some_and(|s| s["silent"] == serde_json::json!([2]) && s["state"] == "degraded")
    });
    kill_process(victim, Signal::KILL).expect("the replica lives");
    eventually("its end is told", || up.noted("replica 2 was killed"));
    eventually("it is whole again", whole);
    // It had no last words, so none are told.
    assert!(!up.noted("INFO"), "{}", up.said());
    up.stop();
}

/// A replica that has lost its directory says so and stays out; the others go on.
#[test]
fn up_goes_on_without_a_replica_that_was_lost() {
    let place = scratch();
    let data = place.path().join("data");
    let port = free_ports(1)[0];
    Up::start(&data, port, &["--no-mount"]).stop();
    fs::remove_file(data.join("replica-3/group-id")).expect("the mark of a replica's directory");
    let up = Up::start(&data, port, &["--no-mount"]);
    eventually("the replica's words are told", || up.noted("has no mark"));
    assert_eq!(Status::ask(&data).code, 1);
    up.stop();
}

/// Who unmounts the files ends the group, and its terminal is told why.
#[test]
fn up_ends_with_a_word_when_its_files_are_unmounted() {
    if !require_fuse() {
        return;
    }
    let place = scratch();
    let data = place.path().join("data");
    let mut up = Up::start(&data, free_ports(1)[0], &[]);
    run(quorate().arg("umount").arg(data.join("files")));
    let status = up.wait();
    assert!(status.success(), "{status}");
    assert!(up.noted("unmounted by somebody else"), "{}", up.said());
    assert_eq!(Status::ask(&data).code, 2, "replicas still answer");
}

/// A new group that can't be, or has no place, is refused before anything is made for it.
#[test]
fn a_refused_up_leaves_nothing_behind() {
    if !require_fuse() {
        return;
    }
    let place = scratch();
    let data = place.path().join("data");
    let file = place.path().join("file");
    fs::write(&file, b"").expect("a file");
    let file = file.to_str().expect("a test's file");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its number").port();
    let free = free_ports(1)[0];
    let refused = |port, options: &[&str], words: &[&str]| {
        assert_said(&ends(Up::command(&data, port).args(options)), 1, words);
        assert!(!data.exists(), "{options:?} left something");
    };
    refused(free, &["--replicas", "3"], &["--replicas 3", "4, 7"]);
    refused(free, &["--fault", "4=lie"], &["--fault 4", "from 0 to 3"]);
    refused(free, &["--mount", file], &["not a directory", "--mount"]);
    refused(port, &[], &["can't listen", "--port"]);
}

/// The help names all that `--fault` takes.
#[test]
fn all_faults_are_in_the_help() {
    let help = run(quorate().args(["up", "--help"]));
    for fault in Fault::ALL {
        assert!(help.contains(fault.name()), "{fault} is not in\n{help}");
    }
}

/// How replicas agree is chosen when a group is made: one that keeps its votes in memory with workers, and one that signs everything. A group
/// that is there is not changed by options, and says so.
#[test]
fn a_group_is_made_as_it_is_wanted() {
    if !require_fuse() {
        return;
    }
    let kinds: [&[&str]; 2] = [
        &["--durability", "memory", "--workers", "4"],
        &["--authentication", "signature", "--no-key-holders"],
    ];
    for kind in kinds {
        let place = scratch();
        let data = place.path().join("data");
        let port = free_ports(1)[0];
        let up = Up::start(&data, port, kind);
        let file = data.join("files/kept");
        fs::write(&file, b"as any").expect("a file");
        assert_eq!(fs::read(&file).expect("it"), b"as any");
        let said = fs::read_to_string(data.join("group.toml")).expect("a group file");
        let wanted = format!("{} = \"{}\"", &kind[0][2..], kind[1]);
        assert!(said.contains(&wanted), "{wanted}: {said}");
        up.stop();
        let mut other = Up::command(&data, port);
        let ended = ends(other.args([
            "--no-mount",
            "--durability",
            "disk",
            "--authentication",
            "mac",
        ]));
        assert_said(&ended, 1, &["was made otherwise", kind[0]]);
    }
    // Signatures of all and key holders don't go together: nothing is made.
    let place = scratch();
    let mut signed = Up::command(&place.path().join("data"), free_ports(1)[0]);
    let ended = ends(signed.args(["--no-mount", "--authentication", "signature"]));
    assert_said(&ended, 1, &["no such group can be"]);
}
