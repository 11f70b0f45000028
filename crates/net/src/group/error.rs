//! What can be wrong with a group file.

use std::io;
use std::path::{Path, PathBuf};

use quorate_wire::ReplicaId;

/// Why there is no group.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The operator named a file that is not there.
    #[error("there is no group file {0}: copy it from another member, or run `quorate init`")]
    Missing(PathBuf),
    /// The operator named another file, or a directory.
    #[error(
        "{0} is no group file: give the file group.toml that `quorate init` or `quorate up` has written"
    )]
    NotAGroup(PathBuf),
    /// The file is another user's.
    #[error(
        "this user may not read the group file {0}: run this as its owner, or have it made readable"
    )]
    NotAllowed(PathBuf),
    /// Something is missing from the file, or something else is in it: the fault of whoever wrote it.
    #[error(
        "{path} is not a whole group file: copy it again from another member, or run `quorate init` for a new group. \
         This is wrong with it:\n{message}"
    )]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and what, in several lines.
        message: String,
    },
    /// The file says something that no group can be.
    #[error("{path}, line {line}: {problem}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong and what to do.
        problem: Problem,
    },
    /// Somebody edited the file.
    #[error(
        "{path}, line {line}: the group file was changed after it was made (id does not match): \
         restore it from another replica, or run `quorate init` for a new group"
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// The line of the id, from 1.
        line: usize,
    },
    /// The environment's fault.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

impl GroupError {
    /// Of a file that can't be read.
    pub(super) fn from_read(path: &Path, source: io::Error) -> GroupError {
        use io::ErrorKind::{InvalidData, IsADirectory, NotFound, PermissionDenied};
        match source.kind() {
            NotFound => GroupError::Missing(path.into()),
            PermissionDenied => GroupError::NotAllowed(path.into()),
            InvalidData | IsADirectory => GroupError::NotAGroup(path.into()),
            _ => GroupError::Io {
                path: path.into(),
                source,
            },
        }
    }
}

/// What keeps a list of members from being a group. The fault of whoever made the list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Problem {
    #[error(
        "`{0}` is not a name: use up to 64 letters, digits, dots, dashes, underscores or at signs"
    )]
    BadName(String),
    #[error(
        "{0} replicas make no group: list 1, 4, 7, 10 ... replicas (3f+1 bear f faulty ones, up to 64)"
    )]
    NotAQuorum(usize),
    #[error("replica {found} stands where replica {expected} belongs: list them in order, from 0")]
    OutOfOrder { expected: usize, found: u64 },
    #[error(
        "`{0}` is not a key: give the 64 hexadecimal digits that `quorate keygen` shows, or for a TPM what `quorate keyholder --enroll` shows"
    )]
    BadKey(String),
    #[error("`{0}` is not an id of 64 hexadecimal digits: restore the file from another replica")]
    BadId(String),
    #[error("this key is listed twice: each replica and client needs a key of its own")]
    KeyTwice,
    #[error("the owner's key is a replica's: give the volume's owner a key of its own")]
    OwnerIsReplica,
    #[error("either all replicas have an identity, the key of their key holder, or none has")]
    SomeIdentities,
    #[error(
        "replicas that have key holders sign with keys that pass, and what is signed in a group with authentication \"signature\" \
         is to last: leave out the identities (`quorate init` and `quorate up` with --no-key-holders), or write \"mac\""
    )]
    SignedWithHolders,
    #[error("`{0}` is not an address: give host:port, for instance 192.0.2.7:7000 or [::1]:7000")]
    BadAddress(String),
    #[error("there is no replica {0}: give a number that the group file lists")]
    NoSuchReplica(ReplicaId),
    #[error("the address {0} is listed twice: each replica needs an address of its own")]
    AddressTwice(String),
    #[error("the client name {0} is listed twice: give each client a name of its own")]
    NameTwice(String),
    #[error("{0} clients are too many: a group file lists up to 4096")]
    TooManyClients(usize),
    #[error("`{0}` is not a capacity: give for instance \"500 GiB\" or \"1 TiB\"")]
    BadCapacity(String),
    #[error("room for no file at all: give at least 1 byte and 1 inode")]
    NoRoom,
    #[error("`{0}` is not a purpose: leave it out, or write \"demonstration\" or \"coordinator\"")]
    BadPurpose(String),
    #[error("`{0}` is not a way to authenticate: write \"mac\" or \"signature\"")]
    BadAuthentication(String),
    #[error(
        "keys are not renewed every {0} ms: give from 1000 to 3600000 as key_refresh_ms, or leave it out"
    )]
    BadKeyRefresh(u64),
    #[error("replicas without key holders have no keys that are renewed: leave out key_refresh_ms")]
    RefreshWithoutHolders,
    #[error("`{0}` is not a durability: write \"disk\" or \"memory\"")]
    BadDurability(String),
}
