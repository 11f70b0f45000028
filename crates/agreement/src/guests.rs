//! Clients that the group does not name, and that have come by a credential: guests (docs/credentials.md).
//!
//! Whether a credential holds is judged where links are made; a guest is here while this replica has, or had of late, a link with it. Guests
//! differ from clients in three ways, since their number is not bounded by the group file:
//!
//! - they sign all that they ask. What a request's authenticity rests on is then the same everywhere, so that a guest can't make backups
//!   refuse what the primary took, as wrong MACs can;
//! - a backup that has no link with a guest takes its signature from a proposal all the same. Else a guest with a link to the primary alone could
//!   stop every view. A faulty primary can make up keys; so each has a budget of such guests, which is more than a correct one
//!   can let in;
//! - they accuse nobody: what they ask is no claim against a primary. A faulty one can leave guests waiting, and they can't unseat a correct one.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use quorate_wire::message::{AuthRequest, Batch};
use quorate_wire::{Authenticator, ClientId, ReplicaId};

use crate::budget::Budget;
use crate::core::Agreement;
use crate::io::Rejected;

/// Guests with a link here; the driver lets in no more.
pub const MAX_GUESTS: usize = 256;
/// Guests of whom proposals have told, whoever proposed them.
const MAX_SHOWN: usize = 4096;
/// The latest of them, whom a primary proposes without counting: a backup that has forgotten all, or was away, pays for so many at once, and
/// then for those who are introduced.
const MAX_SPARED: usize = 256;
/// How many new ones a primary may tell of: twice as many as have places with it, and then more than leave those places for good, which takes
/// a minute each.
const SHOWN_AT_ONCE: u64 = 2 * MAX_GUESTS as u64;
const SHOWN_IN_A_SECOND: u64 = 8;
/// How many a correct primary tells of: less, also with those whom it is spared, so that backups' budgets for it last, and guests who come and
/// go, each with another key, make no backup refuse a proposal. As many of those to whom the owner itself has granted something as of the others: who
/// may pass on can name as many keys as it likes, and would leave nothing to anybody else.
const INTRODUCED_AT_ONCE: u64 = 96;
const INTRODUCED_IN_A_SECOND: u64 = SHOWN_IN_A_SECOND / 4;
/// One guest, in the parts of which so many come in a millisecond.
const ONE: u64 = 1_000;

const _: () = assert!(MAX_SPARED as u64 + 2 * INTRODUCED_AT_ONCE < SHOWN_AT_ONCE);
const _: () = assert!(2 * INTRODUCED_IN_A_SECOND < SHOWN_IN_A_SECOND);

/// So many clients, those noted last.
#[derive(Clone, Debug, Default)]
struct Latest {
    /// Each with the number of when it was noted.
    noted: BTreeMap<ClientId, u64>,
    in_order: BTreeMap<u64, ClientId>,
    notes: u64,
}

impl Latest {
    fn contains(&self, client: &ClientId) -> bool {
        self.noted.contains_key(client)
    }

    /// It is the latest now; beyond `most` the one that was noted longest ago is forgotten.
    fn note(&mut self, client: ClientId, most: usize) {
        self.notes += 1;
        if let Some(before) = self.noted.insert(client, self.notes) {
            self.in_order.remove(&before);
        }
        self.in_order.insert(self.notes, client);
        if self.noted.len() > most
            && let Some((_, oldest)) = self.in_order.pop_first()
        {
            self.noted.remove(&oldest);
        }
    }
}

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(crate) struct Guests {
    /// Those with a link here; of each whether the owner itself has granted what it has come by.
    here: BTreeMap<ClientId, bool>,
    /// Those of proposals that were accepted here, or whose signature was right in one; and those whom this replica has introduced.
    shown: Latest,
    /// The latest of these.
    spared: Latest,
    /// What each other primary has left of those it may tell of.
    budgets: BTreeMap<ReplicaId, Budget>,
    /// What this one has: of the owner's own guests, and of others.
    introduced: [Option<Budget>; 2],
}

impl Guests {
    /// Entries, for counting memory.
    pub fn held(&self) -> usize {
        let noted = self.shown.noted.len() + self.spared.noted.len();
        self.here.len() + 2 * noted + self.budgets.len()
    }

    /// The most that there can be in a group of `n`.
    pub const fn most(n: usize) -> usize {
        MAX_GUESTS + 2 * (MAX_SHOWN + MAX_SPARED) + n
    }

    fn show(&mut self, client: ClientId) {
        self.shown.note(client, MAX_SHOWN);
        self.spared.note(client, MAX_SPARED);
    }
}

impl Agreement {
    /// A link with a client that the group does not name; whether the owner itself lets it in, where that is said.
    pub(crate) fn on_guest(
        &mut self,
        client: ClientId,
        is_owners: Option<bool>,
    ) -> Result<(), Rejected> {
        if !self.config.guests {
            return Err(Rejected::BadAuthentication);
        }
        let guests = &mut self.guests.here;
        if guests.len() >= MAX_GUESTS && !guests.contains_key(&client) {
            return Err(Rejected::TooOften);
        }
        let known = guests.entry(client).or_insert(false);
        *known = is_owners.unwrap_or(*known);
        Ok(())
    }

    /// A guest has been gone for long, or makes room.
    pub(crate) fn on_guest_gone(&mut self, client: ClientId) {
        self.guests.here.remove(&client);
        self.allowances.remove(&client);
        self.shared.remove(&client);
    }

    /// Whether somebody is none of the group's clients.
    pub(crate) fn is_guest(&self, client: &ClientId) -> bool {
        self.config.guests
            && !self.config.clients.contains(client)
            && self.replica_of_identity(client).is_none()
    }

    /// Whether this replica has, or had of late, a link with a guest.
    pub(crate) fn is_guest_here(&self, client: &ClientId) -> bool {
        self.guests.here.contains_key(client)
    }

    /// Whether a guest is known, by a link or by a proposal.
    pub(crate) fn is_known_guest(&self, client: &ClientId) -> bool {
        self.config.guests && (self.is_guest_here(client) || self.guests.shown.contains(client))
    }

    /// As primary: whether a guest, whose signature was right, may be in proposals. Backups have noted those who were, as this replica has, and
    /// know those with links there. But one that was away or has started anew knows less, and then pays for whoever is not counted here.
    pub(crate) fn introduce(&mut self, client: &ClientId) -> Result<(), Rejected> {
        if !self.is_guest(client) {
            return Ok(());
        }
        if self.guests.spared.contains(client) {
            self.guests.show(*client);
            return Ok(());
        }
        let now = self.now.mono;
        let new = || Budget::new(INTRODUCED_AT_ONCE * ONE, INTRODUCED_IN_A_SECOND, now);
        let is_owners = self.guests.here.get(client).is_some_and(|is| *is);
        let budget = self.guests.introduced[usize::from(is_owners)].get_or_insert_with(new);
        if !budget.is_open(now) {
            return Err(Rejected::TooOften);
        }
        budget.spend(ONE as usize);
        self.guests.show(*client);
        Ok(())
    }

    /// Takes note of the guests of a proposal that this replica votes for: it knows their requests to be theirs, or others vouch for that. Whoever has
    /// accepted it knows them from then on, so that its next primary may count on that, whether the guests have links here or have left.
    pub(crate) fn note_guests(&mut self, batch: &Batch) {
        if !self.config.guests {
            return;
        }
        for digest in &batch.requests {
            let client = self.pool.get(digest).map(|entry| entry.request().client());
            if let Some(client) = client.filter(|client| self.is_guest(client)) {
                self.guests.show(client);
            }
        }
    }

    /// Takes note of guests that a proposal tells of, as far as their signatures are right and the primary may.
    pub(crate) fn meet_guests(&mut self, requests: &[Arc<AuthRequest>]) {
        if !self.config.guests {
            return;
        }
        for AuthRequest { request, auth, .. } in requests.iter().map(|r| &**r) {
            let client = request.client();
            let Authenticator::Signed(shared) = auth else {
                continue;
            };
            if !self.is_guest(&client) || self.is_known_guest(&client) {
                continue;
            }
            let (primary, now) = (self.primary(), self.now.mono);
            let new = || Budget::new(SHOWN_AT_ONCE * ONE, SHOWN_IN_A_SECOND, now);
            let budget = self.guests.budgets.entry(primary).or_insert_with(new);
            if !budget.is_open(now) {
                continue;
            }
            // Wrong ones cost as much: they are as much work.
            budget.spend(ONE as usize);
            let signed = self.signed(request, shared);
            let is_right = self.verdict(&signed);
            if is_right.unwrap_or_else(|| client.verify(&signed.1, &signed.2).is_ok()) {
                self.guests.show(client);
            }
        }
    }
}
