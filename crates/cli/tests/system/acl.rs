//! ACLs on mounts of a real group: `setfacl` on one, and two users who get what it says on another, also when a replica is gone.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;

use crate::harness::{Group, Patience, eventually, finish, program, require_fuse, run};

const OWNER: u32 = 1234;
const FRIEND: u32 = 1235;
const STRANGER: u32 = 1236;

/// Whether a user gets a command done in a directory.
fn can(uid: u32, dir: &Path, command: &str) -> bool {
    let mut shell = program("sh");
    shell.args(["-c", command]).current_dir(dir);
    let ended = finish(shell.uid(uid).gid(uid), Patience::default());
    ended.status.success()
}

fn getfacl(path: &Path) -> String {
    let options = [
        "--omit-header",
        "--numeric",
        "--absolute-names",
        "--no-effective",
    ];
    run(program("getfacl").args(options).arg(path))
}

/// What one user sets on one mount, another gets on the other: a file's own ACL, and one that is inherited.
#[test]
fn two_users_get_what_the_acl_says() {
    if !require_fuse() {
        return;
    }
    let mut group = Group::start();
    let (here, there) = (group.mount_as(0), group.mount_as(1));
    for mount in [&here, &there] {
        let above = mount.path().parent().expect("a directory above");
        fs::set_permissions(above, Permissions::from_mode(0o711)).expect("users may come in");
    }
    let home = here.at("home");
    fs::create_dir(&home).expect("a directory");
    chown(&home, Some(OWNER), Some(OWNER)).expect("its owner");

    let script = format!(
        "umask 077; echo text > file
         setfacl -m u:{FRIEND}:r file && setfacl -d -m u:{FRIEND}:rwx,o:- . && mkdir below && echo text > below/file"
    );
    assert!(can(OWNER, &home, &script));
    group.kill(0);
    let seen = there.at("home");
    eventually("the other mount has the names", || {
        seen.join("below/file").exists()
    });
    assert!(can(
        FRIEND,
        &seen,
        "cat file below/file && echo more >> below/file"
    ));
    assert!(!can(FRIEND, &seen, "echo more >> file"));
    assert!(!can(STRANGER, &seen, "cat file"));
    assert!(!can(STRANGER, &seen, "ls below"));
    assert!(!can(
        FRIEND,
        &seen,
        &format!("setfacl -m u:{FRIEND}:rw file")
    ));
    for name in ["file", "below", "below/file"] {
        assert_eq!(getfacl(&home.join(name)), getfacl(&seen.join(name)));
    }
    let below = getfacl(&seen.join("below/file"));
    let expected = format!("user::rw-\nuser:{FRIEND}:rwx\ngroup::r-x\nmask::rw-\nother::---\n\n");
    assert_eq!(below, expected);
    here.unmount();
    there.unmount();
    group.wait_until_they_agree(&[1, 2, 3]);
}
