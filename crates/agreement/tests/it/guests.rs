//! Clients that the group does not name: what they sign counts, nothing else does, and it is bounded.

use bytes::Bytes;
use quorate_agreement::{Agreement, Input, MAX_GUESTS, Memory, Output, Record, Rejected};
use quorate_wire::message::{AuthRequest, PeerMessage, Request};
use quorate_wire::{
    Authenticator, KeyPair, LogIndex, Mac, MacKey, ReplicaId, RequestNumber, Seq, SessionId,
};

use crate::support::*;

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
        auth: Authenticator::Signed(key.sign(&request.digest()).into()),
        request,
        replier: ReplicaId(0),
    }
}

fn proposal_of(seq: u64, requests: &[AuthRequest]) -> PeerMessage {
    PeerMessage::PrePrepare(pre_prepare(0, seq, requests))
}

/// How many requests a primary has proposed since the last look.
fn proposed(replica: &mut Agreement) -> usize {
    let batches = outputs(replica).into_iter().filter_map(|o| match o {
        Output::Broadcast(PeerMessage::PrePrepare(m)) => Some(m.batch.requests.len()),
        _ => None,
    });
    batches.sum()
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
    let gone = Input::GuestGone(guest_key(3).public());
    replica.handle(at(0), gone).unwrap();
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
        let gone = Input::GuestGone(guest_key(guest).public());
        primary.handle(at(0), gone).unwrap();
    }
    assert_eq!(told, MAX_GUESTS - 64);
    // Who was introduced stays known; and there is room for new ones again.
    come(&mut primary, 0).unwrap();
    from_client(&mut primary, 0, asked(0, 2)).unwrap();
    come(&mut primary, 2_000).unwrap();
    from_client(&mut primary, 1_000, asked(2_000, 1)).unwrap();
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
