//! Credentials: a volume's owner signs that a key may do certain things with a certain file or tree; who holds such a
//! credential passes on a part of it by signing in turn, and asks no server. After KeyNote's use in `DisCFS` (Miltchev 2003),
//! with fixed vocabulary in the place of a policy language.
//!
//! - [`rights`]: what may be done, a set of bits.
//! - [`caveat`]: conditions that a link adds, each of a known kind.
//! - [`terms`]: what one link says.
//! - [`chain`]: links, each signed by the subject of the one before; the canonical encoding.
//! - [`verify`]: whether a chain holds, as a [`Grant`], and whether a grant covers a use of it.
//! - [`armour`]: the text form, with a summary for people in front.
//! - [`calendar`]: dates of that summary.
//!
//! What is not understood denies: unknown versions, rights and caveats are refused and never skipped. Nothing here widens: each
//! link is held against the one before it, and all of them bound what the last subject may do.
//!
//! The bytes stand in docs/credentials.md. Absent on purpose: clocks, sockets, randomness; time is a parameter. The crate is
//! `no_std`.
#![no_std]

extern crate alloc;

pub mod armour;
pub mod calendar;
pub mod caveat;
pub mod chain;
pub mod rights;
pub mod terms;
pub mod verify;

pub use caveat::Caveat;
pub use chain::{Chain, Link, MAX_BYTES, MAX_LINKS, Malformed};
pub use rights::Rights;
pub use terms::{ObjectId, Scope, Terms, VolumeId, Window};
pub use verify::{Grant, Refusal, Step, Trust, Use};
