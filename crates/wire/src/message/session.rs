//! What clients and the executor say to each other about sessions. It travels inside operations and results.

use bytes::Bytes;

use super::MAX_RESULT_BYTES;
use crate::digest::Digest;
use crate::ids::{ReplicaId, SessionId};
use crate::{record, tagged};

tagged! {
    /// An operation of the control session (session 0), in which a client manages its sessions. The request's number is a
    /// random one: it tells openings apart, so that a repeated request opens no second session.
    pub enum Control {
        /// Opens a session; the result is its [`SessionId`].
        1 => Open(()),
        /// Closes one of the client's sessions.
        2 => Close(SessionId),
        /// A replica recovers; the request's number is its statement's. Of the replica's identity key alone, which signs nothing
        /// else that is a request ([`RecoveryStatement`](crate::RecoveryStatement)).
        3 => Recover(Recovers),
    }
}

record! {
    /// Who recovers.
    #[derive(Copy)]
    pub struct Recovers {
        /// The group's id.
        pub group: Digest,
        /// The replica.
        pub replica: ReplicaId,
    }
}

tagged! {
    /// The result of a request.
    pub enum Outcome {
        /// What the service answered.
        1 => Done(Bytes),
        /// The session is closed: by the client, because its lease ran out, or because the client opened too many.
        2 => NoSession(()),
        /// The request is older than its session's window; its reply is not kept any more.
        3 => TooOld(()),
        /// Not an operation that the executor knows.
        4 => Malformed(()),
        /// The service's answer is longer than a result can be: a defect of the service.
        5 => TooLong(()),
        /// The request was executed, and its result is not kept any more: see [`KEPT_BYTES`].
        6 => Gone(()),
    }
}

impl Outcome {
    /// The bytes of [`Outcome::Gone`].
    pub const GONE: &[u8] = &[6];

    /// The bytes of [`Outcome::Done`] before an answer of so many bytes.
    pub fn before_answer(length: u32) -> [u8; 5] {
        let length = length.to_le_bytes();
        [1, length[0], length[1], length[2], length[3]]
    }
}

/// How many requests a session may have in flight: number n may be sent once all up to n - WINDOW have been answered. And how many replies are kept
/// of a client that never says what it has been answered (docs/protocol.md, section 10).
pub const SESSION_WINDOW: u64 = 64;
/// How many bytes the results may have together that a group keeps of a session, for requests that are repeated: one of any length is
/// kept. Where they would have more, those of the lowest numbers go.
pub const KEPT_BYTES: usize = MAX_RESULT_BYTES;
/// How long a session lives without a request, in agreed time.
pub const SESSION_LEASE_MS: u64 = 45_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Encode;

    /// What is put before an answer is what the encoding has there.
    #[test]
    fn what_is_before_an_answer() {
        for length in [0, 1, 300, 70_000] {
            let bytes = Outcome::Done(alloc::vec![9; length].into()).to_bytes();
            assert_eq!(bytes[..5], Outcome::before_answer(length as u32));
            assert_eq!(bytes.len(), 5 + length);
        }
        assert_eq!(Outcome::Gone(()).to_bytes(), Outcome::GONE);
    }
}
