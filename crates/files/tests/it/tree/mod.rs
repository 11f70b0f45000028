//! A file tree as the manual pages have it, in the most naive way: link counts are counted, loops are searched for, and
//! contents are vectors. It learns from the service only the numbers of new objects and handles.

mod apply;
mod quota;
mod rename;

use std::collections::{BTreeMap, BTreeSet};

use quorate_files::op::*;
use quorate_files::{Attr, Errno, Handle, Ino, Kind, Stamp};

type Result<T> = std::result::Result<T, Errno>;

#[derive(Clone, Debug)]
pub struct Node {
    pub kind: Kind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub content: Vec<u8>,
    pub blocks: BTreeSet<usize>,
    pub children: BTreeMap<Vec<u8>, u64>,
    pub parent: u64,
    pub verifier: Option<u64>,
    /// The quota that it counts under, if that is still there.
    quota: Option<u64>,
    rdev: u64,
    atime: Stamp,
    mtime: Stamp,
    ctime: Stamp,
    btime: Stamp,
    change: u64,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    ino: u64,
    flags: u32,
}

#[derive(Debug)]
pub enum Expected {
    Done,
    Bytes(Vec<u8>),
    Mask(u32),
    Object(u64),
    At(u64),
    /// How many entries came under a quota.
    Adopted(u32),
    /// Which files can't be held.
    Gone(Vec<Ino>),
}

#[derive(Clone, Debug)]
pub struct Tree {
    pub nodes: BTreeMap<u64, Node>,
    /// Every number ever given, gone objects among them.
    pub known: Vec<u64>,
    pub handles: Vec<Handle>,
    opens: BTreeMap<(u64, Handle), Open>,
    /// Directories and limits of the quotas, by the order in which they were set.
    quotas: BTreeMap<u64, (u64, Limits)>,
    last_quota: u64,
    now: Stamp,
}

fn bit_of(which: char) -> u32 {
    match which {
        'r' => 4,
        'w' => 2,
        _ => 1,
    }
}

impl Tree {
    pub fn new() -> Tree {
        let mut tree = Tree {
            nodes: BTreeMap::new(),
            known: vec![1],
            handles: vec![Handle {
                ino: Ino(1),
                number: 77,
            }],
            opens: BTreeMap::new(),
            quotas: BTreeMap::new(),
            last_quota: 0,
            now: Stamp::default(),
        };
        let mut root = tree.node(&Who::root(), Kind::Directory, 0o1777);
        root.parent = 1;
        tree.nodes.insert(1, root);
        tree
    }

    fn node(&self, who: &Who, kind: Kind, mode: u32) -> Node {
        Node {
            kind,
            mode,
            uid: who.uid,
            gid: who.gid,
            content: Vec::new(),
            blocks: BTreeSet::new(),
            children: BTreeMap::new(),
            parent: 0,
            verifier: None,
            quota: None,
            rdev: 0,
            atime: self.now,
            mtime: self.now,
            ctime: self.now,
            btime: self.now,
            change: 1,
        }
    }

    fn names_of(&self, ino: u64) -> usize {
        let all = self.nodes.values().flat_map(|node| node.children.values());
        all.filter(|&&child| child == ino).count()
    }

    pub fn is_linked(&self, ino: u64) -> bool {
        ino == 1 || self.names_of(ino) > 0
    }

    pub fn attr(&self, ino: u64) -> Option<Attr> {
        let node = self.nodes.get(&ino)?;
        let is_dir = |ino: &&u64| self.nodes[*ino].kind == Kind::Directory;
        let nlink = match node.kind {
            Kind::Directory if !self.is_linked(ino) => 0,
            Kind::Directory => 2 + node.children.values().filter(is_dir).count(),
            _ => self.names_of(ino),
        };
        Some(Attr {
            ino: Ino(ino),
            kind: node.kind,
            mode: node.mode,
            nlink: nlink as u32,
            uid: node.uid,
            gid: node.gid,
            size: (node.content.len() + node.children.len()) as u64,
            blocks: node.blocks.len() as u64 * 8,
            rdev: node.rdev,
            atime: node.atime,
            mtime: node.mtime,
            ctime: node.ctime,
            btime: node.btime,
            change: node.change,
            has_xattrs: false,
        })
    }

    /// Bytes and inodes in use.
    pub fn used(&self) -> (u64, u64) {
        let blocks: usize = self.nodes.values().map(|node| node.blocks.len()).sum();
        let names: usize = self.nodes.values().map(|node| node.children.len()).sum();
        (
            (blocks * 4096 + names * 256) as u64,
            self.nodes.len() as u64,
        )
    }

    /// The directories that are there.
    pub fn dirs(&self) -> Vec<u64> {
        self.of_kind(Kind::Directory)
    }

    /// The regular files that are there.
    pub fn files(&self) -> Vec<u64> {
        self.of_kind(Kind::Regular)
    }

    fn of_kind(&self, kind: Kind) -> Vec<u64> {
        let nodes = self.nodes.iter();
        nodes
            .filter(|(_, node)| node.kind == kind)
            .map(|(ino, _)| *ino)
            .collect()
    }

    /// The handles that a session has.
    pub fn open_handles(&self, session: u64) -> Vec<Handle> {
        self.opens
            .keys()
            .filter(|key| key.0 == session)
            .map(|key| key.1)
            .collect()
    }

    fn get(&self, ino: u64) -> Result<&Node> {
        self.nodes.get(&ino).ok_or(Errno::ESTALE)
    }

    fn get_mut(&mut self, ino: u64) -> &mut Node {
        self.nodes.get_mut(&ino).unwrap()
    }

    fn can(&self, who: &Who, node: &Node, wish: char) -> bool {
        let text: Vec<bool> = (0..9).map(|i| node.mode & (0o400 >> i) != 0).collect();
        let column = match wish {
            'r' => 0,
            'w' => 1,
            _ => 2,
        };
        if who.uid == 0 {
            let runs = text[2] || text[5] || text[8];
            return wish != 'x' || node.kind == Kind::Directory || runs;
        }
        let row = if node.uid == who.uid {
            0
        } else if node.gid == who.gid || who.groups.contains(&node.gid) {
            1
        } else {
            2
        };
        text[3 * row + column]
    }

    fn must(&self, who: &Who, ino: u64, wishes: &str) -> Result<()> {
        let node = self.get(ino)?;
        if wishes.chars().all(|wish| self.can(who, node, wish)) {
            Ok(())
        } else {
            Err(Errno::EACCES)
        }
    }

    fn enter(&self, who: &Who, dir: u64) -> Result<()> {
        if self.get(dir)?.kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        self.must(who, dir, "x")
    }

    fn good(name: &[u8]) -> Result<()> {
        match name {
            b"" | b"." | b".." => Err(Errno::EINVAL),
            name if name.len() > 255 => Err(Errno::ENAMETOOLONG),
            name if name.contains(&b'/') || name.contains(&0) => Err(Errno::EINVAL),
            _ => Ok(()),
        }
    }

    fn child(&self, dir: u64, name: &[u8]) -> Option<u64> {
        self.nodes[&dir].children.get(name).copied()
    }

    fn may_make(&self, who: &Who, dir: u64, name: &[u8]) -> Result<()> {
        self.enter(who, dir)?;
        Tree::good(name)?;
        if self.child(dir, name).is_some() {
            return Err(Errno::EEXIST);
        }
        if !self.is_linked(dir) {
            return Err(Errno::ENOENT);
        }
        self.must(who, dir, "wx")
    }

    fn may_delete(&self, who: &Who, dir: u64, child: u64, as_dir: bool) -> Result<()> {
        self.must(who, dir, "wx")?;
        let (dir, child) = (&self.nodes[&dir], &self.nodes[&child]);
        let stuck = dir.mode & 0o1000 != 0;
        if stuck && who.uid != 0 && who.uid != dir.uid && who.uid != child.uid {
            return Err(Errno::EPERM);
        }
        match (as_dir, child.kind) {
            (true, Kind::Directory) => Ok(()),
            (true, _) => Err(Errno::ENOTDIR),
            (false, Kind::Directory) => Err(Errno::EISDIR),
            (false, _) => Ok(()),
        }
    }

    fn find(&self, who: &Who, dir: u64, name: &[u8]) -> Result<u64> {
        self.enter(who, dir)?;
        Tree::good(name)?;
        self.child(dir, name).ok_or(Errno::ENOENT)
    }

    fn changed(&mut self, ino: u64) {
        let now = self.now;
        let node = self.get_mut(ino);
        if node.ctime != now {
            node.change += 1;
        }
        node.ctime = now;
    }

    fn modified(&mut self, ino: u64) {
        self.changed(ino);
        let now = self.now;
        self.get_mut(ino).mtime = now;
    }

    fn forget(&mut self) {
        let open: BTreeSet<u64> = self.opens.values().map(|open| open.ino).collect();
        let all: Vec<u64> = self.nodes.keys().copied().collect();
        for ino in all {
            if !self.is_linked(ino) && !open.contains(&ino) {
                self.nodes.remove(&ino);
            }
        }
        let nodes = &self.nodes;
        self.quotas.retain(|_, (dir, _)| nodes.contains_key(dir));
    }

    fn put(&mut self, dir: u64, name: &[u8], child: u64) {
        self.get_mut(dir).children.insert(name.to_vec(), child);
        self.modified(dir);
        if self.nodes[&child].kind == Kind::Directory {
            self.get_mut(child).parent = dir;
        }
    }

    fn take(&mut self, dir: u64, name: &[u8]) {
        self.get_mut(dir).children.remove(name);
        self.modified(dir);
    }

    fn make(&mut self, who: &Who, dir: u64, name: &[u8], new: Node, ino: Option<u64>) -> u64 {
        // Where the service refused, a number that nobody has: the comparison of outcomes says so.
        let ino = ino.unwrap_or(u64::MAX);
        assert!(!self.nodes.contains_key(&ino) && !self.known.contains(&ino));
        let mut new = new;
        let parent = &self.nodes[&dir];
        if parent.mode & 0o2000 != 0 {
            new.gid = parent.gid;
            let member = who.uid == 0 || who.gid == parent.gid || who.groups.contains(&parent.gid);
            if new.kind == Kind::Directory {
                new.mode |= 0o2000;
            } else if new.kind != Kind::Symlink && new.mode & 0o2010 == 0o2010 && !member {
                new.mode &= !0o2000;
            }
        }
        new.quota = self.quota_of(dir);
        self.nodes.insert(ino, new);
        self.known.push(ino);
        self.put(dir, name, ino);
        ino
    }

    fn below(&self, top: u64, wanted: u64) -> bool {
        top == wanted
            || self.nodes[&top]
                .children
                .values()
                .any(|&child| self.below(child, wanted))
    }

    /// The object of a target, and whether its handle has the right; without a handle, whether the bits allow it.
    fn aim(&self, session: u64, who: &Who, target: &Target) -> Result<(u64, Option<u32>)> {
        match target {
            Target::Ino(ino) => self.get(ino.0).map(|_| (ino.0, None)),
            // What lingers is not in the tree, and is not asked for.
            Target::Unopened(ino) | Target::Checked(ino) => {
                let node = self.get(ino.0)?;
                let own = node.kind == Kind::Regular && node.uid == who.uid;
                Ok((ino.0, own.then_some(3)))
            }
            Target::Handle(handle) => {
                let open = self.opens.get(&(session, *handle)).ok_or(Errno::EBADF)?;
                Ok((open.ino, Some(open.flags)))
            }
        }
    }

    fn resize(&mut self, ino: u64, size: usize) {
        let node = self.get_mut(ino);
        let old = node.content.len();
        node.content.resize(size, 0);
        if size < old {
            node.blocks.retain(|&block| block * 4096 < size);
        }
    }

    fn strip(&mut self, who: &Who, ino: u64, even_root: bool) {
        if who.uid == 0 && !even_root {
            return;
        }
        let node = self.get_mut(ino);
        if node.kind == Kind::Directory {
            return;
        }
        let outsider = who.uid != 0 && who.gid != node.gid && !who.groups.contains(&node.gid);
        node.mode &= !0o4000;
        if node.mode & 0o010 != 0 || outsider {
            node.mode &= !0o2000;
        }
    }

    fn write(&mut self, session: u64, who: &Who, op: &Write) -> Result<u64> {
        let (ino, flags) = self.aim(session, who, &op.target)?;
        match self.nodes[&ino].kind {
            Kind::Regular => {}
            Kind::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        match flags {
            None => self.must(who, ino, "w")?,
            Some(flags) if flags & 2 == 0 => return Err(Errno::EBADF),
            Some(_) => {}
        }
        let size = self.nodes[&ino].content.len();
        let at = match op.place {
            Place::At(offset) if flags.unwrap_or(0) & 4 == 0 => offset as usize,
            _ => size,
        };
        if op.data.is_empty() {
            return Ok(at as u64);
        }
        let end = at + op.data.len();
        let node = self.get_mut(ino);
        node.content.resize(size.max(end), 0);
        node.content[at..end].copy_from_slice(&op.data);
        node.blocks.extend(at / 4096..=(end - 1) / 4096);
        self.strip(who, ino, false);
        self.modified(ino);
        Ok(at as u64)
    }

    fn set_attr(&mut self, session: u64, who: &Who, op: &SetAttr) -> Result<u64> {
        let (ino, flags) = self.aim(session, who, &op.target)?;
        let node = self.nodes[&ino].clone();
        let owner = who.uid == 0 || who.uid == node.uid;
        if op.size.is_some() {
            match (node.kind, flags) {
                (Kind::Directory, _) => return Err(Errno::EISDIR),
                (Kind::Regular, None) => self.must(who, ino, "w")?,
                (Kind::Regular, Some(flags)) if flags & 2 != 0 => {}
                _ => return Err(Errno::EINVAL),
            }
        }
        if op
            .uid
            .is_some_and(|uid| who.uid != 0 && !(owner && uid == node.uid))
        {
            return Err(Errno::EPERM);
        }
        if let Some(gid) = op.gid {
            let mine = gid == node.gid || who.gid == gid || who.groups.contains(&gid);
            if who.uid != 0 && !(owner && mine) {
                return Err(Errno::EPERM);
            }
        }
        if op.mode.is_some() && !owner {
            return Err(Errno::EPERM);
        }
        if op.mode.is_some() && node.kind == Kind::Symlink {
            return Err(Errno::ENOTSUP);
        }
        let times = [&op.atime, &op.mtime];
        if !owner
            && times
                .iter()
                .any(|time| matches!(time, Some(SetTime::At(_))))
        {
            return Err(Errno::EPERM);
        }
        if !owner && times.iter().any(|time| time.is_some()) {
            self.must(who, ino, "w")?;
        }
        let ids = op.uid.is_some() || op.gid.is_some();
        let sets = ids || op.mode.is_some() || op.size.is_some();
        if sets || times.iter().any(|time| time.is_some()) {
            self.get_mut(ino).verifier = None;
        }
        if let Some(size) = op.size {
            self.resize(ino, size as usize);
            self.strip(who, ino, false);
            self.modified(ino);
        }
        if op.uid.is_some() || op.gid.is_some() {
            self.strip(who, ino, true);
            let node = self.get_mut(ino);
            node.uid = op.uid.unwrap_or(node.uid);
            node.gid = op.gid.unwrap_or(node.gid);
            self.changed(ino);
        }
        if let Some(mode) = op.mode {
            let node = self.get_mut(ino);
            let member = who.gid == node.gid || who.groups.contains(&node.gid) || who.uid == 0;
            node.mode = if member { mode & 0o7777 } else { mode & 0o5777 };
            self.changed(ino);
        }
        let now = self.now;
        let stamp = |time: &SetTime| match time {
            SetTime::Now(_) => now,
            SetTime::At(stamp) => *stamp,
        };
        if let Some(time) = &op.atime {
            self.get_mut(ino).atime = stamp(time);
            self.changed(ino);
        }
        if let Some(time) = &op.mtime {
            self.get_mut(ino).mtime = stamp(time);
            self.changed(ino);
        }
        Ok(ino)
    }

    fn open(&mut self, who: &Who, ino: u64, flags: u32) -> Result<()> {
        let writes = flags & (2 | 8) != 0;
        match self.get(ino)?.kind {
            Kind::Regular => {}
            Kind::Directory if writes => return Err(Errno::EISDIR),
            Kind::Directory if flags & 16 != 0 => return Err(Errno::EACCES),
            Kind::Directory => {}
            Kind::Symlink => return Err(Errno::ELOOP),
            _ => return Err(Errno::ENXIO),
        }
        if flags & 16 != 0 {
            self.must(who, ino, "x")?;
        } else if flags & 1 != 0 {
            self.must(who, ino, "r")?;
        }
        if writes {
            self.must(who, ino, "w")?;
        }
        if flags & 8 != 0 {
            self.resize(ino, 0);
            self.strip(who, ino, false);
            self.modified(ino);
        }
        Ok(())
    }

    fn opened(&mut self, session: u64, ino: u64, flags: u32, handle: Option<Handle>) {
        let handle = handle.unwrap_or(Handle {
            ino: Ino(0),
            number: u64::MAX,
        });
        assert!(!self.handles.contains(&handle));
        self.handles.push(handle);
        let flags = if flags & 16 != 0 { flags | 1 } else { flags };
        self.opens.insert((session, handle), Open { ino, flags });
    }

    /// Which files can't be held.
    fn hold(&mut self, session: u64, op: &Hold) -> Vec<Ino> {
        for ino in &op.let_go {
            self.opens.remove(&(session, Handle::held(*ino).unwrap()));
        }
        // What loses its last handle by that is gone.
        self.forget();
        let mut gone = Vec::new();
        for ino in &op.keep {
            let node = self.nodes.get(&ino.0);
            if node.is_none_or(|node| node.kind != Kind::Regular) {
                gone.push(*ino);
                continue;
            }
            let held = Handle::held(*ino).unwrap();
            let (ino, flags) = (ino.0, 0);
            self.opens.insert((session, held), Open { ino, flags });
        }
        gone
    }

    /// What was read since it was changed was not yet read, or a day ago.
    fn accessed(&mut self, who: &Who, op: &Accessed) {
        for Seen { ino, change } in &op.objects {
            let Ok(()) = self.must(who, ino.0, "r") else {
                continue;
            };
            let now = self.now;
            let node = self.get_mut(ino.0);
            let is_read = node.atime > node.mtime.max(node.ctime);
            let is_of_today = now.secs - node.atime.secs < 24 * 3600;
            if node.change == *change && !(is_read && is_of_today) {
                node.atime = now;
            }
        }
    }

    pub fn end_session(&mut self, session: u64) {
        self.opens.retain(|(owner, _), _| *owner != session);
        self.forget();
    }
}
