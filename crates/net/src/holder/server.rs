//! The key holder's side.

use std::convert::Infallible;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_wire::{Decode, Digest, Encode, EpochCertificate, RecoveryStatement, ReplicaId};

use super::pace::{Pace, pace};
use super::talk::{Answer, Ask, Wanted, Whose};
use super::{ANSWER_TIMEOUT, ASK_TIMEOUT, Vault, VaultError, read_whole};
use crate::clock;
use crate::group::Group;
use crate::listen::is_passing;
use crate::log_limit::LogLimit;

/// Before connections are taken again, where one could not be.
const BREATH: Duration = Duration::from_millis(100);

/// Why a key holder can't go on.
#[derive(Debug, thiserror::Error)]
pub enum HolderError {
    /// The operator's mistake.
    #[error("{0} is there and is no socket: name another place for the socket (--socket)")]
    NotASocket(PathBuf),
    /// The operator's mistake.
    #[error("the path of the socket is too long, {0}: the system allows some 100 bytes (--socket)")]
    LongPath(PathBuf),
    /// See [`VaultError`].
    #[error(transparent)]
    Vault(#[from] VaultError),
    /// The environment's fault.
    #[error("{path}: {source}")]
    Io {
        /// The socket.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

/// A key and its counter, behind a socket.
#[derive(Debug)]
pub struct Holder<V> {
    listener: UnixListener,
    path: PathBuf,
    vault: V,
    group: Digest,
    replica: ReplicaId,
    user: u32,
    certificates: Pace,
    recoveries: Pace,
    log: LogLimit,
}

impl<V: Vault> Holder<V> {
    /// Of the group's replica `replica`. Listens at `path` for processes of the user `user`, in the place of a key holder that has ended. The socket itself is open to others
    /// only where that is another user than this process's; who connects is asked of the kernel (`SO_PEERCRED`).
    ///
    /// # Errors
    /// Any [`HolderError`] but `Vault`.
    pub fn bind(
        path: &Path,
        vault: V,
        (group, replica): (&Group, ReplicaId),
        user: u32,
    ) -> Result<Holder<V>, HolderError> {
        let io_error = |source: io::Error| match source.kind() {
            io::ErrorKind::InvalidInput => HolderError::LongPath(path.into()),
            _ => HolderError::Io {
                path: path.into(),
                source,
            },
        };
        match fs::symlink_metadata(path) {
            // Its owner has ended: this process has the lock of the key or its counter.
            Ok(there) if there.file_type().is_socket() => {
                fs::remove_file(path).map_err(io_error)?;
            }
            Ok(_) => return Err(HolderError::NotASocket(path.into())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(io_error(e)),
        }
        let listener = UnixListener::bind(path).map_err(io_error)?;
        let own = rustix::process::getuid().as_raw();
        let mode = if user == own { 0o600 } else { 0o666 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(io_error)?;
        let paced = || Pace::new(pace(group), clock::now());
        Ok(Holder {
            listener,
            path: path.into(),
            vault,
            group: group.id(),
            replica,
            user,
            certificates: paced(),
            recoveries: paced(),
            log: LogLimit::default(),
        })
    }

    /// Answers for ever, one ask after the other.
    ///
    /// # Errors
    /// When the key or its counter fails, or the socket; not where the disk refuses a write, such as when it is full, or there are no files to open for a
    /// moment. Whoever asks badly costs at most a second.
    pub fn serve(mut self) -> Result<Infallible, HolderError> {
        loop {
            let (stream, _) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(e) if is_passing(&e) => {
                    if let Some(more) = self.log.pass() {
                        tracing::warn!(more, "a connection can't be taken: {e}");
                    }
                    std::thread::sleep(BREATH);
                    continue;
                }
                Err(source) => {
                    return Err(HolderError::Io {
                        path: self.path.clone(),
                        source,
                    });
                }
            };
            match self.on_connection(stream) {
                Ok(()) => {}
                Err(Refusal::Theirs(what)) => {
                    if let Some(more) = self.log.pass() {
                        tracing::warn!(more, "an ask was refused: {what}");
                    }
                }
                // The replica's user may have filled the disk: who ends for that has to be started again by somebody.
                Err(Refusal::Ours(e)) if e.may_pass() => {
                    if let Some(more) = self.log.pass() {
                        tracing::error!(more, "nothing is signed for now: {e}");
                    }
                }
                Err(Refusal::Ours(e)) => return Err(e.into()),
            }
        }
    }

    fn on_connection(&mut self, mut stream: UnixStream) -> Result<(), Refusal> {
        let theirs = |e: io::Error| Refusal::Theirs(e.to_string());
        let peer = rustix::net::sockopt::socket_peercred(&stream);
        let uid = peer.map_err(|e| theirs(e.into()))?.uid.as_raw();
        if uid != self.user {
            let user = self.user;
            let what = format!("it came from user {uid}, and this key works for user {user}");
            return Err(Refusal::Theirs(what));
        }
        let ask = read_whole(&mut stream, ASK_TIMEOUT).map_err(theirs)?;
        let ask = Ask::from_slice(&ask).map_err(|e| Refusal::Theirs(e.to_string()))?;
        let answer = self.answer(&ask)?;
        stream
            .set_write_timeout(Some(ANSWER_TIMEOUT))
            .map_err(theirs)?;
        stream.write_all(&answer.to_bytes()).map_err(theirs)
    }

    fn answer(&mut self, ask: &Ask) -> Result<Answer, Refusal> {
        let (group, replica) = (self.group, self.replica);
        if (ask.group, ask.replica) != (group, replica) {
            return Ok(Answer::NotMine(Whose { group, replica }));
        }
        if let Some(wait) = self.waits(&ask.statement) {
            return Ok(Answer::TooOften(wait.as_millis() as u64));
        }
        let counter = self.vault.advance().map_err(Refusal::Ours)?;
        let identity = self.vault.identity();
        let sign = |digest: &Digest| self.vault.sign(digest);
        let answer = match ask.statement {
            Wanted::Certificate(epoch) => {
                EpochCertificate::sign_with(sign, group, replica, counter, epoch)
                    .map(Answer::Certificate)
            }
            Wanted::Recovery(()) => {
                RecoveryStatement::sign_with(sign, &identity, group, replica, counter)
                    .map(Answer::Recovery)
            }
        };
        let answer = answer.map_err(Refusal::Ours)?;
        self.pace(&ask.statement).took(clock::now());
        Ok(answer)
    }

    fn pace(&mut self, of: &Wanted) -> &mut Pace {
        match of {
            Wanted::Certificate(_) => &mut self.certificates,
            Wanted::Recovery(()) => &mut self.recoveries,
        }
    }

    /// For how long no other one of this kind is signed, since there were so many of late.
    fn waits(&mut self, kind: &Wanted) -> Option<Duration> {
        let wait = self.pace(kind).wait(clock::now());
        if wait.is_zero() {
            return None;
        }
        // Not less, for what is lost in milliseconds.
        let wait = wait + Duration::from_millis(1);
        if let Some(more) = self.log.pass() {
            let what = match kind {
                Wanted::Certificate(_) => "to have keys certified",
                Wanted::Recovery(()) => "to say that it recovers",
            };
            tracing::warn!(
                more,
                "the replica asks {what} more often than it needs to, unless it is started time and again: it is signed in {:.1} s",
                wait.as_secs_f64()
            );
        }
        Some(wait)
    }
}

enum Refusal {
    Theirs(String),
    Ours(VaultError),
}
