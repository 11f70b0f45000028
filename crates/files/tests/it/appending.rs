//! Guests who may append and not write: what counts as the end of a file, and what they are shown of that.

use crate::common::Result;
use crate::sharing::{MEMBER, Volume, refused, terms};
use bytes::Bytes;
use quorate_credential::{Caveat, Rights};
use quorate_files::op::*;
use quorate_files::{Action, Answer, Errno, Handle, Ino};

const BOB: u8 = 1;
const CAROL: u8 = 2;
const ROOT: Ino = Ino::ROOT;
const INBOX: [Rights; 3] = [Rights::LOOKUP, Rights::CREATE, Rights::APPEND];

fn inbox() -> Rights {
    INBOX.into_iter().fold(Rights::NONE, |all, one| all | one)
}

fn write_at(v: &mut Volume, key: u8, target: Target, offset: u64, data: &[u8]) -> Result<()> {
    let op = Write {
        target,
        place: Place::At(offset),
        data: Bytes::copy_from_slice(data),
    };
    v.run(key, Action::Write(op)).map(drop)
}

/// As a program makes a file, which says nothing of appending.
fn create(v: &mut Volume, key: u8, dir: Ino, name: &[u8], more: u32) -> Result<(Ino, Handle)> {
    let op = Create {
        parent: dir,
        name: Bytes::copy_from_slice(name),
        mode: 0o666,
        umask: 0,
        flags: flags::WRITE | more,
    };
    match v.run(key, Action::Create(op))? {
        Answer::Opened(opened) => Ok((opened.attr.ino, opened.handle)),
        other => panic!("{other:?}"),
    }
}

/// A new file is written from its beginning to its end, piece by piece, by who may only append; and nothing that is there is changed, by no way of
/// writing. Not beyond the end either.
#[test]
fn a_write_where_the_file_ends_appends() -> Result<()> {
    let mut v = Volume::new();
    let dir = v.dir(ROOT, b"inbox");
    let old = v.file(dir, b"old");
    v.share(BOB, dir, inbox());
    let (new, handle) = create(&mut v, BOB, dir, b"new", flags::TRUNC)?;
    let target = || Target::Handle(handle);
    write_at(&mut v, BOB, target(), 0, b"first, ")?;
    write_at(&mut v, BOB, target(), 7, b"second")?;
    for offset in [0, 6, 12, 14, 1 << 40] {
        for target in [target(), Target::Ino(new)] {
            refused(write_at(&mut v, BOB, target, offset, b"x"), Errno::EACCES);
        }
    }
    // Another one was first: the end is elsewhere now.
    v.append(MEMBER, Target::Ino(new), b"!")?;
    refused(write_at(&mut v, BOB, target(), 13, b"?"), Errno::EACCES);
    v.append(BOB, target(), b"?")?;
    assert_eq!(v.read_ino(MEMBER, new)?, &b"first, second!?"[..]);

    // What is there is opened as well, and neither cut nor replaced.
    let opened = v.open(BOB, old, flags::WRITE)?;
    refused(
        write_at(&mut v, BOB, Target::Handle(opened), 0, b"x"),
        Errno::EACCES,
    );
    write_at(&mut v, BOB, Target::Handle(opened), 3, b"er")?;
    refused(v.open(BOB, old, flags::WRITE | flags::TRUNC), Errno::EACCES);
    refused(
        create(&mut v, BOB, dir, b"old", flags::TRUNC),
        Errno::EACCES,
    );
    create(&mut v, BOB, dir, b"old", 0)?;
    refused(v.open(BOB, old, flags::READ | flags::WRITE), Errno::EACCES);
    refused(v.read(BOB, Target::Handle(opened)), Errno::EACCES);
    for size in [0, 5, 9] {
        let cut = SetAttr {
            size: Some(size),
            ..crate::common::set_attr(Target::Ino(old))
        };
        refused(v.run(BOB, Action::SetAttr(cut)), Errno::EACCES);
    }
    let allocate = Fallocate {
        target: Target::Ino(old),
        mode: FallocateMode::Allocate,
        offset: 5,
        len: 5,
    };
    refused(v.run(BOB, Action::Fallocate(allocate)), Errno::EACCES);
    assert_eq!(v.read_ino(MEMBER, old)?, &b"older"[..]);
    // By number, where somebody else writes elsewhere, and where there is no such file.
    v.share(CAROL, old, Rights::READING);
    refused(
        write_at(&mut v, CAROL, Target::Ino(old), 5, b"x"),
        Errno::EACCES,
    );
    refused(
        write_at(&mut v, CAROL, Target::Ino(new), 15, b"x"),
        Errno::ESTALE,
    );
    refused(
        write_at(&mut v, BOB, Target::Ino(Ino(999)), 0, b"x"),
        Errno::ESTALE,
    );
    v.check();
    Ok(())
}

/// So does what the replicas copy by themselves.
#[test]
fn a_copy_to_where_the_file_ends_appends() -> Result<()> {
    let mut v = Volume::new();
    let dir = v.dir(ROOT, b"inbox");
    let from = v.file(dir, b"from");
    v.share(BOB, dir, inbox() | Rights::READ);
    let (new, handle) = create(&mut v, BOB, dir, b"new", 0)?;
    let copy = |offset, len, to_offset| {
        Action::CopyRange(CopyRange {
            from: Target::Ino(from),
            offset,
            to: Target::Handle(handle),
            to_offset,
            len,
        })
    };
    v.run(BOB, copy(0, 2, 0))?;
    v.run(BOB, copy(2, 2, 2))?;
    for to_offset in [0, 3, 5] {
        refused(v.run(BOB, copy(0, 1, to_offset)), Errno::EACCES);
    }
    assert_eq!(v.read_ino(MEMBER, new)?, &b"from"[..]);
    v.share(CAROL, new, inbox());
    let unread = CopyRange {
        from: Target::Ino(new),
        offset: 0,
        to: Target::Ino(new),
        to_offset: 4,
        len: 1,
    };
    refused(v.run(CAROL, Action::CopyRange(unread)), Errno::EACCES);
    v.check();
    Ok(())
}

/// A quota is of what is appended as well.
#[test]
fn what_is_appended_is_paid_for() -> Result<()> {
    let mut v = Volume::new();
    let file = v.file(ROOT, b"file");
    let mut t = terms(BOB, file.0);
    t.rights = Rights::APPEND;
    t.caveats.push(Caveat::ByteQuota(3));
    let chain = v.issue(BOB, t);
    v.put(BOB, &chain)?;
    write_at(&mut v, BOB, Target::Ino(file), 4, b"12")?;
    refused(
        write_at(&mut v, BOB, Target::Ino(file), 6, b"34"),
        Errno::EDQUOT,
    );
    write_at(&mut v, BOB, Target::Ino(file), 6, b"3")?;
    assert_eq!(v.read_ino(MEMBER, file)?, &b"file123"[..]);
    v.check();
    Ok(())
}

/// The mode that a guest is shown, what access(2) is told, and what an open and a program say, are the same, whatever the guest may.
#[test]
fn what_is_shown_is_what_opens() -> Result<()> {
    let kinds = [
        Rights::READ,
        Rights::WRITE,
        Rights::APPEND,
        Rights::SETATTR,
        Rights::CREATE,
    ];
    for set in 0..1_u32 << kinds.len() {
        let chosen = kinds
            .iter()
            .enumerate()
            .filter(|(at, _)| set >> at & 1 == 1);
        let rights = chosen.fold(Rights::LOOKUP, |all, (_, right)| all | *right);
        let mut v = Volume::new();
        let file = v.file(ROOT, b"file");
        v.share(BOB, file, rights);
        let (mode, told) = (v.attr(BOB, file)?.mode, v.access(BOB, file)?);
        for (access, shown, flags) in [
            (access::READ, 0o444, flags::READ),
            (access::WRITE, 0o222, flags::WRITE),
            (access::WRITE, 0o222, flags::WRITE | flags::APPEND),
        ] {
            let opens = v.open(BOB, file, flags).is_ok();
            let check = Open { ino: file, flags };
            let would = v.run(BOB, Action::CheckOpen(check)).is_ok();
            let is_told = told & access != 0;
            let is_shown = mode & shown == shown;
            assert_eq!([would, is_told, is_shown], [opens; 3], "{rights}: {flags}");
            assert_eq!(mode & shown != 0, is_shown, "{rights}: {flags}");
        }
    }
    Ok(())
}
