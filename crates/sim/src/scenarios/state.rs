//! Fetching, mending and giving state.

use quorate_agreement::{CHECKPOINT_INTERVAL, LOG_WINDOW};
use quorate_fault::Fault;
use quorate_wire::{ReplicaId, Seq};

use super::*;
use crate::knobs::Adversary;
use crate::service::{BULKY, list_key};

/// Those who start again give their newest state to one who lags too far for batches, also where weight has made a checkpoint
/// before its number was due. Without them there is no quorum.
pub(super) fn who_starts_again_helps_those_who_lag() -> Outcome {
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

/// A replica was away for longer than the others keep their log: it fetches the state, though one donor's pieces are wrong.
pub(super) fn state_transfer_with_a_lying_donor() -> Outcome {
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

/// A replica lags too far for batches while checkpoints come several times a second. One of the others, the first in the order of numbers, shows it the root of
/// each and nothing below: by the time at which that is noticed the others have dropped what was asked for.
pub(super) fn who_withholds_keeps_nobody_out() -> Outcome {
    let mut w = group(1, |k| {
        // Some forty requests.
        k.checkpoint_bytes = 10_000;
        k.adversaries = vec![(ReplicaId(0), Adversary::Fault(Fault::Withhold))];
    });
    append(&mut w, 0, 0..3, 1000)?;
    w.crash(3);
    append(&mut w, 0, 3..420, 1000)?;
    w.start(3)?;
    let mut is_back = false;
    for token in 420..3_000 {
        append(&mut w, 0, token..token + 1, 1000)?;
        let it = standing(&w, 3);
        is_back = !it.fetching && it.executed.0 + 20 > standing(&w, 1).executed.0;
        if is_back {
            break;
        }
    }
    assert!(is_back, "it is still out");
    w.finish().map(|_| ())
}

/// The power goes in the midst of a state transfer, when the store holds neither the old state nor the new one.
pub(super) fn a_state_transfer_is_cut_short() -> Outcome {
    let mut w = group(1, |k| k.encode = false);
    append(&mut w, 0, 0..3, 1000)?;
    w.crash(3);
    for token in 0..120 {
        let op = ListOp {
            kind: APPEND,
            key: BULKY,
            token: 1000 + token,
            expected: 0,
            work: 0,
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
pub(super) fn a_damaged_state_is_mended() -> Outcome {
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

/// A value in one replica's store is one that nobody wrote so, though its sums are right. Whoever reads it says so, and it comes from
/// the others; also if the power goes on the way, and with workers.
pub(super) fn an_unreadable_value_is_mended() -> Outcome {
    for (value, workers, cut) in [
        (Some(Bytes::from_static(b"?")), false, None),
        (Some(Bytes::from_static(b"?")), true, None),
        (Some(Bytes::new()), false, Some(3)),
        (Some(Bytes::new()), true, Some(8)),
    ] {
        let mut w = group(1, |k| k.workers = workers);
        append(&mut w, 0, 0..140, 1000)?;
        w.crash(3);
        for list in 0..3 {
            w.spoil(3, list_key(list), value.clone());
        }
        w.start(3)?;
        if let Some(ms) = cut {
            w.run_for(ms)?;
            w.crash(3);
            w.start(3)?;
        }
        append(&mut w, 0, 140..146, 1000)?;
        w.run_until("mended", 5_000, |w| {
            let it = standing(w, 3);
            !it.fetching && it.executed == standing(w, 0).executed
        })?;
        // It is needed.
        w.crash(1);
        append(&mut w, 0, 146..300, 5000)?;
        w.start(1)?;
        w.finish()?;
        let content = |i: usize| &w.server(i).disk.store;
        assert!(content(3).seq >= Seq(256) && content(3).root == content(0).root);
        for list in 0..3 {
            let entries = |i: usize| content(i).snapshot.entries.get(&list_key(list));
            assert_eq!(entries(3), entries(0));
        }
    }
    Ok(())
}
