//! What strangers can send: it is refused, or answered, and others are served meanwhile.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use nfs3_types::nfs3::*;
use nfs3_types::rpc::{accept_stat_data, auth_unix};
use nfs3_types::xdr_codec::{Opaque, Void};
use proptest::prelude::*;

use crate::client::{Client, MOUNT, NFS, Server, mode, place, record, write};
use crate::group::Group;

/// A connection that sends this; all that comes back until it ends.
fn sent(server: &Server, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    // The server may end it before it has taken all.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut back = Vec::new();
    let _ = stream.read_to_end(&mut back);
    back
}

fn head(len: u32, last: bool) -> [u8; 4] {
    (len | u32::from(last) << 31).to_be_bytes()
}

/// Records that are none, endless ones, and ones of nothing: the connection ends, and the next one is served.
#[test]
fn records_that_are_none() {
    let group = Group::start();
    let server = Server::open(&group);
    let auth = auth_unix {
        machinename: Opaque::owned(vec![b'x'; 100]),
        ..auth_unix::default()
    };
    let null = record(1, NFS, 0, &auth, &Void);
    assert_eq!(sent(&server, &null).len(), 28);
    let body = &null[4..];
    // In as many fragments as it has bytes: too many. In a few: as good as in one.
    let cut = |size: usize| {
        let pieces = body.chunks(size).count();
        let all = body
            .chunks(size)
            .enumerate()
            .flat_map(|(n, piece)| [&head(piece.len() as u32, n + 1 == pieces), piece].concat());
        all.collect::<Vec<u8>>()
    };
    assert_eq!(sent(&server, &cut(4)).len(), 28);
    assert_eq!(sent(&server, &cut(1)).len(), 0);
    for bytes in [
        head(0, false).repeat(1000),
        head((1 << 31) - 1, true).to_vec(),
        head((1 << 31) - 1, false).to_vec(),
        [
            &head(1 << 20, false),
            &vec![0; 1 << 20][..],
            &head(1 << 20, true),
        ]
        .concat(),
        head(0, true).to_vec(),
        [&head(4, true), &[0; 4][..]].concat(),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        null[..null.len() - 1].to_vec(),
        // A reply.
        [&head(8, true), &[0, 0, 0, 1, 0, 0, 0, 1][..]].concat(),
    ] {
        assert_eq!(
            sent(&server, &bytes),
            b"",
            "{:?}",
            &bytes[..bytes.len().min(8)]
        );
    }
    assert_eq!(sent(&server, &null).len(), 28);
}

/// Calls that are none of ours, or not calls of theirs, are answered as RPC has it.
#[test]
fn calls_that_are_none() {
    let group = Group::start();
    let server = Server::open(&group);
    let mut client = Client::connect(server.address, 0, 0);
    let mut stat = |program, proc, args: &[u8]| {
        let mut bytes = record(7, program, proc, &client.auth, &Void);
        bytes.extend_from_slice(args);
        let len = bytes.len() as u32 - 4;
        bytes[..4].copy_from_slice(&head(len, true));
        client.stream.write_all(&bytes).unwrap();
        let (_, reply) = client.receive();
        Client::results(&reply).0
    };
    use accept_stat_data::{GARBAGE_ARGS, PROC_UNAVAIL, PROG_MISMATCH, PROG_UNAVAIL};
    assert!(matches!(stat((100_227, 3), 1, &[]), PROG_UNAVAIL));
    assert!(matches!(
        stat((100_003, 4), 1, &[]),
        PROG_MISMATCH { low: 3, high: 3 }
    ));
    assert!(matches!(
        stat((100_005, 1), 1, &[]),
        PROG_MISMATCH { low: 3, high: 3 }
    ));
    assert!(matches!(stat(NFS, 22, &[]), PROC_UNAVAIL));
    assert!(matches!(stat(MOUNT, 6, &[]), PROC_UNAVAIL));
    for proc in 1..22 {
        assert!(matches!(stat(NFS, proc, &[]), GARBAGE_ARGS), "{proc}");
        assert!(
            matches!(stat(NFS, proc, &[0xff; 400]), GARBAGE_ARGS),
            "{proc}"
        );
    }
    assert!(matches!(stat(MOUNT, 1, &[0xff; 400]), GARBAGE_ARGS));

    // Credentials: too many groups, too long, of another kind; and another RPC.
    let many = auth_unix {
        gids: vec![1; 17],
        ..auth_unix::default()
    };
    let denied = |bytes: &[u8]| {
        let reply = sent(&server, bytes);
        let word = |n: usize| u32::from_be_bytes(reply[4 * n..4 * n + 4].try_into().unwrap());
        (word(3), word(4), word(5))
    };
    assert_eq!(denied(&record(1, NFS, 0, &many, &Void)), (1, 1, 1));
    let long = auth_unix {
        machinename: Opaque::owned(vec![b'x'; 256]),
        ..auth_unix::default()
    };
    assert_eq!(denied(&record(1, NFS, 0, &long, &Void)), (1, 1, 1));
    let plain = record(1, NFS, 0, &auth_unix::default(), &Void);
    let with = |at: usize, byte: u8| {
        let mut bytes = plain.clone();
        bytes[at] = byte;
        bytes
    };
    assert_eq!(denied(&with(31, 6)), (1, 1, 5));
    assert_eq!(denied(&with(15, 3)), (1, 0, 2));
}

/// A client that takes none of its replies, and one that is slow to say what it wants, hold up nobody else.
#[test]
fn clients_that_hang_hold_up_nobody() {
    let group = Group::start();
    let server = Server::open(&group);
    let mut client = Client::connect(server.address, 0, 0);
    let root = client.mount("/").unwrap();
    let file = client.file(&root, b"f");
    client.write(&file, 0, &vec![1; 1 << 20]).unwrap();
    let mut greedy = Client::connect(server.address, 0, 0);
    greedy
        .stream
        .set_write_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    let args = READ3args {
        file: file.clone(),
        offset: 0,
        count: 1 << 20,
    };
    for _ in 0..100 {
        greedy.send(NFS, 6, &args);
    }
    let mut slow = TcpStream::connect(server.address).unwrap();
    slow.write_all(&head(1 << 20, true)).unwrap();
    for _ in 0..20 {
        assert_eq!(
            client.read_file(&file, 0, 1 << 20).unwrap().0.len(),
            1 << 20
        );
    }
}

/// Calls of each kind, as they are sent.
fn samples() -> Vec<Vec<u8>> {
    let auth = auth_unix::default();
    let fh = nfs_fh3 {
        data: Opaque::owned(vec![1; 36]),
    };
    let all = sattr3 {
        uid: Nfs3Option::Some(1),
        gid: Nfs3Option::Some(1),
        size: Nfs3Option::Some(1),
        atime: set_atime::SET_TO_CLIENT_TIME(nfstime3::default()),
        mtime: set_mtime::SET_TO_SERVER_TIME,
        ..mode(0o644)
    };
    let at = || place(&fh, b"name");
    let device = devicedata3 {
        dev_attributes: all.clone(),
        spec: specdata3::default(),
    };
    let rename = RENAME3args {
        from: at(),
        to: at(),
    };
    let symlink = SYMLINK3args {
        where_: at(),
        symlink: symlinkdata3 {
            symlink_attributes: all.clone(),
            symlink_data: nfspath3(Opaque::borrowed(b"target")),
        },
    };
    let setattr = SETATTR3args {
        object: fh.clone(),
        new_attributes: all.clone(),
        guard: Nfs3Option::Some(nfstime3::default()),
    };
    let listing = READDIRPLUS3args {
        dir: fh.clone(),
        cookie: 3,
        cookieverf: cookieverf3::default(),
        dircount: 100,
        maxcount: 1000,
    };
    let create = CREATE3args {
        where_: at(),
        how: createhow3::UNCHECKED(all),
    };
    let mknod = MKNOD3args {
        where_: at(),
        what: mknoddata3::NF3BLK(device),
    };
    vec![
        record(1, NFS, 2, &auth, &setattr),
        record(1, NFS, 7, &auth, &write(&fh, 5, b"data")),
        record(1, NFS, 8, &auth, &create),
        record(1, NFS, 10, &auth, &symlink),
        record(1, NFS, 11, &auth, &mknod),
        record(1, NFS, 14, &auth, &rename),
        record(1, NFS, 17, &auth, &listing),
        record(1, MOUNT, 1, &auth, &nfspath3(Opaque::borrowed(b"/a/b"))),
    ]
}

proptest! {
    #![proptest_config(crate::cases::cases(2000))]

    /// Whatever comes, reading it ends in a call or in a refusal.
    #[test]
    fn reading_never_fails(
        noise in prop::collection::vec(any::<u8>(), 0..300),
        which in 0..8_usize,
        hits in prop::collection::vec((any::<u16>(), any::<u8>()), 0..4),
        cut in any::<u16>(),
    ) {
        let _ = quorate_nfs::parse(Bytes::from(noise));
        let mut call = samples()[which][4..].to_vec();
        if hits.is_empty() {
            prop_assert!(quorate_nfs::parse(Bytes::from(call.clone())).unwrap().reply_bytes() > 500);
        }
        for (at, byte) in hits {
            let at = usize::from(at) % call.len();
            call[at] = byte;
        }
        if cut.is_multiple_of(4) {
            call.truncate(usize::from(cut) % call.len());
        }
        if let Some(parsed) = quorate_nfs::parse(Bytes::from(call)) {
            prop_assert!(parsed.reply_bytes() <= 2 << 20);
        }
    }
}
