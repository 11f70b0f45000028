//! What tests begin with.

use quorate_files::{Attr, Ino, Kind, Stamp};

/// The attributes of a file, after its first change.
pub fn attr(ino: Ino) -> Attr {
    let time = Stamp::default();
    Attr {
        ino,
        kind: Kind::Regular,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        size: 0,
        blocks: 0,
        rdev: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        change: 1,
        has_xattrs: false,
    }
}
