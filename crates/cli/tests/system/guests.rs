//! Outsiders: whom the group file does not name, who mount by credentials, and who lose what they had.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use rustix::fs::{Access, OFlags, access, fcntl_setfl};
use serde_json::Value;

use crate::command_line::{assert_said, ends};
use crate::harness::{
    Group, Mount, Setup, eventually, free_ports, program, quorate, require_fuse, run, scratch,
};
use crate::nfs::Server;

/// A group with an owner, a directory that all may write to, and a place for keys and credentials.
pub struct Scene {
    pub group: Group,
    pub mount: Mount,
    place: tempfile::TempDir,
}

impl Scene {
    pub fn new() -> Scene {
        let group = Setup::new(4).owner().start();
        let mount = group.mount();
        fs::create_dir(mount.at("shared")).expect("a directory");
        open_to_all(&mount.at("shared"));
        fs::write(mount.at("private"), "mine").expect("a file");
        let place = scratch();
        Scene {
            group,
            mount,
            place,
        }
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// A new key file's public key.
    pub fn key(&self, name: &str) -> String {
        let made = run(quorate().arg("keygen").arg(self.at(name)));
        made.trim().to_string()
    }

    /// The owner grants something on the member's mount.
    pub fn grant(&self, path: &str, to: &str, more: &[&str], file: &str) {
        let mut command = quorate();
        command.arg("grant").arg(self.mount.at(path));
        command
            .args(["--to", to, "--until", "2999-01-31"])
            .args(more);
        command.arg("--group").arg(self.group.file());
        fs::write(self.at(file), run(&mut command)).expect("a file");
    }

    fn delegate(&self, file: &str, key: &str, to: &str, rights: &str, into: &str) {
        let mut command = quorate();
        command.arg("delegate").arg(self.at(file));
        command.arg("--key").arg(self.at(key));
        command.args(["--to", to, "--rights", rights]);
        fs::write(self.at(into), run(&mut command)).expect("a file");
    }

    pub fn mount_as(&self, key: &str, credential: &str) -> Mount {
        Mount::of_guest(&self.group, &self.at(key), &[&self.at(credential)])
    }

    /// A command about what is shared, as the owner.
    fn about(&self, name: &str) -> Command {
        let mut command = quorate();
        command.arg(name).arg("--group").arg(self.group.file());
        command
    }

    fn rows(&self, name: &str) -> Vec<Value> {
        let said = run(self.about(name).arg("--json"));
        let lines = said.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().expect("JSON")
    }
}

pub fn open_to_all(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o777)).expect("a mode");
}

pub fn kind<T>(result: io::Result<T>) -> Option<ErrorKind> {
    result.err().map(|e| e.kind())
}

/// Bob, who is not in the group file, has a directory by his credential and nothing else; Carol a part of it by his. A copy is worth nothing. When
/// it is taken back, files that are open stop working, his and hers; and all of this is told.
#[test]
fn an_outsider_is_let_in_and_out() {
    if !require_fuse() {
        return;
    }
    let scene = Scene::new();
    let (bob, carol) = (scene.key("bob.key"), scene.key("carol.key"));
    scene.key("thief.key");
    let terms = ["--rights", "rw", "--depth", "1", "--caveat", "tag=bob"];
    scene.grant("shared", &bob, &terms, "bob.cred");
    scene.delegate("bob.cred", "bob.key", &carol, "r", "carol.cred");

    let his = scene.mount_as("bob.key", "bob.cred");
    fs::write(his.at("plan"), "by bob").expect("he may write");
    let seen = fs::read(scene.mount.at("shared/plan")).expect("the owner sees it");
    assert_eq!(seen, b"by bob");
    assert!(!his.at("private").exists(), "his root is what was shared");
    let names = fs::read_dir(his.path()).expect("he may list");
    assert_eq!(names.count(), 1);

    let hers = scene.mount_as("carol.key", "carol.cred");
    let read = fs::read(hers.at("plan")).expect("she may read");
    assert_eq!(read, b"by bob");
    let refused = kind(fs::write(hers.at("plan"), "by carol"));
    assert_eq!(refused, Some(ErrorKind::PermissionDenied));
    let refused = kind(fs::remove_file(hers.at("plan")));
    assert_eq!(refused, Some(ErrorKind::PermissionDenied));

    let mut stolen = quorate();
    stolen
        .arg("mount")
        .arg(scene.group.file())
        .arg(scene.place.path());
    stolen.arg("--key").arg(scene.at("thief.key"));
    stolen.arg("--credential").arg(scene.at("bob.cred"));
    assert_said(
        &ends(&mut stolen),
        1,
        &["a copy is worth nothing without its key"],
    );
    let mut nobody = quorate();
    nobody
        .arg("mount")
        .arg(scene.group.file())
        .arg(scene.place.path());
    nobody.arg("--key").arg(scene.at("thief.key"));
    assert_said(&ends(&mut nobody), 1, &["--credential"]);

    let rows = scene.rows("shares");
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert!(
        rows.iter().all(|row| row["state"] == "in force"),
        "{rows:?}"
    );

    // She sees what she has herself, and nothing that he has.
    let mut own = scene.about("shares");
    own.arg("--key").arg(scene.at("carol.key"));
    assert_said(&ends(&mut own), 1, &["--credential"]);
    own.arg("--credential").arg(scene.at("carol.cred"));
    let rows = run(own.arg("--json"));
    let rows: Vec<Value> = rows.lines().flat_map(serde_json::from_str).collect();
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(rows[0]["subject"], carol.as_str(), "{rows:?}");
    assert_eq!(rows[0]["state"], "in force", "{rows:?}");
    assert_eq!(rows[0]["path"], Value::Null, "{rows:?}");

    // He sees what he has, and what was passed on from it.
    let listed = || {
        let mut his = scene.about("shares");
        his.arg("--key").arg(scene.at("bob.key"));
        his.arg("--credential").arg(scene.at("bob.cred"));
        his
    };
    let rows = run(listed().arg("--json"));
    let rows: Vec<Value> = rows.lines().flat_map(serde_json::from_str).collect();
    let subjects: Vec<_> = rows.iter().map(|row| row["subject"].as_str()).collect();
    assert_eq!(subjects, [Some(&*bob), Some(&*carol)], "{rows:?}");
    assert_eq!(rows[1]["state"], "in force", "{rows:?}");
    assert_eq!(rows[1]["path"], Value::Null, "{rows:?}");
    let serial = rows[1]["links"][1]["serial"].as_str().expect("a serial");
    let table = run(&mut listed());
    let hers_in_it = table.lines().find(|line| line.starts_with(&carol[..16]));
    let hers_in_it = hers_in_it.expect("a row");
    assert!(
        hers_in_it.contains(&format!("serial {serial}; by {}", &bob[..16])),
        "{table}"
    );

    let mut open = OpenOptions::new()
        .append(true)
        .open(his.at("plan"))
        .expect("it opens");
    open.write_all(b", again").expect("a write");
    open.sync_all().expect("it is at the group");
    let as_bob = scene
        .about("revoke")
        .arg("--key")
        .arg(scene.at("bob.key"))
        .arg(scene.at("bob.cred"))
        .output();
    assert!(
        !as_bob.expect("it runs").status.success(),
        "only its owner takes it back"
    );
    run(scene.about("revoke").arg(scene.at("bob.cred")));
    let written = open
        .write_all(b", and again")
        .and_then(|()| open.sync_all());
    assert!(written.is_err(), "an open file stops working");
    drop(open);
    eventually("nobody reads any more", || {
        fs::read(his.at("plan")).is_err() && fs::read(hers.at("plan")).is_err()
    });
    let seen = fs::read(scene.mount.at("shared/plan")).expect("the owner has it");
    assert_eq!(seen, b"by bob, again");

    // What was brought is let go of by and by; that it was taken back is kept.
    let rows = scene.rows("shares");
    let (taken_back, brought): (Vec<_>, Vec<_>) =
        rows.iter().partition(|row| row["revoked"].is_object());
    assert_eq!(taken_back.len(), 1, "{rows:?}");
    assert!(
        brought.iter().all(|row| row["state"] == "revoked"),
        "{rows:?}"
    );
    let rows = scene.rows("audit");
    let did = |who: &str, what: &str, decision: &str| {
        rows.iter().any(|row| {
            row["subject"] == who && row["action"] == what && row["decision"] == decision
        })
    };
    assert!(did(&bob, "write", "allowed"), "{rows:?}");
    assert!(did(&bob, "write", "denied"), "{rows:?}");
    assert!(did(&bob, "bring", "allowed"), "{rows:?}");
    assert!(rows.iter().any(|row| row["tags"][0] == "bob"), "{rows:?}");
    let table = run(&mut scene.about("audit"));
    assert!(table.contains("DECISION"), "{table}");
    let link = rows
        .iter()
        .find(|row| row["subject"] == bob.as_str() && row["action"] == "write")
        .and_then(|row| row["links"].as_array()?.last())
        .expect("a link by which he has written");
    let serial = link["serial"].as_str().expect("a serial");
    let written = table.lines().filter(|line| line.contains("  write  "));
    let mut written = written.filter(|line| line.contains(&format!(" by {serial} of ")));
    assert!(written.next().is_some(), "{table}");
}

/// What the kernel has read of an open file it gives to nobody any more soon after the credential was taken back, or the file was moved out of what
/// is shared, also where nobody looks at the file meanwhile.
#[test]
fn what_was_read_before_is_not_read_again() {
    if !require_fuse() {
        return;
    }
    let scene = Scene::new();
    let bob = scene.key("bob.key");
    scene.grant("shared", &bob, &["--rights", "rw"], "bob.cred");
    let mount = scene.mount_as("bob.key", "bob.cred");
    let files = ["plan", "moved", "kept"].map(|name| {
        fs::write(scene.mount.at("shared").join(name), "by alice").expect("a file");
        File::open(mount.at(name)).expect("it opens")
    });
    let [plan, moved, kept] = &files;
    let read = |file: &File| {
        let mut page = [0; 8];
        file.read_exact_at(&mut page, 0).map(|()| page)
    };
    for file in &files {
        assert_eq!(&read(file).expect("he may read"), b"by alice");
    }
    // The group holds them by then, so that it is told nothing more of them.
    std::thread::sleep(Duration::from_secs(3));
    fs::rename(scene.mount.at("shared/moved"), scene.mount.at("moved")).expect("it is moved");
    eventually("what was moved out is not read any more", || {
        kind(read(moved)) == Some(ErrorKind::StaleNetworkFileHandle)
    });
    for file in [plan, kept] {
        assert_eq!(&read(file).expect("he may read"), b"by alice");
    }
    run(scene.about("revoke").arg(scene.at("bob.cred")));
    for file in [plan, kept] {
        eventually("what was taken back is not read any more", || {
            kind(read(file)) == Some(ErrorKind::PermissionDenied)
        });
    }
    drop(files);
    mount.unmount();
}

/// What a revocation took back comes again by itself when that is ended, on a mount that has been there all the time.
#[test]
fn what_is_given_back_comes_again() {
    if !require_fuse() {
        return;
    }
    let scene = Scene::new();
    let bob = scene.key("bob.key");
    fs::write(scene.mount.at("shared/plan"), "by alice").expect("a file");
    scene.grant("shared", &bob, &["--rights", "rw"], "bob.cred");
    let mount = scene.mount_as("bob.key", "bob.cred");
    let reads = || fs::read(mount.at("plan")).is_ok_and(|read| read == b"by alice");
    eventually("he reads", reads);
    run(scene.about("revoke").arg(scene.at("bob.cred")));
    eventually("the group has let go of it", || {
        let rows = scene.rows("shares");
        !reads() && rows.iter().all(|row| row["revoked"].is_object())
    });
    run(scene
        .about("revoke")
        .arg("--undo")
        .arg(scene.at("bob.cred")));
    eventually("he reads again", reads);
    mount.unmount();
}

/// What `ls -l` shows on a guest's mount is what it may: to whom nothing is given that writes, no mode says so, and so it is when it is tried.
#[test]
fn modes_are_what_a_guest_may() {
    if !require_fuse() {
        return;
    }
    let scene = Scene::new();
    let plan = scene.mount.at("shared/plan");
    fs::write(&plan, "by alice").expect("a file");
    fs::set_permissions(&plan, Permissions::from_mode(0o666)).expect("a mode");
    for (name, rights, writes) in [("bob", "r", false), ("carol", "rw", true)] {
        let [key, credential] = ["key", "cred"].map(|kind| format!("{name}.{kind}"));
        let public = scene.key(&key);
        scene.grant("shared", &public, &["--rights", rights], &credential);
        let mount = scene.mount_as(&key, &credential);
        for (path, mode) in [(mount.path().to_owned(), 0o777), (mount.at("plan"), 0o666)] {
            let shown = fs::metadata(&path).expect("attributes").permissions();
            let expected = if writes { mode } else { mode & !0o222 };
            assert_eq!(shown.mode() & 0o777, expected, "{name}: {}", path.display());
        }
        let tried = kind(fs::write(mount.at("plan"), format!("by {name}")));
        let made = kind(fs::write(mount.at(name), "new"));
        let refused = (!writes).then_some(ErrorKind::PermissionDenied);
        // Also where it is the superuser of this machine who asks.
        for path in [mount.path().to_owned(), mount.at("plan")] {
            let said = access(&path, Access::WRITE_OK).is_ok();
            assert_eq!(said, writes, "{name}: {}", path.display());
        }
        assert_eq!([tried, made], [refused, refused], "{name}");
        mount.unmount();
    }
    assert_eq!(fs::read(&plan).expect("a file"), b"by carol");
}

/// Whether a program of the machine is content with what it did.
fn succeeds(program: &str, arguments: &[&OsStr]) -> bool {
    let done = Command::new(program).args(arguments).output();
    done.expect("it runs").status.success()
}

/// Who may find, make and append has an inbox: logs in it grow, files are copied to new names, and nothing that is there is changed, read or listed;
/// whoever tries is told.
#[test]
fn who_may_append_has_an_inbox() {
    if !require_fuse() {
        return;
    }
    let scene = Scene::new();
    let bob = scene.key("bob.key");
    let rights = ["--rights", "lookup,create,append"];
    scene.grant("shared", &bob, &rights, "bob.cred");
    let log = scene.mount.at("shared/log");
    fs::write(&log, "0\n").expect("a file");
    fs::set_permissions(&log, Permissions::from_mode(0o666)).expect("a mode");
    let mount = scene.mount_as("bob.key", "bob.cred");
    for (name, line) in [("log", "1"), ("log", "2"), ("new", "1"), ("new", "2")] {
        let to = mount.at(name);
        let arguments = ["-c", "echo \"$0\" >> \"$1\"", line].map(OsStr::new);
        let arguments = [&arguments[..], &[to.as_os_str()]].concat();
        assert!(succeeds("sh", &arguments), "{line} to {name}");
    }
    // More than goes in one write: several are under way at once.
    let report: Vec<u8> = (0..6_000_001_u32).map(|n| (n % 251) as u8).collect();
    let (source, copied) = (scene.at("report"), mount.at("report"));
    fs::write(&source, &report).expect("a file");
    assert!(succeeds("cp", &[source.as_os_str(), copied.as_os_str()]));

    let onto = mount.at("log");
    assert!(!succeeds("cp", &[source.as_os_str(), onto.as_os_str()]));
    let [from, to] = [("if=", &source), ("of=", &onto)].map(|(word, path)| {
        let mut word = OsString::from(word);
        word.push(path);
        word
    });
    let arguments = ["conv=notrunc", "count=1"].map(OsStr::new);
    let arguments = [&arguments[..], &[&from, &to]].concat();
    assert!(!succeeds("dd", &arguments), "nothing is written over");
    let opened = |append| OpenOptions::new().write(true).append(append).open(&onto);
    for append in [false, true] {
        let file = opened(append).expect("it opens for who may append");
        fcntl_setfl(&file, OFlags::empty()).expect("it appends no more");
        let written = file.write_all_at(b"x", 0).and_then(|()| file.sync_all());
        assert_eq!(kind(written), Some(ErrorKind::PermissionDenied), "{append}");
    }
    let refused = Some(ErrorKind::PermissionDenied);
    assert_eq!(kind(File::open(&onto)), refused);
    assert_eq!(kind(fs::read_dir(mount.path())), refused);
    assert_eq!(kind(fs::remove_file(&onto)), refused);
    let shown = fs::metadata(&onto).expect("attributes").permissions();
    assert_eq!(shown.mode() & 0o777, 0o222);
    let [reads, writes] = [Access::READ_OK, Access::WRITE_OK].map(|how| access(&onto, how).is_ok());
    assert_eq!([reads, writes], [false, true]);
    mount.unmount();

    let read = |name: &str| fs::read(scene.mount.at("shared").join(name)).expect("a file");
    assert_eq!(read("log"), b"0\n1\n2\n");
    assert_eq!(read("new"), b"1\n2\n");
    assert!(read("report") == report, "it is what was copied");
}

/// Who may write and not change attributes is told so when it tries, and not when it closes what it has written.
#[test]
fn what_is_refused_is_told_at_once() {
    if !require_fuse() {
        return;
    }
    let scene = Scene::new();
    let plan = scene.mount.at("shared/plan");
    fs::write(&plan, "by alice").expect("a file");
    fs::set_permissions(&plan, Permissions::from_mode(0o666)).expect("a mode");
    let bob = scene.key("bob.key");
    let rights = ["--rights", "lookup,read,write"];
    scene.grant("shared", &bob, &rights, "bob.cred");
    let mount = scene.mount_as("bob.key", "bob.cred");
    let mut open = OpenOptions::new()
        .write(true)
        .open(mount.at("plan"))
        .expect("it opens");
    open.write_all(b"by bob").expect("a write");
    let refused = kind(open.set_permissions(Permissions::from_mode(0o777)));
    assert_eq!(refused, Some(ErrorKind::PermissionDenied));
    let refused = kind(open.set_modified(SystemTime::UNIX_EPOCH));
    assert_eq!(refused, Some(ErrorKind::PermissionDenied));
    open.sync_all().expect("nothing was lost");
    mount.unmount();
    assert_eq!(fs::read(&plan).expect("a file"), b"by bobce");
}

/// A credential that has just been signed holds on a machine whose clock is behind; and one that begins in a moment is waited for.
#[test]
fn clocks_differ() {
    if !require_fuse() {
        return;
    }
    let scene = Scene::new();
    let bob = scene.key("bob.key");
    scene.grant("shared", &bob, &["--rights", "r"], "now.cred");
    let verify = |file: &str, ago: i64| {
        let at = run(program("date").args(["-u", "+%FT%TZ", "-d", &format!("{ago} seconds")]));
        let mut command = quorate();
        command.args(["credential", "verify", "--at", at.trim()]);
        command.arg("--group").arg(scene.group.file());
        ends(command.arg(scene.at(file))).status.success()
    };
    assert!(verify("now.cred", -30) && !verify("now.cred", -600));

    let soon = run(program("date").args(["-u", "+%FT%TZ", "-d", "5 seconds"]));
    let terms = ["--rights", "r", "--from", soon.trim()];
    scene.grant("shared", &bob, &terms, "soon.cred");
    let mount = scene.mount_as("bob.key", "soon.cred");
    assert_eq!(fs::read_dir(mount.path()).expect("he may list").count(), 0);
    mount.unmount();
    let later = run(program("date").args(["-u", "+%FT%TZ", "-d", "1 day"]));
    let terms = ["--rights", "r", "--from", later.trim()];
    scene.grant("shared", &bob, &terms, "later.cred");
    let mut command = quorate();
    command
        .arg("mount")
        .arg(scene.group.file())
        .arg(scene.place.path());
    command.arg("--key").arg(scene.at("bob.key"));
    command.arg("--credential").arg(scene.at("later.cred"));
    assert_said(&ends(&mut command), 1, &["does not hold before"]);
}

/// A front for NFS as the holder of a credential serves what that is about, to a client that knows nothing of either.
#[test]
fn a_guest_serves_nfs() {
    if !require_fuse() {
        return;
    }
    let scene = Scene::new();
    let bob = scene.key("bob.key");
    fs::write(scene.mount.at("shared/plan"), "by alice").expect("a file");
    scene.grant("shared", &bob, &["--rights", "rw"], "bob.cred");
    let [port] = free_ports(1)[..] else {
        panic!("one port");
    };
    let (key, credential) = (scene.at("bob.key"), scene.at("bob.cred"));
    let server = Server::of_guest(&scene.group, port, &key, &credential);
    let listed = run(program("nfs-ls").arg(server.url("")));
    assert!(
        listed.contains("plan") && !listed.contains("private"),
        "{listed}"
    );
    assert_eq!(run(program("nfs-cat").arg(server.url("plan"))), "by alice");
    fs::write(scene.at("new"), "by bob").expect("a file");
    run(program("nfs-cp")
        .arg(scene.at("new"))
        .arg(server.url("new")));
    let seen = fs::read(scene.mount.at("shared/new")).expect("the owner sees it");
    assert_eq!(seen, b"by bob");
    run(scene.about("revoke").arg(&credential));
    let refused = program("nfs-cat").arg(server.url("plan")).output();
    assert!(!refused.expect("it runs").status.success(), "it is over");

    // One file is no directory to serve.
    scene.grant("private", &bob, &["--rights", "r"], "file.cred");
    let mut command = quorate();
    command
        .arg("nfs")
        .arg(scene.group.file())
        .arg("--key")
        .arg(&key);
    command.arg("--credential").arg(scene.at("file.cred"));
    command.args(["--listen", "127.0.0.1:0"]);
    assert_said(&ends(&mut command), 1, &["about a directory"]);
}

/// A mount looks for credentials in a directory: what comes is there, and what is taken away is gone, without a new mount.
#[test]
fn credentials_are_picked_up_as_they_come() {
    if !require_fuse() {
        return;
    }
    let scene = Scene::new();
    let bob = scene.key("bob.key");
    fs::create_dir(scene.at("mine")).expect("a directory");
    scene.grant("shared", &bob, &["--rights", "rw"], "mine/work.cred");
    let mount = scene.mount_as("bob.key", "mine");
    fs::write(mount.at("work/plan"), "by bob").expect("he may write");
    let refused = kind(fs::write(mount.at("elsewhere"), "nothing"));
    assert_eq!(
        refused,
        Some(ErrorKind::PermissionDenied),
        "the root holds nothing but what is shared"
    );

    fs::create_dir(scene.mount.at("more")).expect("a directory");
    fs::write(scene.mount.at("more/notes"), "from alice").expect("a file");
    scene.grant("more", &bob, &["--rights", "r"], "mine/notes.cred");
    eventually("the second credential is there", || {
        fs::read(mount.at("notes/notes")).is_ok_and(|read| read == b"from alice")
    });
    let names = fs::read_dir(mount.path()).expect("a listing");
    assert_eq!(names.count(), 2);
    let refused = kind(fs::write(mount.at("notes/notes"), "by bob"));
    assert_eq!(refused, Some(ErrorKind::PermissionDenied));

    fs::remove_file(scene.at("mine/work.cred")).expect("it was there");
    eventually("the first credential is gone", || {
        !mount.at("work").exists()
    });
    mount.unmount();
}

/// A mount of a directory without credentials is empty, and one file that is shared is a file in it when its credential comes.
#[test]
fn an_empty_mount_waits_for_credentials() {
    if !require_fuse() {
        return;
    }
    let scene = Scene::new();
    let bob = scene.key("bob.key");
    fs::create_dir(scene.at("mine")).expect("a directory");
    let mount = scene.mount_as("bob.key", "mine");
    let listed = || fs::read_dir(mount.path()).expect("a listing");
    assert_eq!(listed().count(), 0);
    scene.grant("private", &bob, &["--rights", "r"], "bob.cred");
    fs::rename(scene.at("bob.cred"), scene.at("mine/letter.cred")).expect("it comes");
    eventually("the file is there", || {
        fs::read(mount.at("letter")).is_ok_and(|read| read == b"mine")
    });
    let kinds: Vec<bool> = listed()
        .map(|entry| entry.and_then(|entry| entry.file_type()))
        .map(|kind| kind.expect("a kind").is_file())
        .collect();
    assert_eq!(kinds, [true], "it is shown as a file");
    let rows = scene.rows("shares");
    assert_eq!(rows[0]["path"], "private", "{rows:?}");
    mount.unmount();
}

/// Each way of taking back takes back what it says, and nothing beside: by who passed it on, by key, by the serials of one's own or of somebody else's
/// links. What was done can be exported and is checked without the group.
#[test]
fn what_is_taken_back_is_what_was_said() {
    if !require_fuse() {
        return;
    }
    let scene = Scene::new();
    let guests = ["bob", "carol", "dave", "erin"];
    let [bob, carol, dave, erin] = guests.map(|name| scene.key(&format!("{name}.key")));
    fs::write(scene.mount.at("shared/plan"), "by alice").expect("a file");
    let all = ["--rights", "rw,delegate,revoke", "--depth", "3"];
    scene.grant("shared", &bob, &all, "bob.cred");
    for (name, to) in [("carol", &carol), ("dave", &dave), ("erin", &erin)] {
        scene.delegate("bob.cred", "bob.key", to, "r", &format!("{name}.cred"));
    }
    let mounts = guests.map(|name| scene.mount_as(&format!("{name}.key"), &format!("{name}.cred")));
    let reads = || {
        mounts
            .each_ref()
            .map(|mount| fs::read(mount.at("plan")).is_ok())
    };
    assert_eq!(reads(), [true; 4]);

    // Bob, what he has passed on; not as Carol, to whom it was.
    let by = |who: &str, args: &[&str]| {
        let mut command = scene.about("revoke");
        command.arg("--key").arg(scene.at(&format!("{who}.key")));
        command.arg("--by").arg(scene.at(&format!("{who}.cred")));
        command.args(args);
        command
    };
    let carols = scene.at("carol.cred").display().to_string();
    assert_said(&ends(&mut by("carol", &[&carols])), 1, &["revoking"]);
    run(&mut by("bob", &[&carols]));
    eventually("Carol is out", || reads() == [true, false, true, true]);

    run(scene.about("revoke").args(["--holder", &dave]));
    eventually("Dave is out", || reads() == [true, false, false, true]);

    // An epoch of the owner's own serials: those so far. Bob's, and with it all below.
    let shown = run(quorate()
        .args(["credential", "show", "--json"])
        .arg(scene.at("erin.cred")));
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    let serial = |link: usize| {
        let text = shown["links"][link]["serial"].as_str().expect("a serial");
        text.parse::<u64>().expect("a number")
    };
    let epoch = (serial(1) + 1).to_string();
    let lower = serial(1).to_string();
    run(scene
        .about("revoke")
        .args(["--epoch", &lower, "--issuer", &carol]));
    assert_eq!(
        reads(),
        [true, false, false, true],
        "Carol has issued nothing"
    );
    run(scene
        .about("revoke")
        .args(["--epoch", &epoch, "--issuer", &bob]));
    eventually("all that Bob has passed on is out", || {
        reads() == [true, false, false, false]
    });
    let epoch = (serial(0) + 1).to_string();
    run(scene.about("revoke").args(["--epoch", &epoch]));
    eventually("so is Bob", || reads() == [false; 4]);

    let exported = run(scene.about("audit").arg("--json"));
    fs::write(scene.at("audit.jsonl"), &exported).expect("a file");
    let verify = || {
        let mut command = quorate();
        command
            .args(["audit", "verify"])
            .arg(scene.at("audit.jsonl"));
        command
    };
    let said = run(&mut verify());
    let head = said.trim().rsplit(' ').next().expect("a head").to_string();
    run(verify().args(["--head", &head]));
    assert_said(&ends(verify().args(["--head", &bob])), 1, &["its head is"]);
    let changed = exported.replacen("\"revoke\"", "\"write\"", 1);
    fs::write(scene.at("audit.jsonl"), changed).expect("a file");
    assert_said(&ends(&mut verify()), 1, &["its words"]);
    let changed = exported.replacen(&dave, &erin, 1);
    fs::write(scene.at("audit.jsonl"), changed).expect("a file");
    assert_said(&ends(&mut verify()), 1, &["not bound"]);
}
