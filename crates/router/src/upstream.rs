//! Servers: connections, and groups that are reached in this process.

mod datagrams;
mod line;
mod member;
mod server;

pub(crate) use datagrams::{bind_low, random_number};
pub(crate) use line::connect;
pub use line::{Line, Passed, Unsent, Waiter};
pub(crate) use member::Opened;
pub use member::{MemberError, check as check_group};
pub(crate) use server::Server;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_files::Who;
use quorate_nfs::call;
use quorate_nfs::rpc::{MAX_AUTH_BYTES, MAX_GROUPS};
use quorate_nfs::status::Status;
use quorate_nfs::xdr::{Malformed, Read, View, Writer, opaque_bytes};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::ask::{Ask, Given, Servers};
use crate::layout::Volume;

/// The most calls that wait for a group; further ones wait to be taken.
const MAX_CALLS: usize = 256;
/// How long no server is tried that could not be reached.
const DOWN_TIME: Duration = Duration::from_millis(500);
/// How long a server may take to answer.
pub(crate) const ANSWER_TIME: Duration = Duration::from_secs(20);
/// How long calls wait for the end of a move.
const PATIENCE: Duration = Duration::from_secs(5);
/// Before something is tried again.
const PAUSE: Duration = Duration::from_millis(500);

/// How the address of a group begins; its file and a key file follow, with a line between them.
pub const GROUP: &str = "group:";

/// A call that is to go to a group.
#[derive(Debug)]
struct Sending {
    /// With no number yet.
    record: Vec<u8>,
    reply: oneshot::Sender<Bytes>,
}

/// How a server is doing.
#[derive(Debug, Default)]
pub struct Load {
    /// How many connections there are to it: each thread has its own.
    pub up: AtomicUsize,
    /// How many calls were sent.
    pub calls: AtomicU64,
    /// How many got no answer.
    pub unanswered: AtomicU64,
    /// How long the others took.
    pub times: Times,
}

/// How long calls took: how many up to each power of two of microseconds.
#[derive(Debug, Default)]
pub struct Times([AtomicU64; 32]);

impl Times {
    /// Takes in one.
    fn add(&self, time: Duration) {
        let micros = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        let index = (u32::BITS - micros.leading_zeros()).min(31);
        self.0[index as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How many microseconds so many of a hundred took at most; 0 if there were none.
    pub fn quantile(&self, percent: u64) -> u64 {
        let counts: Vec<u64> = self.0.iter().map(|n| n.load(Ordering::Relaxed)).collect();
        let wanted = (counts.iter().sum::<u64>() * percent).div_ceil(100);
        let mut seen = 0;
        for (index, count) in counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return 1 << index;
            }
        }
        0
    }
}

/// A server's program at an address.
#[derive(Clone, Debug)]
pub struct Upstream {
    way: Way,
    /// How it is doing.
    pub load: Arc<Load>,
}

#[derive(Clone, Debug)]
enum Way {
    Server(Arc<Server>),
    /// Calls to it, and the one session with it.
    Group(mpsc::Sender<Sending>, Arc<OnceLock<Opened>>),
}

/// It is not known whether the call was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server does not answer")]
pub struct Unanswered;

impl Upstream {
    /// A server at `host:port`, or a Quorate group ([`Location::nfs`](crate::config::Location::nfs)); it is connected to when there is a call.
    pub fn start(address: String) -> Upstream {
        Upstream::open(address, false)
    }

    /// The same. `speaks_udp`: over UDP too, at the same port.
    pub fn open(address: String, speaks_udp: bool) -> Upstream {
        let load = Arc::new(Load::default());
        let way = match address.strip_prefix(GROUP) {
            Some(place) => {
                let (calls, incoming) = mpsc::channel(MAX_CALLS);
                let opened = Arc::<OnceLock<Opened>>::default();
                let serving = member::serve(place.into(), incoming, load.clone(), opened.clone());
                tokio::spawn(serving);
                Way::Group(calls, opened)
            }
            None => Way::Server(Arc::new(Server::new(address, speaks_udp, load.clone()))),
        };
        Upstream { way, load }
    }

    /// The session with a group, if this is one that has been called.
    pub(crate) fn opened(&self) -> Option<Opened> {
        match &self.way {
            Way::Group(_, opened) => opened.get().cloned(),
            Way::Server(_) => None,
        }
    }

    /// Calls a procedure of a program on somebody's behalf; gives its results.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub async fn call(
        &self,
        program: (u32, u32),
        procedure: u32,
        who: &Who,
        arguments: &[u8],
    ) -> Result<Bytes, Unanswered> {
        self.load.calls.fetch_add(1, Ordering::Relaxed);
        let write = |w: &mut Writer| {
            head(w, program, procedure, (who.uid, who.gid, &who.groups));
            w.fixed(arguments);
        };
        let answer = async {
            match &self.way {
                Way::Server(server) => server.call(write).await,
                Way::Group(calls, _) => {
                    let (reply, answered) = oneshot::channel();
                    let mut w = Writer::default();
                    w.u32(0);
                    write(&mut w);
                    let (record, start) = (w.out, now());
                    calls.send(Sending { record, reply }).await.ok()?;
                    let answer = answered.await.ok()?;
                    self.load.times.add(start.elapsed());
                    Some(answer)
                }
            }
        };
        let reply = timeout(ANSWER_TIME, answer).await.ok().flatten();
        let answer = reply.and_then(|reply| Some(reply.slice_ref(results(&reply).ok()?)));
        answer.ok_or_else(|| {
            self.load.unanswered.fetch_add(1, Ordering::Relaxed);
            Unanswered
        })
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "how long calls take is told, and decides nothing"
)]
fn now() -> Instant {
    Instant::now()
}

/// Appends the head of a call from after its number on, with an `AUTH_SYS` credential of a user, a group and further groups.
pub(crate) fn head(
    w: &mut Writer,
    (program, version): (u32, u32),
    procedure: u32,
    (uid, gid, groups): (u32, u32, &[u32]),
) {
    const MACHINE: &[u8; 13] = b"quorate-route";
    let groups = &groups[..groups.len().min(MAX_GROUPS)];
    // A call of RPC version 2.
    let call = [0, 2, program, version, procedure];
    call.into_iter().for_each(|word| w.u32(word));
    w.u32(1);
    // Stamp, two ids, how many groups, and these.
    w.u32((opaque_bytes(MACHINE.len()) + 4 * (4 + groups.len())) as u32);
    w.u32(0);
    w.opaque(MACHINE);
    let ids = [uid, gid, groups.len() as u32];
    ids.iter().chain(groups).for_each(|&word| w.u32(word));
    // No verifier.
    w.u32(0);
    w.u32(0);
}

/// The results in a reply that says that the procedure was called.
pub(crate) fn results(reply: &[u8]) -> Read<&[u8]> {
    let r = &mut View::new(reply);
    let _xid = r.u32()?;
    // A reply; accepted.
    if (r.u32()?, r.u32()?) != (1, 0) {
        return Err(Malformed::Value("reply"));
    }
    let _flavor = r.u32()?;
    r.opaque(MAX_AUTH_BYTES, "verifier")?;
    match r.u32()? {
        0 => Ok(r.rest()),
        _ => Err(Malformed::Value("reply")),
    }
}

/// The servers of all volumes, by number.
#[derive(Debug)]
pub struct Upstreams {
    servers: RwLock<Vec<Option<Upstream>>>,
    move_rate: u64,
}

impl Upstreams {
    /// None yet. `move_rate`: the most bytes a second that are moved; 0: as fast as it goes.
    pub fn new(move_rate: u64) -> Upstreams {
        Upstreams {
            servers: RwLock::default(),
            move_rate,
        }
    }

    /// The server of a volume.
    pub fn get(&self, volume: Volume) -> Option<Upstream> {
        let servers = self.servers.read().unwrap_or_else(PoisonError::into_inner);
        servers.get(usize::from(volume.0)).cloned().flatten()
    }

    /// The server of a volume, if it is one that calls can be passed on to.
    pub(crate) fn server(&self, volume: Volume) -> Option<(Arc<Server>, Arc<Load>)> {
        let servers = self.servers.read().unwrap_or_else(PoisonError::into_inner);
        let upstream = servers.get(usize::from(volume.0))?.as_ref()?;
        match &upstream.way {
            Way::Server(server) => Some((server.clone(), upstream.load.clone())),
            Way::Group(..) => None,
        }
    }

    /// Sets or takes away the server of a volume.
    pub fn set(&self, volume: Volume, server: Option<Upstream>) {
        let mut servers = self.servers.write().unwrap_or_else(PoisonError::into_inner);
        let index = usize::from(volume.0);
        if servers.len() <= index {
            servers.resize(index + 1, None);
        }
        servers[index] = server;
    }

    /// Calls a procedure of NFS.
    ///
    /// # Errors
    /// [`Status::Jukebox`] without an answer; [`Status::Stale`] if there is no such volume.
    pub async fn nfs(
        &self,
        volume: Volume,
        procedure: u32,
        who: &Who,
        arguments: &[u8],
    ) -> Result<Bytes, Status> {
        let upstream = self.get(volume).ok_or(Status::Stale)?;
        upstream.nfs(procedure, who, arguments).await
    }
}

impl Upstream {
    /// Calls a procedure of NFS.
    ///
    /// # Errors
    /// [`Status::Jukebox`] without an answer.
    pub async fn nfs(&self, procedure: u32, who: &Who, arguments: &[u8]) -> Result<Bytes, Status> {
        let program = (call::PROGRAM, call::VERSION);
        let results = self.call(program, procedure, who, arguments).await;
        results.map_err(|Unanswered| Status::Jukebox)
    }

    /// Asks as user 0.
    ///
    /// # Errors
    /// The server's; [`Status::Jukebox`] without an answer.
    pub async fn ask(&self, who: &Who, ask: Ask) -> Result<Given, Status> {
        ask.read(self.nfs(ask.procedure(), who, &ask.write()).await?)
    }
}

impl Servers for Upstreams {
    async fn ask(&self, volume: Volume, who: &Who, ask: Ask) -> Result<Given, Status> {
        let upstream = self.get(volume).ok_or(Status::Stale)?;
        upstream.ask(who, ask).await
    }

    async fn pause(&self) {
        tokio::time::sleep(PAUSE).await;
    }

    async fn patience(&self) {
        tokio::time::sleep(PATIENCE).await;
    }

    async fn pace(&self, bytes: u64) {
        if let Some(micros) = (bytes * 1_000_000).checked_div(self.move_rate) {
            tokio::time::sleep(Duration::from_micros(micros)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_to_a_power_of_two() {
        let times = Times::default();
        assert_eq!(times.quantile(50), 0);
        for micros in [3, 3, 3, 900] {
            times.add(Duration::from_micros(micros));
        }
        assert_eq!((times.quantile(50), times.quantile(99)), (4, 1024));
        times.add(Duration::from_secs(1 << 20));
        assert_eq!(times.quantile(100), 1 << 31);
    }
}
