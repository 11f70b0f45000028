//! A Quorate group in place of a server: calls go to an NFS front in this process, and from there to the group's replicas.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use quorate_client::{Session, Volume};
use quorate_files::Ino;
use quorate_net::{Group, GroupError, Identity, KeyError, keys};
use quorate_nfs::{Answers, Exports, Front, Secrets, Settings};
use serde::Deserialize;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use super::{DOWN_TIME, Load, MAX_CALLS, Sending};

/// How long a call waits for the group: less than the router waits for a server.
const PATIENCE: Duration = Duration::from_secs(15);
/// Where calls come from, as the front sees it: this machine's superuser.
const PEER: ([u8; 4], u16) = ([127, 0, 0, 1], 1);
/// All of it, with everybody's ids as they are.
const EXPORTS: &str = "[[export]]\npath = \"/\"\nsquash = \"no_root_squash\"\n";

/// Why a group can't be a volume.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// Its file.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The key file.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// It is for routers.
    #[error("the group {0} keeps no files")]
    NoFiles(String),
    /// The key is no client's.
    #[error("{key} is not the key of a client of the group {group}: say which is, as ?key=FILE")]
    NotAClient {
        /// The group's name.
        group: String,
        /// The key file.
        key: String,
    },
    /// The system.
    #[error("connecting to a group: {0}")]
    Io(#[from] std::io::Error),
    /// The text above; a mistake of ours.
    #[error("exports: {0}")]
    Exports(#[from] toml::de::Error),
}

#[derive(Deserialize)]
struct Offered {
    export: Exports,
}

/// What a group and a key file say, where the one can be a volume for the other.
fn read(place: &str) -> Result<(Group, quorate_wire::KeyPair), MemberError> {
    let (group, key) = place.split_once('\n').unwrap_or((place, ""));
    let group = Group::load(Path::new(group))?;
    if group.is_coordinator() {
        return Err(MemberError::NoFiles(group.name().into()));
    }
    let pair = keys::load(Path::new(key))?;
    if !group.is_client(&pair.public()) {
        return Err(MemberError::NotAClient {
            group: group.name().into(),
            key: key.into(),
        });
    }
    Ok((group, pair))
}

/// Whether a group can be a volume, as far as its files tell.
///
/// # Errors
/// [`MemberError`].
pub fn check(place: &str) -> Result<(), MemberError> {
    read(place).map(drop)
}

/// A session with a group, and what makes handles of its objects. One for all that this process asks of the group: a key has
/// [`SESSIONS_PER_CLIENT`](quorate_execution::SESSIONS_PER_CLIENT) at once, and one more would end another's.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    /// The session.
    pub session: Session,
    /// Of the key and the group alone: handles hold for each router that has the key.
    pub secrets: Secrets,
}

fn connect(place: &str) -> Result<Opened, MemberError> {
    let (group, pair) = read(place)?;
    let session = Session::connect(&group, &Identity::new(&pair))?;
    let secrets = Secrets::new(&pair.seed(), &group.id());
    Ok(Opened { session, secrets })
}

fn open(place: &str) -> Result<(Opened, Arc<Front>), MemberError> {
    let opened = connect(place)?;
    let offered: Offered = toml::from_str(EXPORTS)?;
    let settings = Settings {
        exports: offered.export,
        root: Ino::ROOT,
        secrets: opened.secrets.clone(),
        patience: PATIENCE,
    };
    let front = Front::new(Volume::new(opened.session.clone()), settings);
    Ok((opened, Arc::new(front)))
}

/// Answers calls while there are any.
pub(super) async fn serve(
    place: String,
    mut calls: mpsc::Receiver<Sending>,
    load: Arc<Load>,
    told: Arc<OnceLock<Opened>>,
) {
    let (opened, front) = loop {
        match open(&place) {
            Ok(found) => break found,
            Err(error) => {
                tracing::warn!(%error, "a volume");
                // Those that come meanwhile are told at once.
                let refused = async { while calls.recv().await.is_some() {} };
                if timeout(DOWN_TIME, refused).await.is_ok() {
                    return;
                }
            }
        }
    };
    // Nobody else sets it.
    let _ = told.set(opened.clone());
    load.up.fetch_add(1, Ordering::Relaxed);
    answer(&front, &mut calls).await;
    opened.session.close().await;
}

async fn answer<A: Answers>(front: &Arc<A>, calls: &mut mpsc::Receiver<Sending>) {
    let places = Arc::new(Semaphore::new(MAX_CALLS));
    let mut xid = 0u32;
    while let Some(mut next) = calls.recv().await {
        xid = xid.wrapping_add(1);
        next.record[..4].copy_from_slice(&xid.to_be_bytes());
        let Ok(place) = places.clone().acquire_owned().await else {
            break;
        };
        // Whoever has given up meanwhile looks at what was done; nothing may come after that.
        if next.reply.is_closed() {
            continue;
        }
        let front = front.clone();
        tokio::spawn(async move {
            if let Some(call) = front.parse(next.record.into()) {
                let reply = front.answer(SocketAddr::from(PEER).into(), call).await;
                // Whoever asked may have given up.
                let _ = next.reply.send(reply.into());
            }
            drop(place);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Mutex;

    use bytes::Bytes;
    use quorate_nfs::Peer;
    use tokio::sync::oneshot;

    use super::*;

    /// Notes calls, and answers as many as it is let.
    struct Noting {
        seen: Mutex<Vec<u8>>,
        may_go: Semaphore,
    }

    impl Answers for Noting {
        type Call = u8;

        fn admits(&self, _: IpAddr) -> bool {
            true
        }

        fn parse(&self, record: Bytes) -> Option<u8> {
            record.last().copied()
        }

        fn reply_bytes(&self, _: &u8) -> usize {
            1
        }

        async fn answer(self: &Arc<Self>, _: Peer, call: u8) -> Vec<u8> {
            self.seen.lock().unwrap().push(call);
            self.may_go.acquire().await.unwrap().forget();
            vec![call]
        }
    }

    /// A call whose caller has given up before there was a place for it is not made any more.
    #[tokio::test]
    async fn what_nobody_waits_for_is_not_begun() {
        let front = Arc::new(Noting {
            seen: Mutex::default(),
            may_go: Semaphore::new(0),
        });
        let (sender, mut calls) = mpsc::channel(MAX_CALLS + 2);
        let call = |number: u8| {
            let (reply, told) = oneshot::channel();
            let record = vec![0, 0, 0, 0, number];
            sender.try_send(Sending { record, reply }).unwrap();
            told
        };
        let busy: Vec<_> = (0..MAX_CALLS).map(|_| call(1)).collect();
        drop(call(2));
        let last = call(3);
        let (answering, all) = (front.clone(), front.clone());
        let answering = tokio::spawn(async move { answer(&answering, &mut calls).await });
        while all.seen.lock().unwrap().len() < MAX_CALLS {
            tokio::task::yield_now().await;
        }
        front.may_go.add_permits(MAX_CALLS + 2);
        assert_eq!(last.await.unwrap()[..], [3]);
        for one in busy {
            assert_eq!(one.await.unwrap()[..], [1]);
        }
        drop(sender);
        answering.await.unwrap();
        assert!(!front.seen.lock().unwrap().contains(&2));
    }
}
