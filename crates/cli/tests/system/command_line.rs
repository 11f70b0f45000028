//! The command as people meet it: what it says when something is wrong, and what it leaves behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::statvfs;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{
    Finished, Group, Patience, Setup, eventually, finish, free_ports, is_mounted, program, quorate,
    require_fuse, run, scratch,
};

/// Fails unless the command ended with `code` and said all of `words`.
pub fn assert_said(finished: &Finished, code: i32, words: &[&str]) {
    let Finished { stdout, stderr, .. } = finished;
    assert_eq!(finished.code(), code, "{stdout}\n{stderr}");
    for word in words {
        assert!(stderr.contains(word), "{word:?} is not in {stderr:?}");
    }
    assert!(!stderr.contains("panicked"), "{stderr}");
}

pub fn ends(command: &mut Command) -> Finished {
    finish(command, Patience::default())
}

/// A group's files, made by the command itself; nothing runs.
fn init(directory: &Path) {
    let addresses: Vec<String> = free_ports(4)
        .iter()
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    run(quorate()
        .args(["init", "--no-key-holders", "--replicas"])
        .arg(addresses.join(","))
        .arg(directory));
}

pub fn replica(directory: &Path, id: u8) -> Command {
    let mut command = quorate();
    command.args(["replica", "--id", &id.to_string(), "--group"]);
    command.arg(directory.join("group.toml"));
    command
}

/// Where nobody says how much a volume is to hold, it holds no more than a disk like this one: larger than all disks, it would stop all replicas when
/// they are full, and could never be made smaller.
#[test]
fn a_new_volume_fits_a_disk() {
    let place = scratch();
    let directory = place.path().join("group");
    init(&directory);
    let group = quorate_net::Group::load(&directory.join("group.toml")).expect("the group file");
    let disk = statvfs(place.path()).expect("statvfs");
    let (files, size) = (group.files(), disk.f_blocks * disk.f_frsize);
    assert!(files.capacity_bytes <= size / 5 * 4, "{files:?} {size}");
    assert_eq!(files.inodes, files.capacity_bytes / (16 << 10));
}

/// A key file is its owner's alone, and is not overwritten.
#[test]
fn keys_are_private() {
    let place = scratch();
    let file = place.path().join("key");
    let said = run(quorate().args(["keygen", "--json"]).arg(&file));
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said["public_key"].as_str().map(str::len), Some(64));
    let mode = fs::metadata(&file)
        .expect("the key file")
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o600);
    let before = fs::read(&file).expect("the key");
    assert_said(
        &ends(quorate().arg("keygen").arg(&file)),
        1,
        &["exists already"],
    );
    assert_eq!(fs::read(&file).expect("the key"), before);
    init(&place.path().join("group"));
    for key in ["client.key", "supervisor-3.key", "replica-0/key"] {
        let made = fs::metadata(place.path().join("group").join(key)).expect("a key file");
        assert_eq!(made.permissions().mode() & 0o7777, 0o600, "{key}");
    }
    for replica in ["replica-0", "replica-3"] {
        let made = fs::metadata(place.path().join("group").join(replica)).expect("a directory");
        assert_eq!(made.permissions().mode() & 0o7777, 0o700, "{replica}");
    }
}

/// Each mistake in files and options has its own message, which says what to do.
#[test]
fn mistakes_are_explained() {
    let place = scratch();
    let directory = place.path().join("group");
    init(&directory);
    let group = directory.join("group.toml");
    let text = fs::read_to_string(&group).expect("the group file");

    let missing = place.path().join("nowhere/group.toml");
    let no_file = ["there is no group file", "quorate init"];
    assert_said(&ends(quorate().arg("status").arg(&missing)), 2, &no_file);
    assert_said(
        &ends(quorate().arg("mount").arg(&missing).arg(place.path())),
        1,
        &no_file,
    );
    let mut lost = quorate();
    assert_said(
        &ends(lost.args(["replica", "--id", "0", "--group"]).arg(&missing)),
        66,
        &no_file,
    );

    let again = ends(
        quorate()
            .args(["init", "--replicas", "127.0.0.1:1"])
            .arg(&directory),
    );
    assert_said(&again, 1, &["there already", "another directory"]);
    let three = ["init", "--replicas", "a:1,b:2,c:3"];
    let three = ends(quorate().args(three).arg(place.path().join("three")));
    assert_said(&three, 1, &["3 replicas make no group"]);
    assert!(!place.path().join("three").exists(), "keys of no group");

    // "None" is said where somebody has looked.
    let evidence = || {
        let mut command = quorate();
        command.args(["evidence", "list", "--group"]).arg(&group);
        command
    };
    assert_said(&ends(&mut evidence()), 0, &[]);
    let nowhere = ends(evidence().args(["--data", "/nonexistent"]));
    assert_said(&nowhere, 2, &["/nonexistent"]);
    let away = place.path().join("away");
    fs::create_dir(&away).expect("a directory");
    fs::copy(&group, away.join("group.toml")).expect("a copy");
    let mut elsewhere = quorate();
    elsewhere.args(["evidence", "list", "--group"]);
    let elsewhere = ends(elsewhere.arg(away.join("group.toml")));
    assert_said(&elsewhere, 2, &["no replica's directory", "--data"]);

    let wrong_key = directory.join("replica-1/key");
    let wrong = ends(replica(&directory, 0).arg("--key").arg(&wrong_key));
    assert_said(&wrong, 78, &["not the key of replica 0", "--key"]);
    assert_said(&ends(&mut replica(&directory, 9)), 78, &["from 0 to 3"]);
    fs::rename(directory.join("replica-2/key"), place.path().join("key")).expect("a key");
    let keyless = ends(&mut replica(&directory, 2));
    assert_said(&keyless, 66, &["no key file", "--key"]);
    let stranger = place.path().join("stranger");
    run(quorate().arg("keygen").arg(&stranger));
    let status = ends(
        quorate()
            .arg("status")
            .arg(&group)
            .arg("--key")
            .arg(&stranger),
    );
    assert_said(&status, 2, &["--key"]);
    let fault = ends(replica(&directory, 0).args(["--fault", "lie"]));
    assert_said(&fault, 78, &["demonstration"]);

    fs::set_permissions(&wrong_key, fs::Permissions::from_mode(0o644)).expect("a mode");
    assert_said(
        &ends(&mut replica(&directory, 1)),
        77,
        &["can be read", "chmod 600"],
    );

    let edited = text.replacen("127.0.0.1", "127.0.0.2", 1);
    fs::write(&group, edited).expect("the file is edited");
    assert_said(
        &ends(&mut replica(&directory, 0)),
        78,
        &["line", "changed after it was made"],
    );
    fs::write(&group, text.replacen("address", "adress", 1)).expect("the file is edited");
    assert_said(
        &ends(&mut replica(&directory, 0)),
        78,
        &["group.toml", "adress"],
    );

    let id = text.lines().find(|line| line.starts_with("id = "));
    let without_id = text.replacen(id.expect("an id"), "", 1);
    fs::write(&group, without_id).expect("the file is edited");
    let part = ["not a whole group file", "quorate init", "`id`"];
    assert_said(&ends(quorate().arg("status").arg(&group)), 2, &part);
    let other = ["/etc/passwd is no group file", "group.toml"];
    let other_file = ends(quorate().args(["status", "/etc/passwd"]));
    assert_said(&other_file, 2, &other);
    assert!(
        !other_file.stderr.contains("root"),
        "another's file is shown"
    );

    let unmounted = ends(quorate().arg("umount").arg(place.path()));
    assert_said(&unmounted, 1, &["nothing is mounted"]);
    assert_said(&ends(quorate().arg("frobnicate")), 2, &["frobnicate"]);
}

/// A port that another has, and a directory of another group, are refused before anything is written.
#[test]
fn replicas_do_not_get_mixed_up() {
    let place = scratch();
    let (one, two) = (place.path().join("one"), place.path().join("two"));
    init(&one);
    init(&two);
    let group = fs::read_to_string(one.join("group.toml")).expect("the group file");
    let port = group
        .split("127.0.0.1:")
        .nth(1)
        .and_then(|rest| rest.split('"').next());
    let address = format!("127.0.0.1:{}", port.expect("a port"));
    let listener = std::net::TcpListener::bind(&address).expect("the port is free");
    assert_said(&ends(&mut replica(&one, 0)), 69, &["is in use", &address]);
    drop(listener);

    let other = ends(replica(&one, 0).arg("--data").arg(two.join("replica-0")));
    assert_said(&other, 78, &["belongs to another group", "--data"]);
}

/// A replica whose directory is gone does not begin as a new one, nor by itself as one that has lost it: the directory may be
/// elsewhere. And where nothing is lost there is nothing to make again.
#[test]
fn a_replica_that_has_lost_its_memory_is_not_new() {
    let mut group = Group::start();
    group.kill_all();
    let own = |id: u8| group.directory().join(format!("replica-{id}"));
    let with = |id: u8, option: &str| ends(replica(group.directory(), id).arg(option));

    assert_said(
        &with(0, "--first-start"),
        78,
        &["has run", "leave --first-start away"],
    );
    assert_said(
        &with(0, "--lost-disk"),
        78,
        &["is there", "leave --lost-disk away"],
    );
    // What can't be read is not taken for lost.
    let segment = own(1).join("log/0000000000000001.wal");
    fs::rename(&segment, own(1).join("log/elsewhere")).expect("a segment");
    fs::create_dir(&segment).expect("a directory");
    let words = ["0000000000000001.wal", "Check the disk"];
    assert_said(&ends(&mut replica(group.directory(), 1)), 74, &words);
    fs::remove_dir_all(own(2).join("log")).expect("a log");
    assert_said(&with(2, "--first-start"), 78, &["has run"]);
    let key = fs::read(own(3).join("key")).expect("a key");
    fs::remove_dir_all(own(3)).expect("a directory");
    fs::create_dir(own(3)).expect("a directory");
    fs::write(own(3).join("key"), key).expect("a key");
    fs::set_permissions(own(3).join("key"), fs::Permissions::from_mode(0o600)).expect("a mode");
    let words = [
        "has no mark",
        "quorate recover N",
        "no more than 1",
        "--data",
        "--first-start",
        "--lost-disk",
    ];
    assert_said(&ends(&mut replica(group.directory(), 3)), 65, &words);
    // A mark that is damaged is that of no other group.
    fs::write(own(2).join("group-id"), b"").expect("a mark");
    let words = ["has no whole mark", "--lost-disk"];
    assert_said(&ends(&mut replica(group.directory(), 2)), 65, &words);
}

/// A group of one has nobody who knows what it has lost.
#[test]
fn a_group_of_one_does_not_heal() {
    let mut group = Setup::new(1).start();
    group.kill(0);
    fs::remove_dir_all(group.directory().join("replica-0/log")).expect("a log");
    let ended = ends(&mut replica(group.directory(), 0));
    assert_said(&ended, 65, &["is gone", "nobody who could help"]);
}

/// A replica that is set up by hand, with no more than its key and the group file, is told so once.
#[test]
fn a_first_start_makes_the_directory() {
    let place = scratch();
    let directory = place.path().join("group");
    init(&directory);
    let data = place.path().join("data");
    let start = |options: &[&str]| {
        let mut command = replica(&directory, 0);
        command.arg("--data").arg(&data).args(options);
        command
    };
    assert_said(
        &ends(&mut start(&[])),
        65,
        &["has no mark", "--first-start"],
    );
    for options in [["--first-start"].as_slice(), &[]] {
        let mut child = start(options)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the process starts");
        eventually("the replica has its log", || {
            let mark = fs::read_to_string(data.join("group-id")).unwrap_or_default();
            mark.lines().count() == 1
        });
        end(&mut child);
    }
}

/// Interrupts a process and waits until it has ended in order.
fn end(child: &mut Child) {
    // Before it has set up its handlers, the signal would kill it.
    eventually("the process ends", || {
        let _ = kill_process(Pid::from_child(child), Signal::INT);
        child
            .try_wait()
            .expect("a child can be waited for")
            .is_some()
    });
}

/// What `status` says and how it exits: of a whole group, of one that lacks a replica, and of one that lacks two.
#[test]
fn status_tells_how_the_group_is() {
    let mut group = Group::start();
    group.wait_until_they_agree(&[0, 1, 2, 3]);
    eventually("all is whole", || group.status().code == 0);
    let text = run(quorate().args(["status", "--json"]).arg(group.file()));
    let json: Value = serde_json::from_str(&text).expect("JSON");
    let fields = |value: &Value| -> Vec<String> {
        value
            .as_object()
            .expect("an object")
            .keys()
            .cloned()
            .collect()
    };
    assert_eq!(
        fields(&json),
        ["f", "group", "n", "recovery", "replicas", "state"]
    );
    let expected = [
        "active",
        "address",
        "answers",
        "check",
        "clients",
        "clients_put_aside",
        "committed",
        "executed",
        "fault",
        "fetching",
        "id",
        "keys",
        "lag",
        "links",
        "primary",
        "recoveries",
        "recovering",
        "recovering_up_to",
        "recovery_intended",
        "root",
        "root_differs",
        "stable",
        "steps",
        "uptime_ms",
        "view",
        "view_changes",
        "went_back",
    ];
    assert_eq!(fields(&json["replicas"][0]), expected);
    assert_eq!(
        (&json["n"], &json["f"], &json["state"]),
        (&4.into(), &1.into(), &"whole".into())
    );
    let text = run(quorate().arg("status").arg(group.file()));
    assert!(
        text.contains("whole") && text.lines().count() >= 6,
        "{text}"
    );

    group.kill(3);
    let status = group.status();
    assert_eq!(
        (status.code, status.state.as_str()),
        (1, "degraded"),
        "{status:?}"
    );
    assert!(!status.replicas[3].answers && status.replicas[2].answers);
    group.kill(2);
    let status = group.status();
    assert_eq!(
        (status.code, status.state.as_str()),
        (2, "down"),
        "{status:?}"
    );
}

/// A mount needs a directory, and one that is free.
#[test]
fn mounts_need_a_free_directory() {
    if !require_fuse() {
        return;
    }
    let group = Group::start();
    let mount = group.mount();
    let place = scratch();
    let file = place.path().join("file");
    fs::write(&file, b"").expect("a file");
    let onto = |place: &Path| ends(quorate().arg("mount").arg(group.file()).arg(place));
    assert_said(&onto(&file), 1, &["is not a directory"]);
    assert_said(&onto(&place.path().join("nothing")), 1, &["does not exist"]);
    assert_said(
        &onto(mount.path()),
        1,
        &["is mounted already", "quorate umount"],
    );

    fs::write(mount.at("file"), b"").expect("a file");
    let open = fs::File::open(mount.at("file")).expect("the file");
    let busy = ends(quorate().arg("umount").arg(mount.path()));
    assert_said(&busy, 1, &["is in use"]);
    drop(open);
    let mut mount = mount;
    run(quorate().arg("umount").arg(mount.path()));
    assert!(!is_mounted(mount.path()));
    let status = mount
        .wait()
        .expect("the mount's process ends with the mount");
    assert!(status.success());
}

/// With too few replicas, calls wait and nothing is made up; when enough are there, they go on.
#[test]
fn too_few_replicas_make_calls_wait() {
    if !require_fuse() {
        return;
    }
    let mut group = Group::start();
    let mount = group.mount();
    group.kill(1);
    group.kill(2);
    // Another process: see the writer in `power_cut`.
    let mut shell = program("sh");
    shell
        .args(["-c", "printf 'at last' > \"$0\""])
        .arg(mount.at("file"));
    let mut waiting = shell.spawn().expect("a shell");
    std::thread::sleep(std::time::Duration::from_secs(2));
    let done = waiting.try_wait().expect("a child can be waited for");
    assert!(done.is_none(), "two of four replicas agreed on a write");
    group.start_replica(1);
    eventually("the write goes on", || {
        waiting
            .try_wait()
            .expect("a child can be waited for")
            .is_some_and(|s| s.success())
    });
    group.start_replica(2);
    assert_eq!(fs::read(mount.at("file")).expect("the file"), b"at last");
    mount.unmount();
    group.wait_until_they_agree(&[0, 1, 2, 3]);
}
