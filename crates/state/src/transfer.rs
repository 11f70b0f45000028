//! State transfer: a replica that lags fetches what differs between its own state and a certified root. PBFT 2002, 5.3.2.
//!
//! [`Fetcher`] asks all donors for the root, and those that answer for more. It walks the partition tree of the target from the root down, next to its own tree. It asks for a node only
//! where the digests differ, and for a value only where the leaves differ. Each piece is checked against the digest
//! above it, and the root against the certified one, so that a lying donor can waste its own turn and nothing else.
//! [`serve`] is the donor's side.
//!
//! # The driver's loop
//!
//! After each input (a reply to [`Fetcher::handle`], or the time of [`Fetcher::next_timeout`]): send what
//! [`Fetcher::poll`] gives, then write each layer that [`Fetcher::take_chunk`] gives over the store's newest contents. The layers
//! are parts of one difference to the base that the fetcher was made with; they do not overlap, and together they give the
//! target. Whether a layer was the last is what [`Fetcher::is_done`] says after it was taken. After a crash, or when the
//! group has moved on to another checkpoint, make a new fetcher over the partly changed contents: it fetches less. In the second case write first what
//! [`Fetcher::leave`] gives: checkpoints may come faster than a layer is full.
//!
//! A replica that does not trust its own store has it set aside, starts from an empty one, and says so
//! ([`Fetcher::look_at_home_first`]). Then the driver also answers what [`Fetcher::look_up`] gives: by [`look`], in the state that was
//! set aside.
//!
//! The fetcher holds at most about [`CHUNK_BYTES`] and what is in flight; while the driver takes no layers it asks for no values.
//!
//! A piece that does not match comes out as a [`Lie`], with the nodes that prove it. Whether it convinces others depends on
//! whether the reply was signed, which the fetcher does not know; [`Fetcher::liars`] is for this replica's operator.

mod diff;
mod donors;
mod fetcher;
mod former;
mod serve;

pub use donors::Silences;
pub use fetcher::{Fetcher, Lie, Target};
pub use former::{Counts, Found, LOOKUPS, Lookup, Names, Piece, look};
pub use serve::serve;

/// The most nodes in a request; a donor leaves out what is beyond.
pub const MAX_PATHS: usize = 256;
/// The most values in a request; a donor leaves out what is beyond.
pub const MAX_KEYS: usize = 1024;
/// The most bytes of paths or keys in a request, but for a single one.
pub const MAX_ASK_BYTES: usize = 256 << 10;
/// The most bytes in a reply, but for a single piece. Well below the longest frame, so that votes get through between.
pub const REPLY_BYTES: usize = 2 << 20;
/// How much is gathered before a layer is given out; the most bytes in a layer, but for a single entry.
pub const CHUNK_BYTES: usize = 16 << 20;
/// The most requests that wait for one donor.
pub const ASKS_PER_DONOR: usize = 2;
/// The most requests for values that wait for all donors together.
pub const MAX_VALUE_ASKS: usize = 8;
/// How long a donor has for a reply at first, in milliseconds; doubled with each time that it misses.
pub const TIMEOUT_MS: u64 = 1_000;
/// How long a donor is left alone after it failed for the first time, in milliseconds; doubled with each failure.
pub const PAUSE_MS: u64 = 500;
/// How long nothing may come of the former state, in milliseconds. It is on this machine's disk, but somebody may have made it so that
/// reading it never ends: after this it is not used any more.
pub const FORMER_TIMEOUT_MS: u64 = 20_000;
