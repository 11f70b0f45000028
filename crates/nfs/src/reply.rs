//! The parts of NFS replies (RFC 1813, 2.5, 2.6), as they are written.

use quorate_files::answer::Version;
use quorate_files::{Attr, Kind, Stamp};

use crate::handle::HANDLE_BYTES;
use crate::status::Status;
use crate::xdr::Writer;

/// The bytes of attributes, with the word that says that they are there.
pub const ATTR_BYTES: usize = 4 + 84;
/// The bytes of a handle, with the word that says that it is there.
pub const FH_BYTES: usize = 8 + HANDLE_BYTES;

/// Writes what a call comes to.
#[derive(Clone, Debug)]
pub struct Reply {
    /// What was written so far, from the status on.
    pub w: Writer,
    fsid: u64,
}

impl Reply {
    /// A reply that begins with a status.
    pub fn new(status: Status, fsid: u64) -> Reply {
        let mut w = Writer::default();
        w.u32(status as u32);
        Reply { w, fsid }
    }

    /// Attributes (`fattr3`).
    pub fn attr(&mut self, attr: &Attr) {
        let w = &mut self.w;
        w.u32(match attr.kind {
            Kind::Regular => 1,
            Kind::Directory => 2,
            Kind::Block => 3,
            Kind::Char => 4,
            Kind::Symlink => 5,
            Kind::Socket => 6,
            Kind::Fifo => 7,
        });
        [attr.mode, attr.nlink, attr.uid, attr.gid]
            .into_iter()
            .for_each(|word| w.u32(word));
        w.u64(attr.size);
        w.u64(attr.blocks.saturating_mul(512));
        let (major, minor) = device_parts(attr.rdev);
        w.u32(major);
        w.u32(minor);
        w.u64(self.fsid);
        w.u64(attr.ino.0);
        [attr.atime, attr.mtime, attr.ctime]
            .into_iter()
            .for_each(|stamp| time(w, stamp));
    }

    /// Attributes after an operation (`post_op_attr`).
    pub fn after(&mut self, attr: Option<&Attr>) {
        self.w.bool(attr.is_some());
        if let Some(attr) = attr {
            self.attr(attr);
        }
    }

    /// Which version an object was before an operation, and its attributes after it (`wcc_data`).
    pub fn changed(&mut self, before: Option<Version>, after: Option<&Attr>) {
        self.w.bool(before.is_some());
        if let Some(before) = before {
            self.w.u64(before.size);
            time(&mut self.w, before.mtime);
            time(&mut self.w, before.ctime);
        }
        self.after(after);
    }

    /// A handle that is there (`post_op_fh3`).
    pub fn handle(&mut self, handle: &[u8]) {
        self.w.bool(true);
        self.w.opaque(handle);
    }
}

/// The version that attributes are of.
pub fn version(attr: &Attr) -> Version {
    Version {
        size: attr.size,
        mtime: attr.mtime,
        ctime: attr.ctime,
    }
}

/// Seconds have 32 bits here: what is before 1970 or after 2106 is shown as the nearest time that there is.
fn time(w: &mut Writer, stamp: Stamp) {
    let (secs, nanos) = match u32::try_from(stamp.secs) {
        Ok(secs) => (secs, stamp.nanos),
        Err(_) if stamp.secs < 0 => (0, 0),
        Err(_) => (u32::MAX, 999_999_999),
    };
    w.u32(secs);
    w.u32(nanos);
}

/// The numbers in a device number, which is kept in the form that Linux gives to user programs.
pub fn device_parts(rdev: u64) -> (u32, u32) {
    let rdev = rdev as u32;
    let major = rdev >> 8 & 0xfff;
    let minor = rdev & 0xff | rdev >> 12 & 0xf_ff00;
    (major, minor)
}

/// The device number of two numbers; none if they are too large for one.
pub fn device((major, minor): (u32, u32)) -> Option<u64> {
    if major > 0xfff || minor > 0xf_ffff {
        return None;
    }
    Some((minor & 0xff | major << 8 | (minor & !0xff) << 12).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each device number has one form, and what has none is refused.
    #[test]
    fn device_numbers() {
        for parts in [(0, 0), (8, 1), (0xfff, 0xf_ffff), (259, 0x1_2345)] {
            assert_eq!(device(parts).map(device_parts), Some(parts));
        }
        assert_eq!(device((8, 1)), Some(0x801));
        assert_eq!(device((0x1000, 0)), None);
        assert_eq!(device((0, 0x10_0000)), None);
    }
}
