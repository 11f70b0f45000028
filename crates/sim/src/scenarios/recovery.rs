//! Replicas that have lost their logs.

use quorate_agreement::CHECKPOINT_INTERVAL;
use quorate_replica::Input;
use quorate_wire::message::{Estimate, PeerMessage, SignedViewChange, ViewChange};
use quorate_wire::{ReplicaId, Seq, View};

use super::*;
use crate::knobs::Adversary;

fn is_back(w: &World, server: usize) -> bool {
    let it = standing(w, server);
    it.active && it.recovering.is_none()
}

/// A backup has lost its log. It comes back although no client asks for anything, and then is needed: another one goes.
pub(super) fn a_lost_log_comes_back() -> Outcome {
    let mut w = group(1, |_| {});
    append(&mut w, 0, 0..5, 1000)?;
    w.crash(2);
    w.lose_log(2);
    w.start(2)?;
    assert!(standing(&w, 2).recovering.is_some());
    w.run_until("back", 20_000, |w| is_back(w, 2))?;
    w.crash(1);
    append(&mut w, 0, 5..10, 5000)?;
    w.start(1)?;
    w.finish().map(|_| ())
}

/// The primary has lost its log, in the midst of work: the others choose another at once, and it leads none before it is back.
pub(super) fn the_primary_has_lost_its_log() -> Outcome {
    let mut w = group(1, |_| {});
    append(&mut w, 0, 0..5, 1000)?;
    let open: Vec<usize> = (5..8).map(|token| ask(&mut w, 0, token)).collect();
    w.run_for(1)?;
    w.crash(0);
    w.lose_log(0);
    w.start(0)?;
    w.run_until("answered", 5_000, |w| {
        open.iter().all(|&o| w.operation(o).done.is_some())
    })?;
    assert!(standing(&w, 1).view > View(0));
    w.run_until("back", 20_000, |w| is_back(w, 0))?;
    append(&mut w, 0, 8..12, 5000)?;
    w.finish().map(|_| ())
}

/// A power cut takes all four, and one log with it. They heal, and what clients were told is still so.
pub(super) fn a_power_cut_takes_a_log() -> Outcome {
    let mut w = group(2, |_| {});
    append(&mut w, 0, 0..30, 1000)?;
    let open: Vec<usize> = (30..36).map(|token| ask(&mut w, 1, token)).collect();
    w.run_for(1)?;
    (0..4).for_each(|i| w.crash(i));
    w.lose_log(3);
    w.run_for(300)?;
    (0..4).try_for_each(|i| w.start(i))?;
    w.run_until("answered", 10_000, |w| {
        open.iter().all(|&o| w.operation(o).done.is_some())
    })?;
    w.run_until("back", 20_000, |w| is_back(w, 3))?;
    w.finish().map(|_| ())
}

/// The power goes again while a replica comes back without its log: it begins once more, and says nothing meanwhile.
pub(super) fn a_recovery_is_cut_short() -> Outcome {
    let mut w = group(1, |_| {});
    append(&mut w, 0, 0..5, 1000)?;
    w.crash(2);
    w.lose_log(2);
    for pause in [0, 2, 20, 60, 150] {
        w.start(2)?;
        w.run_for(pause)?;
        assert!(!is_back(&w, 2) || pause > 100);
        w.crash(2);
    }
    w.start(2)?;
    append(&mut w, 0, 5..8, 5000)?;
    w.run_until("back", 20_000, |w| is_back(w, 2))?;
    w.finish().map(|_| ())
}

/// More have lost their logs than the group bears. They say so, and nothing that contradicts what they have said.
pub(super) fn two_lost_logs_are_too_many() -> Outcome {
    let mut w = group(1, |_| {});
    append(&mut w, 0, 0..5, 1000)?;
    for server in [1, 2] {
        w.crash(server);
        w.lose_log(server);
        w.start(server)?;
    }
    w.run_for(10_000)?;
    for server in [1, 2] {
        let recovering = standing(&w, server).recovering.expect("it can't come back");
        assert!(recovering.too_many && recovering.bound.is_none());
    }
    Ok(())
}

/// What replica 2 has committed alone is all that its COMMIT stood for: the others know a certificate. It loses its log, and its
/// vote for the place that the next view gives again must not come once more, for something else.
///
/// Replicas 0, 1 and 2 have prepared a batch that replica 3 has not heard of, and the client has three tentative replies. Then 2
/// loses its log and 0 is cut off: of 1, 2 and 3 only 1 knows the batch. If 2 had a voice as if nothing had been, the three could start a
/// view without it.
pub(super) fn a_lost_vote_is_not_given_again() -> Outcome {
    let mut w = group(1, |k| k.timeout_ms = 250);
    append(&mut w, 0, 0..3, 1000)?;
    // Nothing of the next batch gets to 3, and no COMMIT to anyone.
    w.set_filter(Some(|_, to, message| match message {
        PeerMessage::PrePrepare(_) | PeerMessage::Prepare(_) => to == 3,
        PeerMessage::Commit(_) | PeerMessage::Committed(_) => true,
        _ => false,
    }));
    let told = ask(&mut w, 0, 3);
    w.run_until("answered", 2000, |w| w.operation(told).done.is_some())?;
    let at = w.agreed();
    (0..4).for_each(|i| w.crash(i));
    w.lose_log(2);
    w.set_filter(None);
    // Without 0 nothing may be agreed on: 2 does not count.
    (1..4).try_for_each(|i| w.start(i))?;
    w.run_for(5_000)?;
    assert!(w.agreed() == at && standing(&w, 2).recovering.is_some());
    w.start(0)?;
    w.run_until("back", 20_000, |w| is_back(w, 2))?;
    assert!(w.agreed() > Seq(at.0 + 1));
    w.finish().map(|_| ())
}

/// Two of seven are out: one has lost its log, and another, faulty, tells it first of places that nobody has come to; one of the five others
/// answers late. The lie waits for f+1 who have prepared as far, and so counts for nothing; the published library counted in the wrong entry.
pub(super) fn a_lying_estimate_holds_nobody_up() -> Outcome {
    let mut knobs = Knobs::calm(7);
    knobs.clients = 1;
    let mut w = World::new(1, knobs, Sink::None);
    w.run_for(20)?;
    append(&mut w, 0, 0..150, 1000)?;
    w.crash(6);
    w.lose_log(6);
    w.set_filter(Some(|from, to, message| {
        [0, 5].contains(&from) && to == 6 && matches!(message, PeerMessage::Estimate(_))
    }));
    let nonce = w.wall(6).0;
    w.start(6)?;
    let lie = Estimate {
        nonce,
        checkpoint: Seq(1 << 40),
        prepared: Seq(1 << 40),
        view: View(0),
    };
    w.handle(6, Input::Peer(ReplicaId(5), PeerMessage::Estimate(lie)))?;
    let answers = standing(&w, 6).recovering.expect("it recovers").answers;
    assert_eq!(answers, 1, "the lie was heard");
    w.run_for(2_000)?;
    w.set_filter(Some(|from, to, message| {
        from == 5 && to == 6 && matches!(message, PeerMessage::Estimate(_))
    }));
    w.run_until("back", 20_000, |w| is_back(w, 6))?;
    append(&mut w, 0, 150..155, 5000)?;
    w.finish().map(|_| ())
}

/// A replica comes back to a view that begins from a checkpoint which it has not got: it fetches that state, and the one that was set aside
/// serves until it has.
pub(super) fn what_was_set_aside_serves_to_the_end() -> Outcome {
    let mut w = group(1, |k| k.look = 10_000);
    append(&mut w, 0, 0..140, 1000)?;
    w.crash(2);
    w.lose_log(2);
    w.set_aside(2, 0);
    // The others do not hear that it waits for a view.
    w.set_filter(Some(|from, _, message| {
        from == 2 && matches!(message, PeerMessage::Status(_))
    }));
    w.start(2)?;
    let has_passed = |w: &World| {
        let standing = standing(w, 2);
        let bound = standing.recovering.and_then(|r| r.bound);
        !standing.fetching && bound.is_some_and(|bound| standing.stable.0 >= bound.seq)
    };
    let mut token = 140;
    while !has_passed(&w) && token < 1000 {
        append(&mut w, 0, token..token + 1, 1000)?;
        w.run_for(10)?;
        token += 1;
    }
    assert!(has_passed(&w));
    w.set_filter(Some(|from, to, _| from == 2 || to == 2));
    append(&mut w, 0, token..token + 150, 1000)?;
    w.set_filter(Some(|_, to, message| {
        let begins = matches!(
            message,
            PeerMessage::NewView(_) | PeerMessage::ViewChange(_)
        );
        to == 2 && !begins
    }));
    w.run_until("back", 5_000, |w| is_back(w, 2))?;
    assert!(standing(&w, 2).fetching);
    w.set_filter(None);
    w.run_until("fetched", 3_000, |w| !standing(w, 2).fetching)?;
    w.finish().map(|_| ())
}

/// One replica after the other is taken over and recovers, never two at a time. Each tells one of the others that it leaves the view. By
/// then the keys of the one before are worth nothing, and so are its words: f+1 of them do not come together.
pub(super) fn former_words_do_not_add_up() -> Outcome {
    let mut w = group(1, |k| k.epochs = 500_000);
    append(&mut w, 0, 0..5, 1000)?;
    let genesis = w.genesis_root();
    for (round, taken) in [1, 2, 3, 1, 2, 3].into_iter().enumerate() {
        let body = ViewChange {
            view: View(1),
            replica: ReplicaId(taken),
            stable: Seq(0),
            checkpoints: vec![(Seq(0), genesis)],
            prepared: vec![],
            preprepared: vec![],
        };
        let word = SignedViewChange::sign(body, &w.signer_of_now(ReplicaId(taken))).into_inner();
        w.handle(
            0,
            Input::Peer(ReplicaId(taken), PeerMessage::ViewChange(word)),
        )?;
        assert_eq!(rejected(&w, 0, Rejected::BadAuthentication), 0);
        w.run_for(2_000)?;
        if standing(&w, 0).view > View(0) {
            let said = format!("the view is left after {} words", round + 1);
            return Err(Failure::new("former words", said));
        }
    }
    append(&mut w, 0, 5..10, 1000)?;
    w.finish().map(|_| ())
}

/// Another replica falls silent as soon as one recovers on purpose: the two that are left can do nothing, and nothing would ever bring either
/// back. The one that recovers goes on with what it had.
pub(super) fn a_silent_replica_keeps_nobody_away() -> Outcome {
    for epochs in [0, 5_000_000] {
        let mut w = group(1, |k| k.epochs = epochs);
        append(&mut w, 0, 0..140, 1000)?;
        w.crash(2);
        w.distrust(2, 0);
        w.set_filter(Some(|from, _, message| {
            from == 3 && !matches!(message, PeerMessage::Status(_))
        }));
        let open = ask(&mut w, 0, 140);
        w.start(2)?;
        assert!(standing(&w, 2).recovering.is_some());
        w.run_until("answered", 10_000, |w| w.operation(open).done.is_some())?;
        assert_eq!((w.stats().taken_back, w.stats().recoveries), (1, 0));
        append(&mut w, 0, 141..150, 1000)?;
        w.run_until("fetched", 10_000, |w| !standing(w, 2).fetching)?;
        // It is heard again, and the next time nothing is in the way.
        w.set_filter(None);
        w.crash(2);
        w.distrust(2, 0);
        w.start(2)?;
        w.run_until("back", 20_000, |w| is_back(w, 2))?;
        assert_eq!((w.stats().taken_back, w.stats().recoveries), (1, 1));
        w.finish().map(|_| ())?;
    }
    Ok(())
}

/// The primary hears of no recovery, or does as if it did not: the others leave it for that. Nobody asks for anything meanwhile or later, and the
/// next one has still places to fill for it.
pub(super) fn a_primary_that_orders_no_recovery_is_left() -> Outcome {
    let mut w = group(1, |k| k.epochs = 5_000_000);
    append(&mut w, 0, 0..5, 1000)?;
    w.set_filter(Some(|_, to, message| {
        to == 0 && matches!(message, PeerMessage::Request(_))
    }));
    w.crash(2);
    w.lose_log(2);
    w.start(2)?;
    w.run_until("left", 10_000, |w| {
        standing(w, 1).view > View(0) && standing(w, 1).active
    })?;
    assert!(standing(&w, 2).recovering.is_some());
    w.set_filter(None);
    w.run_until("back", 15_000, |w| is_back(w, 2))?;
    w.finish().map(|_| ())
}

/// Somebody has keys of all others from long ago, and a replica that recovers hears nobody else. It was told which certificates are old, and does
/// not believe what comes under them.
pub(super) fn keys_from_long_ago_make_no_estimate() -> Outcome {
    let mut w = group(1, |k| k.epochs = 500_000);
    append(&mut w, 0, 0..300, 1000)?;
    w.run_for(3_000)?;
    w.crash(2);
    w.lose_log(2);
    w.tell_certificates(2);
    w.set_filter(Some(|_, to, _| to == 2));
    let nonce = w.wall(2).0;
    w.start(2)?;
    for _ in 0..40 {
        for from in [0, 1, 3] {
            let estimate = Estimate {
                nonce,
                checkpoint: Seq(0),
                prepared: Seq(0),
                view: View(0),
            };
            let message = PeerMessage::Estimate(estimate);
            w.hear_under(2, ReplicaId(from), 1, message)?;
        }
        w.run_for(50)?;
    }
    let bound = standing(&w, 2).recovering.and_then(|r| r.bound);
    if let Some(bound) = bound {
        let what = format!("keys from long ago make a bound of {:?}", bound.seq);
        return Err(Failure::new("void keys", what));
    }
    w.set_filter(None);
    w.run_until("back", 20_000, |w| is_back(w, 2))?;
    w.finish().map(|_| ())
}

/// A faulty replica of seven skips a number of its keys each time: twins do, which share the numbers. One that has lost its log, and has nothing to go
/// back to, comes back all the same, and up to the place that the others named at first: with each answer that is in doubt the rest is not asked anew.
pub(super) fn who_skips_numbers_keeps_nobody_away() -> Outcome {
    let mut knobs = Knobs::calm(7);
    (knobs.clients, knobs.epochs) = (1, 1_000_000);
    // So that it takes more than one key of theirs.
    knobs.delay = (20_000, 60_000);
    knobs.adversaries = vec![(ReplicaId(5), Adversary::Twin)];
    let mut w = World::new(1, knobs, Sink::None);
    w.begin_storm();
    w.run_for(200)?;
    append(&mut w, 0, 0..5, 5_000)?;
    w.crash(6);
    w.lose_log(6);
    w.start(6)?;
    w.run_until("back", 60_000, |w| is_back(w, 6))?;
    let places = w.agreed();
    if places > Seq(4 * CHECKPOINT_INTERVAL) {
        let what = format!("it came back after {places:?}");
        return Err(Failure::new("recovery", what));
    }
    w.finish().map(|_| ())
}

/// Nothing that a replica signs comes to another one, which so learns nothing of its newer keys. When its recovery is in the state, what it
/// certified before is void to that one as well.
pub(super) fn who_is_kept_from_a_replica_learns_from_the_order() -> Outcome {
    let mut w = group(1, |k| k.epochs = 1_000_000);
    append(&mut w, 0, 0..5, 1000)?;
    w.set_filter(Some(|from, to, message| {
        let tells = matches!(
            message,
            PeerMessage::Epoch(_)
                | PeerMessage::Request(_)
                | PeerMessage::ViewChange(_)
                | PeerMessage::NewView(_)
        );
        (from, to) == (2, 3) && tells
    }));
    w.run_for(3_500)?;
    w.crash(2);
    w.lose_log(2);
    w.start(2)?;
    w.run_until("back", 15_000, |w| is_back(w, 2))?;
    w.run_until("at that checkpoint", 5_000, |w| {
        standing(w, 3).stable >= standing(w, 2).stable
    })?;
    w.run_for(100)?;
    let known = &w.server(3).disk.certificates;
    let known = known.get(2).copied().unwrap_or_default();
    let stated = w.stated(2).expect("there are key holders");
    if known < stated {
        let what = format!("server 3 knows of number {known}, and recovery {stated} was ordered");
        return Err(Failure::new("void keys", what));
    }
    w.set_filter(None);
    w.finish().map(|_| ())
}

/// All four recover on purpose at once, as no schedule has them do. None has anybody to ask, and so all go on with what they had.
pub(super) fn all_recover_at_once() -> Outcome {
    let mut w = group(1, |_| {});
    append(&mut w, 0, 0..30, 1000)?;
    let open = ask(&mut w, 0, 30);
    w.run_for(1)?;
    for server in 0..4 {
        w.crash(server);
        w.distrust(server, 0);
    }
    (0..4).try_for_each(|server| w.start(server))?;
    w.run_until("answered", 20_000, |w| w.operation(open).done.is_some())?;
    // The last ones may find three others.
    assert!(w.stats().taken_back >= 3);
    w.run_until("back", 20_000, |w| (0..4).all(|s| is_back(w, s)))?;
    w.finish().map(|_| ())
}

/// One replica of four takes part, but does not say how far it is; or says that it is in a view to which nobody will come. The one that recovers
/// would wait for ever; it goes on with its log. Meanwhile the others work.
pub(super) fn a_replica_that_lies_about_its_view_keeps_nobody_away() -> Outcome {
    for lies in [false, true] {
        let mut w = group(1, |_| {});
        append(&mut w, 0, 0..5, 1000)?;
        w.crash(2);
        w.distrust(2, 0);
        w.set_filter(Some(|from, to, message| {
            from == 3 && to == 2 && matches!(message, PeerMessage::Estimate(_))
        }));
        let nonce = w.wall(2).0;
        w.start(2)?;
        if lies {
            let lie = Estimate {
                nonce,
                checkpoint: Seq(0),
                prepared: Seq(5),
                view: View(1 << 40),
            };
            w.handle(2, Input::Peer(ReplicaId(3), PeerMessage::Estimate(lie)))?;
        }
        append(&mut w, 0, 5..150, 1000)?;
        assert_eq!(w.stats().taken_back, 0);
        w.run_until("taken back", 30_000, |w| w.stats().taken_back == 1)?;
        append(&mut w, 0, 150..155, 1000)?;
        w.crash(1);
        append(&mut w, 0, 155..160, 5000)?;
        w.start(1)?;
        w.finish().map(|_| ())?;
    }
    Ok(())
}

/// A faulty replica of four says that it is in the farthest view, so that the one that recovers waits there, and tells the two others that it goes
/// there. That makes f+1 who are ahead, and none of them has been there: the others must not follow in one leap.
pub(super) fn two_words_lead_nobody_far() -> Outcome {
    let far = View(u64::MAX / 4);
    let mut w = group(1, |k| k.epochs = 5_000_000);
    append(&mut w, 0, 0..5, 1000)?;
    w.crash(2);
    w.distrust(2, 0);
    w.set_filter(Some(|from, to, message| {
        from == 3 && to == 2 && matches!(message, PeerMessage::Estimate(_))
    }));
    let (nonce, genesis) = (w.wall(2).0, w.genesis_root());
    w.start(2)?;
    // Until it has heard of the present keys: what was said before that is asked anew.
    w.run_for(200)?;
    let lie = Estimate {
        nonce,
        checkpoint: Seq(0),
        prepared: Seq(5),
        view: far,
    };
    w.handle(2, Input::Peer(ReplicaId(3), PeerMessage::Estimate(lie)))?;
    w.run_until("estimated", 1_000, |w| {
        standing(w, 2).recovering.is_some_and(|r| r.bound.is_some())
    })?;
    w.run_for(1_000)?;
    for view in [standing(&w, 2).view, far] {
        let body = ViewChange {
            view,
            replica: ReplicaId(3),
            stable: Seq(0),
            checkpoints: vec![(Seq(0), genesis)],
            prepared: vec![],
            preprepared: vec![],
        };
        let word = SignedViewChange::sign(body, &w.signer_of_now(ReplicaId(3))).into_inner();
        for to in [0, 1] {
            let word = PeerMessage::ViewChange(word.clone());
            w.handle(to, Input::Peer(ReplicaId(3), word))?;
        }
    }
    w.run_for(1_000)?;
    for server in [0, 1] {
        let view = standing(&w, server).view;
        if view.0 > 100 {
            let said = format!("server {server} has followed to {view:?}");
            return Err(Failure::new("views", said));
        }
    }
    w.set_filter(None);
    w.run_until("done with it", 60_000, |w| {
        standing(w, 2).recovering.is_none()
    })?;
    append(&mut w, 0, 5..10, 5_000)?;
    // The next one has an end.
    w.crash(1);
    w.distrust(1, 0);
    w.start(1)?;
    w.run_until("back", 20_000, |w| is_back(w, 1))?;
    w.finish().map(|_| ())
}

/// A replica knows what has committed, but has not got the batches, and the others have dropped them. Nobody asks for anything; it says where it
/// stands twice a second, and they tell it of the checkpoint ahead. But all of them take another key before it does so again, with which
/// their claims go. It fetches that state all the same.
pub(super) fn claims_that_go_with_their_keys_lead_to_a_state() -> Outcome {
    let mut w = group(1, |k| k.epochs = 300_000);
    append(&mut w, 0, 0..100, 1000)?;
    w.crash(3);
    w.set_filter(Some(|_, to, message| {
        matches!(message, PeerMessage::Checkpoint(_)) || lacks_content(to, message)
    }));
    let mut token = 100;
    while w.agreed() < Seq(CHECKPOINT_INTERVAL) {
        append(&mut w, 0, token..token + 1, 1000)?;
        token += 1;
    }
    w.start(3)?;
    w.run_for(2_000)?;
    w.set_filter(Some(|_, to, message| {
        to == 3 && matches!(message, PeerMessage::Checkpoint(_)) || lacks_content(to, message)
    }));
    // Until it looks just when the others have taken other keys and have not said anything since.
    w.run_for(5_000)?;
    let (it, other) = (standing(&w, 3), standing(&w, 0));
    assert!(it.executed < it.committed && it.committed == other.stable.0);
    assert!(it.active && !it.fetching);
    w.set_filter(None);
    w.run_until("at the checkpoint", 5_000, World::have_met)?;
    w.finish().map(|_| ())
}

/// Whether it brings replica 3 what it could execute.
fn lacks_content(to: usize, message: &PeerMessage) -> bool {
    to == 3 && matches!(message, PeerMessage::Batch(_) | PeerMessage::Body(_))
}
