//! Coming back without memory: a replica whose log is lost or damaged does not know what it has said, and must not say
//! anything else. PBFT 2002, 4.3.2 (estimation), with bounds of our own for views; `docs/protocol.md` has the argument.
//!
//! 1. *Estimation.* It asks how far the others are. From 2f+1 answers follows a [`Bound`]: no vote of its past was for a place
//!    above it, and no message of it of the bound's view or a later one.
//! 2. *Catching up.* It says nothing that counts. It learns what commits, and fetches state, as a replica that lags does. It
//!    says in STATUS that it recovers and up to where; the primary fills the places with null batches, so that this does
//!    not wait for clients.
//! 3. *Coming back.* With a stable checkpoint at the bound or above, which tells of its recovery where there are key holders
//!    (`statements.rs`), nothing that it said about places matters any more. The
//!    others go on to the bound's view, and with the NEW-VIEW of that one, or of a later one, it is a replica as any other.
//!
//! Until then it counts among the f, however long that takes: where recoveries begin by the clock, and nothing bounds how long they last,
//! more than f may be away at a time (Sousa, Neves, Verissimo, DSN 2005).
//!
//! [`Record::Recovering`](crate::Record::Recovering) stands in its log from before its first word until
//! [`Record::Entered`](crate::Record::Entered), so that a crash on the way leads back to 1.

use alloc::collections::BTreeMap;

use quorate_wire::message::{AuthRequest, Checkpoint, Estimate, PeerMessage, Status};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Digest, ReplicaId, Seq, View};

use crate::catch_up::MAX_FOLLOWED;
use crate::core::Agreement;
use crate::estimation::{Answers, Bound, highest_but};
use crate::io::{Missed, Output, Rejected};
use crate::spared::{Spared, Wait};
use crate::{CHECKPOINT_INTERVAL, LOG_WINDOW, Millis};

/// How often in [`HELP_MS`] a replica that says that it recovers is helped anew: a faulty one may say so for ever.
const HELPS: u32 = 4;
const HELP_MS: Millis = 60_000;
/// When nothing has committed for so long although places are to be filled, the primary is left: where no client asks for anything
/// nobody else would see that it does nothing.
const STALLED_MS: Millis = 3_000;
/// How long answers are waited for where enough have come, but not all: the more there are, the more lies the bound of views bears.
const ANSWER_MS: Millis = 500;
/// How long a replica that has passed all that it may have voted for waits for its view before it asks the others anew how far they are: one
/// that lied may have recovered since. A view that begins for it takes milliseconds.
const VIEW_MS: Millis = 20_000;
/// Greater numbers are nobody's: views and places are counted from 0, one at a time.
const MAX_NUMBER: u64 = u64::MAX / 4;

/// Where a replica that recovers stands; for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovering {
    /// None until enough have answered.
    pub bound: Option<Bound>,
    /// How many have answered.
    pub answers: usize,
    /// Whether a checkpoint tells that it recovers; never in a group without key holders.
    pub ordered: bool,
    /// More than f replicas say that they recover: not enough are left to vouch for anything.
    pub too_many: bool,
}

/// A replica that has forgotten what it said.
#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    nonce: u64,
    answers: Answers,
    bound: Option<Bound>,
    /// When all were asked.
    asked: Millis,
    /// How long the others have been waited for.
    wait: Wait,
    /// Since when only the view is.
    passed: Option<Millis>,
    /// A checkpoint of its own with which it started, if that is all that its low water mark rests on.
    own: Seq,
    /// What its identity says, where it has a key holder.
    statement: Option<AuthRequest>,
    /// The first checkpoint that tells of that, or of a later one.
    ordered: Option<Seq>,
    spared: Spared,
}

/// What this replica does for others that recover.
#[derive(Clone, Debug, Default)]
pub(crate) struct Help {
    given: BTreeMap<ReplicaId, Given>,
    /// As primary it proposes null batches up to here, while nobody asks for anything.
    fill: Seq,
    /// As backup it takes them up to here.
    accepted: Seq,
}

#[derive(Clone, Copy, Debug)]
struct Given {
    since: Millis,
    fills: u32,
    views: u32,
    target: Seq,
    /// What had committed here, and when that last was more, or another view began.
    moved: (Seq, View, Millis),
}

impl Recovery {
    pub fn new(nonce: u64, own: Seq, now: Millis) -> Recovery {
        Recovery {
            nonce,
            answers: Answers::default(),
            bound: None,
            asked: now,
            wait: Wait::new(now),
            passed: None,
            own,
            statement: None,
            ordered: None,
            spared: Spared::new(now),
        }
    }

    /// Its identity says that it recovers.
    pub fn state(&mut self, request: AuthRequest) {
        self.statement = Some(request);
        self.ordered = None;
    }

    /// The statement, as long as no checkpoint tells of it.
    pub fn unordered(&self) -> Option<&AuthRequest> {
        self.statement.as_ref().filter(|_| self.ordered.is_none())
    }

    /// The state after `seq` tells of the statement with this number.
    pub fn ordered(&mut self, seq: Seq, number: u64) {
        let own = self.statement.as_ref();
        if own.is_some_and(|own| own.request.number().0 <= number) {
            self.ordered.get_or_insert(seq);
        }
    }

    pub fn bound(&self) -> Option<Bound> {
        self.bound
    }

    /// Another replica says where it stands.
    pub fn hear(&mut self, from: ReplicaId, status: &Status) {
        self.spared.hear(from, status);
    }

    /// The number of a replica's keys has risen. What it answered counts no longer while the bound does not stand yet, or where its key was `void` when
    /// it answered, since whoever had stolen that may have done so. What the others have answered does, as long as the numbers under which they did
    /// still count: had all to be asked anew, the bound would rise each time with the places that were filled up to the one before, and a faulty
    /// replica that skips numbers of its keys would have it run away from the one that recovers. But no more than f are faulty in a window, and a
    /// bound that is made anew must not rest on the words of several.
    pub fn forget_answer(&mut self, replica: ReplicaId, void: bool) {
        if self.bound.is_none() || (void && self.answers.has(replica)) {
            self.answers.forget(replica);
            self.answers.forget_former();
            self.bound = None;
        } else {
            self.answers.age(replica);
        }
    }

    /// All are asked anew. It has said nothing since it was asked first, so that what is answered now bounds that as well.
    fn ask_again(&mut self, now: Millis) {
        self.answers = Answers::default();
        self.bound = None;
        self.asked = now;
        self.passed = None;
        self.nonce = self.nonce.wrapping_add(1);
    }
}

impl Agreement {
    /// Whether this replica may not speak yet.
    pub(crate) fn is_recovering(&self) -> bool {
        self.recovery.is_some()
    }

    /// Whether the places that it can have voted for are behind it, so that only the view is left to wait for.
    pub(crate) fn has_passed_bound(&self) -> bool {
        let Some(recovery) = &self.recovery else {
            return false;
        };
        let bound = recovery.bound();
        // Of f+1 that say so one is correct, and to that one it was stable with a quorum.
        let others = self.statuses.values();
        let others = others.filter(|(status, _)| status.stable >= self.stable.0);
        let is_backed = self.stable.0 > recovery.own || others.count() >= self.config.quorum.weak();
        bound.is_some_and(|bound| self.stable.0 >= bound.seq)
            && self.is_statement_stable(recovery)
            && is_backed
            && self.fetching.is_none()
    }

    /// Whether its stable checkpoint tells of its recovery: HR of PBFT 2002, 4.3.2. Where there are no key holders nothing has to.
    fn is_statement_stable(&self, recovery: &Recovery) -> bool {
        let is_told = recovery.ordered.is_some_and(|at| self.stable.0 >= at);
        self.epochs.is_none() || is_told || is_on(Mutant::StatementUnordered)
    }

    /// What a replica that recovers has no use for: it takes part in nothing, and asks for what it lacks.
    pub(crate) fn refuse_while_recovering(&self, message: &PeerMessage) -> Result<(), Rejected> {
        let refused = match message {
            PeerMessage::Request(_) | PeerMessage::PrePrepare(_) | PeerMessage::Prepare(_) => true,
            PeerMessage::NewView(_) => !self.has_passed_bound(),
            PeerMessage::EstimatePlease(_) => true,
            _ => false,
        };
        match refused && self.is_recovering() {
            true => Err(Rejected::NotActive),
            false => Ok(()),
        }
    }

    /// What a replica that recovers waits for others to do, if it does.
    fn waits_for(&self) -> Option<Missed> {
        let Some(bound) = self.recovery.as_ref()?.bound() else {
            return Some(Missed::Answers);
        };
        let is_there = |(status, _): &&(Status, bool)| status.stable >= bound.seq;
        let there = self.statuses.values().filter(is_there).count();
        if self.has_passed_bound() {
            return Some(Missed::View);
        }
        // Its statement is to be ordered, and a checkpoint of its own to be stable to others, and not only it has to fetch.
        let is_theirs = there < self.config.quorum.weak() || self.fetching.is_none();
        is_theirs.then_some(Missed::Places)
    }

    /// The place up to which all have committed at one correct other replica at least.
    fn others_have_come_to(&self) -> Seq {
        let committed = self.statuses.values().map(|(s, _)| s.committed);
        highest_but(self.config.quorum.f(), committed).unwrap_or_default()
    }

    /// Asks the others how far they are, as long as too few have said it; and anew where what they said has led to a view that does not begin.
    pub(crate) fn ask_for_estimates(&mut self) {
        let (now, quorum, waits) = (self.now.mono, self.config.quorum, self.waits_for());
        let others = self.others_have_come_to();
        if let Some(recovery) = &mut self.recovery {
            let is_long = recovery.wait.look(waits.is_some(), others, now);
            let missed = waits.filter(|_| is_long);
            let passed = recovery.passed.unwrap_or(now);
            recovery.passed = (waits == Some(Missed::View)).then_some(passed);
            if recovery.passed.is_some() && now.saturating_sub(passed) >= VIEW_MS {
                recovery.ask_again(now);
            }
            let missed = missed.or_else(|| recovery.spared.look(quorum, others, now));
            let missed = missed.filter(|_| !is_on(Mutant::NeverGoesBack));
            self.out.extend(missed.map(Output::Missed));
        }
        self.settle_bound();
        if let Some(recovery) = &self.recovery
            && recovery.bound.is_none()
        {
            let question = PeerMessage::EstimatePlease(recovery.nonce);
            self.out.push_back(Output::Broadcast(question));
        }
    }

    /// Another replica has forgotten what it said.
    pub(crate) fn on_estimate_please(
        &mut self,
        from: ReplicaId,
        nonce: u64,
    ) -> Result<(), Rejected> {
        // First under which key: an answer under one that is void by now is in doubt.
        let own = self.own_epoch();
        self.out.extend(own.map(|own| Output::Send(from, own)));
        let checkpoint = self.newest_checkpoint();
        let prepared = self.certified.max(self.committed).max(checkpoint);
        let answer = PeerMessage::Estimate(Estimate {
            nonce,
            checkpoint,
            prepared,
            view: self.view,
        });
        self.out.push_back(Output::Send(from, answer));
        Ok(())
    }

    /// The last checkpoint that this replica has made or knows as stable.
    fn newest_checkpoint(&self) -> Seq {
        let newest = self.own_checkpoints.keys().next_back();
        newest.copied().unwrap_or_default().max(self.stable.0)
    }

    /// An answer.
    pub(crate) fn on_estimate(&mut self, from: ReplicaId, m: Estimate) -> Result<(), Rejected> {
        let Some(recovery) = &mut self.recovery else {
            return Err(Rejected::NotAsked);
        };
        if m.nonce != recovery.nonce || recovery.bound.is_some() {
            return Err(Rejected::NotAsked);
        }
        let far = [m.checkpoint.0, m.prepared.0, m.view.0];
        if far.into_iter().max() > Some(MAX_NUMBER) {
            return Err(Rejected::Malformed);
        }
        recovery.answers.take(from, m);
        self.settle_bound();
        Ok(())
    }

    /// Takes what was answered for the bound, if it gives one: once all have answered, or have had time for it.
    pub(crate) fn settle_bound(&mut self) {
        let (quorum, now) = (self.config.quorum, self.now.mono);
        let Some(recovery) = self.recovery.as_mut().filter(|r| r.bound.is_none()) else {
            return;
        };
        let have_all = recovery.answers.len() + 1 == quorum.n();
        if have_all || now.saturating_sub(recovery.asked) >= ANSWER_MS {
            recovery.bound = recovery.answers.bound(quorum, self.config.me);
        }
        if let Some(bound) = recovery.bound {
            self.view = bound.view;
            self.send_status();
        }
    }

    /// The view that was waited for has been started wrongly. A replica that recovers has no word in that, and waits for the next.
    pub(crate) fn wait_for_view_after(&mut self, view: View) {
        let own = self.config.quorum.primary(view.next()) == self.config.me;
        self.view = if own { view.next().next() } else { view.next() };
    }

    /// A view has started in which this replica may vote.
    pub(crate) fn end_recovery(&mut self) {
        self.ending = self.recovering();
        if let Some(recovery) = self.recovery.take() {
            assert!(recovery.bound.is_some() || is_on(Mutant::ViewWithoutBound));
            // A client may have been told what a batch up to there gave.
            let bound = recovery.bound.map_or(Seq(0), |bound| bound.seq);
            self.certified = self.certified.max(bound);
        }
    }

    /// Up to where it may have held certificates that it has forgotten.
    pub(crate) fn may_have_certified(&self) -> Seq {
        let recovery = self.recovery.as_ref();
        let bound = recovery.map(|r| r.bound.map_or(Seq(u64::MAX), |bound| bound.seq));
        bound.unwrap_or_default()
    }

    pub(crate) fn recovery_invariants(&self) {
        if self.is_recovering() {
            // It has said nothing, and means to say nothing.
            assert!(!self.active && self.own_change.is_none() && self.held.is_empty());
            assert!(self.slots.values().all(|slot| slot.proposal.is_none()));
        }
    }

    /// Where a recovery stands, if there is one.
    pub(crate) fn recovering(&self) -> Option<Recovering> {
        let Some(recovery) = &self.recovery else {
            let ends = !self.is_entry_durable() && !is_on(Mutant::EndsBeforeDurable);
            return self.ending.filter(|_| ends);
        };
        let statuses = self.statuses.values();
        let others = statuses.filter(|(s, _)| s.recovering.is_some()).count();
        Some(Recovering {
            bound: recovery.bound,
            answers: recovery.answers.len(),
            ordered: recovery.ordered.is_some(),
            too_many: 1 + others > self.config.quorum.f(),
        })
    }

    /// What STATUS says of it: the place of the bound, 0 where it is not known. Where only its statement is still missing, any later place
    /// will do.
    pub(crate) fn recovering_up_to(&self) -> Option<Seq> {
        let recovery = self.recovery.as_ref()?;
        let bound = recovery.bound.map_or(Seq(0), |bound| bound.seq);
        match bound > Seq(0) && !self.is_statement_stable(recovery) {
            true => Some(bound.max(self.stable.0.next())),
            false => Some(bound),
        }
    }

    /// Tells all of a checkpoint that was made here.
    pub(crate) fn tell_checkpoint(&mut self, seq: Seq, root: Digest) {
        if !self.is_recovering() {
            let message = PeerMessage::Checkpoint(Checkpoint { seq, root });
            self.out.push_back(Output::Broadcast(message));
        }
    }

    /// What a replica that recovers was helped with of late.
    fn given_to(&mut self, of: ReplicaId) -> &mut Given {
        let now = self.now.mono;
        let given = self.help.given.entry(of).or_insert(Given {
            since: now,
            fills: 0,
            views: 0,
            target: Seq(0),
            moved: (self.committed, self.view, now),
        });
        if now.saturating_sub(given.since) >= HELP_MS {
            (given.since, given.fills, given.views) = (now, 0, 0);
        }
        given
    }

    /// Whether a primary may be left once more for a replica's sake. It counts as done. After some views that failed, the next has to have
    /// had its time: a faulty replica that led one of the others away whenever a view began would
    /// pay nothing for it, and the group the longest of its waits.
    pub(crate) fn may_change_view_for(&mut self, of: ReplicaId) -> bool {
        if !self.has_view_had_its_time() {
            return false;
        }
        let given = self.given_to(of);
        let may = given.views < HELPS || is_on(Mutant::HelpedWithoutEnd);
        given.views = given.views.saturating_add(u32::from(may));
        may
    }

    /// Another replica says that it recovers, up to `bound`: the places before it are to be filled, then its view is to begin.
    pub(crate) fn help_recovering(&mut self, from: ReplicaId, status: &Status, bound: Seq) {
        if self.active && self.primary() == from {
            // It can't lead.
            return self.start_view_change(self.view.next());
        }
        if !self.active {
            // The others may be in views far apart, and none of them can be missed.
            self.join_view_change();
        }
        let now = self.now.mono;
        self.given_to(from);
        if bound > Seq(0) && status.stable >= bound {
            // Not in one leap: how far one replica's word can lead another is what the bound of views rests on.
            let near = self.view.0.saturating_add(MAX_FOLLOWED);
            let mut view = View(status.view.0.min(near));
            if self.config.quorum.primary(view) == from && view.0 > 0 {
                view = View(view.0 - 1);
            }
            let waits = self.active && !status.active && view > self.view;
            if waits && self.may_change_view_for(from) {
                self.start_view_change(view);
            }
            return;
        }
        if self.is_statement_neglected(from) && self.may_change_view_for(from) {
            return self.start_view_change(self.view.next());
        }
        let newest = self.newest_checkpoint();
        // A right estimate is a window above a checkpoint that somebody has.
        if bound.0 > newest.0 + LOG_WINDOW {
            return;
        }
        let target = Seq(bound.0.div_ceil(CHECKPOINT_INTERVAL) * CHECKPOINT_INTERVAL);
        if target <= newest {
            return;
        }
        self.help.accepted = self.help.accepted.max(target);
        let waits =
            self.active && self.committed < target && self.help.fill >= target && self.has_window();
        let given = self.help.given.get_mut(&from).expect("just made");
        let (committed, view, since) = given.moved;
        if (committed, view) != (self.committed, self.view) || !waits {
            given.moved = (self.committed, self.view, now);
        } else if now.saturating_sub(since) >= STALLED_MS && self.may_change_view_for(from) {
            return self.start_view_change(self.view.next());
        }
        // Where only its statement is missing, places after that are of use, and none before: while a primary leaves it lie, the places that
        // are filled in a minute would be used up for nothing.
        if bound <= status.stable.next() && self.is_statement_unordered(from) {
            return;
        }
        let given = self.help.given.get_mut(&from).expect("just made");
        let may = given.fills < HELPS || is_on(Mutant::HelpedWithoutEnd);
        if target > given.target && may {
            given.target = target;
            given.fills = given.fills.saturating_add(1);
            self.help.fill = self.help.fill.max(target);
        }
    }

    /// As primary: whether a null batch is to take the place, where nobody asks for anything.
    pub(crate) fn is_to_be_filled(&self, seq: Seq) -> bool {
        seq <= self.help.fill
    }

    /// As backup: whether a null batch may take the place.
    pub(crate) fn may_be_filled(&self, seq: Seq) -> bool {
        seq <= self.help.accepted
    }
}
