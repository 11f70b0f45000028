//! The normal case: pre-prepare, prepare, commit. PBFT 2002, 4.2.

use alloc::sync::Arc;
use alloc::vec::Vec;

use quorate_wire::message::{
    AuthRequest, Batch, Commit, PeerMessage, PrePrepare, Prepare, Request, Vote,
};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Authenticator, Digest, Quorum, ReplicaId, Seq};

use crate::BATCH_BYTES;
use crate::core::Agreement;
use crate::durable::{CommittedRecord, Content, PrePrepared, Record};
use crate::io::{Ordered, Output, Rejected};
use crate::judge::NamedClaim;
use crate::pool::DigestSet;
use crate::slot::{Proposal, Stage, Votes};

/// The heaviest batch that a backup votes for; it must fit in a frame of the log.
pub(crate) const MAX_BATCH_WEIGHT: usize = 2 * BATCH_BYTES;

impl Agreement {
    /// Writes down that the batch is pre-prepared here; PREPARE leaves, and counts, when that is on disk.
    pub(crate) fn vote(&mut self, seq: Seq, digest: Digest) {
        let (record, view) = (self.pre_prepared_record(seq, digest), self.view);
        self.persist_then_tell(record, PeerMessage::Prepare(Prepare { view, seq, digest }));
    }

    /// The small ones among the requests, as their clients sent them.
    pub(crate) fn bodies_to_relay(&self, requests: &[Digest]) -> Vec<Arc<AuthRequest>> {
        let relay = |digest: &Digest| {
            let entry = self.pool.get(digest)?;
            let small = entry.request().op().len() <= self.config.tuning.inline_bytes;
            entry.relay().filter(|_| small).cloned()
        };
        requests.iter().filter_map(relay).collect()
    }

    /// Remembers the vote in Q, and makes its record.
    fn pre_prepared_record(&mut self, seq: Seq, digest: Digest) -> Record {
        let vote = Vote {
            seq,
            view: self.view,
            digest,
        };
        let content = self.content_for_log(seq, digest);
        let slot = self.slots.entry(seq).or_default();
        slot.remember_preprepared(vote.clone());
        Record::PrePrepared(PrePrepared { vote, content })
    }

    /// The batch with its requests, unless the log has them already.
    fn content_for_log(&mut self, seq: Seq, digest: Digest) -> Option<Content> {
        let slot = self.slots.get_mut(&seq)?;
        if !self.config.durable || !slot.logged.insert(digest) {
            return None;
        }
        let batch = slot.batches.get(&digest)?.clone();
        let requests = self.bodies(&batch)?;
        Some(Content {
            batch: (*batch).clone(),
            requests,
        })
    }

    fn bodies(&self, batch: &Batch) -> Option<Vec<Request>> {
        batch
            .requests
            .iter()
            .map(|d| Some(self.pool.get(d)?.request().clone()))
            .collect()
    }

    fn ordered_requests(&self, batch: &Batch) -> Option<Vec<Arc<AuthRequest>>> {
        let known = |digest: &Digest| Some(self.pool.get(digest)?.known().clone());
        batch.requests.iter().map(known).collect()
    }

    /// PRE-PREPARE: the primary gives a batch a place.
    pub(crate) fn on_pre_prepare(
        &mut self,
        from: ReplicaId,
        m: PrePrepare,
    ) -> Result<(), Rejected> {
        if m.view != self.view {
            return Err(Rejected::OtherView);
        }
        if !self.active {
            return Err(Rejected::NotActive);
        }
        if from != self.primary() {
            return Err(Rejected::NotThePrimary);
        }
        // PBFT 2002, 4.2: between the water marks, so that a faulty primary can't exhaust the places.
        if !self.in_window(m.seq) && !is_on(Mutant::WindowUnchecked) {
            return Err(Rejected::OutsideWindow);
        }
        let digest = m.batch.digest();
        let slot = self.slots.get(&m.seq);
        let mut known = slot.and_then(|s| s.proposal);
        if is_on(Mutant::TwoVotesInAView) {
            known = known.filter(|known| known.digest == digest);
        }
        if known.is_some_and(|known| known.digest != digest) {
            return Err(Rejected::Contradiction);
        }
        // One vote in a view: also where the proposal that it was for has been set aside, since another batch committed. To vote
        // for that one as well would harm nobody, but be evidence against this replica.
        let other_vote =
            |v: &Vote| v.view == m.view && v.digest != digest && !is_on(Mutant::TwoVotesInAView);
        if slot.is_some_and(|s| s.preprepared.iter().any(other_vote)) {
            return Err(Rejected::Contradiction);
        }
        // Others' votes may overtake the primary's word: what was adopted from them may still lack its content.
        if known.is_some_and(|known| known.stage != Stage::Proposed) {
            return Err(Rejected::Duplicate);
        }
        if slot
            .and_then(|s| s.committed)
            .is_some_and(|committed| committed != digest)
        {
            return Err(Rejected::Contradiction);
        }
        let named = self.check_batch(m.seq, &m.batch, known.is_some())?;
        let weight: usize = m.bodies.iter().map(|b| b.request.weight()).sum();
        let is_named = |body: &Arc<AuthRequest>| named.contains(&body.request.digest());
        // What is not named would be thrown away, and what is kept of the message may keep all of it in memory.
        if weight > MAX_BATCH_WEIGHT || !m.bodies.iter().all(is_named) {
            return Err(Rejected::BadBatch);
        }
        if !self.has_room(m.seq, self.would_bring(&m.batch, &m.bodies)) {
            return Err(Rejected::LogFull);
        }
        if self.suspects.has_doubts() {
            let macs = |b: &&Arc<AuthRequest>| matches!(b.auth, Authenticator::Macs(_));
            for body in m.bodies.iter().filter(macs) {
                self.suspects.on_proposed(&body.request.digest());
            }
        }
        self.keep_bodies(m.bodies, weight);
        m.batch
            .requests
            .iter()
            .for_each(|d| self.pool.mark_ordered(d));
        // A batch may have been closed for what is dear in it, or was next. What that comes to is asked of the service, so only where it matters.
        let is_small = m.batch.requests.len() <= self.config.tuning.batch_requests / 2;
        let mut cost = 0_usize;
        let (mut missing, mut claims) = (Vec::new(), Vec::new());
        for digest in &m.batch.requests {
            let Some(entry) = self.pool.get(digest) else {
                self.expect_content(m.seq);
                cost = BATCH_BYTES;
                missing.push(*digest);
                continue;
            };
            let (client, weight) = (entry.request().client(), entry.request().weight());
            if is_small {
                cost = cost.saturating_add(self.pool.cost(entry));
            }
            let long = self.config.tuning.inline_bytes;
            if let Some((claim, is_next)) = entry.claimed() {
                let is_sample = is_next && entry.request().op().len() <= long;
                let held = self.pace.may_hold(m.seq);
                claims.push(NamedClaim {
                    claim,
                    is_sample,
                    held,
                    full_at: None,
                });
            }
            self.pool.served(&client, weight, long, self.now.mono);
        }
        let now = self.now.mono;
        // What others' votes have told of before, or a new view has selected, the primary may lack the clients' word for.
        if !missing.is_empty() && known.is_none() {
            self.judge.on_lacking(m.seq, missing, claims, now);
        } else if !self.judge.withheld.lacked(m.seq) {
            for named in claims {
                self.judge.on_claim_proposed(m.seq, named, now);
            }
        }
        let has_room = is_small && cost <= BATCH_BYTES / 4;
        let requests = m.batch.requests.iter();
        let sessions = requests.filter_map(|d| Some(self.pool.get(d)?.request().session()));
        self.judge
            .on_proposed(m.seq, sessions, has_room, self.now.mono);
        let slot = self.slots.entry(m.seq).or_default();
        slot.batches.insert(digest, Arc::new(m.batch));
        let view = m.view;
        slot.proposal = Some(Proposal {
            view,
            digest,
            stage: Stage::Proposed,
            vouched: known.is_some_and(|known| known.vouched),
        });
        self.awaiting.insert(m.seq);
        self.accept(m.seq);
        Ok(())
    }

    /// Whether a batch may be voted for by itself; the requests that it names.
    /// What is known already may be of any time: others have vouched for it.
    fn check_batch(&self, seq: Seq, batch: &Batch, known: bool) -> Result<DigestSet, Rejected> {
        let distinct = self.pool.set(batch.requests.iter().copied());
        if *batch == Batch::null() {
            // Only for a replica that recovers: else a primary could have the group do nothing without end.
            let wanted = self.may_be_filled(seq);
            return wanted.then_some(distinct).ok_or(Rejected::NotAsked);
        }
        if batch.requests.is_empty() || distinct.len() != batch.requests.len() {
            return Err(Rejected::BadBatch);
        }
        // Castro and Liskov (OSDI 1999, 4.6): what a primary chooses, its time too, backups check, so that a faulty one can't have bad time agreed on.
        let bound = u128::from(self.config.clock_bound_ms) * 1_000_000;
        let far = u128::from(batch.time.0.abs_diff(self.now.wall.0)) > bound;
        if far && !known && !is_on(Mutant::TimeUnchecked) {
            return Err(Rejected::BadTime);
        }
        Ok(distinct)
    }

    /// Keeps the relayed requests that are not here yet, of so many bytes together.
    fn keep_bodies(&mut self, bodies: Vec<Arc<AuthRequest>>, weight: usize) {
        // What was taken in unchecked may have come with another signature.
        let digests: Vec<Digest> = bodies.iter().map(|body| body.request.digest()).collect();
        self.are_checked(&digests);
        let news = bodies.into_iter().filter(|body| {
            let known = self.pool.get(&body.request.digest());
            !known.is_some_and(|e| e.authentic)
        });
        let mut news: Vec<Arc<AuthRequest>> = news.collect();
        // They are parts of the message that they came in, which stays as long as any of them. A primary may say the same thing again and again with one of them each time.
        let is_new = |body: &&Arc<AuthRequest>| self.pool.get(&body.request.digest()).is_none();
        let new = news.iter().filter(is_new);
        let new: usize = new.map(|body| body.request.weight()).sum();
        if 2 * new < weight {
            news.iter_mut()
                .for_each(|body| *body = Arc::new(body.detached()));
        }
        self.meet_guests(&news);
        let authentic = self.are_authentic(&news);
        for (body, authentic) in news.into_iter().zip(authentic) {
            match authentic || is_on(Mutant::AuthenticityUnchecked) {
                // A client over its limit must not stop what the primary has ordered.
                true => {
                    let digest = body.request.digest();
                    let _ = self.pool.insert_ordered(body, self.now.mono);
                    self.pool.mark_checked(&digest);
                }
                false => {
                    self.suspect(body.request.client());
                    self.pool.insert_vouched(body, self.now.mono);
                }
            }
        }
    }

    /// Accepts all proposals for which nothing is missing any more.
    pub(crate) fn accept_proposals(&mut self) {
        let awaiting: Vec<Seq> = self.awaiting.iter().copied().collect();
        for seq in awaiting {
            let proposal = self.slots.get(&seq).and_then(|s| s.proposal);
            match proposal.is_some_and(|p| p.stage == Stage::Proposed) {
                true => self.accept(seq),
                false => drop(self.awaiting.remove(&seq)),
            }
        }
    }

    /// Votes for a proposal if its content is here and its requests are authentic.
    pub(crate) fn accept(&mut self, seq: Seq) {
        let Some(slot) = self.slots.get(&seq) else {
            return;
        };
        let Some(proposal) = slot.proposal.filter(|p| p.stage == Stage::Proposed) else {
            return;
        };
        let Some(batch) = slot.batches.get(&proposal.digest).cloned() else {
            return;
        };
        let (mut weight, mut more, mut authentic, mut kept) = (0, 0, true, true);
        for digest in &batch.requests {
            let Some(entry) = self.pool.get(digest) else {
                return;
            };
            let its_weight = entry.request().weight();
            weight += its_weight;
            more += if entry.in_log() { 0 } else { its_weight };
            kept &= entry.in_log();
            authentic &= entry.authentic;
        }
        if weight > MAX_BATCH_WEIGHT {
            return;
        }
        // Aardvark, NSDI 2009 (the Big MAC attack): a client can send a MAC that is right for some and wrong for others.
        // f+1 replicas that voted hold one correct replica to which it was right.
        let voters = slot.prepares.count(proposal.view, proposal.digest);
        let others = voters >= self.config.quorum.weak() && !is_on(Mutant::NobodyVouches);
        let vouched = proposal.vouched || others;
        let authentic = vouched || authentic && self.are_checked(&batch.requests);
        if !authentic || !self.has_room(seq, more) {
            return;
        }
        if !kept {
            let named = batch.requests.iter();
            named.for_each(|d| self.pool.mark_ordered(d));
        }
        self.note_guests(&batch);
        self.judge_content(seq);
        self.judge.pipeline.on_accepted(seq, self.now.mono);
        self.set_stage(seq, Stage::Accepted);
        self.vote(seq, proposal.digest);
    }

    fn set_stage(&mut self, seq: Seq, stage: Stage) {
        if let Some(proposal) = self.slots.get_mut(&seq).and_then(|s| s.proposal.as_mut()) {
            proposal.stage = stage;
        }
    }

    /// PREPARE: a replica has the proposal on disk.
    pub(crate) fn on_prepare(&mut self, from: ReplicaId, m: Prepare) -> Result<(), Rejected> {
        if m.view < self.view {
            return Err(Rejected::OtherView);
        }
        if !self.in_window(m.seq) {
            return Err(Rejected::OutsideWindow);
        }
        if self.is_dropped_by_laggard(m.seq) {
            return Err(Rejected::NotAsked);
        }
        // Also the primary's: its pre-prepare alone is no vote. Published bug (Themis message_log.rs): both were counted.
        let slot = self.slots.entry(m.seq).or_default();
        if !slot.prepares.add(from, m.view, m.digest) {
            return Err(Rejected::Contradiction);
        }
        self.adopt(m.seq, m.digest);
        self.accept(m.seq);
        if m.view == self.view {
            self.ask_voter(from, m.seq);
        }
        self.advance_slot(m.seq);
        Ok(())
    }

    /// Takes a proposal from f+1 who voted for it, where the primary's own word has not come. One of them is correct and had
    /// it from the primary. Without this a primary that falls silent in the midst of its words leaves a batch with some
    /// correct replicas that the rest can neither commit nor, while no client asks for more, have reason to change views for.
    fn adopt(&mut self, seq: Seq, digest: Digest) {
        let (view, weak) = (self.view, self.config.quorum.weak());
        if !self.active || self.is_primary() {
            return;
        }
        let Some(slot) = self.slots.get_mut(&seq) else {
            return;
        };
        let voters = self.config.quorum.replicas().filter(|&r| {
            let vote = Some((view, digest));
            slot.prepares.of(r) == vote || slot.commits.of(r) == vote
        });
        // One vote in a view: also where the proposal that it was for has been set aside.
        let voted = slot.preprepared.iter().any(|v| v.view == view);
        let other = slot.committed.is_some_and(|committed| committed != digest);
        if slot.proposal.is_some() || voted || other || voters.count() < weak {
            return;
        }
        slot.proposal = Some(Proposal {
            view,
            digest,
            stage: Stage::Proposed,
            vouched: true,
        });
        if digest == Batch::null().digest() {
            // Nobody is asked for it.
            slot.batches.insert(digest, Arc::new(Batch::null()));
        }
        self.awaiting.insert(seq);
    }

    pub(crate) fn count_prepare(&mut self, from: ReplicaId, m: Prepare) {
        if self.in_window(m.seq) && m.view == self.view {
            self.slots
                .entry(m.seq)
                .or_default()
                .prepares
                .add(from, m.view, m.digest);
            self.judge.pipeline.on_voted(m.seq, self.now.mono);
            self.advance_slot(m.seq);
        }
    }

    /// COMMIT: a replica holds a certificate.
    pub(crate) fn on_commit(&mut self, from: ReplicaId, m: Commit) -> Result<(), Rejected> {
        // COMMITs of a view that this replica has left still prove what committed there.
        if !self.in_window(m.seq) {
            return Err(Rejected::OutsideWindow);
        }
        if self.is_dropped_by_laggard(m.seq) {
            return Err(Rejected::NotAsked);
        }
        // Published bug (fabric issue 1857): a laggard dropped what it could not use yet, and starved.
        let slot = self.slots.entry(m.seq).or_default();
        if !slot.commits.add(from, m.view, m.digest) {
            return Err(Rejected::Contradiction);
        }
        self.adopt(m.seq, m.digest);
        self.accept(m.seq);
        self.advance_slot(m.seq);
        Ok(())
    }

    pub(crate) fn count_commit(&mut self, from: ReplicaId, m: Commit) {
        if self.in_window(m.seq) {
            self.slots
                .entry(m.seq)
                .or_default()
                .commits
                .add(from, m.view, m.digest);
            self.advance_slot(m.seq);
        }
    }

    /// Never, but in a mutant.
    pub(crate) fn is_dropped_by_laggard(&self, seq: Seq) -> bool {
        let slot = self.slots.get(&seq);
        is_on(Mutant::LaggardDropsCommits) && slot.is_none_or(|s| s.proposal.is_none())
    }

    /// Looks whether the votes at a place suffice for the next step.
    pub(crate) fn advance_slot(&mut self, seq: Seq) {
        let (quorum, primary) = (self.config.quorum, self.primary());
        let Some(slot) = self.slots.get_mut(&seq) else {
            return;
        };
        if let Some(proposal) = slot.proposal.as_mut()
            && proposal.stage == Stage::Accepted
            && self.active
            // Prepared: the pre-prepare and 2f+1 matching PREPAREs of distinct replicas.
            && prepares(&slot.prepares, proposal, primary) >= needed(quorum, Mutant::PreparedWith2f)
        {
            proposal.stage = Stage::Prepared;
            let (view, digest) = (proposal.view, proposal.digest);
            let vote = Vote { seq, view, digest };
            slot.prepared = Some(vote.clone());
            self.judge.pipeline.on_prepared(seq, self.now.mono);
            self.certified = self.certified.max(seq);
            let commit = PeerMessage::Commit(Commit { view, seq, digest });
            self.persist_then_tell(Record::Prepared(vote), commit);
        }
        let Some(slot) = self.slots.get_mut(&seq) else {
            return;
        };
        if slot.committed.is_none()
            && let Some((_, digest)) = slot.commits.winner(needed(quorum, Mutant::CommittedWith2f))
        {
            self.commit_locally(seq, digest);
        }
    }

    /// A batch has committed at a place, as 2f+1 COMMITs or f+1 hints prove.
    pub(crate) fn commit_locally(&mut self, seq: Seq, digest: Digest) {
        let Some(slot) = self.slots.get_mut(&seq) else {
            return;
        };
        if slot.committed.is_none() {
            slot.committed = Some(digest);
            self.judge.pipeline.on_committed(seq, self.now.mono);
            let batch = slot.batches.get(&digest);
            for request in batch.iter().flat_map(|batch| &batch.requests) {
                self.suspects.on_committed(request);
            }
            // An equivocating primary gave this replica another batch than the one that committed.
            slot.proposal = slot.proposal.filter(|p| p.digest == digest);
            if self
                .tentative
                .as_ref()
                .is_some_and(|t| t.seq == seq && t.digest != digest)
            {
                self.roll_back();
            }
            self.advance();
        }
    }

    /// Hands to execution what has committed without a gap and is here whole.
    pub(crate) fn advance(&mut self) {
        let before = self.committed;
        while self
            .slots
            .get(&self.committed.next())
            .is_some_and(|s| s.committed.is_some())
        {
            self.committed = self.committed.next();
        }
        self.note_due(before);
        if self.fetching.is_some() {
            return;
        }
        let before = self.executed;
        while self.executed < self.committed && self.execute_next() {}
        if self.executed > before {
            if !is_on(Mutant::PatienceOnlyGrows) {
                (self.failed_views, self.slow_views) = (0, 0);
            }
            self.behind = None;
        }
        self.execute_tentatively();
    }

    /// PBFT 2002, 5.1.2: a batch is executed when it has prepared and all before it have committed. The certificate is on
    /// disk by then, so that 2f+1 replies of this kind outlive a view change and a power cut: f+1 correct replicas have it in P.
    fn execute_tentatively(&mut self) {
        let (me, seq) = (self.config.me, self.executed.next());
        let may = self.config.tuning.tentative && self.active && self.fetching.is_none();
        if !may || self.tentative.is_some() || self.executed != self.committed {
            return;
        }
        let Some(slot) = self.slots.get(&seq) else {
            return;
        };
        let prepared = slot.proposal.filter(|p| p.stage == Stage::Prepared);
        // One's own COMMIT counts when the certificate is on disk.
        let Some(proposal) = prepared.filter(|p| slot.commits.of(me) == Some((p.view, p.digest)))
        else {
            return;
        };
        if let Some(ordered) = self.ordered(seq, proposal.digest) {
            self.tentative = Some(ordered.clone());
            self.out.push_back(Output::Tentative(ordered));
        }
    }

    /// Has undone what was executed tentatively.
    pub(crate) fn roll_back(&mut self) {
        if self.tentative.take().is_some() {
            self.out.push_back(Output::Rollback);
        }
    }

    fn execute_next(&mut self) -> bool {
        let seq = self.executed.next();
        let Some(digest) = self.slots.get(&seq).and_then(|s| s.committed) else {
            return false;
        };
        let ordered = match self.tentative.take() {
            Some(done) => Some(done),
            None => self.ordered(seq, digest),
        };
        let Some(ordered) = ordered else {
            return false;
        };
        assert!(ordered.seq == seq && ordered.digest == digest);
        let content = self.content_for_log(seq, digest);
        self.persist(Record::Committed(CommittedRecord {
            seq,
            digest,
            content,
        }));
        for known in &ordered.requests {
            let digest = known.request.digest();
            self.pool.keep(&digest);
            self.pool.mark_executed(&digest);
            self.pool.outlived(&known.request);
        }
        self.executed = seq;
        let weights = ordered.requests.iter().map(|k| k.request.weight());
        let weight: usize = weights.sum();
        if let Some(slot) = self.slots.get_mut(&seq) {
            // It has one already where it is executed again, after this replica doubted its state.
            let before = core::mem::replace(&mut slot.weight, weight);
            self.unstable_weight = self.unstable_weight - before + weight;
        }
        self.out.push_back(Output::Execute(ordered));
        true
    }

    /// A batch with all that its execution needs, if that is here.
    fn ordered(&self, seq: Seq, digest: Digest) -> Option<Arc<Ordered>> {
        let null = Batch::null();
        let batch = match self.slots.get(&seq)?.batches.get(&digest) {
            Some(batch) => batch.clone(),
            None if digest == null.digest() => Arc::new(null),
            None => return None,
        };
        let requests = self.ordered_requests(&batch)?;
        Some(Arc::new(Ordered {
            seq,
            digest,
            view: self.view,
            time: batch.time,
            sessions: crate::io::sessions(&requests),
            requests,
        }))
    }
}

/// How many votes make a certificate: 2f+1, one less in a mutant.
fn needed(quorum: Quorum, mutant: Mutant) -> usize {
    quorum.commit() - usize::from(is_on(mutant) && quorum.n() > 1)
}

/// How many PREPAREs there are for a proposal.
fn prepares(votes: &Votes, proposal: &Proposal, primary: ReplicaId) -> usize {
    let (view, digest) = (proposal.view, proposal.digest);
    let twice = is_on(Mutant::PrimaryCountsTwice) && votes.of(primary) == Some((view, digest));
    votes.count(view, digest) + usize::from(twice)
}
