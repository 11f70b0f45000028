//! Many clients in one thread. Each is the protocol's own state machine with its own key, links and session, and asks
//! again as soon as it is answered; so the load is closed, as in the papers.
//!
//! One client waits for its links by itself, as a program with one session does. Of several, those are looked at whose links
//! have brought something. Time-outs are looked at for all together, so that no timer is set for each operation.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use quorate_agreement::client::{Client, ClientOptions, ClientOutput};
use quorate_net::{ClientEvent, ClientLinks, Frame};
use quorate_wire::message::{ClientMessage, ReplicaMessage};
use quorate_wire::{Authentication, ReplicaId};
use rustix::event::epoll;

use crate::Workload;
use crate::clock;
use crate::cpu;
use crate::group::Running;
use crate::null::{Conflicts, NullOp};

/// How often time-outs are looked at.
const TICK: Duration = Duration::from_millis(20);
/// How long clients may take to get their first answers, or their last.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the next answer is waited for where a measurement is to begin and end with one; and how long the last answers are
/// waited for before others take their turn. Those that take longer come meanwhile.
const PAUSE: Duration = Duration::from_millis(250);
/// Clients that are looked at for one question to the kernel.
const AT_ONCE: usize = 64;

/// What the clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Which operation.
    pub workload: Workload,
    /// How long it takes at the service.
    pub wait_ms: u32,
    /// How many clients.
    pub clients: usize,
    /// How many operations each has in flight.
    pub in_flight: usize,
}

impl Load {
    /// Operations that take no time at the service.
    pub const fn of(workload: Workload, clients: usize, in_flight: usize) -> Load {
        Load {
            workload,
            wait_ms: 0,
            clients,
            in_flight,
        }
    }
}

/// Which operations of a load can be at work at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parallelism {
    /// One at a time.
    None,
    /// Each is given to one of so many buckets at random; one of each bucket at a time. The papers' parallelism factor.
    Factor(u32),
    /// All.
    Infinite,
}

/// For how long.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Before anything is counted.
    pub warm_up: Duration,
    /// What is counted.
    pub measured: Duration,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Each operation's time from its request to its result, in nanoseconds, in rising order.
    pub latencies_ns: Vec<u32>,
    /// How long was counted: from one answer to another, so that the rate is right also where few come, or many at once.
    pub seconds: f64,
    /// CPU time of all replicas meanwhile, in seconds.
    pub replica_cpu: f64,
    /// CPU time of this process meanwhile: that of all clients.
    pub client_cpu: f64,
}

impl Sample {
    /// Operations that were answered in a second.
    pub fn ops_per_s(&self) -> f64 {
        self.latencies_ns.len() as f64 / self.seconds
    }

    /// The longest that a client waited for an answer, in milliseconds.
    pub fn longest_ms(&self) -> f64 {
        let longest = self.latencies_ns.last().copied().unwrap_or_default();
        f64::from(longest) / 1e6
    }
}

/// The clients of one group. They connect when they are first needed, and stay.
#[derive(Debug)]
pub struct Fleet {
    options: ClientOptions,
    parallelism: Parallelism,
    clients: Vec<Machine>,
    records: Records,
}

/// What all clients of a fleet write down.
#[derive(Debug, Default)]
struct Records {
    counts: bool,
    /// How many were answered since the clients connected.
    answers: usize,
    latencies_ns: Vec<u32>,
    /// Results of another length than was asked for.
    wrong: usize,
}

#[derive(Debug)]
struct Machine {
    client: Client,
    links: ClientLinks,
    started: Instant,
    work: Option<Work>,
    /// When the operation of each token was asked for.
    asked: Vec<Instant>,
    /// How many operations were asked for.
    asks: u64,
    open: usize,
    answered: bool,
    random: Random,
}

#[derive(Clone, Debug)]
struct Work {
    workload: Workload,
    op: NullOp,
    parallelism: Parallelism,
    /// The operation in its encoding, where all are the same; and as one that only reads.
    encoded: Bytes,
    read: Bytes,
}

impl Work {
    fn new(load: &Load, parallelism: Parallelism) -> Work {
        let op = NullOp {
            read_only: load.workload.read_only,
            result: load.workload.result as u32,
            wait_ms: load.wait_ms,
            conflicts: match parallelism {
                // Where there is none, the replicas see to it.
                Parallelism::None | Parallelism::Infinite => Conflicts::None,
                Parallelism::Factor(_) => Conflicts::All,
            },
        };
        Work {
            workload: load.workload,
            op,
            parallelism,
            encoded: op.encode(load.workload.request),
            read: NullOp {
                read_only: true,
                ..op
            }
            .encode(load.workload.request),
        }
    }

    fn next(&self, random: &mut Random) -> Bytes {
        match self.parallelism {
            Parallelism::None | Parallelism::Infinite => self.encoded.clone(),
            Parallelism::Factor(factor) => {
                let conflicts = Conflicts::Bucket(random.below(factor));
                let op = NullOp {
                    conflicts,
                    ..self.op
                };
                op.encode(self.workload.request)
            }
        }
    }
}

/// Numbers that look random and are the same in each run. Splitmix64.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// A number below a bound.
    pub fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % u64::from(bound.max(1))) as u32
    }
}

impl Fleet {
    /// No clients yet.
    pub fn new(options: ClientOptions, parallelism: Parallelism) -> Fleet {
        Fleet {
            options,
            parallelism,
            clients: Vec::new(),
            records: Records::default(),
        }
    }

    /// Puts a load on the group and measures. Blocks this thread meanwhile, which is the load's alone.
    ///
    /// # Errors
    /// Where the group does not answer, at first or while it is measured, or answers wrongly.
    pub fn measure(&mut self, group: &Running, load: &Load, window: Window) -> Result<Sample> {
        self.connect(group, load.clients)?;
        // What was left of the load before.
        self.finish(group)?;
        let work = Work::new(load, self.parallelism);
        let clients = &mut self.clients[..load.clients];
        for client in &mut *clients {
            client.start(&work, load.in_flight, &mut self.records);
        }
        let mut drive = Drive::new(clients, &mut self.records)?;
        // Where operations wait and conflict, the last client's turn comes long after the load is steady.
        if load.wait_ms == 0 {
            drive
                .until(|client| client.answered)
                .with_context(|| format!("no answers{}", group.last_words()))?;
        }
        drive.during(window.warm_up)?;

        drive.until_an_answer()?;
        let since = clock();
        let (replicas, own) = (cpu::total(group.pids())?, cpu::seconds(std::process::id())?);
        drive.records.counts = true;
        drive.during(window.measured)?;
        drive.until_an_answer()?;
        // A short measurement on a slow machine may have had none yet.
        drive.go_on(PATIENCE, |records| !records.latencies_ns.is_empty())?;
        drive.records.counts = false;
        if drive.records.latencies_ns.is_empty() {
            bail!(
                "no answers while it was measured, nor in {} s more{}",
                PATIENCE.as_secs(),
                group.last_words()
            );
        }
        let seconds = since.elapsed().as_secs_f64();
        let replica_cpu = cpu::total(group.pids())? - replicas;
        let client_cpu = cpu::seconds(std::process::id())? - own;

        drive.clients.iter_mut().for_each(|c| c.work = None);
        drive.for_at_most(PAUSE, |client| client.open == 0)?;
        let Records {
            mut latencies_ns,
            wrong,
            ..
        } = std::mem::take(&mut self.records);
        if wrong > 0 {
            bail!("{wrong} results were not what was asked for");
        }
        latencies_ns.sort_unstable();
        Ok(Sample {
            latencies_ns,
            seconds,
            replica_cpu,
            client_cpu,
        })
    }

    /// Who leads, as most clients think.
    pub fn primary(&self) -> ReplicaId {
        let mut votes: BTreeMap<ReplicaId, usize> = BTreeMap::new();
        for machine in &self.clients {
            *votes.entry(machine.client.primary()).or_default() += 1;
        }
        let most = votes.into_iter().max_by_key(|(_, count)| *count);
        most.map_or(ReplicaId(0), |(primary, _)| primary)
    }

    /// Waits for all that is still to be answered.
    fn finish(&mut self, group: &Running) -> Result<()> {
        if self.clients.iter().all(|client| client.open == 0) {
            return Ok(());
        }
        let mut drive = Drive::new(&mut self.clients, &mut self.records)?;
        drive
            .until(|client| client.open == 0)
            .with_context(|| format!("the last answers are missing{}", group.last_words()))
    }

    /// Sees that there are this many clients. New ones open their sessions with an operation that does nothing, so that no load
    /// is held up by that.
    fn connect(&mut self, group: &Running, count: usize) -> Result<()> {
        let known = self.clients.len();
        for at in known..count {
            let me = group.client(at).context("the group has too few clients")?;
            let mut nonce = [0; 8];
            getrandom::fill(&mut nonce)?;
            let (quorum, nonce) = (group.group().quorum(), u64::from_le_bytes(nonce));
            let (id, key) = (group.group().id(), me.key().clone());
            let client = Client::new(id, quorum, self.options, key, nonce, 0);
            self.clients.push(Machine {
                client: match group.group().protocol().authentication {
                    Authentication::Mac => client,
                    Authentication::Signature => client.signing(),
                },
                links: ClientLinks::connect(group.group(), me)?,
                started: clock(),
                work: None,
                asked: Vec::new(),
                asks: 0,
                open: 0,
                answered: false,
                random: Random(at as u64),
            });
        }
        let nothing = Work::new(&Load::of(Workload::of(0, 0), 1, 1), Parallelism::Infinite);
        for client in &mut self.clients[known..] {
            client.start(&nothing, 1, &mut self.records);
            client.work = None;
        }
        self.finish(group)
    }
}

/// The clients that are at work, and what tells which of them have something to do.
struct Drive<'a> {
    clients: &'a mut [Machine],
    records: &'a mut Records,
    ready: std::os::fd::OwnedFd,
}

impl<'a> Drive<'a> {
    fn new(clients: &'a mut [Machine], records: &'a mut Records) -> Result<Drive<'a>> {
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (at, client) in clients.iter().enumerate() {
            let data = epoll::EventData::new_u64(at as u64);
            epoll::add(&ready, client.links.as_fd(), data, epoll::EventFlags::IN)?;
        }
        Ok(Drive {
            clients,
            records,
            ready,
        })
    }

    /// Goes on until something holds for all clients.
    fn until(&mut self, holds: impl Fn(&Machine) -> bool) -> Result<()> {
        if !self.for_at_most(PATIENCE, &holds)? {
            let missing = self.clients.iter().filter(|c| !holds(c)).count();
            bail!("{missing} of {} clients wait in vain", self.clients.len());
        }
        Ok(())
    }

    /// The same, but not for longer than this. Whether it holds.
    fn for_at_most(&mut self, time: Duration, holds: impl Fn(&Machine) -> bool) -> Result<bool> {
        let end = clock() + time;
        while !self.clients.iter().all(&holds) {
            if clock() > end {
                return Ok(false);
            }
            self.during(TICK)?;
        }
        Ok(true)
    }

    /// Goes on until something is answered, as far as that does not take too long.
    fn until_an_answer(&mut self) -> Result<()> {
        let answers = self.records.answers;
        self.go_on(PAUSE, |records| records.answers > answers)
    }

    /// Goes on for a while.
    fn during(&mut self, time: Duration) -> Result<()> {
        self.go_on(time, |_| false)
    }

    fn go_on(&mut self, time: Duration, is_done: impl Fn(&Records) -> bool) -> Result<()> {
        let mut now = clock();
        let end = now + time;
        let mut tick = now;
        let mut events = Vec::with_capacity(AT_ONCE);
        while now < end && !is_done(self.records) {
            if tick <= now {
                for client in &mut *self.clients {
                    client.tick(self.records)?;
                }
                tick = now + TICK;
            }
            let wait = tick.min(end).saturating_duration_since(now);
            if let [client] = &mut *self.clients {
                client.turn(wait, self.records)?;
            } else {
                events.clear();
                let wait = rustix::time::Timespec::try_from(wait)?;
                let buffer = rustix::buffer::spare_capacity(&mut events);
                match epoll::wait(&self.ready, buffer, Some(&wait)) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(e) => return Err(e.into()),
                }
                for event in events.drain(..) {
                    let client = &mut self.clients[event.data.u64() as usize];
                    client.turn(Duration::ZERO, self.records)?;
                }
            }
            now = clock();
        }
        Ok(())
    }
}

impl Machine {
    fn start(&mut self, work: &Work, in_flight: usize, records: &mut Records) {
        self.work = Some(work.clone());
        self.answered = false;
        self.asked = vec![clock(); in_flight];
        for token in 0..in_flight {
            self.ask(token);
        }
        self.put_out(records);
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn ask(&mut self, token: usize) {
        let Some(work) = &self.work else { return };
        self.asks += 1;
        let in_turn = work.workload.in_turn && self.asks.is_multiple_of(2);
        let read_only = work.workload.read_only || in_turn;
        let op = match in_turn {
            true => work.read.clone(),
            false => work.next(&mut self.random),
        };
        let now = self.now_ms();
        self.asked[token] = clock();
        self.open += 1;
        match read_only {
            true => self.client.read(token as u64, op, now),
            false => self.client.call(token as u64, op, now),
        }
    }

    /// Waits for the links, takes what has come, and sends what that calls for.
    fn turn(&mut self, wait: Duration, records: &mut Records) -> Result<()> {
        self.links.poll(Some(wait))?;
        while let Some(event) = self.links.next_event() {
            self.on_event(event);
        }
        self.put_out(records);
        Ok(())
    }

    fn on_event(&mut self, event: ClientEvent) {
        let now = self.now_ms();
        match event {
            ClientEvent::Up(replica, key) => self.client.on_link(replica, Some(key)),
            ClientEvent::Down(replica) => self.client.on_link(replica, None),
            ClientEvent::Message(from, ReplicaMessage::Reply(reply)) => {
                self.client.on_reply(from, reply, now);
            }
            ClientEvent::Message(from, ReplicaMessage::Read(answer)) => {
                self.client.on_read(from, answer, now);
            }
            ClientEvent::Message(from, ReplicaMessage::Vouched(vouched)) => {
                self.client.on_vouched(from, vouched, now);
            }
            ClientEvent::Message(from, ReplicaMessage::Unsigned(refused)) => {
                self.client.on_unsigned(from, &refused, now);
            }
            ClientEvent::Message(_, ReplicaMessage::Report(_) | ReplicaMessage::Certificate(_)) => {
            }
        }
    }

    fn tick(&mut self, records: &mut Records) -> Result<()> {
        // Dialing has time-outs of its own; and what has come is late no more, however long nobody has looked.
        self.turn(Duration::ZERO, records)?;
        let now = self.now_ms();
        if self.client.next_timeout().is_some_and(|at| at <= now) {
            self.client.on_tick(now);
            self.put_out(records);
        }
        Ok(())
    }

    fn put_out(&mut self, records: &mut Records) {
        // What goes to several replicas is encoded once.
        let mut last: Option<(ClientMessage, Frame)> = None;
        loop {
            let outputs: Vec<_> = self.client.drain().collect();
            if outputs.is_empty() {
                return self.links.flush();
            }
            for output in outputs {
                match output {
                    ClientOutput::Send(replica, message) => {
                        let same = last.take().filter(|(known, _)| *known == message);
                        let (message, frame) = same.unwrap_or_else(|| {
                            let frame = Frame::encode_shared(&message);
                            (message, frame)
                        });
                        self.links.send(replica, &frame);
                        last = Some((message, frame));
                    }
                    ClientOutput::Done(token, result) => {
                        self.done(token as usize, result.ok().map(|r| r.len()), records);
                    }
                    ClientOutput::Opened(_) => {}
                }
            }
        }
    }

    /// `result` is its length, or nothing where the session was lost: then it is asked again.
    fn done(&mut self, token: usize, result: Option<usize>, records: &mut Records) {
        self.open -= 1;
        if let Some(result) = result {
            self.answered = true;
            records.answers += 1;
            if self
                .work
                .as_ref()
                .is_some_and(|w| w.workload.result != result)
            {
                records.wrong += 1;
            }
            if records.counts {
                let ns = self.asked[token].elapsed().as_nanos();
                records.latencies_ns.push(ns.min(u32::MAX.into()) as u32);
            }
        }
        self.ask(token);
    }
}
