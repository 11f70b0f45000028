//! What the kernel asks, decoded. Each request becomes a task, which begins on the thread of the FUSE library that has taken it and goes on in the
//! runtime once it has waited.
//!
//! `task` runs them, `reply` turns what they bring into the kernel's values, `agree` says what the front can do. What is
//! not here the FUSE library refuses as unknown: the kernel knows by itself that files are always ready (poll), and that
//! content is not shared between files (FICLONE).

mod agree;
mod reply;
mod task;

use std::ffi::OsStr;
use std::path::Path;
use std::time::SystemTime;

use bytes::Bytes;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, INodeNo, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use quorate_files::Target;
use quorate_files::op::{Rename, SetAttr};

use super::convert::{self, bytes, is_never_there};
use super::inode::Origin;
use super::locking::Wanted;
use super::names::Bits;
pub(super) use task::Front;

/// An operation of the core, to be done in a task.
macro_rules! work {
    ($operation:ident($($argument:expr),*)) => {
        |core| async move { core.$operation($($argument),*).await }
    };
}

impl Filesystem for Front {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        agree::on(config, &self.core().caching, self.core().is_guest());
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (who, parent, name) = (self.who(req), self.ino(parent), bytes(name));
        self.answer(req, reply, work!(lookup(&who, parent, name)));
    }

    fn forget(&self, _: &Request, number: INodeNo, _: u64) {
        self.core().changes.forget(self.ino(number));
        self.core().plain.forget(self.ino(number));
        self.core().directories.forget(self.ino(number));
    }

    fn getattr(&self, req: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let (who, number) = (self.who(req), self.ino(number));
        self.answer(req, reply, work!(attributes(&who, number)));
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
        let (who, ino) = (self.who(req), self.ino(number));
        let op = SetAttr {
            target: Target::Ino(ino),
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(convert::set_time),
            mtime: mtime.map(convert::set_time),
        };
        let fh = fh.map(|fh| fh.0);
        self.answer_changed(req, reply, ino, work!(change_attr(&who, op, fh)));
    }

    fn readlink(&self, req: &Request, number: INodeNo, reply: ReplyData) {
        let (who, number) = (self.who(req), self.ino(number));
        self.answer(req, reply, work!(readlink(&who, number)));
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let (who, parent, name) = (self.who(req), self.ino(parent), bytes(name));
        let bits = Bits { mode, umask };
        self.answer(req, reply, work!(mknod(&who, parent, name, bits, rdev)));
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let (who, parent, name) = (self.who(req), self.ino(parent), bytes(name));
        let bits = Bits { mode, umask };
        self.answer(req, reply, work!(mkdir(&who, parent, name, bits)));
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (who, parent, name) = (self.who(req), self.ino(parent), bytes(name));
        self.answer(req, reply, work!(unlink(&who, parent, name)));
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (who, parent, name) = (self.who(req), self.ino(parent), bytes(name));
        self.answer(req, reply, work!(rmdir(&who, parent, name)));
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (who, parent, name) = (self.who(req), self.ino(parent), bytes(name));
        let target = bytes(target.as_os_str());
        self.answer(req, reply, work!(symlink(&who, parent, name, target)));
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
        let Some(mode) = convert::rename_mode(flags) else {
            return reply.error(fuser::Errno::EINVAL);
        };
        let who = self.who(req);
        let rename = Rename {
            parent: self.ino(parent),
            name: bytes(name),
            new_parent: self.ino(new_parent),
            new_name: bytes(new_name),
            mode,
        };
        self.answer(req, reply, work!(rename(&who, rename)));
    }

    fn link(
        &self,
        req: &Request,
        number: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let (who, number, parent, name) = (
            self.who(req),
            self.ino(number),
            self.ino(parent),
            bytes(name),
        );
        self.answer(req, reply, work!(link(&who, number, parent, name)));
    }

    fn open(&self, req: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (who, number) = (self.who(req), self.ino(number));
        self.answer_opened(req, reply, work!(open(&who, number, flags.0)));
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (who, parent, name) = (self.who(req), self.ino(parent), bytes(name));
        let bits = Bits { mode, umask };
        self.answer_opened(req, reply, work!(create(&who, parent, name, bits, flags)));
    }

    fn read(
        &self,
        req: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.answer(req, reply, work!(read(fh.0, offset, size, flags.0)));
    }

    fn write(
        &self,
        req: &Request,
        number: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        how: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let origin = match how.contains(WriteFlags::FUSE_WRITE_CACHE) {
            true => Origin::Mapping,
            false => Origin::Program,
        };
        if origin == Origin::Mapping
            && let Err(errno) = self.core().takes_pages(self.ino(number))
        {
            return reply.error(errno);
        }
        let data = Bytes::copy_from_slice(data);
        let how = flags.0;
        self.answer_or_leave(req, reply, work!(write(fh.0, offset, data, how, origin)));
    }

    fn flush(
        &self,
        req: &Request,
        _: INodeNo,
        fh: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.answer(req, reply, work!(close(fh.0, owner.0)));
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
        // Nobody waits for it.
        self.release_later(fh.0);
        reply.ok();
    }

    fn fsync(&self, req: &Request, _: INodeNo, fh: FileHandle, _: bool, reply: ReplyEmpty) {
        self.answer(req, reply, work!(fsync(fh.0)));
    }

    fn opendir(&self, req: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.answer_listing(req, reply, self.ino(number));
    }

    fn readdir(&self, _: &Request, _: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectory) {
        self.start(|core| reply::list(core, fh.0, offset, reply));
    }

    fn readdirplus(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.start(|core| reply::list_plus(core, fh.0, offset, reply));
    }

    fn releasedir(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.core().listings.remove(fh.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        // Names are never written back: each change of them was agreed before it was answered.
        reply.ok();
    }

    fn statfs(&self, req: &Request, number: INodeNo, reply: ReplyStatfs) {
        let (who, number) = (self.who(req), self.ino(number));
        self.answer(req, reply, work!(stat_fs(&who, number)));
    }

    fn setxattr(
        &self,
        req: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        if is_never_there(name) {
            return reply.error(fuser::Errno::ENOTSUP);
        }
        let (who, number, name) = (self.who(req), self.ino(number), bytes(name));
        let value = Bytes::copy_from_slice(value);
        self.answer(
            req,
            reply,
            work!(set_xattr(&who, number, name, value, flags)),
        );
    }

    fn getxattr(&self, req: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if is_never_there(name) {
            return reply.error(fuser::Errno::ENODATA);
        }
        let (who, number, name) = (self.who(req), self.ino(number), bytes(name));
        self.answer(req, reply, work!(get_xattr(&who, number, name, size)));
    }

    fn listxattr(&self, req: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let (who, number) = (self.who(req), self.ino(number));
        self.answer(req, reply, work!(list_xattr(&who, number, size)));
    }

    fn removexattr(&self, req: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (who, number, name) = (self.who(req), self.ino(number), bytes(name));
        self.answer(req, reply, work!(remove_xattr(&who, number, name)));
    }

    fn access(&self, req: &Request, number: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let (who, number, mask) = (self.who(req), self.ino(number), mask.bits() as u32);
        self.answer(req, reply, work!(access(&who, number, mask)));
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
        let wanted = Wanted::new(fh, owner, (start, end), kind, (pid, req.pid()), false);
        self.answer(req, reply, work!(test_lock(wanted?)));
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
        match Wanted::new(fh, owner, (start, end), kind, (pid, req.pid()), sleep) {
            Ok(wanted) => self.answer_lock(req, reply, wanted),
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

    fn fallocate(
        &self,
        req: &Request,
        number: INodeNo,
        fh: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let ino = self.ino(number);
        self.answer_changed(req, reply, ino, work!(fallocate(fh.0, offset, len, mode)));
    }

    fn copy_file_range(
        &self,
        req: &Request,
        _: INodeNo,
        from: FileHandle,
        offset: u64,
        to_number: INodeNo,
        to: FileHandle,
        to_offset: u64,
        len: u64,
        flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        if !flags.is_empty() {
            return reply.error(fuser::Errno::EINVAL);
        }
        let (from, to) = ((from.0, offset), (to.0, to_offset));
        let ino = self.ino(to_number);
        self.answer_changed(req, reply, ino, work!(copy(from, to, len)));
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
        self.answer(req, reply, work!(seek(fh.0, offset, whence)));
    }
}
