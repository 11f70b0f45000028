//! How much space all volumes have.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use quorate_files::Who;
use quorate_nfs::call::Fh;
use quorate_nfs::status::Status;
use quorate_nfs::xdr::{Malformed, Read, Reader, Writer};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Done, Proxy};
use crate::attrs::Attrs;
use crate::intent::Log;
use crate::layout::Volume;
use crate::upstream::Upstream;

const FSSTAT: u32 = 18;
/// How long a server may take to say it.
const SPACE_TIME: Duration = Duration::from_secs(5);

/// Bytes and files, in all, free, and free for this user; and for how many seconds they hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Space {
    pub words: [u64; 6],
    pub seconds: u32,
}

impl Space {
    fn add(self, other: Space) -> Space {
        let mut words = self.words;
        for (sum, word) in words.iter_mut().zip(other.words) {
            *sum = sum.saturating_add(word);
        }
        let seconds = self.seconds.min(other.seconds);
        Space { words, seconds }
    }

    /// Out of the results of an FSSTAT.
    pub fn read(results: Bytes) -> Read<Result<Space, Status>> {
        let r = &mut Reader::new(results);
        let number = r.u32()?;
        r.option(Attrs::read)?;
        if number != 0 {
            return Ok(Err(Status::of(number)));
        }
        let mut words = [0; 6];
        for word in &mut words {
            *word = r.u64()?;
        }
        let seconds = r.u32()?;
        Ok(Ok(Space { words, seconds }))
    }

    /// That of the file system with this directory.
    async fn of(server: Upstream, who: Who, top: Fh) -> Result<Space, Status> {
        let mut w = Writer::default();
        w.opaque(&top);
        let asked = timeout(SPACE_TIME, server.nfs(FSSTAT, &who, &w.out)).await;
        let results = asked.unwrap_or(Err(Status::Jukebox))?;
        Space::read(results).map_err(|_: Malformed| Status::ServerFault)?
    }
}

impl<L: Log + std::fmt::Debug + 'static> Proxy<L> {
    /// The sums of all volumes.
    pub(super) async fn fs_stat(&self, who: &Who, object: &Bytes) -> Done {
        let object = self.handle(object)?;
        let passage = self.buckets().pass(object.bucket).await?;
        let attrs = self.coordinator.attrs(&object).await?;
        let at = self.buckets().locate(object.bucket)?;
        drop(passage);
        let sum = self.space(who).await?;
        let mut w = Writer::default();
        w.u32(0);
        self.rewrite(object.bucket, &at).after(&mut w, Some(attrs));
        sum.words.into_iter().for_each(|word| w.u64(word));
        w.u32(sum.seconds);
        Ok(w.out)
    }

    /// All at once: one that does not answer has what it said last.
    async fn space(&self, who: &Who) -> Result<Space, Status> {
        let mut asked = JoinSet::new();
        let mut volumes = Vec::new();
        for volume in self.buckets().map().present() {
            let server = self.buckets().servers.get(volume);
            // One that has just been removed has neither.
            let (Some(server), Some(shelf)) = (server, self.shelves.get(volume)) else {
                continue;
            };
            volumes.push(volume);
            let who = who.clone();
            asked.spawn(async move { (volume, Space::of(server, who, shelf.top).await) });
        }
        let mut refused = None;
        while let Some(told) = asked.join_next().await {
            let (volume, space) = told.map_err(|_| Status::ServerFault)?;
            match space {
                Ok(space) => {
                    let [_, free, ..] = space.words;
                    self.layout.set_free(volume, free);
                    self.spaces().insert(volume, space);
                }
                Err(Status::Jukebox) => {}
                Err(status) => refused = Some(status),
            }
        }
        if let Some(status) = refused {
            return Err(status);
        }
        let spaces = self.spaces();
        let known: Option<Vec<Space>> = volumes.iter().map(|v| spaces.get(v).copied()).collect();
        let sum = known.into_iter().flatten().reduce(Space::add);
        sum.ok_or(Status::Jukebox)
    }

    fn spaces(&self) -> MutexGuard<'_, BTreeMap<Volume, Space>> {
        self.spaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks how much is free, for the policy that wants to know.
    pub async fn look_at_space(&self) {
        // One that does not answer keeps what it had.
        let _ = self.space(&Who::root()).await;
    }
}
