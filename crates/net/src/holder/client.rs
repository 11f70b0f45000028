//! The replica's side.

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_wire::{
    Decode, Digest, Encode, EpochCertificate, IdentityKey, PublicKey, RecoveryStatement, ReplicaId,
};

use super::talk::{Answer, Ask, Wanted, Whose};
use super::{ANSWER_TIMEOUT, ASK_TIMEOUT, read_whole};
use crate::group::Group;

/// Why there is no statement.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody listens there.
    #[error(
        "no key holder answers at {0}: start it (`quorate keyholder`), or say where its socket is (--key-holder)"
    )]
    NotThere(PathBuf),
    /// This user can't get at the socket.
    #[error(
        "this user may not reach the key holder's socket at {0}: the directories above must let it through (or put the socket elsewhere, `quorate \
         keyholder --socket`), and the key holder must work for it (`quorate keyholder --user`)"
    )]
    Shut(PathBuf),
    /// The key holder has refused this user, or can't sign now.
    #[error(
        "the key holder at {0} gives no answer: it may work for another user (`quorate keyholder --user`), or its disk be full; what it says \
         tells which"
    )]
    NotAllowed(PathBuf),
    /// The operator's mistake.
    #[error(
        "the key holder at {path} has the key of replica {replica} in the group {group}: name the socket of this replica's own (--key-holder)"
    )]
    AnotherReplica {
        /// The socket.
        path: PathBuf,
        /// Of which group.
        group: Digest,
        /// Whose key it has.
        replica: ReplicaId,
    },
    /// The key holder has signed too many of late.
    #[error(
        "the key holder at {path} signs no more for {} s: in this replica's name it was asked more often than a replica needs. Where this one was not started \
         time and again, and does not renew its keys too often (--key-refresh), a process of its user asks beside it",
        wait.as_secs_f64()
    )]
    TooOften {
        /// The socket.
        path: PathBuf,
        /// When it may be asked again.
        wait: Duration,
    },
    /// What it says is no statement of this replica's identity.
    #[error(
        "the key holder at {0} gives no right answer: is it another program, or another version?"
    )]
    Wrong(PathBuf),
    /// The environment's fault.
    #[error("asking the key holder at {path}: {source}")]
    Io {
        /// The socket.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

/// How a replica's process reaches its key holder.
#[derive(Clone, Debug)]
pub struct HolderClient {
    path: PathBuf,
    group: Digest,
    replica: ReplicaId,
    identities: Vec<IdentityKey>,
}

impl HolderClient {
    /// Of the group's replica `replica`, at the socket `path`; `None` in a group without key holders.
    pub fn new(path: &Path, group: &Group, replica: ReplicaId) -> Option<HolderClient> {
        Some(HolderClient {
            path: path.into(),
            group: group.id(),
            replica,
            identities: group.identities()?.to_vec(),
        })
    }

    /// Has an epoch key certified; waits for that, seconds if need be.
    ///
    /// # Errors
    /// Any [`AskError`].
    pub fn certify(&self, epoch: PublicKey) -> Result<EpochCertificate, AskError> {
        match self.ask(Wanted::Certificate(epoch))? {
            Answer::Certificate(certificate)
                if certificate.epoch == epoch
                    && certificate.replica == self.replica
                    && certificate.verify(&self.group, &self.identities).is_ok() =>
            {
                Ok(certificate)
            }
            other => Err(self.refused(&other)),
        }
    }

    /// Has it said that the replica recovers; waits for that, seconds if need be.
    ///
    /// # Errors
    /// Any [`AskError`].
    pub fn recover(&self) -> Result<RecoveryStatement, AskError> {
        match self.ask(Wanted::Recovery(()))? {
            Answer::Recovery(statement)
                if statement.replica == self.replica
                    && statement.verify(&self.group, &self.identities).is_ok() =>
            {
                Ok(statement)
            }
            other => Err(self.refused(&other)),
        }
    }

    fn refused(&self, answer: &Answer) -> AskError {
        let path = self.path.clone();
        match answer {
            Answer::NotMine(Whose { group, replica }) => AskError::AnotherReplica {
                path,
                group: *group,
                replica: *replica,
            },
            Answer::TooOften(ms) => AskError::TooOften {
                path,
                wait: Duration::from_millis(*ms),
            },
            _ => AskError::Wrong(path),
        }
    }

    fn ask(&self, statement: Wanted) -> Result<Answer, AskError> {
        let ask = Ask {
            group: self.group,
            replica: self.replica,
            statement,
        };
        let stream = UnixStream::connect(&self.path).map_err(|e| match e.kind() {
            io::ErrorKind::PermissionDenied => AskError::Shut(self.path.clone()),
            _ => self.failed(e),
        })?;
        let answer = exchange(stream, &ask.to_bytes()).map_err(|e| self.failed(e))?;
        Answer::from_slice(&answer).map_err(|_| AskError::Wrong(self.path.clone()))
    }

    fn failed(&self, source: io::Error) -> AskError {
        let path = self.path.clone();
        match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => AskError::NotThere(path),
            io::ErrorKind::PermissionDenied => AskError::NotAllowed(path),
            io::ErrorKind::InvalidData => AskError::Wrong(path),
            _ => AskError::Io { path, source },
        }
    }
}

fn exchange(mut stream: UnixStream, ask: &[u8]) -> io::Result<Vec<u8>> {
    stream.set_write_timeout(Some(ASK_TIMEOUT))?;
    // Who is refused may find the connection closed at any step from here on, and that is the answer.
    let closed = |e: io::Error| match e.kind() {
        io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::NotConnected => io::ErrorKind::PermissionDenied.into(),
        _ => e,
    };
    stream.write_all(ask).map_err(closed)?;
    stream.shutdown(Shutdown::Write).map_err(closed)?;
    let answer = read_whole(&mut stream, ANSWER_TIMEOUT).map_err(closed)?;
    match answer.is_empty() {
        true => Err(io::ErrorKind::PermissionDenied.into()),
        false => Ok(answer),
    }
}
