//! What a client may ask of the file service.
//!
//! An [`Op`] is who asks and an [`Action`]. What comes back is in [`crate::answer`]. Names, targets and
//! values are bytes, never text. Bounds that depend on the state are the service's to check; the codec
//! checks only that a value has one form and that lists are bounded.

mod accesses;
mod credentials;
mod holds;
mod parameters;
mod quotas;
mod with_attrs;

use alloc::vec::Vec;
use bytes::Bytes;
use quorate_wire::{Decode, DecodeError, Encode, Reader, record, tagged};

use crate::types::{Handle, Ino, Nothing};

pub use accesses::*;
pub use credentials::*;
pub use holds::*;
pub use parameters::*;
pub use quotas::*;
pub use with_attrs::{MAX_OBJECTS, WithAttrs};

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
        /// Which accesses the caller would be allowed, each by itself. `Allowed`.
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
        /// Sets an extended attribute. `Attr`.
        24 => SetXattr(SetXattr),
        /// An extended attribute. `Bytes`, or `Size` for a probe.
        25 => GetXattr(GetXattr),
        /// The names of the extended attributes, each ended by a NUL. `Bytes`, or `Size` for a probe.
        26 => ListXattr(ListXattr),
        /// Removes an extended attribute. `Attr`.
        27 => RemoveXattr(RemoveXattr),
        /// Tests, takes or lets go of a lock. `Lock`.
        28 => Lock(Lock),
        /// Any of the others, with what it did to the attributes of some objects. `WithAttrs`.
        29 => WithAttrs(WithAttrs),
        /// Makes a regular file without opening it. `Made`.
        30 => Make(Make),
        /// Copies a range of a file into another. `Progress`.
        31 => CopyRange(CopyRange),
        /// Brings a credential of the caller's own. `Granted`.
        32 => PutCredential(PutCredential),
        /// Takes back what was granted. `Done`.
        33 => Revoke(Revoke),
        /// The credentials that the volume keeps: a guest's own, or all for others. `Grants`.
        34 => Grants(Grants),
        /// The audit log, for all but guests (`EPERM`). `Audit`.
        35 => Audit(Audit),
        /// Sets the limits of what is in a directory and below it, or takes them away. `Done`.
        36 => SetQuota(SetQuota),
        /// Has a directory's entries count under the quota that the directory does, some at a time. `Adopted`.
        37 => Adopt(Adopt),
        /// Quotas, and what is in use. `Quotas`.
        38 => Quotas(Quotas),
        /// Space and limits, as far as a quota leaves them to what is beside an object. `StatFs`.
        39 => StatFsOf(Ino),
        /// Whether an object could be opened, without opening it: for a file that is closed before anybody needs to know. No
        /// `TRUNC`. `Attr`.
        40 => CheckOpen(Open),
        /// Holds files, so that they stay when they lose their names, and lets go of others. `Held`.
        41 => Hold(Hold),
        /// Ends a revocation, so that what it took back holds again. `Done`.
        42 => Restore(Restore),
        /// What was taken back, for all but guests (`EPERM`). `Revocations`.
        43 => Revocations(Revocations),
        /// What was passed on from a link, directly or by others, of what the volume keeps: for who holds a credential that ends with that link, and
        /// for members. `Grants`.
        44 => PassedOn(PassedOn),
        /// Tells that objects were read, late and of many at once, for all but guests (`EPERM`). `Done`.
        45 => Accessed(Accessed),
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
        /// By number, for those who have no handles because their protocol has none (NFSv3). They were allowed to open a
        /// file once, and what was allowed then stays so: its owner reads and writes a regular file whatever the bits
        /// say, and who may execute it may read it (RFC 1813, 4.4). Else as by number.
        3 => Unopened(Ino),
        /// As [`Target::Unopened`], by who has asked [`Action::CheckOpen`] and has the file open since. Reads and looks find it for a
        /// while after it has lost its last name and handle, and changes as long as it has one.
        4 => Checked(Ino),
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
    /// The number of this kind of action in the encoding. Of one with attributes: of what is done.
    pub fn tag(&self) -> u8 {
        match self {
            Action::Ping(_) => 1,
            Action::Lookup(_) => 2,
            Action::GetAttr(_) => 3,
            Action::SetAttr(_) => 4,
            Action::Access(_) => 5,
            Action::Open(_) => 6,
            Action::Create(_) => 7,
            Action::Release(_) => 8,
            Action::Read(_) => 9,
            Action::Write(_) => 10,
            Action::Mkdir(_) => 11,
            Action::Mknod(_) => 12,
            Action::Symlink(_) => 13,
            Action::Readlink(_) => 14,
            Action::Link(_) => 15,
            Action::Unlink(_) => 16,
            Action::Rmdir(_) => 17,
            Action::Rename(_) => 18,
            Action::ReadDir(_) => 19,
            Action::StatFs(_) => 20,
            Action::Fsync(_) => 21,
            Action::Fallocate(_) => 22,
            Action::Seek(_) => 23,
            Action::SetXattr(_) => 24,
            Action::GetXattr(_) => 25,
            Action::ListXattr(_) => 26,
            Action::RemoveXattr(_) => 27,
            Action::Lock(_) => 28,
            Action::WithAttrs(op) => op.action.tag(),
            Action::Make(_) => 30,
            Action::CopyRange(_) => 31,
            Action::PutCredential(_) => 32,
            Action::Revoke(_) => 33,
            Action::Grants(_) => 34,
            Action::Audit(_) => 35,
            Action::SetQuota(_) => 36,
            Action::Adopt(_) => 37,
            Action::Quotas(_) => 38,
            Action::StatFsOf(_) => 39,
            Action::CheckOpen(_) => 40,
            Action::Hold(_) => 41,
            Action::Restore(_) => 42,
            Action::Revocations(_) => 43,
            Action::PassedOn(_) => 44,
            Action::Accessed(_) => 45,
        }
    }

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
            | Action::ListXattr(_)
            | Action::Grants(_)
            | Action::PassedOn(_)
            | Action::Audit(_)
            | Action::Revocations(_)
            | Action::Quotas(_)
            | Action::StatFsOf(_)
            | Action::CheckOpen(_) => true,
            Action::Lock(lock) => lock.test,
            Action::WithAttrs(op) => op.action.is_read_only(),
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
            | Action::RemoveXattr(_)
            | Action::Make(_)
            | Action::CopyRange(_)
            | Action::PutCredential(_)
            | Action::Revoke(_)
            | Action::Restore(_)
            | Action::SetQuota(_)
            | Action::Adopt(_)
            | Action::Hold(_)
            | Action::Accessed(_) => false,
        }
    }
}
