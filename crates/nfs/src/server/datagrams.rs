//! Calls over UDP (RFC 5531, 11): each is a datagram, and so is its reply. Both may be lost, come twice, or late.
//!
//! A source is an address and a port. It has room as a connection has, and waits for none: a call that finds no room is dropped, and its
//! client sends it again. While a call is at work, repetitions of it are dropped; what a repetition of a finished one gets is up to
//! [`Answers`](super::Answers).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use rustix::net::sockopt;
use tokio::net::UdpSocket;
use tokio::sync::{Notify, mpsc};

use super::client::{Client, Sent, lock};
use super::listen::Again;
use super::{Answers, Limits, LogLimit, answer};
use crate::records::REPLY_BYTES;
use crate::xdr::Writer;

/// The most bytes that one READ, WRITE or listing carries over UDP. A datagram has less than 64 KiB, heads included.
pub const UDP_IO_BYTES: usize = 32 << 10;
/// The longest call: a WRITE of so much, with its head.
const MAX_CALL_BYTES: usize = UDP_IO_BYTES + 4096;
/// The most bytes of a datagram over IPv4.
const MAX_DATAGRAM_BYTES: usize = 65_507;
/// The most sources of a socket that have calls at work.
const MAX_SOURCES: usize = 256;
/// How many datagrams are taken before others have their turn.
const BATCH: usize = 64;
/// What is asked of the system for what was not taken yet.
const SOCKET_BYTES: usize = 4 << 20;

/// Why a datagram is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dropped {
    /// Nothing is exported to its address.
    NotExported,
    /// No call is as long.
    TooLong,
    /// It is no call.
    NoCall,
    /// A call by its number is at work.
    Repeated,
    /// Too many others have calls at work.
    TooManySources,
    /// Too many calls of this source are at work, or there is no room for more.
    TooManyCalls,
    /// A reply that fits no datagram.
    ReplyTooLong,
    /// The system did not take the reply.
    Unsendable,
}

impl Dropped {
    const ALL: [Dropped; 8] = [
        Dropped::NotExported,
        Dropped::TooLong,
        Dropped::NoCall,
        Dropped::Repeated,
        Dropped::TooManySources,
        Dropped::TooManyCalls,
        Dropped::ReplyTooLong,
        Dropped::Unsendable,
    ];

    fn name(self) -> &'static str {
        match self {
            Dropped::NotExported => "not_exported",
            Dropped::TooLong => "too_long",
            Dropped::NoCall => "no_call",
            Dropped::Repeated => "repeated",
            Dropped::TooManySources => "too_many_sources",
            Dropped::TooManyCalls => "too_many_calls",
            Dropped::ReplyTooLong => "reply_too_long",
            Dropped::Unsendable => "unsendable",
        }
    }
}

/// How many datagrams were dropped, by reason.
#[derive(Debug, Default)]
pub struct Drops([AtomicU64; Dropped::ALL.len()]);

impl Drops {
    fn count(&self, why: Dropped) {
        self.0[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Each reason's name and number.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let number = |why: Dropped| self.0[why as usize].load(Ordering::Relaxed);
        Dropped::ALL
            .into_iter()
            .map(move |why| (why.name(), number(why)))
    }
}

/// Has a socket keep more that was not taken yet, as far as the system allows; how many bytes that are, as the system counts.
pub fn widen(socket: impl AsFd) -> usize {
    // Beyond the system's bound only with the right to it.
    if sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BYTES).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BYTES);
    }
    sockopt::socket_recv_buffer_size(&socket).unwrap_or(0)
}

/// How one source's replies go, and which of its calls are at work.
#[derive(Debug)]
pub(super) struct Source {
    to: SocketAddr,
    queue: Arc<Queue>,
    pub at_work: Mutex<BTreeSet<u32>>,
}

/// Replies of all sources that wait to be sent, one after the other.
#[derive(Debug)]
struct Queue {
    going: Mutex<Going>,
    ready: Notify,
    dropped: Arc<Drops>,
}

#[derive(Debug, Default)]
struct Going {
    bytes: Writer,
    replies: Vec<Reply>,
}

#[derive(Debug)]
struct Reply {
    client: Arc<Client>,
    to: SocketAddr,
    len: usize,
    /// What it counts for.
    room: usize,
}

impl Source {
    /// Adds a reply, which counts for so much room, to what is sent; false if it fits no datagram.
    pub fn reply(
        &self,
        client: &Arc<Client>,
        room: usize,
        write: impl FnOnce(&mut Writer),
    ) -> bool {
        let mut going = lock(&self.queue.going);
        let start = going.bytes.out.len();
        write(&mut going.bytes);
        let len = going.bytes.out.len().saturating_sub(start);
        if len > MAX_DATAGRAM_BYTES {
            going.bytes.out.truncate(start);
            self.queue.dropped.count(Dropped::ReplyTooLong);
            return false;
        }
        going.replies.push(Reply {
            client: client.clone(),
            to: self.to,
            len,
            room,
        });
        let is_first = going.replies.len() == 1;
        drop(going);
        if is_first {
            self.queue.ready.notify_one();
        }
        true
    }
}

impl Queue {
    /// Waits for replies, and puts them into an empty buffer.
    async fn next(&self, into: &mut Going) {
        loop {
            {
                let mut going = lock(&self.going);
                if !going.replies.is_empty() {
                    std::mem::swap(&mut *going, into);
                    return;
                }
            }
            self.ready.notified().await;
        }
    }
}

/// Serves calls that come as datagrams until it is dropped.
pub(super) async fn serve(
    socket: UdpSocket,
    front: &Arc<impl Answers>,
    limits: &Limits,
    again: Option<mpsc::Receiver<Again>>,
) -> io::Result<()> {
    widen(&socket);
    let queue = Arc::new(Queue {
        going: Mutex::default(),
        ready: Notify::new(),
        dropped: limits.dropped.clone(),
    });
    let mut sources = Sources {
        all: BTreeMap::new(),
        limits: limits.clone(),
        queue: queue.clone(),
        said: LogLimit::default(),
    };
    tokio::select! {
        ended = take(&socket, &mut sources, front, again) => ended,
        ended = give(&socket, &queue) => ended,
    }
}

async fn take(
    socket: &UdpSocket,
    sources: &mut Sources,
    front: &Arc<impl Answers>,
    mut again: Option<mpsc::Receiver<Again>>,
) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let other = async {
            match &mut again {
                Some(again) => again.recv().await,
                None => None,
            }
        };
        tokio::select! {
            ready = socket.readable() => ready?,
            Some((call, from)) = other => {
                sources.take(&call, from, front);
                continue;
            }
        }
        for _ in 0..BATCH {
            match socket.try_recv_from(&mut buffer) {
                Ok((len, from)) => sources.take(&buffer[..len], from, front),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        tokio::task::yield_now().await;
    }
}

async fn give(socket: &UdpSocket, queue: &Queue) -> io::Result<()> {
    let mut going = Going::default();
    loop {
        queue.next(&mut going).await;
        let mut rest = &going.bytes.out[..];
        for reply in going.replies.drain(..) {
            let Some((bytes, after)) = rest.split_at_checked(reply.len) else {
                break;
            };
            rest = after;
            if socket.send_to(bytes, reply.to).await.is_err() {
                queue.dropped.count(Dropped::Unsendable);
            }
            let (replies, room) = (1, reply.room);
            reply.client.were_sent(Sent { replies, room });
        }
        going.bytes.out.clear();
        going.bytes.out.shrink_to(REPLY_BYTES);
    }
}

/// Who has called lately.
struct Sources {
    all: BTreeMap<SocketAddr, Arc<Client>>,
    limits: Limits,
    queue: Arc<Queue>,
    said: LogLimit,
}

/// What was begun ends with the socket.
impl Drop for Sources {
    fn drop(&mut self) {
        self.all.values().for_each(|client| client.end());
    }
}

impl Sources {
    fn take(&mut self, datagram: &[u8], from: SocketAddr, front: &Arc<impl Answers>) {
        if let Err(why) = self.call(datagram, from, front) {
            self.limits.dropped.count(why);
            // Clients do that by themselves.
            if why != Dropped::Repeated {
                let why = why.name();
                self.said
                    .warn(|| tracing::warn!(%from, "a datagram is dropped: {why}"));
            }
        }
    }

    fn call(
        &mut self,
        datagram: &[u8],
        from: SocketAddr,
        front: &Arc<impl Answers>,
    ) -> Result<(), Dropped> {
        if !front.admits(from.ip().to_canonical()) {
            return Err(Dropped::NotExported);
        }
        if datagram.len() > MAX_CALL_BYTES {
            return Err(Dropped::TooLong);
        }
        let xid = *datagram.first_chunk().ok_or(Dropped::NoCall)?;
        let client = self.source(from).ok_or(Dropped::TooManySources)?;
        if client.has_at_work(u32::from_be_bytes(xid)) {
            return Err(Dropped::Repeated);
        }
        if front.pass(datagram, &client) {
            return Ok(());
        }
        let call = front.parse(Bytes::copy_from_slice(datagram));
        let call = call.ok_or(Dropped::NoCall)?;
        let room = front.reply_bytes(&call).min(MAX_DATAGRAM_BYTES);
        let ticket = client.try_ticket(datagram, room);
        answer(ticket.ok_or(Dropped::TooManyCalls)?, front, call);
        Ok(())
    }

    fn source(&mut self, from: SocketAddr) -> Option<Arc<Client>> {
        if let Some(client) = self.all.get(&from) {
            return Some(client.clone());
        }
        if self.all.len() >= MAX_SOURCES {
            self.all.retain(|_, client| !client.is_idle());
        }
        if self.all.len() >= MAX_SOURCES {
            return None;
        }
        let source = Source {
            to: from,
            queue: self.queue.clone(),
            at_work: Mutex::default(),
        };
        let address = SocketAddr::new(from.ip().to_canonical(), from.port());
        let client = Arc::new(Client::source(address, &self.limits, source));
        self.all.insert(from, client.clone());
        Some(client)
    }
}
