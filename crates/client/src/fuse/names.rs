//! Names and attributes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quorate_files::answer::StatFs;
use quorate_files::op::{
    Access, GetXattr, Link, ListXattr, Lookup, Mkdir, Mknod, RemoveXattr, Rename, Rmdir, SetAttr,
    SetXattr, Symlink, Unlink, XattrMode,
};
use quorate_files::{Action, Answer, Attr, Errno, Ino, Kind, Nothing, Target, Who};
use tokio::time::Instant;

use super::OBJECT;
use super::caller;
use super::convert::{Result, is_acl, is_usual, kind_of_mode};
use super::core::{Core, OldPages};
use super::handles::OpenFile;
use super::owners::Owners;
use super::shares::{self, SHARES};
use crate::volume::{CallError, XattrAnswer};

/// How often a truncation that takes several operations goes on, at most.
const MAX_STEPS: usize = 1 << 20;

/// Set-ID, sticky and permission bits.
pub(super) const MODE_BITS: u32 = 0o7777;

/// What a new object's mode is to be. The umask counts only where the directory has no default ACL, so it is for the
/// replicas to apply.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bits {
    pub mode: u32,
    pub umask: u32,
}

/// What a change of names says of the object.
fn attr_in(answer: Answer) -> Result<Attr> {
    match answer {
        Answer::Attr(attr) => Ok(attr),
        _ => Err(CallError::Garbled.into()),
    }
}

impl Core {
    pub async fn lookup(self: &Arc<Core>, who: &Who, parent: Ino, name: Bytes) -> Result<Attr> {
        let attr = match self.share(parent, &name) {
            Some(ino) => self.volume.get_attr(who, Target::Ino(ino?)).await?,
            None => self.look_up(who, Lookup { parent, name }).await?,
        };
        self.fresh(attr).await
    }

    /// Attributes, and for how long the kernel may take them for granted.
    pub async fn attributes(self: &Arc<Core>, who: &Who, ino: Ino) -> Result<(Attr, Duration)> {
        if let Some(left) = self.left_by_change(ino) {
            return Ok(left);
        }
        let attr = self.get_attr(who, ino).await?;
        let lifetime = self.caching.attributes(&attr);
        Ok((attr, lifetime))
    }

    pub async fn get_attr(self: &Arc<Core>, who: &Who, ino: Ino) -> Result<Attr> {
        if ino == SHARES {
            let own = self.owners.as_ref().map(Owners::own);
            return Ok(shares::attr(own.unwrap_or((who.uid, who.gid))));
        }
        self.flush_ino(ino).await;
        let attr = self.volume.get_attr(who, self.handles.target(ino)).await;
        match attr.inspect_err(|e| self.pins.failed(ino, e)) {
            // For a guest it may be there, and not in scope any more.
            Err(CallError::Refused(Errno::ESTALE)) if !self.is_guest() => {
                self.directories.gone(ino).ok_or(fuser::Errno::ESTALE)
            }
            attr => self.fresh(attr?).await,
        }
    }

    /// `EACCES` for the directory of shares, of which the service knows nothing: it can't be changed from here.
    pub fn changeable(&self, ino: Ino) -> Result<()> {
        match ino {
            SHARES => Err(fuser::Errno::EACCES),
            _ => Ok(()),
        }
    }

    /// What has a name in the directory of shares, if it is asked for one.
    fn share(&self, parent: Ino, name: &[u8]) -> Option<Result<Ino>> {
        let shares = self.shares.as_ref().filter(|_| parent == SHARES)?;
        Some(shares.get(name).ok_or(fuser::Errno::ENOENT))
    }

    /// Changes attributes, now or later; and for how long the kernel may take what it is told for granted.
    pub async fn change_attr(
        self: &Arc<Core>,
        who: &Who,
        mut op: SetAttr,
        through: Option<u64>,
    ) -> Result<(Attr, Duration)> {
        if let Target::Ino(ino) = op.target {
            self.changeable(ino)?;
        }
        if let Some(owners) = &self.owners {
            let now = match owners.depends(&op) {
                true => Some(self.volume.get_attr(who, op.target.clone()).await?),
                false => None,
            };
            owners.meant(&mut op, now.map(|attr| (attr.uid, attr.gid)));
        }
        // What a guest may do only the service knows, so all is asked at once.
        if let Target::Ino(ino) = op.target
            && !self.caching.sync
            && !self.is_guest()
            && let Some(inode) = self.handles.inode(ino)
            && let Some(attr) = inode.defer(who, &op, self.is_of_one_group(), |known| {
                self.changes.is_newest(known)
            })
        {
            // The time of change is not known yet: who asks for it is to have the attributes set first.
            return Ok((attr, Duration::ZERO));
        }
        let attr = self.set_attr(who, op, through).await?;
        let lifetime = self.caching.attributes(&attr);
        Ok((attr, lifetime))
    }

    /// Changes attributes; a size through the open file with this number, if there is one.
    async fn set_attr(
        self: &Arc<Core>,
        who: &Who,
        op: SetAttr,
        through: Option<u64>,
    ) -> Result<Attr> {
        let Target::Ino(ino) = op.target else {
            return Err(fuser::Errno::EINVAL);
        };
        // Before, so that neither size nor time is changed by what was written earlier.
        self.flush_ino(ino).await;
        let file = match (op.size, through) {
            (Some(_), Some(number)) => Some(self.handles.get(number)?),
            _ => None,
        };
        let sets_size = op.size.is_some();
        let set = self.set_in_steps(who, ino, op, file.as_deref()).await;
        if sets_size && set.is_err() {
            // A part of what the kernel holds may be gone, and it cuts off pages only if all is done.
            self.doubt_pages(ino);
        }
        set
    }

    async fn set_in_steps(
        self: &Arc<Core>,
        who: &Who,
        ino: Ino,
        mut op: SetAttr,
        file: Option<&OpenFile>,
    ) -> Result<Attr> {
        for _ in 0..MAX_STEPS {
            let _changing = self.changing();
            let attr = match file {
                None => {
                    let set = || self.volume.set_attr(who, op.clone());
                    let set = self.ask_held(ino, set).await;
                    set.inspect_err(|e| self.pins.failed(ino, e))?
                }
                Some(file) => {
                    let set = |target| {
                        Ok(Action::SetAttr(SetAttr {
                            target,
                            ..op.clone()
                        }))
                    };
                    match file.with(self, who, true, set).await? {
                        Answer::Attr(attr) => attr,
                        _ => return Err(CallError::Garbled.into()),
                    }
                }
            };
            self.changed(&attr);
            if op.size.is_none_or(|size| size == attr.size) {
                let old = match op.size {
                    Some(_) => OldPages::DroppedLater,
                    None => OldPages::Dropped,
                };
                return self.fresh_with(attr, old).await;
            }
            if caller::has_left() {
                return Err(fuser::Errno::EINTR);
            }
            // Only the size takes several steps.
            op = SetAttr {
                target: Target::Ino(ino),
                mode: None,
                uid: None,
                gid: None,
                size: op.size,
                atime: None,
                mtime: None,
            };
        }
        Err(fuser::Errno::EIO)
    }

    /// What a quota leaves there, or the volume.
    pub async fn stat_fs(self: &Arc<Core>, who: &Who, ino: Ino) -> Result<StatFs> {
        Ok(match ino {
            SHARES => self.volume.stat_fs(who, Nothing).await?,
            ino => self.volume.stat_fs_of(who, ino).await?,
        })
    }

    pub async fn access(self: &Arc<Core>, who: &Who, ino: Ino, mask: u32) -> Result<()> {
        if ino == SHARES {
            let writes = mask & rustix::fs::Access::WRITE_OK.bits() != 0;
            return match writes {
                true => self.changeable(ino),
                false => Ok(()),
            };
        }
        match self.volume.access(who, Access { ino, mask }).await? {
            allowed if allowed == mask => Ok(()),
            _ => Err(fuser::Errno::EACCES),
        }
    }

    pub async fn mkdir(&self, who: &Who, parent: Ino, name: Bytes, bits: Bits) -> Result<Attr> {
        self.changeable(parent)?;
        let _changing = self.changing();
        let mkdir = Mkdir {
            parent,
            name,
            mode: bits.mode & MODE_BITS,
            umask: bits.umask,
        };
        let made = self.change_names(who, vec![parent], Action::Mkdir(mkdir));
        let attr = attr_in(made.await?)?;
        self.directories.learn(&attr);
        Ok(attr)
    }

    pub async fn mknod(
        &self,
        who: &Who,
        parent: Ino,
        name: Bytes,
        bits: Bits,
        rdev: u32,
    ) -> Result<Attr> {
        self.changeable(parent)?;
        let _changing = self.changing();
        let kind = kind_of_mode(bits.mode).ok_or(fuser::Errno::EINVAL)?;
        let mknod = Mknod {
            parent,
            name,
            kind,
            mode: bits.mode & MODE_BITS,
            umask: bits.umask,
            rdev: match kind {
                Kind::Block | Kind::Char => u64::from(rdev),
                _ => 0,
            },
        };
        let made = self.change_names(who, vec![parent], Action::Mknod(mknod));
        attr_in(made.await?)
    }

    pub async fn symlink(
        &self,
        who: &Who,
        parent: Ino,
        name: Bytes,
        target: Bytes,
    ) -> Result<Attr> {
        self.changeable(parent)?;
        let _changing = self.changing();
        let symlink = Symlink {
            parent,
            name,
            target,
        };
        let made = self.change_names(who, vec![parent], Action::Symlink(symlink));
        attr_in(made.await?)
    }

    pub async fn readlink(&self, who: &Who, ino: Ino) -> Result<Bytes> {
        let target = self.volume.readlink(who, ino).await;
        match target {
            Err(CallError::Refused(Errno::ESTALE)) => {
                self.pins.gone();
                self.pins.target(ino).ok_or(fuser::Errno::ESTALE)
            }
            target => Ok(target?),
        }
    }

    pub async fn link(
        self: &Arc<Core>,
        who: &Who,
        ino: Ino,
        parent: Ino,
        name: Bytes,
    ) -> Result<Attr> {
        self.changeable(parent)?;
        let _changing = self.changing();
        let link = Link { ino, parent, name };
        let linked = self.change_names(who, vec![parent], Action::Link(link));
        let attr = attr_in(linked.await?)?;
        self.changes.own(&attr);
        self.fresh(attr).await
    }

    pub async fn unlink(self: &Arc<Core>, who: &Who, parent: Ino, name: Bytes) -> Result<()> {
        self.changeable(parent)?;
        let _changing = self.changing();
        // What is open here has lost no name that the group does not know of.
        let unlink = Action::Unlink(Unlink { parent, name });
        let unlink = self.change_names(who, vec![parent], unlink);
        let ((), unlinked) = tokio::join!(self.tell_all(), unlink);
        unlinked?;
        Ok(())
    }

    pub async fn rmdir(&self, who: &Who, parent: Ino, name: Bytes) -> Result<()> {
        self.changeable(parent)?;
        let _changing = self.changing();
        let rmdir = Action::Rmdir(Rmdir { parent, name });
        self.change_names(who, vec![parent], rmdir).await?;
        Ok(())
    }

    pub async fn rename(self: &Arc<Core>, who: &Who, rename: Rename) -> Result<()> {
        self.changeable(rename.parent)?;
        self.changeable(rename.new_parent)?;
        let _changing = self.changing();
        let mut parents = vec![rename.parent, rename.new_parent];
        parents.dedup();
        let rename = self.change_names(who, parents, Action::Rename(rename));
        let ((), renamed) = tokio::join!(self.tell_all(), rename);
        renamed?;
        Ok(())
    }

    pub async fn set_xattr(
        self: &Arc<Core>,
        who: &Who,
        ino: Ino,
        name: Bytes,
        value: Bytes,
        flags: i32,
    ) -> Result<()> {
        self.changeable(ino)?;
        const CREATE: i32 = 1;
        const REPLACE: i32 = 2;
        let mode = match flags {
            0 => XattrMode::Set,
            CREATE => XattrMode::Create,
            REPLACE => XattrMode::Replace,
            _ => return Err(fuser::Errno::EINVAL),
        };
        if is_acl(&name) {
            self.flush_ino(ino).await;
        }
        let _changing = self.changing();
        let set = SetXattr {
            ino,
            name,
            value,
            mode,
        };
        self.plain.change(ino, Instant::now());
        let set = || self.volume.set_xattr(who, set.clone());
        let done = self.ask_held(ino, set).await;
        self.plain.change(ino, Instant::now());
        self.changed(&done?);
        Ok(())
    }

    /// An own change has led to these attributes; with an ACL the mode bits change, too.
    fn changed(&self, attr: &Attr) {
        self.changes.own(attr);
        self.directories.learn(attr);
        if let Some(inode) = self.handles.inode(attr.ino) {
            inode.learn(attr);
        }
    }

    pub async fn get_xattr(
        self: &Arc<Core>,
        who: &Who,
        ino: Ino,
        name: Bytes,
        size: u32,
    ) -> Result<XattrAnswer> {
        if ino == SHARES {
            return Err(fuser::Errno::ENODATA);
        }
        if name == OBJECT.as_bytes() {
            return self.object(ino, size);
        }
        if is_usual(&name) && self.plain.has_none(ino, Instant::now()) {
            return Err(fuser::Errno::ENODATA);
        }
        if is_acl(&name) {
            // Mode bits that wait to be set are part of it.
            self.flush_ino(ino).await;
        }
        let get = GetXattr { ino, name, size };
        let get = || self.volume.get_xattr(who, get.clone());
        Ok(self.ask_held(ino, get).await?)
    }

    /// What credentials call an object: the volume and the object's number. It is not listed, and no part of the volume.
    fn object(&self, ino: Ino, size: u32) -> Result<XattrAnswer> {
        // Credentials are about one group's objects, by that group's numbers.
        let group = self.volume.group().ok_or(fuser::Errno::ENODATA)?;
        let text = format!("{group} {}", ino.0);
        let length = text.len() as u32;
        match size {
            0 => Ok(XattrAnswer::Size(length)),
            _ if size < length => Err(fuser::Errno::ERANGE),
            _ => Ok(XattrAnswer::Bytes(text.into())),
        }
    }

    pub async fn list_xattr(&self, who: &Who, ino: Ino, size: u32) -> Result<XattrAnswer> {
        if ino == SHARES || self.plain.has_none(ino, Instant::now()) {
            return Ok(match size {
                0 => XattrAnswer::Size(0),
                _ => XattrAnswer::Bytes(Bytes::new()),
            });
        }
        let list = ListXattr { ino, size };
        let list = || self.volume.list_xattr(who, list.clone());
        Ok(self.ask_held(ino, list).await?)
    }

    pub async fn remove_xattr(self: &Arc<Core>, who: &Who, ino: Ino, name: Bytes) -> Result<()> {
        self.changeable(ino)?;
        if is_acl(&name) {
            self.flush_ino(ino).await;
        }
        let _changing = self.changing();
        let remove = RemoveXattr { ino, name };
        self.plain.change(ino, Instant::now());
        let remove = || self.volume.remove_xattr(who, remove.clone());
        let removed = self.ask_held(ino, remove).await;
        self.plain.change(ino, Instant::now());
        self.changed(&removed?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::changes::Pages;
    use super::super::fake::Bench;
    use super::super::sample;
    use super::*;

    /// A truncation of which only a part was done leaves no pages in the cache: what they hold may be gone.
    #[tokio::test]
    async fn what_is_cut_in_part_is_not_shown() {
        const INO: Ino = Ino(7);
        let at = |change, size| Attr {
            change,
            size,
            ..sample::attr(INO)
        };
        let cut = |size| SetAttr {
            target: Target::Ino(INO),
            mode: None,
            uid: None,
            gid: None,
            size: Some(size),
            atime: None,
            mtime: None,
        };
        let refused = CallError::Refused(Errno::EACCES);
        for (last, is_whole) in [(Ok(Answer::Attr(at(3, 10))), true), (Err(refused), false)] {
            let bench = Bench::new(&[]);
            let Pages::Unknown(dropping) = bench.core.changes.look(&at(1, 1 << 30)) else {
                panic!("nothing is known");
            };
            bench.core.changes.dropped(dropping);
            let first = Ok(Answer::Attr(at(2, 1 << 29)));
            bench.fake.changes.lock().unwrap().extend([first, last]);
            let done = bench.core.change_attr(&Who::root(), cut(10), None).await;
            assert_eq!(done.is_ok(), is_whole);
            assert_eq!(bench.kinds(), ["SetAttr", "SetAttr"]);
            let change = if is_whole { 3 } else { 2 };
            let pages = bench.core.changes.look(&at(change, 10));
            assert_eq!(matches!(pages, Pages::Current), is_whole, "{pages:?}");
        }
    }
}
