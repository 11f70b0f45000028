//! Guests: an owner who takes back what it has granted, and outsiders who bring credentials and use them all the while.
//!
//! What is checked needs no look at a replica: an operation of a guest that succeeds rests on a credential that the guest had asked to bring
//! before the operation ended, and that nobody had been told was taken back before it began.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_credential::{Chain, ObjectId, Rights, Scope, Terms, VolumeId, Window};
use quorate_files::op::{PutCredential, Revoke, Revoked, Serial};
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

/// What the owner takes back, or a guest brings, when it does.
pub fn action(dice: &mut Dice, client: usize, clients: usize) -> Action {
    let grant = dice.below(GRANTS);
    if client != OWNER {
        let chain = chain(client, grant).to_bytes().into();
        return Action::PutCredential(PutCredential { chain });
    }
    let guest = 1 + dice.below(clients as u64 - 1) as usize;
    let links = u64::from(grant % 2 == 1);
    let issuer = match dice.below(1 + links) {
        0 => client_key(OWNER).public(),
        _ => middleman().public(),
    };
    let serial = serial(guest, grant);
    Action::Revoke(Revoke {
        what: Revoked::Serial(Serial { issuer, serial }),
        by: None,
        until: None,
    })
}

/// Whether a revocation hits a guest's credential.
fn hits(what: &Revoked, guest: usize, grant: u64) -> bool {
    let Revoked::Serial(of) = what else {
        return false;
    };
    let by_owner = of.issuer == client_key(OWNER).public();
    let by_middleman = grant % 2 == 1 && of.issuer == middleman().public();
    of.serial == serial(guest, grant) && (by_owner || by_middleman)
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

/// No success after a revocation, nor before a credential. Gives how many successes of guests there were, and how many revocations.
///
/// # Errors
/// An operation of a guest that succeeded without a credential.
pub fn check(operations: &[Operation]) -> Result<(u64, u64), Failure> {
    // When each revocation was known to be done, and when each credential was first asked to be brought.
    let mut revoked: Vec<(u64, Revoked)> = Vec::new();
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
            (Action::Revoke(op), Some((end, _))) => revoked.push((*end, op.what)),
            (Action::Revoke(_) | Action::Ping(_) | Action::Release(_), _) => {}
            (_, Some((end, _))) if operation.client != OWNER => used.push((operation, *end)),
            _ => {}
        }
    }
    for (operation, end) in &used {
        let guest = operation.client;
        let is_good = |grant: u64| {
            let is_brought = brought.get(&(guest, grant)).is_some_and(|at| at <= end);
            let mut before = revoked.iter().filter(|(at, _)| *at < operation.begun);
            is_brought && !before.any(|(_, what)| hits(what, guest, grant))
        };
        if !(0..GRANTS).any(is_good) {
            let what = format!("{operation} succeeded without a credential that held");
            return Err(Failure::new("revocation", what));
        }
    }
    Ok((used.len() as u64, revoked.len() as u64))
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
}
