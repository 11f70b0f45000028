//! Guests who act as several users: what they are shown is what they may do. And what names cost.

use bytes::Bytes;
use quorate_credential::{Caveat, Rights};
use quorate_files::op::*;
use quorate_files::{Action, Answer, Errno, Ino, Nothing, Target, Who};

use crate::common::{Result, set_attr};
use crate::sharing::{MEMBER, Volume, refused, terms};

const BOB: u8 = 1;
const CAROL: u8 = 2;
const ROOT: Ino = Ino::ROOT;

/// A credential of Bob's, by which he acts as a user, with a serial of its own: which comes first depends on its digest.
fn lets(v: &mut Volume, object: Ino, ids: (u32, u32), rights: Rights, serial: u64) -> Result<()> {
    let mut terms = terms(BOB, object.0);
    terms.rights = rights;
    terms.serial = serial;
    terms.caveats.push(Caveat::Ids {
        uid: ids.0,
        gid: ids.1,
    });
    let chain = v.issue(BOB, terms);
    v.put(BOB, &chain).map(drop)
}

fn belongs(v: &mut Volume, ino: Ino, owner: (u32, u32), mode: u32) -> Result<()> {
    let op = SetAttr {
        uid: Some(owner.0),
        gid: Some(owner.1),
        ..set_attr(Target::Ino(ino))
    };
    v.run(MEMBER, Action::SetAttr(op))?;
    let op = SetAttr {
        mode: Some(mode),
        ..set_attr(Target::Ino(ino))
    };
    v.run(MEMBER, Action::SetAttr(op)).map(drop)
}

/// By two credentials as two users, whichever comes first: access(2), the modes in attributes and listings, and what is then tried say the same.
#[test]
fn what_is_shown_is_what_may_be_done() -> Result<()> {
    for serial in 0..8 {
        let mut v = Volume::new();
        let shared = v.dir(ROOT, b"shared");
        let file = v.file(shared, b"file");
        lets(&mut v, shared, (1000, 10), Rights::READING, serial)?;
        let writes = Rights::LOOKUP | Rights::WRITE;
        lets(&mut v, shared, (2000, 20), writes, 100 - serial)?;
        for (owner, mode, reads, changes) in [
            ((1000, 10), 0o600, true, false),
            ((2000, 20), 0o600, false, true),
            ((1000, 10), 0o602, true, true),
            ((5, 10), 0o640, true, false),
            ((5, 10), 0o622, false, true),
            ((5, 5), 0o666, true, true),
            ((5, 5), 0o600, false, false),
        ] {
            belongs(&mut v, file, owner, mode)?;
            let case = format!("serial {serial}, {owner:?}, {mode:o}");
            let may = v.access(BOB, file)?;
            assert_eq!(may & access::READ != 0, reads, "{case}");
            assert_eq!(may & access::WRITE != 0, changes, "{case}");
            assert_eq!(v.read_ino(BOB, file).is_ok(), reads, "{case}");
            assert_eq!(
                v.write(BOB, Target::Ino(file), b"x").is_ok(),
                changes,
                "{case}"
            );
            // What is shown as his own class says no more than that.
            let shown = v.attr(BOB, file)?.mode;
            let listed = v.list(BOB, shared, 100, true)?;
            let listed = listed.iter().find(|entry| entry.ino == file);
            let listed = listed.and_then(|entry| entry.attr.as_ref());
            assert_eq!(listed.map(|attr| attr.mode), Some(shown), "{case}");
            let class = match owner {
                (1000 | 2000, _) => 6,
                (_, 10 | 20) => 3,
                _ => 0,
            };
            let own = shown >> class & 7;
            assert!(own & access::READ == 0 || reads, "{case}: {shown:o}");
            assert!(own & access::WRITE == 0 || changes, "{case}: {shown:o}");
        }
        v.check();
    }
    Ok(())
}

/// Each name that is made under a link with a quota costs 256 bytes, whatever it is of, and one that was there costs nothing.
#[test]
fn names_are_paid_for() -> Result<()> {
    let mut v = Volume::new();
    let shared = v.dir(ROOT, b"shared");
    let file = v.file(shared, b"file");
    let mut t = terms(BOB, shared.0);
    t.caveats.push(Caveat::ByteQuota(256 * 6 + 3));
    let bob = v.issue(BOB, t);
    v.put(BOB, &bob)?;
    v.create(BOB, shared, b"file")?;
    assert_eq!(v.grants(BOB)[0].written, [0]);
    let name = |name: &'static str| Bytes::from_static(name.as_bytes());
    let make = |of: &'static str| {
        Action::Make(Make {
            parent: shared,
            name: name(of),
            mode: 0o666,
            umask: 0,
            verifier: None,
        })
    };
    v.create(BOB, shared, b"a")?;
    v.mkdir(BOB, shared, b"b")?;
    v.link(BOB, file, shared, b"c")?;
    v.run(BOB, make("d"))?;
    v.run(BOB, make("d"))?;
    let mknod = |of: &'static str| {
        Action::Mknod(Mknod {
            parent: shared,
            name: name(of),
            kind: quorate_files::Kind::Fifo,
            mode: 0o666,
            umask: 0,
            rdev: 0,
        })
    };
    v.run(BOB, mknod("e"))?;
    let symlink = |of: &'static str| {
        Action::Symlink(Symlink {
            parent: shared,
            name: name(of),
            target: name("abc"),
        })
    };
    v.run(BOB, symlink("f"))?;
    assert_eq!(v.grants(BOB)[0].written, [256 * 6 + 3]);
    for more in [make("g"), mknod("g"), symlink("g")] {
        refused(v.run(BOB, more), Errno::EDQUOT);
    }
    refused(v.create(BOB, shared, b"g"), Errno::EDQUOT);
    refused(v.mkdir(BOB, shared, b"g"), Errno::EDQUOT);
    refused(v.link(BOB, file, shared, b"g"), Errno::EDQUOT);
    // A name that goes elsewhere is none more, and what is removed is not given back.
    v.rename(BOB, (shared, b"a"), (shared, b"h"))?;
    v.unlink(BOB, shared, b"h")?;
    refused(v.create(BOB, shared, b"a"), Errno::EDQUOT);
    assert_eq!(v.names(BOB, shared)?.len(), 6);
    v.check();
    Ok(())
}

/// An ACL that names so many users, as Linux has it.
fn acl_of(users: u32) -> Bytes {
    let entry = |tag: u16, id: u32| {
        let perm = 7_u16;
        [
            &tag.to_le_bytes()[..],
            &perm.to_le_bytes(),
            &id.to_le_bytes(),
        ]
        .concat()
    };
    let mut acl = Vec::from([2_u32.to_le_bytes().to_vec(), entry(1, u32::MAX)]);
    acl.extend((1000..1000 + users).map(|id| entry(2, id)));
    acl.extend([4, 0x10, 0x20].map(|tag| entry(tag, u32::MAX)));
    acl.concat().into()
}

/// A quota bounds what is taken of the volume: a byte takes a block where there was none, and what a new name gets from its directory counts too.
#[test]
fn quotas_bound_what_is_taken() -> Result<()> {
    let mut v = Volume::new();
    let shared = v.dir(ROOT, b"shared");
    let file = v.file(shared, b"file");
    let acl = SetXattr {
        ino: shared,
        name: Bytes::from_static(b"system.posix_acl_default"),
        value: acl_of(50),
        mode: XattrMode::Set,
    };
    let quota = 100 * 4096;
    let mut t = terms(BOB, shared.0);
    t.caveats.push(Caveat::ByteQuota(quota));
    let bob = v.issue(BOB, t);
    v.put(BOB, &bob)?;
    let used = |v: &mut Volume| match v.run(MEMBER, Action::StatFs(Nothing)).unwrap() {
        Answer::StatFs(stat) => stat.used,
        other => panic!("{other:?}"),
    };
    let before = used(&mut v);
    let mut written = 0;
    for block in 1..200 {
        let op = Write {
            target: Target::Ino(file),
            place: Place::At(block * 8192),
            data: Bytes::from_static(b"x"),
        };
        match v.run(BOB, Action::Write(op)) {
            Ok(_) => written += 1,
            refused => assert_eq!(refused.map(drop), Err(Errno::EDQUOT)),
        }
    }
    assert_eq!((written, used(&mut v) - before), (100, quota));

    // Directories that inherit an ACL.
    v.run(MEMBER, Action::SetXattr(acl))?;
    let mut t = terms(CAROL, shared.0);
    t.caveats.push(Caveat::ByteQuota(quota));
    let carol = v.issue(CAROL, t);
    v.put(CAROL, &carol)?;
    let before = used(&mut v);
    let mut made = 0;
    while v
        .mkdir(CAROL, shared, format!("dir {made}").as_bytes())
        .is_ok()
    {
        made += 1;
    }
    assert!(made > 10 && used(&mut v) - before <= quota, "{made}");
    v.check();
    Ok(())
}

/// Who sets nothing changes nothing, and so needs no right: what was made exclusively is still told to who made it.
#[test]
fn setting_nothing_changes_nothing() -> Result<()> {
    let mut v = Volume::new();
    let make = || {
        Action::Make(Make {
            parent: ROOT,
            name: Bytes::from_static(b"made"),
            mode: 0o600,
            umask: 0,
            verifier: Some(7),
        })
    };
    let Answer::Made(made) = v.run(MEMBER, make())? else {
        panic!("it is made");
    };
    let before = v.contents();
    let nothing = Action::SetAttr(set_attr(Target::Ino(made.attr.ino)));
    v.run_as(MEMBER, Who::new(1000, 100), nothing)?;
    assert!(before == v.contents());
    let Answer::Made(again) = v.run(MEMBER, make())? else {
        panic!("it is there");
    };
    assert_eq!(again.attr.ino, made.attr.ino);
    Ok(())
}
