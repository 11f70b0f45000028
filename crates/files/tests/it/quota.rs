//! Quotas of directories: what counts, what is refused, and who may set them.

use crate::common::{GENESIS, Result, World};
use bytes::Bytes;
use quorate_files::answer::{Adopted, Answer, QuotaRow, StatFs};
use quorate_files::layout::{LINGER_NANOS, MAX_QUOTAS, XATTR_BYTES};
use quorate_files::op::*;
use quorate_files::{Errno, Genesis, Ino, Nothing};

const ROOT: Ino = Ino(1);

fn set(
    w: &mut World,
    who: &Who,
    dir: Ino,
    limits: Option<(Option<u64>, Option<u64>)>,
) -> Result<()> {
    let limits = limits.map(|(bytes, files)| Limits { bytes, files });
    w.run(1, who, Action::SetQuota(SetQuota { dir, limits }))
        .map(drop)
}

fn limit(w: &mut World, dir: Ino, bytes: u64, files: u64) {
    set(w, &Who::root(), dir, Some((Some(bytes), Some(files)))).unwrap();
}

fn quotas(w: &mut World, who: &Who, about: Option<Ino>) -> Result<Vec<QuotaRow>> {
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        match w.run(1, who, Action::Quotas(Quotas { about, after }))? {
            Answer::Quotas(part) => {
                all.extend(part.quotas);
                match part.next {
                    Some(next) => after = next,
                    None => return Ok(all),
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Bytes and objects in use under the quota that an object counts under.
fn used(w: &mut World, ino: Ino) -> (u64, u64) {
    w.check();
    let rows = quotas(w, &Who::root(), Some(ino)).unwrap();
    (rows[0].used_bytes, rows[0].used_files)
}

fn adopt(w: &mut World, dir: Ino, after: u64) -> Result<Adopted> {
    match w.run(1, &Who::root(), Action::Adopt(Adopt { dir, after }))? {
        Answer::Adopted(adopted) => Ok(adopted),
        other => panic!("{other:?}"),
    }
}

fn rename(w: &mut World, from: (Ino, &[u8]), to: (Ino, &[u8]), mode: RenameMode) -> Result<()> {
    let action = Action::Rename(Rename {
        parent: from.0,
        name: Bytes::copy_from_slice(from.1),
        new_parent: to.0,
        new_name: Bytes::copy_from_slice(to.1),
        mode,
    });
    w.run(1, &Who::root(), action).map(drop)
}

fn link(w: &mut World, ino: Ino, parent: Ino, name: &[u8]) -> Result<()> {
    let name = Bytes::copy_from_slice(name);
    let action = Action::Link(Link { ino, parent, name });
    w.run(1, &Who::root(), action).map(drop)
}

fn dir(w: &mut World, parent: Ino, name: &[u8]) -> Ino {
    w.mkdir(&Who::root(), parent, name, 0o777).unwrap()
}

fn write(w: &mut World, ino: Ino, blocks: usize) -> Result<()> {
    let data = vec![7; blocks * 4096];
    w.write(&Who::root(), Target::Ino(ino), 0, &data).map(drop)
}

fn statfs(w: &mut World, ino: Ino) -> StatFs {
    match w.run(1, &Who::root(), Action::StatFsOf(ino)).unwrap() {
        Answer::StatFs(stat) => stat,
        other => panic!("{other:?}"),
    }
}

/// Blocks, entries, attributes and objects count, and count no more when they go.
#[test]
fn what_is_there_counts() {
    let mut w = World::new();
    let top = dir(&mut w, ROOT, b"top");
    limit(&mut w, top, 1 << 20, 100);
    assert_eq!(used(&mut w, top), (0, 1));
    let below = dir(&mut w, top, b"below");
    let (file, handle) = w.create(below, b"file");
    assert_eq!(used(&mut w, file), (512, 3));
    write(&mut w, file, 3).unwrap();
    assert_eq!(used(&mut w, top), (512 + 3 * 4096, 3));
    w.truncate(file, 4096).unwrap();
    assert_eq!(used(&mut w, top), (512 + 4096, 3));
    let set = Action::SetXattr(SetXattr {
        ino: file,
        name: Bytes::from_static(b"user.a"),
        value: Bytes::from_static(b"1234"),
        mode: XattrMode::Set,
    });
    w.run(1, &Who::root(), set).unwrap();
    let xattr = XATTR_BYTES + 10;
    assert_eq!(used(&mut w, top), (512 + 4096 + xattr, 3));
    // A further name costs an entry; without a name it counts until it is closed.
    link(&mut w, file, top, b"other").unwrap();
    assert_eq!(used(&mut w, top), (768 + 4096 + xattr, 3));
    w.unlink(&Who::root(), top, b"other").unwrap();
    w.unlink(&Who::root(), below, b"file").unwrap();
    assert_eq!(used(&mut w, top), (256 + 4096 + xattr, 3));
    w.run(1, &Who::root(), Action::Release(handle)).unwrap();
    assert_eq!(used(&mut w, top), (256, 2));
    // Beside it nothing counts.
    w.create(ROOT, b"beside");
    assert_eq!(used(&mut w, top), (256, 2));
}

/// What exceeds a limit is refused whole; what takes away is not.
#[test]
fn what_exceeds_is_refused() {
    let mut w = World::new();
    let top = dir(&mut w, ROOT, b"top");
    limit(&mut w, top, 10 * 4096, 3);
    let (file, _) = w.create(top, b"file");
    write(&mut w, file, 9).unwrap();
    let before = w.contents();
    assert_eq!(write(&mut w, file, 10), Err(Errno::EDQUOT));
    assert!(w.contents() == before, "a refused write left something");
    // What is there already can be written again.
    write(&mut w, file, 9).unwrap();
    let fill = |w: &mut World, len| {
        let action = Action::Fallocate(Fallocate {
            target: Target::Ino(file),
            mode: FallocateMode::Allocate,
            offset: 0,
            len,
        });
        w.run(1, &Who::root(), action).map(drop)
    };
    assert_eq!(fill(&mut w, 20 * 4096), Err(Errno::EDQUOT));
    dir(&mut w, top, b"a");
    assert_eq!(
        w.mkdir(&Who::root(), top, b"b", 0o777),
        Err(Errno::EDQUOT),
        "a fourth object"
    );
    assert_eq!(
        w.create_as(&Who::root(), top, b"c", 0o644).err(),
        Some(Errno::EDQUOT)
    );

    // Below what is there: nothing can be added, and everything can be taken away.
    limit(&mut w, top, 4096, 1);
    assert_eq!(link(&mut w, file, top, b"d"), Err(Errno::EDQUOT));
    w.truncate(file, 4096).unwrap();
    w.unlink(&Who::root(), top, b"file").unwrap();
    w.end_session(1);
    assert_eq!(used(&mut w, top), (256, 2));
    // Without a limit it counts all the same.
    set(&mut w, &Who::root(), top, Some((None, None))).unwrap();
    let (file, _) = w.create(top, b"file");
    write(&mut w, file, 100).unwrap();
    assert_eq!(used(&mut w, top), (512 + 100 * 4096, 3));
}

/// What moves from one quota to another counts there; what can't be moved in one step is refused as between volumes.
#[test]
fn what_moves_counts_elsewhere() {
    let mut w = World::new();
    let (a, b) = (dir(&mut w, ROOT, b"a"), dir(&mut w, ROOT, b"b"));
    limit(&mut w, a, 1 << 20, 10);
    limit(&mut w, b, 5 * 4096, 10);
    let (file, _) = w.create(a, b"file");
    write(&mut w, file, 3).unwrap();
    rename(&mut w, (a, b"file"), (b, b"file"), RenameMode::Replace).unwrap();
    assert_eq!(used(&mut w, a), (0, 1));
    assert_eq!(used(&mut w, b), (256 + 3 * 4096, 2));
    // Instead of what is there, the sum counts: three blocks go as three come.
    let (other, _) = w.create(a, b"other");
    write(&mut w, other, 3).unwrap();
    rename(&mut w, (a, b"other"), (b, b"file"), RenameMode::Replace).unwrap_err();
    w.end_session(1);
    rename(&mut w, (a, b"other"), (b, b"file"), RenameMode::Replace).unwrap();
    assert_eq!(used(&mut w, b), (256 + 3 * 4096, 2));
    let (large, _) = w.create(a, b"large");
    write(&mut w, large, 6).unwrap();
    let refused = rename(&mut w, (a, b"large"), (b, b"large"), RenameMode::Replace);
    assert_eq!(refused, Err(Errno::EDQUOT));
    let refused = rename(&mut w, (a, b"large"), (b, b"file"), RenameMode::Exchange);
    assert_eq!(refused, Err(Errno::EDQUOT));
    w.truncate(large, 4096).unwrap();
    rename(&mut w, (a, b"large"), (b, b"file"), RenameMode::Exchange).unwrap();
    assert_eq!(used(&mut w, b), (256 + 4096, 2));

    // Directories: empty ones move, others don't; one with a quota of its own takes it along.
    let empty = dir(&mut w, a, b"empty");
    rename(&mut w, (a, b"empty"), (b, b"empty"), RenameMode::Replace).unwrap();
    dir(&mut w, empty, b"x");
    let refused = rename(&mut w, (b, b"empty"), (a, b"empty"), RenameMode::Replace);
    assert_eq!(refused, Err(Errno::EXDEV));
    let refused = rename(&mut w, (b, b"empty"), (ROOT, b"empty"), RenameMode::Replace);
    assert_eq!(refused, Err(Errno::EXDEV));
    rename(&mut w, (b, b"empty"), (b, b"full"), RenameMode::Replace).unwrap();
    rename(&mut w, (ROOT, b"b"), (a, b"b"), RenameMode::Replace).unwrap();
    let found = quotas(&mut w, &Who::root(), Some(b)).unwrap();
    assert_eq!(&found[0].path[..], b"/a/b");

    // Names: none elsewhere, and a file with two stays where it counts.
    assert_eq!(link(&mut w, large, a, b"l"), Err(Errno::EXDEV));
    link(&mut w, large, b, b"l").unwrap();
    let refused = rename(&mut w, (b, b"l"), (a, b"l"), RenameMode::Replace);
    assert_eq!(refused, Err(Errno::EXDEV));
    w.check();
}

/// What is in a directory before it has a quota is adopted, with all below, step by step; more than the limit if need be.
#[test]
fn what_is_there_is_adopted() {
    let mut w = World::new();
    let top = dir(&mut w, ROOT, b"top");
    let deep = dir(&mut w, top, b"deep");
    let own = dir(&mut w, top, b"own");
    limit(&mut w, own, 1 << 20, 9);
    let (inside, _) = w.create(own, b"inside");
    write(&mut w, inside, 5).unwrap();
    for n in 0..300u32 {
        w.create(deep, format!("file {n}").as_bytes());
    }
    let entries = w.attr(deep).unwrap().size;
    limit(&mut w, top, 4096, 10);
    // Its own entries count, and what is made in it; what was there does not, yet.
    assert_eq!(used(&mut w, top), (512, 1));
    let (early, _) = w.create(top, b"early");
    write(&mut w, early, 1).unwrap_err();
    assert_eq!(used(&mut w, top), (768, 2));
    assert_eq!(adopt(&mut w, deep, 0), Err(Errno::ENODATA));

    let mut adopted = 0;
    let mut dirs = vec![top];
    while let Some(dir) = dirs.pop() {
        let mut after = 0;
        loop {
            let part = adopt(&mut w, dir, after).unwrap();
            adopted += u64::from(part.adopted);
            dirs.extend(part.dirs);
            match part.next {
                Some(next) => after = next,
                None => break,
            }
        }
    }
    assert_eq!(adopted, 1 + entries);
    assert_eq!(used(&mut w, top), (768 + 256 * entries, 3 + entries));
    assert_eq!(used(&mut w, own), (256 + 5 * 4096, 2));
    assert_eq!(
        w.create_as(&Who::root(), deep, b"new", 0o644).err(),
        Some(Errno::EDQUOT)
    );
    // Once more changes nothing.
    assert_eq!(adopt(&mut w, top, 0).unwrap().adopted, 0);
}

/// What moves about while a directory is adopted is counted: nothing that was not looked at gets to where adoption has been.
#[test]
fn nothing_slips_past_adoption() {
    let mut w = World::new();
    let top = dir(&mut w, ROOT, b"top");
    let (done, later) = (dir(&mut w, top, b"done"), dir(&mut w, top, b"later"));
    let tree = dir(&mut w, later, b"tree");
    let (leaf, _) = w.create(tree, b"leaf");
    write(&mut w, leaf, 2).unwrap();
    for name in [&b"file"[..], b"swap", b"twin"] {
        let (file, _) = w.create(later, name);
        write(&mut w, file, 1).unwrap();
        if name == b"twin" {
            link(&mut w, file, ROOT, name).unwrap();
        }
    }
    w.create(done, b"seen");
    limit(&mut w, top, 1 << 20, 100);
    adopt(&mut w, top, 0).unwrap();
    adopt(&mut w, done, 0).unwrap();
    // Both directories count, and what is in one of them does not yet.
    let before = (7 * 256, 4);
    assert_eq!(used(&mut w, top), before);

    // A file is counted as it moves; what can't be counted in one step does not move.
    rename(
        &mut w,
        (later, b"file"),
        (done, b"file"),
        RenameMode::Replace,
    )
    .unwrap();
    assert_eq!(used(&mut w, top), (before.0 + 4096, before.1 + 1));
    for name in [&b"tree"[..], b"twin"] {
        let moved = rename(&mut w, (later, name), (done, name), RenameMode::Replace);
        assert_eq!(moved, Err(Errno::EXDEV));
    }
    let swapped = rename(
        &mut w,
        (done, b"seen"),
        (later, b"tree"),
        RenameMode::Exchange,
    );
    assert_eq!(swapped, Err(Errno::EXDEV));
    // Nor does it take the place of a name that adoption has passed; a name of its own comes after all of them.
    let same = rename(
        &mut w,
        (later, b"swap"),
        (later, b"tree"),
        RenameMode::Exchange,
    );
    assert_eq!(same, Err(Errno::EXDEV));
    rename(
        &mut w,
        (later, b"tree"),
        (later, b"wood"),
        RenameMode::Replace,
    )
    .unwrap();

    adopt(&mut w, later, 0).unwrap();
    adopt(&mut w, tree, 0).unwrap();
    assert_eq!(used(&mut w, top), (before.0 + 256 + 5 * 4096, before.1 + 5));
    rename(
        &mut w,
        (later, b"wood"),
        (done, b"tree"),
        RenameMode::Replace,
    )
    .unwrap();
    // Its other name counts nowhere, so there the file can be called otherwise, also instead of another.
    w.create(ROOT, b"old");
    w.end_session(1);
    rename(&mut w, (ROOT, b"twin"), (ROOT, b"old"), RenameMode::Replace).unwrap();
    assert_eq!(used(&mut w, top).1, before.1 + 5);
    // With that name alone it counts there.
    w.unlink(&Who::root(), later, b"twin").unwrap();
    let out = dir(&mut w, ROOT, b"out");
    rename(&mut w, (ROOT, b"old"), (out, b"old"), RenameMode::Replace).unwrap();
    assert_eq!(used(&mut w, top).1, before.1 + 4);
    w.check();
}

/// A quota that is taken away means nothing any more, nor does one whose directory is gone; a new one begins anew.
#[test]
fn quotas_end() {
    let mut w = World::new();
    let top = dir(&mut w, ROOT, b"top");
    limit(&mut w, top, 4096, 9);
    let (file, _) = w.create(top, b"file");
    assert_eq!(write(&mut w, file, 1), Err(Errno::EDQUOT));
    set(&mut w, &Who::root(), top, None).unwrap();
    assert_eq!(set(&mut w, &Who::root(), top, None), Err(Errno::ENODATA));
    write(&mut w, file, 9).unwrap();
    assert!(quotas(&mut w, &Who::root(), Some(file)).unwrap().is_empty());
    limit(&mut w, top, 4096, 9);
    assert_eq!(used(&mut w, top), (256, 1));
    assert!(quotas(&mut w, &Who::root(), Some(file)).unwrap().is_empty());
    adopt(&mut w, top, 0).unwrap();
    assert_eq!(used(&mut w, top), (256 + 9 * 4096, 2));

    w.unlink(&Who::root(), top, b"file").unwrap();
    let name = Bytes::from_static(b"top");
    let rmdir = Action::Rmdir(Rmdir { parent: ROOT, name });
    w.run(1, &Who::root(), rmdir).unwrap();
    assert!(quotas(&mut w, &Who::root(), None).unwrap().is_empty());
    // The file is still open, and counts nowhere.
    w.write(&Who::root(), Target::Ino(file), 1 << 20, b"more")
        .unwrap();
    w.check();
    w.end_session(1);
    w.check();
    w.now += LINGER_NANOS;
    w.run(1, &Who::root(), Action::Ping(Nothing)).unwrap();
    // Nothing is left of all that.
    let numbers: Vec<_> = w
        .contents()
        .into_keys()
        .filter(|key| key[0] == 0x26)
        .collect();
    assert!(numbers.is_empty(), "{numbers:?}");
}

/// User 0 alone sets and lists; everybody may ask about an object. What there can't be is refused by name, and there are so many.
#[test]
fn who_may_and_how_many() {
    let mut w = World::with(Genesis {
        capacity_inodes: 3000,
        ..GENESIS
    });
    let user = Who::new(1000, 100);
    let top = w.mkdir(&user, ROOT, b"top", 0o700).unwrap();
    assert_eq!(
        set(&mut w, &user, top, Some((None, None))),
        Err(Errno::EPERM)
    );
    assert_eq!(quotas(&mut w, &user, None), Err(Errno::EPERM));
    let adopts = Action::Adopt(Adopt { dir: top, after: 0 });
    assert_eq!(w.run(1, &user, adopts).err(), Some(Errno::EPERM));
    limit(&mut w, top, 1 << 20, 9);
    let (file, _) = w.create_as(&user, top, b"file", 0o600).unwrap();
    let seen = quotas(&mut w, &user, Some(file)).unwrap();
    assert_eq!(
        (seen[0].dir, seen[0].used_files, &seen[0].path[..]),
        (top, 2, &b""[..])
    );

    let any = Some((None, None));
    assert_eq!(set(&mut w, &Who::root(), file, any), Err(Errno::ENOTDIR));
    assert_eq!(set(&mut w, &Who::root(), Ino(999), any), Err(Errno::ESTALE));
    for n in 1..MAX_QUOTAS {
        let dir = dir(&mut w, ROOT, format!("{n}").as_bytes());
        set(&mut w, &Who::root(), dir, any).unwrap();
    }
    let one_more = dir(&mut w, ROOT, b"more");
    assert_eq!(set(&mut w, &Who::root(), one_more, any), Err(Errno::ENOSPC));
    let all = quotas(&mut w, &Who::root(), None).unwrap();
    assert_eq!(all.len(), MAX_QUOTAS);
    assert_eq!(
        (&all[0].path[..], &all[5].path[..]),
        (&b"/top"[..], &b"/5"[..])
    );
}

/// Of a path that is longer than a listing can bear the end is told.
#[test]
fn long_paths_are_cut() {
    const MAX_PATH_BYTES: usize = 1024;
    let mut w = World::new();
    let (mut at, mut path) = (ROOT, Vec::new());
    for depth in 0..6_u8 {
        let name = vec![b'a' + depth; 255];
        at = dir(&mut w, at, &name);
        path.extend([b"/", &name[..]].concat());
        limit(&mut w, at, 1 << 20, 99);
    }
    let rows = quotas(&mut w, &Who::root(), None).unwrap();
    let told: Vec<_> = rows.iter().map(|row| row.path.len()).collect();
    assert_eq!(told, [256, 512, 768, 1024, 1024, 1024]);
    assert_eq!(rows[5].path, path[path.len() - MAX_PATH_BYTES..]);
    assert_eq!(rows[3].path, path[..MAX_PATH_BYTES]);
    w.check();
}

/// statfs(2) tells what a quota leaves, and never more than the volume has.
#[test]
fn space_is_what_the_quota_leaves() {
    let mut w = World::new();
    let top = dir(&mut w, ROOT, b"top");
    assert_eq!(statfs(&mut w, top), w.statfs());
    limit(&mut w, top, 1 << 20, 9);
    let (file, _) = w.create(top, b"file");
    write(&mut w, file, 2).unwrap();
    let stat = statfs(&mut w, file);
    assert_eq!((stat.capacity, stat.used), (1 << 20, 256 + 8192));
    assert_eq!((stat.inodes, stat.used_inodes), (9, 2));
    limit(&mut w, top, 1 << 40, 1 << 40);
    let (stat, all) = (statfs(&mut w, top), w.statfs());
    assert_eq!(stat.capacity - stat.used, all.capacity - all.used);
    assert_eq!(stat.inodes - stat.used_inodes, all.inodes - all.used_inodes);
    limit(&mut w, top, 1, 1);
    let stat = statfs(&mut w, top);
    assert_eq!((stat.capacity, stat.inodes), (stat.used, stat.used_inodes));
    assert_eq!(statfs(&mut w, ROOT), w.statfs());
}
