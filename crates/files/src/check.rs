//! Judges a whole state: what must hold after every operation. For tests, the simulator and operators; it reads everything.

mod lingering;
mod quotas;
mod sharing;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::Bound;

use bytes::Bytes;
use quorate_state::{Fault, Snapshot, Txn};
use quorate_wire::{Decode, PublicKey};

use crate::acl::{self, Acl};
use crate::extent::Stored;
use crate::layout::{
    BLOCK_BYTES, CHUNK_BYTES, Counters, Dead, DirEntry, ENTRY_BYTES, FIRST_COOKIE, Inode,
    Lingering, LockTable, MAX_FILE_BYTES, MAX_LINKS, MAX_LOCKS, MAX_LOCKS_OF_SESSION, MAX_OPENS,
    MAX_XATTR_BYTES, MAX_XATTR_LIST_BYTES, MAX_XATTRS, OpenFile, Quota, Waiting, XATTR_BYTES,
    number_at, tag,
};
use crate::names::check_name;
use crate::op::{LockKind, flags};
use crate::perm::{MODE_BITS, PERMISSION_BITS};
use crate::types::{HELD, Handle, Ino, Kind};

/// Checks the state that an operation sees.
///
/// # Errors
/// What does not hold, in words.
pub fn invariants(txn: &Txn<'_>) -> Result<(), String> {
    check(&collect(|from, to, limit| txn.range(from, to, limit))?)
}

/// Checks the state of a snapshot.
///
/// # Errors
/// What does not hold, in words.
pub fn invariants_of(snapshot: &dyn Snapshot) -> Result<(), String> {
    check(&collect(|from, to, limit| snapshot.range(from, to, limit))?)
}

type Map = BTreeMap<Bytes, Bytes>;
type Page = Result<Vec<(Bytes, Bytes)>, Fault>;

fn collect(range: impl Fn(Bound<&[u8]>, Bound<&[u8]>, usize) -> Page) -> Result<Map, String> {
    // In one piece: everything is kept anyway, and each page of a range would cost a pass over the layers.
    let from: &[u8] = &[1];
    let all = range(Bound::Included(from), Bound::Unbounded, usize::MAX)
        .map_err(|fault| fault.to_string())?;
    Ok(all.into_iter().collect())
}

/// What the keys say, taken apart.
#[derive(Default)]
struct Volume {
    counters: Option<Counters>,
    inodes: BTreeMap<u64, Inode>,
    entries: BTreeMap<(u64, Bytes), DirEntry>,
    cookies: BTreeMap<(u64, u64), Bytes>,
    extents: BTreeMap<u64, Vec<(u64, Stored, Bytes)>>,
    symlinks: BTreeMap<u64, Bytes>,
    xattrs: BTreeMap<u64, Vec<(Bytes, Bytes)>>,
    opens: BTreeMap<(u64, u64), OpenFile>,
    opens_by_ino: BTreeMap<(u64, u64), u32>,
    open_counts: BTreeMap<u64, u32>,
    guests: BTreeMap<u64, PublicKey>,
    locks: BTreeMap<u64, LockTable>,
    dead: BTreeMap<u64, Dead>,
    sharing: Vec<(Bytes, Bytes)>,
    names: BTreeMap<u64, Vec<(u64, u64)>>,
    quotas: BTreeMap<u64, Quota>,
    members: BTreeMap<u64, u64>,
    lingering: BTreeMap<u64, u64>,
    waiting: BTreeMap<u64, Waiting>,
    lingering_all: Option<Lingering>,
    ended: BTreeMap<u64, u64>,
    lock_counts: BTreeMap<u64, u32>,
}

fn check(map: &Map) -> Result<(), String> {
    let volume = take_apart(map)?;
    let counters = volume.counters.as_ref().ok_or("no counters")?;
    check_entries(&volume)?;
    check_links(&volume)?;
    check_places(&volume)?;
    check_tree(&volume)?;
    check_opens(&volume)?;
    check_locks(&volume)?;
    check_xattrs(&volume)?;
    check_acls(&volume)?;
    check_content(&volume)?;
    quotas::check(&volume)?;
    lingering::check(&volume)?;
    sharing::check(&volume.sharing)?;
    let used = volume.entries.len() as u64 * ENTRY_BYTES
        + volume
            .inodes
            .iter()
            .filter(|(ino, _)| !volume.lingering.contains_key(ino))
            .map(|(_, inode)| inode.space())
            .sum::<u64>();
    want(used == counters.used_bytes, || {
        format!(
            "{used} bytes are in use, {} are counted",
            counters.used_bytes
        )
    })?;
    let inodes = (volume.inodes.len() - volume.lingering.len()) as u64;
    want(inodes == counters.used_inodes, || {
        format!("{inodes} inodes, {} are counted", counters.used_inodes)
    })?;
    want(used <= counters.capacity_bytes, || "over capacity".into())
}

fn want(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

fn value<T: Decode>(key: &[u8], bytes: &Bytes) -> Result<T, String> {
    T::from_bytes(bytes.clone()).map_err(|e| format!("the value under {key:02x?}: {e}"))
}

fn take_apart(map: &Map) -> Result<Volume, String> {
    let mut v = Volume::default();
    let sharing = &mut v.sharing;
    for (key, bytes) in map {
        let odd = || format!("odd key {key:02x?}");
        let number = |index| number_at(key, index).ok_or_else(odd);
        let rest = |index: usize| key.slice(1 + 8 * index..);
        want(bytes.len() <= 65_536, || {
            format!("long value under {key:02x?}")
        })?;
        match key[0] {
            tag::COUNTERS => v.counters = Some(value(key, bytes)?),
            tag::INODE => {
                v.inodes.insert(number(0)?, value(key, bytes)?);
            }
            tag::ENTRY => {
                let dir = number(0)?;
                v.entries.insert((dir, rest(1)), value(key, bytes)?);
            }
            tag::COOKIE => {
                v.cookies.insert((number(0)?, number(1)?), bytes.clone());
            }
            tag::EXTENT => {
                let stored = Stored::parse(bytes).ok_or_else(odd)?;
                let list = v.extents.entry(number(0)?).or_default();
                list.push((number(1)?, stored, bytes.clone()));
            }
            tag::SYMLINK => {
                v.symlinks.insert(number(0)?, bytes.clone());
            }
            tag::XATTR => {
                let ino = number(0)?;
                let list = v.xattrs.entry(ino).or_default();
                list.push((rest(1), bytes.clone()));
            }
            tag::OPEN => {
                v.opens.insert((number(0)?, number(1)?), value(key, bytes)?);
            }
            tag::OPEN_BY_INO => {
                v.opens_by_ino
                    .insert((number(0)?, number(1)?), value(key, bytes)?);
            }
            tag::OPEN_COUNT => {
                v.open_counts.insert(number(0)?, value(key, bytes)?);
            }
            tag::LOCKS => {
                v.locks.insert(number(0)?, value(key, bytes)?);
            }
            tag::DEAD => {
                v.dead.insert(number(0)?, value(key, bytes)?);
            }
            tag::NAME => {
                let place = (number(1)?, number(2)?);
                v.names.entry(number(0)?).or_default().push(place);
            }
            tag::QUOTA => {
                v.quotas.insert(number(0)?, value(key, bytes)?);
            }
            tag::MEMBER => {
                v.members.insert(number(0)?, value(key, bytes)?);
            }
            tag::LINGERING => {
                v.lingering.insert(number(0)?, value(key, bytes)?);
            }
            tag::WAITING => {
                v.waiting.insert(number(0)?, value(key, bytes)?);
            }
            tag::LINGERING_ALL => v.lingering_all = Some(value(key, bytes)?),
            tag::ENDED => {
                v.ended.insert(number(0)?, value(key, bytes)?);
            }
            tag::LOCK_COUNT => {
                v.lock_counts.insert(number(0)?, value(key, bytes)?);
            }
            tag::GUEST_SESSION => {
                v.guests.insert(number(0)?, value(key, bytes)?);
            }
            tag::GRANT..=tag::AUDIT | tag::AUDITED | tag::BELOW | tag::SWEEP_AGAIN => {
                sharing.push((key.clone(), bytes.clone()))
            }
            _ => return Err(odd()),
        }
    }
    Ok(v)
}

/// Entries and cookies are each other's mirror, and each entry names an object of its kind.
fn check_entries(v: &Volume) -> Result<(), String> {
    for ((dir, name), entry) in &v.entries {
        let of = || format!("entry {name:?} of {dir}");
        check_name(name).map_err(|e| format!("{}: {e}", of()))?;
        let inode = v
            .inodes
            .get(dir)
            .ok_or_else(|| format!("{} has no directory", of()))?;
        want(inode.kind == Kind::Directory, || {
            format!("{} is in no directory", of())
        })?;
        want(
            (FIRST_COOKIE..inode.next_cookie).contains(&entry.cookie),
            || format!("{} has cookie {}", of(), entry.cookie),
        )?;
        want(v.cookies.get(&(*dir, entry.cookie)) == Some(name), || {
            format!("{} is not under its cookie", of())
        })?;
        let child = v
            .inodes
            .get(&entry.ino.0)
            .ok_or_else(|| format!("{} dangles", of()))?;
        want(child.kind == entry.kind, || {
            format!("{} has another kind", of())
        })?;
    }
    want(v.cookies.len() == v.entries.len(), || {
        "cookies without entries".into()
    })
}

/// Link counts and sizes of directories; an object without a name is open or lingers.
fn check_links(v: &Volume) -> Result<(), String> {
    let mut names: BTreeMap<u64, u32> = BTreeMap::new();
    let mut subdirs: BTreeMap<u64, u32> = BTreeMap::new();
    let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
    for ((dir, _), entry) in &v.entries {
        *names.entry(entry.ino.0).or_default() += 1;
        *sizes.entry(*dir).or_default() += 1;
        if entry.kind == Kind::Directory {
            *subdirs.entry(*dir).or_default() += 1;
        }
    }
    let open: BTreeSet<u64> = v.opens.values().map(|open| open.ino.0).collect();
    for (ino, inode) in &v.inodes {
        let count = names.get(ino).copied().unwrap_or(0);
        let is_root = *ino == Ino::ROOT.0;
        let nlink = match inode.kind {
            Kind::Directory if count == 0 && !is_root => 0,
            Kind::Directory => 2 + subdirs.get(ino).copied().unwrap_or(0),
            _ => count,
        };
        want(inode.nlink == nlink, || {
            format!("inode {ino} has {nlink} links, {} are counted", inode.nlink)
        })?;
        if inode.kind == Kind::Directory {
            want(count <= 1, || format!("directory {ino} has {count} names"))?;
            let size = sizes.get(ino).copied().unwrap_or(0);
            want(inode.size == size, || {
                format!("directory {ino} has {size} entries")
            })?;
        } else {
            want(nlink <= MAX_LINKS, || {
                format!("inode {ino} has too many links")
            })?;
        }
        want(
            nlink > 0 || open.contains(ino) || v.lingering.contains_key(ino),
            || format!("inode {ino} is an orphan"),
        )?;
        want(inode.mode & !MODE_BITS == 0, || {
            format!("inode {ino} has odd mode bits")
        })?;
    }
    Ok(())
}

/// Each object knows where its names are.
fn check_places(v: &Volume) -> Result<(), String> {
    let mut entries: BTreeMap<u64, BTreeSet<(u64, u64)>> = BTreeMap::new();
    for ((dir, _), entry) in &v.entries {
        let places = entries.entry(entry.ino.0).or_default();
        places.insert((*dir, entry.cookie));
    }
    for (ino, inode) in &v.inodes {
        let first = inode.place();
        let first = (inode.nlink > 0 && *ino != Ino::ROOT.0).then_some((first.dir.0, first.cookie));
        let more = v.names.get(ino).map_or(&[][..], |list| list);
        let noted: Vec<_> = first.into_iter().chain(more.iter().copied()).collect();
        let set: BTreeSet<_> = noted.iter().copied().collect();
        let found = entries.remove(ino).unwrap_or_default();
        want(set == found && set.len() == noted.len(), || {
            format!("inode {ino} is at {found:?}, {noted:?} is noted")
        })?;
    }
    want(v.names.keys().all(|ino| v.inodes.contains_key(ino)), || {
        "names of nothing".into()
    })
}

/// Each directory with a name has its parent's number, and comes to the root by it.
fn check_tree(v: &Volume) -> Result<(), String> {
    let mut reached: BTreeSet<u64> = BTreeSet::from([Ino::ROOT.0]);
    for ((dir, _), entry) in &v.entries {
        if entry.kind == Kind::Directory {
            let parent = v.inodes[&entry.ino.0].parent.0;
            want(parent == *dir, || {
                format!("directory {:?} has parent {parent}", entry.ino)
            })?;
        }
    }
    for (ino, inode) in &v.inodes {
        if inode.kind != Kind::Directory || inode.nlink == 0 {
            continue;
        }
        let mut path = BTreeSet::new();
        let mut at = *ino;
        while !reached.contains(&at) {
            want(path.insert(at), || format!("directory {ino} is in a cycle"))?;
            at = v.inodes.get(&at).ok_or("a parent is missing")?.parent.0;
        }
        reached.extend(path);
    }
    Ok(())
}

fn check_opens(v: &Volume) -> Result<(), String> {
    let mut by_session: BTreeMap<u64, u32> = BTreeMap::new();
    let mut by_ino: BTreeMap<(u64, u64), u32> = BTreeMap::new();
    for ((session, handle), open) in &v.opens {
        want(v.inodes.contains_key(&open.ino.0), || {
            format!("handle {handle} of session {session} dangles")
        })?;
        let appends = open.rights & flags::APPEND != 0;
        want(appends == (handle & 1 == 1), || {
            format!("handle {handle} of session {session} hides whether it appends")
        })?;
        let is_held = Handle::held(open.ino).is_some_and(|held| held.number == *handle);
        want(*handle < HELD || (is_held && open.rights == 0), || {
            format!("handle {handle} of session {session} is odd")
        })?;
        *by_session.entry(*session).or_default() += 1;
        *by_ino.entry((open.ino.0, *session)).or_default() += 1;
    }
    want(by_session == v.open_counts, || {
        "sessions' handles are counted wrong".into()
    })?;
    want(by_ino == v.opens_by_ino, || {
        "objects' handles are counted wrong".into()
    })?;
    want(
        v.guests
            .keys()
            .all(|session| by_session.contains_key(session)),
        || "a session without handles is a guest's".into(),
    )?;
    for (session, last) in &v.ended {
        let released = (*session, 0)..=(*session, *last);
        let is_ended = by_session.contains_key(session) && v.opens.range(released).next().is_none();
        want(is_ended, || {
            format!("session {session} has ended, and its handles up to {last} have not")
        })?;
    }
    want(by_session.values().all(|&n| n <= MAX_OPENS), || {
        "too many handles".into()
    })
}

fn check_locks(v: &Volume) -> Result<(), String> {
    let mut by_session: BTreeMap<u64, u32> = BTreeMap::new();
    for held in v.locks.values().flat_map(|table| &table.locks) {
        *by_session.entry(held.session).or_default() += 1;
    }
    let bounded = by_session.values().all(|&n| n <= MAX_LOCKS_OF_SESSION);
    want(bounded && by_session == v.lock_counts, || {
        "sessions' locks are counted wrong".into()
    })?;
    for (ino, table) in &v.locks {
        let locks = &table.locks;
        want((1..=MAX_LOCKS).contains(&locks.len()), || {
            format!("lock table of {ino}")
        })?;
        for (i, a) in locks.iter().enumerate() {
            want(a.kind != LockKind::Unlock && a.start <= a.end, || {
                format!("odd lock on {ino}")
            })?;
            let held = v.opens.get(&(a.session, a.handle.number));
            let open = v.opens_by_ino.contains_key(&(*ino, a.session));
            want(held.is_none_or(|h| h.ino.0 == *ino) && open, || {
                format!("a lock on {ino} without an open")
            })?;
            for b in &locks[i + 1..] {
                let order = |l: &crate::layout::LockEntry| (l.space, l.session, l.owner, l.start);
                want(order(a) < order(b), || {
                    format!("locks on {ino} out of order")
                })?;
                let meet = a.space == b.space && a.start <= b.end && b.start <= a.end;
                let same = (a.session, a.owner) == (b.session, b.owner);
                let shared = a.kind == LockKind::Read && b.kind == LockKind::Read;
                want(!meet || (shared && !same), || {
                    format!("locks on {ino} collide")
                })?;
            }
        }
    }
    Ok(())
}

fn check_xattrs(v: &Volume) -> Result<(), String> {
    for (ino, inode) in &v.inodes {
        let list = v.xattrs.get(ino).map_or(&[][..], |list| list);
        let names: usize = list.iter().map(|(name, _)| name.len() + 1).sum();
        let bytes: u64 = list
            .iter()
            .map(|(name, value)| XATTR_BYTES + (name.len() + value.len()) as u64)
            .sum();
        let found = (list.len() as u64, names as u64, bytes);
        let counted = (
            u64::from(inode.xattrs),
            u64::from(inode.xattr_list_bytes),
            inode.xattr_bytes,
        );
        want(found == counted, || {
            format!("extended attributes of {ino}: {found:?}")
        })?;
        let bounded = inode.xattrs <= MAX_XATTRS
            && inode.xattr_list_bytes <= MAX_XATTR_LIST_BYTES
            && inode.xattr_bytes <= MAX_XATTR_BYTES;
        want(bounded, || format!("too many extended attributes of {ino}"))?;
    }
    let dead: BTreeSet<u64> = v
        .dead
        .values()
        .filter_map(Dead::xattrs_of)
        .map(|ino| ino.0)
        .collect();
    want(dead.iter().all(|ino| !v.inodes.contains_key(ino)), || {
        "extended attributes of what is there are dead".into()
    })?;
    let is_known = |ino| v.inodes.contains_key(ino) || dead.contains(ino);
    want(v.xattrs.keys().all(is_known), || {
        "extended attributes of nothing".into()
    })
}

/// ACLs are in canonical form and where they can be; one for access says more than the mode bits, and nothing else than they do.
fn check_acls(v: &Volume) -> Result<(), String> {
    for (ino, list) in &v.xattrs {
        // Of what is gone they are dead.
        let Some(inode) = v.inodes.get(ino) else {
            continue;
        };
        for (name, value) in list {
            let can_be = match &name[..] {
                acl::ACCESS => inode.kind != Kind::Symlink,
                acl::DEFAULT => inode.kind == Kind::Directory,
                _ => continue,
            };
            let parsed = Acl::parse(value).ok().flatten();
            let acl = parsed.ok_or_else(|| format!("the ACL of {ino} is none"))?;
            want(can_be && acl.to_bytes()[..] == value[..], || {
                format!("an odd ACL of {ino}")
            })?;
            let agrees = acl.mode() == inode.mode & PERMISSION_BITS && !acl.is_mode_alone();
            want(name[..] == *acl::DEFAULT || agrees, || {
                format!("the ACL of {ino} is not as the mode bits")
            })?;
        }
    }
    Ok(())
}

/// Extents belong to one file or are dead; blocks are counted; nothing lies beyond a file's end.
fn check_content(v: &Volume) -> Result<(), String> {
    let counters = v.counters.as_ref().ok_or("no counters")?;
    let places = counters.dead_first..counters.dead_next;
    want(v.dead.keys().copied().eq(places), || {
        "the queue of dead content has gaps".into()
    })?;
    let content = v.dead.values().filter(|dead| dead.xattrs_of().is_none());
    let content: Vec<u64> = content.map(|dead| dead.data).collect();
    let dead: BTreeSet<u64> = content.iter().copied().collect();
    want(dead.len() == content.len(), || {
        "content is dead twice".into()
    })?;
    let mut owners: BTreeMap<u64, u64> = BTreeMap::new();
    for (ino, inode) in &v.inodes {
        let is_symlink = inode.kind == Kind::Symlink;
        let target = v.symlinks.get(ino).map(|target| target.len() as u64);
        want(target == is_symlink.then_some(inode.size), || {
            format!("symlink {ino}")
        })?;
        if inode.kind != Kind::Regular {
            want(inode.blocks == 0, || format!("inode {ino} has blocks"))?;
            continue;
        }
        let other = owners.insert(inode.data, *ino);
        want(other.is_none(), || {
            format!("{ino} and {other:?} share content")
        })?;
        want(!dead.contains(&inode.data), || {
            format!("the content of {ino} is dead")
        })?;
        let extents = v.extents.get(&inode.data).map_or(&[][..], |list| list);
        check_file(*ino, inode, extents)?;
    }
    want(
        v.symlinks.keys().all(|ino| v.inodes.contains_key(ino)),
        || "a target of no link".into(),
    )?;
    let known = |data| owners.contains_key(data) || dead.contains(data);
    want(v.extents.keys().all(known), || "extents of nothing".into())
}

fn check_file(ino: u64, inode: &Inode, extents: &[(u64, Stored, Bytes)]) -> Result<(), String> {
    want(inode.size <= MAX_FILE_BYTES, || {
        format!("file {ino} is too large")
    })?;
    let blocks: u64 = extents
        .iter()
        .map(|(_, s, _)| u64::from(s.present.count_ones()))
        .sum();
    want(blocks == inode.blocks, || {
        format!(
            "file {ino} has {blocks} blocks, {} are counted",
            inode.blocks
        )
    })?;
    for (chunk, stored, value) in extents {
        let start = chunk * CHUNK_BYTES;
        let top = u64::from(16 - stored.present.leading_zeros());
        want(start + (top - 1) * BLOCK_BYTES < inode.size, || {
            format!("file {ino} has blocks beyond its end")
        })?;
        let extent = crate::extent::Extent::unpack(stored);
        want(extent.pack().as_ref() == Some(value), || {
            format!("chunk {chunk} of file {ino} is not canonical")
        })?;
        if inode.size < start + CHUNK_BYTES {
            let mut tail = alloc::vec![0; (start + CHUNK_BYTES - inode.size) as usize];
            stored.copy_to((inode.size - start) as usize, &mut tail);
            want(tail.iter().all(|&b| b == 0), || {
                format!("file {ino} has bytes beyond its end")
            })?;
        }
    }
    Ok(())
}
