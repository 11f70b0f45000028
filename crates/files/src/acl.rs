//! POSIX access control lists: the form that extended attributes have for them, and what they grant.
//!
//! The rules are those of acl(5) as Linux keeps them (fs/posix_acl.c): each function names the one that it is. Setting,
//! inheriting and checking them is in [`crate::rights`].

use alloc::vec::Vec;

use crate::errno::Errno;
use crate::op::Who;

/// The attribute with the ACL that decides who may do what.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute of a directory with the ACL that objects made in it get.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

/// The longest ACL. The kernel's FUSE takes none that is longer than a page, so another could be set here and not be seen
/// by a mount, which would then let nobody in.
pub(crate) const MAX_ACL_BYTES: usize = 4096;

/// The permission bits that an entry can have: those of [`crate::op::access`].
const ALL: u16 = 7;
const VERSION: u32 = 2;
/// Stands where an entry names nobody.
const NOBODY: u32 = u32::MAX;

/// What an entry is about.
mod tag {
    pub const OWNER: u16 = 1;
    pub const USER: u16 = 2;
    pub const OWNING_GROUP: u16 = 4;
    pub const GROUP: u16 = 8;
    pub const MASK: u16 = 16;
    pub const OTHER: u16 = 32;
}

/// The permissions of a named user or group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Named {
    id: u32,
    perm: u16,
}

/// A valid ACL: there is one owner, one owning group, one entry for others, and a mask if anybody is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl {
    owner: u16,
    users: Vec<Named>,
    group: u16,
    groups: Vec<Named>,
    mask: Option<u16>,
    other: u16,
}

/// Which entry may come next.
#[derive(Clone, Copy)]
enum Next {
    Owner,
    User,
    Group,
    Other,
    End,
}

impl Acl {
    /// Takes an attribute's value apart. Without entries it is none. (`posix_acl_from_xattr`, `posix_acl_valid`)
    pub fn parse(value: &[u8]) -> Result<Option<Acl>, Errno> {
        if value.len() > MAX_ACL_BYTES {
            return Err(Errno::E2BIG);
        }
        if value.is_empty() {
            return Ok(None);
        }
        let (version, entries) = value.split_first_chunk().ok_or(Errno::EINVAL)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::ENOTSUP);
        }
        let (entries, []) = entries.as_chunks() else {
            return Err(Errno::EINVAL);
        };
        match entries {
            [] => Ok(None),
            entries => Acl::of_entries(entries).map(Some).ok_or(Errno::EINVAL),
        }
    }

    fn of_entries(entries: &[[u8; 8]]) -> Option<Acl> {
        let mut acl = Acl {
            owner: 0,
            users: Vec::new(),
            group: 0,
            groups: Vec::new(),
            mask: None,
            other: 0,
        };
        let mut next = Next::Owner;
        for [t0, t1, p0, p1, id @ ..] in entries {
            let perm = u16::from_le_bytes([*p0, *p1]);
            let id = u32::from_le_bytes(*id);
            if perm & !ALL != 0 {
                return None;
            }
            next = match (next, u16::from_le_bytes([*t0, *t1])) {
                (Next::Owner, tag::OWNER) => {
                    acl.owner = perm;
                    Next::User
                }
                (Next::User, tag::USER) if id != NOBODY => {
                    acl.users.push(Named { id, perm });
                    Next::User
                }
                (Next::User, tag::OWNING_GROUP) => {
                    acl.group = perm;
                    Next::Group
                }
                (Next::Group, tag::GROUP) if id != NOBODY => {
                    acl.groups.push(Named { id, perm });
                    Next::Group
                }
                (Next::Group, tag::MASK) => {
                    acl.mask = Some(perm);
                    Next::Other
                }
                (next @ (Next::Group | Next::Other), tag::OTHER) => {
                    let names_somebody = !acl.users.is_empty() || !acl.groups.is_empty();
                    if matches!(next, Next::Group) && names_somebody {
                        return None;
                    }
                    acl.other = perm;
                    Next::End
                }
                _ => return None,
            };
        }
        matches!(next, Next::End).then_some(acl)
    }

    /// The value of an attribute: the only one for this ACL. (`posix_acl_to_xattr`)
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::from(VERSION.to_le_bytes());
        let mut add = |tag: u16, perm: u16, id: u32| {
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&perm.to_le_bytes());
            out.extend_from_slice(&id.to_le_bytes());
        };
        add(tag::OWNER, self.owner, NOBODY);
        for user in &self.users {
            add(tag::USER, user.perm, user.id);
        }
        add(tag::OWNING_GROUP, self.group, NOBODY);
        for group in &self.groups {
            add(tag::GROUP, group.perm, group.id);
        }
        if let Some(mask) = self.mask {
            add(tag::MASK, mask, NOBODY);
        }
        add(tag::OTHER, self.other, NOBODY);
        out
    }

    /// The mode bits that say the same, or as much of it as they can: those of the group are the mask.
    pub fn mode(&self) -> u32 {
        let group = self.mask.unwrap_or(self.group);
        u32::from(self.owner) << 6 | u32::from(group) << 3 | u32::from(self.other)
    }

    /// Whether the mode bits say all of it. (`posix_acl_equiv_mode`)
    pub fn is_mode_alone(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty() && self.mask.is_none()
    }

    /// Has it say what the mode bits do. (`__posix_acl_chmod_masq`)
    pub fn set_mode(&mut self, mode: u32) {
        let bits = |shift: u32| (mode >> shift) as u16 & ALL;
        self.owner = bits(6);
        match &mut self.mask {
            Some(mask) => *mask = bits(3),
            None => self.group = bits(3),
        }
        self.other = bits(0);
    }

    /// What an object gets of a directory's default ACL if it is made with these mode bits: no more than they allow.
    /// (`posix_acl_create_masq`)
    pub fn inherited(mut self, mode: u32) -> Acl {
        self.set_mode(self.mode() & mode);
        self
    }

    /// Whether it allows all of `wanted` to somebody who is not the object's owner. (`posix_acl_permission`)
    pub fn allows(&self, owning_group: u32, who: &Who, wanted: u32) -> bool {
        let has = |perm: u16| u32::from(perm) & wanted == wanted;
        let mask = self.mask.unwrap_or(ALL);
        if let Some(user) = self.users.iter().find(|user| user.id == who.uid) {
            return has(user.perm & mask);
        }
        let own = who.in_group(owning_group).then_some(self.group);
        let named = self.groups.iter().filter(|group| who.in_group(group.id));
        let mut perms = own.into_iter().chain(named.map(|group| group.perm));
        let mut is_member = false;
        // The first group that has all of it counts: two that have half of it each are not one that has all.
        match perms.find(|perm| {
            is_member = true;
            has(*perm)
        }) {
            Some(perm) => has(perm & mask),
            None => !is_member && has(self.other),
        }
    }
}
