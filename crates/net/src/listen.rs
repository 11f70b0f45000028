//! Listening: the address of a replica, and what accept(2) says.

use std::io;
use std::net::{TcpListener, ToSocketAddrs};

/// Why a replica can't take connections. The operator's fault, or the environment's.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another program has the port.
    #[error(
        "the address {0} is in use: stop the program that listens there (another run of this \
         replica?), or give this replica another address in a new group file"
    )]
    InUse(String),
    /// The address belongs to another machine.
    #[error(
        "the address {0} is not one of this machine: check the replica's address in the group file, \
         or say on which address to listen"
    )]
    NotHere(String),
    /// Low ports are not for everyone.
    #[error("this user may not listen on {0}: choose a port from 1024 up")]
    NotAllowed(String),
    /// Anything else.
    #[error("can't listen on {address}: {source}")]
    Io {
        /// The address.
        address: String,
        /// What the operating system said.
        source: io::Error,
    },
}

/// Takes the address on which a replica listens. May ask for the address of a name, and wait for that.
///
/// # Errors
/// Any [`ListenError`].
pub fn bind(address: &str) -> Result<TcpListener, ListenError> {
    let bind = || TcpListener::bind(address.to_socket_addrs()?.collect::<Vec<_>>().as_slice());
    bind().map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse(address.into()),
        io::ErrorKind::AddrNotAvailable => ListenError::NotHere(address.into()),
        io::ErrorKind::PermissionDenied => ListenError::NotAllowed(address.into()),
        _ => ListenError::Io {
            address: address.into(),
            source,
        },
    })
}

/// Whether what accept(2) has said goes by: a connection that was gone before it was taken, its network's errors, which accept(2) gives as its own, too many open
/// files, too little memory. Only a socket that can't be listened on does not. Who goes on waits a moment, since it may be said again at once.
pub fn is_passing(e: &io::Error) -> bool {
    const EBADF: i32 = 9;
    const EINVAL: i32 = 22;
    const ENOTSOCK: i32 = 88;
    const EOPNOTSUPP: i32 = 95;
    let is_final = |error| matches!(error, EBADF | EINVAL | ENOTSOCK | EOPNOTSUPP);
    !e.raw_os_error().is_some_and(is_final)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What accept(2) says of one connection, or of a moment, ends nobody else's.
    #[test]
    fn only_a_socket_of_no_use_ends_a_server() {
        // EPERM, EINTR, EAGAIN, ENOMEM, ENFILE, EMFILE, EPROTO, ENETDOWN, ENETUNREACH, ECONNABORTED, ENOBUFS, EHOSTUNREACH.
        for number in [1, 4, 11, 12, 23, 24, 71, 100, 101, 103, 105, 113] {
            assert!(
                is_passing(&io::Error::from_raw_os_error(number)),
                "{number}"
            );
        }
        for number in [9, 22, 88, 95] {
            assert!(
                !is_passing(&io::Error::from_raw_os_error(number)),
                "{number}"
            );
        }
    }
}
