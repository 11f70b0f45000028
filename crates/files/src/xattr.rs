//! Extended attributes. Who may do what with which namespace is in xattr(7). ACLs are kept here, but set by rules of their own
//! ([`crate::rights`]).

use alloc::vec::Vec;
use core::ops::Bound;

use bytes::Bytes;

use crate::acl::Acl;
use crate::answer::Answer;
use crate::errno::Errno;
use crate::fs::{Done, Fs};
use crate::layout::{
    self, Inode, MAX_NAME_BYTES, MAX_XATTR_BYTES, MAX_XATTR_LIST_BYTES, MAX_XATTR_VALUE_BYTES,
    MAX_XATTRS, XATTR_BYTES,
};
use crate::op::{GetXattr, ListXattr, RemoveXattr, SetXattr, XattrMode, access};
use crate::perm::{self, STICKY};
use crate::rights::Which;
use crate::types::{Ino, Kind};

const CAPABILITY: &[u8] = b"security.capability";
const TRUSTED: &[u8] = b"trusted.";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    User,
    Trusted,
    Security,
}

/// The namespace of a name. Of `system.` there are the ACLs alone, and they are none of these.
fn space(name: &[u8]) -> Result<Space, Errno> {
    if name.len() > MAX_NAME_BYTES {
        return Err(Errno::ERANGE);
    }
    if name.is_empty() || name.contains(&0) {
        return Err(Errno::EINVAL);
    }
    let spaces = [
        (&b"user."[..], Space::User),
        (TRUSTED, Space::Trusted),
        (b"security.", Space::Security),
    ];
    for (prefix, space) in spaces {
        match name.strip_prefix(prefix) {
            Some([]) => return Err(Errno::EINVAL),
            Some(_) => return Ok(space),
            None => {}
        }
    }
    Err(Errno::ENOTSUP)
}

impl Fs<'_, '_> {
    pub fn set_xattr(&mut self, op: &SetXattr) -> Done<Answer> {
        if let Some(which) = Which::of(&op.name) {
            let acl = Acl::parse(&op.value)?;
            return self.set_acl(op.ino, which, acl.as_ref());
        }
        let space = space(&op.name)?;
        if op.value.len() > MAX_XATTR_VALUE_BYTES {
            return Err(Errno::E2BIG.into());
        }
        let mut inode = self.inode(op.ino)?;
        self.may_change(op.ino, &inode, space)?;
        let key = layout::xattr_key(op.ino, &op.name);
        match (op.mode, self.txn.get(&key)?) {
            (XattrMode::Create, Some(_)) => return Err(Errno::EEXIST.into()),
            (XattrMode::Replace, None) => return Err(Errno::ENODATA.into()),
            (XattrMode::Set | XattrMode::Create | XattrMode::Replace, _) => {}
        }
        // A copy, so that the state does not keep the whole request alive.
        let value = Bytes::copy_from_slice(&op.value);
        self.replace_xattr(op.ino, &mut inode, &op.name, Some(value))?;
        self.touch(&mut inode);
        self.put_inode(op.ino, &inode);
        Ok(self.answer(op.ino, &inode))
    }

    pub fn get_xattr(&mut self, op: &GetXattr) -> Done<Answer> {
        let inode = self.inode(op.ino)?;
        if Which::of(&op.name).is_some() {
            // Everybody may know who may do what.
            if inode.kind == Kind::Symlink {
                return Err(Errno::ENOTSUP.into());
            }
            let value = self.txn.get(&layout::xattr_key(op.ino, &op.name))?;
            return sized(value.ok_or(Errno::ENODATA)?, op.size);
        }
        match space(&op.name)? {
            Space::User if !holds_user(&inode) => return Err(Errno::ENODATA.into()),
            Space::User => self.need(op.ino, &inode, access::READ)?,
            Space::Trusted if !self.who.is_root() => return Err(Errno::ENODATA.into()),
            Space::Trusted | Space::Security => {}
        }
        let value = self.txn.get(&layout::xattr_key(op.ino, &op.name))?;
        sized(value.ok_or(Errno::ENODATA)?, op.size)
    }

    pub fn list_xattr(&mut self, op: &ListXattr) -> Done<Answer> {
        let inode = self.inode(op.ino)?;
        let mut names = Vec::new();
        if inode.xattrs > 0 {
            for key in self.xattr_keys(op.ino, MAX_XATTRS as usize)? {
                let name = &key[9..];
                if name.starts_with(TRUSTED) && !self.who.is_root() {
                    continue;
                }
                names.extend_from_slice(name);
                names.push(0);
            }
        }
        sized(Bytes::from(names), op.size)
    }

    pub fn remove_xattr(&mut self, op: &RemoveXattr) -> Done<Answer> {
        if let Some(which) = Which::of(&op.name) {
            return self.set_acl(op.ino, which, None);
        }
        let space = space(&op.name)?;
        let mut inode = self.inode(op.ino)?;
        self.may_change(op.ino, &inode, space)?;
        let key = layout::xattr_key(op.ino, &op.name);
        if self.txn.get(&key)?.is_none() {
            return Err(Errno::ENODATA.into());
        }
        self.replace_xattr(op.ino, &mut inode, &op.name, None)?;
        self.touch(&mut inode);
        self.put_inode(op.ino, &inode);
        Ok(self.answer(op.ino, &inode))
    }

    /// The keys of up to `limit` attributes. No value is read.
    pub fn xattr_keys(&self, ino: Ino, limit: usize) -> Done<Vec<Bytes>> {
        let (from, to) = layout::xattr_range(ino);
        let (from, to) = (Bound::Included(&from[..]), Bound::Excluded(&to[..]));
        Ok(self.txn.keys(from, to, limit)?)
    }

    /// A change of a file's content takes its capabilities away, whoever makes it. The caller writes the inode.
    pub fn drop_capabilities(&mut self, ino: Ino, inode: &mut Inode) -> Done<()> {
        self.replace_xattr(ino, inode, CAPABILITY, None)
    }

    /// Gives an attribute this value, or takes it away if there is one. The caller writes the inode.
    pub fn replace_xattr(
        &mut self,
        ino: Ino,
        inode: &mut Inode,
        name: &[u8],
        value: Option<Bytes>,
    ) -> Done<()> {
        let key = layout::xattr_key(ino, name);
        let old = match inode.xattrs {
            0 => None,
            _ => self.txn.get(&key)?,
        };
        if let Some(old) = &old {
            self.credit_xattr(ino, inode, name, old)?;
        }
        match value {
            Some(value) => {
                self.charge_xattr(ino, inode, name, &value)?;
                self.txn.put(key, value);
            }
            None if old.is_some() => self.txn.delete(key),
            None => {}
        }
        Ok(())
    }

    fn may_change(&self, ino: Ino, inode: &Inode, space: Space) -> Done<()> {
        match space {
            Space::User => {
                let sticky_dir = inode.kind == Kind::Directory && inode.mode & STICKY != 0;
                if !holds_user(inode) || (sticky_dir && !perm::owns(inode, self.who)) {
                    return Err(Errno::EPERM.into());
                }
                self.need(ino, inode, access::WRITE)
            }
            Space::Trusted | Space::Security if self.who.is_root() => Ok(()),
            Space::Trusted | Space::Security => Err(Errno::EPERM.into()),
        }
    }

    fn charge_xattr(&mut self, ino: Ino, inode: &mut Inode, name: &[u8], value: &[u8]) -> Done<()> {
        let bytes = counted(name, value);
        inode.xattrs += 1;
        inode.xattr_list_bytes += name.len() as u32 + 1;
        inode.xattr_bytes += bytes;
        if inode.xattrs > MAX_XATTRS
            || inode.xattr_list_bytes > MAX_XATTR_LIST_BYTES
            || inode.xattr_bytes > MAX_XATTR_BYTES
        {
            return Err(Errno::ENOSPC.into());
        }
        self.charge(ino, bytes)
    }

    fn credit_xattr(&mut self, ino: Ino, inode: &mut Inode, name: &[u8], value: &[u8]) -> Done<()> {
        // An attribute may have been counted without what its row takes: no more is given back than is counted of all.
        let bytes = counted(name, value).min(inode.xattr_bytes);
        inode.xattrs -= 1;
        inode.xattr_list_bytes -= name.len() as u32 + 1;
        inode.xattr_bytes -= bytes;
        self.credit(ino, bytes)
    }
}

/// What an attribute counts.
fn counted(name: &[u8], value: &[u8]) -> u64 {
    XATTR_BYTES + (name.len() + value.len()) as u64
}

fn holds_user(inode: &Inode) -> bool {
    matches!(inode.kind, Kind::Regular | Kind::Directory)
}

/// Answers as getxattr(2) with a buffer of `size` bytes.
fn sized(value: Bytes, size: u32) -> Done<Answer> {
    if size == 0 {
        return Ok(Answer::Size(value.len() as u32));
    }
    if value.len() > size as usize {
        return Err(Errno::ERANGE.into());
    }
    Ok(Answer::Bytes(value))
}
