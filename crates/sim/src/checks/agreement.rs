//! Agreement: no two correct replicas execute different batches at one place, and none executes another one after a restart.

use std::collections::BTreeMap;

use quorate_wire::message::{Batch, Request};
use quorate_wire::{Digest, Seq};

use super::Failure;

/// What correct replicas have executed, and the content of all batches that were seen in their logs.
#[derive(Debug, Default)]
pub struct Agreement {
    executed: BTreeMap<Seq, (usize, Digest)>,
    contents: BTreeMap<Digest, (Batch, Vec<Request>)>,
}

impl Agreement {
    /// A correct replica hands a batch to execution.
    pub fn on_executed(&mut self, server: usize, seq: Seq, digest: Digest) -> Result<(), Failure> {
        let (first, known) = *self.executed.entry(seq).or_insert((server, digest));
        if known == digest {
            return Ok(());
        }
        Err(Failure::new(
            "agreement",
            format!("at {seq:?} server {server} executes {digest:?}, server {first} {known:?}"),
        ))
    }

    /// The content of a batch stands in a correct replica's log.
    pub fn on_content(&mut self, batch: &Batch, requests: &[Request]) {
        self.contents
            .entry(batch.digest())
            .or_insert_with(|| (batch.clone(), requests.to_vec()));
    }

    /// The batch executed at a place, once its content is known.
    pub fn content(&self, seq: Seq) -> Option<(Batch, Vec<Request>)> {
        let (_, digest) = self.executed.get(&seq)?;
        if *digest == Batch::null().digest() {
            return Some((Batch::null(), Vec::new()));
        }
        self.contents.get(digest).cloned()
    }

    /// The last place that any correct replica has executed.
    pub fn last(&self) -> Seq {
        self.executed
            .keys()
            .next_back()
            .copied()
            .unwrap_or_default()
    }
}
