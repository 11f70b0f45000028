//! The state of the file service, byte by byte.
//!
//! Keys begin with a type byte; numbers in keys are 8 bytes, **big-endian**, so that ranges follow their order.
//! Values are in the canonical encoding of `quorate_wire::codec` (little-endian). No value is longer than
//! 65,536 bytes.
//!
//! | key | value |
//! |---|---|
//! | `10` | [`Counters`]: one for the volume |
//! | `11` ino | [`Inode`] |
//! | `12` dir name | [`DirEntry`]; the name is the rest of the key |
//! | `13` dir cookie | the name, bare. One for each `12`, with the cookie that stands there |
//! | `14` data chunk | an extent: 64 KiB of content, see below. `data` is [`Inode::data`] |
//! | `15` ino | target of a symbolic link, bare |
//! | `16` ino name | value of an extended attribute, bare. An ACL is one, see below |
//! | `17` session number | [`OpenFile`] of the handle with this number |
//! | `18` ino session | `u32`: how many handles the session has on the object; absent for none |
//! | `19` session | `u32`: how many `17` the session has; absent for none |
//! | `1a` ino | [`LockTable`]; absent where there are no locks |
//! | `1b` place | [`Dead`]: content that no inode has any more, or the attributes of an object that is gone. Its `14` or `16` are deleted a few at each later change |
//! | `1c` subject chain | a credential that holds: the chain, bare. In the key: its last subject, its digest |
//! | `1d` key | `u32`: how many `1c` and `1e` were passed on by this key, directly or by others; absent for none |
//! | `1e` link | [`Written`]: what was written under a link with a byte quota. In the key: the link's digest |
//! | `1f` link kind what | [`Revocation`] of links below this one; of all, where the digest is zeros. `01` issuer serial, `02` key, `03` issuer |
//! | `20` link | `u32`: how many `1f` there are for links below this one; absent for none |
//! | `21` second key | nothing: the row with this key, a `1c`, `1e` or `1f`, is let go after this second. One for each such row |
//! | `22` | [`Sharing`]: counts; absent as long as nobody has brought or revoked anything |
//! | `23` number | [`AuditRow`](crate::answer::AuditRow): the newest 65,536 rows of the audit log |
//! | `24` ino dir cookie | nothing: a further name of an object that is no directory. The first is in its inode |
//! | `25` quota | [`Quota`] with this number |
//! | `26` ino | `u64`: the number of the quota that an object counts under; absent for none. Means nothing where there is no such `25` |
//! | `27` session | the key of the guest whose session it is; absent for members, and where nothing is open |
//! | `28` ino | `u64`: the place of a file that lingers; absent for all others |
//! | `29` place | [`Waiting`]: a file that lingers. In the order in which they began to |
//! | `2a` | [`Lingering`]: counts; absent where nothing lingers |
//! | `2b` key | `u32`: how many `23` count against this key's share of the log; absent for none |
//! | `2c` link subject chain | nothing: the `1c` with this subject and chain was passed on from this link, directly or by others. One for each of its links but the last |
//! | `2d` | nothing: what was revoked while credentials are searched for it (`22`) is searched for from the first again. Absent where nothing is |
//! | `2e` session | `u64`: of a session that has ended and has handles yet, those up to this number are released. Absent for all others |
//! | `2f` session | `u32`: how many locks the session has on all objects; absent for none |
//!
//! An **extent** is a `u16` bitmap and bytes. Bit *i* says that the 4 KiB block *i* of the chunk is present: written
//! or allocated. The bytes of the present blocks follow in order, without those of absent blocks, and without
//! the zero bytes at the end of all of it. Where all blocks are present and the last three bytes are not all zero, the
//! extent is the 64 KiB alone, without a bitmap: a slice of the write that brought them, and no other extent is so long.
//! An extent without present blocks has no key. So equal content has equal bytes, zeros that were written differ from a hole, and allocated zeros cost two bytes. Bytes
//! beyond the file's size are zero, and blocks beyond it absent.
//!
//! An **ACL** is the attribute `system.posix_acl_access` or, of a directory, `system.posix_acl_default`: version 2 as a
//! `u32`; then for each entry tag and permissions as `u16` and an id as `u32`, all little-endian: owner (tag 1), users (2),
//! owning group (4), groups (8), mask (16), others (32), in this order. Ids of those that name nobody are `u32::MAX`. One for access
//! has a mask (else it would say no more than the mode bits do and not be kept), and its owner, mask and others are as the mode bits.
//!
//! The names `.` and `..` have no entries; listing makes them up with the cookies 1 and 2.

mod keys;

use alloc::vec::Vec;
use bytes::Bytes;
use quorate_wire::{Digest, PublicKey, record};

use crate::op::{Limits, LockKind, LockSpace};
use crate::types::{Handle, Ino, Kind, Stamp};

pub(crate) use keys::*;

/// The unit of allocation.
pub const BLOCK_BYTES: u64 = 4096;
/// The content under one key.
pub const CHUNK_BYTES: u64 = 1 << 16;
/// The largest file: offsets are signed for everyone else.
pub const MAX_FILE_BYTES: u64 = i64::MAX as u64;
/// The longest name.
pub const MAX_NAME_BYTES: usize = 255;
/// The longest target of a symbolic link.
pub const MAX_SYMLINK_BYTES: usize = 4095;
/// The most names of an object that is not a directory.
pub const MAX_LINKS: u32 = 65_000;
/// The deepest directory that can move to another parent. No path of 4,096 bytes leads deeper.
pub const MAX_DEPTH: usize = 2048;
/// What each directory entry counts against the volume's space: without it, hard links would be free.
pub const ENTRY_BYTES: u64 = 256;
/// The most handles of a session.
pub const MAX_OPENS: u32 = 65_536;
/// The most locks of an object, of all owners.
pub const MAX_LOCKS: usize = 1024;
/// The most locks of a session, on all objects.
pub const MAX_LOCKS_OF_SESSION: u32 = 65_536;
/// The longest value of an extended attribute.
pub const MAX_XATTR_VALUE_BYTES: usize = 64 << 10;
/// The longest list of names of extended attributes, each with its NUL.
pub const MAX_XATTR_LIST_BYTES: u32 = 64 << 10;
/// The most extended attributes of an object.
pub const MAX_XATTRS: u32 = 256;
/// What each extended attribute counts against the volume's space, beside its name and its value: its row takes as much by itself.
pub const XATTR_BYTES: u64 = 128;
/// The most bytes that an object's extended attributes count.
pub const MAX_XATTR_BYTES: u64 = 1 << 20;
/// The first cookie of a directory's entries.
pub const FIRST_COOKIE: u64 = 3;
/// How many extents one operation deletes, allocates or looks through at most.
pub const CHUNKS_PER_OP: usize = 256;
/// How many of these it writes anew at most, where what is in them stays.
pub const REWRITTEN_PER_OP: usize = 16;
/// How many extents of dead content each change deletes; no operation makes more.
pub const RECLAIM_PER_OP: usize = 128;
/// As how many of these an extended attribute counts, which has a name in its key.
pub const XATTR_RECLAIMED_AS: usize = 4;

/// The most credentials that one key has here. One more puts out the one that ends first.
pub const MAX_GRANTS_PER_SUBJECT: usize = 64;
/// The most links of all credentials of one key together. Beyond it goes what ends first, too.
pub const MAX_LINKS_PER_SUBJECT: usize = 128;
/// The most credentials, and links with a quota, that one key has passed on, directly or by others: see [`most_passed_on`].
pub const MAX_PASSED_ON: u32 = 4096;
/// The most credentials.
pub const MAX_GRANTS: u32 = 65_536;
/// The most revocations. Half of them are for the owner alone.
pub const MAX_REVOCATIONS: u32 = 65_536;
/// The most revocations by one credential.
pub const MAX_REVOCATIONS_PER_GRANT: u32 = 1024;
/// How many rows of the audit log are kept.
pub const AUDIT_ROWS: u64 = 65_536;
/// How many of these can be about what changed nothing, of those who have come by one first subject.
pub const AUDIT_SHARE: u32 = 4096;
/// How many rows that have ended one operation lets go of.
pub const EXPIRED_PER_OP: usize = 16;
/// For how many nanoseconds of agreed time a file lingers that has neither names nor handles: for those who have opened it and
/// have not said so yet.
pub const LINGER_NANOS: u64 = 30_000_000_000;
/// How many files may linger. Where there are more, the first go before their time, [`LINGERING_PER_OP`] with each operation that deletes any:
/// sessions can let go of more at once, so for a while there can be more.
pub const MAX_LINGERING: u64 = 65_536;
/// How many files that linger one operation deletes.
pub const LINGERING_PER_OP: usize = 16;
/// The most quotas.
pub const MAX_QUOTAS: usize = 1024;
/// How many credentials one operation looks at for revoked ones.
pub const SWEPT_PER_OP: usize = 32;

record! {
    /// Counts and limits of the volume.
    pub struct Counters {
        /// The next number of an object or of content.
        pub next_ino: u64,
        /// Space in use: 4,096 for each present block of a file, [`ENTRY_BYTES`] for each entry, and for each extended attribute
        /// [`XATTR_BYTES`] and the bytes of its name and value.
        pub used_bytes: u64,
        /// How many inodes there are.
        pub used_inodes: u64,
        /// The limit of `used_bytes`.
        pub capacity_bytes: u64,
        /// The limit of `used_inodes`.
        pub capacity_inodes: u64,
        /// The place of the first [`Dead`]: a queue, so that no operation searches among what was deleted.
        pub dead_first: u64,
        /// The place that the next one gets.
        pub dead_next: u64,
        /// How often a directory has moved, or an object with several names got, changed or lost one: all by which the ways up from what
        /// was there before become others.
        pub moves: u64,
        /// How many credentials and revocations have come.
        pub shared: u64,
    }
}

record! {
    /// What is to be deleted.
    pub struct Dead {
        /// Of content: the number that its extents are under. Of extended attributes: that of their object.
        pub data: u64,
        /// Of content: chunks before this one are deleted already. Of extended attributes: 2^64-1, which is the number of no chunk.
        pub from: u64,
    }
}

impl Dead {
    /// Content that was under this number.
    pub(crate) fn content(data: u64) -> Dead {
        Dead { data, from: 0 }
    }

    /// All extended attributes of an object that is gone.
    pub(crate) fn xattrs(ino: Ino) -> Dead {
        let (data, from) = (ino.0, u64::MAX);
        Dead { data, from }
    }

    /// Whose extended attributes it is, if it is these.
    pub(crate) fn xattrs_of(&self) -> Option<Ino> {
        (self.from == u64::MAX).then_some(Ino(self.data))
    }
}

record! {
    /// An object. What does not apply to its kind is 0.
    pub struct Inode {
        /// What it is.
        pub kind: Kind,
        /// Mode bits, 07777.
        pub mode: u32,
        /// Names; for a directory 2 and one for each directory in it; 0 without a name.
        pub nlink: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// The device number of a device. Of a regular file: what its exclusive creation was asked for with
        /// ([`Make::verifier`](crate::op::Make::verifier)), 1 in place of 0; and 0 after anybody has set attributes.
        pub rdev: u64,
        /// Bytes of a file, length of a symbolic link's target, number of a directory's entries.
        pub size: u64,
        /// Present blocks of a file.
        pub blocks: u64,
        /// Under which number a file's extents are kept: first its own; another once it was cut to nothing, so
        /// that this takes one step however long the file was. Of a directory: the cookie of its name in its parent, 0 of the root.
        pub data: u64,
        /// Access time.
        pub atime: Stamp,
        /// Modification time.
        pub mtime: Stamp,
        /// Change time.
        pub ctime: Stamp,
        /// Birth time.
        pub btime: Stamp,
        /// Counts the operations that changed the object.
        pub change: u64,
        /// The directory that it is in; the root's is itself. Of an object with several names: where the first is. Of one without a
        /// name: where the last was.
        pub parent: Ino,
        /// The cookie of a directory's next entry. Of anything else: the cookie of its name in `parent`.
        pub next_cookie: u64,
        /// How many extended attributes there are.
        pub xattrs: u32,
        /// Bytes of their names, each with a NUL.
        pub xattr_list_bytes: u32,
        /// What they count: the bytes of their names and values, and [`XATTR_BYTES`] each.
        pub xattr_bytes: u64,
    }
}

record! {
    /// An entry of a directory.
    pub struct DirEntry {
        /// The object.
        pub ino: Ino,
        /// What it is.
        pub kind: Kind,
        /// The entry's place in listings.
        pub cookie: u64,
    }
}

record! {
    /// An open object.
    pub struct OpenFile {
        /// The object.
        pub ino: Ino,
        /// `READ`, `WRITE` and `APPEND` of [`crate::op::flags`].
        pub rights: u32,
    }
}

record! {
    /// The locks of an object: in the order of space, session, owner, start. Those of one owner never overlap.
    pub struct LockTable {
        /// The locks, at most [`MAX_LOCKS`].
        pub locks: Vec<LockEntry>,
    }
}

record! {
    /// A lock.
    pub struct LockEntry {
        /// Its namespace.
        pub space: LockSpace,
        /// Whose session.
        pub session: u64,
        /// Whose in the session.
        pub owner: u64,
        /// The first byte.
        pub start: u64,
        /// The last byte.
        pub end: u64,
        /// Shared or alone.
        pub kind: LockKind,
        /// Through which handle it was taken.
        pub handle: Handle,
        /// The process.
        pub pid: u32,
    }
}

record! {
    /// What was written under a link that has a byte quota.
    pub struct Written {
        /// Bytes, by all who hold a part of it.
        pub bytes: u64,
        /// By whose hands the link has come: the subjects of those above it, the first one first.
        pub hosts: Vec<PublicKey> => 15, "hosts",
        /// The last second of the link.
        pub until: u64,
    }
}

record! {
    /// What was taken back.
    pub struct Revocation {
        /// Of kind 3: all serials below this one. Else 0.
        pub below: u64,
        /// The last second in which it is looked at.
        pub until: u64,
    }
}

record! {
    /// Counts of what there is about credentials.
    pub struct Sharing {
        /// Credentials.
        pub grants: u32,
        /// Revocations.
        pub revocations: u32,
        /// Where the search for revoked credentials goes on: a key. None where none goes on.
        pub sweep: Option<Bytes>,
        /// How many rows the audit log ever had.
        pub audited: u64,
        /// The digest of its last row.
        pub audit: Digest,
        /// How many operations have no row because it would be as the one before, or a share is used up.
        pub untold: u64,
    }
}

record! {
    /// Limits of what is in a directory and below it.
    pub struct Quota {
        /// The directory.
        pub dir: Ino,
        /// What there can be.
        pub limits: Limits,
        /// Space of all objects that count under it, with the entries of directories among them.
        pub used_bytes: u64,
        /// How many objects these are.
        pub used_files: u64,
    }
}

record! {
    /// A file that lingers.
    pub struct Waiting {
        /// The file.
        pub ino: Ino,
        /// The agreed time, in nanoseconds, up to which it does.
        pub until: u64,
    }
}

record! {
    /// All files that linger. Neither the volume nor a quota counts them.
    pub struct Lingering {
        /// No [`Waiting`] is before this place. Some of the places after it may be empty.
        pub first: u64,
        /// The place that the next one gets.
        pub next: u64,
        /// How many there are.
        pub files: u64,
        /// The space that they take.
        pub bytes: u64,
    }
}

impl DirEntry {
    /// Its place in its directory.
    pub(crate) fn place(&self, dir: Ino) -> Place {
        Place {
            dir,
            cookie: self.cookie,
        }
    }
}

/// Where a name is: the directory, and the cookie of the name in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub dir: Ino,
    pub cookie: u64,
}

impl Inode {
    /// The space that its content and its attributes take.
    pub(crate) fn space(&self) -> u64 {
        self.blocks * BLOCK_BYTES + self.xattr_bytes
    }

    pub(crate) fn place(&self) -> Place {
        let cookie = match self.kind {
            Kind::Directory => self.data,
            _ => self.next_cookie,
        };
        Place {
            dir: self.parent,
            cookie,
        }
    }

    pub(crate) fn set_place(&mut self, place: Place) {
        self.parent = place.dir;
        match self.kind {
            Kind::Directory => self.data = place.cookie,
            _ => self.next_cookie = place.cookie,
        }
    }
}

/// How many credentials, and links with a quota, a key may have passed on that has this place among those by whose hands one has come,
/// while the volume has room for so many more credentials. Who is further down gets a quarter of who is above, and so can't fill what
/// that has; and nobody takes the last of the room: what is left for others is eight times as much as anybody may have.
pub(crate) fn most_passed_on(place: usize, room: u32) -> u32 {
    MAX_PASSED_ON.min(room / 8) >> (2 * place.min(3))
}
