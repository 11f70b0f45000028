//! Clients whose MACs are wrong for some replicas, or were made to look so, and replicas that help them.

use crate::support::*;
use bytes::Bytes;
use quorate_agreement::{
    Agreement, CLIENT_KEYS_LAST_MS, Checks, Input, Millis, Output, Record, Rejected,
};
use quorate_wire::message::{AuthRequest, Commit, PeerMessage, PrePrepare, Prepare};
use quorate_wire::{Authenticator, Mac, MacKey, Seq, View};

/// The time at which a replica knows whose fault a wrong MAC is.
const LATE: Millis = 40_000;

fn op(number: u64) -> AuthRequest {
    signed_request(number, Bytes::from_static(b"op"))
}

fn unsigned(number: u64) -> AuthRequest {
    request(number, Bytes::from_static(b"op"))
}

/// The primary of view 0 passes on a request with wrong MACs: its client's doing, or its own.
fn spoil(replica: &mut Agreement, ms: Millis) {
    spoil_of(replica, ms, 1, unsigned(1));
}

/// The same at a place, of some client.
fn spoil_of(replica: &mut Agreement, ms: Millis, place: u64, mut bad: AuthRequest) {
    bad.auth = Authenticator::Macs(vec![Mac([0xee; 16]); 4]);
    let proposal = PeerMessage::PrePrepare(pre_prepare(ms, place, &[bad]));
    from_peer(replica, ms, 0, proposal).unwrap();
}

/// Replica 1 leads view 1.
fn lead(replica: &mut Agreement, ms: Millis) {
    for from in [2, 3] {
        let change = PeerMessage::ViewChange(view_change(from, 1));
        from_peer(replica, ms, from, change).unwrap();
    }
    sync(replica, ms);
    let standing = replica.standing();
    assert_eq!((standing.view, standing.active), (View(1), true));
}

/// A replica with a link to the client, which suspects it and leads.
fn wary() -> Agreement {
    let mut replica = fresh(1);
    replica
        .handle(at(0), Input::ClientKey(client(), link_key(1)))
        .unwrap();
    wait(&mut replica, 0, LATE);
    spoil(&mut replica, LATE);
    lead(&mut replica, LATE);
    replica
}

fn forward(replica: &mut Agreement, request: AuthRequest) -> Result<(), Rejected> {
    from_peer(replica, LATE, 3, PeerMessage::Request(request))
}

/// What a primary has proposed since the last look.
fn proposed(replica: &mut Agreement) -> Vec<PrePrepare> {
    let proposals = outputs(replica).into_iter().filter_map(|o| match o {
        Output::Broadcast(PeerMessage::PrePrepare(m)) => Some(m),
        _ => None,
    });
    proposals.collect()
}

/// The Big MAC attack (Aardvark, NSDI 2009): whoever was shown a MAC that is wrong takes only signed requests of that client,
/// once it is the primary.
#[test]
fn wrong_macs_put_a_client_on_signed_terms() {
    let mut replica = fresh(1);
    let late = LATE;
    wait(&mut replica, 0, late);
    spoil(&mut replica, late);
    // As a backup it takes them all the same: its word is not what decides.
    from_client(&mut replica, late, request(2, Bytes::from_static(b"op"))).unwrap();
    lead(&mut replica, late);
    let taken = from_client(&mut replica, late, request(3, Bytes::from_static(b"op")));
    assert_eq!(taken, Err(Rejected::Unsigned));
    from_client(&mut replica, late, op(3)).unwrap();
    let taken = from_client(
        &mut replica,
        late + 70_000,
        request(4, Bytes::from_static(b"op")),
    );
    assert_eq!(taken, Ok(()));
}

/// Whether a replica that has been a backup for so long would take MACs of the client as the next primary.
fn takes_macs(replica: &Agreement, ms: Millis) -> bool {
    let mut replica = replica.clone();
    lead(&mut replica, ms);
    match from_client(&mut replica, ms, unsigned(9_000)) {
        Ok(()) => true,
        Err(Rejected::Unsigned) => false,
        Err(other) => panic!("{other:?}"),
    }
}

/// What others can't tell to be its client's, its primary can't see: it proposes that once, and when it leads again only if it is signed.
#[test]
fn a_primary_proposes_once_what_others_refuse() {
    let mut primary = fresh(0);
    let link = Input::ClientKey(client(), link_key(0));
    primary.handle(at(0), link).unwrap();
    from_client(&mut primary, LATE, unsigned(1)).unwrap();
    from_client(&mut primary, LATE, op(2)).unwrap();
    let first = proposed(&mut primary);
    let first: Vec<_> = first.iter().flat_map(|m| &m.batch.requests).collect();
    assert_eq!(first, [&unsigned(1).request.digest()]);
    // Nobody votes for it. View 4 is its own again.
    for from in [1, 2, 3] {
        let change = PeerMessage::ViewChange(view_change(from, 4));
        let _ = from_peer(&mut primary, LATE, from, change);
    }
    sync(&mut primary, LATE);
    let standing = primary.standing();
    assert_eq!((standing.view, standing.active), (View(4), true));
    let again = proposed(&mut primary);
    let again: Vec<_> = again.iter().flat_map(|m| &m.batch.requests).collect();
    assert_eq!(again, [&op(2).request.digest()]);
    let taken = from_client(&mut primary, LATE, unsigned(3));
    assert_eq!(taken, Err(Rejected::Unsigned));
    from_client(&mut primary, LATE, op(1)).unwrap();
    from_client(&mut primary, LATE + 60_000, unsigned(4)).unwrap();
}

/// Who sends wrong MACs again when its time is over must sign for twice as long, up to eight minutes; who sends none for as long as that begins anew.
#[test]
fn who_comes_again_signs_for_longer() {
    let minute = 60_000;
    let mut replica = fresh(1);
    let (mut now, mut place) = (LATE, 0);
    let mut spoil_again = |replica: &mut Agreement, now| {
        place += 1;
        spoil_of(replica, now, place, unsigned(place));
    };
    for minutes in [1, 2, 4, 8, 8] {
        spoil_again(&mut replica, now);
        assert!(
            !takes_macs(&replica, now + minutes * minute - 1),
            "{minutes}"
        );
        now += minutes * minute;
        assert!(takes_macs(&replica, now), "{minutes}");
    }
    now += 8 * minute;
    spoil_again(&mut replica, now);
    assert!(!takes_macs(&replica, now + minute - 1));
    assert!(takes_macs(&replica, now + minute));
}

/// Where many clients send wrong MACs, all must sign for a while, also those that never did: each would else cost a view. Few do not bring
/// that about, nor do those of long ago, nor what comes while this replica has just started and may lack keys.
#[test]
fn wrong_macs_of_many_put_all_on_signed_terms() {
    for (clients, apart, began, all) in [
        (16, 1_000, LATE, true),
        (15, 1_000, LATE, false),
        (24, 4_000, LATE, false),
        (16, 10, 1_000, false),
    ] {
        let mut replica = fresh_with(1, |config| {
            let more = (100..100 + clients).map(|seed| key(seed).public());
            config.clients.extend(more);
        });
        let mut now = began;
        for (place, client) in (1..).zip(100..100 + clients) {
            now = began + place * apart;
            let bad = request_of(client, 1, Bytes::from_static(b"op"));
            spoil_of(&mut replica, now, place, bad);
        }
        let what = format!("{clients} {apart} {began}");
        assert_eq!(!takes_macs(&replica, now), all, "{what}");
        assert!(takes_macs(&replica, now + 60_000), "{what}");
    }
}

/// A primary makes up clients: nobody has to sign for that, and none of them takes the place of one that is of the group.
#[test]
fn who_is_made_up_is_no_suspect() {
    let mut replica = fresh(1);
    for place in 1..=200 {
        let stranger = (place % 100) as u8 + 100;
        spoil_of(
            &mut replica,
            LATE,
            place,
            request_of(stranger, place, Bytes::new()),
        );
    }
    assert!(takes_macs(&replica, LATE));
    spoil_of(&mut replica, LATE, 201, unsigned(201));
    assert!(!takes_macs(&replica, LATE));
}

/// Who must sign already and sends wrong MACs all the same does not have all others sign for ever.
#[test]
fn known_suspects_are_not_counted_again() {
    let mut replica = fresh_with(1, |config| {
        config
            .clients
            .extend((100..116).map(|seed| key(seed).public()));
    });
    let (mut now, mut place) = (LATE, 0);
    for _round in 0..8 {
        for client in 100..116 {
            place += 1;
            let bad = request_of(client, place, Bytes::from_static(b"op"));
            spoil_of(&mut replica, now, place, bad);
        }
        now += 7_000;
    }
    assert!(!takes_macs(&replica, LATE + 59_000));
    assert!(takes_macs(&replica, LATE + 60_000));
}

/// A proposal with requests of both kinds: what is signed is checked together, whatever carries MACs or is a stranger's; a wrong signature
/// takes nothing from the others but that.
#[test]
fn signatures_beside_macs_are_checked_together() {
    let accepted = |requests: &[AuthRequest]| {
        let mut replica = fresh(1);
        let key = Input::ClientKey(client(), link_key(1));
        replica.handle(at(0), key).unwrap();
        let proposal = PeerMessage::PrePrepare(pre_prepare(0, 1, requests));
        from_peer(&mut replica, 0, 0, proposal).unwrap();
        let voted = |o: &Output| matches!(o, Output::Persist(_, Record::PrePrepared(_)));
        let is_accepted = outputs(&mut replica).iter().any(voted);
        (is_accepted, replica.checks())
    };
    let mixed = [op(1), unsigned(2), op(3), unsigned(4), op(5)];
    let (alone, together) = (0, 3);
    assert_eq!(accepted(&mixed), (true, Checks { alone, together }));

    let mut bad_mac = mixed.clone();
    bad_mac[1].auth = Authenticator::Macs(vec![Mac([0xee; 16]); 4]);
    assert_eq!(accepted(&bad_mac), (false, Checks { alone, together }));

    let mut forged = mixed.clone();
    forged[2].auth = op(4).auth;
    let alone = 3;
    assert_eq!(accepted(&forged), (false, Checks { alone, together }));

    let mut stranger = request_of(99, 1, Bytes::from_static(b"op"));
    let signature = key(99).sign_in(&GROUP, &stranger.request.digest());
    stranger.auth = Authenticator::Signed(signature.into());
    let beside = [op(1), stranger, op(3)];
    let (alone, together) = (0, 2);
    assert_eq!(accepted(&beside), (false, Checks { alone, together }));
}

/// Who must sign what it asks must do so rightly: a signature that is wrong would have each view's primary propose what nobody votes for.
#[test]
fn a_suspect_signs_rightly() {
    let mut replica = fresh(1);
    let late = LATE;
    wait(&mut replica, 0, late);
    spoil(&mut replica, late);
    lead(&mut replica, late);
    let mut forged = op(3);
    forged.auth = op(4).auth;
    let taken = from_client(&mut replica, late, forged);
    assert_eq!(taken, Err(Rejected::BadAuthentication));
    assert_eq!(from_client(&mut replica, late, op(3)), Ok(()));
}

/// A backup that is in league with such a client passes on what is right for the primary alone: that needs a signature as well.
#[test]
fn a_backup_vouches_for_no_suspect() {
    let mut replica = wary();
    assert_eq!(forward(&mut replica, unsigned(2)), Err(Rejected::Unsigned));
    assert_eq!(forward(&mut replica, op(2)), Ok(()));
    assert_eq!(proposed(&mut replica).len(), 1);
}

/// What a suspect has sent to one backup alone, without a signature, is not proposed when that one becomes the primary.
#[test]
fn what_a_suspect_left_is_not_proposed() {
    for is_suspect in [false, true] {
        let mut replica = fresh(1);
        wait(&mut replica, 0, LATE);
        from_client(&mut replica, LATE, unsigned(2)).unwrap();
        from_client(&mut replica, LATE, op(3)).unwrap();
        if is_suspect {
            spoil(&mut replica, LATE);
        }
        lead(&mut replica, LATE);
        let batches = proposed(&mut replica);
        let digests: Vec<_> = batches.iter().flat_map(|m| &m.batch.requests).collect();
        let has = |r: AuthRequest| digests.contains(&&r.request.digest());
        assert_eq!((has(unsigned(2)), has(op(3))), (!is_suspect, true));
    }
}

/// A primary spoils what a correct client sent it, so that the others suspect that one. It signs what it asks then, and the next primary
/// takes all of that; of what is signed wrongly little is looked at.
#[test]
fn who_was_framed_is_served_in_full() {
    let mut replica = wary();
    let mut taken = 0;
    for number in 1..=1_000 {
        let ms = LATE + number;
        taken += u64::from(from_client(&mut replica, ms, op(10 + number)).is_ok());
        for m in proposed(&mut replica) {
            let (view, seq, digest) = (m.view, m.seq, m.batch.digest());
            sync(&mut replica, ms);
            for from in [0, 2, 3] {
                let vote = PeerMessage::Prepare(Prepare { view, seq, digest });
                let _ = from_peer(&mut replica, ms, from, vote);
            }
            sync(&mut replica, ms);
            for from in [0, 2, 3] {
                let vote = PeerMessage::Commit(Commit { view, seq, digest });
                let _ = from_peer(&mut replica, ms, from, vote);
            }
        }
    }
    assert_eq!(taken, 1_000);
    let forged = |number: u64| AuthRequest {
        auth: op(1).auth,
        ..op(number)
    };
    let mut looked_at = 0;
    for number in 2_000..3_000 {
        let taken = from_client(&mut replica, LATE + 2_000, forged(number));
        looked_at += u32::from(taken == Err(Rejected::BadAuthentication));
        assert!(taken.is_err());
    }
    assert!((64..=128).contains(&looked_at), "{looked_at}");
}

/// Also where the link with the client is new, or there is none in a replica that has just started, which may be without the key: but then for no longer than
/// that can be so.
#[test]
fn whom_it_does_not_know_yet_a_replica_suspects_for_a_while() {
    for (linked_at, spoilt_at, until) in [
        (Some(0), 4_000, 64_000),
        (Some(2_000), 4_000, 5_000),
        (None, 4_000, 10_000),
        (None, 12_000, 72_000),
    ] {
        let mut replica = fresh(1);
        if let Some(ms) = linked_at {
            wait(&mut replica, 0, ms);
            let link = Input::ClientKey(client(), link_key(1));
            replica.handle(at(ms), link).unwrap();
        }
        wait(&mut replica, linked_at.unwrap_or(0), spoilt_at);
        spoil(&mut replica, spoilt_at);
        lead(&mut replica, spoilt_at);
        for (number, ms) in (2..).zip([spoilt_at, until - 1]) {
            let taken = from_client(&mut replica, ms, unsigned(number));
            let what = format!("{linked_at:?} {spoilt_at} {ms}");
            assert_eq!(taken, Err(Rejected::Unsigned), "{what}");
        }
        from_client(&mut replica, until, unsigned(4)).unwrap();
    }
}

/// A faulty backup passes on what was executed long ago: none of it is ordered again, but for what its client has signed, a little of it,
/// since a read may have to be made anew.
#[test]
fn what_was_executed_is_not_ordered_again() {
    let mut primary = fresh(0);
    let link = Input::ClientKey(client(), link_key(0));
    primary.handle(at(0), link).unwrap();
    for number in 1..=100 {
        let request = if number % 2 == 0 {
            op(number)
        } else {
            unsigned(number)
        };
        from_client(&mut primary, 1, request).unwrap();
    }
    let (mut executed, mut again) = (Seq(0), 0);
    for round in 0..100 {
        for m in proposed(&mut primary) {
            let (view, seq, digest) = (m.view, m.seq, m.batch.digest());
            sync(&mut primary, 1);
            for from in [1, 2, 3] {
                let vote = PeerMessage::Prepare(Prepare { view, seq, digest });
                let _ = from_peer(&mut primary, 1, from, vote);
            }
            sync(&mut primary, 1);
            for from in [1, 2, 3] {
                let vote = PeerMessage::Commit(Commit { view, seq, digest });
                let _ = from_peer(&mut primary, 1, from, vote);
            }
        }
        if round < 50 {
            executed = primary.standing().executed;
            continue;
        }
        for number in 1..=100 {
            let request = if number % 2 == 0 {
                op(number)
            } else {
                unsigned(number)
            };
            let taken = from_peer(&mut primary, 1, 3, PeerMessage::Request(request));
            assert!(taken.is_err() || number % 2 == 0, "{number}");
            again += u32::from(taken.is_ok());
        }
    }
    assert!(executed > Seq(1));
    assert!(again <= 16, "{again}");
}

/// The key of a client's link counts for what others pass on for a while after the link has gone, as long as the configuration says, and then no longer.
#[test]
fn a_key_does_not_outlive_its_link_for_long() {
    let gone_at = 100_000;
    for (lasts, later, counts) in [
        (CLIENT_KEYS_LAST_MS, 29_950, true),
        (CLIENT_KEYS_LAST_MS, 30_000, false),
        (14_000, 13_950, true),
        (14_000, 14_000, false),
    ] {
        let mut replica = fresh_with(0, |config| config.client_keys_last_ms = lasts);
        let key = Input::ClientKey(client(), link_key(0));
        replica.handle(at(0), key).unwrap();
        wait(&mut replica, 0, gone_at);
        let gone = Input::ClientKeyGone(client(), link_key(0));
        replica.handle(at(gone_at), gone).unwrap();
        wait(&mut replica, gone_at, gone_at + later);
        let passed_on = PeerMessage::Request(unsigned(1));
        let taken = from_peer(&mut replica, gone_at + later, 3, passed_on);
        let wanted = match counts {
            true => Ok(()),
            false => Err(Rejected::BadAuthentication),
        };
        assert_eq!(taken, wanted, "{later} ms after, where it lasts {lasts} ms");
    }
}

/// Who comes and goes all the time with a client's key takes the key of none of its links that stand.
#[test]
fn keys_of_links_that_have_gone_make_room() {
    let mut replica = fresh(0);
    let key = Input::ClientKey(client(), link_key(0));
    replica.handle(at(0), key).unwrap();
    for number in 0..100 {
        let key = MacKey([100 + number; 32]);
        let link = Input::ClientKey(client(), key.clone());
        replica.handle(at(1), link).unwrap();
        let gone = Input::ClientKeyGone(client(), key);
        replica.handle(at(1), gone).unwrap();
    }
    let passed_on = PeerMessage::Request(unsigned(1));
    from_peer(&mut replica, 2, 3, passed_on).unwrap();
}
