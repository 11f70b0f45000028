//! Guests: an owner who takes back what it has granted, by serial, by key and by an issuer's epoch, and gives it back; and outsiders who bring
//! credentials and use them all the while.
//!
//! What is checked needs no look at a replica: an operation of a guest that succeeds rests on a credential that the guest had asked to bring
//! before the operation ended, and that nobody had been told was taken back before it began; unless somebody had asked meanwhile to end that.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_credential::{Chain, ObjectId, Rights, Scope, Terms, VolumeId, Window};
use quorate_files::op::{PutCredential, Restore, Revoke, Revoked, Serial};
use quorate_files::{Action, Admission, Op};
use quorate_wire::message::Outcome;
use quorate_wire::{Decode, Digest, KeyPair};

use crate::checks::Failure;
use crate::client::client_key;
use crate::dice::Dice;
use crate::history::Operation;
use crate::keys::key_pair;

const VOLUME: Digest = Digest([7; 32]);
/// How many credentials there are for each guest.
const GRANTS: u64 = 6;

/// The owner is the first client; the group file names no other.
pub const OWNER: usize = 0;

/// Who needs no credential.
pub fn admission() -> Admission {
    Admission {
        volume: VOLUME,
        owner: Some(client_key(OWNER).public()),
        members: [].into(),
    }
}

/// Who has passed on every second credential. It is no client.
fn middleman() -> KeyPair {
    key_pair(90)
}

fn serial(guest: usize, grant: u64) -> u64 {
    guest as u64 * 100 + grant
}

/// A credential for the whole volume: from the owner, or by way of the middleman.
fn chain(guest: usize, grant: u64) -> Chain {
    let terms = |subject: &KeyPair, depth| Terms {
        subject: subject.public(),
        scope: Scope {
            object: ObjectId(1),
            subtree: true,
        },
        rights: Rights::ALL,
        window: Window {
            not_before: 0,
            not_after: u64::MAX,
        },
        depth,
        serial: serial(guest, grant),
        caveats: Vec::new(),
    };
    let (owner, guest) = (client_key(OWNER), client_key(guest));
    let issued = |subject, depth| Chain::issue(VolumeId(VOLUME), &owner, terms(subject, depth));
    let chain = match grant % 2 {
        0 => issued(&guest, 0),
        _ => {
            let first = issued(&middleman(), 1).expect("it can be said");
            first.delegate(&middleman(), terms(&guest, 0))
        }
    };
    chain.expect("it can be said")
}

/// How often a client does so, in a thousand operations: more comes than goes, so that there is something to lose.
pub fn share(client: usize) -> u64 {
    match client {
        OWNER => 120,
        _ => 350,
    }
}

/// What the owner takes back or gives back, or a guest brings, when it does.
pub fn action(dice: &mut Dice, client: usize, clients: usize) -> Action {
    let grant = dice.below(GRANTS);
    if client != OWNER {
        let chain = chain(client, grant).to_bytes().into();
        return Action::PutCredential(PutCredential { chain });
    }
    let guest = 1 + dice.below(clients as u64 - 1) as usize;
    let is_passed_on = grant % 2 == 1;
    let issuer = match is_passed_on && dice.per_mille(500) {
        false => client_key(OWNER).public(),
        true => middleman().public(),
    };
    let serial = serial(guest, grant);
    // A key or an epoch takes back much at once: as often, that is ended, so that guests come to use something.
    let (what, gives_back) = match dice.below(12) {
        0..=4 => (Revoked::Serial(Serial { issuer, serial }), false),
        kind @ 5..=7 => {
            let key = match is_passed_on && dice.per_mille(500) {
                false => client_key(guest).public(),
                true => middleman().public(),
            };
            (Revoked::Key(key), kind != 5)
        }
        kind => {
            // The one that is named and all below it of this issuer's: all of the guests before, too.
            let serial = serial + dice.below(2);
            (Revoked::Epoch(Serial { issuer, serial }), kind != 8)
        }
    };
    match gives_back {
        false => Action::Revoke(Revoke {
            what,
            by: None,
            until: None,
        }),
        true => Action::Restore(Restore { what, by: None }),
    }
}

/// Whether a revocation hits a guest's credential.
fn hits(what: &Revoked, guest: usize, grant: u64) -> bool {
    let is_passed_on = grant % 2 == 1;
    let serial = serial(guest, grant);
    let issued = |issuer| {
        issuer == client_key(OWNER).public() || (is_passed_on && issuer == middleman().public())
    };
    match what {
        Revoked::Serial(of) => of.serial == serial && issued(of.issuer),
        Revoked::Epoch(of) => serial < of.serial && issued(of.issuer),
        Revoked::Key(key) => {
            *key == client_key(guest).public() || (is_passed_on && *key == middleman().public())
        }
    }
}

/// Whether they are the same row of the state: an issuer has one epoch.
fn is_same(one: &Revoked, other: &Revoked) -> bool {
    match (one, other) {
        (Revoked::Epoch(one), Revoked::Epoch(other)) => one.issuer == other.issuer,
        (one, other) => one == other,
    }
}

/// What was taken back: from the first to the last moment at which it may have been ordered.
struct TakenBack {
    begun: u64,
    known: u64,
    what: Revoked,
}

/// Somebody has asked that something be given back; whether that came to anything is not known.
struct GivenBack {
    begun: u64,
    end: u64,
    what: Revoked,
}

/// How many there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Successes of guests.
    pub uses: u64,
    /// Revocations by serial.
    pub serials: u64,
    /// By key.
    pub keys: u64,
    /// By epoch.
    pub epochs: u64,
    /// Those that were ended.
    pub given_back: u64,
}

impl Shares {
    /// Counts those of another run.
    pub fn add(&mut self, other: &Shares) {
        self.uses += other.uses;
        self.serials += other.serials;
        self.keys += other.keys;
        self.epochs += other.epochs;
        self.given_back += other.given_back;
    }
}

fn action_of(operation: &Operation) -> Result<Action, Failure> {
    let op = Op::from_bytes(operation.op.clone());
    let op = op.map_err(|e| Failure::new("revocation", format!("{operation}: {e}")))?;
    Ok(op.action)
}

fn succeeded(result: &Bytes) -> bool {
    let Ok(Outcome::Done(answer)) = Outcome::from_bytes(result.clone()) else {
        return false;
    };
    quorate_files::Outcome::from_bytes(answer).is_ok_and(|outcome| outcome.0.is_ok())
}

/// No success after a revocation, nor before a credential.
///
/// # Errors
/// An operation of a guest that succeeded without a credential.
pub fn check(operations: &[Operation]) -> Result<Shares, Failure> {
    let mut shares = Shares::default();
    let mut revoked: Vec<TakenBack> = Vec::new();
    let mut restored: Vec<GivenBack> = Vec::new();
    // When each credential was first asked to be brought.
    let mut brought: BTreeMap<(usize, u64), u64> = BTreeMap::new();
    let mut used: Vec<(&Operation, u64)> = Vec::new();
    let grants: BTreeMap<(usize, Bytes), u64> = {
        let clients = operations.iter().map(|o| o.client).max().unwrap_or(0);
        let pairs = (1..=clients).flat_map(|guest| (0..GRANTS).map(move |grant| (guest, grant)));
        pairs
            .map(|(guest, grant)| ((guest, chain(guest, grant).to_bytes().into()), grant))
            .collect()
    };
    for operation in operations {
        let done = operation.done.as_ref();
        let ended = done.filter(|(_, result)| succeeded(result));
        match (action_of(operation)?, ended) {
            (Action::PutCredential(op), _) => {
                if let Some(grant) = grants.get(&(operation.client, op.chain)) {
                    let first = brought.entry((operation.client, *grant));
                    let first = first.or_insert(operation.begun);
                    *first = operation.begun.min(*first);
                }
            }
            (Action::Revoke(op), Some((end, _))) => {
                match op.what {
                    Revoked::Serial(_) => shares.serials += 1,
                    Revoked::Key(_) => shares.keys += 1,
                    Revoked::Epoch(_) => shares.epochs += 1,
                }
                revoked.push(TakenBack {
                    begun: operation.begun,
                    known: *end,
                    what: op.what,
                });
            }
            (Action::Restore(op), ended) => {
                shares.given_back += u64::from(ended.is_some());
                // One without an answer may be done at any time.
                let end = operation.done.as_ref().map_or(u64::MAX, |(end, _)| *end);
                restored.push(GivenBack {
                    begun: operation.begun,
                    end,
                    what: op.what,
                });
            }
            (Action::Revoke(_) | Action::Ping(_) | Action::Release(_), _) => {}
            (_, Some((end, _))) if operation.client != OWNER => used.push((operation, *end)),
            _ => {}
        }
    }
    for (operation, end) in &used {
        let guest = operation.client;
        let is_good = |grant: u64| {
            let is_brought = brought.get(&(guest, grant)).is_some_and(|at| at <= end);
            let mut before = revoked.iter().filter(|taken| taken.known < operation.begun);
            let is_out = |taken: &TakenBack| {
                let may_end = |given: &GivenBack| {
                    let in_between = given.end >= taken.begun && given.begun <= *end;
                    in_between && is_same(&given.what, &taken.what)
                };
                hits(&taken.what, guest, grant) && !restored.iter().any(may_end)
            };
            is_brought && !before.any(is_out)
        };
        if !(0..GRANTS).any(is_good) {
            let what = format!("{operation} succeeded without a credential that held");
            return Err(Failure::new("revocation", what));
        }
    }
    shares.uses = used.len() as u64;
    Ok(shares)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_files::{Answer, Ino, Nothing, Target, Who};
    use quorate_wire::{Encode, Seq};

    fn operation(client: usize, action: Action, begun: u64, end: u64) -> Operation {
        let answer = quorate_files::Outcome(Ok(Answer::Done(Nothing)));
        let outcome = Outcome::Done(answer.to_bytes());
        Operation {
            client,
            id: begun,
            op: Op::new(Who::root(), action).to_bytes(),
            reads: false,
            begun,
            session: None,
            request: None,
            sent_as: None,
            gone: None,
            done: Some((end, outcome.to_bytes().into())),
            agreed_at_end: Seq(0),
            lost: false,
        }
    }

    /// A use that begins after all of a guest's credentials were known to be taken back is a failure; one that began before is none.
    #[test]
    fn what_comes_too_late_is_noticed() {
        let bring = |grant| {
            let chain = chain(1, grant).to_bytes().into();
            operation(1, Action::PutCredential(PutCredential { chain }), 0, 1)
        };
        let revoke = |grant, issuer: KeyPair, end| {
            let of = Serial {
                issuer: issuer.public(),
                serial: serial(1, grant),
            };
            let op = Revoke {
                what: Revoked::Serial(of),
                by: None,
                until: None,
            };
            operation(OWNER, Action::Revoke(op), 5, end)
        };
        let used = |begun| operation(1, Action::GetAttr(Target::Ino(Ino::ROOT)), begun, begun + 5);
        let owner = || client_key(OWNER);
        assert!(check(&[used(10)]).is_err(), "nothing was brought");
        assert!(check(&[bring(0), used(10)]).is_ok());
        assert!(check(&[bring(0), revoke(0, owner(), 9), used(10)]).is_err());
        assert!(
            check(&[bring(0), revoke(0, owner(), 11), used(10)]).is_ok(),
            "a race"
        );
        assert!(
            check(&[bring(0), revoke(2, owner(), 9), used(10)]).is_ok(),
            "another one"
        );
        assert!(check(&[bring(0), bring(1), revoke(0, owner(), 9), used(10)]).is_ok());
        let middle = [bring(1), revoke(1, middleman(), 9), used(10)];
        assert!(check(&middle).is_err(), "the link that was passed on");
        let none = [bring(0), revoke(0, middleman(), 9), used(10)];
        assert!(check(&none).is_ok(), "it is not the middleman's");
    }

    /// By key and by epoch, and what gives back: only what may have been ordered between the revocation and the use.
    #[test]
    fn each_way_of_taking_back_is_known() {
        let bring = |grant| {
            let chain = chain(1, grant).to_bytes().into();
            operation(1, Action::PutCredential(PutCredential { chain }), 0, 1)
        };
        let take = |what: &Revoked, begun, end| {
            let op = Revoke {
                what: what.clone(),
                by: None,
                until: None,
            };
            operation(OWNER, Action::Revoke(op), begun, end)
        };
        let give = |what: &Revoked, begun, end| {
            let op = Restore {
                what: what.clone(),
                by: None,
            };
            operation(OWNER, Action::Restore(op), begun, end)
        };
        let used = |begun| operation(1, Action::GetAttr(Target::Ino(Ino::ROOT)), begun, begun + 5);
        let epoch = |key: KeyPair, below| {
            Revoked::Epoch(Serial {
                issuer: key.public(),
                serial: below,
            })
        };
        let (owner, last) = (|| client_key(OWNER), serial(1, 1));
        for (grant, what, is_hit) in [
            (0, Revoked::Key(client_key(1).public()), true),
            (1, Revoked::Key(client_key(1).public()), true),
            (0, Revoked::Key(client_key(2).public()), false),
            (1, Revoked::Key(middleman().public()), true),
            (0, Revoked::Key(middleman().public()), false),
            (1, epoch(owner(), last), false),
            (1, epoch(owner(), last + 1), true),
            (1, epoch(middleman(), last + 1), true),
            (0, epoch(middleman(), last + 1), false),
            (0, epoch(owner(), u64::MAX), true),
        ] {
            let all = [bring(grant), take(&what, 5, 9), used(10)];
            assert_eq!(check(&all).is_err(), is_hit, "{grant}: {what:?}");
        }
        let key = Revoked::Key(client_key(1).public());
        for (given, is_hit) in [
            ((10, 11), false),
            ((1, 6), false),
            ((15, 16), false),
            ((16, 17), true),
            ((1, 4), true),
        ] {
            let all = [
                bring(0),
                take(&key, 5, 9),
                give(&key, given.0, given.1),
                used(10),
            ];
            assert_eq!(check(&all).is_err(), is_hit, "{given:?}");
        }
        let (one, other) = (epoch(owner(), last), epoch(owner(), u64::MAX));
        let all = [bring(0), take(&other, 5, 9), give(&one, 10, 11), used(12)];
        assert!(check(&all).is_ok(), "an issuer has one epoch");
        let again = [
            bring(0),
            take(&key, 5, 9),
            give(&key, 10, 11),
            take(&key, 12, 13),
            used(14),
        ];
        assert!(check(&again).is_err(), "it is taken back again");
    }
}
