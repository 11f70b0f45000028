//! The guests of a replica: whom the group file does not name, and who have come by a credential.
//!
//! Keys cost nothing, and who may pass a credential on can name as many as it likes. So guests have a bounded number of places. Those to whom the owner
//! has granted something need nobody's leave for one: what others have passed on has half of the places at most, each key that has passed on
//! a part of that, and who is further down a part of who is above. A guest keeps its place for a while when its links have ended,
//! and what it owes with it; then the place is the next one's.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quorate_wire::{ClientId, PublicKey};

use super::Client;
use crate::guests::Guest;

/// Guests at once.
pub const MAX_GUESTS: usize = 256;
/// Of these, those whose credentials were passed on.
const MAX_PASSED_ON: usize = MAX_GUESTS / 2;
/// Of these, those who have what they have by the hands of one key to which the owner has granted it.
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
    /// By whose hands its credential has come; nobody's where that is the owner's own.
    hosts: Vec<PublicKey>,
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

/// Of whom there are as many as there may be.
enum Bar {
    /// All whose credentials were passed on.
    PassedOn,
    /// Those whose credentials this key has passed on.
    Host(PublicKey),
}

impl Bar {
    fn counts(&self, seated: &Seated) -> bool {
        match self {
            Bar::PassedOn => !seated.hosts.is_empty(),
            Bar::Host(host) => seated.hosts.contains(host),
        }
    }
}

/// How many guests may be here by the hands of one key that has this place among those by whose hands one comes, where there is room for so many
/// more. So the hosts that have come first leave half of what they leave free to each that comes later.
fn most_of_host(place: usize, room: usize) -> usize {
    (MAX_OF_HOST.min(room / 2) >> (2 * place.min(2))).max(1)
}

/// The places of guests.
#[derive(Debug, Default)]
pub struct Guests {
    places: Vec<Place>,
    by_key: BTreeMap<ClientId, usize>,
}

impl Guests {
    /// A place for a guest whose link has come; `open` makes another one, `is_free` tells whether nothing is held against who was there. `None`
    /// if all are taken, or those for what was passed on, or for the guests of one of its hosts.
    pub fn seat(
        &mut self,
        guest: &Guest,
        now: Instant,
        open: impl FnOnce() -> Client,
        is_free: impl Fn(&Client) -> bool,
    ) -> Option<Found> {
        if let Some(&at) = self.by_key.get(&guest.key) {
            let seated = self.places[at].guest.as_mut()?;
            // The latest of the credentials that it has shown. It counts for those by whose hands it has first come, as it was let in.
            seated.until = seated.until.max(guest.until);
            if guest.hosts.is_empty() {
                seated.hosts.clear();
            }
            return Some(Found { at, gone: None });
        }
        let bars = self.bars(guest);
        let is_full = !bars.is_empty();
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
                    let counts = bars.iter().all(|bar| bar.counts(seated));
                    let may_go = seated.links == 0 && counts && is_free(&place.as_client);
                    may_go.then_some((seated.left, at))
                });
                empty.min()?.1
            }
        };
        let seated = Seated {
            key: guest.key,
            hosts: guest.hosts.clone(),
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

    /// What keeps a guest out, unless somebody else goes whom it counts.
    fn bars(&self, guest: &Guest) -> Vec<Bar> {
        let count = |bar: &Bar| {
            let seated = self.places.iter().filter_map(|p| p.guest.as_ref());
            seated.filter(|seated| bar.counts(seated)).count()
        };
        let mut bars = Vec::new();
        if guest.hosts.is_empty() {
            return bars;
        }
        let room = MAX_PASSED_ON.saturating_sub(count(&Bar::PassedOn));
        if room == 0 {
            bars.push(Bar::PassedOn);
        }
        let hosts = guest.hosts.iter().enumerate();
        let hosts = hosts.map(|(place, host)| (most_of_host(place, room), Bar::Host(*host)));
        bars.extend(hosts.filter_map(|(most, bar)| (count(&bar) >= most).then_some(bar)));
        bars
    }

    /// What the hub and the ledger know a place by.
    pub fn client(&self, at: usize) -> Client {
        self.places[at].as_client
    }

    /// Whether the owner itself has granted what a guest has come by.
    pub fn is_owners(&self, key: &ClientId) -> bool {
        let place = self.by_key.get(key).map(|at| &self.places[*at]);
        let seated = place.and_then(|place| place.guest.as_ref());
        seated.is_some_and(|seated| seated.hosts.is_empty())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::hub::SourceId;

    fn key(number: u8, at: u8) -> PublicKey {
        PublicKey([[number; 16], [at; 16]].concat().try_into().unwrap())
    }

    struct House {
        guests: Guests,
        now: Instant,
    }

    impl House {
        /// Whether somebody finds a place; if so, with a link.
        fn seats(&mut self, key: PublicKey, hosts: &[PublicKey]) -> bool {
            let guest = Guest {
                key,
                hosts: hosts.into(),
                until: u64::MAX,
            };
            let next = self.guests.places.len();
            let open = || Client {
                source: SourceId::default(),
                account: next,
            };
            let found = self.guests.seat(&guest, self.now, open, |_| true);
            if found.is_some() {
                self.guests.came(&key);
            }
            found.is_some()
        }

        /// How many guests of these hosts find a place, one after the other.
        fn fill(&mut self, number: u8, hosts: &[PublicKey]) -> usize {
            let keys = (0..=255).map(|at| key(number, at));
            keys.take_while(|key| self.seats(*key, hosts)).count()
        }
    }

    fn house() -> House {
        House {
            guests: Guests::default(),
            now: clock::now(),
        }
    }

    /// Carol, to whom Bob has passed on, and who names as many as she likes, keeps out neither Bob's other guests nor Bob, also where he comes
    /// after her.
    #[test]
    fn who_is_below_keeps_out_nobody_above() {
        let mut house = house();
        let (bob, carol, dave) = (key(0, 1), key(0, 2), key(0, 3));
        assert_eq!(house.fill(1, &[bob, carol]), MAX_OF_HOST / 4);
        assert_eq!(
            house.fill(2, &[bob, carol, dave]),
            0,
            "they are Carol's too"
        );
        assert_eq!(house.fill(3, &[bob]), MAX_OF_HOST - MAX_OF_HOST / 4);
        assert!(!house.seats(carol, &[bob]));
        assert!(house.seats(bob, &[]));
    }

    /// However many hosts bring all that they may, there is room for one that comes later, and half the house for the owner's own guests. Who has
    /// left makes room, for who would count in its place.
    #[test]
    fn there_is_room_for_whom_the_owner_knows() {
        let mut house = house();
        let filled: Vec<usize> = (1..=20).map(|n| house.fill(n, &[key(0, n)])).collect();
        assert_eq!(filled[0], MAX_OF_HOST);
        assert!(filled.iter().take(10).all(|n| *n > 0), "{filled:?}");
        let passed_on: usize = filled.iter().sum();
        assert!(passed_on <= MAX_PASSED_ON);
        let own = house.fill(100, &[]);
        assert_eq!(own, MAX_GUESTS - passed_on);
        let late = key(200, 1);
        assert!(!house.seats(late, &[]));
        assert!(!house.seats(late, &[key(0, 1)]));
        let now = house.now;
        house.guests.left(&key(2, 0), now);
        assert!(!house.seats(late, &[key(0, 1)]), "it was the second host's");
        house.guests.left(&key(1, 0), now);
        assert!(house.seats(late, &[key(0, 1)]));
        assert!(house.seats(key(200, 2), &[]), "the second host's place");
        assert!(!house.seats(key(200, 3), &[]));
    }

    /// Who shows another credential stays counted where it was let in, but for one of the owner's own.
    #[test]
    fn a_place_does_not_change_hosts() {
        let mut house = house();
        let (bob, erin, carol) = (key(0, 1), key(0, 2), key(0, 3));
        let hosts = |house: &House| {
            house.guests.places[0]
                .guest
                .as_ref()
                .map(|s| s.hosts.clone())
        };
        assert!(house.seats(carol, &[bob]));
        assert!(house.seats(carol, &[erin]));
        assert_eq!(hosts(&house), Some(vec![bob]));
        assert!(house.seats(carol, &[]));
        assert_eq!(hosts(&house), Some(vec![]));
    }
}
