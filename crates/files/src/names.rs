//! Operations that make, find and remove names. Moving them is in [`crate::rename`].
//!
//! Errors come in the order in which Linux finds them (fs/namei.c): the directory, search permission, the name itself,
//! whether it is there, write permission on the directory, the sticky bit, the kind.

use bytes::Bytes;

use crate::answer::{Answer, Made};
use crate::errno::Errno;
use crate::fs::{Done, Fs};
use crate::layout::{self, DirEntry, FIRST_COOKIE, Inode, MAX_LINKS};
use crate::op::{Link, Lookup, Make, Mkdir, Mknod, Rmdir, Symlink, Unlink, access};
use crate::perm;
use crate::types::{Ino, Kind, Nothing};

/// Checks that a name can be in a directory.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.len() > layout::MAX_NAME_BYTES {
        return Err(Errno::ENAMETOOLONG);
    }
    let dots = name == b"." || name == b"..";
    if name.is_empty() || dots || name.iter().any(|&b| b == b'/' || b == 0) {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// What a new object is; see [`Fs::make`].
pub(crate) struct New {
    pub kind: Kind,
    pub mode: u32,
    pub umask: u32,
    pub rdev: u64,
    pub size: u64,
}

impl Fs<'_, '_> {
    pub fn lookup(&mut self, op: &Lookup) -> Done<Answer> {
        let dir = self.search(op.parent)?;
        let ino = match &op.name[..] {
            b"." => op.parent,
            b".." => dir.parent,
            name => {
                check_name(name)?;
                self.entry(op.parent, name)?.ok_or(Errno::ENOENT)?.ino
            }
        };
        let inode = self.inode(ino)?;
        Ok(self.answer(ino, &inode))
    }

    pub fn mkdir(&mut self, op: &Mkdir) -> Done<Answer> {
        let new = New {
            kind: Kind::Directory,
            mode: op.mode,
            umask: op.umask,
            rdev: 0,
            size: 0,
        };
        let (ino, inode) = self.make_named(op.parent, &op.name, &new)?;
        Ok(self.answer(ino, &inode))
    }

    pub fn mknod(&mut self, op: &Mknod) -> Done<Answer> {
        let device = matches!(op.kind, Kind::Block | Kind::Char);
        match op.kind {
            Kind::Directory => return Err(Errno::EPERM.into()),
            Kind::Symlink => return Err(Errno::EINVAL.into()),
            Kind::Regular | Kind::Fifo | Kind::Socket | Kind::Block | Kind::Char => {}
        }
        self.may_make(op.parent, &op.name)?;
        if device && !self.who.is_root() {
            return Err(Errno::EPERM.into());
        }
        let new = New {
            kind: op.kind,
            mode: op.mode,
            umask: op.umask,
            rdev: if device { op.rdev } else { 0 },
            size: 0,
        };
        let (ino, inode) = self.make_named(op.parent, &op.name, &new)?;
        Ok(self.answer(ino, &inode))
    }

    pub fn make_file(&mut self, op: &Make) -> Done<Answer> {
        // A mark that is not there.
        let mark = op.verifier.map_or(0, |verifier| verifier.max(1));
        self.search(op.parent)?;
        check_name(&op.name)?;
        if let Some(entry) = self.entry(op.parent, &op.name)? {
            let inode = self.inode(entry.ino)?;
            let own = inode.kind == Kind::Regular && inode.rdev == mark;
            if op.verifier.is_some() && !own {
                return Err(Errno::EEXIST.into());
            }
            return Ok(Answer::Made(Made {
                created: false,
                attr: self.attr(entry.ino, &inode),
            }));
        }
        self.may_add(op.parent)?;
        let new = New {
            kind: Kind::Regular,
            mode: op.mode,
            umask: op.umask,
            rdev: mark,
            size: 0,
        };
        let (ino, inode) = self.make(op.parent, &op.name, &new)?;
        Ok(Answer::Made(Made {
            created: true,
            attr: self.attr(ino, &inode),
        }))
    }

    pub fn symlink(&mut self, op: &Symlink) -> Done<Answer> {
        if op.target.is_empty() {
            return Err(Errno::ENOENT.into());
        }
        if op.target.len() > layout::MAX_SYMLINK_BYTES {
            return Err(Errno::ENAMETOOLONG.into());
        }
        if op.target.contains(&0) {
            return Err(Errno::EINVAL.into());
        }
        let new = New {
            kind: Kind::Symlink,
            mode: 0,
            umask: 0,
            rdev: 0,
            size: op.target.len() as u64,
        };
        let (ino, inode) = self.make_named(op.parent, &op.name, &new)?;
        // A copy, so that the state does not keep the whole request alive.
        let target = Bytes::copy_from_slice(&op.target);
        self.txn.put(layout::symlink_key(ino), target);
        Ok(self.answer(ino, &inode))
    }

    pub fn readlink(&mut self, ino: Ino) -> Done<Answer> {
        if self.inode(ino)?.kind != Kind::Symlink {
            return Err(Errno::EINVAL.into());
        }
        let target = self.txn.get(&layout::symlink_key(ino))?;
        Ok(Answer::Bytes(target.ok_or(Errno::ESTALE)?))
    }

    pub fn link(&mut self, op: &Link) -> Done<Answer> {
        let mut inode = self.inode(op.ino)?;
        self.may_make(op.parent, &op.name)?;
        if inode.kind == Kind::Directory {
            return Err(Errno::EPERM.into());
        }
        if inode.nlink == 0 {
            return Err(Errno::ENOENT.into());
        }
        if inode.nlink >= MAX_LINKS {
            return Err(Errno::EMLINK.into());
        }
        self.check_link(op.ino, op.parent)?;
        inode.nlink += 1;
        self.touch(&mut inode);
        self.put_inode(op.ino, &inode);
        let place = self.add_entry(op.parent, &op.name, op.ino, inode.kind)?;
        self.add_name(op.ino, place);
        Ok(self.answer(op.ino, &inode))
    }

    pub fn unlink(&mut self, op: &Unlink) -> Done<Answer> {
        let (entry, child) = self.find(op.parent, &op.name)?;
        self.may_remove(op.parent, &child, false)?;
        self.remove_entry(op.parent, &op.name, &entry)?;
        self.drop_name(entry.ino, child, entry.place(op.parent))?;
        Ok(Answer::Done(Nothing))
    }

    pub fn rmdir(&mut self, op: &Rmdir) -> Done<Answer> {
        let (entry, child) = self.find(op.parent, &op.name)?;
        self.may_remove(op.parent, &child, true)?;
        if child.size > 0 {
            return Err(Errno::ENOTEMPTY.into());
        }
        self.remove_entry(op.parent, &op.name, &entry)?;
        self.drop_name(entry.ino, child, entry.place(op.parent))?;
        Ok(Answer::Done(Nothing))
    }

    /// The entry with a name, and its object.
    pub fn find(&self, parent: Ino, name: &[u8]) -> Done<(DirEntry, Inode)> {
        self.search(parent)?;
        check_name(name)?;
        let entry = self.entry(parent, name)?.ok_or(Errno::ENOENT)?;
        let child = self.inode(entry.ino)?;
        Ok((entry, child))
    }

    /// Whether the caller may make a name that is not there (`may_create` of Linux).
    pub fn may_make(&self, parent: Ino, name: &[u8]) -> Done<()> {
        self.search(parent)?;
        check_name(name)?;
        if self.entry(parent, name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        self.may_add(parent)
    }

    /// The part of [`Fs::may_make`] after it is known that the name is not there.
    pub fn may_add(&self, parent: Ino) -> Done<()> {
        let dir = self.inode(parent)?;
        if dir.nlink == 0 {
            return Err(Errno::ENOENT.into());
        }
        self.need(parent, &dir, access::WRITE | access::EXEC)
    }

    /// Whether the caller may remove a name of `child` (`may_delete` of Linux).
    pub fn may_remove(&self, parent: Ino, child: &Inode, as_directory: bool) -> Done<()> {
        let dir = self.inode(parent)?;
        self.need(parent, &dir, access::WRITE | access::EXEC)?;
        perm::check_sticky(&dir, child, self.who)?;
        match (as_directory, child.kind == Kind::Directory) {
            (true, false) => Err(Errno::ENOTDIR.into()),
            (false, true) => Err(Errno::EISDIR.into()),
            (true, true) | (false, false) => Ok(()),
        }
    }

    fn make_named(&mut self, parent: Ino, name: &[u8], new: &New) -> Done<(Ino, Inode)> {
        self.may_make(parent, name)?;
        self.make(parent, name, new)
    }

    /// Makes an object and its name; the caller has checked that it may.
    pub fn make(&mut self, parent: Ino, name: &[u8], new: &New) -> Done<(Ino, Inode)> {
        if self.counters.used_inodes >= self.counters.capacity_inodes {
            return Err(Errno::ENOSPC.into());
        }
        self.counters.used_inodes += 1;
        let number = self.next_number()?;
        let ino = Ino(number);
        let dir = self.inode(parent)?;
        self.join(ino, parent)?;
        let (mode, gid) = perm::for_new(&dir, self.who, new.kind, new.mode);
        let now = self.now();
        let is_dir = new.kind == Kind::Directory;
        let mut inode = Inode {
            kind: new.kind,
            mode,
            nlink: if is_dir { 2 } else { 1 },
            uid: self.who.uid,
            gid,
            rdev: new.rdev,
            size: new.size,
            blocks: 0,
            data: if new.kind == Kind::Regular { number } else { 0 },
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            change: 1,
            parent,
            next_cookie: if is_dir { FIRST_COOKIE } else { 0 },
            xattrs: 0,
            xattr_list_bytes: 0,
            xattr_bytes: 0,
        };
        self.inherit((parent, &dir), (ino, &mut inode), new.umask)?;
        inode.set_place(self.add_entry(parent, name, ino, new.kind)?);
        self.put_inode(ino, &inode);
        Ok((ino, inode))
    }
}
