//! Those who lie about recoveries: one that never ends its own, and such as mislead another's.

use quorate_agreement::{CHECKPOINT_INTERVAL, LOG_WINDOW};
use quorate_replica::Input;
use quorate_wire::message::{Estimate, PeerMessage, Status};
use quorate_wire::{Quorum, ReplicaId, Seq, View};

use super::*;

/// How often a minute one replica has another help it, and how long the liar goes on.
const HELPS_A_MINUTE: u64 = 4;
const MINUTES: u64 = 3;

/// A faulty replica of four does nothing but say that it recovers: now that places are to be filled for it, up to a place that could be true, and now that
/// these are behind it and the others are to come to its next view, of which it names another each time. The three others go on, and a client is served. In three
/// minutes they are led no more than twelve times, and what is filled for it is bounded as well.
pub(super) fn who_recovers_without_end_is_kept_at_bay() -> Outcome {
    let mut w = group(1, |_| {});
    append(&mut w, 0, 0..5, 1000)?;
    w.crash(3);
    let quorum = Quorum::new(4).expect("3f+1");
    let until = w.now_ms() + MINUTES * 60_000;
    let (mut round, mut token, mut led) = (0, 5, 0);
    let mut views = [View(0); 3];
    while w.now_ms() < until {
        for to in 0..3 {
            let it = standing(&w, to);
            let at = it.stable.0;
            // Not one that it would lead itself: nobody would go there.
            let next = it.view.next();
            let view = match quorum.primary(next) == ReplicaId(3) {
                true => next.next(),
                false => next,
            };
            let bound = match round % 2 {
                0 => Seq(at.0 + LOG_WINDOW),
                _ => at.max(Seq(1)),
            };
            let says = Status {
                view,
                active: false,
                stable: at.max(Seq(1)),
                committed: it.committed,
                executed: it.executed,
                primary_lost: false,
                recovering: Some(bound),
            };
            w.handle(to, Input::Peer(ReplicaId(3), PeerMessage::Status(says)))?;
        }
        w.run_for(200)?;
        for (before, to) in views.iter_mut().zip(0..) {
            let view = standing(&w, to).view;
            led += u64::from(to == 0 && view > *before);
            *before = view;
        }
        round += 1;
        if round % 20 == 0 {
            append(&mut w, 0, token..token + 1, 10_000)?;
            token += 1;
        }
    }
    let most = HELPS_A_MINUTE * MINUTES;
    if led > most {
        let what = format!("views have changed {led} times for one that recovers");
        return Err(Failure::new("views", what));
    }
    // A window each time, up to a checkpoint, and what was asked for.
    let places = most * (LOG_WINDOW + CHECKPOINT_INTERVAL) + 2 * token;
    if w.agreed() > Seq(places) {
        let what = format!("{:?} places for one that recovers", w.agreed());
        return Err(Failure::new("places", what));
    }
    w.start(3)?;
    append(&mut w, 0, token..token + 5, 5_000)?;
    w.finish().map(|_| ())
}

/// Two of ten are liars, and one has lost its log. They answer it with estimates that are far off, low, or could be true. f = 3, so that where all others answer
/// two lies move neither bound: it comes back with those of the seven who tell the truth.
pub(super) fn two_liars_of_ten_move_no_bound() -> Outcome {
    const FAR: u64 = 1 << 40;
    let near = |n: u64| (CHECKPOINT_INTERVAL * n, CHECKPOINT_INTERVAL * n + 7, n);
    for lies in [
        [(FAR, FAR, FAR), (FAR, FAR, FAR)],
        [(0, FAR, 0), (FAR, 0, FAR)],
        [(0, 0, 0), (0, 0, 0)],
        [near(3), near(4)],
    ] {
        let mut knobs = Knobs::calm(10);
        knobs.clients = 1;
        let mut w = World::new(1, knobs, Sink::None);
        w.run_for(20)?;
        append(&mut w, 0, 0..CHECKPOINT_INTERVAL + 10, 1000)?;
        w.crash(9);
        w.lose_log(9);
        w.set_filter(Some(|from, to, message| {
            [7, 8].contains(&from) && to == 9 && matches!(message, PeerMessage::Estimate(_))
        }));
        let nonce = w.wall(9).0;
        w.start(9)?;
        for (from, (checkpoint, prepared, view)) in [7, 8].into_iter().zip(lies) {
            let lie = PeerMessage::Estimate(Estimate {
                nonce,
                checkpoint: Seq(checkpoint),
                prepared: Seq(prepared),
                view: View(view),
            });
            w.handle(9, Input::Peer(ReplicaId(from), lie))?;
        }
        let answers = standing(&w, 9).recovering.expect("it recovers").answers;
        assert_eq!(answers, 2, "the lies were heard");
        let bound = |w: &World| standing(w, 9).recovering.and_then(|r| r.bound);
        w.run_until("estimated", 1_000, |w| bound(w).is_some())?;
        let found = bound(&w).expect("just now");
        let right = Seq(CHECKPOINT_INTERVAL + LOG_WINDOW);
        if found.seq != right || found.view > View(30) {
            let what = format!("{lies:?} make it {found:?}");
            return Err(Failure::new("estimates", what));
        }
        w.run_until("back", 20_000, |w| {
            let it = standing(w, 9);
            it.active && it.recovering.is_none()
        })?;
        append(&mut w, 0, 500..505, 5_000)?;
        w.finish().map(|_| ())?;
    }
    Ok(())
}
