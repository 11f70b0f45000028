//! Clients that use a volume while servers are added to it and taken away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use quorate_nfs::call::{Fh, NewAttrs, Place};
use quorate_router::ask::{Ask, Given};

use crate::{Client, Serving, eventually, lock_is_free, route, route_with, servers};

struct Random(u64);

impl Random {
    /// SplitMix64.
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ z >> 31) as usize % end
    }
}

struct File {
    at: Place,
    handle: Fh,
    content: Vec<u8>,
}

/// What one client has made.
struct Made {
    dirs: Vec<Fh>,
    files: Vec<File>,
    calls: u64,
}

impl Made {
    /// What was made is there, by its names and by the handles from when it was made.
    async fn check(&self, client: &Client) {
        for file in &self.files {
            let found = client.object(Ask::Lookup(file.at.clone())).await;
            assert_eq!(found.as_ref(), Ok(&file.handle), "{:?}", file.at);
            read(client, file).await;
        }
    }
}

async fn read(client: &Client, file: &File) {
    let ask = Ask::Read {
        file: file.handle.clone(),
        offset: 0,
        count: 1 << 16,
    };
    match client.ask(ask).await.unwrap() {
        Given::Data { data, end } => assert!(data == file.content && end, "{:?}", file.at),
        other => panic!("{other:?}"),
    }
}

/// What each does at least, however soon it is told to end.
const CALLS: u64 = 50;

/// Works until it is told to end. No call may fail.
async fn work(port: u16, number: u64, ends: Arc<AtomicBool>) -> Made {
    let (client, root) = Client::connect(port).await;
    let mut random = Random(number);
    let name = |n: u64| Bytes::from(format!("{number}-{n}"));
    let new = NewAttrs::default;
    let mut made = Made {
        dirs: vec![root],
        files: Vec::new(),
        calls: 0,
    };
    while made.calls < CALLS || !ends.load(Ordering::Relaxed) {
        made.calls += 1;
        let dir = made.dirs[random.below(made.dirs.len())].clone();
        let at = Place {
            dir,
            name: name(made.calls),
        };
        let any = random.below(made.files.len().max(1));
        let (few, room) = (made.dirs.len() < 40, made.files.len() < 100);
        match (random.below(10), made.files.get_mut(any)) {
            (0, _) if few => {
                let dir = client.object(Ask::Mkdir(at, new())).await.unwrap();
                made.dirs.push(dir);
            }
            (1 | 2, _) if room => {
                let handle = client.object(Ask::Create(at.clone(), new())).await.unwrap();
                let content = Vec::new();
                made.files.push(File {
                    at,
                    handle,
                    content,
                });
            }
            (3..6, Some(file)) => {
                let (offset, len) = (random.below(3000), 1 + random.below(500));
                let data = vec![random.below(256) as u8; len];
                let end = offset + len;
                file.content.resize(file.content.len().max(end), 0);
                file.content[offset..end].copy_from_slice(&data);
                let ask = Ask::Write {
                    file: file.handle.clone(),
                    offset: offset as u64,
                    data: data.into(),
                    stable: false,
                };
                client.ask(ask).await.unwrap();
            }
            (6, Some(file)) => {
                let moved = Ask::Rename(file.at.clone(), at.clone());
                client.ask(moved).await.unwrap();
                file.at = at;
            }
            (7, Some(_)) => {
                let file = made.files.swap_remove(any);
                client.ask(Ask::Remove(file.at)).await.unwrap();
            }
            (_, Some(file)) => read(&client, file).await,
            (_, None) => {}
        }
    }
    made
}

/// A volume is added and the first is drained and removed while clients work, which two threads serve: no call fails, and all is there, also for a router that
/// starts then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_come_and_go_under_load() {
    let place = tempfile::tempdir().unwrap();
    let ports = servers(4).await;
    let serving = Serving {
        threads: 2,
        ..Serving::default()
    };
    let router = route_with(place.path(), &ports[..3], [1; 16], "hash", serving);
    let (router, port, keeper, _) = router.await;
    let ends = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..4)
        .map(|number| tokio::spawn(work(port, number, ends.clone())))
        .collect();
    let url = format!("nfs://127.0.0.1:{}/", ports[3]);
    assert_eq!(keeper.add(&url).await.unwrap(), 3);
    assert!(keeper.add(&url).await.is_err());
    assert!(keeper.remove(0).await.is_err(), "it holds buckets");
    let rest = || {
        let all = keeper.overview(|_| 0);
        all.to_move == 0 && all.moving.is_none()
    };
    eventually(rest).await;
    keeper.drain(0, false).await.unwrap();
    eventually(rest).await;
    keeper.remove(0).await.unwrap();
    let all = keeper.overview(|_| 0);
    assert!(all.moved >= 6, "{all:?}");
    let held: Vec<_> = all.volumes.iter().map(|v| (v.number, v.buckets)).collect();
    assert_eq!(held.iter().map(|v| v.0).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(held.iter().map(|v| v.1).sum::<usize>(), 12);
    ends.store(true, Ordering::Relaxed);
    let mut made = Vec::new();
    for worker in workers {
        made.push(worker.await.unwrap());
    }
    let (client, root) = Client::connect(port).await;
    for made in &made {
        made.check(&client).await;
    }
    drop((router, keeper));
    eventually(|| lock_is_free(place.path())).await;
    let (_router, port, _) = route(place.path(), &ports[1..], [2; 16], "hash").await;
    let (client, again) = Client::connect(port).await;
    assert_eq!(again, root);
    let (mut calls, mut files) = (0, 0);
    for made in &made {
        made.check(&client).await;
        calls += made.calls;
        files += made.files.len();
    }
    println!("{calls} calls; {files} files; {} buckets moved", all.moved);
    assert!(calls >= 4 * CALLS && files > 0);
}
