//! The results that are kept of a session have a bounded number of bytes together. Where they would have more, those of the lowest
//! request numbers go: each is replaced by [`Outcome::GONE`], so that the request is still known as executed.
//!
//! Which are gone must follow from the agreed order, and results are known in whatever order operations come to their end. So it follows
//! from *which* requests were executed, and not from their order among each other: **the result of request n is gone when the results of n and
//! of all higher numbers have more bytes than may be kept**, those that are gone themselves counted as well. What was gone once therefore stays so, and
//! what an operation that came to its end early has made go is gone whatever comes of the others. Two rules make it hold:
//!
//! - What leaves the set leaves it from below: a request that takes the slot of another has raised the answered mark to that one's
//!   number. Results up to the mark count for nobody.
//! - Below one that is gone all are, also those that come later: the highest number that is gone says so, and need not be written down.
//!
//! A checkpoint has what the operations before it make of it, although later ones may have come to their end: as long as one waits,
//! nothing goes from memory, and its rows are looked at when they are complete ([`Table::bound_rows`]).

use alloc::vec::Vec;

use bytes::Bytes;
use quorate_state::{Fault, Txn};
use quorate_wire::message::Outcome;
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{RequestNumber, SessionId};

use super::{Live, Table, Undo, bit};
use crate::sessions::{self, KeptReply};

/// Up to which number a session's results are gone, if results of `most` bytes may be kept. `answered`: its answered mark.
fn gone_up_to<'a>(
    replies: impl Iterator<Item = &'a KeptReply>,
    answered: RequestNumber,
    most: usize,
) -> Option<RequestNumber> {
    let mut counted: Vec<&KeptReply> = replies.filter(|r| r.number > answered).collect();
    counted.sort_unstable_by_key(|reply| reply.number);
    let mut bytes = 0;
    let over = counted.into_iter().rev().find(|reply| {
        bytes += reply.bytes();
        bytes > most || reply.is_gone() && !is_on(Mutant::GoneEndsNothing)
    });
    over.map(|reply| reply.number)
}

impl Live {
    /// Whether some result may be gone: it costs nothing to ask. Below one that is, none is kept, whatever room there is.
    fn may_exceed(&self, most: usize) -> bool {
        self.bytes > most || self.has_gone && !is_on(Mutant::HasGoneIgnored)
    }

    fn gone_up_to(&self, most: usize) -> Option<RequestNumber> {
        gone_up_to(self.replies.iter().flatten(), self.answered, most)
    }
}

impl Table {
    /// Lets go of a session's results beyond what may be kept. Not while a checkpoint waits. If there is a journal, this is noted in it.
    pub fn bound(&mut self, id: SessionId) {
        let most = self.kept_bytes;
        let Some(live) = self.live.get_mut(&id).filter(|live| live.may_exceed(most)) else {
            return;
        };
        // Nobody asks for what is answered. It is in memory until the next checkpoint, and needs no room until then.
        let gone = live.gone_up_to(most);
        (live.bytes, live.has_gone) = (0, gone.is_some());
        let gone = gone.unwrap_or_default().max(live.answered);
        for slot in 0..live.replies.len() {
            let Some(reply) = &mut live.replies[slot] else {
                continue;
            };
            // One at work takes the slot, and if that is not among what may be undone, it must find there what it left.
            let goes = reply.number <= gone && live.busy & bit(slot) == 0 && !reply.is_gone();
            if !goes {
                live.bytes += reply.bytes();
                continue;
            }
            let without = reply.without_outcome();
            let before = core::mem::replace(reply, without);
            live.changed |= bit(slot);
            if let Some(journal) = self
                .journal
                .as_mut()
                .filter(|_| !is_on(Mutant::GoneForGood))
            {
                journal.push(Undo::Reply(id, slot, Some(before)));
            }
        }
    }

    /// The same for all sessions: a checkpoint waits no more, or something was undone.
    pub fn bound_all(&mut self) {
        let most = self.kept_bytes;
        let exceed = self.live.iter().filter(|(_, live)| live.may_exceed(most));
        let exceed: Vec<SessionId> = exceed.map(|(id, _)| *id).collect();
        exceed.into_iter().for_each(|id| self.bound(id));
    }

    /// Lets go of results in the rows of a checkpoint whose operations are all done, when later ones may be done as well.
    pub fn bound_rows(&self, txn: &mut Txn<'_>) -> Result<(), Fault> {
        self.live
            .keys()
            .try_for_each(|id| self.bound_rows_of(*id, txn))
    }

    /// The same of one session.
    pub fn bound_rows_of(&self, id: SessionId, txn: &mut Txn<'_>) -> Result<(), Fault> {
        let most = self.kept_bytes;
        let live = self.live.get(&id);
        if !live.is_some_and(|live| live.may_exceed(most)) || is_on(Mutant::RowsUnbounded) {
            return Ok(());
        }
        let rows = sessions::replies_in_place(txn, id)?;
        let answered = rows.iter().map(|row| row.answered).max();
        let answered = answered.unwrap_or_default();
        let gone = gone_up_to(rows.iter(), answered, most);
        // Those that are answered will be taken away, maybe by an older checkpoint than this one that waits as well: written here they would stay.
        let is_answered =
            |row: &KeptReply| row.number <= answered && !is_on(Mutant::AnsweredWrittenOut);
        let is_due = |row: &&KeptReply| Some(row.number) <= gone && !row.is_gone();
        for row in rows.iter().filter(|r| is_due(r) && !is_answered(r)) {
            sessions::keep(txn, id, &row.without_outcome());
        }
        Ok(())
    }

    /// Whether it depends on operations that are at work if a request's result, which is kept now, is gone.
    pub fn is_undecided(&self, id: SessionId, number: RequestNumber) -> bool {
        let Some(live) = self.live.get(&id).filter(|live| live.answered < number) else {
            return false;
        };
        let kept = live.replies[sessions::slot(number)].as_ref();
        let is_kept = kept.is_some_and(|reply| reply.number == number && !reply.is_gone());
        is_kept
            && !is_on(Mutant::UndecidedNever)
            && live.at_work.iter().any(|at_work| *at_work > number)
    }

    /// The outcome of a request whose result is kept here, where it is asked for again in the agreed order. It must not be undecided.
    pub fn as_agreed(&self, id: SessionId, number: RequestNumber, outcome: Bytes) -> Bytes {
        let most = self.kept_bytes;
        let exceeds = self.live.get(&id).filter(|live| live.may_exceed(most));
        let exceeds = exceeds.filter(|_| !is_on(Mutant::AgreedAsKept));
        match exceeds.is_some_and(|live| live.gone_up_to(most) >= Some(number)) {
            true => Bytes::from_static(Outcome::GONE),
            false => outcome,
        }
    }

    /// A result that has gone by what may be undone.
    pub fn not_gone_for_good(&self, id: SessionId, number: RequestNumber) -> Option<Bytes> {
        let mut journal = self.journal.iter().flatten();
        journal.find_map(|undo| match undo {
            Undo::Reply(of, _, Some(reply)) if *of == id && reply.number == number => {
                (!reply.is_gone()).then(|| reply.outcome.clone())
            }
            _ => None,
        })
    }

    /// The bytes of all results that are in memory.
    ///
    /// # Panics
    /// Where a session may have more than was noted: a defect of this code.
    #[cfg(test)]
    pub fn kept_in_memory(&self) -> usize {
        let sessions = self.live.values().map(|live| {
            let bytes = live.replies.iter().flatten().map(KeptReply::bytes).sum();
            assert!(live.bytes >= bytes);
            bytes
        });
        sessions.sum::<usize>()
    }
}
