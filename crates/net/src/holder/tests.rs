use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use quorate_wire::{Encode, EpochCertificate, KeyPair, PublicKey, ReplicaId};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::talk::{Ask, Wanted};
use super::*;
use crate::epochs::Epochs;
use crate::group::{Files, Group, Protocol, Purpose};

const ME: ReplicaId = ReplicaId(2);

fn key(seed: u8) -> KeyPair {
    KeyPair::from_seed(&[seed; 32])
}

fn group() -> Group {
    let replicas = (0..4).map(|i| (format!("127.0.0.1:{}", 7000 + i), key(i as u8).public()));
    let identities: Vec<PublicKey> = (50..54).map(|i| key(i).public()).collect();
    let (replicas, files) = (replicas.collect(), Files::default());
    let group = Group::new("test", replicas, Vec::new(), files, Purpose::Service);
    group.unwrap().with_identities(&identities).unwrap()
}

fn own_user() -> u32 {
    rustix::process::getuid().as_raw()
}

/// A key holder of replica 2 in a thread of its own, which ends with the test's process.
fn start(directory: &Path, user: u32) -> PathBuf {
    start_in(&group(), directory, user)
}

fn start_in(group: &Group, directory: &Path, user: u32) -> PathBuf {
    let (socket, counter) = (directory.join("socket"), directory.join("counter"));
    let identity = key(52);
    CounterFile::create(&counter, &identity.public()).unwrap();
    let counter = CounterFile::open(&counter, &identity.public()).unwrap();
    let vault = FileVault::new(identity, counter);
    let holder = Holder::bind(&socket, vault, (group, ME), user).unwrap();
    std::thread::spawn(|| holder.serve());
    socket
}

/// Both kinds of statements come, right and with numbers that grow.
#[test]
fn statements_are_signed_and_numbered() {
    let directory = tempfile::tempdir().unwrap();
    let socket = start(directory.path(), own_user());
    let group = group();
    let client = HolderClient::new(&socket, &group, ME).unwrap();
    for round in 0..3 {
        let epoch = key(100 + round).public();
        let certificate = client.certify(epoch).unwrap();
        let recovery = client.recover().unwrap();
        assert_eq!(certificate.counter, 2 * u64::from(round) + 1);
        assert_eq!(recovery.counter, 2 * u64::from(round) + 2);
        assert_eq!(certificate.epoch, epoch);
    }
}

/// Who asks without end is given few: of each kind what was allowed to a key holder that has just started, and one more each half minute in this group. A
/// refusal says when there is more, and uses up no number.
#[test]
fn who_asks_without_end_is_given_few() {
    let directory = tempfile::tempdir().unwrap();
    let protocol = Protocol {
        key_refresh: Some(Duration::from_secs(3_600)),
        ..Protocol::default()
    };
    let group = group().with_protocol(protocol);
    let socket = start_in(&group, directory.path(), own_user());
    let client = HolderClient::new(&socket, &group, ME).unwrap();
    let begin = clock::now();
    let mut given = 0;
    let mut count = |said: Result<u64, AskError>| match said {
        Ok(counter) => {
            given += 1;
            assert_eq!(counter, given);
            true
        }
        Err(AskError::TooOften { wait, .. }) => {
            assert!(wait <= pace(&group) + Duration::from_millis(1), "{wait:?}");
            false
        }
        Err(e) => panic!("{e}"),
    };
    let epoch = key(100).public();
    let certificates = (0..200).filter(|_| count(client.certify(epoch).map(|c| c.counter)));
    let certificates = certificates.count() as u64;
    let recoveries = (0..200).filter(|_| count(client.recover().map(|r| r.counter)));
    let recoveries = recoveries.count() as u64;
    let more = begin.elapsed().as_secs() / 30;
    for kind in [certificates, recoveries] {
        assert!((4..=4 + more).contains(&kind), "{kind} in {more} periods");
    }
}

/// A thief has as many keys certified as it is given. Whatever it shows of that when the replica has recovered is refused by all who have heard so, and by who has seen two
/// newer ones: the key holder counts each.
#[test]
fn what_was_prepared_ends_with_the_recovery() {
    let directory = tempfile::tempdir().unwrap();
    let socket = start(directory.path(), own_user());
    let (group, thiefs, own) = (group(), key(100), key(101));
    let client = HolderClient::new(&socket, &group, ME).unwrap();
    let mut prepared = Vec::new();
    let wait = loop {
        match client.certify(thiefs.public()) {
            Ok(certificate) => prepared.push(certificate),
            Err(AskError::TooOften { wait, .. }) => break wait,
            Err(e) => panic!("{e}"),
        }
    };
    assert!(prepared.len() >= 4);
    std::thread::sleep(wait);
    let first = client.certify(own.public()).unwrap();
    let said = client.recover().unwrap();
    let take = |epochs: &mut Epochs, key: &KeyPair, certificate: &EpochCertificate| {
        let judged = epochs.judge(&key.public(), certificate.to_bytes().into());
        judged.is_ok()
    };
    let is_refused = |epochs: &mut Epochs| {
        let mut shown = prepared.iter();
        shown.all(|certificate| !take(epochs, &thiefs, certificate))
    };
    let mut told = Epochs::of(&group).unwrap();
    assert!(take(&mut told, &thiefs, prepared.last().unwrap()));
    told.void(ME, said.counter).unwrap();
    assert!(is_refused(&mut told));
    assert!(take(&mut told, &own, &first));
    let mut client_of_it = Epochs::of_client(&group).unwrap();
    assert!(take(&mut client_of_it, &own, &first));
    assert!(
        !is_refused(&mut client_of_it),
        "the last one but the newest counts"
    );
    let second = loop {
        match client.certify(own.public()) {
            Ok(certificate) => break certificate,
            Err(AskError::TooOften { wait, .. }) => std::thread::sleep(wait),
            Err(e) => panic!("{e}"),
        }
    };
    assert!(take(&mut client_of_it, &own, &second));
    assert!(is_refused(&mut client_of_it));
}

/// Another replica, another group and another user get nothing, and are told which it was.
#[test]
fn others_get_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let socket = start(directory.path(), own_user());
    let other = HolderClient::new(&socket, &group(), ReplicaId(1)).unwrap();
    let refused = other.recover().unwrap_err();
    assert!(matches!(refused, AskError::AnotherReplica { replica, .. } if replica == ME));
    let counter = fs::read_to_string(directory.path().join("counter")).unwrap();
    assert!(counter.contains("counter 0\n"), "{counter}");

    let elsewhere = tempfile::tempdir().unwrap();
    let socket = start(elsewhere.path(), own_user() + 1);
    let client = HolderClient::new(&socket, &group(), ME).unwrap();
    assert!(matches!(client.recover(), Err(AskError::NotAllowed(_))));
    let missing = HolderClient::new(&elsewhere.path().join("no"), &group(), ME).unwrap();
    assert!(matches!(missing.recover(), Err(AskError::NotThere(_))));
}

/// A socket below a directory that is shut to the replica's user is told as that: the key holder has refused nobody.
#[test]
fn a_socket_out_of_reach_is_told() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let socket = start(directory.path(), own_user());
    let shut = fs::Permissions::from_mode(0o0);
    fs::set_permissions(directory.path(), shut).unwrap();
    let client = HolderClient::new(&socket, &group(), ME).unwrap();
    let ask = move || {
        // No directory is shut to root. This is the user of this one thread.
        if own_user() == 0 {
            rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(61_234)).unwrap();
        }
        client.recover()
    };
    let refused = std::thread::spawn(ask).join().unwrap();
    assert!(matches!(refused, Err(AskError::Shut(_))), "{refused:?}");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
}

/// Whatever comes that is no ask costs its connection alone, and no number.
#[test]
fn what_is_no_ask_is_refused() {
    use std::io::Write;
    let directory = tempfile::tempdir().unwrap();
    let socket = start(directory.path(), own_user());
    let good = Ask {
        group: group().id(),
        replica: ME,
        statement: Wanted::Recovery(()),
    };
    let good = good.to_bytes();
    let mut bad: Vec<Vec<u8>> = (0..good.len()).map(|n| good[..n].to_vec()).collect();
    bad.push([&good[..], &[0]].concat());
    bad.push(vec![7; 100_000]);
    let mut unknown = good.clone();
    unknown[33] = 9;
    bad.push(unknown);
    for bytes in bad {
        let mut stream = UnixStream::connect(&socket).unwrap();
        // It may have been closed before all of it was written.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let answer = read_whole(&mut stream, ANSWER_TIMEOUT).unwrap_or_default();
        assert!(answer.is_empty(), "{} bytes", bytes.len());
    }
    // Who says nothing at all is waited for, and not for ever.
    let silent = UnixStream::connect(&socket).unwrap();
    let client = HolderClient::new(&socket, &group(), ME).unwrap();
    assert_eq!(client.recover().unwrap().counter, 1);
    drop(silent);
}

/// A counter goes on where it was; what is missing, damaged, another's or in use is refused by name.
#[test]
fn a_counter_only_grows() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("counter");
    let ours = key(1).public();
    let open = || CounterFile::open(&path, &ours);
    assert!(matches!(open(), Err(CounterError::Missing(_))));
    CounterFile::create(&path, &ours).unwrap();
    let again = CounterFile::create(&path, &ours);
    assert!(matches!(again, Err(CounterError::Exists(_))));
    let mut counter = open().unwrap();
    assert_eq!(
        (counter.advance().unwrap(), counter.advance().unwrap()),
        (1, 2)
    );
    assert!(matches!(open(), Err(CounterError::InUse(_))));
    drop(counter);
    let of_another = CounterFile::open(&path, &key(2).public());
    assert!(matches!(of_another, Err(CounterError::OtherKey(_))));
    assert_eq!(open().unwrap().advance().unwrap(), 3);

    let good = fs::read(&path).unwrap();
    for at in 0..good.len() {
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            fs::write(&path, &bad).unwrap();
            assert!(open().is_err(), "bit {bit} of byte {at}");
        }
        fs::write(&path, &good[..at]).unwrap();
        assert!(
            matches!(open(), Err(CounterError::Corrupt(_))),
            "{at} bytes"
        );
    }
}

/// An older file that is put in the place of a counter at work stops it.
#[test]
fn a_counter_that_shrinks_is_not_believed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("counter");
    let ours = key(1).public();
    CounterFile::create(&path, &ours).unwrap();
    let old = fs::read(&path).unwrap();
    let mut counter = CounterFile::open(&path, &ours).unwrap();
    assert_eq!(counter.advance().unwrap(), 1);
    fs::write(&path, &old).unwrap();
    let refused = counter.advance().unwrap_err();
    assert!(matches!(
        refused,
        CounterError::Changed {
            written: 1,
            found: 0,
            ..
        }
    ));
    assert!(refused.to_string().contains("Nothing is signed"));
    fs::remove_file(&path).unwrap();
    assert!(matches!(counter.advance(), Err(CounterError::Missing(_))));
}

/// A disk that takes no more has the key holder sign nothing, and go on when it does again; no number comes twice.
#[test]
fn a_full_disk_passes() {
    let directory = tempfile::tempdir().unwrap();
    let socket = start(directory.path(), own_user());
    let client = HolderClient::new(&socket, &group(), ME).unwrap();
    assert_eq!(client.recover().unwrap().counter, 1);
    // A counter is written beside its place first: here a directory is in the way, which fails for root as well.
    let name = format!("counter.{}.new", std::process::id());
    let in_the_way = directory.path().join(name);
    fs::create_dir(&in_the_way).unwrap();
    for _ in 0..5 {
        assert!(client.recover().is_err());
    }
    fs::remove_dir(&in_the_way).unwrap();
    assert_eq!(client.recover().unwrap().counter, 2);
}

/// The socket takes the place of one that a dead key holder left, and of nothing else.
#[test]
fn only_a_socket_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let bind = || {
        let counter = directory.path().join("counter");
        let _ = CounterFile::create(&counter, &key(52).public());
        let counter = CounterFile::open(&counter, &key(52).public()).unwrap();
        let vault = FileVault::new(key(52), counter);
        Holder::bind(&path, vault, (&group(), ME), own_user())
    };
    drop(bind().unwrap());
    assert!(path.exists());
    drop(bind().unwrap());
    fs::remove_file(&path).unwrap();
    fs::write(&path, "precious").unwrap();
    assert!(matches!(bind(), Err(HolderError::NotASocket(_))));
    assert_eq!(fs::read(&path).unwrap(), b"precious");
}

/// A test in a process of its own, since a limit is all of a process's: with this variable it is that process.
const ALONE: &str = "QUORATE_TEST_ALONE";

/// A key holder that may open no file for a moment, such as the one of a connection, goes on when it may again.
#[test]
fn a_moment_without_files_is_not_the_end() {
    const NAME: &str = "holder::tests::a_moment_without_files_is_not_the_end";
    if std::env::var_os(ALONE).is_some() {
        return without_files();
    }
    let mut alone = Command::new(std::env::current_exe().unwrap());
    alone
        .args(["--exact", NAME, "--test-threads", "1"])
        .env(ALONE, "1");
    let output = alone.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

fn without_files() {
    let directory = tempfile::tempdir().unwrap();
    let socket = start(directory.path(), own_user());
    let client = HolderClient::new(&socket, &group(), ME).unwrap();
    let certify = || client.certify(key(100).public());
    certify().unwrap();

    // Who waits in accept(2) has the number of its next file already: it is to come there anew.
    let waits = UnixStream::connect(&socket).unwrap();
    let before = getrlimit(Resource::Nofile);
    let none = Rlimit {
        current: Some(3),
        ..before
    };
    setrlimit(Resource::Nofile, none).unwrap();
    assert!(fs::File::open("/dev/null").is_err(), "the limit holds");
    drop(waits);
    // Time to see it: who is slower than that has not been asked, which is no failure.
    std::thread::sleep(Duration::from_millis(500));
    setrlimit(Resource::Nofile, before).unwrap();
    certify().unwrap();
}
