//! Scenes that the model does not play: lives of handles, limits, extended attributes.

use crate::common::{GENESIS, World};
use bytes::Bytes;
use quorate_execution::Service;
use quorate_files::answer::Answer;
use quorate_files::layout::{ENTRY_BYTES, MAX_DEPTH, MAX_LINKS, MAX_OPENS, XATTR_BYTES};
use quorate_files::op::*;
use quorate_files::{Errno, Genesis, Ino, Nothing};

const USER: u32 = 1000;

fn user() -> Who {
    Who::new(USER, USER)
}

fn link(ino: Ino, name: String) -> Action {
    Action::Link(Link {
        ino,
        parent: Ino::ROOT,
        name: Bytes::from(name),
    })
}

/// Rights go with the handle: neither the mode a file was made with nor a later one revokes them.
#[test]
fn handles_keep_their_rights() {
    let mut world = World::new();
    let (ino, handle) = world.create_as(&user(), Ino::ROOT, b"f", 0o444).unwrap();
    let target = Target::Handle(handle);
    world.write(&user(), target.clone(), 0, b"mine").unwrap();
    assert_eq!(world.open(&user(), ino, flags::WRITE), Err(Errno::EACCES));
    let by_number = Target::Ino(ino);
    assert_eq!(world.write(&user(), by_number, 0, b"x"), Err(Errno::EACCES));
    assert_eq!(world.chmod(&user(), ino, 0), Ok(0));
    world.write(&user(), target.clone(), 4, b"!").unwrap();
    assert_eq!(
        &world.read(&user(), target.clone(), 0, 9).unwrap()[..],
        b"mine!"
    );
    // Another session does not have the handle.
    let op = Read {
        target,
        offset: 0,
        len: 1,
    };
    assert_eq!(
        world.run(2, &Who::root(), Action::Read(op)),
        Err(Errno::EBADF)
    );
}

/// A file without a name lives until its last handle is gone, in whichever session.
#[test]
fn orphans_live_while_they_are_open() {
    let mut world = World::new();
    let (ino, first) = world.create(Ino::ROOT, b"f");
    world
        .write(&Who::root(), Target::Handle(first), 0, b"still here")
        .unwrap();
    let open = Action::Open(Open {
        ino,
        flags: flags::READ,
    });
    world.run(2, &Who::root(), open).unwrap();
    world.unlink(&Who::root(), Ino::ROOT, b"f").unwrap();
    assert_eq!(world.attr(ino).unwrap().nlink, 0);
    world.run(1, &Who::root(), Action::Release(first)).unwrap();
    assert_eq!(
        &world.read(&Who::root(), Target::Ino(ino), 0, 5).unwrap()[..],
        b"still"
    );
    world.check();
    world.end_session(2);
    world.check();
    assert_eq!(world.attr(ino), Err(Errno::ESTALE));
    assert_eq!((world.statfs().used, world.statfs().used_inodes), (0, 1));
    // Numbers are never used again.
    assert!(world.create(Ino::ROOT, b"f").0 > ino);
}

/// A removed directory that is open takes no names and lists nothing.
#[test]
fn removed_directories_are_dead() {
    let mut world = World::new();
    let dir = world.mkdir(&Who::root(), Ino::ROOT, b"d", 0o755).unwrap();
    let handle = world.open(&Who::root(), dir, flags::READ).unwrap();
    let name = Bytes::from_static(b"d");
    world
        .run(
            1,
            &Who::root(),
            Action::Rmdir(Rmdir {
                parent: Ino::ROOT,
                name,
            }),
        )
        .unwrap();
    assert_eq!(
        world.create_as(&Who::root(), dir, b"x", 0),
        Err(Errno::ENOENT)
    );
    let target = Target::Handle(handle);
    let list = ReadDir {
        target,
        cookie: 0,
        count: 9,
        plus: false,
    };
    assert_eq!(
        world.run(1, &Who::root(), Action::ReadDir(list)),
        Err(Errno::ENOENT)
    );
    world.check();
}

/// Appends of two sessions never overwrite each other, whatever offsets they name.
#[test]
fn appends_land_at_the_agreed_end() {
    let mut world = World::new();
    let (ino, _) = world.create(Ino::ROOT, b"log");
    let flags = flags::WRITE | flags::APPEND;
    for session in [1, 2] {
        let opened = world
            .run(session, &Who::root(), Action::Open(Open { ino, flags }))
            .unwrap();
        let Answer::Opened(opened) = opened else {
            panic!()
        };
        for _ in 0..2 {
            let data = Bytes::from(format!("{session};"));
            let (target, place) = (Target::Handle(opened.handle), Place::At(0));
            let op = Write {
                target,
                place,
                data,
            };
            world.run(session, &Who::root(), Action::Write(op)).unwrap();
        }
    }
    assert_eq!(
        &world.read(&Who::root(), Target::Ino(ino), 0, 99).unwrap()[..],
        b"1;1;2;2;"
    );
}

/// The limits of names and handles hold, and the checker agrees at the limit.
#[test]
fn links_and_handles_are_bounded() {
    let mut world = World::new();
    let (ino, handle) = world.create(Ino::ROOT, b"f");
    for n in 1..MAX_LINKS {
        world
            .run(1, &Who::root(), link(ino, n.to_string()))
            .unwrap();
    }
    assert_eq!(
        world.run(1, &Who::root(), link(ino, "more".into())),
        Err(Errno::EMLINK)
    );
    assert_eq!(world.attr(ino).unwrap().nlink, MAX_LINKS);
    for _ in 1..MAX_OPENS {
        world.open(&Who::root(), ino, flags::READ).unwrap();
    }
    assert_eq!(
        world.open(&Who::root(), ino, flags::READ),
        Err(Errno::EMFILE)
    );
    world.run(1, &Who::root(), Action::Release(handle)).unwrap();
    world.open(&Who::root(), ino, flags::READ).unwrap();
    world.check();
    world.end_session(1);
    world.check();
    assert!(
        world
            .contents()
            .keys()
            .all(|key| !(0x17..=0x19).contains(&key[0]))
    );
}

/// The walk that looks for loops is bounded; deeper directories can't move to another parent.
#[test]
fn deep_moves_are_refused() {
    let mut world = World::with(quorate_files::Genesis {
        capacity_inodes: 10_000,
        ..crate::common::GENESIS
    });
    let moving = world.mkdir(&Who::root(), Ino::ROOT, b"m", 0o755).unwrap();
    let mut dir = Ino::ROOT;
    let rename = |world: &mut World, new_parent: Ino| {
        let (name, new_name) = (Bytes::from_static(b"m"), Bytes::from_static(b"m"));
        let (parent, mode) = (Ino::ROOT, RenameMode::Replace);
        let op = Rename {
            parent,
            name,
            new_parent,
            new_name,
            mode,
        };
        world.run(1, &Who::root(), Action::Rename(op))
    };
    for _ in 0..MAX_DEPTH {
        dir = world.mkdir(&Who::root(), dir, b"d", 0o755).unwrap();
    }
    assert_eq!(rename(&mut world, dir), Err(Errno::ELOOP));
    let above = world.list(dir, 1, 1).unwrap().0[0].ino;
    rename(&mut world, above).unwrap();
    assert_eq!(rename(&mut world, moving), Err(Errno::ENOENT));
    world.check();
}

/// A change of content takes set-user-ID, set-group-ID and file capabilities away; root's keeps the bits.
#[test]
fn writes_take_privileges_away() {
    let mut world = World::new();
    let (ino, handle) = world.create_as(&user(), Ino::ROOT, b"f", 0o755).unwrap();
    let capability = Bytes::from_static(b"security.capability");
    let set = SetXattr {
        ino,
        name: capability.clone(),
        value: Bytes::from_static(b"all"),
        mode: XattrMode::Set,
    };
    assert_eq!(
        world.run(1, &user(), Action::SetXattr(set.clone())),
        Err(Errno::EPERM)
    );
    world.run(1, &Who::root(), Action::SetXattr(set)).unwrap();
    world.chmod(&user(), ino, 0o6755).unwrap();
    let target = Target::Handle(handle);
    assert_eq!(
        world
            .write(&Who::root(), target.clone(), 0, b"x")
            .unwrap()
            .mode,
        0o6755
    );
    let get = GetXattr {
        ino,
        name: capability,
        size: 0,
    };
    assert_eq!(
        world.run(1, &Who::root(), Action::GetXattr(get)),
        Err(Errno::ENODATA)
    );
    assert_eq!(world.write(&user(), target, 0, b"x").unwrap().mode, 0o755);
    world.check();
}

/// Probes, buffers that are too small, flags, namespaces, limits.
#[test]
fn extended_attributes_are_linux_ones() {
    let mut world = World::new();
    let (ino, _) = world.create_as(&user(), Ino::ROOT, b"f", 0o644).unwrap();
    let other = Who::new(1001, 1001);
    let set = |name: &str, len: usize, mode| {
        let (name, value) = (Bytes::from(name.to_owned()), Bytes::from(vec![7; len]));
        Action::SetXattr(SetXattr {
            ino,
            name,
            value,
            mode,
        })
    };
    let get = |name: &str, size| {
        Action::GetXattr(GetXattr {
            ino,
            name: Bytes::from(name.to_owned()),
            size,
        })
    };
    let ok = Ok(Answer::Done(Nothing));
    use XattrMode::{Create, Replace, Set};
    for (who, action, expected) in [
        (user(), set("user.a", 3, Replace), Err(Errno::ENODATA)),
        (user(), set("user.a", 3, Create), ok.clone()),
        (user(), set("user.a", 3, Create), Err(Errno::EEXIST)),
        (user(), set("user.a", 5, Replace), ok.clone()),
        (other.clone(), set("user.a", 5, Set), Err(Errno::EACCES)),
        (user(), set("trusted.t", 5, Set), Err(Errno::EPERM)),
        (Who::root(), set("trusted.t", 5, Set), ok.clone()),
        (user(), set("system.nfs4_acl", 5, Set), Err(Errno::ENOTSUP)),
        (user(), set("nothing", 5, Set), Err(Errno::ENOTSUP)),
        (user(), set("user.", 5, Set), Err(Errno::EINVAL)),
        (user(), set("user.big", 65_537, Set), Err(Errno::E2BIG)),
        (
            user(),
            set(&format!("user.{}", "n".repeat(251)), 1, Set),
            Err(Errno::ERANGE),
        ),
        (other.clone(), get("user.a", 0), Ok(Answer::Size(5))),
        (other.clone(), get("user.a", 4), Err(Errno::ERANGE)),
        (
            other.clone(),
            get("user.a", 5),
            Ok(Answer::Bytes(Bytes::from(vec![7; 5]))),
        ),
        (other.clone(), get("trusted.t", 5), Err(Errno::ENODATA)),
        (other.clone(), get("user.b", 5), Err(Errno::ENODATA)),
    ] {
        let found = match world.run(1, &who, action.clone()) {
            Ok(Answer::Attr(_)) => ok.clone(),
            other => other,
        };
        assert_eq!(found, expected, "{action:?}");
    }
    let list = |size| Action::ListXattr(ListXattr { ino, size });
    let names = |names: &'static [u8]| Ok(Answer::Bytes(Bytes::from_static(names)));
    assert_eq!(world.run(1, &user(), list(100)), names(b"user.a\0"));
    assert_eq!(
        world.run(1, &Who::root(), list(100)),
        names(b"trusted.t\0user.a\0")
    );
    assert_eq!(world.run(1, &user(), list(6)), Err(Errno::ERANGE));
    let mut full = Ok(());
    for n in 0..100 {
        let set = set(&format!("user.{n}"), 20_000, Set);
        full = world.run(1, &user(), set).map(drop);
        world.check();
        if full.is_err() {
            break;
        }
    }
    assert_eq!(full, Err(Errno::ENOSPC));
    world.end_session(1);
    world.unlink(&Who::root(), Ino::ROOT, b"f").unwrap();
    world.check();
    assert_eq!(world.statfs().used, 0);
}

/// A directory's `..` is part of it: to move it to another parent, or another into its place, is a write to it.
#[test]
fn moving_a_directory_writes_to_it() {
    let mut world = World::new();
    let a = world.mkdir(&user(), Ino::ROOT, b"a", 0o755).unwrap();
    let b = world.mkdir(&user(), Ino::ROOT, b"b", 0o755).unwrap();
    let fixed = world.mkdir(&user(), a, b"fixed", 0o500).unwrap();
    let free = world.mkdir(&user(), b, b"free", 0o700).unwrap();
    let mut rename = |from, name: &'static str, to, new_name: &'static str, mode| {
        let (name, new_name) = (Bytes::from(name), Bytes::from(new_name));
        let op = Rename {
            parent: from,
            name,
            new_parent: to,
            new_name,
            mode,
        };
        world.run(1, &user(), Action::Rename(op)).map(drop)
    };
    use RenameMode::{Exchange, Replace};
    assert_eq!(rename(a, "fixed", b, "x", Replace), Err(Errno::EACCES));
    assert_eq!(rename(a, "fixed", b, "free", Exchange), Err(Errno::EACCES));
    assert_eq!(rename(b, "free", a, "fixed", Exchange), Err(Errno::EACCES));
    assert_eq!(rename(a, "fixed", a, "still", Replace), Ok(()));
    assert_eq!(rename(b, "free", a, "still", Replace), Ok(()));
    assert_eq!(world.list(a, 2, 9).unwrap().0[0].ino, free);
    assert_eq!(world.attr(fixed), Err(Errno::ESTALE));
    world.check();
}

/// The executor keeps books of its own in an operation's transaction, and may end sessions there first: a refusal
/// undoes the operation alone, and a read minds none of it.
#[test]
fn a_refusal_undoes_the_operation_alone() {
    let mut world = World::new();
    let (ino, _) = world.create(Ino::ROOT, b"f");
    world.unlink(&Who::root(), Ino::ROOT, b"f").unwrap();
    let (parent, name) = (Ino::ROOT, Bytes::from_static(b"f"));
    let (flags, long) = (flags::WRITE, Bytes::from(vec![b'x'; 256]));
    for action in [
        Action::Create(Create {
            parent,
            name: long,
            mode: 0,
            umask: 0,
            flags,
        }),
        Action::Lookup(Lookup {
            parent,
            name: name.clone(),
        }),
        Action::StatFs(Nothing),
    ] {
        let (service, call) = (world.service.clone(), world.call(1));
        let mut txn = world.state.begin();
        txn.put(Bytes::from_static(b"\0book"), Bytes::from_static(b"kept"));
        service.session_ended(&mut txn, &call).unwrap();
        let op = Op::new(Who::root(), action).to_bytes();
        service.execute(&mut txn, &call, &op).unwrap();
        assert_eq!(
            txn.get(b"\0book").unwrap(),
            Some(Bytes::from_static(b"kept"))
        );
        txn.commit();
        assert_eq!(world.attr(ino), Err(Errno::ESTALE));
        world.check();
    }
    let before = world.contents();
    let op = Op::new(Who::root(), Action::Unlink(Unlink { parent, name })).to_bytes();
    world.execute(1, &op);
    assert_eq!(world.contents(), before);
}

/// Each attribute takes space, however short it is, and gives back what it took; one that was counted without its row gives back no more.
#[test]
fn attributes_take_space() {
    let name = |n: u8| Bytes::copy_from_slice(&[b'u', b's', b'e', b'r', b'.', n]);
    let counted = XATTR_BYTES + name(0).len() as u64;
    let mut world = World::with(Genesis {
        capacity_bytes: ENTRY_BYTES + 10 * counted + 9,
        ..GENESIS
    });
    let root = Who::root();
    let ino = world.mkdir(&root, Ino::ROOT, b"d", 0o755).unwrap();
    let set = |world: &mut World, n| {
        let set = SetXattr {
            ino,
            name: name(n),
            value: Bytes::new(),
            mode: XattrMode::Create,
        };
        world.run(1, &root, Action::SetXattr(set)).map(drop)
    };
    let remove = |world: &mut World, n| {
        let name = name(n);
        let remove = Action::RemoveXattr(RemoveXattr { ino, name });
        world.run(1, &root, remove).map(drop)
    };
    for n in 1..=10 {
        set(&mut world, n).unwrap();
    }
    assert_eq!(set(&mut world, 11), Err(Errno::ENOSPC));
    world.check();
    remove(&mut world, 1).unwrap();
    set(&mut world, 11).unwrap();
    for n in 3..=11 {
        remove(&mut world, n).unwrap();
    }
    assert_eq!(world.statfs().used, ENTRY_BYTES + counted);

    // The last one, as if its row had not been counted: in the object's sum, and in the volume's.
    let mut txn = world.state.begin();
    let mut lower = |key: &[u8], at: usize| {
        let mut row = txn.get(key).unwrap().unwrap().to_vec();
        let at = at.min(row.len() - 8);
        let sum = u64::from_le_bytes(row[at..at + 8].try_into().unwrap());
        row[at..at + 8].copy_from_slice(&(sum - XATTR_BYTES).to_le_bytes());
        txn.put(Bytes::copy_from_slice(key), row.into());
    };
    lower(&[&[0x11][..], &ino.0.to_be_bytes()].concat(), usize::MAX);
    lower(&[0x10], 8);
    txn.commit();
    remove(&mut world, 2).unwrap();
    assert_eq!(world.statfs().used, ENTRY_BYTES);
    world.check();
}
