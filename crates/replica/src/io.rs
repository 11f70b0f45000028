//! What goes into a replica and what comes out.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use quorate_agreement::{Missed, Record, Signed};
use quorate_execution::{Completion, Job};
use quorate_state::transfer::{Counts, Found, Lie, Lookup};
use quorate_state::{Layer, Snapshot};
use quorate_wire::evidence::Evidence;
use quorate_wire::message::{ClientMessage, PeerMessage, ReplicaMessage};
use quorate_wire::{
    Body, ClientId, Digest, LogIndex, MacKey, RecoveryStatement, ReplicaId, Seq, Signer,
};

use crate::clients::ConnectionId;

/// What happens to a replica.
#[derive(Clone, Debug)]
pub enum Input {
    /// A message over the link from another replica.
    Peer(ReplicaId, PeerMessage),
    /// The driver has checked these signatures of clients, and found them right or not. What carries them comes next: see
    /// [`Replica::unchecked_in`](crate::Replica::unchecked_in).
    Checked(Vec<(Signed, bool)>),
    /// The link with another replica stands, or is gone.
    PeerLink(ReplicaId, bool),
    /// A client connected and proved its key.
    ClientUp(ConnectionId, ClientId, MacKey),
    /// The next connection is one of a client that the group does not name; and whether the owner itself has granted what it has come by, or others
    /// have passed that on.
    Guest(ClientId, bool),
    /// A client's connection is gone.
    ClientDown(ConnectionId),
    /// A client that the group does not name has been gone for long.
    GuestGone(ClientId),
    /// A message over a client's connection.
    Client(ConnectionId, ClientMessage),
    /// This replica signs with another key from now on.
    Renewed(Box<Signer>),
    /// This replica has come back without its log, and its identity says so: to be ordered.
    Recover(Box<RecoveryStatement>),
    /// All records up to here are on disk.
    Persisted(LogIndex),
    /// A layer is in the store, durably.
    Stored {
        /// The place after which the store's content is the state; or, in a transfer, the one it is on its way to.
        seq: Seq,
        /// Whether the content is a state, and not on its way to one.
        complete: bool,
        /// The root of the content.
        root: Digest,
        /// The content.
        snapshot: Arc<dyn Snapshot>,
    },
    /// Workers have run these jobs.
    Ran(Vec<Completion>),
    /// What a lookup has found in the former state.
    Found(Found),
    /// This replica is about to end: if it leads, the others are to have another primary first.
    HandOver,
    /// A time-out may have passed.
    Tick,
}

/// What a replica wants done, in order.
#[derive(Clone, Debug)]
pub enum Output {
    /// Send to one replica.
    Send(ReplicaId, PeerMessage),
    /// Send to all other replicas.
    Broadcast(PeerMessage),
    /// Send to a client.
    Reply(ConnectionId, ReplicaMessage),
    /// Append to the log; [`Input::Persisted`] comes back.
    Persist(LogIndex, Record),
    /// Records up to this place are not needed any more; a new segment of the log begins with `head`.
    Truncate {
        /// The stable checkpoint.
        stable: Seq,
        /// What must outlive the older segments.
        head: Vec<Record>,
    },
    /// Write a layer over the store's newest content; [`Input::Stored`] comes back.
    Store {
        /// See [`Input::Stored`].
        seq: Seq,
        /// See [`Input::Stored`].
        complete: bool,
        /// The writes.
        layer: Arc<Layer>,
        /// Long operations of which values in it may be parts, with the digests of their pieces: where there is no log, which says so of all
        /// that it holds.
        bodies: Vec<Body>,
    },
    /// Operations that can run, each on a worker of its own; [`Input::Ran`] comes back, in any order. Only where there are workers.
    Run(Vec<Job>),
    /// Look for pieces in the state that was set aside ([`look`](quorate_state::transfer::look)); [`Input::Found`] comes back. Only
    /// where there is one.
    LookUp(Lookup),
    /// The replica is back, and looks for nothing more in the state that was set aside; what it has found there.
    Recovered(Counts),
    /// What a replica certified before the one before this number is void: it has recovered since.
    Void(ReplicaId, u64),
    /// The replica recovers, and will not come back as things stand: see [`quorate_agreement::Output::Missed`].
    Missed(Missed),
    /// A batch that has prepared is not executed before it has committed, so that its clients wait for that: COMMITs that wait for others to go along
    /// with are to leave.
    Hurry,
    /// A replica has signed two statements that contradict each other; to be kept for the operators.
    Evidence(Box<Evidence>),
    /// A replica has sent a piece of state that is not in the certified one. Where messages are signed, what it was sent in proves it:
    /// [`Signing::convict`](crate::Signing::convict).
    Lie(Box<Lie>),
    /// A value of the state can't be read, for this reason; it is compared with what the others have. For the operators.
    Doubt(String),
    /// The replica can't go on, for this reason; it does nothing any more.
    Fatal(String),
    /// The same, where what is stored is no state: when the replica is started again it needs all of it from the others.
    Damaged(String),
}
