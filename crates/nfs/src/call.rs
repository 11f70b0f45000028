//! The arguments of NFS procedures (RFC 1813, 3.3), as they are read.

use bytes::Bytes;
use quorate_files::Stamp;
use quorate_files::op::{MAX_IO_BYTES, SetTime};
use quorate_files::{Kind, Nothing};

use crate::handle::MAX_HANDLE_BYTES;
use crate::xdr::{Malformed, Read, Reader};

/// The program's number.
pub const PROGRAM: u32 = 100_003;
/// The one version that is served.
pub const VERSION: u32 = 3;

/// A name or a path is as long as a record allows: the answer to one that is too long is `NAMETOOLONG`, and not that the call
/// is garbage.
const MAX_NAME_BYTES: usize = 1 << 16;

/// A file handle as it came.
pub type Fh = Bytes;

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The directory.
    pub dir: Fh,
    /// The name.
    pub name: Bytes,
}

/// Attributes to set (`sattr3`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "as they are called everywhere")]
pub struct NewAttrs {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
}

/// What becomes of an object that has the name of a new file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// It is taken for the new file.
    Unchecked(NewAttrs),
    /// The call fails.
    Guarded(NewAttrs),
    /// The call fails, unless this verifier has made it.
    Exclusive(u64),
}

/// What a device or another special file is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Special {
    /// What it is to be: none for what can't be made so (`BADTYPE`).
    pub kind: Option<Kind>,
    /// Its attributes.
    pub attrs: NewAttrs,
    /// Major and minor number of a device.
    pub device: (u32, u32),
}

/// A part of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The directory.
    pub dir: Fh,
    /// After which entry.
    pub cookie: u64,
    /// The most bytes of names, numbers and cookies, for a listing with attributes.
    pub names_bytes: Option<u32>,
    /// The most bytes in all.
    pub bytes: u32,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the standard names them")]
pub enum Call {
    Null,
    GetAttr(Fh),
    SetAttr {
        object: Fh,
        attrs: NewAttrs,
        guard: Option<Stamp>,
    },
    Lookup(Place),
    Access {
        object: Fh,
        mask: u32,
    },
    Readlink(Fh),
    Read {
        file: Fh,
        offset: u64,
        count: u32,
    },
    Write {
        file: Fh,
        offset: u64,
        data: Bytes,
    },
    Create(Place, How),
    Mkdir(Place, NewAttrs),
    Symlink(Place, NewAttrs, Bytes),
    Mknod(Place, Special),
    Remove(Place),
    Rmdir(Place),
    Rename(Place, Place),
    Link {
        file: Fh,
        new: Place,
    },
    ReadDir(Listing),
    FsStat(Fh),
    FsInfo(Fh),
    PathConf(Fh),
    Commit(Fh),
}

/// Procedures by their numbers, and how many words of a refusal say that there are no attributes.
const REFUSAL_WORDS: [usize; 22] = [
    0, 0, 2, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 4, 3, 1, 1, 1, 1, 1, 2,
];

/// How many words follow the status of a refusal without attributes; none if there is no such procedure.
pub fn refusal_words(procedure: u32) -> Option<usize> {
    REFUSAL_WORDS.get(procedure as usize).copied()
}

impl Call {
    /// Reads the arguments of a procedure; none if there is no such procedure. What follows the arguments is not looked at.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn read(procedure: u32, r: &mut Reader) -> Option<Read<Call>> {
        refusal_words(procedure)?;
        Some(Call::read_known(procedure, r))
    }

    fn read_known(procedure: u32, r: &mut Reader) -> Read<Call> {
        Ok(match procedure {
            0 => Call::Null,
            1 => Call::GetAttr(handle(r)?),
            2 => Call::SetAttr {
                object: handle(r)?,
                attrs: attrs(r)?,
                guard: r.option(stamp)?,
            },
            3 => Call::Lookup(place(r)?),
            4 => Call::Access {
                object: handle(r)?,
                mask: r.u32()?,
            },
            5 => Call::Readlink(handle(r)?),
            6 => Call::Read {
                file: handle(r)?,
                offset: r.u64()?,
                count: r.u32()?,
            },
            7 => write(r)?,
            8 => Call::Create(place(r)?, how(r)?),
            9 => Call::Mkdir(place(r)?, attrs(r)?),
            10 => Call::Symlink(place(r)?, attrs(r)?, r.opaque(MAX_NAME_BYTES, "target")?),
            11 => Call::Mknod(place(r)?, special(r)?),
            12 => Call::Remove(place(r)?),
            13 => Call::Rmdir(place(r)?),
            14 => Call::Rename(place(r)?, place(r)?),
            15 => Call::Link {
                file: handle(r)?,
                new: place(r)?,
            },
            16 => Call::ReadDir(listing(r, false)?),
            17 => Call::ReadDir(listing(r, true)?),
            18 => Call::FsStat(handle(r)?),
            19 => Call::FsInfo(handle(r)?),
            20 => Call::PathConf(handle(r)?),
            // Of which part does not matter: all that was written is there.
            21 => Call::Commit(handle(r)?),
            _ => return Err(Malformed::Value("procedure")),
        })
    }

    /// Whether it changes anything. Such a call must not be done twice, nor late and out of turn.
    pub fn is_change(&self) -> bool {
        match self {
            Call::SetAttr { .. }
            | Call::Write { .. }
            | Call::Create(..)
            | Call::Mkdir(..)
            | Call::Symlink(..)
            | Call::Mknod(..)
            | Call::Remove(_)
            | Call::Rmdir(_)
            | Call::Rename(..)
            | Call::Link { .. } => true,
            Call::Null
            | Call::GetAttr(_)
            | Call::Lookup(_)
            | Call::Access { .. }
            | Call::Readlink(_)
            | Call::Read { .. }
            | Call::ReadDir(_)
            | Call::FsStat(_)
            | Call::FsInfo(_)
            | Call::PathConf(_)
            | Call::Commit(_) => false,
        }
    }

    /// The most bytes that its reply can have.
    pub fn reply_bytes(&self) -> usize {
        const SMALL: usize = 1024;
        match self {
            Call::Read { count, .. } => SMALL + MAX_IO_BYTES.min(*count as usize),
            Call::ReadDir(listing) => SMALL + MAX_IO_BYTES.min(listing.bytes as usize),
            Call::Readlink(_) => SMALL + quorate_files::layout::MAX_SYMLINK_BYTES,
            _ => SMALL,
        }
    }
}

fn handle(r: &mut Reader) -> Read<Fh> {
    r.opaque(MAX_HANDLE_BYTES, "handle")
}

fn place(r: &mut Reader) -> Read<Place> {
    Ok(Place {
        dir: handle(r)?,
        name: r.opaque(MAX_NAME_BYTES, "name")?,
    })
}

fn write(r: &mut Reader) -> Read<Call> {
    let (file, offset, count) = (handle(r)?, r.u64()?, r.u32()?);
    // As stable as can be, however stable it was asked for.
    if r.u32()? > 2 {
        return Err(Malformed::Value("stable_how"));
    }
    let mut data = r.opaque(crate::rpc::MAX_RECORD_BYTES, "data")?;
    // What is more than one may is written another time; the answer says how much it was.
    data.truncate(MAX_IO_BYTES.min(count as usize));
    Ok(Call::Write { file, offset, data })
}

fn stamp(r: &mut Reader) -> Read<Stamp> {
    let (secs, nanos) = (r.u32()?, r.u32()?);
    if nanos >= 1_000_000_000 {
        return Err(Malformed::Value("time"));
    }
    Ok(Stamp {
        secs: secs.into(),
        nanos,
    })
}

fn set_time(r: &mut Reader) -> Read<Option<SetTime>> {
    match r.u32()? {
        0 => Ok(None),
        1 => Ok(Some(SetTime::Now(Nothing))),
        2 => Ok(Some(SetTime::At(stamp(r)?))),
        _ => Err(Malformed::Value("time_how")),
    }
}

fn attrs(r: &mut Reader) -> Read<NewAttrs> {
    Ok(NewAttrs {
        mode: r.option(Reader::u32)?,
        uid: r.option(Reader::u32)?,
        gid: r.option(Reader::u32)?,
        size: r.option(Reader::u64)?,
        atime: set_time(r)?,
        mtime: set_time(r)?,
    })
}

fn how(r: &mut Reader) -> Read<How> {
    match r.u32()? {
        0 => Ok(How::Unchecked(attrs(r)?)),
        1 => Ok(How::Guarded(attrs(r)?)),
        2 => Ok(How::Exclusive(r.u64()?)),
        _ => Err(Malformed::Value("createmode3")),
    }
}

fn special(r: &mut Reader) -> Read<Special> {
    let kind = match r.u32()? {
        3 => Some(Kind::Block),
        4 => Some(Kind::Char),
        6 => Some(Kind::Socket),
        7 => Some(Kind::Fifo),
        1 | 2 | 5 => None,
        _ => return Err(Malformed::Value("ftype3")),
    };
    let attrs = match kind {
        Some(_) => attrs(r)?,
        None => NewAttrs::default(),
    };
    let device = match kind {
        Some(Kind::Block | Kind::Char) => (r.u32()?, r.u32()?),
        _ => (0, 0),
    };
    Ok(Special {
        kind,
        attrs,
        device,
    })
}

fn listing(r: &mut Reader, plus: bool) -> Read<Listing> {
    let (dir, cookie) = (handle(r)?, r.u64()?);
    // Cookies of a directory are good for ever: there is nothing to verify.
    let _verifier = r.u64()?;
    let names_bytes = match plus {
        true => Some(r.u32()?),
        false => None,
    };
    Ok(Listing {
        dir,
        cookie,
        names_bytes,
        bytes: r.u32()?,
    })
}
