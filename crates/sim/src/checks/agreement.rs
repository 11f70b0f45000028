//! Agreement: no two correct replicas execute different batches at one place, and none executes another one after a restart. And
//! none votes for two batches at one place in one view.

use std::collections::BTreeMap;

use quorate_wire::message::{Batch, PeerMessage, Request};
use quorate_wire::{Digest, Seq, View};

use super::Failure;

/// What correct replicas have executed, and the content of all batches that were seen in their logs.
#[derive(Debug, Default)]
pub struct Agreement {
    executed: BTreeMap<Seq, (usize, Digest)>,
    contents: BTreeMap<Digest, (Batch, Vec<Request>)>,
    /// What each correct replica has voted for in each view, also before a crash.
    votes: BTreeMap<(usize, View, Seq), Digest>,
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

    /// A correct replica says something to one or to all: it stands by one batch at a place of a view, whether it proposes, prepares or commits it.
    pub fn on_said(&mut self, server: usize, message: &PeerMessage) -> Result<(), Failure> {
        let (view, seq, digest) = match message {
            PeerMessage::PrePrepare(m) => (m.view, m.seq, m.batch.digest()),
            PeerMessage::Prepare(m) => (m.view, m.seq, m.digest),
            PeerMessage::Commit(m) => (m.view, m.seq, m.digest),
            _ => return Ok(()),
        };
        let first = *self.votes.entry((server, view, seq)).or_insert(digest);
        if first == digest {
            return Ok(());
        }
        Err(Failure::new(
            "one vote",
            format!("at {seq:?} of {view:?} server {server} votes for {digest:?} and {first:?}"),
        ))
    }

    /// The content of a batch stands in a correct replica's log.
    ///
    /// `name` is the digest that stands in the record beside it: mostly the batch is known by it, and need not be hashed again.
    pub fn on_content(&mut self, name: &Digest, batch: &Batch, requests: &[Request]) {
        if self
            .contents
            .get(name)
            .is_some_and(|(known, _)| known == batch)
        {
            return;
        }
        self.contents
            .entry(batch.digest())
            .or_insert_with(|| (batch.clone(), requests.to_vec()));
    }

    /// The batch executed at a place, once its content is known.
    pub fn content(&self, seq: Seq) -> Option<(Batch, Vec<Request>)> {
        let (_, digest) = self.executed.get(&seq)?;
        if let Some(content) = self.contents.get(digest) {
            return Some(content.clone());
        }
        (*digest == Batch::null().digest()).then(|| (Batch::null(), Vec::new()))
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
