//! Sessions and the reply cache, as entries of the replicated state.
//!
//! | key | value |
//! |---|---|
//! | `00 'c'` | agreed time of the last operation (`u64` ns), next session number (`u64`), how many sessions are ending (`u64`), the last session whose lease was looked at (`u64`) |
//! | `00 's'` session (`u64`, big-endian) | client key (32 bytes), nonce (`u64`), last active (`u64` ns), and a zero byte as long as nobody has used it |
//! | `00 'o'` client key, session (`u64`, big-endian) | empty: the sessions of a client |
//! | `00 'e'` session (`u64`, big-endian) | client key (32 bytes): the session has ended, and the service still holds something for it |
//! | `00 'r'` session (`u64`, big-endian), slot (`u8`) | request number (`u64`), answered (`u64`), outcome |
//!
//! Session keys are big-endian so that their order is the order of their numbers. A session has [`SESSION_WINDOW`] slots
//! for replies; request n uses slot n mod the window, since a client sends n only after n - window was answered.
//!
//! A request says up to which number its client has been answered, and what nobody will ask for again is in no checkpoint. The
//! highest number that a session's executed requests have said is its **answered** mark, and request n says n - window at least; a request at
//! or below it is not executed. Each row has the mark as it was when its request was, so the mark is the highest in the rows: a row is gone
//! only when a later request has raised the mark or has taken the slot, and that one's row has the mark then. A client that never says what it has been
//! answered so has no more kept than a window of each session (docs/protocol.md, section 10). PBFT (2002, 4.1) keeps one reply of each client, whose next request acknowledges it;
//! this is that for many in flight.

use alloc::vec::Vec;
use core::ops::Bound;

use bytes::Bytes;
use quorate_state::{Fault, Txn};
use quorate_wire::message::Outcome;
use quorate_wire::message::session::SESSION_WINDOW;
use quorate_wire::{
    ClientId, Decode, DecodeError, Encode, Reader, RequestNumber, SessionId, Time, record,
};

/// The first byte of all keys that belong to the executor.
pub const OWN_KEYS: u8 = 0;
/// The most sessions of one client. One of which nothing was heard of late makes room for a new one, then one that was never used, or else the least
/// recently active.
pub const SESSIONS_PER_CLIENT: usize = 16;

record! {
    /// What holds for the whole group.
    pub struct Clock {
        /// Agreed time of the last operation.
        pub last: Time,
        /// The number for the next session.
        pub next_session: SessionId,
        /// How many sessions have ended for which the service still holds something.
        pub ending: u64,
        /// The last session whose lease was looked at; 0 between two rounds.
        pub looked_at: SessionId,
    }
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Whose it is.
    pub client: ClientId,
    /// The number of the request that opened it.
    pub nonce: u64,
    /// When it was last used, to within [`ACTIVITY_GRAIN_NS`].
    pub active: Time,
    /// Whether it was used since it was opened.
    pub is_used: bool,
}

impl Encode for Session {
    fn encode(&self, out: &mut Vec<u8>) {
        self.client.encode(out);
        self.nonce.encode(out);
        self.active.encode(out);
        if !self.is_used {
            out.push(0);
        }
    }
}

/// Rows of groups that did not know yet who had used what are those of sessions that were used.
impl Decode for Session {
    fn decode(r: &mut Reader) -> Result<Session, DecodeError> {
        let (client, nonce, active) = (Decode::decode(r)?, Decode::decode(r)?, Decode::decode(r)?);
        let is_used = r.remaining() == 0;
        if !is_used && bool::decode(r)? {
            return Err(DecodeError::Invalid("mark of an unused session"));
        }
        Ok(Session {
            client,
            nonce,
            active,
            is_used,
        })
    }
}

record! {
    /// A reply that may be asked for again.
    pub struct KeptReply {
        /// To which request.
        pub number: RequestNumber,
        /// The session's answered mark after this request; below its number.
        pub answered: RequestNumber,
        /// What; [`Outcome::GONE`] where the session had too many bytes of results: see [`Table::bound`](crate::table::Table::bound).
        pub outcome: Bytes,
    }
}

impl KeptReply {
    /// Whether the result is gone.
    pub fn is_gone(&self) -> bool {
        self.outcome == Outcome::GONE
    }

    /// How many bytes of results it counts as.
    pub fn bytes(&self) -> usize {
        match self.is_gone() {
            true => 0,
            false => self.outcome.len(),
        }
    }

    /// What is left of it when its result is gone.
    pub fn without_outcome(&self) -> KeptReply {
        KeptReply {
            outcome: Bytes::from_static(Outcome::GONE),
            ..*self
        }
    }
}

/// A session's last use is written down no more often than this, so that reads rarely write.
pub const ACTIVITY_GRAIN_NS: u64 = 5_000_000_000;

impl Default for Clock {
    fn default() -> Clock {
        Clock {
            last: Time(0),
            next_session: SessionId(1),
            ending: 0,
            looked_at: SessionId(0),
        }
    }
}

fn clock_key() -> Bytes {
    Bytes::from_static(&[OWN_KEYS, b'c'])
}

fn session_key(session: SessionId) -> Bytes {
    [&[OWN_KEYS, b's'][..], &session.0.to_be_bytes()]
        .concat()
        .into()
}

fn ending_key(session: SessionId) -> Bytes {
    [&[OWN_KEYS, b'e'][..], &session.0.to_be_bytes()]
        .concat()
        .into()
}

fn owner_key(client: &ClientId, session: SessionId) -> Bytes {
    [&[OWN_KEYS, b'o'][..], &client.0, &session.0.to_be_bytes()]
        .concat()
        .into()
}

fn reply_key(session: SessionId, slot: u8) -> Bytes {
    [&[OWN_KEYS, b'r'][..], &session.0.to_be_bytes(), &[slot]]
        .concat()
        .into()
}

/// The slot of a request's reply.
pub fn slot(number: RequestNumber) -> usize {
    (number.0 % SESSION_WINDOW) as usize
}

/// The clock counts an ending session that is not there.
pub fn none_is_ending() -> Fault {
    Fault::value(&clock_key(), "the count of ending sessions is wrong")
}

/// Reads the clock.
pub fn clock(txn: &Txn<'_>) -> Result<Clock, Fault> {
    match txn.get(&clock_key())? {
        Some(bytes) => Clock::from_bytes(bytes).map_err(|e| Fault::value(&clock_key(), e)),
        None => Ok(Clock::default()),
    }
}

/// Writes the clock.
pub fn set_clock(txn: &mut Txn<'_>, clock: &Clock) {
    txn.put(clock_key(), clock.to_bytes().into());
}

/// Reads a session.
pub fn session(txn: &Txn<'_>, id: SessionId) -> Result<Option<Session>, Fault> {
    let key = session_key(id);
    let bytes = txn.get(&key)?;
    bytes
        .map(|b| Session::from_bytes(b).map_err(|e| Fault::value(&key, e)))
        .transpose()
}

/// Writes a session.
pub fn set_session(txn: &mut Txn<'_>, id: SessionId, session: &Session) {
    txn.put(session_key(id), session.to_bytes().into());
}

/// Makes a session.
pub fn create(txn: &mut Txn<'_>, id: SessionId, session: &Session) {
    set_session(txn, id, session);
    txn.put(owner_key(&session.client, id), Bytes::new());
}

/// Removes a session with its replies.
pub fn remove(txn: &mut Txn<'_>, id: SessionId, client: &ClientId) -> Result<(), Fault> {
    txn.delete(session_key(id));
    txn.delete(owner_key(client, id));
    let (from, to) = (reply_key(id, 0), reply_key(id, u8::MAX));
    let replies = txn.range(
        Bound::Included(&from),
        Bound::Included(&to),
        SESSION_WINDOW as usize,
    )?;
    replies.into_iter().for_each(|(key, _)| txn.delete(key));
    Ok(())
}

/// All sessions of a client; at most [`SESSIONS_PER_CLIENT`].
pub fn of_client(txn: &Txn<'_>, client: &ClientId) -> Result<Vec<(SessionId, Session)>, Fault> {
    let (from, to) = (
        owner_key(client, SessionId(0)),
        owner_key(client, SessionId(u64::MAX)),
    );
    let keys = txn.range(
        Bound::Included(&from),
        Bound::Included(&to),
        SESSIONS_PER_CLIENT + 1,
    )?;
    let mut out = Vec::new();
    for (key, _) in keys {
        let id = id_at_end(&key)?;
        let missing = || Fault::value(&session_key(id), "a session of a client's is missing");
        let session = session(txn, id)?.ok_or_else(missing)?;
        out.push((id, session));
    }
    Ok(out)
}

/// Up to `most` sessions after one, in the order of their numbers.
pub fn after(
    txn: &Txn<'_>,
    last: SessionId,
    most: usize,
) -> Result<Vec<(SessionId, Session)>, Fault> {
    let (from, to) = (session_key(last), session_key(SessionId(u64::MAX)));
    let mut out = Vec::new();
    for (key, value) in txn.range(Bound::Excluded(&from), Bound::Included(&to), most)? {
        out.push((
            id_at_end(&key)?,
            Session::from_bytes(value).map_err(|e| Fault::value(&key, e))?,
        ));
    }
    Ok(out)
}

/// A session has ended, and what the service holds for it is to be let go.
pub fn add_ending(txn: &mut Txn<'_>, id: SessionId, client: &ClientId) {
    txn.put(ending_key(id), client.to_bytes().into());
}

/// The first of the sessions that are ending, up to so many, and whose they were.
pub fn ending(txn: &Txn<'_>, most: usize) -> Result<Vec<(SessionId, ClientId)>, Fault> {
    let (from, to) = (ending_key(SessionId(0)), ending_key(SessionId(u64::MAX)));
    let mut out = Vec::new();
    for (key, value) in txn.range(Bound::Included(&from), Bound::Included(&to), most)? {
        let client = ClientId::from_bytes(value).map_err(|e| Fault::value(&key, e))?;
        out.push((id_at_end(&key)?, client));
    }
    Ok(out)
}

/// The service holds nothing for a session any more.
pub fn remove_ending(txn: &mut Txn<'_>, id: SessionId) {
    txn.delete(ending_key(id));
}

fn id_at_end(key: &[u8]) -> Result<SessionId, Fault> {
    let tail = key
        .last_chunk::<8>()
        .ok_or_else(|| Fault::value(key, "its key has no session"))?;
    Ok(SessionId(u64::from_be_bytes(*tail)))
}

/// Reads all replies kept in a session.
pub fn replies(txn: &Txn<'_>, id: SessionId) -> Result<Vec<KeptReply>, Fault> {
    let (from, to) = (reply_key(id, 0), reply_key(id, u8::MAX));
    let (from, to) = (Bound::Included(&from[..]), Bound::Included(&to[..]));
    decoded(txn.range(from, to, SESSION_WINDOW as usize)?)
}

/// The same as the layer has them that is written to, whatever there is in later ones.
pub fn replies_in_place(txn: &Txn<'_>, id: SessionId) -> Result<Vec<KeptReply>, Fault> {
    let (from, to) = (reply_key(id, 0), reply_key(id, u8::MAX));
    let (from, to) = (Bound::Included(&from[..]), Bound::Included(&to[..]));
    decoded(txn.range_in_place(from, to, SESSION_WINDOW as usize)?)
}

fn decoded(rows: Vec<(Bytes, Bytes)>) -> Result<Vec<KeptReply>, Fault> {
    let decode =
        |(key, b): (Bytes, Bytes)| KeptReply::from_bytes(b).map_err(|e| Fault::value(&key, e));
    rows.into_iter().map(decode).collect()
}

/// Keeps a reply.
pub fn keep(txn: &mut Txn<'_>, id: SessionId, reply: &KeptReply) {
    txn.put(
        reply_key(id, slot(reply.number) as u8),
        reply.to_bytes().into(),
    );
}

/// Forgets the reply in a request's slot, if there is one.
pub fn forget(txn: &mut Txn<'_>, id: SessionId, number: RequestNumber) {
    txn.delete(reply_key(id, slot(number) as u8));
}
