//! Scripted scenarios: one kind of trouble each, told step by step. All checkers look on.

use std::collections::BTreeSet;

use bytes::Bytes;
use quorate_agreement::{CHECKPOINT_INTERVAL, LOG_WINDOW, Rejected};
use quorate_fault::Fault;
use quorate_replica::Input;
use quorate_sim::knobs::Adversary;
use quorate_sim::server::key_of;
use quorate_sim::service::{APPEND, BULKY, ListOp};
use quorate_sim::trace::Sink;
use quorate_sim::{Failure, Knobs, World};
use quorate_wire::digest::Content;
use quorate_wire::message::{
    Batch, Commit, Committed, NewView, PeerMessage, PrePrepare, SignedNewView, Status,
};
use quorate_wire::{Digest, Encode, ReplicaId, Seq, Time, View};

type Outcome = Result<(), Failure>;

fn group(clients: usize, change: impl FnOnce(&mut Knobs)) -> World {
    let mut knobs = Knobs::calm(4);
    knobs.clients = clients;
    change(&mut knobs);
    let mut w = World::new(1, knobs, Sink::None);
    w.run_for(20).expect("nothing happens to it");
    w
}

/// A client asks for an append; gives the operation.
fn ask(w: &mut World, client: usize, token: u64) -> usize {
    let op = ListOp {
        kind: APPEND,
        key: (token % 3) as u8,
        token,
        expected: 0,
        padding: Bytes::from_static(&[7; 60]),
    };
    w.call(client, op.to_bytes().into(), false)
}

/// A client appends, one after the other, and has each result within some time.
fn append(w: &mut World, client: usize, tokens: std::ops::Range<u64>, within_ms: u64) -> Outcome {
    for token in tokens {
        let operation = ask(w, client, token);
        w.run_until("answered", within_ms, |w| {
            w.operation(operation).done.is_some()
        })?;
    }
    Ok(())
}

fn standing(w: &World, server: usize) -> quorate_agreement::Standing {
    w.server(server).replica.as_ref().expect("up").standing()
}

fn rejected(w: &World, server: usize, reason: Rejected) -> u64 {
    let replica = w.server(server).replica.as_ref().expect("up");
    replica.rejections().get(&reason).copied().unwrap_or(0)
}

/// Those who start again give their newest state to one who lags too far for batches, also where weight has made a checkpoint
/// before its number was due. Without them there is no quorum.
#[test]
fn who_starts_again_helps_those_who_lag() -> Outcome {
    // Some forty requests.
    let mut w = group(1, |k| k.checkpoint_bytes = 10_000);
    w.crash(2);
    append(&mut w, 0, 0..330, 5000)?;
    let stable = standing(&w, 0).stable.0;
    assert!(stable.0 > LOG_WINDOW && !stable.0.is_multiple_of(CHECKPOINT_INTERVAL));
    [0, 1, 3].into_iter().for_each(|i| w.crash(i));
    [0, 2, 3]
        .map(|i| w.start(i))
        .into_iter()
        .collect::<Outcome>()?;
    append(&mut w, 0, 330..340, 60_000)?;
    w.run_until("together", 5000, |w| {
        [0, 3].map(|i| standing(w, i).executed) == [standing(w, 2).executed; 2]
    })?;
    w.finish().map(drop)
}

/// The primary's power goes: the others choose the next one, and the old one comes back into the view of the others.
#[test]
fn primary_crash() -> Outcome {
    let mut w = group(1, |_| {});
    append(&mut w, 0, 0..5, 1000)?;
    w.crash(0);
    append(&mut w, 0, 5..10, 5000)?;
    assert!(standing(&w, 1).view > View(0));
    w.start(0)?;
    append(&mut w, 0, 10..12, 5000)?;
    w.run_until("in one view", 3000, |w| {
        standing(w, 0).view == standing(w, 1).view && standing(w, 0).active
    })?;
    w.finish().map(|_| ())
}

/// A primary that tells two stories loses its office, and nobody executes two things at one place.
#[test]
fn equivocating_primary() -> Outcome {
    let mut w = group(2, |k| {
        k.adversaries = vec![(ReplicaId(0), Adversary::Fault(Fault::Equivocate))];
    });
    append(&mut w, 0, 0..5, 20_000)?;
    append(&mut w, 1, 5..10, 20_000)?;
    assert!((1..4).all(|i| standing(&w, i).view > View(0)));
    w.finish().map(|_| ())
}

/// Nothing of the agreement's messages reaches one backup. Afterwards the group is idle: no new request brings the backup
/// up, only what the replicas say of where they stand.
#[test]
fn kept_in_the_dark() -> Outcome {
    let mut w = group(1, |_| {});
    append(&mut w, 0, 0..1, 1000)?;
    (0..4).for_each(|from| w.net().block(from, 3));
    append(&mut w, 0, 1..20, 1000)?;
    assert!(standing(&w, 3).executed < standing(&w, 0).executed);
    w.net().join();
    w.run_until("caught up", 2000, World::have_met)?;
    w.finish().map(|_| ())
}

/// A replica was away for longer than the others keep their log: it fetches the state, though one donor's pieces are wrong.
#[test]
fn state_transfer_with_a_lying_donor() -> Outcome {
    let mut w = group(1, |k| {
        k.adversaries = vec![(ReplicaId(1), Adversary::Fault(Fault::CorruptState))];
    });
    append(&mut w, 0, 0..3, 1000)?;
    w.crash(3);
    append(&mut w, 0, 3..420, 1000)?;
    w.start(3)?;
    w.run_until("caught up", 10_000, World::have_met)?;
    assert!(standing(&w, 3).stable.0 >= Seq(384));
    w.finish().map(|_| ())
}

/// The power goes in the midst of a state transfer, when the store holds neither the old state nor the new one.
#[test]
fn a_state_transfer_is_cut_short() -> Outcome {
    let mut w = group(1, |k| k.encode = false);
    append(&mut w, 0, 0..3, 1000)?;
    w.crash(3);
    for token in 0..120 {
        let op = ListOp {
            kind: APPEND,
            key: BULKY,
            token: 1000 + token,
            expected: 0,
            padding: vec![token as u8; 220_000].into(),
        };
        let operation = w.call(0, op.to_bytes().into(), false);
        w.run_until("answered", 1000, |w| w.operation(operation).done.is_some())?;
    }
    append(&mut w, 0, 3..300, 1000)?;
    for _ in 0..2 {
        w.start(3)?;
        w.run_until("in between", 10_000, |w| !w.server(3).disk.store.complete)?;
        w.crash(3);
    }
    w.start(3)?;
    w.run_until("caught up", 20_000, World::have_met)?;
    w.finish().map(|_| ())
}

/// The store of one replica changes what it writes. The next checkpoint brings it to light, and the state is mended from the
/// others' while service goes on.
#[test]
fn a_damaged_state_is_mended() -> Outcome {
    let mut w = group(1, |k| {
        k.adversaries = vec![(ReplicaId(3), Adversary::DamagedStore)];
    });
    append(&mut w, 0, 0..140, 1000)?;
    let root = |w: &World, i: usize| w.server(i).disk.store.root;
    assert_ne!(root(&w, 3), root(&w, 0), "the damage is there");
    w.finish()?;
    w.run_until("mended", 20_000, |w| root(w, 3) == root(w, 0))?;
    append(&mut w, 0, 140..300, 1000)?;
    w.run_until("the same at the next checkpoint", 20_000, |w| {
        root(w, 3) == root(w, 0) && standing(w, 3).stable.0 >= Seq(256)
    })
}

/// A power cut takes all four in the midst of work; what a client was told is still so when they are back.
#[test]
fn power_cut() -> Outcome {
    let mut w = group(2, |_| {});
    append(&mut w, 0, 0..30, 1000)?;
    let open: Vec<usize> = (30..36).map(|token| ask(&mut w, 1, token)).collect();
    w.run_for(1)?;
    (0..4).for_each(|i| w.crash(i));
    w.run_for(300)?;
    (0..4).try_for_each(|i| w.start(i))?;
    w.run_until("answered", 10_000, |w| {
        open.iter().all(|&o| w.operation(o).done.is_some())
    })?;
    append(&mut w, 0, 36..40, 5000)?;
    w.finish().map(|_| ())
}

/// The Big MAC attack (Aardvark, NSDI 2009): a client's authenticators are right for the primary and for one backup alone.
/// The others are served all the same.
#[test]
fn inconsistent_authenticators() -> Outcome {
    let mut w = group(2, |_| {});
    w.client_mut(1).bad_macs = [ReplicaId(2), ReplicaId(3)].into();
    append(&mut w, 0, 0..5, 2000)?;
    let bad: Vec<usize> = (100..110).map(|token| ask(&mut w, 1, token)).collect();
    append(&mut w, 0, 5..25, 5000)?;
    w.run_until("answered too", 20_000, |w| {
        bad.iter().all(|&o| w.operation(o).done.is_some())
    })?;
    w.finish().map(|_| ())
}

/// As above, but the client never repeats: no backup ever hears from it. A view change gets rid of what it left.
#[test]
fn inconsistent_authenticators_without_a_repeat() -> Outcome {
    let mut w = group(2, |_| {});
    append(&mut w, 1, 0..1, 2000)?;
    w.client_mut(1).bad_macs = [1, 2, 3].map(ReplicaId).into();
    w.client_mut(1).stubborn = true;
    ask(&mut w, 1, 100);
    w.run_for(5)?;
    append(&mut w, 0, 5..25, 20_000)?;
    w.crash_client(1);
    w.finish().map(|_| ())
}

/// Batches are prepared but not committed anywhere when the primary goes: the next view must have them.
#[test]
fn view_change_with_prepared_batches() -> Outcome {
    let mut w = group(1, |k| k.delay = (5_000, 6_000));
    append(&mut w, 0, 0..3, 1000)?;
    let operation = ask(&mut w, 0, 50);
    // Request, pre-prepare, prepare: the commits are on their way when the network falls apart.
    w.run_for(20)?;
    let all: BTreeSet<usize> = [0, 1].into();
    w.net().cut(&all, 5, false);
    w.crash(0);
    w.run_for(2000)?;
    w.net().join();
    w.run_until("answered", 20_000, |w| {
        w.operation(operation).done.is_some()
    })?;
    w.start(0)?;
    w.finish().map(|_| ())
}

/// Replicas restart in the midst of a view change: they know that they have left the old view, and the next one starts.
#[test]
fn restart_in_a_view_change() -> Outcome {
    let mut w = group(1, |_| {});
    append(&mut w, 0, 0..3, 1000)?;
    w.crash(0);
    let operation = ask(&mut w, 0, 50);
    // Nobody hears the VIEW-CHANGEs.
    (0..4).for_each(|a| (0..4).for_each(|b| w.net().block(a, b)));
    w.run_until("all have left", 10_000, |w| {
        (1..4).all(|i| !standing(w, i).active)
    })?;
    w.run_for(5)?;
    let left = standing(&w, 2).view;
    (1..4).for_each(|i| w.crash(i));
    (1..4).try_for_each(|i| w.start(i))?;
    assert!((1..4).all(|i| standing(&w, i).view >= left && !standing(&w, i).active));
    w.net().join();
    w.run_until("answered", 20_000, |w| {
        w.operation(operation).done.is_some()
    })?;
    w.finish().map(|_| ())
}

/// A checkpoint becomes stable, so that the log's older segments go, while the record of leaving the view is still on its
/// way to the disk. After a restart the replica must not believe itself in the old view.
#[test]
fn the_log_is_cut_in_a_view_change() -> Outcome {
    let mut w = group(1, |k| {
        k.sync = (60_000, 60_000);
        k.store = (300_000, 300_000);
        k.timeout_ms = 250;
    });
    w.run_for(300)?;
    let mut token = 0;
    while w.agreed() < Seq(128) {
        append(&mut w, 0, token..token + 1, 2000)?;
        token += 1;
    }
    assert_eq!(standing(&w, 1).view, View(0));
    w.crash(0);
    let operation = ask(&mut w, 0, 1000);
    w.run_until("left", 2000, |w| (1..4).all(|i| !standing(w, i).active))?;
    assert!(
        (1..4).any(|i| standing(&w, i).stable.0 == Seq(0)),
        "too late"
    );
    w.run_until("stable", 100, |w| {
        (1..4).all(|i| standing(w, i).stable.0 == Seq(128))
    })?;
    w.run_for(75)?;
    (1..4).for_each(|i| w.crash(i));
    (1..4).try_for_each(|i| w.start(i))?;
    assert!((1..4).all(|i| standing(&w, i).view >= View(1)));
    w.run_until("answered", 20_000, |w| {
        w.operation(operation).done.is_some()
    })?;
    w.finish().map(|_| ())
}

/// A faulty replica's absurd messages are refused and change nothing (published bugs: Themis view_change.rs).
#[test]
fn absurd_messages_are_refused() -> Outcome {
    let mut w = group(1, |_| {});
    append(&mut w, 0, 0..5, 1000)?;
    let before = standing(&w, 2);
    let digest = Digest::of(Content::Batch, b"none");
    let from = ReplicaId(1);
    let new_view = |view: u64, proofs: usize, selected: usize, start: u64| {
        let proofs = (0..proofs).map(|r| (ReplicaId(r as u8), digest)).collect();
        let body = NewView {
            view: View(view),
            proofs,
            start: (Seq(start), digest),
            selection: vec![digest; selected],
        };
        PeerMessage::NewView(SignedNewView::sign(body, &key_of(from)).into_inner())
    };
    let far = u64::MAX - u64::MAX % 4 - 3;
    let batch = Batch {
        time: Time(0),
        requests: vec![digest],
    };
    let absurd = [
        new_view(1, 0, 0, 0),
        new_view(1, 3, 300, 0),
        new_view(1, 200, 0, 0),
        new_view(far, 3, 256, u64::MAX),
        new_view(5, 3, 1, u64::MAX),
        PeerMessage::Commit(Commit {
            view: View(u64::MAX),
            seq: Seq(u64::MAX),
            digest,
        }),
        PeerMessage::Committed(Committed {
            seq: Seq(0),
            digest,
        }),
        PeerMessage::PrePrepare(PrePrepare {
            view: View(0),
            seq: Seq(u64::MAX),
            batch,
            bodies: Vec::new(),
        }),
        PeerMessage::Status(Status {
            view: View(u64::MAX),
            active: true,
            stable: Seq(u64::MAX),
            committed: Seq(u64::MAX),
            executed: Seq(u64::MAX),
        }),
    ];
    for message in absurd {
        w.handle(2, Input::Peer(from, message))?;
    }
    let after = standing(&w, 2);
    assert_eq!(
        (before.view, before.committed),
        (after.view, after.committed)
    );
    assert!(rejected(&w, 2, Rejected::Malformed) >= 3);
    assert!(rejected(&w, 2, Rejected::OutsideWindow) >= 2);
    // What waits for the far view's VIEW-CHANGEs must not keep out the next view.
    w.crash(0);
    append(&mut w, 0, 5..10, 10_000)?;
    w.start(0)?;
    w.finish().map(|_| ())
}
