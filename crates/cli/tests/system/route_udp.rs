//! `quorate route` over UDP, with two threads, in front of three servers.

use std::net::UdpSocket;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use quorate_nfs::xdr::{Reader, Writer};

use crate::harness::{Random, scratch};
use crate::route::{Client, Routed, Tree, act_locally, local_tree, op};

/// How long an answer may take, with all repetitions.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(300);

/// Calls by datagrams, each of which is sent twice, and again when its answer is lost: one of four is.
fn caller(port: u16) -> impl Fn((u32, u32), u32, &[u8]) -> Option<Bytes> + Send + Sync {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.connect(("127.0.0.1", port)).expect("a way");
    socket.set_read_timeout(Some(PAUSE)).expect("a time");
    let state = Mutex::new((socket, 0, Random::new(11)));
    move |program, procedure, arguments| {
        let mut state = state.lock().expect("no panic");
        let (socket, xid, random) = &mut *state;
        *xid += 1;
        let call = call(*xid, program, procedure, arguments);
        let mut buffer = vec![0; 1 << 16];
        for _ in 0..TRIES {
            // Nobody listens while the router is away, which the system may tell.
            let _ = [socket.send(&call), socket.send(&call)];
            while let Ok(len) = socket.recv(&mut buffer) {
                let mut reply = Reader::new(Bytes::copy_from_slice(&buffer[..len]));
                if reply.u32() != Ok(*xid) {
                    continue;
                }
                if random.below(4) == 0 {
                    break;
                }
                let head: [u8; 20] = reply.array().expect("a head");
                assert_eq!(
                    head,
                    [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
                );
                return Some(reply.rest().clone());
            }
        }
        None
    }
}

/// By user 0.
pub fn call(xid: u32, (program, version): (u32, u32), procedure: u32, arguments: &[u8]) -> Vec<u8> {
    let mut w = Writer::default();
    // A call of RPC version 2, AUTH_SYS of 20 bytes: no stamp, no machine, two ids, no groups; no verifier.
    for word in [
        xid, 0, 2, program, version, procedure, 1, 20, 0, 0, 0, 0, 0, 0, 0,
    ] {
        w.u32(word);
    }
    w.fixed(arguments);
    w.out
}

/// What is done by datagrams that come twice, and whose answers are lost, is done once; also before a router that was killed and
/// started again, whose handles are the same.
#[test]
fn what_comes_twice_is_done_once() {
    let mut routed = Routed::with("udp = true\n", &["--threads", "2"]);
    let here = scratch();
    let client = Client::calling(Box::new(caller(routed.port)));
    let mut random = Random::new(10);
    let local = || {
        let mut seen = Tree::new();
        local_tree(here.path(), "", &mut seen);
        seen
    };
    let mut done = 0;
    for n in 0..400 {
        let op = op(&mut random);
        let (outcome, expected) = (client.act(&op), act_locally(here.path(), &op));
        assert_eq!(
            outcome.is_ok(),
            expected.is_ok(),
            "{n}: {op:?}: {outcome:?}, {expected:?}"
        );
        done += u32::from(outcome.is_ok());
        if n % 100 == 99 {
            assert_eq!(client.tree(), local(), "{n}: {op:?}");
            routed.kill_router();
            routed.start_router();
        }
    }
    assert!(done > 20, "{done}");
    let over_tcp = Client::connect(routed.port);
    assert_eq!(over_tcp.tree(), local());
}
