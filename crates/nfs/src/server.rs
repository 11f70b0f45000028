//! Connections: records in, replies out, as they are ready. Everything that a client can make it keep has a bound.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncWriteExt, BufWriter};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::rpc::{LAST, MAX_RECORD_BYTES, next_record, read_record, record_head};

/// The most connections at a time. Further ones are closed at once.
pub const MAX_CONNECTIONS: usize = 256;
/// The most calls of a connection that are at work; further ones stay in the connection.
pub const MAX_CALLS: usize = 64;
/// The most bytes of the records of one connection, and of its replies.
const CONNECTION_BYTES: usize = 16 << 20;
/// The same of all connections.
const ALL_BYTES: usize = 128 << 20;
/// How long a record may take to come, once it has begun, and a reply to be taken.
const TRANSFER_TIME: Duration = Duration::from_secs(60);
/// How long a connection may be silent. Linux closes one that it does not need after 5 minutes.
const IDLE_TIME: Duration = Duration::from_secs(1800);
/// Small replies are gathered up to this.
const BUFFER_BYTES: usize = 64 << 10;
/// What a record and a reply count for at least.
const LEAST_BYTES: usize = 2048;

/// Who answers calls.
pub trait Answers: Send + Sync + 'static {
    /// A call that was read.
    type Call: Send + 'static;

    /// Whether calls are taken from an address.
    fn admits(&self, address: IpAddr) -> bool;

    /// Reads a record; none if nothing can be answered, and then the connection is to end.
    fn parse(&self, record: Bytes) -> Option<Self::Call>;

    /// The most bytes that the reply can have.
    fn reply_bytes(&self, call: &Self::Call) -> usize;

    /// The reply, in bounded time. A connection that ends takes those with it that are being made.
    fn answer(
        self: &Arc<Self>,
        peer: SocketAddr,
        call: Self::Call,
    ) -> impl Future<Output = Vec<u8>> + Send;
}

/// Room for bytes, of one connection and of all.
#[derive(Debug)]
struct Room {
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
}

/// Room for what came and for what goes, apart: a call that has its place for the record waits for one for the reply, and a
/// reply waits for nothing but its client.
#[derive(Debug)]
struct Rooms {
    records: Room,
    replies: Room,
}

/// Bytes that are held.
#[derive(Debug)]
struct Held {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

/// A reply that waits to be sent.
#[derive(Debug)]
struct Outgoing {
    reply: Vec<u8>,
    _held: Held,
    _place: OwnedSemaphorePermit,
}

impl Room {
    async fn take(&self, bytes: usize) -> Option<Held> {
        let bytes = bytes.max(LEAST_BYTES) as u32;
        // Never closed.
        let own = self.own.clone().acquire_many_owned(bytes).await.ok()?;
        let all = self.all.clone().acquire_many_owned(bytes).await.ok()?;
        Some(Held {
            _own: own,
            _all: all,
        })
    }
}

/// Serves connections until it is dropped, which ends them all.
///
/// # Errors
/// If there can be no more connections: the listener is broken.
pub async fn serve(listener: TcpListener, front: impl Answers) -> io::Result<()> {
    let front = Arc::new(front);
    let all = || Arc::new(Semaphore::new(ALL_BYTES));
    let (records, replies) = (all(), all());
    let mut connections = JoinSet::new();
    let mut said = LogLimit::default();
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(e) if is_passing(&e) => {
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
        if connections.len() >= MAX_CONNECTIONS {
            said.warn(|| tracing::warn!(%peer, "too many connections"));
            continue;
        }
        let own = || Arc::new(Semaphore::new(CONNECTION_BYTES));
        let rooms = Rooms {
            records: Room {
                own: own(),
                all: records.clone(),
            },
            replies: Room {
                own: own(),
                all: replies.clone(),
            },
        };
        let front = front.clone();
        connections.spawn(async move {
            tracing::debug!(%peer, "a client connected");
            let why = connection(stream, peer, front, rooms).await;
            tracing::debug!(%peer, "its connection ended: {why}");
        });
    }
}

/// What goes by: a connection that was gone before it was taken, or too many open files.
fn is_passing(e: &io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(
        e.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    ) || matches!(e.raw_os_error(), Some(ENFILE | EMFILE))
}

/// Serves a connection, and says why it ended.
async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    front: Arc<impl Answers>,
    rooms: Rooms,
) -> String {
    // Replies are small and waited for.
    let _ = stream.set_nodelay(true);
    let (from, to) = stream.into_split();
    // As many as there are places for.
    let (sender, outgoing) = mpsc::channel(MAX_CALLS);
    tokio::select! {
        why = take(from, peer, front, rooms, sender) => why,
        why = give(to, outgoing) => why,
    }
}

/// Takes calls, each to be answered by a task of its own.
async fn take(
    mut from: OwnedReadHalf,
    peer: SocketAddr,
    front: Arc<impl Answers>,
    rooms: Rooms,
    sender: mpsc::Sender<Outgoing>,
) -> String {
    let places = Arc::new(Semaphore::new(MAX_CALLS));
    let replies = Arc::new(rooms.replies);
    // They end with the connection; what is at the group already is done all the same.
    let mut calls = JoinSet::new();
    loop {
        while calls.try_join_next().is_some() {}
        let head = match timeout(IDLE_TIME, next_record(&mut from)).await {
            Ok(Ok(Some(head))) => head,
            Ok(Ok(None)) => break,
            Ok(Err(e)) => return e.to_string(),
            Err(_) => return "it was silent for long".into(),
        };
        // Before the record is read: what waits for room stays with the client.
        let (Ok(place), Some(held)) = (
            places.clone().acquire_owned().await,
            rooms.records.take(room_for(head)).await,
        ) else {
            return "no room".into();
        };
        let record = match timeout(TRANSFER_TIME, read_record(head, &mut from)).await {
            Ok(Ok(record)) => record,
            Ok(Err(e)) => return e.to_string(),
            Err(_) => return "a call took too long to come".into(),
        };
        let Some(parsed) = front.parse(record) else {
            return "it sent what is no call".into();
        };
        let (front, sender, replies) = (front.clone(), sender.clone(), replies.clone());
        calls.spawn(async move {
            let Some(room) = replies.take(front.reply_bytes(&parsed)).await else {
                return;
            };
            let reply = front.answer(peer, parsed).await;
            drop(held);
            let outgoing = Outgoing {
                reply,
                _held: room,
                _place: place,
            };
            // If it can't be sent, the connection is ending.
            let _ = sender.send(outgoing).await;
        });
    }
    // The client has said all; it may wait for replies yet. The other half ends when it has sent them.
    while calls.join_next().await.is_some() {}
    drop(sender);
    std::future::pending().await
}

/// Room for a record that begins so.
fn room_for(head: u32) -> usize {
    match (head & LAST != 0, (head & !LAST) as usize) {
        (true, len) => len.min(MAX_RECORD_BYTES),
        (false, _) => MAX_RECORD_BYTES,
    }
}

/// Sends replies; those that are ready at the same time, together.
async fn give(to: OwnedWriteHalf, mut outgoing: mpsc::Receiver<Outgoing>) -> String {
    let mut to = BufWriter::with_capacity(BUFFER_BYTES, to);
    while let Some(mut next) = outgoing.recv().await {
        loop {
            let sent = async {
                to.write_all(&record_head(next.reply.len())).await?;
                to.write_all(&next.reply).await
            };
            match timeout(TRANSFER_TIME, sent).await {
                Ok(Ok(())) => {}
                Ok(Err(e)) => return e.to_string(),
                Err(_) => return "it takes no replies".into(),
            }
            match outgoing.try_recv() {
                Ok(more) => next = more,
                Err(_) => break,
            }
        }
        match timeout(TRANSFER_TIME, to.flush()).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => return e.to_string(),
            Err(_) => return "it takes no replies".into(),
        }
    }
    "the client ended it".into()
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
