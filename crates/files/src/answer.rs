//! What the file service answers.

mod credentials;
mod quotas;

use alloc::boxed::Box;
use alloc::vec::Vec;
use bytes::Bytes;
use quorate_wire::codec::bounded;
use quorate_wire::{Decode, DecodeError, Digest, Encode, Reader, record, tagged};

use crate::errno::Errno;
use crate::op::{LockKind, MAX_HELD_AT_ONCE, MAX_OBJECTS};
use crate::types::{Handle, Ino, Kind, Nothing, Stamp};

pub use credentials::{Audit, AuditRow, Decision, Grants, KeptGrant, KeptRevocation, Revocations};
pub use quotas::{Adopted, QuotaRow, Quotas};

record! {
    /// An object's attributes.
    pub struct Attr {
        /// Its number.
        pub ino: Ino,
        /// What it is.
        pub kind: Kind,
        /// Mode bits, 07777.
        pub mode: u32,
        /// Names; for a directory 2 and one for each directory in it. 0: open, but without a name.
        pub nlink: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Bytes; for a directory the number of its entries; for a symbolic link its target's length.
        pub size: u64,
        /// Space in units of 512 bytes; exact to 4 KiB.
        pub blocks: u64,
        /// The device number of a device.
        pub rdev: u64,
        /// Access time. Who reads may have it moved, see [`Action::Accessed`](crate::Action::Accessed).
        pub atime: Stamp,
        /// When the content changed.
        pub mtime: Stamp,
        /// When anything but the access time changed. No two changes of an object share it.
        pub ctime: Stamp,
        /// When it was made.
        pub btime: Stamp,
        /// Counts the changes, by one with each operation that changes the object; that it was read is none.
        pub change: u64,
        /// Whether there are extended attributes, ACLs among them. So who has the attributes need not ask for what is not there.
        pub has_xattrs: bool,
    }
}

record! {
    /// A new handle.
    pub struct Opened {
        /// The handle.
        pub handle: Handle,
        /// Whether the object was made by this operation.
        pub created: bool,
        /// The object.
        pub attr: Attr,
    }
}

record! {
    /// What was read.
    pub struct Data {
        /// The bytes; fewer than asked for only at the end of the file.
        pub data: Bytes,
        /// The file as it was read.
        pub attr: Attr,
    }
}

record! {
    /// What was written; always all of it.
    pub struct Written {
        /// Where.
        pub offset: u64,
        /// The file before it.
        pub before: Version,
        /// The file after it.
        pub attr: Attr,
    }
}

record! {
    /// Which of its versions an object was: what caches are compared by.
    pub struct Version {
        /// Its size.
        pub size: u64,
        /// When its content had changed.
        pub mtime: Stamp,
        /// When anything of it had changed.
        pub ctime: Stamp,
    }
}

record! {
    /// A file that was made, or found.
    pub struct Made {
        /// Whether it was made by this operation.
        pub created: bool,
        /// The object.
        pub attr: Attr,
    }
}

/// What became of an action, and of the attributes of some objects. See [`WithAttrs`](crate::op::WithAttrs).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithAttrs {
    /// The objects before the action, in the order in which they were named; nothing for one that was not there. Empty if the
    /// action only reads.
    pub before: Vec<Option<Attr>>,
    /// The same after the action.
    pub after: Vec<Option<Attr>>,
    /// What became of the action.
    pub outcome: Box<Outcome>,
}

impl Encode for WithAttrs {
    fn encode(&self, out: &mut Vec<u8>) {
        self.before.encode(out);
        self.after.encode(out);
        self.outcome.encode(out);
    }

    fn string_bytes(&self) -> usize {
        self.outcome.string_bytes()
    }
}

impl Decode for WithAttrs {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        let before = bounded(r, MAX_OBJECTS, "objects")?;
        let after = bounded(r, MAX_OBJECTS, "objects")?;
        // One level, as in the operation.
        let next = r.clone().take(2.min(r.remaining()))?;
        if next[..] == [0, WITH_ATTRS] {
            return Err(DecodeError::Invalid("nested WithAttrs"));
        }
        let outcome = Box::new(Outcome::decode(r)?);
        Ok(WithAttrs {
            before,
            after,
            outcome,
        })
    }
}

record! {
    /// An entry of a directory.
    pub struct Entry {
        /// Its name.
        pub name: Bytes,
        /// The object.
        pub ino: Ino,
        /// What it is.
        pub kind: Kind,
        /// Its cookie: the listing goes on after it. Stays with the name as long as the name stays.
        pub cookie: u64,
        /// Its attributes, where they were asked for and the caller may search the directory.
        pub attr: Option<Attr>,
    }
}

record! {
    /// Part of a directory.
    pub struct Entries {
        /// In the order of their cookies, `.` (1) and `..` (2) first.
        pub entries: Vec<Entry>,
        /// Nothing comes after these.
        pub end: bool,
        /// The cookie to go on from, of the last name that was looked at: guests are not shown all. There may be no entries here and more after it.
        pub next: u64,
    }
}

record! {
    /// Space and limits of the volume.
    pub struct StatFs {
        /// Space in bytes.
        pub capacity: u64,
        /// How much of it is in use.
        pub used: u64,
        /// How many objects there can be.
        pub inodes: u64,
        /// How many there are.
        pub used_inodes: u64,
        /// The unit of allocation.
        pub block_size: u32,
        /// The longest name.
        pub name_max: u32,
    }
}

record! {
    /// What became of files that were to be held.
    pub struct Held {
        /// Those that are gone, or are no files.
        pub gone: Vec<Ino> => MAX_HELD_AT_ONCE, "files",
    }
}

record! {
    /// How far an operation of bounded work came.
    pub struct Progress {
        /// Everything before this offset is done.
        pub done: u64,
        /// The file after it.
        pub attr: Attr,
    }
}

record! {
    /// A lock that somebody has.
    pub struct HeldLock {
        /// Shared or alone.
        pub kind: LockKind,
        /// The first byte.
        pub start: u64,
        /// The last byte.
        pub end: u64,
        /// The process that its owner named.
        pub pid: u32,
    }
}

tagged! {
    /// What success brings; [`Action`](crate::Action) says which of these.
    pub enum Answer {
        /// Nothing more to say.
        1 => Done(Nothing),
        /// An object.
        2 => Attr(Attr),
        /// A handle.
        3 => Opened(Opened),
        /// Bytes of a file.
        4 => Data(Data),
        /// Where bytes went.
        5 => Written(Written),
        /// A link's target, an extended attribute, or names.
        6 => Bytes(Bytes),
        /// How long that would be.
        7 => Size(u32),
        /// Part of a directory.
        8 => Entries(Entries),
        /// Space.
        9 => StatFs(StatFs),
        /// The subset of the mask that is allowed.
        10 => Allowed(u32),
        /// A place in a file.
        11 => Offset(u64),
        /// How far it came.
        12 => Progress(Progress),
        /// A test's finding; nothing if nothing is in the way, or the lock was taken.
        13 => Lock(Option<HeldLock>),
        /// What became of an action, and of some attributes.
        14 => WithAttrs(WithAttrs),
        /// A file that was made, or found.
        15 => Made(Made),
        /// A credential that is kept now, by its digest.
        16 => Granted(Digest),
        /// Credentials.
        17 => Grants(Grants),
        /// A part of the audit log.
        18 => Audit(Audit),
        /// Quotas.
        19 => Quotas(Quotas),
        /// What came under a quota.
        20 => Adopted(Adopted),
        /// What is held.
        21 => Held(Held),
        /// What was taken back.
        22 => Revocations(Revocations),
    }
}

const WITH_ATTRS: u8 = 14;

/// The result of an operation: an [`Answer`] or an [`Errno`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome(pub Result<Answer, Errno>);

impl Outcome {
    /// The bytes of the result.
    pub fn to_bytes(&self) -> Bytes {
        Bytes::from(Encode::to_bytes(self))
    }

    /// Reads a result.
    ///
    /// # Errors
    /// Where the bytes are not one; then the replicas that sent them run another format.
    pub fn from_bytes(bytes: Bytes) -> Result<Outcome, DecodeError> {
        <Outcome as Decode>::from_bytes(bytes)
    }
}

impl Encode for Outcome {
    fn encode(&self, out: &mut Vec<u8>) {
        match &self.0 {
            Ok(answer) => {
                out.push(0);
                answer.encode(out);
            }
            Err(errno) => {
                out.push(1);
                errno.encode(out);
            }
        }
    }
}

impl Decode for Outcome {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Outcome(match u8::decode(r)? {
            0 => Ok(Answer::decode(r)?),
            1 => Err(Errno::decode(r)?),
            _ => return Err(DecodeError::Invalid("tag of Outcome")),
        }))
    }
}
