//! Attributes: asking for them and changing them; and the volume's.
//!
//! The rules are those of `setattr_prepare` and `notify_change` of Linux (fs/attr.c). Every check comes before any
//! change.

use crate::answer::{Answer, StatFs};
use crate::errno::Errno;
use crate::fs::{Done, Fs};
use crate::layout::{BLOCK_BYTES, Inode, MAX_NAME_BYTES};
use crate::op::{Access, SetAttr, SetTime, Target, access, flags};
use crate::perm::{self, MODE_BITS, SETGID};
use crate::types::{Ino, Kind, Stamp};

impl SetAttr {
    /// Whether it sets nothing.
    fn is_empty(&self) -> bool {
        let SetAttr {
            target: _,
            mode,
            uid,
            gid,
            size,
            atime,
            mtime,
        } = self;
        let ids = uid.is_none() && gid.is_none();
        let times = atime.is_none() && mtime.is_none();
        mode.is_none() && size.is_none() && ids && times
    }
}

impl Fs<'_, '_> {
    pub fn get_attr(&mut self, target: &Target) -> Done<Answer> {
        let (ino, inode, _) = self.to_read(target)?;
        Ok(self.answer(ino, &inode))
    }

    pub fn access(&mut self, op: &Access) -> Done<Answer> {
        if op.mask & !(access::READ | access::WRITE | access::EXEC) != 0 {
            return Err(Errno::EINVAL.into());
        }
        let inode = self.inode(op.ino)?;
        Ok(Answer::Allowed(self.allowed(op.ino, &inode, op.mask)?))
    }

    /// The volume's space and limits.
    pub fn stat(&self) -> StatFs {
        StatFs {
            capacity: self.counters.capacity_bytes,
            used: self.counters.used_bytes,
            inodes: self.counters.capacity_inodes,
            used_inodes: self.counters.used_inodes,
            block_size: BLOCK_BYTES as u32,
            name_max: MAX_NAME_BYTES as u32,
        }
    }

    pub fn set_attr(&mut self, op: &SetAttr) -> Done<Answer> {
        let (ino, mut inode, rights) = self.target(&op.target)?;
        self.check_size(op, ino, &inode, rights)?;
        self.check_owner(op, &inode)?;
        self.check_mode(op, &inode)?;
        self.check_times(op, ino, &inode)?;
        if op.is_empty() {
            // Nothing was checked, so nothing is changed.
            return Ok(self.answer(ino, &inode));
        }

        if op.size.is_some() {
            self.set_size(ino, &mut inode, op)?;
        }
        if op.uid.is_some() || op.gid.is_some() {
            inode.mode = perm::mode_after_chown(&inode, self.who);
            inode.uid = op.uid.unwrap_or(inode.uid);
            inode.gid = op.gid.unwrap_or(inode.gid);
            if inode.kind != Kind::Directory {
                self.drop_capabilities(ino, &mut inode)?;
            }
            self.touch(&mut inode);
        }
        if let Some(mode) = op.mode {
            inode.mode = mode & MODE_BITS;
            // chmod(2): only a member of the file's group sets this bit.
            if !perm::in_group(self.who, inode.gid) {
                inode.mode &= !SETGID;
            }
            self.acl_follows_mode(ino, &mut inode)?;
            self.touch(&mut inode);
        }
        if let Some(time) = &op.atime {
            inode.atime = self.time(time);
            self.touch(&mut inode);
        }
        if let Some(time) = &op.mtime {
            inode.mtime = self.time(time);
            self.touch(&mut inode);
        }
        if inode.kind == Kind::Regular {
            // Who made it exclusively has been told so by now.
            inode.rdev = 0;
        }
        self.put_inode(ino, &inode);
        Ok(self.answer(ino, &inode))
    }

    fn set_size(&mut self, ino: Ino, inode: &mut Inode, op: &SetAttr) -> Done<()> {
        let Some(size) = op.size else { return Ok(()) };
        self.truncate(ino, inode, size)?;
        self.written(ino, inode)
    }

    fn time(&self, time: &SetTime) -> Stamp {
        match time {
            SetTime::Now(_) => self.now(),
            SetTime::At(stamp) => *stamp,
        }
    }

    fn check_size(&self, op: &SetAttr, ino: Ino, inode: &Inode, rights: Option<u32>) -> Done<()> {
        if op.size.is_none() {
            return Ok(());
        }
        match inode.kind {
            Kind::Regular => {}
            Kind::Directory => return Err(Errno::EISDIR.into()),
            Kind::Symlink | Kind::Fifo | Kind::Socket | Kind::Block | Kind::Char => {
                return Err(Errno::EINVAL.into());
            }
        }
        match rights {
            // ftruncate(2): a handle that does not write.
            Some(rights) if rights & flags::WRITE == 0 => Err(Errno::EINVAL.into()),
            Some(_) => Ok(()),
            None => self.need(ino, inode, access::WRITE),
        }
    }

    fn check_owner(&self, op: &SetAttr, inode: &Inode) -> Done<()> {
        if self.who.is_root() {
            return Ok(());
        }
        let owner = self.who.uid == inode.uid;
        if let Some(uid) = op.uid
            && !(owner && uid == inode.uid)
        {
            return Err(Errno::EPERM.into());
        }
        if let Some(gid) = op.gid
            && !(owner && (gid == inode.gid || self.who.in_group(gid)))
        {
            return Err(Errno::EPERM.into());
        }
        Ok(())
    }

    fn check_mode(&self, op: &SetAttr, inode: &Inode) -> Done<()> {
        if op.mode.is_none() {
            return Ok(());
        }
        if !perm::owns(inode, self.who) {
            return Err(Errno::EPERM.into());
        }
        if inode.kind == Kind::Symlink {
            return Err(Errno::ENOTSUP.into());
        }
        Ok(())
    }

    /// utimensat(2): any time is for the owner to set; now also for those who may write.
    fn check_times(&self, op: &SetAttr, ino: Ino, inode: &Inode) -> Done<()> {
        if perm::owns(inode, self.who) {
            return Ok(());
        }
        let mut times = [&op.atime, &op.mtime].into_iter().flatten();
        if times.clone().any(|time| matches!(time, SetTime::At(_))) {
            return Err(Errno::EPERM.into());
        }
        // Who may set the size sets the modification time with it.
        if times.next().is_some() && op.size.is_none() {
            self.need(ino, inode, access::WRITE)?;
        }
        Ok(())
    }
}
