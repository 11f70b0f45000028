//! What clients did and saw.

use std::fmt;

use bytes::Bytes;
use quorate_wire::{Digest, RequestNumber, Seq, SessionId};

use crate::checks::kept::Gone;

/// An operation of a client.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Whose.
    pub client: usize,
    /// Its number in the whole run.
    pub id: u64,
    /// In the service's encoding.
    pub op: Bytes,
    /// Whether it only reads.
    pub reads: bool,
    /// When the client asked for it.
    pub begun: u64,
    /// The client's session when it asked.
    pub session: Option<SessionId>,
    /// The request that carried it; none for a read that was not ordered.
    pub request: Option<Digest>,
    /// That request's session and number.
    pub sent_as: Option<(SessionId, RequestNumber)>,
    /// When it ended, and the encoded outcome.
    pub done: Option<(u64, Bytes)>,
    /// Up to where a correct replica had executed when it ended; for a read that may have been taken early, one place more: what
    /// it was found in must be agreed on all the same.
    pub agreed_at_end: Seq,
    /// It was executed, and its client was told that its result is not kept.
    pub gone: Option<Gone>,
    /// Its client crashed or lost its session: nobody knows whether it was executed.
    pub lost: bool,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Operation {
            id, client, begun, ..
        } = self;
        write!(f, "operation {id} of client {client} (begun {begun} us")?;
        match &self.done {
            Some((end, _)) => write!(f, ", ended {end} us)"),
            None => write!(f, ")"),
        }
    }
}
