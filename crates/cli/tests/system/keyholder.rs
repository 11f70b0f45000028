//! The process that has a replica's identity key: it never says a number twice, however it ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate_net::group::{Files, Purpose};
use quorate_net::holder::{CounterFile, HolderClient};
use quorate_net::{Group, keys};
use quorate_wire::{KeyPair, PublicKey, ReplicaId};

use crate::command_line::{assert_said, ends};
use crate::harness::{Random, eventually, quorate, scratch};

/// How often the process is killed in the midst of its work.
const KILLS: usize = 25;

fn group_of(directory: &Path) -> Group {
    let public = |seed| KeyPair::from_seed(&[seed; 32]).public();
    let replicas = (0..4).map(|i| (format!("127.0.0.1:{}", 7400 + i), public(1 + i as u8)));
    let mut identities: Vec<PublicKey> = (50..54).map(public).collect();
    let own = directory.join("holder-2");
    fs::create_dir(&own).expect("a directory");
    let key = keys::generate().expect("a key");
    keys::save(&own.join("key"), &key).expect("a key file");
    CounterFile::create(&own.join("counter"), &key.public()).expect("a counter");
    identities[2] = key.public();
    let (files, purpose) = (Files::default(), Purpose::Demonstration);
    let group = Group::new("test", replicas.collect(), Vec::new(), files, purpose);
    let group = group.and_then(|g| g.with_identities(&identities));
    let group = group.expect("a group");
    group.save(&directory.join("group.toml")).expect("a file");
    group
}

fn keyholder(directory: &Path) -> Command {
    let mut command = quorate();
    command.args(["keyholder", "--with-parent", "--id", "2", "--group"]);
    command.arg(directory.join("group.toml"));
    command.stdin(Stdio::piped()).stderr(Stdio::null());
    command
}

fn kill(mut child: Child) {
    child.kill().expect("a child can be killed");
    child.wait().expect("a child can be waited for");
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("holder-2/socket")
}

/// A number is on disk before its signature leaves: whenever the process is killed, the next one goes on above all that anybody has seen.
#[test]
fn no_number_is_said_twice() {
    let place = scratch();
    let group = group_of(place.path());
    let client = HolderClient::new(&socket(place.path()), &group, ReplicaId(2));
    let client = client.expect("a group with key holders");
    let seen = Arc::new(Mutex::new(Vec::<u64>::new()));
    let ended = Arc::new(AtomicBool::new(false));
    let asker = {
        let (client, seen, ended) = (client.clone(), seen.clone(), ended.clone());
        std::thread::spawn(move || {
            let mut random = Random::new(7);
            while !ended.load(Ordering::Acquire) {
                let epoch = KeyPair::from_seed(&[random.below(200) as u8; 32]).public();
                let said = match random.below(2) {
                    0 => client.certify(epoch).map(|c| c.counter),
                    _ => client.recover().map(|r| r.counter),
                };
                match said {
                    Ok(counter) => seen.lock().expect("no panic").push(counter),
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        })
    };
    let mut random = Random::new(8);
    for round in 0..KILLS {
        let before = seen.lock().expect("no panic").len();
        let child = keyholder(place.path())
            .spawn()
            .expect("a key holder starts");
        eventually("statements come", || {
            seen.lock().expect("no panic").len() > before
        });
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        kill(child);
        let seen = seen.lock().expect("no panic");
        let grows = seen.windows(2).all(|pair| pair[0] < pair[1]);
        assert!(grows, "after {round} kills: {seen:?}");
    }
    ended.store(true, Ordering::Release);
    asker.join().expect("no panic");
    let counter = fs::read_to_string(place.path().join("holder-2/counter")).expect("a counter");
    let written = counter.lines().find_map(|l| l.strip_prefix("counter "));
    let written: u64 = written.expect("a line").parse().expect("a number");
    let last = seen.lock().expect("no panic").last().copied();
    assert!(
        last.is_some_and(|last| last <= written),
        "{last:?}, {written}"
    );
    println!("{last:?} statements, {KILLS} kills");
}

/// Without a counter that can be trusted the process does not start, or ends, and says why.
#[test]
fn no_counter_no_signature() {
    let place = scratch();
    let group = group_of(place.path());
    let counter = place.path().join("holder-2/counter");
    let good = fs::read_to_string(&counter).expect("a counter");

    let running = keyholder(place.path())
        .spawn()
        .expect("a key holder starts");
    let client = HolderClient::new(&socket(place.path()), &group, ReplicaId(2));
    let client = client.expect("a group with key holders");
    eventually("a statement comes", || client.recover().is_ok());
    assert_said(
        &ends(&mut keyholder(place.path())),
        1,
        &["another key holder"],
    );
    kill(running);

    // An older counter comes back under a process at work.
    let log = place.path().join("log");
    let file = fs::File::create(&log).expect("a log");
    let mut running = keyholder(place.path())
        .stderr(file)
        .spawn()
        .expect("it starts");
    eventually("a statement comes", || client.recover().is_ok());
    fs::write(&counter, &good).expect("the file is written");
    assert!(client.recover().is_err());
    // Its standard input stays open: that is not to be what ends it.
    let mut status = None;
    eventually("it ends", || {
        status = running.try_wait().expect("a child can be waited for");
        status.is_some()
    });
    let said = fs::read_to_string(&log).expect("a log");
    assert!(
        !status.is_some_and(|s| s.success()) && said.contains("Nothing is signed any more"),
        "{said}"
    );

    fs::write(&counter, &good[..good.len() / 2]).expect("the file is written");
    assert_said(
        &ends(&mut keyholder(place.path())),
        1,
        &["not a whole counter"],
    );
    fs::remove_file(&counter).expect("the file goes");
    let gone = ["there is no counter", "the key is to be replaced"];
    assert_said(&ends(&mut keyholder(place.path())), 1, &gone);
    let mut other = quorate();
    other.args(["keyholder", "--id", "1", "--group"]);
    other.arg(place.path().join("group.toml")).arg("--key");
    other.arg(place.path().join("holder-2/key"));
    let said = ["not the identity key of replica 1", "--key", "--id"];
    assert_said(&ends(&mut other), 1, &said);
}
