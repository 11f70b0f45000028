//! What a new view starts from: a pure function of a set of VIEW-CHANGEs. PBFT 2002, 4.4, "New-View Message Construction".
//!
//! The primary of the new view and each backup run it over the same messages and must come to the same result.

use alloc::vec::Vec;

use quorate_wire::message::{Batch, ViewChange, Vote};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{Digest, Quorum, Seq};

use crate::LOG_WINDOW;

/// What a new view starts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The checkpoint: place and root.
    pub start: (Seq, Digest),
    /// The batches at the places after it, without gaps; the null batch where nothing can have committed.
    pub batches: Vec<Digest>,
}

/// Selects, or `None` where the messages do not suffice yet and more must be awaited.
///
/// `changes` are of distinct senders, for one view, and well formed ([`well_formed`]).
pub fn select(quorum: Quorum, changes: &[&ViewChange]) -> Option<Selection> {
    if changes.len() < commit(quorum, Mutant::SelectsFrom2f) {
        return None;
    }
    let start = select_start(quorum, changes)?;
    let last = changes
        .iter()
        .flat_map(|c| c.prepared.iter().map(|v| v.seq))
        // Nothing above the start's window can have committed: f+1 correct replicas would have passed the start. And a
        // liar's far place must not drive the loop (published bug, Themis view_change.rs: it drove an allocation).
        .filter(|&seq| {
            let near = seq.0.saturating_sub(start.0.0) <= LOG_WINDOW;
            seq > start.0 && (near || is_on(Mutant::HugeNumber))
        })
        .max()
        .unwrap_or(start.0);
    let mut batches = Vec::new();
    if is_on(Mutant::HugeNumber) {
        batches.reserve((last.0 - start.0.0) as usize);
    }
    let mut seq = start.0;
    while seq < last {
        seq = seq.next();
        let batch = select_batch(quorum, changes, seq)?;
        if batch == Batch::null().digest() && is_on(Mutant::GapsClosed) {
            continue;
        }
        batches.push(batch);
    }
    Some(Selection { start, batches })
}

/// The highest checkpoint that 2f+1 replicas have not passed and f+1 vouch for.
fn select_start(quorum: Quorum, changes: &[&ViewChange]) -> Option<(Seq, Digest)> {
    let vouched = |candidate: &(Seq, Digest)| {
        let not_passed = changes.iter().filter(|c| c.stable <= candidate.0).count();
        let holders = changes
            .iter()
            .filter(|c| c.checkpoints.contains(candidate))
            .count();
        not_passed >= commit(quorum, Mutant::CheckpointPassed)
            && holders >= one_less(quorum.weak(), Mutant::CheckpointOfF)
    };
    let all = changes.iter().flat_map(|c| c.checkpoints.iter().copied());
    let fit = all.filter(vouched);
    match is_on(Mutant::LowestCheckpoint) {
        true => fit.min(),
        false => fit.max(),
    }
}

/// The batch for one place: the one that may have committed (A), or null where none can have (B). Published bugs: what had committed in an
/// earlier round did not bind a later one (IBFT, arXiv 1901.07160); a certificate that was no good spoilt others (concord-bft pull 50).
fn select_batch(quorum: Quorum, changes: &[&ViewChange], seq: Seq) -> Option<Digest> {
    let at = |votes: &[Vote]| -> Option<Vote> { votes.iter().find(|v| v.seq == seq).cloned() };
    let below = |passed| {
        let all = changes.iter();
        all.filter(move |c| c.stable < seq || is_on(passed))
    };

    if is_on(Mutant::CertificatesIgnored) {
        return Some(Batch::null().digest());
    }
    if is_on(Mutant::FirstProofWins)
        && let Some(first) = changes.iter().find_map(|c| at(&c.prepared))
    {
        return Some(first.digest);
    }
    let mut candidates: Vec<Vote> = changes.iter().filter_map(|c| at(&c.prepared)).collect();
    candidates.sort_by_key(|v| (v.view, v.digest));
    if is_on(Mutant::LowestViewWins) {
        candidates.reverse();
    }
    // PBFT 2002, 4.4: the certificate of the highest view wins, so look from there.
    for candidate in candidates.iter().rev() {
        let allows = |c: &&&ViewChange| {
            at(&c.prepared).is_none_or(|p| {
                let same = p.digest == candidate.digest || is_on(Mutant::A1AnyDigest);
                p.view < candidate.view || (p.view == candidate.view && same)
            })
        };
        let vouches = |c: &&&ViewChange| {
            c.preprepared.iter().any(|q| {
                let late = q.view >= candidate.view || is_on(Mutant::A2AnyView);
                q.seq == seq && q.digest == candidate.digest && late
            })
        };
        let allow = below(Mutant::A1Passed).filter(allows).count();
        let vouch = changes.iter().filter(vouches).count();
        let a1 = allow >= commit(quorum, Mutant::A1With2f) || is_on(Mutant::WithoutA1);
        let a2 = vouch >= one_less(quorum.weak(), Mutant::A2WithF) || is_on(Mutant::WithoutA2);
        if a1 && a2 {
            return Some(candidate.digest);
        }
        if is_on(Mutant::OneBadTaints) {
            return Some(Batch::null().digest());
        }
    }
    let none = below(Mutant::NullPassed).filter(|c| at(&c.prepared).is_none());
    let b = none.count() >= commit(quorum, Mutant::NullWith2f);
    b.then(|| Batch::null().digest())
}

/// 2f+1; one less in a mutant, or where a view begins with fewer.
fn commit(quorum: Quorum, mutant: Mutant) -> usize {
    match is_on(Mutant::SelectsFrom2f) {
        true => one_less(quorum.commit(), Mutant::SelectsFrom2f),
        false => one_less(quorum.commit(), mutant),
    }
}

/// How many are needed: one less in a mutant.
pub(crate) fn one_less(needed: usize, mutant: Mutant) -> usize {
    needed - usize::from(is_on(mutant) && needed > 1)
}

/// Whether a VIEW-CHANGE keeps the rules that every correct sender keeps: bounded, in order, inside its own window and
/// of earlier views. What does not is dropped alone; it does not taint the others.
pub fn well_formed(quorum: Quorum, change: &ViewChange) -> bool {
    let ViewChange {
        view,
        replica,
        stable,
        checkpoints,
        prepared,
        preprepared,
    } = change;
    let in_window = |v: &Vote| {
        let near = v.seq.0.saturating_sub(stable.0) <= LOG_WINDOW || is_on(Mutant::HugeNumber);
        let earlier = v.view < *view || (v.view == *view && is_on(Mutant::LaterViewsTaken));
        v.seq > *stable && near && earlier
    };
    quorum.contains(*replica)
        && checkpoints.first().is_some_and(|(seq, _)| seq == stable)
        && checkpoints.len() as u64 <= LOG_WINDOW + 1
        && checkpoints.windows(2).all(|w| w[0].0 < w[1].0)
        && prepared.windows(2).all(|w| w[0].seq < w[1].seq)
        && prepared.iter().all(in_window)
        && preprepared.len() as u64 <= LOG_WINDOW * crate::slot::MAX_PREPREPARED as u64
        && preprepared
            .windows(2)
            .all(|w| (w[0].seq, w[0].digest) < (w[1].seq, w[1].digest))
        && preprepared.iter().all(in_window)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use quorate_wire::digest::Content;
    use quorate_wire::{ReplicaId, View};

    fn digest(name: &str) -> Digest {
        Digest::of(Content::Batch, name.as_bytes())
    }

    fn vote(seq: u64, view: u64, name: &str) -> Vote {
        Vote {
            seq: Seq(seq),
            view: View(view),
            digest: digest(name),
        }
    }

    fn change(replica: u8, prepared: Vec<Vote>, preprepared: Vec<Vote>) -> ViewChange {
        let root = Digest::of(Content::TreeNode, b"genesis");
        ViewChange {
            view: View(9),
            replica: ReplicaId(replica),
            stable: Seq(0),
            checkpoints: vec![(Seq(0), root)],
            prepared,
            preprepared,
        }
    }

    fn run(changes: &[ViewChange]) -> Option<Vec<Digest>> {
        let refs: Vec<&ViewChange> = changes.iter().collect();
        select(Quorum::new(4).unwrap(), &refs).map(|s| s.batches)
    }

    /// Nothing prepared anywhere: the view starts empty.
    #[test]
    fn an_idle_group_selects_nothing() {
        let changes: Vec<_> = (0..3).map(|r| change(r, vec![], vec![])).collect();
        assert_eq!(run(&changes), Some(vec![]));
        assert_eq!(run(&changes[..2]), None, "2f+1 are needed");
    }

    /// Published bug (Themis view_change.rs): the proof that is found first wins, not the one of the highest view.
    #[test]
    fn the_certificate_of_the_highest_view_wins() {
        let changes = [
            change(
                0,
                vec![vote(1, 2, "old")],
                vec![vote(1, 2, "old"), vote(1, 5, "new")],
            ),
            change(1, vec![vote(1, 5, "new")], vec![vote(1, 5, "new")]),
            change(2, vec![], vec![]),
        ];
        assert_eq!(run(&changes), Some(vec![digest("new")]));
    }

    /// A liar's certificate that nobody else has pre-prepared is not selected, and does not stop the view
    /// once a third correct replica has spoken.
    #[test]
    fn an_invented_certificate_waits_for_more_then_loses() {
        let liar = change(
            3,
            vec![vote(1, 8, "invented")],
            vec![vote(1, 8, "invented")],
        );
        let honest: Vec<_> = (0..3).map(|r| change(r, vec![], vec![])).collect();
        let with_two = [liar.clone(), honest[0].clone(), honest[1].clone()];
        assert_eq!(run(&with_two), None);
        let with_three = [
            liar,
            honest[0].clone(),
            honest[1].clone(),
            honest[2].clone(),
        ];
        assert_eq!(run(&with_three), Some(vec![Batch::null().digest()]));
    }

    /// The same, of one that has made a checkpoint at 128 its stable one.
    fn passed(replica: u8) -> ViewChange {
        let mut change = change(replica, vec![], vec![]);
        change.stable = Seq(128);
        change.checkpoints = vec![(Seq(128), digest("made"))];
        change
    }

    fn null() -> Option<Vec<Digest>> {
        Some(vec![Batch::null().digest()])
    }

    /// Of two certificates that could both be selected the higher view's is.
    #[test]
    fn of_two_that_could_be_selected_the_highest_view_wins() {
        let changes = [
            change(0, vec![vote(1, 2, "old")], vec![vote(1, 2, "old")]),
            change(1, vec![vote(1, 5, "new")], vec![vote(1, 5, "new")]),
            change(2, vec![], vec![vote(1, 2, "old"), vote(1, 5, "new")]),
            change(3, vec![], vec![]),
        ];
        assert_eq!(run(&changes), Some(vec![digest("new")]));
        assert_eq!(
            run(&[changes[0].clone(), changes[2].clone(), changes[3].clone()]),
            Some(vec![digest("old")])
        );
    }

    /// A1: 2f+1 must allow a certificate. One of a later view does not, though too few vouch for that one; nor does another of the same view.
    #[test]
    fn what_others_hold_keeps_a_certificate_back() {
        for other in [vote(1, 5, "other"), vote(1, 2, "other")] {
            let mut changes = vec![
                change(0, vec![vote(1, 2, "it")], vec![vote(1, 2, "it")]),
                change(1, vec![other.clone()], vec![other]),
                change(2, vec![], vec![vote(1, 2, "it")]),
            ];
            assert_eq!(run(&changes), None);
            // Who has passed the place has dropped what it knew of it, and allows nothing.
            changes.push(passed(3));
            assert_eq!(run(&changes), None);
            changes[3] = change(3, vec![], vec![]);
            assert_eq!(run(&changes), Some(vec![digest("it")]));
        }
    }

    /// A2: who pre-prepared the batch in an earlier view than the certificate's may have done so for a primary that nobody followed.
    #[test]
    fn earlier_votes_do_not_vouch() {
        let earlier = || vec![vote(1, 2, "it")];
        let late = || vec![vote(1, 5, "it")];
        let mut changes = vec![
            change(0, vec![], earlier()),
            change(1, vec![], earlier()),
            change(2, vec![], vec![]),
            change(3, late(), late()),
        ];
        assert_eq!(run(&changes), null());
        changes[1] = change(1, vec![], late());
        assert_eq!(run(&changes), Some(vec![digest("it")]));
    }

    /// B: for a null batch 2f+1 must hold no certificate there, and who has passed the place may have held one.
    #[test]
    fn who_has_passed_a_place_makes_it_not_null() {
        let mut changes = vec![
            change(0, vec![], vec![]),
            change(1, vec![], vec![]),
            change(2, vec![vote(1, 3, "it")], vec![vote(1, 3, "it")]),
            passed(3),
        ];
        assert_eq!(run(&changes), None);
        changes[3] = change(3, vec![], vec![]);
        assert_eq!(run(&changes), null());
    }

    /// A view does not start from a checkpoint that one of 2f+1 has passed: something may have committed after it that nobody else knows of.
    #[test]
    fn a_checkpoint_that_was_passed_is_no_start() {
        let mut changes = vec![
            change(0, vec![], vec![]),
            change(1, vec![], vec![]),
            passed(2),
        ];
        assert_eq!(run(&changes), None);
        changes.push(change(3, vec![], vec![]));
        assert_eq!(run(&changes), Some(vec![]));
    }

    /// A place below a prepared one, at which nothing prepared, becomes null.
    #[test]
    fn gaps_are_filled_with_null() {
        let p = vec![vote(2, 1, "b")];
        let changes: Vec<_> = (0..3).map(|r| change(r, p.clone(), p.clone())).collect();
        assert_eq!(
            run(&changes),
            Some(vec![Batch::null().digest(), digest("b")])
        );
    }

    /// What has committed (prepared at f+1 correct replicas) is in every selection, whatever a liar says.
    #[test]
    fn a_committed_batch_survives_every_quorum() {
        let p = vec![vote(1, 3, "committed")];
        let holders: Vec<_> = (0..2).map(|r| change(r, p.clone(), p.clone())).collect();
        // The third correct replica pre-prepared it only; or knows nothing.
        for third_q in [p.clone(), vec![]] {
            let third = change(2, vec![], third_q);
            for lie in [vec![], vec![vote(1, 8, "other")], vec![vote(1, 3, "other")]] {
                let liar = change(3, lie.clone(), lie);
                let all = [holders[0].clone(), holders[1].clone(), third.clone(), liar];
                for left_out in 0..5usize {
                    let some: Vec<_> = (0..4)
                        .filter(|i| *i != left_out)
                        .map(|i| all[i].clone())
                        .collect();
                    if let Some(batches) = run(&some) {
                        assert_eq!(batches, vec![digest("committed")], "without {left_out}");
                    }
                }
            }
        }
    }

    /// The start is the highest checkpoint that f+1 hold, and one liar can't raise it.
    #[test]
    fn one_replica_cannot_raise_the_start() {
        let mut changes: Vec<_> = (0..4).map(|r| change(r, vec![], vec![])).collect();
        changes[3].checkpoints.push((Seq(128), digest("invented")));
        changes[1].checkpoints.push((Seq(128), digest("made")));
        let refs: Vec<&ViewChange> = changes.iter().collect();
        let q = Quorum::new(4).unwrap();
        assert_eq!(select(q, &refs).unwrap().start.0, Seq(0));
        changes[2].checkpoints.push((Seq(128), digest("made")));
        let refs: Vec<&ViewChange> = changes.iter().collect();
        assert_eq!(select(q, &refs).unwrap().start, (Seq(128), digest("made")));
    }

    /// Huge numbers, disorder and later views are refused before they can drive a loop or an allocation.
    #[test]
    fn malformed_changes_are_refused() {
        let q = Quorum::new(4).unwrap();
        assert!(well_formed(q, &change(0, vec![vote(1, 1, "a")], vec![])));
        assert!(!well_formed(
            q,
            &change(0, vec![vote(u64::MAX, 1, "a")], vec![])
        ));
        assert!(!well_formed(q, &change(0, vec![vote(0, 1, "a")], vec![])));
        assert!(!well_formed(q, &change(0, vec![vote(1, 9, "a")], vec![])));
        assert!(!well_formed(
            q,
            &change(0, vec![vote(2, 1, "a"), vote(1, 1, "a")], vec![])
        ));
        assert!(!well_formed(
            q,
            &change(0, vec![vote(1, 1, "a"), vote(1, 2, "b")], vec![])
        ));
        assert!(!well_formed(q, &change(4, vec![], vec![])));
        let mut none = change(0, vec![], vec![]);
        none.checkpoints.clear();
        assert!(!well_formed(q, &none));
    }
}
