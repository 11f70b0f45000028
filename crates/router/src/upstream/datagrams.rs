//! Calls to a server over UDP: those alone that change nothing, since a copy of a datagram may come late (docs/router.md, UDP).
//!
//! A call is sent by who has it, with no task in between, and again after pauses while no answer comes. What has no room here, or comes
//! while the server is silent over UDP, is for the connection.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quorate_nfs::widen;
use quorate_nfs::xdr::Writer;
use tokio::net::{UdpSocket, lookup_host};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::{ANSWER_TIME, Load, Passed, now};

/// The pause before a call is sent again; each is twice as long as the last.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const MAX_PAUSE: Duration = Duration::from_secs(4);
/// How often it is looked what is to be sent again, while there are calls.
const LOOK_TIME: Duration = Duration::from_millis(50);
/// How long nothing may come while calls wait: then they are given up.
const SILENCE: Duration = Duration::from_secs(2);
/// How long the server gets no datagrams after that.
const DOWN_TIME: Duration = Duration::from_secs(10);
/// How long it may take to find the addresses of a name.
const RESOLVE_TIME: Duration = Duration::from_secs(2);
/// The most calls that wait: nothing else keeps a client's pace from the server.
const MAX_WAITING: usize = 64;
/// How many datagrams are taken before others have their turn.
const BATCH: usize = 64;

/// See the module.
#[derive(Debug)]
pub struct Datagrams {
    address: String,
    state: Mutex<State>,
    /// There are calls again.
    begun: Notify,
    load: Arc<Load>,
}

#[derive(Debug)]
struct State {
    /// None: the server is not asked.
    socket: Option<Arc<UdpSocket>>,
    waiting: BTreeMap<u32, Waiting>,
    /// Bytes of replies that there is room for, and that may come.
    room: usize,
    expected: usize,
    xid: u32,
    /// Since when calls wait and nothing comes.
    silent_since: Instant,
    /// Whether it is looked after calls that wait.
    is_looked_after: bool,
    /// What the socket said.
    broken: Option<String>,
}

#[derive(Debug)]
struct Waiting {
    passed: Box<dyn Passed>,
    call: Vec<u8>,
    reply: usize,
    since: Instant,
    again: Instant,
    pause: Duration,
}

/// Room for a call and its reply.
#[derive(Debug)]
pub struct Slot<'a> {
    line: &'a Datagrams,
    state: MutexGuard<'a, State>,
    socket: Arc<UdpSocket>,
    reply: usize,
}

impl Datagrams {
    /// To `host:port`.
    pub(super) fn new(address: String, load: Arc<Load>) -> Datagrams {
        let state = State {
            socket: None,
            waiting: BTreeMap::new(),
            room: 0,
            expected: 0,
            // Nobody else is to know it, nor is a server to take it for a call before.
            xid: random_number(),
            silent_since: now(),
            is_looked_after: false,
            broken: None,
        };
        Datagrams {
            address,
            state: Mutex::new(state),
            begun: Notify::new(),
            load,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for a call whose reply has so many bytes at most, if there is any now.
    pub fn slot(&self, reply: usize) -> Option<Slot<'_>> {
        let state = self.state();
        if state.expected + reply > state.room || state.waiting.len() >= MAX_WAITING {
            return None;
        }
        let socket = state.socket.clone()?;
        Some(Slot {
            line: self,
            state,
            socket,
            reply,
        })
    }

    /// Sends and takes while there is somebody there.
    pub(super) async fn serve(&self) {
        let address = &self.address;
        for turn in 0.. {
            let why = match self.open(turn).await {
                Ok(socket) => {
                    let socket = Arc::new(socket);
                    {
                        let mut state = self.state();
                        // The system counts more than bytes, and twice what it was asked for.
                        state.room = widen(&socket) / 4;
                        state.socket = Some(socket.clone());
                    }
                    tokio::select! {
                        Err(e) = self.take(&socket) => e.to_string(),
                        why = self.look(&socket) => why,
                    }
                }
                Err(e) => e.to_string(),
            };
            tracing::warn!(%address, %why, "no datagrams for now");
            self.fail();
            tokio::time::sleep(DOWN_TIME).await;
        }
    }

    /// To the next of its addresses at each turn.
    async fn open(&self, turn: usize) -> io::Result<UdpSocket> {
        let addresses = timeout(RESOLVE_TIME, lookup_host(&self.address)).await;
        let addresses = addresses.map_err(|_| io::ErrorKind::TimedOut)??;
        let addresses: Vec<SocketAddr> = addresses.collect();
        let at = turn.checked_rem(addresses.len());
        let to = at.and_then(|at| addresses.get(at));
        connect_to(*to.ok_or(io::ErrorKind::AddrNotAvailable)?).await
    }

    /// Nobody gets an answer that has none yet.
    fn fail(&self) {
        let waiting = {
            let mut state = self.state();
            state.socket = None;
            state.broken = None;
            state.is_looked_after = false;
            state.expected = 0;
            std::mem::take(&mut state.waiting)
        };
        // They answer their clients as they go.
        drop(waiting);
    }

    async fn take(&self, socket: &UdpSocket) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 16];
        loop {
            socket.readable().await?;
            let time = now();
            for _ in 0..BATCH {
                match socket.try_recv(&mut buffer) {
                    Ok(len) => self.answered(&buffer[..len], time),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    Err(e) => return Err(e),
                }
            }
            tokio::task::yield_now().await;
        }
    }

    fn answered(&self, reply: &[u8], now: Instant) {
        let Some(xid) = reply.first_chunk() else {
            return;
        };
        let waiting = {
            let mut state = self.state();
            state.silent_since = now;
            state.remove(u32::from_be_bytes(*xid))
        };
        // It may have come before.
        if let Some(waiting) = waiting {
            let took = now.saturating_duration_since(waiting.since);
            self.load.times.add(took);
            waiting.passed.answered(reply);
        }
    }

    /// Sends calls again until nobody answers.
    async fn look(&self, socket: &UdpSocket) -> String {
        loop {
            self.begun.notified().await;
            loop {
                tokio::time::sleep(LOOK_TIME).await;
                let time = now();
                let given_up = {
                    let mut state = self.state();
                    if state.waiting.is_empty()
                        && time.saturating_duration_since(state.silent_since) > SILENCE
                    {
                        state.is_looked_after = false;
                        break;
                    }
                    if let Some(why) = state.broken.take() {
                        return why;
                    }
                    if state.is_silent(time) {
                        return "it does not answer".into();
                    }
                    if let Err(e) = state.send_again(socket, time) {
                        return e.to_string();
                    }
                    state.give_up(time)
                };
                // They answer their clients as they go.
                drop(given_up);
            }
        }
    }
}

impl State {
    fn remove(&mut self, xid: u32) -> Option<Waiting> {
        let waiting = self.waiting.remove(&xid)?;
        self.expected -= waiting.reply;
        Some(waiting)
    }

    fn is_silent(&self, now: Instant) -> bool {
        !self.waiting.is_empty() && now.saturating_duration_since(self.silent_since) > SILENCE
    }

    fn send_again(&mut self, socket: &UdpSocket, now: Instant) -> io::Result<()> {
        for waiting in self.waiting.values_mut() {
            if waiting.again <= now {
                waiting.pause = MAX_PAUSE.min(2 * waiting.pause);
                waiting.again = now + waiting.pause;
                send(socket, &waiting.call)?;
            }
        }
        Ok(())
    }

    /// Those get no answer who have waited for too long.
    fn give_up(&mut self, now: Instant) -> Vec<Waiting> {
        let is_late = |waiting: &Waiting| now.duration_since(waiting.since) > ANSWER_TIME;
        let late = self.waiting.iter().filter(|(_, waiting)| is_late(waiting));
        let late: Vec<u32> = late.map(|(xid, _)| *xid).collect();
        late.into_iter()
            .filter_map(|xid| self.remove(xid))
            .collect()
    }
}

impl Slot<'_> {
    /// Sends a call: `write` appends it from after its number on, and `passed` gets the answer.
    pub fn send(mut self, passed: Box<dyn Passed>, write: impl FnOnce(&mut Writer)) {
        let (state, since) = (&mut *self.state, now());
        let mut xid = state.xid.wrapping_add(1);
        while state.waiting.contains_key(&xid) {
            xid = xid.wrapping_add(1);
        }
        state.xid = xid;
        if state.waiting.is_empty() {
            state.silent_since = since;
        }
        let mut w = Writer::with_capacity(256);
        w.u32(xid);
        write(&mut w);
        if let Err(e) = send(&self.socket, &w.out) {
            state.broken = Some(e.to_string());
        }
        state.expected += self.reply;
        let waiting = Waiting {
            passed,
            call: w.out,
            reply: self.reply,
            since,
            again: since + FIRST_PAUSE,
            pause: FIRST_PAUSE,
        };
        state.waiting.insert(xid, waiting);
        if !std::mem::replace(&mut state.is_looked_after, true) {
            self.line.begun.notify_one();
        }
    }
}

/// A datagram for which the system has no room now is as good as lost.
fn send(socket: &UdpSocket, call: &[u8]) -> io::Result<()> {
    match socket.try_send(call) {
        Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
        _ => Ok(()),
    }
}

/// From a port that only the superuser can send from, if that is possible: many servers want it.
async fn connect_to(to: SocketAddr) -> io::Result<UdpSocket> {
    let socket = match bind_low(to.is_ipv4()).await {
        Some(socket) => socket,
        None if to.is_ipv4() => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?,
        None => UdpSocket::bind("[::]:0").await?,
    };
    socket.connect(to).await?;
    Ok(socket)
}

/// One that nobody guesses.
pub(crate) fn random_number() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}

/// At a port below 1024, if that is allowed.
pub(crate) async fn bind_low(is_ipv4: bool) -> Option<UdpSocket> {
    if !is_ipv4 {
        return None;
    }
    for port in (600..1024).rev() {
        match UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).await {
            Ok(socket) => return Some(socket),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return None,
            Err(_) => {}
        }
    }
    None
}
