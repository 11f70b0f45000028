//! ACLs on real mounts, by the programs that people use for them: `setfacl` and `getfacl`.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::{Group, Mount, can_mount};
use rustix::fs::{XattrFlags, setxattr};

const OWNER: u32 = 1234;
const FRIEND: u32 = 1235;
const STRANGER: u32 = 1236;

/// What a program says, which has to succeed.
fn run(program: &str, arguments: &[&str], path: &Path) -> String {
    let output = Command::new(program).args(arguments).arg(path).output();
    let output = output.unwrap_or_else(|e| panic!("{program}: {e}; it is in the package acl"));
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
    String::from_utf8(output.stdout).unwrap()
}

fn setfacl(arguments: &[&str], path: &Path) {
    run("setfacl", arguments, path);
}

/// The entries of an ACL, without comments and without what the mask leaves of each.
fn getfacl(path: &Path) -> Vec<String> {
    let options = [
        "--omit-header",
        "--numeric",
        "--absolute-names",
        "--no-effective",
    ];
    let text = run("getfacl", &options, path);
    let lines = text.lines().filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}

/// Whether a user, with no group but the own one, gets a command done in a directory.
fn can(uid: u32, dir: &Path, command: &str) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).current_dir(dir);
    let output = shell.uid(uid).gid(uid).output().unwrap();
    println!("{uid}: {command}: {output:?}");
    output.status.success()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// A directory of the owner's that everybody may enter, on a mount that everybody may enter.
fn owned(m: &Mount) -> PathBuf {
    let dir = m.path("d");
    fs::create_dir(&dir).unwrap();
    chown(&dir, Some(OWNER), Some(OWNER)).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
    dir
}

/// Users get what the ACL says, and no more; chmod changes the mask, and what is removed is gone.
#[test]
fn users_get_what_the_acl_says() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    let dir = owned(&m);
    let file = dir.join("f");
    assert!(can(OWNER, &dir, "umask 077; echo text > f"));
    assert!(!can(FRIEND, &dir, "cat f"));
    let by_owner = format!("setfacl -m u:{FRIEND}:rw f");
    assert!(!can(FRIEND, &dir, &by_owner));
    assert!(can(OWNER, &dir, &by_owner));
    assert!(can(FRIEND, &dir, "cat f && echo more >> f"));
    assert!(!can(STRANGER, &dir, "cat f"));
    let friend = format!("user:{FRIEND}:rw-");
    assert_eq!(
        getfacl(&file),
        [
            "user::rw-",
            &friend,
            "group::---",
            "mask::rw-",
            "other::---"
        ]
    );
    assert_eq!(mode(&file), 0o660);
    let listed = run("ls", &["-l"], &dir);
    assert!(listed.contains("-rw-rw----+"), "{listed}");

    // The group's bits are the mask.
    fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
    assert!(can(FRIEND, &dir, "cat f"));
    assert!(!can(FRIEND, &dir, "echo more >> f"));
    assert_eq!(getfacl(&file)[3], "mask::r--");
    // A group's member gets what its entry says, and names count before groups.
    setfacl(&["-m", &format!("g:{STRANGER}:r,u:{FRIEND}:-")], &file);
    assert!(can(STRANGER, &dir, "cat f"));
    assert!(!can(FRIEND, &dir, "cat f"));

    setfacl(&["-b"], &file);
    assert_eq!(getfacl(&file), ["user::rw-", "group::---", "other::---"]);
    assert_eq!(mode(&file), 0o600);
    assert!(!can(STRANGER, &dir, "cat f"));
    let listed = run("ls", &["-l"], &dir);
    assert!(!listed.contains('+'), "{listed}");
}

/// What is made in a directory with a default ACL has that, whatever the umask; elsewhere the umask counts.
#[test]
fn a_default_acl_is_inherited() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    let dir = owned(&m);
    let make = "umask 027; echo text > f$N; mkdir d$N; mkfifo p$N";
    assert!(can(OWNER, &dir, &format!("N=1; {make}")));
    assert_eq!(mode(&dir.join("f1")), 0o640);
    assert_eq!(mode(&dir.join("d1")), 0o750);
    assert_eq!(mode(&dir.join("p1")), 0o640);

    setfacl(&["-d", "-m", &format!("u:{FRIEND}:rwx,o:-")], &dir);
    assert!(can(OWNER, &dir, &format!("N=2; {make}")));
    for (name, expected) in [("f2", 0o660), ("p2", 0o660), ("d2", 0o770)] {
        assert_eq!(mode(&dir.join(name)), expected, "{name}");
    }
    let friend = format!("user:{FRIEND}:rwx");
    let file = [
        "user::rw-",
        &friend,
        "group::r-x",
        "mask::rw-",
        "other::---",
    ];
    assert_eq!(getfacl(&dir.join("f2")), file);
    let below = getfacl(&dir.join("d2"));
    assert_eq!(
        below[..5],
        [
            "user::rwx",
            &friend,
            "group::r-x",
            "mask::rwx",
            "other::---"
        ]
    );
    let defaults: Vec<_> = below[..5].iter().map(|e| format!("default:{e}")).collect();
    assert_eq!(below[5..], defaults);
    assert!(can(
        FRIEND,
        &dir,
        "cat f2 && echo more >> f2 && echo new > d2/own"
    ));
    assert!(!can(STRANGER, &dir, "cat f2"));
    assert!(!can(STRANGER, &dir, "ls d2"));

    setfacl(&["-k"], &dir);
    assert!(can(OWNER, &dir, &format!("N=3; {make}")));
    assert_eq!(mode(&dir.join("f3")), 0o640);
    assert_eq!(getfacl(&dir).len(), 3);
}

/// Copies keep ACLs; another mount shows them; symbolic links have none, and what is no ACL is refused.
#[test]
fn acls_are_kept_as_elsewhere() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    let dir = owned(&a);
    let file = dir.join("f");
    fs::write(&file, b"text").unwrap();
    setfacl(&["-m", &format!("u:{FRIEND}:r,g:{STRANGER}:x")], &file);
    let acl = getfacl(&file);
    assert_eq!(getfacl(&b.path("d/f")), acl);
    run("cp", &["-a", file.to_str().unwrap()], &dir.join("copy"));
    assert_eq!(getfacl(&dir.join("copy")), acl);
    // What the other mount sets is seen here once attributes are asked for again.
    setfacl(&["-m", &format!("u:{FRIEND}:rw")], &b.path("d/f"));
    std::thread::sleep(Duration::from_millis(1100));
    assert!(can(FRIEND, &dir, "echo more >> f"));

    std::os::unix::fs::symlink("f", dir.join("link")).unwrap();
    let set = |path: &Path, name: &str, value: &[u8]| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::lsetxattr(path, name, value, flags)
    };
    let access = "system.posix_acl_access";
    let minimal = b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x04\0\x05\0\xff\xff\xff\xff\x20\0\x05\0\xff\xff\xff\xff";
    let refused = set(&dir.join("link"), access, minimal);
    assert_eq!(refused, Err(rustix::io::Errno::OPNOTSUPP));
    let refused = set(&file, access, &minimal[..20]);
    assert_eq!(refused, Err(rustix::io::Errno::INVAL));
    let refused = set(&file, "system.posix_acl_default", minimal);
    assert_eq!(refused, Err(rustix::io::Errno::ACCESS));
    set(&file, access, minimal).unwrap();
    assert_eq!(mode(&file), 0o755);
    assert_eq!(getfacl(&file), ["user::rwx", "group::r-x", "other::r-x"]);
}

/// Mode bits that are written back meet the ACL in the order in which programs have set the two.
#[test]
fn modes_that_wait_come_before_acls() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    let path = m.path("f");
    let mut file = File::create(&path).unwrap();
    file.write_all(b"text").unwrap();
    file.set_permissions(Permissions::from_mode(0o600)).unwrap();
    // Takes nobody's rights away, so it may wait for the close.
    file.set_permissions(Permissions::from_mode(0o666)).unwrap();
    assert_eq!(getfacl(&path), ["user::rw-", "group::rw-", "other::rw-"]);
    file.set_permissions(Permissions::from_mode(0o676)).unwrap();
    setfacl(&["-m", &format!("u:{FRIEND}:rw,m:rw,o:-")], &path);
    assert_eq!(mode(&path), 0o660);
    // Takes rights away that the file has only had since the ACL was set.
    file.set_permissions(Permissions::from_mode(0o640)).unwrap();
    assert!(!can(FRIEND, m.dir(), "echo x > f"));
    assert!(can(FRIEND, m.dir(), "cat f"));
    drop(file);
    assert_eq!(mode(&path), 0o640);
    assert_eq!(getfacl(&path)[3], "mask::r--");
}

/// What has no ACL costs no question after its attributes: neither who lists it nor who uses what is another's asks the group.
#[test]
fn what_has_no_acl_is_not_asked_for() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let m = group.mount(1);
    let dir = owned(&m);
    for n in 0..50 {
        fs::write(dir.join(format!("f{n}")), b"text").unwrap();
    }
    setfacl(&["-m", &format!("u:{FRIEND}:r")], &dir.join("f7"));
    // From now on what is known is from attributes alone.
    std::thread::sleep(Duration::from_millis(1100));
    group.kinds.take();
    let listed = run("ls", &["-l"], &dir);
    assert_eq!(listed.matches('+').count(), 1, "{listed}");
    assert!(can(STRANGER, &dir, "cat f1 f2 f3"));
    let asked = group.kinds.take();
    let (asks, looks) = (asked.get("GetXattr"), asked.get("ListXattr"));
    let questions = asks.unwrap_or(&0) + looks.unwrap_or(&0);
    assert!(questions < 10, "{asked:?}");
}

/// A mode that waits to be set on an open file widens no mask of an ACL that another mount has set since; other attributes do not keep it from being set.
#[test]
fn a_mode_that_waits_widens_no_mask() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (group.mount(1), group.mount(2));
    // Owner, a user, group, mask and others: tag, permissions, and whom it is about.
    let entries = [
        (1, 6, !0),
        (2, 6, FRIEND),
        (4, 4, !0),
        (16, 4, !0),
        (32, 4, !0),
    ];
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        acl.extend([tag, 0, permissions, 0]);
        acl.extend(u32::to_le_bytes(id));
    }
    for (name, with_acl) in [("f", true), ("g", false)] {
        let mut file = File::create(a.path(name)).unwrap();
        file.write_all(b"text").unwrap();
        file.set_permissions(Permissions::from_mode(0o664)).unwrap();
        // Not by a program: where one is started, what waits is sent, as at a close.
        let (attribute, value) = match with_acl {
            true => ("system.posix_acl_access", &acl[..]),
            false => ("user.x", &b"y"[..]),
        };
        setxattr(b.path(name), attribute, value, XattrFlags::empty()).unwrap();
        drop(file);
        let now = fs::metadata(a.path(name)).unwrap();
        let bits = if with_acl { 0o644 } else { 0o664 };
        assert_eq!((now.len(), now.permissions().mode() & 0o7777), (4, bits));
        let lines = getfacl(&b.path(name));
        assert_eq!(
            lines.contains(&"mask::r--".to_owned()),
            with_acl,
            "{lines:?}"
        );
    }
}
