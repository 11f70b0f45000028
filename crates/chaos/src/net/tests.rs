use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use super::*;

const A: Node = Node::Replica(1);
const B: Node = Node::Replica(0);
const SOON: Duration = Duration::from_millis(150);
const LONG: Duration = Duration::from_secs(20);

/// A proxy between A and B, B's listener, and a connection through it.
async fn connected() -> (Net, TcpListener, TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut net = Net::default();
    net.connect(A, [(0, address)].into_iter(), 1).await.unwrap();
    let (there, here) = dial(&net, &listener).await;
    (net, listener, there, here)
}

async fn dial(net: &Net, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let dialed = TcpStream::connect(net.routes(A)[0].1).await.unwrap();
    let (accepted, _) = timeout(LONG, listener.accept()).await.unwrap().unwrap();
    (dialed, accepted)
}

async fn arrives(to: &mut TcpStream, wanted: &[u8], patience: Duration) -> bool {
    let mut got = vec![0; wanted.len()];
    match timeout(patience, to.read_exact(&mut got)).await {
        Ok(Ok(_)) => got == wanted,
        _ => false,
    }
}

/// One direction can be held while the other goes on, and what was held comes afterwards.
#[tokio::test]
async fn directions_are_held_apart() {
    let (mut net, _listener, mut a, mut b) = connected().await;
    net.begin(1, &[A], &[B], false, Trouble::Hold);
    a.write_all(b"one").await.unwrap();
    b.write_all(b"two").await.unwrap();
    assert!(arrives(&mut a, b"two", LONG).await);
    assert!(!arrives(&mut b, b"one", SOON).await);
    net.end(1);
    assert!(arrives(&mut b, b"one", LONG).await);
}

/// A cut ends connections and lets none through until it is over, though other troubles end meanwhile.
#[tokio::test]
async fn a_cut_ends_connections() {
    let (mut net, listener, mut a, _b) = connected().await;
    net.begin(1, &[B], &[A], true, Trouble::Cut);
    net.begin(2, &[A], &[B], true, Trouble::Hold);
    assert_eq!(
        timeout(LONG, a.read(&mut [0])).await.unwrap().unwrap_or(0),
        0
    );
    net.end(2);
    let mut again = TcpStream::connect(net.routes(A)[0].1).await.unwrap();
    assert_eq!(
        timeout(LONG, again.read(&mut [0]))
            .await
            .unwrap()
            .unwrap_or(0),
        0
    );
    net.heal();
    let mut a = TcpStream::connect(net.routes(A)[0].1).await.unwrap();
    a.write_all(b"new").await.unwrap();
    let arrived = async {
        // What was accepted before belongs to the attempt above, if anything was.
        loop {
            let (mut b, _) = listener.accept().await.unwrap();
            if arrives(&mut b, b"new", SOON * 4).await {
                return;
            }
        }
    };
    timeout(LONG, arrived)
        .await
        .expect("a new connection works");
}

/// Damage changes bytes and loses none; delay and limits lose and change none.
#[tokio::test]
async fn bytes_are_damaged_delayed_and_limited() {
    let (mut net, _listener, mut a, mut b) = connected().await;
    let always = Trouble::Corrupt { per_mille: 1000 };
    net.begin(1, &[A], &[B], false, always);
    a.write_all(&[0; 100]).await.unwrap();
    let mut got = [0; 100];
    timeout(LONG, b.read_exact(&mut got))
        .await
        .unwrap()
        .unwrap();
    assert!(got.iter().map(|byte| byte.count_ones()).sum::<u32>() >= 1);
    net.heal();

    let late = Trouble::Delay {
        ms: 2_000,
        jitter_ms: 10,
    };
    net.begin(2, &[A], &[B], true, late);
    for byte in 0..50 {
        a.write_all(&[byte]).await.unwrap();
    }
    assert!(!arrives(&mut b, &[0], SOON).await);
    let rest: Vec<u8> = (0..50).collect();
    assert!(arrives(&mut b, &rest, LONG).await);
    net.heal();

    net.begin(3, &[A], &[B], true, Trouble::Limit { kib_per_s: 100 });
    let much = vec![7; 60 << 10];
    let begun = Instant::now();
    a.write_all(&much).await.unwrap();
    assert!(arrives(&mut b, &much, LONG).await);
    // All but the last piece were waited for.
    assert!(begun.elapsed() > Duration::from_millis(300));
}

/// What one process closes is closed at the other end.
#[tokio::test]
async fn an_end_passes_through() {
    let (_net, _listener, a, mut b) = connected().await;
    drop(a);
    assert_eq!(
        timeout(LONG, b.read(&mut [0])).await.unwrap().unwrap_or(0),
        0
    );
}
