//! Where a replica's connections begin: a thread accepts and dials, and lets in who belongs to the group.
//!
//! Handshakes cost public-key work, and strangers can ask for them. So none of it is done by the thread that orders
//! operations; that one is given connections whose other end is known. And what the thread does for those that knock comes out of a
//! budget: a quarter of a second of work at once, and a fortieth of one processor in the long run. Addresses have it in turn, so who
//! knocks without end keeps waiting who comes from there, and others little. Dialing waits for none of this.
//!
//! When all places for handshakes are taken, the oldest goes of the address that has most. So who holds places without
//! saying anything has each of them until others come, and one address can't keep out another.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use quorate_wire::{PublicKey, ReplicaId};
use rustls::ServerConfig;

use crate::dial::Dialer;
use crate::frame::LinkEnd;
use crate::hub::Waker;
use crate::link::{HANDSHAKE_TIMEOUT, Link, LinkLimits};
use crate::util::{self, LogLimit};

/// How much is read from a connection at a time. Also bounds what a stranger can make this process keep.
const READ_BYTES: usize = 16 << 10;
/// How long nothing is accepted when the process is out of file descriptors.
const BREATH: Duration = Duration::from_millis(100);
/// How many connections are accepted, and moved on, before others have their turn.
const RECEIVED_AT_ONCE: usize = 32;
/// Work that is done for those who knock at once: a thousand clients that come back together, with a fifth of a millisecond each,
/// are let in without a pause.
const WORK_AT_ONCE: Duration = Duration::from_millis(250);
/// Beyond that, for so much time that passes one part of work.
const WORK_SHARE: u32 = 40;
/// Work that is waited for when there is none left.
const LEAST_WORK: Duration = Duration::from_micros(500);
/// Tokens: of the listener, of dialers by replica, and of connections that were accepted.
const LISTENER: usize = 0;
const FIRST_DIALER: usize = 1;
const FIRST_GUEST: usize = FIRST_DIALER + 256;

/// What bounds a link with the holder of a key; `None` for who may not come in.
type LimitsOf = Box<dyn Fn(&PublicKey) -> Option<LinkLimits> + Send>;

/// What the thread needs.
pub(crate) struct DoorOptions {
    pub listener: std::net::TcpListener,
    pub config: Arc<ServerConfig>,
    pub limits: LimitsOf,
    /// How many connections may be on their way in.
    pub handshakes: usize,
    /// How many replicas the group has.
    pub replicas: usize,
}

/// A connection that stands.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// Somebody has dialed.
    Accepted(PublicKey, Box<Link>),
    /// A replica that was dialed has let us in.
    Dialed(ReplicaId, Box<Link>),
}

/// The thread, seen from the one that is given its connections.
#[derive(Debug)]
pub(crate) struct Door {
    arrivals: Receiver<Arrival>,
    ended: SyncSender<ReplicaId>,
    stop: Arc<AtomicBool>,
    /// Connections that are on their way in, up to when they are taken.
    pending: Arc<AtomicUsize>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    /// Starts the thread; `dial` makes the dialers. `wake` is called when a connection has arrived.
    pub fn open(
        options: DoorOptions,
        dial: impl FnOnce(&dyn Fn(ReplicaId) -> Token, &Waker) -> Vec<(ReplicaId, Dialer)>,
        wake: Waker,
    ) -> io::Result<Door> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry())?;
        options.listener.set_nonblocking(true)?;
        // As many may wait as may be on their way in; std's number is small.
        rustix::net::listen(&options.listener, 1024)?;
        let mut listener = TcpListener::from_std(options.listener);
        let registry = poll.registry();
        registry.register(&mut listener, Token(LISTENER), Interest::READABLE)?;
        // A place for each handshake, and for each replica that is dialed: it is dialed again when its link has ended.
        let (sender, arrivals) = mpsc::sync_channel(options.handshakes + options.replicas);
        let (ended, has_ended) = mpsc::sync_channel(options.replicas);
        let (stop, pending) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let token = |id: ReplicaId| Token(FIRST_DIALER + usize::from(id.0));
        let keeper = Keeper {
            poll,
            listener,
            accepting: true,
            pause_until: None,
            config: options.config,
            limits: options.limits,
            handshakes: options.handshakes,
            guests: BTreeMap::new(),
            turns: Turns::default(),
            work: Work::new(util::now()),
            next_guest: FIRST_GUEST,
            dialers: dial(&token, &waker),
            has_ended,
            arrivals: sender,
            pending: pending.clone(),
            wake,
            waker: waker.clone(),
            scratch: vec![0; READ_BYTES],
            strangers: LogLimit::default(),
        };
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("door".into())
            .spawn(move || keeper.run(&stopped))?;
        Ok(Door {
            arrivals,
            ended,
            stop,
            pending,
            waker,
            thread: Some(thread),
        })
    }

    /// The next connection that has arrived.
    pub fn next(&self) -> Option<Arrival> {
        let arrival = self.arrivals.try_recv().ok()?;
        if matches!(arrival, Arrival::Accepted(..)) {
            self.pending.fetch_sub(1, Ordering::AcqRel);
        }
        Some(arrival)
    }

    /// A link to a replica that was dialed is over.
    pub fn ended(&self, replica: ReplicaId) {
        // There is a place: this link's arrival was taken, and the replica is not dialed again before this is read.
        let _ = self.ended.try_send(replica);
        self.waker.wake();
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// How long the thread may still work for those who knock.
#[derive(Debug)]
struct Work {
    left: Duration,
    owed: Duration,
    at: Instant,
}

impl Work {
    fn new(now: Instant) -> Work {
        Work {
            left: WORK_AT_ONCE,
            owed: Duration::ZERO,
            at: now,
        }
    }

    fn refill(&mut self, now: Instant) {
        let came = now.saturating_duration_since(self.at) / WORK_SHARE;
        self.at = self.at.max(now);
        let paid = came.min(self.owed);
        self.owed -= paid;
        self.left = (self.left + came - paid).min(WORK_AT_ONCE);
    }

    fn spend(&mut self, took: Duration) {
        let taken = took.min(self.left);
        self.left -= taken;
        self.owed += took - taken;
    }

    fn is_there(&self) -> bool {
        self.owed.is_zero() && !self.left.is_zero()
    }

    /// When there is some again.
    fn due(&self) -> Instant {
        match self.is_there() {
            true => self.at,
            false => self.at + (self.owed + LEAST_WORK) * WORK_SHARE,
        }
    }
}

/// Somebody whose key is not known yet.
struct Guest {
    link: Box<Link>,
    from: SocketAddr,
    until: Instant,
    /// Whether its turn is awaited.
    queued: bool,
}

/// Guests that have something to say, by address; addresses in turn.
#[derive(Debug, Default)]
struct Turns {
    order: VecDeque<IpAddr>,
    guests: BTreeMap<IpAddr, VecDeque<usize>>,
}

impl Turns {
    fn push(&mut self, from: IpAddr, token: usize) {
        let guests = self.guests.entry(from).or_default();
        if guests.is_empty() {
            self.order.push_back(from);
        }
        guests.push_back(token);
    }

    fn pop(&mut self) -> Option<usize> {
        let from = self.order.pop_front()?;
        let guests = self.guests.get_mut(&from)?;
        let token = guests.pop_front();
        match guests.is_empty() {
            true => drop(self.guests.remove(&from)),
            false => self.order.push_back(from),
        }
        token
    }

    fn remove(&mut self, from: IpAddr, token: usize) {
        let Some(guests) = self.guests.get_mut(&from) else {
            return;
        };
        guests.retain(|t| *t != token);
        if guests.is_empty() {
            self.guests.remove(&from);
            self.order.retain(|address| *address != from);
        }
    }

    fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

struct Keeper {
    poll: Poll,
    listener: TcpListener,
    /// Whether somebody may wait to be accepted.
    accepting: bool,
    pause_until: Option<Instant>,
    config: Arc<ServerConfig>,
    limits: LimitsOf,
    handshakes: usize,
    guests: BTreeMap<usize, Guest>,
    turns: Turns,
    work: Work,
    next_guest: usize,
    dialers: Vec<(ReplicaId, Dialer)>,
    has_ended: Receiver<ReplicaId>,
    arrivals: SyncSender<Arrival>,
    pending: Arc<AtomicUsize>,
    wake: Waker,
    waker: Waker,
    scratch: Vec<u8>,
    strangers: LogLimit,
}

impl Keeper {
    fn run(mut self, stop: &AtomicBool) {
        let mut events = Events::with_capacity(256);
        while !stop.load(Ordering::Acquire) {
            let now = util::now();
            // More may wait than there was time for.
            let knocks = self.accepting && self.pause_until.is_none() || !self.turns.is_empty();
            let work = knocks.then(|| self.work.due());
            let due = [self.next_due(), work].into_iter().flatten().min();
            let timeout = due.map(|due| due.saturating_duration_since(now));
            match self.poll.poll(&mut events, timeout) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => {
                    return tracing::error!("no connections are made any more: {e}");
                }
                _ => self.waker.rearm(),
            }
            let now = util::now();
            for event in &events {
                self.on_ready(event);
            }
            self.let_go(now);
            self.dial(now);
            self.receive(now);
        }
    }

    /// Does something for those who knock, as long as there is time for it and others need not wait long.
    fn receive(&mut self, now: Instant) {
        self.work.refill(now);
        let mut since = now;
        for _ in 0..RECEIVED_AT_ONCE {
            if !self.work.is_there() {
                return;
            }
            let token = self.turns.pop();
            if let Some(token) = token {
                self.shake(token);
            }
            let accepted = self.accept(since);
            if token.is_none() && !accepted {
                return;
            }
            let now = util::now();
            self.work.spend(now.saturating_duration_since(since));
            since = now;
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let guests = self.guests.values().map(|g| g.until).min();
        let dialers = self.dialers.iter().filter_map(|(_, d)| d.next_due()).min();
        [guests, dialers, self.pause_until]
            .into_iter()
            .flatten()
            .min()
    }

    fn on_ready(&mut self, event: &Event) {
        match event.token().0 {
            LISTENER => self.accepting = true,
            token @ FIRST_DIALER..FIRST_GUEST => {
                let id = ReplicaId((token - FIRST_DIALER) as u8);
                if let Some((_, dialer)) = self.dialers.iter_mut().find(|(d, _)| *d == id) {
                    dialer.on_ready(event);
                }
            }
            token => {
                if let Some(guest) = self.guests.get_mut(&token) {
                    guest.link.on_ready(event);
                    self.queue(token);
                }
            }
        }
    }

    fn queue(&mut self, token: usize) {
        if let Some(guest) = self.guests.get_mut(&token)
            && !std::mem::replace(&mut guest.queued, true)
        {
            self.turns.push(guest.from.ip(), token);
        }
    }

    fn dial(&mut self, now: Instant) {
        while let Ok(id) = self.has_ended.try_recv() {
            if let Some((_, dialer)) = self.dialers.iter_mut().find(|(d, _)| *d == id) {
                dialer.ended(now);
            }
        }
        for (id, dialer) in &mut self.dialers {
            if let Some(link) = dialer.advance(self.poll.registry(), now, &mut self.scratch) {
                let _ = self.arrivals.try_send(Arrival::Dialed(*id, link));
                self.wake.wake();
            }
        }
    }

    /// Accepts a connection; whether there was one.
    fn accept(&mut self, now: Instant) -> bool {
        if self.pause_until.is_some_and(|until| until <= now) {
            (self.pause_until, self.accepting) = (None, true);
        }
        if !self.accepting || self.pause_until.is_some() {
            return false;
        }
        match self.listener.accept() {
            Ok((tcp, from)) => {
                self.on_guest(tcp, from, now);
                return true;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.accepting = false,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => {
                // Out of file descriptors, most likely: wait until some are given back.
                self.grumble(None, &format!("can't accept connections: {e}"));
                self.pause_until = Some(now + BREATH);
            }
        }
        false
    }

    fn on_guest(&mut self, mut tcp: TcpStream, from: SocketAddr, now: Instant) {
        if self.pending.load(Ordering::Acquire) >= self.handshakes && !self.make_room() {
            return self.grumble(Some(from), "too many connections without a known peer");
        }
        let token = self.next_guest;
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registered = self
            .poll
            .registry()
            .register(&mut tcp, Token(token), interest);
        // Until its key is known it may send nothing but a handshake.
        let limits = LinkLimits::of_strangers();
        let link = registered
            .map_err(LinkEnd::Io)
            .and_then(|()| Link::accepted(tcp, self.config.clone(), limits));
        match link {
            Ok(link) => {
                self.next_guest += 1;
                self.pending.fetch_add(1, Ordering::AcqRel);
                let (link, until) = (Box::new(link), now + HANDSHAKE_TIMEOUT);
                let guest = Guest {
                    link,
                    from,
                    until,
                    queued: false,
                };
                self.guests.insert(token, guest);
                self.queue(token);
            }
            Err(e) => self.grumble(Some(from), &format!("can't begin a handshake: {e}")),
        }
    }

    /// Lets go of the oldest guest from the address that has most; whether there is one.
    fn make_room(&mut self) -> bool {
        let mut guests: BTreeMap<IpAddr, (usize, usize)> = BTreeMap::new();
        for (&token, guest) in &self.guests {
            guests.entry(guest.from.ip()).or_insert((0, token)).0 += 1;
        }
        let most = guests.into_values().max_by_key(|(count, _)| *count);
        let Some((_, oldest)) = most else {
            return false;
        };
        if let Some(guest) = self.guests.remove(&oldest) {
            self.turns.remove(guest.from.ip(), oldest);
            self.pending.fetch_sub(1, Ordering::AcqRel);
            self.grumble(
                Some(guest.from),
                "too many connections without a known peer",
            );
        }
        true
    }

    /// Moves the handshake of a guest on.
    fn shake(&mut self, token: usize) {
        let Some(guest) = self.guests.get_mut(&token) else {
            return;
        };
        guest.queued = false;
        let done = match guest.link.shake(&mut self.scratch) {
            Ok(false) => return,
            Ok(true) => self.identify(token),
            Err(end) => Err(end),
        };
        let guest = self.guests.remove(&token);
        if let (Err(end), Some(guest)) = (done, guest) {
            self.pending.fetch_sub(1, Ordering::AcqRel);
            self.grumble(
                Some(guest.from),
                &format!("refused in the handshake: {end}"),
            );
        }
    }

    /// Hands over a guest whose handshake is done.
    fn identify(&mut self, token: usize) -> Result<(), LinkEnd> {
        let Some(mut guest) = self.guests.remove(&token) else {
            return Ok(());
        };
        let mut arrive = || {
            let key = guest.link.peer_key().ok_or(LinkEnd::AnotherProtocol)?;
            // The handshake has let in members only; the group does not change while the process runs.
            let limits = (self.limits)(&key).ok_or(LinkEnd::AnotherProtocol)?;
            guest.link.promote(limits)?;
            let registry = self.poll.registry();
            registry
                .deregister(guest.link.stream())
                .map_err(LinkEnd::Io)?;
            Ok(key)
        };
        match arrive() {
            Ok(key) => {
                let _ = self.arrivals.try_send(Arrival::Accepted(key, guest.link));
                self.wake.wake();
                Ok(())
            }
            Err(end) => {
                self.guests.insert(token, guest);
                Err(end)
            }
        }
    }

    /// Lets go of those who take too long.
    fn let_go(&mut self, now: Instant) {
        while let Some(guest) = self.guests.first_entry()
            && guest.get().until <= now
        {
            let token = *guest.key();
            let from = guest.remove().from;
            self.turns.remove(from.ip(), token);
            self.pending.fetch_sub(1, Ordering::AcqRel);
            self.grumble(Some(from), "refused in the handshake: it takes too long");
        }
    }

    fn grumble(&mut self, from: Option<SocketAddr>, what: &str) {
        if let Some(more) = self.strangers.pass() {
            let from = from.map(|f| f.to_string()).unwrap_or_default();
            tracing::warn!(%from, more, "{what}");
        }
    }
}
