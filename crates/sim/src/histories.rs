//! Histories of one place: what correct replicas may have voted for in a few views, whatever a faulty one said, and what the
//! selection makes of it. It must never give up what may have committed, and never wait for ever.
//!
//! Votes are drawn, not exchanged, so a run costs microseconds, and what no network brings about in a million runs comes up in
//! a thousand: certificates that one replica alone holds, in several views. The selection is the real one.

use quorate_agreement::selection::{select, well_formed};
use quorate_wire::digest::Content;
use quorate_wire::message::{Batch, ViewChange, Vote};
use quorate_wire::{Digest, Quorum, ReplicaId, Seq, View};

use crate::checks::Failure;
use crate::dice::Dice;

const VIEWS: u64 = 6;
const PLACE: Seq = Seq(1);

/// What a correct replica remembers of the place.
#[derive(Clone, Debug, Default)]
struct Memory {
    prepared: Option<Vote>,
    preprepared: Vec<Vote>,
}

struct History {
    dice: Dice,
    quorum: Quorum,
    /// The correct replicas; those that are faulty come after them.
    correct: Vec<Memory>,
    /// What may have committed.
    committed: Option<Digest>,
}

/// Runs the history of a seed.
///
/// # Errors
/// A selection that gives up what may have committed, or that is not possible although all correct replicas have spoken.
pub fn run(seed: u64) -> Result<(), Failure> {
    let mut dice = Dice::new(seed, 30);
    let quorum = Quorum::new(if dice.per_mille(800) { 4 } else { 7 }).expect("sizes of groups");
    let correct = vec![Memory::default(); quorum.commit()];
    let mut history = History {
        dice,
        quorum,
        correct,
        committed: None,
    };
    for view in 0..VIEWS {
        let selected = match view {
            0 => None,
            _ => match history.change(View(view))? {
                Some(selected) => selected,
                // Nobody can start this view.
                None => continue,
            },
        };
        history.vote(View(view), selected)?;
    }
    Ok(())
}

fn batch(number: u64) -> Digest {
    match number {
        0 => Batch::null().digest(),
        n => Digest::of(Content::Batch, &n.to_le_bytes()),
    }
}

impl History {
    /// The votes of a view. Without a selection its primary proposes what it likes; a faulty one, two things.
    fn vote(&mut self, view: View, selected: Option<Digest>) -> Result<(), Failure> {
        let equivocates = self.dice.per_mille(300);
        let proposed = [1, 2].map(|n| batch(3 * view.0 + n));
        let mut voters: Vec<(usize, Digest)> = Vec::new();
        for replica in 0..self.correct.len() {
            let second = equivocates && self.dice.per_mille(500);
            let digest = selected.unwrap_or(proposed[usize::from(second)]);
            if self.dice.per_mille(700) {
                voters.push((replica, digest));
                let memory = &mut self.correct[replica];
                memory.preprepared.retain(|v| v.digest != digest);
                memory.preprepared.push(vote(view, digest));
                memory.preprepared.sort_by_key(|v| v.digest);
            }
        }
        let faulty = self.quorum.f();
        for digest in selected.map_or(proposed.to_vec(), |d| vec![d]) {
            let all = voters.iter().filter(|(_, d)| *d == digest);
            let all: Vec<usize> = all.map(|(replica, _)| *replica).collect();
            if all.len() + faulty < self.quorum.commit() {
                continue;
            }
            let mut certificates = 0;
            for replica in all {
                if self.dice.per_mille(400) {
                    self.correct[replica].prepared = Some(vote(view, digest));
                    certificates += 1;
                }
            }
            if certificates + faulty >= self.quorum.commit() {
                let first = *self.committed.get_or_insert(digest);
                if first != digest {
                    let what = format!("{digest:?} commits in {view:?} after {first:?}");
                    return Err(Failure::new("agreement", what));
                }
            }
        }
        Ok(())
    }

    /// The change to a view: what some primary makes of some VIEW-CHANGEs. `None` where there is no selection;
    /// `Some(None)` where the place is free.
    fn change(&mut self, view: View) -> Result<Option<Option<Digest>>, Failure> {
        let said: Vec<ViewChange> = (0..self.correct.len())
            .map(|replica| {
                let Memory {
                    prepared,
                    preprepared,
                } = self.correct[replica].clone();
                change(replica, view, prepared.into_iter().collect(), preprepared)
            })
            .collect();
        let all: Vec<&ViewChange> = said.iter().collect();
        if select(self.quorum, &all).is_none() {
            let what =
                format!("{view:?} can't start although all correct replicas have spoken: {all:?}");
            return Err(Failure::new("liveness", what));
        }
        let lies: Vec<ViewChange> = (self.correct.len()..self.quorum.n())
            .map(|replica| self.lie(replica, view))
            .collect();
        let mut heard: Vec<&ViewChange> = said.iter().chain(&lies).collect();
        while heard.len() > self.quorum.commit() && self.dice.per_mille(700) {
            let out = self.dice.below(heard.len() as u64) as usize;
            heard.remove(out);
        }
        let Some(selection) = select(self.quorum, &heard) else {
            return Ok(None);
        };
        let selected = selection.batches.first().copied();
        match self.committed {
            Some(committed) if selected != Some(committed) => {
                let what = format!(
                    "{committed:?} may have committed, {view:?} has {selected:?}: {heard:?}"
                );
                Err(Failure::new("agreement", what))
            }
            _ => Ok(Some(selected)),
        }
    }

    /// Anything in good form.
    fn lie(&mut self, replica: usize, view: View) -> ViewChange {
        let dice = &mut self.dice;
        let some = dice.range((0, 3));
        let mut any = |_| {
            let known = dice.range((0, 3 * view.0));
            vote(View(dice.below(view.0)), batch(known))
        };
        let mut preprepared: Vec<Vote> = (0..some).map(&mut any).collect();
        let prepared = any(0);
        preprepared.sort_by_key(|v| v.digest);
        preprepared.dedup_by_key(|v| v.digest);
        let prepared = self.dice.per_mille(700).then_some(prepared);
        change(replica, view, prepared.into_iter().collect(), preprepared)
    }
}

fn vote(view: View, digest: Digest) -> Vote {
    let seq = PLACE;
    Vote { seq, view, digest }
}

fn change(replica: usize, view: View, prepared: Vec<Vote>, preprepared: Vec<Vote>) -> ViewChange {
    let change = ViewChange {
        view,
        replica: ReplicaId(replica as u8),
        stable: Seq(0),
        checkpoints: vec![(Seq(0), Digest::ZERO)],
        prepared,
        preprepared,
    };
    let quorum = Quorum::new(7).expect("a size of a group");
    assert!(well_formed(quorum, &change), "{change:?}");
    change
}
