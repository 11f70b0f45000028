//! What strangers and peers send over a connection, below messages.

use std::io::Read;
use std::sync::{Arc, OnceLock};

use quorate_net::fuzzing::{cut, cut_certified};
use quorate_net::group::{Files, Group, Purpose};
use quorate_net::{Identity, tls};
use quorate_wire::{EpochCertificate, KeyPair};
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};

/// The longest message that the stream may announce here.
const LONGEST: usize = 1 << 12;

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
