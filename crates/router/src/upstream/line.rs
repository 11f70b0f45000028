//! A connection to a server: the calls of all clients to it, answered in any order. What is to be sent is gathered in one buffer, and
//! goes as it is when the connection has time for it.
//!
//! A server may think for long; a machine that has lost its power, or its network, is silent likewise, and a connection to it would last
//! for minutes. So where calls wait and nothing comes, the router begins another connection to it now and then, which the machine's
//! system answers at once, however busy the server is. If it does not, the connection ends, and with it the wait of its calls. What is
//! lost on its way for long (a firewall has forgotten the connection) ends it too: a new one may do.
//!
//! A server whose process hangs keeps its connections, and its machine answers for it. Clients have room for so many calls at work, whichever
//! server they are for, and are not read while it is taken: calls to servers that do answer would wait behind those to one that hangs. So where nothing has come for some
//! seconds, it is asked for nothing, which no server has to think about; and where that has no answer either, what was passed on is given up, and no more is sent until something comes.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_nfs::call;
use quorate_nfs::records::{REPLY_BYTES, Records};
use quorate_nfs::rpc::record_head;
use quorate_nfs::xdr::Writer;
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::sync::{Notify, oneshot};
use tokio::time::{MissedTickBehavior, interval, timeout, timeout_at};

use super::{ANSWER_TIME, DOWN_TIME, Load, now};

/// How long it may take to find the addresses of a name, and to connect to one of them.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// How often calls are given up that wait for long.
const LOOK_TIME: Duration = Duration::from_secs(1);
/// How long nothing comes from a server for which calls wait before its machine is asked.
const SILENCE: Duration = Duration::from_millis(500);
/// How long a machine may take to answer: a packet that begins a connection is sent again after a second.
const PROBE_TIME: Duration = Duration::from_millis(1250);
/// The longest pause between two questions. A server that accepts nothing keeps each in its queue of connections, which must not fill.
const MAX_PAUSE: Duration = Duration::from_secs(8);
/// How long nothing comes from a server for which calls wait until it is asked for nothing, and how long it may take to answer that. Disks may keep calls
/// for seconds, and not this one.
const SILENT_TIME: Duration = Duration::from_secs(4);
const NOTHING_TIME: Duration = Duration::from_secs(2);
/// The most calls that wait for answers.
const MAX_WAITING: usize = 1 << 15;
/// The most bytes that wait to be sent, but for one call.
const MAX_GOING: usize = 8 << 20;
/// Why a connection ends of which nothing goes.
const TAKES_NONE: &str = "it takes no calls";
/// How many bytes must go within [`ANSWER_TIME`].
const MEGABYTE: usize = 1 << 20;

/// A call that is passed on, and that may be made again: it gets its answer where that is read. Dropped, it gets none.
pub trait Passed: Send + std::fmt::Debug {
    /// Takes the reply, from its number on.
    fn answered(self: Box<Self>, reply: &[u8]);
}

/// Who waits for an answer.
#[derive(Debug)]
pub enum Waiter {
    /// A task.
    Task(oneshot::Sender<Bytes>),
    /// Nobody.
    Passed(Box<dyn Passed>),
}

/// Why a call is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsent {
    /// Too much waits to be sent.
    Full,
    /// The server can't be reached, or hangs.
    Down,
}

#[derive(Debug)]
struct Waiting {
    waiter: Waiter,
    since: Instant,
}

/// See the module.
#[derive(Debug)]
pub struct Line {
    address: String,
    state: Mutex<State>,
    /// There is something to be sent.
    ready: Notify,
    /// There is room for more.
    room: Notify,
    /// Whether there is a connection.
    is_up: AtomicBool,
    load: Arc<Load>,
}

#[derive(Debug)]
struct State {
    /// Calls, as records.
    going: Writer,
    waiting: BTreeMap<u32, Waiting>,
    /// Since when calls wait and nothing comes.
    silent_since: Instant,
    xid: u32,
    is_down: bool,
    /// When a silent server was first and last asked for nothing, since which nothing has come.
    asked: Option<(Instant, Instant)>,
    /// Whether it was told that the server hangs.
    is_told: bool,
}

impl State {
    /// Whether the server hangs.
    fn hangs(&self) -> bool {
        let asked = self.asked;
        asked.is_some_and(|(first, _)| first.elapsed() >= NOTHING_TIME)
    }

    /// Adds a call; whether nothing else was to be sent.
    fn add(&mut self, waiter: Waiter, write: impl FnOnce(&mut Writer)) -> bool {
        let mut xid = self.xid.wrapping_add(1);
        while self.waiting.contains_key(&xid) {
            xid = xid.wrapping_add(1);
        }
        self.xid = xid;
        let since = now();
        if self.waiting.is_empty() {
            self.silent_since = since;
        }
        self.waiting.insert(xid, Waiting { waiter, since });
        let w = &mut self.going;
        let start = w.out.len();
        w.u32(0);
        w.u32(xid);
        write(w);
        let len = w.out.len().saturating_sub(start + 4);
        if let Some(head) = w.out.get_mut(start..start + 4) {
            head.copy_from_slice(&record_head(len));
        }
        start == 0
    }
}

impl Line {
    /// To `host:port`; it is connected to when there is a call.
    pub fn new(address: String, load: Arc<Load>) -> Line {
        let state = State {
            going: Writer::default(),
            waiting: BTreeMap::new(),
            silent_since: now(),
            // Servers remember the numbers of calls for a while, and the port that they came from.
            xid: RandomState::new().build_hasher().finish() as u32,
            is_down: false,
            asked: None,
            is_told: false,
        };
        Line {
            address,
            state: Mutex::new(state),
            ready: Notify::new(),
            room: Notify::new(),
            is_up: AtomicBool::new(false),
            load,
        }
    }

    /// Whether there is a connection to the server, and it does not hang.
    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed) && !self.state().hangs()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a call to what is sent: `write` appends it from after its number on, and `waiter` waits for its answer. Neither is done if it can't
    /// be sent.
    ///
    /// # Errors
    /// [`Unsent`].
    pub fn send(
        &self,
        waiter: impl FnOnce() -> Waiter,
        write: impl FnOnce(&mut Writer),
    ) -> Result<(), Unsent> {
        let mut state = self.state();
        if state.is_down || state.hangs() {
            return Err(Unsent::Down);
        }
        if state.going.out.len() > MAX_GOING || state.waiting.len() >= MAX_WAITING {
            return Err(Unsent::Full);
        }
        if state.add(waiter(), write) {
            drop(state);
            self.ready.notify_one();
        }
        Ok(())
    }

    /// Waits until there may be room for a call.
    pub async fn has_room(&self) {
        // It may be there already, and nobody may say so again.
        let _ = timeout(LOOK_TIME, self.room.notified()).await;
    }

    /// Waits for calls that are to be sent, and puts them into an empty buffer.
    async fn going(&self, into: &mut Vec<u8>) {
        loop {
            {
                let mut state = self.state();
                if !state.going.out.is_empty() {
                    std::mem::swap(&mut state.going.out, into);
                    break;
                }
            }
            self.ready.notified().await;
        }
        self.room.notify_waiters();
    }

    /// Nobody gets an answer that has none yet.
    fn fail(&self, is_down: bool) {
        let waiting = {
            let mut state = self.state();
            state.going = Writer::default();
            (state.is_down, state.asked) = (is_down, None);
            std::mem::take(&mut state.waiting)
        };
        // They may answer their clients as they go.
        drop(waiting);
        self.room.notify_waiters();
    }

    /// Those get no answer who have waited for too long.
    fn give_up(&self) {
        let given_up: Vec<Waiting> = {
            let mut state = self.state();
            let is_silent = state.silent_since.elapsed() >= SILENT_TIME;
            let is_to_be_asked = match state.asked {
                None => is_silent && !state.waiting.is_empty(),
                // Where its machine has lost the connection meanwhile, only what is sent shows it.
                Some((_, last)) => last.elapsed() >= ANSWER_TIME,
            };
            if is_to_be_asked {
                self.ask_nothing(&mut state);
            }
            let patience = match state.hangs() {
                true => Duration::ZERO,
                false => ANSWER_TIME,
            };
            let hangs = state.hangs();
            if hangs && !state.is_told {
                tracing::warn!(address = %self.address, "the server hangs: its machine is there, and it answers nothing");
            }
            state.is_told = hangs;
            let is_late = |(_, waiting): &(&u32, &Waiting)| match &waiting.waiter {
                // It keeps the time itself.
                Waiter::Task(reply) => reply.is_closed(),
                Waiter::Passed(_) => waiting.since.elapsed() > patience,
            };
            let late = state.waiting.iter().filter(is_late);
            let late: Vec<u32> = late.map(|(xid, _)| *xid).collect();
            let remove = |xid| state.waiting.remove(&xid);
            late.into_iter().filter_map(remove).collect()
        };
        // They may answer their clients as they go.
        drop(given_up);
    }

    /// Asks a server for nothing, which takes it no time.
    fn ask_nothing(&self, state: &mut State) {
        let now = now();
        state.asked = Some((state.asked.map_or(now, |(first, _)| first), now));
        // The answer counts, and not what it says.
        let (reply, _) = oneshot::channel();
        let is_first = state.add(Waiter::Task(reply), |w| {
            super::head(w, (call::PROGRAM, call::VERSION), 0, (0, 0, &[]));
        });
        if is_first {
            self.ready.notify_one();
        }
    }

    fn answered(&self, reply: &[u8], now: Instant) -> bool {
        let Some((xid, _)) = reply.split_first_chunk() else {
            return false;
        };
        let waiting = self.state().waiting.remove(&u32::from_be_bytes(*xid));
        // Whoever asked may have given up.
        if let Some(Waiting { waiter, since }) = waiting {
            self.load.times.add(now.saturating_duration_since(since));
            match waiter {
                Waiter::Task(answer) => drop(answer.send(Bytes::copy_from_slice(reply))),
                Waiter::Passed(passed) => passed.answered(reply),
            }
        }
        true
    }

    /// Keeps a connection while there are calls.
    pub async fn serve(&self) {
        let address = &self.address;
        loop {
            self.is_called().await;
            match connect(address).await {
                Ok(stream) => {
                    tracing::info!(%address, "connected");
                    self.load.up.fetch_add(1, Ordering::Relaxed);
                    self.is_up.store(true, Ordering::Relaxed);
                    let why = self.connection(stream).await;
                    self.is_up.store(false, Ordering::Relaxed);
                    self.load.up.fetch_sub(1, Ordering::Relaxed);
                    tracing::warn!(%address, %why, "the connection ended");
                    let asked = self.state().asked.filter(|_| why == TAKES_NONE);
                    self.fail(false);
                    if asked.is_some() {
                        // Its machine takes another connection, which says nothing of the server.
                        let mut state = self.state();
                        state.asked = asked;
                        self.ask_nothing(&mut state);
                    }
                }
                Err(error) => {
                    tracing::warn!(%address, %error, "can't connect");
                    // Those that come meanwhile are told at once.
                    self.fail(true);
                    tokio::time::sleep(DOWN_TIME).await;
                    self.state().is_down = false;
                }
            }
        }
    }

    async fn is_called(&self) {
        while self.state().going.out.is_empty() {
            self.ready.notified().await;
        }
    }

    /// Sends calls and takes replies until the connection ends, and says why it did.
    async fn connection(&self, stream: TcpStream) -> String {
        let peer = stream.peer_addr();
        let (from, to) = stream.into_split();
        let look = async {
            let mut looks = interval(LOOK_TIME);
            looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                looks.tick().await;
                self.give_up();
            }
        };
        tokio::select! {
            why = self.take(from) => why,
            why = self.give(to) => why,
            () = look => "it is looked at no more".into(),
            why = self.watch(peer) => why,
        }
    }

    /// Until the server's machine is silent.
    async fn watch(&self, peer: io::Result<SocketAddr>) -> String {
        let peer = match peer {
            Ok(peer) => peer,
            Err(e) => return e.to_string(),
        };
        let mut looks = interval(SILENCE / 2);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut pause = LOOK_TIME;
        loop {
            looks.tick().await;
            let asked = now();
            let is_silent = {
                let state = self.state();
                !state.waiting.is_empty() && state.silent_since.elapsed() >= SILENCE
            };
            if !is_silent {
                pause = LOOK_TIME;
                continue;
            }
            let heard = || self.state().silent_since > asked;
            match timeout(PROBE_TIME, TcpStream::connect(peer)).await {
                Err(_) if !heard() => return "its machine does not answer".into(),
                Ok(Err(e)) if is_unreachable(e.kind()) && !heard() => return e.to_string(),
                // That the server takes no more is an answer too.
                _ => {}
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(MAX_PAUSE);
        }
    }

    async fn give(&self, mut to: OwnedWriteHalf) -> String {
        let mut going = Vec::new();
        loop {
            self.going(&mut going).await;
            for part in going.chunks(MEGABYTE) {
                match timeout(ANSWER_TIME, to.write_all(part)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(e)) => return e.to_string(),
                    Err(_) => return TAKES_NONE.into(),
                }
            }
            going.clear();
            going.shrink_to(REPLY_BYTES);
        }
    }

    async fn take(&self, mut from: OwnedReadHalf) -> String {
        let mut records = Records::new(REPLY_BYTES);
        // When the reply began of which a part is there.
        let mut began = None;
        loop {
            let time = now();
            self.state().silent_since = time;
            loop {
                match records.take() {
                    Ok(Some(reply)) if self.answered(reply, time) => began = None,
                    Ok(Some(_)) => return "it sent what is no reply".into(),
                    Ok(None) => break,
                    Err(e) => return e.to_string(),
                }
            }
            let read = match records.has_part() {
                false => Ok(records.fill(&mut from).await),
                true => {
                    let end = *began.get_or_insert(time) + ANSWER_TIME;
                    timeout_at(end.into(), records.fill(&mut from)).await
                }
            };
            match read {
                Ok(Ok(0)) => return "the server ended it".into(),
                Ok(Ok(_)) => self.state().asked = None,
                Ok(Err(e)) => return e.to_string(),
                Err(_) => return "a reply took too long to come".into(),
            }
        }
    }
}

/// Whether there is no way to a machine. What this one lacks (descriptors, ports) says nothing about the other.
fn is_unreachable(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkDown, NetworkUnreachable};
    matches!(kind, HostUnreachable | NetworkUnreachable | NetworkDown)
}

async fn within<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let done = timeout(CONNECT_TIME, work).await;
    done.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// To `host:port`, from a port that only the superuser can send from, if that is possible.
pub(crate) async fn connect(address: &str) -> io::Result<TcpStream> {
    connect_to_one(within(lookup_host(address)).await?).await
}

/// To the first that answers.
async fn connect_to_one(addresses: impl Iterator<Item = SocketAddr>) -> io::Result<TcpStream> {
    let mut last = io::ErrorKind::AddrNotAvailable.into();
    for to in addresses {
        match within(connect_to(to)).await {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                // When it ends nobody waits for its calls any more: what the system has not sent yet must not come to the server after all.
                stream.set_zero_linger()?;
                // Its own patience is a quarter of an hour.
                set_tcp_user_timeout(&stream, ANSWER_TIME.as_millis() as u32)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// From a port that only the superuser can send from, if that is possible: many servers want it.
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

#[cfg(test)]
mod tests;
