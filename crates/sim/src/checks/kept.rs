//! What is kept for requests that are repeated: the result of one goes when the results of it and of all later numbers of its session have
//! more bytes than may be kept, and not before. Counted here from the results alone, with no look at how an executor goes about it.
//!
//! So a client whose results in flight have no more bytes than that never meets one that has gone.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_wire::message::{Outcome, Request};
use quorate_wire::{Decode, RequestNumber, SessionId};

use super::Failure;
use crate::history::Operation;

/// An operation that ended without a result that is kept.
#[derive(Clone, Copy, Debug)]
pub struct Gone {
    /// Its session.
    pub session: SessionId,
    /// Its number there.
    pub number: RequestNumber,
    /// The highest number that its client had sent.
    pub last: RequestNumber,
}

/// How many bytes results have had.
#[derive(Debug)]
pub struct Kept {
    most: usize,
    results: BTreeMap<SessionId, BTreeMap<RequestNumber, usize>>,
}

impl Kept {
    /// Nothing was executed; of a session's results so many bytes are kept.
    pub fn new(most: usize) -> Kept {
        Kept {
            most,
            results: BTreeMap::new(),
        }
    }

    /// The bytes of the results from a number up to another.
    fn bytes(&self, session: SessionId, from: RequestNumber, to: RequestNumber) -> usize {
        let results = self.results.get(&session).into_iter();
        results
            .flat_map(|r| r.range(from..=to))
            .map(|(_, b)| b)
            .sum()
    }

    fn knows(&self, session: SessionId, number: RequestNumber) -> bool {
        let results = self.results.get(&session);
        results.is_some_and(|results| results.contains_key(&number))
    }

    /// A request whose result is kept was executed, with this outcome.
    pub fn on_executed(&mut self, request: &Request, outcome: &Bytes) -> Result<(), Failure> {
        let (session, number) = (request.session(), request.number());
        let fail = |what: &str| {
            let what = format!("{session:?} {number:?}: {what}");
            Err(Failure::new("kept results", what))
        };
        let is_gone = outcome == Outcome::GONE;
        let is_result = matches!(
            Outcome::from_bytes(outcome.clone()),
            Ok(Outcome::Done(_) | Outcome::TooLong(()))
        );
        let knows = self.knows(session, number);
        let exceeds = self.bytes(session, number, RequestNumber(u64::MAX)) > self.most;
        match (knows, is_gone, is_result) {
            (false, true, _) => fail("what was not executed is gone"),
            (true, true, _) if !exceeds => fail("it is gone, and there is room for it"),
            (true, _, true) if exceeds => fail("it is kept, and there is no room for it"),
            (false, _, true) => {
                let results = self.results.entry(session).or_default();
                results.insert(number, outcome.len());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Holds what clients were told against that, when all is done.
    pub fn check(&self, operations: &[Operation]) -> Result<(), Failure> {
        for operation in operations {
            let Some(Gone {
                session,
                number,
                last,
            }) = operation.gone
            else {
                continue;
            };
            let bytes = self.bytes(session, number, last);
            if !self.knows(session, number) || bytes <= self.most {
                let what = format!("{operation} is told to be gone, with {bytes} in flight");
                return Err(Failure::new("kept results", what));
            }
        }
        Ok(())
    }
}
