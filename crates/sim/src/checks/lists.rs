//! What clients read from lists, held against itself: nothing here looks at a replica or at the agreed order.
//!
//! A list only grows, so every result is a moment of its history: all results of one key must be beginnings of the longest,
//! a later operation must not see less than an earlier one that had ended, and no token may stand twice.

use std::collections::{BTreeMap, BTreeSet};

use quorate_wire::Decode;
use quorate_wire::message::Outcome;

use super::Failure;
use crate::history::Operation;
use crate::service::{APPEND, CAS, List, ListOp};

/// An operation that ended, as seen from its client.
struct Seen<'a> {
    operation: &'a Operation,
    kind: u8,
    token: u64,
    expected: u64,
    tokens: Vec<u64>,
    end: u64,
}

/// Holds the operations of all clients against each other; `last` is the final list of a key.
pub fn check(operations: &[Operation], last: impl Fn(u8) -> Vec<u64>) -> Result<(), Failure> {
    let mut keys: BTreeMap<u8, Vec<Seen>> = BTreeMap::new();
    for operation in operations {
        let Some((end, result)) = &operation.done else {
            continue;
        };
        let op = ListOp::from_bytes(operation.op.clone()).expect("an operation of our own");
        let Ok(Outcome::Done(answer)) = Outcome::from_bytes(result.clone()) else {
            continue;
        };
        let List { tokens } = List::from_bytes(answer)
            .map_err(|_| Failure::new("exactly once", format!("{operation} has no list")))?;
        keys.entry(op.key).or_default().push(Seen {
            operation,
            kind: op.kind,
            token: op.token,
            expected: op.expected.into(),
            tokens,
            end: *end,
        });
    }
    keys.iter()
        .try_for_each(|(&key, seen)| check_key(seen, &last(key)))
}

fn check_key(seen: &[Seen], last: &[u64]) -> Result<(), Failure> {
    let distinct: BTreeSet<u64> = last.iter().copied().collect();
    if distinct.len() != last.len() {
        return Err(Failure::new(
            "exactly once",
            format!("a token stands twice in {last:?}"),
        ));
    }
    for s in seen {
        if !last.starts_with(&s.tokens) {
            return Err(Failure::new(
                "durability",
                format!("{} saw {:?}, the end is {last:?}", s.operation, s.tokens),
            ));
        }
        let appended = s.tokens.last() == Some(&s.token);
        let must = s.kind == APPEND || (s.kind == CAS && s.tokens.len() as u64 == s.expected + 1);
        if s.kind == APPEND && !appended {
            return Err(Failure::new(
                "exactly once",
                format!("{} does not see its own token last", s.operation),
            ));
        }
        if appended && !must {
            return Err(Failure::new(
                "linearizability",
                format!("{} appended though the length was another", s.operation),
            ));
        }
    }
    check_real_time(seen)
}

fn check_real_time(seen: &[Seen]) -> Result<(), Failure> {
    let mut by_end: Vec<&Seen> = seen.iter().collect();
    by_end.sort_by_key(|s| s.end);
    let mut by_begin: Vec<&Seen> = seen.iter().collect();
    by_begin.sort_by_key(|s| s.operation.begun);
    // Of all that had ended when an operation began, the one that saw most.
    let mut most: Option<&Seen> = None;
    let mut ended = by_end.into_iter().peekable();
    for s in by_begin {
        while let Some(e) = ended.next_if(|e| e.end < s.operation.begun) {
            if most.is_none_or(|m| m.tokens.len() < e.tokens.len()) {
                most = Some(e);
            }
        }
        if let Some(most) = most
            && most.tokens.len() > s.tokens.len()
        {
            return Err(Failure::new(
                "linearizability",
                format!("{} saw less than {} before it", s.operation, most.operation),
            ));
        }
    }
    Ok(())
}
