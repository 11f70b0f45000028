//! What clients and replicas say.
//!
//! [`client`]: requests and replies; [`parted`]: results that hold values of the state. [`agreement`]: the phases of PBFT. [`view_change`]: the signed messages that
//! carry prepared batches into the next view. [`transfer`]: the pieces of a state. [`report`]: what a replica says of itself.

pub mod agreement;
pub mod client;
pub mod parted;
pub mod report;
pub mod session;
pub mod transfer;
pub mod view_change;

pub use agreement::{
    Batch, BatchBody, Checkpoint, Commit, Committed, Estimate, Fetch, PeerMessage, PrePrepare,
    Prepare, RepliedTo, SignedMessage, Status, Vouchers,
};
pub use client::{
    AuthRequest, ClientMessage, EVERYONE, Read, ReadReply, ReplicaMessage, Reply, ReplyBody,
    Request, Unsigned, Vouched, Voucher,
};
pub use parted::{Parted, PartedDigest, Span};
pub use report::{KeyRenewal, LinkReport, RECOVERY_STEPS, Report, StateCheck};
pub use session::{Control, Outcome, Recovers};
pub use transfer::StateMessage;
pub use view_change::{NewView, SignedNewView, SignedViewChange, ViewChange, Vote};

/// The longest frame on a link: a full batch of requests and its overhead. A longer one ends the connection.
pub const MAX_FRAME_BYTES: usize = 8 << 20;
/// The longest operation: a write of 1 MiB and its overhead.
pub const MAX_OP_BYTES: usize = (1 << 20) + (64 << 10);
/// The longest result: a read of 1 MiB and its overhead.
pub const MAX_RESULT_BYTES: usize = (1 << 20) + (64 << 10);
/// The most requests in a batch.
pub const MAX_BATCH_REQUESTS: usize = 64;
