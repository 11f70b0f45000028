//! Replicas and clients that do what they must not.

use quorate_fault::Fault;
use quorate_replica::Input;
use quorate_wire::digest::Content;
use quorate_wire::message::{
    Batch, Commit, Committed, NewView, PeerMessage, PrePrepare, SignedNewView, SignedViewChange,
    Status, ViewChange, Vote,
};
use quorate_wire::{Authentication, Digest, ReplicaId, Seq, Time, View};

use super::*;
use crate::knobs::Adversary;
use crate::server::key_of;

/// A primary that tells two stories loses its office, and nobody executes two things at one place.
pub(super) fn equivocating_primary() -> Outcome {
    let mut w = group(2, |k| {
        k.adversaries = vec![(ReplicaId(0), Adversary::Fault(Fault::Equivocate))];
    });
    append(&mut w, 0, 0..5, 20_000)?;
    append(&mut w, 1, 5..10, 20_000)?;
    assert!((1..4).all(|i| standing(&w, i).view > View(0)));
    w.finish().map(|_| ())
}

/// Where all messages are signed, a primary that tells two stories leaves proof of it with the others.
pub(super) fn equivocation_leaves_evidence() -> Outcome {
    let mut w = group(2, |k| {
        k.authentication = Authentication::Signature;
        k.adversaries = vec![(ReplicaId(0), Adversary::Fault(Fault::Equivocate))];
    });
    append(&mut w, 0, 0..5, 20_000)?;
    append(&mut w, 1, 5..10, 20_000)?;
    let stats = w.finish()?;
    match stats.evidence > 0 {
        true => Ok(()),
        false => Err(Failure::new("evidence", "nobody has noticed")),
    }
}

/// A primary that answers well within the time-out, and a hundred times as slowly as it could, is left in a few seconds. A
/// slow backup changes nothing.
pub(super) fn slow_primary() -> Outcome {
    for slow in [0, 2] {
        let mut w = group(4, |k| {
            k.adversaries = vec![(ReplicaId(slow), Adversary::Fault(Fault::Slow))];
            k.timeout_ms = 2_500;
            k.operations = 200;
            k.window = 4;
            k.think = (0, 5_000);
            k.delay = (200, 1_000);
        });
        w.run_until("in another view", 8_000, |w| {
            slow == 2 || (1..4).all(|i| standing(w, i).view > View(0) && standing(w, i).active)
        })?;
        w.finish()?;
        assert!((1..4).all(|i| standing(&w, i).view == View(u64::from(slow == 0))));
    }
    Ok(())
}

/// A primary that has something in flight far ahead all the time, while what leads there comes late, is as slow as one that delays all,
/// and is left as soon.
pub(super) fn leaping_primary() -> Outcome {
    let mut w = group(4, |k| {
        k.adversaries = vec![(ReplicaId(0), Adversary::Fault(Fault::Leap))];
        k.timeout_ms = 2_500;
        k.operations = 200;
        k.window = 4;
        k.think = (0, 5_000);
        k.delay = (200, 1_000);
    });
    w.run_until("in another view", 8_000, |w| {
        (1..4).all(|i| standing(w, i).view > View(0) && standing(w, i).active)
    })?;
    w.finish()?;
    assert!((1..4).all(|i| standing(&w, i).view == View(1)));
    Ok(())
}

/// A replica that sends dozens of valid and useless messages with each of its own, as backup and as primary: the others' work goes on,
/// and nothing piles up in them.
pub(super) fn flooding_replica() -> Outcome {
    for flooding in [0, 3] {
        let mut w = group(2, |k| {
            k.adversaries = vec![(ReplicaId(flooding), Adversary::Fault(Fault::Flood))];
        });
        append(&mut w, 0, 0..10, 10_000)?;
        append(&mut w, 1, 10..20, 10_000)?;
        w.finish()?;
    }
    Ok(())
}

/// Nothing of the agreement's messages reaches one backup. Afterwards the group is idle: no new request brings the backup
/// up, only what the replicas say of where they stand.
pub(super) fn kept_in_the_dark() -> Outcome {
    let mut w = group(1, |_| {});
    append(&mut w, 0, 0..1, 1000)?;
    (0..4).for_each(|from| w.net().block(from, 3));
    append(&mut w, 0, 1..20, 1000)?;
    assert!(standing(&w, 3).executed < standing(&w, 0).executed);
    w.net().join();
    w.run_until("caught up", 2000, World::have_met)?;
    w.finish().map(|_| ())
}

/// The Big MAC attack (Aardvark, NSDI 2009): a client's authenticators are right for the primary and for one backup alone.
/// The others are served all the same.
pub(super) fn inconsistent_authenticators() -> Outcome {
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
pub(super) fn inconsistent_authenticators_without_a_repeat() -> Outcome {
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

/// A faulty replica's absurd messages are refused and change nothing (published bugs: Themis view_change.rs).
pub(super) fn absurd_messages_are_refused() -> Outcome {
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
            primary_lost: false,
            recovering: None,
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

/// A VIEW-CHANGE that names the last place of all is refused, and the view starts from the others' (Themis view_change.rs).
pub(super) fn a_huge_place_is_refused() -> Outcome {
    let mut w = group(1, |_| {});
    append(&mut w, 0, 0..2, 1000)?;
    let from = ReplicaId(3);
    let change = ViewChange {
        view: View(1),
        replica: from,
        stable: Seq(0),
        checkpoints: vec![(Seq(0), Digest::ZERO)],
        prepared: vec![Vote {
            seq: Seq(u64::MAX),
            view: View(0),
            digest: Digest::ZERO,
        }],
        preprepared: Vec::new(),
    };
    let change = SignedViewChange::sign(change, &key_of(from)).into_inner();
    w.handle(1, Input::Peer(from, PeerMessage::ViewChange(change)))?;
    assert_eq!(rejected(&w, 1, Rejected::Malformed), 1);
    w.crash(0);
    append(&mut w, 0, 5..10, 10_000)?;
    w.start(0)?;
    w.finish().map(|_| ())
}

/// A client's authenticators are wrong for one backup, another is down, and the client never repeats: what two have voted for
/// the third votes for as well, and no view is changed (Aardvark, NSDI 2009).
pub(super) fn a_wrong_mac_for_one_stops_nobody() -> Outcome {
    let mut w = group(2, |_| {});
    append(&mut w, 1, 0..1, 2000)?;
    w.crash(3);
    w.client_mut(1).bad_macs = [ReplicaId(2)].into();
    w.client_mut(1).stubborn = true;
    ask(&mut w, 1, 100);
    w.run_for(5)?;
    append(&mut w, 0, 5..25, 1000)?;
    assert!((0..3).all(|i| standing(&w, i).view == View(0)));
    w.crash_client(1);
    w.start(3)?;
    w.finish().map(|_| ())
}
