//! The address on which a replica listens.

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
