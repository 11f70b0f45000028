//! Object numbers, handles, kinds and times.

use alloc::vec::Vec;
use quorate_wire::{Decode, DecodeError, Encode, Reader, Time};

/// Declares an enum of bare variants with its canonical encoding: one tag byte.
macro_rules! codes {
    ($(#[$doc:meta])* pub enum $name:ident { $($(#[$vdoc:meta])* $tag:literal => $variant:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($(#[$vdoc])* $variant),* }

        impl quorate_wire::Encode for $name {
            fn encode(&self, out: &mut alloc::vec::Vec<u8>) {
                out.push(match self { $($name::$variant => $tag),* });
            }
        }

        impl quorate_wire::Decode for $name {
            fn decode(r: &mut quorate_wire::Reader) -> Result<Self, quorate_wire::DecodeError> {
                match <u8 as quorate_wire::Decode>::decode(r)? {
                    $($tag => Ok($name::$variant),)*
                    _ => Err(quorate_wire::DecodeError::Invalid(concat!("tag of ", stringify!($name)))),
                }
            }
        }
    };
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(pub u64);

        impl Encode for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                self.0.encode(out);
            }
        }

        impl Decode for $name {
            fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
                Ok($name(u64::decode(r)?))
            }
        }
    };
}

/// The first number of the handles by which files are held. As a time it is in the year 2116.
pub(crate) const HELD: u64 = 1 << 63;

number!(
    /// An object's number. Never used again, so it needs no generation. The root has 1.
    Ino
);
/// An open object in a session. Never used again.
///
/// It says by itself which object is meant and whether writes go to its end, so that what an operation touches is
/// known without a look at the state. The service takes only handles that it gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Handle {
    /// The object.
    pub ino: Ino,
    /// Twice the agreed time of the opening, which no other operation has; and 1 if every write goes to the end. From 2^63 on: twice
    /// the object's number, of a file that is [held](crate::op::Hold).
    pub number: u64,
}

impl Handle {
    /// The handle that an operation at this time opens; none if the time is out of any reason.
    pub fn opened(ino: Ino, now: Time, appends: bool) -> Option<Handle> {
        let number = now.0.checked_mul(2).filter(|number| *number < HELD)? | u64::from(appends);
        Some(Handle { ino, number })
    }

    /// The handle by which a session holds a file: one for each file, so that it need not be told.
    pub fn held(ino: Ino) -> Option<Handle> {
        let number = ino.0.checked_mul(2).filter(|number| *number < HELD)? | HELD;
        Some(Handle { ino, number })
    }

    /// Whether every write goes to the end of the file.
    pub fn appends(self) -> bool {
        self.number & 1 == 1
    }
}

impl Encode for Handle {
    fn encode(&self, out: &mut Vec<u8>) {
        self.ino.encode(out);
        self.number.encode(out);
    }
}

impl Decode for Handle {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        let (ino, number) = <(Ino, u64)>::decode(r)?;
        Ok(Handle { ino, number })
    }
}

impl Ino {
    /// The root directory.
    pub const ROOT: Ino = Ino(1);
}

/// No content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nothing;

impl Encode for Nothing {
    fn encode(&self, _: &mut Vec<u8>) {}
}

impl Decode for Nothing {
    fn decode(_: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Nothing)
    }
}

codes! {
    /// What an object is.
    pub enum Kind {
        /// A regular file.
        1 => Regular,
        /// A directory.
        2 => Directory,
        /// A symbolic link.
        3 => Symlink,
        /// A named pipe.
        4 => Fifo,
        /// A socket.
        5 => Socket,
        /// A block device.
        6 => Block,
        /// A character device.
        7 => Char,
    }
}

/// A point in time as files have it: it may be before 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Stamp {
    /// Whole seconds since 1970-01-01 00:00 UTC, rounded down.
    pub secs: i64,
    /// And nanoseconds, below 1,000,000,000.
    pub nanos: u32,
}

impl From<Time> for Stamp {
    fn from(time: Time) -> Stamp {
        // The quotient is below 2^35 and the remainder below 2^30.
        Stamp {
            secs: (time.0 / 1_000_000_000) as i64,
            nanos: (time.0 % 1_000_000_000) as u32,
        }
    }
}

impl Encode for Stamp {
    fn encode(&self, out: &mut Vec<u8>) {
        self.secs.encode(out);
        self.nanos.encode(out);
    }
}

impl Decode for Stamp {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        let (secs, nanos) = <(i64, u32)>::decode(r)?;
        if nanos >= 1_000_000_000 {
            return Err(DecodeError::Invalid("nanoseconds"));
        }
        Ok(Stamp { secs, nanos })
    }
}
