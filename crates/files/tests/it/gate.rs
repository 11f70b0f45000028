//! What guests may do and not do: the cases in which systems of this kind have failed.

use crate::common::Result;
use crate::sharing::{MEMBER, Volume, key, lock, public, refused, terms};
use bytes::Bytes;
use quorate_credential::{Caveat, ObjectId, Rights};
use quorate_execution::graph::{Conflicts, Graph};
use quorate_execution::{Ran, Service};
use quorate_files::answer::Decision;
use quorate_files::op::*;
use quorate_files::{Action, Answer, Errno, Handle, Ino, Nothing, Op, Who};

const BOB: u8 = 1;
const CAROL: u8 = 2;
const ROOT: Ino = Ino::ROOT;
const RW: Rights = Rights::ALL;

fn text(name: &'static [u8]) -> Bytes {
    Bytes::from_static(name)
}

/// Without a credential nothing; with one what it is about, and nothing beside or above it.
#[test]
fn a_guest_is_in_its_tree() -> Result<()> {
    let mut v = Volume::new();
    let shared = v.dir(ROOT, b"shared");
    let sub = v.dir(shared, b"sub");
    let file = v.file(sub, b"file");
    let secret = v.file(ROOT, b"secret");
    for ino in [ROOT, shared, sub, file, secret] {
        refused(v.attr(BOB, ino), Errno::EACCES);
        refused(v.read_ino(BOB, ino), Errno::EACCES);
    }
    refused(v.run(BOB, Action::StatFs(Nothing)), Errno::EACCES);
    v.share(BOB, shared, RW);
    assert_eq!(v.lookup(BOB, shared, b"sub")?.ino, sub);
    assert_eq!(v.read_ino(BOB, file)?, text(b"file"));
    v.write(BOB, Target::Ino(file), b"more")?;
    let (made, handle) = v.create(BOB, sub, b"own")?;
    assert_eq!(
        (made.uid, made.gid),
        (65_534, 65_534),
        "nobody, whatever it says"
    );
    v.write(BOB, Target::Handle(handle), b"mine")?;
    v.run(BOB, Action::StatFs(Nothing))?;
    // Beside and above, also by number.
    for ino in [ROOT, secret, Ino(999)] {
        refused(v.attr(BOB, ino), Errno::ESTALE);
        refused(v.read_ino(BOB, ino), Errno::ESTALE);
        refused(v.write(BOB, Target::Ino(ino), b"x"), Errno::ESTALE);
        refused(v.list(BOB, ino, 100, true), Errno::ESTALE);
        refused(v.open(BOB, ino, flags::READ), Errno::ESTALE);
        refused(v.link(BOB, ino, sub, b"in"), Errno::ESTALE);
    }
    refused(v.lookup(BOB, shared, b".."), Errno::ENOENT);
    assert_eq!(v.lookup(BOB, sub, b"..")?.ino, shared);
    let dots = v.list(BOB, shared, 100, true)?;
    assert_eq!((dots[1].name.as_ref(), dots[1].ino), (&b".."[..], shared));
    refused(v.rename(BOB, (sub, b"own"), (ROOT, b"out")), Errno::ESTALE);
    refused(
        v.rename(BOB, (ROOT, b"secret"), (sub, b"in")),
        Errno::ESTALE,
    );
    refused(v.create(BOB, ROOT, b"x"), Errno::ESTALE);
    // Attributes of others are not told with an operation that is allowed.
    let with = WithAttrs::new(vec![ROOT, file, secret], Action::GetAttr(Target::Ino(file)));
    match v.run(BOB, Action::WithAttrs(with))? {
        Answer::WithAttrs(with) => {
            let told: Vec<_> = with.after.iter().map(Option::is_some).collect();
            assert_eq!(told, [false, true, false]);
        }
        other => panic!("{other:?}"),
    }
    // Members have noticed nothing of all this.
    assert_eq!(v.read_ino(MEMBER, secret)?, text(b"secret"));
    v.check();
    Ok(())
}

/// Each right is asked for by what it is for, by number and by handle, and shown as it is.
#[test]
fn rights_are_what_they_say() -> Result<()> {
    let mut v = Volume::new();
    let shared = v.dir(ROOT, b"shared");
    let file = v.file(shared, b"file");
    let sub = v.dir(shared, b"sub");
    v.share(BOB, shared, Rights::READING);
    let handle = v.open(BOB, file, flags::READ)?;
    assert_eq!(v.read(BOB, Target::Handle(handle))?, text(b"file"));
    refused(v.open(BOB, file, flags::WRITE), Errno::EACCES);
    refused(v.open(BOB, file, flags::TRUNC), Errno::EACCES);
    refused(v.write(BOB, Target::Ino(file), b"x"), Errno::EACCES);
    refused(v.create(BOB, shared, b"x"), Errno::EACCES);
    refused(v.mkdir(BOB, shared, b"x"), Errno::EACCES);
    refused(v.unlink(BOB, shared, b"file"), Errno::EACCES);
    refused(v.link(BOB, file, sub, b"x"), Errno::EACCES);
    refused(v.rename(BOB, (shared, b"file"), (sub, b"x")), Errno::EACCES);
    let chmod = SetAttr {
        mode: Some(0o777),
        ..crate::common::set_attr(Target::Ino(file))
    };
    refused(v.run(BOB, Action::SetAttr(chmod.clone())), Errno::EACCES);
    let xattr = SetXattr {
        ino: file,
        name: text(b"user.x"),
        value: text(b"v"),
        mode: XattrMode::Set,
    };
    refused(v.run(BOB, Action::SetXattr(xattr)), Errno::EACCES);
    assert_eq!(v.attr(BOB, file)?.mode, 0o444);
    assert_eq!(v.attr(BOB, shared)?.mode, 0o555);
    assert_eq!(v.attr(MEMBER, file)?.mode, 0o666);
    assert_eq!(v.access(BOB, file)?, access::READ);
    assert_eq!(v.access(BOB, shared)?, access::READ | access::EXEC);
    for entry in v.list(BOB, shared, 100, true)? {
        let attr = entry.attr.unwrap();
        assert_eq!(attr.mode & 0o222, 0, "{:?}", entry.name);
    }
    // An exclusive lock is for who may write.
    let lock = |kind| lock(handle, kind, false);
    refused(v.run(BOB, lock(LockKind::Write)), Errno::EACCES);
    v.run(BOB, lock(LockKind::Read))?;
    v.run(BOB, lock(LockKind::Unlock))?;
    // At the end alone.
    v.share(CAROL, file, Rights::APPEND | Rights::LOOKUP);
    let carols = v.open(CAROL, file, flags::WRITE | flags::APPEND)?;
    v.write(CAROL, Target::Handle(carols), b"+")?;
    v.append(CAROL, Target::Ino(file), b"+")?;
    refused(v.write(CAROL, Target::Ino(file), b"x"), Errno::EACCES);
    refused(
        v.open(CAROL, file, flags::WRITE | flags::TRUNC),
        Errno::EACCES,
    );
    refused(v.read_ino(CAROL, file), Errno::EACCES);
    assert_eq!(v.read_ino(BOB, file)?, text(b"file++"));
    Ok(())
}

/// Mode bits hold within what a credential allows: as whom, its owner's link says and not the guest.
#[test]
fn modes_hold_within() -> Result<()> {
    let mut v = Volume::new();
    let shared = v.dir(ROOT, b"shared");
    let file = v.file(shared, b"file");
    let chmod = SetAttr {
        mode: Some(0o600),
        uid: Some(1000),
        ..crate::common::set_attr(Target::Ino(file))
    };
    v.run(MEMBER, Action::SetAttr(chmod))?;
    v.share(BOB, shared, RW);
    let op = Action::Read(Read {
        target: Target::Ino(file),
        offset: 0,
        len: 9,
    });
    refused(v.run_as(BOB, Who::root(), op.clone()), Errno::EACCES);
    refused(
        v.run_as(BOB, Who::new(1000, 1000), op.clone()),
        Errno::EACCES,
    );
    let mut t = terms(CAROL, shared.0);
    t.caveats.push(Caveat::Ids { uid: 1000, gid: 7 });
    let chain = v.issue(CAROL, t);
    v.put(CAROL, &chain)?;
    v.run_as(CAROL, Who::new(5, 5), op)?;
    assert_eq!(v.create(CAROL, shared, b"c")?.0.uid, 1000);
    Ok(())
}

/// One user for each operation: what one credential allows as root is not done with what another one is about.
#[test]
fn users_are_not_mixed() -> Result<()> {
    let mut v = Volume::new();
    let (a, b) = (v.dir(ROOT, b"a"), v.dir(ROOT, b"b"));
    let (mine, theirs) = (v.file(a, b"mine"), v.file(b, b"theirs"));
    let chmod = SetAttr {
        mode: Some(0o644),
        uid: Some(1000),
        ..crate::common::set_attr(Target::Ino(theirs))
    };
    v.run(MEMBER, Action::SetAttr(chmod))?;
    let mut t = terms(BOB, a.0);
    t.caveats.push(Caveat::Ids { uid: 0, gid: 0 });
    let as_root = v.issue(BOB, t);
    v.put(BOB, &as_root)?;
    v.share(BOB, b, RW);
    let copy = |from, to| {
        Action::CopyRange(CopyRange {
            from: Target::Ino(from),
            offset: 0,
            to: Target::Ino(to),
            to_offset: 0,
            len: 4,
        })
    };
    refused(v.run(BOB, copy(mine, theirs)), Errno::EACCES);
    refused(v.run(BOB, copy(theirs, mine)), Errno::EACCES);
    v.run(BOB, copy(mine, mine)).unwrap_err();
    refused(v.rename(BOB, (a, b"mine"), (b, b"x")), Errno::EACCES);
    v.write(BOB, Target::Ino(mine), b"MINE")?;
    refused(v.write(BOB, Target::Ino(theirs), b"x"), Errno::EACCES);
    assert_eq!(v.read_ino(BOB, theirs)?, text(b"theirs"));
    Ok(())
}

/// Guests' operations wait for all changes, and all others wait for theirs, which are done in one step. What only looks waits for no other that does.
#[test]
fn guests_wait_for_all_changes() {
    let mut v = Volume::new();
    let (file, other) = (v.file(ROOT, b"file"), v.file(ROOT, b"other"));
    v.share(BOB, file, RW);
    let bytes = |action| Op::new(Who::root(), action).to_bytes();
    let write = bytes(Action::Write(Write {
        target: Target::Ino(file),
        place: Place::At(0),
        data: text(b"x"),
    }));
    let read = bytes(Action::Read(Read {
        target: Target::Ino(other),
        offset: 0,
        len: 9,
    }));
    for ((first, op), second, expected) in [
        ((MEMBER, &write), MEMBER, true),
        ((MEMBER, &write), BOB, false),
        ((BOB, &write), MEMBER, false),
        ((MEMBER, &read), BOB, true),
        ((BOB, &read), MEMBER, true),
        ((BOB, &read), BOB, true),
    ] {
        let mut graph = Graph::new(Conflicts::Declared, 2);
        let uses = |key, op| v.service.uses(&v.call(key), op);
        graph.insert(uses(first, op));
        let second = graph.insert(uses(second, &read));
        let ready: Vec<_> = std::iter::from_fn(|| graph.take_ready()).collect();
        assert_eq!(ready.contains(&second), expected);
    }
    // A change does not become part of the state that an earlier look is at.
    let mut graph = Graph::new(Conflicts::Declared, 2);
    let look = graph.insert(v.service.uses(&v.call(BOB), &read));
    let change = graph.insert(v.service.uses(&v.call(BOB), &write));
    while graph.take_ready().is_some() {}
    graph.ran(change);
    assert_eq!(graph.take_settleable(), None);
    graph.ran(look);
    assert_eq!(graph.take_settleable(), Some(look));
    let (member, guest) = (v.call(MEMBER), v.call(BOB));
    let mut txn = v.state.begin();
    let ran = v.service.run(&mut txn, &member, &write).unwrap();
    assert!(matches!(ran, Ran::Settle(_)));
    let ran = v.service.run(&mut txn, &guest, &write).unwrap();
    assert!(matches!(ran, Ran::Done(_)));
}

/// What is passed on is bounded by each link above, and by where their objects are now.
#[test]
fn what_is_passed_on_stays_below() -> Result<()> {
    let mut v = Volume::new();
    let shared = v.dir(ROOT, b"shared");
    let (sub, other) = (v.dir(shared, b"sub"), v.dir(ROOT, b"other"));
    let (file, far) = (v.file(sub, b"file"), v.file(other, b"far"));
    let bob = v.share(BOB, shared, Rights::READING | Rights::DELEGATE);
    let mut t = terms(CAROL, sub.0);
    (t.depth, t.rights) = (1, Rights::READING);
    let carol = bob.delegate(&key(BOB), t.clone()).unwrap();
    t.scope.object = quorate_credential::ObjectId(far.0.into());
    let beyond = bob.delegate(&key(BOB), t).unwrap();
    v.put(CAROL, &carol)?;
    assert_eq!(v.read_ino(CAROL, file)?, text(b"file"));
    refused(v.attr(CAROL, shared), Errno::ESTALE);
    // Bob can name what is not his, but nobody gets it.
    v.put(CAROL, &beyond)?;
    refused(v.read_ino(CAROL, far), Errno::ESTALE);
    // When Carol's directory leaves Bob's tree, she has it no longer; and has it again when it comes back.
    v.rename(MEMBER, (shared, b"sub"), (other, b"sub"))?;
    refused(v.read_ino(CAROL, file), Errno::ESTALE);
    v.rename(MEMBER, (other, b"sub"), (shared, b"again"))?;
    assert_eq!(v.read_ino(CAROL, file)?, text(b"file"));
    v.rename(MEMBER, (other, b"far"), (shared, b"near"))?;
    assert_eq!(v.read_ino(CAROL, far)?, text(b"far"));
    Ok(())
}

/// A prefix is one of names directly in the link's directory, byte by byte, and of nothing else.
#[test]
fn prefixes_are_of_names() -> Result<()> {
    let mut v = Volume::new();
    let shared = v.dir(ROOT, b"shared");
    let (mine, yours) = (v.dir(shared, b"bob-a"), v.dir(shared, b"bo"));
    let inner = v.file(mine, b"anything");
    let outer = v.file(yours, b"bob-x");
    v.file(shared, b"alice");
    let mut t = terms(BOB, shared.0);
    t.caveats.push(Caveat::NamePrefix(text(b"bob-")));
    let chain = v.issue(BOB, t);
    v.put(BOB, &chain)?;
    assert_eq!(v.read_ino(BOB, inner)?, text(b"anything"));
    refused(v.read_ino(BOB, outer), Errno::ESTALE);
    assert_eq!(v.lookup(BOB, shared, b"bob-a")?.ino, mine);
    // Whether they are there or not.
    for name in [&b"alice"[..], b"bo", b"bob", b"nobody"] {
        refused(v.lookup(BOB, shared, name), Errno::ENOENT);
        refused(v.create(BOB, shared, name), Errno::EACCES);
        refused(v.unlink(BOB, shared, name), Errno::EACCES);
    }
    v.create(BOB, shared, b"bob-b")?;
    v.mkdir(BOB, mine, b"free")?;
    assert_eq!(
        v.names(BOB, shared)?,
        [b"bob-a".to_vec(), b"bob-b".to_vec()]
    );
    for page in [1, 2, 3] {
        assert_eq!(v.list(BOB, shared, page, true)?.len(), 4);
    }
    v.rename(BOB, (shared, b"bob-b"), (shared, b"bob-c"))?;
    refused(
        v.rename(BOB, (shared, b"bob-c"), (shared, b"alice")),
        Errno::EACCES,
    );
    refused(
        v.rename(BOB, (shared, b"alice"), (shared, b"bob-d")),
        Errno::EACCES,
    );
    // The directory itself can only be looked at.
    let chmod = SetAttr {
        mode: Some(0),
        ..crate::common::set_attr(Target::Ino(shared))
    };
    refused(v.run(BOB, Action::SetAttr(chmod)), Errno::EACCES);
    // A member's rename of the directory between takes it away.
    v.rename(MEMBER, (shared, b"bob-a"), (shared, b"a"))?;
    refused(v.read_ino(BOB, inner), Errno::ESTALE);
    v.check();
    Ok(())
}

/// What is remembered of one name holds for names with the same prefixes alone, however many such sets there are.
#[test]
fn names_are_told_apart_by_their_prefixes() -> Result<()> {
    let mut v = Volume::new();
    let shared = v.dir(ROOT, b"shared");
    let prefixes = [&b"a"[..], b"ab", b"abc", b"b", b"bc"];
    let names = [&b"a1"[..], b"ab1", b"abc1", b"b1", b"bc1", b"c1"];
    for name in names {
        v.file(shared, name);
    }
    // Each gives what no other gives: to read, to write, to set attributes; to look and to take away.
    let rights = [
        Rights::READ,
        Rights::WRITE,
        Rights::SETATTR,
        Rights::LOOKUP | Rights::READDIR,
        Rights::UNLINK,
    ];
    for (prefix, rights) in prefixes.into_iter().zip(rights) {
        let mut t = terms(BOB, shared.0);
        t.rights = rights | Rights::LOOKUP | Rights::READDIR;
        t.serial = prefix.len() as u64 * 256 + u64::from(prefix[0]);
        t.caveats.push(Caveat::NamePrefix(text(prefix)));
        let chain = v.issue(BOB, t);
        v.put(BOB, &chain)?;
    }
    // Again and again, so that each is asked for when others have taken its place.
    for _ in 0..3 {
        for name in names {
            let found = v.lookup(BOB, shared, name).map(|attr| attr.ino);
            let Ok(ino) = found else {
                assert_eq!((name, found), (&b"c1"[..], Err(Errno::ENOENT)));
                continue;
            };
            let reads = v.read_ino(BOB, ino).is_ok();
            let writes = v.write(BOB, Target::Ino(ino), name).is_ok();
            assert_eq!(reads, name[0] == b'a', "{name:?}");
            assert_eq!(writes, name.starts_with(b"ab"), "{name:?}");
            if !name.starts_with(b"bc") {
                refused(v.unlink(BOB, shared, name), Errno::EACCES);
            }
        }
        assert_eq!(v.names(BOB, shared)?.len(), 5);
    }
    v.unlink(BOB, shared, b"bc1")?;
    v.check();
    Ok(())
}

/// To the second of agreed time, at both ends.
#[test]
fn ends_are_exact() -> Result<()> {
    let mut v = Volume::new();
    let file = v.file(ROOT, b"file");
    let start = v.second() + 5;
    let mut t = terms(BOB, file.0);
    t.scope.subtree = false;
    (t.window.not_before, t.window.not_after) = (start, start + 9);
    let chain = v.issue(BOB, t);
    v.put(BOB, &chain)?;
    let at = |v: &mut Volume, nanos: u64| {
        v.now = nanos - 1_000;
        v.read_ino(BOB, file).map(drop)
    };
    let second = 1_000_000_000;
    refused(at(&mut v, start * second - 1), Errno::EACCES);
    at(&mut v, start * second)?;
    at(&mut v, (start + 10) * second - 1)?;
    refused(at(&mut v, (start + 10) * second), Errno::EACCES);
    Ok(())
}

/// A hard link takes nothing into a tree, or out of it, that a guest could not use before.
#[test]
fn hard_links_widen_nothing() -> Result<()> {
    let mut v = Volume::new();
    let (a, b) = (v.dir(ROOT, b"a"), v.dir(ROOT, b"b"));
    let (file, secret) = (v.file(a, b"file"), v.file(ROOT, b"secret"));
    v.share(BOB, a, Rights::READING | Rights::LINK | Rights::RENAME_FROM);
    v.share(BOB, b, RW);
    refused(v.link(BOB, secret, b, b"x"), Errno::ESTALE);
    // In b he could write to it; also by moving it there.
    refused(v.link(BOB, file, b, b"x"), Errno::EXDEV);
    refused(v.rename(BOB, (a, b"file"), (b, b"x")), Errno::EXDEV);
    v.link(BOB, file, a, b"second")?;
    // What a member links into the tree is shared, as long as a name is in it.
    v.link(MEMBER, secret, b, b"shown")?;
    v.write(BOB, Target::Ino(secret), b"SECRET")?;
    v.unlink(MEMBER, ROOT, b"secret")?;
    assert_eq!(v.read_ino(BOB, secret)?, text(b"SECRET"));
    v.link(MEMBER, secret, ROOT, b"again")?;
    v.link(MEMBER, secret, ROOT, b"third")?;
    v.rename(MEMBER, (b, b"shown"), (ROOT, b"hidden"))?;
    refused(v.read_ino(BOB, secret), Errno::ESTALE);
    v.rename(MEMBER, (ROOT, b"third"), (b, b"third"))?;
    assert_eq!(v.read_ino(BOB, secret)?, text(b"SECRET"));
    v.unlink(BOB, b, b"third")?;
    refused(v.read_ino(BOB, secret), Errno::ESTALE);
    v.check();
    Ok(())
}

/// Two credentials that say the same are two all the same: what is taken back with the one must not live on by the other.
#[test]
fn nothing_is_saved_from_a_revocation() -> Result<()> {
    let mut v = Volume::new();
    let (a, b) = (v.dir(ROOT, b"a"), v.dir(ROOT, b"b"));
    let (dir, file) = (v.dir(a, b"dir"), v.file(a, b"file"));
    v.share(BOB, a, RW);
    v.share(BOB, b, RW);
    refused(v.link(BOB, file, b, b"x"), Errno::EXDEV);
    refused(v.rename(BOB, (a, b"file"), (b, b"x")), Errno::EXDEV);
    refused(v.rename(BOB, (a, b"dir"), (b, b"x")), Errno::EXDEV);
    // Within one of them all is as it was.
    v.rename(BOB, (a, b"file"), (dir, b"file"))?;
    v.link(BOB, file, a, b"again")?;
    Ok(())
}

/// An operation that asks for nothing to be changed is one all the same.
#[test]
fn an_empty_change_needs_a_right() -> Result<()> {
    let mut v = Volume::new();
    let file = v.file(ROOT, b"file");
    v.share(BOB, file, Rights::APPEND);
    let empty = SetAttr {
        target: Target::Ino(file),
        mode: None,
        uid: None,
        gid: None,
        size: None,
        atime: None,
        mtime: None,
    };
    refused(v.run(BOB, Action::SetAttr(empty)), Errno::EACCES);
    Ok(())
}

/// A number is never used again: a credential for a file that is gone says nothing about the next one.
#[test]
fn numbers_are_not_used_again() -> Result<()> {
    let mut v = Volume::new();
    let song = v.file(ROOT, b"song.mp3");
    v.share(BOB, song, RW);
    v.read_ino(BOB, song)?;
    v.unlink(MEMBER, ROOT, b"song.mp3")?;
    let tax = v.file(ROOT, b"tax_return.dat");
    let same_name = v.file(ROOT, b"song.mp3");
    for ino in [song, tax, same_name] {
        refused(v.read_ino(BOB, ino), Errno::ESTALE);
    }
    // Also when nothing is left of it: a file that had the highest number lingers for a while, a directory is gone at once.
    let last = v.file(ROOT, b"last");
    v.share(BOB, last, RW);
    v.unlink(MEMBER, ROOT, b"last")?;
    v.wait(31);
    v.unlink(MEMBER, ROOT, b"tax_return.dat")?;
    let next = v.file(ROOT, b"next");
    refused(v.read_ino(BOB, next), Errno::ESTALE);
    let shared = v.dir(ROOT, b"shared");
    v.share(BOB, shared, Rights::ALL);
    let name = b"shared"[..].into();
    v.run(MEMBER, Action::Rmdir(Rmdir { parent: ROOT, name }))?;
    let private = v.dir(ROOT, b"private");
    assert!(next.0 > last.0 && private.0 > shared.0);
    refused(v.attr(BOB, private), Errno::ESTALE);
    Ok(())
}

/// Handles are asked about at each use: after a revocation, a rename out of the tree, an end.
#[test]
fn open_files_stop() -> Result<()> {
    let mut v = Volume::new();
    let shared = v.dir(ROOT, b"shared");
    let file = v.file(shared, b"file");
    v.share(BOB, shared, RW);
    let handle = v.open(BOB, file, flags::READ | flags::WRITE)?;
    let target = || Target::Handle(handle);
    v.rename(MEMBER, (shared, b"file"), (ROOT, b"file"))?;
    refused(v.read(BOB, target()), Errno::ESTALE);
    refused(v.write(BOB, target(), b"x"), Errno::ESTALE);
    v.rename(MEMBER, (ROOT, b"file"), (shared, b"file"))?;
    v.write(BOB, target(), b"FILE")?;
    // One that was removed while open is still where it was.
    v.unlink(BOB, shared, b"file")?;
    assert_eq!(v.read(BOB, target())?, text(b"FILE"));
    let of = Serial {
        issuer: public(0),
        serial: u64::from(BOB),
    };
    v.revoke(0, Revoked::Serial(of), None, None)?;
    refused(v.read(BOB, target()), Errno::EACCES);
    refused(v.write(BOB, target(), b"x"), Errno::EACCES);
    refused(v.run(BOB, Action::GetAttr(target())), Errno::EACCES);
    // What was open has gone with the first change that was refused.
    refused(v.run(BOB, Action::Release(handle)), Errno::EBADF);
    v.run(BOB, Action::Ping(Nothing))?;
    v.check();
    Ok(())
}

/// Guests, who need no right but to read, can't have all places for locks of a file; and where these places are full, those go that could not be taken any more.
#[test]
fn guests_leave_others_places_for_locks() -> Result<()> {
    let mut v = Volume::new();
    let shared = v.dir(Ino::ROOT, b"shared");
    let file = v.file(shared, b"file");
    let chains = [BOB, CAROL].map(|guest| v.share(guest, shared, Rights::LOOKUP | Rights::READ));
    let lock = |v: &mut Volume, key, handle: Handle, at: u64| {
        let op = Lock {
            handle,
            space: LockSpace::Posix,
            owner: 1,
            start: 2 * at,
            end: 2 * at,
            kind: LockKind::Read,
            pid: 1,
            test: false,
        };
        v.run(key, Action::Lock(op)).map(drop)
    };
    let [bob, carol, own] = [BOB, CAROL, MEMBER].map(|key| v.open(key, file, flags::READ));
    let (bob, carol, own) = (bob?, carol?, own?);
    for at in 0..300 {
        lock(&mut v, BOB, bob, at)?;
    }
    for at in 0..212 {
        lock(&mut v, CAROL, carol, at)?;
    }
    refused(lock(&mut v, CAROL, carol, 999), Errno::ENOLCK);
    refused(lock(&mut v, BOB, bob, 999), Errno::ENOLCK);
    for at in 0..512 {
        lock(&mut v, MEMBER, own, at)?;
    }
    refused(lock(&mut v, MEMBER, own, 999), Errno::ENOLCK);
    v.check();
    let of = Serial {
        issuer: public(0),
        serial: chains[0].links()[0].terms.serial,
    };
    v.revoke(0, Revoked::Serial(of), None, None)?;
    lock(&mut v, MEMBER, own, 999)?;
    lock(&mut v, CAROL, carol, 999)?;
    v.check();
    Ok(())
}

/// A guest's lock stands in nobody's way once it could not be taken any more; what the guest has open goes when it has no credential left.
#[test]
fn who_is_out_keeps_nothing() -> Result<()> {
    let mut v = Volume::new();
    let shared = v.dir(Ino::ROOT, b"shared");
    let file = v.file(shared, b"file");
    let chain = v.share(1, shared, Rights::ALL);
    let lock = |v: &mut Volume, key, handle: Handle, kind| {
        let op = Lock {
            handle,
            space: LockSpace::Posix,
            owner: 1,
            start: 0,
            end: u64::MAX,
            kind,
            pid: 1,
            test: false,
        };
        v.run(key, Action::Lock(op)).map(drop)
    };
    let his = v.open(1, file, flags::READ | flags::WRITE)?;
    let own = v.open(MEMBER, file, flags::READ | flags::WRITE)?;
    lock(&mut v, 1, his, LockKind::Write)?;
    refused(lock(&mut v, MEMBER, own, LockKind::Read), Errno::EAGAIN);
    v.unlink(MEMBER, shared, b"file")?;
    let of = Serial {
        issuer: public(0),
        serial: chain.links()[0].terms.serial,
    };
    v.revoke(0, Revoked::Serial(of), None, None)?;
    lock(&mut v, MEMBER, own, LockKind::Write)?;
    v.check();
    // Its handle is still counted, until it says anything.
    v.run(MEMBER, Action::Release(own))?;
    assert!(v.attr(MEMBER, file).is_ok(), "he has it open");
    v.run(1, Action::Ping(Nothing))?;
    refused(v.attr(MEMBER, file), Errno::ESTALE);
    refused(v.run(1, Action::Release(his)), Errno::EBADF);
    v.check();

    // With another credential that does not allow the lock, the lock goes and the handle stays.
    let other = v.file(shared, b"other");
    let mut t = terms(1, shared.0);
    (t.serial, t.rights) = (7, Rights::ALL);
    let wide = v.issue(1, t);
    v.put(1, &wide)?;
    let mut t = terms(1, shared.0);
    (t.serial, t.rights) = (8, Rights::LOOKUP | Rights::READ);
    let narrow = v.issue(1, t);
    v.put(1, &narrow)?;
    let his = v.open(1, other, flags::READ | flags::WRITE)?;
    let own = v.open(MEMBER, other, flags::READ | flags::WRITE)?;
    lock(&mut v, 1, his, LockKind::Read)?;
    refused(lock(&mut v, MEMBER, own, LockKind::Write), Errno::EAGAIN);
    let of = Serial {
        issuer: public(0),
        serial: 7,
    };
    v.revoke(0, Revoked::Serial(of), None, None)?;
    refused(lock(&mut v, MEMBER, own, LockKind::Write), Errno::EAGAIN);
    v.run(1, Action::Ping(Nothing))?;
    assert_eq!(v.read(1, Target::Handle(his))?, &b"other"[..]);
    v.revoke(0, Revoked::Key(public(1)), None, None)?;
    lock(&mut v, MEMBER, own, LockKind::Write)?;
    v.check();
    Ok(())
}

/// A revocation counts at once for all that it matches, however long it takes to let go of them.
#[test]
fn revocations_do_not_wait() -> Result<()> {
    let mut v = Volume::new();
    let file = v.file(ROOT, b"file");
    for guest in 1..=100 {
        let mut t = terms(guest, file.0);
        t.serial = 7;
        let chain = v.issue(guest, t);
        v.put(guest, &chain)?;
        v.read_ino(guest, file)?;
    }
    let of = Serial {
        issuer: public(0),
        serial: 7,
    };
    v.revoke(0, Revoked::Serial(of), None, None)?;
    let kept = v.grants(MEMBER);
    assert!(kept.len() > 50 && kept.iter().all(|kept| kept.is_revoked));
    for guest in 1..=100 {
        refused(v.read_ino(guest, file), Errno::EACCES);
    }
    // Each logged operation lets go of some.
    for guest in 1..=4 {
        refused(v.open(guest, file, flags::READ), Errno::EACCES);
    }
    assert_eq!(v.grants(MEMBER).len(), 0);
    v.check();
    Ok(())
}

/// What is told after an operation is what holds after it.
#[test]
fn attributes_are_those_of_afterwards() -> Result<()> {
    let mut v = Volume::new();
    let b = v.dir(ROOT, b"b");
    let a = v.dir(b, b"a");
    let file = v.file(a, b"file");
    v.share(BOB, a, RW);
    let moves = Rights::RENAME_FROM | Rights::RENAME_INTO;
    v.share(BOB, b, Rights::READING | moves);
    let rename = Action::Rename(Rename {
        parent: a,
        name: text(b"file"),
        new_parent: b,
        new_name: text(b"file"),
        mode: RenameMode::Replace,
    });
    match v.run(BOB, Action::WithAttrs(WithAttrs::new(vec![file], rename)))? {
        Answer::WithAttrs(with) => {
            let modes = [with.before, with.after].map(|attrs| attrs[0].as_ref().unwrap().mode);
            assert_eq!(modes, [0o666, 0o444]);
        }
        other => panic!("{other:?}"),
    }
    Ok(())
}

/// So many bytes under a link, by all who hold a part of it, and by no other way of writing.
#[test]
fn quotas_are_of_links() -> Result<()> {
    let mut v = Volume::new();
    let shared = v.dir(ROOT, b"shared");
    let file = v.file(shared, b"file");
    let mut t = terms(BOB, shared.0);
    t.caveats.push(Caveat::ByteQuota(10));
    let bob = v.issue(BOB, t);
    let mut t = terms(CAROL, shared.0);
    t.depth = 1;
    let carol = bob.delegate(&key(BOB), t).unwrap();
    v.put(BOB, &bob)?;
    v.put(CAROL, &carol)?;
    v.write(BOB, Target::Ino(file), b"12345")?;
    v.write(CAROL, Target::Ino(file), b"1234")?;
    refused(v.write(CAROL, Target::Ino(file), b"12"), Errno::EDQUOT);
    let copy = CopyRange {
        from: Target::Ino(file),
        offset: 0,
        to: Target::Ino(file),
        to_offset: 100,
        len: 4,
    };
    refused(v.run(BOB, Action::CopyRange(copy)), Errno::EDQUOT);
    let fallocate = Fallocate {
        target: Target::Ino(file),
        mode: FallocateMode::Allocate,
        offset: 0,
        len: 4096,
    };
    refused(v.run(BOB, Action::Fallocate(fallocate)), Errno::EDQUOT);
    v.write(BOB, Target::Ino(file), b"1")?;
    refused(v.write(BOB, Target::Ino(file), b"1"), Errno::EDQUOT);
    assert_eq!(v.grants(BOB)[0].written, [10]);
    assert_eq!(v.grants(CAROL)[0].written, [10]);
    // Bringing it again forgets nothing.
    v.put(BOB, &bob)?;
    refused(v.write(BOB, Target::Ino(file), b"1"), Errno::EDQUOT);
    assert_eq!(v.read_ino(BOB, file)?, text(b"12345"));
    v.check();
    Ok(())
}

/// Ordered operations of guests are logged, with the links and tags of what allowed them; reads and members are not.
#[test]
fn guests_are_logged() -> Result<()> {
    let mut v = Volume::new();
    let shared = v.dir(ROOT, b"shared");
    let file = v.file(shared, b"file");
    let mut t = terms(BOB, shared.0);
    t.serial = 42;
    t.rights = Rights::READING;
    t.caveats.push(Caveat::AuditTag("contract 7".into()));
    let chain = v.issue(BOB, t);
    v.put(BOB, &chain)?;
    v.read_ino(BOB, file)?;
    v.open(BOB, file, flags::READ)?;
    refused(v.unlink(BOB, shared, b"file"), Errno::EACCES);
    v.run(BOB, Action::Ping(Nothing))?;
    let log = v.log_of(MEMBER);
    let rows: Vec<_> = log
        .rows
        .iter()
        .map(|row| (row.action, row.object, row.decision))
        .collect();
    let expected = [
        (32, Ino(0), Decision::Allowed),
        (6, file, Decision::Allowed),
        (16, shared, Decision::Denied),
    ];
    assert_eq!(rows, expected);
    assert_eq!(
        log.rows[1].links,
        [Serial {
            issuer: public(0),
            serial: 42
        }]
    );
    assert_eq!(log.rows[1].tag_text(), "contract 7");
    assert_eq!(log.rows[2].error(), Some(Errno::EACCES));
    v.check();
    Ok(())
}

/// A link about the number that the gate takes for any object is about none that there is: also where it was decided about a directory what it
/// gives below.
#[test]
fn a_link_about_no_object_gives_nothing() -> Result<()> {
    let mut v = Volume::new();
    let dir = v.dir(Ino::ROOT, b"dir");
    let (own, other) = (v.file(dir, b"own"), v.file(dir, b"other"));
    v.share(BOB, own, Rights::READING);
    let mut t = terms(BOB, 0);
    t.scope.object = ObjectId(u128::MAX);
    t.serial = 2;
    let chain = v.issue(BOB, t);
    v.put(BOB, &chain)?;
    v.read_ino(BOB, own)?;
    for file in [other, other] {
        refused(v.read_ino(BOB, file), Errno::ESTALE);
        refused(v.attr(BOB, file), Errno::ESTALE);
    }
    v.check();
    Ok(())
}
