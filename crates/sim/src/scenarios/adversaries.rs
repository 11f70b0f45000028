//! Replicas and clients that do what they must not.

use bytes::Bytes;
use quorate_agreement::{CHECKPOINT_INTERVAL, INLINE_BYTES};
use quorate_fault::Fault;
use quorate_replica::Input;
use quorate_wire::digest::Content;
use quorate_wire::message::{
    AuthRequest, Batch, Commit, Committed, NewView, PeerMessage, PrePrepare, Request,
    SignedNewView, SignedViewChange, Status, ViewChange, Vote,
};
use quorate_wire::{
    Authentication, Authenticator, Digest, Mac, Quorum, ReplicaId, RequestNumber, Seq, SessionId,
    Time, View,
};

use super::*;
use crate::client::client_key;
use crate::keys::standing_signer;
use crate::knobs::Adversary;

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

/// A primary that answers well within the time-out, and a hundred times as slowly as it could, is left in a few seconds, also where all that is asked is so long that
/// it goes to all replicas. A slow backup changes nothing.
pub(super) fn slow_primary() -> Outcome {
    for (slow, inline_bytes) in [(0, INLINE_BYTES), (2, INLINE_BYTES), (0, 0)] {
        let mut w = group(4, |k| {
            k.adversaries = vec![(ReplicaId(slow), Adversary::Fault(Fault::Slow))];
            (k.tuning.inline_bytes, k.options.inline_bytes) = (inline_bytes, inline_bytes);
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

/// A primary that makes each proposal some milliseconds late, by no more than is forgiven at a moment, is left, whether one client asks or many; and the prompt one
/// after it is kept.
pub(super) fn dawdling_primary() -> Outcome {
    late_primary(Fault::Dawdle)
}

/// So is one that makes them late by less than machines that have much to do.
pub(super) fn lingering_primary() -> Outcome {
    late_primary(Fault::Linger)
}

/// And one that proposes in time, and has all wait for the content of what it proposes.
pub(super) fn bare_primary() -> Outcome {
    late_primary(Fault::Bare)
}

fn late_primary(fault: Fault) -> Outcome {
    for clients in [1, 12] {
        let mut w = group(clients, |k| {
            k.adversaries = vec![(ReplicaId(0), Adversary::Fault(fault))];
            k.timeout_ms = 2_500;
            k.operations = 10_000;
            k.window = 1;
            k.think = (10_000, 40_000);
            k.delay = (50, 300);
        });
        w.run_until("in another view", 12_000, |w| {
            (1..4).all(|i| standing(w, i).view > View(0) && standing(w, i).active)
        })?;
        w.run_for(20_000)?;
        assert!((1..4).all(|i| standing(&w, i).view == View(1)));
    }
    Ok(())
}

/// A primary that has something in flight far ahead all the time, while what leads there comes late, is as slow as one that delays all,
/// and is left as soon.
pub(super) fn leaping_primary() -> Outcome {
    // Where a client has one request at a time, it waits for less than any patience: only the judgement of the primary's pace is left.
    for (clients, window) in [(4, 4), (1, 1)] {
        let mut w = group(clients, |k| {
            k.adversaries = vec![(ReplicaId(0), Adversary::Fault(Fault::Leap))];
            k.timeout_ms = 2_500;
            k.operations = 200;
            k.window = window;
            k.think = (0, 5_000);
            k.delay = (200, 1_000);
        });
        w.run_until("in another view", 8_000, |w| {
            (1..4).all(|i| standing(w, i).view > View(0) && standing(w, i).active)
        })?;
        w.finish()?;
        assert!((1..4).all(|i| standing(&w, i).view == View(1)));
    }
    Ok(())
}

/// A primary that orders what all ask but one client is left for that: where many others keep it busy all the time, since it goes on without
/// what it was shown; where it has little to do, since it lets that wait. Disks are so slow that any patience is far longer.
pub(super) fn starving_primary() -> Outcome {
    // The starved one is that with the lowest key.
    let mut clients = [0, 1];
    clients.sort_by_key(|&client| client_key(client).public());
    let [starved, other] = clients;
    for open in [48, 1] {
        let mut w = group(2, |k| {
            k.adversaries = vec![(ReplicaId(0), Adversary::Fault(Fault::Starve))];
            k.sync = (200_000, 200_000);
            k.timeout_ms = 20_000;
            k.tuning.batch_requests = 1;
        });
        let mut token = 10;
        let mut busy: Vec<usize> = Vec::new();
        // What others ask all the time; until the end, or for so long.
        let mut work = |w: &mut World, ms: u64, end: Option<usize>| -> Result<bool, Failure> {
            for _ in 0..ms {
                busy.retain(|&o| w.operation(o).done.is_none());
                while busy.len() < open {
                    token += 1;
                    busy.push(ask(w, other, token));
                }
                w.run_for(1)?;
                if end.is_some_and(|o| w.operation(o).done.is_some()) {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        work(&mut w, 10_000, None)?;
        assert!((1..4).all(|i| standing(&w, i).view == View(0)));
        let operation = ask(&mut w, starved, 1);
        if !work(&mut w, 5_000, Some(operation))? {
            let said = format!("one client is not served beside {open} requests");
            return Err(Failure::new("liveness", said));
        }
        assert!((1..4).all(|i| standing(&w, i).view == View(1)));
        w.finish()?;
    }
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

/// One replica lies to clients, and no batch ever comes to another one, which has each state from the others before it could have the batch. A read that these two can't answer with the rest, since that
/// one is behind, is ordered, and asked for with a result that is kept: it comes with the state.
pub(super) fn reads_beside_one_in_the_dark() -> Outcome {
    let mut w = group(2, |k| {
        k.adversaries = vec![(ReplicaId(1), Adversary::Fault(Fault::Lie))];
        k.checkpoint_bytes = 1;
    });
    append(&mut w, 0, 0..2, 5_000)?;
    append(&mut w, 1, 2..3, 5_000)?;
    w.set_filter(Some(|_, to, message| {
        let is_of_a_batch = matches!(
            message,
            PeerMessage::PrePrepare(_)
                | PeerMessage::Prepare(_)
                | PeerMessage::Commit(_)
                | PeerMessage::Committed(_)
                | PeerMessage::Batch(_)
        );
        to == 3 && is_of_a_batch
    }));
    let before = standing(&w, 0).committed;
    let written = ask(&mut w, 1, 3);
    w.run_until("it commits", 5_000, |w| standing(w, 0).committed > before)?;
    let get = ListOp {
        kind: GET,
        key: 0,
        token: 0,
        expected: 0,
        work: 0,
        padding: Bytes::new(),
    };
    let read = w.call(0, get.to_bytes().into(), true);
    w.run_until("both are answered", 20_000, |w| {
        let is_done = |&o: &usize| w.operation(o).done.is_some();
        [written, read].iter().all(is_done)
    })?;
    w.set_filter(None);
    w.finish().map(|_| ())
}

/// A primary works with two others alone: it sends the fourth nothing, and answers no client. Where reads are not ordered a write takes 2f+1 answers as well, so all
/// three that are correct have to give theirs, and nobody asks for anything else that would bring the fourth up (Berger, Reiser, Bessani, SRDS 2021). Nor is the result of a
/// read that is ordered kept, so the fourth must come to each while the batch is there; there are so many that one of them is followed by a checkpoint.
pub(super) fn a_primary_with_two_others_alone() -> Outcome {
    let mut w = group(1, |_| {});
    append(&mut w, 0, 0..1, 2_000)?;
    let client = 4;
    [3, client].into_iter().for_each(|to| w.net().block(0, to));
    append(&mut w, 0, 1..2, 5_000)?;
    let read = ListOp {
        kind: GET,
        key: 1,
        token: 2,
        expected: 0,
        work: 0,
        padding: Bytes::new(),
    };
    for _ in 0..CHECKPOINT_INTERVAL {
        // The client does not know that it only reads, and has it ordered.
        let read = w.call(0, read.to_bytes().into(), false);
        w.run_until("the read is answered", 5_000, |w| {
            w.operation(read).done.is_some()
        })?;
    }
    assert!(standing(&w, 3).stable.0 > Seq(0));
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

/// A client's MAC is wrong for one backup alone, without which there are no 2f+1 while another is away. It votes for what f+1 others have voted for: the client need not
/// repeat anything, and the view stays (Aardvark, NSDI 2009).
pub(super) fn what_others_vouch_for_is_voted_for() -> Outcome {
    let mut w = group(2, |_| {});
    // Who has no link to all signs.
    append(&mut w, 1, 0..1, 2_000)?;
    w.run_for(11_000)?;
    w.client_mut(1).bad_macs = [ReplicaId(3)].into();
    w.client_mut(1).stubborn = true;
    w.set_filter(Some(|from, to, _| from == 2 || to == 2));
    let next = Seq(standing(&w, 0).committed.0 + 1);
    ask(&mut w, 1, 1);
    w.run_until("it commits, in the view that there is", 5_000, |w| {
        let is_there = |i| standing(w, i).committed >= next && standing(w, i).view == View(0);
        [0, 1, 3].into_iter().all(is_there)
    })?;
    w.client_mut(1).stubborn = false;
    w.set_filter(None);
    w.finish().map(|_| ())
}

/// A client that is right for the primary alone, and never repeats: no backup ever hears from it. A view change gets rid of what it left.
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

/// Who has the keys of many clients has each send one request that is right for the primary alone, one after the other. Some cost a view;
/// then all sign what they ask, and no more views are left. The others are answered all along.
pub(super) fn clients_with_wrong_macs_in_turn() -> Outcome {
    const MANY: usize = 40;
    let mut w = group(1 + MANY, |_| {});
    // Nobody counts what comes before.
    w.run_for(11_000)?;
    for client in 1..=MANY {
        let number = client as u64;
        // It learns who leads.
        append(&mut w, client, 2_000 + number..2_001 + number, 5_000)?;
        let view = standing(&w, 0).view;
        let primary = Quorum::new(4).expect("a size").primary(view);
        let others = [0, 1, 2, 3].map(ReplicaId).into_iter();
        w.client_mut(client).stubborn = true;
        w.client_mut(client).bad_macs = others.filter(|r| *r != primary).collect();
        ask(&mut w, client, 1_000 + number);
        w.run_for(5)?;
        append(&mut w, 0, number..number + 1, 5_000)?;
        w.crash_client(client);
    }
    // A view is seen by three replicas, each of which has sixteen to see.
    let view = standing(&w, 0).view;
    if !(View(8)..View(24)).contains(&view) {
        return Err(Failure::new("liveness", format!("{view} is the last")));
    }
    w.finish().map(|_| ())
}

/// A client sends what is long, and so travels in no proposal, to the primary alone, and never again. The backups have it from the primary, with
/// its client's authenticator; nobody waits for long, and no view is left.
pub(super) fn long_requests_for_the_primary_alone() -> Outcome {
    for is_bad in [false, true] {
        let mut w = group(2, |k| {
            k.tuning.inline_bytes = 0;
            k.options.inline_bytes = 0;
        });
        append(&mut w, 1, 0..1, 2_000)?;
        // Replicas suspect nobody before.
        w.run_for(11_000)?;
        w.client_mut(1).stubborn = true;
        if is_bad {
            w.client_mut(1).bad_macs = [1, 2, 3].map(ReplicaId).into();
        }
        for round in 0..12 {
            ask(&mut w, 1, 1_000 + round);
            w.run_for(5)?;
            append(&mut w, 0, 10 * round + 1..10 * round + 3, 20_000)?;
        }
        // With wrong ones a view may be left once, before the client is on signed terms.
        let view = standing(&w, 0).view;
        if view > View(u64::from(is_bad)) {
            return Err(Failure::new("liveness", format!("{view} is the {is_bad}")));
        }
        w.crash_client(1);
        w.finish()?;
    }
    Ok(())
}

/// A request that is right for one replica and wrong for the others. Its session is nobody's, so that nothing comes of it.
fn right_for_one(w: &mut World, number: u64, server: usize) -> AuthRequest {
    let (client, session) = (client_key(1).public(), SessionId(1 << 40));
    let request = Request::new(client, session, RequestNumber(number), Bytes::new());
    w.made_by_hand(&request);
    let mut macs = vec![Mac([0xee; 16]); 4];
    let key = w.link_key(1, server).expect("a link");
    macs[server] = key.mac(&request.digest());
    AuthRequest {
        request,
        auth: Authenticator::Macs(macs),
        replier: ReplicaId(0),
    }
}

/// A faulty client has a faulty backup pass its requests on to whoever is the primary, with MACs that are right for that one alone; the
/// backup votes for nothing. Each primary falls for it once (Aardvark, NSDI 2009).
pub(super) fn a_client_and_a_replica_in_league() -> Outcome {
    let mut w = group(2, |_| {});
    w.run_for(4_000)?;
    (0..3).for_each(|to| w.net().block(3, to));
    let mut last = View(0);
    for round in 0..12 {
        let views = (0..3).map(|i| standing(&w, i).view);
        let primary = (views.max().unwrap_or(View(0)).0 % 4) as usize;
        if primary != 3 {
            let shown = PeerMessage::Request(right_for_one(&mut w, 1 + round, primary));
            w.handle(primary, Input::Peer(ReplicaId(3), shown))?;
        }
        append(&mut w, 0, 2 * round..2 * round + 2, 20_000)?;
        let before = last;
        last = standing(&w, 0).view;
        if round >= 6 && last > before {
            return Err(Failure::new("liveness", "views are left without end"));
        }
    }
    w.net().join();
    w.finish().map(|_| ())
}

/// A faulty backup passes on what a client asked long ago, with the MACs that were right then. None of it is ordered again.
pub(super) fn old_requests_are_not_ordered() -> Outcome {
    let mut w = group(2, |_| {});
    let mut old = Vec::new();
    // Beyond the next checkpoint agreement itself has forgotten them.
    for token in 0..140 {
        append(&mut w, 0, token..token + 1, 2_000)?;
        old.extend(w.client_mut(0).last_sent.take());
    }
    assert!(old.len() >= 140 && standing(&w, 0).stable.0 > Seq(0));
    w.run_for(1_000)?;
    let before = standing(&w, 0).committed;
    for request in old {
        let shown = PeerMessage::Request(request);
        w.handle(0, Input::Peer(ReplicaId(3), shown))?;
        w.run_for(5)?;
    }
    let ordered = standing(&w, 0).committed.0 - before.0;
    if ordered > 10 {
        let said = format!("{ordered} places for what was executed before");
        return Err(Failure::new("order", said));
    }
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
        PeerMessage::NewView(SignedNewView::sign(body, &standing_signer(from)).into_inner())
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
    let change = SignedViewChange::sign(change, &standing_signer(from)).into_inner();
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

/// One of two faulty replicas of seven tells one other alone that it recovers, and waits in a view not far ahead; the other says of each other one
/// in which view it is, and names another to each. Then both are silent, so that the group can do without nobody. When the next view does not begin, all
/// that are left meet in one that neither has named.
pub(super) fn who_is_led_away_alone_is_met() -> Outcome {
    let mut knobs = Knobs::calm(7);
    knobs.clients = 1;
    let mut w = World::new(1, knobs, Sink::None);
    w.run_for(20)?;
    append(&mut w, 0, 0..5, 1000)?;
    let ahead = Status {
        view: View(12),
        active: false,
        stable: Seq(1),
        committed: Seq(1),
        executed: Seq(1),
        primary_lost: false,
        recovering: Some(Seq(1)),
    };
    w.handle(1, Input::Peer(ReplicaId(6), PeerMessage::Status(ahead)))?;
    for (to, view) in [(0, 15), (2, 14), (3, 17), (4, 12)] {
        let body = ViewChange {
            view: View(view),
            replica: ReplicaId(5),
            stable: Seq(0),
            checkpoints: vec![(Seq(0), w.genesis_root())],
            prepared: vec![],
            preprepared: vec![],
        };
        let word = SignedViewChange::sign(body, &w.signer_of_now(ReplicaId(5))).into_inner();
        w.handle(to, Input::Peer(ReplicaId(5), PeerMessage::ViewChange(word)))?;
    }
    w.crash(5);
    w.crash(6);
    assert_eq!(standing(&w, 1).view, View(12));
    let open = ask(&mut w, 0, 5);
    w.run_until("answered", 4_000, |w| w.operation(open).done.is_some())?;
    w.run_until("in one view", 1_000, World::are_in_one_view)?;
    append(&mut w, 0, 6..10, 1000)?;
    w.start(5)?;
    w.start(6)?;
    w.finish().map(|_| ())
}
