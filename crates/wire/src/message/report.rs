//! What a replica says of itself to those who ask. Nobody vouches for it: compare the replicas' reports.

use alloc::vec::Vec;
use bytes::Bytes;

use crate::digest::Digest;
use crate::ids::{ReplicaId, Seq, View};
use crate::record;

record! {
    /// How a replica is.
    pub struct Report {
        /// The number of the question.
        pub nonce: u64,
        /// Who answers.
        pub replica: ReplicaId,
        /// Its view.
        pub view: View,
        /// Whether the view has started there.
        pub active: bool,
        /// The last place that committed there.
        pub committed: Seq,
        /// The last place that it has executed.
        pub executed: Seq,
        /// Its last stable checkpoint.
        pub stable: Seq,
        /// The root of the state at that checkpoint.
        pub root: Digest,
        /// Whether it is fetching state from the others.
        pub fetching: bool,
        /// Its links to the other replicas.
        pub links: Vec<LinkReport>,
        /// Clients connected to it.
        pub clients: u32,
        /// How often it has put a client aside for a while that sent too much of no use.
        pub clients_put_aside: u64,
        /// How many view changes it has taken part in since it started.
        pub view_changes: u64,
        /// Milliseconds since it started.
        pub uptime_ms: u64,
        /// The name of the fault that was injected for a demonstration; empty in a sound replica.
        pub fault: Bytes,
        /// While it has forgotten what it said and is silent: the place at which it needs a stable checkpoint, 0 where it does not
        /// know that yet.
        pub recovering: Option<Seq>,
        /// How the check of its own state went or goes, if it has recovered on purpose since it started.
        pub check: Option<StateCheck>,
        /// If it has come or comes back without its log: when each of [`RECOVERY_STEPS`] was done, as far as they are, in
        /// milliseconds from the begin of its start.
        pub steps: Vec<u64>,
        /// When the group had ordered that it recovers, on the same clock, where it has a key holder that says so. It happens while the
        /// state is compared and fetched, and the later of the two ends that.
        pub ordered: Option<u64>,
        /// Whether it began to recover, and went back to what it had, since that came to nothing.
        pub went_back: bool,
        /// How its links' keys are renewed, in a group whose replicas have key holders.
        pub keys: Option<KeyRenewal>,
        /// Of each replica, in order of their ids, the number of its last recovery that the group has ordered, as of the newest checkpoint here; 0
        /// where there was none. Empty in a group without key holders.
        pub recoveries: Vec<u64>,
        /// Whether its supervisor is about to have it recover, and waits whether another one is.
        pub recovery_intended: bool,
    }
}

/// The steps of a recovery, in their order; see [`Report::steps`]. The rows of Table 4 of PBFT 2002 (6.4), as far as a replica knows of them.
///
/// - `restored`: the log is set aside, pages are dropped from the cache, and an empty store is open.
/// - `keyed`: the replica has a new key for its links, where it has a key holder.
/// - `began`: it listens, and asks the others how far they are.
/// - `estimated`: it knows above which place it has said nothing.
/// - `fetched`: it has compared and fetched a state, and a checkpoint at that place or above is stable.
/// - `voted`: it votes again.
/// - `caught_up`: it has done what was done meanwhile.
pub const RECOVERY_STEPS: [&str; 7] = [
    "restored",
    "keyed",
    "began",
    "estimated",
    "fetched",
    "voted",
    "caught_up",
];

record! {
    /// How a replica renews the keys of its links.
    #[derive(Copy, Default)]
    pub struct KeyRenewal {
        /// How often it means to, in milliseconds; 0: never.
        pub every_ms: u64,
        /// How old the present key is, in milliseconds.
        pub age_ms: u64,
    }
}

record! {
    /// What a replica that did not believe its own disk has found there.
    #[derive(Copy, Default)]
    pub struct StateCheck {
        /// Whether the replica is back.
        pub done: bool,
        /// Milliseconds from its start until it was back; or until now.
        pub took_ms: u64,
        /// Pieces of the state that were right.
        pub right: u64,
        /// Bytes of them.
        pub right_bytes: u64,
        /// Pieces that were not those of the group: changed since, or by somebody.
        pub differing: u64,
        /// Pieces that were damaged.
        pub damaged: u64,
    }
}

record! {
    /// A link to another replica.
    pub struct LinkReport {
        /// To whom.
        pub peer: ReplicaId,
        /// Whether it stands.
        pub up: bool,
        /// Messages dropped because the peer did not take them in time.
        pub dropped: u64,
        /// How often nothing was read from it for a while, because it sent far more than the others.
        pub put_aside: u64,
    }
}
