//! A session without callers: the sans-IO [`Client`] and the links that it speaks over.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_agreement::client::{Client, ClientOptions, ClientOutput, SessionLost, Token};
use quorate_net::{ClientEvent, ClientLinks, Frame, Group, Identity};
use quorate_wire::digest::Content;
use quorate_wire::message::report::Report;
use quorate_wire::message::{ClientMessage, Control, Outcome, ReplicaMessage, Reply, Request};
use quorate_wire::{
    Authentication, ClientId, Digest, Encode, MacKey, Quorum, ReplicaId, RequestNumber, SessionId,
};

/// A session is renewed this often; its lease is three times as long.
const RENEW: Duration = Duration::from_secs(15);
/// After how long without a result the log says that the group does not answer.
const SILENCE: Duration = Duration::from_secs(5);

/// What a turn has brought.
#[derive(Debug)]
pub(super) enum Happened {
    /// An operation has its result.
    Done(Token, Result<Bytes, SessionLost>),
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
    renewing: Option<Token>,
    silent: bool,
    closing: Option<Closing>,
    /// To be taken after each turn.
    pub happened: VecDeque<Happened>,
}

/// A session that is being closed.
#[derive(Debug)]
struct Closing {
    number: RequestNumber,
    votes: BTreeMap<ReplicaId, Digest>,
}

impl Engine {
    pub fn new(group: &Group, identity: &Identity, links: ClientLinks) -> Engine {
        let (quorum, started, me) = (group.quorum(), now(), identity.public());
        let options = ClientOptions {
            unordered_reads: group.protocol().unordered_reads,
            ..ClientOptions::default()
        };
        let key = identity.key().clone();
        let client = Client::new(quorum, options, key, random(), 0);
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
            renewing: None,
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
        let (token, now) = self.open_call();
        if let Some(now) = now {
            self.client.call(token, op, now);
        }
        token
    }

    /// As [`Engine::call`], for an operation that only reads.
    pub fn read(&mut self, op: Bytes) -> Token {
        let (token, now) = self.open_call();
        if let Some(now) = now {
            self.client.read(token, op, now);
        }
        token
    }

    /// The token of a new call, and the time; no time if the session is being closed, and takes nothing on.
    fn open_call(&mut self) -> (Token, Option<u64>) {
        let token = self.token();
        if self.closing.is_some() {
            let lost = Happened::Done(token, Err(SessionLost));
            self.happened.push_back(lost);
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
        if now >= self.renew_at {
            self.renew_at = now + RENEW;
            // One at a time: a group that does not answer is not asked ever more.
            if self.renewing.is_none() {
                let token = self.token();
                self.renewing = Some(token);
                self.client.call(token, Bytes::new(), ms);
            }
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
        for token in std::mem::take(&mut self.open).into_keys() {
            self.happened
                .push_back(Happened::Done(token, Err(SessionLost)));
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
            ClientEvent::Message(from, ReplicaMessage::Read(reply)) => {
                self.client.on_read(from, reply, now);
            }
            ClientEvent::Message(from, ReplicaMessage::Vouched(vouched)) => {
                self.client.on_vouched(from, vouched, now);
            }
            ClientEvent::Message(from, ReplicaMessage::Report(report)) => {
                self.happened.push_back(Happened::Report(from, report));
            }
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
                        let frame = Frame::encode(&message);
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

    fn on_done(&mut self, token: Token, result: Result<Bytes, SessionLost>) {
        if std::mem::take(&mut self.silent) {
            tracing::info!("the group answers again");
        }
        if self.renewing == Some(token) {
            self.renewing = None;
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

fn random() -> u64 {
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
