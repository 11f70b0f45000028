//! Directories' attributes: what own changes of names tell of them, and who must not be told it any more.

use std::fs::{self, File, Metadata, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::Duration;

use crate::common::{Group, Mount, can_mount};
use quorate_client::fuse::{Caching, Lifetime, MountOptions};
use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};

/// Long beside any test.
const LONG: Duration = Duration::from_secs(600);

fn keeping(group: &Group, client: u8, time: Duration) -> Mount {
    let caching = Caching {
        directories: Lifetime::fixed(time),
        ..Caching::default()
    };
    group.mount_with(
        client,
        MountOptions {
            caching,
            ..MountOptions::default()
        },
    )
}

/// All that changes with names.
fn state(metadata: &Metadata) -> (u64, u64, u32, (i64, i64), (i64, i64)) {
    (
        metadata.nlink(),
        metadata.size(),
        metadata.mode(),
        (metadata.mtime(), metadata.mtime_nsec()),
        (metadata.ctime(), metadata.ctime_nsec()),
    )
}

/// No change of names asks for the attributes of its directory, and they are what the group says after each of them.
#[test]
fn changes_of_names_bring_their_directorys_attributes() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, all) = (keeping(&group, 1, LONG), keeping(&group, 2, Duration::ZERO));
    fs::create_dir(a.path("d")).unwrap();
    fs::create_dir(a.path("e")).unwrap();
    let inside = |name: &str| a.path("d").join(name);
    let check = |what: &str| {
        let kinds = group.kinds.take();
        assert!(!kinds.contains_key("GetAttr"), "{what}: {kinds:?}");
        let seen = fs::metadata(a.path("d")).unwrap();
        let kinds = group.kinds.take();
        assert!(!kinds.contains_key("GetAttr"), "after {what}: {kinds:?}");
        let there = fs::metadata(all.path("d")).unwrap();
        assert_eq!(state(&seen), state(&there), "after {what}");
        // A name that is moved may have been a directory's, or in the place of one: others are asked for anew.
        fs::metadata(a.dir()).unwrap();
        fs::metadata(a.path("e")).unwrap();
        group.kinds.take();
    };
    group.kinds.take();
    for round in 0..3 {
        fs::write(inside("f"), b"content").unwrap();
        check("a file was made");
        fs::hard_link(inside("f"), inside("g")).unwrap();
        check("a link was made");
        symlink("f", inside("s")).unwrap();
        check("a symbolic link was made");
        fs::create_dir(inside("c")).unwrap();
        check("a directory was made");
        fs::rename(inside("g"), inside("h")).unwrap();
        check("a file was renamed");
        fs::rename(inside("h"), a.path("e").join("h")).unwrap();
        check("a file was moved away");
        fs::rename(inside("c"), a.path("e").join("c")).unwrap();
        check("a directory was moved away");
        fs::rename(a.path("e").join("h"), inside("i")).unwrap();
        check("a file was moved here");
        for name in ["f", "i", "s"] {
            fs::remove_file(inside(name)).unwrap();
            check("a file was removed");
        }
        fs::remove_dir(a.path("e").join("c")).unwrap();
        fs::create_dir(inside("c")).unwrap();
        fs::remove_dir(inside("c")).unwrap();
        check("a directory was removed");
        // A name that is taken, and one that is not there: the kernel knows, but not on another mount.
        fs::create_dir(all.path(&format!("d/{round}"))).unwrap();
        fs::create_dir(inside(&round.to_string())).unwrap_err();
        group.kinds.take();
    }
}

/// What is set on a directory shows at once, though a change of names had told what it was like before.
#[test]
fn attributes_that_are_set_show_at_once() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let a = keeping(&group, 1, LONG);
    fs::create_dir(a.path("d")).unwrap();
    for round in 0..10u32 {
        fs::write(a.path("d").join("f"), b"").unwrap();
        let mode = 0o700 + round % 8;
        fs::set_permissions(a.path("d"), Permissions::from_mode(mode)).unwrap();
        let there = fs::metadata(a.path("d")).unwrap();
        assert_eq!(there.mode() & 0o7777, mode);
        fs::remove_file(a.path("d").join("f")).unwrap();
        let there = fs::metadata(a.path("d")).unwrap();
        assert_eq!(there.mode() & 0o7777, mode);
        // Whether it has any extended attributes is told with the others.
        let (name, path) = ("user.round", a.path("d"));
        fs::write(path.join("f"), b"").unwrap();
        setxattr(&path, name, &[round as u8], XattrFlags::empty()).unwrap();
        fs::remove_file(path.join("f")).unwrap();
        let mut value = [0; 2];
        assert_eq!(getxattr(&path, name, &mut value[..]).unwrap(), 1);
        assert_eq!(u32::from(value[0]), round);
        removexattr(&path, name).unwrap();
        getxattr(&path, name, &mut value[..]).unwrap_err();
    }
}

/// A directory that is removed, or replaced, while it is open has no name any more, whatever was known of it.
#[test]
fn open_directories_that_go_have_no_name() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let a = keeping(&group, 1, LONG);
    for replaced in [false, true] {
        fs::create_dir(a.path("d")).unwrap();
        let open = File::open(a.path("d")).unwrap();
        fs::create_dir(a.path("d/c")).unwrap();
        fs::remove_dir(a.path("d/c")).unwrap();
        fs::write(a.path("d/f"), b"").unwrap();
        fs::remove_file(a.path("d/f")).unwrap();
        assert_eq!(open.metadata().unwrap().nlink(), 2);
        match replaced {
            false => fs::remove_dir(a.path("d")).unwrap(),
            true => {
                fs::create_dir(a.path("e")).unwrap();
                fs::rename(a.path("e"), a.path("d")).unwrap();
            }
        }
        assert_eq!(open.metadata().unwrap().nlink(), 0);
    }
}

/// What others change shows when the time is over for which attributes are taken for granted, though nothing is changed here.
#[test]
fn changes_elsewhere_show_after_a_while() {
    if !can_mount() {
        return;
    }
    let group = Group::start();
    let (a, b) = (
        keeping(&group, 1, Duration::from_millis(300)),
        keeping(&group, 2, LONG),
    );
    fs::create_dir(a.path("d")).unwrap();
    fs::write(a.path("d/own"), b"").unwrap();
    // Not by its name, which is looked up at times.
    let open = File::open(a.path("d")).unwrap();
    let before = open.metadata().unwrap();
    fs::create_dir(b.path("d/foreign")).unwrap();
    let shows = (0..3_000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        open.metadata().unwrap().nlink() > before.nlink()
    });
    assert!(shows);
}
