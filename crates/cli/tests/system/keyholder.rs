//! The process that has a replica's identity key: it never says a number twice, however it ends. And a group whose replicas have such
//! processes, and new keys all the time.

use std::fs;
use std::os::unix::fs::PermissionsExt;
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
use crate::harness::{Random, Setup, eventually, free_ports, quorate, require_fuse, run, scratch};

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

/// The number of a key holder's newest statement.
fn counted(directory: &Path, id: u8) -> u64 {
    let path = directory.join(format!("holder-{id}/counter"));
    let text = fs::read_to_string(path).expect("a counter");
    let number = text.lines().find_map(|l| l.strip_prefix("counter "));
    number.expect("a line").parse().expect("a number")
}

/// The sockets of a replica's process. Only root may look into one.
fn sockets(pid: u32) -> usize {
    if !rustix::process::geteuid().is_root() {
        return 0;
    }
    let open = fs::read_dir(format!("/proc/{pid}/fd")).expect("a process's files");
    let target = |entry: std::io::Result<fs::DirEntry>| fs::read_link(entry.ok()?.path()).ok();
    let names = open.filter_map(target);
    names
        .filter(|name| name.to_string_lossy().starts_with("socket:"))
        .count()
}

/// Files are written and read while all keys of links are renewed every second: nobody who uses them notices, links don't
/// pile up, and neither a key holder that is killed nor a replica that is does harm.
#[test]
fn keys_are_renewed_under_load() {
    if !require_fuse() {
        return;
    }
    let mut group = Setup::new(4).key_holders().start();
    let mount = group.mount();
    let before: Vec<u64> = (0..4).map(|id| counted(group.directory(), id)).collect();
    let mut random = Random::new(3);
    let mut written = 0;
    let mut work = |rounds: &mut dyn FnMut() -> bool| {
        while rounds() {
            let content = random.bytes(20_000);
            let path = mount.path().join(format!("file {}", written % 50));
            fs::write(&path, &content).expect("a file is written");
            assert_eq!(fs::read(&path).expect("a file is read"), content);
            written += 1;
        }
    };
    let directory = group.directory().to_path_buf();
    let renewed = |times: u64| {
        let (directory, before) = (directory.clone(), before.clone());
        move || (0..4u8).any(|id| counted(&directory, id) < before[usize::from(id)] + times)
    };
    work(&mut renewed(5));
    // Without its key holder a replica goes on with the key that it has; the others close nothing for that.
    group.kill_holder(1);
    let at = counted(group.directory(), 1);
    let others = || (0..4u8).filter(|id| *id != 1);
    let far = |times| {
        let (directory, before) = (directory.clone(), before.clone());
        move || others().any(|id| counted(&directory, id) < before[usize::from(id)] + times)
    };
    work(&mut far(9));
    assert_eq!(counted(group.directory(), 1), at);
    group.start_holder(1);
    work(&mut renewed(8));
    // A replica that is killed comes back with a key of its next epoch, and is let in. The key in its own file is not missed.
    group.kill(2);
    fs::remove_file(group.directory().join("replica-2/key")).expect("the file goes");
    group.start_replica(2);
    work(&mut renewed(14));
    group.wait_until_they_agree(&[0, 1, 2, 3]);
    let pids: Vec<u32> = (0..4).map(|id| group.pid(id)).collect();
    // Three other replicas, the mount, a question about the status now and then; the one that listens, and former links for a second.
    for pid in pids {
        eventually("old links are closed", || sockets(pid) <= 12);
    }
    assert!(group.all_run());
    println!("{written} files were written and read");
}

/// A group with key holders is made by a command, their files are their owner's alone, and a replica does not go without.
#[test]
fn key_holders_are_not_left_out() {
    let place = scratch();
    let ports = free_ports(4);
    let addresses: Vec<String> = ports.iter().map(|p| format!("127.0.0.1:{p}")).collect();
    let init = |directory: &Path, option: &[&str]| {
        let mut command = quorate();
        command.args(["init", "--replicas", &addresses.join(",")]);
        run(command.args(option).arg(directory));
    };
    let replica = |directory: &Path, options: &[&str]| {
        let mut command = quorate();
        command.args(["replica", "--id", "0", "--group"]);
        command.arg(directory.join("group.toml")).args(options);
        ends(&mut command)
    };
    let with = place.path().join("with");
    init(&with, &[]);
    let group = Group::load(&with.join("group.toml")).expect("a group");
    assert!(group.identities().is_some());
    for id in 0..4 {
        for name in ["key", "counter"] {
            let file = with.join(format!("holder-{id}/{name}"));
            let mode = fs::metadata(&file).expect("a file").permissions().mode();
            assert_eq!(mode & 0o7777, 0o600, "{}", file.display());
        }
        assert_eq!(counted(&with, id), 0);
    }
    // Clients would let go of a replica that renews its keys less often than the file says.
    let file = |directory: &Path| fs::read_to_string(directory.join("group.toml"));
    assert!(
        file(&with)
            .expect("a file")
            .contains("key_refresh_ms = 15000")
    );
    for every in ["16s", "0"] {
        let seldom = replica(&with, &["--key-refresh", every]);
        assert_said(&seldom, 78, &["every 15 s", "key_refresh_ms"]);
    }
    let never = place.path().join("never");
    init(&never, &["--key-refresh", "0"]);
    assert!(!file(&never).expect("a file").contains("key_refresh_ms"));
    let alone = replica(&with, &["--key-refresh", "15s"]);
    let words = ["no key holder answers", "quorate keyholder", "--key-holder"];
    assert_said(&alone, 69, &words);

    let without = place.path().join("without");
    init(&without, &["--no-key-holders"]);
    let refused = ["have no key holders", "--no-key-holders"];
    assert_said(&replica(&without, &["--key-refresh", "15s"]), 78, &refused);
    let mut holder = quorate();
    holder.args(["keyholder", "--id", "0", "--group"]);
    let holder = ends(holder.arg(without.join("group.toml")));
    assert_said(&holder, 1, &["a group without key holders"]);
}
