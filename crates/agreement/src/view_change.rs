//! Leaving a view and starting the next. PBFT 2002, 4.4.

use alloc::vec::Vec;

use quorate_wire::message::{
    Batch, NewView, PeerMessage, SignedNewView, SignedViewChange, ViewChange, Vote,
};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Digest, ReplicaId, View};

use crate::catch_up::MAX_FOLLOWED;
use crate::core::Agreement;
use crate::durable::{Entered, Record, StableRecord};
use crate::io::{Output, Rejected};
use crate::selection::{Selection, one_less, select, well_formed};
use crate::slot::{Proposal, Stage};

/// From one view in which replicas meet that have come apart to the next. Not more than [`MAX_FOLLOWED`], on which the bound of views of a
/// replica that recovers rests. With most n they are led by other replicas each time; where not, the f after each have others.
const MEETING: u64 = MAX_FOLLOWED - 1;

impl Agreement {
    /// Leaves the present view for `view`.
    pub(crate) fn start_view_change(&mut self, view: View) {
        assert!(view > self.view);
        if !is_on(Mutant::TentativeKept) {
            self.roll_back();
        }
        if self.is_leading() && !is_on(Mutant::SpoiltProposedAgain) {
            self.doubt_proposed();
        }
        self.failed_views += 1;
        // A view that has begun, and had nothing to do when it was left, was not too slow for anybody. One counts all the same: who joins others has as
        // much patience with the next view as those for whom the one before was too slow.
        let slow = !self.active || self.waits_for_primary();
        self.slow_views = (self.slow_views + u32::from(slow)).max(1);
        self.view_changes_seen += 1;
        self.view = view;
        self.active = false;
        self.new_view_deadline = None;
        self.forget_useless_new_views();
        self.forget_proposals();
        self.forget_unvoted();
        if is_on(Mutant::ExecutedFalls) {
            self.executed = self.stable.0;
        }
        self.judge.begin_view(self.committed, self.now.mono);
        self.prune_proofs();
        let body = ViewChange {
            view,
            replica: self.config.me,
            stable: self.stable.0,
            checkpoints: self.checkpoints_to_offer(),
            prepared: self
                .slots
                .values()
                .filter_map(|s| s.prepared.clone())
                .collect(),
            preprepared: self
                .slots
                .values()
                .flat_map(|s| s.preprepared.iter().cloned())
                .collect(),
        };
        debug_assert!(well_formed(self.config.quorum, &body), "{body:?}");
        let signed = SignedViewChange::sign(body, &self.config.key).into_inner();
        self.own_change = Some(signed.clone());
        let record = Record::Changing(signed.clone());
        self.persist_then_tell(record, PeerMessage::ViewChange(signed));
    }

    /// Where to go when a view did not begin in time. In PBFT that is the next, and who is correct never comes far from the others. Here one may have
    /// been led away alone, by a replica that recovers or says so, up to [`MAX_FOLLOWED`] views; and the others may be too few to begin any view
    /// without it. To go where somebody says to wait is no way to meet, since a faulty replica says another thing to each. So all go where nobody's word
    /// leads them: where too few are here or in the next view, to the next view that is a multiple of [`MEETING`]. A few of these on, nobody is
    /// ahead any more. From there all go on one by one through f+1 views, one of which has a correct primary, before they try the next multiple.
    pub(crate) fn view_after_failure(&mut self) -> View {
        let (quorum, at) = (self.config.quorum, self.view.0);
        let since = at % MEETING;
        let meeting = View((at - since).saturating_add(MEETING));
        let few_failed = self.failed_to_begin < quorum.weak();
        let next = match few_failed || since < quorum.f() as u64 {
            true => self.view.next(),
            false => meeting,
        };
        self.failed_to_begin = quorum.weak().min(self.failed_to_begin + 1);
        // Who is in the next has only been quicker than this one.
        let said = self.view_changes.values().map(|m| m.body.view);
        let here = said.filter(|view| *view == self.view || *view == next);
        if here.count() >= quorum.commit() {
            return next;
        }
        // More patience would have been of no use, as far as is known. But a faulty replica can pretend to be elsewhere each time, and who is slow
        // is no liar: after a few such views patience grows as ever.
        if few_failed {
            self.slow_views = self.slow_views.saturating_sub(1);
        }
        meeting
    }

    /// Whether the primary has something to order, or has begun to.
    fn waits_for_primary(&self) -> bool {
        let last = self.slots.keys().next_back();
        self.pool.oldest_claim().is_some() || last.is_some_and(|&last| last > self.committed)
    }

    fn forget_proposals(&mut self) {
        self.slots
            .values_mut()
            .for_each(|slot| slot.proposal = None);
    }

    /// What was proposed in views that are left is kept where this replica has voted for it, or it has committed: others may
    /// need it. The rest goes, so that no sequence of primaries can pile it up.
    fn forget_unvoted(&mut self) {
        for slot in self.slots.values_mut() {
            let (committed, preprepared) = (slot.committed, &slot.preprepared);
            let prepared = slot.prepared.as_ref().map(|vote| vote.digest);
            slot.batches.retain(|digest, _| {
                let voted = preprepared.iter().any(|vote| vote.digest == *digest);
                voted || committed == Some(*digest) || prepared == Some(*digest)
            });
            let batches = &slot.batches;
            slot.logged.retain(|digest| batches.contains_key(digest));
        }
        self.collect_garbage();
    }

    /// C: the stable checkpoint first, then the later ones made here.
    fn checkpoints_to_offer(&self) -> Vec<(quorate_wire::Seq, Digest)> {
        let later = self
            .own_checkpoints
            .iter()
            .filter(|(seq, _)| **seq > self.stable.0);
        let limit = crate::LOG_WINDOW as usize;
        [self.stable]
            .into_iter()
            .chain(later.map(|(&s, &r)| (s, r)).take(limit))
            .collect()
    }

    /// VIEW-CHANGE: a replica has left its view. Signed, so that none can be forged (Castro, Liskov, OSDI 1999, 4.4); an old one, said again, counts for nothing: the latest view
    /// of each sender does, and only under a key that is not too old (PBFT 2002, 4.3.1).
    pub(crate) fn on_view_change(&mut self, m: SignedViewChange) -> Result<(), Rejected> {
        if !well_formed(self.config.quorum, &m.body) {
            return Err(Rejected::Malformed);
        }
        let age = self.check_age(m.body.replica, &m.signature);
        let names = |new_view: &SignedNewView| {
            let mut named = new_view.body.proofs.iter();
            named.any(|(id, _)| *id == m.body.replica)
        };
        let is_named = age.is_err() && self.new_views_to_look_at().any(names);
        // Hashing it costs more than all else, and who has an old key can send one after another.
        if let Err(old) = age
            && !is_named
        {
            return Err(old);
        }
        let digest = m.digest();
        let wanted = self.is_proof_wanted(m.body.replica, &digest);
        if let Err(old) = age
            && !(wanted && self.is_proof_vouched(m.body.replica, &digest))
        {
            return Err(old);
        }
        self.compare_view_change(&m);
        let known = self.view_changes.get(&m.body.replica);
        let newer = known.is_none_or(|old| {
            // Who has another key signs the same again.
            let again = m.signature.counter() > old.signature.counter();
            old.body.view < m.body.view || (again && old.body == m.body)
        });
        let news = m.body.view >= self.view && (newer || is_on(Mutant::SenderIgnored));
        let news = news && age.is_ok();
        // It has no word in it, but may have to look through the proofs of a NEW-VIEW.
        let news = news && !self.is_recovering();
        if !news && !wanted {
            return Err(Rejected::OtherView);
        }
        let keys = &self.config.keys;
        let m = match is_on(Mutant::ViewChangeForged) {
            true => m,
            false => m
                .verify(keys)
                .map_err(|_| Rejected::BadAuthentication)?
                .into_inner(),
        };
        self.saw_signature(m.body.replica, &m.signature);
        if wanted {
            self.proofs.insert(digest, m.clone());
        }
        if news {
            self.count_view_change(m);
        }
        self.try_waiting_new_views();
        Ok(())
    }

    /// Takes a VIEW-CHANGE that is verified or this replica's own. At most one for each sender counts, the newest; published
    /// bug (Themis view_change.rs): one replica's messages filled the quorum.
    pub(crate) fn count_view_change(&mut self, m: SignedViewChange) {
        let view = m.body.view;
        let mut sender = m.body.replica;
        if is_on(Mutant::SenderIgnored) {
            let is_free = |r: &ReplicaId| !self.view_changes.contains_key(r);
            sender = self
                .config
                .quorum
                .replicas()
                .find(is_free)
                .unwrap_or(sender);
        }
        match self.view_changes.get_mut(&sender) {
            Some(old) if old.body == m.body => {
                *old = m;
                return;
            }
            Some(old) if old.body.view >= view => return,
            _ => {}
        }
        self.view_changes.insert(sender, m);
        self.join_view_change();
        if self.active {
            return;
        }
        // sawtooth-pbft pull 133: the patience with the new primary begins when it has what it needs, not before. Those who
        // have gone on to later views had been here, or will not come: waiting for their word would be waiting for ever
        // where it was lost, or forgotten in a crash of this replica.
        let came = self.view_changes.values();
        let came = came.filter(|m| m.body.view >= self.view).count();
        let enough = came >= self.config.quorum.commit() || is_on(Mutant::EarlyViewTimer);
        if enough && self.new_view_deadline.is_none() {
            self.new_view_deadline = Some(self.now.mono + self.patience());
        }
        self.try_to_start_view();
    }

    /// f+1 replicas have gone ahead: one of them is correct, so this one follows to the smallest of their views. f or fewer bring nobody to
    /// leave a view, however often they ask: no storm of view changes (Castro and Liskov, OSDI 1999, 4.5.2). Or the primary
    /// itself has left: nobody else can lead the view, and a faulty primary only rids the group of itself.
    pub(crate) fn join_view_change(&mut self) {
        let primary = self.view_changes.get(&self.primary());
        if self.active && primary.is_some_and(|m| m.body.view > self.view) {
            return self.start_view_change(self.view.next());
        }
        // Who recovers waits where the others are to come, and says so in STATUS. Where that is may be a faulty one's word, and that one may be the
        // other of the f+1: so it leads no farther than a single one does.
        let began = self.entered.as_ref().map(|e| e.new_view.body.view);
        let near = View(began.unwrap_or_default().0.saturating_add(MAX_FOLLOWED));
        let waits = |id: ReplicaId| {
            let (status, _) = self.statuses.get(&id)?;
            let cap = match is_on(Mutant::RecoveringLeadsFar) {
                true => View(u64::MAX),
                false => near,
            };
            status.recovering.map(|_| status.view.min(cap))
        };
        let left = |id: ReplicaId| self.view_changes.get(&id).map(|m| m.body.view);
        let all = self.config.quorum.others(self.config.me);
        let ahead: Vec<View> = all
            .filter_map(|id| left(id).max(waits(id)))
            .filter(|&v| v > self.view)
            .collect();
        let one = is_on(Mutant::OneLeadsAway) && !ahead.is_empty();
        if ahead.len() >= self.config.quorum.weak() || one {
            let smallest = ahead.into_iter().min().expect("f+1 is at least one");
            self.start_view_change(smallest);
        }
    }

    fn view_changes_for(&self, view: View) -> Vec<&SignedViewChange> {
        self.view_changes
            .values()
            .filter(|m| m.body.view == view)
            .collect()
    }

    /// As primary of the view to come: starts it if the VIEW-CHANGEs allow a selection.
    ///
    /// fabric pull 1111: the set that is waited for and the set that is announced are one and the same.
    pub(crate) fn try_to_start_view(&mut self) {
        if !self.is_primary() || self.active {
            return;
        }
        let proofs: Vec<SignedViewChange> = self
            .view_changes_for(self.view)
            .into_iter()
            .cloned()
            .collect();
        let mut bodies: Vec<&ViewChange> = proofs.iter().map(|m| &m.body).collect();
        if is_on(Mutant::AwaitedNotAnnounced) {
            let awaited = self.view_changes.values().map(|m| &m.body);
            bodies = awaited.filter(|body| body.view >= self.view).collect();
        }
        let Some(Selection { start, batches }) = select(self.config.quorum, &bodies) else {
            return;
        };
        let body = NewView {
            view: self.view,
            proofs: proofs
                .iter()
                .map(|m| (m.body.replica, m.digest()))
                .collect(),
            start,
            selection: batches,
        };
        let new_view = SignedNewView::sign(body, &self.config.key).into_inner();
        self.enter(Entered { new_view, proofs });
    }

    /// NEW-VIEW: the primary of a view starts it. Anyone may pass it on.
    pub(crate) fn on_new_view(
        &mut self,
        from: ReplicaId,
        m: SignedNewView,
    ) -> Result<(), Rejected> {
        let view = m.body.view;
        let quorum = self.config.quorum;
        let primary = quorum.primary(view);
        if let Err(old) = self.check_age(primary, &m.signature)
            && !self.is_view_vouched(view, &m.digest())
        {
            return Err(old);
        }
        self.compare_new_view(primary, &m);
        let was_missed = self.ends_certificates(&m.body);
        if !self.is_of_use(view) && !was_missed {
            return Err(Rejected::OtherView);
        }
        let waiting = self.waiting_new_views.get(&primary);
        let missed = self.missed_new_views.get(&from);
        let is_known = match was_missed {
            true => missed.is_some_and(|known| *known == m),
            false => waiting.is_some_and(|w| w.body.view >= view),
        };
        if is_known {
            return Err(Rejected::Duplicate);
        }
        // Published bug (Themis view_change.rs): an empty NEW-VIEW must be a refusal and not a panic.
        if is_on(Mutant::EmptyNewView) {
            let first = &m.body.proofs[0];
            assert!(quorum.contains(first.0) || first.0 != primary);
        }
        let rising = m.body.proofs.windows(2).all(|w| w[0].0 < w[1].0);
        let senders_rise = rising || is_on(Mutant::SenderIgnored);
        let senders_known = m.body.proofs.iter().all(|(r, _)| quorum.contains(*r));
        let enough = one_less(quorum.commit(), Mutant::SelectsFrom2f)..=quorum.n();
        let enough = enough.contains(&m.body.proofs.len());
        if !senders_rise
            || !senders_known
            || !enough
            || m.body.selection.len() as u64 > crate::LOG_WINDOW
        {
            return Err(Rejected::Malformed);
        }
        if primary == self.config.me {
            return Err(Rejected::NotThePrimary);
        }
        let m = m
            .verify(&self.config.keys, primary)
            .map_err(|_| Rejected::BadAuthentication)?
            .into_inner();
        self.saw_signature(primary, &m.signature);
        self.heard_new_views.insert(primary, m.clone());
        match was_missed {
            // One that shows something else does not take the place of what others show.
            true => self.missed_new_views.insert(from, m),
            false => self.waiting_new_views.insert(primary, m),
        };
        self.try_waiting_new_views();
        self.fetch_missing();
        Ok(())
    }

    /// A VIEW-CHANGE by its digest, from those that came by themselves or were fetched.
    pub(crate) fn proof(&self, digest: &Digest) -> Option<&SignedViewChange> {
        let came = || self.view_changes.values().find(|m| m.digest() == *digest);
        let entered = || {
            self.entered
                .iter()
                .flat_map(|e| &e.proofs)
                .find(|m| m.digest() == *digest)
        };
        self.proofs.get(digest).or_else(came).or_else(entered)
    }

    /// The same, if it is this replica's.
    pub(crate) fn proof_of(
        &self,
        replica: ReplicaId,
        digest: &Digest,
    ) -> Option<&SignedViewChange> {
        let is_it = |m: &&SignedViewChange| m.body.replica == replica && m.digest() == *digest;
        let came = || self.view_changes.get(&replica).filter(is_it);
        let entered = || {
            let mut proofs = self.entered.iter().flat_map(|e| &e.proofs);
            proofs.find(is_it)
        };
        let named = self.proofs.get(digest);
        let named = named.filter(|m| m.body.replica == replica);
        named.or_else(came).or_else(entered)
    }

    fn is_proof_wanted(&self, replica: ReplicaId, digest: &Digest) -> bool {
        let names = |m: &SignedNewView| m.body.proofs.contains(&(replica, *digest));
        self.new_views_to_look_at().any(names) && !self.proofs.contains_key(digest)
    }

    fn prune_proofs(&mut self) {
        let (waiting, missed) = (&self.waiting_new_views, &self.missed_new_views);
        self.proofs.retain(|digest, _| {
            let all = waiting.values().chain(missed.values());
            let mut named = all.flat_map(|m| &m.body.proofs);
            named.any(|(_, d)| d == digest)
        });
    }

    /// Checks each NEW-VIEW of which all VIEW-CHANGEs are here: the same function over the same messages.
    fn try_waiting_new_views(&mut self) {
        // The bound that was passed when they came may be gone: it was given up, or a certificate that came since made an answer void, their
        // own perhaps. They come again in answer to STATUS, once there is another one.
        let is_late = self.is_recovering() && !self.has_passed_bound();
        if is_late && !is_on(Mutant::ViewWithoutBound) {
            self.waiting_new_views.clear();
        }
        let waiting: Vec<SignedNewView> = self.new_views_to_look_at().cloned().collect();
        for new_view in waiting {
            // An earlier one may have brought this replica further.
            let view = new_view.body.view;
            let was_missed = self.ends_certificates(&new_view.body);
            if !self.is_of_use(view) && !was_missed {
                continue;
            }
            let proofs = new_view.body.proofs.iter();
            let proofs: Option<Vec<SignedViewChange>> = proofs
                .map(|(_, digest)| self.proof(digest).cloned())
                .collect();
            let Some(proofs) = proofs else {
                continue;
            };
            match self.is_right(&new_view, &proofs) {
                true if was_missed => self.learn(Entered { new_view, proofs }),
                false if was_missed => self.missed_new_views.retain(|_, m| *m != new_view),
                true => self.enter(Entered { new_view, proofs }),
                false => self.refuse_new_view(&new_view),
            }
        }
        self.forget_useless_new_views();
        self.prune_proofs();
    }

    fn forget_useless_new_views(&mut self) {
        let mut waiting = core::mem::take(&mut self.waiting_new_views);
        waiting.retain(|_, m| self.is_of_use(m.body.view));
        self.waiting_new_views = waiting;
        let mut missed = core::mem::take(&mut self.missed_new_views);
        missed.retain(|_, m| self.ends_certificates(&m.body));
        self.missed_new_views = missed;
    }

    /// Those that wait for VIEW-CHANGEs that they name.
    pub(crate) fn new_views_to_look_at(&self) -> impl Iterator<Item = &SignedNewView> {
        let waiting = self.waiting_new_views.values();
        waiting.chain(self.missed_new_views.values())
    }

    /// Whether a NEW-VIEW of this view is one to enter.
    fn is_of_use(&self, view: View) -> bool {
        match self.active {
            true => view > self.view,
            false => view >= self.view,
        }
    }

    /// Whether a NEW-VIEW is of an earlier view than the one that this replica waits for, and says, if it is right, that a certificate here has come to nothing: then it is looked at for that. Any is, whatever others have said
    /// since, which may be right as well and leave the certificate.
    fn ends_certificates(&self, body: &NewView) -> bool {
        let certificates = self.slots.range(body.start.0.next()..);
        let mut certificates = certificates.filter_map(|(_, slot)| slot.prepared.as_ref());
        !self.active
            && body.view < self.view
            && !self.is_recovering()
            && certificates.any(|p| body.supersedes(p))
    }

    /// A view has begun that this replica did not take part in, and it waits in a later one already. What it says of this one's certificates it says all the same.
    fn learn(&mut self, entered: Entered) {
        entered.forget_superseded(self.slots.values_mut());
        let known = self.entered.as_ref().map(Entered::view);
        if known < Some(entered.view()) {
            self.entered = Some(entered);
        }
    }

    fn is_right(&self, new_view: &SignedNewView, proofs: &[SignedViewChange]) -> bool {
        let body = &new_view.body;
        let fit = body.proofs.iter().zip(proofs).all(|((replica, _), proof)| {
            proof.body.replica == *replica && proof.body.view == body.view
        });
        let bodies: Vec<&ViewChange> = proofs.iter().map(|m| &m.body).collect();
        fit && (is_on(Mutant::NewViewUnchecked)
            || select(self.config.quorum, &bodies).is_some_and(|expected| {
                expected.start == body.start && expected.batches == body.selection
            }))
    }

    /// The primary of a view has started it wrongly: on to the next, if that view is the one that is waited for. What a faulty
    /// replica says of a later view of its own leads nobody there.
    fn refuse_new_view(&mut self, refused: &SignedNewView) {
        let view = refused.body.view;
        self.waiting_new_views.retain(|_, m| m.body.view != view);
        if view == self.view && !self.active {
            match self.is_recovering() {
                true => self.wait_for_view_after(view),
                false => self.start_view_change(view.next()),
            }
        }
    }

    /// Enters a view that has started rightly.
    fn enter(&mut self, entered: Entered) {
        let body = entered.new_view.body.clone();
        self.roll_back();
        if body.view > self.view {
            self.view_changes_seen += 1;
        }
        self.view = body.view;
        // Until the checkpoint is taken with which it begins: what is selected is voted for after the record below.
        self.active = false;
        self.own_change = None;
        if self.is_recovering() {
            // It may be a checkpoint of its own that it has started from, which no record tells of. Without one the next start would take it for new.
            let (seq, root) = self.stable;
            self.persist(Record::Stable(StableRecord { seq, root }));
        }
        self.end_recovery();
        self.new_view_deadline = None;
        self.failed_to_begin = 0;
        self.entered = Some(entered.clone());
        self.forget_proposals();
        entered.forget_superseded(self.slots.values_mut());
        if is_on(Mutant::PreparedForgotten) {
            self.slots
                .values_mut()
                .for_each(|slot| slot.prepared = None);
        }
        if body.start.0 > self.stable.0 {
            self.start_from(body.start);
        }
        self.active = true;
        self.last_given = body.votes().last().map_or(body.start.0, |vote| vote.seq);
        if !self.take_up_selection() {
            return;
        }
        // What was executed here and waits all the same is a read that is asked again: that old batch won't answer it.
        let selected = self.slots.range(self.executed.next()..);
        let batches = selected.filter_map(|(_, slot)| slot.batches.get(&slot.proposal?.digest));
        let named = batches.flat_map(|batch| batch.requests.iter().copied());
        let named = named.collect();
        self.pool.restart(&named, self.now.mono);
        if self.is_primary() {
            self.forget_doubtful();
        }
        self.judge.begin_view(self.last_given, self.now.mono);
        let record = Record::Entered(entered.clone().into());
        self.entered_at = Some(self.next_index);
        if self.is_primary() {
            self.persist_then_tell(record, PeerMessage::NewView(entered.new_view));
        } else {
            self.persist(record);
        }
        self.accept_proposals();
        let seqs: Vec<_> = self.slots.keys().copied().collect();
        seqs.into_iter().for_each(|seq| self.advance_slot(seq));
        self.fetch_missing();
    }

    /// Makes proposals of what the present view began with, so far as there is a window for it and none of them yet. A view can begin above
    /// the window of a replica that lags, also of its primary; and its vote may be one that the others can't do without. `false` where
    /// the view gives a place to another batch than the one that committed there.
    pub(crate) fn take_up_selection(&mut self) -> bool {
        let view = self.view;
        let entered = self.entered.as_ref().map(|e| &e.new_view.body);
        let Some(body) = entered.filter(|body| self.active && body.view == view) else {
            return true;
        };
        let selected: Vec<Vote> = body.votes().filter(|v| self.in_window(v.seq)).collect();
        let commit = self.config.quorum.commit();
        for vote in selected {
            let (seq, digest) = (vote.seq, vote.digest);
            let slot = self.slots.entry(seq).or_default();
            if slot.proposal.is_some() || slot.preprepared.iter().any(|v| v.view == view) {
                continue;
            }
            let by = slot.commits.winner(commit);
            let earlier = by.is_some_and(|(by, _)| by < view);
            let differs = slot.committed.is_some_and(|committed| committed != digest);
            if differs && !earlier {
                // It has committed in this view or a later one, with others, and the view's primary has started the view in two ways, each of
                // them right. What it tells this replica has lost, and gets no vote.
                continue;
            }
            if differs {
                let what = alloc::format!(
                    "view {view} gives place {seq} to another batch than the one that committed there: \
                     more than f replicas of the group are faulty"
                );
                self.out.push_back(Output::Fatal(what));
                return false;
            }
            slot.remember_preprepared(vote);
            self.awaiting.insert(seq);
            slot.proposal = Some(Proposal {
                view,
                digest,
                stage: Stage::Proposed,
                vouched: true,
            });
            if digest == Batch::null().digest() {
                let null = || alloc::sync::Arc::new(Batch::null());
                slot.batches.entry(digest).or_insert_with(null);
            }
        }
        true
    }

    /// The view starts from a checkpoint that is stable elsewhere.
    fn start_from(&mut self, start: (quorate_wire::Seq, Digest)) {
        let own = self.own_checkpoints.get(&start.0);
        if own == Some(&start.1) {
            if self.is_backed(start.0, start.1) {
                self.make_stable(start.0, start.1);
            }
        } else if own.is_some() || start.0 > self.committed {
            // f+1 replicas vouch for it, so one correct replica has the state. If this one is on its way there it
            // goes on; the catch-up fetches the state if it is not.
            self.fetch_state(start);
        }
    }
}
