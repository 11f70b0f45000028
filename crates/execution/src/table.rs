//! Sessions in the form in which execution uses them. Between checkpoints a reply is kept here and not in the state, where
//! each would cost several writes; [`Table::flush`] brings the state's rows up to date before a layer of it is frozen.
//!
//! What tentative execution changes is noted in a journal, so that it can be undone together with the state's overlay.

mod budget;

use alloc::vec::Vec;

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use quorate_state::{Fault, Txn};
use quorate_wire::message::session::SESSION_WINDOW;
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{ClientId, RequestNumber, SessionId, Time};

use crate::sessions::{self, ACTIVITY_GRAIN_NS, Clock, KeptReply, Session};

/// The most sessions in memory after a flush, beside those that it still needs; more are read again when they are used.
pub(crate) const MAX_LIVE: usize = 1024;

/// One bit for each slot.
type Slots = u64;
const _: () = assert!(SESSION_WINDOW as u32 == Slots::BITS);

/// What the reply cache says of a request that comes from a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cached {
    /// It was executed, with this outcome; [`Outcome::GONE`](quorate_wire::message::Outcome::GONE) where that is not kept any more.
    Reply(Bytes),
    /// Its client has had the reply, or later requests have taken its place.
    TooOld,
    /// It is at work, and will be answered.
    AtWork,
    /// It was not executed, or only reads.
    Unknown,
}

/// A session that was used since it was last read.
#[derive(Debug)]
struct Live {
    session: Session,
    is_changed: bool,
    /// See [`sessions`].
    answered: RequestNumber,
    replies: Vec<Option<KeptReply>>,
    /// The bytes of these results at the most.
    bytes: usize,
    /// Whether one of them may be gone.
    has_gone: bool,
    /// Slots that the state has not got yet.
    changed: Slots,
    /// Slots that may have a row in the state.
    stored: Slots,
    /// Slots of operations that are at work.
    busy: Slots,
    /// Those operations.
    at_work: Vec<RequestNumber>,
}

/// How to take a change back.
#[derive(Debug)]
enum Undo {
    Clock(Clock),
    /// The session was not here, or was this.
    Session(SessionId, Option<Live>),
    Active(SessionId, Time, bool),
    Answered(SessionId, RequestNumber),
    Reply(SessionId, usize, Option<KeptReply>),
}

/// The sessions that are in use.
#[derive(Debug)]
pub(crate) struct Table {
    clock: Option<Clock>,
    /// By number, which the group gives: no client can aim at a bucket.
    live: HashMap<SessionId, Live, FixedState>,
    journal: Option<Vec<Undo>>,
    /// What the results that are kept of a session may have together.
    kept_bytes: usize,
    /// How many sessions stay in memory.
    pub max_live: usize,
}

impl Table {
    pub fn new(kept_bytes: usize, max_live: usize) -> Table {
        Table {
            kept_bytes,
            max_live,
            clock: None,
            live: HashMap::with_hasher(FixedState::with_seed(0)),
            journal: None,
        }
    }

    /// How many bytes the results that are kept of a session may have together.
    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// Nothing in memory, and the same bounds.
    pub fn emptied(&self) -> Table {
        Table::new(self.kept_bytes, self.max_live)
    }

    /// From here on changes can be taken back.
    pub fn begin_tentative(&mut self, txn: &Txn<'_>) -> Result<(), Fault> {
        let clock = self.clock(txn)?;
        self.journal = Some(Vec::from([Undo::Clock(clock)]));
        Ok(())
    }

    /// Keeps what was changed since [`Table::begin_tentative`].
    pub fn keep_tentative(&mut self) {
        self.journal = None;
    }

    /// Takes back what was changed since [`Table::begin_tentative`].
    pub fn drop_tentative(&mut self) {
        for undo in self.journal.take().into_iter().flatten().rev() {
            match undo {
                Undo::Clock(clock) => self.clock = Some(clock),
                Undo::Session(id, before) => {
                    self.live.remove(&id);
                    self.live.extend(before.map(|live| (id, live)));
                }
                Undo::Active(id, active, is_used) => {
                    if let Some(live) = self.live.get_mut(&id) {
                        (live.session.active, live.session.is_used) = (active, is_used);
                    }
                }
                Undo::Answered(id, before) => {
                    if let Some(live) = self.live.get_mut(&id) {
                        live.answered = before;
                        live.counts_gone_again();
                    }
                }
                Undo::Reply(id, slot, before) => {
                    if let Some(live) = self.live.get_mut(&id) {
                        live.bytes += before.as_ref().map_or(0, KeptReply::bytes);
                        live.replies[slot] = before;
                        live.counts_gone_again();
                    }
                }
            }
        }
    }

    /// Writes into the state what it has not got.
    pub fn flush(&mut self, txn: &mut Txn<'_>) {
        self.flush_sessions(txn);
        self.forget_answered(txn, true);
        self.flush_replies(txn);
        self.forget_some();
    }

    /// Of that, the clock and the sessions.
    pub fn flush_sessions(&mut self, txn: &mut Txn<'_>) {
        assert!(self.journal.is_none(), "what may be undone is in no state");
        if let Some(clock) = &self.clock {
            sessions::set_clock(txn, clock);
        }
        for (id, live) in &mut self.live {
            if core::mem::take(&mut live.is_changed) {
                sessions::set_session(txn, *id, &live.session);
            }
        }
    }

    /// Forgets the replies that their clients have said they have, also in the state. Where the layer of this checkpoint is
    /// not the oldest (`is_oldest`), an older one still needs those that are nowhere but here: they are returned.
    pub fn forget_answered(
        &mut self,
        txn: &mut Txn<'_>,
        is_oldest: bool,
    ) -> Vec<(SessionId, KeptReply)> {
        let mut still_needed = Vec::new();
        for (id, live) in &mut self.live {
            let answered = live.answered;
            let busy = live.busy;
            for slot in &mut live.replies {
                // An operation at work will take the slot, and its row stays.
                let is_due = |r: &mut KeptReply| {
                    r.number <= answered && busy & bit(sessions::slot(r.number)) == 0
                };
                let Some(reply) = slot.take_if(is_due) else {
                    continue;
                };
                let bit = bit(sessions::slot(reply.number));
                let is_unwritten = live.changed & bit != 0;
                if live.stored & bit != 0 || (is_unwritten && !is_oldest) {
                    sessions::forget(txn, *id, reply.number);
                }
                live.changed &= !bit;
                live.stored &= !bit;
                if is_unwritten && !is_oldest {
                    still_needed.push((*id, reply));
                }
            }
        }
        still_needed
    }

    /// Of what the state has not got, the replies.
    pub fn flush_replies(&mut self, txn: &mut Txn<'_>) {
        for (id, live) in &mut self.live {
            live.flush_replies(*id, txn);
        }
    }

    /// The same of one session.
    pub fn flush_replies_of(&mut self, id: SessionId, txn: &mut Txn<'_>) {
        if let Some(live) = self.live.get_mut(&id) {
            live.flush_replies(id, txn);
        }
    }

    /// Keeps no more sessions in memory than there is room for. To be called when all of them are in the state.
    pub fn forget_some(&mut self) {
        if self.live.len() > self.max_live {
            // The next checkpoint forgets what is answered of those that are here: operations beyond the last one may have said that it is.
            let has_answered = |live: &Live| {
                let mut replies = live.replies.iter().flatten();
                replies.any(|reply| reply.number <= live.answered)
                    && !is_on(Mutant::EvictedAnswered)
            };
            let is_needed = |live: &Live| {
                live.is_changed || live.changed | live.busy != 0 || has_answered(live)
            };
            self.live.retain(|_, live| is_needed(live));
        }
    }

    /// The time and the next session's number.
    pub fn clock(&mut self, txn: &Txn<'_>) -> Result<Clock, Fault> {
        if self.clock.is_none() {
            self.clock = Some(sessions::clock(txn)?);
        }
        Ok(self.clock.clone().unwrap_or_default())
    }

    pub fn set_clock(&mut self, clock: Clock) {
        self.clock = Some(clock);
    }

    fn live(&mut self, txn: &Txn<'_>, id: SessionId) -> Result<Option<&mut Live>, Fault> {
        if !self.live.contains_key(&id) {
            let Some(session) = sessions::session(txn, id)? else {
                return Ok(None);
            };
            let mut live = Live::new(session);
            for reply in sessions::replies(txn, id)? {
                let slot = sessions::slot(reply.number);
                live.answered = live.answered.max(reply.answered);
                live.stored |= bit(slot);
                live.bytes += reply.bytes();
                live.has_gone |= reply.is_gone();
                live.replies[slot] = Some(reply);
            }
            self.live.insert(id, live);
        }
        Ok(self.live.get_mut(&id))
    }

    /// Whose a session is.
    pub fn owner(&mut self, txn: &Txn<'_>, id: SessionId) -> Result<Option<ClientId>, Fault> {
        Ok(self.live(txn, id)?.map(|live| live.session.client))
    }

    /// What is known of a request's number. The session must exist.
    pub fn lookup(
        &mut self,
        txn: &Txn<'_>,
        id: SessionId,
        number: RequestNumber,
    ) -> Result<Cached, Fault> {
        let Some(live) = self.live(txn, id)? else {
            return Ok(Cached::Unknown);
        };
        if is_on(Mutant::ReplyCacheSkipped) {
            return Ok(Cached::Unknown);
        }
        if number <= live.answered {
            return Ok(Cached::TooOld);
        }
        Ok(match &live.replies[sessions::slot(number)] {
            Some(kept) if kept.number == number => Cached::Reply(kept.outcome.clone()),
            Some(kept) if kept.number > number => Cached::TooOld,
            Some(_) | None => Cached::Unknown,
        })
    }

    /// The session's answered mark, raised by what a request says whose reply will be kept. The session must exist.
    pub fn raise_answered(
        &mut self,
        id: SessionId,
        number: RequestNumber,
        answered: RequestNumber,
    ) -> RequestNumber {
        let Some(live) = self.live.get_mut(&id) else {
            return RequestNumber(0);
        };
        let before = live.answered;
        // Nobody has the answer to what is being asked, and nobody asks who has not those of all that share no window with it.
        let before_window = number.0.saturating_sub(SESSION_WINDOW);
        let said = answered.0.min(number.0.saturating_sub(1));
        let said = RequestNumber(said.max(before_window));
        if said > before {
            live.answered = said;
            if let Some(journal) = &mut self.journal {
                journal.push(Undo::Answered(id, before));
            }
        }
        live.answered
    }

    /// The answered mark of a session that is in use.
    pub fn answered(&self, id: SessionId) -> RequestNumber {
        self.live
            .get(&id)
            .map_or(RequestNumber(0), |live| live.answered)
    }

    /// Keeps a reply, and lets go of results for which there is no room any more. The session must exist. If there is a journal, this
    /// is noted in it.
    pub fn keep(&mut self, id: SessionId, reply: KeptReply) {
        self.replace(id, reply, true, true);
        self.bound(id);
    }

    /// Keeps the reply of an operation that was executed beside others. `is_tentative`: whether it may be undone.
    /// `in_memory`: whether the state gets it later, and not now from the caller.
    pub fn replace(
        &mut self,
        id: SessionId,
        reply: KeptReply,
        is_tentative: bool,
        in_memory: bool,
    ) {
        let Some(live) = self.live.get_mut(&id) else {
            return;
        };
        let slot = sessions::slot(reply.number);
        live.bytes += reply.bytes();
        let before = live.replies[slot].replace(reply);
        match in_memory {
            true => live.changed |= bit(slot),
            false => live.stored |= bit(slot),
        }
        if let Some(journal) = self.journal.as_mut().filter(|_| is_tentative) {
            journal.push(Undo::Reply(id, slot, before));
        }
    }

    /// A reply is not kept, nor what is in its slot; a row that the state has is taken from it elsewhere. A checkpoint that waits may still
    /// have this one.
    pub fn pass_over(&mut self, id: SessionId, reply: &KeptReply) {
        if let Some(live) = self.live.get_mut(&id) {
            let slot = sessions::slot(reply.number);
            live.bytes += reply.bytes();
            live.replies[slot] = None;
            live.changed &= !bit(slot);
            live.stored &= !bit(slot);
        }
    }

    /// The reply that is in a request's slot, if the state has not got it; from now on it counts as having it.
    pub fn take_unwritten(&mut self, id: SessionId, number: RequestNumber) -> Option<KeptReply> {
        let live = self.live.get_mut(&id)?;
        let slot = sessions::slot(number);
        let is_unwritten = live.changed & bit(slot) != 0;
        live.changed &= !bit(slot);
        if is_unwritten {
            live.stored |= bit(slot);
        }
        live.replies[slot].clone().filter(|_| is_unwritten)
    }

    /// Whether an operation is at work whose reply will be kept in this request's slot.
    pub fn is_busy(&self, id: SessionId, number: RequestNumber) -> bool {
        let live = self.live.get(&id);
        live.is_some_and(|live| live.busy & bit(sessions::slot(number)) != 0)
    }

    /// Whether this very operation is at work.
    pub fn is_at_work(&self, id: SessionId, number: RequestNumber) -> bool {
        let live = self.live.get(&id);
        live.is_some_and(|live| live.at_work.contains(&number))
    }

    /// Whether operations of a session are at work whose replies will be kept.
    pub fn has_work(&self, id: SessionId) -> bool {
        let live = self.live.get(&id);
        live.is_some_and(|live| !live.at_work.is_empty())
    }

    /// See [`Table::is_busy`].
    pub fn set_busy(&mut self, id: SessionId, number: RequestNumber, is_busy: bool) {
        if let Some(live) = self.live.get_mut(&id) {
            let slot = bit(sessions::slot(number));
            match is_busy {
                true => {
                    live.busy |= slot;
                    live.at_work.push(number);
                }
                false => {
                    live.busy &= !slot;
                    live.at_work.retain(|at_work| *at_work != number);
                }
            }
        }
    }

    /// The session was used, by a request whose reply will be kept: none that is shown again does this a second time.
    pub fn touch(&mut self, id: SessionId, now: Time) {
        let Some(live) = self.live.get_mut(&id) else {
            return;
        };
        let Session {
            active, is_used, ..
        } = live.session;
        if !is_used || now.0 - active.0 >= ACTIVITY_GRAIN_NS {
            (live.session.active, live.session.is_used) = (now, true);
            live.is_changed = true;
            if let Some(journal) = &mut self.journal {
                journal.push(Undo::Active(id, active, is_used));
            }
        }
    }

    /// Makes a session, in the state at once.
    pub fn create(&mut self, txn: &mut Txn<'_>, id: SessionId, session: Session) {
        sessions::create(txn, id, &session);
        self.live.insert(id, Live::new(session));
        if let Some(journal) = &mut self.journal {
            journal.push(Undo::Session(id, None));
        }
    }

    /// Ends a session, in the state at once.
    pub fn remove(
        &mut self,
        txn: &mut Txn<'_>,
        id: SessionId,
        client: &ClientId,
    ) -> Result<(), Fault> {
        let before = self.live.remove(&id);
        if let Some(journal) = &mut self.journal {
            journal.push(Undo::Session(id, before));
        }
        sessions::remove(txn, id, client)
    }

    /// All sessions of a client.
    pub fn of_client(
        &self,
        txn: &Txn<'_>,
        client: &ClientId,
    ) -> Result<Vec<(SessionId, Session)>, Fault> {
        let all = sessions::of_client(txn, client)?;
        Ok(self.newest(all))
    }

    /// Up to `most` sessions after one, in the order of their numbers.
    pub fn after(
        &self,
        txn: &Txn<'_>,
        last: SessionId,
        most: usize,
    ) -> Result<Vec<(SessionId, Session)>, Fault> {
        let some = sessions::after(txn, last, most)?;
        Ok(self.newest(some))
    }

    /// The state knows which sessions there are, and this table when they were last used.
    fn newest(&self, mut all: Vec<(SessionId, Session)>) -> Vec<(SessionId, Session)> {
        for (id, session) in &mut all {
            if let Some(live) = self.live.get(id) {
                *session = live.session.clone();
            }
        }
        all
    }
}

impl Live {
    /// A session without replies.
    fn new(session: Session) -> Live {
        Live {
            session,
            is_changed: false,
            answered: RequestNumber(0),
            replies: alloc::vec![None; SESSION_WINDOW as usize],
            bytes: 0,
            has_gone: false,
            changed: 0,
            stored: 0,
            busy: 0,
            at_work: Vec::new(),
        }
    }

    /// Something was undone. Results that are gone and had counted for nobody, since what is undone had said that they are answered, may count again.
    fn counts_gone_again(&mut self) {
        self.has_gone |=
            self.replies.iter().flatten().any(KeptReply::is_gone) && !is_on(Mutant::GoneUncounted);
    }

    fn flush_replies(&mut self, id: SessionId, txn: &mut Txn<'_>) {
        let changed = core::mem::take(&mut self.changed);
        self.stored |= changed;
        for (slot, reply) in self.replies.iter().enumerate() {
            if let Some(reply) = reply.as_ref().filter(|_| changed & bit(slot) != 0) {
                sessions::keep(txn, id, reply);
            }
        }
    }
}

fn bit(slot: usize) -> Slots {
    1 << slot
}
