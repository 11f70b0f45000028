//! What ends or holds back a session of the switch: clients that stall or send too much, servers that fail or fall silent, buckets that move.

use std::time::Duration;

use quorate_files::Who;
use quorate_router::kernel::Choice;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::{MEGABYTE, carried, start, streamed};
use crate::Serving;
use crate::calls::{GETATTR, NULL, READ, WRITE, call, fragment, of, reply, send, status};
use crate::datagrams::written;
use crate::eventually;
use crate::kernel::can_load;
use crate::straight::{Site, TEXT};
use crate::told::Manner;

/// Who reads no replies is asked for no more than there is room for, and holds up nobody; when it reads at last it gets all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_stalls_is_held_back() {
    if !can_load("a_client_that_stalls_is_held_back") {
        return;
    }
    let site = start(true, "no_root_squash").await;
    let who = Who::new(5, 6);
    let mut stalled = carried(&site).await;
    let content = vec![7; MEGABYTE as usize];
    send(
        &mut stalled,
        &call(1, WRITE, &who, &written(&site.files[0], 0, &content)),
    )
    .await;
    assert_eq!(status(&reply(&mut stalled).await.unwrap().1), 0);
    let before = site.told.count(READ);
    for xid in 0..64 {
        let words = [0, 0, MEGABYTE];
        send(
            &mut stalled,
            &call(xid, READ, &who, &of(&site.files[0], &words)),
        )
        .await;
    }
    let reads = || site.told.count(READ) - before;
    eventually(|| reads() >= 15).await;
    let mut other = carried(&site).await;
    for xid in 0..500 {
        let words = [0, 0, 9];
        send(
            &mut other,
            &call(xid, READ, &who, &of(&site.files[0], &words)),
        )
        .await;
        assert_eq!(status(&reply(&mut other).await.unwrap().1), 0);
    }
    sleep(Duration::from_secs(2)).await;
    let taken_up = reads() - 500;
    assert!((15..=48).contains(&taken_up), "{taken_up}");
    for _ in 0..64 {
        let (_, results) = reply(&mut stalled).await.unwrap();
        assert_eq!(
            (status(&results), results.len()),
            (0, 20 + MEGABYTE as usize)
        );
    }
    assert_eq!(reads(), 564);
    assert_eq!(streamed(&site).ended, 0);
}

/// Who sends on and on what a silent server has not taken is ended, and served in user space from then on, where it is held back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_sends_too_much_is_set_apart() {
    if !can_load("a_client_that_sends_too_much_is_set_apart") {
        return;
    }
    let site = start(true, "no_root_squash").await;
    let who = Who::new(5, 6);
    let mut stream = carried(&site).await;
    site.manner(Manner::Held);
    let content = vec![7; MEGABYTE as usize];
    let asked = call(1, WRITE, &who, &written(&site.files[0], 0, &content));
    let mut out = Vec::new();
    fragment(&mut out, &asked, true);
    let mut sent = 0u32;
    let flood = async {
        while stream.write_all(&out).await.is_ok() {
            sent += 1;
            // Its number, after the head of the record.
            out[4..8].copy_from_slice(&u32::to_be_bytes(1 + sent));
        }
    };
    timeout(Duration::from_secs(60), flood)
        .await
        .expect("it ends");
    assert!((40..160).contains(&sent), "{sent}");
    let is_over = || streamed(&site).ended == 1 && streamed(&site).connections == 0;
    eventually(is_over).await;
    site.manner(Manner::Well);
    let before = streamed(&site);
    let mut stream = site.connect().await;
    send(
        &mut stream,
        &call(2, GETATTR, &who, &of(&site.files[1], &[])),
    )
    .await;
    assert_eq!(status(&reply(&mut stream).await.unwrap().1), 0);
    let after = streamed(&site);
    assert_eq!((after.connections, after.left), (0, before.left));
}

/// A server that ends, lies or says too much ends the connections of its clients, which come back; they are told nothing that is not so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_fails_ends_sessions() {
    if !can_load("a_server_that_fails_ends_sessions") {
        return;
    }
    let who = Who::new(5, 6);
    for manner in [Manner::Refusing, Manner::Garbled, Manner::Long] {
        let site = start(true, "no_root_squash").await;
        let mut stream = carried(&site).await;
        site.manner(manner);
        send(
            &mut stream,
            &call(1, READ, &who, &of(&site.files[0], &[0, 0, 9])),
        )
        .await;
        assert!(reply(&mut stream).await.is_none(), "{manner:?}");
        // In user space each such call is answered.
        let mut stream = site.connect().await;
        send(
            &mut stream,
            &call(2, READ, &who, &of(&site.files[0], &[0, 0, 9])),
        )
        .await;
        assert_ne!(
            status(&reply(&mut stream).await.unwrap().1),
            0,
            "{manner:?}"
        );
        send(
            &mut stream,
            &call(3, READ, &who, &of(&site.files[1], &[0, 0, 9])),
        )
        .await;
        assert_eq!(
            status(&reply(&mut stream).await.unwrap().1),
            0,
            "{manner:?}"
        );
    }
    let site = start(true, "no_root_squash").await;
    let mut stream = carried(&site).await;
    site.manner(Manner::Never);
    for xid in 0..8 {
        send(
            &mut stream,
            &call(xid, READ, &who, &of(&site.files[0], &[0, 0, 9])),
        )
        .await;
    }
    sleep(Duration::from_millis(100)).await;
    site.server.abort();
    assert!(reply(&mut stream).await.is_none());
    eventually(|| streamed(&site).connections == 0).await;
    // It is not set apart for that: what can be passed on is.
    let mut stream = site.connect().await;
    for xid in 0..200 {
        send(
            &mut stream,
            &call(xid, READ, &who, &of(&site.files[1], &[0, 0, 9])),
        )
        .await;
        let (_, results) = reply(&mut stream).await.unwrap();
        assert_eq!(results[20..29], TEXT[..9]);
    }
    assert_eq!(streamed(&site).ended, 0);
}

/// Asks what is not answered; how long it takes until the connection ends for that.
async fn ends_unanswered(site: &Site, stream: &mut TcpStream) -> Duration {
    let asked = of(&site.files[0], &[0, 0, 9]);
    let begun = Instant::now();
    send(stream, &call(1, READ, &Who::new(5, 6), &asked)).await;
    assert!(reply(stream).await.is_none());
    begun.elapsed()
}

/// One that stays silent is found out, and the client asks again by user space.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_falls_silent_ends_sessions() {
    if !can_load("a_server_that_falls_silent_ends_sessions") {
        return;
    }
    let site = start(true, "no_root_squash").await;
    let mut stream = carried(&site).await;
    site.manner(Manner::Never);
    let took = ends_unanswered(&site, &mut stream).await;
    assert!((18..40).contains(&took.as_secs()));
    assert_eq!(streamed(&site).ended, 1);
}

/// One whose machine is silent, so that it takes no further connections, is found out long before one that may think.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_falls_silent_ends_sessions() {
    if !can_load("a_machine_that_falls_silent_ends_sessions") {
        return;
    }
    let serving = Serving {
        streams: Some(Choice::All),
        gate: true,
        ..Serving::default()
    };
    let mut site = Site::with(serving).await;
    let mut stream = carried(&site).await;
    site.manner(Manner::Never);
    site.gate.as_mut().unwrap().shut().await;
    let asked = site.told.count(NULL);
    let took = ends_unanswered(&site, &mut stream).await;
    println!("found out after {took:?}");
    assert!(took.as_secs() < 15, "{took:?}");
    assert!(site.told.count(NULL) > asked);
    assert_eq!(streamed(&site).ended, 1);
}

/// A bucket that moves while files in it are read and written: no call fails or is lost, and then all goes by user space.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buckets_leave_streams_before_they_move() {
    if !can_load("buckets_leave_streams_before_they_move") {
        return;
    }
    let site = start(true, "no_root_squash").await;
    let who = Who::new(0, 0);
    let mut stream = carried(&site).await;
    let keeper = site.keeper.clone();
    let draining = tokio::spawn(async move { keeper.drain(0, false).await });
    let file = &site.files[0];
    let (mut xid, end) = (0u32, Instant::now() + Duration::from_secs(60));
    let mut content = TEXT.to_vec();
    loop {
        // Several at once, so that some are under way at any time.
        let first = xid;
        for _ in 0..4 {
            xid += 1;
            let at = xid as usize % (TEXT.len() - 4);
            content[at..at + 4].copy_from_slice(&xid.to_be_bytes());
            let bytes = xid.to_be_bytes();
            send(
                &mut stream,
                &call(xid, WRITE, &who, &written(file, at as u32, &bytes)),
            )
            .await;
            let (told, results) = reply(&mut stream).await.unwrap();
            assert_eq!((told, status(&results)), (xid, 0));
        }
        xid += 1;
        send(&mut stream, &call(xid, READ, &who, &of(file, &[0, 0, 99]))).await;
        let (_, results) = reply(&mut stream).await.unwrap();
        assert_eq!(
            results[20..20 + content.len()],
            content[..],
            "after {first}"
        );
        let all = site.keeper.overview(|_| 0);
        if all.moving.is_none() && all.to_move == 0 && all.moved > 0 {
            break;
        }
        assert!(Instant::now() < end, "it does not end: {all:?}");
    }
    draining.await.unwrap().unwrap();
    let before = streamed(&site);
    for n in 1..=20 {
        send(
            &mut stream,
            &call(xid + n, READ, &who, &of(file, &[0, 0, 99])),
        )
        .await;
        let (_, results) = reply(&mut stream).await.unwrap();
        assert_eq!(results[20..20 + content.len()], content[..]);
    }
    let after = streamed(&site);
    assert_eq!(
        (after.passed, after.left),
        (before.passed, before.left + 20)
    );
    assert_eq!(after.ended, 0);
}

/// What a session has is free when it ends, with calls under way or without: more follow than there are places.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_ends_leaves_nothing() {
    if !can_load("a_session_that_ends_leaves_nothing") {
        return;
    }
    let site = start(true, "no_root_squash").await;
    let who = Who::new(5, 6);
    let mut stream = carried(&site).await;
    site.manner(Manner::Never);
    for xid in 0..40 {
        let words = [0, 0, MEGABYTE / 4];
        send(
            &mut stream,
            &call(xid, READ, &who, &of(&site.files[0], &words)),
        )
        .await;
    }
    sleep(Duration::from_millis(200)).await;
    drop(stream);
    site.manner(Manner::Well);
    for n in 0..560 {
        // One that is closed is looked after for a moment yet, and there are 256 at most.
        eventually(|| streamed(&site).connections < 200).await;
        let mut stream = site.connect().await;
        send(
            &mut stream,
            &call(n, GETATTR, &who, &of(&site.files[0], &[])),
        )
        .await;
        assert_eq!(status(&reply(&mut stream).await.unwrap().1), 0);
    }
    let is_empty = || streamed(&site).connections == 0;
    timeout(Duration::from_secs(40), eventually(is_empty))
        .await
        .expect("all have ended");
    let mut stream = carried(&site).await;
    let before = streamed(&site).passed;
    for xid in 0..30 {
        let words = [0, 0, MEGABYTE];
        send(
            &mut stream,
            &call(xid, READ, &who, &of(&site.files[1], &words)),
        )
        .await;
        assert_eq!(status(&reply(&mut stream).await.unwrap().1), 0);
    }
    assert_eq!(streamed(&site).passed, before + 30);
    // A bucket of which calls were given up moves.
    site.keeper.drain(0, false).await.unwrap();
    eventually(|| {
        let all = site.keeper.overview(|_| 0);
        all.moving.is_none() && all.to_move == 0
    })
    .await;
}
