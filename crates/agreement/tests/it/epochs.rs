//! Replicas with key holders: what is signed under keys that are old by now, and what was said under them.

use crate::support::*;
use quorate_agreement::{Agreement, Input, Output, Record, Rejected};
use quorate_wire::message::{
    Batch, Checkpoint, Commit, Committed, NewView, PeerMessage, Prepare, SignedNewView,
    SignedViewChange,
};
use quorate_wire::{
    Digest, EpochCertificate, EpochStatus, KeyPair, ReplicaId, Seq, Signer, Time, View,
};

/// The key of a replica in its epoch of this number.
fn signer(replica: u8, counter: u64) -> Signer {
    let key = KeyPair::from_seed(&[100 + 10 * replica + counter as u8; 32]);
    let (me, identity) = (ReplicaId(replica), identity(replica));
    let certificate = EpochCertificate::sign(&identity, GROUP, me, counter, key.public());
    Signer::of_epoch(key, certificate)
}

/// Replica 0, which starts with its epoch of number 1.
fn started(records: Vec<Record>) -> Agreement {
    let mut replica = restarted_with_holder(signer(0, 1), records);
    let records = written(&mut replica);
    if let Some((last, _)) = records.last() {
        let _ = replica.handle(at(0), Input::Persisted(*last));
    }
    replica
}

fn epoch(replica: u8, counter: u64, began: Option<(View, Digest)>) -> PeerMessage {
    let signer = signer(replica, counter);
    let certificate = signer.certificate().expect("it has one").clone();
    PeerMessage::Epoch(EpochStatus { certificate, began })
}

/// All others take another key, in which they are by then.
fn renew_all(replica: &mut Agreement, counter: u64) {
    for from in 1..4 {
        from_peer(replica, 1, from, epoch(from, counter, None)).unwrap();
    }
}

fn change(replica: u8, view: u64, counter: u64) -> SignedViewChange {
    let body = view_change_body(replica, view);
    SignedViewChange::sign(body, &signer(replica, counter)).into_inner()
}

fn tell(to: &mut Agreement, m: SignedViewChange) -> Result<(), Rejected> {
    // Whoever likes may pass it on.
    from_peer(to, 2, 3, PeerMessage::ViewChange(m))
}

/// NEW-VIEW of view 1 by its primary, in that one's epoch of this number.
fn start(proofs: &[SignedViewChange], counter: u64) -> SignedNewView {
    let body = NewView {
        view: View(1),
        proofs: named(proofs),
        start: (Seq(0), GENESIS),
        selection: vec![],
    };
    SignedNewView::sign(body, &signer(1, counter)).into_inner()
}

fn offer(to: &mut Agreement, m: &SignedNewView, proofs: &[SignedViewChange]) -> View {
    let _ = from_peer(to, 3, 2, PeerMessage::NewView(m.clone()));
    for proof in proofs {
        let _ = tell(to, proof.clone());
    }
    match to.standing().active {
        true => to.standing().view,
        false => View(0),
    }
}

fn own_changes(out: &[Output]) -> Vec<SignedViewChange> {
    let changes = out.iter().filter_map(|o| match o {
        Output::Broadcast(PeerMessage::ViewChange(m)) => Some(m.clone()),
        _ => None,
    });
    changes.collect()
}

/// What is signed with the key that lasts, or under a certificate before the last but one, is nobody's word.
#[test]
fn a_stolen_key_signs_nothing_later() {
    let mut replica = started(vec![]);
    assert_eq!(
        tell(&mut replica, view_change(2, 1)),
        Err(Rejected::BadAuthentication)
    );
    renew_all(&mut replica, 1);
    assert_eq!(tell(&mut replica, change(2, 1, 1)), Ok(()));
    renew_all(&mut replica, 3);
    assert_eq!(tell(&mut replica, change(2, 2, 1)), Err(Rejected::OldEpoch));
    assert_eq!(tell(&mut replica, change(2, 2, 2)), Ok(()));
    let bad = start(&[], 1);
    let taken = from_peer(&mut replica, 3, 1, PeerMessage::NewView(bad));
    assert_eq!(taken, Err(Rejected::OldEpoch));
    assert_eq!(
        from_peer(&mut replica, 3, 2, epoch(2, 1, None)),
        Err(Rejected::OldEpoch)
    );
    assert_eq!(
        from_peer(&mut replica, 3, 1, epoch(2, 9, None)),
        Err(Rejected::Malformed)
    );
}

/// A faulty primary puts a forged VIEW-CHANGE into its NEW-VIEW: without right ones of 2f+1 the view does not begin.
#[test]
fn no_view_begins_with_a_forged_word() {
    let mut replica = started(vec![]);
    renew_all(&mut replica, 3);
    let forged = [change(1, 1, 3), change(2, 1, 1), change(3, 1, 3)];
    assert_eq!(offer(&mut replica, &start(&forged, 3), &forged), View(0));
    let mut replica = started(vec![]);
    renew_all(&mut replica, 3);
    let right = [change(1, 1, 3), change(2, 1, 2), change(3, 1, 3)];
    assert_eq!(offer(&mut replica, &start(&right, 3), &right), View(1));
}

/// Who missed the beginning of a view takes it when f+1 others say, under their keys of now, that it began so.
#[test]
fn who_lags_is_told_by_f_and_one() {
    let proofs = [change(1, 1, 1), change(2, 1, 1), change(3, 1, 1)];
    let new_view = start(&proofs, 1);
    let began = Some((View(1), new_view.digest()));
    let mut replica = started(vec![]);
    renew_all(&mut replica, 3);
    assert_eq!(offer(&mut replica, &new_view, &proofs), View(0));
    from_peer(&mut replica, 4, 1, epoch(1, 3, began)).unwrap();
    assert_eq!(offer(&mut replica, &new_view, &proofs), View(0));
    // Another one said so once, under a key that has passed since.
    from_peer(&mut replica, 4, 3, epoch(3, 3, began)).unwrap();
    from_peer(&mut replica, 4, 3, epoch(3, 4, None)).unwrap();
    assert_eq!(offer(&mut replica, &new_view, &proofs), View(0));
    let other = Some((View(1), Digest::ZERO));
    from_peer(&mut replica, 4, 3, epoch(3, 4, other)).unwrap();
    assert_eq!(offer(&mut replica, &new_view, &proofs), View(0));
    from_peer(&mut replica, 4, 2, epoch(2, 3, began)).unwrap();
    assert_eq!(offer(&mut replica, &new_view, &proofs), View(1));
    // What is vouched for is that NEW-VIEW, and no other one with it.
    let out = outputs(&mut replica);
    let entered = |o: &Output| matches!(o, Output::Persist(_, Record::Entered(_)));
    assert!(out.iter().any(entered));
}

/// Who takes another key signs its VIEW-CHANGE again, at once and after a restart; the others take the newer in place of the older.
#[test]
fn who_renews_signs_again() {
    let mut replica = started(vec![]);
    renew_all(&mut replica, 1);
    for from in [2, 3] {
        tell(&mut replica, change(from, 1, 1)).unwrap();
    }
    persist_up_to(&mut replica, 3, |r| matches!(r, Record::Changing(_)));
    let first = own_changes(&outputs(&mut replica));
    assert_eq!(first[0].signature.counter(), Some(1));
    let renewed = Input::Renewed(Box::new(signer(0, 2)));
    replica.handle(at(4), renewed).unwrap();
    let again = own_changes(&outputs(&mut replica));
    assert_eq!(again[0].signature.counter(), Some(2));
    assert_eq!(again[0].digest(), first[0].digest());

    let records = vec![Record::Changing(first[0].clone())];
    let mut restarted = restarted_with_holder(signer(0, 3), records);
    let again = own_changes(&outputs(&mut restarted));
    assert_eq!(again[0].signature.counter(), Some(3));
    assert_eq!(again[0].digest(), first[0].digest());

    let mut other = started(vec![]);
    for counter in 1..=4 {
        assert_eq!(tell(&mut other, change(2, 1, counter)), Ok(()));
        let fetched = ask_for(&mut other, change(2, 1, 1).digest());
        assert_eq!(fetched.signature.counter(), Some(counter));
    }
}

fn ask_for(replica: &mut Agreement, digest: Digest) -> SignedViewChange {
    use quorate_wire::message::Fetch;
    let ask = PeerMessage::Fetch(Fetch::ViewChange(digest));
    let _ = outputs(replica);
    from_peer(replica, 5, 1, ask).unwrap();
    let mut out = outputs(replica).into_iter();
    let found = out.find_map(|o| match o {
        Output::Send(_, PeerMessage::ViewChange(m)) => Some(m),
        _ => None,
    });
    found.expect("it has that one")
}

/// A VIEW-CHANGE for a far view under a stolen key keeps its owner's own ones out for two renewals, and no longer.
#[test]
fn a_far_word_does_not_outlive_its_key() {
    let mut replica = started(vec![]);
    renew_all(&mut replica, 1);
    tell(&mut replica, change(2, 1 << 40, 1)).unwrap();
    renew_all(&mut replica, 2);
    assert_eq!(
        tell(&mut replica, change(2, 1, 2)),
        Err(Rejected::OtherView)
    );
    renew_all(&mut replica, 3);
    assert_eq!(tell(&mut replica, change(2, 1, 3)), Ok(()));
}

/// The numbers outlive the process, in the log and in the head of its next segment.
#[test]
fn numbers_are_in_the_log() {
    let mut replica = started(vec![]);
    from_peer(&mut replica, 1, 2, epoch(2, 7, None)).unwrap();
    let records: Vec<Record> = written(&mut replica).into_iter().map(|(_, r)| r).collect();
    assert!(records.contains(&Record::Epochs(vec![1, 0, 7, 0])));
    let mut again = started(records);
    assert_eq!(tell(&mut again, change(2, 1, 5)), Err(Rejected::OldEpoch));
    assert_eq!(tell(&mut again, change(2, 1, 6)), Ok(()));
}

/// A replica that recovers knows from its supervisor what is old, whatever its log knows; and a log that knows more is believed as well.
#[test]
fn what_a_supervisor_has_seen_counts() {
    let begins = || Record::Recovering(Time(1));
    let mut forgetful = started(vec![begins()]);
    assert_eq!(
        tell(&mut forgetful, change(2, 1, 5)),
        Err(Rejected::OtherView)
    );
    let (seen, known) = (vec![0, 3, 7, 0], vec![1, 9, 2, 0]);
    for (first, then) in [(&seen, &known), (&known, &seen)] {
        let numbers = [first, then].map(|it| Record::Epochs(it.clone()));
        let mut replica = started([vec![begins()], numbers.to_vec()].concat());
        for (of, old) in [(1, 7), (2, 5)] {
            let m = change(of, 1, old);
            assert_eq!(tell(&mut replica, m), Err(Rejected::OldEpoch), "{of}");
            let m = change(of, 1, old + 1);
            assert_eq!(tell(&mut replica, m), Err(Rejected::OtherView), "{of}");
        }
    }
}

/// A state has come that too few still vouch for, since they have other keys by now. It is not given up for an earlier one.
#[test]
fn no_earlier_state_is_fetched() {
    let mut replica = started(vec![]);
    renew_all(&mut replica, 1);
    let root = Digest([7; 32]);
    let certify = |replica: &mut Agreement, seq: u64| {
        for from in [2, 3] {
            let seq = Seq(seq);
            let message = PeerMessage::Checkpoint(Checkpoint { seq, root });
            from_peer(replica, 1, from, message).unwrap();
        }
        let fetches = outputs(replica).into_iter().filter_map(|o| match o {
            Output::FetchState(seq, _) => Some(seq.0),
            _ => None,
        });
        fetches.collect::<Vec<u64>>()
    };
    assert_eq!(certify(&mut replica, 512), [512]);
    (2..6).for_each(|counter| renew_all(&mut replica, counter));
    let fetched = Input::StateFetched(Seq(512), root);
    replica.handle(at(2), fetched).unwrap();
    let standing = replica.standing();
    assert_eq!((standing.executed, standing.stable.0), (Seq(512), Seq(0)));
    assert_eq!(certify(&mut replica, 384), [0; 0]);
    assert_eq!(certify(&mut replica, 640), [640]);
}

/// Votes that one replica after another has cast while somebody had it do not add up.
#[test]
fn votes_of_former_epochs_do_not_add_up() {
    let digest = Batch::null().digest();
    let vote = |from: u8, replica: &mut Agreement| {
        let (view, seq) = (View(0), Seq(1));
        let prepare = PeerMessage::Prepare(Prepare { view, seq, digest });
        let commit = PeerMessage::Commit(Commit { view, seq, digest });
        from_peer(replica, 1, from, prepare).unwrap();
        from_peer(replica, 1, from, commit).unwrap();
    };
    let mut replica = started(vec![]);
    renew_all(&mut replica, 1);
    vote(1, &mut replica);
    // Two keys later the first two votes are worth nothing, and the third is alone.
    for counter in [2, 3] {
        renew_all(&mut replica, counter);
    }
    vote(2, &mut replica);
    for counter in [4, 5] {
        renew_all(&mut replica, counter);
    }
    vote(3, &mut replica);
    assert_eq!(replica.committed_at(Seq(1)), None);
    vote(1, &mut replica);
    vote(2, &mut replica);
    assert_eq!(replica.committed_at(Seq(1)), Some(digest));
    // What is complete stays.
    for counter in [6, 7, 8] {
        renew_all(&mut replica, counter);
    }
    assert_eq!(replica.committed_at(Seq(1)), Some(digest));
}

/// Nor do their claims of a state far ahead, which nobody has.
#[test]
fn claims_of_former_epochs_do_not_add_up() {
    let far = PeerMessage::Checkpoint(Checkpoint {
        seq: Seq(1 << 40),
        root: Digest([8; 32]),
    });
    let mut replica = started(vec![]);
    renew_all(&mut replica, 1);
    from_peer(&mut replica, 1, 1, far.clone()).unwrap();
    for counter in [2, 3] {
        renew_all(&mut replica, counter);
    }
    from_peer(&mut replica, 1, 2, far.clone()).unwrap();
    wait(&mut replica, 2, 2_000);
    assert!(!replica.standing().fetching);
    from_peer(&mut replica, 2_001, 1, far).unwrap();
    wait(&mut replica, 2_002, 4_000);
    assert!(replica.standing().fetching, "two at a time are believed");
}

/// A replica lacks what the others have dropped. They tell it of the checkpoint ahead whenever it says where it stands, and between that and
/// the next time all of them take another key, with which their claims go: it has to look when they come.
#[test]
fn claims_that_go_before_the_next_status_are_enough() {
    let claim = Checkpoint {
        seq: Seq(128),
        root: Digest([8; 32]),
    };
    let mut replica = started(vec![]);
    // It knows what committed up to there, and has not got the batches.
    for seq in (1..=claim.seq.0).map(Seq) {
        for from in [1, 2] {
            let digest = Digest([6; 32]);
            let hint = PeerMessage::Committed(Committed { seq, digest });
            from_peer(&mut replica, 0, from, hint).unwrap();
        }
    }
    let (mut counter, mut answered_at) = (0, None);
    for ms in (0..5_000).step_by(10) {
        if replica.standing().fetching {
            break;
        }
        if ms % 300 == 0 {
            counter += 1;
            for from in 1..4 {
                from_peer(&mut replica, ms, from, epoch(from, counter, None)).unwrap();
            }
        }
        if answered_at == Some(ms) {
            for from in 1..4 {
                let claim = PeerMessage::Checkpoint(claim.clone());
                from_peer(&mut replica, ms, from, claim).unwrap();
            }
        }
        replica.handle(at(ms), Input::Tick).unwrap();
        let says = |o: &Output| matches!(o, Output::Broadcast(PeerMessage::Status(_)));
        if outputs(&mut replica).iter().any(says) {
            answered_at = Some(ms + 20);
        }
    }
    assert!(replica.standing().fetching);
}

/// A group without key holders neither says nor hears anything of epochs.
#[test]
fn without_holders_nothing_is_said() {
    let mut replica = fresh(0);
    wait(&mut replica, 0, 2_000);
    let says = |o: &Output| match o {
        Output::Broadcast(m) | Output::Send(_, m) => matches!(m, PeerMessage::Epoch(_)),
        Output::Persist(_, record) => matches!(record, Record::Epochs(_)),
        _ => false,
    };
    assert!(!outputs(&mut replica).iter().any(says));
    let heard = from_peer(&mut replica, 2_001, 2, epoch(2, 1, None));
    assert_eq!(heard, Err(Rejected::NotAsked));
}
