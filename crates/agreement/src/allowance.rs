//! What a client may ask for that costs a replica more than its place in turn: sessions, checks of signatures that make claims or are wrong, and to be
//! served out of turn because a backup says so.
//!
//! A correct client opens a session when it starts or has lost one, and signs what it repeats or has watched: few a second. Whoever
//! is over an allowance is refused before anything is done for it. (Aardvark, NSDI 2009, bounds what checks of signatures cost by a list of clients whose
//! signatures were wrong.)

use quorate_wire::ClientId;

use crate::Millis;
use crate::budget::Budget;
use crate::core::Agreement;

/// One, in the parts of which so many come in a millisecond.
const ONE: u64 = 1_000;
/// Sessions at once: twice what a client may have. Each costs a place in the agreed order and a row of the state, so one client that opens thousands
/// would have the group do nothing else; beyond sixteen it loses its own (docs/protocol.md, sections 9 and 10).
const SESSIONS_AT_ONCE: u64 = 32;
const SESSIONS_IN_A_SECOND: u64 = 8;
/// Of them those that a backup holds against a primary, one at a time; and those that the primary lets open all the same when a backup shows them, whatever it has let the client open: as many as the backups may show.
const OPENINGS_IN_A_SECOND: u64 = 1;
/// Signatures at once: two windows of repeated requests.
const CHECKS_AT_ONCE: u64 = 128;
const CHECKS_IN_A_SECOND: u64 = 64;
/// What is served out of turn: each backup shows a claim when it has waited a while, and the next when that was ordered. At once as many as
/// backups may show different ones of.
const URGENT_AT_ONCE: u64 = 16;
const URGENT_IN_A_SECOND: u64 = 16;

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Allowance {
    sessions: Budget,
    openings: Budget,
    shown: Budget,
    checks: Budget,
    urgent: Budget,
}

impl Allowance {
    /// In a group of `n` replicas.
    fn new(n: u64, now: Millis) -> Allowance {
        Allowance {
            sessions: Budget::new(SESSIONS_AT_ONCE * ONE, SESSIONS_IN_A_SECOND, now),
            openings: Budget::new(ONE, OPENINGS_IN_A_SECOND, now),
            shown: Budget::new(2 * n * ONE, n * OPENINGS_IN_A_SECOND, now),
            checks: Budget::new(CHECKS_AT_ONCE * ONE, CHECKS_IN_A_SECOND, now),
            urgent: Budget::new(URGENT_AT_ONCE * ONE, URGENT_IN_A_SECOND, now),
        }
    }
}

impl Agreement {
    /// Whether a client may open or close another session.
    pub(crate) fn allows_session(&mut self, client: &ClientId) -> bool {
        self.spend_allowance(client, |allowance| &mut allowance.sessions)
    }

    /// Whether a session that a client wants to open or close may be held against a primary that does not let it.
    pub(crate) fn allows_opening_claim(&mut self, client: &ClientId) -> bool {
        self.spend_allowance(client, |allowance| &mut allowance.openings)
    }

    /// Whether a session may be opened or closed because a backup shows that it is wanted. A client can use up what it may open, and show the backups one more: they would blame the primary.
    pub(crate) fn allows_shown_opening(&mut self, client: &ClientId) -> bool {
        self.spend_allowance(client, |allowance| &mut allowance.shown)
    }

    /// Whether another signature of a client may be checked; nothing is spent where it is right.
    pub(crate) fn may_check(&mut self, client: &ClientId) -> bool {
        let now = self.now.mono;
        let allowance = self.allowances.get_mut(client);
        allowance.is_none_or(|allowance| allowance.checks.is_open(now))
    }

    /// Whether another signature of a client is to be checked.
    pub(crate) fn allows_check(&mut self, client: &ClientId) -> bool {
        self.spend_allowance(client, |allowance| &mut allowance.checks)
    }

    /// Whether something of a client is to be served out of turn.
    pub(crate) fn allows_urgency(&mut self, client: &ClientId) -> bool {
        self.spend_allowance(client, |allowance| &mut allowance.urgent)
    }

    fn spend_allowance(
        &mut self,
        client: &ClientId,
        of: fn(&mut Allowance) -> &mut Budget,
    ) -> bool {
        let now = self.now.mono;
        // The group's clients are few, and so are guests with a link; who is none of them is refused for that.
        let counts = self.config.clients.contains(client) || self.is_guest_here(client);
        if !counts {
            return true;
        }
        let n = self.config.quorum.n() as u64;
        let new = || Allowance::new(n, now);
        let allowances = &mut self.allowances;
        let budget = of(allowances.entry(*client).or_insert_with(new));
        let is_open = budget.is_open(now);
        if is_open {
            budget.spend(ONE as usize);
        }
        is_open
    }
}
