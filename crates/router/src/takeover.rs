//! Finishing what other routers have left.

use std::collections::BTreeMap;

use quorate_nfs::call::Fh;

use crate::ask::Servers;
use crate::coordinator::{Coordinator, Hidden};
use crate::fence::{adopt, enter, leave};
use crate::handle::Handle;
use crate::intent::{Intent, Log, Number};
use crate::layout::Bucket;
use crate::shared::{Group, Shared, SharedError};

/// What became of an intention: true if it was carried out, false if nothing is left of it.
pub type Settled = (Intent, bool);

/// Keeps those that an heir stands in for from doing anything, and finishes or undoes what they had begun. A server that does not answer
/// holds up what it has a part in.
///
/// # Errors
/// [`SharedError`]: it is another's from now on.
pub async fn settle<S: Servers<Bucket> + Clone, G: Group>(
    servers: &S,
    shared: &[Hidden],
    root: &Handle,
    heir: &Shared<G>,
    ancestors: &[u64],
) -> Result<Vec<Settled>, SharedError> {
    let mut own: BTreeMap<Bucket, Hidden> = BTreeMap::new();
    let mut open = heir.open().await?;
    let mut settled = Vec::new();
    loop {
        for (bucket, hidden) in (0..).map(Bucket).zip(shared) {
            if own.contains_key(&bucket) {
                continue;
            }
            match enter_and_adopt(servers, bucket, hidden, heir.epoch(), ancestors).await {
                Ok(entered) => drop(own.insert(bucket, entered)),
                Err(status) => tracing::warn!(bucket = bucket.0, ?status, "can't take over yet"),
            }
        }
        if own.len() == shared.len() {
            heir.fenced().await?;
        }
        let missing = Hidden {
            staging: Fh::new(),
            placed: Fh::new(),
        };
        let buckets = (0..shared.len() as u32).map(Bucket);
        let hidden = buckets.map(|bucket| own.get(&bucket).unwrap_or(&missing).clone());
        let coordinator = Coordinator::new(
            servers.clone(),
            heir.clone(),
            hidden.collect(),
            root.clone(),
        );
        let is_ready = |intent: &Intent| intent.buckets().iter().all(|v| own.contains_key(v));
        let (ready, mut left): (BTreeMap<_, _>, BTreeMap<_, _>) =
            open.into_iter().partition(|(_, intent)| is_ready(intent));
        // Each once: one that has to wait for a server does not hold up those after it.
        for (number, intent) in ready {
            let done = coordinator.try_to_recover(Number(number), &intent).await;
            match done.map_err(|_| SharedError::Lost)? {
                Some(done) => settled.push((intent, done)),
                None => drop(left.insert(number, intent)),
            }
        }
        open = left;
        if open.is_empty() && own.len() == shared.len() {
            break;
        }
        servers.pause().await;
        if !heir.confirm().await {
            return Err(SharedError::Lost);
        }
    }
    heir.leave().await?;
    for (bucket, hidden) in (0..).map(Bucket).zip(shared) {
        // What stays is empty, and is found by its name.
        if let Err(status) = leave(servers, bucket, hidden, heir.epoch()).await {
            tracing::warn!(bucket = bucket.0, ?status, "an empty directory is left");
        }
    }
    Ok(settled)
}

async fn enter_and_adopt<S: Servers<Bucket>>(
    servers: &S,
    bucket: Bucket,
    shared: &Hidden,
    epoch: u64,
    ancestors: &[u64],
) -> Result<Hidden, quorate_nfs::status::Status> {
    let own = enter(servers, bucket, shared, epoch).await?;
    for &ended in ancestors {
        adopt(servers, bucket, shared, &own, ended).await?;
    }
    Ok(own)
}
