//! One place in the log: what was proposed there, who voted, and what this replica must remember of it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use quorate_wire::message::{Batch, NewView, Vote};
use quorate_wire::{Digest, ReplicaId, Seq, View};

/// Votes of distinct replicas; the sender is the key, so that nobody counts twice.
#[derive(Clone, Debug, Default)]
pub struct Votes(BTreeMap<ReplicaId, (View, Digest)>);

impl Votes {
    /// Counts a vote. A later view replaces an earlier one; in one view the first vote stands. `false` where
    /// the sender had voted otherwise in the view, or in a later one.
    pub fn add(&mut self, from: ReplicaId, view: View, digest: Digest) -> bool {
        match self.0.get(&from) {
            Some(&(old, vote)) if old == view => vote == digest,
            Some(&(old, _)) if old > view => false,
            _ => {
                self.0.insert(from, (view, digest));
                true
            }
        }
    }

    /// A replica's vote counts no longer.
    pub fn forget(&mut self, replica: ReplicaId) {
        self.0.remove(&replica);
    }

    /// How many replicas voted for this.
    pub fn count(&self, view: View, digest: Digest) -> usize {
        self.0
            .values()
            .filter(|&&vote| vote == (view, digest))
            .count()
    }

    /// What a replica voted for.
    pub fn of(&self, replica: ReplicaId) -> Option<(View, Digest)> {
        self.0.get(&replica).copied()
    }

    /// All votes, by sender.
    pub fn iter(&self) -> impl Iterator<Item = (ReplicaId, (View, Digest))> {
        self.0.iter().map(|(from, vote)| (*from, *vote))
    }

    /// The vote that at least `count` replicas cast.
    pub fn winner(&self, count: usize) -> Option<(View, Digest)> {
        self.0
            .values()
            .copied()
            .find(|&(view, digest)| self.count(view, digest) >= count)
    }
}

/// How far a proposal has come at this replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Received; content or authenticity of some request is missing.
    Proposed,
    /// Content is here and authentic; the vote is in the log or on its way there.
    Accepted,
    /// 2f+1 agree; the certificate is in the log or on its way there.
    Prepared,
}

/// What the primary of a view has put at this place.
#[derive(Clone, Copy, Debug)]
pub struct Proposal {
    /// The view.
    pub view: View,
    /// The batch.
    pub digest: Digest,
    /// How far it has come.
    pub stage: Stage,
    /// The new view's selection vouches for the requests: f+1 replicas had pre-prepared them.
    pub vouched: bool,
}

/// One place in the log.
#[derive(Clone, Debug, Default)]
pub struct Slot {
    /// The proposal of the current view.
    pub proposal: Option<Proposal>,
    /// PREPAREs of backups.
    pub prepares: Votes,
    /// COMMITs.
    pub commits: Votes,
    /// `Committed` hints; all at view 0.
    pub hints: Votes,
    /// P: the last certificate held here. Survives views.
    pub prepared: Option<Vote>,
    /// Q: for each batch the last view in which it was pre-prepared here. Survives views.
    pub preprepared: Vec<Vote>,
    /// What committed here.
    pub committed: Option<Digest>,
    /// Batches proposed or committed here, by digest.
    pub batches: BTreeMap<Digest, Arc<Batch>>,
    /// What the requests of the batch weigh that was executed here; 0 until then.
    pub weight: usize,
    /// Batches whose content is in this replica's own log.
    pub logged: BTreeSet<Digest>,
}

/// The most batches remembered for one place in Q: with more views than this without progress the oldest goes.
/// PBFT 2002, 4.4 bounds Q in the same way.
pub const MAX_PREPREPARED: usize = 8;

impl Slot {
    /// Remembers that a batch was pre-prepared here.
    pub fn remember_preprepared(&mut self, vote: Vote) {
        if self
            .preprepared
            .iter()
            .any(|v| v.digest == vote.digest && v.view >= vote.view)
        {
            return;
        }
        self.preprepared.retain(|v| v.digest != vote.digest);
        if self.preprepared.len() == MAX_PREPREPARED {
            let oldest = self.preprepared.iter().map(|v| v.view).min();
            self.preprepared.retain(|v| Some(v.view) != oldest);
        }
        self.preprepared.push(vote);
        self.preprepared.sort_by_key(|v| v.digest);
    }

    /// A view has begun, rightly, that gives this place another batch than the one of a certificate of an earlier view, or none. So that one has committed nowhere and never will: 2f+1
    /// have left those views, and f+1 of any 2f+1 with whose votes it had committed would have shown it. The certificate goes. Where it stayed, a later view might wait for it for ever: it is selected where
    /// f+1 remember to have pre-prepared its batch, and of batches that came to nothing nobody remembers more than [`MAX_PREPREPARED`].
    pub fn forget_superseded(&mut self, began: &NewView) {
        self.prepared.take_if(|p| began.supersedes(p));
    }

    /// The batch that is to be executed here, or that the current view wants here: what content is needed.
    pub fn wanted(&self) -> Option<Digest> {
        self.committed.or(self.proposal.map(|p| p.digest))
    }

    /// How many bytes it takes up, where each entry counts for so many.
    pub fn held(&self, entry: usize) -> usize {
        let votes = self.prepares.0.len() + self.commits.0.len() + self.hints.0.len();
        let entries = votes + self.preprepared.len() + self.logged.len();
        let batches = self.batches.values().map(|b| 32 * b.requests.len());
        entry * entries + batches.sum::<usize>()
    }

    /// The batch that the current view wants here and that this replica has not voted for.
    pub fn proposed(&self) -> Option<Digest> {
        let open = self.proposal.filter(|p| p.stage == Stage::Proposed);
        open.map(|p| p.digest)
    }

    /// The view and digest of this replica's place in Q and P must agree: what is prepared was pre-prepared.
    pub fn invariants(&self, seq: Seq) {
        if let Some(p) = &self.prepared {
            assert_eq!(p.seq, seq);
            assert!(
                self.preprepared
                    .iter()
                    .any(|q| q.view >= p.view && q.digest == p.digest)
                    || self.preprepared.len() == MAX_PREPREPARED,
                "prepared without pre-prepared at {seq:?}"
            );
        }
    }
}
