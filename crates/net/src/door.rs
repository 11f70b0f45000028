//! Where a replica's connections begin: a thread accepts and dials, and lets in who belongs to the group.
//!
//! Handshakes cost public-key work, and strangers can ask for them. So none of it is done by the thread that orders
//! operations; that one is given connections whose other end is known. And what the thread does for those that knock comes out of a
//! budget: a quarter of a second of work at once, and a fortieth of one processor in the long run. Networks have it in turn (an address of IPv4, a /64 of
//! IPv6), so who knocks without end keeps waiting who comes from there, and others little. Dialing waits for none of this.
//!
//! Where replicas have epoch keys, who shows a key that is no client's is a stranger until the certificate of it has come and was judged,
//! and that is done here as well. So it is with guests and their credentials, where the group has an owner.
//!
//! When all places for handshakes are taken, the oldest goes of the network that has most. So who holds places without
//! saying anything has each of them until others come, and one network can't keep out another.

mod fairness;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use quorate_wire::ReplicaId;
use rustls::ServerConfig;

use crate::clock;
use crate::dial::Dialer;
use crate::epochs::Epochs;
use crate::frame::LinkEnd;
use crate::group::{Group, Member};
use crate::guests;
use crate::hub::Waker;
use crate::link::{HANDSHAKE_TIMEOUT, Link, LinkLimits, Opening};
use crate::log_limit::LogLimit;
use crate::replica::Who;
use crate::threads;
use crate::tls::Identity;
use fairness::{Network, Turns, Work};

/// How much is read from a connection at a time. Also bounds what a stranger can make this process keep.
const READ_BYTES: usize = 16 << 10;
/// How long nothing is accepted when the process is out of file descriptors.
const BREATH: Duration = Duration::from_millis(100);
/// How many connections are accepted, and moved on, before others have their turn.
const RECEIVED_AT_ONCE: usize = 32;
/// Tokens: of the listener, of dialers by replica, and of connections that were accepted.
const LISTENER: usize = 0;
const FIRST_DIALER: usize = 1;
const FIRST_STRANGER: usize = FIRST_DIALER + 256;

/// What bounds a link with somebody; `None` for who may not come in.
type LimitsOf = Box<dyn Fn(Who) -> Option<LinkLimits> + Send>;

/// What the thread needs.
pub(crate) struct DoorOptions {
    pub listener: std::net::TcpListener,
    pub group: Arc<Group>,
    pub identity: Identity,
    /// What judges certificates, where replicas have epoch keys.
    pub epochs: Option<Epochs>,
    pub limits: LimitsOf,
    /// How many connections may be on their way in.
    pub handshakes: usize,
}

/// A connection that stands.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// Somebody has dialed.
    Accepted(Who, Box<Link>),
    /// Somebody with a credential has dialed.
    Guest(guests::Guest, Box<Link>),
    /// A replica that was dialed has let us in.
    Dialed(ReplicaId, Box<Link>),
}

/// The thread, seen from the one that is given its connections.
#[derive(Debug)]
pub(crate) struct Door {
    arrivals: Receiver<Arrival>,
    ended: SyncSender<ReplicaId>,
    orders: Arc<Mutex<Orders>>,
    stop: Arc<AtomicBool>,
    /// Connections that are on their way in, up to when they are taken.
    pending: Arc<AtomicUsize>,
    waker: Waker,
    /// Why the thread has ended, if it did so by itself.
    failed: Arc<OnceLock<String>>,
    thread: Option<JoinHandle<()>>,
}

/// What the owner of the links wants beside.
#[derive(Debug, Default)]
struct Orders {
    /// The key for all connections from now on.
    identity: Option<Identity>,
    /// Replicas to which another link is to be made.
    again: BTreeSet<ReplicaId>,
    /// Numbers of statements below which certificates are void, but for the last before each.
    void: BTreeMap<ReplicaId, u64>,
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
        let replicas = options.group.quorum().n();
        let (sender, arrivals) = mpsc::sync_channel(options.handshakes + replicas);
        let (ended, has_ended) = mpsc::sync_channel(replicas);
        let orders = Arc::<Mutex<Orders>>::default();
        let (stop, pending) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let token = |id: ReplicaId| Token(FIRST_DIALER + usize::from(id.0));
        let keeper = Keeper {
            poll,
            listener,
            accepting: true,
            pause_until: None,
            config: options.identity.server_config(&options.group),
            opening: Opening::accepting(&options.identity, &options.group),
            group: options.group,
            epochs: options.epochs,
            orders: orders.clone(),
            limits: options.limits,
            handshakes: options.handshakes,
            strangers: BTreeMap::new(),
            turns: Turns::default(),
            work: Work::new(clock::now()),
            next_stranger: FIRST_STRANGER,
            dialers: dial(&token, &waker),
            has_ended,
            arrivals: sender,
            pending: pending.clone(),
            wake: wake.clone(),
            waker: waker.clone(),
            scratch: vec![0; READ_BYTES],
            log: LogLimit::default(),
        };
        let failed = Arc::<OnceLock<String>>::default();
        let fail = {
            let failed = failed.clone();
            move |why: String| {
                // The first word counts, and nobody says another.
                let _ = failed.set(why);
                wake.wake();
            }
        };
        let (stopped, died) = (stop.clone(), fail.clone());
        let work = move || {
            if let Err(e) = keeper.run(&stopped) {
                fail(e.to_string());
            }
        };
        let thread = threads::spawn("door", move |panicked| died(panicked.to_string()), work)?;
        Ok(Door {
            arrivals,
            ended,
            orders,
            stop,
            pending,
            waker,
            failed,
            thread: Some(thread),
        })
    }

    /// Why nobody is let in or dialed any more, if that is so.
    pub fn failure(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    /// The next connection that has arrived.
    pub fn next(&self) -> Option<Arrival> {
        let arrival = self.arrivals.try_recv().ok()?;
        if matches!(arrival, Arrival::Accepted(..) | Arrival::Guest(..)) {
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

    /// From now on connections are made with another key; and all that were dialed once more.
    pub fn renew(&self, identity: Identity) {
        self.orders().identity = Some(identity);
        self.waker.wake();
    }

    /// Another link is to be made to a replica that is dialed.
    pub fn again(&self, replica: ReplicaId) {
        self.orders().again.insert(replica);
        self.waker.wake();
    }

    /// What a replica certified before the one before this number is void.
    pub fn void(&self, replica: ReplicaId, number: u64) {
        self.orders().void.insert(replica, number);
        self.waker.wake();
    }

    fn orders(&self) -> std::sync::MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Somebody whose key is not known yet.
struct Stranger {
    link: Box<Link>,
    from: SocketAddr,
    until: Instant,
    /// Whether its turn is awaited.
    queued: bool,
}

struct Keeper {
    poll: Poll,
    listener: TcpListener,
    /// Whether somebody may wait to be accepted.
    accepting: bool,
    pause_until: Option<Instant>,
    group: Arc<Group>,
    config: Arc<ServerConfig>,
    opening: Opening,
    epochs: Option<Epochs>,
    orders: Arc<Mutex<Orders>>,
    limits: LimitsOf,
    handshakes: usize,
    strangers: BTreeMap<usize, Stranger>,
    turns: Turns,
    work: Work,
    next_stranger: usize,
    dialers: Vec<(ReplicaId, Dialer)>,
    has_ended: Receiver<ReplicaId>,
    arrivals: SyncSender<Arrival>,
    pending: Arc<AtomicUsize>,
    wake: Waker,
    waker: Waker,
    scratch: Vec<u8>,
    log: LogLimit,
}

impl Keeper {
    fn run(mut self, stop: &AtomicBool) -> io::Result<()> {
        let mut events = Events::with_capacity(256);
        while !stop.load(Ordering::Acquire) {
            let now = clock::now();
            // More may wait than there was time for.
            let knocks = self.accepting && self.pause_until.is_none() || !self.turns.is_empty();
            let work = knocks.then(|| self.work.due());
            let due = [self.next_due(), work].into_iter().flatten().min();
            let timeout = due.map(|due| due.saturating_duration_since(now));
            match self.poll.poll(&mut events, timeout) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(e),
                _ => self.waker.rearm(),
            }
            let now = clock::now();
            for event in &events {
                self.on_ready(event);
            }
            self.let_go(now);
            self.dial(now);
            self.receive(now);
        }
        Ok(())
    }

    /// Does something for those who knock, as long as there is time for it and others need not wait long.
    fn receive(&mut self, now: Instant) {
        self.work.refill(now);
        // Also where there is no time for anybody: else the thread would go round without a pause until there is.
        if self.pause_until.is_some_and(|until| until <= now) {
            (self.pause_until, self.accepting) = (None, true);
        }
        let (mut since, mut worked) = (now, fairness::worked());
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
            let so_far = fairness::worked();
            self.work.spend(so_far.saturating_sub(worked));
            (since, worked) = (clock::now(), so_far);
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let strangers = self.strangers.values().map(|g| g.until).min();
        let dialers = self.dialers.iter().filter_map(|(_, d)| d.next_due()).min();
        [strangers, dialers, self.pause_until]
            .into_iter()
            .flatten()
            .min()
    }

    fn on_ready(&mut self, event: &Event) {
        match event.token().0 {
            LISTENER => self.accepting = true,
            token @ FIRST_DIALER..FIRST_STRANGER => {
                let id = ReplicaId((token - FIRST_DIALER) as u8);
                if let Some((_, dialer)) = self.dialers.iter_mut().find(|(d, _)| *d == id) {
                    dialer.on_ready(event);
                }
            }
            token => {
                if let Some(stranger) = self.strangers.get_mut(&token) {
                    stranger.link.on_ready(event);
                    self.queue(token);
                }
            }
        }
    }

    fn queue(&mut self, token: usize) {
        if let Some(stranger) = self.strangers.get_mut(&token)
            && !std::mem::replace(&mut stranger.queued, true)
        {
            self.turns.push(Network::of(stranger.from.ip()), token);
        }
    }

    fn dial(&mut self, now: Instant) {
        while let Ok(id) = self.has_ended.try_recv() {
            if let Some((_, dialer)) = self.dialers.iter_mut().find(|(d, _)| *d == id) {
                dialer.ended(now);
            }
        }
        self.take_orders(now);
        let (registry, scratch) = (self.poll.registry(), &mut self.scratch[..]);
        for (id, dialer) in &mut self.dialers {
            if let Some(link) = dialer.advance(registry, now, scratch, &mut self.epochs) {
                match self.arrivals.try_send(Arrival::Dialed(*id, link)) {
                    Ok(()) => self.wake.wake(),
                    // The owner is slow, and has a link already.
                    Err(_) => dialer.ended(now),
                }
            }
        }
    }

    fn take_orders(&mut self, now: Instant) {
        let orders = {
            let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *orders)
        };
        for (id, dialer) in &mut self.dialers {
            if let Some(identity) = &orders.identity {
                dialer.renew(&self.group, identity, now);
            } else if orders.again.contains(id) {
                dialer.again(now);
            }
        }
        for (replica, number) in orders.void {
            if let Some(epochs) = &mut self.epochs
                && let Err(e) = epochs.void(replica, number)
            {
                tracing::warn!(
                    "that replica {} has recovered can't be written down: {e}",
                    replica.0
                );
            }
        }
        if let Some(identity) = orders.identity {
            self.config = identity.server_config(&self.group);
            self.opening = Opening::accepting(&identity, &self.group);
        }
    }

    /// Accepts a connection; whether there was one.
    fn accept(&mut self, now: Instant) -> bool {
        if !self.accepting || self.pause_until.is_some() {
            return false;
        }
        match self.listener.accept() {
            Ok((tcp, from)) => {
                self.on_stranger(tcp, from, now);
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

    fn on_stranger(&mut self, mut tcp: TcpStream, from: SocketAddr, now: Instant) {
        if self.pending.load(Ordering::Acquire) >= self.handshakes && !self.make_room() {
            return self.grumble(Some(from), "too many connections without a known peer");
        }
        // Who was asked to come anew finds the new key.
        self.take_orders(now);
        let token = self.next_stranger;
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registered = self
            .poll
            .registry()
            .register(&mut tcp, Token(token), interest);
        // Until its key is known it may send nothing but a handshake.
        let limits = LinkLimits::of_strangers();
        let link = registered
            .map_err(LinkEnd::Io)
            .and_then(|()| Link::accepted(tcp, self.config.clone(), limits, self.opening.clone()));
        match link {
            Ok(link) => {
                self.next_stranger += 1;
                self.pending.fetch_add(1, Ordering::AcqRel);
                let (link, until) = (Box::new(link), now + HANDSHAKE_TIMEOUT);
                let stranger = Stranger {
                    link,
                    from,
                    until,
                    queued: false,
                };
                self.strangers.insert(token, stranger);
                self.queue(token);
            }
            Err(e) => self.grumble(Some(from), &format!("can't begin a handshake: {e}")),
        }
    }

    /// Lets go of the oldest stranger from the network that has most; whether there is one.
    fn make_room(&mut self) -> bool {
        let here = self.strangers.iter();
        let here = here.map(|(&token, stranger)| (token, Network::of(stranger.from.ip())));
        let Some(oldest) = fairness::first_to_go(here) else {
            return false;
        };
        if let Some(stranger) = self.strangers.remove(&oldest) {
            self.turns.remove(Network::of(stranger.from.ip()), oldest);
            self.pending.fetch_sub(1, Ordering::AcqRel);
            self.grumble(
                Some(stranger.from),
                "too many connections without a known peer",
            );
        }
        true
    }

    /// Moves the handshake of a stranger on.
    fn shake(&mut self, token: usize) {
        let Some(stranger) = self.strangers.get_mut(&token) else {
            return;
        };
        stranger.queued = false;
        let (link, scratch) = (&mut stranger.link, &mut self.scratch[..]);
        let known = match link.shake(scratch) {
            Ok(false) => Ok(None),
            Ok(true) => identify(link, scratch, &self.group, &mut self.epochs),
            Err(end) => Err(end),
        };
        let has_more = link.is_readable();
        let done = match known {
            Ok(None) if has_more => return self.queue(token),
            Ok(None) => return,
            Ok(Some(known)) => self.let_in(token, known),
            Err(end) => Err(end),
        };
        let stranger = self.strangers.remove(&token);
        if let (Err(end), Some(stranger)) = (done, stranger) {
            self.pending.fetch_sub(1, Ordering::AcqRel);
            self.grumble(
                Some(stranger.from),
                &format!("refused in the handshake: {end}"),
            );
        }
    }

    /// Hands over a stranger that is known.
    fn let_in(&mut self, token: usize, known: Known) -> Result<(), LinkEnd> {
        let Some(mut stranger) = self.strangers.remove(&token) else {
            return Ok(());
        };
        let mut arrive = || {
            let who = match &known {
                Known::Member(who) => *who,
                Known::Guest(guest) => Who::Client(guest.key),
            };
            let limits = (self.limits)(who).ok_or(LinkEnd::AnotherProtocol)?;
            stranger.link.promote(limits)?;
            let registry = self.poll.registry();
            registry
                .deregister(stranger.link.stream())
                .map_err(LinkEnd::Io)
        };
        match arrive() {
            Ok(()) => {
                let arrival = match known {
                    Known::Member(who) => Arrival::Accepted(who, stranger.link),
                    Known::Guest(guest) => Arrival::Guest(guest, stranger.link),
                };
                let _ = self.arrivals.try_send(arrival);
                self.wake.wake();
                Ok(())
            }
            Err(end) => {
                self.strangers.insert(token, stranger);
                Err(end)
            }
        }
    }

    /// Lets go of those who take too long.
    fn let_go(&mut self, now: Instant) {
        while let Some(stranger) = self.strangers.first_entry()
            && stranger.get().until <= now
        {
            let token = *stranger.key();
            let from = stranger.remove().from;
            self.turns.remove(Network::of(from.ip()), token);
            self.pending.fetch_sub(1, Ordering::AcqRel);
            self.grumble(Some(from), "refused in the handshake: it takes too long");
        }
    }

    fn grumble(&mut self, from: Option<SocketAddr>, what: &str) {
        if let Some(more) = self.log.pass() {
            let from = from.map(|f| f.to_string()).unwrap_or_default();
            tracing::warn!(%from, more, "{what}");
        }
    }
}

/// Who is let in.
#[derive(Clone, Debug)]
enum Known {
    Member(Who),
    Guest(guests::Guest),
}

/// Who is at the other end of a finished handshake; `None` as long as its certificate or credential has not come.
fn identify(
    link: &mut Link,
    scratch: &mut [u8],
    group: &Group,
    epochs: &mut Option<Epochs>,
) -> Result<Option<Known>, LinkEnd> {
    let key = link.peer_key().ok_or(LinkEnd::AnotherProtocol)?;
    let member = |who| Ok(Some(Known::Member(who)));
    match (group.member(&key), epochs) {
        (Some(Member::Client(_) | Member::Owner), _) => member(Who::Client(key)),
        (Some(Member::Replica(id)), None) => member(Who::Peer(id)),
        (None, _) if link.is_of_guest() => match link.introduction(scratch)? {
            None => Ok(None),
            Some(shown) => {
                let judged = guests::judge(group, &key, shown, clock::wall_seconds());
                Ok(Some(Known::Guest(judged.map_err(LinkEnd::Credential)?)))
            }
        },
        // The group does not change while the process runs.
        (None, None) => Err(LinkEnd::AnotherProtocol),
        (_, Some(epochs)) => match link.introduction(scratch)? {
            None => Ok(None),
            Some(shown) => {
                let judged = epochs.judge(&key, shown);
                let certificate = judged.map_err(LinkEnd::Certificate)?;
                let replica = certificate.replica;
                link.certificate = Some(Box::new(certificate));
                member(Who::Peer(replica))
            }
        },
    }
}

#[cfg(test)]
mod tests;
