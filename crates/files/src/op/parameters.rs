//! What each [`Action`](super::Action) needs to be told.

use bytes::Bytes;
use quorate_wire::{record, tagged};

use super::Target;
use crate::types::{Handle, Ino, Kind, Nothing, Stamp};

record! {
    /// See [`Action::Lookup`](super::Action::Lookup). The names `.` and `..` are understood here and nowhere else.
    pub struct Lookup {
        /// The directory.
        pub parent: Ino,
        /// The name in it.
        pub name: Bytes,
    }
}

tagged! {
    /// A time to set.
    pub enum SetTime {
        /// The agreed time of the operation.
        1 => Now(Nothing),
        /// This time.
        2 => At(Stamp),
    }
}

record! {
    /// See [`Action::SetAttr`](super::Action::SetAttr). All parts are checked before any is done.
    pub struct SetAttr {
        /// The object. By a handle opened for writing, the size can be set without write permission.
        pub target: Target,
        /// New mode bits, 07777.
        pub mode: Option<u32>,
        /// New owner.
        pub uid: Option<u32>,
        /// New group.
        pub gid: Option<u32>,
        /// New size. Work is bounded: if the answer's size is not this one, send the operation again (with the
        /// size alone) until it is. That happens only when much data is cut off and the new size is not 0.
        pub size: Option<u64>,
        /// New access time.
        pub atime: Option<SetTime>,
        /// New modification time.
        pub mtime: Option<SetTime>,
    }
}

record! {
    /// See [`Action::Access`](super::Action::Access).
    pub struct Access {
        /// The object.
        pub ino: Ino,
        /// Bits of [`access`](super::access).
        pub mask: u32,
    }
}

record! {
    /// See [`Action::Open`](super::Action::Open).
    pub struct Open {
        /// The object: a regular file; or a directory, for reading only.
        pub ino: Ino,
        /// Bits of [`flags`](super::flags).
        pub flags: u32,
    }
}

record! {
    /// See [`Action::Create`](super::Action::Create).
    pub struct Create {
        /// The directory.
        pub parent: Ino,
        /// The name in it.
        pub name: Bytes,
        /// Mode bits. A new file's handle has the rights of `flags` whatever the mode.
        pub mode: u32,
        /// Bits that `mode` is not to have, unless the directory has a default ACL, which then says so itself.
        pub umask: u32,
        /// Bits of [`flags`](super::flags).
        pub flags: u32,
    }
}

record! {
    /// See [`Action::Make`](super::Action::Make).
    pub struct Make {
        /// The directory.
        pub parent: Ino,
        /// The name in it.
        pub name: Bytes,
        /// Mode bits.
        pub mode: u32,
        /// As of [`Create`].
        pub umask: u32,
        /// None: an object that has the name already is answered as it is, whatever it is. Otherwise the name must be new,
        /// else `EEXIST`; but a file that was made with this verifier, and whose attributes nobody has set since, is
        /// answered: so who asks again because no answer came is told that the file is his.
        pub verifier: Option<u64>,
    }
}

record! {
    /// See [`Action::Read`](super::Action::Read).
    pub struct Read {
        /// The file.
        pub target: Target,
        /// From where.
        pub offset: u64,
        /// How much, up to [`MAX_IO_BYTES`](super::MAX_IO_BYTES); above that `EINVAL`.
        pub len: u32,
    }
}

tagged! {
    /// Where to write.
    pub enum Place {
        /// At this offset. A handle opened with [`flags::APPEND`](super::flags::APPEND) writes at the end all the same.
        1 => At(u64),
        /// At the end of the file, as it is when the operation is executed.
        2 => End(Nothing),
    }
}

record! {
    /// See [`Action::Write`](super::Action::Write).
    pub struct Write {
        /// The file.
        pub target: Target,
        /// Where.
        pub place: Place,
        /// What, up to [`MAX_IO_BYTES`](super::MAX_IO_BYTES); above that `EINVAL`.
        pub data: Bytes,
    }
}

record! {
    /// See [`Action::Mkdir`](super::Action::Mkdir).
    pub struct Mkdir {
        /// The directory in which the new one will be.
        pub parent: Ino,
        /// Its name.
        pub name: Bytes,
        /// Mode bits.
        pub mode: u32,
        /// As of [`Create`].
        pub umask: u32,
    }
}

record! {
    /// See [`Action::Mknod`](super::Action::Mknod).
    pub struct Mknod {
        /// The directory.
        pub parent: Ino,
        /// The name in it.
        pub name: Bytes,
        /// Regular, fifo, socket; block and character devices by root only (`EPERM`). A directory is `EPERM`, a
        /// symbolic link `EINVAL`.
        pub kind: Kind,
        /// Mode bits.
        pub mode: u32,
        /// As of [`Create`].
        pub umask: u32,
        /// The device number of a device.
        pub rdev: u64,
    }
}

record! {
    /// See [`Action::Symlink`](super::Action::Symlink).
    pub struct Symlink {
        /// The directory.
        pub parent: Ino,
        /// The name in it.
        pub name: Bytes,
        /// Where the link points: 1 to 4,095 bytes without NUL.
        pub target: Bytes,
    }
}

record! {
    /// See [`Action::Link`](super::Action::Link).
    pub struct Link {
        /// The object.
        pub ino: Ino,
        /// The directory of the new name.
        pub parent: Ino,
        /// The new name.
        pub name: Bytes,
    }
}

record! {
    /// See [`Action::Unlink`](super::Action::Unlink).
    pub struct Unlink {
        /// The directory.
        pub parent: Ino,
        /// The name in it.
        pub name: Bytes,
    }
}

record! {
    /// See [`Action::Rmdir`](super::Action::Rmdir).
    pub struct Rmdir {
        /// The directory.
        pub parent: Ino,
        /// The name in it.
        pub name: Bytes,
    }
}

codes! {
    /// What becomes of an object that has the new name already.
    pub enum RenameMode {
        /// It is replaced.
        0 => Replace,
        /// It stays: `EEXIST`.
        1 => NoReplace,
        /// It gets the old name.
        2 => Exchange,
    }
}

record! {
    /// See [`Action::Rename`](super::Action::Rename).
    pub struct Rename {
        /// The old directory.
        pub parent: Ino,
        /// The old name.
        pub name: Bytes,
        /// The new directory.
        pub new_parent: Ino,
        /// The new name.
        pub new_name: Bytes,
        /// What becomes of an object there.
        pub mode: RenameMode,
    }
}

record! {
    /// See [`Action::ReadDir`](super::Action::ReadDir).
    pub struct ReadDir {
        /// The directory.
        pub target: Target,
        /// The cookie of the last entry that the caller has; 0 from the start.
        pub cookie: u64,
        /// The most entries to answer; 0 is `EINVAL`.
        pub count: u32,
        /// With each entry's attributes, where the caller may search the directory.
        pub plus: bool,
    }
}

record! {
    /// See [`Action::CopyRange`](super::Action::CopyRange). As a read and a write of what was read, with nothing in between; the bytes don't leave
    /// the replicas.
    pub struct CopyRange {
        /// The file that is read.
        pub from: Target,
        /// From where.
        pub offset: u64,
        /// The file that is written to. By a handle that appends it is `EBADF`.
        pub to: Target,
        /// Where.
        pub to_offset: u64,
        /// How much. Less is copied where the file that is read ends, and no more than
        /// [`MAX_IO_BYTES`](super::MAX_IO_BYTES) at once: the answer says up to where in the other one; ask for the rest again. Where the
        /// two ranges are of one file and meet it is `EINVAL`.
        pub len: u64,
    }
}

codes! {
    /// What [`Fallocate`] does with the range.
    pub enum FallocateMode {
        /// Makes all of it data; the file grows to hold it.
        0 => Allocate,
        /// Makes all of it data up to the file's end; the size stays. (Nothing is kept beyond the end.)
        1 => KeepSize,
        /// Makes a hole of it; the size stays.
        2 => PunchHole,
        /// Makes it read as zeros and be data; the file grows to hold it.
        3 => ZeroRange,
        /// Makes it read as zeros and be data up to the file's end; the size stays.
        4 => ZeroRangeKeepSize,
    }
}

record! {
    /// See [`Action::Fallocate`](super::Action::Fallocate).
    pub struct Fallocate {
        /// The file.
        pub target: Target,
        /// What is done.
        pub mode: FallocateMode,
        /// From where.
        pub offset: u64,
        /// How much; 0 is `EINVAL`. Work is bounded: the answer says up to where it was done; send the rest again.
        pub len: u64,
    }
}

codes! {
    /// What [`Seek`] looks for.
    pub enum Whence {
        /// The next byte of data.
        0 => Data,
        /// The next byte of a hole; the end of the file is one.
        1 => Hole,
    }
}

record! {
    /// See [`Action::Seek`](super::Action::Seek).
    pub struct Seek {
        /// The file.
        pub target: Target,
        /// From where.
        pub offset: u64,
        /// For what.
        pub whence: Whence,
    }
}

codes! {
    /// Whether an extended attribute must be there already.
    pub enum XattrMode {
        /// Either way.
        0 => Set,
        /// It must be new, else `EEXIST`.
        1 => Create,
        /// It must be there, else `ENODATA`.
        2 => Replace,
    }
}

record! {
    /// See [`Action::SetXattr`](super::Action::SetXattr).
    pub struct SetXattr {
        /// The object.
        pub ino: Ino,
        /// The attribute, with its namespace: `user.`, `trusted.` or `security.`; or one of the two that hold an object's ACLs,
        /// `system.posix_acl_access` and, of a directory, `system.posix_acl_default`. An ACL without entries is none.
        pub name: Bytes,
        /// Its value, up to 64 KiB; of an ACL up to 4 KiB, in the form that Linux has for it.
        pub value: Bytes,
        /// Whether it must be there. Of ACLs, as in Linux, not looked at.
        pub mode: XattrMode,
    }
}

record! {
    /// See [`Action::GetXattr`](super::Action::GetXattr).
    pub struct GetXattr {
        /// The object.
        pub ino: Ino,
        /// The attribute.
        pub name: Bytes,
        /// The size of the caller's buffer; 0 asks for the value's size.
        pub size: u32,
    }
}

record! {
    /// See [`Action::ListXattr`](super::Action::ListXattr).
    pub struct ListXattr {
        /// The object.
        pub ino: Ino,
        /// The size of the caller's buffer; 0 asks for the list's size.
        pub size: u32,
    }
}

record! {
    /// See [`Action::RemoveXattr`](super::Action::RemoveXattr).
    pub struct RemoveXattr {
        /// The object.
        pub ino: Ino,
        /// The attribute.
        pub name: Bytes,
    }
}

codes! {
    /// Locks of one namespace never meet those of the other.
    pub enum LockSpace {
        /// fcntl(2): on ranges.
        0 => Posix,
        /// flock(2): on the whole file; start and end must be 0 and `u64::MAX`.
        1 => Flock,
    }
}

codes! {
    /// What is asked for.
    pub enum LockKind {
        /// Shared.
        0 => Read,
        /// Alone.
        1 => Write,
        /// None: what the owner has in the range is let go.
        2 => Unlock,
    }
}

record! {
    /// See [`Action::Lock`](super::Action::Lock). Never waits: where another's lock is in the way, a test tells which, and taking is `EAGAIN`.
    /// Locks end with the session, and with the last handle that the session has on the file; a `Flock` lock ends
    /// also with the handle it was taken through.
    pub struct Lock {
        /// The file.
        pub handle: Handle,
        /// Which namespace.
        pub space: LockSpace,
        /// Whose lock it is within the session.
        pub owner: u64,
        /// The process, for those who ask who holds it.
        pub pid: u32,
        /// The first byte.
        pub start: u64,
        /// The last byte; `u64::MAX` is the end of the file wherever it will be.
        pub end: u64,
        /// What is asked for.
        pub kind: LockKind,
        /// Only says what would be in the way.
        pub test: bool,
    }
}
