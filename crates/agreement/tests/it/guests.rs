//! Clients that the group does not name: what they sign counts, nothing else does, and it is bounded.

use bytes::Bytes;
use quorate_agreement::{Agreement, Input, MAX_GUESTS, Memory, Millis, Output, Record, Rejected};
use quorate_wire::message::{AuthRequest, Commit, PeerMessage, PrePrepare, Prepare, Request};
use quorate_wire::{
    Authenticator, KeyPair, LogIndex, Mac, MacKey, ReplicaId, RequestNumber, Seq, SessionId, View,
};

use crate::support::*;

/// How many guests a primary introduces at once whose credentials were passed on.
const INTRODUCED: usize = 96;

fn guest_key(number: u32) -> KeyPair {
    let mut seed = [0xa5; 32];
    seed[..4].copy_from_slice(&number.to_le_bytes());
    KeyPair::from_seed(&seed)
}

/// What a guest asks, signed.
fn asked(guest: u32, number: u64) -> AuthRequest {
    let (key, op) = (guest_key(guest), Bytes::from_static(b"op"));
    let request = Request::new(key.public(), SessionId(1), RequestNumber(number), op);
    AuthRequest {
        auth: Authenticator::Signed(key.sign_in(&GROUP, &request.digest()).into()),
        request,
        replier: ReplicaId(0),
    }
}

fn proposal_of(seq: u64, requests: &[AuthRequest]) -> PeerMessage {
    PeerMessage::PrePrepare(pre_prepare(0, seq, requests))
}

/// What a primary has proposed since the last look.
fn proposals(replica: &mut Agreement) -> Vec<PrePrepare> {
    let batches = outputs(replica).into_iter().filter_map(|o| match o {
        Output::Broadcast(PeerMessage::PrePrepare(m)) => Some(m),
        _ => None,
    });
    batches.collect()
}

/// How many requests that is.
fn proposed(replica: &mut Agreement) -> usize {
    let batches = proposals(replica);
    batches.iter().map(|m| m.batch.requests.len()).sum()
}

/// All that a primary has to propose is shown to a backup, and commits at both. How many requests there were, and of how many of them the backup
/// has accepted the proposal.
fn order(primary: &mut Agreement, backup: &mut Agreement, ms: Millis) -> (usize, usize) {
    let (mut proposed, mut accepted) = (0, 0);
    let sync = |replica: &mut Agreement| {
        let _ = replica.handle(at(ms), Input::Persisted(LogIndex(1 << 40)));
    };
    loop {
        let news = proposals(primary);
        if news.is_empty() {
            return (proposed, accepted);
        }
        for m in news {
            let (view, seq, digest) = (m.view, m.seq, m.batch.digest());
            let (leads, requests) = (quorum().primary(view).0, m.batch.requests.len());
            proposed += requests;
            from_peer(backup, ms, leads, PeerMessage::PrePrepare(m)).unwrap();
            accepted += if accepts(backup) { requests } else { 0 };
            for replica in [&mut *primary, &mut *backup] {
                for from in 0..4 {
                    let vote = PeerMessage::Prepare(Prepare { view, seq, digest });
                    let _ = from_peer(replica, ms, from, vote);
                }
                sync(replica);
                for from in 0..4 {
                    let vote = PeerMessage::Commit(Commit { view, seq, digest });
                    let _ = from_peer(replica, ms, from, vote);
                }
                sync(replica);
            }
        }
    }
}

fn leave(replica: &mut Agreement, ms: Millis, guest: u32) {
    let gone = Input::GuestGone(guest_key(guest).public());
    replica.handle(at(ms), gone).unwrap();
}

/// Whether a backup has accepted a proposal since the last look.
fn accepts(replica: &mut Agreement) -> bool {
    let records = written(replica);
    let accepted = |(_, r): &(LogIndex, Record)| matches!(r, Record::PrePrepared(_));
    records.iter().any(accepted)
}

fn come(replica: &mut Agreement, guest: u32) -> Result<(), Rejected> {
    let key = MacKey([7; 32]);
    replica.handle(at(0), Input::ClientKey(guest_key(guest).public(), key))
}

/// What a guest has signed is ordered; what it has not, or has signed wrongly, is not taken, by the primary or by others.
#[test]
fn a_guest_signs_what_it_asks() {
    let mut primary = fresh_for_guests(0);
    come(&mut primary, 1).unwrap();
    let mut unsigned = asked(1, 1);
    unsigned.auth = Authenticator::Macs(vec![Mac([1; 16]); 4]);
    let taken = from_client(&mut primary, 0, unsigned.clone());
    assert_eq!(taken, Err(Rejected::Unsigned));
    let mut wrong = asked(1, 1);
    wrong.auth = asked(2, 1).auth;
    let taken = from_client(&mut primary, 0, wrong);
    assert_eq!(taken, Err(Rejected::BadAuthentication));
    assert_eq!(proposed(&mut primary), 0);
    from_client(&mut primary, 0, asked(1, 1)).unwrap();
    assert_eq!(proposed(&mut primary), 1);

    let mut backup = fresh_for_guests(1);
    come(&mut backup, 1).unwrap();
    let taken = from_client(&mut backup, 0, unsigned);
    assert_eq!(taken, Err(Rejected::Unsigned));
    from_client(&mut backup, 0, asked(1, 1)).unwrap();
}

/// A group without an owner has no guests.
#[test]
fn without_an_owner_there_are_none() {
    let mut replica = fresh(0);
    assert_eq!(come(&mut replica, 1), Err(Rejected::BadAuthentication));
    let proposal = proposal_of(1, &[asked(1, 1)]);
    let mut backup = fresh(1);
    from_peer(&mut backup, 0, 0, proposal).unwrap();
    assert!(!accepts(&mut backup));
}

/// A backup without a link to a guest takes its signature from the proposal; a wrong one it does not.
#[test]
fn a_proposal_introduces_a_guest() {
    let mut backup = fresh_for_guests(1);
    let proposal = proposal_of(1, &[asked(1, 1)]);
    from_peer(&mut backup, 0, 0, proposal).unwrap();
    assert!(accepts(&mut backup));

    let mut backup = fresh_for_guests(1);
    let mut wrong = asked(1, 1);
    wrong.auth = asked(2, 1).auth;
    let proposal = proposal_of(1, &[wrong]);
    from_peer(&mut backup, 0, 0, proposal).unwrap();
    assert!(!accepts(&mut backup));
}

/// A faulty primary makes up keys: from a certain number on nothing that it proposes of new ones counts, memory is bounded, and guests that
/// are known are served.
#[test]
fn made_up_guests_are_bounded() {
    let mut backup = fresh_for_guests(1);
    come(&mut backup, 7).unwrap();
    let mut accepted = 0;
    for place in 0..100 {
        let batch: Vec<AuthRequest> = (0..8).map(|at| asked(1_000 + 8 * place + at, 1)).collect();
        let proposal = proposal_of(u64::from(place) + 1, &batch);
        from_peer(&mut backup, 0, 0, proposal).unwrap();
        accepted += usize::from(accepts(&mut backup));
    }
    assert_eq!(accepted, 2 * MAX_GUESTS / 8);
    from_peer(&mut backup, 0, 0, proposal_of(101, &[asked(7, 1)])).unwrap();
    assert!(accepts(&mut backup));
    let bound = Memory::bound(quorum(), CLIENTS.len());
    assert!(backup.memory().rest <= bound.rest);
}

/// So many have a link at once; whose place is given away is forgotten.
#[test]
fn links_of_guests_are_bounded() {
    let mut replica = fresh_for_guests(0);
    for guest in 0..MAX_GUESTS as u32 {
        come(&mut replica, guest).unwrap();
    }
    let one_more = MAX_GUESTS as u32;
    assert_eq!(come(&mut replica, one_more), Err(Rejected::TooOften));
    leave(&mut replica, 0, 3);
    come(&mut replica, one_more).unwrap();
    // What is passed on of one that was forgotten is a stranger's.
    let relayed = PeerMessage::Request(asked(3, 1));
    let taken = from_peer(&mut replica, 0, 2, relayed);
    assert_eq!(taken, Err(Rejected::BadAuthentication));
    let relayed = PeerMessage::Request(asked(4, 1));
    from_peer(&mut replica, 0, 2, relayed).unwrap();
}

/// Guests who come and go at the primary alone, each with another key: it takes from fewer new ones than backups take from it.
#[test]
fn a_primary_introduces_no_more_than_backups_believe() {
    let mut primary = fresh_for_guests(0);
    let mut told = 0;
    for guest in 0..1_000 {
        come(&mut primary, guest).unwrap();
        match from_client(&mut primary, 0, asked(guest, 1)) {
            Ok(()) => told += 1,
            refused => assert_eq!(refused, Err(Rejected::TooOften)),
        }
        leave(&mut primary, 0, guest);
    }
    assert_eq!(told, INTRODUCED);
    // Who was introduced stays known; and there is room for new ones again.
    come(&mut primary, 0).unwrap();
    from_client(&mut primary, 0, asked(0, 2)).unwrap();
    come(&mut primary, 2_000).unwrap();
    from_client(&mut primary, 1_000, asked(2_000, 1)).unwrap();
}

/// More guests than a backup believes a primary at once come to all replicas, have something ordered and leave; later they come back to the primary
/// alone. Those whom it takes without counting are known to the backup, or few enough.
#[test]
fn who_has_left_is_known_to_backups_as_to_the_primary() {
    let (mut primary, mut backup) = (fresh_for_guests(0), fresh_for_guests(1));
    let (all, at_once) = (704, 8);
    let mut ms = 0;
    for first in (0..all).step_by(at_once as usize) {
        ms += 4_000;
        for guest in first..first + at_once {
            come(&mut primary, guest).unwrap();
            come(&mut backup, guest).unwrap();
            from_client(&mut backup, ms, asked(guest, 1)).unwrap();
            from_client(&mut primary, ms, asked(guest, 1)).unwrap();
        }
        let eight = at_once as usize;
        assert_eq!(order(&mut primary, &mut backup, ms), (eight, eight));
        for guest in first..first + at_once {
            leave(&mut primary, ms, guest);
            leave(&mut backup, ms, guest);
        }
    }
    let mut taken = 0;
    for guest in 0..all {
        come(&mut primary, guest).unwrap();
        taken += usize::from(from_client(&mut primary, ms, asked(guest, 2)).is_ok());
        leave(&mut primary, ms, guest);
    }
    assert!(taken >= INTRODUCED, "{taken}");
    let ordered = order(&mut primary, &mut backup, ms);
    assert_eq!(ordered, (taken, taken));
}

/// What guests have sent to a backup alone, who have left since, or with a wrong signature, is not proposed when that one becomes the primary.
#[test]
fn a_new_primary_proposes_nothing_that_guests_left_with_a_backup() {
    let mut next = fresh_for_guests(1);
    for guest in 0..1_000 {
        come(&mut next, guest).unwrap();
        from_client(&mut next, 0, asked(guest, 1)).unwrap();
        leave(&mut next, 0, guest);
    }
    come(&mut next, 1_000).unwrap();
    let mut wrong = asked(1_000, 1);
    wrong.auth = asked(1, 1).auth;
    from_client(&mut next, 0, wrong).unwrap();
    for from in [2, 3] {
        let change = PeerMessage::ViewChange(view_change(from, 1));
        from_peer(&mut next, 0, from, change).unwrap();
    }
    let _ = next.handle(at(0), Input::Persisted(LogIndex(1 << 40)));
    let standing = next.standing();
    assert_eq!((standing.view, standing.active), (View(1), true));
    assert_eq!(proposed(&mut next), 0);
    // They repeat it, and then as many are introduced as by any primary.
    let mut taken = 0;
    for guest in 0..1_000 {
        come(&mut next, guest).unwrap();
        taken += usize::from(from_client(&mut next, 0, asked(guest, 1)).is_ok());
        leave(&mut next, 0, guest);
    }
    assert_eq!(taken, INTRODUCED);
}

/// Whoever may pass on can have key after key come; that takes nothing from those to whom the owner itself has granted something, and the backups
/// believe the primary of all of them.
#[test]
fn the_owners_guests_are_introduced_whatever_others_do() {
    let (mut primary, mut backup) = (fresh_for_guests(0), fresh_for_guests(1));
    let (mut churned, mut own) = (0, 0);
    for guest in 0..1_000 {
        let ms = 20 * Millis::from(guest);
        come(&mut primary, guest).unwrap();
        churned += usize::from(from_client(&mut primary, ms, asked(guest, 1)).is_ok());
        leave(&mut primary, ms, guest);
        if guest >= 900 {
            let guest = 10_000 + guest;
            let is_owners = Input::Guest(guest_key(guest).public(), true);
            primary.handle(at(ms), is_owners).unwrap();
            come(&mut primary, guest).unwrap();
            own += usize::from(from_client(&mut primary, ms, asked(guest, 1)).is_ok());
        }
        let (proposed, accepted) = order(&mut primary, &mut backup, ms);
        assert_eq!(proposed, accepted);
    }
    assert_eq!(own, 100);
    assert!((INTRODUCED..200).contains(&churned), "{churned}");
}

/// What a guest waits for is no claim: however long that takes, its primary stays.
#[test]
fn a_guest_accuses_nobody() {
    let mut backup = fresh_for_guests(1);
    come(&mut backup, 1).unwrap();
    from_client(&mut backup, 0, asked(1, 1)).unwrap();
    wait(&mut backup, 0, 60_000);
    let standing = backup.standing();
    assert!(standing.active && standing.view.0 == 0 && standing.executed == Seq(0));
}
