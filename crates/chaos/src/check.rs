//! Whether what clients saw of an object can have come of one operation after the other.
//!
//! Linearizability (Herlihy and Wing 1990): each operation takes effect at one moment between its call and its answer. The
//! search is that of Wing and Gong 1993, in the just-in-time form of Lowe 2017 (section 4): go through calls and answers in the
//! order of time, and keep all pairs of a state and the open operations that have taken effect in it. An operation
//! is made to take effect only when some answer needs it. Pairs that were met before are not followed again. An operation without an answer
//! stays open for ever. Each object is checked by itself.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{NAMES, Object, Op, Operation, Outcome, Slot};
use crate::model::State;

/// A mount's kernel may take names for granted for a second after it was told of them, by its own coarse clock; in microseconds.
const STALE_US: u64 = 1_500_000;
/// A write through a mount that took so long may have been sent in two sessions, and have taken effect twice; in microseconds.
const TWICE_US: u64 = 30_000_000;

/// How much may be tried for one object before the search gives up.
pub const BUDGET: usize = 2_000_000;

/// What was found out about one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order.
    Linearizable,
    /// The search was given up; too many operations were open at once.
    Undecided,
    /// There is no order in which this operation has its outcome. The text says what was possible before it.
    Violation(Box<Operation>, String),
}

/// An operation as the search sees it.
#[derive(Clone, Debug)]
struct Interval<'a> {
    operation: &'a Operation,
    op: Op,
    outcome: Option<Outcome>,
    begun: u64,
    /// `u64::MAX` for never.
    ended: u64,
}

impl Interval<'_> {
    fn step(&self, state: &State) -> Vec<State> {
        state.step(&self.op, self.outcome.as_ref())
    }

    /// Whether it has changed nothing, as its outcome says. (To find out a file's number is no change.)
    fn is_pure(&self) -> bool {
        match self.outcome {
            Some(Outcome::Value(_) | Outcome::Log { .. } | Outcome::Found(_)) => true,
            Some(Outcome::Missing | Outcome::Exists | Outcome::Stale) => true,
            Some(Outcome::Listing(_)) => true,
            Some(Outcome::Done | Outcome::At(_) | Outcome::Made(_)) => false,
            Some(Outcome::Torn(_) | Outcome::Refused(_)) | None => false,
        }
    }
}

/// Checks a history, object by object.
pub fn check(history: &[Operation], budget: usize) -> BTreeMap<Object, Verdict> {
    let mut objects: BTreeMap<Object, Vec<Interval<'_>>> = BTreeMap::new();
    for interval in intervals(history) {
        let object = interval.op.object();
        objects.entry(object).or_default().push(interval);
    }
    let verdict = |(object, intervals): (Object, Vec<Interval<'_>>)| {
        (object, search(object, &intervals, budget))
    };
    objects.into_iter().map(verdict).collect()
}

/// What each operation means: what nobody was told of a read says nothing; what a kernel may have had from its
/// cache can be as old as that.
fn intervals(history: &[Operation]) -> Vec<Interval<'_>> {
    let mut out = Vec::new();
    for (place, operation) in history.iter().enumerate() {
        let (ended, outcome) = match &operation.ended {
            Some((ended, outcome)) => (*ended, Some(outcome.clone())),
            None if operation.op.is_read() => continue,
            None => (u64::MAX, None),
        };
        let interval = Interval {
            operation,
            op: operation.op.clone(),
            outcome,
            begun: operation.begun,
            ended,
        };
        if !operation.mounted {
            out.push(interval);
            continue;
        }
        match (&interval.op, &interval.outcome) {
            (Op::List { tree, directory }, Some(Outcome::Listing(_))) => {
                // The kernel asks for a directory page by page.
                out.extend(looks(&interval, *tree, *directory, history, place));
            }
            (Op::Look { at }, Some(Outcome::Found(_))) if was_moved(history, place, *at) => {}
            // The kernel may have refused it for what it knew of both names, from different times. Of the target this says
            // what a refused creation does.
            (Op::Rename { to, .. }, Some(Outcome::Exists)) => out.push(Interval {
                op: Op::Create { at: *to, token: 0 },
                begun: cached_since(history, place),
                ..interval
            }),
            (_, Some(Outcome::Exists | Outcome::Found(_))) => out.push(Interval {
                begun: cached_since(history, place),
                ..interval
            }),
            (Op::Write { .. }, Some(_)) if ended - operation.begun > TWICE_US => {
                out.push(Interval {
                    outcome: None,
                    ended: u64::MAX,
                    ..interval.clone()
                });
                out.push(interval);
            }
            _ => out.push(interval),
        }
    }
    out
}

/// A listing through a mount, name by name.
fn looks<'a>(
    listing: &Interval<'a>,
    tree: u8,
    directory: u8,
    history: &[Operation],
    place: usize,
) -> Vec<Interval<'a>> {
    let Some(Outcome::Listing(listed)) = &listing.outcome else {
        return Vec::new();
    };
    let begun = cached_since(history, place);
    let look = |name: u8| {
        let at = Slot {
            tree,
            directory,
            name,
        };
        let found = listed.iter().find(|(n, _)| *n == name);
        Interval {
            op: Op::Look { at },
            outcome: Some(found.map_or(Outcome::Missing, |(_, ino)| Outcome::Found(*ino))),
            begun,
            ..listing.clone()
        }
    };
    (0..NAMES).map(look).collect()
}

/// Since when a mount's kernel may have known what an operation was told: it was told by an operation that ended no longer
/// ago than it keeps names, and that may have been true from that one's start.
fn cached_since(history: &[Operation], place: usize) -> u64 {
    let own = &history[place];
    let earlier = history[..place].iter().filter(|o| {
        let end = o.ended.as_ref().map_or(u64::MAX, |(end, _)| *end);
        o.mounted && o.client == own.client && end.saturating_add(STALE_US) >= own.begun
    });
    let begun = earlier.map(|o| o.begun).min();
    begun.map_or(own.begun, |b| b.min(own.begun))
}

/// Whether the caller's mount has moved a file to a name so lately that its kernel may take the file for another one: it moves what it knew
/// by the old name, which may be old.
fn was_moved(history: &[Operation], place: usize, name: Slot) -> bool {
    let own = &history[place];
    history[..place].iter().any(|o| {
        let end = o.ended.as_ref().map_or(u64::MAX, |(end, _)| *end);
        let moves = matches!(o.op, Op::Rename { to, .. } if to == name);
        moves && o.mounted && o.client == own.client && end.saturating_add(STALE_US) >= own.begun
    })
}

/// A state, and the open operations that have taken effect in it: those that may have changed it, and those that have not. Both
/// rise.
type Config = (State, Vec<usize>, Vec<usize>);

fn search(object: Object, intervals: &[Interval<'_>], budget: usize) -> Verdict {
    // Calls before answers of the same time: those operations overlap.
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    for (at, interval) in intervals.iter().enumerate() {
        events.push((interval.begun, false, at));
        if interval.ended != u64::MAX {
            events.push((interval.ended, true, at));
        }
    }
    events.sort_unstable();
    let mut left = budget;
    let mut open: BTreeSet<usize> = BTreeSet::new();
    let initial = (State::initial(object), Vec::new(), Vec::new());
    let mut configs = BTreeSet::from([initial]);
    for (_, is_answer, at) in events {
        if !is_answer {
            open.insert(at);
            continue;
        }
        let Some(next) = answer(intervals, &open, &configs, at, &mut left) else {
            return Verdict::Undecided;
        };
        if next.is_empty() {
            let operation = intervals[at].operation.clone();
            let text = explain(intervals, &open, &configs, at);
            return Verdict::Violation(Box::new(operation), text);
        }
        open.remove(&at);
        configs = without_lesser(next);
    }
    Verdict::Linearizable
}

/// All configurations in which the operation `at` has taken effect, without it. `None` if that takes too long.
fn answer(
    intervals: &[Interval<'_>],
    open: &BTreeSet<usize>,
    configs: &BTreeSet<Config>,
    at: usize,
    left: &mut usize,
) -> Option<BTreeSet<Config>> {
    let mut next = BTreeSet::new();
    let mut met: BTreeSet<Config> = BTreeSet::new();
    let mut todo: Vec<Config> = configs.iter().cloned().collect();
    while let Some((state, changed, mut seen)) = todo.pop() {
        // What changes nothing can as well take effect as soon as it can: it stands in nobody's way.
        for &other in open.iter().filter(|other| intervals[**other].is_pure()) {
            if let Err(place) = seen.binary_search(&other) {
                *left = left.checked_sub(1)?;
                if intervals[other].step(&state).contains(&state) {
                    seen.insert(place, other);
                }
            }
        }
        if let Some(changed) = without(&changed, at) {
            next.insert((state, changed, seen));
            continue;
        }
        if let Some(seen) = without(&seen, at) {
            next.insert((state, changed, seen));
            continue;
        }
        for &other in open {
            if seen.binary_search(&other).is_ok() {
                continue;
            }
            let Err(place) = changed.binary_search(&other) else {
                continue;
            };
            *left = left.checked_sub(1)?;
            for state in intervals[other].step(&state) {
                let mut changed = changed.clone();
                changed.insert(place, other);
                let config = (state, changed, seen.clone());
                if met.insert(config.clone()) {
                    todo.push(config);
                }
            }
        }
    }
    Some(next)
}

fn without(rising: &[usize], at: usize) -> Option<Vec<usize>> {
    let place = rising.binary_search(&at).ok()?;
    let mut rest = rising.to_vec();
    rest.remove(place);
    Some(rest)
}

/// Of two configurations that differ in what has been seen alone, the one in which all of the other's and more was seen can do all that the
/// other can.
fn without_lesser(configs: BTreeSet<Config>) -> BTreeSet<Config> {
    let mut groups: BTreeMap<(State, Vec<usize>), Vec<Vec<usize>>> = BTreeMap::new();
    for (state, changed, seen) in configs {
        let group = groups.entry((state, changed)).or_default();
        let has_all =
            |more: &[usize], less: &[usize]| less.iter().all(|one| more.binary_search(one).is_ok());
        if !group.iter().any(|other| has_all(other, &seen)) {
            group.retain(|other| !has_all(&seen, other));
            group.push(seen);
        }
    }
    let mut out = BTreeSet::new();
    for ((state, changed), group) in groups {
        let configs = group.into_iter();
        out.extend(configs.map(|seen| (state.clone(), changed.clone(), seen)));
    }
    out
}

fn explain(
    intervals: &[Interval<'_>],
    open: &BTreeSet<usize>,
    configs: &BTreeSet<Config>,
    at: usize,
) -> String {
    const MOST: usize = 8;
    let mut text = format!(
        "{}\nnothing explains it. Before it:\n",
        intervals[at].operation
    );
    for (state, changed, seen) in configs.iter().take(MOST) {
        text += &format!("  {state:?}, with open operations done: {changed:?} {seen:?}\n");
    }
    if configs.len() > MOST {
        text += &format!("  and {} more\n", configs.len() - MOST);
    }
    text += "Open meanwhile:\n";
    for other in open.iter().filter(|other| **other != at) {
        text += &format!("  [{other}] {}\n", intervals[*other].operation);
    }
    let mut before: Vec<usize> = (0..intervals.len())
        .filter(|i| intervals[*i].ended < intervals[at].ended)
        .collect();
    before.sort_by_key(|i| intervals[*i].ended);
    text += "Answered last:\n";
    for other in before.iter().rev().take(MOST) {
        text += &format!("  {}\n", intervals[*other].operation);
    }
    text
}

#[cfg(test)]
mod tests;
