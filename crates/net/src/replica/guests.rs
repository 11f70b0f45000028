//! The guests of a replica: whom the group file does not name, and who have come by a credential.
//!
//! Keys cost nothing, and who may pass a credential on can name as many as it likes. So guests have a bounded number of places, and those whom
//! one and the same key has let in have few of them together. A guest keeps its place for a while when its links have ended, and what it owes
//! with it; then the place is the next one's.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quorate_wire::{ClientId, PublicKey};

use super::Client;
use crate::guests::Guest;

/// Guests at once.
pub const MAX_GUESTS: usize = 256;
/// Of these, those who have what they have from one key to which the owner has granted it.
const MAX_OF_HOST: usize = 32;
/// Connections of one guest; with one more the oldest is closed.
pub const CONNECTIONS_PER_GUEST: usize = 4;
/// How long a guest without a link is remembered: longer than anybody is put aside.
const REMEMBERED: Duration = Duration::from_secs(60);

/// A place, with what the hub and the ledger know it by.
#[derive(Debug)]
struct Place {
    as_client: Client,
    guest: Option<Seated>,
}

#[derive(Debug)]
struct Seated {
    key: ClientId,
    host: PublicKey,
    /// The last second in which it may be here.
    until: u64,
    links: usize,
    /// When its last link ended.
    left: Instant,
}

/// A place was found.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    pub at: usize,
    /// Who had to go from there.
    pub gone: Option<ClientId>,
}

/// The places of guests.
#[derive(Debug, Default)]
pub struct Guests {
    places: Vec<Place>,
    by_key: BTreeMap<ClientId, usize>,
}

impl Guests {
    /// A place for a guest whose link has come; `open` makes another one, `is_free` tells whether nothing is held against who was there. `None`
    /// if all are taken, or those for the guests of its host.
    pub fn seat(
        &mut self,
        guest: &Guest,
        now: Instant,
        open: impl FnOnce() -> Client,
        is_free: impl Fn(&Client) -> bool,
    ) -> Option<Found> {
        if let Some(&at) = self.by_key.get(&guest.key) {
            let seated = self.places[at].guest.as_mut()?;
            // The latest of the credentials that it has shown.
            (seated.host, seated.until) = (guest.host, seated.until.max(guest.until));
            return Some(Found { at, gone: None });
        }
        let of_host = |s: &Seated| s.host == guest.host;
        let seated = || self.places.iter().filter_map(|p| p.guest.as_ref());
        let is_full = seated().filter(|s| of_host(s)).count() >= MAX_OF_HOST;
        let free = self.places.iter().position(|p| p.guest.is_none());
        let at = match free.filter(|_| !is_full) {
            Some(at) => at,
            None if !is_full && self.places.len() < MAX_GUESTS => {
                self.places.push(Place {
                    as_client: open(),
                    guest: None,
                });
                self.places.len() - 1
            }
            // Who left first makes room.
            None => {
                let places = self.places.iter().enumerate();
                let empty = places.filter_map(|(at, place)| {
                    let seated = place.guest.as_ref()?;
                    let counts = !is_full || of_host(seated);
                    let may_go = seated.links == 0 && counts && is_free(&place.as_client);
                    may_go.then_some((seated.left, at))
                });
                empty.min()?.1
            }
        };
        let seated = Seated {
            key: guest.key,
            host: guest.host,
            until: guest.until,
            links: 0,
            left: now,
        };
        let before = self.places[at].guest.replace(seated);
        let gone = before.map(|before| before.key);
        if let Some(gone) = &gone {
            self.by_key.remove(gone);
        }
        self.by_key.insert(guest.key, at);
        Some(Found { at, gone })
    }

    /// What the hub and the ledger know a place by.
    pub fn client(&self, at: usize) -> Client {
        self.places[at].as_client
    }

    /// A link of a guest stands.
    pub fn came(&mut self, key: &ClientId) {
        if let Some(seated) = self.seated(key) {
            seated.links += 1;
        }
    }

    /// A link of a guest is over.
    pub fn left(&mut self, key: &ClientId, now: Instant) {
        if let Some(seated) = self.seated(key) {
            seated.links = seated.links.saturating_sub(1);
            seated.left = now;
        }
    }

    fn seated(&mut self, key: &ClientId) -> Option<&mut Seated> {
        let at = *self.by_key.get(key)?;
        self.places[at].guest.as_mut()
    }

    /// How many links guests have.
    pub fn links(&self) -> usize {
        let seated = self.places.iter().filter_map(|p| p.guest.as_ref());
        seated.map(|s| s.links).sum()
    }

    /// Whose time was over before this second and who are still here.
    pub fn expired(&self, now: u64) -> Vec<ClientId> {
        let seated = self.places.iter().filter_map(|p| p.guest.as_ref());
        let over = seated.filter(|s| s.links > 0 && s.until < now);
        over.map(|s| s.key).collect()
    }

    /// Takes the places of those who have been gone for long; says who they were.
    pub fn forget(&mut self, now: Instant) -> Vec<ClientId> {
        let mut gone = Vec::new();
        for place in &mut self.places {
            let is_over = |s: &mut Seated| s.links == 0 && s.left + REMEMBERED <= now;
            if let Some(seated) = place.guest.take_if(is_over) {
                self.by_key.remove(&seated.key);
                gone.push(seated.key);
            }
        }
        gone
    }
}
