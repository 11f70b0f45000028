//! Connections to servers: many calls at once on each, answered in any order.

mod member;

pub(crate) use member::connect as connect_group;
pub use member::{MemberError, check as check_group};

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_files::Who;
use quorate_nfs::call;
use quorate_nfs::rpc::{next_record, read_record, record_head};
use quorate_nfs::status::Status;
use quorate_nfs::xdr::{Malformed, Read, Reader, Writer};
use tokio::io::{AsyncWriteExt, BufWriter};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::ask::{Ask, Given, Servers};
use crate::layout::Volume;

/// The most calls that wait for a server; further ones wait to be taken.
const MAX_CALLS: usize = 256;
/// How long connecting may take.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// How long no server is tried that could not be reached.
const DOWN_TIME: Duration = Duration::from_millis(500);
/// How long a server may take to answer.
const ANSWER_TIME: Duration = Duration::from_secs(20);
/// How long calls wait for the end of a move.
const PATIENCE: Duration = Duration::from_secs(5);
/// Before something is tried again.
const PAUSE: Duration = Duration::from_millis(500);
/// The most bytes of a verifier (RFC 5531, 8.2).
const MAX_AUTH_BYTES: usize = 400;
/// The most groups in a credential.
const MAX_GROUPS: usize = 16;

/// How the address of a group begins; its file and a key file follow, with a line between them.
pub const GROUP: &str = "group:";

/// A call that is to be sent.
#[derive(Debug)]
struct Sending {
    /// From the credential on, after the head.
    record: Vec<u8>,
    reply: oneshot::Sender<Bytes>,
}

/// How a server is doing.
#[derive(Debug, Default)]
pub struct Load {
    /// Whether there is a connection to it.
    pub up: AtomicBool,
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

/// A server's program at an address. It lives as long as the runtime.
#[derive(Clone, Debug)]
pub struct Upstream {
    calls: mpsc::Sender<Sending>,
    /// How it is doing.
    pub load: Arc<Load>,
}

/// It is not known whether the call was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server does not answer")]
pub struct Unanswered;

impl Upstream {
    /// A server at `host:port`, or a Quorate group ([`Location::nfs`](crate::config::Location::nfs)); it is connected to when there is a call.
    pub fn start(address: String) -> Upstream {
        let (calls, incoming) = mpsc::channel(MAX_CALLS);
        let load = Arc::new(Load::default());
        match address.strip_prefix(GROUP) {
            Some(place) => tokio::spawn(member::serve(place.into(), incoming, load.clone())),
            None => tokio::spawn(serve(address, incoming, load.clone())),
        };
        Upstream { calls, load }
    }

    /// Calls a procedure of a program on somebody's behalf; gives its results.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub async fn call(
        &self,
        (program, version): (u32, u32),
        procedure: u32,
        who: &Who,
        arguments: &[u8],
    ) -> Result<Bytes, Unanswered> {
        let mut w = Writer::with_capacity(128 + arguments.len());
        // The number is set when it is sent. A call of RPC version 2.
        for word in [0, 0, 2, program, version, procedure] {
            w.u32(word);
        }
        credential(&mut w, who);
        w.fixed(arguments);
        let (reply, answered) = oneshot::channel();
        let record = w.out;
        self.load.calls.fetch_add(1, Ordering::Relaxed);
        let answer = async {
            self.calls.send(Sending { record, reply }).await.ok()?;
            answered.await.ok()
        };
        let start = now();
        let answer = timeout(ANSWER_TIME, answer).await.ok().flatten();
        if answer.is_some() {
            self.load.times.add(start.elapsed());
        }
        let results = answer.and_then(|reply| results(reply).ok());
        results.ok_or_else(|| {
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

fn credential(w: &mut Writer, who: &Who) {
    let mut body = Writer::default();
    body.u32(0);
    body.opaque(b"quorate-route");
    body.u32(who.uid);
    body.u32(who.gid);
    let groups = &who.groups[..who.groups.len().min(MAX_GROUPS)];
    body.u32(groups.len() as u32);
    groups.iter().for_each(|&gid| body.u32(gid));
    w.u32(1);
    w.opaque(&body.out);
    // No verifier.
    w.u32(0);
    w.u32(0);
}

/// The results in a reply that says that the procedure was called.
fn results(reply: Bytes) -> Read<Bytes> {
    let r = &mut Reader::new(reply);
    let _xid = r.u32()?;
    // A reply; accepted.
    if (r.u32()?, r.u32()?) != (1, 0) {
        return Err(Malformed::Value("reply"));
    }
    let _flavor = r.u32()?;
    r.opaque(MAX_AUTH_BYTES, "verifier")?;
    match r.u32()? {
        0 => Ok(r.rest().clone()),
        _ => Err(Malformed::Value("reply")),
    }
}

/// Keeps a connection while there are calls.
async fn serve(address: String, mut calls: mpsc::Receiver<Sending>, load: Arc<Load>) {
    let mut xid = 0u32;
    while let Some(first) = calls.recv().await {
        let connected = match timeout(CONNECT_TIME, connect(&address)).await {
            Ok(connected) => connected,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        match connected {
            Ok(stream) => {
                tracing::info!(%address, "connected");
                load.up.store(true, Ordering::Relaxed);
                let why = connection(stream, first, &mut calls, &mut xid).await;
                load.up.store(false, Ordering::Relaxed);
                tracing::warn!(%address, %why, "the connection ended");
            }
            Err(error) => {
                tracing::warn!(%address, %error, "can't connect");
                drop(first);
                // Those that come meanwhile are told at once.
                let told = async { while calls.recv().await.is_some() {} };
                let _ = timeout(DOWN_TIME, told).await;
            }
        }
    }
}

/// From a port that only the superuser can send from, if that is possible: many servers want it.
async fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::ErrorKind::AddrNotAvailable.into();
    for to in lookup_host(address).await? {
        match connect_to(to).await {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn connect_to(to: SocketAddr) -> io::Result<TcpStream> {
    if to.is_ipv4() {
        for port in (600..1024).rev() {
            let socket = TcpSocket::new_v4()?;
            match socket.bind((Ipv4Addr::UNSPECIFIED, port).into()) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => break,
                Err(_) => continue,
            }
            match socket.connect(to).await {
                // This pair of addresses was in use a moment ago.
                Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable => continue,
                other => return other,
            }
        }
    }
    TcpStream::connect(to).await
}

type Waiting = Mutex<BTreeMap<u32, oneshot::Sender<Bytes>>>;

/// Sends calls and takes replies until the connection ends, and says why it did. Who waits then waits no more.
async fn connection(
    stream: TcpStream,
    first: Sending,
    calls: &mut mpsc::Receiver<Sending>,
    xid: &mut u32,
) -> String {
    let (from, to) = stream.into_split();
    let waiting = Waiting::default();
    tokio::select! {
        why = take(from, &waiting) => why,
        why = give(to, &waiting, first, calls, xid) => why,
    }
}

fn lock(waiting: &Waiting) -> std::sync::MutexGuard<'_, BTreeMap<u32, oneshot::Sender<Bytes>>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn give(
    to: OwnedWriteHalf,
    waiting: &Waiting,
    first: Sending,
    calls: &mut mpsc::Receiver<Sending>,
    xid: &mut u32,
) -> String {
    let mut to = BufWriter::with_capacity(64 << 10, to);
    let mut next = first;
    loop {
        *xid = xid.wrapping_add(1);
        {
            let mut waiting = lock(waiting);
            // Nobody waits for these any more.
            waiting.retain(|_, reply| !reply.is_closed());
            waiting.insert(*xid, next.reply);
        }
        next.record[..4].copy_from_slice(&xid.to_be_bytes());
        let sent = async {
            to.write_all(&record_head(next.record.len())).await?;
            to.write_all(&next.record).await?;
            if calls.is_empty() {
                to.flush().await?;
            }
            io::Result::Ok(())
        };
        match timeout(ANSWER_TIME, sent).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => return e.to_string(),
            Err(_) => return "it takes no calls".into(),
        }
        match calls.recv().await {
            Some(more) => next = more,
            None => return "the router ends".into(),
        }
    }
}

async fn take(mut from: OwnedReadHalf, waiting: &Waiting) -> String {
    loop {
        let head = match next_record(&mut from).await {
            Ok(Some(head)) => head,
            Ok(None) => return "the server ended it".into(),
            Err(e) => return e.to_string(),
        };
        let record = match timeout(ANSWER_TIME, read_record(head, &mut from)).await {
            Ok(Ok(record)) => record,
            Ok(Err(e)) => return e.to_string(),
            Err(_) => return "a reply took too long to come".into(),
        };
        let Some(xid) = record.first_chunk().map(|xid| u32::from_be_bytes(*xid)) else {
            return "it sent what is no reply".into();
        };
        if let Some(reply) = lock(waiting).remove(&xid) {
            // Whoever asked may have given up.
            let _ = reply.send(record);
        }
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
