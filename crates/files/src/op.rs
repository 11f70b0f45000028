//! What a client may ask of the file service.
//!
//! An [`Op`] is who asks and an [`Action`]. What comes back is in [`crate::answer`]. Names, targets and
//! values are bytes, never text. Bounds that depend on the state are the service's to check; the codec
//! checks only that a value has one form and that lists are bounded.

use alloc::vec::Vec;
use bytes::Bytes;
use quorate_wire::{Decode, DecodeError, Encode, Reader, record, tagged};

use crate::types::{Handle, Ino, Kind, Nothing, Stamp};

/// The most supplementary groups a caller can have.
pub const MAX_GROUPS: usize = 1024;
/// The most bytes that one read or write moves.
pub const MAX_IO_BYTES: usize = 1 << 20;
/// The most entries in one answer to [`ReadDir`]; a larger count is taken as this.
pub const MAX_ENTRIES: u32 = 2048;

/// Bits of an open: see [`Open`] and [`Create`]. Any other bit is `EINVAL`.
pub mod flags {
    /// The handle reads. With none of read, write and exec the handle does neither (as `O_PATH`).
    pub const READ: u32 = 1;
    /// The handle writes.
    pub const WRITE: u32 = 2;
    /// Every write goes to the end of the file.
    pub const APPEND: u32 = 4;
    /// Cuts a regular file to nothing; needs write permission, but not [`WRITE`].
    pub const TRUNC: u32 = 8;
    /// For execution: needs execute permission in place of read permission; the handle reads.
    pub const EXEC: u32 = 16;
    /// [`super::Create`] only: the name must be new, else `EEXIST`.
    pub const EXCLUSIVE: u32 = 32;
    /// All of them.
    pub const ALL: u32 = 63;
}

/// Bits of [`Access`], as of access(2).
pub mod access {
    /// May execute, or search a directory.
    pub const EXEC: u32 = 1;
    /// May write.
    pub const WRITE: u32 = 2;
    /// May read.
    pub const READ: u32 = 4;
}

/// On whose behalf: the calling process, as its machine's agent asserts (like `AUTH_SYS`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Who {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups, at most [`MAX_GROUPS`].
    pub groups: Vec<u32>,
}

impl Who {
    /// A user with one group.
    pub fn new(uid: u32, gid: u32) -> Who {
        Who {
            uid,
            gid,
            groups: Vec::new(),
        }
    }

    /// User and group 0.
    pub fn root() -> Who {
        Who::new(0, 0)
    }

    /// Whether the caller is the superuser.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether the caller is in a group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

impl Encode for Who {
    fn encode(&self, out: &mut Vec<u8>) {
        self.uid.encode(out);
        self.gid.encode(out);
        self.groups.encode(out);
    }
}

impl Decode for Who {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        let (uid, gid) = <(u32, u32)>::decode(r)?;
        let count = r.count(4)?;
        if count > MAX_GROUPS {
            return Err(DecodeError::TooLong("groups"));
        }
        let groups = (0..count)
            .map(|_| u32::decode(r))
            .collect::<Result<_, _>>()?;
        Ok(Who { uid, gid, groups })
    }
}

record! {
    /// One operation. `to_bytes` of [`Encode`] is what the client sends.
    pub struct Op {
        /// On whose behalf.
        pub who: Who,
        /// What is to be done.
        pub action: Action,
    }
}

tagged! {
    /// What is to be done, and which [`Answer`](crate::Answer) success has.
    pub enum Action {
        /// Nothing; for renewal of the session's lease. `Done`.
        1 => Ping(Nothing),
        /// The object with a name. `Attr`.
        2 => Lookup(Lookup),
        /// Attributes. `Attr`.
        3 => GetAttr(Target),
        /// Changes attributes. `Attr`; see [`SetAttr::size`] for a size that takes several operations.
        4 => SetAttr(SetAttr),
        /// Which accesses the caller would be allowed. `Allowed`.
        5 => Access(Access),
        /// Opens an object. `Opened`.
        6 => Open(Open),
        /// Makes and opens a regular file, or opens what has the name. `Opened`.
        7 => Create(Create),
        /// Lets go of a handle. `Done`.
        8 => Release(Handle),
        /// Reads a file. `Data`.
        9 => Read(Read),
        /// Writes to a file. `Written`.
        10 => Write(Write),
        /// Makes a directory. `Attr`.
        11 => Mkdir(Mkdir),
        /// Makes any other object but a symbolic link. `Attr`.
        12 => Mknod(Mknod),
        /// Makes a symbolic link. `Attr`.
        13 => Symlink(Symlink),
        /// The target of a symbolic link. `Bytes`.
        14 => Readlink(Ino),
        /// Gives an object one more name. `Attr`.
        15 => Link(Link),
        /// Removes a name of anything but a directory. `Done`.
        16 => Unlink(Unlink),
        /// Removes an empty directory. `Done`.
        17 => Rmdir(Rmdir),
        /// Moves a name. `Done`.
        18 => Rename(Rename),
        /// Lists a directory. `Entries`.
        19 => ReadDir(ReadDir),
        /// Space and limits. `StatFs`.
        20 => StatFs(Nothing),
        /// Waits for what was agreed before; all of it is durable. `Done`.
        21 => Fsync(Target),
        /// Allocates, punches or zeroes a range. `Progress`.
        22 => Fallocate(Fallocate),
        /// The next data or hole. `Offset`; or `Progress`: none up to there, ask again from there.
        23 => Seek(Seek),
        /// Sets an extended attribute. `Done`.
        24 => SetXattr(SetXattr),
        /// An extended attribute. `Bytes`, or `Size` for a probe.
        25 => GetXattr(GetXattr),
        /// The names of the extended attributes, each ended by a NUL. `Bytes`, or `Size` for a probe.
        26 => ListXattr(ListXattr),
        /// Removes an extended attribute. `Done`.
        27 => RemoveXattr(RemoveXattr),
        /// Tests, takes or lets go of a lock. `Lock`.
        28 => Lock(Lock),
    }
}

tagged! {
    /// An object: by its number, with the caller's permissions checked now, or by a handle of this session, with the
    /// rights it was opened with.
    pub enum Target {
        /// By number.
        1 => Ino(Ino),
        /// By handle.
        2 => Handle(Handle),
    }
}

record! {
    /// See [`Action::Lookup`]. The names `.` and `..` are understood here and nowhere else.
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
    /// See [`Action::SetAttr`]. All parts are checked before any is done.
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
    /// See [`Action::Access`].
    pub struct Access {
        /// The object.
        pub ino: Ino,
        /// Bits of [`access`].
        pub mask: u32,
    }
}

record! {
    /// See [`Action::Open`].
    pub struct Open {
        /// The object: a regular file; or a directory, for reading only.
        pub ino: Ino,
        /// Bits of [`flags`].
        pub flags: u32,
    }
}

record! {
    /// See [`Action::Create`].
    pub struct Create {
        /// The directory.
        pub parent: Ino,
        /// The name in it.
        pub name: Bytes,
        /// Mode bits with the umask already applied. A new file's handle has the rights of `flags` whatever the mode.
        pub mode: u32,
        /// Bits of [`flags`].
        pub flags: u32,
    }
}

record! {
    /// See [`Action::Read`].
    pub struct Read {
        /// The file.
        pub target: Target,
        /// From where.
        pub offset: u64,
        /// How much, up to [`MAX_IO_BYTES`]; above that `EINVAL`.
        pub len: u32,
    }
}

tagged! {
    /// Where to write.
    pub enum Place {
        /// At this offset. A handle opened with [`flags::APPEND`] writes at the end all the same.
        1 => At(u64),
        /// At the end of the file, as it is when the operation is executed.
        2 => End(Nothing),
    }
}

record! {
    /// See [`Action::Write`].
    pub struct Write {
        /// The file.
        pub target: Target,
        /// Where.
        pub place: Place,
        /// What, up to [`MAX_IO_BYTES`]; above that `EINVAL`.
        pub data: Bytes,
    }
}

record! {
    /// See [`Action::Mkdir`].
    pub struct Mkdir {
        /// The directory in which the new one will be.
        pub parent: Ino,
        /// Its name.
        pub name: Bytes,
        /// Mode bits with the umask already applied.
        pub mode: u32,
    }
}

record! {
    /// See [`Action::Mknod`].
    pub struct Mknod {
        /// The directory.
        pub parent: Ino,
        /// The name in it.
        pub name: Bytes,
        /// Regular, fifo, socket; block and character devices by root only (`EPERM`). A directory is `EPERM`, a
        /// symbolic link `EINVAL`.
        pub kind: Kind,
        /// Mode bits with the umask already applied.
        pub mode: u32,
        /// The device number of a device.
        pub rdev: u64,
    }
}

record! {
    /// See [`Action::Symlink`].
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
    /// See [`Action::Link`].
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
    /// See [`Action::Unlink`].
    pub struct Unlink {
        /// The directory.
        pub parent: Ino,
        /// The name in it.
        pub name: Bytes,
    }
}

record! {
    /// See [`Action::Rmdir`].
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
    /// See [`Action::Rename`].
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
    /// See [`Action::ReadDir`].
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
    /// See [`Action::Fallocate`].
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
    /// See [`Action::Seek`].
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
    /// See [`Action::SetXattr`].
    pub struct SetXattr {
        /// The object.
        pub ino: Ino,
        /// The attribute, with its namespace: `user.`, `trusted.`, `security.` or `system.`.
        pub name: Bytes,
        /// Its value, up to 64 KiB.
        pub value: Bytes,
        /// Whether it must be there.
        pub mode: XattrMode,
    }
}

record! {
    /// See [`Action::GetXattr`].
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
    /// See [`Action::ListXattr`].
    pub struct ListXattr {
        /// The object.
        pub ino: Ino,
        /// The size of the caller's buffer; 0 asks for the list's size.
        pub size: u32,
    }
}

record! {
    /// See [`Action::RemoveXattr`].
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
    /// See [`Action::Lock`]. Never waits: where another's lock is in the way, a test tells which, and taking is `EAGAIN`.
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

impl Op {
    /// An operation on somebody's behalf.
    pub fn new(who: Who, action: Action) -> Op {
        Op { who, action }
    }

    /// The bytes that the client sends.
    pub fn to_bytes(&self) -> Bytes {
        Bytes::from(Encode::to_bytes(self))
    }

    /// Whether it changes nothing, so that it can be executed without agreement.
    pub fn is_read_only(&self) -> bool {
        self.action.is_read_only()
    }
}

impl Action {
    /// Whether it changes nothing. `Ping` and `Fsync` count as changes: they are sent for their place in the order.
    pub fn is_read_only(&self) -> bool {
        match self {
            Action::Lookup(_)
            | Action::GetAttr(_)
            | Action::Access(_)
            | Action::Read(_)
            | Action::Readlink(_)
            | Action::ReadDir(_)
            | Action::StatFs(_)
            | Action::Seek(_)
            | Action::GetXattr(_)
            | Action::ListXattr(_) => true,
            Action::Lock(lock) => lock.test,
            Action::Ping(_)
            | Action::SetAttr(_)
            | Action::Open(_)
            | Action::Create(_)
            | Action::Release(_)
            | Action::Write(_)
            | Action::Mkdir(_)
            | Action::Mknod(_)
            | Action::Symlink(_)
            | Action::Link(_)
            | Action::Unlink(_)
            | Action::Rmdir(_)
            | Action::Rename(_)
            | Action::Fsync(_)
            | Action::Fallocate(_)
            | Action::SetXattr(_)
            | Action::RemoveXattr(_) => false,
        }
    }
}
