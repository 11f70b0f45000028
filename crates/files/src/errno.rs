//! Why an operation was refused.

use core::fmt;

use alloc::vec::Vec;
use quorate_wire::{Decode, DecodeError, Encode, Reader};

macro_rules! errnos {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        /// An error number of POSIX. Its code is the number that Linux gives it on most machines, and is
        /// part of the format of results: a front on another system translates by name.
        #[allow(clippy::upper_case_acronyms)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Errno { $($(#[$doc])* $name),* }

        impl Errno {
            /// Every error, in the order of the codes.
            pub const ALL: &'static [Errno] = &[$(Errno::$name),*];

            /// The stable code, which is the Linux number.
            pub fn code(self) -> u16 {
                match self { $(Errno::$name => $code),* }
            }

            /// The error with a code, if there is one.
            pub fn from_code(code: u16) -> Option<Errno> {
                match code { $($code => Some(Errno::$name),)* _ => None }
            }

            fn text(self) -> &'static str {
                match self { $(Errno::$name => $text),* }
            }
        }
    };
}

errnos! {
    /// The caller may not do this, whatever the permission bits say.
    EPERM = 1, "not permitted";
    /// There is no such name.
    ENOENT = 2, "no such file or directory";
    /// There is no such device.
    ENXIO = 6, "no data or hole there";
    /// A list is too long.
    E2BIG = 7, "too long";
    /// The handle is not the session's, or was not opened for this.
    EBADF = 9, "bad handle";
    /// A lock is held by another; ask again.
    EAGAIN = 11, "try again";
    /// The permission bits don't allow it.
    EACCES = 13, "permission denied";
    /// The object is in use.
    EBUSY = 16, "busy";
    /// The name is taken.
    EEXIST = 17, "file exists";
    /// The two objects are on different volumes.
    EXDEV = 18, "different volumes";
    /// A directory is needed.
    ENOTDIR = 20, "not a directory";
    /// A directory can't be used so.
    EISDIR = 21, "is a directory";
    /// An argument makes no sense.
    EINVAL = 22, "invalid argument";
    /// No more opens in the group.
    ENFILE = 23, "too many open files in the group";
    /// No more opens in this session.
    EMFILE = 24, "too many open files in the session";
    /// The file would be too large.
    EFBIG = 27, "file too large";
    /// The volume is full.
    ENOSPC = 28, "no space left";
    /// The volume takes no writes.
    EROFS = 30, "read-only volume";
    /// The object has as many names as it can have.
    EMLINK = 31, "too many links";
    /// The buffer is too small for the value.
    ERANGE = 34, "out of range";
    /// Waiting would never end.
    EDEADLK = 35, "deadlock";
    /// The name is too long.
    ENAMETOOLONG = 36, "name too long";
    /// No more locks on this object.
    ENOLCK = 37, "no locks left";
    /// The directory has entries.
    ENOTEMPTY = 39, "directory not empty";
    /// Too many levels.
    ELOOP = 40, "too many levels";
    /// There is no such attribute.
    ENODATA = 61, "no such attribute";
    /// The operation's bytes are not an operation.
    EPROTO = 71, "malformed operation";
    /// A number does not fit.
    EOVERFLOW = 75, "value too large";
    /// Not offered for such an object.
    ENOTSUP = 95, "not supported";
    /// The object number names nothing any more.
    ESTALE = 116, "stale object number";
    /// The owner's share is used up.
    EDQUOT = 122, "quota exceeded";
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl core::error::Error for Errno {}

impl Encode for Errno {
    fn encode(&self, out: &mut Vec<u8>) {
        self.code().encode(out);
    }
}

impl Decode for Errno {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        Errno::from_code(u16::decode(r)?).ok_or(DecodeError::Invalid("errno"))
    }
}
