//! What a replica's agreement holds in memory, counted, and the most that it may come to.
//!
//! docs/protocol.md, section 11, has the table: which part, its bound, and who can fill it.

use alloc::vec::Vec;

use quorate_wire::Quorum;
use quorate_wire::message::{MAX_BATCH_REQUESTS, SignedNewView, SignedViewChange};

use crate::authenticity::KEYS_PER_CLIENT;
use crate::checked;
use crate::checkpoint::PLACES_PER_SENDER;
use crate::core::Agreement;
use crate::guests::{Guests, MAX_GUESTS};
use crate::normal::MAX_BATCH_WEIGHT;
use crate::pool::{CLIENT_BYTES, POOL_BYTES};
use crate::room::NEXT_BYTES;
use crate::signed_terms::{MAX_DOUBTED, MAX_SUSPECTS};
use crate::slot::MAX_PREPREPARED;
use crate::turns::LEAST_CHARGE;
use crate::{LOG_BYTES, LOG_WINDOW};

/// A request beside its operation: its authenticator and its places in the pool's maps.
const REQUEST: usize = 512;
/// A vote, a digest or a number with its place in a map.
const VOTE: usize = 64;

/// A signature that was checked: itself, what it is over and whose it is, in a map and in order.
const CHECKED: usize = 5 * VOTE;

/// Bytes, about: contents as they are, the rest by the number of entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Requests that are open, or named by a batch in the log.
    pub requests: usize,
    /// Places: batches without their requests, votes, certificates.
    pub places: usize,
    /// VIEW-CHANGEs and NEW-VIEWs.
    pub views: usize,
    /// CHECKPOINTs, STATUS, what waits for the log, and what is known of clients.
    pub rest: usize,
}

impl Memory {
    /// All of it.
    pub fn total(&self) -> usize {
        self.requests + self.places + self.views + self.rest
    }

    /// The most that there may be in a group of this size with so many clients, whatever peers and clients do.
    pub fn bound(quorum: Quorum, clients: usize) -> Memory {
        let (n, window) = (quorum.n(), LOG_WINDOW as usize);
        // Of each place the batches in Q, what is proposed and what committed.
        let batches = MAX_PREPREPARED + 2;
        let named = window * batches * MAX_BATCH_REQUESTS;
        let change = VOTE * (window * (MAX_PREPREPARED + 2) + 8);
        let new_view = VOTE * (n + window + 4);
        Memory {
            requests: POOL_BYTES
                + LOG_BYTES
                + NEXT_BYTES
                + MAX_BATCH_WEIGHT
                + REQUEST * (POOL_BYTES / LEAST_CHARGE + named),
            places: window * (VOTE * (3 * n + 2 * batches) + batches * 32 * MAX_BATCH_REQUESTS),
            // The newest of each replica, those that a NEW-VIEW of each primary names, and one from each replica of a view that was missed, how the view began, and the own one.
            views: change * (n + 2 * n * n + n + 1) + new_view * (3 * n + 1),
            rest: VOTE
                * (n * (window + 1)
                    + 2 * window
                    + 4 * n
                    + (clients + MAX_GUESTS) * 6
                    + clients * KEYS_PER_CLIENT
                    + named)
                + VOTE * (Guests::most(n) + 3 * n)
                + VOTE * 3 * 4096
                + VOTE * 4 * batches * window
                + CHECKED * checked::MOST,
        }
    }
}

/// Something that has a bound of its own, and how much of it there is: bytes or entries. The whole is far below [`Memory::bound`] in any group that can be
/// tried; this is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it is.
    pub what: &'static str,
    /// How much there is.
    pub held: usize,
    /// How much there may be.
    pub most: usize,
}

impl Part {
    /// A part.
    pub const fn new(what: &'static str, held: usize, most: usize) -> Part {
        Part { what, held, most }
    }
}

fn of_change(m: &SignedViewChange) -> usize {
    let body = &m.body;
    VOTE * (body.checkpoints.len() + body.prepared.len() + body.preprepared.len() + 8)
}

fn of_new_view(m: &SignedNewView) -> usize {
    VOTE * (m.body.proofs.len() + m.body.selection.len() + 4)
}

impl Agreement {
    /// What of this replica has a bound of its own. For tests, as [`Agreement::memory`] is.
    pub fn parts(&self) -> Vec<Part> {
        let (n, window) = (self.config.quorum.n(), LOG_WINDOW as usize);
        let (of_one, of_all) = self.pool.charged_beside_log();
        let keys = self.mac_keys.values().map(|keys| keys.len());
        let votes = self.slots.values().map(|slot| slot.held(1));
        let known = self.config.clients.len() + MAX_GUESTS;
        [
            (
                "bytes of a client's requests that wait",
                of_one,
                CLIENT_BYTES,
            ),
            ("bytes of requests that wait", of_all, POOL_BYTES),
            (
                "bytes of requests in the log",
                self.pool.log_weight(),
                LOG_BYTES + NEXT_BYTES + MAX_BATCH_WEIGHT,
            ),
            ("places", self.slots.len(), window),
            (
                "votes and batches of a place",
                votes.max().unwrap_or(0),
                3 * n + (MAX_PREPREPARED + 2) * (2 + 32 * MAX_BATCH_REQUESTS),
            ),
            (
                "CHECKPOINTs",
                self.checkpoint_votes.len(),
                n * PLACES_PER_SENDER,
            ),
            ("VIEW-CHANGEs", self.view_changes.len(), n),
            ("VIEW-CHANGEs that are named", self.proofs.len(), 2 * n * n),
            ("NEW-VIEWs that wait", self.waiting_new_views.len(), n),
            ("NEW-VIEWs that were missed", self.missed_new_views.len(), n),
            ("NEW-VIEWs", self.heard_new_views.len(), n),
            ("STATUS", self.statuses.len(), n),
            ("suspects", self.suspects.len(), MAX_SUSPECTS),
            ("doubted requests", self.suspects.doubted(), MAX_DOUBTED),
            ("keys of a client", keys.max().unwrap_or(0), KEYS_PER_CLIENT),
            ("clients with keys", self.mac_keys.len(), known),
            ("allowances", self.allowances.len(), known),
            ("guests", self.guests.held(), Guests::most(n)),
            (
                "signatures that were checked",
                self.checked.len(),
                checked::MOST,
            ),
        ]
        .map(|(what, held, most)| Part::new(what, held, most))
        .into()
    }

    /// What this replica holds now. It looks at everything, so it is for tests and reports.
    pub fn memory(&self) -> Memory {
        let (requests, weight) = self.pool.held();
        let places = self.slots.values().map(|slot| slot.held(VOTE));
        let entered = self.entered.iter();
        let changes = self.view_changes.values();
        let changes = changes
            .chain(self.proofs.values())
            .chain(&self.own_change)
            .chain(entered.clone().flat_map(|e| &e.proofs));
        let new_views = self.waiting_new_views.values();
        let new_views = new_views
            .chain(self.missed_new_views.values())
            .chain(self.heard_new_views.values())
            .chain(entered.map(|e| &e.new_view));
        let keys: usize = self.mac_keys.values().map(|keys| 2 + keys.len()).sum();
        let entries = self.checkpoint_votes.len()
            + self.own_checkpoints.len()
            + self.statuses.len()
            + self.budgets.len()
            + self.stranded.len()
            + self.accused.len()
            + 2 * self.shared.len()
            + self.suspects.len()
            + self.suspects.doubted()
            + 2 * self.allowances.len()
            + self.guests.held()
            + self
                .epochs
                .iter()
                .map(|e| e.statements.held())
                .sum::<usize>()
            + self.asked.len()
            + self.awaiting.len()
            + self.held.len()
            + self.judge.counted()
            + self.pace.len()
            + keys;
        Memory {
            requests: weight + REQUEST * requests,
            places: places.sum(),
            views: changes.map(of_change).sum::<usize>()
                + new_views.map(of_new_view).sum::<usize>(),
            rest: VOTE * entries + CHECKED * self.checked.len(),
        }
    }
}
