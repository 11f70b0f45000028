//! Checkpoints: what the log may forget, and who has fallen behind. PBFT 2002, 4.3 and 5.3.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use quorate_wire::message::{Checkpoint, SignedViewChange};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Digest, Quorum, ReplicaId, Seq};

use crate::LOG_WINDOW;
use crate::core::Agreement;
use crate::durable::{Record, StableRecord};
use crate::epochs::Epochs;
use crate::fingerprint::list;
use crate::io::{Output, Rejected};

/// CHECKPOINTs of the others: for each sender a few, of the highest places.
///
/// CometBFT CVE-2025-24371: a peer that claims a great height and then takes it back must not lead anyone on. What counts
/// here is what f+1 replicas claim of one place with one root.
#[derive(Clone, Debug, Default)]
pub struct CheckpointVotes(BTreeMap<ReplicaId, BTreeMap<Seq, Digest>>);

/// How many places are remembered for each sender: those of a window, and one beyond it. Heavy batches may have a checkpoint
/// each.
pub(crate) const PLACES_PER_SENDER: usize = LOG_WINDOW as usize + 1;

impl CheckpointVotes {
    fn add(&mut self, from: ReplicaId, seq: Seq, root: Digest) -> Result<(), Rejected> {
        let own = self.0.entry(from).or_default();
        match own.get(&seq) {
            Some(&old) if old == root => return Err(Rejected::Duplicate),
            Some(_) => return Err(Rejected::Contradiction),
            None => own.insert(seq, root),
        };
        while own.len() > PLACES_PER_SENDER {
            own.pop_first();
        }
        Ok(())
    }

    /// How many replicas claim this.
    fn count(&self, seq: Seq, root: Digest) -> usize {
        self.holders(seq, root).count()
    }

    /// Those that claim this.
    fn holders(&self, seq: Seq, root: Digest) -> impl Iterator<Item = ReplicaId> {
        let claims = move |own: &BTreeMap<Seq, Digest>| match is_on(Mutant::MessagesCounted) {
            true => own.contains_key(&seq),
            false => own.get(&seq) == Some(&root),
        };
        let all = self.0.iter();
        all.filter(move |(_, own)| claims(own))
            .map(|(from, _)| *from)
    }

    /// The highest checkpoint that at least `count` replicas claim alike.
    fn highest(&self, count: usize) -> Option<(Seq, Digest)> {
        let claims: BTreeSet<(Seq, Digest)> = self
            .0
            .values()
            .flat_map(|own| own.iter().map(|(s, r)| (*s, *r)))
            .collect();
        claims
            .into_iter()
            .rev()
            .find(|&(seq, root)| self.count(seq, root) >= count)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.values().map(BTreeMap::len).sum()
    }

    /// What is claimed of places above the stable one. See [`Agreement::fingerprint`].
    pub(crate) fn fingerprint(&self, stable: Seq, out: &mut Vec<u8>) {
        let claims = self.0.iter().map(|(from, own)| {
            let above = own.range(stable.next()..);
            let above: Vec<(Seq, Digest)> = above.map(|(s, r)| (*s, *r)).collect();
            (*from, above)
        });
        list(claims.filter(|(_, above)| !above.is_empty()), out);
    }

    /// The highest place of which a replica claims something.
    pub(crate) fn last_of(&self, replica: ReplicaId) -> Option<Seq> {
        let own = self.0.get(&replica)?;
        own.keys().next_back().copied()
    }

    /// What a replica claims of places up to here counts no longer.
    pub(crate) fn forget_of(&mut self, replica: ReplicaId, seq: Seq) {
        if let Some(own) = self.0.get_mut(&replica) {
            *own = own.split_off(&seq.next());
        }
    }

    fn forget_below(&mut self, seq: Seq) {
        self.0
            .values_mut()
            .for_each(|own| *own = own.split_off(&seq));
    }
}

impl Agreement {
    /// The state after a checkpoint's place is in this replica's store.
    pub(crate) fn on_checkpoint_made(&mut self, seq: Seq, root: Digest) {
        if self.fetching.is_some() || seq < self.stable.0 {
            return;
        }
        if self.own_checkpoints.insert(seq, root) != Some(root) {
            self.persist(Record::Checkpoint(StableRecord { seq, root }));
        }
        self.tell_checkpoint(seq, root);
        self.look_for_stability();
    }

    /// CHECKPOINT: another replica's state after a place.
    pub(crate) fn on_checkpoint(&mut self, from: ReplicaId, m: Checkpoint) -> Result<(), Rejected> {
        if (m.seq, m.root) == self.stable && self.fetching.is_some() {
            // Nothing new here; for the evidence.
            return Ok(());
        }
        if m.seq <= self.stable.0 {
            return Err(Rejected::OutsideWindow);
        }
        self.checkpoint_votes.add(from, m.seq, m.root)?;
        self.look_for_stability();
        Ok(())
    }

    /// Looks for a checkpoint that 2f+1 replicas, this one among them, have alike; or that f+1 others have and this one lacks.
    pub(crate) fn look_for_stability(&mut self) {
        let quorum = self.config.quorum;
        let enough = match is_on(Mutant::StableWithWeak) {
            true => quorum.weak(),
            false => quorum.commit(),
        };
        let stable = self.own_checkpoints.iter().rev().find(|&(&seq, &root)| {
            seq > self.stable.0 && self.checkpoint_votes.count(seq, root) + 1 >= enough
        });
        if let Some((&seq, &root)) = stable {
            self.make_stable(seq, root);
        }
        let Some((seq, root)) = self.certified_ahead() else {
            return;
        };
        match self.own_checkpoints.get(&seq) {
            // BFT-SMaRt issue 73: a replica whose state is damaged was never repaired.
            Some(own) if *own != root && is_on(Mutant::NeverRepaired) => {}
            Some(own) if *own != root => {
                // f+1 others, a correct one among them, say otherwise: this replica's state is damaged, and is repaired from theirs. Since when is not
                // known: what else it had was right as far as others say the same.
                let (stable, enough) = (self.stable.0, certificate_of_others(quorum));
                let votes = &self.checkpoint_votes;
                let is_right = |at, own| votes.count(at, own) >= enough;
                self.own_checkpoints
                    .retain(|&at, own| at <= stable || at < seq && is_right(at, *own));
                self.fetch_state((seq, root));
            }
            Some(_) => {}
            // Beyond the window nothing can be learnt batch by batch. A state that is there already is as good, if not enough have it yet for the low
            // water mark.
            None if seq > self.executed && seq.0 > self.stable.0.0 + LOG_WINDOW => {
                self.fetch_state((seq, root));
            }
            // By the next STATUS these claims may be forgotten, where keys are renewed as often as an idle replica says where it stands.
            None => self.fetch_state_if_stuck(Some((seq, root))),
        }
    }

    /// Whether a checkpoint that this replica has fetched, or with which a view begins, may be the low water mark: 2f+1 replicas
    /// have it, this one among them, as they have said in CHECKPOINTs or in VIEW-CHANGEs. That f+1 have it is enough to fetch it and to begin a view
    /// with it, since one of them is correct, and not for this: where f of them are faulty and fall silent, or are lost, no 2f+1 have a water mark
    /// as low as the others', and no view could start (4.4, the start of the selection).
    pub(crate) fn is_backed(&self, seq: Seq, root: Digest) -> bool {
        let me = self.config.me;
        let offers = |m: &&SignedViewChange| m.body.checkpoints.contains(&(seq, root));
        let proofs = self.entered.iter().flat_map(|e| &e.proofs);
        let offered = proofs.filter(offers).map(|m| m.body.replica);
        let mut holders: BTreeSet<ReplicaId> = offered.collect();
        holders.extend(self.checkpoint_votes.holders(seq, root));
        holders.insert(me);
        holders.len() >= self.config.quorum.commit() || is_on(Mutant::FetchedIsStable)
    }

    /// Whether the store may give up the state of `from`, a checkpoint that this replica has made, for that of `to`, the next one. A replica vouches for a
    /// checkpoint also when its store has gone on, and a view may begin with what f+1 vouch for, or others fetch it, since one of them is correct. That one
    /// has to have it after a restart as well. So it goes on only where 2f+1 have made that checkpoint, f+1 correct ones among them: these are all still there, or all but those that went on
    /// to one for which f+1 vouch in turn; or where f+1 others have gone on so far.
    pub fn may_pass(&self, from: Seq, to: Seq) -> bool {
        let is_alone = self.config.quorum.n() == 1;
        // The log has to know, or it would be vouched for no longer after a power cut.
        let is_stable = from <= self.stable.0 && self.stable_at <= self.persisted;
        is_alone || is_stable || self.certified_ahead().is_some_and(|(seq, _)| seq >= to)
    }

    /// The highest checkpoint above the stable one that is certified: f+1 others claim it, so that one
    /// correct replica has it. Published bug (BFT-SMaRt issue 62): messages were counted, not equal values.
    pub(crate) fn certified_ahead(&self) -> Option<(Seq, Digest)> {
        let enough = certificate_of_others(self.config.quorum);
        self.checkpoint_votes
            .highest(enough)
            .filter(|(seq, _)| *seq > self.stable.0)
    }

    pub(crate) fn make_stable(&mut self, seq: Seq, root: Digest) {
        assert!(seq > self.stable.0, "the low water mark only rises");
        self.stable = (seq, root);
        self.slots.keep_from(seq.next());
        self.unstable_weight = self.slots.values().map(|slot| slot.weight).sum();
        self.judge.pipeline.on_stable(seq);
        self.judge.withheld.on_stable(seq);
        self.own_checkpoints = self.own_checkpoints.split_off(&seq);
        self.checkpoint_votes.forget_below(seq.next());
        self.collect_garbage();
        let record = Record::Stable(StableRecord { seq, root });
        let index = self.persist(record.clone());
        self.stable_at = self.config.durable.then_some(index);
        let head = self.head(record);
        self.out.push_back(Output::Stable { seq, root, head });
        if !is_on(Mutant::SelectionCut) {
            self.take_up_selection();
        }
        // There is room again for what was proposed.
        self.accept_proposals();
    }

    /// Drops requests that neither wait nor are named by a batch in the log.
    pub(crate) fn collect_garbage(&mut self) {
        let batches = self.slots.values().flat_map(|s| s.batches.values());
        let named = self
            .pool
            .set(batches.flat_map(|b| b.requests.iter().copied()));
        self.pool.collect_garbage(&named);
        self.asked.retain(|digest| named.contains(digest));
    }

    /// What a new segment of the log begins with, so that the older ones can go.
    fn head(&self, stable: Record) -> Vec<Record> {
        let mut head = Vec::from([stable]);
        head.extend(self.entered.clone().map(|e| Record::Entered(e.into())));
        if !self.active && !is_on(Mutant::HeadLacksChange) {
            // Also while it is still on its way to the disk in the old segment, which goes: a replica that forgot that it
            // left a view would vote in it again.
            head.extend(self.own_change.clone().map(Record::Changing));
        }
        head.extend(self.epochs.as_ref().map(Epochs::record));
        let fetching = self.fetching;
        head.extend(fetching.map(|(seq, root)| Record::Fetching(StableRecord { seq, root })));
        let recovering = self.recovery.as_ref();
        head.extend(recovering.map(|_| Record::Recovering(self.now.wall)));
        head
    }

    /// Asks for the state of a certified checkpoint, unless one is on its way: a busy group certifies newer ones all the
    /// time, and who always goes for the newest never arrives.
    pub(crate) fn fetch_state(&mut self, target: (Seq, Digest)) {
        if self.fetching.is_none() {
            self.roll_back();
            self.fetching = Some(target);
            let (seq, root) = target;
            let index = self.persist(Record::Fetching(StableRecord { seq, root }));
            self.fetching_at = self.config.durable.then_some(index);
            self.out.push_back(Output::FetchState(seq, root));
        }
    }

    /// Whether the log knows which state is being fetched, so that the store's own may be replaced by it.
    pub fn may_replace_state(&self) -> bool {
        self.fetching_at <= self.persisted
    }

    /// What this replica executes on can't be read. It goes back to the newest state that others vouch for, compares its own with that,
    /// and executes again what came after.
    pub(crate) fn on_state_doubted(&mut self) {
        let target = self.certified_ahead().unwrap_or(self.stable);
        self.own_checkpoints.retain(|&at, _| at <= target.0);
        // Where one has just come, it is that one which can't be read.
        self.fetching = None;
        self.fetch_state(target);
    }

    /// Nobody keeps the checkpoint that is being fetched any more. Published bug (concord-bft pull 2863): agreement went on meanwhile, and the
    /// replica stayed out for ever.
    pub(crate) fn on_state_unavailable(&mut self) {
        let newest = self
            .certified_ahead()
            .filter(|newest| Some(*newest) != self.fetching)
            .filter(|_| !is_on(Mutant::TargetNeverRenewed));
        if let Some(newest) = newest {
            self.fetching = None;
            self.fetch_state(newest);
        }
    }

    /// State transfer has brought a checkpoint.
    pub(crate) fn on_state_fetched(&mut self, seq: Seq, root: Digest) {
        if self.fetching != Some((seq, root)) {
            return;
        }
        self.fetching = None;
        // Published bug (fabric pull 1174): what was executed before must not be executed again, so `executed` follows
        // the state that is there now. It falls only where the state itself was replaced.
        self.executed = seq;
        self.expect_batches_at_once();
        self.pool.forget_open();
        // Where a state had come before of which the places are not here, they have to come once more.
        let is_here = |place| {
            let slot = self.slots.get(&Seq(place));
            slot.is_some_and(|slot| slot.committed.is_some())
        };
        if !(seq.0 + 1..=self.committed.0).all(is_here) {
            self.committed = seq;
        }
        self.committed = self.committed.max(seq);
        // It goes on vouching for those that it had made before: one of them may be another's low water mark, for which f+1 have to be found when a view
        // is to start.
        self.own_checkpoints.retain(|&at, _| at < seq);
        self.own_checkpoints.insert(seq, root);
        self.persist(Record::Checkpoint(StableRecord { seq, root }));
        if seq > self.stable.0 && self.is_backed(seq, root) {
            self.make_stable(seq, root);
        }
        self.tell_checkpoint(seq, root);
        self.advance();
        self.send_status();
    }
}

/// How many of the *others* must claim a checkpoint alike before this replica believes it.
fn certificate_of_others(quorum: Quorum) -> usize {
    // f+1 hold one correct replica, whose state is right and whose checkpoint the rest will confirm.
    match is_on(Mutant::OnePeersHeight) {
        true => 1,
        false => quorum.weak(),
    }
}
