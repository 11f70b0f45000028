//! Crashes and changes of views.

use std::collections::BTreeSet;

use quorate_agreement::LOG_WINDOW;
use quorate_replica::Input;
use quorate_wire::message::PeerMessage;
use quorate_wire::{Seq, View};

use super::*;
use crate::service::GET;

/// The primary's power goes: the others choose the next one, and the old one comes back into the view of the others.
pub(super) fn primary_crash() -> Outcome {
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

/// Votes are in memory alone. The primary's power goes, and it never comes back; the others go on, and none of them can go as well. What was
/// promised before holds.
pub(super) fn without_logs_who_crashes_is_gone() -> Outcome {
    let mut w = group(2, |k| k.memory = true);
    append(&mut w, 0, 0..5, 1000)?;
    let open: Vec<usize> = (5..9).map(|token| ask(&mut w, 1, token)).collect();
    w.run_for(1)?;
    w.crash(0);
    w.run_until("answered", 5_000, |w| {
        open.iter().all(|&o| w.operation(o).done.is_some())
    })?;
    w.start(0)?;
    w.crash(1);
    assert!(w.server(0).replica.is_none() && w.server(1).replica.is_some());
    append(&mut w, 0, 9..12, 5000)?;
    assert_eq!(w.server(1).disk.wal.bytes(), 0);
    w.finish().map(|_| ())
}

/// A primary that is to end hands its view over, and is gone when another leads: nobody's patience has to run out. One that does not
/// lead says nothing.
pub(super) fn a_primary_hands_over() -> Outcome {
    let mut w = group(1, |_| {});
    append(&mut w, 0, 0..5, 1000)?;
    w.handle(2, Input::HandOver)?;
    let open = ask(&mut w, 0, 50);
    w.handle(0, Input::HandOver)?;
    w.run_until("another leads", 100, |w| {
        (0..4).all(|i| standing(w, i).active && standing(w, i).view == View(1))
    })?;
    w.crash(0);
    w.run_until("answered", 100, |w| w.operation(open).done.is_some())?;
    append(&mut w, 0, 5..10, 100)?;
    assert!((1..4).all(|i| standing(&w, i).view == View(1)));
    w.start(0)?;
    w.run_until("in one view", 3000, World::are_in_one_view)?;
    w.finish().map(|_| ())
}

/// A power cut takes all four in the midst of work; what a client was told is still so when they are back.
pub(super) fn power_cut() -> Outcome {
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

/// Batches are prepared but not committed anywhere when the primary goes: the next view must have them.
pub(super) fn view_change_with_prepared_batches() -> Outcome {
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
pub(super) fn restart_in_a_view_change() -> Outcome {
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
/// way to the disk. After a restart the replica must not believe itself in the old view. How long the store takes decides what
/// comes when.
pub(super) fn the_log_is_cut_in_a_view_change() -> Outcome {
    let mut met = 0;
    for store in (40_000..200_000).step_by(10_000) {
        met += u32::from(the_log_is_cut_when(store)?);
    }
    assert!(met > 2, "the moment was met {met} times");
    Ok(())
}

/// Whether the checkpoint became stable when the view had been left.
fn the_log_is_cut_when(store: u64) -> Result<bool, Failure> {
    let mut w = group(1, |k| {
        k.sync = (60_000, 60_000);
        k.store = (store, store);
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
    if (1..4).all(|i| standing(&w, i).stable.0 > Seq(0)) {
        return Ok(false);
    }
    w.run_until("stable", 300, |w| {
        (1..4).all(|i| standing(w, i).stable.0 == Seq(128))
    })?;
    w.run_for(75)?;
    (1..4).for_each(|i| w.crash(i));
    (1..4).try_for_each(|i| w.start(i))?;
    let kept = (1..4).all(|i| standing(&w, i).view >= View(1));
    assert!(kept, "a view that was left is entered again");
    w.run_until("answered", 20_000, |w| {
        w.operation(operation).done.is_some()
    })?;
    w.finish().map(|_| true)
}

/// Who is primary is cut off again and again, and each time the group has made progress: the replicas' patience with the last one
/// is no longer than with the first (Prime; BFT-SMaRt issue 51).
pub(super) fn patience_falls_back() -> Outcome {
    let mut w = group(1, |_| {});
    append(&mut w, 0, 0..2, 1000)?;
    for round in 1..9 {
        let primary = (standing(&w, 0).view.0 % 4) as usize;
        w.net().cut(&[primary].into(), 5, false);
        append(&mut w, 0, round * 10..round * 10 + 2, 4000)?;
        w.net().join();
        w.run_until("in one view", 4000, World::are_in_one_view)?;
    }
    w.finish().map(|_| ())
}

/// Requests come one after the other, and there is always one that waits. The primary serves them all, so it stays
/// (BFT-SMaRt issue 57).
pub(super) fn steady_load_keeps_the_view() -> Outcome {
    let mut w = group(4, |k| {
        k.operations = 400;
        k.window = 8;
        k.think = (0, 5_000);
        k.delay = (3_000, 12_000);
        k.timeout_ms = 250;
    });
    w.finish()?;
    assert!((0..4).all(|i| standing(&w, i).view == View(0)));
    Ok(())
}

/// All have prepared, and the COMMITs of two get through: that is one too few, since one of the two may be faulty.
pub(super) fn two_commits_do_not_suffice() -> Outcome {
    let mut w = group(1, |_| {});
    append(&mut w, 0, 0..3, 1000)?;
    assert_eq!(w.agreed(), Seq(4));
    w.set_filter(Some(|from, _, message| match message {
        PeerMessage::Commit(_) => from >= 2,
        PeerMessage::Committed(_) => true,
        _ => false,
    }));
    ask(&mut w, 0, 50);
    w.run_for(100)?;
    assert!((0..2).all(|i| standing(&w, i).committed == Seq(4)));
    w.set_filter(None);
    w.finish().map(|_| ())
}

/// A place is null, after one replica alone has prepared a batch there, and commits. After a power cut of the others it is still
/// null, though the one who knows of the batch is heard now (fabric issue 1731).
pub(super) fn null_places_outlive_a_power_cut() -> Outcome {
    let mut w = group(1, |_| {});
    append(&mut w, 0, 0..3, 1000)?;
    assert_eq!(w.agreed(), Seq(4));
    // At place 5 nobody but server 3 has a certificate; at 6 all have.
    w.set_filter(Some(|_, to, message| match message {
        PeerMessage::Prepare(m) => m.seq == Seq(5) && to != 3,
        PeerMessage::Commit(_) | PeerMessage::Committed(_) => true,
        _ => false,
    }));
    let first = ask(&mut w, 0, 50);
    w.run_for(2)?;
    let second = ask(&mut w, 0, 51);
    w.run_for(20)?;
    w.set_filter(Some(|from, to, _| from == 3 || to == 3));
    w.run_until("past it", 5000, |w| {
        (0..3).all(|i| standing(w, i).executed >= Seq(6))
    })?;
    w.run_for(50)?;
    (0..3).for_each(|i| w.crash(i));
    // The others are enough for a change of views that knows of nothing.
    w.set_filter(Some(|from, _, message| {
        from == 0 && matches!(message, PeerMessage::ViewChange(_))
    }));
    (0..3).try_for_each(|i| w.start(i))?;
    w.run_until("together", 20_000, World::have_met)?;
    w.set_filter(None);
    w.run_until("answered", 20_000, |w| {
        [first, second]
            .iter()
            .all(|&o| w.operation(o).done.is_some())
    })?;
    w.finish().map(|_| ())
}

/// A client has the result of a batch that 2f+1 executed tentatively, and a view change undoes it at all of them. Until it has come
/// again, nobody may answer a read from the state without it.
pub(super) fn undone_results_are_not_missed() -> Outcome {
    let mut w = group(1, |_| {});
    append(&mut w, 0, 0..3, 1000)?;
    w.set_filter(Some(|_, _, message| {
        matches!(
            message,
            PeerMessage::Commit(_) | PeerMessage::Committed(_) | PeerMessage::NewView(_)
        )
    }));
    append(&mut w, 0, 50..51, 1000)?;
    // Its client has its result, so nobody waits for that batch; but for the next one.
    ask(&mut w, 0, 52);
    w.run_until("all have left", 5000, |w| {
        (0..4).all(|i| !standing(w, i).active)
    })?;
    let op = ListOp {
        kind: GET,
        key: 50 % 3,
        token: 51,
        expected: 0,
        work: 0,
        padding: Bytes::new(),
    };
    let read = w.call(0, op.to_bytes().into(), true);
    w.run_for(300)?;
    assert!(
        w.operation(read).done.is_none(),
        "what was undone is missed"
    );
    w.set_filter(None);
    w.finish().map(|_| ())
}

/// The primary's process stands still in the midst of steady work: its links stand, and it says nothing. Clients go on within half a
/// second, though the time-out is two and a half.
pub(super) fn a_paused_primary_is_soon_left() -> Outcome {
    let mut w = group(2, |k| k.timeout_ms = 2_500);
    append(&mut w, 0, 0..40, 1000)?;
    for token in 100..110 {
        append(&mut w, 1, token..token + 1, 1000)?;
        w.run_for(150)?;
    }
    w.net().cut(&[0].into(), 6, false);
    append(&mut w, 0, 50..51, 500)?;
    append(&mut w, 1, 150..151, 200)?;
    w.net().join();
    w.finish().map(|_| ())
}

/// The primary's power goes in the midst of the work of many clients. Whatever they have open, and what each asks next, is done within
/// twice the time-out, whenever it comes and however long the time-out is.
pub(super) fn service_is_back_within_two_timeouts() -> Outcome {
    for (seed, timeout_ms) in (1..=8).flat_map(|seed| [250, 500, 2_500].map(|t| (seed, t))) {
        let mut knobs = Knobs::calm(if seed % 4 == 0 { 7 } else { 4 });
        (knobs.clients, knobs.timeout_ms) = (8, timeout_ms);
        let mut w = World::new(seed, knobs, Sink::None);
        w.run_for(20 + seed)?;
        let mut open: Vec<(usize, usize)> = (0..8).map(|c| (c, ask(&mut w, c, c as u64))).collect();
        let mut token = 100;
        let mut work = |w: &mut World, open: &mut Vec<(usize, usize)>, ms: u64| {
            for _ in 0..ms {
                w.run_for(1)?;
                for (client, operation) in open.iter_mut() {
                    if w.operation(*operation).done.is_some() {
                        token += 1;
                        *operation = ask(w, *client, token);
                    }
                }
            }
            Ok(())
        };
        work(&mut w, &mut open, 300 + 37 * seed)?;
        w.crash(0);
        w.run_until("what was open is done", 2 * timeout_ms, |w| {
            open.iter().all(|(_, o)| w.operation(*o).done.is_some())
        })?;
        assert!(standing(&w, 1).view > View(0));
        work(&mut w, &mut open, 50)?;
        w.start(0)?;
        w.finish()?;
    }
    Ok(())
}

/// Three are left after the primary has gone. The last batch prepared at two of them and committed nowhere, though its client has been
/// answered; the third was away for longer than a window, and leads the next view from below it. Nobody asks for more, and the
/// other two can't commit without its vote.
pub(super) fn a_view_begins_above_its_primarys_window() -> Outcome {
    let mut w = group(1, |k| (k.delay, k.sync) = ((4_000, 4_000), (3_000, 3_000)));
    w.crash(1);
    append(&mut w, 0, 0..LOG_WINDOW + 1, 1000)?;
    w.run_until("stable", 1000, |w| {
        [0, 2, 3].map(|i| standing(w, i).stable.0) == [Seq(LOG_WINDOW); 3]
    })?;
    let last = ask(&mut w, 0, 1_000);
    let place = w.agreed().next();
    // Request, pre-prepare, prepare: the certificates are on their way to the disks when the servers hear no more of each other.
    w.run_for(16)?;
    (0..4).for_each(|a| (0..4).for_each(|b| w.net().block(a, b)));
    w.run_until("answered", 100, |w| w.operation(last).done.is_some())?;
    assert!([0, 2, 3].iter().all(|&i| standing(&w, i).committed < place));
    w.crash(0);
    w.start(1)?;
    w.net().join();
    w.run_until("committed", 5000, |w| {
        (1..4).all(|i| standing(w, i).committed >= place)
    })?;
    assert_eq!(standing(&w, 2).view, View(1), "server 1 leads");
    w.finish().map(|_| ())
}
