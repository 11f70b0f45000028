//! Messages over one connection: a length (`u32`, little-endian) and that many bytes, again and again.
//!
//! A length of 0 is no message. Once, at the start, the accepting side sends it as a welcome, so that the
//! dialer knows that it was let in: in TLS 1.3 a client's handshake ends before the server has judged its key.
//!
//! Whatever a peer sends costs at most its connection. What it sends faster than it is worked on stays in its
//! socket: each message in flight to the core holds a part of its link's budget.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use quorate_wire::{Decode, DecodeError, MacKey, PublicKey};
use rustls::{ClientConfig, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::outbox::{LENGTH_BYTES, Outbox, Taken};
use crate::tls;

/// How long a connection may take until both sides know each other.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a peer may leave sent bytes unacknowledged, or a probe unanswered, before its connection ends.
const DEAD_AFTER: Duration = Duration::from_secs(15);

/// How much is read from the socket in one system call.
const SOCKET_BUFFER_BYTES: usize = 128 << 10;
/// How much ciphertext may wait for the socket.
const TLS_BUFFER_BYTES: usize = 1 << 20;
/// By how much the buffer for frames grows at a time, so that memory follows what came and not what was announced.
const READ_BYTES: usize = 256 << 10;
/// Frames up to this size are copied out of the read buffer: a slice would keep the whole buffer in memory.
const COPY_BYTES: usize = 16 << 10;
/// The least that a message counts for in its link's budget, so that tiny messages are bounded in number.
const LEAST_COST_BYTES: usize = 512;

/// A connection whose two ends have authenticated each other.
pub(crate) type Stream = TlsStream<BufReader<TcpStream>>;

/// A part of a link's budget for messages in flight to the core. Given back when dropped: do so on receipt.
#[derive(Debug, Default)]
pub struct Credit(#[allow(dead_code, reason = "held for its drop")] Option<OwnedSemaphorePermit>);

/// Where messages of a link go.
#[derive(Clone, Debug)]
pub(crate) struct Intake {
    /// The longest frame that the peer may send.
    pub max_frame_bytes: usize,
    /// Bytes that may be in flight to the core; not less than `max_frame_bytes`.
    pub budget: Arc<Semaphore>,
}

impl Credit {
    pub(crate) fn of(permit: OwnedSemaphorePermit) -> Credit {
        Credit(Some(permit))
    }
}

impl Intake {
    /// Waits until the core has taken enough of what this peer sent.
    pub async fn credit(&self, bytes: usize) -> Credit {
        let cost = bytes.max(LEAST_COST_BYTES) as u32;
        // Fails only on a closed semaphore, and these are never closed.
        Credit(self.budget.clone().acquire_many_owned(cost).await.ok())
    }
}

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum LinkEnd {
    /// The peer closed it between two frames.
    Closed,
    /// It was closed on this side: replaced by a newer one, or unwritable.
    ClosedHere,
    /// The environment's fault, or the peer's.
    Io(io::Error),
    /// The peer closed it within a frame.
    Truncated,
    /// The peer announced a frame of no or too many bytes.
    BadLength(usize),
    /// The peer sent bytes that are no message.
    Malformed(DecodeError),
}

impl LinkEnd {
    /// Whether the peer broke the rules.
    pub fn is_misbehaviour(&self) -> bool {
        match self {
            LinkEnd::Closed | LinkEnd::ClosedHere | LinkEnd::Io(_) | LinkEnd::Truncated => false,
            LinkEnd::BadLength(_) | LinkEnd::Malformed(_) => true,
        }
    }
}

impl fmt::Display for LinkEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkEnd::Closed => write!(f, "the peer closed the connection"),
            LinkEnd::ClosedHere => write!(f, "closed here"),
            LinkEnd::Io(e) => write!(f, "{e}"),
            LinkEnd::Truncated => write!(f, "the connection ended within a message"),
            LinkEnd::BadLength(n) => write!(f, "the peer announced a message of {n} bytes"),
            LinkEnd::Malformed(e) => write!(f, "the peer sent a malformed message: {e}"),
        }
    }
}

/// A task that ends with its owner.
#[derive(Debug)]
pub(crate) struct Task(JoinHandle<()>);

impl Task {
    pub fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Task {
        Task(tokio::spawn(future))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Connects to a replica and proves to each other who is who; returns when the replica has let us in.
pub(crate) async fn dial(address: &str, config: Arc<ClientConfig>) -> io::Result<Stream> {
    let connect = async {
        let tcp = TcpStream::connect(address).await?;
        tune(&tcp)?;
        let tcp = BufReader::with_capacity(SOCKET_BUFFER_BYTES, tcp);
        let connector = TlsConnector::from(config);
        let tls = connector.connect(tls::server_name(), tcp).await?;
        let mut stream = TlsStream::from(tls);
        let mut welcome = [1; LENGTH_BYTES];
        stream.read_exact(&mut welcome).await?;
        if welcome != [0; LENGTH_BYTES] {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no welcome"));
        }
        Ok(widen(stream))
    };
    in_time(connect).await
}

/// Finds out who has connected. The connection is not yet welcome.
pub(crate) async fn accept(
    tcp: TcpStream,
    config: Arc<ServerConfig>,
) -> io::Result<(Stream, PublicKey)> {
    let handshake = async {
        tune(&tcp)?;
        let tcp = BufReader::with_capacity(SOCKET_BUFFER_BYTES, tcp);
        let tls = TlsAcceptor::from(config).accept(tcp).await?;
        let key = tls::peer_key(tls.get_ref().1)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "another protocol"))?;
        Ok((widen(TlsStream::from(tls)), key))
    };
    in_time(handshake).await
}

/// Tells a dialer that it is let in.
pub(crate) async fn welcome(stream: &mut Stream) -> io::Result<()> {
    let send = async {
        stream.write_all(&[0; LENGTH_BYTES]).await?;
        stream.flush().await
    };
    in_time(send).await
}

/// The key for request MACs on this connection.
pub(crate) fn mac_key(stream: &Stream) -> io::Result<MacKey> {
    let export = |out, label: &[u8]| match stream {
        TlsStream::Client(s) => s.get_ref().1.export_keying_material(out, label, None),
        TlsStream::Server(s) => s.get_ref().1.export_keying_material(out, label, None),
    };
    tls::mac_key(export).map_err(io::Error::other)
}

/// Runs a connection to its end: writes what is put into `outbox`, hands what comes to `deliver`.
pub(crate) async fn run<M: Decode>(
    stream: Stream,
    outbox: &Arc<Outbox>,
    intake: &Intake,
    deliver: impl FnMut(M, Credit),
) -> LinkEnd {
    let (reader, writer) = tokio::io::split(stream);
    let _writer = Task::spawn(write_frames(writer, outbox.clone()));
    let end = tokio::select! {
        end = read_frames(reader, intake, deliver) => end,
        () = outbox.closed() => LinkEnd::ClosedHere,
    };
    outbox.close();
    end
}

/// Reads until the connection ends or the peer breaks the rules.
pub(crate) async fn read_frames<M: Decode>(
    mut stream: impl AsyncRead + Unpin,
    intake: &Intake,
    mut deliver: impl FnMut(M, Credit),
) -> LinkEnd {
    let mut buffer = BytesMut::with_capacity(READ_BYTES);
    loop {
        match next_frame(&mut buffer, intake.max_frame_bytes) {
            Err(end) => return end,
            Ok(Some(frame)) => {
                let credit = intake.credit(frame.len()).await;
                match M::from_bytes(frame) {
                    Ok(message) => deliver(message, credit),
                    Err(e) => return LinkEnd::Malformed(e),
                }
            }
            Ok(None) => match stream.read_buf(&mut buffer).await {
                Ok(0) if buffer.is_empty() => return LinkEnd::Closed,
                Ok(0) => return LinkEnd::Truncated,
                Ok(_) => {}
                Err(e) => return LinkEnd::Io(e),
            },
        }
    }
}

/// Takes the next whole frame out of the buffer, or makes room for more of it.
fn next_frame(buffer: &mut BytesMut, max_bytes: usize) -> Result<Option<Bytes>, LinkEnd> {
    let Some(head) = buffer.first_chunk::<LENGTH_BYTES>() else {
        buffer.reserve(READ_BYTES / 4);
        return Ok(None);
    };
    let length = u32::from_le_bytes(*head) as usize;
    if length == 0 || length > max_bytes {
        return Err(LinkEnd::BadLength(length));
    }
    let whole = LENGTH_BYTES + length;
    if buffer.len() < whole {
        let missing = whole - buffer.len();
        // At most doubles what is there.
        buffer.reserve(missing.min(buffer.len().max(READ_BYTES)));
        return Ok(None);
    }
    let frame = buffer.split_to(whole);
    let frame = if length <= COPY_BYTES {
        Bytes::copy_from_slice(&frame[LENGTH_BYTES..])
    } else {
        frame.freeze().slice(LENGTH_BYTES..)
    };
    Ok(Some(frame))
}

/// Writes until the connection fails; the owner of the task ends it.
async fn write_frames(mut stream: impl AsyncWrite + Unpin, outbox: Arc<Outbox>) {
    let mut buffer = Vec::new();
    let outcome: io::Result<()> = async {
        loop {
            match outbox.take(&mut buffer) {
                Taken::Gathered => {
                    stream.write_all(&buffer).await?;
                    buffer.clear();
                }
                Taken::Large(frame) => stream.write_all(&frame).await?,
                Taken::Nothing => {
                    stream.flush().await?;
                    outbox.filled().await;
                }
            }
        }
    }
    .await;
    if let Err(e) = outcome {
        tracing::debug!("writing to a link failed: {e}");
    }
    outbox.close();
}

async fn in_time<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Lets a whole batch of frames be sealed for each system call.
fn widen(mut stream: Stream) -> Stream {
    match &mut stream {
        TlsStream::Client(s) => s.get_mut().1.set_buffer_limit(Some(TLS_BUFFER_BYTES)),
        TlsStream::Server(s) => s.get_mut().1.set_buffer_limit(Some(TLS_BUFFER_BYTES)),
    }
    stream
}

/// No waiting for more bytes to send, and an end to connections whose other side is gone without a word.
fn tune(tcp: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    tcp.set_nodelay(true)?;
    sockopt::set_socket_keepalive(tcp, true)?;
    sockopt::set_tcp_keepidle(tcp, DEAD_AFTER / 3)?;
    sockopt::set_tcp_keepintvl(tcp, DEAD_AFTER / 5)?;
    sockopt::set_tcp_keepcnt(tcp, 3)?;
    sockopt::set_tcp_user_timeout(tcp, DEAD_AFTER.as_millis() as u32)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_wire::Encode;
    use quorate_wire::message::ClientMessage;

    fn intake(budget: usize) -> Intake {
        Intake {
            max_frame_bytes: 1 << 20,
            budget: Arc::new(Semaphore::new(budget)),
        }
    }

    fn framed(payload: &[u8]) -> Vec<u8> {
        let mut out = (payload.len() as u32).to_le_bytes().to_vec();
        out.extend_from_slice(payload);
        out
    }

    async fn read_all(bytes: &[u8]) -> (Vec<ClientMessage>, LinkEnd) {
        let mut got = Vec::new();
        let end = read_frames(bytes, &intake(4 << 20), |m, _| got.push(m)).await;
        (got, end)
    }

    /// However the bytes are cut, whole messages arrive and a cut one ends the connection.
    #[tokio::test]
    async fn whole_messages_arrive() {
        let messages: Vec<_> = (0..5).map(ClientMessage::ReportPlease).collect();
        let bytes: Vec<u8> = messages
            .iter()
            .flat_map(|m| framed(&m.to_bytes()))
            .collect();
        let each = bytes.len() / 5;
        for cut in 0..=bytes.len() {
            let (got, end) = read_all(&bytes[..cut]).await;
            assert_eq!(got, messages[..cut / each]);
            assert_eq!(matches!(end, LinkEnd::Closed), cut % each == 0);
            assert_eq!(matches!(end, LinkEnd::Truncated), cut % each != 0);
        }
    }

    /// Lengths of nothing and of too much, and bytes that are no message, end the connection.
    #[tokio::test]
    async fn nonsense_ends_the_connection() {
        for length in [0u32, (1 << 20) + 1, u32::MAX] {
            let (got, end) = read_all(&length.to_le_bytes()).await;
            assert!(got.is_empty() && end.is_misbehaviour());
            assert!(matches!(end, LinkEnd::BadLength(n) if n == length as usize));
        }
        let (got, end) = read_all(&framed(b"\xffnonsense")).await;
        assert!(got.is_empty() && matches!(end, LinkEnd::Malformed(_)));
    }

    /// A peer whose messages are not taken is not read any further.
    #[tokio::test]
    async fn a_flood_waits_for_credit() {
        let message = framed(&ClientMessage::ReportPlease(1).to_bytes());
        let flood = message.repeat(100);
        let intake = intake(10 * LEAST_COST_BYTES);
        let mut held = Vec::new();
        let reading = read_frames(flood.as_slice(), &intake, |m: ClientMessage, credit| {
            held.push((m, credit))
        });
        let outcome = tokio::time::timeout(Duration::from_millis(50), reading).await;
        assert!(outcome.is_err(), "still waiting");
        assert_eq!(held.len(), 10);
    }
}
