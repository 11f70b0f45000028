//! Ways for calls and answers: a connection, or datagrams that are sent again when no answer comes.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::{Buf, Bytes, BytesMut};
use quorate_nfs::rpc::LAST;
use quorate_nfs::{UDP_IO_BYTES, widen};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::clock;

/// The most bytes of an answer beside what was read.
const MAX_REPLY_BYTES: usize = (1 << 20) + 4096;
/// After how long a datagram is sent again that got no answer.
const AGAIN: Duration = Duration::from_millis(500);
/// The head of a record, and a call's number after it.
const HEAD: usize = 4;

/// See the module.
#[derive(Debug)]
pub enum Link {
    /// A connection, and what has come over it.
    Stream(TcpStream, BytesMut),
    /// A socket.
    Datagrams(Datagrams),
}

#[derive(Debug)]
pub struct Datagrams {
    socket: UdpSocket,
    buffer: Vec<u8>,
    /// Calls by their numbers, and when they were sent last.
    sent: BTreeMap<u32, (Instant, Vec<u8>)>,
}

impl Link {
    pub async fn connect(address: SocketAddr, is_udp: bool) -> Result<Link> {
        let connected = async {
            if !is_udp {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                return Ok(Link::Stream(stream, BytesMut::new()));
            }
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
            widen(&socket);
            socket.connect(address).await?;
            Ok::<_, std::io::Error>(Link::Datagrams(Datagrams {
                socket,
                buffer: vec![0; 1 << 16],
                sent: BTreeMap::new(),
            }))
        };
        let connected = connected.await;
        connected.with_context(|| format!("can't connect to {address}"))
    }

    /// The most bytes that are asked for at once.
    pub fn io_bytes(&self) -> u32 {
        match self {
            Link::Stream(..) => u32::MAX,
            Link::Datagrams(_) => UDP_IO_BYTES as u32,
        }
    }

    /// Whether one answer may come twice.
    pub fn may_repeat(&self) -> bool {
        matches!(self, Link::Datagrams(_))
    }

    /// Sends calls, which are records.
    pub async fn send(&mut self, mut calls: &[u8], now: Instant) -> Result<()> {
        let datagrams = match self {
            Link::Stream(stream, _) => return Ok(stream.write_all(calls).await?),
            Link::Datagrams(datagrams) => datagrams,
        };
        while let Some(head) = calls.first_chunk() {
            let len = (u32::from_be_bytes(*head) & !LAST) as usize;
            let (call, rest) = calls[HEAD..].split_at(len);
            datagrams.socket.send(call).await?;
            datagrams.sent.insert(number(call), (now, call.to_vec()));
            calls = rest;
        }
        Ok(())
    }

    /// Waits until something has come; what is sent again meanwhile is sent.
    pub async fn fill(&mut self) -> Result<()> {
        match self {
            Link::Stream(stream, coming) => {
                let read = stream.read_buf(coming).await?;
                ensure!(read > 0, "the server closed the connection");
            }
            Link::Datagrams(datagrams) => {
                while timeout(AGAIN / 2, datagrams.socket.readable())
                    .await
                    .is_err()
                {
                    datagrams.send_again().await?;
                }
            }
        }
        Ok(())
    }

    /// An answer, if there is one.
    pub fn next(&mut self) -> Result<Option<Bytes>> {
        match self {
            Link::Stream(_, coming) => next_record(coming),
            Link::Datagrams(datagrams) => datagrams.next(),
        }
    }
}

impl Datagrams {
    async fn send_again(&mut self) -> Result<()> {
        let now = clock();
        for (at, call) in self.sent.values_mut() {
            if now.saturating_duration_since(*at) > AGAIN {
                *at = now;
                self.socket.send(call).await?;
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Bytes>> {
        match self.socket.try_recv(&mut self.buffer) {
            Ok(len) => {
                let answer = &self.buffer[..len];
                self.sent.remove(&number(answer));
                Ok(Some(Bytes::copy_from_slice(answer)))
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

/// The number of a call or an answer.
fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.first_chunk().copied().unwrap_or_default())
}

/// A whole answer, if it is there.
fn next_record(coming: &mut BytesMut) -> Result<Option<Bytes>> {
    let Some(head) = coming.first_chunk::<HEAD>() else {
        return Ok(None);
    };
    let head = u32::from_be_bytes(*head);
    let len = (head & !LAST) as usize;
    ensure!(head & LAST != 0, "an answer in parts");
    ensure!(len <= MAX_REPLY_BYTES, "an answer of {len} bytes");
    if coming.len() < 4 + len {
        coming.reserve(4 + len - coming.len());
        return Ok(None);
    }
    coming.advance(4);
    Ok(Some(coming.split_to(len).freeze()))
}
