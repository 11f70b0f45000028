//! The replica's keys on links where it has a key holder: one that is certified at the start, and a new one every so often.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use quorate_net::holder::{AskError, HolderClient};
use quorate_net::{Group, Identity, generate, threads};
use quorate_wire::{RecoveryStatement, ReplicaId};

use super::core_thread::Wake;
use super::{DaemonError, Mailbox};

/// Which certificates of the others were seen, in the replica's directory.
pub(super) const SEEN: &str = "epochs";
/// What was seen is learnt anew by a replica that does not believe what it has written.
pub(super) fn forget_seen(data: &Path) -> io::Result<()> {
    match fs::remove_file(data.join(SEEN)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// How long a key holder that is started together with the replica may take to listen.
const STARTS_IN: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(100);
/// A certificate that was not to be had is asked for again after this, or sooner where keys are renewed more often.
const AGAIN: Duration = Duration::from_secs(1);
/// For so long a replica that starts waits for a key holder that has signed too much of late: as long as that can make it wait, twice.
const PACED: Duration = Duration::from_secs(60);

/// How a replica's process has the keys of its links certified.
#[derive(Clone, Debug)]
pub struct KeyHolder {
    /// The socket of its key holder.
    pub socket: PathBuf,
    /// After how long it takes another key; 0: never.
    pub refresh: Duration,
}

/// Keys that follow the first one. The thread that makes them ends some time after this is dropped.
#[derive(Debug)]
pub(super) struct Renewals {
    _stop: Sender<()>,
}

/// The first key, certified. Waits for a key holder that starts at the same time.
pub(super) fn first(
    holder: Option<&KeyHolder>,
    group: &Group,
    me: ReplicaId,
) -> Result<(Identity, HolderClient), DaemonError> {
    let holder = holder.ok_or(DaemonError::NoKeyHolder)?;
    let client = HolderClient::new(&holder.socket, group, me).ok_or(DaemonError::NoKeyHolder)?;
    let mut left = STARTS_IN;
    loop {
        match paced(|| next(&client)) {
            Err(DaemonError::KeyHolder(AskError::NotThere(_))) if !left.is_zero() => {
                std::thread::sleep(LOOK);
                left = left.saturating_sub(LOOK);
            }
            Ok(identity) => return Ok((identity, client)),
            Err(e) => return Err(e),
        }
    }
}

/// Its identity's word that the replica recovers.
pub(super) fn recovers(client: &HolderClient) -> Result<RecoveryStatement, DaemonError> {
    paced(|| Ok(client.recover()?))
}

/// Asks again when the key holder signs again, where it has signed too much of late: whoever had the replica before this process may have asked for all that there
/// was.
fn paced<T>(ask: impl Fn() -> Result<T, DaemonError>) -> Result<T, DaemonError> {
    let mut left = PACED;
    loop {
        match ask() {
            Err(DaemonError::KeyHolder(e @ AskError::TooOften { wait, .. })) if wait <= left => {
                tracing::warn!("the start waits: {e}");
                std::thread::sleep(wait);
                left -= wait;
            }
            done => return done,
        }
    }
}

/// A new key, certified.
fn next(client: &HolderClient) -> Result<Identity, DaemonError> {
    let key = generate()?;
    let certificate = client.certify(key.public())?;
    Ok(Identity::of_epoch(&key, certificate))
}

/// Takes another key each time that `refresh` has passed. A key holder that fails is told in the log, and asked again; meanwhile the
/// replica goes on with the key that it has.
pub(super) fn renew(
    client: HolderClient,
    refresh: Duration,
    mailbox: Mailbox,
) -> io::Result<Option<Renewals>> {
    if refresh.is_zero() {
        return Ok(None);
    }
    let (stop, stopped) = mpsc::channel();
    let died = mailbox.died();
    let mut wait = refresh;
    let work = move || {
        while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            wait = match next(&client) {
                Ok(identity) => {
                    tracing::debug!("the keys of links are renewed");
                    mailbox.put(Wake::Keys(Box::new(identity)));
                    refresh
                }
                Err(e) => {
                    tracing::warn!("the keys of links are not renewed: {e}");
                    match e {
                        DaemonError::KeyHolder(AskError::TooOften { wait, .. }) => wait,
                        _ => refresh.min(AGAIN),
                    }
                }
            };
        }
    };
    threads::spawn("keys", died, work)?;
    Ok(Some(Renewals { _stop: stop }))
}
