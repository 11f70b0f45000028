//! Calls and replies as bytes.

use std::time::Duration;

use bytes::Bytes;
use quorate_files::Who;
use quorate_nfs::call::Fh;
use quorate_nfs::rpc::LAST;
use quorate_nfs::status::Status;
use quorate_nfs::xdr::Writer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

pub const NULL: u32 = 0;
pub const GETATTR: u32 = 1;
pub const LOOKUP: u32 = 3;
pub const ACCESS: u32 = 4;
pub const READLINK: u32 = 5;
pub const READ: u32 = 6;
pub const WRITE: u32 = 7;
pub const CREATE: u32 = 8;
pub const READDIR: u32 = 16;
pub const FSSTAT: u32 = 18;
pub const COMMIT: u32 = 21;
pub const JUKEBOX: u32 = Status::Jukebox as u32;
pub const SERVERFAULT: u32 = Status::ServerFault as u32;

pub fn fragment(out: &mut Vec<u8>, bytes: &[u8], last: bool) {
    let head = bytes.len() as u32 | if last { LAST } else { 0 };
    out.extend_from_slice(&head.to_be_bytes());
    out.extend_from_slice(bytes);
}

/// A call without the head of its record.
pub fn call(xid: u32, procedure: u32, who: &Who, arguments: &[u8]) -> Vec<u8> {
    let mut w = Writer::default();
    for word in [xid, 0, 2, 100_003, 3, procedure, 1] {
        w.u32(word);
    }
    let mut body = Writer::default();
    body.u32(7);
    body.opaque(b"tests");
    let ids = [who.uid, who.gid, who.groups.len() as u32];
    ids.iter().chain(&who.groups).for_each(|&id| body.u32(id));
    w.opaque(&body.out);
    w.u32(0);
    w.u32(0);
    w.fixed(arguments);
    w.out
}

pub fn of(object: &Fh, words: &[u32]) -> Vec<u8> {
    let mut w = Writer::default();
    w.opaque(object);
    words.iter().for_each(|&word| w.u32(word));
    w.out
}

pub async fn send(stream: &mut TcpStream, call: &[u8]) {
    let mut out = Vec::new();
    fragment(&mut out, call, true);
    stream.write_all(&out).await.unwrap();
}

/// The number of the next reply, and its results; none at the end.
pub async fn reply(stream: &mut TcpStream) -> Option<(u32, Bytes)> {
    let read = async {
        let head = stream.read_u32().await.ok()?;
        assert!(head & LAST != 0, "a reply in parts");
        let mut record = vec![0; (head & !LAST) as usize];
        stream.read_exact(&mut record).await.ok()?;
        Some(Bytes::from(record))
    };
    let record = timeout(Duration::from_secs(60), read)
        .await
        .expect("in time")?;
    let xid = u32::from_be_bytes(*record.first_chunk().unwrap());
    assert_eq!(record[4..24], [[0, 0, 0, 1].as_slice(), &[0; 16]].concat());
    Some((xid, record.slice(24..)))
}

pub fn status(results: &[u8]) -> u32 {
    u32::from_be_bytes(*results.first_chunk().unwrap())
}
