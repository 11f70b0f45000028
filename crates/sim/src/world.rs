//! The world: virtual time, the queue of what will happen, and the servers and clients to which it happens.

use std::collections::{BTreeMap, BTreeSet};

use quorate_execution::Job;
use quorate_replica::{Checkpoints, ConnectionId, Input, Output, genesis};
use quorate_state::transfer::Lookup;
use quorate_wire::message::{ClientMessage, PeerMessage, ReplicaMessage};
use quorate_wire::{Decode, Digest, Encode, MacKey, Quorum, ReplicaId, Seq};

use crate::checks::agreement::Agreement;
use crate::checks::reference::Reference;
use crate::checks::validity::Validity;
use crate::checks::{Failure, lists, order, reads};
use crate::client::ClientNode;
use crate::dice::Dice;
use crate::history::Operation;
use crate::keys::replica_keys;
use crate::knobs::{Adversary, Knobs, Workload};
use crate::net::Net;
use crate::server::Server;
use crate::service::{AnyService, List};
use crate::sharing;
use crate::trace::{Sink, Trace};

mod clients;
mod flood;
mod intruder;
mod queue;
mod servers;
mod starts;
mod storm;
mod watch;

/// More events than this, and than one each microseconds of virtual time, are a storm that feeds itself. Seven replicas of which one
/// after the other recovers, beside two faulty ones, have one each 180.
const MAX_EVENTS: u64 = 4_000_000;
const EVENT_EACH: u64 = 100;
/// How often a healed world looks whether all is done.
const PROBE: u64 = 100_000;

/// Something that will happen.
#[derive(Debug)]
enum Event {
    Peer(usize, ReplicaId, PeerMessage),
    ToServer(ConnectionId, ClientMessage),
    ToClient(ConnectionId, ReplicaMessage),
    Synced(usize, u64, quorate_wire::LogIndex, Vec<usize>),
    Stored(usize, u64),
    Ran(usize, u64, Job),
    LookUp(usize, u64, Lookup),
    TakeBack(usize, u64),
    Tick(usize, u64),
    TurnEnd(usize, u64),
    /// A server notices that the process of a replica is gone, or that there is one again.
    PeerLink(usize, ReplicaId),
    ClientTick(usize, u64),
    Connect(usize, usize),
    Think(usize),
    Start(usize),
    Renew(usize, u64),
    StartClient(usize),
    Storm(storm::Blow),
    Flood(usize),
}

/// A connection of a client with a server.
#[derive(Clone, Copy, Debug)]
struct Connection {
    client: usize,
    server: usize,
}

/// What a run has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events.
    pub events: u64,
    /// Places that were executed.
    pub places: u64,
    /// Operations that ended with a result.
    pub operations: u64,
    /// Operations that ended without their result, since it was not kept any more.
    pub gone: u64,
    /// Crashes of replicas.
    pub crashes: u64,
    /// The highest view of a correct replica at the end.
    pub view: u64,
    /// State transfers that correct replicas began.
    pub transfers: u64,
    /// Proofs of others' contradictions that correct replicas have found.
    pub evidence: u64,
    /// Operations that workers ran.
    pub jobs: u64,
    /// Correct replicas that lost their logs and came back.
    pub recoveries: u64,
    /// Recoveries of correct replicas that came to nothing, so that they went on with their logs.
    pub taken_back: u64,
    /// Pieces of state that such replicas found right on their own disks, which they did not believe.
    pub checked: u64,
    /// Pieces that were not those of the group.
    pub differing: u64,
    /// What guests did, and what was taken back.
    pub shares: sharing::Shares,
    /// Virtual time in microseconds.
    pub time_us: u64,
}

/// Whether a message from one server to another is dropped.
pub type Filter = fn(usize, usize, &PeerMessage) -> bool;

/// A group, its clients, its network and its disks.
#[derive(Debug)]
pub struct World {
    knobs: Knobs,
    quorum: Quorum,
    service: AnyService,
    now: u64,
    queue: queue::Queue,
    dice: Dice,
    net: Net,
    servers: Vec<Server>,
    clients: Vec<ClientNode>,
    flooders: Vec<flood::Flooder>,
    connections: BTreeMap<ConnectionId, Connection>,
    next_connection: u64,
    /// For each pair of twins, the nodes that see the second of them.
    second_twin: BTreeMap<ReplicaId, BTreeSet<usize>>,
    operations: Vec<Operation>,
    agreement: Agreement,
    /// Whether what a client is told just now is a read that was perhaps found in a state with a tentative batch.
    early: bool,
    validity: Validity,
    reference: Reference,
    /// Roots that correct servers announced for places that the reference has not reached.
    announced: Vec<(usize, Seq, Digest)>,
    /// Which correct servers have ever announced a root.
    announcers: BTreeMap<(Seq, Digest), BTreeSet<usize>>,
    /// Correct servers that have lost their logs and have not come back yet: they count among the faulty ones.
    forgetful: BTreeSet<usize>,
    intruder: intruder::Intruder,
    rota: storm::Rota,
    /// How many statements each key holder has signed.
    holders: BTreeMap<ReplicaId, u64>,
    /// The number under which each server that recovers has said so.
    stated: BTreeMap<usize, u64>,
    /// The seed, for what follows from it without dice.
    seed: u64,
    /// What a scenario keeps from arriving.
    filter: Option<Filter>,
    healed: bool,
    stats: Stats,
    trace: Trace,
}

impl World {
    /// What the run has cost so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// A group that has just been set up; all servers and clients start at once.
    pub fn new(seed: u64, knobs: Knobs, sink: Sink) -> World {
        let quorum = Quorum::new(knobs.replicas).expect("a size of a group");
        let service = AnyService::new(knobs.workload);
        let layer = genesis(service.clone()).expect("the initial state can be written");
        let keys = replica_keys(quorum, knobs.epochs > 0);
        let mut dice = Dice::new(seed, 2);
        let checkpoints = Checkpoints::new(knobs.checkpoint_bytes);
        let adversary = |id: ReplicaId| {
            let mut all = knobs.adversaries.iter();
            all.find(|(r, _)| *r == id).map(|(_, a)| *a)
        };
        let twins = knobs.adversaries.iter();
        let twins = twins
            .filter(|(_, a)| *a == Adversary::Twin)
            .map(|(r, _)| *r);
        let ids: Vec<ReplicaId> = quorum.replicas().chain(twins.clone()).collect();
        let second_twin = twins.map(|r| (r, BTreeSet::new())).collect();
        let servers = ids
            .iter()
            .map(|&id| Server::new(id, &knobs, adversary(id), &keys, &layer, &mut dice))
            .collect();
        let mut clients: Vec<ClientNode> = (0..knobs.clients)
            .map(|c| ClientNode::new(seed, c, knobs.operations))
            .collect();
        for client in clients.iter_mut().take(knobs.bad_mac_clients) {
            client.bad_macs = quorum.replicas().filter(|_| dice.per_mille(500)).collect();
        }
        let mut world = World {
            quorum,
            service: service.clone(),
            now: 0,
            queue: queue::Queue::default(),
            dice,
            net: Net::new(seed),
            servers,
            clients,
            flooders: (0..knobs.floods)
                .map(|number| flood::Flooder::new(seed, number, knobs.replicas))
                .collect(),
            connections: BTreeMap::new(),
            next_connection: 1,
            second_twin,
            operations: Vec::new(),
            agreement: Agreement::default(),
            early: false,
            validity: Validity::default(),
            reference: Reference::new(service, &keys, &layer, checkpoints, knobs.kept_bytes),
            announced: Vec::new(),
            announcers: BTreeMap::new(),
            forgetful: BTreeSet::new(),
            intruder: intruder::Intruder::default(),
            rota: storm::Rota::default(),
            holders: BTreeMap::new(),
            stated: BTreeMap::new(),
            seed,
            filter: None,
            healed: false,
            stats: Stats::default(),
            trace: Trace::new(sink),
            knobs,
        };
        for server in 0..world.servers.len() {
            world.at(0, Event::Start(server));
        }
        for client in 0..world.clients.len() {
            world.at(0, Event::StartClient(client));
        }
        world
    }

    fn at(&mut self, time: u64, event: Event) {
        self.queue.push(time.max(self.now), event);
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.at(self.now + delay, event);
    }

    fn note(&mut self, numbers: &[u64], line: impl FnOnce() -> String) {
        self.trace.note(self.now, numbers, line);
    }

    /// Lets the next thing happen.
    ///
    /// # Errors
    /// A property that does not hold any more.
    pub fn step(&mut self) -> Result<(), Failure> {
        let Some((time, event)) = self.queue.pop() else {
            return Ok(());
        };
        self.now = time;
        self.stats.events += 1;
        if self.stats.events > MAX_EVENTS.max(self.now / EVENT_EACH) {
            return Err(Failure::new("liveness", "events that never end"));
        }
        self.happen(event)
    }

    fn happen(&mut self, event: Event) -> Result<(), Failure> {
        match event {
            Event::Peer(to, from, message) => {
                let n = crate::trace::number(&message);
                self.note(&[1, to as u64, u64::from(from.0), n], || {
                    format!("{from:?} -> server {to}: {}", crate::trace::words(&message))
                });
                self.overhear(to, from, &message);
                if let PeerMessage::Epoch(m) = &message
                    && m.certificate.replica == from
                {
                    self.saw_certificate(to, from, m.certificate.counter);
                }
                if self.withholds(to, &message) {
                    return Ok(());
                }
                let signing = &mut self.servers[to].signing;
                let opened = signing.open(from, message);
                for evidence in signing.take_evidence() {
                    self.on_evidence(to, &evidence)?;
                }
                match opened {
                    Ok(message) => self.on_peer(to, from, message),
                    // A message that its sender has not signed, or not so.
                    Err(_) => Ok(()),
                }
            }
            Event::ToServer(connection, message) => self.on_client_message(connection, message),
            Event::ToClient(connection, message) => {
                self.on_reply(connection, message);
                Ok(())
            }
            Event::Synced(server, incarnation, index, extent) => {
                self.on_synced(server, incarnation, index, &extent)
            }
            Event::Stored(server, incarnation) => self.on_stored(server, incarnation),
            Event::Ran(server, incarnation, job) => self.on_ran(server, incarnation, &job),
            Event::TakeBack(server, incarnation) => self.on_take_back(server, incarnation),
            Event::LookUp(server, incarnation, lookup) => {
                self.on_look_up(server, incarnation, &lookup)
            }
            Event::Tick(server, at) => self.on_tick(server, at),
            Event::TurnEnd(server, incarnation) => self.on_turn_end(server, incarnation),
            Event::PeerLink(server, peer) => {
                let instance = self.instance(peer, server);
                let is_up = instance.is_some_and(|s| self.servers[s].replica.is_some());
                self.note(&[11, server as u64, u64::from(peer.0)], || {
                    let how = if is_up { "up" } else { "gone" };
                    format!("server {server}'s link with replica {} is {how}", peer.0)
                });
                self.handle(server, Input::PeerLink(peer, is_up))
            }
            Event::ClientTick(client, at) => {
                self.on_client_tick(client, at);
                Ok(())
            }
            Event::Connect(client, server) => self.on_connect(client, server),
            Event::Think(client) => {
                self.on_think(client);
                Ok(())
            }
            Event::Start(server) => self.start(server),
            Event::Renew(server, incarnation) => self.on_renew(server, incarnation),
            Event::StartClient(client) => {
                self.start_client(client);
                Ok(())
            }
            Event::Storm(blow) => self.blow(blow),
            Event::Flood(flooder) => self.on_flood(flooder),
        }
    }

    /// Runs for some virtual time.
    ///
    /// # Errors
    /// A property that does not hold any more.
    pub fn run_for(&mut self, ms: u64) -> Result<(), Failure> {
        let end = self.now + ms * 1000;
        while self.queue.next_time().is_some_and(|at| at <= end) {
            self.step()?;
        }
        self.now = end;
        Ok(())
    }

    /// Runs until something is so, at most for some virtual time.
    ///
    /// # Errors
    /// A property that does not hold any more, or that it never came to be so.
    pub fn run_until(
        &mut self,
        what: &str,
        within_ms: u64,
        so: impl Fn(&World) -> bool,
    ) -> Result<(), Failure> {
        let end = self.now + within_ms * 1000;
        while !so(self) {
            if self.now >= end {
                let standing = self.describe();
                return Err(Failure::new("liveness", format!("not {what}\n{standing}")));
            }
            self.run_for(1)?;
        }
        Ok(())
    }

    /// Ends the storm, waits until all is done, and looks at the end.
    ///
    /// # Errors
    /// A property that does not hold.
    pub fn finish(&mut self) -> Result<Stats, Failure> {
        self.heal()?;
        let end = self.now + self.knobs.heal_within;
        while !self.is_settled() {
            if self.now >= end {
                let standing = self.describe();
                return Err(Failure::new(
                    "liveness",
                    format!("the storm is over, but not all is done:\n{standing}"),
                ));
            }
            self.run_for(PROBE / 1000)?;
        }
        self.check_end()?;
        self.stats.time_us = self.now;
        self.stats.places = self.agreement.last().0;
        let done = self.operations.iter().filter(|o| o.done.is_some());
        self.stats.operations = done.count() as u64;
        let views = self.correct().filter_map(|s| s.replica.as_ref());
        self.stats.view = views.map(|r| r.standing().view.0).max().unwrap_or(0);
        Ok(self.stats)
    }

    /// Those that must do it: who is correct and not dead for ever.
    fn correct(&self) -> impl Iterator<Item = &Server> {
        self.servers.iter().filter(|s| s.is_correct() && !s.dead)
    }

    /// Whether clients have all that they wanted and correct replicas have met.
    fn is_settled(&self) -> bool {
        // A faulty primary can leave guests waiting, and what they ask is no claim against it. One that stays down is such a one.
        let any_faulty = !self.knobs.adversaries.is_empty() || self.servers.iter().any(|s| s.dead);
        let awaited = match any_faulty {
            true => self.knobs.named(),
            false => self.clients.len(),
        };
        let mut awaited = self.clients.iter().take(awaited);
        let is_done = awaited.all(ClientNode::is_done);
        is_done && self.have_met() && self.all_committed() && self.are_in_one_view()
    }

    /// Whether all correct replicas are in one view that has started: who was away must learn it.
    pub fn are_in_one_view(&self) -> bool {
        let replicas = self.correct().filter_map(|s| s.replica.as_ref());
        let views: BTreeSet<_> = replicas
            .map(|r| (r.standing().view, r.standing().active))
            .collect();
        views.len() == 1 && views.iter().all(|(_, active)| *active)
    }

    /// Whether the results that clients have were given for good: a tentative one may be ahead of that, and where a read
    /// is ordered again it is the later of two.
    fn all_committed(&self) -> bool {
        let ordered = self.operations.iter();
        let mut ordered = ordered.filter_map(|o| Some((o.request?, &o.done.as_ref()?.1)));
        ordered.all(|(request, result)| self.reference.first_seq(request, result).is_some())
    }

    /// Whether all correct replicas have executed the same and all there is.
    pub fn have_met(&self) -> bool {
        let last = self.agreement.last();
        self.correct().all(|s| {
            s.replica.as_ref().is_some_and(|r| {
                let standing = r.standing();
                let at_last = r.applied() == last && standing.committed == last;
                at_last && !standing.fetching && !r.is_tentative()
            })
        })
    }

    fn check_end(&mut self) -> Result<(), Failure> {
        self.catch_reference_up()?;
        if self.reference.at() != self.agreement.last() {
            let what = format!("the content of {:?} is nowhere", self.reference.at().next());
            return Err(Failure::new("durability", what));
        }
        order::check(&self.operations, &self.reference)?;
        self.reference.kept().check(&self.operations)?;
        let gone = self.operations.iter().filter(|o| o.gone.is_some());
        self.stats.gone = gone.count() as u64;
        let layer = genesis(self.service.clone()).expect("the initial state can be written");
        let checkpoints = Checkpoints::new(self.knobs.checkpoint_bytes);
        let keys = replica_keys(self.quorum, self.knobs.epochs > 0);
        let kept_bytes = self.knobs.kept_bytes;
        let again = Reference::new(self.service.clone(), &keys, &layer, checkpoints, kept_bytes);
        let key = |client: usize| self.clients[client].key;
        let (all, agreed) = (&self.operations, &self.agreement);
        reads::check(all, key, agreed, &self.reference, again)?;
        match self.knobs.workload {
            Workload::KeyValue => lists::check(&self.operations, |key| {
                let value = self.reference.get(&[1, key]);
                value.map_or(Vec::new(), |v| List::from_bytes(v).expect("a list").tokens)
            })?,
            Workload::Files => self.reference.check_files()?,
            Workload::Shared => {
                self.reference.check_files()?;
                self.stats.shares = sharing::check(&self.operations)?;
            }
        }
        for (i, server) in self.servers.iter_mut().enumerate() {
            let is_correct = server.is_correct();
            if let Some(replica) = server.replica.as_mut().filter(|_| is_correct) {
                // After each step it was looked at what had changed in it.
                replica.invariants();
                replica.flush_sessions();
                self.reference.check_state(i, &replica.view())?;
            }
        }
        Ok(())
    }

    /// Where everyone stands, for people.
    pub fn describe(&self) -> String {
        let mut out = format!("agreed up to {:?}\n", self.agreement.last());
        for (i, server) in self.servers.iter().enumerate() {
            let kind = server
                .adversary
                .map_or("correct".into(), |a| format!("{a:?}"));
            let standing = match &server.replica {
                Some(r) => format!("{:?} applied {:?}", r.standing(), r.applied()),
                None => "down".into(),
            };
            out += &format!("  server {i} ({:?}, {kind}): {standing}\n", server.id);
        }
        for (i, client) in self.clients.iter().enumerate() {
            out += &format!(
                "  client {i}: {} open, {} to come, session {:?}, links {:?}\n",
                client.open.len(),
                client.left,
                client.core.as_ref().and_then(|c| c.session()),
                client.links.keys().collect::<Vec<_>>()
            );
        }
        out
    }

    /// Stands for all that happened.
    pub fn trace_hash(&self) -> u64 {
        self.trace.hash()
    }

    /// The knobs.
    pub fn knobs(&self) -> &Knobs {
        &self.knobs
    }

    /// A server.
    pub fn server(&self, server: usize) -> &Server {
        &self.servers[server]
    }

    /// The virtual time in milliseconds.
    pub fn now_ms(&self) -> u64 {
        self.now / 1000
    }

    /// What has been agreed.
    pub fn agreed(&self) -> Seq {
        self.agreement.last()
    }
}
