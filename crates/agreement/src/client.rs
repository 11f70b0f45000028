//! The client's half of the protocol: sends requests, repeats them, and takes a result that enough replicas vouch for.
//! PBFT 2002, 4.1 and 5.1.

mod readers;
mod reads;
mod repliers;
mod signed;
mod suspicion;
mod votes;
mod vouched;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use bytes::Bytes;
use quorate_wire::message::session::{KEPT_BYTES, SESSION_WINDOW};
use quorate_wire::message::{
    AuthRequest, ClientMessage, Control, EVERYONE, Outcome, Reply, Request, Unsigned,
};
use quorate_wire::mutants::{Mutant, is_on};
use quorate_wire::{
    Authenticator, ClientId, Decode, Digest, Encode, KeyPair, Mac, MacKey, Quorum, ReplicaId,
    RequestNumber, SessionId, View,
};

use crate::judge::RELAY_MS;
use crate::{INLINE_BYTES, Millis};
use readers::Readers;
use reads::Reads;
use repliers::Repliers;
use suspicion::Suspicion;
use votes::Answers;

/// Names an operation to whoever asked for it.
pub type Token = u64;

/// How long to wait before a request is repeated to all replicas, while it is not known what answers take; doubles up to
/// [`MAX_RETRY_MS`].
const RETRY_MS: Millis = 400;
/// What is waited beyond that time once it is known: a repetition costs all replicas a signature, and a read another execution.
const LEAST_RETRY_MS: Millis = 100;
const MAX_RETRY_MS: Millis = 5_000;
/// How long to wait for the full result once enough replicas vouch for its digest.
const FULL_RESULT_MS: Millis = 100;
/// A full result that comes so long after enough replicas have vouched for its digest is late: others are asked for a while.
const LATE_RESULT_MS: Millis = 25;
/// How often a request is shown to the backups in its signed form, so that they see how soon it is ordered: one that would go to the primary alone, or is so
/// long that all get it.
const WATCH_MS: Millis = 1_000;
/// After so many requests in a row that only a signed repetition to all brought through, what follows is signed, and goes to all, for a
/// while.
const UNHEARD: u32 = 3;
/// How long all is signed then: twice as long each time that this happens again, up to half a minute. A group that is slow for another
/// reason is slower still where it has signatures to check.
const SIGN_ALL_MS: Millis = 1_000;
const ASK_ALL_MS: Millis = 30_000;
/// So long after a link has gone, or was wanted first, requests are signed: MACs lack that replica's, which would take the client for one
/// that gives some replicas wrong ones. Who stays away for longer is most likely down.
const UNLINKED_MS: Millis = 2_000;
/// How long a client that has some links waits for more before it opens its session: a request without a replica's MAC costs that
/// replica, and perhaps the group, a repetition.
const MORE_LINKS_MS: Millis = 300;

/// Which of the protocol's optimisations a client uses. All clients of a group must use the same: the reads of one rest on how
/// many replicas another has asked before it took a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// Reads are not ordered, and 2f+1 replicas must answer them alike; then every result needs 2f+1 replicas. Else f+1 final ones do.
    pub unordered_reads: bool,
    /// A client that has nothing else under way takes what 2f+1 replicas read in one state, though its last batch is not committed there.
    pub early_reads: bool,
    /// One replica sends the result and the others its digest. Else all send the result.
    pub digest_replies: bool,
    /// Operations longer than this go to all replicas; shorter ones travel by way of the primary.
    pub inline_bytes: usize,
    /// Number n goes out when all up to n less so many have been answered, from 1 to [`SESSION_WINDOW`]: see [`window_for`].
    pub window: u64,
}

/// How many requests a client may have in flight whose operations, those that do not only read, have results of up to so many bytes: so many
/// that the group keeps the results of all of them, whatever is lost on the way. With more a request that has to be repeated may end with
/// [`NoResult::ResultGone`].
pub fn window_for(longest_result: usize) -> u64 {
    let fit = KEPT_BYTES / longest_result.saturating_add(OUTCOME_BYTES);
    (fit as u64).clamp(1, SESSION_WINDOW)
}

/// The bytes of an [`Outcome`] beside the service's answer.
const OUTCOME_BYTES: usize = 5;

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            unordered_reads: true,
            early_reads: true,
            digest_replies: true,
            inline_bytes: INLINE_BYTES,
            window: SESSION_WINDOW,
        }
    }
}
/// What the client wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientOutput {
    /// Send to a replica.
    Send(ReplicaId, ClientMessage),
    /// An operation is done, or has no result.
    Done(Token, Result<Bytes, NoResult>),
    /// A session is open: operations go out now.
    Opened(SessionId),
}

/// Why an operation has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoResult {
    /// Its session is closed. The operation may or may not have been executed.
    SessionLost,
    /// It was executed, and the service's answer is longer than a result can be
    /// ([`MAX_RESULT_BYTES`](quorate_wire::message::MAX_RESULT_BYTES)): a defect of the service.
    ResultTooLong,
    /// It was executed, and its result is not kept any more: the answer was lost, and later operations in flight beside it have had longer
    /// results than the group keeps of a session ([`KEPT_BYTES`]). It can't be with [`ClientOptions::window`] as [`window_for`] has it.
    ResultGone,
    /// It is longer than an operation can be ([`MAX_OP_BYTES`](quorate_wire::message::MAX_OP_BYTES)), and was not sent.
    OpTooLong,
    /// It is empty, and was not sent: no service sees such an operation, which only keeps a session alive.
    OpEmpty,
}

impl core::fmt::Display for NoResult {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            NoResult::SessionLost => {
                "the group has ended the session; whether the operation was executed is not known"
            }
            NoResult::ResultTooLong => {
                "the operation was executed, and the service's answer is longer than a result can be"
            }
            NoResult::ResultGone => {
                "the operation was executed, and its result was lost on the way and is not kept any more"
            }
            NoResult::OpTooLong => "the operation is too long, and was not sent",
            NoResult::OpEmpty => "the operation is empty, and was not sent",
        })
    }
}

impl core::error::Error for NoResult {}

/// A request that waits for its result.
#[derive(Clone, Debug)]
struct Pending {
    token: Option<Token>,
    request: Request,
    replier: ReplicaId,
    answers: Answers,
    sent_at: Millis,
    repeat_at: Millis,
    patience: Millis,
    /// How it was sent first.
    was_signed: bool,
    went_to_all: bool,
    is_repeated: bool,
    /// Whether the others have it signed, who show it to the primary when that seems not to know it.
    is_watched: bool,
    /// When enough replicas had vouched for a digest.
    vouched_at: Option<Millis>,
    /// Repeated because a voucher was false: which says nothing of the request's authenticator.
    is_doubted: bool,
    /// It only reads, and is asked again in another session if this one is lost.
    only_reads: bool,
}

impl Pending {
    /// Whether it is a read that was asked for again, and that so many have answered that no more are likely to.
    fn is_short_of_answers(&self, quorum: Quorum) -> bool {
        let may = self.only_reads && self.is_repeated && !self.request.is_kept();
        may && self.answers.len() >= quorum.weak()
    }
}

/// An operation that waits for a place in the window.
#[derive(Clone, Debug)]
struct Queued {
    token: Token,
    op: Bytes,
    only_reads: bool,
    /// Its result is to be kept.
    is_kept: bool,
}

/// A client of the group, with one session.
#[derive(Debug)]
pub struct Client {
    /// For which all is signed.
    group: Digest,
    quorum: Quorum,
    options: ClientOptions,
    me: ClientId,
    key: KeyPair,
    /// Signs each request; otherwise they carry MACs, unless they are repeated.
    signs_all: bool,
    /// That MACs do not bring requests through: each is signed.
    macs: Suspicion,
    /// Requests in a row that had MACs and had to be repeated; of those in flight together one counts.
    unheard: u32,
    /// When one was counted last.
    counted_at: Millis,
    /// Since when it knows of the present view, and how many requests in a row had to be repeated that were sent since, to the
    /// primary alone.
    view_since: Millis,
    ignored: u32,
    /// Until when all replicas are asked at once: the primary orders what others show it, and not what this client does.
    ask_all_until: Millis,
    /// What answers take: the smoothed time in eighths of a millisecond and its deviation in quarters (RFC 6298).
    answer_time: Option<(Millis, Millis)>,
    /// As long as nothing is answered that was not repeated, the longest time after which something was.
    least_retry: Millis,
    next_watch: Millis,
    keys: Vec<Option<MacKey>>,
    /// Since when there is no link with a replica, where there is none.
    unlinked: Vec<Millis>,
    view: View,
    session: Option<SessionId>,
    /// A session is wanted and not asked for yet; since when there is a link, if there is one.
    opening: Option<Option<Millis>>,
    nonce: u64,
    next_number: u64,
    pending: BTreeMap<(SessionId, RequestNumber), Pending>,
    queue: VecDeque<Queued>,
    reads: Reads,
    readers: Readers,
    repliers: Repliers,
    /// Until when silence is taken for that of the replier, who lately has brought others' answers with its own.
    vouched_until: Millis,
    now: Millis,
    out: VecDeque<ClientOutput>,
}

impl Client {
    /// A client that opens a session as soon as it has links. `nonce` must be random: it sets this run apart from earlier ones
    /// of the same key.
    pub fn new(
        group: Digest,
        quorum: Quorum,
        options: ClientOptions,
        key: KeyPair,
        nonce: u64,
        now: Millis,
    ) -> Client {
        let mut client = Client {
            group,
            quorum,
            options,
            me: key.public(),
            key,
            signs_all: false,
            macs: Suspicion::default(),
            unheard: 0,
            counted_at: 0,
            view_since: 0,
            ignored: 0,
            ask_all_until: 0,
            answer_time: None,
            least_retry: 0,
            // Not all clients at the same time.
            next_watch: now + nonce % WATCH_MS,
            keys: alloc::vec![None; quorum.n()],
            unlinked: alloc::vec![now; quorum.n()],
            view: View(0),
            session: None,
            opening: None,
            nonce: match is_on(Mutant::ClientStartsAtZero) {
                true => 0,
                false => nonce,
            },
            next_number: 1,
            pending: BTreeMap::new(),
            queue: VecDeque::new(),
            reads: Reads::default(),
            readers: Readers::new(quorum.n()),
            repliers: Repliers::new(quorum.n(), nonce),
            vouched_until: 0,
            now,
            out: VecDeque::new(),
        };
        client.want_session();
        client
    }

    /// The same client in a group that wants requests signed.
    pub fn signing(mut self) -> Client {
        self.signs_all = true;
        self
    }

    /// The link with a replica stands, with this key; or is gone.
    pub fn on_link(&mut self, replica: ReplicaId, key: Option<MacKey>) {
        let Some(slot) = self.keys.get_mut(usize::from(replica.0)) else {
            return;
        };
        let was_up = core::mem::replace(slot, key).is_some();
        self.open_if_linked();
        let is_up = self.keys[usize::from(replica.0)].is_some();
        if was_up && !is_up {
            self.unlinked[usize::from(replica.0)] = self.now;
            if replica == self.primary() {
                self.turn_to_backups();
            }
        }
        if self.keys[usize::from(replica.0)].is_some() {
            let attach = self.session.map(ClientMessage::Attach);
            self.out
                .extend(attach.map(|m| ClientOutput::Send(replica, m)));
            // What waits may not have reached this replica: it gets its own copy, with a MAC of the new key.
            let waiting: Vec<_> = self.pending.keys().copied().collect();
            for id in waiting {
                let message = ClientMessage::Request(self.authenticated(&self.pending[&id]));
                let long = self.pending[&id].request.op().len() > self.options.inline_bytes;
                if long || self.primary() == replica {
                    self.out.push_back(ClientOutput::Send(replica, message));
                }
            }
        }
    }

    /// The primary's process is gone, or nearly so: whoever leads next has what waits when it begins.
    fn turn_to_backups(&mut self) {
        let primary = self.primary();
        for pending in self.pending.values() {
            let message = ClientMessage::Request(self.authenticated(pending));
            for replica in self.quorum.others(primary) {
                let send = ClientOutput::Send(replica, message.clone());
                self.out.push_back(send);
            }
        }
    }

    /// Asks for an operation. At most [`ClientOptions::window`] are in flight; the rest waits here, so bound the number of calls.
    pub fn call(&mut self, token: Token, op: Bytes, now: Millis) {
        self.now = now;
        self.enqueue(token, op, false);
    }

    fn enqueue(&mut self, token: Token, op: Bytes, only_reads: bool) {
        self.queue.push_back(Queued {
            token,
            op,
            only_reads,
            is_kept: false,
        });
        self.send_queued();
    }

    /// A replica answers.
    pub fn on_reply(&mut self, from: ReplicaId, reply: Reply, now: Millis) {
        self.now = now;
        if !self.quorum.contains(from) {
            return;
        }
        let id = (reply.session, reply.number);
        let Some(pending) = self.pending.get_mut(&id) else {
            return;
        };
        pending.answers.add(from, reply);
        self.look_at(id);
    }

    /// A primary takes nothing of this client but what is signed: that a request was refused for it counts as three that were not heard. Only
    /// whoever leads has to say in this; a faulty one can have a client sign, and could as well not answer it.
    pub fn on_unsigned(&mut self, from: ReplicaId, refused: &Unsigned, now: Millis) {
        self.now = now;
        let (id, leads) = ((refused.session, refused.number), from == self.primary());
        let pending = self.pending.get_mut(&id);
        let Some(pending) = pending.filter(|p| leads && !p.was_signed && !p.is_repeated) else {
            return;
        };
        pending.was_signed = true;
        self.macs.raise(SIGN_ALL_MS, now);
        let message = ClientMessage::Request(self.signed(&self.pending[&id]));
        self.out.push_back(ClientOutput::Send(from, message));
    }

    fn look_at(&mut self, id: (SessionId, RequestNumber)) {
        let Some(pending) = self.pending.get_mut(&id) else {
            return;
        };
        // A read that is not ordered needs f+1 correct replicas among any 2f+1 to have what its client has been told.
        let finals = match self.options.unordered_reads {
            true => self.quorum.commit(),
            false => self.quorum.weak(),
        };
        let (finals, all) = match () {
            () if is_on(Mutant::OneReplySuffices) => (1, 1),
            () if is_on(Mutant::TentativeIsFinal) => (self.quorum.weak(), self.quorum.weak()),
            () => (finals, self.quorum.commit()),
        };
        let Some(agreed) = pending.answers.agreed(finals, all) else {
            return;
        };
        let Some(result) = pending.answers.full(agreed) else {
            let replier = pending.replier;
            if pending.answers.has(replier) {
                // The replica that owed the result sent something else than what the others vouch for.
                self.repliers.distrust(replier, self.now);
                self.repeat(id);
            } else {
                pending.vouched_at = pending.vouched_at.or(Some(self.now));
                pending.repeat_at = pending.repeat_at.min(self.now + FULL_RESULT_MS);
            }
            return;
        };
        let view = pending.answers.view(agreed, self.quorum);
        if let Some(view) = view.filter(|view| *view > self.view) {
            (self.view, self.view_since) = (view, self.now);
            (self.ignored, self.ask_all_until) = (0, 0);
        }
        let Some(done) = self.pending.remove(&id) else {
            return;
        };
        if done
            .vouched_at
            .is_some_and(|at| self.now >= at + LATE_RESULT_MS)
        {
            self.repliers.distrust(done.replier, self.now);
        }
        self.learn(&done);
        self.finish(done, &result);
        self.send_queued();
    }

    /// Learns from an answer how long answers take, and whether they come only to what is signed.
    fn learn(&mut self, done: &Pending) {
        if done.is_repeated {
            // Karn and Partridge, 1987: what the repetition did and what the first sending is not known. What was in flight
            // together was late for one reason.
            if done.is_doubted || done.sent_at < self.counted_at {
                return;
            }
            self.counted_at = self.now;
            // What was signed tells nothing of MACs, and what all had tells nothing of the primary.
            self.unheard += u32::from(!done.was_signed);
            self.ignored += u32::from(!done.went_to_all && done.sent_at >= self.view_since);
            if self.ignored >= UNHEARD {
                self.ignored = 0;
                self.ask_all_until = self.now + ASK_ALL_MS;
            }
            if self.unheard >= UNHEARD {
                self.unheard = 0;
                self.macs.raise(SIGN_ALL_MS, self.now);
            }
            return;
        }
        let took = self.now.saturating_sub(done.sent_at);
        // What was shown to the primary in its signed form tells nothing of the form in which it came first.
        if !done.is_watched || took < RELAY_MS {
            (self.unheard, self.ignored) = (0, 0);
        }
        self.answer_time = Some(match self.answer_time {
            None => (8 * took, 2 * took),
            Some((smooth, deviation)) => {
                let off = took.abs_diff(smooth / 8);
                (smooth - smooth / 8 + took, deviation - deviation / 4 + off)
            }
        });
        self.least_retry = 0;
    }

    /// How long to wait for an answer before the request is repeated.
    fn retry(&self) -> Millis {
        let usual = self.answer_time.map_or(RETRY_MS, |(smooth, deviation)| {
            LEAST_RETRY_MS + smooth / 8 + deviation
        });
        usual.max(self.least_retry).min(MAX_RETRY_MS)
    }

    fn finish(&mut self, done: Pending, result: &Bytes) {
        let outcome = Outcome::from_bytes(result.clone());
        match (done.token, outcome) {
            (Some(token), Ok(Outcome::Done(answer))) => {
                self.out.push_back(ClientOutput::Done(token, Ok(answer)));
            }
            (Some(_), Ok(Outcome::NoSession(())) | Ok(Outcome::TooOld(()))) => {
                let session = done.request.session();
                self.lose([done]);
                if self.session == Some(session) {
                    self.lose_session();
                }
            }
            (Some(token), Ok(Outcome::TooLong(()))) => {
                self.out
                    .push_back(ClientOutput::Done(token, Err(NoResult::ResultTooLong)));
            }
            // There is no room for it among what is kept: it can be had as any read can.
            (Some(_), Ok(Outcome::Gone(()))) if done.only_reads => self.lose([done]),
            (Some(token), Ok(Outcome::Gone(()))) => {
                self.out
                    .push_back(ClientOutput::Done(token, Err(NoResult::ResultGone)));
            }
            // What only a group of another version answers.
            (Some(token), Ok(Outcome::Malformed(())) | Err(_)) => {
                self.out
                    .push_back(ClientOutput::Done(token, Err(NoResult::SessionLost)));
            }
            (None, Ok(Outcome::Done(answer))) => match SessionId::from_bytes(answer) {
                Ok(session) if done.request.session() == SessionId(0) => {
                    self.session = Some(session);
                    self.next_number = 1;
                    for replica in self.quorum.replicas() {
                        self.out
                            .push_back(ClientOutput::Send(replica, ClientMessage::Attach(session)));
                    }
                    self.out.push_back(ClientOutput::Opened(session));
                }
                _ => {}
            },
            (None, _) => self.want_session(),
        }
    }

    /// The session of these requests is gone. What only reads is asked again, before all else: if it was executed, no harm is done.
    fn lose(&mut self, lost: impl IntoIterator<Item = Pending, IntoIter: DoubleEndedIterator>) {
        for pending in lost.into_iter().rev() {
            match pending.token {
                Some(token) if pending.only_reads => self.queue.push_front(Queued {
                    token,
                    op: pending.request.op().clone(),
                    only_reads: true,
                    is_kept: false,
                }),
                Some(token) => self
                    .out
                    .push_back(ClientOutput::Done(token, Err(NoResult::SessionLost))),
                None => {}
            }
        }
    }

    fn lose_session(&mut self) {
        let lost = core::mem::take(&mut self.pending);
        self.lose(lost.into_values());
        self.session = None;
        self.want_session();
        self.order_all_reads();
    }

    fn want_session(&mut self) {
        self.opening = Some(None);
        self.open_if_linked();
    }

    /// Opens the session once 2f+1 links stand, or some have stood for a while.
    fn open_if_linked(&mut self) {
        let Some(since) = self.opening else { return };
        let links = self.keys.iter().flatten().count();
        if links == 0 {
            return;
        }
        let since = since.unwrap_or(self.now);
        self.opening = Some(Some(since));
        if links >= self.quorum.commit() || self.now >= since + MORE_LINKS_MS {
            self.opening = None;
            self.open();
        }
    }

    fn open(&mut self) {
        // Random, and not 0: a client that starts again with the numbers of its last run is answered nothing (measured on Themis).
        let number = RequestNumber(self.nonce);
        self.nonce = self.nonce.wrapping_add(1);
        let op = Bytes::from(Control::Open(()).to_bytes());
        self.send_new(None, false, Request::new(self.me, SessionId(0), number, op));
    }

    fn send_queued(&mut self) {
        let Some(session) = self.session else { return };
        while !self.queue.is_empty() {
            let oldest = self.pending.range((session, RequestNumber(0))..).next();
            let window = self.options.window;
            if oldest.is_some_and(|((_, n), _)| self.next_number >= n.0 + window) {
                return;
            }
            // What is kept goes alone: a long result would push out those of changes that are under way.
            let is_alone = self.pending.values().any(|p| p.request.is_kept());
            let waits = |q: &Queued| is_alone || q.is_kept && !self.pending.is_empty();
            if self.queue.front().is_none_or(waits) {
                return;
            }
            let Some(queued) = self.queue.pop_front() else {
                return;
            };
            let number = RequestNumber(self.next_number);
            let answered = oldest.map_or(number, |((_, n), _)| *n);
            let answered = RequestNumber(answered.0 - 1);
            self.next_number += 1;
            let request = match queued.is_kept {
                true => Request::kept(self.me, session, number, queued.op),
                false => Request::after(self.me, session, number, answered, queued.op),
            };
            self.send_new(Some(queued.token), queued.only_reads, request);
        }
    }

    fn send_new(&mut self, token: Option<Token>, only_reads: bool, request: Request) {
        let id = (request.session(), request.number());
        let mut pending = Pending {
            token,
            replier: match self.repliers.distrusts_vouchers(self.now) {
                true => EVERYONE,
                false => self.next_replier(),
            },
            answers: Answers::default(),
            sent_at: self.now,
            repeat_at: self.now + self.retry(),
            patience: self.retry(),
            was_signed: self.signs(),
            went_to_all: false,
            is_repeated: false,
            is_watched: false,
            vouched_at: None,
            is_doubted: false,
            only_reads,
            request,
        };
        let message = ClientMessage::Request(self.authenticated(&pending));
        let primary = self.primary();
        let is_long = pending.request.op().len() > self.options.inline_bytes;
        let is_unheard =
            self.now < self.ask_all_until || self.keys[usize::from(primary.0)].is_none();
        let is_watched = !is_unheard && self.now >= self.next_watch;
        if is_watched {
            self.next_watch = self.now + WATCH_MS;
        }
        let for_others = match (is_watched, is_long) {
            (true, true) => Some(ClientMessage::Request(self.signed(&pending))),
            (true, false) => Some(ClientMessage::Watch(self.signed(&pending))),
            (false, _) => (is_long || is_unheard).then(|| message.clone()),
        };
        pending.went_to_all = is_long || is_unheard;
        pending.is_watched = is_watched;
        self.pending.insert(id, pending);
        self.out.push_back(ClientOutput::Send(primary, message));
        for replica in self.quorum.others(primary) {
            let message = for_others.clone();
            let message = message.map(|m| ClientOutput::Send(replica, m));
            self.out.extend(message);
        }
    }

    /// Who leads, as far as this client knows.
    pub fn primary(&self) -> ReplicaId {
        self.quorum.primary(self.view)
    }

    fn next_replier(&mut self) -> ReplicaId {
        if !self.options.digest_replies {
            return EVERYONE;
        }
        let keys = &self.keys;
        let is_linked = |r: ReplicaId| keys[usize::from(r.0)].is_some();
        self.repliers.next(self.now, is_linked)
    }

    fn authenticated(&self, pending: &Pending) -> AuthRequest {
        match self.signs() {
            true => self.signed(pending),
            false => self.authenticate(pending.request.clone(), pending.replier),
        }
    }

    fn signs(&self) -> bool {
        let mut links = self.keys.iter().zip(&self.unlinked);
        let lacks_one = links.any(|(key, since)| key.is_none() && self.now < since + UNLINKED_MS);
        self.signs_all || self.macs.holds(self.now) || lacks_one
    }

    /// Gives this client's word for a request.
    pub fn authenticate(&self, request: Request, replier: ReplicaId) -> AuthRequest {
        let digest = request.digest();
        let mac = |key: &Option<MacKey>| key.as_ref().map_or(Mac([0; 16]), |k| k.mac(&digest));
        let auth = match self.signs() {
            true => Authenticator::Signed(self.key.sign_in(&self.group, &digest).into()),
            false => Authenticator::Macs(self.keys.iter().map(mac).collect()),
        };
        AuthRequest {
            request,
            auth,
            replier,
        }
    }

    /// A pending request in the form that any replica can check, once [`Client::sign`] has signed it.
    fn signed(&self, pending: &Pending) -> AuthRequest {
        AuthRequest {
            request: pending.request.clone(),
            auth: Authenticator::default(),
            replier: pending.replier,
        }
    }

    /// Sends a request to all replicas again, and asks each for the full result.
    fn repeat(&mut self, id: (SessionId, RequestNumber)) {
        let Some(pending) = self.pending.get_mut(&id) else {
            return;
        };
        pending.answers.clear();
        pending.patience = (pending.patience * 2).min(MAX_RETRY_MS);
        pending.repeat_at = self.now + pending.patience;
        pending.is_repeated = true;
        self.least_retry = self.least_retry.max(pending.patience);
        let message = ClientMessage::Repeat(self.signed(&self.pending[&id]));
        for replica in self.quorum.replicas() {
            self.out
                .push_back(ClientOutput::Send(replica, message.clone()));
        }
    }

    /// Repeats what has waited too long.
    pub fn on_tick(&mut self, now: Millis) {
        self.now = now;
        self.open_if_linked();
        self.order_late_reads();
        let late: Vec<_> = self
            .pending
            .iter()
            .filter(|(_, p)| p.repeat_at <= now)
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            let pending = &self.pending[&id];
            let replier = pending.replier;
            let others_answered = pending.answers.len() >= self.quorum.weak();
            let owes = match others_answered {
                true => !pending.answers.has(replier),
                false => self.now < self.vouched_until,
            };
            if owes {
                self.repliers.distrust(replier, self.now);
            }
            match pending.is_short_of_answers(self.quorum) {
                true => self.ask_to_keep(id),
                false => self.repeat(id),
            }
        }
    }

    /// A read was ordered twice, and too few have answered it, as where one replica has the states from others and never the batches, and another is silent: it is asked for once
    /// more, and its result is to be kept.
    fn ask_to_keep(&mut self, id: (SessionId, RequestNumber)) {
        let Some(pending) = self.pending.remove(&id) else {
            return;
        };
        let queued = pending.token.map(|token| Queued {
            token,
            op: pending.request.op().clone(),
            only_reads: true,
            is_kept: true,
        });
        queued.into_iter().for_each(|q| self.queue.push_front(q));
        self.send_queued();
    }

    /// When [`Client::on_tick`] is due.
    pub fn next_timeout(&self) -> Option<Millis> {
        let opening = self.opening.flatten().map(|since| since + MORE_LINKS_MS);
        self.pending
            .values()
            .map(|p| p.repeat_at)
            .chain(opening)
            .chain(self.reads.next_timeout())
            .min()
    }

    /// Takes the outputs out, in order.
    pub fn drain(&mut self) -> impl Iterator<Item = ClientOutput> + '_ {
        self.sign();
        self.out.drain(..)
    }

    /// Whose operation a request carries, while that waits for its result.
    pub fn token(&self, session: SessionId, number: RequestNumber) -> Option<Token> {
        self.pending.get(&(session, number))?.token
    }

    /// The open session.
    pub fn session(&self) -> Option<SessionId> {
        self.session
    }

    /// How many operations are in flight or wait to be sent.
    pub fn open_calls(&self) -> usize {
        self.pending.len() + self.reads.len() + self.queue.len()
    }
}
