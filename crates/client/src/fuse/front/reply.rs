//! What the work of a request brings, as the kernel's values.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fuser::{
    FileHandle, FopenFlags, Generation, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr,
};
use quorate_files::Attr;
use quorate_files::answer::{HeldLock, StatFs};

use super::super::core::Core;
use super::super::data::JustOpened;
use super::super::{convert, locking};
use crate::volume::XattrAnswer;

/// Object numbers are never used again, so the kernel needs nothing to tell two uses apart.
const GENERATION: Generation = Generation(0);

/// A reply that tells a value, or an error.
pub(super) trait Answer<T>: Send + 'static {
    fn give(self, core: &Core, value: T);
    fn fail(self, errno: fuser::Errno);
}

macro_rules! answers {
    ($($reply:ident($value:ty) => |$r:ident, $core:ident, $v:ident| $give:expr;)*) => { $(
        impl Answer<$value> for $reply {
            fn give(self, $core: &Core, $v: $value) {
                let $r = self;
                $give
            }

            fn fail(self, errno: fuser::Errno) {
                self.error(errno);
            }
        }
    )* };
}

answers! {
    ReplyAttr((Attr, Duration)) => |reply, core, told| reply.attr(&told.1, &core.told(&told.0));
    ReplyEntry(Attr) => |reply, core, attr| {
        let (attributes, names) = (core.caching.attributes(&attr), core.name_lifetime(&attr));
        reply.entry_with_ttls(&attributes, &names, &core.told(&attr), GENERATION)
    };
    ReplyEmpty(()) => |reply, _core, _done| reply.ok();
    ReplyEmpty(locking::Changed) => |reply, _core, changed| {
        changed.told();
        reply.ok()
    };
    ReplyData(Bytes) => |reply, _core, data| reply.data(&data);
    ReplyWrite(u32) => |reply, _core, len| reply.written(len);
    ReplyLseek(i64) => |reply, _core, offset| reply.offset(offset);
    ReplyXattr(XattrAnswer) => |reply, _core, answer| match answer {
        XattrAnswer::Bytes(bytes) => reply.data(&bytes),
        XattrAnswer::Size(size) => reply.size(size),
    };
    ReplyOpen(JustOpened) => |reply, _core, opened| {
        reply.opened(FileHandle(opened.file.number), opened.answer)
    };
    ReplyCreate(JustOpened) => |reply, core, opened| {
        let ttl = core.entry_lifetime(&opened.attr);
        let attr = core.told(&opened.attr);
        let number = FileHandle(opened.file.number);
        reply.created(&ttl, &attr, GENERATION, number, opened.answer)
    };
    ReplyOpen(u64) => |reply, _core, number| {
        reply.opened(FileHandle(number), FopenFlags::empty())
    };
    ReplyLock(Option<HeldLock>) => |reply, _core, held| match held {
        Some(held) => reply.locked(
            held.start,
            locking::to_kernel(held.end),
            locking::kind_number(held.kind),
            held.pid,
        ),
        None => reply.locked(0, 0, locking::UNLOCKED, 0),
    };
    ReplyStatfs(StatFs) => |reply, _core, s| {
        let block = u64::from(s.block_size.max(1));
        let free = s.capacity.saturating_sub(s.used) / block;
        let free_inodes = s.inodes.saturating_sub(s.used_inodes);
        reply.statfs(
            s.capacity / block,
            free,
            free,
            s.inodes,
            free_inodes,
            s.block_size,
            s.name_max,
            s.block_size,
        )
    };
}

/// Fills a page of a listing.
pub(super) async fn list(core: Arc<Core>, number: u64, cookie: u64, mut reply: ReplyDirectory) {
    let page = match core.list(number, cookie, false).await {
        Ok(page) => page,
        Err(errno) => return reply.error(errno),
    };
    for entry in page.entries() {
        let name = OsStr::from_bytes(&entry.name);
        let kind = convert::kind(entry.kind);
        if reply.add(core.root.number(entry.ino), entry.cookie, kind, name) {
            break;
        }
    }
    reply.ok();
}

/// Fills a page of a listing with attributes.
pub(super) async fn list_plus(
    core: Arc<Core>,
    number: u64,
    cookie: u64,
    mut reply: ReplyDirectoryPlus,
) {
    let page = match core.list(number, cookie, true).await {
        Ok(page) => page,
        Err(errno) => return reply.error(errno),
    };
    for entry in page.entries() {
        let (attr, ttl) = match core.fresh_entry(entry).await {
            Some(attr) => {
                let ttl = core.entry_lifetime(&attr).saturating_sub(page.age());
                (core.told(&attr), ttl)
            }
            None => (convert::no_attr(entry.kind), Duration::ZERO),
        };
        let name = OsStr::from_bytes(&entry.name);
        let number = core.root.number(entry.ino);
        if reply.add(number, entry.cookie, name, &ttl, &attr, GENERATION) {
            break;
        }
    }
    reply.ok();
}
