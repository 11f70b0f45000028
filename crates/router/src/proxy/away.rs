//! Calls that wait for a server that can't be reached, where the operator wants that.
//!
//! They wait before anything of them is done or held, so whatever moves or goes to other servers goes on, and nothing is sent twice. They
//! do hold the room that their clients have for calls, so there are few of them.

use std::fmt::Debug;
use std::time::Duration;

use bytes::Bytes;
use quorate_nfs::call::Call;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::{Proxy, first};
use crate::config::Away;
use crate::intent::Log;
use crate::layout::Bucket;

/// How long: less than clients of changes wait.
const PATIENCE: Duration = Duration::from_secs(20);
/// Before a server is tried again.
const AGAIN: Duration = Duration::from_millis(250);
/// The most calls that wait. With a megabyte each they take half of the room that there is for those of all clients.
const MAX_WAITING: usize = 64;

/// Who may wait.
#[derive(Debug)]
pub(super) struct Waits(Option<Semaphore>);

impl Waits {
    pub(super) fn new(away: Away) -> Waits {
        let is_wanted = away == Away::Wait;
        Waits(is_wanted.then(|| Semaphore::new(MAX_WAITING)))
    }

    /// Whether any call does.
    pub(super) fn are_wanted(&self) -> bool {
        self.0.is_some()
    }
}

impl<L: Log + Debug + 'static> Proxy<L> {
    /// Waits for the servers of what a call is about.
    pub(super) async fn wait_for(&self, call: &Call) {
        if !self.waits.are_wanted() {
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
        for handle in first(call).into_iter().chain(second) {
            if let Ok(bucket) = of(handle) {
                self.wait_for_bucket(bucket).await;
            }
        }
    }

    /// Waits for the server of a bucket.
    pub(super) async fn wait_for_bucket(&self, bucket: Bucket) {
        let (Some(places), Ok(at)) = (&self.waits.0, self.buckets().locate(bucket)) else {
            return;
        };
        let Some((server, _)) = self.buckets().servers.server(at.volume) else {
            return;
        };
        if server.line().is_up() {
            return;
        }
        // Who finds no place is told that the server is away.
        let Ok(_place) = places.try_acquire() else {
            return;
        };
        let comes = async {
            while !server.comes_up().await {
                sleep(AGAIN).await;
            }
        };
        let _ = timeout(PATIENCE, comes).await;
    }
}
