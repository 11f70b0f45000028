//! What a call comes to (`nfsstat3`, RFC 1813, 2.6), and which of the service's errors is which.

use quorate_client::CallError;
use quorate_files::Errno;

/// The end of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs, reason = "the standard names them")]
pub enum Status {
    Ok = 0,
    Perm = 1,
    NoEnt = 2,
    Io = 5,
    NxIo = 6,
    Acces = 13,
    Exist = 17,
    XDev = 18,
    NotDir = 20,
    IsDir = 21,
    Inval = 22,
    FBig = 27,
    NoSpc = 28,
    RoFs = 30,
    MLink = 31,
    NameTooLong = 63,
    NotEmpty = 66,
    DQuot = 69,
    Stale = 70,
    BadHandle = 10001,
    NotSync = 10002,
    BadCookie = 10003,
    NotSupp = 10004,
    TooSmall = 10005,
    ServerFault = 10006,
    BadType = 10007,
    Jukebox = 10008,
}

impl Status {
    const ALL: [Status; 27] = [
        Status::Ok,
        Status::Perm,
        Status::NoEnt,
        Status::Io,
        Status::NxIo,
        Status::Acces,
        Status::Exist,
        Status::XDev,
        Status::NotDir,
        Status::IsDir,
        Status::Inval,
        Status::FBig,
        Status::NoSpc,
        Status::RoFs,
        Status::MLink,
        Status::NameTooLong,
        Status::NotEmpty,
        Status::DQuot,
        Status::Stale,
        Status::BadHandle,
        Status::NotSync,
        Status::BadCookie,
        Status::NotSupp,
        Status::TooSmall,
        Status::ServerFault,
        Status::BadType,
        Status::Jukebox,
    ];

    /// The status with a number, as another server has sent it; `ServerFault` for numbers that the standard does not have.
    pub fn of(number: u32) -> Status {
        let found = Status::ALL.into_iter().find(|s| *s as u32 == number);
        found.unwrap_or(Status::ServerFault)
    }
}

impl From<Errno> for Status {
    fn from(errno: Errno) -> Status {
        match errno {
            Errno::EPERM => Status::Perm,
            Errno::ENOENT => Status::NoEnt,
            Errno::ENXIO => Status::NxIo,
            Errno::EACCES => Status::Acces,
            Errno::EEXIST => Status::Exist,
            Errno::EXDEV => Status::XDev,
            Errno::ENOTDIR => Status::NotDir,
            Errno::EISDIR => Status::IsDir,
            Errno::EINVAL | Errno::ELOOP => Status::Inval,
            Errno::EFBIG => Status::FBig,
            Errno::ENOSPC => Status::NoSpc,
            Errno::EROFS => Status::RoFs,
            Errno::EMLINK => Status::MLink,
            Errno::ENAMETOOLONG => Status::NameTooLong,
            Errno::ENOTEMPTY => Status::NotEmpty,
            Errno::EDQUOT => Status::DQuot,
            Errno::ESTALE => Status::Stale,
            Errno::ENOTSUP => Status::NotSupp,
            // Only a guard that does not hold: locks are not asked for here.
            Errno::EAGAIN => Status::NotSync,
            Errno::EBUSY => Status::Jukebox,
            // What no call that is made here comes to.
            Errno::E2BIG
            | Errno::EBADF
            | Errno::ENFILE
            | Errno::EMFILE
            | Errno::ERANGE
            | Errno::EDEADLK
            | Errno::ENOLCK
            | Errno::ENODATA
            | Errno::EPROTO
            | Errno::EOVERFLOW => Status::ServerFault,
        }
    }
}

impl From<CallError> for Status {
    fn from(error: CallError) -> Status {
        match error {
            CallError::Refused(errno) => errno.into(),
            // It may have been done, or not: not to be tried again as if nothing had happened.
            CallError::Lost => Status::Io,
            CallError::Garbled => Status::ServerFault,
        }
    }
}
