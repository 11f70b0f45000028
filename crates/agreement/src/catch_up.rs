//! Catching up, driven by what replicas say of themselves and not by new requests. PBFT 2002, 5.2.
//!
//! Each replica sends STATUS from time to time; the others answer with what it lacks: votes of the present view, hints of what
//! committed, CHECKPOINTs, the messages of a view change. So a primary that keeps f correct replicas in the dark (Berger,
//! Reiser, Bessani, SRDS 2021) keeps them there for a moment only, and a lost message costs one period.

use alloc::vec::Vec;

use quorate_wire::message::{
    AuthRequest, Batch, BatchBody, Checkpoint, Commit, Committed, Fetch, PeerMessage, PrePrepare,
    Prepare, Status,
};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Authentication, Digest, ReplicaId, Seq, View};

use crate::Millis;
use crate::budget::Budget;
use crate::core::Agreement;
use crate::durable::Content;
use crate::io::{Output, Rejected};
use crate::slot::{Slot, Stage};

/// How often a replica that waits for something says where it stands.
const BUSY_STATUS_MS: Millis = 100;
/// How often an idle one does.
const IDLE_STATUS_MS: Millis = 500;
/// How long a request is waited for that its client does not repeat; clients repeat theirs every few seconds.
const ABANDONED_MS: Millis = 15_000;
/// How long a replica waits alone in a later view before the others follow it: until then the group has no replica to spare. A view that
/// changes costs milliseconds, and a dead primary before that would be followed by a replica that has long done nothing.
const STRANDED_MS: Millis = 1_000;
/// How many views ahead it is followed at once.
pub(crate) const MAX_FOLLOWED: u64 = 16;
/// How long it is not followed again.
const FOLLOW_AGAIN_MS: Millis = 60_000;
/// The most places about which one STATUS is answered.
const PLACES_PER_ANSWER: u64 = 32;
/// The most bytes in the answer to one STATUS, and one batch.
const ANSWER_BYTES: usize = 4 << 20;
/// What a peer is given at once and in a millisecond, in bytes: more than a correct one can use.
const GIVEN_AT_ONCE: u64 = 64 << 20;
const GIVEN_IN_A_MS: u64 = 32 << 10;
/// What an answer to STATUS costs beside its bytes: it may be a hundred short messages.
const STATUS_COST: usize = 256 << 10;
/// The most contents asked for at one time.
const FETCHES_AT_ONCE: usize = 64;
/// How long a long request that a proposal names may be on its way from its client before the primary is asked for it.
const CONTENT_COMES_MS: Millis = 25;
/// The most that the primary is asked for then at one time: they may be long, and come from their clients after all.
const CONTENTS_AT_ONCE: usize = 16;
/// How long a replica behind a certified checkpoint tries to catch up batch by batch before it fetches the state.
const BATCHWISE_MS: Millis = 400;
/// The same where it has just fetched a state: what it lacks after that is not on its way to it, and the group goes on meanwhile.
const BATCHWISE_AGAIN_MS: Millis = 50;

/// How long claims of a checkpoint may be away before this replica counts as one that is not behind.
const CLAIMS_AGAIN_MS: Millis = 4 * IDLE_STATUS_MS;

/// Requests are expected that proposals name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContentDue {
    pub at: Millis,
    /// Those of places up to this one: later ones were proposed since, and may be on their way.
    pub up_to: Seq,
}

/// This replica is behind a certified checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Behind {
    /// What it has executed.
    executed: Seq,
    /// Since when it has executed no more.
    since: Millis,
    /// When there was such a checkpoint last.
    seen: Millis,
}

/// A replica that waits for the start of a later view, which the others see no reason for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stranded {
    pub view: View,
    pub since: Millis,
    pub followed: Option<Millis>,
}

impl Agreement {
    pub(crate) fn on_status_tick(&mut self) {
        if self.has_stale_proposal() {
            self.start_view_change(self.view.next());
        }
        self.send_status();
        self.ask_for_estimates();
        self.ask_to_be_ordered();
        self.look_after_statements();
        self.fetch_missing();
        self.fetch_state_if_stuck(self.certified_ahead());
        self.pool
            .forget_abandoned(self.now.mono.saturating_sub(ABANDONED_MS));
    }

    pub(crate) fn send_status(&mut self) {
        let status = Status {
            view: self.view,
            active: self.active,
            stable: self.stable.0,
            committed: self.committed,
            executed: self.executed,
            primary_lost: self.told_loss,
            recovering: self.recovering_up_to(),
        };
        let open = self
            .slots
            .keys()
            .next_back()
            .is_some_and(|&last| last > self.committed);
        let busy = open || !self.active || self.fetching.is_some() || self.behind();
        self.next_status = self.now.mono + if busy { BUSY_STATUS_MS } else { IDLE_STATUS_MS };
        self.tell_epoch();
        self.out
            .push_back(Output::Broadcast(PeerMessage::Status(status)));
    }

    /// Whether f+1 others say that they have committed more than this replica.
    pub(crate) fn others_are_ahead(&self) -> bool {
        let ahead = self
            .statuses
            .values()
            .filter(|(s, _)| s.committed > self.executed)
            .count();
        ahead >= self.config.quorum.weak()
    }

    /// Whether this replica has to catch up.
    fn behind(&self) -> bool {
        self.others_are_ahead() || self.certified_ahead().is_some()
    }

    /// A replica that left the view while nobody else saw a reason (its machine stood still, say) can't come back: it has
    /// promised not to vote there any more. While it waits, the group has lost a correct replica's vote. So after a while the
    /// others follow it into the next view; not often, since a faulty replica may pretend.
    fn follow_stranded(&mut self, from: ReplicaId, status: &Status) {
        let (now, own) = (self.now.mono, self.view);
        let had_its_time = self.has_view_had_its_time();
        if status.active || status.view <= own || !self.active {
            self.stranded.entry(from).and_modify(|s| s.since = now);
            return;
        }
        let stranded = self.stranded.entry(from).or_insert(Stranded {
            view: status.view,
            since: now,
            followed: None,
        });
        if stranded.view != status.view {
            (stranded.view, stranded.since) = (status.view, now);
        }
        let long = now.saturating_sub(stranded.since) >= STRANDED_MS;
        let rare = stranded
            .followed
            .is_none_or(|at| now.saturating_sub(at) >= FOLLOW_AGAIN_MS);
        if long && rare && had_its_time {
            stranded.followed = Some(now);
            // The word of one replica leads nobody far.
            let near = status.view.0 - own.0 <= MAX_FOLLOWED;
            self.start_view_change(if near { status.view } else { own.next() });
        }
    }

    /// A certified checkpoint, `ahead`, may be one to which batches don't bring this replica: the others have dropped them. Looked at with each
    /// STATUS and, since claims go with the keys that they were made under, when a claim comes.
    pub(crate) fn fetch_state_if_stuck(&mut self, ahead: Option<(Seq, Digest)>) {
        let (now, executed) = (self.now.mono, self.executed);
        let target = ahead.filter(|(seq, _)| *seq > executed);
        // Claims that are gone come again with the next STATUS.
        self.behind = self.behind.filter(|behind| {
            behind.executed == executed && now.saturating_sub(behind.seen) < CLAIMS_AGAIN_MS
        });
        let Some(target) = target else {
            return;
        };
        let behind = self.behind.get_or_insert(Behind {
            executed,
            since: now,
            seen: now,
        });
        behind.seen = now;
        if now >= behind.since + BATCHWISE_MS {
            self.fetch_state(target);
        }
    }

    /// A state has come, and others may have gone on beyond it.
    pub(crate) fn expect_batches_at_once(&mut self) {
        let waited = BATCHWISE_MS - BATCHWISE_AGAIN_MS;
        self.behind = Some(Behind {
            executed: self.executed,
            since: self.now.mono.saturating_sub(waited),
            seen: self.now.mono,
        });
    }

    /// STATUS: answers with what the sender lacks, whether or not there is anything new: stragglers that waited for that stayed wedged
    /// (concord-bft issue 269, pull 912).
    pub(crate) fn on_status(&mut self, from: ReplicaId, m: Status) -> Result<(), Rejected> {
        let moved = self.statuses.get(&from).is_none_or(|(old, _)| {
            (old.view, old.active, old.committed) != (m.view, m.active, m.committed)
        });
        self.statuses.insert(from, (m.clone(), moved));
        if let Some(recovery) = &mut self.recovery {
            recovery.hear(from, &m);
            // What it could offer others have as well, and know to be right.
            return Ok(());
        }
        // Berger, Reiser, Bessani, SRDS 2021 (arXiv 2107.11144).
        if is_on(Mutant::StatusUnanswered) {
            return Ok(());
        }
        let gives = self.gives_to(from);
        if gives {
            self.spend(from, STATUS_COST);
            self.offer_checkpoints(from, &m);
            self.offer_view(from, &m);
        }
        match m.recovering {
            Some(bound) => self.help_recovering(from, &m, bound),
            None => self.follow_stranded(from, &m),
        }
        if !gives {
            return Err(Rejected::TooOften);
        }
        self.offer_committed(from, m.committed);
        if !moved && m.view == self.view && m.active && self.active {
            // Where this replica is the one behind, it is the sender's COMMIT that it lacks, and that may lack this replica's
            // PREPARE: at a place that a new view has taken up and that has committed there before.
            self.offer_votes(from, m.committed.min(self.committed));
        }
        Ok(())
    }

    /// Whether a peer gets an answer now, or has asked for too much of late.
    fn gives_to(&mut self, peer: ReplicaId) -> bool {
        let now = self.now.mono;
        let new = || Budget::new(GIVEN_AT_ONCE, GIVEN_IN_A_MS, now);
        let budget = self.budgets.entry(peer).or_insert_with(new);
        budget.is_open(now) || is_on(Mutant::AnswersWithoutEnd)
    }

    /// Gives a peer what it has asked for, or lacks.
    fn send(&mut self, to: ReplicaId, message: PeerMessage) {
        self.spend(to, weight(&message));
        self.out.push_back(Output::Send(to, message));
    }

    fn spend(&mut self, peer: ReplicaId, bytes: usize) {
        if let Some(budget) = self.budgets.get_mut(&peer) {
            budget.spend(bytes);
        }
    }

    fn offer_checkpoints(&mut self, to: ReplicaId, status: &Status) {
        // Who fetches the state of its stable checkpoint may have forgotten, with its process, what others signed about it, which
        // proves a donor's lie.
        let fetches = status.executed < status.stable;
        let again = fetches && self.config.authentication == Authentication::Signature;
        let stable = status.stable;
        let own: Vec<Checkpoint> = self
            .own_checkpoints
            .iter()
            .filter(|(seq, _)| **seq > stable || again && **seq == stable)
            .map(|(&seq, &root)| Checkpoint { seq, root })
            .collect();
        own.into_iter()
            .for_each(|m| self.send(to, PeerMessage::Checkpoint(m)));
    }

    /// Published traps (sawtooth-pbft pull 90, dedis/dela pull 214): who caught up must learn the view as well.
    fn offer_view(&mut self, to: ReplicaId, status: &Status) {
        let behind = (status.view, status.active) < (self.view, self.active);
        let holds_superseded = self.holds_superseded(to);
        if (behind || holds_superseded)
            && !is_on(Mutant::ViewNeverLearnt)
            && self.is_entry_durable()
            && let Some(entered) = &self.entered
        {
            let began = entered.new_view.body.view;
            if (status.view, status.active) < (began, true) || holds_superseded {
                let message = PeerMessage::NewView(entered.new_view.clone());
                self.send(to, message);
            }
        }
        if !self.active && status.view <= self.view && !(status.view == self.view && status.active)
        {
            let own = self.view_changes.get(&self.config.me).cloned();
            own.into_iter()
                .for_each(|vc| self.send(to, PeerMessage::ViewChange(vc)));
        }
    }

    /// Whether a replica that waits in this view, or a later one, has shown a certificate in its VIEW-CHANGE that has come to nothing by what the last view here began with: it was not there.
    /// As long as it shows it, no view may begin without it (see [`Slot::forget_superseded`](crate::slot::Slot::forget_superseded)).
    fn holds_superseded(&self, replica: ReplicaId) -> bool {
        let Some(entered) = self.entered.as_ref().filter(|_| !self.active) else {
            return false;
        };
        let began = &entered.new_view.body;
        let shown = self.view_changes.get(&replica);
        let mut shown = shown.into_iter().flat_map(|m| &m.body.prepared);
        shown.any(|p| began.supersedes(p))
    }

    fn offer_committed(&mut self, to: ReplicaId, committed: Seq) {
        if is_on(Mutant::HintsUntold) {
            return;
        }
        let last = self
            .committed
            .0
            .min(committed.0.saturating_add(PLACES_PER_ANSWER));
        for seq in (committed.0.saturating_add(1)..=last).map(Seq) {
            if let Some(digest) = self.slots.get(&seq).and_then(|s| s.committed) {
                self.send(to, PeerMessage::Committed(Committed { seq, digest }));
            }
        }
    }

    /// Repeats this replica's own messages of the present view.
    fn offer_votes(&mut self, to: ReplicaId, committed: Seq) {
        let (me, view) = (self.config.me, self.view);
        // The number is the peer's word and may be any.
        let last = Seq(committed.0.saturating_add(PLACES_PER_ANSWER));
        let (mut messages, mut given) = (Vec::new(), 0);
        let places = self.slots.range(committed..=last);
        for (&seq, slot) in places.filter(|(seq, _)| **seq > committed) {
            let Some(proposal) = slot.proposal.filter(|p| p.stage >= Stage::Accepted) else {
                continue;
            };
            if given > ANSWER_BYTES {
                break;
            }
            let digest = proposal.digest;
            // What waits for the log has not been counted as this replica's own vote yet, and must not leave either.
            let prepared = slot.prepares.of(me) == Some((view, digest));
            let committed = slot.commits.of(me) == Some((view, digest));
            if self.is_primary()
                && self.is_entry_durable()
                && let Some(batch) = slot.batches.get(&digest)
            {
                // With the clients' own words again: a backup that fetched a request without them could not tell that it
                // is authentic, and the client may be gone.
                let bodies = self.bodies_to_relay(&batch.requests);
                given += bodies.iter().map(|b| b.request.weight()).sum::<usize>();
                let batch = (**batch).clone();
                messages.push(PeerMessage::PrePrepare(PrePrepare {
                    view,
                    seq,
                    batch,
                    bodies,
                }));
            }
            if prepared {
                messages.push(PeerMessage::Prepare(Prepare { view, seq, digest }));
            }
            if committed {
                messages.push(PeerMessage::Commit(Commit { view, seq, digest }));
            }
        }
        messages.into_iter().for_each(|m| self.send(to, m));
    }

    /// A hint that something committed; f+1 of them hold the word of one correct replica.
    pub(crate) fn on_committed(&mut self, from: ReplicaId, m: Committed) -> Result<(), Rejected> {
        if !self.in_window(m.seq) {
            return Err(Rejected::OutsideWindow);
        }
        if self.is_dropped_by_laggard(m.seq) {
            return Err(Rejected::NotAsked);
        }
        let slot = self.slots.entry(m.seq).or_default();
        if !slot.hints.add(from, View(0), m.digest) {
            return Err(Rejected::Contradiction);
        }
        if slot.committed.is_none()
            && (slot.hints.count(View(0), m.digest) >= self.config.quorum.weak()
                || is_on(Mutant::OneHintSuffices))
        {
            self.commit_locally(m.seq, m.digest);
            self.fetch_missing();
        }
        Ok(())
    }

    /// Asks for the batches and requests that keep this replica from executing or voting, each time another replica.
    pub(crate) fn fetch_missing(&mut self) {
        let mut wanted = Vec::new();
        for (&seq, slot) in self.slots.range(self.stable.0.next()..) {
            // What is behind this replica it needs only where its vote is missing.
            let needed = match seq > self.executed {
                true => slot.wanted(),
                false => slot.proposed(),
            };
            let Some(digest) = needed.filter(|d| *d != Batch::null().digest()) else {
                continue;
            };
            let before = wanted.len();
            match slot.batches.get(&digest) {
                None => wanted.push(Fetch::Batch(digest)),
                Some(batch) if self.may_fetch(seq) => {
                    let missing = self.pool.missing(&batch.requests);
                    self.asked.extend(&missing);
                    wanted.extend(missing.into_iter().map(Fetch::Request));
                }
                Some(_) => {}
            }
            let is_crowded = wanted.len() > before && self.is_crowded();
            if wanted.len() >= FETCHES_AT_ONCE || is_crowded {
                break;
            }
        }
        for new_view in self.new_views_to_look_at() {
            let proofs = new_view.body.proofs.iter();
            let missing = proofs.filter(|(id, d)| self.proof_of(*id, d).is_none());
            wanted.extend(missing.map(|(_, d)| Fetch::ViewChange(*d)));
        }
        if wanted.is_empty() || self.config.quorum.n() == 1 {
            return;
        }
        let others: Vec<ReplicaId> = self.config.quorum.others(self.config.me).collect();
        self.fetch_turn = self.fetch_turn.wrapping_add(1);
        for (i, fetch) in wanted.into_iter().take(FETCHES_AT_ONCE).enumerate() {
            let to = others[(usize::from(self.fetch_turn) + i) % others.len()];
            let ask = PeerMessage::Fetch(fetch);
            self.out.push_back(Output::Send(to, ask));
        }
    }

    /// A proposal names requests that are not here.
    pub(crate) fn expect_content(&mut self, seq: Seq) {
        let (at, up_to) = (self.now.mono + CONTENT_COMES_MS, seq);
        self.content_due.get_or_insert(ContentDue { at, up_to });
    }

    /// Asks the primary for requests that it has named and that have not come here for a while, each once: their client may have shown them to the
    /// primary alone, and until they are here, or others vouch for them, nothing after them is executed. What does not come of that is asked for with
    /// each STATUS.
    pub(crate) fn ask_for_content(&mut self) {
        let due = self.content_due.take();
        let Some(due) = due.filter(|_| self.active && !self.is_primary()) else {
            return;
        };
        let (mut late, mut last) = (Vec::new(), None);
        for (&seq, slot) in self.slots.range(self.executed.next()..) {
            let batch = slot.proposed().and_then(|digest| slot.batches.get(&digest));
            let missing = batch.map(|batch| self.pool.missing(&batch.requests));
            let missing = missing.unwrap_or_default();
            last = if missing.is_empty() { last } else { Some(seq) };
            if seq <= due.up_to && self.may_fetch(seq) {
                late.extend(missing);
            }
        }
        // What came meanwhile is expected from here on.
        last.into_iter().for_each(|seq| self.expect_content(seq));
        late.retain(|digest| !self.asked.contains(digest));
        for digest in late.into_iter().take(CONTENTS_AT_ONCE) {
            self.asked.insert(digest);
            let ask = PeerMessage::Fetch(Fetch::Request(digest));
            self.out.push_back(Output::Send(self.primary(), ask));
        }
    }

    /// Another replica has voted for a proposal that came here without all that it names, so it has that. Where it is small the primary has withheld it from this
    /// replica, and may go on to do so.
    pub(crate) fn ask_voter(&mut self, voter: ReplicaId, seq: Seq) {
        if voter == self.primary() || !self.judge.withheld.lacked(seq) {
            return;
        }
        let slot = self.slots.get(&seq);
        let proposal = slot.and_then(|slot| slot.proposal.filter(|p| p.stage == Stage::Proposed));
        let batch = proposal.and_then(|p| slot?.batches.get(&p.digest));
        let Some(missing) = batch.map(|batch| self.pool.missing(&batch.requests)) else {
            return;
        };
        for digest in missing.into_iter().take(FETCHES_AT_ONCE) {
            self.asked.insert(digest);
            let ask = PeerMessage::Fetch(Fetch::Small(digest));
            self.out.push_back(Output::Send(voter, ask));
        }
    }

    /// What was executed at a place: the batch's digest, and its content, as far as it is here. Until a checkpoint at that place or beyond is stable.
    pub fn executed_at(&self, seq: Seq) -> Option<(Digest, Option<Content>)> {
        let slot = self.slots.get(&seq).filter(|_| seq <= self.executed)?;
        let digest = slot.committed?;
        let content = slot.batches.get(&digest).and_then(|batch| {
            let request = |digest: &Digest| Some(self.pool.get(digest)?.request().clone());
            Some(Content {
                batch: (**batch).clone(),
                requests: batch.requests.iter().map(request).collect::<Option<_>>()?,
            })
        });
        Some((digest, content))
    }

    /// Another replica asks for content.
    pub(crate) fn on_fetch(&mut self, from: ReplicaId, m: Fetch) -> Result<(), Rejected> {
        if !self.gives_to(from) {
            return Err(Rejected::TooOften);
        }
        let answer = match m {
            Fetch::Batch(digest) => {
                let batch = self.slots.values().find_map(|s| s.batches.get(&digest));
                batch.map(|b| {
                    PeerMessage::Batch(BatchBody {
                        batch: (**b).clone(),
                    })
                })
            }
            Fetch::Small(digest) => {
                let (entry, long) = (self.pool.get(&digest), self.config.tuning.inline_bytes);
                if entry.is_some_and(|e| e.request().op().len() > long) {
                    // Who asks can't know.
                    return Ok(());
                }
                entry.map(|e| PeerMessage::Body((**e.known()).clone()))
            }
            Fetch::Request(digest) => self
                .pool
                .get(&digest)
                .map(|e| PeerMessage::Body((**e.known()).clone())),
            Fetch::ViewChange(digest) => self.proof(&digest).cloned().map(PeerMessage::ViewChange),
        };
        let answer = answer.ok_or(Rejected::NotAsked)?;
        self.send(from, answer);
        Ok(())
    }

    /// A batch that was asked for.
    pub(crate) fn on_batch(&mut self, m: BatchBody) -> Result<(), Rejected> {
        let digest = m.batch.digest();
        let batch = alloc::sync::Arc::new(m.batch);
        let more = self.would_bring(&batch, &[]);
        let mut seqs = Vec::new();
        for (&seq, slot) in self.slots.iter_mut() {
            if slot.wanted() == Some(digest) && !slot.batches.contains_key(&digest) {
                slot.batches.insert(digest, batch.clone());
                seqs.push(seq);
            }
        }
        if seqs.is_empty() {
            return Err(Rejected::NotAsked);
        }
        // Else they wait, as they do, until it is accepted.
        if seqs.iter().any(|&seq| self.has_room(seq, more)) {
            let named = batch.requests.iter();
            named.for_each(|d| self.pool.mark_ordered(d));
        }
        self.continue_with_content();
        self.fetch_missing();
        Ok(())
    }

    /// A request that was asked for.
    pub(crate) fn on_body(&mut self, from: ReplicaId, body: AuthRequest) -> Result<(), Rejected> {
        let digest: Digest = body.request.digest();
        if !self.asked.contains(&digest) {
            return Err(Rejected::NotAsked);
        }
        if !self.may_take(&body.request) {
            return Err(Rejected::LogFull);
        }
        self.asked.remove(&digest);
        self.take_body(from, body);
        self.continue_with_content();
        Ok(())
    }

    /// Where it comes with its client's word for this replica, it is as good as from the client itself.
    fn take_body(&mut self, from: ReplicaId, body: AuthRequest) {
        let (digest, client) = (body.request.digest(), body.request.client());
        let is_to_come = |slot: &Slot| {
            let batch = slot.wanted().and_then(|wanted| slot.batches.get(&wanted));
            batch.is_some_and(|batch| batch.requests.contains(&digest))
        };
        // What was executed is wanted for a vote alone, and nobody waits for it.
        let mut open = self.slots.range(self.executed.next()..);
        let is_to_come = open.any(|(_, slot)| is_to_come(slot));
        if !is_to_come || body.auth.is_empty() || is_on(Mutant::BodiesBare) {
            self.pool.insert_bare(body.request, self.now.mono);
            return;
        }
        let body = alloc::sync::Arc::new(body);
        let one = core::slice::from_ref(&body);
        self.meet_guests(one);
        let is_authentic = self.are_authentic(one).pop() == Some(true);
        // A client over its limit must not stop what the primary has ordered.
        if is_authentic
            && self
                .pool
                .insert_ordered(body.clone(), self.now.mono)
                .is_ok()
        {
            self.pool.mark_checked(&digest);
            return;
        }
        if !is_authentic && from == self.primary() {
            self.suspect(client);
        }
        self.pool.insert_vouched(body, self.now.mono);
    }

    fn continue_with_content(&mut self) {
        self.accept_proposals();
        let before = self.executed;
        self.advance();
        // At the end of what was hinted, ask for more at once rather than at the next period.
        if self.executed > before && self.executed == self.committed && self.behind() {
            self.send_status();
        }
    }
}

/// What a message costs whom it is given to, in bytes, about.
fn weight(message: &PeerMessage) -> usize {
    /// A frame, the search for what is in it, and the smallest message.
    const LEAST: usize = 256;
    const VOTE: usize = 48;
    const DIGEST: usize = 32;
    let content = match message {
        PeerMessage::PrePrepare(m) => {
            let bodies = m.bodies.iter().map(|b| b.request.weight());
            bodies.sum::<usize>() + DIGEST * m.batch.requests.len()
        }
        PeerMessage::Batch(m) => DIGEST * m.batch.requests.len(),
        PeerMessage::Body(body) => body.request.weight(),
        PeerMessage::ViewChange(m) => {
            VOTE * (m.body.prepared.len() + m.body.preprepared.len() + m.body.checkpoints.len())
        }
        PeerMessage::NewView(m) => DIGEST * (m.body.proofs.len() + m.body.selection.len()),
        _ => 0,
    };
    LEAST + content
}
