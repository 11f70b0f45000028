//! What registers, logs and trees do, one operation after the other.

use crate::history::{DIRECTORIES, Mode, NAMES, Object, Op, Outcome, Slot, extend};

/// Marks the number of a file of which only the creation's token is known.
const UNKNOWN: u64 = 1 << 63;

/// An object's state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// The token.
    Register(u64),
    /// Length and digest.
    Log { bytes: u64, digest: u64 },
    /// The file that has each name; 0 for none.
    Tree(Vec<u64>),
}

impl State {
    /// How an object begins: a register with token 0, the others empty.
    pub fn initial(object: Object) -> State {
        match object {
            Object::Register(_) => State::Register(0),
            Object::Log(_) => State::Log {
                bytes: 0,
                digest: 0,
            },
            Object::Tree(_) => State::Tree(vec![0; usize::from(DIRECTORIES) * usize::from(NAMES)]),
        }
    }

    /// The states that may follow if the operation takes effect now and has this outcome; any it can have, if it is not known.
    /// None: that can't be.
    pub fn step(&self, op: &Op, outcome: Option<&Outcome>) -> Vec<State> {
        let told = |expected: Outcome| outcome.is_none_or(|o| *o == expected);
        let when = |possible: bool, next: State| match possible {
            true => vec![next],
            false => Vec::new(),
        };
        match (self, op) {
            (State::Register(_), Op::Write { token, .. }) => {
                when(told(Outcome::Done), State::Register(*token))
            }
            (State::Register(token), Op::Read { .. }) => {
                when(told(Outcome::Value(*token)), self.clone())
            }
            (State::Log { bytes, digest }, Op::Append { token, .. }) => {
                let next = State::Log {
                    bytes: bytes + 8,
                    digest: extend(*digest, *token),
                };
                when(told(Outcome::At(*bytes)), next)
            }
            (&State::Log { bytes, digest }, Op::ReadLog { .. }) => {
                when(told(Outcome::Log { bytes, digest }), self.clone())
            }
            (State::Tree(names), op) => {
                let next = step_tree(names, op, outcome);
                next.into_iter().map(State::Tree).collect()
            }
            // An operation on another kind of object.
            (State::Register(_) | State::Log { .. }, _) => Vec::new(),
        }
    }
}

fn step_tree(names: &[u64], op: &Op, outcome: Option<&Outcome>) -> Vec<Vec<u64>> {
    let told = |expected: Outcome| outcome.is_none_or(|o| *o == expected);
    let same = |possible: bool| match possible {
        true => vec![names.to_vec()],
        false => Vec::new(),
    };
    let with = |changes: &[(Slot, u64)]| {
        let mut next = names.to_vec();
        for (slot, ino) in changes {
            next[slot.place()] = *ino;
        }
        vec![next]
    };
    let at = |slot: &Slot| names[slot.place()];
    match op {
        Op::Create { at: slot, .. } if at(slot) != 0 => same(told(Outcome::Exists)),
        Op::Create { at: slot, token } => match outcome {
            // The numbers of files are never used again.
            Some(Outcome::Made(ino)) if !names.contains(ino) => with(&[(*slot, *ino)]),
            None => with(&[(*slot, UNKNOWN | token)]),
            Some(_) => Vec::new(),
        },
        Op::Remove { at: slot } if at(slot) == 0 => same(told(Outcome::Missing)),
        Op::Remove { at: slot } if told(Outcome::Done) => with(&[(*slot, 0)]),
        Op::Remove { .. } => Vec::new(),
        Op::Rename {
            from,
            to,
            mode,
            cached,
        } => {
            let (source, target) = (at(from), at(to));
            let mut next = match (source, target, mode) {
                (0, _, _) | (_, 0, Mode::Exchange) => same(told(Outcome::Missing)),
                (_, 1.., Mode::NoReplace) => same(told(Outcome::Exists)),
                // Two names of one file: nothing happens (rename(2)).
                _ if source == target => same(told(Outcome::Done)),
                (_, _, Mode::Exchange) if told(Outcome::Done) => {
                    with(&[(*from, target), (*to, source)])
                }
                _ if told(Outcome::Done) => with(&[(*from, 0), (*to, source)]),
                _ => Vec::new(),
            };
            if *cached && *mode != Mode::NoReplace && told(Outcome::Done) {
                next.extend(same(true));
            }
            next
        }
        Op::Link { ino, at: slot } => {
            let (alive, free) = (names.contains(ino), at(slot) == 0);
            match (alive, free, outcome) {
                (true, true, Some(Outcome::Done) | None) => with(&[(*slot, *ino)]),
                // A file without a name may still be open, or be gone.
                (false, _, Some(Outcome::Stale | Outcome::Missing) | None) => same(true),
                (_, false, Some(Outcome::Exists) | None) => same(true),
                _ => Vec::new(),
            }
        }
        Op::Look { at: slot } => match (at(slot), outcome) {
            (_, None) | (0, Some(Outcome::Missing)) => same(true),
            (1.., Some(Outcome::Found(ino))) => bind(names, slot.place(), *ino),
            _ => Vec::new(),
        },
        Op::List { directory, .. } => match outcome {
            None => same(true),
            Some(Outcome::Listing(listed)) => list(names, *directory, listed),
            Some(_) => Vec::new(),
        },
        Op::Write { .. } | Op::Read { .. } | Op::Append { .. } | Op::ReadLog { .. } => Vec::new(),
    }
}

/// The state, if the file at a place has this number. A file whose number was not known has it from now on.
fn bind(names: &[u64], place: usize, ino: u64) -> Vec<Vec<u64>> {
    match names[place] {
        found if found == ino => vec![names.to_vec()],
        // Not if the number is another file's.
        found if found & UNKNOWN != 0 && !names.contains(&ino) => {
            let number = |name: &u64| if *name == found { ino } else { *name };
            vec![names.iter().map(number).collect()]
        }
        _ => Vec::new(),
    }
}

fn list(names: &[u64], directory: u8, listed: &[(u8, u64)]) -> Vec<Vec<u64>> {
    let mut state = names.to_vec();
    for name in 0..NAMES {
        let slot = Slot {
            tree: 0,
            directory,
            name,
        };
        let found = listed.iter().find(|(n, _)| *n == name);
        let bound = match (state[slot.place()], found) {
            (0, None) => continue,
            (1.., Some((_, ino))) => bind(&state, slot.place(), *ino),
            _ => Vec::new(),
        };
        match bound.into_iter().next() {
            Some(next) => state = next,
            None => return Vec::new(),
        }
    }
    // Nothing else may be listed.
    match listed.iter().all(|(name, _)| *name < NAMES) {
        true => vec![state],
        false => Vec::new(),
    }
}
