//! A client's connection as those see it who answer its calls: room for what it has asked, and what is to be sent to it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quorate_files::op::MAX_IO_BYTES;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

use super::Limits;
use super::datagrams::{Source, UDP_IO_BYTES};
use crate::rpc::record_head;
use crate::xdr::Writer;

/// The most calls of a connection that are at work; further ones stay in the connection.
pub const MAX_CALLS: usize = 64;
/// The most bytes of the records of one connection, and of its replies.
const CONNECTION_BYTES: usize = 16 << 20;
/// What a record and a reply count for at least.
const LEAST_BYTES: usize = 2048;

/// From where a call comes, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// From where.
    pub address: SocketAddr,
    /// Whether each call is a datagram, which may come twice and late; else a record of a connection.
    pub is_datagram: bool,
}

impl From<SocketAddr> for Peer {
    /// Over a connection.
    fn from(address: SocketAddr) -> Peer {
        Peer {
            address,
            is_datagram: false,
        }
    }
}

impl Peer {
    /// The most bytes that one READ, WRITE or listing carries.
    pub fn io_bytes(&self) -> usize {
        match self.is_datagram {
            true => UDP_IO_BYTES,
            false => MAX_IO_BYTES,
        }
    }
}

/// Room for bytes, of one connection and of all.
#[derive(Debug)]
struct Room {
    own: Semaphore,
    all: Arc<Semaphore>,
}

impl Room {
    fn new(all: Arc<Semaphore>) -> Room {
        Room {
            own: Semaphore::new(CONNECTION_BYTES),
            all,
        }
    }

    /// Waits for room; gives what it counts for.
    async fn take(&self, bytes: usize) -> u32 {
        let bytes = counted(bytes);
        let own = self.own.acquire_many(bytes).await;
        let all = self.all.acquire_many(bytes).await;
        // Never closed.
        if let (Ok(own), Ok(all)) = (own, all) {
            own.forget();
            all.forget();
        }
        bytes
    }

    fn try_take(&self, bytes: usize) -> Option<u32> {
        let bytes = counted(bytes);
        let own = self.own.try_acquire_many(bytes).ok()?;
        self.all.try_acquire_many(bytes).ok()?.forget();
        own.forget();
        Some(bytes)
    }

    fn give_back(&self, bytes: usize) {
        self.own.add_permits(bytes);
        self.all.add_permits(bytes);
    }
}

/// What was not given back to the others goes back with the connection.
impl Drop for Room {
    fn drop(&mut self) {
        let taken = CONNECTION_BYTES.saturating_sub(self.own.available_permits());
        self.all.add_permits(taken);
    }
}

fn counted(bytes: usize) -> u32 {
    bytes.clamp(LEAST_BYTES, CONNECTION_BYTES) as u32
}

/// See the module. Room for what came and for what goes is apart: a call that has its place for the record waits for one for the
/// reply, and a reply waits for nothing but its client.
///
/// What is over UDP waits for nothing: where there is no room, the call is dropped.
#[derive(Debug)]
pub struct Client {
    peer: Peer,
    places: Semaphore,
    records: Room,
    replies: Room,
    way: Way,
    tasks: Mutex<JoinSet<()>>,
}

/// How replies go.
#[derive(Debug)]
enum Way {
    Connection(Stream),
    Datagrams(Source),
}

/// Replies that wait to be sent, as records.
#[derive(Debug, Default)]
struct Stream {
    outgoing: Mutex<Outgoing>,
    ready: Notify,
}

#[derive(Debug, Default)]
struct Outgoing {
    bytes: Writer,
    sent: Sent,
}

/// How many replies there are, and what they count for.
#[derive(Debug, Default)]
pub(super) struct Sent {
    pub replies: usize,
    pub room: usize,
}

/// Room for a record that is being read.
#[derive(Debug)]
pub(super) struct Record {
    client: Arc<Client>,
    bytes: u32,
}

impl Drop for Record {
    fn drop(&mut self) {
        self.client.records.give_back(self.bytes as usize);
    }
}

/// A call at work: its place among those of its connection. Who drops it leaves the call without an answer.
#[derive(Debug)]
pub struct Ticket {
    record: Record,
    /// The call's number.
    xid: u32,
    /// Room for the reply, once there is.
    reply: u32,
    is_answered: bool,
}

impl Client {
    /// Over a connection.
    pub(super) fn connected(address: SocketAddr, limits: &Limits) -> Client {
        let way = Way::Connection(Stream::default());
        Client::new(address.into(), limits, way)
    }

    /// Over UDP.
    pub(super) fn source(address: SocketAddr, limits: &Limits, source: Source) -> Client {
        let peer = Peer {
            address,
            is_datagram: true,
        };
        Client::new(peer, limits, Way::Datagrams(source))
    }

    fn new(peer: Peer, limits: &Limits, way: Way) -> Client {
        let [records, replies] = limits.rooms.clone();
        Client {
            peer,
            places: Semaphore::new(MAX_CALLS),
            records: Room::new(records),
            replies: Room::new(replies),
            way,
            tasks: Mutex::default(),
        }
    }

    /// From where it calls, and how.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// A place for a call, if there is one and room for its record and a reply of so many bytes.
    pub fn try_ticket(self: &Arc<Self>, record: &[u8], reply: usize) -> Option<Ticket> {
        let place = self.places.try_acquire().ok()?;
        let held = Record {
            bytes: self.records.try_take(record.len())?,
            client: self.clone(),
        };
        let reply = self.replies.try_take(reply)?;
        place.forget();
        Some(Ticket::begun(held, record, reply))
    }

    /// Whether a call by this number is at work. Over a connection nobody looks at that.
    pub(super) fn has_at_work(&self, xid: u32) -> bool {
        match &self.way {
            Way::Connection(_) => false,
            Way::Datagrams(source) => lock(&source.at_work).contains(&xid),
        }
    }

    /// Whether nothing is at work or to be sent.
    pub(super) fn is_idle(&self) -> bool {
        self.places.available_permits() == MAX_CALLS
    }

    /// Waits for room for a record.
    pub(super) async fn record(self: &Arc<Self>, bytes: usize) -> Record {
        Record {
            bytes: self.records.take(bytes).await,
            client: self.clone(),
        }
    }

    /// Waits for a place for a call.
    pub(super) async fn ticket(self: &Arc<Self>, held: Record, record: &[u8]) -> Ticket {
        // Never closed.
        if let Ok(place) = self.places.acquire().await {
            place.forget();
        }
        Ticket::begun(held, record, 0)
    }

    /// Begins what ends with the connection.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Ends what was begun.
    pub(super) fn end(&self) {
        // They have tickets of this client: they must not be kept with it.
        let tasks = std::mem::take(&mut *lock(&self.tasks));
        drop(tasks);
    }

    /// Waits for replies that are to be sent, and puts them into an empty buffer. Over UDP there are none for ever: all sources have one
    /// queue.
    pub(super) async fn outgoing(&self, into: &mut Vec<u8>) -> Sent {
        let Way::Connection(stream) = &self.way else {
            return std::future::pending().await;
        };
        loop {
            {
                let mut outgoing = lock(&stream.outgoing);
                if !outgoing.bytes.out.is_empty() {
                    std::mem::swap(&mut outgoing.bytes.out, into);
                    return std::mem::take(&mut outgoing.sent);
                }
            }
            stream.ready.notified().await;
        }
    }

    /// Makes room for others.
    pub(super) fn were_sent(&self, sent: Sent) {
        self.replies.give_back(sent.room);
        self.places.add_permits(sent.replies);
    }

    /// Waits until no call is at work and all replies were sent.
    pub(super) async fn sent(&self) {
        let _all = self.places.acquire_many(MAX_CALLS as u32).await;
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ticket {
    /// Of a record that begins with the call's number. Who has looked whether that is at work has not waited since.
    fn begun(held: Record, record: &[u8], reply: u32) -> Ticket {
        let xid = record.first_chunk().copied().unwrap_or_default();
        let xid = u32::from_be_bytes(xid);
        if let Way::Datagrams(source) = &held.client.way {
            lock(&source.at_work).insert(xid);
        }
        Ticket {
            record: held,
            xid,
            reply,
            is_answered: false,
        }
    }

    /// Whose call it is.
    pub fn client(&self) -> &Arc<Client> {
        &self.record.client
    }

    /// Waits for room for a reply of so many bytes, unless it has some.
    pub(super) async fn expect(&mut self, bytes: usize) {
        if self.reply == 0 {
            self.reply = self.client().replies.take(bytes).await;
        }
    }

    /// How many bytes the reply may have.
    pub fn room(&self) -> usize {
        self.reply as usize
    }

    /// Answers the call: `write` appends the reply to what is sent.
    pub fn reply(mut self, write: impl FnOnce(&mut Writer)) {
        let client = &self.record.client;
        let room = self.reply as usize;
        self.is_answered = match &client.way {
            Way::Connection(stream) => {
                stream.reply(room, write);
                true
            }
            Way::Datagrams(source) => source.reply(client, room, write),
        };
    }
}

impl Stream {
    fn reply(&self, room: usize, write: impl FnOnce(&mut Writer)) {
        let mut outgoing = lock(&self.outgoing);
        let w = &mut outgoing.bytes;
        let start = w.out.len();
        w.u32(0);
        write(w);
        let len = w.out.len().saturating_sub(start + 4);
        if let Some(head) = w.out.get_mut(start..start + 4) {
            head.copy_from_slice(&record_head(len));
        }
        outgoing.sent.replies += 1;
        outgoing.sent.room += room;
        drop(outgoing);
        if start == 0 {
            self.ready.notify_one();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let client = &self.record.client;
        if let Way::Datagrams(source) = &client.way {
            lock(&source.at_work).remove(&self.xid);
        }
        if !self.is_answered {
            let (replies, room) = (1, self.reply as usize);
            client.were_sent(Sent { replies, room });
        }
    }
}
