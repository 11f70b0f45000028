//! What strangers and peers send over a connection, below messages.

use std::io::Read;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use quorate_files::Ino;
use quorate_net::fuzzing::{cut, cut_certified, cut_guest};
use quorate_net::group::{Files, Group, Purpose};
use quorate_net::{Identity, tls};
use quorate_nfs::Secrets;
use quorate_nfs::handle::Named;
use quorate_nfs::records::Records;
use quorate_nfs::rpc::{LAST, MAX_RECORD_BYTES};
use quorate_wire::{Digest, EpochCertificate, KeyPair};
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};

/// The longest message that the stream may announce here.
const LONGEST: usize = 1 << 12;
/// The longest first message of a guest here.
const LONGEST_OPENING: usize = 1 << 8;

/// A stream of frames: however it is cut, the same messages come out, and nothing that was not sent.
pub fn link(data: &[u8]) {
    let Some((&first, stream)) = data.split_first() else {
        return;
    };
    let welcome = first & 1 == 1;
    let step = usize::from(first >> 1) + 1;
    let whole = cut(LONGEST, welcome, [stream]);
    let pieces = cut(LONGEST, welcome, stream.chunks(step));
    assert_eq!(whole, pieces);
    let mut expected = vec![0; if welcome { 4 } else { 0 }];
    for message in &whole.0 {
        assert!((1..=LONGEST).contains(&message.len()));
        expected.extend((message.len() as u32).to_le_bytes());
        expected.extend(message);
    }
    let read = whole.0.is_empty() || stream.starts_with(&expected);
    assert!(read, "messages that were not sent");
    certified(stream, step);
    guest(stream, step);
}

/// The same stream where a certificate has to come first.
fn certified(stream: &[u8], step: usize) {
    let whole = cut_certified(LONGEST, [stream]);
    assert_eq!(whole, cut_certified(LONGEST, stream.chunks(step)));
    let (first, rest) = match &whole.0[..] {
        [] => return,
        [first, rest @ ..] => (first, rest),
    };
    assert_eq!(first.len(), EpochCertificate::BYTES);
    assert!(rest.iter().all(|message| message.len() <= LONGEST));
    let twice = rest.windows(2).any(|two| two.iter().all(|m| m.is_empty()));
    assert!(!twice, "a notice is told twice");
}

/// The same stream where a credential has to come first, which may be shorter.
fn guest(stream: &[u8], step: usize) {
    let whole = cut_guest(LONGEST, LONGEST_OPENING, [stream]);
    let pieces = cut_guest(LONGEST, LONGEST_OPENING, stream.chunks(step));
    assert_eq!(whole, pieces);
    let mut expected = Vec::new();
    for message in &whole.0 {
        assert!((1..=LONGEST).contains(&message.len()));
        expected.extend((message.len() as u32).to_le_bytes());
        expected.extend(message);
    }
    assert!(whole.0.first().is_none_or(|m| m.len() <= LONGEST_OPENING));
    assert!(stream.starts_with(&expected), "messages that were not sent");
}

/// Room for a stream of calls, and how much more may be asked for as it comes.
const ROOM: usize = 64;
const MEMORY_PER_BYTE: usize = 64;
const MEMORY_AT_LEAST: usize = 16 << 10;

/// What a client of NFS or a server says over TCP: the same records however the stream is cut, each of the fragments that were sent.
pub fn rpc_records(data: &[u8]) {
    let Some((&step, stream)) = data.split_first() else {
        return;
    };
    let memory = MEMORY_AT_LEAST + MEMORY_PER_BYTE * stream.len();
    let whole = crate::within(memory, || records(stream, stream.len().max(1)));
    assert_eq!(whole, records(stream, usize::from(step) + 1));
    let (whole, ended) = whole;
    let mut rest = stream;
    for record in &whole {
        assert!(record.len() <= MAX_RECORD_BYTES);
        let (sent, after) = first_record(rest).expect("a record that was sent");
        assert_eq!(*record, sent);
        rest = after;
    }
    assert!(ended || first_record(rest).is_none(), "one is left out");
}

/// The records of a stream that comes in pieces of so many bytes, and whether it ended with what is none.
fn records(stream: &[u8], piece: usize) -> (Vec<Vec<u8>>, bool) {
    let (mut records, mut all) = (Records::new(ROOM), Vec::new());
    for mut piece in stream.chunks(piece) {
        while !piece.is_empty() {
            let mut context = Context::from_waker(Waker::noop());
            let filled = pin!(records.fill(&mut piece)).poll(&mut context);
            assert!(matches!(filled, Poll::Ready(Ok(1..))), "it is there");
            assert!(records.coming() <= MAX_RECORD_BYTES);
            loop {
                match records.take() {
                    Ok(Some(record)) => all.push(record.to_vec()),
                    Ok(None) => break,
                    Err(_) => return (all, true),
                }
            }
        }
    }
    (all, false)
}

/// The first record of a stream, put together, and what follows it.
fn first_record(mut stream: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut record = Vec::new();
    loop {
        let (head, rest) = stream.split_first_chunk()?;
        let head = u32::from_be_bytes(*head);
        let (fragment, rest) = rest.split_at_checked((head & !LAST) as usize)?;
        record.extend(fragment);
        stream = rest;
        if head & LAST != 0 {
            return Some((record, stream));
        }
    }
}

/// What clients of NFS give back: refused, or one that was handed out, of this group alone.
pub fn nfs_handle(data: &[u8]) {
    let [own, other] = [1, 2].map(|group| Secrets::new(&[7; 32], &Digest([group; 32])));
    if let Ok(named) = own.read(data) {
        assert_eq!(own.handle(named)[..], *data);
        assert!(other.read(data).is_err());
    }
    if let Some((export, rest)) = data.split_first_chunk()
        && let Some(ino) = rest.first_chunk()
    {
        let named = Named {
            export: u64::from_be_bytes(*export),
            ino: Ino(u64::from_be_bytes(*ino)),
        };
        assert_eq!(own.read(&own.handle(named)), Ok(named));
    }
}

/// A handle that was handed out, for seeds.
pub fn nfs_handle_sample() -> Vec<u8> {
    let named = Named {
        export: 1,
        ino: Ino::ROOT,
    };
    Secrets::new(&[7; 32], &Digest([1; 32]))
        .handle(named)
        .to_vec()
}

/// What any client of NFS sends as one record: refused or read, with little memory, and the reply to it is bounded.
pub fn nfs(data: &[u8]) {
    const MEMORY: usize = 16 << 10;
    const LONGEST_REPLY: usize = (1 << 20) + (1 << 12);
    let record = bytes::Bytes::copy_from_slice(data);
    if let Some(parsed) = crate::within(MEMORY, || quorate_nfs::parse(record)) {
        assert!(parsed.reply_bytes() <= LONGEST_REPLY);
    }
}

struct Ends {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

fn ends() -> &'static Ends {
    static ENDS: OnceLock<Ends> = OnceLock::new();
    ENDS.get_or_init(|| {
        let key = |seed| KeyPair::from_seed(&[seed; 32]);
        let replicas = vec![("192.0.2.1:7000".to_string(), key(1).public())];
        let clients = vec![("laptop".to_string(), key(2).public())];
        let files = Files::default();
        let group = Group::new("home", replicas, clients, files, Purpose::Service);
        let group = Arc::new(group.expect("a group"));
        Ends {
            server: Identity::new(&key(1)).server_config(&group),
            client: Identity::new(&key(2)).client_config(key(1).public()),
        }
    })
}

/// A stranger that speaks first to a replica, or a false replica that answers a client: nobody is let in, nothing panics.
///
/// The first byte says which, and how much of the true dialogue comes before the input.
pub fn handshake(data: &[u8]) {
    let Some((&first, bytes)) = data.split_first() else {
        return;
    };
    let ends = ends();
    let mut server = ServerConnection::new(ends.server.clone()).expect("a server");
    let name = tls::server_name();
    let mut client = ClientConnection::new(ends.client.clone(), name).expect("a client");
    let mut said = Vec::new();
    let _ = client.write_tls(&mut said);
    if first & 2 == 2 {
        let _ = server.read_tls(&mut &said[..]);
        let _ = server.process_new_packets();
    }
    if first & 1 == 0 {
        let mut input = bytes;
        while !input.is_empty() && server.read_tls(&mut input).is_ok_and(|n| n > 0) {
            if server.process_new_packets().is_err() {
                return;
            }
        }
        assert!(server.is_handshaking() || tls::peer_key(&server).is_none());
        let _ = server.reader().read(&mut [0; 64]);
    } else {
        let mut input = bytes;
        while !input.is_empty() && client.read_tls(&mut input).is_ok_and(|n| n > 0) {
            if client.process_new_packets().is_err() {
                return;
            }
        }
        assert!(client.is_handshaking(), "nobody else has the replica's key");
    }
}

/// What the two ends of a genuine handshake say, in turn; for seeds.
pub fn dialogue() -> Vec<Vec<u8>> {
    let ends = ends();
    let mut server = ServerConnection::new(ends.server.clone()).expect("a server");
    let mut client =
        ClientConnection::new(ends.client.clone(), tls::server_name()).expect("a client");
    let mut said = Vec::new();
    for _ in 0..2 {
        let (mut one, mut other) = (Vec::new(), Vec::new());
        let _ = client.write_tls(&mut one);
        let _ = server.read_tls(&mut &one[..]);
        let _ = server.process_new_packets();
        let _ = server.write_tls(&mut other);
        let _ = client.read_tls(&mut &other[..]);
        let _ = client.process_new_packets();
        said.extend([one, other]);
    }
    said
}
