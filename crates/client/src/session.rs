//! A session with a group: a task owns the sans-IO [`Client`] and its links; handles of it are cheap.
//!
//! The task never waits for a caller, and a caller waits for f+1 replicas however long that takes: who wants to
//! give up drops the future. A session that the group has closed is opened again by itself; what was bound to the
//! old one (handles, locks) is gone then, which [`Session::generation`] tells.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use quorate_agreement::client::{Client, ClientOptions, ClientOutput, Token};
use quorate_node::{ClientEvent, ClientTransport, Frame, Group, Identity};
use quorate_wire::message::report::Report;
use quorate_wire::message::{
    AuthRequest, ClientMessage, Control, Outcome, ReplicaMessage, Reply, Request,
};
use quorate_wire::{
    Authenticator, ClientId, Digest, Encode, Mac, MacKey, Quorum, ReplicaId, RequestNumber,
    SessionId,
};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Instant;

pub use quorate_agreement::client::SessionLost;

/// How many calls may wait for their results; further callers wait for a place.
pub const MAX_CALLS: usize = 256;
/// A session is renewed this often; its lease is three times as long.
const RENEW: Duration = Duration::from_secs(15);
/// After how long without a result the log says that the group does not answer.
const SILENCE: Duration = Duration::from_secs(5);
/// How long closing a session may take.
const CLOSING: Duration = Duration::from_secs(2);
/// Events of links that may wait.
const EVENTS: usize = 256;

/// Sends a message to some replicas. Must not wait; what can't be sent is dropped, and the protocol repeats it.
pub type SendFn = Box<dyn FnMut(&[ReplicaId], &ClientMessage) + Send>;

/// Why there is no report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// There is no link to the replica.
    #[error("no link to the replica")]
    NoLink,
    /// It did not answer in time.
    #[error("the replica does not answer")]
    NoAnswer,
}

/// A handle of a session; clones share it. The session ends when the last one is dropped.
#[derive(Clone, Debug)]
pub struct Session {
    asks: mpsc::UnboundedSender<Ask>,
    places: Arc<Semaphore>,
    shared: Arc<Shared>,
    runtime: Handle,
}

#[derive(Debug, Default)]
struct Shared {
    generation: AtomicU64,
    links: AtomicU64,
}

#[derive(Debug)]
enum Ask {
    Call(Bytes, Waiter),
    Read(Bytes, Waiter),
    Report(ReplicaId, oneshot::Sender<Report>),
    Close(oneshot::Sender<()>),
}

/// Who waits for a result. Keeps a place until it is there.
#[derive(Debug)]
struct Waiter {
    result: oneshot::Sender<Result<Bytes, SessionLost>>,
    since: Instant,
    _place: OwnedSemaphorePermit,
}

impl Session {
    /// Connects to all replicas of a group. To be called within a tokio runtime; returns at once, and calls wait until
    /// the group answers.
    pub fn connect(group: &Group, identity: &Identity) -> Session {
        let options = ClientOptions {
            unordered_reads: group.protocol().unordered_reads,
            ..ClientOptions::default()
        };
        let (transport, mut events) = ClientTransport::connect(group, identity);
        let (sender, receiver) = mpsc::channel(EVENTS);
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                if sender.send(event).await.is_err() {
                    return;
                }
            }
        });
        let links = transport.links();
        let send = move |to: &[ReplicaId], message: &ClientMessage| {
            // The links live as long as this function does.
            let _alive = &transport;
            let frame = Frame::encode(message);
            for replica in to {
                links.send(*replica, &frame);
            }
        };
        let (quorum, me) = (group.quorum(), identity.public());
        Session::start(quorum, options, me, receiver, Box::new(send))
    }

    /// Starts a session over any links: `events` tells of them, `send` sends. To be called within a tokio runtime.
    pub fn start(
        quorum: Quorum,
        options: ClientOptions,
        me: ClientId,
        events: mpsc::Receiver<ClientEvent>,
        send: SendFn,
    ) -> Session {
        let (asks, receiver) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared::default());
        let start = Instant::now();
        let driver = Driver {
            client: Client::new(quorum, options, me, random(), 0),
            quorum,
            me,
            keys: vec![None; quorum.n()],
            send,
            start,
            waiting: BTreeMap::new(),
            next_token: 0,
            reports: BTreeMap::new(),
            closing: None,
            renew_at: start + RENEW,
            renewing: None,
            silent: false,
            shared: shared.clone(),
        };
        tokio::spawn(driver.run(events, receiver));
        Session {
            asks,
            places: Arc::new(Semaphore::new(MAX_CALLS)),
            shared,
            runtime: Handle::current(),
        }
    }

    /// Has the group execute an operation, once.
    ///
    /// # Errors
    /// [`SessionLost`]: the group has closed the session, and whether the operation was executed is not known.
    pub async fn call(&self, op: Bytes) -> Result<Bytes, SessionLost> {
        self.ask(|waiter| Ask::Call(op, waiter)).await
    }

    /// As [`Session::call`], for an operation that only reads: it is not ordered if the replicas can answer it alike at once.
    ///
    /// # Errors
    /// As [`Session::call`].
    pub async fn read(&self, op: Bytes) -> Result<Bytes, SessionLost> {
        self.ask(|waiter| Ask::Read(op, waiter)).await
    }

    async fn ask(&self, ask: impl FnOnce(Waiter) -> Ask) -> Result<Bytes, SessionLost> {
        let place = self.places.clone().acquire_owned().await;
        let (result, answer) = oneshot::channel();
        let waiter = Waiter {
            result,
            since: Instant::now(),
            _place: place.map_err(|_| SessionLost)?,
        };
        self.asks.send(ask(waiter)).map_err(|_| SessionLost)?;
        answer.await.map_err(|_| SessionLost)?
    }

    /// As [`Session::call`], for a thread outside of the runtime.
    ///
    /// # Errors
    /// As [`Session::call`].
    pub fn call_blocking(&self, op: Bytes) -> Result<Bytes, SessionLost> {
        self.runtime.block_on(self.call(op))
    }

    /// How a replica is, as it says itself.
    ///
    /// # Errors
    /// [`ReportError`], after `patience` at most.
    pub async fn report(
        &self,
        replica: ReplicaId,
        patience: Duration,
    ) -> Result<Report, ReportError> {
        let deadline = Instant::now() + patience;
        while !self.is_linked(replica) {
            if Instant::now() >= deadline {
                return Err(ReportError::NoLink);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let (sender, report) = oneshot::channel();
        self.asks
            .send(Ask::Report(replica, sender))
            .map_err(|_| ReportError::NoLink)?;
        match tokio::time::timeout_at(deadline, report).await {
            Ok(Ok(report)) => Ok(report),
            Ok(Err(_)) | Err(_) => Err(ReportError::NoAnswer),
        }
    }

    /// Whether there is a link to a replica now.
    pub fn is_linked(&self, replica: ReplicaId) -> bool {
        self.shared.links.load(Ordering::Acquire) & link_bit(replica) != 0
    }

    /// Rises with each session that was opened: 0 before the first. What was bound to an earlier session is gone.
    pub fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Acquire)
    }

    /// The runtime that the session runs on.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Closes the session at the group, so that its locks and handles end now and not with its lease. Calls fail from
    /// now on. Gives up after two seconds: the lease ends it then.
    pub async fn close(&self) {
        let (sender, done) = oneshot::channel();
        if self.asks.send(Ask::Close(sender)).is_ok() {
            let _ = tokio::time::timeout(CLOSING, done).await;
        }
    }
}

/// The replicas of a group are at most 64: one bit each.
fn link_bit(replica: ReplicaId) -> u64 {
    1u64.checked_shl(u32::from(replica.0)).unwrap_or(0)
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    // Without randomness a new run could take over replies of an earlier one: better not to run.
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    u64::from_le_bytes(bytes)
}

/// A session that is being closed.
struct Closing {
    number: RequestNumber,
    votes: BTreeMap<ReplicaId, Digest>,
    done: Option<oneshot::Sender<()>>,
}

struct Driver {
    client: Client,
    quorum: Quorum,
    me: ClientId,
    keys: Vec<Option<MacKey>>,
    send: SendFn,
    start: Instant,
    waiting: BTreeMap<Token, Waiter>,
    next_token: Token,
    reports: BTreeMap<u64, (ReplicaId, oneshot::Sender<Report>)>,
    closing: Option<Closing>,
    renew_at: Instant,
    renewing: Option<Token>,
    silent: bool,
    shared: Arc<Shared>,
}

impl Driver {
    async fn run(
        mut self,
        mut events: mpsc::Receiver<ClientEvent>,
        mut asks: mpsc::UnboundedReceiver<Ask>,
    ) {
        loop {
            self.put_out();
            let wake = self.wake_at();
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.on_event(event),
                    None => return,
                },
                ask = asks.recv() => match ask {
                    Some(ask) => self.on_ask(ask),
                    None => return,
                },
                () = tokio::time::sleep_until(wake) => self.on_time(),
            }
            if self.closing.as_ref().is_some_and(|c| c.done.is_none()) {
                return;
            }
        }
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    fn wake_at(&self) -> Instant {
        let client = self
            .client
            .next_timeout()
            .map(|ms| self.start + Duration::from_millis(ms));
        let silence = match (self.silent, self.waiting.values().next()) {
            (false, Some(oldest)) => Some(oldest.since + SILENCE),
            _ => None,
        };
        let times = [client, silence].into_iter().flatten();
        times.fold(self.renew_at, Instant::min)
    }

    fn on_time(&mut self) {
        self.client.on_tick(self.now_ms());
        let now = Instant::now();
        if now >= self.renew_at {
            self.renew_at = now + RENEW;
            // One at a time: a group that does not answer is not asked ever more.
            if self.renewing.is_none() {
                let token = self.token();
                self.renewing = Some(token);
                self.client.call(token, Bytes::new(), self.now_ms());
            }
        }
        let oldest = self.waiting.values().next();
        if !self.silent && oldest.is_some_and(|w| w.since + SILENCE <= now) {
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

    fn on_ask(&mut self, ask: Ask) {
        match ask {
            Ask::Call(op, waiter) => {
                if let Some(token) = self.wait(waiter) {
                    self.client.call(token, op, self.now_ms());
                }
            }
            Ask::Read(op, waiter) => {
                if let Some(token) = self.wait(waiter) {
                    self.client.read(token, op, self.now_ms());
                }
            }
            Ask::Report(replica, sender) => {
                let nonce = self.token();
                self.reports.retain(|_, (_, sender)| !sender.is_closed());
                self.reports.insert(nonce, (replica, sender));
                (self.send)(&[replica], &ClientMessage::ReportPlease(nonce));
            }
            Ask::Close(done) => self.close(done),
        }
    }

    /// Remembers who waits; a session that is being closed takes nothing on.
    fn wait(&mut self, waiter: Waiter) -> Option<Token> {
        if self.closing.is_some() {
            let _ = waiter.result.send(Err(SessionLost));
            return None;
        }
        let token = self.token();
        self.waiting.insert(token, waiter);
        Some(token)
    }

    fn close(&mut self, done: oneshot::Sender<()>) {
        let number = RequestNumber(random());
        self.closing = Some(Closing {
            number,
            votes: BTreeMap::new(),
            done: Some(done),
        });
        for waiter in std::mem::take(&mut self.waiting).into_values() {
            let _ = waiter.result.send(Err(SessionLost));
        }
        let Some(session) = self.client.session() else {
            return self.closed();
        };
        let op = Bytes::from(Control::Close(session).to_bytes());
        let request = Request::new(self.me, SessionId(0), number, op);
        let digest = request.digest();
        let mac = |key: &Option<MacKey>| key.as_ref().map_or(Mac([0; 16]), |k| k.mac(&digest));
        let message = ClientMessage::Request(AuthRequest {
            auth: Authenticator(self.keys.iter().map(mac).collect()),
            request,
            replier: ReplicaId(0),
        });
        let all: Vec<_> = self.quorum.replicas().collect();
        (self.send)(&all, &message);
    }

    fn closed(&mut self) {
        let done = self.closing.as_mut().and_then(|c| c.done.take());
        // Who waited may have given up.
        done.map(|done| done.send(()));
    }

    fn on_event(&mut self, event: ClientEvent) {
        match event {
            ClientEvent::Up(replica, key) => self.on_link(replica, Some(key)),
            ClientEvent::Down(replica) => self.on_link(replica, None),
            ClientEvent::Message(from, ReplicaMessage::Reply(reply)) => self.on_reply(from, reply),
            ClientEvent::Message(from, ReplicaMessage::Read(reply)) => {
                let now = self.now_ms();
                self.client.on_read(from, reply, now);
            }
            ClientEvent::Message(from, ReplicaMessage::Report(report)) => {
                let asked = self.reports.get(&report.nonce);
                if asked.is_some_and(|(replica, _)| *replica == from)
                    && let Some((_, sender)) = self.reports.remove(&report.nonce)
                {
                    let _ = sender.send(report);
                }
            }
        }
    }

    fn on_link(&mut self, replica: ReplicaId, key: Option<MacKey>) {
        let Some(slot) = self.keys.get_mut(usize::from(replica.0)) else {
            return;
        };
        *slot = key.clone();
        let links = &self.shared.links;
        match key {
            Some(_) => links.fetch_or(link_bit(replica), Ordering::AcqRel),
            None => links.fetch_and(!link_bit(replica), Ordering::AcqRel),
        };
        self.client.on_link(replica, key);
    }

    fn on_reply(&mut self, from: ReplicaId, reply: Reply) {
        if let Some(closing) = &mut self.closing
            && (reply.session, reply.number) == (SessionId(0), closing.number)
        {
            closing.votes.insert(from, reply.body.digest());
            let done = Digest::of(
                quorate_wire::digest::Content::Result,
                &Outcome::Done(Bytes::new()).to_bytes(),
            );
            let votes = closing.votes.values().filter(|d| **d == done).count();
            if votes >= self.quorum.weak() {
                self.closed();
            }
            return;
        }
        let now = self.now_ms();
        self.client.on_reply(from, reply, now);
    }

    fn put_out(&mut self) {
        let outputs: Vec<_> = self.client.drain().collect();
        let mut to = Vec::new();
        let mut outputs = outputs.into_iter().peekable();
        while let Some(output) = outputs.next() {
            match output {
                ClientOutput::Send(replica, message) => {
                    to.push(replica);
                    // The same to several replicas is encoded once.
                    let again = matches!(
                        outputs.peek(),
                        Some(ClientOutput::Send(_, next)) if is_same(&message, next)
                    );
                    if !again {
                        (self.send)(&to, &message);
                        to.clear();
                    }
                }
                ClientOutput::Done(token, result) => self.done(token, result),
                ClientOutput::Opened(session) => {
                    let generation = self.shared.generation.fetch_add(1, Ordering::AcqRel) + 1;
                    tracing::info!(%session, generation, "a session is open");
                }
            }
        }
    }

    fn done(&mut self, token: Token, result: Result<Bytes, SessionLost>) {
        if std::mem::take(&mut self.silent) {
            tracing::info!("the group answers again");
        }
        if self.renewing == Some(token) {
            self.renewing = None;
        }
        if let Some(waiter) = self.waiting.remove(&token) {
            // Who waited may have given up.
            let _ = waiter.result.send(result);
        }
    }
}

/// Whether two messages are the same, without a look at their bodies.
fn is_same(a: &ClientMessage, b: &ClientMessage) -> bool {
    match (a, b) {
        (ClientMessage::Request(a), ClientMessage::Request(b))
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
