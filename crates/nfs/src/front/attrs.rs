//! Attributes of objects, and of the volume.

use quorate_files::op::{Access, SetAttr, access};
use quorate_files::{Action, Answer, Attr, Ino, Kind, Stamp, Target, Who};

use super::{Caller, Done, Front, another_kind};
use crate::call::NewAttrs;
use crate::status::Status;

/// The most operations that one change of size takes: a terabyte that is cut off takes as many.
const SIZE_STEPS: usize = 1 << 16;

/// Bits of ACCESS (RFC 1813, 3.3.4).
mod bits {
    pub const READ: u32 = 1;
    pub const LOOKUP: u32 = 2;
    pub const MODIFY: u32 = 4;
    pub const EXTEND: u32 = 8;
    pub const DELETE: u32 = 16;
    pub const EXECUTE: u32 = 32;
}

impl Front {
    pub(super) async fn get_attr(&self, caller: &Caller, handle: &[u8]) -> Done {
        let object = self.object(caller, handle)?;
        let target = Target::Ino(object.ino);
        let attr = self.volume.get_attr(&object.who, target).await?;
        let mut reply = self.reply(Status::Ok);
        reply.attr(&attr);
        Ok(reply)
    }

    pub(super) async fn set_attr(
        &self,
        caller: &Caller,
        handle: &[u8],
        attrs: NewAttrs,
        guard: Option<Stamp>,
    ) -> Done {
        let object = self.changeable(caller, handle)?;
        let size = attrs.size;
        let action = Action::SetAttr(set_attr(object.ino, attrs));
        let mut seen = self
            .seen_if(&object.who, vec![object.ino], guard, action)
            .await?;
        match (&seen.outcome, size) {
            (Ok(Answer::Attr(attr)), Some(size)) if attr.size != size => {
                let attr = self.cut_to(&object.who, attr.clone(), size).await?;
                seen.after = vec![Some(attr)];
            }
            (Ok(Answer::Attr(_)) | Err(_), _) => {}
            (Ok(_), _) => return another_kind(),
        }
        let mut reply = self.reply(seen.status());
        reply.seen(&seen, 0);
        Ok(reply)
    }

    /// Goes on with a cut that is not done in one operation.
    async fn cut_to(&self, who: &Who, mut attr: Attr, size: u64) -> Result<Attr, Status> {
        for _ in 0..SIZE_STEPS {
            if attr.size == size {
                return Ok(attr);
            }
            let attrs = NewAttrs {
                size: Some(size),
                ..NewAttrs::default()
            };
            attr = self.volume.set_attr(who, set_attr(attr.ino, attrs)).await?;
        }
        Err(Status::Jukebox)
    }

    /// Sets what a new object was not made with.
    pub(super) async fn set_rest(
        &self,
        who: &Who,
        attr: Attr,
        mut attrs: NewAttrs,
    ) -> Result<Attr, Status> {
        attrs.mode = None;
        attrs.uid = attrs.uid.filter(|&uid| uid != attr.uid);
        attrs.gid = attrs.gid.filter(|&gid| gid != attr.gid);
        attrs.size = attrs
            .size
            .filter(|&size| attr.kind == Kind::Regular && size != attr.size);
        if attrs == NewAttrs::default() {
            return Ok(attr);
        }
        let size = attrs.size;
        let attr = self.volume.set_attr(who, set_attr(attr.ino, attrs)).await?;
        match size {
            Some(size) => self.cut_to(who, attr, size).await,
            None => Ok(attr),
        }
    }

    pub(super) async fn access(&self, caller: &Caller, handle: &[u8], mask: u32) -> Done {
        let object = self.object(caller, handle)?;
        let op = Access {
            ino: object.ino,
            mask: access::READ | access::WRITE | access::EXEC,
        };
        let seen = self.seen(&object.who, vec![object.ino], Action::Access(op));
        let seen = seen.await?;
        let mut reply = self.reply(seen.status());
        reply.after(seen.after(0));
        match (&seen.outcome, seen.after(0)) {
            (Err(_), _) => {}
            (Ok(Answer::Allowed(allowed)), Some(attr)) => {
                let changes = bits::MODIFY | bits::EXTEND | bits::DELETE;
                let offered = match object.export.read_only {
                    true => !changes,
                    false => !0,
                };
                reply.w.u32(accesses(attr.kind, *allowed) & mask & offered);
            }
            (Ok(_), _) => return another_kind(),
        }
        Ok(reply)
    }

    pub(super) async fn fs_stat(&self, caller: &Caller, handle: &[u8]) -> Done {
        let object = self.object(caller, handle)?;
        let action = Action::StatFsOf(object.ino);
        let seen = self.seen(&object.who, vec![object.ino], action).await?;
        let attr = seen.after(0).ok_or(Status::Stale)?;
        let mut reply = self.reply(seen.status());
        reply.after(Some(attr));
        match &seen.outcome {
            Err(_) => {}
            Ok(Answer::StatFs(stat)) => {
                let bytes = stat.capacity.saturating_sub(stat.used);
                let inodes = stat.inodes.saturating_sub(stat.used_inodes);
                // All, free, and free for the caller; the same of files.
                for number in [stat.capacity, bytes, bytes, stat.inodes, inodes, inodes] {
                    reply.w.u64(number);
                }
                // It may be another at once.
                reply.w.u32(0);
            }
            Ok(_) => return another_kind(),
        }
        Ok(reply)
    }

    pub(super) async fn fs_info(&self, caller: &Caller, handle: &[u8]) -> Done {
        const IO: u32 = quorate_files::op::MAX_IO_BYTES as u32;
        const PREFERRED_LISTING: u32 = 64 << 10;
        /// Links, symbolic links, the same for all objects, and times can be set to any.
        const PROPERTIES: u32 = 0x1 | 0x2 | 0x8 | 0x10;
        let object = self.object(caller, handle)?;
        let target = Target::Ino(object.ino);
        let attr = self.volume.get_attr(&object.who, target).await?;
        let mut reply = self.reply(Status::Ok);
        reply.after(Some(&attr));
        // Reads and writes: the most, the best, and what it should be a multiple of.
        for number in [IO, IO, 4096, IO, IO, 4096, PREFERRED_LISTING] {
            reply.w.u32(number);
        }
        reply.w.u64(quorate_files::layout::MAX_FILE_BYTES);
        // Times are exact to the nanosecond.
        reply.w.u32(0);
        reply.w.u32(1);
        reply.w.u32(PROPERTIES);
        Ok(reply)
    }

    pub(super) async fn path_conf(&self, caller: &Caller, handle: &[u8]) -> Done {
        let object = self.object(caller, handle)?;
        let target = Target::Ino(object.ino);
        let attr = self.volume.get_attr(&object.who, target).await?;
        let mut reply = self.reply(Status::Ok);
        reply.after(Some(&attr));
        reply.w.u32(quorate_files::layout::MAX_LINKS);
        reply.w.u32(quorate_files::layout::MAX_NAME_BYTES as u32);
        // Long names are refused; files are not given away; case counts, and is kept.
        [true, true, false, true]
            .into_iter()
            .for_each(|flag| reply.w.bool(flag));
        Ok(reply)
    }
}

/// The operation that sets attributes.
pub(super) fn set_attr(ino: Ino, attrs: NewAttrs) -> SetAttr {
    SetAttr {
        target: Target::Unopened(ino),
        mode: attrs.mode.map(|mode| mode & 0o7777),
        uid: attrs.uid,
        gid: attrs.gid,
        size: attrs.size,
        atime: attrs.atime,
        mtime: attrs.mtime,
    }
}

/// What permissions to read, write and execute amount to.
fn accesses(kind: Kind, allowed: u32) -> u32 {
    let may = |bit: u32| allowed & bit != 0;
    let mut out = 0;
    if may(access::READ) {
        out |= bits::READ;
    }
    match kind {
        Kind::Directory => {
            if may(access::EXEC) {
                out |= bits::LOOKUP;
            }
            if may(access::EXEC) && may(access::WRITE) {
                out |= bits::MODIFY | bits::EXTEND | bits::DELETE;
            }
        }
        Kind::Regular | Kind::Symlink | Kind::Fifo | Kind::Socket | Kind::Block | Kind::Char => {
            if may(access::EXEC) {
                out |= bits::EXECUTE;
            }
            if may(access::WRITE) {
                out |= bits::MODIFY | bits::EXTEND;
            }
        }
    }
    out
}
