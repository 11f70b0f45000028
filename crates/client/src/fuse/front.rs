//! What the kernel asks, decoded. The threads of the FUSE library do no more than that: each request becomes a task.

use std::ffi::OsStr;
use std::future::Future;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags,
    PollNotifier, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen,
    ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use quorate_files::op::{Rename, SetAttr};
use quorate_files::{Attr, Nothing, Target, Who};
use tokio::runtime::Handle;

use super::convert::{Result, ino};
use super::core::Core;
use super::data::JustOpened;
use super::locking::{self, Wanted};
use super::{MAX_REQUEST_BYTES, TTL, caller, convert};
use crate::volume::XattrAnswer;

/// Requests of the kernel's own (read-ahead, writing back) that are under way at once.
const MAX_BACKGROUND: u16 = 64;
/// Object numbers are never used again, so the kernel needs nothing to tell two uses apart.
const GENERATION: Generation = Generation(0);

/// The file system that the FUSE library calls.
#[derive(Debug)]
pub(super) struct Front {
    core: Arc<Core>,
    runtime: Handle,
}

/// A reply that can be an error.
trait Fail: Send + 'static {
    fn fail(self, errno: fuser::Errno);
}

macro_rules! fail {
    ($($reply:ty),*) => { $(impl Fail for $reply {
        fn fail(self, errno: fuser::Errno) {
            self.error(errno);
        }
    })* };
}

fail!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyEmpty,
    ReplyEntry,
    ReplyLock,
    ReplyLseek,
    ReplyOpen,
    ReplyStatfs,
    ReplyWrite,
    ReplyXattr
);

impl Front {
    pub fn new(core: Arc<Core>, runtime: Handle) -> Front {
        Front { core, runtime }
    }

    fn who(&self, req: &Request) -> Who {
        self.core.callers.who(req.pid(), req.uid(), req.gid())
    }

    /// Does the work in a task and answers. If the process is killed meanwhile, it is let go and the work goes on:
    /// then `answer` gets no reply to send, and may undo what nobody waits for.
    fn answer<R: Fail, T: Send + 'static>(
        &self,
        req: &Request,
        reply: R,
        work: impl Future<Output = Result<T>> + Send + 'static,
        answer: impl FnOnce(Option<R>, T) + Send + 'static,
    ) {
        let pid = req.pid();
        let busy = self.core.busy();
        self.runtime.spawn(async move {
            let _busy = busy;
            let mut work = Box::pin(work);
            let mut reply = Some(reply);
            let result = tokio::select! {
                biased;
                result = &mut work => result,
                () = caller::killed(pid) => {
                    if let Some(reply) = reply.take() {
                        reply.fail(fuser::Errno::EINTR);
                    }
                    work.await
                }
            };
            match (result, reply) {
                (Ok(value), reply) => answer(reply, value),
                (Err(errno), Some(reply)) => reply.fail(errno),
                (Err(_), None) => {}
            }
        });
    }

    fn entry(
        &self,
        req: &Request,
        reply: ReplyEntry,
        work: impl Future<Output = Result<Attr>> + Send + 'static,
    ) {
        self.answer(req, reply, work, |reply, attr| {
            if let Some(reply) = reply {
                reply.entry(&TTL, &convert::attr(&attr), GENERATION);
            }
        });
    }

    fn empty(
        &self,
        req: &Request,
        reply: ReplyEmpty,
        work: impl Future<Output = Result<()>> + Send + 'static,
    ) {
        self.answer(req, reply, work, |reply, ()| {
            if let Some(reply) = reply {
                reply.ok();
            }
        });
    }

    fn xattr(
        &self,
        req: &Request,
        reply: ReplyXattr,
        work: impl Future<Output = Result<XattrAnswer>> + Send + 'static,
    ) {
        self.answer(req, reply, work, |reply, answer| match (reply, answer) {
            (Some(reply), XattrAnswer::Bytes(bytes)) => reply.data(&bytes),
            (Some(reply), XattrAnswer::Size(size)) => reply.size(size),
            (None, _) => {}
        });
    }

    fn opened<R: Fail>(
        &self,
        req: &Request,
        reply: R,
        work: impl Future<Output = Result<JustOpened>> + Send + 'static,
        answer: impl FnOnce(R, &JustOpened) + Send + 'static,
    ) {
        let (core, runtime) = (self.core.clone(), self.runtime.clone());
        self.answer(req, reply, work, move |reply, opened| match reply {
            Some(reply) => answer(reply, &opened),
            None => release(&core, &runtime, opened.file.number),
        });
    }
}

fn release(core: &Arc<Core>, runtime: &Handle, number: u64) {
    if let Some(file) = core.handles.remove(number) {
        let (core, busy) = (core.clone(), core.busy());
        runtime.spawn(async move {
            let _busy = busy;
            core.release(file).await;
        });
    }
}

fn bytes(name: &OsStr) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}

/// Each request with the core to work on and the caller.
macro_rules! parts {
    ($self:ident, $req:ident) => {
        ($self.core.clone(), $self.who($req))
    };
}

/// Attributes that the kernel and `ls` ask for all the time and that a mount never has. File capabilities count for
/// nothing on a `nosuid` mount; access control lists are not there yet. Without this each write would cost one more operation.
fn never_there(name: &OsStr) -> Option<fuser::Errno> {
    match name.as_encoded_bytes() {
        b"security.capability" => Some(fuser::Errno::ENODATA),
        name if name.starts_with(b"system.posix_acl_") => Some(fuser::Errno::ENOTSUP),
        _ => None,
    }
}

impl Filesystem for Front {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let wanted = InitFlags::FUSE_ASYNC_READ
            | InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_BIG_WRITES
            | InitFlags::FUSE_POSIX_LOCKS
            | InitFlags::FUSE_FLOCK_LOCKS
            | InitFlags::FUSE_EXPORT_SUPPORT
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_AUTO_INVAL_DATA
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_MAX_PAGES
            // The service takes set-user-ID bits away at writes itself; asking before each write is spared.
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        for flag in wanted.iter() {
            // Older kernels lack some; all are for speed but the locks, which then hold on this machine only.
            if config.add_capabilities(flag).is_err() {
                tracing::info!(?flag, "the kernel's FUSE can't do this");
            }
        }
        // Where the kernel offers less, it says what is the most.
        if let Err(most) = config.set_max_readahead(MAX_REQUEST_BYTES) {
            let _ = config.set_max_readahead(most);
        }
        if let Err(most) = config.set_max_write(MAX_REQUEST_BYTES) {
            let _ = config.set_max_write(most);
        }
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (core, who) = parts!(self, req);
        let (parent, name) = (ino(parent), bytes(name));
        self.entry(
            req,
            reply,
            async move { core.lookup(&who, parent, name).await },
        );
    }

    fn forget(&self, _: &Request, number: INodeNo, _: u64) {
        self.core.changes.forget(ino(number));
    }

    fn getattr(&self, req: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let (core, who) = parts!(self, req);
        let number = ino(number);
        let work = async move { core.get_attr(&who, number).await };
        self.answer(req, reply, work, |reply, attr| {
            if let Some(reply) = reply {
                reply.attr(&TTL, &convert::attr(&attr));
            }
        });
    }

    fn setattr(
        &self,
        req: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        fh: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (core, who) = parts!(self, req);
        let op = SetAttr {
            target: Target::Ino(ino(number)),
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(convert::set_time),
            mtime: mtime.map(convert::set_time),
        };
        let work = async move { core.set_attr(&who, op, fh.map(|fh| fh.0)).await };
        self.answer(req, reply, work, |reply, attr| {
            if let Some(reply) = reply {
                reply.attr(&TTL, &convert::attr(&attr));
            }
        });
    }

    fn readlink(&self, req: &Request, number: INodeNo, reply: ReplyData) {
        let (core, who) = parts!(self, req);
        let number = ino(number);
        let work = async move { core.readlink(&who, number).await };
        self.answer(req, reply, work, |reply, target| {
            if let Some(reply) = reply {
                reply.data(&target);
            }
        });
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let (core, who) = parts!(self, req);
        let (parent, name) = (ino(parent), bytes(name));
        self.entry(req, reply, async move {
            core.mknod(&who, parent, name, mode, rdev).await
        });
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let (core, who) = parts!(self, req);
        let (parent, name) = (ino(parent), bytes(name));
        self.entry(req, reply, async move {
            core.mkdir(&who, parent, name, mode).await
        });
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (core, who) = parts!(self, req);
        let (parent, name) = (ino(parent), bytes(name));
        self.empty(
            req,
            reply,
            async move { core.unlink(&who, parent, name).await },
        );
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (core, who) = parts!(self, req);
        let (parent, name) = (ino(parent), bytes(name));
        self.empty(
            req,
            reply,
            async move { core.rmdir(&who, parent, name).await },
        );
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (core, who) = parts!(self, req);
        let (parent, name) = (ino(parent), bytes(name));
        let target = bytes(target.as_os_str());
        self.entry(req, reply, async move {
            core.symlink(&who, parent, name, target).await
        });
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (core, who) = parts!(self, req);
        let Some(mode) = convert::rename_mode(flags) else {
            return reply.error(fuser::Errno::EINVAL);
        };
        let rename = Rename {
            parent: ino(parent),
            name: bytes(name),
            new_parent: ino(new_parent),
            new_name: bytes(new_name),
            mode,
        };
        self.empty(req, reply, async move { core.rename(&who, rename).await });
    }

    fn link(
        &self,
        req: &Request,
        number: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let (core, who) = parts!(self, req);
        let (number, parent, name) = (ino(number), ino(parent), bytes(name));
        self.entry(req, reply, async move {
            core.link(&who, number, parent, name).await
        });
    }

    fn open(&self, req: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (core, who) = parts!(self, req);
        let number = ino(number);
        let work = async move { core.open(&who, number, flags.0).await };
        self.opened(req, reply, work, |reply, opened| {
            reply.opened(FileHandle(opened.file.number), opened.answer);
        });
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (core, who) = parts!(self, req);
        let (parent, name) = (ino(parent), bytes(name));
        let work = async move { core.create(&who, parent, name, mode, flags).await };
        self.opened(req, reply, work, |reply, opened| {
            let attr = convert::attr(&opened.attr);
            let number = FileHandle(opened.file.number);
            reply.created(&TTL, &attr, GENERATION, number, opened.answer);
        });
    }

    fn read(
        &self,
        req: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let core = self.core.clone();
        let work = async move { core.read(fh.0, offset, size).await };
        self.answer(req, reply, work, |reply, data| {
            if let Some(reply) = reply {
                reply.data(&data);
            }
        });
    }

    fn write(
        &self,
        req: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let core = self.core.clone();
        let data = Bytes::copy_from_slice(data);
        let work = async move { core.write(fh.0, offset, data, flags.0).await };
        self.answer(req, reply, work, |reply, len| {
            if let Some(reply) = reply {
                reply.written(len);
            }
        });
    }

    fn flush(
        &self,
        req: &Request,
        _: INodeNo,
        fh: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let core = self.core.clone();
        self.empty(req, reply, async move { core.close(fh.0, owner.0).await });
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        release(&self.core, &self.runtime, fh.0);
        reply.ok();
    }

    fn fsync(&self, req: &Request, _: INodeNo, fh: FileHandle, _: bool, reply: ReplyEmpty) {
        let core = self.core.clone();
        self.empty(req, reply, async move { core.fsync(fh.0).await });
    }

    fn opendir(&self, req: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let number = self.core.listings.add(ino(number), self.who(req));
        reply.opened(FileHandle(number), FopenFlags::empty());
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let core = self.core.clone();
        self.runtime.spawn(async move {
            let page = match core.list(fh.0, offset, false).await {
                Ok(page) => page,
                Err(errno) => return reply.error(errno),
            };
            for entry in page.entries() {
                let name = OsStr::from_bytes(&entry.name);
                let kind = convert::kind(entry.kind);
                if reply.add(INodeNo(entry.ino.0), entry.cookie, kind, name) {
                    break;
                }
            }
            reply.ok();
        });
    }

    fn readdirplus(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let core = self.core.clone();
        self.runtime.spawn(async move {
            let page = match core.list(fh.0, offset, true).await {
                Ok(page) => page,
                Err(errno) => return reply.error(errno),
            };
            for entry in page.entries() {
                let (attr, ttl) = match core.fresh_entry(entry).await {
                    Some(attr) => (convert::attr(&attr), page.ttl()),
                    None => (convert::no_attr(entry.kind), Duration::ZERO),
                };
                let name = OsStr::from_bytes(&entry.name);
                let number = INodeNo(entry.ino.0);
                if reply.add(number, entry.cookie, name, &ttl, &attr, GENERATION) {
                    break;
                }
            }
            reply.ok();
        });
    }

    fn releasedir(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.core.listings.remove(fh.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        // Names are never written back: each change of them was agreed before it was answered.
        reply.ok();
    }

    fn statfs(&self, req: &Request, _: INodeNo, reply: ReplyStatfs) {
        let (core, who) = parts!(self, req);
        let work = async move { Ok(core.volume.stat_fs(&who, Nothing).await?) };
        self.answer(req, reply, work, |reply, s| {
            let block = u64::from(s.block_size.max(1));
            let free = s.capacity.saturating_sub(s.used) / block;
            let free_inodes = s.inodes.saturating_sub(s.used_inodes);
            if let Some(reply) = reply {
                reply.statfs(
                    s.capacity / block,
                    free,
                    free,
                    s.inodes,
                    free_inodes,
                    s.block_size,
                    s.name_max,
                    s.block_size,
                );
            }
        });
    }

    fn setxattr(
        &self,
        req: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        if never_there(name).is_some() {
            return reply.error(fuser::Errno::ENOTSUP);
        }
        let (core, who) = parts!(self, req);
        let (number, name, value) = (ino(number), bytes(name), Bytes::copy_from_slice(value));
        self.empty(req, reply, async move {
            core.set_xattr(&who, number, name, value, flags).await
        });
    }

    fn getxattr(&self, req: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if let Some(errno) = never_there(name) {
            return reply.error(errno);
        }
        let (core, who) = parts!(self, req);
        let (number, name) = (ino(number), bytes(name));
        self.xattr(req, reply, async move {
            core.get_xattr(&who, number, name, size).await
        });
    }

    fn listxattr(&self, req: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let (core, who) = parts!(self, req);
        let number = ino(number);
        self.xattr(req, reply, async move {
            core.list_xattr(&who, number, size).await
        });
    }

    fn removexattr(&self, req: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (core, who) = parts!(self, req);
        let (number, name) = (ino(number), bytes(name));
        self.empty(req, reply, async move {
            core.remove_xattr(&who, number, name).await
        });
    }

    fn access(&self, req: &Request, number: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let (core, who) = parts!(self, req);
        let (number, mask) = (ino(number), mask.bits() as u32);
        self.empty(
            req,
            reply,
            async move { core.access(&who, number, mask).await },
        );
    }

    fn getlk(
        &self,
        req: &Request,
        _: INodeNo,
        fh: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let wanted = match wanted(req, fh, owner, (start, end), kind, pid, false) {
            Ok(wanted) => wanted,
            Err(errno) => return reply.error(errno),
        };
        let core = self.core.clone();
        let work = async move { core.test_lock(wanted).await };
        self.answer(req, reply, work, move |reply, held| {
            const UNLOCKED: i32 = 2;
            match (reply, held) {
                (Some(reply), Some(held)) => reply.locked(
                    held.start,
                    locking::to_kernel(held.end),
                    locking::kind_number(held.kind),
                    held.pid,
                ),
                (Some(reply), None) => reply.locked(start, end, UNLOCKED, 0),
                (None, _) => {}
            }
        });
    }

    fn setlk(
        &self,
        req: &Request,
        _: INodeNo,
        fh: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        match wanted(req, fh, owner, (start, end), kind, pid, sleep) {
            Ok(wanted) => {
                let core = self.core.clone();
                self.empty(req, reply, async move { core.set_lock(wanted).await });
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(fuser::Errno::ENOTTY);
    }

    fn poll(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: PollNotifier,
        _: PollEvents,
        _: PollFlags,
        reply: ReplyPoll,
    ) {
        // Files are always ready; the kernel knows that and asks no more.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        req: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let core = self.core.clone();
        self.empty(req, reply, async move {
            core.fallocate(fh.0, offset, len, mode).await
        });
    }

    fn lseek(
        &self,
        req: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let core = self.core.clone();
        let work = async move { core.seek(fh.0, offset, whence).await };
        self.answer(req, reply, work, |reply, offset| {
            if let Some(reply) = reply {
                reply.offset(offset);
            }
        });
    }

    fn copy_file_range(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        // The kernel copies by reading and writing then.
        reply.error(fuser::Errno::ENOSYS);
    }
}

fn wanted(
    req: &Request,
    fh: FileHandle,
    owner: LockOwner,
    (start, end): (u64, u64),
    kind: i32,
    pid: u32,
    sleep: bool,
) -> Result<Wanted> {
    Ok(Wanted {
        number: fh.0,
        owner: owner.0,
        start,
        end,
        kind: locking::kind(kind)?,
        pid,
        waiter: req.pid(),
        sleep,
    })
}
