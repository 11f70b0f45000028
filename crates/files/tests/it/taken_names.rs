//! What a guest learns of names that it may not look up.

use crate::common::Result;
use crate::sharing::{MEMBER, Volume, refused, terms};
use bytes::Bytes;
use quorate_credential::{Caveat, Rights};
use quorate_files::op::*;
use quorate_files::{Action, Errno, Ino};

const BOB: u8 = 1;
const ROOT: Ino = Ino::ROOT;

/// Who may put names into a directory is told which are taken, as anybody would find out who gets one or not; not what has them, and nothing of names that
/// it could not have.
#[test]
fn taken_names_are_told_to_who_may_make_some() -> Result<()> {
    let mut v = Volume::new();
    let (dir, own) = (v.dir(ROOT, b"dir"), v.dir(ROOT, b"own"));
    for name in [&b"my-taken"[..], b"taken"] {
        v.file(dir, name);
    }
    let mut t = terms(BOB, dir.0);
    t.rights = Rights::CREATE | Rights::LINK | Rights::RENAME_INTO | Rights::RENAME_FROM;
    t.serial = 1;
    t.caveats
        .push(Caveat::NamePrefix(Bytes::from_static(b"my-")));
    let chain = v.issue(BOB, t);
    v.put(BOB, &chain)?;
    let mut move_in = |name: &[u8]| {
        v.file(own, b"file");
        // Within the directory, so that it gives nobody more.
        v.rename(MEMBER, (own, b"file"), (dir, b"my-file")).unwrap();
        let from = (dir, &b"my-file"[..]);
        let moved = v.rename_in(BOB, from, (dir, name), RenameMode::NoReplace);
        if moved.is_err() {
            v.unlink(MEMBER, dir, b"my-file").unwrap();
        }
        moved
    };
    move_in(b"my-free")?;
    refused(move_in(b"my-taken"), Errno::EEXIST);
    refused(v.mkdir(BOB, dir, b"my-taken"), Errno::EEXIST);
    v.mkdir(BOB, dir, b"my-dir")?;
    // Nor is it told more: what it is, or by an open.
    refused(v.lookup(BOB, dir, b"my-taken"), Errno::EACCES);
    refused(v.create(BOB, dir, b"my-taken"), Errno::EACCES);
    let replaced = v.rename(BOB, (dir, b"my-free"), (dir, b"my-taken"));
    refused(replaced, Errno::EACCES);
    // Of other names it learns nothing, taken or not.
    for name in [&b"taken"[..], b"free"] {
        let rename = Rename {
            parent: dir,
            name: Bytes::from_static(b"my-free"),
            new_parent: dir,
            new_name: Bytes::copy_from_slice(name),
            mode: RenameMode::NoReplace,
        };
        refused(v.run(BOB, Action::Rename(rename)), Errno::EACCES);
        refused(v.mkdir(BOB, dir, name), Errno::EACCES);
        refused(v.lookup(BOB, dir, name), Errno::EACCES);
    }
    v.check();
    Ok(())
}
