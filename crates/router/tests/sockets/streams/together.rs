//! Several connections at once, so that records of one come while another's are looked at.

use quorate_files::Who;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use super::{carried, start, streamed};
use crate::calls::{GETATTR, READ, WRITE, call, fragment, of, reply, send, status};
use crate::datagrams::written;
use crate::kernel::can_load;

const MEGABYTE: usize = 1 << 20;
const CONNECTIONS: u64 = 4;
const CALLS: u32 = 1_000;
const IN_FLIGHT: u32 = 12;
/// Where a file's number is in the results of GETATTR (RFC 1813, 2.5).
const NUMBER: std::ops::Range<usize> = 56..64;

/// Each connection gets the answers to its own calls, of the files that it asked about. A run of the switch for one may be interrupted by one
/// for another: they once had the same room to work in, and a call or a reply was that of somebody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_kept_apart() {
    if !can_load("streams_are_kept_apart") {
        return;
    }
    let site = start(true, "no_root_squash").await;
    let who = Who::new(0, 0);
    let content = |file: usize| -> Vec<u8> {
        (0..MEGABYTE)
            .map(|n| ((n * 31 + file * 7) % 251) as u8)
            .collect()
    };
    let contents = [content(0), content(1)];
    let mut first = carried(&site).await;
    let mut numbers = Vec::new();
    for (file, content) in site.files.iter().zip(&contents) {
        send(
            &mut first,
            &call(1, WRITE, &who, &written(file, 0, content)),
        )
        .await;
        assert_eq!(status(&reply(&mut first).await.unwrap().1), 0);
        send(&mut first, &call(2, GETATTR, &who, &of(file, &[]))).await;
        numbers.push(reply(&mut first).await.unwrap().1[NUMBER].to_vec());
    }
    assert_ne!(numbers[0], numbers[1]);
    let mut connections = JoinSet::new();
    for seed in 0..CONNECTIONS {
        let stream = carried(&site).await;
        let (files, who) = (site.files.clone(), who.clone());
        let (contents, numbers) = (contents.clone(), numbers.clone());
        connections.spawn(async move {
            let mut random = super::Random(seed);
            let mut asked: Vec<(usize, Option<(usize, usize)>)> = Vec::new();
            let (mut from, mut to) = stream.into_split();
            for answered in 0..CALLS {
                let mut out = Vec::new();
                while (asked.len() as u32) < CALLS.min(answered + IN_FLIGHT) {
                    let (file, xid) = (random.next() % 2, asked.len() as u32);
                    let read = (random.next().is_multiple_of(2)).then(|| {
                        let len = [8_192, 65_536, MEGABYTE, MEGABYTE][random.next() % 4];
                        (random.next() % (MEGABYTE - len + 1), len)
                    });
                    let call = match read {
                        None => call(xid, GETATTR, &who, &of(&files[file], &[])),
                        Some((at, len)) => {
                            let arguments = of(&files[file], &[0, at as u32, len as u32]);
                            call(xid, READ, &who, &arguments)
                        }
                    };
                    fragment(&mut out, &call, true);
                    asked.push((file, read));
                }
                to.write_all(&out).await.expect("calls are taken");
                let len = from.read_u32().await.expect("a reply") & !super::LAST;
                let mut record = vec![0; len as usize];
                from.read_exact(&mut record).await.expect("all of it");
                let xid = u32::from_be_bytes(*record.first_chunk().unwrap());
                let results = &record[24..];
                assert_eq!(status(results), 0, "{xid}");
                let (file, read) = asked[xid as usize];
                match read {
                    None => assert_eq!(results[NUMBER], numbers[file], "{xid}"),
                    Some((at, len)) => {
                        let data = &record[record.len() - len.next_multiple_of(4)..][..len];
                        assert!(*data == contents[file][at..at + len], "{xid}");
                    }
                }
            }
        });
    }
    while let Some(done) = connections.join_next().await {
        done.expect("each gets its answers");
    }
    let all = streamed(&site);
    assert!(all.passed >= CONNECTIONS * u64::from(CALLS) / 2, "{all:?}");
    assert_eq!(all.ended, 0);
}
