//! A client's connection as those see it who answer its calls: room for what it has asked, and what is to be sent to it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

use crate::rpc::record_head;
use crate::xdr::Writer;

/// The most calls of a connection that are at work; further ones stay in the connection.
pub const MAX_CALLS: usize = 64;
/// The most bytes of the records of one connection, and of its replies.
const CONNECTION_BYTES: usize = 16 << 20;
/// What a record and a reply count for at least.
const LEAST_BYTES: usize = 2048;

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
#[derive(Debug)]
pub struct Client {
    peer: SocketAddr,
    places: Semaphore,
    records: Room,
    replies: Room,
    outgoing: Mutex<Outgoing>,
    ready: Notify,
    tasks: Mutex<JoinSet<()>>,
}

/// Replies that wait to be sent, as records.
#[derive(Debug, Default)]
struct Outgoing {
    bytes: Writer,
    sent: Sent,
}

/// How many replies there are, and what they count for.
#[derive(Debug, Default)]
pub(super) struct Sent {
    replies: usize,
    room: usize,
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
    /// Room for the reply, once there is.
    reply: u32,
    is_answered: bool,
}

impl Client {
    pub(super) fn new(peer: SocketAddr, [records, replies]: [Arc<Semaphore>; 2]) -> Client {
        Client {
            peer,
            places: Semaphore::new(MAX_CALLS),
            records: Room::new(records),
            replies: Room::new(replies),
            outgoing: Mutex::default(),
            ready: Notify::new(),
            tasks: Mutex::default(),
        }
    }

    /// Where it calls from.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// A place for a call, if there is one and room for its record and its reply.
    pub fn try_ticket(self: &Arc<Self>, record: usize, reply: usize) -> Option<Ticket> {
        let place = self.places.try_acquire().ok()?;
        let record = Record {
            bytes: self.records.try_take(record)?,
            client: self.clone(),
        };
        let reply = self.replies.try_take(reply)?;
        place.forget();
        Some(Ticket {
            record,
            reply,
            is_answered: false,
        })
    }

    /// Waits for room for a record.
    pub(super) async fn record(self: &Arc<Self>, bytes: usize) -> Record {
        Record {
            bytes: self.records.take(bytes).await,
            client: self.clone(),
        }
    }

    /// Waits for a place for a call.
    pub(super) async fn ticket(self: &Arc<Self>, record: Record) -> Ticket {
        // Never closed.
        if let Ok(place) = self.places.acquire().await {
            place.forget();
        }
        Ticket {
            record,
            reply: 0,
            is_answered: false,
        }
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

    /// Waits for replies that are to be sent, and puts them into an empty buffer.
    pub(super) async fn outgoing(&self, into: &mut Vec<u8>) -> Sent {
        loop {
            {
                let mut outgoing = lock(&self.outgoing);
                if !outgoing.bytes.out.is_empty() {
                    std::mem::swap(&mut outgoing.bytes.out, into);
                    return std::mem::take(&mut outgoing.sent);
                }
            }
            self.ready.notified().await;
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ticket {
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
        let mut outgoing = lock(&client.outgoing);
        let w = &mut outgoing.bytes;
        let start = w.out.len();
        w.u32(0);
        write(w);
        let len = w.out.len().saturating_sub(start + 4);
        if let Some(head) = w.out.get_mut(start..start + 4) {
            head.copy_from_slice(&record_head(len));
        }
        outgoing.sent.replies += 1;
        outgoing.sent.room += self.reply as usize;
        drop(outgoing);
        self.is_answered = true;
        if start == 0 {
            client.ready.notify_one();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_answered {
            let (replies, room) = (1, self.reply as usize);
            self.client().were_sent(Sent { replies, room });
        }
    }
}
