//! The client's agent: sessions with a group, typed calls of its file service, and the FUSE front.
//!
//! - [`session`]: drives the sans-IO client of `quorate-agreement`; every result has 2f+1 replicas behind it.
//! - [`volume`]: the operations of the file service as typed calls.
//! - [`fuse`]: a volume as a directory of this machine.
//!
//! The agent runs on its user's machine and is what the user trusts; no replica is. Absent on purpose: any
//! decision about permissions or content. The service makes those.

mod accesses;
pub mod fuse;
mod let_in;
pub mod session;
pub mod volume;
mod wall;

pub use accesses::Accesses;
pub use let_in::LetIn;
pub use session::{InlineSession, NoResult, Session, SessionFailed, TimedCallError};
pub use volume::{CallError, Spanning, Volume};
