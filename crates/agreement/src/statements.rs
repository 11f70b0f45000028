//! That a replica recovers, ordered like what clients ask. PBFT 2002, 4.3.2 (the recovery request).
//!
//! In a group with key holders a replica that comes back without its log has its identity say so, under a number above those of all its
//! certificates before. The statement is a request, and is ordered and executed as one; the state keeps the newest number of each replica.
//! Two things follow:
//!
//! - Who has a state with it refuses what the replica certified before its present key, also where somebody keeps newer certificates
//!   away: nobody goes on without the group's order.
//! - The replica is back with a stable checkpoint whose state tells of it, and not before: at max(HM, HR) or above, where HR is the place
//!   of the statement. So what it goes on from is younger than its recovery.
//!
//! A statement that is not newer than the last one is refused, whoever shows it. A primary that does not order one is left, by the rules for
//! helping who recovers: a few times a minute at most.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use quorate_wire::message::{AuthRequest, PeerMessage};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{
    ClientId, Digest, IdentityKey, RecoveryStatement, ReplicaId, ReplicaKeys, Seq, View,
};

use crate::Millis;
use crate::core::Agreement;
use crate::io::{Output, Rejected};

/// How many statements a peer may show in [`SHOWN_MS`], for each replica that may recover at a time: each costs a signature's check.
const SHOWN: usize = 8;
const SHOWN_MS: Millis = 60_000;
/// How long a primary may leave a statement unordered, and how often a backup shows it to one.
pub(crate) const WAITS_MS: Millis = 3_000;
const RELAY_MS: Millis = 500;

/// What is known of the replicas' recoveries.
#[derive(Clone, Debug)]
pub(crate) struct Statements {
    /// Of each replica the number of the last one that a state tells of.
    ordered: Vec<u64>,
    /// Those that are to be ordered.
    waiting: BTreeMap<ReplicaId, Waiting>,
    /// What each peer has shown since when.
    shown: BTreeMap<ReplicaId, (Millis, usize)>,
}

#[derive(Clone, Debug)]
struct Waiting {
    number: u64,
    digest: Digest,
    /// Kept here as well: the pool forgets what nobody repeats, and with a state that is fetched.
    request: Arc<AuthRequest>,
    /// In which view it waits, and since when.
    view: View,
    since: Millis,
    relayed: Option<Millis>,
}

impl Statements {
    /// Of `n` replicas of which none has recovered.
    pub fn new(n: usize) -> Statements {
        Statements {
            ordered: alloc::vec![0; n],
            waiting: BTreeMap::new(),
            shown: BTreeMap::new(),
        }
    }

    /// Entries, for counting memory: at most three for each replica.
    pub fn held(&self) -> usize {
        self.ordered.len() + self.waiting.len() + self.shown.len()
    }

    fn last_of(&self, replica: ReplicaId) -> u64 {
        let last = self.ordered.get(usize::from(replica.0));
        last.copied().unwrap_or_default()
    }

    /// Whether a peer may show another one.
    fn allows(&mut self, from: ReplicaId, most: usize, now: Millis) -> bool {
        let shown = self.shown.entry(from).or_insert((now, 0));
        if now.saturating_sub(shown.0) >= SHOWN_MS {
            *shown = (now, 0);
        }
        shown.1 += 1;
        shown.1 <= most
    }
}

impl Agreement {
    /// Whose identity makes requests under this name.
    pub(crate) fn replica_of_identity(&self, key: &ClientId) -> Option<ReplicaId> {
        let ReplicaKeys::Certified { identities, .. } = &self.config.keys else {
            return None;
        };
        let at = identities
            .iter()
            .position(|identity| identity.name() == *key)?;
        Some(ReplicaId(at as u8))
    }

    /// The identity that makes requests under this name.
    pub(crate) fn identity(&self, name: &ClientId) -> Option<&IdentityKey> {
        let ReplicaKeys::Certified { identities, .. } = &self.config.keys else {
            return None;
        };
        identities.get(usize::from(self.replica_of_identity(name)?.0))
    }

    /// This replica's own statement.
    pub(crate) fn on_recover(&mut self, statement: &RecoveryStatement) -> Result<(), Rejected> {
        let me = self.config.me;
        let ReplicaKeys::Certified { identities, .. } = &self.config.keys else {
            return Err(Rejected::NotAsked);
        };
        let request = statement.request(&identities[usize::from(me.0)]);
        let Some(recovery) = &mut self.recovery else {
            return Err(Rejected::NotAsked);
        };
        recovery.state(request);
        self.saw_epoch(me, statement.counter);
        self.ask_to_be_ordered();
        Ok(())
    }

    /// Shows its own statement to all, as long as no checkpoint tells of it.
    pub(crate) fn ask_to_be_ordered(&mut self) {
        if let Some(statement) = self.recovery.as_ref().and_then(|r| r.unordered()) {
            let message = PeerMessage::Request(statement.clone());
            self.out.push_back(Output::Broadcast(message));
        }
    }

    /// A statement of `of`, shown by that replica or passed on to the primary.
    pub(crate) fn on_statement(
        &mut self,
        from: ReplicaId,
        of: ReplicaId,
        request: AuthRequest,
    ) -> Result<(), Rejected> {
        let (number, digest) = (request.request.number().0, request.request.digest());
        let (now, view, leads) = (self.now.mono, self.view, self.is_primary());
        let most = SHOWN * self.config.quorum.f().max(1);
        let Some(epochs) = &mut self.epochs else {
            return Err(Rejected::NotAsked);
        };
        let statements = &mut epochs.statements;
        if number <= statements.last_of(of) {
            return Err(Rejected::OldEpoch);
        }
        if from != of && !leads {
            return Err(Rejected::NotThePrimary);
        }
        let entry = self.pool.get(&digest);
        // What a fetched state has brought is forgotten as if it were executed, and in no batch of the log.
        if entry.is_some_and(|e| e.is_executed() && e.in_log()) {
            // The next checkpoint tells of it.
            return Err(Rejected::Duplicate);
        }
        let known = entry.is_some_and(|e| e.authentic);
        if !known {
            if !statements.allows(from, most, now) {
                return Err(Rejected::TooOften);
            }
            if !self.is_signed(&request) {
                return Err(Rejected::BadAuthentication);
            }
            // The identity has signed it: links under older keys end at once, whatever becomes of the order.
            self.saw_epoch(of, number);
            self.out.push_back(Output::Void(of, number));
        }
        let request = Arc::new(request);
        if let Some(epochs) = &mut self.epochs {
            let waiting = &mut epochs.statements.waiting;
            let newer = waiting.get(&of).is_none_or(|w| w.number < number);
            if newer {
                waiting.insert(
                    of,
                    Waiting {
                        number,
                        digest,
                        request: request.clone(),
                        view,
                        since: now,
                        relayed: None,
                    },
                );
            }
            let due = waiting.get_mut(&of).filter(|w| w.number == number);
            let due = due.filter(|w| {
                w.relayed
                    .is_none_or(|at| now.saturating_sub(at) >= RELAY_MS)
            });
            if let Some(due) = due
                && !leads
                && self.active
            {
                due.relayed = Some(now);
                let message = PeerMessage::Request((*request).clone());
                self.out.push_back(Output::Send(self.primary(), message));
            }
        }
        let taken = self.pool.insert_authentic(request, now);
        self.pool.hurry(&digest);
        self.accept_proposals();
        taken
    }

    /// What waits is in the pool again, where that has forgotten it. No state tells of it, so it was not executed.
    fn keep_statements(&mut self) {
        let Some(epochs) = &self.epochs else {
            return;
        };
        let waiting = epochs.statements.waiting.values();
        let forgotten = waiting.filter(|w| {
            let entry = self.pool.get(&w.digest);
            entry.is_none_or(|e| e.is_executed() && !e.in_log())
        });
        let forgotten: Vec<Arc<AuthRequest>> = forgotten.map(|w| w.request.clone()).collect();
        for request in forgotten {
            let digest = request.request.digest();
            // Where there is no room, the next time.
            let _ = self.pool.insert_authentic(request, self.now.mono);
            self.pool.hurry(&digest);
        }
    }

    /// As backup: passes on what waits, to the primary of now, and leaves one that lets it lie. Who recovers may have no link with either,
    /// so nothing of this waits for it to say again what it has said.
    pub(crate) fn look_after_statements(&mut self) {
        self.keep_statements();
        if self.is_primary() || !self.active {
            return;
        }
        let (now, primary) = (self.now.mono, self.primary());
        let Some(epochs) = &mut self.epochs else {
            return;
        };
        let waiting: Vec<ReplicaId> = epochs.statements.waiting.keys().copied().collect();
        for of in waiting {
            if self.is_statement_neglected(of) && self.may_change_view_for(of) {
                return self.start_view_change(self.view.next());
            }
            let Some(epochs) = &mut self.epochs else {
                return;
            };
            let waiting = epochs.statements.waiting.get_mut(&of);
            let due = waiting.filter(|w| {
                w.relayed
                    .is_none_or(|at| now.saturating_sub(at) >= RELAY_MS)
            });
            let Some(due) = due else { continue };
            let entry = self.pool.get(&due.digest);
            let Some(request) = entry.filter(|e| e.is_waiting()).and_then(|e| e.relay()) else {
                continue;
            };
            due.relayed = Some(now);
            let message = PeerMessage::Request((**request).clone());
            self.out.push_back(Output::Send(primary, message));
        }
    }

    /// As backup: whether the primary has left the statement of this replica lie for too long.
    pub(crate) fn is_statement_neglected(&mut self, of: ReplicaId) -> bool {
        let (now, view, neglects) = (self.now.mono, self.view, self.active && !self.is_primary());
        // Who is slow itself would leave a primary that works.
        let may = self.fetching.is_none() && self.has_window() && !self.others_are_ahead();
        let Some(epochs) = &mut self.epochs else {
            return false;
        };
        let Some(waiting) = epochs.statements.waiting.get_mut(&of) else {
            return false;
        };
        if waiting.view != view || !neglects {
            (waiting.view, waiting.since) = (view, now);
        }
        let entry = self.pool.get(&waiting.digest);
        // What is in a proposal, or finds no room, or waits for this replica itself, is no fault of the primary's.
        let is_left = entry.is_some_and(|e| e.is_waiting()) && may;
        let is_long = now.saturating_sub(waiting.since) >= WAITS_MS;
        is_left && is_long && !is_on(Mutant::NeglectForgiven)
    }

    /// Whether the statement of this replica has no place yet, as far as is known here.
    pub(crate) fn is_statement_unordered(&self, of: ReplicaId) -> bool {
        let waiting = self.epochs.as_ref().map(|e| &e.statements.waiting);
        let entry = waiting.and_then(|w| self.pool.get(&w.get(&of)?.digest));
        entry.is_some_and(|e| e.is_waiting())
    }

    /// Of each replica the number of the last statement that a state tells of; empty in a group without key holders.
    pub fn recoveries(&self) -> &[u64] {
        self.epochs
            .as_ref()
            .map_or(&[], |epochs| &epochs.statements.ordered)
    }

    /// A state tells of these recoveries.
    pub(crate) fn on_recoveries(&mut self, seq: Seq, numbers: &[u64]) {
        let replicas = self.config.quorum.replicas();
        for (replica, &number) in replicas.zip(numbers) {
            let Some(epochs) = &mut self.epochs else {
                return;
            };
            let statements = &mut epochs.statements;
            if number <= statements.last_of(replica) {
                continue;
            }
            statements.ordered[usize::from(replica.0)] = number;
            let waiting = &mut statements.waiting;
            if waiting.get(&replica).is_some_and(|w| w.number <= number) {
                waiting.remove(&replica);
            }
            if is_on(Mutant::OrderVoidsNothing) && replica != self.config.me {
                continue;
            }
            self.saw_epoch(replica, number);
            if replica != self.config.me {
                // Its number may have risen with its statement, when links under its older keys still stood.
                self.forget_votes(replica, Seq(u64::MAX));
                self.out.push_back(Output::Void(replica, number));
            } else if let Some(recovery) = &mut self.recovery {
                recovery.ordered(seq, number);
            }
        }
    }
}
