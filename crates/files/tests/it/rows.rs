//! What each operation of a guest needs, row by row as `docs/credentials.md` has it (section 5, the gate): allowed with that, refused without any one of
//! it, and not there where it is not shared.

use std::collections::BTreeSet;

use bytes::Bytes;
use quorate_credential::{Caveat, Rights};
use quorate_files::op::*;
use quorate_files::{Action, Answer, Errno, Handle, Ino, Kind, Nothing};
use quorate_wire::{Decode, DecodeError, Digest, Reader};

use crate::common::{Result, set_attr};
use crate::sharing::{MEMBER, Volume, lock, public, terms};

const BOB: u8 = 1;
/// Gives nothing with an object: a credential without any right would be none.
const OTHER: Rights = Rights::DELEGATE;

/// A directory, and what is in it: two files, of which each has one byte, a symbolic link, and an empty directory.
#[derive(Clone, Copy, Debug)]
struct Objects {
    dir: Ino,
    file: Ino,
    other: Ino,
    link: Ino,
    sub: Ino,
    /// Of the file, open for reading and writing.
    handle: Handle,
}

/// An operation, what it needs, and what it then comes to.
struct Row {
    name: &'static str,
    action: fn(Objects) -> Action,
    needs: Rights,
    then: Result<()>,
}

fn row(name: &'static str, needs: Rights, action: fn(Objects) -> Action) -> Row {
    let then = Ok(());
    Row {
        name,
        action,
        needs,
        then,
    }
}

fn text(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn lookup(parent: Ino, name: &str) -> Action {
    let name = text(name);
    Action::Lookup(Lookup { parent, name })
}

fn open(ino: Ino, flags: u32) -> Action {
    Action::Open(Open { ino, flags })
}

fn check_open(ino: Ino, flags: u32) -> Action {
    Action::CheckOpen(Open { ino, flags })
}

fn create(parent: Ino, name: &str, flags: u32) -> Action {
    let name = text(name);
    Action::Create(Create {
        parent,
        name,
        mode: 0o666,
        umask: 0,
        flags,
    })
}

fn make(parent: Ino, name: &str) -> Action {
    let name = text(name);
    Action::Make(Make {
        parent,
        name,
        mode: 0o666,
        umask: 0,
        verifier: None,
    })
}

fn rename(dir: Ino, from: &str, to: &str, mode: RenameMode) -> Action {
    Action::Rename(Rename {
        parent: dir,
        name: text(from),
        new_parent: dir,
        new_name: text(to),
        mode,
    })
}

fn write(ino: Ino, place: Place) -> Action {
    Action::Write(Write {
        target: Target::Ino(ino),
        place,
        data: text("more"),
    })
}

fn copy(from: Ino, to: Ino, to_offset: u64) -> Action {
    Action::CopyRange(CopyRange {
        from: Target::Ino(from),
        offset: 0,
        to: Target::Ino(to),
        to_offset,
        len: 1,
    })
}

fn xattr() -> Bytes {
    text("user.x")
}

fn rows() -> Vec<Row> {
    use Rights as R;
    let both = R::RENAME_FROM | R::RENAME_INTO;
    vec![
        row("a name", R::LOOKUP, |o| lookup(o.dir, "file")),
        row("the directory itself", R::LOOKUP, |o| lookup(o.dir, ".")),
        row("the one above", R::LOOKUP, |o| lookup(o.sub, "..")),
        row("attributes", R::LOOKUP, |o| {
            Action::GetAttr(Target::Ino(o.file))
        }),
        row("access", R::LOOKUP, |o| {
            Action::Access(Access {
                ino: o.file,
                mask: 7,
            })
        }),
        row("space", R::LOOKUP, |o| Action::StatFsOf(o.file)),
        row("a quota", R::LOOKUP, |o| {
            Action::Quotas(Quotas {
                about: Some(o.file),
                after: 0,
            })
        }),
        row("mode", R::SETATTR, |o| {
            Action::SetAttr(SetAttr {
                mode: Some(0o640),
                ..set_attr(Target::Ino(o.file))
            })
        }),
        row("times", R::SETATTR, |o| {
            Action::SetAttr(SetAttr {
                mtime: Some(SetTime::Now(Nothing)),
                ..set_attr(Target::Ino(o.file))
            })
        }),
        row("length", R::WRITE, |o| {
            Action::SetAttr(SetAttr {
                size: Some(0),
                ..set_attr(Target::Ino(o.file))
            })
        }),
        row("open to read", R::READ, |o| open(o.file, flags::READ)),
        row("open a directory", R::READDIR, |o| open(o.dir, flags::READ)),
        row("open to write", R::APPEND, |o| open(o.file, flags::WRITE)),
        row("open to cut", R::WRITE, |o| {
            open(o.file, flags::WRITE | flags::TRUNC)
        }),
        row("open to look", R::LOOKUP, |o| open(o.file, 0)),
        row("ask to read", R::READ, |o| check_open(o.file, flags::READ)),
        row("ask to write", R::APPEND, |o| {
            check_open(o.file, flags::WRITE)
        }),
        row("ask to look", R::LOOKUP, |o| check_open(o.file, 0)),
        row("hold", R::NONE, |o| {
            Action::Hold(Hold {
                keep: vec![o.file],
                let_go: vec![],
            })
        }),
        row("create to read", R::CREATE | R::READ, |o| {
            create(o.dir, "new", flags::READ)
        }),
        row("create to write", R::CREATE | R::APPEND, |o| {
            create(o.dir, "new", flags::WRITE)
        }),
        row("create what is there", R::LOOKUP | R::READ, |o| {
            create(o.dir, "file", flags::READ)
        }),
        Row {
            then: Err(Errno::EEXIST),
            ..row("create what must not be there", R::LOOKUP, |o| {
                create(o.dir, "file", flags::READ | flags::EXCLUSIVE)
            })
        },
        row("make", R::CREATE, |o| make(o.dir, "new")),
        row("make what is there", R::LOOKUP, |o| make(o.dir, "file")),
        row("make a directory", R::CREATE, |o| {
            Action::Mkdir(Mkdir {
                parent: o.dir,
                name: text("new"),
                mode: 0o777,
                umask: 0,
            })
        }),
        row("make a pipe", R::CREATE, |o| {
            Action::Mknod(Mknod {
                parent: o.dir,
                name: text("new"),
                kind: Kind::Fifo,
                mode: 0o666,
                umask: 0,
                rdev: 0,
            })
        }),
        row("make a symbolic link", R::CREATE, |o| {
            Action::Symlink(Symlink {
                parent: o.dir,
                name: text("new"),
                target: text("file"),
            })
        }),
        row("link", R::LINK, |o| {
            Action::Link(Link {
                ino: o.file,
                parent: o.dir,
                name: text("new"),
            })
        }),
        row("unlink", R::UNLINK, |o| {
            Action::Unlink(Unlink {
                parent: o.dir,
                name: text("file"),
            })
        }),
        row("remove a directory", R::UNLINK, |o| {
            Action::Rmdir(Rmdir {
                parent: o.dir,
                name: text("sub"),
            })
        }),
        row("rename", both, |o| {
            rename(o.dir, "file", "new", RenameMode::Replace)
        }),
        row("rename to what is not there", both, |o| {
            rename(o.dir, "file", "new", RenameMode::NoReplace)
        }),
        row("replace", both | R::UNLINK, |o| {
            rename(o.dir, "file", "other", RenameMode::Replace)
        }),
        row("exchange", both, |o| {
            rename(o.dir, "file", "other", RenameMode::Exchange)
        }),
        row("read", R::READ, |o| {
            Action::Read(Read {
                target: Target::Ino(o.file),
                offset: 0,
                len: 9,
            })
        }),
        row("read what is open", R::READ, |o| {
            Action::Read(Read {
                target: Target::Handle(o.handle),
                offset: 0,
                len: 9,
            })
        }),
        row("seek", R::READ, |o| {
            Action::Seek(Seek {
                target: Target::Ino(o.file),
                offset: 0,
                whence: Whence::Hole,
            })
        }),
        row("the target of a link", R::READ, |o| {
            Action::Readlink(o.link)
        }),
        row("an attribute", R::READ, |o| {
            Action::GetXattr(GetXattr {
                ino: o.file,
                name: xattr(),
                size: 9,
            })
        }),
        row("names of attributes", R::READ, |o| {
            Action::ListXattr(ListXattr {
                ino: o.file,
                size: 99,
            })
        }),
        row("list", R::READDIR, |o| {
            Action::ReadDir(ReadDir {
                target: Target::Ino(o.dir),
                cookie: 0,
                count: 9,
                plus: false,
            })
        }),
        row("write", R::WRITE, |o| write(o.file, Place::At(0))),
        row("write to the end", R::APPEND, |o| {
            write(o.file, Place::End(Nothing))
        }),
        row("write where it ends", R::APPEND, |o| {
            write(o.file, Place::At(4))
        }),
        row("copy", R::READ | R::WRITE, |o| copy(o.file, o.other, 0)),
        row("copy to where it ends", R::READ | R::APPEND, |o| {
            copy(o.file, o.other, 5)
        }),
        row("allocate", R::WRITE, |o| {
            Action::Fallocate(Fallocate {
                target: Target::Ino(o.file),
                mode: FallocateMode::Allocate,
                offset: 0,
                len: 9,
            })
        }),
        row("set an attribute", R::SETATTR, |o| {
            Action::SetXattr(SetXattr {
                ino: o.file,
                name: xattr(),
                value: text("w"),
                mode: XattrMode::Set,
            })
        }),
        row("remove an attribute", R::SETATTR, |o| {
            Action::RemoveXattr(RemoveXattr {
                ino: o.file,
                name: xattr(),
            })
        }),
        row("lock with others", R::READ, |o| {
            lock(o.handle, LockKind::Read, false)
        }),
        row("lock alone", R::APPEND, |o| {
            lock(o.handle, LockKind::Write, false)
        }),
        row("ask for a lock", R::READ, |o| {
            lock(o.handle, LockKind::Write, true)
        }),
        row("let a lock go", R::NONE, |o| {
            lock(o.handle, LockKind::Unlock, false)
        }),
        row("sync", R::NONE, |o| Action::Fsync(Target::Ino(o.file))),
        row("attributes with it", R::LOOKUP, |o| {
            let with = WithAttrs::new(vec![o.dir], Action::GetAttr(Target::Ino(o.file)));
            Action::WithAttrs(with)
        }),
    ]
}

/// Operations that the gate has no row for: allowed, or refused, whatever the guest may.
fn free(o: Objects) -> Vec<(Action, Result<()>)> {
    let allowed = [
        Action::Ping(Nothing),
        Action::Release(o.handle),
        Action::Grants(Grants {
            about: None,
            after: None,
            count: 9,
        }),
        Action::StatFs(Nothing),
        Action::Hold(Hold {
            keep: vec![],
            let_go: vec![o.file],
        }),
    ];
    let refused = [
        Action::Audit(Audit { from: 0, count: 9 }),
        Action::SetQuota(SetQuota {
            dir: o.dir,
            limits: None,
        }),
        Action::Adopt(Adopt {
            dir: o.dir,
            after: 0,
        }),
        Action::Accessed(Accessed {
            objects: vec![Seen {
                ino: o.file,
                change: 1,
            }],
        }),
        Action::Quotas(Quotas {
            about: None,
            after: 0,
        }),
        Action::Revocations(Revocations {
            after: None,
            count: 9,
        }),
        Action::PassedOn(PassedOn {
            link: Digest([1; 32]),
            about: None,
            after: None,
            count: 9,
        }),
    ];
    let allowed = allowed.map(|action| (action, Ok(())));
    let refused = refused.map(|action| (action, Err(Errno::EPERM)));
    allowed.into_iter().chain(refused).collect()
}

/// What is about credentials has rules of its own: `credentials.rs`.
const OF_CREDENTIALS: [u8; 3] = [32, 33, 42];

/// Two directories like each other, of which one is shared with a guest, who has some rights and acts as root: modes refuse nothing.
fn shared(rights: Rights) -> (Volume, Objects, Objects) {
    let mut v = Volume::new();
    let inside = objects(&mut v, b"inside");
    let outside = objects(&mut v, b"outside");
    let credential = |v: &mut Volume, rights, serial| {
        let mut terms = terms(BOB, inside.dir.0);
        (terms.rights, terms.serial) = (rights, serial);
        terms.caveats.push(Caveat::Ids { uid: 0, gid: 0 });
        let chain = v.issue(BOB, terms);
        v.put(BOB, &chain).expect("it is brought");
    };
    // It opens the file while it may.
    credential(&mut v, Rights::ALL, 1);
    let handle = v.open(BOB, inside.file, flags::READ | flags::WRITE);
    let handle = handle.expect("it is opened");
    credential(&mut v, rights | OTHER, 2);
    let first = Revoked::Serial(Serial {
        issuer: public(0),
        serial: 1,
    });
    v.revoke(0, first, None, None).expect("it is taken back");
    let other = Handle {
        ino: outside.file,
        ..handle
    };
    let inside = Objects { handle, ..inside };
    let outside = Objects {
        handle: other,
        ..outside
    };
    (v, inside, outside)
}

fn objects(v: &mut Volume, name: &[u8]) -> Objects {
    let dir = v.dir(Ino::ROOT, name);
    let file = v.file(dir, b"file");
    let other = v.file(dir, b"other");
    let sub = v.dir(dir, b"sub");
    let target = text("file");
    let link = Symlink {
        parent: dir,
        name: text("link"),
        target,
    };
    let link = match v.run(MEMBER, Action::Symlink(link)).expect("it is made") {
        Answer::Attr(attr) => attr.ino,
        answer => panic!("{answer:?}"),
    };
    let xattr = SetXattr {
        ino: file,
        name: xattr(),
        value: text("v"),
        mode: XattrMode::Set,
    };
    v.run(MEMBER, Action::SetXattr(xattr)).expect("it is set");
    let handle = Handle {
        ino: file,
        number: 0,
    };
    Objects {
        dir,
        file,
        other,
        link,
        sub,
        handle,
    }
}

/// What an operation of the guest's comes to, also where it comes with attributes.
fn run(v: &mut Volume, action: Action) -> Result<()> {
    match v.run(BOB, action)? {
        Answer::WithAttrs(with) => with.outcome.0.map(drop),
        _ => Ok(()),
    }
}

fn each_right(of: Rights) -> impl Iterator<Item = Rights> {
    let all = Rights::NAMES.into_iter().map(|(right, _)| right);
    all.filter(move |right| of.contains(*right))
}

#[test]
fn each_operation_needs_what_its_row_says() {
    for Row {
        name,
        action,
        needs,
        then,
    } in rows()
    {
        let (mut v, inside, outside) = shared(needs);
        let beyond = run(&mut v, action(outside));
        let hidden = [Err(Errno::ESTALE), Err(Errno::ENOENT)];
        assert!(hidden.contains(&beyond), "{name}, not shared: {beyond:?}");
        let done = run(&mut v, action(inside));
        assert_eq!(done, then, "{name}, with {needs:?}");
        // With all others it is refused without any one of them. To write is to append as well.
        for right in each_right(needs) {
            let mut rest = Rights::ALL.without(right);
            if right == Rights::APPEND {
                rest = rest.without(Rights::WRITE);
            }
            let (mut v, inside, _) = shared(rest);
            let done = run(&mut v, action(inside));
            assert_eq!(done, Err(Errno::EACCES), "{name}, without {right:?}");
        }
    }
}

#[test]
fn what_has_no_row_asks_for_nothing() {
    let of_all = free(shared(OTHER).1).len();
    for at in 0..of_all {
        let (mut v, inside, _) = shared(OTHER);
        let (action, then) = free(inside).swap_remove(at);
        let name = format!("{action:?}");
        assert_eq!(run(&mut v, action), then, "{name}");
    }
}

/// A new operation needs a row.
#[test]
fn no_operation_is_left_out() {
    let (_, inside, _) = shared(OTHER);
    let of_rows = rows().into_iter().map(|row| (row.action)(inside));
    let all = of_rows.chain(free(inside).into_iter().map(|(action, _)| action));
    let mut tags: BTreeSet<u8> = all.map(|action| first_byte(&action)).collect();
    tags.extend(OF_CREDENTIALS);
    let is_known = |tag: &u8| {
        let mut bytes = Reader::new(Bytes::copy_from_slice(&[*tag]));
        Action::decode(&mut bytes) != Err(DecodeError::Invalid("tag of Action"))
    };
    let known: BTreeSet<u8> = (0..=u8::MAX).filter(is_known).collect();
    assert_eq!(tags, known);
}

/// The tag of an operation itself, also where it comes with attributes.
fn first_byte(action: &Action) -> u8 {
    quorate_wire::Encode::to_bytes(action)[0]
}

/// A quota of a directory above what is shared limits a guest, and is told; which directory that is, is not.
#[test]
fn a_quota_from_above_names_no_directory() {
    let (mut v, inside, _) = shared(Rights::LOOKUP);
    let limit = |dir| {
        let limits = Limits {
            bytes: Some(1 << 20),
            files: None,
        };
        Action::SetQuota(SetQuota {
            dir,
            limits: Some(limits),
        })
    };
    let asked = |ino| {
        Action::Quotas(Quotas {
            about: Some(ino),
            after: 0,
        })
    };
    let told = |v: &mut Volume, key, ino| match v.run(key, asked(ino)).expect("it is told") {
        Answer::Quotas(rows) => rows.quotas,
        answer => panic!("{answer:?}"),
    };
    for (dir, shown) in [(Ino::ROOT, Ino(0)), (inside.dir, inside.dir)] {
        v.run(0, limit(dir)).expect("it is set");
        adopt(&mut v, dir);
        let (to_bob, to_member) = (
            told(&mut v, BOB, inside.file),
            told(&mut v, MEMBER, inside.file),
        );
        let dirs = [to_bob[0].dir, to_member[0].dir];
        assert_eq!(dirs, [shown, dir]);
        assert_eq!(to_bob[0].limits, to_member[0].limits);
    }
}

/// Has all that is in a directory, and below it, count under its quota.
fn adopt(v: &mut Volume, dir: Ino) {
    let mut left = vec![dir];
    while let Some(dir) = left.pop() {
        match v.run(0, Action::Adopt(Adopt { dir, after: 0 })) {
            Ok(Answer::Adopted(adopted)) => left.extend(adopted.dirs),
            answer => panic!("{answer:?}"),
        }
    }
}
