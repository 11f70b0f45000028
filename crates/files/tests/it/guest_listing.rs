//! What a guest sees of a directory and what is in it: true, and at a bounded cost.

use std::sync::Arc;

use bytes::Bytes;
use quorate_credential::{Caveat, Rights};
use quorate_files::layout::{DirEntry, Inode};
use quorate_files::op::*;
use quorate_files::{Action, Answer, Ino, Kind};
use quorate_state::{MemorySnapshot, State};

use quorate_wire::{Decode, Encode};

use crate::common::Result;
use crate::common::counted::{Counted, Reads};
use crate::sharing::{MEMBER, Volume, terms};

const BOB: u8 = 1;

/// Puts a volume's rows where reads of them are counted.
pub fn count(v: &mut Volume) -> Reads {
    let entries = v.contents();
    let nodes = Default::default();
    let inner = MemorySnapshot { entries, nodes };
    let reads = Reads::default();
    let counted = Counted {
        inner,
        reads: reads.clone(),
    };
    v.state = State::new(Arc::new(counted));
    reads
}

fn page(v: &mut Volume, dir: Ino) -> quorate_files::answer::Entries {
    let op = ReadDir {
        target: Target::Ino(dir),
        cookie: 0,
        count: MAX_ENTRIES,
        plus: true,
    };
    match v.run(BOB, Action::ReadDir(op)) {
        Ok(Answer::Entries(page)) => page,
        other => panic!("{other:?}"),
    }
}

/// A directory deep down, and two credentials that are both about it.
fn deep(v: &mut Volume) -> Ino {
    let mut at = Ino::ROOT;
    for _ in 0..100 {
        at = v.dir(at, b"dir");
    }
    v.share(BOB, Ino::ROOT, Rights::READING);
    let mut t = terms(BOB, at.0);
    t.serial = 2;
    t.rights = Rights::READING;
    let second = v.issue(BOB, t);
    v.put(BOB, &second).unwrap();
    at
}

/// Who has two credentials has no entry's way up walked: it is the directory's.
#[test]
fn entries_are_not_walked_one_by_one() {
    let mut v = Volume::new();
    let dir = deep(&mut v);
    for n in 0..200 {
        v.file(dir, format!("file {n}").as_bytes());
    }
    // For one of them alone, so that it can be written.
    let one = v.lookup(MEMBER, dir, b"file 7").unwrap().ino;
    let mut t = terms(BOB, one.0);
    t.serial = 3;
    let third = v.issue(BOB, t);
    v.put(BOB, &third).unwrap();
    let reads = count(&mut v);
    let listed = page(&mut v, dir).entries;
    assert_eq!(listed.len(), 202);
    // It is done twice, with and without memory; a name, its entry and its inode are read in each, and few ways.
    let reads = reads.take();
    assert!(reads < 2 * (4 * 200 + 10 * 100), "{reads} rows");
    for entry in listed.iter().filter(|entry| entry.cookie > 2) {
        let mode = entry.attr.as_ref().unwrap().mode;
        assert_eq!(mode & 0o222 != 0, entry.ino == one, "{:?}", entry.name);
        assert_eq!(mode, v.attr(BOB, entry.ino).unwrap().mode);
    }
}

/// Who looks at one file after the other of a directory deep down has the way up from it walked once: what a file's directory gives, it gives.
#[test]
fn files_of_a_known_directory_are_not_walked() {
    let mut v = Volume::new();
    let dir = deep(&mut v);
    let name = |n: usize| format!("file {n}");
    let files: Vec<Ino> = (0..50).map(|n| v.file(dir, name(n).as_bytes())).collect();
    let reads = count(&mut v);
    v.attr(BOB, files[0]).unwrap();
    let first = reads.take();
    assert!(first > 200, "{first} rows with and without memory");
    for file in &files[1..] {
        v.attr(BOB, *file).unwrap();
    }
    // Without memory as many as for the first.
    let each = reads.take() / (files.len() - 1);
    assert!(each < first / 2 + 20, "{each} rows");
}

/// A directory's rows, with so many more names of one file in it, that come after those that there are.
fn crowd(v: &mut Volume, dir: Ino, names: u64) {
    let before = v.contents();
    let file = v.file(dir, b"first");
    let after = v.contents();
    let row = |is: &dyn Fn(&Bytes, &Bytes) -> bool| {
        let new =
            |(key, value): &(&Bytes, &Bytes)| before.get(*key) != Some(*value) && is(key, value);
        after
            .iter()
            .find(new)
            .map(|(key, value)| (key.clone(), value.clone()))
            .unwrap()
    };
    let (named, _) = row(&|_, value| value == "first");
    let (entry, _) = row(&|key, _| key.ends_with(b"first"));
    let is_dir = |_: &Bytes, value: &Bytes| {
        Inode::from_slice(value).is_ok_and(|inode| inode.kind == Kind::Directory)
    };
    let (key, inode) = row(&is_dir);
    let mut inode = Inode::from_slice(&inode).unwrap();
    let mut txn = v.state.begin();
    for cookie in inode.next_cookie..inode.next_cookie + names {
        let name = format!("name {cookie}");
        let of_name = [&entry[..entry.len() - 5], name.as_bytes()].concat();
        let of_cookie = [&named[..named.len() - 8], &cookie.to_be_bytes()].concat();
        let row = DirEntry {
            ino: file,
            kind: Kind::Regular,
            cookie,
        };
        txn.put(of_name.into(), row.to_bytes().into());
        txn.put(of_cookie.into(), name.into());
    }
    inode.next_cookie += names;
    inode.size += names;
    txn.put(key, inode.to_bytes().into());
    txn.commit();
}

/// However many names come before it that a guest may not list, it finds the one that it may.
#[test]
fn names_are_found_behind_any_number() -> Result<()> {
    let mut v = Volume::new();
    let dir = v.dir(Ino::ROOT, b"dir");
    crowd(&mut v, dir, 20_000);
    v.file(dir, b"pub-last");
    let mut t = terms(BOB, dir.0);
    t.caveats.push(Caveat::NamePrefix("pub-".into()));
    let chain = v.issue(BOB, t);
    v.put(BOB, &chain)?;
    let listed = v.list(BOB, dir, MAX_ENTRIES, false)?;
    let names: Vec<_> = listed
        .iter()
        .filter(|e| e.cookie > 2)
        .map(|e| &e.name[..])
        .collect();
    assert_eq!(names, [b"pub-last"]);
    Ok(())
}

/// Who may list none of very many names has a bounded number of them looked at for each page, and of fewer where it asks for small pages.
#[test]
fn a_page_looks_at_so_many_names() {
    let mut v = Volume::new();
    let dir = v.dir(Ino::ROOT, b"dir");
    crowd(&mut v, dir, 20_000);
    let mut t = terms(BOB, dir.0);
    t.caveats.push(Caveat::NamePrefix("pub-".into()));
    let chain = v.issue(BOB, t);
    v.put(BOB, &chain).unwrap();
    let reads = count(&mut v);
    for count in [MAX_ENTRIES, 10, 1] {
        let op = ReadDir {
            target: Target::Ino(dir),
            cookie: 2,
            count,
            plus: true,
        };
        reads.take();
        let Ok(Answer::Entries(page)) = v.run(BOB, Action::ReadDir(op)) else {
            panic!("no page");
        };
        assert!(page.entries.is_empty() && !page.end && page.next > 100);
        // With and without memory, of which `contents` is no part.
        let each = reads.take() / 2;
        assert!(each < 20_000, "{each} rows in pages of {count}");
    }
}

/// Who changes a part of the mode that it sees takes no bits away that it is not shown.
#[test]
fn a_mode_keeps_the_bits_that_are_not_shown() -> Result<()> {
    let mut v = Volume::new();
    let dir = v.dir(Ino::ROOT, b"dir");
    let file = v.file(dir, b"file");
    let set = |mode| {
        Action::SetAttr(SetAttr {
            mode: Some(mode),
            ..crate::common::set_attr(Target::Ino(file))
        })
    };
    let owned = SetAttr {
        uid: Some(65_534),
        mode: Some(0o664),
        ..crate::common::set_attr(Target::Ino(file))
    };
    v.run(MEMBER, Action::SetAttr(owned))?;
    v.share(BOB, dir, Rights::READING | Rights::SETATTR);
    let shown = v.attr(BOB, file)?.mode;
    assert_eq!(shown & 0o777, 0o444);
    v.run(BOB, set(shown & !0o004))?;
    assert_eq!(v.attr(MEMBER, file)?.mode & 0o777, 0o660);
    assert_eq!(v.attr(BOB, file)?.mode & 0o777, 0o440);
    // What it is shown it can change, both ways; to set others by their numbers it has no right.
    v.run(BOB, set(0o777))?;
    assert_eq!(v.attr(MEMBER, file)?.mode & 0o777, 0o775);
    Ok(())
}

/// What has several names is looked at by all of them, so a page has less of it; nothing is left out.
#[test]
fn pages_with_many_ways_are_short() -> Result<()> {
    let mut v = Volume::new();
    let dir = deep(&mut v);
    let other = v.dir(Ino::ROOT, b"other");
    for n in 0..200 {
        let name = format!("file {n}");
        let file = v.file(dir, name.as_bytes());
        v.link(MEMBER, file, other, name.as_bytes())?;
    }
    let first = page(&mut v, dir);
    assert!(!first.end && first.entries.len() < 150);
    let all = v.list(BOB, dir, MAX_ENTRIES, true)?;
    assert_eq!(all.len(), 202);
    assert!(all.iter().all(|entry| entry.attr.is_some()));
    Ok(())
}
