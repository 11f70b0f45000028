//! A replica's links: to the other replicas, and to clients.
//!
//! Of two replicas the one with the higher id dials the other. A newer connection of a replica takes the place of
//! the older, whose end may not have been noticed yet. Events of one replica or client come in order: up,
//! messages, down.
//!
//! Where replicas have epoch keys, the older link is heard for another second: what was sent on it before the newer one stood is not lost.

mod guests;
mod renewal;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_wire::message::{
    ClientMessage, LinkReport, MAX_FRAME_BYTES, MAX_OP_BYTES, PeerMessage, ReplicaMessage,
};
use quorate_wire::{ClientId, Decode, EpochCertificate, MacKey, ReplicaId};

use crate::clock;
use crate::conduct::{self, Ledger, Verdict};
use crate::dial::Dialer;
use crate::door::{Arrival, Door, DoorOptions};
use crate::epochs::Epochs;
use crate::frame::{Frame, LinkEnd};
use crate::group::Group;
use crate::guests::Guest;
use crate::hub::{Hub, HubLimits, Item, Lane, SourceId, Waker};
use crate::link::{Link, LinkLimits};
use crate::log_limit::LogLimit;
use crate::outbox::OutboxLimits;
use crate::sealers::Sealing;
use crate::threads::Panicked;
use crate::tls::Identity;
use guests::{CONNECTIONS_PER_GUEST, Guests};

pub use guests::MAX_GUESTS;

/// What bounds a replica's links. The defaults are right for all but tests.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes that may wait to be sent to another replica.
    pub peer_queue_bytes: usize,
    /// Bytes that may wait to be sent on a client's connection.
    pub client_queue_bytes: usize,
    /// Bytes that may wait to be sent to all clients together. Beyond that the connection with most is closed.
    pub clients_queue_bytes: usize,
    /// Bytes of messages of all clients together that have not come whole; likewise.
    pub clients_partial_bytes: usize,
    /// Messages that may wait on any link.
    pub queue_frames: usize,
    /// Connections whose other end is not known yet; with one more the oldest is closed of the network (an address of IPv4, a /64 of IPv6) that has most.
    pub handshakes: usize,
    /// Connections of all clients; with one more the oldest is closed of the client that has most, unless the newcomer has as many.
    pub clients: usize,
    /// Connections of one client; with one more the oldest is closed.
    pub connections_per_client: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            peer_queue_bytes: 64 << 20,
            client_queue_bytes: 16 << 20,
            clients_queue_bytes: 128 << 20,
            clients_partial_bytes: 64 << 20,
            queue_frames: 64 << 10,
            handshakes: 256,
            clients: 1024,
            // One key is used by up to 16 mounts, whose links are made anew now and then, and by whoever only asks.
            connections_per_client: 48,
        }
    }
}

/// The longest frame of a client: an operation, its MACs and its head.
const MAX_CLIENT_FRAME_BYTES: usize = MAX_OP_BYTES + (4 << 10);

/// How often it is looked whether guests have to go.
const GUESTS_PERIOD: Duration = Duration::from_secs(1);

/// How long an older link is heard beside the newer one that has taken its place.
pub(crate) const FORMER_HEARD: Duration = Duration::from_secs(1);

/// One connection of a client. Numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// What happens on a replica's links.
#[derive(Debug)]
pub enum Event {
    /// A link to another replica stands.
    PeerUp(ReplicaId),
    /// A link to another replica has ended.
    PeerDown(ReplicaId),
    /// Another replica says something; TLS vouches for it.
    Peer(ReplicaId, PeerMessage),
    /// A client has connected.
    ClientUp {
        /// The connection.
        connection: ConnectionId,
        /// Whose.
        client: ClientId,
        /// The key for the MACs on requests that the client makes from now on.
        mac_key: MacKey,
    },
    /// The next connection is one of a client that came by a credential.
    GuestComes {
        /// Whose.
        client: ClientId,
        /// Whether the owner itself has granted the credential, or others have passed it on.
        is_owners: bool,
    },
    /// A client says something; TLS vouches for it.
    Client(ConnectionId, ClientMessage),
    /// A client's connection has ended.
    ClientDown(ConnectionId),
    /// A client that came by a credential has been gone for long, or another one needs its place: what is known of it can be forgotten.
    GuestGone(ClientId),
}

/// A replica's links, driven by the thread that owns them: [`poll`](Self::poll), then
/// [`next_event`](Self::next_event) until there is none, then [`flush`](Self::flush); and again. What is sent is
/// queued until then. Links end when this is dropped.
#[derive(Debug)]
pub struct ReplicaLinks {
    me: ReplicaId,
    group: Arc<Group>,
    limits: Limits,
    hub: Hub<Who>,
    peers: Vec<Peer>,
    /// Clients that have been here, by their keys; the group has no more than a few thousand.
    clients: BTreeMap<ClientId, Client>,
    /// Those of them that the group does not name, and when they were last looked at.
    guests: Guests,
    guests_looked_at: Instant,
    /// What peers, and clients, have cost. A peer's place is its id.
    peer_costs: Ledger,
    client_costs: Ledger,
    clients_put_aside: u64,
    /// Of what was given out last.
    last: Origin,
    door: Door,
    /// Comings and goings that were not told yet.
    told: VecDeque<(Who, Event)>,
    dropped_replies: u64,
    /// Whether an older link is heard beside a newer one.
    hears_former: bool,
    /// Links below this were there when keys were renewed last.
    renewed_below: usize,
    log: LogLimit,
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// Another replica.
    Peer(ReplicaId),
    /// A client, on whichever of its connections.
    Client(ClientId),
}

/// Where an event comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Whose it is.
    pub who: Who,
    /// How long the message is; 0 where it is none.
    pub bytes: usize,
}

#[derive(Debug)]
struct Peer {
    source: SourceId,
    /// The newest link.
    link: Option<usize>,
    /// The one before it, while it is heard, and until when.
    former: Option<(usize, Instant)>,
    /// Certificates with lower numbers are void: it has recovered.
    void_below: u64,
    /// The number of its newest certificate, and what clients are told of it.
    newest: Option<(u64, Frame)>,
    /// The number of the one that those were told who were here then, and when that was.
    shown: Option<(u64, Instant)>,
    dropped: u64,
    put_aside: u64,
    log: LogLimit,
}

impl Peer {
    /// A link stands that rests on this certificate.
    fn saw(&mut self, certificate: Option<&EpochCertificate>) {
        let Some(certificate) = certificate else {
            return;
        };
        let number = certificate.counter;
        if self
            .newest
            .as_ref()
            .is_none_or(|(known, _)| *known < number)
        {
            let told = ReplicaMessage::Certificate(Box::new(certificate.clone()));
            self.newest = Some((number, Frame::encode(&told)));
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Client {
    source: SourceId,
    /// Its place among the accounts.
    account: usize,
}

impl ReplicaLinks {
    /// Starts to accept and to dial, as the group's replica `me` whose key `identity` holds. What was seen of others' certificates is not
    /// kept.
    ///
    /// # Errors
    /// If the system gives no more threads or file descriptors.
    pub fn start(
        group: Arc<Group>,
        me: ReplicaId,
        identity: &Identity,
        listener: TcpListener,
        limits: Limits,
    ) -> io::Result<ReplicaLinks> {
        let epochs = Epochs::of(&group);
        ReplicaLinks::start_with(group, me, identity, epochs, listener, limits)
    }

    /// The same, where `epochs` knows what was seen of others' certificates; it is there exactly where the group has key holders.
    ///
    /// # Errors
    /// If the system gives no more threads or file descriptors.
    pub fn start_with(
        group: Arc<Group>,
        me: ReplicaId,
        identity: &Identity,
        epochs: Option<Epochs>,
        listener: TcpListener,
        limits: Limits,
    ) -> io::Result<ReplicaLinks> {
        assert_eq!(
            identity.replica_of(&group),
            Some(me),
            "the key is not that of {me:?}"
        );
        assert_eq!(epochs.is_some(), group.identities().is_some());
        let mut hub = Hub::new(HubLimits {
            waiting_bytes: limits.clients_queue_bytes,
            partial_bytes: limits.clients_partial_bytes,
        })?;
        let options = DoorOptions {
            listener,
            group: group.clone(),
            identity: identity.clone(),
            epochs,
            limits: Box::new(move |who| match who {
                Who::Peer(peer) if peer > me => Some(peer_limits(&limits)),
                // Not how a correct replica behaves: it waits for our call, or is this very replica.
                Who::Peer(_) => None,
                Who::Client(_) => Some(client_limits(&limits)),
            }),
            handshakes: limits.handshakes,
        };
        let lower = group.quorum().replicas().filter(|&peer| peer < me);
        let door = Door::open(
            options,
            |token, waker| {
                let dial = |peer: ReplicaId| {
                    let (limits, waker) = (peer_limits(&limits), waker.clone());
                    let whom = (&*group, peer);
                    (
                        peer,
                        Dialer::new(whom, identity, limits, token(peer), waker),
                    )
                };
                lower.map(dial).collect()
            },
            hub.waker().clone(),
        )?;
        let (quorum, now) = (group.quorum(), clock::now());
        let peer = |_| Peer {
            source: hub.source(Lane::First),
            link: None,
            former: None,
            void_below: 0,
            newest: None,
            shown: None,
            dropped: 0,
            put_aside: 0,
            log: LogLimit::default(),
        };
        Ok(ReplicaLinks {
            me,
            peers: quorum.replicas().map(peer).collect(),
            clients: BTreeMap::new(),
            guests: Guests::default(),
            guests_looked_at: now,
            peer_costs: Ledger::of_peers(quorum.n(), quorum.f(), now),
            client_costs: Ledger::of_clients(now),
            clients_put_aside: 0,
            last: Origin {
                who: Who::Peer(me),
                bytes: 0,
            },
            hears_former: group.identities().is_some(),
            renewed_below: 0,
            group,
            limits,
            hub,
            door,
            told: VecDeque::new(),
            dropped_replies: 0,
            log: LogLimit::default(),
        })
    }

    /// Has long frames, and many together, sealed and written by threads of their own, where `sealing` says so; `died` is told where one of
    /// these panics: what it was given is lost, and its links stand still.
    ///
    /// # Errors
    /// If the system gives no more threads.
    pub fn spawn_sealers(
        &mut self,
        sealing: Sealing,
        died: impl FnOnce(Panicked) + Clone + Send + 'static,
    ) -> io::Result<()> {
        self.hub.spawn_sealers(sealing, died)
    }

    /// Wakes the thread that waits in [`ReplicaLinks::poll`].
    pub fn waker(&self) -> Waker {
        self.hub.waker().clone()
    }

    /// Waits until a link has something to give or to take, or somebody wakes it; for `timeout` at most.
    ///
    /// # Errors
    /// Those of the operating system, and that the thread that makes connections has ended; both are final.
    pub fn poll(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let now = clock::now();
        self.judge(now);
        self.end_formers(now);
        self.show_certificates(now);
        let releases = [&self.peer_costs, &self.client_costs].map(Ledger::next_release);
        let due = releases.into_iter().flatten().chain(self.next_showing(now));
        let due = due.min().map(|at| at.saturating_duration_since(now));
        let timeout = [timeout, due].into_iter().flatten().min();
        self.hub.poll(timeout, |_, _| {})?;
        while let Some(arrival) = self.door.next() {
            match arrival {
                Arrival::Dialed(peer, link) => self.on_peer(peer, link)?,
                Arrival::Accepted(Who::Peer(peer), link) => self.on_peer(peer, link)?,
                Arrival::Accepted(Who::Client(client), link) => self.on_client(client, link)?,
                Arrival::Guest(guest, link) => self.on_guest(&guest, link)?,
            }
        }
        if let Some(why) = self.door.failure() {
            return Err(io::Error::other(format!("no links can be made: {why}")));
        }
        self.look_at_guests(now);
        Ok(())
    }

    /// What happened, until this turn has no more. Each link gives up to 128 KiB in a turn.
    pub fn next_event(&mut self) -> Option<Event> {
        loop {
            if let Some((who, event)) = self.told.pop_front() {
                self.last = Origin { who, bytes: 0 };
                return Some(event);
            }
            let (token, who, item) = self.hub.next()?;
            let frame = match item {
                Item::Frame(frame) => frame,
                Item::Overhead(units) => {
                    self.charge(who, units);
                    continue;
                }
                Item::End(end) => {
                    self.on_end(token, who, &end);
                    continue;
                }
            };
            self.last = Origin {
                who,
                bytes: frame.len(),
            };
            if frame.is_empty() {
                self.on_notice(token, who);
                continue;
            }
            let decoded = match who {
                Who::Peer(peer) => PeerMessage::from_bytes(frame).map(|m| {
                    self.charge(who, conduct::of_peer(&m));
                    Event::Peer(peer, m)
                }),
                Who::Client(_) => {
                    let message = ClientMessage::from_bytes(frame);
                    message.map(|m| Event::Client(ConnectionId(token as u64), m))
                }
            };
            match decoded {
                Ok(event) => return Some(event),
                Err(e) => self.hub.fail(token, LinkEnd::Malformed(e)),
            }
        }
    }

    /// Where the event that was given out last comes from.
    pub fn origin(&self) -> Origin {
        self.last
    }

    /// The message that came from there was of no use: it was refused, or asked for what had been told before. Who sends
    /// many of these is put aside for a while.
    pub fn refused(&mut self, Origin { who, bytes }: Origin) {
        let is_peer = matches!(who, Who::Peer(_));
        self.charge(who, conduct::of_refused(bytes, is_peer));
    }

    /// Nothing is read from other replicas, or from clients, as long as they are to rest: the owner has enough to do with what they have
    /// sent. What they send waits on their side.
    pub fn rest(&mut self, peers: bool, clients: bool) {
        self.hub.rest(Lane::First, peers);
        self.hub.rest(Lane::Second, clients);
    }

    fn charge(&mut self, who: Who, units: u64) {
        match who {
            Who::Peer(id) => self.peer_costs.charge(usize::from(id.0), units),
            Who::Client(client) => {
                if let Some(client) = self.clients.get(&client) {
                    self.client_costs.charge(client.account, units);
                }
            }
        }
    }

    /// Puts aside who costs too much, and takes back whose time is over.
    fn judge(&mut self, now: Instant) {
        for Verdict { at, aside } in self.peer_costs.settle(now) {
            let (id, peer) = (ReplicaId(at as u8), &mut self.peers[at]);
            match aside {
                Some(long) => {
                    tracing::warn!(peer = %id, ?long, "a replica sends far more than the others: nothing is read from it for a while");
                    peer.put_aside += 1;
                    self.hub.put_aside(peer.source);
                }
                None => self.hub.take_back(peer.source),
            }
        }
        for Verdict { at, aside } in self.client_costs.settle(now) {
            let found = self.clients.iter().find(|(_, c)| c.account == at);
            let Some((client, &Client { source, .. })) = found else {
                continue;
            };
            match aside {
                Some(long) => {
                    self.clients_put_aside += 1;
                    if let Some(more) = self.log.pass() {
                        tracing::warn!(%client, ?long, more, "a client sends too much of no use: nothing is read from it for a while");
                    }
                    self.hub.put_aside(source);
                }
                None => self.hub.take_back(source),
            }
        }
    }

    /// Writes what was queued, as far as the sockets take it now.
    pub fn flush(&mut self) {
        self.hub.flush();
    }

    /// Queues a frame for another replica; false if it was dropped, because the link is down or full.
    pub fn send(&mut self, to: ReplicaId, frame: &Frame) -> bool {
        let Some(peer) = self.peers.get_mut(usize::from(to.0)) else {
            return false;
        };
        let Some(link) = peer.link else {
            return false;
        };
        let queued = self.hub.push(link, frame);
        peer.dropped += u64::from(!queued);
        queued
    }

    /// Queues a frame for all other replicas that nobody waits for: it goes along with the next one, or by itself after a
    /// millisecond.
    pub fn broadcast_later(&mut self, frame: &Frame) {
        for to in self.group.quorum().others(self.me) {
            let Some(peer) = self.peers.get_mut(usize::from(to.0)) else {
                continue;
            };
            if let Some(link) = peer.link {
                peer.dropped += u64::from(!self.hub.push_later(link, frame));
            }
        }
    }

    /// Has what was queued for later written with the next [`ReplicaLinks::flush`].
    pub fn hurry(&mut self) {
        self.hub.hurry();
    }

    /// Queues a frame for all other replicas.
    pub fn broadcast(&mut self, frame: &Frame) {
        for to in self.group.quorum().others(self.me) {
            self.send(to, frame);
        }
    }

    /// Queues a frame for a client; false if it was dropped, because the connection has ended or is full.
    pub fn reply(&mut self, to: ConnectionId, frame: &Frame) -> bool {
        let token = to.0 as usize;
        let queued = self.hub.push(token, frame);
        if !queued {
            self.dropped_replies += 1;
            // Whoever asks and does not listen has others work for nothing.
            if let Some(who) = self.hub.note(token) {
                self.charge(who, conduct::of_refused(frame.wire_bytes(), false));
            }
        }
        queued
    }

    /// Ends the link to another replica, which is then made anew, with new session keys.
    pub fn renew(&mut self, peer: ReplicaId) {
        if let Some(link) = self.peers.get(usize::from(peer.0)).and_then(|p| p.link) {
            self.hub.close(link);
        }
    }

    /// Nothing is read from a client as long as it is held, on any of its connections: what it sends waits on its side.
    pub fn hold(&mut self, client: &ClientId, is_held: bool) {
        if let Some(client) = self.clients.get(client) {
            self.hub.hold(client.source, is_held);
        }
    }

    /// Ends a client's connection.
    pub fn disconnect(&mut self, connection: ConnectionId) {
        self.hub.close(connection.0 as usize);
    }

    /// How the links to the other replicas are.
    pub fn reports(&self) -> Vec<LinkReport> {
        let report = |id: ReplicaId| {
            let peer = &self.peers[usize::from(id.0)];
            LinkReport {
                peer: id,
                up: peer.link.is_some(),
                dropped: peer.dropped,
                put_aside: peer.put_aside,
            }
        };
        self.group.quorum().others(self.me).map(report).collect()
    }

    /// How many connections clients have.
    pub fn client_connections(&self) -> usize {
        let of_peer = |p: &Peer| usize::from(p.link.is_some()) + usize::from(p.former.is_some());
        self.hub.len() - self.peers.iter().map(of_peer).sum::<usize>()
    }

    /// How often a client was put aside because it sent too much of no use.
    pub fn clients_put_aside(&self) -> u64 {
        self.clients_put_aside
    }

    /// Replies dropped because clients did not take them in time, or were gone.
    pub fn dropped_replies(&self) -> u64 {
        self.dropped_replies
    }

    fn on_peer(&mut self, id: ReplicaId, mut link: Box<Link>) -> io::Result<()> {
        let peer = &mut self.peers[usize::from(id.0)];
        if link.certified() < peer.void_below {
            // It was judged before the door was told that the replica has recovered.
            if id < self.me {
                self.door.ended(id);
            }
            return Ok(());
        }
        peer.saw(link.certificate.as_deref());
        let greeting = link.take_greeting();
        let token = self.hub.insert(link, Who::Peer(id), peer.source)?;
        if let Some(older) = peer.link.replace(token) {
            let former = self.hears_former.then_some(older);
            let ends = match former {
                Some(former) => {
                    let until = clock::now() + FORMER_HEARD;
                    peer.former.replace((former, until)).map(|(token, _)| token)
                }
                None => Some(older),
            };
            if let Some(ends) = ends {
                self.hub.remove(ends);
            }
            self.told.push_back((Who::Peer(id), Event::PeerDown(id)));
        }
        self.told.push_back((Who::Peer(id), Event::PeerUp(id)));
        if let Some(greeting) = greeting {
            self.hub.push(token, &greeting);
        }
        Ok(())
    }

    fn on_client(&mut self, client: ClientId, link: Box<Link>) -> io::Result<()> {
        if self.client_connections() - self.guests.links() >= self.limits.clients {
            self.grumble("too many connections of clients");
            let Some((crowd, oldest)) = self.most_linked(&client) else {
                return Ok(());
            };
            self.let_go(crowd, oldest);
        }
        let known = self.clients.get(&client).copied();
        let known = known.unwrap_or_else(|| Client {
            source: self.hub.source(Lane::Second),
            account: self.client_costs.open(),
        });
        self.clients.insert(client, known);
        let most = self.limits.connections_per_client;
        self.welcome(client, known, most, link)?;
        Ok(())
    }

    /// The client of the group that has most links, where those are at least two more than another has, and its oldest: with few keys all connections could be taken for good.
    fn most_linked(&self, newcomer: &ClientId) -> Option<(ClientId, usize)> {
        // With its oldest.
        let mut links: BTreeMap<ClientId, (usize, usize)> = BTreeMap::new();
        for (token, who) in self.hub.notes() {
            if let Who::Client(client) = who
                && self.group.is_client(&client)
            {
                links.entry(client).or_insert((0, token)).0 += 1;
            }
        }
        let own = links.get(newcomer).map_or(0, |(count, _)| *count);
        let most = links.into_iter().max_by_key(|(_, (count, _))| *count);
        let (client, (count, oldest)) = most?;
        (count > own + 1).then_some((client, oldest))
    }

    fn on_guest(&mut self, guest: &Guest, link: Box<Link>) -> io::Result<()> {
        let (hub, costs) = (&mut self.hub, &self.client_costs);
        let (now, next_account) = (clock::now(), costs.len());
        let open = || Client {
            source: hub.source(Lane::Second),
            account: next_account,
        };
        let is_free = |client: &Client| !costs.is_aside(client.account);
        let Some(found) = self.guests.seat(guest, now, open, is_free) else {
            self.grumble("too many guests");
            return Ok(());
        };
        let known = self.guests.client(found.at);
        if known.account == next_account {
            self.client_costs.open();
        }
        if let Some(gone) = found.gone {
            self.on_guest_gone(gone);
        }
        self.clients.insert(guest.key, known);
        let comes = Event::GuestComes {
            client: guest.key,
            is_owners: self.guests.is_owners(&guest.key),
        };
        self.told.push_back((Who::Client(guest.key), comes));
        if self.welcome(guest.key, known, CONNECTIONS_PER_GUEST, link)? {
            self.guests.came(&guest.key);
        }
        Ok(())
    }

    /// What is known of a guest is forgotten: its place may be another's.
    fn on_guest_gone(&mut self, guest: ClientId) {
        if let Some(client) = self.clients.remove(&guest) {
            self.hub.hold(client.source, false);
        }
        let who = Who::Client(guest);
        self.told.push_back((who, Event::GuestGone(guest)));
    }

    /// Ends the links of guests whose time is over, and forgets those who have been gone for long.
    fn look_at_guests(&mut self, now: Instant) {
        if now < self.guests_looked_at + GUESTS_PERIOD {
            return;
        }
        self.guests_looked_at = now;
        for guest in self.guests.expired(clock::wall_seconds()) {
            let of_guest = self.hub.notes().filter(|(_, n)| *n == Who::Client(guest));
            let of_guest: Vec<usize> = of_guest.map(|(token, _)| token).collect();
            for token in of_guest {
                self.let_go(guest, token);
            }
        }
        for guest in self.guests.forget(now) {
            self.on_guest_gone(guest);
        }
    }

    /// Ends a client's link at once.
    fn let_go(&mut self, client: ClientId, token: usize) {
        self.hub.remove(token);
        self.guests.left(&client, clock::now());
        let connection = ConnectionId(token as u64);
        self.told
            .push_back((Who::Client(client), Event::ClientDown(connection)));
    }

    /// Takes the link of somebody who may have so many; whether it stands.
    fn welcome(
        &mut self,
        client: ClientId,
        known: Client,
        most: usize,
        mut link: Box<Link>,
    ) -> io::Result<bool> {
        if self.client_costs.is_aside(known.account) {
            // It is not to get out of that by coming anew.
            return Ok(false);
        }
        self.client_costs.charge(known.account, conduct::CONNECTION);
        let mac_key = match link.mac_key() {
            Ok(key) => key,
            Err(e) => {
                self.grumble(&format!("no key for MACs: {e}"));
                return Ok(false);
            }
        };
        let of_client = self.hub.notes().filter(|(_, n)| *n == Who::Client(client));
        let of_client: Vec<usize> = of_client.map(|(token, _)| token).collect();
        if of_client.len() >= most
            && let Some(&oldest) = of_client.first()
        {
            if let Some(more) = self.log.pass() {
                tracing::warn!(
                    %client,
                    most,
                    more,
                    "a client has as many connections as one key may have: the oldest is cut for a new one. Give each machine a key of its own"
                );
            }
            self.let_go(client, oldest);
        }
        let greeting = link.take_greeting().unwrap_or_else(Frame::welcome);
        let token = self.hub.insert(link, Who::Client(client), known.source)?;
        // The core knows the key before the client can send anything that it speaks for.
        let up = Event::ClientUp {
            connection: ConnectionId(token as u64),
            client,
            mac_key,
        };
        self.told.push_back((Who::Client(client), up));
        self.hub.push(token, &greeting);
        // What others certified last, so that somebody with an older key of theirs does not stay between them and the client.
        for (_, newest) in self.peers.iter().filter_map(|peer| peer.newest.as_ref()) {
            self.hub.push(token, newest);
        }
        Ok(true)
    }

    fn on_end(&mut self, token: usize, who: Who, end: &LinkEnd) {
        if end.is_misbehaviour() {
            self.charge(who, conduct::MALFORMED);
        }
        match who {
            Who::Peer(id) => {
                let peer = &mut self.peers[usize::from(id.0)];
                if peer
                    .former
                    .take_if(|(former, _)| *former == token)
                    .is_some()
                {
                    return;
                }
                peer.link = None;
                if let Some(more) = peer.log.pass() {
                    if end.is_misbehaviour() {
                        tracing::warn!(peer = %id, more, "the link to a replica ended: {end}");
                    } else {
                        tracing::info!(peer = %id, more, "the link to a replica ended: {end}");
                    }
                }
                if id < self.me {
                    self.door.ended(id);
                }
                self.told.push_back((Who::Peer(id), Event::PeerDown(id)));
            }
            Who::Client(client) => {
                if end.is_misbehaviour()
                    && let Some(more) = self.log.pass()
                {
                    tracing::warn!(%client, more, "a client's connection ended: {end}");
                }
                self.guests.left(&client, clock::now());
                let connection = ConnectionId(token as u64);
                self.told
                    .push_back((Who::Client(client), Event::ClientDown(connection)));
            }
        }
    }

    fn grumble(&mut self, what: &str) {
        if let Some(more) = self.log.pass() {
            tracing::warn!(more, "{what}");
        }
    }
}

fn peer_limits(limits: &Limits) -> LinkLimits {
    LinkLimits {
        max_frame_bytes: MAX_FRAME_BYTES,
        outbox: OutboxLimits {
            bytes: limits.peer_queue_bytes,
            frames: limits.queue_frames,
        },
    }
}

fn client_limits(limits: &Limits) -> LinkLimits {
    LinkLimits {
        max_frame_bytes: MAX_CLIENT_FRAME_BYTES,
        outbox: OutboxLimits {
            bytes: limits.client_queue_bytes,
            frames: limits.queue_frames,
        },
    }
}

#[cfg(test)]
mod tests;
