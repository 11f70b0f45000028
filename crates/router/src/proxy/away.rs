//! Calls that wait for a server that can't be reached, where the operator wants that.
//!
//! They wait before anything of them is done or held, so whatever moves or goes to other servers goes on, and nothing is sent twice. They
//! do hold the room that their connections have for calls and replies, and a connection of which all is held is not read: calls to servers that
//! are there would wait behind them. So only short ones wait, and of each client a few.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use quorate_nfs::call::Call;
use tokio::time::{sleep, timeout};

use super::{Proxy, first};
use crate::config::Away;
use crate::intent::Log;
use crate::layout::Bucket;

/// How long a call waits, for whatever servers: less than clients of changes wait.
const PATIENCE: Duration = Duration::from_secs(20);
/// Before a server is tried again.
const AGAIN: Duration = Duration::from_millis(250);
/// The most calls that wait.
const MAX_WAITING: usize = 64;
/// The most of one connection, of the 64 that it may have at work.
const MAX_OF_ONE: usize = 8;
/// The most bytes that one of them may bring or take away.
const MAX_BYTES: usize = 64 << 10;

/// Who waits; nobody where that is not wanted.
#[derive(Debug)]
pub(super) struct Waits(Option<Mutex<BTreeMap<SocketAddr, usize>>>);

impl Waits {
    pub(super) fn new(away: Away) -> Waits {
        Waits((away == Away::Wait).then(Mutex::default))
    }

    /// Whether any call does.
    pub(super) fn are_wanted(&self) -> bool {
        self.0.is_some()
    }

    fn lock(&self) -> Option<MutexGuard<'_, BTreeMap<SocketAddr, usize>>> {
        let waiting = self.0.as_ref()?.lock();
        Some(waiting.unwrap_or_else(PoisonError::into_inner))
    }

    /// A place for a call of a client. Who finds none is told that the server is away.
    fn place(&self, client: SocketAddr) -> Option<Place<'_>> {
        let mut waiting = self.lock()?;
        let of_one = waiting.get(&client).copied().unwrap_or(0);
        if of_one >= MAX_OF_ONE || waiting.values().sum::<usize>() >= MAX_WAITING {
            return None;
        }
        waiting.insert(client, of_one + 1);
        Some(Place(self, client))
    }
}

/// One who waits.
struct Place<'a>(&'a Waits, SocketAddr);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Some(mut waiting) = self.0.lock() else {
            return;
        };
        if let Some(of_one) = waiting.get_mut(&self.1) {
            *of_one -= 1;
            if *of_one == 0 {
                waiting.remove(&self.1);
            }
        }
    }
}

/// Whether a call, with arguments of so many bytes, and its reply are short.
fn is_short(call: &Call, arguments: usize) -> bool {
    let back = match call {
        Call::Read { count, .. } => *count as usize,
        _ => 0,
    };
    arguments.max(back) <= MAX_BYTES
}

impl<L: Log + Debug + 'static> Proxy<L> {
    /// Waits for the servers of what a call is about.
    pub(super) async fn wait_for(&self, client: SocketAddr, call: &Call, arguments: &Bytes) {
        if !self.waits.are_wanted() || !is_short(call, arguments.len()) {
            return;
        }
        let second = match call {
            // What one says that is away is known.
            Call::FsStat(_) => return,
            Call::Rename(_, to) => Some(&to.dir),
            Call::Link { file, .. } => Some(file),
            _ => None,
        };
        let of = |handle: &Bytes| self.handle(handle).map(|handle| handle.bucket);
        let come = async {
            for handle in first(call).into_iter().chain(second) {
                if let Ok(bucket) = of(handle) {
                    self.wait_for_bucket(client, bucket).await;
                }
            }
        };
        let _ = timeout(PATIENCE, come).await;
    }

    /// Waits for the server of a bucket, without an end.
    async fn wait_for_bucket(&self, client: SocketAddr, bucket: Bucket) {
        let Ok(at) = self.buckets().locate(bucket) else {
            return;
        };
        let Some((server, _)) = self.buckets().servers.server(at.volume) else {
            return;
        };
        if server.line().is_up() {
            return;
        }
        let Some(_place) = self.waits.place(client) else {
            return;
        };
        while !server.comes_up().await {
            sleep(AGAIN).await;
        }
    }
}
