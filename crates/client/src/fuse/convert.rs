//! Between the kernel's values and the service's.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use quorate_files::op::{RenameMode, SetTime, flags};
use quorate_files::{Attr, Kind, Nothing, Stamp};
use rustix::fs::OFlags;

use crate::volume::CallError;

/// What an operation of the front brings.
pub(super) type Result<T> = std::result::Result<T, fuser::Errno>;

/// Set by the kernel on opens for execution.
const FMODE_EXEC: i32 = 0x20;

impl From<CallError> for fuser::Errno {
    fn from(error: CallError) -> fuser::Errno {
        match error {
            CallError::Refused(errno) => fuser::Errno::from_i32(i32::from(errno.code())),
            CallError::Lost | CallError::Garbled => {
                tracing::warn!("an operation failed: {error}");
                fuser::Errno::EIO
            }
        }
    }
}

pub(super) fn kind(kind: Kind) -> FileType {
    match kind {
        Kind::Regular => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::Block => FileType::BlockDevice,
        Kind::Char => FileType::CharDevice,
    }
}

/// The kind in the file type bits of a mode.
pub(super) fn kind_of_mode(mode: u32) -> Option<Kind> {
    Some(match mode & 0o170_000 {
        0o010_000 => Kind::Fifo,
        0o020_000 => Kind::Char,
        0o040_000 => Kind::Directory,
        0o060_000 => Kind::Block,
        0 | 0o100_000 => Kind::Regular,
        0o120_000 => Kind::Symlink,
        0o140_000 => Kind::Socket,
        _ => return None,
    })
}

fn time(stamp: Stamp) -> SystemTime {
    let secs = Duration::from_secs(stamp.secs.unsigned_abs());
    let nanos = Duration::from_nanos(u64::from(stamp.nanos));
    let whole = match stamp.secs {
        0.. => UNIX_EPOCH.checked_add(secs),
        _ => UNIX_EPOCH.checked_sub(secs),
    };
    whole
        .and_then(|t| t.checked_add(nanos))
        .unwrap_or(UNIX_EPOCH)
}

/// A time as the FUSE library gives it.
fn stamp(time: SystemTime) -> Stamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Stamp {
            secs: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            nanos: after.subsec_nanos(),
        },
        Err(before) => {
            // The FUSE library takes the nanoseconds of times before 1970 off, though the kernel means them to be added.
            let before = before.duration();
            Stamp {
                secs: -i64::try_from(before.as_secs()).unwrap_or(i64::MAX),
                nanos: before.subsec_nanos(),
            }
        }
    }
}

pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now(Nothing),
        TimeOrNow::SpecificTime(time) => SetTime::At(stamp(time)),
    }
}

pub(super) fn attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino.0),
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        crtime: time(attr.btime),
        kind: kind(attr.kind),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        // The kernel's own form of device numbers has 32 bits, and that is what it gave.
        rdev: attr.rdev as u32,
        blksize: super::MAX_REQUEST_BYTES,
        flags: 0,
    }
}

/// Attributes of an entry that has none to show: number 0 tells the kernel to look it up when it needs it.
pub(super) fn no_attr(of: Kind) -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: kind(of),
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: super::MAX_REQUEST_BYTES,
        flags: 0,
    }
}

/// What the flags of open(2) mean to the service. That writes go to the end is said with each write, since
/// fcntl(2) can change it.
pub(super) fn open_flags(open: i32) -> u32 {
    let mut out = match open & 3 {
        0 if open & FMODE_EXEC != 0 => flags::EXEC,
        0 => flags::READ,
        1 => flags::WRITE,
        _ => flags::READ | flags::WRITE,
    };
    if has(open, OFlags::TRUNC) {
        out |= flags::TRUNC;
    }
    out
}

/// Whether flags of open(2) have all of these.
pub(super) fn has(open: i32, wanted: OFlags) -> bool {
    OFlags::from_bits_retain(open as u32).contains(wanted)
}

pub(super) fn rename_mode(flags: fuser::RenameFlags) -> Option<RenameMode> {
    if flags.is_empty() {
        Some(RenameMode::Replace)
    } else if flags == fuser::RenameFlags::RENAME_NOREPLACE {
        Some(RenameMode::NoReplace)
    } else if flags == fuser::RenameFlags::RENAME_EXCHANGE {
        Some(RenameMode::Exchange)
    } else {
        None
    }
}

pub(super) fn bytes(name: &OsStr) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}

/// Whether this is the attribute that the kernel asks for at each write and that a mount never has: file capabilities count
/// for nothing where it is `nosuid`. Without this each write would cost one more operation.
pub(super) fn is_never_there(name: &OsStr) -> bool {
    name == "security.capability"
}

/// Whether an extended attribute is one that the kernel and `ls` ask for, whoever uses attributes or not.
pub(super) fn is_usual(name: &[u8]) -> bool {
    is_acl(name) || name.starts_with(b"security.")
}

/// Whether an extended attribute is an ACL, which mode bits follow and which follows them.
pub(super) fn is_acl(name: &[u8]) -> bool {
    name.starts_with(b"system.posix_acl_")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times with parts of seconds come back as they were.
    #[test]
    fn times_come_back() {
        for (secs, nanos) in [(0, 0), (5, 7), (-1, 0)] {
            let s = Stamp { secs, nanos };
            assert_eq!(stamp(time(s)), s);
        }
    }
}
