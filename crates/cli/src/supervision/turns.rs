//! Whose turn it is to recover, and which turns were had. A turn is to be had in its part of the period, Tw / n: what keeps a replica from
//! recovering at first, such as others that could not be missed, is looked at again until then.

use std::collections::{BTreeMap, BTreeSet};

use super::schedule::Schedule;

/// How soon after a refusal the replica tries again, in milliseconds.
const AGAIN_MS: u64 = 1_000;
/// A turn that is refused for so long is told, and counts as missed until it is had. A supervisor that was just started has to hear of the
/// others first. In milliseconds.
const GRACE_MS: u64 = 5_000;

/// The turns of replicas.
#[derive(Debug, Default)]
pub struct Turns {
    /// For each replica the begin of the turn, in milliseconds since 1970, that it has had or is not to have.
    over: BTreeMap<u8, u64>,
    /// Turns that are on, and were refused.
    refused: BTreeMap<u8, Refused>,
    /// The turns that are on, as they were looked at last.
    on: BTreeMap<u8, u64>,
}

#[derive(Debug)]
struct Refused {
    turn: u64,
    /// When it was refused first, in milliseconds since 1970.
    since: u64,
    /// And last, and why.
    last: u64,
    why: String,
    told: bool,
}

/// What is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    /// This replica is to recover.
    Now(u8),
    /// The turn of this one has gone by, and nothing was told of it. With what it was refused for last, if it was.
    Over(u8, Option<String>),
}

impl Turns {
    /// At a time in milliseconds since 1970, in a group of `n`. Of the turns that are on those remain to be had that are in their part of the
    /// period, and that were not `had`.
    pub fn new(schedule: &Schedule, n: usize, now_ms: u64, had: impl Fn(u8, u64) -> bool) -> Turns {
        let turn = |id: u8| Some((id, schedule.turn(id, n, now_ms)?));
        let on = (0..n as u8).filter_map(turn);
        let over =
            on.filter(|(id, turn)| had(*id, *turn) || !schedule.is_in_turn(n, *turn, now_ms));
        Turns {
            over: over.collect(),
            ..Turns::default()
        }
    }

    /// What is due for one of these replicas; at most one thing at a time.
    pub fn due(&mut self, schedule: &Schedule, n: usize, ids: &[u8], now_ms: u64) -> Option<Due> {
        for id in ids.iter().copied() {
            let Some(turn) = schedule.turn(id, n, now_ms) else {
                continue;
            };
            if self.over.get(&id) == Some(&turn) {
                continue;
            }
            self.on.insert(id, turn);
            let refused = self.refused.get(&id).filter(|refused| refused.turn == turn);
            if !schedule.is_in_turn(n, turn, now_ms) {
                let was_told = refused.is_some_and(|refused| refused.told);
                let why = refused.map(|refused| refused.why.clone());
                self.had(id);
                match was_told {
                    true => continue,
                    false => return Some(Due::Over(id, why)),
                }
            }
            if refused.is_none_or(|refused| now_ms.saturating_sub(refused.last) >= AGAIN_MS) {
                return Some(Due::Now(id));
            }
        }
        None
    }

    /// The turn of a replica is over.
    pub fn had(&mut self, id: u8) {
        self.refused.remove(&id);
        if let Some(turn) = self.on.remove(&id) {
            self.over.insert(id, turn);
        }
    }

    /// The replicas that could not have the turn that is on.
    pub fn put_off(&self) -> BTreeSet<u8> {
        self.refused.keys().copied().collect()
    }

    /// A replica could not have its turn just now. Gives the reason back where it is to be told.
    pub fn refused(&mut self, id: u8, why: String, now_ms: u64) -> Option<String> {
        let turn = *self.on.get(&id)?;
        let new = || Refused {
            turn,
            since: now_ms,
            last: now_ms,
            why: String::new(),
            told: false,
        };
        let refused = self.refused.entry(id).or_insert_with(new);
        if refused.turn != turn {
            *refused = new();
        }
        refused.last = now_ms;
        refused.why.clone_from(&why);
        let tells = !refused.told && now_ms.saturating_sub(refused.since) >= GRACE_MS;
        refused.told |= tells;
        tells.then_some(why)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const EVERY_MS: u64 = 600_000;
    /// The begin of a period.
    const BEGIN: u64 = 1_800_000_000_000;

    fn schedule(directory: &tempfile::TempDir) -> Schedule {
        let mut schedule = Schedule::load(directory.path());
        let every = Some(Duration::from_millis(EVERY_MS));
        schedule.set(every, None).unwrap();
        schedule
    }

    /// A turn that is refused is tried again, once a second, and told when that has gone on for a while; when it is had after all nothing else is due,
    /// and the next one is as if nothing had been.
    #[test]
    fn a_refused_turn_is_tried_again() {
        let directory = tempfile::tempdir().unwrap();
        let schedule = schedule(&directory);
        let turn = BEGIN + EVERY_MS / 4;
        let mut turns = Turns::new(&schedule, 4, turn - 1, |_, _| true);
        let due = |turns: &mut Turns, at| turns.due(&schedule, 4, &[1], at);
        assert_eq!(due(&mut turns, turn - 1), None);
        let mut told = Vec::new();
        for second in 0..10 {
            let now = turn + 1000 * second;
            assert_eq!(due(&mut turns, now), Some(Due::Now(1)), "{second}");
            told.extend(turns.refused(1, format!("{second}"), now));
            assert_eq!(due(&mut turns, now + 999), None, "{second}");
        }
        assert_eq!(told, ["5"]);
        assert_eq!(due(&mut turns, turn + 11_000), Some(Due::Now(1)));
        assert_eq!(turns.put_off(), [1].into());
        turns.had(1);
        assert_eq!(turns.put_off(), [].into());
        assert_eq!(due(&mut turns, turn + 12_000), None);
        assert_eq!(due(&mut turns, turn + EVERY_MS), Some(Due::Now(1)));
        assert_eq!(turns.refused(1, String::new(), turn + EVERY_MS), None);
    }

    /// What was neither had nor told when its part of the period is over is told then, once.
    #[test]
    fn a_turn_that_goes_by_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let schedule = schedule(&directory);
        let turn = BEGIN + EVERY_MS / 4;
        let mut turns = Turns::new(&schedule, 4, turn - 1, |_, _| true);
        let due = |turns: &mut Turns, at| turns.due(&schedule, 4, &[1], at);
        let over = Some(Due::Over(1, None));
        assert_eq!(due(&mut turns, turn + EVERY_MS / 4), over);
        assert_eq!(due(&mut turns, turn + EVERY_MS / 4), None);
        let next = turn + EVERY_MS;
        assert_eq!(due(&mut turns, next), Some(Due::Now(1)));
        assert_eq!(turns.refused(1, String::new(), next), None);
        assert!(turns.refused(1, String::new(), next + GRACE_MS).is_some());
        assert_eq!(due(&mut turns, next + EVERY_MS / 4), None, "it was told");
    }

    /// A turn that was refused until it was over, in a part of the period that is too short for that to be told, is told with what it was refused for.
    #[test]
    fn a_short_turn_has_its_reason_told() {
        let directory = tempfile::tempdir().unwrap();
        let mut schedule = schedule(&directory);
        schedule
            .set(Some(super::super::schedule::SHORTEST), None)
            .unwrap();
        let part = super::super::schedule::SHORTEST.as_millis() as u64 / 4;
        let turn = BEGIN + part;
        let mut turns = Turns::new(&schedule, 4, turn - 1, |_, _| true);
        for at in (turn..turn + part).step_by(1_000) {
            assert_eq!(turns.due(&schedule, 4, &[1], at), Some(Due::Now(1)));
            assert_eq!(turns.refused(1, format!("at {}", at - turn), at), None);
        }
        let over = Some(Due::Over(1, Some(format!("at {}", part - 1_000))));
        assert_eq!(turns.due(&schedule, 4, &[1], turn + part), over);
    }

    /// A supervisor that is started within a turn that was not had sees to it; not when it is late, nor of turns before there was a schedule.
    #[test]
    fn a_turn_is_not_lost_with_the_supervisor() {
        let directory = tempfile::tempdir().unwrap();
        let schedule = schedule(&directory);
        let turn = BEGIN + EVERY_MS / 4;
        let all = [0, 1, 2, 3];
        let due = |at, had: bool| {
            let mut turns = Turns::new(&schedule, 4, at, |_, _| had);
            turns.due(&schedule, 4, &all, at)
        };
        assert_eq!(due(turn + 10_000, false), Some(Due::Now(1)));
        assert_eq!(due(turn + 10_000, true), None);
        assert_eq!(due(turn + EVERY_MS / 4, false), Some(Due::Now(2)));
    }
}
