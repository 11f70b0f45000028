//! Connections: records in, replies out, as they are ready. Everything that a client can make it keep has a bound.

pub mod carrier;
pub mod client;
pub mod datagrams;
pub mod listen;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quorate_net::is_passing;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use crate::records::{CALL_BYTES, REPLY_BYTES, Records};
use carrier::{Carried, Carrier, Tally};
use client::{Client, Peer, Ticket};
use datagrams::Drops;

/// The most connections at a time. Further ones are closed at once.
pub const MAX_CONNECTIONS: usize = 256;
/// The most bytes of the records of all connections, and of their replies.
const ALL_BYTES: usize = 128 << 20;
/// How long a record may take to come, once it has begun, and a megabyte of replies to be taken.
const TRANSFER_TIME: Duration = Duration::from_secs(60);
const MEGABYTE: usize = 1 << 20;
/// How long a connection may be silent. Linux closes one that it does not need after 5 minutes.
const IDLE_TIME: Duration = Duration::from_secs(1800);

/// Who answers calls.
pub trait Answers: Send + Sync + 'static {
    /// A call that was read.
    type Call: Send + 'static;

    /// Whether calls are taken from an address.
    fn admits(&self, address: IpAddr) -> bool;

    /// What is served of a connection that was taken: itself, or another in its place.
    fn carry(
        self: &Arc<Self>,
        stream: TcpStream,
        _peer: SocketAddr,
    ) -> impl Future<Output = Carried> + Send {
        async { Carried::from(stream) }
    }

    /// The client of a connection that was taken will say no more: it has closed it, or it has ended. Told once or twice.
    fn left(&self, _peer: Peer) {}

    /// Sends a call on without waiting for anything, if that can be done: who gets its answer gives it to a ticket of the client. False: the call
    /// is read and answered as others are.
    fn pass(self: &Arc<Self>, _record: &[u8], _client: &Arc<Client>) -> bool {
        false
    }

    /// Reads a record; none if nothing can be answered, and then the connection is to end.
    fn parse(&self, record: Bytes) -> Option<Self::Call>;

    /// The most bytes that the reply can have.
    fn reply_bytes(&self, call: &Self::Call) -> usize;

    /// The reply, in bounded time. A connection that ends takes those with it that are being made.
    fn answer(
        self: &Arc<Self>,
        peer: Peer,
        call: Self::Call,
    ) -> impl Future<Output = Vec<u8>> + Send;
}

/// What all that serve the same clients have together.
#[derive(Clone, Debug)]
struct Limits {
    /// For records, and for replies.
    rooms: [Arc<Semaphore>; 2],
    connections: Arc<Semaphore>,
    dropped: Arc<Drops>,
}

impl Default for Limits {
    fn default() -> Limits {
        let all = || Arc::new(Semaphore::new(ALL_BYTES));
        Limits {
            rooms: [all(), all()],
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            dropped: Arc::default(),
        }
    }
}

/// Serves connections until it is dropped, which ends them all.
///
/// # Errors
/// If there can be no more connections: the listener is broken.
pub async fn serve(listener: TcpListener, front: impl Answers) -> io::Result<()> {
    connections(listener, &Arc::new(front), &Limits::default()).await
}

async fn connections(
    listener: TcpListener,
    front: &Arc<impl Answers>,
    limits: &Limits,
) -> io::Result<()> {
    let mut connections = JoinSet::new();
    let mut said = LogLimit::default();
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(e) if is_passing(&e) => {
                said.warn(|| tracing::warn!("a connection can't be taken: {e}"));
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
            Err(e) => return Err(e),
        };
        while connections.try_join_next().is_some() {}
        // An IPv4 client of a listener for both.
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        if !front.admits(peer.ip()) {
            said.warn(|| tracing::warn!(%peer, "nothing is exported to this address"));
            continue;
        }
        let Ok(place) = limits.connections.clone().try_acquire_owned() else {
            said.warn(|| tracing::warn!(%peer, "too many connections"));
            continue;
        };
        let client = Client::connected(peer, limits);
        let front = front.clone();
        connections.spawn(async move {
            tracing::debug!(%peer, "a client connected");
            let ends = Ends(Arc::new(client), front.clone());
            let carried = front.carry(stream, peer).await;
            let why = connection(carried, &ends.0, front).await;
            drop(ends);
            tracing::debug!(%peer, "its connection ended: {why}");
            drop(place);
        });
    }
}

/// Ends what a connection has begun, with it.
struct Ends<F: Answers>(Arc<Client>, Arc<F>);

impl<F: Answers> Drop for Ends<F> {
    fn drop(&mut self) {
        self.0.end();
        self.1.left(self.0.peer());
    }
}

/// Serves a connection, and says why it ended.
async fn connection(carried: Carried, client: &Arc<Client>, front: Arc<impl Answers>) -> String {
    let Carried {
        stream,
        carrier,
        tally,
    } = carried;
    // Replies are small and waited for.
    let _ = stream.set_nodelay(true);
    let (from, to) = stream.into_split();
    let carrier = carrier.as_deref();
    // A carrier knows itself how long its client is silent: of most calls nothing is seen here.
    let idle = carrier.is_none().then_some(IDLE_TIME);
    let carried = async {
        match carrier {
            Some(carrier) => carrier.ended().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        why = take(from, client, &front, idle, tally.as_deref()) => why,
        why = give(to, client, carrier, tally.as_deref()) => why,
        why = carried => why,
    }
}

/// Takes calls: those that can't be passed on are answered by a task of their own.
async fn take(
    mut from: OwnedReadHalf,
    client: &Arc<Client>,
    front: &Arc<impl Answers>,
    idle: Option<Duration>,
    tally: Option<&Tally>,
) -> String {
    let mut records = Records::new(CALL_BYTES);
    let mut held = None;
    // When the record began of which a part is there.
    let mut began = None;
    loop {
        loop {
            let record = match records.take() {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(e) => return e.to_string(),
            };
            began = None;
            if let Some(tally) = tally {
                tally.add(1, record.len() as u64);
            }
            let held = held.take();
            if front.pass(record, client) {
                continue;
            }
            let held = match held {
                Some(held) => held,
                None => client.record(record.len()).await,
            };
            let ticket = client.ticket(held, record).await;
            let Some(call) = front.parse(Bytes::copy_from_slice(record)) else {
                return "it sent what is no call".into();
            };
            answer(ticket, front, call);
        }
        let has_part = records.has_part();
        // Before more of it is taken: what waits for room stays with the client.
        if held.is_none() && records.coming() > CALL_BYTES {
            held = Some(client.record(records.coming()).await);
        }
        let read = match has_part {
            false => match idle {
                Some(idle) => timeout(idle, records.fill(&mut from)).await,
                None => Ok(records.fill(&mut from).await),
            },
            true => {
                let began = *began.get_or_insert_with(Instant::now);
                timeout_at(began + TRANSFER_TIME, records.fill(&mut from)).await
            }
        };
        match read {
            Ok(Ok(0)) if has_part => return "it ended within a call".into(),
            Ok(Ok(0)) => break,
            Ok(Ok(_)) => {}
            Ok(Err(e)) => return e.to_string(),
            Err(_) if has_part => return "a call took too long to come".into(),
            Err(_) => return "it was silent for long".into(),
        }
    }
    // The client has said all; it may wait for replies yet.
    front.left(client.peer());
    client.sent().await;
    "the client ended it".into()
}

/// Answers a call by a task, which ends with the connection; what is at the group already is done all the same.
fn answer<F: Answers>(mut ticket: Ticket, front: &Arc<F>, call: F::Call) {
    let (client, front) = (ticket.client().clone(), front.clone());
    client.spawn(async move {
        ticket.expect(front.reply_bytes(&call)).await;
        let reply = front.answer(ticket.client().peer(), call).await;
        ticket.reply(|w| w.fixed(&reply));
    });
}

/// Answers a call as others are that can't be passed on, after it was passed on.
pub fn take_back<F: Answers>(ticket: Ticket, front: &Arc<F>, record: Bytes) {
    if let Some(call) = front.parse(record) {
        answer(ticket, front, call);
    }
}

/// Sends replies; those that are ready at the same time, together.
async fn give(
    mut to: OwnedWriteHalf,
    client: &Client,
    carrier: Option<&dyn Carrier>,
    tally: Option<&Tally>,
) -> String {
    let mut going = Vec::new();
    loop {
        let sent = client.outgoing(&mut going).await;
        for part in going.chunks(MEGABYTE) {
            if let Some(carrier) = carrier
                && timeout(TRANSFER_TIME, carrier.room()).await.is_err()
            {
                return "it takes no replies".into();
            }
            match timeout(TRANSFER_TIME, to.write_all(part)).await {
                Ok(Ok(())) => {}
                Ok(Err(e)) => return e.to_string(),
                Err(_) => return "it takes no replies".into(),
            }
        }
        if let Some(tally) = tally {
            tally.add(0, going.len() as u64);
        }
        client.were_sent(sent);
        going.clear();
        going.shrink_to(REPLY_BYTES);
    }
}

/// Lets a warning a second through, so that strangers can't fill the disk with them.
#[derive(Debug, Default)]
struct LogLimit {
    last: Option<Instant>,
}

impl LogLimit {
    fn warn(&mut self, say: impl FnOnce()) {
        let now = Instant::now();
        let recent = |last| now.saturating_duration_since(last) < Duration::from_secs(1);
        if !self.last.is_some_and(recent) {
            self.last = Some(now);
            say();
        }
    }
}
