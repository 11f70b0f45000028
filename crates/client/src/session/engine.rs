//! A session without callers: the sans-IO [`Client`] and the links that it speaks over.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_agreement::client::{Client, ClientOptions, ClientOutput, NoResult, Token, window_for};
use quorate_net::{ClientEvent, ClientLinks, Frame, Group, Identity};
use quorate_wire::digest::Content;
use quorate_wire::message::report::Report;
use quorate_wire::message::session::SESSION_LEASE_MS;
use quorate_wire::message::{
    ClientMessage, Control, MAX_OP_BYTES, Outcome, ReplicaMessage, Reply, Request,
};
use quorate_wire::{
    Authentication, ClientId, Digest, Encode, MacKey, Quorum, ReplicaId, RequestNumber, SessionId,
};

/// A session is renewed this often; its lease is three times as long.
const RENEW: Duration = Duration::from_secs(15);
/// So long after it was renewed last a session may be over by the time at which something that is sent is executed.
const DOUBTFUL: Duration = Duration::from_millis(SESSION_LEASE_MS / 2);
/// After how long without a result the log says that the group does not answer.
const SILENCE: Duration = Duration::from_secs(5);

/// What a turn has brought.
#[derive(Debug)]
pub(super) enum Happened {
    /// An operation has its result.
    Done(Token, Result<Bytes, NoResult>),
    /// A replica says how it is; it was asked under this number.
    Report(ReplicaId, Box<Report>),
    /// A session is open.
    Opened,
    /// The group has closed the session, as was wished.
    Closed,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Engine {
    client: Client,
    links: ClientLinks,
    quorum: Quorum,
    me: ClientId,
    keys: Vec<Option<MacKey>>,
    /// When the oldest calls were made.
    open: BTreeMap<Token, Instant>,
    next_token: Token,
    started: Instant,
    renew_at: Instant,
    renewals: Renewals,
    /// What is not sent before it is known whether the session is still there: in a session that has ended it would be lost, and nobody
    /// would know that it was not executed.
    held: Vec<(Token, Bytes)>,
    silent: bool,
    closing: Option<Closing>,
    /// To be taken after each turn.
    pub happened: VecDeque<Happened>,
}

/// Since when the group may not have heard of the session. Times are of a clock that goes on while the machine is suspended.
#[derive(Debug)]
struct Renewals {
    under_way: Option<Token>,
    /// When that was sent.
    sent: Duration,
    /// When the last was sent that was answered, or the session began: its lease goes on from some time after that.
    renewed: Duration,
    /// Whether the last answer was too old to be of use.
    was_late: bool,
}

impl Renewals {
    fn new(now: Duration) -> Renewals {
        Renewals {
            under_way: None,
            sent: now,
            renewed: now,
            was_late: false,
        }
    }

    fn are_doubtful(&self, now: Duration) -> bool {
        now.saturating_sub(self.renewed) >= DOUBTFUL
    }

    fn begin(&mut self, token: Token, now: Duration) {
        (self.under_way, self.sent) = (Some(token), now);
    }

    /// One was answered. Whether what is held is to be sent; if not, it is to be asked once more: the answer may have been given long ago,
    /// and come before the machine was suspended. A group that is slow twice is not waited for.
    fn done(&mut self, is_lost: bool, now: Duration) -> bool {
        self.under_way = None;
        // If it was lost, what is held goes out in the next one, which begins now.
        self.renewed = if is_lost { now } else { self.sent };
        self.was_late = self.are_doubtful(now) && !self.was_late;
        !self.was_late
    }
}

/// A session that is being closed.
#[derive(Debug)]
struct Closing {
    number: RequestNumber,
    votes: BTreeMap<ReplicaId, Digest>,
}

impl Engine {
    /// `longest_result`: of operations that do not only read, in bytes.
    pub fn new(
        group: &Group,
        identity: &Identity,
        links: ClientLinks,
        longest_result: usize,
    ) -> Engine {
        let (quorum, started, me) = (group.quorum(), now(), identity.public());
        let options = ClientOptions {
            unordered_reads: group.protocol().unordered_reads,
            window: window_for(longest_result),
            ..ClientOptions::default()
        };
        let key = identity.key().clone();
        let client = Client::new(group.id(), quorum, options, key, random(), 0);
        // Of a guest nothing is taken that it has not signed.
        let client = match group.protocol().authentication {
            Authentication::Mac if group.is_client(&me) => client,
            Authentication::Mac | Authentication::Signature => client.signing(),
        };
        Engine {
            client,
            links,
            quorum,
            me,
            keys: vec![None; quorum.n()],
            open: BTreeMap::new(),
            next_token: 0,
            started,
            renew_at: started + RENEW,
            renewals: Renewals::new(since_boot()),
            held: Vec::new(),
            silent: false,
            closing: None,
            happened: VecDeque::new(),
        }
    }

    /// Links are made with another credential from now on.
    pub fn renew(&mut self, group: &Group, identity: &Identity) {
        self.links.renew(group, identity);
    }

    /// Starts an operation; [`Happened::Done`] comes under the token.
    pub fn call(&mut self, op: Bytes) -> Token {
        let (token, now) = self.open_call(&op);
        if let Some(now) = now {
            if self.is_doubtful() {
                self.held.push((token, op));
                self.ask_to_renew(now);
            } else {
                self.client.call(token, op, now);
            }
        }
        token
    }

    /// Whether the session may be over.
    fn is_doubtful(&self) -> bool {
        self.renewals.are_doubtful(since_boot())
    }

    /// One at a time: a group that does not answer is not asked ever more.
    fn ask_to_renew(&mut self, now: u64) {
        if self.renewals.under_way.is_none() {
            let token = self.token();
            self.renewals.begin(token, since_boot());
            self.client.call(token, Bytes::new(), now);
        }
    }

    /// As [`Engine::call`], for an operation that only reads.
    pub fn read(&mut self, op: Bytes) -> Token {
        let (token, now) = self.open_call(&op);
        if let Some(now) = now {
            self.client.read(token, op, now);
        }
        token
    }

    /// The token of a new call, and the time; no time where it is not sent: its caller is told why.
    fn open_call(&mut self, op: &Bytes) -> (Token, Option<u64>) {
        let token = self.token();
        let why = match op.len() {
            _ if self.closing.is_some() => Some(NoResult::SessionLost),
            0 => Some(NoResult::OpEmpty),
            length if length > MAX_OP_BYTES => Some(NoResult::OpTooLong),
            _ => None,
        };
        if let Some(why) = why {
            self.happened.push_back(Happened::Done(token, Err(why)));
            return (token, None);
        }
        let now = now();
        self.open.insert(token, now);
        (token, Some(self.ms(now)))
    }

    /// Asks a replica how it is; [`Happened::Report`] comes under the nonce.
    pub fn ask_report(&mut self, replica: ReplicaId) -> u64 {
        let nonce = self.token();
        let question = Frame::encode(&ClientMessage::ReportPlease(nonce));
        self.links.send(replica, &question);
        nonce
    }

    /// A bit for each replica to which there is a link.
    pub fn links(&self) -> u64 {
        let links = self.quorum.replicas().zip(&self.keys);
        links.fold(0, |bits, (id, key)| {
            bits | if key.is_some() { link_bit(id) } else { 0 }
        })
    }

    /// Sends what waits, waits until something happens (for `timeout` at most), and works on it.
    ///
    /// # Errors
    /// Those of the operating system, which are final.
    pub fn turn(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.put_out();
        self.links.flush();
        let timeout = if self.happened.is_empty() {
            let due = self.next_due().saturating_duration_since(now());
            timeout.map_or(due, |timeout| timeout.min(due))
        } else {
            Duration::ZERO
        };
        self.links.poll(Some(timeout))?;
        let now = now();
        while let Some(event) = self.links.next_event() {
            self.on_event(event, self.ms(now));
        }
        self.on_time(now);
        self.put_out();
        self.links.flush();
        Ok(())
    }

    fn ms(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.started).as_millis() as u64
    }

    fn next_due(&self) -> Instant {
        let client = self.client.next_timeout();
        let client = client.map(|ms| self.started + Duration::from_millis(ms));
        let oldest = self.open.values().next().filter(|_| !self.silent);
        let silence = oldest.map(|since| *since + SILENCE);
        let times = [client, silence].into_iter().flatten();
        times.fold(self.renew_at, Instant::min)
    }

    fn on_time(&mut self, now: Instant) {
        let ms = self.ms(now);
        if self.client.next_timeout().is_some_and(|due| due <= ms) {
            self.client.on_tick(ms);
        }
        if now >= self.renew_at || self.is_doubtful() {
            self.renew_at = now + RENEW;
            self.ask_to_renew(ms);
        }
        let oldest = self.open.values().next();
        if !self.silent && oldest.is_some_and(|since| *since + SILENCE <= now) {
            self.silent = true;
            tracing::warn!(
                links = self.keys.iter().flatten().count(),
                "the group does not answer; operations wait for it"
            );
        }
    }

    fn token(&mut self) -> Token {
        self.next_token += 1;
        self.next_token
    }

    /// Closes the session; [`Happened::Closed`] comes when f+1 replicas say so. Calls fail from now on.
    pub fn close(&mut self) {
        let number = RequestNumber(random());
        self.closing = Some(Closing {
            number,
            votes: BTreeMap::new(),
        });
        self.held.clear();
        for token in std::mem::take(&mut self.open).into_keys() {
            self.happened
                .push_back(Happened::Done(token, Err(NoResult::SessionLost)));
        }
        let Some(session) = self.client.session() else {
            return self.happened.push_back(Happened::Closed);
        };
        let op = Bytes::from(Control::Close(session).to_bytes());
        let request = Request::new(self.me, SessionId(0), number, op);
        let request = self.client.authenticate(request, ReplicaId(0));
        let frame = Frame::encode(&ClientMessage::Request(request));
        for replica in self.quorum.replicas() {
            self.links.send(replica, &frame);
        }
    }

    fn on_event(&mut self, event: ClientEvent, now: u64) {
        match event {
            ClientEvent::Up(replica, key) => self.on_link(replica, Some(key)),
            ClientEvent::Down(replica) => self.on_link(replica, None),
            ClientEvent::Message(from, ReplicaMessage::Reply(reply)) => {
                self.on_reply(from, reply, now);
            }
            ClientEvent::Message(from, ReplicaMessage::Read(answer)) => {
                self.client.on_read(from, answer, now);
            }
            ClientEvent::Message(from, ReplicaMessage::Vouched(vouched)) => {
                self.client.on_vouched(from, vouched, now);
            }
            ClientEvent::Message(from, ReplicaMessage::Report(report)) => {
                self.happened.push_back(Happened::Report(from, report));
            }
            ClientEvent::Message(from, ReplicaMessage::Unsigned(refused)) => {
                self.client.on_unsigned(from, &refused, now);
            }
            // The links go by it, and keep it to themselves.
            ClientEvent::Message(_, ReplicaMessage::Certificate(_)) => {}
        }
    }

    fn on_link(&mut self, replica: ReplicaId, key: Option<MacKey>) {
        if let Some(slot) = self.keys.get_mut(usize::from(replica.0)) {
            *slot = key.clone();
            self.client.on_link(replica, key);
        }
    }

    fn on_reply(&mut self, from: ReplicaId, reply: Reply, now: u64) {
        if let Some(closing) = &mut self.closing
            && (reply.session, reply.number) == (SessionId(0), closing.number)
        {
            closing.votes.insert(from, reply.body.digest());
            let done = Outcome::Done(Bytes::new()).to_bytes();
            let done = Digest::of(Content::Result, &done);
            let votes = closing.votes.values().filter(|d| **d == done).count();
            if votes >= self.quorum.weak() {
                self.happened.push_back(Happened::Closed);
            }
            return;
        }
        self.client.on_reply(from, reply, now);
    }

    fn put_out(&mut self) {
        let mut to = Vec::new();
        let mut outputs: VecDeque<_> = self.client.drain().collect();
        while let Some(output) = outputs.pop_front() {
            match output {
                ClientOutput::Send(replica, message) => {
                    to.push(replica);
                    // The same to several replicas is encoded once.
                    let again = matches!(
                        outputs.front(),
                        Some(ClientOutput::Send(_, next)) if is_same(&message, next)
                    );
                    if !again {
                        let frame = Frame::encode_shared(&message);
                        for replica in to.drain(..) {
                            self.links.send(replica, &frame);
                        }
                    }
                }
                ClientOutput::Done(token, result) => self.on_done(token, result),
                ClientOutput::Opened(session) => {
                    self.happened.push_back(Happened::Opened);
                    tracing::info!(%session, "a session is open");
                }
            }
        }
    }

    fn on_done(&mut self, token: Token, result: Result<Bytes, NoResult>) {
        if std::mem::take(&mut self.silent) {
            tracing::info!("the group answers again");
        }
        if self.renewals.under_way == Some(token) {
            let now = self.ms(now());
            if self.renewals.done(result.is_err(), since_boot()) {
                for (token, op) in std::mem::take(&mut self.held) {
                    self.client.call(token, op, now);
                }
            } else {
                self.ask_to_renew(now);
            }
        }
        if self.open.remove(&token).is_some() {
            self.happened.push_back(Happened::Done(token, result));
        }
    }
}

/// The replicas of a group are at most 64: one bit each.
pub(super) fn link_bit(replica: ReplicaId) -> u64 {
    1u64.checked_shl(u32::from(replica.0)).unwrap_or(0)
}

#[allow(
    clippy::disallowed_methods,
    reason = "this is the driver that brings time to the client's core"
)]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// The time since the machine was started, also while it was suspended.
fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    // Without randomness a new run could take over replies of an earlier one: better not to run.
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    u64::from_le_bytes(bytes)
}

/// Whether two messages are the same, without a look at their bodies.
fn is_same(a: &ClientMessage, b: &ClientMessage) -> bool {
    match (a, b) {
        (ClientMessage::Request(a), ClientMessage::Request(b))
        | (ClientMessage::Watch(a), ClientMessage::Watch(b))
        | (ClientMessage::Repeat(a), ClientMessage::Repeat(b)) => {
            a.request.digest() == b.request.digest() && a.auth == b.auth && a.replier == b.replier
        }
        (ClientMessage::Attach(a), ClientMessage::Attach(b)) => a == b,
        (ClientMessage::Read(a), ClientMessage::Read(b)) => {
            (a.session, a.number) == (b.session, b.number)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// An answer is as old as the question: one from before a suspension says nothing of the time after it.
    #[test]
    fn a_renewal_is_as_old_as_its_question() {
        let start = 1000 * SECOND;
        let mut renewals = Renewals::new(start);
        renewals.begin(1, start + SECOND);
        assert!(renewals.done(false, start + 2 * SECOND));
        assert!(!renewals.are_doubtful(start + SECOND + DOUBTFUL - Duration::from_millis(1)));
        assert!(renewals.are_doubtful(start + SECOND + DOUBTFUL));
        // The machine is suspended before the answer is read.
        renewals.begin(2, start + 15 * SECOND);
        let awake = start + 15 * SECOND + DOUBTFUL;
        assert!(!renewals.done(false, awake) && renewals.are_doubtful(awake));
        renewals.begin(3, awake);
        assert!(renewals.done(false, awake + SECOND) && !renewals.are_doubtful(awake + SECOND));
        // A slow group is not asked for ever, and a lost session is followed by another.
        renewals.begin(4, awake);
        assert!(!renewals.done(false, awake + DOUBTFUL));
        renewals.begin(5, awake + DOUBTFUL);
        assert!(renewals.done(false, awake + 2 * DOUBTFUL));
        renewals.begin(6, awake);
        assert!(renewals.done(true, awake + 3 * DOUBTFUL));
        assert!(!renewals.are_doubtful(awake + 3 * DOUBTFUL));
    }
}
