//! The phases of agreement. PBFT 2002, 4.2 and 4.3.

use alloc::sync::Arc;
use alloc::vec::Vec;

use bytes::Bytes;

use super::MAX_BATCH_REQUESTS;
use super::client::AuthRequest;
use super::transfer::StateMessage;
use super::view_change::{SignedNewView, SignedViewChange};
use crate::auth::Mac;
use crate::codec::{Decode, DecodeError, Encode, Reader, bounded};
use crate::digest::{Content, Digest};
use crate::epoch::EpochStatus;
use crate::ids::{RequestNumber, Seq, SessionId, Time, View};
use crate::shared::SharedSignature;
use crate::{record, tagged};

tagged! {
    /// All that one replica says to another. TLS says who speaks; what third parties must believe is signed as well.
    pub enum PeerMessage {
        /// A client's request, passed on to the primary.
        1 => Request(AuthRequest),
        /// The primary gives a batch its place.
        2 => PrePrepare(PrePrepare),
        /// A backup agrees with the place.
        3 => Prepare(Prepare),
        /// A replica knows that a quorum agrees.
        4 => Commit(Commit),
        /// A replica's state after a batch.
        5 => Checkpoint(Checkpoint),
        /// A replica leaves its view.
        6 => ViewChange(SignedViewChange),
        /// The primary of a view starts it.
        7 => NewView(SignedNewView),
        /// Where a replica stands; the others answer with what it lacks.
        8 => Status(Status),
        /// What committed at a place; f+1 of these are believed.
        9 => Committed(Committed),
        /// Asks for content by digest.
        10 => Fetch(Fetch),
        /// Content that was asked for: a batch.
        11 => Batch(BatchBody),
        /// Content that was asked for: a request, whose digest speaks for it, with its client's word where the sender has that.
        12 => Body(AuthRequest),
        /// Pieces of a state.
        13 => State(StateMessage),
        /// Any of the others, where the group wants all of them signed.
        14 => Signed(SignedMessage),
        /// The sender's word for its replies, for the replica that is to bring them to the clients.
        15 => Vouchers(Vouchers),
        /// A replica that has forgotten what it said asks how far the group is. The number comes back.
        16 => EstimatePlease(u64),
        /// The answer.
        17 => Estimate(Estimate),
        /// Goes with STATUS where replicas have key holders.
        18 => Epoch(EpochStatus),
    }
}

record! {
    /// Replies to requests of one batch that name the receiver as the one to send the result: what their clients need to
    /// believe that the sender says the same.
    pub struct Vouchers {
        /// The batch's place.
        pub seq: Seq,
        /// As in [`Reply::view`](super::Reply::view), of all of them.
        pub view: View,
        /// As in [`Reply::tentative`](super::Reply::tentative), of all of them.
        pub tentative: bool,
        /// One for each reply.
        pub replies: Vec<RepliedTo> => MAX_BATCH_REQUESTS, "vouchers",
    }
}

record! {
    /// The word for one reply.
    pub struct RepliedTo {
        /// The request's session.
        pub session: SessionId,
        /// The request's number.
        pub number: RequestNumber,
        /// See [`Reply::voucher`](super::Reply::voucher).
        pub mac: Mac,
    }
}

record! {
    /// A message with its sender's signature.
    pub struct SignedMessage {
        /// A [`PeerMessage`] that is not itself of this kind.
        pub content: Bytes,
        /// By the sender's key, over its id and the content.
        pub signature: SharedSignature,
    }
}

/// Requests that take one place together: the agreed time and the requests' digests, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The primary's proposal for the agreed time. 0 in the null batch.
    pub time: Time,
    /// Which requests, in the order of execution; no more than [`MAX_BATCH_REQUESTS`].
    pub requests: Vec<Digest>,
}

impl Batch {
    /// The batch that does nothing, which fills gaps in a new view.
    pub fn null() -> Batch {
        Batch {
            time: Time(0),
            requests: Vec::new(),
        }
    }

    /// The digest that replicas agree on.
    pub fn digest(&self) -> Digest {
        Digest::of(Content::Batch, &self.to_bytes())
    }
}

impl Encode for Batch {
    fn encode(&self, out: &mut Vec<u8>) {
        self.time.encode(out);
        self.requests.encode(out);
    }
}

impl Decode for Batch {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        let time = Time::decode(r)?;
        let requests = bounded(r, MAX_BATCH_REQUESTS, "requests in a batch")?;
        Ok(Batch { time, requests })
    }
}

record! {
    /// `<PRE-PREPARE, v, n, batch>`, with the bodies of the small requests.
    pub struct PrePrepare {
        /// The primary's view.
        pub view: View,
        /// The place given.
        pub seq: Seq,
        /// What takes the place.
        pub batch: Batch,
        /// Requests of the batch that the primary relays; the clients send the large ones to all replicas.
        pub bodies: Vec<Arc<AuthRequest>> => MAX_BATCH_REQUESTS, "bodies of requests",
    }
}

record! {
    /// `<PREPARE, v, n, d>`.
    pub struct Prepare {
        /// The view of the pre-prepare.
        pub view: View,
        /// Its place.
        pub seq: Seq,
        /// Its batch.
        pub digest: Digest,
    }
}

record! {
    /// `<COMMIT, v, n, d>`.
    pub struct Commit {
        /// The view of the pre-prepare.
        pub view: View,
        /// Its place.
        pub seq: Seq,
        /// Its batch.
        pub digest: Digest,
    }
}

record! {
    /// `<CHECKPOINT, n, d>`: the state after place n has this root.
    pub struct Checkpoint {
        /// After which place.
        pub seq: Seq,
        /// The root of the partition tree.
        pub root: Digest,
    }
}

record! {
    /// Where a replica stands. PBFT 2002, 5.2 (message retransmission).
    pub struct Status {
        /// Its view.
        pub view: View,
        /// Whether the view has started there.
        pub active: bool,
        /// Its last stable checkpoint.
        pub stable: Seq,
        /// The last place up to which all have committed there.
        pub committed: Seq,
        /// The last place whose batch it has executed; behind `committed` while it fetches bodies.
        pub executed: Seq,
        /// Its link with the primary of `view` has gone and has not come back, or the primary is silent although it is asked.
        pub primary_lost: bool,
        /// It has forgotten what it said, and is silent until it has a stable checkpoint at this place or above; 0 where it does
        /// not know the place yet. `view` is then the first in which it may vote.
        pub recovering: Option<Seq>,
    }
}

record! {
    /// How far a replica is, for one that has forgotten what it said. PBFT 2002, 4.3.2 (estimation).
    pub struct Estimate {
        /// The number of the question.
        pub nonce: u64,
        /// The last checkpoint that it has made.
        pub checkpoint: Seq,
        /// The last place at which a batch has prepared there.
        pub prepared: Seq,
        /// The view that it is in or moves to.
        pub view: View,
    }
}

record! {
    /// A replica has committed this batch at this place.
    pub struct Committed {
        /// The place.
        pub seq: Seq,
        /// The batch.
        pub digest: Digest,
    }
}

tagged! {
    /// Content that a replica lacks and knows the digest of.
    pub enum Fetch {
        /// A batch.
        1 => Batch(Digest),
        /// A request.
        2 => Request(Digest),
        /// A signed VIEW-CHANGE, by the digest in a NEW-VIEW.
        3 => ViewChange(Digest),
        /// A request, if it is one of the small ones that come with their proposals. What is long is on its way from its client.
        4 => Small(Digest),
    }
}

record! {
    /// A batch that was asked for; its digest speaks for it.
    pub struct BatchBody {
        /// The batch.
        pub batch: Batch,
    }
}
