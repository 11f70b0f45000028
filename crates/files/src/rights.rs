//! Who may do what to an object: by its mode bits and its ACL; and what becomes of the ACL when the object is made or changed.
//!
//! An ACL is kept as the extended attribute that it is set by, and stands for nothing that the mode bits say as well: one that
//! says no more than they do is not kept. The bits of owner, mask and others are in both, and always the same.

use bytes::Bytes;
use quorate_state::Fault;

use crate::acl::{ACCESS, Acl, DEFAULT};
use crate::answer::Answer;
use crate::errno::Errno;
use crate::fs::{Done, Fs};
use crate::layout::{self, Inode};
use crate::op::access;
use crate::perm::{self, PERMISSION_BITS, SETGID};
use crate::types::{Ino, Kind};

/// The bits that are the mask where there is an ACL.
const GROUP_BITS: u32 = 0o070;

/// An object's two ACLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// The one that decides who may do what.
    Access,
    /// The one that is inherited.
    Default,
}

impl Which {
    /// The ACL that an extended attribute is.
    pub fn of(name: &[u8]) -> Option<Which> {
        match name {
            ACCESS => Some(Which::Access),
            DEFAULT => Some(Which::Default),
            _ => None,
        }
    }

    fn name(self) -> &'static [u8] {
        match self {
            Which::Access => ACCESS,
            Which::Default => DEFAULT,
        }
    }
}

impl Fs<'_, '_> {
    /// Whether the caller may do all of `wanted` (`acl_permission_check` and `generic_permission` of Linux).
    pub fn may(&self, ino: Ino, inode: &Inode, wanted: u32) -> Done<bool> {
        // What an ACL says of the owner, the mode bits say too. And as in Linux, one whose mask is empty is not looked at.
        let by_mode = perm::owns(inode, self.who) || inode.mode & GROUP_BITS == 0;
        if !by_mode && let Some(acl) = self.acl(ino, inode, Which::Access)? {
            return Ok(acl.allows(inode.gid, self.who, wanted));
        }
        Ok(perm::granted(inode, self.who) & wanted == wanted)
    }

    /// `EACCES` unless the caller may do all of `wanted`.
    pub fn need(&self, ino: Ino, inode: &Inode, wanted: u32) -> Done<()> {
        match self.may(ino, inode, wanted)? {
            true => Ok(()),
            false => Err(Errno::EACCES.into()),
        }
    }

    /// Which of the accesses in `mask` the caller has, each by itself.
    pub fn allowed(&self, ino: Ino, inode: &Inode, mask: u32) -> Done<u32> {
        let mut allowed = 0;
        for bit in [access::READ, access::WRITE, access::EXEC] {
            if mask & bit != 0 && self.may(ino, inode, bit)? {
                allowed |= bit;
            }
        }
        Ok(allowed)
    }

    fn acl(&self, ino: Ino, inode: &Inode, which: Which) -> Done<Option<Acl>> {
        if inode.xattrs == 0 {
            return Ok(None);
        }
        let key = layout::xattr_key(ino, which.name());
        let Some(value) = self.txn.get(&key)? else {
            return Ok(None);
        };
        match Acl::parse(&value) {
            Ok(Some(acl)) => Ok(Some(acl)),
            Ok(None) | Err(_) => Err(Fault::value(&key, "it is no ACL").into()),
        }
    }

    /// Keeps an ACL or does away with it. The caller writes the inode.
    fn keep_acl(
        &mut self,
        ino: Ino,
        inode: &mut Inode,
        which: Which,
        acl: Option<&Acl>,
    ) -> Done<()> {
        let value = acl.map(|acl| Bytes::from(acl.to_bytes()));
        self.replace_xattr(ino, inode, which.name(), value)
    }

    /// The order of checks is that of `set_posix_acl` in Linux.
    pub fn set_acl(&mut self, ino: Ino, which: Which, acl: Option<&Acl>) -> Done<Answer> {
        let mut inode = self.inode(ino)?;
        if inode.kind == Kind::Symlink {
            return Err(Errno::ENOTSUP.into());
        }
        if which == Which::Default && inode.kind != Kind::Directory {
            return match acl {
                Some(_) => Err(Errno::EACCES.into()),
                None => Ok(self.answer(ino, &inode)),
            };
        }
        if !perm::owns(&inode, self.who) {
            return Err(Errno::EPERM.into());
        }
        if acl.is_none() && self.acl(ino, &inode, which)?.is_none() {
            return Ok(self.answer(ino, &inode));
        }
        match which {
            Which::Default => self.keep_acl(ino, &mut inode, which, acl)?,
            Which::Access => {
                if let Some(acl) = acl {
                    self.follow_acl(&mut inode, acl);
                }
                let kept = acl.filter(|acl| !acl.is_mode_alone());
                self.keep_acl(ino, &mut inode, which, kept)?;
            }
        }
        if inode.kind == Kind::Regular {
            // Who made it exclusively has been told so by now.
            inode.rdev = 0;
        }
        self.touch(&mut inode);
        self.put_inode(ino, &inode);
        Ok(self.answer(ino, &inode))
    }

    /// Has the mode bits say what the ACL does (`posix_acl_update_mode`).
    fn follow_acl(&self, inode: &mut Inode, acl: &Acl) {
        inode.mode = inode.mode & !PERMISSION_BITS | acl.mode();
        if !perm::in_group(self.who, inode.gid) {
            inode.mode &= !SETGID;
        }
    }

    /// The mode bits were set: the ACL follows them (`posix_acl_chmod`). The caller writes the inode.
    pub fn acl_follows_mode(&mut self, ino: Ino, inode: &mut Inode) -> Done<()> {
        if let Some(mut acl) = self.acl(ino, inode, Which::Access)? {
            acl.set_mode(inode.mode);
            self.keep_acl(ino, inode, Which::Access, Some(&acl))?;
        }
        Ok(())
    }

    /// Mode bits and ACLs of a new object: by the directory's default ACL, or else by the umask (`posix_acl_create`). The
    /// caller writes the inode.
    pub fn inherit(&mut self, dir: (Ino, &Inode), new: (Ino, &mut Inode), umask: u32) -> Done<()> {
        let (ino, inode) = new;
        if inode.kind == Kind::Symlink {
            return Ok(());
        }
        let Some(default) = self.acl(dir.0, dir.1, Which::Default)? else {
            inode.mode &= !(umask & PERMISSION_BITS);
            return Ok(());
        };
        let acl = default.clone().inherited(inode.mode);
        inode.mode = inode.mode & !PERMISSION_BITS | acl.mode();
        if !acl.is_mode_alone() {
            self.keep_acl(ino, inode, Which::Access, Some(&acl))?;
        }
        if inode.kind == Kind::Directory {
            self.keep_acl(ino, inode, Which::Default, Some(&default))?;
        }
        Ok(())
    }
}
