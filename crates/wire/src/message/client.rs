//! Requests and replies.

use alloc::vec::Vec;
use bytes::Bytes;

use super::parted::Parted;
use super::report::Report;
use super::{MAX_OP_BYTES, MAX_RESULT_BYTES};
use crate::auth::{AuthError, Authenticator, Mac, MacKey};
use crate::body::Body;
use crate::codec::{Decode, DecodeError, Encode, Reader};
use crate::digest::{Content, Digest};
use crate::ids::{ClientId, Quorum, ReplicaId, RequestNumber, Seq, SessionId, View};
use crate::segments::SegmentWriter;
use crate::statement::EpochCertificate;
use crate::{record, tagged};

/// Said in place of what was answered, which is below a request's own number: that the result is to be kept.
const KEPT: RequestNumber = RequestNumber(u64::MAX);

/// An operation that a client wants executed once.
///
/// The digest is computed when the request is made or decoded: one pass over the body, and none later, also where
/// pieces of a long one go into the state ([`Body`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    client: ClientId,
    session: SessionId,
    number: RequestNumber,
    answered: RequestNumber,
    body: Body,
    digest: Digest,
}

impl Request {
    /// A request of `client` in `session`, which says nothing of earlier ones. `op` holds at most [`MAX_OP_BYTES`].
    pub fn new(client: ClientId, session: SessionId, number: RequestNumber, op: Bytes) -> Request {
        Request::after(client, session, number, RequestNumber(0), op)
    }

    /// The same from a client that has had the answers to all requests of the session up to `answered`.
    pub fn after(
        client: ClientId,
        session: SessionId,
        number: RequestNumber,
        answered: RequestNumber,
        op: impl Into<Body>,
    ) -> Request {
        let body: Body = op.into();
        assert!(
            body.bytes().len() <= MAX_OP_BYTES,
            "an operation of {} bytes is too long",
            body.bytes().len()
        );
        // Their encodings, one after the other; behind the operation, so that the hash takes that in whole chunks, several at
        // once.
        let mut tail = [0; 56];
        tail[..32].copy_from_slice(&client.0);
        tail[32..40].copy_from_slice(&session.0.to_le_bytes());
        tail[40..48].copy_from_slice(&number.0.to_le_bytes());
        tail[48..].copy_from_slice(&answered.0.to_le_bytes());
        let kind = match body.is_long() {
            true => Content::LongRequest,
            false => Content::Request,
        };
        let mut hashing = Digest::hashing(kind);
        body.add_to(&mut hashing);
        hashing.add(&tail);
        Request {
            client,
            session,
            number,
            answered,
            body,
            digest: hashing.end(),
        }
    }

    /// A request whose result is to be kept though the operation only reads, which says nothing of earlier ones: see [`Request::is_kept`].
    pub fn kept(client: ClientId, session: SessionId, number: RequestNumber, op: Bytes) -> Request {
        Request::after(client, session, number, KEPT, op)
    }

    /// The same request with another operation.
    #[must_use]
    pub fn with_op(&self, op: impl Into<Body>) -> Request {
        Request::after(self.client, self.session, self.number, self.answered, op)
    }

    /// Who asks.
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// In which session.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// The request's number in its session.
    pub fn number(&self) -> RequestNumber {
        self.number
    }

    /// Up to which number the client has had the answers: nobody has to keep them any more.
    pub fn answered(&self) -> RequestNumber {
        match self.is_kept() {
            true => RequestNumber(0),
            false => self.answered,
        }
    }

    /// Whether its result is kept for repetitions, as that of what changes something is, also where it only reads. A client asks for that where too few replicas answer what it has ordered, again
    /// and again: one that has the state from others, in place of the batch, has the result with it.
    pub fn is_kept(&self) -> bool {
        self.answered == KEPT
    }

    /// What is to be done, in the service's own encoding.
    pub fn op(&self) -> &Bytes {
        self.body.bytes()
    }

    /// The same with the digests of its pieces.
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// The digest over all of the above.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// How many bytes the request takes up in a message or in memory, about.
    pub fn weight(&self) -> usize {
        self.op().len() + 128
    }
}

impl Encode for Request {
    fn encode(&self, out: &mut Vec<u8>) {
        self.client.encode(out);
        self.session.encode(out);
        self.number.encode(out);
        self.answered.encode(out);
        self.op().encode(out);
    }

    fn encode_shared(&self, out: &mut SegmentWriter) {
        self.client.encode(out.tail());
        self.session.encode(out.tail());
        self.number.encode(out.tail());
        self.answered.encode(out.tail());
        self.op().encode_shared(out);
    }

    fn string_bytes(&self) -> usize {
        self.op().len()
    }
}

impl Decode for Request {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        let client = ClientId::decode(r)?;
        let session = SessionId::decode(r)?;
        let number = RequestNumber::decode(r)?;
        let answered = RequestNumber::decode(r)?;
        let op = operation(r)?;
        Ok(Request::after(client, session, number, answered, op))
    }
}

record! {
    /// A request with one MAC for each replica, so that the primary can relay it.
    pub struct AuthRequest {
        /// What is asked.
        pub request: Request,
        /// The client's word for it.
        pub auth: Authenticator,
        /// Who is to send the result in full; the others send its digest. [`EVERYONE`]: all send it in full.
        /// Nobody vouches for this field: who changes it
        /// costs the client a repetition.
        pub replier: ReplicaId,
    }
}

impl AuthRequest {
    /// A request without its client's word for it.
    pub fn bare(request: Request) -> AuthRequest {
        AuthRequest {
            request,
            auth: Authenticator::default(),
            replier: EVERYONE,
        }
    }

    /// The same in memory of its own. What was read from a message keeps all of that in memory otherwise.
    #[must_use]
    pub fn detached(&self) -> AuthRequest {
        let mut own = self.clone();
        own.request.body = own.request.body.detached();
        own
    }
}

tagged! {
    /// What a client sends to a replica.
    pub enum ClientMessage {
        /// An operation.
        1 => Request(AuthRequest),
        /// Asks how the replica is; the number comes back with the answer.
        2 => ReportPlease(u64),
        /// An operation that was sent before; whoever has its result is to send it in full. Signed, so that nobody who is shown it
        /// can doubt it.
        3 => Repeat(AuthRequest),
        /// Replies to this session go over this connection.
        4 => Attach(SessionId),
        /// An operation that only reads, answered at once and not ordered.
        5 => Read(Read),
        /// An operation that was sent to the primary as well: a backup looks what becomes of it.
        6 => Watch(AuthRequest),
    }
}

/// Named as the replier, asks every replica for the full result. No group has so many replicas.
pub const EVERYONE: ReplicaId = ReplicaId(u8::MAX);

/// An operation that only reads, sent to all replicas. TLS says whose it is; nobody relays it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// The client's session.
    pub session: SessionId,
    /// The client's number for it, apart from those of requests.
    pub number: RequestNumber,
    /// Who is to send the result in full, as in [`AuthRequest::replier`].
    pub replier: ReplicaId,
    /// Whether it may be answered from a state with a batch that has prepared and not committed; the answer says so.
    pub early: bool,
    /// In the service's own encoding; at most [`MAX_OP_BYTES`].
    pub op: Bytes,
}

impl Encode for Read {
    fn encode(&self, out: &mut Vec<u8>) {
        self.session.encode(out);
        self.number.encode(out);
        self.replier.encode(out);
        self.early.encode(out);
        self.op.encode(out);
    }

    fn encode_shared(&self, out: &mut SegmentWriter) {
        self.session.encode(out.tail());
        self.number.encode(out.tail());
        self.replier.encode(out.tail());
        self.early.encode(out.tail());
        self.op.encode_shared(out);
    }

    fn string_bytes(&self) -> usize {
        self.op.len()
    }
}

impl Decode for Read {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        let session = SessionId::decode(r)?;
        let number = RequestNumber::decode(r)?;
        let replier = ReplicaId::decode(r)?;
        let early = bool::decode(r)?;
        let op = operation(r)?;
        Ok(Read {
            session,
            number,
            replier,
            early,
            op,
        })
    }
}

fn operation(r: &mut Reader) -> Result<Bytes, DecodeError> {
    let op = Bytes::decode(r)?;
    match op.len() <= MAX_OP_BYTES {
        true => Ok(op),
        false => Err(DecodeError::TooLong("operation bytes")),
    }
}

tagged! {
    /// What a replica sends to a client.
    pub enum ReplicaMessage {
        /// The outcome of an operation.
        1 => Reply(Reply),
        /// How the replica is, as it says itself.
        2 => Report(alloc::boxed::Box<Report>),
        /// The outcome of an operation that only read; the number is that of the [`Read`].
        3 => Read(ReadReply),
        /// The outcome of an operation, with other replicas' word for it.
        4 => Vouched(Vouched),
        /// The newest certificate of another replica that the sender has seen: with a newer one than its own link's a client knows that
        /// link for one that a stolen key has made.
        5 => Certificate(alloc::boxed::Box<EpochCertificate>),
        /// The sender takes nothing of this client for now but what is signed. Clients go by it if it leads.
        6 => Unsigned(Unsigned),
    }
}

record! {
    /// A request that was refused since it carried MACs.
    pub struct Unsigned {
        /// The session of the request.
        pub session: SessionId,
        /// The number of the request.
        pub number: RequestNumber,
    }
}

record! {
    /// The outcome of a [`Read`], as one replica says.
    pub struct ReadReply {
        /// Tentative where the state has a batch that has prepared, in the view that it names, and not committed.
        pub reply: Reply,
        /// The place of the last batch in the state that was read.
        pub at: Seq,
    }
}

record! {
    /// A replica's reply together with vouchers of others, who so need not send replies of their own.
    pub struct Vouched {
        /// The sender's own reply.
        pub reply: Reply,
        /// Others' word for the same result; each says for itself in which view and how final.
        pub vouchers: Vec<Voucher> => Quorum::MAX_REPLICAS, "vouchers of a reply",
    }
}

record! {
    /// One replica's word for the result that another sends. Who passes it on can't make or change it.
    pub struct Voucher {
        /// Whose word it is.
        pub replica: ReplicaId,
        /// As in [`Reply::view`].
        pub view: View,
        /// As in [`Reply::tentative`].
        pub tentative: bool,
        /// [`Reply::voucher`] of its own reply.
        pub mac: Mac,
    }
}

record! {
    /// The outcome of an operation, as one replica says.
    pub struct Reply {
        /// The session of the request.
        pub session: SessionId,
        /// The number of the request.
        pub number: RequestNumber,
        /// The replica's view, so that the client finds the primary; in a tentative reply the view in which the batch prepared.
        pub view: View,
        /// The batch has prepared and not committed: 2f+1 such replies of one view stand for a result that will last.
        pub tentative: bool,
        /// The result or its digest.
        pub body: ReplyBody,
    }
}

impl Reply {
    /// The sender's word for this reply, under the key that it shares with the client alone: whoever brings it to the client.
    pub fn voucher(&self, key: &MacKey) -> Mac {
        key.mac(&self.content())
    }

    /// Checks another replica's word for this reply.
    ///
    /// # Errors
    /// [`AuthError::BadMac`]: by the fault of that replica, or of the one that passed its word on.
    pub fn check_voucher(&self, key: &MacKey, voucher: &Mac) -> Result<(), AuthError> {
        key.check(&self.content(), voucher)
    }

    /// The digest of all that a reply says, whether the result is here in full or by its digest.
    fn content(&self) -> Digest {
        let mut bytes = [0; 57];
        bytes[..8].copy_from_slice(&self.session.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.view.0.to_le_bytes());
        bytes[24] = self.tentative.into();
        bytes[25..].copy_from_slice(&self.body.digest().0);
        Digest::of(Content::Reply, &bytes)
    }
}

/// A result, or its digest where another replica was named to send the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyBody {
    /// All of it.
    Full(Bytes),
    /// Its digest ([`ReplyBody::digest`]).
    Digest(Digest),
    /// All of it, where it holds values of the state: of a read that is not ordered.
    Parted(Parted),
}

impl ReplyBody {
    /// A result in full, or by its digest.
    pub fn of(result: Bytes, in_full: bool) -> ReplyBody {
        let full = ReplyBody::Full(result);
        match in_full {
            true => full,
            false => ReplyBody::Digest(full.digest()),
        }
    }

    /// The result, where it is here in full; put together, where it is in several places.
    pub fn result(&self) -> Option<Bytes> {
        match self {
            ReplyBody::Full(result) => Some(result.clone()),
            ReplyBody::Digest(_) => None,
            ReplyBody::Parted(parted) => Some(parted.result().joined()),
        }
    }

    /// The digest of the result.
    pub fn digest(&self) -> Digest {
        match self {
            ReplyBody::Full(result) => Digest::of(Content::Result, result),
            ReplyBody::Digest(digest) => *digest,
            ReplyBody::Parted(parted) => parted.digest(),
        }
    }
}

impl Encode for ReplyBody {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            ReplyBody::Full(result) => {
                out.push(1);
                result.encode(out);
            }
            ReplyBody::Digest(digest) => {
                out.push(2);
                digest.encode(out);
            }
            ReplyBody::Parted(parted) => {
                out.push(3);
                parted.encode(out);
            }
        }
    }

    fn encode_shared(&self, out: &mut SegmentWriter) {
        match self {
            ReplyBody::Full(result) => {
                out.tail().push(1);
                result.encode_shared(out);
            }
            ReplyBody::Digest(_) => self.encode(out.tail()),
            ReplyBody::Parted(parted) => {
                out.tail().push(3);
                parted.encode_shared(out);
            }
        }
    }

    fn string_bytes(&self) -> usize {
        match self {
            ReplyBody::Full(result) => result.len(),
            ReplyBody::Digest(_) => 0,
            ReplyBody::Parted(parted) => parted.string_bytes(),
        }
    }
}

impl Decode for ReplyBody {
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(r)? {
            1 => {
                let result = Bytes::decode(r)?;
                if result.len() > MAX_RESULT_BYTES {
                    return Err(DecodeError::TooLong("result bytes"));
                }
                Ok(ReplyBody::Full(result))
            }
            2 => Ok(ReplyBody::Digest(Digest::decode(r)?)),
            3 => Ok(ReplyBody::Parted(Parted::decode(r)?)),
            _ => Err(DecodeError::Invalid("tag of ReplyBody")),
        }
    }
}
