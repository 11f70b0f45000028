//! Reads that are not ordered: all replicas answer at once, and 2f+1 must say the same. PBFT 2002, 5.1.3.
//!
//! What a client has been told stands in the states of f+1 correct replicas, since it takes results from 2f+1; so one of any
//! 2f+1 that answer a later read has it. Where 2f+1 can't say the same, because writes are under way, or do not answer in
//! time, the read is ordered like any other operation: nothing waits for the optimisation to succeed.

use alloc::collections::BTreeMap;

use bytes::Bytes;
use quorate_wire::message::session::SESSION_WINDOW;
use quorate_wire::message::{ClientMessage, Outcome, Read, Reply};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Decode, ReplicaId, RequestNumber};

use super::votes::Answers;
use super::{Client, ClientOutput, LATE_RESULT_MS, Token};
use crate::Millis;

/// How long a read may take before it is ordered.
const PATIENCE_MS: Millis = 50;
/// After a read that nobody or too few answered in time, reads are ordered for so long; doubles with each such read in turn.
const PAUSE_MS: Millis = 100;
/// How often the pause doubles.
const MAX_DOUBLINGS: u32 = 6;

/// The reads that are under way.
#[derive(Debug, Default)]
pub(super) struct Reads {
    open: BTreeMap<RequestNumber, Pending>,
    last_number: u64,
    /// Reads are ordered until then, and how many have failed in turn.
    pause: (Millis, u32),
}

#[derive(Debug)]
struct Pending {
    token: Token,
    op: Bytes,
    replier: ReplicaId,
    answers: Answers,
    until: Millis,
}

impl Reads {
    pub fn len(&self) -> usize {
        self.open.len()
    }

    pub fn next_timeout(&self) -> Option<Millis> {
        self.open.values().map(|p| p.until).min()
    }
}

impl Client {
    /// Asks for an operation that only reads. It is ordered only if the replicas can't answer it alike at once.
    pub fn read(&mut self, token: Token, op: Bytes, now: Millis) {
        self.now = now;
        let links = self.keys.iter().flatten().count();
        let may = self.options.unordered_reads
            && links >= self.quorum.commit()
            && self.reads.pause.0 <= now
            && (self.reads.open.len() as u64) < SESSION_WINDOW;
        let Some(session) = self.session.filter(|_| may) else {
            return self.call(token, op, now);
        };
        self.reads.last_number += 1;
        let number = RequestNumber(self.reads.last_number);
        let replier = self.next_replier();
        let message = ClientMessage::Read(Read {
            session,
            number,
            replier,
            op: op.clone(),
        });
        for replica in self.quorum.replicas() {
            self.out
                .push_back(ClientOutput::Send(replica, message.clone()));
        }
        let pending = Pending {
            token,
            op,
            replier,
            answers: Answers::default(),
            until: now + PATIENCE_MS,
        };
        self.reads.open.insert(number, pending);
    }

    /// A replica answers a read.
    pub fn on_read(&mut self, from: ReplicaId, reply: Reply, now: Millis) {
        self.now = now;
        let is_linked = |r: ReplicaId| self.keys[usize::from(r.0)].is_some();
        if !self.quorum.contains(from) || Some(reply.session) != self.session {
            return;
        }
        let number = reply.number;
        let Some(pending) = self.reads.open.get_mut(&number) else {
            return;
        };
        pending.answers.add(from, reply);
        let enough = match is_on(Mutant::ReadsTakeWeak) {
            true => self.quorum.weak(),
            false => self.quorum.commit(),
        };
        let Some(digest) = pending.answers.agreed(enough, enough) else {
            let silent = self.quorum.replicas();
            let silent = silent.filter(|r| is_linked(*r) && !pending.answers.has(*r));
            if pending.answers.most_alike() + silent.count() < enough {
                // Writes are under way.
                self.order(number);
            }
            return;
        };
        let replier = pending.replier;
        match pending.answers.full(digest) {
            None if pending.answers.has(replier) => {
                // It sent something else than what it owed.
                self.repliers.distrust(replier, now);
                self.order(number);
            }
            None => pending.until = pending.until.min(now + LATE_RESULT_MS),
            Some(result) => match Outcome::from_bytes(result) {
                Ok(Outcome::Done(answer)) => {
                    self.reads.pause = (0, 0);
                    if let Some(done) = self.reads.open.remove(&number) {
                        self.out
                            .push_back(ClientOutput::Done(done.token, Ok(answer)));
                    }
                }
                // The order of things must tell whether the session is gone.
                Ok(_) | Err(_) => self.order(number),
            },
        }
    }

    /// Has a read ordered.
    fn order(&mut self, number: RequestNumber) {
        if let Some(pending) = self.reads.open.remove(&number) {
            self.call(pending.token, pending.op, self.now);
        }
    }

    /// Orders the reads that have taken too long.
    pub(super) fn order_late_reads(&mut self) {
        let late = self.reads.open.iter().filter(|(_, p)| p.until <= self.now);
        let late: alloc::vec::Vec<RequestNumber> = late.map(|(number, _)| *number).collect();
        for number in late {
            let pending = &self.reads.open[&number];
            if pending.answers.most_alike() >= self.quorum.commit() {
                self.repliers.distrust(pending.replier, self.now);
            } else if self.reads.pause.0 <= self.now {
                let (_, times) = self.reads.pause;
                let pause = PAUSE_MS << times.min(MAX_DOUBLINGS);
                self.reads.pause = (self.now + pause, times + 1);
            }
            self.order(number);
        }
    }

    /// The session is gone: nobody answers its reads any more.
    pub(super) fn order_all_reads(&mut self) {
        let all: alloc::vec::Vec<RequestNumber> = self.reads.open.keys().copied().collect();
        all.into_iter().for_each(|number| self.order(number));
    }
}
