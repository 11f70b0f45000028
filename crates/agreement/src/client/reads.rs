//! Reads that are not ordered: replicas answer at once, and 2f+1 must say the same. PBFT 2002, 5.1.3.
//!
//! The paper's client asks all, and so does this one if it has nothing else to read: the first 2f+1 of 3f+1 answers are there sooner than
//! those of a certain 2f+1. Of reads beside others each goes to 2f+1 replicas, which is less work for everybody by f in 3f+1, and to the
//! rest when it is to be seen that these will not do: two of them differ, or one is late.
//!
//! What a client has been told stands in the states of f+1 correct replicas, since it takes results from 2f+1; so one of any
//! 2f+1 that answer a later read has it. Where 2f+1 can't say the same, because writes are under way, or do not answer in
//! time, the read is ordered like any other operation: nothing waits for the optimisation to succeed.
//!
//! A client that has nothing else under way asks *early*: replicas need not wait for the COMMITs of the batch that they execute tentatively, which is most
//! likely the client's own last one. Then 2f+1 must have found the same in the same state. Where others' writes keep replicas from that, it asks again,
//! and no more so for a while.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use bytes::Bytes;
use quorate_wire::message::session::SESSION_WINDOW;
use quorate_wire::message::{ClientMessage, Outcome, Read, ReadReply};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Decode, Digest, ReplicaId, RequestNumber, SessionId};

use super::votes::Answers;
use super::{Client, ClientOutput, LATE_RESULT_MS, Token};
use crate::Millis;

/// How long a read may take before it is ordered.
const PATIENCE_MS: Millis = 50;
/// How long 2f+1 replicas may take before the others are asked as well.
const REST_MS: Millis = 2;
/// After a read that nobody or too few answered in time, reads are ordered for so long; doubles with each such read in turn.
const PAUSE_MS: Millis = 100;
/// After an early read that replicas answered from different states nothing is read early for so long.
const SETTLED_MS: Millis = 100;
/// How often the pause doubles.
const MAX_DOUBLINGS: u32 = 6;

/// The reads that are under way.
#[derive(Debug, Default)]
pub(super) struct Reads {
    open: BTreeMap<RequestNumber, Pending>,
    /// What waits for one of those to end.
    queue: VecDeque<(Token, Bytes)>,
    last_number: u64,
    /// Reads are ordered until then, and how many have failed in turn.
    pause: (Millis, u32),
    /// Nothing is read early until then.
    settled_until: Millis,
}

#[derive(Debug)]
struct Pending {
    session: SessionId,
    token: Token,
    op: Bytes,
    replier: ReplicaId,
    early: bool,
    /// Who was not asked at first, and whether there is nobody left who could be.
    rest: Vec<ReplicaId>,
    asked_rest: bool,
    answers: Answers,
    until: Millis,
}

impl Pending {
    /// What asks these replicas.
    fn ask<'a>(
        &self,
        number: RequestNumber,
        replicas: &'a [ReplicaId],
    ) -> impl Iterator<Item = ClientOutput> + use<'a> {
        let message = ClientMessage::Read(Read {
            session: self.session,
            number,
            replier: self.replier,
            early: self.early,
            op: self.op.clone(),
        });
        let send = move |replica: &ReplicaId| ClientOutput::Send(*replica, message.clone());
        replicas.iter().map(send)
    }
}

impl Reads {
    pub fn len(&self) -> usize {
        self.open.len() + self.queue.len()
    }

    pub fn next_timeout(&self) -> Option<Millis> {
        self.open.values().map(|p| p.until).min()
    }
}

impl Client {
    /// Asks for an operation that only reads. It is ordered only if the replicas can't answer it alike at once. As many are asked for at a time as a
    /// session has requests in flight; the rest waits here, so bound the number of calls.
    ///
    /// What is ordered is asked again where its session is lost, and may be executed more than once: so it must not change anything.
    pub fn read(&mut self, token: Token, op: Bytes, now: Millis) {
        self.now = now;
        self.reads.queue.push_back((token, op));
        self.ask_queued();
    }

    /// Asks for reads that have waited.
    fn ask_queued(&mut self) {
        while (self.reads.open.len() as u64) < SESSION_WINDOW {
            let Some((token, op)) = self.reads.queue.pop_front() else {
                return;
            };
            let early = self.options.early_reads
                && self.pending.is_empty()
                && self.reads.settled_until <= self.now;
            self.ask(token, op, early);
        }
    }

    fn ask(&mut self, token: Token, op: Bytes, early: bool) {
        let now = self.now;
        let links = self.keys.iter().flatten().count();
        let may = self.options.unordered_reads
            && links >= self.quorum.commit()
            && self.reads.pause.0 <= now;
        let Some(session) = self.session.filter(|_| may) else {
            return self.enqueue(token, op, true);
        };
        self.reads.last_number += 1;
        let number = RequestNumber(self.reads.last_number);
        let replier = self.next_replier();
        let start = match self.quorum.contains(replier) {
            true => replier,
            false => ReplicaId((number.0 % self.quorum.n() as u64) as u8),
        };
        let is_linked = |r: ReplicaId| self.keys[usize::from(r.0)].is_some();
        let rest = match self.reads.open.is_empty() {
            true => Vec::new(),
            false => self.readers.rest(self.quorum, start, now, is_linked),
        };
        let asked_rest = !rest.iter().any(|r| is_linked(*r));
        let first = self.quorum.replicas().filter(|r| !rest.contains(r));
        let first: Vec<ReplicaId> = first.collect();
        let pending = Pending {
            session,
            token,
            op,
            replier,
            early,
            until: now + if asked_rest { PATIENCE_MS } else { REST_MS },
            rest,
            asked_rest,
            answers: Answers::default(),
        };
        self.out.extend(pending.ask(number, &first));
        self.reads.open.insert(number, pending);
    }

    /// A replica answers a read.
    pub fn on_read(&mut self, from: ReplicaId, answer: ReadReply, now: Millis) {
        self.now = now;
        let is_linked = |r: ReplicaId| self.keys[usize::from(r.0)].is_some();
        if !self.quorum.contains(from) || Some(answer.reply.session) != self.session {
            return;
        }
        let number = answer.reply.number;
        let Some(pending) = self.reads.open.get_mut(&number) else {
            return;
        };
        if answer.reply.tentative && !pending.early {
            // Not what it was asked.
            return;
        }
        pending.answers.add_read(from, answer);
        let enough = match is_on(Mutant::ReadsTakeWeak) {
            true => self.quorum.weak(),
            false => self.quorum.commit(),
        };
        let Some(digest) = pending.answers.agreed_read(enough) else {
            let asked = self.quorum.replicas();
            let asked = asked.filter(|r| pending.asked_rest || !pending.rest.contains(r));
            let silent = asked.filter(|r| is_linked(*r) && !pending.answers.has(*r));
            if pending.answers.most_alike() + silent.count() < enough {
                match pending.asked_rest {
                    false => self.ask_rest(number),
                    // Writes are under way.
                    true => self.ask_again(number),
                }
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
                        self.pass_over(&done, digest);
                        self.out
                            .push_back(ClientOutput::Done(done.token, Ok(answer)));
                    }
                    self.ask_queued();
                }
                // The order of things must tell whether the session is gone.
                Ok(_) | Err(_) => self.order(number),
            },
        }
    }

    /// Asks the replicas that were not asked at first.
    fn ask_rest(&mut self, number: RequestNumber) {
        if let Some(pending) = self.reads.open.get_mut(&number) {
            pending.asked_rest = true;
            pending.until = self.now + PATIENCE_MS;
            self.out.extend(pending.ask(number, &pending.rest));
        }
    }

    /// Those for whom others had to be asked are not asked first for a while.
    fn pass_over(&mut self, done: &Pending, agreed: Digest) {
        if !done.asked_rest || done.rest.is_empty() {
            return;
        }
        for replica in self.quorum.replicas() {
            if !done.rest.contains(&replica) && !done.answers.says(replica, agreed) {
                self.readers.pass_over(replica, self.now);
            }
        }
    }

    /// Replicas can't answer a read alike: asks for what is settled, or has it ordered.
    fn ask_again(&mut self, number: RequestNumber) {
        let open = self.reads.open.get(&number);
        if !open.is_some_and(|pending| pending.answers.has_tentative()) {
            return self.order(number);
        }
        self.reads.settled_until = self.now + SETTLED_MS;
        if let Some(pending) = self.reads.open.remove(&number) {
            self.ask(pending.token, pending.op, false);
            // Where it is ordered now, another one can be asked.
            self.ask_queued();
        }
    }

    /// Has a read ordered.
    fn order(&mut self, number: RequestNumber) {
        if let Some(pending) = self.reads.open.remove(&number) {
            self.enqueue(pending.token, pending.op, true);
            self.ask_queued();
        }
    }

    /// Asks more replicas about reads that are late, and orders those that have taken too long.
    pub(super) fn order_late_reads(&mut self) {
        let late = self.reads.open.iter().filter(|(_, p)| p.until <= self.now);
        let late: Vec<RequestNumber> = late.map(|(number, _)| *number).collect();
        for number in late {
            let pending = &self.reads.open[&number];
            if !pending.asked_rest {
                self.ask_rest(number);
                continue;
            }
            if pending.answers.most_alike() >= self.quorum.commit() {
                self.repliers.distrust(pending.replier, self.now);
            } else if pending.answers.has_tentative() {
                self.ask_again(number);
                continue;
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
        let all: Vec<RequestNumber> = self.reads.open.keys().copied().collect();
        all.into_iter().for_each(|number| self.order(number));
    }
}
